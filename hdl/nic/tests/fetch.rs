//! fetch, by the interpreter: host memory, its latency and its order are played here.
//!
//! Requirements: CMD ERR QPS QUE READ REQ

mod txkit;

use contract::{QpQueues, QpRights, QpState};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::tx::fetch::Fetch;
use txkit::{Choices, Requester, Tx, lint, reset, wide};

const SLOTS: u64 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Read {
    iova: u64,
    length: u64,
    address: u64,
    id: u64,
}

#[derive(Clone, Debug)]
struct Item {
    qp: u64,
    fence: bool,
    present: bool,
    failed: bool,
    producer: u64,
    wqe: Vec<u8>,
}

struct Bench {
    s: Interpreter,
    tx: Vec<Tx>,
    requester: Vec<Requester>,
    post: Vec<u64>,
    rights: Vec<QpRights>,
    queues: Vec<QpQueues>,
    pending: Vec<Read>,
    reads: Vec<Read>,
    wakes: Vec<u64>,
    items: Vec<Item>,
    clocks: u64,
    /// Bytes of a word.
    width: u64,
    most_reads: usize,
}

/// A byte of host memory: any function that tells addresses apart.
fn host(iova: u64) -> u8 {
    (iova.wrapping_mul(0x9e37_79b9) >> 13) as u8
}

impl Bench {
    fn new() -> Bench {
        Bench::at(Config::small())
    }

    fn at(c: Config) -> Bench {
        let (n, width, most_reads) = (c.qps as usize, c.data_bytes.into(), c.wqe_reads as usize);
        let mut s = Interpreter::new(&elaborate(&Fetch(c)).unwrap());
        reset(&mut s);
        s.poke("work_ready", 1);
        s.poke("request_ready", 1);
        let rights = QpRights { state: QpState::Rts as u8, valid: true, ..QpRights::default() };
        let queues = (0..n as u64)
            .map(|q| QpQueues {
                sq_base: 0x1_0000_0000 + q * 0x10_0000,
                sq_log_depth: 6,
                sq_log_stride: 7,
                ..QpQueues::default()
            })
            .collect();
        Bench {
            s,
            tx: vec![Tx::default(); n],
            requester: vec![Requester::default(); n],
            post: vec![0; n],
            rights: vec![rights; n],
            queues,
            pending: vec![],
            reads: vec![],
            wakes: vec![],
            items: vec![],
            clocks: 0,
            width,
            most_reads,
        }
    }

    fn iova(&self, q: usize, index: u64) -> u64 {
        let z = &self.queues[q];
        z.sq_base + ((index & ((1 << z.sq_log_depth) - 1)) << z.sq_log_stride)
    }

    fn clock(&mut self) {
        let s = &mut self.s;
        if s.peek("request_valid") == 1 && s.peek("request_ready") == 1 {
            let r = Read {
                iova: s.peek("request_iova"),
                length: s.peek("request_length"),
                address: s.peek("request_address"),
                id: s.peek("request_id"),
            };
            assert!(self.pending.iter().all(|p| p.id != r.id), "two reads pending into slot {:#x}", r.id);
            let grouped = r.address >> 20 == 1;
            assert_eq!(r.address, if grouped { (1 << 20) + r.id * 64 } else { r.id * 512 });
            self.pending.push(r.clone());
            self.reads.push(r);
            assert!(self.pending.len() <= self.most_reads);
        }
        if s.peek("work_valid") == 1 && s.peek("work_ready") == 1 {
            self.items.push(Item {
                qp: s.peek("work_qp"),
                fence: s.peek("work_fence") == 1,
                present: s.peek("work_present") == 1,
                failed: s.peek("work_failed") == 1,
                producer: s.peek("work_producer"),
                wqe: s.peek_bits("work_wqe").to_bytes(),
            });
        }
        if s.peek("wake_valid") == 1 {
            self.wakes.push(s.peek("wake_qp"));
        }
        let q = s.peek("read_qp") as usize;
        s.clock();
        s.poke_bits("tx_word", &self.tx[q].pack());
        s.poke_bits("requester_word", &self.requester[q].pack());
        s.poke("post_sq_word", self.post[q]);
        s.poke_bits("rights_word", &Bits::from_bytes(256, &self.rights[q].pack()));
        s.poke_bits("queues_word", &Bits::from_bytes(256, &self.queues[q].pack()));
        s.poke("read_data_valid", 0);
        s.poke("read_done_valid", 0);
        self.clocks += 1;
    }

    fn settle(&mut self) {
        for _ in 0..14 {
            self.clock();
        }
    }

    /// Ends pending read `i`: its data, then its end.
    fn deliver(&mut self, i: usize, failed: bool) {
        let r = self.pending.remove(i);
        let (width, length) = (self.width, if failed { 0 } else { r.length });
        for at in (0..length).step_by(width as usize) {
            let bytes: Vec<u8> = (at..at + width).map(|b| host(r.iova + b)).collect();
            self.s.poke("read_data_valid", 1);
            self.s.poke("read_data_client", 1);
            self.s.poke("read_data_address", r.address + at);
            self.s.poke_bits("read_data_data", &Bits::from_bytes(width as u32 * 8, &bytes));
            self.s.poke("read_data_lanes", u64::MAX >> (64 - (length - at).min(width)));
            self.clock();
        }
        self.s.poke("read_done_valid", 1);
        self.s.poke("read_done_client", 1);
        self.s.poke("read_done_id", r.id);
        self.s.poke("read_done_failed", u64::from(failed));
        self.clock();
    }

    fn deliver_all(&mut self) {
        while !self.pending.is_empty() {
            self.deliver(0, false);
        }
        self.settle();
    }

    fn start_turn(&mut self, q: usize, fence: bool) {
        self.s.poke("turn_valid", 1);
        self.s.poke("turn_qp", q as u64);
        self.s.poke("turn_fence", u64::from(fence));
        for _ in 0..200 {
            let taken = self.s.peek("turn_ready") == 1;
            self.clock();
            if taken {
                self.s.poke("turn_valid", 0);
                return;
            }
        }
        panic!("turn of QP {q} was not taken");
    }

    /// A whole turn; the item, and the reads that it asked for.
    fn turn(&mut self, q: usize) -> (Item, Vec<Read>) {
        let (items, reads) = (self.items.len(), self.reads.len());
        self.start_turn(q, false);
        self.settle();
        assert_eq!(self.items.len(), items + 1);
        let item = self.items[items].clone();
        assert_eq!((item.qp, item.fence, item.producer), (q as u64, false, self.post[q]));
        (item, self.reads[reads..].to_vec())
    }

    fn want(&self, q: usize, index: u64) -> Read {
        let id = q as u64 * SLOTS + index % SLOTS;
        let length = [64, 128, 256, 288][self.queues[q].sq_log_stride as usize - 6];
        Read { iova: self.iova(q, index), length, address: id * 512, id }
    }

    /// What an item carries of a WQE.
    fn bytes(&self, q: usize, index: u64) -> Vec<u8> {
        (0..128).map(|b| host(self.iova(q, index) + b)).collect()
    }

    fn reset_qp(&mut self, q: usize, reset: bool) {
        self.s.poke("initialise_valid", 1);
        self.s.poke("initialise_qp", q as u64);
        self.s.poke("initialise_reset", u64::from(reset));
        self.s.poke("initialise_send", 1);
        while self.s.peek("initialise_ready") == 0 {
            self.clock();
        }
        self.clock();
        self.s.poke("initialise_valid", 0);
    }
}

#[test]
fn a_miss_reads_ahead_as_far_as_posted_and_as_far_as_slots_go() {
    for (posted, depth) in [(0u64, 0u64), (1, 1), (3, 3), (4, 4), (5, 4), (60, 4)] {
        let mut b = Bench::new();
        b.tx[9].cursor_wqe = 0xfffe;
        b.post[9] = (0xfffe + posted) & 0xffff;
        let (item, reads) = b.turn(9);
        assert!(!item.present);
        let want: Vec<Read> = (0..depth).map(|i| b.want(9, (0xfffe + i) & 0xffff)).collect();
        assert_eq!(reads, want, "{posted} posted");
    }
}

#[test]
fn a_hit_carries_the_wqe_and_each_step_reads_one_more() {
    let mut b = Bench::new();
    b.post[3] = 200;
    b.turn(3);
    b.deliver_all();
    assert_eq!(b.wakes, [3, 3, 3, 3]);
    for index in 0..100u64 {
        b.tx[3].cursor_wqe = index;
        let (item, reads) = b.turn(3);
        assert!(item.present && !item.failed, "WQE {index}");
        assert_eq!(item.wqe, b.bytes(3, index), "WQE {index}");
        // the first turn finds all slots taken
        let want: Vec<Read> = if index == 0 { vec![] } else { vec![b.want(3, index + 3)] };
        assert_eq!(reads, want, "WQE {index}");
        // a second turn on the same WQE (its next packet) reads nothing
        let (item, reads) = b.turn(3);
        assert!(item.present && reads.is_empty());
        b.deliver_all();
    }
}

#[test]
fn every_word_of_a_wqe_can_be_had_while_its_item_stands_whatever_arrives_meanwhile() {
    for c in [Config::small(), Config { data_bytes: 64, ..Config::small() }] {
        let mut b = Bench::at(c);
        let width = b.width;
        for (q, log) in [(3, 9), (60, 8)] {
            b.queues[q].sq_log_stride = log;
            b.post[q] = 8;
            b.turn(q);
            b.deliver_all();
        }
        for index in 0..8 {
            for q in [3, 60] {
                b.tx[q].cursor_wqe = index;
                b.s.poke("work_ready", 0);
                b.start_turn(q, false);
                b.settle();
                // what is read ahead comes in, and the turn of another QP waits behind this one
                b.deliver_all();
                b.start_turn(63 - q, false);
                for at in [248, 0, 128, 120, 32, 240, if q == 3 { 280 } else { 248 }, 96] {
                    b.s.poke("inline_index", at / width);
                    b.clock();
                    let word = b.s.peek_bits("inline_word").to_bytes();
                    let want: Vec<u8> = (0..8).map(|i| host(b.iova(q, index) + at + i)).collect();
                    assert_eq!(&word[(at % width) as usize..][..8], want, "QP {q}, WQE {index}, byte {at}");
                }
                b.s.poke("work_ready", 1);
                b.settle();
                let item = &b.items[b.items.len() - 2];
                assert_eq!((item.qp, item.present), (q as u64, true));
            }
        }
    }
}

/// Cards that read WQEs of 64 bytes by groups of eight.
fn grouping() -> Vec<Bench> {
    let c = Config { wqe_slots: 32, wqe_batch: 8, wqe_reads: 32, ..Config::small() };
    let mut all = vec![Bench::at(c.clone()), Bench::at(Config { data_bytes: 64, ..c })];
    all.iter_mut().flat_map(|b| &mut b.queues).for_each(|queues| queues.sq_log_stride = 6);
    all
}

/// (first index, WQEs) of each read of QP `q`, in order.
fn groups(b: &Bench, q: usize, reads: &[Read]) -> Vec<(u64, u64)> {
    reads.iter().map(|read| ((read.iova - b.queues[q].sq_base) / 64, read.length / 64)).collect()
}

#[test]
fn wqes_of_64_bytes_are_read_by_aligned_groups_and_each_is_found_in_its_slot() {
    for mut b in grouping() {
        b.post[9] = 60;
        b.tx[9].cursor_wqe = 6;
        let (item, reads) = b.turn(9);
        assert!(!item.present);
        // the slots behind the cursor, in its group, wait
        assert_eq!(groups(&b, 9, &reads), [(6, 2), (8, 8), (16, 8), (24, 8)]);
        // in any order
        for i in [2, 0, 1, 0] {
            b.deliver(i, false);
        }
        b.settle();
        assert_eq!(b.wakes, [9; 4], "one wake per read");
        let mut read = vec![];
        for index in 6..60 {
            b.tx[9].cursor_wqe = index;
            let (item, reads) = b.turn(9);
            assert!(item.present, "WQE {index}");
            assert_eq!(item.wqe[..64], b.bytes(9, index)[..64], "WQE {index}");
            read.extend(groups(&b, 9, &reads));
            b.deliver_all();
        }
        // a group when the cursor has left it, and the last as far as it is posted
        assert_eq!(read, [(32, 8), (40, 8), (48, 8), (56, 4)]);
    }
}

#[test]
fn the_group_of_the_oldest_unanswered_wqe_stays_for_a_rewind_until_the_cursor_is_two_groups_ahead() {
    for mut b in grouping() {
        b.post[9] = 100;
        b.tx[9].cursor_wqe = 6;
        b.requester[9].got_wqe = 6;
        b.turn(9);
        b.deliver_all();
        // answered up to the last WQE of the first group, which is to be sent again
        (b.tx[9].cursor_wqe, b.requester[9].got_wqe) = (9, 7);
        let (item, reads) = b.turn(9);
        assert!(item.present && reads.is_empty(), "{reads:?}");
        b.requester[9].epoch = 1;
        let (item, reads) = b.turn(9);
        assert!(item.present && reads.is_empty(), "{reads:?}");
        assert_eq!(item.wqe[..64], b.bytes(9, 7)[..64]);
        // answered, it makes room
        b.requester[9].epoch = 0;
        b.requester[9].got_wqe = 8;
        let (_, reads) = b.turn(9);
        assert_eq!(groups(&b, 9, &reads), [(32, 8)]);
        b.deliver_all();
        // with more unanswered than that reading ahead goes first
        b.tx[9].cursor_wqe = 24;
        let (_, reads) = b.turn(9);
        assert_eq!(groups(&b, 9, &reads), [(40, 8), (48, 8)]);
    }
}

#[test]
fn a_ring_shorter_than_a_group_and_longer_wqes_are_read_one_by_one() {
    for mut b in grouping() {
        b.queues[1].sq_log_depth = 2;
        b.post[1] = 4;
        b.queues[2].sq_log_stride = 7;
        b.post[2] = 3;
        for (q, count) in [(1, 4), (2, 3)] {
            let (_, reads) = b.turn(q);
            assert_eq!(reads.len(), count);
            b.deliver_all();
            for index in 0..count as u64 {
                b.tx[q].cursor_wqe = index;
                let (item, reads) = b.turn(q);
                assert!(item.present && reads.is_empty());
                let bytes = 1 << b.queues[q].sq_log_stride;
                assert_eq!(item.wqe[..bytes], b.bytes(q, index)[..bytes]);
            }
        }
    }
}

#[test]
fn a_group_fails_or_is_doomed_as_a_whole_and_nobody_beside_it() {
    for mut b in grouping() {
        b.post[3] = 24;
        let (_, reads) = b.turn(3);
        assert_eq!(groups(&b, 3, &reads), [(0, 8), (8, 8), (16, 8)]);
        b.deliver(1, true);
        b.deliver_all();
        for index in 0..24 {
            b.tx[3].cursor_wqe = index;
            let (item, _) = b.turn(3);
            assert_eq!((item.present, item.failed), (true, index / 8 == 1), "WQE {index}");
        }
        // reset while two groups are under way: what arrives is not the new WQEs
        b.tx[5].cursor_wqe = 0;
        b.post[5] = 16;
        b.turn(5);
        b.reset_qp(5, true);
        let (item, reads) = b.turn(5);
        assert!(!item.present && reads.is_empty(), "their slots are not free yet");
        b.deliver_all();
        let (item, reads) = b.turn(5);
        assert!(!item.present);
        assert_eq!(groups(&b, 5, &reads), [(0, 8), (8, 8)]);
        // a rewind into the middle of a group reads what is not there; its neighbours' chains are broken
        b.deliver_all();
        b.tx[5].cursor_wqe = 34;
        b.post[5] = 36;
        let (_, reads) = b.turn(5);
        assert_eq!(groups(&b, 5, &reads), [(34, 2)]);
        b.deliver(0, true);
        b.tx[5].cursor_wqe = 4;
        b.post[5] = 16;
        let (item, reads) = b.turn(5);
        assert!(item.present && !item.failed && reads.is_empty(), "WQE 4 of the same group is as it was");
    }
}

#[test]
fn each_stride_has_its_addresses_and_lengths() {
    for log in 6..=9u8 {
        let mut b = Bench::new();
        b.queues[1].sq_log_stride = log;
        b.queues[1].sq_log_depth = 2;
        b.tx[1].cursor_wqe = 6;
        b.post[1] = 9;
        let (_, reads) = b.turn(1);
        assert_eq!(reads, [b.want(1, 6), b.want(1, 7), b.want(1, 8)]);
        assert_eq!(reads[0].iova, b.queues[1].sq_base + (2 << log));
        assert_eq!(reads[2].iova, b.queues[1].sq_base, "the ring wraps");
        assert_eq!(reads[0].length, [64, 128, 256, 288][log as usize - 6]);
    }
    // the deepest ring
    let mut b = Bench::new();
    b.queues[1].sq_log_depth = 15;
    b.tx[1].cursor_wqe = 0xffff;
    b.post[1] = 1;
    let (_, reads) = b.turn(1);
    assert_eq!(reads[0].iova, b.queues[1].sq_base + (0x7fff << 7));
    assert_eq!(reads[1].iova, b.queues[1].sq_base);
}

#[test]
fn a_rewind_follows_the_una_triple_and_reads_again_what_was_overwritten() {
    let mut b = Bench::new();
    b.post[2] = 50;
    b.tx[2].cursor_wqe = 10;
    b.turn(2);
    b.deliver_all();
    // one WQE back: slot of 9 holds 13
    b.requester[2] = Requester { got_wqe: 9, epoch: 1, ..Requester::default() };
    let (item, reads) = b.turn(2);
    assert!(!item.present);
    assert_eq!(reads, [b.want(2, 9)]);
    b.deliver_all();
    b.tx[2] = Tx { cursor_wqe: 9, epoch: 1, ..b.tx[2] };
    let (item, reads) = b.turn(2);
    assert!(item.present && reads.is_empty());
    assert_eq!(item.wqe, b.bytes(2, 9));
}

#[test]
fn a_late_arrival_after_a_rewind_is_not_taken_for_the_other_wqe() {
    let mut b = Bench::new();
    b.post[2] = 50;
    b.tx[2].cursor_wqe = 10;
    b.turn(2);
    assert_eq!(b.pending.len(), 4);
    // 6 maps to the slot of 10, whose read is pending
    b.requester[2] = Requester { got_wqe: 6, epoch: 1, ..Requester::default() };
    b.tx[2] = Tx { cursor_wqe: 6, epoch: 1, ..b.tx[2] };
    let (item, reads) = b.turn(2);
    assert!(!item.present);
    assert!(reads.is_empty(), "its slot is taken until the late read is over");
    b.wakes.clear();
    b.deliver(0, false);
    b.settle();
    assert_eq!(b.wakes, [2], "the end of the late read wakes");
    let (item, reads) = b.turn(2);
    assert!(!item.present);
    assert_eq!(reads, [b.want(2, 6)]);
    b.deliver_all();
    let (item, _) = b.turn(2);
    assert!(item.present);
    assert_eq!(item.wqe, b.bytes(2, 6));
}

#[test]
fn a_failed_read_is_told_at_its_wqe_and_not_before() {
    let mut b = Bench::new();
    b.post[0] = 3;
    b.turn(0);
    b.deliver(1, true);
    b.deliver_all();
    let (item, reads) = b.turn(0);
    assert!(item.present && !item.failed && reads.is_empty());
    b.tx[0].cursor_wqe = 1;
    let (item, reads) = b.turn(0);
    assert!(item.present && item.failed && reads.is_empty(), "told, and not tried again");
    b.reset_qp(0, true);
    let (item, reads) = b.turn(0);
    assert!(!item.present);
    assert_eq!(reads.len(), 2);
}

#[test]
fn a_reset_of_the_card_leaves_no_slot_waiting() {
    let mut b = Bench::new();
    b.post[63] = 4;
    b.turn(63);
    b.deliver(0, false);
    assert_eq!(b.pending.len(), 3);
    reset(&mut b.s);
    // the PCIe side forgot its reads as well
    b.pending.clear();
    b.start_turn(63, false);
    b.settle();
    assert!(!b.items.last().unwrap().present);
    assert_eq!(b.pending.len(), 4);
    b.deliver_all();
    assert!(b.turn(63).0.present);
}

#[test]
fn a_reset_forgets_and_dooms_what_is_under_way() {
    let mut b = Bench::new();
    b.post[5] = 2;
    b.turn(5);
    b.deliver(0, false);
    b.settle();
    // start of the send side alone keeps the WQEs
    b.reset_qp(5, false);
    assert!(b.turn(5).0.present);
    b.reset_qp(5, true);
    let (item, reads) = b.turn(5);
    assert!(!item.present);
    assert_eq!(reads, [b.want(5, 0)], "slot 1 waits for its doomed read");
    b.deliver_all();
    assert!(b.turn(5).0.present);
    let (_, reads) = b.turn(5);
    b.tx[5].cursor_wqe = 1;
    assert_eq!(reads.len() + b.turn(5).1.len(), 0, "asked for when the doomed read had ended");
    b.deliver_all();
    let (item, _) = b.turn(5);
    assert!(item.present);
    assert_eq!(item.wqe, b.bytes(5, 1));
}

#[test]
fn host_memory_of_a_qp_that_may_not_send_is_left_alone() {
    for (state, valid, reads) in [
        (QpState::Reset, true, 0),
        (QpState::Init, true, 0),
        (QpState::Rtr, true, 0),
        (QpState::Rts, true, 1),
        (QpState::Sqd, true, 1),
        (QpState::Err, true, 0),
        (QpState::Rts, false, 0),
    ] {
        let mut b = Bench::new();
        b.post[5] = 1;
        b.rights[5] = QpRights { state: state as u8, valid, ..b.rights[5] };
        let (item, asked) = b.turn(5);
        assert!(!item.present, "the turn ends all the same");
        assert_eq!(asked.len(), reads, "{state:?} {valid}");
    }
}

#[test]
fn the_fence_waits_for_every_read() {
    let mut b = Bench::new();
    b.post[1] = 2;
    b.turn(1);
    b.s.poke("turn_valid", 1);
    b.s.poke("turn_fence", 1);
    let items = b.items.len();
    b.settle();
    b.deliver(0, false);
    b.settle();
    assert_eq!(b.items.len(), items);
    assert_eq!(b.s.peek("idle"), 0);
    b.deliver(0, false);
    b.start_turn(0, true);
    b.settle();
    assert!(b.items[items].fence && !b.items[items].present);
    assert_eq!(b.s.peek("idle"), 1);
    assert!(b.turn(1).0.present);
}

#[test]
fn at_the_limit_of_reads_a_qp_is_woken_to_try_again() {
    let mut b = Bench::new();
    for q in 0..5 {
        b.post[q] = 4;
    }
    for q in 0..4 {
        b.turn(q);
    }
    assert_eq!(b.pending.len(), b.most_reads);
    b.wakes.clear();
    let (item, reads) = b.turn(4);
    assert!(!item.present && reads.is_empty());
    assert_eq!(b.wakes, [4]);
    b.deliver(3, false);
    b.settle();
    let (_, reads) = b.turn(4);
    assert_eq!(reads, [b.want(4, 0)]);
    b.deliver_all();
    assert_eq!(b.turn(4).1.len(), 3);
}

#[test]
fn random_turns_find_what_host_memory_holds() {
    // the last ones share two windows
    for seed in 1..=9u64 {
        let mut pick = Choices::new(seed);
        let mut b = if seed < 7 { Bench::new() } else { Bench::at(sharing(2)) };
        let qps = [0usize, 1, 33, 63];
        for q in qps {
            b.queues[q].sq_log_depth = 3 + pick.below(4) as u8;
            b.queues[q].sq_log_stride = 7 + pick.below(3) as u8;
            let start = 0xffff - pick.below(30);
            (b.tx[q].cursor_wqe, b.post[q], b.requester[q].got_wqe) = (start, start, start);
        }
        let mut hits = 0;
        let mut order = vec![];
        for step in 0..2500 {
            let q = qps[pick.below(4) as usize];
            let what = format!("seed {seed}, step {step}, QP {q}");
            b.s.poke("request_ready", u64::from(pick.chance(70)));
            b.s.poke("work_ready", u64::from(pick.chance(70)));
            let used = (b.post[q].wrapping_sub(b.requester[q].got_wqe)) & 0xffff;
            match pick.below(6) {
                0 if used < 1 << b.queues[q].sq_log_depth => {
                    b.post[q] = (b.post[q] + 1) & 0xffff;
                }
                1 if !b.pending.is_empty() => {
                    let i = pick.below(b.pending.len() as u64) as usize;
                    b.deliver(i, false);
                }
                2 if pick.chance(10) => {
                    // everything from una on is sent again
                    let r = b.requester[q];
                    b.requester[q].epoch = (r.epoch + 1) & 15;
                    b.tx[q] = Tx { epoch: (r.epoch + 1) & 15, cursor_wqe: r.got_wqe, ..b.tx[q] };
                }
                3 => {
                    let ahead = b.tx[q].cursor_wqe.wrapping_sub(b.requester[q].got_wqe) & 0xffff;
                    if ahead > 0 {
                        b.requester[q].got_wqe = (b.requester[q].got_wqe + 1) & 0xffff;
                    }
                }
                _ => {
                    let cursor = b.tx[q].cursor_wqe;
                    b.start_turn(q, false);
                    order.push((q, cursor));
                    while b.items.len() < order.len() {
                        b.s.poke("work_ready", u64::from(pick.chance(70)));
                        b.s.poke("request_ready", u64::from(pick.chance(70)));
                        b.clock();
                    }
                    let item = b.items.last().unwrap().clone();
                    if item.present {
                        assert_ne!(cursor, b.post[q], "{what}");
                        assert_eq!(item.wqe, b.bytes(q, cursor), "{what}");
                        hits += 1;
                        b.tx[q].cursor_wqe = (cursor + 1) & 0xffff;
                    }
                }
            }
        }
        // nothing is stuck: with every read answered each QP reaches its producer
        b.s.poke("request_ready", 1);
        b.s.poke("work_ready", 1);
        let mut turns = 0;
        while qps.iter().any(|q| b.tx[*q].cursor_wqe != b.post[*q]) {
            for q in qps {
                if b.turn(q).0.present {
                    b.tx[q].cursor_wqe = (b.tx[q].cursor_wqe + 1) & 0xffff;
                }
                b.deliver_all();
            }
            turns += 1;
            assert!(turns < 300, "seed {seed}: somebody is stuck");
        }
        assert!(hits > 100, "seed {seed}: {hits}");
    }
}

/// A card of 64 QPs whose WQEs share so many windows.
fn sharing(wqe_windows: u32) -> Config {
    Config { wqe_windows, ..Config::small() }
}

/// Plays schedule and segment for `qps` that have `posted` WQEs each, and a host that answers after `latency` clocks, until all
/// have been sent: turns and clocks that it took.
fn drain(b: &mut Bench, qps: std::ops::Range<usize>, posted: u64, latency: u64) -> (u64, u64) {
    let mut ready: std::collections::BTreeSet<usize> = qps.clone().collect();
    qps.clone().for_each(|q| b.post[q] = posted);
    let (mut turns, mut last, from) = (0, 0, b.clocks);
    let mut due = std::collections::VecDeque::new();
    while qps.clone().any(|q| b.tx[q].cursor_wqe != posted) {
        let next = ready.range(last + 1..).next().or(ready.first()).copied();
        if let Some(q) = next {
            (last, turns) = (q, turns + 1);
            ready.remove(&q);
            let items = b.items.len();
            b.start_turn(q, false);
            while b.items.len() == items {
                b.clock();
            }
            let item = &b.items[items];
            if item.present {
                assert_eq!(item.wqe, b.bytes(q, b.tx[q].cursor_wqe), "QP {q}");
                b.tx[q].cursor_wqe += 1;
                ready.insert(q);
            }
        }
        b.clock();
        while due.len() < b.pending.len() {
            due.push_back(b.clocks + latency);
        }
        while due.front().is_some_and(|at| *at <= b.clocks) {
            due.pop_front();
            b.deliver(0, false);
            while due.len() < b.pending.len() {
                due.push_back(b.clocks + latency);
            }
        }
        ready.extend(b.wakes.drain(..).map(|q| q as usize));
        assert!(b.clocks - from < 200_000, "stuck: {ready:?}");
    }
    (turns, b.clocks - from)
}

#[test]
fn qps_without_a_window_wait_to_be_called_and_each_wqe_is_read_once_or_little_more() {
    for (windows, qps) in [(4, 1), (4, 4), (4, 5), (4, 64), (32, 64)] {
        let mut b = Bench::at(sharing(windows));
        let (turns, clocks) = drain(&mut b, 0..qps, 12, 100);
        let (wqes, reads) = (12 * qps as u64, b.reads.len() as u64);
        let what = format!("{windows} windows, {qps} QPs: {turns} turns, {reads} reads, {clocks} clocks");
        println!("{what}");
        // each WQE once; where windows are too few, again what was read ahead by those that had to go first
        let again = if qps > windows as usize { u64::from(windows) * (SLOTS - 1) } else { 0 };
        assert!((wqes..=wqes + again).contains(&reads), "{what}");
        // a turn that finds it, one that asks for it, one that finds no window
        assert!(turns <= 3 * wqes + 64, "{what}");
        // what is done here one after the other, and a read under way in every window meanwhile
        let done = 17 * reads + 7 * turns;
        assert!(clocks <= done + 100 * reads / u64::from(windows).min(qps as u64) + 600, "{what}");
    }
}

#[test]
fn a_window_goes_to_another_when_its_reads_are_over_and_a_turn_has_seen_them() {
    let mut b = Bench::at(sharing(2));
    b.post[..4].fill(1);
    assert_eq!((b.turn(0).1.len(), b.turn(1).1.len()), (1, 1));
    // both have a read under way
    assert!(b.turn(2).1.is_empty());
    b.settle();
    assert!(b.wakes.is_empty(), "nobody is called while there is no window");
    // what has arrived is still to be seen
    b.deliver(0, false);
    b.settle();
    assert_eq!(b.wakes, [0]);
    assert!(b.turn(3).1.is_empty());
    assert_eq!(b.wakes, [0], "nor while nobody has seen what is in it");
    // now one is called, in their order, for one window
    assert!(b.turn(0).0.present);
    b.settle();
    assert_eq!(b.wakes, [0, 2]);
    let (item, reads) = b.turn(2);
    assert_eq!((item.present, reads.len()), (false, 1));
    assert!(b.turn(3).1.is_empty(), "it was QP 2's");
    b.deliver_all();
    assert_eq!(b.wakes, [0, 2, 1, 2]);
    assert!(b.turn(1).0.present && b.turn(2).0.present);
    b.settle();
    assert_eq!(b.wakes, [0, 2, 1, 2, 3], "once, although it has asked twice");
    // QP 0's WQE has gone: it is read again
    let (item, reads) = b.turn(0);
    assert_eq!((item.present, reads.len()), (false, 1));
}

#[test]
fn the_window_of_an_item_that_segment_has_stays() {
    let mut b = Bench::at(sharing(2));
    b.post[..4].fill(1);
    b.turn(0);
    b.turn(1);
    b.deliver_all();
    b.s.poke("work_ready", 0);
    b.start_turn(0, false);
    b.settle();
    // QP 1's has been seen by nobody, QP 0's is in segment's hands
    b.start_turn(2, false);
    b.settle();
    assert_eq!(b.pending, []);
    let word = |b: &mut Bench, at: u64| {
        b.s.poke("inline_index", at / 8);
        b.clock();
        b.s.peek("inline_word")
    };
    let want = u64::from_le_bytes(std::array::from_fn(|i| host(b.iova(0, 0) + 40 + i as u64)));
    assert_eq!(word(&mut b, 40), want);
    b.s.poke("work_ready", 1);
    b.settle();
    assert!(b.items.iter().any(|item| item.qp == 0 && item.present));
    assert_eq!(b.wakes.last(), Some(&2), "it is called when that is over");
}

#[test]
fn a_reset_qp_holds_no_window_once_its_reads_are_over() {
    let mut b = Bench::at(sharing(2));
    b.post[..4].fill(1);
    b.turn(0);
    b.turn(1);
    for q in [0, 1] {
        b.reset_qp(q, true);
        b.rights[q].state = QpState::Reset as u8;
    }
    assert!(b.turn(2).1.is_empty(), "their reads are under way");
    b.deliver_all();
    b.wakes.clear();
    assert_eq!((b.turn(2).1.len(), b.turn(3).1.len()), (1, 1));
    // and one whose reads arrived, but which nobody gives a turn any more
    b.deliver_all();
    b.reset_qp(2, true);
    b.reset_qp(3, true);
    b.post[4..6].fill(1);
    assert_eq!((b.turn(4).1.len(), b.turn(5).1.len()), (1, 1));
}

#[test]
fn the_turn_that_the_end_of_a_read_wakes_finds_its_wqe_and_waits_for_nothing() {
    // schedule gives it two clocks behind the wake; one that it had given before waits
    for (behind, clocks) in [(2, 3), (1, 3), (0, 3)] {
        let mut b = Bench::new();
        b.post[9] = 1;
        assert!(!b.turn(9).0.present);
        b.wakes.clear();
        b.deliver(0, false);
        let from = b.clocks;
        (0..behind).for_each(|_| b.clock());
        b.start_turn(9, false);
        assert_eq!(b.clocks - from, clocks, "a turn {behind} clocks behind");
        b.settle();
        assert_eq!((b.wakes.clone(), b.items[1].present), (vec![9], true));
    }
}

#[test]
fn a_hit_costs_three_clocks() {
    let mut b = Bench::new();
    for q in 0..8 {
        b.post[q] = 4;
        b.turn(q);
        b.deliver_all();
    }
    let from = b.clocks;
    for i in 0..32 {
        b.start_turn(i % 8, false);
    }
    // the last is taken in the first of its three clocks
    assert_eq!(b.clocks - from, 31 * 3 + 1);
}

#[test]
fn the_emitted_text_is_clean() {
    for c in [Config::small(), wide()] {
        lint(&elaborate(&Fetch(c)).unwrap());
    }
}
