//! The receive WQEs of every QP, on chip: the one in use and the next ones, read ahead.
//!
//! ```text
//! QP q:  .. consumed | head .. next | posted .. producer      next - head <= slots; index i lies in slot i mod slots
//!                      ^ further SGEs, when a query has missed them
//! ```
//! In: doorbells, consumed indices, ended reads. Out: reads of 64 bytes (4 SGEs) per WQE, and to a query {qp, index},
//! one clock later, whether the WQE is here and what it says. One visit of a QP takes 3 clocks: it applies one event and
//! starts at most one read. A read failed is remembered with its slot.
//!
//! A stride of 128 bytes has a further group of four SGEs, one of 256 has three. They are read in one, not ahead: when
//! a query has missed them (`missed_further`), for the WQE at the head, which is the one in use. There is room for those
//! of one WQE per QP; they stay until it is spent. So messages that fit the first four SGEs cost no read more.
//!
//! Never two reads under way into one slot; never more than [`READS`] under way; none for a QP that does not exist or is
//! in RESET or ERR, and none while `hold` (the fence of a teardown drains them). A reset of the function ends reads
//! that nobody will tell of: it is followed by a sweep over what is known of all QPs. Byte address of slot s of QP q:
//! (q * slots + s) * 64; the read's id is the same without the factor. Further SGEs: q * 256 in the upper half of the
//! addresses; the id is that of slot 0 in the upper half of the ids.
//!
//! Requirements: QPS QUE RESP

use crate::config::Config;
use crate::flow::{
    FURTHER_GROUPS, GROUP, READ_ADDRESS, READ_ID, ReadClient, ReadData, ReadDone, ReadRequest, Wake,
    further_row,
};
use crate::prim::fifo::buffer;
use crate::prim::flags::Flags;
use crate::prim::pick::round_robin;
use crate::qp::{INDEX, State};
use contract::QpState;
use contract::context::{QpQueuesBits, QpRightsBits};
use hdl::{
    Bits, Bundle, HwEnum, Memory, Module, Ports, Sig, Stream, any_of, cat, constant, high, index_width, lit,
    low, mux, reg, reg_init, select, when,
};

/// Bytes of a receive WQE that are read ahead: 4 SGEs.
pub const RECEIVE_WQE: u32 = 64;
/// Reads under way at most; as many ended reads can wait to be seen.
pub const READS: u32 = 16;

/// A receive WQE by name.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct WqeName {
    /// Of which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// Its ring index.
    #[shape(INDEX)]
    pub index: Sig,
}

/// The unit, for one card configuration.
#[derive(Clone, Debug)]
pub struct ReceiveWqes {
    /// Sizes.
    pub config: Config,
}

/// Ports of [`ReceiveWqes`].
#[derive(Ports)]
#[ports(ReceiveWqes)]
pub struct ReceiveWqesIo {
    /// Receives were posted. Never refused.
    #[sink(c.config.clone())]
    pub doorbell: Stream<Wake>,
    /// A WQE is spent.
    #[sink(c.config.clone())]
    pub consumed: Stream<WqeName>,
    /// A query found its WQE, or its further SGEs, missing: look again whether a read can start.
    #[input]
    pub missed_valid: Sig,
    /// Its further SGEs.
    #[input]
    pub missed_further: Sig,
    /// Of which QP.
    #[input(c.config.qp_bits())]
    pub missed_qp: Sig,
    /// Forget everything of a QP.
    #[sink(c.config.clone())]
    pub forget: Stream<Wake>,
    /// No new reads.
    #[input]
    pub hold: Sig,
    /// The WQE asked for.
    #[input(c.config.clone())]
    pub query: WqeName,
    /// Which four of its SGEs.
    #[input(GROUP)]
    pub query_group: Sig,
    /// One clock later: it is here and good.
    #[output]
    pub present: Sig,
    /// One clock later: its read failed.
    #[output]
    pub failed: Sig,
    /// One clock later: groups that it has behind the first.
    #[output(GROUP)]
    pub groups: Sig,
    /// One clock later: they are here and good.
    #[output]
    pub further_present: Sig,
    /// One clock later: their read failed.
    #[output]
    pub further_failed: Sig,
    /// One clock later: the four SGEs.
    #[output(RECEIVE_WQE * 8)]
    pub wqe: Sig,
    /// Address of the words below.
    #[output(c.config.qp_bits())]
    pub qp_address: Sig,
    /// Producer of the receive queue.
    #[input(INDEX)]
    pub post_rq_word: Sig,
    /// `contract::QpQueues`.
    #[input(QpQueuesBits::BITS)]
    pub queues_word: Sig,
    /// `contract::QpRights`.
    #[input(QpRightsBits::BITS)]
    pub rights_word: Sig,
    /// Reads of receive WQEs.
    #[source]
    pub read: Stream<ReadRequest>,
    /// Their data.
    #[input(c.config.clone())]
    pub data: ReadData,
    /// Their ends.
    #[input]
    pub done: ReadDone,
    /// A query of this QP may now fare better.
    #[output]
    pub changed_valid: Sig,
    /// Which.
    #[output(c.config.qp_bits())]
    pub changed_qp: Sig,
    /// A read starts in this clock.
    #[output]
    pub fetches: Sig,
    /// No read is under way or about to start.
    #[output]
    pub drained: Sig,
    /// Nothing is under way or wanted.
    #[output]
    pub idle: Sig,
}

/// What is known of the slots of one QP.
#[derive(Bundle, Clone, Copy)]
#[bundle(u32)]
struct Slots {
    /// Next index to read.
    #[shape(INDEX)]
    next: Sig,
    /// Oldest index not spent.
    #[shape(INDEX)]
    head: Sig,
    /// Two bits per slot.
    #[shape(2 * *c)]
    state: Sig,
    /// Groups of a WQE behind the first.
    #[shape(GROUP)]
    groups: Sig,
    /// See [`Further`].
    #[shape(Further::width())]
    further: Sig,
}

/// State of a slot.
#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Slot {
    Empty,
    Pending,
    Here,
    Failed,
}

/// State of the further SGEs of the oldest WQE not spent.
#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Further {
    Absent,
    Pending,
    Here,
    Failed,
    /// Being read, of a WQE that is over.
    Doomed,
}

impl ReceiveWqes {
    /// WQEs held per QP: `receive_slots`, or fewer if half of the client's address space or names does not reach.
    ///
    /// # Panics
    /// If the further SGEs of so many QPs do not fit the other half.
    pub fn slots(&self) -> u32 {
        let half = 1 << (READ_ADDRESS - 1);
        assert!(
            self.config.qps << 8 <= half,
            "config `{}`: {} QPs are more than place can hold WQEs of",
            self.config.name,
            self.config.qps
        );
        self.config.receive_slots.min((half / RECEIVE_WQE).min(1 << (READ_ID - 1)) / self.config.qps)
    }
}

/// Nothing is posted without a host, and nothing has to be forgotten.
fn nothing(io: &ReceiveWqesIo) {
    for taken in [&io.doorbell.ready, &io.forget.ready, &io.consumed.ready, &io.drained, &io.idle] {
        taken.set(high());
    }
    io.read.valid.set(low());
    io.read.data.assign_zero();
    let never = [io.present, io.failed, io.wqe, io.groups, io.further_present, io.further_failed];
    for word in never.into_iter().chain([io.qp_address, io.changed_valid, io.changed_qp, io.fetches]) {
        word.set(constant(Bits::zero(word.width())));
    }
}

impl Module for ReceiveWqes {
    type Io = ReceiveWqesIo;
    fn name(&self) -> String {
        format!("receive_wqes_{}", self.config.name)
    }
    fn doc(&self) -> String {
        format!("The next {} receive WQEs of every QP.", self.slots())
    }
    fn body(&self, io: &ReceiveWqesIo) {
        let c = &self.config;
        if !c.host {
            return nothing(io);
        }
        let (slots, slot_bits) = (self.slots(), index_width(self.slots()));
        let slot_of = |index: Sig| index.bits(0, slot_bits);

        // the bytes: one bank per beat of a WQE, the further SGEs behind those read ahead
        let mine = io.data.valid & io.data.client.eq(ReadClient::Place.code());
        let row_bits = c.qp_bits() + slot_bits;
        let (banks, lane) = (RECEIVE_WQE / c.data_bytes, c.lane_bits());
        let bits = row_bits.max(GROUP + c.qp_bits());
        let place = |further: Sig, behind: Sig, ahead: Sig| {
            cat(&[further, mux(further, behind.extend(bits), ahead.extend(bits))])
        };
        let asked = place(
            io.query_group.any(),
            cat(&[further_row(io.query_group), io.query.qp]),
            cat(&[io.query.qp, slot_of(io.query.index)]),
        );
        let address = io.data.address;
        let row = place(
            address.msb(),
            cat(&[address.bits(6, GROUP), address.bits(8, c.qp_bits())]),
            address.bits(6, row_bits),
        );
        let beats: Vec<Sig> = (0..banks)
            .map(|b| {
                let here = if banks == 1 { high() } else { address.bits(lane, 6 - lane).eq(b) };
                // what is read into is not here yet
                let depth = (1 << bits) + FURTHER_GROUPS * c.qps;
                let memory = Memory::with_lanes(&format!("bank_{b}"), depth, c.data_bits(), 8);
                let memory = c.large(memory.ignoring_collisions());
                memory.write_lanes(mine & here, row, io.data.data, io.data.lanes);
                memory.read(&format!("beat_{b}"), high(), asked)
            })
            .collect();
        io.wqe.set(cat(&beats.into_iter().rev().collect::<Vec<_>>()));

        // what is in them
        let width = Slots::total_width(&slots);
        let known = hdl::instance("known", &State { word: "receive_slots", depth: c.qps, width, readers: 2 });
        let of_slot = |state: Sig, slot: Sig| {
            select(slot, &(0..slots).map(|i| state.bits(2 * i, 2)).collect::<Vec<_>>())
        };
        known.address[0].set(io.query.qp);
        let asked_index = hdl::delay("asked_index", io.query.index);
        let seen = Slots::from_bits(&slots, known.word[0]);
        let read_before = (asked_index - seen.next).msb();
        let seen_slot = of_slot(seen.state, slot_of(asked_index));
        io.present.set(read_before & seen_slot.eq(Slot::Here.code()));
        io.failed.set(read_before & seen_slot.eq(Slot::Failed.code()));
        io.groups.set(seen.groups);
        let in_use = asked_index.eq(seen.head);
        io.further_present.set(in_use & seen.further.eq(Further::Here.code()));
        io.further_failed.set(in_use & seen.further.eq(Further::Failed.code()));

        // events wait here until their visit
        let ended = Stream::<Sig>::wires(&(READ_ID + 1).into(), "ended");
        ended.valid.set(io.done.valid & io.done.client.eq(ReadClient::Place.code()));
        ended.data.set(cat(&[io.done.failed, io.done.id]));
        let ended = buffer("ended_fifo", &(READ_ID + 1).into(), READS, &ended);
        let consumed = buffer("consumed_fifo", c, 4, &io.consumed);
        let want = reg_init("want", c.qps, 0);
        // those of them that miss further SGEs
        let lacks = Flags::new("lacks", c.qps, 1);
        io.doorbell.ready.set(1);

        // after a reset no slot waits for a read of before it
        let sweep = reg_init("sweep", c.qp_bits() + 1, 0);
        let sweeping = !sweep.msb();
        when(sweeping, || sweep.set(sweep + 1));
        let phase = reg_init("phase", 2, 0);
        let rest = (phase.eq(0) & !sweeping).named("rest");
        let last = reg_init("last", c.qp_bits(), 0);
        let wanted = round_robin(want, last).named("wanted");
        let take_ended = rest & ended.valid;
        let take_forget = rest & !ended.valid & io.forget.valid;
        let take_consumed = rest & !ended.valid & !io.forget.valid & consumed.valid;
        let take_want = (rest & !(ended.valid | io.forget.valid | consumed.valid) & want.any() & !io.hold)
            .named("take_want");
        ended.ready.set(rest);
        io.forget.ready.set(rest & !ended.valid);
        consumed.ready.set(rest & !ended.valid & !io.forget.valid);
        let chosen = mux(
            take_ended,
            ended.data.bits(slot_bits, c.qp_bits()),
            mux(take_forget, io.forget.data.qp, mux(take_consumed, consumed.data.qp, wanted)),
        )
        .named("chosen");
        io.qp_address.set(chosen);
        known.address[1].set(chosen);
        let qp = reg("qp", c.qp_bits());
        let (is_end, is_forget, is_spent) = (reg("is_end", 1), reg("is_forget", 1), reg("is_spent", 1));
        let (spent, end_slot, end_failed) =
            (reg("spent", INDEX), reg("end_slot", slot_bits), reg("end_failed", 1));
        let end_further = reg("end_further", 1);
        when(rest, || {
            qp.set(chosen);
            is_end.set(take_ended);
            is_forget.set(take_forget);
            is_spent.set(take_consumed);
            spent.set(consumed.data.index);
            end_slot.set(ended.data.bits(0, slot_bits));
            end_further.set(ended.data.bit(READ_ID - 1));
            end_failed.set(ended.data.bit(READ_ID));
        });
        let starts = take_ended | take_forget | take_consumed | take_want;
        when(take_want, || last.set(wanted));
        phase.set(mux(phase.eq(0), starts.extend(2), mux(phase.eq(1), lit(2, 2), lit(2, 0))));

        // the event
        let old = Slots::from_bits(&slots, known.word[1]);
        let after = Slots::wires(&slots, "after");
        after.assign(&old);
        let put = |state: Sig, slot: Sig, value: Sig| {
            let each = (0..slots).rev().map(|i| mux(slot.eq(i), value, state.bits(2 * i, 2)));
            cat(&each.collect::<Vec<_>>())
        };
        let code = |s: Slot| lit(2, s.code());
        when(is_end & !end_further, || {
            after.state.set(put(old.state, end_slot, mux(end_failed, code(Slot::Failed), code(Slot::Here))));
        });
        let further = |s: Further| lit(Further::width(), s.code());
        let doomed = old.further.eq(Further::Doomed.code());
        when(is_end & end_further, || {
            let ended = mux(end_failed, further(Further::Failed), further(Further::Here));
            after.further.set(mux(doomed, further(Further::Absent), ended));
        });
        when(is_spent | is_forget, || {
            let busy = doomed | old.further.eq(Further::Pending.code());
            after.further.set(mux(busy, further(Further::Doomed), further(Further::Absent)));
        });
        when(is_spent, || {
            after.head.set(spent + 1);
            // spent without having been read (a WRITE with immediate needs no SGE)
            when((old.next - (spent + 1)).msb(), || after.next.set(spent + 1));
        });
        when(is_forget, || {
            after.next.set(0);
            after.head.set(0);
            // a read under way keeps its slot until it ends
            let keep = (0..slots).rev().map(|i| {
                let s = old.state.bits(2 * i, 2);
                mux(s.eq(Slot::Pending.code()), s, code(Slot::Empty))
            });
            after.state.set(cat(&keep.collect::<Vec<_>>()));
        });
        let work = Slots::regs(&slots, "work");
        let rights = QpRightsBits::unpack(io.rights_word);
        let queues = QpQueuesBits::unpack(io.queues_word);
        let takes = QpState::ALL.iter().filter(|s| s.receives() || **s == QpState::Init);
        let takes = any_of(&takes.map(|s| rights.state.eq(s.code())).collect::<Vec<_>>()) & rights.valid;
        let (may, some, room) = (reg("may_receive", 1), reg("some_posted", 1), reg("slot_left", 1));
        let (lacking, wants_further) = (reg("lacking", 1), reg("wants_further", 1));
        let iova = reg("iova", 64);
        let stride = queues.rq_log_stride;
        when(phase.eq(1), || {
            after.groups.set(mux(stride.gt(7), lit(GROUP, 3), stride.eq(7).extend(GROUP)));
            work.assign(&after);
            may.set(takes);
            some.set(after.next.ne(io.post_rq_word));
            room.set((after.next - after.head).lt(slots));
            // in a visit of its own alone: what is spent has been seen by then
            let lacks = lacks.at(qp) & !any_of(&[is_end, is_forget, is_spent]);
            lacking.set(lacks);
            let absent = after.further.eq(Further::Absent.code());
            wants_further.set(lacks & absent & after.groups.any() & after.next.ne(after.head));
            let mask = (lit(INDEX, 1) << queues.rq_log_depth) - 1;
            let within = (mux(lacks, after.head, after.next) & mask).extend(64) << stride;
            iova.set(queues.rq_base + (within | cat(&[lacks, lit(6, 0)]).extend(64)));
        });

        // the read
        let decide = phase.eq(2).named("decide");
        let under_way = reg_init("under_way", index_width(READS) + 1, 0);
        let slot = slot_of(work.next);
        let another = some & room & of_slot(work.state, slot).ne(Slot::Pending.code());
        let useful = decide & may & (another | wants_further);
        let request = Stream::<ReadRequest>::wires(&(), "request");
        let free = !io.hold & !under_way.msb() & request.ready;
        let issue = (useful & free & (!lacking | wants_further)).named("issue");
        let row = cat(&[qp, slot & !lacking.repeat(slot_bits)]);
        let (at_slot, at_further) = (cat(&[row, lit(6, 0)]), cat(&[qp, lit(8, 0)]));
        request.valid.set(issue);
        request.data.assign(&ReadRequest {
            iova,
            length: mux(lacking, cat(&[work.groups, lit(6, 0)]).extend(13), lit(13, u64::from(RECEIVE_WQE))),
            address: cat(&[
                lacking,
                mux(lacking, at_further.resize(READ_ADDRESS - 1), at_slot.resize(READ_ADDRESS - 1)),
            ]),
            id: cat(&[lacking, row.resize(READ_ID - 1)]),
        });
        let out = buffer("requests", &(), 2, &request);
        io.read.take(&out);
        io.fetches.set(issue);
        when(issue & !ended.moves(), || under_way.set(under_way + 1));
        when(ended.moves() & !issue, || under_way.set(under_way - 1));
        let next = Slots::wires(&slots, "next");
        next.assign(&work);
        when(issue & !lacking, || {
            next.next.set(work.next + 1);
            next.state.set(put(work.state, slot, code(Slot::Pending)));
        });
        when(issue & lacking, || next.further.set(further(Further::Pending)));
        known.write.enable.set(decide | sweeping);
        known.write.address.set(mux(sweeping, sweep.bits(0, c.qp_bits()), qp));
        known.write.data.set(next.to_bits() & !sweeping.repeat(width));
        io.changed_valid.set(decide & (is_end | !may));
        io.changed_qp.set(qp);

        let bit = |valid: Sig, qp: Sig| valid.extend(c.qps) << qp;
        let clear = bit(take_want, wanted);
        // after a read there may be another, and what could not be done now is to be done later
        let set = bit(io.doorbell.valid, io.doorbell.data.qp)
            | bit(io.missed_valid, io.missed_qp)
            | bit(useful | (decide & is_forget), qp);
        want.set((want & !clear) | set);
        let met = decide & lacking & (issue | !may | !wants_further);
        let lacks_now = io.missed_valid & io.missed_further;
        let met = met & !(lacks_now & io.missed_qp.eq(qp));
        lacks.change(&[(lacks_now, io.missed_qp)], (met, qp));
        let quiet = under_way.none() & !out.valid;
        io.drained.set(quiet & rest);
        io.idle.set(quiet & rest & !ended.valid & !consumed.valid & want.none());
    }
}
