//! The top of the ECP5-5G Versa: a target at its first Ethernet port.
//!
//! ```text
//!   clk100 ── PLL ─┬─ 125 MHz: the line's transmitter
//!                  └─ core    target ── DDR cells ── eth_*      rst_n, switches, LEDs
//! ```
//! Clocks: 125 MHz and the core's from the PLL, RXC from the PHY (125, 25 or 2.5 MHz). Resets: the button, or a PLL
//! without lock, resets everything for 2^`log_reset` core clocks, for the first half of them the PHY, too, which wants 10 ms
//! and then some to give RXC. All registers start at zero, so a receive side without a clock is as after its reset.
//!
//! The PHY delays both clocks of RGMII by itself, so the pins here delay nothing ([`RX_DELAY`], [`TX_DELAY`], in steps of 25 ps).
//! LEDs are low when lit. MDIO is one pin: `constraints/ecp5-versa/pads.v` has its buffer.
//!
//! Requirements: LINE TGT

use crate::boards::ecp5::{Pll, input_pins, output_pins};
use crate::config::Config;
use crate::standalone::Target;
use hdl::{Bundle, Domain, Module, Ports, Sig, delay, instance, low, reg, synchronise, when};

/// Core clocks of a reset, log2: half of them are the PHY's 10 ms even at 125 MHz.
pub const LOG_RESET: u32 = 22;
/// Delay of RXD and RX_CTL.
const RX_DELAY: u32 = 0;
/// Delay of TXC.
const TX_DELAY: u32 = 0;

/// The top.
#[derive(Clone, Debug)]
pub struct Ecp5Versa {
    /// [`LOG_RESET`], or less in simulation.
    pub log_reset: u32,
}

/// Pins of the board.
#[derive(Ports)]
#[ports(Ecp5Versa)]
pub struct Ecp5VersaIo {
    /// 100 MHz.
    #[input]
    pub clk100: Sig,
    /// Button, low pressed.
    #[input]
    pub rst_n: Sig,
    /// Switches.
    #[input(8)]
    pub switches: Sig,
    /// LEDs.
    #[output(8)]
    pub led: Sig,
    /// Reset of the PHY.
    #[output]
    pub eth_rst_n: Sig,
    /// RXC.
    #[input]
    pub eth_rxc: Sig,
    /// RXD.
    #[input(4)]
    pub eth_rxd: Sig,
    /// RX_CTL.
    #[input]
    pub eth_rx_ctl: Sig,
    /// TXC.
    #[output]
    pub eth_txc: Sig,
    /// TXD.
    #[output(4)]
    pub eth_txd: Sig,
    /// TX_CTL.
    #[output]
    pub eth_tx_ctl: Sig,
    /// MDC.
    #[output]
    pub eth_mdc: Sig,
    /// MDIO toward the PHY.
    #[output]
    pub eth_mdio_out: Sig,
    /// Drive it.
    #[output]
    pub eth_mdio_enable: Sig,
    /// MDIO from the pin.
    #[input]
    pub eth_mdio_in: Sig,
}

impl Module for Ecp5Versa {
    type Io = Ecp5VersaIo;
    fn name(&self) -> String {
        "ecp5_versa".into()
    }
    fn doc(&self) -> String {
        "A Verbena target on the ECP5-5G Versa.".into()
    }
    fn body(&self, io: &Ecp5VersaIo) {
        let c = Config::target();
        let pll = instance("pll", &Pll { core_khz: c.core_clock_khz });
        pll.CLKI.set(io.clk100);
        pll.CLKFB.set(pll.CLKOP);
        pll.RST.set(low());
        pll.STDBY.set(low());
        let [core, tx, rx] = [pll.CLKOS, pll.CLKOP, io.eth_rxc].map(|clock| Domain::new(clock, None));

        let (reset, phy_runs) = core.within(|| {
            let up = synchronise("is_up", delay("may_run", io.rst_n & pll.LOCK));
            let clocks = reg("clocks_up", self.log_reset);
            when(!clocks.all(), || clocks.set(clocks + 1));
            when(!up, || clocks.set(0));
            // zero from configuration on
            let runs = reg("runs", 1);
            runs.set(clocks.all());
            let phy_runs = reg("phy_runs", 1);
            phy_runs.set(clocks.msb());
            (!runs, phy_runs)
        });
        let resets = core.within(|| delay("resets", reset));
        io.eth_rst_n.set(phy_runs);

        let target = Domain::new(core.clock(), Some(reset)).within(|| instance("target", &Target(c)));
        target.tx_clock.set(tx.clock());
        target.tx_reset.set(tx.within(|| synchronise("tx_reset", resets)));
        target.rx_clock.set(rx.clock());
        target.rx_reset.set(rx.within(|| synchronise("rx_reset", resets)));
        tx.within(|| {
            io.eth_txd.set(output_pins("txd", &target.txd, 0));
            io.eth_tx_ctl.set(output_pins("tx_ctl", &target.tx_control, 0));
            io.eth_txc.set(output_pins("txc", &target.txc, TX_DELAY));
        });
        rx.within(|| {
            target.rxd.assign(&input_pins("rxd", io.eth_rxd, RX_DELAY));
            target.rx_control.assign(&input_pins("rx_ctl", io.eth_rx_ctl, RX_DELAY));
        });
        io.eth_mdc.set(target.mdc);
        io.eth_mdio_out.set(target.mdio_out);
        io.eth_mdio_enable.set(target.mdio_enable);
        target.mdio_in.set(io.eth_mdio_in);
        target.switches.set(io.switches);
        io.led.set(!target.leds);
    }
}
