//! `verbena doctor`: what keeps a card from being used here, and what to do about it.
//!
//! ```text
//! ok       IOMMU               dmar0                                      stdout: a line per thing looked at
//! PROBLEM  0000:01:00.0        bound to no driver
//!          do:                 echo vfio-pci > /sys/.../driver_override; echo 0000:01:00.0 > /sys/bus/pci/drivers_probe
//! ```
//!
//! In: sysfs, `/dev/vfio`, the process's limits; then each card that can be opened: its contract and its link. Out: findings, each
//! problem with a remedy; exit code 1 if there is one. It changes nothing and resets no card; a card that another process
//! holds is told of as such.

use anyhow::ensure;
use clap::Args;
use host::{Device, DeviceAddress, Kind};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};

/// How to tell it.
#[derive(Debug, Args)]
pub struct DoctorArgs {
    /// One JSON value.
    #[arg(long)]
    json: bool,
}

/// Locked memory below which even small programs fail.
const LITTLE: u64 = 64 << 20;

/// Something looked at.
#[derive(Debug, PartialEq, Eq)]
struct Finding {
    subject: String,
    what: String,
    /// What to do: there is a problem.
    remedy: Option<String>,
}

fn good(subject: impl Into<String>, what: impl Into<String>) -> Finding {
    Finding { subject: subject.into(), what: what.into(), remedy: None }
}

fn bad(subject: impl Into<String>, what: impl Into<String>, remedy: impl Into<String>) -> Finding {
    Finding { subject: subject.into(), what: what.into(), remedy: Some(remedy.into()) }
}

/// Where to look.
struct Machine {
    sys: PathBuf,
    dev: PathBuf,
    /// Bytes that may be locked; `None`: any number.
    limit: Option<u64>,
}

/// Tells what is found.
pub fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    let machine = Machine { sys: "/sys".into(), dev: "/dev".into(), limit: host::backend::vfio::memlock() };
    let mut findings = machine.findings();
    for address in DeviceAddress::list()? {
        findings.extend(card(&address));
    }
    let problems = findings.iter().filter(|finding| finding.remedy.is_some()).count();
    if args.json {
        let rows = findings.iter().map(
            |finding| json!({"subject": finding.subject, "what": finding.what, "remedy": finding.remedy}),
        );
        println!("{}", json!({"problems": problems, "findings": rows.collect::<Vec<_>>()}));
    } else {
        for finding in &findings {
            let word = if finding.remedy.is_some() { "PROBLEM" } else { "ok" };
            println!("{word:<8} {:<18} {}", finding.subject, finding.what);
            if let Some(remedy) = &finding.remedy {
                println!("{:<8} {:<18} {remedy}", "", "do:");
            }
        }
    }
    ensure!(problems == 0, "{problems} problems; each is told with what to do");
    Ok(())
}

/// The name that a link leads to.
fn target(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_str()?.to_owned())
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<_> = entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    names
}

fn word(file: &Path) -> String {
    fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default()
}

impl Machine {
    fn findings(&self) -> Vec<Finding> {
        let devices = self.sys.join("bus/pci/devices");
        let id = |address: &String, file| word(&devices.join(address).join(file));
        let (vendor, device) = (format!("{:#06x}", host::PCI_ID.0), format!("{:#06x}", host::PCI_ID.1));
        let ours: Vec<String> = names(&devices)
            .into_iter()
            .filter(|address| id(address, "vendor") == vendor && id(address, "device") == device)
            .collect();
        if ours.is_empty() {
            return vec![good("PCI functions", "none of ours; only simulated cards can be used")];
        }
        let mut found = vec![self.iommu()];
        for address in &ours {
            found.extend(self.function(address));
        }
        found.push(self.locked());
        found
    }

    fn iommu(&self) -> Finding {
        match names(&self.sys.join("class/iommu")).as_slice() {
            [] => bad(
                "IOMMU",
                "none is on",
                "switch on VT-d or AMD-Vi in the firmware's setup; on Intel also boot with intel_iommu=on",
            ),
            units => good("IOMMU", units.join(" ")),
        }
    }

    fn locked(&self) -> Finding {
        match self.limit {
            None => good("locked memory", "without a limit"),
            Some(limit) if limit < LITTLE => bad(
                "locked memory",
                format!("limited to {limit} bytes (RLIMIT_MEMLOCK); memory that a program registers counts"),
                "raise it: `ulimit -l`, memlock in /etc/security/limits.conf, or LimitMEMLOCK= of a service",
            ),
            Some(limit) => good("locked memory", format!("limited to {limit} bytes")),
        }
    }

    /// One function on its way to a program: driver, group, permission, slot.
    fn function(&self, address: &str) -> Vec<Finding> {
        let devices = self.sys.join("bus/pci/devices");
        let path = devices.join(address);
        let mut found = Vec::new();
        match target(&path.join("driver")).as_deref() {
            Some("vfio-pci") => found.push(good(address, "bound to vfio-pci")),
            other => {
                let leave = other.map_or(String::new(), |driver| {
                    format!("echo {address} > /sys/bus/pci/drivers/{driver}/unbind; ")
                });
                found.push(bad(
                    address,
                    format!("bound to {}", other.unwrap_or("no driver")),
                    format!(
                        "as root: modprobe vfio-pci; echo vfio-pci > /sys/bus/pci/devices/{address}/driver_override; \
                         {leave}echo {address} > /sys/bus/pci/drivers_probe"
                    ),
                ));
            }
        }
        let Some(group) = target(&path.join("iommu_group")) else {
            found.push(bad(address, "in no IOMMU group", "switch the IOMMU on"));
            return found;
        };
        let others: Vec<String> = names(&self.sys.join("kernel/iommu_groups").join(&group).join("devices"))
            .into_iter()
            .filter(|other| other != address && !self.is_harmless(other))
            .collect();
        found.push(match others.as_slice() {
            [] => good(address, format!("alone in IOMMU group {group}")),
            others => bad(
                address,
                format!("in IOMMU group {group} with {}, which the kernel drives", others.join(" ")),
                "bind these to vfio-pci too, or put the card into another slot",
            ),
        });
        if found.iter().all(|finding| finding.remedy.is_none()) {
            found.push(self.permission(address, &group));
        }
        found.push(self.slot(address));
        found
    }

    /// Whether a function does not keep its group from being given away: a bridge, or nobody's, or VFIO's.
    fn is_harmless(&self, address: &str) -> bool {
        let path = self.sys.join("bus/pci/devices").join(address);
        let bridge = word(&path.join("class")).starts_with("0x06");
        bridge || target(&path.join("driver")).is_none_or(|driver| driver == "vfio-pci")
    }

    fn permission(&self, address: &str, group: &str) -> Finding {
        for name in ["vfio", group] {
            let file = self.dev.join("vfio").join(name);
            let open = fs::OpenOptions::new().read(true).write(true).open(&file);
            match open.map_err(|error| error.kind()) {
                Err(std::io::ErrorKind::PermissionDenied) => {
                    return bad(
                        address,
                        format!("{} may not be opened by this user", file.display()),
                        format!("as root: chown USER {}", file.display()),
                    );
                }
                Err(std::io::ErrorKind::NotFound) => {
                    return bad(
                        address,
                        format!("{} is not there", file.display()),
                        "as root: modprobe vfio-pci, and mount devtmpfs if this is a container",
                    );
                }
                // held by another process, or ours
                _ => {}
            }
        }
        good(address, format!("{} may be opened", self.dev.join("vfio").join(group).display()))
    }

    /// The PCI Express link as it is and as it could be.
    fn slot(&self, address: &str) -> Finding {
        let path = self.sys.join("bus/pci/devices").join(address);
        let [speed, width, best_speed, best_width] =
            ["current_link_speed", "current_link_width", "max_link_speed", "max_link_width"]
                .map(|file| word(&path.join(file)));
        let text = format!("PCI Express {speed} x{width}");
        if (&speed, &width) == (&best_speed, &best_width) || speed.is_empty() {
            return good(address, text);
        }
        bad(
            address,
            format!("{text}, and the card can do {best_speed} x{best_width}"),
            "seat the card anew, or use a slot with more lanes",
        )
    }
}

/// A card that may be opened: its contract and its port.
fn card(address: &DeviceAddress) -> Vec<Finding> {
    let name = address.to_string();
    let device = match Device::open(address) {
        Ok(device) => device,
        Err(error) => {
            let remedy = match error.kind() {
                Kind::Mismatch => "use a driver and a bitstream of the same release",
                Kind::NoCard => {
                    "see the problems above; if there is none, another process holds the card: end it"
                }
                Kind::Failed => {
                    "reset the card: unbind it and bind it again; if that does not help, reload its bitstream"
                }
            };
            return vec![bad(name, error.to_string(), remedy)];
        }
    };
    let version = device.attributes().version;
    let mut found =
        vec![good(&name, format!("contract {}.{}, as the driver's", version >> 16, version & 0xffff))];
    found.push(match device.port() {
        Ok(port) if port.link_up => good(&name, format!("link up, MAC {}, MTU {}", port.mac, port.mtu)),
        Ok(_) => bad(&name, "link down", "check cable and transceiver, and the port of the switch"),
        Err(error) => bad(&name, error.to_string(), "unbind the card and bind it again"),
    });
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    const CARD: &str = "0000:01:00.0";
    const OTHER: &str = "0000:01:00.1";

    /// A machine in a folder, on which everything is right.
    struct Sound {
        folder: tempfile::TempDir,
        machine: Machine,
    }

    impl Sound {
        fn new() -> Sound {
            let folder = tempfile::tempdir().expect("a folder");
            let machine =
                Machine { sys: folder.path().join("sys"), dev: folder.path().join("dev"), limit: None };
            let sound = Sound { folder, machine };
            sound.file("sys/class/iommu/dmar0", "");
            sound.device(CARD, "0x1ee7", "vfio-pci");
            for (name, value) in [("speed", "8.0 GT/s PCIe"), ("width", "8")] {
                sound.file(&format!("sys/bus/pci/devices/{CARD}/current_link_{name}"), value);
                sound.file(&format!("sys/bus/pci/devices/{CARD}/max_link_{name}"), value);
            }
            sound.file("dev/vfio/vfio", "");
            sound.file("dev/vfio/7", "");
            sound
        }

        fn path(&self, path: &str) -> PathBuf {
            self.folder.path().join(path)
        }

        fn file(&self, path: &str, text: &str) {
            let path = self.path(path);
            fs::create_dir_all(path.parent().expect("inside")).expect("made");
            fs::write(path, text).expect("written");
        }

        /// A function in group 7.
        fn device(&self, address: &str, vendor: &str, driver: &str) {
            let path = format!("sys/bus/pci/devices/{address}");
            for (file, value) in [("vendor", vendor), ("device", "0x0001"), ("class", "0x020000")] {
                self.file(&format!("{path}/{file}"), &format!("{value}\n"));
            }
            self.file(&format!("sys/kernel/iommu_groups/7/devices/{address}"), "");
            symlink("../../../../kernel/iommu_groups/7", self.path(&path).join("iommu_group"))
                .expect("linked");
            if !driver.is_empty() {
                symlink(format!("../drivers/{driver}"), self.path(&path).join("driver")).expect("linked");
            }
        }

        fn remove(&self, path: &str) {
            let path = self.path(path);
            if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.expect("removed");
        }

        /// The only problem, and what to do.
        fn problem(&self) -> (String, String) {
            let mut problems: Vec<_> =
                self.machine.findings().into_iter().filter(|finding| finding.remedy.is_some()).collect();
            assert_eq!(problems.len(), 1, "{problems:?}");
            let finding = problems.remove(0);
            (finding.what, finding.remedy.expect("a problem"))
        }
    }

    #[test]
    fn a_sound_machine_has_no_problem() {
        let sound = Sound::new();
        assert!(sound.machine.findings().iter().all(|finding| finding.remedy.is_none()));
        sound.remove(&format!("sys/bus/pci/devices/{CARD}"));
        assert_eq!(sound.machine.findings().len(), 1, "without a card there is nothing to look at");
    }

    #[test]
    fn an_iommu_that_is_off_is_switched_on() {
        let sound = Sound::new();
        sound.remove("sys/class/iommu");
        assert!(sound.problem().1.contains("intel_iommu=on"));
    }

    #[test]
    fn a_card_of_another_driver_or_of_none_is_bound_by_the_commands_told() {
        let sound = Sound::new();
        let driver = format!("sys/bus/pci/devices/{CARD}/driver");
        sound.remove(&driver);
        let (what, remedy) = sound.problem();
        assert!(what.contains("no driver") && remedy.ends_with("> /sys/bus/pci/drivers_probe"), "{remedy}");
        assert!(!remedy.contains("unbind"));
        symlink("../drivers/ice", sound.path(&driver)).expect("linked");
        assert!(sound.problem().1.contains("/sys/bus/pci/drivers/ice/unbind"));
    }

    #[test]
    fn a_group_with_a_driven_function_is_not_given_away_and_one_with_a_bridge_is() {
        let sound = Sound::new();
        sound.device(OTHER, "0x8086", "ahci");
        assert!(sound.problem().0.contains(OTHER));
        sound.file(&format!("sys/bus/pci/devices/{OTHER}/class"), "0x060400\n");
        assert!(sound.machine.findings().iter().all(|finding| finding.remedy.is_none()));
    }

    #[test]
    fn a_function_without_a_group_needs_the_iommu() {
        let sound = Sound::new();
        sound.remove(&format!("sys/bus/pci/devices/{CARD}/iommu_group"));
        assert!(sound.problem().1.contains("IOMMU"));
    }

    #[test]
    fn a_group_that_is_not_there_asks_for_the_module() {
        let sound = Sound::new();
        sound.remove("dev/vfio/7");
        let (what, remedy) = sound.problem();
        assert!(what.contains("is not there") && remedy.contains("modprobe vfio-pci"));
    }

    #[test]
    fn little_memory_that_may_be_locked_is_a_problem_up_to_its_limit() {
        let mut sound = Sound::new();
        sound.machine.limit = Some(LITTLE);
        assert!(sound.machine.findings().iter().all(|finding| finding.remedy.is_none()));
        sound.machine.limit = Some(LITTLE - 1);
        let (what, remedy) = sound.problem();
        assert!(what.contains("RLIMIT_MEMLOCK") && remedy.contains("ulimit -l"));
    }

    #[test]
    fn a_link_with_fewer_lanes_than_the_card_has_is_told() {
        let sound = Sound::new();
        sound.file(&format!("sys/bus/pci/devices/{CARD}/current_link_width"), "4\n");
        assert!(sound.problem().0.contains("x4, and the card can do 8.0 GT/s PCIe x8"));
    }
}
