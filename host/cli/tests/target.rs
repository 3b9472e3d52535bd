//! `verbena target` in a process of its own, against a stand-in for a target on the loopback: what goes out, what comes of
//! replies that are late, lost, another's or a refusal.

use contract::target::{ControlCounters, ControlHead, ControlOperation, ControlQueue, ControlStatus, MAGIC};
use std::net::UdpSocket;
use std::process::{Command, Output};
use std::thread::JoinHandle;

/// Answers as many requests as `answers` has entries, each by what that makes of the request: replies, in order.
type Answer = fn(ControlHead, ControlQueue) -> Vec<Vec<u8>>;

fn stand_in(answers: Vec<Answer>) -> (u16, JoinHandle<Vec<ControlQueue>>) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let port = socket.local_addr().unwrap().port();
    let thread = std::thread::spawn(move || {
        let mut seen = vec![];
        for answer in answers {
            let mut request = [0; 100];
            let (bytes, from) = socket.recv_from(&mut request).unwrap();
            assert_eq!(bytes, 64);
            let head = ControlHead::unpack(request[..12].try_into().unwrap());
            assert_eq!((head.magic, head.version, head.status), (MAGIC, 1, 0));
            let queue = ControlQueue::unpack(request[12..64].try_into().unwrap());
            seen.push(queue);
            for reply in answer(head, queue) {
                socket.send_to(&reply, from).unwrap();
            }
        }
        seen
    });
    (port, thread)
}

fn reply(head: ControlHead, status: ControlStatus, queue: &ControlQueue) -> Vec<u8> {
    [&ControlHead { status: status.code(), ..head }.pack()[..], &queue.pack()].concat()
}

fn verbena(port: u16, args: &[&str]) -> Output {
    let port = port.to_string();
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
    command.args(["target", "127.0.0.1", "--port", &port]).args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_queue_pair_is_made_in_the_first_free_place_and_a_lost_reply_does_no_harm() {
    let (port, target) = stand_in(vec![
        |head, queue| vec![reply(head, ControlStatus::Ok, &ControlQueue { free: 0b1000, ..queue })],
        // lost
        |_, _| vec![],
        // made already; after a reply to somebody else
        |head, queue| {
            let other = ControlHead { sequence: head.sequence + 1, ..head };
            let said = ControlQueue { address: 0x0a00_0041, memory_key: 0x14d, ..queue };
            vec![reply(other, ControlStatus::BadQp, &queue), reply(head, ControlStatus::InUse, &said)]
        },
    ]);
    let wish = [
        "create",
        "--peer-qpn",
        "0x11",
        "--psn",
        "77",
        "--gid",
        "::ffff:10.0.0.1",
        "--mtu",
        "2048",
        "--json",
    ];
    let done = verbena(port, &wish);
    assert!(done.status.success(), "{}", text(&done.stderr));
    let said: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(
        (&said["qpn"], &said["gid"], &said["memory"]["rkey"]),
        (&3.into(), &"::ffff:10.0.0.65".into(), &0x14d.into())
    );
    let seen = target.join().unwrap();
    let want = ControlQueue {
        qpn: 3,
        peer_qpn: 0x11,
        peer_psn: 77,
        path_mtu: 4,
        peer_gid: 0xffff_0a00_0001,
        ..ControlQueue::default()
    };
    assert_eq!(seen[1..], [want, want]);
}

#[test]
fn a_refusal_another_version_and_silence_are_told() {
    let (port, target) = stand_in(vec![|head, queue| vec![reply(head, ControlStatus::NotYours, &queue)]]);
    let done = verbena(port, &["destroy", "--qpn", "2", "--peer-qpn", "9"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("refuses: `Destroy`: it does not exist"), "{}", text(&done.stderr));
    target.join().unwrap();

    let (port, target) = stand_in(vec![|head, queue| {
        vec![reply(ControlHead { version: 2, ..head }, ControlStatus::BadVersion, &queue)]
    }]);
    let done = verbena(port, &["query"]);
    assert!(text(&done.stderr).contains("speaks version 2, this command 1"), "{}", text(&done.stderr));
    target.join().unwrap();

    let (port, target) = stand_in(vec![|_, _| vec![]; 5]);
    let done = verbena(port, &["query"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains("no reply"), "{}", text(&done.stderr));
    assert_eq!(target.join().unwrap().len(), 5);
}

#[test]
fn counters_are_shown_with_what_they_mean() {
    let (port, target) = stand_in(vec![|head, _| {
        assert_eq!(head.operation, ControlOperation::Counters.code());
        let counters = ControlCounters { acks_sent: 12, ..ControlCounters::default() };
        vec![[&head.pack()[..], &counters.pack()].concat()]
    }]);
    let done = verbena(port, &["counters"]);
    assert!(
        text(&done.stdout).contains("        12  acks_sent         ACKs sent.\n"),
        "{}",
        text(&done.stdout)
    );
    target.join().unwrap();
}
