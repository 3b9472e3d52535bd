//! The control port of a target: an RDMA endpoint without a host, whose queue pairs are made over UDP.
//!
//! ```text
//!   client, any port ── ControlHead | ControlQueue of zeros or wishes ──> target, port 4793
//!   client           <── ControlHead | ControlQueue or ControlCounters ── target
//! ```
//! A request and its reply are one datagram each of [`DATAGRAM`] bytes, IPv4, unfragmented. A reply has the request's
//! `magic`, `version`, `operation` and `sequence`, and a `status`; the client asks again if none comes. What is not a
//! request (another length, magic, or a wrong checksum) has no reply; another version has one that says so, with the
//! target's own version. Every request may be repeated: `Create` of a queue pair that exists says who has it, `Destroy` of
//! one that does not exist says so. There is no authentication: who reaches the port can make and end queue pairs.
//!
//! More than [`BURST`] requests at once, or one in [`PERIOD_CLOCKS`] core clocks on average, are dropped and counted.
//! The layouts are no part of the layout hash: no driver sees them.

use crate::layout::{Codes, Layout};
use crate::{codes, wire};

/// UDP port of a target: two above RoCEv2's.
pub const CONTROL_PORT: u16 = 4793;
/// What every datagram begins with: "VRBT".
pub const MAGIC: u32 = 0x5652_4254;
/// Of this contract.
pub const VERSION: u8 = 1;
/// Bytes of every datagram, behind the UDP header.
pub const DATAGRAM: usize = 64;
/// Requests that are answered without a pause.
pub const BURST: u32 = 16;
/// Core clocks for which one more is.
pub const PERIOD_CLOCKS: u32 = 1 << 16;

wire! {
    /// The first bytes of every datagram.
    struct ControlHead / ControlHeadBits [12] {
        /// `MAGIC`.
        magic: u32[32];
        /// `VERSION`.
        version: u8[8];
        /// See `ControlOperation`.
        operation: u8[8];
        /// See `ControlStatus`; 0 in a request.
        status: u8[8] reserved 8;
        /// The client's; comes back in the reply.
        sequence: u32[32];
    }
}

wire! {
    /// What follows the head in all requests, and in the replies but that to `Counters`.
    struct ControlQueue / ControlQueueBits [52] {
        /// QP of the target: asked for (`Create`, `Destroy`), or asked about (`Query`). Comes back.
        qpn: u32[24] reserved 8;
        /// The peer's QP. In replies that of who has `qpn`, 0 if nobody has.
        peer_qpn: u32[24] reserved 8;
        /// `Create`: the first PSN that the peer sends. 0 in replies.
        peer_psn: u32[24] reserved 8;
        /// `Create`: see `PathMtu`. In replies that of `qpn`.
        path_mtu: u8[8];
        /// In replies: one bit per QP that may be created, QP 0 lowest.
        free: u8[8];
        /// In replies: READs and atomics that a peer may have outstanding.
        max_reads: u8[8] reserved 8;
        /// `Create`: the peer's GID, an IPv4 address (`::ffff:a.b.c.d`), the sender's own. In replies that of who has `qpn`.
        peer_gid: u128[128];
        /// In replies: the target's IPv4 address; its GID is that as `::ffff:a.b.c.d`.
        address: u32[32];
        /// In replies: R_Key of the memory, whose first address is 0.
        memory_key: u32[32];
        /// In replies: its bytes.
        memory_bytes: u32[32];
        /// In replies: R_Key of `TargetPins`, whose first address is 0.
        pins_key: u32[32];
        /// In replies: core clocks since reset, in units of 65536.
        uptime: u32[32];
    }
}

wire! {
    /// What follows the head in the reply to `Counters`. They count since reset and wrap.
    struct ControlCounters / ControlCountersBits [52] {
        /// Frames with a good FCS.
        frames_received: u32[32];
        /// Frames sent, answers to ARP, ping and control among them.
        frames_sent: u32[32];
        /// READ responses and results of atomics sent.
        responses_sent: u32[32];
        /// ACKs sent.
        acks_sent: u32[32];
        /// NAKs sent, RNR NAKs among them.
        naks_sent: u32[32];
        /// Frames dropped: wrong FCS, an error of the PHY, too short.
        bad_frames: u32[32];
        /// RoCE packets dropped: wrong ICRC.
        bad_icrc: u32[32];
        /// Frames dropped: no room.
        no_room: u32[32];
        /// RoCE packets that were dropped or refused for any other reason.
        refused: u32[32];
        /// Packets whose payload was written to memory or pins.
        writes: u32[32];
        /// Atomics executed.
        atomics: u32[32];
        /// ARP requests, pings and control requests answered.
        answered: u32[32];
        /// Control requests dropped because there were too many.
        dropped: u32[32];
    }
}

wire! {
    /// The region of `pins_key`: what a peer sees of the board. Reads as the pins are; only `leds` can be written.
    struct TargetPins / TargetPinsBits [8] {
        /// LEDs, 1 lit.
        leds: u8[8];
        /// Switches.
        switches: u8[8];
        /// Speed of the link: 0 is 10, 1 is 100, 2 is 1000 Mb/s.
        speed: u8[8];
        /// There is a link.
        link: bool[1] reserved 39;
    }
}

codes! {
    /// What a control request asks for.
    enum ControlOperation {
        /// Who this is, which QPs are free, who has `qpn`.
        Query = 0,
        /// Make `qpn` ready to receive from the peer.
        Create = 1,
        /// End `qpn`, if `peer_qpn` is its peer's. The reply comes when nothing of it is under way.
        Destroy = 2,
        /// Counters.
        Counters = 3,
    }
}

codes! {
    /// How a control request ended.
    enum ControlStatus {
        /// Done.
        Ok = 0,
        /// Another version: the reply's is the target's.
        BadVersion = 1,
        /// No such operation.
        BadOperation = 2,
        /// There is no such QP to give.
        BadQp = 3,
        /// `Create`: it exists already. `peer_qpn` and `peer_gid` say whose it is.
        InUse = 4,
        /// `Destroy`: it does not exist, or is another peer's.
        NotYours = 5,
        /// `Create`: no such path MTU.
        BadMtu = 6,
        /// `Create`: the GID is not the sender's IPv4 address.
        BadAddress = 7,
    }
}

/// The structures of this contract.
pub const LAYOUTS: &[Layout] =
    &[ControlHead::LAYOUT, ControlQueue::LAYOUT, ControlCounters::LAYOUT, TargetPins::LAYOUT];
/// Its codes.
pub const CODES: &[Codes] = &[ControlOperation::TABLE, ControlStatus::TABLE];
