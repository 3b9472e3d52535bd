//! The pins of the line, by its kind: XGMII at 64 bit, the AXI streams of the CMAC at 512.
//!
//! | width | out | in |
//! |---|---|---|
//! | 64 | `xgmii_txd`, `xgmii_txc` | `xgmii_rxd`, `xgmii_rxc` |
//! | 512 | `tx_axis_tdata`, `_tkeep`, `_tlast`, `_tvalid`, `_tuser` | `tx_axis_tready`, `rx_axis_tdata`, `_tkeep`, `_tlast`, `_tvalid`, `_tuser` |
//!
//! Names are those of the field, whatever the port is called in Rust.

use crate::config::Config;
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
        match c.data_bytes {
            8 => LineOut::Xgmii { txd: make("xgmii_txd", 64), txc: make("xgmii_txc", 8) },
            _ => LineOut::Cmac(Axis::build(c, "tx_axis", make)),
        }
    }
    fn signals(&self) -> Vec<Sig> {
        match self {
            LineOut::Xgmii { txd, txc } => vec![*txd, *txc],
            LineOut::Cmac(tx) => tx.signals(),
        }
    }
}

impl Bundle for LineIn {
    type Shape = Config;
    #[track_caller]
    fn build(c: &Config, _: &str, make: &mut dyn FnMut(&str, u32) -> Sig) -> Self {
        match c.data_bytes {
            8 => LineIn::Xgmii { rxd: make("xgmii_rxd", 64), rxc: make("xgmii_rxc", 8) },
            _ => LineIn::Cmac { tready: make("tx_axis_tready", 1), rx: Axis::build(c, "rx_axis", make) },
        }
    }
    fn signals(&self) -> Vec<Sig> {
        match self {
            LineIn::Xgmii { rxd, rxc } => vec![*rxd, *rxc],
            LineIn::Cmac { tready, rx } => [vec![*tready], rx.signals()].concat(),
        }
    }
}
