//! The target of the ECP5-5G Versa at the pins of the board, against the reference endpoint and datagrams of this file: how a queue
//! pair is made, used and ended without a host.
//!
//! ```text
//! peer::Endpoint, ARP, ping, control ── frames ── nibbles at both edges ── ecp5_versa (Verilator), cells of cosim/ecp5.v
//! ```
//! Time is that of the line: a byte per 8 ns. The oscillator's pin has 125 MHz, since the model of the PLL knows only ratios.
//!
//! Requirements: TGT

mod frames;

use contract::target::{
    BURST, CONTROL_PORT, ControlCounters, ControlHead, ControlOperation, ControlQueue, ControlStatus, MAGIC,
    TargetPins, VERSION,
};
use contract::{PathMtu, Reject, WcStatus};
use frames::{Choices, crc32, lint, with_fcs};
use hdl::{Style, elaborate};
use nic::Config;
use nic::boards::ecp5_versa::Ecp5Versa;
use nic::standalone::{IPV4_ADDRESS, MAC_ADDRESS, Target};
use peer::{Address, Completion, Endpoint, Landing, QpParams, SendOp, SendWr};
use std::collections::VecDeque;
use std::net::Ipv4Addr;
use verilated::{Input, Instance, Model, Output, Source};

const PEER_MAC: u64 = 0x0200_0000_000a;
const PEER_IP: [u8; 4] = [10, 0, 0, 1];
/// Switches: the lower six end the addresses.
const SWITCHES: u64 = 0b1000_0101;
const MAC: u64 = MAC_ADDRESS | 5;
const IP: u32 = IPV4_ADDRESS as u32 | 5;
/// What the peer may say of a packet that is as it shall be.
const GOOD_BUT_LATE: [Reject; 4] =
    [Reject::Duplicate, Reject::ResponseUnexpected, Reject::UnknownQp, Reject::WrongQpState];
/// Picoseconds of a byte.
const BYTE: u64 = 8000;

/// Core clocks of the reset, log2.
const LOG_RESET: u32 = 8;

/// Pins of the board.
#[derive(Clone, Copy)]
struct Pins {
    oscillator: Input,
    button: Input,
    switches: Input,
    rxc: Input,
    rxd: Input,
    rx_ctl: Input,
    mdio: Input,
    txc: Output,
    txd: Output,
    tx_ctl: Output,
    led: Output,
    phy_reset_n: Output,
}

struct Rig {
    board: Instance,
    pins: Pins,
    clocks: u64,
    endpoint: Endpoint,
    /// Bytes on their way to the target; `None`: a gap.
    line: VecDeque<Option<u8>>,
    /// Bytes of the frame that comes from it.
    part: Vec<u8>,
    /// Frames of it that are not RoCE, without FCS.
    others: VecDeque<Vec<u8>>,
    /// One frame in so many is lost, either way; 0: none.
    lose_one_in: u64,
    lost: u32,
    pick: Choices,
    sequence: u32,
}

fn mac(address: u64) -> [u8; 6] {
    address.to_be_bytes()[2..].try_into().unwrap()
}

/// RFC 1071.
fn sum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|c| u32::from(c[0]) << 8 | c.get(1).copied().map_or(0, u32::from));
    let total: u32 = words.sum();
    let folded = (total & 0xffff) + (total >> 16);
    ((folded & 0xffff) + (folded >> 16)) as u16
}

/// Ethernet and IPv4 in front of `body`.
fn ipv4(protocol: u8, body: &[u8]) -> Vec<u8> {
    let mut ip = vec![0x45, 0];
    ip.extend((20 + body.len() as u16).to_be_bytes());
    ip.extend([0x12, 0x34, 0x40, 0, 64, protocol, 0, 0]);
    ip.extend(PEER_IP);
    ip.extend(IP.to_be_bytes());
    let checksum = !sum(&ip);
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
    [&mac(MAC)[..], &mac(PEER_MAC), &[8, 0], &ip, body].concat()
}

fn ping(sequence: u16, data: &[u8]) -> Vec<u8> {
    let mut icmp = vec![8, 0, 0, 0, 0x11, 0x22];
    icmp.extend(sequence.to_be_bytes());
    icmp.extend(data);
    let checksum = !sum(&icmp);
    icmp[2..4].copy_from_slice(&checksum.to_be_bytes());
    ipv4(1, &icmp)
}

fn arp(operation: u16, target: u32) -> Vec<u8> {
    let mut frame = [&[0xff; 6][..], &mac(PEER_MAC), &[8, 6, 0, 1, 8, 0, 6, 4]].concat();
    frame.extend(operation.to_be_bytes());
    frame.extend([&mac(PEER_MAC)[..], &PEER_IP, &[0; 6], &target.to_be_bytes()].concat());
    frame
}

fn udp(port: u16, payload: &[u8]) -> Vec<u8> {
    let mut udp = [0xc1u8, 0x22].to_vec();
    udp.extend(port.to_be_bytes());
    udp.extend((8 + payload.len() as u16).to_be_bytes());
    udp.extend([0, 0]);
    udp.extend(payload);
    let pseudo =
        [&PEER_IP[..], &IP.to_be_bytes(), &[0, 17], &(udp.len() as u16).to_be_bytes(), &udp].concat();
    let checksum = !sum(&pseudo);
    udp[6..8].copy_from_slice(&checksum.to_be_bytes());
    ipv4(17, &udp)
}

fn head(operation: u8, sequence: u32) -> ControlHead {
    ControlHead { magic: MAGIC, version: VERSION, operation, status: 0, sequence }
}

fn datagram(operation: ControlOperation, sequence: u32, queue: &ControlQueue) -> Vec<u8> {
    [&head(operation.code(), sequence).pack()[..], &queue.pack()].concat()
}

impl Rig {
    fn new(seed: u64) -> Rig {
        let design = elaborate(&Ecp5Versa { log_reset: LOG_RESET }).unwrap();
        let verilog = design.verilog(Style::default()) + nic::boards::ecp5::MODELS;
        let model = Model::build(&Source::new(design.top(), &verilog)).unwrap();
        let input = |name: &str, width| model.input(name, width).unwrap();
        let output = |name: &str, width| model.output(name, width).unwrap();
        let pins = Pins {
            oscillator: input("clk100", 1),
            button: input("rst_n", 1),
            switches: input("switches", 8),
            rxc: input("eth_rxc", 1),
            rxd: input("eth_rxd", 4),
            rx_ctl: input("eth_rx_ctl", 1),
            mdio: input("eth_mdio_in", 1),
            txc: output("eth_txc", 1),
            txd: output("eth_txd", 4),
            tx_ctl: output("eth_tx_ctl", 1),
            led: output("led", 8),
            phy_reset_n: output("eth_rst_n", 1),
        };
        let mut board = model.instance().unwrap();
        board.set(pins.mdio, 1);
        board.set(pins.button, 1);
        board.set(pins.switches, SWITCHES);
        board.eval().unwrap();
        let mut rig = Rig {
            board,
            pins,
            clocks: 0,
            endpoint: Endpoint::new(PEER_MAC, PEER_IP.into()),
            line: VecDeque::new(),
            part: vec![],
            others: VecDeque::new(),
            lose_one_in: 0,
            lost: 0,
            pick: Choices::new(seed),
            sequence: 0,
        };
        // the PHY is in reset for the first half of the board's
        rig.run(200);
        assert_eq!(rig.board.get(pins.phy_reset_n), 0);
        rig.run((2 << LOG_RESET) - 100);
        assert_eq!(rig.board.get(pins.phy_reset_n), 1);
        rig
    }
    fn now(&self) -> u64 {
        self.clocks * BYTE
    }
    fn loses(&mut self) -> bool {
        let loses = self.lose_one_in > 0 && self.pick.one_in(self.lose_one_in);
        self.lost += u32::from(loses);
        loses
    }
    /// A frame without FCS onto the line.
    fn send(&mut self, frame: &[u8]) {
        if !self.loses() {
            self.send_whole(&with_fcs(frame));
        }
    }
    fn send_whole(&mut self, frame: &[u8]) {
        let preamble = [0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0xd5];
        self.line.extend(preamble.iter().chain(frame).map(|b| Some(*b)));
        self.line.extend([None; 12]);
    }
    fn comes(&mut self) {
        let frame = std::mem::take(&mut self.part);
        assert_eq!(frame[..8], [0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0x55, 0xd5], "preamble");
        let frame = &frame[8..];
        assert!(frame.len() >= 64, "{} bytes", frame.len());
        assert_eq!(crc32(u32::MAX, frame), 0xdebb_20e3, "FCS");
        let frame = &frame[..frame.len() - 4];
        assert_eq!((&frame[..6], &frame[6..12]), (&mac(PEER_MAC)[..], &mac(MAC)[..]));
        if self.loses() {
            return;
        }
        // UDP to 4791
        if frame[12..14] == [8, 0] && frame[23] == 17 && frame[36..38] == [0x12, 0xb7] {
            // what comes twice, or for a queue pair that is gone, is no fault of the packet
            let told = self.endpoint.receive(self.now(), frame);
            assert!(told.is_none_or(|r| GOOD_BUT_LATE.contains(&r)), "the peer says {told:?}");
        } else {
            self.others.push_back(frame.to_vec());
        }
    }
    fn step(&mut self) {
        self.clocks += 1;
        let now = self.now();
        if self.line.len() < 2 {
            self.endpoint.handle_timeout(now);
            if let Some(frame) = self.endpoint.poll_transmit(now) {
                self.send(&frame);
            }
        }
        let symbol = self.line.pop_front().flatten();
        let byte = u64::from(symbol.unwrap_or(0));
        let (board, pins) = (&mut self.board, self.pins);
        board.set(pins.rx_ctl, u64::from(symbol.is_some()));
        let mut sent = 0;
        // rising edges, then falling ones; data stands around each
        for half in 0..2 {
            board.set(pins.rxd, byte >> (4 * half) & 15);
            for clock in [pins.rxc, pins.oscillator] {
                board.set(clock, 1 - half);
                board.eval().expect("no assertion of the RTL fails");
            }
            // as soon as the reset has reached the pins
            assert!(self.clocks < 50 || board.get(pins.txc) == 1 - half, "TXC goes with the byte");
            sent |= board.get(pins.txd) << (4 * half);
        }
        if board.get(pins.tx_ctl) == 1 {
            self.part.push(sent as u8);
        } else if !self.part.is_empty() {
            self.comes();
        }
    }
    fn run(&mut self, clocks: u64) {
        for _ in 0..clocks {
            self.step();
        }
    }
    /// The next frame of the target that is not RoCE.
    fn other(&mut self) -> Vec<u8> {
        let begin = self.clocks;
        while self.others.is_empty() {
            self.step();
            assert!(self.clocks < begin + 20_000, "no answer");
        }
        self.others.pop_front().unwrap()
    }
    /// Asserts that `frame` is not answered.
    fn silent(&mut self, what: &str, frame: &[u8]) {
        self.send(frame);
        self.run(frame.len() as u64 + 3000);
        assert_eq!(self.others.len(), 0, "{what} is answered");
    }
    /// One exchange with the control port: the payload of the reply.
    fn control(&mut self, payload: &[u8]) -> Vec<u8> {
        self.send(&udp(CONTROL_PORT, payload));
        let frame = self.other();
        assert_eq!(sum(&frame[14..34]), 0xffff, "the sum of the IP header");
        assert_eq!(frame[26..34], [&IP.to_be_bytes()[..], &PEER_IP].concat(), "addresses");
        assert_eq!(frame[34..42], [0x12, 0xb9, 0xc1, 0x22, 0, 72, 0, 0], "UDP header");
        assert_eq!(frame.len(), 42 + 64);
        frame[42..].to_vec()
    }
    fn ask(&mut self, operation: ControlOperation, queue: &ControlQueue) -> (ControlStatus, ControlQueue) {
        self.sequence += 1;
        let reply = self.control(&datagram(operation, self.sequence, queue));
        let got = ControlHead::unpack(reply[..12].try_into().unwrap());
        let want = ControlHead { status: got.status, ..head(operation.code(), self.sequence) };
        assert_eq!(got, want);
        let status = ControlStatus::from_code(got.status).expect("a status");
        (status, ControlQueue::unpack(reply[12..].try_into().unwrap()))
    }
    fn counters(&mut self) -> ControlCounters {
        self.sequence += 1;
        let reply =
            self.control(&datagram(ControlOperation::Counters, self.sequence, &ControlQueue::default()));
        ControlCounters::unpack(reply[12..].try_into().unwrap())
    }
    fn wish(&self, qpn: u32, peer_qpn: u32, path_mtu: PathMtu) -> ControlQueue {
        ControlQueue {
            qpn,
            peer_qpn,
            peer_psn: 0xff_fff0,
            path_mtu: path_mtu.code(),
            peer_gid: 0xffff_0000_0000 | u128::from(u32::from_be_bytes(PEER_IP)),
            ..ControlQueue::default()
        }
    }
    /// A queue pair of the peer and one of the target: (ours, what the target says of its own).
    fn connect(&mut self, qpn: u32, path_mtu: PathMtu) -> (u32, ControlQueue) {
        let mine = self.endpoint.create_qp(1);
        let (status, made) = self.ask(ControlOperation::Create, &self.wish(qpn, mine, path_mtu));
        assert_eq!(status, ControlStatus::Ok);
        let remote = Address { mac: MAC, ip: Ipv4Addr::from(made.address).into(), qpn };
        let params = QpParams {
            path_mtu,
            sq_psn: 0xff_fff0,
            max_rd_atomic: made.max_reads,
            timeout: 8,
            ..QpParams::to(remote)
        };
        self.endpoint.connect(mine, params).unwrap();
        (mine, made)
    }
    /// One request, to its completion.
    fn perform(&mut self, qp: u32, op: SendOp, data: Vec<u8>) -> Completion {
        self.endpoint.post_send(qp, SendWr::new(1, op, data)).unwrap();
        loop {
            let done = self.completion();
            // those of other queue pairs are not waited for
            if done.qpn == qp {
                return done;
            }
        }
    }
    fn completion(&mut self) -> Completion {
        let begin = self.clocks;
        loop {
            if let Some(done) = self.endpoint.poll_cq() {
                return done;
            }
            self.step();
            assert!(self.clocks < begin + 2_000_000, "no completion");
        }
    }
    /// LEDs, 1 lit.
    fn leds(&self) -> u64 {
        !self.board.get(self.pins.led) & 0xff
    }
    fn write(&mut self, qp: u32, rkey: u32, va: u64, data: &[u8]) {
        let done = self.perform(qp, SendOp::Write { va, rkey, imm: None }, data.to_vec());
        assert_eq!(done.status, WcStatus::Success);
    }
    fn read(&mut self, qp: u32, rkey: u32, va: u64, bytes: usize) -> Vec<u8> {
        let done = self.perform(qp, SendOp::Read { va, rkey, landing: Landing::Owned(bytes) }, vec![]);
        assert_eq!(done.status, WcStatus::Success);
        done.data
    }
}

#[test]
fn a_peer_is_given_a_queue_pair_by_datagram_and_writes_reads_and_adds_with_it() {
    let mut rig = Rig::new(1);
    // who is there, and what is free
    let (status, before) = rig.ask(ControlOperation::Query, &ControlQueue { qpn: 2, ..Default::default() });
    assert_eq!(
        (status, before.free, before.peer_qpn, before.address),
        (ControlStatus::Ok, 0b1111_1100, 0, IP)
    );
    let (qp, made) = rig.connect(2, PathMtu::Mtu1024);
    assert_eq!((made.free, made.peer_qpn, made.path_mtu), (0b1111_1000, qp, 3));
    assert_eq!((made.max_reads, made.memory_bytes), (4, 32768));

    // three packets at an odd address, and all around stays zero
    let data = rig.pick.bytes(3000);
    rig.write(qp, made.memory_key, 1021, &data);
    let back = rig.read(qp, made.memory_key, 1000, 3100);
    assert_eq!(back, [&[0; 21][..], &data, &[0; 79]].concat());

    // atomics
    rig.write(qp, made.memory_key, 64, &7u64.to_le_bytes());
    let landing = || Landing::Owned(8);
    let add = SendOp::FetchAdd { va: 64, rkey: made.memory_key, add: u64::MAX, landing: landing() };
    assert_eq!(rig.perform(qp, add, vec![]).data, 7u64.to_le_bytes());
    for (compare, found) in [(5, 6), (6, 6), (6, 0x1234)] {
        let swap =
            SendOp::CompareSwap { va: 64, rkey: made.memory_key, compare, swap: 0x1234, landing: landing() };
        assert_eq!(rig.perform(qp, swap, vec![]).data, u64::to_le_bytes(found), "swapped if {compare}");
    }
    assert_eq!(rig.read(qp, made.memory_key, 64, 8), 0x1234u64.to_le_bytes());

    // outside of the memory, and by no key
    let over = SendOp::Write { va: 32760, rkey: made.memory_key, imm: None };
    assert_eq!(rig.perform(qp, over, vec![1; 9]).status, WcStatus::RemAccessErr);
    let told = rig.counters();
    assert_eq!((told.atomics, told.naks_sent, told.bad_frames), (4, 1, 0));
    assert_eq!(told.writes, 4, "three packets and one");

    // ended; the next is made anew
    let end = ControlQueue { qpn: 2, peer_qpn: qp, ..Default::default() };
    let (status, gone) = rig.ask(ControlOperation::Destroy, &end);
    assert_eq!((status, gone.free, gone.peer_qpn), (ControlStatus::Ok, 0b1111_1100, 0));
    let (qp, made) = rig.connect(2, PathMtu::Mtu256);
    rig.write(qp, made.memory_key, 5, &data[..700]);
    assert_eq!(rig.read(qp, made.memory_key, 5, 700), data[..700]);
}

#[test]
fn any_alignment_of_both_ends_and_any_length_brings_every_byte_and_no_other() {
    let mut rig = Rig::new(2);
    let (qp, made) = rig.connect(3, PathMtu::Mtu512);
    let mut memory = vec![0; 4096];
    for n in 0..150 {
        // READs and WRITEs of all small lengths, and some of several packets
        let length = if n < 120 { n % 40 } else { 500 + rig.pick.below(900) as usize };
        let at = rig.pick.below((4096 - length) as u64) as usize;
        let data = rig.pick.bytes(length);
        rig.write(qp, made.memory_key, at as u64, &data);
        memory[at..at + length].copy_from_slice(&data);
        let (from, bytes) = (rig.pick.below(2000) as usize, rig.pick.below(90) as usize);
        assert_eq!(
            rig.read(qp, made.memory_key, from as u64, bytes),
            memory[from..from + bytes],
            "after {n}"
        );
    }
    assert_eq!(rig.read(qp, made.memory_key, 0, 4096), memory);
}

#[test]
fn requests_of_several_peers_at_once_end_well_with_one_frame_in_a_hundred_lost_each_way() {
    let mut rig = Rig::new(3);
    rig.lose_one_in = 0;
    let pairs = [2, 5, 7].map(|qpn| (qpn, rig.connect(qpn, PathMtu::Mtu256)));
    rig.lose_one_in = 100;
    let mut want = vec![0u8; 3 * 4096];
    let mut posted = 0;
    for round in 0..12u64 {
        for (i, (_, (qp, made))) in pairs.iter().enumerate() {
            let data = rig.pick.bytes(600 + 100 * i);
            let va = (i * 4096) as u64 + round * 17;
            want[va as usize..va as usize + data.len()].copy_from_slice(&data);
            let key = made.memory_key;
            rig.endpoint
                .post_send(*qp, SendWr::new(round, SendOp::Write { va, rkey: key, imm: None }, data))
                .unwrap();
            let add = SendOp::FetchAdd { va: 20_000, rkey: key, add: 1, landing: Landing::Owned(8) };
            rig.endpoint.post_send(*qp, SendWr::new(100 + round, add, vec![])).unwrap();
            posted += 2;
        }
    }
    let mut seen = vec![];
    for _ in 0..posted {
        let done = rig.completion();
        assert_eq!(done.status, WcStatus::Success);
        if done.data.len() == 8 {
            seen.push(u64::from_le_bytes(done.data.try_into().unwrap()));
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..36).collect::<Vec<_>>(), "every number once");
    assert!(rig.lost > 0, "something was lost");
    rig.lose_one_in = 0;
    let (qp, made) = pairs[0].1;
    assert_eq!(rig.read(qp, made.memory_key, 0, want.len()), want);
}

#[test]
fn a_send_meets_receiver_not_ready_and_the_queue_pair_lives_on() {
    let mut rig = Rig::new(4);
    let mine = rig.endpoint.create_qp(1);
    let (status, made) = rig.ask(ControlOperation::Create, &rig.wish(4, mine, PathMtu::Mtu1024));
    assert_eq!(status, ControlStatus::Ok);
    let remote = Address { mac: MAC, ip: Ipv4Addr::from(made.address).into(), qpn: 4 };
    let params =
        QpParams { sq_psn: 0xff_fff0, max_rd_atomic: 4, rnr_retry: 0, timeout: 8, ..QpParams::to(remote) };
    rig.endpoint.connect(mine, params).unwrap();
    rig.write(mine, made.memory_key, 0, b"before");
    let sent = rig.perform(mine, SendOp::Send { imm: None }, b"hello".to_vec());
    assert_eq!(sent.status, WcStatus::RnrRetryExcErr);
    assert_eq!(rig.counters().naks_sent, 1);
}

#[test]
fn the_leds_are_written_and_the_switches_read_as_memory() {
    let mut rig = Rig::new(5);
    let (qp, made) = rig.connect(6, PathMtu::Mtu1024);
    rig.write(qp, made.pins_key, 0, &[0xa5, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(rig.leds(), 0xa5);
    rig.write(qp, made.pins_key, 1, &[0]);
    assert_eq!(rig.leds(), 0xa5, "a byte that is no LED");
    let pins = TargetPins::unpack(rig.read(qp, made.pins_key, 0, 8)[..].try_into().unwrap());
    assert_eq!(pins, TargetPins { leds: 0xa5, switches: SWITCHES as u8, speed: 2, link: false });
    // the switches as they are now; the addresses stay
    rig.board.set(rig.pins.switches, 0x3c);
    rig.run(20);
    assert_eq!(rig.read(qp, made.pins_key, 1, 1), [0x3c]);
    let over = SendOp::Write { va: 4, rkey: made.pins_key, imm: None };
    assert_eq!(rig.perform(qp, over, vec![1; 5]).status, WcStatus::RemAccessErr);
}

#[test]
fn arp_and_ping_are_answered_and_what_is_not_for_us_or_not_whole_is_not() {
    let mut rig = Rig::new(6);
    rig.send(&arp(1, IP));
    let answer = rig.other();
    let want = [
        &mac(PEER_MAC)[..],
        &mac(MAC),
        &[8, 6, 0, 1, 8, 0, 6, 4, 0, 2],
        &mac(MAC),
        &IP.to_be_bytes(),
        &mac(PEER_MAC),
        &PEER_IP,
    ]
    .concat();
    assert_eq!((&answer[..42], answer.len()), (&want[..], 60));
    for length in [0, 1, 17, 18, 56, 57, 1473, 1476] {
        let data = rig.pick.bytes(length);
        let asked = ping(length as u16, &data);
        rig.send(&asked);
        let answer = rig.other();
        assert_eq!((sum(&answer[14..34]), answer[34..36].to_vec()), (0xffff, vec![0, 0]), "{length} bytes");
        let icmp = &answer[34..asked.len()];
        assert_eq!(sum(icmp), 0xffff, "the sum of {length} bytes");
        assert_eq!((&icmp[4..8], &icmp[8..]), (&asked[38..42], &data[..]), "{length} bytes");
        assert_eq!(answer[26..34], [&IP.to_be_bytes()[..], &PEER_IP].concat());
    }

    let good = ping(9, &[1; 40]);
    let changed = |at: usize, to: u8| {
        let mut frame = good.clone();
        frame[at] = to;
        frame
    };
    // a byte, and the IP sum made good again
    let fixed = |at: usize, to: u8| {
        let mut frame = changed(at, to);
        frame[24..26].fill(0);
        let checksum = !sum(&frame[14..34]);
        frame[24..26].copy_from_slice(&checksum.to_be_bytes());
        frame
    };
    for (what, frame) in [
        ("ARP for another", arp(1, IP + 1)),
        ("an ARP reply", arp(2, IP)),
        ("a ping with a wrong sum", changed(60, 2)),
        ("a wrong IP sum", changed(24, !good[24])),
        ("another IP address", fixed(33, good[33] ^ 1)),
        ("a fragment", fixed(20, 0x20)),
        ("options", fixed(14, 0x46)),
        ("another protocol", fixed(23, 6)),
        ("a datagram longer than its frame", fixed(16, 1)),
        ("an echo reply", changed(34, 0)),
        ("1519 bytes", ping(1, &[0; 1477])),
        ("broadcast", [&[0xff; 6][..], &good[6..]].concat()),
        ("another UDP port", udp(CONTROL_PORT + 1, &[0; 64])),
    ] {
        rig.silent(what, &frame);
    }
    rig.send(&good);
    rig.other();
    let mut hurt = with_fcs(&good);
    hurt[50] ^= 1;
    rig.send_whole(&hurt);
    rig.run(4000);
    let told = rig.counters();
    assert_eq!((told.bad_frames, told.answered), (1, 1 + 8 + 1), "and this one now");
}

#[test]
fn control_requests_that_cannot_be_served_say_why_and_change_nothing() {
    let mut rig = Rig::new(7);
    let (qp, made) = rig.connect(2, PathMtu::Mtu1024);
    let good = rig.wish(3, 99, PathMtu::Mtu1024);
    use ControlOperation::{Create, Destroy, Query};
    use ControlStatus as S;
    let mine = ControlQueue { qpn: 2, peer_qpn: qp, ..Default::default() };
    for (operation, queue, status) in [
        (Create, ControlQueue { qpn: 0, ..good }, S::BadQp),
        (Create, ControlQueue { qpn: 1, ..good }, S::BadQp),
        (Create, ControlQueue { qpn: 8, ..good }, S::BadQp),
        (Create, ControlQueue { qpn: 0x10_0003, ..good }, S::BadQp),
        (Create, ControlQueue { qpn: 2, ..good }, S::InUse),
        (Create, ControlQueue { path_mtu: 0, ..good }, S::BadMtu),
        (Create, ControlQueue { path_mtu: 6, ..good }, S::BadMtu),
        (Create, ControlQueue { path_mtu: 0x43, ..good }, S::BadMtu),
        (Create, ControlQueue { peer_gid: good.peer_gid ^ 1, ..good }, S::BadAddress),
        (Create, ControlQueue { peer_gid: good.peer_gid | 1 << 127, ..good }, S::BadAddress),
        (Destroy, ControlQueue { peer_qpn: qp + 1, ..mine }, S::NotYours),
        (Destroy, ControlQueue { qpn: 5, ..mine }, S::NotYours),
        (Destroy, ControlQueue { qpn: 10, ..mine }, S::BadQp),
    ] {
        let (got, said) = rig.ask(operation, &queue);
        assert_eq!((got, said.free), (status, made.free), "{operation:?} {queue:?}");
        let owner = if queue.qpn == 2 { (qp, good.peer_gid) } else { (0, 0) };
        assert_eq!((said.peer_qpn, said.peer_gid), owner, "{operation:?} {queue:?}");
    }
    let (_, said) = rig.ask(Query, &ControlQueue { qpn: 2, ..Default::default() });
    assert_eq!(said.peer_qpn, qp);
    rig.write(qp, made.memory_key, 0, b"alive");
    // another version, another operation; with a burst of its own
    let mut rig = Rig::new(7);
    for (version, operation, status) in
        [(2, 0, S::BadVersion), (1, 4, S::BadOperation), (0, 9, S::BadVersion)]
    {
        let asked = ControlHead { version, operation, ..head(0, 5) };
        let reply = rig.control(&[&asked.pack()[..], &[0; 52]].concat());
        let want = ControlHead { operation, status: status.code(), ..head(0, 5) };
        assert_eq!(ControlHead::unpack(reply[..12].try_into().unwrap()), want);
    }
}

#[test]
fn hostile_datagrams_are_let_go_and_a_storm_of_good_ones_costs_no_packet() {
    let mut rig = Rig::new(8);
    let (qp, made) = rig.connect(2, PathMtu::Mtu1024);
    let good = datagram(ControlOperation::Query, 1, &ControlQueue::default());
    for length in [0, 1, 12, 63, 65, 128] {
        let mut payload = good.clone();
        payload.resize(length, 0);
        rig.silent(&format!("{length} bytes"), &udp(CONTROL_PORT, &payload));
    }
    for at in [0, 3] {
        let mut payload = good.clone();
        payload[at] ^= 1;
        rig.silent("another magic", &udp(CONTROL_PORT, &payload));
    }
    for at in [45, 80, 105] {
        let mut frame = udp(CONTROL_PORT, &good);
        frame[at] ^= 4;
        rig.silent("a wrong UDP sum", &frame);
    }
    let mut lying = udp(CONTROL_PORT, &good);
    lying[39] -= 8;
    rig.silent("a length that is not the datagram's", &lying);
    // any bytes behind the headers
    for _ in 0..200 {
        let length = 20 + rig.pick.below(120) as usize;
        let mut frame = rig.pick.bytes(length + 14);
        frame[..6].copy_from_slice(&mac(MAC));
        frame[12..14].copy_from_slice(&[8, if rig.pick.one_in(3) { 6 } else { 0 }]);
        rig.send(&frame);
    }
    while !rig.line.is_empty() {
        rig.step();
    }
    rig.run(3000);
    assert_eq!(rig.others.len(), 0, "none of them is answered");

    // many good ones: some are answered, the others counted, and RDMA goes on meanwhile
    let before = rig.counters();
    for _ in 0..60 {
        rig.send(&udp(CONTROL_PORT, &good));
    }
    let data = rig.pick.bytes(5000);
    rig.write(qp, made.memory_key, 3, &data);
    assert_eq!(rig.read(qp, made.memory_key, 3, 5000), data);
    rig.run(10_000);
    let answered = rig.others.len();
    assert!((1..=BURST as usize + 2).contains(&answered), "{answered} of 60");
    rig.others.clear();
    rig.run(u64::from(contract::target::PERIOD_CLOCKS) * 2);
    let after = rig.counters();
    let dropped = (after.dropped - before.dropped + after.no_room - before.no_room) as usize;
    assert!(dropped + answered <= 60 && dropped > 0, "{dropped} and {answered} of 60");
}

#[test]
fn a_queue_pair_that_ends_under_traffic_leaves_the_memory_alone_from_its_reply_on() {
    let mut rig = Rig::new(9);
    // four requests each, a burst in all
    for round in 0..4 {
        let (qp, made) = rig.connect(2, PathMtu::Mtu256);
        for n in 0..8u8 {
            let write = SendOp::Write { va: 0, rkey: made.memory_key, imm: None };
            rig.endpoint.post_send(qp, SendWr::new(1, write, vec![n; 2000])).unwrap();
        }
        let wait = 200 + rig.pick.below(8000);
        rig.run(wait);
        let end = ControlQueue { qpn: 2, peer_qpn: qp, ..Default::default() };
        let (status, _) = rig.ask(ControlOperation::Destroy, &end);
        assert_eq!(status, ControlStatus::Ok, "round {round}");
        // another peer sees the memory stand still while the first still sends
        let (other, made) = rig.connect(3, PathMtu::Mtu1024);
        let seen = rig.read(other, made.memory_key, 0, 2000);
        rig.run(20_000);
        assert_eq!(rig.read(other, made.memory_key, 0, 2000), seen, "round {round}");
        let end = ControlQueue { qpn: 3, peer_qpn: other, ..Default::default() };
        assert_eq!(rig.ask(ControlOperation::Destroy, &end).0, ControlStatus::Ok);
        for qp in [qp, other] {
            rig.endpoint.destroy_qp(qp).unwrap();
        }
        while rig.endpoint.poll_cq().is_some() {}
    }
}

#[test]
fn the_emitted_verilog_is_clean() {
    lint(&elaborate(&Target(Config::target())).unwrap());
}
