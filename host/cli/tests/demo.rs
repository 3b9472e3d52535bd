//! `verbena sim` and `verbena demo` as processes: the real RTL, real sockets, files of every kind.
#![cfg(feature = "sim")]

use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Child, Command, Output, Stdio},
    time::{Duration, Instant},
};

fn verbena(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
    command.args(arguments).env_remove("VERBENA_DEVICE").env_remove("VERBENA_LOG").env_remove("VERBENA_RUN");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The demo on a file; its captures go to the test's folder, its temporary files too.
fn demo(folder: &Path, arguments: &[&str]) -> Output {
    let out = folder.join("captures");
    let temporary = folder.join("tmp");
    std::fs::create_dir_all(&temporary).expect("made");
    let output =
        verbena(&["demo", "--json", "--out"]).arg(out).args(arguments).env("TMPDIR", &temporary).output();
    let left = std::fs::read_dir(&temporary).expect("there").count();
    assert_eq!(left, 0, "nothing is left behind");
    output.expect("runs")
}

fn write(path: &Path, length: usize) {
    let bytes: Vec<u8> = (0..length as u32).map(|i| i.wrapping_mul(0x9e37_79b1).to_be_bytes()[0]).collect();
    std::fs::write(path, bytes).expect("written");
}

#[test]
fn a_file_of_the_callers_crosses_a_clean_and_a_lossy_wire_by_write_and_by_send() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("file");
    write(&file, 300_007);
    let output = demo(folder.path(), &[file.to_str().expect("text")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let hash = rows[0]["sha256"].as_str().expect("a hash").to_owned();
    let expected = [("write", "clean"), ("send", "clean"), ("write", "lossy"), ("send", "lossy")];
    assert_eq!(rows.as_array().map(Vec::len), Some(4));
    for (row, (op, wire)) in rows.as_array().expect("rows").iter().zip(expected) {
        assert_eq!((row["op"].as_str(), row["wire"].as_str()), (Some(op), Some(wire)));
        assert_eq!((row["bytes"].as_u64(), row["sha256"].as_str()), (Some(300_007), Some(&*hash)));
        let number = |key: &str| row[key].as_u64().expect("a number");
        // 293 packets of data; by WRITE the notes of the chunks besides
        assert!(number("packets") >= 293, "{row}");
        assert_eq!(number("lost") > 0, wire == "lossy", "{row}");
        assert_eq!(number("retransmissions") > 0, wire == "lossy", "{row}");
        let share = row["share"].as_f64().expect("a number");
        assert!(share > 0.0 && share <= 1.0, "{row}");
        assert!(wire == "lossy" || share > 0.3, "{row}");
        let capture = Path::new(row["capture"].as_str().expect("a path"));
        assert!(std::fs::metadata(capture).expect("there").len() > 600_000);
    }
}

#[test]
fn the_shortest_files_cross_too() {
    let folder = tempfile::tempdir().expect("a folder");
    for length in [0, 1] {
        let file = folder.path().join("file");
        write(&file, length);
        let output = demo(folder.path(), &[file.to_str().expect("text")]);
        assert!(output.status.success(), "{length}: {}", text(&output.stderr));
        let rows: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(rows[3]["bytes"].as_u64(), Some(length as u64));
    }
}

#[test]
fn what_is_no_readable_file_fails_in_one_line_that_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing");
    let pipe = folder.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().expect("runs").success());
    for (path, words) in [
        (missing.as_path(), "No such file"),
        (folder.path(), "not a regular file"),
        (pipe.as_path(), "not a regular file"),
    ] {
        let output = demo(folder.path(), &[path.to_str().expect("text")]);
        assert_eq!(output.status.code(), Some(1));
        let said = text(&output.stderr);
        assert!(said.contains(path.to_str().expect("text")) && said.contains(words), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    assert_eq!(verbena(&["demo", "--loss", "2"]).output().expect("runs").status.code(), Some(2));
    assert_eq!(verbena(&["sim", "--cards", "3"]).output().expect("runs").status.code(), Some(2));
}

/// `verbena sim` that is killed when the test ends early.
struct Sim(Child);

impl Drop for Sim {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_simulation_tells_its_sockets_serves_and_ends_cleanly_at_sigterm() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = folder.path().join("run");
    let capture = folder.path().join("wire.pcapng");
    let mut command = verbena(&["sim", "--card", "mtu=1500", "--card", "mac=02:00:00:00:00:0c,ip=10.0.0.3"]);
    command.args(["--capture", capture.to_str().expect("text")]).env("VERBENA_RUN", &run);
    let mut sim = Sim(command.stdout(Stdio::piped()).spawn().expect("starts"));
    let lines = BufReader::new(sim.0.stdout.take().expect("piped")).lines().map_while(Result::ok);
    let lines: Vec<String> = lines.take(3).collect();
    let socket = |card: &str| run.join(format!("{card}.sock"));
    assert_eq!(lines[0], format!("card0 {} 02:00:00:00:00:0a 10.0.0.1", socket("card0").display()));
    assert_eq!(lines[1], format!("card1 {} 02:00:00:00:00:0c 10.0.0.3", socket("card1").display()));
    assert_eq!(lines[2], "ready");
    let output = verbena(&["devinfo", "--json"]).env("VERBENA_RUN", &run).output().expect("runs");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let cards: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(cards.as_array().map(Vec::len), Some(2));
    // another simulation in the same place is refused
    let second = verbena(&["sim"]).env("VERBENA_RUN", &run).output().expect("runs");
    assert_eq!(second.status.code(), Some(1));
    assert!(text(&second.stderr).contains("another simulator serves there"), "{}", text(&second.stderr));
    // SAFETY: a plain system call, to a child that has not been waited for, so the pid is its own.
    let killed = unsafe { libc::kill(sim.0.id() as i32, libc::SIGTERM) };
    assert_eq!(killed, 0);
    let end = Instant::now() + Duration::from_secs(20);
    let status = loop {
        if let Some(status) = sim.0.try_wait().expect("waits") {
            break status;
        }
        assert!(Instant::now() < end, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    assert!(status.success(), "{status}");
    assert!(!socket("card0").exists() && !socket("card1").exists());
    let bytes = std::fs::read(&capture).expect("there");
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a section header");
}

/// A simulation of two cards in a folder of its own.
fn simulate(folder: &Path, arguments: &[&str]) -> Sim {
    let mut command = verbena(&["sim"]);
    command.args(arguments).env("VERBENA_RUN", folder).stdout(Stdio::piped());
    let mut sim = Sim(command.spawn().expect("starts"));
    let mut lines = BufReader::new(sim.0.stdout.take().expect("piped")).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"), "it ended before it was ready");
    sim
}

/// The outcome of a self-test, and its exit code.
fn selftest(folder: &Path, arguments: &[&str]) -> (Value, Option<i32>) {
    let mut command = verbena(&["selftest", "--json"]);
    let output = command.args(arguments).env("VERBENA_RUN", folder).output().expect("runs");
    eprintln!("{}{}", text(&output.stdout), text(&output.stderr));
    (serde_json::from_slice(&output.stdout).expect("JSON"), output.status.code())
}

#[test]
fn two_simulated_cards_pass_every_check_of_the_selftest() {
    let folder = tempfile::tempdir().expect("a folder");
    let _sim = simulate(folder.path(), &[]);
    let (result, code) = selftest(folder.path(), &[]);
    let counts = [&result["ok"], &result["failed"], &result["left_out"]].map(|count| count.as_u64());
    assert_eq!((counts, code), ([Some(9), Some(0), Some(0)], Some(0)));
}

#[test]
fn a_dead_wire_fails_the_checks_that_use_it_and_one_card_leaves_them_out() {
    let folder = tempfile::tempdir().expect("a folder");
    let _sim = simulate(folder.path(), &["--loss", "100%"]);
    let (result, code) = selftest(folder.path(), &["--only", "registers", "--only", "dma"]);
    assert_eq!((result["ok"].as_u64(), result["failed"].as_u64(), code), (Some(1), Some(1), Some(1)));
    assert_eq!(result["checks"][1]["verdict"], "FAILED");
    assert!(result["checks"][1]["detail"].as_str().expect("words").contains("RetryExcErr"), "{result}");
    let (result, code) = selftest(folder.path(), &["--device", "sim:card1"]);
    assert_eq!((result["ok"].as_u64(), result["left_out"].as_u64(), code), (Some(3), Some(6), Some(0)));
}

#[test]
fn a_live_capture_is_alone_on_stdout() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = verbena(&["sim", "--cards", "1", "--capture", "-", "--until-eof"]);
    command.env("VERBENA_RUN", folder.path()).stdin(Stdio::null()).stderr(Stdio::piped());
    let mut sim = Sim(command.stdout(Stdio::piped()).spawn().expect("starts"));
    let mut bytes = Vec::new();
    sim.0.stdout.take().expect("piped").read_to_end(&mut bytes).expect("read");
    let mut said = String::new();
    sim.0.stderr.take().expect("piped").read_to_string(&mut said).expect("read");
    assert!(sim.0.wait().expect("ends").success(), "{said}");
    assert_eq!(bytes[..4], [0x0a, 0x0d, 0x0d, 0x0a], "a section header");
    assert!(said.contains("ready"), "{said}");
}
