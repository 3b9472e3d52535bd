//! The two timers of a reliable connection: RNR wait and retransmission timeout.
//!
//! In: the 5-bit codes of the QP attributes and the RNR NAK. Out: nanoseconds. (InfiniBand 9.7.5.2.8 and 9.7.6.1.3.)

/// Wait of each RNR timer code, in nanoseconds; code 0 is the longest.
pub const RNR_NS: [u64; 32] = [
    655_360_000,
    10_000,
    20_000,
    30_000,
    40_000,
    60_000,
    80_000,
    120_000,
    160_000,
    240_000,
    320_000,
    480_000,
    640_000,
    960_000,
    1_280_000,
    1_920_000,
    2_560_000,
    3_840_000,
    5_120_000,
    7_680_000,
    10_240_000,
    15_360_000,
    20_480_000,
    30_720_000,
    40_960_000,
    61_440_000,
    81_920_000,
    122_880_000,
    163_840_000,
    245_760_000,
    327_680_000,
    491_520_000,
];

/// Least time a requester waits after an RNR NAK with this timer code (5 bits; higher bits are ignored).
pub const fn rnr_ns(code: u8) -> u64 {
    RNR_NS[code as usize & 31]
}

/// Retransmission timeout of the QP attribute `timeout` (5 bits): 4.096 us * 2^code; `None` for 0, which never fires.
pub const fn timeout_ns(code: u8) -> Option<u64> {
    match code & 31 {
        0 => None,
        code => Some(4096 << code),
    }
}

/// Value of `retry_cnt` (seven means seven) at its maximum.
pub const RETRY_MAX: u8 = 7;
/// Value of `rnr_retry` that means for ever.
pub const RNR_RETRY_FOREVER: u8 = 7;
