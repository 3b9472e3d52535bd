//! Tops of boards: the card, the shims and the hard blocks between the pins. Constraints of a board stand in
//! `constraints/BOARD`.

pub mod alveo_u55c;
pub mod cell;
pub mod ecp5;
pub mod ecp5_versa;
pub mod us_pcie_bench;
pub mod reload;
pub mod rgmii_loop;
