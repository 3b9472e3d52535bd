//! Where mutation begins: for each opcode of the golden captures the frame aimed well, for each kind of action one that
//! is in order, and short stories that reach what single actions do not. Written as actions, so they stay what they
//! say when an encoding changes.

use crate::{frame::Golden, input::encode};
use contract::{CommandOpcode, Opcode, QpState, WrOpcode};

/// An input with a name.
#[derive(Clone, Debug)]
pub struct Seed {
    /// What it does.
    pub name: String,
    /// Its bytes.
    pub input: Vec<u8>,
}

/// The frame of this opcode, with these parameters from 2 on.
fn frame(opcode: Opcode, parameters: &[u8]) -> Vec<u8> {
    [&[0, opcode.code()], parameters].concat()
}

/// A send WQE of QP 1: flags, SGEs, bytes, to the peer.
fn work(opcode: WrOpcode, flags: u8, sges: u8, bytes: u16) -> Vec<u8> {
    let [low, high] = bytes.to_le_bytes();
    vec![1, 0, opcode.code(), flags, sges, low, high, 0, 0]
}

/// A command with the context of QP 1 and so on: object, flags, context, state.
fn command(opcode: CommandOpcode, index: u8, flags: u8, context: u8, state: u8) -> Vec<u8> {
    vec![4, opcode.code(), index, flags, 0, 0, 0, context, state]
}

/// The peer asks QP 1 for something of so many bytes.
fn ask(what: u8, bytes: u16) -> Vec<u8> {
    let [low, high] = bytes.to_le_bytes();
    vec![9, what, low, high]
}

/// All of them.
///
/// # Panics
/// The captures cannot be read.
pub fn seeds() -> Vec<Seed> {
    use CommandOpcode as C;
    use Opcode as O;
    use WrOpcode as W;
    let mut seeds = Vec::new();
    let mut seed = |name: &str, actions: &[Vec<u8>]| {
        seeds.push(Seed { name: name.into(), input: encode(actions.iter().map(Vec::as_slice)) });
    };
    let golden = Golden::load().expect("the captures are in the repository");
    for opcode in golden.opcodes().filter_map(Opcode::from_code) {
        seed(&format!("frame {}", opcode.name()), &[frame(opcode, &[0])]);
        seed(&format!("frame {} to QP 2", opcode.name()), &[frame(opcode, &[1 << 6])]);
        seed(&format!("frame {} as captured", opcode.name()), &[frame(opcode, &[1])]);
    }
    // messages of several packets, 1024 = 32 * 32 bytes each
    for to in [0, 1 << 6] {
        let of = |opcode, size| frame(opcode, &[to, 0, 0, 0, size]);
        seed(
            "a SEND of three packets",
            &[of(O::RcSendFirst, 32), of(O::RcSendMiddle, 32), of(O::RcSendLastImm, 5)],
        );
        let first = frame(O::RcWriteFirst, &[to, 0, 0, 0, 32, 1]);
        seed("a WRITE of two packets", &[first.clone(), of(O::RcWriteLast, 32)]);
        seed("a WRITE that goes on as a SEND", &[first, of(O::RcSendMiddle, 32)]);
        let read = |length: u8, delta: u8| frame(O::RcReadRequest, &[to, delta, 0, 0, 0, 128 + length]);
        seed("READs, the first asked again", &[read(64, 0), read(100, 0), read(64, 0xfe)]);
        let atomic = |opcode, delta| frame(opcode, &[to, delta, 8, 0]);
        seed(
            "atomics, one asked again",
            &[atomic(O::RcFetchAdd, 0), atomic(O::RcCompareSwap, 0), atomic(O::RcCompareSwap, 0xff)],
        );
        let burst = |opcode, size, dma| frame(opcode, &[to | 1 << 5, 0, 0, 0, size, dma]);
        seed(
            "a burst of everything",
            &[
                burst(O::RcSendOnly, 3, 0),
                burst(O::RcWriteOnly, 9, 0),
                burst(O::RcReadRequest, 0, 200),
                burst(O::RcFetchAdd, 0, 0),
                burst(O::RcWriteOnlyImm, 0, 0),
                burst(O::RcSendOnlyImm, 60, 0),
                frame(O::RcSendOnly, &[to, 0]),
            ],
        );
        for (name, delta) in [("a gap", 3), ("a duplicate", 0xff), ("far ahead", 0x7f)] {
            seed(name, &[frame(O::RcWriteOnly, &[to]), frame(O::RcWriteOnly, &[to, delta])]);
        }
        for key in 1..5 {
            for opcode in [O::RcWriteOnly, O::RcReadRequest, O::RcFetchAdd] {
                seed("a key that is refused", &[frame(opcode, &[to, 0, 0, 0, 0, 0, key])]);
            }
        }
        seed("beyond the end of the region", &[frame(O::RcWriteOnly, &[to, 0, 0xf0, 0x3f, 8])]);
    }
    for (name, flags, cut) in [("wrong FCS", 1 << 4, 0), ("cut short", 0, 30), ("a runt", 0, 255)] {
        seed(name, &[frame(O::RcSendOnly, &[flags, 0, 0, 0, 0, 0, 0, cut])]);
    }
    // EtherType, IP version, protocol, UDP port and length, BTH version, P_Key, QP, each wrong
    for place in [0, 12, 14, 23, 26, 36, 38, 43, 44, 48] {
        seed("a header that is wrong", &[frame(O::RcSendOnly, &[0, 0, 0, 0, 0, 0, 0, 0, place, 0x21])]);
        seed("a checksum that is wrong", &[frame(O::RcSendOnly, &[8, 0, 0, 0, 0, 0, 0, 0, place + 6, 1])]);
    }
    for opcode in W::ALL {
        seed(&format!("WQE {}", opcode.name()), &[work(*opcode, 0, 1, 100)]);
        seed(&format!("WQE {}, solicited", opcode.name()), &[work(*opcode, 2, 4, 1500)]);
        seed(
            &format!("WQE {} of QP 2", opcode.name()),
            &[[&[1, 1][..], &work(*opcode, 0, 2, 3000)[2..]].concat()],
        );
    }
    seed(
        "a fenced WRITE behind READs",
        &[
            [&[1, 4][..], &work(W::RdmaRead, 1, 4, 5000)[2..]].concat(),
            [&[1, 4][..], &work(W::AtomicFetchAndAdd, 0, 1, 8)[2..]].concat(),
            work(W::RdmaWrite, 4, 3, 2500),
        ],
    );
    // An AETH behind VLAN tag and IPv6 stands at 78; the golden one says 0x1f.
    let aeth = |syndrome: u8| frame(O::RcAcknowledge, &[1 << 6, 0, 0, 0, 0, 0, 0, 0, 78, syndrome ^ 0x1f]);
    let send = [&[1, 1][..], &work(W::Send, 0, 1, 2000)[2..]].concat();
    for syndrome in [0x60, 0x61, 0x62, 0x63, 0x64, 0x20, 0x40, 0x7f] {
        seed("a NAK for a WQE", &[send.clone(), aeth(syndrome)]);
    }
    seed(
        "a peer that is never ready",
        &[send, aeth(0x21), vec![7, 14], aeth(0x21), vec![7, 14], aeth(0x21), vec![7, 14], aeth(0x21)],
    );
    seed(
        "responses for a READ of QP 2",
        &[
            [&[1, 1][..], &work(W::RdmaRead, 0, 1, 2500)[2..]].concat(),
            frame(O::RcReadResponseFirst, &[1 << 6, 0, 0, 0, 32]),
            frame(O::RcReadResponseMiddle, &[1 << 6, 1, 0, 0, 32]),
            frame(O::RcReadResponseLast, &[1 << 6, 2, 0, 0, 21]),
        ],
    );
    seed(
        "a response for an atomic of QP 2",
        &[
            [&[1, 1][..], &work(W::AtomicCmpAndSwp, 0, 1, 8)[2..]].concat(),
            frame(O::RcAtomicAcknowledge, &[1 << 6]),
        ],
    );
    for edit in [0, 1, 2, 8, 16, 20, 24, 32, 40, 44] {
        let mut wqe = work(W::Send, 0, 2, 100);
        wqe.extend([0, 0, 0, edit, 0x55]);
        seed("a WQE with a wrong field", &[wqe]);
    }
    seed("a WQE without doorbell, a doorbell", &[vec![1, 2, 2, 0, 1, 9], work(W::Send, 0, 1, 7)]);
    seed("a receive", &[vec![2, 0, 2, 64, 0], frame(O::RcSendOnly, &[0])]);
    seed("receives run out", &vec![frame(O::RcSendOnly, &[1 << 6]); 11]);
    seed("a receive with a bad key", &[vec![2, 0, 1, 64, 0, 2], vec![2, 1, 1, 64, 0, 3]]);
    for at in 0..24 {
        seed("a register", &[vec![3, 0, at, 0, 0x0f, 1], vec![3, 4, at, 0, 0xff, 1, 0x5a]]);
    }
    for offset in [0, 8, 16, 24] {
        for page in 0..3 {
            seed("a doorbell", &[vec![3, 5, offset, page, 0xff, 1, 1, 0, 0, 0, 9, 0, 0, 0]]);
        }
        seed("half a doorbell", &[vec![3, 5, offset, 1, 0x0f, 0, 1]]);
    }
    for (cq, arm) in [(0, 1), (0, 2), (1, 1), (1, 2)] {
        // the CQ doorbell of page 1, nothing consumed
        let armed = vec![3, 4, 16, 1, 0xff, 1, cq, 0, 0, arm, 0, 0, 0, 0];
        seed("an armed CQ", &[armed, ask(0, 9), ask(4, 9), work(W::Send, 2, 1, 30)]);
    }
    // the EQ doorbell of page 0, and CQ doorbells that say what was consumed
    let bell = |page: u8, offset: u8, number: u8, arm: u8, consumer: u8| {
        vec![3, 4, offset, page, 0xff, 1, number, 0, 0, arm, consumer, 0, 0, 0]
    };
    seed("events are consumed", &[ask(0, 5), bell(0, 24, 0, 1, 0), bell(0, 24, 0, 1, 1), ask(0, 5)]);
    seed("an EQ that is not there", &[bell(0, 24, 7, 1, 0), bell(1, 24, 0, 1, 0)]);
    for arm in 0..4 {
        seed(
            "completions are consumed",
            &[ask(0, 5), bell(1, 16, 1, arm, 1), ask(0, 5), bell(1, 16, 1, arm, 9)],
        );
        seed("a CQ of the other page", &[bell(1, 16, 2, arm, 0), bell(1, 16, 60, arm, 0)]);
    }
    seed("a CQ overflows", &vec![work(W::RdmaWrite, 0, 1, 4); 20]);
    seed("all of BAR0", &[vec![3, 0x10, 0, 0x10, 0xff, 63], vec![3, 0x10, 0, 0, 0x3f, 63]]);
    seed(
        "the table of vectors",
        &[vec![3, 2, 0, 0, 0xff, 31], vec![3, 6, 12, 0, 15, 0, 1], vec![3, 0x12, 0, 8, 0xff, 1]],
    );
    for opcode in C::ALL {
        let context = match opcode {
            C::CreateMr => 2,
            C::CreateCq => 3,
            C::CreateEq => 4,
            C::SetPort => 5,
            _ => 0,
        };
        seed(&format!("command {}", opcode.name()), &[command(*opcode, 1, 0, context, 3)]);
        seed(&format!("command {} of a new object", opcode.name()), &[command(*opcode, 9, 4, context, 0)]);
    }
    seed(
        "commands without meaning",
        &[vec![4, 200], vec![4, 9, 255], vec![4, 0, 0, 8], vec![4, 9, 1, 8], vec![4, 9, 2]],
    );
    for state in QpState::ALL {
        let modify = command(C::ModifyQp, 2, 3, 1, state.code());
        seed(
            &format!("QP 2 becomes {}", state.name()),
            &[
                frame(O::RcSendFirst, &[1 << 6, 0, 0, 0, 32]),
                modify.clone(),
                frame(O::RcSendOnly, &[1 << 6]),
                [&[1, 1][..], &work(W::Send, 0, 1, 10)[2..]].concat(),
                modify,
            ],
        );
    }
    seed(
        "a QP goes while it sends",
        &[
            [&[1, 4][..], &work(W::RdmaWrite, 0, 1, 0x2fff)[2..]].concat(),
            command(C::DestroyQp, 1, 0, 0, 0),
            command(C::QueryQp, 1, 0, 0, 0),
        ],
    );
    seed(
        "a region goes while it is read",
        &[ask(5 | 8, 0x1fff), command(C::DestroyMr, 1, 0, 0, 0), ask(3, 50)],
    );
    for kind in [0x00, 0x20, 0x40, 0x60, 0x4c, 0x4d, 0x4e, 0x6c, 0x04, 0x44, 0x0a, 0x4a, 0x30, 0x74, 0x02] {
        seed("a TLP", &[vec![5, 0, kind, 0, 2, 0xff, 3, 0, 0], vec![5, 1, kind | 0x20, 4, 1, 0x0f, 3, 8, 0]]);
    }
    for status in 0..4 {
        seed(
            "a completion out of nowhere",
            &[vec![6, 1, status, 200, 4, 0, 0, 0], vec![6, 1, status | 4, 0, 8]],
        );
    }
    for fault in 0..6 {
        for nth in 0..2 {
            let rule = vec![6, 8, fault, nth, 3, 0, 2];
            seed("a WRITE meets it", &[rule.clone(), work(W::RdmaWrite, 0, 2, 3000)]);
            seed("a SEND into memory meets it", &[rule.clone(), ask(0, 20), ask(0, 20)]);
            seed("a READ of it meets it", &[rule.clone(), ask(5, 3000)]);
            seed("an atomic meets it", &[rule.clone(), ask(6, 8)]);
            seed("a command meets it", &[rule, vec![4, 0]]);
        }
    }
    for time in [0, 8, 16, 20] {
        seed("time passes over a lost frame", &[vec![8, 4, 3], work(W::RdmaRead, 0, 1, 3000), vec![7, time]]);
    }
    for what in 0..8 {
        seed("the peer asks", &[ask(what, 8), ask(what, 3000), ask(what, 0)]);
    }
    seed("no bus mastering", &[vec![8, 0, 0], work(W::RdmaWrite, 0, 1, 2000), vec![8, 0, 1], ask(3, 9)]);
    seed(
        "interrupts off and on",
        &[vec![8, 1, 0], ask(0, 5), vec![8, 1, 0xc0], ask(1, 5), vec![8, 1, 0x80], ask(1, 5)],
    );
    seed(
        "a reset while all is busy",
        &[
            ask(5 | 8, 0x1fff),
            [&[1, 4][..], &work(W::RdmaRead, 0, 1, 0x2fff)[2..]].concat(),
            vec![8, 2, 0],
            ask(3, 100),
        ],
    );
    for size in 0..32 {
        seed("other sizes", &[vec![8, 3, size], work(W::RdmaWrite, 0, 3, 4000), ask(3, 4000)]);
    }
    seeds
}
