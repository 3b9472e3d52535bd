//! RGMII: bytes become nibbles at both edges of a clock, and back.
//!
//! ```text
//! transmit clock, 125 MHz   txd, tx_en ─> nibbles, TX_CTL, the shape of TXC ─> {rise, fall} of six output pins
//! receive clock, the PHY's  {rise, fall} of five input pins ─> step, rxd, rx_dv, rx_er
//! ```
//! In and out are what a pin is or shall be in each half of a clock; the DDR cells and their delays are the board's
//! ([`crate::boards::ecp5`]). `speed` chooses: at 1000 Mb/s a byte per clock, low nibble with the rising edge; below a
//! nibble per period of a TXC of 25 or 2.5 MHz, made from the 125 MHz; the receive clock then comes as slow from the PHY.
//! `speed` may change at any time and costs the frames of that moment.
//!
//! A byte on the pins one clock behind `taken`, one to `step` three behind its nibbles. A nibble that is left over at the end of a frame is
//! dropped; the FCS says whether it was missing. Bytes are aligned to the start frame delimiter.
//!
//! Requirements: LINE

use hdl::{Bundle, Module, Ports, Sig, any_of, cat, delay, delay_init, lit, mux, reg, reg_init, when};

/// `speed`: 10 Mb/s.
pub const SPEED_10: u64 = 0;
/// `speed`: 100 Mb/s.
pub const SPEED_100: u64 = 1;
/// `speed`: 1000 Mb/s.
pub const SPEED_1000: u64 = 2;
/// Bits of `speed`.
pub const SPEED: u32 = 2;
/// Clocks of 125 MHz in a period of 25 and of 2.5 MHz.
const PERIODS: [u64; 2] = [5, 50];

/// A signal of `width` bits at both edges of a clock.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(u32)]
pub struct Edges {
    /// At the rising edge.
    #[shape(*c)]
    pub rise: Sig,
    /// At the falling edge behind it.
    #[shape(*c)]
    pub fall: Sig,
}

/// Toward the PHY.
#[derive(Clone, Debug)]
pub struct RgmiiTransmit;

/// Ports of [`RgmiiTransmit`].
#[derive(Ports)]
#[ports(RgmiiTransmit)]
pub struct RgmiiTransmitIo {
    /// [`SPEED_10`], [`SPEED_100`] or [`SPEED_1000`].
    #[input(SPEED)]
    pub speed: Sig,
    /// A byte.
    #[input(8)]
    pub txd: Sig,
    /// It is there.
    #[input]
    pub tx_en: Sig,
    /// It is taken, or the time of one is over.
    #[output]
    pub taken: Sig,
    /// TXD.
    #[output(4u32)]
    pub data: Edges,
    /// TX_CTL.
    #[output(1u32)]
    pub control: Edges,
    /// TXC.
    #[output(1u32)]
    pub clock_out: Edges,
}

impl Module for RgmiiTransmit {
    type Io = RgmiiTransmitIo;
    fn name(&self) -> String {
        "rgmii_transmit".into()
    }
    fn doc(&self) -> String {
        "Bytes to RGMII at 10, 100 and 1000 Mb/s.".into()
    }
    fn body(&self, io: &RgmiiTransmitIo) {
        let fast = io.speed.bit(1);
        // clocks of this nibble so far; which nibble
        let (clocks, upper) = (reg_init("clocks", 6, 0), reg_init("upper_nibble", 1, 0));
        let [medium, slow] = PERIODS.map(|n| lit(6, n - 2));
        // the comparison has a clock of its own: `taken` reaches far into the MAC
        let ends = reg_init("nibble_ends", 1, 0);
        let over = (fast | ends).named("nibble_over");
        ends.set(!over & clocks.ge(mux(io.speed.bit(0), medium, slow)));
        clocks.set(mux(over, lit(6, 0), clocks + 1));
        when(over, || upper.set(!upper & !fast));
        io.taken.set(over & (upper | fast));

        let nibble = mux(upper, io.txd.bits(4, 4), io.txd.bits(0, 4)).named("nibble");
        let second = mux(fast, io.txd.bits(4, 4), nibble);
        io.data.rise.set(delay("first_half", nibble));
        io.data.fall.set(delay("second_half", second));
        // the second half would say an error, and there is none
        let enable = delay_init("enable", io.tx_en);
        io.control.rise.set(enable);
        io.control.fall.set(enable);
        // high for the first half of a nibble; of five clocks the third is cut in two
        let half = mux(io.speed.bit(0), lit(6, PERIODS[0] / 2), lit(6, PERIODS[1] / 2));
        let before = clocks.lt(half);
        let middle = io.speed.bit(0) & clocks.eq(PERIODS[0] / 2);
        io.clock_out.rise.set(delay("first_high", any_of(&[fast, before, middle])));
        io.clock_out.fall.set(delay("second_high", !fast & before));
    }
}

/// From the PHY.
#[derive(Clone, Debug)]
pub struct RgmiiReceive;

/// Ports of [`RgmiiReceive`].
#[derive(Ports)]
#[ports(RgmiiReceive)]
pub struct RgmiiReceiveIo {
    /// As of [`RgmiiTransmitIo`].
    #[input(SPEED)]
    pub speed: Sig,
    /// RXD.
    #[input(4u32)]
    pub data: Edges,
    /// RX_CTL.
    #[input(1u32)]
    pub control: Edges,
    /// The rest holds.
    #[output]
    pub step: Sig,
    /// A byte.
    #[output(8)]
    pub rxd: Sig,
    /// It is there.
    #[output]
    pub rx_dv: Sig,
    /// The PHY does not believe it.
    #[output]
    pub rx_er: Sig,
}

impl Module for RgmiiReceive {
    type Io = RgmiiReceiveIo;
    fn name(&self) -> String {
        "rgmii_receive".into()
    }
    fn doc(&self) -> String {
        "RGMII at 10, 100 and 1000 Mb/s to bytes.".into()
    }
    fn body(&self, io: &RgmiiReceiveIo) {
        let fast = io.speed.bit(1);
        // a stage of its own behind the input cells
        let (rise, fall) = (delay("first_half", io.data.rise), delay("second_half", io.data.fall));
        let there = delay_init("there", io.control.rise);
        // RX_CTL carries valid ^ error at its falling edge
        let error = delay_init("error", io.control.rise ^ io.control.fall);

        // below 1000 Mb/s: the nibble before, and whether this one completes a byte
        let (before, odd) = (reg("nibble_before", 4), reg_init("odd", 1, 0));
        // the frame's delimiter was seen, its bytes are aligned
        let aligned = reg_init("aligned", 1, 0);
        let hurt = reg("nibble_error", 1);
        let delimits = (!aligned & rise.eq(0xD) & before.eq(5)).named("delimits");
        let completes = (odd | delimits).named("completes");
        before.set(mux(there, rise, lit(4, 0)));
        odd.set(there & !completes);
        hurt.set(error & !completes);
        aligned.set(there & (aligned | delimits));

        io.step.set(delay_init("step_register", fast | !there | completes));
        io.rxd.set(delay("rxd_register", mux(fast, cat(&[fall, rise]), cat(&[rise, before]))));
        io.rx_dv.set(delay_init("dv_register", there));
        io.rx_er.set(delay_init("er_register", error | (!fast & hurt)));
    }
}
