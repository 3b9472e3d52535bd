//! push: stores to the pages' push buffers in, WQEs for fetch out, so that one needs no read of host memory.
//!
//! ```text
//! PushStore > bytes of the page, map of the page (one bit per byte)          doorbell: map taken along, and cleared
//! PushRing  > job {page, QP, index, map} > Pushed, word by word > `over`, `whole` > fetch: present, or as if never pushed
//! ```
//! A WQE is `whole` if each of its bytes was stored exactly once since the last doorbell of the page, and its head names
//! the QP and index of the doorbell. How long it is its head says. A byte stored twice spoils the page until its next
//! doorbell: two who push by one page at a time do not mix. Whatever is missing, torn or late costs a read of the ring and
//! nothing else, since the driver writes the ring first.
//!
//! One job at a time; a pushed doorbell that comes while one is under way is an ordinary one.
//! While a job reads a page, stores to that page are thrown away, so they are incomplete when their doorbell comes:
//! simpler than a second buffer, and a program that rings again within a job's twenty clocks has its read instead.
//! What of a word is behind the WQE is what was stored there last, by the same page.
//! Nothing here waits for anything while stores or doorbells are taken: BAR writes never wait for host memory.
//!
//! Words are as wide as the card's beats. Throughput: a store or doorbell per clock. Latency: the first word 2 clocks after
//! the doorbell, at 512 bit 3, where its head must be seen first; then a word per clock.
//! Back-pressure: `word` and `wqe`, which hold the job alone. After reset the maps are cleared, one clock per page; until
//! then nothing is taken.
//!
//! Requirements: QUE

use crate::config::Config;
use crate::flow::{PushRing, PushStore, Pushed};
use contract::doorbell::PUSH_BYTES;
use contract::ring::{MAX_INLINE, SendWqeBits};
use hdl::{
    Bundle, Memory, Module, Ports, Sig, Stream, cat, delay_init, high, index_width, lit, low, mux, reg,
    reg_init, when,
};

/// Quadwords of a push buffer.
const QUADS: u32 = PUSH_BYTES / 8;
/// Bytes of a WQE's head.
const HEAD: u32 = 32;
/// Those that tell how long the WQE is.
const TELLING: u32 = 24;

/// The push buffers.
#[derive(Clone, Debug)]
pub struct Push(pub Config);

/// Ports of [`Push`].
#[derive(Ports)]
#[ports(Push)]
pub struct PushIo {
    /// Stores.
    #[input(c.0.clone())]
    pub store: PushStore,
    /// Doorbells.
    #[input(c.0.clone())]
    pub ring: PushRing,
    /// A job for fetch; taken when it is done with it.
    #[source(c.0.clone())]
    pub wqe: Stream<Pushed>,
    /// Its words (of `data_bytes`), the first first.
    #[source(c.0.data_bits())]
    pub word: Stream<Sig>,
    /// All of them have been taken, the last perhaps in this clock, and `whole` holds.
    #[output]
    pub over: Sig,
    /// They are the WQE.
    #[output]
    pub whole: Sig,
    /// No job.
    #[output]
    pub idle: Sig,
}

impl Module for Push {
    type Io = PushIo;
    fn name(&self) -> String {
        format!("push_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("Push buffers of {PUSH_BYTES} bytes for {} pages.", self.0.pages)
    }
    fn body(&self, io: &PushIo) {
        let c = &self.0;
        let lane_bits = c.lane_bits();
        let words_of_page = PUSH_BYTES / c.data_bytes;
        let word_bits = index_width(words_of_page);
        let busy = reg_init("busy", 1, 0);
        let page = reg("page", c.page_bits());
        let job = Pushed::regs(c, "job");

        // after reset no byte of any page is there
        let sweep = reg_init("sweep", c.page_bits() + 1, 0);
        let sweeping = !sweep.msb();
        when(sweeping, || sweep.set(sweep + 1));

        // the map of a page, and above it: a byte was stored twice
        let maps = Memory::new("maps", c.pages, PUSH_BYTES + 1).style("distributed");
        let touched = mux(io.ring.valid, io.ring.page, io.store.page);
        let map = maps.read_now("map", touched);
        let held = map.bits(0, PUSH_BYTES);
        let stores = (io.store.valid & !(busy & page.eq(io.store.page))).named("stores");
        let added = cat(&(0..QUADS)
            .rev()
            .map(|i| io.store.enables & io.store.word.eq(i).repeat(8))
            .collect::<Vec<_>>());
        let twice = map.msb() | (held & added).any();
        let clears = io.ring.valid | sweeping;
        maps.write(
            stores | clears,
            mux(sweeping, sweep.bits(0, c.page_bits()), touched),
            cat(&[twice, held | added]) & !clears.repeat(PUSH_BYTES + 1),
        );
        // while a job reads a page nothing is stored there
        let bytes =
            Memory::with_lanes("push_bytes", c.pages * words_of_page, c.data_bits(), 8).ignoring_collisions();
        let quads = c.data_bytes / 8;
        let row = io.store.word.bits(lane_bits - 3, word_bits);
        let here = |i: u32| if quads == 1 { high() } else { io.store.word.bits(0, lane_bits - 3).eq(i) };
        let lanes: Vec<Sig> = (0..quads).rev().map(|i| io.store.enables & here(i).repeat(8)).collect();
        bytes.write_lanes(stores, cat(&[io.store.page, row]), io.store.data.repeat(quads), cat(&lanes));

        // a job: its words from the first, and what the head says of them
        let free = (!busy & !sweeping).named("free");
        io.idle.set(!busy);
        let (next, taken) = (reg("next", word_bits + 1), reg("taken", word_bits + 1));
        let (there, left_map) = (reg_init("there", 1, 0), reg("left_map", PUSH_BYTES));
        let words_of_head = HEAD.div_ceil(c.data_bytes);
        let head_bits = c.data_bits().min(8 * HEAD);
        let head: Vec<Sig> = (0..words_of_head).map(|i| reg(&format!("head_{i}"), head_bits)).collect();
        let good = reg("good", 1);
        let wqe = SendWqeBits::unpack(cat(&head.iter().rev().copied().collect::<Vec<_>>()));
        let is_atomic = wqe.opcode.bit(2) & wqe.opcode.bits(0, 2).any();
        let listed = wqe.num_sge.extend(9) + is_atomic.extend(9);
        let size = mux(wqe.inline, wqe.length.bits(0, 9), cat(&[listed.bits(0, 5), lit(4, 0)])) + 32;
        let fits = mux(
            wqe.inline,
            wqe.length.le(u64::from(MAX_INLINE)),
            listed.le(u64::from((PUSH_BYTES - 32) / 16)),
        );
        let ends_at = size + u64::from(c.data_bytes - 1);
        let words = ends_at.bits(lane_bits, 9 - lane_bits).resize(word_bits + 1).named("words");
        let seen = reg("seen", word_bits + 1);
        let told = seen.ge(u64::from(TELLING.div_ceil(c.data_bytes))).named("told");
        let limit = mux(told & fits, words, u64::from(words_of_head)).named("limit");
        let moves = io.word.moves();
        let issue = (busy & next.lt(limit) & (!there | moves)).named("issue");
        let word = bytes.read("word_read", issue, cat(&[page, next.bits(0, word_bits)]));
        // the head is seen when it comes out of the memory; where one word holds all of it, before that is handed on
        when(delay_init("comes", issue), || {
            seen.set(seen + 1);
            for (i, word_of_head) in head.iter().enumerate() {
                when(seen.eq(i as u64), || word_of_head.set(word.bits(0, head_bits)));
            }
        });
        io.word.valid.set(busy & there & if words_of_head == 1 { told } else { high() });
        io.word.data.set(word);
        when(moves, || there.set(0));
        when(issue, || {
            there.set(1);
            next.set(next + 1);
        });
        let beyond = if words_of_head == 1 { told } else { taken.ge(u64::from(words_of_head)) };
        let last = beyond & (taken + 1).eq(words);
        let tail = size.bits(0, lane_bits);
        let below = (0..u64::from(c.data_bytes - 1)).rev().map(|i| tail.gt(i)).collect();
        let above = [vec![low()], below].concat();
        let wanted = cat(&above) | (!last | tail.none()).repeat(c.data_bytes);
        let covered = good & (wanted & !left_map.bits(0, c.data_bytes)).none();
        when(moves, || {
            taken.set(taken + 1);
            good.set(covered);
            left_map
                .set(cat(&[lit(c.data_bytes, 0), left_map.bits(c.data_bytes, PUSH_BYTES - c.data_bytes)]));
        });

        // what does not fit ends behind its head
        io.over.set(busy & beyond & (taken.eq(limit) | (moves & last & fits)));
        let names_qp = wqe.qpn.eq(job.qp.extend(24)) & wqe.index.eq(job.index);
        io.whole.set(mux(moves, covered, good) & fits & names_qp);
        io.wqe.valid.set(busy);
        io.wqe.data.assign(&job);
        when(io.wqe.moves(), || busy.set(0));
        // one that is spoilt, or whose head is not all there, is not worth the page's stores meanwhile
        let begins = held.bits(0, HEAD).all() & !map.msb() & free;
        when(io.ring.valid & io.ring.pushed & begins, || {
            busy.set(1);
            page.set(io.ring.page);
            job.qp.set(io.ring.qp);
            job.index.set(io.ring.index);
            next.set(0);
            taken.set(0);
            seen.set(0);
            there.set(0);
            left_map.set(held);
            good.set(1);
        });
    }
}
