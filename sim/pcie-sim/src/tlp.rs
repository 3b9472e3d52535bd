//! The TLP codec: raw headers in the bit order of the PCI Express header format, and what they mean.
//!
//! In: a [`RawTlp`] (four header DWs, payload bytes). Out: a [`Tlp`], or a named [`TlpError`]. [`Tlp::emit`] gives the
//! one canonical raw form: 3-DW header below 4 GiB, 4-DW above, reserved bits zero. Parsing is lenient where a receiver
//! must ignore a bit and strict where the shape would be ambiguous; `parse(emit(t)) == t` for every well-formed `t`,
//! and the judge compares `emit(parse(raw))` with `raw` to find reserved bits that were set.
//!
//! Never panics on any input. Bytes of the payload are in address order: byte 0 is the lowest byte of the first DW.

use thiserror::Error;

/// A whole TLP as it crosses the boundary to the card.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct RawTlp {
    /// Header DWs in the specification's order: DW0 has Fmt in bits 31:29, Type in 28:24, Length in 9:0. A 3-DW header
    /// leaves DW3 zero.
    pub header: [u32; 4],
    /// Payload, a whole number of DWs, lowest address first.
    pub payload: Vec<u8>,
}

impl RawTlp {
    /// DWs of the header: 3 or 4, by Fmt bit 0.
    pub fn header_dwords(&self) -> usize {
        if self.header[0] >> 29 & 1 == 1 { 4 } else { 3 }
    }

    /// Bytes that this TLP costs on the link: header, payload, and 8 bytes of framing (start, sequence number, LCRC,
    /// end). A memory write with a 4-DW header costs 24 bytes beside its payload; one with 3 DWs, and every
    /// completion, 20.
    pub fn wire_bytes(&self) -> u64 {
        self.header_dwords() as u64 * 4 + 8 + self.payload.len() as u64
    }

    /// The poisoned (EP) bit.
    pub fn poisoned(&self) -> bool {
        self.header[0] >> 14 & 1 == 1
    }
}

/// Fields that every TLP has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Attributes {
    /// Traffic class, 0..=7.
    pub traffic_class: u8,
    /// Relaxed ordering (Attr bit 1).
    pub relaxed: bool,
    /// No snoop (Attr bit 0).
    pub no_snoop: bool,
    /// ID-based ordering (Attr bit 2).
    pub id_ordered: bool,
    /// Poisoned data (EP).
    pub poisoned: bool,
}

/// A memory read request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemRead {
    /// Common fields.
    pub attr: Attributes,
    /// Bus 15:8, device 7:3, function 2:0.
    pub requester: u16,
    /// Tag, 10 bits.
    pub tag: u16,
    /// Address of the first DW (bits 1:0 zero).
    pub address: u64,
    /// Length in DWs, 1..=1024.
    pub dwords: u16,
    /// Enables of the first DW, bit 0 the lowest byte.
    pub first_be: u8,
    /// Enables of the last DW; zero when there is one DW only.
    pub last_be: u8,
}

/// A memory write request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemWrite {
    /// Common fields.
    pub attr: Attributes,
    /// Requester ID.
    pub requester: u16,
    /// Tag; free for posted requests.
    pub tag: u16,
    /// Address of the first DW (bits 1:0 zero).
    pub address: u64,
    /// Enables of the first DW.
    pub first_be: u8,
    /// Enables of the last DW.
    pub last_be: u8,
    /// Whole DWs, 4..=4096 bytes.
    pub payload: Vec<u8>,
}

/// The operation of an [`AtomicOp`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AtomicKind {
    /// Adds the operand; returns the old value.
    FetchAdd,
    /// Stores the operand; returns the old value.
    Swap,
    /// Stores the second operand if memory equals the first; returns the old value.
    CompareSwap,
}

/// An AtomicOp request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AtomicOp {
    /// Common fields.
    pub attr: Attributes,
    /// Requester ID.
    pub requester: u16,
    /// Tag.
    pub tag: u16,
    /// Operation.
    pub kind: AtomicKind,
    /// Address (bits 1:0 zero); must be aligned to the operand.
    pub address: u64,
    /// Operands, little endian: one, or compare then swap.
    pub operands: Vec<u8>,
}

impl AtomicOp {
    /// Bytes of one operand, which is also what the completion returns.
    pub fn operand_bytes(&self) -> usize {
        match self.kind {
            AtomicKind::CompareSwap => self.operands.len() / 2,
            _ => self.operands.len(),
        }
    }
}

/// The status of a completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Status {
    /// SC.
    Successful,
    /// UR.
    UnsupportedRequest,
    /// CRS (RRS): only for configuration requests.
    ConfigRetry,
    /// CA.
    CompleterAbort,
}

impl Status {
    /// The 3-bit code.
    pub fn code(self) -> u32 {
        match self {
            Status::Successful => 0,
            Status::UnsupportedRequest => 1,
            Status::ConfigRetry => 2,
            Status::CompleterAbort => 4,
        }
    }
}

/// A completion, with or without data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Common fields, copied from the request.
    pub attr: Attributes,
    /// Completer ID.
    pub completer: u16,
    /// Status; anything but SC ends the request.
    pub status: Status,
    /// Bytes still owed including this TLP, 1..=4096 (0 in the field is 4096).
    pub byte_count: u16,
    /// Requester ID, copied.
    pub requester: u16,
    /// Tag, copied.
    pub tag: u16,
    /// Bits 6:0 of the byte address of the first enabled byte of this TLP.
    pub lower_address: u8,
    /// Whole DWs; empty for a completion without data.
    pub payload: Vec<u8>,
}

/// A configuration request. Never routed to the card's RTL: the core answers it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigRequest {
    /// Common fields.
    pub attr: Attributes,
    /// Requester ID.
    pub requester: u16,
    /// Tag.
    pub tag: u16,
    /// Bus, device and function that is addressed.
    pub target: u16,
    /// Byte offset of the DW, 0..=4092.
    pub offset: u16,
    /// Enables.
    pub first_be: u8,
    /// Type 1 (to be routed further) instead of type 0.
    pub type1: bool,
    /// The DW that is written; a read if `None`.
    pub write: Option<[u8; 4]>,
}

/// What a TLP means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tlp {
    /// MRd.
    MemRead(MemRead),
    /// MWr.
    MemWrite(MemWrite),
    /// FetchAdd, Swap, CAS.
    AtomicOp(AtomicOp),
    /// Cpl, CplD.
    Completion(Completion),
    /// CfgRd, CfgWr.
    Config(ConfigRequest),
}

/// Why a raw TLP has no meaning.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TlpError {
    /// Fmt and Type name no TLP that this link carries.
    #[error(
        "TLP header: Fmt {fmt:#05b} Type {kind:#07b} is no memory, AtomicOp, completion or configuration TLP; send one of those"
    )]
    UnknownType {
        /// Bits 31:29.
        fmt: u8,
        /// Bits 28:24.
        kind: u8,
    },
    /// Length field and payload disagree.
    #[error("TLP payload: Length says {expected} bytes, the payload has {found}; make them equal")]
    PayloadLength {
        /// Bytes by the header.
        expected: usize,
        /// Bytes there.
        found: usize,
    },
    /// TD is set: an ECRC would follow.
    #[error("TLP header: TD is set, but no ECRC is carried at this boundary; clear TD")]
    Digest,
    /// AT is not 00.
    #[error("TLP header: AT is {0}, but no address translation service exists here; send AT 0")]
    AddressType(u8),
    /// A reserved completion status.
    #[error("completion: status code {0} is reserved; use SC 0, UR 1, CRS 2 or CA 4")]
    Status(u8),
    /// Length that the AtomicOp does not have.
    #[error("AtomicOp: Length {dwords} DW does not exist for {kind:?}; use 1 or 2 (CAS: 2, 4 or 8)")]
    AtomicLength {
        /// Operation.
        kind: AtomicKind,
        /// Length in DWs.
        dwords: usize,
    },
    /// A configuration request of more than one DW.
    #[error("configuration request: Length is {0} DW; use 1")]
    ConfigLength(usize),
}

fn request_dw1(requester: u16, tag: u16, last_be: u8, first_be: u8) -> u32 {
    (requester as u32) << 16 | (tag as u32 & 0xff) << 8 | (last_be as u32 & 15) << 4 | (first_be as u32 & 15)
}

fn dw0(fmt: u32, kind: u32, tag: u16, attr: &Attributes, dwords: usize) -> u32 {
    fmt << 29
        | kind << 24
        | (tag as u32 >> 9 & 1) << 23
        | (attr.traffic_class as u32 & 7) << 20
        | (tag as u32 >> 8 & 1) << 19
        | (attr.id_ordered as u32) << 18
        | (attr.poisoned as u32) << 14
        | (attr.relaxed as u32) << 13
        | (attr.no_snoop as u32) << 12
        | (dwords as u32 & 0x3ff)
}

fn with_address(dw0: u32, dw1: u32, address: u64) -> [u32; 4] {
    let low = address as u32 & !3;
    match (address >> 32) as u32 {
        0 => [dw0, dw1, low, 0],
        high => [dw0 | 1 << 29, dw1, high, low],
    }
}

const MEM: u8 = 0b00000;
const CFG0: u8 = 0b00100;
const CFG1: u8 = 0b00101;
const CPL: u8 = 0b01010;
const FETCH_ADD: u8 = 0b01100;
const SWAP: u8 = 0b01101;
const CAS: u8 = 0b01110;

impl Tlp {
    /// Reads a raw TLP. Reserved bits are ignored, as a receiver must.
    pub fn parse(raw: &RawTlp) -> Result<Tlp, TlpError> {
        let [d0, d1, d2, d3] = raw.header;
        let fmt = (d0 >> 29) as u8;
        let kind = (d0 >> 24 & 31) as u8;
        let wide = fmt & 1 == 1;
        let data = fmt & 2 == 2;
        let known = fmt & 4 == 0
            && match kind {
                MEM => true,
                CFG0 | CFG1 | CPL => !wide,
                FETCH_ADD | SWAP | CAS => data,
                _ => false,
            };
        if !known {
            return Err(TlpError::UnknownType { fmt, kind });
        }
        if d0 >> 15 & 1 == 1 {
            return Err(TlpError::Digest);
        }
        let at = (d0 >> 10 & 3) as u8;
        if at != 0 && kind != CPL {
            return Err(TlpError::AddressType(at));
        }
        let dwords = if d0 & 0x3ff == 0 { 1024 } else { (d0 & 0x3ff) as usize };
        let expected = if data { dwords * 4 } else { 0 };
        if raw.payload.len() != expected {
            return Err(TlpError::PayloadLength { expected, found: raw.payload.len() });
        }
        let attr = Attributes {
            traffic_class: (d0 >> 20 & 7) as u8,
            relaxed: d0 >> 13 & 1 == 1,
            no_snoop: d0 >> 12 & 1 == 1,
            id_ordered: d0 >> 18 & 1 == 1,
            poisoned: d0 >> 14 & 1 == 1,
        };
        let high_tag = (d0 >> 23 & 1) << 9 | (d0 >> 19 & 1) << 8;
        let tag = (high_tag | d1 >> 8 & 0xff) as u16;
        let requester = (d1 >> 16) as u16;
        let first_be = (d1 & 15) as u8;
        let last_be = (d1 >> 4 & 15) as u8;
        let address = if wide { (d2 as u64) << 32 | (d3 & !3) as u64 } else { (d2 & !3) as u64 };
        Ok(match kind {
            CPL => Tlp::Completion(Completion {
                attr,
                completer: requester,
                status: match d1 >> 13 & 7 {
                    0 => Status::Successful,
                    1 => Status::UnsupportedRequest,
                    2 => Status::ConfigRetry,
                    4 => Status::CompleterAbort,
                    other => return Err(TlpError::Status(other as u8)),
                },
                byte_count: if d1 & 0xfff == 0 { 4096 } else { (d1 & 0xfff) as u16 },
                requester: (d2 >> 16) as u16,
                tag: (high_tag | d2 >> 8 & 0xff) as u16,
                lower_address: (d2 & 0x7f) as u8,
                payload: raw.payload.clone(),
            }),
            CFG0 | CFG1 => {
                if dwords != 1 {
                    return Err(TlpError::ConfigLength(dwords));
                }
                let write = if data { raw.payload.as_slice().try_into().ok() } else { None };
                Tlp::Config(ConfigRequest {
                    attr,
                    requester,
                    tag,
                    target: (d2 >> 16) as u16,
                    offset: (d2 & 0xffc) as u16,
                    first_be,
                    type1: kind == CFG1,
                    write,
                })
            }
            FETCH_ADD | SWAP | CAS => {
                let kind = match kind {
                    FETCH_ADD => AtomicKind::FetchAdd,
                    SWAP => AtomicKind::Swap,
                    _ => AtomicKind::CompareSwap,
                };
                let fits = match kind {
                    AtomicKind::CompareSwap => matches!(dwords, 2 | 4 | 8),
                    _ => matches!(dwords, 1 | 2),
                };
                if !fits {
                    return Err(TlpError::AtomicLength { kind, dwords });
                }
                Tlp::AtomicOp(AtomicOp { attr, requester, tag, kind, address, operands: raw.payload.clone() })
            }
            _ if data => Tlp::MemWrite(MemWrite {
                attr,
                requester,
                tag,
                address,
                first_be,
                last_be,
                payload: raw.payload.clone(),
            }),
            _ => Tlp::MemRead(MemRead {
                attr,
                requester,
                tag,
                address,
                dwords: dwords as u16,
                first_be,
                last_be,
            }),
        })
    }

    /// The canonical raw form.
    pub fn emit(&self) -> RawTlp {
        let payload = match self {
            Tlp::MemRead(_) => Vec::new(),
            Tlp::MemWrite(w) => w.payload.clone(),
            Tlp::AtomicOp(a) => a.operands.clone(),
            Tlp::Completion(c) => c.payload.clone(),
            Tlp::Config(c) => c.write.map(|bytes| bytes.to_vec()).unwrap_or_default(),
        };
        RawTlp { header: self.header(), payload }
    }

    /// The canonical header.
    pub fn header(&self) -> [u32; 4] {
        match self {
            Tlp::MemRead(r) => with_address(
                dw0(0, MEM as u32, r.tag, &r.attr, r.dwords as usize),
                request_dw1(r.requester, r.tag, r.last_be, r.first_be),
                r.address,
            ),
            Tlp::MemWrite(w) => with_address(
                dw0(2, MEM as u32, w.tag, &w.attr, w.payload.len() / 4),
                request_dw1(w.requester, w.tag, w.last_be, w.first_be),
                w.address,
            ),
            Tlp::AtomicOp(a) => {
                let kind = match a.kind {
                    AtomicKind::FetchAdd => FETCH_ADD,
                    AtomicKind::Swap => SWAP,
                    AtomicKind::CompareSwap => CAS,
                };
                // The byte enables of an AtomicOp are reserved: zero.
                with_address(
                    dw0(2, kind as u32, a.tag, &a.attr, a.operands.len() / 4),
                    request_dw1(a.requester, a.tag, 0, 0),
                    a.address,
                )
            }
            Tlp::Completion(c) => {
                let fmt = if c.payload.is_empty() { 0 } else { 2 };
                [
                    dw0(fmt, CPL as u32, c.tag, &c.attr, c.payload.len() / 4),
                    (c.completer as u32) << 16 | c.status.code() << 13 | (c.byte_count as u32 & 0xfff),
                    (c.requester as u32) << 16 | (c.tag as u32 & 0xff) << 8 | (c.lower_address as u32 & 0x7f),
                    0,
                ]
            }
            Tlp::Config(c) => {
                let fmt = if c.write.is_some() { 2 } else { 0 };
                let kind = if c.type1 { CFG1 } else { CFG0 };
                [
                    dw0(fmt, kind as u32, c.tag, &c.attr, 1),
                    request_dw1(c.requester, c.tag, 0, c.first_be),
                    (c.target as u32) << 16 | (c.offset as u32 & 0xffc),
                    0,
                ]
            }
        }
    }

    /// Common fields.
    pub fn attributes(&self) -> &Attributes {
        match self {
            Tlp::MemRead(r) => &r.attr,
            Tlp::MemWrite(w) => &w.attr,
            Tlp::AtomicOp(a) => &a.attr,
            Tlp::Completion(c) => &c.attr,
            Tlp::Config(c) => &c.attr,
        }
    }
}

/// First DW address, Length and byte enables of the `len` bytes at `address`. No byte at all gives the zero-length
/// form: one DW, no enable. `len` is taken modulo what Length can say (4096 bytes).
pub fn enables(address: u64, len: usize) -> (u64, u16, u8, u8) {
    let offset = (address & 3) as usize;
    let start = address & !3;
    if len == 0 {
        return (start, 1, 0, 0);
    }
    let end = offset + len;
    let dwords = end.div_ceil(4);
    let first = 0xf << offset & 0xf;
    let last = 0xf >> (dwords * 4 - end);
    if dwords == 1 {
        (start, 1, (first & last) as u8, 0)
    } else {
        (start, dwords.min(1024) as u16, first as u8, last as u8)
    }
}

/// Bytes from the first to the last enabled one: the first Byte Count of a read. A zero-length request counts 1.
pub fn byte_count(dwords: u16, first_be: u8, last_be: u8) -> u16 {
    if dwords <= 1 {
        return match first_be & 15 {
            0 => 1,
            be => (8 - be.leading_zeros() as u16).saturating_sub(be.trailing_zeros() as u16),
        };
    }
    let lead = (first_be as u16 & 15 | 16).trailing_zeros() as u16;
    let trail = ((last_be & 15) << 4).leading_zeros().min(4) as u16;
    dwords * 4 - lead - trail
}

/// Byte address of the first enabled byte (of the first DW, for a zero-length request).
pub fn first_byte(address: u64, first_be: u8) -> u64 {
    match first_be & 15 {
        0 => address & !3,
        be => (address & !3) + be.trailing_zeros() as u64,
    }
}

impl MemRead {
    /// A read of `len` bytes at `address`.
    pub fn bytes(requester: u16, tag: u16, address: u64, len: usize) -> MemRead {
        let (address, dwords, first_be, last_be) = enables(address, len);
        MemRead { attr: Attributes::default(), requester, tag, address, dwords, first_be, last_be }
    }

    /// Bytes from the first to the last enabled one; 1 for a zero-length read.
    pub fn byte_count(&self) -> u16 {
        byte_count(self.dwords, self.first_be, self.last_be)
    }

    /// A read that enables no byte: a flush.
    pub fn zero_length(&self) -> bool {
        self.dwords == 1 && self.first_be == 0
    }
}

impl MemWrite {
    /// A write of `bytes` at `address`; the DWs at both ends are padded with zeros that are not enabled. More than
    /// 4096 bytes with their padding do not fit a TLP: [`Tlp::parse`] refuses such a one.
    pub fn bytes(requester: u16, address: u64, bytes: &[u8]) -> MemWrite {
        let (start, dwords, first_be, last_be) = enables(address, bytes.len());
        let offset = (address & 3) as usize;
        let mut payload = vec![0; (dwords as usize * 4).max((offset + bytes.len()).next_multiple_of(4))];
        payload[offset..offset + bytes.len()].copy_from_slice(bytes);
        MemWrite {
            attr: Attributes::default(),
            requester,
            tag: 0,
            address: start,
            first_be,
            last_be,
            payload,
        }
    }

    /// Runs of enabled bytes: (address, bytes). At most five of them.
    pub fn runs(&self) -> impl Iterator<Item = (u64, &[u8])> {
        let len = self.payload.len();
        let enabled = move |i: usize| {
            let be = if i < 4 {
                self.first_be
            } else if i + 4 >= len {
                self.last_be
            } else {
                15
            };
            be >> (i % 4) & 1 == 1
        };
        let mut at = 0;
        std::iter::from_fn(move || {
            while at < len && !enabled(at) {
                at += 1;
            }
            if at >= len {
                return None;
            }
            let start = at;
            while at < len && enabled(at) {
                // Inner DWs are enabled whole.
                at = if at >= 4 && at + 8 <= len { (len - 4).max(at + 1) } else { at + 1 };
            }
            Some((self.address.wrapping_add(start as u64), &self.payload[start..at]))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_worked_example_of_128_bytes_at_1003() {
        let read = MemRead::bytes(0x0100, 5, 0x1003, 128);
        assert_eq!((read.dwords, read.first_be, read.last_be), (33, 0b1000, 0b0111));
        assert_eq!(read.byte_count(), 128);
        assert_eq!(first_byte(read.address, read.first_be) & 0x7f, 3);
    }

    #[test]
    fn headers_have_the_bits_of_the_specification() {
        let write = Tlp::MemWrite(MemWrite::bytes(0x0123, 0x1_2345_6788, &[1, 2, 3, 4])).emit();
        assert_eq!(write.header, [0x6000_0001, 0x0123_000f, 1, 0x2345_6788]);
        let read = Tlp::MemRead(MemRead::bytes(0x0123, 0x3a5, 0x8000_0000, 4096)).emit();
        assert_eq!(read.header, [0x0088_0000, 0x0123_a5ff, 0x8000_0000, 0]);
        let done = Tlp::Completion(Completion {
            attr: Attributes { relaxed: true, ..Default::default() },
            completer: 0x0008,
            status: Status::CompleterAbort,
            byte_count: 4096,
            requester: 0x0123,
            tag: 7,
            lower_address: 0x43,
            payload: vec![],
        });
        assert_eq!(done.emit().header, [0x0a00_2000, 0x0008_8000, 0x0123_0743, 0]);
    }

    #[test]
    fn framing_costs_24_bytes_with_four_dwords_and_20_with_three() {
        let far = Tlp::MemWrite(MemWrite::bytes(0, 1 << 32, &[0; 64])).emit();
        let near = Tlp::MemWrite(MemWrite::bytes(0, 1 << 31, &[0; 64])).emit();
        assert_eq!((far.wire_bytes(), near.wire_bytes()), (64 + 24, 64 + 20));
    }

    #[test]
    fn a_message_a_digest_and_a_short_payload_are_refused_by_name() {
        let raw = |d0: u32| RawTlp { header: [d0, 0, 0, 0], payload: vec![] };
        assert_eq!(Tlp::parse(&raw(0x3000_0000)), Err(TlpError::UnknownType { fmt: 1, kind: 16 }));
        assert_eq!(Tlp::parse(&raw(0x0000_8001)), Err(TlpError::Digest));
        assert_eq!(Tlp::parse(&raw(0x0000_0401)), Err(TlpError::AddressType(1)));
        assert_eq!(Tlp::parse(&raw(0x4000_0001)), Err(TlpError::PayloadLength { expected: 4, found: 0 }));
    }

    /// Enabled bytes one by one, the slow way.
    fn slow_bytes(w: &MemWrite) -> Vec<(u64, u8)> {
        let n = w.payload.len();
        (0..n)
            .filter(|&i| {
                let be = if i < 4 {
                    w.first_be
                } else if i >= n - 4 {
                    w.last_be
                } else {
                    15
                };
                be & 1 << (i % 4) != 0
            })
            .map(|i| (w.address + i as u64, w.payload[i]))
            .collect()
    }

    proptest! {
        #[test]
        fn no_input_panics_and_what_parses_is_stable(
            header in any::<[u32; 4]>(), known in 0usize..12, payload in proptest::collection::vec(any::<u8>(), 0..80)
        ) {
            let kinds = [0u32, 0x20, 0x40, 0x60, 0x0a, 0x4a, 0x4c, 0x6d, 0x4e, 0x04, 0x44, 0x45];
            let mut d = header;
            d[0] = d[0] & 0x00ff_0000 | kinds[known] << 24 | (d[0] & 0x7000) | (payload.len() as u32 / 4);
            for header in [header, d] {
                let raw = RawTlp { header, payload: payload.clone() };
                if let Ok(tlp) = Tlp::parse(&raw) {
                    prop_assert_eq!(Tlp::parse(&tlp.emit()), Ok(tlp));
                }
            }
        }

        #[test]
        fn a_write_enables_exactly_its_bytes(address in 0u64..1 << 40, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let write = MemWrite::bytes(1, address, &bytes);
            let fast: Vec<(u64, u8)> = write.runs()
                .flat_map(|(a, run)| run.iter().enumerate().map(move |(i, b)| (a + i as u64, *b)))
                .collect();
            let wanted: Vec<(u64, u8)> = bytes.iter().enumerate().map(|(i, b)| (address + i as u64, *b)).collect();
            prop_assert_eq!(&fast, &wanted);
            let count = byte_count((write.payload.len() / 4) as u16, write.first_be, write.last_be);
            prop_assert_eq!(count as usize, bytes.len().max(1));
        }

        #[test]
        fn holes_in_the_enables_are_runs(dwords in 1usize..6, first in 0u8..16, last in 0u8..16) {
            let payload: Vec<u8> = (0..dwords as u8 * 4).collect();
            let last = if dwords == 1 { 0 } else { last };
            let write = MemWrite { first_be: first, last_be: last, payload, ..MemWrite::bytes(0, 0x1000, &[0; 4]) };
            let fast: Vec<(u64, u8)> = write.runs()
                .flat_map(|(a, run)| run.iter().enumerate().map(move |(i, b)| (a + i as u64, *b)))
                .collect();
            prop_assert_eq!(fast, slow_bytes(&write));
        }
    }
}
