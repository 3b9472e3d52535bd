//! `verbena move`: a file from one process to another.
//!
//! ```text
//! write: receiver SENDs {address, R_Key} of its slots; sender WRITEs chunk into slot, SENDs {slot, length}; receiver
//!        takes the chunk and SENDs {slot} back
//! send:  receiver posts one receive per slot; sender SENDs chunks; receiver posts the slot again and SENDs {slot} back
//! ```
//!
//! In: `--file`, read at the connecting side and written at the listening side. Out: the file, and its SHA-256 at both ends. Several slots are under way
//! at once; the file is never whole in memory, so its size does not matter, and 0 bytes are a file too. A length or
//! hash that differs is an error at the receiver; both ends then fail.

use crate::connection::{Connection, PeerArgs};
use anyhow::{Context as _, bail, ensure};
use clap::{Args, ValueEnum};
use host::{Access, Completion, Mr, RecvWr, SendWr};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Write};
use std::path::PathBuf;
use std::time::Instant;

/// By which operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    /// RDMA WRITE.
    Write,
    /// SEND and receive.
    Send,
}

/// What to move and how.
#[derive(Debug, Args)]
pub struct MoveArgs {
    #[command(flatten)]
    peer: PeerArgs,
    /// The file: read by the connecting side, written by the listening side.
    #[arg(short, long)]
    file: PathBuf,
    /// Operation; both sides must say the same.
    #[arg(long, value_enum, default_value = "write")]
    op: By,
    /// Bytes of a chunk; both sides must say the same.
    #[arg(long, default_value_t = 65536, value_parser = clap::value_parser!(u32).range(64..=8 << 20))]
    chunk: u32,
    /// Chunks under way; both sides must say the same.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    slots: u32,
    /// One JSON value.
    #[arg(long)]
    json: bool,
}

/// Bytes of a control message: kind or slot, length or R_Key, address.
const NOTE: usize = 16;

/// A control message in its slot of a region.
fn note(words: [u32; 2], address: u64) -> [u8; NOTE] {
    let mut bytes = [0; NOTE];
    bytes[..4].copy_from_slice(&words[0].to_be_bytes());
    bytes[4..8].copy_from_slice(&words[1].to_be_bytes());
    bytes[8..].copy_from_slice(&address.to_be_bytes());
    bytes
}

fn read_note(region: &Mr, slot: usize) -> anyhow::Result<([u32; 2], u64)> {
    let bytes = region.to_vec(slot * NOTE..(slot + 1) * NOTE)?;
    let word = |at: usize| bytes[at..at + 4].iter().fold(0u32, |value, byte| value << 8 | u32::from(*byte));
    Ok(([word(0), word(4)], u64::from(word(8)) << 32 | u64::from(word(12))))
}

/// What is known of the file before its bytes: mode, chunk, slots and length, over TCP so that a mismatch is clear.
const HELLO: usize = 24;

fn hello(args: &MoveArgs, length: u64) -> [u8; HELLO] {
    let mut bytes = [0; HELLO];
    bytes[..4].copy_from_slice(&(args.op as u32).to_be_bytes());
    bytes[4..8].copy_from_slice(&args.chunk.to_be_bytes());
    bytes[8..12].copy_from_slice(&args.slots.to_be_bytes());
    bytes[16..].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// Work request numbers: the kind in the upper half, the slot in the lower.
const DATA: u64 = 1 << 32;
const TOLD: u64 = 2 << 32;
const HEARD: u64 = 3 << 32;

/// Runs one end.
pub fn run(args: &MoveArgs) -> anyhow::Result<()> {
    let sending = args.peer.connect.is_some();
    let open = if sending { File::open(&args.file) } else { File::create(&args.file) };
    let verb = if sending { "read" } else { "write" };
    let mut file = open.with_context(|| format!("{verb} {}", args.file.display()))?;
    let length = if sending {
        let data = file.metadata().with_context(|| format!("read {}", args.file.display()))?;
        ensure!(data.is_file(), "read {}: not a regular file", args.file.display());
        data.len()
    } else {
        0
    };
    let slots = args.slots as usize;
    let mut notes: Option<Mr> = None;
    let mut chunks: Option<Mr> = None;
    // every slot may have a chunk, a note and a receive under way
    let mut connection = args.peer.establish(4 * args.slots, Access::REMOTE_WRITE, |pd, qp| {
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let region = pd.allocate(args.chunk as usize * slots, rights)?;
        let inbox = pd.allocate(NOTE * slots, Access::LOCAL_WRITE)?;
        for slot in 0..slots {
            // the receiver of SENDs receives chunks, everybody else notes
            let place = if !sending && args.op == By::Send {
                chunk(&region, args, slot, args.chunk as usize)?
            } else {
                inbox.sge(slot * NOTE..(slot + 1) * NOTE)?
            };
            qp.post_recv(&[RecvWr::new(HEARD | slot as u64, &[place])])?;
        }
        (notes, chunks) = (Some(inbox), Some(region));
        Ok(())
    })?;
    let (Some(inbox), Some(chunks)) = (notes, chunks) else { bail!("no buffers") };
    let outbox = connection.pd.allocate(NOTE * slots, Access::empty())?;
    let start = Instant::now();
    let (length, hash) = if sending {
        connection.stream.write_all(&hello(args, length))?;
        (length, send(args, &connection, &mut file, length, &chunks, &inbox, &outbox)?)
    } else {
        let mut bytes = [0; HELLO];
        connection.stream.read_exact(&mut bytes).context("the peer ended before it told the length")?;
        let length = bytes[16..].iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
        ensure!(bytes == hello(args, length), "the peer moves with another --op, --chunk or --slots");
        (length, receive(args, &connection, &mut file, length, &chunks, &inbox, &outbox)?)
    };
    let seconds = start.elapsed().as_secs_f64();
    // both ends compare
    let digest: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
    connection.stream.write_all(&hash)?;
    let mut theirs = [0; 32];
    connection.stream.read_exact(&mut theirs).context("the peer ended before it told its hash")?;
    ensure!(theirs == hash, "the peer's file has another SHA-256");
    connection.finish()?;
    if args.json {
        let op = args.op.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned());
        let role = if sending { "sent" } else { "received" };
        let value = serde_json::json!({
            "role": role, "op": op, "bytes": length, "sha256": digest, "seconds": seconds,
        });
        println!("{value}");
    } else {
        println!("{digest}  {}", args.file.display());
        eprintln!("{length} bytes in {seconds:.3} s");
    }
    Ok(())
}

fn chunk(region: &Mr, args: &MoveArgs, slot: usize, length: usize) -> Result<host::Sge, host::Error> {
    let start = slot * args.chunk as usize;
    region.sge(start..start + length)
}

/// The kind and the slot of a completion.
fn parts(completion: &Completion) -> (u64, usize) {
    (completion.wr_id & !0xffff_ffff, completion.wr_id as u32 as usize)
}

fn send(
    args: &MoveArgs,
    connection: &Connection,
    file: &mut File,
    length: u64,
    chunks: &Mr,
    inbox: &Mr,
    outbox: &Mr,
) -> anyhow::Result<[u8; 32]> {
    let slots = args.slots as usize;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; args.chunk as usize];
    // when writing: where the receiver's slots are
    let mut remote: Option<(u64, u32)> = None;
    // a slot is free when neither our work requests nor the receiver hold it
    let mut held = vec![0u32; slots];
    let (mut left, mut next) = (length, 0);
    if args.op == By::Write && length > 0 {
        let completion = connection.completion()?;
        let (kind, slot) = parts(&completion);
        ensure!(kind == HEARD, "expected the receiver's address");
        let ([slot_count, rkey], address) = read_note(inbox, slot)?;
        ensure!(slot_count == args.slots, "the receiver has {slot_count} slots");
        remote = Some((address, rkey));
        repost(connection, inbox, slot)?;
    }
    while left > 0 || held.iter().any(|count| *count > 0) {
        while left > 0 && held[next] == 0 {
            let take = left.min(u64::from(args.chunk)) as usize;
            file.read_exact(&mut buffer[..take]).context("the file became shorter while it was read")?;
            hash.update(&buffer[..take]);
            chunks.write(next * args.chunk as usize, &buffer[..take])?;
            let sge = [chunk(chunks, args, next, take)?];
            match remote {
                Some((address, rkey)) => {
                    outbox.write(next * NOTE, &note([next as u32, take as u32], 0))?;
                    let told = [outbox.sge(next * NOTE..(next + 1) * NOTE)?];
                    let address = address + (next * args.chunk as usize) as u64;
                    connection.qp.post_send(&[
                        SendWr::write(DATA | next as u64, &sge, address, rkey),
                        SendWr::send(TOLD | next as u64, &told).signaled(),
                    ])?;
                }
                None => {
                    connection.qp.post_send(&[SendWr::send(DATA | next as u64, &sge).signaled()])?;
                }
            }
            // until it completes, and until the receiver gives the slot back: it is never not ready
            held[next] = 2;
            left -= take as u64;
            next = (next + 1) % slots;
        }
        let completion = connection.completion()?;
        match parts(&completion) {
            (HEARD, place) => {
                let ([slot, _], _) = read_note(inbox, place)?;
                let count = held.get_mut(slot as usize).filter(|count| **count > 0);
                *count.context("the receiver gave back a slot that it did not have")? -= 1;
                repost(connection, inbox, place)?;
            }
            (_, slot) => held[slot] -= 1,
        }
    }
    Ok(hash.finalize().into())
}

fn repost(connection: &Connection, inbox: &Mr, slot: usize) -> anyhow::Result<()> {
    let place = [inbox.sge(slot * NOTE..(slot + 1) * NOTE)?];
    Ok(connection.qp.post_recv(&[RecvWr::new(HEARD | slot as u64, &place)])?)
}

fn receive(
    args: &MoveArgs,
    connection: &Connection,
    file: &mut File,
    length: u64,
    chunks: &Mr,
    inbox: &Mr,
    outbox: &Mr,
) -> anyhow::Result<[u8; 32]> {
    let slots = args.slots as usize;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; args.chunk as usize];
    let mut left = length;
    // our SENDs not yet completed; a note's place is free before the slot comes round again
    let mut pending = 0u32;
    let tell = |slot: usize, words, address| -> anyhow::Result<()> {
        outbox.write(slot * NOTE, &note(words, address))?;
        let sge = [outbox.sge(slot * NOTE..(slot + 1) * NOTE)?];
        Ok(connection.qp.post_send(&[SendWr::send(TOLD | slot as u64, &sge).signaled()])?)
    };
    if args.op == By::Write && length > 0 {
        tell(0, [args.slots, chunks.rkey()], chunks.addr())?;
        pending += 1;
    }
    while left > 0 || pending > 0 {
        let completion = connection.completion()?;
        match parts(&completion) {
            (HEARD, slot) => {
                ensure!(slot < slots, "a completion of no slot");
                take(
                    args,
                    connection,
                    file,
                    &mut hash,
                    &mut buffer,
                    &mut left,
                    &completion,
                    chunks,
                    inbox,
                    &tell,
                )?;
                pending += 1;
            }
            _ => pending -= 1,
        }
    }
    file.sync_all().or_else(|error| match error.kind() {
        // pipes and character devices have nothing to sync
        std::io::ErrorKind::InvalidInput => Ok(()),
        _ => Err(error),
    })?;
    Ok(hash.finalize().into())
}

/// Takes one chunk out of its slot and gives the slot back.
#[allow(clippy::too_many_arguments)]
fn take(
    args: &MoveArgs,
    connection: &Connection,
    file: &mut File,
    hash: &mut Sha256,
    buffer: &mut [u8],
    left: &mut u64,
    completion: &Completion,
    chunks: &Mr,
    inbox: &Mr,
    tell: &dyn Fn(usize, [u32; 2], u64) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let (_, place) = parts(completion);
    let (slot, length) = match args.op {
        By::Send => (place, completion.byte_len),
        By::Write => {
            let ([slot, length], _) = read_note(inbox, place)?;
            (slot as usize, length)
        }
    };
    let sane = slot < args.slots as usize && length <= args.chunk && u64::from(length) <= *left && length > 0;
    ensure!(sane, "the sender told of {length} bytes in slot {slot}, which cannot be");
    let bytes = &mut buffer[..length as usize];
    chunks.read(slot * args.chunk as usize, bytes)?;
    hash.update(&*bytes);
    file.write_all(bytes).with_context(|| format!("write {}", args.file.display()))?;
    *left -= u64::from(length);
    match args.op {
        By::Send => {
            let sge = [chunk(chunks, args, slot, args.chunk as usize)?];
            connection.qp.post_recv(&[RecvWr::new(HEARD | slot as u64, &sge)])?;
        }
        By::Write => repost(connection, inbox, place)?,
    }
    tell(slot, [slot as u32, 0], 0)
}
