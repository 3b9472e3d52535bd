//! Signals and the operators on them. A [`Sig`] is a copyable handle of a value of a fixed number of bits.
//!
//! Every operator keeps to the width of its operands: `a + b` wraps, comparisons give one bit. Widths that differ
//! are refused; widening is always written (`extend`).

use crate::bits::Bits;
use crate::elaborate::{claim, current_domain, fail, named_node, with};
use crate::error::{Place, Rule};
use crate::ir::{Id, Kind, Op, Stmt};
use std::panic::Location;

/// A value of `width()` bits in the module under construction.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sig {
    pub(crate) id: Id,
    pub(crate) width: u32,
    pub(crate) module: u32,
}

/// What may stand on the right of an operator or of `set`: a signal, or a literal that takes the other side's width.
pub trait ToSig {
    /// The signal, `width` bits wide if this is a literal.
    #[track_caller]
    fn to_sig(self, width: u32) -> Sig;
    /// Whether this has no width of its own.
    #[doc(hidden)]
    fn is_literal(&self) -> bool {
        true
    }
}
impl ToSig for Sig {
    fn to_sig(self, _: u32) -> Sig {
        self
    }
    fn is_literal(&self) -> bool {
        false
    }
}
macro_rules! literal { ($($t:ty),*) => { $(
    impl ToSig for $t {
        #[track_caller]
        fn to_sig(self, width: u32) -> Sig { lit(width, u64::try_from(self).unwrap_or_else(|_| fail(Rule::Literal, Location::caller(), format!("literal {self} is negative")))) }
    }
)* } }
literal!(i32, u8, u16, u32, u64, usize);
impl ToSig for bool {
    #[track_caller]
    fn to_sig(self, width: u32) -> Sig {
        lit(width, u64::from(self))
    }
}

/// A constant of `width` bits (any width; the value fills the low 64).
#[track_caller]
pub fn lit(width: u32, value: u64) -> Sig {
    let place = Location::caller();
    if width == 0 {
        fail(Rule::ZeroWidth, place, "a literal of zero bits");
    }
    if width < 64 && value >> width != 0 {
        fail(Rule::Literal, place, format!("{value:#x} does not fit {width} bits"));
    }
    constant(Bits::new(width, u128::from(value)))
}

/// A constant of any width.
#[track_caller]
pub fn constant(value: Bits) -> Sig {
    let (width, place) = (value.width(), Location::caller());
    with(|m| Sig { id: m.constant(value, place), width, module: m.uid })
}

/// `0` as a single bit.
#[track_caller]
pub fn low() -> Sig {
    lit(1, 0)
}
/// `1` as a single bit.
#[track_caller]
pub fn high() -> Sig {
    lit(1, 1)
}

/// A named wire, to be `set` on every path.
#[track_caller]
pub fn wire(name: &str, width: u32) -> Sig {
    named_node(Kind::Wire, width, name, Location::caller())
}

/// A register without reset: keeps its value unless `set`.
#[track_caller]
pub fn reg(name: &str, width: u32) -> Sig {
    reg_at(name, width, None, Location::caller())
}

/// A register that reset puts to `value`.
#[track_caller]
pub fn reg_init(name: &str, width: u32, value: u64) -> Sig {
    reg_at(name, width, Some(value), Location::caller())
}

#[track_caller]
pub(crate) fn reg_at(name: &str, width: u32, reset: Option<u64>, place: Place) -> Sig {
    if let Some(value) = reset.filter(|v| width < 64 && v >> width != 0) {
        fail(Rule::Literal, place, format!("reset value {value:#x} does not fit {width} bits"));
    }
    let domain = current_domain();
    let reset = reset.map(|value| Bits::new(width, u128::from(value)));
    named_node(Kind::Reg { domain, reset, reset_label: None, synchroniser: false }, width, name, place)
}

/// Two flops that bring the single bit `from` (or a Gray-coded word) into the current domain.
#[track_caller]
pub fn synchronise(name: &str, from: Sig) -> Sig {
    let place = Location::caller();
    let domain = current_domain();
    let kind =
        Kind::Reg { domain, reset: Some(Bits::zero(from.width)), reset_label: None, synchroniser: true };
    let meta = named_node(kind, from.width, &format!("{name}_meta"), place);
    let kind =
        Kind::Reg { domain, reset: Some(Bits::zero(from.width)), reset_label: None, synchroniser: false };
    let sync = named_node(kind, from.width, &format!("{name}_sync"), place);
    for s in [meta, sync] {
        s.attribute("ASYNC_REG", "TRUE");
    }
    meta.set(from);
    sync.set(meta);
    sync
}

/// `from`, one clock later.
#[track_caller]
pub fn delay(name: &str, from: Sig) -> Sig {
    let r = reg(name, from.width);
    r.set(from);
    r
}

/// `from`, one clock later, zero after reset.
#[track_caller]
pub fn delay_init(name: &str, from: Sig) -> Sig {
    let r = reg_init(name, from.width, 0);
    r.set(from);
    r
}

#[track_caller]
fn op(op: Op, operands: &[Sig], width: u32) -> Sig {
    let place = Location::caller();
    for s in operands {
        s.here(place);
    }
    with(|m| Sig {
        id: m.operation(op, operands.iter().map(|s| s.id).collect(), width, place),
        width,
        module: m.uid,
    })
}

#[track_caller]
fn same(a: Sig, b: Sig, what: &str) {
    if a.width != b.width {
        fail(
            Rule::Width,
            Location::caller(),
            format!("`{what}` of {} and {} bits; widen with `extend` or cut with `bits`", a.width, b.width),
        );
    }
}

macro_rules! binary { ($($trait:ident $method:ident $op:ident $text:literal),*) => { $(
    impl<R: ToSig> std::ops::$trait<R> for Sig {
        type Output = Sig;
        #[track_caller]
        fn $method(self, right: R) -> Sig {
            let right = right.to_sig(self.width);
            same(self, right, $text);
            op(Op::$op, &[self, right], self.width)
        }
    }
)* } }
binary!(BitAnd bitand And "&", BitOr bitor Or "|", BitXor bitxor Xor "^", Add add Add "+", Sub sub Sub "-", Mul mul Mul "*");
impl std::ops::Not for Sig {
    type Output = Sig;
    #[track_caller]
    fn not(self) -> Sig {
        op(Op::Not, &[self], self.width)
    }
}

macro_rules! shift { ($($trait:ident $method:ident),*) => { $(
    /// By a signal's value, zeros in; the result keeps the width.
    impl std::ops::$trait<Sig> for Sig {
        type Output = Sig;
        #[track_caller]
        fn $method(self, by: Sig) -> Sig {
            // simulators shift by at most 32 bits of amount; no signal is as long as more would need
            let Some(far) = by.width.checked_sub(32).filter(|n| *n > 0) else {
                return op(Op::$trait, &[self, by], self.width);
            };
            let near = op(Op::$trait, &[self, by.bits(0, 32)], self.width);
            mux(by.bits(32, far).any(), constant(Bits::zero(self.width)), near)
        }
    }
)* } }
shift!(Shl shl, Shr shr);

macro_rules! compare { ($($(#[$doc:meta])* $method:ident $op:ident $swap:literal),*) => { impl Sig { $(
    $(#[$doc])*
    #[track_caller]
    pub fn $method(self, right: impl ToSig) -> Sig {
        let right = right.to_sig(self.width);
        same(self, right, stringify!($method));
        if $swap { op(Op::$op, &[right, self], 1) } else { op(Op::$op, &[self, right], 1) }
    }
)* } } }
compare! {
    /// Equal.
    eq Eq false,
    /// Not equal.
    ne Ne false,
    /// Less, unsigned.
    lt Lt false,
    /// Less or equal, unsigned.
    le Le false,
    /// Greater, unsigned.
    gt Lt true,
    /// Greater or equal, unsigned.
    ge Le true
}

impl Sig {
    /// Number of bits.
    pub fn width(self) -> u32 {
        self.width
    }
    /// Refuses a signal of another module.
    pub(crate) fn here(self, place: Place) {
        if with(|m| m.uid != self.module) {
            fail(Rule::Scope, place, "this signal belongs to another module; pass it through a port");
        }
    }
    /// Bit `i`.
    #[track_caller]
    pub fn bit(self, i: u32) -> Sig {
        self.bits(i, 1)
    }
    /// `width` bits from bit `low` upward.
    #[track_caller]
    pub fn bits(self, low: u32, width: u32) -> Sig {
        let place = Location::caller();
        if width == 0 {
            fail(Rule::ZeroWidth, place, "a slice of zero bits");
        }
        if low + width > self.width {
            fail(Rule::Width, place, format!("slice [{low} +: {width}] of a signal of {} bits", self.width));
        }
        if width == self.width {
            return self;
        }
        op(Op::Slice(low), &[self], width)
    }
    /// The most significant bit.
    #[track_caller]
    pub fn msb(self) -> Sig {
        self.bit(self.width - 1)
    }
    /// Zero-extended to `width`.
    #[track_caller]
    pub fn extend(self, width: u32) -> Sig {
        if width < self.width {
            fail(Rule::Width, Location::caller(), format!("extend {} bits to {width}", self.width));
        }
        if width == self.width { self } else { op(Op::Extend, &[self], width) }
    }
    /// Zero-extended or cut to `width`.
    #[track_caller]
    pub fn resize(self, width: u32) -> Sig {
        if width <= self.width { self.bits(0, width) } else { self.extend(width) }
    }
    /// Bit number `index` (zero if past the end).
    #[track_caller]
    pub fn bit_at(self, index: Sig) -> Sig {
        if self.width == 1 {
            return self & index.eq(0);
        }
        (self >> index).bit(0)
    }
    /// `n` copies side by side.
    #[track_caller]
    pub fn repeat(self, n: u32) -> Sig {
        if n == 0 {
            fail(Rule::ZeroWidth, Location::caller(), "zero copies");
        }
        if n == 1 { self } else { op(Op::Repeat(n), &[self], self.width * n) }
    }
    /// Some bit is 1.
    #[track_caller]
    pub fn any(self) -> Sig {
        op(Op::Any, &[self], 1)
    }
    /// Every bit is 1.
    #[track_caller]
    pub fn all(self) -> Sig {
        op(Op::All, &[self], 1)
    }
    /// No bit is 1.
    #[track_caller]
    pub fn none(self) -> Sig {
        !self.any()
    }
    /// Exclusive or of all bits.
    #[track_caller]
    pub fn parity(self) -> Sig {
        op(Op::Parity, &[self], 1)
    }
    /// Bytes in the opposite order (a whole number of bytes).
    #[track_caller]
    pub fn swap_bytes(self) -> Sig {
        if !self.width.is_multiple_of(8) {
            fail(Rule::Width, Location::caller(), format!("swap_bytes of {} bits", self.width));
        }
        let bytes: Vec<Sig> = (0..self.width / 8).map(|i| self.bits(i * 8, 8)).collect();
        cat(&bytes)
    }
    /// Byte `i`, bits `8i+7 : 8i`.
    #[track_caller]
    pub fn byte(self, i: u32) -> Sig {
        self.bits(i * 8, 8)
    }
    /// Gives this value a name of its own in the emitted Verilog.
    #[track_caller]
    pub fn named(self, name: &str) -> Sig {
        let place = Location::caller();
        let name = claim(name, place);
        with(|m| {
            // a second name for a port, register or constant is a wire beside it
            if !matches!(m.def.nodes[self.id as usize].kind, Kind::Op(..))
                || m.def.nodes[self.id as usize].name.is_some()
            {
                return m.node(Kind::Op(Op::Extend, vec![self.id]), self.width, Some(name), place);
            }
            m.forget(self.id);
            let node = &mut m.def.nodes[self.id as usize];
            (node.name, node.place) = (Some(name), place);
            self
        })
    }
    /// A Verilog attribute on the declaration of a named signal.
    pub fn attribute(self, key: &str, value: &str) -> Sig {
        with(|m| m.def.nodes[self.id as usize].attributes.push((key.into(), value.into())));
        self
    }
    /// Drives a wire, an output, an instance input, or the next value of a register. The last `set` that applies wins.
    #[track_caller]
    pub fn set(self, value: impl ToSig) {
        let place = Location::caller();
        let value = value.to_sig(self.width);
        same(self, value, "set");
        self.here(place);
        value.here(place);
        with(|m| {
            let node = &m.def.nodes[self.id as usize];
            if !matches!(node.kind, Kind::Wire | Kind::Reg { .. }) {
                let name = node.name.clone().unwrap_or_else(|| "an expression".into());
                return Err(format!("`{name}` cannot be set: it is not a wire, output or register"));
            }
            m.push(Stmt::Assign { target: self.id, value: value.id, place });
            Ok(())
        })
        .unwrap_or_else(|message| fail(Rule::NotAssignable, place, message));
    }
}

/// Side by side, most significant first, as Verilog's `{a, b}`.
#[track_caller]
pub fn cat(parts: &[Sig]) -> Sig {
    match parts {
        [] => fail(Rule::ZeroWidth, Location::caller(), "cat of nothing"),
        [one] => *one,
        _ => op(Op::Cat, parts, parts.iter().map(|s| s.width).sum()),
    }
}

/// `a` where `condition`, else `b`.
#[track_caller]
pub fn mux(condition: Sig, a: impl ToSig + Copy, b: impl ToSig + Copy) -> Sig {
    // a literal takes its width from the other side
    let (a, b) = match (a.is_literal(), b.is_literal()) {
        (false, _) => (a.to_sig(0), b.to_sig(a.to_sig(0).width)),
        (true, false) => (a.to_sig(b.to_sig(0).width), b.to_sig(0)),
        (true, true) => (a.to_sig(64), b.to_sig(64)),
    };
    if condition.width != 1 {
        fail(Rule::Width, Location::caller(), format!("mux condition of {} bits", condition.width));
    }
    same(a, b, "mux");
    op(Op::Mux, &[condition, a, b], a.width)
}

/// `options[index]`; past the end, the last one.
#[track_caller]
pub fn select(index: Sig, options: &[Sig]) -> Sig {
    let Some(last) = options.last() else {
        fail(Rule::ZeroWidth, Location::caller(), "select among nothing")
    };
    if options.len() == 1 {
        return *last;
    }
    // a tree over the bits of the index: synthesis leaves a chain of comparisons as long as it is
    let bits = index_width(options.len() as u32).min(index.width);
    let mut level: Vec<Sig> = (0..1 << bits).map(|i| *options.get(i).unwrap_or(last)).collect();
    for bit in 0..bits {
        let choose = |pair: &[Sig]| {
            if pair[0].id == pair[1].id { pair[0] } else { mux(index.bit(bit), pair[1], pair[0]) }
        };
        level = level.chunks(2).map(choose).collect();
    }
    if index.width > bits {
        mux(index.bits(bits, index.width - bits).any(), *last, level[0])
    } else {
        level[0]
    }
}

/// Or of all.
#[track_caller]
pub fn any_of(signals: &[Sig]) -> Sig {
    signals.iter().copied().reduce(|a, b| a | b).unwrap_or_else(low)
}
/// And of all.
#[track_caller]
pub fn all_of(signals: &[Sig]) -> Sig {
    signals.iter().copied().reduce(|a, b| a & b).unwrap_or_else(high)
}
/// Bits needed to tell `n` things apart (1 for one thing).
pub fn index_width(n: u32) -> u32 {
    (32 - n.saturating_sub(1).leading_zeros()).max(1)
}
