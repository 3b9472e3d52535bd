//! BAR accesses, registers, MSI-X, completion and event queues, commands: each block by the interpreter.
//!
//! Requirements: CARD CMD ERR MEM PCIE QPS QUE RAW

use contract::command::{CommandEntry, CommandResponse};
use contract::context::{CqEntry, EqEntry, MrEntry, QpContext};
use contract::doorbell::{CqDoorbell, EqDoorbell};
use contract::register as r;
use contract::ring::{Cqe, Eqe};
use contract::{CommandOpcode, CommandStatus, QpState, Reject, StageCounter, Transport};
use hdl::{Bits, Interpreter, Style, elaborate};
use nic::Config;
use nic::command::Command;
use nic::csr::{Csr, StageEvent};
use nic::nic::Nic;
use nic::pcie::bar::Bar;
use nic::pcie::msix::Msix;
use nic::rx::complete::Complete;
use nic::rx::notify::Notify;

fn start<M: hdl::Module>(m: &M) -> Interpreter {
    let mut s = Interpreter::new(&elaborate(m).unwrap_or_else(|e| panic!("{e}")));
    s.poke("reset", 1);
    s.clock();
    s.clock();
    s.poke("reset", 0);
    s
}

/// `Command` with rings of four entries.
fn commanded(c: Config) -> Interpreter {
    let mut s = start(&Command { c, initialised: 2 });
    s.poke("command_base", 0x10_0000);
    s.poke("response_base", 0x20_0000);
    s.poke("log_depth", 2);
    s
}

/// Clocks until `f` holds; fails after `limit`.
fn until(s: &mut Interpreter, limit: u32, what: &str, mut f: impl FnMut(&mut Interpreter) -> bool) {
    for _ in 0..limit {
        if f(s) {
            return;
        }
        s.clock();
    }
    panic!("{what} not within {limit} clocks");
}

fn header(dw: [u32; 4]) -> Bits {
    Bits::new(128, dw.iter().fold(0u128, |h, d| h << 32 | u128::from(*d)))
}

/// Drives one request into `bar`; answers register reads from `memory`; collects writes and the completions.
#[derive(Default, Debug)]
struct BarRun {
    writes: Vec<(u64, u64, u64)>,
    doorbells: Vec<(u64, u64, u64)>,
    /// Bytes of each of them.
    enables: Vec<u64>,
    clocks: u64,
    completions: Vec<(u128, Vec<u32>)>,
    counts: Vec<u64>,
}

fn request(
    s: &mut Interpreter,
    bar: u64,
    dw: [u32; 4],
    payload: &[u32],
    memory: impl Fn(u64) -> u64,
) -> BarRun {
    let mut run = BarRun::default();
    s.poke("cq_bar", bar);
    s.poke("completer_id", 0x0100);
    for p in ["register_ready", "msix_ready", "doorbell_ready", "cc_ready"] {
        s.poke(p, 1);
    }
    // doublewords of a beat
    let lanes = s.peek_bits("cc_data").width() / 32;
    let bits = |dwords: &[u32]| {
        let mut bytes: Vec<u8> = dwords.iter().flat_map(|d| d.to_le_bytes()).collect();
        bytes.resize(lanes as usize * 4, 0);
        Bits::from_bytes(lanes * 32, &bytes)
    };
    let beats: Vec<Bits> =
        if payload.is_empty() { vec![bits(&[])] } else { payload.chunks(lanes as usize).map(bits).collect() };
    let mut beat = 0;
    let mut answers: Vec<u64> = vec![];
    let mut data = vec![];
    for clock in 0..2000 {
        let more = beat < beats.len();
        s.poke("cq_valid", u64::from(more));
        if more {
            s.poke_bits("cq_header", &header(dw));
            s.poke_bits("cq_data", &beats[beat]);
            s.poke("cq_first", u64::from(beat == 0));
            s.poke("cq_last", u64::from(beat + 1 == beats.len()));
        }
        s.poke("register_read_valid", u64::from(!answers.is_empty()));
        s.poke("register_read", answers.first().copied().unwrap_or(0));
        if s.peek("register_valid") == 1 {
            let (a, d, e) = (s.peek("register_address"), s.peek("register_data"), s.peek("register_enables"));
            let d = (0..8).filter(|i| e >> i & 1 == 1).fold(0, |m, i| m | d & 0xff << (i * 8));
            if s.peek("register_write") == 1 { run.writes.push((a, d, e)) } else { answers.push(memory(a)) }
        }
        if s.peek("doorbell_valid") == 1 {
            run.doorbells.push((s.peek("doorbell_page"), s.peek("doorbell_offset"), s.peek("doorbell_data")));
            run.enables.push(s.peek("doorbell_enables"));
        }
        if s.peek("count_valid") == 1 {
            run.counts.push(s.peek("count_index"));
        }
        if s.peek("cc_valid") == 1 {
            let h = s.peek_bits("cc_header").low128();
            let d = s.peek_bits("cc_data").to_bytes();
            data.extend(d.chunks(4).map(|d| u32::from_le_bytes(d.try_into().expect("four bytes"))));
            if s.peek("cc_last") == 1 {
                let n = (h >> 96 & 0x3ff) as usize;
                let has_data = h >> 126 & 1 == 1;
                data.truncate(if has_data { n } else { 0 });
                run.completions.push((h, std::mem::take(&mut data)));
            }
        }
        let took = more && s.peek("cq_ready") == 1;
        let answered = !answers.is_empty() && s.peek("register_read_ready") == 1;
        if !more && s.peek("idle") == 1 && clock > 2 {
            run.clocks = clock;
            break;
        }
        s.clock();
        beat += usize::from(took);
        if answered {
            answers.remove(0);
        }
    }
    run
}

/// The BARs at both widths of a beat.
fn bars() -> impl Iterator<Item = Interpreter> {
    [Config::small(), Config::full()].into_iter().map(|c| start(&Bar(c)))
}

const MRD: u32 = 0;
const MWR: u32 = 0b010 << 29;

#[test]
fn a_register_write_of_any_size_reaches_its_bytes() {
    for mut s in bars() {
        // four bytes at an odd doubleword
        let run = request(&mut s, 0, [MWR | 1, 0x0000_000f, 0xf000_0104, 0], &[0x1234_5678], |_| 0);
        assert_eq!(run.writes, [(0x100, 0x1234_5678 << 32, 0xf0)]);
        // one byte
        let run = request(&mut s, 0, [MWR | 1, 0x0000_0004, 0xf000_0100, 0], &[0x00ab_0000], |_| 0);
        assert_eq!(run.writes, [(0x100, 0xab_0000, 0x04)]);
        // five doublewords from an odd one: three quadwords
        let run = request(&mut s, 0, [MWR | 5, 0x0000_00ff, 0xf000_0104, 0], &[1, 2, 3, 4, 5], |_| 0);
        assert_eq!(
            run.writes,
            [(0x100, 1 << 32, 0xf0), (0x108, 2 | 3 << 32, 0xff), (0x110, 4 | 5 << 32, 0xff)]
        );
    }
}

#[test]
fn a_register_read_is_completed_in_cuts_of_128_bytes() {
    for mut s in bars() {
        let word = |a: u64| (a / 4) | ((a / 4 + 1) << 32);
        let run = request(&mut s, 0, [MRD | 1, 0xbeef_0a0f, 0xf000_0104, 0], &[], word);
        let (h, d) = &run.completions[0];
        assert_eq!(d, &[0x41]);
        assert_eq!(h >> 120, 0b010_01010, "CplD");
        assert_eq!(h >> 64 & 0xfff, 4, "byte count");
        assert_eq!(h >> 32 & 0xffff_ffff, 0xbeef_0a04, "requester, tag, lower address");
        // bytes 3..=0x82 of facts' worked example: length 33, byte count 128, lower address 3
        let run = request(&mut s, 0, [MRD | 33, 0xbeef_0178, 0xf000_0000, 0], &[], word);
        let heads: Vec<_> =
            run.completions.iter().map(|(h, d)| (h >> 64 & 0xfff, h >> 32 & 0x7f, d.len())).collect();
        assert_eq!(heads, [(128, 3, 32), (3, 0, 1)]);
        assert_eq!(run.completions[1].1, [32]);
        let all: Vec<u32> = run.completions.into_iter().flat_map(|c| c.1).collect();
        assert_eq!(all, (0..33).collect::<Vec<u32>>());
    }
}

#[test]
fn what_is_no_memory_request_is_answered_unsupported_and_poison_is_dropped() {
    for mut s in bars() {
        let io_read = request(&mut s, 0, [0b00010 << 24 | 1, 0xbeef_070f, 0x100, 0], &[], |_| 0);
        assert_eq!(io_read.completions[0].0 >> 77 & 7, 1, "UR");
        assert_eq!(io_read.counts, [Reject::RequestUnsupported as u64]);
        let poisoned = request(&mut s, 0, [MWR | 1 << 14 | 2, 0xff, 0x100, 0], &[1, 2], |_| 0);
        assert!(poisoned.writes.is_empty() && poisoned.completions.is_empty());
        assert_eq!(poisoned.counts, [Reject::RequestPoisoned as u64]);
        // and the next request works
        assert_eq!(request(&mut s, 0, [MWR | 1, 0xf, 0x100, 0], &[7], |_| 0).writes, [(0x100, 7, 0x0f)]);
    }
}

#[test]
fn a_doorbell_is_one_whole_quadword() {
    for mut s in bars() {
        let run = request(&mut s, 2, [MWR | 2, 0xff, 0xf003_5010, 0], &[0x11, 0x22], |_| 0);
        assert_eq!(run.doorbells, [(0x35, 0x10, 0x11 | 0x22 << 32)]);
        let run = request(&mut s, 2, [MWR | 1, 0x0f, 0xf003_5010, 0], &[0x11], |_| 0);
        assert_eq!((run.doorbells.len(), run.counts), (0, vec![Reject::DoorbellMalformed as u64]));
    }
}

#[test]
fn a_store_to_a_push_buffer_may_have_any_place_and_size() {
    for mut s in bars() {
        for at in 0x800..0x810u32 {
            for bytes in (1..=64u32).filter(|n| at + n <= 0x840) {
                let (first, last) = (at / 4, (at + bytes - 1) / 4);
                let within = |dword: u32| {
                    (0..4)
                        .filter(|i| (at..at + bytes).contains(&(4 * dword + i)))
                        .fold(0, |be, i| be | 1 << i)
                };
                let enables = if first == last { within(first) } else { within(last) << 4 | within(first) };
                let value = |dword: u32| dword.wrapping_mul(0x9e37_79b1);
                let payload: Vec<u32> = (first..=last).map(value).collect();
                let dw = [MWR | (last - first + 1), enables, 0xf003_5000 | (first * 4), 0];
                let run = request(&mut s, 2, dw, &payload, |_| 0);
                let mut got = vec![];
                for ((page, offset, data), enables) in run.doorbells.iter().zip(&run.enables) {
                    assert_eq!(*page, 0x35);
                    got.extend(
                        (0..8)
                            .filter(|i| enables >> i & 1 == 1)
                            .map(|i| (offset + i, data >> (8 * i) & 0xff)),
                    );
                }
                let byte = |a: u32| (u64::from(a), u64::from(value(a / 4)) >> (8 * (a % 4)) & 0xff);
                let want: Vec<_> = (at..at + bytes).map(byte).collect();
                assert_eq!((got, run.counts), (want, vec![]), "{bytes} bytes at {at:#x}");
            }
        }
        // 64 aligned bytes: one clock for the header and one for each quadword
        let run = request(&mut s, 2, [MWR | 16, 0xff, 0xf003_5800, 0], &[7; 16], |_| 0);
        assert_eq!((run.doorbells.len(), run.clocks), (8, 9));
    }
}

fn access(s: &mut Interpreter, write: bool, address: u32, data: u64, enables: u64) -> u64 {
    s.poke("access_valid", 1);
    s.poke("access_write", u64::from(write));
    s.poke("access_address", u64::from(address));
    s.poke("access_data", data);
    s.poke("access_enables", enables);
    s.poke("read_ready", 1);
    until(s, 10, "access", |s| s.peek("access_ready") == 1);
    s.clock();
    s.poke("access_valid", 0);
    if write {
        return 0;
    }
    until(s, 10, "answer", |s| s.peek("read_valid") == 1);
    let v = s.peek("read");
    s.clock();
    v
}

#[test]
fn registers_tell_what_the_card_is_and_counters_count_once() {
    let csr = Csr {
        c: Config::small(),
        rejects: vec![&[Reject::Duplicate]; 2],
        stages: vec![
            StageEvent { counter: StageCounter::TxFrames, bits: 1 },
            StageEvent { counter: StageCounter::TxBytes, bits: 4 },
        ],
    };
    let mut s = start(&csr);
    let magic = access(&mut s, false, 0, 0, 0xff);
    assert_eq!(magic, u64::from(r::MAGIC_VALUE) | u64::from(r::VERSION_VALUE) << 32);
    assert_eq!(access(&mut s, false, r::LAYOUT_HASH, 0, 0xff), contract::LAYOUT_HASH);
    access(&mut s, true, r::COMMAND_BASE, 0x1122_3344_5566_7788, 0xff);
    access(&mut s, true, r::COMMAND_BASE, 0xaa00, 0x02);
    assert_eq!(access(&mut s, false, r::COMMAND_BASE, 0, 0xff), 0x1122_3344_5566_aa88);
    access(&mut s, true, 0x118, 1 << 32, 0xf0);
    assert_eq!((s.peek("command_enable"), s.peek("command_consumer")), (1, 0));
    assert_eq!(s.peek("raw_receive"), 0);
    access(&mut s, true, r::RAW_RECEIVE, (r::RAW_ENABLE | 0x12_3456).into(), 0x0f);
    assert_eq!(s.peek("raw_receive"), 0x8012_3456);
    assert_eq!(access(&mut s, false, r::RAW_RECEIVE, 0, 0xff), 0x8012_3456);
    // both refusal sources name one counter in one clock; bytes add up to 300 x 9
    for _ in 0..300 {
        for i in 0..2 {
            s.poke(&format!("reject_{i}_valid"), 1);
            s.poke(&format!("reject_{i}_index"), Reject::Duplicate as u64);
        }
        s.poke("stage_1", 9);
        s.clock();
    }
    s.poke("reject_0_valid", 0);
    s.poke("reject_1_valid", 0);
    s.poke("stage_1", 0);
    until(&mut s, 300, "counters at rest", |s| s.peek("idle") == 1);
    assert_eq!(access(&mut s, false, r::reject_counter(Reject::Duplicate), 0, 0xff), 600);
    assert_eq!(access(&mut s, false, r::stage_counter(StageCounter::TxBytes), 0, 0xff), 2700);
    assert_eq!(access(&mut s, false, r::stage_counter(StageCounter::TxFrames), 0, 0xff), 0);
}

#[test]
fn the_card_counts_every_refusal_and_every_event_of_the_contract() {
    // csr makes a pending count for what some source of the card may count, and for nothing else
    let text = elaborate(&Nic(Config::small().traced())).unwrap().verilog(Style::default());
    let counted = |name: String| text.contains(&format!(" {name};"));
    let rejects = Reject::ALL.iter().filter(|r| !counted(format!("pending_reject_{}", r.code())));
    assert_eq!(rejects.collect::<Vec<_>>(), [&Reject::BadFcs; 0]);
    let events = StageCounter::ALL.iter().filter(|e| !counted(format!("pending_stage_{}", e.code())));
    assert_eq!(events.collect::<Vec<_>>(), [&StageCounter::TxFrames; 0]);
}

#[test]
fn a_counter_read_by_halves_is_whole() {
    let mut s = start(&Csr { c: Config::small(), rejects: vec![&[]], stages: vec![] });
    s.poke("now", 0x1_ffff_ffff);
    assert_eq!(access(&mut s, false, r::NOW, 0, 0x0f) as u32, 0xffff_ffff);
    s.poke("now", 0x2_0000_0000);
    assert_eq!(access(&mut s, false, r::NOW, 0, 0xf0) >> 32, 1);
    assert_eq!(access(&mut s, false, r::NOW, 0, 0xf0) >> 32, 2, "the latch serves one read");
}

#[test]
fn the_trace_window_is_read_by_quadwords_and_by_halves_and_is_set_by_two_registers() {
    let traced = Config::small().traced();
    let mut s = start(&Csr { c: traced, rejects: vec![&[]], stages: vec![] });
    assert_eq!(access(&mut s, false, r::FEATURES, 0, 0x0f) as u32 & r::feature::TRACE, r::feature::TRACE);
    assert_eq!(access(&mut s, false, r::TRACE_ENTRIES, 0, 0x0f), 512);
    assert_eq!((s.peek("trace_enable"), s.peek("trace_stages")), (0, 0x1_ffff));
    access(&mut s, true, r::TRACE_CONTROL, 1, 0x0f);
    access(&mut s, true, r::TRACE_CONTROL, 0x40 << 32, 0xf0);
    assert_eq!((s.peek("trace_enable"), s.peek("trace_stages")), (1, 0x40));
    s.poke("trace_producer", 0x7_0000_0003);
    assert_eq!(access(&mut s, false, r::TRACE_PRODUCER, 0, 0xff), 0x7_0000_0003);
    // the ring answers in the clock behind the address
    let mut read = |offset: u32, enables: u64| {
        s.poke("access_valid", 1);
        s.poke("access_write", 0);
        s.poke("access_address", u64::from(offset));
        s.poke("access_enables", enables);
        until(&mut s, 10, "access", |s| s.peek("access_ready") == 1);
        let at = s.peek("trace_address");
        s.clock();
        s.poke("access_valid", 0);
        s.poke("trace_word", at << 32 | !at & 0xffff_ffff);
        until(&mut s, 10, "answer", |s| s.peek("read_valid") == 1);
        s.poke("trace_word", 0);
        let word = s.peek("read");
        s.clock();
        word
    };
    let word = |n: u64| n << 32 | !n & 0xffff_ffff;
    for n in [0, 1, 77, 1023] {
        assert_eq!(read(r::TRACE_RING + 8 * n, 0xff), word(n.into()), "quadword {n}");
    }
    assert_eq!(read(r::TRACE_RING + 8 * 9, 0x0f) as u32, word(9) as u32);
    assert_eq!(read(r::TRACE_RING + 8 * 9, 0xf0) >> 32, 9);
    assert_eq!(read(r::NOW, 0xff), 0, "what is outside of the window is none of it");
    // a card without
    let mut s = start(&Csr { c: Config::small(), rejects: vec![&[]], stages: vec![] });
    assert_eq!(access(&mut s, false, r::FEATURES, 0, 0x0f) as u32 & r::feature::TRACE, 0);
}

#[test]
fn a_card_without_a_trace_still_elaborates_and_has_its_pins() {
    let text = elaborate(&Nic(Config::small())).unwrap().verilog(Style::default());
    assert!(text.contains("trace_valid") && !text.contains("trace_small"));
}

#[test]
fn a_masked_vector_waits_and_many_triggers_are_one() {
    let mut s = start(&Msix(Config::small()));
    s.poke("enable", 1);
    s.poke("write_ready", 1);
    access(&mut s, true, 3 * 16, 0xfee0_1000, 0xff);
    access(&mut s, true, 3 * 16 + 8, 1 << 32 | 0x4321, 0xff);
    for _ in 0..3 {
        s.poke("raise_valid", 1);
        s.poke("raise", 3);
        s.clock();
    }
    s.poke("raise_valid", 0);
    for _ in 0..20 {
        assert_eq!(s.peek("write_valid"), 0, "masked");
        s.clock();
    }
    assert_eq!(access(&mut s, false, 0x800, 0, 0xff), 1 << 3);
    access(&mut s, true, 3 * 16 + 8, 0, 0xf0);
    let mut sent = 0;
    for _ in 0..40 {
        if s.peek("write_valid") == 1 {
            sent += 1;
            assert_eq!((s.peek("write_iova"), s.peek("write_dwords")), (0xfee0_1000, 1));
            assert_eq!(s.peek_bits("write_data").low(), 0x4321);
        }
        s.clock();
    }
    assert_eq!(sent, 1);
    assert_eq!(access(&mut s, false, 0x800, 0, 0xff), 0);
}

#[test]
fn the_function_mask_and_a_disabled_capability_hold_every_vector() {
    let mut s = start(&Msix(Config::small()));
    s.poke("write_ready", 1);
    access(&mut s, true, 2 * 16, 0xfee0_2000, 0xff);
    access(&mut s, true, 2 * 16 + 8, 0x99, 0xff);
    for (enable, mask) in [(0, 0), (1, 1)] {
        s.poke("enable", enable);
        s.poke("mask", mask);
        s.poke("raise_valid", 1);
        s.poke("raise", 2);
        s.clock();
        s.poke("raise_valid", 0);
        for _ in 0..20 {
            assert_eq!(s.peek("write_valid"), 0, "enable {enable}, function mask {mask}");
            s.clock();
        }
        assert_eq!(access(&mut s, false, 0x800, 0, 0xff), 1 << 2, "it pends");
        s.poke("enable", 1);
        s.poke("mask", 0);
        until(&mut s, 10, "message", |s| s.peek("write_valid") == 1);
        assert_eq!(s.peek("write_iova"), 0xfee0_2000);
        s.clock();
    }
}

fn put(s: &mut Interpreter, table: u64, index: u64, bytes: &[u8]) {
    for (w, b) in bytes.chunks(8).enumerate() {
        s.poke("table_valid", 1);
        s.poke("table_table", table);
        s.poke("table_index", index);
        s.poke("table_word", w as u64);
        s.poke("table_data", u64::from_le_bytes(b.try_into().unwrap()));
        s.clock();
    }
    s.poke("table_valid", 0);
    for _ in 0..6 {
        s.clock();
    }
}

#[test]
fn a_full_cq_overflows_once_and_is_never_overwritten() {
    let c = Config::small();
    let mut s = start(&Complete(c));
    let cq = CqEntry { valid: true, log_depth: 2, page: 5, eqn: 1, base: 0x1_0000, ..CqEntry::default() };
    put(&mut s, 2, 9, &cq.pack());
    s.poke("write_ready", 1);
    s.poke("event_ready", 1);
    let mut cqes = vec![];
    let mut events = vec![];
    let mut counts = 0;
    let mut offer =
        |s: &mut Interpreter, index: u64, cqes: &mut Vec<(u64, Cqe)>, events: &mut Vec<(u64, u64)>| {
            s.poke("send_valid", 1);
            s.poke("send_cq", 9);
            s.poke("send_qp", 3);
            s.poke("send_wqe_index", index);
            until(s, 20, "taken", |s| s.peek("send_ready") == 1);
            s.clock();
            s.poke("send_valid", 0);
            for _ in 0..10 {
                if s.peek("write_valid") == 1 {
                    let line = s.peek_bits("write_data").to_bytes();
                    cqes.push((s.peek("write_iova"), Cqe::unpack(&line.try_into().unwrap())));
                }
                if s.peek("event_valid") == 1 {
                    events.push((s.peek("event_kind"), s.peek("event_object")));
                }
                counts += s.peek("count_valid");
                s.clock();
            }
        };
    for i in 0..6 {
        offer(&mut s, i, &mut cqes, &mut events);
    }
    assert_eq!(
        cqes.iter().map(|c| (c.0, c.1.wqe_index, c.1.phase)).collect::<Vec<_>>(),
        [(0x1_0000, 0, true), (0x1_0040, 1, true), (0x1_0080, 2, true), (0x1_00c0, 3, true)]
    );
    assert_eq!(events, [(contract::EventKind::CqOverflow as u64, 9)]);
    assert_eq!(counts, 2);
}

#[test]
fn an_armed_cq_tells_once_after_its_entry_and_the_phase_turns_with_the_lap() {
    let mut s = start(&Complete(Config::small()));
    put(
        &mut s,
        2,
        0,
        &CqEntry { valid: true, log_depth: 1, page: 5, eqn: 1, base: 0x1_0000, ..CqEntry::default() }.pack(),
    );
    s.poke("write_ready", 1);
    s.poke("event_ready", 1);
    let mut story = vec![];
    for step in 0..6u32 {
        if step % 2 == 0 {
            let d = CqDoorbell { cqn: 0, arm: 1, consumer: step / 2 };
            s.poke("doorbell_valid", 1);
            s.poke("doorbell_page", 5);
            s.poke("doorbell_data", u64::from_le_bytes(d.pack()));
            until(&mut s, 10, "doorbell", |s| s.peek("doorbell_ready") == 1);
            s.clock();
            s.poke("doorbell_valid", 0);
        } else {
            s.poke("receive_valid", 1);
            until(&mut s, 10, "taken", |s| s.peek("receive_ready") == 1);
            s.clock();
            s.poke("receive_valid", 0);
        }
        for _ in 0..10 {
            if s.peek("write_valid") == 1 {
                story.push(format!("cqe {}", s.peek_bits("write_data").bit(504)));
            }
            if s.peek("event_valid") == 1 {
                story.push("event".into());
            }
            s.clock();
        }
    }
    assert_eq!(story, ["cqe true", "event", "cqe true", "event", "cqe false", "event"]);
    // arming behind an entry that was not consumed tells at once
    let d = CqDoorbell { cqn: 0, arm: 1, consumer: 2 };
    s.poke("doorbell_valid", 1);
    s.poke("doorbell_data", u64::from_le_bytes(d.pack()));
    until(&mut s, 10, "doorbell", |s| s.peek("doorbell_ready") == 1);
    s.clock();
    s.poke("doorbell_valid", 0);
    until(&mut s, 10, "event", |s| s.peek("event_valid") == 1);
}

#[test]
fn a_cq_armed_for_solicited_entries_tells_of_those_and_of_errors_alone() {
    let mut s = start(&Complete(Config::small()));
    put(
        &mut s,
        2,
        0,
        &CqEntry { valid: true, log_depth: 4, page: 5, eqn: 1, base: 0x1_0000, ..CqEntry::default() }.pack(),
    );
    s.poke("write_ready", 1);
    s.poke("event_ready", 1);
    let mut entries = 0;
    // two plain entries, then the one that counts, then one for which nothing is armed any more
    for (solicited, status) in [(1, 0), (0, 5), (1, 5)] {
        let d = CqDoorbell { cqn: 0, arm: 2, consumer: entries };
        s.poke("doorbell_valid", 1);
        s.poke("doorbell_page", 5);
        s.poke("doorbell_data", u64::from_le_bytes(d.pack()));
        until(&mut s, 10, "doorbell", |s| s.peek("doorbell_ready") == 1);
        s.clock();
        s.poke("doorbell_valid", 0);
        for (step, (solicited, status)) in
            [(0, 0), (0, 0), (solicited, status), (solicited, status)].into_iter().enumerate()
        {
            s.poke("receive_valid", 1);
            s.poke("receive_solicited", solicited);
            s.poke("receive_status", status);
            until(&mut s, 10, "taken", |s| s.peek("receive_ready") == 1);
            s.clock();
            s.poke("receive_valid", 0);
            entries += 1;
            let mut events = 0;
            for _ in 0..10 {
                events += s.peek("event_valid");
                s.clock();
            }
            assert_eq!(events, u64::from(step == 2), "entry {step}, solicited {solicited}, status {status}");
        }
    }
}

#[test]
fn a_cqe_carries_what_its_status_gives_a_meaning_to_and_the_time_and_nothing_else() {
    let mut s = start(&Complete(Config::small()));
    put(
        &mut s,
        2,
        0,
        &CqEntry { valid: true, log_depth: 4, page: 5, eqn: 1, base: 0x1_0000, ..CqEntry::default() }.pack(),
    );
    s.poke("write_ready", 1);
    // status, cause, immediate, key
    for (status, cause, with_imm, with_inv) in
        [(0, 0, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (4, 53, 0, 0), (8, 25, 1, 0), (12, 0, 0, 1)]
    {
        let now = 0x0123_4567_89ab_cd00 + status;
        for (f, v) in [
            ("valid", 1),
            ("qp", 33),
            ("wqe_index", 0xfedc),
            ("opcode", 129),
            ("status", status),
            ("byte_len", 0x8000_0001),
            ("imm", 0x1122_3344),
            ("with_imm", with_imm),
            ("with_inv", with_inv),
            ("cause", cause),
            ("solicited", 1),
        ] {
            s.poke(&format!("receive_{f}"), v);
        }
        s.poke("now", now);
        until(&mut s, 10, "taken", |s| s.peek("receive_ready") == 1);
        s.clock();
        s.poke("receive_valid", 0);
        until(&mut s, 10, "a CQE", |s| s.peek("write_valid") == 1);
        let cqe = Cqe::unpack(&s.peek_bits("write_data").to_bytes().try_into().unwrap());
        let good = status == 0;
        let wanted = Cqe {
            wqe_index: 0xfedc,
            opcode: 129,
            status: status as u8,
            qpn: 33,
            with_imm: with_imm == 1,
            with_inv: with_inv == 1,
            solicited: true,
            grh: false,
            byte_len: if good { 0x8000_0001 } else { 0 },
            imm: if good && with_imm + with_inv > 0 { 0x1122_3344 } else { 0 },
            src_qpn: 0,
            vendor_err: cause as u32,
            timestamp: now,
            phase: true,
        };
        assert_eq!(cqe, wanted);
        s.clock();
    }
}

/// A CQ whose events are moderated, in virtual time.
struct Moderated {
    s: Interpreter,
    now: u64,
    /// CQ and time of each event.
    events: Vec<(u64, u64)>,
}

impl Moderated {
    /// CQ 0 with this moderation, armed for anything.
    fn new(count: u16, period: u32) -> Moderated {
        let mut m = Moderated { s: start(&Complete(Config::small())), now: 1000, events: vec![] };
        m.s.poke("write_ready", 1);
        m.s.poke("event_ready", 1);
        m.create(0, count, period);
        m.knock(0, 1, 0);
        m
    }
    fn create(&mut self, cq: u64, count: u16, period: u32) {
        let ring =
            CqEntry { valid: true, log_depth: 4, page: 5, eqn: 1, base: 0x1_0000, ..CqEntry::default() };
        let moderation = CqEntry { moderation_count: count, moderation_period: period, ..ring };
        put(&mut self.s, 2, cq, &moderation.pack());
    }
    fn clock(&mut self) {
        self.s.poke("now", self.now);
        if self.s.peek("event_valid") == 1 {
            self.events.push((self.s.peek("event_object"), self.now));
        }
        self.s.clock();
        self.now += 1;
    }
    fn run(&mut self, clocks: u64) {
        (0..clocks).for_each(|_| self.clock());
    }
    fn knock(&mut self, cqn: u32, arm: u8, consumer: u32) {
        self.s.poke("doorbell_valid", 1);
        self.s.poke("doorbell_page", 5);
        self.s.poke("doorbell_data", u64::from_le_bytes(CqDoorbell { cqn, arm, consumer }.pack()));
        while self.s.peek("doorbell_ready") == 0 {
            self.clock();
        }
        self.clock();
        self.s.poke("doorbell_valid", 0);
        self.run(5);
    }
    /// One CQE, solicited or not; the time at which it was decided.
    fn entry(&mut self, cq: u64, solicited: bool) -> u64 {
        self.s.poke("receive_valid", 1);
        self.s.poke("receive_cq", cq);
        self.s.poke("receive_solicited", u64::from(solicited));
        while self.s.peek("receive_ready") == 0 {
            self.clock();
        }
        self.clock();
        self.s.poke("receive_valid", 0);
        let at = self.now + 1;
        self.run(6);
        at
    }
    fn count(&mut self) -> usize {
        std::mem::take(&mut self.events).len()
    }
    /// As the simulation does: to the next time at once, when all is quiet.
    fn jump(&mut self) -> Option<u64> {
        for _ in 0..400 {
            if self.s.peek("idle") == 1 {
                let due = self.s.peek("next_due");
                let due = (self.s.peek("next_due_valid") == 1).then_some(due);
                self.now = due.unwrap_or(self.now);
                self.s.poke("now", self.now);
                return due;
            }
            self.clock();
        }
        panic!("never idle");
    }
}

#[test]
fn an_event_waits_for_the_count_of_entries_and_not_for_one_more() {
    for count in [0u16, 1, 2, 3, 7] {
        let mut m = Moderated::new(count, 0);
        let wanted = usize::from(count.max(1));
        for n in 1..=wanted {
            m.entry(0, false);
            assert_eq!(m.count(), usize::from(n == wanted), "entry {n} of {count}");
        }
        // the arming is spent
        for _ in 0..3 {
            m.entry(0, false);
        }
        assert_eq!((m.count(), m.jump()), (0, None));
        // armed again with all consumed, the count begins anew
        m.knock(0, 1, wanted as u32 + 3);
        for n in 1..=wanted {
            m.entry(0, false);
            assert_eq!(m.count(), usize::from(n == wanted), "entry {n} of {count}, again");
        }
    }
}

#[test]
fn an_event_waits_for_the_time_since_the_first_entry_and_not_longer() {
    let mut m = Moderated::new(0, 500);
    assert_eq!(m.jump(), None, "nothing to wait for");
    let first = m.entry(0, false);
    m.run(100);
    m.entry(0, false);
    // 64 CQs are looked at in 64 clocks
    while m.now < first + 500 {
        m.clock();
        assert_eq!(m.events, [], "{} clocks", m.now - first);
    }
    m.run(64 + 8);
    assert_eq!(m.count(), 1);
    m.run(2000);
    assert_eq!((m.count(), m.jump()), (0, None));
    // and in virtual time to the clock: the time is told and not passed over
    m.knock(0, 1, 2);
    let first = m.entry(0, false);
    assert_eq!(m.jump(), Some(first + 500));
    assert_eq!(m.s.peek("idle"), 0, "something is due");
    m.run(64 + 8);
    assert_eq!((m.count(), m.jump()), (1, None));
}

#[test]
fn count_and_time_whichever_is_first_and_of_several_cqs_each_its_own() {
    let mut m = Moderated::new(3, 500);
    m.create(9, 2, 300);
    m.knock(9, 1, 0);
    let first = m.entry(0, false);
    let other = m.entry(9, false);
    m.entry(0, false);
    assert_eq!((m.count(), m.jump()), (0, Some(other + 300)));
    m.run(80);
    assert_eq!(m.events.iter().map(|e| e.0).collect::<Vec<_>>(), [9]);
    assert_eq!((m.count(), m.jump()), (1, Some(first + 500)));
    m.now -= 50;
    m.entry(0, false);
    assert_eq!(m.events.iter().map(|e| e.0).collect::<Vec<_>>(), [0]);
    m.count();
    assert_eq!(m.jump(), None, "its time has gone with it");
    m.run(1000);
    assert_eq!(m.count(), 0);
}

#[test]
fn entries_that_arming_finds_are_counted_and_their_time_begins() {
    // (entries there, event at once)
    for (there, at_once) in [(1, false), (2, false), (3, true), (5, true)] {
        let mut m = Moderated::new(3, 500);
        m.create(0, 3, 500);
        for _ in 0..there {
            m.entry(0, false);
        }
        assert_eq!(m.count(), 0, "not armed");
        m.knock(0, 1, 0);
        assert_eq!(m.count(), usize::from(at_once), "{there} entries");
        if !at_once {
            assert!(m.jump().is_some());
            for n in there + 1..=3 {
                m.entry(0, false);
                assert_eq!(m.count(), usize::from(n == 3));
            }
        }
    }
    // what is consumed is reported, however the program came to see it
    let mut m = Moderated::new(3, 500);
    m.entry(0, false);
    m.entry(0, false);
    m.knock(0, 0, 2);
    assert_eq!(m.jump(), None);
    m.entry(0, false);
    m.entry(0, false);
    assert_eq!(m.count(), 0);
    m.entry(0, false);
    assert_eq!(m.count(), 1);
    // consumed in part: the rest waits on
    let mut m = Moderated::new(3, 500);
    let first = m.entry(0, false);
    m.entry(0, false);
    m.knock(0, 0, 1);
    assert_eq!(m.jump(), Some(first + 500));
    // armed for solicited entries, others do not count
    let mut m = Moderated::new(2, 0);
    m.knock(0, 2, 0);
    for (solicited, events) in [(true, 0), (false, 0), (false, 0), (true, 1)] {
        m.entry(0, solicited);
        assert_eq!(m.count(), events);
    }
}

#[test]
fn a_change_of_the_moderation_tells_what_is_held_back_and_a_destroyed_cq_tells_nothing() {
    let mut m = Moderated::new(9, 0);
    m.entry(0, false);
    let word = |s: &mut Interpreter, index: u64, word: u64, data: u64| {
        for (f, v) in [("valid", 1), ("table", 2), ("index", index), ("word", word), ("data", data)] {
            s.poke(&format!("table_{f}"), v);
        }
        s.clock();
        s.poke("table_valid", 0);
    };
    word(&mut m.s, 0, 2, 5 | 700 << 16);
    m.run(10);
    assert_eq!(m.count(), 1);
    // the new one holds, for a CQ that goes on
    m.knock(0, 1, 1);
    let first = m.entry(0, false);
    assert_eq!((m.count(), m.jump()), (0, Some(first + 700)));
    word(&mut m.s, 0, 0, 0);
    m.run(900);
    assert_eq!((m.count(), m.jump()), (0, None));
}

#[test]
fn a_foreign_page_does_not_move_a_cq() {
    let mut s = start(&Complete(Config::small()));
    put(
        &mut s,
        2,
        0,
        &CqEntry { valid: true, log_depth: 1, page: 5, eqn: 1, base: 0x1_0000, ..CqEntry::default() }.pack(),
    );
    s.poke("doorbell_valid", 1);
    s.poke("doorbell_page", 6);
    s.poke("doorbell_data", u64::from_le_bytes(CqDoorbell { cqn: 0, arm: 1, consumer: 1 }.pack()));
    until(&mut s, 10, "doorbell", |s| s.peek("doorbell_ready") == 1);
    s.clock();
    s.poke("doorbell_valid", 0);
    until(&mut s, 5, "refusal", |s| s.peek("count_valid") == 1);
    assert_eq!(s.peek("count_index"), Reject::DoorbellOwner as u64);
}

#[test]
fn a_cq_of_the_drivers_own_eq_cannot_be_armed_and_still_tells_of_its_overflow() {
    let mut s = start(&Complete(Config::small()));
    put(
        &mut s,
        2,
        0,
        &CqEntry { valid: true, log_depth: 1, page: 5, base: 0x1_0000, ..CqEntry::default() }.pack(),
    );
    s.poke("write_ready", 1);
    s.poke("event_ready", 1);
    let mut events = vec![];
    for entry in 0..4 {
        for arm in [1, 2] {
            s.poke("doorbell_valid", 1);
            s.poke("doorbell_page", 5);
            s.poke("doorbell_data", u64::from_le_bytes(CqDoorbell { cqn: 0, arm, consumer: 0 }.pack()));
            until(&mut s, 10, "doorbell", |s| s.peek("doorbell_ready") == 1);
            s.clock();
            s.poke("doorbell_valid", 0);
        }
        s.poke("receive_valid", 1);
        s.poke("receive_solicited", 1);
        until(&mut s, 10, "taken", |s| s.peek("receive_ready") == 1);
        s.clock();
        s.poke("receive_valid", 0);
        for _ in 0..10 {
            if s.peek("event_valid") == 1 {
                events.push((entry, s.peek("event_kind")));
            }
            s.clock();
        }
    }
    assert_eq!(events, [(2, contract::EventKind::CqOverflow as u64)]);
}

#[test]
fn an_armed_eq_raises_its_vector_after_the_entry() {
    let mut s = start(&Notify(Config::small()));
    put(&mut s, 3, 1, &EqEntry { valid: true, log_depth: 4, vector: 7, base: 0x2_0000 }.pack());
    s.poke("doorbell_valid", 1);
    s.poke("doorbell_data", u64::from_le_bytes(EqDoorbell { eqn: 1, arm: true, consumer: 0 }.pack()));
    until(&mut s, 10, "doorbell", |s| s.peek("doorbell_ready") == 1);
    s.clock();
    s.poke("doorbell_valid", 0);
    s.poke("asynchronous_valid", 1);
    s.poke("asynchronous_eq", 1);
    s.poke("asynchronous_kind", 2);
    s.poke("asynchronous_event", 3);
    s.poke("asynchronous_object", 42);
    until(&mut s, 10, "event", |s| s.peek("asynchronous_ready") == 1);
    s.clock();
    s.poke("asynchronous_valid", 0);
    until(&mut s, 10, "entry", |s| s.peek("write_valid") == 1);
    for _ in 0..5 {
        assert_eq!(s.peek("raise_valid"), 0, "not before the entry is taken");
        s.clock();
    }
    let e = Eqe::unpack(&s.peek_bits("write_data").to_bytes()[..16].try_into().unwrap());
    assert_eq!((s.peek("write_iova"), e.kind, e.event, e.object, e.phase), (0x2_0000, 2, 3, 42, true));
    s.poke("write_ready", 1);
    s.clock();
    until(&mut s, 3, "vector", |s| s.peek("raise_valid") == 1);
    assert_eq!(s.peek("raise"), 7);
}

#[test]
fn a_full_eq_drops_events_by_name_until_it_is_consumed() {
    let mut s = start(&Notify(Config::small()));
    put(&mut s, 3, 1, &EqEntry { valid: true, log_depth: 1, vector: 7, base: 0x2_0000 }.pack());
    s.poke("write_ready", 1);
    s.poke("raise_ready", 1);
    let event = |s: &mut Interpreter| {
        s.poke("completion_valid", 1);
        s.poke("completion_eq", 1);
        until(s, 10, "event", |s| s.peek("completion_ready") == 1);
        s.clock();
        s.poke("completion_valid", 0);
        let mut seen = (None, None);
        for _ in 0..10 {
            if s.peek("write_valid") == 1 {
                seen.0 = Some((s.peek("write_iova"), s.peek_bits("write_data").bit(120)));
            }
            if s.peek("count_valid") == 1 {
                seen.1 = Some(s.peek("count_index"));
            }
            s.clock();
        }
        seen
    };
    assert_eq!(event(&mut s), (Some((0x2_0000, true)), None));
    assert_eq!(event(&mut s), (Some((0x2_0010, true)), None));
    assert_eq!(event(&mut s), (None, Some(Reject::EqOverflow as u64)));
    s.poke("doorbell_valid", 1);
    s.poke("doorbell_data", u64::from_le_bytes(EqDoorbell { eqn: 1, arm: false, consumer: 1 }.pack()));
    until(&mut s, 10, "doorbell", |s| s.peek("doorbell_ready") == 1);
    s.clock();
    s.poke("doorbell_valid", 0);
    assert_eq!(event(&mut s), (Some((0x2_0000, false)), None), "second lap");
    assert_eq!(event(&mut s), (None, Some(Reject::EqOverflow as u64)));
}

/// Runs one command through the block, playing the read engine, the stages and the tokens; the tokens come back at
/// different times, in turn the one and the other first, and no response may start before both did.
fn command(
    s: &mut Interpreter,
    number: &mut u64,
    entry: CommandEntry,
) -> (CommandResponse, Vec<(u64, u64, u64, u64)>) {
    let mut puts = vec![];
    *number += 1;
    s.poke("producer", *number);
    s.poke("enable", 1);
    until(s, 40_000, "read", |s| s.peek("read_valid") == 1);
    assert_eq!(s.peek("read_iova"), 0x10_0000 + (*number - 1) % 4 * 256);
    s.poke("read_ready", 1);
    s.clock();
    s.poke("read_ready", 0);
    let bits = s.peek_bits("read_data_data").width();
    for (i, beat) in entry.pack().chunks(bits as usize / 8).enumerate() {
        s.poke("read_data_valid", 1);
        s.poke("read_data_client", 3);
        s.poke("read_data_address", i as u64 * u64::from(bits / 8));
        s.poke_bits("read_data_data", &Bits::from_bytes(bits, beat));
        s.poke("read_data_lanes", u64::MAX >> (64 - bits / 8));
        s.clock();
    }
    s.poke("read_data_valid", 0);
    s.poke("read_done_valid", 1);
    s.poke("read_done_client", 3);
    s.clock();
    s.poke("read_done_valid", 0);
    s.poke("write_ready", 1);
    let mut bytes = vec![];
    let mut back = [0u32; 2];
    let late = (*number % 2) as usize;
    for _ in 0..1000 {
        for i in 0..2 {
            s.poke(&format!("initialise_{i}_ready"), 1);
        }
        for (i, name) in ["transmit", "receive"].iter().enumerate() {
            s.poke(&format!("fence_{name}_ready"), 1);
            s.poke(&format!("fence_{name}_done"), u64::from(back[i] == 1));
            let way = if i == late { 90 } else { 9 };
            back[i] =
                if s.peek(&format!("fence_{name}_valid")) == 1 { way } else { back[i].saturating_sub(1) };
        }
        assert!(s.peek("write_valid") == 0 || back == [0; 2], "no response while a token is out");
        if s.peek("table_valid") == 1 {
            puts.push((
                s.peek("table_table"),
                s.peek("table_index"),
                s.peek("table_word"),
                s.peek("table_data"),
            ));
        }
        if s.peek("write_valid") == 1 {
            assert_eq!(s.peek("write_iova"), 0x20_0000 + (*number - 1) % 4 * 256 + bytes.len() as u64);
            bytes.extend(s.peek_bits("write_data").to_bytes());
        }
        s.clock();
        if bytes.len() == 256 {
            s.clock();
            return (CommandResponse::unpack(&bytes.try_into().unwrap()), puts);
        }
    }
    panic!("no response");
}

#[test]
fn commands_create_modify_query_and_destroy_and_refuse_by_name() {
    for c in [Config::small(), Config::full()] {
        let mrs = c.mrs;
        let mut s = commanded(c);
        let mut n = 0;
        let words = |bytes: &[u8]| -> [u64; 16] {
            let mut w = [0; 16];
            for (w, b) in w.iter_mut().zip(bytes.chunks(8)) {
                *w = u64::from_le_bytes(b.try_into().unwrap());
            }
            w
        };
        let entry = |opcode: CommandOpcode, index: u32| CommandEntry {
            opcode: opcode as u8,
            index,
            sequence: 0x77,
            word_mask: 0xffff,
            ..Default::default()
        };
        let mut qp = QpContext::default();
        qp.rights.valid = true;
        qp.rights.transport = 0;
        qp.rights.page = 3;
        qp.rights.sq_psn = 0x123;
        let create = |state: QpState, qp: &QpContext| {
            let mut qp = *qp;
            qp.rights.state = state as u8;
            words(&qp.pack())
        };
        let status = |r: &CommandResponse| (r.status, r.sequence, r.phase);
        let ok = CommandStatus::Ok as u8;

        let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::QueryQp, 5));
        assert_eq!(status(&r), (CommandStatus::NotFound as u8, 0x77, true));
        let (r, puts) = command(
            &mut s,
            &mut n,
            entry(CommandOpcode::CreateQp, 5).with_data(&create(QpState::Reset, &qp)),
        );
        assert_eq!(status(&r), (ok, 0x77, true));
        assert_eq!(puts.len(), 16);
        assert_eq!(puts[1], (0, 5, 2, 0x123 << 32));
        assert_eq!((puts[14].2, puts[15].2), (15, 0), "what makes it valid is written last");
        let (r, _) = command(
            &mut s,
            &mut n,
            entry(CommandOpcode::CreateQp, 5).with_data(&create(QpState::Reset, &qp)),
        );
        assert_eq!(r.status, CommandStatus::InUse as u8);
        let (r, _) =
            command(&mut s, &mut n, entry(CommandOpcode::ModifyQp, 5).with_data(&create(QpState::Rts, &qp)));
        assert_eq!(status(&r), (CommandStatus::BadState as u8, 0x77, true));
        // fifth command: the second lap of a ring of four
        let (r, puts) = command(
            &mut s,
            &mut n,
            CommandEntry { word_mask: 0x000f, ..entry(CommandOpcode::ModifyQp, 5) }
                .with_data(&create(QpState::Init, &qp)),
        );
        assert_eq!(status(&r), (ok, 0x77, false));
        assert_eq!(puts.iter().map(|p| p.2).collect::<Vec<_>>(), [1, 2, 3, 0]);
        s.poke("query_epsn", 0xabc);
        s.poke("query_next_psn", 0xdef);
        let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::QueryQp, 5));
        assert_eq!(r.status, ok);
        assert_eq!(r.data()[0] & 0xf, QpState::Init as u64);
        assert_eq!(r.data()[2], 0xabc | 0xdef << 32);
        s.poke("query_halted", 1);
        let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::QueryQp, 5));
        assert_eq!(r.data()[0] & 0xf, QpState::Err as u64);
        let (r, puts) = command(&mut s, &mut n, entry(CommandOpcode::DestroyQp, 5));
        assert_eq!((r.status, puts), (ok, vec![(0, 5, 0, 0)]));
        let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::DestroyQp, 5));
        assert_eq!(r.status, CommandStatus::NotFound as u8);
        let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::CreateMr, mrs));
        assert_eq!(r.status, CommandStatus::BadIndex as u8);
        let (r, _) = command(&mut s, &mut n, CommandEntry { opcode: 200, ..Default::default() });
        assert_eq!(r.status, CommandStatus::BadOpcode as u8);
        let mut port = entry(CommandOpcode::SetPort, 0);
        port.w0 = 0x0200_0000_000a | 4200 << 48;
        assert_eq!(command(&mut s, &mut n, port).0.status, ok);
        assert_eq!((s.peek("port_mac"), s.peek("port_mtu")), (0x0200_0000_000a, 4200));
    }
}

#[test]
fn a_key_ends_between_the_words_of_commands_and_its_region_stays() {
    let mut s = commanded(Config::small());
    let mut n = 0;
    let region =
        MrEntry { valid: true, tag: 9, access: 0x83, pd: 4, va: 1, length: 2, iova: 3, ..MrEntry::default() };
    let mut words = [0; 16];
    for (word, bytes) in words.iter_mut().zip(region.pack().chunks(8)) {
        *word = u64::from_le_bytes(bytes.try_into().unwrap());
    }
    let entry = |opcode: CommandOpcode, index| CommandEntry {
        opcode: opcode as u8,
        index,
        word_mask: 0xf,
        ..Default::default()
    };
    let ok = CommandStatus::Ok as u8;
    for index in [6, 7] {
        let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::CreateMr, index).with_data(&words));
        assert_eq!(r.status, ok);
    }
    // idle: at once
    s.poke("invalidate_valid", 1);
    s.poke("invalidate", 6);
    assert_eq!(s.peek("invalidate_ready"), 1);
    let put = ["valid", "table", "index", "word", "data"].map(|f| s.peek(&format!("table_{f}")));
    assert_eq!(put, [1, 1, 6, 0, 0]);
    s.clock();
    s.poke("invalidate_valid", 0);
    assert_eq!(s.peek("table_valid"), 0);
    let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::QueryMr, 6));
    assert_eq!(
        (r.status, r.data()[0] & 1, r.data()[1], r.data()[3]),
        (ok, 0, 1, 3),
        "it is there, its key is not"
    );
    let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::QueryMr, 7));
    assert_eq!(r.data()[..16], words, "its four words, and nothing behind them");
    // while a command writes its words, not one of them is lost
    s.poke("invalidate_valid", 1);
    s.poke("invalidate", 7);
    let (r, puts) = command(&mut s, &mut n, entry(CommandOpcode::CreateMr, 8).with_data(&words));
    assert_eq!(r.status, ok);
    // and the word that makes its key valid is the last: no packet meets it beside the address of a region before
    let of_command: Vec<_> = puts.iter().filter(|p| p.1 == 8).map(|p| (p.2, p.3)).collect();
    assert_eq!(of_command, [1, 2, 3, 0].map(|w| (w as u64, words[w])));
    assert!(puts.contains(&(1, 7, 0, 0)) && puts.iter().all(|p| p.1 == 8 || *p == (1, 7, 0, 0)));
    s.poke("invalidate_valid", 0);
    // the driver gives the region back, and its number is free
    let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::CreateMr, 6).with_data(&words));
    assert_eq!(r.status, CommandStatus::InUse as u8);
    for opcode in [CommandOpcode::DestroyMr, CommandOpcode::CreateMr] {
        assert_eq!(command(&mut s, &mut n, entry(opcode, 6).with_data(&words)).0.status, ok);
    }
    let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::QueryMr, 6));
    assert_eq!(r.data()[..4], words[..4]);
}

#[test]
fn of_a_cq_only_its_moderation_can_be_modified() {
    let mut s = commanded(Config::small());
    let mut n = 0;
    let entry = |opcode: CommandOpcode, word_mask| CommandEntry {
        opcode: opcode as u8,
        index: 4,
        word_mask,
        ..Default::default()
    };
    let words = |w0, w1, w2| std::array::from_fn(|i| [w0, w1, w2].get(i).copied().unwrap_or(0xdead));
    let ok = CommandStatus::Ok as u8;
    let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::ModifyCq, 4).with_data(&words(0, 0, 7)));
    assert_eq!(r.status, CommandStatus::NotFound as u8);
    let (r, puts) =
        command(&mut s, &mut n, entry(CommandOpcode::CreateCq, 7).with_data(&words(0x11, 0x22, 0)));
    assert_eq!((r.status, puts), (ok, vec![(2, 4, 1, 0x22), (2, 4, 2, 0), (2, 4, 0, 0x11)]));
    for (mask, written) in [(4, vec![(2, 4, 2, 0x77)]), (7, vec![(2, 4, 2, 0x77)]), (3, vec![]), (0, vec![])]
    {
        let (r, puts) =
            command(&mut s, &mut n, entry(CommandOpcode::ModifyCq, mask).with_data(&words(1, 2, 0x77)));
        assert_eq!((r.status, puts), (ok, written), "mask {mask}");
    }
    let (r, _) = command(&mut s, &mut n, entry(CommandOpcode::QueryCq, 0));
    assert_eq!((r.status, &r.data()[..3]), (ok, &[0x11, 0x22, 0x77][..]));
    let (r, puts) = command(&mut s, &mut n, entry(CommandOpcode::DestroyCq, 0));
    assert_eq!((r.status, puts), (ok, vec![(2, 4, 0, 0)]));
}

#[test]
fn a_command_that_cannot_be_read_is_answered_as_internal_and_counted_and_the_next_one_is_executed() {
    let mut s = commanded(Config::small());
    let mut n = 0;
    let entry = CommandEntry {
        opcode: CommandOpcode::CreateEq as u8,
        index: 2,
        sequence: 5,
        word_mask: 3,
        ..Default::default()
    };
    // what an earlier command left behind must not be executed
    assert_eq!(command(&mut s, &mut n, entry).0.status, CommandStatus::Ok as u8);
    n += 1;
    s.poke("producer", n);
    until(&mut s, 40_000, "read", |s| s.peek("read_valid") == 1);
    s.poke("read_ready", 1);
    s.clock();
    s.poke("read_ready", 0);
    s.poke("read_done_valid", 1);
    s.poke("read_done_client", 3);
    s.poke("read_done_failed", 1);
    assert_eq!((s.peek("count_valid"), s.peek("count_index")), (1, Reject::CommandFetchFailed as u64));
    s.clock();
    s.poke("read_done_valid", 0);
    s.poke("read_done_failed", 0);
    let (mut bytes, mut counts) = (vec![], 0);
    while bytes.len() < 256 {
        counts += s.peek("count_valid");
        assert_eq!(s.peek("table_valid"), 0);
        if s.peek("write_valid") == 1 {
            bytes.extend(s.peek_bits("write_data").to_bytes());
        }
        s.clock();
    }
    s.clock();
    let response = CommandResponse::unpack(&bytes.try_into().unwrap());
    assert_eq!((response.status, response.data(), counts), (CommandStatus::Internal as u8, [0; 16], 0));
    let next = CommandEntry { opcode: CommandOpcode::DestroyEq as u8, ..entry };
    assert_eq!(command(&mut s, &mut n, next).0.status, CommandStatus::Ok as u8);
}

#[test]
fn a_qp_of_raw_frames_belongs_to_the_drivers_page_or_is_not_made() {
    for c in [Config::small(), Config::full()] {
        let mut s = commanded(c);
        let mut n = 0;
        let mut run = |opcode: CommandOpcode, mask: u16, transport: Transport, page: u16, state: QpState| {
            let mut qp = QpContext::default();
            qp.rights.valid = true;
            qp.rights.transport = transport as u8;
            qp.rights.page = page;
            qp.rights.state = state as u8;
            let entry =
                CommandEntry { opcode: opcode as u8, index: 5, word_mask: mask, ..Default::default() };
            let (r, puts) = command(&mut s, &mut n, entry.with_data(&qp.to_words()));
            (r.status, puts.len())
        };
        let (ok, bad) = (CommandStatus::Ok as u8, CommandStatus::BadParameter as u8);
        use CommandOpcode::{CreateQp, ModifyQp};
        use QpState::{Init, Reset};
        assert_eq!(run(CreateQp, 0xffff, Transport::Raw, 1, Reset), (bad, 0));
        assert_eq!(run(CreateQp, 0xffff, Transport::Raw, 0, Reset), (ok, 16));
        // nor is it handed on, nor made of another
        for mask in [0xf, 0x1] {
            assert_eq!(run(ModifyQp, mask, Transport::Raw, 63, Init), (bad, 0), "mask {mask:#x}");
        }
        assert_eq!(run(ModifyQp, 0xf, Transport::Rc, 3, Init), (ok, 4));
        assert_eq!(run(ModifyQp, 0xf, Transport::Raw, 3, Init), (bad, 0));
        assert_eq!(run(ModifyQp, 0xf, Transport::Raw, 0, Init), (ok, 4));
    }
}
