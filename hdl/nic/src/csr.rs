//! The registers of BAR0, from `contract::register`: one clock per access.
//!
//! In: quadword accesses of [`crate::pcie::bar`], live values, refusals and events to count. Out: read answers (in
//! order, two clocks later), the settings of the command queue. Counters are 64 bits in one memory: events gather in
//! small pending counts that a scan adds, one counter per clock, so a counter lags by at most 132 clocks; `idle` says
//! that none lags. Reading the low half of a quadword latches the high half for the read that follows.
//!
//! Requirements: CARD PCIE

use crate::config::Config;
use crate::flash::FlashControl;
use crate::flow::Count;
use crate::pcie::bar::RegisterAccess;
use contract::register as r;
use contract::trace::WINDOW_ENTRIES;
use contract::{Reject, Stage, StageCounter};
use hdl::{
    Bundle, Memory, Module, PortBuilder, Ports, Sig, Stream, any_of, cat, constant, delay, high, index_width,
    lit, low, mux, reg, reg_init, when, wire,
};

/// Events to add to a stage counter.
#[derive(Clone, Debug)]
pub struct StageEvent {
    /// Which counter.
    pub counter: StageCounter,
    /// Bits of the amount added in a clock (1: a pulse).
    pub bits: u32,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Csr {
    /// The card.
    pub c: Config,
    /// The refusal sources: what each may count. Elsewhere a comparison of every source with every counter would
    /// cost more than the counters.
    pub rejects: Vec<&'static [Reject]>,
    /// The event sources.
    pub stages: Vec<StageEvent>,
}

/// Ports of [`Csr`].
pub struct CsrIo {
    /// Accesses.
    pub access: Stream<RegisterAccess>,
    /// Read answers.
    pub data: Stream<Sig>,
    /// Clocks since reset.
    pub now: Sig,
    /// Earliest deadline; all ones: none.
    pub next_due: Sig,
    /// The stage trace is on.
    pub trace_enable: Sig,
    /// For these stages.
    pub trace_stages: Sig,
    /// Entries written.
    pub trace_producer: Sig,
    /// Quadword of the ring that is wanted in the next clock.
    pub trace_address: Sig,
    /// It.
    pub trace_word: Sig,
    /// Nothing under way.
    pub quiet: Sig,
    /// MAC address of the port.
    pub port_mac: Sig,
    /// MTU of the port.
    pub port_mtu: Sig,
    /// Link up.
    pub link_up: Sig,
    /// Which QP takes frames that are not RoCE.
    pub raw_receive: Sig,
    /// To the flash, if the card has it.
    pub flash: FlashControl,
    /// The FPGA is to be loaded anew.
    pub flash_reload: Sig,
    /// Its word.
    pub flash_word: Sig,
    /// Bytes that it still has to exchange.
    pub flash_left: Sig,
    /// Commands answered.
    pub command_consumer: Sig,
    /// Command ring.
    pub command_base: Sig,
    /// Response ring.
    pub response_base: Sig,
    /// log2 of the rings' entries.
    pub command_log_depth: Sig,
    /// Commands written.
    pub command_producer: Sig,
    /// Commands are executed.
    pub command_enable: Sig,
    /// Refusals.
    pub rejects: Vec<Count>,
    /// Amounts, in the order of [`Csr::stages`].
    pub stages: Vec<Sig>,
    /// No counter lags.
    pub idle: Sig,
}

impl Ports for CsrIo {
    type Config = Csr;
    fn declare(c: &Csr, p: &mut PortBuilder) -> Self {
        CsrIo {
            access: p.sink("access", &()),
            data: p.source("read", &64.into()),
            now: p.input("now", &64.into()),
            next_due: p.input("next_due", &64.into()),
            trace_enable: p.output("trace_enable", &1.into()),
            trace_stages: p.output("trace_stages", &(Stage::ALL.len() as u32).into()),
            trace_producer: p.input("trace_producer", &64.into()),
            trace_address: p.output("trace_address", &index_width(2 * WINDOW_ENTRIES).into()),
            trace_word: p.input("trace_word", &64.into()),
            quiet: p.input("quiet", &1.into()),
            port_mac: p.input("port_mac", &48.into()),
            port_mtu: p.input("port_mtu", &16.into()),
            link_up: p.input("link_up", &1.into()),
            raw_receive: p.output("raw_receive", &32.into()),
            flash: p.output("flash", &()),
            flash_reload: p.output("flash_reload", &1.into()),
            flash_word: p.input("flash_word", &64.into()),
            flash_left: p.input("flash_left", &4.into()),
            command_consumer: p.input("command_consumer", &16.into()),
            command_base: p.output("command_base", &64.into()),
            response_base: p.output("response_base", &64.into()),
            command_log_depth: p.output("command_log_depth", &4.into()),
            command_producer: p.output("command_producer", &16.into()),
            command_enable: p.output("command_enable", &1.into()),
            rejects: (0..c.rejects.len()).map(|i| p.input(&format!("reject_{i}"), &())).collect(),
            stages: c
                .stages
                .iter()
                .enumerate()
                .map(|(i, e)| p.input(&format!("stage_{i}"), &e.bits.into()))
                .collect(),
            idle: p.output("idle", &1.into()),
        }
    }
}

/// Bits of a pending count of one source of single events: 128 clocks fit.
const PENDING: u32 = 8;
/// Bits of the largest pending count: 128 clocks of 16-bit amounts.
const ADD: u32 = 24;
/// Clocks from an event to its place in the memory at most: into the pending count, a whole scan, the read, the write.
const LAG: u64 = 132;

impl Csr {
    /// The fixed half-quadwords: (offset of the doubleword, value).
    fn constants(&self) -> Vec<(u32, u32)> {
        let c = &self.c;
        let hash = contract::LAYOUT_HASH;
        vec![
            (r::MAGIC, r::MAGIC_VALUE),
            (r::VERSION, r::VERSION_VALUE),
            (r::LAYOUT_HASH, hash as u32),
            (r::LAYOUT_HASH + 4, (hash >> 32) as u32),
            (
                r::FEATURES,
                r::feature::RC
                    | r::feature::READ
                    | r::feature::ATOMIC
                    | r::feature::INLINE
                    | r::feature::IPV6
                    | r::feature::INVALIDATE
                    | r::feature::MODERATION
                    | r::feature::PUSH
                    | r::feature::RAW
                    | if c.trace_entries > 0 { r::feature::TRACE } else { 0 }
                    | if c.flash_half_clocks > 0 { r::feature::FLASH } else { 0 },
            ),
            (r::DATAPATH_BYTES, c.data_bytes),
            (r::CORE_CLOCK_KHZ, c.core_clock_khz),
            (r::TICKS_PER_4096NS, c.ticks_per_4096ns),
            (r::MAX_QP, c.qps),
            (r::MAX_MR, c.mrs),
            (r::MAX_CQ, c.cqs),
            (r::MAX_EQ, c.eqs),
            (r::MSIX_VECTORS, c.vectors),
            (r::DOORBELL_STRIDE, 1 << c.log_doorbell_stride),
            (r::DOORBELL_PAGES, c.pages),
            (r::MAX_SGE, contract::ring::MAX_SGE),
            (r::MAX_INLINE, contract::ring::MAX_INLINE),
            (r::MAX_SEND_SGE, contract::ring::MAX_SGE),
            (r::RECORD_COUNT, c.records),
            (r::MAX_MESSAGE, 31),
            (r::READ_TAGS, c.read_tags),
            (r::READ_COUNT, c.reads),
            (r::RESPONSE_COUNT, c.responses),
            (r::TRACE_ENTRIES, c.trace_entries),
        ]
    }
}

impl Module for Csr {
    type Io = CsrIo;
    fn name(&self) -> String {
        format!("csr_{}", self.c.name)
    }
    fn doc(&self) -> String {
        "The registers of BAR0; documented in docs/registers.md.".into()
    }
    fn body(&self, io: &CsrIo) {
        let a = &io.access.data;
        let address = a.address;
        let moves = io.access.moves();
        let at = |offset: u32| address.eq(offset & !7);

        // settings
        let command_base = reg_init("command_base_value", 64, 0);
        let response_base = reg_init("response_base_value", 64, 0);
        let log_depth = reg_init("command_log_depth_value", 32, 0);
        let producer = reg_init("command_producer_value", 32, 0);
        let enable = reg_init("command_enable_value", 32, 0);
        let trace_control = reg_init("trace_control_value", 32, 0);
        let trace_stages = reg_init("trace_stages_value", 32, (1 << Stage::ALL.len()) - 1);
        let raw_receive = reg_init("raw_receive_value", 32, 0);
        let merged = |old: Sig, data: Sig, enables: Sig| {
            let bytes: Vec<Sig> =
                (0..old.width() / 8).rev().map(|i| mux(enables.bit(i), data.byte(i), old.byte(i))).collect();
            cat(&bytes)
        };
        let write = moves & a.write;
        for (reg, offset) in [(command_base, r::COMMAND_BASE), (response_base, r::RESPONSE_BASE)] {
            when(write & at(offset), || reg.set(merged(reg, a.data, a.enables)));
        }
        for (reg, offset) in [
            (log_depth, r::COMMAND_LOG_DEPTH),
            (producer, r::COMMAND_PRODUCER),
            (enable, r::COMMAND_ENABLE),
            (trace_control, r::TRACE_CONTROL),
            (trace_stages, r::TRACE_STAGES),
            (raw_receive, r::RAW_RECEIVE),
        ] {
            let half = offset / 4 % 2;
            let (data, enables) = (a.data.bits(half * 32, 32), a.enables.bits(half * 4, 4));
            when(write & at(offset), || reg.set(merged(reg, data, enables)));
        }
        io.command_base.set(command_base);
        io.response_base.set(response_base);
        io.command_log_depth.set(log_depth.bits(0, 4));
        io.command_producer.set(producer.bits(0, 16));
        io.command_enable.set(enable.bit(0));
        io.raw_receive.set(raw_receive);
        io.trace_enable.set(trace_control.bit(0));
        io.trace_stages.set(trace_stages.bits(0, io.trace_stages.width()));

        let flash_control = if self.c.flash_half_clocks > 0 {
            let control = reg_init("flash_control_value", 32, 0);
            let lower = a.enables.bits(0, 4);
            when(write & at(r::FLASH_CONTROL), || control.set(merged(control, a.data.bits(0, 32), lower)));
            let whole = a.enables.bits(4, 4).all();
            io.flash.select.set(control.bit(0));
            io.flash.load.set(write & at(r::FLASH_DATA));
            io.flash.data.set(merged(io.flash_word, a.data, a.enables));
            let count = a.data.bits(32, 32);
            io.flash.start.set(write & at(r::FLASH_TRANSFER) & whole & count.bits(4, 28).none());
            io.flash.count.set(count.bits(0, 4));
            let reload = reg_init("reload", 1, 0);
            let key = a.data.bits(0, 32).eq(r::FLASH_RELOAD_KEY) & lower.all();
            when(write & at(r::FLASH_RELOAD) & key, || reload.set(high()));
            io.flash_reload.set(reload);
            Some(control)
        } else {
            for s in io.flash.signals().into_iter().chain([io.flash_reload]) {
                s.set(constant(hdl::Bits::zero(s.width())));
            }
            None
        };

        // the quadword of everything but counters
        let half = |value: Sig| value.resize(32);
        let mut halves: Vec<(u32, Sig)> =
            self.constants().into_iter().map(|(o, v)| (o, lit(32, v.into()))).collect();
        let both = |halves: &mut Vec<(u32, Sig)>, offset: u32, value: Sig| {
            halves.push((offset, value.bits(0, 32)));
            halves.push((offset + 4, value.bits(32, 32)));
        };
        both(&mut halves, r::COMMAND_BASE, command_base);
        both(&mut halves, r::RESPONSE_BASE, response_base);
        halves.push((r::COMMAND_LOG_DEPTH, log_depth));
        halves.push((r::COMMAND_PRODUCER, producer));
        halves.push((r::COMMAND_CONSUMER, half(io.command_consumer)));
        halves.push((r::COMMAND_ENABLE, enable));
        both(&mut halves, r::NOW, io.now);
        both(&mut halves, r::NEXT_DUE, io.next_due);
        halves.push((r::STATUS, half(io.quiet)));
        halves.push((r::TRACE_CONTROL, trace_control));
        halves.push((r::TRACE_STAGES, trace_stages));
        both(&mut halves, r::TRACE_PRODUCER, io.trace_producer);
        both(&mut halves, r::PORT_MAC, io.port_mac.extend(64));
        halves.push((r::PORT_MTU, half(io.port_mtu)));
        halves.push((r::PORT_STATUS, half(io.link_up)));
        halves.push((r::RAW_RECEIVE, raw_receive));
        if let Some(control) = flash_control {
            halves.push((r::FLASH_CONTROL, control));
            halves.push((r::FLASH_TRANSFER, half(io.flash_left)));
            both(&mut halves, r::FLASH_DATA, io.flash_word);
        }
        let mut quads: Vec<u32> = halves.iter().map(|(o, _)| o & !7).collect();
        quads.sort_unstable();
        quads.dedup();
        let mut value = constant(hdl::Bits::zero(64));
        for quad in quads {
            let part = |offset| halves.iter().find(|(o, _)| *o == offset).map_or(lit(32, 0), |(_, v)| *v);
            value = value | (cat(&[part(quad + 4), part(quad)]) & at(quad).repeat(64));
        }

        // counters: 0..64 refusals, 64..128 stages
        let memory = Memory::new("counters", 128, 64);
        let scan = reg_init("scan", 7, 0);
        scan.set(scan + 1);
        let first_pass = reg_init("first_pass", 1, 1);
        when(scan.all(), || first_pass.set(low()));
        let scanned = delay("scanned", scan);
        let scanned_word = memory.read("scanned_word", high(), scan);
        let started = delay("started", high());
        let clearing = delay("clearing", first_pass);
        for (i, (may, source)) in self.rejects.iter().zip(&io.rejects).enumerate() {
            let listed: Vec<Sig> = may.iter().map(|reject| source.index.eq(reject.code())).collect();
            hdl::assert_always(&format!("source_{i}_counts_what_it_lists"), !source.valid | any_of(&listed));
        }
        let mut adds = vec![];
        for index in 0..128u32 {
            let (widest, increments): (u32, Vec<Sig>) = if index < 64 {
                let mine = self.rejects.iter().zip(&io.rejects);
                let mine = mine.filter(|(may, _)| may.iter().any(|reject| *reject as u32 == index));
                (1, mine.map(|(_, s)| s.valid & s.index.eq(index)).collect())
            } else {
                let mine = self.stages.iter().zip(&io.stages).filter(|(e, _)| e.counter as u32 == index - 64);
                let (widths, signals): (Vec<u32>, Vec<Sig>) = mine.map(|(e, s)| (e.bits, *s)).unzip();
                (widths.into_iter().max().unwrap_or(1), signals)
            };
            if increments.is_empty() {
                continue;
            }
            let bits = PENDING + widest - 1 + (usize::BITS - (increments.len() - 1).leading_zeros());
            let name = if index < 64 {
                format!("pending_reject_{index}")
            } else {
                format!("pending_stage_{}", index - 64)
            };
            let pending = reg_init(&name, bits, 0);
            let sum = increments.iter().fold(None, |s: Option<Sig>, i| {
                let i = i.extend(bits);
                Some(s.map_or(i, |s| s + i))
            });
            let sum = sum.expect("not empty");
            let mine = scanned.eq(index) & started;
            pending.set(mux(mine, sum, pending + sum));
            adds.push(pending.extend(ADD) & mine.repeat(ADD));
        }
        let add = adds.into_iter().reduce(|a, b| a | b).unwrap_or_else(|| lit(ADD, 0));
        memory.write(started, scanned, mux(clearing, lit(64, 0), scanned_word) + add.extend(64));
        // Cheaper than to ask every pending count: after a whole scan without an event none is left.
        let events: Vec<Sig> =
            io.rejects.iter().map(|s| s.valid).chain(io.stages.iter().map(|s| s.any())).collect();
        let lag = reg_init("lag", 8, 0);
        when(any_of(&events), || lag.set(LAG)).elif(lag.any(), || lag.set(lag - 1));
        io.idle.set(lag.none() & !first_pass & !clearing);

        // reads: memory and ring answer one clock later, so everything does
        io.trace_address.set(address.bits(3, io.trace_address.width()));
        let of_ring = delay("is_trace", address.bits(13, 7).eq(r::TRACE_RING >> 13));
        let counter_area = address.ge(r::REJECT_COUNTERS) & address.lt(r::STAGE_COUNTERS + 512);
        let in_stage = address.ge(r::STAGE_COUNTERS);
        let counter = cat(&[in_stage, address.bits(3, 6)]);
        let counter_known = address.bits(9, 2).none();
        let word = memory.read("counter_word", high(), counter);
        let answering = reg_init("answering", 1, 0);
        let is_counter = delay("is_counter", counter_area & counter_known);
        let plain = delay("plain", value);
        let wanted = delay("wanted", a.enables);
        let read_address = delay("read_address", address);
        let latched = reg("latched", 32);
        let latched_address = reg("latched_address", 20);
        let latched_valid = reg_init("latched_valid", 1, 0);
        let fresh = mux(of_ring, io.trace_word, mux(is_counter, word, plain)).named("fresh");
        let high_only = wanted.bits(0, 4).none() & wanted.bits(4, 4).any();
        let low_only = wanted.bits(4, 4).none() & wanted.bits(0, 4).any();
        let from_latch = high_only & latched_valid & latched_address.eq(read_address);
        let answer = mux(from_latch, cat(&[latched, fresh.bits(0, 32)]), fresh);
        when(answering, || {
            when(low_only, || {
                latched.set(fresh.bits(32, 32));
                latched_address.set(read_address);
                latched_valid.set(high());
            })
            .otherwise(|| latched_valid.set(low()));
        });
        let held = reg("held", 64);
        let holding = reg_init("holding", 1, 0);
        when(answering, || {
            held.set(answer);
            holding.set(high());
        })
        .elif(io.data.moves(), || holding.set(low()));
        io.data.valid.set(holding);
        io.data.data.set(held);
        let free = wire("free", 1);
        free.set(!answering & !holding);
        io.access.ready.set(free);
        answering.set(moves & !a.write);
    }
}
