//! Captures read by the real tshark: names, times, directions, comments, and no frame it finds fault with unless marked.
//!
//! tshark is installed by `cargo ci`; without it these tests fail with the command to type.

use pcap_file::pcap::PcapReader;
use serde_json::Value;
use sim::{
    capture::Capture,
    wire::{Action, Config, Delay, Frame, Rule, Side, Wire, fcs},
};
use std::{
    fs::File,
    io::{self, Write},
    path::Path,
    process::Command,
    sync::{Arc, Mutex},
};

const TEN_G: u64 = 10_000_000_000;

/// Frames of a real soft-RoCE WRITE, padded and with FCS, each with the end that sent it.
fn golden() -> Vec<(Side, Vec<u8>)> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/rxe_write_imm.pcap");
    let mut reader = PcapReader::new(File::open(path).unwrap()).unwrap();
    let mut frames = Vec::new();
    while let Some(packet) = reader.next_packet() {
        let mut bytes = packet.unwrap().data.into_owned();
        bytes.resize(bytes.len().max(60), 0);
        let tail = fcs(&bytes);
        bytes.extend(tail);
        // Source address ..:0a is card 0.
        frames.push((if bytes[11] == 0x0a { Side::A } else { Side::B }, bytes));
    }
    frames
}

fn tshark(file: &Path, arguments: &[&str]) -> String {
    let output = Command::new("tshark")
        .args([
            "-n",
            "--disable-protocol",
            "rpcordma",
            "-o",
            "ip.check_checksum:TRUE",
            "-o",
            "udp.check_checksum:TRUE",
        ])
        .args(["-o", "eth.check_fcs:TRUE", "-r"])
        .arg(file)
        .args(arguments)
        .output()
        .unwrap_or_else(|error| panic!("tshark: {error}; apt-get install tshark"));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// One row per packet of the named fields, separated by `|`.
fn fields(file: &Path, filter: &str, names: &[&str]) -> Vec<String> {
    let mut arguments = vec!["-Y", filter, "-T", "fields", "-E", "separator=|"];
    names.iter().for_each(|name| arguments.extend(["-e", name]));
    tshark(file, &arguments).lines().map(String::from).collect()
}

/// Sends the golden frames through a wire and captures both ends.
fn story(capture: &mut Capture<impl Write>, wire: &mut Wire) {
    let mut now = 1_000_000_000; // 1 ms
    for (from, bytes) in golden() {
        let frame = Frame::new(bytes, now, TEN_G);
        now = frame.end;
        let fault = wire.send(from, frame.clone());
        capture.sent(from.index(), &frame, fault);
        now += 9600;
    }
    while let Some(due) = wire.next_due() {
        capture.advance(due).unwrap();
        for at in Side::BOTH {
            while let Some(delivery) = wire.receive(at, due) {
                capture.received(at.index(), &delivery);
            }
        }
    }
}

const BAD: &str = "_ws.malformed || ip.checksum.status == \"Bad\" || udp.checksum.status == \"Bad\" || eth.fcs.status == \"Bad\"";

#[test]
fn tshark_reads_both_ends_names_times_and_nothing_bad() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("clean.pcapng");
    let mut capture = Capture::create(&file, &["card0", "card1"]).unwrap();
    story(&mut capture, &mut Wire::new(&Config { delay: 5_000_123, ..Config::default() }));
    capture.finish().unwrap();

    let golden = golden();
    let rows = fields(
        &file,
        "frame",
        &["frame.interface_name", "frame.time_epoch", "frame.comment", "frame.packet_flags_direction"],
    );
    assert_eq!(rows.len(), 2 * golden.len());
    // The first: card 1 sends at 1 ms, the last byte passes length + 8 byte times later, rounded down to ns.
    let (side, bytes) = &golden[0];
    let end = 1_000_000_000 + (bytes.len() as u64 + 8) * 800;
    let stamp = |time: u64| format!("0.{:09}", time / 1000);
    assert_eq!(*side, Side::B);
    assert!(rows[0].starts_with(&format!("card1|{}||", stamp(end))), "{}", rows[0]);
    let arrival = format!("card0|{}||", stamp(end + 5_000_123));
    assert!(rows.iter().any(|row| row.starts_with(&arrival)), "{arrival} in {rows:#?}");
    assert!(rows.is_sorted_by_key(|row| row.split('|').nth(1).unwrap().to_owned()));
    let out = fields(
        &file,
        "frame.packet_flags_direction == 2 && frame.interface_name == card1",
        &["frame.number"],
    );
    assert_eq!(out.len(), golden.iter().filter(|(from, _)| *from == Side::B).count());

    assert_eq!(fields(&file, BAD, &["frame.number"]), [""; 0]);
    // Not only not bad: the FCS was found and is good in every frame, and RoCE was understood.
    assert_eq!(fields(&file, "eth.fcs.status == \"Good\"", &["frame.number"]).len(), rows.len());
    assert_eq!(fields(&file, "infiniband.bth", &["frame.number"]).len(), rows.len());
    assert_eq!(fields(&file, "_ws.expert", &["frame.number", "_ws.expert.message"]), [""; 0]);
    let json: Value = serde_json::from_str(&tshark(&file, &["-c", "1", "-T", "json"])).unwrap();
    let layers = &json[0]["_source"]["layers"];
    assert_eq!(layers["frame"]["frame.len"], golden[0].1.len().to_string());
}

#[test]
fn every_fault_is_a_comment_and_only_a_marked_frame_is_bad() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("faults.pcapng");
    let mut capture = Capture::create(&file, &["card0", "card1"]).unwrap();
    let mut wire = Wire::new(&Config::default());
    let senders = golden().iter().filter(|(from, _)| *from == Side::B).count();
    assert!(senders >= 4, "{senders}");
    wire.script(Side::B, Rule::nth(1, Action::Drop));
    wire.script(Side::B, Rule::nth(2, Action::Duplicate));
    // Byte 24 and following are the IPv4 header checksum and addresses.
    wire.script(Side::B, Rule::nth(3, Action::Corrupt(26 * 8)));
    wire.script(Side::B, Rule::nth(4, Action::Delay(Delay::Time(7_000_000))));
    story(&mut capture, &mut wire);
    capture.finish().unwrap();

    let comments = fields(&file, "frame.comment", &["frame.interface_name", "frame.comment"]);
    assert_eq!(comments.len(), 4, "{comments:#?}");
    for expected in ["card1|dropped", "card0|duplicated", "card0|corrupted", "card0|delayed"] {
        assert!(comments.iter().any(|row| row.starts_with(expected)), "{expected} in {comments:#?}");
    }
    let bad = fields(&file, BAD, &["frame.comment"]);
    assert_eq!(bad.len(), 1, "{bad:?}");
    assert!(bad[0].starts_with("corrupted by the wire: bit 0 of byte 26 flipped"));
    assert_eq!(
        fields(
            &file,
            "frame.comment && frame.comment contains \"corrupted\" && ip.checksum.status == \"Bad\"",
            &["frame.number"]
        )
        .len(),
        1
    );
}

/// A pipe whose reader can go away.
#[derive(Clone, Default)]
struct Pipe(Arc<Mutex<(Vec<u8>, usize, bool)>>);

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut pipe = self.0.lock().unwrap();
        if pipe.2 {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        pipe.0.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.lock().unwrap().1 += 1;
        Ok(())
    }
}

#[test]
fn a_live_capture_is_flushed_at_every_advance_and_survives_its_reader() {
    let pipe = Pipe::default();
    let mut capture = Capture::to_writer(pipe.clone(), &["card0", "card1"], true).unwrap();
    let length = || pipe.0.lock().unwrap().0.len();
    let head = length();
    assert!(head > 100, "the interfaces are there before the first frame");
    let frame = Frame::new(golden()[0].1.clone(), 0, TEN_G);
    capture.sent(0, &frame, None);
    capture.advance(frame.end - 1).unwrap();
    assert_eq!(length(), head, "not before its time");
    capture.advance(frame.end).unwrap();
    assert!(length() >= head + frame.bytes.len());

    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("live.pcapng");
    std::fs::write(&file, &pipe.0.lock().unwrap().0).unwrap();
    assert_eq!(fields(&file, "frame", &["frame.interface_name"]), ["card0"]);

    pipe.0.lock().unwrap().2 = true;
    capture.sent(0, &frame, None);
    capture.advance(u64::MAX).unwrap();
    assert!(capture.is_closed());
    capture.sent(0, &frame, None);
    capture.finish().unwrap();
}

#[test]
fn a_capture_that_cannot_be_created_or_written_says_where() {
    let error = Capture::create("/nonexistent/a.pcapng", &["card0"]).err().unwrap().to_string();
    assert!(error.contains("cannot create the capture /nonexistent/a.pcapng"), "{error}");
    let mut capture = Capture::create("/dev/full", &["card0"]).unwrap();
    let frame = Frame::new(vec![0; 9000], 0, TEN_G);
    capture.sent(0, &frame, None);
    let error = capture.finish().unwrap_err().to_string();
    assert!(error.contains("cannot write the capture /dev/full"), "{error}");
}
