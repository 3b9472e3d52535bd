//! Random designs behave the same in the interpreter and in Verilator. `cargo ci fuzz` does the same for longer, on
//! wider designs, with yosys as a third opinion.

mod generator;

use generator::{Batch, Driven, Size, compare, signature};
use std::path::Path;

const DIRECTORY: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/verilated");

#[test]
fn random_designs_of_up_to_130_bits_behave_the_same_in_verilator() {
    let size =
        Size { width: 130, operations: 24, memories: true, whole: false, two_clocks: false, child: true };
    let (moved, outputs) = compare(&Batch { seed: 11, count: 8, size }, 500, Path::new(DIRECTORY)).unwrap();
    assert!(moved * 2 > outputs, "designs that do nothing prove nothing: {moved} of {outputs} outputs move");
}

#[test]
fn a_signature_of_a_driven_batch_depends_on_what_the_batch_does() {
    let size =
        Size { width: 40, operations: 12, memories: true, whole: true, two_clocks: false, child: true };
    let of = |seed| signature(&Driven { batch: Batch { seed, count: 1, size }, clocks: 50 }).unwrap().1;
    assert_eq!(of(5), of(5));
    assert_ne!(of(5), of(6));
    assert_ne!(of(5), 0);
}
