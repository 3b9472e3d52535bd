//! A file by RDMA WRITE: the receiver tells address and R_Key in its first SEND, the sender writes the file there.
//!
//! ```text
//! cargo run --example rdma_write_file -- copy.bin                 # receives on port 18515
//! cargo run --example rdma_write_file -- file.bin 127.0.0.1       # sends
//! ```
//!
//! In: a file of 1 byte to 1 GiB. Out: the same bytes at the other end. The file's own mapping is registered at the sender, so its
//! bytes go from the page cache to the wire without a copy. For files of any size, see `verbena move`.

use host::exchange::Endpoint;
use host::{Access, Completion, Context, Cq, DeviceAddress, PathMtu, QpInit, RecvWr, SendWr, WcStatus};
use std::error::Error;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

const PORT: u16 = 18515;
/// Bytes of one WRITE.
const CHUNK: usize = 1 << 20;

fn completed(cq: &Cq) -> Result<Completion, Box<dyn Error>> {
    let completion = cq.poll_wait(Duration::from_secs(60))?.ok_or("no completion within 60 s")?;
    match completion.status {
        WcStatus::Success => Ok(completion),
        status => Err(format!("work request {}: {}", completion.wr_id, status.doc()).into()),
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let path = arguments.next().ok_or("usage: rdma_write_file FILE [SERVER]")?;
    let server = arguments.next();

    let context = Context::open(&DeviceAddress::first()?)?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64, None)?;
    let qp = pd.create_qp(&QpInit { max_send_wr: 16, max_recv_wr: 16, ..QpInit::rc(&cq, &cq) })?;
    let inbox = pd.allocate(12, Access::LOCAL_WRITE)?;

    let mut stream = match &server {
        None => TcpListener::bind(("0.0.0.0", PORT))?.accept()?.0,
        Some(name) => TcpStream::connect((name.as_str(), PORT))?,
    };
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let psn = std::process::id() & 0xff_ffff;
    Endpoint { qpn: qp.number(), psn, gid: context.gids()[0] }.send(&mut stream)?;
    let peer = Endpoint::receive(&mut stream)?;
    qp.connect(&peer, psn, PathMtu::Mtu1024, Access::REMOTE_WRITE)?;
    qp.post_recv(&[RecvWr::new(0, &[inbox.sge(0..12)?])])?;
    Endpoint::send_done(&mut stream)?;
    Endpoint::receive_done(&mut stream)?;

    if server.is_some() {
        let file = std::fs::File::open(&path)?;
        // SAFETY: the mapping is private; nobody writes it while it is registered
        let map = unsafe { memmap2::MmapOptions::new().map_copy(&file)? };
        let length = map.len();
        stream.write_all(&(length as u64).to_be_bytes())?;
        let source = pd.register(map, Access::empty())?;
        // the receiver's first SEND: address and R_Key
        completed(&cq)?;
        let told = inbox.to_vec(0..12)?;
        let addr = u64::from_be_bytes(told[..8].try_into()?);
        let rkey = u32::from_be_bytes(told[8..].try_into()?);
        let mut done = 0;
        let mut flying = 0;
        while done < length || flying > 0 {
            if done < length && flying < 8 {
                let end = length.min(done + CHUNK);
                let part = [source.sge(done..end)?];
                qp.post_send(&[SendWr::write(1, &part, addr + done as u64, rkey).signaled()])?;
                (done, flying) = (end, flying + 1);
            } else {
                completed(&cq)?;
                flying -= 1;
            }
        }
        // an empty SEND behind the WRITEs: everything has arrived
        qp.post_send(&[SendWr::send(2, &[]).signaled()])?;
        completed(&cq)?;
        println!("sent {length} bytes");
    } else {
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes)?;
        let length = usize::try_from(u64::from_be_bytes(bytes))?;
        if !(1..=1 << 30).contains(&length) {
            return Err(format!("the sender's file has {length} bytes; 1 byte to 1 GiB").into());
        }
        let target = pd.allocate(length, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        let outbox = pd.allocate(12, Access::empty())?;
        outbox.write(0, &target.addr().to_be_bytes())?;
        outbox.write(8, &target.rkey().to_be_bytes())?;
        qp.post_send(&[SendWr::send(1, &[outbox.sge(0..12)?]).signaled()])?;
        // our own SEND, and the empty one behind the file
        completed(&cq)?;
        completed(&cq)?;
        std::fs::write(&path, target.to_vec(0..length)?)?;
        println!("received {length} bytes");
    }
    Endpoint::send_done(&mut stream)?;
    Endpoint::receive_done(&mut stream)?;
    Ok(())
}
