//! Every frame goes back where it came from: the Gigabit MAC at the pins of a board, with nothing behind it.
//!
//! ```text
//!   rxc, rxd, rx_ctl ── IDDRX1F ── rgmii_mac ── without FCS ── rgmii_mac ── ODDRX1F ── txc, txd, tx_ctl
//! ```
//! What co-simulation looks at with a PHY of somebody else, and what is placed and routed when nobody has time for more. In:
//! 125 MHz for core and transmitter, RXC. Out: the frames with a fresh FCS, bad ones too; how many of those there were. One that is cut for
//! want of room comes back shorter. The reset lasts until it has reached the receive clock.
//!
//! Requirements: LINE

use crate::boards::ecp5::{input_pins, output_pins};
use crate::config::Config;
use crate::flow::FrameBeat;
use crate::mac::rgmii_mac::RgmiiMac;
use hdl::{Bundle, Domain, Module, Ports, Sig, high, instance, lit, low, mux, reg_init, synchronise, when};

/// The loop.
#[derive(Clone, Debug)]
pub struct RgmiiLoop;

/// Pins.
#[derive(Ports)]
#[ports(RgmiiLoop)]
pub struct RgmiiLoopIo {
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
    /// Bad frames.
    #[output(8)]
    pub errors: Sig,
}

impl Module for RgmiiLoop {
    type Io = RgmiiLoopIo;
    fn name(&self) -> String {
        "rgmii_loop".into()
    }
    fn doc(&self) -> String {
        "A Gigabit MAC whose receiver feeds its transmitter.".into()
    }
    fn body(&self, io: &RgmiiLoopIo) {
        let c = Config::target();
        let core = Domain::implicit();
        let mac = instance("line", &RgmiiMac(c.clone()));
        mac.tx_clock.set(core.clock());
        mac.tx_reset.set(core.reset());
        mac.rx_clock.set(io.eth_rxc);
        let resets = Domain::new(core.clock(), None).within(|| hdl::delay("resets", core.reset()));
        let rx = Domain::new(io.eth_rxc, None);
        mac.rx_reset.set(rx.within(|| synchronise("rx_reset", resets)));
        io.eth_txd.set(output_pins("txd", &mac.txd, 0));
        io.eth_tx_ctl.set(output_pins("tx_ctl", &mac.tx_control, 0));
        io.eth_txc.set(output_pins("txc", &mac.txc, 0));
        rx.within(|| {
            mac.rxd.assign(&input_pins("rxd", io.eth_rxd, 0));
            mac.rx_control.assign(&input_pins("rx_ctl", io.eth_rx_ctl, 0));
        });
        io.eth_mdc.set(mac.mdc);
        io.eth_mdio_out.set(mac.mdio_out);
        io.eth_mdio_enable.set(mac.mdio_enable);
        mac.mdio_in.set(io.eth_mdio_in);

        // the last four bytes stay behind, so a beat waits for the next
        let (from, to) = (&mac.receive, &mac.transmit);
        let (held, holds) = (FrameBeat::regs(&c, "held"), reg_init("holds", 1, 0));
        // the next beat has nothing but FCS
        let ends = from.data.last & from.data.bytes.le(4);
        let follows = (from.valid & !held.last).named("follows");
        to.valid.set(holds & (held.last | follows));
        to.data.assign(&FrameBeat {
            data: held.data,
            last: held.last | ends,
            bytes: mux(held.last, held.bytes, mux(ends, from.data.bytes + 4, lit(4, 8))),
            error: low(),
        });
        from.ready.set(!holds | (to.ready & !held.last));
        when(to.moves(), || holds.set(low()));
        when(from.moves(), || {
            held.assign(&from.data);
            // of a frame of nothing else nothing is left
            when(from.data.last, || held.bytes.set(from.data.bytes - 4));
            holds.set(mux(ends, low(), high()));
        });
        let errors = reg_init("bad_frames", 8, 0);
        when(from.moves() & from.data.last & from.data.error, || errors.set(errors + 1));
        io.errors.set(errors);
    }
}
