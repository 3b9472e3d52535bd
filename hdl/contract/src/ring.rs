//! What stands in the rings of host memory: send and receive WQEs, CQEs and EQEs, all little-endian.
//!
//! The driver writes WQEs, the card reads them; the card writes CQEs and EQEs, each in one aligned write whose last
//! byte carries the phase, so that the reader needs no index. A ring starts zeroed; the first lap writes phase 1, the
//! next phase 0, and so on. Queue depths are powers of two up to 2^15; indices run free.

use crate::{codes, layout};

layout! {
    /// Scatter/gather element; a receive WQE is nothing but these (unused ones zero).
    struct Sge / SgeBits [16] {
        /// First byte, in the address space of the key.
        addr: u64[64];
        /// Length in bytes; an element of length 0 is skipped.
        length: u32[32];
        /// Local key.
        lkey: u32[32];
    }
}

layout! {
    /// Head of a send WQE; SGEs or inline data follow at byte 32.
    struct SendWqe / SendWqeBits [32] {
        /// See `WrOpcode`.
        opcode: u8[8];
        /// A successful completion is wanted.
        signaled: bool[1];
        /// Sets the solicited event bit of the last packet.
        solicited: bool[1];
        /// Waits until all earlier READs and atomics are complete.
        fence: bool[1];
        /// The data itself follows instead of SGEs, which are not counted then: SEND and WRITE.
        inline: bool[1] reserved 4;
        /// Number of SGEs that follow.
        num_sge: u8[8] reserved 8;
        /// Immediate data or the R_Key to invalidate; its four bytes stand here as on the wire.
        imm: u32[32];
        /// Remote virtual address.
        remote_addr: u64[64];
        /// Remote key.
        rkey: u32[32];
        /// Sum of the SGE lengths, or inline length, in bytes.
        length: u32[32];
        /// Index of this WQE, modulo 2^16: fetch refuses a stale slot.
        index: u16[16];
        /// The QP: looked at in a pushed WQE alone.
        qpn: u32[24] reserved 24;
    }
}

layout! {
    /// Operands of an atomic WQE: they follow its only SGE, at byte 48.
    struct AtomicOperands / AtomicOperandsBits [16] {
        /// Written only if the memory equals this (compare and swap).
        compare: u64[64];
        /// What is written, or added.
        swap_or_add: u64[64];
    }
}

layout! {
    /// Completion queue entry.
    struct Cqe / CqeBits [64] {
        /// Index of the completed WQE in its queue, modulo 2^16.
        wqe_index: u16[16];
        /// See `WcOpcode`; bit 7 set: receive queue.
        opcode: u8[8];
        /// See `WcStatus`.
        status: u8[8];
        /// Local QP.
        qpn: u32[24];
        /// `imm` holds immediate data.
        with_imm: bool[1];
        /// `imm` holds an invalidated R_Key.
        with_inv: bool[1];
        /// The sender asked for a solicited event.
        solicited: bool[1];
        /// The first 40 bytes of the buffer hold a GRH.
        grh: bool[1] reserved 4;
        /// Bytes received (or read).
        byte_len: u32[32];
        /// Immediate data or invalidated R_Key; its four bytes stand here as on the wire.
        imm: u32[32];
        /// The sender's QP (datagrams).
        src_qpn: u32[24] reserved 8;
        /// `Reject` code + 1 of the cause, 0 on success.
        vendor_err: u32[32];
        /// Core clock ticks since reset when the entry was made.
        timestamp: u64[64] reserved 248;
        /// Validity: see the head of this file.
        phase: bool[1] reserved 7;
    }
}

layout! {
    /// Event queue entry.
    struct Eqe / EqeBits [16] {
        /// See `EventKind`.
        kind: u8[8];
        /// See `AsyncEvent`; 0 unless the kind is Async.
        event: u8[8] reserved 16;
        /// Number of the CQ or QP concerned; of a command its sequence.
        object: u32[32];
        /// Low bits of the timestamp.
        data: u64[56];
        /// Validity: see the head of this file.
        phase: bool[1] reserved 7;
    }
}

codes! {
    /// What an event is about.
    enum EventKind {
        /// An armed CQ has a new entry.
        Completion = 1,
        /// An asynchronous event of a QP, CQ or port.
        Async = 2,
        /// A command response was written.
        Command = 3,
        /// The device itself met an error.
        Device = 4,
        /// A CQ overflowed.
        CqOverflow = 5,
    }
}

/// Send WQE strides are 2^this and more: 64 bytes.
pub const SEND_STRIDE_MIN_LOG: u32 = 6;
/// Send WQE strides are at most 2^this: 512 bytes.
pub const SEND_STRIDE_MAX_LOG: u32 = 9;
/// Most bytes of a send WQE that this version fetches: head and SGEs.
pub const SEND_FETCH_BYTES: u32 = 32 + 16 * MAX_SGE;
/// Most SGEs of a send or receive WQE, in a stride that holds them.
pub const MAX_SGE: u32 = 16;
/// Most inline bytes of a send WQE; fewer if its stride is less than 256. They fit one packet at every path MTU.
pub const MAX_INLINE: u32 = 220;
/// Most entries of a queue, as a power of two.
pub const MAX_LOG_DEPTH: u32 = 15;

/// The phase that the card writes with the entry of free-running index `index` in a ring of 2^`log_depth` entries.
pub const fn phase(index: u32, log_depth: u32) -> bool {
    index >> log_depth & 1 == 0
}
