//! A software card: registers, commands, doorbells and rings as the contract has them, in plain Rust, so that the
//! driver is tested whole and against something that was not made from it.
//!
//! ```text
//! driver > SoftwareCard (Backend, same process)   \
//! driver > vfio-user socket > Served (a thread)    > World: cards joined by a perfect wire > CQEs, EQEs, eventfds
//! ```
//!
//! In: BAR accesses and DMA mappings. Out: memory writes and interrupts, done before the doorbell's write returns.
//! Reliable connections with SEND and WRITE. It never waits, never uses a clock, and lists every DMA access that no
//! mapping allows.
#![allow(dead_code)]

use contract::register as reg;
use contract::ring::phase;
use contract::verbs::access;
use contract::{
    AsyncEvent, CommandEntry, CommandOpcode, CommandResponse, CommandStatus, CqDoorbell, CqEntry, Cqe,
    EqDoorbell, EqEntry, Eqe, EventKind, MrEntry, QpContext, QpState, Reject, SendWqe, Sge, SqDoorbell,
    StageCounter, Transport, WcOpcode, WcStatus, WrOpcode, doorbell,
};
use host::{Backend, Bar, Context, Device, MappedBar, Memory, Options};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Memory behind an IO address.
enum Mapping {
    Pointer(*mut u8),
    File(File, u64),
}

// SAFETY: the pointer is only used for copies while the mapping stands, as `Backend::map` demands
unsafe impl Send for Mapping {}

#[derive(Default)]
struct Qp {
    context: QpContext,
    sq_producer: u16,
    sq_consumer: u16,
    rq_producer: u16,
    rq_consumer: u16,
    halted: bool,
}

struct Cq {
    entry: CqEntry,
    producer: u32,
    consumer: u32,
    arm: u8,
    /// Entries of which an event that is held back will tell. There is no clock, so no time either.
    held: u32,
}

struct Eq {
    entry: EqEntry,
    producer: u32,
    consumer: u32,
    armed: bool,
}

/// One card.
pub struct Card {
    pub mac: u64,
    pub port_mtu: u32,
    pub magic: u32,
    pub features: u32,
    pub version: u32,
    pub layout_hash: u64,
    pub link_up: bool,
    /// The register whose reads fail.
    pub unreadable: Option<u32>,
    /// Off the bus: every read gives ones, every write goes nowhere.
    pub gone: bool,
    pub max_qp: u32,
    /// Made readable when the system wants the card back.
    pub request: Option<File>,
    /// Commands are read but never answered.
    pub mute: bool,
    /// DMA accesses that no mapping allows.
    pub faults: Vec<String>,
    /// Refuse the next DMA map over the socket.
    pub refuse_map: bool,
    pub doorbells: u64,
    /// Doorbells whose WQE was pushed as it stands in its ring.
    pub pushed: u64,
    push_buffer: [u8; doorbell::PUSH_BYTES as usize],
    /// What stands behind the registers of the flash: they, the offset written and the value.
    pub flash: Option<FlashRegisters>,
    config: Vec<u8>,
    registers: BTreeMap<u32, u64>,
    command_consumer: u32,
    maps: BTreeMap<u64, (u64, Mapping)>,
    irqs: Vec<File>,
    rejects: BTreeMap<u8, u64>,
    counters: BTreeMap<u8, u64>,
    qps: BTreeMap<u32, Qp>,
    mrs: BTreeMap<u32, MrEntry>,
    cqs: BTreeMap<u32, Cq>,
    eqs: BTreeMap<u32, Eq>,
}

/// See [`Card::flash`].
pub type FlashRegisters = Box<dyn FnMut(&mut BTreeMap<u32, u64>, u32, u64) + Send>;

const MAX_MR: u32 = 256;
const MAX_CQ: u32 = 64;
const MAX_EQ: u32 = 8;
const VECTORS: u32 = 16;
const STRIDE: u64 = 4096;
const PAGES: u64 = 64;
const RECORDS: u32 = 2048;

/// Cards on one perfect wire.
pub struct World {
    cards: Mutex<Vec<Card>>,
}

/// The in-process way to one card.
pub struct SoftwareCard {
    world: Arc<World>,
    index: usize,
    name: String,
    /// The doorbells as mapped memory: what is stored there reaches the card by [`SoftwareCard::deliver`].
    mapped: Option<Box<[AtomicU64]>>,
    /// How often the driver has looked at the clock.
    pub looks: AtomicU64,
    /// The driver has let go of it.
    pub released: AtomicBool,
}

impl SoftwareCard {
    /// Whether this way leads to nobody.
    fn is_away(&self, card: &Card) -> bool {
        card.gone || self.released.load(Ordering::SeqCst)
    }

    fn write(&self, bar: Bar, offset: u64, value: u64) {
        if !self.released.load(Ordering::SeqCst) {
            self.world.write(self.index, bar, offset, value);
        }
    }

    /// Takes what was stored to the mapped doorbells: offsets and values.
    pub fn stored(&self) -> Vec<(u64, u64)> {
        let stores = self.mapped.iter().flatten().enumerate();
        let stores = stores.map(|(i, value)| (8 * i as u64, value.swap(0, Ordering::SeqCst)));
        stores.filter(|(_, value)| *value != 0).collect()
    }

    /// What was stored to the mapped doorbells reaches the card.
    pub fn deliver(&self) {
        let stored = self.stored();
        stored
            .iter()
            .for_each(|(offset, value)| self.world.write(self.index, Bar::Doorbells, *offset, *value));
    }
}

impl World {
    /// Cards with MAC addresses 02:00:00:00:00:0a, :0b and so on.
    pub fn new(count: u64) -> Arc<World> {
        let cards = (0..count).map(|i| Card::new(0x0200_0000_000a + i)).collect();
        Arc::new(World { cards: Mutex::new(cards) })
    }

    /// The way to card `index`.
    pub fn backend(self: &Arc<Self>, index: usize) -> Arc<SoftwareCard> {
        Arc::new(self.way(index, None))
    }

    /// The way to card `index` with a BAR of doorbells that the driver has mapped.
    pub fn mapped(self: &Arc<Self>, index: usize) -> Arc<SoftwareCard> {
        let quadwords = PAGES * STRIDE / 8;
        Arc::new(self.way(index, Some((0..quadwords).map(|_| AtomicU64::new(0)).collect())))
    }

    fn way(self: &Arc<Self>, index: usize, mapped: Option<Box<[AtomicU64]>>) -> SoftwareCard {
        SoftwareCard {
            world: self.clone(),
            index,
            name: format!("soft:card{index}"),
            mapped,
            looks: AtomicU64::new(0),
            released: AtomicBool::new(false),
        }
    }

    /// Card `index`, opened and started.
    pub fn open(self: &Arc<Self>, index: usize) -> Context {
        let device = Device::new(self.backend(index)).expect("the card is ours");
        Context::start(device, &Options::default()).expect("the card starts")
    }

    pub fn cards(&self) -> MutexGuard<'_, Vec<Card>> {
        self.cards.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// No card ever reached memory that was not mapped for it.
    pub fn assert_no_faults(&self) {
        for (i, card) in self.cards().iter().enumerate() {
            assert!(card.faults.is_empty(), "card {i}: {:?}", card.faults);
        }
    }
}

/// What became of a send work request.
enum Outcome {
    Done,
    /// The receiver has no work request yet.
    Wait,
    Failed(WcStatus, Option<Reject>),
}

impl Card {
    fn new(mac: u64) -> Card {
        let mut config = vec![0; 4096];
        config[..4].copy_from_slice(&[0xe7, 0x1e, 0x01, 0x00]);
        Card {
            mac,
            port_mtu: 4200,
            magic: reg::MAGIC_VALUE,
            features: reg::feature::RC
                | reg::feature::READ
                | reg::feature::INLINE
                | reg::feature::INVALIDATE
                | reg::feature::MODERATION,
            version: reg::VERSION_VALUE,
            layout_hash: contract::LAYOUT_HASH,
            link_up: true,
            unreadable: None,
            gone: false,
            request: None,
            max_qp: 64,
            mute: false,
            faults: Vec::new(),
            refuse_map: false,
            doorbells: 0,
            pushed: 0,
            push_buffer: [0; doorbell::PUSH_BYTES as usize],
            flash: None,
            config,
            registers: BTreeMap::new(),
            command_consumer: 0,
            maps: BTreeMap::new(),
            irqs: Vec::new(),
            rejects: BTreeMap::new(),
            counters: BTreeMap::new(),
            qps: BTreeMap::new(),
            mrs: BTreeMap::new(),
            cqs: BTreeMap::new(),
            eqs: BTreeMap::new(),
        }
    }

    /// IO addresses that are mapped now.
    pub fn mapped_bytes(&self) -> u64 {
        self.maps.values().map(|(length, _)| length).sum()
    }

    /// The system wants the card back.
    pub fn want_back(&mut self) {
        let request = self.request.as_mut().expect("the driver listens to the request");
        request.write_all(&1u64.to_ne_bytes()).expect("an eventfd");
    }

    /// Objects that exist: QPs, MRs, CQs, EQs.
    pub fn objects(&self) -> [usize; 4] {
        [self.qps.len(), self.mrs.len(), self.cqs.len(), self.eqs.len()]
    }

    /// The queues of a QP as the driver wrote them.
    pub fn qp_context(&self, qpn: u32) -> Option<QpContext> {
        self.qps.get(&qpn).map(|qp| qp.context)
    }

    fn flr(&mut self) {
        self.registers.clear();
        self.command_consumer = 0;
        self.rejects.clear();
        self.counters.clear();
        self.qps.clear();
        self.mrs.clear();
        self.cqs.clear();
        self.eqs.clear();
        self.config[4..6].fill(0);
    }

    fn reject(&mut self, reject: Reject) {
        *self.rejects.entry(reject.code()).or_default() += 1;
    }

    fn count(&mut self, counter: StageCounter) {
        *self.counters.entry(counter.code()).or_default() += 1;
    }

    fn read_register(&self, offset: u32) -> u64 {
        let index = |base: u32| ((offset - base) / 8) as u8;
        match offset {
            reg::MAGIC => self.magic.into(),
            reg::VERSION => self.version.into(),
            reg::LAYOUT_HASH => self.layout_hash,
            reg::FEATURES => self.features.into(),
            reg::DATAPATH_BYTES => 8,
            reg::CORE_CLOCK_KHZ => 250_000,
            reg::TICKS_PER_4096NS => 1024,
            reg::MAX_QP => self.max_qp.into(),
            reg::MAX_MR => MAX_MR.into(),
            reg::MAX_CQ => MAX_CQ.into(),
            reg::MAX_EQ => MAX_EQ.into(),
            reg::MSIX_VECTORS => VECTORS.into(),
            reg::DOORBELL_STRIDE => STRIDE,
            reg::DOORBELL_PAGES => PAGES,
            reg::MAX_SGE => 8,
            reg::MAX_SEND_SGE => 16,
            reg::MAX_INLINE => 64,
            reg::RECORD_COUNT => RECORDS.into(),
            reg::READ_COUNT | reg::RESPONSE_COUNT => 256,
            reg::MAX_MESSAGE => 24,
            reg::READ_TAGS => 32,
            reg::COMMAND_CONSUMER => self.command_consumer.into(),
            reg::PORT_MAC => self.mac,
            reg::PORT_MTU => self.port_mtu.into(),
            reg::PORT_STATUS if self.link_up => reg::PORT_LINK_UP.into(),
            reg::PORT_STATUS => 0,
            reg::STATUS => reg::STATUS_QUIET.into(),
            reg::REJECT_COUNTERS..reg::STAGE_COUNTERS => {
                *self.rejects.get(&index(reg::REJECT_COUNTERS)).unwrap_or(&0)
            }
            reg::STAGE_COUNTERS.. => *self.counters.get(&index(reg::STAGE_COUNTERS)).unwrap_or(&0),
            _ => *self.registers.get(&offset).unwrap_or(&0),
        }
    }

    fn at(&mut self, iova: u64, length: usize, what: &str) -> Option<(&Mapping, u64)> {
        let master = self.config[4] & 4 != 0;
        let found = self.maps.range(..=iova).next_back().map(|(start, (size, _))| (*start, *size));
        match found.filter(|(start, size)| master && iova + length as u64 <= start + size) {
            Some((start, _)) => self.maps.get(&start).map(|(_, mapping)| (mapping, iova - start)),
            None => {
                let master = if master { "" } else { " (no bus master)" };
                self.faults.push(format!("{what} {length} bytes at {iova:#x}{master}"));
                None
            }
        }
    }

    fn dma_read(&mut self, iova: u64, bytes: &mut [u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        match self.at(iova, bytes.len(), "read") {
            Some((Mapping::Pointer(base), offset)) => {
                // SAFETY: within a range that the driver promised to keep mapped
                unsafe {
                    std::ptr::copy(base.add(offset as usize).cast_const(), bytes.as_mut_ptr(), bytes.len());
                }
                true
            }
            Some((Mapping::File(file, base), offset)) => file.read_exact_at(bytes, base + offset).is_ok(),
            None => false,
        }
    }

    fn dma_write(&mut self, iova: u64, bytes: &[u8]) -> bool {
        if bytes.is_empty() {
            return true;
        }
        match self.at(iova, bytes.len(), "write") {
            Some((Mapping::Pointer(base), offset)) => {
                // SAFETY: within a range that the driver promised to keep mapped
                unsafe { std::ptr::copy(bytes.as_ptr(), base.add(offset as usize), bytes.len()) };
                true
            }
            Some((Mapping::File(file, base), offset)) => file.write_all_at(bytes, base + offset).is_ok(),
            None => false,
        }
    }

    /// A ring entry: its last byte, which holds the phase, is written after the others.
    fn write_entry(&mut self, iova: u64, bytes: &[u8]) {
        let last = bytes.len() - 1;
        self.dma_write(iova, &bytes[..last]);
        std::sync::atomic::fence(std::sync::atomic::Ordering::Release);
        self.dma_write(iova + last as u64, &bytes[last..]);
    }

    fn event(&mut self, eqn: u32, kind: EventKind, event: u8, object: u32) {
        let Some(eq) = self.eqs.get_mut(&eqn) else { return };
        let depth = u32::from(eq.entry.log_depth);
        if eq.producer.wrapping_sub(eq.consumer) & 0xff_ffff >= 1u32 << depth {
            return self.reject(Reject::EqOverflow);
        }
        let at = eq.entry.base + u64::from(eq.producer & ((1u32 << depth) - 1)) * 16;
        let entry = Eqe { kind: kind.code(), event, object, data: 0, phase: phase(eq.producer, depth) };
        eq.producer = eq.producer.wrapping_add(1);
        let vector = std::mem::take(&mut eq.armed).then_some(eq.entry.vector);
        self.write_entry(at, &entry.pack());
        self.count(StageCounter::Eqes);
        if let Some(vector) = vector {
            self.raise(vector);
        }
    }

    fn raise(&mut self, vector: u16) {
        if let Some(irq) = self.irqs.get(usize::from(vector)) {
            let _ = io::Write::write(&mut &*irq, &1u64.to_ne_bytes());
            self.count(StageCounter::MsixSent);
        }
    }

    fn complete(&mut self, cqn: u32, cqe: Cqe) {
        let Some(cq) = self.cqs.get_mut(&cqn) else { return self.reject(Reject::CqUnknown) };
        let (depth, eqn) = (u32::from(cq.entry.log_depth), u32::from(cq.entry.eqn));
        if cq.producer.wrapping_sub(cq.consumer) & 0xff_ffff >= 1u32 << depth {
            self.reject(Reject::CqOverflow);
            return self.event(eqn, EventKind::CqOverflow, 0, cqn);
        }
        let at = cq.entry.base + u64::from(cq.producer & ((1u32 << depth) - 1)) * 64;
        let cqe = Cqe { phase: phase(cq.producer, depth), ..cqe };
        cq.producer = cq.producer.wrapping_add(1);
        let fires = match cq.arm {
            doorbell::ARM_ANY => true,
            doorbell::ARM_SOLICITED => cqe.solicited || cqe.status != 0,
            _ => false,
        };
        cq.held += u32::from(fires);
        let fires = fires && cq.held >= u32::from(cq.entry.moderation_count);
        if fires {
            (cq.arm, cq.held) = (doorbell::ARM_NONE, 0);
        }
        self.write_entry(at, &cqe.pack());
        self.count(StageCounter::Cqes);
        if fires {
            self.event(eqn, EventKind::Completion, 0, cqn);
        }
    }

    fn run_commands(&mut self) {
        let get = |card: &Card, register| *card.registers.get(&register).unwrap_or(&0);
        if get(self, reg::COMMAND_ENABLE) & 1 == 0 {
            return;
        }
        let depth = get(self, reg::COMMAND_LOG_DEPTH) as u32;
        while self.command_consumer & 0xffff != get(self, reg::COMMAND_PRODUCER) as u32 && !self.mute {
            let index = self.command_consumer;
            let offset = u64::from(index & ((1 << depth) - 1)) * 256;
            let mut bytes = [0; 256];
            self.dma_read(get(self, reg::COMMAND_BASE) + offset, &mut bytes);
            let entry = CommandEntry::unpack(&bytes);
            let (status, data) = match self.command(&entry) {
                Ok(data) => (CommandStatus::Ok, data),
                Err(status) => (status, [0; 16]),
            };
            let response = CommandResponse {
                status: status.code(),
                opcode: entry.opcode,
                sequence: entry.sequence,
                phase: phase(index, depth),
                ..CommandResponse::default()
            };
            self.command_consumer = index.wrapping_add(1);
            self.write_entry(get(self, reg::RESPONSE_BASE) + offset, &response.with_data(&data).pack());
        }
    }

    fn command(&mut self, entry: &CommandEntry) -> Result<[u64; 16], CommandStatus> {
        use CommandStatus as S;
        let opcode = CommandOpcode::from_code(entry.opcode).ok_or(S::BadOpcode)?;
        let (index, data) = (entry.index, entry.data());
        let bytes: Vec<u8> = data.iter().flat_map(|word| word.to_le_bytes()).collect();
        let below = |limit| if index < limit { Ok(()) } else { Err(S::BadIndex) };
        let free = |used| if used { Err(S::InUse) } else { Ok(()) };
        match opcode {
            CommandOpcode::Nop => {}
            CommandOpcode::CreateEq => {
                below(MAX_EQ)?;
                free(self.eqs.contains_key(&index))?;
                let entry = EqEntry::read(&bytes).ok_or(S::BadParameter)?;
                if !entry.valid || u32::from(entry.vector) >= VECTORS {
                    return Err(S::BadParameter);
                }
                self.eqs.insert(index, Eq { entry, producer: 0, consumer: 0, armed: false });
            }
            CommandOpcode::DestroyEq => {
                free(self.cqs.values().any(|cq| u32::from(cq.entry.eqn) == index))?;
                self.eqs.remove(&index).ok_or(S::NotFound)?;
            }
            CommandOpcode::CreateCq => {
                below(MAX_CQ)?;
                free(self.cqs.contains_key(&index))?;
                let entry = CqEntry::read(&bytes).ok_or(S::BadParameter)?;
                if !entry.valid || !self.eqs.contains_key(&entry.eqn.into()) || entry.page == 0 {
                    return Err(S::BadParameter);
                }
                self.cqs.insert(index, Cq { entry, producer: 0, consumer: 0, arm: 0, held: 0 });
            }
            CommandOpcode::ModifyCq => {
                let cq = self.cqs.get_mut(&index).ok_or(S::NotFound)?;
                let new = CqEntry::read(&bytes).ok_or(S::BadParameter)?;
                if entry.word_mask != 4 {
                    return Err(S::BadParameter);
                }
                cq.entry.moderation_count = new.moderation_count;
                cq.entry.moderation_period = new.moderation_period;
            }
            CommandOpcode::DestroyCq => {
                let uses =
                    |qp: &Qp| [qp.context.queues.send_cqn, qp.context.queues.recv_cqn].contains(&index);
                free(self.qps.values().any(uses))?;
                self.cqs.remove(&index).ok_or(S::NotFound)?;
            }
            CommandOpcode::CreateMr => {
                below(MAX_MR)?;
                free(self.mrs.contains_key(&index))?;
                self.mrs.insert(index, MrEntry::read(&bytes).ok_or(S::BadParameter)?);
            }
            CommandOpcode::DestroyMr => {
                self.mrs.remove(&index).ok_or(S::NotFound)?;
            }
            CommandOpcode::CreateQp => {
                below(self.max_qp)?;
                free(self.qps.contains_key(&index))?;
                let context = QpContext::from_words(&data);
                let queues = &context.queues;
                let records = u32::from(queues.record_base) + (1 << queues.record_log_size);
                let cqs = [queues.send_cqn, queues.recv_cqn].iter().all(|cqn| self.cqs.contains_key(cqn));
                if entry.word_mask != 0xffff || !context.rights.valid || !cqs || records > RECORDS {
                    return Err(S::BadParameter);
                }
                self.qps.insert(index, Qp { context, ..Qp::default() });
            }
            CommandOpcode::ModifyQp => {
                let qp = self.qps.get_mut(&index).ok_or(S::NotFound)?;
                let old = qp.context.to_words();
                let take = |i: usize| if entry.word_mask >> i & 1 == 1 { data[i] } else { old[i] };
                let new = QpContext::from_words(&std::array::from_fn(take));
                let state = |context: &QpContext| QpState::from_code(context.rights.state);
                let (from, to) =
                    (state(&qp.context).ok_or(S::Internal)?, state(&new).ok_or(S::BadParameter)?);
                if !from.may_become(to, Transport::Rc) {
                    return Err(S::BadState);
                }
                // requests are executed as they are posted, so the send queue is drained
                let drained = to == QpState::Sqd && new.rights.drain != qp.context.rights.drain;
                qp.context = new;
                if entry.reset_all {
                    *qp = Qp { context: new, ..Qp::default() };
                }
                if drained {
                    self.event(0, EventKind::Async, AsyncEvent::SqDrained.code(), index);
                }
            }
            CommandOpcode::QueryQp => return Ok(self.qps.get(&index).ok_or(S::NotFound)?.context.to_words()),
            CommandOpcode::DestroyQp => {
                self.qps.remove(&index).ok_or(S::NotFound)?;
            }
            _ => return Err(S::BadOpcode),
        }
        Ok([0; 16])
    }

    /// The region of a key that grants `rights` to `pd`.
    fn region(&self, key: u32, pd: u32, rights: u8) -> Result<&MrEntry, Reject> {
        let mr = self.mrs.get(&(key >> 8)).filter(|mr| mr.valid).ok_or(Reject::RkeyUnknown)?;
        if mr.tag != key as u8 {
            return Err(Reject::RkeyTag);
        }
        if mr.pd != pd {
            return Err(Reject::RkeyPd);
        }
        if mr.access & rights != rights {
            return Err(Reject::RkeyRights);
        }
        Ok(mr)
    }

    /// Ends a key; the region stays until it is destroyed.
    fn end_key(&mut self, key: u32, pd: u32) -> Result<(), Reject> {
        self.region(key, pd, access::INVALIDATE)?;
        if let Some(mr) = self.mrs.get_mut(&(key >> 8)) {
            mr.valid = false;
        }
        Ok(())
    }

    /// The IO address behind a key, if it grants `rights` to `pd` for the range.
    fn translate(&self, key: u32, pd: u32, addr: u64, length: u64, rights: u8) -> Result<u64, Reject> {
        let mr = self.region(key, pd, rights)?;
        let offset = addr.checked_sub(mr.va).ok_or(Reject::RkeyBounds)?;
        if offset.checked_add(length).is_none_or(|end| end > mr.length) {
            return Err(Reject::RkeyBounds);
        }
        Ok(mr.iova + offset)
    }

    /// The payload of a WQE.
    fn gather(&mut self, pd: u32, at: u64, wqe: &SendWqe) -> Result<Vec<u8>, (WcStatus, Reject)> {
        let mut payload = vec![0; wqe.length as usize];
        if wqe.inline {
            self.dma_read(at + 32, &mut payload);
            return Ok(payload);
        }
        let mut done = 0;
        for i in 0..u64::from(wqe.num_sge) {
            let mut bytes = [0; 16];
            self.dma_read(at + 32 + 16 * i, &mut bytes);
            let sge = Sge::unpack(&bytes);
            let iova = self.translate(sge.lkey, pd, sge.addr, sge.length.into(), 0);
            let iova = iova.map_err(|_| (WcStatus::LocProtErr, Reject::SglKey))?;
            let end = done + sge.length as usize;
            let part = payload.get_mut(done..end).ok_or((WcStatus::LocLenErr, Reject::WqeLength))?;
            let mut data = vec![0; part.len()];
            if !self.dma_read(iova, &mut data) {
                return Err((WcStatus::LocProtErr, Reject::GatherFailed));
            }
            payload[done..end].copy_from_slice(&data);
            done = end;
        }
        if done < payload.len() {
            return Err((WcStatus::LocLenErr, Reject::SglTooShort));
        }
        Ok(payload)
    }

    /// Executes a request that arrived for `qpn`.
    fn receive(&mut self, qpn: u32, from: u32, wqe: &SendWqe, payload: &[u8]) -> Outcome {
        let lost = Outcome::Failed(WcStatus::RetryExcErr, None);
        let Some(qp) = self.qps.get(&qpn) else {
            self.reject(Reject::UnknownQp);
            return lost;
        };
        let context = qp.context;
        let receives = QpState::from_code(context.rights.state).is_some_and(QpState::receives);
        if !receives || qp.halted || context.path.dest_qpn != from {
            self.reject(Reject::WrongQpState);
            return lost;
        }
        let pd = context.rights.pd;
        let opcode = WrOpcode::from_code(wqe.opcode);
        if let Some(WrOpcode::RdmaWrite) = opcode {
            if context.rights.access & access::REMOTE_WRITE == 0 {
                return self.refuse(qpn, AsyncEvent::QpReqErr, WcStatus::RemInvReqErr, Reject::AccessDenied);
            }
            if payload.is_empty() {
                return Outcome::Done;
            }
            let length = payload.len() as u64;
            return match self.translate(wqe.rkey, pd, wqe.remote_addr, length, access::REMOTE_WRITE) {
                Ok(iova) => {
                    self.dma_write(iova, payload);
                    Outcome::Done
                }
                Err(reject) => self.refuse(qpn, AsyncEvent::QpAccessErr, WcStatus::RemAccessErr, reject),
            };
        }
        let (index, producer) = (qp.rq_consumer, qp.rq_producer);
        if index == producer {
            self.reject(Reject::ReceiverNotReady);
            return Outcome::Wait;
        }
        let ends = (opcode == Some(WrOpcode::SendWithInv)).then(|| wqe.imm.swap_bytes());
        if let Some(Err(reject)) = ends.map(|key| self.region(key, pd, access::INVALIDATE).map(|_| ())) {
            return self.refuse(qpn, AsyncEvent::QpAccessErr, WcStatus::RemAccessErr, reject);
        }
        let queues = context.queues;
        let slot = u64::from(index) & ((1 << queues.rq_log_depth) - 1);
        let at = queues.rq_base + (slot << queues.rq_log_stride);
        let mut cqe = Cqe {
            wqe_index: index,
            opcode: WcOpcode::Recv.code(),
            qpn,
            byte_len: payload.len() as u32,
            with_imm: opcode == Some(WrOpcode::SendWithImm),
            with_inv: opcode == Some(WrOpcode::SendWithInv),
            imm: wqe.imm,
            solicited: wqe.solicited,
            timestamp: 1,
            ..Cqe::default()
        };
        let mut rest = payload;
        let mut error = None;
        for i in 0..(1u64 << queues.rq_log_stride) / 16 {
            let mut bytes = [0; 16];
            self.dma_read(at + 16 * i, &mut bytes);
            let sge = Sge::unpack(&bytes);
            let take = rest.len().min(sge.length as usize);
            if take == 0 {
                continue;
            }
            match self.translate(sge.lkey, pd, sge.addr, take as u64, access::LOCAL_WRITE) {
                Ok(iova) => {
                    self.dma_write(iova, &rest[..take]);
                    rest = &rest[take..];
                }
                Err(_) => {
                    error = Some((WcStatus::LocProtErr, WcStatus::RemOpErr, Reject::LkeyBad));
                    break;
                }
            }
        }
        if error.is_none() && !rest.is_empty() {
            error = Some((WcStatus::LocLenErr, WcStatus::RemInvReqErr, Reject::ReceiveTooShort));
        }
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.rq_consumer = index.wrapping_add(1);
        }
        match error {
            None => {
                if let Some(Err(reject)) = ends.map(|key| self.end_key(key, pd)) {
                    return self.refuse(qpn, AsyncEvent::QpAccessErr, WcStatus::RemAccessErr, reject);
                }
                self.complete(queues.recv_cqn, cqe);
                Outcome::Done
            }
            Some((local, remote, reject)) => {
                cqe.status = local.code();
                cqe.vendor_err = reject.vendor_err();
                self.complete(queues.recv_cqn, cqe);
                self.refuse(qpn, AsyncEvent::QpReqErr, remote, reject)
            }
        }
    }

    fn refuse(&mut self, qpn: u32, event: AsyncEvent, remote: WcStatus, reject: Reject) -> Outcome {
        self.reject(reject);
        if let Some(qp) = self.qps.get_mut(&qpn) {
            qp.halted = true;
        }
        self.event(0, EventKind::Async, event.code(), qpn);
        Outcome::Failed(remote, Some(reject))
    }

    /// What was pushed is the last WQE of the ring.
    fn check_pushed(&mut self, bell: &SqDoorbell) {
        let queues = self.qps[&bell.qpn].context.queues;
        let slot = u64::from(bell.producer.wrapping_sub(1)) & ((1 << queues.sq_log_depth) - 1);
        let mut ring = vec![0; 1 << queues.sq_log_stride];
        self.dma_read(queues.sq_base + (slot << queues.sq_log_stride), &mut ring);
        let wqe = SendWqe::unpack(ring.first_chunk().expect("a head"));
        let length = 32 + if wqe.inline { wqe.length as usize } else { 16 * usize::from(wqe.num_sge) };
        assert_eq!(ring[..length], self.push_buffer[..length]);
        assert_eq!((wqe.qpn, wqe.index.wrapping_add(1)), (bell.qpn, bell.producer));
        self.pushed += 1;
    }

    fn doorbell(&mut self, offset: u64, value: u64) {
        let (page, bytes) = ((offset / STRIDE) as u16, value.to_le_bytes());
        let stored = (offset % STRIDE).checked_sub(doorbell::PUSH_OFFSET.into());
        if let Some(at) = stored.filter(|at| *at < doorbell::PUSH_BYTES.into()) {
            self.push_buffer[at as usize..][..8].copy_from_slice(&bytes);
            return;
        }
        self.doorbells += 1;
        match (offset % STRIDE) as u32 {
            doorbell::SQ_OFFSET => {
                let value = SqDoorbell::unpack(&bytes);
                if value.pushed {
                    self.check_pushed(&value);
                }
                match self.qps.get_mut(&value.qpn) {
                    Some(qp) if qp.context.rights.page == page => qp.sq_producer = value.producer,
                    Some(_) => self.reject(Reject::DoorbellOwner),
                    None => self.reject(Reject::DoorbellUnknown),
                }
            }
            doorbell::RQ_OFFSET => {
                let value = SqDoorbell::unpack(&bytes);
                match self.qps.get_mut(&value.qpn) {
                    Some(qp) if qp.context.rights.page == page => qp.rq_producer = value.producer,
                    Some(_) => self.reject(Reject::DoorbellOwner),
                    None => self.reject(Reject::DoorbellUnknown),
                }
            }
            doorbell::CQ_OFFSET => {
                let value = CqDoorbell::unpack(&bytes);
                match self.cqs.get_mut(&value.cqn) {
                    Some(cq) if cq.entry.page == page => {
                        cq.consumer = value.consumer;
                        let behind = cq.producer & 0xff_ffff != value.consumer;
                        let eqn = u32::from(cq.entry.eqn);
                        let there = cq.producer.wrapping_sub(value.consumer) & 0xff_ffff;
                        if !behind {
                            cq.held = 0;
                        }
                        if value.arm != doorbell::ARM_NONE {
                            let tells = behind && there >= u32::from(cq.entry.moderation_count);
                            cq.arm = if tells { doorbell::ARM_NONE } else { value.arm };
                            cq.held = if tells { 0 } else { there };
                            if tells {
                                self.event(eqn, EventKind::Completion, 0, value.cqn);
                            }
                        }
                    }
                    Some(_) => self.reject(Reject::DoorbellOwner),
                    None => self.reject(Reject::DoorbellUnknown),
                }
            }
            doorbell::EQ_OFFSET if page == 0 => {
                let value = EqDoorbell::unpack(&bytes);
                match self.eqs.get_mut(&value.eqn) {
                    Some(eq) => {
                        eq.consumer = value.consumer;
                        let behind = eq.producer & 0xff_ffff != value.consumer;
                        eq.armed = (eq.armed || value.arm) && !(value.arm && behind);
                        if value.arm && behind {
                            let vector = eq.entry.vector;
                            self.raise(vector);
                        }
                    }
                    None => self.reject(Reject::DoorbellUnknown),
                }
            }
            _ => self.reject(Reject::DoorbellMalformed),
        }
    }
}

/// Moves everything that can move.
fn progress(cards: &mut [Card]) {
    loop {
        let mut moved = false;
        for index in 0..cards.len() {
            let qpns: Vec<u32> = cards[index].qps.keys().copied().collect();
            for qpn in qpns {
                while step(cards, index, qpn) {
                    moved = true;
                }
            }
        }
        if !moved {
            return;
        }
    }
}

/// One send work request of one QP; false when there is nothing to do or the receiver is not ready.
fn step(cards: &mut [Card], index: usize, qpn: u32) -> bool {
    let card = &mut cards[index];
    let Some(qp) = card.qps.get(&qpn) else { return false };
    let context = qp.context;
    let sends = card.link_up && QpState::from_code(context.rights.state).is_some_and(QpState::sends);
    if !sends || qp.halted || qp.sq_consumer == qp.sq_producer {
        return false;
    }
    let wqe_index = qp.sq_consumer;
    let queues = context.queues;
    let slot = u64::from(wqe_index) & ((1 << queues.sq_log_depth) - 1);
    let at = queues.sq_base + (slot << queues.sq_log_stride);
    let mut bytes = [0; 32];
    card.dma_read(at, &mut bytes);
    let wqe = SendWqe::unpack(&bytes);
    let supported = [
        WrOpcode::RdmaWrite,
        WrOpcode::Send,
        WrOpcode::SendWithImm,
        WrOpcode::SendWithInv,
        WrOpcode::LocalInv,
    ];
    let known = WrOpcode::from_code(wqe.opcode).is_some_and(|opcode| supported.contains(&opcode));
    let outcome = if wqe.index != wqe_index {
        Outcome::Failed(WcStatus::LocQpOpErr, Some(Reject::WqeIndex))
    } else if !known {
        Outcome::Failed(WcStatus::LocQpOpErr, Some(Reject::WqeOpcode))
    } else if wqe.opcode == WrOpcode::LocalInv.code() {
        match card.end_key(wqe.imm.swap_bytes(), context.rights.pd) {
            Ok(()) => Outcome::Done,
            Err(reject) => Outcome::Failed(WcStatus::LocQpOpErr, Some(reject)),
        }
    } else {
        match card.gather(context.rights.pd, at, &wqe) {
            Err((status, reject)) => Outcome::Failed(status, Some(reject)),
            Ok(payload) => match cards.iter().position(|card| card.mac == context.path.dest_mac) {
                Some(peer) => cards[peer].receive(context.path.dest_qpn, qpn, &wqe, &payload),
                None => Outcome::Failed(WcStatus::RetryExcErr, None),
            },
        }
    };
    let outcome = match outcome {
        Outcome::Wait if context.rights.rnr_retry != 7 => Outcome::Failed(WcStatus::RnrRetryExcErr, None),
        outcome => outcome,
    };
    let (status, reject) = match outcome {
        Outcome::Wait => return false,
        Outcome::Done => (WcStatus::Success, None),
        Outcome::Failed(status, reject) => (status, reject),
    };
    let card = &mut cards[index];
    if let Some(qp) = card.qps.get_mut(&qpn) {
        qp.sq_consumer = wqe_index.wrapping_add(1);
        qp.halted |= status != WcStatus::Success;
    }
    if wqe.signaled || status != WcStatus::Success {
        let opcode = match WrOpcode::from_code(wqe.opcode) {
            Some(WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm) => WcOpcode::RdmaWrite,
            Some(WrOpcode::LocalInv) => WcOpcode::LocalInv,
            _ => WcOpcode::Send,
        };
        let cqe = Cqe {
            wqe_index,
            opcode: opcode.code(),
            status: status.code(),
            qpn,
            vendor_err: reject.map_or(0, Reject::vendor_err),
            timestamp: 1,
            ..Cqe::default()
        };
        card.complete(queues.send_cqn, cqe);
    }
    true
}

impl World {
    fn write(&self, index: usize, bar: Bar, offset: u64, value: u64) {
        let mut cards = self.cards();
        match bar {
            _ if cards[index].gone => {}
            Bar::Registers => {
                let card = &mut cards[index];
                if offset as u32 == reg::COMMAND_ENABLE && value & 1 == 1 {
                    card.command_consumer = 0;
                }
                card.registers.insert(offset as u32, value);
                if let Some(flash) = &mut card.flash {
                    flash(&mut card.registers, offset as u32, value);
                }
                card.run_commands();
            }
            Bar::Doorbells => cards[index].doorbell(offset, value),
        }
        progress(&mut cards);
    }
}

impl Backend for SoftwareCard {
    fn name(&self) -> &str {
        &self.name
    }

    fn read32(&self, bar: Bar, offset: u64) -> io::Result<u32> {
        assert_eq!((bar, offset % 4), (Bar::Registers, 0), "the driver reads registers only");
        let card = &mut self.world.cards()[self.index];
        if card.unreadable == Some(offset as u32) {
            return Err(io::Error::other("no answer"));
        }
        Ok(if self.is_away(card) { u32::MAX } else { card.read_register(offset as u32) as u32 })
    }

    fn read64(&self, bar: Bar, offset: u64) -> io::Result<u64> {
        assert_eq!((bar, offset % 8), (Bar::Registers, 0), "the driver reads registers only");
        let card = &mut self.world.cards()[self.index];
        Ok(if self.is_away(card) { u64::MAX } else { card.read_register(offset as u32) })
    }

    fn write32(&self, bar: Bar, offset: u64, value: u32) -> io::Result<()> {
        assert_eq!((bar, offset % 4), (Bar::Registers, 0), "doorbells are 8-byte writes");
        self.write(bar, offset, value.into());
        Ok(())
    }

    fn write64(&self, bar: Bar, offset: u64, value: u64) -> io::Result<()> {
        assert_eq!(offset % 8, 0, "aligned");
        self.write(bar, offset, value);
        Ok(())
    }

    fn mapped(&self, bar: Bar) -> Option<MappedBar> {
        let doorbells = self.mapped.as_deref().filter(|_| bar == Bar::Doorbells)?;
        // SAFETY: quadwords that may be stored to while they are shared, and live as long as self
        Some(unsafe { MappedBar::new(NonNull::from(doorbells).cast(), 8 * doorbells.len()) })
    }

    fn config_read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        let start = offset as usize;
        let card = &self.world.cards()[self.index];
        match self.is_away(card) {
            true => data.fill(u8::MAX),
            false => data.copy_from_slice(&card.config[start..start + data.len()]),
        }
        Ok(())
    }

    fn config_write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        let start = offset as usize;
        let card = &mut self.world.cards()[self.index];
        if !self.is_away(card) {
            card.config[start..start + data.len()].copy_from_slice(data);
        }
        Ok(())
    }

    unsafe fn map(&self, iova: u64, memory: &Memory<'_>) -> io::Result<()> {
        let mapping = Mapping::Pointer(memory.address);
        assert!(iova != memory.address as u64, "IO addresses are not virtual addresses");
        let old = self.world.cards()[self.index].maps.insert(iova, (memory.length, mapping));
        assert!(old.is_none(), "IO address {iova:#x} was mapped already");
        Ok(())
    }

    fn unmap(&self, iova: u64, length: u64) -> io::Result<()> {
        match self.world.cards()[self.index].maps.remove(&iova) {
            Some((size, _)) if size == length => Ok(()),
            None if self.released.load(Ordering::SeqCst) => Ok(()),
            _ => Err(io::Error::other("no such mapping")),
        }
    }

    fn set_irqs(&self, vectors: &[BorrowedFd<'_>]) -> io::Result<()> {
        let files = vectors.iter().map(|fd| Ok(File::from(fd.try_clone_to_owned()?)));
        self.world.cards()[self.index].irqs = files.collect::<io::Result<_>>()?;
        Ok(())
    }

    fn reset(&self) -> io::Result<()> {
        self.world.cards()[self.index].flr();
        Ok(())
    }

    fn set_request(&self, request: BorrowedFd<'_>) -> io::Result<bool> {
        self.world.cards()[self.index].request = Some(File::from(request.try_clone_to_owned()?));
        Ok(true)
    }

    fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
        let card = &mut self.world.cards()[self.index];
        card.flr();
        card.maps.clear();
    }

    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        vec![0x10_0000..=0xffff_ffff]
    }

    fn now(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        self.looks.fetch_add(1, Ordering::Relaxed);
        START.elapsed()
    }
}

/// A card served over vfio-user by the server of the crate `vfio_user`.
pub mod served {
    use super::*;
    use std::path::{Path, PathBuf};
    use std::thread::JoinHandle;
    use vfio_bindings::bindings::vfio::{
        VFIO_REGION_INFO_FLAG_READ, VFIO_REGION_INFO_FLAG_WRITE, vfio_region_info,
    };
    use vfio_user::{DmaMapFlags, DmaUnmapFlags, IrqInfo, Server, ServerBackend, ServerRegion};

    struct Served {
        card: Arc<SoftwareCard>,
    }

    impl Served {
        fn world(&self) -> MutexGuard<'_, Vec<Card>> {
            self.card.world.cards()
        }
    }

    fn bar(region: u32) -> io::Result<Bar> {
        match region {
            0 => Ok(Bar::Registers),
            2 => Ok(Bar::Doorbells),
            _ => Err(io::Error::other("no such region")),
        }
    }

    impl ServerBackend for Served {
        fn region_read(&mut self, region: u32, offset: u64, data: &mut [u8]) -> Result<(), io::Error> {
            match (region, data.len()) {
                (7, _) => self.card.config_read(offset, data)?,
                (_, 4) => data.copy_from_slice(&self.card.read32(bar(region)?, offset)?.to_le_bytes()),
                (_, 8) => data.copy_from_slice(&self.card.read64(bar(region)?, offset)?.to_le_bytes()),
                _ => return Err(io::Error::other("size")),
            }
            Ok(())
        }

        fn region_write(&mut self, region: u32, offset: u64, data: &[u8]) -> Result<(), io::Error> {
            if region == 7 {
                return self.card.config_write(offset, data);
            }
            match (data.first_chunk::<8>(), data.first_chunk::<4>()) {
                (Some(bytes), _) => self.card.write64(bar(region)?, offset, u64::from_le_bytes(*bytes)),
                (None, Some(bytes)) => self.card.write32(bar(region)?, offset, u32::from_le_bytes(*bytes)),
                _ => Err(io::Error::other("size")),
            }
        }

        fn dma_map(
            &mut self,
            _flags: DmaMapFlags,
            offset: u64,
            address: u64,
            size: u64,
            fd: Option<File>,
        ) -> Result<(), io::Error> {
            let mut cards = self.world();
            let card = &mut cards[self.card.index];
            if std::mem::take(&mut card.refuse_map) {
                return Err(io::Error::other("refused"));
            }
            let file = fd.ok_or_else(|| io::Error::other("no descriptor"))?;
            card.maps.insert(address, (size, Mapping::File(file, offset)));
            Ok(())
        }

        fn dma_unmap(&mut self, _flags: DmaUnmapFlags, address: u64, size: u64) -> Result<(), io::Error> {
            self.card.unmap(address, size)
        }

        fn reset(&mut self) -> Result<(), io::Error> {
            self.card.reset()
        }

        fn set_irqs(
            &mut self,
            index: u32,
            _flags: u32,
            start: u32,
            count: u32,
            fds: Vec<File>,
        ) -> Result<(), io::Error> {
            if index == 4 {
                self.world()[self.card.index].request = fds.into_iter().next();
                return Ok(());
            }
            if index != 2 {
                return Err(io::Error::other("only MSI-X and the request"));
            }
            let mut cards = self.world();
            let irqs = &mut cards[self.card.index].irqs;
            irqs.truncate(if count == 0 { 0 } else { start as usize });
            irqs.extend(fds);
            Ok(())
        }
    }

    /// Serves card `index` of `world` at `path` for `connections` connections, one after the other.
    pub fn serve(world: &Arc<World>, index: usize, path: &Path, connections: usize) -> JoinHandle<()> {
        let region = |index: u32, size: u64| ServerRegion {
            region_info: vfio_region_info {
                argsz: std::mem::size_of::<vfio_region_info>() as u32,
                flags: VFIO_REGION_INFO_FLAG_READ | VFIO_REGION_INFO_FLAG_WRITE,
                index,
                cap_offset: 0,
                size,
                offset: 0,
            },
            sparse_areas: Vec::new(),
            mmap_fd: None,
        };
        let sizes = [0x2000, 0, PAGES * STRIDE, 0, 0x1000, 0, 0, 4096, 0];
        let regions = sizes.iter().enumerate().map(|(i, size)| region(i as u32, *size)).collect();
        let irqs =
            (0..5).map(|index| IrqInfo { index, flags: 1, count: if index == 2 { VECTORS } else { 1 } });
        let path: PathBuf = path.to_owned();
        let server = Server::new(&path, true, irqs.collect(), regions).expect("the socket is free");
        let card = world.backend(index);
        std::thread::spawn(move || {
            for _ in 0..connections {
                let mut served = Served { card: card.clone() };
                if let Err(error) = server.run(&mut served) {
                    // a killed client resets the stream; that is its right
                    eprintln!("the server's connection ended: {error}");
                }
                let mut cards = card.world.cards();
                cards[card.index].flr();
                cards[card.index].maps.clear();
                cards[card.index].irqs.clear();
            }
        })
    }
}
