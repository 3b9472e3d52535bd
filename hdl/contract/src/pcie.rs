//! The PCI Express transaction layer headers that cross the generic TLP interface.
//!
//! A memory request stands here in its 4-doubleword form. Below 4 GiB the specification demands the 3-doubleword form,
//! which the card sends and takes: bit 0 of `fmt` is 0, and the address is the third doubleword, its upper half left
//! out. Header doubleword 0 comes first, its most significant bit first.
//! Sources: PCI Express base specification 2.2 (request and completion headers) by way of public reference models.

use crate::{codes, wire};

wire! {
    /// Header of a memory request, read, write or atomic, in the 4-doubleword form.
    struct TlpMemoryHeader / TlpMemoryHeaderBits [16] {
        /// Bit 0: 4-doubleword header; bit 1: with data.
        fmt: u8[3];
        /// Kind of request; 0 = memory, 0x0c..=0x0e atomics.
        kind: u8[5];
        /// Tag bit 9.
        tag9: bool[1];
        /// Traffic class.
        traffic_class: u8[3];
        /// Tag bit 8.
        tag8: bool[1];
        /// Attribute bit 2: ordering by ID.
        id_ordering: bool[1];
        /// Lightweight notification.
        ln: bool[1];
        /// Processing hints follow.
        th: bool[1];
        /// A digest follows.
        digest: bool[1];
        /// Poisoned.
        poisoned: bool[1];
        /// Attribute bit 1: relaxed ordering.
        relaxed_ordering: bool[1];
        /// Attribute bit 0: no snoop.
        no_snoop: bool[1];
        /// Address type: 0 = untranslated.
        address_type: u8[2];
        /// Doublewords of data (or to read); 0 = 1024.
        length: u16[10];
        /// Requester: bus, device, function.
        requester_id: u16[16];
        /// Tag bits 7:0.
        tag: u8[8];
        /// Byte enables of the last doubleword; 0 when there is only one.
        last_be: u8[4];
        /// Byte enables of the first doubleword.
        first_be: u8[4];
        /// Byte address; the two low bits are zero.
        address: u64[64];
    }
}

wire! {
    /// Header of a completion.
    struct TlpCompletionHeader / TlpCompletionHeaderBits [12] {
        /// Bit 1: with data.
        fmt: u8[3];
        /// 0x0a.
        kind: u8[5];
        /// Tag bit 9.
        tag9: bool[1];
        /// Traffic class.
        traffic_class: u8[3];
        /// Tag bit 8.
        tag8: bool[1];
        /// Attribute bit 2: ordering by ID.
        id_ordering: bool[1];
        /// Lightweight notification.
        ln: bool[1];
        /// Processing hints follow.
        th: bool[1];
        /// A digest follows.
        digest: bool[1];
        /// Poisoned: the data must not be used.
        poisoned: bool[1];
        /// Attribute bit 1: relaxed ordering.
        relaxed_ordering: bool[1];
        /// Attribute bit 0: no snoop.
        no_snoop: bool[1];
        /// Address type: 0.
        address_type: u8[2];
        /// Doublewords of data; 0 = 1024; meaningless unless the status is 0.
        length: u16[10];
        /// Completer: bus, device, function.
        completer_id: u16[16];
        /// See `CompletionStatus`.
        status: u8[3];
        /// Byte count modified: PCI-X bridges only.
        bcm: bool[1];
        /// Bytes still owed, this completion included; 0 = 4096.
        byte_count: u16[12];
        /// Requester: bus, device, function.
        requester_id: u16[16];
        /// Tag bits 7:0.
        tag: u8[8] reserved 1;
        /// Low address bits of the first enabled byte of this completion.
        lower_address: u8[7];
    }
}

codes! {
    /// Status of a completion.
    enum CompletionStatus {
        /// Successful.
        Successful = 0,
        /// Unsupported request.
        UnsupportedRequest = 1,
        /// Request retry: configuration requests only.
        RequestRetry = 2,
        /// Completer abort.
        CompleterAbort = 4,
    }
}

/// `fmt` of a memory read in the 4-doubleword form.
pub const FMT_READ: u8 = 0b001;
/// `fmt` of a memory write in the 4-doubleword form.
pub const FMT_WRITE: u8 = 0b011;
/// `fmt` of a completion without data.
pub const FMT_COMPLETION: u8 = 0b000;
/// `fmt` of a completion with data.
pub const FMT_COMPLETION_DATA: u8 = 0b010;
/// `kind` of a memory read or write.
pub const KIND_MEMORY: u8 = 0b0_0000;
/// `kind` of a completion.
pub const KIND_COMPLETION: u8 = 0b0_1010;
