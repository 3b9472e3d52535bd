//! `verbena perftest`: the other end of perftest's `ib_send_bw`, `ib_write_lat` and their kin, unmodified.
//!
//! ```text
//! TCP: version (16 bytes), two sizes (4 each), path MTU (2), keys (108) of each QP, of each once more, as they stand
//! RC:  what the test does: the connecting side asks; in ib_send_lat and ib_write_lat both send in turn
//! TCP: after ib_write_bw and ib_read_bw keys and its figures (5 of 8 bytes); after all but ib_write_lat keys
//! ```
//! In all of TCP the connecting side says something and the listening one answers in kind. So the listening end needs to know
//! how long each message is, but not how many keys there are: it answers keys by keys and gives all else back, which is the same
//! version, size and MTU, and figures that nobody prints. Keys behind those are the first QP's, once or twice.
//! Out: every completion and length is checked, and that all of it came; perftest itself looks at no bytes. The connecting end
//! keeps the order of Debian 13's, 25.01.

use crate::connection::{Opened, PeerArgs};
use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use host::exchange::Endpoint;
use host::{
    Access, Completion, Context, Device, Gid, Mr, Operation, QpAttr, RecvWr, SendWr, StageCounter, WcStatus,
};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    os::fd::AsFd,
    time::{Duration, Instant},
};

/// Which test.
#[derive(Debug, Args)]
pub struct PerftestArgs {
    /// The program at the other end.
    #[arg(value_enum)]
    test: Test,
    #[command(flatten)]
    peer: PeerArgs,
    /// Bytes of a message, as the other end has them.
    #[arg(short, long, default_value_t = 65_536, value_parser = clap::value_parser!(u32).range(1..=1 << 23))]
    size: u32,
    /// Messages, as the other end has them.
    #[arg(short = 'n', long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(5..))]
    iters: u32,
    /// QPs of a bandwidth test, as the other end has them; each moves that many messages.
    #[arg(short, long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=16))]
    qps: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Test {
    #[value(name = "ib_send_bw")]
    SendBw,
    #[value(name = "ib_send_lat")]
    SendLat,
    #[value(name = "ib_write_bw")]
    WriteBw,
    #[value(name = "ib_write_lat")]
    WriteLat,
    #[value(name = "ib_read_bw")]
    ReadBw,
    #[value(name = "ib_read_lat")]
    ReadLat,
}

impl Test {
    fn is_bandwidth(self) -> bool {
        matches!(self, Test::SendBw | Test::WriteBw | Test::ReadBw)
    }

    fn receives(self) -> bool {
        matches!(self, Test::SendBw | Test::SendLat)
    }
}

/// Messages of keys and what they tell: LID, READs, QP, PSN, key, address, GID byte by byte, SRQ.
const KEYS: usize = 108;
/// A figure.
const FIGURE: usize = 8;
/// Work requests of a kind at once.
const DEPTH: u32 = 64;
/// A bandwidth test's addresses wander within so much.
const CYCLE: usize = 4096;
const RIGHTS: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE).union(Access::REMOTE_READ);
/// What the peer writes over.
const UNTOUCHED: u8 = 0x5a;
/// How a stream ends whose peer is done.
const GONE: [ErrorKind; 2] = [ErrorKind::UnexpectedEof, ErrorKind::ConnectionReset];
const SEND: u64 = 0;
const RECEIVE: u64 = 1;

/// An end as keys tell of it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Keys {
    endpoint: Endpoint,
    reads: u8,
    rkey: u32,
    addr: u64,
}

impl Keys {
    fn pack(&self) -> [u8; KEYS] {
        let Endpoint { qpn, psn, gid } = self.endpoint;
        let gid: String = gid.0.iter().map(|byte| format!("{byte:02x}:")).collect();
        let text = format!(
            "0000:{:04x}:{qpn:06x}:{psn:06x}:{:08x}:{:016x}:{gid}{:08x}:",
            self.reads, self.rkey, self.addr, 0
        );
        let mut bytes = [0; KEYS];
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Keys> {
        let text = std::str::from_utf8(bytes.split(|byte| *byte == 0).next()?).ok()?;
        let parts: Option<Vec<u64>> =
            text.trim_end_matches(':').split(':').map(|part| u64::from_str_radix(part, 16).ok()).collect();
        let parts = parts?;
        let [_, reads, qpn, psn, rkey, addr, ref gid @ .., _] = parts[..] else { return None };
        let gid: [u8; 16] = gid.iter().map(|byte| *byte as u8).collect::<Vec<_>>().try_into().ok()?;
        let endpoint = Endpoint { qpn: qpn as u32, psn: psn as u32, gid: Gid(gid) };
        Some(Keys { endpoint, reads: reads as u8, rkey: rkey as u32, addr })
    }
}

/// Bytes of the `nth` message, as far as those that have come tell: they are no more than this.
fn length(nth: usize, come: &[u8]) -> usize {
    match (nth, come) {
        (0, _) => 16,
        (1 | 2, _) => 4,
        (3, _) => 2,
        // the LID in hexadecimal digits; no size, count or rate looks like that
        (_, [lid @ .., b':', _, _, _]) if come.len() == FIGURE && lid.iter().all(u8::is_ascii_hexdigit) => {
            KEYS
        }
        (_, come) if come.len() > FIGURE => KEYS,
        _ => FIGURE,
    }
}

/// What comes over TCP, in whatever pieces.
#[derive(Default)]
struct Heard {
    nth: usize,
    come: Vec<u8>,
}

impl Heard {
    /// Takes what is there, up to the end of a message: that message, when it is whole. Never reads twice if it could wait.
    fn take(&mut self, stream: &mut impl Read) -> io::Result<Option<Vec<u8>>> {
        let begun = self.come.len();
        self.come.resize(length(self.nth, &self.come), 0);
        let read = stream.read(&mut self.come[begun..]);
        self.come.truncate(begun + *read.as_ref().unwrap_or(&0));
        if read? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        if self.come.len() < length(self.nth, &self.come) {
            return Ok(None);
        }
        self.nth += 1;
        Ok(Some(std::mem::take(&mut self.come)))
    }
}

/// This end.
struct End<'a> {
    args: &'a PerftestArgs,
    lanes: Vec<Lane<'a>>,
    /// Keys that the listening end has answered.
    told: usize,
}

/// A QP of this end.
struct Lane<'a> {
    args: &'a PerftestArgs,
    opened: Opened,
    memory: Mr,
    own: Keys,
    peer: Option<Keys>,
    /// Messages asked for, completed, posted receives, and come.
    asked: u32,
    done: u32,
    posted: u32,
    came: u32,
}

/// Runs one end.
pub fn run(args: &PerftestArgs) -> anyhow::Result<()> {
    ensure!(args.qps == 1 || args.test.is_bandwidth(), "only a bandwidth test has several QPs");
    let context = args.peer.card()?;
    let lanes = (0..args.qps).map(|nth| Lane::open(args, &context, nth)).collect::<anyhow::Result<_>>()?;
    let mut end = End { args, lanes, told: 0 };
    let before = sent(context.device())?;
    let place = args.peer.place()?;
    let stream = place.meet()?;
    if args.peer.listen.is_some() {
        end.answer(stream)?
    } else {
        end.ask(stream)?
    }
    let sent = sent(context.device())? - before;
    let reads = matches!(args.test, Test::ReadBw | Test::ReadLat);
    ensure!(
        !reads || sent >= u64::from(args.iters) * u64::from(args.qps),
        "only {sent} requests or responses of READs were sent"
    );
    let qps = if args.qps > 1 { format!("on each of {} QPs ", args.qps) } else { String::new() };
    println!("{} {qps}of {} bytes, all completions right", args.iters, args.size);
    Ok(())
}

/// Packets that the card has ever sent.
fn sent(device: &Device) -> anyhow::Result<u64> {
    let counters = device.stage_counters()?;
    let sent = counters.into_iter().find(|(row, _)| *row == StageCounter::TxPackets);
    Ok(sent.context("the card does not count its packets")?.1)
}

/// Whether a peer has written into memory that was [`UNTOUCHED`].
fn written(memory: &[u8]) -> bool {
    memory.iter().any(|byte| *byte != UNTOUCHED)
}

impl End<'_> {
    /// The listening end, until the peer is gone.
    fn answer(&mut self, mut stream: TcpStream) -> anyhow::Result<()> {
        let patience = Duration::from_secs(self.args.peer.timeout.max(1));
        let (mut heard, mut messages) = (Instant::now(), Heard::default());
        loop {
            if host::backend::readable(stream.as_fd(), Some(Duration::from_micros(200)))? {
                heard = Instant::now();
                let message = match messages.take(&mut stream) {
                    Ok(None) => continue,
                    Ok(Some(message)) => message,
                    Err(error) if messages.come.is_empty() && GONE.contains(&error.kind()) => {
                        return self.judge();
                    }
                    Err(error) => return Err(error).context("hear from the peer"),
                };
                let length = message.len();
                tracing::debug!(length, text = %String::from_utf8_lossy(&message), "heard");
                let answer = if length == KEYS {
                    let peer = Keys::parse(&message).context("the peer's keys")?;
                    self.answer_keys(peer)?.pack().to_vec()
                } else {
                    message
                };
                stream.write_all(&answer).context("answer the peer")?;
            }
            if self.turn()? {
                heard = Instant::now();
            }
            ensure!(heard.elapsed() < patience, "the peer was silent for {} s", patience.as_secs());
        }
    }

    /// What this end tells a peer that tells these keys.
    fn answer_keys(&mut self, peer: Keys) -> anyhow::Result<Keys> {
        let (nth, qps) = (self.told, self.lanes.len());
        self.told += 1;
        if nth < qps {
            self.lanes[nth].connect(peer)?;
            return Ok(self.lanes[nth].own);
        }
        // then of each once more; what comes later is the first QP's
        if nth > qps && nth < 2 * qps {
            return Ok(self.lanes[nth - qps].own);
        }
        let first = &mut self.lanes[0];
        // it stands at both ends, or will soon: ib_write_lat's listening end begins
        if self.args.test == Test::WriteLat && first.asked == 0 {
            first.send()?;
        }
        Ok(first.own)
    }

    /// The connecting end, in the order of the program that listens.
    fn ask(&mut self, mut stream: TcpStream) -> anyhow::Result<()> {
        let mut tell = |own: &[u8]| -> anyhow::Result<Vec<u8>> {
            stream.write_all(own).context("tell the peer")?;
            let mut answer = vec![0; own.len()];
            stream.read_exact(&mut answer).context("hear from the peer")?;
            tracing::debug!(length = own.len(), text = %String::from_utf8_lossy(&answer), "heard");
            Ok(answer)
        };
        let mut version = [0; 16];
        version[..4].copy_from_slice(b"6.24");
        tell(&version)?;
        tell(&(CYCLE as u32).to_be_bytes())?;
        tell(&64u32.to_be_bytes())?;
        tell(&[b'0' + self.args.peer.mtu.ilog2() as u8 - 7, 0])?;
        for lane in &mut self.lanes {
            let answer = tell(&lane.own.pack())?;
            lane.connect(Keys::parse(&answer).context("the peer's keys")?)?;
        }
        // once more for each QP, which is what the other end prints and keeps
        self.lanes.iter().try_for_each(|lane| tell(&lane.own.pack()).map(drop))?;
        let keys = self.lanes[0].own.pack();
        let reports = matches!(self.args.test, Test::WriteBw | Test::ReadBw);
        // once when they stand, once more where receives were posted, or are usual
        (0..if reports { 1 } else { 2 }).try_for_each(|_| tell(&keys).map(drop))?;
        let iters = self.args.iters;
        match self.args.test {
            // the other end begins
            Test::WriteLat => {}
            Test::SendLat | Test::ReadLat => self.lanes[0].send()?,
            _ => {
                for lane in &mut self.lanes {
                    (0..iters.min(DEPTH)).try_for_each(|_| lane.send())?;
                }
            }
        }
        let patience = Duration::from_secs(self.args.peer.timeout.max(1));
        let mut moved = Instant::now();
        let answers = if self.args.test == Test::SendLat { iters } else { 0 };
        while self.lanes.iter().any(|lane| lane.done < iters || lane.came < answers) {
            if self.turn()? {
                moved = Instant::now();
            } else {
                std::thread::sleep(Duration::from_micros(100));
            }
            ensure!(
                moved.elapsed() < patience,
                "{} of {iters} messages and no more in {} s",
                self.lanes.iter().map(|lane| lane.done).min().unwrap_or(0),
                patience.as_secs()
            );
        }
        if reports {
            tell(&keys)?;
            for figure in [u64::from(self.args.size), iters.into(), 0, 0, 0] {
                tell(&figure.to_be_bytes())?;
            }
        }
        if self.args.test != Test::WriteLat {
            tell(&keys)?;
        }
        self.judge()
    }

    /// Takes what has come; whether there was something.
    fn turn(&mut self) -> anyhow::Result<bool> {
        let mut some = false;
        for lane in &mut self.lanes {
            some |= lane.turn()?;
        }
        Ok(some)
    }

    /// Whether all has come that should.
    fn judge(&self) -> anyhow::Result<()> {
        self.lanes.iter().try_for_each(Lane::judge)
    }
}

impl Lane<'_> {
    fn open<'a>(args: &'a PerftestArgs, context: &Context, nth: u32) -> anyhow::Result<Lane<'a>> {
        let opened = args.peer.make(context, DEPTH, nth)?;
        let room = (args.size as usize).max(CYCLE);
        let memory = opened.pd.allocate(2 * room, RIGHTS)?;
        // what the peer writes to; what is sent lies behind it
        memory.write(0, &vec![UNTOUCHED; room])?;
        if args.test == Test::WriteLat {
            // the number of the last message that came
            memory.write(args.size as usize - 1, &[0])?;
        }
        let own = Keys { endpoint: opened.own, reads: 4, rkey: memory.rkey(), addr: memory.addr() };
        Ok(Lane { args, opened, memory, own, peer: None, asked: 0, done: 0, posted: 0, came: 0 })
    }

    fn room(&self) -> usize {
        (self.args.size as usize).max(CYCLE)
    }

    fn connect(&mut self, peer: Keys) -> anyhow::Result<()> {
        let attr = QpAttr { access: RIGHTS, max_rd_atomic: 4, max_dest_rd_atomic: 16, ..QpAttr::default() };
        self.args.peer.join(&self.opened, peer.endpoint, &attr)?;
        self.peer = Some(peer);
        let receives = if self.args.test.receives() { self.args.iters.min(DEPTH) } else { 0 };
        (0..receives).try_for_each(|_| self.receive())
    }

    fn receive(&mut self) -> anyhow::Result<()> {
        let sge = [self.memory.sge(0..self.args.size as usize)?];
        self.opened.qp.post_recv(&[RecvWr::new(RECEIVE, &sge)])?;
        self.posted += 1;
        Ok(())
    }

    /// Asks for the next message.
    fn send(&mut self) -> anyhow::Result<()> {
        let Keys { rkey, addr, .. } = self.peer.context("no peer yet")?;
        let (size, from) = (self.args.size as usize, self.room());
        self.asked += 1;
        let operation = match self.args.test {
            Test::SendBw | Test::SendLat => Operation::Send,
            Test::WriteBw | Test::WriteLat => Operation::Write { addr, rkey },
            Test::ReadBw | Test::ReadLat => Operation::Read { addr, rkey },
        };
        if self.args.test == Test::WriteLat {
            // the peer looks for the number in the last byte
            self.memory.write(from + size - 1, &[self.asked as u8])?;
        }
        let sges = [self.memory.sge(from..from + size)?];
        Ok(self.opened.qp.post_send(&[SendWr::new(SEND, operation, &sges).signaled()])?)
    }

    /// Takes what has come; whether there was something.
    fn turn(&mut self) -> anyhow::Result<bool> {
        let PerftestArgs { test, iters, size, ref peer, .. } = *self.args;
        let listens = peer.listen.is_some();
        let mut entries = [Completion::default(); 16];
        let count = self.opened.cq.poll(&mut entries)?;
        for found in &entries[..count] {
            if found.status != WcStatus::Success {
                bail!("message {}: {} ({})", self.done, found.status.name(), found.status.doc());
            }
            if found.wr_id == RECEIVE {
                ensure!(found.byte_len == size, "{} bytes came instead of {size}", found.byte_len);
                self.came += 1;
                if self.posted < iters {
                    self.receive()?;
                }
                // each answers the other's
                if test == Test::SendLat && self.asked < iters && (listens || self.asked == self.came) {
                    self.send()?;
                }
                continue;
            }
            self.done += 1;
            let next = test.is_bandwidth() || test == Test::ReadLat;
            if next && self.asked < iters {
                self.send()?;
            }
        }
        if test == Test::WriteLat && self.came < iters && self.peer.is_some() {
            let place = size as usize - 1;
            if self.memory.to_vec(place..place + 1)? == [(self.came + 1) as u8] {
                self.came += 1;
                // the listening end has sent one before
                if self.asked < iters {
                    self.send()?;
                }
                return Ok(true);
            }
        }
        Ok(count > 0)
    }

    /// Whether all has come that should.
    fn judge(&self) -> anyhow::Result<()> {
        let PerftestArgs { test, iters, ref peer, .. } = *self.args;
        let listens = peer.listen.is_some();
        let came = match test {
            Test::SendBw if !listens => 0,
            Test::SendBw | Test::SendLat | Test::WriteLat => iters,
            _ => 0,
        };
        ensure!(self.came >= came, "{} of {came} messages came", self.came);
        if test == Test::WriteBw && listens {
            ensure!(written(&self.memory.to_vec(0..self.args.size as usize)?), "nothing was written");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_as_long_as_perftest_reads_and_come_back() {
        let gid = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 1]);
        let endpoint = Endpoint { qpn: 0x12, psn: 0xabcdef, gid };
        let keys = Keys { endpoint, reads: 4, rkey: 0x8000_0001, addr: 0x7f00_1234_5678 };
        let text = b"0000:0004:000012:abcdef:80000001:00007f0012345678:\
            00:00:00:00:00:00:00:00:00:00:ff:ff:0a:00:00:01:00000000:\0";
        assert_eq!(keys.pack(), *text);
        assert_eq!(Keys::parse(text), Some(keys));
        assert!(Keys::parse(&text[..40]).is_none() && Keys::parse(b"").is_none());
    }

    #[test]
    fn messages_are_whole_however_tcp_cuts_them() {
        let gid = Gid([0x3a; 16]);
        let keys = Keys { endpoint: Endpoint { qpn: 1, psn: 2, gid }, reads: 4, rkey: 3, addr: 4 }.pack();
        let version = *b"6.24\0\0\0\0\0\0\0\0\0\0\0\0";
        let (size, rate) = (20_003u64.to_be_bytes(), 9876.5f64.to_be_bytes());
        let mut said: Vec<&[u8]> = vec![&version, &[0, 0, 16, 0], &[0, 0, 0, 64], b"3\0"];
        said.extend([&keys[..], &keys, &keys, &keys, &size, &size, &rate, &rate, &rate, &keys]);
        let all = said.concat();
        // none of several pieces, and all of it at once
        for piece in [1, 3, 7, 8, 9, 100, 107, 109, all.len()] {
            let (mut heard, mut messages) = (Heard::default(), Vec::new());
            for mut come in all.chunks(piece) {
                while !come.is_empty() {
                    messages.extend(heard.take(&mut come).expect("there is more"));
                }
            }
            assert!(messages == said && heard.come.is_empty(), "pieces of {piece}: {messages:?}");
            assert_eq!(heard.take(&mut &b""[..]).expect_err("the end").kind(), ErrorKind::UnexpectedEof);
        }
    }

    #[test]
    fn memory_that_nobody_wrote_to_is_told_from_one_byte_that_came() {
        assert!(!written(&[UNTOUCHED; 100]));
        assert!(written(&[UNTOUCHED, UNTOUCHED, 0]));
    }
}
