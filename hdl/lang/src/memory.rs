//! Memories: any number of read and write ports, each in the domain that is current where it is made.
//!
//! A synchronous read gives, one clock later, the word as it was *before* that clock's writes of the same domain
//! (read-first). A combinational read is distributed RAM: keep it small.
//!
//! Not every block RAM is read-first between two ports (ECP5 is not: there it costs a multiplexer and a register per bit
//! of each reader). Where nobody uses what a read gives in the clock of a write to its word, the memory says so by
//! [`Memory::ignoring_collisions`]; simulation then gives such a read the complement of the word, so that who does use
//! it is found.
//!
//! Of several writes of one clock to one word, the one of the port made last stays, lane by lane. At an address past
//! the end a write does nothing; a read gives zero in simulation and anything at all in hardware.

use crate::bits::Bits;
use crate::elaborate::{claim, current_domain, fail, named_node, with};
use crate::error::Rule;
use crate::ir::{Kind, MemoryDef, ReadPort, WritePort};
use crate::sig::{Sig, index_width};
use std::panic::Location;

/// Handle of a memory of the module under construction.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    index: usize,
    width: u32,
    depth: u32,
    lane: u32,
}

impl Memory {
    /// `depth` words of `width` bits.
    #[track_caller]
    pub fn new(name: &str, depth: u32, width: u32) -> Memory {
        Self::with_lanes(name, depth, width, width)
    }
    /// `depth` words of `width` bits, written in lanes of `lane` bits (8: byte enables).
    #[track_caller]
    pub fn with_lanes(name: &str, depth: u32, width: u32, lane: u32) -> Memory {
        let place = Location::caller();
        if width == 0 || depth == 0 || lane == 0 {
            fail(Rule::ZeroWidth, place, format!("memory `{name}` of {depth} words of {width} bits"));
        }
        if !width.is_multiple_of(lane) {
            fail(
                Rule::Width,
                place,
                format!("memory `{name}`: {width} bits are not a whole number of lanes of {lane}"),
            );
        }
        let name = claim(name, place);
        with(|m| {
            m.def.memories.push(MemoryDef {
                name,
                width,
                depth,
                lane,
                style: None,
                ignores_collisions: false,
                init: None,
                writes: vec![],
                reads: vec![],
                place,
            });
            Memory { index: m.def.memories.len() - 1, width, depth, lane }
        })
    }
    /// `ram_style`: `"block"`, `"distributed"`, `"ultra"`.
    pub fn style(self, style: &'static str) -> Memory {
        with(|m| m.def.memories[self.index].style = Some(style));
        self
    }
    /// Nobody uses what a synchronous read gives in the clock of a write to its word, whichever lanes are written: it
    /// may be anything, and is the complement of the old word in simulation.
    pub fn ignoring_collisions(self) -> Memory {
        with(|m| m.def.memories[self.index].ignores_collisions = true);
        self
    }
    /// Initial contents; missing words are zero.
    #[track_caller]
    pub fn init(self, words: Vec<Bits>) -> Memory {
        let place = Location::caller();
        if let Some(odd) = words.iter().find(|w| w.width() != self.width) {
            let text = format!("initial word of {} bits in a memory of {} bits", odd.width(), self.width);
            fail(Rule::Width, place, text);
        }
        if words.len() > self.depth as usize {
            fail(Rule::Width, place, format!("{} initial words for {}", words.len(), self.depth));
        }
        with(|m| m.def.memories[self.index].init = Some(words));
        self
    }
    /// Bits of an address.
    pub fn address_width(self) -> u32 {
        index_width(self.depth)
    }
    /// Bits of a word.
    pub fn width(self) -> u32 {
        self.width
    }
    #[track_caller]
    fn expect(self, what: &str, sig: Sig, width: u32) {
        let place = Location::caller();
        sig.here(place);
        if sig.width != width {
            fail(Rule::Width, place, format!("memory {what} of {} bits, wants {width}", sig.width));
        }
    }
    /// An address of the right width that, if it is known, names a word.
    #[track_caller]
    fn expect_address(self, address: Sig) {
        self.expect("address", address, self.address_width());
        let constant = with(|m| match &m.def.nodes[address.id as usize].kind {
            Kind::Const(at) => Some(at.low()),
            _ => None,
        });
        if let Some(at) = constant.filter(|at| *at >= u64::from(self.depth)) {
            let text = format!("word {at} of a memory of {} words", self.depth);
            fail(Rule::Width, Location::caller(), text);
        }
    }
    /// Writes `data` at `address` where `enable`.
    #[track_caller]
    pub fn write(self, enable: Sig, address: Sig, data: Sig) {
        self.write_port(enable, address, data, None);
    }
    /// Writes the lanes of `data` whose bit in `lanes` is 1.
    #[track_caller]
    pub fn write_lanes(self, enable: Sig, address: Sig, data: Sig, lanes: Sig) {
        self.expect("lanes", lanes, self.width / self.lane);
        self.write_port(enable, address, data, Some(lanes.id));
    }
    #[track_caller]
    fn write_port(self, enable: Sig, address: Sig, data: Sig, lanes: Option<u32>) {
        self.expect("enable", enable, 1);
        self.expect_address(address);
        self.expect("data", data, self.width);
        let domain = current_domain();
        let port = WritePort { domain, enable: enable.id, address: address.id, data: data.id, lanes };
        with(|m| m.def.memories[self.index].writes.push(port));
    }
    /// The word at `address`, one clock later; kept while `enable` is low.
    #[track_caller]
    pub fn read(self, name: &str, enable: Sig, address: Sig) -> Sig {
        self.expect("enable", enable, 1);
        let domain = Some(current_domain());
        self.read_port(name, domain, Some(enable.id), address)
    }
    /// The word at `address` now (distributed RAM).
    #[track_caller]
    pub fn read_now(self, name: &str, address: Sig) -> Sig {
        self.read_port(name, None, None, address)
    }
    #[track_caller]
    fn read_port(self, name: &str, domain: Option<usize>, enable: Option<u32>, address: Sig) -> Sig {
        self.expect_address(address);
        let port = with(|m| m.def.memories[self.index].reads.len());
        let kind = Kind::Read { memory: self.index, port };
        let out = named_node(kind, self.width, name, Location::caller());
        with(|m| {
            m.def.memories[self.index].reads.push(ReadPort {
                domain,
                enable,
                address: address.id,
                out: out.id,
            });
        });
        out
    }
}
