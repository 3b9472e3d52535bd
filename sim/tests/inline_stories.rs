//! Inline data between two cards: every size, beside gathered data, over a wire that loses, and without a payload read.
//!
//! Requirements: REQ

use contract::{Reject, StageCounter};
use host::{Operation, SendWr};
use sim::{
    story::{self, A, End, Story, US, two_cards},
    wire::{Delay, Faults, Side},
};

/// Two QPs whose work requests hold `most` inline bytes.
fn connected(story: &mut Story, most: u32, adjust: impl Fn(Side, &mut host::QpAttr)) -> (End, End) {
    let hosts = [story.start(0), story.start(1)];
    let [a, b] = hosts.map(|host| story.qp(host, |init| init.max_inline = most));
    story.join(&a, &b, adjust);
    (a, b)
}

fn post(end: &End, wr: SendWr<'_>) {
    end.qp.post_send(&[wr.signaled()]).unwrap_or_else(|error| panic!("post {wr:?}: {error}"));
}

/// In a VLAN headers end in the other half of a word.
fn in_vlan(side: Side, attr: &mut host::QpAttr) {
    let other = if side == A { 2u128 } else { 1 };
    attr.av.dest_gid = host::Gid::from_u128(0xfd << 120 | other);
    attr.av.sgid_index = story::IPV6_VLAN_5;
}

#[test]
fn inline_data_of_every_size_arrives_by_every_operation_and_nothing_but_work_requests_is_read() {
    for tagged in [false, true] {
        let mut story = two_cards(&format!("inline_data_of_every_size_arrives_tagged_{tagged}"));
        let (a, b) = connected(&mut story, 220, |side, attr| {
            if tagged {
                in_vlan(side, attr)
            }
        });
        let before = [StageCounter::ReadTlps, StageCounter::WqeFetches].map(|c| story.stage_counter(0, c));
        let (addr, rkey) = (b.memory.addr() + 3, b.memory.rkey());
        for length in [0, 1, 2, 3, 4, 5, 8, 31, 32, 33, 64, 95, 96, 97, 128, 219, 220] {
            for operation in [
                Operation::Send,
                Operation::SendWithImm(7),
                Operation::Write { addr, rkey },
                Operation::WriteWithImm { addr, rkey, imm: 8 },
            ] {
                let mut bytes = story.bytes(length);
                b.memory.write(0, &[0; 300]).unwrap();
                b.receive(9, 3, 250);
                post(&a, SendWr::new(1, operation, &[]).inline(&bytes));
                // its bytes were copied
                let sent = std::mem::take(&mut bytes);
                story.completes(&a, 1);
                if !matches!(operation, Operation::Write { .. }) {
                    assert_eq!(story.completes(&b, 9).byte_len as usize, length);
                }
                story.memory_matches(&b.memory, 3, &sent);
                story.memory_matches(&b.memory, 3 + length, &[0; 30]);
            }
        }
        let after = [StageCounter::ReadTlps, StageCounter::WqeFetches].map(|c| story.stage_counter(0, c));
        assert_eq!(after[0] - before[0], after[1] - before[1], "work requests are read, data is not");
        story.no_other_events();
    }
}

#[test]
fn inline_data_that_was_lost_is_sent_again_as_it_was_posted() {
    let mut story = two_cards("inline_data_that_was_lost_is_sent_again_as_it_was_posted");
    let (a, b) = connected(&mut story, 220, |_, attr| attr.timeout = 10);
    let delay = Delay::Time(2 * US);
    story.wire_harms(Faults { loss: 0.1, duplicate: 0.05, delay, ..Faults::default() });
    // inline and gathered work requests by turns, all at once
    let all = story.bytes(120 * 256);
    for (i, bytes) in all.chunks(256).enumerate() {
        let to = (i * 256) as u64;
        if i % 3 == 2 {
            a.memory.write(i * 256, bytes).unwrap();
            a.write(i as u64, i * 256, 256, &b.memory, i * 256);
            continue;
        }
        let wr = SendWr::write(i as u64, &[], b.memory.addr() + to, b.memory.rkey());
        post(&a, wr.inline(&bytes[..100 + i]));
    }
    for i in 0..120 {
        story.completes(&a, i);
    }
    for (i, bytes) in all.chunks(256).enumerate() {
        story.memory_matches(&b.memory, i * 256, if i % 3 == 2 { bytes } else { &bytes[..100 + i] });
    }
    assert!(story.stage_counter(0, StageCounter::Retransmits) > 10);
    for reject in
        [Reject::Duplicate, Reject::PsnOutOfSequence, Reject::PsnOutOfSequenceRepeat, Reject::ResponseStale]
    {
        story.allow(0, reject);
        story.allow(1, reject);
    }
    story.no_other_events();
}
