//! The stories, each runnable alone: `cargo ci story NAME --seed N --waves`.

use sim::story::{A, B, MS, two_cards};

#[test]
fn a_write_of_64_bytes_goes_the_whole_way() {
    let mut story = two_cards("a_write_of_64_bytes_goes_the_whole_way");
    let (a, b) = story.connected();
    let bytes = story.bytes(64);
    a.memory.write(0, &bytes).unwrap();
    a.write(1, 0, 64, &b.memory, 4096);
    let psn = a.psn;
    let write = story.sees(A, "WRITE ONLY", |packet| packet.reth.is_some());
    assert_eq!((write.packet.bth.psn, &write.packet.payload), (psn, &bytes));
    let ack = story.sees(B, "ACK", |packet| packet.aeth.is_some());
    assert_eq!(ack.packet.bth.psn, psn);
    story.completes(&a, 1);
    story.memory_matches(&b.memory, 4096, &bytes);
    story.memory_matches(&b.memory, 4096 + 64, &[0; 64]);
    story.no_completion(&b);
    let later = story.now() + MS;
    story.sees_nothing_until(later);
    story.no_other_events();
}
