//! Constant bit vectors of any width, least significant word first; unused high bits are always zero.

/// A value of `width` bits.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bits {
    width: u32,
    words: Vec<u64>,
}

impl Bits {
    /// Zero of `width` bits.
    pub fn zero(width: u32) -> Self {
        Bits { width, words: vec![0; words(width)] }
    }
    /// The low `width` bits of `value`.
    pub fn new(width: u32, value: u128) -> Self {
        Self::from_words(width, &[value as u64, (value >> 64) as u64])
    }
    /// From 64-bit words, least significant first; missing words are zero, excess bits are cut.
    pub fn from_words(width: u32, from: &[u64]) -> Self {
        let mut b = Self::zero(width);
        for (to, from) in b.words.iter_mut().zip(from) {
            *to = *from;
        }
        b.trim();
        b
    }
    /// From bytes, byte 0 in bits 7:0.
    pub fn from_bytes(width: u32, bytes: &[u8]) -> Self {
        let mut b = Self::zero(width);
        for (i, byte) in bytes.iter().enumerate().take(width.div_ceil(8) as usize) {
            b.words[i / 8] |= u64::from(*byte) << (i % 8 * 8);
        }
        b.trim();
        b
    }
    /// To bytes, bits 7:0 first.
    pub fn to_bytes(&self) -> Vec<u8> {
        (0..self.width.div_ceil(8) as usize).map(|i| (self.words[i / 8] >> (i % 8 * 8)) as u8).collect()
    }
    fn trim(&mut self) {
        if !self.width.is_multiple_of(64)
            && let Some(top) = self.words.last_mut()
        {
            *top &= (1 << (self.width % 64)) - 1;
        }
    }
    /// Number of bits.
    pub fn width(&self) -> u32 {
        self.width
    }
    /// The words, least significant first.
    pub fn words(&self) -> &[u64] {
        &self.words
    }
    pub(crate) fn is_zero(&self) -> bool {
        self.words.iter().all(|w| *w == 0)
    }
    pub(crate) fn is_ones(&self) -> bool {
        self.words.iter().map(|w| w.count_ones()).sum::<u32>() == self.width
    }
    /// Bit `i`; bits past the width are zero.
    pub fn bit(&self, i: u32) -> bool {
        self.words.get(i as usize / 64).is_some_and(|w| w >> (i % 64) & 1 == 1)
    }
    /// Sets bit `i`.
    pub fn set_bit(&mut self, i: u32) {
        assert!(i < self.width, "bit {i} of {} bits", self.width);
        self.words[i as usize / 64] |= 1 << (i % 64);
    }
    /// The low 64 bits.
    pub fn low(&self) -> u64 {
        self.words[0]
    }
    /// The low 128 bits.
    pub fn low128(&self) -> u128 {
        u128::from(self.words[0]) | u128::from(self.words.get(1).copied().unwrap_or(0)) << 64
    }
    /// Hexadecimal digits without leading zeros.
    pub fn hex(&self) -> String {
        let digits: String = self.words.iter().rev().map(|w| format!("{w:016x}")).collect();
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() { "0".into() } else { digits.into() }
    }
}

/// Words of 64 bits that hold `width` bits.
pub(crate) fn words(width: u32) -> usize {
    width.div_ceil(64) as usize
}
