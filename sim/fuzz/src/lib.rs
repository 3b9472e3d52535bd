//! Coverage-guided fuzzing of the whole card.
//!
//! ```text
//!            seeds, found/                       counters of the RTL: branches, covers, small signals
//!                 │                                            ▲
//! libFuzzer ──> input: actions ──> a child of the card that is up ──> a promise broken: input kept in found/
//!     ▲                                                        │
//!     └───────────────────── new points ───────────────────────┘
//! ```
//! [`input`]: bytes as a list of actions; [`frame`]: frames of kernel peers, bent; [`machine`]: what actions do, and what
//! must hold; [`isolate`]: every input meets the same card; [`seeds`]: where mutation begins; [`campaign`]: what
//! libFuzzer calls, and the table at the end. The engine is libFuzzer, by the feature `libfuzzer`; the tests replay
//! seeds and all that ever found a fault without it.

pub mod campaign;
pub mod frame;
pub mod host;
pub mod input;
pub mod isolate;
pub mod machine;
pub mod seeds;
