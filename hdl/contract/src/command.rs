//! The command queue: how the driver creates, changes, queries and destroys objects.
//!
//! Two rings of 256-byte entries in host memory, of equal depth: the driver writes [`CommandEntry`]s and the register
//! `command_producer`; the card executes them in order and writes one [`CommandResponse`] each, whose last byte carries
//! the phase, into the same slot of the response ring. A command never stays without a response.

use crate::{codes, layout};

layout! {
    /// Command.
    struct CommandEntry / CommandEntryBits [256] {
        /// See `CommandOpcode`.
        opcode: u8[8];
        /// Object number.
        index: u32[24];
        /// Returned in the response.
        sequence: u16[16] reserved 16;
        /// Which of the sixteen context words are written.
        word_mask: u16[16];
        /// QPs: the receive side starts anew at `rq_psn`.
        init_receive: bool[1];
        /// QPs: the send side starts anew at `sq_psn`.
        init_send: bool[1];
        /// QPs: everything starts anew, posted indices included.
        reset_all: bool[1] reserved 45;
        /// Context word 0.
        w0: u64[64];
        /// Context word 1.
        w1: u64[64];
        /// Context word 2.
        w2: u64[64];
        /// Context word 3.
        w3: u64[64];
        /// Context word 4.
        w4: u64[64];
        /// Context word 5.
        w5: u64[64];
        /// Context word 6.
        w6: u64[64];
        /// Context word 7.
        w7: u64[64];
        /// Context word 8.
        w8: u64[64];
        /// Context word 9.
        w9: u64[64];
        /// Context word 10.
        w10: u64[64];
        /// Context word 11.
        w11: u64[64];
        /// Context word 12.
        w12: u64[64];
        /// Context word 13.
        w13: u64[64];
        /// Context word 14.
        w14: u64[64];
        /// Context word 15.
        w15: u64[64] reserved 896;
    }
}

layout! {
    /// Response to a command.
    struct CommandResponse / CommandResponseBits [256] {
        /// See `CommandStatus`.
        status: u8[8];
        /// Opcode of the command.
        opcode: u8[8];
        /// Sequence of the command.
        sequence: u16[16] reserved 96;
        /// Context word 0.
        w0: u64[64];
        /// Context word 1.
        w1: u64[64];
        /// Context word 2.
        w2: u64[64];
        /// Context word 3.
        w3: u64[64];
        /// Context word 4.
        w4: u64[64];
        /// Context word 5.
        w5: u64[64];
        /// Context word 6.
        w6: u64[64];
        /// Context word 7.
        w7: u64[64];
        /// Context word 8.
        w8: u64[64];
        /// Context word 9.
        w9: u64[64];
        /// Context word 10.
        w10: u64[64];
        /// Context word 11.
        w11: u64[64];
        /// Context word 12.
        w12: u64[64];
        /// Context word 13.
        w13: u64[64];
        /// Context word 14.
        w14: u64[64];
        /// Context word 15.
        w15: u64[64] reserved 888;
        /// Validity: 1 in the first lap of the ring, then alternating.
        phase: bool[1] reserved 7;
    }
}

macro_rules! data_words {
    ($($Name:ident)*) => {$(
        impl $Name {
            /// The sixteen context words.
            pub fn data(&self) -> [u64; 16] {
                [self.w0, self.w1, self.w2, self.w3, self.w4, self.w5, self.w6, self.w7, self.w8, self.w9, self.w10, self.w11, self.w12, self.w13, self.w14, self.w15]
            }

            /// The same with these context words.
            pub fn with_data(self, data: &[u64; 16]) -> Self {
                Self { w0: data[0], w1: data[1], w2: data[2], w3: data[3], w4: data[4], w5: data[5], w6: data[6], w7: data[7], w8: data[8], w9: data[9], w10: data[10], w11: data[11], w12: data[12], w13: data[13], w14: data[14], w15: data[15], ..self }
            }
        }
    )*};
}
data_words!(CommandEntry CommandResponse);

codes! {
    /// What a command does.
    enum CommandOpcode {
        /// Nothing, successfully.
        Nop = 0,
        /// Creates an event queue from an `EqEntry`.
        CreateEq = 1,
        /// Destroys an event queue.
        DestroyEq = 2,
        /// Creates a completion queue from a `CqEntry`.
        CreateCq = 3,
        /// Destroys a completion queue.
        DestroyCq = 4,
        /// Creates a memory region from an `MrEntry`.
        CreateMr = 5,
        /// Destroys a memory region; afterwards no access to it is under way.
        DestroyMr = 6,
        /// Creates a QP from a `QpContext`.
        CreateQp = 7,
        /// Writes the masked words of a QP context; checks the state transition.
        ModifyQp = 8,
        /// Returns a QP context with live state and PSNs.
        QueryQp = 9,
        /// Destroys a QP; afterwards no access for it is under way.
        DestroyQp = 10,
        /// Returns an `MrEntry`.
        QueryMr = 11,
        /// Returns a `CqEntry`.
        QueryCq = 12,
        /// Sets the port from a `PortConfig`.
        SetPort = 13,
        /// Writes word 2 of a CQ, its moderation, if the mask names it; an event held back is told at once.
        ModifyCq = 14,
    }
}

codes! {
    /// How a command ended.
    enum CommandStatus {
        /// Done.
        Ok = 0,
        /// No such command.
        BadOpcode = 1,
        /// The object number exceeds the card's limit.
        BadIndex = 2,
        /// The QP may not go from its state to the wanted one.
        BadState = 3,
        /// The object exists already. (Whether others still use one that is destroyed is the driver's to know.)
        InUse = 4,
        /// The object does not exist.
        NotFound = 5,
        /// A context field is out of its range.
        BadParameter = 6,
        /// The command could not be read, or the card met an error.
        Internal = 7,
    }
}
