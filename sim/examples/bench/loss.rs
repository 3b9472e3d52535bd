//! Goodput of one QP over a wire that loses packets, against what go-back-N can reach.
//!
//! In packet times: R is the round trip of an idle wire and card, from the beginning of a packet to the end of its ACK (its own
//! time, the wire both ways, the time to the answer), T the timeout; each packet is lost with probability p, each NAK with p. A
//! packet whose turn comes for the first time takes 1. If it is lost, the next that arrives makes the receiver send a NAK, on
//! average 1 / (1 - p) packets later, and all since is sent again: N = R + 1 / (1 - p) are lost, or T if the NAK is, too. If the
//! packet is lost once more the receiver, which has sent its NAK, is silent: T for each further loss. So a packet takes on
//! average
//!
//! ```text
//! 1 + p ((1 - p) N + p T) + p^2 T / (1 - p)
//! ```
//! and the bound is one over that, as a share of the goodput without loss. Nothing limits it but the wire, the receiver and
//! the protocol: the window is never full, and the sender begins again in no time. This one reads what it sends again from its
//! host, which alone takes 900 ns and the time of the data, 3.5 packets.

use crate::{
    Job,
    figure::Figure,
    load::{Cards, Request, Setup, Work},
    throughput::{BYTE, LONGEST, OVERHEAD, goodput_bound},
};
use contract::{PathMtu, StageCounter};
use sim::{
    story::US,
    wire::{self, Faults, Side::A},
};

/// Packets sent in the part that is measured, those sent again among them.
const PACKETS: usize = 100_000;
/// Path MTU in bytes.
const MTU: usize = 4096;
/// Code of the transport timeout, 4.096 us times 2 to the code, of each round trip: the shortest above the time from a packet to
/// its ACK, with PCIe and the cards; at most the 32.8 us in which a loss is to be found.
const TIMEOUTS: [u8; 2] = [2, 3];
/// From the end of a packet to the end of its ACK in ps: 39 clocks (`rx_to_ack_64`) and 84 bytes of the line.
const ANSWER: u64 = 39 * 4000 + 84 * 80;
/// Round trips of the wire in us.
pub const ROUND_TRIPS: [u64; 2] = [4, 10];
/// Losses in per cent, as ids have them.
pub const LOSSES: [(&str, f64); 3] = [("0p1", 0.1), ("1", 1.0), ("5", 5.0)];

/// Id of a loss and a round trip.
pub fn id(loss: &str, round_trip: u64) -> String {
    if round_trip == ROUND_TRIPS[0] { format!("loss_{loss}") } else { format!("loss_{loss}_{round_trip}us") }
}

/// Index of a round trip.
fn index(round_trip: u64) -> usize {
    usize::from(round_trip != ROUND_TRIPS[0])
}

/// The transport timeout of a round trip in ps.
fn timeout(round_trip: u64) -> u64 {
    4_096_000 << TIMEOUTS[index(round_trip)]
}

/// The share of the goodput without loss, in per cent, that go-back-N can reach.
pub fn bound(percent: f64, round_trip: u64) -> f64 {
    let (p, packet) = (percent / 100.0, (MTU + OVERHEAD) as f64 * BYTE);
    let r = 1.0 + (round_trip * US + ANSWER) as f64 / packet;
    let (n, t) = (r + 1.0 / (1.0 - p), timeout(round_trip) as f64 / packet);
    100.0 / (1.0 + p * ((1.0 - p) * n + p * t) + p * p * t / (1.0 - p))
}

/// Everything measured here, what takes longest first.
pub fn jobs() -> Vec<Job> {
    let all = ROUND_TRIPS.iter().flat_map(|rtt| LOSSES.iter().map(move |(name, loss)| (name, *loss, *rtt)));
    all.map(|(name, loss, rtt)| Job::of(&id(name, rtt), move |id| lossy(id, loss, rtt))).collect()
}

fn lossy(id: &str, percent: f64, round_trip: u64) -> Figure {
    let faults = [Faults::loss(percent / 100.0); 2];
    let wire = wire::Config { delay: round_trip * US / 2, faults, ..wire::Config::default() };
    let mut cards = Cards::new(
        id,
        &Setup { wire, timeout: TIMEOUTS[index(round_trip)], ..Setup::new(1, PathMtu::Mtu4096) },
    );
    let mut work = Work::new(&cards, A, 4);
    let request = |_, i: usize| Request { at: i % 8 * LONGEST, length: LONGEST, read: false };
    // once the beginning is over, and when enough was sent
    let mut marks = Vec::new();
    while marks.len() < 2 {
        work.post(usize::MAX, request);
        cards.pass();
        work.poll();
        if cards.sent(A) >= [PACKETS / 20, PACKETS / 20 + PACKETS][marks.len()] {
            marks.push((cards.story.now(), work.done(), cards.sent(A)));
        }
    }
    while !work.is_over() {
        cards.pass();
        work.poll();
    }
    let [(from, before, first), (to, after, last)] = marks[..] else { unreachable!("two marks") };
    let rate = ((after - before) * LONGEST * 8) as f64 / (to - from) as f64 * 1000.0;
    let value = 100.0 * rate / goodput_bound(LONGEST, MTU, false);
    let timeouts = cards.story.stage_counter(0, StageCounter::TimeoutEvents);
    cards.tell_stalls(id);
    let (sent, seed) = (last - first, sim::story::seed());
    let context = format!(
        "{percent} % lost each way, wire RTT {round_trip} us, WRITEs of 64 KiB, 1 QP, MTU {MTU}, timeout {:.1} us, \
         seed {seed}; {sent} packets sent, {timeouts} timeouts in all, its end included",
        timeout(round_trip) as f64 / US as f64
    );
    Figure { id: id.into(), value, unit: "% of lossless".into(), bound: bound(percent, round_trip), context }
}
