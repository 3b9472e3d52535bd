//! Everything that can go wrong between Verilog text and a running instance, with the remedy in the message.

use std::{io, path::PathBuf};

/// What went wrong while a model was built, loaded, bound or run.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A tool is absent.
    #[error("cannot run `{tool}`: {source}; install it (`apt-get install verilator g++ zlib1g-dev`)")]
    Tool {
        /// The command.
        tool: &'static str,
        /// Why it did not start.
        source: io::Error,
    },
    /// Verilator refused the Verilog.
    #[error("verilator refused module `{top}`:\n{message}\n(the text is in {})", file.display())]
    Verilog {
        /// The top module.
        top: String,
        /// Verilator's own words.
        message: String,
        /// The Verilog that was refused.
        file: PathBuf,
    },
    /// The C++ compiler or linker failed.
    #[error(
        "compiling the model of `{top}` failed:\n{message}\n(if a header or library is missing: `apt-get install verilator g++ zlib1g-dev`)"
    )]
    Compile {
        /// The top module.
        top: String,
        /// The compiler's words.
        message: String,
    },
    /// A file operation of the build or of the cache failed.
    #[error("cannot {operation} {}: {source}; check that the directory is writable and not full", path.display())]
    File {
        /// What was tried.
        operation: &'static str,
        /// On what.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// The built library does not load.
    #[error("cannot load the model {}: {message}; delete the file to have it built again", path.display())]
    Load {
        /// The shared object.
        path: PathBuf,
        /// The loader's words.
        message: String,
    },
    /// A port of a shape that is not bound: inout, an unpacked array, a type other than bits.
    #[error(
        "port declaration `{declaration}` of `{top}` cannot be bound; use input or output vectors of bits"
    )]
    PortShape {
        /// The top module.
        top: String,
        /// Verilator's declaration.
        declaration: String,
    },
    /// No port has this name.
    #[error("`{top}` has no port `{name}`; it has: {known}")]
    NoPort {
        /// The top module.
        top: String,
        /// The name asked for.
        name: String,
        /// All port names.
        known: String,
    },
    /// The port goes the other way.
    #[error("port `{name}` of `{top}` is an {actual}, bound as {wanted}")]
    Direction {
        /// The top module.
        top: String,
        /// The port.
        name: String,
        /// Its direction.
        actual: &'static str,
        /// The direction asked for.
        wanted: &'static str,
    },
    /// The port is wider or narrower than the caller believes.
    #[error("port `{name}` of `{top}` is {actual} bits wide, bound as {wanted} bits")]
    Width {
        /// The top module.
        top: String,
        /// The port.
        name: String,
        /// Its width in bits.
        actual: u32,
        /// The width asked for in bits.
        wanted: u32,
    },
    /// Memory for an instance could not be had.
    #[error("cannot create an instance of `{top}`: out of memory")]
    Memory {
        /// The top module.
        top: String,
    },
    /// The model stopped: a failed assertion, `$stop`, `$finish`, logic that does not settle. Lasting.
    #[error("model `{top}` stopped: {message}")]
    Stopped {
        /// The top module.
        top: String,
        /// Verilator's words.
        message: String,
    },
    /// A trace was asked of a model built without it.
    #[error("model `{top}` was built without tracing; build it with `trace: true`")]
    NotTraced {
        /// The top module.
        top: String,
    },
    /// Time went backwards in a trace.
    #[error("trace of `{top}`: time {time} ps is not after {last} ps, the last one dumped")]
    TimeOrder {
        /// The top module.
        top: String,
        /// The time asked for, in ps.
        time: u64,
        /// The last time dumped, in ps.
        last: u64,
    },
}

impl Error {
    /// Wraps a failed file operation, to be used with `map_err`.
    pub(crate) fn file(operation: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { operation, path, source }
    }
}
