//! The read engine: five clients read host memory through one pool of tags.
//!
//! ```text
//! gather, fetch, place, command, atomic -ReadRequest-> walk > piece > need > fire -MRd-> request
//!                    completions  -TlpBeat-> rc > enter > judge > lay -ReadData-> everybody
//!                                                                  \-> end -ReadDone-> everybody
//! ```
//! **In**: requests of 1..=4096 bytes of any alignment, one client after the other, round robin; each client's in order.
//! A request is cut at aligned blocks of Max_Read_Request_Size, which obeys that size and the 4 KiB rule at once. A
//! piece leaves when it has a tag and worst-case room in the core's completion buffer (`cplh`, `cpld`: one header per
//! read completion boundary touched, one data unit per 16 bytes touched). That room comes back as completions arrive.
//! **Out**: every byte at its client's byte address: one rotation per beat, and a carry. When a completion's bytes
//! span one word more than its beats carry, one more clock is spent (`rc` is not ready in it).
//! **End**: one `done` per request, at the earliest one clock after its last `data`, at most one per clock.
//!
//! Timing (64 bit, measured by the tests): one beat per clock for a completion whose destination needs no extra word,
//! else n + 1 clocks for n beats; 4 clocks from `rc` to `data`, 5 to `done` (6 after an extra word); an accepted request's first TLP is offered
//! 4 clocks later; a request of one piece every 2 clocks, once in a round of the tags 3.
//!
//! Errors, each counted by name and each ending its request with `failed` once its other pieces are over:
//! UR or CA (the tag is free at once); poison (its bytes are dropped, the tag lives to its last completion); an answer
//! whose byte count, lower address or length is not what is owed, or of another status (`CompletionUnexpected`; the tag
//! is quarantined); no answer before the deadline (`CompletionTimeout`; quarantined). A completion of an unknown tag or
//! another requester, or with T9/T8 set, is counted `CompletionUnexpected` and dropped.
//! **The timeout** is that of Device Control 2: code 0 the configuration's, 1, 2, 5, 6, 9 and 10 a time within the range that
//! PCI Express gives them, any other as 0; its bit 4 switches it off.
//! **A quarantined tag** is not used again before its deadline is passed by a whole further timeout period; it keeps
//! its room meanwhile. So a late completion never finds a tag, and never writes.
//! **FLR** ends every read as failed and quarantines its tag, in at most four clocks per tag. While bus mastering is off
//! requests are accepted, and end as failed without a TLP.
//!
//! It never: refuses data on behalf of a client, writes a byte outside of a request, reuses a tag that may be answered.
//!
//! Requirements: CARD PCIE

use crate::config::Config;
use crate::flow::{
    CLIENT, Count, PcieConfig, READ_ADDRESS, READ_ID, ReadData, ReadDone, ReadRequest, TlpBeat,
};
use crate::pcie::completion_room::{CompletionRoom, Owed};
use crate::pcie::header::{MemoryRequest, memory_header};
use crate::pcie::tags::{Settle, Tags};
use crate::pcie::transmit::block_mask;
use crate::prim::fifo::Fifo;
use crate::prim::pick::{from, lowest, one_hot, round_robin};
use contract::Reject;
use contract::pcie::{CompletionStatus, KIND_COMPLETION, TlpCompletionHeaderBits};
use hdl::{
    Bundle, Memory, Module, Ports, Sig, Stream, all_of, assert_always, cat, cover, lit, low, mux, reg,
    reg_init, select, when, wire,
};

/// What this stage may count.
pub const REJECTS: &[Reject] = &[
    Reject::CompletionTimeout,
    Reject::CompletionPoisoned,
    Reject::CompletionUr,
    Reject::CompletionCa,
    Reject::CompletionUnexpected,
];

/// The read engine.
#[derive(Clone, Debug)]
pub struct Read(pub Config);

/// Ports of [`Read`].
#[derive(Ports)]
#[ports(Read)]
pub struct ReadIo {
    /// Reads of `ReadClient::Gather`.
    #[sink]
    pub gather: Stream<ReadRequest>,
    /// Reads of `ReadClient::Fetch`.
    #[sink]
    pub fetch: Stream<ReadRequest>,
    /// Reads of `ReadClient::Place`.
    #[sink]
    pub place: Stream<ReadRequest>,
    /// Reads of `ReadClient::Command`.
    #[sink]
    pub command: Stream<ReadRequest>,
    /// Reads of `ReadClient::Atomic`.
    #[sink]
    pub atomic: Stream<ReadRequest>,
    /// MRd TLPs, one beat each.
    #[source(c.0.clone())]
    pub request: Stream<TlpBeat>,
    /// Completions.
    #[sink(c.0.clone())]
    pub rc: Stream<TlpBeat>,
    /// What was read.
    #[output(c.0.clone())]
    pub data: ReadData,
    /// Reads that are over.
    #[output]
    pub done: ReadDone,
    /// Configuration space.
    #[input]
    pub pcie: PcieConfig,
    /// Core clocks since reset.
    #[input(64)]
    pub now: Sig,
    /// Function level reset: pulse.
    #[input]
    pub flr: Sig,
    /// Refusals.
    #[output]
    pub count: Count,
    /// No request is under way (quarantined tags do not count).
    #[output]
    pub idle: Sig,
    /// Tags not free: outstanding or in quarantine.
    #[output(c.0.tag_bits() + 1)]
    pub tags_in_use: Sig,
}

/// What a tag stands for; fixed when its read leaves.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
struct Piece {
    /// Its request.
    #[shape(c.tag_bits())]
    slot: Sig,
    #[shape(CLIENT)]
    client: Sig,
    #[shape(c.clone())]
    rest: Rest,
}

/// What a tag is still owed.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
struct Rest {
    /// Client address of the next byte.
    #[shape(READ_ADDRESS)]
    address: Sig,
    /// Low bits of its IOVA: enough to know the boundaries.
    #[shape(7)]
    iova: Sig,
    /// Bytes.
    #[shape(13)]
    left: Sig,
}

/// What a request slot stands for.
#[derive(Bundle, Clone, Copy, Debug)]
struct Request {
    #[shape(CLIENT)]
    client: Sig,
    #[shape(READ_ID)]
    id: Sig,
    /// Pieces, up to 33.
    #[shape(6)]
    pieces: Sig,
}

/// What came of a request so far.
#[derive(Bundle, Clone, Copy, Debug)]
struct Outcome {
    #[shape(6)]
    ended: Sig,
    failed: Sig,
}

/// Timeouts by code of Device Control 2, in units of 4.096 us: 66 us, 4.2 ms, 34 ms, 134 ms, 537 ms, 1.07 s.
const TIMEOUTS: [(u64, u32); 6] = [(1, 16), (2, 1024), (5, 8192), (6, 32768), (9, 131_072), (10, 262_144)];
/// What passes through `enter`: a completion,
const COMPLETION: u64 = 0;
/// a tag whose time has come,
const EXPIRY: u64 = 1;
/// or a piece that ends before it was sent.
const ABORT: u64 = 2;

impl Module for Read {
    type Io = ReadIo;
    fn name(&self) -> String {
        format!("pcie_read_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("Reads of host memory: {} tags, {} byte lanes.", self.0.read_tags, self.0.data_bytes)
    }
    fn body(&self, io: &ReadIo) {
        let c = &self.0;
        let (tags, tag_bits, lane_bits) = (c.read_tags, c.tag_bits(), c.lane_bits());

        // --- what is known of each tag and each request
        let table = hdl::instance("tags", &Tags { tags, time: 32 });
        // nothing has come yet: what is owed stands in `pieces`, else in `rests`
        let untouched = reg("untouched", tags);
        let slots_used = reg_init("slots_used", tags, 0);
        let slot_untouched = reg("slot_untouched", tags);
        let pieces = Memory::new("pieces", tags, Piece::total_width(c)).style("distributed");
        let rests = Memory::new("rests", tags, Rest::total_width(c)).style("distributed");
        let requests = Memory::new("requests", tags, Request::total_width(&())).style("distributed");
        let outcomes = Memory::new("outcomes", tags, Outcome::total_width(&())).style("distributed");
        let freed = wire("freed", 1);
        let room = hdl::instance("completion_room", &CompletionRoom { cplh: c.cplh, cpld: c.cpld });

        // --- accept: the next client's request becomes the one that is walked
        let clients = [&io.gather, &io.fetch, &io.place, &io.command, &io.atomic];
        let slot = reg_init("slot", tag_bits, 0);
        let slot_ready = reg_init("slot_ready", 1, 0);
        let last_client = reg_init("last_client", CLIENT, 0);
        let wanting =
            cat(&[io.atomic.valid, io.command.valid, io.place.valid, io.fetch.valid, io.gather.valid]);
        let picked = round_robin(wanting, last_client).named("picked");
        let walk_valid = reg_init("walk_valid", 1, 0);
        let walk_last = wire("walk_last", 1);
        let walk_moves = wire("walk_moves", 1);
        let can_accept = (slot_ready & (!walk_valid | (walk_moves & walk_last))).named("can_accept");
        let accept = (can_accept & wanting.any()).named("accept");
        for (i, s) in clients.iter().enumerate() {
            s.ready.set(can_accept & picked.eq(i));
        }
        let offered: Vec<Sig> = clients.iter().map(|s| s.data.to_bits()).collect();
        let offered = ReadRequest::from_bits(&(), select(picked, &offered));
        assert_always("length_in_range", !accept | (offered.length.any() & offered.length.le(4096)));

        let (walk_iova, walk_left) = (reg("walk_iova", 64), reg("walk_left", 13));
        let (walk_address, walk_client) = (reg("walk_address", READ_ADDRESS), reg("walk_client", CLIENT));
        let (walk_slot, walk_code) = (reg("walk_slot", tag_bits), reg("walk_code", 3));
        let walk_id = reg("walk_id", READ_ID);
        let announce = reg_init("announce", 1, 0);
        announce.set(accept);

        // --- walk: one piece per clock, up to the end of an aligned block
        let mask = block_mask(walk_code).named("block_mask");
        let in_block = (!walk_iova.bits(0, 12) & mask).extend(13) + 1;
        walk_last.set(walk_left.le(in_block));
        let bytes = mux(walk_last, walk_left, in_block).named("piece_bytes_now");
        // the code is fixed for a request so that this number of pieces is right
        let span = (walk_iova.bits(0, 12) & mask).extend(14) + walk_left.extend(14) + mask.extend(14);
        let blocks: Vec<Sig> = (7..=12).map(|log| span.bits(log, 14 - log).resize(6)).collect();
        let number = select(walk_code, &blocks);
        let request = Request { client: walk_client, id: walk_id, pieces: number };
        requests.write(announce, walk_slot, request.to_bits());
        when(walk_moves, || {
            walk_iova.set((walk_iova | mask.extend(64)) + 1);
            walk_left.set(walk_left - in_block);
            walk_address.set(walk_address + in_block.extend(READ_ADDRESS));
            when(walk_last, || walk_valid.set(0));
        });
        when(accept, || {
            walk_valid.set(1);
            walk_iova.set(offered.iova);
            walk_left.set(offered.length);
            walk_address.set(offered.address);
            walk_client.set(picked);
            walk_id.set(offered.id);
            walk_slot.set(slot);
            walk_code.set(io.pcie.max_read_request);
            last_client.set(picked);
        });
        when(accept, || slot_ready.set(0)).elif(!slot_ready, || {
            slot.set(lowest(!slots_used));
            slot_ready.set(!slots_used.all());
        });

        // --- piece, need: what it is, and what room it needs
        let piece_valid = reg_init("piece_valid", 1, 0);
        let (piece_iova, piece_bytes) = (reg("piece_iova", 64), reg("piece_bytes", 13));
        let (piece_address, piece_client) = (reg("piece_address", READ_ADDRESS), reg("piece_client", CLIENT));
        let piece_slot = reg("piece_slot", tag_bits);
        let need_valid = reg_init("need_valid", 1, 0);
        let need_leaves = wire("need_leaves", 1);
        let piece_moves = piece_valid & (!need_valid | need_leaves);
        walk_moves.set(walk_valid & (!piece_valid | piece_moves));
        when(walk_moves, || {
            piece_iova.set(walk_iova);
            piece_bytes.set(bytes);
            piece_address.set(walk_address);
            piece_client.set(walk_client);
            piece_slot.set(walk_slot);
        });
        piece_valid.set(walk_moves | (piece_valid & !piece_moves));
        let (need_iova, need_bytes) = (reg("need_iova", 64), reg("need_bytes", 13));
        let need_piece = Piece::regs(c, "need_piece");
        need_valid.set(piece_moves | (need_valid & !need_leaves));
        when(piece_moves, || {
            need_iova.set(piece_iova);
            need_bytes.set(piece_bytes);
            need_piece.assign(&Piece {
                slot: piece_slot,
                client: piece_client,
                rest: Rest { address: piece_address, iova: piece_iova.bits(0, 7), left: piece_bytes },
            });
        });

        room.announce.set(piece_moves);
        room.piece.assign(&Owed { iova: piece_iova.bits(0, 7), bytes: piece_bytes });

        // --- fire: with tag and room it leaves
        let abort = (table.flushing | io.flr | !io.pcie.bus_master).named("abort");
        let (tag, tag_ready) = (table.tag, table.ready);
        let out = hdl::instance("out", &Fifo { depth: 4, width: 128 });
        let fire = (need_valid & !abort & tag_ready & room.ok & out.input.ready).named("fire");
        let abort_taken = wire("abort_taken", 1);
        need_leaves.set(fire | abort_taken);
        out.input.valid.set(fire);
        out.input.data.set(memory_header(&MemoryRequest {
            write: false,
            iova: need_iova,
            bytes: need_bytes,
            relaxed: low(),
            requester_id: io.pcie.requester_id,
            tag: tag.extend(8),
        }));
        io.request.valid.set(out.output.valid);
        out.output.ready.set(io.request.ready);
        io.request.data.assign(&TlpBeat {
            header: out.output.data,
            data: lit(c.data_bits(), 0),
            first: hdl::high(),
            last: hdl::high(),
        });
        pieces.write(fire, tag, need_piece.to_bits());
        let timeout = reg_init("timeout", 32, u64::from(c.completion_timeout_ticks));
        let patient = reg_init("patient", 1, 0);
        let code = io.pcie.completion_timeout;
        patient.set(code.bit(4));
        timeout.set(TIMEOUTS.iter().fold(
            lit(32, c.completion_timeout_ticks.into()),
            |other, (of, units)| {
                let ticks = u64::from(*units) * u64::from(c.ticks_per_4096ns);
                mux(code.bits(0, 4).eq(*of), lit(32, ticks), other)
            },
        ));
        table.timeout.set(timeout);
        table.patient.set(patient);
        table.take.set(fire);
        table.now.set(io.now.bits(0, 32));
        table.flr.set(io.flr);
        table.extended.set(io.pcie.extended_tag);

        // --- enter: completions, and between them what the scan and aborted pieces have to say
        // the last word of an earlier completion is written: everything waits one clock
        let flush = reg_init("flush", 1, 0);
        let go = (!flush).named("go");
        let enter_valid = reg_init("enter_valid", 1, 0);
        let enter_kind = reg("enter_kind", 2);
        let enter_first = reg("enter_first", 1);
        let enter_last = reg("enter_last", 1);
        let enter_header = reg("enter_header", 96);
        let enter_data = reg("enter_data", c.data_bits());
        let enter_tag = reg("enter_tag", tag_bits);
        let enter_slot = reg("enter_slot", tag_bits);
        let judge_valid = reg_init("judge_valid", 1, 0);
        let judge_first = reg("judge_first", 1);
        let judge_tag = reg("judge_tag", tag_bits);
        let in_tlp = reg_init("in_tlp", 1, 0);
        // two answers to one tag side by side: the second waits for what the first leaves
        let hazard =
            (enter_valid & enter_first & judge_valid & judge_first & enter_tag.eq(judge_tag)).named("hazard");
        let enter_moves = (enter_valid & go & !hazard).named("enter_moves");
        let enter_free = !enter_valid | enter_moves;
        let want_expiry = table.expiry.valid;
        let want_abort = need_valid & abort;
        let between = enter_free & !in_tlp;
        let take_expiry = (between & want_expiry).named("take_expiry");
        table.expiry.ready.set(between);
        abort_taken.set(between & want_abort & !want_expiry);
        io.rc.ready.set(enter_free & (in_tlp | !(want_expiry | want_abort)));
        let beat = &io.rc.data;
        when(io.rc.moves(), || in_tlp.set(!beat.last));
        enter_valid.set(io.rc.moves() | take_expiry | abort_taken | (enter_valid & !enter_moves));
        when(io.rc.moves(), || {
            enter_kind.set(COMPLETION);
            enter_first.set(!in_tlp);
            enter_last.set(beat.last);
            enter_header.set(beat.header.bits(32, 96));
            enter_data.set(beat.data);
            enter_tag.set(TlpCompletionHeaderBits::unpack(beat.header.bits(32, 96)).tag.resize(tag_bits));
        });
        when(take_expiry | abort_taken, || {
            enter_kind.set(mux(take_expiry, lit(2, EXPIRY), lit(2, ABORT)));
            enter_first.set(1);
            enter_last.set(1);
            enter_tag.set(table.expiry.data.tag);
            enter_slot.set(need_piece.slot);
        });

        // --- judge: is it owed, and what of it
        let judge_last = reg("judge_last", 1);
        let judge_kind = reg("judge_kind", 2);
        let judge_header = reg("judge_header", 96);
        let judge_data = reg("judge_data", c.data_bits());
        let judge_live = reg("judge_live", 1);
        let judge_aging = reg("judge_aging", 1);
        let judge_slot = reg("judge_slot", tag_bits);
        let judge_client = reg("judge_client", CLIENT);
        let judge_rest = Rest::regs(c, "judge_rest");
        when(go, || judge_valid.set(enter_moves));
        when(enter_moves, || {
            let piece = Piece::from_bits(c, pieces.read_now("piece_of_tag", enter_tag));
            let rest = Rest::from_bits(c, rests.read_now("rest_of_tag", enter_tag));
            judge_first.set(enter_first);
            judge_last.set(enter_last);
            judge_kind.set(enter_kind);
            judge_header.set(enter_header);
            judge_data.set(enter_data);
            judge_tag.set(enter_tag);
            judge_live.set(table.live.bit_at(enter_tag));
            judge_aging.set(table.aging.bit_at(enter_tag));
            judge_slot.set(mux(enter_kind.eq(ABORT), enter_slot, piece.slot));
            judge_client.set(piece.client);
            judge_rest.assign(&piece.rest.or_else(c, untouched.bit_at(enter_tag), &rest));
        });

        let passing = reg_init("passing", 1, 0);
        let passing_tag = reg("passing_tag", tag_bits);
        when(judge_valid & go, || passing.set(!judge_last));
        when(judge_valid & judge_first, || passing_tag.set(judge_tag));
        table.passing.set(passing);
        table.passing_tag.set(passing_tag);
        let h = TlpCompletionHeaderBits::unpack(judge_header);
        let acts = (judge_valid & judge_first & go).named("acts");
        let completion = acts & judge_kind.eq(COMPLETION);
        let expiry = acts & judge_kind.eq(EXPIRY);
        let aborted = acts & judge_kind.eq(ABORT);
        let mut ours = vec![
            h.kind.eq(KIND_COMPLETION),
            !h.fmt.bit(0),
            !h.fmt.bit(2),
            !h.tag9,
            !h.tag8,
            h.requester_id.eq(io.pcie.requester_id),
            judge_live,
        ];
        if tag_bits < 8 {
            ours.push(h.tag.bits(tag_bits, 8 - tag_bits).none());
        }
        let known = (completion & all_of(&ours)).named("known");
        let skip = h.lower_address.bits(0, 2);
        let carried = (cat(&[h.length.none(), h.length, lit(2, 0)]) - skip.extend(13)).named("carried");
        let owed = cat(&[h.byte_count.none(), h.byte_count]);
        let final_one = owed.le(carried).named("final_one");
        let taken = mux(final_one, owed, carried).named("taken");
        let success = h.status.eq(CompletionStatus::Successful as u64);
        let fits = all_of(&[
            h.fmt.bit(1),
            owed.eq(judge_rest.left),
            h.lower_address.eq(judge_rest.iova),
            // no doubleword more than is owed
            !final_one | (carried - owed).bits(2, 11).none(),
        ]);
        let refused = known & !success;
        let misfit = (known & success & !fits).named("misfit");
        let unsupported = h.status.eq(CompletionStatus::UnsupportedRequest as u64);
        let completer_abort = h.status.eq(CompletionStatus::CompleterAbort as u64);
        let poisoned = known & success & fits & h.poisoned;
        let good = (known & success & fits & !h.poisoned).named("good");
        let progress = good | poisoned;
        let expired = expiry & judge_live;
        let released = expiry & judge_aging & table.expiry.data.aged;
        let over = progress & final_one;
        let code = |r: Reject| lit(6, r as u64);

        let count = Count::regs_zero(&(), "counted");
        io.count.assign(&count);
        count
            .valid
            .set((completion & !known) | refused | misfit | poisoned | (expired & !table.expiry.data.silent));
        count.index.set(mux(
            expired,
            code(Reject::CompletionTimeout),
            mux(
                poisoned,
                code(Reject::CompletionPoisoned),
                mux(
                    refused & unsupported,
                    code(Reject::CompletionUr),
                    mux(
                        refused & completer_abort,
                        code(Reject::CompletionCa),
                        code(Reject::CompletionUnexpected),
                    ),
                ),
            ),
        ));

        let after = Rest {
            address: judge_rest.address + taken.extend(READ_ADDRESS),
            iova: judge_rest.iova + taken.bits(0, 7),
            left: judge_rest.left - taken,
        };
        rests.write(progress, judge_tag, after.to_bits());
        freed.set(over | refused | released);
        table.settle.assign(&Settle { tag: judge_tag, frees: freed, strays: misfit | expired, expiry });
        untouched.set((untouched | one_hot(tags, tag, fire)) & !one_hot(tags, judge_tag, progress));
        let used = table.used;
        io.tags_in_use.set(used);

        // --- room comes back: for what a completion brought, or for all that is not owed any more
        room.fire.set(fire);
        room.back.set(progress | freed);
        room.before.assign(&Owed { iova: judge_rest.iova, bytes: judge_rest.left });
        room.after.assign(&Owed { iova: after.iova, bytes: mux(progress, after.left, lit(13, 0)) });
        room.rcb_128.set(io.pcie.rcb);
        room.busy.set(used.any() | piece_valid | need_valid);

        // --- lay: the bytes at their place
        let lay_valid = reg_init("lay_valid", 1, 0);
        let lay_first = reg("lay_first", 1);
        let lay_last = reg("lay_last", 1);
        let lay_data = reg("lay_data", c.data_bits());
        let lay_write = reg("lay_write", 1);
        let lay_ends = reg("lay_ends", 1);
        let lay_failed = reg("lay_failed", 1);
        let lay_slot = reg("lay_slot", tag_bits);
        let lay_client = reg("lay_client", CLIENT);
        let lay_word = reg("lay_word", READ_ADDRESS - lane_bits);
        // destination lane of the first byte, and how far a beat turns
        let lay_lead = reg("lay_lead", lane_bits);
        let lay_turn = reg("lay_turn", lane_bits);
        // the first beat's bytes all belong to the word that the second beat completes
        let lay_behind = reg("lay_behind", 1);
        // a word of this completion was written
        let lay_begun = reg("lay_begun", 1);
        // bytes from lane 0 of the word under way to the last byte
        let lay_span = reg("lay_span", 14);
        when(go, || lay_valid.set(judge_valid));
        let lead = judge_rest.address.bits(0, lane_bits);
        let source = skip.resize(lane_bits);

        let turned = {
            let by = cat(&[lay_turn, lit(3, 0)]);
            (cat(&[lay_data, lay_data]) << by).bits(c.data_bits(), c.data_bits())
        };
        let carry = reg("carry", c.data_bits());
        let (turned_lanes, lead_lanes) = (from(c.data_bytes, lay_turn), from(c.data_bytes, lay_lead));
        let merged: Vec<Sig> = (0..c.data_bytes)
            .rev()
            .map(|i| mux(turned_lanes.bit(i), turned.byte(i), carry.byte(i)))
            .collect();
        let merged = cat(&merged);
        let lanes_of = |span: Sig, begun: Sig| {
            let before: Vec<Sig> = (0..c.data_bytes).rev().map(|i| span.gt(i)).collect();
            cat(&before) & (begun.repeat(c.data_bytes) | lead_lanes)
        };
        let lays = (lay_valid & go).named("lays");
        let writes = lays & lay_write & !(lay_first & lay_behind) & lay_span.any();
        let more = lay_span.gt(c.data_bytes);
        let span_after = mux(writes, mux(more, lay_span - c.data_bytes, lit(14, 0)), lay_span);
        let left_over = (lays & lay_last & lay_write & span_after.any()).named("left_over");
        let tells = lay_ends | lay_failed;
        when(lays, || {
            carry.set(turned);
            lay_span.set(span_after);
            when(writes, || {
                lay_begun.set(1);
                lay_word.set(lay_word + 1);
            });
        });
        when(go & judge_valid, || {
            lay_first.set(judge_first);
            lay_last.set(judge_last);
            lay_data.set(judge_data);
        });
        when(acts, || {
            lay_write.set(good);
            lay_ends.set(over | refused | misfit | expired | aborted);
            lay_failed.set(refused | misfit | expired | aborted | poisoned);
            lay_slot.set(judge_slot);
            lay_client.set(judge_client);
            lay_word.set(judge_rest.address.bits(lane_bits, READ_ADDRESS - lane_bits));
            lay_lead.set(lead);
            lay_turn.set(lead - source);
            lay_behind.set(lead.lt(source));
            lay_begun.set(0);
            lay_span.set(lead.extend(14) + taken.extend(14));
        });
        // what the extra clock needs, since the next completion may take its place
        let flush_lanes = reg("flush_lanes", c.data_bytes);
        let flush_client = reg("flush_client", CLIENT);
        let flush_word = reg("flush_word", READ_ADDRESS - lane_bits);
        let flush_slot = reg("flush_slot", tag_bits);
        let flush_tells = reg("flush_tells", 1);
        let flush_ends = reg("flush_ends", 1);
        let flush_failed = reg("flush_failed", 1);
        flush.set(left_over);
        when(left_over, || {
            flush_lanes.set(lanes_of(span_after, lay_begun | writes));
            flush_client.set(lay_client);
            flush_word.set(lay_word + writes.extend(READ_ADDRESS - lane_bits));
            flush_slot.set(lay_slot);
            flush_tells.set(tells);
            flush_ends.set(lay_ends);
            flush_failed.set(lay_failed);
        });
        let written = ReadData::regs_zero(c, "written");
        written.valid.set(writes | flush);
        written.client.set(mux(flush, flush_client, lay_client));
        written.address.set(cat(&[mux(flush, flush_word, lay_word), lit(lane_bits, 0)]));
        written.data.set(mux(flush, carry, merged));
        written.lanes.set(mux(flush, flush_lanes, lanes_of(lay_span, lay_begun)));
        io.data.assign(&written);

        // --- end: a request is over when all of its pieces are
        let end_valid = reg_init("end_valid", 1, 0);
        let (end_slot, end_ends, end_failed) =
            (reg("end_slot", tag_bits), reg("end_ends", 1), reg("end_failed", 1));
        end_valid.set(mux(flush, flush_tells, lays & lay_last & tells & !left_over));
        end_slot.set(mux(flush, flush_slot, lay_slot));
        end_ends.set(mux(flush, flush_ends, lay_ends));
        end_failed.set(mux(flush, flush_failed, lay_failed));
        let whole = Request::from_bits(&(), requests.read_now("request_of_slot", end_slot));
        let so_far = Outcome::from_bits(&(), outcomes.read_now("outcome_of_slot", end_slot));
        let first_word = slot_untouched.bit_at(end_slot);
        let outcome = Outcome {
            ended: mux(first_word, lit(6, 0), so_far.ended) + end_ends.extend(6),
            failed: (!first_word & so_far.failed) | end_failed,
        };
        outcomes.write(end_valid, end_slot, outcome.to_bits());
        let complete = (end_valid & end_ends & outcome.ended.eq(whole.pieces)).named("complete");
        let accepted = one_hot(tags, slot, accept);
        slot_untouched.set((slot_untouched | accepted) & !one_hot(tags, end_slot, end_valid));
        slots_used.set((slots_used | accepted) & !one_hot(tags, end_slot, complete));
        let done = ReadDone::regs_zero(&(), "ended");
        done.valid.set(complete);
        done.client.set(whole.client);
        done.id.set(whole.id);
        done.failed.set(outcome.failed);
        io.done.assign(&done);
        io.idle.set(slots_used.none() & !done.valid);

        cover("extra_word", flush);
        cover("same_tag_side_by_side", hazard);
        cover("room_was_short", need_valid & !room.ok);
    }
}
