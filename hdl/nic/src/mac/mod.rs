//! The line: 10 Gigabit Ethernet over 64-bit XGMII, Gigabit and slower as bytes (GMII), or the hard 100 Gigabit MAC of
//! UltraScale+ (CMAC) at 512 bit.
//!
//! ```text
//!   core clock                                                      transmit clock
//! transmit ---> FIFO of whole frames ---- count of whole frames ---> transmitter ---> XGMII, bytes, or tx_axis of the CMAC
//!                                                                   receive clock
//! receive <---- FIFO <--------------------------------------------- receiver <------- XGMII, bytes, or rx_axis of the CMAC
//! ```
//! `transmit` takes frames without FCS and back-pressures; a frame starts on the line only when all of it is in the
//! FIFO, so it never runs dry whatever the core does (store and forward: 4 KiB are 512 beats of core time at 64 bit, 64 at
//! 512). `receive` gives frames with an `error` flag, without FCS from the CMAC and with it from the others; when the core does not
//! take them, whole frames are lost and each is reported by a last beat of 0 bytes (see [`overrun`]). All three
//! resets overlap at power-up; none may come alone.

pub mod cmac_receive;
pub mod cmac_transmit;
pub mod gmii_receive;
pub mod gmii_transmit;
pub mod mdio;
pub mod overrun;
pub mod pins;
pub mod receive;
pub mod rgmii;
pub mod rgmii_mac;
pub mod transmit;

use crate::config::{Config, Line};
use crate::flow::FrameBeat;
use crate::prim::async_fifo::{AsyncFifo, binary, gray};
use hdl::{Bundle, Domain, Module, Ports, Sig, Stream, index_width, instance, reg_init, synchronise, when};
use pins::{Axis, LineIn, LineOut};

/// Bytes of the transmit FIFO: more than the longest frame (9216 and headers).
const TRANSMIT_BYTES: u32 = 16384;
/// Beats of the receive FIFO: enough for the crossing; the core takes a beat per clock.
const RECEIVE_BEATS: u32 = 32;

/// Bits of the number of beats that wait for the line.
pub fn waiting_bits(data_bytes: u32) -> u32 {
    index_width(TRANSMIT_BYTES / data_bytes) + 1
}

/// The MAC.
#[derive(Clone, Debug)]
pub struct Mac(pub Config);

/// Ports of [`Mac`].
#[derive(Ports)]
#[ports(Mac)]
pub struct MacIo {
    /// Clock of the transmitter: 156.25 MHz of XGMII, 125 MHz of GMII, 322.27 MHz of the CMAC.
    #[input]
    pub tx_clock: Sig,
    /// Its reset.
    #[input]
    pub tx_reset: Sig,
    /// Clock of the receiver, likewise.
    #[input]
    pub rx_clock: Sig,
    /// Its reset.
    #[input]
    pub rx_reset: Sig,
    /// Frames to send, without FCS and padding, at most 16 KiB each (core clock).
    #[sink(c.0.clone())]
    pub transmit: Stream<FrameBeat>,
    /// Frames received (core clock).
    #[source(c.0.clone())]
    pub receive: Stream<FrameBeat>,
    /// Beats that entered `transmit` and wait for the line (core clock, some clocks late).
    #[output(waiting_bits(c.0.data_bytes))]
    pub waiting: Sig,
    /// Every frame that entered `transmit` has left the pins (core clock, some clocks late).
    #[output]
    pub idle: Sig,
    /// Pins toward the line (transmit clock).
    #[output(c.0.clone())]
    pub out: LineOut,
    /// Pins from the line (receive clock, but for `tready`).
    #[input(c.0.clone())]
    pub line: LineIn,
}

impl Module for Mac {
    type Io = MacIo;
    fn name(&self) -> String {
        format!("mac_{}", self.0.name)
    }
    fn doc(&self) -> String {
        let kind = match self.0.line() {
            Line::Xgmii => "10 Gigabit, 64-bit XGMII",
            Line::Gmii => "Gigabit and slower, bytes",
            Line::Cmac => "100 Gigabit, the CMAC",
        };
        format!("Ethernet line ({kind}), with the crossings to the core clock.")
    }
    fn body(&self, io: &MacIo) {
        let c = &self.0;
        let width = FrameBeat::total_width(c);
        let core = Domain::implicit();
        let tx = Domain::new(io.tx_clock, Some(io.tx_reset));
        let rx = Domain::new(io.rx_clock, Some(io.rx_reset));

        let fifo = instance("transmit_fifo", &AsyncFifo { depth: TRANSMIT_BYTES / c.data_bytes, width });
        fifo.write_clock.set(core.clock());
        fifo.write_reset.set(core.reset());
        fifo.read_clock.set(io.tx_clock);
        fifo.read_reset.set(io.tx_reset);
        fifo.input.valid.set(io.transmit.valid);
        fifo.input.data.set(io.transmit.data.to_bits());
        io.transmit.ready.set(fifo.input.ready);
        io.waiting.set(fifo.level);
        // frames may be as many as beats
        let count = index_width(TRANSMIT_BYTES / c.data_bytes) + 1;
        let entered = reg_init("frames_entered", count, 0);
        let entered_gray = reg_init("frames_entered_gray", count, 0);
        when(io.transmit.moves() & io.transmit.data.last, || {
            entered.set(entered + 1);
            entered_gray.set(gray(entered + 1));
        });
        let left_gray = tx.within(|| reg_init("frames_left_gray", count, 0));
        let left_seen = binary(synchronise("frames_left_seen", left_gray));
        io.idle.set(entered.eq(left_seen) & !io.transmit.valid);
        let transmit = tx.within(|| {
            let seen = synchronise("frames_seen", entered_gray);
            // two clocks later than the FIFO's own pointer, so that the last beat is in sight when its frame counts
            let seen = hdl::delay_init("frames_seen_1", binary(seen));
            let seen = hdl::delay_init("frames_seen_2", seen);
            let started = reg_init("frames_started", count, 0);
            let transmit = Transmitter::new(c, io);
            transmit.whole.set(seen.ne(started));
            when(transmit.started, || started.set(started + 1));
            let left = reg_init("frames_left", count, 0);
            when(transmit.left, || {
                left.set(left + 1);
                left_gray.set(gray(left + 1));
            });
            transmit
        });
        transmit.frame.valid.set(fifo.output.valid);
        transmit.frame.data.assign(&FrameBeat::from_bits(c, fifo.output.data));
        fifo.output.ready.set(transmit.frame.ready);

        let receive = rx.within(|| Receiver::new(c, io));
        let fifo = instance("receive_fifo", &AsyncFifo { depth: RECEIVE_BEATS, width });
        fifo.write_clock.set(io.rx_clock);
        fifo.write_reset.set(io.rx_reset);
        fifo.read_clock.set(core.clock());
        fifo.read_reset.set(core.reset());
        fifo.input.valid.set(receive.valid);
        fifo.input.data.set(receive.frame.to_bits());
        receive.room.set(fifo.input.ready);
        io.receive.valid.set(fifo.output.valid);
        io.receive.data.assign(&FrameBeat::from_bits(c, fifo.output.data));
        fifo.output.ready.set(io.receive.ready);
    }
}

/// What all transmitters have.
struct Transmitter {
    frame: Stream<FrameBeat>,
    whole: Sig,
    started: Sig,
    left: Sig,
}

impl Transmitter {
    /// That of the configuration, at its pins.
    fn new(c: &Config, io: &MacIo) -> Transmitter {
        match (io.out, io.line) {
            (LineOut::Cmac(pins), LineIn::Cmac { tready, .. }) => {
                let t = instance("transmitter", &cmac_transmit::CmacTransmit(c.clone()));
                t.tready.set(tready);
                pins.drive(&t.pins());
                Transmitter { frame: t.frame, whole: t.whole, started: t.started, left: t.left }
            }
            (LineOut::Xgmii { txd, txc }, _) => {
                let t = instance("transmitter", &transmit::Transmit(c.clone()));
                txd.set(t.txd);
                txc.set(t.txc);
                Transmitter { frame: t.frame, whole: t.whole, started: t.started, left: t.left }
            }
            (LineOut::Gmii { txd, tx_en }, LineIn::Gmii { tx_taken, .. }) => {
                let t = instance("transmitter", &gmii_transmit::GmiiTransmit(c.clone()));
                txd.set(t.txd);
                tx_en.set(t.tx_en);
                t.taken.set(tx_taken);
                Transmitter { frame: t.frame, whole: t.whole, started: t.started, left: t.left }
            }
            (LineOut::Cmac(_) | LineOut::Gmii { .. }, _) => unreachable!("pins of one configuration"),
        }
    }
}

/// What all receivers have.
struct Receiver {
    valid: Sig,
    frame: FrameBeat,
    room: Sig,
}

impl Receiver {
    /// That of the configuration, at its pins.
    fn new(c: &Config, io: &MacIo) -> Receiver {
        match io.line {
            LineIn::Xgmii { rxd, rxc } => {
                let r = instance("receiver", &receive::Receive(c.clone()));
                r.rxd.set(rxd);
                r.rxc.set(rxc);
                Receiver { valid: r.valid, frame: r.frame, room: r.room }
            }
            LineIn::Gmii { rx_valid, rxd, rx_dv, rx_er, .. } => {
                let r = instance("receiver", &gmii_receive::GmiiReceive(c.clone()));
                for (to, from) in [(r.step, rx_valid), (r.rxd, rxd), (r.rx_dv, rx_dv), (r.rx_er, rx_er)] {
                    to.set(from);
                }
                Receiver { valid: r.valid, frame: r.frame, room: r.room }
            }
            LineIn::Cmac { rx, .. } => {
                let r = instance("receiver", &cmac_receive::CmacReceive(c.clone()));
                let Axis { tdata, tkeep, tlast, tvalid, tuser } = rx;
                for (to, from) in [
                    (r.tdata, tdata),
                    (r.tkeep, tkeep),
                    (r.tlast, tlast),
                    (r.tvalid, tvalid),
                    (r.tuser, tuser),
                ] {
                    to.set(from);
                }
                Receiver { valid: r.valid, frame: r.frame, room: r.room }
            }
        }
    }
}
