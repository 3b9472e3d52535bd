//! One simulated card: the Verilated RTL, its root complex, and the codec of its line, clocked together.
//!
//! ```text
//!              ┌──────────────────────────── Card ───────────────────────────┐
//!  host ──────▶│ RootComplex ─ cq, rc: TLPs into beats ─▶ ┌─────┐ ─▶ Decoder │──▶ frames
//!  (mmio,      │             ◀─ rq, cc: beats into TLPs ─ │ RTL │ ◀─ Encoder │◀── frames
//!   config)    └─────────────────────────────────────────└─────┘────────────┘
//!                                   core clock 4000 ps     line clocks 6400 ps (XGMII) or 3103 ps (CMAC)
//! ```
//!
//! A model whose streams are 64 bits wide has XGMII pins, one of 512 bits those of the CMAC ([`cmac`]).
//!
//! In: clock edges with their time in ps ([`Card::edge`]), frames, host accesses. Out: frames, the root's events, and
//! [`Violation`]s of the pins' rules. An edge costs two evaluations: one with the clocks low, in which the inputs
//! settle, and one in which every clock of that instant rises; handshakes are sampled between the two. `rc` never
//! waits for `cq`, nor `cq` for `rc`; while the card answers a host read, host writes pass reads that wait.
//!
//! A card that is quiet falls asleep: its clocks stop, and `now` is loaded when it wakes ([`Card::wake`]). Never: an
//! allocation per clock, a wait, a look at a clock of the machine.

use crate::{
    Error,
    wire::{
        Frame, cmac,
        xgmii::{self, Malformed},
    },
};
use contract::TraceEntry;
use nic::{flow::TIME, trace::SOURCES};
use pcie_sim::{Iommu, Kind, RawTlp, RootComplex, RootConfig, Sideband, Time};
use std::{net::Ipv4Addr, path::Path, sync::Arc};
use verilated::{Input, Instance, Model, Output};

/// Period of the core clock (250 MHz) in ps.
pub const CORE_PERIOD: u64 = 4000;
/// Core clocks of a reset: more than 16 of either clock.
const RESET_CLOCKS: u32 = 32;
/// Core clocks for which a card is quiet before its clocks stop: longer than any crossing between its clocks.
const QUIET_CLOCKS: u32 = 64;
/// Core clocks after which a reset is over even if a storm of frames keeps the card busy: more than its largest table has
/// rows, a fraction of the 100 ms that software gives a function (PCIe base spec, function level reset).
const CLEAR_CLOCKS: u32 = 65_536;
/// `next_due` when no deadline is armed.
const NEVER: u64 = u64::MAX;

/// What a card is, beside its RTL.
#[derive(Clone, Debug)]
pub struct CardConfig {
    /// Name in messages, captures and file names.
    pub name: String,
    /// MAC address, first byte on the wire first.
    pub mac: [u8; 6],
    /// IPv4 address of its host.
    pub ip: Ipv4Addr,
    /// Largest Ethernet payload in bytes.
    pub mtu: u16,
    /// Its place in the host.
    pub root: RootConfig,
}

impl CardConfig {
    /// Card 0 or 1 of every example: 10.0.0.1 at 02:00:00:00:00:0a, 10.0.0.2 at 02:00:00:00:00:0b, and so on; MTU 4200, so that
    /// a path MTU of 4096 fits.
    pub fn example(index: usize) -> Self {
        let n = index as u8;
        Self {
            name: format!("card{index}"),
            mac: [2, 0, 0, 0, 0, 0x0a + n],
            ip: Ipv4Addr::new(10, 0, 0, 1 + n),
            mtu: 4200,
            root: root_config(),
        }
    }
}

/// The root's configuration for a card of `Config::small` or `Config::full`: 64 KiB of registers, 64 doorbell pages, 16 vectors with the
/// pending bits at 0x800.
pub fn root_config() -> RootConfig {
    RootConfig {
        endpoint: pcie_sim::EndpointConfig {
            register_bytes: 64 << 10,
            doorbell_bytes: 256 << 10,
            msix_bytes: 4 << 10,
            vectors: 16,
            pending_offset: 0x800,
            ..Default::default()
        },
        // Registers answer within a microsecond; a card that does not is not waited for.
        host_timeout: Time::us(500),
        ..Default::default()
    }
}

/// A rule of the pins that the card broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// A frame, or characters between frames, that 802.3 forbids.
    #[error("line: {0}")]
    Line(Malformed),
    /// A rule of the CMAC's transmit stream.
    #[error("tx_axis at {at} ps: {rule}")]
    Cmac {
        /// When, in ps.
        at: u64,
        /// Which.
        rule: cmac::Violation,
    },
    /// A frame with a wrong FCS.
    #[error("line: frame of {bytes} bytes at {start} ps has a wrong FCS")]
    Fcs {
        /// When it started, in ps.
        start: u64,
        /// Its length.
        bytes: usize,
    },
    /// `first` or `last` of a TLP stream do not enclose its TLPs.
    #[error("stream {stream} at {at} ps: {what}")]
    Stream {
        /// When, in ps.
        at: u64,
        /// `rq` or `cc`.
        stream: &'static str,
        /// What was wrong.
        what: &'static str,
    },
}

/// Pins of a TLP stream into the card.
#[derive(Clone, Copy)]
struct SinkPins {
    valid: Input,
    ready: Output,
    header: Input,
    data: Input,
    first: Input,
    last: Input,
}

impl SinkPins {
    /// Bytes of a beat.
    fn width(&self) -> usize {
        4 * verilated::Port::from(self.data).words()
    }
}

/// Pins of a TLP stream out of the card.
#[derive(Clone, Copy)]
struct SourcePins {
    valid: Output,
    ready: Input,
    header: Output,
    data: Output,
    first: Output,
    last: Output,
}

impl SourcePins {
    /// Bytes of a beat.
    fn width(&self) -> usize {
        4 * verilated::Port::from(self.data).words()
    }
}

/// Pins of the line.
#[derive(Clone, Copy)]
enum LinePins {
    Xgmii { txd: Output, txc: Output, rxd: Input, rxc: Input },
    Cmac { tx: AxisPins<Output>, tready: Input, rx: AxisPins<Input> },
}

/// Pins of an AXI stream of the CMAC, `tready` apart.
#[derive(Clone, Copy)]
struct AxisPins<P> {
    tdata: P,
    tkeep: P,
    tlast: P,
    tvalid: P,
    tuser: P,
}

impl<P> AxisPins<P> {
    fn find(
        name: &str,
        pin: impl Fn(&str, u32) -> Result<P, verilated::Error>,
    ) -> Result<Self, verilated::Error> {
        let pin = |part: &str, width: usize| pin(&format!("{name}_{part}"), width as u32);
        Ok(Self {
            tdata: pin("tdata", 8 * cmac::BEAT_BYTES)?,
            tkeep: pin("tkeep", cmac::BEAT_BYTES)?,
            tlast: pin("tlast", 1)?,
            tvalid: pin("tvalid", 1)?,
            tuser: pin("tuser", 1)?,
        })
    }
}

#[derive(Clone, Copy)]
struct Pins {
    clock: Input,
    tx_clock: Input,
    rx_clock: Input,
    reset: Input,
    tx_reset: Input,
    rx_reset: Input,
    flr: Input,
    line: LinePins,
    rq: SourcePins,
    cc: SourcePins,
    rc: SinkPins,
    cq: SinkPins,
    cq_bar: Input,
    posted_ok: Input,
    nonposted_ok: Input,
    requester_id: Input,
    max_payload: Input,
    max_read_request: Input,
    rcb: Input,
    extended_tag: Input,
    relaxed_ordering: Input,
    bus_master: Input,
    completion_timeout: Input,
    msix_enable: Input,
    msix_mask: Input,
    factory_mac: Input,
    factory_mtu: Input,
    link_up: Input,
    quiet: Output,
    next_due: Output,
    now_load: Input,
    now_value: Input,
}

/// What the stages tell: [`Card::mark`].
struct MarkPins {
    valid: Output,
    heads: Vec<Output>,
    bodies: Vec<Output>,
    now: Output,
}

/// A built model whose pins are those of a card; makes any number of cards.
#[derive(Clone)]
pub struct CardModel {
    model: Model,
    pins: Pins,
    /// A model that is no card of ours may lack them.
    mark_pins: Option<Arc<MarkPins>>,
}

impl CardModel {
    /// The card of `Config::small`: elaborated, and built unless the cache has it. `progress` is told what is done.
    ///
    /// # Errors
    /// The RTL is refused, or a tool is missing or fails.
    pub fn small(
        waves: bool,
        progress: Option<&(dyn Fn(verilated::Progress) + Sync)>,
    ) -> Result<Self, Error> {
        Self::build(&nic::Config::small().untraced(), waves, false, progress)
    }

    /// The card of any configuration, likewise.
    ///
    /// # Errors
    /// As [`CardModel::small`].
    pub fn of(
        config: &nic::Config,
        waves: bool,
        progress: Option<&(dyn Fn(verilated::Progress) + Sync)>,
    ) -> Result<Self, Error> {
        Self::build(config, waves, false, progress)
    }

    /// The same, counting what of it is used: [`Card::top`].
    ///
    /// # Errors
    /// As [`CardModel::small`].
    pub fn counting(progress: Option<&(dyn Fn(verilated::Progress) + Sync)>) -> Result<Self, Error> {
        Self::build(&nic::Config::small().untraced(), false, true, progress)
    }

    fn build(
        config: &nic::Config,
        trace: bool,
        coverage: bool,
        progress: Option<&(dyn Fn(verilated::Progress) + Sync)>,
    ) -> Result<Self, Error> {
        let design =
            hdl::elaborate(&nic::nic::Nic(config.clone())).map_err(|error| Error::Rtl(error.to_string()))?;
        let verilog = design.verilog(hdl::Style { sources: false });
        let source = verilated::Source::new(design.top(), &verilog);
        Self::new(Model::build(&verilated::Source { trace, coverage, progress, ..source })?)
    }

    /// Finds the pins.
    ///
    /// # Errors
    /// One of them is missing or has another direction or width.
    pub fn new(model: Model) -> Result<Self, Error> {
        let input = |name: &str, width| model.input(name, width);
        let output = |name: &str, width| model.output(name, width);
        let bits = model.ports().iter().find(|port| port.name == "rq_data").map_or(64, |port| port.width);
        let sink = |name: &str| {
            let pin = |part: &str| format!("{name}_{part}");
            Ok::<_, verilated::Error>(SinkPins {
                valid: input(&pin("valid"), 1)?,
                ready: output(&pin("ready"), 1)?,
                header: input(&pin("header"), 128)?,
                data: input(&pin("data"), bits)?,
                first: input(&pin("first"), 1)?,
                last: input(&pin("last"), 1)?,
            })
        };
        let source = |name: &str| {
            let pin = |part: &str| format!("{name}_{part}");
            Ok::<_, verilated::Error>(SourcePins {
                valid: output(&pin("valid"), 1)?,
                ready: input(&pin("ready"), 1)?,
                header: output(&pin("header"), 128)?,
                data: output(&pin("data"), bits)?,
                first: output(&pin("first"), 1)?,
                last: output(&pin("last"), 1)?,
            })
        };
        let line = if bits == 64 {
            LinePins::Xgmii {
                txd: output("xgmii_txd", 64)?,
                txc: output("xgmii_txc", 8)?,
                rxd: input("xgmii_rxd", 64)?,
                rxc: input("xgmii_rxc", 8)?,
            }
        } else {
            LinePins::Cmac {
                tx: AxisPins::find("tx_axis", output)?,
                tready: input("tx_axis_tready", 1)?,
                rx: AxisPins::find("rx_axis", input)?,
            }
        };
        let pins = Pins {
            clock: input("clock", 1)?,
            tx_clock: input("tx_clock", 1)?,
            rx_clock: input("rx_clock", 1)?,
            reset: input("reset", 1)?,
            tx_reset: input("tx_reset", 1)?,
            rx_reset: input("rx_reset", 1)?,
            flr: input("flr", 1)?,
            line,
            rq: source("rq")?,
            cc: source("cc")?,
            rc: sink("rc")?,
            cq: sink("cq")?,
            cq_bar: input("cq_bar", 3)?,
            posted_ok: input("posted_ok", 1)?,
            nonposted_ok: input("nonposted_ok", 1)?,
            requester_id: input("pcie_requester_id", 16)?,
            max_payload: input("pcie_max_payload", 3)?,
            max_read_request: input("pcie_max_read_request", 3)?,
            rcb: input("pcie_rcb", 1)?,
            extended_tag: input("pcie_extended_tag", 1)?,
            relaxed_ordering: input("pcie_relaxed_ordering", 1)?,
            bus_master: input("pcie_bus_master", 1)?,
            completion_timeout: input("pcie_completion_timeout", 5)?,
            msix_enable: input("pcie_msix_enable", 1)?,
            msix_mask: input("pcie_msix_mask", 1)?,
            factory_mac: input("factory_mac", 48)?,
            factory_mtu: input("factory_mtu", 16)?,
            link_up: input("link_up", 1)?,
            quiet: output("quiet", 1)?,
            next_due: output("next_due", 64)?,
            now_load: input("now_load", 1)?,
            now_value: input("now_value", 64)?,
        };
        let mark_pins = if model.ports().iter().any(|port| port.name == "trace_valid") {
            let each = |part, width| -> Result<Vec<Output>, verilated::Error> {
                (0..SOURCES).map(|i| output(&format!("trace_{part}_{i}"), width)).collect()
            };
            Some(Arc::new(MarkPins {
                valid: output("trace_valid", SOURCES)?,
                heads: each("head", 64 - TIME)?,
                bodies: each("body", 64)?,
                now: output("now", 64)?,
            }))
        } else {
            None
        };
        Ok(Self { model, pins, mark_pins })
    }

    /// Whether its cards can write waves.
    pub fn traced(&self) -> bool {
        self.model.traced()
    }

    /// Period of its line clocks in ps.
    pub fn line_period(&self) -> u64 {
        match self.pins.line {
            LinePins::Xgmii { .. } => xgmii::BEAT,
            LinePins::Cmac { .. } => cmac::PERIOD,
        }
    }

    /// Rate of its line in bits per second.
    pub fn line_rate(&self) -> u64 {
        match self.pins.line {
            LinePins::Xgmii { .. } => xgmii::RATE,
            LinePins::Cmac { .. } => cmac::RATE,
        }
    }
}

/// What speaks with the pins of the line.
enum Line {
    Xgmii { decoder: xgmii::Decoder, encoder: xgmii::Encoder },
    Cmac { decoder: cmac::Decoder, encoder: cmac::Encoder, ready: bool },
}

impl Line {
    fn new(pins: &LinePins) -> Self {
        match pins {
            LinePins::Xgmii { .. } => {
                Self::Xgmii { decoder: xgmii::Decoder::default(), encoder: xgmii::Encoder::new() }
            }
            LinePins::Cmac { .. } => Self::Cmac {
                decoder: cmac::Decoder::default(),
                encoder: cmac::Encoder::default(),
                ready: false,
            },
        }
    }

    fn push(&mut self, frame: Frame) {
        match self {
            Self::Xgmii { encoder, .. } => encoder.push(frame),
            Self::Cmac { encoder, .. } => encoder.push(frame),
        }
    }

    fn is_idle(&self) -> bool {
        match self {
            Self::Xgmii { decoder, encoder } => decoder.is_idle() && encoder.is_idle(),
            Self::Cmac { decoder, encoder, .. } => decoder.is_idle() && encoder.is_idle(),
        }
    }

    /// At a rising edge: the beat that the CMAC takes in it (`Some(None)`: it would have taken one).
    fn moves(&self, top: &Instance, pins: &LinePins) -> Option<Option<cmac::Beat>> {
        let (Self::Cmac { ready: true, .. }, LinePins::Cmac { tx, .. }) = (self, pins) else { return None };
        if top.get(tx.tvalid) == 0 {
            return Some(None);
        }
        let mut data = [0; cmac::BEAT_BYTES / 4];
        top.get_wide(tx.tdata, &mut data);
        let keep = top.get(tx.tkeep);
        Some(Some(cmac::Beat { data, keep, last: top.get(tx.tlast) != 0, user: top.get(tx.tuser) != 0 }))
    }

    /// Frames on their way to the card whose last beat the pins have not shown.
    fn pending(&self) -> usize {
        match self {
            Self::Xgmii { encoder, .. } => encoder.pending(),
            Self::Cmac { encoder, .. } => encoder.pending(),
        }
    }

    /// Behind a rising edge: the frame that has ended, and the pins until the next edge.
    fn turn(
        &mut self,
        top: &mut Instance,
        pins: &LinePins,
        moved: Option<Option<cmac::Beat>>,
        now: u64,
    ) -> Result<Option<Frame>, Violation> {
        match (self, pins) {
            (Self::Xgmii { decoder, encoder }, LinePins::Xgmii { txd, txc, rxd, rxc }) => {
                let ended = decoder.beat(top.get(*txd), top.get(*txc) as u8, now);
                let (data, control) = encoder.beat(now);
                top.set(*rxd, data);
                top.set(*rxc, control.into());
                ended.transpose().map_err(Violation::Line)
            }
            (Self::Cmac { decoder, encoder, ready }, LinePins::Cmac { tready, rx, .. }) => {
                let ended = match &moved {
                    Some(Some(beat)) => decoder.beat(beat, now),
                    Some(None) => decoder.pause().map(|()| None),
                    None => Ok(None),
                };
                *ready = decoder.is_ready(now + cmac::PERIOD);
                top.set(*tready, u64::from(*ready));
                let beat = encoder.beat(now);
                top.set(rx.tvalid, u64::from(beat.is_some()));
                if let Some(beat) = beat {
                    top.set_wide(rx.tdata, &beat.data);
                    top.set(rx.tkeep, beat.keep);
                    top.set(rx.tlast, beat.last.into());
                    top.set(rx.tuser, beat.user.into());
                }
                ended.map_err(|rule| Violation::Cmac { at: now, rule })
            }
            _ => unreachable!("a line of other pins"),
        }
    }
}

/// A TLP on its way into the card, beat by beat.
#[derive(Default)]
struct Sender {
    tlp: Option<RawTlp>,
    /// Payload bytes that were taken.
    sent: usize,
    /// The valid pin is high.
    shown: bool,
}

impl Sender {
    fn start(&mut self, top: &mut Instance, pins: &SinkPins, tlp: RawTlp) {
        let [d0, d1, d2, d3] = tlp.header;
        top.set_wide(pins.header, &[d3, d2, d1, d0]);
        top.set(pins.valid, 1);
        (self.sent, self.shown) = (0, true);
        self.tlp = Some(tlp);
        self.beat(top, pins);
    }

    fn beat(&self, top: &mut Instance, pins: &SinkPins) {
        let Some(tlp) = &self.tlp else { return };
        let rest = &tlp.payload[self.sent..];
        let mut words = [0; cmac::BEAT_BYTES / 4];
        for (word, bytes) in words.iter_mut().zip(rest.chunks(4)) {
            *word = bytes.iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte));
        }
        let width = pins.width();
        top.set_wide(pins.data, &words[..width / 4]);
        top.set(pins.first, u64::from(self.sent == 0));
        top.set(pins.last, u64::from(rest.len() <= width));
    }

    /// The beat was taken.
    fn taken(&mut self, top: &mut Instance, pins: &SinkPins) {
        let width = pins.width();
        let done = self.tlp.as_ref().is_none_or(|tlp| tlp.payload.len() <= self.sent + width);
        if done {
            self.stop(top, pins);
        } else {
            self.sent += width;
            self.beat(top, pins);
        }
    }

    fn stop(&mut self, top: &mut Instance, pins: &SinkPins) {
        self.tlp = None;
        self.shown = false;
        top.set(pins.valid, 0);
    }
}

/// A TLP on its way out of the card.
#[derive(Default)]
struct Collector {
    header: [u32; 4],
    payload: Vec<u8>,
    open: bool,
}

impl Collector {
    /// Takes the beat at the pins; gives the TLP that it ends.
    fn beat(&mut self, top: &Instance, pins: &SourcePins) -> (Option<RawTlp>, Option<&'static str>) {
        let (first, last) = (top.get(pins.first) != 0, top.get(pins.last) != 0);
        let wrong = match (first, self.open) {
            (true, true) => Some("a TLP begins inside another"),
            (false, false) => Some("a beat before the first of a TLP"),
            _ => None,
        };
        if first {
            let mut words = [0; 4];
            top.get_wide(pins.header, &mut words);
            self.header = [words[3], words[2], words[1], words[0]];
            self.payload = Vec::with_capacity(self.bytes().next_multiple_of(pins.width()));
        }
        self.open = !last;
        let width = pins.width();
        if self.bytes() > 0 {
            let mut words = [0; cmac::BEAT_BYTES / 4];
            top.get_wide(pins.data, &mut words[..width / 4]);
            self.payload.extend(words[..width / 4].iter().flat_map(|word| word.to_le_bytes()));
        }
        let tlp = last.then(|| {
            let mut payload = std::mem::take(&mut self.payload);
            // The last beat may be used in part; any other difference is left for the judge to name.
            if (self.bytes()..self.bytes() + width).contains(&payload.len()) {
                payload.truncate(self.bytes());
            }
            RawTlp { header: self.header, payload }
        });
        (tlp, wrong)
    }

    /// Payload bytes by the header.
    fn bytes(&self) -> usize {
        if self.header[0] >> 30 & 1 == 0 {
            return 0;
        }
        match self.header[0] & 0x3ff {
            0 => 4096,
            dwords => dwords as usize * 4,
        }
    }

    fn stop(&mut self) {
        *self = Self::default();
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// All resets are high, for so many core clocks more.
    PowerOn(u32),
    /// `flr` is high.
    FunctionReset(u32),
    /// The card clears its tables, until it is quiet, or for so many core clocks more.
    Clearing {
        flr: bool,
        left: u32,
    },
    Running,
}

/// One card.
pub struct Card {
    config: CardConfig,
    top: Instance,
    pins: Pins,
    root: RootComplex<Iommu>,
    /// When something happens in the root by itself, in ps.
    root_due: u64,
    sideband: Sideband,
    phase: Phase,
    rc: Sender,
    cq: Sender,
    rq: Collector,
    cc: Collector,
    /// When the root gives up on the host read that the card is answering.
    answering: Option<u64>,
    line: Line,
    line_period: u64,
    quiet_clocks: u32,
    asleep: bool,
    /// When it wakes by itself, in ps.
    due: u64,
    load_now: bool,
    clocks: u64,
    /// When the card took the last beat of a request of the host, in ps.
    request_taken: u64,
    /// When it took the last beat of a frame, in ps.
    frame_taken: u64,
    violations: Vec<Violation>,
    /// Of the model; [`Card::mark`] takes it along.
    mark_pins: Option<Arc<MarkPins>>,
    /// Those that are looked at.
    marking: Option<Arc<MarkPins>>,
    marks: Vec<(u64, TraceEntry)>,
    dumped: Option<u64>,
}

impl Card {
    /// A card at power-on. [`Card::edge`] brings it to life; it is ready once [`Card::is_running`].
    ///
    /// # Errors
    /// The root's configuration is refused, or the model cannot be instantiated.
    pub fn new(model: &CardModel, config: CardConfig, seed: u64) -> Result<Self, Error> {
        let root = RootComplex::new(config.root.clone(), seed, Iommu::new())?;
        let mut card = Self {
            top: model.model.instance()?,
            pins: model.pins,
            sideband: root.sideband(),
            root,
            root_due: NEVER,
            phase: Phase::PowerOn(RESET_CLOCKS),
            rc: Sender::default(),
            cq: Sender::default(),
            rq: Collector::default(),
            cc: Collector::default(),
            answering: None,
            line: Line::new(&model.pins.line),
            line_period: model.line_period(),
            quiet_clocks: 0,
            asleep: false,
            due: NEVER,
            load_now: false,
            clocks: 0,
            request_taken: 0,
            frame_taken: 0,
            violations: Vec::new(),
            mark_pins: model.mark_pins.clone(),
            marking: None,
            marks: Vec::new(),
            dumped: None,
            config,
        };
        let (top, pins) = (&mut card.top, &card.pins);
        for pin in [pins.reset, pins.tx_reset, pins.rx_reset, pins.rq.ready, pins.cc.ready] {
            top.set(pin, 1);
        }
        let mac = card.config.mac.iter().fold(0, |mac, byte| mac << 8 | u64::from(*byte));
        top.set(pins.factory_mac, mac);
        top.set(pins.factory_mtu, card.config.mtu.into());
        top.set(pins.link_up, 1);
        if let LinePins::Xgmii { rxd, rxc, .. } = pins.line {
            top.set(rxd, xgmii::IDLE.0);
            top.set(rxc, u64::from(xgmii::IDLE.1));
        }
        card.drive_sideband();
        card.top.eval()?;
        Ok(card)
    }

    /// What it was made with.
    pub fn config(&self) -> &CardConfig {
        &self.config
    }

    /// Core clocks so far: those that were evaluated, not those slept through.
    pub fn clocks(&self) -> u64 {
        self.clocks
    }

    /// When it took the last byte of the host's last request, in ps.
    pub fn request_taken(&self) -> u64 {
        self.request_taken
    }

    /// When it took the last beat of the last frame, in ps.
    pub fn frame_taken(&self) -> u64 {
        self.frame_taken
    }

    /// Whether no reset is under way.
    pub fn is_running(&self) -> bool {
        self.phase == Phase::Running
    }

    /// Whether its clocks stand still.
    pub fn is_asleep(&self) -> bool {
        self.asleep
    }

    /// When it needs an edge next without further input, in ps; `None`: it is awake and needs every edge.
    pub fn due(&self) -> Option<u64> {
        self.asleep.then(|| self.due.min(self.root_due))
    }

    /// The RTL, to look at.
    pub fn top(&self) -> &Instance {
        &self.top
    }

    /// The root complex, to look at.
    pub fn root(&self) -> &RootComplex<Iommu> {
        &self.root
    }

    /// The host acts on the root complex at `now` ps.
    pub fn host<R>(&mut self, now: u64, act: impl FnOnce(&mut RootComplex<Iommu>, Time) -> R) -> R {
        let result = act(&mut self.root, Time(now));
        self.root_changed(now);
        result
    }

    /// Takes the rules that the card broke at its pins.
    pub fn take_violations(&mut self) -> Vec<Violation> {
        std::mem::take(&mut self.violations)
    }

    /// A frame reaches the card: it follows from the next line edge on.
    pub fn receive(&mut self, frame: Frame) {
        self.line.push(frame);
        self.wake();
    }

    /// The link comes up or goes down.
    pub fn set_link(&mut self, up: bool) {
        self.top.set(self.pins.link_up, up.into());
        self.wake();
    }

    /// Starts its clocks if they stand still.
    pub fn wake(&mut self) {
        if self.asleep {
            self.asleep = false;
            self.load_now = true;
            self.quiet_clocks = 0;
            self.due = NEVER;
        }
    }

    /// Whether it remembers what its stages tell, for [`Card::take_marks`]. The cycles are the same.
    pub fn mark(&mut self, wanted: bool) {
        self.marking = self.mark_pins.clone().filter(|_| wanted);
    }

    /// What its stages told since this was asked last: core clocks since reset, and what the ring of the card would hold.
    pub fn take_marks(&mut self) -> std::vec::Drain<'_, (u64, TraceEntry)> {
        self.marks.drain(..)
    }

    /// Starts writing waves.
    ///
    /// # Errors
    /// The model is not a traced one, or the file cannot be created.
    pub fn trace(&mut self, path: &Path) -> Result<(), Error> {
        self.top.trace(path)?;
        self.dumped = None;
        Ok(())
    }

    /// Brings the waves so far into their file.
    pub fn flush_trace(&mut self) {
        if self.top.tracing() {
            self.top.trace_flush();
        }
    }

    fn root_changed(&mut self, now: u64) {
        self.root_due = self.root.next_event().map_or(NEVER, |time| time.0);
        let sideband = self.root.sideband();
        if sideband != self.sideband {
            let starts_reset = sideband.flr && !self.sideband.flr;
            self.sideband = sideband;
            self.drive_sideband();
            if starts_reset {
                self.phase = Phase::FunctionReset(RESET_CLOCKS);
                self.top.set(self.pins.flr, 1);
                self.rc.stop(&mut self.top, &self.pins.rc);
                self.cq.stop(&mut self.top, &self.pins.cq);
                self.rq.stop();
                self.cc.stop();
                self.answering = None;
            }
            self.wake();
        }
        if self.root_due <= now {
            self.offer(now);
        }
    }

    fn drive_sideband(&mut self) {
        let (top, pins, sideband) = (&mut self.top, &self.pins, &self.sideband);
        let code = |bytes: u16| u64::from(bytes.max(128).ilog2() - 7);
        top.set(pins.requester_id, sideband.requester.into());
        top.set(pins.max_payload, code(sideband.max_payload));
        top.set(pins.max_read_request, code(sideband.max_read));
        top.set(pins.rcb, u64::from(sideband.rcb == 128));
        top.set(pins.extended_tag, sideband.extended_tag.into());
        top.set(pins.relaxed_ordering, sideband.relaxed_ordering.into());
        top.set(pins.bus_master, sideband.bus_master.into());
        top.set(pins.completion_timeout, sideband.completion_timeout.into());
        top.set(pins.msix_enable, sideband.msix_enable.into());
        top.set(pins.msix_mask, sideband.msix_mask.into());
    }

    /// Lets the root act and puts what it has for the card onto the streams that are free.
    fn offer(&mut self, now: u64) {
        if self.answering.is_some_and(|deadline| deadline <= now) {
            self.answering = None;
        }
        if !matches!(self.phase, Phase::PowerOn(_) | Phase::FunctionReset(_)) {
            let time = Time(now);
            if !self.cq.shown {
                let request = if self.answering.is_some() {
                    self.root.poll_cq_posted(time)
                } else {
                    self.root.poll_cq(time)
                };
                if let Some(request) = request {
                    // without data and no message
                    if request.tlp.header[0] >> 30 & 1 == 0 && request.tlp.header[0] >> 27 & 3 != 2 {
                        self.answering = Some(now + self.config.root.host_timeout.0);
                    }
                    self.wake();
                    self.top.set(self.pins.cq_bar, request.bar.into());
                    self.cq.start(&mut self.top, &self.pins.cq, request.tlp);
                }
            }
            if !self.rc.shown
                && let Some(completion) = self.root.poll_rc(time)
            {
                self.wake();
                self.rc.start(&mut self.top, &self.pins.rc, completion);
            }
        }
        self.root.advance(Time(now));
        self.root_due = self.root.next_event().map_or(NEVER, |time| time.0);
    }

    /// Lets the root act while the card sleeps; it wakes if that concerns it.
    pub fn rest(&mut self, now: u64) {
        if self.root_due <= now {
            self.offer(now);
        }
        if self.due <= now {
            self.wake();
        }
    }

    /// All clocks of the instant `now` ps rise: the core clock, the line clocks, or both. Gives the frame that the card
    /// has finished sending.
    ///
    /// # Errors
    /// The model stopped: an assertion of the RTL failed.
    pub fn edge(&mut self, now: u64, core: bool, line: bool) -> Result<Option<Frame>, Error> {
        let pins = self.pins;
        if core {
            self.before_core(now);
        }
        self.top.set(pins.clock, 0);
        self.top.set(pins.tx_clock, 0);
        self.top.set(pins.rx_clock, 0);
        self.top.eval()?;
        self.dump(now.saturating_sub(self.line_period / 4))?;
        let (mut rc_moves, mut cq_moves) = (false, false);
        if core {
            self.clocks += 1;
            rc_moves = self.rc.shown && self.top.get(pins.rc.ready) != 0;
            cq_moves = self.cq.shown && self.top.get(pins.cq.ready) != 0;
            // A reset may cut a TLP short: what the card still shows is the rest of nothing.
            let in_reset = matches!(self.phase, Phase::PowerOn(_) | Phase::FunctionReset(_));
            if !in_reset && self.top.get(pins.rq.valid) != 0 {
                self.collect_request(now);
            }
            if !in_reset && self.top.get(pins.cc.valid) != 0 {
                self.collect_completion(now);
            }
            if !in_reset && self.marking.is_some() {
                self.collect_marks();
            }
            self.top.set(pins.clock, 1);
        }
        let mut moved = None;
        if line {
            moved = self.line.moves(&self.top, &pins.line);
            self.top.set(pins.tx_clock, 1);
            self.top.set(pins.rx_clock, 1);
        }
        self.top.eval()?;
        self.dump(now)?;
        if rc_moves {
            self.rc.taken(&mut self.top, &pins.rc);
        }
        if cq_moves {
            self.cq.taken(&mut self.top, &pins.cq);
            if !self.cq.shown {
                self.request_taken = now;
            }
        }
        let frame = if line { self.after_line(now, moved) } else { None };
        if core {
            self.after_core(now);
        }
        Ok(frame)
    }

    fn before_core(&mut self, now: u64) {
        let pins = self.pins;
        if self.load_now {
            // Alone on its edge: the card is still quiet.
            self.top.set(pins.now_load, 1);
            self.top.set(pins.now_value, now / CORE_PERIOD);
        } else if self.root_due <= now || self.answering.is_some_and(|deadline| deadline <= now) {
            self.offer(now);
        }
        let payload = usize::from(self.sideband.max_payload);
        let posted = self.root.can_accept(Time(now), Kind::Posted, payload);
        let nonposted = self.root.can_accept(Time(now), Kind::NonPosted, 0);
        self.top.set(pins.posted_ok, posted.into());
        self.top.set(pins.nonposted_ok, nonposted.into());
    }

    fn collect_marks(&mut self) {
        let Some(pins) = &self.marking else { return };
        let mut sources = self.top.get(pins.valid);
        if sources == 0 {
            return;
        }
        let ticks = self.top.get(pins.now);
        while sources != 0 {
            let source = sources.trailing_zeros() as usize;
            sources &= sources - 1;
            let [head, body] = [&pins.heads, &pins.bodies].map(|pins| self.top.get(pins[source]));
            let low = head << TIME | ticks & ((1 << TIME) - 1);
            let entry = TraceEntry::unpack(&(u128::from(body) << 64 | u128::from(low)).to_le_bytes());
            self.marks.push((ticks, entry));
        }
    }

    fn collect_request(&mut self, now: u64) {
        let (tlp, wrong) = self.rq.beat(&self.top, &self.pins.rq);
        self.stream_rule(now, "rq", wrong);
        if let Some(tlp) = tlp {
            self.root.card_sends(Time(now), tlp);
            self.root_due = self.root.next_event().map_or(NEVER, |time| time.0);
        }
    }

    fn collect_completion(&mut self, now: u64) {
        let (tlp, wrong) = self.cc.beat(&self.top, &self.pins.cc);
        self.stream_rule(now, "cc", wrong);
        let Some(tlp) = tlp else { return };
        let status = tlp.header[1] >> 13 & 7;
        let owed = match tlp.header[1] & 0xfff {
            0 => 4096,
            bytes => bytes,
        };
        let given = (tlp.payload.len() as u32).saturating_sub(tlp.header[2] & 3);
        if status != 0 || given >= owed {
            self.answering = None;
        }
        self.root.card_sends(Time(now), tlp);
        self.root_due = self.root.next_event().map_or(NEVER, |time| time.0);
    }

    fn stream_rule(&mut self, at: u64, stream: &'static str, wrong: Option<&'static str>) {
        if let Some(what) = wrong {
            self.violations.push(Violation::Stream { at, stream, what });
        }
    }

    fn after_line(&mut self, now: u64, moved: Option<Option<cmac::Beat>>) -> Option<Frame> {
        // what the pins say under the reset of power-on is not judged
        let in_reset = matches!(self.phase, Phase::PowerOn(_));
        if in_reset {
            return None;
        }
        let pending = self.line.pending();
        let turn = self.line.turn(&mut self.top, &self.pins.line, moved, now);
        if self.line.pending() < pending {
            // at the next edge
            self.frame_taken = now + self.line_period;
        }
        match turn {
            Ok(frame) => {
                if let Some(Frame { start, bytes, .. }) = frame.as_ref().filter(|frame| !frame.fcs_is_good())
                {
                    self.violations.push(Violation::Fcs { start: *start, bytes: bytes.len() });
                }
                frame
            }
            Err(violation) => {
                self.violations.push(violation);
                None
            }
        }
    }

    fn after_core(&mut self, now: u64) {
        let pins = self.pins;
        if self.load_now {
            self.load_now = false;
            self.top.set(pins.now_load, 0);
        }
        let quiet = self.top.get(pins.quiet) != 0
            && !self.rc.shown
            && !self.cq.shown
            && self.answering.is_none()
            && self.line.is_idle();
        self.quiet_clocks = if quiet { self.quiet_clocks + 1 } else { 0 };
        match self.phase {
            Phase::Running if self.quiet_clocks >= QUIET_CLOCKS => self.fall_asleep(now),
            Phase::Running => {}
            Phase::PowerOn(0) => {
                for pin in [pins.reset, pins.tx_reset, pins.rx_reset] {
                    self.top.set(pin, 0);
                }
                self.phase = Phase::Clearing { flr: false, left: CLEAR_CLOCKS };
                self.quiet_clocks = 0;
            }
            Phase::PowerOn(left) => self.phase = Phase::PowerOn(left - 1),
            Phase::FunctionReset(0) => {
                self.top.set(pins.flr, 0);
                self.phase = Phase::Clearing { flr: true, left: CLEAR_CLOCKS };
                self.quiet_clocks = 0;
            }
            Phase::FunctionReset(left) => self.phase = Phase::FunctionReset(left - 1),
            // What arrives during a reset is no part of it: only the pin decides.
            Phase::Clearing { flr, left }
                if left == 0 || (self.top.get(pins.quiet) != 0 && self.quiet_clocks >= QUIET_CLOCKS) =>
            {
                self.phase = Phase::Running;
                self.load_now = true;
                if flr {
                    self.root.card_reset_done(Time(now));
                    self.root_changed(now);
                }
            }
            Phase::Clearing { flr, left } => self.phase = Phase::Clearing { flr, left: left - 1 },
        }
    }

    fn fall_asleep(&mut self, now: u64) {
        let due = match self.top.get(self.pins.next_due) {
            NEVER => NEVER,
            due => due.saturating_mul(CORE_PERIOD),
        };
        // A deadline that has passed, or is about to, is being worked on.
        if due > now + 2 * CORE_PERIOD {
            self.asleep = true;
            self.due = due;
        }
    }

    #[inline]
    fn dump(&mut self, time: u64) -> Result<(), Error> {
        if self.top.tracing() && self.dumped.is_none_or(|last| last < time) {
            self.dumped = Some(time);
            self.top.dump(time)?;
        }
        Ok(())
    }
}
