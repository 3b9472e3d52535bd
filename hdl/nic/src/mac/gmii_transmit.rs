//! Frames go onto a byte-wide line.
//!
//! ```text
//! 1 sequence: preamble, data, padding, FCS, gap   2 FCS register   3 the byte
//! ```
//! In: frames without FCS, in the transmit clock; `whole` says that all of the next one is there, so that it cannot run
//! dry. Out: bytes that stand until `taken`: seven of preamble, start frame delimiter, the frame padded to 60 bytes, FCS,
//! and no byte for 12 byte times at least. From `whole` to the first byte: 3 byte times. Never an error on the line:
//! what is begun is whole.
//!
//! Requirements: LINE

use crate::config::Config;
use crate::flow::FrameBeat;
use hdl::{EnumSig, HwEnum, Module, Ports, Sig, Stream, cat, crc32_next, lit, mux, reg, reg_init, when};

/// A byte of preamble.
pub const PREAMBLE: u64 = 0x55;
/// Start frame delimiter.
pub const DELIMITER: u64 = 0xD5;
/// Bytes of preamble and delimiter.
const OPENING: u64 = 8;
/// Least bytes before the FCS.
const LEAST: u64 = 60;
/// Byte times between frames, the one included in which the next is looked for.
const GAP: u64 = 12;

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Rest,
    Open,
    Data,
    Pad,
    Sum,
    Gap,
}

/// The stage.
#[derive(Clone, Debug)]
pub struct GmiiTransmit(pub Config);

/// Ports of [`GmiiTransmit`].
#[derive(Ports)]
#[ports(GmiiTransmit)]
pub struct GmiiTransmitIo {
    /// Frames without FCS.
    #[sink(c.0.clone())]
    pub frame: Stream<FrameBeat>,
    /// All of the next frame is there.
    #[input]
    pub whole: Sig,
    /// Pulse: a frame starts; `whole` speaks of the one behind it from the next clock on.
    #[output]
    pub started: Sig,
    /// Pulse: a frame has left, its gap included.
    #[output]
    pub left: Sig,
    /// The byte.
    #[output(8)]
    pub txd: Sig,
    /// There is one.
    #[output]
    pub tx_en: Sig,
    /// It is taken in this clock, or the time of one is over.
    #[input]
    pub taken: Sig,
}

impl Module for GmiiTransmit {
    type Io = GmiiTransmitIo;
    fn name(&self) -> String {
        format!("gmii_transmit_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Preamble, padding, FCS and gap on a byte-wide line.".into()
    }
    fn body(&self, io: &GmiiTransmitIo) {
        // 1: what the next byte is
        let part = EnumSig::reg("part", Part::Rest);
        // bytes of this part so far
        let count = reg_init("count", 4, 0);
        // the beat whose bytes go out, the next one lowest, and how many it has left
        let (word, left, last) = (reg("word", self.0.data_bits()), reg("bytes_left", 4), reg("last_word", 1));
        // bytes of the frame so far, up to 60
        let sent = reg("bytes_sent", 6);
        let f = &io.frame.data;
        let takes = hdl::wire("takes_beat", 1);
        takes.set(0);
        let next = |p: Part| {
            part.set(p);
            count.set(0);
        };
        let begins = part.is(Part::Rest) & io.whole & io.taken;
        let enough = sent.ge(LEAST - 1).named("long_enough");
        when(io.taken, || {
            count.set(count + 1);
            part.switch(|p| match p {
                Part::Rest => {
                    count.set(0);
                    when(io.whole, || {
                        next(Part::Open);
                        takes.set(1);
                    });
                }
                Part::Open => {
                    sent.set(0);
                    when(count.eq(OPENING - 1), || next(Part::Data));
                }
                Part::Data => {
                    when(!enough, || sent.set(sent + 1));
                    when(left.eq(1), || {
                        takes.set(!last);
                        when(last & enough, || next(Part::Sum)).elif(last, || next(Part::Pad));
                    });
                }
                Part::Pad => {
                    sent.set(sent + 1);
                    when(enough, || next(Part::Sum));
                }
                Part::Sum => {
                    when(count.eq(3), || next(Part::Gap));
                }
                Part::Gap => {
                    when(count.eq(GAP - 2), || next(Part::Rest));
                }
            });
        });
        when(io.taken & part.is(Part::Data), || {
            word.set(cat(&[lit(8, 0), word.bits(8, word.width() - 8)]));
            left.set(left - 1);
        });
        when(takes, || {
            word.set(f.data);
            left.set(mux(f.last, f.bytes, 8));
            last.set(f.last);
        });
        io.frame.ready.set(takes);
        hdl::assert_always("a_frame_never_runs_dry", io.frame.valid | !takes);
        io.started.set(begins);
        io.left.set(part.is(Part::Gap) & count.eq(GAP - 2) & io.taken);

        // 2: the byte, and the sum over those before it
        let byte = reg("next_byte", 8);
        let (counts, sums) = (reg_init("counts", 1, 0), reg_init("sums", 1, 0));
        let sending = reg_init("sending", 1, 0);
        let opening = mux(count.eq(OPENING - 1), lit(8, DELIMITER), lit(8, PREAMBLE));
        let data = mux(part.is(Part::Data), word.bits(0, 8), lit(8, 0));
        let register = reg("fcs_register", 32);
        when(io.taken, || {
            byte.set(mux(part.is(Part::Open), opening, data));
            counts.set(part.is(Part::Data) | part.is(Part::Pad));
            sums.set(part.is(Part::Sum));
            sending.set(!(part.is(Part::Rest) | part.is(Part::Gap)));
            when(counts, || register.set(crc32_next(register, byte, 1)))
                .elif(sums, || register.set(cat(&[lit(8, 0), register.bits(8, 24)])))
                .otherwise(|| register.set(lit(32, 0xffff_ffff)));
        });
        // 3: out of a register, since pins and their timing are the board's
        let (out, enable) = (reg("txd_register", 8), reg_init("tx_en_register", 1, 0));
        when(io.taken, || {
            out.set(mux(sums, !register.bits(0, 8), byte));
            enable.set(sending);
        });
        io.txd.set(out);
        io.tx_en.set(enable);
    }
}
