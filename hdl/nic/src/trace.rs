//! trace: what all stages decide, as one ring that the host reads.
//!
//! ```text
//! Mark of a source > stage wanted? > FIFO of 8 (8 bits of time) \
//! Mark of a source > ...                                         > round robin, one a clock > whole time > ring > csr
//!                     full: lost                                /
//! ```
//! In: marks, at any rate. Out: the ring, read by csr one clock after the address; the number of entries written; how many
//! marks were lost in this clock. The ring is overwritten, never refuses and never holds up a stage. While the trace is off no
//! mark enters, and nothing here moves.
//!
//! The time is that of the mark, not that of the ring. Eight bits travel with it: one entry leaves per clock and nothing
//! holds it up, so a mark waits for 8 * sources clocks at most, and that is less than 256; the rest is `now`'s.
//! Entries of one source stay in order.
//!
//! Requirements: CARD

use crate::config::Config;
use crate::flow::{Mark, TIME};
use crate::prim::fifo::Fifo;
use crate::prim::merge::merge;
use crate::qp::{INDEX, PSN};
use contract::{Stage, TraceEvent, trace::TraceEntryBits};
use hdl::{
    Bundle, Memory, Module, PortBuilder, Ports, Sig, Stream, any_of, cat, delay, delay_init, high,
    index_width, instance, lit, mux, reg_init, when,
};

/// Marks of a source that may wait.
const WAITING: u32 = 8;
/// Bits of time that travel with a mark.
const AGE: u32 = 8;
/// Sources of the card: as many `trace_N` pins.
pub const SOURCES: u32 = 18;

/// What of a mark a source ever sets; the rest is not stored.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// The QP.
    Qp,
    /// The index.
    Index,
    /// The PSN.
    Psn,
    /// The opcode.
    Opcode,
    /// The detail.
    Detail,
}

/// Where marks come from.
#[derive(Clone, Copy, Debug)]
pub struct Source {
    /// Its name in the RTL.
    pub name: &'static str,
    /// What it tells; one event is not stored.
    pub events: &'static [TraceEvent],
    /// Its bit in `trace_stages`; none: always.
    pub stage: Option<Stage>,
    /// See [`Part`].
    pub parts: &'static [Part],
}

/// The pins for the simulation: every mark, before any loss.
#[derive(Clone, Debug)]
pub struct Marks {
    /// Which sources tell something in this clock.
    pub valid: Sig,
    /// [`Mark::entry`] of each.
    pub entries: Vec<Sig>,
}

impl Bundle for Marks {
    type Shape = ();
    #[track_caller]
    fn build(_: &(), name: &str, make: &mut dyn FnMut(&str, u32) -> Sig) -> Self {
        let entry = TraceEntryBits::BITS - TIME;
        Marks {
            valid: make(&format!("{name}_valid"), SOURCES),
            entries: (0..SOURCES).map(|i| make(&format!("{name}_{i}"), entry)).collect(),
        }
    }
    fn signals(&self) -> Vec<Sig> {
        [vec![self.valid], self.entries.clone()].concat()
    }
}

/// A mark that waits.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
struct Waiting {
    #[shape(AGE)]
    time: Sig,
    #[shape(c.clone())]
    mark: Mark,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Trace {
    /// The card.
    pub c: Config,
    /// Where marks come from.
    pub sources: Vec<Source>,
}

/// Ports of [`Trace`].
pub struct TraceIo {
    /// In the order of the sources.
    pub marks: Vec<Mark>,
    /// Marks are taken.
    pub enable: Sig,
    /// Of these stages: bit = `contract::Stage`.
    pub stages: Sig,
    /// Clocks since reset.
    pub now: Sig,
    /// Quadword of the ring that is wanted in the next clock.
    pub address: Sig,
    /// It.
    pub word: Sig,
    /// Entries written.
    pub producer: Sig,
    /// Marks lost in this clock.
    pub lost: Sig,
    /// No mark waits.
    pub idle: Sig,
}

impl Ports for TraceIo {
    type Config = Trace;
    fn declare(t: &Trace, p: &mut PortBuilder) -> Self {
        let sources = t.sources.len() as u32;
        TraceIo {
            marks: t.sources.iter().map(|s| p.input(&format!("mark_{}", s.name), &t.c)).collect(),
            enable: p.input("enable", &1.into()),
            stages: p.input("stages", &(Stage::ALL.len() as u32).into()),
            now: p.input("now", &64.into()),
            address: p.input("address", &(index_width(t.c.trace_entries) + 1).into()),
            word: p.output("word", &64.into()),
            producer: p.output("producer", &64.into()),
            lost: p.output("lost", &index_width(sources + 1).into()),
            idle: p.output("idle", &1.into()),
        }
    }
}

impl Source {
    /// The bits of a mark that wait.
    fn stored(&self, mark: &Mark) -> Sig {
        let event = if self.events.len() > 1 { vec![mark.event] } else { vec![] };
        let parts = self.parts.iter().map(|part| match part {
            Part::Qp => mark.qp,
            Part::Index => mark.index,
            Part::Psn => mark.psn,
            Part::Opcode => mark.opcode,
            Part::Detail => mark.detail,
        });
        cat(&event.into_iter().chain(parts).collect::<Vec<_>>())
    }
    /// The mark again.
    fn restored(&self, c: &Config, stored: Sig) -> Mark {
        let mut at = stored.width();
        let mut next = |width: u32| {
            at -= width;
            stored.bits(at, width)
        };
        let mut mark = Mark::of(self.events[0], high(), lit(c.qp_bits(), 0));
        if self.events.len() > 1 {
            mark.event = next(8);
        }
        for part in self.parts {
            match part {
                Part::Qp => mark.qp = next(c.qp_bits()),
                Part::Index => mark.index = next(INDEX),
                Part::Psn => mark.psn = next(PSN),
                Part::Opcode => mark.opcode = next(8),
                Part::Detail => mark.detail = next(16),
            }
        }
        mark
    }
}

impl Module for Trace {
    type Io = TraceIo;
    fn name(&self) -> String {
        format!("trace_{}", self.c.name)
    }
    fn doc(&self) -> String {
        format!("Marks of {} sources in a ring of {} entries.", self.sources.len(), self.c.trace_entries)
    }
    fn body(&self, io: &TraceIo) {
        let c = &self.c;
        assert!(
            WAITING * (self.sources.len() as u32) < 1 << AGE,
            "a mark may wait longer than its time tells"
        );
        let now = io.now.bits(0, TIME);
        let (mut lost, mut streams) = (vec![], vec![]);
        for (source, mark) in self.sources.iter().zip(&io.marks) {
            let wanted = source.stage.map_or(high(), |stage| io.stages.bit(stage.code().into()));
            let comes = (mark.valid & io.enable & wanted).named(&format!("{}_comes", source.name));
            let stored = cat(&[now.bits(0, AGE), source.stored(mark)]);
            let fifo =
                instance(&format!("{}_marks", source.name), &Fifo { depth: WAITING, width: stored.width() });
            fifo.input.valid.set(comes);
            fifo.input.data.set(stored);
            lost.push(comes & !fifo.input.ready);
            let word = fifo.output.data;
            let rest = word.width() - AGE;
            streams.push(Stream {
                valid: fifo.output.valid,
                ready: fifo.output.ready,
                data: Waiting { time: word.bits(rest, AGE), mark: source.restored(c, word.bits(0, rest)) },
            });
        }
        let count = io.lost.width();
        io.lost.set(lost.into_iter().fold(lit(count, 0), |sum, l| sum + l.extend(count)));

        // one entry a clock, whole one clock later
        let chosen = merge("leaving", c, &streams.iter().collect::<Vec<_>>());
        chosen.ready.set(high());
        let age = now.bits(0, AGE) - chosen.data.time;
        let time = (now - age.extend(TIME)).named("marked_at");
        let entry = delay("entry", cat(&[chosen.data.mark.entry(), time]));
        let writes = delay_init("writes", chosen.valid);
        let (was_on, producer) = (delay_init("was_on", io.enable), reg_init("producer_count", 64, 0));
        let bits = index_width(c.trace_entries);
        let ring = Memory::new("ring", c.trace_entries, TraceEntryBits::BITS).style("block");
        ring.write(writes, producer.bits(0, bits), entry);
        when(io.enable & !was_on, || producer.set(0)).elif(writes, || producer.set(producer + 1));
        io.producer.set(producer);
        let word = ring.read("ring_word", high(), io.address.bits(1, bits));
        let upper = delay("upper", io.address.bit(0));
        io.word.set(mux(upper, word.bits(64, 64), word.bits(0, 64)));

        let waits: Vec<Sig> = streams.iter().map(|s| s.valid).collect();
        io.idle.set(!any_of(&waits) & !writes);
    }
}
