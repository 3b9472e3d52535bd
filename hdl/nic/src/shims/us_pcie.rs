//! The card's PCIe ports on the hard PCI Express core of UltraScale+ (PCIE4, PCIE4C), 512 bits at 250 MHz.
//!
//! ```text
//!   rq  ─> header to RQ descriptor ─> us_send ─> s_axis_rq           m_axis_cq ─> us_receive ─> CQ descriptor to header ─> cq
//!   cc  ─> header to CC descriptor ─> us_send ─> s_axis_cc           m_axis_rc ─> us_receive ─> RC descriptor to header ─> rc
//!   pcie_tfc_nph_av, pcie_rq_seq_num* ─> nonposted_ok                cfg_* ─> pcie            cfg_flr_in_process ─> flr
//! ```
//! In and out: TLPs with their header beside the data, one per clock at most; RC straddled (two TLPs per beat), the other
//! three not. Dword-aligned mode, tags of the client, no parity, no TPH, one function. Requests of the host come with their
//! address within the BAR, below 4 GiB. MSI-X messages are memory writes of
//! the card: the core's interrupt ports stay unused.
//!
//! Latency: 1 clock each way. Bandwidth: a write of 256 bytes takes 5 beats of RQ, one of 512 takes 9. Back-pressure: the core's
//! `tready` stops the card, the card's `ready` stops RC and CQ; nothing is lost.
//!
//! **Credits.** A read leaves only if `pcie_tfc_nph_av` counts more credits than there are reads between here and the point
//! at which the core returns their sequence number: a read without credit would stop the writes behind it. Writes need no
//! such care (`posted_ok` is high): what waits behind a write may not pass it anyway.
//! **Function level reset.** RQ and CC stop between two TLPs, then the card is reset for [`RESET`] clocks, then
//! `cfg_flr_done` stands until the core has seen it.
//! **Configuration.** Sizes, boundary, bus master and MSI-X come by pins; extended tags, relaxed ordering and the completion
//! timeout are read from Device Control and Device Control 2, in turn, every [`PAUSE`] clocks.
//! **Errors of the core.** A completion that the core marks as ended by a timeout, a reset or a mismatch gets the reserved
//! status 7: the card ends the read and lays its tag aside. Poison and UR, CA stay what they are. `discontinue` (an
//! uncorrectable error in the core's own memory, which it reports by itself) is not looked at.
//!
//! Requirements: PCIE

use crate::config::Config;
use crate::flow::{PcieConfig, TlpBeat};
use crate::pcie::header;
use crate::shims::us_receive::{CoreBeat, UsReceive};
use crate::shims::us_send::{DATA, DWORDS, Outgoing, UsSend, UsSendIo};
use contract::pcie::{KIND_COMPLETION, TlpCompletionHeaderBits, TlpMemoryHeaderBits};
use hdl::{
    Bundle, EnumSig, HwEnum, Module, Ports, Sig, Stream, Width, all_of, any_of, cat, delay_init, high,
    instance, lit, low, mux, reg, reg_init, select, when,
};

/// Clocks for which a function level reset lasts.
pub const RESET: u64 = 63;
/// Clocks between two reads of configuration space.
pub const PAUSE: u64 = 63;
/// Byte address of the PCI Express capability of the core.
const CAPABILITY: u64 = 0x70;
/// Doubleword addresses of Device Control and Device Control 2.
const DEVICE_CONTROL: [u64; 2] = [(CAPABILITY + 0x08) / 4, (CAPABILITY + 0x28) / 4];
/// Reserved status of a completion that the core does not stand for.
const STATUS_BROKEN: u64 = 7;
/// Bit of the sequence number that marks a read.
const IS_READ: u32 = 5;
/// Reads between here and the core's credit counter, at most 15 as `pcie_tfc_nph_av` counts.
const READS: u32 = 6;

/// The shim.
#[derive(Clone, Debug)]
pub struct UsPcie(pub Config);

/// An AXI stream of the core without its `tready`; the shape is the width of `tuser`.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Width)]
pub struct Channel {
    /// Descriptors and payload.
    #[shape(DATA)]
    pub tdata: Sig,
    /// Doublewords that there are (not when straddled).
    #[shape(DWORDS)]
    pub tkeep: Sig,
    /// Last beat (not when straddled).
    pub tlast: Sig,
    /// See the product guide.
    #[shape(c.0)]
    pub tuser: Sig,
    /// There is a beat.
    pub tvalid: Sig,
}

/// Ports of [`UsPcie`]: those of the core by their own names, those of the card by theirs.
#[derive(Ports)]
#[ports(UsPcie)]
pub struct UsPcieIo {
    /// Requester request.
    #[output(Width(137))]
    pub s_axis_rq: Channel,
    /// Taken.
    #[input]
    pub s_axis_rq_tready: Sig,
    /// Requester completion.
    #[input(Width(161))]
    pub m_axis_rc: Channel,
    /// Taken.
    #[output]
    pub m_axis_rc_tready: Sig,
    /// Completer request.
    #[input(Width(183))]
    pub m_axis_cq: Channel,
    /// Taken.
    #[output]
    pub m_axis_cq_tready: Sig,
    /// Completer completion.
    #[output(Width(81))]
    pub s_axis_cc: Channel,
    /// Taken.
    #[input]
    pub s_axis_cc_tready: Sig,
    /// A request has left the core's pipeline.
    #[input]
    pub pcie_rq_seq_num_vld0: Sig,
    /// This one.
    #[input(6)]
    pub pcie_rq_seq_num0: Sig,
    /// A second one.
    #[input]
    pub pcie_rq_seq_num_vld1: Sig,
    /// This one.
    #[input(6)]
    pub pcie_rq_seq_num1: Sig,
    /// Non-posted header credits; 15: or more.
    #[input(4)]
    pub pcie_tfc_nph_av: Sig,
    /// Non-posted requests may come.
    #[output(2)]
    pub pcie_cq_np_req: Sig,
    /// Doubleword address in configuration space.
    #[output(10)]
    pub cfg_mgmt_addr: Sig,
    /// Read it.
    #[output]
    pub cfg_mgmt_read: Sig,
    /// What stands there.
    #[input(32)]
    pub cfg_mgmt_read_data: Sig,
    /// It is there.
    #[input]
    pub cfg_mgmt_read_write_done: Sig,
    /// DEVCTL 7:5; the core is made for 1024 bytes at most.
    #[input(2)]
    pub cfg_max_payload: Sig,
    /// DEVCTL 14:12.
    #[input(3)]
    pub cfg_max_read_req: Sig,
    /// Four bits per function: I/O, memory, bus master, interrupt disable.
    #[input(16)]
    pub cfg_function_status: Sig,
    /// Per function: the boundary is 128 bytes.
    #[input(4)]
    pub cfg_rcb_status: Sig,
    /// As captured.
    #[input(8)]
    pub cfg_bus_number: Sig,
    /// Per function: MSI-X is on.
    #[input(4)]
    pub cfg_interrupt_msix_enable: Sig,
    /// Per function: all vectors are masked.
    #[input(4)]
    pub cfg_interrupt_msix_mask: Sig,
    /// Per function: it is to be reset.
    #[input(4)]
    pub cfg_flr_in_process: Sig,
    /// Per function: it is.
    #[output(4)]
    pub cfg_flr_done: Sig,

    /// Requests of the card.
    #[sink(c.0.clone())]
    pub rq: Stream<TlpBeat>,
    /// Their completions.
    #[source(c.0.clone())]
    pub rc: Stream<TlpBeat>,
    /// Requests of the host.
    #[source(c.0.clone())]
    pub cq: Stream<TlpBeat>,
    /// BAR of the request.
    #[output(3)]
    pub cq_bar: Sig,
    /// Their completions.
    #[sink(c.0.clone())]
    pub cc: Stream<TlpBeat>,
    /// Always.
    #[output]
    pub posted_ok: Sig,
    /// A read would find credit.
    #[output]
    pub nonposted_ok: Sig,
    /// Configuration space.
    #[output]
    pub pcie: PcieConfig,
    /// Resets the card, but for its MAC.
    #[output]
    pub flr: Sig,
}

/// Inputs of the core that stand at one; all others that the shim does not drive stand at zero.
pub const TIES: &[(&str, u64)] = &[
    ("cfg_config_space_enable", 1),
    ("cfg_link_training_enable", 1),
    ("cfg_power_state_change_ack", 1),
    ("cfg_mgmt_byte_enable", 0xf),
];

impl Channel {
    fn pins(&self, name: &str) -> Vec<(String, Sig)> {
        let parts = ["tdata", "tkeep", "tlast", "tuser", "tvalid"];
        parts.iter().zip(self.signals()).map(|(part, pin)| (format!("{name}_{part}"), pin)).collect()
    }
}

impl UsPcieIo {
    /// What the core gets, by the names of its pins.
    pub fn to_core(&self) -> Vec<(String, Sig)> {
        let mut pins = [self.s_axis_rq.pins("s_axis_rq"), self.s_axis_cc.pins("s_axis_cc")].concat();
        pins.extend([
            ("m_axis_rc_tready".into(), self.m_axis_rc_tready),
            ("m_axis_cq_tready".into(), self.m_axis_cq_tready),
            ("pcie_cq_np_req".into(), self.pcie_cq_np_req),
            ("cfg_mgmt_addr".into(), self.cfg_mgmt_addr),
            ("cfg_mgmt_read".into(), self.cfg_mgmt_read),
            ("cfg_flr_done".into(), self.cfg_flr_done),
        ]);
        pins
    }
    /// What the core gives, likewise.
    pub fn from_core(&self) -> Vec<(String, Sig)> {
        let mut pins = [self.m_axis_rc.pins("m_axis_rc"), self.m_axis_cq.pins("m_axis_cq")].concat();
        pins.extend([
            ("s_axis_rq_tready".into(), self.s_axis_rq_tready),
            ("s_axis_cc_tready".into(), self.s_axis_cc_tready),
            ("pcie_rq_seq_num_vld0".into(), self.pcie_rq_seq_num_vld0),
            ("pcie_rq_seq_num0".into(), self.pcie_rq_seq_num0),
            ("pcie_rq_seq_num_vld1".into(), self.pcie_rq_seq_num_vld1),
            ("pcie_rq_seq_num1".into(), self.pcie_rq_seq_num1),
            ("pcie_tfc_nph_av".into(), self.pcie_tfc_nph_av),
            ("cfg_mgmt_read_data".into(), self.cfg_mgmt_read_data),
            ("cfg_mgmt_read_write_done".into(), self.cfg_mgmt_read_write_done),
            ("cfg_max_payload".into(), self.cfg_max_payload),
            ("cfg_max_read_req".into(), self.cfg_max_read_req),
            ("cfg_function_status".into(), self.cfg_function_status),
            ("cfg_rcb_status".into(), self.cfg_rcb_status),
            ("cfg_bus_number".into(), self.cfg_bus_number),
            ("cfg_interrupt_msix_enable".into(), self.cfg_interrupt_msix_enable),
            ("cfg_interrupt_msix_mask".into(), self.cfg_interrupt_msix_mask),
            ("cfg_flr_in_process".into(), self.cfg_flr_in_process),
        ]);
        pins
    }
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Reset {
    /// Everything goes on.
    None,
    /// Open TLPs are finished.
    Close,
    /// The card is in reset.
    Hold,
    /// The core is told.
    Tell,
}

impl Module for UsPcie {
    type Io = UsPcieIo;
    fn name(&self) -> String {
        format!("us_pcie_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "The card's PCIe ports on the hard core of UltraScale+.".into()
    }
    fn body(&self, io: &UsPcieIo) {
        assert_eq!(self.0.data_bits(), DATA, "the core's streams have 512 bits");
        let phase = EnumSig::<Reset>::reg("reset_phase", Reset::None);
        let closing = !phase.is(Reset::None);
        let open = requests_out(io, closing) | completions_out(io, closing);
        function_level_reset(io, phase, open);
        completions_in(io);
        requests_in(io);
        configuration(io);
    }
}

/// 11 bits from the 10 of a header, in which 0 means 1024.
fn dwords(length: Sig) -> Sig {
    cat(&[length.none(), length])
}

/// Whole TLPs of `from` into `to`, with their descriptor and what goes beside; none begins while `closing`. Gives
/// whether one is open.
fn send(
    from: &Stream<TlpBeat>,
    to: &UsSendIo,
    name: &str,
    closing: Sig,
    descriptor: Sig,
    beside: Sig,
) -> Sig {
    let t = &from.data;
    let open = reg_init(name, 1, 0);
    let may = open | !closing;
    to.tlp.valid.set(from.valid & may);
    from.ready.set(to.tlp.ready & may);
    when(from.moves(), || open.set(!t.last));
    // fmt and length stand alike in every header
    let raw = TlpMemoryHeaderBits::unpack(t.header);
    let part = raw.length.bits(0, 4);
    let count = mux(raw.fmt.bit(1), cat(&[part.none(), part]), lit(5, 0));
    let (data, first, last) = (t.data, t.first, t.last);
    to.tlp.data.assign(&Outgoing { descriptor, beside, data, count, first, last });
    open
}

/// The pins of a stream out, with its `tuser`.
fn drive(channel: &Channel, s: &UsSendIo, tuser: Sig) {
    let (tdata, tkeep, tlast, tvalid) = (s.tdata, s.tkeep, s.tlast, s.tvalid);
    channel.assign(&Channel { tdata, tkeep, tlast, tuser, tvalid });
}

/// From `is_sop` to `is_eop1_ptr`, as RQ and CC have them: one TLP at most, from byte 0 on. 16 bits.
fn marks(s: &UsSendIo) -> Sig {
    let end = mux(s.tlast, s.last_dword, lit(4, 0));
    cat(&[lit(4, 0), end, s.tlast.extend(2), lit(4, 0), s.starts.extend(2)])
}

fn requests_out(io: &UsPcieIo, closing: Sig) -> Sig {
    let h = header::fields(io.rq.data.header);
    let write = h.fmt.bit(1);
    let attributes = cat(&[h.id_ordering, h.relaxed_ordering, h.no_snoop]);
    // the core puts bus and device of its own into the requester ID, and the rest of the card's header as it stands
    let descriptor = cat(&[
        low(),
        attributes,
        h.traffic_class,
        low(),
        lit(16, 0),
        h.tag,
        h.requester_id,
        h.poisoned,
        lit(3, 0),
        write,
        dwords(h.length),
        h.address.bits(2, 62),
        lit(2, 0),
    ]);
    let out = instance("rq_out", &UsSend { name: "rq", dwords: 4, beside: 9 });
    let beside = cat(&[!write, h.last_be, h.first_be]);
    let open = send(&io.rq, &out, "rq_open", closing, descriptor, beside);
    out.tready.set(io.s_axis_rq_tready);
    let b = out.beside;
    // from the top: parity, seq_num1, seq_num0, TPH, discontinue, marks, addr_offset, last BE of two, first BE of two
    let tuser = cat(&[
        lit(64, 0),
        lit(6, 0),
        b.bit(8),
        lit(IS_READ, 0),
        lit(24, 0),
        low(),
        marks(&out),
        lit(4, 0),
        b.bits(4, 4).extend(8),
        b.bits(0, 4).extend(8),
    ]);
    drive(&io.s_axis_rq, &out, tuser);
    io.posted_ok.set(high());

    // the pins that give credit back are seen later than those that count it: never too many
    let returned = |name: &str, valid: Sig, number: Sig| {
        let seen = delay_init(&format!("{name}_seen"), valid & number.bit(IS_READ));
        delay_init(&format!("{name}_late"), seen)
    };
    let first = returned("returned_0", io.pcie_rq_seq_num_vld0, io.pcie_rq_seq_num0);
    let second = returned("returned_1", io.pcie_rq_seq_num_vld1, io.pcie_rq_seq_num1);
    let credits = delay_init("credits", io.pcie_tfc_nph_av);
    let under_way = reg_init("reads_under_way", READS, 0);
    let begins = all_of(&[io.rq.moves(), io.rq.data.first, !write]);
    let more = (under_way + begins.extend(READS)).named("reads_sent");
    let fewer = (first.extend(2) + second.extend(2)).named("reads_returned").extend(READS);
    // without bus master the core swallows what it has, and returns no number
    let none = !io.cfg_function_status.bit(2) | more.le(fewer);
    under_way.set(mux(none, lit(READS, 0), more - fewer));
    io.nonposted_ok.set(credits.extend(READS).gt(under_way));
    open
}

fn completions_out(io: &UsPcieIo, closing: Sig) -> Sig {
    let h = TlpCompletionHeaderBits::unpack(io.cc.data.header.bits(32, 96));
    let with_data = h.fmt.bit(1);
    let descriptor = cat(&[
        low(),
        cat(&[h.id_ordering, h.relaxed_ordering, h.no_snoop]),
        h.traffic_class,
        low(),
        h.completer_id,
        h.tag,
        h.requester_id,
        low(),
        h.poisoned,
        h.status,
        mux(with_data, dwords(h.length), lit(11, 0)),
        lit(3, 0),
        cat(&[h.byte_count.none(), h.byte_count]),
        lit(9, 0),
        h.lower_address,
    ]);
    let out = instance("cc_out", &UsSend { name: "cc", dwords: 3, beside: 1 });
    let open = send(&io.cc, &out, "cc_open", closing, descriptor, low());
    out.tready.set(io.s_axis_cc_tready);
    // from the top: parity, discontinue, marks
    drive(&io.s_axis_cc, &out, cat(&[lit(64, 0), low(), marks(&out)]));
    open
}

fn completions_in(io: &UsPcieIo) {
    let enter = instance("rc_in", &UsReceive { name: "rc", dwords: 3, beside: 1, straddle: true });
    let u = io.m_axis_rc.tuser;
    // where the first and the second TLP begin, in units of 16 bytes: 0 or 2
    let (one, two) = (u.bit(64), u.bit(65));
    let high_first = u.bit(69);
    enter.core.valid.set(io.m_axis_rc.tvalid);
    io.m_axis_rc_tready.set(enter.core.ready);
    enter.core.data.assign(&CoreBeat {
        tdata: io.m_axis_rc.tdata,
        begins: one & !high_first,
        begins_high: (one & high_first) | two,
        beside: low(),
        ends: u.bit(76),
        end: u.bits(80, 4),
        ends_second: u.bit(77),
    });
    let d = enter.tlp.data.descriptor;
    let mut h = TlpCompletionHeaderBits::zero();
    let count = d.bits(32, 11);
    // normal, poisoned, bad status: those the header tells; the rest is the core's word alone
    let told = d.bits(12, 4).le(2u64);
    h.fmt = cat(&[low(), count.any(), low()]);
    h.kind = lit(5, u64::from(KIND_COMPLETION));
    h.traffic_class = d.bits(89, 3);
    h.id_ordering = d.bit(94);
    h.relaxed_ordering = d.bit(93);
    h.no_snoop = d.bit(92);
    h.poisoned = d.bit(46);
    h.length = count.bits(0, 10);
    h.completer_id = d.bits(72, 16);
    h.status = mux(told, d.bits(43, 3), lit(3, STATUS_BROKEN));
    h.byte_count = d.bits(16, 12);
    h.requester_id = d.bits(48, 16);
    h.tag = d.bits(64, 8);
    h.lower_address = d.bits(0, 7);
    io.rc.valid.set(enter.tlp.valid);
    enter.tlp.ready.set(io.rc.ready);
    let (data, first, last) = (enter.tlp.data.data, enter.tlp.data.first, enter.tlp.data.last);
    io.rc.data.assign(&TlpBeat { header: cat(&[h.pack(), lit(32, 0)]), data, first, last });
}

/// Kind and whether with data, by the request type of a CQ descriptor. Messages stand for what cannot come.
fn kinds() -> Vec<Sig> {
    let kind = |kind: u64, data: u64| lit(6, kind << 1 | data);
    let mut all = vec![
        kind(0, 0),
        kind(0, 1),
        kind(2, 0),
        kind(2, 1),
        kind(12, 1),
        kind(13, 1),
        kind(14, 1),
        kind(1, 0),
    ];
    all.resize(16, kind(16, 0));
    all
}

fn requests_in(io: &UsPcieIo) {
    let enter = instance("cq_in", &UsReceive { name: "cq", dwords: 4, beside: 8, straddle: false });
    let (pins, u) = (&io.m_axis_cq, io.m_axis_cq.tuser);
    let begins = reg_init("cq_begins", 1, 1);
    when(pins.tvalid & io.m_axis_cq_tready, || begins.set(pins.tlast));
    enter.core.valid.set(pins.tvalid);
    io.m_axis_cq_tready.set(enter.core.ready);
    // one doubleword fewer than lanes that are there
    let end: Vec<Sig> = (0..4u32)
        .rev()
        .map(|i| {
            any_of(
                &(0..DWORDS)
                    .filter(|n| n >> i & 1 == 1)
                    .map(|n| last_lane(pins.tkeep, n))
                    .collect::<Vec<_>>(),
            )
        })
        .collect();
    enter.core.data.assign(&CoreBeat {
        tdata: pins.tdata,
        begins,
        begins_high: low(),
        beside: cat(&[u.bits(8, 4), u.bits(0, 4)]),
        ends: pins.tlast,
        end: cat(&end),
        ends_second: low(),
    });
    let d = enter.tlp.data.descriptor;
    let kind = select(d.bits(75, 4), &kinds());
    let message = kind.bit(5);
    // the core tells where the BAR lies; the card asks for the place within it
    let aperture = d.bits(115, 6);
    let within: Vec<Sig> = (2..32u32).rev().map(|i| d.bit(i) & aperture.gt(u64::from(i))).collect();
    let mut h = TlpMemoryHeaderBits::zero();
    h.fmt = cat(&[low(), mux(message, d.bits(64, 11).any(), kind.bit(0)), message]);
    h.kind = kind.bits(1, 5);
    h.traffic_class = d.bits(121, 3);
    h.id_ordering = d.bit(126);
    h.relaxed_ordering = d.bit(125);
    h.no_snoop = d.bit(124);
    h.length = d.bits(64, 10);
    h.requester_id = d.bits(80, 16);
    h.tag = d.bits(96, 8);
    h.last_be = enter.tlp.data.beside.bits(4, 4);
    h.first_be = enter.tlp.data.beside.bits(0, 4);
    h.address = cat(&[lit(32, 0), cat(&within), lit(2, 0)]);
    io.cq.valid.set(enter.tlp.valid);
    enter.tlp.ready.set(io.cq.ready);
    let (data, first, last) = (enter.tlp.data.data, enter.tlp.data.first, enter.tlp.data.last);
    io.cq.data.assign(&TlpBeat { header: header::shortest(h.pack(), message), data, first, last });
    io.cq_bar.set(d.bits(112, 3));
    io.pcie_cq_np_req.set(1);
}

/// Lane `n` is the last that there is.
fn last_lane(keep: Sig, n: u32) -> Sig {
    if n + 1 < DWORDS { keep.bit(n) & !keep.bit(n + 1) } else { keep.bit(n) }
}

fn configuration(io: &UsPcieIo) {
    // Device Control, Device Control 2, in turn
    let second = reg_init("reads_second", 1, 0);
    let reading = reg_init("reading", 1, 0);
    let pause = reg_init("pause", 6, PAUSE);
    let (relaxed, extended, timeout) = (
        reg_init("relaxed_ordering", 1, 0),
        reg_init("extended_tag", 1, 0),
        reg_init("completion_timeout", 5, 0),
    );
    let word = io.cfg_mgmt_read_data;
    when(reading, || {
        when(io.cfg_mgmt_read_write_done, || {
            reading.set(0);
            second.set(!second);
            when(second, || timeout.set(word.bits(0, 5))).otherwise(|| {
                relaxed.set(word.bit(4));
                extended.set(word.bit(8));
            });
        });
    })
    .otherwise(|| {
        pause.set(pause - 1);
        when(pause.none(), || reading.set(1));
    });
    io.cfg_mgmt_read.set(reading);
    io.cfg_mgmt_addr.set(mux(second, lit(10, DEVICE_CONTROL[1]), lit(10, DEVICE_CONTROL[0])));

    let now = |name: &str, from: Sig| delay_init(name, from);
    io.pcie.assign(&PcieConfig {
        requester_id: cat(&[now("bus_number", io.cfg_bus_number), lit(8, 0)]),
        max_payload: now("max_payload", io.cfg_max_payload).extend(3),
        max_read_request: now("max_read_request", io.cfg_max_read_req),
        rcb: now("rcb", io.cfg_rcb_status.bit(0)),
        extended_tag: extended,
        relaxed_ordering: relaxed,
        bus_master: now("bus_master", io.cfg_function_status.bit(2)),
        completion_timeout: timeout,
        msix_enable: now("msix_enable", io.cfg_interrupt_msix_enable.bit(0)),
        msix_mask: now("msix_mask", io.cfg_interrupt_msix_mask.bit(0)),
    });
}

fn function_level_reset(io: &UsPcieIo, phase: EnumSig<Reset>, open: Sig) {
    let asked = delay_init("flr_asked", io.cfg_flr_in_process.bit(0));
    let left = reg("reset_clocks_left", 6);
    left.set(left - 1);
    let next = |condition: Sig, to: Reset| {
        when(condition, || phase.set(to));
    };
    phase.switch(|p| match p {
        Reset::None => next(asked, Reset::Close),
        Reset::Close => {
            left.set(RESET);
            next(!open, Reset::Hold);
        }
        Reset::Hold => next(left.none(), Reset::Tell),
        Reset::Tell => next(!asked, Reset::None),
    });
    io.flr.set(phase.is(Reset::Hold));
    io.cfg_flr_done.set(phase.is(Reset::Tell).extend(4));
}
