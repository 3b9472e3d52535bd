//! schedule alone, then schedule, fetch and segment with their state memories.
//!
//! Requirements: CARD CMD REQ RESP

mod txkit;

use contract::{QpQueues, QpRights, QpState, SendWqe};
use hdl::{Bits, Bundle, Interpreter, Module, Ports, Sig, Stream, elaborate, instance};
use nic::Config;
use nic::flow::{ReadData, ReadDone, ReadRequest, WakePulse};
use nic::qp::{self, State, StateShape, StateWrite};
use nic::tx::fetch::Fetch;
use nic::tx::schedule::Schedule;
use nic::tx::segment::Segment;
use std::collections::VecDeque;
use txkit::{Choices, Placed, Requester, lint, reset, wide};

const WAKES: [&str; 5] = ["doorbell", "fetch", "respond", "acknowledge", "command"];

fn schedule() -> Interpreter {
    schedule_of(64)
}

/// A stage whose RAMs are swept, if it has any.
fn schedule_of(qps: u32) -> Interpreter {
    schedule_at(Config { qps, ..Config::small() })
}

fn schedule_at(c: Config) -> Interpreter {
    let qps = c.qps;
    let mut s = Interpreter::new(&elaborate(&Schedule(c)).unwrap());
    reset(&mut s);
    s.poke("room", 1);
    s.poke("turn_ready", 1);
    (0..qps).for_each(|_| s.clock());
    s
}

fn wake(s: &mut Interpreter, source: &str, qp: Option<u64>) {
    s.poke(&format!("{source}_valid"), u64::from(qp.is_some()));
    s.poke(&format!("{source}_qp"), qp.unwrap_or(0));
}

/// Clocks until a turn moves; its QP.
fn turn(s: &mut Interpreter, patience: u32) -> Option<u64> {
    for _ in 0..patience {
        let moves = s.peek("turn_valid") == 1 && s.peek("turn_ready") == 1;
        let qp = s.peek("turn_qp");
        s.clock();
        for source in WAKES {
            wake(s, source, None);
        }
        if moves {
            return Some(qp);
        }
    }
    None
}

fn done(s: &mut Interpreter, qp: u64, again: bool) {
    s.poke("done_valid", 1);
    s.poke("done_qp", qp);
    s.poke("done_again", u64::from(again));
    assert_eq!(s.peek("done_ready"), 1);
    s.clock();
    s.poke("done_valid", 0);
}

#[test]
fn any_of_five_wakes_gives_one_turn_two_clocks_later_and_a_doorbell_one() {
    for source in WAKES {
        for (qps, qp) in [(64, 0), (64, 1), (64, 62), (64, 63), (256, 0), (256, 255)] {
            let mut s = schedule_of(qps);
            assert_eq!(s.peek("idle"), 1);
            wake(&mut s, source, Some(qp));
            for clock in 0..if source == "doorbell" { 1 } else { 2 } {
                assert_eq!(s.peek("turn_valid"), 0, "{source} {qp} clock {clock}");
                s.clock();
                wake(&mut s, source, None);
            }
            assert_eq!(turn(&mut s, 1), Some(qp));
            assert_eq!(turn(&mut s, 20), None);
            assert_eq!(s.peek("idle"), 0, "its turn is under way");
            done(&mut s, qp, false);
            assert_eq!(turn(&mut s, 20), None);
            assert_eq!(s.peek("idle"), 1);
        }
    }
}

#[test]
fn five_wakes_in_one_clock_all_count() {
    let mut s = schedule();
    for (i, source) in WAKES.into_iter().enumerate() {
        wake(&mut s, source, Some(10 + i as u64));
    }
    let turns: Vec<_> = (0..5).filter_map(|_| turn(&mut s, 10)).collect();
    assert_eq!(turns, [10, 11, 12, 13, 14]);
}

#[test]
fn a_busy_qp_waits_for_its_end_and_again_brings_it_back() {
    let mut s = schedule();
    wake(&mut s, "doorbell", Some(5));
    assert_eq!(turn(&mut s, 10), Some(5));
    wake(&mut s, "acknowledge", Some(5));
    assert_eq!(turn(&mut s, 20), None);
    done(&mut s, 5, false);
    assert_eq!(turn(&mut s, 10), Some(5), "the wake during the turn was kept");
    done(&mut s, 5, true);
    assert_eq!(turn(&mut s, 10), Some(5));
    done(&mut s, 5, false);
    assert_eq!(turn(&mut s, 20), None);
}

#[test]
fn a_wake_in_the_very_clock_of_the_turn_makes_another() {
    let mut s = schedule();
    // clock 0 wakes, clock 1 gives
    for clock in 0..3 {
        wake(&mut s, "acknowledge", (clock < 2).then_some(9));
        assert_eq!(s.peek("turn_valid"), u64::from(clock == 2));
        s.clock();
    }
    wake(&mut s, "acknowledge", None);
    done(&mut s, 9, false);
    assert_eq!(turn(&mut s, 10), Some(9));
}

#[test]
fn a_doorbell_is_a_turn_at_once_only_if_nobody_else_and_nothing_stands_against_it() {
    let clocks = |prepare: &dyn Fn(&mut Interpreter)| {
        let mut s = schedule();
        prepare(&mut s);
        wake(&mut s, "doorbell", Some(9));
        s.clock();
        wake(&mut s, "doorbell", None);
        s.poke("fence_valid", 0);
        s.poke("room", 1);
        (s.peek("turn_valid"), s.peek("turn_qp"), s.peek("turn_fence"), turn(&mut s, 1), turn(&mut s, 2))
    };
    assert_eq!(clocks(&|_| ()), (1, 9, 0, Some(9), None));
    assert_eq!(clocks(&|s| s.poke("room", 0)).0, 0, "no room");
    let fence = clocks(&|s| s.poke("fence_valid", 1));
    assert_eq!((fence.0, fence.2, fence.4), (1, 1, Some(9)), "behind the fence");
    let other = clocks(&|s| {
        wake(s, "acknowledge", Some(4));
        s.clock();
        wake(s, "acknowledge", None);
    });
    assert_eq!(other, (1, 4, 0, Some(4), Some(9)), "behind who waits");
    let busy = clocks(&|s| {
        wake(s, "acknowledge", Some(9));
        assert_eq!(turn(s, 5), Some(9));
    });
    assert_eq!((busy.0, busy.3, busy.4), (0, None, None), "its turn is under way");
}

#[test]
fn everybody_gets_the_same_number_of_turns() {
    let mut s = schedule();
    s.poke("turn_ready", 0);
    for qp in 0..64 {
        wake(&mut s, "doorbell", Some(qp));
        s.clock();
    }
    wake(&mut s, "doorbell", None);
    s.poke("turn_ready", 1);
    let mut counts = [0u32; 64];
    let mut running: VecDeque<(u64, u32)> = VecDeque::new();
    for clock in 0..4000u32 {
        s.poke("done_valid", 0);
        if s.peek("turn_valid") == 1 {
            let qp = s.peek("turn_qp");
            counts[qp as usize] += 1;
            running.push_back((qp, clock + 12));
        }
        if let Some((qp, _)) = running.front().copied().filter(|r| r.1 <= clock) {
            running.pop_front();
            s.poke("done_valid", 1);
            s.poke("done_qp", qp);
            s.poke("done_again", 1);
        }
        s.clock();
    }
    let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
    // those who come again share with those who rang first
    assert!(most - least <= 4 && *least >= 30, "{counts:?}");
}

#[test]
fn without_room_only_those_who_owe_a_response_get_turns() {
    let mut s = schedule();
    s.poke("room", 0);
    wake(&mut s, "doorbell", Some(1));
    wake(&mut s, "respond", Some(2));
    assert_eq!(turn(&mut s, 10), Some(2));
    done(&mut s, 2, true);
    assert_eq!(turn(&mut s, 20), None, "its own data waits as well");
    s.poke("room", 1);
    // the list of those who come again is behind that of respond, that of doorbells only by going round
    assert_eq!([turn(&mut s, 10), turn(&mut s, 10)], [Some(2), Some(1)]);
}

#[test]
fn who_owes_more_than_a_turn_could_send_needs_no_room_either_and_is_listed_once() {
    let mut s = schedule();
    s.poke("room", 0);
    wake(&mut s, "respond", Some(2));
    assert_eq!(turn(&mut s, 10), Some(2));
    // more is owed, and more comes meanwhile
    s.poke("done_owes", 1);
    wake(&mut s, "respond", Some(2));
    done(&mut s, 2, true);
    wake(&mut s, "respond", None);
    s.poke("done_owes", 0);
    assert_eq!(turn(&mut s, 10), Some(2));
    done(&mut s, 2, false);
    assert_eq!(turn(&mut s, 20), None, "it was on one list");
}

#[test]
fn the_fence_leaves_behind_the_turns_given_and_before_the_others() {
    let mut s = schedule();
    s.poke("turn_ready", 0);
    for qp in [1, 2, 3] {
        wake(&mut s, "doorbell", Some(qp));
        s.clock();
    }
    wake(&mut s, "doorbell", None);
    for _ in 0..10 {
        s.clock();
    }
    // one turn given
    s.poke("fence_valid", 1);
    assert_eq!(s.peek("fence_ready"), 0);
    s.poke("turn_ready", 1);
    let mut order = vec![];
    for _ in 0..20 {
        if s.peek("turn_valid") == 1 {
            order.push((s.peek("turn_fence"), s.peek("turn_qp")));
        }
        let taken = s.peek("fence_ready") == 1;
        s.clock();
        if taken {
            s.poke("fence_valid", 0);
        }
    }
    assert_eq!(order.iter().map(|o| o.0).collect::<Vec<_>>(), [0, 1, 0, 0]);
    assert_eq!((order[0].1, order[2].1, order[3].1), (1, 2, 3));
    for qp in [1, 2, 3] {
        done(&mut s, qp, false);
    }
    assert_eq!(s.peek("idle"), 1, "the fence makes nobody busy");
}

#[test]
fn a_list_has_a_place_for_every_qp_and_whoever_is_busy_holds_nobody_up() {
    let mut s = schedule();
    s.poke("turn_ready", 0);
    wake(&mut s, "command", Some(40));
    s.clock();
    wake(&mut s, "command", None);
    (0..4).for_each(|_| s.clock());
    // QP 40's turn stands; now all are on one list
    for qp in 0..64 {
        wake(&mut s, "acknowledge", Some(qp));
        s.clock();
    }
    wake(&mut s, "acknowledge", None);
    s.poke("turn_ready", 1);
    let mut turns = vec![];
    while let Some(qp) = turn(&mut s, 200) {
        turns.push(qp);
        // every other is woken again while its turn is under way
        wake(&mut s, "acknowledge", (qp % 2 == 0).then_some(qp));
        s.clock();
        wake(&mut s, "acknowledge", None);
    }
    turns[1..].sort_unstable();
    let others: Vec<u64> = (0..64).filter(|qp| *qp != 40).collect();
    assert_eq!((turns[0], &turns[1..]), (40, &others[..]), "each has one turn at a time");
    // their ends let those have one more
    s.poke("turn_ready", 0);
    for qp in 0..64 {
        done(&mut s, qp, false);
    }
    s.poke("turn_ready", 1);
    let mut turns: Vec<u64> = std::iter::from_fn(|| turn(&mut s, 200)).collect();
    turns.sort_unstable();
    assert_eq!(turns, (0..64).step_by(2).collect::<Vec<_>>());
}

#[test]
fn no_wake_is_lost_and_no_turn_is_invented() {
    for seed in 1..=12u64 {
        let mut pick = Choices::new(seed);
        let c = Config { qps: if seed % 2 == 0 { 64 } else { 256 }, ..Config::small() };
        let mut s = schedule_at(if seed > 8 { c.unhurried() } else { c });
        let (mut wakes, mut turns) = (0u64, 0u64);
        // clock of the last wake not yet followed by a turn
        let mut waiting = [None::<u64>; 64];
        let mut busy = [false; 64];
        let mut running: Vec<u64> = vec![];
        let spread = 1 + pick.below(64);
        for clock in 0..4000u64 {
            let draining = clock >= 3000;
            for source in WAKES {
                let qp = (!draining && pick.chance(6)).then(|| pick.below(spread));
                wake(&mut s, source, qp);
                if let Some(qp) = qp {
                    wakes += 1;
                    waiting[qp as usize] = Some(clock);
                }
            }
            s.poke("turn_ready", u64::from(pick.chance(60)));
            s.poke("room", u64::from(draining || pick.chance(70)));
            let ends = !running.is_empty() && pick.chance(20);
            s.poke("done_valid", u64::from(ends));
            // a turn that moves now reads its words from now on: it answers wakes of earlier clocks
            if s.peek("turn_valid") == 1 && s.peek("turn_ready") == 1 {
                let qp = s.peek("turn_qp") as usize;
                assert!(!busy[qp], "seed {seed}: two turns of QP {qp}");
                busy[qp] = true;
                turns += 1;
                if waiting[qp].is_some_and(|w| w < clock) {
                    waiting[qp] = None;
                }
                running.push(qp as u64);
            }
            if ends {
                let qp = running.swap_remove(pick.below(running.len() as u64) as usize);
                let again = !draining && pick.chance(30);
                s.poke("done_qp", qp);
                s.poke("done_again", u64::from(again));
                busy[qp as usize] = false;
                if again {
                    wakes += 1;
                    waiting[qp as usize] = Some(clock);
                }
            }
            s.clock();
        }
        assert_eq!(waiting, [None; 64], "seed {seed}: a wake without a turn");
        assert!(turns <= wakes, "seed {seed}: {turns} turns for {wakes} wakes");
        assert_eq!(s.peek("idle"), 1, "seed {seed}");
    }
}

#[test]
fn the_emitted_text_is_clean() {
    for c in [Config::small(), wide()] {
        lint(&elaborate(&Schedule(c)).unwrap());
    }
}

/// schedule, fetch, segment and the words they read.
#[derive(Debug)]
struct Front(Config);

#[derive(Ports)]
#[ports(Front)]
struct FrontIo {
    #[input(c.0.clone())]
    doorbell: WakePulse,
    #[input(c.0.clone())]
    respond: WakePulse,
    #[input(c.0.clone())]
    acknowledge: WakePulse,
    #[input(StateShape { address: c.0.qp_bits(), width: 16 })]
    post: StateWrite,
    #[input(StateShape::per_qp::<qp::Requester>(&c.0))]
    requester: StateWrite,
    #[input(StateShape::per_qp::<qp::Placed>(&c.0))]
    placed: StateWrite,
    #[input(StateShape { address: c.0.qp_bits(), width: 256 })]
    rights: StateWrite,
    #[input(StateShape { address: c.0.qp_bits(), width: 256 })]
    queues: StateWrite,
    #[source]
    request: Stream<ReadRequest>,
    #[input(c.0.clone())]
    read_data: ReadData,
    #[input]
    read_done: ReadDone,
    #[source(c.0.clone())]
    data: Stream<nic::flow::Segment>,
    #[source(c.0.clone())]
    control: Stream<nic::flow::PacketFields>,
    #[output]
    retransmit: Sig,
    #[output]
    idle: Sig,
}

impl Module for Front {
    type Io = FrontIo;
    fn name(&self) -> String {
        "front".into()
    }
    fn body(&self, io: &FrontIo) {
        let c = &self.0;
        let schedule = instance("schedule", &Schedule(c.clone()));
        let fetch = instance("fetch", &Fetch(c.clone()));
        let segment = instance("segment", &Segment(c.clone()));
        schedule.doorbell.assign(&io.doorbell);
        schedule.respond.assign(&io.respond);
        schedule.acknowledge.assign(&io.acknowledge);
        schedule.fetch.assign(&fetch.wake);
        schedule.done.take(&segment.done);
        schedule.room.set(segment.room);
        schedule.fence_valid.set(0);
        schedule.command.assign_zero();
        for init in [&fetch.initialise, &segment.initialise] {
            init.valid.set(0);
            init.data.assign_zero();
        }
        fetch.turn.take(&schedule.turn);
        segment.work.take(&fetch.work);
        fetch.inline_index.set(segment.inline_index);
        segment.inline_word.set(fetch.inline_word);
        segment.words.ready.set(1);
        segment.port_mtu.set(4096);
        fetch.pushed.valid.set(0);
        fetch.pushed.data.assign_zero();
        fetch.pushed_word.valid.set(0);
        fetch.pushed_word.data.set(0);
        fetch.pushed_over.set(0);
        fetch.pushed_whole.set(0);
        io.request.take(&fetch.request);
        fetch.read_data.assign(&io.read_data);
        fetch.read_done.assign(&io.read_done);
        io.data.take(&segment.data);
        io.control.take(&segment.control);
        segment.owed_word.set(0);
        segment.outcome_word.set(0);
        segment.executed_word.set(0);
        segment.gone.set(io.data.moves());
        segment.kick.ready.set(1);
        segment.fault.ready.set(1);
        segment.local.ready.set(1);
        segment.event.ready.set(1);
        io.retransmit.set(segment.retransmit);
        io.idle.set(schedule.idle & fetch.idle & segment.idle);
        type Reader = (Sig, Sig);
        let memory = |word: &'static str, width: u32, write: &StateWrite, readers: &[Reader]| {
            let m = instance(word, &State { word, depth: c.qps, width, readers: readers.len() as u32 });
            m.write.assign(write);
            for (i, (address, out)) in readers.iter().enumerate() {
                m.address[i].set(*address);
                out.set(m.word[i]);
            }
        };
        let (f, s) = (fetch.read_qp, segment.read_qp);
        memory("post_sq", 16, &io.post, &[(f, fetch.post_sq_word)]);
        memory("tx", segment.tx_word.width(), &segment.tx_write, &[(f, fetch.tx_word), (s, segment.tx_word)]);
        let readers = [(f, fetch.requester_word), (s, segment.requester_word)];
        memory("requester", segment.requester_word.width(), &io.requester, &readers);
        memory("placed", segment.placed_word.width(), &io.placed, &[(s, segment.placed_word)]);
        memory("rights", 256, &io.rights, &[(f, fetch.rights_word), (s, segment.rights_word)]);
        memory("queues", 256, &io.queues, &[(f, fetch.queues_word), (s, segment.queues_word)]);
    }
}

/// The front with a host, a peer that acknowledges, and per QP a list of messages.
struct World {
    s: Interpreter,
    pick: Choices,
    messages: Vec<Vec<SendWqe>>,
    /// (PSN, WQE, offset, length) as they came.
    packets: Vec<Vec<(u64, u64, u64, u64)>>,
    responses: Vec<Vec<u64>>,
    /// (due clock, address, id, iova, length)
    reads: Vec<(u64, u64, u64, u64, u64)>,
    beats: VecDeque<(u64, u64)>,
    done: VecDeque<u64>,
    clock: u64,
    latency: u64,
    data_ready: u64,
}

const MTU: u64 = 256;

impl World {
    fn new(seed: u64, qps: u64) -> World {
        World::at(Config::small(), seed, qps)
    }

    fn at(c: Config, seed: u64, qps: u64) -> World {
        let mut s = Interpreter::new(&elaborate(&Front(c)).unwrap());
        reset(&mut s);
        s.poke("request_ready", 1);
        s.poke("control_ready", 1);
        for q in 0..qps {
            let rights =
                QpRights { state: QpState::Rts as u8, valid: true, path_mtu: 1, ..QpRights::default() };
            let queues = QpQueues {
                sq_base: q << 32,
                sq_log_depth: 8,
                sq_log_stride: 7,
                record_log_size: 8,
                ..QpQueues::default()
            };
            for (port, bytes) in [("rights", rights.pack()), ("queues", queues.pack())] {
                s.poke(&format!("{port}_enable"), 1);
                s.poke(&format!("{port}_address"), q);
                s.poke_bits(&format!("{port}_data"), &Bits::from_bytes(256, &bytes));
            }
            s.clock();
        }
        s.poke("rights_enable", 0);
        s.poke("queues_enable", 0);
        let n = qps as usize;
        World {
            s,
            pick: Choices::new(seed),
            messages: vec![vec![]; n],
            packets: vec![vec![]; n],
            responses: vec![vec![]; n],
            reads: vec![],
            beats: VecDeque::new(),
            done: VecDeque::new(),
            clock: 0,
            latency: 100,
            data_ready: 100,
        }
    }

    fn post(&mut self, q: usize, length: u64) {
        let index = self.messages[q].len() as u16;
        self.messages[q].push(SendWqe {
            opcode: 2,
            num_sge: 1,
            length: length as u32,
            index,
            ..SendWqe::default()
        });
    }

    fn ring(&mut self, q: usize) {
        self.s.poke("post_enable", 1);
        self.s.poke("post_address", q as u64);
        self.s.poke("post_data", self.messages[q].len() as u64);
        self.s.poke("doorbell_valid", 1);
        self.s.poke("doorbell_qp", q as u64);
        self.step();
    }

    /// Tells the card what the peer has acknowledged: all packets before `una`.
    fn acknowledge(&mut self, q: usize, una: u64, epoch: u64) {
        let (mut first, mut wqe) = (0, 0u64);
        for m in &self.messages[q] {
            let n = u64::from(m.length).div_ceil(MTU).max(1);
            if first + n > una {
                break;
            }
            first += n;
            wqe += 1;
        }
        let word = Requester {
            una_wqe: wqe,
            got_wqe: wqe,
            una_psn: una,
            got_first: first,
            epoch,
            ..Requester::default()
        };
        self.s.poke("requester_enable", 1);
        self.s.poke("requester_address", q as u64);
        self.s.poke_bits("requester_data", &word.pack());
        self.s.poke("acknowledge_valid", 1);
        self.s.poke("acknowledge_qp", q as u64);
        self.step();
    }

    fn owe(&mut self, q: usize, psn: u64, seq: u64) {
        let word = Placed { tail_seq: seq, tail_psn: psn, tail_syndrome: 0x1f, ..Placed::default() };
        self.s.poke("placed_enable", 1);
        self.s.poke("placed_address", q as u64);
        self.s.poke_bits("placed_data", &word.pack());
        self.s.poke("respond_valid", 1);
        self.s.poke("respond_qp", q as u64);
        self.step();
    }

    fn step(&mut self) {
        let ready = self.pick.chance(self.data_ready);
        let s = &mut self.s;
        s.poke("data_ready", u64::from(ready));
        if s.peek("request_valid") == 1 {
            let due = self.clock + self.latency + self.pick.below(1 + self.latency / 2);
            let get = ["address", "id", "iova", "length"].map(|f| s.peek(&format!("request_{f}")));
            self.reads.push((due, get[0], get[1], get[2], get[3]));
        }
        if s.peek("data_valid") == 1 && ready {
            let q = s.peek("data_packet_qp") as usize;
            let p =
                ["packet_psn", "wqe_index", "offset", "packet_length"].map(|f| s.peek(&format!("data_{f}")));
            self.packets[q].push((p[0], p[1], p[2], p[3]));
        }
        if s.peek("control_valid") == 1 {
            let q = s.peek("control_qp") as usize;
            self.responses[q].push(s.peek("control_psn"));
        }
        // one read at a time turns into beats
        if self.beats.is_empty()
            && self.done.is_empty()
            && let Some(i) = self.reads.iter().position(|r| r.0 <= self.clock)
        {
            let (_, address, id, iova, length) = self.reads.swap_remove(i);
            let (q, index) = ((iova >> 32) as usize, (iova & 0xffff_ffff) / 128);
            let mut bytes = self.messages[q][index as usize].pack().to_vec();
            bytes.resize(length as usize, 0);
            for (b, eight) in bytes.chunks(8).enumerate() {
                self.beats.push_back((address + b as u64 * 8, u64::from_le_bytes(eight.try_into().unwrap())));
            }
            self.done.push_back(id);
        }
        let beat = self.beats.pop_front();
        s.poke("read_data_valid", u64::from(beat.is_some()));
        if let Some((address, data)) = beat {
            s.poke("read_data_client", 1);
            s.poke("read_data_address", address);
            s.poke("read_data_data", data);
            s.poke("read_data_lanes", 0xff);
            s.poke("read_done_valid", 0);
        } else {
            let id = self.done.pop_front();
            s.poke("read_done_valid", u64::from(id.is_some()));
            s.poke("read_done_client", 1);
            s.poke("read_done_id", id.unwrap_or(0));
        }
        s.clock();
        for enable in ["post", "requester", "placed"] {
            s.poke(&format!("{enable}_enable"), 0);
        }
        for wake in ["doorbell", "respond", "acknowledge"] {
            s.poke(&format!("{wake}_valid"), 0);
        }
        self.clock += 1;
    }

    fn run(&mut self, clocks: u64) {
        (0..clocks).for_each(|_| self.step());
    }

    /// (PSN, WQE, offset, length) of every packet of all messages.
    fn expected(&self, q: usize) -> Vec<(u64, u64, u64, u64)> {
        let mut psn = 0;
        let mut out = vec![];
        for (i, m) in self.messages[q].iter().enumerate() {
            let length = u64::from(m.length);
            for k in 0..length.div_ceil(MTU).max(1) {
                out.push((psn, i as u64, k * MTU, (length - k * MTU).min(MTU)));
                psn += 1;
            }
        }
        out
    }
}

#[test]
fn doorbells_acknowledgements_and_debts_all_come_to_an_end() {
    for (seed, c) in [(1, Config::small()), (2, Config::small()), (3, Config::small().unhurried())] {
        let mut w = World::at(c, seed, 6);
        w.data_ready = 30;
        let (mut una, mut seq, mut epochs) = ([0u64; 6], [0u64; 6], [0u64; 6]);
        let mut highest = [0u64; 6];
        for _ in 0..500 {
            let q = w.pick.below(6) as usize;
            match w.pick.below(5) {
                0 if w.messages[q].len() < 200 => {
                    for _ in 0..w.pick.below(5) {
                        let length = w.pick.below(900);
                        w.post(q, length);
                    }
                    w.ring(q);
                }
                1 => {
                    highest[q] = w.packets[q].iter().map(|p| p.0 + 1).max().unwrap_or(0);
                    una[q] += w.pick.below(highest[q] - una[q] + 1);
                    epochs[q] += u64::from(w.pick.chance(20));
                    w.acknowledge(q, una[q], epochs[q] & 15);
                }
                2 => {
                    seq[q] += 1;
                    w.owe(q, seq[q] + 1000, seq[q]);
                }
                _ => {
                    let clocks = w.pick.below(60);
                    w.run(clocks);
                }
            }
        }
        w.data_ready = 100;
        w.run(5000);
        for (q, debt) in seq.into_iter().enumerate() {
            let want = w.expected(q);
            // without its repetitions, everything in order and complete
            let mut next = 0;
            for p in &w.packets[q] {
                assert_eq!(*p, want[p.0 as usize], "seed {seed}, QP {q}");
                assert!(p.0 <= next, "seed {seed}, QP {q}: PSN {} before {next}", p.0);
                next = next.max(p.0 + 1);
            }
            assert_eq!(next, want.len() as u64, "seed {seed}, QP {q}: all was sent");
            if debt > 0 {
                assert_eq!(w.responses[q].last(), Some(&(1000 + debt)), "seed {seed}, QP {q}: the last debt");
            }
        }
        assert_eq!(w.s.peek("idle"), 1, "seed {seed}");
        assert!(w.packets.iter().map(Vec::len).sum::<usize>() > 200);
    }
}

#[test]
fn one_qp_and_many_send_at_the_pace_that_the_pages_promise() {
    // a long message: no WQE read between packets
    let mut w = World::new(1, 1);
    w.post(0, 400 * MTU);
    w.ring(0);
    w.run(400);
    let (from, at) = (w.packets[0].len(), w.clock);
    w.run(1200);
    let per_qp = (w.clock - at) as f64 / (w.packets[0].len() - from) as f64;
    // many QPs: the stages overlap
    let mut w = World::new(1, 16);
    for q in 0..16 {
        w.post(q, 400 * MTU);
        w.ring(q);
    }
    w.run(600);
    let count = |w: &World| w.packets.iter().map(Vec::len).sum::<usize>();
    let (from, at) = (count(&w), w.clock);
    w.run(1200);
    let across = (w.clock - at) as f64 / (count(&w) - from) as f64;
    println!("clocks per packet: one QP {per_qp:.2}, 16 QPs {across:.2}");
    assert!(per_qp <= 5.1, "{per_qp}");
    assert!(across <= 4.1, "{across}");
}
