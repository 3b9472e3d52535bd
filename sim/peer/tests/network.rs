//! What stands around the transport: IPv4 and IPv6, VLAN tags, traffic class, hop limit, flow label, migration bit.

mod common;

use std::net::{IpAddr, Ipv6Addr};

use common::*;
use contract::wire::udp_source_port;
use contract::{Opcode, Reject};
use peer::{Address, Endpoint, Error, Packet, QpParams, SendOp, SendWr, Vlan};

const A6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xa);
const B6: Ipv6Addr = Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 0xb);

/// Both ends have an IPv6 address beside the IPv4 one; the connection is between the former.
fn ipv6(adjust: impl Fn(&mut QpParams)) -> Pair {
    let mut pair = Pair::open(|_, _| {});
    let (qa, qb) = (pair.qa, pair.qb);
    for (side, qpn, own, far, mac, remote) in
        [(A, qa, A6, B6, 0x0200_0000_000b, qb), (B, qb, B6, A6, 0x0200_0000_000a, qa)]
    {
        let mut params = QpParams::to(Address { mac, ip: far.into(), qpn: remote });
        params.access = PEERS;
        adjust(&mut params);
        let end = pair.end(side);
        end.modify(qpn, contract::QpState::Reset).expect("RESET");
        end.add_ip(Ipv6Addr::LOCALHOST.into());
        end.add_ip(own.into());
        params.local_ip = Some(own.into());
        end.connect(qpn, params).expect("connect");
    }
    pair
}

/// Every kind of request and response once.
fn traffic(pair: &mut Pair) {
    let key = pair.shared(0x1000, pattern(4096));
    for wr_id in 0..3 {
        pair.recv(wr_id, 4096);
    }
    pair.send(1, pattern(2500));
    pair.write(2, key, 0x1001, pattern(100));
    let op = SendOp::Write { va: 0x1000, rkey: key, imm: Some(7) };
    pair.post(SendWr::new(3, op, pattern(1500)));
    pair.read(4, key, 0x1003, 3000);
    pair.fetch_add(5, key, 0x1008, 1);
    // Fenced, or the key would be gone before the READ's last packet leaves.
    let op = SendOp::SendInv { rkey: key };
    pair.post(SendWr { fence: true, ..SendWr::new(6, op, pattern(3)) });
    pair.run_clean();
    assert_eq!(pair.ends(A), (1..=6).map(|n| (n, OK)).collect::<Vec<_>>());
    assert_eq!(pair.completions(B).len(), 3);
}

#[test]
fn all_of_it_works_over_ipv6() {
    let mut pair = ipv6(|params| {
        params.tos = 0x6a;
        params.ttl = 3;
        params.flow_label = 0x12345;
    });
    traffic(&mut pair);
    for seen in &pair.seen {
        let ip = seen.packet.ipv6.expect("an IPv6 packet");
        assert_eq!((ip.version, ip.dscp, ip.ecn, ip.hop_limit, ip.next_header), (6, 0x1a, 2, 3, 17));
        assert_eq!((ip.flow_label, seen.packet.udp.source_port), (0x12345, 0xe341));
        assert_eq!(seen.packet.udp.checksum, 0);
        let (own, far) = if seen.from == A { (A6, B6) } else { (B6, A6) };
        assert_eq!((seen.packet.source(), seen.packet.destination()), (own.into(), far.into()));
        let bytes = seen.packet.build();
        assert_eq!(bytes[12..15], [0x86, 0xdd, 0x66]);
        assert_eq!(usize::from(ip.payload_length), bytes.len() - 54);
    }
}

#[test]
fn the_source_port_follows_from_the_flow_label_or_from_both_queue_pairs() {
    for (label, chosen, expected) in [
        (0, None, udp_source_port(0, 0x12, 0x11)),
        (0x12345, None, 0xe341),
        (0xf_ffff, None, udp_source_port(0xf_ffff, 0, 0)),
        (0x12345, Some(7), 7),
    ] {
        let mut pair = Pair::open(|_, params| {
            params.flow_label = label;
            params.udp_source_port = chosen;
        });
        traffic(&mut pair);
        assert!(pair.seen.iter().all(|seen| seen.packet.udp.source_port == expected));
    }
}

#[test]
fn a_tagged_connection_tags_everything_and_hears_only_its_vlan() {
    let vlan = |id, priority| Some(Vlan { id, priority });
    for tag in [vlan(5, 3), vlan(0, 6), vlan(4094, 7), None] {
        let mut pair = Pair::open(|_, params| params.vlan = tag);
        traffic(&mut pair);
        let id = tag.map_or(0, |vlan| vlan.id);
        for seen in &pair.seen {
            let found = seen.packet.vlan.map(|vlan| Vlan { id: vlan.vlan, priority: vlan.priority });
            assert_eq!(found, tag);
            let bytes = seen.packet.build();
            match tag {
                Some(Vlan { priority, .. }) => {
                    let control = u16::from(priority) << 13 | id;
                    assert_eq!(bytes[12..14], [0x81, 0]);
                    assert_eq!(bytes[14..16], control.to_be_bytes());
                    assert_eq!(bytes[16..18], [8, 0]);
                }
                None => assert_eq!(bytes[12..14], [8, 0]),
            }
        }
        // A priority tag is no VLAN; another priority is no other VLAN.
        pair.recv(9, 64);
        let psn = pair.packets(A).last().expect("a packet").bth.psn + 1;
        let mut packet = pair.packets(A)[0].clone();
        packet.bth.opcode = Opcode::RcSendOnly.code();
        packet.bth.psn = psn;
        packet.payload = pattern(8);
        for (other, reject) in [(id ^ 1, Some(Reject::WrongAddress)), (id, None)] {
            let mut tagged = packet.clone();
            tagged.ethernet.ethertype = 0x8100;
            tagged.vlan =
                Some(contract::VlanTag { priority: 1, drop_eligible: true, vlan: other, ethertype: 0x0800 });
            assert_eq!(pair.ask(&tagged).0, reject);
        }
    }
    // Over IPv6 too.
    let mut pair = ipv6(|params| params.vlan = vlan(77, 2));
    traffic(&mut pair);
    assert_eq!(pair.packets(B)[0].build()[12..18], [0x81, 0, 0x40, 77, 0x86, 0xdd]);
}

#[test]
fn what_is_not_for_this_ipv6_connection_is_dropped_in_silence() {
    let mut pair = ipv6(|_| {});
    pair.recv(1, 64);
    pair.send(1, pattern(8));
    let good = pair.sent().remove(0);
    type Change = fn(&mut Packet);
    fn ip(packet: &mut Packet) -> &mut contract::Ipv6Header {
        packet.ipv6.as_mut().expect("an IPv6 packet")
    }
    let changes: [(Reject, Change); 8] = [
        (Reject::BadIpHeader, |p| ip(p).version = 4),
        (Reject::NotRoce, |p| ip(p).next_header = 6),
        (Reject::NotRoce, |p| ip(p).next_header = 0),
        (Reject::NotRoce, |p| p.udp.destination_port = 4790),
        (Reject::NotRoce, |p| p.ethernet.ethertype = 0x88cc),
        (Reject::WrongAddress, |p| ip(p).source ^= 1),
        (Reject::WrongAddress, |p| ip(p).destination ^= 1),
        // An address of the port, but not of this connection.
        (Reject::WrongAddress, |p| ip(p).destination = Ipv6Addr::LOCALHOST.into()),
    ];
    for (reject, change) in changes {
        let mut bad = good.clone();
        change(&mut bad);
        assert_eq!(pair.ask(&bad), (Some(reject), vec![]));
    }
    let frame = good.build();
    for (byte, bits, reject) in [
        (18, 1, Reject::BadIpHeader),
        (19, 0x30, Reject::BadUdpLength),
        (19, 0x22, Reject::Runt),
        (22, 1, Reject::BadIcrc),
        (59, 1, Reject::BadUdpLength),
        (59, 0x20, Reject::BadUdpLength),
        (70, 1, Reject::BadIcrc),
    ] {
        let mut bad = frame.clone();
        bad[byte] ^= bits;
        assert_eq!(pair.b.receive(0, &bad), Some(reject), "byte {byte}");
    }
    for length in 0..frame.len() {
        assert!(pair.b.receive(0, &frame[..length]).is_some(), "{length} bytes");
    }
    assert_eq!(pair.b.poll_transmit(0), None);
    // Routers change hop limit, traffic class and flow label; hosts accept a hop limit of 1, any checksum, padding.
    let mut changed = good.clone();
    ip(&mut changed).hop_limit = 1;
    ip(&mut changed).ecn = 3;
    ip(&mut changed).flow_label = 0xf_ffff;
    changed.udp.checksum = 0x1234;
    let mut padded = changed.build();
    padded.extend([0; 7]);
    assert_eq!(pair.b.receive(0, &padded), None);
    assert_eq!(pair.completions(B)[0].data, pattern(8));
}

#[test]
fn either_migration_bit_any_udp_checksum_and_a_ttl_of_one_are_heard() {
    for mig_req in [false, true] {
        let mut pair = Pair::open(|_, params| {
            params.tuning.mig_req = mig_req;
            params.ttl = 1;
        });
        traffic(&mut pair);
        assert!(pair.seen.iter().all(|seen| seen.packet.bth.mig_req == mig_req));
        assert!(pair.seen.iter().all(|seen| seen.packet.ip.ttl == 1));
        // The other end's bit does not matter, nor the checksum: none, right, wrong.
        for checksum in [0, 0x1234, 0xffff] {
            pair.recv(9, 64);
            pair.send(9, pattern(8));
            let mut packet = pair.sent().remove(0);
            packet.bth.mig_req = !mig_req;
            packet.udp.checksum = checksum;
            let (reject, answers) = pair.ask(&packet);
            assert_eq!((reject, answers.len()), (None, 1));
        }
    }
}

#[test]
fn a_path_needs_an_address_of_its_family_and_fields_that_fit() {
    let mut end = Endpoint::new(1, [10, 0, 0, 1].into());
    let qpn = end.create_qp(1);
    let to = |ip: IpAddr| QpParams::to(Address { mac: 2, ip, qpn: 3 });
    let v4 = to([10, 0, 0, 2].into());
    let v6 = to(B6.into());
    assert_eq!(end.connect(qpn, v6), Err(Error::NoAddress { qpn, remote: B6.into() }));
    let foreign = QpParams { local_ip: Some([10, 0, 0, 9].into()), ..v4 };
    assert!(matches!(end.connect(qpn, foreign), Err(Error::NoAddress { .. })));
    for (bad, parameter, limit) in [
        (QpParams { flow_label: 1 << 20, ..v4 }, "flow_label", 0xf_ffff),
        (QpParams { vlan: Some(Vlan { id: 0x1000, priority: 0 }), ..v4 }, "VLAN", 0xfff),
        (QpParams { vlan: Some(Vlan { id: 0, priority: 8 }), ..v4 }, "VLAN priority", 7),
        (QpParams { max_dest_rd_atomic: 17, ..v4 }, "max_dest_rd_atomic", 16),
        (QpParams { access: 16, ..v4 }, "access", 15),
    ] {
        let value = limit + 1;
        assert_eq!(end.connect(qpn, bad), Err(Error::BadParameter { qpn, parameter, value, limit }));
    }
    end.add_ip(A6.into());
    end.connect(qpn, v6).expect("now there is one");
    assert_eq!(end.address(qpn).ip, IpAddr::from([10, 0, 0, 1]));
}
