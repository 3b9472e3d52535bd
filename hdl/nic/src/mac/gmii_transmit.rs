//! Frames go onto a byte-wide line.
//!
//! ```text
//! 1 sequence: preamble, data, padding, FCS, gap   2 FCS register   3 the byte
//! ```
//! In: frames without FCS, in the transmit clock; `whole` says that all of the next one is there, so that it cannot run
//! dry. Out: bytes that stand until `taken`: seven of preamble, start frame delimiter, the frame padded to 60 bytes, FCS,
//! and no byte for 12 byte times at least. From `whole` to the first byte: a clock and 3 byte times. One beat is taken ahead,
//! of the next frame too. Never an error on the line:
//! what is begun is whole.
//!
//! Requirements: LINE

use crate::config::Config;
use crate::flow::FrameBeat;
use hdl::{
    EnumSig, HwEnum, Module, Ports, Sig, Stream, cat, crc32_next, delay_init, lit, mux, reg, reg_init, when,
};

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
        let bytes = self.0.data_bytes;
        // 1: what the next byte is
        let part = EnumSig::reg("part", Part::Rest);
        // bytes of this part so far
        let count = reg_init("count", 4, 0);
        // the beat whose bytes go out, the next one lowest; bit i: i bytes follow the next one
        let (word, left, last) =
            (reg("word", self.0.data_bits()), reg("bytes_left", bytes), reg("last_word", 1));
        // the beat behind it: a byte time is not long enough for the way to the FIFO and back
        let (ahead, ahead_left) = (reg("beat_ahead", self.0.data_bits()), reg("bytes_ahead", bytes));
        let (ahead_last, ahead_valid) = (reg("last_ahead", 1), reg_init("valid_ahead", 1, 0));
        let f = &io.frame.data;
        io.frame.ready.set(!ahead_valid);
        when(io.frame.moves(), || {
            ahead.set(f.data);
            ahead_last.set(f.last);
            let lanes: Vec<Sig> = (1..=bytes)
                .rev()
                .map(|n| if n == bytes { !f.last | f.bytes.eq(n) } else { f.last & f.bytes.eq(n) })
                .collect();
            ahead_left.set(cat(&lanes));
            ahead_valid.set(1);
        });
        // asked for again long after `started`
        let whole = delay_init("whole_1", io.whole);
        // bytes of the frame so far, up to 60; all but one of them
        let (sent, enough) = (reg("bytes_sent", 6), reg("long_enough", 1));
        let takes = hdl::wire("takes_beat", 1);
        takes.set(0);
        let next = |p: Part| {
            part.set(p);
            count.set(0);
        };
        let counts_a_byte = || {
            sent.set(sent + 1);
            enough.set(enough | sent.eq(LEAST - 2));
        };
        when(io.taken, || {
            count.set(count + 1);
            part.switch(|p| match p {
                Part::Rest => {
                    count.set(0);
                    when(whole, || next(Part::Open));
                }
                Part::Open => {
                    sent.set(0);
                    enough.set(0);
                    when(count.eq(OPENING - 1), || {
                        next(Part::Data);
                        takes.set(1);
                    });
                }
                Part::Data => {
                    when(!enough, counts_a_byte);
                    when(left.bit(0), || {
                        takes.set(!last);
                        when(last & enough, || next(Part::Sum)).elif(last, || next(Part::Pad));
                    });
                }
                Part::Pad => {
                    counts_a_byte();
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
            left.set(cat(&[lit(1, 0), left.bits(1, bytes - 1)]));
        });
        when(takes, || {
            word.set(ahead);
            left.set(ahead_left);
            last.set(ahead_last);
            ahead_valid.set(0);
        });
        hdl::assert_always("a_frame_never_runs_dry", ahead_valid | !takes);
        io.started.set(part.is(Part::Rest) & whole & io.taken);
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
