//! The stage trace: one entry per thing that a stage decided, in a ring in BAR0.
//!
//! The card writes entry n at slot n modulo `trace_entries`, the oldest is overwritten; `trace_producer` is the number
//! written since reset. So a reader knows which entries are gone: those before `trace_producer - trace_entries`, read
//! behind the entries. Entries of one source ascend in time, those of several may be up to 144 clocks out of order.

use crate::reject::Stage;
use crate::{codes, layout};

/// Slots of the window in BAR0; a card may have fewer.
pub const WINDOW_ENTRIES: u32 = 512;

layout! {
    /// An entry of the stage trace. What an event does not say is zero.
    struct TraceEntry / TraceEntryBits [16] {
        /// Core clock ticks since reset, low bits: the clock of the event.
        time: u64[40];
        /// See `TraceEvent`; 0: none.
        event: u8[8];
        /// The QP of this card.
        qp: u16[16];
        /// A WQE, or the number of a frame: see the event.
        index: u16[16];
        /// PSN.
        psn: u32[24];
        /// BTH opcode; of Complete `WcOpcode`, of Fetch the number of WQEs.
        opcode: u8[8];
        /// See the event.
        detail: u16[16];
    }
}

codes! {
    /// What a stage decided.
    enum TraceEvent {
        /// A send doorbell was taken. index: the producer, one behind the last WQE; detail: 1 if it hands on a WQE.
        Doorbell = 1,
        /// A QP got its turn.
        Schedule = 2,
        /// Send WQEs are asked for. index: the first; opcode: how many; detail: its slot.
        Fetch = 3,
        /// Such a read is over. detail: its slot.
        Fetched = 4,
        /// A request packet was cut. index: its WQE; detail: payload bytes, bit 14 the last packet, bit 15 sent before.
        Segment = 5,
        /// A response was made out: ACK, NAK, READ response, result of an atomic. detail: AETH syndrome.
        Respond = 6,
        /// A packet took its room in the transmit buffer, its reads begin. index: its WQE; detail: its slot.
        Gather = 7,
        /// A read of payload is over. detail: the slot.
        Gathered = 8,
        /// Headers are complete, the first beat follows. index: number of the frame; detail: the peer's QP.
        Packetise = 9,
        /// The last beat of a frame went into the MAC. index: number of the frame, as of Packetise.
        MacSend = 10,
        /// The last beat of a frame came out of the MAC. index: number of the frame.
        MacReceive = 11,
        /// A frame is good and has a slot. index: number of the frame, as of MacReceive; detail: the slot.
        Verify = 12,
        /// A packet was judged and goes on. detail: payload bytes.
        Check = 13,
        /// A packet is being written. index: WQE or number; detail: what is done with it.
        Place = 14,
        /// All of it is on its way to host memory, and the answer is owed. detail: status.
        Placed = 15,
        /// A response is looked at. detail: AETH syndrome.
        Acknowledge = 16,
        /// A WQE is answered. index: the WQE; psn: its last; detail: 1 if it is signaled.
        Retire = 17,
        /// A CQE was written. index: the WQE; detail: `WcStatus`.
        Complete = 18,
        /// An EQE was written.
        Notify = 19,
        /// Something was refused. detail: `Reject`; QP, PSN and opcode if check refused.
        Reject = 20,
    }
}

impl TraceEvent {
    /// The stage on whose track it stands. Of a refusal [`crate::Reject::stage`] says more.
    pub const fn stage(self) -> Stage {
        match self {
            Self::Doorbell => Stage::Doorbell,
            Self::Schedule => Stage::Schedule,
            Self::Fetch | Self::Fetched => Stage::Fetch,
            Self::Segment => Stage::Segment,
            Self::Respond => Stage::Respond,
            Self::Gather | Self::Gathered => Stage::Gather,
            Self::Packetise => Stage::Packetise,
            Self::MacSend | Self::MacReceive => Stage::Mac,
            Self::Verify => Stage::Verify,
            Self::Check => Stage::Check,
            Self::Place | Self::Placed => Stage::Place,
            Self::Acknowledge | Self::Retire => Stage::Acknowledge,
            Self::Complete => Stage::Complete,
            Self::Notify => Stage::Notify,
            Self::Reject => Stage::Pcie,
        }
    }
}
