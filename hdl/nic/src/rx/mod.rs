//! Receive: parse > verify > check > place > complete > notify; respond and acknowledge branch at check.

pub mod complete;
pub mod notify;
