//! Ports: from the declarations in Verilator's header to handles that cost a load or a store.
//!
//! In: the text of `Vmodel.h`. Out: `ports.h` for the shim at build time; [`PortInfo`] and [`Port`] handles at run time.
//! A handle carries the identity of its model, its slot in the pointer table, its storage size and its mask.

use crate::Error;
use std::fmt::Write;

/// Which way a port goes, seen from the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Driven by the caller.
    Input,
    /// Driven by the model.
    Output,
}

impl Direction {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::Output => "output",
        }
    }
}

/// A port as declared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PortInfo {
    /// The Verilog name.
    pub name: String,
    /// Which way it goes.
    pub direction: Direction,
    /// Width in bits, at least 1.
    pub width: u32,
}

impl PortInfo {
    /// Number of 32-bit words that hold the port in [`crate::Instance::get_wide`].
    pub fn words(&self) -> usize {
        self.width.div_ceil(32) as usize
    }
}

/// How Verilator stores a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Storage {
    U8,
    U16,
    U32,
    U64,
    /// An array of 32-bit words, least significant first.
    Words,
}

impl Storage {
    pub(crate) fn of(width: u32) -> Self {
        match width {
            0..=8 => Self::U8,
            9..=16 => Self::U16,
            17..=32 => Self::U32,
            33..=64 => Self::U64,
            _ => Self::Words,
        }
    }

    /// Bytes that a port of this width occupies.
    pub(crate) fn bytes(width: u32) -> u32 {
        match Self::of(width) {
            Self::U8 => 1,
            Self::U16 => 2,
            Self::U32 => 4,
            Self::U64 => 8,
            Self::Words => 4 * width.div_ceil(32),
        }
    }
}

/// A resolved port of one model, valid on every instance of that model.
#[derive(Clone, Copy, Debug)]
pub struct Port {
    pub(crate) mask: u64,
    pub(crate) model: u32,
    pub(crate) width: u32,
    pub(crate) slot: u32,
    pub(crate) storage: Storage,
}

impl Port {
    pub(crate) fn new(model: u32, slot: usize, width: u32) -> Self {
        // The mask covers one scalar, or the last word of an array of words.
        let bits = if width > 64 { (width - 1) % 32 + 1 } else { width };
        Self { mask: u64::MAX >> (64 - bits), model, width, slot: slot as u32, storage: Storage::of(width) }
    }

    /// Width in bits.
    pub fn width(self) -> u32 {
        self.width
    }

    /// Number of 32-bit words that hold the port.
    pub fn words(self) -> usize {
        self.width.div_ceil(32) as usize
    }
}

/// Handle of an input: may be set, and read back.
#[derive(Clone, Copy, Debug)]
pub struct Input(pub(crate) Port);

/// Handle of an output: may only be read.
#[derive(Clone, Copy, Debug)]
pub struct Output(pub(crate) Port);

impl Input {
    /// Width in bits.
    pub fn width(self) -> u32 {
        self.0.width()
    }

    /// Number of 32-bit words that hold the port.
    pub fn words(self) -> usize {
        self.0.words()
    }
}

impl Output {
    /// Width in bits.
    pub fn width(self) -> u32 {
        self.0.width()
    }

    /// Number of 32-bit words that hold the port.
    pub fn words(self) -> usize {
        self.0.words()
    }
}

impl From<Input> for Port {
    fn from(port: Input) -> Self {
        port.0
    }
}

impl From<Output> for Port {
    fn from(port: Output) -> Self {
        port.0
    }
}

/// The ports that Verilator declares in the model's header, with the C++ member of each.
pub(crate) fn parse_header(top: &str, header: &str) -> Result<Vec<(String, PortInfo)>, Error> {
    let mut ports = Vec::new();
    for line in header.lines().map(str::trim) {
        let refuse = || Error::PortShape { top: top.into(), declaration: line.into() };
        let (direction, rest) = if line.starts_with("VL_INOUT") {
            return Err(refuse());
        } else if let Some(rest) = line.strip_prefix("VL_IN") {
            (Direction::Input, rest)
        } else if let Some(rest) = line.strip_prefix("VL_OUT") {
            (Direction::Output, rest)
        } else {
            continue;
        };
        let arguments =
            rest.split_once('(').and_then(|(_, rest)| rest.strip_suffix(");")).ok_or_else(refuse)?;
        let mut fields = arguments.split(',').map(str::trim);
        let mut field = || fields.next().ok_or_else(refuse);
        let member = field()?.strip_prefix('&').ok_or_else(refuse)?;
        let high: u32 = field()?.parse().map_err(|_| refuse())?;
        let low: u32 = field()?.parse().map_err(|_| refuse())?;
        if !member.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_') || high < low {
            return Err(refuse());
        }
        ports.push((member.into(), PortInfo { name: decode(member), direction, width: high - low + 1 }));
    }
    Ok(ports)
}

/// The `ports.h` that the shim includes.
pub(crate) fn shim_ports(ports: &[(String, PortInfo)]) -> String {
    let mut text = String::from("#define MODEL_PORTS");
    for (member, port) in ports {
        let name = port.name.replace('\\', "\\\\").replace('"', "\\\"");
        let input = u32::from(port.direction == Direction::Input);
        // Writing to a String does not fail.
        let _ = write!(text, " \\\n    PORT({member}, \"{name}\", {input}, {})", port.width);
    }
    text.push('\n');
    text
}

/// Verilog name of a C++ member: Verilator writes characters that C++ does not allow, and the second of two
/// underscores, as `__0` and two hexadecimal digits.
fn decode(member: &str) -> String {
    let mut name = String::new();
    let mut rest = member;
    while let Some(at) = rest.find("__0") {
        match rest.get(at + 3..at + 5).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(character) => {
                name.push_str(&rest[..at]);
                name.push(char::from(character));
                rest = &rest[at + 5..];
            }
            None => {
                name.push_str(&rest[..at + 3]);
                rest = &rest[at + 3..];
            }
        }
    }
    name + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn declarations_give_names_directions_and_widths() {
        let ports = parse_header(
            "t",
            "    VL_IN8(&clk,0,0);\n  VL_OUTW(&odd__02ename,129,0,5);\n VL_OUT64(&my___05Fx,40,8);\n int x;",
        )
        .unwrap();
        let seen: Vec<_> = ports.iter().map(|(_, p)| (p.name.as_str(), p.direction, p.width)).collect();
        assert_eq!(
            seen,
            [
                ("clk", Direction::Input, 1),
                ("odd.name", Direction::Output, 130),
                ("my__x", Direction::Output, 33)
            ]
        );
    }

    #[test]
    fn inout_and_unpacked_ports_are_refused_by_declaration() {
        for line in ["VL_INOUT8(&pad,0,0);", "VL_IN8((&lanes)[4],7,0);"] {
            let error = parse_header("t", line).unwrap_err();
            assert!(error.to_string().contains(line), "{error}");
        }
    }

    #[test]
    fn masks_cover_the_scalar_or_the_last_word() {
        let masks = [1, 8, 31, 32, 33, 64, 65, 96, 130].map(|width| Port::new(0, 0, width).mask);
        assert_eq!(masks, [1, 0xff, 0x7fff_ffff, 0xffff_ffff, 0x1_ffff_ffff, u64::MAX, 1, 0xffff_ffff, 3]);
    }
}
