//! The way to the configuration flash: up to eight bytes at a time, most significant bit first, SPI mode 0.
//!
//! ```text
//!   csr ── select, load, start ──> word of 64 bits ──> select_n, clock, mosi
//!   csr <── word, bytes left ─────      ^──────────────── miso (synchronised)
//! ```
//! In: a word (its low byte goes first), how many bytes of it; from the pin, anything at any time. Out: the flash's pins;
//! the word, whose high bytes are then those received, the last one highest. A byte takes 16 half periods
//! ([`crate::Config::flash_half_clocks`]); the flash's data is taken with the falling edge after the rising one that it was
//! meant for, so the way there and back may take a period less three clocks. A start while bytes are left, of none or of
//! more than eight, and a load meanwhile do nothing. A reset ends the transfer and deselects. It never selects by itself, and
//! knows no command: what may be written where is the driver's business.
//!
//! Requirements: CARD

use hdl::{Bundle, Module, Ports, Sig, cat, mux, reg_init, synchronise, when};

/// What the registers tell [`Flash`].
#[derive(Bundle, Clone, Copy, Debug)]
pub struct FlashControl {
    /// The flash is selected.
    pub select: Sig,
    /// The word is set.
    pub load: Sig,
    /// To this.
    #[shape(64)]
    pub data: Sig,
    /// A transfer starts.
    pub start: Sig,
    /// Of so many bytes.
    #[shape(4)]
    pub count: Sig,
}

/// See the head of this file.
#[derive(Clone, Debug)]
pub struct Flash {
    /// Core clocks of half a period.
    pub half_clocks: u32,
}

/// Ports of [`Flash`].
#[derive(Ports)]
#[ports(Flash)]
pub struct FlashIo {
    /// From the registers.
    #[input]
    pub control: FlashControl,
    /// The word.
    #[output(64)]
    pub word: Sig,
    /// Bytes left.
    #[output(4)]
    pub left: Sig,
    /// Chip select, low.
    #[output]
    pub select_n: Sig,
    /// Clock.
    #[output]
    pub clock_out: Sig,
    /// Data to the flash.
    #[output]
    pub mosi: Sig,
    /// Data from it, asynchronous.
    #[input]
    pub miso: Sig,
}

impl Module for Flash {
    type Io = FlashIo;
    fn name(&self) -> String {
        "flash".into()
    }
    fn doc(&self) -> String {
        "Shifts bytes to and from the configuration flash.".into()
    }
    fn body(&self, io: &FlashIo) {
        let c = &io.control;
        let word = reg_init("word_value", 64, 0);
        let left = reg_init("left_value", 4, 0);
        let bit = reg_init("bits_done", 3, 0);
        let level = reg_init("level", 1, 0);
        let wait = reg_init("clocks_left", 32 - self.half_clocks.leading_zeros(), 0);
        let miso = synchronise("miso", io.miso);
        let busy = left.any().named("busy");
        let edge = busy & wait.none();
        when(busy, || wait.set(wait - 1));
        when(!busy & c.load, || word.set(c.data));
        when(!busy & c.start & c.count.le(8), || {
            left.set(c.count);
            wait.set(u64::from(self.half_clocks) - 1);
        });
        when(edge, || {
            wait.set(u64::from(self.half_clocks) - 1);
            level.set(!level);
        });
        let falls = edge & level;
        // the bit that went leaves the low byte at its top, the bit that came enters it at its bottom; a byte that is
        // whole makes room for the next
        let byte = cat(&[word.bits(0, 7), miso]);
        let last = bit.all();
        when(falls, || {
            bit.set(bit + 1);
            word.set(mux(last, cat(&[byte, word.bits(8, 56)]), cat(&[word.bits(8, 56), byte])));
            when(last, || left.set(left - 1));
        });
        io.word.set(word);
        io.left.set(left);
        let deselected = reg_init("deselected", 1, 1);
        deselected.set(!c.select);
        io.select_n.set(deselected);
        io.clock_out.set(level);
        io.mosi.set(word.bit(7));
    }
}
