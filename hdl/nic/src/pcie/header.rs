//! Headers of memory requests: contract's 4-doubleword layout, and the 3-doubleword form of addresses below 4 GiB.
//!
//! ```text
//! MemoryRequest > memory_header > raw header on `rq`        raw header on `cq` > fields > as if of 4 doublewords
//! ```
//! Combinational, no state. A header is 128 bits, doubleword 0 in the top bits; one of 3 doublewords leaves the last zero.
//!
//! Requirements: PCIE

use contract::pcie::{KIND_MEMORY, TlpMemoryHeaderBits};
use hdl::{Sig, cat, lit, low, mux};

/// What a memory request asks, for [`memory_header`].
#[derive(Clone, Copy, Debug)]
pub struct MemoryRequest {
    /// A write (with data), else a read.
    pub write: bool,
    /// First byte, 64 bits.
    pub iova: Sig,
    /// Bytes, 13 bits, 1..=4096, within one 4 KiB page.
    pub bytes: Sig,
    /// Attribute RO.
    pub relaxed: Sig,
    /// Requester: bus, device, function.
    pub requester_id: Sig,
    /// Tag, 8 bits.
    pub tag: Sig,
}

/// The raw header of a memory request: 3 doublewords below 4 GiB (a 4-DW header with a zero upper address is refused as
/// unsupported by real root ports), 4 above. Byte enables by the rules for the first and the last doubleword: a request
/// of one doubleword has last BE = 0.
pub fn memory_header(r: &MemoryRequest) -> Sig {
    let start = r.iova.bits(0, 2);
    let wide = r.iova.bits(32, 32).any();
    // the sum reaches 3 + 4096 + 3
    let dwords = (r.bytes + start.extend(13) + 3u32).bits(2, 11);
    let end = start + r.bytes.bits(0, 2) - 1u32;
    let from = lit(4, 0xf) << start;
    let to = lit(4, 0xf) >> (lit(2, 3) - end);
    let single = dwords.eq(1);
    let first_be = mux(single, from & to, from);
    let last_be = mux(single, lit(4, 0), to);
    let mut h = TlpMemoryHeaderBits::zero();
    h.fmt = cat(&[low(), lit(1, u64::from(r.write)), wide]);
    h.kind = lit(5, u64::from(KIND_MEMORY));
    h.relaxed_ordering = r.relaxed;
    h.length = dwords.bits(0, 10);
    h.requester_id = r.requester_id;
    h.tag = r.tag;
    h.last_be = last_be;
    h.first_be = first_be;
    h.address = cat(&[r.iova.bits(2, 62), lit(2, 0)]);
    shortest(h.pack(), wide)
}

/// A header of 4 doublewords, in the form of 3 if its address is not `wide`.
pub fn shortest(long: Sig, wide: Sig) -> Sig {
    mux(wide, long, cat(&[long.bits(64, 64), long.bits(0, 32), lit(32, 0)]))
}

/// The fields of a raw header, of whichever form.
pub fn fields(raw: Sig) -> TlpMemoryHeaderBits {
    let mut h = TlpMemoryHeaderBits::unpack(raw);
    h.address = mux(h.fmt.bit(0), h.address, raw.bits(32, 32).extend(64));
    h
}
