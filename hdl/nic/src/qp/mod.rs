//! The state of queue pairs. Every word has **one writer**; anybody may read.
//!
//! | word | writer | holds |
//! |---|---|---|
//! | rights, path, queues, addresses | command | the QP context (`contract::QpContext`), four lines |
//! | `post` | doorbell | producers of SQ and RQ |
//! | [`Tx`] | segment | cursors, next PSN, epoch, what was paid |
//! | [`Expect`] | check | ePSN, open message, RQ allocation |
//! | [`Placed`] | place | acknowledged PSN, MSN, the tail owed, READs to answer |
//! | [`Requester`] | acknowledge | oldest unanswered work, oldest not retired, retries, deadline |
//! | [`Executed`] | atomic | atomics executed |
//!
//! Every writer has a `halt` bit in its own word; a QP works only while its context says so and no halt is set.
//! A word lives in one [`State`] memory per word: one write port, as many read ports as there are readers; a read
//! gives the word one clock after its address.
//!
//! Requirements: ATOM CARD ERR QPS READ REQ RESP TIM

use crate::config::Config;
use crate::flow::CAUSE;
use hdl::{Bundle, Memory, Module, PortBuilder, Ports, Sig, Stream, high, lit};

/// Bits of a packet sequence number.
pub const PSN: u32 = 24;
/// Bits of a ring index.
pub const INDEX: u32 = 16;
/// Bits of the number of a READ or atomic owed to the peer.
pub const RING: u32 = 8;
/// Bits of a free-running count of READs; `max_rd_atomic` has 5.
pub const READS: u32 = 8;
/// PSNs in flight at most: one less than half of the PSN space, so that "before" stays decidable. Only a READ of 2^31
/// bytes at path MTU 256 has more: it is asked for in two requests, the second for its last packet.
pub const WINDOW: u64 = (1 << 23) - 1;
/// Bits of the number of a rewind: a new one is made only when segment has obeyed the last.
pub const EPOCH: u32 = 4;
/// Bits of a deadline: the low bits of `now` (2^40 clocks of 4 ns are 73 minutes; the longest timeout is 2.4 hours
/// at code 31, which is clamped to 2^38 clocks, 18 minutes).
pub const DEADLINE: u32 = 40;

/// What segment knows: where transmission stands.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Tx {
    /// PSN that the next new WQE gets.
    #[shape(PSN)]
    pub next_psn: Sig,
    /// One past the highest PSN ever sent.
    #[shape(PSN)]
    pub sent_psn: Sig,
    /// Index of the next WQE that has no PSNs yet.
    #[shape(INDEX)]
    pub assigned: Sig,
    /// WQE of the next packet.
    #[shape(INDEX)]
    pub cursor_wqe: Sig,
    /// PSN of the next packet.
    #[shape(PSN)]
    pub cursor_psn: Sig,
    /// First PSN of the WQE under the cursor.
    #[shape(PSN)]
    pub cursor_first: Sig,
    /// The rewind that was last obeyed.
    #[shape(EPOCH)]
    pub epoch: Sig,
    /// `Placed::tail_seq` of the last response sent.
    #[shape(24)]
    pub paid: Sig,
    /// Packets since the last that asked for an acknowledgement.
    #[shape(8)]
    pub unasked: Sig,
    /// Counts READs that were given PSNs and an entry of the read list.
    #[shape(READS)]
    pub rd_next: Sig,
    /// Nothing new is sent.
    pub halt: Sig,
    /// The READ ([`OwedRead`]) of the next READ response.
    #[shape(RING)]
    pub res_cursor: Sig,
    /// The oldest READ that was never answered whole.
    #[shape(RING)]
    pub res_sent: Sig,
    /// The next READ response has `res_psn`; else it is its READ's first.
    pub res_inside: Sig,
    /// It is a First or Only, wherever it stands: what it goes on from was not sent just before.
    pub res_restart: Sig,
    /// Its PSN, if `res_inside`.
    #[shape(PSN)]
    pub res_psn: Sig,
    /// `Placed::rewind_seq` of the last rewind obeyed.
    #[shape(8)]
    pub res_rewind: Sig,
    /// The tail must not overtake packet `res_mark` on its way to packetise.
    pub res_marked: Sig,
    /// Its number among all given to gather, low bits: one that left long ago may look as if it had not.
    #[shape(8)]
    pub res_mark: Sig,
    /// The last packet given to gather was a response: a request is next, if both wait.
    pub res_turn: Sig,
    /// `QpRights::drain` of the last notice given.
    #[shape(4)]
    pub drained: Sig,
}

/// What acknowledge knows: what the peer still owes us.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Requester {
    /// Oldest WQE not retired: answered it may be, but a READ retires only when its data is in memory.
    #[shape(INDEX)]
    pub una_wqe: Sig,
    /// Oldest WQE not answered whole. A rewind goes back to the triple of this and the next two.
    #[shape(INDEX)]
    pub got_wqe: Sig,
    /// Oldest PSN not answered: not acknowledged, or of a READ, its data not handed to place.
    #[shape(PSN)]
    pub una_psn: Sig,
    /// First PSN of `got_wqe`.
    #[shape(PSN)]
    pub got_first: Sig,
    /// Counts READs answered whole: the number of the READ under `got_wqe`, if that is one.
    #[shape(READS)]
    pub rd_got: Sig,
    /// Counts READs retired.
    #[shape(READS)]
    pub rd_retired: Sig,
    /// The gap at `una_psn` has cost its implied NAK.
    pub implied: Sig,
    /// Counts rewinds: segment goes back to the triple when it differs from `Tx::epoch`.
    #[shape(EPOCH)]
    pub epoch: Sig,
    /// Timeouts and sequence NAKs left before RETRY_EXC_ERR.
    #[shape(3)]
    pub retries: Sig,
    /// RNR NAKs left before RNR_RETRY_EXC_ERR.
    #[shape(3)]
    pub rnr_retries: Sig,
    /// `deadline` counts.
    pub armed: Sig,
    /// When to act, in low bits of `now`.
    #[shape(DEADLINE)]
    pub deadline: Sig,
    /// The deadline ends an RNR wait; segment sends no request meanwhile.
    pub waiting: Sig,
    /// A local fault stops sending at `fault_wqe`.
    pub fault: Sig,
    /// WQE that cannot be sent.
    #[shape(INDEX)]
    pub fault_wqe: Sig,
    /// Its completion status.
    #[shape(8)]
    pub fault_status: Sig,
    /// Why: see [`crate::flow::CAUSE`].
    #[shape(CAUSE)]
    pub fault_cause: Sig,
    /// The send side is over: an error CQE was written.
    pub halt: Sig,
}

/// What check knows: what the peer may send next.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Expect {
    /// Expected PSN.
    #[shape(PSN)]
    pub epsn: Sig,
    /// The gap before `epsn` was NAKed already.
    pub nak_sent: Sig,
    /// A SEND message is open.
    pub open_send: Sig,
    /// A WRITE message is open.
    pub open_write: Sig,
    /// Next receive WQE to hand out.
    #[shape(INDEX)]
    pub rq_next: Sig,
    /// Receive WQE of the open SEND.
    #[shape(INDEX)]
    pub rq_current: Sig,
    /// Bytes of the open message so far.
    #[shape(32)]
    pub offset: Sig,
    /// Where the open WRITE goes on.
    #[shape(64)]
    pub va: Sig,
    /// R_Key of the open WRITE.
    #[shape(32)]
    pub rkey: Sig,
    /// Bytes of the open WRITE still to come.
    #[shape(32)]
    pub remaining: Sig,
    /// Nothing more is taken.
    pub halt: Sig,
    /// Messages taken.
    #[shape(PSN)]
    pub msn: Sig,
    /// READs and atomics taken: the place of the next in the ring of [`OwedRead`].
    #[shape(RING)]
    pub res_head: Sig,
    /// READs and atomics in the ring, as far as a duplicate is looked for: at most 16.
    #[shape(5)]
    pub res_kept: Sig,
    /// Atomics taken.
    #[shape(RING)]
    pub atomics: Sig,
    /// A packet was taken.
    pub touched: Sig,
}

/// What place knows: what was placed, and the acknowledgement owed for it.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Placed {
    /// PSN of the last SEND or WRITE placed (the PSN that a re-ACK carries; a READ's would take its responses for given).
    #[shape(PSN)]
    pub psn: Sig,
    /// Messages completed.
    #[shape(PSN)]
    pub msn: Sig,
    /// Counts tails; a response is owed while it differs from `Tx::paid`.
    #[shape(24)]
    pub tail_seq: Sig,
    /// AETH syndrome of the tail.
    #[shape(8)]
    pub tail_syndrome: Sig,
    /// PSN of the tail.
    #[shape(PSN)]
    pub tail_psn: Sig,
    /// MSN of the tail.
    #[shape(PSN)]
    pub tail_msn: Sig,
    /// A fatal NAK was given: packets behind it are discarded.
    pub halt: Sig,
    /// READs whose turn has come: what the peer sent before them is written. Responses are owed while it differs from
    /// `Tx::res_cursor`.
    #[shape(RING)]
    pub res_head: Sig,
    /// Counts duplicate READs; segment goes back to `rewind_index` and `rewind_psn` when it differs from
    /// `Tx::res_rewind`.
    #[shape(8)]
    pub rewind_seq: Sig,
    /// The oldest READ asked for again since segment obeyed.
    #[shape(RING)]
    pub rewind_index: Sig,
    /// From this PSN.
    #[shape(PSN)]
    pub rewind_psn: Sig,
}

/// A READ or atomic of the peer, written by check when it takes the request, read by segment when it answers. Kept until
/// its place in the QP's ring is needed again, for duplicates.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct OwedRead {
    /// Its own number: another one here means that it was overwritten.
    #[shape(RING)]
    pub index: Sig,
    /// PSN of the request and of the first response.
    #[shape(PSN)]
    pub first_psn: Sig,
    /// PSN of the last response.
    #[shape(PSN)]
    pub last_psn: Sig,
    /// From here.
    #[shape(64)]
    pub va: Sig,
    /// By this key.
    #[shape(32)]
    pub rkey: Sig,
    /// So many bytes.
    #[shape(32)]
    pub length: Sig,
    /// MSN behind it.
    #[shape(PSN)]
    pub msn: Sig,
    /// An atomic; `va`, `rkey` and `length` mean nothing.
    pub is_atomic: Sig,
    /// Its number among the QP's atomics: it is executed when `Executed` has passed it.
    #[shape(RING)]
    pub number: Sig,
}

/// What an atomic does, written by check beside its [`OwedRead`].
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Operands {
    /// To these 8 bytes.
    #[shape(64)]
    pub iova: Sig,
    /// Fetch and add, not compare and swap.
    pub adds: Sig,
    /// What is added or written.
    #[shape(64)]
    pub value: Sig,
    /// Written only if the memory equals this.
    #[shape(64)]
    pub compare: Sig,
}

/// What came of an atomic, written by atomic beside its [`OwedRead`], for its answer and those to its duplicates.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Outcome {
    /// The memory could not be read: NAK 0x63.
    pub failed: Sig,
    /// What was there before.
    #[shape(64)]
    pub original: Sig,
}

/// What atomic knows of a QP.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Executed {
    /// Counts the QP's atomics executed, their [`Outcome`] written.
    #[shape(RING)]
    pub count: Sig,
}

/// Where the READ or atomic `index` lies among all, by the QP's `response_base` and `response_log_size`.
pub fn owed_address(c: &Config, base: Sig, log_size: Sig, index: Sig) -> Sig {
    let mask = (lit(RING, 1) << log_size) - 1;
    base.resize(c.response_bits()) + (index & mask).resize(c.response_bits())
}

/// One outstanding WQE, written by segment when it gets its PSNs, read by acknowledge when it retires.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Record {
    /// Last PSN of the WQE.
    #[shape(PSN)]
    pub last_psn: Sig,
    /// A success is reported.
    pub signaled: Sig,
    /// `ibv_wc_opcode` of its completion.
    #[shape(8)]
    pub opcode: Sig,
    /// Non-zero: the WQE is bad; it retires with this status once all before it have.
    #[shape(8)]
    pub status: Sig,
    /// Bytes of the message; of a bad WQE its cause ([`crate::flow::CAUSE`]).
    #[shape(32)]
    pub length: Sig,
    /// A READ or atomic: only its own responses answer it.
    pub is_read: Sig,
}

/// A write into a state memory.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(StateShape)]
pub struct StateWrite {
    /// Write in this clock.
    pub enable: Sig,
    /// Which entry.
    #[shape(c.address)]
    pub address: Sig,
    /// The word.
    #[shape(c.width)]
    pub data: Sig,
}

/// Widths of a state memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateShape {
    /// Bits of an address.
    pub address: u32,
    /// Bits of a word.
    pub width: u32,
}

impl StateShape {
    /// One word of `T` per QP.
    pub fn per_qp<T: Bundle<Shape = ()>>(c: &Config) -> StateShape {
        StateShape { address: c.qp_bits(), width: T::total_width(&()) }
    }
}

/// One state word per entry: one writer, `readers` readers. A read gives, one clock after the address, the word
/// including every write up to and including the clock of the address (write-first), so that a stage may write in
/// one clock and hand on to the next in the following one.
#[derive(Clone, Debug)]
pub struct State {
    /// What is stored, e.g. `tx`; part of the module name.
    pub word: &'static str,
    /// Entries.
    pub depth: u32,
    /// Bits per entry.
    pub width: u32,
    /// Read ports.
    pub readers: u32,
}

/// Ports of [`State`].
pub struct StateIo {
    /// The only writer.
    pub write: StateWrite,
    /// Address of each reader.
    pub address: Vec<Sig>,
    /// Word of each reader, one clock after its address.
    pub word: Vec<Sig>,
}

impl Ports for StateIo {
    type Config = State;
    fn declare(c: &State, ports: &mut PortBuilder) -> Self {
        let shape = StateShape { address: hdl::index_width(c.depth), width: c.width };
        StateIo {
            write: ports.input("write", &shape),
            address: (0..c.readers)
                .map(|i| ports.input(&format!("address_{i}"), &shape.address.into()))
                .collect(),
            word: (0..c.readers).map(|i| ports.output(&format!("word_{i}"), &shape.width.into())).collect(),
        }
    }
}

impl Module for State {
    type Io = StateIo;
    fn name(&self) -> String {
        format!("state_{}_{}x{}r{}", self.word, self.depth, self.width, self.readers)
    }
    fn doc(&self) -> String {
        format!(
            "State word `{}`: one writer, {} readers, one clock of latency, write-first.",
            self.word, self.readers
        )
    }
    fn body(&self, io: &StateIo) {
        // forwarded below
        let memory = Memory::new("words", self.depth, self.width).ignoring_collisions();
        memory.write(io.write.enable, io.write.address, io.write.data);
        let written = hdl::delay("written", io.write.data);
        for (i, (address, out)) in io.address.iter().zip(&io.word).enumerate() {
            let read = memory.read(&format!("read_{i}"), high(), *address);
            let same = io.write.enable & io.write.address.eq(*address);
            let forward = hdl::delay(&format!("forward_{i}"), same);
            out.set(hdl::mux(forward, written, read));
        }
    }
}

/// Starts or clears one QP's words; every stage that writes a word has such a sink and serves it between packets.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Initialise {
    /// Which QP.
    #[shape(c.qp_bits())]
    pub qp: Sig,
    /// Clear the receive side (`expect`, `placed`): ePSN = `rq_psn`.
    pub receive: Sig,
    /// Clear the send side (`tx`, `requester`): next PSN = `sq_psn`.
    pub send: Sig,
    /// Clear everything, producers and cached WQEs included.
    pub reset: Sig,
    /// First PSN expected.
    #[shape(PSN)]
    pub rq_psn: Sig,
    /// First PSN to send.
    #[shape(PSN)]
    pub sq_psn: Sig,
    /// `retry_cnt` of the context.
    #[shape(3)]
    pub retry_cnt: Sig,
    /// `rnr_retry` of the context.
    #[shape(3)]
    pub rnr_retry: Sig,
}

/// PSN difference `a - b`, 24 bits; its top bit says that `a` is before `b` (IBA 9.7.2).
pub fn psn_before(a: Sig, b: Sig) -> Sig {
    (a - b).msb()
}

/// A stream alias that reads well in port lists.
pub type InitialiseStream = Stream<Initialise>;
