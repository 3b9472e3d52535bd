//! Every drop has a name, and every stage counts.
//!
//! One `Reject` per reason for which the card refuses a frame, a request, a doorbell, a WQE or a TLP: its code is the
//! index of its counter in BAR0, its name the trace event. One `StageCounter` per thing worth counting that is no
//! refusal. Both are 64-bit counters that only grow.

use crate::codes;

codes! {
    /// The stages of the card, in the order of the way of the data: transmit, receive, then those beside them. Parse, verify and
    /// the receiving half of mac never wait, they drop; what respond waits for counts as a stall of segment or packetise.
    enum Stage {
        /// Takes doorbell writes.
        Doorbell = 0,
        /// Gives QPs their turns.
        Schedule = 1,
        /// Reads send WQEs.
        Fetch = 2,
        /// Cuts messages into packets.
        Segment = 3,
        /// Reads payload.
        Gather = 4,
        /// Builds frames.
        Packetise = 5,
        /// Sends and receives on the line.
        Mac = 6,
        /// Finds the headers.
        Parse = 7,
        /// Judges the whole frame.
        Verify = 8,
        /// Judges the request against its QP.
        Check = 9,
        /// Writes payload.
        Place = 10,
        /// Sends what the responder owes.
        Respond = 11,
        /// Retires what the peer has acknowledged.
        Acknowledge = 12,
        /// Writes CQEs.
        Complete = 13,
        /// Writes EQEs and raises interrupts.
        Notify = 14,
        /// Executes commands.
        Command = 15,
        /// Speaks PCI Express.
        Pcie = 16,
    }
}

codes! {
    /// Why something was refused.
    enum Reject {
        /// The frame check sequence is wrong.
        BadFcs = 0,
        /// The frame is shorter than 64 bytes or than its headers.
        Runt = 1,
        /// The frame is longer than the port's MTU allows; one for the raw QP: than `wire::RAW_FRAME_MAX`.
        Oversize = 2,
        /// Not RoCEv2: EtherType, IP protocol or UDP port.
        NotRoce = 3,
        /// IP version, header length, checksum, fragment or total length.
        BadIpHeader = 4,
        /// The UDP length disagrees with the IP length.
        BadUdpLength = 5,
        /// Not for this port's MAC address.
        WrongDestinationMac = 6,
        /// The invariant CRC is wrong.
        BadIcrc = 7,
        /// The packet buffer had no room for the frame.
        BufferFull = 8,
        /// The BTH transport version is not 0.
        BadTransportVersion = 9,
        /// The opcode has no row in the opcode table.
        UnknownOpcode = 10,
        /// No such QP.
        UnknownQp = 11,
        /// The opcode belongs to another transport than the QP's.
        WrongTransport = 12,
        /// The QP's state does not take this packet.
        WrongQpState = 13,
        /// Source or destination IP address are not the QP's.
        WrongAddress = 14,
        /// The P_Key does not match.
        BadPkey = 15,
        /// A packet is missing before this one: NAK sent.
        PsnOutOfSequence = 16,
        /// A packet is missing before this one, NAK already sent: silent.
        PsnOutOfSequenceRepeat = 17,
        /// Seen before: acknowledged again, not executed; a READ is answered again if it is still known, else dropped.
        Duplicate = 18,
        /// Middle or last without first, or first inside a message: NAK 0x61.
        OpcodeSequence = 19,
        /// The QP's access flags forbid the operation: NAK 0x61.
        AccessDenied = 20,
        /// No receive WQE is posted: RNR NAK.
        ReceiverNotReady = 21,
        /// Payload or pad do not fit opcode, path MTU or DMA length: NAK 0x61.
        BadLength = 22,
        /// No such remote key: NAK 0x62.
        RkeyUnknown = 23,
        /// The remote key's tag is stale: NAK 0x62.
        RkeyTag = 24,
        /// The remote key belongs to another protection domain: NAK 0x62.
        RkeyPd = 25,
        /// The remote key lacks the right: NAK 0x62.
        RkeyRights = 26,
        /// The access leaves the remote key's range: NAK 0x62.
        RkeyBounds = 27,
        /// The QP has stopped at an earlier fault; this packet follows it.
        QpHalted = 28,
        /// A receive SGE's key is unknown, out of bounds or without local write: NAK 0x63.
        LkeyBad = 29,
        /// The message is longer than the receive WQE: NAK 0x61. Of a raw frame the WQE completes in error, no more.
        ReceiveTooShort = 30,
        /// The receive WQE could not be read: NAK 0x63.
        WqeFetchFailed = 31,
        /// The miss queue was full; the peer will resend. Or the share of it that raw frames may have.
        MissQueueFull = 32,
        /// The response acknowledges nothing new.
        ResponseStale = 33,
        /// The response is for a PSN that was never sent.
        ResponseUnexpected = 34,
        /// The AETH syndrome is reserved: ignored.
        NakReserved = 35,
        /// A CQE found its CQ full.
        CqOverflow = 36,
        /// A CQE found no CQ.
        CqUnknown = 37,
        /// An EQE found its EQ full.
        EqOverflow = 38,
        /// The doorbell names an object of another page.
        DoorbellOwner = 39,
        /// The doorbell names no object.
        DoorbellUnknown = 40,
        /// The doorbell is not one aligned 8-byte write at a doorbell's offset, or its index is impossible.
        DoorbellMalformed = 41,
        /// A read was answered with Unsupported Request.
        CompletionUr = 42,
        /// A read was answered with Completer Abort.
        CompletionCa = 43,
        /// A read was not answered in time.
        CompletionTimeout = 44,
        /// A read was answered with poisoned data.
        CompletionPoisoned = 45,
        /// A completion matches no read.
        CompletionUnexpected = 46,
        /// A request to a BAR is of a kind or size that is not supported.
        RequestUnsupported = 47,
        /// A write to a BAR was poisoned.
        RequestPoisoned = 48,
        /// The WQE's opcode is unknown or not for this transport.
        WqeOpcode = 49,
        /// The WQE's index is not the slot's: a stale or torn WQE.
        WqeIndex = 50,
        /// The SGEs hold fewer bytes than the WQE's length.
        SglTooShort = 51,
        /// A send SGE's key is unknown, of another PD or out of bounds; or a READ's key no longer allows it: NAK 0x62.
        SglKey = 52,
        /// A payload read failed; in a READ response: NAK 0x63.
        GatherFailed = 53,
        /// A send WQE could not be read.
        SqFetchFailed = 54,
        /// The WQE asks for more SGEs, inline bytes or length than the card takes.
        WqeLength = 55,
        /// A command could not be read or its response could not be written.
        CommandFetchFailed = 56,
        /// More READs and atomics are unanswered than was negotiated: NAK 0x61.
        ReadDepth = 57,
        /// An atomic's address is not a multiple of 8: NAK 0x61.
        AtomicAlignment = 58,
        /// A READ or atomic response is missing before this response: its request goes again.
        ResponseGap = 59,
        /// The response's opcode, length or syndrome does not fit its request: the request fails.
        ResponseMalformed = 60,
        /// A raw frame found no receive WQE.
        RawNoReceive = 61,
    }
}

impl Reject {
    /// The stage that refuses.
    pub const fn stage(self) -> Stage {
        use Reject::*;
        match self {
            BadFcs => Stage::Mac,
            Runt | Oversize | NotRoce | BadIpHeader | BadUdpLength | WrongDestinationMac => Stage::Parse,
            BadIcrc | BufferFull => Stage::Verify,
            BadTransportVersion
            | UnknownOpcode
            | UnknownQp
            | WrongTransport
            | WrongQpState
            | WrongAddress
            | BadPkey
            | PsnOutOfSequence
            | PsnOutOfSequenceRepeat
            | Duplicate
            | OpcodeSequence
            | AccessDenied
            | ReceiverNotReady
            | BadLength
            | RkeyUnknown
            | RkeyTag
            | RkeyPd
            | RkeyRights
            | RkeyBounds
            | QpHalted
            | ReadDepth
            | AtomicAlignment
            | RawNoReceive => Stage::Check,
            LkeyBad | ReceiveTooShort | WqeFetchFailed | MissQueueFull => Stage::Place,
            ResponseStale | ResponseUnexpected | NakReserved | ResponseGap | ResponseMalformed => {
                Stage::Acknowledge
            }
            CqOverflow | CqUnknown => Stage::Complete,
            EqOverflow => Stage::Notify,
            DoorbellOwner | DoorbellUnknown | DoorbellMalformed => Stage::Doorbell,
            CompletionUr | CompletionCa | CompletionTimeout | CompletionPoisoned | CompletionUnexpected
            | RequestUnsupported | RequestPoisoned => Stage::Pcie,
            WqeOpcode | WqeIndex | WqeLength | SqFetchFailed => Stage::Fetch,
            SglTooShort | SglKey | GatherFailed => Stage::Gather,
            CommandFetchFailed => Stage::Command,
        }
    }

    /// The `vendor_err` of a CQE with this cause: code + 1, so that 0 is no cause.
    pub const fn vendor_err(self) -> u32 {
        self as u32 + 1
    }

    /// The cause behind a CQE's `vendor_err`.
    pub const fn from_vendor_err(value: u32) -> Option<Self> {
        match value {
            1..=256 => Self::from_code((value - 1) as u8),
            _ => None,
        }
    }
}

codes! {
    /// What is counted beside refusals.
    enum StageCounter {
        /// Frames sent.
        TxFrames = 0,
        /// Bytes of frames sent, without FCS.
        TxBytes = 1,
        /// Frames received with a good FCS.
        RxFrames = 2,
        /// Bytes of frames received, without FCS.
        RxBytes = 3,
        /// Request packets, READ responses and raw frames sent, retransmissions included.
        TxPackets = 4,
        /// ACKs sent.
        TxAcks = 5,
        /// NAKs sent, RNR NAKs included.
        TxNaks = 6,
        /// Request packets sent again.
        Retransmits = 7,
        /// Retransmission timeouts.
        TimeoutEvents = 8,
        /// RNR NAKs received.
        RnrEvents = 9,
        /// CQEs written.
        Cqes = 10,
        /// EQEs written.
        Eqes = 11,
        /// MSI-X messages sent.
        MsixSent = 12,
        /// Send and receive WQE reads.
        WqeFetches = 13,
        /// PCI Express reads sent.
        ReadTlps = 14,
        /// PCI Express writes sent.
        WriteTlps = 15,
        /// Cycles in which schedule had work but no turn could be given.
        ScheduleStall = 16,
        /// Cycles in which fetch waited.
        FetchStall = 17,
        /// Cycles in which gather waited.
        GatherStall = 18,
        /// Cycles in which packetise waited for the MAC.
        PacketiseStall = 19,
        /// Cycles in which place waited.
        PlaceStall = 20,
        /// Cycles in which complete waited.
        CompleteStall = 21,
        /// Turns of segment that found no room for their packet.
        SegmentStall = 22,
        /// Cycles in which a host write to a doorbell page waited.
        DoorbellStall = 23,
        /// Cycles in which a packet waited for place or acknowledge.
        CheckStall = 24,
        /// Cycles in which a response waited for place, or a CQE for complete.
        AcknowledgeStall = 25,
        /// Cycles in which an EQE waited.
        NotifyStall = 26,
        /// Cycles in which a PCI Express write waited for credit.
        PostedStall = 27,
        /// Cycles in which a PCI Express read waited for credit.
        NonpostedStall = 28,
        /// Entries of the stage trace that were lost in the card.
        TraceLost = 29,
        /// Request packets dropped on their way to the line because their QP had gone back: they are sent again.
        Superseded = 30,
    }
}
