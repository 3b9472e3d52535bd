//! Doorbells: what a process writes to its page of BAR2.
//!
//! Page p starts at p * `doorbell_stride`. Each doorbell is one aligned 8-byte write; anything else is refused and
//! counted. The card ignores a doorbell for an object that another page owns, and counts it. EQ doorbells work on page
//! 0 alone, the driver's own. Indices are free-running modulo their field width.
//!
//! Push: a send WQE that stands in its ring may be copied to its page's push buffer too, by stores of any size in any
//! order, each byte once; then, after a store fence, a send doorbell with `pushed` is rung, whose last WQE it is. The card
//! takes the bytes if all of them came since the last doorbell of the page and the WQE is the next of its QP; else it
//! reads the ring, as without. Two who push by one page take turns.

use crate::layout;

layout! {
    /// New send WQEs are in host memory.
    struct SqDoorbell / SqDoorbellBits [8] {
        /// The QP.
        qpn: u32[24];
        /// The last of them stands in the page's push buffer too.
        pushed: bool[1] reserved 7;
        /// Index after the last WQE posted.
        producer: u16[16] reserved 16;
    }
}

layout! {
    /// New receive WQEs are in host memory.
    struct RqDoorbell / RqDoorbellBits [8] {
        /// The QP.
        qpn: u32[24] reserved 8;
        /// Index after the last WQE posted.
        producer: u16[16] reserved 16;
    }
}

layout! {
    /// CQEs were consumed; perhaps arms the CQ.
    struct CqDoorbell / CqDoorbellBits [8] {
        /// The CQ.
        cqn: u32[24];
        /// 0 leaves the arming as it is, 1 any next entry, 2 the next solicited entry; unconsumed entries count as next.
        arm: u8[2] reserved 6;
        /// Index after the last CQE consumed.
        consumer: u32[24] reserved 8;
    }
}

layout! {
    /// EQEs were consumed; perhaps arms the EQ.
    struct EqDoorbell / EqDoorbellBits [8] {
        /// The EQ.
        eqn: u32[24];
        /// Raise the vector at the next entry, at once if one is not consumed.
        arm: bool[1] reserved 7;
        /// Index after the last EQE consumed.
        consumer: u32[24] reserved 8;
    }
}

/// Offset of the send doorbell in its page.
pub const SQ_OFFSET: u32 = 0x00;
/// Offset of the receive doorbell in its page.
pub const RQ_OFFSET: u32 = 0x08;
/// Offset of the completion queue doorbell in its page.
pub const CQ_OFFSET: u32 = 0x10;
/// Offset of the event queue doorbell; page 0 only.
pub const EQ_OFFSET: u32 = 0x18;
/// Offset of the push buffer in its page.
pub const PUSH_OFFSET: u32 = 0x800;
/// Size of the push buffer in bytes.
pub const PUSH_BYTES: u32 = 0x100;
/// Bytes from one page to the next unless the register `doorbell_stride` says otherwise.
pub const DEFAULT_STRIDE: u32 = 4096;

/// `arm` of [`CqDoorbell`]: leave as it is.
pub const ARM_NONE: u8 = 0;
/// `arm` of [`CqDoorbell`]: any next entry.
pub const ARM_ANY: u8 = 1;
/// `arm` of [`CqDoorbell`]: the next solicited (or failed) entry.
pub const ARM_SOLICITED: u8 = 2;
