//! `cargo ci TASK`.
fn main() {}
