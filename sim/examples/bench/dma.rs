//! The DMA engines alone, at 512 bit, against the TLPs that PCI Express carries.
//!
//! ```text
//! payload ─▶ write ─MWr─▶\                /─▶ up ──▶ memory
//!                         transmit ─▶ rq ─          root complex, its link and memory: the PCIe model of the cards
//! gather ──▶ read ──MRd─▶/  ▲             \─◀ rc ◀── completions, 900 ns later
//!            data, done ◀───┴── interpreted: the RTL of hdl/nic/src/pcie, nothing else of the card
//! ```
//! Whatever the engine takes it is given: payload writes, or reads, of 4 KiB back to back. The bound is what a TLP of 256 bytes
//! with its 24 bytes of header and framing (a completion: 20) leaves of the link's 126.03 Gb/s. What arrives is compared with
//! what should.

use crate::{Job, figure::Figure, load::PCIE_MBPS};
use hdl::{
    Bits, Bundle, Interpreter, Module, Ports, Sig, Stream, delay, elaborate, high, instance, reg_init,
};
use nic::{
    Config,
    flow::{PayloadWrite, PcieConfig, ReadData, ReadDone, ReadRequest, TlpBeat},
    pcie::{read::Read, transmit::Transmit, write::Write},
};
use pcie_sim::{Iommu, Kind, Permissions, RawTlp, RootComplex, SparseMemory, Time};
use sim::card::{CORE_PERIOD, root_config};
use std::sync::Arc;

/// Bytes of a beat.
const BEAT: usize = 64;
/// Bytes of a request.
const REQUEST: u64 = 4096;
/// Bytes that the engine moves while it is measured, and before.
const BYTES: u64 = 1 << 20;
const WARM: u64 = 1 << 17;
/// Where host memory is.
const IOVA: u64 = 0x1_0000_0000;
/// Bytes of it: all addresses of a client of the read engine.
const MEMORY: u64 = 1 << 21;

/// Write engine, read engine and their arbiter.
#[derive(Debug)]
struct Engines(Config);

#[derive(Ports)]
#[ports(Engines)]
struct EnginesIo {
    #[sink(c.0.clone())]
    payload: Stream<PayloadWrite>,
    #[sink]
    gather: Stream<ReadRequest>,
    #[sink(c.0.clone())]
    rc: Stream<TlpBeat>,
    #[source(c.0.clone())]
    rq: Stream<TlpBeat>,
    #[input]
    posted_ok: Sig,
    #[input]
    nonposted_ok: Sig,
    #[input]
    pcie: PcieConfig,
    #[output(c.0.clone())]
    data: ReadData,
    #[output]
    done: ReadDone,
}

impl Module for Engines {
    type Io = EnginesIo;
    fn name(&self) -> String {
        "dma_engines".into()
    }
    fn doc(&self) -> String {
        "Write engine, read engine and their arbiter.".into()
    }
    fn body(&self, io: &EnginesIo) {
        let c = &self.0;
        let write = instance("write", &Write(c.clone()));
        let read = instance("read", &Read(c.clone()));
        let transmit = instance("transmit", &Transmit(c.clone()));
        write.pcie.assign(&io.pcie);
        read.pcie.assign(&io.pcie);
        write.payload.take(&io.payload);
        read.gather.take(&io.gather);
        for none in [&write.complete, &write.atomic] {
            none.valid.set(0);
            none.data.assign_zero();
        }
        for none in [&read.fetch, &read.place, &read.command, &read.atomic] {
            none.valid.set(0);
            none.data.assign_zero();
        }
        // a packet buffer whose words say where they are
        write.packet_word.set(delay("packet_word", write.packet_address).extend(c.data_bits()));
        let now = reg_init("now", 64, 0);
        now.set(now + 1);
        read.now.set(now);
        read.flr.set(0);
        read.rc.take(&io.rc);
        io.data.assign(&read.data);
        io.done.assign(&read.done);
        transmit.write.take(&write.request);
        transmit.read.take(&read.request);
        transmit.posted_ok.set(io.posted_ok);
        transmit.nonposted_ok.set(io.nonposted_ok);
        transmit.bus_master.set(high());
        io.rq.take(&transmit.rq);
    }
}

/// Everything measured here.
pub fn jobs() -> Vec<Job> {
    vec![
        Job::of("dma_write_share", |id| share(id, false, 24)),
        Job::of("dma_read_share", |id| share(id, true, 20)),
    ]
}

fn share(id: &str, read: bool, framing: u64) -> Figure {
    let mut bench = Bench::new(read);
    while bench.moved < WARM {
        bench.clock();
    }
    let (clock, moved) = (bench.clock, bench.moved);
    while bench.moved < moved + BYTES {
        bench.clock();
    }
    let rate = (bench.moved - moved) as f64 * 8.0 / ((bench.clock - clock) * CORE_PERIOD) as f64 * 1000.0;
    bench.judge();
    let most = PCIE_MBPS as f64 / 1000.0 * 256.0 / (256 + framing) as f64;
    let what = if read { "reads of 4 KiB, MRRS 512, completions" } else { "writes of 4 KiB, TLPs" };
    let context = format!("{what} of 256 bytes, 512 bit; {rate:.2} of {most:.2} Gb/s");
    Figure {
        id: id.into(),
        value: 100.0 * rate / most,
        unit: "% of the TLP bound".into(),
        bound: 100.0,
        context,
    }
}

struct Bench {
    engines: Interpreter,
    root: RootComplex,
    memory: Arc<SparseMemory>,
    read: bool,
    clock: u64,
    /// Bytes that requests taken so far name.
    asked: u64,
    /// Bytes that have crossed: of writes in TLPs that have left, of reads in words that have come.
    moved: u64,
    /// The TLP on its way out, the one on its way in with what of it was taken.
    out: Vec<u8>,
    completion: Option<(RawTlp, usize)>,
}

impl Bench {
    fn new(read: bool) -> Self {
        let mut config = root_config();
        (config.link.up_mbps, config.link.down_mbps, config.endpoint.width) = (PCIE_MBPS, PCIE_MBPS, 16);
        config.enumeration.bus_master = true;
        let mut root = RootComplex::new(config, 1, Iommu::new()).expect("a root complex");
        let memory = Arc::new(SparseMemory::new());
        root.memory_mut().map(IOVA, MEMORY, Permissions::BOTH, memory.clone(), 0).expect("memory");
        if read {
            // its words say where they are
            (0..MEMORY).step_by(BEAT).for_each(|at| memory.put(at, &at.to_le_bytes()));
        }
        let design = elaborate(&Engines(Config::full())).expect("the engines");
        let mut engines = Interpreter::new(&design);
        engines.poke("reset", 1);
        (0..3).for_each(|_| engines.clock());
        engines.poke("reset", 0);
        let sideband = root.sideband();
        for (name, value) in [
            ("requester_id", u64::from(sideband.requester)),
            ("max_payload", 1),
            ("max_read_request", 2),
            ("extended_tag", 1),
            ("bus_master", 1),
        ] {
            engines.poke(&format!("pcie_{name}"), value);
        }
        engines.poke("rq_ready", 1);
        Self { engines, root, memory, read, clock: 0, asked: 0, moved: 0, out: vec![], completion: None }
    }

    fn clock(&mut self) {
        self.clock += 1;
        let now = Time(self.clock * CORE_PERIOD);
        let sim = &mut self.engines;
        // what it is given
        let stream = if self.read { "gather" } else { "payload" };
        sim.poke(&format!("{stream}_valid"), 1);
        sim.poke(&format!("{stream}_iova"), IOVA + self.asked % MEMORY);
        sim.poke(&format!("{stream}_length"), REQUEST);
        let reach = if self.read { MEMORY } else { u64::from(Config::full().packet_buffer_bytes) };
        sim.poke(&format!("{stream}_address"), self.asked % reach);
        self.asked += REQUEST * sim.peek(&format!("{stream}_ready"));
        // the link
        sim.poke("posted_ok", u64::from(self.root.can_accept(now, Kind::Posted, 256)));
        sim.poke("nonposted_ok", u64::from(self.root.can_accept(now, Kind::NonPosted, 0)));
        if self.completion.is_none() {
            self.completion = self.root.poll_rc(now).map(|tlp| (tlp, 0));
        }
        sim.poke("rc_valid", u64::from(self.completion.is_some()));
        let mut taken = false;
        if let Some((tlp, at)) = &mut self.completion {
            let header = tlp.header.iter().fold(0u128, |all, dword| all << 32 | u128::from(*dword));
            let mut beat = tlp.payload[*at..tlp.payload.len().min(*at + BEAT)].to_vec();
            beat.resize(BEAT, 0);
            let last = *at + BEAT >= tlp.payload.len();
            sim.poke_bits("rc_header", &Bits::new(128, header));
            sim.poke_bits("rc_data", &Bits::from_bytes(8 * BEAT as u32, &beat));
            sim.poke("rc_first", u64::from(*at == 0));
            sim.poke("rc_last", u64::from(last));
            let moves = sim.peek("rc_ready") == 1;
            *at += if moves { BEAT } else { 0 };
            taken = moves && last;
        }
        if taken {
            self.completion = None;
        }
        if sim.peek("rq_valid") == 1 {
            let header = sim.peek_bits("rq_header").low128();
            let header = [96, 64, 32, 0].map(|shift| (header >> shift) as u32);
            if !self.read {
                self.out.extend(sim.peek_bits("rq_data").to_bytes());
            }
            if sim.peek("rq_last") == 1 {
                let payload = std::mem::take(&mut self.out);
                if !self.read {
                    self.moved += payload.len() as u64;
                }
                self.root.card_sends(now, RawTlp { header, payload });
            }
        }
        if sim.peek("data_valid") == 1 {
            assert_eq!(sim.peek_bits("data_data").low(), sim.peek("data_address"), "a word of another place");
            self.moved += BEAT as u64;
        }
        assert!(sim.peek("done_valid") == 0 || sim.peek("done_failed") == 0, "a read failed");
        sim.clock();
        assert!(sim.failures().is_empty(), "{:?}", sim.failures());
    }

    /// No rule was broken, and what was written is where it should be.
    fn judge(&mut self) {
        assert!(self.root.violations().is_empty(), "{:?}", self.root.violations());
        let words = u64::from(Config::full().packet_buffer_bytes) / BEAT as u64;
        for at in (0..WARM / 2).step_by(BEAT).filter(|_| !self.read) {
            let word = self.memory.get(at, BEAT);
            assert_eq!(word[..8], (at / BEAT as u64 % words).to_le_bytes(), "written at {at:#x}");
        }
    }
}
