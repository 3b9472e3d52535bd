//! Derives of the hdl crate: port records and hardware enums
