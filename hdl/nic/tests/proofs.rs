//! The blocks on which contracts rest, proved: whatever comes in, in whatever order, for ever.
//!
//! ```text
//!   free inputs --> harness around the block: what it may never do (assert), what must be possible (cover)
//!                     \--> SystemVerilog --> ci/tools/prove (yosys, abc's property directed reachability)
//! ```
//! A harness keeps to the block's own rules of use and is otherwise as hostile as it can be. Data are running numbers:
//! the blocks look at none, so a queue that keeps those in order keeps everything in order.
//!
//! Requirements: CARD

use hdl::{
    Bundle, Module, PortBuilder, Ports, Sig, Stream, any_of, assert_always, cat, cover, delay, delay_init,
    elaborate, instance, lit, mux, reg, reg_init, when, wire,
};
use nic::flow::TlpBeat;
use nic::pcie::completion_room::{CompletionRoom, Owed, worst_case};
use nic::pcie::tags::{Settle, Tags};
use nic::pcie::transmit::Transmit;
use nic::prim::{
    async_fifo::AsyncFifo,
    block_fifo::BlockFifo,
    fifo::Fifo,
    merge::merge,
    pick::{from, lowest, one_hot, round_robin},
    sum::sum_is,
};
use nic::qp::{PSN, State, psn_before};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A harness: a name, free inputs, and what stands around the block.
#[derive(Clone, Copy, Debug)]
struct Proof {
    name: &'static str,
    inputs: &'static [(&'static str, u32)],
    around: fn(&[Sig]),
}

struct Inputs(Vec<Sig>);

impl Ports for Inputs {
    type Config = Proof;
    fn declare(c: &Proof, p: &mut PortBuilder) -> Self {
        Inputs(c.inputs.iter().map(|(name, width)| p.input(name, &(*width).into())).collect())
    }
}

impl Module for Proof {
    type Io = Inputs;
    fn name(&self) -> String {
        format!("proof_{}", self.name)
    }
    fn body(&self, io: &Inputs) {
        (self.around)(&io.0);
    }
}

/// The Python with yosys that `cargo ci` made, in the target folder or in one around it.
fn python() -> PathBuf {
    let here = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let found = here.ancestors().map(|a| a.join("venv/bin/python3")).find(|p| p.exists());
    found.expect("no venv with yosys in the target folder: run `cargo ci formal`, which makes it")
}

/// What `ci/tools/prove` says, and whether it is content.
fn try_to_prove(proof: &Proof, more: &[&str]) -> (bool, String) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join(format!("{}.sv", proof.name));
    let design = elaborate(proof).unwrap_or_else(|error| panic!("{error}"));
    std::fs::write(&file, design.verilog(hdl::Style::default())).unwrap();
    let mut tool = Command::new(python());
    tool.arg("-B").arg(root.join("ci/tools/prove")).args(more).arg(&file);
    let done = tool.output().expect("Python starts");
    (done.status.success(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
}

fn prove(proof: &Proof, more: &[&str]) {
    let (good, said) = try_to_prove(proof, more);
    assert!(good, "{}: {said}", proof.name);
    print!("{}: {said}", proof.name);
}

const RESET: [&str; 2] = ["--start", "reset=1,0"];

/// `input`, as it was in the first clock: any value, but one.
fn chosen(name: &str, input: Sig) -> Sig {
    let kept = reg(name, input.width());
    let started = reg_init(&format!("{name}_fixed"), 1, 0);
    started.set(1);
    when(!started, || kept.set(input));
    kept
}

/// What enters is numbered; what leaves must be the next number. Gives how many are inside.
fn numbered(input: &Stream<Sig>, output: &Stream<Sig>, offer: Sig, take: Sig) -> Sig {
    let width = input.data.width();
    let (sent, got) = (reg_init("sent", width, 0), reg_init("got", width, 0));
    input.valid.set(offer);
    input.data.set(sent);
    output.ready.set(take);
    when(input.moves(), || sent.set(sent + 1));
    when(output.moves(), || got.set(got + 1));
    assert_always("in_order", !output.valid | output.data.eq(got));
    cover("the_numbers_go_round", output.moves() & got.all());
    sent - got
}

const FIFO: Proof = Proof {
    name: "fifo",
    inputs: &[("offer", 1), ("take", 1)],
    around: |i| {
        let f = instance("fifo", &Fifo { depth: 4, width: 4 });
        let inside = numbered(&f.input, &f.output, i[0], i[1]);
        assert_always("level_is_what_is_inside", f.level.extend(4).eq(inside));
        assert_always("refuses_only_when_full", f.input.ready.eq(inside.lt(4)));
        assert_always("offers_unless_empty", f.output.valid.eq(inside.any()));
        let full = reg_init("was_full", 1, 0);
        when(inside.eq(4), || full.set(1));
        cover("full_and_empty_again", full & inside.none());
    },
};

#[test]
fn a_fifo_loses_doubles_and_reorders_nothing() {
    prove(&FIFO, &RESET);
}

#[test]
fn a_fifo_in_block_ram_loses_doubles_and_reorders_nothing() {
    let proof = Proof {
        name: "block_fifo",
        inputs: &[("offer", 1), ("take", 1)],
        around: |i| {
            let f = instance("fifo", &BlockFifo { depth: 4, width: 4 });
            let inside = numbered(&f.input, &f.output, i[0], i[1]);
            assert_always("refuses_only_when_full", f.input.ready.eq(inside.lt(4)));
            assert_always("offers_unless_empty", f.output.valid.eq(inside.any()));
            let full = reg_init("was_full", 1, 0);
            when(inside.eq(4), || full.set(1));
            cover("full_and_empty_again", full & inside.none());
        },
    };
    prove(&proof, &RESET);
}

#[test]
fn a_sum_is_compared_without_adding_it() {
    let proof = Proof {
        name: "sum",
        inputs: &[("a", 6), ("b", 6), ("c", 6)],
        around: |i| {
            let is = sum_is(i[0], i[1], i[2]);
            assert_always("as_an_addition_says", is.eq((i[0] + i[1]).eq(i[2])));
            cover("it_is", is & i[0].any() & i[1].any());
            cover("it_wraps_around", is & i[2].lt(i[0]));
        },
    };
    prove(&proof, &RESET);
}

#[test]
fn a_fifo_of_two_moves_a_word_in_every_clock() {
    let skid = Proof {
        name: "skid",
        inputs: &[("offer", 1), ("take", 1)],
        around: |i| {
            let f = instance("skid", &Fifo { depth: 2, width: 3 });
            let inside = numbered(&f.input, &f.output, i[0], i[1]);
            // the two words hold what is offered while the receiver's refusal is still on its way
            let flows = reg_init("flows", 3, 0);
            let both = f.input.moves() & f.output.moves();
            flows.set(mux(both, mux(flows.all(), flows, flows + 1), lit(3, 0)));
            assert_always("one_word_inside_is_enough", !inside.eq(1) | (f.input.ready & f.output.valid));
            cover("seven_clocks_without_a_gap", flows.all());
        },
    };
    prove(&skid, &RESET);
}

#[test]
fn a_fifo_between_two_clocks_of_any_ratio_loses_doubles_and_reorders_nothing() {
    let proof = Proof {
        name: "async_fifo",
        inputs: &[
            ("write_clock", 1),
            ("write_reset", 1),
            ("read_clock", 1),
            ("read_reset", 1),
            ("offer", 1),
            ("take", 1),
        ],
        around: |i| {
            let f = instance("fifo", &AsyncFifo { depth: 4, width: 4 });
            f.write_clock.set(i[0]);
            f.write_reset.set(i[1]);
            f.read_clock.set(i[2]);
            f.read_reset.set(i[3]);
            hdl::Domain::new(i[0], Some(i[1])).within(|| {
                let sent = reg_init("sent", 4, 0);
                f.input.valid.set(i[4]);
                f.input.data.set(sent);
                when(f.input.moves(), || sent.set(sent + 1));
                cover("full", !f.input.ready);
            });
            hdl::Domain::new(i[2], Some(i[3])).within(|| {
                let got = reg_init("got", 4, 0);
                f.output.ready.set(i[5]);
                when(f.output.moves(), || got.set(got + 1));
                assert_always("in_order", !f.output.valid | f.output.data.eq(got));
                assert_always("level_within_depth", f.level.le(4));
                cover("six_came_through", got.eq(6));
            });
        },
    };
    let start = "1,1,1,1,1,1,0";
    let (w, r) = (format!("write_reset={start}"), format!("read_reset={start}"));
    let clocks = ["write_clock=0,1,0,1,0,1'bz", "read_clock=0,1,0,1,0,1'bz"];
    let more = [
        "--two-clocks",
        "--depth",
        "60",
        "--start",
        &w,
        "--start",
        &r,
        "--start",
        clocks[0],
        "--start",
        clocks[1],
    ];
    prove(&proof, &more);
}

#[test]
fn an_arbiter_is_fair_and_keeps_every_stream_in_order() {
    let proof = Proof {
        name: "merge",
        inputs: &[("offers", 3), ("take", 1)],
        around: |i| {
            let shape = 4.into();
            let streams: Vec<Stream<Sig>> = (0..3)
                .map(|n| {
                    let (offered, number) =
                        (reg_init(&format!("offered_{n}"), 1, 0), reg_init(&format!("number_{n}"), 2, 0));
                    let ready = wire(&format!("ready_{n}"), 1);
                    let moves = offered & ready;
                    offered.set((offered & !moves) | (!offered & i[0].bit(n)));
                    when(moves, || number.set(number + 1));
                    Stream { valid: offered, ready, data: cat(&[lit(2, u64::from(n)), number]) }
                })
                .collect();
            let out = merge("merged", &shape, &streams.iter().collect::<Vec<_>>());
            out.ready.set(i[1]);
            let waits = delay_init("waits", out.valid & !out.ready);
            let before = delay("data_before", out.data);
            assert_always("an_offer_stays", !waits | (out.valid & out.data.eq(before)));
            assert_always(
                "what_is_there_is_offered",
                out.valid.eq(any_of(&streams.iter().map(|s| s.valid).collect::<Vec<_>>())),
            );
            let source = out.data.bits(2, 2);
            for (n, s) in streams.iter().enumerate() {
                let came = out.moves() & source.eq(n);
                let got = reg_init(&format!("got_{n}"), 2, 0);
                when(came, || got.set(got + 1));
                assert_always(&format!("moves_when_it_leaves_{n}"), came.eq(s.moves()));
                assert_always(&format!("in_order_{n}"), !came | out.data.bits(0, 2).eq(got));
                let overtaken = reg_init(&format!("overtaken_{n}"), 2, 0);
                when(s.moves(), || overtaken.set(0))
                    .elif(s.valid & out.moves(), || overtaken.set(overtaken + 1));
                assert_always(&format!("overtaken_at_most_once_by_each_{n}"), overtaken.le(2));
                cover(&format!("overtaken_twice_{n}"), overtaken.eq(2));
            }
        },
    };
    prove(&proof, &RESET);
}

#[test]
fn a_tlp_begins_with_its_credit_is_never_cut_and_a_read_goes_past_a_write_that_has_none() {
    let proof = Proof {
        name: "transmit",
        inputs: &[
            ("offers", 2),
            ("lasts", 2),
            ("take", 1),
            ("posted_ok", 1),
            ("nonposted_ok", 1),
            ("bus_master", 1),
        ],
        around: |i| {
            let c = nic::Config::small();
            let t = instance("transmit", &Transmit(c.clone()));
            let (posted_ok, nonposted_ok, bus_master) = (i[3], i[4], i[5]);
            t.rq.ready.set(i[2]);
            t.posted_ok.set(posted_ok);
            t.nonposted_ok.set(nonposted_ok);
            t.bus_master.set(bus_master);
            // an engine keeps what it offers until it is taken; the header says whose it is
            for (n, engine) in [&t.write, &t.read].into_iter().enumerate() {
                let offered = reg_init(&format!("offered_{n}"), 1, 0);
                let last = reg(&format!("last_{n}"), 1);
                let header = lit(64, n as u64).extend(128);
                engine.valid.set(offered);
                engine.data.assign(&TlpBeat { header, data: lit(c.data_bits(), 0), first: lit(1, 0), last });
                when(!offered | engine.ready, || {
                    offered.set(i[0].bit(n as u32));
                    last.set(i[1].bit(n as u32));
                });
            }
            let (write, read) = (t.write.valid, t.read.valid);
            let is_read = t.rq.data.header.bit(0);
            let ends = |s: &Stream<TlpBeat>| s.moves() & s.data.last;
            let (write_ends, read_ends) = (ends(&t.write), ends(&t.read));
            // from the first offer of a TLP to the end of its last beat, on the link or swallowed
            let (open, of_read, swallowed) =
                (reg_init("under_way", 1, 0), reg("of_read", 1), reg("swallowed", 1));
            let (last_read, was_last) = (reg_init("last_was_read", 1, 0), write_ends | read_ends);
            when(t.rq.valid | t.write.moves() | t.read.moves(), || open.set(!was_last));
            when(!open, || {
                of_read.set(mux(t.rq.valid, is_read, t.read.moves()));
                swallowed.set(!t.rq.valid);
            });
            when(was_last, || last_read.set(read_ends));
            let begins = t.rq.valid & !open;
            let lost = !t.rq.valid & (t.write.moves() | t.read.moves());
            assert_always(
                "begins_with_its_credit",
                !begins | (bus_master & mux(is_read, nonposted_ok, posted_ok)),
            );
            assert_always("is_not_cut", !(open & t.rq.valid) | (is_read.eq(of_read) & !swallowed));
            assert_always("none_enters_another", !(open & t.read.moves() & !of_read));
            assert_always("nor_the_reverse", !(open & t.write.moves() & of_read));
            assert_always("lost_only_without_bus_master", !lost | mux(open, swallowed, !bus_master));
            let waits = delay_init("waits", t.rq.valid & !t.rq.ready);
            assert_always("an_offer_stays", !waits | (t.rq.valid & is_read.eq(delay("was_read", is_read))));
            let may_read = read & nonposted_ok & bus_master;
            let may_write = write & posted_ok & bus_master;
            assert_always("a_read_goes_past_a_write", open | !may_read | may_write | (begins & is_read));
            assert_always("they_take_turns", !(begins & may_read & may_write) | (is_read ^ last_read));
            cover("past_a_write_without_credit", begins & is_read & write & !posted_ok);
            cover("a_read_behind_a_write", begins & is_read & may_write & !last_read);
            cover("two_beats_are_swallowed", open & swallowed & was_last);
        },
    };
    prove(&proof, &RESET);
}

#[test]
fn the_next_in_turn_is_the_nearest_that_asks() {
    let proof = Proof {
        name: "pick",
        inputs: &[("requests", 8), ("last", 3)],
        around: |i| {
            let (requests, last) = (i[0], i[1]);
            let first = lowest(requests);
            let below = !from(8, first);
            assert_always("the_lowest_asks", requests.none() | requests.bit_at(first));
            assert_always("none_below_it_asks", (requests & below).none());
            let next = round_robin(requests, last);
            let distance = |to: Sig| to - last - 1;
            assert_always("the_next_asks", requests.none() | requests.bit_at(next));
            for n in 0..8 {
                let nearer = distance(lit(3, n)).lt(distance(next));
                assert_always(&format!("none_is_nearer_{n}"), !(requests.bit(n as u32) & nearer));
            }
            assert_always(
                "one_hot_is_one",
                one_hot(8, last, requests.bit(0)).eq(requests.bit(0).extend(8) << last),
            );
            cover("the_turn_goes_round", next.lt(last) & requests.any());
        },
    };
    prove(&proof, &RESET);
}

#[test]
fn psns_are_ordered_within_half_of_their_space_and_around_its_end() {
    let proof = Proof {
        name: "psn",
        inputs: &[("psn", PSN), ("ahead", PSN), ("further", PSN)],
        around: |i| {
            let (a, ahead, further) = (i[0], i[1], i[2]);
            let (b, c) = (a + ahead, a + ahead + further);
            let half = 1 << (PSN - 1);
            assert_always("before_is_up_to_half_ahead", psn_before(a, b).eq(ahead.any() & ahead.le(half)));
            let window = ahead.lt(half / 2) & further.lt(half / 2);
            let chain = psn_before(a, b) & psn_before(b, c);
            assert_always("order_holds_across_a_window", !(window & chain) | psn_before(a, c));
            assert_always("not_before_each_other", !(window & psn_before(a, c) & psn_before(c, a)));
            cover("around_the_end", psn_before(a, b) & a.gt(b));
        },
    };
    prove(&proof, &RESET);
}

#[test]
fn a_stage_sees_the_state_that_the_last_packet_of_its_qp_left() {
    let proof = Proof {
        name: "state",
        inputs: &[("write", 1), ("write_qp", 2), ("word", 2), ("read_qp", 2), ("of_qp", 2)],
        around: |i| {
            let s = instance("state", &State { word: "proved", depth: 4, width: 2, readers: 1 });
            s.write.enable.set(i[0]);
            s.write.address.set(i[1]);
            s.write.data.set(i[2]);
            s.address[0].set(i[3]);
            let qp = chosen("qp", i[4]);
            let started = delay_init("started", delay_init("starts", hdl::high()));
            let (known, last) = (reg_init("known", 1, 0), reg("last", 2));
            let writes = i[0] & i[1].eq(qp) & started;
            when(writes, || {
                known.set(1);
                last.set(i[2]);
            });
            let asked = delay_init("asked", started & i[3].eq(qp) & (known | writes));
            // `last` is by now the word that was written last, in the clock of the address at the latest, or one newer
            let due = delay("due", mux(writes, i[2], last));
            assert_always("the_word_written_last", !asked | s.word[0].eq(due));
            cover("forwarded", asked & delay("wrote", writes) & delay("was_known", known));
            cover("from_memory", asked & !delay("did_not_write", writes));
        },
    };
    prove(&proof, &RESET);
}

/// Clocks of a short timeout, longer than the way from a look to its verdict (3), so that an expiry by an old deadline is
/// seen to be early; and how late its end may be noticed here: the scan looks at each tag every 8 clocks, and longer when an
/// expiry of the other waits for an answer of four beats.
const TIMEOUT: u64 = 5;
const NOTICED: u64 = 18;

#[test]
fn a_tag_is_never_handed_out_while_it_may_be_answered() {
    let proof = Proof {
        name: "tags",
        inputs: &[
            ("take", 1),
            ("answer", 1),
            ("answer_tag", 1),
            ("frees", 1),
            ("strays", 1),
            ("beats", 2),
            ("of_tag", 1),
        ],
        around: |i| {
            let time = 6;
            let t = instance("tags", &Tags { tags: 2, time });
            let now = reg("now", time);
            now.set(now + 1);
            t.now.set(now);
            t.extended.set(1);
            t.flr.set(0);
            t.timeout.set(TIMEOUT);
            t.patient.set(0);
            let take = (i[0] & t.ready).named("takes");
            t.take.set(take);

            // the engine's two stages: a word about a tag enters, and is judged a clock later by what was true then;
            // answers have up to four beats, and the second of two words about one tag waits
            let (judged, judged_expiry) = (reg_init("judged", 1, 0), reg_init("judged_expiry", 1, 0));
            let (judged_tag, was_live, was_aging) =
                (reg("judged_tag", 1), reg("was_live", 1), reg("was_aging", 1));
            let (more, more_tag) = (reg_init("more_beats", 2, 0), reg("more_beats_tag", 1));
            let within = more.any();
            let side_by_side = |tag: Sig| judged & judged_tag.eq(tag);
            let expiry = &t.expiry;
            let take_expiry = expiry.valid & !within & !side_by_side(expiry.data.tag);
            expiry.ready.set(take_expiry);
            let answer = i[1] & !within & !expiry.valid & !side_by_side(i[2]);
            judged.set(take_expiry | answer);
            judged_expiry.set(take_expiry);
            let tag = mux(take_expiry, expiry.data.tag, i[2]);
            judged_tag.set(tag);
            was_live.set(t.live.bit_at(tag));
            was_aging.set(t.aging.bit_at(tag));
            more.set(mux(answer, i[5], mux(within, more - 1, lit(2, 0))));
            when(answer, || more_tag.set(i[2]));
            t.passing.set(within);
            t.passing_tag.set(more_tag);
            let settles = judged & !judged_expiry & was_live;
            let expired = judged & judged_expiry & was_live;
            let released = judged & judged_expiry & was_aging & expiry.data.aged;
            let strays = (settles & i[4] & !i[3]) | expired;
            let frees = (settles & i[3]) | released;
            t.settle.assign(&Settle { tag: judged_tag, frees, strays, expiry: judged & judged_expiry });

            // one tag, whichever: may it be answered, and since when is its answer late
            let which = chosen("which", i[6]);
            let mine = |tag: Sig, enable: Sig| enable & tag.eq(which);
            let (owed, was_late) = (reg_init("owed", 1, 0), reg_init("was_late", 1, 0));
            let passes = reg_init("passes", 1, 0);
            let due = reg("due", time);
            let takes = mine(t.tag, take);
            when(takes, || {
                owed.set(1);
                due.set(now + TIMEOUT);
            });
            when(mine(judged_tag, settles & i[3]), || {
                owed.set(0);
                was_late.set(0);
                passes.set(within);
            });
            when(mine(judged_tag, released), || {
                owed.set(0);
                was_late.set(1);
            });
            when(!within, || passes.set(0));
            let late = now - due;
            let not_yet = late.msb();
            assert_always("not_while_owed", !takes | !owed);
            assert_always("not_while_its_answer_passes", !takes | !(passes & within));
            assert_always("late_not_before_the_deadline", !mine(judged_tag, expired) | !not_yet);
            let whole = !not_yet & late.ge(TIMEOUT);
            assert_always("quarantine_is_a_whole_timeout", !mine(judged_tag, released) | whole);
            let in_time = |limit: u64| not_yet | late.lt(limit);
            assert_always("noticed_in_time", !t.live.bit_at(which) | in_time(NOTICED));
            assert_always("freed_in_time", !t.aging.bit_at(which) | in_time(30));
            cover("late_and_used_again", takes & was_late);
            cover("answered_and_used_again", takes & !was_late & due.ne(now));
            cover("an_answer_in_quarantine", judged & !judged_expiry & was_aging & mine(judged_tag, judged));
        },
    };
    let bounded =
        ["late_not_before_the_deadline", "quarantine_is_a_whole_timeout", "noticed_in_time", "freed_in_time"];
    let more: Vec<&str> = bounded.iter().flat_map(|name| ["--bounded", name]).chain(RESET).collect();
    prove(&proof, &[&more[..], &["--depth", "36"]].concat());
}

#[test]
fn a_completion_never_needs_more_than_what_is_set_aside_for_it() {
    let proof = Proof {
        name: "worst_case",
        inputs: &[("iova", 7), ("bytes", 13), ("brought", 13), ("rcb_128", 1)],
        around: |i| {
            let owed = Owed { iova: i[0], bytes: i[1] };
            let fits = i[2].any() & i[2].le(owed.bytes) & owed.bytes.le(4096);
            let rest = Owed { iova: i[0] + i[2].bits(0, 7), bytes: i[1] - i[2] };
            let (before, after) = (worst_case(&owed, i[3]), worst_case(&rest, i[3]));
            // a completion ends at a boundary or with its read (PCIe base 2.3.1.1): then its header has come back
            let to_boundary = mux(i[3], rest.iova.none(), rest.iova.bits(0, 6).none());
            let ends = rest.bytes.none() | to_boundary;
            assert_always("headers_never_grow", !fits | before.0.ge(after.0));
            assert_always("data_never_grow", !fits | before.1.ge(after.1));
            assert_always("its_header_comes_back", !(fits & ends) | before.0.gt(after.0));
            let units = before.1 - after.1;
            let bytes = cat(&[units, lit(4, 0)]).extend(18);
            // a data unit shared with the bytes behind it is set aside for those
            assert_always("its_data_come_back", !(fits & ends) | (bytes + 15).ge(i[2].extend(18)));
            assert_always(
                "nothing_owed_needs_nothing",
                owed.bytes.any() | (before.0.none() & before.1.none()),
            );
            cover("within_a_boundary", fits & !ends & before.0.eq(after.0));
            cover("a_whole_page", fits & i[2].eq(4096));
        },
    };
    prove(&proof, &RESET);
}

#[test]
fn room_that_a_read_takes_comes_back_whole() {
    let proof = Proof {
        name: "completion_room",
        inputs: &[("iova", 4), ("piece", 4), ("want", 1), ("come", 1), ("brought", 4), ("rcb_128", 1)],
        around: |i| {
            let (cplh, cpld) = (4, 10);
            let r = instance("room", &CompletionRoom { cplh, cpld });
            // in steps of 8 bytes: half a data unit, so that everything that is rounded is rounded
            let eights = |x: Sig, width: u32| cat(&[x, lit(3, 0)]).extend(width);
            let announced = reg_init("announced", 1, 0);
            let piece = Owed { iova: eights(i[0], 7), bytes: eights(i[1], 13) };
            let (next, owed) = (Owed::regs(&(), "next"), Owed::regs_zero(&(), "owed"));
            let fire = announced & r.ok & owed.bytes.none();
            let announce = !announced & i[2] & i[1].any();
            announced.set((announced & !fire) | announce);
            r.announce.set(announce);
            r.piece.assign(&piece);
            r.fire.set(fire);
            when(announce, || next.assign(&piece));
            let brings = i[3] & i[4].any() & eights(i[4], 13).le(owed.bytes);
            let after = Owed { iova: owed.iova + eights(i[4], 7), bytes: owed.bytes - eights(i[4], 13) };
            r.back.set(brings);
            r.before.assign(&owed);
            r.after.assign(&after);
            when(brings, || owed.assign(&after));
            when(fire, || owed.assign(&next));
            r.rcb_128.set(i[5]);
            r.busy.set(any_of(&[announced, announce, owed.bytes.any()]));
            let away = announced | owed.bytes.any();
            let rests = delay_init("rests", delay_init("rested", delay_init("idle", !away & !announce)));
            let whole = r.headers.eq(u64::from(cplh)) & r.data.eq(u64::from(cpld));
            assert_always("all_of_it", !(rests & !away) | whole);
            cover("refused", announced & owed.bytes.none() & !r.ok);
            cover("taken_and_back", rests & whole & next.bytes.any());
        },
    };
    prove(
        &proof,
        &[
            "--depth",
            "14",
            "--bounded",
            "room_is_within_the_buffer",
            "--bounded",
            "all_room_comes_back",
            "--bounded",
            "all_of_it",
            "--start",
            "reset=1,0",
        ],
    );
}

#[test]
fn a_claim_that_does_not_hold_is_named_and_so_is_a_cover_out_of_reach() {
    let counter: fn(&[Sig]) = |i| {
        let n = reg_init("n", 3, 0);
        when(i[0] & n.lt(5), || n.set(n + 1));
        assert_always("up_to_five", n.le(5));
        assert_always("up_to_four", n.le(4));
        cover("five", n.eq(5));
        cover("six", n.eq(6));
    };
    let proof = Proof { name: "false", inputs: &[("go", 1)], around: counter };
    let (good, said) = try_to_prove(&proof, &RESET);
    assert!(!good);
    let named: Vec<&str> =
        said.lines().filter(|l| l.contains(": ")).filter(|l| !l.contains("miter")).collect();
    assert!(said.contains("broken: up_to_four") && said.contains("not reached: six"), "{said}");
    assert!(!said.contains("up_to_five") && !said.contains(": five"), "{named:?}");
}
