//! From entries to the life of each work request, doorbell to CQE, on both cards.
//!
//! ```text
//! this card   Doorbell Schedule Fetch Fetched Schedule | Segment Gather Gathered Packetise MacSend    ...    | Retire Complete
//! the other                                   per sending of a packet:   MacReceive Verify Check Place Placed
//!                 per answer: Schedule Respond .. Packetise MacSend | MacReceive Verify Check Acknowledge (Place Placed)
//! ```
//!
//! In: the entries of one or two cards by one clock. Out: a [`Life`] per work request that was retired or completed. A
//! packet is found on the other card by the peer's QP number, PSN and opcode, before its next sending; what of a life is not in
//! the trace, since it was lost or the other card is not traced, is left out. Never: a step in two places of one life, or
//! a step before the one that it follows.

use super::Timed;
use contract::{Opcode, TraceEvent, WcOpcode};
use std::collections::HashMap;

/// READ responses of one work request that are looked at.
const MOST_ANSWERS: u32 = 4096;

/// The life of a work request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// The card that executed it.
    pub card: usize,
    /// Its QP.
    pub qp: u16,
    /// Its index in the send queue.
    pub index: u16,
    /// What it was; none if it ended in error before that was told.
    pub opcode: Option<WcOpcode>,
    /// Doorbell to the turn that found it.
    pub head: Vec<Timed>,
    /// Every sending of every packet, in order.
    pub packets: Vec<Vec<Timed>>,
    /// What answered it: the last acknowledgement, or every response of a READ.
    pub answers: Vec<Vec<Timed>>,
    /// Retire and Complete.
    pub tail: Vec<Timed>,
}

impl Life {
    /// The way of its last packet and of its last answer, doorbell to CQE, in order of time.
    pub fn path(&self) -> Vec<Timed> {
        let last = |all: &[Vec<Timed>]| all.last().cloned().unwrap_or_default();
        let mut path =
            [self.head.clone(), last(&self.packets), last(&self.answers), self.tail.clone()].concat();
        path.sort_by_key(|step| step.ticks);
        path
    }
}

/// Entries by what they are looked up by: (card, event, QP, key), in order of time.
struct Index(HashMap<(usize, TraceEvent, u16, u32), Vec<Timed>>);

/// Key of entries that are looked up by time alone.
const ANY: u32 = u32::MAX;

impl Index {
    fn new(events: &[Timed]) -> Index {
        use TraceEvent::*;
        let mut sorted: Vec<Timed> = events.to_vec();
        sorted.sort_by_key(|timed| timed.ticks);
        let mut lists: HashMap<_, Vec<Timed>> = HashMap::new();
        for timed in sorted {
            let (Some(event), e) = (timed.event(), &timed.entry) else { continue };
            let key = match event {
                Doorbell | Schedule | Fetch | Notify => ANY,
                Fetched | Gathered => e.detail.into(),
                MacSend | MacReceive | Segment | Retire | Complete => e.index.into(),
                Respond | Gather | Packetise | Verify | Check | Place | Placed | Acknowledge | Reject => {
                    e.psn
                }
            };
            lists.entry((timed.card, event, e.qp, key)).or_default().push(timed);
            if event == Acknowledge {
                lists.entry((timed.card, event, e.qp, ANY)).or_default().push(timed);
            }
        }
        Index(lists)
    }
    fn all(&self, card: usize, event: TraceEvent, qp: u16, key: u32) -> &[Timed] {
        self.0.get(&(card, event, qp, key)).map_or(&[], |list| list)
    }
    /// The first at `from` or later that fits.
    fn after(
        &self,
        (card, event, qp, key): (usize, TraceEvent, u16, u32),
        from: u64,
        fits: impl Fn(&Timed) -> bool,
    ) -> Option<Timed> {
        let list = self.all(card, event, qp, key);
        let start = list.partition_point(|timed| timed.ticks < from);
        list[start..].iter().copied().find(&fits)
    }
    /// The last at `to` or earlier that fits.
    fn before(
        &self,
        (card, event, qp, key): (usize, TraceEvent, u16, u32),
        to: u64,
        fits: impl Fn(&Timed) -> bool,
    ) -> Option<Timed> {
        let list = self.all(card, event, qp, key);
        let end = list.partition_point(|timed| timed.ticks <= to);
        list[..end].iter().rev().copied().find(&fits)
    }
}

fn any(_: &Timed) -> bool {
    true
}

/// The lives in these entries, in order of their ends.
pub fn lives(events: &[Timed]) -> Vec<Life> {
    let index = Index::new(events);
    let mut ends: Vec<Timed> = events.iter().copied().filter(|end| ends_a_life(&index, end)).collect();
    ends.sort_by_key(|end| end.ticks);
    ends.iter().map(|end| life(&index, end)).collect()
}

/// A Retire, or the Complete of a send that failed and so was never retired.
fn ends_a_life(index: &Index, end: &Timed) -> bool {
    let e = &end.entry;
    match end.event() {
        Some(TraceEvent::Retire) => true,
        // a receive that fails has not been cut into packets
        Some(TraceEvent::Complete) if e.detail != 0 => {
            !index.all(end.card, TraceEvent::Segment, e.qp, e.index.into()).is_empty()
                && !matches!(WcOpcode::from_code(e.opcode), Some(WcOpcode::Recv | WcOpcode::RecvRdmaWithImm))
        }
        _ => false,
    }
}

fn life(index: &Index, end: &Timed) -> Life {
    use TraceEvent::*;
    let (card, qp, wqe) = (end.card, end.entry.qp, end.entry.index);
    // one lap ago the index was another work request
    let born = end.ticks.checked_sub(1).and_then(|to| index.before((card, Retire, qp, wqe.into()), to, any));
    let born = born.map_or(0, |retire| retire.ticks + 1);
    let segments: Vec<Timed> = index
        .all(card, Segment, qp, wqe.into())
        .iter()
        .copied()
        .filter(|segment| (born..=end.ticks).contains(&segment.ticks))
        .collect();
    let packets: Vec<Vec<Timed>> = segments.iter().map(|segment| sending(index, segment)).collect();
    let peer = packets.iter().flatten().find(|step| step.event() == Some(Packetise));
    let peer = peer.map(|packetise| (1 - card.min(1), packetise.entry.detail));
    let mut tail = vec![*end];
    let mut answers = vec![];
    if end.event() == Some(Retire) {
        // a receive of the same index is another's
        let own = |step: &Timed| end.entry.detail != 0 && step.entry.opcode == end.entry.opcode;
        tail.extend(index.after((card, Complete, qp, wqe.into()), end.ticks, own));
        answers = answered(index, end, segments.first(), peer);
    }
    Life {
        card,
        qp,
        index: wqe,
        opcode: WcOpcode::from_code(end.entry.opcode),
        head: segments.first().map_or_else(Vec::new, |first| head(index, first, born)),
        packets,
        answers,
        tail,
    }
}

/// Doorbell, turn, read of the WQE, the turn that finds it.
fn head(index: &Index, first: &Timed, born: u64) -> Vec<Timed> {
    use TraceEvent::*;
    let (card, qp, wqe) = (first.card, first.entry.qp, first.entry.index);
    let bells = index.all(card, Doorbell, qp, ANY);
    let end = bells.partition_point(|bell| bell.ticks <= first.ticks);
    let covers = |bell: &&Timed| bell.ticks >= born && (bell.entry.index.wrapping_sub(wqe) as i16) >= 1;
    let bell = bells[..end].iter().rev().take_while(covers).last();
    let born = bell.map_or(born, |bell| bell.ticks);
    let mut head: Vec<Timed> = bell.copied().into_iter().collect();
    let brings = |fetch: &Timed| wqe.wrapping_sub(fetch.entry.index) < fetch.entry.opcode.into();
    let fetch =
        index.before((card, Fetch, qp, ANY), first.ticks, |fetch| fetch.ticks >= born && brings(fetch));
    let mut ready = born;
    if let Some(fetch) = fetch.filter(|fetch| fetch.ticks >= born) {
        head.extend(index.before((card, Schedule, qp, ANY), fetch.ticks, |turn| turn.ticks >= born));
        head.push(fetch);
        let slot = fetch.entry.detail.into();
        if let Some(fetched) = index.after((card, Fetched, qp, slot), fetch.ticks, any) {
            ready = fetched.ticks;
            head.push(fetched);
        }
    }
    head.extend(index.before((card, Schedule, qp, ANY), first.ticks, |turn| turn.ticks >= ready));
    head
}

/// A packet from its Segment to the other card's memory.
fn sending(index: &Index, segment: &Timed) -> Vec<Timed> {
    use TraceEvent::*;
    let (card, qp, psn) = (segment.card, segment.entry.qp, segment.entry.psn);
    let same = |step: &Timed| step.entry.opcode == segment.entry.opcode;
    let mut steps = vec![*segment];
    let Some(gather) = index.after((card, Gather, qp, psn), segment.ticks, same) else { return steps };
    steps.push(gather);
    // one that was dropped on its way has none: what comes after the next sending is that one's
    let next = index.after((card, Gather, qp, psn), gather.ticks + 1, same);
    let next = next.map_or(u64::MAX, |next| next.ticks);
    let packetise = index.after((card, Packetise, qp, psn), gather.ticks, same);
    let Some(packetise) = packetise.filter(|step| step.ticks <= next) else { return steps };
    steps.extend(gathered(index, &gather, &packetise));
    steps.push(packetise);
    let Some(sent) = index.after((card, MacSend, 0, packetise.entry.index.into()), packetise.ticks, any)
    else {
        return steps;
    };
    steps.push(sent);
    // what comes after the next sending of the same packet is that one's
    let again = index.after((card, Packetise, qp, psn), packetise.ticks + 1, same);
    let again = again.map_or(u64::MAX, |again| again.ticks);
    let (card, qp) = (1 - card.min(1), packetise.entry.detail);
    let comes = index.after((card, Verify, qp, psn), sent.ticks, same).filter(|step| step.ticks <= again);
    let Some(verify) = comes else { return steps };
    steps.extend(index.before((card, MacReceive, 0, verify.entry.index.into()), verify.ticks, any));
    steps.push(verify);
    let next =
        index.after((card, Verify, qp, psn), verify.ticks + 1, same).map_or(u64::MAX, |next| next.ticks);
    let judged = [Check, Reject].map(|event| index.after((card, event, qp, psn), verify.ticks, same));
    let Some(check) = judged.into_iter().flatten().min_by_key(|step| step.ticks) else { return steps };
    steps.push(check);
    // a duplicate is answered again in its place
    let again = check.entry.detail == u16::from(crate::Reject::Duplicate.code());
    if check.event() == Some(Check) || again {
        let place = index.after((card, Place, qp, psn), check.ticks, any).filter(|step| step.ticks <= next);
        let placed = place.and_then(|place| index.after((card, Placed, qp, psn), place.ticks, any));
        steps.extend(place);
        steps.extend(placed);
    }
    steps
}

/// The end of the last read of payload between room and headers.
fn gathered(index: &Index, gather: &Timed, packetise: &Timed) -> Option<Timed> {
    let key = (gather.card, TraceEvent::Gathered, 0, gather.entry.detail.into());
    index.before(key, packetise.ticks, |step| step.ticks >= gather.ticks)
}

/// What answered it.
fn answered(
    index: &Index,
    retire: &Timed,
    first: Option<&Timed>,
    peer: Option<(usize, u16)>,
) -> Vec<Vec<Timed>> {
    use TraceEvent::*;
    let (card, qp) = (retire.card, retire.entry.qp);
    let brings = |step: &Timed| brings_data(step.entry.opcode);
    let data = matches!(
        WcOpcode::from_code(retire.entry.opcode),
        Some(WcOpcode::RdmaRead | WcOpcode::CompSwap | WcOpcode::FetchAdd)
    );
    let looked_at: Vec<Timed> = match first {
        Some(first) if data => {
            let span = retire.entry.psn.wrapping_sub(first.entry.psn) & 0xff_ffff;
            let psns = (0..=span.min(MOST_ANSWERS)).map(|n| first.entry.psn.wrapping_add(n) & 0xff_ffff);
            let of = |psn| {
                let step = index.before((card, Acknowledge, qp, psn), retire.ticks, brings);
                step.filter(|step| step.ticks >= first.ticks)
            };
            psns.filter_map(of).collect()
        }
        _ => {
            let from = first.map_or(0, |first| first.ticks);
            let step = index.before((card, Acknowledge, qp, ANY), retire.ticks, |step| step.ticks >= from);
            step.into_iter().collect()
        }
    };
    looked_at.iter().map(|step| answer(index, step, retire, peer)).collect()
}

fn brings_data(opcode: u8) -> bool {
    opcode != Opcode::RcAcknowledge.code()
}

/// An answer, from the other card's turn to the look at it, and into memory if it brings data.
fn answer(index: &Index, step: &Timed, retire: &Timed, peer: Option<(usize, u16)>) -> Vec<Timed> {
    use TraceEvent::*;
    let (card, qp, psn) = (step.card, step.entry.qp, step.entry.psn);
    let same = |other: &Timed| other.entry.opcode == step.entry.opcode;
    let check = index.before((card, Check, qp, psn), step.ticks, same);
    let verify = check.and_then(|check| index.before((card, Verify, qp, psn), check.ticks, same));
    let number = verify.map(|verify| (card, MacReceive, 0, verify.entry.index.into()));
    let comes = verify.and_then(|verify| index.before(number?, verify.ticks, any));
    let mut steps = vec![];
    if let (Some(comes), Some((other, its))) = (comes, peer)
        && let Some(packetise) = index.before((other, Packetise, its, psn), comes.ticks, same)
    {
        if let Some(respond) = index.before((other, Respond, its, psn), packetise.ticks, any) {
            // a plain acknowledgement has no turn: place sends it
            let placed = index.before((other, Placed, its, psn), respond.ticks, any);
            let placed = placed.map_or(0, |placed| placed.ticks);
            steps.extend(
                index.before((other, Schedule, its, ANY), respond.ticks, |turn| turn.ticks >= placed),
            );
            steps.push(respond);
            let gather =
                index.before((other, Gather, its, psn), packetise.ticks, |step| step.ticks >= respond.ticks);
            steps.extend(gather);
            steps.extend(gather.and_then(|gather| gathered(index, &gather, &packetise)));
        }
        steps.push(packetise);
        steps.extend(index.after((other, MacSend, 0, packetise.entry.index.into()), packetise.ticks, any));
    }
    steps.extend([comes, verify, check, Some(*step)].into_iter().flatten());
    if brings_data(step.entry.opcode) {
        // place knows it by its work request
        let own = |place: &Timed| place.entry.index == retire.entry.index;
        let place = index.after((card, Place, qp, 0), step.ticks, own);
        steps.extend(place);
        steps.extend(place.and_then(|place| index.after((card, Placed, qp, 0), place.ticks, own)));
    }
    steps
}

/// Of several lives the same piece of their ways.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// From: the card that executes the request (0) or the other (1), and what happened.
    pub from: (usize, TraceEvent),
    /// To, likewise.
    pub to: (usize, TraceEvent),
    /// Ticks of each life, ascending.
    pub ticks: Vec<u64>,
}

impl Row {
    /// Least, median and most.
    pub fn spread(&self) -> (u64, u64, u64) {
        let at = |i: usize| self.ticks.get(i).copied().unwrap_or(0);
        (at(0), at(self.ticks.len() / 2), at(self.ticks.len().saturating_sub(1)))
    }
}

/// Where the time of these lives went, in the order of the way, and their whole times (from the doorbell to the CQE, or the
/// retirement of what has none), ascending.
pub fn breakdown(lives: &[&Life]) -> (Vec<Row>, Vec<u64>) {
    struct Found {
        row: Row,
        /// Sum of the times since the doorbell at which it began.
        begins: u64,
    }
    let (mut found, mut whole) = (Vec::<Found>::new(), Vec::new());
    for life in lives {
        let path = life.path();
        let Some(start) = path.first().filter(|step| step.event() == Some(TraceEvent::Doorbell)) else {
            continue;
        };
        whole.extend(path.last().map(|end| end.ticks - start.ticks));
        let mut seen = HashMap::new();
        let side = |step: &Timed| usize::from(step.card != life.card);
        for pair in path.windows(2) {
            let (Some(from), Some(to)) = (pair[0].event(), pair[1].event()) else { continue };
            let key = ((side(&pair[0]), from), (side(&pair[1]), to));
            let nth = seen.entry(key).and_modify(|n| *n += 1).or_insert(0);
            let ticks = pair[1].ticks - pair[0].ticks;
            let begins = pair[0].ticks - start.ticks;
            let mut same = found.iter_mut().filter(|found| (found.row.from, found.row.to) == key);
            match same.nth(*nth) {
                Some(found) => {
                    found.row.ticks.push(ticks);
                    found.begins += begins;
                }
                None => {
                    found.push(Found { row: Row { from: key.0, to: key.1, ticks: vec![ticks] }, begins });
                }
            }
        }
    }
    found.sort_by_key(|found| found.begins / found.row.ticks.len() as u64);
    whole.sort_unstable();
    let sorted = |mut row: Row| {
        row.ticks.sort_unstable();
        row
    };
    (found.into_iter().map(|found| sorted(found.row)).collect(), whole)
}

/// The breakdown as a table of lines: where the time of a request went, stage by stage.
pub fn table(lives: &[&Life], core_clock_khz: u32) -> Vec<String> {
    let (rows, whole) = breakdown(lives);
    let nanoseconds = |ticks: u64| ticks as f64 * 1e6 / f64::from(core_clock_khz);
    let total: u64 = whole.iter().sum();
    let line = |name: String, ticks: &[u64]| {
        let row =
            Row { from: (0, TraceEvent::Doorbell), to: (0, TraceEvent::Complete), ticks: ticks.to_vec() };
        let (least, median, most) = row.spread();
        let share = ticks.iter().sum::<u64>() as f64 * 100.0 / total.max(1) as f64;
        format!(
            "{name:<44}{:>6}{:>10.0}{:>10.0}{:>10.0}{share:>7.1}%",
            ticks.len(),
            nanoseconds(least),
            nanoseconds(median),
            nanoseconds(most)
        )
    };
    let place = |(side, event): (usize, TraceEvent)| (["own card", "peer"][side], event.name());
    let mut lines = vec![format!(
        "{:<44}{:>6}{:>10}{:>10}{:>10}{:>8}",
        "from > to", "times", "least ns", "median", "most", "share"
    )];
    for row in &rows {
        let ((card, from), (other, to)) = (place(row.from), place(row.to));
        let name = match card == other {
            true => format!("{card}: {from} > {to}"),
            false => format!("{card}: {from} > {other}: {to}"),
        };
        lines.push(line(name, &row.ticks));
    }
    lines.push(line("Doorbell to the end".to_owned(), &whole));
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::TraceEntry;

    /// Entries of a WRITE of one packet: QP 3 on card 0, QP 5 on card 1.
    struct Script(Vec<Timed>);

    impl Script {
        fn tell(&mut self, card: usize, ticks: u64, event: TraceEvent, entry: TraceEntry) {
            let entry = TraceEntry { event: event.code(), time: ticks, ..entry };
            self.0.push(Timed { card, ticks, entry });
        }
        /// A packet of WQE `wqe`, as frame `frame`; it arrives or not.
        fn packet(&mut self, at: u64, wqe: u16, psn: u32, frame: u16, arrives: bool) {
            use TraceEvent::*;
            let e = TraceEntry { qp: 3, index: wqe, psn, opcode: 0x0a, ..TraceEntry::default() };
            self.tell(0, at, Segment, e);
            self.tell(0, at + 2, Gather, TraceEntry { detail: frame % 32, ..e });
            self.tell(0, at + 9, Gathered, TraceEntry { detail: frame % 32, ..TraceEntry::default() });
            self.tell(0, at + 12, Packetise, TraceEntry { index: frame, detail: 5, ..e });
            self.tell(0, at + 20, MacSend, TraceEntry { index: frame, ..TraceEntry::default() });
            if arrives {
                let e = TraceEntry { qp: 5, index: frame, psn, opcode: 0x0a, ..TraceEntry::default() };
                self.tell(1, at + 40, MacReceive, TraceEntry { index: frame, ..TraceEntry::default() });
                self.tell(1, at + 44, Verify, e);
                self.tell(1, at + 48, Check, e);
                self.tell(1, at + 52, Place, TraceEntry { opcode: 0, ..e });
                self.tell(1, at + 58, Placed, TraceEntry { opcode: 0, ..e });
            }
        }
        /// An acknowledgement as far as `psn`, as frame `frame` of card 1, retiring these WQEs with these last PSNs.
        fn acknowledge(&mut self, at: u64, psn: u32, frame: u16, retires: &[(u16, u32)]) {
            use TraceEvent::*;
            let e = TraceEntry { qp: 5, psn, opcode: 0x11, ..TraceEntry::default() };
            self.tell(1, at, Schedule, TraceEntry { psn: 0, opcode: 0, ..e });
            self.tell(1, at + 3, Respond, e);
            self.tell(1, at + 7, Packetise, TraceEntry { index: frame, detail: 3, ..e });
            self.tell(1, at + 15, MacSend, TraceEntry { index: frame, ..TraceEntry::default() });
            let e = TraceEntry { qp: 3, index: frame, ..e };
            self.tell(0, at + 40, MacReceive, TraceEntry { index: frame, ..TraceEntry::default() });
            self.tell(0, at + 44, Verify, e);
            self.tell(0, at + 48, Check, e);
            self.tell(0, at + 52, Acknowledge, e);
            for (n, (wqe, last)) in (0..).zip(retires) {
                let e =
                    TraceEntry { qp: 3, index: *wqe, psn: *last, detail: 1, opcode: 1, event: 0, time: 0 };
                self.tell(0, at + 55 + n, Retire, e);
                self.tell(0, at + 60 + n, Complete, TraceEntry { detail: 0, ..e });
            }
        }
    }

    fn names(steps: &[Timed]) -> Vec<&'static str> {
        steps.iter().filter_map(Timed::event).map(TraceEvent::name).collect()
    }

    #[test]
    fn a_packet_that_is_lost_and_goes_again_is_one_life_with_two_sendings() {
        let mut script = Script(vec![]);
        let bell = TraceEntry { qp: 3, index: 8, ..TraceEntry::default() };
        script.tell(0, 100, TraceEvent::Doorbell, bell);
        script.tell(0, 103, TraceEvent::Schedule, bell);
        script.packet(110, 7, 500, 0, false);
        script.packet(5000, 7, 500, 1, true);
        script.acknowledge(5060, 500, 0, &[(7, 500)]);
        let all = lives(&script.0);
        assert_eq!(all.len(), 1);
        let life = &all[0];
        assert_eq!((life.card, life.qp, life.index), (0, 3, 7));
        assert_eq!(names(&life.head), ["Doorbell", "Schedule"]);
        let sent = ["Segment", "Gather", "Gathered", "Packetise", "MacSend"];
        assert_eq!(names(&life.packets[0]), sent);
        let arrived = ["MacReceive", "Verify", "Check", "Place", "Placed"];
        assert_eq!(names(&life.packets[1]), [sent, arrived].concat());
        let path = life.path();
        assert_eq!(path.first().zip(path.last()).map(|(a, b)| b.ticks - a.ticks), Some(5120 - 100));
        assert!(path.windows(2).all(|pair| pair[0].ticks <= pair[1].ticks));
        let (rows, whole) = breakdown(&[life]);
        assert_eq!(whole, [5020]);
        assert_eq!(rows.iter().flat_map(|row| &row.ticks).sum::<u64>(), 5020, "the rows are the whole");
        let across = ((0, TraceEvent::MacSend), (1, TraceEvent::MacReceive));
        let wire = rows.iter().find(|row| (row.from, row.to) == across).expect("a wire");
        assert_eq!(wire.spread(), (20, 20, 20));
    }

    #[test]
    fn a_sending_that_the_card_dropped_has_no_step_of_the_next() {
        let mut script = Script(vec![]);
        script.packet(110, 7, 500, 0, false);
        script.0.retain(|timed| timed.ticks < 119);
        script.packet(5000, 7, 500, 1, true);
        script.acknowledge(5060, 500, 0, &[(7, 500)]);
        let life = &lives(&script.0)[0];
        assert_eq!(names(&life.packets[0]), ["Segment", "Gather"]);
        assert_eq!(life.packets[1].len(), 10);
    }

    #[test]
    fn one_acknowledgement_answers_all_that_it_retires() {
        let mut script = Script(vec![]);
        for (n, wqe) in [65_535u16, 0].into_iter().enumerate() {
            let bell = TraceEntry { qp: 3, index: wqe.wrapping_add(1), ..TraceEntry::default() };
            script.tell(0, 100 + 20 * n as u64, TraceEvent::Doorbell, bell);
            script.packet(200 + 20 * n as u64, wqe, (0xff_ffff + n as u32) & 0xff_ffff, n as u16, true);
        }
        script.acknowledge(300, 0, 0, &[(65_535, 0xff_ffff), (0, 0)]);
        let all = lives(&script.0);
        assert_eq!(all.iter().map(|life| life.index).collect::<Vec<_>>(), [65_535, 0]);
        for (life, begins) in all.iter().zip([100, 120]) {
            assert_eq!(life.head.first().map(|bell| bell.ticks), Some(begins), "each has its own doorbell");
            assert_eq!(names(&life.answers[0]).len(), 8);
            assert_eq!(names(&life.tail), ["Retire", "Complete"]);
        }
    }

    #[test]
    fn an_index_that_comes_again_is_another_life() {
        let mut script = Script(vec![]);
        for at in [0, 10_000] {
            script.packet(at, 7, 500 + at as u32, (at / 1000) as u16, true);
            script.acknowledge(at + 100, 500 + at as u32, (at / 1000) as u16, &[(7, 500 + at as u32)]);
        }
        let all = lives(&script.0);
        assert_eq!(all.iter().map(|life| life.packets.len()).collect::<Vec<_>>(), [1, 1]);
    }

    #[test]
    fn without_the_other_card_its_steps_are_missing_and_the_rest_stands() {
        let mut script = Script(vec![]);
        script.packet(0, 7, 500, 0, true);
        script.acknowledge(100, 500, 0, &[(7, 500)]);
        script.0.retain(|timed| timed.card == 0);
        let life = &lives(&script.0)[0];
        assert_eq!(names(&life.packets[0]), ["Segment", "Gather", "Gathered", "Packetise", "MacSend"]);
        assert_eq!(names(&life.answers[0]), ["MacReceive", "Verify", "Check", "Acknowledge"]);
    }
}
