//! The command `verbena`.
fn main() {}
