//! Two endpoints and the wire between them, in virtual time.
#![allow(dead_code)]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use contract::verbs::access;
use contract::{Aeth, ImmDt, Opcode, Reject, WcStatus};
use peer::{Completion, Endpoint, Landing, Packet, QpParams, RecvWr, Region, SendOp, SendWr, Time};

pub const OK: WcStatus = WcStatus::Success;
pub const FLUSHED: WcStatus = WcStatus::WrFlushErr;

/// Every right of a region.
pub const ALL: u8 = access::INVALIDATE | PEERS;
/// What a QP may grant.
pub const PEERS: u8 =
    access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ | access::REMOTE_ATOMIC;

/// One way through the wire: 1 us.
pub const DELAY: Time = 1_000_000;

/// Which end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Side {
    A,
    B,
}

pub use Side::{A, B};

/// A frame as it entered the wire.
#[derive(Debug, Clone)]
pub struct Seen {
    pub at: Time,
    pub from: Side,
    pub packet: Packet,
}

/// What the wire does with a frame: extra delays, one per copy that arrives, and the bytes that do.
pub type Fate = Vec<(Time, Vec<u8>)>;

/// A copy of a frame on its way: arrival, number, sender, bytes.
type Flying = (Time, u64, Side, Vec<u8>);

/// Two endpoints with one connected QP each.
pub struct Pair {
    pub now: Time,
    pub a: Endpoint,
    pub b: Endpoint,
    pub qa: u32,
    pub qb: u32,
    pub seen: Vec<Seen>,
    flight: BinaryHeap<Reverse<Flying>>,
    sent: BTreeMap<Side, u64>,
    number: u64,
}

impl Pair {
    /// Connected, with `adjust` applied to both ends' parameters.
    pub fn connected(adjust: impl Fn(Side, &mut QpParams)) -> Self {
        let mut a = Endpoint::new(0x0200_0000_000a, [10, 0, 0, 1].into());
        let mut b = Endpoint::new(0x0200_0000_000b, [10, 0, 0, 2].into());
        a.create_qp(9);
        let (qa, qb) = (a.create_qp(1), b.create_qp(1));
        let mut to_b = QpParams::to(b.address(qb));
        let mut to_a = QpParams::to(a.address(qa));
        adjust(A, &mut to_b);
        adjust(B, &mut to_a);
        a.connect(qa, to_b).expect("A connects");
        b.connect(qb, to_a).expect("B connects");
        Self {
            now: 0,
            a,
            b,
            qa,
            qb,
            seen: Vec::new(),
            flight: BinaryHeap::new(),
            sent: BTreeMap::new(),
            number: 0,
        }
    }

    /// As [`Pair::connected`], with READs and atomics permitted too.
    pub fn open(adjust: impl Fn(Side, &mut QpParams)) -> Self {
        Self::connected(|side, params| {
            params.access = PEERS;
            adjust(side, params);
        })
    }

    pub fn end(&mut self, side: Side) -> &mut Endpoint {
        match side {
            A => &mut self.a,
            B => &mut self.b,
        }
    }

    /// Runs until nothing is left to do or the next thing would be after `until`. `fate` decides on each frame by its
    /// number on its way, from 1.
    pub fn run(&mut self, until: Time, fate: &mut dyn FnMut(Side, u64, Vec<u8>) -> Fate) {
        loop {
            for side in [A, B] {
                let now = self.now;
                while let Some(frame) = self.end(side).poll_transmit(now) {
                    let packet = Packet::parse(&frame).expect("an endpoint sends only what it would accept");
                    self.seen.push(Seen { at: now, from: side, packet });
                    let count = self.sent.entry(side).or_default();
                    *count += 1;
                    for (extra, bytes) in fate(side, *count, frame) {
                        self.number += 1;
                        self.flight.push(Reverse((now + DELAY + extra, self.number, side, bytes)));
                    }
                }
            }
            let arrival = self.flight.peek().map(|Reverse((at, ..))| *at);
            let due = [arrival, self.a.next_timeout(), self.b.next_timeout()].into_iter().flatten().min();
            let Some(due) = due.filter(|due| *due <= until) else {
                self.now = self.now.max(until.min(due.unwrap_or(self.now)));
                return;
            };
            self.now = self.now.max(due);
            while self.flight.peek().is_some_and(|Reverse((at, ..))| *at <= self.now) {
                let Some(Reverse((_, _, from, bytes))) = self.flight.pop() else { break };
                let now = self.now;
                self.end(if from == A { B } else { A }).receive(now, &bytes);
            }
            let now = self.now;
            self.a.handle_timeout(now);
            self.b.handle_timeout(now);
        }
    }

    /// Runs on a clean wire to the end.
    pub fn run_clean(&mut self) {
        self.run(Time::MAX, &mut clean);
    }

    /// Runs on a wire that loses the named frames of `side`, counted from 1 since the start of the pair.
    pub fn run_losing(&mut self, until: Time, side: Side, lost: &[u64]) {
        self.run(until, &mut |from, number, bytes| {
            if from == side && lost.contains(&number) { vec![] } else { vec![(0, bytes)] }
        });
    }

    /// Everything in the completion queue of `side`.
    pub fn completions(&mut self, side: Side) -> Vec<Completion> {
        std::iter::from_fn(|| self.end(side).poll_cq()).collect()
    }

    /// `(wr_id, status)` of everything in the completion queue of `side`.
    pub fn ends(&mut self, side: Side) -> Vec<(u64, contract::WcStatus)> {
        self.completions(side).into_iter().map(|c| (c.wr_id, c.status)).collect()
    }

    pub fn send(&mut self, wr_id: u64, data: Vec<u8>) {
        let qa = self.qa;
        self.a.post_send(qa, SendWr::new(wr_id, SendOp::Send { imm: None }, data)).expect("post send");
    }

    pub fn write(&mut self, wr_id: u64, rkey: u32, va: u64, data: Vec<u8>) {
        let qa = self.qa;
        let op = SendOp::Write { va, rkey, imm: None };
        self.a.post_send(qa, SendWr::new(wr_id, op, data)).expect("post send");
    }

    /// A request of A.
    pub fn post(&mut self, wr: SendWr) {
        let qa = self.qa;
        self.a.post_send(qa, wr).expect("post send");
    }

    pub fn read(&mut self, wr_id: u64, rkey: u32, va: u64, length: usize) {
        let op = SendOp::Read { va, rkey, landing: Landing::Owned(length) };
        self.post(SendWr::new(wr_id, op, vec![]));
    }

    pub fn fetch_add(&mut self, wr_id: u64, rkey: u32, va: u64, add: u64) {
        let op = SendOp::FetchAdd { va, rkey, add, landing: Landing::Owned(8) };
        self.post(SendWr::new(wr_id, op, vec![]));
    }

    pub fn compare_swap(&mut self, wr_id: u64, rkey: u32, va: u64, compare: u64, swap: u64) {
        let op = SendOp::CompareSwap { va, rkey, compare, swap, landing: Landing::Owned(8) };
        self.post(SendWr::new(wr_id, op, vec![]));
    }

    pub fn recv(&mut self, wr_id: u64, length: usize) {
        let qb = self.qb;
        self.b.post_recv(qb, RecvWr { wr_id, landing: Landing::Owned(length) }).expect("post receive");
    }

    /// A region at B that A may write.
    pub fn region(&mut self, va: u64, length: usize) -> u32 {
        let access = access::LOCAL_WRITE | access::REMOTE_WRITE;
        self.b.register(Region { pd: 1, va, access, bytes: vec![0; length] })
    }

    /// A region at B that holds `bytes` and permits everything.
    pub fn shared(&mut self, va: u64, bytes: Vec<u8>) -> u32 {
        self.b.register(Region { pd: 1, va, access: ALL, bytes })
    }

    /// What stands in a region of B.
    pub fn bytes(&self, key: u32) -> &[u8] {
        &self.b.region(key).expect("a region").bytes
    }

    /// The frames A sends now, none delivered.
    pub fn sent(&mut self) -> Vec<Packet> {
        let now = self.now;
        std::iter::from_fn(|| self.a.poll_transmit(now))
            .map(|frame| Packet::parse(&frame).expect("well-formed"))
            .collect()
    }

    /// Delivers a packet to B; gives what B says about it and all its answers.
    pub fn ask(&mut self, packet: &Packet) -> (Option<Reject>, Vec<Packet>) {
        let now = self.now;
        let reject = self.b.receive(now, &packet.build());
        let answers = std::iter::from_fn(|| self.b.poll_transmit(now))
            .map(|frame| Packet::parse(&frame).expect("well-formed"))
            .collect();
        (reject, answers)
    }

    /// Delivers a response to A, as B would build it, changed by `change`.
    pub fn respond(&mut self, opcode: Opcode, psn: u32, change: impl Fn(&mut Packet)) -> Option<Reject> {
        let mut packet = crafted(self, opcode, psn, 0, |_| {});
        std::mem::swap(&mut packet.ethernet.source, &mut packet.ethernet.destination);
        std::mem::swap(&mut packet.ip.source, &mut packet.ip.destination);
        packet.bth.dest_qp = self.qa;
        packet.bth.ack_req = false;
        packet.aeth = packet.aeth.map(|_| Aeth { syndrome: 0x1f, msn: 0 });
        change(&mut packet);
        let now = self.now;
        self.a.receive(now, &packet.build())
    }

    /// What `side` has sent since the start, in order.
    pub fn packets(&self, side: Side) -> Vec<&Packet> {
        self.seen.iter().filter(|seen| seen.from == side).map(|seen| &seen.packet).collect()
    }

    /// Opcodes and PSNs sent by `side` since the start, in order.
    pub fn opcodes(&self, side: Side) -> Vec<(Opcode, u32)> {
        let packets = self.packets(side);
        packets.iter().map(|p| (p.opcode().expect("a known opcode"), p.bth.psn)).collect()
    }

    /// PSNs sent by `side` since the start, in order.
    pub fn psns(&self, side: Side) -> Vec<u32> {
        self.seen.iter().filter(|seen| seen.from == side).map(|seen| seen.packet.bth.psn).collect()
    }

    /// `(psn, syndrome, msn)` of every answer of `side`, in order.
    pub fn answers(&self, side: Side) -> Vec<(u32, u8, u32)> {
        let mine = self.seen.iter().filter(|seen| seen.from == side);
        mine.filter_map(|seen| seen.packet.aeth.map(|aeth| (seen.packet.bth.psn, aeth.syndrome, aeth.msn)))
            .collect()
    }
}

/// A packet from A's QP, as A would build it, changed by `change`.
pub fn crafted(
    pair: &Pair,
    opcode: Opcode,
    psn: u32,
    payload: usize,
    change: impl Fn(&mut Packet),
) -> Packet {
    let mut probe = Pair::connected(|_, _| {});
    probe.send(0, vec![]);
    let mut packet = probe.sent().remove(0);
    packet.bth.opcode = opcode.code();
    packet.bth.psn = psn;
    packet.bth.ack_req = opcode.row().position.closes();
    packet.bth.dest_qp = pair.qb;
    packet.payload = pattern(payload);
    let headers = opcode.row().headers;
    packet.reth = headers.reth.then(Default::default);
    packet.immdt = headers.immdt.then(ImmDt::default);
    packet.ieth = headers.ieth.then(Default::default);
    packet.atomic = headers.atomic.then(Default::default);
    packet.aeth = headers.aeth.then(Default::default);
    packet.atomic_ack = headers.atomic_ack.then(Default::default);
    change(&mut packet);
    packet
}

/// What ACKs and NAKs say: PSN, syndrome.
pub fn acks(answers: &[Packet]) -> Vec<(u32, u8)> {
    answers.iter().map(|p| (p.bth.psn, p.aeth.expect("an ACK or NAK").syndrome)).collect()
}

/// Sixteen bytes for request `n`.
pub fn small(n: u64) -> Vec<u8> {
    vec![n as u8; 16]
}

/// A wire that changes nothing.
pub fn clean(_: Side, _: u64, bytes: Vec<u8>) -> Fate {
    vec![(0, bytes)]
}

/// Bytes that differ from place to place.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 7 + i / 251) as u8).collect()
}
