//! verify: is a whole frame a good RoCEv2 packet for this port, or one for the raw QP?
//!
//! In: [`Parsed`], one frame per clock at most. Out, three clocks later (five if unhurried): `done` with either `good` and its headers, or
//! the `reject` that names why not. The first of the rejects below that holds is the one counted:
//!
//! ```text
//! BufferFull (cut by the mac)   Runt (< 60)   BadFcs   Oversize   WrongDestinationMac   NotRoce (EtherType)
//! BadIpHeader   NotRoce (protocol, port)   BadUdpLength   Runt (no BTH)   BadIcrc   BadTransportVersion   UnknownOpcode
//! Runt (no room for the opcode's headers and pad)
//! ```
//! Lengths are those without FCS, whether the mac hands it on (XGMII) or not (CMAC). What the QP says about the packet
//! is check's matter. UDP checksum, ToS or traffic class, TTL or hop limit, flow label and a tag's priority are not
//! looked at. IPv6 extension headers are NotRoce. Header fields that the opcode does not carry are zero.
//!
//! With a raw QP (`raw_receive`) what is WrongDestinationMac, NotRoce or of an IP shape that RoCE never has is a raw frame
//! instead, if it is for the port's address, for all (broadcast, IPv6 all nodes) or for an IPv6 solicited node; or
//! promiscuous. A RoCE packet for this port never is, whatever is wrong with it.
//!
//! Requirements: ATOM CONG ICRC LINE NET PKT RAW

use crate::config::Config;
use crate::flow::Headers;
use crate::prim::later::{later, later_all, later_init};
use crate::rx::parse::Parsed;
use crate::tx::packetise::{BASE, opcode_is, sum16, total16};
use contract::opcode::Opcode;
use contract::wire::{
    AethBits, AtomicEthBits, BthBits, ETHERNET_BYTES, ETHERTYPE_IPV4, EthernetHeaderBits, IP_PROTOCOL_UDP,
    Ipv4HeaderBits, Ipv6HeaderBits, RAW_FRAME_MAX, ROCE_PORT, RethBits, UdpHeaderBits,
};
use contract::{Reject, register};
use hdl::{Bundle, Module, Ports, Sig, any_of, cat, delay, delay_init, lit, mux};

/// Bytes of the shortest Ethernet frame, without FCS.
const SHORTEST: u64 = 60;
/// Ethernet header: what a frame without FCS is longer than its MTU.
const ETHERNET: u64 = ETHERNET_BYTES as u64;
/// Bytes behind the IP header of a packet of headers alone: UDP, BTH, ICRC.
const LEAST: u64 = 24;

/// The stage.
#[derive(Clone, Debug)]
pub struct Verify(pub Config);

/// Ports of [`Verify`].
#[derive(Ports)]
#[ports(Verify)]
pub struct VerifyIo {
    /// A frame is whole.
    #[input]
    pub valid: Sig,
    /// The frame.
    #[input]
    pub parsed: Parsed,
    /// The port's MAC address, first byte most significant.
    #[input(48)]
    pub port_mac: Sig,
    /// Most bytes between Ethernet header and FCS.
    #[input(16)]
    pub port_mtu: Sig,
    /// `contract::register::RAW_RECEIVE`.
    #[input(32)]
    pub raw_receive: Sig,
    /// The judgement is here.
    #[output]
    pub done: Sig,
    /// The packet is good, or a raw frame.
    #[output]
    pub good: Sig,
    /// Code of the `contract::Reject` if it is not.
    #[output(6)]
    pub reject: Sig,
    /// Its headers; `address` and `slot` are zero, the packet buffer knows them.
    #[output(c.0.clone())]
    pub headers: Headers,
    /// Where in the frame the payload begins.
    #[output(7)]
    pub payload_at: Sig,
    /// The frame came whole and with the right FCS.
    #[output]
    pub intact: Sig,
    /// Its bytes without FCS.
    #[output(16)]
    pub length: Sig,
}

/// An IPv4 address as a GID: `::ffff:a.b.c.d`.
pub fn ipv4_gid(address: Sig) -> Sig {
    cat(&[lit(96, 0xffff), address])
}

impl Module for Verify {
    type Io = VerifyIo;
    fn name(&self) -> String {
        format!("verify_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Judges a whole frame by Ethernet, IP, UDP, BTH and ICRC.".into()
    }
    fn body(&self, io: &VerifyIo) {
        let c = &self.0;
        let p = later_all(c, &(), "parsed_later", &io.parsed);
        let ethernet = EthernetHeaderBits::unpack(p.ethernet);
        let (tagged, ipv6) = (p.outer.tagged, p.outer.ipv6);
        let ip = Ipv4HeaderBits::unpack(p.ip.bits(160, 160));
        let ip6 = Ipv6HeaderBits::unpack(p.ip);
        let udp = UdpHeaderBits::unpack(p.udp);

        // 1: every question by itself
        let fcs = u64::from(self.0.fcs_bytes());
        let (shortest, ethernet_bytes) = (SHORTEST + fcs, ETHERNET + fcs);
        let datagram = mux(ipv6, ip6.payload_length.extend(17) + 40, ip.total_length.extend(17));
        let inner = mux(ipv6, ip6.payload_length, ip.total_length - 20).named("behind_ip");
        let most = io.port_mtu.extend(17) + ethernet_bytes;
        let space = p.length - mux(tagged, lit(17, ethernet_bytes + 4), lit(17, ethernet_bytes));
        let first = |name: &str, from: Sig| later(c, &format!("{name}_later"), delay(name, from));
        let ask = |name: &str, fails: Sig| first(&format!("fails_{name}"), fails);
        let cut = ask("cut", p.cut);
        let runt = ask("runt", p.length.lt(shortest));
        let damaged = ask("fcs", p.damaged);
        let oversize = ask("oversize", p.length.gt(mux(tagged, most + 4, most)));
        let mac = ask("mac", ethernet.destination.ne(io.port_mac));
        let group = |prefix: u64, bits: u32| ethernet.destination.bits(48 - bits, bits).eq(prefix);
        let for_us = any_of(&[
            ethernet.destination.eq(io.port_mac),
            ethernet.destination.all(),
            group(0x3333_0000_0001, 48),
            group(0x33_33ff, 24),
            io.raw_receive.bit(register::RAW_PROMISCUOUS.ilog2()),
        ]);
        let raw_wanted = first("raw_wanted", for_us & io.raw_receive.bit(register::RAW_ENABLE.ilog2()));
        let raw_long = first("raw_long", p.length.gt(RAW_FRAME_MAX as u64 + fcs));
        let ethertype = ask("ethertype", !ipv6 & ethernet.ethertype.ne(u64::from(ETHERTYPE_IPV4)));
        let fragment = ip.more_fragments | ip.fragment_offset.any();
        let shape_4 = ip.version.ne(4) | ip.ihl.ne(5) | fragment;
        let ip_shape = mux(ipv6, ip6.version.ne(6), shape_4) | datagram.gt(space);
        let ip_shape = ask("ip", ip_shape);
        let protocol = mux(ipv6, ip6.next_header, ip.protocol);
        let port = protocol.ne(u64::from(IP_PROTOCOL_UDP)) | udp.destination_port.ne(u64::from(ROCE_PORT));
        let port = ask("port", port);
        let udp_length = ask("udp_length", udp.length.ne(inner));
        let no_bth = ask("bth", mux(ipv6, inner.lt(LEAST), ip.total_length.lt(LEAST + 20)));
        let icrc = ask("icrc", !p.icrc_good);
        let words: Vec<Sig> = (10..20).map(|i| p.ip.bits(i * 16, 16)).collect();
        // folded where it is not added a clock later
        let sum_of = if c.unhurried { total16 } else { sum16 };
        let sums = [delay("sum_low", sum_of(&words[..5])), delay("sum_high", sum_of(&words[5..]))];
        let bth_early = BthBits::unpack(delay("bth", p.bth));
        let bth = BthBits::unpack(later(c, "bth_later", bth_early.pack()));
        let extension = first("extension", p.extension);
        let after_least = first("after_least", inner - LEAST);
        let source = first("source", mux(ipv6, ip6.source, ipv4_gid(ip.source)));
        let destination = first("destination", mux(ipv6, ip6.destination, ipv4_gid(ip.destination)));
        let vlan = first("vlan", mux(tagged, p.vlan, lit(12, 0)));
        let has_checksum = first("has_checksum", !ipv6);
        let length = first("length_1", (p.length - fcs).bits(0, 16));

        // 2: a raw frame?
        let not_ours = (raw_wanted & (mac | ethertype | ip_shape | port)).named("not_ours");
        let too_long = oversize | (not_ours & raw_long);
        let raw = (not_ours & !any_of(&[cut, runt, damaged, too_long])).named("raw");

        // the opcode's headers, the IP checksum
        let row = |f: fn(&contract::opcode::OpcodeRow) -> bool| opcode_is(bth.opcode, f);
        let (reth, atomic) = (row(|r| r.headers.reth), row(|r| r.headers.atomic));
        let (deth, aeth) = (row(|r| r.headers.deth), row(|r| r.headers.aeth));
        let atomic_ack = row(|r| r.headers.atomic_ack);
        let imm = row(|r| r.headers.immdt || r.headers.ieth);
        let mut sizes: Vec<usize> = Opcode::ALL.iter().map(|o| o.row().headers.bytes()).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let extension_bytes = sizes.into_iter().fold(lit(6, 0), |all, n| {
            let here = opcode_is(bth_early.opcode, |r| r.headers.bytes() == n);
            all | mux(here, n as u64, lit(6, 0))
        });
        let spent = later(c, "spent", extension_bytes.extend(16) + bth_early.pad_count.extend(16));
        let extension_bytes = later(c, "extension_bytes", extension_bytes);
        let fields = RethBits::unpack(extension.bits(96, 128));
        let acknowledge = AethBits::unpack(extension.bits(192, 32));
        let operands = AtomicEthBits::unpack(extension);
        let addressed = reth | atomic;
        let only = |condition: Sig, value: Sig| value & condition.repeat(value.width());
        let immediate =
            mux(reth, extension.bits(64, 32), mux(deth, extension.bits(128, 32), extension.bits(192, 32)));
        let headers = Headers {
            raw,
            dest_qpn: mux(raw, io.raw_receive.bits(0, 24), bth.dest_qp),
            opcode: mux(raw, u64::from(Opcode::RcSendOnly.code()), bth.opcode),
            solicited: bth.solicited & !raw,
            ack_req: bth.ack_req & !raw,
            pad: bth.pad_count,
            pkey: bth.pkey,
            psn: bth.psn,
            source_gid: source,
            dest_gid: destination,
            vlan,
            va: only(addressed, fields.va),
            rkey: only(addressed, fields.rkey),
            dma_length: only(reth, fields.dma_length),
            syndrome: only(aeth, acknowledge.syndrome),
            msn: only(aeth, acknowledge.msn),
            imm: only(imm, immediate).swap_bytes(),
            value: only(atomic, operands.swap_or_add) | only(atomic_ack, extension.bits(128, 64)),
            compare: only(atomic, operands.compare),
            address: lit(self.0.packet_address_bits(), 0),
            length: mux(raw, length, after_least - spent).bits(0, 14),
            slot: lit(self.0.packet_slot_bits(), 0),
        };
        let wide = sums[0].width() + 1;
        let sum = later(c, "sum", sums[0].extend(wide) + sums[1].extend(wide));
        let folded = sum.bits(0, 16).extend(17) + sum.bits(16, wide - 16).extend(17);
        let checksum = folded.bits(0, 16) + folded.bit(16).extend(16);
        let fails = [
            (cut, Reject::BufferFull),
            (runt, Reject::Runt),
            (damaged, Reject::BadFcs),
            (too_long, Reject::Oversize),
            (mac, Reject::WrongDestinationMac),
            (ethertype, Reject::NotRoce),
            (ip_shape | (has_checksum & checksum.ne(0xffff)), Reject::BadIpHeader),
            (port, Reject::NotRoce),
            (udp_length, Reject::BadUdpLength),
            (no_bth, Reject::Runt),
            (icrc, Reject::BadIcrc),
            (bth.version.any(), Reject::BadTransportVersion),
            (!row(|_| true), Reject::UnknownOpcode),
            (after_least.lt(spent), Reject::Runt),
        ];

        // 3: the first that holds
        let fails =
            std::array::from_fn::<_, 14, _>(|i| (delay(&format!("fail_{i}"), fails[i].0), fails[i].1));
        let reject = fails
            .iter()
            .rev()
            .fold(lit(6, 0), |rest, (fail, reject)| mux(*fail, u64::from(reject.code()), rest));
        let good = delay("is_raw", raw) | !any_of(&fails.map(|f| f.0));
        let kept = Headers::regs(&self.0, "kept");
        kept.assign(&headers);
        let out = Headers::regs(&self.0, "judged");
        out.assign(&kept);
        io.headers.assign(&out);
        let base = |n: u32| lit(7, u64::from(BASE + n));
        let base = mux(ipv6, mux(tagged, base(24), base(20)), mux(tagged, base(4), base(0)));
        let base = first("base", base);
        let payload_at = delay("payload_at_2", mux(raw, lit(7, 0), extension_bytes.extend(7) + base));
        io.payload_at.set(delay("payload_at_3", payload_at));
        io.good.set(delay("is_good", good));
        io.reject.set(delay("first_reject", reject));
        let intact = delay("intact_2", !(cut | runt | damaged));
        io.intact.set(delay("intact_3", intact));
        io.length.set(delay("length_3", delay("length_2", length)));
        let valid =
            ["parsed_valid", "valid_0"].iter().fold(io.valid, |valid, name| later_init(c, name, valid));
        let valid = delay_init("valid_2", delay_init("valid_1", valid));
        io.done.set(delay_init("valid_3", valid));
    }
}
