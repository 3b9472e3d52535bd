//! One card whose frames come back to it: every operation of a reliable connection once, step by step.
//!
//! ```text
//!   QP a ── card ── line ─┐      a loopback plug in its cage, or a simulation whose line comes back
//!   QP b ── card ── line ─┘
//! ```
//! In: the first card, or `VERBENA_DEVICE`. Out: a line per step, then what the card rejected: `rejected NAME COUNT`; it
//! fails at the first step that is not as it should be. Data are compared whole, with the bytes beside them.

use host::exchange::Endpoint;
use host::{
    Access, AddressVector, CompChannel, Completion, Context, Cq, Device, DeviceAddress, Gid, Mr, Options,
    PathMtu, Qp, QpAttr, QpInit, RecvWr, SendWr, StaticNeighbours, WcStatus,
};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

/// Longest wait for anything: a simulation is slow.
const WAIT: Duration = Duration::from_secs(60);
const MEMORY: usize = 128 << 10;
/// First PSN of both: it wraps on the way.
const PSN: u32 = 0xff_fffa;
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);

type Outcome<T = ()> = Result<T, Box<dyn Error>>;

fn main() -> Outcome {
    let address = DeviceAddress::first()?;
    let device = Device::open(&address)?;
    // the card is its own only neighbour
    let mac = device.port()?.mac;
    let neighbours = StaticNeighbours::parse(&format!("{}={mac}", Gid::link_local(mac)))?;
    let options = Options { command_timeout: WAIT, neighbours: Arc::new(neighbours), ..Options::default() };
    let context = Context::start(device, &options)?;
    println!("open: {}", context.device().name());

    let pd = context.alloc_pd()?;
    let channel = context.create_comp_channel()?;
    let cq = context.create_cq(64, Some(&channel))?;
    let init = QpInit { max_recv_sge: 2, ..QpInit::rc(&cq, &cq) };
    let [a, b] = [pd.create_qp(&init)?, pd.create_qp(&init)?];
    let gid = context.gids()[0];
    for (own, peer) in [(&a, &b), (&b, &a)] {
        let peer = Endpoint { qpn: peer.number(), psn: PSN, gid };
        own.connect_with(&attributes(&peer))?;
    }
    // one in pages of the card's own, one anywhere in this program
    let [near, far] = [pd.allocate(MEMORY, RIGHTS)?, pd.register(vec![0u8; MEMORY], RIGHTS)?];
    println!("queue pairs {} and {} connected at path MTU 4096", a.number(), b.number());

    let line = Line { a, b, cq, channel, near, far };
    for length in [1, 64, 20_000] {
        line.writes(length, Line::polled)?;
        println!("WRITE of {length} bytes, polled");
    }
    line.writes(64 << 10, Line::interrupted)?;
    println!("WRITE of 64 KiB, by interrupt");
    line.sends(5000)?;
    println!("SEND of 5000 bytes into two pieces, both completions by interrupt");
    line.reads(20_000)?;
    println!("READ of 20000 bytes, polled");

    for (reject, count) in context.device().rejects()?.into_iter().filter(|(_, count)| *count > 0) {
        println!("rejected {} {count}", reject.name());
    }
    drop(line);
    context.close()?;
    println!("closed");
    Ok(())
}

fn attributes(peer: &Endpoint) -> QpAttr {
    QpAttr {
        access: RIGHTS,
        path_mtu: PathMtu::Mtu4096,
        max_rd_atomic: 4,
        max_dest_rd_atomic: 4,
        dest_qpn: peer.qpn,
        rq_psn: peer.psn,
        sq_psn: PSN,
        av: AddressVector::to(peer.gid),
        ..QpAttr::default()
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length as u32).map(|i| (i ^ length as u32).wrapping_mul(0x9e37_79b1).to_be_bytes()[0]).collect()
}

/// Both ends.
struct Line {
    a: Qp,
    b: Qp,
    cq: Cq,
    channel: CompChannel,
    near: Mr,
    far: Mr,
}

impl Line {
    fn polled(&self) -> Outcome<Completion> {
        let done = self.cq.poll_wait(WAIT)?.ok_or("no completion in time")?;
        match done.status {
            WcStatus::Success => Ok(done),
            status => Err(format!("work request {}: {}", done.wr_id, status.doc()).into()),
        }
    }

    /// The same, after an event; arming is answered at once if it is there already.
    fn interrupted(&self) -> Outcome<Completion> {
        self.cq.request_notify(false)?;
        let event = self.channel.wait(Some(WAIT))?.ok_or("no interrupt in time")?;
        match event.cqn == self.cq.number() {
            true => self.polled(),
            false => Err(format!("an event of CQ {}", event.cqn).into()),
        }
    }

    /// From an odd place of one memory to another of the other.
    fn writes(&self, length: usize, done: fn(&Line) -> Outcome<Completion>) -> Outcome {
        let bytes = pattern(length);
        self.near.write(3, &bytes)?;
        self.far.write(0, &vec![0; MEMORY])?;
        let from = [self.near.sge(3..3 + length)?];
        self.a.post_send(&[SendWr::write(1, &from, self.far.addr() + 5, self.far.rkey()).signaled()])?;
        done(self)?;
        alone(&self.far, 5, &bytes)
    }

    fn sends(&self, length: usize) -> Outcome {
        let bytes = pattern(length);
        self.near.write(100, &bytes)?;
        self.far.write(0, &vec![0; MEMORY])?;
        let half = length / 2;
        self.b.post_recv(&[RecvWr::new(
            2,
            &[self.far.sge(7..7 + half)?, self.far.sge(7 + half..7 + length)?],
        )])?;
        self.a.post_send(&[SendWr::send(3, &[self.near.sge(100..100 + length)?]).signaled()])?;
        let mut seen = [self.interrupted()?, self.interrupted()?].map(|done| (done.wr_id, done.byte_len));
        seen.sort_unstable();
        if (seen[0], seen[1].0) != ((2, length as u32), 3) {
            return Err(format!("completions {seen:?}").into());
        }
        alone(&self.far, 7, &bytes)
    }

    fn reads(&self, length: usize) -> Outcome {
        let bytes = pattern(length);
        self.far.write(11, &bytes)?;
        self.near.write(0, &vec![0; MEMORY])?;
        let into = [self.near.sge(1..1 + length)?];
        self.a.post_send(&[SendWr::read(4, &into, self.far.addr() + 11, self.far.rkey()).signaled()])?;
        self.polled()?;
        alone(&self.near, 1, &bytes)
    }
}

/// Demands these bytes at `at`, and zeros everywhere else.
fn alone(memory: &Mr, at: usize, bytes: &[u8]) -> Outcome {
    let mut expected = vec![0; MEMORY];
    expected[at..at + bytes.len()].copy_from_slice(bytes);
    let have = memory.to_vec(0..MEMORY)?;
    match (0..MEMORY).find(|i| have[*i] != expected[*i]) {
        None => Ok(()),
        Some(i) => Err(format!("byte {i} is {:#04x} instead of {:#04x}", have[i], expected[i]).into()),
    }
}
