//! The driver over a real vfio-user socket, against the server of the crate `vfio_user`.

mod software_card;

use host::*;
use software_card::{World, served::serve};
use std::path::Path;
use std::time::Duration;

const RW: Access = Access::LOCAL_WRITE.union(Access::REMOTE_WRITE);
const SOON: Duration = Duration::from_secs(20);

fn address(directory: &Path, card: usize) -> DeviceAddress {
    let name = format!("card{card}");
    DeviceAddress::Sim { path: directory.join(format!("{name}.sock")), name }
}

#[test]
fn memory_moves_and_interrupts_arrive_through_the_socket() {
    let directory = tempfile::tempdir().expect("a directory");
    let world = World::new(2);
    let servers = [0, 1].map(|i| serve(&world, i, &directory.path().join(format!("card{i}.sock")), 2));
    {
        let open =
            |card| Context::start(Device::open(&address(directory.path(), card))?, &Options::default());
        let (a, b) = (open(0).expect("opens"), open(1).expect("opens"));
        let (pd_a, pd_b) = (a.alloc_pd().unwrap(), b.alloc_pd().unwrap());
        let channel = b.create_comp_channel().unwrap();
        let (cq_a, cq_b) = (a.create_cq(8, None).unwrap(), b.create_cq(8, Some(&channel)).unwrap());
        let (qp_a, qp_b) = (
            pd_a.create_qp(&QpInit::rc(&cq_a, &cq_a)).unwrap(),
            pd_b.create_qp(&QpInit::rc(&cq_b, &cq_b)).unwrap(),
        );
        let end = |qp: &Qp, context: &Context| exchange::Endpoint {
            qpn: qp.number(),
            psn: 9,
            gid: context.gids()[0],
        };
        qp_a.connect(&end(&qp_b, &b), 9, PathMtu::Mtu1024, Access::empty()).unwrap();
        qp_b.connect(&end(&qp_a, &a), 9, PathMtu::Mtu1024, Access::REMOTE_WRITE).unwrap();
        // heap memory is reached through /proc/self/mem, the driver's own through its memfd
        let source =
            pd_a.register((0..10_000u32).map(|i| i as u8).collect::<Vec<_>>(), Access::empty()).unwrap();
        let target = pd_b.register(vec![0u8; 10_000], RW).unwrap();
        let inbox = pd_b.allocate(64, RW).unwrap();
        cq_b.request_notify(false).unwrap();
        qp_b.post_recv(&[RecvWr::new(7, &[inbox.sge(0..64).unwrap()])]).unwrap();
        let whole = [source.sge(0..10_000).unwrap()];
        let head = [source.sge(1..33).unwrap()];
        qp_a.post_send(&[
            SendWr::write(1, &whole, target.addr(), target.rkey()),
            SendWr::send(2, &head).signaled(),
        ])
        .unwrap();
        assert_eq!(channel.wait(Some(SOON)).unwrap(), Some(CqEvent { cqn: cq_b.number() }));
        let received = cq_b.poll_wait(SOON).unwrap().expect("in time");
        assert_eq!((received.wr_id, received.status, received.byte_len), (7, WcStatus::Success, 32));
        let sent = cq_a.poll_wait(SOON).unwrap().expect("in time");
        assert_eq!((sent.wr_id, sent.status), (2, WcStatus::Success));
        assert_eq!(target.to_vec(0..10_000).unwrap(), source.to_vec(0..10_000).unwrap());
        assert_eq!(inbox.to_vec(0..32).unwrap(), source.to_vec(1..33).unwrap());
        // a refused map is an error, not a later fault
        world.cards()[0].refuse_map = true;
        let error = pd_a.allocate(16, RW).expect_err("refused").to_string();
        assert!(error.contains("for DMA: refused by the simulator"), "{error}");
        assert!(pd_a.allocate(16, RW).is_ok(), "the connection lives on");
    }
    world.assert_no_faults();
    // a second life of the same cards
    for card in [0, 1] {
        let device = Device::open(&address(directory.path(), card)).expect("opens again");
        assert_eq!(device.name(), format!("sim:card{card}"));
    }
    for server in servers {
        server.join().expect("no panic");
    }
}

#[test]
fn a_socket_that_nobody_serves_is_no_card() {
    let directory = tempfile::tempdir().expect("a directory");
    let error = Device::open(&address(directory.path(), 0)).expect_err("nobody there");
    assert_eq!(error.kind(), Kind::NoCard);
    assert!(error.to_string().contains("start `verbena sim`"), "{error}");
}

#[test]
fn a_server_that_refuses_is_quoted_and_one_that_hangs_up_is_named() {
    use std::io::{Read, Write};
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("card0.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).expect("the socket is free");
    let server = std::thread::spawn(move || {
        for words in [Some("card0 is held by process 4711"), None] {
            let (mut stream, _) = listener.accept().expect("a client");
            let mut header = [0; 16];
            stream.read_exact(&mut header).expect("a message");
            let Some(words) = words else { continue };
            // the same id, command 1, the length, flags reply and error, EBUSY, and the reason as text
            let mut reply = header[..4].to_vec();
            reply.extend_from_slice(&(16 + words.len() as u32).to_ne_bytes());
            reply.extend_from_slice(&(1u32 | 1 << 5).to_ne_bytes());
            reply.extend_from_slice(&16u32.to_ne_bytes());
            reply.extend_from_slice(words.as_bytes());
            stream.write_all(&reply).expect("a listener");
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    let error = Device::open(&address(directory.path(), 0)).expect_err("refused").to_string();
    assert!(error.contains("card0 is held by process 4711"), "{error}");
    let error = Device::open(&address(directory.path(), 0)).expect_err("closed").to_string();
    assert!(error.contains("closed the connection"), "{error}");
    server.join().expect("no panic");
}
