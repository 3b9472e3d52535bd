//! The outside of a wire's end: whole Ethernet frames as UDP datagrams, which is what QEMU's `-netdev dgram` speaks.
//!
//! ```text
//!  Wire side B ── Frame ──▶ FCS checked and taken off ──▶ socket ──▶ remote: a guest's network card
//!              ◀── room's requests ◀── reader's thread ◀── socket ◀──
//! ```
//!
//! In: frames with their FCS; datagrams from the remote address. Out: the same frames without FCS, one datagram each, at
//! once; frames without FCS, in the order of their datagrams. A frame whose FCS is wrong is not sent, as a network card
//! would drop it; a datagram that is no frame (14 to 9216 + 18 bytes), or comes from elsewhere, is not taken.
//!
//! Never: it holds back nobody. What the machine's socket buffers cannot hold is lost, and so it is on a wire.

use super::Frame;
use std::{
    io,
    net::{SocketAddr, UdpSocket},
    sync::Arc,
};

/// Two addresses and an EtherType.
const SHORTEST: usize = 14;
/// The longest frame of a card without its FCS, with a tag.
const LONGEST: usize = 9216 + 14 + 4;

/// Bytes that a guest may send at once: the answer to a READ of a megabyte, with what the machine's kernel adds to each frame.
const BURST: usize = 4 << 20;

/// An open port; clones share its socket.
#[derive(Clone, Debug)]
pub struct Dgram {
    socket: Arc<UdpSocket>,
    remote: SocketAddr,
}

impl Dgram {
    /// Waits for frames at `local` and sends to `remote`.
    ///
    /// # Errors
    /// The local address is in use or not this machine's.
    pub fn open(local: SocketAddr, remote: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(local)?;
        // as much of it as this machine grants
        let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BURST);
        Ok(Self { socket: Arc::new(socket), remote })
    }

    /// Where it waits for frames.
    ///
    /// # Errors
    /// The socket failed.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    /// Sends a frame that has passed the wire. Nobody who listens is no error: so it is with a cable that is pulled.
    pub fn send(&self, frame: &Frame) {
        if let Some((body, _)) = frame.bytes.split_last_chunk::<4>().filter(|_| frame.fcs_is_good()) {
            let _ = self.socket.send_to(body, self.remote);
        }
    }

    /// The next frame, without FCS. Empty: [`Dgram::wake`] was called.
    ///
    /// # Errors
    /// The socket failed.
    pub fn receive(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; LONGEST + 1];
        loop {
            let (length, from) = self.socket.recv_from(&mut bytes)?;
            let woken = length == 0 && from == self.address()?;
            if woken || (from == self.remote && (SHORTEST..=LONGEST).contains(&length)) {
                bytes.truncate(length);
                return Ok(bytes);
            }
        }
    }

    /// Ends a wait in [`Dgram::receive`].
    pub fn wake(&self) {
        if let Ok(own) = self.address() {
            let _ = self.socket.send_to(&[], own);
        }
    }
}
