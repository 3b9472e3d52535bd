//! Verilog in, a safe Rust handle out.
//!
//! ```text
//! Source{top, verilog} --verilator--> C++ --g++--> model.so --loaded--> Model --> Instance, Instance, ...
//!                      (once per content hash, under target/verilated/<hash>/)
//! ```
//!
//! [`Model::build`] compiles a module once per content (text, options, tool versions) and loads it; a second call, in
//! this process or another, loads the file. Racing builders wait for the one that builds. [`Model::instance`] makes as
//! many independent copies of the hardware as wanted. Ports are resolved by name, direction and width once, into
//! [`Input`] and [`Output`] handles; after that an access is a load or a store. Models run on the caller's thread and
//! know no clock: the caller drives clock ports and calls [`Instance::eval`], first with the clocks low.
//!
//! A failed assertion, `$stop` or `$finish` in the Verilog is an [`Error::Stopped`] from `eval`, never an abort; text
//! that a model prints goes to stderr, never to stdout. State without an initial value starts at zero.
//!
//! Never: nothing is read from the OS clock, no thread is left behind, no symbol of a model reaches another model.
//!
//! ```no_run
//! # fn main() -> Result<(), verilated::Error> {
//! let model = verilated::Model::build(&verilated::Source::new("inverter",
//!     "module inverter(input wire [3:0] a, output wire [3:0] y); assign y = ~a; endmodule"))?;
//! let (a, y) = (model.input("a", 4)?, model.output("y", 4)?);
//! let mut inverter = model.instance()?;
//! inverter.set(a, 0b0101);
//! inverter.eval()?;
//! assert_eq!(inverter.get(y), 0b1010);
//! # Ok(()) }
//! ```

mod build;
mod error;
mod instance;
mod ports;

pub use build::{Progress, Source};
pub use error::Error;
pub use instance::{CoverPoint, Instance, Model};
pub use ports::{Direction, Input, Output, Port, PortInfo};
