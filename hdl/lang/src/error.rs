//! Everything that elaboration refuses, each with the place in the user's Rust source that caused it.
//!
//! An error travels from the operator that found it to [`crate::elaborate`] by unwinding (operators such as
//! `a + b` cannot return a `Result`), quietly, without the panic hook; nobody but `elaborate` sees that.

use std::fmt;
use std::panic::Location;

/// A place in the user's Rust source.
pub type Place = &'static Location<'static>;

/// Why a design was refused.
#[derive(Clone, Debug)]
pub struct Error {
    /// The rule that was broken.
    pub rule: Rule,
    /// Module under construction.
    pub module: String,
    /// What exactly, and what to do.
    pub message: String,
    /// The line of the user's source.
    pub place: Place,
}

/// The rules of elaboration.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rule {
    /// Operands or the two sides of an assignment differ in width, or a slice leaves its signal.
    Width,
    /// A literal does not fit its width.
    Literal,
    /// A signal of zero bits.
    ZeroWidth,
    /// A wire, output or instance input that nothing drives.
    Undriven,
    /// Two unconditional drivers, or two modules driving one signal.
    DoubleDriven,
    /// An unconditional assignment that follows a conditional one, and so makes it void.
    DefaultAfterWhen,
    /// A wire that some path leaves unassigned.
    Latch,
    /// A combinational loop, also one that runs through several modules.
    Loop,
    /// A register that samples a register of another clock without a synchroniser.
    ClockCrossing,
    /// Two things of one name in a module, or two different modules of one name.
    NameClash,
    /// A Verilog keyword, or not a Verilog identifier.
    Name,
    /// A signal used outside of the module that made it.
    Scope,
    /// An assignment to something that cannot be assigned.
    NotAssignable,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{}:{}: {:?} in module `{}`: {}",
            self.place.file(),
            self.place.line(),
            self.place.column(),
            self.rule,
            self.module,
            self.message
        )
    }
}
impl std::error::Error for Error {}

/// Leaves elaboration with `error`; caught by [`crate::elaborate`].
pub(crate) fn refuse(error: Error) -> ! {
    std::panic::resume_unwind(Box::new(error))
}
