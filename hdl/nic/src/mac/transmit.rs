//! Frames go onto the line.
//!
//! ```text
//! 1 sequence: preamble, data, padding, gap   2 FCS register   3 append FCS and Terminate   4 start lane
//! ```
//! In: frames without FCS, in the transmit clock; `whole` says that all of the next one is there, so that it cannot run
//! dry. Out: XGMII, 64 bits: Start in lane 0 or 4, preamble, frame padded to 60 bytes, FCS, Terminate, idle. The gap
//! from Terminate to the next Start is 9 to 15 bytes, and 12 on average over frames that wait (deficit idle count,
//! IEEE 802.3 46.3.1.4). From `whole` to the Start on the pins: 4 clocks.
//!
//! Requirements: LINE

use crate::config::Config;
use crate::flow::FrameBeat;
use crate::prim::crc::unwind;
use hdl::{
    EnumSig, HwEnum, Module, Ports, Sig, Stream, cat, crc32_next, delay, delay_init, lit, mux, reg, reg_init,
    select, when,
};

/// XGMII idle, start, terminate and error characters.
pub const IDLE: u64 = 0x07;
/// Start.
pub const START: u64 = 0xFB;
/// Terminate.
pub const TERMINATE: u64 = 0xFD;
/// Start, six bytes of preamble, start frame delimiter.
const PREAMBLE: u64 = 0xD555_5555_5555_55FB;
/// Least bytes before the FCS: seven beats and four bytes.
const LEAST_BEATS: u64 = 7;
const LEAST_REST: u64 = 4;

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    Gap,
    Data,
    Pad,
}

/// The stage.
#[derive(Clone, Debug)]
pub struct Transmit(pub Config);

/// Ports of [`Transmit`].
#[derive(Ports)]
#[ports(Transmit)]
pub struct TransmitIo {
    /// Frames without FCS.
    #[sink(c.0.clone())]
    pub frame: Stream<FrameBeat>,
    /// All of the next frame is there.
    #[input]
    pub whole: Sig,
    /// Pulse: a frame starts; `whole` speaks of the one behind it from the next clock on.
    #[output]
    pub started: Sig,
    /// Pulse: a frame has left; its Terminate is behind the pins.
    #[output]
    pub left: Sig,
    /// XGMII data, lane 0 lowest.
    #[output(64)]
    pub txd: Sig,
    /// XGMII control.
    #[output(8)]
    pub txc: Sig,
}

impl Module for Transmit {
    type Io = TransmitIo;
    fn name(&self) -> String {
        format!("mac_transmit_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Preamble, padding, FCS and inter-packet gap on 64-bit XGMII.".into()
    }
    fn body(&self, io: &TransmitIo) {
        // 1: one slot per clock
        let part = EnumSig::reg("part", Part::Gap);
        let wait = reg_init("gap_left", 2, 0);
        // the next Start stands in lane 4
        let upper = reg_init("upper", 1, 0);
        let deficit = reg_init("deficit", 2, 0);
        // slots of this frame so far, up to 8
        let slots = reg("slots", 4);
        let f = io.frame.data;
        let lanes: Vec<Sig> =
            (0..8).rev().map(|i| f.data.byte(i) & (!f.last | f.bytes.gt(u64::from(i))).repeat(8)).collect();
        let clean = cat(&lanes);
        let start = part.is(Part::Gap) & wait.none() & io.whole;
        io.started.set(start);
        io.frame.ready.set(part.is(Part::Data));
        hdl::assert_always("a_frame_never_runs_dry", io.frame.valid | !part.is(Part::Data));
        let data = mux(part.is(Part::Data), clean, lit(64, 0)).named("slot_data");
        let ends = part.is(Part::Pad) | f.last;
        let at_least = slots.eq(LEAST_BEATS);
        let short = slots.lt(LEAST_BEATS);
        let last = (!part.is(Part::Gap) & ends & !short).named("slot_last");
        let given = mux(part.is(Part::Pad), lit(4, 0), f.bytes);
        let padded = mux(at_least & given.lt(LEAST_REST), lit(4, LEAST_REST), given);
        let bytes = mux(last, padded, lit(4, 8)).named("slot_bytes");
        // words of four bytes from the last slot to the next Start. The frame's rest beyond a whole word, `bytes % 4`,
        // is what a gap of two idle words lacks of 12: owed until the debt is a word, then paid by one idle word more
        let debt = deficit.extend(3) + bytes.bits(0, 2).extend(3);
        // bytes and FCS: Terminate in the upper half of its column?
        let terminate_upper = !bytes.bit(2);
        // FCS or Terminate spill into one more column
        let spill = bytes.bit(2) | bytes.bit(3);
        let words = lit(3, 3) + upper.extend(3) + terminate_upper.extend(3) + debt.bit(2).extend(3);
        part.switch(|p| match p {
            Part::Gap => {
                slots.set(0);
                when(wait.any(), || wait.set(wait - 1)).elif(io.whole, || part.set(Part::Data)).otherwise(
                    || {
                        // a frame that comes later starts in lane 0
                        upper.set(0);
                    },
                );
            }
            Part::Data | Part::Pad => {
                when(!slots.bit(3), || slots.set(slots + 1));
                when(ends & short, || part.set(Part::Pad));
                when(last, || {
                    part.set(Part::Gap);
                    wait.set(words.bits(1, 2) - 1 + spill.extend(2));
                    upper.set(words.bit(0));
                    deficit.set(debt.bits(0, 2));
                });
            }
        });
        let p_start = delay_init("p_start", start);
        let p_upper = delay("p_upper", upper);
        let p_valid = delay_init("p_valid", !part.is(Part::Gap));
        let p_last = delay("p_last", last);
        let p_bytes = delay("p_bytes", bytes);
        let p_data = delay("p_data", data);

        // four stages to the pins, a column that FCS or Terminate spill into, half a column for a Start in lane 4
        io.left.set((1..=6).fold(last, |s, i| delay_init(&format!("left_{i}"), s)));

        // 2: whole columns into the register; the zeros behind the end are stepped back over in 3
        let register = reg("fcs_register", 32);
        when(p_start, || register.set(lit(32, 0xffff_ffff)))
            .elif(p_valid, || register.set(crc32_next(register, p_data, 8)));
        let q_start = delay_init("q_start", p_start);
        let q_upper = delay("q_upper", p_upper);
        let q_valid = delay_init("q_valid", p_valid);
        let q_last = delay_init("q_last", p_last & p_valid);
        let q_bytes = delay("q_bytes", p_bytes);
        let q_data = delay("q_data", p_data);

        // 3: columns as if every frame started in lane 0
        let idle = |n: u32| -> Vec<Sig> { (0..n).map(|_| lit(8, IDLE)).collect() };
        // first byte first
        let column = |bytes: Vec<Sig>| cat(&bytes.into_iter().rev().collect::<Vec<_>>());
        let ends: Vec<(Sig, Sig)> = (1..=8u32)
            .map(|b| {
                let fcs = !unwind(register, 8 - b);
                let mut all: Vec<Sig> = (0..b).map(|i| q_data.byte(i)).collect();
                all.extend((0..4).map(|i| fcs.byte(i)));
                all.push(lit(8, TERMINATE));
                all.extend(idle(16 - b - 5));
                let control = 0xffff_u64 << (b + 4) & 0xffff;
                (column(all), lit(16, control))
            })
            .collect();
        let which = q_bytes - 1;
        let end_data = select(which, &ends.iter().map(|e| e.0).collect::<Vec<_>>());
        let end_control = select(which, &ends.iter().map(|e| e.1).collect::<Vec<_>>());
        let all_idle = column(idle(8));
        let rest_data = reg("rest_data", 64);
        let rest_control = reg_init("rest_control", 8, 0xff);
        rest_data.set(mux(q_last, end_data.bits(64, 64), all_idle));
        rest_control.set(mux(q_last, end_control.bits(8, 8), lit(8, 0xff)));
        let body = mux(q_last, end_data.bits(0, 64), q_data);
        let body_control = mux(q_last, end_control.bits(0, 8), lit(8, 0));
        let v_data = delay("v_data", mux(q_start, lit(64, PREAMBLE), mux(q_valid, body, rest_data)));
        let v_control = reg_init("v_control", 8, 0xff);
        v_control.set(mux(q_start, lit(8, 1), mux(q_valid, body_control, rest_control)));
        let v_start = delay_init("v_start", q_start);
        let v_upper = delay("v_upper", q_upper);

        // 4: by half a column later for a Start in lane 4; both halves are idle where the shift changes
        let shift_kept = reg_init("shift", 1, 0);
        let shift = mux(v_start, v_upper, shift_kept).named("shift_now");
        shift_kept.set(shift);
        let high_data = delay("high_data", v_data.bits(32, 32));
        let high_control = reg_init("high_control", 4, 0xf);
        high_control.set(v_control.bits(4, 4));
        let txd = delay("txd_register", mux(shift, cat(&[v_data.bits(0, 32), high_data]), v_data));
        let txc = reg_init("txc_register", 8, 0xff);
        txc.set(mux(shift, cat(&[v_control.bits(0, 4), high_control]), v_control));
        // out of reset the pins idle at once
        let awake = reg_init("awake", 1, 0);
        awake.set(1);
        io.txd.set(mux(awake, txd, all_idle));
        io.txc.set(txc);
    }
}
