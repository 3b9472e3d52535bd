//! place, by the interpreter: payload through receive WQEs against a model of the walk, the owed tails, CQEs and events,
//! misses and fences, with a host memory whose reads end late, in any order, or badly.
//!
//! Requirements: ATOM CMD ERR MEM QUE RAW READ RESP

mod bench;

use bench::{Choices, PLACED, Ram, TX, Word, clock, reset};
use contract::context::{MrEntry, QpQueues, QpRights};
use contract::{QpState, Reject, Sge};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::rx::place::Place;
use std::collections::{BTreeMap, VecDeque};

const FENCE: u64 = 0;
const WRITE: u64 = 1;
const SEND: u64 = 2;
const REACK: u64 = 3;
const NAK: u64 = 4;
const RESPOND: u64 = 5;
const REWIND: u64 = 6;
const ATOMIC: u64 = 8;
const QPS: usize = 4;
const RQ_BASE: u64 = 0x9000_0000;
const LOG_DEPTH: u8 = 4;

fn config() -> Config {
    Config { qps: QPS as u32, mrs: 8, receive_slots: 4, ..Config::small() }
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Verdict {
    action: u64,
    qp: u32,
    psn: u32,
    ack_req: bool,
    first: bool,
    last: bool,
    fatal: bool,
    syndrome: u8,
    cause: u8,
    establishes: bool,
    iova: u64,
    relaxed: bool,
    wqe: Option<u16>,
    /// Number of a READ.
    read: u16,
    offset: u32,
    length: u32,
    address: u32,
    slot: u8,
    with_imm: bool,
    solicited: bool,
    imm: u32,
    /// Key of a WRITE or atomic, or the one that ends; `None`: that of the region.
    key: Option<u32>,
    with_inv: bool,
    raw: bool,
}

/// A packet of a READ response, as acknowledge gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Scatter {
    fence: bool,
    discard: bool,
    qp: u32,
    entry: u32,
    offset: u32,
    length: u32,
    address: u32,
    slot: u8,
    wqe: u16,
    last: bool,
}

/// iova, length, packet buffer address
type Piece = (u64, u32, u32);
/// QP, WQE, opcode, status, bytes, immediate
type Done = (u32, u16, u8, u8, u32, Option<u32>);

struct Reading {
    due: u64,
    /// What lay there when it was asked for.
    bytes: Vec<u8>,
    address: u64,
    id: u64,
    beat: usize,
    failed: bool,
}

struct Bench {
    s: Interpreter,
    rams: Vec<Ram>,
    lanes: usize,
    time: u64,
    pick: Choices,
    /// Host memory: receive WQEs by IOVA, in units of 64 bytes.
    host: BTreeMap<u64, [u8; 64]>,
    reading: Vec<Reading>,
    /// Least and most clocks of a read.
    latency: (u64, u64),
    bad_reads: bool,
    /// Those of further SGEs alone.
    bad_further: bool,
    unwritten: VecDeque<u64>,
    write_latency: u64,
    offers: VecDeque<Verdict>,
    /// check has found room for the first of them.
    granted: bool,
    responses: VecDeque<Scatter>,
    /// QP, WQE, status, pieces written by then.
    placements: Vec<(u32, u16, u8, usize)>,
    placement_ready: bool,
    /// Local invalidates: QP, WQE, key; and what came of them, as of READs.
    locals: VecDeque<(u32, u16, u32)>,
    local_ends: Vec<(u32, u16, u8, usize)>,
    /// Regions whose keys were ended.
    ended: Vec<u64>,
    /// command is busy with something else.
    command_busy: bool,
    /// WQE and `imm` of CQEs with a key that ended, and pieces written by then.
    told_keys: Vec<(u16, u32, usize)>,
    /// Causes of CQEs, and of what is told to acknowledge.
    causes: Vec<u64>,
    told_causes: Vec<u64>,
    doorbells: VecDeque<u32>,
    /// How often the write engine and complete take something: one clock in n.
    slow: u64,
    pieces: Vec<Piece>,
    /// Of each, whether it may pass other writes.
    relaxed: Vec<bool>,
    written: usize,
    done: Vec<Done>,
    events: Vec<(u64, u64)>,
    wakes: Vec<u32>,
    released: Vec<u8>,
    rejects: Vec<Reject>,
    fences: u32,
    stalls: u64,
    /// Answers of segment wait, by order of the story; else those in `control` do, which leave behind the lane of place.
    answers_wait: bool,
    control: VecDeque<(u32, u64, u64)>,
    /// packetise takes something.
    ack_ready: bool,
    /// What packetise took: QP, PSN, MSN.
    answers: Vec<(u32, u64, u64)>,
    /// Those by way of `ack`: tagged, clocks since the last `written`; and their syndromes.
    directly: Vec<(u64, u64)>,
    syndromes: Vec<u64>,
    written_at: u64,
    /// QP, entry, pieces written by then.
    exchanges: Vec<(u32, u64, usize)>,
    reads: u32,
    /// Reads of further SGEs: IOVA, length.
    further: Vec<(u64, u64)>,
    dropped: Vec<Verdict>,
    /// Raw frames that are over.
    raw_over: u64,
}

const WQE_KEY: u32 = 2 << 8 | 0x11;

/// Clocks that no story here needs: a stage that hangs is a failure, not a wait.
const LONGEST: u64 = 200_000;

impl Bench {
    fn new(seed: u64) -> Bench {
        Bench::sized(seed, 8)
    }
    /// With beats of `lanes` bytes.
    fn sized(seed: u64, lanes: usize) -> Bench {
        Bench::with_config(seed, Config { data_bytes: lanes as u32, ..config() })
    }
    fn with_config(seed: u64, c: Config) -> Bench {
        let lanes = c.data_bytes as usize;
        let design = elaborate(&Place { config: c.clone() }).unwrap_or_else(|e| panic!("{e}"));
        let mut s = Interpreter::new(&design);
        let mut rams = vec![
            Ram::new(QPS, 256, "packet_address", "rights_word")
                .also_read("fetch_address", "fetch_rights_word"),
            Ram::new(QPS, 256, "finish_address", "finish_queues_word")
                .also_read("fetch_address", "fetch_queues_word"),
            Ram::new(QPS, Word::new(PLACED).width(), "finish_address", "placed_word")
                .written_by("placed_write"),
            Ram::new(QPS, Word::new(TX).width(), "finish_address", "tx_word"),
            Ram::new(QPS, 16, "fetch_address", "post_rq_word"),
            Ram::new(c.mrs as usize, 256, "mr_address", "mr_word"),
            Ram::new(4 * c.reads as usize, 512, "list_address", "list_word"),
            Ram::new(4 * c.reads as usize, 2, "list_address", "list_groups"),
        ];
        for i in 0..QPS {
            let rights = QpRights { state: QpState::Rts as u8, valid: true, pd: 7, ..Default::default() };
            let queues = QpQueues {
                rq_base: RQ_BASE + i as u64 * 0x1_0000,
                rq_log_depth: LOG_DEPTH,
                rq_log_stride: 6,
                recv_cqn: 20 + i as u32,
                ..Default::default()
            };
            rams[0].words[i] = Bits::from_bytes(256, &rights.pack());
            rams[1].words[i] = Bits::from_bytes(256, &queues.pack());
        }
        let region = MrEntry {
            valid: true,
            tag: 0x11,
            access: 1,
            pd: 7,
            va: 0x10_0000,
            length: 0x10_0000,
            iova: 0x5000_0000,
            ..Default::default()
        };
        rams[5].words[2] = Bits::from_bytes(256, &region.pack());
        rams[5].words[3] = Bits::from_bytes(256, &MrEntry { access: 2, ..region }.pack());
        reset(&mut s);
        s.poke("exchange_ready", 1);
        let mut b = Bench {
            s,
            rams,
            lanes,
            time: 0,
            pick: Choices::new(seed),
            host: BTreeMap::new(),
            reading: vec![],
            latency: (20, 40),
            bad_reads: false,
            bad_further: false,
            unwritten: VecDeque::new(),
            write_latency: 10,
            offers: VecDeque::new(),
            granted: false,
            responses: VecDeque::new(),
            placements: vec![],
            placement_ready: true,
            locals: VecDeque::new(),
            local_ends: vec![],
            ended: vec![],
            command_busy: false,
            told_keys: vec![],
            causes: vec![],
            told_causes: vec![],
            doorbells: VecDeque::new(),
            slow: 1,
            pieces: vec![],
            relaxed: vec![],
            written: 0,
            done: vec![],
            events: vec![],
            wakes: vec![],
            released: vec![],
            rejects: vec![],
            fences: 0,
            stalls: 0,
            answers_wait: true,
            control: VecDeque::new(),
            ack_ready: true,
            answers: vec![],
            directly: vec![],
            syndromes: vec![],
            written_at: 0,
            exchanges: vec![],
            reads: 0,
            further: vec![],
            dropped: vec![],
            raw_over: 0,
        };
        for i in 0..QPS {
            b.start(i, 100);
        }
        b
    }
    fn start(&mut self, qp: usize, psn: u32) {
        for (n, v) in [("valid", 1), ("qp", qp as u64), ("receive", 1), ("rq_psn", psn.into())] {
            self.s.poke(&format!("initialise_{n}"), v);
        }
        while self.s.peek("initialise_ready") == 0 {
            self.clock();
        }
        self.clock();
        self.s.poke("initialise_valid", 0);
        // the QP's WQEs are forgotten in 3 clocks: a packet of the new life takes longer through check
        self.run(3);
    }
    fn producer(&self, qp: usize) -> u64 {
        self.rams[4].words[qp].low()
    }
    fn queues(&self, qp: usize) -> QpQueues {
        QpQueues::unpack(&self.rams[1].words[qp].to_bytes().try_into().unwrap())
    }
    /// Receives of this QP have room for so many SGEs.
    fn make_room(&mut self, qp: usize, sges: usize) {
        let rq_log_stride = (16 * sges).max(64).next_power_of_two().ilog2() as u8;
        let queues = QpQueues { rq_log_stride, ..self.queues(qp) };
        self.rams[1].words[qp] = Bits::from_bytes(256, &queues.pack());
    }
    /// Posts a receive, without its doorbell.
    fn post(&mut self, qp: usize, sges: &[Sge]) -> u16 {
        let index = self.producer(qp);
        let stride = 1 << self.queues(qp).rq_log_stride;
        let slot = index & ((1 << LOG_DEPTH) - 1);
        let at = RQ_BASE + qp as u64 * 0x1_0000 + slot * stride;
        assert!(16 * sges.len() as u64 <= stride);
        for (i, group) in grouped(sges).into_iter().take(stride as usize / 64).enumerate() {
            self.host.insert(at + 64 * i as u64, group);
        }
        self.rams[4].words[qp] = Bits::new(16, u128::from((index + 1) & 0xffff));
        index as u16
    }
    fn ring(&mut self, qp: usize) {
        self.doorbells.push_back(qp as u32);
    }
    fn placed(&self, qp: usize) -> Word {
        let mut w = Word::new(PLACED);
        w.load(&self.rams[2].words[qp]);
        w
    }
    fn pay(&mut self, qp: usize) {
        let seq = self.placed(qp).get("tail_seq");
        self.rams[3].words[qp] = Word::new(TX).with("paid", seq).bits();
    }
    fn tail(&self, qp: usize) -> (u64, u64, u64) {
        let p = self.placed(qp);
        (p.get("tail_syndrome"), p.get("tail_psn"), p.get("tail_msn"))
    }
    fn clock(&mut self) {
        assert!(self.time < LONGEST, "no end after {LONGEST} clocks: {} packets wait", self.offers.len());
        let s = &mut self.s;
        // check's side: a SEND without room is dropped, one that was given room keeps it
        let mut offered = None;
        while let Some(v) = self.offers.front().copied() {
            if v.action == SEND && !self.granted && s.peek("room") == 0 {
                self.offers.pop_front();
                self.dropped.push(v);
                continue;
            }
            self.granted = true;
            offered = Some(v);
            break;
        }
        s.poke("verdict_valid", u64::from(offered.is_some()));
        if let Some(v) = offered {
            for (n, x) in [
                ("action", v.action),
                ("qp", v.qp.into()),
                ("psn", v.psn.into()),
                ("ack_req", v.ack_req.into()),
                ("first", v.first.into()),
                ("last", v.last.into()),
                ("fatal", v.fatal.into()),
                ("syndrome", v.syndrome.into()),
                ("cause", v.cause.into()),
                ("establishes", v.establishes.into()),
                ("iova", v.iova),
                ("relaxed", v.relaxed.into()),
                ("wqe_index", v.wqe.unwrap_or(v.read).into()),
                ("uses_wqe", v.wqe.is_some().into()),
                ("offset", v.offset.into()),
                ("length", v.length.into()),
                ("address", v.address.into()),
                ("slot", v.slot.into()),
                ("with_imm", v.with_imm.into()),
                ("solicited", v.solicited.into()),
                ("imm", v.imm.into()),
                ("key", v.key.unwrap_or(WQE_KEY).into()),
                ("with_inv", v.with_inv.into()),
                ("raw", v.raw.into()),
            ] {
                s.poke(&format!("verdict_{n}"), x);
            }
        }
        let response = self.responses.front().copied();
        s.poke("data_valid", u64::from(response.is_some()));
        if let Some(r) = response {
            for (n, x) in [
                ("fence", u64::from(r.fence)),
                ("discard", r.discard.into()),
                ("qp", r.qp.into()),
                ("entry", r.entry.into()),
                ("offset", r.offset.into()),
                ("length", r.length.into()),
                ("address", r.address.into()),
                ("slot", r.slot.into()),
                ("wqe_index", r.wqe.into()),
                ("last", r.last.into()),
            ] {
                s.poke(&format!("data_{n}"), x);
            }
        }
        let local = self.locals.pop_front();
        s.poke("local_valid", u64::from(local.is_some()));
        if let Some((qp, wqe, key)) = local {
            assert_eq!(s.peek("local_ready"), 1, "a local invalidate is never refused");
            for (n, x) in [("qp", qp), ("wqe_index", wqe.into()), ("key", key)] {
                s.poke(&format!("local_{n}"), x.into());
            }
        }
        s.poke("invalidate_ready", u64::from(!self.command_busy));
        let bell = self.doorbells.pop_front();
        s.poke("doorbell_valid", u64::from(bell.is_some()));
        s.poke("doorbell_qp", u64::from(bell.unwrap_or(0)));
        // the read engine: one beat of some read per clock
        s.poke("read_data_valid", 0);
        s.poke("read_done_valid", 0);
        let ripe: Vec<usize> =
            (0..self.reading.len()).filter(|i| self.reading[*i].due <= self.time).collect();
        if !ripe.is_empty() {
            let i = self.pick.of(&ripe);
            let r = &mut self.reading[i];
            let at = self.lanes * r.beat;
            if at < r.bytes.len() {
                let bytes = &r.bytes;
                let lanes = self.lanes as u32;
                s.poke("read_data_valid", 1);
                s.poke("read_data_client", 2);
                s.poke("read_data_address", r.address + at as u64);
                s.poke_bits("read_data_data", &Bits::from_bytes(8 * lanes, &bytes[at..at + self.lanes]));
                s.poke_bits("read_data_lanes", &Bits::from_bytes(lanes, &[0xff; 8]));
                r.beat += 1;
            } else {
                s.poke("read_done_valid", 1);
                s.poke("read_done_client", 2);
                s.poke("read_done_id", r.id);
                s.poke("read_done_failed", u64::from(r.failed));
                self.reading.remove(i);
            }
        }
        s.poke("read_ready", u64::from(self.pick.one_in(self.slow)));
        let written = self.unwritten.front().is_some_and(|t| *t <= self.time);
        s.poke("written", u64::from(written));
        if written {
            self.unwritten.pop_front();
            self.written += 1;
            self.written_at = self.time;
        }
        s.poke("answers_wait", u64::from(self.answers_wait || !self.control.is_empty()));
        let packetise = self.ack_ready && self.pick.one_in(self.slow);
        s.poke("ack_ready", u64::from(packetise));
        s.poke("payload_ready", u64::from(self.pick.one_in(self.slow)));
        s.poke("completion_ready", u64::from(self.pick.one_in(self.slow)));
        s.poke("event_ready", u64::from(self.pick.one_in(self.slow)));
        s.poke("wake_ready", u64::from(self.pick.one_in(self.slow)));
        s.poke("placement_ready", u64::from(self.placement_ready && self.pick.one_in(self.slow)));
        let moves = |s: &mut Interpreter, p: &str| {
            s.peek(&format!("{p}_valid")) == 1 && s.peek(&format!("{p}_ready")) == 1
        };
        // inputs that depend on ready are read back by the poked value
        let ready = |s: &mut Interpreter, p: &str| s.peek(&format!("{p}_ready")) == 1;
        if offered.is_some() && ready(s, "verdict") {
            self.granted = false;
            self.offers.pop_front();
        }
        if response.is_some() && ready(s, "data") {
            self.responses.pop_front();
        }
        if moves(s, "placement") {
            let mut get = |n: &str| s.peek(&format!("placement_{n}"));
            let told = (get("qp") as u32, get("wqe_index") as u16, get("status") as u8, self.written);
            self.told_causes.push(get("cause"));
            if get("invalidates") == 1 { &mut self.local_ends } else { &mut self.placements }.push(told);
        }
        let ends = moves(s, "invalidate").then(|| s.peek("invalidate"));
        if let Some(region) = ends {
            self.ended.push(region);
        }
        if moves(s, "payload") {
            self.relaxed.push(s.peek("payload_relaxed") == 1);
            let mut get = |n: &str| s.peek(&format!("payload_{n}"));
            self.pieces.push((get("iova"), get("length") as u32, get("address") as u32));
            self.unwritten.push_back(self.time + 1 + self.write_latency);
        }
        if moves(s, "read") {
            let mut get = |n: &str| s.peek(&format!("read_{n}"));
            let due = self.time + self.latency.0 + self.pick.below(self.latency.1 - self.latency.0);
            let (iova, length, address, id) = (get("iova"), get("length"), get("address"), get("id"));
            assert!(!self.reading.iter().any(|r| r.address == address), "two reads into one slot");
            let qp = (iova - RQ_BASE) as usize >> 16;
            let stride =
                1 << QpQueues::unpack(&self.rams[1].words[qp].to_bytes().try_into().unwrap()).rq_log_stride;
            let further = iova % stride != 0;
            if further {
                assert_eq!((iova % stride, length), (64, stride.min(256) - 64));
                self.further.push((iova, length));
            } else {
                assert_eq!(length, 64);
                self.reads += 1;
            }
            let unit = |at| self.host.get(&at).copied().unwrap_or([0xee; 64]);
            let bytes = (iova..iova + length).step_by(64).flat_map(unit).collect();
            let failed = self.bad_reads || self.bad_further && further;
            self.reading.push(Reading { due, bytes, address, id, beat: 0, failed });
        }
        if moves(s, "completion") {
            let mut get = |n: &str| s.peek(&format!("completion_{n}"));
            assert_eq!(get("cq"), 20 + get("qp"));
            let imm = (get("with_imm") == 1).then(|| get("imm") as u32);
            let done = (
                get("qp") as u32,
                get("wqe_index") as u16,
                get("opcode") as u8,
                get("status") as u8,
                get("byte_len") as u32,
                imm,
            );
            self.done.push(done);
            self.causes.push(get("cause"));
            if get("with_inv") == 1 {
                self.told_keys.push((done.1, get("imm") as u32, self.written));
            }
        }
        if moves(s, "event") {
            assert_eq!((s.peek("event_kind"), s.peek("event_eq")), (2, 0));
            self.events.push((s.peek("event_object"), s.peek("event_event")));
        }
        if moves(s, "exchange") {
            let told = (s.peek("exchange_qp") as u32, s.peek("exchange_entry"), self.written);
            self.exchanges.push(told);
        }
        if moves(s, "ack") {
            let mut get = |n: &str| s.peek(&format!("ack_{n}"));
            assert_eq!(get("outer_ipv6"), 0);
            self.syndromes.push(get("syndrome"));
            self.directly.push((get("outer_tagged"), self.time - self.written_at));
            self.answers.push((get("qp") as u32, get("psn"), get("msn")));
        } else if packetise {
            self.answers.extend(self.control.pop_front());
        }
        if moves(s, "wake") {
            self.wakes.push(s.peek("wake_qp") as u32);
        }
        if s.peek("release_valid") == 1 {
            self.released.push(s.peek("release_slot") as u8);
        }
        if s.peek("count_valid") == 1 {
            self.rejects.extend(Reject::from_code(s.peek("count_index") as u8));
        }
        self.fences += s.peek("fence_done") as u32;
        self.stalls += s.peek("stall");
        self.raw_over += s.peek("raw_over");
        let mut all: Vec<&mut Ram> = self.rams.iter_mut().collect();
        clock(&mut self.s, &mut all);
        if let Some(region) = ends {
            self.rams[5].words[region as usize] = Bits::zero(256);
        }
        self.time += 1;
    }
    fn run(&mut self, clocks: u64) {
        for _ in 0..clocks {
            self.clock();
        }
    }
    fn settle(&mut self) {
        for n in 0.. {
            self.clock();
            if self.s.peek("idle") == 1
                && self.offers.is_empty()
                && self.doorbells.is_empty()
                && self.responses.is_empty()
            {
                assert!(self.s.failures().is_empty(), "{:?}", self.s.failures());
                return;
            }
            assert!(n < 20_000, "never idle");
        }
    }
    fn offer(&mut self, v: Verdict) {
        self.offers.push_back(v);
    }
    /// A fence, as check gives it: on both ways.
    fn fence(&mut self) {
        self.offers.push_back(Verdict { action: FENCE, ..Verdict::default() });
        self.responses.push_back(Scatter { fence: true, ..Scatter::default() });
    }
    /// The read list's part: the SGEs of a READ.
    fn list(&mut self, entry: u32, sges: &[Sge]) {
        let groups = sges.len().div_ceil(4).max(1) - 1;
        for (group, bytes) in grouped(sges).iter().enumerate() {
            let at = 4 * entry as usize + group;
            self.rams[6].words[at] = Bits::from_bytes(512, bytes);
            self.rams[7].words[at] = Bits::new(2, groups as u128);
        }
    }
}

/// SGEs in groups of four, what is not there zero.
fn grouped(sges: &[Sge]) -> [[u8; 64]; 4] {
    let mut bytes = [[0; 64]; 4];
    for (i, sge) in sges.iter().enumerate() {
        bytes[i / 4][16 * (i % 4)..][..16].copy_from_slice(&sge.pack());
    }
    bytes
}

fn sge(addr: u64, length: u32) -> Sge {
    Sge { addr, length, lkey: WQE_KEY }
}
fn send(qp: u32, psn: u32, wqe: u16, length: u32) -> Verdict {
    Verdict {
        action: SEND,
        qp,
        psn,
        ack_req: true,
        first: true,
        last: true,
        wqe: Some(wqe),
        length,
        address: 0x100 * psn % 0x8000,
        slot: (psn % 64) as u8,
        ..Verdict::default()
    }
}
fn write(qp: u32, psn: u32, iova: u64, length: u32) -> Verdict {
    Verdict { action: WRITE, iova, wqe: None, ..send(qp, psn, 0, length) }
}

#[test]
fn a_write_is_acknowledged_only_when_it_is_written() {
    let mut b = Bench::new(1);
    b.write_latency = 200;
    b.offer(write(0, 100, 0xabcd_0123, 77));
    b.run(150);
    assert_eq!(b.pieces, [(0xabcd_0123, 77, 0x6400)]);
    assert_eq!((b.tail(0), b.released.len(), b.wakes.len()), ((0, 0, 0), 0, 0));
    b.settle();
    assert_eq!((b.tail(0), b.placed(0).get("psn")), ((0x1f, 100, 1), 100));
    assert_eq!((b.released.clone(), b.wakes.clone(), b.done.len()), (vec![36], vec![0], 0));
}

#[test]
fn a_plain_ack_leaves_in_the_clock_behind_the_write_and_leaves_no_debt() {
    let mut b = Bench::new(1);
    b.answers_wait = false;
    b.write_latency = 50;
    let tagged =
        QpRights { state: QpState::Rts as u8, valid: true, pd: 7, tagged: true, ..Default::default() };
    b.rams[0].words[1] = Bits::from_bytes(256, &tagged.pack());
    let i = b.post(2, &[]);
    for v in [
        write(0, 100, 0x1000, 64),
        Verdict { ack_req: false, last: false, ..write(1, 100, 0x1100, 256) },
        Verdict { first: false, ..write(1, 101, 0x1200, 64) },
        Verdict { wqe: Some(i), with_imm: true, imm: 7, ..write(2, 100, 0, 0) },
    ] {
        b.offer(v);
        b.run(10);
    }
    assert_eq!((b.answers.len(), b.written), (0, 0));
    b.settle();
    assert_eq!(b.answers, [(0, 100, 1), (1, 101, 1), (2, 100, 1)]);
    let (tagged, clocks): (Vec<_>, Vec<_>) = b.directly.iter().copied().unzip();
    assert_eq!((tagged, &clocks[..2]), (vec![0, 1, 0], &[1, 1][..]));
    assert_eq!(b.syndromes, [0x1f; 3]);
    assert_eq!((b.wakes.len(), b.released.len(), b.done.len()), (0, 4, 1));
    for (qp, psn) in [(0, 100), (1, 101), (2, 100)] {
        let p = b.placed(qp);
        assert_eq!((p.get("psn"), p.get("msn"), p.get("tail_seq")), (psn, 1, 0));
    }
}

#[test]
fn an_ack_becomes_a_tail_if_anything_is_owed() {
    type Owes = fn(&mut Bench);
    let owed: [(&str, Owes); 6] = [
        ("a tail that is not paid", |b| {
            b.answers_wait = true;
            b.offer(write(0, 99, 0x1000, 64));
            b.settle();
            b.answers_wait = false;
        }),
        ("a READ", |b| b.offer(read(0, 99, 0))),
        ("a READ again", |b| b.offer(rewind(0, 99, 0))),
        ("READ responses in gather", |b| b.rams[3].words[0] = Word::new(TX).with("res_marked", 1).bits()),
        ("an answer of segment", |b| b.answers_wait = true),
        ("a NAK that is not paid", |b| {
            b.answers_wait = true;
            b.offer(Verdict { action: NAK, syndrome: 0x60, ..write(0, 99, 0, 0) });
            b.settle();
            b.answers_wait = false;
        }),
    ];
    for (what, owes) in owed {
        let mut b = Bench::new(1);
        b.answers_wait = false;
        owes(&mut b);
        b.settle();
        let (tails, wakes) = (b.placed(0).get("tail_seq"), b.wakes.len());
        b.offer(write(0, 100, 0x1000, 64));
        b.settle();
        assert_eq!((b.answers.len(), b.placed(0).get("tail_seq")), (0, tails + 1), "{what}");
        assert_eq!((b.tail(0).1, b.wakes.len()), (100, wakes + 1), "{what}");
        // another QP owes nothing
        b.offer(write(1, 100, 0x1000, 64));
        b.settle();
        assert_eq!(b.answers.len(), usize::from(!b.answers_wait), "{what}");
        // all is given
        let p = b.placed(0);
        let paid = Word::new(TX).with("paid", p.get("tail_seq")).with("res_cursor", p.get("res_head"));
        b.rams[3].words[0] = paid.with("res_rewind", p.get("rewind_seq")).bits();
        b.answers_wait = false;
        b.offer(write(0, 101, 0x1000, 64));
        b.settle();
        assert_eq!(b.answers.last().map(|a| (a.0, a.1)), Some((0, 101)), "{what}");
    }
}

#[test]
fn a_nak_leaves_at_once_but_a_fatal_one_and_the_answer_to_a_duplicate_are_tails() {
    let mut b = Bench::new(1);
    b.answers_wait = false;
    let nak = |qp, syndrome, fatal| Verdict { action: NAK, syndrome, fatal, ..write(qp, 100, 0, 0) };
    for v in [nak(0, 0x60, false), nak(1, 0x61, true), Verdict { action: REACK, ..write(2, 99, 0, 0) }] {
        b.offer(v);
    }
    b.offer(nak(3, 0x25, false));
    b.settle();
    assert_eq!((b.answers.clone(), b.syndromes.clone()), (vec![(0, 100, 0), (3, 100, 0)], vec![0x60, 0x25]));
    assert_eq!((b.wakes.len(), b.tail(1).0, b.tail(2).1, b.placed(0).get("tail_seq")), (2, 0x61, 99, 0));
}

#[test]
fn while_packetise_takes_nothing_acks_become_tails_and_a_fence_waits_for_those_that_left() {
    let mut b = Bench::new(1);
    (b.answers_wait, b.ack_ready) = (false, false);
    for psn in 100..104 {
        b.offer(write(0, psn, 0x1000, 64));
    }
    b.run(100);
    assert_eq!((b.tail(0), b.placed(0).get("tail_seq"), b.released.len()), ((0x1f, 103, 4), 2, 4));
    b.fence();
    b.run(100);
    assert_eq!((b.fences, b.answers.len(), b.s.peek("idle")), (0, 0, 0));
    b.ack_ready = true;
    b.settle();
    assert_eq!((b.fences, b.answers), (1, vec![(0, 100, 1), (0, 101, 2)]));
}

#[test]
fn every_packet_is_answered_once_and_in_order_whichever_way_its_answer_takes() {
    let (mut direct, mut tails) = (0, 0);
    for seed in 1..=12 {
        let mut pick = Choices::new(seed * 77);
        let mut b = Bench::with_config(seed, Config { unhurried: seed > 9, ..config() });
        b.answers_wait = false;
        b.slow = 1 + seed % 3;
        let mut next = [100u32; QPS];
        for n in 0..400 {
            b.ack_ready = n % 100 < 70;
            b.write_latency = 1 + pick.below(20);
            if b.offers.len() < 3 {
                let qp = pick.below(QPS as u64) as usize;
                let v = write(qp as u32, next[qp], 0x1000, 64);
                b.offer(Verdict { ack_req: !pick.one_in(4), ..v });
                next[qp] += 1;
            }
            b.run(pick.below(6));
            // segment's part: pays, and its answer waits for packetise
            let qp = pick.below(QPS as u64) as usize;
            let mut tx = Word::new(TX);
            tx.load(&b.rams[3].words[qp]);
            let p = b.placed(qp);
            if p.get("tail_seq") != tx.get("paid") && b.control.len() < 2 {
                b.control.push_back((qp as u32, p.get("tail_psn"), p.get("tail_msn")));
                b.rams[3].words[qp] = tx.with("paid", p.get("tail_seq")).bits();
                tails += 1;
            }
        }
        direct += b.directly.len();
        for qp in 0..QPS as u32 {
            let psns: Vec<_> = b.answers.iter().filter(|a| a.0 == qp).map(|a| a.1).collect();
            assert!(psns.is_sorted_by(|a, b| a < b), "seed {seed}, QP {qp}: {psns:?}");
            let msns = b.answers.iter().filter(|a| a.0 == qp).all(|a| a.2 == a.1 - 99);
            assert!(msns, "seed {seed}, QP {qp}");
        }
        assert!(b.s.failures().is_empty(), "{:?}", b.s.failures());
    }
    assert!(direct > 500 && tails > 300, "{direct} {tails}");
}

#[test]
fn a_write_is_put_out_three_clocks_behind_its_verdict() {
    let mut b = Bench::new(1);
    for psn in 100..103 {
        b.settle();
        b.offer(write(0, psn, 0x1000, 64));
        let start = b.time;
        while b.pieces.len() < psn as usize - 99 {
            b.clock();
        }
        assert_eq!(b.time - 1 - start, 3);
    }
}

#[test]
fn each_clock_in_which_the_write_engine_takes_no_payload_is_a_stall_and_no_other() {
    let mut b = Bench::new(1);
    b.offer(write(0, 100, 0x1000, 64));
    b.settle();
    assert_eq!(b.stalls, 0);
    b.slow = u64::MAX; // nothing is taken
    b.offer(write(0, 101, 0x1040, 64));
    while b.s.peek("payload_valid") == 0 {
        b.clock();
    }
    let before = b.stalls;
    b.run(10);
    assert_eq!((before, b.stalls, b.pieces.len()), (0, 10, 1));
    b.slow = 1;
    b.settle();
    assert_eq!((b.stalls, b.pieces.len()), (10, 2));
    // a write that is slow to end holds nothing, until the packets that wait for theirs are as many as place keeps
    b.write_latency = 200;
    for i in 0..16 {
        b.offer(write(0, 102 + i, 0x2000, 64));
    }
    b.run(150);
    assert_eq!((b.stalls, b.pieces.len()), (10, 18));
    b.offer(write(0, 118, 0x2000, 64));
    b.offer(write(0, 119, 0x2000, 64));
    b.run(20);
    assert!(b.stalls > 20, "{}", b.stalls);
    b.settle();
    assert_eq!(b.pieces.len(), 20);
}

#[test]
fn a_packet_that_asks_for_no_acknowledgement_moves_the_psn_but_not_the_tail() {
    let mut b = Bench::new(1);
    b.offer(Verdict { ack_req: false, last: false, ..write(0, 100, 0x1000, 256) });
    b.settle();
    let p = b.placed(0);
    assert_eq!((p.get("psn"), p.get("msn"), p.get("tail_seq")), (100, 0, 0));
    b.offer(Verdict { first: false, ..write(0, 101, 0x1100, 5) });
    b.settle();
    assert_eq!(b.tail(0), (0x1f, 101, 1));
}

#[test]
fn a_write_with_immediate_reports_the_bytes_of_the_whole_write() {
    let mut b = Bench::new(1);
    let i = b.post(0, &[]);
    let v =
        Verdict { wqe: Some(i), with_imm: true, imm: 0x0403_0201, offset: 512, ..write(0, 100, 0x1000, 8) };
    b.offer(v);
    // zero bytes are fine too
    let i = b.post(0, &[]);
    b.offer(Verdict { wqe: Some(i), with_imm: true, imm: 9, ..write(0, 101, 0, 0) });
    b.settle();
    assert_eq!(b.done, [(0, 0, 129, 0, 520, Some(0x0403_0201)), (0, 1, 129, 0, 0, Some(9))]);
    assert_eq!((b.pieces.len(), b.released.len()), (1, 2));
}

#[test]
fn a_send_is_scattered_over_the_sges_of_its_wqe_across_packets() {
    let mut b = Bench::new(1);
    b.post(0, &[sge(0x10_0003, 300), sge(0, 0), sge(0x10_1000, 10), sge(0x10_2001, 500)]);
    b.ring(0);
    b.offer(Verdict { last: false, ..send(0, 100, 0, 256) });
    b.offer(Verdict { first: false, last: false, offset: 256, ..send(0, 101, 0, 256) });
    b.offer(Verdict { first: false, offset: 512, ..send(0, 102, 0, 100) });
    b.settle();
    assert_eq!(
        b.pieces,
        [
            (0x5000_0003, 256, 0x6400),
            (0x5000_0103, 44, 0x6500),
            (0x5000_1000, 10, 0x6500 + 44),
            (0x5000_2001, 202, 0x6500 + 54),
            (0x5000_2001 + 202, 100, 0x6600),
        ]
    );
    assert_eq!(b.done, [(0, 0, 128, 0, 612, None)]);
    assert_eq!((b.tail(0), b.placed(0).get("msn")), ((0x1f, 102, 1), 1));
    assert_eq!(b.released, [36, 37, 38]);
}

#[test]
fn receive_wqes_are_read_ahead_as_far_as_there_are_slots() {
    let mut b = Bench::new(1);
    for _ in 0..10 {
        b.post(0, &[sge(0x10_0000, 64)]);
    }
    b.ring(0);
    b.settle();
    assert_eq!(b.reads, 4);
    let before = b.time;
    b.offer(send(0, 100, 0, 64));
    while b.pieces.is_empty() {
        b.clock();
    }
    assert!(b.time - before < 12, "the WQE was here: {} clocks", b.time - before);
    for n in 1..10 {
        b.offer(send(0, 100 + u32::from(n), n, 64));
    }
    b.settle();
    assert_eq!((b.reads, b.done.len()), (10, 10));
}

#[test]
fn a_miss_waits_for_its_wqe_and_other_qps_pass() {
    let mut b = Bench::new(1);
    b.latency = (400, 401);
    b.post(0, &[sge(0x10_0000, 64)]);
    b.offer(send(0, 100, 0, 64));
    b.offer(write(0, 101, 0x7000, 8));
    for n in 0..5 {
        b.offer(write(1, 100 + n, 0x8000 + u64::from(n), 8));
    }
    b.run(200);
    let iovas: Vec<u64> = b.pieces.iter().map(|p| p.0).collect();
    assert_eq!(iovas, [0x8000, 0x8001, 0x8002, 0x8003, 0x8004]);
    b.settle();
    assert_eq!(b.pieces[5].0, 0x5000_0000);
    assert_eq!(b.pieces[6].0, 0x7000, "behind its QP's SEND");
    assert_eq!(b.tail(0), (0x1f, 101, 2));
}

#[test]
fn a_full_miss_queue_drops_sends_at_check_and_loses_nothing_that_was_taken() {
    let mut b = Bench::new(1);
    b.latency = (600, 601);
    for qp in 0..QPS {
        for _ in 0..8 {
            b.post(qp, &[sge(0x10_0000, 64)]);
        }
    }
    for n in 0..8 {
        for qp in 0..QPS as u32 {
            b.offer(send(qp, 100 + u32::from(n), n, 64));
        }
        // a SEND that was dropped leaves a gap, so that check would drop what follows it of its QP
        b.run(10);
        let gone: Vec<u32> = b.dropped.iter().map(|v| v.qp).collect();
        b.offers.retain(|v| !gone.contains(&v.qp));
    }
    let taken_at_once = 8 * QPS - b.dropped.len();
    assert!((6..=8).contains(&taken_at_once), "{taken_at_once}");
    assert_eq!(b.s.peek("room"), 0);
    b.settle();
    assert_eq!(b.s.peek("room"), 1);
    // per QP: everything before its first drop was placed, in order
    for qp in 0..QPS as u32 {
        let done: Vec<u16> = b.done.iter().filter(|d| d.0 == qp).map(|d| d.1).collect();
        let first = b.dropped.iter().filter(|v| v.qp == qp).map(|v| v.wqe.unwrap()).min().unwrap();
        assert_eq!(done, (0..first).collect::<Vec<_>>(), "QP {qp}");
    }
}

#[test]
fn a_message_longer_than_its_wqe_writes_nothing_of_that_packet_and_kills_the_qp() {
    for (length, good) in [(310, true), (311, false)] {
        let mut b = Bench::new(1);
        b.post(0, &[sge(0x10_0000, 300), sge(0x10_1000, 10)]);
        b.ring(0);
        b.offer(Verdict { last: false, ..send(0, 100, 0, 256) });
        b.offer(Verdict { first: false, offset: 256, ..send(0, 101, 0, length - 256) });
        b.offer(write(0, 102, 0x7000, 8));
        b.settle();
        assert_eq!(b.released, [36, 37, 38]);
        if good {
            assert_eq!((b.pieces.len(), b.done[0].3, b.tail(0)), (4, 0, (0x1f, 102, 2)));
        } else {
            assert_eq!(b.pieces.len(), 1);
            assert_eq!((b.done[0].1, b.done[0].3, b.done.len()), (0, 1, 1));
            assert_eq!((b.tail(0), b.placed(0).get("halt")), ((0x61, 101, 0), 1));
            assert_eq!(b.events, [(0, 2)]);
            assert_eq!(b.rejects, [Reject::ReceiveTooShort, Reject::QpHalted]);
        }
    }
}

#[test]
fn a_receive_key_that_does_not_allow_it_is_an_operational_error() {
    let mut bad = vec![(sge(0x10_0000, 64), false)];
    bad.push((Sge { lkey: 3 << 8 | 0x11, ..sge(0x10_0000, 64) }, true));
    bad.push((Sge { lkey: 2 << 8 | 0x12, ..sge(0x10_0000, 64) }, true));
    bad.push((Sge { lkey: 5 << 8 | 0x11, ..sge(0x10_0000, 64) }, true));
    bad.push((Sge { lkey: 0xffff_0211, ..sge(0x10_0000, 64) }, true));
    bad.push((sge(0x20_0000 - 64, 64), false));
    bad.push((sge(0x20_0000 - 63, 64), true));
    bad.push((sge(0xf_ffff, 64), true));
    for (i, (s, wrong)) in bad.into_iter().enumerate() {
        let mut b = Bench::new(1);
        b.post(0, &[s]);
        b.ring(0);
        b.offer(send(0, 100, 0, 64));
        b.offer(Verdict { action: REACK, ..write(0, 0, 0, 0) });
        b.settle();
        if wrong {
            assert_eq!(
                (b.pieces.len(), b.tail(0), b.events.clone()),
                (0, (0x63, 100, 0), vec![(0, 1)]),
                "row {i}"
            );
            assert_eq!((b.done[0].3, b.rejects[0]), (4, Reject::LkeyBad), "row {i}");
        } else {
            assert_eq!((b.pieces.len(), b.tail(0).0, b.done[0].3), (1, 0x1f, 0), "row {i}");
        }
    }
}

#[test]
fn a_wqe_that_cannot_be_read_is_an_operational_error() {
    let mut b = Bench::new(1);
    b.bad_reads = true;
    b.post(0, &[sge(0x10_0000, 64)]);
    b.offer(send(0, 100, 0, 64));
    b.settle();
    assert_eq!(
        (b.tail(0), b.done[0].3, b.rejects.clone()),
        ((0x63, 100, 0), 2, vec![Reject::WqeFetchFailed])
    );
    // a new start forgets it
    b.bad_reads = false;
    b.rams[4].words[0] = Bits::new(16, 0);
    b.start(0, 500);
    b.post(0, &[sge(0x10_0000, 64)]);
    b.ring(0);
    b.offer(send(0, 500, 0, 64));
    b.settle();
    assert_eq!((b.tail(0), b.done[1].3), ((0x1f, 500, 1), 0));
}

/// A READ with its number.
fn read(qp: u32, psn: u32, read: u16) -> Verdict {
    Verdict { action: RESPOND, qp, psn, read, first: true, last: true, ack_req: true, ..Verdict::default() }
}
fn rewind(qp: u32, psn: u32, number: u16) -> Verdict {
    Verdict { action: REWIND, ..read(qp, psn, number) }
}

#[test]
fn an_atomic_goes_on_when_everything_before_it_is_written_and_nothing_of_its_qp_is_written_meanwhile() {
    let mut b = Bench::new(5);
    b.write_latency = 60;
    for qp in 0..QPS {
        let mut queues = b.queues(qp);
        (queues.response_base, queues.response_log_size) = (16 * qp as u16, 4);
        b.rams[1].words[qp] = Bits::from_bytes(256, &queues.pack());
    }
    let write = |qp, psn| Verdict {
        action: WRITE,
        qp,
        psn,
        first: true,
        last: true,
        iova: 0x7000 + u64::from(psn),
        length: 64,
        ..Verdict::default()
    };
    let atomic = |qp, psn, number| Verdict { action: ATOMIC, ..read(qp, psn, number) };
    b.offers.extend([write(1, 100), atomic(1, 101, 0x35), atomic(1, 102, 0x36)]);
    b.run(200);
    assert_eq!(b.exchanges, [(1, 16 + 5, 1), (1, 16 + 6, 1)]);
    let placed = b.placed(1);
    assert_eq!((placed.get("msn"), placed.get("res_head"), placed.get("psn")), (3, 0x37, 100));
    assert_eq!(b.wakes, [], "its answer is not there yet");
    // another QP goes on, its own does not, and what is behind that waits with it; READs and atomics do not
    b.offers.extend([write(2, 100), read(1, 103, 0x37), atomic(1, 104, 0x38), write(1, 105), write(2, 101)]);
    b.run(300);
    assert_eq!(b.pieces.iter().map(|p| p.0).collect::<Vec<_>>(), [0x7000 + 100, 0x7000 + 100]);
    assert_eq!(b.exchanges.len(), 3);
    for left in (0..3).rev() {
        b.s.poke("exchanged", 1);
        b.clock();
        b.s.poke("exchanged", 0);
        b.run(100);
        assert_eq!(b.pieces.len(), if left > 0 { 2 } else { 4 });
    }
    // a fence waits for the atomics before it, not for those behind it
    let fence = Verdict { action: FENCE, ..Verdict::default() };
    b.offers.extend([atomic(3, 100, 0), fence, atomic(2, 102, 0)]);
    b.responses.push_back(Scatter { fence: true, ..Scatter::default() });
    b.run(100);
    assert_eq!((b.fences, b.exchanges.len()), (0, 4));
    b.s.poke("exchanged", 1);
    b.clock();
    b.s.poke("exchanged", 0);
    b.run(100);
    assert_eq!((b.fences, b.exchanges.len()), (1, 5));
    b.s.poke("exchanged", 1);
    b.clock();
    b.s.poke("exchanged", 0);
    b.settle();
}

#[test]
fn the_packet_that_establishes_a_connection_raises_its_event_when_it_is_written() {
    let mut b = Bench::new(1);
    b.write_latency = 100;
    b.offer(Verdict { establishes: true, ..write(1, 100, 0x1000, 8) });
    b.run(60);
    assert_eq!(b.events, []);
    b.offer(Verdict { establishes: true, ..read(2, 100, 0) });
    b.settle();
    assert_eq!(b.events, [(1, 4), (2, 4)]);
    // one that turns out to be a fault raises that of the fault alone
    b.post(3, &[sge(0x10_0000, 8)]);
    b.offer(Verdict { establishes: true, ..send(3, 100, 0, 9) });
    b.settle();
    assert_eq!(b.events[2..], [(3, 2)]);
}

#[test]
fn payload_may_pass_other_writes_only_if_its_region_says_so() {
    let mut b = Bench::new(1);
    let region = MrEntry::unpack(&b.rams[5].words[2].to_bytes().try_into().unwrap());
    let loose = MrEntry { relaxed_ordering: true, tag: 9, ..region };
    b.rams[5].words[4] = Bits::from_bytes(256, &loose.pack());
    let (strict, easy) = (sge(0x10_0000, 8), Sge { lkey: 4 << 8 | 9, ..sge(0x10_0000, 8) });
    b.post(0, &[strict, easy, strict]);
    b.offer(send(0, 100, 0, 24));
    b.settle();
    // of a WRITE check has said
    for relaxed in [false, true] {
        b.offer(Verdict { relaxed, ..write(1, 100 + u32::from(relaxed), 0x1000, 8) });
        b.settle();
    }
    b.list(0, &[easy, strict]);
    b.responses.push_back(data(2, 0, 0, 16, true));
    b.settle();
    assert_eq!(b.relaxed, [false, true, false, false, true, true, false]);
}

#[test]
fn an_error_names_its_cause_and_a_success_none() {
    let plus = |reject: Reject| u64::from(reject.vendor_err());
    let mut b = Bench::new(1);
    for qp in 0..QPS {
        b.post(qp, &[sge(0x10_0000, 64)]);
        b.post(qp, &[Sge { lkey: 3 << 8 | 0x11, ..sge(0x10_0000, 64) }]);
    }
    b.offer(send(0, 100, 0, 64));
    b.offer(send(0, 101, 1, 64));
    b.offer(send(1, 100, 0, 65));
    // a SEND that check has NAKed in its midst, for whatever reason
    b.offer(Verdict { last: false, ..send(2, 100, 0, 64) });
    let nak =
        Verdict { action: NAK, syndrome: 0x61, fatal: true, wqe: Some(0), cause: 23, ..send(2, 101, 0, 0) };
    b.offer(nak);
    b.settle();
    let mut causes: Vec<(u32, u64)> = b.done.iter().map(|d| d.0).zip(b.causes.iter().copied()).collect();
    causes.sort_unstable();
    assert_eq!(causes, [(0, 0), (0, plus(Reject::LkeyBad)), (1, plus(Reject::ReceiveTooShort)), (2, 23)]);
    // of READs of this side, and of local invalidates
    b.list(0, &[sge(0x10_0000, 8)]);
    b.list(1, &[Sge { lkey: 3 << 8 | 0x11, ..sge(0x10_0000, 64) }]);
    b.responses.push_back(data(3, 0, 0, 8, true));
    b.responses.push_back(data(3, 0, 0, 9, true));
    b.responses.push_back(data(3, 1, 0, 8, true));
    b.settle();
    b.locals.push_back((3, 9, 1 << 8));
    b.settle();
    let wanted = [0, plus(Reject::SglTooShort), plus(Reject::SglKey), plus(Reject::RkeyUnknown)];
    assert_eq!(b.told_causes, wanted);
}

/// A SEND of `length` bytes that ends `key`.
fn send_with_inv(qp: u32, psn: u32, wqe: u16, length: u32, key: u32) -> Verdict {
    Verdict { with_inv: true, key: Some(key), imm: key.swap_bytes(), ..send(qp, psn, wqe, length) }
}
/// Lets the key of region `index` be ended.
fn endable(b: &mut Bench, index: usize) {
    let entry = MrEntry::unpack(&b.rams[5].words[index].to_bytes().try_into().unwrap());
    let access = entry.access | contract::verbs::access::INVALIDATE;
    b.rams[5].words[index] = Bits::from_bytes(256, &MrEntry { access, ..entry }.pack());
}

#[test]
fn a_key_ends_behind_the_bytes_of_its_send_and_before_all_that_follows() {
    for length in [0, 64, 300] {
        let mut b = Bench::new(1);
        endable(&mut b, 2);
        b.write_latency = 100;
        // the message lands by the very key that it ends, in two pieces
        b.post(0, &[sge(0x10_0000, 40), sge(0x10_1000, 400)]);
        b.ring(0);
        b.run(60);
        b.offer(write(1, 100, 0x7000, 8));
        b.offer(send_with_inv(0, 100, 0, length, WQE_KEY));
        b.offer(write(1, 101, 0x7100, 8));
        b.offer(write(2, 100, 0, 0));
        b.settle();
        let pieces = if length == 0 { 1 } else { 3 };
        assert_eq!((b.pieces.len(), b.ended.clone()), (pieces, vec![2]), "{length} bytes");
        assert_eq!(b.done, [(0, 0, 128, 0, length, None)]);
        assert_eq!(b.told_keys, [(0, WQE_KEY.swap_bytes(), pieces)], "told when all before it is written");
        assert_eq!(b.tail(0), (0x1f, 100, 1));
        // the WRITE behind it, of another QP, was judged by check while the key held
        assert_eq!((b.tail(1), b.rejects.clone()), ((0x62, 101, 1), vec![Reject::RkeyUnknown]));
        assert_eq!(b.events, [(1, 3)]);
        assert_eq!((b.placed(1).get("halt"), b.placed(2).get("halt")), (1, 0));
        assert_eq!((b.released.len(), b.tail(2)), (4, (0x1f, 100, 1)), "a WRITE of nothing asks for no key");
    }
}

#[test]
fn a_key_that_may_not_be_ended_is_an_access_fault_and_nothing_of_the_packet_is_written() {
    for (key, pd, access, reject) in [
        (WQE_KEY ^ 1, 7, 0x81, Reject::RkeyTag),
        (1 << 8 | 0x11, 7, 0x81, Reject::RkeyUnknown),
        (WQE_KEY | 1 << 30, 7, 0x81, Reject::RkeyUnknown),
        (WQE_KEY, 6, 0x81, Reject::RkeyPd),
        (WQE_KEY, 7, 0x7f, Reject::RkeyRights),
    ] {
        let mut b = Bench::new(1);
        let entry = MrEntry::unpack(&b.rams[5].words[2].to_bytes().try_into().unwrap());
        let entry = MrEntry { pd, access, ..entry };
        b.rams[5].words[2] = Bits::from_bytes(256, &entry.pack());
        let held = b.rams[5].words.clone();
        b.post(0, &[sge(0x10_0000, 64)]);
        b.offer(send_with_inv(0, 100, 0, 64, key));
        b.locals.push_back((1, 9, key));
        b.settle();
        assert_eq!((b.pieces.len(), b.ended.len()), (0, 0), "{reject:?}");
        assert!(b.rams[5].words == held);
        assert_eq!((b.tail(0), b.events.clone()), ((0x62, 100, 0), vec![(0, 3)]));
        assert_eq!((b.done.clone(), b.told_keys.len()), (vec![(0, 0, 128, 8, 64, None)], 0));
        // a local one is no fault of the receive side
        assert_eq!(b.local_ends, [(1, 9, 2, 0)]);
        assert_eq!((b.placed(1).get("halt"), b.rejects.clone()), (0, vec![reject; 2]));
    }
}

#[test]
fn a_local_invalidate_is_told_when_what_was_put_out_before_it_is_written() {
    let mut b = Bench::new(1);
    endable(&mut b, 2);
    b.write_latency = 200;
    b.offer(write(1, 100, 0x7000, 8));
    b.run(20);
    b.locals.push_back((0, 5, WQE_KEY));
    b.run(100);
    assert_eq!((b.ended.clone(), b.local_ends.len()), (vec![2], 0));
    b.offer(write(1, 101, 0x7100, 8));
    b.settle();
    assert_eq!((b.local_ends.clone(), b.pieces.len()), (vec![(0, 5, 0, 1)], 1));
    assert_eq!(b.tail(1), (0x62, 101, 1));
    // it holds while command is busy
    let mut b = Bench::new(1);
    endable(&mut b, 2);
    b.command_busy = true;
    b.locals.push_back((0, 5, WQE_KEY));
    b.run(50);
    assert_eq!((b.ended.len(), b.local_ends.len()), (0, 0));
    b.command_busy = false;
    b.settle();
    assert_eq!(b.local_ends, [(0, 5, 0, 0)]);
}

#[test]
fn local_invalidates_and_packets_take_turns_whatever_comes() {
    let mut b = Bench::new(3);
    endable(&mut b, 2);
    for n in 0..50u32 {
        b.offer(write(1, 100 + n, 0x7000, 0));
        b.responses.push_back(Scatter { qp: 2, wqe: n as u16, last: true, ..Scatter::default() });
    }
    // one per QP is what segment gives; all of them fail but the first
    for qp in 0..QPS as u32 {
        b.locals.push_back((qp, 1, WQE_KEY));
    }
    b.run(120);
    assert_eq!(b.local_ends.len(), QPS, "not behind all of the others");
    assert!(b.offers.len() > 10 && b.responses.len() > 10);
    b.settle();
    assert_eq!((b.placements.len(), b.tail(1)), (50, (0x1f, 149, 50)));
    let statuses: Vec<u8> = b.local_ends.iter().map(|e| e.2).collect();
    assert_eq!((statuses, b.ended.len()), (vec![0, 2, 2, 2], 1));
}

#[test]
fn a_key_ends_only_when_no_atomic_is_under_way_and_an_atomic_behind_it_is_refused() {
    let mut b = Bench::new(1);
    endable(&mut b, 2);
    let atomic = |qp, psn, number| Verdict { action: ATOMIC, ..read(qp, psn, number) };
    b.offer(atomic(1, 100, 0));
    b.offer(send_with_inv(0, 100, 0, 0, WQE_KEY));
    b.post(0, &[]);
    b.offer(atomic(2, 100, 0));
    b.run(200);
    assert_eq!((b.exchanges.len(), b.ended.len(), b.done.len()), (1, 0, 0));
    b.s.poke("exchanged", 1);
    b.clock();
    b.s.poke("exchanged", 0);
    b.settle();
    assert_eq!((b.exchanges.len(), b.ended.len(), b.done.len()), (1, 1, 1));
    assert_eq!((b.tail(2), b.placed(2).get("res_head")), ((0x62, 100, 0), 0));
    assert_eq!((b.rejects.clone(), b.events.clone()), (vec![Reject::RkeyUnknown], vec![(2, 3)]));
    // a local one waits likewise
    let mut b = Bench::new(1);
    endable(&mut b, 2);
    b.offer(atomic(1, 100, 0));
    b.run(20);
    b.locals.push_back((0, 7, WQE_KEY));
    b.run(200);
    assert_eq!(b.ended.len(), 0);
    b.s.poke("exchanged", 1);
    b.clock();
    b.s.poke("exchanged", 0);
    b.settle();
    assert_eq!(b.local_ends, [(0, 7, 0, 0)]);
}

#[test]
fn a_write_that_was_parked_finds_its_key_ended_meanwhile() {
    let mut b = Bench::new(1);
    endable(&mut b, 2);
    b.latency = (400, 401);
    b.post(1, &[]);
    b.post(1, &[sge(0x10_0000, 64)]);
    b.offer(send(1, 100, 1, 64));
    let last = Verdict { wqe: Some(2), with_imm: true, imm: 5, ..write(1, 101, 0x7000, 8) };
    b.offer(last);
    b.run(50);
    b.post(0, &[]);
    b.offer(send_with_inv(0, 100, 0, 0, WQE_KEY));
    b.run(50);
    assert_eq!((b.ended.len(), b.told_keys.len()), (1, 1));
    b.settle();
    assert_eq!(b.pieces, [], "neither by the key of the WRITE nor by that of the receive");
    assert_eq!(b.rejects, [Reject::LkeyBad, Reject::QpHalted]);
    // alone: the receive of the WRITE with immediate goes down with it
    let mut b = Bench::new(1);
    b.rams[5].words[2] = Bits::zero(256);
    b.offer(last);
    b.settle();
    assert_eq!((b.tail(1), b.done.clone()), ((0x62, 101, 0), vec![(1, 2, 129, 8, 8, None)]));
}

#[test]
fn a_new_life_of_a_qp_waits_for_the_local_invalidate_of_the_last_one() {
    let mut b = Bench::new(1);
    endable(&mut b, 2);
    b.command_busy = true;
    b.locals.push_back((0, 5, WQE_KEY));
    b.run(20);
    let err = QpRights { state: QpState::Err as u8, valid: true, pd: 7, ..Default::default() };
    b.rams[0].words[3] = Bits::from_bytes(256, &err.pack());
    b.locals.push_back((3, 6, WQE_KEY));
    b.run(5);
    for (n, v) in [("valid", 1), ("qp", 3), ("receive", 1)] {
        b.s.poke(&format!("initialise_{n}"), v);
    }
    for _ in 0..50 {
        assert_eq!(b.s.peek("initialise_ready"), 0);
        b.clock();
    }
    b.command_busy = false;
    for n in 0.. {
        b.clock();
        if b.s.peek("initialise_ready") == 1 {
            break;
        }
        assert!(n < 60, "the next life never begins");
    }
    b.clock();
    b.s.poke("initialise_valid", 0);
    b.settle();
    // that of a QP in error is not done and not told
    assert_eq!((b.local_ends.clone(), b.ended.len()), (vec![(0, 5, 0, 0)], 1));
    assert_eq!(b.rejects, [Reject::WrongQpState]);
}

#[test]
fn a_read_is_answered_when_everything_before_it_is_written() {
    let mut b = Bench::new(1);
    b.write_latency = 200;
    b.offer(write(0, 100, 0x1000, 8));
    b.offer(read(0, 101, 0));
    b.offer(read(1, 100, 0));
    b.run(150);
    assert_eq!((b.pieces.len(), b.placed(0).get("res_head"), b.wakes.len()), (1, 0, 0));
    b.settle();
    let p = b.placed(0);
    // it counts as a message, is no tail, and is not what a duplicate is acknowledged with
    assert_eq!((p.get("res_head"), p.get("msn"), p.get("psn")), (1, 2, 100));
    assert_eq!((b.tail(0), p.get("tail_seq")), ((0x1f, 100, 1), 1));
    assert_eq!((b.placed(1).get("res_head"), b.placed(1).get("tail_seq")), (1, 0));
    assert_eq!((b.wakes.clone(), b.released.clone()), (vec![0, 0, 1], vec![36]));
    // behind a SEND whose WQE is on its way
    b.latency = (400, 401);
    b.post(0, &[sge(0x10_0000, 64)]);
    b.offer(send(0, 102, 0, 64));
    b.offer(read(0, 103, 1));
    b.run(200);
    assert_eq!(b.placed(0).get("res_head"), 1);
    b.settle();
    assert_eq!((b.placed(0).get("res_head"), b.placed(0).get("msn"), b.tail(0)), (2, 4, (0x1f, 102, 3)));
    // of a QP that has met a fatal NAK: nothing
    b.offer(Verdict { action: NAK, syndrome: 0x61, fatal: true, ..write(0, 104, 0, 0) });
    b.offer(read(0, 104, 2));
    b.offer(rewind(0, 101, 0));
    b.settle();
    assert_eq!((b.placed(0).get("res_head"), b.placed(0).get("rewind_seq")), (2, 0));
    assert_eq!(b.rejects, [Reject::QpHalted, Reject::QpHalted]);
}

#[test]
fn of_two_duplicate_reads_that_segment_has_not_seen_the_older_remains() {
    let mut b = Bench::new(1);
    b.start(0, 0xff_ff00);
    let asked = |b: &Bench| {
        let p = b.placed(0);
        (p.get("rewind_seq"), p.get("rewind_index"), p.get("rewind_psn"))
    };
    for (number, psn, want) in [
        (7, 0xff_fff0, (1, 7, 0xff_fff0)),
        (9, 3, (2, 7, 0xff_fff0)),
        (5, 0xff_ffe0, (3, 5, 0xff_ffe0)),
        (5, 0xff_ffe1, (4, 5, 0xff_ffe0)),
    ] {
        b.offer(rewind(0, psn, number));
        b.settle();
        assert_eq!(asked(&b), want);
    }
    assert_eq!((b.wakes.len(), b.placed(0).get("msn"), b.placed(0).get("tail_seq")), (4, 0, 0));
    // segment has obeyed: the next stands alone
    b.rams[3].words[0] = Word::new(TX).with("res_rewind", 4).bits();
    b.offer(rewind(0, 3, 9));
    b.settle();
    assert_eq!(asked(&b), (5, 9, 3));
    b.start(0, 0);
    assert_eq!(asked(&b), (0, 0, 0));
}

#[test]
fn naks_of_check_are_owed_and_only_the_fatal_ones_kill() {
    for (syndrome, fatal, wqe, status, event) in [
        (0x60u8, false, None, None, None),
        (0x2c, false, None, None, None),
        (0x61, true, None, None, Some(2)),
        (0x61, true, Some(7), Some(2), Some(2)),
        (0x62, true, None, None, Some(3)),
    ] {
        let mut b = Bench::new(1);
        b.offer(write(0, 100, 0x1000, 8));
        b.offer(Verdict { action: NAK, syndrome, fatal, wqe, ack_req: false, ..write(0, 101, 0, 0) });
        b.settle();
        assert_eq!(b.tail(0), (syndrome.into(), 101, 1));
        assert_eq!(b.placed(0).get("psn"), 100);
        assert_eq!(b.released, [36], "check released the slot of what it NAKed");
        assert_eq!(b.done.first().map(|d| (d.1, d.3)), status.map(|s| (7, s)));
        assert_eq!(b.events.first().map(|e| e.1), event);
        assert_eq!(b.placed(0).get("halt"), u64::from(fatal));
    }
}

#[test]
fn a_duplicate_is_acknowledged_with_the_last_psn_but_never_over_an_unpaid_nak() {
    // check says that all may be acknowledged that was taken
    let reack = Verdict { action: REACK, qp: 0, psn: 500, ..Verdict::default() };
    let mut b = Bench::new(1);
    b.offer(reack);
    b.settle();
    assert_eq!(b.tail(0), (0x1f, 99, 0));
    b.offer(write(0, 100, 0x1000, 8));
    b.offer(Verdict { action: NAK, syndrome: 0x60, ..write(0, 101, 0, 0) });
    b.settle();
    let owed = b.placed(0);
    b.offer(reack);
    b.settle();
    assert_eq!(b.placed(0), owed);
    b.pay(0);
    b.offer(reack);
    b.settle();
    assert_eq!(b.tail(0), (0x1f, 100, 1));
    // the packet that fills the gap does replace an unpaid NAK
    b.offer(Verdict { action: NAK, syndrome: 0x60, ..write(0, 101, 0, 0) });
    b.offer(write(0, 101, 0x1000, 8));
    b.settle();
    assert_eq!(b.tail(0), (0x1f, 101, 2));
}

#[test]
fn a_duplicate_is_acknowledged_as_far_as_check_allows_but_not_behind_what_is_owed() {
    let reack = |psn| Verdict { action: REACK, qp: 0, psn, ..Verdict::default() };
    let mut b = Bench::new(1);
    for psn in 100..105 {
        b.offer(write(0, psn, 0x1000, 8));
    }
    b.settle();
    // an ACK of 104 is owed: it says more
    b.offer(reack(102));
    b.settle();
    assert_eq!(b.tail(0), (0x1f, 104, 5));
    b.pay(0);
    let owed = b.placed(0).get("tail_seq");
    for (allowed, told) in [(102, 102), (104, 104), (109, 104)] {
        b.offer(reack(allowed));
        b.settle();
        assert_eq!(b.tail(0), (0x1f, told, 5));
        b.pay(0);
    }
    assert_eq!(b.placed(0).get("tail_seq"), owed + 3);
}

#[test]
fn a_fence_comes_out_after_all_before_it_under_load() {
    let mut b = Bench::new(4);
    b.latency = (300, 500);
    b.write_latency = 80;
    for qp in 0..QPS {
        for _ in 0..12 {
            b.post(qp, &[sge(0x10_0000 + 0x1000 * qp as u64, 64)]);
        }
    }
    for n in 0..2 {
        for qp in 0..2 {
            b.offer(send(qp, 100 + u32::from(n), n, 64));
        }
        b.offer(write(2, 100 + u32::from(n), 0x7000, 64));
    }
    b.fence();
    for n in 0..400u32 {
        b.offer(write(3, 100 + n, 0x6000, 64));
    }
    // reads of other QPs go on for ever
    while b.fences == 0 {
        b.ring(3);
        b.clock();
        assert!(b.time < 8000, "the fence is held for ever");
    }
    assert_eq!(b.done.len(), 4);
    for qp in 0..3 {
        assert_eq!(b.tail(qp), (0x1f, 101, 2), "QP {qp}");
    }
    assert!(b.reading.is_empty(), "a read is under way at the fence");
    b.settle();
    assert_eq!((b.fences, b.tail(3).1), (1, 499));
}

#[test]
fn a_fence_does_not_wait_for_the_wqe_of_a_qp_that_is_gone() {
    let mut b = Bench::new(4);
    b.latency = (5000, 5001);
    b.post(0, &[sge(0x10_0000, 64)]);
    b.offer(send(0, 100, 0, 64));
    b.offer(send(0, 101, 1, 64));
    b.run(60);
    let err = QpRights { state: QpState::Err as u8, valid: true, pd: 7, ..Default::default() };
    b.rams[0].words[0] = Bits::from_bytes(256, &err.pack());
    b.fence();
    b.run(100);
    // its packets are gone, but the read of its WQE still is under way
    assert_eq!((b.released.len(), b.rejects.clone(), b.fences), (2, vec![Reject::WrongQpState; 2], 0));
    b.settle();
    assert_eq!((b.fences, b.done.len(), b.pieces.len()), (1, 0, 0));
}

#[test]
fn no_read_starts_while_a_fence_drains_those_under_way() {
    let mut b = Bench::new(4);
    b.latency = (300, 301);
    b.settle();
    for qp in 0..QPS {
        for _ in 0..12 {
            b.post(qp, &[sge(0x10_0000, 64)]);
        }
    }
    b.ring(0);
    b.run(40);
    assert_eq!(b.reads, 4);
    b.fence();
    b.run(10);
    for qp in 1..QPS {
        b.ring(qp);
    }
    while b.fences == 0 {
        b.clock();
        assert!(b.time < 1000);
    }
    assert_eq!((b.reads, b.reading.len()), (4, 0));
    b.settle();
    assert_eq!(b.reads as usize, 4 * QPS, "and then they start");
}

#[test]
fn a_slot_whose_read_is_under_way_is_not_given_to_another_wqe() {
    let mut b = Bench::new(4);
    b.latency = (500, 501);
    for n in 0..12 {
        b.post(0, &[sge(0x10_0000 + 0x100 * n, 64)]);
    }
    b.ring(0);
    b.run(40);
    // four WRITEs with immediate take the four WQEs whose reads still are under way
    for n in 0..4 {
        b.offer(Verdict { wqe: Some(n), with_imm: true, ..write(0, 100 + u32::from(n), 0x1000, 8) });
    }
    b.run(200);
    assert_eq!((b.done.len(), b.reads), (4, 4));
    b.offer(send(0, 104, 4, 64));
    b.settle();
    assert_eq!((b.pieces[4].0, b.reads, b.done.len()), (0x5000_0400, 9, 5));
}

#[test]
fn after_a_reset_no_slot_waits_for_a_read_of_before_it() {
    let mut b = Bench::new(4);
    b.latency = (500, 501);
    b.make_room(0, 8);
    let list: Vec<Sge> = (0..8).map(|n| sge(0x10_0000 + 0x100 * n, 64)).collect();
    for _ in 0..4 {
        b.post(0, &list);
    }
    b.ring(0);
    // the second half of a list is asked for, and three WQEs behind it are under way
    b.run(600);
    b.offer(send(0, 100, 0, 300));
    b.offer(write(1, 100, 0x1000, 8));
    b.latency = (50_000, 50_001);
    b.run(100);
    b.post(1, &list[..1]);
    b.ring(1);
    b.run(100);
    assert_eq!((b.reading.len(), b.further.len()), (2, 1));
    reset(&mut b.s);
    b.reading.clear();
    b.offers.clear();
    (b.reads, b.latency, b.granted) = (0, (20, 40), false);
    for qp in 0..QPS {
        b.rams[4].words[qp] = Bits::new(16, 0);
        b.start(qp, 200);
    }
    let before = b.done.len();
    for qp in [0, 1] {
        b.post(qp, &list[..if qp == 0 { 8 } else { 1 }]);
        b.ring(qp);
    }
    b.offer(send(0, 200, 0, 300));
    b.offer(send(1, 200, 0, 64));
    b.settle();
    assert_eq!((b.done.len() - before, b.reads), (2, 2));
}

#[test]
fn a_write_costs_three_clocks_and_a_send_of_one_piece_four() {
    // through element 0 of 1 and of 16, and through one in each of the further groups
    for (through, most) in
        [(None, 3), (Some((0, 1)), 4), (Some((0, 16)), 4), (Some((4, 5)), 12), (Some((15, 16)), 29)]
    {
        let mut b = Bench::new(1);
        b.write_latency = 2;
        // one long message, so that one WQE serves all of it
        if let Some((element, of)) = through {
            b.make_room(0, of);
            let list: Vec<Sge> =
                (0..of).map(|i| sge(0x10_0000, if i == element { 100_000 } else { 0 })).collect();
            b.post(0, &list);
        }
        b.ring(0);
        b.settle();
        for n in 0..100 {
            let v = if through.is_some() { send(0, 100 + n, 0, 64) } else { write(0, 100 + n, 0x1000, 64) };
            b.offer(Verdict { first: n == 0, last: false, offset: 64 * n, ..v });
            // the first reads what all need
            if n == 0 {
                b.settle();
            }
        }
        while b.pieces.len() < 3 {
            b.clock();
        }
        let start = b.time;
        while b.pieces.len() < 93 {
            b.clock();
        }
        assert_eq!(b.time - start, 90 * most, "clocks of 90 packets through {through:?}");
    }
}

/// So many SGEs, at odd addresses, every fifth empty.
fn elements(count: usize) -> Vec<Sge> {
    let length = |i| if i % 5 == 2 { 0 } else { 30 + 7 * i as u32 };
    (0..count).map(|i| sge(0x10_0001 + 0x1003 * i as u64, length(i))).collect()
}
fn bytes_of(sges: &[Sge]) -> u32 {
    sges.iter().map(|s| s.length).sum()
}
/// The packets of a message: offset, length, whether it is the last.
fn packets(bytes: u32) -> Vec<(u32, u32, bool)> {
    (0..bytes.max(1)).step_by(256).map(|at| (at, (bytes - at).min(256), at + 256 >= bytes)).collect()
}
/// A SEND of so many bytes into receive `wqe`, from this PSN on.
fn message(qp: u32, psn: u32, wqe: u16, bytes: u32) -> Vec<Verdict> {
    let packet = |(n, (offset, length, last)): (usize, (u32, u32, bool))| Verdict {
        first: offset == 0,
        last,
        offset,
        ..send(qp, psn + n as u32, wqe, length)
    };
    packets(bytes).into_iter().enumerate().map(packet).collect()
}

#[test]
fn a_message_fills_a_list_of_up_to_sixteen_to_its_last_byte_and_one_byte_more_writes_nothing_of_its_packet() {
    for (count, lanes) in [1, 4, 5, 7, 8, 9, 12, 13, 15, 16].into_iter().zip([8, 64].into_iter().cycle()) {
        for (room, too_much) in [(count, 0), (count, 1), (16, 0), (16, 1)] {
            let sges = elements(count);
            let bytes = bytes_of(&sges) + too_much;
            let all = packets(bytes);
            let fitting = &all[..all.len() - too_much as usize];
            let mut b = Bench::sized(1, lanes);
            b.make_room(0, room);
            b.post(0, &sges);
            b.ring(0);
            b.offers.extend(message(0, 100, 0, bytes));
            b.settle();
            let address = |n: usize| 0x100 * (100 + n as u32) % 0x8000;
            let landed = |address: &dyn Fn(usize) -> u32| -> Vec<Piece> {
                let walked = fitting.iter().enumerate().map(|(n, p)| walk(&sges, p.0, p.1, address(n)));
                walked.flatten().collect()
            };
            let told = format!("{count} of {room}, {too_much} too much");
            assert_eq!(b.pieces, landed(&address), "{told}");
            let last = 100 + all.len() as u64 - 1;
            let (status, tail) = if too_much == 0 { (0, (0x1f, last, 1)) } else { (1, (0x61, last, 0)) };
            assert_eq!((b.tail(0), b.done.clone()), (tail, vec![(0, 0, 128, status, bytes, None)]), "{told}");
            // read once, if at all
            let further = room > 4 && bytes > bytes_of(&sges[..count.min(4)]);
            assert_eq!((b.reads, b.further.len()), (1, usize::from(further)), "{told}");
            // a READ likewise
            b.pieces.clear();
            b.rejects.clear();
            b.list(3, &sges);
            b.responses.extend(all.iter().map(|p| data(1, 3, p.0, p.1, p.2)));
            b.settle();
            assert_eq!(b.pieces, landed(&|n| 0x2000 + fitting[n].0), "{told}");
            assert_eq!(b.placements, [(1, 3, status, b.written)], "{told}");
            let refused = if too_much == 0 { vec![] } else { vec![Reject::SglTooShort] };
            assert_eq!(b.rejects, refused, "{told}");
        }
    }
}

#[test]
fn further_sges_are_read_when_a_message_reaches_them_and_not_before() {
    for (room, length) in [(8, 64), (16, 192)] {
        let mut b = Bench::new(1);
        b.make_room(2, room);
        let sges = elements(room);
        for _ in 0..4 {
            b.post(2, &sges);
        }
        b.ring(2);
        b.settle();
        assert_eq!((b.reads, b.further.len()), (4, 0));
        let (few, many) = (bytes_of(&sges[..4]), bytes_of(&sges));
        let mut psn = 100;
        for (wqe, bytes) in [few, many, few + 1, few].into_iter().enumerate() {
            let packets = message(2, psn, wqe as u16, bytes);
            psn += packets.len() as u32;
            b.offers.extend(packets);
        }
        b.settle();
        assert_eq!(b.done.iter().map(|d| (d.1, d.3)).collect::<Vec<_>>(), [(0, 0), (1, 0), (2, 0), (3, 0)]);
        let at = |wqe: u64| RQ_BASE + 0x2_0000 + wqe * 16 * room as u64 + 64;
        assert_eq!(b.further, [(at(1), length), (at(2), length)]);
    }
}

#[test]
fn a_send_waits_for_its_further_sges_behind_it_its_qp_and_nobody_else() {
    let mut b = Bench::new(1);
    b.make_room(0, 16);
    let sges = elements(16);
    b.post(0, &sges);
    b.post(0, &sges);
    b.ring(0);
    b.settle();
    b.latency = (400, 401);
    b.list(0, &[sge(0x10_4000, 4096)]);
    let few = bytes_of(&sges[..4]);
    b.offers.extend([send(0, 100, 0, few + 1), send(0, 101, 1, few), write(0, 102, 0x7000, 8)]);
    b.offer(write(1, 100, 0x8000, 8));
    b.responses.push_back(data(0, 0, 0, 8, true));
    b.run(300);
    let iovas: Vec<u64> = b.pieces.iter().map(|p| p.0).collect();
    assert_eq!((iovas.len(), iovas.contains(&0x8000), iovas.contains(&0x5000_4000)), (2, true, true));
    b.settle();
    assert_eq!(b.tail(0), (0x1f, 102, 3));
    assert_eq!(b.done.iter().map(|d| (d.1, d.3)).collect::<Vec<_>>(), [(0, 0), (1, 0)]);
    assert_eq!((b.further.len(), b.dropped.len()), (1, 0));
}

#[test]
fn further_sges_that_cannot_be_read_are_an_operational_error_before_a_byte_of_that_packet() {
    let mut b = Bench::new(1);
    b.bad_further = true;
    b.make_room(0, 8);
    let sges = elements(8);
    let few = bytes_of(&sges[..4]);
    b.post(0, &sges);
    b.offer(Verdict { last: false, ..send(0, 100, 0, few) });
    b.offer(Verdict { first: false, offset: few, ..send(0, 101, 0, 1) });
    b.settle();
    assert_eq!(b.pieces, walk(&sges, 0, few, 0x6400));
    assert_eq!((b.tail(0), b.done.clone()), ((0x63, 101, 0), vec![(0, 0, 128, 2, few + 1, None)]));
    assert_eq!((b.rejects.clone(), b.further.len()), (vec![Reject::WqeFetchFailed], 1));
    // a new start forgets it
    b.bad_further = false;
    b.rams[4].words[0] = Bits::new(16, 0);
    b.start(0, 500);
    b.post(0, &sges);
    b.ring(0);
    b.offer(send(0, 500, 0, few + 1));
    b.settle();
    assert_eq!((b.tail(0), b.done[1].3, b.further.len()), ((0x1f, 500, 1), 0, 2));
}

#[test]
fn a_fence_waits_for_the_read_of_further_sges_and_none_starts_behind_it() {
    for gone in [false, true] {
        let mut b = Bench::new(1);
        let sges = elements(16);
        let few = bytes_of(&sges[..4]);
        for qp in 0..2 {
            b.make_room(qp, 16);
            b.post(qp, &sges);
            b.ring(qp);
        }
        b.settle();
        b.latency = (400, 401);
        b.write_latency = 100;
        b.offer(send(0, 100, 0, few + 1));
        b.run(60);
        if gone {
            let err = QpRights { state: QpState::Err as u8, valid: true, pd: 7, ..Default::default() };
            b.rams[0].words[0] = Bits::from_bytes(256, &err.pack());
        }
        b.fence();
        b.offer(send(1, 100, 0, few + 1));
        b.run(200);
        assert_eq!((b.fences, b.further.len(), b.reading.len()), (0, 1, 1));
        assert_eq!(b.released.len(), usize::from(gone), "a packet of a QP that is gone does not wait");
        while b.fences == 0 {
            b.clock();
            assert!(b.time < 1500, "the fence is held for ever");
        }
        assert_eq!((b.further.len(), b.reading.len(), b.done.len()), (1, 0, usize::from(!gone)));
        b.settle();
        assert_eq!((b.further.len(), b.tail(1)), (2, (0x1f, 100, 1)));
    }
}

#[test]
fn further_sges_of_a_qps_last_life_are_not_taken_for_those_of_the_next() {
    let mut b = Bench::new(1);
    let old = elements(16);
    let new: Vec<Sge> = old.iter().map(|s| Sge { addr: s.addr + 0x5_0000, ..*s }).collect();
    let all = bytes_of(&old);
    b.make_room(0, 16);
    b.post(0, &old);
    b.ring(0);
    b.settle();
    b.latency = (600, 601);
    b.offer(send(0, 100, 0, all));
    b.run(60);
    assert_eq!((b.further.len(), b.reading.len()), (1, 1));
    // destroyed, and made anew, while that read is under way
    let rights = b.rams[0].words[0].clone();
    let err = QpRights { state: QpState::Err as u8, valid: true, pd: 7, ..Default::default() };
    b.rams[0].words[0] = Bits::from_bytes(256, &err.pack());
    b.ring(0);
    b.run(60);
    assert_eq!(b.rejects, [Reject::WrongQpState]);
    b.rams[0].words[0] = rights;
    b.rams[4].words[0] = Bits::new(16, 0);
    b.start(0, 500);
    b.latency = (20, 21);
    b.post(0, &new);
    b.ring(0);
    b.offer(send(0, 500, 0, all));
    b.run(200);
    assert_eq!((b.pieces.len(), b.further.len(), b.reading.len()), (0, 1, 1), "one place, one read");
    b.settle();
    assert_eq!((b.pieces.clone(), b.further.len()), (walk(&new, 0, all, 0x100 * 500 % 0x8000), 2));
    assert_eq!((b.tail(0), b.done.len()), ((0x1f, 500, 1), 1));
}

#[test]
fn sixteen_slots_carry_small_sends_at_the_line_rate_through_a_read_of_a_microsecond() {
    let mut b = Bench::with_config(1, Config { receive_slots: 16, ..config() });
    b.latency = (200, 250);
    b.settle();
    for n in 0..400u64 {
        b.post(0, &[sge(0x10_0000 + n, 1)]);
    }
    b.ring(0);
    b.settle();
    // a smallest frame every 17 clocks is 10 GbE at 250 MHz
    for n in 0..300u16 {
        b.offer(send(0, 100 + u32::from(n), n, 1));
        b.run(17);
    }
    b.settle();
    assert_eq!((b.dropped.len(), b.done.len()), (0, 300));
}

/// The pieces of `length` bytes at `offset` of a message into these SGEs; what was left over.
fn walk(sges: &[Sge], offset: u32, length: u32, address: u32) -> Vec<Piece> {
    let mut bytes: Vec<u64> = vec![];
    for s in sges {
        bytes.extend((0..u64::from(s.length)).map(|i| s.addr + i - 0x10_0000 + 0x5000_0000));
    }
    let mine = &bytes[offset as usize..(offset + length) as usize];
    // one piece per SGE touched: cut where the message crosses from one SGE to the next
    let mut ends = vec![];
    let mut sum = 0;
    for s in sges {
        sum += s.length;
        ends.push(sum);
    }
    let mut pieces: Vec<Piece> = vec![];
    for (i, iova) in mine.iter().enumerate() {
        let at = offset + i as u32;
        if i == 0 || ends.contains(&at) {
            pieces.push((*iova, 0, address + i as u32));
        }
        pieces.last_mut().unwrap().1 += 1;
    }
    pieces
}

/// A packet of a READ of QP `qp` by WQE `wqe`, whose SGEs stand in the entry of that number.
fn data(qp: u32, wqe: u16, offset: u32, length: u32, last: bool) -> Scatter {
    let address = 0x2000 + offset;
    Scatter { qp, entry: wqe.into(), offset, length, address, slot: 7, wqe, last, ..Scatter::default() }
}

#[test]
fn a_read_is_told_when_its_last_byte_is_written_and_not_before() {
    let mut b = Bench::new(1);
    b.write_latency = 200;
    b.list(5, &[sge(0x10_0003, 300), sge(0, 0), sge(0x10_1000, 10), sge(0x10_2001, 500)]);
    for (offset, length, last) in [(0, 256, false), (256, 256, false), (512, 100, true)] {
        b.responses.push_back(data(0, 5, offset, length, last));
    }
    b.run(150);
    assert_eq!(
        b.pieces,
        [
            (0x5000_0003, 256, 0x2000),
            (0x5000_0103, 44, 0x2100),
            (0x5000_1000, 10, 0x2100 + 44),
            (0x5000_2001, 202, 0x2100 + 54),
            (0x5000_2001 + 202, 100, 0x2200),
        ]
    );
    assert_eq!((b.placements.len(), b.released.len()), (0, 0));
    b.settle();
    assert_eq!((b.placements.clone(), b.released.clone()), (vec![(0, 5, 0, 5)], vec![7, 7, 7]));
    // the responder's side knows nothing of it
    assert_eq!((b.tail(0), b.wakes.len(), b.done.len(), b.events.len()), ((0, 0, 0), 0, 0, 0));
}

#[test]
fn a_read_of_nothing_is_told_and_an_unwanted_response_gives_its_slot_back() {
    let mut b = Bench::new(1);
    b.responses.push_back(Scatter { discard: true, slot: 40, ..data(1, 9, 0, 64, true) });
    b.responses.push_back(data(0, 1, 0, 0, true));
    b.settle();
    assert_eq!((b.placements.clone(), b.released.clone()), (vec![(0, 1, 0, 0)], vec![40, 7]));
    assert_eq!((b.pieces.len(), b.rejects.len()), (0, 0), "acknowledge has counted it");
}

#[test]
fn a_read_into_bad_sges_names_its_wqe_and_status_in_order_and_kills_nothing() {
    for (sges, offset, status, why, pieces) in [
        (vec![Sge { lkey: 3 << 8 | 0x11, ..sge(0x10_0000, 512) }], 0, 4, Reject::SglKey, 0),
        (vec![Sge { lkey: 4 << 8 | 0x11, ..sge(0x10_0000, 512) }], 0, 4, Reject::SglKey, 0),
        (vec![Sge { lkey: 0x0001_0211, ..sge(0x10_0000, 512) }], 0, 4, Reject::SglKey, 0),
        (vec![sge(0x1f_ff80, 256)], 0, 4, Reject::SglKey, 0),
        (vec![sge(0x10_0000, 100), sge(0xf_ffff, 412)], 0, 4, Reject::SglKey, 1),
        (vec![sge(0x10_0000, 511)], 256, 1, Reject::SglTooShort, 0),
    ] {
        let mut b = Bench::new(1);
        b.list(1, &[sge(0x10_0000, 64)]);
        b.list(2, &sges);
        b.list(3, &[sge(0x10_8000, 64)]);
        b.responses.push_back(data(0, 1, 0, 64, true));
        b.responses.push_back(data(0, 2, offset, 256, false));
        b.responses.push_back(data(0, 3, 0, 64, true));
        b.settle();
        let told: Vec<_> = b.placements.iter().map(|p| (p.1, p.2)).collect();
        assert_eq!(told, [(1, 0), (2, status), (3, 0)], "{sges:?}");
        assert_eq!((b.rejects.clone(), b.pieces.len(), b.released.len()), (vec![why], 2 + pieces, 3));
        assert_eq!((b.events.len(), b.placed(0).get("halt"), b.tail(0)), (0, 0, (0, 0, 0)));
        // requests go on
        b.offer(write(0, 100, 0x7000, 8));
        b.settle();
        assert_eq!(b.tail(0), (0x1f, 100, 1), "{sges:?}");
    }
}

#[test]
fn a_read_response_passes_a_parked_send_and_requests_and_responses_take_turns() {
    let mut b = Bench::new(1);
    b.latency = (400, 401);
    b.post(0, &[sge(0x10_0000, 64)]);
    b.list(0, &[sge(0x10_4000, 4096)]);
    b.offer(send(0, 100, 0, 64));
    b.responses.push_back(data(0, 0, 0, 8, false));
    b.run(100);
    assert_eq!(b.pieces, [(0x5000_4000, 8, 0x2000)]);
    b.settle();
    b.pieces.clear();
    for n in 0..10 {
        b.offer(write(1, 100 + n, 0x7000, 8));
        b.responses.push_back(data(0, 0, 8 + 8 * n, 8, n == 9));
    }
    b.settle();
    let order: Vec<bool> = b.pieces.iter().map(|p| p.0 == 0x7000).collect();
    assert!(order.windows(3).all(|w| w.iter().any(|x| *x) && !w.iter().all(|x| *x)), "{order:?}");
}

#[test]
fn a_fence_waits_for_the_one_of_the_other_way_and_for_what_is_before_both() {
    for responses_first in [false, true] {
        let mut b = Bench::new(1);
        b.write_latency = 100;
        b.list(0, &[sge(0x10_4000, 4096)]);
        b.offer(write(0, 100, 0x7000, 8));
        b.responses.push_back(data(0, 0, 0, 8, true));
        b.fence();
        let held = if responses_first {
            b.offers.pop_back().map(|v| (Some(v), None))
        } else {
            b.responses.pop_back().map(|r| (None, Some(r)))
        };
        b.run(300);
        assert_eq!((b.fences, b.pieces.len(), b.placements.len()), (0, 2, 1));
        // what is behind the one that came stays, the other way goes on
        if responses_first {
            b.responses.push_back(data(0, 0, 8, 8, true));
            b.offer(write(0, 101, 0x7100, 8));
        } else {
            b.offer(write(0, 101, 0x7100, 8));
            b.responses.push_back(data(0, 0, 8, 8, true));
        }
        b.run(300);
        assert_eq!((b.fences, b.pieces.len()), (0, 3));
        match held {
            Some((Some(v), None)) => b.offer(v),
            Some((None, Some(r))) => b.responses.push_back(r),
            _ => panic!(),
        }
        b.settle();
        assert_eq!((b.fences, b.pieces.len(), b.released.len()), (1, 4, 4));
    }
}

#[test]
fn a_fence_waits_until_acknowledge_has_taken_the_confirmations_before_it() {
    let mut b = Bench::new(1);
    b.placement_ready = false;
    b.list(0, &[sge(0x10_4000, 4096)]);
    b.responses.push_back(data(0, 0, 0, 8, true));
    b.fence();
    b.run(300);
    assert_eq!((b.pieces.len(), b.fences), (1, 0));
    b.placement_ready = true;
    b.settle();
    assert_eq!((b.placements.len(), b.fences), (1, 1));
}

#[test]
fn an_acknowledge_that_takes_no_placement_holds_place_and_loses_nothing() {
    let mut b = Bench::new(1);
    b.placement_ready = false;
    b.list(0, &[sge(0x10_4000, 4096)]);
    for n in 0..12 {
        b.responses.push_back(data(0, 0, n, 1, true));
    }
    b.run(300);
    assert!(b.placements.is_empty() && b.released.len() < 6, "{}", b.released.len());
    b.placement_ready = true;
    b.settle();
    assert_eq!((b.placements.len(), b.released.len()), (12, 12));
}

#[test]
fn random_messages_land_where_the_model_says_whatever_the_host_does() {
    for seed in 1..=10 {
        let mut pick = Choices::new(seed * 77);
        let data_bytes = if seed % 2 == 0 { 64 } else { 8 };
        let c = Config { data_bytes, unhurried: seed > 7, ..config() };
        let mut b = Bench::with_config(seed, c);
        b.slow = 1 + seed % 4;
        b.latency = (5, 10 + 40 * (seed % 5));
        b.write_latency = seed * 7 % 50;
        for (qp, sges) in [(1, 8), (2, 16), (3, 16)] {
            b.make_room(qp, sges);
        }
        let mut psn = [100u32; QPS];
        let mut address = 0u32;
        let mut want: Vec<Vec<Piece>> = vec![vec![]; QPS];
        let mut read_want: Vec<Vec<Piece>> = vec![vec![]; QPS];
        let mut told: Vec<Vec<u16>> = vec![vec![]; QPS];
        let mut done: Vec<Vec<Done>> = vec![vec![]; QPS];
        let (mut packets, mut msn) = (0, [0u64; QPS]);
        for _ in 0..60 {
            let qp = pick.below(QPS as u64) as usize;
            let reads = pick.one_in(4);
            let most = if reads { 16 } else { [4, 8, 16, 16][qp] };
            let mut sges = vec![];
            for _ in 0..1 + pick.below(most) {
                let length = if pick.one_in(5) { 0 } else { 1 + pick.below(1600 / most) as u32 };
                sges.push(sge(0x10_0000 + pick.below(0xf_0000), length));
            }
            let room = bytes_of(&sges);
            if reads {
                let entry = packets as u16 % 256;
                b.list(entry.into(), &sges);
                let mut offset = 0;
                loop {
                    let length = (room - offset).min(256);
                    address = (address + 256) % 32768;
                    let last = offset + length == room;
                    let piece = data(qp as u32, entry, offset, length, last);
                    b.responses.push_back(Scatter { address, ..piece });
                    if length > 0 {
                        read_want[qp].extend(walk(&sges, offset, length, address));
                    }
                    packets += 1;
                    offset += length;
                    if last {
                        break;
                    }
                }
                told[qp].push(entry);
                b.run(pick.below(20));
                continue;
            }
            let is_send = !pick.one_in(3);
            let total = if is_send { pick.below(u64::from(room) + 1) as u32 } else { pick.below(900) as u32 };
            let index = is_send.then(|| b.post(qp, &sges));
            if is_send && pick.one_in(2) {
                b.ring(qp);
            }
            let iova = 0x6000_0000 + pick.below(1 << 20);
            let mut offset = 0;
            loop {
                let length = (total - offset).min(256);
                let last = offset + length == total;
                let action = if is_send { SEND } else { WRITE };
                address = (address + 256) % 32768;
                let slot = pick.below(64) as u8;
                let v = Verdict {
                    action,
                    qp: qp as u32,
                    psn: psn[qp],
                    ack_req: last,
                    first: offset == 0,
                    last,
                    iova: iova + u64::from(offset),
                    wqe: index,
                    offset,
                    length,
                    address,
                    slot,
                    ..Verdict::default()
                };
                // as check would: only with room
                while is_send && (b.s.peek("room") == 0 || !b.offers.is_empty()) {
                    b.clock();
                }
                b.offer(v);
                let pieces = match action {
                    SEND => walk(&sges, offset, length, address),
                    _ if length > 0 => vec![(v.iova, length, address)],
                    _ => vec![],
                };
                want[qp].extend(pieces);
                psn[qp] += 1;
                packets += 1;
                offset += length;
                if pick.one_in(2) {
                    b.run(pick.below(20));
                }
                if last {
                    break;
                }
            }
            msn[qp] += 1;
            if let Some(index) = index {
                done[qp].push((qp as u32, index, 128, 0, total, None));
            }
            // the ring holds 16: wait for the oldest
            while b.producer(qp) as usize >= b.done.iter().filter(|d| d.0 == qp as u32).count() + 15 {
                b.clock();
            }
        }
        b.settle();
        assert!(b.dropped.is_empty() && b.rejects.is_empty() && b.events.is_empty(), "seed {seed}");
        assert_eq!(b.released.len(), packets, "seed {seed}");
        let mut all: Vec<Piece> = want.iter().chain(&read_want).flatten().copied().collect();
        let mut got = b.pieces.clone();
        for qp in 0..QPS {
            // in order within the QP
            let mut rest = b.pieces.iter();
            for piece in &want[qp] {
                assert!(rest.any(|p| p == piece), "seed {seed}, QP {qp}: {piece:?} missing or out of order");
            }
            let mut rest = b.pieces.iter();
            for piece in &read_want[qp] {
                assert!(rest.any(|p| p == piece), "seed {seed}, QP {qp}: {piece:?} of a READ");
            }
            let mine = b.placements.iter().filter(|p| p.0 == qp as u32).map(|p| (p.1, p.2));
            let all_told: Vec<_> = told[qp].iter().map(|wqe| (*wqe, 0)).collect();
            assert_eq!(mine.collect::<Vec<_>>(), all_told, "seed {seed}, QP {qp}");
            let of_qp: Vec<Done> = b.done.iter().filter(|d| d.0 == qp as u32).copied().collect();
            assert_eq!(of_qp, done[qp], "seed {seed}, QP {qp}");
            if psn[qp] > 100 {
                let last = u64::from(psn[qp] - 1);
                assert_eq!(b.tail(qp), (0x1f, last, msn[qp]), "seed {seed}, QP {qp}");
            }
        }
        all.sort_unstable();
        got.sort_unstable();
        assert_eq!(all, got, "seed {seed}");
    }
}

#[test]
fn the_emitted_module_is_clean() {
    bench::lint(&elaborate(&Place { config: Config::small() }).unwrap());
    let wide = Config { name: "wide", data_bytes: 64, packet_buffer_bytes: 1 << 18, ..Config::small() };
    bench::lint(&elaborate(&Place { config: wide }).unwrap());
}

#[test]
fn a_raw_frame_is_placed_whole_and_what_is_wrong_with_its_wqe_ends_that_wqe_alone() {
    let mut b = Bench::new(1);
    b.answers_wait = false;
    let raw = |psn, wqe, length| Verdict { raw: true, ack_req: false, ..send(0, psn, wqe, length) };
    b.post(0, &[sge(0x10_0000, 5000), sge(0x10_4000, 3191)]);
    b.post(0, &[sge(0x10_0000, 59)]);
    b.post(0, &[Sge { lkey: 5 << 8 | 0x11, ..sge(0x10_0000, 64) }]);
    b.post(0, &[sge(0x10_8000, 64)]);
    b.ring(0);
    for (wqe, length) in [(0, 8191), (1, 60), (2, 60), (3, 60)] {
        b.offer(raw(100 + u32::from(wqe), wqe, length));
    }
    b.settle();
    let iova = |va: u64| 0x5000_0000 + va - 0x10_0000;
    let at = |psn: u32| 0x100 * psn % 0x8000;
    let pieces = [
        (iova(0x10_0000), 5000, at(100)),
        (iova(0x10_4000), 3191, at(100) + 5000),
        (iova(0x10_8000), 60, at(103)),
    ];
    assert_eq!(b.pieces, pieces);
    let done: Vec<_> = b.done.iter().map(|d| (d.1, d.2, d.3, d.4)).collect();
    assert_eq!(done, [(0, 128, 0, 8191), (1, 128, 1, 60), (2, 128, 4, 60), (3, 128, 0, 60)]);
    assert_eq!(b.rejects, [Reject::ReceiveTooShort, Reject::LkeyBad]);
    assert_eq!((b.raw_over, b.released.len(), b.events.len()), (4, 4, 0));
    // nobody is answered, nothing is halted
    let p = b.placed(0);
    assert_eq!((p.get("tail_seq"), p.get("halt"), b.answers.len(), b.wakes.len()), (0, 0, 0, 0));
    // discarded with its QP it is over, too
    b.rams[0].words[0] = Bits::zero(256);
    b.offer(raw(104, 4, 60));
    b.settle();
    assert_eq!((b.raw_over, b.released.len(), b.done.len()), (5, 5, 4));
}
