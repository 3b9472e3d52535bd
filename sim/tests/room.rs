//! Card and room on a stand-in for the RTL: streams, time, sleep, resets, determinism.

mod common;

use common::{captures, frame, model};
use pcie_sim::{Event, Permissions, SparseMemory};
use sim::{
    room::{Room, RoomConfig},
    wire::{self, Action, Rule, Side},
};
use std::{path::PathBuf, sync::Arc};

const IOVA: u64 = 0x1_2345_6000;
const MS: u64 = 1_000_000_000;

/// So many stand-in cards, running, bus masters, with a page at [`IOVA`] each.
fn room(cards: usize, seed: u64) -> (Room, Vec<Arc<SparseMemory>>) {
    let mut room = Room::new(&model(false), RoomConfig::example(cards, seed)).unwrap();
    room.power_on().unwrap();
    let memories = (0..cards).map(|card| prepare(&mut room, card)).collect();
    (room, memories)
}

fn prepare(room: &mut Room, card: usize) -> Arc<SparseMemory> {
    let memory = Arc::new(SparseMemory::new());
    room.host(card, |root, now| {
        root.enumerate(now, &pcie_sim::config::Enumeration { bus_master: true, ..Default::default() });
        root.memory_mut().map(IOVA, 4096, Permissions::BOTH, memory.clone(), 0).unwrap();
    });
    write(room, card, 0x10, IOVA as u32);
    write(room, card, 0x14, (IOVA >> 32) as u32);
    memory
}

fn write(room: &mut Room, card: usize, offset: u64, value: u32) {
    room.host(card, |root, now| root.mmio_write(now, 0, offset, &value.to_le_bytes()));
}

fn read(room: &mut Room, card: usize, offset: u64) -> u32 {
    let token = room.host(card, |root, now| root.mmio_read(now, 0, offset, 4));
    let limit = room.now() + MS;
    let mut result = None;
    room.run_until(limit, |room| {
        result = room.host(card, |root, _| root.take_read(token));
        result.is_some()
    })
    .unwrap();
    u32::from_le_bytes(result.expect("an answer").expect("data").try_into().unwrap())
}

/// No rule of PCI Express, of a stream or of the line was broken.
fn lawful(room: &mut Room) {
    for card in 0..room.cards().len() {
        let found = room.host(card, |root, _| root.take_violations());
        assert!(found.is_empty(), "{found:?}");
        assert_eq!(room.take_violations(card), []);
    }
}

#[test]
fn registers_are_written_and_read_through_the_beats() {
    let (mut room, _) = room(2, 1);
    for card in 0..2 {
        assert_eq!(read(&mut room, card, 0x10), IOVA as u32);
    }
    let token = room.host(0, |root, now| root.mmio_read(now, 0, 0x10, 8));
    room.run_for(10_000_000).unwrap();
    let data = room.host(0, |root, _| root.take_read(token)).unwrap().unwrap();
    assert_eq!(data, IOVA.to_le_bytes());
    lawful(&mut room);
}

#[test]
fn a_write_reaches_memory_and_a_read_brings_all_of_it() {
    let (mut room, memory) = room(1, 1);
    write(&mut room, 0, 0x18, 0xdead_beef);
    assert!(room.run_until_idle(room.now() + MS).unwrap());
    assert_eq!(memory[0].get(0, 4), 0xdead_beefu32.to_le_bytes());
    for i in 0..16u32 {
        memory[0].put(u64::from(i) * 4, &(1u32 << i).to_le_bytes());
    }
    write(&mut room, 0, 0x1c, 0);
    assert!(room.run_until_idle(room.now() + MS).unwrap());
    assert_eq!((read(&mut room, 0, 0x20), read(&mut room, 0, 0x24)), (0xffff, 16));
    lawful(&mut room);
}

#[test]
fn an_access_outside_the_mapping_is_an_iommu_fault_and_nothing_else() {
    let (mut room, _) = room(1, 1);
    room.host(0, |root, _| root.memory_mut().unmap(IOVA, 4096)).unwrap();
    write(&mut room, 0, 0x18, 1);
    room.run_until_idle(room.now() + MS).unwrap();
    let events = room.host(0, |root, _| root.take_events());
    assert!(matches!(events[..], [Event::WriteFault { address: IOVA, .. }]), "{events:?}");
    lawful(&mut room);
}

#[test]
fn a_frame_crosses_the_wire_both_ways_with_the_wires_delay() {
    let (mut room, _) = room(2, 1);
    room.remember_frames();
    for from in 0..2 {
        let start = room.now();
        write(&mut room, from, 0x28, 1);
        assert!(room.run_until_idle(room.now() + MS).unwrap());
        let sight = room.sights().last().unwrap().clone();
        assert_eq!((sight.from, &sight.frame.bytes[..]), (Side::BOTH[from], &frame()[..]));
        assert!(sight.frame.start > start);
        assert_eq!(read(&mut room, 1 - from, 0x2c), 1);
    }
    lawful(&mut room);
}

#[test]
fn a_dropped_frame_is_seen_at_its_sender_alone() {
    let (mut room, _) = room(2, 1);
    let path = captures().join("standin_dropped_frame.pcapng");
    room.capture(&path).unwrap();
    room.change_wire(|wire, _| wire.script(Side::A, Rule::nth(1, Action::Drop)));
    write(&mut room, 0, 0x28, 1);
    room.run_until_idle(room.now() + MS).unwrap();
    assert_eq!(read(&mut room, 1, 0x2c), 0);
    room.finish().unwrap();
    let text = std::fs::read(path).unwrap();
    assert!(text.windows(7).any(|part| part == b"dropped"));
}

#[test]
fn a_quiet_room_jumps_to_its_deadline_and_the_deadline_is_exact() {
    let (mut room, memory) = room(2, 1);
    // 16 ms ahead: 4 million clocks that nobody evaluates.
    let due = room.now() / 4000 + 4_000_000;
    write(&mut room, 0, 0x38, 7);
    write(&mut room, 0, 0x34, due as u32);
    let before = room.cards()[0].clocks();
    assert!(!room.run_until_idle((due - 1) * 4000).unwrap());
    assert_eq!(memory[0].get(0, 4), [0; 4]);
    assert!(room.run_until_idle(due * 4000 + 3_000_000).unwrap());
    assert_eq!(memory[0].get(0, 4), [7, 0, 0, 0]);
    let spent = room.cards()[0].clocks() - before;
    assert!(spent < 2000, "{spent} clocks");
    // `now` was carried over the jump.
    let now = read(&mut room, 0, 0x30);
    assert!(u64::from(now).abs_diff(room.now() / 4000) < 1000, "{now}");
    lawful(&mut room);
}

#[test]
fn a_function_level_reset_ends_in_a_card_that_knows_nothing() {
    let (mut room, _) = room(1, 1);
    assert_eq!(read(&mut room, 0, 0x10), IOVA as u32);
    room.host(0, |root, now| root.config_write(now, 0x69, &[0x80]));
    let limit = room.now() + 10 * MS;
    let mut events = Vec::new();
    room.run_until(limit, |room| {
        events.extend(room.host(0, |root, _| root.take_events()));
        events.iter().any(|event| matches!(event, Event::ResetDone { .. }))
    })
    .unwrap();
    assert!(matches!(events[..], [Event::ResetStarted { .. }, Event::ResetDone { .. }]), "{events:?}");
    room.host(0, |root, now| root.enumerate(now, &Default::default()));
    assert_eq!(read(&mut room, 0, 0x10), 0);
    lawful(&mut room);
}

#[test]
fn a_host_that_polls_in_time_sees_the_same_as_one_that_does_not() {
    // Looking costs cycles, not truth: a read every microsecond keeps the card awake.
    let (mut room, memory) = room(1, 1);
    let due = room.now() / 4000 + 10_000;
    write(&mut room, 0, 0x38, 9);
    write(&mut room, 0, 0x34, due as u32);
    while room.now() < due * 4000 - 2_000_000 {
        read(&mut room, 0, 0x30);
        assert_eq!(memory[0].get(0, 4), [0; 4]);
    }
    room.run_until_idle(room.now() + MS).unwrap();
    assert_eq!(memory[0].get(0, 4), [9, 0, 0, 0]);
}

/// Everything that a run with this seed leaves behind.
fn traces(seed: u64, name: &str) -> (Vec<u8>, String, u64) {
    let mut config = RoomConfig::example(2, seed);
    config.wire.faults = [wire::Faults { loss: 0.2, duplicate: 0.2, reorder: 0.2, ..Default::default() }; 2];
    let mut room = Room::new(&model(false), config).unwrap();
    let (pcap, tlps) = (captures().join(format!("{name}.pcapng")), captures().join(format!("{name}.csv")));
    room.capture(&pcap).unwrap();
    room.log_tlps(0, &tlps).unwrap();
    room.power_on().unwrap();
    prepare(&mut room, 0);
    prepare(&mut room, 1);
    for i in 0..40 {
        write(&mut room, i % 2, 0x28, 1);
        write(&mut room, i % 2, 0x1c, 1);
        read(&mut room, i % 2, 0x2c);
    }
    room.run_until_idle(room.now() + MS).unwrap();
    room.finish().unwrap();
    (std::fs::read(pcap).unwrap(), std::fs::read_to_string(tlps).unwrap(), room.now())
}

#[test]
fn the_same_seed_gives_the_same_bytes_at_the_same_times() {
    let one = traces(5, "standin_seed_5");
    assert!(one.0.len() > 4000 && one.1.lines().count() > 100);
    assert!(one == traces(5, "standin_seed_5_again"));
    assert!(one.0 != traces(6, "standin_seed_6").0);
}

#[test]
fn waves_are_written_when_asked_for() {
    let mut room = Room::new(&model(true), RoomConfig::example(1, 1)).unwrap();
    let path: PathBuf = captures().join("standin.fst");
    room.trace(0, &path).unwrap();
    room.power_on().unwrap();
    room.finish().unwrap();
    drop(room);
    assert!(std::fs::metadata(path).unwrap().len() > 500);
    assert!(Room::new(&model(false), RoomConfig::example(3, 1)).is_err());
}
