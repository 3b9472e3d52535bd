//! The card's PCIe part between the pins of the UltraScale+ core and a memory: what co-simulation looks at.
//!
//! ```text
//!   core's pins ── us_pcie ── transmit ── read ──> memory ──> write        (rq, rc)
//!                     └────── bar ── registers, doorbells, msix ──> write  (cq, cc)
//! ```
//! In: reads of host memory into the memory (`fetch`) and writes out of it (`store`), vectors to raise; the core's pins,
//! whose names and widths are those of [`PCIE4C`]. Out: what is done. BAR0 is a RAM. The blocks are those of the card, at
//! 512 bit; nothing here is in a bitstream.
//!
//! Requirements: PCIE

use crate::boards::cell::PCIE4C;
use crate::config::Config;
use crate::flow::{DoorbellWrite, PayloadWrite, ReadDone, ReadRequest, TlpBeat};
use crate::pcie::{bar::Bar, msix::Msix, read::Read, transmit::Transmit, write::Write};
use crate::prim::fifo::buffer;
use crate::shims::us_pcie::{TIES, UsPcie};
use hdl::{
    Bits, Bundle, Domain, Memory, Module, PortBuilder, Ports, Sig, Stream, Width, cat, constant, delay_init,
    high, instance, lit, low, reg_init,
};
use std::collections::BTreeMap;

/// The bench.
#[derive(Clone, Debug)]
pub struct UsPcieBench;

/// Ports of [`UsPcieBench`].
pub struct UsPcieBenchIo {
    clock: Sig,
    reset: Sig,
    to_core: BTreeMap<&'static str, Sig>,
    from_core: BTreeMap<&'static str, Sig>,
    fetch: Stream<ReadRequest>,
    done: ReadDone,
    store: Stream<PayloadWrite>,
    written: Sig,
    doorbell: Stream<DoorbellWrite>,
    raise: Stream<Sig>,
    refused: Sig,
}

impl Ports for UsPcieBenchIo {
    type Config = UsPcieBench;
    fn declare(_: &UsPcieBench, p: &mut PortBuilder) -> Self {
        let c = Config::full();
        let of_card = |pin: &&(&str, u32)| !["pci_exp", "sys_", "user_"].iter().any(|s| pin.0.starts_with(s));
        UsPcieBenchIo {
            clock: p.input("clock", &Width(1)),
            reset: p.input("reset", &Width(1)),
            to_core: PCIE4C
                .inputs
                .iter()
                .filter(of_card)
                .map(|&(n, w)| (n, p.output(n, &Width(w))))
                .collect(),
            from_core: PCIE4C
                .outputs
                .iter()
                .filter(of_card)
                .map(|&(n, w)| (n, p.input(n, &Width(w))))
                .collect(),
            fetch: p.sink("fetch", &()),
            done: p.output("done", &()),
            store: p.sink("store", &c),
            written: p.output("written", &Width(1)),
            doorbell: p.source("doorbell", &c),
            raise: p.sink("raise", &Width(c.vector_bits())),
            refused: p.output("refused", &Width(1)),
        }
    }
}

impl Module for UsPcieBench {
    type Io = UsPcieBenchIo;
    fn name(&self) -> String {
        "us_pcie_bench".into()
    }
    fn doc(&self) -> String {
        "The card's PCIe part between the pins of the UltraScale+ core and a memory.".into()
    }
    fn body(&self, io: &UsPcieBenchIo) {
        Domain::new(io.clock, Some(io.reset)).within(|| blocks(io));
    }
}

fn blocks(io: &UsPcieBenchIo) {
    let c = &Config::full();
    let shim = instance("us_pcie", &UsPcie(c.clone()));
    let mut pins = io.to_core.clone();
    for (pin, from) in shim.to_core() {
        pins.remove(pin.as_str()).expect("the core has every pin of the shim").set(from);
    }
    for (name, pin) in pins {
        match TIES.iter().find(|(tie, _)| *tie == name) {
            Some((_, value)) => pin.set(lit(pin.width(), *value)),
            None => pin.set(constant(Bits::zero(pin.width()))),
        }
    }
    for (pin, to) in shim.from_core() {
        to.set(io.from_core[pin.as_str()]);
    }

    let read = instance("read", &Read(c.clone()));
    let write = instance("write", &Write(c.clone()));
    let transmit = instance("transmit", &Transmit(c.clone()));
    let bar = instance("bar", &Bar(c.clone()));
    let msix = instance("msix", &Msix(c.clone()));
    let pcie = shim.pcie;

    // as in the card
    let cq = Stream {
        valid: shim.cq.valid,
        ready: shim.cq.ready,
        data: cat(&[shim.cq_bar, shim.cq.data.to_bits()]),
    };
    let width = Width(TlpBeat::total_width(c) + 3);
    let cq = buffer("cq_slice", &width, 2, &cq);
    bar.cq.valid.set(cq.valid);
    bar.cq.data.assign(&TlpBeat::from_bits(c, cq.data.bits(0, width.0 - 3)));
    bar.cq_bar.set(cq.data.bits(width.0 - 3, 3));
    cq.ready.set(bar.cq.ready);
    shim.cc.take(&buffer("cc_slice", c, 2, &bar.cc));
    read.rc.take(&buffer("rc_slice", c, 2, &shim.rc));
    shim.rq.take(&transmit.rq);
    transmit.write.take(&write.request);
    transmit.read.take(&read.request);
    transmit.posted_ok.set(shim.posted_ok);
    transmit.nonposted_ok.set(shim.nonposted_ok);
    transmit.bus_master.set(pcie.bus_master);
    read.pcie.assign(&pcie);
    write.pcie.assign(&pcie);
    let now = reg_init("ticks", 64, 0);
    now.set(now + 1);
    read.now.set(now);
    read.flr.set(shim.flr);

    // the memory
    read.gather.take(&io.fetch);
    for client in [&read.fetch, &read.place, &read.command, &read.atomic] {
        client.valid.set(low());
        for s in client.data.signals() {
            s.set(constant(Bits::zero(s.width())));
        }
    }
    io.done.assign(&read.done);
    let memory =
        Memory::with_lanes("words", c.packet_buffer_bytes / c.data_bytes, c.data_bits(), 8).style("block");
    let word = read.data.address.bits(c.lane_bits(), memory.address_width());
    memory.write_lanes(read.data.valid, word, read.data.data, read.data.lanes);
    write.packet_word.set(memory.read("word", high(), write.packet_address));
    write.payload.take(&io.store);
    io.written.set(write.written);
    write.complete.take(&msix.write);
    write.atomic.valid.set(low());
    for s in write.atomic.data.signals() {
        s.set(constant(Bits::zero(s.width())));
    }

    // BARs
    bar.completer_id.set(pcie.requester_id);
    let access = &bar.register;
    access.ready.set(high());
    let registers = Memory::with_lanes("registers", 4096, 64, 8).style("block");
    let at = access.data.address.bits(3, 12);
    registers.write_lanes(access.valid & access.data.write, at, access.data.data, access.data.enables);
    bar.register_read.data.set(registers.read("register", high(), at));
    bar.register_read.valid.set(delay_init("answers", access.valid & !access.data.write));
    io.doorbell.take(&bar.doorbell);
    msix.access.take(&bar.msix);
    bar.msix_read.take(&msix.read);
    msix.enable.set(pcie.msix_enable);
    msix.mask.set(pcie.msix_mask);
    msix.raise.take(&io.raise);
    io.refused.set(read.count.valid | bar.count.valid);
}
