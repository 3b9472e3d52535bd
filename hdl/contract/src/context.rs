//! The contexts that commands write: QP, MR, CQ, EQ and port.
//!
//! A QP context is four lines of 32 bytes, each one on-chip memory of the card: rights (who may do what), path (how
//! frames look), queues (where the rings are), addresses (both GIDs). A command writes it as sixteen 64-bit words with
//! a mask; word w lies in line w/4. MAC addresses are integers whose most significant byte is sent first; GIDs are
//! big-endian integers (`::ffff:a.b.c.d` for IPv4, so the IPv4 address is the low 32 bits).

use crate::layout;

layout! {
    /// QP context line 0, words 0..=3: what the QP is and may do.
    struct QpRights / QpRightsBits [32] {
        /// See `QpState`.
        state: u8[4];
        /// See `Transport`.
        transport: u8[4];
        /// Rights of the peer and of local work: bits of `verbs::access`.
        access: u8[8];
        /// See `PathMtu`.
        path_mtu: u8[4];
        /// The QP exists.
        valid: bool[1] reserved 3;
        /// Doorbell page of the owner.
        page: u16[16];
        /// Protection domain.
        pd: u32[24];
        /// Partition key, sent and expected.
        pkey: u16[16];
        /// Timer code sent in RNR NAKs.
        min_rnr_timer: u8[5];
        /// Retransmission timeout code; 0 = never.
        timeout: u8[5];
        /// Retries after a timeout or sequence NAK.
        retry_cnt: u8[3];
        /// Retries after an RNR NAK; 7 = for ever.
        rnr_retry: u8[3];
        /// Most PSNs in flight when a packet of a SEND or WRITE is sent; 0, and READs: limited by the PSN window alone.
        max_inflight: u16[16];
        /// READs and atomics that this side may have outstanding.
        max_rd_atomic: u8[5];
        /// READs and atomics that the peer may have outstanding.
        max_dest_rd_atomic: u8[5];
        /// Frames carry an 802.1Q tag.
        tagged: bool[1];
        /// Frames are IPv6, not IPv4.
        ipv6: bool[1] reserved 4;
        /// First PSN expected from the peer; taken by `init_receive`.
        rq_psn: u32[24] reserved 8;
        /// First PSN to send; taken by `init_send`.
        sq_psn: u32[24];
        /// VLAN of the frames that the QP takes; 0: none, or a tag that gives a priority alone.
        vlan: u16[12];
        /// Counts, modulo 16, the notices of a drained send queue that were asked for: the card gives one for each, in SQD.
        drain: u8[4] reserved 56;
    }
}

layout! {
    /// QP context line 1, words 4..=7: how its frames look.
    struct QpPath / QpPathBits [32] {
        /// Destination MAC address.
        dest_mac: u64[48];
        /// TTL or hop limit.
        ttl: u8[8];
        /// ToS or traffic class.
        tos: u8[8];
        /// Source MAC address.
        src_mac: u64[48];
        /// UDP source port.
        udp_source_port: u16[16];
        /// The peer's QP.
        dest_qpn: u32[24] reserved 8;
        /// IPv6 flow label.
        flow_label: u32[20] reserved 12;
        /// 802.1Q tag: priority, drop eligible, VLAN.
        vlan_tag: u16[16] reserved 48;
    }
}

layout! {
    /// QP context line 2, words 8..=11: where its rings are.
    struct QpQueues / QpQueuesBits [32] {
        /// IOVA of the send queue, aligned to its stride.
        sq_base: u64[64];
        /// IOVA of the receive queue, aligned to its stride.
        rq_base: u64[64];
        /// log2 of the send queue's entries.
        sq_log_depth: u8[4];
        /// log2 of the send queue's bytes per entry.
        sq_log_stride: u8[4];
        /// log2 of the receive queue's entries.
        rq_log_depth: u8[4];
        /// log2 of the receive queue's bytes per entry.
        rq_log_stride: u8[4];
        /// CQ of the send queue.
        send_cqn: u32[24];
        /// CQ of the receive queue.
        recv_cqn: u32[24];
        /// First outstanding record of this QP in the card's record memory.
        record_base: u16[16];
        /// log2 of the number of records.
        record_log_size: u8[4];
        /// First entry of this QP in the card's memory of outstanding READs and atomics.
        read_base: u16[16];
        /// log2 of the number of those entries; at least `max_rd_atomic` of them.
        read_log_size: u8[4];
        /// First entry of this QP in the card's memory of READs and atomics owed to the peer.
        response_base: u16[16];
        /// log2 of the number of those entries; at least `max_dest_rd_atomic` of them.
        response_log_size: u8[4] reserved 4;
    }
}

layout! {
    /// QP context line 3, words 12..=15: both ends' addresses.
    struct QpAddresses / QpAddressesBits [32] {
        /// The peer's GID.
        dest_gid: u128[128];
        /// This side's GID.
        src_gid: u128[128];
    }
}

/// The whole QP context: 128 bytes, sixteen words, four lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QpContext {
    /// Words 0..=3.
    pub rights: QpRights,
    /// Words 4..=7.
    pub path: QpPath,
    /// Words 8..=11.
    pub queues: QpQueues,
    /// Words 12..=15.
    pub addresses: QpAddresses,
}

impl QpContext {
    /// Size in bytes.
    pub const BYTES: usize = 128;
    /// Words of one line.
    pub const LINE_WORDS: usize = 4;
    /// `word_mask` of line 0.
    pub const RIGHTS_MASK: u16 = 0x000f;
    /// `word_mask` of line 1.
    pub const PATH_MASK: u16 = 0x00f0;
    /// `word_mask` of line 2.
    pub const QUEUES_MASK: u16 = 0x0f00;
    /// `word_mask` of line 3.
    pub const ADDRESSES_MASK: u16 = 0xf000;

    /// The bytes.
    pub fn pack(&self) -> [u8; 128] {
        let lines = [self.rights.pack(), self.path.pack(), self.queues.pack(), self.addresses.pack()];
        let mut bytes = [0; 128];
        for (chunk, line) in bytes.chunks_exact_mut(32).zip(&lines) {
            chunk.copy_from_slice(line);
        }
        bytes
    }

    /// The fields; total.
    pub fn unpack(bytes: &[u8; 128]) -> Self {
        let line = |n: usize| core::array::from_fn(|i| bytes[32 * n + i]);
        Self {
            rights: QpRights::unpack(&line(0)),
            path: QpPath::unpack(&line(1)),
            queues: QpQueues::unpack(&line(2)),
            addresses: QpAddresses::unpack(&line(3)),
        }
    }

    /// The sixteen command words.
    pub fn to_words(&self) -> [u64; 16] {
        words(&self.pack())
    }

    /// From sixteen command words.
    pub fn from_words(words: &[u64; 16]) -> Self {
        Self::unpack(&core::array::from_fn(|i| words[i / 8].to_le_bytes()[i % 8]))
    }
}

/// A packed object as the sixteen data words of a command; the rest is zero. Bytes beyond 128 are not taken.
pub fn words(bytes: &[u8]) -> [u64; 16] {
    let mut words = [0; 16];
    for (i, byte) in bytes.iter().take(128).enumerate() {
        words[i / 8] |= u64::from(*byte) << (8 * (i % 8));
    }
    words
}

layout! {
    /// Memory region. Its key is index * 256 + tag.
    struct MrEntry / MrEntryBits [32] {
        /// The region exists.
        valid: bool[1];
        /// Low byte of the key.
        tag: u8[8];
        /// Rights: bits of `verbs::access`.
        access: u8[8];
        /// The memory is behind another completer than the CQs: reads flush it before a CQE.
        peer: bool[1];
        /// Payload writes may carry relaxed ordering.
        relaxed_ordering: bool[1] reserved 13;
        /// Protection domain.
        pd: u32[24] reserved 8;
        /// First address as the key's users name it.
        va: u64[64];
        /// Length in bytes.
        length: u64[64];
        /// First address as the card must name it on PCI Express.
        iova: u64[64];
    }
}

impl MrEntry {
    /// The key of the region at `index` with `tag`.
    pub const fn key(index: u32, tag: u8) -> u32 {
        index << 8 | tag as u32
    }
}

layout! {
    /// Completion queue.
    struct CqEntry / CqEntryBits [24] {
        /// The queue exists.
        valid: bool[1];
        /// log2 of its entries.
        log_depth: u8[5] reserved 2;
        /// Doorbell page of the owner.
        page: u16[16];
        /// Event queue that tells of its entries.
        eqn: u8[8] reserved 32;
        /// IOVA of the ring, aligned to 64 bytes.
        base: u64[64];
        /// An event waits until so many entries are unreported; 0: it does not wait for a number.
        moderation_count: u16[16];
        /// Or until so many core clock ticks have passed since the first of them; 0: it does not wait for a time. The
        /// word of these two can be modified.
        moderation_period: u32[32] reserved 16;
    }
}

layout! {
    /// Event queue.
    struct EqEntry / EqEntryBits [16] {
        /// The queue exists.
        valid: bool[1];
        /// log2 of its entries.
        log_depth: u8[5] reserved 2;
        /// MSI-X vector.
        vector: u16[16] reserved 40;
        /// IOVA of the ring, aligned to 16 bytes.
        base: u64[64];
    }
}

layout! {
    /// Port settings.
    struct PortConfig / PortConfigBits [8] {
        /// MAC address of the port.
        mac: u64[48];
        /// Largest Ethernet payload in bytes.
        mtu: u16[16];
    }
}
