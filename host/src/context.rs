//! An open and started card: what everything else is made from.
//!
//! ```text
//! Device (recognised) > reset > bus master > command queue > MSI-X > EQ 0 > Context > PDs, CQs, channels, events
//! ```
//!
//! In: a card and [`Options`]. Out: object numbers, doorbells, commands for the objects made here. Children hold the
//! context open; closing it (the last child gone, or [`Context::close`]) stops bus mastering and resets the card
//! before any memory is given back. Page 0 of the doorbells is the driver's own, and each user of the context has one:
//! the card takes a doorbell for a queue from the page of its user alone.

use crate::backend::{Backend, Bar};
use crate::command::{Arguments, Commands};
use crate::cq::{Cq, CqShared};
use crate::device::{Attributes, Device, DeviceAddress, PortAttributes};
use crate::dma::{DmaBuffer, DmaSpace};
use crate::event::{AsyncNotice, CompChannel, Events};
use crate::mr::{MrMemory, Pd};
use crate::qp::QpShared;
use crate::ranges::{Ranges, Shares};
use crate::{Error, Gid, Ip, Mac, Neighbours, OwnAddresses, Result, StaticNeighbours, barrier};
use contract::{CommandOpcode, SqDoorbell, doorbell};
use std::collections::HashMap;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

/// Most rows of a port's address table.
pub const MAX_GIDS: usize = 128;

/// How a card is started.
#[derive(Clone)]
pub struct Options {
    /// Longest wait for the response of a command, by the backend's clock.
    pub command_timeout: Duration,
    /// Who has which address.
    pub neighbours: Arc<dyn Neighbours>,
    /// The port's IP address; `None`: what the neighbour table says of its MAC address.
    pub gid: Option<Gid>,
    /// Further addresses of the port, of which each may be in a VLAN.
    pub further: Vec<GidEntry>,
}

/// A row of the port's address table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// The address.
    pub gid: Gid,
    /// The VLAN in which the port has it: 1 to 4094, or 0 for a tag that gives a priority alone; `None`: no tag.
    pub vlan: Option<u16>,
}

impl From<Gid> for GidEntry {
    fn from(gid: Gid) -> GidEntry {
        GidEntry { gid, vlan: None }
    }
}

impl Options {
    /// Ten seconds, and the neighbour table of the environment.
    ///
    /// # Errors
    /// `VERBENA_NEIGHBOURS` is malformed.
    pub fn from_environment() -> Result<Options> {
        let neighbours = Arc::new(StaticNeighbours::from_environment()?);
        Ok(Options { neighbours, ..Options::default() })
    }

    /// The same for a card, with the own addresses that are kept for it.
    ///
    /// # Errors
    /// `VERBENA_NEIGHBOURS` or what is kept is malformed.
    pub fn of_card(address: &DeviceAddress) -> Result<Options> {
        let mut own = OwnAddresses::load()?.of(&address.to_string());
        let first = own.iter().position(|own| own.vlan.is_none()).map(|at| own.remove(at));
        let further = own.iter().map(|own| GidEntry { gid: own.net.address.into(), vlan: own.vlan });
        let gid = first.map(|own| own.net.address.into());
        Ok(Options { gid, further: further.collect(), ..Options::from_environment()? })
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            command_timeout: Duration::from_secs(10),
            neighbours: Arc::new(StaticNeighbours::default()),
            gid: None,
            further: Vec::new(),
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("command_timeout", &self.command_timeout)
            .field("gid", &self.gid)
            .field("further", &self.further)
            .finish_non_exhaustive()
    }
}

/// An open and started card.
#[derive(Clone)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
    pub(crate) user: Arc<User>,
}

/// Who shares the card with others: a doorbell page, given back when nothing uses it any more.
pub(crate) struct User {
    pub(crate) page: u32,
    /// Held by who copies to the page's push buffer, until its doorbell.
    push: Mutex<()>,
    /// `None`: the first user, whose page is never given back.
    inner: Option<Arc<Inner>>,
}

impl User {
    /// The first user, who holds the card.
    pub(crate) fn is_first(&self) -> bool {
        self.inner.is_none()
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if let Some(inner) = &self.inner {
            inner.release(Object::Page, self.page);
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Context").field("name", &self.inner.name()).finish_non_exhaustive()
    }
}

/// Object numbers: each is given out again only after all others were, so that a late reference finds nothing.
#[derive(Debug)]
pub(crate) struct Numbers {
    object: &'static str,
    first: u32,
    used: Vec<bool>,
    next: usize,
}

impl Numbers {
    fn new(object: &'static str, first: u32, limit: u32) -> Numbers {
        Numbers { object, first, used: vec![false; limit.saturating_sub(first) as usize], next: 0 }
    }

    fn take(&mut self) -> Option<u32> {
        let length = self.used.len();
        let index = (0..length).map(|i| (self.next + i) % length).find(|i| !self.used[*i])?;
        self.used[index] = true;
        self.next = index + 1;
        Some(self.first + index as u32)
    }

    fn release(&mut self, number: u32) {
        if let Some(used) = self.used.get_mut((number - self.first) as usize) {
            *used = false;
        }
    }
}

/// Kinds of numbered objects.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Object {
    Pd,
    Mr,
    Cq,
    Eq,
    Qp,
    Page,
}

/// A doorbell that is rung often: by a store, if the backend has its BAR mapped, else by a call.
pub(crate) struct Bell {
    inner: Arc<Inner>,
    offset: u64,
    mapped: Option<NonNull<u64>>,
}

// SAFETY: any thread may store to a mapped BAR while its backend lives, which `inner` keeps
unsafe impl Send for Bell {}

impl Bell {
    pub(crate) fn new(inner: &Arc<Inner>, page: u32, offset: u32) -> Bell {
        let offset = inner.bell(page, offset);
        let mapped = inner.backend().mapped(Bar::Doorbells).and_then(|bar| bar.quadword(offset));
        Bell { inner: inner.clone(), offset, mapped }
    }

    /// Tells the card of what was written to memory before.
    #[inline(always)]
    pub(crate) fn ring(&self, value: u64) -> Result<()> {
        if let Some(mapped) = self.mapped() {
            mapped.ring(value);
            return Ok(());
        }
        barrier::before_doorbell();
        self.inner.ring(self.offset, value)
    }

    /// The doorbell as memory.
    #[inline(always)]
    pub(crate) fn mapped(&self) -> Option<MappedBell<'_>> {
        self.mapped.map(|place| MappedBell { place, bell: PhantomData })
    }
}

/// A doorbell in a mapped BAR.
#[derive(Clone, Copy)]
pub(crate) struct MappedBell<'a> {
    place: NonNull<u64>,
    bell: PhantomData<&'a Bell>,
}

impl MappedBell<'_> {
    /// As [`Bell::ring`].
    #[inline(always)]
    pub(crate) fn ring(self, value: u64) {
        barrier::before_doorbell();
        // SAFETY: an aligned quadword of a BAR that stays mapped while the bell keeps the backend
        unsafe { self.place.write_volatile(value.to_le()) };
    }
}

pub(crate) struct Inner {
    pub(crate) device: Device,
    /// Bytes of a doorbell page.
    doorbell_stride: u64,
    pub(crate) space: Arc<DmaSpace>,
    pub(crate) commands: Commands,
    pub(crate) events: Events,
    pub(crate) port: PortAttributes,
    pub(crate) gids: Vec<GidEntry>,
    pub(crate) neighbours: Arc<dyn Neighbours>,
    /// Who asks the network for whom the table does not know.
    pub(crate) ip: Mutex<Weak<Ip>>,
    numbers: Mutex<[Numbers; 6]>,
    /// The card's memory of READs outstanding.
    pub(crate) reads: Ranges,
    /// The card's memory of READs owed to peers.
    pub(crate) responses: Ranges,
    /// The card's outstanding records.
    pub(crate) records: Shares,
    /// How often each MR index was used: the tag of its next key.
    pub(crate) mr_uses: Mutex<HashMap<u32, u8>>,
    pub(crate) qps: Mutex<HashMap<u32, Weak<QpShared>>>,
    pub(crate) cqs: Mutex<HashMap<u32, Weak<CqShared>>>,
    /// Memory that the card may reach, whether or not anybody still holds its `Mr`.
    pub(crate) mrs: Mutex<HashMap<u32, Arc<MrMemory>>>,
    /// Rings of objects whose destruction failed: the card may still reach them.
    graveyard: Mutex<Vec<Arc<DmaBuffer>>>,
    /// What a card that is gone owed is seen to.
    parted: Mutex<bool>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Inner {
    pub(crate) fn name(&self) -> &str {
        self.device.name()
    }

    pub(crate) fn backend(&self) -> &dyn Backend {
        &*self.space.backend
    }

    pub(crate) fn attributes(&self) -> &Attributes {
        self.device.attributes()
    }

    /// Refuses a forked child, a closed context and a card that is gone; whoever finds that first sees to what waits for it.
    /// The caller holds no lock.
    #[inline]
    pub(crate) fn check(&self, operation: &'static str) -> Result<()> {
        let checked = self.space.check(operation);
        if let Err(Error::Gone { .. }) = checked {
            self.part();
        }
        checked
    }

    /// The card is gone: it is let go of, whatever is outstanding is flushed, whoever waits is woken. Once.
    #[cold]
    pub(crate) fn part(&self) {
        let mut parted = lock(&self.parted);
        if std::mem::replace(&mut *parted, true) {
            return;
        }
        // before anything is flushed: its memory is the program's again then
        self.backend().release();
        let qps: Vec<_> = lock(&self.qps).values().filter_map(Weak::upgrade).collect();
        qps.iter().for_each(|qp| qp.abandon());
        self.events.end();
    }

    pub(crate) fn take(&self, kind: Object) -> Result<u32> {
        let numbers = &mut lock(&self.numbers)[kind as usize];
        let limit = numbers.used.len() as u32;
        let (object, name) = (numbers.object, self.name());
        numbers.take().ok_or_else(|| Error::Exhausted { name: name.to_owned(), object, limit })
    }

    pub(crate) fn release(&self, kind: Object, number: u32) {
        lock(&self.numbers)[kind as usize].release(number);
    }

    /// The MAC address of a GID: by the table, else by the network if anybody asks it.
    pub(crate) fn mac_of(&self, gid: Gid) -> Result<Mac> {
        if let Some(mac) = self.neighbours.mac_of(gid) {
            return Ok(mac);
        }
        let ip = lock(&self.ip).upgrade();
        ip.map_or(Err(Error::NoNeighbour { gid }), |ip| ip.mac_of(gid))
    }

    /// Where a doorbell of a page is, in its BAR.
    fn bell(&self, page: u32, offset: u32) -> u64 {
        u64::from(page) * self.doorbell_stride + u64::from(offset)
    }

    /// Rings a doorbell.
    pub(crate) fn doorbell(&self, page: u32, offset: u32, value: [u8; 8]) -> Result<()> {
        self.ring(self.bell(page, offset), u64::from_le_bytes(value))
    }

    fn ring(&self, bell: u64, value: u64) -> Result<()> {
        let rung = self.backend().write64(Bar::Doorbells, bell, value);
        rung.map_err(|source| self.failed("ring a doorbell", source))
    }

    #[cold]
    fn failed(&self, operation: &str, source: std::io::Error) -> Error {
        Error::Backend { name: self.name().to_owned(), operation: operation.to_owned(), source }
    }

    /// Copies a WQE, which stands in its ring, to the push buffer too and rings; false, and nothing done, while somebody
    /// else does so.
    pub(crate) fn push(&self, user: &User, wqe: &[u8], bell: SqDoorbell) -> Result<bool> {
        let Ok(_turn) = user.push.try_lock() else { return Ok(false) };
        let buffer = self.bell(user.page, doorbell::PUSH_OFFSET);
        let copied = self.backend().copy(Bar::Doorbells, buffer, wqe);
        copied.map_err(|source| self.failed("push a work request", source))?;
        barrier::after_push();
        self.doorbell(user.page, doorbell::SQ_OFFSET, bell.pack())?;
        Ok(true)
    }

    /// Executes a command without context words; after a failure the rings stay until the context closes. True: the
    /// object is gone.
    pub(crate) fn destroy(&self, opcode: CommandOpcode, number: u32, rings: &[&Arc<DmaBuffer>]) -> bool {
        if self.space.guard.is_child() {
            return false;
        }
        if !self.space.guard.is_open() {
            return true;
        }
        match self.commands.execute(opcode, number, &Arguments::default()) {
            Ok(_) => true,
            Err(error) => {
                tracing::error!(%error, "the object and its memory stay until the context closes");
                lock(&self.graveyard).extend(rings.iter().map(|ring| Arc::clone(ring)));
                false
            }
        }
    }

    fn close(&self) -> Result<()> {
        if self.space.guard.is_child() {
            return Err(Error::Forked { operation: "close the context" });
        }
        let gone = self.space.guard.is_gone();
        if gone {
            self.part();
        }
        if !self.space.guard.close() {
            return Ok(());
        }
        // no DMA after this: bus mastering ends first, so memory may go even if the reset is refused
        let reset = if gone { Ok(()) } else { self.device.reset(false) };
        if let Err(error) = if gone { Ok(()) } else { self.backend().set_irqs(&[]) } {
            tracing::debug!(%error, "interrupts could not be disconnected");
        }
        lock(&self.mrs).clear();
        lock(&self.graveyard).clear();
        reset
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if !self.space.guard.is_child()
            && let Err(error) = self.close()
        {
            tracing::warn!(%error, "the card could not be reset on closing");
        }
    }
}

impl Context {
    /// Opens and starts the card at `address` with the options of the environment and the addresses kept for it.
    ///
    /// # Errors
    /// As [`Device::open`] and [`Context::start`].
    pub fn open(address: &DeviceAddress) -> Result<Context> {
        Context::start(Device::open(address)?, &Options::of_card(address)?)
    }

    /// Resets and starts a card.
    ///
    /// # Errors
    /// The card did not take the reset, its command queue or its first event queue.
    pub fn start(device: Device, options: &Options) -> Result<Context> {
        device.reset(true)?;
        let attributes = device.attributes().clone();
        let port = device.port()?;
        let space = Arc::new(DmaSpace::new(&device, attributes.max_cq, attributes.max_qp)?);
        let commands = Commands::start(&space, options.command_timeout)?;
        let events = Events::start(&space, &commands, &attributes)?;
        let known = options.gid.or_else(|| options.neighbours.gid_of(port.mac));
        let gids = known.into_iter().chain([Gid::link_local(port.mac)]).map(GidEntry::from);
        let gids: Vec<GidEntry> = gids.chain(options.further.iter().copied()).collect();
        let range = |what, value: u64, allowed: &str| Error::Range {
            operation: "start a card",
            what,
            value,
            allowed: allowed.to_owned(),
        };
        if gids.len() > MAX_GIDS {
            return Err(range("number of GIDs", gids.len() as u64, "up to 128"));
        }
        if let Some(vlan) = gids.iter().filter_map(|entry| entry.vlan).find(|vlan| *vlan > 4094) {
            return Err(range("VLAN of a GID", vlan.into(), "0..=4094"));
        }
        let numbers = [
            // PD 0 is nobody's: a zeroed context matches no PD in use
            Numbers::new("protection domain", 1, 1 << 24),
            Numbers::new("memory region", 0, attributes.max_mr),
            Numbers::new("CQ", 0, attributes.max_cq),
            Numbers::new("completion channel", 1, attributes.max_eq.min(attributes.msix_vectors)),
            // QP 0 and 1 are the management QPs of the standard
            Numbers::new("QP", 2.min(attributes.max_qp - 1), attributes.max_qp),
            // page 0 is the driver's own, page 1 the first user's
            Numbers::new("doorbell page", 2, attributes.doorbell_pages),
        ];
        let page = u32::from(attributes.doorbell_pages > 1);
        let inner = Inner {
            neighbours: options.neighbours.clone(),
            ip: Mutex::default(),
            numbers: Mutex::new(numbers),
            reads: Ranges::new("a place for READs outstanding", attributes.read_count),
            responses: Ranges::new("a place for READs owed to peers", attributes.response_count),
            records: Shares::new("an outstanding record", attributes.record_count, attributes.max_qp),
            mr_uses: Mutex::default(),
            qps: Mutex::default(),
            cqs: Mutex::default(),
            mrs: Mutex::default(),
            graveyard: Mutex::default(),
            parted: Mutex::default(),
            doorbell_stride: attributes.doorbell_stride.into(),
            device,
            space,
            commands,
            events,
            port,
            gids,
        };
        inner.events.arm(&inner)?;
        let inner = Arc::new(inner);
        inner.device.presence.attend(&inner);
        Ok(Context { inner, user: Arc::new(User { page, push: Mutex::default(), inner: None }) })
    }

    /// The same card for another user, who has a doorbell page of its own: none of them can ring for what another made.
    ///
    /// # Errors
    /// Forked child, closed context, or all pages are in use.
    pub fn another_user(&self) -> Result<Context> {
        self.inner.check("make another user of a context")?;
        let page = self.inner.take(Object::Page)?;
        let user = Arc::new(User { page, push: Mutex::default(), inner: Some(self.inner.clone()) });
        Ok(Context { inner: self.inner.clone(), user })
    }

    /// The doorbell page of this user.
    pub fn doorbell_page(&self) -> u32 {
        self.user.page
    }

    /// The card behind this context: limits, live port, counters.
    pub fn device(&self) -> &Device {
        &self.inner.device
    }

    /// What the card says of itself.
    pub fn attributes(&self) -> &Attributes {
        self.inner.attributes()
    }

    /// The GIDs of the port. Index 0 is its IP address when one is known, then the link-local address, then those of
    /// [`Options::further`].
    pub fn gids(&self) -> Vec<Gid> {
        self.inner.gids.iter().map(|entry| entry.gid).collect()
    }

    /// Makes a protection domain.
    ///
    /// # Errors
    /// Forked child, closed context.
    pub fn alloc_pd(&self) -> Result<Pd> {
        Pd::new(&self.inner, &self.user)
    }

    /// Makes a completion channel: an event queue with an interrupt vector of its own.
    ///
    /// # Errors
    /// All are in use, or the card refused.
    pub fn create_comp_channel(&self) -> Result<CompChannel> {
        CompChannel::new(&self.inner)
    }

    /// Makes a CQ for at least `entries` unpolled completions; with a channel its events go there.
    ///
    /// # Errors
    /// 0 or more than [`Attributes::MAX_CQE`] entries, all CQs in use, a channel of another context, or the card
    /// refused.
    pub fn create_cq(&self, entries: u32, channel: Option<&CompChannel>) -> Result<Cq> {
        Cq::new(&self.inner, &self.user, entries, channel)
    }

    /// The next asynchronous event, waiting up to `timeout` (`None`: for ever). Events of QPs in error also put those
    /// QPs into the error state.
    ///
    /// # Errors
    /// Forked child, closed context, or waiting failed.
    pub fn async_event(&self, timeout: Option<Duration>) -> Result<Option<AsyncNotice>> {
        self.inner.async_event(timeout)
    }

    /// Whether the card is still there, as far as the driver knows: what a flushed work request was flushed for.
    ///
    /// # Errors
    /// The card is gone, forked child, closed context.
    pub fn check(&self) -> Result<()> {
        self.inner.check("ask for the card")
    }

    /// Gives way between the caller's own polls; `turn` counts them from 0 (see [`Backend::relax`]).
    pub fn relax(&self, turn: u32) {
        self.inner.backend().relax(turn);
    }

    /// The clock of this context's waits (see [`Backend::now`]).
    pub fn now(&self) -> Duration {
        self.inner.backend().now()
    }

    /// Resets the card, if it is still there, and releases all memory now; whatever still refers to this context gets
    /// [`Error::Closed`].
    ///
    /// # Errors
    /// The card could not be reset.
    pub fn close(self) -> Result<()> {
        self.inner.close()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_comes_back_only_after_all_others() {
        let mut numbers = Numbers::new("QP", 2, 6);
        assert_eq!([numbers.take(), numbers.take()], [Some(2), Some(3)]);
        numbers.release(2);
        assert_eq!([numbers.take(), numbers.take(), numbers.take()], [Some(4), Some(5), Some(2)]);
        assert_eq!(numbers.take(), None);
    }
}
