//! Timed stories of the root complex: what the card and the host see, and when.

mod desk;
mod ordering;
mod reads;
mod rules;
mod faults;
mod host;
mod resets;
mod storms;
mod lspci;
