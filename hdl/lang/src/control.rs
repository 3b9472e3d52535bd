//! Conditional assignment: `when(c, || ..).elif(d, || ..).otherwise(|| ..)`, and hardware enums with `switch`.

use crate::bits::Bits;
use crate::elaborate::{amend, block, current_domain, fail, named_node, with};
use crate::error::{Place, Rule};
use crate::ir::{Arm, Kind, Stmt};
use crate::sig::{Sig, index_width};
use std::marker::PhantomData;
use std::panic::Location;

/// An open `when`, to which `elif` and `otherwise` attach.
#[must_use = "ends with a semicolon; `elif` and `otherwise` may follow"]
pub struct When {
    depth: usize,
}

#[track_caller]
fn single_bit(condition: Sig) {
    let place: Place = Location::caller();
    condition.here(place);
    if condition.width != 1 {
        fail(
            Rule::Width,
            place,
            format!("a condition of {} bits; compare it, or use `any`", condition.width),
        );
    }
}

/// The assignments of `then` apply where `condition` holds.
#[track_caller]
#[allow(clippy::must_use_candidate)]
pub fn when(condition: Sig, then: impl FnOnce()) -> Done {
    single_bit(condition);
    let then = block(then);
    with(|m| m.push(Stmt::If { condition: condition.id, then, otherwise: vec![] }));
    Done(When { depth: 0 })
}

/// A finished `when`; may be dropped.
pub struct Done(When);

impl Done {
    /// Otherwise, if `condition`.
    #[track_caller]
    pub fn elif(self, condition: Sig, then: impl FnOnce()) -> Done {
        single_bit(condition);
        let then = block(then);
        let depth = self.0.depth;
        amend(|s| *tail(s, depth) = vec![Stmt::If { condition: condition.id, then, otherwise: vec![] }]);
        Done(When { depth: depth + 1 })
    }
    /// Where no condition before held.
    pub fn otherwise(self, then: impl FnOnce()) {
        let then = block(then);
        amend(|s| *tail(s, self.0.depth) = then);
    }
}

/// The `else` list `depth` levels down.
fn tail(statement: &mut Stmt, depth: usize) -> &mut Vec<Stmt> {
    let Stmt::If { otherwise, .. } = statement else { unreachable!("`when` pushed an if") };
    if depth == 0 { otherwise } else { tail(otherwise.last_mut().expect("elif pushed an if"), depth - 1) }
}

/// A hardware enum; derive it with `#[derive(HwEnum)]` on a fieldless Rust enum. Explicit discriminants are kept.
pub trait HwEnum: Copy + PartialEq + 'static {
    /// Name of the enum.
    const NAME: &'static str;
    /// Every variant with its name and code, in order of declaration.
    const VARIANTS: &'static [(Self, &'static str, u64)];
    /// The code of a variant.
    fn code(self) -> u64;
    /// Bits of a code.
    fn width() -> u32 {
        let largest = Self::VARIANTS.iter().map(|v| v.2).max().unwrap_or(0);
        index_width(u32::try_from(largest + 1).expect("an enum code fits 31 bits"))
    }
}

/// A signal that holds a variant of `E`.
#[derive(Debug)]
pub struct EnumSig<E> {
    sig: Sig,
    phantom: PhantomData<E>,
}
impl<E> Clone for EnumSig<E> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<E> Copy for EnumSig<E> {}

fn label<E: HwEnum>(name: &str) -> String {
    let mut out = String::new();
    for part in [E::NAME, name] {
        if !out.is_empty() {
            out.push('_');
        }
        let mut previous = '_';
        for c in part.chars() {
            if c.is_ascii_uppercase() && previous.is_ascii_lowercase() {
                out.push('_');
            }
            out.push(c.to_ascii_uppercase());
            previous = c;
        }
    }
    out
}

/// Makes the names of the codes known to the module.
#[track_caller]
fn declare<E: HwEnum>() {
    let place = Location::caller();
    let result = with(|m| {
        for (_, name, code) in E::VARIANTS {
            let name = label::<E>(name);
            match m.def.constants.iter().find(|c| c.0 == name) {
                Some((_, width, known)) if (*width, *known) == (E::width(), *code) => {}
                None if m.names.insert(name.clone()) => m.def.constants.push((name, E::width(), *code)),
                _ => return Err(format!("`{name}` of enum {} names something else in this module", E::NAME)),
            }
        }
        Ok(())
    });
    result.unwrap_or_else(|message| fail(Rule::NameClash, place, message));
}

/// The constant `e` under its name.
#[track_caller]
fn code<E: HwEnum>(e: E) -> Sig {
    let place = Location::caller();
    let (width, code) = (E::width(), e.code());
    let name = E::VARIANTS.iter().find(|v| v.2 == code).map(|v| label::<E>(v.1));
    with(|m| {
        let Some(id) = name.as_ref().and_then(|n| m.labels.get(n).copied()) else {
            let s = m.node(Kind::Const(Bits::new(width, u128::from(code))), width, name.clone(), place);
            m.labels.extend(name.map(|n| (n, s.id)));
            return s;
        };
        Sig { id, width, module: m.uid }
    })
}

impl<E: HwEnum> EnumSig<E> {
    /// A register that reset puts to `reset`.
    #[track_caller]
    pub fn reg(name: &str, reset: E) -> Self {
        declare::<E>();
        let domain = current_domain();
        let kind = Kind::Reg {
            domain,
            reset: Some(Bits::new(E::width(), u128::from(reset.code()))),
            reset_label: E::VARIANTS.iter().find(|v| v.2 == reset.code()).map(|v| label::<E>(v.1)),
            synchroniser: false,
        };
        EnumSig { sig: named_node(kind, E::width(), name, Location::caller()), phantom: PhantomData }
    }
    /// A wire.
    #[track_caller]
    pub fn wire(name: &str) -> Self {
        declare::<E>();
        EnumSig { sig: named_node(Kind::Wire, E::width(), name, Location::caller()), phantom: PhantomData }
    }
    /// Reads `sig` (of the enum's width) as an `E`.
    #[track_caller]
    pub fn of(sig: Sig) -> Self {
        declare::<E>();
        if sig.width != E::width() {
            fail(
                Rule::Width,
                Location::caller(),
                format!("{} needs {} bits, the signal has {}", E::NAME, E::width(), sig.width),
            );
        }
        EnumSig { sig, phantom: PhantomData }
    }
    /// The bits.
    pub fn sig(self) -> Sig {
        self.sig
    }
    /// Holds `e`.
    #[track_caller]
    pub fn is(self, e: E) -> Sig {
        self.sig.eq(code(e))
    }
    /// Holds one of `some`.
    #[track_caller]
    pub fn is_one_of(self, some: &[E]) -> Sig {
        crate::sig::any_of(&some.iter().map(|e| self.is(*e)).collect::<Vec<_>>())
    }
    /// Becomes `e`.
    #[track_caller]
    pub fn set(self, e: E) {
        self.sig.set(code(e));
    }
    /// Takes the value of another signal of this enum.
    #[track_caller]
    pub fn set_from(self, from: EnumSig<E>) {
        self.sig.set(from.sig);
    }
    /// Calls `f` once per variant: each records what applies while the signal holds it. `match` in `f` makes the
    /// choice exhaustive by rustc. A code that is no variant behaves as the last one.
    #[track_caller]
    pub fn switch(self, mut f: impl FnMut(E)) {
        self.sig.here(Location::caller());
        let arms = E::VARIANTS
            .iter()
            .map(|(e, name, code)| Arm { label: label::<E>(name), code: *code, body: block(|| f(*e)) })
            .collect();
        with(|m| m.push(Stmt::Case { subject: self.sig.id, arms }));
    }
}
