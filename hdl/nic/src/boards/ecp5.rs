//! Cells of the ECP5 as black boxes: DDR registers of the pins, their delays, the PLL.
//!
//! In: names, pins and parameters as Lattice's FPGA libraries reference names them and nextpnr-ecp5 takes them. Out:
//! modules that are instantiated and never emitted. What they do in simulation: [`MODELS`].
//!
//! Requirements: LINE

use crate::boards::cell::Cell;
use crate::mac::rgmii::Edges;
use hdl::{Domain, Module, Parameter, Ports, Sig, cat, instance};

/// What the cells do in simulation, in Verilog.
pub const MODELS: &str = include_str!("../../cosim/ecp5.v");

/// Two bits of a clock onto a pin: D0 while SCLK is high, D1 behind it.
pub const ODDRX1F: Cell = Cell {
    name: "ODDRX1F",
    parameters: &[],
    inputs: &[("D0", 1), ("D1", 1), ("SCLK", 1), ("RST", 1)],
    outputs: &[("Q", 1)],
};

/// Two bits of a clock off a pin: Q0 as SCLK rose, Q1 as it fell behind that.
pub const IDDRX1F: Cell = Cell {
    name: "IDDRX1F",
    parameters: &[],
    inputs: &[("D", 1), ("SCLK", 1), ("RST", 1)],
    outputs: &[("Q0", 1), ("Q1", 1)],
};

/// A delay of `steps` of about 25 ps (0 to 127) at a pin.
#[derive(Clone, Debug)]
pub struct Delay {
    /// How many.
    pub steps: u32,
}

/// Pins of [`Delay`].
#[derive(Ports)]
#[ports(Delay)]
#[allow(non_snake_case)]
pub struct DelayIo {
    /// In.
    #[input]
    pub A: Sig,
    /// Out.
    #[output]
    pub Z: Sig,
}

impl Module for Delay {
    type Io = DelayIo;
    fn name(&self) -> String {
        "DELAYG".into()
    }
    fn body(&self, _: &DelayIo) {}
    fn external(&self) -> Option<Vec<(String, Parameter)>> {
        Some(vec![
            ("DEL_MODE".into(), Parameter::Text("USER_DEFINED".into())),
            ("DEL_VALUE".into(), Parameter::Number(i64::from(self.steps))),
        ])
    }
}

/// Frequencies at which the PLL's oscillator may run, of 100 MHz in and 125 MHz out: 400 to 800 MHz are allowed.
const OSCILLATORS_KHZ: [u32; 3] = [500_000, 625_000, 750_000];

/// The PLL: 100 MHz in; 125 MHz, and that of the core.
#[derive(Clone, Debug)]
pub struct Pll {
    /// Frequency of the core's clock: one of [`OSCILLATORS_KHZ`] divided by a whole number.
    pub core_khz: u32,
}

/// Pins of [`Pll`].
#[derive(Ports)]
#[ports(Pll)]
#[allow(non_snake_case)]
pub struct PllIo {
    /// 100 MHz.
    #[input]
    pub CLKI: Sig,
    /// CLKOP.
    #[input]
    pub CLKFB: Sig,
    /// 125 MHz.
    #[output]
    pub CLKOP: Sig,
    /// The core's clock.
    #[output]
    pub CLKOS: Sig,
    /// Both are as they shall be.
    #[output]
    pub LOCK: Sig,
    /// Low.
    #[input]
    pub RST: Sig,
    /// Low.
    #[input]
    pub STDBY: Sig,
}

impl Module for Pll {
    type Io = PllIo;
    fn name(&self) -> String {
        "EHXPLLL".into()
    }
    fn body(&self, _: &PllIo) {}
    fn external(&self) -> Option<Vec<(String, Parameter)>> {
        let fits = OSCILLATORS_KHZ.into_iter().find(|khz| khz.is_multiple_of(self.core_khz));
        let oscillator = fits.unwrap_or_else(|| panic!("no oscillator for a core of {} kHz", self.core_khz));
        let text = |name: &str, value: &str| (name.to_owned(), Parameter::Text(value.to_owned()));
        let number = |name: &str, value: u32| (name.to_owned(), Parameter::Number(i64::from(value)));
        let (line, core) = (oscillator / 125_000, oscillator / self.core_khz);
        Some(vec![
            number("CLKI_DIV", 4),
            number("CLKFB_DIV", 5),
            text("FEEDBK_PATH", "CLKOP"),
            text("CLKOP_ENABLE", "ENABLED"),
            number("CLKOP_DIV", line),
            // half a division: both outputs rise together
            number("CLKOP_CPHASE", line - 1),
            text("CLKOS_ENABLE", "ENABLED"),
            number("CLKOS_DIV", core),
            number("CLKOS_CPHASE", core - 1),
            text("OUTDIVIDER_MUXA", "DIVA"),
            text("OUTDIVIDER_MUXB", "DIVB"),
            text("PLLRST_ENA", "DISABLED"),
            text("INTFB_WAKE", "DISABLED"),
            text("STDBY_ENABLE", "DISABLED"),
            text("DPHASE_SOURCE", "DISABLED"),
        ])
    }
}

/// Pins from edges in this domain: their level, bit for bit, `steps` late.
pub fn output_pins(name: &str, edges: &Edges, steps: u32) -> Sig {
    let pins: Vec<Sig> = (0..edges.rise.width())
        .rev()
        .map(|i| {
            let ddr = instance(&format!("{name}_ddr_{i}"), &ODDRX1F);
            ddr.set("D0", edges.rise.bit(i));
            ddr.set("D1", edges.fall.bit(i));
            ddr.set("SCLK", Domain::implicit().clock());
            ddr.tie(&[]);
            let delay = instance(&format!("{name}_delay_{i}"), &Delay { steps });
            delay.A.set(ddr.get("Q"));
            delay.Z
        })
        .collect();
    cat(&pins)
}

/// Edges in this domain from pins, `steps` late.
pub fn input_pins(name: &str, pins: Sig, steps: u32) -> Edges {
    let (mut rise, mut fall) = (vec![], vec![]);
    for i in (0..pins.width()).rev() {
        let delay = instance(&format!("{name}_delay_{i}"), &Delay { steps });
        delay.A.set(pins.bit(i));
        let ddr = instance(&format!("{name}_ddr_{i}"), &IDDRX1F);
        ddr.set("D", delay.Z);
        ddr.set("SCLK", Domain::implicit().clock());
        ddr.tie(&[]);
        rise.push(ddr.get("Q0"));
        fall.push(ddr.get("Q1"));
    }
    Edges { rise: cat(&rise), fall: cat(&fall) }
}
