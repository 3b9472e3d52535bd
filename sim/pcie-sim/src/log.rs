//! The TLP log: one record per TLP that crosses the boundary, for figures that are computed outside.
//!
//! In: TLPs as they cross. Out: [`TlpRecord`]s, in the order of crossing, and their CSV form. Off by default; then it
//! costs nothing.

use crate::{
    time::Time,
    tlp::{RawTlp, Tlp, byte_count, first_byte},
};
use std::fmt;

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Upstream.
    CardToHost,
    /// Downstream.
    HostToCard,
}

/// Which of the four streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Requests of the card.
    Rq,
    /// Completions to the card.
    Rc,
    /// Requests of the host.
    Cq,
    /// Completions of the card.
    Cc,
}

/// A TLP that crossed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlpRecord {
    /// When it crossed the boundary.
    pub at: Time,
    /// Which way.
    pub direction: Direction,
    /// Stream.
    pub stream: Stream,
    /// Name: MRd, MWr, AtomicOp, Cpl, Cfg, or Bad if it has no meaning.
    pub name: &'static str,
    /// Byte address of the first enabled byte; the Lower Address of a completion.
    pub address: u64,
    /// Bytes asked for, written or returned (first to last enabled).
    pub bytes: u32,
    /// Tag.
    pub tag: u16,
    /// Status code of a completion, else 0.
    pub status: u8,
    /// Byte Count of a completion, else 0.
    pub byte_count: u16,
    /// Bytes on the wire with framing.
    pub wire_bytes: u32,
    /// The model was told to spoil this one.
    pub injected: bool,
    /// The header.
    pub header: [u32; 4],
}

impl TlpRecord {
    /// Names of the fields of the `Display` form, which is one line of CSV.
    pub const CSV_HEADER: &'static str =
        "time_ps,dir,kind,addr,len,tag,status,stream,byte_count,wire_bytes,injected,dw0,dw1,dw2,dw3";

    pub(crate) fn new(
        at: Time,
        direction: Direction,
        raw: &RawTlp,
        meaning: Option<&Tlp>,
        injected: bool,
    ) -> Self {
        let (name, address, bytes, tag, status, count, completion) = match meaning {
            Some(Tlp::MemRead(r)) => {
                let bytes = if r.zero_length() { 0 } else { r.byte_count() as u32 };
                ("MRd", first_byte(r.address, r.first_be), bytes, r.tag, 0, 0, false)
            }
            Some(Tlp::MemWrite(w)) => {
                let dwords = (w.payload.len() / 4) as u16;
                let bytes =
                    if w.first_be == 0 { 0 } else { byte_count(dwords, w.first_be, w.last_be) as u32 };
                ("MWr", first_byte(w.address, w.first_be), bytes, w.tag, 0, 0, false)
            }
            Some(Tlp::AtomicOp(a)) => ("AtomicOp", a.address, a.operand_bytes() as u32, a.tag, 0, 0, false),
            Some(Tlp::Completion(c)) => {
                let given = (c.payload.len() as u32).saturating_sub(c.lower_address as u32 & 3);
                let bytes = given.min(c.byte_count as u32);
                ("Cpl", c.lower_address as u64, bytes, c.tag, c.status.code() as u8, c.byte_count, true)
            }
            Some(Tlp::Config(c)) => ("Cfg", c.offset as u64, 4, c.tag, 0, 0, false),
            None => ("Bad", 0, raw.payload.len() as u32, 0, 0, 0, false),
        };
        let stream = match (direction, completion) {
            (Direction::CardToHost, false) => Stream::Rq,
            (Direction::CardToHost, true) => Stream::Cc,
            (Direction::HostToCard, false) => Stream::Cq,
            (Direction::HostToCard, true) => Stream::Rc,
        };
        let wire_bytes = raw.wire_bytes() as u32;
        let byte_count = count;
        let header = raw.header;
        TlpRecord {
            at,
            direction,
            stream,
            name,
            address,
            bytes,
            tag,
            status,
            byte_count,
            wire_bytes,
            injected,
            header,
        }
    }
}

impl fmt::Display for TlpRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let stream = match self.stream {
            Stream::Rq => "rq",
            Stream::Rc => "rc",
            Stream::Cq => "cq",
            Stream::Cc => "cc",
        };
        let dir = match self.direction {
            Direction::CardToHost => "up",
            Direction::HostToCard => "down",
        };
        let completion = self.name == "Cpl";
        let kind = if completion && self.bytes > 0 { "CplD" } else { self.name };
        let status = match (completion, self.status) {
            (false, _) => "",
            (true, 0) => "SC",
            (true, 1) => "UR",
            (true, 2) => "CRS",
            (true, _) => "CA",
        };
        let [d0, d1, d2, d3] = self.header;
        write!(
            f,
            "{},{dir},{kind},{:#x},{},{},{status},{stream},{},{},{},{d0:08x},{d1:08x},{d2:08x},{d3:08x}",
            self.at.0,
            self.address,
            self.bytes,
            self.tag,
            self.byte_count,
            self.wire_bytes,
            self.injected as u8
        )
    }
}
