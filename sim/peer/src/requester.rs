//! The requester half: cuts messages into packets, takes ACKs and NAKs, retries, completes sends in order.
//!
//! Every request gets its PSNs once, when posted; replay moves the cursor `next` back, never the assignment. Inside,
//! PSNs are unwrapped to 64 bits: `una <= next <= high <= end` are the oldest unacknowledged, the next to send, the
//! first never sent and the first never assigned. One deadline serves the retransmission timer, one the RNR wait;
//! while the RNR wait runs the other is off.

use std::collections::VecDeque;

use contract::opcode::Position;
use contract::timer::{RETRY_MAX, RNR_RETRY_FOREVER, rnr_ns, timeout_ns};
use contract::wire::{NakCode, psn_distance};
use contract::{Aeth, ImmDt, Opcode, QpState, Reject, Reth, Syndrome, WcOpcode, WcStatus};

use crate::packet::Packet;
use crate::qp::{Completion, Outbox, Qp, QpParams, SendOp, SendWr};
use crate::{NANOSECOND, Time};

/// Most PSNs that may be in flight: beyond it the responder could not tell old from new.
const PSN_WINDOW: u64 = (1 << 23) - 1;

/// A posted request with its PSNs.
#[derive(Debug)]
struct Work {
    wr: SendWr,
    first: u64,
    packets: u64,
}

impl Work {
    fn completion(self, qpn: u32, status: WcStatus) -> Completion {
        let opcode = match self.wr.op {
            SendOp::Send { .. } => WcOpcode::Send,
            SendOp::Write { .. } => WcOpcode::RdmaWrite,
        };
        Completion {
            qpn,
            wr_id: self.wr.wr_id,
            opcode,
            status,
            byte_len: 0,
            imm: None,
            solicited: false,
            data: Vec::new(),
        }
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
        let packets = (wr.data.len() as u64).div_ceil(mtu.into()).max(1);
        let first = self.end;
        self.end += packets;
        self.work.push_back(Work { wr, first, packets });
    }

    /// Whether every request has been acknowledged.
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

    /// Everything before `una` is acknowledged: retires it, and on progress forgets the retries.
    fn advance(&mut self, qpn: u32, una: u64, out: &mut Outbox) {
        if una > self.una {
            self.una = una;
            self.next = self.next.max(una);
            self.retries_used = 0;
            self.rnr_retries_used = 0;
        }
        while self.work.front().is_some_and(|work| work.first + work.packets <= self.una) {
            let Some(work) = self.work.pop_front() else { break };
            if work.wr.signaled {
                out.completions.push_back(work.completion(qpn, WcStatus::Success));
            }
        }
    }
}

/// `now` plus the retransmission timeout.
fn deadline(params: &QpParams, now: Time) -> Option<Time> {
    timeout_ns(params.timeout).map(|ns| now.saturating_add(ns * NANOSECOND))
}

impl Qp {
    /// The next request packet, if one may be sent now.
    pub fn next_request(&mut self, now: Time) -> Option<Packet> {
        let params = self.params?;
        let r = &self.requester;
        if r.rnr_until.is_some() || r.next >= r.end || !matches!(self.state, QpState::Rts | QpState::Sqd) {
            return None;
        }
        let window = match params.tuning.window {
            0 => PSN_WINDOW,
            limit => PSN_WINDOW.min(limit.into()),
        };
        if r.next - r.una >= window {
            return None;
        }
        let seq = r.next;
        let work = r.work.get(r.work.partition_point(|work| work.first + work.packets <= seq))?;
        if self.state == QpState::Sqd && work.first >= r.high {
            return None;
        }
        let number = seq - work.first;
        let mtu = params.path_mtu.bytes() as usize;
        let start = number as usize * mtu;
        let payload = &work.wr.data[start..work.wr.data.len().min(start + mtu)];
        let position = match (number == 0, number + 1 == work.packets) {
            (true, true) => Position::Only,
            (true, false) => Position::First,
            (false, false) => Position::Middle,
            (false, true) => Position::Last,
        };
        let (opcode, imm) = match work.wr.op {
            SendOp::Send { imm } => (send_opcode(position, imm.is_some()), imm),
            SendOp::Write { imm, .. } => (write_opcode(position, imm.is_some()), imm),
        };
        let mut packet = self.packet(&params, opcode, seq as u32);
        packet.payload = payload.to_vec();
        if let (SendOp::Write { va, rkey, .. }, true) = (work.wr.op, position.opens()) {
            packet.reth = Some(Reth { va, rkey, dma_length: work.wr.data.len() as u32 });
        }
        if position.closes() {
            packet.immdt = imm.map(|immediate| ImmDt { immediate });
            packet.bth.solicited =
                work.wr.solicited && (imm.is_some() || matches!(work.wr.op, SendOp::Send { .. }));
        }
        let interval = u64::from(params.tuning.ack_req_interval);
        packet.bth.ack_req = position.closes()
            || interval != 0 && (number + 1).is_multiple_of(interval)
            || seq + 1 - r.una >= window;

        let r = &mut self.requester;
        r.next += 1;
        if r.next <= r.high {
            r.retransmits += 1;
        }
        r.high = r.high.max(r.next);
        if packet.bth.ack_req || r.deadline.is_none() {
            r.deadline = deadline(&params, now);
        }
        Some(packet)
    }

    /// Takes an ACK or NAK.
    pub fn acknowledge(&mut self, now: Time, psn: u32, aeth: Aeth, out: &mut Outbox) -> Result<(), Reject> {
        let Some(params) = self.params else { return Err(Reject::WrongQpState) };
        let r = &mut self.requester;
        let distance = i64::from(psn_distance(psn, r.una as u32 & 0xff_ffff));
        let seq = r.una.wrapping_add_signed(distance);
        if distance < 0 {
            return Err(Reject::ResponseStale);
        }
        if seq >= r.high {
            return Err(Reject::ResponseUnexpected);
        }
        match Syndrome::decode(aeth.syndrome) {
            Syndrome::Ack(_) => {
                r.advance(self.qpn, seq + 1, out);
                // The packet that was not ready has been taken after all.
                r.rnr_until = None;
                r.deadline = if r.next > r.una { deadline(&params, now) } else { None };
            }
            Syndrome::Rnr(code) => {
                if r.rnr_until.is_some() && seq == r.una {
                    return Err(Reject::ResponseStale);
                }
                r.advance(self.qpn, seq, out);
                if params.rnr_retry != RNR_RETRY_FOREVER {
                    if r.rnr_retries_used == params.rnr_retry {
                        self.fail_oldest(WcStatus::RnrRetryExcErr, out);
                        return Ok(());
                    }
                    r.rnr_retries_used += 1;
                }
                r.next = seq;
                r.deadline = None;
                r.rnr_until = Some(now.saturating_add(rnr_ns(code) * NANOSECOND));
            }
            Syndrome::Nak(NakCode::PsnSequence) => {
                if r.rnr_until.is_some() && seq == r.una {
                    // Sent for the packets behind the one that was not ready: they go again with it.
                    return Err(Reject::ResponseStale);
                }
                r.advance(self.qpn, seq, out);
                r.rnr_until = None;
                r.next = seq;
                r.deadline = None;
                if params.tuning.naks_consume_retries {
                    self.consume_retry(&params, out);
                }
            }
            Syndrome::Nak(NakCode::InvalidRequest) => {
                r.advance(self.qpn, seq, out);
                self.fail_oldest(WcStatus::RemInvReqErr, out);
            }
            Syndrome::Nak(NakCode::RemoteAccess) => {
                r.advance(self.qpn, seq, out);
                self.fail_oldest(WcStatus::RemAccessErr, out);
            }
            Syndrome::Nak(NakCode::RemoteOperation) => {
                r.advance(self.qpn, seq, out);
                self.fail_oldest(WcStatus::RemOpErr, out);
            }
            Syndrome::Nak(NakCode::InvalidRd) | Syndrome::Reserved(_) => return Err(Reject::NakReserved),
        }
        Ok(())
    }

    /// Acts on the deadlines that `now` has reached.
    pub fn handle_timeout(&mut self, now: Time, out: &mut Outbox) {
        let r = &mut self.requester;
        if r.rnr_until.is_some_and(|until| until <= now) {
            r.rnr_until = None;
        } else if r.deadline.is_some_and(|deadline| deadline <= now) {
            r.deadline = None;
            r.next = r.una;
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

    /// The oldest request fails with `status`, everything behind it is flushed.
    fn fail_oldest(&mut self, status: WcStatus, out: &mut Outbox) {
        if let Some(work) = self.requester.work.pop_front() {
            out.completions.push_back(work.completion(self.qpn, status));
        }
        self.fail(out);
    }
}

fn send_opcode(position: Position, imm: bool) -> Opcode {
    match (position, imm) {
        (Position::First, _) => Opcode::RcSendFirst,
        (Position::Middle, _) => Opcode::RcSendMiddle,
        (Position::Last, false) => Opcode::RcSendLast,
        (Position::Last, true) => Opcode::RcSendLastImm,
        (Position::Only, false) => Opcode::RcSendOnly,
        (Position::Only, true) => Opcode::RcSendOnlyImm,
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
