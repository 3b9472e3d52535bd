//! The MSI-X table (BAR4: entries at 0, pending bits at 0x800) and the message writer.
//!
//! In: table accesses; vectors to raise. Out: one-doubleword writes. A vector that is masked (its own bit, the
//! function's mask, or MSI-X off) sets its pending bit instead, and is sent once when the last mask goes; repeated
//! triggers meanwhile are one. Masks are set at reset. Never loses a trigger.
//!
//! Requirements: PCIE QUE

use crate::config::Config;
use crate::flow::SmallWrite;
use crate::pcie::bar::RegisterAccess;
use crate::prim::pick::lowest;
use hdl::{
    EnumSig, HwEnum, Memory, Module, Ports, Sig, Stream, cat, high, lit, low, mux, reg, reg_init, when,
};

/// See the head of this file.
#[derive(Debug)]
pub struct Msix(pub Config);

/// Ports of [`Msix`].
#[derive(Ports)]
#[ports(Msix)]
pub struct MsixIo {
    /// Accesses of the host.
    #[sink]
    pub access: Stream<RegisterAccess>,
    /// Answers to reads.
    #[source(64)]
    pub read: Stream<Sig>,
    /// Vectors to raise.
    #[sink(c.0.vector_bits())]
    pub raise: Stream<Sig>,
    /// MSI-X enable of the function.
    #[input]
    pub enable: Sig,
    /// Function mask.
    #[input]
    pub mask: Sig,
    /// Messages.
    #[source]
    pub write: Stream<SmallWrite>,
    /// A message was sent.
    #[output]
    pub sent: Sig,
    /// Nothing to do that could be done.
    #[output]
    pub idle: Sig,
}

/// Where the pending bits stand in BAR4.
pub const PBA_OFFSET: u32 = 0x800;

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Idle,
    Look,
    Send,
}

impl Module for Msix {
    type Io = MsixIo;
    fn name(&self) -> String {
        format!("msix_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "MSI-X table, pending bits, message writer.".into()
    }
    fn body(&self, io: &MsixIo) {
        let c = &self.0;
        let n = c.vectors;
        assert!(n <= 64, "one quadword of pending bits");
        let bits = c.vector_bits();
        let a = &io.access.data;
        let moves = io.access.moves();
        // an entry is two quadwords: address; data and vector control
        let table = Memory::with_lanes("entries", n * 2, 64, 8);
        let in_table = a.address.lt(n * 16);
        let word = a.address.bits(3, bits + 1);
        table.write_lanes(moves & a.write & in_table, word, a.data, a.enables);
        let masks: Vec<Sig> = (0..n).map(|v| reg_init(&format!("mask_{v}"), 1, 1)).collect();
        let pending: Vec<Sig> = (0..n).map(|v| reg_init(&format!("pending_{v}"), 1, 0)).collect();
        for v in 0..n {
            when(moves & a.write & in_table & word.eq(v * 2 + 1) & a.enables.bit(4), || {
                masks[v as usize].set(a.data.bit(32));
            });
        }
        // reads
        let looked = table.read("looked", high(), word);
        let answering = reg_init("answering", 1, 0);
        let holding = reg_init("holding", 1, 0);
        let held = reg("held", 64);
        io.access.ready.set(!answering & !holding);
        answering.set(moves & !a.write);
        let was_table = hdl::delay("was_table", in_table);
        let was_pba = hdl::delay("was_pba", a.address.eq(PBA_OFFSET));
        let was_control = hdl::delay("was_control", word.bit(0));
        let mask_now = hdl::select(word.bits(1, bits), &masks);
        let was_mask = hdl::delay("was_mask", mask_now);
        let pba = cat(&pending.iter().rev().copied().collect::<Vec<_>>()).extend(64);
        // vector control reads back its mask bit and zeros
        let entry = mux(was_control, cat(&[lit(31, 0), was_mask, looked.bits(0, 32)]), looked);
        when(answering, || {
            held.set(mux(was_table, entry, mux(was_pba, pba, lit(64, 0))));
            holding.set(high());
        })
        .elif(io.read.moves(), || holding.set(low()));
        io.read.valid.set(holding);
        io.read.data.set(held);

        // a trigger becomes pending; pending and unmasked is sent
        io.raise.ready.set(high());
        let phase = EnumSig::<Phase>::reg("phase", Phase::Idle);
        let vector = reg("vector", bits);
        let open = io.enable & !io.mask;
        let ready: Vec<Sig> = (0..n as usize).map(|v| pending[v] & !masks[v] & open).collect();
        let asking = cat(&ready.iter().rev().copied().collect::<Vec<_>>());
        let some = asking.any().named("some_ready");
        let first = lowest(asking);
        io.sent.set(low());
        let address = table.read("entry_address", high(), cat(&[vector, lit(1, 0)]));
        let data = table.read("entry_data", high(), cat(&[vector, lit(1, 1)]));
        io.write.valid.set(phase.is(Phase::Send));
        io.write.data.iova.set(cat(&[address.bits(2, 62), lit(2, 0)]));
        io.write.data.dwords.set(1);
        io.write.data.data.set(data.bits(0, 32).extend(512));
        let clear = hdl::wire("clear", 1);
        clear.set(low());
        phase.switch(|p| match p {
            Phase::Idle => {
                when(some, || {
                    vector.set(first);
                    phase.set(Phase::Look);
                });
            }
            Phase::Look => {
                // the table words arrive in the next clock; masked meanwhile: leave it pending
                let still = hdl::select(vector, &ready);
                clear.set(still);
                when(still, || phase.set(Phase::Send)).otherwise(|| phase.set(Phase::Idle));
            }
            Phase::Send => {
                when(io.write.ready, || {
                    io.sent.set(high());
                    phase.set(Phase::Idle);
                });
            }
        });
        for v in 0..n {
            let p = pending[v as usize];
            when(clear & vector.eq(v), || p.set(low()));
            when(io.raise.valid & io.raise.data.eq(v), || p.set(high()));
        }
        io.idle.set(phase.is(Phase::Idle) & !some & !io.raise.valid);
    }
}
