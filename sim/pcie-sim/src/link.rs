//! The link: what a TLP costs in time, what the root lets the card send, how the root cuts completions.
//!
//! In: TLP sizes and instants. Out: instants of arrival, and yes or no to "may I send now". Each direction is one
//! serialiser at the raw rate. Bytes on the wire are header + payload + 8 of framing: 24 beside the payload of a
//! memory write with a 4-DW header, 20 with a 3-DW one, 20 for every completion. Data-link packets (ACK, credit
//! updates) cost nothing here.

use crate::{time::Time, tlp};
use std::collections::VecDeque;

/// Flow control class of a request or completion of the card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Memory write.
    Posted,
    /// Memory read, AtomicOp.
    NonPosted,
    /// Completion. The root never runs out of credits for these.
    Completion,
}

/// Credits that the root offers to the card's requests. Zero is infinite, as in the initial advertisement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Credits {
    /// Posted headers, one per TLP.
    pub ph: u32,
    /// Posted data, one per 16 bytes.
    pub pd: u32,
    /// Non-posted headers.
    pub nph: u32,
    /// Non-posted data (AtomicOps).
    pub npd: u32,
}

impl Credits {
    /// No limit at all.
    pub const INFINITE: Credits = Credits { ph: 0, pd: 0, nph: 0, npd: 0 };
}

/// How a read is cut into completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionSplit {
    /// One completion per read completion boundary.
    OneRcb,
    /// As large as allowed: this many bytes at most (a multiple of the boundary; Max_Payload_Size holds besides).
    Largest(u16),
    /// Any legal cut, from the seed.
    Random,
}

/// Order of completions of different tags. Those of one tag are always in rising address order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionOrder {
    /// In the order of the requests.
    InOrder,
    /// Each request is delayed by a random part of the window, and its pieces drift apart, so that tags interleave.
    Shuffled(Time),
}

/// Rates, latencies and habits of link and root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Raw rate of each direction in Mb/s, after line coding. Generation 3 x8: 63,015.
    pub up_mbps: u64,
    /// The same, host to card.
    pub down_mbps: u64,
    /// Card to root.
    pub up_latency: Time,
    /// Root and memory: from the arrival of a read to its first completion.
    pub memory_latency: Time,
    /// Root to card.
    pub down_latency: Time,
    /// How completions are cut.
    pub split: CompletionSplit,
    /// Order across tags.
    pub order: CompletionOrder,
    /// Random delay, up to this, before a posted write is visible. Strong order holds regardless; a relaxed write may
    /// become visible before earlier ones.
    pub write_jitter: Time,
    /// Credits of the root.
    pub credits: Credits,
    /// From the arrival of a request to the return of its credits.
    pub credit_return: Time,
    /// Bytes that the card's core buffers ahead of the serialiser; behind that, `can_accept` says no.
    pub transmit_buffer: u64,
    /// Headers in the card's completion buffer; 0 is no limit.
    pub completion_headers: u32,
    /// 16-byte units in the card's completion buffer; 0 is no limit.
    pub completion_data: u32,
}

impl Default for LinkConfig {
    /// Generation 3 x8, 900 ns from a read to its completion, an obliging root.
    fn default() -> Self {
        LinkConfig {
            up_mbps: 63_015,
            down_mbps: 63_015,
            up_latency: Time::ns(200),
            memory_latency: Time::ns(500),
            down_latency: Time::ns(200),
            split: CompletionSplit::Largest(256),
            order: CompletionOrder::InOrder,
            write_jitter: Time::ZERO,
            credits: Credits { ph: 64, pd: 1024, nph: 64, npd: 64 },
            credit_return: Time::ns(50),
            transmit_buffer: 2048,
            completion_headers: 0,
            completion_data: 0,
        }
    }
}

/// One direction: a serialiser and a wire.
#[derive(Clone, Debug)]
pub(crate) struct Lane {
    mbps: u64,
    latency: Time,
    busy_until: Time,
}

impl Lane {
    pub(crate) fn new(mbps: u64, latency: Time) -> Lane {
        Lane { mbps: mbps.max(1), latency, busy_until: Time::ZERO }
    }

    /// Time that `bytes` occupy the serialiser, rounded up to a picosecond.
    pub(crate) fn span(&self, bytes: u64) -> Time {
        Time((bytes.saturating_mul(8_000_000)).div_ceil(self.mbps))
    }

    /// Sends `bytes` that are ready at `at`; gives the arrival of their end.
    pub(crate) fn send(&mut self, at: Time, bytes: u64) -> Time {
        self.busy_until = self.busy_until.max(at) + self.span(bytes);
        self.busy_until + self.latency
    }

    pub(crate) fn busy_until(&self) -> Time {
        self.busy_until
    }

    pub(crate) fn idle(&mut self, at: Time) {
        self.busy_until = at;
    }
}

/// Credits in use, and those on their way back.
#[derive(Clone, Debug)]
pub(crate) struct CreditMeter {
    limit: Credits,
    used: Credits,
    back: VecDeque<(Time, Kind, u32)>,
}

/// Data credits of a payload: one per 16 bytes, rounded up.
pub(crate) fn data_credits(bytes: usize) -> u32 {
    bytes.div_ceil(16) as u32
}

impl CreditMeter {
    pub(crate) fn new(limit: Credits) -> CreditMeter {
        CreditMeter { limit, used: Credits::INFINITE, back: VecDeque::new() }
    }

    pub(crate) fn settle(&mut self, now: Time) {
        while let Some(&(at, kind, data)) = self.back.front() {
            if at > now {
                break;
            }
            self.back.pop_front();
            let (headers, units) = match kind {
                Kind::Posted => (&mut self.used.ph, &mut self.used.pd),
                _ => (&mut self.used.nph, &mut self.used.npd),
            };
            *headers = headers.saturating_sub(1);
            *units = units.saturating_sub(data);
        }
    }

    pub(crate) fn fits(&self, kind: Kind, bytes: usize) -> bool {
        let room = |limit: u32, used: u32, need: u32| limit == 0 || used + need <= limit;
        let data = data_credits(bytes);
        match kind {
            Kind::Posted => room(self.limit.ph, self.used.ph, 1) && room(self.limit.pd, self.used.pd, data),
            Kind::NonPosted => {
                room(self.limit.nph, self.used.nph, 1) && room(self.limit.npd, self.used.npd, data)
            }
            Kind::Completion => true,
        }
    }

    pub(crate) fn take(&mut self, kind: Kind, bytes: usize, back_at: Time) {
        let data = data_credits(bytes);
        match kind {
            Kind::Posted => (self.used.ph, self.used.pd) = (self.used.ph + 1, self.used.pd + data),
            Kind::NonPosted => (self.used.nph, self.used.npd) = (self.used.nph + 1, self.used.npd + data),
            Kind::Completion => return,
        }
        self.back.push_back((back_at, kind, data));
    }

    pub(crate) fn next_back(&self) -> Option<Time> {
        self.back.front().map(|&(at, _, _)| at)
    }

    /// What is free now; an infinite credit shows as `u32::MAX`.
    pub(crate) fn free(&self) -> Credits {
        let free = |limit: u32, used: u32| if limit == 0 { u32::MAX } else { limit.saturating_sub(used) };
        Credits {
            ph: free(self.limit.ph, self.used.ph),
            pd: free(self.limit.pd, self.used.pd),
            nph: free(self.limit.nph, self.used.nph),
            npd: free(self.limit.npd, self.used.npd),
        }
    }
}

/// Most headers and 16-byte units that the completions of `bytes` bytes at byte address `at` can take, when the root
/// cuts at every boundary of `rcb` bytes. This is what a card must have free before it sends the read.
pub fn worst_case(at: u64, bytes: u32, rcb: u16) -> (u32, u32) {
    if bytes == 0 {
        return (0, 0);
    }
    // Boundaries divide a page, and the sum stays small.
    let at = at % 4096;
    let rcb = rcb.max(4) as u64;
    let end = at + bytes as u64;
    let dword_end = end.next_multiple_of(4);
    let boundary = (at / rcb + 1) * rcb;
    if end <= boundary {
        return (1, data_credits((dword_end - (at & !3)) as usize));
    }
    let whole = (end - boundary) / rcb;
    let tail = dword_end - (boundary + whole * rcb);
    let headers = 1 + whole + (tail > 0) as u64;
    let units = data_credits((boundary - (at & !3)) as usize) as u64
        + whole * rcb.div_ceil(16)
        + data_credits(tail as usize) as u64;
    (headers as u32, units as u32)
}

/// Bytes of the next completion of `left` bytes at `at`, by the split rule: up to the end, or to a boundary.
pub(crate) fn next_piece(
    at: u64,
    left: u32,
    rcb: u16,
    max_payload: u16,
    split: CompletionSplit,
    mut random: impl FnMut(u32) -> u32,
) -> u32 {
    let rcb = rcb as u64;
    let first = rcb - at % rcb;
    if left as u64 <= first {
        return left;
    }
    // Payload is counted from the aligned DW, so it is at most what the boundary before `at` leaves.
    let room = |limit: u64| first + (limit.max(rcb) / rcb - 1) * rcb;
    let most = room(max_payload as u64);
    let piece = match split {
        CompletionSplit::OneRcb => first,
        CompletionSplit::Largest(bytes) => {
            // The chunk is an aligned block, as memory controllers cut them.
            let chunk = (bytes as u64).clamp(rcb, (max_payload as u64).max(rcb)) / rcb * rcb;
            chunk - at % chunk
        }
        CompletionSplit::Random => first + random((most / rcb) as u32 + 1) as u64 * rcb,
    };
    piece.min(most).min(left as u64) as u32
}

/// First Byte Count and first byte address of a read, for which [`worst_case`] is asked.
pub(crate) fn owed(read: &tlp::MemRead) -> (u64, u32) {
    (tlp::first_byte(read.address, read.first_be), read.byte_count() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pieces(mut at: u64, mut left: u32, rcb: u16, mps: u16, split: CompletionSplit) -> Vec<(u64, u32)> {
        let mut out = vec![];
        let mut state = at as u32 ^ left;
        while left > 0 {
            let n = next_piece(at, left, rcb, mps, split, |n| {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                (state >> 8) % n.max(1)
            });
            out.push((at, n));
            at += n as u64;
            left -= n;
        }
        out
    }

    #[test]
    fn a_read_that_crosses_no_boundary_gets_one_completion() {
        for split in [CompletionSplit::OneRcb, CompletionSplit::Largest(256), CompletionSplit::Random] {
            assert_eq!(pieces(0x1004, 60, 64, 128, split), [(0x1004, 60)]);
            assert_eq!(pieces(0x1000, 64, 64, 128, split), [(0x1000, 64)]);
            assert_eq!(pieces(0x1000, 128, 128, 128, split), [(0x1000, 128)]);
        }
        assert_eq!(pieces(0x1004, 61, 64, 128, CompletionSplit::OneRcb), [(0x1004, 60), (0x1040, 1)]);
    }

    #[test]
    fn the_first_piece_ends_on_a_boundary_and_later_ones_start_there() {
        let one = CompletionSplit::OneRcb;
        assert_eq!(pieces(0x1003, 128, 64, 256, one), [(0x1003, 61), (0x1040, 64), (0x1080, 3)]);
        assert_eq!(pieces(0x1003, 128, 128, 256, one), [(0x1003, 125), (0x1080, 3)]);
        let large = CompletionSplit::Largest(256);
        assert_eq!(pieces(0x10c0, 512, 64, 256, large), [(0x10c0, 64), (0x1100, 256), (0x1200, 192)]);
    }

    proptest! {
        #[test]
        fn every_cut_obeys_the_split_rule_and_the_worst_case_bounds_it(
            at in 0u64..0x2000, len in 1u32..4096, rcb in prop::sample::select(vec![64u16, 128]),
            mps in prop::sample::select(vec![128u16, 256, 512]), kind in 0usize..5
        ) {
            let split = [CompletionSplit::OneRcb, CompletionSplit::Largest(64), CompletionSplit::Largest(128),
                CompletionSplit::Largest(4096), CompletionSplit::Random][kind];
            let cut = pieces(at, len, rcb, mps, split);
            let (mut headers, mut units) = (0, 0);
            for (i, &(a, n)) in cut.iter().enumerate() {
                let payload = (a + n as u64).next_multiple_of(4) - (a & !3);
                prop_assert!(payload <= mps as u64, "payload {payload} of {mps}");
                if i + 1 < cut.len() { prop_assert_eq!((a + n as u64) % rcb as u64, 0); }
                headers += 1;
                units += payload.div_ceil(16) as u32;
            }
            let worst = worst_case(at, len, rcb);
            prop_assert!(headers <= worst.0 && units <= worst.1);
            if kind == 0 { prop_assert_eq!((headers, units), worst); }
        }
    }

    #[test]
    fn credits_are_one_header_per_tlp_and_one_data_per_16_bytes() {
        let mut meter = CreditMeter::new(Credits { ph: 2, pd: 5, nph: 1, npd: 0 });
        assert!(meter.fits(Kind::Posted, 80) && !meter.fits(Kind::Posted, 81));
        meter.take(Kind::Posted, 65, Time(10));
        assert!(!meter.fits(Kind::Posted, 1));
        assert!(meter.fits(Kind::Posted, 0));
        meter.take(Kind::NonPosted, 0, Time(20));
        assert!(!meter.fits(Kind::NonPosted, 0));
        meter.settle(Time(9));
        assert!(!meter.fits(Kind::Posted, 1));
        meter.settle(Time(10));
        assert!(meter.fits(Kind::Posted, 80) && !meter.fits(Kind::NonPosted, 0));
        meter.settle(Time(20));
        assert!(meter.fits(Kind::NonPosted, 4096));
    }

    #[test]
    fn a_lane_at_64_gigabit_sends_a_byte_in_125_picoseconds() {
        let mut lane = Lane::new(64_000, Time::ns(200));
        assert_eq!(lane.send(Time::ns(1), 280), Time(1_000 + 35_000 + 200_000));
        assert_eq!(lane.send(Time::ns(1), 8), Time(1_000 + 36_000 + 200_000), "behind the first");
    }
}
