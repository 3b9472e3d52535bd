//! `verbena flash ecp5-versa` in a process of its own: what it refuses before it asks for the board, and, with the real
//! openFPGALoader, what becomes of a model of the FPGA's JTAG port and of the flash behind it.
//!
//! ```text
//! verbena flash ecp5-versa ── openFPGALoader ── XVC on loopback ── sim::ecp5: TAP, configuration logic, SPI NOR
//! ```
//! The tests that need openFPGALoader (`PATH`) and a bitstream of nextpnr and ecppack with its manifest (`ECP5_BUILT`) are run by
//! `cargo ci board ecp5-versa --flash`, and by `cargo ci test`.

use sha2::{Digest, Sha256};
use sim::ecp5::{Cable, LFE5UM5G_45F, N25Q128A, Tap};
use sim::nor::Nor;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::{Arc, Mutex, MutexGuard};

/// The same with slower transceivers, and a smaller one.
const LFE5UM_45F: u32 = 0x0111_2043;
const LFE5U_25F: u32 = 0x4111_1043;
const DEVICE: &str = "LFE5UM5G-45F-8BG381C";

/// A folder to run the command in.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        Desk(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn put(&self, name: &str, bytes: &[u8]) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    /// A bitstream, where the command looks for it, and a manifest that vouches for it.
    fn vouched(&self, bitstream: &[u8]) {
        self.put("target/boards/ecp5-versa/out/versa.bit", bitstream);
        self.manifest(DEVICE, bitstream);
    }

    /// A manifest as ci/tools/ecp5 writes it.
    fn manifest(&self, device: &str, bitstream: &[u8]) {
        let hash: String = Sha256::digest(bitstream).iter().map(|byte| format!("{byte:02x}")).collect();
        let text = format!(
            "# By `cargo ci board ecp5-versa --update`. Never run on a board.\ntop = \"versa\"\ndevice = \"{device}\"\n\
             rtl = \"00\"\nseed = 1\n\n[tools]\npyosys = \"0.70\"\n\n[clocks]\n\"core\" = {{ achieved = 70.1, wanted = 62.5 }}\n\n\
             [sha256]\n\"versa.bit\" = \"{hash}\"\n\"versa.svf\" = \"00\"\n"
        );
        self.put("bitstreams/ecp5-versa/manifest.toml", text.as_bytes());
    }

    /// A program in openFPGALoader's place. A process of its own writes it: a file that is open for writing cannot be started, and
    /// what this process has open, the children of other tests have for a moment too.
    fn program(&self, script: &str) {
        let write = "mkdir -p bin; printf '#!/bin/sh\n%s\n' \"$1\" > bin/openFPGALoader; chmod 755 bin/openFPGALoader";
        let mut shell = Command::new("/bin/sh");
        shell.args(["-ec", write, "sh", script]).current_dir(self.0.path());
        assert!(shell.status().unwrap().success());
    }

    /// The command, with `bin` alone as its path.
    fn flash(&self, arguments: &[&str]) -> Output {
        self.command(arguments).env("PATH", self.path("bin")).output().unwrap()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
        command.current_dir(self.0.path()).args(["flash", "ecp5-versa"]).args(arguments);
        command
    }
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// What it said when it failed.
fn refusal(output: &Output) -> String {
    assert_eq!((output.status.code(), out(output)), (Some(1), String::new()));
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// As short as a stream may be that begins and ends as one.
fn short(idcode: u32) -> Vec<u8> {
    let mut file = b"\xff\x00Part: LFE5UM5G-45F-8CABGA381\0\xff".to_vec();
    file.extend([0xff, 0xff, 0xbd, 0xb3, 0xff, 0xff, 0xff, 0xff, 0x3b, 0, 0, 0, 0xe2, 0, 0, 0]);
    file.extend(idcode.to_be_bytes());
    file.extend([0x22, 0, 0, 0, 0x40, 0, 0, 0, 0x46, 0, 0, 0]);
    file.extend([0x5e, 0, 0, 0, 0xff, 0xff, 0xff, 0xff]);
    file
}

// ---- without the board

#[test]
fn what_is_wrong_with_file_or_manifest_is_named_before_the_board_is_asked() {
    let desk = Desk::new();
    desk.program("echo ran > ran");
    let good = short(LFE5UM5G_45F);
    let mut damaged = good.clone();
    damaged[10] ^= 1;
    let file = "target/boards/ecp5-versa/out/versa.bit";
    let manifest = "bitstreams/ecp5-versa/manifest.toml";
    let refused = |says: &[&str]| {
        let words = refusal(&desk.flash(&[]));
        assert!(says.iter().all(|says| words.contains(says)), "{words}");
    };

    refused(&["read the manifest bitstreams/ecp5-versa/manifest.toml", "No such file", "--manifest"]);
    desk.put(manifest, b"top = \"versa\"\ndevice = \n");
    refused(&["read the manifest", "take the one that was made with the bitstream"]);
    desk.put(manifest, format!("top = \"versa\"\ndevice = \"{DEVICE}\"\n[sha256]\n").as_bytes());
    refused(&["it has no hash of versa.bit"]);
    desk.manifest("LFE5U-25F-6BG256C", &good);
    refused(&["it is of LFE5U-25F-6BG256C, this board has LFE5UM5G-45F-8BG381C"]);

    desk.manifest(DEVICE, &good);
    refused(&["read the bitstream target/boards/ecp5-versa/out/versa.bit", "cargo ci board ecp5-versa"]);
    for length in [0, 1, 45, 50, good.len() - 5] {
        desk.put(file, &good[..length]);
        refused(&[&format!("its {length} bytes do not end as a bitstream does"), "copy it again"]);
    }
    desk.put(file, b"\x00\x09\x0f\xf0 of another maker");
    refused(&["it does not begin as one", "that ecppack wrote"]);
    desk.put(file, b"\xff\x00 a comment, and no more");
    refused(&["it has no preamble"]);
    desk.put(file, &short(LFE5UM_45F));
    refused(&["it is for the device 0x01112043, this board has 0x81112043"]);
    desk.put(file, &damaged);
    refused(&[
        "check the bitstream: SHA-256 is",
        "file and manifest are of two builds, or the file is damaged",
    ]);
    assert!(!desk.path("ran").exists(), "openFPGALoader was started");
}

#[test]
fn without_openfpgaloader_it_says_which_package_to_install() {
    let desk = Desk::new();
    desk.vouched(&short(LFE5UM5G_45F));
    let words = refusal(&desk.flash(&[]));
    assert!(words.contains("openFPGALoader is not installed; `apt install openfpgaloader`"), "{words}");
}

#[test]
fn what_openfpgaloader_says_when_it_gives_up_is_passed_on() {
    let desk = Desk::new();
    desk.vouched(&short(LFE5UM5G_45F));
    desk.program("echo 'unable to open ftdi device: -3 (device not found)' >&2; exit 1");
    let words = refusal(&desk.flash(&[]));
    assert!(words.contains("identify the FPGA: openFPGALoader --cable ft2232 --detect\n"), "{words}");
    assert!(words.contains("gave up (exit status: 1): unable to open ftdi device: -3"), "{words}");
    assert!(words.contains("see that the board has power"), "{words}");
}

#[test]
fn a_chain_without_the_fpga_is_refused_before_anything_is_loaded() {
    let desk = Desk::new();
    desk.vouched(&short(LFE5UM5G_45F));
    desk.program("case \"$*\" in *--detect) echo found 0 devices;; *) echo ran > ran;; esac");
    assert!(refusal(&desk.flash(&[])).contains("no device answers"));
    let others = "echo 'index 0:'; echo '	idcode 0x41112043'; echo '	idcode 0x1111043'";
    desk.program(&format!("case \"$*\" in *--detect) {others};; *) echo ran > ran;; esac"));
    let words = refusal(&desk.flash(&["--spi"]));
    assert!(words.contains("0x41112043, 0x01111043 answers, not 0x81112043"), "{words}");
    assert!(!desk.path("ran").exists());
}

#[test]
fn a_version_that_ends_well_and_does_not_tell_what_counts_is_not_believed() {
    let desk = Desk::new();
    desk.vouched(&short(LFE5UM5G_45F));
    let detects = "case \"$*\" in *--detect) echo '	idcode 0x81112043'; exit 0;; esac";
    let refused = |script: &str, spi: bool, says: &str| {
        desk.program(&format!("{detects}; {script}"));
        let words = refusal(&desk.flash(if spi { &["--spi"] } else { &[] }));
        assert!(words.contains(says), "{words}");
    };
    let status = "load the FPGA: openFPGALoader ended well but said nothing of the status register";
    refused("exit 0", false, status);
    // of what ran before it was loaded
    let done = "echo displayReadReg; echo '	Done Flag'";
    refused(&format!("{done}; echo 'Enable configuration: DONE'"), false, status);
    let loads = format!("echo 'Disable configuration: DONE'; {done}");
    refused(&loads, true, "said nothing of reading back");
    let reads = format!("{loads}; echo 'Verifying write (May take time)'");
    refused(&format!("{reads}; echo 'Refresh: DONE'"), true, "said nothing of reading back");
    refused(&format!("{reads}; echo Done"), true, "said nothing of a start from the flash");
    // it got lost while it read back
    let fails = "case \"$*\" in *--write-flash*) exit 1;; esac";
    refused(&format!("{reads}; {fails}"), true, "gave up (exit status: 1)");
}

// ---- with openFPGALoader and the model

/// The built bitstream, and the model of a board at the end of a cable.
struct Bench {
    desk: Desk,
    tap: Arc<Mutex<Tap>>,
    cable: Cable,
    bitstream: Vec<u8>,
}

impl Bench {
    fn new(idcode: u32) -> Bench {
        let built =
            PathBuf::from(std::env::var_os("ECP5_BUILT").expect("ECP5_BUILT: see the head of this file"));
        let tap = Arc::new(Mutex::new(Tap::new(idcode, Nor::small(N25Q128A, 1 << 24, 1))));
        let cable = Cable::to(tap.clone()).unwrap();
        let desk = Desk::new();
        let copied = |from: &str, to: &str| {
            let bytes = std::fs::read(built.join(from)).unwrap();
            desk.put(to, &bytes);
            bytes
        };
        let bitstream = copied("rgmii_loop.bit", "versa.bit");
        copied("manifest.toml", "manifest.toml");
        Bench { desk, tap, cable, bitstream }
    }

    fn tap(&self) -> MutexGuard<'_, Tap> {
        self.tap.lock().unwrap()
    }

    /// Whether these bytes begin as the file does behind its comment; the versions differ in how many dummies they keep.
    fn begins(&self, bytes: &[u8]) -> bool {
        let dummies = bytes.iter().take_while(|byte| **byte == 0xff).count();
        // two of them are the preamble's
        bytes[dummies.saturating_sub(2)..].starts_with(self.body()) && (2..=4).contains(&dummies)
    }

    /// What of the file the device gets: all but the comment.
    fn body(&self) -> &[u8] {
        let at = self.bitstream.windows(4).position(|word| word == [0xff, 0xff, 0xbd, 0xb3]).unwrap();
        &self.bitstream[at..]
    }

    fn flash(&self, arguments: &[&str]) -> Output {
        let port = self.cable.port().to_string();
        let cable = ["--", "--cable", "xvc-client", "--ip", "127.0.0.1", "--port", &port];
        let file = ["versa.bit", "--manifest", "manifest.toml"];
        self.desk.command(&[&file, arguments, &cable].concat()).output().unwrap()
    }

    fn flash_is(&self, bytes: &[u8]) -> bool {
        let tap = self.tap();
        tap.flash.bytes.starts_with(bytes) && tap.flash.bytes[bytes.len()..].iter().all(|byte| *byte == 0xff)
    }
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    out(output)
}

#[test]
#[ignore = "needs openFPGALoader: cargo ci board ecp5-versa --flash"]
fn the_fpga_is_loaded_and_again_over_what_runs_in_it() {
    let bench = Bench::new(LFE5UM5G_45F);
    for _ in 0..2 {
        assert!(said(&bench.flash(&[])).starts_with("versa.bit is loaded and runs until the power goes"));
        assert!(bench.tap().is_done());
        assert!(bench.begins(&bench.tap().burst));
    }
    assert!(bench.flash_is(&[]));
}

#[test]
#[ignore = "needs openFPGALoader: cargo ci board ecp5-versa --flash"]
fn the_flash_is_written_read_back_and_starts_the_fpga() {
    let bench = Bench::new(LFE5UM5G_45F);
    // something older is in it
    bench.tap().flash.bytes[..0x4_0000].fill(0x5a);
    assert!(
        said(&bench.flash(&["--spi"])).contains("is in the configuration flash, reads back and has started")
    );
    assert!(bench.begins(&bench.tap().flash.bytes));
    assert!(bench.tap().is_done());
    assert_eq!(bench.tap().flash.faults, [""; 0]);
    // also while a design runs
    said(&bench.flash(&[]));
    said(&bench.flash(&["--spi"]));
    assert!(bench.tap().is_done());
}

#[test]
#[ignore = "needs openFPGALoader: cargo ci board ecp5-versa --flash"]
fn another_device_is_refused_untouched() {
    for (idcode, says) in
        [(LFE5U_25F, "1111043 answers, not 0x81112043"), (LFE5UM_45F, "0x01112043 answers, not 0x81112043")]
    {
        let bench = Bench::new(idcode);
        for arguments in [&[][..], &["--spi"]] {
            let words = refusal(&bench.flash(arguments));
            assert!(words.contains(says), "{words}");
        }
        assert!(bench.tap().burst.is_empty());
        assert!(bench.flash_is(&[]));
        assert_eq!(bench.tap().flash.operations, 0);
    }
}

#[test]
#[ignore = "needs openFPGALoader: cargo ci board ecp5-versa --flash"]
fn a_done_that_never_rises_is_told() {
    let bench = Bench::new(LFE5UM5G_45F);
    bench.tap().never_done = true;
    let words = refusal(&bench.flash(&[]));
    assert!(words.contains("load the FPGA: all bytes went in, but DONE did not rise"), "{words}");
    assert!(words.contains("No err"), "{words}");
    // a flash is not written with what the FPGA does not start with
    let words = refusal(&bench.flash(&["--spi"]));
    assert!(words.contains("DONE did not rise"), "{words}");
    assert_eq!(bench.tap().flash.operations, 0);
}

#[test]
#[ignore = "needs openFPGALoader: cargo ci board ecp5-versa --flash"]
fn a_board_that_is_not_set_to_start_from_its_flash_is_told_from_a_bad_flash() {
    let bench = Bench::new(LFE5UM5G_45F);
    bench.tap().boots = false;
    let words = refusal(&bench.flash(&["--spi"]));
    assert!(words.contains("start from the flash: it holds the bitstream, but DONE did not rise"), "{words}");
    assert!(words.contains("master SPI"), "{words}");
    assert!(bench.begins(&bench.tap().flash.bytes));
}

#[test]
#[ignore = "needs openFPGALoader: cargo ci board ecp5-versa --flash"]
fn a_flash_that_reads_back_other_bytes_is_told_with_the_place() {
    let bench = Bench::new(LFE5UM5G_45F);
    let worn = bench.body().iter().skip(100_000).position(|byte| *byte != 0xff).unwrap() + 100_000;
    bench.tap().flash.worn = Some(worn);
    let words = refusal(&bench.flash(&["--spi"]));
    assert!(words.contains(&format!("other bytes than were written, the first at {worn:#08x}")), "{words}");
    assert!(!bench.tap().is_done());
}

#[test]
#[ignore = "needs openFPGALoader: cargo ci board ecp5-versa --flash"]
fn a_protected_flash_stays_as_it_is() {
    // all of it in both: the first openFPGALoader sees, the second is more than it reckons with
    for (protection, says) in [(0x44, "block protection is set"), (0x5c, "protected")] {
        let bench = Bench::new(LFE5UM5G_45F);
        bench.tap().flash.protection = protection;
        let words = refusal(&bench.flash(&["--spi"]));
        assert!(words.contains(says), "{words}");
        assert!(bench.flash_is(&[]));
    }
}

#[test]
#[ignore = "needs openFPGALoader: cargo ci board ecp5-versa --flash"]
fn a_bitstream_that_the_fpga_refuses_is_told_with_its_reason() {
    let bench = Bench::new(LFE5UM5G_45F);
    let mut damaged = bench.bitstream.clone();
    damaged[100_000] ^= 0x10;
    bench.desk.put("versa.bit", &damaged);
    // vouched for by somebody who has not looked
    bench.desk.manifest(DEVICE, &damaged);
    std::fs::rename(bench.desk.path("bitstreams/ecp5-versa/manifest.toml"), bench.desk.path("manifest.toml"))
        .unwrap();
    for arguments in [&[][..], &["--spi"]] {
        let words = refusal(&bench.flash(arguments));
        assert!(words.contains("load the FPGA: the FPGA refuses what came in"), "{words}");
        assert!(words.contains("CRC ERR") && words.contains("try a slower clock"), "{words}");
        assert!(!bench.tap().is_done());
    }
    assert_eq!(bench.tap().flash.operations, 0);
}

#[test]
#[ignore = "needs openFPGALoader: cargo ci board ecp5-versa --flash"]
fn the_truncated_and_the_wrong_of_hash_are_refused_before_the_cable_is_touched() {
    let bench = Bench::new(LFE5UM5G_45F);
    bench.desk.put("versa.bit", &bench.bitstream[..150_000]);
    assert!(refusal(&bench.flash(&["--spi"])).contains("150000 bytes do not end as a bitstream does"));
    let mut other = bench.bitstream.clone();
    other[100_000] ^= 1;
    bench.desk.put("versa.bit", &other);
    assert!(refusal(&bench.flash(&["--spi"])).contains("file and manifest are of two builds"));
    assert_eq!(bench.tap().flash.operations, 0);
}

#[test]
#[ignore = "needs openFPGALoader: cargo ci board ecp5-versa --flash"]
fn a_cable_that_is_not_there_is_openfpgaloaders_word() {
    let bench = Bench::new(LFE5UM5G_45F);
    let Bench { desk, cable, .. } = bench;
    let port = cable.port().to_string();
    drop(cable);
    let arguments = [
        "versa.bit",
        "--manifest",
        "manifest.toml",
        "--",
        "--cable",
        "xvc-client",
        "--ip",
        "127.0.0.1",
        "--port",
        &port,
    ];
    let words = refusal(&desk.command(&arguments).output().unwrap());
    assert!(
        words.contains("identify the FPGA: openFPGALoader gave up") && words.contains("onnection"),
        "{words}"
    );
}
