//! The pins of the line, by its kind ([`Line`]): XGMII or bytes at 64 bit, the AXI streams of the CMAC at 512.
//!
//! | line | out | in |
//! |---|---|---|
//! | XGMII | `xgmii_txd`, `xgmii_txc` | `xgmii_rxd`, `xgmii_rxc` |
//! | GMII | `gmii_txd`, `gmii_tx_en` | `gmii_tx_taken`, `gmii_rx_valid`, `gmii_rxd`, `gmii_rx_dv`, `gmii_rx_er` |
//! | CMAC | `tx_axis_tdata`, `_tkeep`, `_tlast`, `_tvalid`, `_tuser` | `tx_axis_tready`, `rx_axis_tdata`, `_tkeep`, `_tlast`, `_tvalid`, `_tuser` |
//!
//! Names are those of the field, whatever the port is called in Rust.

use crate::config::{Config, Line};
use hdl::{Bundle, Sig};

/// An AXI stream of the CMAC without its `tready`.
#[derive(Clone, Copy, Debug)]
pub struct Axis {
    /// Byte 0 is the first on the wire.
    pub tdata: Sig,
    /// Which bytes there are: all, but in the last beat the first so many.
    pub tkeep: Sig,
    /// The last beat of a frame.
    pub tlast: Sig,
    /// There is a beat.
    pub tvalid: Sig,
    /// With `tlast`: the frame is bad.
    pub tuser: Sig,
}

impl Axis {
    fn build(c: &Config, name: &str, make: &mut dyn FnMut(&str, u32) -> Sig) -> Axis {
        let mut pin = |part: &str, width: u32| make(&format!("{name}_{part}"), width);
        Axis {
            tdata: pin("tdata", c.data_bits()),
            tkeep: pin("tkeep", c.data_bytes),
            tlast: pin("tlast", 1),
            tvalid: pin("tvalid", 1),
            tuser: pin("tuser", 1),
        }
    }
    /// Them all, in the order of the fields.
    pub fn signals(&self) -> Vec<Sig> {
        vec![self.tdata, self.tkeep, self.tlast, self.tvalid, self.tuser]
    }
    /// Drives them from those of another stream.
    #[track_caller]
    pub fn drive(&self, from: &Axis) {
        for (to, from) in self.signals().into_iter().zip(from.signals()) {
            to.set(from);
        }
    }
}

/// Pins toward the line.
#[derive(Clone, Copy, Debug)]
pub enum LineOut {
    /// 64 bit.
    Xgmii {
        /// Data, lane 0 lowest.
        txd: Sig,
        /// Control.
        txc: Sig,
    },
    /// Bytes; they stand until they are taken.
    Gmii {
        /// The byte.
        txd: Sig,
        /// It is of a frame.
        tx_en: Sig,
    },
    /// 512 bit: frames without FCS.
    Cmac(Axis),
}

/// Pins from the line.
#[derive(Clone, Copy, Debug)]
pub enum LineIn {
    /// 64 bit.
    Xgmii {
        /// Data, lane 0 lowest.
        rxd: Sig,
        /// Control.
        rxc: Sig,
    },
    /// Bytes.
    Gmii {
        /// The byte of [`LineOut::Gmii`] is taken (transmit clock).
        tx_taken: Sig,
        /// A byte, or the time of one, is here; the rest holds only with it.
        rx_valid: Sig,
        /// It.
        rxd: Sig,
        /// It is of a frame or its preamble.
        rx_dv: Sig,
        /// The PHY does not believe it.
        rx_er: Sig,
    },
    /// 512 bit.
    Cmac {
        /// The beat of [`LineOut::Cmac`] is taken.
        tready: Sig,
        /// Frames without FCS; never held up.
        rx: Axis,
    },
}

impl Bundle for LineOut {
    type Shape = Config;
    #[track_caller]
    fn build(c: &Config, _: &str, make: &mut dyn FnMut(&str, u32) -> Sig) -> Self {
        match c.line() {
            Line::Xgmii => LineOut::Xgmii { txd: make("xgmii_txd", 64), txc: make("xgmii_txc", 8) },
            Line::Gmii => LineOut::Gmii { txd: make("gmii_txd", 8), tx_en: make("gmii_tx_en", 1) },
            Line::Cmac => LineOut::Cmac(Axis::build(c, "tx_axis", make)),
        }
    }
    fn signals(&self) -> Vec<Sig> {
        match self {
            LineOut::Xgmii { txd, txc } => vec![*txd, *txc],
            LineOut::Gmii { txd, tx_en } => vec![*txd, *tx_en],
            LineOut::Cmac(tx) => tx.signals(),
        }
    }
}

impl Bundle for LineIn {
    type Shape = Config;
    #[track_caller]
    fn build(c: &Config, _: &str, make: &mut dyn FnMut(&str, u32) -> Sig) -> Self {
        match c.line() {
            Line::Xgmii => LineIn::Xgmii { rxd: make("xgmii_rxd", 64), rxc: make("xgmii_rxc", 8) },
            Line::Gmii => LineIn::Gmii {
                tx_taken: make("gmii_tx_taken", 1),
                rx_valid: make("gmii_rx_valid", 1),
                rxd: make("gmii_rxd", 8),
                rx_dv: make("gmii_rx_dv", 1),
                rx_er: make("gmii_rx_er", 1),
            },
            Line::Cmac => {
                LineIn::Cmac { tready: make("tx_axis_tready", 1), rx: Axis::build(c, "rx_axis", make) }
            }
        }
    }
    fn signals(&self) -> Vec<Sig> {
        match self {
            LineIn::Xgmii { rxd, rxc } => vec![*rxd, *rxc],
            LineIn::Gmii { tx_taken, rx_valid, rxd, rx_dv, rx_er } => {
                vec![*tx_taken, *rx_valid, *rxd, *rx_dv, *rx_er]
            }
            LineIn::Cmac { tready, rx } => [vec![*tready], rx.signals()].concat(),
        }
    }
}
