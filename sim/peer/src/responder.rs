//! The responder half: judges requests in the transport's order, places data, owes ACKs and NAKs.
//!
//! The order is PSN, opcode sequence, permission, receive queue, lengths, key, execution. A fatal fault answers with
//! its NAK, completes the receive in use in error, and stops the QP; the NAK still goes out. One sequence NAK per gap,
//! armed again by any packet in order and by the answer to a duplicate.

use std::collections::VecDeque;

use contract::opcode::{Kind, Payload, ReceiveWqe};
use contract::verbs::access;
use contract::wire::{psn_add, psn_distance};
use contract::{Aeth, AsyncEvent, Opcode, Reject, Syndrome, WcOpcode, WcStatus};

use crate::memory::Memory;
use crate::packet::Packet;
use crate::qp::{Completion, Landing, Outbox, Qp, RecvWr};

/// Longest message in bytes.
const MAX_MESSAGE: u64 = 1 << 31;

/// The message that is being received.
#[derive(Debug)]
enum Open {
    Send { recv: RecvWr, data: Vec<u8>, done: usize },
    Write { va: u64, rkey: u32, total: u64, done: u64 },
}

/// State of the responder half.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    recvs: VecDeque<RecvWr>,
    epsn: u32,
    msn: u32,
    unanswered: u32,
    nak_sent: bool,
    touched: bool,
    open: Option<Open>,
    answers: VecDeque<(u32, Aeth)>,
}

fn recv_completion(qpn: u32, recv: RecvWr, status: WcStatus) -> Completion {
    Completion {
        qpn,
        wr_id: recv.wr_id,
        opcode: WcOpcode::Recv,
        status,
        byte_len: 0,
        imm: None,
        solicited: false,
        data: Vec::new(),
    }
}

impl Responder {
    /// Starts anew at a PSN; receives that are posted stay.
    pub fn start(self, psn: u32) -> Self {
        Self { recvs: self.recvs, epsn: psn & 0xff_ffff, ..Self::default() }
    }

    /// Whether no request has been seen since the start.
    pub fn is_untouched(&self) -> bool {
        !self.touched
    }

    pub fn post(&mut self, wr: RecvWr) {
        self.recvs.push_back(wr);
    }

    /// Completes everything as flushed; what is owed to the peer stays owed.
    pub fn flush(&mut self, qpn: u32, out: &mut Outbox) {
        if let Some(Open::Send { recv, .. }) = self.open.take() {
            out.completions.push_back(recv_completion(qpn, recv, WcStatus::WrFlushErr));
        }
        for recv in self.recvs.drain(..) {
            out.completions.push_back(recv_completion(qpn, recv, WcStatus::WrFlushErr));
        }
    }

    /// Owes an answer; `coalesce` lets it take the place of an unsent ACK.
    fn answer(&mut self, psn: u32, syndrome: u8, coalesce: bool) {
        let is_ack = |aeth: &Aeth| aeth.syndrome >> 5 == 0;
        let aeth = Aeth { syndrome, msn: self.msn };
        if coalesce && self.answers.back().is_some_and(|(_, last)| is_ack(last)) {
            self.answers.pop_back();
        }
        self.answers.push_back((psn, aeth));
        self.unanswered = 0;
    }
}

/// Why a request is refused for good: its name, its NAK, and the status of the receive in use.
struct Fault {
    reject: Reject,
    syndrome: u8,
    status: WcStatus,
}

impl Fault {
    fn invalid(reject: Reject) -> Self {
        Self { reject, syndrome: Syndrome::NAK_INVALID_REQUEST, status: WcStatus::LocQpOpErr }
    }

    fn too_long() -> Self {
        Self { status: WcStatus::LocLenErr, ..Self::invalid(Reject::ReceiveTooShort) }
    }

    fn access(reject: Reject) -> Self {
        Self { reject, syndrome: Syndrome::NAK_REMOTE_ACCESS, status: WcStatus::LocProtErr }
    }

    fn landing() -> Self {
        Self {
            reject: Reject::LkeyBad,
            syndrome: Syndrome::NAK_REMOTE_OPERATION,
            status: WcStatus::LocProtErr,
        }
    }
}

impl Qp {
    /// The next ACK or NAK owed.
    pub fn next_answer(&mut self) -> Option<Packet> {
        let params = self.params?;
        let (psn, aeth) = self.responder.answers.pop_front()?;
        let mut packet = self.packet(&params, Opcode::RcAcknowledge, psn);
        packet.aeth = Some(aeth);
        Some(packet)
    }

    /// Takes a request; the error names why it had no effect beyond an answer.
    pub fn request(
        &mut self,
        packet: &Packet,
        opcode: Opcode,
        memory: &mut Memory,
        out: &mut Outbox,
    ) -> Result<(), Reject> {
        let Some(params) = self.params else { return Err(Reject::WrongQpState) };
        let tuning = params.tuning;
        let row = opcode.row();
        let r = &mut self.responder;
        let psn = packet.bth.psn;
        r.touched = true;
        match psn_distance(psn, r.epsn) {
            1.. if r.nak_sent => return Err(Reject::PsnOutOfSequenceRepeat),
            1.. => {
                r.nak_sent = true;
                r.answer(r.epsn, Syndrome::NAK_PSN_SEQUENCE, false);
                return Err(Reject::PsnOutOfSequence);
            }
            ..0 => {
                if matches!(row.kind, Kind::Send | Kind::Write) {
                    r.nak_sent = false;
                    r.answer(psn_add(r.epsn, 0xff_ffff), Syndrome::ACK, tuning.coalesce_acks);
                }
                return Err(Reject::Duplicate);
            }
            0 => r.nak_sent = false,
        }
        match self.execute(packet, opcode, memory, out) {
            Ok(true) => {
                let r = &mut self.responder;
                r.epsn = psn_add(r.epsn, 1);
                r.unanswered += 1;
                if packet.bth.ack_req || tuning.ack_interval != 0 && r.unanswered >= tuning.ack_interval {
                    r.answer(psn, Syndrome::ACK, tuning.coalesce_acks);
                }
                Ok(())
            }
            Ok(false) => {
                let r = &mut self.responder;
                r.nak_sent = !tuning.nak_behind_rnr;
                r.answer(psn, Syndrome::rnr(params.min_rnr_timer), false);
                Err(Reject::ReceiverNotReady)
            }
            Err(fault) => {
                let r = &mut self.responder;
                r.answer(psn, fault.syndrome, false);
                if let Some(Open::Send { recv, .. }) = r.open.take() {
                    out.completions.push_back(recv_completion(self.qpn, recv, fault.status));
                }
                let event = match fault.syndrome {
                    Syndrome::NAK_INVALID_REQUEST => AsyncEvent::QpReqErr,
                    Syndrome::NAK_REMOTE_ACCESS => AsyncEvent::QpAccessErr,
                    _ => AsyncEvent::QpFatal,
                };
                out.events.push_back((self.qpn, event));
                self.fail(out);
                Err(fault.reject)
            }
        }
    }

    /// Executes the expected packet. `Ok(false)`: a receive is needed and none is posted; nothing has changed.
    fn execute(
        &mut self,
        packet: &Packet,
        opcode: Opcode,
        memory: &mut Memory,
        out: &mut Outbox,
    ) -> Result<bool, Fault> {
        let row = opcode.row();
        let Some(params) = self.params else { return Err(Fault::invalid(Reject::WrongQpState)) };
        let r = &mut self.responder;
        // Opcode sequence.
        let in_sequence = match (&r.open, row.kind) {
            (None, _) => row.position.opens(),
            (Some(Open::Send { .. }), Kind::Send) | (Some(Open::Write { .. }), Kind::Write) => {
                !row.position.opens()
            }
            _ => false,
        };
        if !in_sequence {
            return Err(Fault::invalid(Reject::OpcodeSequence));
        }
        // Permission.
        let permitted = match row.kind {
            Kind::Send => !row.headers.ieth,
            Kind::Write => params.access & access::REMOTE_WRITE != 0,
            _ => false,
        };
        if !permitted {
            return Err(Fault::invalid(Reject::AccessDenied));
        }
        // Receive queue.
        let takes_receive = matches!(row.receive_wqe, ReceiveWqe::Fetch | ReceiveWqe::FetchComplete);
        if takes_receive && r.recvs.is_empty() {
            return Ok(false);
        }
        // A SEND's receive is in use from here on, also when the packet turns out to be wrong.
        if row.kind == Kind::Send && row.position.opens() {
            let Some(recv) = r.recvs.pop_front() else { return Ok(false) };
            let data = match recv.landing {
                Landing::Owned(length) => Vec::with_capacity(length.min(1 << 20)),
                Landing::Region { .. } => Vec::new(),
            };
            r.open = Some(Open::Send { recv, data, done: 0 });
        }
        // Lengths.
        let len = packet.payload.len();
        let mtu = params.path_mtu.bytes() as usize;
        let fits = match row.payload {
            Payload::Full => len == mtu,
            Payload::Some => (1..=mtu).contains(&len),
            Payload::Any => len <= mtu,
            Payload::None => len == 0,
            Payload::Reserved16 => len == 16,
        };
        if !fits || usize::from(packet.bth.pad_count) != len.wrapping_neg() & 3 {
            return Err(Fault::invalid(Reject::BadLength));
        }
        if let Some(reth) = packet.reth {
            r.open =
                Some(Open::Write { va: reth.va, rkey: reth.rkey, total: reth.dma_length.into(), done: 0 });
        }
        let closes = row.position.closes();
        match &mut r.open {
            Some(Open::Send { recv, data, done }) => {
                if *done + len > recv.landing.length() {
                    return Err(Fault::too_long());
                }
                match recv.landing {
                    Landing::Owned(_) => data.extend(&packet.payload),
                    Landing::Region { lkey, va, .. } if len > 0 => {
                        let at = va.checked_add(*done as u64).ok_or_else(Fault::landing)?;
                        memory
                            .access(lkey, self.pd, at, len as u64, access::LOCAL_WRITE)
                            .map_err(|_| Fault::landing())?
                            .copy_from_slice(&packet.payload);
                    }
                    Landing::Region { .. } => {}
                }
                *done += len;
            }
            Some(Open::Write { va, rkey, total, done }) => {
                let after = *done + len as u64;
                let length_ok = if closes { after == *total } else { after < *total };
                if !length_ok || *total > MAX_MESSAGE {
                    return Err(Fault::invalid(Reject::BadLength));
                }
                // The whole range is judged at the first packet; a zero-length WRITE names no memory.
                if row.position.opens() && *total > 0 {
                    memory
                        .access(*rkey, self.pd, *va, *total, access::REMOTE_WRITE)
                        .map_err(Fault::access)?;
                }
                if len > 0 {
                    memory
                        .access(*rkey, self.pd, *va + *done, len as u64, access::REMOTE_WRITE)
                        .map_err(Fault::access)?
                        .copy_from_slice(&packet.payload);
                }
                *done = after;
            }
            None => return Err(Fault::invalid(Reject::OpcodeSequence)),
        }
        if closes {
            r.msn = psn_add(r.msn, 1);
            let imm = packet.immdt.map(|imm| imm.immediate);
            let solicited = packet.bth.solicited;
            match r.open.take() {
                Some(Open::Send { recv, data, done }) => out.completions.push_back(Completion {
                    byte_len: done as u32,
                    imm,
                    solicited,
                    data,
                    ..recv_completion(self.qpn, recv, WcStatus::Success)
                }),
                Some(Open::Write { total, .. }) if imm.is_some() => {
                    if let Some(recv) = r.recvs.pop_front() {
                        out.completions.push_back(Completion {
                            opcode: WcOpcode::RecvRdmaWithImm,
                            byte_len: total as u32,
                            imm,
                            solicited,
                            ..recv_completion(self.qpn, recv, WcStatus::Success)
                        });
                    }
                }
                _ => {}
            }
        }
        Ok(true)
    }
}
