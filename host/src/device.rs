//! Finding cards, and telling what a card is before anything is set up.
//!
//! In: `VERBENA_DEVICE`, sockets in `$VERBENA_RUN`, PCI functions on vfio-pci. Out: addresses in a fixed order; for
//! an open one its identity (checked: magic, version, layout hash), its limits, port and counters. Opening a [`Device`] neither resets
//! the card nor starts it: counters keep their values.

use crate::backend::{Backend, Bar, vfio::Vfio, vfio_user::VfioUser};
use crate::presence::Presence;
use crate::{Departure, Error, Mac, PathMtu, Reject, Result, StageCounter};
use contract::register as reg;
use serde::Serialize;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// PCI vendor and device number of the card.
pub const PCI_ID: (u16, u16) = (0x1ee7, 0x0001);

/// Where a card is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DeviceAddress {
    /// A simulated card: a vfio-user socket.
    Sim {
        /// Name such as `card0`.
        name: String,
        /// Its socket.
        path: PathBuf,
    },
    /// A PCI function bound to vfio-pci, such as `0000:01:00.0`.
    Vfio(String),
}

/// The directory of the simulator's sockets: `$VERBENA_RUN`, else `$XDG_RUNTIME_DIR/verbena`, else
/// `/tmp/verbena-UID`.
pub fn run_directory() -> PathBuf {
    if let Some(path) = std::env::var_os("VERBENA_RUN").filter(|path| !path.is_empty()) {
        return path.into();
    }
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|path| !path.is_empty()) {
        Some(path) => Path::new(&path).join("verbena"),
        None => PathBuf::from(format!("/tmp/verbena-{}", rustix::process::getuid().as_raw())),
    }
}

impl DeviceAddress {
    /// The simulated card `name` in the run directory.
    pub fn sim(name: &str) -> DeviceAddress {
        DeviceAddress::Sim { name: name.to_owned(), path: run_directory().join(format!("{name}.sock")) }
    }

    /// A comma-separated list, such as `sim:card0,vfio:0000:01:00.0`.
    ///
    /// # Errors
    /// A part of another form.
    pub fn parse_list(text: &str) -> Result<Vec<DeviceAddress>> {
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(str::parse).collect()
    }

    /// Every card: those in `VERBENA_DEVICE`, or, when that is unset, all sockets of the run directory by number,
    /// then all our functions on vfio-pci. May be empty.
    ///
    /// # Errors
    /// `VERBENA_DEVICE` is malformed.
    pub fn list() -> Result<Vec<DeviceAddress>> {
        if let Ok(text) = std::env::var("VERBENA_DEVICE")
            && !text.trim().is_empty()
        {
            return Self::parse_list(&text);
        }
        Ok(Self::scan(&run_directory(), Path::new("/sys/bus/pci/drivers/vfio-pci")))
    }

    fn scan(sockets: &Path, vfio: &Path) -> Vec<DeviceAddress> {
        let names = |path: &Path| {
            let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
            entries.filter_map(|entry| entry.file_name().into_string().ok()).collect::<Vec<_>>()
        };
        let mut cards: Vec<(u32, String)> = names(sockets)
            .into_iter()
            .filter_map(|file| {
                let name = file.strip_suffix(".sock")?;
                Some((name.strip_prefix("card")?.parse().ok()?, name.to_owned()))
            })
            .collect();
        cards.sort();
        let mut functions = names(vfio);
        functions.sort();
        let ours = |address: &String| {
            let id = |file| {
                let text = std::fs::read_to_string(vfio.join(address).join(file)).ok()?;
                u16::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
            };
            (id("vendor"), id("device")) == (Some(PCI_ID.0), Some(PCI_ID.1))
        };
        let sims = cards.into_iter().map(|(_, name)| {
            let path = sockets.join(format!("{name}.sock"));
            DeviceAddress::Sim { name, path }
        });
        sims.chain(functions.into_iter().filter(ours).map(DeviceAddress::Vfio)).collect()
    }

    /// The first card of [`Self::list`].
    ///
    /// # Errors
    /// There is none.
    pub fn first() -> Result<DeviceAddress> {
        let looked = || match std::env::var("VERBENA_DEVICE") {
            Ok(text) if !text.trim().is_empty() => format!("VERBENA_DEVICE={text}"),
            _ => format!("sockets in {}, functions on vfio-pci", run_directory().display()),
        };
        Self::list()?.into_iter().next().ok_or_else(|| Error::NoCard { looked: looked() })
    }
}

impl DeviceAddress {
    /// The way to the card, without a look at what it is.
    ///
    /// # Errors
    /// No card there, no permission, or held by another process.
    pub fn connect(&self) -> Result<Arc<dyn Backend>> {
        let name = self.to_string();
        let failed = |path: PathBuf, remedy| {
            let name = name.clone();
            move |source| Error::Open { name, path, source, remedy }
        };
        Ok(match self {
            DeviceAddress::Sim { path, .. } => {
                let remedy = "start `verbena sim`, or end the process that holds the card";
                Arc::new(VfioUser::connect(&name, path).map_err(failed(path.clone(), remedy))?)
            }
            DeviceAddress::Vfio(function) => {
                let remedy = "bind it to vfio-pci and give this user its /dev/vfio group";
                let path = crate::backend::vfio::sysfs_path(function);
                Arc::new(Vfio::open(&name, function).map_err(failed(path, remedy))?)
            }
        })
    }
}

impl FromStr for DeviceAddress {
    type Err = Error;
    fn from_str(text: &str) -> Result<DeviceAddress> {
        let bad = || Error::BadAddress { text: text.to_owned() };
        match text.split_once(':') {
            Some(("sim", name)) if !name.is_empty() => match name.contains('/') {
                true => Ok(DeviceAddress::Sim {
                    name: Path::new(name)
                        .file_stem()
                        .and_then(|stem| stem.to_str())
                        .ok_or_else(bad)?
                        .to_owned(),
                    path: name.into(),
                }),
                false => Ok(DeviceAddress::sim(name)),
            },
            Some(("vfio", address)) if address.split([':', '.']).count() == 4 => {
                let hex = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_hexdigit());
                let good = address.split([':', '.']).all(hex);
                if good { Ok(DeviceAddress::Vfio(address.to_ascii_lowercase())) } else { Err(bad()) }
            }
            _ => Err(bad()),
        }
    }
}

impl fmt::Display for DeviceAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceAddress::Sim { name, .. } => write!(f, "sim:{name}"),
            DeviceAddress::Vfio(address) => write!(f, "vfio:{address}"),
        }
    }
}

/// What the card says of itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Attributes {
    /// Contract version, major in the upper 16 bits.
    pub version: u32,
    /// Bits of `contract::register::feature`.
    pub features: u32,
    /// Bytes per beat of the data path.
    pub datapath_bytes: u32,
    /// Core clock in kHz.
    pub core_clock_khz: u32,
    /// Core clock ticks in 4.096 us.
    pub ticks_per_4096ns: u32,
    /// Number of QPs.
    pub max_qp: u32,
    /// Number of memory regions.
    pub max_mr: u32,
    /// Number of CQs.
    pub max_cq: u32,
    /// Number of EQs.
    pub max_eq: u32,
    /// Number of MSI-X vectors.
    pub msix_vectors: u32,
    /// Bytes from one doorbell page to the next.
    pub doorbell_stride: u32,
    /// Number of doorbell pages.
    pub doorbell_pages: u32,
    /// Most SGEs of a receive work request or a READ.
    pub max_sge: u32,
    /// Most SGEs of a SEND or WRITE.
    pub max_send_sge: u32,
    /// Most inline bytes of a work request.
    pub max_inline: u32,
    /// Outstanding records.
    pub record_count: u32,
    /// Outstanding READs and atomics of this side, over all QPs.
    pub read_count: u32,
    /// READs and atomics of peers that are kept, over all QPs.
    pub response_count: u32,
    /// log2 of the longest message in bytes.
    pub max_message: u32,
    /// PCI Express read tags.
    pub read_tags: u32,
}

impl Attributes {
    /// Among whom atomics are atomic.
    pub fn atomicity(&self) -> Atomicity {
        if self.has(contract::register::feature::ATOMIC) { Atomicity::Device } else { Atomicity::None }
    }

    /// Whether the card has all of these feature bits.
    pub fn has(&self, feature: u32) -> bool {
        self.features & feature == feature
    }

    /// Most work requests of a queue.
    pub const MAX_QP_WR: u32 = 1 << contract::ring::MAX_LOG_DEPTH;
    /// Most entries of a CQ: three quarters of the longest ring, see [`crate::Cq`].
    pub const MAX_CQE: u32 = (1 << contract::ring::MAX_LOG_DEPTH) / 4 * 3;
}

/// Among whom a card's atomics are atomic (`ibv_atomic_cap`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Atomicity {
    /// The card has none.
    None,
    /// Atomics of this card among themselves; the CPU's and other devices' accesses come between.
    Device,
}

/// What the port says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortAttributes {
    /// MAC address.
    pub mac: Mac,
    /// Largest Ethernet payload in bytes.
    pub mtu: u32,
    /// Largest path MTU that fits.
    pub active_mtu: PathMtu,
    /// The link is up.
    pub link_up: bool,
}

/// An open card that was recognised but not started.
#[derive(Clone)]
pub struct Device {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) presence: Arc<Presence>,
    attributes: Attributes,
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device").field("name", &self.name()).finish_non_exhaustive()
    }
}

const COMMAND: u64 = 4;
const MEMORY_ENABLE: u16 = 1 << 1;
const BUS_MASTER: u16 = 1 << 2;

impl Device {
    /// Opens the card at `address` and checks what it is.
    ///
    /// # Errors
    /// No card there, no permission, held by another process, or another contract.
    pub fn open(address: &DeviceAddress) -> Result<Device> {
        Self::new(address.connect()?)
    }

    /// Checks the card behind a backend: PCI ID, magic, contract version, layout hash; reads its limits.
    ///
    /// # Errors
    /// Another device or another contract, in one line.
    pub fn new(backend: Arc<dyn Backend>) -> Result<Device> {
        recognise(&*backend)?;
        let name = || backend.name().to_owned();
        let (card, driver) = (read32(&*backend, reg::VERSION)?, reg::VERSION_VALUE);
        if card >> 16 != driver >> 16 || card & 0xffff < driver & 0xffff {
            return Err(Error::Version { name: name(), card, driver });
        }
        let (card, driver) = (read64(&*backend, reg::LAYOUT_HASH)?, contract::LAYOUT_HASH);
        if card != driver {
            return Err(Error::Layout { name: name(), card, driver });
        }
        let read = |offset| read32(&*backend, offset);
        let attributes = Attributes {
            version: read(reg::VERSION)?,
            features: read(reg::FEATURES)?,
            datapath_bytes: read(reg::DATAPATH_BYTES)?,
            core_clock_khz: read(reg::CORE_CLOCK_KHZ)?,
            ticks_per_4096ns: read(reg::TICKS_PER_4096NS)?,
            max_qp: read(reg::MAX_QP)?,
            max_mr: read(reg::MAX_MR)?,
            max_cq: read(reg::MAX_CQ)?,
            max_eq: read(reg::MAX_EQ)?,
            msix_vectors: read(reg::MSIX_VECTORS)?,
            doorbell_stride: read(reg::DOORBELL_STRIDE)?,
            doorbell_pages: read(reg::DOORBELL_PAGES)?,
            max_sge: read(reg::MAX_SGE)?,
            max_send_sge: read(reg::MAX_SEND_SGE)?,
            max_inline: read(reg::MAX_INLINE)?,
            record_count: read(reg::RECORD_COUNT)?,
            max_message: read(reg::MAX_MESSAGE)?,
            read_tags: read(reg::READ_TAGS)?,
            read_count: read(reg::READ_COUNT)?,
            response_count: read(reg::RESPONSE_COUNT)?,
        };
        let must = [
            ("max_qp", attributes.max_qp, 1..=1 << 24),
            ("max_mr", attributes.max_mr, 1..=1 << 24),
            ("max_cq", attributes.max_cq, 1..=1 << 24),
            ("max_eq", attributes.max_eq, 1..=1 << 8),
            ("msix_vectors", attributes.msix_vectors, 1..=2048),
            ("doorbell_stride", attributes.doorbell_stride, 0x1000..=0x1_0000),
            ("doorbell_pages", attributes.doorbell_pages, 1..=1 << 16),
            ("max_sge", attributes.max_sge, 1..=30),
            ("max_send_sge", attributes.max_send_sge, 1..=30),
            ("record_count", attributes.record_count, attributes.max_qp..=1 << 16),
            ("max_message", attributes.max_message, 1..=31),
            ("read_count", attributes.read_count, 0..=1 << 16),
            ("response_count", attributes.response_count, 0..=1 << 16),
        ];
        for (register, value, allowed) in must {
            if !allowed.contains(&value) {
                return Err(Error::BadRegister { name: name(), register, value: value.into() });
            }
        }
        let presence = Presence::of(&backend)?;
        Ok(Device { backend, presence, attributes })
    }

    /// Its name, such as `sim:card0`.
    pub fn name(&self) -> &str {
        self.backend.name()
    }

    /// What the card says of itself.
    pub fn attributes(&self) -> &Attributes {
        &self.attributes
    }

    /// What the port says of itself now.
    ///
    /// # Errors
    /// The way to the card failed.
    pub fn port(&self) -> Result<PortAttributes> {
        let mtu = self.read32(reg::PORT_MTU)?;
        Ok(PortAttributes {
            mac: Mac::from_u64(self.read64(reg::PORT_MAC)?),
            mtu,
            active_mtu: active_mtu(mtu),
            link_up: self.read32(reg::PORT_STATUS)? & reg::PORT_LINK_UP != 0,
        })
    }

    /// Every reject counter.
    ///
    /// # Errors
    /// The way to the card failed.
    pub fn rejects(&self) -> Result<Vec<(Reject, u64)>> {
        let read = |reject: &Reject| Ok((*reject, self.read64(reg::reject_counter(*reject))?));
        Reject::ALL.iter().map(read).collect()
    }

    /// Every stage counter.
    ///
    /// # Errors
    /// The way to the card failed.
    pub fn stage_counters(&self) -> Result<Vec<(StageCounter, u64)>> {
        let read = |counter: &StageCounter| Ok((*counter, self.read64(reg::stage_counter(*counter))?));
        StageCounter::ALL.iter().map(read).collect()
    }

    /// Core clock ticks since reset: the clock of completion timestamps.
    ///
    /// # Errors
    /// The way to the card failed, or the card is gone.
    pub fn now_ticks(&self) -> Result<u64> {
        self.read64(reg::NOW)
    }

    fn read32(&self, offset: u32) -> Result<u32> {
        let value = read32(&*self.backend, offset)?;
        if value == u32::MAX {
            self.presence.look("read a register")?;
        }
        Ok(value)
    }

    fn read64(&self, offset: u32) -> Result<u64> {
        let value = read64(&*self.backend, offset)?;
        if value == u64::MAX {
            self.presence.look("read a register")?;
        }
        Ok(value)
    }

    /// Function level reset, then memory and, if wanted, bus mastering on again.
    pub(crate) fn reset(&self, bus_master: bool) -> Result<()> {
        self.presence.demand("reset the card")?;
        command_bits(&*self.backend, 0, BUS_MASTER)?;
        self.backend.reset().map_err(|source| Error::Backend {
            name: self.name().to_owned(),
            operation: "reset the card".to_owned(),
            source,
        })?;
        command_bits(&*self.backend, MEMORY_ENABLE | if bus_master { BUS_MASTER } else { 0 }, 0)
    }
}

/// Demands that the card behind a backend is one of ours, of whatever contract: PCI ID and magic. Its memory is on then.
pub(crate) fn recognise(backend: &dyn Backend) -> Result<()> {
    let name = || backend.name().to_owned();
    let mut id = [0; 4];
    let failed = |source| Error::Backend { name: name(), operation: "read the PCI ID".to_owned(), source };
    backend.config_read(0, &mut id).map_err(failed)?;
    let (vendor, device) = (u16::from_le_bytes([id[0], id[1]]), u16::from_le_bytes([id[2], id[3]]));
    match (vendor, device) {
        PCI_ID => {}
        // no device has this one
        (u16::MAX, u16::MAX) => {
            let operation = "read the PCI ID";
            return Err(Error::Gone { name: name(), operation, how: Departure::Off });
        }
        _ => return Err(Error::NotOurs { name: name(), vendor, device }),
    }
    command_bits(backend, MEMORY_ENABLE, 0)?;
    match read32(backend, reg::MAGIC)? {
        reg::MAGIC_VALUE => Ok(()),
        found => Err(Error::Magic { name: name(), found }),
    }
}

/// The largest path MTU that leaves room for every header (RoCEv2 over IPv6 with the longest extension headers: 80).
fn active_mtu(port_mtu: u32) -> PathMtu {
    let fits = |mtu: &&PathMtu| mtu.bytes() + 80 <= port_mtu;
    PathMtu::ALL.iter().rev().find(fits).copied().unwrap_or(PathMtu::Mtu256)
}

fn command_bits(backend: &dyn Backend, set: u16, clear: u16) -> Result<()> {
    let failed = |source| Error::Backend {
        name: backend.name().to_owned(),
        operation: "set the PCI command register".to_owned(),
        source,
    };
    let mut bytes = [0; 2];
    backend.config_read(COMMAND, &mut bytes).map_err(failed)?;
    let value = u16::from_le_bytes(bytes) & !clear | set;
    backend.config_write(COMMAND, &value.to_le_bytes()).map_err(failed)
}

pub(crate) fn read32(backend: &dyn Backend, offset: u32) -> Result<u32> {
    backend.read32(Bar::Registers, offset.into()).map_err(|source| access(backend, "read", offset, source))
}

pub(crate) fn read64(backend: &dyn Backend, offset: u32) -> Result<u64> {
    backend.read64(Bar::Registers, offset.into()).map_err(|source| access(backend, "read", offset, source))
}

pub(crate) fn write32(backend: &dyn Backend, offset: u32, value: u32) -> Result<()> {
    let result = backend.write32(Bar::Registers, offset.into(), value);
    result.map_err(|source| access(backend, "write", offset, source))
}

pub(crate) fn write64(backend: &dyn Backend, offset: u32, value: u64) -> Result<()> {
    let result = backend.write64(Bar::Registers, offset.into(), value);
    result.map_err(|source| access(backend, "write", offset, source))
}

fn access(backend: &dyn Backend, verb: &str, offset: u32, source: std::io::Error) -> Error {
    let register = contract::register::REGISTERS.iter().rev().find(|register| register.offset <= offset);
    let name = register.map_or("?", |register| register.name);
    Error::Backend {
        name: backend.name().to_owned(),
        operation: format!("{verb} register {name} ({offset:#06x})"),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_addresses_are_read_and_written_in_one_form() {
        let list = DeviceAddress::parse_list("sim:card0, vfio:0000:01:00.0").expect("well formed");
        assert_eq!(
            list.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["sim:card0", "vfio:0000:01:00.0"]
        );
        let path: DeviceAddress = "sim:/run/x/card7.sock".parse().expect("a path");
        assert_eq!(path, DeviceAddress::Sim { name: "card7".to_owned(), path: "/run/x/card7.sock".into() });
        for bad in ["card0", "sim:", "vfio:01:00.0", "vfio:0000:01:00.z", "usb:1"] {
            assert!(bad.parse::<DeviceAddress>().is_err(), "{bad}");
        }
    }

    #[test]
    fn sockets_are_found_by_number_then_our_functions_on_vfio_pci() {
        let root = tempfile::tempdir().expect("a directory");
        for name in ["card10.sock", "card2.sock", "other.sock", "card3.txt"] {
            std::fs::write(root.path().join(name), "").expect("a file");
        }
        let vfio = root.path().join("vfio-pci");
        for (address, vendor) in [("0000:02:00.0", "0x1ee7"), ("0000:01:00.0", "0x8086")] {
            std::fs::create_dir_all(vfio.join(address)).expect("a directory");
            std::fs::write(vfio.join(address).join("vendor"), format!("{vendor}\n")).expect("a file");
            std::fs::write(vfio.join(address).join("device"), "0x0001\n").expect("a file");
        }
        let found = DeviceAddress::scan(root.path(), &vfio);
        assert_eq!(
            found.iter().map(ToString::to_string).collect::<Vec<_>>(),
            ["sim:card2", "sim:card10", "vfio:0000:02:00.0"]
        );
    }

    #[test]
    fn the_path_mtu_leaves_room_for_the_headers() {
        let cases = [(1500, 1024), (4200, 4096), (9000, 4096), (4175, 2048), (4176, 4096), (100, 256)];
        for (port, path) in cases {
            assert_eq!(active_mtu(port).bytes(), path, "port MTU {port}");
        }
    }
}
