//! A plain-Rust reference RoCE endpoint (sans-IO): the oracle
