//! The wire's other end as a UDP port: a card behind its vfio-user socket, and the plain-Rust endpoint where QEMU would be,
//! with timers of the wall clock.

use contract::{Reject, WcStatus, verbs::access};
use host::{Access, Context, Device, DeviceAddress, Options, QpInit, SendWr};
use peer::{Endpoint, QpParams, Region, SendOp};
use sim::{
    room::{Room, RoomConfig},
    server::Server,
    story::{model, usual},
    wire::{Action, Faults, Rule, Side, dgram::Dgram},
};
use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

const WAIT: Duration = Duration::from_secs(60);
const CARD: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
const PEER_MAC: u64 = 0x0200_0000_000b;
const CARD_MAC: u64 = 0x0200_0000_000a;
const VA: u64 = 0x7000_0000;
const LENGTH: usize = 20_000;
const NOBODY: &str = "127.0.0.1:0";

/// An endpoint as another machine would have it: frames by UDP, time by the wall.
fn machine(socket: UdpSocket, card: SocketAddr, endpoint: Arc<Mutex<Endpoint>>, end: Arc<AtomicBool>) {
    let start = Instant::now();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    let mut bytes = [0; 10_000];
    while !end.load(Ordering::Relaxed) {
        let heard = socket.recv_from(&mut bytes);
        let now = start.elapsed().as_nanos() as u64 * 1000;
        let mut endpoint = endpoint.lock().unwrap();
        if let Ok((length, _)) = heard {
            endpoint.receive(now, &bytes[..length]);
        }
        if endpoint.next_timeout().is_some_and(|due| due <= now) {
            endpoint.handle_timeout(now);
        }
        while let Some(frame) = endpoint.poll_transmit(now) {
            socket.send_to(&frame, card).unwrap();
        }
    }
}

#[test]
fn memory_moves_both_ways_through_the_port_over_a_lossy_wire_and_frames_of_others_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = RoomConfig::example(1, 7);
    config.wire.faults = [Faults { loss: 0.03, duplicate: 0.03, reorder: 0.03, ..Faults::default() }; 2];
    let mut room = Room::new(&model(), config).unwrap();
    for side in Side::BOTH {
        room.change_wire(|wire, _| wire.script(side, Rule::nth(3, Action::Drop)));
    }
    room.power_on().unwrap();
    let mut server = Server::start(room, folder.path()).unwrap();
    let outside = UdpSocket::bind(NOBODY).unwrap();
    let port = Dgram::open(NOBODY.parse().unwrap(), outside.local_addr().unwrap()).unwrap();
    let address = port.address().unwrap();
    server.open_port(port);

    let path = folder.path().join("card0.sock");
    let device = Device::open(&DeviceAddress::Sim { name: "card0".into(), path }).unwrap();
    let context = Context::start(device, &Options::default()).unwrap();
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(64, None).unwrap());
    let memory = pd.allocate(LENGTH, Access::LOCAL_WRITE | Access::REMOTE_WRITE).unwrap();
    let qp = pd.create_qp(&QpInit::rc(&cq, &cq)).unwrap();

    let mut endpoint = Endpoint::new(PEER_MAC, PEER);
    let peer_qpn = endpoint.create_qp(1);
    let rights = access::LOCAL_WRITE | access::REMOTE_WRITE | access::REMOTE_READ;
    let key = endpoint.register(Region { pd: 1, va: VA, access: rights, bytes: vec![0; LENGTH] });
    let remote = peer::Address { mac: CARD_MAC, ip: CARD.into(), qpn: qp.number() };
    // as another machine that must wait for a simulated card: 67 ms
    endpoint.connect(peer_qpn, QpParams { access: rights, ..QpParams::to(remote) }).unwrap();
    qp.connect_with(&usual(PEER.into(), peer_qpn, 0, 0)).unwrap();

    let bytes: Vec<u8> = (0..LENGTH).map(|i| (i * 7 + i / 256) as u8).collect();
    let back: Vec<u8> = bytes.iter().map(|byte| !byte).collect();
    let wr = SendOp::Write { va: memory.addr(), rkey: memory.rkey(), imm: None };
    endpoint.post_send(peer_qpn, peer::SendWr::new(9, wr, back.clone())).unwrap();
    let own = outside.try_clone().unwrap();
    let (endpoint, end) = (Arc::new(Mutex::new(endpoint)), Arc::new(AtomicBool::new(false)));
    let machine = {
        let (endpoint, end) = (endpoint.clone(), end.clone());
        std::thread::spawn(move || machine(outside, address, endpoint, end))
    };
    let start = Instant::now();
    let theirs = loop {
        if let Some(done) = endpoint.lock().unwrap().poll_cq() {
            break done;
        }
        assert!(start.elapsed() < WAIT, "the peer's WRITE does not complete");
        std::thread::sleep(Duration::from_millis(5));
    };
    assert_eq!((theirs.wr_id, theirs.status), (9, WcStatus::Success));
    assert!(memory.to_vec(0..LENGTH).unwrap() == back);

    memory.write(0, &bytes).unwrap();
    let sge = [memory.sge(0..LENGTH).unwrap()];
    qp.post_send(&[SendWr::write(1, &sge, VA, key).signaled()]).unwrap();
    let ours = cq.poll_wait(WAIT).unwrap().expect("a completion");
    assert_eq!(ours.status, WcStatus::Success, "{ours:?}");
    assert!(endpoint.lock().unwrap().region(key).unwrap().bytes == bytes);

    // what the machine sends beside RDMA comes in and is dropped by name; a stranger's frame, and no frame, do not
    let mut arp = [0; 42];
    arp[..6].copy_from_slice(&CARD_MAC.to_be_bytes()[2..]);
    arp[12..14].copy_from_slice(&[0x08, 0x06]);
    let not_roce = || {
        let rejects = context.device().rejects().unwrap();
        rejects.iter().find(|(reject, _)| *reject == Reject::NotRoce).expect("a counter").1
    };
    let none = |room: &mut Room| room.change_wire(|wire, _| wire.set_faults(Side::B, Faults::default()));
    server.change(none);
    let stranger = UdpSocket::bind(NOBODY).unwrap();
    stranger.send_to(&arp, address).unwrap();
    own.send_to(&arp[..13], address).unwrap();
    assert_eq!(not_roce(), 0);
    own.send_to(&arp, address).unwrap();
    let start = Instant::now();
    while not_roce() == 0 && start.elapsed() < WAIT {}
    assert_eq!(not_roce(), 1);
    end.store(true, Ordering::Relaxed);
    machine.join().unwrap();

    let summary = server.stop().unwrap();
    assert_eq!(summary.violations, Vec::<String>::new());
    assert!(summary.wire.iter().all(|side| side.dropped > 0), "{:?}", summary.wire);
}

#[test]
fn a_storm_fills_what_others_leave_of_the_line_for_its_time_and_begins_with_their_first_frame() {
    let mut room = Room::new(&model(), RoomConfig::example(1, 7)).unwrap();
    room.remember_frames();
    room.power_on().unwrap();
    room.open_port();
    let noise = |kind: u8| [&[0xff; 12][..], &[8, 6], &[kind; 46]].concat();
    const SPAN: u64 = 10_000_000;
    room.storm(vec![noise(0), noise(1)], SPAN);
    room.run_for(SPAN).unwrap();
    assert!(room.sights().is_empty() && room.is_quiet(), "it waits for somebody");
    let (start, own) = (room.now(), vec![9; 1000]);
    room.arrive(&own).unwrap();
    room.run_for(SPAN / 2).unwrap();
    room.arrive(&own).unwrap();
    assert!(!room.is_quiet());
    room.run_for(SPAN).unwrap();
    assert!(room.is_quiet(), "it is over");
    let sights = room.sights();
    assert!(sights.windows(2).all(|pair| pair[1].frame.start - pair[0].frame.end <= 12 * 800 + 1), "a gap");
    let last = sights.last().expect("frames").frame.end;
    assert!((SPAN..SPAN + 2 * 67_200).contains(&(last - start)), "{}", last - start);
    let others = sights.iter().filter(|sight| sight.frame.bytes.len() > 64).count();
    assert_eq!((others, sights.len()), (2, 2 + (SPAN as usize + 51_200 - 2 * 819_200).div_ceil(67_200)));
    let kinds =
        sights.iter().filter(|sight| sight.frame.bytes.len() == 64).map(|sight| sight.frame.bytes[20]);
    assert!(kinds.enumerate().all(|(n, kind)| usize::from(kind) == n % 2), "one after another");
}
