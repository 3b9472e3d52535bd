//! The requester half: cuts messages into packets, takes responses, retries, completes sends in order.
//!
//! Every request gets its PSNs once, when posted (a READ as many as its response has packets, a local invalidate none);
//! replay moves the cursor `next` back, never the assignment. Inside, PSNs are unwrapped to 64 bits: `una <= next <=
//! high <= end` are the oldest unacknowledged, the next to send, the first never sent and the first never assigned.
//!
//! * An ACK acknowledges SENDs and WRITEs; a READ or atomic is done only by its own response, in order. A response behind
//!   a missing one is an implied NAK: the READ goes again from its first missing byte to its original end. Once per gap;
//!   then only the timer.
//! * One deadline serves the retransmission timer, one the RNR wait; while the RNR wait runs the other is off. The first
//!   starts with a request when it does not run, again with each progress, and ends exactly T = 4.096 us * 2^code later.
//! * A request that fails here stops the cursor; it completes in error when all before it have completed.

use std::collections::VecDeque;

use contract::opcode::Position;
use contract::timer::{RETRY_MAX, RNR_RETRY_FOREVER, rnr_ns, timeout_ns};
use contract::wire::{NakCode, psn_distance};
use contract::{
    Aeth, AsyncEvent, AtomicEth, Ieth, ImmDt, Opcode, QpState, Reject, Reth, Syndrome, WcOpcode, WcStatus,
};

use crate::memory::Memory;
use crate::packet::Packet;
use crate::qp::{Completion, Outbox, Qp, QpParams, SendOp, SendWr};
use crate::{NANOSECOND, Time};

/// Most PSNs that may be in flight: beyond it the responder could not tell old from new. A single READ may take one more,
/// alone: 2^31 bytes at path MTU 256.
const PSN_WINDOW: u64 = (1 << 23) - 1;

/// A posted request with its PSNs.
#[derive(Debug)]
struct Work {
    wr: SendWr,
    length: usize,
    first: u64,
    packets: u64,
    /// Where the READ was last asked for: its response may begin here.
    asked: u64,
    /// What has arrived for a landing that is its own.
    received: Vec<u8>,
    /// The local invalidate has been done.
    done: bool,
    /// It cannot go on.
    failed: Option<WcStatus>,
}

impl Work {
    fn end(&self) -> u64 {
        self.first + self.packets
    }

    /// Completes by a response of its own: READ or atomic.
    fn is_answered(&self) -> bool {
        self.wr.op.landing().is_some()
    }

    fn completion(self, qpn: u32, status: WcStatus) -> Completion {
        let opcode = match self.wr.op {
            SendOp::Send { .. } | SendOp::SendInv { .. } => WcOpcode::Send,
            SendOp::Write { .. } => WcOpcode::RdmaWrite,
            SendOp::Read { .. } => WcOpcode::RdmaRead,
            SendOp::CompareSwap { .. } => WcOpcode::CompSwap,
            SendOp::FetchAdd { .. } => WcOpcode::FetchAdd,
            SendOp::LocalInv { .. } => WcOpcode::LocalInv,
        };
        let mut completion = Completion::bare(qpn, self.wr.wr_id, opcode, status);
        if status == WcStatus::Success && self.is_answered() {
            completion.byte_len = self.length as u32;
            completion.data = self.received;
        }
        completion
    }
}

/// State of the requester half.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    work: VecDeque<Work>,
    una: u64,
    next: u64,
    high: u64,
    end: u64,
    retries_used: u8,
    rnr_retries_used: u8,
    deadline: Option<Time>,
    rnr_until: Option<Time>,
    /// A missing response was noticed and asked for again; no progress since.
    gap: bool,
    /// The QP is in SQD and its user has not been told that it is drained.
    pub undrained: bool,
    /// Packets sent again.
    pub retransmits: u64,
}

impl Requester {
    /// Starts anew at a PSN.
    pub fn start(psn: u32) -> Self {
        let first = (1 << 24) + u64::from(psn & 0xff_ffff);
        Self { una: first, next: first, high: first, end: first, ..Default::default() }
    }

    /// Takes a request and assigns its PSNs.
    pub fn post(&mut self, wr: SendWr, mtu: u32) {
        let length = wr.length();
        let packets = match wr.op {
            SendOp::LocalInv { .. } => 0,
            _ => (length as u64).div_ceil(mtu.into()).max(1),
        };
        let first = self.end;
        self.end += packets;
        self.work.push_back(Work {
            wr,
            length,
            first,
            packets,
            asked: first,
            received: Vec::new(),
            done: false,
            failed: None,
        });
    }

    /// Whether every request has completed.
    pub fn is_idle(&self) -> bool {
        self.work.is_empty()
    }

    /// The earlier of both deadlines.
    pub fn next_timeout(&self) -> Option<Time> {
        self.rnr_until.or(self.deadline)
    }

    /// Completes everything as flushed.
    pub fn flush(&mut self, qpn: u32, out: &mut Outbox) {
        for work in self.work.drain(..) {
            out.completions.push_back(work.completion(qpn, WcStatus::WrFlushErr));
        }
        *self = Self { retransmits: self.retransmits, ..Self::default() };
    }

    /// The oldest READ or atomic that was sent and has not been answered: its place and its first missing PSN.
    fn missing(&self) -> Option<(usize, u64)> {
        let sent = self.work.iter().take_while(|work| work.first < self.high);
        let place = sent.enumerate().find(|(_, work)| work.is_answered() && work.end() > self.una)?.0;
        Some((place, self.work[place].first.max(self.una)))
    }

    /// Goes back to `psn` at once.
    fn rewind(&mut self, psn: u64) {
        self.next = psn;
        self.deadline = None;
        self.rnr_until = None;
    }

    fn restart_timer(&mut self, params: &QpParams, now: Time) {
        self.deadline = if self.next > self.una { deadline(params, now) } else { None };
    }
}

/// `now` plus the retransmission timeout.
fn deadline(params: &QpParams, now: Time) -> Option<Time> {
    timeout_ns(params.timeout).map(|ns| now.saturating_add(ns * NANOSECOND))
}

/// `length` bytes of a message from `start` on.
fn piece(wr: &SendWr, start: usize, length: usize, memory: &mut Memory, pd: u32) -> Result<Vec<u8>, Reject> {
    if wr.gather.is_empty() {
        return Ok(wr.data[start..start + length].to_vec());
    }
    let mut bytes = Vec::with_capacity(length);
    let mut skip = start;
    for sge in &wr.gather {
        let take = sge.length.saturating_sub(skip).min(length - bytes.len());
        if take > 0 {
            let va = sge.va.checked_add(skip as u64).ok_or(Reject::SglKey)?;
            bytes.extend_from_slice(memory.access(sge.lkey, pd, va, take as u64, 0)?);
        }
        skip = skip.saturating_sub(sge.length);
    }
    Ok(bytes)
}

impl Qp {
    /// The next request packet, if one may be sent now.
    pub fn next_request(&mut self, now: Time, memory: &mut Memory, out: &mut Outbox) -> Option<Packet> {
        let params = self.params?;
        let (place, seq) = loop {
            let r = &mut self.requester;
            if r.rnr_until.is_some() || !matches!(self.state, QpState::Rts | QpState::Sqd) {
                return None;
            }
            let seq = r.next;
            let place = r.work.partition_point(|w| w.end() <= seq && (w.packets > 0 || w.done));
            let unanswered = r.work.iter().take(place).filter(|w| w.is_answered() && w.end() > r.una).count();
            let work = r.work.get_mut(place)?;
            if work.failed.is_some()
                || self.state == QpState::Sqd && work.first >= r.high
                || work.wr.fence && unanswered > 0
                || work.is_answered() && unanswered >= params.max_rd_atomic.into()
            {
                return None;
            }
            let SendOp::LocalInv { rkey } = work.wr.op else { break (place, seq) };
            match memory.invalidate(rkey, self.pd) {
                Ok(()) => work.done = true,
                Err(_) => work.failed = Some(WcStatus::LocQpOpErr),
            }
            self.settle(out);
        };
        let r = &mut self.requester;
        let window = match params.tuning.window {
            0 => PSN_WINDOW,
            limit => PSN_WINDOW.min(limit.into()),
        };
        let work = &mut r.work[place];
        let is_read = matches!(work.wr.op, SendOp::Read { .. });
        let packets = if is_read { work.end() - seq } else { 1 };
        let flight = seq - r.una;
        if flight >= window || flight > 0 && flight + packets > PSN_WINDOW {
            return None;
        }
        let number = seq - work.first;
        let mtu = params.path_mtu.bytes() as usize;
        let start = number as usize * mtu;
        let payload = if work.is_answered() {
            Vec::new()
        } else {
            match piece(&work.wr, start, mtu.min(work.length - start), memory, self.pd) {
                Ok(payload) => payload,
                Err(_) => {
                    work.failed = Some(WcStatus::LocProtErr);
                    self.settle(out);
                    return None;
                }
            }
        };
        let position = match (number == 0, number + 1 == work.packets) {
            _ if work.is_answered() => Position::Only,
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        };
        let (opens, closes) = (position.opens(), position.closes());
        work.asked = seq;

        let work = &self.requester.work[place];
        let dma_length = (work.length - start) as u32;
        let mut packet = self.packet(&params, Opcode::RcReadRequest, seq as u32);
        let (opcode, solicited) = match work.wr.op {
            SendOp::Send { imm } => {
                packet.immdt = imm.filter(|_| closes).map(|immediate| ImmDt { immediate });
                (send_opcode(position, packet.immdt.is_some(), false), true)
            }
            SendOp::SendInv { rkey } => {
                packet.ieth = closes.then_some(Ieth { rkey });
                (send_opcode(position, false, true), true)
            }
            SendOp::Write { va, rkey, imm } => {
                packet.reth = opens.then_some(Reth { va, rkey, dma_length });
                packet.immdt = imm.filter(|_| closes).map(|immediate| ImmDt { immediate });
                (write_opcode(position, packet.immdt.is_some()), imm.is_some())
            }
            SendOp::Read { va, rkey, .. } => {
                let va = va.wrapping_add(start as u64);
                packet.reth = Some(Reth { va, rkey, dma_length });
                (Opcode::RcReadRequest, false)
            }
            SendOp::CompareSwap { va, rkey, compare, swap, .. } => {
                packet.atomic = Some(AtomicEth { va, rkey, swap_or_add: swap, compare });
                (Opcode::RcCompareSwap, false)
            }
            SendOp::FetchAdd { va, rkey, add, .. } => {
                packet.atomic = Some(AtomicEth { va, rkey, swap_or_add: add, compare: 0 });
                (Opcode::RcFetchAdd, false)
            }
            SendOp::LocalInv { .. } => return None,
        };
        let interval = u64::from(params.tuning.ack_req_interval);
        packet.bth.opcode = opcode.code();
        packet.bth.solicited = work.wr.solicited && solicited && closes;
        packet.bth.ack_req =
            closes || interval != 0 && (number + 1).is_multiple_of(interval) || flight + 1 >= window;
        packet.payload = payload;

        let r = &mut self.requester;
        if r.next < r.high {
            r.retransmits += 1;
        }
        r.next += packets;
        r.high = r.high.max(r.next);
        if r.deadline.is_none() {
            r.deadline = deadline(&params, now);
        }
        Some(packet)
    }

    /// Takes a response: ACK, NAK, READ response, result of an atomic.
    pub fn response(
        &mut self,
        now: Time,
        packet: &Packet,
        opcode: Opcode,
        memory: &mut Memory,
        out: &mut Outbox,
    ) -> Result<(), Reject> {
        let Some(params) = self.params else { return Err(Reject::WrongQpState) };
        let r = &self.requester;
        let distance = i64::from(psn_distance(packet.bth.psn, r.una as u32 & 0xff_ffff));
        if distance < 0 {
            return Err(Reject::ResponseStale);
        }
        let seq = r.una + distance as u64;
        if seq >= r.high {
            return Err(Reject::ResponseUnexpected);
        }
        match (opcode, packet.aeth) {
            (Opcode::RcAcknowledge, Some(aeth)) if packet.payload.is_empty() => {
                self.acknowledge(now, &params, seq, aeth, out)
            }
            (Opcode::RcAcknowledge, _) => Err(Reject::ResponseMalformed),
            _ => {
                self.land(&params, seq, packet, opcode, memory, out)?;
                self.requester.restart_timer(&params, now);
                Ok(())
            }
        }
    }

    /// Takes an ACK or NAK.
    fn acknowledge(
        &mut self,
        now: Time,
        params: &QpParams,
        seq: u64,
        aeth: Aeth,
        out: &mut Outbox,
    ) -> Result<(), Reject> {
        let r = &mut self.requester;
        let missing = r.missing();
        let behind = missing.is_some_and(|(place, _)| seq >= r.work[place].end());
        let at = missing.map_or(seq, |(_, at)| at.min(seq));
        // Sent for the packets behind the one that was not ready: they go again with it.
        let in_wait = r.rnr_until.is_some() && at == r.una;
        match Syndrome::decode(aeth.syndrome) {
            Syndrome::Ack(_) => {
                if missing.is_some_and(|(place, _)| seq >= r.work[place].first) {
                    return self.implied_nak(params, at, out);
                }
                if !self.advance(seq + 1, out) {
                    return Ok(());
                }
                self.requester.restart_timer(params, now);
            }
            Syndrome::Rnr(_) | Syndrome::Nak(NakCode::PsnSequence) if in_wait => {
                return Err(Reject::ResponseStale);
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                if self.advance(at, out) {
                    self.requester.rewind(at);
                    if params.tuning.naks_consume_retries {
                        self.consume_retry(params, out);
                    }
                }
            }
            Syndrome::Nak(NakCode::InvalidRd) | Syndrome::Reserved(_) => return Err(Reject::NakReserved),
            _ if behind => return self.implied_nak(params, at, out),
            Syndrome::Rnr(code) => {
                if !self.advance(at, out) {
                    return Ok(());
                }
                let r = &mut self.requester;
                if params.rnr_retry != RNR_RETRY_FOREVER {
                    if r.rnr_retries_used == params.rnr_retry {
                        self.fail_oldest(WcStatus::RnrRetryExcErr, out);
                        return Ok(());
                    }
                    r.rnr_retries_used += 1;
                }
                r.rewind(at);
                r.rnr_until = Some(now.saturating_add(rnr_ns(code) * NANOSECOND));
            }
            Syndrome::Nak(code) => {
                let status = match code {
                    NakCode::InvalidRequest => WcStatus::RemInvReqErr,
                    NakCode::RemoteAccess => WcStatus::RemAccessErr,
                    _ => WcStatus::RemOpErr,
                };
                if self.advance(at, out) {
                    self.fail_oldest(status, out);
                }
            }
        }
        Ok(())
    }

    /// Takes a READ response or the result of an atomic.
    fn land(
        &mut self,
        params: &QpParams,
        seq: u64,
        packet: &Packet,
        opcode: Opcode,
        memory: &mut Memory,
        out: &mut Outbox,
    ) -> Result<(), Reject> {
        let r = &self.requester;
        let missing = r.missing();
        if let Some((_, at)) = missing.filter(|(_, at)| seq > *at) {
            return self.implied_nak(params, at, out);
        }
        let place = match missing {
            Some((place, at)) if seq == at => place,
            // A SEND or WRITE is answered as if it were a READ.
            _ => r.work.partition_point(|work| work.end() <= seq),
        };
        let first = r.work[place].first;
        if !self.advance(first.max(self.requester.una), out) {
            return Ok(());
        }
        // What came before is complete, so the request is the oldest one now.
        let Some(work) = self.requester.work.front_mut() else { return Err(Reject::ResponseUnexpected) };
        let mtu = params.path_mtu.bytes() as usize;
        let (done, last) = ((seq - work.first) as usize * mtu, seq + 1 == work.end());
        let (opens, continues) = (seq == work.asked, seq > work.first);
        let is_read = matches!(work.wr.op, SendOp::Read { .. });
        let fits = match opcode {
            Opcode::RcReadResponseFirst => is_read && !last && opens,
            Opcode::RcReadResponseMiddle => is_read && !last && continues,
            Opcode::RcReadResponseLast => is_read && last && continues,
            Opcode::RcReadResponseOnly => is_read && last && opens,
            _ => !is_read && work.is_answered(),
        };
        let acknowledges = packet.aeth.is_none_or(|aeth| aeth.syndrome >> 5 == 0);
        let original = packet.atomic_ack.map(|ack| ack.original.to_le_bytes());
        let bytes = original.as_ref().map_or(&packet.payload[..], |value| &value[..]);
        let whole = match original {
            Some(_) => packet.payload.is_empty(),
            None => bytes.len() == mtu.min(work.length - done.min(work.length)),
        };
        let status = if !fits || !acknowledges {
            WcStatus::BadRespErr
        } else if !whole || usize::from(packet.bth.pad_count) != packet.payload.len().wrapping_neg() & 3 {
            WcStatus::LocLenErr
        } else {
            let landing = work.wr.op.landing().copied();
            let placed = landing.map(|to| to.place(memory, self.pd, done, bytes, &mut work.received));
            if matches!(placed, Some(Ok(()))) { WcStatus::Success } else { WcStatus::LocProtErr }
        };
        if status != WcStatus::Success {
            self.fail_oldest(status, out);
            return Err(Reject::ResponseMalformed);
        }
        self.advance(seq + 1, out);
        Ok(())
    }

    /// The response at `at` is missing before one that has arrived: its request goes again, once.
    fn implied_nak(&mut self, params: &QpParams, at: u64, out: &mut Outbox) -> Result<(), Reject> {
        let waits = self.requester.rnr_until.is_some() && at == self.requester.una;
        if !waits && self.advance(at, out) && !self.requester.gap {
            self.requester.gap = true;
            self.requester.rewind(at);
            if params.tuning.naks_consume_retries {
                self.consume_retry(params, out);
            }
        }
        Err(Reject::ResponseGap)
    }

    /// Everything before `una` is acknowledged: on progress forgets the retries, then completes what has come to its end.
    /// False: the QP has stopped.
    fn advance(&mut self, una: u64, out: &mut Outbox) -> bool {
        let r = &mut self.requester;
        if una > r.una {
            r.una = una;
            r.next = r.next.max(una);
            r.retries_used = 0;
            r.rnr_retries_used = 0;
            r.gap = false;
            // What was not ready has been taken after all.
            r.rnr_until = None;
        }
        self.settle(out)
    }

    /// Completes what has come to its end, from the oldest on. False: the QP has stopped.
    fn settle(&mut self, out: &mut Outbox) -> bool {
        let r = &mut self.requester;
        while let Some(work) = r.work.front() {
            if let Some(status) = work.failed {
                self.fail_oldest(status, out);
                return false;
            }
            if work.end() > r.una || work.packets == 0 && !work.done {
                break;
            }
            let Some(work) = r.work.pop_front() else { break };
            if work.wr.signaled {
                out.completions.push_back(work.completion(self.qpn, WcStatus::Success));
            }
        }
        self.tell_drained(out);
        true
    }

    /// Raises the event of a send queue in SQD that has finished all it had begun.
    pub fn tell_drained(&mut self, out: &mut Outbox) {
        let r = &mut self.requester;
        let begun = |work: &Work| work.first < r.high && work.end() > r.una;
        if r.undrained && !r.work.iter().any(begun) {
            r.undrained = false;
            out.events.push_back((self.qpn, AsyncEvent::SqDrained));
        }
    }

    /// Acts on the deadlines that `now` has reached.
    pub fn handle_timeout(&mut self, now: Time, out: &mut Outbox) {
        let r = &mut self.requester;
        if r.rnr_until.is_some_and(|until| until <= now) {
            r.rnr_until = None;
        } else if r.deadline.is_some_and(|deadline| deadline <= now) {
            r.rewind(r.una);
            r.gap = false;
            if let Some(params) = self.params {
                self.consume_retry(&params, out);
            }
        }
    }

    /// One retry less; without any left the oldest request fails.
    fn consume_retry(&mut self, params: &QpParams, out: &mut Outbox) {
        if params.retry_cnt == RETRY_MAX && params.tuning.seven_retries_is_forever {
            return;
        }
        if self.requester.retries_used == params.retry_cnt {
            self.fail_oldest(WcStatus::RetryExcErr, out);
        } else {
            self.requester.retries_used += 1;
        }
    }

    /// The oldest request fails with `status`, everything behind it is flushed; nothing more is sent.
    fn fail_oldest(&mut self, status: WcStatus, out: &mut Outbox) {
        if let Some(work) = self.requester.work.pop_front() {
            out.completions.push_back(work.completion(self.qpn, status));
        }
        self.responder.forget_answers();
        self.fail(out);
    }
}

fn send_opcode(position: Position, imm: bool, inv: bool) -> Opcode {
    match (position, imm, inv) {
        (Position::First, ..) => Opcode::RcSendFirst,
        (Position::Middle, ..) => Opcode::RcSendMiddle,
        (Position::Last, false, false) => Opcode::RcSendLast,
        (Position::Last, true, _) => Opcode::RcSendLastImm,
        (Position::Last, false, true) => Opcode::RcSendLastInv,
        (Position::Only, false, false) => Opcode::RcSendOnly,
        (Position::Only, true, _) => Opcode::RcSendOnlyImm,
        (Position::Only, false, true) => Opcode::RcSendOnlyInv,
    }
}

fn write_opcode(position: Position, imm: bool) -> Opcode {
    match (position, imm) {
        (Position::First, _) => Opcode::RcWriteFirst,
        (Position::Middle, _) => Opcode::RcWriteMiddle,
        (Position::Last, false) => Opcode::RcWriteLast,
        (Position::Last, true) => Opcode::RcWriteLastImm,
        (Position::Only, false) => Opcode::RcWriteOnly,
        (Position::Only, true) => Opcode::RcWriteOnlyImm,
    }
}
