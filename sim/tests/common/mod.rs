//! The stand-in card: the pins of a card with hardly anything behind them, so that room, root and line are tested alone.
#![allow(dead_code)]

use sim::card::CardModel;
use std::{path::PathBuf, sync::OnceLock};
use verilated::{Model, Source};

/// The frame that the stand-in sends, with its FCS: broadcast, an EtherType of nobody.
pub fn frame() -> Vec<u8> {
    let mut bytes = vec![0xff; 6];
    bytes.extend([2, 0, 0, 0, 0, 0x0a, 0x88, 0xb5]);
    bytes.extend(0..46);
    let check = sim::wire::fcs(&bytes);
    bytes.extend(check);
    bytes
}

/// The model, with or without waves; built once per process.
pub fn model(waves: bool) -> CardModel {
    static MODELS: [OnceLock<CardModel>; 2] = [OnceLock::new(), OnceLock::new()];
    let build = || {
        let text: String = frame().iter().rev().map(|byte| format!("{byte:02x}")).collect();
        let verilog = include_str!("standin.sv").replace("@FRAME@", &text);
        let source = Source::new("standin", &verilog);
        let source = if waves { source.traced() } else { source };
        CardModel::new(Model::build(&source).expect("the stand-in builds")).expect("it has a card's pins")
    };
    MODELS[usize::from(waves)].get_or_init(build).clone()
}

/// Where captures go, to be checked after the tests.
pub fn captures() -> PathBuf {
    let target = Source::default_directory().parent().map(PathBuf::from).expect("a target directory");
    let folder = target.join("captures");
    std::fs::create_dir_all(&folder).expect("a folder for captures");
    folder
}

/// Registers of the stand-in, offsets in BAR0.
pub mod registers {
    /// Address of its DMA, lower half.
    pub const DMA_LOW: u64 = 0x10;
    /// Address of its DMA, upper half.
    pub const DMA_HIGH: u64 = 0x14;
    /// Written: this word goes to the DMA address.
    pub const WRITE: u64 = 0x18;
    /// Core clocks since reset.
    pub const NOW: u64 = 0x30;
    /// When [`DUE_WORD`] goes to the DMA address.
    pub const DUE: u64 = 0x34;
    /// See [`DUE`].
    pub const DUE_WORD: u64 = 0x38;
}
