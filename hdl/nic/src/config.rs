//! The one place that sizes the card. Every width in the RTL is derived from here.
//!
//! Requirements: LINE PCIE

use contract::ring::{MAX_INLINE, MAX_SGE, SEND_FETCH_BYTES};
use contract::trace::WINDOW_ENTRIES;
use hdl::{Memory, index_width};

/// What the MAC speaks on its line side.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// 10 Gigabit: 64-bit XGMII.
    Xgmii,
    /// 100 Gigabit: the streams of the hard CMAC.
    Cmac,
    /// 10, 100 or 1000 Mb/s: bytes, as of GMII; [`crate::mac::rgmii`] makes RGMII of them.
    Gmii,
}

/// Sizes and features of a card. Powers of two where said; checked by [`Config::validate`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Name of the configuration, part of the top module's name.
    pub name: &'static str,
    /// Bytes per beat of the frame and TLP streams: 8 or 64.
    pub data_bytes: u32,
    /// The MAC speaks GMII instead of XGMII; at 8 bytes only.
    pub gmii: bool,
    /// There is a host: it sends requests, posts receives and ends keys. Without one there are answers alone.
    pub host: bool,
    /// A stage may take clocks more where its way is long: a packet has 84 at least.
    pub unhurried: bool,
    /// Queue pairs (power of two). QPN = index.
    pub qps: u32,
    /// Memory regions (power of two). Key = index << 8 | tag.
    pub mrs: u32,
    /// Completion queues (power of two).
    pub cqs: u32,
    /// Event queues (power of two).
    pub eqs: u32,
    /// MSI-X vectors (power of two).
    pub vectors: u32,
    /// Doorbell pages (power of two); page 0 is the privileged one.
    pub pages: u32,
    /// log2 of the doorbell stride in bytes.
    pub log_doorbell_stride: u32,
    /// PCIe read tags in flight (power of two, at most 256).
    pub read_tags: u32,
    /// Completion headers that the PCIe core can hold for us (at least 64: one read of 4 KiB split at every 64 bytes).
    pub cplh: u32,
    /// Completion data that it can hold, in units of 16 bytes (at least 256).
    pub cpld: u32,
    /// Outstanding records, one per WQE in flight, shared out by the driver (power of two).
    pub records: u32,
    /// Outstanding READs and atomics of this side, shared out by the driver (power of two).
    pub reads: u32,
    /// READs and atomics owed to peers and kept for replay, shared out by the driver (power of two).
    pub responses: u32,
    /// WQEs of a QP held on chip (power of two).
    pub wqe_slots: u32,
    /// QPs whose send WQEs are on chip at once (power of two, at most `qps`).
    pub wqe_windows: u32,
    /// Send WQEs of 64 bytes that one read brings (power of two; 1: each has its own).
    pub wqe_batch: u32,
    /// Reads of send WQEs in flight (power of two).
    pub wqe_reads: u32,
    /// Receive WQEs of each QP held on chip (power of two). A SEND whose WQE is not here waits one PCIe read: this many
    /// messages per read latency is what one QP can receive.
    pub receive_slots: u32,
    /// Bytes that a send WQE has on chip: head, and SGEs or inline data.
    pub wqe_bytes: u32,
    /// SGEs of a send WQE that segment sees at once.
    pub sges: u32,
    /// Bytes of the packet buffer (power of two).
    pub packet_buffer_bytes: u32,
    /// Frames that may be in the packet buffer at once (power of two).
    pub packet_slots: u32,
    /// Bytes of the transmit buffer (power of two).
    pub transmit_buffer_bytes: u32,
    /// Frames that may be in the transmit buffer at once (power of two).
    pub transmit_slots: u32,
    /// Requests that are known to be in the transmit buffer still when they have been sent (power of two, at least 8); 0: none.
    pub retained: u32,
    /// Entries of the miss queue of `place` (power of two).
    pub misses: u32,
    /// Entries of the stage trace (power of two, at least 4); 0: none.
    pub trace_entries: u32,
    /// The largest memories lie in UltraRAM.
    pub ultra_ram: bool,
    /// Every mark stands at pins of the top, for the simulation.
    pub trace_pins: bool,
    /// Core clocks of half a period of the configuration flash's clock (at least 4); 0: this card does not reach its flash.
    pub flash_half_clocks: u32,
    /// Core clock.
    pub core_clock_khz: u32,
    /// Core clocks in 4.096 us, the unit of transport timeouts.
    pub ticks_per_4096ns: u32,
    /// Core clocks after which a PCIe read without completion is given up.
    pub completion_timeout_ticks: u32,
}

impl Config {
    /// 64 bit at 250 MHz: 10 GbE, 64 QPs; without the stage trace, which would be a tenth of it.
    pub fn small() -> Config {
        Config {
            name: "small",
            data_bytes: 8,
            gmii: false,
            host: true,
            unhurried: false,
            qps: 64,
            mrs: 256,
            cqs: 64,
            eqs: 8,
            vectors: 16,
            pages: 64,
            log_doorbell_stride: 12,
            read_tags: 32,
            cplh: 64,
            cpld: 512,
            records: 2048,
            reads: 256,
            responses: 256,
            wqe_slots: 4,
            wqe_windows: 64,
            wqe_batch: 1,
            wqe_reads: 16,
            receive_slots: 16,
            wqe_bytes: 512,
            sges: 4,
            packet_buffer_bytes: 32768,
            packet_slots: 64,
            transmit_buffer_bytes: 32768,
            transmit_slots: 32,
            retained: 32,
            misses: 8,
            trace_entries: 0,
            ultra_ram: false,
            trace_pins: false,
            flash_half_clocks: 0,
            core_clock_khz: 250_000,
            ticks_per_4096ns: 1024,
            // 20 ms: above the 10 ms below which expiry is discouraged
            completion_timeout_ticks: 5_000_000,
        }
    }
    /// 512 bit at 250 MHz: 100 GbE, 64 QPs.
    pub fn full() -> Config {
        Config {
            name: "full",
            data_bytes: 64,
            qps: 1024,
            mrs: 4096,
            reads: 1024,
            responses: 1024,
            read_tags: 256,
            // a microsecond of 100 Gb/s in reads of 512 bytes, each split at every 64
            cplh: 256,
            cpld: 2048,
            // 128 WQEs in flight of each of 64 QPs, and 8 of each of the others
            records: 16384,
            // a microsecond of one QP, a packet per 12 clocks
            wqe_slots: 32,
            wqe_batch: 8,
            wqe_reads: 32,
            packet_buffer_bytes: 1 << 17,
            // one for each READ that the 16 busiest QPs may have outstanding: what they ask for always finds a place
            packet_slots: 256,
            // a round trip of 10 us at 100 Gb/s, and what is on its way out: as many packets of 4096 bytes
            transmit_buffer_bytes: 1 << 18,
            retained: 64,
            // 1.1 microseconds of packets, one per 4.5 clocks
            transmit_slots: 64,
            trace_entries: WINDOW_ENTRIES,
            ultra_ram: true,
            ..Config::small()
        }
    }
    /// The responder of [`crate::standalone`]: 64 bit at 78 MHz, Gigabit Ethernet, 8 QPs of which QPN 2 to 7 are given out.
    /// What a host has (command, doorbell, fetch, completion) is not in it, whatever the sizes here say.
    pub fn target() -> Config {
        Config {
            name: "target",
            gmii: true,
            host: false,
            unhurried: true,
            qps: 8,
            mrs: 4,
            cqs: 2,
            eqs: 2,
            vectors: 2,
            pages: 2,
            records: 2,
            reads: 2,
            // 4 of each QP
            responses: 32,
            wqe_windows: 8,
            receive_slots: 2,
            packet_buffer_bytes: 16384,
            packet_slots: 16,
            transmit_buffer_bytes: 16384,
            transmit_slots: 8,
            // it never asks
            retained: 0,
            misses: 2,
            core_clock_khz: 78_125,
            ..Config::small()
        }
    }
    /// The configuration of that name.
    pub fn by_name(name: &str) -> Option<Config> {
        [Config::small(), Config::full()].into_iter().find(|c| c.name == name)
    }
    /// The same card without the stage trace, which is faster to simulate.
    pub fn untraced(self) -> Config {
        Config { trace_entries: 0, trace_pins: false, ..self }
    }
    /// The same card with the stage trace, in its ring and at its pins.
    pub fn traced(self) -> Config {
        Config { trace_entries: WINDOW_ENTRIES, trace_pins: true, ..self }
    }
    /// The same card, whose stages take clocks more.
    pub fn unhurried(self) -> Config {
        Config { unhurried: true, ..self }
    }
    /// The same card with its configuration flash at pins: 15.6 MHz, slow enough for a way through start-up logic and board.
    pub fn with_flash(self) -> Config {
        Config { flash_half_clocks: 8, ..self }
    }
    /// How synthesis is to build a large memory.
    pub fn large(&self, memory: Memory) -> Memory {
        if self.ultra_ram { memory.style("ultra") } else { memory }
    }
    /// What the MAC speaks.
    pub fn line(&self) -> Line {
        match self.data_bytes {
            8 if self.gmii => Line::Gmii,
            8 => Line::Xgmii,
            _ => Line::Cmac,
        }
    }
    /// Bytes of FCS at the end of a frame from the mac: the CMAC keeps them to itself.
    pub fn fcs_bytes(&self) -> u32 {
        if self.line() == Line::Cmac { 0 } else { 4 }
    }
    /// Bits of a beat.
    pub fn data_bits(&self) -> u32 {
        self.data_bytes * 8
    }
    /// Bits of a QP index.
    pub fn qp_bits(&self) -> u32 {
        index_width(self.qps)
    }
    /// Bits of an MR index.
    pub fn mr_bits(&self) -> u32 {
        index_width(self.mrs)
    }
    /// Bits of a CQ index.
    pub fn cq_bits(&self) -> u32 {
        index_width(self.cqs)
    }
    /// Bits of an EQ index.
    pub fn eq_bits(&self) -> u32 {
        index_width(self.eqs)
    }
    /// Bits of a vector number.
    pub fn vector_bits(&self) -> u32 {
        index_width(self.vectors)
    }
    /// Bits of a doorbell page number.
    pub fn page_bits(&self) -> u32 {
        index_width(self.pages)
    }
    /// Bits of a read tag.
    pub fn tag_bits(&self) -> u32 {
        index_width(self.read_tags)
    }
    /// Bits of an outstanding-record index.
    pub fn record_bits(&self) -> u32 {
        index_width(self.records)
    }
    /// Bits of an index into the outstanding READs and atomics.
    pub fn read_bits(&self) -> u32 {
        index_width(self.reads)
    }
    /// Bits of an index into the READs and atomics owed.
    pub fn response_bits(&self) -> u32 {
        index_width(self.responses)
    }
    /// Bits of a byte address in the packet buffer.
    pub fn packet_address_bits(&self) -> u32 {
        index_width(self.packet_buffer_bytes)
    }
    /// Bits of a packet slot.
    pub fn packet_slot_bits(&self) -> u32 {
        index_width(self.packet_slots)
    }
    /// Bits of a byte address in the transmit buffer.
    pub fn transmit_address_bits(&self) -> u32 {
        index_width(self.transmit_buffer_bytes)
    }
    /// Words of the transmit buffer.
    pub fn transmit_words(&self) -> u32 {
        self.transmit_buffer_bytes / self.data_bytes
    }
    /// Bits of a transmit slot.
    pub fn transmit_slot_bits(&self) -> u32 {
        index_width(self.transmit_slots)
    }
    /// Bits of a lane number within a beat.
    pub fn lane_bits(&self) -> u32 {
        index_width(self.data_bytes)
    }
    /// Bytes of a send WQE that segment sees at once: head and the first SGEs, or the first inline data.
    pub fn item_bytes(&self) -> u32 {
        self.wqe_bytes / 4
    }
    /// Words of inline data or of further SGEs of one WQE, at most: words of the WQE, from the one in which they begin.
    pub fn inline_words(&self) -> u32 {
        let further = 16 * (MAX_SGE - self.sges);
        (32 % self.data_bytes + MAX_INLINE.max(further)).div_ceil(self.data_bytes)
    }
    /// Refuses sizes that the RTL cannot be.
    ///
    /// # Errors
    /// The name of the field and what it must be.
    pub fn validate(&self) -> Result<(), String> {
        let powers = [
            ("qps", self.qps),
            ("mrs", self.mrs),
            ("cqs", self.cqs),
            ("eqs", self.eqs),
            ("vectors", self.vectors),
            ("pages", self.pages),
            ("read_tags", self.read_tags),
            ("records", self.records),
            ("reads", self.reads),
            ("responses", self.responses),
            ("wqe_slots", self.wqe_slots),
            ("wqe_windows", self.wqe_windows),
            ("wqe_reads", self.wqe_reads),
            ("receive_slots", self.receive_slots),
            ("wqe_bytes", self.wqe_bytes),
            ("packet_buffer_bytes", self.packet_buffer_bytes),
            ("packet_slots", self.packet_slots),
            ("transmit_buffer_bytes", self.transmit_buffer_bytes),
            ("transmit_slots", self.transmit_slots),
            ("misses", self.misses),
        ];
        if let Some((name, v)) = powers.iter().find(|(_, v)| !v.is_power_of_two() || *v < 2) {
            return Err(format!("config `{}`: {name} = {v} must be a power of two, at least 2", self.name));
        }
        let traces =
            self.trace_entries.is_power_of_two() && (4..=WINDOW_ENTRIES).contains(&self.trace_entries);
        if self.trace_entries != 0 && !traces {
            return Err(format!(
                "config `{}`: trace_entries = {} must be 0 or a power of two, 4..={WINDOW_ENTRIES}",
                self.name, self.trace_entries
            ));
        }
        if self.data_bytes != 8 && self.data_bytes != 64 {
            return Err(format!("config `{}`: data_bytes = {} must be 8 or 64", self.name, self.data_bytes));
        }
        if self.gmii && self.data_bytes != 8 {
            return Err(format!(
                "config `{}`: gmii goes with data_bytes = 8, not {}",
                self.name, self.data_bytes
            ));
        }
        // what the flash answers must have come through its synchroniser
        if self.flash_half_clocks != 0 && self.flash_half_clocks < 4 {
            return Err(format!(
                "config `{}`: flash_half_clocks = {} must be 0 or at least 4",
                self.name, self.flash_half_clocks
            ));
        }
        if self.read_tags > 256 {
            return Err(format!("config `{}`: read_tags = {} exceeds 8-bit tags", self.name, self.read_tags));
        }
        // segment tells by the distance of 8-bit counters whether a packet is still on its way
        if self.transmit_slots > 64 {
            return Err(format!(
                "config `{}`: transmit_slots = {} must be 64 at most",
                self.name, self.transmit_slots
            ));
        }
        if self.retained != 0 && !(self.retained.is_power_of_two() && self.retained >= 8) {
            return Err(format!(
                "config `{}`: retained = {} must be 0 or a power of two, at least 8",
                self.name, self.retained
            ));
        }
        // 4095: the read engine counts room in 12 bits
        if !(64..=4095).contains(&self.cplh) || !(256..=4095).contains(&self.cpld) {
            return Err(format!(
                "config `{}`: cplh = {} must be 64..=4095 and cpld = {} must be 256..=4095",
                self.name, self.cplh, self.cpld
            ));
        }
        // deadlines are compared in 32 bits, and a tag ages for a second period
        if self.completion_timeout_ticks == 0 || self.completion_timeout_ticks >= 1 << 29 {
            return Err(format!(
                "config `{}`: completion_timeout_ticks = {} must be 1..2^29",
                self.name, self.completion_timeout_ticks
            ));
        }
        // acknowledge: a timeout is found between once and four times its length (IBA 9.7.6.1.3). The shortest is two units, and a
        // round of the scan takes four clocks a QP whatever else goes on.
        if 3 * 2 * self.ticks_per_4096ns < 4 * self.qps {
            return Err(format!(
                "config `{}`: {} QPs are scanned too late for a timeout of 8.2 us: ticks_per_4096ns = {} must be two thirds of them",
                self.name, self.qps, self.ticks_per_4096ns
            ));
        }
        if !self.wqe_batch.is_power_of_two() || self.wqe_batch >= self.wqe_slots {
            return Err(format!(
                "config `{}`: wqe_batch = {} must be a power of two below wqe_slots = {}",
                self.name, self.wqe_batch, self.wqe_slots
            ));
        }
        if self.wqe_windows > self.qps {
            return Err(format!(
                "config `{}`: wqe_windows = {} must be qps = {} at most",
                self.name, self.wqe_windows, self.qps
            ));
        }
        if self.wqe_bytes != SEND_FETCH_BYTES.next_power_of_two() {
            return Err(format!(
                "config `{}`: wqe_bytes = {} must hold {SEND_FETCH_BYTES}",
                self.name, self.wqe_bytes
            ));
        }
        if 32 + 16 * self.sges > self.item_bytes() || !self.sges.is_multiple_of(4) {
            return Err(format!(
                "config `{}`: {} SGEs must fit {} bytes and be a multiple of 4",
                self.name,
                self.sges,
                self.item_bytes()
            ));
        }
        Ok(())
    }
}
