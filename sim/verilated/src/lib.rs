//! Builds Verilator models at run time and binds them as safe Rust structs
