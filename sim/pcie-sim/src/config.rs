//! The endpoint's configuration space: what enumeration and a VFIO driver see, and the values it exports to the card.
//!
//! In: reads and writes of any size at byte offsets. Out: bytes, and a [`Sideband`] that the card's shim drives as
//! wires. A write touches writable bits only; BAR sizing, RW1C status bits and the self-clearing FLR bit follow from the
//! masks. Never routed to the card's RTL: hard cores answer configuration requests themselves, and so does this model.
//!
//! | offset | what |
//! |---|---|
//! | 0x00 | header type 0: ID 1ee7:0001, class 0200, BAR0 registers, BAR2 doorbells, BAR4 MSI-X, all 64-bit memory |
//! | 0x40 | power management, D0 and D3hot |
//! | 0x60 | PCI Express capability version 2, endpoint with FLR, extended tags, MPS up to 512 |
//! | 0xa0 | MSI-X, table and PBA in BAR4 |
//! | 0x100 | advanced error reporting: status, mask and severity keep their values through FLR |

use std::fmt::Write as _;
use thiserror::Error;

/// Vendor ID.
pub const VENDOR: u16 = 0x1ee7;
/// Device ID.
pub const DEVICE: u16 = 0x0001;
/// Bytes of the configuration space.
pub const CONFIG_BYTES: usize = 4096;

const COMMAND: usize = 0x04;
const STATUS: usize = 0x06;
const BARS: usize = 0x10;
const PM: usize = 0x40;
const PCIE: usize = 0x60;
const DEVCTL: usize = PCIE + 0x08;
const DEVSTA: usize = PCIE + 0x0a;
const LNKCTL: usize = PCIE + 0x10;
const DEVCTL2: usize = PCIE + 0x28;
const MSIX: usize = 0xa0;
const AER: usize = 0x100;
/// Bytes of the capability without the root's registers.
const AER_BYTES: usize = 0x2c;
/// What the function can detect beyond its link: poisoned TLP, completion timeout, unexpected completion, receiver overflow,
/// malformed TLP, unsupported request.
const UNCORRECTABLE: u32 = 1 << 12 | 1 << 14 | 1 << 16 | 1 << 17 | 1 << 18 | 1 << 20;
/// Of these and of the link's own, the fatal ones.
const FATAL: u32 = 1 << 4 | 1 << 5 | 1 << 13 | 1 << 17 | 1 << 18;
/// An uncorrectable error that is merely told of.
const ADVISORY: u32 = 1 << 13;

/// Sizes and counts of the endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointConfig {
    /// BAR0, registers: bytes, a power of two of at least 4096.
    pub register_bytes: u64,
    /// BAR2, doorbells: bytes, a power of two of at least 4096.
    pub doorbell_bytes: u64,
    /// BAR4, MSI-X alone: bytes, a power of two of at least 4096.
    pub msix_bytes: u64,
    /// MSI-X vectors, 1..=2048.
    pub vectors: u16,
    /// Offset of the pending bit array in BAR4; the table is at 0.
    pub pending_offset: u32,
    /// Lanes told in the link registers: 1, 2, 4, 8, 16.
    pub width: u8,
    /// Generation told in the link registers: 1..=4.
    pub generation: u8,
}

impl Default for EndpointConfig {
    fn default() -> Self {
        EndpointConfig {
            register_bytes: 64 << 10,
            doorbell_bytes: 256 << 10,
            msix_bytes: 64 << 10,
            vectors: 32,
            pending_offset: 0x8000,
            width: 8,
            generation: 3,
        }
    }
}

/// Why an [`EndpointConfig`] cannot exist.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ConfigError {
    /// A BAR size.
    #[error("endpoint: BAR{bar} of {bytes:#x} bytes; use a power of two of at least 4096")]
    BarSize {
        /// 0, 2 or 4.
        bar: u8,
        /// Size asked for.
        bytes: u64,
    },
    /// The number of vectors.
    #[error("endpoint: {0} MSI-X vectors; use 1 to 2048")]
    Vectors(u16),
    /// Table and PBA do not fit.
    #[error(
        "endpoint: MSI-X table of {table:#x} bytes and pending bits at {pending:#x} do not fit {bytes:#x} bytes of BAR4; move the pending bits (8-byte aligned) behind the table or enlarge the BAR"
    )]
    MsixLayout {
        /// Bytes of the table.
        table: u64,
        /// Offset of the PBA.
        pending: u32,
        /// Bytes of BAR4.
        bytes: u64,
    },
    /// Link width or generation.
    #[error("endpoint: generation {generation} x{width}; use generation 1 to 4 and 1, 2, 4, 8 or 16 lanes")]
    Link {
        /// Generation asked for.
        generation: u8,
        /// Lanes asked for.
        width: u8,
    },
}

/// What the configuration space tells the card, as wires of the core would.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sideband {
    /// Requests may be sent: bus master enable, and the function is in D0.
    pub bus_master: bool,
    /// BARs answer: memory space enable, and the function is in D0.
    pub memory_enable: bool,
    /// Max_Payload_Size in bytes.
    pub max_payload: u16,
    /// Max_Read_Request_Size in bytes.
    pub max_read: u16,
    /// Read completion boundary of the root in bytes, 64 or 128.
    pub rcb: u16,
    /// Extended tags: 256 instead of 32.
    pub extended_tag: bool,
    /// RO may be set.
    pub relaxed_ordering: bool,
    /// NS may be set.
    pub no_snoop: bool,
    /// IDO may be set in requests.
    pub id_ordering: bool,
    /// AtomicOps may be sent.
    pub atomics: bool,
    /// Completion timeout: code, and bit 4 if there is none.
    pub completion_timeout: u8,
    /// Captured bus, device and function.
    pub requester: u16,
    /// MSI-X enable.
    pub msix_enable: bool,
    /// MSI-X function mask.
    pub msix_mask: bool,
    /// A function level reset is in progress.
    pub flr: bool,
    /// The link is up.
    pub link_up: bool,
}

/// Something that a configuration write set off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigEffect {
    /// Nothing beyond the bits themselves.
    None,
    /// The FLR bit was written.
    FunctionLevelReset,
}

/// Errors that the device status register and the status register record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorStatus {
    /// The function received a request that it does not support.
    UnsupportedRequest,
    /// A poisoned TLP arrived.
    PoisonedReceived,
    /// A poisoned completion arrived, or a poisoned write was sent, with parity error response on.
    MasterData,
    /// A non-fatal error (a completion timeout, an unexpected completion).
    NonFatal,
    /// A fatal error (malformed TLP, receiver overflow).
    Fatal,
}

/// 4096 bytes of registers with their masks.
#[derive(Clone)]
pub struct ConfigSpace {
    endpoint: EndpointConfig,
    value: Vec<u8>,
    writable: Vec<u8>,
    clears: Vec<u8>,
    requester: u16,
    flr: bool,
}

impl ConfigSpace {
    /// The reset state of the endpoint.
    pub fn new(endpoint: EndpointConfig) -> Result<ConfigSpace, ConfigError> {
        let bars = [endpoint.register_bytes, endpoint.doorbell_bytes, endpoint.msix_bytes];
        for (i, &bytes) in bars.iter().enumerate() {
            if !bytes.is_power_of_two() || bytes < 4096 {
                return Err(ConfigError::BarSize { bar: i as u8 * 2, bytes });
            }
        }
        if !(1..=2048).contains(&endpoint.vectors) {
            return Err(ConfigError::Vectors(endpoint.vectors));
        }
        let table = endpoint.vectors as u64 * 16;
        let pending = endpoint.pending_offset;
        let pending_end = pending as u64 + (endpoint.vectors as u64).div_ceil(64) * 8;
        if !pending.is_multiple_of(8) || (pending as u64) < table || pending_end > endpoint.msix_bytes {
            return Err(ConfigError::MsixLayout { table, pending, bytes: endpoint.msix_bytes });
        }
        if !(1..=4).contains(&endpoint.generation) || !matches!(endpoint.width, 1 | 2 | 4 | 8 | 16) {
            return Err(ConfigError::Link { generation: endpoint.generation, width: endpoint.width });
        }
        let mut space = ConfigSpace {
            endpoint,
            value: vec![0; CONFIG_BYTES],
            writable: vec![0; CONFIG_BYTES],
            clears: vec![0; CONFIG_BYTES],
            requester: 0,
            flr: false,
        };
        // What a power cycle sets and FLR leaves alone.
        space.set32(AER + 0x0c, FATAL);
        space.set32(AER + 0x14, ADVISORY);
        space.reset();
        Ok(space)
    }

    fn set16(&mut self, at: usize, value: u16) {
        self.value[at..at + 2].copy_from_slice(&value.to_le_bytes());
    }
    fn set32(&mut self, at: usize, value: u32) {
        self.value[at..at + 4].copy_from_slice(&value.to_le_bytes());
    }
    fn mask16(&mut self, at: usize, mask: u16) {
        self.writable[at..at + 2].copy_from_slice(&mask.to_le_bytes());
    }
    fn get16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.value[at], self.value[at + 1]])
    }
    fn get32(&self, at: usize) -> u32 {
        u32::from_le_bytes([self.value[at], self.value[at + 1], self.value[at + 2], self.value[at + 3]])
    }

    /// Sets every register to its reset value: what FLR does. The captured requester ID stays with the link, and so do
    /// the errors told.
    pub fn reset(&mut self) {
        let endpoint = self.endpoint.clone();
        let sticky = self.value[AER..AER + AER_BYTES].to_vec();
        self.value.fill(0);
        self.writable.fill(0);
        self.clears.fill(0);
        self.set16(0x00, VENDOR);
        self.set16(0x02, DEVICE);
        self.mask16(COMMAND, 1 << 1 | 1 << 2 | 1 << 6 | 1 << 8 | 1 << 10);
        self.set16(STATUS, 1 << 4);
        self.clears[STATUS + 1] = 0xf9;
        self.set32(0x08, 0x0200_0000);
        self.writable[0x0c] = 0xff;
        self.set16(0x2c, VENDOR);
        self.set16(0x2e, DEVICE);
        self.value[0x34] = PM as u8;
        self.writable[0x3c] = 0xff;
        // Registers have side effects, so BAR0 and BAR4 are not prefetchable; doorbell pages may be write-combined.
        let bars = [
            (endpoint.register_bytes, 0b0100),
            (endpoint.doorbell_bytes, 0b1100),
            (endpoint.msix_bytes, 0b0100),
        ];
        for (i, (bytes, kind)) in bars.into_iter().enumerate() {
            let at = BARS + i * 8;
            self.set32(at, kind);
            self.writable[at..at + 8].copy_from_slice(&(!(bytes - 1)).to_le_bytes());
        }
        // Power management, version 3, D3hot without soft reset of the state.
        self.value[PM..PM + 2].copy_from_slice(&[0x01, PCIE as u8]);
        self.set16(PM + 2, 3);
        self.set16(PM + 4, 1 << 3);
        self.mask16(PM + 4, 3);
        // PCI Express.
        self.value[PCIE..PCIE + 2].copy_from_slice(&[0x10, MSIX as u8]);
        self.set16(PCIE + 2, 2);
        // MPS 512, extended tag, L0s and L1 latency without limit, role-based errors, FLR.
        self.set32(PCIE + 4, 2 | 1 << 5 | 7 << 6 | 7 << 9 | 1 << 15 | 1 << 28);
        // Reset values: relaxed ordering and no-snoop allowed, MRRS 512, MPS 128, tags of 5 bits.
        self.set16(DEVCTL, 1 << 4 | 1 << 11 | 2 << 12);
        self.mask16(DEVCTL, 0x79ff);
        self.clears[DEVSTA] = 0x0f;
        let width = (endpoint.width as u32) << 4;
        let speed = endpoint.generation as u32;
        self.set32(PCIE + 0x0c, speed | width);
        self.mask16(LNKCTL, 1 << 3 | 1 << 6 | 1 << 7);
        self.set16(LNKCTL + 2, (speed | width) as u16 | 1 << 12);
        // Timeout ranges A to C, and it can be disabled.
        self.set32(PCIE + 0x24, 0x7 | 1 << 4);
        self.mask16(DEVCTL2, 0xf | 1 << 4 | 1 << 6 | 1 << 8 | 1 << 9);
        self.set32(PCIE + 0x2c, ((1 << endpoint.generation) - 1) << 1);
        self.set16(PCIE + 0x30, endpoint.generation as u16);
        self.mask16(PCIE + 0x30, 0xf);
        // MSI-X, in BAR4.
        self.value[MSIX] = 0x11;
        self.set16(MSIX + 2, endpoint.vectors - 1);
        self.mask16(MSIX + 2, 1 << 14 | 1 << 15);
        self.set32(MSIX + 4, 4);
        self.set32(MSIX + 8, endpoint.pending_offset | 4);
        // Advanced error reporting, version 2, the last extended capability; no ECRC.
        self.value[AER..AER + AER_BYTES].copy_from_slice(&sticky);
        self.set32(AER, 1 | 2 << 16);
        self.clears[AER + 4..AER + 8].copy_from_slice(&UNCORRECTABLE.to_le_bytes());
        self.clears[AER + 0x10..AER + 0x14].copy_from_slice(&ADVISORY.to_le_bytes());
        for (at, mask) in [(0x08, UNCORRECTABLE), (0x0c, UNCORRECTABLE), (0x14, ADVISORY)] {
            self.writable[AER + at..AER + at + 4].copy_from_slice(&mask.to_le_bytes());
        }
    }

    /// The sizes this endpoint was made with.
    pub fn endpoint(&self) -> &EndpointConfig {
        &self.endpoint
    }

    /// Reads bytes; beyond 4096 they read as zero. `pending`: the card has non-posted requests outstanding.
    pub fn read(&self, offset: usize, into: &mut [u8], pending: bool) {
        for (i, byte) in into.iter_mut().enumerate() {
            let at = offset.saturating_add(i);
            *byte = self.value.get(at).copied().unwrap_or(0);
            if at == DEVSTA && pending {
                *byte |= 1 << 5;
            }
        }
    }

    /// Writes bytes; bits that are not writable keep their value.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> ConfigEffect {
        let state = self.value[PM + 4] & 3;
        for (i, &byte) in bytes.iter().enumerate() {
            let at = offset.saturating_add(i);
            if at >= CONFIG_BYTES {
                break;
            }
            let mask = self.writable[at];
            self.value[at] = (self.value[at] & !mask | byte & mask) & !(byte & self.clears[at]);
        }
        // D1 and D2 do not exist: such a write leaves the state alone.
        if matches!(self.value[PM + 4] & 3, 1 | 2) {
            self.value[PM + 4] = self.value[PM + 4] & !3 | state;
        }
        let flr = offset <= DEVCTL + 1
            && offset.saturating_add(bytes.len()) > DEVCTL + 1
            && bytes[DEVCTL + 1 - offset] & 0x80 != 0;
        if flr {
            self.reset();
            ConfigEffect::FunctionLevelReset
        } else {
            ConfigEffect::None
        }
    }

    /// Enters or leaves the function level reset.
    pub fn set_flr(&mut self, active: bool) {
        self.flr = active;
    }

    /// Takes the requester ID from a configuration write, as the core does.
    pub fn capture(&mut self, requester: u16) {
        self.requester = requester;
    }

    /// Records an error in the status registers.
    pub fn record(&mut self, error: ErrorStatus) {
        let (devsta, status, uncorrectable) = match error {
            ErrorStatus::UnsupportedRequest => (1 << 3, 0, 1 << 20),
            ErrorStatus::PoisonedReceived => (1 << 1, 1 << 7, 1 << 12),
            ErrorStatus::MasterData if self.value[COMMAND] & 1 << 6 != 0 => (0, 1, 0),
            ErrorStatus::MasterData => (0, 0, 0),
            ErrorStatus::NonFatal => (1 << 1, 0, 1 << 14),
            ErrorStatus::Fatal => (1 << 2, 0, 1 << 18),
        };
        self.value[DEVSTA] |= devsta;
        self.value[STATUS + 1] |= status;
        let told = self.get32(AER + 4);
        if told == 0 && uncorrectable != 0 {
            // the first error pointer
            self.value[AER + 0x18] = u32::trailing_zeros(uncorrectable) as u8;
        }
        self.set32(AER + 4, told | uncorrectable);
    }

    /// Where a BAR is (0, 2 or 4) and its bytes; `None` for any other number.
    pub fn bar(&self, bar: u8) -> Option<(u64, u64)> {
        let bytes = match bar {
            0 => self.endpoint.register_bytes,
            2 => self.endpoint.doorbell_bytes,
            4 => self.endpoint.msix_bytes,
            _ => return None,
        };
        let at = BARS + bar as usize * 4;
        let base = (self.get32(at + 4) as u64) << 32 | (self.get32(at) & !15) as u64;
        Some((base, bytes))
    }

    /// The wires to the card. `link_up` comes from the link.
    pub fn sideband(&self, link_up: bool) -> Sideband {
        let command = self.get16(COMMAND);
        let devctl = self.get16(DEVCTL);
        let devctl2 = self.get16(DEVCTL2);
        let msix = self.get16(MSIX + 2);
        let d0 = self.value[PM + 4] & 3 == 0;
        // Codes above what exists read as the largest: 5 is 4096.
        let size = |code: u16| 128u16 << code.min(5);
        Sideband {
            bus_master: command & 4 != 0 && d0,
            memory_enable: command & 2 != 0 && d0,
            max_payload: size(devctl >> 5 & 7).min(512),
            max_read: size(devctl >> 12 & 7),
            rcb: if self.get16(LNKCTL) & 1 << 3 != 0 { 128 } else { 64 },
            extended_tag: devctl & 1 << 8 != 0,
            relaxed_ordering: devctl & 1 << 4 != 0,
            no_snoop: devctl & 1 << 11 != 0,
            id_ordering: devctl2 & 1 << 8 != 0,
            atomics: devctl2 & 1 << 6 != 0,
            completion_timeout: (devctl2 & 0x1f) as u8,
            requester: self.requester,
            msix_enable: msix & 1 << 15 != 0,
            msix_mask: msix & 1 << 14 != 0,
            flr: self.flr,
            link_up,
        }
    }

    /// The dump that `lspci -F` reads: 16 bytes in a line, as `lspci -xxxx` prints them.
    pub fn dump(&self) -> String {
        let [bus, devfn] = self.requester.to_be_bytes();
        let mut text = format!("{bus:02x}:{:02x}.{} Ethernet controller: Verbena\n", devfn >> 3, devfn & 7);
        for (row, bytes) in self.value.chunks(16).enumerate() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{:02x}:", row * 16);
            for byte in bytes {
                let _ = write!(text, " {byte:02x}");
            }
            text.push('\n');
        }
        text
    }
}

/// What firmware and kernel do to the function before a driver sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Enumeration {
    /// Bus, device and function that the function captures.
    pub requester: u16,
    /// Base of BAR0, BAR2 and BAR4, aligned to their sizes.
    pub bars: [u64; 3],
    /// Max_Payload_Size in bytes.
    pub max_payload: u16,
    /// Max_Read_Request_Size in bytes.
    pub max_read: u16,
    /// Read completion boundary in bytes: 64 or 128.
    pub rcb: u16,
    /// Extended tags.
    pub extended_tag: bool,
    /// AtomicOp requester enable.
    pub atomics: bool,
    /// Bus master enable. A driver normally sets it itself.
    pub bus_master: bool,
}

impl Default for Enumeration {
    fn default() -> Self {
        Enumeration {
            requester: 0x0100,
            bars: [0x40_0000_0000, 0x40_1000_0000, 0x40_0010_0000],
            max_payload: 256,
            max_read: 512,
            rcb: 64,
            extended_tag: true,
            atomics: false,
            bus_master: false,
        }
    }
}

impl ConfigSpace {
    /// Plays firmware: BARs, DEVCTL, LNKCTL, memory space on. Sizes that do not exist are rounded down.
    pub fn enumerate(&mut self, plan: &Enumeration) {
        let code = |bytes: u16| bytes.clamp(128, 4096).ilog2() as u16 - 7;
        self.capture(plan.requester);
        for (i, base) in plan.bars.iter().enumerate() {
            self.write(BARS + i * 8, &base.to_le_bytes());
        }
        let devctl = code(plan.max_payload) << 5
            | code(plan.max_read) << 12
            | (plan.extended_tag as u16) << 8
            | 1 << 4
            | 1 << 11;
        self.write(DEVCTL, &devctl.to_le_bytes());
        self.write(DEVCTL2, &((plan.atomics as u16) << 6).to_le_bytes());
        self.write(LNKCTL, &(((plan.rcb >= 128) as u16) << 3).to_le_bytes());
        self.write(COMMAND, &(2 | (plan.bus_master as u16) << 2).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn space() -> ConfigSpace {
        ConfigSpace::new(EndpointConfig::default()).unwrap()
    }
    fn read32(s: &ConfigSpace, at: usize) -> u32 {
        let mut b = [0; 4];
        s.read(at, &mut b, false);
        u32::from_le_bytes(b)
    }

    #[test]
    fn all_ones_in_a_bar_read_back_its_size() {
        let mut s = space();
        for (bar, bytes) in [(0usize, 64u64 << 10), (2, 256 << 10), (4, 64 << 10)] {
            s.write(0x10 + bar * 4, &[0xff; 8]);
            let low = read32(&s, 0x10 + bar * 4);
            assert_eq!(low & 0b111, 0b100, "64-bit memory");
            let mask = (read32(&s, 0x14 + bar * 4) as u64) << 32 | (low & !15) as u64;
            assert_eq!(!mask + 1, bytes);
        }
    }

    #[test]
    fn read_only_bits_stay_and_status_bits_clear_by_one() {
        let mut s = space();
        let identity = read32(&s, 0);
        s.write(0, &[0xff; 16]);
        assert_eq!(read32(&s, 0), identity);
        assert_eq!(identity, 0x0001_1ee7);
        assert_eq!(read32(&s, 8) & 0xffff_ff00, 0x0200_0000);
        s.record(ErrorStatus::UnsupportedRequest);
        s.record(ErrorStatus::PoisonedReceived);
        s.write(DEVSTA, &[0b0010, 0]);
        assert_eq!(s.get16(DEVSTA), 0b1000);
        assert_eq!(s.get16(STATUS) >> 15, 1);
        s.write(STATUS, &[0, 0x80]);
        assert_eq!(s.get16(STATUS), 1 << 4);
    }

    #[test]
    fn the_sideband_follows_the_registers() {
        let mut s = space();
        let reset = s.sideband(true);
        assert_eq!((reset.max_payload, reset.max_read, reset.rcb), (128, 512, 64));
        assert!(!reset.bus_master && !reset.memory_enable && !reset.extended_tag && reset.relaxed_ordering);
        s.enumerate(&Enumeration { rcb: 128, bus_master: true, max_read: 4096, ..Default::default() });
        let up = s.sideband(true);
        assert_eq!((up.max_payload, up.max_read, up.rcb, up.requester), (256, 4096, 128, 0x0100));
        assert!(up.bus_master && up.memory_enable && up.extended_tag);
        s.write(MSIX + 3, &[0xc0]);
        assert!(s.sideband(true).msix_enable && s.sideband(true).msix_mask);
        s.write(DEVCTL2, &[0x12]);
        assert_eq!(s.sideband(true).completion_timeout, 0x12);
        s.write(PM + 4, &[3]);
        assert!(!s.sideband(true).bus_master, "D3hot stops the function");
        s.write(PM + 4, &[1]);
        assert_eq!(s.get16(PM + 4) & 3, 3, "D1 does not exist");
    }

    #[test]
    fn the_flr_bit_resets_the_function_and_reads_zero() {
        let mut s = space();
        s.enumerate(&Enumeration { bus_master: true, ..Default::default() });
        assert_eq!(s.write(DEVCTL, &[0, 0x7f]), ConfigEffect::None);
        assert_eq!(s.write(DEVCTL, &[0]), ConfigEffect::None);
        assert_eq!(s.write(DEVCTL, &[0, 0x80]), ConfigEffect::FunctionLevelReset);
        assert_eq!(s.get16(DEVCTL) >> 15, 0);
        assert_eq!(s.bar(0), Some((0, 64 << 10)));
        assert!(!s.sideband(true).bus_master);
        assert_eq!(s.sideband(true).requester, 0x0100, "the link keeps the captured ID");
    }

    #[test]
    fn errors_are_told_of_until_cleared_whatever_is_reset_meanwhile() {
        let mut s = space();
        assert_eq!(read32(&s, AER), 0x0002_0001, "the only extended capability");
        assert_eq!(
            (read32(&s, AER + 4), read32(&s, AER + 0x0c), read32(&s, AER + 0x14)),
            (0, FATAL, ADVISORY)
        );
        s.record(ErrorStatus::UnsupportedRequest);
        s.record(ErrorStatus::PoisonedReceived);
        s.write(AER + 8, &[0xff; 4]);
        s.write(DEVCTL, &[0, 0x80]);
        assert_eq!(read32(&s, AER + 4), 1 << 20 | 1 << 12);
        assert_eq!(read32(&s, AER + 0x18), 20, "the first was the unsupported request");
        assert_eq!(read32(&s, AER + 8), UNCORRECTABLE, "the mask that was written");
        s.write(AER + 4, &(1u32 << 20).to_le_bytes());
        assert_eq!(read32(&s, AER + 4), 1 << 12);
    }

    #[test]
    fn transactions_pending_is_shown_while_there_are_some() {
        let s = space();
        let mut b = [0; 2];
        s.read(DEVSTA, &mut b, true);
        assert_eq!(b[0] & 1 << 5, 1 << 5);
        s.read(DEVSTA, &mut b, false);
        assert_eq!(b[0] & 1 << 5, 0);
    }

    #[test]
    fn endpoints_that_cannot_exist_are_refused_on_both_sides_of_each_limit() {
        let with = |f: fn(&mut EndpointConfig)| {
            let mut e = EndpointConfig::default();
            f(&mut e);
            ConfigSpace::new(e).map(|_| ())
        };
        assert!(with(|e| e.vectors = 2048).is_ok());
        assert_eq!(with(|e| e.vectors = 2049), Err(ConfigError::Vectors(2049)));
        assert_eq!(with(|e| e.vectors = 0), Err(ConfigError::Vectors(0)));
        assert!(with(|e| e.doorbell_bytes = 4096).is_ok());
        assert!(matches!(with(|e| e.doorbell_bytes = 2048), Err(ConfigError::BarSize { bar: 2, .. })));
        assert!(with(|e| e.pending_offset = 512).is_ok());
        assert!(matches!(with(|e| e.pending_offset = 504), Err(ConfigError::MsixLayout { .. })));
        assert!(matches!(with(|e| e.width = 3), Err(ConfigError::Link { .. })));
    }
}
