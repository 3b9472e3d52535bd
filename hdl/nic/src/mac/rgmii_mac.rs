//! A Gigabit MAC with its RGMII: what a board puts between its DDR cells and the card.
//!
//! ```text
//!   core clock            125 MHz                         the PHY's clock
//!   transmit ──> mac ──> rgmii_transmit ──> edges out
//!   receive  <── mac <───────────────────────── rgmii_receive <── edges in
//!   link, speed <─────── mdio ──> MDC, MDIO
//! ```
//! In and out: frames as of [`Mac`]; pins as pairs of edges. The PHY says by MDIO at which speed the line runs, and both
//! directions follow. Without an answer the last speed stays, 1000 Mb/s from reset on; a frame is sent and taken whether
//! there is a link or not.
//!
//! Requirements: LINE

use crate::config::Config;
use crate::flow::FrameBeat;
use crate::mac::mdio::Mdio;
use crate::mac::pins::{LineIn, LineOut};
use crate::mac::rgmii::{Edges, RgmiiReceive, RgmiiTransmit, SPEED};
use crate::mac::{Mac, waiting_bits};
use hdl::{Bundle, Domain, Module, Ports, Sig, Stream, cat, instance, synchronise};

/// The MAC and what is around it.
#[derive(Clone, Debug)]
pub struct RgmiiMac(pub Config);

/// Ports of [`RgmiiMac`].
#[derive(Ports)]
#[ports(RgmiiMac)]
pub struct RgmiiMacIo {
    /// 125 MHz.
    #[input]
    pub tx_clock: Sig,
    /// Its reset.
    #[input]
    pub tx_reset: Sig,
    /// RXC: 125, 25 or 2.5 MHz.
    #[input]
    pub rx_clock: Sig,
    /// Its reset.
    #[input]
    pub rx_reset: Sig,
    /// Frames to send (core clock).
    #[sink(c.0.clone())]
    pub transmit: Stream<FrameBeat>,
    /// Frames received (core clock).
    #[source(c.0.clone())]
    pub receive: Stream<FrameBeat>,
    /// Beats that entered `transmit` and wait for the line (core clock).
    #[output(waiting_bits(c.0.data_bytes))]
    pub waiting: Sig,
    /// All that entered `transmit` has left (core clock).
    #[output]
    pub idle: Sig,
    /// There is a link (core clock).
    #[output]
    pub link: Sig,
    /// Its speed (core clock).
    #[output(SPEED)]
    pub speed: Sig,
    /// TXD.
    #[output(4u32)]
    pub txd: Edges,
    /// TX_CTL.
    #[output(1u32)]
    pub tx_control: Edges,
    /// TXC.
    #[output(1u32)]
    pub txc: Edges,
    /// RXD.
    #[input(4u32)]
    pub rxd: Edges,
    /// RX_CTL.
    #[input(1u32)]
    pub rx_control: Edges,
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
}

impl Module for RgmiiMac {
    type Io = RgmiiMacIo;
    fn name(&self) -> String {
        format!("rgmii_mac_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "MAC, RGMII at three speeds, and the PHY's word on which.".into()
    }
    fn body(&self, io: &RgmiiMacIo) {
        let mac = instance("mac", &Mac(self.0.clone()));
        for (pin, from) in [
            (mac.tx_clock, io.tx_clock),
            (mac.tx_reset, io.tx_reset),
            (mac.rx_clock, io.rx_clock),
            (mac.rx_reset, io.rx_reset),
        ] {
            pin.set(from);
        }
        mac.transmit.take(&io.transmit);
        io.receive.take(&mac.receive);
        io.idle.set(mac.idle);
        io.waiting.set(mac.waiting);
        let (LineOut::Gmii { txd, tx_en }, LineIn::Gmii { tx_taken, rx_valid, rxd, rx_dv, rx_er }) =
            (mac.out, mac.line)
        else {
            panic!("config `{}`: an RGMII MAC wants Line::Gmii", self.0.name)
        };
        let speed = Domain::new(io.tx_clock, Some(io.tx_reset)).within(|| {
            let mdio = instance("mdio", &Mdio);
            io.mdc.set(mdio.mdc);
            io.mdio_out.set(mdio.mdio_out);
            io.mdio_enable.set(mdio.mdio_enable);
            mdio.mdio_in.set(io.mdio_in);
            let transmit = instance("transmitter_pins", &RgmiiTransmit);
            transmit.speed.set(mdio.speed);
            transmit.txd.set(txd);
            transmit.tx_en.set(tx_en);
            tx_taken.set(transmit.taken);
            io.txd.assign(&transmit.data);
            io.tx_control.assign(&transmit.control);
            io.txc.assign(&transmit.clock_out);
            mdio
        });
        // two bits that may come apart for a clock: a frame of that moment is lost anyhow
        let bits = |name: &str| {
            let each: Vec<Sig> =
                (0..SPEED).rev().map(|i| synchronise(&format!("{name}_{i}"), speed.speed.bit(i))).collect();
            cat(&each)
        };
        io.link.set(synchronise("link_seen", speed.link));
        io.speed.set(bits("speed_seen"));
        Domain::new(io.rx_clock, Some(io.rx_reset)).within(|| {
            let receive = instance("receiver_pins", &RgmiiReceive);
            receive.speed.set(bits("speed_received"));
            receive.data.assign(&io.rxd);
            receive.control.assign(&io.rx_control);
            rx_valid.set(receive.step);
            rxd.set(receive.rxd);
            rx_dv.set(receive.rx_dv);
            rx_er.set(receive.rx_er);
        });
    }
}
