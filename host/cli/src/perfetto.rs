//! A timeline of lives as a Perfetto trace (`.pftrace`), for ui.perfetto.dev.
//!
//! ```text
//! card0            doorbell  [..]
//!                  segment        [..]                  a track per stage, a slice per step; arrows follow a packet
//!                  mac                    [..]--.       from stage to stage and from card to card
//! card1            mac                          '->[..]
//! ```
//!
//! In: lives and the entries that they were made of, by one clock. Out: the bytes of the file. A slice lies on the track of
//! its event's stage, from the step before it on that card to its own time. Slices of a stage may overlap: then the stage
//! has several tracks of one name, which the viewer shows as one. Refusals are instants of the stage that refuses. Field numbers are
//! those of `perfetto_trace.proto`; nothing is interned, so every packet stands for itself.

use contract::{Reject, Stage, TraceEvent};
use host::trace::{Timed, life::Life};
use prost::Message;
use std::collections::{BTreeMap, HashMap};

/// The whole file.
#[derive(Clone, PartialEq, Message)]
struct Trace {
    #[prost(message, repeated, tag = "1")]
    packet: Vec<TracePacket>,
}

#[derive(Clone, PartialEq, Message)]
struct TracePacket {
    #[prost(uint64, optional, tag = "8")]
    timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    trusted_packet_sequence_id: Option<u32>,
    #[prost(message, optional, tag = "11")]
    track_event: Option<TrackEvent>,
    #[prost(uint32, optional, tag = "13")]
    sequence_flags: Option<u32>,
    #[prost(message, optional, tag = "60")]
    track_descriptor: Option<TrackDescriptor>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    name: Option<String>,
    #[prost(uint64, optional, tag = "5")]
    parent_uuid: Option<u64>,
    #[prost(int32, optional, tag = "11")]
    child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    sibling_order_rank: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    track_uuid: Option<u64>,
    #[prost(string, repeated, tag = "22")]
    categories: Vec<String>,
    #[prost(string, optional, tag = "23")]
    name: Option<String>,
    #[prost(fixed64, repeated, packed = "false", tag = "47")]
    flow_ids: Vec<u64>,
    #[prost(fixed64, repeated, packed = "false", tag = "48")]
    terminating_flow_ids: Vec<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct DebugAnnotation {
    #[prost(uint64, optional, tag = "3")]
    uint_value: Option<u64>,
    #[prost(string, optional, tag = "10")]
    name: Option<String>,
}

const BEGIN: i32 = 1;
const END: i32 = 2;
const INSTANT: i32 = 3;
/// Children of a track in the order of their ranks.
const EXPLICIT: i32 = 3;
/// The state of the sequence starts here.
const CLEARED: u32 = 1;

/// A step of one or several lives on the timeline.
struct Slice {
    step: Timed,
    begin: u64,
    name: String,
    again: bool,
    flows: Vec<u64>,
    ends: Vec<u64>,
}

/// A stage of a card, and which of its tracks.
type Track = (usize, u8, u64);

fn uuid((card, stage, lane): Track) -> u64 {
    (card as u64 + 1) << 32 | (u64::from(stage) + 1) << 16 | lane
}

fn parent(card: usize) -> u64 {
    (card as u64 + 1) << 32
}

/// The timeline; `names` are those of the cards.
pub fn timeline(events: &[Timed], lives: &[Life], names: &[String], core_clock_khz: u32) -> Vec<u8> {
    let nanoseconds = |ticks: u64| (u128::from(ticks) * 1_000_000 / u128::from(core_clock_khz)) as u64;
    let slices = slices(lives);
    let mut lanes: HashMap<(usize, u8), Vec<u64>> = HashMap::new();
    let mut tracks: BTreeMap<Track, &'static str> = BTreeMap::new();
    // time, ends before begins
    let mut told: Vec<(u64, bool, TrackEvent)> = Vec::new();
    for slice in &slices {
        let (card, Some(event)) = (slice.step.card, slice.step.event()) else { continue };
        let stage = event.stage();
        let free = lanes.entry((card, stage.code())).or_default();
        let lane = free.iter().position(|end| *end <= slice.begin).unwrap_or(free.len());
        if lane == free.len() {
            free.push(0);
        }
        free[lane] = slice.step.ticks;
        let track = (card, stage.code(), lane as u64);
        tracks.insert(track, stage.name());
        let e = &slice.step.entry;
        let number =
            |name: &str, value: u64| DebugAnnotation { name: Some(name.into()), uint_value: Some(value) };
        let begin = TrackEvent {
            r#type: Some(BEGIN),
            track_uuid: Some(uuid(track)),
            name: Some(slice.name.clone()),
            categories: vec![if slice.again { "again" } else { "first" }.into()],
            flow_ids: slice.flows.clone(),
            terminating_flow_ids: slice.ends.clone(),
            debug_annotations: vec![
                number("qp", e.qp.into()),
                number("index", e.index.into()),
                number("psn", e.psn.into()),
                number("opcode", e.opcode.into()),
                number("detail", e.detail.into()),
                number("clocks", slice.step.ticks - slice.begin),
            ],
        };
        let end = TrackEvent { r#type: Some(END), track_uuid: Some(uuid(track)), ..TrackEvent::default() };
        told.push((slice.begin, true, begin));
        told.push((slice.step.ticks, false, end));
    }
    for refusal in events.iter().filter(|timed| timed.event() == Some(TraceEvent::Reject)) {
        let reject = u8::try_from(refusal.entry.detail).ok().and_then(Reject::from_code);
        let stage = reject.map_or(Stage::Pcie, Reject::stage);
        let track = (refusal.card, stage.code(), 0);
        tracks.insert(track, stage.name());
        let instant = TrackEvent {
            r#type: Some(INSTANT),
            track_uuid: Some(uuid(track)),
            name: Some(reject.map_or("refused", Reject::name).into()),
            categories: vec!["refused".into()],
            ..TrackEvent::default()
        };
        told.push((refusal.ticks, true, instant));
    }
    told.sort_by_key(|(time, begins, _)| (*time, *begins));

    let mut trace = Trace::default();
    let sequence = |packet: TracePacket| TracePacket { trusted_packet_sequence_id: Some(1), ..packet };
    let describe =
        |descriptor| sequence(TracePacket { track_descriptor: Some(descriptor), ..Default::default() });
    for (card, name) in names.iter().enumerate() {
        trace.packet.push(describe(TrackDescriptor {
            uuid: Some(parent(card)),
            name: Some(name.clone()),
            child_ordering: Some(EXPLICIT),
            ..TrackDescriptor::default()
        }));
    }
    for (track, name) in tracks {
        trace.packet.push(describe(TrackDescriptor {
            uuid: Some(uuid(track)),
            name: Some(name.to_lowercase()),
            parent_uuid: Some(parent(track.0)),
            sibling_order_rank: Some(track.1.into()),
            ..TrackDescriptor::default()
        }));
    }
    if let Some(first) = trace.packet.first_mut() {
        first.sequence_flags = Some(CLEARED);
    }
    trace.packet.extend(told.into_iter().map(|(time, _, event)| {
        sequence(TracePacket {
            timestamp: Some(nanoseconds(time)),
            track_event: Some(event),
            ..Default::default()
        })
    }));
    trace.encode_to_vec()
}

/// Every step once, with the arrows that go through it, in order of their begins.
fn slices(lives: &[Life]) -> Vec<Slice> {
    let mut slices: Vec<Slice> = Vec::new();
    // an acknowledgement may answer several
    let mut places: HashMap<(usize, u64, [u8; 16]), usize> = HashMap::new();
    for (number, life) in (1..).zip(lives) {
        let word = life.opcode.map_or("?", |opcode| opcode.name());
        let mut flow = |id: u64, ways: &[&[Timed]], again: bool| {
            let mut before: HashMap<usize, u64> = HashMap::new();
            let mut last = None;
            for step in ways.iter().copied().flatten() {
                let Some(event) = step.event() else { continue };
                let key = (step.card, step.ticks, step.entry.pack());
                let at = *places.entry(key).or_insert_with(|| {
                    // what a frame waits for at its end is not the mac's time; at least a clock, so that ends stand
                    // behind their begins
                    let before = before.get(&step.card).filter(|_| event != TraceEvent::MacReceive);
                    let begin = before.copied().unwrap_or(u64::MAX);
                    slices.push(Slice {
                        step: *step,
                        begin: begin.min(step.ticks.saturating_sub(1)),
                        name: format!("{} {word} wqe {} psn {:#x}", event.name(), life.index, step.entry.psn),
                        again,
                        flows: vec![],
                        ends: vec![],
                    });
                    slices.len() - 1
                });
                slices[at].flows.push(id);
                before.insert(step.card, step.ticks);
                last = Some(at);
            }
            if let Some(at) = last {
                slices[at].flows.retain(|flow| *flow != id);
                slices[at].ends.push(id);
            }
        };
        let packets = life.packets.len();
        for (n, packet) in life.packets.iter().enumerate() {
            let again = packet.first().is_some_and(|segment| segment.entry.detail >> 15 != 0);
            let id = number << 20 | (n as u64) << 1;
            if n + 1 < packets {
                flow(id, &[&life.head, packet], again);
            } else {
                let answer = life.answers.last().map_or(&[][..], |answer| answer);
                flow(id, &[&life.head, packet, answer, &life.tail], again);
            }
        }
        for (n, answer) in life.answers.iter().rev().skip(1).enumerate() {
            flow(number << 20 | (n as u64) << 1 | 1, &[answer], false);
        }
    }
    slices.sort_by_key(|slice| (slice.begin, slice.step.ticks));
    slices
}

#[cfg(test)]
mod tests {
    use super::*;
    use contract::TraceEntry;

    fn step(card: usize, ticks: u64, event: TraceEvent, index: u16) -> Timed {
        let entry = TraceEntry { event: event.code(), qp: 3, index, psn: 77, ..TraceEntry::default() };
        Timed { card, ticks, entry }
    }

    /// What a reader of the file must find: descriptors first, slices that nest, arrows of ascending time.
    fn judge(bytes: &[u8]) -> (Vec<String>, HashMap<u64, Vec<u64>>) {
        let trace = Trace::decode(bytes).expect("well formed");
        let (mut tracks, mut open, mut flows) =
            (HashMap::new(), HashMap::new(), HashMap::<u64, Vec<u64>>::new());
        let (mut names, mut time) = (vec![], 0);
        for packet in &trace.packet {
            assert_eq!(packet.trusted_packet_sequence_id, Some(1));
            if let Some(track) = &packet.track_descriptor {
                assert!(time == 0, "a track stands before the events");
                let parent = track.parent_uuid.map(|parent| tracks[&parent]);
                names.push(format!("{:?} {}", parent, track.name()));
                tracks.insert(track.uuid(), track.sibling_order_rank.unwrap_or(-1));
                continue;
            }
            let event = packet.track_event.as_ref().expect("a track or an event");
            assert!(packet.timestamp() >= time && tracks.contains_key(&event.track_uuid()));
            time = packet.timestamp();
            let depth = open.entry(event.track_uuid()).or_insert(0);
            *depth += match event.r#type() {
                BEGIN => 1,
                END => -1,
                _ => 0,
            };
            assert!((0..=1).contains(depth), "slices of one track do not overlap");
            for flow in event.flow_ids.iter().chain(&event.terminating_flow_ids) {
                flows.entry(*flow).or_default().push(time);
            }
        }
        assert!(open.values().all(|depth| *depth == 0) && flows.values().all(|times| times.is_sorted()));
        (names, flows)
    }

    #[test]
    fn steps_are_slices_of_their_stage_and_arrows_follow_a_packet_from_card_to_card() {
        use TraceEvent::*;
        let life = |at: u64, wqe: u16| Life {
            card: 0,
            qp: 3,
            index: wqe,
            opcode: Some(host::WcOpcode::RdmaWrite),
            head: vec![step(0, at, Doorbell, wqe), step(0, at + 4, Schedule, wqe)],
            packets: vec![vec![
                step(0, at + 10, Segment, wqe),
                step(0, at + 40, MacSend, wqe),
                step(1, at + 90, MacReceive, wqe),
                step(1, at + 120, Place, wqe),
            ]],
            answers: vec![vec![step(1, 400, Respond, 0), step(0, 500, Acknowledge, 0)]],
            tail: vec![step(0, 501, Retire, wqe), step(0, 510, Complete, wqe)],
        };
        let lives = [life(100, 0), life(115, 1)];
        let mut events: Vec<Timed> = lives.iter().flat_map(Life::path).collect();
        events.push(Timed {
            entry: TraceEntry { detail: 17, ..step(1, 450, Reject, 0).entry },
            ..step(1, 450, Reject, 0)
        });
        let names = ["card0".to_owned(), "card1".to_owned()];
        let (tracks, flows) = judge(&timeline(&events, &lives, &names, 250_000));
        // both in the mac of card 0 at once: two tracks of one name
        assert_eq!(tracks.iter().filter(|name| name.ends_with(" mac")).count(), 3);
        assert!(tracks.iter().any(|name| name.ends_with(" check")), "the refusal is check's: {tracks:?}");
        assert_eq!(flows.len(), 2);
        for times in flows.values() {
            assert_eq!(times.len(), 10, "from the doorbell to the CQE");
        }
    }
}
