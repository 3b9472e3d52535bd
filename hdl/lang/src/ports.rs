//! Ports as records: [`Bundle`] groups signals under names, [`Stream`] adds valid and ready, [`Ports`] is a module's
//! whole port list. All three are derived; see the crate page for an example.

use crate::elaborate::{fail, named_node, with};
use crate::error::{Place, Rule};
use crate::ir::{Dir, Id, Kind, PortDef};
use crate::sig::{Sig, cat, mux, reg_at, wire};
use std::collections::BTreeMap;
use std::panic::Location;

/// Width of a single signal; 1 if nothing is said.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Width(pub u32);
impl Default for Width {
    fn default() -> Self {
        Width(1)
    }
}
impl From<u32> for Width {
    fn from(w: u32) -> Self {
        Width(w)
    }
}

/// A typed group of signals that travel together.
pub trait Bundle: Clone {
    /// What decides the widths (`()` if they are fixed).
    type Shape: Clone;
    /// Makes every signal by `make(name, width)`.
    fn build(shape: &Self::Shape, name: &str, make: &mut dyn FnMut(&str, u32) -> Sig) -> Self;
    /// Every signal, in order of declaration.
    fn signals(&self) -> Vec<Sig>;

    /// Wires of this shape.
    #[track_caller]
    fn wires(shape: &Self::Shape, name: &str) -> Self {
        let place = Location::caller();
        Self::build(shape, name, &mut |n, w| named_node(Kind::Wire, w, n, place))
    }
    /// Registers without reset.
    #[track_caller]
    fn regs(shape: &Self::Shape, name: &str) -> Self {
        let place = Location::caller();
        Self::build(shape, name, &mut |n, w| reg_at(n, w, None, place))
    }
    /// Registers that reset puts to zero.
    #[track_caller]
    fn regs_zero(shape: &Self::Shape, name: &str) -> Self {
        let place = Location::caller();
        Self::build(shape, name, &mut |n, w| reg_at(n, w, Some(0), place))
    }
    /// Number of bits of the whole.
    fn total_width(shape: &Self::Shape) -> u32 {
        // builds nothing: the handles are never used
        let mut total = 0;
        Self::build(shape, "", &mut |_, w| {
            total += w;
            Sig { id: 0, width: w, module: 0 }
        });
        total
    }
    /// Drives every signal from `from`.
    #[track_caller]
    fn assign(&self, from: &Self) {
        for (to, from) in self.signals().into_iter().zip(from.signals()) {
            to.set(from);
        }
    }
    /// Drives every signal with zero.
    #[track_caller]
    fn assign_zero(&self) {
        for to in self.signals() {
            to.set(0);
        }
    }
    /// One signal, the first field in the most significant bits.
    #[track_caller]
    fn to_bits(&self) -> Sig {
        cat(&self.signals())
    }
    /// The reverse of [`Bundle::to_bits`].
    #[track_caller]
    fn from_bits(shape: &Self::Shape, bits: Sig) -> Self {
        let total = Self::total_width(shape);
        if bits.width != total {
            fail(Rule::Width, Location::caller(), format!("bundle of {total} bits from {} bits", bits.width));
        }
        let mut high = total;
        Self::build(shape, "", &mut |_, w| {
            high -= w;
            bits.bits(high, w)
        })
    }
    /// `self` where `condition`, else `other`.
    #[track_caller]
    fn or_else(&self, shape: &Self::Shape, condition: Sig, other: &Self) -> Self {
        Self::from_bits(shape, mux(condition, self.to_bits(), other.to_bits()))
    }
}

impl Bundle for Sig {
    type Shape = Width;
    #[track_caller]
    fn build(shape: &Width, name: &str, make: &mut dyn FnMut(&str, u32) -> Sig) -> Self {
        make(name, shape.0)
    }
    fn signals(&self) -> Vec<Sig> {
        vec![*self]
    }
}

/// A flow of `T` with back-pressure: `data` moves in a clock where `valid` and `ready` are both high. `valid` never
/// waits for `ready`, and once high stays, with its data, until the move.
#[derive(Clone, Copy, Debug)]
pub struct Stream<T> {
    /// There is data.
    pub valid: Sig,
    /// The receiver takes it in this clock.
    pub ready: Sig,
    /// What flows.
    pub data: T,
}

impl<T: Bundle> Stream<T> {
    /// Data moves in this clock.
    #[track_caller]
    pub fn moves(&self) -> Sig {
        self.valid & self.ready
    }
    /// Wires for all of it (the receiver's and the sender's side are set apart).
    #[track_caller]
    pub fn wires(shape: &T::Shape, name: &str) -> Self {
        Stream {
            valid: wire(&format!("{name}_valid"), 1),
            ready: wire(&format!("{name}_ready"), 1),
            data: T::wires(shape, name),
        }
    }
    /// Lets `from` flow into `self`.
    #[track_caller]
    pub fn take(&self, from: &Self) {
        self.valid.set(from.valid);
        self.data.assign(&from.data);
        from.ready.set(self.ready);
    }
}

/// The `T` of a `Stream<T>`, for the derive.
pub trait StreamOf {
    /// What flows.
    type Data: Bundle;
}
impl<T: Bundle> StreamOf for Stream<T> {
    type Data = T;
}

/// The port list of a module; derive it.
pub trait Ports: Sized {
    /// The module type whose configuration decides the widths.
    type Config;
    /// Makes the ports.
    fn declare(config: &Self::Config, ports: &mut PortBuilder) -> Self;
}

enum Side {
    Inside,
    Instance { name: String, number: usize, connections: BTreeMap<String, Id> },
}

/// Makes the ports of a module, or the wires to the ports of an instance.
pub struct PortBuilder {
    side: Side,
}

impl PortBuilder {
    pub(crate) fn inside() -> Self {
        PortBuilder { side: Side::Inside }
    }
    pub(crate) fn instance(name: &str, number: usize) -> Self {
        PortBuilder { side: Side::Instance { name: name.into(), number, connections: BTreeMap::new() } }
    }
    pub(crate) fn connections(self) -> BTreeMap<String, Id> {
        match self.side {
            Side::Instance { connections, .. } => connections,
            Side::Inside => BTreeMap::new(),
        }
    }
    fn port(&mut self, dir: Dir, port: &str, width: u32, place: Place) -> Sig {
        match &mut self.side {
            Side::Inside => {
                let kind = if dir == Dir::Input { Kind::Input } else { Kind::Wire };
                let s = named_node(kind, width, port, place);
                with(|m| m.def.ports.push(PortDef { dir, name: port.into(), id: s.id, width }));
                s
            }
            Side::Instance { name, number, connections } => {
                let kind = match dir {
                    Dir::Input => Kind::Wire,
                    Dir::Output => Kind::InstanceOutput { instance: *number, port: usize::MAX },
                };
                let outer = format!("{name}_{port}");
                // the instance's own name already carries the open scopes
                let s = crate::elaborate::unscoped_node(kind, width, &outer, place);
                connections.insert(port.into(), s.id);
                s
            }
        }
    }
    /// Signals that flow into the module.
    #[track_caller]
    pub fn input<T: Bundle>(&mut self, name: &str, shape: &T::Shape) -> T {
        let place = Location::caller();
        T::build(shape, name, &mut |n, w| self.port(Dir::Input, n, w, place))
    }
    /// Signals that flow out of the module.
    #[track_caller]
    pub fn output<T: Bundle>(&mut self, name: &str, shape: &T::Shape) -> T {
        let place = Location::caller();
        T::build(shape, name, &mut |n, w| self.port(Dir::Output, n, w, place))
    }
    /// A stream into the module.
    #[track_caller]
    pub fn sink<T: Bundle>(&mut self, name: &str, shape: &T::Shape) -> Stream<T> {
        let place = Location::caller();
        Stream {
            valid: self.port(Dir::Input, &format!("{name}_valid"), 1, place),
            ready: self.port(Dir::Output, &format!("{name}_ready"), 1, place),
            data: self.input(name, shape),
        }
    }
    /// A stream out of the module.
    #[track_caller]
    pub fn source<T: Bundle>(&mut self, name: &str, shape: &T::Shape) -> Stream<T> {
        let place = Location::caller();
        Stream {
            valid: self.port(Dir::Output, &format!("{name}_valid"), 1, place),
            ready: self.port(Dir::Input, &format!("{name}_ready"), 1, place),
            data: self.output(name, shape),
        }
    }
}
