//! Wire headers against bytes that this project did not make: captures decoded by tshark, and the ICRC vectors.

use std::collections::HashMap;
use std::net::{Ipv4Addr, Ipv6Addr};

use contract::opcode::{Kind, Position};
use contract::wire::{
    ETHERTYPE_IPV4, ETHERTYPE_IPV6, SyndromeType, ipv4_checksum, psn_add, psn_distance, udp_source_port,
};
use contract::*;

const FRAMES: &str = include_str!("golden/frames.txt");
const VECTORS: &str = include_str!("golden/icrc.txt");

struct Golden {
    name: String,
    bytes: Vec<u8>,
    fields: HashMap<String, String>,
}

impl Golden {
    fn number(&self, field: &str) -> Option<u128> {
        let text = self.fields.get(field)?;
        let parsed = match text.strip_prefix("0x") {
            Some(hex) => u128::from_str_radix(hex, 16),
            None if field.ends_with("immdt") => u128::from_str_radix(text, 16),
            None => text.parse(),
        };
        Some(parsed.unwrap_or_else(|_| panic!("{}: {field} is {text}", self.name)))
    }

    /// Asserts that the decoder saw `value`; its absence is a failure too.
    fn says(&self, field: &str, value: impl Into<u128>) {
        assert_eq!(self.number(field), Some(value.into()), "{}: {field}", self.name);
    }

    fn mac(&self, field: &str, value: u64) {
        let text: Vec<String> = value.to_be_bytes()[2..].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(self.fields.get(field), Some(&text.join(":")), "{}: {field}", self.name);
    }
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|i| u8::from_str_radix(&text[i..i + 2], 16).expect("hex")).collect()
}

fn golden() -> Vec<Golden> {
    let mut all: Vec<Golden> = Vec::new();
    for line in FRAMES.lines().filter(|line| !line.starts_with('#')) {
        let (key, value) = line.split_once(' ').expect("two words");
        if key == "frame" {
            let (name, hex) = value.split_once(' ').expect("name and bytes");
            all.push(Golden { name: name.into(), bytes: unhex(hex), fields: HashMap::new() });
        } else {
            all.last_mut().expect("a frame first").fields.insert(key.into(), value.into());
        }
    }
    all
}

/// Reads a header, checks that packing it gives the same bytes, and moves on.
macro_rules! take {
    ($Header:ident, $frame:expr, $at:expr) => {{
        let header = $Header::read(&$frame.bytes[$at..]).expect("long enough");
        assert_eq!(
            header.pack(),
            $frame.bytes[$at..$at + $Header::BYTES],
            "{}: {}",
            $frame.name,
            stringify!($Header)
        );
        $at += $Header::BYTES;
        header
    }};
}

#[test]
fn every_header_of_every_captured_opcode_reads_as_tshark_reads_it() {
    let frames = golden();
    assert!(frames.len() >= 20, "the golden file lost frames");
    for frame in &frames {
        let mut at = 0;
        let eth = take!(EthernetHeader, frame, at);
        frame.mac("eth.dst", eth.destination);
        frame.mac("eth.src", eth.source);
        frame.says("eth.type", eth.ethertype);
        match eth.ethertype {
            ETHERTYPE_IPV4 => {
                let ip = take!(Ipv4Header, frame, at);
                frame.says("ip.version", ip.version);
                frame.says("ip.hdr_len", ip.ihl * 4);
                frame.says("ip.dsfield", ip.dscp << 2 | ip.ecn);
                frame.says("ip.len", ip.total_length);
                frame.says("ip.id", ip.identification);
                frame.says("ip.flags", u8::from(ip.dont_fragment) << 1 | u8::from(ip.more_fragments));
                frame.says("ip.frag_offset", ip.fragment_offset);
                frame.says("ip.ttl", ip.ttl);
                frame.says("ip.proto", ip.protocol);
                frame.says("ip.checksum", ip.checksum);
                assert_eq!(ipv4_checksum(&ip.pack()), ip.checksum, "{}", frame.name);
                assert_eq!(frame.fields["ip.src"], Ipv4Addr::from(ip.source).to_string());
                assert_eq!(frame.fields["ip.dst"], Ipv4Addr::from(ip.destination).to_string());
            }
            ETHERTYPE_IPV6 => {
                let ip = take!(Ipv6Header, frame, at);
                frame.says("ipv6.version", ip.version);
                frame.says("ipv6.tclass", ip.dscp << 2 | ip.ecn);
                frame.says("ipv6.flow", ip.flow_label);
                frame.says("ipv6.plen", ip.payload_length);
                frame.says("ipv6.nxt", ip.next_header);
                frame.says("ipv6.hlim", ip.hop_limit);
                assert_eq!(frame.fields["ipv6.src"], Ipv6Addr::from(ip.source).to_string());
                assert_eq!(frame.fields["ipv6.dst"], Ipv6Addr::from(ip.destination).to_string());
            }
            other => panic!("{}: EtherType {other:#x}", frame.name),
        }
        let udp = take!(UdpHeader, frame, at);
        frame.says("udp.srcport", udp.source_port);
        frame.says("udp.dstport", udp.destination_port);
        frame.says("udp.length", udp.length);
        frame.says("udp.checksum", udp.checksum);
        let bth = take!(Bth, frame, at);
        frame.says("infiniband.bth.opcode", bth.opcode);
        frame.says("infiniband.bth.se", bth.solicited);
        frame.says("infiniband.bth.m", bth.mig_req);
        frame.says("infiniband.bth.padcnt", bth.pad_count);
        frame.says("infiniband.bth.tver", bth.version);
        frame.says("infiniband.bth.p_key", bth.pkey);
        frame.says("infiniband.bth.destqp", bth.dest_qp);
        frame.says("infiniband.bth.a", bth.ack_req);
        frame.says("infiniband.bth.psn", bth.psn);

        let headers = Opcode::from_code(bth.opcode).expect("a row in the opcode table").row().headers;
        let start = at;
        if headers.deth {
            let deth = take!(Deth, frame, at);
            frame.says("infiniband.deth.q_key", deth.qkey);
            frame.says("infiniband.deth.srcqp", deth.source_qp);
        }
        if headers.reth {
            let reth = take!(Reth, frame, at);
            frame.says("infiniband.reth.va", reth.va);
            frame.says("infiniband.reth.r_key", reth.rkey);
            frame.says("infiniband.reth.dmalen", reth.dma_length);
        }
        if headers.atomic {
            let atomic = take!(AtomicEth, frame, at);
            frame.says("infiniband.reth.va", atomic.va);
            frame.says("infiniband.reth.r_key", atomic.rkey);
            frame.says("infiniband.atomiceth.swapdt", atomic.swap_or_add);
            frame.says("infiniband.atomiceth.cmpdt", atomic.compare);
        }
        if headers.aeth {
            let aeth = take!(Aeth, frame, at);
            frame.says("infiniband.aeth.syndrome", aeth.syndrome);
            frame.says("infiniband.aeth.msn", aeth.msn);
        }
        if headers.atomic_ack {
            let ack = take!(AtomicAckEth, frame, at);
            frame.says("infiniband.atomicacketh.origremdt", ack.original);
        }
        if headers.immdt {
            let imm = take!(ImmDt, frame, at);
            frame.says("infiniband.immdt", imm.immediate);
        }
        assert_eq!(at - start, headers.bytes(), "{}", frame.name);
        for (present, field) in [
            (headers.deth, "infiniband.deth.q_key"),
            (headers.reth || headers.atomic, "infiniband.reth.va"),
            (headers.aeth, "infiniband.aeth.msn"),
            (headers.immdt, "infiniband.immdt"),
        ] {
            assert_eq!(present, frame.fields.contains_key(field), "{}: {field}", frame.name);
        }
        let end = frame.bytes.len() - 4;
        assert_eq!(crc::icrc(&frame.bytes[14..end]).expect("IP"), frame.bytes[end..], "{}: ICRC", frame.name);
    }
}

#[test]
fn headers_without_a_capture_have_their_standards_bytes() {
    let tag = VlanTag { priority: 5, drop_eligible: true, vlan: 0x123, ethertype: 0x0800 };
    assert_eq!(tag.pack(), [0xb1, 0x23, 0x08, 0x00]);
    assert_eq!(Ieth { rkey: 0x1122_3344 }.pack(), [0x11, 0x22, 0x33, 0x44]);
    let cnp = Bth { opcode: 0x81, pkey: 0xffff, becn: true, dest_qp: 0x118, ..Default::default() };
    assert_eq!(cnp.pack(), [0x81, 0, 0xff, 0xff, 0x40, 0, 1, 0x18, 0, 0, 0, 0]);
}

#[test]
fn the_icrc_vectors_match_and_one_flipped_bit_does_not() {
    let mut vectors = 0;
    for line in VECTORS.lines().filter(|line| !line.starts_with('#')) {
        let (name, hex) = line.split_once(' ').expect("name and bytes");
        let bytes = unhex(hex);
        let (packet, icrc) = bytes[14..].split_at(bytes.len() - 18);
        assert_eq!(crc::icrc(packet).expect("IP"), icrc, "{name}");
        let mut flipped = packet.to_vec();
        *flipped.last_mut().expect("bytes") ^= 1;
        assert_ne!(crc::icrc(&flipped).expect("IP"), icrc, "{name}");
        vectors += 1;
    }
    assert_eq!(vectors, 4);
}

#[test]
fn fields_that_routers_change_do_not_change_the_icrc() {
    let ack = VECTORS.lines().find_map(|line| line.strip_prefix("rc_ack ")).expect("the vector");
    let bytes = unhex(ack);
    let packet = &bytes[14..bytes.len() - 4];
    for (byte, covered) in
        [(0, true), (1, false), (4, true), (8, false), (10, false), (26, false), (32, false), (36, true)]
    {
        let mut changed = packet.to_vec();
        changed[byte] ^= 0x0a;
        assert_eq!(crc::icrc(&changed) != crc::icrc(packet), covered, "byte {byte}");
    }
    assert_eq!(crc::icrc(&packet[..39]), None);
    assert_eq!(crc::icrc(&[]), None);
}

#[test]
fn a_frame_with_its_own_checksum_leaves_the_residue() {
    let frame = b"123456789";
    assert_eq!(crc::fcs(frame), 0xcbf4_3926);
    let register = crc::update(crc::update(crc::START, frame), &crc::fcs(frame).to_le_bytes());
    assert_eq!(register, crc::RESIDUE);
    assert_eq!(crc::update(crc::START, &[0xff; 8]), crc::ICRC_START);
}

#[test]
fn psn_distance_wraps_and_its_halves_are_named() {
    assert_eq!(psn_distance(0x000001, 0xfffffe), 3);
    assert_eq!(psn_distance(0xfffffe, 0x000001), -3);
    assert_eq!(psn_distance(5, 5), 0);
    assert_eq!(psn_distance(0x7fffff, 0), 0x7fffff);
    assert_eq!(psn_distance(0x800000, 0), -0x800000);
    assert_eq!(psn_add(0xffffff, 2), 1);
}

#[test]
fn the_source_port_follows_the_published_vectors() {
    assert_eq!(udp_source_port(0x12345, 1, 2), 0xe341);
    assert_eq!(udp_source_port(0, 0x12, 0x345), 0xfada);
    assert_eq!(udp_source_port(0, 0x345, 0x12), 0xfada);
}

#[test]
fn syndromes_decode_by_type_and_value() {
    assert_eq!(Syndrome::decode(0x1f), Syndrome::Ack(31));
    assert_eq!(Syndrome::decode(0x20), Syndrome::Rnr(0));
    assert_eq!(Syndrome::decode(0x3f), Syndrome::Rnr(31));
    assert_eq!(Syndrome::decode(0x60), Syndrome::Nak(wire::NakCode::PsnSequence));
    assert_eq!(Syndrome::decode(0x63), Syndrome::Nak(wire::NakCode::RemoteOperation));
    assert_eq!(Syndrome::decode(0x40), Syndrome::Reserved(0x40));
    assert_eq!(Syndrome::decode(0x65), Syndrome::Reserved(0x65));
    for byte in 0..=255 {
        let decoded = Syndrome::decode(byte);
        assert!(decoded.encode() == byte, "{byte:#x}");
    }
    assert_eq!(SyndromeType::Nak.code(), 3);
}

#[test]
fn the_opcode_table_agrees_with_the_transport_rules() {
    // (opcode, bytes after the BTH, opens, closes, consumes a receive): from the transport's opcode table.
    let rows = [
        (0x00, 0, true, false, false),
        (0x01, 0, false, false, false),
        (0x02, 0, false, true, true),
        (0x03, 4, false, true, true),
        (0x04, 0, true, true, true),
        (0x05, 4, true, true, true),
        (0x06, 16, true, false, false),
        (0x07, 0, false, false, false),
        (0x08, 0, false, true, false),
        (0x09, 4, false, true, true),
        (0x0a, 16, true, true, false),
        (0x0b, 20, true, true, true),
        (0x0c, 16, true, true, false),
        (0x0d, 4, true, false, false),
        (0x0e, 0, false, false, false),
        (0x0f, 4, false, true, false),
        (0x10, 4, true, true, false),
        (0x11, 4, true, true, false),
        (0x12, 12, true, true, false),
        (0x13, 28, true, true, false),
        (0x14, 28, true, true, false),
        (0x16, 4, false, true, true),
        (0x17, 4, true, true, true),
        (0x20, 0, true, false, false),
        (0x21, 0, false, false, false),
        (0x22, 0, false, true, true),
        (0x23, 4, false, true, true),
        (0x24, 0, true, true, true),
        (0x25, 4, true, true, true),
        (0x26, 16, true, false, false),
        (0x27, 0, false, false, false),
        (0x28, 0, false, true, false),
        (0x29, 4, false, true, true),
        (0x2a, 16, true, true, false),
        (0x2b, 20, true, true, true),
        (0x64, 8, true, true, true),
        (0x65, 12, true, true, true),
        (0x81, 0, true, true, false),
    ];
    let mut known = 0;
    for code in 0..=255 {
        let expected = rows.iter().find(|row| row.0 == code);
        let Some(opcode) = Opcode::from_code(code) else {
            assert!(expected.is_none(), "{code:#x} has no row");
            continue;
        };
        let row = opcode.row();
        let consumes =
            matches!(row.receive_wqe, opcode::ReceiveWqe::Complete | opcode::ReceiveWqe::FetchComplete);
        let got = (code, row.headers.bytes(), row.position.opens(), row.position.closes(), consumes);
        assert_eq!(Some(&got), expected, "{}", opcode.name());
        assert_eq!(row.position == Position::First, row.position.opens() && !row.position.closes());
        assert_eq!(row.kind == Kind::Notification, code == 0x81);
        known += 1;
    }
    assert_eq!(known, rows.len());
}

#[test]
fn rnr_and_timeout_codes_have_their_published_times() {
    let ms100 = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
        3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];
    for (code, hundredths) in ms100.iter().enumerate() {
        assert_eq!(timer::rnr_ns(code as u8), hundredths * 10_000, "code {code}");
    }
    assert_eq!(timer::timeout_ns(0), None);
    assert_eq!(timer::timeout_ns(1), Some(8192));
    assert_eq!(timer::timeout_ns(14), Some(67_108_864));
    assert_eq!(timer::timeout_ns(31), Some(4096 << 31));
}
