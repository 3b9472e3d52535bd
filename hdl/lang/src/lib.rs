#![doc = include_str!("../README.md")]

mod bits;
mod check;
mod control;
mod crc;
mod elaborate;
mod emit;
mod error;
mod flat;
mod fold;
mod interpret;
mod ir;
mod memory;
mod ports;
mod sig;

pub use bits::Bits;
pub use control::{Done, EnumSig, HwEnum, When, when};
pub use crc::{CRC32, crc32_back, crc32_bytes, crc32_next};
pub use elaborate::{Design, Domain, Module, assert_always, cover, elaborate, instance, scope};
pub use emit::{Style, WAIVERS};
pub use error::{Error, Place, Rule};
pub use hdl_derive::{Bundle, HwEnum, Ports};
pub use interpret::Interpreter;
pub use ir::Parameter;
pub use memory::Memory;
pub use ports::{Bundle, PortBuilder, Ports, Stream, StreamOf, Width};
pub use sig::{
    Sig, ToSig, all_of, any_of, cat, constant, delay, delay_init, high, index_width, lit, low, mux, reg,
    reg_init, select, synchronise, wire,
};
