//! Receive: parse > verify > check > place > complete > notify; respond and acknowledge branch at check.

pub mod check;
pub mod place;
pub mod receive_wqes;
pub mod acknowledge;
