//! Frames come from the CMAC.
//!
//! In: the CMAC's receive stream, in the receive clock: frames without FCS, beats full but the last, gaps anywhere; it
//! cannot be held up. Out: the same beats two clocks later; `error` in the last beat as the CMAC says (FCS, length,
//! code). A beat that finds no `room`: see [`super::overrun`].
//!
//! Requirements: LINE

use crate::config::Config;
use crate::flow::FrameBeat;
use crate::mac::overrun::overrun;
use hdl::{Bundle, Module, Ports, Sig, any_of, assert_always, cat, delay_init, lit, mux, reg, when};

/// The stage.
#[derive(Clone, Debug)]
pub struct CmacReceive(pub Config);

/// Ports of [`CmacReceive`].
#[derive(Ports)]
#[ports(CmacReceive)]
pub struct CmacReceiveIo {
    /// `rx_axis_tdata`.
    #[input(c.0.data_bits())]
    pub tdata: Sig,
    /// `rx_axis_tkeep`.
    #[input(c.0.data_bytes)]
    pub tkeep: Sig,
    /// `rx_axis_tlast`.
    #[input]
    pub tlast: Sig,
    /// `rx_axis_tvalid`.
    #[input]
    pub tvalid: Sig,
    /// `rx_axis_tuser`.
    #[input]
    pub tuser: Sig,
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

impl Module for CmacReceive {
    type Io = CmacReceiveIo;
    fn name(&self) -> String {
        format!("cmac_receive_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "The receive stream of the CMAC.".into()
    }
    fn body(&self, io: &CmacReceiveIo) {
        let c = &self.0;
        let (bytes, count_bits) = (c.data_bytes, c.lane_bits() + 1);

        // 1: the pins
        let valid = delay_init("valid_1", io.tvalid);
        let (data, keep) = (reg("data", c.data_bits()), reg("keep", bytes));
        let (last, error) = (reg("last", 1), reg("error", 1));
        when(io.tvalid, || {
            data.set(io.tdata);
            keep.set(io.tkeep);
            last.set(io.tlast);
            error.set(io.tuser);
        });
        // what the CMAC promises
        let contiguous = keep.bit(0) & (keep.bits(1, bytes - 1) & !keep.bits(0, bytes - 1)).none();
        assert_always("the_cmac_fills_lanes_from_the_first", !valid | (contiguous & (last | keep.all())));

        // 2: how many lanes
        let ends: Vec<Sig> = (1..=bytes)
            .map(|n| {
                let more = if n < bytes { keep.bit(n) } else { hdl::low() };
                mux(keep.bit(n - 1) & !more, lit(count_bits, n.into()), lit(count_bits, 0))
            })
            .collect();
        let count = (0..count_bits)
            .rev()
            .map(|i| any_of(&ends.iter().map(|end| end.bit(i)).collect::<Vec<_>>()))
            .collect::<Vec<_>>();
        let e_valid = delay_init("e_valid", valid);
        let e = FrameBeat::regs(c, "e");
        e.assign(&FrameBeat { data, last, bytes: cat(&count), error: error & last });
        let (leaves, frame) = overrun(e_valid, &e, io.room);
        io.valid.set(leaves);
        io.frame.assign(&frame);
    }
}
