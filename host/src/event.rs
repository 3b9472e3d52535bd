//! Events: the asynchronous ones of EQ 0 and the completion channels, each an EQ and an MSI-X vector of its own.
//!
//! ```text
//! card > EQE > MSI-X > eventfd > epoll descriptor of the channel > CompChannel::wait > CqEvent
//!                  flushes of the driver > software event  ^
//! ```
//!
//! In: EQEs. Out: events in their order. An EQ is armed, then looked at once more, then waited for: no event between
//! the two is missed. Whoever waits also serves EQ 0, so that a QP that failed without a completion is flushed and
//! its waiters wake. Every wait is bounded by the caller's timeout, and by the card's going: then what is left is told, the
//! last asynchronous event is DEVICE_FATAL, and every further wait is an error.

use crate::backend::readable;
use crate::command::{Arguments, Commands};
use crate::context::{Inner, Object, lock};
use crate::device::Attributes;
use crate::dma::{DmaBuffer, DmaSpace};
use crate::{AsyncEvent, Error, Result, barrier};
use contract::context::words;
use contract::ring::phase;
use contract::{CommandOpcode, EqDoorbell, EqEntry, Eqe, EventKind, doorbell};
use rustix::event::{EventfdFlags, epoll, eventfd};
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Something happened to a QP, a CQ, the port or the card.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AsyncNotice {
    /// What.
    pub event: AsyncEvent,
    /// Number of the QP or CQ concerned; 0 for the port and the card.
    pub object: u32,
}

/// An armed CQ has something to poll.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CqEvent {
    /// Number of the CQ.
    pub cqn: u32,
}

pub(crate) fn new_eventfd() -> Result<OwnedFd> {
    eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| Error::System { operation: "make an eventfd", source: error.into() })
}

/// Takes the count; not readable any more.
pub(crate) fn clear(fd: &OwnedFd) {
    let _ = rustix::io::read(fd, &mut [0; 8]);
}

/// Makes the descriptor readable.
pub(crate) fn raise(fd: &OwnedFd) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Readable while one of these is.
pub(crate) fn new_epoll(fds: &[BorrowedFd<'_>]) -> Result<OwnedFd> {
    let failed = |error: rustix::io::Errno| Error::System {
        operation: "make an epoll descriptor",
        source: error.into(),
    };
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
    for (i, fd) in fds.iter().enumerate() {
        epoll::add(&set, fd, epoll::EventData::new_u64(i as u64), epoll::EventFlags::IN).map_err(failed)?;
    }
    Ok(set)
}

/// One event queue.
pub(crate) struct EventQueue {
    eqn: u32,
    log_depth: u32,
    ring: Arc<DmaBuffer>,
    /// Index of the next entry; written under `reported`.
    consumer: AtomicU32,
    /// The byte with its phase, and that byte as it is while the entry is not written; likewise.
    next: AtomicPtr<AtomicU8>,
    stale: AtomicU8,
    /// Consumer index last told to the card.
    reported: Mutex<u32>,
}

impl EventQueue {
    fn new(space: &Arc<DmaSpace>, commands: &Commands, eqn: u32, entries: u32) -> Result<EventQueue> {
        let log_depth = entries.next_power_of_two().ilog2().clamp(4, contract::ring::MAX_LOG_DEPTH);
        let ring = Arc::new(DmaBuffer::new(space, (Eqe::BYTES << log_depth) as u64)?);
        let entry =
            EqEntry { valid: true, log_depth: log_depth as u8, vector: eqn as u16, base: ring.iova() };
        let arguments = Arguments { word_mask: 3, data: words(&entry.pack()), ..Arguments::default() };
        commands.execute(CommandOpcode::CreateEq, eqn, &arguments)?;
        let queue = EventQueue {
            eqn,
            log_depth,
            ring,
            consumer: AtomicU32::new(0),
            next: AtomicPtr::new(std::ptr::null_mut()),
            stale: AtomicU8::new(0),
            reported: Mutex::new(0),
        };
        queue.expect(0);
        Ok(queue)
    }

    /// The entry with this index is the next one.
    fn expect(&self, index: u32) {
        self.consumer.store(index, Ordering::Relaxed);
        let at = self.slot(index) + Eqe::BYTES - 1;
        let stale = self.ring.last(at) & !1 | u8::from(!phase(index, self.log_depth));
        // a poll of another thread between these two looks at a wrong phase: it sees an entry that `pop` does not find,
        // or misses one until its next look
        self.stale.store(stale, Ordering::Relaxed);
        self.next.store(self.ring.byte(at), Ordering::Relaxed);
    }

    fn slot(&self, index: u32) -> usize {
        (index as usize & ((1 << self.log_depth) - 1)) * Eqe::BYTES
    }

    /// Whether an entry waits.
    #[inline]
    fn has_entry(&self) -> bool {
        // SAFETY: points into the ring, which lives as long as self
        let last = unsafe { &*self.next.load(Ordering::Relaxed) }.load(Ordering::Relaxed);
        last != self.stale.load(Ordering::Relaxed)
    }

    /// The next entry; gives places back by the quarter ring.
    fn pop(&self, inner: &Inner) -> Result<Option<Eqe>> {
        let mut reported = lock(&self.reported);
        if !self.has_entry() {
            return Ok(None);
        }
        barrier::after_valid();
        let index = self.consumer.load(Ordering::Relaxed);
        let entry = Eqe::unpack(&self.ring.read(self.slot(index)));
        let index = index.wrapping_add(1);
        self.expect(index);
        if index.wrapping_sub(*reported) >= 1 << self.log_depth >> 2 {
            *reported = index;
            self.ring_doorbell(inner, index, false)?;
        }
        Ok(Some(entry))
    }

    /// The next entry raises the vector; one that is there already raises it at once.
    fn arm(&self, inner: &Inner) -> Result<()> {
        let mut reported = lock(&self.reported);
        *reported = self.consumer.load(Ordering::Relaxed);
        self.ring_doorbell(inner, *reported, true)
    }

    fn ring_doorbell(&self, inner: &Inner, consumer: u32, arm: bool) -> Result<()> {
        let value = EqDoorbell { eqn: self.eqn, arm, consumer: consumer & 0xff_ffff };
        inner.doorbell(0, doorbell::EQ_OFFSET, value.pack())
    }
}

/// EQ 0, the interrupt descriptors, and the asynchronous events not yet taken.
pub(crate) struct Events {
    queue: EventQueue,
    vectors: Vec<OwnedFd>,
    notices: Mutex<VecDeque<AsyncNotice>>,
    /// Readable while `notices` may hold something.
    noticed: OwnedFd,
    waiting: OwnedFd,
}

impl Events {
    pub(crate) fn start(
        space: &Arc<DmaSpace>,
        commands: &Commands,
        attributes: &Attributes,
    ) -> Result<Events> {
        let count = attributes.max_eq.min(attributes.msix_vectors);
        let vectors = (0..count).map(|_| new_eventfd()).collect::<Result<Vec<_>>>()?;
        let borrowed: Vec<BorrowedFd<'_>> = vectors.iter().map(AsFd::as_fd).collect();
        space
            .backend
            .set_irqs(&borrowed)
            .map_err(|source| space.error(format!("connect {count} interrupt vectors"), source))?;
        // every QP may report twice, every CQ once, beside the port's own
        let queue = EventQueue::new(space, commands, 0, 2 * attributes.max_qp + attributes.max_cq + 64)?;
        let noticed = new_eventfd()?;
        let waiting = new_epoll(&[vectors[0].as_fd(), noticed.as_fd()])?;
        Ok(Events { queue, vectors, notices: Mutex::default(), noticed, waiting })
    }

    pub(crate) fn arm(&self, inner: &Inner) -> Result<()> {
        self.queue.arm(inner)
    }

    /// An event waits to be served.
    #[inline]
    pub(crate) fn has_entry(&self) -> bool {
        self.queue.has_entry()
    }

    /// The card is gone: the last notice, and whoever waits for whatever wakes.
    pub(crate) fn end(&self) {
        self.notice(AsyncEvent::DeviceFatal, 0);
        self.rouse();
    }

    /// Every channel and who waits for an asynchronous event wakes: all of them wait for vector 0, too.
    fn rouse(&self) {
        raise(&self.vectors[0]);
    }

    fn notice(&self, event: AsyncEvent, object: u32) {
        tracing::debug!(event = event.name(), object, "asynchronous event");
        lock(&self.notices).push_back(AsyncNotice { event, object });
        raise(&self.noticed);
    }
}

impl Inner {
    /// Serves EQ 0: puts failed QPs into error, keeps the notices. Cheap when there is nothing: one load.
    pub(crate) fn serve_events(&self) -> Result<()> {
        if !self.events.queue.has_entry() {
            return Ok(());
        }
        loop {
            while let Some(entry) = self.events.queue.pop(self)? {
                self.serve(&entry);
            }
            self.events.queue.arm(self)?;
            if !self.events.queue.has_entry() {
                return Ok(());
            }
        }
    }

    /// Acts on an event that is no completion.
    fn serve(&self, entry: &Eqe) {
        match (EventKind::from_code(entry.kind), AsyncEvent::from_code(entry.event)) {
            (Some(EventKind::Async), Some(event)) => {
                match event {
                    AsyncEvent::QpFatal | AsyncEvent::QpReqErr | AsyncEvent::QpAccessErr => {
                        let qp = lock(&self.qps).get(&entry.object).and_then(|qp| qp.upgrade());
                        if let Some(qp) = qp {
                            qp.fail();
                        }
                    }
                    AsyncEvent::CqErr => self.overflow(entry.object),
                    _ => {}
                }
                self.events.notice(event, entry.object);
            }
            (Some(EventKind::CqOverflow), _) => {
                self.overflow(entry.object);
                self.events.notice(AsyncEvent::CqErr, entry.object);
            }
            (Some(EventKind::Device), _) => self.events.notice(AsyncEvent::DeviceFatal, 0),
            (Some(EventKind::Completion | EventKind::Command), _) => {}
            (kind, _) => {
                tracing::warn!(?kind, entry.kind, entry.event, entry.object, "event of no known kind")
            }
        }
    }

    fn overflow(&self, cqn: u32) {
        let cq = lock(&self.cqs).get(&cqn).and_then(|cq| cq.upgrade());
        if let Some(cq) = cq {
            cq.overflow();
        }
    }

    pub(crate) fn async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncNotice>> {
        let end = timeout.map(|timeout| self.backend().now() + timeout);
        loop {
            clear(&self.events.vectors[0]);
            clear(&self.events.noticed);
            let checked = self.check("wait for an asynchronous event").and_then(|()| self.serve_events());
            if let Ok(()) | Err(Error::Gone { .. }) = checked
                && let Some(notice) = lock(&self.events.notices).pop_front()
            {
                self.rouse_if_gone();
                return Ok(Some(notice));
            }
            self.rouse_if_gone();
            checked?;
            if !self.wait(&self.events.waiting, end)? {
                return Ok(None);
            }
        }
    }

    /// Who is woken by a card's end has taken the others' bell away.
    fn rouse_if_gone(&self) {
        if self.space.guard.is_gone() {
            self.events.rouse();
        }
    }

    /// Waits until `fd` is readable or the clock reaches `end`.
    fn wait(&self, fd: &OwnedFd, end: Option<Duration>) -> Result<bool> {
        let left = end.map(|end| end.saturating_sub(self.backend().now()));
        self.backend()
            .wait(fd.as_fd(), left)
            .map_err(|source| Error::System { operation: "wait for an interrupt", source })
    }
}

/// A completion channel: armed CQs tell here that they have something to poll.
///
/// A CQ keeps its channel alive. Readable like a file: see [`CompChannel::as_fd`].
#[derive(Clone)]
pub struct CompChannel {
    pub(crate) shared: Arc<ChannelShared>,
}

impl std::fmt::Debug for CompChannel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CompChannel").field("eqn", &self.shared.queue.eqn).finish_non_exhaustive()
    }
}

pub(crate) struct ChannelShared {
    pub(crate) inner: Arc<Inner>,
    queue: EventQueue,
    /// CQs with completions that the driver made itself.
    made: Mutex<VecDeque<u32>>,
    raised: OwnedFd,
    waiting: OwnedFd,
}

impl ChannelShared {
    pub(crate) fn eqn(&self) -> u32 {
        self.queue.eqn
    }

    /// Tells of completions that the driver made.
    pub(crate) fn push(&self, cqn: u32) {
        lock(&self.made).push_back(cqn);
        raise(&self.raised);
    }

    fn next(&self) -> Result<Option<CqEvent>> {
        self.inner.serve_events()?;
        let made = lock(&self.made).pop_front();
        if let Some(cqn) = made {
            return Ok(Some(CqEvent { cqn }));
        }
        while let Some(entry) = self.queue.pop(&self.inner)? {
            if EventKind::from_code(entry.kind) != Some(EventKind::Completion) {
                self.inner.serve(&entry);
                continue;
            }
            let cq = lock(&self.inner.cqs).get(&entry.object).and_then(|cq| cq.upgrade());
            // an event of a CQ that is gone, or whose arming a flush already answered, is old
            if cq.is_some_and(|cq| cq.disarm()) {
                return Ok(Some(CqEvent { cqn: entry.object }));
            }
        }
        Ok(None)
    }
}

impl Drop for ChannelShared {
    fn drop(&mut self) {
        if self.inner.destroy(CommandOpcode::DestroyEq, self.queue.eqn, &[&self.queue.ring]) {
            self.inner.release(Object::Eq, self.queue.eqn);
        }
    }
}

impl CompChannel {
    pub(crate) fn new(inner: &Arc<Inner>) -> Result<CompChannel> {
        inner.check("create a completion channel")?;
        let eqn = inner.take(Object::Eq)?;
        let made = || {
            // an armed CQ tells once; QP and CQ errors may come here too
            let entries = 2 * inner.attributes().max_cq + inner.attributes().max_qp;
            let queue = EventQueue::new(&inner.space, &inner.commands, eqn, entries)?;
            let raised = new_eventfd()?;
            let vectors = &inner.events.vectors;
            let waiting = new_epoll(&[vectors[eqn as usize].as_fd(), raised.as_fd(), vectors[0].as_fd()])?;
            Ok(ChannelShared { inner: inner.clone(), queue, made: Mutex::default(), raised, waiting })
        };
        match made() {
            Ok(shared) => Ok(CompChannel { shared: Arc::new(shared) }),
            Err(error) => {
                inner.release(Object::Eq, eqn);
                Err(error)
            }
        }
    }

    /// The next event, waiting up to `timeout` (`None`: for ever).
    ///
    /// # Errors
    /// Forked child, closed context, a card that is gone and no event left, or waiting failed.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<Option<CqEvent>> {
        let channel = &*self.shared;
        let inner = &*channel.inner;
        let end = timeout.map(|timeout| inner.backend().now() + timeout);
        loop {
            clear(&inner.events.vectors[channel.queue.eqn as usize]);
            clear(&inner.events.vectors[0]);
            clear(&channel.raised);
            if let Err(error) = inner.check("wait on a completion channel") {
                inner.rouse_if_gone();
                // a card's end leaves events behind: of the CQs whose work it flushed
                let made =
                    matches!(error, Error::Gone { .. }).then(|| lock(&channel.made).pop_front()).flatten();
                return made.map_or(Err(error), |cqn| Ok(Some(CqEvent { cqn })));
            }
            let mut event = channel.next()?;
            if event.is_none() {
                channel.queue.arm(inner)?;
                event = channel.next()?;
            }
            if event.is_some() {
                if !lock(&channel.made).is_empty() {
                    raise(&channel.raised);
                }
                return Ok(event);
            }
            if !inner.wait(&channel.waiting, end)? {
                return Ok(None);
            }
        }
    }

    /// A descriptor that is readable when [`Self::wait`] may have something; for the caller's own poll loop. Before
    /// sleeping on it, call `wait` with a timeout of zero until it gives `None`: that arms the interrupt.
    pub fn as_fd(&self) -> BorrowedFd<'_> {
        self.shared.waiting.as_fd()
    }

    /// Whether [`Self::wait`] may have something now.
    ///
    /// # Errors
    /// The descriptor cannot be asked.
    pub fn is_ready(&self) -> Result<bool> {
        readable(self.as_fd(), Some(Duration::ZERO))
            .map_err(|source| Error::System { operation: "ask a completion channel", source })
    }
}
