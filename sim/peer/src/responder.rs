//! The responder half: judges requests in the transport's order, places data, owes ACKs, NAKs, data and old values.
//!
//! The order is PSN, opcode sequence, permission, receive queue or room for one more READ or atomic, lengths, alignment,
//! key, execution. A fatal fault answers with its NAK, completes the receive in use in error, and stops the QP; the NAK
//! still goes out, behind what was owed before. One sequence NAK per gap, armed again by any packet in order and by the
//! answer to a duplicate.
//!
//! Answers leave in the order of the requests. A READ reads memory when its packets leave; an atomic is executed when it
//! arrives, and its result kept. A duplicate changes nothing: SEND and WRITE are acknowledged again, up to the first READ
//! or atomic behind them; a READ, or the rest of one, is read again; an atomic gets the result that was kept. A duplicate
//! that fits nothing kept is dropped.

use std::collections::VecDeque;

use contract::opcode::{Kind, Payload, ReceiveWqe};
use contract::verbs::access;
use contract::wire::{psn_add, psn_distance};
use contract::{
    Aeth, AsyncEvent, AtomicAckEth, AtomicEth, Opcode, Reject, Reth, Syndrome, WcOpcode, WcStatus,
};

use crate::memory::Memory;
use crate::packet::Packet;
use crate::qp::{Completion, Landing, Outbox, Qp, QpParams, RecvWr};

/// Longest message in bytes.
const MAX_MESSAGE: u64 = 1 << 31;

/// The message that is being received.
#[derive(Debug)]
enum Open {
    Send { recv: RecvWr, data: Vec<u8>, done: usize },
    Write { va: u64, rkey: u32, total: u64, done: u64 },
}

/// A READ whose answer is owed, from the next byte on.
#[derive(Debug, Clone, Copy)]
struct Owed {
    psn: u32,
    va: u64,
    rkey: u32,
    left: u32,
    /// The next packet is a first or only one.
    opens: bool,
    /// It answers a duplicate.
    again: bool,
    msn: u32,
}

/// What is owed to the peer.
#[derive(Debug)]
enum Answer {
    Acknowledge { psn: u32, aeth: Aeth },
    Read(Owed),
    Atomic { psn: u32, original: u64, again: bool, msn: u32 },
}

impl Answer {
    /// Answers a READ or atomic for the first time.
    fn is_first_of_read(&self) -> bool {
        matches!(self, Self::Read(Owed { again: false, .. }) | Self::Atomic { again: false, .. })
    }
}

/// A READ or atomic that was accepted, kept for its duplicates.
#[derive(Debug, Clone, Copy)]
struct Kept {
    first: u64,
    packets: u32,
    what: KeptWhat,
}

#[derive(Debug, Clone, Copy)]
enum KeptWhat {
    Read(Reth),
    Atomic(u64),
}

/// State of the responder half.
#[derive(Debug, Default)]
pub(crate) struct Responder {
    recvs: VecDeque<RecvWr>,
    /// The expected PSN, unwrapped: what is kept must not be taken for younger after half a circle.
    epsn: u64,
    msn: u32,
    unanswered: u32,
    nak_sent: bool,
    touched: bool,
    open: Option<Open>,
    answers: VecDeque<Answer>,
    kept: VecDeque<Kept>,
}

fn recv_completion(qpn: u32, recv: RecvWr, status: WcStatus) -> Completion {
    Completion::bare(qpn, recv.wr_id, WcOpcode::Recv, status)
}

impl Responder {
    /// Starts anew at a PSN; receives that are posted stay.
    pub fn start(self, psn: u32) -> Self {
        Self { recvs: self.recvs, epsn: (1 << 24) + u64::from(psn & 0xff_ffff), ..Self::default() }
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

    /// The expected PSN as on the wire.
    fn expected(&self) -> u32 {
        wire(self.epsn)
    }

    /// Nothing is owed any more.
    pub fn forget_answers(&mut self) {
        self.answers.clear();
    }

    /// Owes an ACK or NAK; `coalesce` lets it take the place of an unsent ACK.
    fn answer(&mut self, psn: u32, syndrome: u8, coalesce: bool) {
        let aeth = Aeth { syndrome, msn: self.msn };
        if coalesce
            && matches!(self.answers.back(), Some(Answer::Acknowledge { aeth, .. }) if aeth.syndrome >> 5 == 0)
        {
            self.answers.pop_back();
        }
        self.answers.push_back(Answer::Acknowledge { psn, aeth });
        self.unanswered = 0;
    }

    /// Accepts a READ or atomic: owes its answer, keeps it for duplicates.
    fn accept(&mut self, packets: u32, what: KeptWhat, depth: u8) {
        self.msn = psn_add(self.msn, 1);
        self.kept.push_back(Kept { first: self.epsn, packets, what });
        while self.kept.len() > depth.into() {
            self.kept.pop_front();
        }
        let (psn, msn) = (self.expected(), self.msn);
        self.answers.push_back(match what {
            KeptWhat::Read(Reth { va, rkey, dma_length: left }) => {
                Answer::Read(Owed { psn, va, rkey, left, opens: true, again: false, msn })
            }
            KeptWhat::Atomic(original) => Answer::Atomic { psn, original, again: false, msn },
        });
        self.unanswered = 0;
    }

    /// Answers the duplicate `seq` again, if it can be.
    fn duplicate(&mut self, seq: u64, packet: &Packet, kind: Kind, params: &QpParams) {
        let (psn, msn) = (wire(seq), self.msn);
        let holds = |kept: &&Kept| (kept.first..kept.first + u64::from(kept.packets)).contains(&seq);
        let again = match (kind, self.kept.iter().find(holds).copied()) {
            (Kind::Send | Kind::Write, _) => {
                // Nothing may seem acknowledged that has an answer of its own.
                let next =
                    self.kept.iter().find(|kept| kept.first > seq).map_or(self.epsn, |kept| kept.first);
                self.nak_sent = false;
                self.answer(wire(next - 1), Syndrome::ACK, params.tuning.coalesce_acks);
                return;
            }
            (Kind::Read, Some(Kept { first, packets, what: KeptWhat::Read(original) })) => {
                let Some(reth) = packet.reth else { return };
                let offset = (seq - first) as u32;
                let within = reth.va.checked_sub(original.va).is_some_and(|skip| {
                    skip.checked_add(reth.dma_length.into())
                        .is_some_and(|end| end <= original.dma_length.into())
                });
                let fits = response_packets(reth.dma_length, params) <= packets - offset;
                if !within || !fits || reth.rkey != original.rkey || !packet.payload.is_empty() {
                    return;
                }
                let opens = !params.tuning.replays_continue || offset == 0;
                Answer::Read(Owed {
                    psn,
                    va: reth.va,
                    rkey: reth.rkey,
                    left: reth.dma_length,
                    opens,
                    again: true,
                    msn,
                })
            }
            (Kind::Atomic, Some(Kept { what: KeptWhat::Atomic(original), .. })) => {
                Answer::Atomic { psn, original, again: true, msn }
            }
            _ => return,
        };
        self.nak_sent = false;
        self.answers.push_back(again);
    }
}

/// A PSN as on the wire.
fn wire(seq: u64) -> u32 {
    seq as u32 & 0xff_ffff
}

/// Packets of the response to a READ of `length` bytes.
fn response_packets(length: u32, params: &QpParams) -> u32 {
    length.div_ceil(params.path_mtu.bytes()).max(1)
}

/// Why a request is refused for good: its name, its NAK if it has one, and the status of the receive in use.
struct Fault {
    reject: Reject,
    syndrome: Option<u8>,
    status: WcStatus,
}

impl Fault {
    fn invalid(reject: Reject) -> Self {
        let syndrome = Some(Syndrome::NAK_INVALID_REQUEST);
        Self { reject, syndrome, status: WcStatus::LocQpOpErr }
    }

    fn too_long() -> Self {
        Self { status: WcStatus::LocLenErr, ..Self::invalid(Reject::ReceiveTooShort) }
    }

    fn access(reject: Reject) -> Self {
        let syndrome = Some(Syndrome::NAK_REMOTE_ACCESS);
        Self { reject, syndrome, status: WcStatus::LocProtErr }
    }

    fn landing(reject: Reject) -> Self {
        let syndrome = Some(Syndrome::NAK_REMOTE_OPERATION);
        Self { reject, syndrome, status: WcStatus::LocProtErr }
    }

    /// The message has arrived, but the key that it was to invalidate is not one: no NAK, the QP stops.
    fn invalidation(reject: Reject) -> Self {
        Self { reject, syndrome: None, status: WcStatus::LocAccessErr }
    }

    fn event(&self) -> AsyncEvent {
        match self.syndrome {
            Some(Syndrome::NAK_INVALID_REQUEST) => AsyncEvent::QpReqErr,
            Some(Syndrome::NAK_REMOTE_OPERATION) => AsyncEvent::QpFatal,
            _ => AsyncEvent::QpAccessErr,
        }
    }
}

impl Qp {
    /// The next answer owed.
    pub fn next_answer(&mut self, memory: &mut Memory, out: &mut Outbox) -> Option<Packet> {
        let params = self.params?;
        loop {
            let owed = match self.responder.answers.pop_front()? {
                Answer::Acknowledge { psn, aeth } => {
                    let mut packet = self.packet(&params, Opcode::RcAcknowledge, psn);
                    packet.aeth = Some(aeth);
                    return Some(packet);
                }
                Answer::Atomic { psn, original, msn, .. } => {
                    let mut packet = self.packet(&params, Opcode::RcAtomicAcknowledge, psn);
                    packet.aeth = Some(Aeth { syndrome: Syndrome::ACK, msn });
                    packet.atomic_ack = Some(AtomicAckEth { original });
                    return Some(packet);
                }
                Answer::Read(owed) => owed,
            };
            let take = owed.left.min(params.path_mtu.bytes());
            let payload = match take {
                0 => Ok(Vec::new()),
                _ => memory
                    .access(owed.rkey, self.pd, owed.va, take.into(), access::REMOTE_READ)
                    .map(|bytes| bytes.to_vec()),
            };
            match payload {
                Ok(payload) => return Some(self.read_response(&params, owed, payload)),
                // The key was taken away meanwhile; a duplicate is never the reason for a NAK.
                Err(_) if owed.again => {}
                Err(_) => {
                    self.responder.forget_answers();
                    out.events.push_back((self.qpn, AsyncEvent::QpAccessErr));
                    self.fail(out);
                    let mut packet = self.packet(&params, Opcode::RcAcknowledge, owed.psn);
                    packet.aeth = Some(Aeth { syndrome: Syndrome::NAK_REMOTE_ACCESS, msn: owed.msn });
                    return Some(packet);
                }
            }
        }
    }

    /// The next packet of a READ response; what is left stays owed, before everything else.
    fn read_response(&mut self, params: &QpParams, owed: Owed, payload: Vec<u8>) -> Packet {
        let take = payload.len() as u32;
        let closes = take == owed.left;
        let opcode = match (owed.opens, closes) {
            (true, false) => Opcode::RcReadResponseFirst,
            (false, false) => Opcode::RcReadResponseMiddle,
            (false, true) => Opcode::RcReadResponseLast,
            (true, true) => Opcode::RcReadResponseOnly,
        };
        let mut packet = self.packet(params, opcode, owed.psn);
        packet.aeth = (owed.opens || closes).then_some(Aeth { syndrome: Syndrome::ACK, msn: owed.msn });
        packet.payload = payload;
        if !closes {
            self.responder.answers.push_front(Answer::Read(Owed {
                psn: psn_add(owed.psn, 1),
                va: owed.va + u64::from(take),
                left: owed.left - take,
                opens: false,
                ..owed
            }));
        }
        packet
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
        match psn_distance(psn, r.expected()) {
            1.. if r.nak_sent => return Err(Reject::PsnOutOfSequenceRepeat),
            1.. => {
                r.nak_sent = true;
                r.answer(r.expected(), Syndrome::NAK_PSN_SEQUENCE, false);
                return Err(Reject::PsnOutOfSequence);
            }
            behind @ ..0 => {
                r.duplicate(r.epsn.wrapping_add_signed(behind.into()), packet, row.kind, &params);
                return Err(Reject::Duplicate);
            }
            0 => r.nak_sent = false,
        }
        match self.execute(packet, opcode, memory, out) {
            Ok(Some(psns)) => {
                let r = &mut self.responder;
                r.epsn += u64::from(psns);
                if matches!(row.kind, Kind::Read | Kind::Atomic) {
                    return Ok(());
                }
                r.unanswered += 1;
                if packet.bth.ack_req || tuning.ack_interval != 0 && r.unanswered >= tuning.ack_interval {
                    r.answer(psn, Syndrome::ACK, tuning.coalesce_acks);
                }
                Ok(())
            }
            Ok(None) => {
                let r = &mut self.responder;
                r.nak_sent = !tuning.nak_behind_rnr;
                r.answer(psn, Syndrome::rnr(params.min_rnr_timer), false);
                Err(Reject::ReceiverNotReady)
            }
            Err(fault) => {
                let r = &mut self.responder;
                if let Some(syndrome) = fault.syndrome {
                    r.answer(psn, syndrome, false);
                }
                if let Some(Open::Send { recv, .. }) = r.open.take() {
                    out.completions.push_back(recv_completion(self.qpn, recv, fault.status));
                }
                out.events.push_back((self.qpn, fault.event()));
                self.fail(out);
                Err(fault.reject)
            }
        }
    }

    /// Executes the expected packet and gives the PSNs that it takes. `Ok(None)`: a receive is needed and none is posted;
    /// nothing has changed.
    fn execute(
        &mut self,
        packet: &Packet,
        opcode: Opcode,
        memory: &mut Memory,
        out: &mut Outbox,
    ) -> Result<Option<u32>, Fault> {
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
            Kind::Send => true,
            Kind::Write => params.access & access::REMOTE_WRITE != 0,
            Kind::Read => params.access & access::REMOTE_READ != 0,
            Kind::Atomic => params.access & access::REMOTE_ATOMIC != 0,
            Kind::Response | Kind::Notification => false,
        };
        if !permitted {
            return Err(Fault::invalid(Reject::AccessDenied));
        }
        // Receive queue, or room for an answer.
        let takes_receive = matches!(row.receive_wqe, ReceiveWqe::Fetch | ReceiveWqe::FetchComplete);
        if takes_receive && r.recvs.is_empty() {
            return Ok(None);
        }
        let unsent = || r.answers.iter().filter(|answer| answer.is_first_of_read()).count();
        if matches!(row.kind, Kind::Read | Kind::Atomic) && unsent() >= params.max_dest_rd_atomic.into() {
            return Err(Fault::invalid(Reject::ReadDepth));
        }
        // A SEND's receive is in use from here on, also when the packet turns out to be wrong.
        if row.kind == Kind::Send && row.position.opens() {
            let Some(recv) = r.recvs.pop_front() else { return Ok(None) };
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
        match (row.kind, packet.reth, packet.atomic) {
            (Kind::Read, Some(reth), _) => return self.execute_read(reth, &params, memory),
            (Kind::Atomic, _, Some(atomic)) => {
                return self.execute_atomic(row.opcode, atomic, &params, memory);
            }
            _ => {}
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
                recv.landing.place(memory, self.pd, *done, &packet.payload, data).map_err(Fault::landing)?;
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
        let invalidated = packet.ieth.map(|ieth| ieth.rkey);
        if let Some(rkey) = invalidated {
            memory.invalidate(rkey, self.pd).map_err(Fault::invalidation)?;
        }
        if closes {
            r.msn = psn_add(r.msn, 1);
            let imm = packet.immdt.map(|imm| imm.immediate);
            let solicited = packet.bth.solicited;
            match r.open.take() {
                Some(Open::Send { recv, data, done }) => out.completions.push_back(Completion {
                    byte_len: done as u32,
                    imm,
                    invalidated,
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
        Ok(Some(1))
    }

    /// Accepts a READ: the key is judged now, the memory read when the answer leaves. One of no length names no memory.
    fn execute_read(
        &mut self,
        reth: Reth,
        params: &QpParams,
        memory: &mut Memory,
    ) -> Result<Option<u32>, Fault> {
        let length = u64::from(reth.dma_length);
        if length > MAX_MESSAGE {
            return Err(Fault::invalid(Reject::BadLength));
        }
        if length > 0 {
            memory.access(reth.rkey, self.pd, reth.va, length, access::REMOTE_READ).map_err(Fault::access)?;
        }
        let packets = response_packets(reth.dma_length, params);
        self.responder.accept(packets, KeptWhat::Read(reth), params.max_dest_rd_atomic);
        Ok(Some(packets))
    }

    /// Executes an atomic on little-endian memory.
    fn execute_atomic(
        &mut self,
        opcode: Opcode,
        atomic: AtomicEth,
        params: &QpParams,
        memory: &mut Memory,
    ) -> Result<Option<u32>, Fault> {
        if atomic.va & 7 != 0 {
            return Err(Fault::invalid(Reject::AtomicAlignment));
        }
        let place = memory
            .access(atomic.rkey, self.pd, atomic.va, 8, access::REMOTE_ATOMIC)
            .map_err(Fault::access)?;
        let original = place.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte));
        let value = match opcode {
            Opcode::RcFetchAdd => original.wrapping_add(atomic.swap_or_add),
            _ if original == atomic.compare => atomic.swap_or_add,
            _ => original,
        };
        place.copy_from_slice(&value.to_le_bytes());
        self.responder.accept(1, KeptWhat::Atomic(original), params.max_dest_rd_atomic);
        Ok(Some(1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qp::Address;
    use contract::PathMtu;
    use std::net::IpAddr;

    fn params() -> QpParams {
        let remote = Address { mac: 0, ip: IpAddr::from([10, 0, 0, 1]), qpn: 2 };
        QpParams { path_mtu: PathMtu::Mtu256, ..QpParams::to(remote) }
    }

    /// A responder that has accepted and answered a READ of `length` bytes.
    fn answered(length: u32) -> Responder {
        let mut r = Responder::default().start(0xff_fff0);
        let packets = response_packets(length, &params());
        r.accept(packets, KeptWhat::Read(Reth { va: 0, rkey: 1, dma_length: length }), 16);
        r.forget_answers();
        r.epsn += u64::from(packets);
        r
    }

    #[test]
    fn a_read_kept_for_half_the_circle_of_psns_is_not_taken_for_one_behind_a_duplicate() {
        for passed in [1, (1 << 23) - 1, 1 << 23, (1 << 23) + 1, (1 << 24) + 1] {
            let mut r = answered(4096);
            r.epsn += passed;
            r.duplicate(r.epsn - 1, &Packet::default(), Kind::Send, &params());
            let Some(Answer::Acknowledge { psn, .. }) = r.answers.back() else { panic!("an ACK is owed") };
            assert_eq!(*psn, wire(r.epsn - 1), "{passed} PSNs later");
        }
    }

    #[test]
    fn a_read_of_2_31_bytes_is_answered_again_up_to_its_last_byte_and_no_further() {
        let far = (1 << 31) - 256;
        for (length, found) in [(256, true), (257, false)] {
            let mut r = answered(1 << 31);
            let reth = Some(Reth { va: far, rkey: 1, dma_length: length });
            let packet = Packet { reth, ..Packet::default() };
            r.duplicate(r.epsn - 1, &packet, Kind::Read, &params());
            assert_eq!(matches!(r.answers.back(), Some(Answer::Read(Owed { va, .. })) if *va == far), found);
        }
    }
}
