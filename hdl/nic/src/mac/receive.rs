//! Frames come off the line.
//!
//! In: XGMII, 64 bits, in the receive clock, Start in lane 0 or 4. Out: beats of frames with their FCS, lane 0 first, one
//! per clock at most, five clocks behind the pins. `error` in the last beat says: FCS wrong, a control character inside
//! of the frame, no Terminate before the next Start, or shorter than 64 bytes. What has no start frame delimiter where
//! Start promises one is no frame. There is no upper limit of length here; verify has one.
//!
//! A beat that finds no `room`: see [`super::overrun`].
//!
//! Requirements: LINE

use crate::config::Config;
use crate::flow::FrameBeat;
use crate::mac::overrun::overrun;
use crate::mac::transmit::{START, TERMINATE};
use crate::prim::crc::residues;
use hdl::{
    Bundle, Module, Ports, Sig, any_of, cat, crc32_next, delay, delay_init, lit, low, mux, reg, reg_init,
    select, when,
};

/// Start frame delimiter.
const DELIMITER: u64 = 0xD5;

/// The stage.
#[derive(Clone, Debug)]
pub struct Receive(pub Config);

/// Ports of [`Receive`].
#[derive(Ports)]
#[ports(Receive)]
pub struct ReceiveIo {
    /// XGMII data, lane 0 lowest.
    #[input(64)]
    pub rxd: Sig,
    /// XGMII control.
    #[input(8)]
    pub rxc: Sig,
    /// A beat leaves; only offered again if `room`.
    #[output]
    pub valid: Sig,
    /// The beat.
    #[output(c.0.clone())]
    pub frame: FrameBeat,
    /// A beat is taken in this clock.
    #[input]
    pub room: Sig,
}

impl Module for Receive {
    type Io = ReceiveIo;
    fn name(&self) -> String {
        format!("mac_receive_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Start alignment, FCS and error check on 64-bit XGMII.".into()
    }
    fn body(&self, io: &ReceiveIo) {
        let c = &self.0;
        // 1, 2: align to the Start
        let (d0, c0) = (delay("data_0", io.rxd), delay("control_0", io.rxc));
        let (d1, c1) = (delay("data_1", d0), delay("control_1", c0));
        let start_at = |lane: u32| c1.bit(lane) & d1.byte(lane).eq(START);
        let (lower, upper) = (start_at(0), start_at(4));
        let shift_kept = reg_init("shift", 1, 0);
        let shift = mux(lower, low(), upper | shift_kept).named("shift_now");
        shift_kept.set(shift);
        let a_data = delay("a_data", mux(shift, cat(&[d0.bits(0, 32), d1.bits(32, 32)]), d1));
        let a_control = delay("a_control", mux(shift, cat(&[c0.bits(0, 4), c1.bits(4, 4)]), c1));
        let a_start = delay_init("a_start", lower | upper);

        // 3: what the column is
        let delimited = a_control.eq(1) & a_data.byte(7).eq(DELIMITER);
        let whole = a_control.none();
        let terminate: Vec<Sig> = (0..8)
            .map(|i| {
                let first =
                    if i == 0 { a_control.bit(0) } else { a_control.bit(i) & a_control.bits(0, i).none() };
                first & a_data.byte(i).eq(TERMINATE)
            })
            .collect();
        let count = (1..8).fold(lit(4, 0), |n, i| n | mux(terminate[i as usize], i, lit(4, 0)));
        let inside = reg_init("in_frame", 1, 0);
        let column = (inside & !a_start).named("column");
        let data = (column & whole).named("is_data");
        let ends = column & any_of(&terminate);
        let tail = ends & count.any();
        let broken = (inside & a_start) | (column & !whole & !any_of(&terminate));
        when(a_start, || inside.set(delimited)).elif(!whole, || inside.set(0));
        let lanes: Vec<Sig> =
            (0..8).rev().map(|i| a_data.byte(i) & (whole | count.gt(u64::from(i))).repeat(8)).collect();
        let clean = cat(&lanes);

        // one column is held until it is known whether it is the last
        let held = reg_init("held", 1, 0);
        let held_last = reg("held_last", 1);
        let held_data = reg("held_data", 64);
        let held_bytes = reg("held_bytes", 4);
        let register = reg("fcs_register", 32);
        // columns of this frame, up to 15
        let columns = reg("columns", 4);
        let store = (data | tail).named("store");
        when(a_start, || {
            register.set(lit(32, 0xffff_ffff));
            columns.set(0);
        });
        held.set(store);
        when(store, || {
            held_data.set(clean);
            held_last.set(tail);
            held_bytes.set(mux(tail, count, 8));
            register.set(crc32_next(register, clean, 8));
            when(!columns.all(), || columns.set(columns + 1));
        });
        let finishing = held & held_last;
        let empty_end = ends & !tail;
        let bytes = mux(held, held_bytes, lit(4, 1));
        let short = columns.lt(8) | (columns.eq(8) & !bytes.bit(3));
        let residue = select(held_bytes, &residues(8));
        let wrong = register.ne(residue) | short | !held;
        let emit = FrameBeat {
            data: mux(held, held_data, 0),
            last: finishing | empty_end | broken,
            bytes,
            error: mux(finishing | empty_end, wrong, broken),
        };
        let emitted = (held & store & !held_last) | finishing | empty_end | broken;
        let e_valid = delay_init("e_valid", emitted);
        let e = FrameBeat::regs(c, "e");
        e.assign(&emit);

        // 4: room, or one name per frame
        let (leaves, frame) = overrun(e_valid, &e, io.room);
        io.valid.set(leaves);
        io.frame.assign(&frame);
    }
}
