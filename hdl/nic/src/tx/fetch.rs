//! fetch: a turn in, the WQE under the QP's cursor out, read ahead from host memory.
//!
//! ```text
//!         clock 0 addresses   1 words, tags here   2 compare tags   3.. reads, one per clock
//! Turn ----------------------------------------------------\------> WorkItem
//!                                                           \-----> ReadRequest (client Fetch)
//! ReadDone -> FIFO -> tag of the slot -> wake
//! Pushed, its words ---> the slot under the cursor, tag
//! ```
//! Each QP has a window of `wqe_slots` slots of `wqe_bytes` on chip (one of its own, or if there are more QPs than windows one
//! that it gets when it has something to send, see `wqe_windows`), as many of them filled as the stride has; WQE i lies in slot i
//! modulo the slots, under a tag {state, index}. A WQE's first quarter is read whole, what is behind it (inline data, or
//! SGEs from the fifth on) by words. A turn looks at the cursor (segment's; acknowledge's triple while a rewind is not yet
//! obeyed): if that WQE is on chip the `WorkItem` carries it, else it says `present` = 0 (a response may still be owed) and
//! the WQE is read. The WQEs behind it, as far as posted and as far as there are slots, are read ahead in the same turn.
//! The end of a read wakes the QP in the clock in which fetch turns to it: the turn finds it done.
//!
//! WQEs of 64 bytes are read by groups of `wqe_batch`, aligned ones, as far as they are wanted: one read, one end. The slots
//! of the cursor's group that are behind it wait until it has left the group, so that they make one read. The group before
//! it stays, too, while the oldest unanswered WQE lies in it: a rewind finds it here, and need not read it again.
//!
//! A pushed WQE takes the place of its read: it is written to its slot if it is the WQE under the cursor and neither here
//! nor being read. If it then turns out not to be whole the slot is empty. It goes before turns, so the one that its
//! doorbell woke finds the WQE, or reads it. It waits while segment has a turn of its QP, which may hold the slot.
//!
//! segment takes inline data and further SGEs out by `inline_index` while the `WorkItem` stands. What is in a slot under
//! the cursor stays until the turn's end: its read is over, and only another turn of the same QP asks for a read into it.
//!
//! Promises: never two reads pending into one slot; at most `wqe_reads` reads pending; no read for a QP that is
//! neither RTS nor SQD, so after the fence and the change of state host memory is left alone; a WQE whose QP was reset
//! while its read was pending is thrown away on arrival. A failed read is delivered as such (`failed`) and not tried again
//! until the QP is reset. The fence token waits until no read is pending and no pushed WQE waits, then passes.
//!
//! Throughput: a turn per 3 clocks, and one more for each read that it asks for; the end of a read costs 2 clocks, an
//! initialisation 3, a pushed WQE 3 that is refused, else 3 and one per word; after reset the
//! tags are cleared first, one clock per QP. Latency of a hit: 3 clocks. Back-pressure: `work` and `request`; a WQE under
//! the cursor waits for room in `request`, reading ahead does not. At the limit of pending reads the turn ends and its QP
//! is woken to try again.
//!
//! Requirements: CMD ERR QPS QUE REQ

use crate::config::Config;
use crate::flow::{
    Mark, Pushed, READ_ADDRESS, ReadClient, ReadData, ReadDone, ReadRequest, Turn, WakePulse, WorkItem,
};
use crate::prim::fifo::{Fifo, buffer};
use crate::prim::pick::one_hot;
use crate::qp::{INDEX, Initialise, Requester, Tx};
use crate::tx::wqe_windows::WqeWindows;
use contract::context::{QpQueuesBits, QpRightsBits};
use contract::doorbell::PUSH_BYTES;
use contract::ring::SEND_FETCH_BYTES;
use contract::{QpState, TraceEvent};
use hdl::{
    Bundle, Memory, Module, Ports, Sig, Stream, any_of, cat, delay, high, index_width, instance, lit, low,
    mux, reg, reg_init, select, when,
};

/// State of a slot, in its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    /// Nothing.
    Empty = 0,
    /// A read is pending.
    Pending = 1,
    /// The WQE of the tag's index.
    Present = 2,
    /// Its read failed.
    Failed = 3,
    /// A read is pending whose QP was reset.
    Doomed = 4,
}
const SLOT_STATE: u32 = 3;
/// log2 of the bytes of a WQE that is read in groups.
const GROUPED: u32 = 6;

/// A [`WorkItem`] without the WQE.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
struct Known {
    #[shape(c.qp_bits())]
    qp: Sig,
    fence: Sig,
    present: Sig,
    failed: Sig,
    #[shape(INDEX)]
    producer: Sig,
}

/// What the phases work on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Job {
    Turn = 0,
    Done = 1,
    Initialise = 2,
    Push = 3,
}

/// The fetch stage.
#[derive(Clone, Debug)]
pub struct Fetch(pub Config);

/// Ports of [`Fetch`].
#[derive(Ports)]
#[ports(Fetch)]
pub struct FetchIo {
    /// Turns.
    #[sink(c.0.clone())]
    pub turn: Stream<Turn>,
    /// Forgets the WQEs of a QP (`reset`).
    #[sink(c.0.clone())]
    pub initialise: Stream<Initialise>,
    /// QP whose words are wanted in the next clock.
    #[output(c.0.qp_bits())]
    pub read_qp: Sig,
    /// `tx` of that QP.
    #[input(Tx::total_width(&()))]
    pub tx_word: Sig,
    /// `requester` of that QP.
    #[input(Requester::total_width(&()))]
    pub requester_word: Sig,
    /// Producer of that QP's send queue.
    #[input(INDEX)]
    pub post_sq_word: Sig,
    /// Rights line of that QP.
    #[input(256)]
    pub rights_word: Sig,
    /// Queues line of that QP.
    #[input(256)]
    pub queues_word: Sig,
    /// A pushed WQE; taken when it is in its slot, or refused.
    #[sink(c.0.clone())]
    pub pushed: Stream<Pushed>,
    /// Its words.
    #[sink(c.0.data_bits())]
    pub pushed_word: Stream<Sig>,
    /// All of them have been taken, the last perhaps in this clock, and `pushed_whole` holds.
    #[input]
    pub pushed_over: Sig,
    /// They are the WQE.
    #[input]
    pub pushed_whole: Sig,
    /// To segment.
    #[source(c.0.clone())]
    pub work: Stream<WorkItem>,
    /// Word (of `data_bytes`) of the WQE in `work` that is wanted in the next clock.
    #[input(index_width(c.0.wqe_bytes / c.0.data_bytes))]
    pub inline_index: Sig,
    /// It.
    #[output(c.0.data_bits())]
    pub inline_word: Sig,
    /// Reads of WQEs. Address: QP, slot, byte. Id: QP, slot.
    #[source]
    pub request: Stream<ReadRequest>,
    /// Data of all clients.
    #[input(c.0.clone())]
    pub read_data: ReadData,
    /// Ends of reads of all clients.
    #[input]
    pub read_done: ReadDone,
    /// Whose read of WQEs ends in this clock, for trace.
    #[output(c.0.qp_bits())]
    pub ended_qp: Sig,
    /// A WQE arrived.
    #[output(c.0.clone())]
    pub wake: WakePulse,
    /// Pulse: a WQE read was requested.
    #[output]
    pub fetched: Sig,
    /// Such a read, for trace.
    #[output(c.0.clone())]
    pub trace: Mark,
    /// Pulse: a turn waits for segment or for room in `request`.
    #[output]
    pub stall: Sig,
    /// Nothing inside, no read pending.
    #[output]
    pub idle: Sig,
}

impl Module for Fetch {
    type Io = FetchIo;
    fn name(&self) -> String {
        format!("fetch_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("Turns to WQEs: {} slots of {} bytes per QP, read ahead.", self.0.wqe_slots, self.0.wqe_bytes)
    }
    fn body(&self, io: &FetchIo) {
        let c = &self.0;
        let (slots, group, most_reads) = (c.wqe_slots, c.wqe_batch, c.wqe_reads);
        let (slot_bits, byte_bits) = (index_width(slots), index_width(c.wqe_bytes));
        let batches = group > 1;
        let state = |s: Slot| lit(SLOT_STATE, s as u64);
        // what has a row per QP has one per window
        let (windows, window_bits) = (c.wqe_windows, index_width(c.wqe_windows));
        let shared = (windows < c.qps).then(|| instance("windows", &WqeWindows(c.clone())));

        // one bit tells groups, whose slots are 64 bytes apart
        let address_bits = window_bits + slot_bits + byte_bits;
        assert!(address_bits + u32::from(batches) <= READ_ADDRESS, "WQE memory exceeds addresses");
        assert!(window_bits + slot_bits <= crate::flow::READ_ID, "WQE slots exceed read ids");

        // the WQE memory, written by lanes: first quarters are read whole; second and third, in which WQEs end, by words
        let beats = c.item_bytes() / c.data_bytes;
        // and none is written while it is present
        let of = |name, depth, bits| c.large(Memory::with_lanes(name, depth, bits, 8).ignoring_collisions());
        let memory = of("wqes", windows * slots, c.item_bytes() * 8);
        let tails = of("wqe_tails", windows * slots * 2 * beats, c.data_bits());
        let arriving = io.read_data.valid & io.read_data.client.eq(ReadClient::Fetch as u64);
        let beat_bits = byte_bits - 2 - c.lane_bits();
        let arrives_at = io.read_data.address;
        let beat = arrives_at.bits(c.lane_bits(), beat_bits);
        let quarter = arrives_at.bits(byte_bits - 2, 2);
        let row = arrives_at.bits(byte_bits, memory.address_width());
        let (beat, quarter, row) = if batches {
            let grouped = arrives_at.bit(address_bits);
            let within = arrives_at.bits(0, GROUPED).extend(byte_bits).bits(c.lane_bits(), beat_bits);
            (
                mux(grouped, within, beat),
                mux(grouped, lit(2, 0), quarter),
                mux(grouped, arrives_at.bits(GROUPED, memory.address_width()), row),
            )
        } else {
            (beat, quarter, row)
        };
        // what is pushed comes in the clocks without read data
        let (phase, job) = (reg_init("phase", 2, 0), reg_init("job", 2, Job::Turn as u64));
        let (qp, cursor) = (reg("qp", c.qp_bits()), reg("cursor", INDEX));
        let window = if shared.is_some() { reg("window", window_bits) } else { qp };
        let cursor_slot = cursor.bits(0, slot_bits);
        let copying = (phase.eq(3) & job.eq(Job::Push as u64)).named("copying");
        let pushed_at = reg("pushed_at", index_width(PUSH_BYTES / c.data_bytes));
        io.pushed_word.ready.set(copying & !arriving);
        when(phase.none(), || pushed_at.set(0)).elif(io.pushed_word.moves(), || pushed_at.set(pushed_at + 1));
        let at = cat(&[pushed_at, lit(c.lane_bits(), 0)]).extend(byte_bits);
        let beat = mux(arriving, beat, at.bits(c.lane_bits(), beat_bits));
        let quarter = mux(arriving, quarter, at.bits(byte_bits - 2, 2)).named("quarter_written");
        let row = mux(arriving, row, cat(&[window, cursor_slot]));
        let lanes = io.read_data.lanes | (!arriving).repeat(c.data_bytes);
        let data = mux(arriving, io.read_data.data, io.pushed_word.data);
        let writes = arriving | io.pushed_word.moves();
        let spread: Vec<Sig> = (0..beats).rev().map(|b| lanes & beat.eq(b).repeat(c.data_bytes)).collect();
        memory.write_lanes(writes & quarter.none(), row, data.repeat(beats), cat(&spread));
        tails.write_lanes(writes & quarter.any(), cat(&[row, quarter.bit(1), beat]), data, lanes);

        // ends of reads wait here: no more than reads pending
        let id_bits = window_bits + slot_bits;
        let ended = instance("ended", &Fifo { depth: most_reads, width: id_bits + 1 });
        ended.input.valid.set(io.read_done.valid & io.read_done.client.eq(ReadClient::Fetch as u64));
        ended.input.data.set(cat(&[io.read_done.failed, io.read_done.id.bits(0, id_bits)]));
        let done_failed = ended.output.data.msb();
        let done_window = ended.output.data.bits(slot_bits, window_bits);
        let done_qp = shared.as_ref().map_or(done_window, |w| w.owner);
        let done_slot = ended.output.data.bits(0, slot_bits);

        let request = Stream::<ReadRequest>::wires(&(), "read");
        io.request.take(&buffer("request_fifo", &(), 2, &request));

        let pending = reg_init("pending", index_width(most_reads) + 1, 0);

        // clock 0: ends first (they free slots), then initialisation, then what is pushed, then turns
        let work_valid = reg_init("item_valid", 1, 0);
        let work = Known::regs(c, "item");
        let take_done = ended.output.valid;
        let take_init = !take_done & io.initialise.valid;
        let in_segment = work_valid & work.qp.eq(io.pushed.data.qp);
        let take_push = !take_done & !take_init & io.pushed.valid & !in_segment;
        let fence_ready = pending.none() & !io.pushed.valid;
        let take_turn =
            !any_of(&[take_done, take_init, take_push]) & io.turn.valid & (!io.turn.data.fence | fence_ready);
        // after reset the tags are cleared, one QP per clock: what they say of pending reads is void
        let sweep = reg_init("sweep", c.qp_bits() + 1, 0);
        let sweeping = !sweep.msb();
        when(sweeping, || sweep.set(sweep + 1));
        let at_rest = (phase.eq(0) & !sweeping).named("at_rest");
        let asks = mux(take_init, io.initialise.data.qp, mux(take_push, io.pushed.data.qp, io.turn.data.qp));
        let qp_now = mux(take_done, done_qp, asks).named("qp_now");
        let reading = mux(at_rest, qp_now, qp).named("reading");
        let window_now = shared.as_ref().map(|w| {
            w.qp.set(asks);
            w.owned.set(done_window);
            mux(take_done, done_window, mux(w.found, w.window, w.victim)).named("window_now")
        });
        io.read_qp.set(reading);
        when(at_rest & any_of(&[take_done, take_init, take_push, take_turn]), || {
            phase.set(1);
            qp.set(qp_now);
            if let Some(now) = window_now {
                window.set(now);
            }
            when(take_done, || job.set(Job::Done as u64))
                .elif(take_init, || job.set(Job::Initialise as u64))
                .elif(take_push, || job.set(Job::Push as u64))
                .otherwise(|| job.set(Job::Turn as u64));
        });

        // clock 1
        // of a group, all but its first slot are chained: their read is that of the slot before
        let field_bits = u32::from(batches) + SLOT_STATE + INDEX;
        let line_bits = slots * field_bits;
        // never read while written: at rest nothing changes
        let tags = Memory::new("tags", windows, line_bits).ignoring_collisions();
        let tag_word = tags.read("tag_word", at_rest, window_now.unwrap_or(reading));
        let tx = Tx::from_bits(&(), io.tx_word);
        let requester = Requester::from_bits(&(), io.requester_word);
        let arrives = phase.eq(1);
        let keep = |name: &str, value: Sig| {
            let r = reg(name, value.width());
            when(arrives, || r.set(value));
            r
        };
        when(arrives, || {
            cursor.set(mux(tx.epoch.ne(requester.epoch), requester.got_wqe, tx.cursor_wqe));
        });
        let got = if batches { keep("got", requester.got_wqe) } else { requester.got_wqe };
        let producer = keep("producer", io.post_sq_word);
        let queues = QpQueuesBits::unpack(keep("queues_line", io.queues_word));
        let rights_now = QpRightsBits::unpack(io.rights_word);
        let may_read = keep(
            "may_read",
            rights_now.valid
                & (rights_now.state.eq(QpState::Rts as u64) | rights_now.state.eq(QpState::Sqd as u64)),
        );
        // a window that is not the QP's own holds nothing of it
        let (owns, has) = match &shared {
            None => (high(), high()),
            Some(w) => {
                let (owns, has) = (reg("owns_window", 1), reg("has_window", 1));
                when(at_rest, || {
                    owns.set(take_done | w.found);
                    has.set(take_done | w.found | w.victim_valid);
                });
                (owns, has)
            }
        };
        let line =
            keep("tag_line", if shared.is_some() { tag_word & owns.repeat(line_bits) } else { tag_word });
        when(arrives, || phase.set(2));
        let field = |slot: u32| line.bits(slot * field_bits, field_bits);
        let slot_state = |slot: u32| field(slot).bits(INDEX, SLOT_STATE);
        let slot_index = |slot: u32| field(slot).bits(0, INDEX);
        let slot_chained = |slot: u32| field(slot).msb();

        // clock 2: per slot, the index that belongs there now
        let posted = (producer - cursor).named("posted");
        let wanted: Vec<Sig> = (0..slots)
            .map(|slot| {
                let ahead = lit(slot_bits, u64::from(slot)) - cursor.bits(0, slot_bits);
                cursor + ahead.extend(INDEX)
            })
            .collect();
        let here: Vec<Sig> = (0..slots)
            .map(|s| {
                let settled = slot_state(s).eq(Slot::Present as u64) | slot_state(s).eq(Slot::Failed as u64);
                settled & slot_index(s).eq(wanted[s as usize])
            })
            .collect();
        let group_bits = index_width(group);
        let group_of = |index: Sig| index.bits(group_bits, INDEX - group_bits);
        let replayable = batches.then(|| (group_of(cursor) - group_of(got)).eq(1).named("replayable"));
        let missing: Vec<Sig> = (0..slots)
            .map(|s| {
                let free = slot_state(s).ne(Slot::Pending as u64) & slot_state(s).ne(Slot::Doomed as u64);
                let missing = free & !here[s as usize] & (wanted[s as usize] - cursor).lt(posted) & may_read;
                let Some(replayable) = replayable else { return missing };
                let same = |at: Sig| at.bits(group_bits, slot_bits - group_bits).eq(u64::from(s / group));
                let missing = missing & !(replayable & same(got));
                // behind the cursor, in its group
                if (s + 1).is_multiple_of(group) {
                    missing
                } else {
                    missing & !(same(cursor_slot) & cursor_slot.gt(u64::from(s)))
                }
            })
            .collect();
        let is_turn = job.eq(Job::Turn as u64);
        let fence = reg("fence", 1);
        when(at_rest, || fence.set(io.turn.data.fence));

        let free = !work_valid | io.work.ready;
        let emits = (phase.eq(2) & is_turn & free).named("emits");
        // the memory's own output register holds it
        let wqe = memory.read("wqe", emits, cat(&[window, cursor_slot]));
        io.work.valid.set(work_valid);
        io.work.data.assign(&WorkItem {
            qp: work.qp,
            fence: work.fence,
            present: work.present,
            failed: work.failed,
            producer: work.producer,
            wqe,
        });
        let item_slot = reg("item_slot", slot_bits);
        when(emits, || item_slot.set(cursor_slot));
        let item_window = if shared.is_some() { reg("item_window", window_bits) } else { work.qp };
        let within = io.inline_index.bits(0, beat_bits);
        let words: Vec<Sig> = (0..beats).map(|i| wqe.bits(i * c.data_bits(), c.data_bits())).collect();
        let of_head = delay("inline_of_head", select(within, &words));
        let quarter = io.inline_index.bits(beat_bits, 2);
        let of_tail =
            tails.read("inline_of_tail", high(), cat(&[item_window, item_slot, quarter.bit(1), within]));
        io.inline_word.set(mux(delay("inline_in_tail", quarter.any()), of_tail, of_head));
        when(io.work.ready, || work_valid.set(0));
        let need = reg("need", slots);
        let missing: Vec<Sig> = missing.iter().rev().copied().collect();
        let missing = cat(&missing);
        let missing = match &shared {
            None => missing,
            Some(w) => {
                // who has to leave the window soon reads nothing ahead into it
                let cursor_alone = one_hot(slots, cursor_slot, high()) | (!w.crowded).repeat(slots);
                let wanted = (missing & cursor_alone).named("wanted");
                w.starve.set(emits & !has & !fence & wanted.any());
                w.spent.set(emits & has & wanted.none());
                wanted & has.repeat(slots)
            }
        };
        when(emits, || {
            work_valid.set(1);
            work.qp.set(qp);
            work.fence.set(fence);
            work.present.set(select(cursor_slot, &here) & posted.any() & !fence);
            work.failed.set(select(
                cursor_slot,
                &(0..slots).map(|s| slot_state(s).eq(Slot::Failed as u64)).collect::<Vec<_>>(),
            ));
            work.producer.set(producer);
            if shared.is_some() {
                item_window.set(window);
            }
            need.set(missing);
            phase.set(mux(fence | missing.none(), lit(2, 0), lit(2, 3)));
        });
        io.turn.ready.set(at_rest & take_turn);

        // a pushed WQE: into a slot that nobody reads into and that does not hold it
        let is_push = job.eq(Job::Push as u64);
        let states: Vec<Sig> = (0..slots).map(slot_state).collect();
        let slot_busy = select(cursor_slot, &states);
        let slot_busy = slot_busy.eq(Slot::Pending as u64) | slot_busy.eq(Slot::Doomed as u64);
        let accepts = may_read & cursor.eq(io.pushed.data.index) & !slot_busy & !select(cursor_slot, &here);
        let accepts = if shared.is_some() { accepts & has } else { accepts };
        let refuses = (phase.eq(2) & is_push & !accepts).named("refuses_pushed");
        when(phase.eq(2) & is_push, || phase.set(mux(accepts, lit(2, 3), lit(2, 0))));
        let copied = (copying & io.pushed_over).named("copied_pushed");
        when(copied, || phase.set(0));
        io.pushed.ready.set(refuses | copied);

        // clock 3 and on: one read per clock, the cursor's first. Tags are written at the end.
        let issuing = phase.eq(3) & is_turn;
        let order: Vec<Sig> =
            (0..slots).map(|ahead| cursor_slot + lit(slot_bits, u64::from(ahead))).collect();
        let mut chosen = order[slots as usize - 1];
        for slot in order.iter().rev().skip(1) {
            chosen = mux(need.bit_at(*slot), *slot, chosen);
        }
        let chosen = chosen.named("chosen");
        let urgent = need.bit_at(cursor_slot);
        let full = pending.ge(most_reads);
        let room = request.ready & !full;
        let issue = (issuing & need.any() & room).named("issue");
        let index = select(chosen, &wanted);
        let shift = queues.sq_log_stride;
        let within = index & ((lit(INDEX, 1) << queues.sq_log_depth) - 1);
        let log_bytes = u64::from(byte_bits);
        request.valid.set(issue);
        let alone = ReadRequest {
            iova: queues.sq_base + (within.extend(64) << shift),
            length: mux(shift.ge(log_bytes), lit(13, u64::from(SEND_FETCH_BYTES)), lit(13, 1) << shift),
            address: cat(&[window, chosen, lit(byte_bits, 0)]).extend(READ_ADDRESS),
            id: cat(&[window, chosen]).extend(crate::flow::READ_ID),
        };
        io.fetched.set(issue);
        let first = |s: u32| chosen.eq(u64::from(s));
        let (this, wqes): (Vec<Sig>, Sig) = if batches {
            // a ring shorter than a group wraps within it
            let small = shift.eq(u64::from(GROUPED));
            let grouped = (small & queues.sq_log_depth.ge(u64::from(index_width(group)))).named("grouped");
            let mut this: Vec<Sig> = vec![];
            for s in 0..slots {
                let follows = match this.last() {
                    Some(before) if !s.is_multiple_of(group) => *before & grouped & need.bit(s),
                    _ => low(),
                };
                this.push(first(s) | follows);
            }
            let count_bits = index_width(group) + 1;
            // all of them lie in one group
            let count = (0..group as usize)
                .map(|i| any_of(&this.iter().skip(i).step_by(group as usize).copied().collect::<Vec<_>>()))
                .fold(lit(count_bits, 0), |n, s| n + s.extend(count_bits));
            let at = cat(&[
                high(),
                lit(address_bits - window_bits - slot_bits - GROUPED, 0),
                window,
                chosen,
                lit(GROUPED, 0),
            ]);
            let together = ReadRequest {
                length: cat(&[count, lit(GROUPED, 0)]).extend(13),
                address: at.extend(READ_ADDRESS),
                ..alone
            };
            request.data.assign(&together.or_else(&(), grouped, &alone));
            (this, mux(grouped, count.extend(8), lit(8, 1)))
        } else {
            request.data.assign(&alone);
            ((0..slots).map(first).collect(), lit(8, 1))
        };
        io.trace.assign(&Mark {
            index,
            opcode: wqes,
            detail: chosen.extend(16),
            ..Mark::of(TraceEvent::Fetch, issue, qp)
        });
        let chains: Vec<Sig> = this.iter().enumerate().map(|(s, this)| *this & !first(s as u32)).collect();
        let this = cat(&this.into_iter().rev().collect::<Vec<_>>());
        let issued = reg("issued", slots);
        let issued_now = issued | (this & issue.repeat(slots));
        let left = need & !(this & issue.repeat(slots));
        let waits = urgent & !full & !request.ready;
        let over = (issuing & !(left.any() & (room | waits))).named("over");
        // ends of reads are served between turns: a turn that needs one to go on comes again
        let retry = issuing & urgent & full;
        when(phase.eq(2), || issued.set(0));
        when(issuing, || {
            need.set(left);
            issued.set(issued_now);
            when(over, || phase.set(0));
        });
        let chained_now = batches.then(|| {
            let chained = reg("chained", slots);
            let now = chained | (cat(&chains.into_iter().rev().collect::<Vec<_>>()) & issue.repeat(slots));
            when(phase.eq(2), || chained.set(0)).elif(issuing, || chained.set(now));
            now
        });
        io.stall.set((phase.eq(2) & is_turn & !free) | (issuing & waits));

        // tags: one writer
        // the end of a read: from the tags as they come, in clock 1
        let was = |s: u32| tag_word.bits(s * field_bits, field_bits);
        let was_state = |s: u32| was(s).bits(INDEX, SLOT_STATE);
        let was_busy = |s: u32| was_state(s).eq(Slot::Pending as u64) | was_state(s).eq(Slot::Doomed as u64);
        let mut ends_here: Vec<Sig> = vec![];
        for s in 0..slots {
            let first = done_slot.eq(u64::from(s));
            ends_here.push(match ends_here.last() {
                Some(before) if !s.is_multiple_of(group) => first | (*before & was_busy(s) & was(s).msb()),
                _ => first,
            });
        }
        let ended_line: Vec<Sig> = (0..slots)
            .rev()
            .map(|s| {
                let arrived = mux(
                    was_state(s).eq(Slot::Doomed as u64),
                    state(Slot::Empty),
                    mux(done_failed, state(Slot::Failed), state(Slot::Present)),
                );
                let next_state = mux(ends_here[s as usize], arrived, was_state(s));
                let chain = if batches { vec![was(s).msb()] } else { vec![] };
                cat(&[chain, vec![next_state, was(s).bits(0, INDEX)]].concat())
            })
            .collect();
        // the rest
        let new_line: Vec<Sig> = (0..slots)
            .rev()
            .map(|s| {
                let was = slot_state(s);
                let busy = was.eq(Slot::Pending as u64) | was.eq(Slot::Doomed as u64);
                let reset = mux(busy, state(Slot::Doomed), state(Slot::Empty));
                let requested = issued_now.bit(s);
                let pushed = is_push & cursor_slot.eq(s);
                let filled = mux(io.pushed_whole, state(Slot::Present), state(Slot::Empty));
                let next_state = mux(
                    job.eq(Job::Initialise as u64),
                    reset,
                    mux(pushed, filled, mux(is_turn & requested, state(Slot::Pending), was)),
                );
                let next_index = mux((is_turn & requested) | pushed, wanted[s as usize], slot_index(s));
                match chained_now {
                    Some(chained) => {
                        let chain = mux(is_turn & requested, chained.bit(s), slot_chained(s));
                        cat(&[chain, next_state, next_index])
                    }
                    None => cat(&[next_state, next_index]),
                }
            })
            .collect();
        let settling = (phase.eq(1) & job.eq(Job::Done as u64)).named("settling");
        let clearing = phase.eq(2) & job.eq(Job::Initialise as u64);
        let tag_changes = any_of(&[
            settling,
            clearing & io.initialise.data.reset,
            over & issued_now.any(),
            copied,
            sweeping,
        ]);
        let tag_changes = if shared.is_some() { tag_changes & (!clearing | owns) } else { tag_changes };
        let written = mux(settling, cat(&ended_line), cat(&new_line));
        tags.write(
            tag_changes,
            mux(sweeping, sweep.bits(0, window_bits), window),
            written & !sweeping.repeat(line_bits),
        );
        when(settling | clearing, || phase.set(0));
        ended.output.ready.set(settling);
        io.initialise.ready.set(clearing);
        // schedule needs two clocks for the turn, the tags one
        let (wakes, woken) = ((at_rest & take_done) | retry, mux(at_rest, done_qp, qp));
        match &shared {
            None => {
                io.wake.valid.set(wakes);
                io.wake.qp.set(woken);
                io.ended_qp.set(io.read_done.id.bits(slot_bits, window_bits));
            }
            Some(w) => {
                w.ended.set(io.read_done.id.bits(slot_bits, window_bits));
                io.ended_qp.set(w.ended_owner);
                let any_state = |states: &[Slot]| {
                    let is = |s: u32, state: &Slot| {
                        written.bits(s * field_bits + INDEX, SLOT_STATE).eq(*state as u64)
                    };
                    let all = (0..slots).flat_map(|s| states.iter().map(move |state| is(s, state)));
                    any_of(&all.collect::<Vec<_>>())
                };
                w.job_valid.set(!at_rest);
                w.job.set(window);
                w.job_qp.set(qp);
                w.item_valid.set(work_valid);
                w.item.set(item_window);
                w.claim.set((over & issued_now.any()) | copied);
                w.owns.set(owns);
                w.seen.set(emits & owns);
                w.line.set(tag_changes & !sweeping);
                w.line_busy.set(any_state(&[Slot::Pending, Slot::Doomed]));
                w.line_holds.set(any_state(&[Slot::Present, Slot::Failed]));
                w.sweep.set(sweeping);
                w.sweep_qp.set(sweep.bits(0, c.qp_bits()));
                // when this stage wakes nobody itself
                let at_leisure = at_rest & !any_of(&[take_done, take_init, take_push, take_turn]);
                w.call.ready.set(at_leisure | phase.eq(1));
                let calls = w.call.moves();
                io.wake.valid.set(wakes | calls);
                io.wake.qp.set(mux(calls, w.call.data.qp, woken));
            }
        }
        pending.set(pending + issue.extend(pending.width()) - settling.extend(pending.width()));

        let mut inside =
            vec![io.turn.valid, io.initialise.valid, io.pushed.valid, work_valid, io.request.valid];
        inside.extend(shared.map(|w| w.waiting));
        io.idle.set(at_rest & pending.none() & !any_of(&inside));
    }
}
