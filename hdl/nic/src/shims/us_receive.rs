//! The data of a TLP without its descriptor: the way out of the AXI streams RC and CQ of the UltraScale+ PCIe core.
//!
//! ```text
//!   beat 0    D D D a00 .. a12                       ──>   a00 .. a15
//!   beat 1    a13 .. a15 - - - - - D D D b00 .. b04        b00 .. b15          (straddle: b begins at byte 32)
//!   beat 2    b05 .. b15 - - - - -
//! ```
//! In: beats of 512 bits, in each at most the end of one TLP, one that begins at byte 0 and, with `straddle`, one that
//! begins at byte 32. Out: TLPs whose data begins in lane 0 of their first beat, the descriptor beside all beats; lanes
//! behind the end hold anything.
//!
//! Latency: 1 clock (a beat leaves when the doublewords of the next fill it, or when its TLP has ended). One beat out per
//! clock; a straddled beat is taken in one clock if all that it ends leaves in that clock, else in two: completions of 64
//! bytes take 3 clocks per two, at any length no less than the link can bring. Back-pressure: `tready` depends on `ready`;
//! nothing is lost.
//!
//! It never: looks at `tkeep` of the core (meaningless when straddled); mixes two TLPs; gives a TLP that has not begun.
//!
//! Requirements: PCIE

use crate::shims::us_send::{DATA, DWORDS};
use hdl::{
    Bundle, Module, Ports, Sig, Stream, assert_always, cat, cover, lit, low, mux, reg, reg_init, when,
};

/// Doubleword at which the second TLP of a beat begins.
const HALF: u32 = DWORDS / 2;

/// One way in.
#[derive(Clone, Debug)]
pub struct UsReceive {
    /// The core's name of the stream.
    pub name: &'static str,
    /// Doublewords of the descriptor.
    pub dwords: u32,
    /// Bits beside the first beat that stay with the TLP.
    pub beside: u32,
    /// A TLP may begin at byte 32.
    pub straddle: bool,
}

/// A beat of the core.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(UsReceive)]
pub struct CoreBeat {
    /// Descriptors and payload.
    #[shape(DATA)]
    pub tdata: Sig,
    /// A TLP begins at byte 0.
    pub begins: Sig,
    /// A TLP begins at byte 32.
    pub begins_high: Sig,
    /// Of the TLP that begins at byte 0.
    #[shape(c.beside)]
    pub beside: Sig,
    /// A TLP ends: the first that does.
    pub ends: Sig,
    /// At this doubleword.
    #[shape(4)]
    pub end: Sig,
    /// A second one ends.
    pub ends_second: Sig,
}

/// A beat on its way in.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(UsReceive)]
pub struct Incoming {
    /// The descriptor.
    #[shape(c.dwords * 32)]
    pub descriptor: Sig,
    /// What stood beside.
    #[shape(c.beside)]
    pub beside: Sig,
    /// Payload, DW aligned.
    #[shape(DATA)]
    pub data: Sig,
    /// First beat.
    pub first: Sig,
    /// Last beat.
    pub last: Sig,
}

/// Ports of [`UsReceive`].
#[derive(Ports)]
#[ports(UsReceive)]
pub struct UsReceiveIo {
    /// From the core.
    #[sink(c.clone())]
    pub core: Stream<CoreBeat>,
    /// TLPs.
    #[source(c.clone())]
    pub tlp: Stream<Incoming>,
}

impl Module for UsReceive {
    type Io = UsReceiveIo;
    fn name(&self) -> String {
        format!("us_receive_{}", self.name)
    }
    fn doc(&self) -> String {
        format!("TLPs out of the stream {} of the UltraScale+ PCIe core.", self.name)
    }
    fn body(&self, io: &UsReceiveIo) {
        let (head, room) = (self.dwords, DWORDS - self.dwords);
        let b = &io.core.data;
        let begins_high = if self.straddle { b.begins_high } else { low() };
        // the TLP under way goes on in the next beat
        let inside = reg_init("in_tlp", 1, 0);
        // the lower half of this beat is done, a TLP that begins in the upper half is left
        let half_done = reg_init("half_done", 1, 0);
        // payload that waits for the beat to be full, or for its turn if its TLP has `ended`
        let held_valid = reg_init("held_valid", 1, 0);
        let held = reg("held", room * 32);
        let ended = reg("ended", 1);
        // its TLP began at byte 32
        let high = reg("high", 1);
        let opening = reg("opening", 1);
        let descriptor = reg("descriptor", head * 32);
        let beside = reg("beside_of", self.beside);

        // the piece of the beat that is looked at
        let lower = ((inside | b.begins) & !half_done).named("lower");
        let upper = (!lower & begins_high).named("upper");
        let goes_on = (lower & inside).named("goes_on");
        let piece_ends = mux(upper & half_done, b.ends_second, b.ends).named("piece_ends");
        // how far the payload of this piece stands from where it belongs
        let shifted = mux(goes_on, high, upper).named("shifted");
        let high_rest = b.tdata.bits((HALF + head) * 32, (HALF - head) * 32).extend(room * 32);
        let rest = mux(shifted, high_rest, b.tdata.bits(head * 32, room * 32));
        let fits = (b.ends & b.end.lt(mux(high, lit(4, u64::from(HALF + head)), lit(4, u64::from(head)))))
            .named("fits");

        let leaves = held_valid & (ended | (io.core.valid & goes_on));
        io.tlp.valid.set(leaves);
        let free = (!held_valid | io.tlp.moves()).named("free");
        let takes = (io.core.valid & (lower | upper) & free).named("takes");
        // what ends leaves at once, so the one behind it finds its place free
        let both = (goes_on & fits & begins_high).named("both");
        let done = (upper | !begins_high | both).named("done");
        io.core.ready.set(!(lower | upper) | (free & done));

        let filled_high = cat(&[b.tdata.bits(0, (HALF + head) * 32), held.bits(0, (HALF - head) * 32)]);
        let filled_low = cat(&[b.tdata.bits(0, head * 32), held]);
        io.tlp.data.data.set(mux(ended, held.extend(DATA), mux(high, filled_high, filled_low)));
        io.tlp.data.descriptor.set(descriptor);
        io.tlp.data.beside.set(beside);
        io.tlp.data.first.set(opening);
        io.tlp.data.last.set(ended | fits);

        when(io.tlp.moves(), || {
            held_valid.set(0);
            opening.set(0);
        });
        let open = |at: u32| {
            descriptor.set(b.tdata.bits(at * 32, head * 32));
            beside.set(b.beside);
            opening.set(1);
            held_valid.set(1);
        };
        when(takes, || {
            held.set(rest);
            ended.set(piece_ends);
            half_done.set(!done);
            inside.set(!piece_ends);
            when(goes_on, || held_valid.set(!fits)).otherwise(|| {
                high.set(upper);
                when(upper, || open(HALF)).otherwise(|| open(0));
            });
            when(both, || {
                held.set(high_rest);
                ended.set(b.ends_second);
                high.set(1);
                inside.set(!b.ends_second);
                open(HALF);
            });
        });

        // what the core promises
        let beat = io.core.valid;
        assert_always("a_tlp_begins_only_where_none_is_under_way", !(beat & inside & b.begins));
        assert_always("a_tlp_begins_high_only_behind_an_end", !(beat & lower & begins_high) | b.ends);
        assert_always("a_tlp_ends_only_that_has_begun", !beat | !b.ends | lower | begins_high);
        cover("a_straddled_beat_in_one_clock", takes & both);
        cover("a_straddled_beat_in_two_clocks", takes & half_done);
    }
}
