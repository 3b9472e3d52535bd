//! The line: 10 Gigabit Ethernet over 64-bit XGMII.
//!
//! ```text
//!   core clock                                                      transmit clock
//! transmit ---> FIFO of whole frames ---- count of whole frames ---> mac transmit ---> xgmii_tx
//!                                                                   receive clock
//! receive <---- FIFO <--------------------------------------------- mac receive <----- xgmii_rx
//! ```
//! `transmit` takes frames without FCS and back-pressures; a frame starts on the line only when all of it is in the
//! FIFO, so it never runs dry whatever the core does (store and forward: 512 beats of core time for 4 KiB). `receive`
//! gives frames with FCS and an `error` flag; when the core does not take them, whole frames are lost and each is
//! reported by a last beat of 0 bytes (see [`receive`]). All three resets overlap at power-up; none may come alone.

pub mod receive;
pub mod transmit;

use crate::config::Config;
use crate::flow::FrameBeat;
use crate::prim::async_fifo::{AsyncFifo, binary, gray};
use hdl::{Bundle, Domain, Module, Ports, Sig, Stream, index_width, instance, reg_init, synchronise, when};

/// Beats of the transmit FIFO: 16 KiB, more than the longest frame (9216 and headers).
const TRANSMIT_BEATS: u32 = 2048;
/// Beats of the receive FIFO: enough for the crossing; the core takes a beat per clock.
const RECEIVE_BEATS: u32 = 32;

/// The MAC.
#[derive(Clone, Debug)]
pub struct Mac(pub Config);

/// Ports of [`Mac`].
#[derive(Ports)]
#[ports(Mac)]
pub struct MacIo {
    /// 156.25 MHz of the transmitter.
    #[input]
    pub tx_clock: Sig,
    /// Its reset.
    #[input]
    pub tx_reset: Sig,
    /// 156.25 MHz recovered by the receiver.
    #[input]
    pub rx_clock: Sig,
    /// Its reset.
    #[input]
    pub rx_reset: Sig,
    /// Frames to send, without FCS and padding, at most 16 KiB each (core clock).
    #[sink(c.0.clone())]
    pub transmit: Stream<FrameBeat>,
    /// Frames received, with FCS (core clock).
    #[source(c.0.clone())]
    pub receive: Stream<FrameBeat>,
    /// Every frame that entered `transmit` has left the pins (core clock, some clocks late).
    #[output]
    pub idle: Sig,
    /// XGMII transmit data (transmit clock).
    #[output(64)]
    pub xgmii_txd: Sig,
    /// XGMII transmit control.
    #[output(8)]
    pub xgmii_txc: Sig,
    /// XGMII receive data (receive clock).
    #[input(64)]
    pub xgmii_rxd: Sig,
    /// XGMII receive control.
    #[input(8)]
    pub xgmii_rxc: Sig,
}

impl Module for Mac {
    type Io = MacIo;
    fn name(&self) -> String {
        format!("mac_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "10 Gigabit Ethernet MAC on 64-bit XGMII, with the crossings to the core clock.".into()
    }
    fn body(&self, io: &MacIo) {
        let c = &self.0;
        assert!(c.data_bytes == 8, "mac: data_bytes = {}, XGMII has 8", c.data_bytes);
        let width = FrameBeat::total_width(c);
        let core = Domain::implicit();
        let tx = Domain::new(io.tx_clock, Some(io.tx_reset));
        let rx = Domain::new(io.rx_clock, Some(io.rx_reset));

        let fifo = instance("transmit_fifo", &AsyncFifo { depth: TRANSMIT_BEATS, width });
        fifo.write_clock.set(core.clock());
        fifo.write_reset.set(core.reset());
        fifo.read_clock.set(io.tx_clock);
        fifo.read_reset.set(io.tx_reset);
        fifo.input.valid.set(io.transmit.valid);
        fifo.input.data.set(io.transmit.data.to_bits());
        io.transmit.ready.set(fifo.input.ready);
        // frames may be as many as beats
        let count = index_width(TRANSMIT_BEATS) + 1;
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
            let transmit = instance("transmitter", &transmit::Transmit(c.clone()));
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
        io.xgmii_txd.set(transmit.txd);
        io.xgmii_txc.set(transmit.txc);

        let receive = rx.within(|| instance("receiver", &receive::Receive(c.clone())));
        receive.rxd.set(io.xgmii_rxd);
        receive.rxc.set(io.xgmii_rxc);
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
