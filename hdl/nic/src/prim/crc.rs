//! Ends of a CRC-32 inside of a beat, at the price of one full-beat CRC.
//!
//! A register always takes whole beats, whose lanes behind the end are zero. [`unwind`] then steps it back over those
//! zero bytes: a linear map of 32 bits, far smaller than one CRC per number of lanes. A check needs not even that:
//! [`residues`] gives what the register holds if the sum was right, per number of bytes in the last beat.

use hdl::{Bits, Sig, cat, constant, crc32_back, crc32_bytes, lit};

/// The register behind a message followed by its own sum, low byte first.
pub const RESIDUE: u32 = 0xDEBB_20E3;

/// The register before the last `zeros` bytes, all zero, went in.
#[track_caller]
pub fn unwind(register: Sig, zeros: u32) -> Sig {
    if zeros == 0 {
        return register;
    }
    let mut masks: Vec<Bits> = (0..32).map(|_| Bits::zero(32)).collect();
    for i in 0..32 {
        let image = crc32_back(1 << i, zeros as usize);
        for (o, mask) in masks.iter_mut().enumerate() {
            if image >> o & 1 == 1 {
                mask.set_bit(i);
            }
        }
    }
    let out: Vec<Sig> = masks.into_iter().rev().map(|m| (register & constant(m)).parity()).collect();
    cat(&out)
}

/// Per number of bytes in the last beat, 0..=`beat`: the register behind the whole beat if the sum ends there. For
/// zero bytes: behind one whole beat of zeros.
#[track_caller]
pub fn residues(beat: u32) -> Vec<Sig> {
    (0..=beat)
        .map(|bytes| lit(32, u64::from(crc32_bytes(RESIDUE, &vec![0; (beat - bytes) as usize]))))
        .collect()
}
