//! The server of cards over real sockets: the driver's backend and a foreign client at the other end, a stand-in for
//! the RTL at this one.

mod common;

use common::{model, registers as reg};
use host::{Backend, Bar, Memory, backend::vfio_user::VfioUser};
use rustix::event::{EventfdFlags, eventfd};
use sim::{
    room::{Room, RoomConfig},
    server::Server,
};
use std::{
    os::{
        fd::{AsFd, OwnedFd},
        unix::net::UnixStream,
    },
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const IOVA: u64 = 0x10_0000;
const SOON: Duration = Duration::from_secs(20);

fn serve(cards: usize) -> (Server, tempfile::TempDir) {
    let folder = tempfile::tempdir().expect("a folder");
    let mut room = Room::new(&model(false), RoomConfig::example(cards, 1)).expect("a room");
    room.power_on().expect("quiet after its reset");
    let server = Server::start(room, folder.path()).expect("serves");
    (server, folder)
}

fn connect(server: &Server, card: usize) -> VfioUser {
    VfioUser::connect(&format!("card{card}"), &server.sockets()[card]).expect("connects")
}

/// Memory space and bus mastering on.
fn enable(card: &VfioUser) {
    card.config_write(4, &6u16.to_le_bytes()).expect("written");
}

/// A page that the card may reach at [`IOVA`].
struct Page(Box<[u64; 512]>);

impl Page {
    fn map(card: &VfioUser, file: Option<(&OwnedFd, u64)>) -> Page {
        let layout = std::alloc::Layout::from_size_align(4096, 4096).expect("a page");
        // SAFETY: the layout is not empty; zeroed bytes are a valid array.
        let mut page = Page(unsafe { Box::from_raw(std::alloc::alloc_zeroed(layout).cast()) });
        let file = file.map(|(fd, offset)| (fd.as_fd(), offset));
        let memory = Memory { address: page.0.as_mut_ptr().cast(), length: 4096, file };
        // SAFETY: the page outlives the mapping in every test, and is read as volatile only.
        unsafe { card.map(IOVA, &memory) }.expect("mapped");
        page
    }

    fn word(&self) -> u32 {
        // SAFETY: in bounds and aligned; volatile, because the server writes it.
        unsafe { self.0.as_ptr().cast::<u32>().read_volatile() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // Its alignment is not the box's: leaked, a page per test.
        let page = std::mem::replace(&mut self.0, Box::new([0; 512]));
        std::mem::forget(page);
    }
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !holds() {
        assert!(Instant::now() < end, "{what}: not within {} s", SOON.as_secs());
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Writes `value` to the page by the card's own hand.
fn write_by_card(card: &VfioUser, value: u32) {
    card.write32(Bar::Registers, reg::DMA_LOW, IOVA as u32).expect("posted");
    card.write32(Bar::Registers, reg::DMA_HIGH, (IOVA >> 32) as u32).expect("posted");
    card.write32(Bar::Registers, reg::WRITE, value).expect("posted");
}

#[test]
fn registers_are_read_and_written_and_the_card_reaches_mapped_memory_alone() {
    let (server, _folder) = serve(2);
    let card = connect(&server, 0);
    let mut id = [0; 4];
    card.config_read(0, &mut id).expect("read");
    assert_eq!(u32::from_le_bytes(id), 0x0001_1ee7);
    enable(&card);
    let page = Page::map(&card, None);
    write_by_card(&card, 0xfeed_0001);
    assert_eq!(card.read32(Bar::Registers, reg::DMA_LOW).expect("read"), IOVA as u32);
    assert_eq!(card.read64(Bar::Registers, reg::DMA_LOW).expect("read"), IOVA);
    until("the card's write", || page.word() == 0xfeed_0001);
    card.unmap(IOVA, 4096).expect("unmapped");
    write_by_card(&card, 0xfeed_0002);
    assert_eq!(card.read32(Bar::Registers, reg::DMA_LOW).expect("read"), IOVA as u32);
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(page.word(), 0xfeed_0001, "after the unmap");
    // outside of a region
    assert!(card.read32(Bar::Registers, 0x1_0000).is_err());
    let summary = server.stop().expect("no model stopped");
    let faults = summary.violations.iter().filter(|what| what.contains("WriteFault")).count();
    assert_eq!((faults, summary.violations.len()), (1, 1), "{:?}", summary.violations);
}

#[test]
fn a_file_that_cannot_shrink_is_reached_by_mapping_it() {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
    let (server, _folder) = serve(1);
    let card = connect(&server, 0);
    enable(&card);
    let file = memfd_create("page", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).expect("a file");
    ftruncate(&file, 8192).expect("two pages");
    fcntl_add_seals(&file, SealFlags::SHRINK).expect("sealed");
    let _page = Page::map(&card, Some((&file, 4096)));
    write_by_card(&card, 0xfeed_0003);
    let mut bytes = [0; 4];
    until("the card's write", || {
        rustix::io::pread(&file, &mut bytes, 4096).expect("read");
        u32::from_le_bytes(bytes) == 0xfeed_0003
    });
    assert!(server.stop().expect("no model stopped").violations.is_empty());
}

#[test]
fn bar_registers_and_the_msix_switch_are_the_hosts() {
    let (server, _folder) = serve(1);
    let card = connect(&server, 0);
    enable(&card);
    card.config_write(0x10, &[0xff; 8]).expect("written");
    let mut bytes = [0; 8];
    card.config_read(0x10, &mut bytes).expect("read");
    assert_eq!(!(u64::from_le_bytes(bytes) & !15) + 1, 64 << 10, "the size of BAR0");
    // the card is where it was
    card.write32(Bar::Registers, reg::DMA_LOW, 0x1234_0000).expect("posted");
    assert_eq!(card.read32(Bar::Registers, reg::DMA_LOW).expect("read"), 0x1234_0000);
    let mut control = [0; 2];
    let msix = |control: &mut [u8; 2]| {
        card.config_read(0xa2, control).expect("read");
        control[1] >> 7
    };
    card.config_write(0xa2, &[0, 0x80]).expect("written");
    assert_eq!(msix(&mut control), 0);
    let fd = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    card.set_irqs(&[fd.as_fd()]).expect("connected");
    assert_eq!(msix(&mut control), 1);
    card.set_irqs(&[]).expect("disconnected");
    assert_eq!(msix(&mut control), 0);
}

#[test]
fn interrupts_ring_the_eventfd_of_their_vector_also_after_a_reset() {
    let (server, _folder) = serve(1);
    let card = connect(&server, 0);
    let fds: Vec<OwnedFd> = (0..3).map(|_| eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd")).collect();
    card.set_irqs(&fds.iter().map(AsFd::as_fd).collect::<Vec<_>>()).expect("connected");
    for life in 0..2 {
        enable(&card);
        // a message is a write to the interrupt window whose data is the vector
        card.write32(Bar::Registers, reg::DMA_LOW, 0xfee0_0000).expect("posted");
        card.write32(Bar::Registers, reg::WRITE, 1).expect("posted");
        let wait = |fd: &OwnedFd, time| host::backend::readable(fd.as_fd(), Some(time)).expect("waits");
        assert!(wait(&fds[1], SOON), "life {life}");
        let mut count = [0; 8];
        rustix::io::read(&fds[1], &mut count).expect("read");
        assert_eq!(u64::from_ne_bytes(count), 1);
        assert!(!wait(&fds[0], Duration::ZERO) && !wait(&fds[2], Duration::ZERO));
        card.reset().expect("reset");
    }
    // vectors of nobody, and one of a full eventfd, harm nothing
    let full = eventfd(u32::MAX, EventfdFlags::empty()).expect("an eventfd");
    rustix::io::write(&full, &(u64::MAX - 1 - u64::from(u32::MAX)).to_ne_bytes()).expect("full");
    card.set_irqs(&[full.as_fd()]).expect("connected");
    enable(&card);
    for vector in [0, 9, u32::MAX] {
        card.write32(Bar::Registers, reg::DMA_LOW, 0xfee0_0000).expect("posted");
        card.write32(Bar::Registers, reg::WRITE, vector).expect("posted");
        assert_eq!(card.read32(Bar::Registers, reg::DMA_LOW).expect("read"), 0xfee0_0000);
    }
}

#[test]
fn a_reset_makes_the_card_forget_and_keeps_the_mappings() {
    let (server, _folder) = serve(1);
    let card = connect(&server, 0);
    enable(&card);
    let page = Page::map(&card, None);
    card.write32(Bar::Registers, reg::DMA_LOW, 7 << 12).expect("posted");
    card.reset().expect("reset");
    enable(&card);
    assert_eq!(card.read32(Bar::Registers, reg::DMA_LOW).expect("read"), 0);
    write_by_card(&card, 0xfeed_0004);
    until("the card's write", || page.word() == 0xfeed_0004);
}

#[test]
fn a_second_client_is_refused_by_the_holders_pid_and_let_in_when_it_left() {
    let (server, _folder) = serve(2);
    let first = connect(&server, 0);
    let error = VfioUser::connect("card0", &server.sockets()[0]).expect_err("held").to_string();
    assert!(error.contains(&format!("held by process {}", std::process::id())), "{error}");
    // the other card is free, the first client undisturbed
    assert_eq!(connect(&server, 1).read32(Bar::Registers, reg::DMA_LOW).expect("read"), 0);
    first.write32(Bar::Registers, reg::DMA_LOW, 0x5000).expect("posted");
    assert_eq!(first.read32(Bar::Registers, reg::DMA_LOW).expect("read"), 0x5000);
    drop(first);
    let second = connect(&server, 0);
    assert_eq!(second.read32(Bar::Registers, reg::DMA_LOW).expect("read"), 0, "reset between two clients");
}

#[test]
fn clients_that_speak_nonsense_are_hung_up_on_or_refused_and_nobody_else_notices() {
    use std::io::{Read, Write};
    let (server, _folder) = serve(2);
    let good = connect(&server, 1);
    let message = |command: u16, size: u32, body: &[u8]| {
        let mut bytes = vec![1, 0];
        bytes.extend(command.to_ne_bytes());
        bytes.extend(size.to_ne_bytes());
        bytes.extend([0; 8]);
        bytes.extend(body);
        bytes
    };
    let cases = [
        ("too short", message(1, 3, &[])),
        ("too long", message(1, u32::MAX, &[])),
        ("cut", message(9, 32, &[0; 4])),
        ("a read of 4 GiB", message(9, 32, &[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255])),
        ("a read past the end of 2^64", message(9, 32, &[255; 16])),
        ("an unknown command", message(77, 16, &[])),
        (
            "vectors beyond the last",
            message(8, 36, &[20, 0, 0, 0, 36, 0, 0, 0, 2, 0, 0, 0, 255, 255, 255, 255, 1, 0, 0, 0]),
        ),
        ("a mapping without end", message(2, 48, &[255; 32])),
    ];
    for (what, bytes) in cases {
        let mut stream = UnixStream::connect(&server.sockets()[0]).expect("connects");
        stream.set_read_timeout(Some(SOON)).expect("set");
        stream.write_all(&bytes).expect("sent");
        stream.shutdown(std::net::Shutdown::Write).expect("half closed");
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).unwrap_or_else(|error| panic!("{what}: {error}"));
        // nothing, or a refusal with an errno
        let refused = reply.len() == 16 && reply[8] == 0x21 && reply[12] != 0;
        assert!(reply.is_empty() || refused, "{what}: {reply:?}");
    }
    assert_eq!(good.read32(Bar::Registers, reg::DMA_LOW).expect("read"), 0);
    assert_eq!(connect(&server, 0).read32(Bar::Registers, reg::DMA_LOW).expect("read"), 0);
}

#[test]
fn the_version_is_the_clients_up_to_0_1() {
    use std::io::{Read, Write};
    let (server, _folder) = serve(1);
    for (asked, given) in [(0u8, 0u8), (1, 1), (7, 1)] {
        let mut stream = UnixStream::connect(&server.sockets()[0]).expect("connects");
        stream.set_read_timeout(Some(SOON)).expect("set");
        let hello = [9, 0, 1, 0, 20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, asked, 0];
        stream.write_all(&hello).expect("sent");
        let mut reply = [0; 20];
        stream.read_exact(&mut reply).expect("an answer");
        assert_eq!((reply[8], &reply[16..]), (1, &[0, 0, given, 0][..]), "asked for 0.{asked}");
    }
}

#[test]
fn a_flood_of_writes_is_taken_in_order_and_bounded() {
    let (server, _folder) = serve(2);
    let (flood, calm) = (connect(&server, 0), connect(&server, 1));
    for value in 1..=5000u32 {
        flood.write32(Bar::Registers, reg::DMA_LOW, value << 12).expect("posted");
    }
    assert_eq!(calm.read32(Bar::Registers, reg::DMA_LOW).expect("read"), 0);
    assert_eq!(flood.read32(Bar::Registers, reg::DMA_LOW).expect("read"), 5000 << 12);
}

#[test]
fn deadlines_of_a_quiet_card_come_at_their_wall_clock_time() {
    let (server, _folder) = serve(1);
    let card = connect(&server, 0);
    enable(&card);
    let page = Page::map(&card, None);
    card.write32(Bar::Registers, reg::DMA_LOW, IOVA as u32).expect("posted");
    card.write32(Bar::Registers, reg::DUE_WORD, 0xfeed_0005).expect("posted");
    let now = card.read32(Bar::Registers, reg::NOW).expect("read");
    // 300 ms of the core clock
    let start = Instant::now();
    card.write32(Bar::Registers, reg::DUE, now + 75_000_000).expect("posted");
    until("the deadline", || page.word() == 0xfeed_0005);
    let took = start.elapsed();
    assert!(took >= Duration::from_millis(299), "{took:?}");
    assert!(took < Duration::from_secs(5), "{took:?}");
}

/// This test's program again, as a client that holds card 0 until it is killed.
fn holder(server: &Server) -> Child {
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "hold_the_card_for_another_test", "--include-ignored", "--nocapture"])
        .env("HELD_CARD", &server.sockets()[0])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    use std::io::{BufRead, BufReader};
    let stderr = child.stderr.take().expect("piped");
    let mut said = Vec::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        if line.contains("held now") {
            return child;
        }
        said.push(line);
    }
    let _ = child.kill();
    panic!("the holder did not hold: {:?}, {said:#?}", child.wait());
}

#[test]
#[ignore = "a process that other tests start"]
fn hold_the_card_for_another_test() {
    let Some(path) = std::env::var_os("HELD_CARD") else { return };
    let card = VfioUser::connect("held", Path::new(&path)).expect("connects");
    enable(&card);
    let _page = Page::map(&card, None);
    let fd = eventfd(0, EventfdFlags::NONBLOCK).expect("an eventfd");
    card.set_irqs(&[fd.as_fd()]).expect("connected");
    // The card writes again and again, also after this process was killed.
    let now = card.read32(Bar::Registers, reg::NOW).expect("read");
    card.write32(Bar::Registers, reg::DUE, now + 25_000_000).expect("posted");
    write_by_card(&card, 1);
    card.read32(Bar::Registers, reg::DMA_LOW).expect("read");
    eprintln!("held now");
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn a_killed_client_leaves_a_card_as_new_to_the_next() {
    let (server, _folder) = serve(2);
    for _ in 0..3 {
        let mut child = holder(&server);
        let error = VfioUser::connect("card0", &server.sockets()[0]).expect_err("held").to_string();
        assert!(error.contains(&format!("held by process {}", child.id())), "{error}");
        child.kill().expect("killed");
        child.wait().expect("gone");
        let start = Instant::now();
        let card = connect(&server, 0);
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        assert_eq!(card.read32(Bar::Registers, reg::DMA_LOW).expect("read"), 0);
        enable(&card);
        let page = Page::map(&card, None);
        write_by_card(&card, 0xfeed_0006);
        until("the card's write", || page.word() == 0xfeed_0006);
    }
}

/// CPU time of this process.
fn cpu() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock writes the time into a place of its type.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[test]
fn two_idle_cards_with_clients_cost_less_than_a_hundredth_of_a_core() {
    // Alone in a process, so that only the idle server is measured.
    if std::env::var_os("MEASURE_IDLE").is_none() {
        let output = Command::new(std::env::current_exe().expect("this program"))
            .args([
                "--exact",
                "two_idle_cards_with_clients_cost_less_than_a_hundredth_of_a_core",
                "--nocapture",
            ])
            .env("MEASURE_IDLE", "1")
            .output()
            .expect("runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        return;
    }
    let (server, _folder) = serve(2);
    let cards = [connect(&server, 0), connect(&server, 1)];
    for card in &cards {
        enable(card);
        card.read32(Bar::Registers, reg::NOW).expect("read");
    }
    std::thread::sleep(Duration::from_millis(300));
    let (start, before) = (Instant::now(), cpu());
    std::thread::sleep(Duration::from_secs(2));
    let share = (cpu() - before).as_secs_f64() / start.elapsed().as_secs_f64();
    eprintln!("idle: {:.4} % of a core", share * 100.0);
    assert!(share < 0.01, "{:.2} % of a core", share * 100.0);
}

#[test]
fn sockets_of_a_dead_simulation_are_replaced_and_those_of_a_living_one_are_not() {
    let (server, folder) = serve(1);
    let room = || {
        let mut room = Room::new(&model(false), RoomConfig::example(1, 1)).expect("a room");
        room.power_on().expect("quiet");
        room
    };
    let error = Server::start(room(), folder.path()).err().expect("served").to_string();
    assert!(error.contains("another simulator serves there"), "{error}");
    server.stop().expect("no model stopped");
    assert!(!folder.path().join("card0.sock").exists());
    drop(std::os::unix::net::UnixListener::bind(folder.path().join("card0.sock")).expect("bound"));
    let server = Server::start(room(), folder.path()).expect("replaces");
    connect(&server, 0);
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(folder.path()).expect("there").permissions().mode();
    assert_eq!(mode & 0o777, 0o700);
}

#[test]
fn the_client_of_the_crate_vfio_user_agrees() {
    let (server, _folder) = serve(1);
    let mut client = vfio_user::Client::new(&server.sockets()[0]).expect("connects");
    assert_eq!(client.region(0).map(|region| region.size), Some(64 << 10));
    assert_eq!(client.region(2).map(|region| region.size), Some(256 << 10));
    assert_eq!(client.region(7).map(|region| region.size), Some(4096));
    let irq = client.get_irq_info(2).expect("MSI-X");
    assert_eq!(irq.count, 16);
    client.region_write(0, reg::DMA_LOW, &0x6000u32.to_le_bytes()).expect("written");
    let mut data = [0; 4];
    client.region_read(0, reg::DMA_LOW, &mut data).expect("read");
    assert_eq!(u32::from_le_bytes(data), 0x6000);
    client.reset().expect("reset");
    client.region_read(0, reg::DMA_LOW, &mut data).expect("read");
    assert_eq!(u32::from_le_bytes(data), 0);
}
