//! What can go wrong in a simulated room.

use crate::capture::CaptureError;
use std::path::PathBuf;

/// An operation of the simulated room failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model cannot be built, loaded or run.
    #[error(transparent)]
    Model(#[from] verilated::Error),
    /// The RTL does not elaborate.
    #[error("elaborate the card's RTL: {0}")]
    Rtl(String),
    /// The root complex refuses its configuration.
    #[error(transparent)]
    Root(#[from] pcie_sim::config::ConfigError),
    /// The capture cannot be written.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A file cannot be written.
    #[error("write {}: {source}; check the path and the space left", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What was waited for did not happen.
    #[error("waited until {limit} ns of simulated time for {what}, in vain")]
    Timeout {
        /// For what.
        what: String,
        /// Until when.
        limit: u64,
    },
    /// More cards than ends of a wire.
    #[error("a room of {0} cards; a wire has two ends: use one or two")]
    Cards(usize),
}
