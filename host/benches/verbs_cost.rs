//! What the driver's calls cost in instructions, counted by callgrind: a count, not a time, so it is the same on every
//! machine of one architecture and compiler.
//!
//! ```text
//! cargo bench > this program > valgrind --tool=callgrind > this program again, per case > "Collected : n"
//!               driver > software card, which works between the counted parts; posts are to its mapped BAR
//! ```
//! In: nothing. Out: a line per case: instructions per call, or per completion, with its bar. Fails if one is over its
//! bar, or valgrind is missing. Only the body of [`counted`] is counted: the calls, and one step of a loop around them;
//! what that step costs with a call of nothing, the first line, is subtracted from the others.
//!
//! `cargo bench -p host --bench verbs_cost`

#[path = "../tests/software_card/mod.rs"]
mod software_card;

use host::*;
use software_card::World;
use std::hint::black_box;
use std::process::Command;

/// Calls that are counted together.
const CALLS: usize = 64;
/// Name, what is counted, bar in instructions.
const CASES: [(&str, &str, f64); 7] = [
    ("nothing_instr", "a step of the loop, which the others are without", f64::INFINITY),
    ("post_instr", "post_send of one 64-byte WRITE, with its doorbell", 90.0),
    ("post_list_instr", "the same, of a list of 16, for each", f64::INFINITY),
    ("post_inline_instr", "post_send of one inline WRITE of 32 bytes, with its doorbell", f64::INFINITY),
    ("poll_instr", "poll of 16, for each completion", 45.0),
    ("poll_other_instr", "the same, of work requests of which every other one is signaled", f64::INFINITY),
    ("poll_empty_instr", "poll of an empty CQ", 15.0),
];

/// The only function that callgrind counts: a call with each of the operands, which the compiler does not know to be the
/// same, so that nothing of a call is done once for all.
#[inline(never)]
fn counted<T: Copy>(operands: &[T; CALLS], mut call: impl FnMut(T)) {
    black_box(&operands[..]).iter().for_each(|operand| call(*operand));
}

/// The program under callgrind.
fn run(case: &str) {
    let world = World::new(2);
    // what is posted to a mapped BAR stays there
    let card = if case.starts_with("post") { world.mapped(0) } else { world.backend(0) };
    let device = Device::new(card).expect("the card answers");
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
    let entries = &mut entries;
    let post = |list| counted(&[(qp, list); CALLS], |(qp, list)| qp.post_send(list).expect("posts"));
    match case {
        "nothing_instr" => counted(&[cq; CALLS], |cq| {
            // SAFETY: no instruction at all; takes its operand
            unsafe { std::arch::asm!("/* {} */", in(reg) cq, options(nostack, preserves_flags)) };
        }),
        "post_instr" => post(&one),
        "post_list_instr" => post(&list),
        "post_inline_instr" => post(&inline),
        "poll_instr" | "poll_other_instr" => {
            let unsignaled = [SendWr { signaled: false, ..one[0] }];
            for _ in 0..16 * CALLS {
                if case == "poll_other_instr" {
                    qp.post_send(&unsignaled).expect("posts");
                }
                qp.post_send(&one).expect("posts");
            }
            counted(&[cq; CALLS], |cq| assert_eq!(cq.poll(entries).expect("polls"), 16));
        }
        "poll_empty_instr" => {
            counted(&[cq; CALLS], |cq| assert_eq!(cq.poll(entries).expect("polls"), 0));
        }
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
    let mut nothing = 0.0;
    for (case, what, bar) in CASES {
        let each =
            if matches!(case, "post_list_instr" | "poll_instr" | "poll_other_instr") { 16.0 } else { 1.0 };
        let count = (instructions(case) - nothing) / each;
        if case == "nothing_instr" {
            nothing = count;
        }
        let verdict = if count <= bar { "" } else { "  OVER" };
        let bar_text = if bar.is_finite() { format!("(bar {bar})") } else { String::new() };
        println!("{case:18} {count:6.1} instructions {bar_text}{verdict}: {what}");
        over |= count > bar;
    }
    assert!(!over, "over its bar");
}
