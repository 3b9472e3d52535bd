//! The top of Alveo U55C: PCI Express x16 and the first QSFP28 cage.
//!
//! ```text
//!   pcie_* ── PCIE4C ── us_pcie ── nic (full) ── us_cmac ── CMAC, RS-FEC ── qsfp0_*
//!                              ├ flash ── STARTUPE3 ── configuration flash
//!                              └ reload ── ICAPE3
//!   sysclk ── start-up of the CMAC, once; reload    hbm_cattrip: low
//! ```
//! Clocks: the core's user clock (250 MHz) for the card, the CMAC's transmit and receive clocks (322.27 MHz) for its line
//! side, the board's oscillator for the start-up of the transceivers. Crossings are those of `mac` and `us_cmac`.
//!
//! Resets: PERST resets everything but the transceivers of the CMAC, whose clocks go on, so that the line side sees the
//! reset, too: it lasts [`RESET`] core clocks in all three domains. The CMAC's own resets never reset one side of a
//! crossing alone. HBM_CATTRIP is low: high (and floating) tells the card's controller to cut the power.
//!
//! The flash is reached by the registers (`verbena flash alveo-u55c`), serially; its two other data pins stay high, as they mean
//! "hold" and "write protect". The MAC address is not in it: it is [`MAC_ADDRESS`] until the driver sets another. There is no
//! pause: the CMAC is made without flow control.
//!
//! Requirements: PCIE

use crate::boards::cell::{BUFG, CMAC, IBUFDS, IBUFDS_GTE4, ICAPE3, PCIE4C, STARTUPE3};
use crate::boards::reload::Reload;
use crate::config::Config;
use crate::mac::pins::{LineIn, LineOut};
use crate::nic::Nic;
use crate::shims::us_cmac::UsCmac;
use crate::shims::us_pcie::{TIES, UsPcie};
use hdl::{Bundle, Domain, Module, Ports, Sig, cat, instance, lit, low, reg, reg_init, synchronise, when};

/// Core clocks of a reset, a power of two: more than 64 clocks of every other domain.
pub const RESET: u64 = 128;
/// Clocks of the oscillator (100 MHz) for which the CMAC is reset after configuration, a power of two.
const START: u32 = 10;
/// Locally administered, the same in every card.
pub const MAC_ADDRESS: u64 = 0x0256_4552_4201;

/// The top.
#[derive(Clone, Debug)]
pub struct AlveoU55c;

/// Pins of the board.
#[derive(Ports)]
#[ports(AlveoU55c)]
pub struct AlveoU55cIo {
    /// 100 MHz of the slot.
    #[input]
    pub pcie_refclk_p: Sig,
    /// Its complement.
    #[input]
    pub pcie_refclk_n: Sig,
    /// PERST#.
    #[input]
    pub pcie_reset_n: Sig,
    /// Lanes.
    #[input(16)]
    pub pcie_rx_p: Sig,
    /// Their complements.
    #[input(16)]
    pub pcie_rx_n: Sig,
    /// Lanes.
    #[output(16)]
    pub pcie_tx_p: Sig,
    /// Their complements.
    #[output(16)]
    pub pcie_tx_n: Sig,
    /// 161.1328125 MHz.
    #[input]
    pub qsfp0_refclk_p: Sig,
    /// Its complement.
    #[input]
    pub qsfp0_refclk_n: Sig,
    /// Lanes.
    #[input(4)]
    pub qsfp0_rx_p: Sig,
    /// Their complements.
    #[input(4)]
    pub qsfp0_rx_n: Sig,
    /// Lanes.
    #[output(4)]
    pub qsfp0_tx_p: Sig,
    /// Their complements.
    #[output(4)]
    pub qsfp0_tx_n: Sig,
    /// Oscillator of the board, 100 MHz.
    #[input]
    pub sysclk_p: Sig,
    /// Its complement.
    #[input]
    pub sysclk_n: Sig,
    /// Over-temperature of the HBM: never.
    #[output]
    pub hbm_cattrip: Sig,
}

impl Module for AlveoU55c {
    type Io = AlveoU55cIo;
    fn name(&self) -> String {
        "alveo_u55c".into()
    }
    fn doc(&self) -> String {
        "The Verbena card on Alveo U55C.".into()
    }
    fn body(&self, io: &AlveoU55cIo) {
        let c = Config::full().with_flash();
        io.hbm_cattrip.set(low());

        // oscillator: the CMAC's transceivers start once
        let (pins, buffer) = (instance("sysclk_pins", &IBUFDS), instance("sysclk_buffer", &BUFG));
        pins.set("I", io.sysclk_p);
        pins.set("IB", io.sysclk_n);
        buffer.set("I", pins.get("O"));
        let sysclk = buffer.get("O");
        // zero by configuration
        let starting = Domain::new(sysclk, None).within(|| {
            let clocks = reg("start_clocks", START);
            when(!clocks.all(), || clocks.set(clocks + 1));
            let starting = reg("not_starting", 1);
            starting.set(clocks.all());
            !starting
        });

        // PCI Express
        let refclk = instance("pcie_refclk", &IBUFDS_GTE4);
        refclk.set("I", io.pcie_refclk_p);
        refclk.set("IB", io.pcie_refclk_n);
        refclk.tie(&[]);
        let core = instance("pcie", &PCIE4C);
        core.set("sys_clk", refclk.get("ODIV2"));
        core.set("sys_clk_gt", refclk.get("O"));
        core.set("sys_reset", io.pcie_reset_n);
        core.set("pci_exp_rxp", io.pcie_rx_p);
        core.set("pci_exp_rxn", io.pcie_rx_n);
        io.pcie_tx_p.set(core.get("pci_exp_txp"));
        io.pcie_tx_n.set(core.get("pci_exp_txn"));
        let clock = core.get("user_clk");
        let reset = Domain::new(clock, Some(core.get("user_reset"))).within(|| {
            let left = reg_init("reset_clocks_left", RESET.ilog2(), RESET - 1);
            when(left.any(), || left.set(left - 1));
            let reset = reg_init("long_reset", 1, 1);
            reset.set(left.any());
            reset
        });
        let shim = Domain::new(clock, Some(reset)).within(|| instance("us_pcie", &UsPcie(c.clone())));
        for (pin, from) in shim.to_core() {
            core.set(&pin, from);
        }
        for (pin, to) in shim.from_core() {
            to.set(core.get(&pin));
        }
        core.tie(TIES);

        // the line
        let cmac = instance("cmac", &CMAC);
        let (tx, rx) = (cmac.get("gt_txusrclk2"), cmac.get("gt_rxusrclk2"));
        let tx_reset = Domain::new(tx, None).within(|| synchronise("tx_reset", reset));
        let rx_reset = Domain::new(rx, None).within(|| synchronise("rx_reset", reset));
        for (pin, from) in [
            ("gt_ref_clk_p", io.qsfp0_refclk_p),
            ("gt_ref_clk_n", io.qsfp0_refclk_n),
            ("gt_rxp_in", io.qsfp0_rx_p),
            ("gt_rxn_in", io.qsfp0_rx_n),
            ("init_clk", sysclk),
            ("drp_clk", sysclk),
            ("sys_reset", starting),
            ("rx_clk", rx),
            // a frame that PERST cuts off would leave the CMAC's transmitter in underflow
            ("core_tx_reset", tx_reset),
            ("core_rx_reset", rx_reset),
        ] {
            cmac.set(pin, from);
        }
        io.qsfp0_tx_p.set(cmac.get("gt_txp_out"));
        io.qsfp0_tx_n.set(cmac.get("gt_txn_out"));
        let link = instance("us_cmac", &UsCmac(c.clone()));
        for (pin, to) in [
            ("stat_rx_aligned", link.stat_rx_aligned),
            ("usr_rx_reset", link.usr_rx_reset),
            ("rx_axis_tdata", link.core_tdata),
            ("rx_axis_tkeep", link.core_tkeep),
            ("rx_axis_tlast", link.core_tlast),
            ("rx_axis_tvalid", link.core_tvalid),
            ("rx_axis_tuser", link.core_tuser),
        ] {
            to.set(cmac.get(pin));
        }
        cmac.set("ctl_tx_enable", link.ctl_tx_enable);
        cmac.set("ctl_tx_send_rfi", link.ctl_tx_send_rfi);

        let of_card = Domain::new(clock, Some(reset));
        let link_up = of_card.within(|| synchronise("link_up", link.aligned));

        // the card
        let card = instance("card", &Nic(c));
        for (to, from) in [
            (card.clock, clock),
            (card.reset, reset),
            (card.flr, shim.flr),
            (card.tx_clock, tx),
            (card.tx_reset, tx_reset),
            (card.rx_clock, rx),
            (card.rx_reset, rx_reset),
            (link.tx_clock, tx),
            (link.tx_reset, tx_reset),
            (link.rx_clock, rx),
            (link.rx_reset, rx_reset),
            (card.cq_bar, shim.cq_bar),
            (card.posted_ok, shim.posted_ok),
            (card.nonposted_ok, shim.nonposted_ok),
            (card.factory_mac, lit(48, MAC_ADDRESS)),
            (card.factory_mtu, lit(16, 0)),
            (card.link_up, link_up),
            (card.now_load, low()),
            (card.now_value, lit(64, 0)),
        ] {
            to.set(from);
        }
        card.pcie.assign(&shim.pcie);
        shim.rq.take(&card.rq);
        shim.cc.take(&card.cc);
        card.rc.take(&shim.rc);
        card.cq.take(&shim.cq);
        if let (LineOut::Cmac(out), LineIn::Cmac { tready, rx }) = (&card.line_out, &card.line_in) {
            for (part, from) in ["tdata", "tkeep", "tlast", "tvalid", "tuser"].into_iter().zip(out.signals())
            {
                cmac.set(&format!("tx_axis_{part}"), from);
            }
            tready.set(cmac.get("tx_axis_tready"));
            rx.drive(&link.rx());
        }
        // the configuration flash, and loading from it
        let startup = instance("startup", &STARTUPE3);
        startup.set("USRCCLKO", card.flash_clock);
        startup.set("FCSBO", card.flash_select_n);
        startup.set("DO", cat(&[lit(3, 0b110), card.flash_mosi]));
        card.flash_miso.set(startup.get("DI").bit(1));
        // DI[1] is the flash's to drive; DONE and the key are left alone
        startup.tie(&[("DTS", 0b0010), ("KEYCLEARB", 1), ("USRDONETS", 1)]);
        let port = instance("configuration_port", &ICAPE3);
        let reload = Domain::new(sysclk, None).within(|| instance("reload", &Reload));
        reload.wanted.set(card.flash_reload);
        reload.avail.set(port.get("AVAIL"));
        port.set("CLK", sysclk);
        port.set("CSIB", reload.csib);
        port.set("I", reload.word);
        port.tie(&[]);
        cmac.tie(&[
            ("ctl_rx_enable", 1),
            ("ctl_tx_rsfec_enable", 1),
            ("ctl_rx_rsfec_enable", 1),
            ("ctl_rx_rsfec_enable_correction", 1),
            ("ctl_rx_rsfec_enable_indication", 1),
            ("ctl_rsfec_ieee_error_indication_mode", 1),
        ]);
    }
}
