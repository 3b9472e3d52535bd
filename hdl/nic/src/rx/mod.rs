//! Receive: parse > verify > check > place > complete > notify; respond and acknowledge branch at check.

pub mod complete;
pub mod notify;
pub mod parse;
pub mod verify;
pub mod packet_buffer;
pub mod check;
pub mod place;
pub mod receive_wqes;
pub mod acknowledge;
