//! Whether the card is still there, and what happens when it is not.
//!
//! ```text
//! the kernel's request (eventfd) ──────────────┐
//! registers that read as ones: a look a second,├─> mark > Backend::release > QPs flushed, DEVICE_FATAL, waiters wake
//!   a command without answer, a caller's read ─┘   (no DMA any more)         (every call: Error::Gone)
//! ```
//!
//! In: the request of VFIO (`VFIO_PCI_REQ_IRQ_INDEX`), with which the kernel asks for a card that is to be removed or
//! unbound, and reads that give ones, which is what a card answers that was pulled. Out: the card is let go of, so that the
//! kernel's removal ends, and whatever waits for it ends: outstanding work requests are flushed, waits return. Latency: a
//! thread sleeps on the request, so it is heard whatever the program does; a card that was pulled is missed within a second
//! if its registers are mapped, else by whoever uses it next. Never: memory given back to the program while the card may
//! reach it, a card taken up again (it is opened anew).

use crate::backend::{Backend, Bar, readable};
use crate::context::{Inner, lock};
use crate::event::{new_epoll, new_eventfd, raise};
use crate::{Error, Result};
use contract::register as reg;
use std::fmt;
use std::ops::Deref;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// Time between two looks for a card that was pulled.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

/// How a card went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The system wanted it back: it is being removed, or its driver unbound.
    Asked,
    /// It answers no more: reads give ones.
    Off,
}

impl fmt::Display for Departure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Departure::Asked => {
                "the system wanted the card back (it is being removed or unbound) and got it; open it anew when it is there \
                 again: rescan the bus, bind it to vfio-pci"
            }
            Departure::Off => {
                "reads give only ones: the card is off the bus; see that it has power and its bitstream, then reset it or \
                 rescan the bus"
            }
        })
    }
}

/// One for each open card. It ends with the thread that watches: whoever closes a card can open it at once.
pub(crate) struct Presence {
    card: Arc<Watched>,
    watcher: Option<JoinHandle<()>>,
    /// A forked child has no such thread, and its parent's descriptors.
    process: u32,
}

/// What the thread knows, too.
pub(crate) struct Watched {
    backend: Arc<dyn Backend>,
    how: OnceLock<Departure>,
    /// Who uses the card.
    context: Mutex<Weak<Inner>>,
    /// Readable when the card is to be let go of: the kernel's request, and our own.
    request: OwnedFd,
    /// Readable when nobody has the card open any more.
    closed: OwnedFd,
}

impl Deref for Presence {
    type Target = Watched;
    fn deref(&self) -> &Watched {
        &self.card
    }
}

impl Presence {
    /// Watches the card behind a backend that can be asked for it.
    pub(crate) fn of(backend: &Arc<dyn Backend>) -> Result<Arc<Presence>> {
        let (request, closed) = (new_eventfd()?, new_eventfd()?);
        let is_asked = backend.set_request(request.as_fd()).unwrap_or_else(|error| {
            tracing::warn!(%error, name = backend.name(), "the card cannot be asked for");
            false
        });
        let (how, context) = (OnceLock::new(), Mutex::default());
        let card = Arc::new(Watched { backend: backend.clone(), how, context, request, closed });
        let watcher = if is_asked { Some(card.watch()?) } else { None };
        Ok(Arc::new(Presence { card, watcher, process: std::process::id() }))
    }
}

impl Watched {
    fn watch(self: &Arc<Self>) -> Result<JoinHandle<()>> {
        let either = new_epoll(&[self.request.as_fd(), self.closed.as_fd()])?;
        // a look is one load there
        let look = self.backend.mapped(Bar::Registers).map(|_| LOOK);
        let card = self.clone();
        let watch = move || {
            loop {
                let roused = readable(either.as_fd(), look);
                let is_closed = readable(card.closed.as_fd(), Some(Duration::ZERO));
                match (roused, is_closed) {
                    (Ok(true), Ok(false)) => return card.leave(Departure::Asked),
                    (Ok(false), Ok(false)) if card.is_off() => return card.leave(Departure::Off),
                    (Ok(false), Ok(false)) => {}
                    _ => return,
                }
            }
        };
        let spawned = std::thread::Builder::new().name("verbena-presence".to_owned()).spawn(watch);
        spawned.map_err(|source| Error::System { operation: "start a thread", source })
    }

    /// Who is to be told.
    pub(crate) fn attend(&self, inner: &Arc<Inner>) {
        *lock(&self.context) = Arc::downgrade(inner);
        if let Some(how) = self.how.get() {
            self.leave(*how);
        }
    }

    fn context(&self) -> Option<Arc<Inner>> {
        lock(&self.context).upgrade()
    }

    /// Whether registers read as ones.
    pub(crate) fn is_off(&self) -> bool {
        self.backend.read32(Bar::Registers, reg::MAGIC.into()).is_ok_and(|value| value == u32::MAX)
    }

    /// From now on every call ends; whoever may lock what it needs, the watching thread or the next call, does the rest.
    pub(crate) fn mark(&self, how: Departure) {
        let how = *self.how.get_or_init(|| how);
        if let Some(inner) = self.context()
            && inner.space.guard.lose()
        {
            tracing::warn!(name = self.backend.name(), "{how}");
        }
        raise(&self.request);
    }

    /// The card is let go of, and nothing waits for it any more. The caller holds no lock.
    pub(crate) fn leave(&self, how: Departure) {
        self.mark(how);
        match self.context() {
            Some(inner) => inner.part(),
            None => self.backend.release(),
        }
    }

    /// After a register that read as ones: an error if it was the card's absence. The caller holds no lock.
    pub(crate) fn look(&self, operation: &'static str) -> Result<()> {
        if self.how.get().is_none() && !self.is_off() {
            return Ok(());
        }
        self.leave(Departure::Off);
        Err(self.gone(operation))
    }

    /// An error of a card that is known to be gone.
    pub(crate) fn demand(&self, operation: &'static str) -> Result<()> {
        if self.how.get().is_none() { Ok(()) } else { Err(self.gone(operation)) }
    }

    /// What a call gets that comes too late.
    pub(crate) fn gone(&self, operation: &'static str) -> Error {
        let how = self.how.get().copied().unwrap_or(Departure::Off);
        Error::Gone { name: self.backend.name().to_owned(), operation, how }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        let Some(watcher) = self.watcher.take().filter(|_| self.process == std::process::id()) else {
            return;
        };
        raise(&self.closed);
        // of a card that went, that thread may be the last user itself
        if watcher.thread().id() != std::thread::current().id() && watcher.join().is_err() {
            tracing::error!(name = self.backend.name(), "the thread that watches the card has panicked");
        }
    }
}
