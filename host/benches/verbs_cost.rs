//! What the driver's calls cost in instructions, counted by callgrind: a count, not a time, so it is the same on every
//! machine of one architecture and compiler.
//!
//! ```text
//! cargo bench > this program > valgrind --tool=callgrind > this program again, per case > "Collected : n"
//!               driver > Still (doorbells go to memory) > software card, which works between the counted parts
//! ```
//! In: nothing. Out: a line per case: instructions per call, or per completion, with its bar. Fails if one is over its
//! bar, or valgrind is missing. Only the body of [`counted`] is counted: the calls, and one step of a loop around them.
//!
//! `cargo bench -p host --bench verbs_cost`

#[path = "../tests/software_card/mod.rs"]
mod software_card;

use host::backend::{Backend, Bar, Memory};
use host::*;
use software_card::World;
use std::io;
use std::ops::RangeInclusive;
use std::os::fd::BorrowedFd;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Calls that are counted together.
const CALLS: usize = 64;
/// Name, what is counted, bar in instructions.
const CASES: [(&str, &str, f64); 5] = [
    ("post_instr", "post_send of one 64-byte WRITE, with its doorbell", 90.0),
    ("post_list_instr", "the same, of a list of 16, for each", f64::INFINITY),
    ("post_inline_instr", "post_send of one inline WRITE of 32 bytes, with its doorbell", f64::INFINITY),
    ("poll_instr", "poll of 16, for each completion", 45.0),
    ("poll_empty_instr", "poll of an empty CQ", 15.0),
];

/// A software card that hears its doorbells later: meanwhile they are 8-byte stores to memory, as to a mapped BAR.
struct Still {
    card: Arc<dyn Backend>,
    still: AtomicBool,
    doorbells: Box<[AtomicU64]>,
}

impl Still {
    fn set(&self, still: bool) {
        self.still.store(still, Ordering::Relaxed);
    }
}

impl Backend for Still {
    fn name(&self) -> &str {
        self.card.name()
    }
    fn read32(&self, bar: Bar, offset: u64) -> io::Result<u32> {
        self.card.read32(bar, offset)
    }
    fn read64(&self, bar: Bar, offset: u64) -> io::Result<u64> {
        self.card.read64(bar, offset)
    }
    fn write32(&self, bar: Bar, offset: u64, value: u32) -> io::Result<()> {
        self.card.write32(bar, offset, value)
    }
    fn write64(&self, bar: Bar, offset: u64, value: u64) -> io::Result<()> {
        if self.still.load(Ordering::Relaxed) {
            let place = self.doorbells.get(offset as usize / 8).filter(|_| offset.is_multiple_of(8));
            place.ok_or_else(|| io::Error::other("outside of the BAR"))?.store(value, Ordering::Relaxed);
            return Ok(());
        }
        self.card.write64(bar, offset, value)
    }
    fn config_read(&self, offset: u64, data: &mut [u8]) -> io::Result<()> {
        self.card.config_read(offset, data)
    }
    fn config_write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.card.config_write(offset, data)
    }
    unsafe fn map(&self, iova: u64, memory: &Memory<'_>) -> io::Result<()> {
        // SAFETY: the caller's promise is passed on
        unsafe { self.card.map(iova, memory) }
    }
    fn unmap(&self, iova: u64, length: u64) -> io::Result<()> {
        self.card.unmap(iova, length)
    }
    fn set_irqs(&self, vectors: &[BorrowedFd<'_>]) -> io::Result<()> {
        self.card.set_irqs(vectors)
    }
    fn reset(&self) -> io::Result<()> {
        self.card.reset()
    }
    fn iova_ranges(&self) -> Vec<RangeInclusive<u64>> {
        self.card.iova_ranges()
    }
}

/// The only function that callgrind counts.
#[inline(never)]
fn counted(call: &mut dyn FnMut()) {
    for _ in 0..CALLS {
        call();
    }
}

/// The program under callgrind.
fn run(case: &str) {
    let world = World::new(2);
    let still = Arc::new(Still {
        card: world.backend(0),
        still: AtomicBool::new(false),
        doorbells: (0..1 << 20).map(|_| AtomicU64::new(0)).collect(),
    });
    let device = Device::new(still.clone()).expect("the card answers");
    let near = Context::start(device, &Options::default()).expect("opens");
    let far = world.open(1);
    let depth = 32 * CALLS as u32;
    let ends = [&near, &far].map(|context| {
        let pd = context.alloc_pd().expect("a PD");
        let cq = context.create_cq(depth, None).expect("a CQ");
        let init = QpInit { max_send_wr: depth, max_inline: 32, push: false, ..QpInit::rc(&cq, &cq) };
        let qp = pd.create_qp(&init).expect("a QP");
        (pd, cq, qp)
    });
    for (i, context) in [&far, &near].into_iter().enumerate() {
        let peer = exchange::Endpoint { qpn: ends[1 - i].2.number(), psn: 7, gid: context.gids()[0] };
        ends[i].2.connect(&peer, 7, PathMtu::Mtu1024, Access::REMOTE_WRITE).expect("connects");
    }
    let memory = ends.each_ref().map(|(pd, ..)| {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        pd.register(vec![0u8; 4096], access).expect("a region")
    });
    let (_, cq, qp) = &ends[0];
    let sge = [memory[0].sge(0..64).expect("inside")];
    let (to, rkey) = (memory[1].addr(), memory[1].rkey());
    let one = [SendWr::write(1, &sge, to, rkey).signaled()];
    let list = [one[0]; 16];
    let inline = [SendWr::write(1, &[], to, rkey).inline(&[7; 32]).signaled()];
    let mut entries = [Completion::default(); 16];
    let post = |list: &[SendWr<'_>]| {
        still.set(true);
        counted(&mut || qp.post_send(list).expect("posts"));
        still.set(false);
    };
    match case {
        "post_instr" => post(&one),
        "post_list_instr" => post(&list),
        "post_inline_instr" => post(&inline),
        "poll_instr" => {
            (0..CALLS).for_each(|_| qp.post_send(&list).expect("posts"));
            counted(&mut || assert_eq!(cq.poll(&mut entries).expect("polls"), 16));
        }
        "poll_empty_instr" => counted(&mut || assert_eq!(cq.poll(&mut entries).expect("polls"), 0)),
        other => panic!("no case {other}"),
    }
}

/// Runs a case under callgrind: instructions per call.
fn instructions(case: &str) -> f64 {
    let own = std::env::current_exe().expect("this program has a name");
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null", "--toggle-collect=*counted*"]);
    let output = valgrind
        .arg(own)
        .args(["--case", case])
        .output()
        .expect("valgrind is installed (apt install valgrind)");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{case}: {said}");
    let line = said.lines().find_map(|line| line.split_once("Collected : ")).expect("callgrind's summary");
    line.1.trim().parse::<f64>().expect("a count") / CALLS as f64
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(at) = arguments.iter().position(|argument| argument == "--case") {
        return run(&arguments[at + 1]);
    }
    let mut over = false;
    for (case, what, bar) in CASES {
        let each = if matches!(case, "post_list_instr" | "poll_instr") { 16.0 } else { 1.0 };
        let count = instructions(case) / each;
        let verdict = if count <= bar { "" } else { "  OVER" };
        let bar_text = if bar.is_finite() { format!("(bar {bar})") } else { String::new() };
        println!("{case:18} {count:6.1} instructions {bar_text}{verdict}: {what}");
        over |= count > bar;
    }
    assert!(!over, "over its bar");
}
