//! Goodput and rate of a clean wire, against what the line carries.
//!
//! A packet costs 82 bytes of the line beside its payload: preamble 8, Ethernet 14, IPv4 20, UDP 8, BTH 12, ICRC 4, FCS 4,
//! gap 12; a RETH 16, the AETH of a READ's first and last answer 4; payload is padded to words. At 100 Gb/s a byte takes 80
//! ps. The bound of a goodput is payload over that time. That of a rate is the least of the line and of a stream of 64
//! bytes per clock, in which a frame without FCS takes whole clocks; for READs, of what is asked and what is answered.

use crate::{
    Job,
    figure::Figure,
    load::{Cards, Request, Setup},
};
use contract::PathMtu;
use sim::{
    story::MEMORY,
    wire::Side::{self, A, B},
};

/// Line time of a byte in ps.
pub const BYTE: f64 = 80.0;
/// Bytes of the line that a packet costs beside payload and extension headers.
pub const OVERHEAD: usize = 82;
const RETH: usize = 16;
const AETH: usize = 4;
/// Bytes of a frame that are no part of the stream of beats: preamble, FCS, gap.
const LINE_ONLY: usize = 24;
/// The longest message.
pub const LONGEST: usize = 1 << 16;
/// Messages of the plot of goodput.
const SIZES: [usize; 6] = [64, 256, 1024, 4096, 16384, LONGEST];
/// Messages of the plot of rates.
const SMALL: [usize; 6] = [8, 64, 128, 256, 512, 1024];
/// More QPs than have their WQEs on chip, and as many as there are but for a few.
const MANY: [usize; 2] = [128, 1000];
/// The path MTUs measured.
pub const MTUS: [PathMtu; 3] = [PathMtu::Mtu4096, PathMtu::Mtu1024, PathMtu::Mtu256];

/// Most payload of such messages that the line carries, in Gb/s.
pub fn goodput_bound(length: usize, mtu: usize, read: bool) -> f64 {
    let packets = length.div_ceil(mtu);
    let extension = if read { AETH * packets.min(2) } else { RETH };
    let bytes = length.next_multiple_of(4) + packets * OVERHEAD + extension;
    (length * 8) as f64 / (bytes as f64 * BYTE) * 1000.0
}

/// Most messages of one packet, in millions per second.
pub fn rate_bound(length: usize, read: bool) -> f64 {
    let most = |wire: usize| {
        let beats = (wire - LINE_ONLY).div_ceil(64);
        (1e6 / (wire as f64 * BYTE)).min(250.0 / beats as f64)
    };
    let payload = length.next_multiple_of(4) + OVERHEAD;
    if read { most(payload + AETH).min(most(OVERHEAD + RETH)) } else { most(payload + RETH) }
}

/// Id of the goodput of messages of `length` bytes.
pub fn goodput_id(mtu: u32, length: usize) -> String {
    if length == LONGEST { format!("goodput_{mtu}") } else { format!("goodput_{mtu}_of_{length}") }
}

/// Ids of the plot of goodput: path MTU, then length and id.
pub fn goodput_series() -> Vec<(u32, Vec<(usize, String)>)> {
    let of = |mtu: u32| SIZES.map(|length| (length, goodput_id(mtu, length))).to_vec();
    MTUS.iter().map(|mtu| (mtu.bytes(), of(mtu.bytes()))).collect()
}

/// Ids of the plot of rates: operation, then length and id.
pub fn rate_series() -> Vec<(&'static str, Vec<(usize, String)>)> {
    let of = |name: &str| SMALL.map(|length| (length, format!("rate_{name}_{length}"))).to_vec();
    vec![("write", of("write")), ("read", of("read"))]
}

/// Everything measured here.
pub fn jobs() -> Vec<Job> {
    let mut jobs = Vec::new();
    for mtu in MTUS {
        let bytes = mtu.bytes();
        let id = format!("goodput_{bytes}_offset64");
        jobs.push(Job::of(&id, move |id| goodput(id, mtu, LONGEST, 64, false, &[A])));
        for length in SIZES {
            let id = goodput_id(bytes, length);
            jobs.push(Job::of(&id, move |id| goodput(id, mtu, length, 0, false, &[A])));
        }
    }
    let mtu = PathMtu::Mtu4096;
    jobs.push(Job::of("read_goodput_4096", move |id| goodput(id, mtu, LONGEST, 0, true, &[A])));
    jobs.push(Job::of("bidir_4096", move |id| goodput(id, mtu, LONGEST, 0, false, &[A, B])));
    jobs.push(Job::of("rate_write_64_1qp", |id| rate(id, 1, 64, false)));
    for qps in MANY {
        jobs.push(Job::of(&format!("rate_write_64_{qps}qp"), move |id| rate(id, qps, 64, false)));
        jobs.push(Job::of(&format!("rate_write_1024_{qps}qp"), move |id| rate(id, qps, 1024, false)));
    }
    for (name, read) in [("write", false), ("read", true)] {
        for length in SMALL {
            jobs.push(Job::of(&format!("rate_{name}_{length}"), move |id| rate(id, 16, length, read)));
        }
    }
    jobs
}

/// Goodput of one QP in the middle half of some megabytes; of two sides that post, the lower.
fn goodput(id: &str, mtu: PathMtu, length: usize, offset: usize, read: bool, from: &[Side]) -> Figure {
    let mut cards = Cards::new(id, &Setup::new(1, mtu));
    let (count, list) = ((40 * LONGEST / length).min(4800), if length == LONGEST { 4 } else { 16 });
    let places = MEMORY / 2 / length;
    cards.run(from, count, list, |_, i| Request { at: offset + i % places * length, length, read });
    let rates = from.iter().map(|side| cards.steady(if read { side.other() } else { *side }).1);
    let value = rates.fold(f64::INFINITY, f64::min) * 8.0 / 1e9;
    cards.tell_stalls(id);
    let bound = goodput_bound(length, mtu.bytes() as usize, read);
    let what = if read { "READs" } else { "WRITEs" };
    let sides = if from.len() == 2 { ", both ways at once, the lower" } else { "" };
    let offset = if offset > 0 { format!(", offset {offset}") } else { String::new() };
    let context =
        format!("{what} of {length} bytes{offset}, 1 QP, MTU {}, 1 in {list} signalled{sides}", mtu.bytes());
    Figure { id: id.into(), value, unit: "Gb/s".into(), bound, context }
}

fn rate(id: &str, qps: usize, length: usize, read: bool) -> Figure {
    let mut cards = Cards::new(id, &Setup::new(qps, PathMtu::Mtu1024));
    let count = match qps {
        1 => 4800,
        2..=64 => 480,
        _ => 48,
    };
    let place = length.next_multiple_of(64);
    let places = MEMORY / place - 1;
    cards.run(&[A], count, 16, |q, i| Request { at: (q * 977 + i) % places * place, length, read });
    let (packets, _) = cards.steady(if read { B } else { A });
    cards.tell_stalls(id);
    let (what, qps) =
        (if read { "READs" } else { "WRITEs" }, if qps == 1 { "1 QP".into() } else { format!("{qps} QPs") });
    let context = format!("{what} of {length} bytes, {qps}, MTU 1024, 1 in 16 signalled");
    Figure {
        id: id.into(),
        value: packets / 1e6,
        unit: "M/s".into(),
        bound: rate_bound(length, read),
        context,
    }
}
