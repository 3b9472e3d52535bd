//! The line of connection data that the two ends of a program exchange over TCP, in the form of `ibv_rc_pingpong`:
//! `LID:QPN:PSN:GID`, hexadecimal, the GID as 32 digits, ended by a zero byte.
//!
//! In: a stream and the own end's data. Out: the peer's. Waits are bounded by the stream's timeouts; a malformed or
//! cut line is an error that names the peer.

use crate::{Error, Gid, Result};
use std::io::{Read, Write};
use std::net::TcpStream;

/// One end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Endpoint {
    /// QP number.
    pub qpn: u32,
    /// First PSN it will send.
    pub psn: u32,
    /// Its address.
    pub gid: Gid,
}

/// Bytes of a line with its zero.
pub const LINE_BYTES: usize = 4 + 1 + 6 + 1 + 6 + 1 + 32 + 1;

impl Endpoint {
    /// The line without its zero byte. The LID of Ethernet ports is 0.
    pub fn line(&self) -> String {
        format!("0000:{:06x}:{:06x}:{:032x}", self.qpn & 0xff_ffff, self.psn & 0xff_ffff, self.gid.to_u128())
    }

    /// The end that a line tells of; `None` when it is malformed.
    pub fn parse(line: &str) -> Option<Endpoint> {
        let mut parts = line.split(':');
        let mut number = |digits: usize| {
            let part = parts.next().filter(|part| part.len() == digits)?;
            if !part.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return None;
            }
            u128::from_str_radix(part, 16).ok()
        };
        number(4)?;
        let (qpn, psn, gid) = (number(6)? as u32, number(6)? as u32, Gid::from_u128(number(32)?));
        parts.next().is_none().then_some(Endpoint { qpn, psn, gid })
    }

    /// Sends this end's line.
    ///
    /// # Errors
    /// The stream failed.
    pub fn send(&self, stream: &mut TcpStream) -> Result<()> {
        let mut line = self.line().into_bytes();
        line.push(0);
        stream.write_all(&line).map_err(|error| failed(stream, error.to_string()))
    }

    /// Receives the peer's line.
    ///
    /// # Errors
    /// The stream failed or the line is malformed.
    pub fn receive(stream: &mut TcpStream) -> Result<Endpoint> {
        let mut line = [0; LINE_BYTES];
        stream.read_exact(&mut line).map_err(|error| failed(stream, error.to_string()))?;
        let text = line.strip_suffix(&[0]).and_then(|line| std::str::from_utf8(line).ok());
        text.and_then(Endpoint::parse).ok_or_else(|| failed(stream, "not a line LID:QPN:PSN:GID".to_owned()))
    }

    /// Sends the word `done`: the peer may go on.
    ///
    /// # Errors
    /// The stream failed.
    pub fn send_done(stream: &mut TcpStream) -> Result<()> {
        stream.write_all(b"done\0").map_err(|error| failed(stream, error.to_string()))
    }

    /// Waits for the peer's `done`.
    ///
    /// # Errors
    /// The stream failed or said something else.
    pub fn receive_done(stream: &mut TcpStream) -> Result<()> {
        let mut word = [0; 5];
        stream.read_exact(&mut word).map_err(|error| failed(stream, error.to_string()))?;
        if &word == b"done\0" { Ok(()) } else { Err(failed(stream, "expected `done`".to_owned())) }
    }
}

fn failed(stream: &TcpStream, what: String) -> Error {
    let peer = stream.peer_addr().map_or_else(|_| "the peer".to_owned(), |address| address.to_string());
    Error::Exchange { peer, what }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_is_the_one_of_the_well_known_program() {
        let end = Endpoint { qpn: 0x12, psn: 0xabcdef, gid: std::net::Ipv4Addr::new(10, 0, 0, 1).into() };
        assert_eq!(end.line(), "0000:000012:abcdef:00000000000000000000ffff0a000001");
        assert_eq!(end.line().len() + 1, LINE_BYTES);
        assert_eq!(Endpoint::parse(&end.line()), Some(end));
    }

    #[test]
    fn a_malformed_line_is_refused() {
        for line in [
            "",
            "0000:000012:abcdef",
            "0000:00012:abcdef:00000000000000000000ffff0a000001",
            "0000:+00012:abcdef:00000000000000000000ffff0a000001",
            "0000:000012:abcdef:00000000000000000000ffff0a000001:1",
        ] {
            assert_eq!(Endpoint::parse(line), None, "{line}");
        }
    }
}
