//! Completion queues.
//!
//! ```text
//! card > CQE (64 bytes, phase in the last) > poll > wr_id, status ... > program
//!        failed QP > driver moves it to ERR > remaining work requests flushed in software, in order, behind its CQEs
//! ```
//!
//! In: CQEs in host memory and, of QPs in error, the work requests not yet completed. Out: completions, in order per
//! work queue, exactly one for each work request but successful unsignaled ones. Polling reads host memory only; the card learns
//! the consumer index a quarter ring at a time, so the ring is a third deeper than asked.
//!
//! A poll that finds nothing looks at two bytes and no more: at the phase of the next entry by the CQ's `expects` word, and
//! at that of EQ 0. Whatever else a poll has to look at (work to flush, overflow, an error to tell, a closed context, a forked
//! child) makes that word zero, which fits no phase.

use crate::command::Arguments;
use crate::context::{Inner, Object, User, lock};
use crate::dma::{DmaBuffer, Word};
use crate::event::{ChannelShared, CompChannel};
use crate::qp::{QpShared, WorkQueue};
use crate::{Attributes, Error, Reject, Result, Transport, WcOpcode, WcStatus};
use contract::context::words;
use contract::layout::lsb;
use contract::register::feature;
use contract::ring::phase;
use contract::{CommandOpcode, CqDoorbell, CqEntry, Cqe, doorbell};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One finished work request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Completion {
    /// The number the program gave it.
    pub wr_id: u64,
    /// How it ended. If not `Success`, only this, `wr_id`, `qpn`, `opcode` and `vendor_err` mean something.
    pub status: WcStatus,
    /// What it was.
    pub opcode: WcOpcode,
    /// Bytes received or read.
    pub byte_len: u32,
    /// Immediate data, in host order.
    pub imm: Option<u32>,
    /// The R_Key that the peer invalidated.
    pub invalidated: Option<u32>,
    /// Local QP.
    pub qpn: u32,
    /// The sender's QP (datagrams).
    pub src_qpn: u32,
    /// The card's cause, as [`Reject`] code + 1; 0 for success and flushes.
    pub vendor_err: u32,
    /// Core clock ticks since reset when the card made the entry; 0 for flushes.
    pub timestamp: u64,
}

impl Completion {
    /// The card's cause by name.
    pub fn cause(&self) -> Option<Reject> {
        Reject::from_vendor_err(self.vendor_err)
    }

    /// Whether it belongs to a receive queue.
    pub fn is_receive(&self) -> bool {
        self.opcode.code() & 0x80 != 0
    }
}

impl Default for Completion {
    fn default() -> Self {
        Completion {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            byte_len: 0,
            imm: None,
            invalidated: None,
            qpn: 0,
            src_qpn: 0,
            vendor_err: 0,
            timestamp: 0,
        }
    }
}

/// A completion queue. Sent between threads, used by one at a time.
pub struct Cq {
    pub(crate) shared: Arc<CqShared>,
    // what a poll looks at that finds nothing
    inner: Arc<Inner>,
    expects: Word,
    /// The byte with the phase of the next entry.
    next: AtomicPtr<AtomicU8>,
    not_sync: PhantomData<Cell<()>>,
}

impl fmt::Debug for Cq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cq").field("cqn", &self.shared.cqn).finish_non_exhaustive()
    }
}

pub(crate) struct CqShared {
    pub(crate) inner: Arc<Inner>,
    pub(crate) user: Arc<User>,
    pub(crate) cqn: u32,
    /// Entries of the ring, and the logarithm of their number.
    depth: u32,
    log_depth: u32,
    ring: Arc<DmaBuffer>,
    channel: Option<Arc<ChannelShared>>,
    /// What the CQ is armed for (`doorbell::ARM_*`); taken by whoever tells first.
    armed: AtomicU8,
    /// Work queues of QPs in error that complete here.
    pub(crate) flushing: AtomicU32,
    overflowed: AtomicBool,
    /// [`CqShared::UNWRITTEN`] of the phase that the next entry has while it is not written; 0: look closer.
    expects: Word,
    pub(crate) state: Mutex<CqState>,
}

#[derive(Default)]
pub(crate) struct CqState {
    consumer: u32,
    reported: u32,
    /// By QPN.
    qps: Vec<Option<Arc<QpShared>>>,
    /// QPs that were reset or destroyed: their entries before this index are not told.
    dead: Vec<(u32, u32)>,
    /// An error to tell when no completion stands before it.
    pending: Option<Error>,
}

impl CqState {
    pub(crate) fn attach(&mut self, qp: &Arc<QpShared>) {
        let index = qp.qpn as usize;
        if self.qps.len() <= index {
            self.qps.resize(index + 1, None);
        }
        self.qps[index] = Some(qp.clone());
    }

    pub(crate) fn detach(&mut self, qpn: u32) {
        if let Some(place) = self.qps.get_mut(qpn as usize) {
            *place = None;
        }
    }
}

impl CqShared {
    /// By the phase that an entry has while it is not written: bit n says whether a byte that is n modulo 32 has it.
    const UNWRITTEN: [u32; 2] = [0x5555_5555, 0xaaaa_aaaa];

    fn slot(&self, index: u32) -> usize {
        (index & (self.depth - 1)) as usize * Cqe::BYTES
    }

    /// The phase of a written entry.
    #[inline(always)]
    fn phase(&self, index: u32) -> bool {
        phase(index, self.log_depth)
    }

    /// The next polls have to look closer.
    pub(crate) fn rouse(&self) {
        self.expects.set(0);
    }

    /// Says what the next poll is to expect and, in `next`, where.
    #[inline(always)]
    fn settle(&self, state: &CqState, next: &AtomicPtr<AtomicU8>) {
        let at = self.slot(state.consumer) + Cqe::BYTES - 1;
        next.store(self.ring.byte(at), Ordering::Relaxed);
        let unwritten = Self::UNWRITTEN[usize::from(!self.phase(state.consumer))];
        if self.expects.get() != unwritten || state.pending.is_some() {
            self.expect(state, unwritten);
        }
    }

    #[inline(never)]
    fn expect(&self, state: &CqState, unwritten: u32) {
        let restless = || {
            let flushes = self.flushing.load(Ordering::SeqCst) > 0;
            flushes || self.overflowed.load(Ordering::SeqCst) || state.pending.is_some()
        };
        let expected = if restless() { 0 } else { unwritten };
        if self.expects.get() != expected {
            self.expects.set(expected);
            // who rouses sets his reason first: of the two at least one sees the other
            if restless() {
                self.rouse();
            }
        }
    }

    #[inline]
    fn is_valid(&self, index: u32) -> bool {
        self.ring.phase(self.slot(index) + Cqe::BYTES - 1) == self.phase(index)
    }

    #[inline(never)]
    fn poll(&self, next: &AtomicPtr<AtomicU8>, entries: &mut [Completion]) -> Result<usize> {
        // of a card that is gone, what it has completed and what is flushed comes before the error
        let gone = match if self.expects.get() == 0 { self.inner.check("poll a CQ") } else { Ok(()) } {
            Err(error @ Error::Gone { .. }) => Some(error),
            checked => checked.map(|()| None)?,
        };
        let mut state = lock(&self.state);
        let mut count = 0;
        self.take_hardware(&mut state, entries, &mut count);
        if count < entries.len() && state.pending.is_none() {
            self.inner.serve_events()?;
            // the count first, then the ring once more: what the card wrote before a QP was put into error comes
            // before its flushed work requests
            if self.flushing.load(Ordering::Acquire) > 0 {
                self.take_hardware(&mut state, entries, &mut count);
                self.take_flushed(&state, entries, &mut count);
            }
        }
        if state.consumer.wrapping_sub(state.reported) >= self.depth / 4 {
            state.reported = state.consumer;
            self.ring_doorbell(state.consumer, doorbell::ARM_NONE)?;
        }
        self.settle(&state, next);
        if count == 0 {
            if let Some(error) = state.pending.take() {
                return Err(error);
            }
            if self.overflowed.load(Ordering::Acquire) && !entries.is_empty() {
                return Err(Error::CqOverflow { cqn: self.cqn });
            }
            if let Some(error) = gone.filter(|_| !entries.is_empty()) {
                return Err(error);
            }
        }
        Ok(count)
    }

    fn take_hardware(&self, state: &mut CqState, entries: &mut [Completion], count: &mut usize) {
        while *count < entries.len() && state.pending.is_none() {
            match self.take_alike(state, &mut entries[*count..]) {
                None => return,
                Some(0) => *count += usize::from(self.take_one(state, &mut entries[*count])),
                Some(taken) => *count += taken,
            }
        }
    }

    /// Takes the next entry, if it is successful and brings nothing but its length, and those behind it that differ in
    /// nothing but their index: what they have in common is looked at once. 0: the next entry is none of these; `None`: it
    /// is not written.
    #[inline(never)]
    fn take_alike(&self, state: &mut CqState, completions: &mut [Completion]) -> Option<usize> {
        let slot = self.slot(state.consumer);
        let most = completions.len().min(self.depth as usize - slot / Cqe::BYTES);
        let ring = self.ring.entries::<{ Cqe::BYTES }>(slot, most);
        let phase = u8::from(self.phase(state.consumer));
        let first = ring.written(0, |last| last & 1 == phase)?;
        let cqe = Cqe::unpack(&first);
        let plain = cqe.status == WcStatus::Success.code() && !cqe.with_imm && !cqe.with_inv;
        let (true, true, Some(Some(qp)), Some(opcode)) =
            (plain, state.dead.is_empty(), state.qps.get(cqe.qpn as usize), WcOpcode::from_code(cqe.opcode))
        else {
            return Some(0);
        };
        let queue = queue_of(qp, &cqe);
        let is_alike = |last| last == first[Cqe::BYTES - 1];
        let (mut expected, mut taken) = (head(&first), 0);
        loop {
            let (index, ids) = queue.outstanding_from(expected as u16);
            // the index counts on in its own bits alone; the last before it starts anew is none of a run
            let longest = (most - taken).min(ids.len()).min(usize::from(!(expected as u16)));
            let (alike, ids) = (ring.behind(taken, longest), &ids[..longest]);
            let completions = &mut completions[taken..][..longest];
            let mut run = 0;
            while run < longest {
                let Some(bytes) = alike.written(run, is_alike) else { break };
                if head(&bytes) != expected {
                    break;
                }
                let Cqe { byte_len, src_qpn, timestamp, .. } = Cqe::unpack(&bytes);
                completions[run] = Completion {
                    wr_id: ids[run].load(Ordering::Relaxed),
                    status: WcStatus::Success,
                    opcode,
                    byte_len,
                    imm: None,
                    invalidated: None,
                    qpn: cqe.qpn,
                    src_qpn,
                    vendor_err: 0,
                    timestamp,
                };
                expected += 1;
                run += 1;
            }
            if run == 0 {
                break;
            }
            queue.retire_before(index.wrapping_add(run as u32));
            taken += run;
            // behind unsignaled ones the index jumps
            match (taken < most).then(|| ring.written(taken, is_alike)).flatten() {
                Some(bytes) if (head(&bytes) ^ expected) >> u16::BITS == 0 => expected = head(&bytes),
                _ => break,
            }
        }
        state.consumer = state.consumer.wrapping_add(taken as u32);
        Some(taken)
    }

    /// Takes the next entry, which is written; false: there is nothing to tell of it but perhaps `pending`.
    #[inline(never)]
    fn take_one(&self, state: &mut CqState, completion: &mut Completion) -> bool {
        let index = state.consumer;
        let cqe = Cqe::unpack(&self.ring.read(self.slot(index)));
        state.consumer = index.wrapping_add(1);
        let alive = |until: u32| until.wrapping_sub(index) as i32 > 0;
        state.dead.retain(|(_, until)| alive(*until));
        if state.dead.iter().any(|(qpn, _)| *qpn == cqe.qpn) {
            return false;
        }
        let told = complete(state, &cqe, completion);
        if !told {
            state.pending = Some(Error::StrayCompletion {
                name: self.inner.name().to_owned(),
                cqn: self.cqn,
                qpn: cqe.qpn,
                index: cqe.wqe_index,
            });
        }
        told
    }

    fn take_flushed(&self, state: &CqState, entries: &mut [Completion], count: &mut usize) {
        for qp in state.qps.iter().flatten().filter(|qp| qp.flushing.load(Ordering::Acquire)) {
            for (cq, queue) in [(&qp.send_cq, &qp.sq), (&qp.recv_cq, &qp.rq)] {
                if cq.cqn != self.cqn {
                    continue;
                }
                while *count < entries.len() {
                    let Some(posted) = queue.retire_oldest() else { break };
                    entries[*count] = Completion {
                        wr_id: posted.wr_id,
                        status: WcStatus::WrFlushErr,
                        opcode: posted.opcode,
                        qpn: qp.qpn,
                        ..Completion::default()
                    };
                    *count += 1;
                }
            }
        }
    }

    /// Entries of `qpn` that are in the ring now will not be told. The card has ended its work for the QP.
    pub(crate) fn bury(&self, state: &mut CqState, qpn: u32) {
        let valid =
            (0..self.depth).take_while(|i| self.is_valid(state.consumer.wrapping_add(*i))).count() as u32;
        if valid > 0 {
            state.dead.push((qpn, state.consumer.wrapping_add(valid)));
        }
    }

    /// Tells the channel, if the CQ is armed, that the driver made completions.
    pub(crate) fn signal(&self) {
        if let Some(channel) = &self.channel
            && self.disarm()
        {
            channel.push(self.cqn);
        }
    }

    /// Takes the arming; true if there was one.
    pub(crate) fn disarm(&self) -> bool {
        self.armed.swap(doorbell::ARM_NONE, Ordering::AcqRel) != doorbell::ARM_NONE
    }

    pub(crate) fn overflow(&self) {
        self.overflowed.store(true, Ordering::SeqCst);
        self.rouse();
        self.signal();
    }

    fn ring_doorbell(&self, consumer: u32, arm: u8) -> Result<()> {
        let value = CqDoorbell { cqn: self.cqn, arm, consumer: consumer & 0xff_ffff };
        self.inner.doorbell(self.user.page, doorbell::CQ_OFFSET, value.pack())
    }
}

// the index stands lowest in the first quadword, which also holds opcode, status, QP and flags, and nothing else
const _: () = assert!(lsb(Cqe::FIELDS, "wqe_index") == 0 && lsb(Cqe::FIELDS, "opcode") == 16);
const _: () = assert!(lsb(Cqe::FIELDS, "byte_len") == 64);

/// The first quadword of a CQE.
#[inline(always)]
fn head(cqe: &[u8; Cqe::BYTES]) -> u64 {
    cqe.first_chunk().map_or(0, |head| u64::from_le_bytes(*head))
}

/// The queue that a CQE is about.
#[inline(always)]
fn queue_of<'a>(qp: &'a QpShared, cqe: &Cqe) -> &'a WorkQueue {
    if cqe.opcode & 0x80 != 0 { &qp.rq } else { &qp.sq }
}

/// What a CQE means, into `completion`; false: no outstanding work request explains it.
fn complete(state: &CqState, cqe: &Cqe, completion: &mut Completion) -> bool {
    let Some(Some(qp)) = state.qps.get(cqe.qpn as usize) else { return false };
    let Some(posted) = queue_of(qp, cqe).retire(cqe.wqe_index) else { return false };
    if cqe.status != WcStatus::Success.code() {
        let status = WcStatus::from_code(cqe.status).unwrap_or(WcStatus::GeneralErr);
        *completion = Completion {
            wr_id: posted.wr_id,
            status,
            opcode: posted.opcode,
            qpn: cqe.qpn,
            vendor_err: cqe.vendor_err,
            timestamp: cqe.timestamp,
            ..Completion::default()
        };
        // what was wrong with one frame of strangers ends its receive and no more
        let bad_frame = qp.transport == Transport::Raw && cqe.opcode & 0x80 != 0;
        if !bad_frame {
            qp.fail();
        }
        return true;
    }
    // the field's bytes stand as on the wire
    let imm = cqe.imm.swap_bytes();
    *completion = Completion {
        wr_id: posted.wr_id,
        status: WcStatus::Success,
        opcode: WcOpcode::from_code(cqe.opcode).unwrap_or(posted.opcode),
        byte_len: cqe.byte_len,
        imm: cqe.with_imm.then_some(imm),
        invalidated: cqe.with_inv.then_some(imm),
        qpn: cqe.qpn,
        src_qpn: cqe.src_qpn,
        vendor_err: 0,
        timestamp: cqe.timestamp,
    };
    true
}

impl Drop for CqShared {
    fn drop(&mut self) {
        if self.inner.space.guard.is_child() {
            return;
        }
        lock(&self.inner.cqs).remove(&self.cqn);
        if self.inner.destroy(CommandOpcode::DestroyCq, self.cqn, &[&self.ring]) {
            self.inner.release(Object::Cq, self.cqn);
        }
    }
}

impl Cq {
    pub(crate) fn new(
        inner: &Arc<Inner>,
        user: &Arc<User>,
        entries: u32,
        channel: Option<&CompChannel>,
    ) -> Result<Cq> {
        inner.check("create a CQ")?;
        if !(1..=Attributes::MAX_CQE).contains(&entries) {
            return Err(Error::Range {
                operation: "create a CQ",
                what: "entries",
                value: entries.into(),
                allowed: format!("1..={}", Attributes::MAX_CQE),
            });
        }
        if channel.is_some_and(|channel| !Arc::ptr_eq(&channel.shared.inner, inner)) {
            return Err(Error::Foreign { operation: "create a CQ", what: "the completion channel" });
        }
        // a quarter may be consumed without the card knowing
        let log_depth = (entries.div_ceil(3) * 4).next_power_of_two().ilog2().max(2);
        let ring = Arc::new(DmaBuffer::new(&inner.space, (Cqe::BYTES << log_depth) as u64)?);
        let cqn = inner.take(Object::Cq)?;
        let entry = CqEntry {
            valid: true,
            log_depth: log_depth as u8,
            page: user.page as u16,
            eqn: channel.map_or(0, |channel| channel.shared.eqn()) as u8,
            base: ring.iova(),
            ..CqEntry::default()
        };
        let arguments = Arguments { word_mask: 3, data: words(&entry.pack()), ..Arguments::default() };
        if let Err(error) = inner.commands.execute(CommandOpcode::CreateCq, cqn, &arguments) {
            inner.release(Object::Cq, cqn);
            return Err(error);
        }
        let shared = Arc::new(CqShared {
            inner: inner.clone(),
            user: user.clone(),
            cqn,
            depth: 1 << log_depth,
            log_depth,
            ring,
            channel: channel.map(|channel| channel.shared.clone()),
            armed: AtomicU8::new(doorbell::ARM_NONE),
            flushing: AtomicU32::new(0),
            overflowed: AtomicBool::new(false),
            expects: Word::of_cq(&inner.space, cqn),
            state: Mutex::default(),
        });
        shared.rouse();
        let next = AtomicPtr::default();
        shared.settle(&lock(&shared.state), &next);
        lock(&inner.cqs).insert(cqn, Arc::downgrade(&shared));
        let (inner, expects) = (inner.clone(), shared.expects.clone());
        Ok(Cq { shared, inner, expects, next, not_sync: PhantomData })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.shared.cqn
    }

    /// How many unpolled completions it surely holds.
    pub fn entries(&self) -> u32 {
        self.shared.depth / 4 * 3
    }

    /// Lets an event of the armed CQ wait until `count` completions are unreported, or until `period` has passed since
    /// the first of them; 0 of either: not for that. Without both (as at first), or with a count of 1, it does not wait.
    /// With a count alone fewer completions than that raise no event, ever.
    ///
    /// # Errors
    /// The card has no moderation, a period beyond 2^32 ticks of its clock, closed context, or the card refused.
    pub fn moderate(&self, count: u16, period: Duration) -> Result<()> {
        const MODIFY: &str = "modify a CQ";
        let inner = &self.shared.inner;
        inner.check(MODIFY)?;
        let attributes = inner.attributes();
        if !attributes.has(feature::MODERATION) {
            return Err(Error::Unsupported { operation: MODIFY, what: "moderation" });
        }
        let ticks = (period.as_nanos() * u128::from(attributes.core_clock_khz)).div_ceil(1_000_000);
        let moderation_period = u32::try_from(ticks).map_err(|_| Error::Range {
            operation: MODIFY,
            what: "ticks of the period",
            value: u64::try_from(ticks).unwrap_or(u64::MAX),
            allowed: format!("0..={}", u32::MAX),
        })?;
        let entry = CqEntry { moderation_count: count, moderation_period, ..CqEntry::default() };
        let arguments = Arguments { word_mask: 4, data: words(&entry.pack()), ..Arguments::default() };
        inner.commands.execute(CommandOpcode::ModifyCq, self.shared.cqn, &arguments)?;
        Ok(())
    }

    /// Takes up to `entries.len()` completions without waiting; returns how many.
    ///
    /// # Errors
    /// Forked child, closed context, overflow, a completion that no work request explains, or a card that is gone and
    /// nothing left to complete.
    #[inline]
    pub fn poll(&self, entries: &mut [Completion]) -> Result<usize> {
        if self.is_quiet() { Ok(0) } else { self.shared.poll(&self.next, entries) }
    }

    /// Nothing to poll, nothing to look at.
    #[inline(always)]
    fn is_quiet(&self) -> bool {
        // SAFETY: points into the CQ's ring, which lives as long as self
        let last = unsafe { &*self.next.load(Ordering::Relaxed) }.load(Ordering::Relaxed);
        self.expects.get().wrapping_shr(last.into()) & 1 == 1 && !self.inner.events.has_entry()
    }

    /// Polls until there is a completion; `None` when `timeout` passed first.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn poll_wait(&self, timeout: Duration) -> Result<Option<Completion>> {
        let backend = self.shared.inner.backend();
        let end = backend.now() + timeout;
        let mut entry = [Completion::default()];
        let mut turn = 0u32;
        loop {
            if self.poll(&mut entry)? == 1 {
                return Ok(Some(entry[0]));
            }
            if backend.now() >= end {
                return Ok(None);
            }
            backend.relax(turn);
            turn = turn.saturating_add(1);
        }
    }

    /// The next completion (with `solicited_only`: the next solicited or failed one) raises an event on the channel,
    /// once. An entry that the card has written and this CQ has not yet polled raises it at once, so none falls between
    /// the last look and the arming.
    ///
    /// # Errors
    /// The CQ has no channel, forked child, closed context, or the way to the card failed.
    pub fn request_notify(&self, solicited_only: bool) -> Result<()> {
        self.shared.inner.check("arm a CQ")?;
        if self.shared.channel.is_none() {
            return Err(Error::Unsupported {
                operation: "arm a CQ",
                what: "events of a CQ without a channel",
            });
        }
        let arm = if solicited_only { doorbell::ARM_SOLICITED } else { doorbell::ARM_ANY };
        let mut state = lock(&self.shared.state);
        state.reported = state.consumer;
        self.shared.armed.store(arm, Ordering::Release);
        self.shared.ring_doorbell(state.consumer, arm)
    }
}
