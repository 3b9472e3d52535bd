//! The command `verbena` in processes of its own, over vfio-user sockets served here by software cards.

#[path = "../../tests/software_card/mod.rs"]
mod software_card;

use software_card::{World, served::serve};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;

struct Room {
    directory: tempfile::TempDir,
    world: std::sync::Arc<World>,
    servers: Vec<JoinHandle<()>>,
}

impl Room {
    /// Two cards, each for so many connections.
    fn new(connections: usize) -> Room {
        let directory = tempfile::tempdir().expect("a directory");
        let world = World::new(2);
        let path = |i| directory.path().join(format!("card{i}.sock"));
        let servers = (0..2).map(|i| serve(&world, i, &path(i), connections)).collect();
        Room { directory, world, servers }
    }

    fn verbena(&self, arguments: &[&str]) -> Command {
        verbena(self.directory.path(), arguments)
    }

    /// A listening end, and the address it listens on.
    fn listen(&self, arguments: &[&str]) -> (Child, String) {
        let mut command = self.verbena(arguments);
        let listening = ["--device", "sim:card0", "--listen", "127.0.0.1:0", "--timeout", "30"];
        let child = command.args(listening).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.expect("starts");
        let stderr = child.stderr.take().expect("piped");
        let mut lines = BufReader::new(stderr);
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        let address =
            line.trim().strip_prefix("listening on ").unwrap_or_else(|| panic!("{line}")).to_owned();
        // what it says later is shown with the test's own output
        std::thread::spawn(move || {
            let mut rest = String::new();
            let _ = lines.read_to_string(&mut rest);
            eprintln!("listener: {rest}");
        });
        (child, address)
    }

    fn connect(&self, arguments: &[&str], address: &str) -> Output {
        let connecting = ["--device", "sim:card1", "--connect", address, "--timeout", "30"];
        self.verbena(arguments).args(connecting).output().expect("runs")
    }

    fn end(self) {
        self.world.assert_no_faults();
        for server in self.servers {
            server.join().expect("no panic");
        }
    }
}

fn verbena(run: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
    command.args(arguments).env("VERBENA_RUN", run).env_remove("VERBENA_DEVICE").env_remove("VERBENA_LOG");
    command
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn files_of_every_size_arrive_by_write_and_by_send() {
    let sizes = [0usize, 1, 4095, 65_536, 300_007];
    let room = Room::new(2 * sizes.len());
    for op in ["write", "send"] {
        for size in sizes {
            let (from, to) = (room.directory.path().join("from"), room.directory.path().join("to"));
            let bytes: Vec<u8> =
                (0..size as u32).map(|i| i.wrapping_mul(0x9e37_79b1).to_be_bytes()[0]).collect();
            std::fs::write(&from, &bytes).expect("written");
            let both = ["move", "--op", op, "--chunk", "4096", "--slots", "3", "--file"];
            let end = |path: &Path| [both.as_slice(), &[path.to_str().expect("text")]].concat().join(" ");
            let (to_text, from_text) = (end(&to), end(&from));
            let split = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
            let (to_args, from_args) = (split(&to_text), split(&from_text));
            let (child, address) = room.listen(&to_args.iter().map(String::as_str).collect::<Vec<_>>());
            let sent = room.connect(&from_args.iter().map(String::as_str).collect::<Vec<_>>(), &address);
            let received = child.wait_with_output().expect("ends");
            assert!(
                sent.status.success() && received.status.success(),
                "{op} {size}: {}",
                text(&sent.stderr)
            );
            assert!(std::fs::read(&to).expect("there") == bytes, "{op} {size}: the bytes differ");
            let hash =
                |output: &Output| text(&output.stdout).split(' ').next().unwrap_or_default().to_owned();
            assert_eq!(hash(&sent).len(), 64);
            assert_eq!(hash(&sent), hash(&received));
        }
    }
    room.end();
}

#[test]
fn ping_counts_its_messages_at_both_ends() {
    let room = Room::new(1);
    let arguments = ["ping", "--iters", "50", "--size", "1000", "--json"];
    let (child, address) = room.listen(&arguments);
    let connected = room.connect(&arguments, &address);
    let listened = child.wait_with_output().expect("ends");
    assert!(connected.status.success(), "{}", text(&connected.stderr));
    assert!(listened.status.success());
    let value: serde_json::Value = serde_json::from_slice(&connected.stdout).expect("one JSON value");
    assert_eq!((value["iterations"].as_u64(), value["bytes"].as_u64()), (Some(50), Some(100_000)));
    room.end();
}

#[test]
fn pingpong_hears_every_message_back() {
    let room = Room::new(2);
    let arguments = ["pingpong", "--iters", "20", "--size", "5000"];
    for echo in [true, false] {
        let echoing = |on: bool| if on { [&arguments[..], &["--echo"]].concat() } else { arguments.to_vec() };
        let (child, address) = room.listen(&echoing(echo));
        let connected = room.connect(&echoing(!echo), &address);
        let listened = child.wait_with_output().expect("ends");
        assert!(connected.status.success(), "{}", text(&connected.stderr));
        assert!(listened.status.success(), "{}", text(&listened.stderr));
        assert_eq!(text(&connected.stdout), "20 messages of 5000 bytes each way, every byte right\n");
    }
    room.end();
}

#[test]
fn perf_checks_both_ends_either_asking() {
    let many = ["--qps", "5", "--rounds", "3"];
    let jobs = [["send", "700"], ["write", "5000"], ["write", "0"]];
    let room = Room::new(2 * jobs.len());
    for [op, size] in jobs {
        for reverse in [false, true] {
            let several = size == "5000";
            let listening = ["perf", many[2], many[3]];
            let (child, address) = room.listen(if several { &listening } else { &listening[..1] });
            let mut arguments = vec!["perf", "--op", op, "--size", size, "--count", "5"];
            arguments.extend(reverse.then_some("--reverse"));
            arguments.extend(several.then_some(many).into_iter().flatten());
            let connected = room.connect(&arguments, &address);
            let listened = child.wait_with_output().expect("ends");
            assert!(connected.status.success(), "{op} {size}: {}", text(&connected.stderr));
            assert!(listened.status.success(), "{op} {size}");
            let first = |output: &Output| text(&output.stdout).lines().next().map(str::to_owned);
            assert_eq!(first(&connected), first(&listened));
        }
    }
    room.end();
}

#[test]
fn doctor_names_what_is_wrong_with_a_card_with_what_to_do() {
    let room = Room::new(4);
    let problems = || {
        let output = room.verbena(&["doctor", "--json"]).output().expect("runs");
        let value: serde_json::Value = serde_json::from_slice(&output.stdout).expect("one JSON value");
        let findings = value["findings"].as_array().expect("findings").clone();
        let told: Vec<_> = findings.into_iter().filter(|finding| !finding["remedy"].is_null()).collect();
        assert_eq!(
            (value["problems"].as_u64(), output.status.success()),
            (Some(told.len() as u64), told.is_empty())
        );
        told
    };
    assert_eq!(problems(), [] as [serde_json::Value; 0]);
    room.world.cards()[0].link_up = false;
    room.world.cards()[1].layout_hash = 0xdead_beef;
    let [link, contract] = &problems()[..] else { panic!("two problems") };
    assert_eq!((&link["subject"], &link["what"]), (&"sim:card0".into(), &"link down".into()));
    assert!(link["remedy"].as_str().is_some_and(|remedy| remedy.contains("transceiver")));
    assert_eq!(contract["subject"], "sim:card1");
    assert!(contract["what"].as_str().is_some_and(|what| what.contains("00000000deadbeef")), "{contract}");
    assert_eq!(contract["remedy"], "use a driver and a bitstream of the same release");
    room.world.cards()[0].link_up = true;
    room.world.cards()[1].layout_hash = contract::LAYOUT_HASH;
    room.world.cards()[0].unreadable = Some(contract::register::PORT_STATUS);
    room.world.cards()[1].unreadable = Some(contract::register::MAGIC);
    let [port, card] = &problems()[..] else { panic!("two problems") };
    assert_eq!(port["remedy"], "unbind the card and bind it again", "{port}");
    assert!(card["remedy"].as_str().is_some_and(|remedy| remedy.contains("reload its bitstream")), "{card}");
    room.world.cards().iter_mut().for_each(|card| card.unreadable = None);
    assert_eq!(problems(), [] as [serde_json::Value; 0], "nothing stays");
    // a card whose holder refuses others
    let listener = UnixListener::bind(room.directory.path().join("card0.sock")).expect("the place is free");
    let holder = std::thread::spawn(move || drop(listener.accept().expect("a connection")));
    let [held] = &problems()[..] else { panic!("one problem") };
    assert_eq!(held["subject"], "sim:card0");
    assert!(held["remedy"].as_str().is_some_and(|remedy| remedy.contains("another process holds the card")));
    holder.join().expect("no panic");
    room.end();
}

#[test]
fn devinfo_and_counters_tell_of_every_card() {
    let room = Room::new(5);
    let plain = text(&room.verbena(&["devinfo"]).output().expect("runs").stdout);
    for line in ["card: sim:card0", "card: sim:card1", "PORT_ACTIVE", "GID[0]         ::ffff:10.0.0.1"] {
        assert!(plain.contains(line), "{line}:\n{plain}");
    }
    let json = room.verbena(&["devinfo", "--json"]).output().expect("runs").stdout;
    let value: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    assert_eq!(value[1]["limits"]["max_qp"], 64);
    let json = room.verbena(&["counters", "--json"]).output().expect("runs").stdout;
    let value: serde_json::Value = serde_json::from_slice(&json).expect("JSON");
    let rows = value[0]["counters"].as_array().expect("rows");
    assert_eq!(rows.len(), host::Reject::ALL.len() + host::StageCounter::ALL.len());
    assert_eq!((&rows[0]["name"], &rows[0]["kind"]), (&"BadFcs".into(), &"reject.mac".into()));
    // each with its documentation
    let plain = text(&room.verbena(&["counters"]).output().expect("runs").stdout);
    let rejects = host::Reject::ALL.iter().map(|row| (row.name(), row.doc()));
    let stages = host::StageCounter::ALL.iter().map(|row| (row.name(), row.doc()));
    for (name, doc) in rejects.chain(stages) {
        let lines = plain.lines().filter(|line| line.split_whitespace().nth(1) == Some(name));
        let told: Vec<bool> = lines.map(|line| !doc.is_empty() && line.ends_with(doc)).collect();
        assert_eq!(told, [true, true], "{name} of both cards, {doc:?}:\n{plain}");
    }
    room.world.cards()[0].layout_hash = 1;
    let refused = room.verbena(&["devinfo", "--device", "sim:card0"]).output().expect("runs");
    assert_eq!(refused.status.code(), Some(4), "another contract");
    assert_eq!(text(&refused.stderr).lines().count(), 1);
    // the last connection of card 1
    assert!(room.verbena(&["counters", "--device", "sim:card1"]).output().expect("runs").status.success());
    room.end();
}

#[test]
fn a_killed_peer_is_noticed_and_the_cards_are_used_again() {
    let room = Room::new(2);
    let (mut child, address) = room.listen(&["ping", "--iters", "1000000000"]);
    let ends = ["--device", "sim:card1", "--connect", &address, "--timeout", "30"];
    let mut command = room.verbena(&["ping", "--iters", "1000000000"]);
    let other = command.args(ends).stderr(Stdio::piped()).spawn().expect("starts");
    // some messages have passed
    let passed = || room.world.cards()[0].objects()[0] == 1 && room.world.cards()[1].doorbells > 100;
    let end = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !passed() && std::time::Instant::now() < end {
        std::thread::yield_now();
    }
    child.kill().expect("killed");
    child.wait().expect("gone");
    let output = other.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("RetryExcErr") || said.contains("the peer ended"), "{said}");
    // both cards start a second life
    let (child, address) = room.listen(&["ping", "--iters", "3"]);
    assert!(room.connect(&["ping", "--iters", "3"], &address).status.success());
    assert!(child.wait_with_output().expect("ends").status.success());
    for server in room.servers {
        server.join().expect("no panic");
    }
}

#[test]
fn failures_have_their_exit_codes() {
    let empty = tempfile::tempdir().expect("a directory");
    let code = |arguments: &[&str]| verbena(empty.path(), arguments).output().expect("runs").status.code();
    assert_eq!(code(&["devinfo"]), Some(3), "no card");
    assert_eq!(code(&["devinfo", "--device", "sim:card9"]), Some(3), "no such card");
    let output = verbena(empty.path(), &["devinfo", "--device", "sim:card9"]).output().expect("runs");
    assert_eq!(text(&output.stderr).matches("No such file").count(), 1, "{}", text(&output.stderr));
    assert_eq!(code(&["devinfo", "--device", "card9"]), Some(2), "no device address");
    assert_eq!(code(&["ping"]), Some(2), "neither side");
    let missing = ["move", "--connect", "127.0.0.1:1", "--file", "/does/not/exist"];
    assert_eq!(code(&missing), Some(1), "no file");
    let output = verbena(empty.path(), &missing).output().expect("runs");
    assert_eq!(
        text(&output.stderr),
        "verbena: read /does/not/exist: No such file or directory (os error 2)\n"
    );
    assert_eq!(code(&["--version"]), Some(0));
}
