//! schedule: who may work now.
//!
//! ```text
//! wakes (doorbell, fetch, respond, acknowledge, command), `again` -> ready ----\
//!                                  turn given, TurnDone  -> busy  -----> candidates, choose | Turn
//! ```
//! A bit `ready` per QP is set by any wake and cleared when the turn is given; a bit `busy` is set by the turn and cleared
//! by its [`TurnDone`]. A QP that is ready and not busy gets a turn, round robin. So one turn per QP is under way, and no
//! wake is lost: a wake in the very clock of the turn makes another turn, and the turn reads its words after every
//! wake that it stands for.
//!
//! While segment has no `room` for data only QPs that owe a response (woken by `respond`) get turns, so responses do not
//! queue behind payload and nobody spins.
//! A fence request goes out as a turn of its own, before any candidate and behind all turns given.
//!
//! A doorbell that finds nobody to choose is its QP's turn at once.
//!
//! Throughput: a turn per 2 clocks. Latency from wake to turn: 2 clocks, of such a doorbell 1. Wakes are never refused, five and a
//! `TurnDone` in one clock. Back-pressure: `turn`.
//!
//! Requirements: CARD CMD REQ RESP

use crate::config::Config;
use crate::flow::{Turn, TurnDone, WakePulse};
use crate::qp::Initialise;
use hdl::{Bundle, Module, Ports, Sig, Stream, any_of, cat, high, lit, low, mux, reg_init, when};

/// The schedule stage.
#[derive(Clone, Debug)]
pub struct Schedule(pub Config);

/// Ports of [`Schedule`].
#[derive(Ports)]
#[ports(Schedule)]
pub struct ScheduleIo {
    /// The send queue's producer moved.
    #[input(c.0.clone())]
    pub doorbell: WakePulse,
    /// A WQE arrived.
    #[input(c.0.clone())]
    pub fetch: WakePulse,
    /// A response is owed.
    #[input(c.0.clone())]
    pub respond: WakePulse,
    /// The window, the una triple or the epoch moved, or an RNR wait ended.
    #[input(c.0.clone())]
    pub acknowledge: WakePulse,
    /// The QP's context changed (SQD to RTS: what was posted meanwhile may go).
    #[input(c.0.clone())]
    pub command: WakePulse,
    /// Ends of turns; always taken.
    #[sink(c.0.clone())]
    pub done: Stream<TurnDone>,
    /// A fence token is to be sent.
    #[input]
    pub fence_valid: Sig,
    /// It is taken in this clock.
    #[output]
    pub fence_ready: Sig,
    /// Forgets the wakes of a QP (`reset`); always taken.
    #[sink(c.0.clone())]
    pub initialise: Stream<Initialise>,
    /// segment has room for data.
    #[input]
    pub room: Sig,
    /// Turns.
    #[source(c.0.clone())]
    pub turn: Stream<Turn>,
    /// Pulse: some QP is ready but no turn could be given.
    #[output]
    pub stall: Sig,
    /// No QP ready or busy, no fence.
    #[output]
    pub idle: Sig,
}

/// The lowest 1 of `bits`: (there is one, it alone). A tree, log2 deep.
fn lowest(bits: Sig) -> (Sig, Sig) {
    let w = bits.width();
    if w == 1 {
        return (bits, bits);
    }
    let half = w / 2;
    let ((low_any, low_one), (high_any, high_one)) =
        (lowest(bits.bits(0, half)), lowest(bits.bits(half, half)));
    (low_any | high_any, cat(&[high_one & (!low_any).repeat(half), low_one]))
}

/// The number of the only 1 in `bits`.
fn number(bits: Sig, width: u32) -> Sig {
    let ones = |b: u32| (0..bits.width()).filter(move |i| i >> b & 1 == 1).map(|i| bits.bit(i));
    cat(&(0..width).rev().map(|b| any_of(&ones(b).collect::<Vec<_>>())).collect::<Vec<_>>())
}

impl Module for Schedule {
    type Io = ScheduleIo;
    fn name(&self) -> String {
        format!("schedule_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("Round robin turns for {} QPs.", self.0.qps)
    }
    fn body(&self, io: &ScheduleIo) {
        let c = &self.0;
        let n = c.qps;
        let one = |valid: Sig, qp: Sig| (valid.extend(n) << qp).resize(n);
        let (ready, owes, busy) =
            (reg_init("ready_set", n, 0), reg_init("owes_set", n, 0), reg_init("busy_set", n, 0));
        io.done.ready.set(high());
        io.initialise.ready.set(high());

        let turn_valid = reg_init("given", 1, 0);
        let turn = Turn::regs_zero(c, "given_turn");
        io.turn.valid.set(turn_valid);
        io.turn.data.assign(&turn);

        // the lowest candidate above the last turn's QP, else the lowest; from registers into a register, and a turn per 2
        // clocks is enough, so that neither fetch's state nor its acceptance lengthens the way
        let last = turn.qp;
        let above: Vec<Sig> =
            (1..n).rev().map(|i| last.lt(lit(c.qp_bits(), u64::from(i)))).chain([low()]).collect();
        let above = cat(&above);
        let candidates = (ready & !busy & (owes | io.room.repeat(n))).named("candidates");
        let ((next_any, next_one), (any, first_one)) = (lowest(candidates & above), lowest(candidates));
        let chosen = mux(next_any, next_one, first_one).named("chosen");
        // else a doorbell in this very clock: its producer is read behind it
        let bell = &io.doorbell;
        let at_once = bell.valid & !busy.bit_at(bell.qp) & io.room;
        let at_once = (at_once & !any & !turn_valid & !io.fence_valid).named("at_once");
        let qp = mux(any, number(chosen, c.qp_bits()), bell.qp).named("chosen_qp");
        let choose = ((!turn_valid & (io.fence_valid | any)) | at_once).named("choose");
        io.fence_ready.set(!turn_valid & io.fence_valid);
        when(io.turn.ready, || turn_valid.set(0));
        when(choose, || {
            turn_valid.set(1);
            turn.fence.set(io.fence_valid);
            when(!io.fence_valid, || turn.qp.set(qp));
        });

        let given = chosen & (!turn_valid & !io.fence_valid).repeat(n);
        let started = given | one(at_once, bell.qp);
        let ended = one(io.done.moves(), io.done.data.qp);
        let again = one(io.done.moves() & io.done.data.again, io.done.data.qp);
        let forgotten = one(io.initialise.moves() & io.initialise.data.reset, io.initialise.data.qp);
        let answer = one(io.respond.valid, io.respond.qp);
        let woken = one(bell.valid & !at_once, bell.qp)
            | one(io.fetch.valid, io.fetch.qp)
            | one(io.acknowledge.valid, io.acknowledge.qp)
            | one(io.command.valid, io.command.qp)
            | answer
            | again;
        // a wake in the clock of the turn stays
        ready.set((ready & !started & !forgotten) | woken);
        owes.set((owes & !started & !forgotten) | answer);
        busy.set((busy & !ended) | started);

        io.stall.set((ready & !busy).any() & !choose & !io.turn.moves());
        io.idle.set(ready.none() & busy.none() & !io.fence_valid & !turn_valid);
    }
}
