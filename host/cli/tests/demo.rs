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
    let output = demo(folder.path(), &[file.to_str().expect("text"), "--trace"]);
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
        let timeline = std::fs::read(row["trace"].as_str().expect("a path")).expect("there");
        let (tracks, packets) = timeline_of(&timeline);
        for stage in ["doorbell", "segment", "gather", "packetise", "mac", "verify", "check", "acknowledge"] {
            assert!(tracks.iter().filter(|track| *track == stage).count() >= 2, "{stage}: {tracks:?}");
        }
        assert!(packets > 293 * 10, "{packets}");
        let table: Vec<&str> =
            row["latency"].as_array().expect("lines").iter().filter_map(Value::as_str).collect();
        assert!(table.iter().any(|line| line.starts_with("Doorbell to the end")), "{table:?}");
        assert!(table.iter().any(|line| line.contains("MacSend > peer: MacReceive")), "{table:?}");
    }
}

/// The fields of a protobuf message: number, value of a varint or fixed64, bytes of a string or message.
fn fields(mut bytes: &[u8]) -> Vec<(u64, u64, &[u8])> {
    fn varint(bytes: &mut &[u8]) -> u64 {
        let mut value = 0;
        for shift in (0..).step_by(7) {
            let (byte, rest) = bytes.split_first().expect("a whole number");
            *bytes = rest;
            value |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        value
    }
    let mut all = vec![];
    while !bytes.is_empty() {
        let tag = varint(&mut bytes);
        let (value, length) = match tag & 7 {
            0 => (varint(&mut bytes), 0),
            1 => (u64::from_le_bytes(*bytes.first_chunk().expect("8 bytes")), 8),
            2 => (0, varint(&mut bytes) as usize),
            kind => panic!("wire type {kind}"),
        };
        let (body, rest) = bytes.split_at(length);
        all.push((tag >> 3, value, body));
        bytes = rest;
    }
    all
}

/// A `.pftrace` by the field numbers of perfetto_trace.proto: names of its tracks, and how many events. Every slice that begins
/// ends, and every arrow has two ends or more.
fn timeline_of(bytes: &[u8]) -> (Vec<String>, usize) {
    let (mut tracks, mut events, mut open) = (vec![], 0, std::collections::HashMap::new());
    let mut arrows = std::collections::HashMap::<u64, u32>::new();
    for (packet, _, body) in fields(bytes) {
        assert_eq!(packet, 1, "packets and nothing else");
        let packet = fields(body);
        let message = |number| packet.iter().find(|field| field.0 == number).map(|field| fields(field.2));
        if let Some(track) = message(60) {
            let name = track.iter().find(|field| field.0 == 2).expect("a name").2;
            tracks.push(text(name));
        }
        let Some(event) = message(11) else { continue };
        assert!(packet.iter().any(|field| field.0 == 8), "an event has its time");
        let value = |number| event.iter().find(|field| field.0 == number).map(|field| field.1);
        *open.entry(value(11).expect("a track")).or_insert(0i32) += match value(9) {
            Some(1) => 1,
            Some(2) => -1,
            _ => 0,
        };
        for (.., arrow, _) in event.iter().filter(|field| matches!(field.0, 47 | 48)) {
            *arrows.entry(*arrow).or_default() += 1;
        }
        events += 1;
    }
    assert!(open.values().all(|depth| *depth == 0), "{open:?}");
    assert!(!arrows.is_empty() && arrows.values().all(|ends| *ends >= 2));
    (tracks, events)
}

#[test]
fn requests_are_followed_through_every_stage_of_both_cards() {
    let folder = tempfile::tempdir().expect("a folder");
    let watched = folder.path().join("all.pftrace");
    let _sim = simulate(folder.path(), &["--trace", watched.to_str().expect("text")]);
    for op in ["write", "send", "read"] {
        let out = folder.path().join(format!("{op}.pftrace"));
        let mut command = verbena(&["trace", "--json", "--op", op, "--count", "6", "--out"]);
        let output = command.arg(&out).env("VERBENA_RUN", folder.path()).output().expect("runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
        let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        assert_eq!(told["missing"].as_u64(), Some(0), "{told}");
        let table: Vec<&str> =
            told["latency"].as_array().expect("lines").iter().filter_map(Value::as_str).collect();
        assert!(table[0].ends_with(": 6 requests"), "{table:?}");
        assert!(table.iter().any(|line| line.contains("Place > Placed")), "{table:?}");
        let (tracks, events) = timeline_of(&std::fs::read(&out).expect("there"));
        assert!(events > 6 * 20 * 2, "{events}");
        assert!(tracks.iter().any(|track| track == "sim:card1"), "{tracks:?}");
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
    assert_eq!((result["failed"].as_u64(), code), (Some(0), Some(0)), "{result}");
    // not every machine has huge pages
    let checks = result["checks"].as_array().expect("checks");
    let left_out: Vec<_> = checks.iter().filter(|check| check["verdict"] == "-").collect();
    assert!(left_out.iter().all(|check| check["name"] == "huge pages"), "{result}");
    assert_eq!(result["ok"].as_u64(), Some(11 - left_out.len() as u64));
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
    assert_eq!((result["ok"].as_u64(), result["left_out"].as_u64(), code), (Some(3), Some(8), Some(0)));
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
