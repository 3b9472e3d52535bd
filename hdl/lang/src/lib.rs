//! A hardware description language embedded in Rust: elaborates, checks, interprets, emits readable SystemVerilog
