//! schedule: who may work now.
//!
//! ```text
//! wakes: doorbell ──┐
//!        fetch ─────┤
//!        acknowledge┼── is it listed? ── a list each ──┐
//!        command ───┤                                  ├── whose turn? ── is it busy? ──> Turn
//! TurnDone: again ──┘                                  │                  └ back to its list
//!        respond ───┬── is it listed? ── a list each ──┘
//! TurnDone: owes ───┘
//! TurnDone ──> no longer busy
//! ```
//! A wake puts its QP on the list of whoever wakes it, unless the QP is on one of them already; who owes a response (woken by
//! `respond`, or by its turn that could not send all of them) is on a list of its own beside that. Lists are first in, first out, and take turns. A QP whose turn is under
//! way (`busy`) goes to the end of its list (if every QP is on that one, it stays until its turn is over). So one turn per QP is under way, and no wake is lost: a QP that is woken in the
//! very clock of its turn stays on its list, and the turn reads its words after every wake that it stands for.
//!
//! While segment has no `room` for data only the lists of responses are looked at, so responses do not queue behind payload and
//! nobody spins.
//! A fence request goes out as a turn of its own, before any list and behind all turns given.
//!
//! A doorbell that finds nobody on a list is its QP's turn at once.
//!
//! A reset of a QP takes it from no list: one turn more finds nothing to do.
//!
//! Throughput: a turn per 2 clocks, 3 if `unhurried`. Latency from wake to turn: 2 clocks, 3, of such a doorbell 1. Wakes are never refused, five and a
//! `TurnDone` in one clock: a list has a place for every QP. Back-pressure: `turn`.
//!
//! Requirements: CARD CMD REQ RESP

use crate::config::Config;
use crate::flow::{Turn, TurnDone, Wake, WakePulse};
use crate::prim::fifo::buffer;
use crate::prim::flags::Flags;
use crate::prim::later::{Pause, later, later_all, later_init};
use crate::prim::pick::round_robin;
use hdl::{
    Bundle, Module, Ports, Sig, Stream, any_of, assert_always, cat, high, index_width, low, mux, reg_init,
    select, when,
};

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
    /// segment has room for data.
    #[input]
    pub room: Sig,
    /// Turns.
    #[source(c.0.clone())]
    pub turn: Stream<Turn>,
    /// Pulse: some QP is on a list but no turn could be given.
    #[output]
    pub stall: Sig,
    /// No QP on a list or busy, no fence.
    #[output]
    pub idle: Sig,
}

/// Lists in the order of their turns, and what for: those of responses are not held up by data, and a QP may be on one of
/// each kind.
const LISTS: [(&str, bool); 7] = [
    ("doorbell", DATA),
    ("fetch", DATA),
    ("respond", RESPONSE),
    ("acknowledge", DATA),
    ("command", DATA),
    ("again", DATA),
    ("owes", RESPONSE),
];
const DATA: bool = false;
const RESPONSE: bool = true;
/// Those of them that there are without a host.
const WITHOUT_HOST: [&str; 3] = ["respond", "again", "owes"];

impl Module for Schedule {
    type Io = ScheduleIo;
    fn name(&self) -> String {
        format!("schedule_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("Turns for {} QPs, first come, first served.", self.0.qps)
    }
    fn body(&self, io: &ScheduleIo) {
        let c = &self.0;
        let n = c.qps;
        let number = index_width(LISTS.len() as u32);
        let of = |kind: bool| LISTS.iter().filter(|list| list.1 == kind).count() as u32;
        // on a list of data, on one of responses
        let listed = [Flags::new("listed", n, of(DATA)), Flags::new("listed_to_respond", n, of(RESPONSE))];
        let busy = Flags::new("busy", n, 1);
        io.done.ready.set(high());

        let turn_valid = reg_init("given", 1, 0);
        let turn = Turn::regs_zero(c, "given_turn");
        io.turn.valid.set(turn_valid);
        io.turn.data.assign(&turn);

        // the head of the next list that has one, from registers into a register
        let lists: Vec<Stream<Wake>> =
            LISTS.iter().map(|(name, _)| Stream::wires(c, &format!("enters_{name}"))).collect();
        let heads: Vec<Stream<Wake>> = LISTS
            .iter()
            .zip(&lists)
            .map(|((name, _), list)| {
                if c.host || WITHOUT_HOST.contains(name) {
                    return buffer(&format!("list_{name}"), c, n, list);
                }
                list.ready.set(high());
                let nobody = Stream::<Wake>::wires(c, &format!("nobody_of_{name}"));
                nobody.valid.set(low());
                nobody.data.assign_zero();
                nobody
            })
            .collect();
        let last = reg_init("last_list", number, LISTS.len() as u64 - 1);
        let waits: Vec<Sig> = heads
            .iter()
            .zip(LISTS)
            .map(|(head, (_, kind))| if kind == RESPONSE { head.valid } else { head.valid & io.room })
            .collect();
        let any = later_init(c, "any_waits", any_of(&waits));
        let waits = cat(&waits.iter().rev().copied().collect::<Vec<_>>()).named("waits");
        let list = round_robin(waits, last).named("chosen_list");
        let head =
            select(list, &heads.iter().map(|head| head.data.qp).collect::<Vec<_>>()).named("chosen_qp");
        let busy_head = later(c, "busy_of_turn", busy.at(head).named("busy_head"));
        let (list, head) = (later(c, "list_of_turn", list), later(c, "qp_of_turn", head));
        // who is the head changes with a look, who is busy with its turn
        let pause = Pause::new(c, "may_look");
        let looks = pause.over(!turn_valid & !io.fence_valid & any);
        pause.behind(|| looks);
        // else a doorbell in this very clock: its producer is read behind it
        let bell = &io.doorbell;
        let at_once = bell.valid & !busy.at(bell.qp) & io.room & !any & !turn_valid & !io.fence_valid;
        let at_once = at_once.named("at_once");
        let gives = (looks & !busy_head).named("gives");
        io.fence_ready.set(!turn_valid & io.fence_valid);
        when(io.turn.ready, || turn_valid.set(0));
        when((!turn_valid & io.fence_valid) | gives | at_once, || {
            turn_valid.set(1);
            turn.fence.set(io.fence_valid);
            when(!io.fence_valid, || turn.qp.set(mux(any, head, bell.qp)));
        });
        when(looks, || last.set(list));

        // who enters a list
        let rings = bell.valid & !at_once;
        let ended = later_init(c, "turn_ended", io.done.moves());
        let done = later_all(c, c, "turn_done", &io.done.data);
        let wakes = [
            (rings, bell.qp),
            (io.fetch.valid, io.fetch.qp),
            (io.respond.valid, io.respond.qp),
            (io.acknowledge.valid, io.acknowledge.qp),
            (io.command.valid, io.command.qp),
            (ended & done.again & !done.owes, done.qp),
            (ended & done.owes, done.qp),
        ];
        let mut before: [Vec<(Sig, Sig)>; 2] = [vec![], vec![]];
        let enters: Vec<(Sig, Sig)> = wakes
            .iter()
            .zip(LISTS)
            .map(|(&(wakes, qp), (_, kind))| {
                let before = &mut before[usize::from(kind)];
                // several may wake the same QP at once
                let first =
                    any_of(&before.iter().map(|&(enters, at)| enters & at.eq(qp)).collect::<Vec<_>>());
                let enters = (wakes & !listed[usize::from(kind)].at(qp) & !first, qp);
                before.push(enters);
                enters
            })
            .collect();
        // who is woken in the clock of its turn stays, and has another
        let to_respond = LISTS.iter().enumerate().filter(|(_, list)| list.1 == RESPONSE);
        let to_respond = to_respond.map(|(i, _)| list.eq(i as u64)).collect::<Vec<_>>();
        let to_respond = any_of(&to_respond).named("to_respond");
        let woken: Vec<Sig> = wakes
            .iter()
            .zip(LISTS)
            .map(|(&(wakes, qp), (_, kind))| {
                wakes & qp.eq(head) & if kind == RESPONSE { to_respond } else { !to_respond }
            })
            .collect();
        let leaves = (gives & !any_of(&woken)).named("leaves");
        listed[usize::from(DATA)].change(&before[usize::from(DATA)], (leaves & !to_respond, head));
        listed[usize::from(RESPONSE)].change(&before[usize::from(RESPONSE)], (leaves & to_respond, head));
        for (i, (enters, qp)) in enters.iter().enumerate() {
            // a busy QP goes to the end, in a clock in which nobody enters
            let mine = looks & list.eq(i as u64);
            let back = mine & busy_head & !*enters & lists[i].ready;
            let name = |what: &str| format!("{}_{what}", LISTS[i].0);
            lists[i].valid.set(later_init(c, &name("enters"), *enters | back));
            lists[i].data.qp.set(later(c, &name("enters_qp"), mux(*enters, *qp, head)));
            heads[i].ready.set(back | (mine & leaves));
            let entered = later_init(c, &name("entered"), *enters);
            assert_always(&name("has_a_place"), !entered | lists[i].ready);
        }

        // whose turn is under way
        busy.change(&[(gives | at_once, mux(any, head, bell.qp))], (ended, done.qp));
        let (bits, given) = (c.qp_bits() + 1, gives | at_once);
        let under_way = reg_init("under_way", bits, 0);
        under_way.set(under_way + given.extend(bits) - ended.extend(bits));

        let listed_any = any_of(&heads.iter().map(|head| head.valid).collect::<Vec<_>>());
        io.stall.set(listed_any & !gives & !io.fence_ready & !io.turn.moves());
        io.idle.set(!listed_any & under_way.none() & !io.fence_valid & !turn_valid);
    }
}
