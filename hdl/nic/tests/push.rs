//! doorbell, push and fetch together, by the interpreter: what is pushed, and what is read instead.
//!
//! Requirements: QUE

mod txkit;

use contract::{CqDoorbell, QpQueues, QpRights, QpState, Reject, SendWqe, SqDoorbell, WrOpcode};
use hdl::{Bits, Bundle, Interpreter, Module, Ports, Sig, Stream, elaborate, index_width, instance};
use nic::Config;
use nic::flow::{
    Count, DoorbellWrite, QueueDoorbell, ReadData, ReadDone, ReadRequest, Turn, WakePulse, WorkItem,
};
use nic::qp::{Initialise, StateShape, StateWrite};
use nic::tx::{doorbell::Doorbell, fetch::Fetch, push::Push};
use txkit::{Choices, Requester, Tx, lint, reset, wide};

const PUSH: u64 = 0x800;

#[derive(Debug)]
struct Front(Config);

#[derive(Ports)]
#[ports(Front)]
struct FrontIo {
    #[sink(c.0.clone())]
    write: Stream<DoorbellWrite>,
    #[output(c.0.qp_bits())]
    bell_qp: Sig,
    #[input(256)]
    bell_rights: Sig,
    #[output(StateShape { address: c.0.qp_bits(), width: 16 })]
    post_sq: StateWrite,
    #[output(c.0.clone())]
    bell_wake: WakePulse,
    #[source(c.0.clone())]
    cq: Stream<QueueDoorbell>,
    #[output]
    count: Count,
    #[sink(c.0.clone())]
    turn: Stream<Turn>,
    #[sink(c.0.clone())]
    initialise: Stream<Initialise>,
    #[output(c.0.qp_bits())]
    read_qp: Sig,
    #[input(nic::qp::Tx::total_width(&()))]
    tx_word: Sig,
    #[input(nic::qp::Requester::total_width(&()))]
    requester_word: Sig,
    #[input(16)]
    post_sq_word: Sig,
    #[input(256)]
    rights_word: Sig,
    #[input(256)]
    queues_word: Sig,
    #[source(c.0.clone())]
    work: Stream<WorkItem>,
    #[input(index_width(c.0.wqe_bytes / c.0.data_bytes))]
    inline_index: Sig,
    #[output(c.0.data_bits())]
    inline_word: Sig,
    #[source]
    request: Stream<ReadRequest>,
    #[input(c.0.clone())]
    read_data: ReadData,
    #[input]
    read_done: ReadDone,
    #[output(c.0.clone())]
    wake: WakePulse,
    #[output]
    idle: Sig,
}

impl Module for Front {
    type Io = FrontIo;
    fn name(&self) -> String {
        format!("front_{}", self.0.name)
    }
    fn body(&self, io: &FrontIo) {
        let c = &self.0;
        let bell = instance("doorbell", &Doorbell(c.clone()));
        let push = instance("push", &Push(c.clone()));
        let fetch = instance("fetch", &Fetch(c.clone()));
        bell.write.take(&io.write);
        bell.initialise.valid.set(0);
        bell.initialise.data.assign_zero();
        io.bell_qp.set(bell.read_qp);
        bell.rights_word.set(io.bell_rights);
        io.post_sq.assign(&bell.post_sq);
        io.bell_wake.assign(&bell.wake);
        io.cq.take(&bell.cq);
        bell.eq.ready.set(1);
        io.count.assign(&bell.count);
        push.store.assign(&bell.store);
        push.ring.assign(&bell.push);
        fetch.pushed.take(&push.wqe);
        fetch.pushed_word.take(&push.word);
        fetch.pushed_over.set(push.over);
        fetch.pushed_whole.set(push.whole);
        fetch.turn.take(&io.turn);
        fetch.initialise.take(&io.initialise);
        io.read_qp.set(fetch.read_qp);
        for (to, from) in [
            (fetch.tx_word, io.tx_word),
            (fetch.requester_word, io.requester_word),
            (fetch.post_sq_word, io.post_sq_word),
            (fetch.rights_word, io.rights_word),
            (fetch.queues_word, io.queues_word),
            (fetch.inline_index, io.inline_index),
            (io.inline_word, fetch.inline_word),
        ] {
            to.set(from);
        }
        io.work.take(&fetch.work);
        io.request.take(&fetch.request);
        fetch.read_data.assign(&io.read_data);
        fetch.read_done.assign(&io.read_done);
        io.wake.assign(&fetch.wake);
        io.idle.set(bell.idle & push.idle & fetch.idle);
    }
}

/// QP q belongs to page q / 8; every QP is in RTS with a stride of 256.
struct Bench {
    s: Interpreter,
    tx: Vec<Tx>,
    requester: Vec<Requester>,
    rights: Vec<QpRights>,
    post: Vec<u64>,
    /// (IOVA, id) of every read of a WQE.
    reads: Vec<(u64, u64)>,
    /// Wakes by fetch, and by the doorbell.
    wakes: Vec<u64>,
    bell_wakes: Vec<u64>,
    rejects: Vec<u64>,
    /// (QP, present, first half) of every item.
    items: Vec<(u64, bool, Vec<u8>)>,
    /// Bytes of a word.
    width: usize,
}

/// Words of 8 bytes, and of 64.
fn both() -> [Config; 2] {
    let small = Config::small();
    [small.clone(), Config { name: "broad", data_bytes: 64, ..small }]
}

fn base(q: u64) -> u64 {
    q << 32
}

impl Bench {
    fn new() -> Bench {
        Bench::at(&Config::small())
    }

    fn at(c: &Config) -> Bench {
        let mut s = Interpreter::new(&elaborate(&Front(c.clone())).unwrap());
        reset(&mut s);
        for ready in ["work_ready", "request_ready", "cq_ready"] {
            s.poke(ready, 1);
        }
        let rights =
            |q: u16| QpRights { state: QpState::Rts as u8, valid: true, page: q / 8, ..QpRights::default() };
        let mut b = Bench {
            s,
            tx: vec![Tx::default(); 64],
            requester: vec![Requester::default(); 64],
            rights: (0..64).map(rights).collect(),
            post: vec![0; 64],
            reads: vec![],
            wakes: vec![],
            bell_wakes: vec![],
            rejects: vec![],
            items: vec![],
            width: c.data_bytes as usize,
        };
        // tables are cleared, one line per clock
        (0..70).for_each(|_| b.clock());
        b
    }

    fn clock(&mut self) {
        let s = &mut self.s;
        if s.peek("request_valid") == 1 && s.peek("request_ready") == 1 {
            self.reads.push((s.peek("request_iova"), s.peek("request_id")));
        }
        if s.peek("work_valid") == 1 && s.peek("work_ready") == 1 {
            let wqe = s.peek_bits("work_wqe").to_bytes();
            self.items.push((s.peek("work_qp"), s.peek("work_present") == 1, wqe));
        }
        for (pulse, seen) in [("wake", &mut self.wakes), ("bell_wake", &mut self.bell_wakes)] {
            if s.peek(&format!("{pulse}_valid")) == 1 {
                seen.push(s.peek(&format!("{pulse}_qp")));
            }
        }
        if s.peek("count_valid") == 1 {
            self.rejects.push(s.peek("count_index"));
        }
        if s.peek("post_sq_enable") == 1 {
            self.post[s.peek("post_sq_address") as usize] = s.peek("post_sq_data");
        }
        let (q, bell) = (s.peek("read_qp"), s.peek("bell_qp"));
        s.clock();
        s.poke_bits("bell_rights", &Bits::from_bytes(256, &self.rights[bell as usize].pack()));
        s.poke_bits("tx_word", &self.tx[q as usize].pack());
        s.poke_bits("requester_word", &self.requester[q as usize].pack());
        s.poke("post_sq_word", self.post[q as usize]);
        s.poke_bits("rights_word", &Bits::from_bytes(256, &self.rights[q as usize].pack()));
        let queues = QpQueues { sq_base: base(q), sq_log_depth: 6, sq_log_stride: 8, ..QpQueues::default() };
        s.poke_bits("queues_word", &Bits::from_bytes(256, &queues.pack()));
        s.poke("read_data_valid", 0);
        s.poke("read_done_valid", 0);
    }

    fn settle(&mut self) {
        (0..60).for_each(|_| self.clock());
    }

    /// One access as the BAR decoder hands it on.
    fn write(&mut self, page: u64, offset: u64, data: u64, enables: u64) {
        let fields = [("page", page), ("offset", offset), ("data", data), ("enables", enables)];
        fields.iter().for_each(|(f, v)| self.s.poke(&format!("write_{f}"), *v));
        self.s.poke("write_valid", 1);
        for _ in 0..100 {
            let taken = self.s.peek("write_ready") == 1;
            self.clock();
            if taken {
                self.s.poke("write_valid", 0);
                return;
            }
        }
        panic!("a write to BAR2 was not taken");
    }

    /// Stores bytes into the push buffer of a page: quadword by quadword, as enables say.
    fn store(&mut self, page: u64, at: u64, bytes: &[u8]) {
        let end = at + bytes.len() as u64;
        let mut quad = at & !7;
        while quad < end {
            let (mut data, mut enables) = (0, 0);
            for i in (0..8).filter(|i| (at..end).contains(&(quad + i))) {
                data |= u64::from(bytes[(quad + i - at) as usize]) << (8 * i);
                enables |= 1 << i;
            }
            self.write(page, PUSH + quad, data, enables);
            quad += 8;
        }
    }

    fn ring(&mut self, page: u64, qpn: u64, producer: u64, pushed: bool) {
        let bell = SqDoorbell { qpn: qpn as u32, pushed, producer: producer as u16 };
        self.write(page, 0, u64::from_le_bytes(bell.pack()), 0xff);
    }

    /// Pushes a WQE as a driver does, and lets it settle.
    fn push(&mut self, q: u64, index: u64, bytes: &[u8]) {
        self.store(q / 8, 0, bytes);
        self.ring(q / 8, q, index + 1, true);
        self.settle();
    }

    fn start_turn(&mut self, q: u64, fence: bool) {
        self.s.poke("turn_valid", 1);
        self.s.poke("turn_qp", q);
        self.s.poke("turn_fence", u64::from(fence));
        for _ in 0..200 {
            let taken = self.s.peek("turn_ready") == 1;
            self.clock();
            if taken {
                self.s.poke("turn_valid", 0);
                return;
            }
        }
        panic!("a turn of QP {q} was not taken");
    }

    /// A turn of the QP: the bytes of its WQE, if it is here. Then the next WQE's turn comes.
    fn turn(&mut self, q: u64, bytes: usize) -> Option<Vec<u8>> {
        let items = self.items.len();
        self.s.poke("work_ready", 0);
        self.start_turn(q, false);
        self.settle();
        let mut tail = vec![];
        for word in 128 / self.width..256 / self.width {
            self.s.poke("inline_index", word as u64);
            self.clock();
            tail.extend(self.s.peek_bits("inline_word").to_bytes());
        }
        self.s.poke("work_ready", 1);
        self.settle();
        let (qp, present, mut wqe) = self.items[items].clone();
        assert_eq!(qp, q);
        wqe.extend(tail);
        wqe.truncate(bytes);
        if present {
            self.tx[q as usize].cursor_wqe = (self.tx[q as usize].cursor_wqe + 1) & 0xffff;
        }
        present.then_some(wqe)
    }

    /// Ends the read with this id.
    fn deliver(&mut self, id: u64, byte: u8) {
        let width = self.width;
        for at in (0..256).step_by(width) {
            self.s.poke("read_data_valid", 1);
            self.s.poke("read_data_client", 1);
            self.s.poke("read_data_address", id * 512 + at);
            self.s.poke_bits("read_data_data", &Bits::from_bytes(8 * width as u32, &vec![byte; width]));
            self.s.poke("read_data_lanes", u64::MAX >> (64 - width));
            self.clock();
        }
        self.s.poke("read_done_valid", 1);
        self.s.poke("read_done_client", 1);
        self.s.poke("read_done_id", id);
        self.s.poke("read_done_failed", 0);
        self.clock();
        self.settle();
    }
}

/// A WQE with so many inline bytes, unlike that of any other QP or index.
fn inline(q: u64, index: u64, length: u64) -> Vec<u8> {
    let head = SendWqe {
        opcode: WrOpcode::RdmaWrite as u8,
        inline: true,
        length: length as u32,
        index: index as u16,
        qpn: q as u32,
        rkey: (q * 77 + index) as u32,
        ..SendWqe::default()
    };
    let data = (0..length).map(|i| (q * 31 + index * 7 + i * 3 + 1) as u8);
    head.pack().into_iter().chain(data).collect()
}

fn listed(q: u64, index: u64, opcode: WrOpcode, num_sge: u8, room: usize) -> Vec<u8> {
    let head = SendWqe {
        opcode: opcode as u8,
        num_sge,
        length: 8,
        index: index as u16,
        qpn: q as u32,
        ..SendWqe::default()
    };
    head.pack().into_iter().chain((0..room as u64).map(|i| (q + index + i) as u8)).collect()
}

#[test]
fn a_pushed_wqe_of_every_length_is_in_its_slot_without_a_read() {
    let mut wqes: Vec<Vec<u8>> = vec![];
    for (index, length) in (0..=17).chain([63, 64, 65, 95, 96, 97, 128, 219, 220]).enumerate() {
        wqes.push(inline(9, index as u64, length));
    }
    for num_sge in 0..=14 {
        let index = wqes.len() as u64;
        wqes.push(listed(9, index, WrOpcode::RdmaWrite, num_sge, 16 * num_sge as usize));
    }
    for opcode in [WrOpcode::AtomicCmpAndSwp, WrOpcode::AtomicFetchAndAdd] {
        let index = wqes.len() as u64;
        wqes.push(listed(9, index, opcode, 1, 32));
    }
    for c in both() {
        let mut b = Bench::at(&c);
        for (index, wqe) in wqes.iter().enumerate() {
            b.push(9, index as u64, wqe);
            assert_eq!((b.wakes.len(), b.bell_wakes.len()), (0, index + 1), "the doorbell wakes, once");
            assert_eq!(b.turn(9, wqe.len()).as_ref(), Some(wqe), "WQE {index}, {} bytes", wqe.len());
        }
        assert!(b.reads.is_empty() && b.rejects.is_empty());
        assert_eq!(b.s.peek("idle"), 1);
    }
}

#[test]
fn stores_may_have_any_size_and_order() {
    for seed in 1..=20 {
        let mut pick = Choices::new(seed);
        let mut b = Bench::at(&both()[seed as usize % 2]);
        let wqe = inline(20, 0, pick.below(221));
        let (mut pieces, mut at) = (vec![], 0);
        while at < wqe.len() {
            let n = (1 + pick.below(64) as usize).min(wqe.len() - at);
            pieces.push((at, n));
            at += n;
        }
        while !pieces.is_empty() {
            let (at, n) = pieces.swap_remove(pick.below(pieces.len() as u64) as usize);
            b.store(2, at as u64, &wqe[at..at + n]);
        }
        b.ring(2, 20, 1, true);
        b.settle();
        assert_eq!(b.turn(20, wqe.len()), Some(wqe), "seed {seed}");
        assert!(b.reads.is_empty());
    }
}

#[test]
fn a_wqe_with_any_byte_missing_is_read() {
    // it ends within a quadword, and with one; within a word of 64 bytes, with one, in one
    let [small, broad] = both();
    for (c, length) in [(&small, 13), (&small, 16), (&broad, 13), (&broad, 32), (&broad, 50)] {
        let mut b = Bench::at(c);
        let wqe = inline(9, 0, length);
        for missing in 0..wqe.len() {
            b.store(1, 0, &wqe[..missing]);
            if missing + 1 < wqe.len() {
                b.store(1, missing as u64 + 1, &wqe[missing + 1..]);
            }
            b.ring(1, 9, 1, true);
            b.settle();
            assert_eq!(b.bell_wakes.len(), missing + 1);
            // a QP in ERR does not read: the slot can be looked at again and again
            b.rights[9].state = QpState::Err as u8;
            assert_eq!(b.turn(9, 0), None, "{length} bytes without byte {missing}");
            b.rights[9].state = QpState::Rts as u8;
        }
        // what is behind it may be missing, and may be there
        b.store(1, wqe.len() as u64, &[0xee; 100]);
        b.push(9, 0, &wqe);
        assert_eq!(b.turn(9, wqe.len()), Some(wqe));
        b.push(9, 1, &inline(9, 1, 5)[..36]);
        assert_eq!(b.turn(9, 0), None);
        assert_eq!(b.reads, [(base(9) + 256, 9 * 4 + 1)]);
    }
}

#[test]
fn a_byte_stored_twice_spoils_the_page_until_its_next_doorbell() {
    for twice in [0, 7, 8, 31, 32, 44] {
        let mut b = Bench::new();
        let wqe = inline(9, 0, 13);
        b.store(1, twice, &[wqe[twice as usize]]);
        b.push(9, 0, &wqe);
        assert_eq!(b.turn(9, 0), None, "byte {twice}");
        assert_eq!(b.reads.len(), 1);
        b.deliver(9 * 4, 0x11);
        assert_eq!(b.turn(9, 3), Some(vec![0x11; 3]));
        let next = inline(9, 1, 13);
        b.push(9, 1, &next);
        assert_eq!(b.turn(9, next.len()), Some(next));
    }
}

#[test]
fn every_doorbell_of_the_page_forgets_what_was_stored_and_none_of_another_page_does() {
    let cq = u64::from_le_bytes(CqDoorbell { cqn: 3, arm: 0, consumer: 1 }.pack());
    let sq = u64::from_le_bytes(SqDoorbell { qpn: 10, pushed: false, producer: 0 }.pack());
    let foreign = u64::from_le_bytes(SqDoorbell { qpn: 60, pushed: true, producer: 1 }.pack());
    for (page, offset, data, forgets) in [
        (1, 0, sq, true),
        (1, 8, sq, true),
        (1, 0x10, cq, true),
        (1, 0x18, 0, true),
        (1, 0, foreign, true),
        (1, 0x40, 0, true),
        (2, 0x10, cq, false),
        (0, 0x10, cq, false),
    ] {
        let mut b = Bench::new();
        let wqe = inline(9, 0, 40);
        b.store(1, 0, &wqe[..40]);
        b.write(page, offset, data, 0xff);
        b.store(1, 40, &wqe[40..]);
        b.ring(1, 9, 1, true);
        b.settle();
        assert_eq!(b.turn(9, 0).is_none(), forgets, "page {page}, offset {offset:#x}");
    }
}

#[test]
fn a_wqe_that_is_not_the_next_or_names_another_qp_or_index_is_read() {
    // cursor, index by the doorbell, index in the WQE, QP in the WQE, used
    for (cursor, index, own, qp, used) in [
        (5u64, 5u64, 5u64, 9u64, true),
        (5, 6, 6, 9, false),
        (5, 4, 4, 9, false),
        (5, 5, 6, 9, false),
        (5, 5, 5, 8, false),
        (5, 5, 5, 9 + 64, false),
        (0xffff, 0xffff, 0xffff, 9, true),
        (0, 0xffff, 0xffff, 9, false),
    ] {
        let mut b = Bench::new();
        b.tx[9].cursor_wqe = cursor;
        b.requester[9].got_wqe = cursor;
        b.push(9, index, &inline(qp, own, 20));
        assert_eq!(b.bell_wakes, [9]);
        let what = format!("cursor {cursor}, pushed {index}: {own} of {qp}");
        assert_eq!(b.turn(9, 0).is_some(), used, "{what}");
        assert_eq!(b.reads.is_empty(), used || index == cursor.wrapping_sub(1) & 0xffff, "{what}");
    }
    // a replay that is not yet obeyed stands before it
    let mut b = Bench::new();
    b.tx[9].cursor_wqe = 5;
    b.requester[9] = Requester { got_wqe: 3, epoch: 1, ..Requester::default() };
    b.push(9, 5, &inline(9, 5, 20));
    assert_eq!(b.turn(9, 0), None);
    assert_eq!(b.reads.len(), 3);
}

#[test]
fn a_size_that_no_wqe_has_is_no_pushed_wqe() {
    for c in both() {
        for wqe in [inline(9, 0, 221), inline(9, 0, 224), listed(9, 0, WrOpcode::Send, 15, 224)] {
            let mut b = Bench::at(&c);
            let mut bytes = wqe;
            bytes.truncate(256);
            b.push(9, 0, &bytes);
            assert_eq!((b.turn(9, 0), b.bell_wakes.len(), b.reads.len()), (None, 1, 1));
        }
    }
    let mut b = Bench::new();
    let mut long = inline(9, 0, 220);
    // 2^16 more
    long[22] = 1;
    b.push(9, 0, &long);
    assert_eq!(b.turn(9, 0), None);
}

#[test]
fn a_page_pushes_for_its_own_qps_alone() {
    let mut b = Bench::new();
    let wqe = inline(9, 0, 30);
    // QP 9 belongs to page 1
    b.store(2, 0, &wqe);
    b.ring(2, 9, 1, true);
    b.settle();
    assert_eq!(b.rejects, [Reject::DoorbellOwner as u64]);
    assert_eq!((b.wakes.len(), b.bell_wakes.len(), b.post[9]), (0, 0, 0));
    // bytes in the buffer of one page are not those of another
    b.store(2, 0, &wqe);
    b.ring(1, 9, 1, true);
    b.settle();
    assert_eq!((b.turn(9, 0), b.reads.len()), (None, 1));
}

#[test]
fn a_turn_finds_what_was_pushed_before_it_so_many_clocks_behind_the_doorbell() {
    // length of the inline data, clocks at 64 bit and at 512
    for (length, clocks) in [(0, [13, 9]), (32, [16, 9]), (64, [20, 10]), (220, [40, 12])] {
        for (c, clocks) in both().iter().zip(clocks) {
            let mut b = Bench::at(c);
            b.store(1, 0, &inline(9, 0, length));
            // the turn comes with the offer
            b.ring(1, 9, 1, true);
            b.s.poke("turn_valid", 1);
            b.s.poke("turn_qp", 9);
            let mut needed = 1;
            while b.items.is_empty() {
                b.clock();
                needed += 1;
                assert!(needed < 60, "{length} bytes by words of {}", c.data_bytes);
            }
            assert!(b.items[0].1, "{length} bytes");
            assert_eq!(needed, clocks, "{length} bytes by words of {}", c.data_bytes);
        }
    }
}

#[test]
fn two_qps_of_a_page_that_race_get_their_own_bytes_or_none() {
    let mut used = 0;
    for seed in 1..=120 {
        let mut pick = Choices::new(seed);
        let mut b = Bench::new();
        // each pushes in its own order, then rings; the two are shuffled
        let length = pick.below(60);
        let mut threads: Vec<Vec<(u64, Vec<u8>)>> = [8u64, 9]
            .map(|q| {
                let wqe = inline(q, 0, length);
                let size = 8 << pick.below(5);
                wqe.chunks(size).enumerate().map(|(i, c)| ((i * size) as u64, c.to_vec())).collect()
            })
            .into();
        // sometimes one after the other
        let alone = pick.chance(20);
        let mut rung = [false; 2];
        while rung != [true; 2] {
            let t = if alone { usize::from(rung[0]) } else { pick.below(2) as usize };
            if rung[t] {
                continue;
            }
            match threads[t].is_empty() {
                false => {
                    let i = pick.below(threads[t].len() as u64) as usize;
                    let (at, bytes) = threads[t].remove(i);
                    b.store(1, at, &bytes);
                }
                true => {
                    b.ring(1, 8 + t as u64, 1, true);
                    rung[t] = true;
                    if pick.chance(50) {
                        b.settle();
                    }
                }
            }
        }
        b.settle();
        assert_eq!(b.bell_wakes.len(), 2, "seed {seed}: each is woken once");
        for q in [8, 9] {
            let wqe = inline(q, 0, length);
            if let Some(got) = b.turn(q, wqe.len()) {
                assert_eq!(got, wqe, "seed {seed}, QP {q}");
                used += 1;
            }
        }
    }
    assert!(used > 20, "{used}");
}

#[test]
fn a_pushed_wqe_waits_for_the_turn_that_holds_its_slot_and_its_page_takes_no_stores_meanwhile() {
    let mut b = Bench::new();
    let first = inline(9, 0, 100);
    b.push(9, 0, &first);
    // the turn of WQE 0 stands in segment; acknowledge has moved on to WQE 4, whose slot is the same
    b.s.poke("work_ready", 0);
    b.start_turn(9, false);
    b.settle();
    b.requester[9] = Requester { got_wqe: 4, epoch: 1, ..Requester::default() };
    let fourth = inline(9, 4, 100);
    b.push(9, 4, &fourth);
    for word in 4..16 {
        b.s.poke("inline_index", word);
        b.clock();
        let at = word as usize * 8;
        assert_eq!(b.s.peek("inline_word").to_le_bytes(), first[at..at + 8], "word {word}");
    }
    // another QP of the page pushes: too early, it is read; the QP of another page too
    b.push(10, 0, &inline(10, 0, 10));
    b.push(17, 0, &inline(17, 0, 10));
    assert_eq!(b.bell_wakes, [9, 9, 10, 17]);
    b.s.poke("work_ready", 1);
    b.settle();
    b.tx[9] = Tx { cursor_wqe: 4, epoch: 1, ..Tx::default() };
    assert_eq!(b.turn(9, fourth.len()), Some(fourth));
    assert_eq!((b.turn(10, 0), b.turn(17, 0), b.reads.len()), (None, None, 2));
}

#[test]
fn a_slot_that_is_being_read_is_left_to_its_read() {
    let mut b = Bench::new();
    b.ring(1, 9, 1, false);
    b.settle();
    assert_eq!((b.bell_wakes.clone(), b.turn(9, 0)), (vec![9], None));
    b.push(9, 0, &inline(9, 0, 10));
    assert_eq!(b.turn(9, 0), None, "it comes by its read");
    b.deliver(9 * 4, 0x77);
    assert_eq!(b.turn(9, 2), Some(vec![0x77; 2]));
    assert_eq!(b.reads.len(), 1);
    // so is one that holds the WQE already
    b.ring(1, 9, 2, false);
    b.settle();
    assert_eq!(b.turn(9, 0), None);
    b.deliver(9 * 4 + 1, 0x78);
    b.push(9, 1, &inline(9, 1, 10));
    assert_eq!(b.turn(9, 2), Some(vec![0x78; 2]));
}

#[test]
fn a_push_and_a_plain_doorbell_behind_it_are_both_served() {
    let mut b = Bench::new();
    let wqe = inline(9, 0, 64);
    b.store(1, 0, &wqe);
    b.ring(1, 9, 1, true);
    b.ring(1, 9, 2, false);
    b.settle();
    assert_eq!((b.bell_wakes.clone(), b.post[9]), (vec![9, 9], 2));
    assert_eq!(b.turn(9, wqe.len()), Some(wqe));
    assert_eq!(b.reads, [(base(9) + 256, 9 * 4 + 1)], "the second is read ahead");
}

#[test]
fn what_arrives_by_read_meanwhile_and_what_is_pushed_both_land() {
    for c in both() {
        let mut b = Bench::at(&c);
        b.ring(2, 17, 1, false);
        b.settle();
        assert_eq!(b.turn(17, 0), None);
        let wqe = inline(9, 0, 220);
        b.store(1, 0, &wqe);
        b.ring(1, 9, 1, true);
        b.deliver(17 * 4, 0x3c);
        assert_eq!(b.turn(9, wqe.len()), Some(wqe));
        assert_eq!(b.turn(17, 256), Some(vec![0x3c; 256]));
        assert_eq!(b.reads.len(), 1);
    }
}

#[test]
fn a_qp_that_may_not_send_takes_nothing_and_a_reset_forgets_what_it_took() {
    for state in [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Err] {
        let mut b = Bench::new();
        b.rights[9].state = state as u8;
        b.push(9, 0, &inline(9, 0, 10));
        assert_eq!(b.bell_wakes, [9]);
        b.rights[9].state = QpState::Rts as u8;
        assert_eq!(b.turn(9, 0), None, "{state:?}");
    }
    let mut b = Bench::new();
    b.push(9, 0, &inline(9, 0, 10));
    b.s.poke("initialise_valid", 1);
    b.s.poke("initialise_qp", 9);
    b.s.poke("initialise_reset", 1);
    while b.s.peek("initialise_ready") == 0 {
        b.clock();
    }
    b.clock();
    b.s.poke("initialise_valid", 0);
    assert_eq!(b.turn(9, 0), None);
    // the card's own reset forgets the page's map
    let mut b = Bench::new();
    let wqe = inline(9, 0, 10);
    b.store(1, 0, &wqe[..20]);
    reset(&mut b.s);
    (0..70).for_each(|_| b.clock());
    b.store(1, 20, &wqe[20..]);
    b.ring(1, 9, 1, true);
    b.settle();
    assert_eq!(b.turn(9, 0), None);
}

#[test]
fn the_fence_waits_for_a_pushed_wqe() {
    let mut b = Bench::new();
    b.push(9, 0, &inline(9, 0, 10));
    b.s.poke("work_ready", 0);
    b.start_turn(9, false);
    b.settle();
    // a push waits for that turn, and the fence for the push
    b.push(9, 1, &inline(9, 1, 10));
    b.s.poke("turn_valid", 1);
    b.s.poke("turn_fence", 1);
    for _ in 0..40 {
        assert_eq!((b.s.peek("turn_ready"), b.s.peek("idle")), (0, 0));
        b.clock();
    }
    b.s.poke("work_ready", 1);
    b.start_turn(0, true);
    b.settle();
    assert_eq!(b.s.peek("idle"), 1);
}

#[test]
fn a_store_costs_a_clock_and_a_doorbell_two_and_neither_ever_waits_for_fetch() {
    let mut b = Bench::new();
    b.s.poke("work_ready", 0);
    b.start_turn(9, false);
    b.settle();
    for n in 0..40 {
        let bell = n % 4 == 3;
        b.s.poke("write_valid", 1);
        b.s.poke("write_page", 1);
        b.s.poke("write_offset", if bell { 0 } else { PUSH + 8 * n % 256 });
        let value = SqDoorbell { qpn: 9, pushed: true, producer: 1 };
        b.s.poke("write_data", u64::from_le_bytes(value.pack()));
        b.s.poke("write_enables", 0xff);
        if bell {
            assert_eq!(b.s.peek("write_ready"), 0);
            b.clock();
        }
        assert_eq!(b.s.peek("write_ready"), 1, "write {n}");
        b.clock();
    }
}

#[test]
fn the_emitted_text_is_clean() {
    for c in [Config::small(), wide()] {
        lint(&elaborate(&Push(c.clone())).unwrap());
        lint(&elaborate(&Front(c)).unwrap());
    }
}
