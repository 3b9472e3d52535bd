//! Ping-pong over a reliable connection: the shape of libibverbs' best-known example.
//!
//! ```text
//! cargo run --example rc_pingpong                  # waits on port 18515, uses the first card
//! cargo run --example rc_pingpong -- 127.0.0.1     # connects; set VERBENA_DEVICE=sim:card1 for the other card
//! ```
//!
//! In: nothing, or the server's name. Out: bytes, rounds and time on stdout. Both ends exchange QPN, PSN and GID in
//! one TCP line, then send one message each way 1000 times.

use host::exchange::Endpoint;
use host::{Access, Context, DeviceAddress, PathMtu, QpInit, RecvWr, SendWr, WcStatus};
use std::error::Error;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

const PORT: u16 = 18515;
const SIZE: usize = 4096;
const ROUNDS: u32 = 1000;
const RECV: u64 = 1;
const SEND: u64 = 2;

fn main() -> Result<(), Box<dyn Error>> {
    let server = std::env::args().nth(1);

    let context = Context::open(&DeviceAddress::first()?)?;
    let pd = context.alloc_pd()?;
    let memory = pd.allocate(SIZE, Access::LOCAL_WRITE)?;
    let cq = context.create_cq(16, None)?;
    let qp = pd.create_qp(&QpInit { max_send_wr: 4, max_recv_wr: 4, ..QpInit::rc(&cq, &cq) })?;

    let psn = std::process::id() & 0xff_ffff;
    let own = Endpoint { qpn: qp.number(), psn, gid: context.gids()[0] };
    let mut stream = match &server {
        None => TcpListener::bind(("0.0.0.0", PORT))?.accept()?.0,
        Some(name) => TcpStream::connect((name.as_str(), PORT))?,
    };
    stream.set_read_timeout(Some(Duration::from_secs(30)))?;
    own.send(&mut stream)?;
    let peer = Endpoint::receive(&mut stream)?;
    println!("  local address:  QPN {:#08x}, PSN {:#08x}, GID {}", own.qpn, own.psn, own.gid);
    println!("  remote address: QPN {:#08x}, PSN {:#08x}, GID {}", peer.qpn, peer.psn, peer.gid);

    qp.connect(&peer, psn, PathMtu::Mtu1024, Access::empty())?;
    let whole = [memory.sge(0..SIZE)?];
    qp.post_recv(&[RecvWr::new(RECV, &whole)])?;
    // both ends are ready to receive before either sends
    Endpoint::send_done(&mut stream)?;
    Endpoint::receive_done(&mut stream)?;

    let start = Instant::now();
    if server.is_some() {
        qp.post_send(&[SendWr::send(SEND, &whole).signaled()])?;
    }
    let (mut sent, mut received) = (0, 0);
    while sent < ROUNDS || received < ROUNDS {
        let completion = cq.poll_wait(Duration::from_secs(30))?.ok_or("no completion within 30 s")?;
        if completion.status != WcStatus::Success {
            return Err(format!("work request {}: {}", completion.wr_id, completion.status.doc()).into());
        }
        match completion.wr_id {
            SEND => sent += 1,
            _ => {
                received += 1;
                if received < ROUNDS {
                    qp.post_recv(&[RecvWr::new(RECV, &whole)])?;
                }
                // the server answers every message, the client all but the last
                if server.is_none() || received < ROUNDS {
                    qp.post_send(&[SendWr::send(SEND, &whole).signaled()])?;
                }
            }
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let bytes = 2 * SIZE * ROUNDS as usize;
    println!("{bytes} bytes in {seconds:.2} seconds = {:.2} Mbit/sec", bytes as f64 * 8.0 / seconds / 1e6);
    println!("{ROUNDS} iters in {seconds:.2} seconds = {:.2} usec/iter", seconds / f64::from(ROUNDS) * 1e6);

    // nobody leaves before the other has its last acknowledgement
    Endpoint::send_done(&mut stream)?;
    Endpoint::receive_done(&mut stream)?;
    Ok(())
}
