//! The PHY's management wire: what link there is, asked again and again.
//!
//! ```text
//! 32 ones | 01 10 address register | turn around | 16 bits of the PHY | rest       address 0, and 1 if nobody answers
//! ```
//! Reads register 17 of the Marvell 88E1512, "copper specific status 1": speed in bits 15 and 14, resolved in 11, link in
//! 10. MDC is the clock divided by [`DIVIDER`]. In: the MDIO pin. Out: MDC, MDIO and its enable (the pin has a pull-up);
//! `link` and `speed`, kept from one answer to the next. Without an answer there is no link. It writes no register and
//! relies on the PHY's reset state: auto-negotiation on, its own RGMII delays on.
//!
//! Requirements: LINE

use crate::mac::rgmii::{SPEED, SPEED_1000};
use hdl::{Module, Ports, Sig, cat, lit, mux, reg, reg_init, synchronise, when};

/// Clocks of a period of MDC: 125 MHz / 64 is below the 2.5 MHz of IEEE 802.3, 22.2.2.13.
pub const DIVIDER: u32 = 64;
/// Periods of MDC from one question to the next.
const ROUND: u64 = 128;
/// Bits of preamble.
const ONES: u64 = 32;
/// Bits of a question: start, operation, address, register.
const ASKS: u64 = 14;
/// The first bit of the answer, and the bit behind the last.
const ANSWER: u64 = ONES + ASKS + 2;
const END: u64 = ANSWER + 16;
/// Copper specific status 1.
const REGISTER: u64 = 17;

/// The stage.
#[derive(Clone, Debug)]
pub struct Mdio;

/// Ports of [`Mdio`].
#[derive(Ports)]
#[ports(Mdio)]
pub struct MdioIo {
    /// MDC.
    #[output]
    pub mdc: Sig,
    /// MDIO toward the PHY.
    #[output]
    pub mdio_out: Sig,
    /// Drive it.
    #[output]
    pub mdio_enable: Sig,
    /// MDIO from the pin.
    #[input]
    pub mdio_in: Sig,
    /// There is a link.
    #[output]
    pub link: Sig,
    /// Its speed, as of [`super::rgmii`]; without a link the last one.
    #[output(SPEED)]
    pub speed: Sig,
}

impl Module for Mdio {
    type Io = MdioIo;
    fn name(&self) -> String {
        "mdio".into()
    }
    fn doc(&self) -> String {
        "Asks a PHY of its link.".into()
    }
    fn body(&self, io: &MdioIo) {
        let divider = reg_init("divider", DIVIDER.ilog2(), 0);
        divider.set(divider + 1);
        // the pin changes as MDC falls, and is read just before it rises: the PHY's answer is 300 ns late at most
        let falls = divider.all().named("mdc_falls");
        io.mdc.set(hdl::delay_init("mdc_register", divider.msb()));
        let seen = synchronise("mdio_seen", hdl::delay_init("mdio_pin", io.mdio_in));
        let answer = reg("answer_bit", 1);
        when(divider.eq(u64::from(DIVIDER / 2 - 1)), || answer.set(seen));
        let bit = reg_init("bit_number", ROUND.ilog2(), 0);
        let address = reg_init("phy_address", 1, 0);
        let question = cat(&[lit(4, 0b0110), lit(4, 0), address, lit(5, REGISTER)]);
        let shift = reg("shift", ASKS as u32);
        let (read, silent) = (reg("answer", 16), reg("silent", 1));
        let (link, speed) = (reg_init("link_kept", 1, 0), reg_init("speed_kept", SPEED, SPEED_1000));
        let (pin, enable) = (reg_init("pin_register", 1, 1), reg_init("enable_register", 1, 0));
        when(falls, || {
            bit.set(bit + 1);
            let asks = bit.ge(ONES) & bit.lt(ONES + ASKS);
            enable.set(bit.lt(ONES + ASKS));
            pin.set(mux(asks, shift.msb(), 1));
            shift.set(mux(asks, cat(&[shift.bits(0, ASKS as u32 - 1), lit(1, 0)]), question));
            // the PHY pulls the wire low in the second half of the turn around
            when(bit.eq(ANSWER), || silent.set(answer));
            when(bit.gt(ANSWER) & bit.le(END), || read.set(cat(&[read.bits(0, 15), answer])));
            when(bit.eq(END + 1), || {
                let up = !silent & read.bit(10) & read.bit(11);
                link.set(up);
                when(up, || speed.set(read.bits(14, 2)));
                when(silent, || address.set(!address));
            });
        });
        io.mdio_out.set(pin);
        io.mdio_enable.set(enable);
        io.link.set(link);
        io.speed.set(speed);
    }
}
