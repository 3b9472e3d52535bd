//! The vocabulary of stories: tests that read as what happens between two cards, with explicit time.
//!
//! ```text
//! let mut story = two_cards("a_write_arrives");
//! let (a, b) = story.connected();
//! story.wire_drops(A, |packet| packet.bth.psn == a.psn);
//! ...                        post on a
//! story.sees(B, "a NAK", |packet| packet.aeth.is_some());
//! story.memory_matches(&b.memory, 0, &bytes);
//! story.no_other_events(&[&a, &b]);
//! ```
//!
//! In: a name, a seed (`VERBENA_SEED`, else 1), the wish for waves (`VERBENA_WAVES`), the configuration of the cards
//! (`VERBENA_CONFIG`, else `small`). Out: `target/captures/NAME.pcapng`, `NAME.cardN.csv` (every TLP), with waves
//! `NAME.cardN.fst`, where NAME ends in `-CONFIG` unless it is `small`; on failure the seed and the command that repeats it.
//! Whatever a story does not announce fails it in [`Story::no_other_events`]: a reject counter, an IOMMU fault, a rule
//! of PCI Express or of the line that was broken, a scripted fault of the wire that never acted.

use crate::{
    backend::{InProcess, lock},
    card::CardModel,
    function::Mapping,
    memory::ProcessMemory,
    room::{Room, RoomConfig},
    wire::{Action, Faults, Rule, Side},
};
use contract::{Reject, StageCounter, register};
use host::{
    Access, Completion, Context, Cq, Device, Gid, GidEntry, Mac, Mr, Options, PathMtu, Pd, Qp, QpAttr,
    QpInit, RecvWr, SendWr, StaticNeighbours, WcStatus, backend::Backend, qp::AddressVector,
};
use pcie_sim::{Event, Injection, Iommu, Permissions, RootComplex};
use peer::Packet;
use rand_chacha::{
    ChaCha8Rng,
    rand_core::{Rng, SeedableRng},
};
use std::{
    collections::BTreeMap,
    net::Ipv6Addr,
    ops::Range,
    path::PathBuf,
    ptr::NonNull,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

pub use crate::wire::Side::{A, B};

/// A microsecond in ps.
pub const US: u64 = 1_000_000;
/// A millisecond in ps.
pub const MS: u64 = 1000 * US;
/// Longest wait for anything, in ps: more than seven retransmissions of the usual timeout.
pub const PATIENCE: u64 = 2000 * MS;

/// Device Control 2 (PCI Express capability at 0x60).
const DEVICE_CONTROL_2: usize = 0x88;

/// Bytes of memory that each end registers.
pub const MEMORY: usize = 1 << 20;

/// The model, built once per process; configuration and waves as the environment asks for them.
pub fn model() -> CardModel {
    static MODEL: OnceLock<CardModel> = OnceLock::new();
    MODEL.get_or_init(|| build(config().untraced())).clone()
}

/// The same, with the stage trace.
pub fn traced_model() -> CardModel {
    static MODEL: OnceLock<CardModel> = OnceLock::new();
    MODEL.get_or_init(|| build(config().traced())).clone()
}

fn build(config: nic::Config) -> CardModel {
    CardModel::of(&config, waves(), None).unwrap_or_else(|error| panic!("{error}"))
}

/// The configuration of the cards: that of the environment, else `small`.
pub fn config() -> nic::Config {
    match std::env::var("VERBENA_CONFIG") {
        Ok(name) if !name.is_empty() => {
            nic::Config::by_name(&name).expect("VERBENA_CONFIG names a configuration")
        }
        _ => nic::Config::small(),
    }
}

fn waves() -> bool {
    std::env::var("VERBENA_WAVES").is_ok_and(|text| !text.is_empty() && text != "0")
}

/// The seed of the environment, else 1.
pub fn seed() -> u64 {
    let text = std::env::var("VERBENA_SEED").unwrap_or_default();
    if text.is_empty() { 1 } else { text.parse().expect("VERBENA_SEED is a number") }
}

/// Where captures, logs and waves go.
pub fn folder() -> PathBuf {
    let models = verilated::Source::default_directory();
    let folder = models.parent().unwrap_or(&models).join("captures");
    std::fs::create_dir_all(&folder).expect("the folder for captures can be made");
    folder
}

/// A frame on the wire, decoded.
#[derive(Clone, Debug)]
pub struct Seen {
    /// When it began to leave its sender, in ps.
    pub at: u64,
    /// Who sent it.
    pub from: Side,
    /// The packet.
    pub packet: Packet,
    /// The wire lost it.
    pub lost: bool,
}

/// A story under way.
pub struct Story {
    /// The room.
    pub room: Arc<Mutex<Room>>,
    name: String,
    seed: u64,
    random: ChaCha8Rng,
    /// Frames that `sees` has gone past.
    told: usize,
    expected: BTreeMap<(usize, Reject), Option<u64>>,
    expected_faults: bool,
}

/// Two cards on a wire, out of reset.
pub fn two_cards(name: &str) -> Story {
    Story::begin(name, RoomConfig::example(2, seed()), None)
}

/// The same of a model with the stage trace.
pub fn two_traced_cards(name: &str, config: RoomConfig) -> Story {
    Story::open(name, &traced_model(), config, None, true)
}

/// Card 0 at side A, a plain-Rust endpoint at side B.
pub fn card_and_peer(name: &str, seed: u64) -> Story {
    let mut peer = peer::Endpoint::new(0x0200_0000_000b, [10, 0, 0, 2].into());
    peer.add_ip(Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, 2).into());
    Story::begin(name, RoomConfig::example(1, seed), Some(peer))
}

impl Story {
    /// A story in a room of one's own.
    pub fn begin(name: &str, config: RoomConfig, peer: Option<peer::Endpoint>) -> Self {
        Self::open(name, &model(), config, peer, true)
    }

    /// A story too long to be written down: no capture, no logs, and no packet is remembered.
    pub fn unrecorded(name: &str, config: RoomConfig) -> Self {
        Self::open(name, &model(), config, None, false)
    }

    fn open(
        name: &str,
        model: &CardModel,
        config: RoomConfig,
        peer: Option<peer::Endpoint>,
        recorded: bool,
    ) -> Self {
        let seed = config.seed;
        let cards = config.cards.len();
        let label = match self::config().name {
            "small" => name.to_owned(),
            other => format!("{name}-{other}"),
        };
        let mut room = Room::new(model, config).unwrap_or_else(|error| panic!("{error}"));
        if let Some(peer) = peer {
            room.attach_peer(peer);
        }
        let prepare = |room: &mut Room| {
            if recorded {
                room.capture(&folder().join(format!("{label}.pcapng")))?;
                room.remember_frames();
            }
            for card in (0..cards).filter(|_| recorded) {
                room.log_tlps(card, &folder().join(format!("{label}.card{card}.csv")))?;
                if waves() {
                    room.trace(card, &folder().join(format!("{label}.card{card}.fst")))?;
                }
            }
            room.power_on()
        };
        prepare(&mut room).unwrap_or_else(|error| panic!("{error}"));
        Self {
            room: Arc::new(Mutex::new(room)),
            name: name.into(),
            seed,
            random: ChaCha8Rng::seed_from_u64(seed),
            told: 0,
            expected: BTreeMap::new(),
            expected_faults: false,
        }
    }

    /// Simulated time in ps.
    pub fn now(&self) -> u64 {
        lock(&self.room).now()
    }

    /// A number below `n`, from the seed.
    pub fn below(&mut self, n: u64) -> u64 {
        self.random.next_u64() % n
    }

    /// Bytes from the seed.
    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.random.fill_bytes(&mut bytes);
        bytes
    }

    /// The driver of a card, started.
    pub fn start(&mut self, card: usize) -> Host {
        self.start_as(card, &addresses(card))
    }

    /// The same with other addresses and neighbours.
    pub fn start_as(&mut self, card: usize, options: &Options) -> Host {
        let backend: Arc<dyn Backend> = Arc::new(InProcess::new(&self.room, card));
        let start = || -> host::Result<Host> {
            let context = Context::start(Device::new(backend.clone())?, options)?;
            let pd = context.alloc_pd()?;
            let cq = context.create_cq(1024, None)?;
            let remote = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
            let rights = Access::LOCAL_WRITE | remote;
            let memory = pd.allocate(MEMORY, rights)?;
            Ok(Host { card, memory, cq, pd, context })
        };
        start().unwrap_or_else(|error| panic!("card {card} does not start: {error}"))
    }

    /// A QP of a started card, in RESET.
    pub fn qp(&mut self, host: Host, adjust: impl FnOnce(&mut QpInit<'_>)) -> End {
        let qp = {
            let mut init = QpInit { max_send_sge: 4, max_recv_sge: 4, ..QpInit::rc(&host.cq, &host.cq) };
            adjust(&mut init);
            host.pd.create_qp(&init).unwrap_or_else(|error| panic!("create a QP: {error}"))
        };
        End { qp, psn: self.below(1 << 24) as u32, host }
    }

    /// Both drivers started, one QP each, connected with the usual attributes: path MTU 1024, timeout 14, everything
    /// permitted.
    pub fn connected(&mut self) -> (End, End) {
        self.connected_as(|_, _| {})
    }

    /// As [`Story::connected`], with attributes changed by `adjust`, which is told the side.
    pub fn connected_as(&mut self, adjust: impl Fn(Side, &mut QpAttr)) -> (End, End) {
        let hosts = [self.start(0), self.start(1)];
        let [a, b] = hosts.map(|host| self.qp(host, |_| {}));
        self.join(&a, &b, adjust);
        (a, b)
    }

    /// Connects two QPs.
    pub fn join(&mut self, a: &End, b: &End, adjust: impl Fn(Side, &mut QpAttr)) {
        for (side, me, other) in [(A, a, b), (B, b, a)] {
            let mut attr = usual(other.gid(), other.qp.number(), me.psn, other.psn);
            adjust(side, &mut attr);
            me.qp.connect_with(&attr).unwrap_or_else(|error| panic!("connect {side:?}: {error}"));
        }
    }

    /// Lets so many ps pass.
    pub fn wait(&mut self, span: u64) {
        let mut room = lock(&self.room);
        let to = room.now() + span;
        room.run_to(to).unwrap_or_else(|error| panic!("{error}"));
        room.attend();
    }

    // ---- the wire

    /// The first packet of `from` that matches meets this fate.
    pub fn wire_does(
        &mut self,
        from: Side,
        action: Action,
        matches: impl Fn(&Packet) -> bool + Send + 'static,
    ) {
        let rule = Rule::once(move |bytes| parse(bytes).is_some_and(|packet| matches(&packet)), action);
        lock(&self.room).change_wire(|wire, _| wire.script(from, rule));
    }

    /// The wire loses the first packet of `from` that matches.
    pub fn wire_drops(&mut self, from: Side, matches: impl Fn(&Packet) -> bool + Send + 'static) {
        self.wire_does(from, Action::Drop, matches);
    }

    /// The wire treats the packets of both sides like this from now on.
    pub fn wire_harms(&mut self, faults: Faults) {
        lock(&self.room).change_wire(|wire, _| Side::BOTH.map(|side| wire.set_faults(side, faults)));
    }

    /// The wire loses every packet of `from` from now on.
    pub fn wire_is_cut(&mut self, from: Side) {
        lock(&self.room).change_wire(|wire, _| wire.set_faults(from, Faults::loss(1.0)));
    }

    /// Every packet so far.
    pub fn packets(&self) -> Vec<Seen> {
        let room = lock(&self.room);
        room.sights().iter().filter_map(decode).collect()
    }

    /// The next packet of `from` that matches, not yet gone past; time passes until it comes.
    pub fn sees(&mut self, from: Side, what: &str, matches: impl Fn(&Packet) -> bool) -> Seen {
        let mut room = lock(&self.room);
        let limit = room.now() + PATIENCE;
        let mut told = self.told;
        let mut found = None;
        room.run_until(limit, |room| {
            while let Some(sight) = room.sights().get(told) {
                told += 1;
                if sight.from == from
                    && let Some(seen) = decode(sight)
                    && matches(&seen.packet)
                {
                    found = Some(seen);
                    return true;
                }
            }
            room.next_event().is_none()
        })
        .unwrap_or_else(|error| panic!("{error}"));
        room.attend();
        let passed: Vec<String> =
            room.sights()[self.told..].iter().filter_map(decode).map(|seen| line(&seen)).collect();
        drop(room);
        self.told = told;
        found.unwrap_or_else(|| panic!("no {what} from {from:?}; there was only:\n{}", passed.join("\n")))
    }

    /// Until `time` ps nobody sends anything that [`Story::sees`] has not gone past.
    pub fn sees_nothing_until(&mut self, time: u64) {
        let mut room = lock(&self.room);
        room.run_to(time).unwrap_or_else(|error| panic!("{error}"));
        room.attend();
        let more: Vec<String> =
            room.sights()[self.told..].iter().filter_map(decode).map(|seen| line(&seen)).collect();
        drop(room);
        assert!(more.is_empty(), "silence was asserted, but there was:\n{}", more.join("\n"));
    }

    /// Goes past every packet so far.
    pub fn goes_past(&mut self) {
        self.told = lock(&self.room).sights().len();
    }

    // ---- the hosts

    /// Every host sets the shortest completion timeout that PCI Express has: 66 us.
    pub fn hosts_are_impatient(&mut self) {
        let mut room = lock(&self.room);
        for card in 0..room.cards().len() {
            room.host(card, |root, now| root.config_write(now, DEVICE_CONTROL_2, &[1]));
        }
    }

    /// The IO addresses of these bytes of a region of a card in this process.
    pub fn iova(&self, card: usize, memory: &Mr, range: Range<usize>) -> Range<u64> {
        let at = memory.addr() + range.start as u64;
        let room = lock(&self.room);
        let holds = |m: &&Mapping| (m.address..m.address + m.length).contains(&at);
        let mapping = room.mappings(card).iter().find(holds).expect("the region is mapped");
        let iova = mapping.iova + (at - mapping.address);
        iova..iova + range.len() as u64
    }

    /// The IOMMU of a card forgets a region of this process; its driver does not know.
    pub fn iommu_forgets(&self, card: usize, memory: &Mr) -> Mapping {
        let mut room = lock(&self.room);
        let at = memory.addr();
        let holds = |m: &&Mapping| (m.address..m.address + m.length).contains(&at);
        let mapping = *room.mappings(card).iter().find(holds).expect("the region is mapped");
        let forget = |root: &mut RootComplex<Iommu>, _| root.memory_mut().unmap(mapping.iova, mapping.length);
        room.host(card, forget).expect("a whole mapping");
        mapping
    }

    /// It remembers it.
    ///
    /// # Safety
    /// The region that was forgotten is still registered.
    pub unsafe fn iommu_remembers(&self, card: usize, mapping: Mapping) {
        let base = NonNull::new(mapping.address as *mut u8).expect("memory of this process");
        // SAFETY: the registered region keeps its memory; the driver ends the mapping before it frees it.
        let memory = unsafe { ProcessMemory::new(base, mapping.length) };
        let remember = |root: &mut RootComplex<Iommu>, _| {
            root.memory_mut().map(mapping.iova, mapping.length, Permissions::BOTH, memory, 0)
        };
        lock(&self.room).host(card, remember).expect("the range is free");
    }

    /// What happened at the root of a card since this was asked last; not told by [`Story::no_other_events`] then.
    pub fn takes_events(&mut self, card: usize) -> Vec<Event> {
        lock(&self.room).take_events(card)
    }

    /// The root of a card spoils its answers by this rule.
    pub fn root_spoils(&mut self, card: usize, rule: Injection) {
        lock(&self.room).host(card, |root, _| root.inject(rule));
    }

    /// The roots answer as they should again.
    pub fn roots_are_good(&mut self) {
        let mut room = lock(&self.room);
        for card in 0..room.cards().len() {
            room.host(card, |root, _| root.clear_injections());
        }
    }

    /// Time passes until nothing happens any more, up to `span` ps; whether it came to that.
    pub fn comes_to_rest(&mut self, span: u64) -> bool {
        let mut room = lock(&self.room);
        let limit = room.now() + span;
        let rests = room.run_until_idle(limit).unwrap_or_else(|error| panic!("{error}"));
        room.attend();
        rests
    }

    // ---- the ends

    /// The next completion of an end, however long it takes.
    pub fn completion(&mut self, host: &Host) -> Completion {
        match host.cq.poll_wait(Duration::from_nanos(PATIENCE / 1000)) {
            Ok(Some(completion)) => completion,
            Ok(None) => panic!("card {} gives no completion", host.card),
            Err(error) => panic!("poll the CQ of card {}: {error}", host.card),
        }
    }

    /// The next completion of an end is that of `wr_id`, and good.
    pub fn completes(&mut self, host: &Host, wr_id: u64) -> Completion {
        let completion = self.completion(host);
        assert_eq!((completion.wr_id, completion.status), (wr_id, WcStatus::Success), "{completion:?}");
        completion
    }

    /// No completion waits at an end.
    pub fn no_completion(&mut self, host: &Host) {
        let mut entry = [Completion::default()];
        let found = host.cq.poll(&mut entry).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(found, 0, "{entry:?}");
    }

    /// Memory holds these bytes.
    #[track_caller]
    pub fn memory_matches(&self, memory: &Mr, offset: usize, bytes: &[u8]) {
        let found = memory.to_vec(offset..offset + bytes.len()).expect("a range of the region");
        if let Some(at) = (0..bytes.len()).find(|i| found[*i] != bytes[*i]) {
            panic!(
                "memory differs at byte {at} of {}: {:02x?} instead of {:02x?}",
                bytes.len(),
                &found[at..(at + 16).min(found.len())],
                &bytes[at..(at + 16).min(bytes.len())]
            );
        }
    }

    /// How often a card has refused something for this reason.
    pub fn reject_counter(&mut self, card: usize, reject: Reject) -> u64 {
        self.counters(card, register::reject_counter(reject).into(), 1)[0]
    }

    /// A register of 64 bits of a card.
    pub fn register(&mut self, card: usize, offset: u32) -> u64 {
        self.counters(card, offset.into(), 1)[0]
    }

    /// A counter of a card.
    pub fn stage_counter(&mut self, card: usize, counter: StageCounter) -> u64 {
        self.counters(card, register::stage_counter(counter).into(), 1)[0]
    }

    fn counters(&mut self, card: usize, offset: u64, count: usize) -> Vec<u64> {
        let mut room = lock(&self.room);
        let token = room.host(card, |root, now| root.mmio_read(now, 0, offset, count * 8));
        let limit = room.now() + MS;
        let mut answer = None;
        let ran = room.run_until(limit, |room| {
            answer = room.host(card, |root, _| root.take_read(token));
            answer.is_some()
        });
        ran.unwrap_or_else(|error| panic!("{error}"));
        let bytes = answer.expect("the counters are answered").unwrap_or_else(|error| panic!("{error}"));
        bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect()
    }

    /// A card will have counted `reject` that often.
    pub fn announce(&mut self, card: usize, reject: Reject, times: u64) {
        self.expected.insert((card, reject), Some(times));
    }

    /// A card may have counted `reject`, any number of times.
    pub fn allow(&mut self, card: usize, reject: Reject) {
        self.expected.insert((card, reject), None);
    }

    /// Both cards may have counted what the peer of a QP that is gone or dead makes them count, and these.
    pub fn allow_aftermath(&mut self, more: &[Reject]) {
        let all = [
            Reject::UnknownQp,
            Reject::WrongQpState,
            Reject::QpHalted,
            Reject::Duplicate,
            Reject::PsnOutOfSequence,
            Reject::PsnOutOfSequenceRepeat,
            Reject::ResponseStale,
            Reject::ResponseUnexpected,
            Reject::ResponseGap,
            Reject::MissQueueFull,
            Reject::ReceiverNotReady,
        ];
        for card in 0..2 {
            for reject in all.iter().chain(more) {
                self.allow(card, *reject);
            }
        }
    }

    /// The cards may touch memory that is not mapped.
    pub fn allow_memory_faults(&mut self) {
        self.expected_faults = true;
    }

    /// Nothing has happened that was not announced.
    #[track_caller]
    pub fn no_other_events(&mut self) {
        let cards = lock(&self.room).cards().len();
        let mut wrong = Vec::new();
        for card in 0..cards {
            let counts =
                self.counters(card, register::reject_counter(Reject::ALL[0]).into(), Reject::ALL.len());
            for (reject, count) in Reject::ALL.iter().zip(counts) {
                match self.expected.get(&(card, *reject)) {
                    Some(None) => {}
                    Some(Some(times)) if *times == count => {}
                    None if count == 0 => {}
                    expected => wrong.push(format!(
                        "card {card} counts {} {count} times, announced: {:?}",
                        reject.name(),
                        expected.copied().flatten().unwrap_or(0)
                    )),
                }
            }
        }
        let mut room = lock(&self.room);
        for card in 0..cards {
            for event in room.take_events(card) {
                match event {
                    Event::ResetStarted { .. } | Event::ResetDone { .. } => {}
                    Event::ReadFault { .. } | Event::WriteFault { .. } if self.expected_faults => {}
                    event => wrong.push(format!("card {card}: {event:?}")),
                }
            }
            for violation in room.host(card, |root, _| root.take_violations()) {
                wrong.push(format!("card {card}, PCI Express: {violation:?}"));
            }
            for violation in room.take_violations(card) {
                wrong.push(format!("card {card}: {violation}"));
            }
        }
        for side in Side::BOTH {
            if room.wire().pending_rules(side) > 0 {
                wrong.push(format!("a scripted fault for packets of {side:?} never acted"));
            }
        }
        drop(room);
        assert!(wrong.is_empty(), "not announced:\n{}", wrong.join("\n"));
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        let finished = lock(&self.room).finish();
        if std::thread::panicking() {
            let (name, seed, config) = (&self.name, self.seed, config().name);
            eprintln!(
                "story {name} failed with seed {seed}; its traces are in {}; again, with waves: \
                 cargo ci story {name} --seed {seed} --waves --config {config}",
                folder().display()
            );
        } else if let Err(error) = finished {
            panic!("{error}");
        }
    }
}

/// The usual attributes of a connection towards `gid`.
pub fn usual(gid: Gid, dest_qpn: u32, sq_psn: u32, rq_psn: u32) -> QpAttr {
    QpAttr {
        access: Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        path_mtu: PathMtu::Mtu1024,
        dest_qpn,
        rq_psn,
        sq_psn,
        av: AddressVector::to(gid),
        ..QpAttr::default()
    }
}

/// GID index of a card's IPv6 address.
pub const IPV6: u8 = 2;
/// GID index of its IPv6 address in VLAN 5.
pub const IPV6_VLAN_5: u8 = 3;
/// GID index of its IPv4 address with a tag that gives a priority alone.
pub const IPV4_PRIORITY: u8 = 4;

/// The addresses of a card, behind its IPv4 and link-local one, and its neighbours.
fn addresses(card: usize) -> Options {
    let of = |n: u8| (Gid::from_u128(0xfd << 120 | u128::from(n)), Mac([2, 0, 0, 0, 0, 9 + n]));
    let mut neighbours = StaticNeighbours::default();
    let ipv4 = neighbours.0[card].0;
    neighbours.0.extend([of(1), of(2)]);
    // link-local addresses say their MAC address
    let link_local = [of(1), of(2)].map(|(_, mac)| (Gid::link_local(mac), mac));
    neighbours.0.extend(link_local);
    let (ipv6, _) = of(card as u8 + 1);
    let row = |gid, vlan| GidEntry { gid, vlan };
    let further = vec![row(ipv6, None), row(ipv6, Some(5)), row(ipv4, Some(0))];
    Options { neighbours: Arc::new(neighbours), further, ..Options::default() }
}

/// A frame with FCS as a packet; `None` if it is none.
pub fn parse(bytes: &[u8]) -> Option<Packet> {
    Packet::parse(bytes.get(..bytes.len().checked_sub(4)?)?).ok()
}

fn decode(sight: &crate::room::Sight) -> Option<Seen> {
    let packet = parse(&sight.frame.bytes)?;
    Some(Seen { at: sight.frame.start, from: sight.from, packet, lost: sight.lost })
}

fn line(seen: &Seen) -> String {
    let lost = if seen.lost { ", lost" } else { "" };
    format!("  {:>12} ns {:?}: {}{lost}", seen.at / 1000, seen.from, seen.packet)
}

/// A started card: its driver, a protection domain, a CQ, [`MEMORY`] bytes registered for everything.
pub struct Host {
    /// Which card.
    pub card: usize,
    /// Registered memory.
    pub memory: Mr,
    /// The CQ of everything.
    pub cq: Cq,
    /// The protection domain.
    pub pd: Pd,
    /// The driver.
    pub context: Context,
}

/// A started card with a QP.
pub struct End {
    /// The QP.
    pub qp: Qp,
    /// The first PSN that it sends.
    pub psn: u32,
    /// The rest.
    pub host: Host,
}

impl std::ops::Deref for End {
    type Target = Host;
    fn deref(&self) -> &Host {
        &self.host
    }
}

impl End {
    /// Its address.
    pub fn gid(&self) -> Gid {
        self.host.context.gids()[0]
    }

    /// Posts a WRITE of `length` bytes at `from` of this memory to `to` of the other's, with a completion.
    pub fn write(&self, wr_id: u64, from: usize, length: usize, other: &Mr, to: usize) {
        let sge = [self.memory.sge(from..from + length).expect("a range of the region")];
        let wr = SendWr::write(wr_id, &sge, other.addr() + to as u64, other.rkey()).signaled();
        self.qp.post_send(&[wr]).unwrap_or_else(|error| panic!("post a WRITE: {error}"));
    }

    /// Posts a READ of `length` bytes at `from` of the other's memory to `to` of this one, with a completion.
    pub fn read(&self, wr_id: u64, to: usize, length: usize, other: &Mr, from: usize) {
        let sge = [self.memory.sge(to..to + length).expect("a range of the region")];
        let wr = SendWr::read(wr_id, &sge, other.addr() + from as u64, other.rkey()).signaled();
        self.qp.post_send(&[wr]).unwrap_or_else(|error| panic!("post a READ: {error}"));
    }

    /// Posts a fetch and add on the 8 bytes at `at` of the other's memory, what was there to `to`, with a completion.
    pub fn fetch_add(&self, wr_id: u64, to: usize, other: &Mr, at: usize, add: u64) {
        let sge = [self.memory.sge(to..to + 8).expect("a range of the region")];
        let wr = SendWr::fetch_add(wr_id, &sge, other.addr() + at as u64, other.rkey(), add).signaled();
        self.qp.post_send(&[wr]).unwrap_or_else(|error| panic!("post a fetch and add: {error}"));
    }

    /// Posts a compare and swap, likewise.
    pub fn compare_swap(&self, wr_id: u64, to: usize, other: &Mr, at: usize, compare: u64, swap: u64) {
        let sge = [self.memory.sge(to..to + 8).expect("a range of the region")];
        let addr = other.addr() + at as u64;
        let wr = SendWr::compare_swap(wr_id, &sge, addr, other.rkey(), compare, swap).signaled();
        self.qp.post_send(&[wr]).unwrap_or_else(|error| panic!("post a compare and swap: {error}"));
    }

    /// Posts a SEND of `length` bytes at `from`, with a completion.
    pub fn send(&self, wr_id: u64, from: usize, length: usize) {
        let sge = [self.memory.sge(from..from + length).expect("a range of the region")];
        self.qp
            .post_send(&[SendWr::send(wr_id, &sge).signaled()])
            .unwrap_or_else(|error| panic!("post a SEND: {error}"));
    }

    /// Posts a receive into `length` bytes at `to`.
    pub fn receive(&self, wr_id: u64, to: usize, length: usize) {
        let sge = [self.memory.sge(to..to + length).expect("a range of the region")];
        self.qp
            .post_recv(&[RecvWr::new(wr_id, &sge)])
            .unwrap_or_else(|error| panic!("post a receive: {error}"));
    }
}
