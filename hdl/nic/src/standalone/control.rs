//! What a target says for itself: answers to ARP, to ping, and the control port (`contract::target`).
//!
//! ```text
//! frames that are no RoCE ─> [4] ─> read: judge and copy, half a word at a time ─> act ─> edit the copy ─> reply
//! peers, fences, initialise <──────────────────────────────────────────────────────┘
//! ```
//! In: raw frames of the packet buffer, whole and with a good FCS. A frame is taken from the head of `frame` at once: with
//! four waiting it is dropped, so RoCE behind it never waits. It is read once, 16 bits a clock, judged, copied to the
//! reply, and its slot freed; then the reply is made from the copy. Out: frames without FCS, one at a time.
//!
//! | answered | if |
//! |---|---|
//! | ARP request | Ethernet and IPv4, for our address |
//! | ICMP echo request | for our addresses, unfragmented, without options, both sums right, 1518 bytes at most |
//! | control request | likewise, UDP sum right or none, 64 bytes, and not too many |
//!
//! A reply keeps TTL and identification of its request, so that the IP sum stays; the UDP sum of a control reply is none.
//!
//! Creating a QP: every stage forgets it (`initialise`), then its entry is written. Ending it: its entry is made invalid,
//! a token goes through transmit and one through receive, and when both are back nothing of it is under way. At reset all
//! entries are made invalid.
//!
//! Throughput: a frame of n bytes is over after n clocks or fewer; the end of a QP takes what is under way.
//!
//! Requirements: TGT

use crate::config::Config;
use crate::flow::FrameBeat;
use crate::prim::fifo::buffer;
use crate::prim::sum::sum_is;
use crate::qp::Initialise;
use crate::rx::packet_buffer::Release;
use crate::standalone::Identity;
use crate::standalone::peers::{FIRST_QP, LOG_MEMORY, MAX_READS, MEMORY_KEY, PINS_KEY, Peer, PeerWrite};
use contract::PathMtu;
use contract::target::{
    BURST, CONTROL_PORT, ControlHead, ControlOperation, ControlQueue, ControlStatus, DATAGRAM, MAGIC,
    PERIOD_CLOCKS, VERSION,
};
use contract::wire::{ETHERTYPE_IPV4, IP_PROTOCOL_UDP};
use hdl::{
    Bundle, EnumSig, HwEnum, Memory, Module, PortBuilder, Ports, Sig, Stream, all_of, any_of, cat, delay,
    delay_init, high, index_width, lit, low, mux, reg, reg_init, select, when,
};
use std::cell::RefCell;

const ETHERTYPE_ARP: u64 = 0x0806;
const IP_PROTOCOL_ICMP: u64 = 1;
/// Bytes of the longest frame that is answered.
const LONGEST: u64 = 1518;
/// Bytes of an ARP frame, of Ethernet, IPv4 and UDP headers.
const ARP_BYTES: u64 = 42;
const ETHERNET: u64 = 14;
const HEADERS: u64 = 42;
/// Halves in front of a control datagram.
const PAYLOAD: u32 = HEADERS as u32 / 2;
/// Halves of a control reply, the longest that is edited.
const EDITED: u32 = PAYLOAD + DATAGRAM as u32 / 2;
/// Bits of a number of a half.
const HALF: u32 = 10;
/// Counters of `contract::target::ControlCounters`.
pub const COUNTERS: usize = 13;
/// Stages that take [`Initialise`].
pub const INITIALISED: usize = 4;

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Every entry is made invalid.
    Clear,
    Rest,
    /// A word is asked for, and arrives.
    Fetch,
    /// Its halves.
    Read,
    /// The last one is judged.
    Settle,
    /// The sums.
    Sum,
    /// Are they right?
    Fold,
    /// Is it to be answered?
    Judge,
    /// What a control request is to do.
    Decide,
    /// A QP ends: its entry, then its tokens.
    End,
    Fence,
    /// Every stage forgets the QP.
    Forget,
    /// A QP begins.
    Begin,
    Edit,
    Send,
}

/// A frame that is no RoCE.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct RawFrame {
    /// Byte address in the packet buffer.
    #[shape(c.packet_address_bits())]
    pub address: Sig,
    /// Bytes without FCS.
    #[shape(14)]
    pub length: Sig,
    /// To release.
    #[shape(c.packet_slot_bits())]
    pub slot: Sig,
}

/// The stage.
#[derive(Clone, Debug)]
pub struct Control(pub Config);

/// Ports of [`Control`].
pub struct ControlIo {
    /// Who we are; constant but in reset.
    pub me: Identity,
    /// Frames; taken at once.
    pub frame: Stream<RawFrame>,
    /// Its slot is free again; offered until `release_ready`.
    pub release: Release,
    /// It is taken.
    pub release_ready: Sig,
    /// Reads this word of the packet buffer, if `packet_free`.
    pub packet_address: Sig,
    /// Nobody else reads.
    pub packet_free: Sig,
    /// The word, one clock later.
    pub packet_word: Sig,
    /// Writes an entry.
    pub peer_write: PeerWrite,
    /// QP whose entry is wanted in the next clock.
    pub peer_qp: Sig,
    /// It.
    pub peer_entry: Sig,
    /// Fresh state words.
    pub initialise: Vec<Stream<Initialise>>,
    /// Token into schedule.
    pub fence_transmit: Stream<Sig>,
    /// It came back from packetise.
    pub fence_transmit_done: Sig,
    /// Token into check.
    pub fence_receive: Stream<Sig>,
    /// It came back from place.
    pub fence_receive_done: Sig,
    /// Counters, in the order of `contract::target::ControlCounters`.
    pub counters: Vec<Sig>,
    /// Pulse: a frame is answered.
    pub answered: Sig,
    /// Pulse: a control request is dropped because there are too many.
    pub dropped: Sig,
    /// Replies.
    pub reply: Stream<FrameBeat>,
}

impl Ports for ControlIo {
    type Config = Control;
    fn declare(m: &Control, p: &mut PortBuilder) -> Self {
        let c = &m.0;
        ControlIo {
            me: p.input("me", &()),
            frame: p.sink("frame", c),
            release: p.output("release", c),
            release_ready: p.input("release_ready", &1.into()),
            packet_address: p.output("packet_address", &(c.packet_address_bits() - c.lane_bits()).into()),
            packet_free: p.input("packet_free", &1.into()),
            packet_word: p.input("packet_word", &c.data_bits().into()),
            peer_write: p.output("peer_write", c),
            peer_qp: p.output("peer_qp", &c.qp_bits().into()),
            peer_entry: p.input("peer_entry", &Peer::total_width(&()).into()),
            initialise: (0..INITIALISED).map(|i| p.source(&format!("initialise_{i}"), c)).collect(),
            fence_transmit: p.source("fence_transmit", &1.into()),
            fence_transmit_done: p.input("fence_transmit_done", &1.into()),
            fence_receive: p.source("fence_receive", &1.into()),
            fence_receive_done: p.input("fence_receive_done", &1.into()),
            counters: (0..COUNTERS).map(|i| p.input(&format!("counter_{i}"), &32.into())).collect(),
            answered: p.output("answered", &1.into()),
            dropped: p.output("dropped", &1.into()),
            reply: p.source("reply", c),
        }
    }
}

/// Number of the half in which byte `at` of a control datagram lies.
fn half_of(at: usize) -> u32 {
    PAYLOAD + at as u32 / 2
}

/// The half in which a field of `ControlHead` begins, and of `ControlQueue` behind it.
fn head_field(name: &str) -> u32 {
    let l = ControlHead::LAYOUT;
    half_of(l.offset(l.fields.iter().find(|f| f.name == name).expect("a field of ControlHead")))
}
fn queue_field(name: &str) -> u32 {
    let l = ControlQueue::LAYOUT;
    let at = l.offset(l.fields.iter().find(|f| f.name == name).expect("a field of ControlQueue"));
    half_of(ControlHead::LAYOUT.bytes + at)
}

impl Module for Control {
    type Io = ControlIo;
    fn name(&self) -> String {
        format!("control_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "ARP, ping and the control port of a target.".into()
    }
    fn body(&self, io: &ControlIo) {
        let c = &self.0;
        let phase = EnumSig::reg("phase", Phase::Clear);
        let me = &io.me;

        // what waits; one too many is let go
        let queue = Stream::<RawFrame>::wires(c, "to_queue");
        let waiting = buffer("waiting", c, 4, &queue);
        let slot_over = reg_init("release_valid_q", 1, 0);
        let slot = reg("release_slot_q", c.packet_slot_bits());
        let overflows = (io.frame.valid & !queue.ready).named("overflows");
        queue.valid.set(io.frame.valid);
        queue.data.assign(&io.frame.data);
        let read_over = hdl::wire("read_over", 1);
        // at most one slot a clock comes back, the frame read first
        let lets_go = overflows & !read_over & !slot_over;
        io.frame.ready.set(queue.ready | lets_go);
        let frame = RawFrame::regs(c, "raw");
        when(io.release_ready, || slot_over.set(low()));
        when(read_over | lets_go, || {
            slot_over.set(high());
            slot.set(mux(read_over, frame.slot, io.frame.data.slot));
        });
        io.release.valid.set(slot_over);
        io.release.slot.set(slot);

        // rest: the next frame
        let resting = phase.is(Phase::Rest);
        waiting.ready.set(resting);
        let at = reg_init("half", HALF, 0);
        let halves = reg("halves", HALF);
        let bad = reg("bad", 1);
        when(resting & waiting.valid, || {
            frame.assign(&waiting.data);
            at.set(0);
            // until it is known better
            halves.set(ARP_BYTES / 2);
            bad.set(low());
            phase.set(Phase::Fetch);
        });

        // fetch and read: four halves of a word
        let word_bits = c.packet_address_bits() - c.lane_bits();
        let first_word = frame.address.bits(c.lane_bits(), word_bits);
        io.packet_address.set(first_word + at.bits(2, HALF - 2).resize(word_bits));
        let asked = reg_init("asked", 1, 0);
        asked.set(phase.is(Phase::Fetch) & io.packet_free & !asked);
        // what its length says, before its first word is here
        let short = frame.length.lt(ARP_BYTES);
        let unfit = delay("unfit_length", short | frame.length.gt(LONGEST));
        let most = delay("most_total_length", mux(short, lit(14, 0), frame.length - ETHERNET));
        let word = reg("word", c.data_bits());
        when(asked, || {
            when(unfit, || bad.set(high()));
            word.set(io.packet_word);
            phase.set(Phase::Read);
        });
        let reading = phase.is(Phase::Read);
        let whole = cat(&[word.byte(0), word.byte(1)]);
        // a byte behind the end of the datagram counts as zero
        let odd = reg("odd", 1);
        // known before it comes (`halves` changes long before)
        let last = delay("last_half", mux(reading, at + 2, at + 1).eq(halves));
        let half_now = mux(last & odd, cat(&[word.byte(0), lit(8, 0)]), whole).named("half_now");
        when(reading, || {
            at.set(at + 1);
            word.set(cat(&[lit(16, 0), word.bits(16, 48)]));
            when(at.bits(0, 2).all(), || phase.set(Phase::Fetch));
            when(last, || phase.set(Phase::Settle));
        });
        when(phase.is(Phase::Settle), || phase.set(Phase::Sum));
        // it is judged and copied one clock later, out of a register
        let (h, h_at, h_valid) =
            (delay("half_word", half_now), delay("half_at", at), delay_init("half_valid", reading));

        // what a half says
        let (arp, icmp) = (reg("is_arp", 1), reg("is_icmp", 1));
        let mine = reg("is_mine", 1);
        let (peer_mac, peer_address) = (reg("peer_mac", 48), reg("peer_address", 32));
        let total = reg("total_length", 16);
        let (peer_port, checked) = (reg("peer_port", 16), reg("has_checksum", 1));
        let echo_sum = reg("echo_sum", 16);
        let (version, operation) = (reg("version", 8), reg("operation", 8));
        let (qpn, peer_qpn, peer_psn) = (reg("qpn", 24), reg("peer_qpn", 24), reg("peer_psn", 24));
        let path_mtu = reg("path_mtu", 8);
        let gid_fits = reg("gid_fits", 1);
        let on: Vec<Sig> =
            (0..EDITED).map(|i| delay_init(&format!("on_{i}"), reading & at.eq(u64::from(i)))).collect();
        let on = |i: u32| on[i as usize];
        let faults = RefCell::new(vec![]);
        let must = |i: u32, holds: Sig| faults.borrow_mut().push(on(i) & !holds);
        let part = |of: Sig, i: u32| of.bits(of.width() - 16 * (i + 1), 16);
        let next_in = |of: Sig| cat(&[of.bits(0, of.width() - 16), h]);

        // Ethernet
        for i in 0..3 {
            let same = h.eq(part(me.mac, i));
            when(on(i), || mine.set(if i == 0 { same } else { mine & same }));
            when(on(3 + i), || peer_mac.set(next_in(peer_mac)));
        }
        when(on(6), || arp.set(h.eq(ETHERTYPE_ARP)));
        must(6, h.eq(ETHERTYPE_ARP) | h.eq(u64::from(ETHERTYPE_IPV4)));
        // ARP
        for (i, value) in [(7, 1), (8, u64::from(ETHERTYPE_IPV4)), (9, 0x0604), (10, 1)] {
            must(i, !arp | h.eq(value));
        }
        for i in 0..2 {
            when(on(14 + i) & arp, || peer_address.set(next_in(peer_address)));
            must(19 + i, !arp | h.eq(part(me.address, i)));
        }
        // IPv4
        must(7, arp | h.byte(1).eq(0x45));
        // of what is too short or too long nothing is believed
        let fits = h.le(most.extend(16)) & h.ge(28);
        must(8, arp | fits);
        when(on(8) & !arp, || {
            total.set(h);
            odd.set(h.bit(0));
            when(fits, || halves.set((h + ETHERNET + 1).bits(1, HALF)));
        });
        when(on(7), || odd.set(low()));
        // fragment offset, more fragments
        must(10, arp | (h.bits(0, 14).none() & !h.bit(15)));
        when(on(11), || icmp.set(h.byte(0).eq(IP_PROTOCOL_ICMP)));
        must(11, arp | h.byte(0).eq(IP_PROTOCOL_ICMP) | h.byte(0).eq(u64::from(IP_PROTOCOL_UDP)));
        for i in 0..2 {
            when(on(13 + i) & !arp, || peer_address.set(next_in(peer_address)));
            must(15 + i, arp | h.eq(part(me.address, i)));
        }
        must(16, arp | mine);
        // ICMP, UDP
        let (udp, ping) = (!arp & !icmp, !arp & icmp);
        must(17, !ping | h.eq(0x0800));
        when(on(17), || peer_port.set(h));
        when(on(18), || echo_sum.set(h));
        must(18, !udp | h.eq(u64::from(CONTROL_PORT)));
        must(19, !udp | sum_is(h, lit(16, 20), total));
        when(on(20), || checked.set(h.any()));
        // the datagram
        must(head_field("magic"), !udp | h.eq(u64::from(MAGIC >> 16)));
        must(head_field("magic") + 1, !udp | h.eq(u64::from(MAGIC & 0xffff)));
        when(on(head_field("version")), || {
            version.set(h.byte(1));
            operation.set(h.byte(0));
        });
        for (name, to) in [("qpn", qpn), ("peer_qpn", peer_qpn), ("peer_psn", peer_psn)] {
            when(on(queue_field(name)), || to.set(cat(&[h, lit(8, 0)])));
            when(on(queue_field(name) + 1), || to.set(cat(&[to.bits(8, 16), h.byte(1)])));
        }
        when(on(queue_field("path_mtu")), || path_mtu.set(h.byte(1)));
        let differs: Vec<Sig> = (0..8)
            .map(|i| {
                let wanted = match i {
                    0..5 => lit(16, 0),
                    5 => lit(16, 0xffff),
                    _ => part(peer_address, i - 6),
                };
                on(queue_field("peer_gid") + i) & h.ne(wanted)
            })
            .collect();
        when(on(head_field("version")), || gid_fits.set(high()));
        // (two clocks behind its last half: long before it is asked for)
        when(delay_init("gid_differs", any_of(&differs)), || gid_fits.set(low()));
        // likewise
        when(delay_init("is_at_fault", any_of(&faults.take())), || bad.set(high()));

        // sums: of the IP header, which ends as the body's begins with the addresses
        let (header_sum, body_sum) = (reg("header_sum", 17), reg("body_sum", 17));
        let add = |sum: Sig, h: Sig| sum.bits(0, 16).extend(17) + h.extend(17) + sum.bit(16).extend(17);
        let folded = |sum: Sig| sum.bits(0, 16) + sum.bit(16).extend(16);
        when(h_valid, || {
            when(h_at.lt(7), || header_sum.set(0)).elif(h_at.lt(17), || header_sum.set(add(header_sum, h)));
            when(h_at.lt(13) | (on(17) & icmp), || body_sum.set(mux(on(17), h.extend(17), lit(17, 0))))
                .otherwise(|| body_sum.set(add(body_sum, h)));
        });
        // UDP counts protocol and length besides
        when(phase.is(Phase::Sum), || {
            let more = mux(icmp, lit(16, 0), total - (20 - u64::from(IP_PROTOCOL_UDP)));
            body_sum.set(add(body_sum, more));
            phase.set(Phase::Fold);
        });
        when(phase.is(Phase::Fold), || phase.set(Phase::Judge));
        let judging = phase.is(Phase::Judge);
        read_over.set(phase.is(Phase::Sum) & !slot_over);
        // (a slot that still waits to be released holds up the frame)
        when(phase.is(Phase::Sum) & !read_over, || {
            body_sum.set(body_sum);
            phase.set(Phase::Sum);
        });

        // tokens for control requests
        let (tokens, ticks) = (
            reg_init("tokens", index_width(BURST) + 1, u64::from(BURST)),
            reg_init("ticks", PERIOD_CLOCKS.ilog2(), 0),
        );
        ticks.set(ticks + 1);
        let uptime = reg_init("uptime", 32, 0);
        when(ticks.all(), || uptime.set(uptime + 1));
        let right_sum = !checked & udp | folded(body_sum).all();
        let sums = arp | (folded(header_sum).all() & right_sum);
        let sized = !udp | total.eq(HEADERS - ETHERNET + DATAGRAM as u64);
        let good = (judging & !bad & delay("sums_and_size", sums & sized)).named("good");
        let spends = (good & udp & tokens.any()).named("spends");
        let earns = ticks.all() & !tokens.eq(u64::from(BURST));
        tokens.set(tokens + earns.extend(tokens.width()) - spends.extend(tokens.width()));
        io.dropped.set(good & udp & tokens.none());
        when(judging, || {
            phase.set(Phase::Rest);
            at.set(0);
            when(good & !udp, || phase.set(Phase::Edit)).elif(spends, || phase.set(Phase::Decide));
        });

        // decide: `peer_entry` follows `qpn`
        let index = qpn.bits(0, c.qp_bits());
        let clear_index = reg_init("clear_index", c.qp_bits(), 0);
        io.peer_qp.set(index);
        let entry = Peer::from_bits(&(), io.peer_entry);
        let exists = qpn.bits(c.qp_bits(), 24 - c.qp_bits()).none() & index.ge(u64::from(FIRST_QP));
        // out of registers: what they follow from has come long before
        let has = delay_init("has_peer", exists & entry.valid);
        let free = reg_init("free", c.qps, ((1 << c.qps) - 1) & !((1 << FIRST_QP) - 1));
        let asks = |o: ControlOperation| operation.eq(u64::from(o.code()));
        let (creates, destroys) = (asks(ControlOperation::Create), asks(ControlOperation::Destroy));
        let mtu_fits =
            path_mtu.ge(u64::from(PathMtu::Mtu256.code())) & path_mtu.le(u64::from(PathMtu::Mtu4096.code()));
        let faults = [
            (version.ne(u64::from(VERSION)), ControlStatus::BadVersion),
            (operation.gt(u64::from(ControlOperation::Counters.code())), ControlStatus::BadOperation),
            ((creates | destroys) & !exists, ControlStatus::BadQp),
            (creates & has, ControlStatus::InUse),
            (destroys & !(has & entry.qpn.eq(peer_qpn)), ControlStatus::NotYours),
            (creates & !mtu_fits, ControlStatus::BadMtu),
            (creates & !gid_fits, ControlStatus::BadAddress),
        ];
        let status = reg("status", 8);
        let fault = faults.iter().enumerate().rev().fold(lit(8, 0), |rest, (i, (holds, s))| {
            let holds = delay_init(&format!("refusal_{i}"), *holds);
            mux(holds, lit(8, u64::from(s.code())), rest)
        });
        when(phase.is(Phase::Decide), || {
            status.set(fault);
            phase.set(Phase::Edit);
            when(fault.none() & creates, || phase.set(Phase::Forget));
            when(fault.none() & destroys, || phase.set(Phase::End));
        });

        // act
        let tokens_out = [reg_init("token_transmit", 1, 0), reg_init("token_receive", 1, 0)];
        let returned = [reg_init("returned_transmit", 1, 0), reg_init("returned_receive", 1, 0)];
        let fences =
            [(&io.fence_transmit, io.fence_transmit_done), (&io.fence_receive, io.fence_receive_done)];
        for (i, (stream, done)) in fences.into_iter().enumerate() {
            stream.valid.set(tokens_out[i]);
            stream.data.set(1);
            when(stream.moves(), || tokens_out[i].set(low()));
            when(done, || returned[i].set(high()));
        }
        let open: Vec<Sig> =
            (0..INITIALISED).map(|i| reg_init(&format!("initialise_open_{i}"), 1, 0)).collect();
        for (s, open) in io.initialise.iter().zip(&open) {
            s.valid.set(*open);
            s.data.assign(&Initialise {
                qp: index,
                receive: high(),
                send: high(),
                reset: high(),
                rq_psn: peer_psn,
                sq_psn: lit(24, 0),
                retry_cnt: lit(3, 0),
                rnr_retry: lit(3, 0),
            });
            when(s.moves(), || open.set(low()));
        }
        when(phase.is(Phase::End), || {
            tokens_out.iter().for_each(|t| t.set(high()));
            returned.iter().for_each(|t| t.set(low()));
            phase.set(Phase::Fence);
        });
        when(phase.is(Phase::Fence) & all_of(&returned), || phase.set(Phase::Forget));
        // Forget: first opens all, then waits for all
        let opened = reg_init("initialise_opened", 1, 0);
        when(phase.is(Phase::Forget), || {
            opened.set(high());
            when(!opened, || open.iter().for_each(|o| o.set(high())));
            when(opened & !any_of(&open), || {
                opened.set(low());
                when(creates, || phase.set(Phase::Begin)).otherwise(|| phase.set(Phase::Edit));
            });
        });
        when(phase.is(Phase::Begin), || phase.set(Phase::Edit));
        when(phase.is(Phase::Clear), || {
            clear_index.set(clear_index + 1);
            when(clear_index.all(), || phase.set(Phase::Rest));
        });
        let begins = phase.is(Phase::Begin);
        let ends = phase.is(Phase::End);
        io.peer_write.assign(&PeerWrite {
            valid: phase.is(Phase::Clear) | begins | ends,
            qp: mux(phase.is(Phase::Clear), clear_index, index),
            peer: Peer {
                valid: begins,
                path_mtu: path_mtu.bits(0, 3),
                mac: peer_mac,
                qpn: peer_qpn,
                address: peer_address,
            },
        });
        let mine_bit = lit(c.qps, 1) << index;
        when(begins, || free.set(free & !mine_bit));
        when(phase.is(Phase::Forget) & destroys, || free.set(free | mine_bit));

        // the reply: a copy, then edited half by half
        let editing = phase.is(Phase::Edit);
        let words = (LONGEST as u32).div_ceil(8).next_power_of_two();
        let reply = Memory::with_lanes("reply", words, 64, 16).style("block").ignoring_collisions();
        let owner = |of: Sig| of & has.repeat(of.width());
        let mut edits: Vec<(u32, Sig, Sig)> = vec![];
        for i in 0..3 {
            edits.push((i, high(), part(peer_mac, i)));
            edits.push((3 + i, high(), part(me.mac, i)));
            edits.push((11 + i, arp, part(me.mac, i)));
            edits.push((16 + i, arp, part(peer_mac, i)));
        }
        edits.push((10, arp, lit(16, 2)));
        for i in 0..2 {
            edits.push((14 + i, arp, part(me.address, i)));
            edits.push((19 + i, arp, part(peer_address, i)));
            edits.push((13 + i, !arp, part(me.address, i)));
            edits.push((15 + i, !arp, part(peer_address, i)));
        }
        edits.push((17, ping, lit(16, 0)));
        // the type becomes 0 from 8
        let echo_reply_sum = delay("echo_reply_sum", folded(echo_sum.extend(17) + 0x0800));
        edits.push((18, ping, echo_reply_sum));
        edits.push((17, udp, lit(16, u64::from(CONTROL_PORT))));
        edits.push((18, udp, peer_port));
        edits.push((20, udp, lit(16, 0)));
        edits.push((head_field("version"), udp, cat(&[lit(8, u64::from(VERSION)), operation])));
        edits.push((head_field("status"), udp, cat(&[status, lit(8, 0)])));
        // known before the first half that they say something about
        let counts = udp & asks(ControlOperation::Counters) & status.none();
        let (counts, queue) = (delay("tells_counters", counts), delay("tells_queue", udp & !counts));
        let whole24 = |of: Sig| cat(&[of, lit(8, 0)]);
        let whole32 = |value: u32| lit(32, u64::from(value));
        let gid = cat(&[lit(80, 0), lit(16, 0xffff), entry.address]);
        for (name, value) in [
            ("peer_qpn", whole24(owner(entry.qpn))),
            ("peer_psn", lit(32, 0)),
            ("path_mtu", cat(&[owner(entry.path_mtu).extend(8), free.resize(8)])),
            ("max_reads", lit(16, u64::from(MAX_READS) << 8)),
            ("peer_gid", owner(gid)),
            ("address", me.address),
            ("memory_key", whole32(MEMORY_KEY)),
            ("memory_bytes", whole32(1 << LOG_MEMORY)),
            ("pins_key", whole32(PINS_KEY)),
            ("uptime", uptime),
        ] {
            let n = value.width() / 16;
            edits.extend((0..n).map(|i| (queue_field(name) + i, queue, part(value, i))));
        }
        let behind_head = half_of(ControlHead::LAYOUT.bytes);
        for (n, counter) in io.counters.iter().enumerate() {
            edits.extend((0..2).map(|i| (behind_head + 2 * n as u32 + i, counts, part(*counter, i))));
        }
        let of = |i: u32| edits.iter().filter(move |e| e.0 == i);
        let values: Vec<Sig> = (0..EDITED)
            .map(|i| of(i).fold(lit(16, 0), |all, (_, applies, v)| all | (*v & applies.repeat(16))))
            .collect();
        let applies: Vec<Sig> =
            (0..EDITED).map(|i| any_of(&of(i).map(|e| e.1).chain([low()]).collect::<Vec<_>>())).collect();
        // chosen in two clocks: one of eight, then its eight
        let in_eight = at.bits(0, 3);
        let eights: Vec<Sig> = values
            .chunks(8)
            .enumerate()
            .map(|(i, eight)| delay(&format!("edit_{i}"), select(in_eight, eight)))
            .collect();
        let edit = select(h_at.bits(3, index_width(eights.len() as u32)), &eights).named("edit");
        let applies = cat(&applies.into_iter().rev().collect::<Vec<_>>());
        let edits_now = delay_init("edits", editing & applies.bit_at(at.bits(0, index_width(EDITED))));
        let put = mux(h_valid, h, edit);
        let lane: Vec<Sig> = (0..4).rev().map(|i| h_at.bits(0, 2).eq(i as u64)).collect();
        reply.write_lanes(
            h_valid | edits_now,
            h_at.bits(2, HALF - 2).resize(reply.address_width()),
            cat(&[put.byte(0), put.byte(1)]).repeat(4),
            cat(&lane),
        );
        // bytes of the reply; an ARP frame ends with its 42, whatever padding it came with
        let bytes = mux(arp, lit(16, ARP_BYTES), total + ETHERNET).bits(0, 11).named("reply_length");
        let edited = delay_init("edited", editing & at.eq(u64::from(EDITED - 2)));
        when(editing, || at.set(at + 1));
        when(edited, || {
            phase.set(Phase::Send);
            at.set(0);
        });
        io.answered.set(edited);

        // send: `sent` words are out, the next is read ahead
        let sending = phase.is(Phase::Send);
        let sent = reg_init("sent_words", index_width(words) + 1, 0);
        let next = mux(io.reply.moves(), sent + 1, sent).named("next_word");
        let ready = reg_init("word_ready", 1, 0);
        let word_out = reply.read("word_out", high(), next.bits(0, reply.address_width()));
        // known since the frame was read
        let final_word = delay("final_word", ((bytes + 7).bits(3, 8) - 1).extend(sent.width()));
        let lanes = bytes.bits(0, 3);
        let final_bytes = delay("final_bytes", mux(lanes.any(), lanes.extend(4), lit(4, 8)));
        let is_last = reg("is_final", 1);
        is_last.set(mux(io.reply.moves(), (sent + 1).eq(final_word), sent.eq(final_word)));
        io.reply.valid.set(sending & ready);
        io.reply.data.assign(&FrameBeat {
            data: word_out,
            last: is_last,
            bytes: mux(is_last, final_bytes, lit(4, 8)),
            error: low(),
        });
        ready.set(sending);
        sent.set(mux(sending, next, lit(sent.width(), 0)));
        when(io.reply.moves() & is_last, || {
            phase.set(Phase::Rest);
            ready.set(low());
            sent.set(0);
        });
    }
}
