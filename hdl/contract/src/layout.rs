//! The macros behind every table of this crate.
//!
//! In: a list of fields with widths in bits (`layout!` least significant first and little-endian, `wire!` most
//! significant first in network order), or a list of named codes (`codes!`). Out: a plain struct or enum, its
//! `pack`/`unpack`, a reflected table (documents, decoders, the layout hash) and, with the feature `hdl`, a
//! struct of signals. A sum of widths that misses the stated size does not compile. Holes are declared, written as
//! zero and ignored when read.

/// Which end of the structure the first field stands at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// Bit b lives in byte b/8, bit b%8; the first field is the least significant (rings, contexts, doorbells).
    Little,
    /// The first field starts at the most significant bit of byte 0 (wire headers, TLP headers).
    Network,
}

/// One field of a structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The name in the struct, in the RTL and in the documents.
    pub name: &'static str,
    /// Lowest bit, counted from the least significant bit of the packed integer (see [`Order`]).
    pub lsb: u32,
    /// Width in bits, 1..=128.
    pub width: u32,
    /// Reserved bits that follow the field in declaration order.
    pub hole: u32,
    /// The documentation line.
    pub doc: &'static str,
}

/// One structure, reflected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The struct's name.
    pub name: &'static str,
    /// Size in bytes.
    pub bytes: usize,
    /// Bit and byte order.
    pub order: Order,
    /// The documentation line.
    pub doc: &'static str,
    /// The fields in declaration order.
    pub fields: &'static [Field],
}

impl Layout {
    /// The value of `field` in `bytes`, or `None` when `bytes` is shorter than the structure. For trace decoders.
    pub fn read(&self, field: &Field, bytes: &[u8]) -> Option<u128> {
        let bytes = bytes.get(..self.bytes)?;
        Some(get(bytes, self.order, field.lsb, field.width))
    }

    /// Byte offset of the first (declaration order) bit of `field`.
    pub const fn offset(&self, field: &Field) -> usize {
        match self.order {
            Order::Little => field.lsb as usize / 8,
            Order::Network => (self.bytes * 8 - field.lsb as usize - field.width as usize) / 8,
        }
    }
}

/// One row of a code table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Code {
    /// The name of the code.
    pub name: &'static str,
    /// The number that stands for it in a structure or register.
    pub value: u8,
    /// The documentation line.
    pub doc: &'static str,
}

/// One code table, reflected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Codes {
    /// The enum's name.
    pub name: &'static str,
    /// The documentation line.
    pub doc: &'static str,
    /// The rows in ascending order of value.
    pub rows: &'static [Code],
}

/// A Rust type that can hold a field.
pub trait FieldValue: Copy {
    /// The widest field that fits, in bits.
    const WIDTH: u32;
    /// Widened without change.
    fn widen(self) -> u128;
    /// Cut to the type: the inverse of [`FieldValue::widen`].
    fn narrow(value: u128) -> Self;
}

impl FieldValue for bool {
    const WIDTH: u32 = 1;
    fn widen(self) -> u128 {
        self as u128
    }
    fn narrow(value: u128) -> Self {
        value & 1 == 1
    }
}

macro_rules! field_values {
    ($($ty:ident)*) => {$(
        impl FieldValue for $ty {
            const WIDTH: u32 = $ty::BITS;
            #[inline(always)]
            fn widen(self) -> u128 {
                self as u128
            }
            #[inline(always)]
            fn narrow(value: u128) -> Self {
                value as $ty
            }
        }
    )*};
}
field_values!(u8 u16 u32 u64 u128);

/// Chains the fields of a structure: fills in every `lsb`; refuses (at compile time) a sum that is not `bits`.
pub const fn chain<const N: usize>(order: Order, bits: u32, mut fields: [Field; N]) -> [Field; N] {
    let mut at = 0;
    let mut i = 0;
    while i < N {
        let width = fields[i].width;
        assert!(width > 0 && width <= 128, "a field is 1 to 128 bits wide");
        assert!(at + width <= bits, "the fields of a structure exceed its stated size");
        fields[i].lsb = match order {
            Order::Little => at,
            Order::Network => bits - at - width,
        };
        at += width + fields[i].hole;
        i += 1;
    }
    assert!(at == bits, "the fields and holes of a structure do not add up to its stated size");
    fields
}

/// Index of the byte, or of another grain, that holds the bits from `byte` of them on of the packed integer.
#[inline(always)]
const fn place(order: Order, len: usize, byte: usize) -> usize {
    match order {
        Order::Little => byte,
        Order::Network => len - 1 - byte,
    }
}

/// Where the field `name` starts, for constants.
pub const fn lsb(fields: &[Field], name: &str) -> u32 {
    let mut i = 0;
    while i < fields.len() {
        let (own, other) = (fields[i].name.as_bytes(), name.as_bytes());
        let mut same = own.len() == other.len();
        let mut at = 0;
        while same && at < own.len() {
            same = own[at] == other[at];
            at += 1;
        }
        if same {
            return fields[i].lsb;
        }
        i += 1;
    }
    panic!("no such field")
}

/// The low bits.
#[inline(always)]
const fn ones(width: u32) -> u128 {
    if width == 128 { u128::MAX } else { (1 << width) - 1 }
}

/// Bytes that [`put`] and [`get`] take together: with constants for place and width a field of a little-endian structure
/// is then a shift and a load or store of a quadword, which the driver does for every work request.
const fn grain(order: Order, len: usize) -> usize {
    if matches!(order, Order::Little) && len.is_multiple_of(8) { 8 } else { 1 }
}

#[inline(always)]
fn load(bytes: &[u8], grain: usize, at: usize) -> u64 {
    match grain {
        8 => bytes[at * 8..].first_chunk().map_or(0, |chunk| u64::from_le_bytes(*chunk)),
        _ => bytes[at].into(),
    }
}

/// Writes the low `width` bits of `value` at bit `lsb`; every other bit of `bytes` stays.
///
/// `lsb + width` must not exceed the length: the macros guarantee it at compile time.
#[inline(always)]
pub fn put(bytes: &mut [u8], order: Order, lsb: u32, width: u32, value: u128) {
    let grain = grain(order, bytes.len());
    let bits = 8 * grain as u32;
    let mut done = 0;
    while done < width {
        let shift = (lsb + done) % bits;
        let take = if bits - shift < width - done { bits - shift } else { width - done };
        let mask = (ones(take) as u64) << shift;
        let at = place(order, bytes.len() / grain, ((lsb + done) / bits) as usize);
        let whole = load(bytes, grain, at) & !mask | ((value >> done) as u64) << shift & mask;
        bytes[at * grain..][..grain].copy_from_slice(&whole.to_le_bytes()[..grain]);
        done += take;
    }
}

/// Reads `width` bits at bit `lsb`; same promise as [`put`].
#[inline(always)]
pub fn get(bytes: &[u8], order: Order, lsb: u32, width: u32) -> u128 {
    let grain = grain(order, bytes.len());
    let bits = 8 * grain as u32;
    let mut value = 0;
    let mut done = 0;
    while done < width {
        let shift = (lsb + done) % bits;
        let take = if bits - shift < width - done { bits - shift } else { width - done };
        let at = place(order, bytes.len() / grain, ((lsb + done) / bits) as usize);
        value |= (u128::from(load(bytes, grain, at) >> shift) & ones(take)) << done;
        done += take;
    }
    value
}

/// A little-endian ring, context or register structure; fields least significant first.
///
/// ```
/// contract::layout! {
///     /// A pair.
///     struct Pair / PairBits [4] {
///         /// Low twelve bits.
///         low: u16[12] reserved 4;
///         /// The next byte.
///         high: u8[8] reserved 7;
///         /// The top bit.
///         top: bool[1];
///     }
/// }
/// assert_eq!(Pair { low: 0xabc, high: 0x12, top: true }.pack(), [0xbc, 0x0a, 0x12, 0x80]);
/// ```
#[macro_export]
macro_rules! layout {
    ($($body:tt)*) => { $crate::structure! { Little $($body)* } };
}

/// A network-order header; fields most significant first, from the top bit of byte 0.
///
/// ```
/// contract::wire! {
///     /// A tag.
///     struct Tag / TagBits [2] {
///         /// Top three bits.
///         priority: u8[3] reserved 1;
///         /// The rest.
///         number: u16[12];
///     }
/// }
/// assert_eq!(Tag { priority: 5, number: 0x123 }.pack(), [0xa1, 0x23]);
/// ```
#[macro_export]
macro_rules! wire {
    ($($body:tt)*) => { $crate::structure! { Network $($body)* } };
}

/// The common body of [`layout!`] and [`wire!`]; not for direct use.
#[doc(hidden)]
#[macro_export]
macro_rules! structure {
    ($order:ident $(#[doc = $doc:literal])* struct $Name:ident / $Bits:ident [$bytes:literal] {
        $($(#[doc = $fdoc:literal])* $field:ident : $ty:ident [$width:literal] $(reserved $hole:literal)? ;)*
    }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
        pub struct $Name {
            $($(#[doc = $fdoc])* pub $field: $ty,)*
        }

        impl $Name {
            /// Size in bytes.
            pub const BYTES: usize = $bytes;
            /// Size in bits.
            pub const BITS: u32 = $bytes * 8;
            /// The fields in declaration order.
            pub const FIELDS: &'static [$crate::layout::Field] = &$crate::layout::chain(
                $crate::layout::Order::$order,
                Self::BITS,
                [$($crate::layout::Field {
                    name: stringify!($field),
                    lsb: 0,
                    width: {
                        assert!($width <= <$ty as $crate::layout::FieldValue>::WIDTH, "field wider than its type");
                        $width
                    },
                    hole: 0 $(+ $hole)?,
                    doc: concat!($($fdoc),*),
                },)*],
            );
            /// The structure, reflected.
            pub const LAYOUT: $crate::layout::Layout = $crate::layout::Layout {
                name: stringify!($Name),
                bytes: $bytes,
                order: $crate::layout::Order::$order,
                doc: concat!($($doc),*),
                fields: Self::FIELDS,
            };

            /// The bytes; values wider than their field are cut to it, holes are zero.
            #[inline]
            pub fn pack(&self) -> [u8; $bytes] {
                let mut bytes = [0; $bytes];
                $({
                    let lsb = const { $crate::layout::lsb(Self::FIELDS, stringify!($field)) };
                    let value = $crate::layout::FieldValue::widen(self.$field);
                    $crate::layout::put(&mut bytes, $crate::layout::Order::$order, lsb, $width, value);
                })*
                bytes
            }

            /// Overwrites `bytes`, holes included (with zero).
            #[inline]
            pub fn pack_into(&self, bytes: &mut [u8; $bytes]) {
                *bytes = self.pack();
            }

            /// The fields; total: every byte pattern is accepted, holes are ignored.
            #[inline]
            pub fn unpack(bytes: &[u8; $bytes]) -> Self {
                Self {
                    $($field: $crate::layout::FieldValue::narrow($crate::layout::get(
                        bytes,
                        $crate::layout::Order::$order,
                        const { $crate::layout::lsb(Self::FIELDS, stringify!($field)) },
                        $width,
                    )),)*
                }
            }

            /// The structure at the start of `bytes`; `None` when there are too few.
            #[inline]
            pub fn read(bytes: &[u8]) -> Option<Self> {
                bytes.first_chunk().map(Self::unpack)
            }
        }

        $crate::structure_bits! { $order $Name $Bits [$bytes] { $($(#[doc = $fdoc])* $field [$width] [0 $(+ $hole)?];)* } }
    };
}

/// The hardware view of a structure; nothing without the feature `hdl`.
#[doc(hidden)]
#[macro_export]
#[cfg(not(feature = "hdl"))]
macro_rules! structure_bits {
    ($($body:tt)*) => {};
}

/// The hardware view of a structure: one signal per field.
#[doc(hidden)]
#[macro_export]
#[cfg(feature = "hdl")]
macro_rules! structure_bits {
    ($order:ident $Name:ident $Bits:ident [$bytes:literal] {
        $($(#[doc = $fdoc:literal])* $field:ident [$width:literal] [$hole:expr];)*
    }) => {
        #[doc = concat!("[`", stringify!($Name), "`] as signals; the packed signal is the structure as one integer.")]
        #[derive(Debug, Clone, Copy)]
        pub struct $Bits {
            $($(#[doc = $fdoc])* pub $field: $crate::hdl::Sig,)*
        }

        impl $Bits {
            /// Width of the packed signal.
            pub const BITS: u32 = $bytes * 8;

            /// Cuts a packed signal, which must be [`Self::BITS`] wide, into its fields.
            #[track_caller]
            pub fn unpack(packed: $crate::hdl::Sig) -> Self {
                assert_eq!(
                    packed.width(),
                    Self::BITS,
                    concat!("unpack ", stringify!($Name), ": the signal must have the structure's width"),
                );
                let mut fields = $Name::FIELDS.iter();
                Self {
                    $($field: packed.bits(fields.next().map_or(0, |field| field.lsb), $width),)*
                }
            }

            /// One signal, [`Self::BITS`] wide; holes are zero.
            #[track_caller]
            pub fn pack(&self) -> $crate::hdl::Sig {
                let mut parts = $crate::alloc::vec::Vec::new();
                $(
                    parts.push(self.$field);
                    if $hole > 0 {
                        parts.push($crate::hdl::lit($hole, 0));
                    }
                )*
                if $crate::layout::Order::$order == $crate::layout::Order::Little {
                    parts.reverse();
                }
                $crate::hdl::cat(&parts)
            }

            /// Every field zero.
            #[track_caller]
            pub fn zero() -> Self {
                Self { $($field: $crate::hdl::lit($width, 0),)* }
            }
        }

        /// Ports, wires, registers and streams of this structure; `to_bits` and `from_bits` leave the holes out.
        impl $crate::hdl::Bundle for $Bits {
            type Shape = ();

            #[track_caller]
            fn build(_: &(), name: &str, make: &mut dyn FnMut(&str, u32) -> $crate::hdl::Sig) -> Self {
                let mut field = |field: &str, width| match name {
                    "" => make(field, width),
                    _ => make(&$crate::alloc::format!("{name}_{field}"), width),
                };
                Self { $($field: field(stringify!($field), $width),)* }
            }

            fn signals(&self) -> $crate::alloc::vec::Vec<$crate::hdl::Sig> {
                $crate::alloc::vec![$(self.$field),*]
            }
        }
    };
}

/// A table of named 8-bit codes: an enum with its numbers, names and documents.
///
/// ```
/// contract::codes! {
///     /// Sizes.
///     enum Size {
///         /// Not large.
///         Small = 1,
///         /// Not small.
///         Large = 7,
///     }
/// }
/// assert_eq!(Size::from_code(7), Some(Size::Large));
/// assert_eq!(Size::from_code(2), None);
/// assert_eq!(Size::Small.name(), "Small");
/// ```
#[macro_export]
macro_rules! codes {
    ($(#[doc = $doc:literal])* enum $Name:ident {
        $($(#[doc = $vdoc:literal])* $Variant:ident = $value:literal,)*
    }) => {
        $(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum $Name {
            $($(#[doc = $vdoc])* $Variant = $value,)*
        }

        impl $Name {
            /// All of them, in the order of the table.
            pub const ALL: &'static [Self] = &[$(Self::$Variant,)*];
            /// The table, reflected.
            pub const TABLE: $crate::layout::Codes = $crate::layout::Codes {
                name: stringify!($Name),
                doc: concat!($($doc),*),
                rows: &[$($crate::layout::Code {
                    name: stringify!($Variant),
                    value: $value,
                    doc: concat!($($vdoc),*),
                },)*],
            };

            /// The number.
            pub const fn code(self) -> u8 {
                self as u8
            }

            /// The code of a number; `None` when the table has no such row.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code {
                    $($value => Some(Self::$Variant),)*
                    _ => None,
                }
            }

            /// The name, as in the documents.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => stringify!($Variant),)*
                }
            }

            /// The documentation line.
            pub fn doc(self) -> &'static str {
                match self {
                    $(Self::$Variant => concat!($($vdoc),*).trim_ascii(),)*
                }
            }
        }
    };
}
