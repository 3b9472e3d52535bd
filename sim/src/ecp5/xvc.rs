//! A JTAG cable to a [`Tap`], by Xilinx Virtual Cable 1.0 over TCP on loopback.
//!
//! ```text
//! getinfo:                  > xvcServer_v1.0:2048
//! settck: period(4)         > period(4)
//! shift: n(4) TMS[n] TDI[n] > TDO[n]           bits, the first in the low bit of the first byte
//! ```
//! In: one client after another. Out: its clocks to the TAP. Each transfer takes the device a millisecond, as one over USB does,
//! so a flash gets done while it is asked. A client that says anything else is disconnected. Ends with its `Cable`, once the
//! client that it has is gone.

use super::Tap;
use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

/// Bytes of TMS and TDI in one transfer: so few that an answer comes in one piece, which openFPGALoader counts on.
const VECTOR: usize = 2048;
/// Of a transfer over USB.
const TRANSFER: Duration = Duration::from_millis(1);

/// The cable.
pub struct Cable {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Cable {
    /// Waits for clients at a free port.
    ///
    /// # Errors
    /// There is none.
    pub fn to(tap: Arc<Mutex<Tap>>) -> io::Result<Cable> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let (address, ends) = (listener.local_addr()?, Arc::new(AtomicBool::new(false)));
        let thread = std::thread::spawn({
            let ends = ends.clone();
            move || {
                for client in listener.incoming() {
                    if ends.load(Ordering::Relaxed) {
                        return;
                    }
                    // how a client ends is its own business
                    let _ = client.and_then(|client| attend(client, &tap));
                }
            }
        });
        Ok(Cable { address, ends, thread: Some(thread) })
    }

    /// Its port.
    pub fn port(&self) -> u16 {
        self.address.port()
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn attend(mut client: TcpStream, tap: &Mutex<Tap>) -> io::Result<()> {
    client.set_nodelay(true)?;
    let receive = |client: &mut TcpStream, bytes: &mut [u8]| {
        client.read_exact(bytes)?;
        // the client sends its request in two pieces, the second when the first is acknowledged
        rustix::net::sockopt::set_tcp_quickack(&*client, true).map_err(io::Error::from)
    };
    let unknown = || io::Error::from(io::ErrorKind::InvalidData);
    loop {
        let mut word = [0; 6];
        receive(&mut client, &mut word)?;
        match &word {
            b"getinf" => {
                receive(&mut client, &mut [0; 2])?;
                client.write_all(format!("xvcServer_v1.0:{VECTOR}\n").as_bytes())?;
            }
            b"settck" => {
                receive(&mut client, &mut [0; 1])?;
                let mut period = [0; 4];
                receive(&mut client, &mut period)?;
                client.write_all(&period)?;
            }
            b"shift:" => {
                let mut count = [0; 4];
                receive(&mut client, &mut count)?;
                let count = u32::from_le_bytes(count) as usize;
                let bytes = count.div_ceil(8);
                if bytes * 2 > VECTOR {
                    return Err(unknown());
                }
                let (mut tms, mut tdi, mut tdo) = (vec![0; bytes], vec![0; bytes], vec![0; bytes]);
                receive(&mut client, &mut tms)?;
                receive(&mut client, &mut tdi)?;
                let mut tap = tap.lock().unwrap_or_else(PoisonError::into_inner);
                for bit in 0..count {
                    let of = |bytes: &[u8]| bytes[bit / 8] >> (bit % 8) & 1 == 1;
                    tdo[bit / 8] |= u8::from(tap.clock(of(&tms), of(&tdi))) << (bit % 8);
                }
                tap.flash.pass(TRANSFER);
                drop(tap);
                client.write_all(&tdo)?;
            }
            _ => return Err(unknown()),
        }
    }
}
