//! Receive: parse > verify > check > place > complete > notify; acknowledge branches at check, atomic at place.

pub mod complete;
pub mod notify;
pub mod parse;
pub mod verify;
pub mod packet_buffer;
pub mod check;
pub mod place;
pub mod atomic;
pub mod receive_wqes;
pub mod acknowledge;
