//! Frames go to the CMAC.
//!
//! ```text
//! 1 clean lanes, padding, tkeep   2 the pins
//! ```
//! In: frames without FCS, in the transmit clock; `whole` says that all of the next one is there, so that it cannot run
//! dry. Out: the CMAC's transmit stream: a beat per clock while it is taken, no gap inside of a frame, a frame shorter
//! than 60 bytes padded to 60 by zeros, never an error. Preamble, FCS and gap are the CMAC's. From `whole` to the first
//! beat on the pins: 1 clock. Frames follow each other without a gap.
//!
//! Requirements: LINE

use crate::config::Config;
use crate::flow::FrameBeat;
use crate::mac::pins::Axis;
use hdl::{
    Module, Ports, Sig, Stream, assert_always, cat, delay, delay_init, high, lit, mux, reg, reg_init, when,
};

/// Least bytes of a frame without FCS.
const LEAST: u32 = 60;

/// The stage.
#[derive(Clone, Debug)]
pub struct CmacTransmit(pub Config);

/// Ports of [`CmacTransmit`].
#[derive(Ports)]
#[ports(CmacTransmit)]
pub struct CmacTransmitIo {
    /// Frames without FCS.
    #[sink(c.0.clone())]
    pub frame: Stream<FrameBeat>,
    /// All of the next frame is there.
    #[input]
    pub whole: Sig,
    /// Pulse: a frame starts; `whole` speaks of the one behind it from the next clock on.
    #[output]
    pub started: Sig,
    /// Pulse: the CMAC has all of a frame.
    #[output]
    pub left: Sig,
    /// `tx_axis_tdata`.
    #[output(c.0.data_bits())]
    pub tdata: Sig,
    /// `tx_axis_tkeep`.
    #[output(c.0.data_bytes)]
    pub tkeep: Sig,
    /// `tx_axis_tlast`.
    #[output]
    pub tlast: Sig,
    /// `tx_axis_tvalid`.
    #[output]
    pub tvalid: Sig,
    /// `tx_axis_tready`.
    #[input]
    pub tready: Sig,
}

impl CmacTransmitIo {
    /// The pins of the stream; `tuser` is never set.
    pub fn pins(&self) -> Axis {
        let (tdata, tkeep, tlast, tvalid) = (self.tdata, self.tkeep, self.tlast, self.tvalid);
        Axis { tdata, tkeep, tlast, tvalid, tuser: hdl::low() }
    }
}

impl Module for CmacTransmit {
    type Io = CmacTransmitIo;
    fn name(&self) -> String {
        format!("cmac_transmit_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Padding and the transmit stream of the CMAC.".into()
    }
    fn body(&self, io: &CmacTransmitIo) {
        let bytes = self.0.data_bytes;
        let f = io.frame.data;

        // 1
        let inside = reg_init("in_frame", 1, 0);
        let valid = reg_init("valid", 1, 0);
        let free = !valid | io.tready;
        let takes = (free & (inside | io.whole)).named("takes");
        io.frame.ready.set(takes);
        assert_always("a_frame_never_runs_dry", io.frame.valid | !takes);
        io.started.set(takes & !inside);
        let given = |i: u32| if i == 0 { high() } else { !f.last | f.bytes.gt(u64::from(i)) };
        let lanes: Vec<Sig> = (0..bytes).rev().map(|i| f.data.byte(i) & given(i).repeat(8)).collect();
        // a short frame is one beat
        let padded = |i: u32| if i < LEAST { given(i) | !inside } else { given(i) };
        let keep: Vec<Sig> = (0..bytes).rev().map(padded).collect();
        let (tdata, tkeep, tlast) = (reg("data", bytes * 8), reg("keep", bytes), reg("last", 1));
        when(takes, || {
            inside.set(!f.last);
            tdata.set(cat(&lanes));
            tkeep.set(cat(&keep));
            tlast.set(f.last);
        });
        when(free, || valid.set(takes));

        // 2
        io.tdata.set(tdata);
        io.tkeep.set(tkeep);
        io.tlast.set(tlast);
        io.tvalid.set(valid);
        let moves = (valid & io.tready).named("moves");
        io.left.set(moves & tlast);
        let open = reg_init("open", 1, 0);
        when(moves, || open.set(!tlast));
        assert_always("no_gap_inside_a_frame", valid | !open);
        let least = mux(open, lit(LEAST, 1), lit(LEAST, (1 << LEAST) - 1));
        assert_always("no_frame_is_shorter_than_60_bytes", !valid | (tkeep.bits(0, LEAST) & least).eq(least));
        assert_always("all_lanes_but_in_the_last_beat", !valid | tlast | tkeep.all());
        let shown = cat(&[tlast, tkeep]);
        let (waits, was) = (delay_init("waits", valid & !io.tready), delay("was", shown));
        assert_always("what_is_offered_stays", !waits | (valid & was.eq(shown)));
    }
}
