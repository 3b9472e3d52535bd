//! Cards served to real drivers over vfio-user: two clients, a third that is refused, one that dies, and nobody.

use host::{
    Access, Context, Cq, Device, DeviceAddress, Gid, Ip, IpNet, Mr, Options, Pd, Qp, QpInit, SendWr,
    StaticNeighbours, WcStatus, backend::Backend,
};
use sim::{
    room::{Room, RoomConfig},
    server::Server,
    story::{model, usual},
};
use std::{
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

const WAIT: Duration = Duration::from_secs(60);
/// Set in the process that a test starts to have it killed: the directory of the sockets.
const VICTIM: &str = "VERBENA_TEST_VICTIM";
/// Also set there: the QP of card 0 that it is to be connected with.
const OTHER: &str = "VERBENA_TEST_OTHER";

fn serve(folder: &Path) -> Server {
    let mut room = Room::new(&model(), RoomConfig::example(2, 1)).unwrap();
    room.power_on().unwrap();
    Server::start(room, folder).unwrap()
}

fn address(folder: &Path, card: usize) -> DeviceAddress {
    DeviceAddress::Sim { name: format!("card{card}"), path: folder.join(format!("card{card}.sock")) }
}

struct End {
    qp: Qp,
    cq: Cq,
    memory: Mr,
    context: Context,
    pd: Pd,
}

fn open(folder: &Path, card: usize) -> host::Result<End> {
    let context = Context::start(Device::open(&address(folder, card))?, &Options::default())?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(64, None)?;
    // The program's own memory, not the driver's: reached by system calls.
    let memory = pd.register(vec![0u8; 100_000], Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let qp = pd.create_qp(&QpInit::rc(&cq, &cq))?;
    Ok(End { qp, cq, memory, context, pd })
}

fn join(me: &End, other: &End) {
    let mut attr = usual(other.context.gids()[0], other.qp.number(), 100, 100);
    attr.timeout = 12;
    me.qp.connect_with(&attr).unwrap();
}

fn moves(a: &End, b: &End, length: usize) {
    let bytes: Vec<u8> = (0..length).map(|i| (i * 7 + i / 256) as u8).collect();
    a.memory.write(3, &bytes).unwrap();
    b.memory.write(0, &vec![0; length + 16]).unwrap();
    let sge = [a.memory.sge(3..3 + length).unwrap()];
    let wr = SendWr::write(1, &sge, b.memory.addr() + 5, b.memory.rkey()).signaled();
    a.qp.post_send(&[wr]).unwrap();
    let done = a.cq.poll_wait(WAIT).unwrap().expect("a completion");
    assert_eq!(done.status, WcStatus::Success, "{done:?}");
    assert!(b.memory.to_vec(5..5 + length).unwrap() == bytes);
}

/// Held by each test: the CPU time measured is the process's, so its tests run one after another.
static ALONE: std::sync::Mutex<()> = std::sync::Mutex::new(());

fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// CPU time of this process.
fn cpu() -> Duration {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: a valid place for the result; all zeros is a valid rusage.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr());
        usage.assume_init()
    };
    let time = |t: libc::timeval| Duration::new(t.tv_sec as u64, t.tv_usec as u32 * 1000);
    time(usage.ru_utime) + time(usage.ru_stime)
}

#[test]
fn two_drivers_move_memory_then_idle_costs_nothing_and_a_third_is_refused() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let (a, b) = (open(folder.path(), 0).unwrap(), open(folder.path(), 1).unwrap());
    join(&a, &b);
    join(&b, &a);
    for length in [1, 64, 4096, 50_000] {
        moves(&a, &b, length);
        moves(&b, &a, length);
    }
    let refused = {
        let folder = folder.path().to_path_buf();
        // From another process, or the wait would be for our own pid.
        let mut child = victim(&folder, 2);
        child.wait_with_output_text()
    };
    assert!(refused.contains(&format!("held by process {}", std::process::id())), "{refused}");

    // Idle: nothing posted, two drivers, two cards.
    std::thread::sleep(Duration::from_millis(500));
    let (before, start) = (cpu(), Instant::now());
    std::thread::sleep(Duration::from_secs(3));
    let share = (cpu() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    println!("idle: {:.3} % of a core", share * 100.0);
    assert!(share < 0.01, "{share}");

    drop((a, b));
    let summary = server.stop().unwrap();
    assert_eq!(summary.violations, Vec::<String>::new());
    assert!(!folder.path().join("card0.sock").exists());
}

#[test]
fn stacks_that_serve_sleep_until_somebody_asks_and_tell_when_their_card_is_gone() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let targets = ["10.0.0.1", "10.0.0.2"].map(|text| text.parse::<std::net::IpAddr>().unwrap());
    let ips = [0, 1].map(|card| {
        let gid = Some(Gid::from(targets[card]));
        let options = Options { neighbours: Arc::new(StaticNeighbours(vec![])), gid, ..Options::default() };
        let context = Context::start(Device::open(&address(folder.path(), card)).unwrap(), &options).unwrap();
        Ip::start(&context, &[IpNet::from(targets[card])]).unwrap()
    });
    let mut serving = ips.each_ref().map(|ip| ip.serve().unwrap());
    // this thread never polls: each question and each answer rouses a thread, which looks by itself every 5 s only
    for round in 0..20 {
        let (from, to) = (usize::from(round % 2), usize::from(1 - round % 2));
        ips[from].ping(targets[to], 56, round).unwrap();
        let end = Instant::now() + Duration::from_secs(4);
        while !ips[from].pinged(targets[to], 56, round) {
            assert!(Instant::now() < end, "ping {round} was not answered");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    // what smoltcp does by itself is over
    std::thread::sleep(Duration::from_millis(500));
    let (before, start) = (cpu(), Instant::now());
    serving[0].wait(Some(Duration::from_secs(6))).unwrap();
    let share = (cpu() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    println!("idle: {:.4} % of a core", share * 100.0);
    assert!(share < 0.01, "{share}");
    server.stop().unwrap();
    for (card, serving) in serving.iter_mut().enumerate() {
        let error = serving.wait(Some(Duration::from_secs(20))).expect_err("the card is gone").to_string();
        assert!(error.contains(&format!("card{card}")), "{error}");
    }
}

/// Another process that runs [`a_process_that_is_started_by_other_tests`].
fn victim(folder: &Path, other: u32) -> Victim {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_process_that_is_started_by_other_tests", "--nocapture"])
        .env(VICTIM, folder)
        .env(OTHER, other.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    Victim(Some(child))
}

struct Victim(Option<Child>);

impl Victim {
    fn wait_with_output_text(&mut self) -> String {
        let output = self.0.take().unwrap().wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
    }

    /// Waits for a line with this beginning; gives the rest.
    fn line(&mut self, begin: &str) -> String {
        use std::io::BufRead;
        let stdout = self.0.as_mut().unwrap().stdout.as_mut().unwrap();
        let mut reader = std::io::BufReader::new(stdout);
        loop {
            let mut line = String::new();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the process ended before `{begin}`");
            if let Some(rest) = line.split(begin).nth(1) {
                return rest.trim().to_owned();
            }
        }
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[test]
fn a_process_that_is_started_by_other_tests() {
    let Some(folder) = std::env::var_os(VICTIM) else { return };
    let folder = Path::new(&folder);
    match open(folder, 1) {
        Err(error) => println!("error: {error}"),
        Ok(end) => {
            let (gid, qpn) = (end.context.gids()[0], end.qp.number());
            // The other end is card 0's first QP, which has the lowest number, if nothing else is said.
            let other = std::env::var(OTHER).map_or(2, |text| text.parse().unwrap());
            let mut attr = usual(host::Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)), other, 100, 100);
            attr.timeout = 12;
            end.qp.connect_with(&attr).unwrap();
            println!("\nready {qpn} {} {} {gid}", end.memory.addr(), end.memory.rkey());
            std::thread::sleep(Duration::from_secs(600));
        }
    }
}

#[test]
fn a_killed_process_leaves_a_retry_error_and_two_usable_cards() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let mut victim_process = victim(folder.path(), 2);
    let line = victim_process.line("ready ");
    let words: Vec<u64> = line.split(' ').take(3).map(|word| word.parse().unwrap()).collect();
    let a = open(folder.path(), 0).unwrap();
    let mut attr = usual(host::Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 2)), words[0] as u32, 100, 100);
    (attr.timeout, attr.retry_cnt) = (10, 2);
    a.qp.connect_with(&attr).unwrap();
    let write = |wr_id| {
        let sge = [a.memory.sge(0..50_000).unwrap()];
        a.qp.post_send(&[SendWr::write(wr_id, &sge, words[1], words[2] as u32).signaled()]).unwrap();
    };
    write(1);
    assert_eq!(a.cq.poll_wait(WAIT).unwrap().expect("a completion").status, WcStatus::Success);
    write(2);
    victim_process.0.as_mut().unwrap().kill().unwrap();
    victim_process.0.as_mut().unwrap().wait().unwrap();
    // The write may still have got through before the end was seen; the next cannot.
    let mut last = a.cq.poll_wait(WAIT).unwrap().expect("a completion");
    if last.status == WcStatus::Success {
        std::thread::sleep(Duration::from_millis(200));
        write(3);
        last = a.cq.poll_wait(WAIT).unwrap().expect("a completion");
    }
    assert_eq!(last.status, WcStatus::RetryExcErr, "{last:?}");
    drop(a);
    // Both cards serve again.
    let (a, b) = (open(folder.path(), 0).unwrap(), open(folder.path(), 1).unwrap());
    join(&a, &b);
    join(&b, &a);
    moves(&a, &b, 10_000);
    drop((a, b));
    server.stop().unwrap();
}

#[test]
fn a_process_is_killed_in_mid_message_again_and_again() {
    let _alone = alone();
    let times = std::env::var("VERBENA_RESTARTS").map_or(5, |text| text.parse().unwrap());
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    let mut a = open(folder.path(), 0).unwrap();
    for n in 0..times {
        let mut process = victim(folder.path(), a.qp.number());
        let line = process.line("ready ");
        let words: Vec<u64> = line.split(' ').take(3).map(|word| word.parse().unwrap()).collect();
        let mut attr =
            usual(host::Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 2)), words[0] as u32, 100, 100);
        (attr.timeout, attr.retry_cnt) = (8, 1);
        a.qp.connect_with(&attr).unwrap();
        let sge = [a.memory.sge(0..100_000).unwrap()];
        for id in 0..4 {
            let wr = SendWr::write(id, &sge, words[1], words[2] as u32).signaled();
            a.qp.post_send(&[wr]).unwrap();
        }
        std::thread::sleep(Duration::from_micros(n % 7 * 3000));
        process.0.as_mut().unwrap().kill().unwrap();
        drop(process);
        // its peer starts anew with another QP, whatever has become of the work
        let qp = a.pd.create_qp(&QpInit::rc(&a.cq, &a.cq)).unwrap();
        a.qp = qp;
    }
    drop(a);
    let (a, b) = (open(folder.path(), 0).unwrap(), open(folder.path(), 1).unwrap());
    join(&a, &b);
    join(&b, &a);
    moves(&a, &b, 10_000);
    drop((a, b));
    let summary = server.stop().unwrap();
    // the memory of a dead process answers nothing: that is a fault of the IOMMU, and no other rule is broken
    let others = summary.violations.iter().filter(|text| !text.contains("Fault"));
    assert_eq!(others.collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn a_card_that_is_wanted_back_under_writes_is_let_go_of_in_time_and_serves_the_next() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    for _ in 0..3 {
        assert!(!server.want_back(0).unwrap(), "nobody holds it");
        let (a, b) = (open(folder.path(), 0).unwrap(), open(folder.path(), 1).unwrap());
        join(&a, &b);
        join(&b, &a);
        moves(&a, &b, 1000);
        let (target, rkey) = (b.memory.addr(), b.memory.rkey());
        let sge = [a.memory.sge(0..100_000).unwrap()];
        for id in 0..60 {
            a.qp.post_send(&[SendWr::write(id, &sge, target, rkey).signaled()]).unwrap();
        }
        assert_eq!(a.cq.poll_wait(WAIT).unwrap().expect("the first").wr_id, 0);
        let start = Instant::now();
        assert!(server.want_back(0).unwrap(), "the driver listens");
        // every request ends once and in order: done, or flushed
        let mut flushed = false;
        for id in 1..60 {
            let done = a.cq.poll_wait(WAIT).unwrap().expect("an end");
            assert_eq!(done.wr_id, id);
            assert!(done.status == WcStatus::WrFlushErr || (!flushed && done.status == WcStatus::Success));
            flushed = done.status == WcStatus::WrFlushErr;
        }
        assert!(flushed, "it was wanted back while WRITEs were under way");
        let error = a.cq.poll_wait(WAIT).expect_err("the card is gone");
        assert!(matches!(error, host::Error::Gone { how: host::Departure::Asked, .. }), "{error}");
        let notice = a.context.async_event(Some(WAIT)).unwrap().expect("a notice");
        assert_eq!(notice.event, host::AsyncEvent::DeviceFatal);
        println!("{:.1} ms from the request to the last end", start.elapsed().as_secs_f64() * 1e3);
        assert!(start.elapsed() < Duration::from_secs(20));
        // somebody else has the card although this one still holds its objects, and nothing of theirs reaches it
        let next = open(folder.path(), 0).unwrap();
        drop(a);
        let other = b.pd.create_qp(&QpInit::rc(&b.cq, &b.cq)).unwrap();
        let b = End { qp: other, ..b };
        join(&next, &b);
        join(&b, &next);
        moves(&next, &b, 5000);
    }
    let summary = server.stop().unwrap();
    assert_eq!(summary.violations, Vec::<String>::new());
}

#[test]
fn nonsense_on_the_socket_is_refused_and_the_card_stays_usable() {
    let _alone = alone();
    use std::io::{Read, Write};
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path());
    for message in [
        &[1u8, 0, 99, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..],
        &[1, 0, 9, 0, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        &[
            1, 0, 9, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0,
            0, 4, 0, 0, 0,
        ],
    ] {
        let mut stream = std::os::unix::net::UnixStream::connect(folder.path().join("card0.sock")).unwrap();
        stream.write_all(message).unwrap();
        let mut header = [0; 16];
        stream.read_exact(&mut header).unwrap();
        assert_eq!(header[8] & 0x21, 0x21, "an error reply: {header:?}");
        assert_ne!(header[12], 0, "with a number");
    }
    // An impossible length ends the connection.
    let mut stream = std::os::unix::net::UnixStream::connect(folder.path().join("card0.sock")).unwrap();
    stream.write_all(&[1, 0, 9, 0, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0]).unwrap();
    assert_eq!(stream.read(&mut [0; 16]).unwrap_or(0), 0);
    let backend: Arc<dyn Backend> = Arc::new(
        host::backend::vfio_user::VfioUser::connect("card0", &folder.path().join("card0.sock")).unwrap(),
    );
    Device::new(backend).unwrap();
    server.stop().unwrap();
}
