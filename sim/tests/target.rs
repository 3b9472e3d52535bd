//! A target in the room: its board at the wire, a port at the other end.

use sim::{
    room::Room,
    target::Target,
    wire::{self, Action, Frame, Rule, Side, gmii},
};
use std::net::Ipv4Addr;

const OWN: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
const MS: u64 = 1_000_000_000;

fn question(of: Ipv4Addr) -> Vec<u8> {
    let [own, to] = [Ipv4Addr::new(10, 0, 0, 2), of].map(|ip| ip.octets());
    [&[0xff; 6][..], &OWN, &[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &OWN, &own, &[0; 6], &to].concat()
}

/// Asks who has the target's address; the answer, if it comes within a millisecond.
fn ask(room: &mut Room) -> Option<Frame> {
    let ip = room.target().unwrap().ip();
    room.arrive(&question(ip)).unwrap();
    let mut left = vec![];
    let limit = room.now() + MS;
    room.run_until(limit, |room| {
        left = room.take_departed();
        !left.is_empty()
    })
    .unwrap();
    left.pop()
}

#[test]
fn a_target_answers_at_the_rate_of_its_line_sleeps_when_all_is_quiet_and_wakes_for_a_frame() {
    let target = Target::new(0b1100_0111, None).unwrap();
    // the upper two switches are no part of the addresses
    assert_eq!((target.mac(), target.ip()), ([2, 0x56, 0x45, 0x52, 0x42, 7], Ipv4Addr::new(10, 0, 0, 71)));
    let mut room = Room::of_target(target, wire::Config::default(), 1);
    room.open_port();
    let answer = ask(&mut room).expect("an answer");
    assert!(answer.fcs_is_good());
    assert_eq!((&answer.bytes[..6], &answer.bytes[6..12]), (&OWN[..], &[2, 0x56, 0x45, 0x52, 0x42, 7][..]));
    assert_eq!(answer.bytes[12..22], [8, 6, 0, 1, 8, 0, 6, 4, 0, 2]);
    assert_eq!(answer.bytes[28..32], [10, 0, 0, 71]);
    assert_eq!((answer.bytes.len(), answer.end - answer.start), (64, 72 * gmii::BYTE));

    // its limit on control requests has run full: 17 times 65536 clocks of 78.125 MHz, 14.3 ms
    assert!(!room.is_quiet());
    assert!(room.run_until_idle(room.now() + 20 * MS).unwrap() && room.is_quiet());
    let (slept, clocks) = (room.now(), room.target().unwrap().clocks());
    assert_eq!(slept / MS, 14, "{slept}");
    // nothing is stepped, and what was lost does not wake it
    room.change_wire(|wire, _| wire.script(Side::B, Rule::nth(2, Action::Drop)));
    assert_eq!(ask(&mut room), None);
    room.run_for(1000 * MS).unwrap();
    assert_eq!(room.target().unwrap().clocks(), clocks);
    assert!(ask(&mut room).is_some());
    assert_eq!(room.target().unwrap().take_violations(), [""; 0]);
}
