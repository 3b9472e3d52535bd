//! Every length from 0 to 130 bytes at every alignment by 64 of both addresses, by every operation, with one and two
//! elements, some of them with sixteen: all bytes right, and all bytes around untouched.
//!
//! ```text
//! batch   an operation, a length each way: 64 local alignments, each with another remote one, lists of one and of two
//!         elements, or of sixteen > everything posted at once > completions > whole memory of both cards compared
//! ```
//! For each length and operation both addresses run over all 64 alignments; so do the cut between two elements and the
//! alignment of the second. Nothing is lost on the way, so nothing may be refused, but of sixteen elements.

#[path = "common/programs.rs"]
mod programs;

use contract::{Reject, WcOpcode};
use host::{Completion, QpInit};
use programs::{Done, Op, RECEIVES, Receive, Space, Work};
use sim::{
    backend::{lock, pass},
    room::RoomConfig,
    story::{End, MS, Story, usual},
};
use std::ops::Range;

/// Longest message.
const LONGEST: usize = 130;

/// A list of so many elements for `length` bytes: the first at this alignment, what is left at others.
fn list(space: &mut Space, count: usize, length: usize, at: usize) -> Vec<Range<usize>> {
    let mut left = length;
    let element = |i: usize| {
        space.align((at + i * (4 * at + length + 1)) % 64);
        // all that is left; of two a part of it; of many a small one
        let most = if count == 2 { left } else { left.min(2 * length / count) };
        let part = if i + 1 == count { left } else { (7 * at + 3 * length + 5 * i) % (most + 1) };
        left -= part;
        space.grow(part)
    };
    (0..count).map(element).collect()
}

/// What one card asks of the other in a batch.
#[derive(Debug, Default)]
struct Batch {
    work: Vec<Work>,
    receives: Vec<Receive>,
    sent: Vec<Done>,
    received: Vec<Done>,
}

impl Batch {
    fn add(&mut self, op: Op, sges: Vec<Range<usize>>, far: usize, length: usize) {
        let wr_id = self.work.len() as u64;
        let (opcode, byte_len) = match op {
            Op::Send(_) => (WcOpcode::Send, 0),
            Op::Write(_) => (WcOpcode::RdmaWrite, 0),
            Op::Read => (WcOpcode::RdmaRead, length as u32),
            Op::FetchAdd(_) => (WcOpcode::FetchAdd, 8),
            Op::CompareSwap(..) => (WcOpcode::CompSwap, 8),
            Op::SendInv | Op::LocalInv => unreachable!("they move no bytes of their own"),
        };
        self.sent.push(Done::new(wr_id, opcode, byte_len));
        self.work.push(Work {
            wr_id,
            op,
            memories: [0; 2],
            sges,
            far,
            signaled: true,
            solicited: false,
            fence: false,
            inline: false,
        });
    }

    /// A SEND, WRITE or READ from or to the local alignment, to or from the remote one.
    fn message(&mut self, ends: [&mut Space; 2], op: Op, count: usize, length: usize, local: usize) {
        let [near, far] = ends;
        // for every length a permutation of the alignments
        let remote = (37 * local + 11 * length + 29 * (count - 1)) % 64;
        let sges = list(near, count, length, local);
        if matches!(op, Op::Send(_)) {
            let landing = list(far, count, length, remote);
            far.put(&landing, &near.get(&sges));
            let wr_id = RECEIVES + self.receives.len() as u64;
            self.received.push(Done::new(wr_id, WcOpcode::Recv, length as u32));
            self.receives.push(Receive { wr_id, sges: landing, solicited: false });
            self.add(op, sges, 0, length);
            return;
        }
        far.align(remote);
        let there = far.grow(length);
        match op {
            Op::Read => near.put(&sges, &far.get(std::slice::from_ref(&there))),
            _ => far.put(std::slice::from_ref(&there), &near.get(&sges)),
        }
        self.add(op, sges, there.start, length);
    }

    /// An atomic whose result goes to the local alignment.
    fn atomic(&mut self, ends: [&mut Space; 2], kind: usize, local: usize) {
        let [near, far] = ends;
        far.align(8 * (local % 8));
        let there = [far.grow(8)];
        near.align(local);
        let sges = vec![near.grow(8)];
        let found = far.get(&there);
        let was = u64::from_le_bytes(found[..].try_into().expect("eight bytes"));
        near.put(&sges, &found);
        let (op, becomes) = match kind {
            0 => (Op::FetchAdd(0x0123_4567_89ab_cdef), was.wrapping_add(0x0123_4567_89ab_cdef)),
            1 => (Op::CompareSwap(was, !was), !was),
            _ => (Op::CompareSwap(was ^ 1 << 40, 7), was),
        };
        far.put(&there, &becomes.to_le_bytes());
        self.add(op, sges, there[0].start, 8);
    }
}

/// Both cards, a QP each, and what they have done.
struct Bench {
    story: Story,
    ends: [End; 2],
    messages: usize,
    batches: u64,
}

impl Bench {
    fn open(name: &str, sges: u32) -> Self {
        let mut story = Story::unrecorded(name, RoomConfig::example(2, sim::story::seed()));
        let ends = [story.start(0), story.start(1)].map(|host| {
            story.qp(host, |init: &mut QpInit<'_>| {
                (init.max_send_wr, init.max_recv_wr) = (256, 256);
                (init.max_send_sge, init.max_recv_sge) = (sges, sges);
            })
        });
        for (me, other) in [(0, 1), (1, 0)] {
            let attr = usual(ends[other].gid(), ends[other].qp.number(), ends[me].psn, ends[other].psn);
            ends[me].qp.connect_with(&attr).expect("connect");
        }
        Self { story, ends, messages: 0, batches: 0 }
    }

    /// Runs what `fill` asks of each card, told its number and the spaces, its own first.
    fn batch(&mut self, mut fill: impl FnMut(usize, &mut Batch, [&mut Space; 2])) {
        self.batches += 1;
        let mut spaces = [Space::new(2 * self.batches, 2), Space::new(2 * self.batches + 1, 2)];
        let mut batches = [Batch::default(), Batch::default()];
        let [a, b] = &mut spaces;
        fill(0, &mut batches[0], [&mut *a, &mut *b]);
        fill(1, &mut batches[1], [b, a]);
        for space in &mut spaces {
            // a guard behind the last
            space.align(0);
        }
        for (me, end) in self.ends.iter().enumerate() {
            end.memory.write(0, &spaces[me].before).expect("the region is large enough");
            for receive in &batches[1 - me].receives {
                programs::post_receive(&end.qp, &end.memory, receive);
            }
        }
        for (me, end) in self.ends.iter().enumerate() {
            let far = &self.ends[1 - me].memory;
            let far = [(far.addr(), far.rkey())];
            for work in &batches[me].work {
                programs::post(&end.qp, 0, &[&end.memory], &far, work);
            }
            self.messages += batches[me].work.len();
        }
        let start = self.story.now();
        let owed = |me: usize| batches[me].sent.len() + batches[1 - me].received.len();
        let mut done = [Vec::new(), Vec::new()];
        while (0..2).any(|me| done[me].len() < owed(me)) {
            pass(&mut lock(&self.story.room)).unwrap_or_else(|error| panic!("{error}"));
            for (me, end) in self.ends.iter().enumerate() {
                let mut entries = [Completion::default(); 64];
                let count = end.cq.poll(&mut entries).unwrap_or_else(|error| panic!("{error}"));
                done[me].extend(entries[..count].iter().map(Done::from));
            }
            assert!(self.story.now() - start < 100 * MS, "hangs: {done:?} of {batches:#?}");
        }
        for (me, done) in done.into_iter().enumerate() {
            let (received, sent): (Vec<_>, Vec<_>) = done.into_iter().partition(|d| d.wr_id >= RECEIVES);
            assert_eq!(sent, batches[me].sent, "card {me}");
            assert_eq!(received, batches[1 - me].received, "card {me}");
            let found = self.ends[me].memory.to_vec(0..spaces[me].after.len()).expect("the region");
            spaces[me].matches(&format!("card {me}"), &found);
        }
    }

    fn close(mut self) {
        self.story.no_other_events();
        println!("{} messages in {} us", self.messages, self.story.now() / sim::story::US);
    }
}

fn sweep(name: &str, op: Op) {
    let mut bench = Bench::open(name, 2);
    // the even lengths one way, the odd ones the other
    for length in (0..=LONGEST).step_by(2) {
        bench.batch(|me, batch, [near, far]| {
            for local in (0..64).filter(|_| length + me <= LONGEST) {
                batch.message([&mut *near, &mut *far], op, 1, length + me, local);
                batch.message([&mut *near, &mut *far], op, 2, length + me, local);
            }
        });
    }
    assert_eq!(bench.messages, 2 * 64 * (LONGEST + 1));
    bench.close();
}

#[test]
fn sends_of_every_length_go_from_every_alignment_to_every_alignment() {
    sweep("sends_of_every_length", Op::Send(None));
}

#[test]
fn writes_of_every_length_go_from_every_alignment_to_every_alignment() {
    sweep("writes_of_every_length", Op::Write(None));
}

#[test]
fn reads_of_every_length_come_from_every_alignment_to_every_alignment() {
    sweep("reads_of_every_length", Op::Read);
}

#[test]
fn sixteen_elements_of_few_bytes_come_and_go_by_every_operation() {
    let mut bench = Bench::open("sixteen_elements_of_few_bytes_come_and_go_by_every_operation", 16);
    for op in [Op::Send(None), Op::Write(None), Op::Read] {
        for length in [0, 16, 63, 97, LONGEST - 1] {
            bench.batch(|me, batch, [near, far]| {
                for local in 0..64 {
                    batch.message([&mut *near, &mut *far], op, 16, length + me, local);
                }
            });
        }
    }
    assert_eq!(bench.messages, 3 * 5 * 2 * 64);
    // the further SGEs of a receive are read when its SEND is there: small ones come faster
    for reject in [Reject::MissQueueFull, Reject::PsnOutOfSequence, Reject::PsnOutOfSequenceRepeat] {
        for card in 0..2 {
            bench.story.allow(card, reject);
        }
    }
    bench.close();
}

#[test]
fn the_result_of_an_atomic_lands_at_every_alignment() {
    let mut bench = Bench::open("the_result_of_an_atomic_lands_at_every_alignment", 1);
    for kind in 0..3 {
        bench.batch(|_, batch, [near, far]| {
            (0..64).for_each(|local| batch.atomic([&mut *near, &mut *far], kind, local));
        });
    }
    assert_eq!(bench.messages, 3 * 2 * 64);
    bench.close();
}
