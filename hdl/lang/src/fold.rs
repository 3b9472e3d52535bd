//! Making nodes: an operator on constants is a constant, an operator that does nothing is its operand, and an
//! operator that stands there already is that one. Parametrised code may be written plainly: what a configuration
//! leaves without effect leaves no hardware, and what is written twice is built once.
//!
//! Never: a named value is not merged with another, nor looked through; each stays what its name says.

use crate::bits::Bits;
use crate::elaborate::Builder;
use crate::error::Place;
use crate::interpret::evaluate;
use crate::ir::*;

impl Builder {
    /// The anonymous constant `value`.
    pub fn constant(&mut self, value: Bits, place: Place) -> Id {
        if let Some(id) = self.constants.get(&value) {
            return *id;
        }
        let id = self.node(Kind::Const(value.clone()), value.width(), None, place).id;
        self.constants.insert(value, id);
        id
    }

    /// The anonymous value of an operator.
    pub fn operation(&mut self, op: Op, args: Vec<Id>, width: u32, place: Place) -> Id {
        if let Some(id) = self.fold(op, &args, width, place) {
            return id;
        }
        let key = key(op, &args, width);
        if let Some(id) = self.operations.get(&key) {
            return *id;
        }
        let id = self.node(Kind::Op(op, args), width, None, place).id;
        self.operations.insert(key, id);
        id
    }

    /// A node that got a name is no longer found as an anonymous one.
    pub fn forget(&mut self, id: Id) {
        let node = &self.def.nodes[id as usize];
        if let Kind::Op(op, args) = &node.kind {
            self.operations.remove(&key(*op, args, node.width));
        }
    }

    fn value(&self, id: Id) -> Option<&Bits> {
        match &self.def.nodes[id as usize].kind {
            Kind::Const(value) => Some(value),
            _ => None,
        }
    }

    fn fold(&mut self, op: Op, args: &[Id], width: u32, place: Place) -> Option<Id> {
        let values: Option<Vec<&Bits>> = args.iter().map(|a| self.value(*a)).collect();
        if let Some(values) = values {
            let value = evaluate(op, &values, width);
            return Some(self.constant(value, place));
        }
        let is = |i: usize, test: fn(&Bits) -> bool| self.value(args[i]).is_some_and(test);
        let (zero, ones) = (Bits::is_zero as fn(&Bits) -> bool, Bits::is_ones as fn(&Bits) -> bool);
        let same = args.len() == 2 && args[0] == args[1];
        let bit = |s: &mut Self, value: bool| Some(s.constant(Bits::new(1, u128::from(value)), place));
        match op {
            Op::And | Op::Mul if is(0, zero) => Some(args[0]),
            Op::And | Op::Mul if is(1, zero) => Some(args[1]),
            Op::And if is(0, ones) => Some(args[1]),
            Op::And if is(1, ones) || same => Some(args[0]),
            Op::Or if is(0, ones) => Some(args[0]),
            Op::Or if is(1, ones) => Some(args[1]),
            Op::Or | Op::Xor | Op::Add if is(0, zero) => Some(args[1]),
            Op::Or | Op::Xor | Op::Add | Op::Sub | Op::Shl | Op::Shr if is(1, zero) => Some(args[0]),
            Op::Or if same => Some(args[0]),
            Op::Xor | Op::Sub if same => Some(self.constant(Bits::zero(width), place)),
            Op::Eq | Op::Le if same => bit(self, true),
            Op::Ne | Op::Lt if same => bit(self, false),
            Op::Le if is(0, zero) || is(1, ones) => bit(self, true),
            Op::Lt if is(0, ones) || is(1, zero) => bit(self, false),
            Op::Eq | Op::Ne => {
                // a single bit against a constant without a name of its own
                let (x, c) =
                    if self.value(args[0]).is_some() { (args[1], args[0]) } else { (args[0], args[1]) };
                let node = &self.def.nodes[c as usize];
                if node.width != 1 || node.name.is_some() {
                    return None;
                }
                let one = self.value(c)?.low() == 1;
                if one == (op == Op::Eq) { Some(x) } else { Some(self.operation(Op::Not, vec![x], 1, place)) }
            }
            Op::Any | Op::All | Op::Parity if self.width(args[0]) == 1 => Some(args[0]),
            Op::Not => match self.anonymous(args[0]) {
                Some((Op::Not, inner)) => Some(inner[0]),
                Some((Op::Eq, inner)) => Some(self.operation(Op::Ne, inner, 1, place)),
                Some((Op::Ne, inner)) => Some(self.operation(Op::Eq, inner, 1, place)),
                _ => None,
            },
            Op::Mux if is(0, ones) || args[1] == args[2] => Some(args[1]),
            Op::Mux if is(0, zero) => Some(args[2]),
            Op::Mux if width == 1 && is(1, ones) && is(2, zero) => Some(args[0]),
            Op::Mux if width == 1 && is(1, zero) && is(2, ones) => {
                Some(self.operation(Op::Not, vec![args[0]], 1, place))
            }
            Op::Shl | Op::Shr => {
                let by = self.value(args[1])?;
                if by.words()[1..].iter().any(|w| *w != 0) || by.low() >= u64::from(width) {
                    return Some(self.constant(Bits::zero(width), place));
                }
                let by = by.low() as u32;
                let rest = width - by;
                if op == Op::Shr {
                    let high = self.operation(Op::Slice(by), vec![args[0]], rest, place);
                    return Some(self.operation(Op::Extend, vec![high], width, place));
                }
                let low = self.operation(Op::Slice(0), vec![args[0]], rest, place);
                let zeros = self.constant(Bits::zero(by), place);
                Some(self.operation(Op::Cat, vec![low, zeros], width, place))
            }
            Op::Slice(low) => self.slice(args[0], low, width, place),
            Op::Extend => match self.anonymous(args[0]) {
                Some((Op::Extend, inner)) => Some(self.operation(Op::Extend, inner, width, place)),
                _ => None,
            },
            Op::Cat => {
                let flat: Vec<Id> = args
                    .iter()
                    .flat_map(|a| match self.anonymous(*a) {
                        Some((Op::Cat, inner)) => inner,
                        _ => vec![*a],
                    })
                    .collect();
                (flat.len() > args.len()).then(|| self.operation(Op::Cat, flat, width, place))
            }
            _ => None,
        }
    }

    /// `width` bits from `low` of an operator that only moves bits.
    fn slice(&mut self, of: Id, low: u32, width: u32, place: Place) -> Option<Id> {
        let (op, inner) = self.anonymous(of)?;
        // the part and the bit of it from which the slice starts
        let (part, from) = match op {
            Op::Slice(base) => (inner[0], base + low),
            Op::Extend if low >= self.width(inner[0]) => {
                return Some(self.constant(Bits::zero(width), place));
            }
            Op::Extend => (inner[0], low),
            Op::Cat => {
                let mut base = 0;
                let part = inner.into_iter().rev().find(|part| {
                    base += self.width(*part);
                    low < base
                })?;
                (part, low - (base - self.width(part)))
            }
            _ => return None,
        };
        let all = self.width(part);
        if from + width > all {
            return None;
        }
        Some(if width == all { part } else { self.operation(Op::Slice(from), vec![part], width, place) })
    }

    fn width(&self, id: Id) -> u32 {
        self.def.nodes[id as usize].width
    }

    /// The operator of a value that has no name.
    fn anonymous(&self, id: Id) -> Option<(Op, Vec<Id>)> {
        match &self.def.nodes[id as usize] {
            Node { kind: Kind::Op(op, args), name: None, .. } => Some((*op, args.clone())),
            _ => None,
        }
    }
}

/// What makes two operators the same; the order of operands does not matter where it has no effect.
fn key(op: Op, args: &[Id], width: u32) -> (Op, Vec<Id>, u32) {
    let mut args = args.to_vec();
    if matches!(op, Op::And | Op::Or | Op::Xor | Op::Add | Op::Mul | Op::Eq | Op::Ne) {
        args.sort_unstable();
    }
    (op, args, width)
}
