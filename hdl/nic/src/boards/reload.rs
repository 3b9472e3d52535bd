//! Has the FPGA loaded anew: the words of an internal PROGRAM into the configuration port, once.
//!
//! In: `wanted`, a level of another clock, zero after configuration. Out: the pins of ICAPE3, from the third clock after
//! `wanted` rises while the port is available: [`WORDS`], one per clock, each byte with its bits turned round, as the port wants
//! them. The FPGA is gone with the last; if it is not, nothing more comes until `wanted` falls. The start address stays what the
//! golden image has set.
//!
//! Requirements: CARD

use hdl::{Module, Ports, Sig, cat, constant, lit, mux, reg_init, synchronise, when};

/// What is written: nothing, synchronisation, no operation, one word to CMD: IPROG, no operation.
pub const WORDS: [u32; 6] =
    [0xffff_ffff, contract::flash::SYNC, 0x2000_0000, 0x3000_8001, 0x0000_000f, 0x2000_0000];

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Reload;

/// Ports of [`Reload`].
#[derive(Ports)]
#[ports(Reload)]
pub struct ReloadIo {
    /// Of another clock.
    #[input]
    pub wanted: Sig,
    /// The port takes words.
    #[input]
    pub avail: Sig,
    /// Low: there is a word.
    #[output]
    pub csib: Sig,
    /// The word.
    #[output(32)]
    pub word: Sig,
}

impl Module for Reload {
    type Io = ReloadIo;
    fn name(&self) -> String {
        "reload".into()
    }
    fn doc(&self) -> String {
        "Internal PROGRAM through the configuration port.".into()
    }
    fn body(&self, io: &ReloadIo) {
        let wanted = synchronise("wanted", io.wanted);
        let next = reg_init("next", 3, 0);
        let writing = reg_init("writing", 1, 0);
        let word = reg_init("word_value", 32, u64::from(WORDS[0]));
        let more = next.lt(WORDS.len() as u64);
        when(!wanted, || next.set(0)).elif(io.avail & more, || next.set(next + 1));
        writing.set(wanted & io.avail & more);
        let words = WORDS.iter().enumerate();
        let chosen = words.fold(constant(hdl::Bits::zero(32)), |all, (i, w)| {
            mux(next.eq(i as u64), lit(32, u64::from(*w)), all)
        });
        let turned: Vec<Sig> = (0..4)
            .rev()
            .flat_map(|byte| (0..8).map(move |bit| 8 * byte + bit))
            .map(|at| chosen.bit(at))
            .collect();
        word.set(cat(&turned));
        io.csib.set(!writing);
        io.word.set(word);
    }
}
