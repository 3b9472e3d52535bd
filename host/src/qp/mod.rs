//! Queue pairs.
//!
//! ```text
//! RESET > INIT > RTR > RTS      modify: masked words of the QP context, by command
//! post  > WQE in host memory > release barrier > doorbell
//! error > driver moves the QP to ERR > what is outstanding, and what is posted later, is flushed by poll
//! ```
//!
//! In: attributes and work requests. Out: context words, WQEs, doorbells. A posted list is taken whole or not at all:
//! every check comes before the tail moves, and what is written behind it nobody reads. Work requests are numbered by
//! free-running indices, which the CQE returns; unsignaled ones are retired with the next completion of their queue.
//!
//! In RTS a post looks at one word for all that may forbid it or change its way (another state, a closed context, a forked
//! child): the QP's `sends`, which is zero then. It looks again when the tail has moved: who flushes sets it first.

pub mod attributes;

pub use attributes::{AddressVector, AttrMask, QpAttr};
pub use contract::Sge;

use crate::address::udp_source_port;
use crate::command::Arguments;
use crate::context::{Bell, GidEntry, Inner, Object, lock};
use crate::cq::{Cq, CqShared, CqState};
use crate::dma::{Place, Places, Word};
use crate::exchange::Endpoint;
use crate::mr::PdShared;
use crate::ranges::Range;
use crate::{Access, Attributes, Error, Mac, PathMtu, QpState, Result, Transport, WcOpcode};
use contract::register::feature;
use contract::{
    AtomicOperands, CommandOpcode, QpContext, QpQueues, QpRights, RqDoorbell, SendWqe, SqDoorbell, WrOpcode,
    doorbell,
};
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

/// How a QP is made.
#[derive(Debug, Clone, Copy)]
pub struct QpInit<'a> {
    /// Where send work requests complete.
    pub send_cq: &'a Cq,
    /// Where receive work requests complete.
    pub recv_cq: &'a Cq,
    /// Transport service.
    pub transport: Transport,
    /// Send work requests outstanding, at least; rounded up to a power of two.
    pub max_send_wr: u32,
    /// Receive work requests outstanding, at least; rounded up to a power of two.
    pub max_recv_wr: u32,
    /// SGEs of a send work request; a READ may have no more than a receive.
    pub max_send_sge: u32,
    /// SGEs of a receive work request.
    pub max_recv_sge: u32,
    /// Inline bytes of a send work request. They choose the room of a work request in the ring: 32 need no more than an SGE
    /// does, 96 twice, 220 four times as much.
    pub max_inline: u32,
    /// Every send work request is signaled.
    pub sq_sig_all: bool,
    /// A work request that is posted alone while none is outstanding is also pushed to the card, if it fits: its host memory
    /// need not be read then. On unless switched off.
    pub push: bool,
    /// Most PSNs in flight when a packet of a SEND or WRITE is sent: what a lost one costs in resent ones. 0, and READs,
    /// are limited by the PSN window alone.
    pub max_inflight: u16,
}

impl<'a> QpInit<'a> {
    /// A reliable connection with queues of 128, one SGE each, 128 packets in flight.
    pub fn rc(send_cq: &'a Cq, recv_cq: &'a Cq) -> QpInit<'a> {
        QpInit {
            send_cq,
            recv_cq,
            transport: Transport::Rc,
            max_send_wr: 128,
            max_recv_wr: 128,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: 0,
            sq_sig_all: false,
            push: true,
            max_inflight: 128,
        }
    }

    /// Raw Ethernet: a SEND is a frame, a receive takes one, each whole but for its FCS. For the card's first user alone,
    /// since such a QP can send any frame; `register::RAW_RECEIVE` names the one that receives.
    pub fn raw(send_cq: &'a Cq, recv_cq: &'a Cq) -> QpInit<'a> {
        QpInit { transport: Transport::Raw, push: false, max_inflight: 0, ..QpInit::rc(send_cq, recv_cq) }
    }
}

/// What a send work request does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// WRITE.
    Write {
        /// First remote address.
        addr: u64,
        /// Remote key.
        rkey: u32,
    },
    /// SEND.
    Send,
    /// SEND with immediate data.
    SendWithImm(u32),
    /// SEND that invalidates a key of the peer.
    SendWithInv(u32),
    /// Invalidates a key of this side, when all before it is complete; what is behind it finds the key gone. No message.
    LocalInv(u32),
    /// READ: remote memory into the SGEs, which must permit local writes.
    Read {
        /// First remote address.
        addr: u64,
        /// Remote key.
        rkey: u32,
    },
    /// Compare and swap of 8 bytes of remote memory; what was there comes into the only SGE, as an integer of this host.
    CompareSwap {
        /// Remote address, a multiple of 8.
        addr: u64,
        /// Remote key.
        rkey: u32,
        /// Swapped only if the memory equals this.
        compare: u64,
        /// What is written.
        swap: u64,
    },
    /// Fetch and add modulo 2^64 on 8 bytes of remote memory; what was there comes into the only SGE.
    FetchAdd {
        /// Remote address, a multiple of 8.
        addr: u64,
        /// Remote key.
        rkey: u32,
        /// What is added.
        add: u64,
    },
    /// WRITE with immediate data.
    WriteWithImm {
        /// First remote address.
        addr: u64,
        /// Remote key.
        rkey: u32,
        /// Immediate data.
        imm: u32,
    },
}

/// A send work request.
#[derive(Debug, Clone, Copy)]
pub struct SendWr<'a> {
    /// The program's number for it, told by its completion.
    pub wr_id: u64,
    /// Local memory; with `inline` read at once, else until the completion.
    pub sges: &'a [Sge],
    /// What to do.
    pub operation: Operation,
    /// A successful completion is wanted.
    pub signaled: bool,
    /// The peer's completion is solicited.
    pub solicited: bool,
    /// Waits for earlier READs and atomics.
    pub fence: bool,
    /// These bytes are sent instead of the SGEs; copied at once.
    pub inline: Option<&'a [u8]>,
}

impl<'a> SendWr<'a> {
    /// Any operation, with no flag set.
    pub fn new(wr_id: u64, operation: Operation, sges: &'a [Sge]) -> SendWr<'a> {
        SendWr { wr_id, sges, operation, signaled: false, solicited: false, fence: false, inline: None }
    }

    /// SEND.
    pub fn send(wr_id: u64, sges: &'a [Sge]) -> SendWr<'a> {
        SendWr::new(wr_id, Operation::Send, sges)
    }

    /// SEND that ends the key `rkey` of the peer, of a region with [`Access::INVALIDATE`].
    pub fn send_with_inv(wr_id: u64, sges: &'a [Sge], rkey: u32) -> SendWr<'a> {
        SendWr::new(wr_id, Operation::SendWithInv(rkey), sges)
    }

    /// Ends `key` of this side, of a region with [`Access::INVALIDATE`].
    pub fn local_inv(wr_id: u64, key: u32) -> SendWr<'a> {
        SendWr::new(wr_id, Operation::LocalInv(key), &[])
    }

    /// WRITE to `addr` of the region with `rkey`.
    pub fn write(wr_id: u64, sges: &'a [Sge], addr: u64, rkey: u32) -> SendWr<'a> {
        SendWr::new(wr_id, Operation::Write { addr, rkey }, sges)
    }

    /// READ from `addr` of the region with `rkey`.
    pub fn read(wr_id: u64, sges: &'a [Sge], addr: u64, rkey: u32) -> SendWr<'a> {
        SendWr::new(wr_id, Operation::Read { addr, rkey }, sges)
    }

    /// Compare and swap at `addr` of the region with `rkey`; the SGE has 8 bytes.
    pub fn compare_swap(
        wr_id: u64,
        sges: &'a [Sge],
        addr: u64,
        rkey: u32,
        compare: u64,
        swap: u64,
    ) -> SendWr<'a> {
        SendWr::new(wr_id, Operation::CompareSwap { addr, rkey, compare, swap }, sges)
    }

    /// Fetch and add at `addr` of the region with `rkey`; the SGE has 8 bytes.
    pub fn fetch_add(wr_id: u64, sges: &'a [Sge], addr: u64, rkey: u32, add: u64) -> SendWr<'a> {
        SendWr::new(wr_id, Operation::FetchAdd { addr, rkey, add }, sges)
    }

    /// With a completion.
    pub fn signaled(self) -> SendWr<'a> {
        SendWr { signaled: true, ..self }
    }

    /// With a solicited event at the peer.
    pub fn solicited(self) -> SendWr<'a> {
        SendWr { solicited: true, ..self }
    }

    /// Not before the data of all earlier READs is in memory.
    pub fn fenced(self) -> SendWr<'a> {
        SendWr { fence: true, ..self }
    }

    /// With these bytes as its message, copied when it is posted: no SGE, no key, no memory of the program that must stay
    /// as it is. SEND and WRITE, up to the QP's `max_inline` bytes.
    pub fn inline(self, bytes: &'a [u8]) -> SendWr<'a> {
        SendWr { inline: Some(bytes), ..self }
    }

    #[inline]
    fn length(&self) -> u64 {
        match (self.inline, self.sges) {
            (Some(bytes), _) => bytes.len() as u64,
            (None, [one]) => one.length.into(),
            (None, _) => self.sges.iter().map(|sge| u64::from(sge.length)).sum(),
        }
    }

    /// Compare and swap, or fetch and add.
    fn is_atomic(&self) -> bool {
        matches!(self.operation, Operation::CompareSwap { .. } | Operation::FetchAdd { .. })
    }

    /// Bytes that it takes of its place.
    fn wqe_bytes(&self) -> usize {
        let message = self.inline.map_or(self.sges.len() * Sge::BYTES, <[u8]>::len);
        SendWqe::BYTES + message + if self.is_atomic() { AtomicOperands::BYTES } else { 0 }
    }
}

/// A receive work request.
#[derive(Debug, Clone, Copy)]
pub struct RecvWr<'a> {
    /// The program's number for it, told by its completion.
    pub wr_id: u64,
    /// Local memory to fill.
    pub sges: &'a [Sge],
}

impl<'a> RecvWr<'a> {
    /// A receive into `sges`.
    pub fn new(wr_id: u64, sges: &'a [Sge]) -> RecvWr<'a> {
        RecvWr { wr_id, sges }
    }
}

/// The call, in errors.
const POST_SEND: &str = "post_send";

/// A post of send work requests need not look at the QP's state or context.
const LIST: u32 = 1;
/// Nor at the push buffer, which is not used, and the doorbell is mapped.
const ALONE: u32 = 2;

/// Bytes by the eight, as they stand in little-endian rings.
#[inline(always)]
fn quadwords<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let (chunks, _) = bytes.as_chunks();
    std::array::from_fn(|i| u64::from_le_bytes(chunks[i]))
}

/// What a work queue tells of a work request that is over.
pub(crate) struct Retired {
    pub(crate) wr_id: u64,
    /// What its completion says it was.
    pub(crate) opcode: WcOpcode,
}

/// What the completion of a send work request says it was.
fn completed(opcode: WrOpcode) -> WcOpcode {
    match opcode {
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => WcOpcode::RdmaWrite,
        WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv => WcOpcode::Send,
        WrOpcode::RdmaRead => WcOpcode::RdmaRead,
        WrOpcode::AtomicCmpAndSwp => WcOpcode::CompSwap,
        WrOpcode::AtomicFetchAndAdd => WcOpcode::FetchAdd,
        WrOpcode::LocalInv => WcOpcode::LocalInv,
    }
}

/// One ring of work requests. The QP's thread posts (`tail`), the CQ's retires (`head`).
pub(crate) struct WorkQueue {
    pub(crate) places: Places,
    /// The places hold receives.
    receives: bool,
    head: AtomicU32,
    tail: AtomicU32,
    /// Where the tail has to stop, by the head as the QP's thread saw it last.
    limit: AtomicU32,
}

impl WorkQueue {
    fn new(inner: &Inner, log_depth: u32, log_stride: u32, receives: bool) -> Result<WorkQueue> {
        let places = Places::new(&inner.space, log_depth, log_stride)?;
        let limit = AtomicU32::new(places.count());
        Ok(WorkQueue { places, receives, head: AtomicU32::new(0), tail: AtomicU32::new(0), limit })
    }

    fn depth(&self) -> u32 {
        self.places.count()
    }

    fn outstanding(&self) -> u32 {
        self.tail.load(Ordering::Acquire).wrapping_sub(self.head.load(Ordering::Acquire))
    }

    /// The index of the next work request, if `wanted` fit.
    #[inline(always)]
    fn room(&self, operation: &'static str, qpn: u32, wanted: usize) -> Result<u32> {
        let tail = self.tail.load(Ordering::Relaxed);
        if wanted > self.limit.load(Ordering::Relaxed).wrapping_sub(tail) as usize {
            self.look_for_room(operation, qpn, wanted)?;
        }
        Ok(tail)
    }

    #[inline(never)]
    fn look_for_room(&self, operation: &'static str, qpn: u32, wanted: usize) -> Result<()> {
        let depth = self.depth();
        let free = depth - self.outstanding();
        self.limit.store(self.tail.load(Ordering::Relaxed).wrapping_add(free), Ordering::Relaxed);
        if wanted > free as usize {
            return Err(Error::QueueFull { operation, qpn, wanted, free, depth });
        }
        Ok(())
    }

    /// The numbers of the work request with this index (mod 2^16) and those posted after it, up to the end of the ring,
    /// and its whole index; none when it is not outstanding.
    #[inline]
    pub(crate) fn outstanding_from(&self, index: u16) -> (u32, &[AtomicU64]) {
        let head = self.head.load(Ordering::Relaxed);
        let ahead = u32::from(index.wrapping_sub(head as u16));
        let outstanding = self.tail.load(Ordering::Acquire).wrapping_sub(head);
        let index = head.wrapping_add(ahead);
        let ids = self.places.ids_from(index);
        let length = ids.len().min(outstanding.saturating_sub(ahead) as usize);
        (index, &ids[..length])
    }

    /// Retires all work requests before this whole index.
    #[inline]
    pub(crate) fn retire_before(&self, index: u32) {
        self.head.store(index, Ordering::Release);
    }

    /// Retires everything up to the work request with this index (mod 2^16); `None` when it is not outstanding.
    pub(crate) fn retire(&self, index: u16) -> Option<Retired> {
        let (index, ids) = self.outstanding_from(index);
        let wr_id = ids.first()?.load(Ordering::Relaxed);
        let opcode = if self.receives {
            WcOpcode::Recv
        } else {
            let wqe = SendWqe::read(self.places.place(index).read(SendWqe::BYTES));
            wqe.and_then(|wqe| WrOpcode::from_code(wqe.opcode)).map_or(WcOpcode::Send, completed)
        };
        self.retire_before(index.wrapping_add(1));
        Some(Retired { wr_id, opcode })
    }

    /// Retires the oldest outstanding work request.
    pub(crate) fn retire_oldest(&self) -> Option<Retired> {
        self.retire(self.head.load(Ordering::Relaxed) as u16)
    }

    fn clear(&self) {
        self.head.store(0, Ordering::Release);
        self.tail.store(0, Ordering::Release);
        self.limit.store(self.depth(), Ordering::Relaxed);
        self.places.ring().clear();
    }
}

pub(crate) struct QpShared {
    pub(crate) inner: Arc<Inner>,
    pub(crate) qpn: u32,
    pub(crate) transport: Transport,
    state: AtomicU8,
    /// In RTS [`ALONE`] or [`LIST`], else 0: a post of send work requests has to look closer.
    sends: Word,
    /// The send doorbell is mapped, and nothing is pushed.
    alone: bool,
    /// READs that may be outstanding.
    max_rd_atomic: AtomicU8,
    /// The card has stopped; what is outstanding is flushed by the CQs' polls.
    pub(crate) flushing: AtomicBool,
    pub(crate) sq: WorkQueue,
    pub(crate) rq: WorkQueue,
    pub(crate) send_cq: Arc<CqShared>,
    pub(crate) recv_cq: Arc<CqShared>,
    control: Mutex<Control>,
}

/// What modify changes.
struct Control {
    /// What the card has.
    context: QpContext,
    attr: QpAttr,
    /// Where the card keeps READs outstanding.
    reads: Option<Range>,
    /// Where the card keeps READs owed to the peer.
    responses: Option<Range>,
    /// Where the card keeps its outstanding records.
    records: Range,
}

impl QpShared {
    fn state(&self) -> QpState {
        QpState::from_code(self.state.load(Ordering::Acquire)).unwrap_or(QpState::Err)
    }

    /// Under `control`.
    fn set_state(&self, state: QpState) {
        self.state.store(state.code(), Ordering::Release);
        let word = if self.alone { ALONE } else { LIST };
        self.sends.set(if state == QpState::Rts { word } else { 0 });
    }

    /// The card has stopped: the next polls complete what is posted.
    fn is_flushed(&self) -> bool {
        self.state() == QpState::Err || self.flushing.load(Ordering::Acquire)
    }

    /// The same of send work requests that were just posted, of which the CQ's channel is told.
    #[inline(never)]
    fn flushes(&self) -> bool {
        let flushed = self.is_flushed();
        if flushed {
            self.send_cq.signal();
        }
        flushed
    }

    /// Moves the QP to ERR, once; from then on its outstanding work requests are flushed. When the command returns,
    /// every CQE of the QP stands in its CQ.
    pub(crate) fn fail(&self) {
        let mut control = lock(&self.control);
        if self.flushing.load(Ordering::Acquire) || self.state() == QpState::Reset {
            return;
        }
        if let Err(error) = self.move_to_error(&mut control) {
            // the card is lost; the program must still get its completions
            tracing::error!(%error, qpn = self.qpn, "the QP is flushed although the card did not confirm");
            self.enter_error(&mut control);
        }
    }

    /// The card is gone: what is outstanding is flushed.
    pub(crate) fn abandon(&self) {
        let mut control = lock(&self.control);
        if self.state() != QpState::Reset {
            self.enter_error(&mut control);
        }
    }

    fn move_to_error(&self, control: &mut Control) -> Result<()> {
        let mut context = control.context;
        context.rights.state = QpState::Err.code();
        self.write_context(control, context, Arguments::default())?;
        self.enter_error(control);
        Ok(())
    }

    fn enter_error(&self, control: &mut Control) {
        control.attr.state = QpState::Err;
        self.set_state(QpState::Err);
        if self.flushing.swap(true, Ordering::AcqRel) {
            return;
        }
        for (cq, queue) in [(&self.send_cq, &self.sq), (&self.recv_cq, &self.rq)] {
            cq.flushing.fetch_add(1, Ordering::SeqCst);
            cq.rouse();
            if queue.outstanding() > 0 {
                cq.signal();
            }
        }
    }

    fn leave_error(&self) {
        if self.flushing.swap(false, Ordering::AcqRel) {
            for cq in [&self.send_cq, &self.recv_cq] {
                cq.flushing.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    /// Writes the words in which `context` differs from what the card has, and always words 0 to 2: the card takes state,
    /// retries and PSNs as a whole.
    fn write_context(&self, control: &mut Control, context: QpContext, arguments: Arguments) -> Result<()> {
        let (old, new) = (control.context.to_words(), context.to_words());
        let changed = (0..16).filter(|i| old[*i] != new[*i]).fold(7u16, |mask, i| mask | 1 << i);
        let arguments = Arguments { word_mask: changed, data: new, ..arguments };
        self.inner.commands.execute(CommandOpcode::ModifyQp, self.qpn, &arguments)?;
        control.context = context;
        Ok(())
    }

    /// Runs `action` while neither CQ is polled; the CQ with the lower number is locked first.
    fn with_cqs<T>(&self, action: impl FnOnce(&mut dyn FnMut(&dyn Fn(&CqShared, &mut CqState))) -> T) -> T {
        let (a, b) = match self.send_cq.cqn <= self.recv_cq.cqn {
            true => (&self.send_cq, &self.recv_cq),
            false => (&self.recv_cq, &self.send_cq),
        };
        let mut first = lock(&a.state);
        let mut second: Option<MutexGuard<'_, CqState>> = (a.cqn != b.cqn).then(|| lock(&b.state));
        action(&mut |visit| {
            visit(a, &mut first);
            if let Some(second) = &mut second {
                visit(b, second);
            }
        })
    }
}

/// A queue pair. Sent between threads, used by one at a time.
pub struct Qp {
    shared: Arc<QpShared>,
    pd: Arc<PdShared>,
    send_bell: Bell,
    recv_bell: Bell,
    caps: Caps,
    not_sync: PhantomData<Cell<()>>,
}

#[derive(Debug, Clone, Copy)]
struct Caps {
    send_sge: u32,
    recv_sge: u32,
    inline: u32,
    sq_sig_all: bool,
    push: bool,
    /// Longest message, in bytes.
    longest: u64,
    /// One SGE of less than this is within the limits.
    plain: u64,
    /// What all plain work requests have in the first and last quadword of their head, and all doorbells for them.
    first: u64,
    last: u64,
    bell: u64,
}

impl fmt::Debug for Qp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Qp")
            .field("qpn", &self.shared.qpn)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// log2 of the entries of a queue for at least `wanted`.
fn log_depth(what: &'static str, wanted: u32) -> Result<u32> {
    if !(1..=Attributes::MAX_QP_WR).contains(&wanted) {
        return Err(range("create a QP", what, wanted.into(), format!("1..={}", Attributes::MAX_QP_WR)));
    }
    Ok(wanted.next_power_of_two().ilog2())
}

fn range(operation: &'static str, what: &'static str, value: u64, allowed: impl Into<String>) -> Error {
    Error::Range { operation, what, value, allowed: allowed.into() }
}

impl Qp {
    pub(crate) fn new(pd: &Arc<PdShared>, init: &QpInit<'_>) -> Result<Qp> {
        const CREATE: &str = "create a QP";
        let inner = &pd.inner;
        inner.check(CREATE)?;
        let limits = inner.attributes();
        for (cq, what) in [(init.send_cq, "the send CQ"), (init.recv_cq, "the receive CQ")] {
            if !Arc::ptr_eq(&cq.shared.user, &pd.user) {
                return Err(Error::Foreign { operation: CREATE, what });
            }
        }
        let raw = init.transport == Transport::Raw;
        let needs = if raw { feature::RAW } else { feature::RC };
        if !(raw || init.transport == Transport::Rc) || !limits.has(needs) {
            return Err(Error::Unsupported { operation: CREATE, what: "this transport" });
        }
        if raw && !pd.user.is_first() {
            let what = "raw frames of any user but its first: they can be anything";
            return Err(Error::Unsupported { operation: CREATE, what });
        }
        // that of the driver, which alone may forge frames
        let page = if raw { 0 } else { pd.user.page };
        let sges = [
            ("max_send_sge", init.max_send_sge, limits.max_send_sge),
            ("max_recv_sge", init.max_recv_sge, limits.max_sge),
        ];
        for (what, value, most) in sges {
            if value > most {
                return Err(range(CREATE, what, value.into(), format!("0..={most}")));
            }
        }
        let max_inline = if limits.has(feature::INLINE) { limits.max_inline } else { 0 };
        if init.max_inline > max_inline {
            return Err(range(CREATE, "max_inline", init.max_inline.into(), format!("0..={max_inline}")));
        }
        let sq_log_depth = log_depth("max_send_wr", init.max_send_wr)?;
        let rq_log_depth = log_depth("max_recv_wr", init.max_recv_wr)?;
        let send_bytes = SendWqe::BYTES as u32 + (16 * init.max_send_sge).max(init.max_inline);
        let sq_log_stride = send_bytes.next_power_of_two().ilog2().max(contract::ring::SEND_STRIDE_MIN_LOG);
        let rq_log_stride = (16 * init.max_recv_sge).max(64).next_power_of_two().ilog2();
        if sq_log_stride > contract::ring::SEND_STRIDE_MAX_LOG {
            return Err(range(CREATE, "bytes of a send WQE", send_bytes.into(), "up to 512"));
        }
        let sq = WorkQueue::new(inner, sq_log_depth, sq_log_stride, false)?;
        let rq = WorkQueue::new(inner, rq_log_depth, rq_log_stride, true)?;
        let qpn = inner.take(Object::Qp)?;
        let records = inner.records.take(1 << sq_log_depth, inner.name()).inspect_err(|_| {
            inner.release(Object::Qp, qpn);
        })?;
        let context = QpContext {
            rights: QpRights {
                state: QpState::Reset.code(),
                transport: init.transport.code(),
                valid: true,
                page: page as u16,
                pd: pd.number,
                pkey: 0xffff,
                max_inflight: init.max_inflight,
                ..QpRights::default()
            },
            queues: QpQueues {
                sq_base: sq.places.ring().iova(),
                rq_base: rq.places.ring().iova(),
                sq_log_depth: sq_log_depth as u8,
                sq_log_stride: sq_log_stride as u8,
                rq_log_depth: rq_log_depth as u8,
                rq_log_stride: rq_log_stride as u8,
                send_cqn: init.send_cq.shared.cqn,
                recv_cqn: init.recv_cq.shared.cqn,
                record_base: records.base as u16,
                record_log_size: records.log_size.min(sq_log_depth) as u8,
                ..QpQueues::default()
            },
            ..QpContext::default()
        };
        let arguments = Arguments {
            word_mask: 0xffff,
            reset_all: true,
            data: context.to_words(),
            ..Arguments::default()
        };
        if let Err(error) = inner.commands.execute(CommandOpcode::CreateQp, qpn, &arguments) {
            inner.records.release(records);
            inner.release(Object::Qp, qpn);
            return Err(error);
        }
        let [send_bell, recv_bell] =
            [doorbell::SQ_OFFSET, doorbell::RQ_OFFSET].map(|offset| Bell::new(inner, page, offset));
        let push = init.push && !raw && limits.has(feature::PUSH);
        let shared = Arc::new(QpShared {
            inner: inner.clone(),
            qpn,
            transport: init.transport,
            state: AtomicU8::new(QpState::Reset.code()),
            sends: Word::of_qp(&inner.space, qpn),
            alone: !push && send_bell.mapped().is_some(),
            max_rd_atomic: AtomicU8::new(0),
            flushing: AtomicBool::new(false),
            sq,
            rq,
            send_cq: init.send_cq.shared.clone(),
            recv_cq: init.recv_cq.shared.clone(),
            control: Mutex::new(Control {
                context,
                attr: QpAttr::default(),
                reads: None,
                responses: None,
                records,
            }),
        });
        shared.with_cqs(|each| each(&|_, state| state.attach(&shared)));
        lock(&inner.qps).insert(qpn, Arc::downgrade(&shared));
        let longest = 1 << limits.max_message;
        let plain = SendWqe { signaled: init.sq_sig_all, num_sge: 1, qpn, ..SendWqe::default() };
        let [first, _, _, last] = quadwords(&plain.pack());
        let caps = Caps {
            send_sge: init.max_send_sge,
            recv_sge: init.max_recv_sge,
            inline: init.max_inline,
            sq_sig_all: init.sq_sig_all,
            push,
            longest,
            plain: if init.max_send_sge > 0 { longest + 1 } else { 0 },
            first,
            last,
            bell: u64::from_le_bytes(SqDoorbell { qpn, ..SqDoorbell::default() }.pack()),
        };
        Ok(Qp { shared, pd: pd.clone(), send_bell, recv_bell, caps, not_sync: PhantomData })
    }

    /// Its number.
    pub fn number(&self) -> u32 {
        self.shared.qpn
    }

    /// The number of its protection domain.
    pub fn pd_number(&self) -> u32 {
        self.pd.number
    }

    /// The state as the driver knows it; [`Self::query`] asks the card.
    pub fn state(&self) -> QpState {
        self.shared.state()
    }

    /// Places of the send queue.
    pub fn send_depth(&self) -> u32 {
        self.shared.sq.depth()
    }

    /// Places of the receive queue.
    pub fn recv_depth(&self) -> u32 {
        self.shared.rq.depth()
    }

    /// Changes the attributes that `mask` names. Without STATE the state stays.
    ///
    /// # Errors
    /// No such transition, attributes missing or not allowed, a value out of range, an address nobody knows, or the
    /// card refused. Nothing is changed then.
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let qp = &*self.shared;
        qp.inner.check("modify a QP")?;
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { qp.state() };
        if to == QpState::Reset {
            return self.reset(mask);
        }
        // the card may have stopped: what it told is in force before anything is changed
        qp.inner.serve_events()?;
        let to = if mask.contains(AttrMask::STATE) { attr.state } else { qp.state() };
        // asking the network polls, which may put other QPs into error: nothing is locked meanwhile
        let dest_mac = match mask.contains(AttrMask::AV) {
            true => Some(qp.inner.mac_of(attr.av.dest_gid)),
            false => None,
        };
        let mut control = lock(&qp.control);
        let from = qp.state();
        if mask.contains(AttrMask::CUR_STATE) && attr.cur_state != from {
            return Err(Error::Transition { qpn: qp.qpn, from: attr.cur_state, to });
        }
        attributes::check(qp.qpn, qp.transport, from, to, mask)?;
        if to == QpState::Err {
            return if qp.flushing.load(Ordering::Acquire) { Ok(()) } else { qp.move_to_error(&mut control) };
        }
        self.check_values(attr, mask)?;
        let merged = merge(&control.attr, attr, mask, to);
        let mut context = self.to_context(&control.context, &merged, mask, dest_mac)?;
        let arguments = Arguments {
            init_receive: from == QpState::Init && to == QpState::Rtr,
            init_send: from == QpState::Rtr && to == QpState::Rts,
            ..Arguments::default()
        };
        let inner = &qp.inner;
        let (owed, outstanding) = (merged.max_dest_rd_atomic, merged.max_rd_atomic);
        if arguments.init_receive && owed > 0 {
            let range = inner.responses.renew(&mut control.responses, owed.into(), inner.name())?;
            context.queues.response_base = range.base as u16;
            context.queues.response_log_size = range.log_size as u8;
        }
        if arguments.init_send && outstanding > 0 {
            let range = inner.reads.renew(&mut control.reads, outstanding.into(), inner.name())?;
            context.queues.read_base = range.base as u16;
            context.queues.read_log_size = range.log_size as u8;
        }
        let depths = [
            (AttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", owed, control.responses, "RTR"),
            (AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", outstanding, control.reads, "RTS"),
        ];
        for (bit, what, depth, taken, state) in depths {
            let held = taken.map_or(0, |range| 1 << range.log_size);
            if mask.contains(bit) && u32::from(depth) > held {
                let allowed = format!("0..={held}, as taken at {state}");
                return Err(range("modify a QP", what, depth.into(), allowed));
            }
        }
        qp.write_context(&mut control, context, arguments)?;
        qp.max_rd_atomic.store(merged.max_rd_atomic, Ordering::Release);
        control.attr = merged;
        qp.set_state(to);
        Ok(())
    }

    /// To RESET: everything outstanding is discarded without completions, everything not polled is not told.
    fn reset(&self, mask: AttrMask) -> Result<()> {
        let qp = &*self.shared;
        attributes::check(qp.qpn, qp.transport, qp.state(), QpState::Reset, mask)?;
        qp.with_cqs(|each| {
            let mut control = lock(&qp.control);
            let mut context = control.context;
            context.rights.state = QpState::Reset.code();
            context.rights.drain = 0;
            qp.write_context(&mut control, context, Arguments { reset_all: true, ..Arguments::default() })?;
            self.shared.inner.reads.release(&mut control.reads);
            self.shared.inner.responses.release(&mut control.responses);
            qp.max_rd_atomic.store(0, Ordering::Release);
            control.attr = QpAttr::default();
            qp.set_state(QpState::Reset);
            qp.leave_error();
            each(&|cq, state| cq.bury(state, qp.qpn));
            qp.sq.clear();
            qp.rq.clear();
            Ok(())
        })
    }

    fn check_values(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        const MODIFY: &str = "modify a QP";
        let inner = &self.shared.inner;
        let port = inner.port.active_mtu;
        let gids = inner.gids.len() as u64;
        let limits = [
            (AttrMask::PKEY_INDEX, "pkey_index", u64::from(attr.pkey_index), 0..=0),
            (AttrMask::PORT, "port", attr.port.into(), 1..=1),
            (AttrMask::PATH_MTU, "path_mtu", attr.path_mtu.bytes().into(), 256..=port.bytes().into()),
            (AttrMask::DEST_QPN, "dest_qpn", attr.dest_qpn.into(), 0..=0xff_ffff),
            (AttrMask::AV, "sgid_index", attr.av.sgid_index.into(), 0..=gids - 1),
            (AttrMask::AV, "flow_label", attr.av.flow_label.into(), 0..=0xf_ffff),
            (AttrMask::AV, "sl", attr.av.sl.into(), 0..=7),
            (AttrMask::MAX_QP_RD_ATOMIC, "max_rd_atomic", attr.max_rd_atomic.into(), 0..=16),
            (AttrMask::MAX_DEST_RD_ATOMIC, "max_dest_rd_atomic", attr.max_dest_rd_atomic.into(), 0..=16),
            (AttrMask::MIN_RNR_TIMER, "min_rnr_timer", attr.min_rnr_timer.into(), 0..=31),
            (AttrMask::TIMEOUT, "timeout", attr.timeout.into(), 0..=31),
            (AttrMask::RETRY_CNT, "retry_cnt", attr.retry_cnt.into(), 0..=7),
            (AttrMask::RNR_RETRY, "rnr_retry", attr.rnr_retry.into(), 0..=7),
        ];
        for (bit, what, value, allowed) in limits {
            if mask.contains(bit) && !allowed.contains(&value) {
                return Err(range(MODIFY, what, value, format!("{}..={}", allowed.start(), allowed.end())));
            }
        }
        let absent = [(AttrMask::ALT_PATH, "alternate paths"), (AttrMask::PATH_MIG_STATE, "path migration")];
        match absent.iter().find(|(bit, _)| mask.contains(*bit)) {
            Some((_, what)) => Err(Error::Unsupported { operation: MODIFY, what }),
            None => Ok(()),
        }
    }

    fn to_context(
        &self,
        old: &QpContext,
        attr: &QpAttr,
        mask: AttrMask,
        dest_mac: Option<Result<Mac>>,
    ) -> Result<QpContext> {
        let inner = &self.shared.inner;
        let mut context = *old;
        context.rights.state = attr.state.code();
        if mask.contains(AttrMask::EN_SQD_ASYNC_NOTIFY) && attr.en_sqd_async_notify {
            context.rights.drain = old.rights.drain.wrapping_add(1) & 0xf;
        }
        context.rights.access = attr.access.bits();
        context.rights.path_mtu = attr.path_mtu.code();
        context.rights.min_rnr_timer = attr.min_rnr_timer;
        context.rights.timeout = attr.timeout;
        context.rights.retry_cnt = attr.retry_cnt;
        context.rights.rnr_retry = attr.rnr_retry;
        context.rights.max_rd_atomic = attr.max_rd_atomic;
        context.rights.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        context.rights.rq_psn = attr.rq_psn;
        context.rights.sq_psn = attr.sq_psn;
        context.path.dest_qpn = attr.dest_qpn;
        if let Some(mac) = dest_mac {
            let av = &attr.av;
            let GidEntry { gid: source, vlan } = inner.gids[usize::from(av.sgid_index)];
            if source.ipv4().is_some() != av.dest_gid.ipv4().is_some() {
                return Err(Error::Unsupported {
                    operation: "modify a QP",
                    what: "a way from an IPv4 to an IPv6 address or back",
                });
            }
            for gid in [source, av.dest_gid] {
                if gid.ipv4().is_none() && !inner.attributes().has(feature::IPV6) {
                    return Err(Error::Unsupported { operation: "modify a QP", what: "IPv6 addresses" });
                }
            }
            context.path.dest_mac = mac?.to_u64();
            context.path.src_mac = inner.port.mac.to_u64();
            context.path.ttl = if av.hop_limit == 0 { 64 } else { av.hop_limit };
            context.path.tos = av.traffic_class;
            context.path.flow_label = av.flow_label;
            context.path.vlan_tag = u16::from(av.sl) << 13 | vlan.unwrap_or(0);
            context.rights.tagged = vlan.is_some();
            context.rights.vlan = vlan.unwrap_or(0);
            context.rights.ipv6 = source.ipv4().is_none();
            context.addresses.dest_gid = av.dest_gid.to_u128();
            context.addresses.src_gid = source.to_u128();
        }
        if mask.intersects(AttrMask::AV | AttrMask::DEST_QPN) {
            context.path.udp_source_port =
                udp_source_port(attr.av.flow_label, self.shared.qpn, attr.dest_qpn);
        }
        Ok(context)
    }

    /// The attributes, with the state and PSNs that the card holds now.
    ///
    /// # Errors
    /// The command failed.
    pub fn query(&self) -> Result<QpAttr> {
        let qp = &*self.shared;
        qp.inner.check("query a QP")?;
        let words = qp.inner.commands.execute(CommandOpcode::QueryQp, qp.qpn, &Arguments::default())?;
        let live = QpContext::from_words(&words).rights;
        let mut attr = lock(&qp.control).attr;
        attr.state = QpState::from_code(live.state).unwrap_or(QpState::Err);
        attr.cur_state = attr.state;
        attr.rq_psn = live.rq_psn;
        attr.sq_psn = live.sq_psn;
        Ok(attr)
    }

    /// RESET to INIT to RTR to RTS with the usual attributes of a reliable connection: timeout 14 (67 ms), seven
    /// retries, RNR timer 12 (0.64 ms) for ever. `local_psn` is the first PSN that this side told the peer.
    ///
    /// # Errors
    /// As [`Self::modify`].
    pub fn connect(&self, peer: &Endpoint, local_psn: u32, path_mtu: PathMtu, access: Access) -> Result<()> {
        let attr = QpAttr {
            access,
            path_mtu,
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            sq_psn: local_psn,
            av: AddressVector::to(peer.gid),
            ..QpAttr::default()
        };
        self.connect_with(&attr)
    }

    /// RESET to INIT to RTR to RTS with these attributes.
    ///
    /// # Errors
    /// As [`Self::modify`].
    pub fn connect_with(&self, attr: &QpAttr) -> Result<()> {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let steps = attributes::transition(self.shared.transport, self.state(), state);
            let (required, _) =
                steps.ok_or(Error::Transition { qpn: self.shared.qpn, from: self.state(), to: state })?;
            self.modify(&QpAttr { state, ..*attr }, required | AttrMask::STATE)?;
        }
        Ok(())
    }

    /// Posts send work requests, all of them or none.
    ///
    /// # Errors
    /// The queue has no room for all, a request exceeds the QP's or the card's limits, the state is RESET, INIT or
    /// RTR, forked child, closed context, or the doorbell could not be rung. In ERR requests are taken and flushed.
    #[inline]
    pub fn post_send(&self, list: &[SendWr<'_>]) -> Result<()> {
        if self.post_alone(list) { Ok(()) } else { self.post_list(list) }
    }

    /// Posts what most programs post most of the time, one plain request, where nothing is to be looked at but its limits.
    /// False: there is more, and nothing is done.
    #[inline(never)]
    fn post_alone(&self, list: &[SendWr<'_>]) -> bool {
        let [request] = list else { return false };
        let (qp, sq) = (&*self.shared, &self.shared.sq);
        let tail = sq.tail.load(Ordering::Relaxed);
        if qp.sends.get() != ALONE
            || tail == sq.limit.load(Ordering::Relaxed)
            || !self.write_plain(tail, request)
        {
            return false;
        }
        let producer = tail.wrapping_add(1);
        sq.tail.store(producer, Ordering::Release);
        match self.send_bell.mapped() {
            Some(bell) if qp.sends.get() != 0 => bell.ring(self.bell(producer)),
            _ => self.ring_late(producer),
        }
        true
    }

    /// The QP left RTS while one was posted.
    #[cold]
    #[inline(never)]
    fn ring_late(&self, producer: u32) {
        if !self.shared.flushes()
            && let Some(bell) = self.send_bell.mapped()
        {
            bell.ring(self.bell(producer));
        }
    }

    /// Posts any list.
    #[inline(never)]
    fn post_list(&self, list: &[SendWr<'_>]) -> Result<()> {
        let qp = &*self.shared;
        if qp.sends.get() == 0 {
            self.may_send()?;
        }
        let tail = qp.sq.room(POST_SEND, qp.qpn, list.len())?;
        // the places behind the tail are the program's until the tail moves: a bad one in the list undoes the others
        let mut producer = tail;
        for request in list {
            if !self.write_plain(producer, request) {
                self.write_send(producer, request)?;
            }
            producer = producer.wrapping_add(1);
        }
        qp.sq.tail.store(producer, Ordering::Release);
        let flushed = qp.sends.get() == 0 && qp.flushes();
        if flushed || self.caps.push && self.push(tail, list)? {
            return Ok(());
        }
        self.send_bell.ring(self.bell(producer))
    }

    /// The doorbell that tells of the send work requests before `producer`.
    #[inline(always)]
    fn bell(&self, producer: u32) -> u64 {
        let producer = SqDoorbell { producer: producer as u16, ..SqDoorbell::default() };
        self.caps.bell | u64::from_le_bytes(producer.pack())
    }

    /// The checks of a QP that is not in RTS, or whose context is closed.
    #[cold]
    fn may_send(&self) -> Result<()> {
        let qp = &*self.shared;
        qp.inner.check(POST_SEND)?;
        match qp.state() {
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => Ok(()),
            state => Err(Error::State { operation: POST_SEND, qpn: qp.qpn, state }),
        }
    }

    /// Copies the request at `tail` to the push buffer too, and rings, if it is alone in its list and its queue, and short;
    /// false: it is not, or somebody else pushes.
    #[inline(never)]
    fn push(&self, tail: u32, list: &[SendWr<'_>]) -> Result<bool> {
        let qp = &*self.shared;
        let [request] = list else { return Ok(false) };
        let length = request.wqe_bytes();
        if qp.sq.head.load(Ordering::Acquire) != tail || length > doorbell::PUSH_BYTES as usize {
            return Ok(false);
        }
        let bell = SqDoorbell { qpn: qp.qpn, pushed: true, producer: tail.wrapping_add(1) as u16 };
        qp.inner.push(&self.pd.user, qp.sq.places.place(tail).read(length), bell)
    }

    /// Writes a WRITE or SEND of one SGE and no flag but `signaled` into its place; false, and nothing is written: it is
    /// none, or exceeds a limit.
    #[inline(always)]
    fn write_plain(&self, index: u32, request: &SendWr<'_>) -> bool {
        let ([sge], None) = (request.sges, request.inline) else { return false };
        if request.solicited | request.fence || u64::from(sge.length) >= self.caps.plain {
            return false;
        }
        let signaled = request.signaled;
        let own = SendWqe { signaled, length: sge.length, index: index as u16, ..SendWqe::default() };
        let own = match request.operation {
            Operation::Write { addr, rkey } => {
                SendWqe { opcode: WrOpcode::RdmaWrite.code(), remote_addr: addr, rkey, ..own }
            }
            Operation::Send => SendWqe { opcode: WrOpcode::Send.code(), ..own },
            _ => return false,
        };
        let sq = &self.shared.sq;
        let place = sq.places.place(index);
        place.id().store(request.wr_id, Ordering::Relaxed);
        // piece by piece and the longest in the making last: that needs the fewest registers
        let [first, addr, key, last] = quadwords(&own.pack());
        place.put::<8, 8>(addr.to_le_bytes());
        place.put::<16, 8>(key.to_le_bytes());
        place.put::<32, 16>(sge.pack());
        place.put::<24, 8>((last | self.caps.last).to_le_bytes());
        place.put::<0, 8>((first | self.caps.first).to_le_bytes());
        true
    }

    /// Checks any work request and writes it into its place.
    #[inline(never)]
    fn write_send(&self, index: u32, request: &SendWr<'_>) -> Result<()> {
        let (opcode, addr, rkey, imm) = match request.operation {
            Operation::Write { addr, rkey } => (WrOpcode::RdmaWrite, addr, rkey, 0),
            Operation::Send => (WrOpcode::Send, 0, 0, 0),
            Operation::SendWithImm(imm) => (WrOpcode::SendWithImm, 0, 0, imm),
            Operation::SendWithInv(key) => (WrOpcode::SendWithInv, 0, 0, key),
            Operation::LocalInv(key) => (WrOpcode::LocalInv, 0, 0, key),
            Operation::Read { addr, rkey } => (WrOpcode::RdmaRead, addr, rkey, 0),
            Operation::CompareSwap { addr, rkey, .. } => (WrOpcode::AtomicCmpAndSwp, addr, rkey, 0),
            Operation::FetchAdd { addr, rkey, .. } => (WrOpcode::AtomicFetchAndAdd, addr, rkey, 0),
            Operation::WriteWithImm { addr, rkey, imm } => (WrOpcode::RdmaWriteWithImm, addr, rkey, imm),
        };
        self.check_send(request)?;
        let sq = &self.shared.sq;
        let place = sq.places.place(index);
        let inline = request.inline.is_some();
        let head = SendWqe {
            opcode: opcode.code(),
            signaled: request.signaled | self.caps.sq_sig_all,
            solicited: request.solicited,
            fence: request.fence,
            inline,
            num_sge: if inline { 0 } else { request.sges.len() as u8 },
            // the field's bytes stand as on the wire
            imm: imm.swap_bytes(),
            remote_addr: addr,
            rkey,
            length: request.length() as u32,
            index: index as u16,
            qpn: self.shared.qpn,
        };
        place.put::<0, 32>(head.pack());
        match request.inline {
            Some(bytes) => place.write(SendWqe::BYTES, bytes),
            None => write_sges(place, SendWqe::BYTES, request.sges),
        }
        let operands = match request.operation {
            Operation::CompareSwap { compare, swap, .. } => Some((compare, swap)),
            Operation::FetchAdd { add, .. } => Some((0, add)),
            _ => None,
        };
        if let Some((compare, swap_or_add)) = operands {
            let operands = AtomicOperands { compare, swap_or_add };
            place.write(request.wqe_bytes() - AtomicOperands::BYTES, &operands.pack());
        }
        place.id().store(request.wr_id, Ordering::Relaxed);
        Ok(())
    }

    #[inline]
    fn check_send(&self, request: &SendWr<'_>) -> Result<()> {
        const POST: &str = POST_SEND;
        match request.operation {
            Operation::Send
            | Operation::SendWithImm(_)
            | Operation::Write { .. }
            | Operation::WriteWithImm { .. } => {}
            _ => self.check_feature(request)?,
        }
        if let Some(bytes) = request.inline {
            if bytes.len() > self.caps.inline as usize {
                return Err(range(
                    POST,
                    "inline bytes",
                    bytes.len() as u64,
                    format!("0..={}, the QP's max_inline", self.caps.inline),
                ));
            }
        } else if request.sges.len() > self.caps.send_sge as usize {
            let allowed = format!("0..={}", self.caps.send_sge);
            return Err(range(POST, "SGEs", request.sges.len() as u64, allowed));
        }
        let reads = matches!(request.operation, Operation::Read { .. });
        let most = self.shared.inner.attributes().max_sge;
        if reads && request.sges.len() > most as usize {
            let allowed = format!("0..={most}");
            return Err(range(POST, "SGEs of a READ", request.sges.len() as u64, allowed));
        }
        let longest = self.caps.longest;
        if request.length() > longest {
            return Err(range(POST, "message length", request.length(), format!("0..={longest}")));
        }
        Ok(())
    }

    /// What the card must have, and the message must be, for an operation that is more than a SEND or WRITE.
    #[inline(never)]
    fn check_feature(&self, request: &SendWr<'_>) -> Result<()> {
        const POST: &str = POST_SEND;
        let limits = self.shared.inner.attributes();
        let atomic = request.is_atomic();
        if atomic && !limits.has(feature::ATOMIC) {
            return Err(Error::Unsupported { operation: POST, what: "atomics" });
        }
        if atomic && (request.sges.len() != 1 || request.length() != 8) {
            return Err(range(POST, "bytes of an atomic's only SGE", request.length(), "8"));
        }
        let local = matches!(request.operation, Operation::LocalInv(_));
        if local || matches!(request.operation, Operation::SendWithInv(_)) {
            if !limits.has(feature::INVALIDATE) {
                return Err(Error::Unsupported { operation: POST, what: "invalidation of keys" });
            }
            if local && (request.length() > 0 || request.inline.is_some()) {
                return Err(range(
                    POST,
                    "bytes of a local invalidate",
                    request.length(),
                    "0, no inline data",
                ));
            }
        }
        if atomic || matches!(request.operation, Operation::Read { .. }) {
            if !atomic && !limits.has(feature::READ) {
                return Err(Error::Unsupported { operation: POST, what: "READ" });
            }
            // in ERR whatever is posted is flushed
            let flushed = self.state() == QpState::Err;
            if !flushed && self.shared.max_rd_atomic.load(Ordering::Acquire) == 0 {
                return Err(range(POST, "READs or atomics with a max_rd_atomic of 0", 1, "0"));
            }
            if request.inline.is_some() {
                return Err(Error::Unsupported { operation: POST, what: "inline data of a READ or atomic" });
            }
        }
        Ok(())
    }

    /// Posts receive work requests, all of them or none.
    ///
    /// # Errors
    /// The queue has no room for all, too many SGEs, the state is RESET, forked child, closed context, or the
    /// doorbell could not be rung. In ERR requests are taken and flushed.
    pub fn post_recv(&self, list: &[RecvWr<'_>]) -> Result<()> {
        const POST: &str = "post_recv";
        let qp = &*self.shared;
        qp.inner.check(POST)?;
        let state = qp.state();
        if state == QpState::Reset {
            return Err(Error::State { operation: POST, qpn: qp.qpn, state });
        }
        let tail = qp.rq.room(POST, qp.qpn, list.len())?;
        if let Some(request) = list.iter().find(|request| request.sges.len() > self.caps.recv_sge as usize) {
            let allowed = format!("0..={}", self.caps.recv_sge);
            return Err(range(POST, "SGEs", request.sges.len() as u64, allowed));
        }
        let mut producer = tail;
        for request in list {
            let place = qp.rq.places.place(producer);
            write_sges(place, 0, request.sges);
            // the rest of the place is zero: elements of length 0 are skipped
            for unused in (request.sges.len() * Sge::BYTES..place.size()).step_by(Sge::BYTES) {
                place.write(unused, &[0; Sge::BYTES]);
            }
            place.id().store(request.wr_id, Ordering::Relaxed);
            producer = producer.wrapping_add(1);
        }
        qp.rq.tail.store(producer, Ordering::Release);
        if qp.is_flushed() {
            qp.recv_cq.signal();
            return Ok(());
        }
        let bell = RqDoorbell { qpn: qp.qpn, producer: producer as u16 };
        self.recv_bell.ring(u64::from_le_bytes(bell.pack()))
    }
}

#[inline]
fn write_sges(place: Place<'_>, offset: usize, sges: &[Sge]) {
    for (i, sge) in sges.iter().enumerate() {
        place.write(offset + i * Sge::BYTES, &sge.pack());
    }
}

/// `old` with what `mask` names taken from `new`.
fn merge(old: &QpAttr, new: &QpAttr, mask: AttrMask, state: QpState) -> QpAttr {
    const PSN: u32 = 0xff_ffff;
    let has = |bit| mask.contains(bit);
    QpAttr {
        state,
        cur_state: state,
        access: if has(AttrMask::ACCESS_FLAGS) { new.access } else { old.access },
        pkey_index: if has(AttrMask::PKEY_INDEX) { new.pkey_index } else { old.pkey_index },
        port: if has(AttrMask::PORT) { new.port } else { old.port },
        qkey: if has(AttrMask::QKEY) { new.qkey } else { old.qkey },
        path_mtu: if has(AttrMask::PATH_MTU) { new.path_mtu } else { old.path_mtu },
        dest_qpn: if has(AttrMask::DEST_QPN) { new.dest_qpn } else { old.dest_qpn },
        rq_psn: if has(AttrMask::RQ_PSN) { new.rq_psn & PSN } else { old.rq_psn },
        sq_psn: if has(AttrMask::SQ_PSN) { new.sq_psn & PSN } else { old.sq_psn },
        av: if has(AttrMask::AV) { new.av } else { old.av },
        max_rd_atomic: if has(AttrMask::MAX_QP_RD_ATOMIC) { new.max_rd_atomic } else { old.max_rd_atomic },
        max_dest_rd_atomic: if has(AttrMask::MAX_DEST_RD_ATOMIC) {
            new.max_dest_rd_atomic
        } else {
            old.max_dest_rd_atomic
        },
        min_rnr_timer: if has(AttrMask::MIN_RNR_TIMER) { new.min_rnr_timer } else { old.min_rnr_timer },
        timeout: if has(AttrMask::TIMEOUT) { new.timeout } else { old.timeout },
        retry_cnt: if has(AttrMask::RETRY_CNT) { new.retry_cnt } else { old.retry_cnt },
        rnr_retry: if has(AttrMask::RNR_RETRY) { new.rnr_retry } else { old.rnr_retry },
        en_sqd_async_notify: new.en_sqd_async_notify,
    }
}

impl Drop for Qp {
    fn drop(&mut self) {
        let qp = &*self.shared;
        if qp.inner.space.guard.is_child() {
            return;
        }
        lock(&qp.inner.qps).remove(&qp.qpn);
        qp.with_cqs(|each| {
            // whoever still serves an event of this QP finds it in RESET and leaves it alone
            let mut control = lock(&qp.control);
            let rings = [qp.sq.places.ring(), qp.rq.places.ring()];
            let gone = qp.inner.destroy(CommandOpcode::DestroyQp, qp.qpn, &rings);
            qp.set_state(QpState::Reset);
            qp.leave_error();
            each(&|cq, state| {
                cq.bury(state, qp.qpn);
                state.detach(qp.qpn);
            });
            if gone {
                self.shared.inner.records.release(control.records);
                self.shared.inner.reads.release(&mut control.reads);
                self.shared.inner.responses.release(&mut control.responses);
                qp.inner.release(Object::Qp, qp.qpn);
            }
        });
    }
}
