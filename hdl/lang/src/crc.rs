//! Cyclic redundancy codes as exclusive-or masks: each next state bit is the parity of the state and data bits that
//! reach it, worked out once at elaboration by running the bit-serial register on unit vectors.

use crate::bits::Bits;
use crate::sig::{Sig, cat, constant};

/// The reflected CRC-32 of IEEE 802.3 (polynomial 0xEDB88320).
pub const CRC32: u32 = 0xEDB8_8320;

/// One bit-serial step of a reflected CRC.
fn serial(polynomial: u32, state: u32, bit: bool) -> u32 {
    let out = (state & 1 == 1) ^ bit;
    (state >> 1) ^ if out { polynomial } else { 0 }
}

/// The state after `bytes`, from `state` (no inversions): the constant counterpart of [`crc32_next`].
pub fn crc32_bytes(state: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(state, |s, byte| (0..8).fold(s, |s, i| serial(CRC32, s, byte >> i & 1 == 1)))
}

/// The state from which `n` zero bytes lead to `state`.
pub fn crc32_back(state: u32, n: usize) -> u32 {
    // the step is invertible: the polynomial's top bit tells whether it was applied
    (0..n * 8).fold(state, |s, _| if s >> 31 == 1 { ((s ^ CRC32) << 1) | 1 } else { s << 1 })
}

/// The register after the low `bytes` bytes of `data`, byte 0 first; combinational.
#[track_caller]
pub fn crc32_next(state: Sig, data: Sig, bytes: u32) -> Sig {
    let bits = bytes * 8;
    let input = cat(&[data.bits(0, bits), state]);
    let mut masks: Vec<Bits> = (0..32).map(|_| Bits::zero(32 + bits)).collect();
    for i in 0..32 + bits {
        let (mut s, from) = if i < 32 { (1u32 << i, None) } else { (0, Some(i - 32)) };
        for b in 0..bits {
            s = serial(CRC32, s, from == Some(b));
        }
        for (o, mask) in masks.iter_mut().enumerate() {
            if s >> o & 1 == 1 {
                mask.set_bit(i);
            }
        }
    }
    let out: Vec<Sig> = masks.into_iter().rev().map(|m| (input & constant(m)).parity()).collect();
    cat(&out)
}
