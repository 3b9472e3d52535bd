//! The way out: writes and reads share the request interface, whole TLPs at a time.
//!
//! ```text
//! write -TlpBeat->\
//!                   transmit -TlpBeat-> rq
//! read  -TlpBeat->/
//! ```
//! Combinational: latency 0, one beat per clock, no bubble between TLPs. A write starts only while `posted_ok`, a read
//! only while `nonposted_ok` (looked at when the first beat is first offered; the offer then stands until it is taken).
//! When both can start they alternate; when one cannot, the other goes on, so reads never hold up writes.
//! A TLP that would start while bus mastering is off is swallowed, so that the engines drain after a reset of the
//! function (PCI Express base specification, function level reset: no request before bus master is set again). A TLP
//! that has started is always finished.
//!
//! Requirements: CARD PCIE READ

use crate::config::Config;
use crate::flow::TlpBeat;
use hdl::{Bundle, Module, Ports, Sig, Stream, cat, lit, mux, reg_init, when};

/// The arbiter of the request interface.
#[derive(Clone, Debug)]
pub struct Transmit(pub Config);

/// Ports of [`Transmit`].
#[derive(Ports)]
#[ports(Transmit)]
pub struct TransmitIo {
    /// Posted requests.
    #[sink(c.0.clone())]
    pub write: Stream<TlpBeat>,
    /// Non-posted requests.
    #[sink(c.0.clone())]
    pub read: Stream<TlpBeat>,
    /// To the link.
    #[source(c.0.clone())]
    pub rq: Stream<TlpBeat>,
    /// There is credit for a posted TLP of the largest payload.
    #[input]
    pub posted_ok: Sig,
    /// There is credit for a read.
    #[input]
    pub nonposted_ok: Sig,
    /// Command register bit 2.
    #[input]
    pub bus_master: Sig,
    /// A write TLP left in this clock (`StageCounter::WriteTlps`).
    #[output]
    pub write_sent: Sig,
    /// A read TLP left in this clock (`StageCounter::ReadTlps`).
    #[output]
    pub read_sent: Sig,
}

impl Module for Transmit {
    type Io = TransmitIo;
    fn name(&self) -> String {
        format!("pcie_transmit_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Arbiter of write and read TLPs, whole TLPs, with credits.".into()
    }
    fn body(&self, io: &TransmitIo) {
        // a choice stands from the first offer to the last beat
        let open = reg_init("open", 1, 0);
        let open_read = reg_init("open_read", 1, 0);
        let open_drop = reg_init("open_drop", 1, 0);
        let read_was_last = reg_init("read_was_last", 1, 0);

        let drop = mux(open, open_drop, !io.bus_master).named("drop");
        let write_can = io.write.valid & (io.posted_ok | drop);
        let read_can = io.read.valid & (io.nonposted_ok | drop);
        let choose_read = read_can & (!write_can | !read_was_last);
        let read = mux(open, open_read, choose_read).named("chosen_read");
        let chosen_valid = mux(open, mux(open_read, io.read.valid, io.write.valid), write_can | read_can);
        let beat = io.read.data.or_else(&self.0, read, &io.write.data);

        io.rq.valid.set(chosen_valid & !drop);
        io.rq.data.assign(&beat);
        let moves = (chosen_valid & (io.rq.ready | drop)).named("moves");
        io.write.ready.set(moves & !read);
        io.read.ready.set(moves & read);
        let ends = moves & beat.last;
        when(chosen_valid, || {
            open.set(!ends);
            open_read.set(read);
            open_drop.set(drop);
        });
        when(ends, || read_was_last.set(read));
        io.write_sent.set(ends & !drop & !read);
        io.read_sent.set(ends & !drop & read);
    }
}

/// `(128 << code) - 1` in 12 bits: the offset bits of an aligned block of Max_Payload_Size or Max_Read_Request_Size. The
/// reserved codes 6 and 7 count as 5. Pieces cut at such blocks obey the size and the 4 KiB rule at once.
pub fn block_mask(code: Sig) -> Sig {
    let bits: Vec<Sig> = (0..12u32).rev().map(|i| if i < 7 { lit(1, 1) } else { code.gt(i - 7) }).collect();
    cat(&bits)
}
