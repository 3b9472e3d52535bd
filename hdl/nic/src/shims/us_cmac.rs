//! The life of a 100 Gigabit link beside its frames: bring-up of the CMAC, and an end for a frame that a reset cuts off.
//!
//! ```text
//!   stat_rx_aligned (receive clock) ─> two flops ─> ctl_tx_enable, ctl_tx_send_rfi     (transmit clock)
//!   rx_axis of the CMAC, usr_rx_reset ─> guard ─> rx_axis of the card                  (receive clock)
//! ```
//! Until the receiver is aligned the transmitter sends remote fault, then it is enabled (bring-up of the product guide);
//! when alignment is lost it goes back, between two frames, as the CMAC does it. The guard is combinational: what comes
//! passes; when the CMAC's receiver is reset inside a frame, that frame gets one more beat, its last, marked bad, so that
//! it is dropped whole and not continued by the next. It never holds anything up.
//!
//! Requirements: LINE

use crate::config::Config;
use crate::mac::pins::Axis;
use hdl::{Domain, Module, Ports, Sig, Width, assert_always, lit, mux, reg_init, synchronise, when};

/// The shim.
#[derive(Clone, Debug)]
pub struct UsCmac(pub Config);

/// Ports of [`UsCmac`].
#[derive(Ports)]
#[ports(UsCmac)]
pub struct UsCmacIo {
    /// Transmit clock.
    #[input]
    pub tx_clock: Sig,
    /// Its reset.
    #[input]
    pub tx_reset: Sig,
    /// Receive clock.
    #[input]
    pub rx_clock: Sig,
    /// Its reset.
    #[input]
    pub rx_reset: Sig,
    /// The receiver is aligned: the link is up (receive clock, a register).
    #[output]
    pub aligned: Sig,
    /// All lanes are aligned (receive clock).
    #[input]
    pub stat_rx_aligned: Sig,
    /// The CMAC's receiver is in reset (receive clock).
    #[input]
    pub usr_rx_reset: Sig,
    /// Frames may go (transmit clock).
    #[output]
    pub ctl_tx_enable: Sig,
    /// Remote fault goes (transmit clock).
    #[output]
    pub ctl_tx_send_rfi: Sig,
    /// From the CMAC (receive clock).
    #[input(Width(c.0.data_bits()))]
    pub core_tdata: Sig,
    /// Lanes.
    #[input(Width(c.0.data_bytes))]
    pub core_tkeep: Sig,
    /// Last beat.
    #[input]
    pub core_tlast: Sig,
    /// There is a beat.
    #[input]
    pub core_tvalid: Sig,
    /// With the last: bad.
    #[input]
    pub core_tuser: Sig,
    /// To the card (receive clock).
    #[output(Width(c.0.data_bits()))]
    pub tdata: Sig,
    /// Lanes.
    #[output(Width(c.0.data_bytes))]
    pub tkeep: Sig,
    /// Last beat.
    #[output]
    pub tlast: Sig,
    /// There is a beat.
    #[output]
    pub tvalid: Sig,
    /// With the last: bad.
    #[output]
    pub tuser: Sig,
}

impl UsCmacIo {
    /// What goes to the card.
    pub fn rx(&self) -> Axis {
        let (tdata, tkeep, tlast) = (self.tdata, self.tkeep, self.tlast);
        Axis { tdata, tkeep, tlast, tvalid: self.tvalid, tuser: self.tuser }
    }
}

impl Module for UsCmac {
    type Io = UsCmacIo;
    fn name(&self) -> String {
        format!("us_cmac_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Bring-up of the CMAC, and an end for frames that its reset cuts off.".into()
    }
    fn body(&self, io: &UsCmacIo) {
        let (tx, rx) =
            (Domain::new(io.tx_clock, Some(io.tx_reset)), Domain::new(io.rx_clock, Some(io.rx_reset)));
        rx.within(|| {
            let inside = reg_init("in_frame", 1, 0);
            let cut = (io.usr_rx_reset & inside).named("cut");
            let valid = mux(io.usr_rx_reset, inside, io.core_tvalid);
            let last = cut | io.core_tlast;
            when(valid, || inside.set(!last));
            io.tdata.set(io.core_tdata);
            io.tkeep.set(mux(cut, lit(self.0.data_bytes, 1), io.core_tkeep));
            io.tlast.set(last);
            io.tvalid.set(valid);
            io.tuser.set(cut | io.core_tuser);
            assert_always("a_frame_that_is_cut_off_is_bad", !cut | (io.tvalid & io.tlast & io.tuser));
        });
        let aligned = rx.within(|| {
            let aligned = reg_init("is_aligned", 1, 0);
            aligned.set(io.stat_rx_aligned & !io.usr_rx_reset);
            io.aligned.set(aligned);
            aligned
        });
        tx.within(|| {
            let aligned = synchronise("aligned", aligned);
            io.ctl_tx_enable.set(aligned);
            io.ctl_tx_send_rfi.set(!aligned);
        });
    }
}
