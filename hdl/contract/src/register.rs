//! The register map of BAR0.
//!
//! Accesses of 32 and 64 bits, aligned. A 64-bit counter read by halves is whole: reading the low doubleword latches
//! the high one. Reads of holes give zero, writes to them and to read-only registers do nothing.

use crate::reject::{Reject, StageCounter};

/// How software may use a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Ro,
    /// Read and write.
    Rw,
    /// Write only.
    Wo,
    /// Write one to clear.
    W1,
}

impl Access {
    /// As the documents write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ro => "RO",
            Self::Rw => "RW",
            Self::Wo => "WO",
            Self::W1 => "W1",
        }
    }
}

/// Where a register's value comes from at reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reset {
    /// A fixed value.
    Value(u64),
    /// Set by the configuration the card was built with.
    Config,
    /// Live state.
    Live,
    /// The layout hash.
    LayoutHash,
}

/// One register, or an array of equal ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register {
    /// Byte offset in BAR0.
    pub offset: u32,
    /// Name.
    pub name: &'static str,
    /// Width in bits: 32 or 64.
    pub width: u32,
    /// Elements; they follow each other without a gap.
    pub count: u32,
    /// How software may use it.
    pub access: Access,
    /// Value after reset.
    pub reset: Reset,
    /// The documentation line.
    pub doc: &'static str,
    /// The stage or block that owns it.
    pub source: &'static str,
}

macro_rules! registers {
    ($($(#[doc = $doc:literal])* $NAME:ident $name:ident $offset:literal $width:literal [$count:expr] $access:ident
        $reset:expr, $source:literal;)*) => {
        $($(#[doc = $doc])* pub const $NAME: u32 = $offset;)*

        /// Every register, in ascending order of offset.
        pub const REGISTERS: &[Register] = &[$(Register {
            offset: $offset,
            name: stringify!($name),
            width: $width,
            count: $count,
            access: Access::$access,
            reset: $reset,
            doc: concat!($($doc),*),
            source: $source,
        },)*];
    };
}

/// What `magic` reads: "VRBN" as four ASCII bytes in ascending addresses.
pub const MAGIC_VALUE: u32 = 0x4e42_5256;
/// Contract version: major in the upper 16 bits, minor in the lower. The driver needs the same major and at least its own minor.
pub const VERSION_VALUE: u32 = 0x0001_0000;

registers! {
    /// Tells that this is the card: "VRBN".
    MAGIC magic 0x0000 32 [1] Ro Reset::Value(MAGIC_VALUE as u64), "csr";
    /// Contract version: major in the upper 16 bits, minor in the lower.
    VERSION version 0x0004 32 [1] Ro Reset::Value(VERSION_VALUE as u64), "csr";
    /// Hash of every table of the contract; the driver refuses another one.
    LAYOUT_HASH layout_hash 0x0008 64 [1] Ro Reset::LayoutHash, "csr";
    /// Feature bits: see `feature`.
    FEATURES features 0x0010 32 [1] Ro Reset::Config, "csr";
    /// Bytes per beat of the data path.
    DATAPATH_BYTES datapath_bytes 0x0014 32 [1] Ro Reset::Config, "csr";
    /// Core clock in kHz.
    CORE_CLOCK_KHZ core_clock_khz 0x0018 32 [1] Ro Reset::Config, "csr";
    /// Core clock ticks in 4.096 us, the unit of the transport timers.
    TICKS_PER_4096NS ticks_per_4096ns 0x001c 32 [1] Ro Reset::Config, "csr";
    /// Number of QPs.
    MAX_QP max_qp 0x0020 32 [1] Ro Reset::Config, "csr";
    /// Number of memory regions.
    MAX_MR max_mr 0x0024 32 [1] Ro Reset::Config, "csr";
    /// Number of completion queues.
    MAX_CQ max_cq 0x0028 32 [1] Ro Reset::Config, "csr";
    /// Number of event queues.
    MAX_EQ max_eq 0x002c 32 [1] Ro Reset::Config, "csr";
    /// Number of MSI-X vectors.
    MSIX_VECTORS msix_vectors 0x0030 32 [1] Ro Reset::Config, "csr";
    /// Bytes from one doorbell page to the next.
    DOORBELL_STRIDE doorbell_stride 0x0034 32 [1] Ro Reset::Config, "csr";
    /// Number of doorbell pages.
    DOORBELL_PAGES doorbell_pages 0x0038 32 [1] Ro Reset::Config, "csr";
    /// Most SGEs of a receive WQE and of a READ.
    MAX_SGE max_sge 0x003c 32 [1] Ro Reset::Config, "csr";
    /// Most inline bytes of a send WQE.
    MAX_INLINE max_inline 0x0040 32 [1] Ro Reset::Config, "csr";
    /// Outstanding records that the driver may hand out to QPs.
    RECORD_COUNT record_count 0x0044 32 [1] Ro Reset::Config, "csr";
    /// log2 of the longest message in bytes.
    MAX_MESSAGE max_message 0x0048 32 [1] Ro Reset::Config, "csr";
    /// PCI Express read tags.
    READ_TAGS read_tags 0x004c 32 [1] Ro Reset::Config, "csr";
    /// READs and atomics of this side that may be outstanding, over all QPs; the driver hands them out.
    READ_COUNT read_count 0x0050 32 [1] Ro Reset::Config, "csr";
    /// READs and atomics of peers that the card can keep, over all QPs; the driver hands them out.
    RESPONSE_COUNT response_count 0x0054 32 [1] Ro Reset::Config, "csr";
    /// Most SGEs of a SEND or WRITE.
    MAX_SEND_SGE max_send_sge 0x0058 32 [1] Ro Reset::Config, "csr";
    /// IOVA of the command ring, aligned to 4096.
    COMMAND_BASE command_base 0x0100 64 [1] Rw Reset::Value(0), "command";
    /// IOVA of the response ring, aligned to 4096.
    RESPONSE_BASE response_base 0x0108 64 [1] Rw Reset::Value(0), "command";
    /// log2 of the entries of both rings.
    COMMAND_LOG_DEPTH command_log_depth 0x0110 32 [1] Rw Reset::Value(0), "command";
    /// Index after the last command written, 16 bits.
    COMMAND_PRODUCER command_producer 0x0114 32 [1] Rw Reset::Value(0), "command";
    /// Index after the last command answered, 16 bits.
    COMMAND_CONSUMER command_consumer 0x0118 32 [1] Ro Reset::Value(0), "command";
    /// Bit 0: commands are executed. A 0 to 1 step starts both indices at 0.
    COMMAND_ENABLE command_enable 0x011c 32 [1] Rw Reset::Value(0), "command";
    /// Core clock ticks since reset.
    NOW now 0x0200 64 [1] Ro Reset::Live, "csr";
    /// The earliest deadline of any timer, in ticks; all ones: none.
    NEXT_DUE next_due 0x0208 64 [1] Ro Reset::Live, "csr";
    /// Bit 0: quiet (nothing under way but timers); bit 1: device error.
    STATUS status 0x0210 32 [1] Ro Reset::Live, "csr";
    /// MAC address of the port.
    PORT_MAC port_mac 0x0300 64 [1] Ro Reset::Config, "mac";
    /// Largest Ethernet payload in bytes.
    PORT_MTU port_mtu 0x0308 32 [1] Ro Reset::Config, "mac";
    /// Bit 0: link up.
    PORT_STATUS port_status 0x030c 32 [1] Ro Reset::Live, "mac";
    /// Bits 23:0: the raw QP that takes frames that are not RoCE, bit 30: those for other MAC addresses, too; bit 31: it does.
    RAW_RECEIVE raw_receive 0x0310 32 [1] Rw Reset::Value(0), "verify";
    /// Bit 0: the stage trace is written. A 0 to 1 step starts `trace_producer` at 0.
    TRACE_CONTROL trace_control 0x0400 32 [1] Rw Reset::Value(0), "trace";
    /// Which stages are traced: bit = `Stage` code. Ends of reads go with Pcie; refusals are always traced.
    TRACE_STAGES trace_stages 0x0404 32 [1] Rw Reset::Value(0x1_ffff), "trace";
    /// Entries written since the trace was started.
    TRACE_PRODUCER trace_producer 0x0408 64 [1] Ro Reset::Value(0), "trace";
    /// Entries that the ring holds; 0: this card has none.
    TRACE_ENTRIES trace_entries 0x0410 32 [1] Ro Reset::Config, "trace";
    /// Bit 0: the configuration flash is selected. This block never moves, so that any tool can repair any card that has `feature::FLASH`.
    FLASH_CONTROL flash_control 0x0500 32 [1] Rw Reset::Value(0), "csr";
    /// Bytes of `flash_data` still to exchange with the flash; a write of 1 to 8 while it is 0 starts that many.
    FLASH_TRANSFER flash_transfer 0x0504 32 [1] Rw Reset::Value(0), "flash";
    /// Before a transfer: the bytes to send, the first in the low byte. After it: those received, the last in the high byte.
    FLASH_DATA flash_data 0x0508 64 [1] Rw Reset::Value(0), "flash";
    /// Writing `FLASH_RELOAD_KEY` loads the FPGA anew from the flash; the card leaves the bus meanwhile.
    FLASH_RELOAD flash_reload 0x0510 32 [1] Wo Reset::Value(0), "csr";
    /// Refusals, one counter per `Reject` code.
    REJECT_COUNTERS reject 0x1000 64 [Reject::ALL.len() as u32] Ro Reset::Value(0), "csr";
    /// Events, one counter per `StageCounter` code.
    STAGE_COUNTERS stage 0x1800 64 [StageCounter::ALL.len() as u32] Ro Reset::Value(0), "csr";
    /// The ring: `TraceEntry` n at 16 * (n modulo `trace_entries`), as two quadwords.
    TRACE_RING trace_ring 0x4000 64 [2 * crate::trace::WINDOW_ENTRIES] Ro Reset::Value(0), "trace";
}

/// `status` bit: nothing is under way but timers.
pub const STATUS_QUIET: u32 = 1;
/// `status` bit: the device met an error that only a reset clears.
pub const STATUS_ERROR: u32 = 2;
/// `port_status` bit: the link is up.
pub const PORT_LINK_UP: u32 = 1;

/// `raw_receive` bit: frames for whatever MAC address are taken.
pub const RAW_PROMISCUOUS: u32 = 1 << 30;
/// `raw_receive` bit: frames that are not RoCE are taken, not dropped.
pub const RAW_ENABLE: u32 = 1 << 31;

/// `flash_control` bit: the flash is selected.
pub const FLASH_SELECT: u32 = 1;
/// What `flash_reload` wants: "BOOT" as four ASCII bytes in ascending addresses.
pub const FLASH_RELOAD_KEY: u32 = 0x544f_4f42;

/// `trace_control` bit: the stage trace is written.
pub const TRACE_ENABLE: u32 = 1;

/// Bits of the register `features`.
pub mod feature {
    /// RC SEND and WRITE.
    pub const RC: u32 = 1 << 0;
    /// RC READ.
    pub const READ: u32 = 1 << 1;
    /// Atomics.
    pub const ATOMIC: u32 = 1 << 2;
    /// UC.
    pub const UC: u32 = 1 << 3;
    /// UD and QP1.
    pub const UD: u32 = 1 << 4;
    /// Shared receive queues.
    pub const SRQ: u32 = 1 << 5;
    /// Inline send data.
    pub const INLINE: u32 = 1 << 6;
    /// IPv6.
    pub const IPV6: u32 = 1 << 7;
    /// WQE push.
    pub const PUSH: u32 = 1 << 8;
    /// SEND with invalidate and local invalidate.
    pub const INVALIDATE: u32 = 1 << 9;
    /// CQ moderation.
    pub const MODERATION: u32 = 1 << 10;
    /// The stage trace.
    pub const TRACE: u32 = 1 << 11;
    /// QPs of raw Ethernet frames.
    pub const RAW: u32 = 1 << 12;
    /// The configuration flash, by the `flash_` registers.
    pub const FLASH: u32 = 1 << 13;
}

/// Offset of a reject counter.
pub const fn reject_counter(reject: Reject) -> u32 {
    REJECT_COUNTERS + 8 * reject as u32
}

/// Offset of a stage counter.
pub const fn stage_counter(counter: StageCounter) -> u32 {
    STAGE_COUNTERS + 8 * counter as u32
}

/// Size of BAR0 in bytes.
pub const BAR0_BYTES: u32 = 0x8000;
