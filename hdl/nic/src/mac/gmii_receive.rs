//! Frames come off a byte-wide line.
//!
//! In: bytes in the receive clock, one where `step` is high. Out: beats of frames with their FCS, lane 0 first, a beat
//! per eight bytes at most, three clocks behind the byte that completes it or ends the frame. `error` in the last beat
//! says: FCS wrong, the PHY reported an error, or shorter than 64 bytes. A frame begins behind its start frame delimiter,
//! in front of which there may be any number of preamble bytes and nothing else; what has none is no frame. There is no
//! upper limit of length here; verify has one.
//!
//! A beat that finds no `room`: see [`super::overrun`].
//!
//! Requirements: LINE

use crate::config::Config;
use crate::flow::FrameBeat;
use crate::mac::gmii_transmit::{DELIMITER, PREAMBLE};
use crate::mac::overrun::overrun;
use crate::prim::crc::RESIDUE;
use hdl::{
    Bundle, EnumSig, HwEnum, Module, Ports, Sig, cat, crc32_next, delay, delay_init, lit, mux, reg, when,
};

/// Least bytes of a frame with FCS.
const LEAST: u64 = 64;

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Part {
    /// Between frames.
    Idle,
    /// In a preamble.
    Opening,
    /// In a frame.
    Frame,
    /// In what is no frame, until it ends.
    Noise,
}

/// The stage.
#[derive(Clone, Debug)]
pub struct GmiiReceive(pub Config);

/// Ports of [`GmiiReceive`].
#[derive(Ports)]
#[ports(GmiiReceive)]
pub struct GmiiReceiveIo {
    /// The other inputs hold.
    #[input]
    pub step: Sig,
    /// A byte.
    #[input(8)]
    pub rxd: Sig,
    /// It is there.
    #[input]
    pub rx_dv: Sig,
    /// The PHY does not believe it.
    #[input]
    pub rx_er: Sig,
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

impl Module for GmiiReceive {
    type Io = GmiiReceiveIo;
    fn name(&self) -> String {
        format!("gmii_receive_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Start of frame, FCS and error check on a byte-wide line.".into()
    }
    fn body(&self, io: &GmiiReceiveIo) {
        let c = &self.0;
        // 1: the line
        let step = delay_init("step_1", io.step);
        let byte = delay("line_byte", io.rxd);
        let there = delay_init("line_there", io.rx_dv);
        let bad = delay("line_bad", io.rx_er);

        // 2: a beat is held until it is known whether it is the last
        let part = EnumSig::reg("part", Part::Idle);
        let (data, bytes) = (reg("held_data", c.data_bits()), reg("held_bytes", c.lane_bits() + 1));
        let register = reg("fcs_register", 32);
        // bytes of this frame, up to 64
        let length = reg("length", 7);
        let hurt = reg("hurt", 1);
        let inside = part.is(Part::Frame);
        let full = bytes.bit(c.lane_bits());
        let takes = (step & inside & there).named("takes");
        let ends = (step & inside & !there).named("ends");
        when(step, || {
            part.switch(|p| match p {
                Part::Frame | Part::Noise => {
                    when(!there, || part.set(Part::Idle));
                }
                Part::Idle | Part::Opening => {
                    bytes.set(0);
                    length.set(0);
                    hurt.set(0);
                    register.set(lit(32, 0xffff_ffff));
                    when(!there, || part.set(Part::Idle))
                        .elif(byte.eq(DELIMITER) & !bad, || part.set(Part::Frame))
                        .elif(byte.eq(PREAMBLE) & !bad, || part.set(Part::Opening))
                        .otherwise(|| part.set(Part::Noise));
                }
            });
        });
        let lanes: Vec<Sig> = (0..c.data_bytes)
            .rev()
            .map(|i| {
                let here = if i == 0 { full | bytes.none() } else { bytes.eq(i) };
                mux(here, byte, mux(full, lit(8, 0), data.byte(i)))
            })
            .collect();
        when(takes, || {
            data.set(cat(&lanes));
            bytes.set(mux(full, lit(bytes.width(), 1), bytes + 1));
            register.set(crc32_next(register, byte, 1));
            when(!length.bit(6), || length.set(length + 1));
            when(bad, || hurt.set(1));
        });
        // a frame of nothing leaves a byte that is none
        let wrong = register.ne(u64::from(RESIDUE)) | length.lt(LEAST) | hurt;
        let emit = FrameBeat {
            data,
            last: ends,
            bytes: mux(bytes.none(), lit(bytes.width(), 1), bytes),
            error: ends & wrong,
        };
        let e_valid = delay_init("e_valid", ends | (takes & full));
        let e = FrameBeat::regs(c, "e");
        e.assign(&emit);

        // 3: room, or one name per frame
        let (leaves, frame) = overrun(e_valid, &e, io.room);
        io.valid.set(leaves);
        io.frame.assign(&frame);
    }
}
