//! packetise: a packet's fields and its payload become a frame.
//!
//! ```text
//! control --+            1 lines   2 sums   3 header      A read   B merge   C ICRC   D insert
//!           +- accept --> path, addresses ---------------> payload word + header lanes ----------> frame
//! data -----+
//! ```
//! In: packets without payload (`control`: ACK, NAK; they go first), packets whose payload lies whole in the transmit
//! buffer (`data`), and the fence token, which is reported by `fence_done` once every packet before it is out. Out:
//! Ethernet | 802.1Q tag | IPv4 or IPv6 | UDP | BTH | RETH, AtomicETH or AETH | ImmDt or AtomicAckETH | payload | pad | ICRC, without FCS and without
//! padding to 60 bytes; tag and IP version as the QP's rights say. Of a raw packet: the payload.
//! One beat per clock within a frame while `frame` is taken; header preparation overlaps with the frame before
//! it and takes 3 clocks, so at 64 bit back-to-back frames have no gap, and at any width a frame may start every 3
//! clocks. From accept to the first beat: 7 clocks. (If `unhurried`, a header takes 6 clocks, the first beat comes after 10, and
//! a packet is accepted when the header before it has gone on, which it does when the frame before that is read.) The IPv4 checksum is there one clock behind the header, in time for
//! the first beat. A beat is read only when room for it is held, so nothing behind the read ever
//! stalls. Never splits a frame, never reads the buffer after `sent`.
//!
//! What is accepted will be sent. So a packet with payload is accepted only when the frame before it is nearly read and the line
//! is about to run short of `waiting` beats.
//!
//! Header bytes are 2 modulo 4, so the ICRC begins at lane 2, 6, .. only.
//!
//! Requirements: ATOM ICRC LINE NET PKT RAW REQ RESP

use crate::config::Config;
use crate::flow::{FrameBeat, Mark, Outer, PacketFields, TransmitSlot};
use crate::mac::waiting_bits;
use crate::prim::crc::unwind;
use crate::prim::fifo::Fifo;
use crate::prim::later::later;
use contract::TraceEvent;
use contract::context::{QpAddressesBits, QpPathBits};
use contract::opcode::{Opcode, OpcodeRow};
use contract::wire::{
    AethBits, BthBits, DEFAULT_PKEY, ETHERTYPE_IPV4, ETHERTYPE_IPV6, ETHERTYPE_VLAN, EthernetHeaderBits,
    IP_PROTOCOL_UDP, Ipv4HeaderBits, Ipv6HeaderBits, ROCE_PORT, UdpHeaderBits,
};
use hdl::{
    Bundle, Module, Ports, Sig, Stream, any_of, cat, crc32_back, crc32_next, delay, delay_init, high,
    index_width, instance, lit, low, mux, reg, reg_init, select, when,
};
use std::collections::BTreeSet;

/// BTH MigReq. 0 as soft-RoCE sends it; ConnectX sends 1; receivers take either.
const MIG_REQ: u64 = 0;
/// Bytes before the BTH's extension headers: Ethernet, IPv4, UDP, BTH.
pub(crate) const BASE: u32 = 14 + 20 + 8 + 12;
/// Most header bytes with IPv4 and without tag: AtomicETH.
pub(crate) const MOST: u32 = BASE + 28;
/// Most bytes of 802.1Q tag, and of IPv6 beyond IPv4, before the BTH.
pub(crate) const OUTER: u32 = 4 + 20;
/// Most header bytes of a frame.
const LONGEST: u32 = MOST + OUTER;
/// Bits of a position within a frame (8191 payload bytes and all headers).
const POSITION: u32 = 14;
/// Register before the first covered byte: behind eight 0xFF for the absent local route header.
const ICRC_START: u32 = 0xDEBB_20E3;
/// Bytes before the line at which the next packet with payload is accepted: enough for a packet of 4096 bytes to be
/// whole in the mac before they are out. No more, as what is accepted can no longer be dropped when its QP goes back.
const AHEAD: u32 = 4608;
/// Beats that a frame has left to issue when the next is accepted: what its header takes, and some.
const NEAR: u64 = 8;
/// Beats that leave together; at most four more are under way when `room` is seen.
const BEATS: u32 = 16;

/// The stage.
#[derive(Clone, Debug)]
pub struct Packetise(pub Config);

/// Ports of [`Packetise`].
#[derive(Ports)]
#[ports(Packetise)]
pub struct PacketiseIo {
    /// Packets with payload, and the fence.
    #[sink(c.0.clone())]
    pub data: Stream<TransmitSlot>,
    /// Packets without payload; they pass data.
    #[sink(c.0.clone())]
    pub control: Stream<PacketFields>,
    /// Reads the path and addresses lines of this QP.
    #[output(c.0.qp_bits())]
    pub line_qp: Sig,
    /// `contract::QpPath`, one clock later.
    #[input(256)]
    pub path_word: Sig,
    /// `contract::QpAddresses`, one clock later.
    #[input(256)]
    pub addresses_word: Sig,
    /// Reads this word of the transmit buffer.
    #[output(c.0.transmit_address_bits() - c.0.lane_bits())]
    pub buffer_address: Sig,
    /// The word, one clock later.
    #[input(c.0.data_bits())]
    pub buffer_word: Sig,
    /// The frames.
    #[source(c.0.clone())]
    pub frame: Stream<FrameBeat>,
    /// Beats of frames that wait for the line.
    #[input(waiting_bits(c.0.data_bytes))]
    pub waiting: Sig,
    /// Pulse: the payload of the oldest `data` packet was read; its room is free.
    #[output]
    pub sent: Sig,
    /// Pulse: the fence came by, everything before it is out.
    #[output]
    pub fence_done: Sig,
    /// Pulse per request packet, READ response and result of an atomic.
    #[output]
    pub packet_count: Sig,
    /// Pulse per ACK.
    #[output]
    pub ack_count: Sig,
    /// Pulse per NAK, RNR NAK included.
    #[output]
    pub nak_count: Sig,
    /// With any of the three pulses: bytes of the frame, without padding and FCS.
    #[output(POSITION)]
    pub frame_length: Sig,
    /// Frames begun, for trace.
    #[output(c.0.clone())]
    pub trace: Mark,
    /// A beat waits for the mac in this clock.
    #[output]
    pub stall: Sig,
}

/// The opcode's row in the opcode table satisfies `f`; 0 for an opcode without a row.
pub fn opcode_is(opcode: Sig, f: impl Fn(&OpcodeRow) -> bool) -> Sig {
    let hits: Vec<Sig> =
        Opcode::ALL.iter().filter(|o| f(&o.row())).map(|o| opcode.eq(u64::from(o.code()))).collect();
    any_of(&hits)
}

/// Bytes before the payload, 7 bits: 54 to 106, or 0. gather aligns by it.
pub fn header_bytes(packet: &PacketFields) -> Sig {
    let (outer, opcode) = (&packet.outer, packet.opcode);
    let extension = |r: &OpcodeRow| {
        let h = &r.headers;
        let of = |has: bool, bytes: u32| if has { bytes } else { 0 };
        of(h.atomic, 28) + of(h.atomic_ack, 8) + of(h.reth, 16) + of(h.aeth, 4) + of(h.immdt || h.ieth, 4)
    };
    let lengths: BTreeSet<u32> = Opcode::ALL.iter().map(|o| extension(&o.row())).filter(|n| *n > 0).collect();
    // for each length the sum is a constant per kind of frame: nothing is added
    let base = |more: u32| {
        let at = |outer: u32| lit(7, u64::from(BASE + outer + more));
        mux(outer.ipv6, mux(outer.tagged, at(24), at(20)), mux(outer.tagged, at(4), at(0)))
    };
    let is: Vec<(Sig, u32)> =
        lengths.into_iter().map(|n| (opcode_is(opcode, |r| extension(r) == n), n)).collect();
    let none = !any_of(&is.iter().map(|(is, _)| *is).collect::<Vec<_>>());
    let bytes = is.into_iter().fold(base(0) & none.repeat(7), |all, (is, n)| all | (base(n) & is.repeat(7)));
    bytes & (!packet.raw).repeat(7)
}

/// First byte of the IP header, then of the UDP header, for each kind of frame, in the order of [`by_outer`].
pub(crate) const KINDS: [(u32, u32); 4] = [(14, 34), (18, 38), (14, 54), (18, 58)];

/// Whether the frame is of each of the [`KINDS`].
pub(crate) fn by_outer(outer: &Outer) -> [Sig; 4] {
    let (tagged, ipv6) = (outer.tagged, outer.ipv6);
    [!tagged & !ipv6, tagged & !ipv6, !tagged & ipv6, tagged & ipv6]
}

/// `data`, beat number `beat` of a frame, as the ICRC sees it: variable bytes as ones, bytes before the IP header as
/// zeros (the register starts at [`icrc_start`] for that). Sources: RoCE annex A17, the ICRC's masked fields.
pub fn icrc_view(outer: &Outer, beat: Sig, data: Sig, bytes: u32) -> Sig {
    let at = |p: u32| beat.eq(u64::from(p / bytes));
    let kinds: Vec<_> = KINDS.into_iter().zip(by_outer(outer)).collect();
    // IPv4: ToS, TTL, checksum. IPv6: traffic class (its first half beside the version), flow label, hop limit. Both: UDP
    // checksum, FECN and BECN
    let masked = |ip: u32, udp: u32| {
        let of_ip: &[u32] = if udp - ip == 20 { &[1, 8, 10, 11] } else { &[1, 2, 3, 7] };
        of_ip.iter().map(|n| ip + n).chain([udp + 6, udp + 7, udp + 12]).collect::<Vec<_>>()
    };
    let view: Vec<Sig> = (0..bytes)
        .rev()
        .map(|i| {
            let (mut ones, mut half, mut before) = (vec![low()], vec![low()], vec![low()]);
            for ((ip, udp), is) in &kinds {
                ones.extend(masked(*ip, *udp).into_iter().filter(|p| p % bytes == i).map(|p| at(p) & *is));
                if udp - ip == 40 && ip % bytes == i {
                    half.push(at(*ip) & *is);
                }
                if i < ip % bytes {
                    before.push(at(*ip) & *is);
                }
            }
            let ones = any_of(&ones).repeat(8) | cat(&[lit(4, 0), any_of(&half).repeat(4)]);
            (data.byte(i) | ones) & (!any_of(&before)).repeat(8)
        })
        .collect();
    cat(&view)
}

/// The ICRC register before the first covered beat, whose lanes before the IP header are zero.
pub fn icrc_start(outer: &Outer, bytes: u32) -> Sig {
    let at = |ip: u32| lit(32, u64::from(crc32_back(ICRC_START, (ip % bytes) as usize)));
    mux(outer.tagged, at(18), at(14))
}

/// `beat` is, or comes behind, the first under the ICRC.
pub(crate) fn icrc_covers(outer: &Outer, beat: Sig, bytes: u32) -> Sig {
    mux(outer.tagged, at_least(beat, 18 / bytes), at_least(beat, 14 / bytes))
}

/// `beat` is the first under the ICRC.
pub(crate) fn icrc_opens(outer: &Outer, beat: Sig, bytes: u32) -> Sig {
    beat.eq(mux(
        outer.tagged,
        lit(beat.width(), u64::from(18 / bytes)),
        lit(beat.width(), u64::from(14 / bytes)),
    ))
}

/// `n` or more; a constant for 0, of which a comparison would be a lint warning.
pub(crate) fn at_least(value: Sig, n: u32) -> Sig {
    if n == 0 { high() } else { value.ge(u64::from(n)) }
}

/// The sum of up to 16 words of 16 bits: 20 bits.
pub(crate) fn total16(words: &[Sig]) -> Sig {
    words.iter().map(|w| w.extend(20)).reduce(|a, b| a + b).expect("some words")
}

/// The ones' complement sum of 16-bit words, folded once: 17 bits.
pub(crate) fn sum16(words: &[Sig]) -> Sig {
    let total = total16(words);
    total.bits(0, 16).extend(17) + total.bits(16, 4).extend(17)
}

impl Module for Packetise {
    type Io = PacketiseIo;
    fn name(&self) -> String {
        format!("packetise_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Builds frames from packet fields and payload; computes the ICRC.".into()
    }
    fn body(&self, io: &PacketiseIo) {
        let c = &self.0;
        let (bytes, lanes) = (c.data_bytes, c.lane_bits());
        let beat_bits = POSITION - lanes;

        // accept: control first
        let from_control = io.control.valid;
        let fields = io.control.data.or_else(c, from_control, &io.data.data.packet);
        let packet = PacketFields::regs(c, "packet");
        let is_data = reg("is_data", 1);
        let address = reg("address", c.transmit_address_bits());
        // 0 empty, 1 lines arrive, 2 sums, 3 header complete; unhurried, 2 its length, 3 to 5 sums, 6 complete
        let (measured, complete) = if c.unhurried { (2, 6) } else { (1, 3) };
        let phase = reg_init("phase", index_width(complete + 1), 0);
        let take = hdl::wire("take", 1);
        let accepting = if c.unhurried { phase.none() } else { phase.none() | take };
        io.control.ready.set(accepting);
        let (near, short) =
            (hdl::wire("near_its_end", 1), delay_init("line_short", io.waiting.lt(u64::from(AHEAD / bytes))));
        let data_valid = (io.data.valid & short & near).named("data_due");
        io.data.ready.set(accepting & !from_control & short & near);
        io.line_qp.set(fields.qp);
        let accept = (accepting & (io.control.valid | data_valid)).named("accept");
        when(take, || phase.set(0));
        when(phase.any() & !phase.eq(u64::from(complete)), || phase.set(phase + 1));
        when(accept, || phase.set(1));
        // a packet that is none is never looked at; whether there is one is known late
        when(accepting, || {
            packet.assign(&fields);
            is_data.set(!from_control);
            address.set(io.data.data.address);
        });

        // 1: the lines, and the positions of header end, payload end, ICRC and frame end
        let path = reg("path", 256);
        let addresses = reg("addresses", 256);
        when(phase.eq(1), || {
            path.set(io.path_word);
            addresses.set(io.addresses_word);
        });
        let path = QpPathBits::unpack(path);
        let addresses = QpAddressesBits::unpack(addresses);
        // for 3, out of registers
        let row = |name: &str, f: fn(&OpcodeRow) -> bool| delay(name, opcode_is(packet.opcode, f));
        let has_target = row("has_target", |r| r.headers.reth || r.headers.atomic);
        let (has_atomic, has_aeth) =
            (row("has_atomic", |r| r.headers.atomic), row("has_aeth", |r| r.headers.aeth));
        let raw = packet.raw;
        let pad = lit(2, 0) - packet.length.bits(0, 2);
        let position = |name: &str| reg(name, POSITION);
        let (head, end, icrc_at, frame_end) =
            (position("header_end"), position("payload_end"), position("icrc_at"), position("frame_end"));
        let outer = &packet.outer;
        let header = later(c, "header_length", header_bytes(&packet)).extend(POSITION);
        let payload = packet.length.extend(POSITION);
        when(phase.eq(measured), || {
            head.set(header);
            // one addition each behind the header's length, which is known late
            let padded = payload + pad.extend(POSITION);
            end.set(header + payload);
            // of a raw frame, where it ends or behind
            icrc_at.set(header + padded);
            frame_end.set(mux(raw, payload, header + (padded + 4)));
        });

        // 2, 3 and the clock behind: IPv4 checksum
        let ip_at = mux(outer.tagged, lit(POSITION, 18), lit(POSITION, 14));
        let total_length = (frame_end - ip_at).extend(16).named("total_length");
        let total_length = later(c, "known_total", total_length);
        let behind_ip = delay("behind_ip", total_length - mux(outer.ipv6, lit(16, 40), lit(16, 20)));
        let identification = reg_init("identification", 16, 0);
        let (source_ip, dest_ip) = (addresses.src_gid.bits(0, 32), addresses.dest_gid.bits(0, 32));
        let half = |v: Sig| [v.bits(16, 16), v.bits(0, 16)];
        let ips = [half(source_ip), half(dest_ip)].concat();
        let sum_ips = delay("sum_ips", sum16(&ips));
        let rest = [
            cat(&[lit(8, 0x45), path.tos]),
            total_length,
            identification,
            lit(16, 0x4000),
            cat(&[path.ttl, lit(8, u64::from(IP_PROTOCOL_UDP))]),
        ];
        let sum_rest = delay("sum_rest", sum16(&rest));
        let sum = later(c, "sum_of_both", sum_ips.extend(18) + sum_rest.extend(18));
        let folded = sum.bits(0, 16).extend(17) + sum.bits(16, 2).extend(17);
        let checksum = delay("checksum", !(folded.bits(0, 16) + folded.bit(16).extend(16)));

        // 3: the header, first byte most significant, without the checksum
        let of_ip = mux(outer.ipv6, lit(16, u64::from(ETHERTYPE_IPV6)), lit(16, u64::from(ETHERTYPE_IPV4)));
        let ethernet = EthernetHeaderBits {
            destination: path.dest_mac,
            source: path.src_mac,
            ethertype: mux(outer.tagged, u64::from(ETHERTYPE_VLAN), of_ip),
        };
        let tag = cat(&[path.vlan_tag, of_ip]);
        let ip6 = Ipv6HeaderBits {
            version: lit(4, 6),
            dscp: path.tos.bits(2, 6),
            ecn: path.tos.bits(0, 2),
            flow_label: path.flow_label,
            payload_length: behind_ip,
            next_header: lit(8, u64::from(IP_PROTOCOL_UDP)),
            hop_limit: path.ttl,
            source: addresses.src_gid,
            destination: addresses.dest_gid,
        };
        let ip = Ipv4HeaderBits {
            version: lit(4, 4),
            ihl: lit(4, 5),
            dscp: path.tos.bits(2, 6),
            ecn: path.tos.bits(0, 2),
            total_length,
            identification,
            dont_fragment: high(),
            more_fragments: low(),
            fragment_offset: lit(13, 0),
            ttl: path.ttl,
            protocol: lit(8, u64::from(IP_PROTOCOL_UDP)),
            checksum: lit(16, 0),
            source: source_ip,
            destination: dest_ip,
        };
        let udp = UdpHeaderBits {
            source_port: path.udp_source_port,
            destination_port: lit(16, u64::from(ROCE_PORT)),
            length: behind_ip,
            checksum: lit(16, 0),
        };
        let bth = BthBits {
            opcode: packet.opcode,
            solicited: packet.solicited,
            mig_req: lit(1, MIG_REQ),
            pad_count: pad,
            version: lit(4, 0),
            pkey: lit(16, u64::from(DEFAULT_PKEY)),
            fecn: low(),
            becn: low(),
            dest_qp: path.dest_qpn,
            ack_req: packet.ack_req,
            psn: packet.psn,
        };
        // RETH and AtomicETH begin alike
        let target = cat(&[packet.va, packet.rkey]);
        let aeth = AethBits { syndrome: packet.syndrome, msn: packet.msn }.pack();
        let imm = packet.imm.swap_bytes();
        let first_word = mux(has_target, target.bits(64, 32), mux(has_aeth, aeth, imm));
        let next_words = mux(has_aeth, packet.value, target.bits(0, 64));
        let operands = cat(&[packet.value, packet.compare]);
        let rest = mux(has_atomic, operands, cat(&[packet.dma_length, imm, lit(64, 0)]));
        let extension = cat(&[first_word, next_words, rest]);
        // first the IP header of its kind, then the tag or not; what is shorter ends in zeros
        let rest = cat(&[udp.pack(), bth.pack(), extension]);
        let datagram = mux(outer.ipv6, cat(&[ip6.pack(), rest]), cat(&[ip.pack(), rest, lit(20 * 8, 0)]))
            .named("datagram");
        let [macs, ethertype] = [ethernet.pack().bits(16, 96), ethernet.pack().bits(0, 16)];
        let header = mux(
            outer.tagged,
            cat(&[macs, ethertype, tag, datagram]),
            cat(&[macs, ethertype, datagram, lit(4 * 8, 0)]),
        );
        assert_eq!(header.width(), LONGEST * 8, "header layout");

        // A: one beat per clock, while room is held for it
        let active = reg_init("active", 1, 0);
        let beat = reg("beat", beat_bits);
        let word = reg("word", c.transmit_address_bits() - lanes);
        let held = reg("header", LONGEST * 8);
        let held_outer = Outer::regs(&(), "held_outer");
        let held_data = reg("held_data", 1);
        let edge =
            |name: &str| (reg(&format!("{name}_beat"), beat_bits), reg(&format!("{name}_lane"), lanes));
        let (head_at, end_at, icrc_place, last_at) = (edge("head"), edge("end"), edge("icrc"), edge("last"));
        let leave = instance("out", &Fifo { depth: BEATS, width: FrameBeat::total_width(c) });
        let room = leave.level.lt(u64::from(BEATS / 2));
        io.stall.set(active & !room);
        let issue = (active & room).named("issue");
        let last = beat.eq(last_at.0);
        // of the frame that is read, or of the one that will be
        let ends = (!active | (last_at.0 - beat).le(NEAR)).named("nearly_read");
        near.set(later(c, "known_near", mux(take, frame_end.le(NEAR * u64::from(bytes)), ends)));
        let free = if c.unhurried { !active } else { !active | (issue & last) };
        let turn = (phase.eq(u64::from(complete)) & free).named("turn");
        take.set(turn);
        when(issue, || {
            beat.set(beat + 1);
            when(beat.ge(head_at.0), || word.set(word + 1));
            when(last, || active.set(0));
        });
        when(turn & !packet.fence, || {
            active.set(1);
            beat.set(0);
            word.set(address.bits(lanes, c.transmit_address_bits() - lanes));
            held.set(header);
            held_outer.assign(outer);
            held_data.set(is_data);
            identification.set(identification + 1);
            for ((to_beat, to_lane), from) in
                [(head_at, head), (end_at, end), (icrc_place, icrc_at), (last_at, frame_end - 1)]
            {
                to_beat.set(from.bits(lanes, beat_bits));
                to_lane.set(from.bits(0, lanes));
            }
        });
        // what comes behind is at its lines at the earliest: the sums are still those of this frame
        let fresh = delay_init("turned", turn & !packet.fence);
        let kept = reg("kept_checksum", 16);
        when(fresh, || kept.set(checksum));
        let sum = mux(fresh, checksum, kept).named("checksum_of_frame");
        io.buffer_address.set(word);
        io.fence_done.set(delay_init("fenced", turn & packet.fence));
        io.sent.set(delay_init("spent", issue & last & held_data));
        let started = turn & !packet.fence;
        let counted = |name: &str, what: Sig| delay_init(name, started & what);
        let positive = packet.syndrome.bits(5, 2).none();
        let acknowledges = packet.opcode.eq(u64::from(Opcode::RcAcknowledge.code()));
        io.packet_count.set(counted("packet_counted", !acknowledges));
        io.ack_count.set(counted("ack_counted", acknowledges & positive));
        io.nak_count.set(counted("nak_counted", acknowledges & !positive));
        io.frame_length.set(delay("counted_bytes", frame_end));
        io.trace.assign(&Mark {
            psn: packet.psn,
            opcode: packet.opcode,
            detail: path.dest_qpn.bits(0, 16),
            ..Mark::of(TraceEvent::Packetise, started, packet.qp)
        });

        // B: the word arrives; header lanes, payload lanes, zero behind
        let below = |at: (Sig, Sig)| -> Sig {
            let lane: Vec<Sig> = (0..bytes - 1).rev().map(|i| at.1.gt(u64::from(i))).collect();
            // an end lies before the last lane, at most
            let lane = [vec![low()], lane].concat();
            mux(beat.lt(at.0), !lit(bytes, 0), mux(beat.eq(at.0), cat(&lane), lit(bytes, 0)))
        };
        let beats = LONGEST.div_ceil(bytes);
        // where the header has zeros for it
        let [untagged, tagged, ..] = by_outer(&held_outer);
        let sum_at =
            |p: u32| match [(24, untagged), (28, tagged)].into_iter().find(|(at, _)| p / 2 * 2 == *at) {
                Some((at, is)) => sum.byte(at + 1 - p) & is.repeat(8),
                None => lit(8, 0),
            };
        let slices: Vec<Sig> = (0..beats)
            .map(|k| {
                let parts: Vec<Sig> = (0..bytes)
                    .rev()
                    .map(|i| k * bytes + i)
                    .map(|p| {
                        if p < LONGEST { held.bits((LONGEST - 1 - p) * 8, 8) | sum_at(p) } else { lit(8, 0) }
                    })
                    .collect();
                cat(&parts)
            })
            .collect();
        let a_valid = delay_init("a_valid", issue);
        let a_beat = delay("a_beat", mux(beat.ge(u64::from(beats)), lit(beat_bits, u64::from(beats)), beat));
        // behind the header nobody looks
        let a_header = delay("a_header", select(beat.bits(0, index_width(beats)), &slices));
        let a_in_header = delay("a_in_header", below(head_at));
        let a_live = delay("a_live", below(end_at));
        let a_closing = delay("a_closing", beat.eq(icrc_place.0));
        let a_behind = delay("a_behind", beat.gt(icrc_place.0));
        let a_icrc_lane = delay("a_icrc_lane", icrc_place.1);
        let a_last = delay("a_last", last);
        let a_bytes = delay("a_bytes", last_at.1.extend(lanes + 1) + 1);
        let merged: Vec<Sig> = (0..bytes)
            .rev()
            .map(|i| {
                let payload = mux(a_live.bit(i), io.buffer_word.byte(i), 0);
                mux(a_in_header.bit(i), a_header.byte(i), payload)
            })
            .collect();
        let merged = cat(&merged).named("merged");
        let a_outer = Outer::regs(&(), "a_outer");
        a_outer.assign(&held_outer);
        let covered = icrc_view(&a_outer, a_beat, merged, bytes);

        // C: one full beat into the register; zero lanes behind the end are stepped back over in D
        let b_valid = delay_init("b_valid", a_valid);
        let b_data = delay("b_data", merged);
        let b_covered = delay("b_covered", covered);
        let b_first = delay("b_first", icrc_opens(&a_outer, a_beat, bytes));
        let b_counts = delay("b_counts", icrc_covers(&a_outer, a_beat, bytes) & !a_behind);
        let pipe = |from: [Sig; 5], stage: &str| -> [Sig; 5] {
            let names = ["closing", "behind", "icrc_lane", "last", "bytes"];
            std::array::from_fn(|i| delay(&format!("{stage}_{}", names[i]), from[i]))
        };
        let b = pipe([a_closing, a_behind, a_icrc_lane, a_last, a_bytes], "b");
        let b_start = delay("b_start", icrc_start(&a_outer, bytes));
        let register = reg("icrc_register", 32);
        when(b_valid & b_counts, || {
            register.set(crc32_next(mux(b_first, b_start, register), b_covered, bytes));
        });

        // D: the ICRC, low byte first; at the highest lane its second half opens the next beat
        let c_valid = delay_init("c_valid", b_valid);
        let c_data = delay("c_data", b_data);
        let [closing, behind, icrc_lane, last, last_bytes] = pipe(b, "c");
        let placed: Vec<(Sig, Sig)> = (0..bytes / 4)
            .map(|n| {
                let lane = 4 * n + 2;
                let icrc = !unwind(register, bytes - lane);
                let high_part = if lane > 0 { cat(&[icrc, lit(lane * 8, 0)]) } else { icrc };
                let here = high_part.resize(bytes * 8);
                // only the highest lane spills
                (here, icrc.bits(16, 16))
            })
            .collect();
        let index = icrc_lane.bits(2, lanes - 2);
        let here = select(index, &placed.iter().map(|p| p.0).collect::<Vec<_>>());
        let spilled = placed.last().expect("a beat has lanes").1.extend(bytes * 8);
        let insert = mux(closing, here, mux(behind, spilled, lit(bytes * 8, 0)));
        let out = FrameBeat {
            data: c_data | insert,
            last,
            bytes: mux(last, last_bytes, u64::from(bytes)),
            error: low(),
        };
        // what comes while nothing waits passes by the FIFO
        let waits = leave.output.valid;
        io.frame.valid.set(waits | c_valid);
        io.frame.data.assign(&FrameBeat::from_bits(c, leave.output.data).or_else(c, waits, &out));
        leave.input.valid.set(c_valid & (waits | !io.frame.ready));
        leave.input.data.set(out.to_bits());
        hdl::assert_always("a_beat_always_has_room", leave.input.ready | !c_valid);
        leave.output.ready.set(io.frame.ready);
    }
}
