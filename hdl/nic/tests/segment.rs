//! segment, by the interpreter: state memories are modelled here, a Rust model says what must come out.
//!
//! Requirements: ATOM CARD CMD ERR PKT QPS QUE RAW READ REQ RESP

mod txkit;

use contract::{QpQueues, QpRights, QpState, Reject, SendWqe, Transport, WcStatus};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::tx::segment::{Segment, WINDOW};
use std::collections::BTreeMap;
use txkit::{Choices, Outcome, OwedRead, Placed, Record, Requester, Tx, field, lint, reset, wide};

const PSN: u64 = 0xff_ffff;

/// What left on `data` or `control`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    qp: u64,
    opcode: u64,
    psn: u64,
    ack_req: bool,
    solicited: bool,
    wqe: u64,
    offset: u64,
    length: u64,
    dma_length: u64,
    syndrome: u64,
    msn: u64,
    value: u64,
    compare: u64,
    responds: bool,
    again: bool,
    /// Of a request.
    epoch: Option<u64>,
    imm: u64,
    inline: bool,
    more: u64,
    /// Inline data or further SGEs that came with it.
    words: Vec<u64>,
    /// Address, length and key of the first SGE.
    sge: (u64, u64, u64),
    va: u64,
    raw: bool,
}

/// The block with its words, and a WQE ring per QP.
struct Bench {
    s: Interpreter,
    tx: Vec<Tx>,
    requester: Vec<Requester>,
    placed: Vec<Placed>,
    rights: Vec<QpRights>,
    queues: Vec<QpQueues>,
    records: BTreeMap<u64, Record>,
    owed: BTreeMap<u64, OwedRead>,
    outcomes: BTreeMap<u64, Outcome>,
    /// Atomics executed.
    executed: Vec<u64>,
    /// Packets in gather, and whether they stay there.
    inside: u64,
    held: bool,
    /// Entry of the read list, SGEs, how many more.
    lists: Vec<(u64, Bits, u64)>,
    /// Entry, number, word.
    list_words: Vec<(u64, u64, u64)>,
    wqes: Vec<BTreeMap<u16, (SendWqe, bool)>>,
    /// QP and WQE of the present item.
    offered: (usize, u64),
    producer: Vec<u16>,
    packets: Vec<Packet>,
    words: Vec<u64>,
    /// Bytes of a word.
    width: u32,
    responses: Vec<Packet>,
    kicks: Vec<u64>,
    faults: Vec<(u64, u64, u64)>,
    /// QP, WQE, key.
    locals: Vec<(u64, u64, u64)>,
    /// QP and event.
    events: Vec<(u64, u64)>,
    rejects: Vec<u64>,
    retransmits: u64,
    fences: u64,
    data_ready: bool,
    control_ready: bool,
    clocks: u64,
}

impl Bench {
    fn new() -> Bench {
        Bench::at(Config::small())
    }

    fn at(c: Config) -> Bench {
        let (n, width) = (c.qps as usize, c.data_bytes);
        let mut s = Interpreter::new(&elaborate(&Segment(c)).unwrap());
        reset(&mut s);
        for ready in ["done_ready", "kick_ready", "fault_ready", "local_ready", "event_ready"] {
            s.poke(ready, 1);
        }
        let rights = QpRights { state: QpState::Rts as u8, valid: true, path_mtu: 3, ..QpRights::default() };
        let queues = (0..n)
            .map(|q| QpQueues {
                sq_log_depth: 8,
                sq_log_stride: 7,
                record_base: (q * 32) as u16,
                record_log_size: 5,
                response_base: (q * 4) as u16,
                response_log_size: 2,
                ..QpQueues::default()
            })
            .collect();
        Bench {
            s,
            tx: vec![Tx::default(); n],
            requester: vec![Requester::default(); n],
            placed: vec![Placed::default(); n],
            rights: vec![rights; n],
            queues,
            records: BTreeMap::new(),
            owed: BTreeMap::new(),
            outcomes: BTreeMap::new(),
            executed: vec![0; n],
            inside: 0,
            held: false,
            lists: vec![],
            list_words: vec![],
            wqes: vec![BTreeMap::new(); n],
            offered: (0, 0),
            producer: vec![0; n],
            packets: vec![],
            words: vec![],
            width,
            responses: vec![],
            kicks: vec![],
            faults: vec![],
            locals: vec![],
            events: vec![],
            rejects: vec![],
            retransmits: 0,
            fences: 0,
            data_ready: true,
            control_ready: true,
            clocks: 0,
        }
    }

    /// The PSN (and index) at which QP `q` stands: nothing outstanding.
    fn start_at(&mut self, q: usize, psn: u64, index: u64) {
        self.tx[q] = Tx {
            next_psn: psn,
            sent_psn: psn,
            cursor_psn: psn,
            cursor_first: psn,
            assigned: index,
            cursor_wqe: index,
            ..Tx::default()
        };
        self.requester[q] = Requester {
            una_wqe: index,
            got_wqe: index,
            una_psn: psn,
            got_first: psn,
            ..Requester::default()
        };
        self.producer[q] = index as u16;
    }

    fn post(&mut self, q: usize, mut wqe: SendWqe) -> u16 {
        let index = self.producer[q];
        wqe.index = index;
        self.wqes[q].insert(index, (wqe, false));
        self.producer[q] = index.wrapping_add(1);
        index
    }

    fn clock(&mut self) {
        let s = &mut self.s;
        s.poke("data_ready", u64::from(self.data_ready));
        s.poke("words_ready", u64::from(self.data_ready));
        s.poke("control_ready", u64::from(self.control_ready));
        if s.peek("words_valid") == 1 && self.data_ready {
            self.words.push(s.peek_bits("words").low());
        }
        let leaves = u64::from(self.inside > 0 && !self.held);
        self.inside -= leaves;
        s.poke("gone", leaves);
        if s.peek("tx_write_enable") == 1 {
            let q = s.peek("tx_write_address") as usize;
            self.tx[q] = Tx::unpack(&s.peek_bits("tx_write_data"));
        }
        if s.peek("record_write_enable") == 1 {
            let at = s.peek("record_write_address");
            self.records.insert(at, Record::unpack(&s.peek_bits("record_write_data")));
        }
        let entry = s.peek("read_list_entry");
        if s.peek("read_list_opens") == 1 {
            self.lists.push((entry, s.peek_bits("read_list_sges"), s.peek("read_list_more")));
        }
        if s.peek("read_list_adds") == 1 {
            self.list_words.push((entry, s.peek("read_list_index"), s.peek("read_list_word")));
        }
        for (stream, packet) in [("data", "data_packet"), ("control", "control")] {
            if s.peek(&format!("{stream}_valid")) == 0 || s.peek(&format!("{stream}_ready")) == 0 {
                continue;
            }
            let data = stream == "data";
            self.inside += u64::from(data);
            let [wqe, offset, responds, again, inline, more, requests, epoch] =
                ["wqe_index", "offset", "responds", "again", "inline", "more", "requests", "epoch"]
                    .map(|f| if data { s.peek(&format!("data_{f}")) } else { 0 });
            let sges = if data { s.peek_bits("data_sges") } else { Bits::zero(512) };
            let mut get = |f: &str| s.peek(&format!("{packet}_{f}"));
            if get("fence") == 1 {
                self.fences += 1;
                continue;
            }
            let p = Packet {
                qp: get("qp"),
                opcode: get("opcode"),
                psn: get("psn"),
                ack_req: get("ack_req") == 1,
                solicited: get("solicited") == 1,
                wqe,
                offset,
                length: get("length"),
                dma_length: get("dma_length"),
                syndrome: get("syndrome"),
                msn: get("msn"),
                value: get("value"),
                compare: get("compare"),
                responds: responds == 1,
                again: again == 1,
                epoch: (requests == 1).then_some(epoch),
                imm: get("imm"),
                inline: inline == 1,
                more,
                words: vec![],
                sge: (field(&sges, 0, 64), field(&sges, 64, 32), field(&sges, 96, 32)),
                va: get("va"),
                raw: get("raw") == 1,
            };
            let answers = (0x0d..=0x12).contains(&p.opcode);
            assert_eq!(p.epoch.is_some(), !answers, "answers are never worth nothing: {p:?}");
            if data { &mut self.packets } else { &mut self.responses }.push(p);
        }
        // words belong to packets in the order of both
        for p in self.packets.iter_mut().filter(|p| p.words.is_empty() && p.length > 0) {
            let n = words(self.width, if p.inline { p.length } else { 16 * p.more }) as usize;
            if n > self.words.len() {
                break;
            }
            p.words = self.words.drain(..n).collect();
        }
        if s.peek("kick_valid") == 1 {
            self.kicks.push(s.peek("kick_qp"));
        }
        if s.peek("fault_valid") == 1 {
            self.faults.push((s.peek("fault_qp"), s.peek("fault_wqe_index"), s.peek("fault_status")));
        }
        if s.peek("event_valid") == 1 && s.peek("event_ready") == 1 {
            assert_eq!((s.peek("event_kind"), s.peek("event_eq")), (2, 0));
            self.events.push((s.peek("event_object"), s.peek("event_event")));
        }
        if s.peek("local_valid") == 1 {
            self.locals.push((s.peek("local_qp"), s.peek("local_wqe_index"), s.peek("local_key")));
        }
        if s.peek("count_valid") == 1 {
            self.rejects.push(s.peek("count_index"));
        }
        self.retransmits += s.peek("retransmit");
        let q = s.peek("read_qp") as usize;
        let owed = self.owed.get(&s.peek("owed_address")).copied().unwrap_or_default();
        let outcome = self.outcomes.get(&s.peek("outcome_address")).copied().unwrap_or_default();
        let word = inline_word(self.offered, s.peek("inline_index"));
        s.clock();
        s.poke_bits("inline_word", &Bits::new(self.width * 8, word.into()));
        s.poke_bits("owed_word", &owed.pack());
        s.poke_bits("outcome_word", &outcome.pack());
        s.poke("executed_word", self.executed[q]);
        s.poke_bits("tx_word", &self.tx[q].pack());
        s.poke_bits("requester_word", &self.requester[q].pack());
        s.poke_bits("placed_word", &self.placed[q].pack());
        s.poke_bits("rights_word", &Bits::from_bytes(256, &self.rights[q].pack()));
        s.poke_bits("queues_word", &Bits::from_bytes(256, &self.queues[q].pack()));
        self.clocks += 1;
    }

    /// What fetch would say of QP `q`.
    fn offer(&mut self, q: usize) {
        let tx = self.tx[q];
        self.offered = (q, tx.cursor_wqe);
        let (wqe, failed) =
            self.wqes[q].get(&(tx.cursor_wqe as u16)).copied().unwrap_or((SendWqe::default(), false));
        let present =
            self.wqes[q].contains_key(&(tx.cursor_wqe as u16)) && tx.cursor_wqe as u16 != self.producer[q];
        let s = &mut self.s;
        s.poke("work_valid", 1);
        s.poke("work_qp", q as u64);
        s.poke("work_fence", 0);
        s.poke("work_present", u64::from(present));
        s.poke("work_failed", u64::from(failed));
        s.poke("work_producer", u64::from(self.producer[q]));
        let mut bytes = wqe.pack().to_vec();
        for i in 0..4u8 {
            bytes.extend([i + 1; 16]);
        }
        s.poke_bits("work_wqe", &Bits::from_bytes(1024, &bytes));
    }

    /// One turn of QP `q`; whether more was asked for.
    fn turn(&mut self, q: usize) -> bool {
        self.offer(q);
        for _ in 0..50 {
            let over = self.s.peek("done_valid") == 1;
            let again = self.s.peek("done_again") == 1;
            if over {
                assert_eq!(self.s.peek("done_qp"), q as u64);
                assert_eq!(self.s.peek("work_ready"), 1);
            }
            self.clock();
            if over {
                self.s.poke("work_valid", 0);
                return again;
            }
        }
        panic!("a turn of QP {q} did not end in 50 clocks");
    }

    /// Turns until none is asked for.
    fn run(&mut self, q: usize) {
        for _ in 0..100_000 {
            if !self.turn(q) {
                self.settle();
                return;
            }
        }
        panic!("QP {q} asks for turns without end: {:?}", self.tx[q]);
    }

    fn settle(&mut self) {
        for _ in 0..6 {
            self.clock();
        }
    }

    /// check and place have taken a READ of the peer: `length` bytes from `psn` on. The PSN behind it.
    fn read(&mut self, q: usize, psn: u64, length: u64) -> u64 {
        let index = self.placed[q].res_head;
        let last_psn = psn + length.div_ceil(128 << self.rights[q].path_mtu).max(1) - 1;
        let (va, rkey, msn) = (0x5_0000_0000 + psn * 7, 0x0abc_de00 + index, 100 + index);
        let last_psn = last_psn & PSN;
        let entry =
            OwedRead { index, first_psn: psn, last_psn, va, rkey, length, msn, ..OwedRead::default() };
        let queues = &self.queues[q];
        let at = u64::from(queues.response_base) + (index & ((1 << queues.response_log_size) - 1));
        self.owed.insert(at, entry);
        self.placed[q].res_head = (index + 1) & 0xff;
        (last_psn + 1) & PSN
    }

    /// check and place have taken an atomic of the peer, the `number`th; the PSN behind it.
    fn atomic(&mut self, q: usize, psn: u64, number: u64) -> u64 {
        let next = self.read(q, psn, 0);
        let entry = self.owed.values_mut().find(|e| e.first_psn == psn).expect("just taken");
        (entry.is_atomic, entry.number) = (1, number);
        next
    }

    /// It is executed.
    fn execute(&mut self, q: usize, psn: u64, outcome: Outcome) {
        let (at, _) = self.owed.iter().find(|(_, e)| e.first_psn == psn).expect("it was taken");
        self.outcomes.insert(*at, outcome);
        self.executed[q] = (self.executed[q] + 1) & 0xff;
    }

    /// A duplicate READ came through place.
    fn ask_again(&mut self, q: usize, index: u64, psn: u64) {
        let seq = (self.placed[q].rewind_seq + 1) & 0xff;
        self.placed[q] = Placed { rewind_seq: seq, rewind_index: index, rewind_psn: psn, ..self.placed[q] };
    }

    /// Everything sent so far is acknowledged.
    fn acknowledge_all(&mut self, q: usize) {
        let t = self.tx[q];
        let r = &mut self.requester[q];
        r.una_psn = t.cursor_psn;
        (r.una_wqe, r.got_wqe) = (t.cursor_wqe, t.cursor_wqe);
        r.got_first = t.cursor_first;
    }

    fn initialise(&mut self, q: usize, pokes: &[(&str, u64)]) {
        self.s.poke("initialise_valid", 1);
        self.s.poke("initialise_qp", q as u64);
        for f in ["receive", "send", "reset", "rq_psn", "sq_psn"] {
            let value = pokes.iter().find(|p| p.0 == f).map_or(0, |p| p.1);
            self.s.poke(&format!("initialise_{f}"), value);
        }
        for _ in 0..20 {
            let taken = self.s.peek("initialise_ready") == 1;
            self.clock();
            if taken {
                self.s.poke("initialise_valid", 0);
                return;
            }
        }
        panic!("initialise was not taken");
    }
}

/// Words of so many bytes that begin at byte 32 of a WQE, or at 96.
fn words(width: u32, bytes: u64) -> u64 {
    let lead = if bytes == 0 { 0 } else { 32 % u64::from(width) };
    (lead + bytes).div_ceil(width.into())
}

/// What fetch's memory holds at a word of a WQE, in its lowest bits.
fn inline_word((q, wqe): (usize, u64), word: u64) -> u64 {
    (q as u64) << 32 | wqe << 8 | word
}

fn write(length: u64) -> SendWqe {
    SendWqe { opcode: 0, num_sge: 1, length: length as u32, signaled: true, ..SendWqe::default() }
}

/// What a message of `length` bytes must look like: (opcode, offset, length) of each packet.
fn cut(wr: u8, length: u64, mtu: u64) -> Vec<(u64, u64, u64)> {
    let n = length.div_ceil(mtu).max(1);
    let [first, middle, last, only] = match wr {
        0 => [0x06, 0x07, 0x08, 0x0a],
        1 => [0x06, 0x07, 0x09, 0x0b],
        2 => [0x00, 0x01, 0x02, 0x04],
        _ => [0x00, 0x01, 0x03, 0x05],
    };
    (0..n)
        .map(|i| {
            let opcode = match (i == 0, i == n - 1) {
                (true, true) => only,
                (true, false) => first,
                (false, true) => last,
                (false, false) => middle,
            };
            (opcode, i * mtu, if i == n - 1 { length - i * mtu } else { mtu })
        })
        .collect()
}

fn seen(packets: &[Packet]) -> Vec<(u64, u64, u64)> {
    packets.iter().map(|p| (p.opcode, p.offset, p.length)).collect()
}

#[test]
fn every_length_is_cut_at_every_path_mtu() {
    let mut b = Bench::new();
    b.start_at(5, 0x100, 7);
    for code in 1..=5u8 {
        let mtu = 128u64 << code;
        b.rights[5].path_mtu = code;
        for length in [0, 1, mtu - 1, mtu, mtu + 1, 3 * mtu, 3 * mtu + 5] {
            for wr in 0..4 {
                b.packets.clear();
                let from = b.tx[5].next_psn;
                let index = b.post(5, SendWqe { opcode: wr, solicited: true, ..write(length) });
                b.run(5);
                let want = cut(wr, length, mtu);
                assert_eq!(seen(&b.packets), want, "opcode {wr}, {length} bytes at {mtu}");
                for (i, p) in b.packets.iter().enumerate() {
                    let last = i == want.len() - 1;
                    assert_eq!(p.psn, from + i as u64);
                    assert_eq!((p.qp, p.wqe, p.dma_length), (5, u64::from(index), length));
                    assert_eq!(p.ack_req, last);
                    assert_eq!(p.solicited, last && wr != 0);
                }
                let record = b.records[&(5 * 32 + u64::from(index) % 32)];
                let opcode = u64::from(wr < 2);
                let last_psn = from + want.len() as u64 - 1;
                assert_eq!(record, Record { last_psn, signaled: 1, opcode, status: 0, length, is_read: 0 });
                b.acknowledge_all(5);
            }
        }
    }
    assert_eq!(b.retransmits, 0);
}

#[test]
fn a_turn_goes_on_until_a_kib_of_its_message_is_complete() {
    let turns = |b: &mut Bench| {
        let mut counts = vec![];
        loop {
            let before = b.packets.len();
            let again = b.turn(5);
            b.settle();
            counts.push(b.packets.len() - before);
            if !again {
                return counts;
            }
        }
    };
    for (code, length, want) in [
        (1, 2500, vec![4, 4, 2]),
        (1, 1024, vec![4]),
        (1, 1025, vec![4, 1]),
        (2, 2500, vec![2, 2, 1]),
        (3, 2500, vec![1, 1, 1]),
        (5, 9000, vec![1, 1, 1]),
    ] {
        let mut b = Bench::new();
        b.start_at(5, 0xff_fffe, 7);
        b.rights[5].path_mtu = code;
        b.post(5, write(length));
        b.post(5, write(1));
        assert_eq!(turns(&mut b), [&want[..], &[1]].concat(), "{length} bytes at code {code}");
        // a packet per 4 clocks
        let mut b = Bench::new();
        b.rights[5].path_mtu = code;
        b.read(5, 0xff_fffe, length);
        let from = b.clocks;
        b.turn(5);
        assert_eq!(b.clocks - from, 4 * want[0] as u64);
        b.settle();
        let want = if want.len() == 1 { vec![0] } else { want[1..].to_vec() };
        assert_eq!(turns(&mut b), want, "READ of {length} bytes at code {code}");
    }
    // replay from within: to the same end
    let mut b = Bench::new();
    b.rights[5].path_mtu = 1;
    b.post(5, write(2048));
    b.run(5);
    b.requester[5].una_psn = 3;
    b.requester[5].epoch = 1;
    assert_eq!(turns(&mut b), [0, 1, 4]);
    // a rewind that comes meanwhile, and a full `data`, end it
    let mut b = Bench::new();
    b.rights[5].path_mtu = 1;
    b.post(5, write(1024));
    b.offer(5);
    (0..8).for_each(|_| b.clock());
    b.requester[5].epoch = 1;
    assert!(b.turn(5), "the rewind");
    b.settle();
    assert_eq!((b.packets.len(), b.tx[5].epoch, b.tx[5].cursor_psn), (2, 1, 0));
    b.data_ready = false;
    b.post(5, write(256));
    b.post(5, write(1024));
    assert!(b.turn(5) && b.turn(5), "four are taken");
    assert_eq!(b.tx[5].cursor_psn, 4);
    b.data_ready = true;
    b.run(5);
    assert_eq!(b.packets.len(), 2 + 4 + 1 + 4);
}

/// A turn with a READ to answer may do something else in the same clock, and then the WQE at hand is no longer the next.
#[test]
fn a_response_does_not_go_on_when_the_send_queue_went_on_beside_it() {
    let local = SendWqe { opcode: 7, imm: 1, ..SendWqe::default() };
    let mut b = Bench::new();
    b.rights[5].path_mtu = 1;
    b.read(5, 0xff_fffe, 1024);
    b.post(5, local);
    b.post(5, write(8));
    b.run(5);
    assert_eq!((b.locals.len(), b.packets.len(), b.rejects.len()), (1, 4, 0), "local invalidate");
    // a rewind
    let mut b = Bench::new();
    b.rights[5].path_mtu = 1;
    b.post(5, write(8));
    b.post(5, write(8));
    b.run(5);
    b.requester[5].epoch = 1;
    b.read(5, 0xff_fffe, 1024);
    b.run(5);
    assert_eq!((b.packets.len(), b.tx[5].epoch, b.rejects.len()), (2 + 4 + 2, 1, 0), "rewind");
    // a WQE that is bad is refused once
    let mut b = Bench::new();
    b.rights[5].path_mtu = 1;
    b.read(5, 0xff_fffe, 1024);
    b.post(5, SendWqe { opcode: 99, ..write(8) });
    b.post(5, write(8));
    b.turn(5);
    assert_eq!(b.rejects.len(), 1, "refusal");
}

#[test]
fn a_send_with_invalidate_names_its_key_and_its_last_packet_is_of_that_kind() {
    let mut b = Bench::new();
    b.rights[5].path_mtu = 1;
    b.start_at(5, 0x100, 0);
    for (length, opcodes) in [(0, vec![0x17]), (256, vec![0x17]), (600, vec![0x00, 0x01, 0x16])] {
        b.packets.clear();
        let imm = 0x4433_2211;
        let index = b.post(5, SendWqe { opcode: 9, imm, solicited: true, ..write(length) });
        b.run(5);
        let last = b.packets.last().unwrap().clone();
        assert_eq!(b.packets.iter().map(|p| p.opcode).collect::<Vec<_>>(), opcodes);
        assert_eq!((last.imm, last.solicited, last.ack_req), (imm.into(), true, true));
        assert_eq!(b.records[&(5 * 32 + u64::from(index))].opcode, 0);
        b.acknowledge_all(5);
    }
    assert_eq!((b.locals.len(), b.rejects.len()), (0, 0));
}

#[test]
fn a_local_invalidate_waits_for_all_before_it_and_all_behind_waits_for_it() {
    let mut b = Bench::new();
    b.start_at(5, 0x100, 7);
    b.post(5, write(8));
    let index = b.post(5, SendWqe { opcode: 7, imm: 0x1122_3344, ..SendWqe::default() });
    b.post(5, write(8));
    b.run(5);
    assert_eq!((b.packets.len(), b.locals.len()), (1, 0), "the WRITE may have to go again by that key");
    b.acknowledge_all(5);
    b.run(5);
    assert_eq!(b.locals, [(5, u64::from(index), 0x4433_2211)]);
    assert_eq!((b.packets.len(), b.tx[5].next_psn, b.tx[5].assigned), (1, 0x101, 9));
    let at = 5 * 32 + u64::from(index);
    let record = Record { last_psn: 0x100, signaled: 0, opcode: 6, status: 0, length: 0, is_read: 0 };
    assert_eq!(b.records[&at], record);
    // a wake on the way changes nothing
    b.run(5);
    b.run(5);
    assert_eq!((b.packets.len(), b.locals.len()), (1, 1));
    // acknowledge has retired it
    let r = &mut b.requester[5];
    (r.una_wqe, r.got_wqe) = (9, 9);
    b.run(5);
    assert_eq!((b.packets.len(), b.packets[1].psn, b.packets[1].wqe), (2, 0x101, 9));
    // two in a row: one after the other
    b.acknowledge_all(5);
    for _ in 0..2 {
        b.post(5, SendWqe { opcode: 7, imm: 1, ..SendWqe::default() });
    }
    b.run(5);
    assert_eq!((b.locals.len(), b.tx[5].assigned), (2, 11));
    let r = &mut b.requester[5];
    (r.una_wqe, r.got_wqe) = (11, 11);
    b.run(5);
    assert_eq!((b.locals.len(), b.tx[5].assigned, b.tx[5].next_psn), (3, 12, 0x102));
    // in SQD none begins
    let mut b = Bench::new();
    b.rights[5].state = QpState::Sqd as u8;
    b.post(5, SendWqe { opcode: 7, ..SendWqe::default() });
    b.run(5);
    assert_eq!(b.locals.len(), 0);
}

#[test]
fn a_drained_send_queue_is_told_once_for_each_time_it_was_asked_for() {
    let mut b = Bench::new();
    b.rights[5].path_mtu = 1;
    b.start_at(5, 0x100, 7);
    b.post(5, write(600));
    b.post(5, write(8));
    b.turn(5);
    // the first message has begun, the second has not
    b.rights[5].state = QpState::Sqd as u8;
    b.run(5);
    assert_eq!((b.packets.len(), b.events.len()), (3, 0));
    b.rights[5].drain = 1;
    b.run(5);
    assert_eq!(b.events.len(), 0, "the first message is not acknowledged");
    b.acknowledge_all(5);
    // nobody takes events for a while: it asks for turns
    b.s.poke("event_ready", 0);
    b.rights[6] = b.rights[5];
    b.rights[7] = b.rights[5];
    b.rights[8] = b.rights[5];
    assert!(!b.turn(6) && !b.turn(7), "there is room for two");
    assert!(b.turn(5) && b.turn(5));
    b.s.poke("event_ready", 1);
    b.run(5);
    assert_eq!(b.events, [(6, 5), (7, 5), (5, 5)]);
    b.run(5);
    assert_eq!(b.events.len(), 3);
    // again to RTS, where nothing is told, and to SQD with and without asking
    b.rights[5].state = QpState::Rts as u8;
    b.run(5);
    b.acknowledge_all(5);
    b.rights[5].state = QpState::Sqd as u8;
    b.run(5);
    assert_eq!((b.packets.len(), b.events.len()), (4, 3));
    b.rights[5].drain = 2;
    b.run(5);
    assert_eq!(b.events[3..], [(5, 5)]);
    // asked for and left: it does not come later
    b.rights[5] = QpRights { drain: 3, state: QpState::Rts as u8, ..b.rights[5] };
    b.run(5);
    b.rights[5].state = QpState::Sqd as u8;
    b.run(5);
    assert_eq!(b.events.len(), 4);
}

#[test]
fn inline_data_leaves_as_the_words_of_its_wqe_with_its_packet() {
    for c in [Config::small(), wide()] {
        let width = c.data_bytes;
        let mut b = Bench::at(c);
        b.start_at(5, PSN, 0xfffd);
        b.rights[5].path_mtu = 1;
        b.queues[5].sq_log_stride = 8;
        for length in [0, 1, 8, 9, 64, 96, 97, 219, 220] {
            for wr in 0..4 {
                b.packets.clear();
                let index = b.post(5, SendWqe { opcode: wr, inline: true, num_sge: 0, ..write(length) });
                let from = b.clocks;
                b.turn(5);
                // the first word is there before the decision
                assert_eq!(b.clocks - from, 4 + words(width, length).saturating_sub(1), "{length} bytes");
                b.settle();
                assert_eq!(seen(&b.packets), cut(wr, length, 256));
                let want: Vec<u64> = (0..words(width, length))
                    .map(|i| inline_word((5, index.into()), u64::from(32 / width) + i))
                    .collect();
                assert_eq!((b.packets[0].inline, &b.packets[0].words), (true, &want), "{length} bytes");
                assert_eq!(b.packets[0].dma_length, length);
                b.acknowledge_all(5);
            }
        }
        // what is sent again is read again
        b.packets.clear();
        let indices = [(); 2].map(|()| b.post(5, SendWqe { inline: true, ..write(20) }));
        b.run(5);
        b.requester[5].epoch = 1;
        b.run(5);
        let got: Vec<_> = b.packets.iter().map(|p| (p.wqe, p.words[0])).collect();
        let want = indices.map(|i| (u64::from(i), inline_word((5, i.into()), u64::from(32 / width))));
        assert_eq!(got, [want, want].concat());
        assert_eq!(b.retransmits, 2);
    }
}

#[test]
fn sges_from_the_fifth_on_leave_as_words_with_each_packet() {
    for c in [Config::small(), wide()] {
        let width = c.data_bytes;
        let mut b = Bench::at(c);
        b.start_at(5, 0, 0);
        b.queues[5].sq_log_stride = 9;
        for num_sge in [0, 1, 4, 5, 6, 15, 16] {
            b.packets.clear();
            let more = u64::from(num_sge).saturating_sub(4);
            let index = b.post(5, SendWqe { num_sge, ..write(3000) });
            let from = b.clocks;
            b.turn(5);
            assert_eq!(b.clocks - from, 4 + words(width, 16 * more).saturating_sub(1), "{num_sge} SGEs");
            b.run(5);
            let want: Vec<u64> = (0..words(width, 16 * more))
                .map(|i| inline_word((5, index.into()), u64::from(96 / width) + i))
                .collect();
            assert_eq!(b.packets.len(), 3);
            for p in &b.packets {
                assert_eq!((p.inline, p.more, &p.words), (false, more, &want), "{num_sge} SGEs");
            }
            // nothing is copied for nothing
            b.packets.clear();
            b.post(5, SendWqe { num_sge, ..write(0) });
            b.run(5);
            assert_eq!((b.packets.len(), b.packets[0].words.len(), b.words.len()), (1, 0, 0));
            b.acknowledge_all(5);
        }
    }
}

#[test]
fn inline_data_has_room_wherever_its_packet_has() {
    let mut b = Bench::new();
    b.start_at(5, 0, 0);
    b.queues[5].sq_log_stride = 8;
    for _ in 0..9 {
        b.post(5, SendWqe { inline: true, ..write(220) });
    }
    b.data_ready = false;
    for _ in 0..20 {
        b.turn(5);
    }
    assert_eq!(b.tx[5].cursor_wqe, 4, "gather takes nothing");
    b.data_ready = true;
    for _ in 0..300 {
        b.clock();
    }
    b.run(5);
    for _ in 0..300 {
        b.clock();
    }
    assert_eq!(b.packets.len(), 9);
    for (wqe, p) in b.packets.iter().enumerate() {
        let want: Vec<u64> = (4..32).map(|i| inline_word((5, wqe as u64), i)).collect();
        assert_eq!(p.words, want);
    }
    assert!(b.s.failures().is_empty());
}

#[test]
fn inline_data_that_the_stride_or_the_card_cannot_hold_is_a_bad_wqe_and_so_is_that_of_a_read() {
    let refused = |b: &mut Bench, wqe: SendWqe| {
        b.start_at(0, 5, 0);
        b.rights[0].max_rd_atomic = 4;
        b.post(0, wqe);
        b.run(0);
        (b.packets.len(), b.rejects.clone())
    };
    for (stride, most) in [(6, 32), (7, 96), (8, 220), (9, 220)] {
        for (length, good) in [(most, true), (most + 1, false), (most + 256, false), (1 << 31, false)] {
            let mut b = Bench::new();
            b.queues[0].sq_log_stride = stride;
            // SGEs are not counted
            let wqe = SendWqe { inline: true, num_sge: 255, ..write(length) };
            let (packets, rejects) = refused(&mut b, wqe);
            let bad = if good { vec![] } else { vec![Reject::WqeLength as u64] };
            assert_eq!((packets, rejects), (usize::from(good), bad), "{length} bytes, stride 2^{stride}");
            if !good {
                assert_eq!(b.records[&0].status, WcStatus::LocQpOpErr as u64);
            }
        }
    }
    for opcode in 4..=6 {
        let (packets, rejects) = refused(&mut Bench::new(), SendWqe { opcode, inline: true, ..write(8) });
        assert_eq!((packets, rejects), (0, vec![Reject::WqeOpcode as u64]), "opcode {opcode}");
    }
}

fn read(length: u64) -> SendWqe {
    SendWqe { opcode: 4, remote_addr: 0x7fff_0000_0123, rkey: 0xabcd, ..write(length) }
}

/// A bench whose QP 0 may have `limit` READs outstanding; entries 64.. of the read list are its own.
fn reader(limit: u8) -> Bench {
    let mut b = Bench::new();
    b.rights[0].path_mtu = 1;
    b.rights[0].max_rd_atomic = limit;
    b.queues[0].read_base = 64;
    b.queues[0].read_log_size = 2;
    b
}

/// (opcode, PSN, bytes asked for, VA) of each packet.
fn asked(packets: &[Packet]) -> Vec<(u64, u64, u64, u64)> {
    let of = |p: &Packet| (p.opcode, p.psn, p.dma_length, p.va.wrapping_sub(0x7fff_0000_0123));
    packets.iter().map(of).collect()
}

#[test]
fn an_atomic_is_a_read_of_eight_bytes_with_its_operands_in_the_request() {
    let mut b = reader(3);
    b.start_at(0, 0xff_fffe, 7);
    for opcode in [5, 6, 5, 6] {
        b.post(0, SendWqe { opcode, ..read(8) });
    }
    b.run(0);
    // the fourth waits: READs and atomics share max_rd_atomic
    let sent: Vec<_> = b.packets.iter().map(|p| (p.opcode, p.psn, p.va, p.length, p.ack_req)).collect();
    let va = 0x7fff_0000_0123;
    assert_eq!(
        sent,
        [(0x13, 0xff_fffe, va, 0, true), (0x14, 0xff_ffff, va, 0, true), (0x13, 0, va, 0, true)]
    );
    // the bench fills bytes 48..64 of a WQE, the place of the operands, with twos
    assert!(b.packets.iter().all(|p| (p.value, p.compare) == (0x0202_0202_0202_0202, 0x0202_0202_0202_0202)));
    assert_eq!(b.lists.iter().map(|l| l.0).collect::<Vec<_>>(), [64, 65, 66]);
    assert!(b.lists.iter().all(|l| field(&l.1, 128, 64) == 0), "the operands are no SGE");
    for (i, opcode) in [3, 4, 3].into_iter().enumerate() {
        let record = b.records[&(7 + i as u64)];
        assert_eq!((record.opcode, record.is_read, record.length), (opcode, 1, 8));
    }
    // replay repeats it
    b.packets.clear();
    b.requester[0].epoch = 1;
    b.run(0);
    assert_eq!(b.packets.iter().map(|p| p.opcode).collect::<Vec<_>>(), [0x13, 0x14, 0x13]);
    assert_eq!(b.lists.len(), 3);
}

#[test]
fn a_read_of_any_length_is_one_request_with_the_psns_of_its_responses() {
    let mut b = reader(16);
    for code in 1..=5u8 {
        let mtu = 128u64 << code;
        b.rights[0].path_mtu = code;
        for (length, psns) in
            [(0, 1), (1, 1), (mtu - 1, 1), (mtu, 1), (mtu + 1, 2), (3 * mtu, 3), (3 * mtu + 5, 4)]
        {
            // at the wrap of the PSN
            b.start_at(0, 0xff_fffe, 7);
            b.tx[0].rd_next = 5;
            b.requester[0].rd_retired = 5;
            b.packets.clear();
            b.lists.clear();
            b.post(0, SendWqe { num_sge: 2, solicited: true, ..read(length) });
            b.post(0, write(1));
            b.run(0);
            let [p, w] = &b.packets[..] else { panic!("{:?}", b.packets) };
            assert_eq!(asked(std::slice::from_ref(p)), [(0x0c, 0xff_fffe, length, 0)], "{length} at {mtu}");
            assert_eq!((p.length, p.ack_req, p.solicited), (0, true, false));
            assert_eq!((w.opcode, w.psn), (0x0a, (0xff_fffe + psns) & PSN));
            let last_psn = (0xff_fffe + psns - 1) & PSN;
            let record = Record { last_psn, signaled: 1, opcode: 2, status: 0, length, is_read: 1 };
            assert_eq!(b.records[&7], record);
            let t = b.tx[0];
            assert_eq!((t.next_psn, t.sent_psn, t.rd_next), ((w.psn + 1) & PSN, (w.psn + 1) & PSN, 6));
            // the two SGEs that the WQE has, in entry 64 + 5 % 4
            let mut sges = [0; 64];
            sges[..16].fill(1);
            sges[16..32].fill(2);
            assert_eq!(b.lists, [(65, Bits::from_bytes(512, &sges), 0)]);
        }
    }
    assert_eq!(b.list_words, []);
}

#[test]
fn the_sges_of_a_read_from_the_fifth_on_go_to_the_read_list_once() {
    for num_sge in [1, 4, 5, 6, 15, 16] {
        let more = u64::from(num_sge).saturating_sub(4);
        let mut b = reader(16);
        b.queues[0].sq_log_stride = 9;
        b.start_at(0, 100, 7);
        b.tx[0].rd_next = 5;
        b.requester[0].rd_retired = 5;
        let index = b.post(0, SendWqe { num_sge, ..read(5000) });
        let from = b.clocks;
        b.turn(0);
        assert_eq!(b.clocks - from, 4 + (2 * more).saturating_sub(1), "{num_sge} SGEs");
        b.post(0, SendWqe { num_sge, ..read(0) });
        b.run(0);
        // in entries 64 + 5 % 4 and the next; nothing is copied for nothing
        let want: Vec<_> = (0..2 * more).map(|i| (65, i, inline_word((0, index.into()), 12 + i))).collect();
        assert_eq!(b.list_words, want, "{num_sge} SGEs");
        assert_eq!(b.lists.iter().map(|l| (l.0, l.2)).collect::<Vec<_>>(), [(65, more), (66, more)]);
        // asked again from the middle on
        b.requester[0].una_psn = 102;
        b.requester[0].epoch = 1;
        b.run(0);
        assert_eq!(asked(&b.packets).len(), 4);
        assert_eq!((b.lists.len(), b.list_words.len()), (2, want.len()));
        for p in &b.packets {
            assert_eq!((p.more, p.words.len()), (0, 0));
        }
        assert_eq!(b.words, []);
        assert!(b.s.failures().is_empty());
    }
}

#[test]
fn no_more_reads_are_outstanding_than_the_peer_takes() {
    for limit in [1u8, 2, 16] {
        let mut b = reader(limit);
        // the count wraps on the way
        b.start_at(0, 0, 0);
        b.tx[0].rd_next = 250;
        b.requester[0].rd_retired = 250;
        for _ in 0..20 {
            b.post(0, read(600));
        }
        b.run(0);
        assert_eq!(b.packets.len(), usize::from(limit));
        // answered is not enough: its entry is free when its data is in memory
        b.requester[0].rd_got = 251;
        b.requester[0].una_psn = 3;
        b.requester[0].got_wqe = 1;
        b.requester[0].got_first = 3;
        b.run(0);
        assert_eq!(b.packets.len(), usize::from(limit));
        b.requester[0].rd_retired = 251;
        b.run(0);
        assert_eq!(b.packets.len(), usize::from(limit) + 1);
    }
}

#[test]
fn a_read_of_a_qp_that_may_have_none_is_bad_and_does_not_hang() {
    let mut b = reader(0);
    b.start_at(0, 50, 0);
    b.post(0, read(8));
    b.run(0);
    assert_eq!((b.packets.len(), b.kicks.clone()), (0, vec![0]));
    assert_eq!((b.records[&0].status, b.records[&0].is_read), (WcStatus::LocQpOpErr as u64, 0));
    assert_eq!((b.rejects.clone(), b.tx[0].rd_next), (vec![Reject::WqeOpcode as u64], 0));
}

#[test]
fn a_fence_waits_until_the_data_of_all_reads_is_in_memory() {
    let mut b = reader(4);
    b.start_at(0, 0, 0);
    b.post(0, read(600));
    b.post(0, read(8));
    b.post(0, SendWqe { fence: true, ..write(8) });
    b.post(0, write(8));
    b.run(0);
    assert_eq!(b.packets.len(), 2);
    b.requester[0].rd_retired = 1;
    b.run(0);
    assert_eq!(b.packets.len(), 2);
    b.requester[0].rd_retired = 2;
    b.run(0);
    assert_eq!(b.packets.len(), 4);
    // sent once, it does not wait again in replay
    b.post(0, read(8));
    b.run(0);
    b.requester[0] = Requester { epoch: 1, una_psn: 4, got_wqe: 2, got_first: 4, ..b.requester[0] };
    b.packets.clear();
    b.run(0);
    assert_eq!(asked(&b.packets).iter().map(|p| p.1).collect::<Vec<_>>(), [4, 5, 6]);
    assert_eq!(b.lists.len(), 3, "replay leaves the read list alone");
}

#[test]
fn a_read_repeated_from_its_middle_asks_for_the_rest_to_its_end() {
    let mut b = reader(4);
    b.start_at(0, 0xff_fffe, 9);
    b.post(0, read(5 * 256 + 17));
    b.post(0, write(8));
    b.run(0);
    let before = b.tx[0];
    for (n, (una, offset)) in [(0xff_fffe, 0), (0, 2 * 256), (3, 5 * 256)].into_iter().enumerate() {
        b.packets.clear();
        let epoch = n as u64 + 1;
        b.requester[0] =
            Requester { epoch, una_wqe: 9, got_wqe: 9, una_psn: una, got_first: 0xff_fffe, ..b.requester[0] };
        b.run(0);
        assert_eq!(
            asked(&b.packets)[..1],
            [(0x0c, una, 5 * 256 + 17 - offset, offset)],
            "from byte {offset}"
        );
        assert_eq!((b.packets[1].opcode, b.packets[1].psn), (0x0a, 4));
        assert_eq!(Tx { epoch: 0, unasked: 0, ..b.tx[0] }, Tx { epoch: 0, unasked: 0, ..before });
    }
    assert_eq!((b.retransmits, b.lists.len()), (6, 1));
}

#[test]
fn a_read_longer_than_what_may_be_in_flight_is_one_request_at_once() {
    for limit in [1u64, 2, 5, 128] {
        let mut b = reader(2);
        b.rights[0].max_inflight = limit as u16;
        b.start_at(0, 0xff_fff0, 0);
        for wqe in [write(8), read(300 * 256), read(200 * 256 + 1), write(8)] {
            b.post(0, wqe);
        }
        b.run(0);
        let first = 0xff_fff1;
        let second = (first + 300) & PSN;
        let wanted = [(0x0c, first, 300 * 256, 0), (0x0c, second, 200 * 256 + 1, 0)];
        assert_eq!(asked(&b.packets[1..]), wanted, "{limit} in flight");
        // what follows sees the PSNs of both
        let last = (second + 201) & PSN;
        for (una, sends) in [(last - limit, 0), (last - limit + 1, 1)] {
            b.packets.clear();
            b.requester[0] =
                Requester { una_psn: una & PSN, got_wqe: 2, got_first: second, ..b.requester[0] };
            b.run(0);
            assert_eq!(b.packets.len(), sends, "{limit} in flight");
        }
    }
}

#[test]
fn reads_fill_the_psn_window_stall_and_go_on_and_never_overrun_it() {
    let whole = WINDOW << 8;
    // behind a WRITE there is room for one PSN less than the window
    for (bytes, goes) in [(whole - 256, true), (whole - 255, false), (whole, false), (1 << 31, false)] {
        let mut b = reader(2);
        b.start_at(0, 0x10, 0);
        b.post(0, write(8));
        b.post(0, read(bytes));
        b.run(0);
        assert_eq!(b.packets.len(), 1 + usize::from(goes), "{bytes} bytes behind a WRITE");
        b.packets.clear();
        b.requester[0] =
            Requester { una_wqe: 1, got_wqe: 1, una_psn: 0x11, got_first: 0x11, ..b.requester[0] };
        b.run(0);
        let expected = [(0x0c, 0x11, bytes.min(whole), 0)];
        assert_eq!(asked(&b.packets), expected[..usize::from(!goes)], "{bytes} bytes alone");
    }
    // one that fills it: what is behind waits for one answer
    let mut b = reader(2);
    b.start_at(0, 5, 0);
    for wqe in [read(whole), read(8), write(8)] {
        b.post(0, wqe);
    }
    b.run(0);
    assert_eq!(asked(&b.packets), [(0x0c, 5, whole, 0)]);
    b.requester[0].una_psn = 6;
    b.run(0);
    assert_eq!(asked(&b.packets[1..]), [(0x0c, 5 + WINDOW, 8, 0)], "a READ, and the window is full again");
    b.requester[0].una_psn = 7;
    b.run(0);
    assert_eq!((b.packets.len(), b.packets[2].psn), (3, 6 + WINDOW));
    // the longest message at the smallest path MTU has one PSN more than the window
    let mut b = reader(2);
    b.start_at(0, 5, 0);
    b.post(0, read(1 << 31));
    b.post(0, write(8));
    b.run(0);
    assert_eq!(asked(&b.packets), [(0x0c, 5, whole, 0)]);
    for una in [6, 0x4000, 4 + WINDOW] {
        b.requester[0].una_psn = una;
        b.run(0);
        assert_eq!(b.packets.len(), 1, "its last packet waits for all before it");
        // repeated from there, it ends where it did
        b.requester[0].epoch = (b.requester[0].epoch + 1) & 15;
        b.run(0);
        let rest = (5 + WINDOW - una) << 8;
        assert_eq!(asked(&b.packets[1..]), [(0x0c, una, rest, whole - rest)]);
        b.packets.truncate(1);
    }
    b.requester[0].una_psn = 5 + WINDOW;
    b.run(0);
    assert_eq!(asked(&b.packets[1..2]), [(0x0c, 5 + WINDOW, 256, whole)]);
    assert_eq!((b.packets[2].opcode, b.packets[2].psn, b.packets.len()), (0x0a, 6 + WINDOW, 3));
    assert_eq!((b.tx[0].cursor_wqe, b.tx[0].next_psn, b.tx[0].rd_next, b.lists.len()), (2, 7 + WINDOW, 1, 1));
}

#[test]
fn a_read_of_any_length_is_answered_in_packets_of_the_path_mtu() {
    let mut b = Bench::new();
    b.start_at(5, 0x100, 7);
    let untouched = b.tx[5];
    let mut psn = 0xff_fff0;
    for code in 1..=5u8 {
        let mtu = 128u64 << code;
        b.rights[5].path_mtu = code;
        for length in [0, 1, mtu - 1, mtu, mtu + 1, 2 * mtu, 3 * mtu + 5] {
            let (first, index) = (psn, b.placed[5].res_head);
            psn = b.read(5, psn, length);
            b.packets.clear();
            b.run(5);
            let count = length.div_ceil(mtu).max(1);
            assert_eq!(b.packets.len() as u64, count, "{length} bytes at {mtu}");
            for (i, p) in b.packets.iter().enumerate() {
                let i = i as u64;
                let opcode = match (i, count - 1 - i) {
                    (0, 0) => 0x10,
                    (0, _) => 0x0d,
                    (_, 0) => 0x0f,
                    _ => 0x0e,
                };
                let part = (length - i * mtu).min(mtu);
                assert_eq!((p.opcode, p.psn, p.length), (opcode, (first + i) & PSN, part));
                assert_eq!((p.syndrome, p.msn, p.qp), (0x1f, 100 + index, 5));
                assert_eq!(p.sge, (0x5_0000_0000 + first * 7 + i * mtu, part, 0x0abc_de00 + index));
                assert_eq!((p.responds, p.ack_req, p.solicited, p.offset), (true, false, false, 0));
            }
            let next = (index + 1) & 0xff;
            assert_eq!((b.tx[5].res_cursor, b.tx[5].res_sent), (next, next));
        }
    }
    // nothing of the requester moved
    let t = b.tx[5];
    let requester = |t: Tx| (t.next_psn, t.sent_psn, t.cursor_psn, t.assigned, t.unasked);
    assert_eq!(requester(t), requester(untouched));
    assert_eq!((b.retransmits, b.responses.len()), (0, 0));
}

#[test]
fn the_tail_waits_for_the_reads_before_it_and_never_overtakes_their_responses() {
    let tail = |psn| Placed { tail_seq: 1, tail_syndrome: 0x1f, tail_psn: psn, ..Placed::default() };
    // the responses are still in gather: the tail goes behind them; else it passes data
    for held in [true, false] {
        let mut b = Bench::new();
        b.start_at(7, 0, 0);
        b.held = held;
        b.placed[7] = tail(0x105);
        let end = b.read(7, 0x100, 5 * 1024);
        assert_eq!(end, 0x105);
        for n in 0..5 {
            assert!(b.turn(7), "more is owed");
            b.settle();
            assert_eq!((b.packets.len(), b.responses.len(), b.tx[7].paid), (n + 1, 0, 0));
        }
        b.run(7);
        assert_eq!(
            (b.packets.len(), b.responses.len(), b.tx[7].paid),
            if held { (6, 0, 1) } else { (5, 1, 1) }
        );
        let ack = if held { &b.packets[5] } else { &b.responses[0] };
        assert_eq!((ack.opcode, ack.psn, ack.length, ack.responds), (0x11, 0x105, 0, false));
        // once they have left it, the next passes data again
        b.held = false;
        b.settle();
        b.placed[7].tail_seq = 2;
        b.run(7);
        assert_eq!((b.responses.last().map(|p| p.psn), b.tx[7].paid), (Some(0x105), 2));
    }
    // a response absorbs what is before it, an RNR NAK that came true as well
    for (syndrome, psn, alone) in [(0x1f, 0xff, 0), (0x2c, 0xff, 0), (0x1f, 0x100, 1), (0x60, 0x101, 1)] {
        let mut b = Bench::new();
        b.start_at(7, 0, 0);
        b.placed[7] = Placed { tail_syndrome: syndrome, ..tail(psn) };
        b.read(7, 0x100, 5);
        b.run(7);
        assert_eq!((b.packets.len(), b.tx[7].paid), (1, 1));
        assert_eq!(b.responses.len(), alone, "{syndrome:#x} at {psn:#x}");
    }
}

#[test]
fn a_duplicate_read_is_answered_from_its_packet_on_and_all_behind_it_again() {
    let mut b = Bench::new();
    b.start_at(3, 0, 0);
    let psn = b.read(3, 0x10, 3000);
    let psn = b.read(3, psn, 10);
    b.read(3, psn, 2000);
    b.run(3);
    let shown =
        |b: &mut Bench| std::mem::take(&mut b.packets).iter().map(|p| (p.opcode, p.psn)).collect::<Vec<_>>();
    let all = [(0x0d, 0x10), (0x0e, 0x11), (0x0f, 0x12), (0x10, 0x13), (0x0d, 0x14), (0x0f, 0x15)];
    assert_eq!(shown(&mut b), all);
    b.ask_again(3, 0, 0x11);
    b.run(3);
    assert_eq!(shown(&mut b), [&[(0x0d, 0x11)], &all[2..]].concat());
    // the last packet alone is an Only
    b.ask_again(3, 2, 0x15);
    b.run(3);
    assert_eq!(shown(&mut b), [(0x10, 0x15)]);
    assert_eq!((b.tx[3].res_cursor, b.tx[3].res_sent), (3, 3));

    // asked for what stands before the cursor, once more for what is to come anyway
    b.ask_again(3, 0, 0x10);
    b.turn(3);
    b.turn(3);
    b.turn(3);
    b.ask_again(3, 0, 0x12);
    b.turn(3);
    b.ask_again(3, 1, 0x13);
    b.turn(3);
    b.ask_again(3, 0, 0x11);
    b.run(3);
    assert_eq!(shown(&mut b), [&all[..2], &[(0x0d, 0x11)], &all[2..]].concat());

    // one whose place was needed again: on to what was never answered
    let mut psn = 0x16;
    for _ in 0..4 {
        psn = b.read(3, psn, 1);
    }
    b.ask_again(3, 0, 0x10);
    b.run(3);
    assert_eq!(shown(&mut b), [(0x10, 0x16), (0x10, 0x17), (0x10, 0x18), (0x10, 0x19)]);
    assert_eq!((b.tx[3].res_cursor, b.tx[3].res_sent), (7, 7));
}

#[test]
fn requests_and_read_responses_take_turns() {
    let mut b = Bench::new();
    b.start_at(1, 0, 0);
    b.post(1, write(20 * 1024));
    b.read(1, 0x1000, 20 * 1024);
    b.run(1);
    let kinds: Vec<bool> = b.packets.iter().map(|p| p.responds).collect();
    assert_eq!(kinds.len(), 40);
    assert!(kinds.windows(2).all(|pair| pair[0] != pair[1]), "{kinds:?}");
}

#[test]
fn read_responses_go_on_behind_a_nak_and_end_with_the_qp() {
    let mut b = Bench::new();
    b.start_at(1, 0, 0);
    b.read(1, 0x1000, 3000);
    b.placed[1] = Placed { tail_seq: 1, tail_syndrome: 0x62, tail_psn: 0x1003, halt: 1, ..b.placed[1] };
    b.turn(1);
    b.settle();
    assert_eq!((b.packets.len(), b.responses.len()), (1, 0));
    // gather could not read: only what place owes is still said
    b.requester[1].halt = 1;
    b.run(1);
    assert_eq!((b.packets.len(), b.responses.len()), (1, 1));
    // states: from RTR to before Err
    for (state, answers) in [
        (QpState::Init, false),
        (QpState::Rtr, true),
        (QpState::Rts, true),
        (QpState::Sqd, true),
        (QpState::Sqe, true),
        (QpState::Err, false),
    ] {
        let mut b = Bench::new();
        b.rights[1].state = state as u8;
        b.read(1, 0x1000, 3000);
        b.run(1);
        assert_eq!(b.packets.len(), if answers { 3 } else { 0 }, "{state:?}");
    }
}

#[test]
fn random_reads_and_duplicates_follow_the_model() {
    let (small, slow) = (Config::small(), Config::small().unhurried());
    for (seed, c) in (1..=6u64).map(|seed| (seed, &small)).chain((7..=9).map(|seed| (seed, &slow))) {
        let mut pick = Choices::new(seed);
        let mut b = Bench::at(c.clone());
        let q = pick.below(64) as usize;
        let (code, log) = (1 + pick.below(5) as u8, pick.below(3));
        let mtu = 128u64 << code;
        b.rights[q].path_mtu = code;
        b.queues[q].response_log_size = log as u8;
        b.start_at(q, 0, 0);
        let psn0 = PSN - pick.below(100);
        // READs: (first packet counted from the start, packets, bytes); the cursor and how far it ever came, in packets
        let mut reads: Vec<(u64, u64, u64)> = vec![];
        let (mut total, mut cursor, mut furthest, mut restart) = (0u64, 0u64, 0u64, false);
        let mut asked: Option<u64> = None;
        let (mut answered, mut lost) = (0, 0);
        for step in 0..3000 {
            let what = format!("seed {seed}, step {step}");
            let unsent = reads.iter().filter(|r| r.0 + r.1 > furthest).count() as u64;
            match pick.below(12) {
                0 if unsent < 1 << log => {
                    let odd = pick.below(6 * mtu);
                    let length = pick.of(&[0, 1, mtu, mtu + 1, 3 * mtu, odd]);
                    b.read(q, (psn0 + total) & PSN, length);
                    let n = length.div_ceil(mtu).max(1);
                    reads.push((total, n, length));
                    total += n;
                }
                1 if !reads.is_empty() => {
                    let at = reads.len() - 1 - pick.below(reads.len().min(1 << log) as u64) as usize;
                    let p = reads[at].0 + pick.below(reads[at].1);
                    b.ask_again(q, at as u64 & 0xff, (psn0 + p) & PSN);
                    asked = Some(p);
                }
                _ => {}
            }
            let mut want = vec![];
            if let Some(p) = asked.take() {
                if p < cursor {
                    (cursor, restart) = (p, true);
                }
            } else {
                // a turn of a KiB
                while let Some(at) = reads.iter().position(|r| cursor < r.0 + r.1) {
                    let (first, n, length) = reads[at];
                    let i = cursor - first;
                    if at + (1 << log) < reads.len() {
                        // its place was needed again
                        let unsent =
                            reads.iter().find(|r| r.0 + r.1 > furthest).expect("the newest at least");
                        (cursor, restart) = (unsent.0, false);
                        lost += 1;
                        break;
                    }
                    let kind = match (i == 0 || restart, i == n - 1) {
                        (true, true) => 3,
                        (true, false) => 0,
                        (false, true) => 2,
                        (false, false) => 1,
                    };
                    want.push((0x0d + kind, (psn0 + cursor) & PSN, (length - i * mtu).min(mtu)));
                    (cursor, restart) = (cursor + 1, false);
                    furthest = furthest.max(cursor);
                    answered += 1;
                    if i == n - 1 || ((i + 1) * mtu).is_multiple_of(1024) {
                        break;
                    }
                }
            }
            b.packets.clear();
            b.turn(q);
            b.settle();
            let got: Vec<_> = b.packets.iter().map(|p| (p.opcode, p.psn, p.length)).collect();
            assert_eq!(got, want, "{what}");
        }
        assert!(lost > 0 || log > 0, "seed {seed}: nothing was overwritten");
        assert!(answered > 500, "seed {seed}: {answered}");
    }
}

#[test]
fn sixteen_mebibytes_go_out_as_the_window_moves() {
    let mut b = Bench::new();
    b.rights[0].path_mtu = 5;
    b.rights[0].max_inflight = 100;
    // the PSN wraps on the way
    b.start_at(0, 0xff_f800, 0xffff);
    b.post(0, write(16 << 20));
    let mut rounds = 0;
    while b.tx[0].cursor_wqe == 0xffff {
        b.run(0);
        let t = b.tx[0];
        assert!((t.cursor_psn.wrapping_sub(b.requester[0].una_psn) & PSN) <= 100);
        assert!(b.packets.last().unwrap().ack_req, "the packet that closes the window asks");
        // acknowledged inside of the message: the WQE stays the oldest
        b.requester[0].una_psn = t.cursor_psn;
        rounds += 1;
    }
    assert_eq!(rounds, 41);
    assert_eq!(seen(&b.packets), cut(0, 16 << 20, 4096));
    for (i, p) in b.packets.iter().enumerate() {
        assert_eq!(p.psn, (0xff_f800 + i as u64) & PSN);
    }
    assert_eq!((b.tx[0].cursor_wqe, b.tx[0].assigned), (0, 0));
    assert_eq!(b.records[&31].last_psn, 0x7ff);
}

#[test]
fn every_sixteenth_packet_asks_for_an_acknowledgement() {
    let mut b = Bench::new();
    b.start_at(1, 0, 0);
    b.post(1, write(40 * 512));
    b.rights[1].path_mtu = 2;
    b.run(1);
    let asking: Vec<usize> = (0..40).filter(|i| b.packets[*i].ack_req).collect();
    assert_eq!(asking, [15, 31, 39]);
}

#[test]
fn the_window_is_kept_on_both_sides_of_its_limit() {
    for limit in [1u64, 2, 5] {
        let mut b = Bench::new();
        b.rights[2].max_inflight = limit as u16;
        b.start_at(2, 0xff_fffe, 0);
        (0..10).for_each(|_| {
            b.post(2, write(8));
        });
        b.run(2);
        assert_eq!(b.packets.len() as u64, limit);
        b.run(2);
        assert_eq!(b.packets.len() as u64, limit, "a closed window sends nothing");
        b.requester[2].una_psn = 0xff_ffff;
        b.requester[2].got_first = 0xff_ffff;
        (b.requester[2].una_wqe, b.requester[2].got_wqe) = (1, 1);
        b.run(2);
        assert_eq!(b.packets.len() as u64, limit + 1, "one acknowledged, one more");
    }
    // without a limit, half of the PSN space less one
    for (ahead, sends) in [(WINDOW - 1, 1), (WINDOW, 0)] {
        let mut b = Bench::new();
        b.start_at(2, ahead, 9);
        b.requester[2] = Requester { una_wqe: 8, got_wqe: 8, ..Requester::default() };
        b.post(2, write(8));
        b.run(2);
        assert_eq!(b.packets.len(), sends);
    }
}

#[test]
fn a_message_of_2_31_bytes_fills_the_psn_window_stalls_and_goes_on_to_its_last_byte() {
    // at path MTU 256 it has one PSN more than the window
    const BYTES: u64 = 1 << 31;
    for wr in [0, 2] {
        let mut b = Bench::new();
        b.rights[0].path_mtu = 1;
        b.rights[0].max_inflight = 1;
        b.start_at(0, 0xff_fff0, 0);
        let psn = |ahead: u64| (0xff_fff0 + ahead) & PSN;
        b.post(0, SendWqe { opcode: wr, ..write(BYTES) });
        b.post(0, write(8));
        b.run(0);
        let [first, middle, last] = if wr == 0 { [0x06, 0x07, 0x08] } else { [0x00, 0x01, 0x02] };
        assert_eq!(seen(&b.packets), [(first, 0, 256)]);
        assert_eq!(b.records[&0].last_psn, psn(WINDOW));
        // all has gone but the last two for which the window has room; nothing is acknowledged
        b.rights[0].max_inflight = 0;
        (b.tx[0].cursor_psn, b.tx[0].sent_psn) = (psn(WINDOW - 2), psn(WINDOW - 2));
        b.packets.clear();
        b.run(0);
        b.run(0);
        let middles = [(middle, (WINDOW - 2) << 8, 256), (middle, (WINDOW - 1) << 8, 256)];
        assert_eq!(seen(&b.packets), middles, "the window is full");
        assert_eq!([b.packets[0].psn, b.packets[1].psn], [psn(WINDOW - 2), psn(WINDOW - 1)]);
        assert!(b.packets[1].ack_req, "the packet that fills it asks");
        // each PSN that is acknowledged makes room for one: for the last packet, then for the message behind it
        b.requester[0].una_psn = psn(1);
        b.run(0);
        assert_eq!(seen(&b.packets[2..]), [(last, BYTES - 256, 256)]);
        assert_eq!((b.packets[2].psn, b.packets[2].ack_req), (psn(WINDOW), true));
        b.requester[0].una_psn = psn(2);
        b.run(0);
        assert_eq!(seen(&b.packets[3..]), [(0x0a, 0, 8)]);
        assert_eq!((b.packets[3].psn, b.tx[0].cursor_wqe), (psn(WINDOW + 1), 2));
        // again from the oldest unacknowledged, in the middle of the message
        b.packets.clear();
        b.rights[0].max_inflight = 1;
        b.requester[0].epoch = 1;
        b.run(0);
        assert_eq!(seen(&b.packets), [(middle, 512, 256)]);
        assert_eq!((b.packets[0].psn, b.tx[0].next_psn), (psn(2), psn(WINDOW + 2)));
    }
}

#[test]
fn a_full_record_ring_waits_for_a_retired_wqe() {
    let mut b = Bench::new();
    b.queues[3].record_log_size = 2;
    b.start_at(3, 50, 0xfffe);
    (0..6).for_each(|_| {
        b.post(3, write(1));
    });
    b.run(3);
    assert_eq!(b.packets.len(), 4);
    assert_eq!(b.tx[3].next_psn, 54);
    b.requester[3] =
        Requester { una_wqe: 0xffff, got_wqe: 0xffff, una_psn: 51, got_first: 51, ..b.requester[3] };
    b.run(3);
    assert_eq!(b.packets.len(), 5);
    b.requester[3] = Requester { una_wqe: 3, got_wqe: 3, una_psn: 55, got_first: 55, ..b.requester[3] };
    b.run(3);
    assert_eq!(b.packets.len(), 6);
    assert_eq!(b.records.keys().copied().collect::<Vec<_>>(), [96, 97, 98, 99]);
    assert_eq!(b.tx[3].cursor_wqe, 4);
}

#[test]
fn a_rewind_goes_to_the_middle_of_a_message_and_to_an_earlier_wqe() {
    let mut b = Bench::new();
    b.start_at(4, 0xff_fff0, 20);
    b.post(4, write(5 * 1024 + 3));
    b.post(4, SendWqe { opcode: 3, ..write(2 * 1024) });
    b.run(4);
    let all = b.packets.clone();
    assert_eq!(all.len(), 8);
    let (word, records) = (b.tx[4], b.records.clone());
    for (epoch, lost) in [(1, 3u64), (2, 0), (3, 7), (4, 6), (5, 1)] {
        b.packets.clear();
        b.retransmits = 0;
        let (wqe, first) = if lost < 6 { (20, 0xff_fff0) } else { (21, 0xff_fff6) };
        b.requester[4] = Requester {
            epoch,
            una_wqe: wqe,
            got_wqe: wqe,
            una_psn: (0xff_fff0 + lost) & PSN,
            got_first: first & PSN,
            ..b.requester[4]
        };
        b.run(4);
        assert_eq!(seen(&b.packets), seen(&all[lost as usize..]), "lost {lost}");
        assert_eq!(b.packets[0].psn, all[lost as usize].psn);
        assert!(b.packets.iter().all(|p| p.epoch == Some(epoch)));
        assert!(b.packets[0].ack_req, "the oldest unanswered packet asks");
        assert_eq!(b.retransmits, 8 - lost);
        assert_eq!(Tx { epoch: 0, unasked: 0, ..b.tx[4] }, Tx { epoch: 0, unasked: 0, ..word });
        assert_eq!(b.records, records, "replay writes no record");
    }
    // the epoch wraps and still differs
    b.requester[4].epoch = 4;
    assert!(b.turn(4));
    assert_eq!(b.tx[4].epoch, 4);
}

#[test]
fn a_cursor_overtaken_by_acknowledgements_jumps_forward() {
    let mut b = Bench::new();
    b.start_at(6, 10, 0);
    for _ in 0..3 {
        b.post(6, write(2048));
    }
    b.run(6);
    // everything is lost, then the acknowledgement of all but the last packet arrives late
    b.requester[6].epoch = 1;
    assert!(b.turn(6));
    assert!(b.turn(6));
    assert_eq!(b.tx[6].cursor_psn, 11);
    b.settle();
    b.requester[6] = Requester { una_psn: 15, una_wqe: 2, got_wqe: 2, got_first: 14, ..b.requester[6] };
    b.packets.clear();
    b.run(6);
    assert_eq!(seen(&b.packets), [(0x08, 1024, 1024)]);
    assert_eq!(b.packets[0].psn, 15);
    // same PSN, later WQE: the triple moved in two steps, and in between the cursor lies behind its WQE
    b.post(6, write(1));
    b.requester[6] =
        Requester { una_psn: 16, una_wqe: 2, got_wqe: 2, got_first: 14, epoch: 2, ..b.requester[6] };
    b.packets.clear();
    b.run(6);
    assert_eq!((b.tx[6].cursor_wqe, b.packets.len()), (2, 0));
    b.requester[6] = Requester { una_psn: 16, una_wqe: 3, got_wqe: 3, got_first: 16, ..b.requester[6] };
    b.run(6);
    assert_eq!(b.tx[6].cursor_wqe, 4);
    assert_eq!((b.packets.len(), b.packets[0].psn, b.packets[0].wqe), (1, 16, 3));
}

#[test]
fn a_response_goes_beside_requests_and_while_halted() {
    let mut b = Bench::new();
    b.start_at(7, 0, 0);
    b.post(7, write(1));
    b.placed[7] =
        Placed { tail_seq: 9, tail_syndrome: 0x1f, tail_psn: 0x77, tail_msn: 0x88, ..Placed::default() };
    assert!(!b.turn(7), "one turn does both");
    b.settle();
    assert_eq!((b.packets.len(), b.responses.len()), (1, 1));
    let r = &b.responses[0];
    assert_eq!((r.opcode, r.qp, r.psn, r.syndrome, r.msn), (0x11, 7, 0x77, 0x1f, 0x88));
    assert_eq!((r.length, r.ack_req), (0, false));
    assert_eq!(b.tx[7].paid, 9);
    b.run(7);
    assert_eq!((b.packets.len(), b.responses.len()), (1, 1), "paid once");

    // beside a rewind
    b.requester[7].epoch = 1;
    b.placed[7].tail_seq = 10;
    assert!(b.turn(7));
    b.settle();
    assert_eq!((b.packets.len(), b.responses.len()), (1, 2));
    assert_eq!((b.tx[7].epoch, b.tx[7].paid, b.tx[7].cursor_wqe), (1, 10, 0));
    b.acknowledge_all(7);
    b.run(7);
    assert_eq!((b.packets.len(), b.responses.len(), b.tx[7].cursor_wqe), (2, 2, 1));

    // halted everywhere: requests stop, the response leaves
    b.post(7, write(1));
    b.placed[7] = Placed { tail_seq: 11, tail_syndrome: 0x62, halt: 1, ..b.placed[7] };
    b.requester[7].halt = 1;
    b.run(7);
    assert_eq!((b.packets.len(), b.responses.len()), (2, 3));
    // states: only from RTR to before Err
    for (state, answers) in [
        (QpState::Reset, false),
        (QpState::Init, false),
        (QpState::Rtr, true),
        (QpState::Rts, true),
        (QpState::Sqd, true),
        (QpState::Sqe, true),
        (QpState::Err, false),
    ] {
        b.responses.clear();
        b.rights[7].state = state as u8;
        b.placed[7].tail_seq += 1;
        b.run(7);
        assert_eq!(b.responses.len() == 1, answers, "{state:?}");
    }
    b.rights[7] = QpRights { valid: false, state: QpState::Rts as u8, ..b.rights[7] };
    b.placed[7].tail_seq += 1;
    b.responses.clear();
    b.run(7);
    assert!(b.responses.is_empty());
}

#[test]
fn nothing_is_sent_while_any_condition_forbids_it() {
    type Edit = fn(&mut Bench);
    let forbids: [(&str, Edit); 11] = [
        ("not RTS", |b| b.rights[0].state = QpState::Rtr as u8),
        ("error", |b| b.rights[0].state = QpState::Err as u8),
        ("drained: new WQEs wait", |b| b.rights[0].state = QpState::Sqd as u8),
        ("invalid", |b| b.rights[0].valid = false),
        ("not RC", |b| b.rights[0].transport = 1),
        ("path MTU 0", |b| b.rights[0].path_mtu = 0),
        ("path MTU 6", |b| b.rights[0].path_mtu = 6),
        ("RNR wait", |b| b.requester[0].waiting = 1),
        ("requester halted", |b| b.requester[0].halt = 1),
        ("responder halted", |b| b.placed[0].halt = 1),
        ("fault", |b| {
            b.requester[0].fault = 1;
            b.requester[0].fault_wqe = 0;
        }),
    ];
    for (why, edit) in forbids {
        let mut b = Bench::new();
        b.start_at(0, 0, 0);
        b.post(0, write(1));
        edit(&mut b);
        let before = b.tx[0];
        assert!(!b.turn(0), "{why}");
        b.settle();
        assert!(b.packets.is_empty(), "{why}");
        assert_eq!(b.tx[0], before, "{why}");
    }
    // not present, or nothing posted
    let mut b = Bench::new();
    b.start_at(0, 0, 0);
    assert!(!b.turn(0));
    b.producer[0] = 1;
    assert!(!b.turn(0));
    assert!(b.packets.is_empty());
    // a fault at a later WQE lets the earlier ones go; draining finishes what has PSNs
    let mut b = Bench::new();
    b.start_at(0, 0, 0xffff);
    (0..3).for_each(|_| {
        b.post(0, write(3000));
    });
    b.turn(0);
    b.rights[0].state = QpState::Sqd as u8;
    b.run(0);
    assert_eq!(b.packets.len(), 3, "SQD finishes the WQE that it has begun");
    b.rights[0].state = QpState::Rts as u8;
    b.requester[0].fault = 1;
    b.requester[0].fault_wqe = 1;
    b.run(0);
    assert_eq!(b.packets.iter().map(|p| p.wqe).collect::<Vec<_>>(), [0xffff, 0xffff, 0xffff, 0, 0, 0]);
}

#[test]
fn every_kind_of_bad_wqe_is_recorded_and_halts_what_follows() {
    let good = write(100);
    let kinds: [(SendWqe, Option<u16>, bool, Reject); 14] = [
        (good, None, true, Reject::SqFetchFailed),
        (good, Some(77), false, Reject::WqeIndex),
        (SendWqe { opcode: 4, ..good }, None, false, Reject::WqeOpcode),
        (SendWqe { opcode: 5, ..write(8) }, None, false, Reject::WqeOpcode),
        (SendWqe { opcode: 8, ..good }, None, false, Reject::WqeOpcode),
        (SendWqe { opcode: 6, ..write(4) }, None, false, Reject::WqeLength),
        (SendWqe { opcode: 5, num_sge: 2, ..write(8) }, None, false, Reject::WqeLength),
        (SendWqe { opcode: 10, ..good }, None, false, Reject::WqeOpcode),
        (SendWqe { opcode: 7, inline: true, ..good }, None, false, Reject::WqeOpcode),
        (SendWqe { opcode: 255, ..good }, None, false, Reject::WqeOpcode),
        (SendWqe { inline: true, ..good }, None, false, Reject::WqeLength),
        (SendWqe { num_sge: 7, ..good }, None, false, Reject::WqeLength),
        (SendWqe { length: 0x8000_0001, ..good }, None, false, Reject::WqeLength),
        (SendWqe { length: 0xffff_ffff, ..good }, None, false, Reject::WqeLength),
    ];
    for (wqe, index, failed, reject) in kinds {
        let mut b = Bench::new();
        b.start_at(9, 0x500, 3);
        // a length is looked at where READs and atomics may be sent at all
        b.rights[9].max_rd_atomic = u8::from(reject == Reject::WqeLength);
        b.post(9, write(2000));
        let bad = b.post(9, wqe);
        let slot = b.wqes[9].get_mut(&bad).unwrap();
        slot.0.index = index.unwrap_or(bad);
        slot.1 = failed;
        b.post(9, good);
        b.run(9);
        assert_eq!(b.packets.len(), 2, "{reject:?}");
        assert_eq!((b.kicks.clone(), b.rejects.clone()), (vec![9], vec![reject as u64]));
        let record = b.records[&(9 * 32 + 4)];
        assert_eq!((record.status, record.last_psn), (WcStatus::LocQpOpErr as u64, 0x501));
        let t = b.tx[9];
        assert_eq!((t.halt, t.assigned, t.cursor_wqe, t.next_psn), (1, 5, 4, 0x502));
        // a rewind still replays what came before, and only that
        b.requester[9].epoch = 1;
        b.run(9);
        assert_eq!((b.packets.len(), b.retransmits), (4, 2));
        assert_eq!((b.kicks.len(), b.faults.len()), (1, 0), "the bad WQE is looked at once");
    }
}

#[test]
fn the_largest_message_and_the_most_sges_are_taken() {
    let mut b = Bench::new();
    b.start_at(0, 5, 0);
    b.rights[0].max_inflight = 1;
    b.rights[0].path_mtu = 1;
    b.post(0, SendWqe { num_sge: 4, ..write(1 << 31) });
    b.run(0);
    assert_eq!(seen(&b.packets), [(0x06, 0, 256)]);
    assert_eq!(b.records[&0].last_psn, 4 + (1 << 23));
    // as many as the stride holds
    for ((stride, most), opcode) in
        [(6, 2), (7, 6), (8, 14), (9, 16)].into_iter().flat_map(|s| [(s, 0), (s, 4)])
    {
        for (num_sge, ok) in [(most, true), (most + 1, false), (255, false)] {
            let mut b = Bench::new();
            b.start_at(0, 5, 0);
            b.rights[0].max_rd_atomic = 1;
            b.queues[0].sq_log_stride = stride;
            b.post(0, SendWqe { opcode, num_sge, ..write(100) });
            b.run(0);
            assert_eq!(b.packets.len() == 1, ok, "{num_sge} SGEs of opcode {opcode}, stride 2^{stride}");
        }
    }
}

#[test]
fn unused_sges_leave_as_zeros() {
    for num_sge in 0..=4u8 {
        let mut b = Bench::new();
        b.start_at(0, 0, 0);
        b.post(0, SendWqe { num_sge, ..write(10) });
        b.data_ready = false;
        b.run(0);
        let bytes = b.s.peek_bits("data_sges").to_bytes();
        for (i, sge) in bytes.chunks(16).enumerate() {
            let want = if i < num_sge as usize { i as u8 + 1 } else { 0 };
            assert_eq!(sge, [want; 16], "SGE {i} of {num_sge}");
        }
    }
}

#[test]
fn a_wqe_that_turns_bad_under_replay_is_a_fault_for_acknowledge() {
    let mut b = Bench::new();
    b.start_at(3, 0, 0);
    let index = b.post(3, write(10));
    b.run(3);
    b.requester[3].epoch = 1;
    b.wqes[3].get_mut(&index).unwrap().1 = true;
    b.run(3);
    assert_eq!(b.faults, [(3, 0, WcStatus::LocQpOpErr as u64)]);
    assert_eq!((b.packets.len(), b.kicks.len(), b.tx[3].halt), (1, 0, 0));
}

#[test]
fn full_data_asks_for_another_turn_and_lets_responses_pass() {
    let mut b = Bench::new();
    b.data_ready = false;
    b.start_at(1, 0, 0);
    (0..9).for_each(|_| {
        b.post(1, write(1));
    });
    for i in 0..12 {
        assert_eq!(b.s.peek("room"), u64::from(i < 2));
        assert!(b.turn(1), "turn {i}");
        b.settle();
    }
    assert_eq!(b.tx[1].cursor_wqe, 4, "four fit the FIFO");
    b.placed[2].tail_seq = 1;
    b.run(2);
    assert_eq!(b.responses.len(), 1);
    b.data_ready = true;
    b.run(1);
    assert_eq!(b.packets.len(), 9);
    assert!(b.packets.iter().enumerate().all(|(i, p)| p.psn == i as u64));
}

#[test]
fn a_fence_waits_for_room_and_ends_no_turn() {
    let mut b = Bench::new();
    b.data_ready = false;
    b.start_at(1, 0, 0);
    (0..4).for_each(|_| {
        b.post(1, write(1));
        b.turn(1);
    });
    b.s.poke("work_valid", 1);
    b.s.poke("work_fence", 1);
    for _ in 0..20 {
        assert_eq!((b.s.peek("done_valid"), b.s.peek("work_ready")), (0, 0));
        b.clock();
    }
    b.data_ready = true;
    while b.s.peek("work_ready") == 0 {
        b.clock();
    }
    b.clock();
    b.s.poke("work_valid", 0);
    b.settle();
    assert_eq!((b.packets.len(), b.fences), (4, 1));
    assert_eq!(b.s.peek("idle"), 1);
}

#[test]
fn initialise_starts_and_clears_a_word() {
    let mut b = Bench::new();
    let old = Tx {
        next_psn: 1,
        sent_psn: 2,
        assigned: 3,
        cursor_wqe: 4,
        cursor_psn: 5,
        cursor_first: 6,
        epoch: 7,
        paid: 8,
        unasked: 9,
        rd_next: 3,
        halt: 1,
        res_cursor: 10,
        res_sent: 11,
        res_inside: 1,
        res_restart: 1,
        res_psn: 12,
        res_rewind: 13,
        res_marked: 1,
        res_mark: 14,
        res_turn: 1,
        drained: 9,
    };
    let psn = 0xab_cdef;
    let receives = |t: Tx| Tx {
        paid: 0,
        res_cursor: 0,
        res_sent: 0,
        res_inside: 0,
        res_restart: 0,
        res_psn: 0,
        res_rewind: 0,
        res_marked: 0,
        res_mark: 0,
        res_turn: 0,
        ..t
    };
    let fresh = Tx {
        next_psn: psn,
        sent_psn: psn,
        assigned: 0,
        rd_next: 0,
        cursor_wqe: 0,
        cursor_psn: psn,
        cursor_first: psn,
        epoch: 0,
        unasked: 0,
        halt: 0,
        drained: 0,
        ..old
    };
    for (pokes, want) in [
        (vec![("send", 1), ("sq_psn", psn)], fresh),
        (vec![("receive", 1), ("rq_psn", 99)], receives(old)),
        (vec![("receive", 1), ("send", 1), ("sq_psn", psn)], receives(fresh)),
        (vec![("reset", 1)], Tx::default()),
        (vec![], old),
    ] {
        b.tx[9] = old;
        b.initialise(9, &pokes);
        assert_eq!(b.tx[9], want, "{pokes:?}");
    }
}

/// The send side as plain arithmetic, written from the rules and not from the RTL.
struct Model {
    next: u64,
    /// (first PSN, packets) of each WQE that has PSNs, by index.
    assigned: Vec<(u64, u64)>,
    lengths: Vec<u64>,
    /// Absolute position: WQE and packet in it.
    at: (usize, u64),
}

#[test]
fn random_messages_losses_and_acknowledgements_follow_the_model() {
    for seed in 1..=4u64 {
        let mut pick = Choices::new(seed);
        let mut b = Bench::new();
        let code = 1 + pick.below(5) as u8;
        let (mtu, q) = (128u64 << code, pick.below(64) as usize);
        let limit = 1 + pick.below(40);
        let log_records = 1 + pick.below(4);
        b.rights[q].path_mtu = code;
        b.rights[q].max_inflight = limit as u16;
        b.queues[q].record_log_size = log_records as u8;
        let (psn0, index0) = (PSN - pick.below(60), 0xffff - pick.below(10));
        b.start_at(q, psn0, index0);
        let mut m = Model { next: 0, assigned: vec![], lengths: vec![], at: (0, 0) };
        // una as an absolute packet count, and the oldest WQE not retired
        let (mut una, mut una_wqe, mut sent, mut epoch) = (0u64, 0usize, 0u64, 0u64);
        for step in 0..1000 {
            let what = format!("seed {seed}, step {step}");
            match pick.below(8) {
                0 if m.lengths.len() < una_wqe + 200 => {
                    let length = match pick.below(4) {
                        0 => pick.below(3),
                        1 => mtu * pick.below(4),
                        _ => pick.below(6 * mtu),
                    };
                    b.post(q, SendWqe { opcode: pick.below(4) as u8, ..write(length) });
                    m.lengths.push(length);
                }
                1 if sent > una => {
                    una += 1 + pick.below(sent - una);
                    while una_wqe < m.assigned.len() && una >= m.assigned[una_wqe].0 + m.assigned[una_wqe].1 {
                        una_wqe += 1;
                    }
                }
                2 if sent > una && pick.chance(30) => epoch += 1,
                _ => {}
            }
            let una_first = m.assigned.get(una_wqe).map_or(m.next, |a| a.0);
            b.requester[q] = Requester {
                una_wqe: (index0 + una_wqe as u64) & 0xffff,
                got_wqe: (index0 + una_wqe as u64) & 0xffff,
                una_psn: (psn0 + una) & PSN,
                got_first: (psn0 + una_first) & PSN,
                epoch: epoch & 15,
                ..Requester::default()
            };
            // the model's turn
            let position = |m: &Model| m.assigned.get(m.at.0).map_or(m.next, |a| a.0) + m.at.1;
            let mut want = vec![];
            if b.tx[q].epoch != epoch & 15 || position(&m) < una || m.at.0 < una_wqe {
                m.at = (una_wqe, una - una_first);
            } else {
                // a turn of a KiB
                while m.at.0 < m.lengths.len() && position(&m) - una < limit {
                    let length = m.lengths[m.at.0];
                    let n = length.div_ceil(mtu).max(1);
                    if m.at.0 == m.assigned.len() {
                        if m.assigned.len() - una_wqe >= 1 << log_records {
                            break;
                        }
                        m.assigned.push((m.next, n));
                        m.next += n;
                    }
                    let p = position(&m);
                    want.push((p, m.at.1 * mtu, (length - m.at.1 * mtu).min(mtu), m.at.0));
                    sent = sent.max(p + 1);
                    m.at.1 += 1;
                    if m.at.1 == n {
                        m.at = (m.at.0 + 1, 0);
                        break;
                    }
                    if (m.at.1 * mtu).is_multiple_of(1024) {
                        break;
                    }
                }
            }
            b.packets.clear();
            b.turn(q);
            b.clock();
            let got: Vec<_> = b.packets.iter().map(|p| (p.psn, p.offset, p.length, p.wqe)).collect();
            let index = |i: usize| (index0 + i as u64) & 0xffff;
            let want: Vec<_> = want.iter().map(|w| ((psn0 + w.0) & PSN, w.1, w.2, index(w.3))).collect();
            assert_eq!(got, want, "{what}");
            let t = b.tx[q];
            assert_eq!(t.sent_psn, (psn0 + sent) & PSN, "{what}");
            assert_eq!(t.next_psn, (psn0 + m.next) & PSN, "{what}");
        }
        assert!(m.assigned.len() > 20, "seed {seed}: the story moved");
    }
}

/// What left on `data`, as opcode, PSN, syndrome, MSN and value.
fn answers(b: &Bench) -> Vec<(u64, u64, u64, u64, u64)> {
    b.packets.iter().map(|p| (p.opcode, p.psn, p.syndrome, p.msn, p.value)).collect()
}

#[test]
fn the_result_of_an_atomic_waits_for_its_execution_and_nothing_passes_it() {
    let mut b = Bench::new();
    b.start_at(0, 0x100, 0);
    let next = b.read(0, 0x700, 10);
    let next = b.atomic(0, next, 0);
    let next = b.read(0, next, 10);
    let next = b.atomic(0, next, 1);
    // and an ACK for a SEND behind all of it
    b.placed[0] = Placed { tail_seq: 1, tail_syndrome: 0x1f, tail_psn: next, tail_msn: 9, ..b.placed[0] };
    b.run(0);
    assert_eq!(answers(&b), [(0x10, 0x700, 0x1f, 100, 0)]);
    b.execute(0, 0x701, Outcome { failed: 0, original: 0x0123_4567_89ab_cdef });
    b.run(0);
    let second = (0x12, 0x701, 0x1f, 101, 0x0123_4567_89ab_cdef);
    assert_eq!(answers(&b)[1..], [second, (0x10, 0x702, 0x1f, 102, 0)]);
    assert_eq!((b.packets[1].length, b.packets[1].responds), (0, false));
    assert_eq!(b.responses, []);
    b.execute(0, 0x703, Outcome { failed: 0, original: 5 });
    b.run(0);
    assert_eq!(answers(&b)[3..], [(0x12, 0x703, 0x1f, 103, 5)]);
    assert_eq!(b.responses.iter().map(|p| p.psn).collect::<Vec<_>>(), [next]);
    assert_eq!((b.tx[0].res_cursor, b.tx[0].res_sent), (4, 4));
    // a duplicate gets the same again
    b.packets.clear();
    b.ask_again(0, 1, 0x701);
    b.run(0);
    assert_eq!(answers(&b)[0], second);
}

#[test]
fn the_count_of_executed_atomics_wraps() {
    let mut b = Bench::new();
    b.start_at(0, 0x100, 0);
    for n in 0..600u64 {
        b.atomic(0, 0x700 + n, n & 0xff);
        b.run(0);
        assert_eq!(b.packets.len() as u64, n, "it is not executed");
        b.execute(0, 0x700 + n, Outcome { failed: 0, original: n });
        b.run(0);
        assert_eq!(answers(&b)[n as usize].4, n);
        b.owed.clear();
    }
}

#[test]
fn an_atomic_whose_memory_could_not_be_read_is_refused_and_acknowledge_is_told() {
    let mut b = Bench::new();
    b.start_at(6, 0x100, 0);
    b.atomic(6, 0x700, 0);
    b.execute(6, 0x700, Outcome { failed: 1, original: 0xdead });
    b.run(6);
    let packet = b.packets[0].clone();
    assert_eq!((packet.opcode, packet.psn, packet.syndrome), (0x11, 0x700, 0x63));
    assert_eq!(b.faults.iter().map(|f| (f.0, f.2)).collect::<Vec<_>>(), [(6, WcStatus::RemOpErr as u64)]);
}

#[test]
fn a_turn_takes_four_clocks() {
    let mut b = Bench::new();
    for q in 0..8 {
        b.start_at(q, 0, 0);
        (0..4).for_each(|_| {
            b.post(q, write(64));
        });
    }
    let from = b.clocks;
    for i in 0..32 {
        b.turn(i % 8);
    }
    assert_eq!(b.clocks - from, 4 * 32);
    b.settle();
    assert_eq!(b.packets.len(), 32);
}

#[test]
fn the_emitted_text_is_clean() {
    for c in [Config::small(), wide()] {
        lint(&elaborate(&Segment(c)).unwrap());
    }
}

#[test]
fn a_frame_of_a_raw_qp_is_one_packet_of_fourteen_bytes_to_the_ports_mtu_and_fourteen() {
    // length, MTU of the port, whether it is a frame
    for (length, mtu, good) in [
        (13, 1500, false),
        (14, 1500, true),
        (1514, 1500, true),
        (1515, 1500, false),
        (8191, 9000, true),
        (8192, 9000, false),
    ] {
        let mut b = Bench::new();
        b.rights[5].transport = Transport::Raw as u8;
        b.rights[5].path_mtu = 0;
        b.s.poke("port_mtu", mtu);
        b.start_at(5, 0xff_ffff, 7);
        let send = SendWqe { opcode: 2, ..write(length) };
        b.post(5, send);
        b.post(5, SendWqe { opcode: 2, ..write(60) });
        b.run(5);
        let record = |length, last_psn, status| Record {
            last_psn,
            signaled: 1,
            opcode: 0,
            status,
            length,
            is_read: 0,
        };
        let first = b.records[&(5 * 32 + 7)];
        if good {
            assert_eq!(seen(&b.packets), [(0x04, 0, length), (0x04, 0, 60)]);
            assert!(b.packets.iter().all(|p| p.raw && !p.responds));
            assert_eq!(b.packets.iter().map(|p| p.psn).collect::<Vec<_>>(), [0xff_ffff, 0], "one PSN each");
            assert_eq!(first, record(length, 0xff_ffff, 0));
        } else {
            assert_eq!((b.packets.len(), &b.rejects[..]), (0, &[Reject::WqeLength as u64][..]), "{length}");
            let cause = Reject::WqeLength.vendor_err().into();
            assert_eq!(first, record(cause, 0xff_fffe, WcStatus::LocQpOpErr as u64));
        }
    }
    // nothing but a SEND is a frame; and a SEND of RC is none
    for opcode in [0, 1, 3, 4, 5, 7, 9] {
        let mut b = Bench::new();
        b.rights[5].transport = Transport::Raw as u8;
        b.rights[5].max_rd_atomic = 4;
        b.s.poke("port_mtu", 1500);
        b.post(5, SendWqe { opcode, ..write(if opcode == 5 { 8 } else { 60 }) });
        b.run(5);
        assert_eq!(
            (b.packets.len(), &b.rejects[..]),
            (0, &[Reject::WqeOpcode as u64][..]),
            "opcode {opcode}"
        );
    }
    let mut b = Bench::new();
    b.post(5, SendWqe { opcode: 2, ..write(1500) });
    b.run(5);
    assert!(b.packets.len() == 2 && b.packets.iter().all(|p| !p.raw));
}
