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
use crate::prim::pick::round_robin;
use contract::{Stage, TraceEvent};
use hdl::{
    Bundle, Memory, Module, PortBuilder, Ports, Sig, cat, delay, delay_init, high, index_width, lit, low,
    mux, reg_init, select, when,
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

/// The pins for the simulation: every mark, before any loss. No signal here has more than 64 bits: those are slow to simulate.
#[derive(Clone, Debug)]
pub struct Marks {
    /// Which sources tell something in this clock.
    pub valid: Sig,
    /// [`Mark::head`] of each.
    pub heads: Vec<Sig>,
    /// [`Mark::body`] of each.
    pub bodies: Vec<Sig>,
}

impl Bundle for Marks {
    type Shape = ();
    #[track_caller]
    fn build(_: &(), name: &str, make: &mut dyn FnMut(&str, u32) -> Sig) -> Self {
        let mut each =
            |part: &str, width| (0..SOURCES).map(|i| make(&format!("{name}_{part}_{i}"), width)).collect();
        let (heads, bodies) = (each("head", 64 - TIME), each("body", 64));
        Marks { valid: make(&format!("{name}_valid"), SOURCES), heads, bodies }
    }
    fn signals(&self) -> Vec<Sig> {
        [self.heads.clone(), self.bodies.clone(), vec![self.valid]].concat()
    }
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
    fn has(&self, part: Part) -> bool {
        self.parts.contains(&part)
    }
    /// What waits of a mark: of its head and of its body.
    fn stored(&self, mark: &Mark) -> (Sig, Sig) {
        let own = |parts: &[(bool, Sig)]| {
            let own: Vec<Sig> = parts.iter().filter(|(has, _)| *has).map(|(_, part)| *part).collect();
            if own.is_empty() { low() } else { cat(&own) }
        };
        let head = own(&[(self.has(Part::Qp), mark.qp), (self.events.len() > 1, mark.event)]);
        let body = own(&[
            (self.has(Part::Detail), mark.detail),
            (self.has(Part::Opcode), mark.opcode),
            (self.has(Part::Psn), mark.psn),
            (self.has(Part::Index), mark.index),
        ]);
        (head, body)
    }
    /// The mark again.
    fn restored(&self, c: &Config, head: Sig, body: Sig) -> Mark {
        let mut mark = Mark::of(self.events[0], high(), lit(c.qp_bits(), 0));
        let (mut in_head, mut in_body) = (0, 0);
        let next = |from: Sig, at: &mut u32, has: bool, part: &mut Sig| {
            if has {
                *part = from.bits(*at, part.width());
                *at += part.width();
            }
        };
        next(head, &mut in_head, self.events.len() > 1, &mut mark.event);
        next(head, &mut in_head, self.has(Part::Qp), &mut mark.qp);
        next(body, &mut in_body, self.has(Part::Index), &mut mark.index);
        next(body, &mut in_body, self.has(Part::Psn), &mut mark.psn);
        next(body, &mut in_body, self.has(Part::Opcode), &mut mark.opcode);
        next(body, &mut in_body, self.has(Part::Detail), &mut mark.detail);
        mark
    }
}

/// Marks of a source that wait: a FIFO whose words lie in two memories.
struct Queue {
    /// Some wait.
    valid: Sig,
    /// The oldest leaves in this clock.
    leaves: Sig,
    /// Its time.
    age: Sig,
    /// The oldest.
    mark: Mark,
    /// One came and found no room.
    lost: Sig,
}

impl Queue {
    fn new(c: &Config, source: &Source, mark: &Mark, comes: Sig, now: Sig) -> Queue {
        hdl::scope(source.name, || {
            let bits = index_width(WAITING);
            let (first, next) = (reg_init("first", bits + 1, 0), reg_init("next", bits + 1, 0));
            let level = (next - first).named("waiting");
            let enters = comes & !level.msb();
            let (head, body) = source.stored(mark);
            let head = cat(&[head, now.bits(0, AGE)]);
            let keep = |name: &str, word: Sig| {
                let memory = Memory::new(name, WAITING, word.width()).style("distributed");
                memory.write(enters, next.bits(0, bits), word);
                memory.read_now(&format!("{name}_word"), first.bits(0, bits))
            };
            let (head, body) = (keep("heads", head), keep("bodies", body));
            let leaves = hdl::wire("leaves", 1);
            when(enters, || next.set(next + 1));
            when(leaves, || first.set(first + 1));
            Queue {
                valid: level.any(),
                leaves,
                age: head.bits(0, AGE),
                mark: source.restored(c, head.bits(AGE, head.width() - AGE), body),
                lost: comes & level.msb(),
            }
        })
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
        let mut queues = vec![];
        for (source, mark) in self.sources.iter().zip(&io.marks) {
            let wanted = source.stage.map_or(high(), |stage| io.stages.bit(stage.code().into()));
            let comes = (mark.valid & io.enable & wanted).named(&format!("{}_comes", source.name));
            queues.push(Queue::new(c, source, mark, comes, now));
        }
        let count = io.lost.width();
        io.lost.set(queues.iter().fold(lit(count, 0), |sum, queue| sum + queue.lost.extend(count)));

        // one entry a clock, whole one clock later
        let each = |part: &dyn Fn(&Queue) -> Sig| queues.iter().map(part).collect::<Vec<_>>();
        let waits = cat(&each(&|queue| queue.valid).into_iter().rev().collect::<Vec<_>>()).named("waits");
        let last = reg_init("last", index_width(queues.len() as u32), 0);
        let chosen = round_robin(waits, last).named("chosen");
        when(waits.any(), || last.set(chosen));
        for (i, queue) in queues.iter().enumerate() {
            queue.leaves.set(queue.valid & chosen.eq(i));
        }
        let age = now.bits(0, AGE) - select(chosen, &each(&|queue| queue.age));
        let time = (now - age.extend(TIME)).named("marked_at");
        let head = cat(&[select(chosen, &each(&|queue| queue.mark.head())), time]);
        let halves = [delay("head", head), delay("body", select(chosen, &each(&|queue| queue.mark.body())))];
        let writes = delay_init("writes", waits.any());
        let (was_on, producer) = (delay_init("was_on", io.enable), reg_init("producer_count", 64, 0));
        when(io.enable & !was_on, || producer.set(0)).elif(writes, || producer.set(producer + 1));
        io.producer.set(producer);
        let bits = index_width(c.trace_entries);
        let (slot, wanted) = (producer.bits(0, bits), io.address.bits(1, bits));
        let words: Vec<Sig> = ["lower", "upper"]
            .into_iter()
            .zip(halves)
            .map(|(name, half)| {
                let ring = Memory::new(&format!("{name}_ring"), c.trace_entries, 64).style("block");
                ring.write(writes, slot, half);
                ring.read(&format!("{name}_word"), high(), wanted)
            })
            .collect();
        io.word.set(mux(delay("is_upper", io.address.bit(0)), words[1], words[0]));
        io.idle.set(!waits.any() & !writes);
    }
}
