//! The numbers of the verbs interface that stand in the card's structures, and the QP state machine.
//!
//! In: codes. Out: their meaning. The values are those of `ibv_wr_opcode`, `ibv_wc_opcode`, `ibv_wc_status`,
//! `ibv_event_type`, `ibv_mtu` and `ibv_access_flags`, so that the driver copies instead of translating.
//! Never here: attribute masks (they live in the driver); the card checks transitions only.

use crate::codes;

codes! {
    /// Work request opcode (`ibv_wr_opcode`), in `SendWqe`.
    enum WrOpcode {
        /// Write to remote memory.
        RdmaWrite = 0,
        /// Write to remote memory, then consume a receive with 32 bits of immediate data.
        RdmaWriteWithImm = 1,
        /// Send into the remote receive queue.
        Send = 2,
        /// Send with 32 bits of immediate data.
        SendWithImm = 3,
        /// Read remote memory.
        RdmaRead = 4,
        /// 64-bit compare and swap on remote memory.
        AtomicCmpAndSwp = 5,
        /// 64-bit fetch and add on remote memory.
        AtomicFetchAndAdd = 6,
        /// Invalidate a local key.
        LocalInv = 7,
        /// Send and invalidate a remote key.
        SendWithInv = 9,
    }
}

codes! {
    /// Completed operation (`ibv_wc_opcode`), in `Cqe`; bit 7 marks the receive side.
    enum WcOpcode {
        /// A SEND, with or without immediate or invalidate.
        Send = 0,
        /// A WRITE, with or without immediate.
        RdmaWrite = 1,
        /// A READ.
        RdmaRead = 2,
        /// A compare and swap.
        CompSwap = 3,
        /// A fetch and add.
        FetchAdd = 4,
        /// An invalidation of a local key.
        LocalInv = 6,
        /// A receive filled by a SEND.
        Recv = 128,
        /// A receive consumed by a WRITE with immediate.
        RecvRdmaWithImm = 129,
    }
}

codes! {
    /// Completion status (`ibv_wc_status`), in `Cqe`.
    enum WcStatus {
        /// Done.
        Success = 0,
        /// The message does not fit the local buffer.
        LocLenErr = 1,
        /// The WQE is malformed.
        LocQpOpErr = 2,
        /// Reliable datagram context error; never reported by this card.
        LocEecOpErr = 3,
        /// A local key is unknown, out of bounds or lacks the right.
        LocProtErr = 4,
        /// Flushed: the QP is in the error state.
        WrFlushErr = 5,
        /// A memory window could not be bound; never reported by this card.
        MwBindErr = 6,
        /// The peer's response makes no sense for the request.
        BadRespErr = 7,
        /// Local memory refused a remote operation.
        LocAccessErr = 8,
        /// The peer found the request invalid (NAK 0x61).
        RemInvReqErr = 9,
        /// The peer refused access to its memory (NAK 0x62).
        RemAccessErr = 10,
        /// The peer could not complete the operation (NAK 0x63).
        RemOpErr = 11,
        /// No answer after all retries.
        RetryExcErr = 12,
        /// The peer stayed not ready after all RNR retries.
        RnrRetryExcErr = 13,
        /// Reliable datagram domain violation; never reported by this card.
        LocRddViolErr = 14,
        /// Invalid reliable datagram request; never reported by this card.
        RemInvRdReqErr = 15,
        /// The peer aborted the operation.
        RemAbortErr = 16,
        /// Invalid end-to-end context number; never reported by this card.
        InvEecnErr = 17,
        /// Invalid end-to-end context state; never reported by this card.
        InvEecStateErr = 18,
        /// Fatal transport error.
        FatalErr = 19,
        /// The response did not arrive in time.
        RespTimeoutErr = 20,
        /// Any other error.
        GeneralErr = 21,
        /// Tag matching error; never reported by this card.
        TmErr = 22,
        /// Tag matching rendezvous is incomplete; never reported by this card.
        TmRndvIncomplete = 23,
    }
}

codes! {
    /// Asynchronous event (`ibv_event_type`), in `Eqe`.
    enum AsyncEvent {
        /// A CQ overflowed.
        CqErr = 0,
        /// The QP met a fatal error.
        QpFatal = 1,
        /// The peer's request was invalid; the QP is in error.
        QpReqErr = 2,
        /// The peer's request violated local access rights; the QP is in error.
        QpAccessErr = 3,
        /// The first packet arrived on a QP that is still ready to receive only.
        CommEst = 4,
        /// The send queue is drained.
        SqDrained = 5,
        /// The connection moved to its alternate path.
        PathMig = 6,
        /// The connection failed to move to its alternate path.
        PathMigErr = 7,
        /// The device met a fatal error.
        DeviceFatal = 8,
        /// The link is up.
        PortActive = 9,
        /// The link is down.
        PortErr = 10,
        /// The local identifier changed; never raised on Ethernet.
        LidChange = 11,
        /// The P_Key table changed.
        PkeyChange = 12,
        /// The subnet manager changed; never raised on Ethernet.
        SmChange = 13,
        /// A shared receive queue met an error.
        SrqErr = 14,
        /// A shared receive queue fell below its limit.
        SrqLimitReached = 15,
        /// The last WQE of a QP on a shared receive queue was consumed.
        QpLastWqeReached = 16,
        /// The subnet manager asks to register again; never raised on Ethernet.
        ClientReregister = 17,
        /// The GID table changed.
        GidChange = 18,
        /// A work queue met a fatal error.
        WqFatal = 19,
    }
}

codes! {
    /// Path MTU (`ibv_mtu`).
    enum PathMtu {
        /// 256 bytes.
        Mtu256 = 1,
        /// 512 bytes.
        Mtu512 = 2,
        /// 1024 bytes.
        Mtu1024 = 3,
        /// 2048 bytes.
        Mtu2048 = 4,
        /// 4096 bytes.
        Mtu4096 = 5,
    }
}

impl PathMtu {
    /// Payload bytes per full packet.
    pub const fn bytes(self) -> u32 {
        128 << self as u32
    }
}

/// Access rights (`ibv_access_flags`); a bit set in `access` fields.
pub mod access {
    /// The card may write this memory for local work (receives, READ results).
    pub const LOCAL_WRITE: u8 = 1;
    /// Peers may WRITE.
    pub const REMOTE_WRITE: u8 = 2;
    /// Peers may READ.
    pub const REMOTE_READ: u8 = 4;
    /// Peers may do atomics.
    pub const REMOTE_ATOMIC: u8 = 8;
    /// Of a region: requests of its protection domain may end its key, a local invalidate and a peer's SEND with
    /// invalidate. Ours: the verbs' bit here speaks of huge pages, which a card does not see.
    pub const INVALIDATE: u8 = 0x80;
}

codes! {
    /// Transport service of a QP.
    enum Transport {
        /// Reliable connection.
        Rc = 0,
        /// Unreliable connection.
        Uc = 1,
        /// Unreliable datagram.
        Ud = 2,
        /// General services (QP1).
        Gsi = 3,
        /// Raw Ethernet frames.
        Raw = 4,
    }
}

codes! {
    /// State of a QP.
    enum QpState {
        /// Nothing is posted, nothing moves.
        Reset = 0,
        /// Receives may be posted.
        Init = 1,
        /// Ready to receive.
        Rtr = 2,
        /// Ready to send.
        Rts = 3,
        /// The send queue drains.
        Sqd = 4,
        /// The send queue is in error (not for RC).
        Sqe = 5,
        /// Everything is flushed.
        Err = 6,
    }
}

impl QpState {
    /// Whether a modify command may move a QP from `self` to `to`: the state table of the verbs, without its
    /// attribute masks. SQE is entered by the card alone and never exists on RC; RESET to ERR is refused.
    pub const fn may_become(self, to: Self, transport: Transport) -> bool {
        use QpState::*;
        match (self, to) {
            (_, Reset) => true,
            (Reset, Err) => false,
            (_, Err) => true,
            (Reset, Init) | (Init, Init) | (Init, Rtr) | (Rtr, Rts) | (Rts, Rts) => true,
            (Rts, Sqd) | (Sqd, Sqd) | (Sqd, Rts) => true,
            (Sqe, Rts) => !matches!(transport, Transport::Rc),
            _ => false,
        }
    }

    /// Whether requests from the wire are accepted.
    pub const fn receives(self) -> bool {
        matches!(self, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Whether new requests may be sent.
    pub const fn sends(self) -> bool {
        matches!(self, QpState::Rts)
    }
}
