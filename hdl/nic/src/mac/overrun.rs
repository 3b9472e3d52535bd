//! What the line brings and the core does not take.
//!
//! A beat that finds no room ends its frame: the rest is discarded and, as soon as there is room, a last beat of 0
//! bytes closes (or stands for) it, one per frame lost, so that each is counted.
//!
//! Requirements: LINE

use crate::flow::FrameBeat;
use hdl::{Sig, mux, reg_init, when};

/// Bits of the number of frames lost while there is no room; more are counted as one.
const LOST: u32 = 8;

/// Hands on the beat `e` (if `valid`) where there is `room`: (a beat leaves, the beat). Nothing waits: what leaves without
/// room is lost, and told.
#[track_caller]
pub fn overrun(valid: Sig, e: &FrameBeat, room: Sig) -> (Sig, FrameBeat) {
    let discard = reg_init("discard", 1, 0);
    let lost = reg_init("lost", LOST, 0);
    let pass = valid & !discard & lost.none();
    let refuse = valid & !discard & !(lost.none() & room);
    let close = lost.any();
    when(refuse, || discard.set(!e.last)).elif(valid & e.last, || discard.set(0));
    let closed = close & room;
    when(refuse & !closed & !lost.all(), || lost.set(lost + 1));
    when(!refuse & closed, || lost.set(lost - 1));
    let none = hdl::lit(e.bytes.width(), 0);
    let frame = FrameBeat {
        data: e.data,
        last: e.last | close,
        bytes: mux(close, none, e.bytes),
        error: e.error | close,
    };
    (pass | close, frame)
}
