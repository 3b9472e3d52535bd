//! wqe_windows: whose WQEs are on chip, where there are more QPs than places for their WQEs.
//!
//! ```text
//!   qp ──> compare with every owner ──> found, window         (in the same clock)
//!   line, spent ──> busy, fresh ──> victim: what is in it was used
//!   starve ──> FIFO ──> call: a victim is there again
//! ```
//! A window is the slots of one QP in `fetch`. A QP has one at most, and gets the `victim` with its first read or pushed WQE
//! (`claim`). In: what fetch does with windows. Out: which window a QP has, whose a window is, a window to be had.
//!
//! A window is `busy` while a read into it is pending, and `fresh` from a change of its tags until a turn of its owner found
//! nothing more to read (`spent`): each read ends with a wake, so that turn comes. Neither is taken from its owner, nor is
//! the window of the job that fetch is at, nor that of the item which segment has. So what was read is used before it
//! goes, however many QPs there are, and a QP that stops (ERR, RESET) holds none.
//!
//! A QP that found no victim waits in a FIFO, once (`waits`); one is called, which wakes it, for each window that becomes free.
//! That is not kept for it: who comes first has it, and the other waits again.
//!
//! A window whose owner had no turn lately is taken first. If there is none, or nobody has a window to spare, it is `crowded`, for
//! [`LATELY`]: fetch reads nothing ahead, as it would have to be read again. A WQE per window and latency of the host is what
//! there is then.
//!
//! Latency: lookup none, victim one clock behind busy and fresh. Reset: `sweep` clears who waits.
//!
//! Requirements: REQ

use crate::config::Config;
use crate::flow::Wake;
use crate::prim::fifo::buffer;
use crate::prim::pick::{one_hot, round_robin};
use hdl::{
    Memory, Module, Ports, Sig, Stream, any_of, cat, delay, high, index_width, mux, reg, reg_init, select,
    when,
};

/// log2 of the clocks after which one is called if there is a victim, whatever has been counted.
const UNCALLED: u32 = 8;
/// log2 of the clocks that are lately: more than a round of packets of 4 KiB takes, one of each window.
const LATELY: u32 = 13;

/// The windows of `fetch`.
#[derive(Clone, Debug)]
pub struct WqeWindows(pub Config);

/// Ports of [`WqeWindows`].
#[derive(Ports)]
#[ports(WqeWindows)]
pub struct WqeWindowsIo {
    /// A QP whose window is asked for.
    #[input(c.0.qp_bits())]
    pub qp: Sig,
    /// It has a window.
    #[output]
    pub found: Sig,
    /// Which.
    #[output(index_width(c.0.wqe_windows))]
    pub window: Sig,
    /// A window can be had.
    #[output]
    pub victim_valid: Sig,
    /// Which.
    #[output(index_width(c.0.wqe_windows))]
    pub victim: Sig,
    /// A window whose owner is asked for.
    #[input(index_width(c.0.wqe_windows))]
    pub owned: Sig,
    /// Its owner.
    #[output(c.0.qp_bits())]
    pub owner: Sig,
    /// Another.
    #[input(index_width(c.0.wqe_windows))]
    pub ended: Sig,
    /// Its owner.
    #[output(c.0.qp_bits())]
    pub ended_owner: Sig,
    /// fetch has a job.
    #[input]
    pub job_valid: Sig,
    /// Its window.
    #[input(index_width(c.0.wqe_windows))]
    pub job: Sig,
    /// The QP of fetch's job, from two clocks before it starves.
    #[input(c.0.qp_bits())]
    pub job_qp: Sig,
    /// There is an item.
    #[input]
    pub item_valid: Sig,
    /// Its window.
    #[input(index_width(c.0.wqe_windows))]
    pub item: Sig,
    /// The job's QP becomes the owner of the job's window, if it is not.
    #[input]
    pub claim: Sig,
    /// It is already.
    #[input]
    pub owns: Sig,
    /// A turn of the job's QP finds its window.
    #[input]
    pub seen: Sig,
    /// The tags of the job's window are written.
    #[input]
    pub line: Sig,
    /// A read is pending by them.
    #[input]
    pub line_busy: Sig,
    /// There is a WQE by them.
    #[input]
    pub line_holds: Sig,
    /// A turn has seen all that is in the job's window.
    #[input]
    pub spent: Sig,
    /// The job's QP wants a window, and there was no victim.
    #[input]
    pub starve: Sig,
    /// A QP that waited is to be woken.
    #[source(c.0.clone())]
    pub call: Stream<Wake>,
    /// There are more QPs with WQEs than windows, or were lately.
    #[output]
    pub crowded: Sig,
    /// Somebody waits.
    #[output]
    pub waiting: Sig,
    /// Clears whether `sweep_qp` waits.
    #[input]
    pub sweep: Sig,
    /// See there.
    #[input(c.0.qp_bits())]
    pub sweep_qp: Sig,
}

impl Module for WqeWindows {
    type Io = WqeWindowsIo;
    fn name(&self) -> String {
        format!("wqe_windows_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("{} windows for the WQEs of {} QPs.", self.0.wqe_windows, self.0.qps)
    }
    fn body(&self, io: &WqeWindowsIo) {
        let c = &self.0;
        let n = c.wqe_windows;
        let bits = index_width(n);

        // who has which
        let claims = one_hot(n, io.job, io.claim).named("claims");
        let taken = reg_init("taken", n, 0);
        taken.set(taken | claims);
        let owners: Vec<Sig> = (0..n)
            .map(|w| {
                let owner = reg(&format!("owner_{w}"), c.qp_bits());
                when(claims.bit(w), || owner.set(io.job_qp));
                owner
            })
            .collect();
        let mine: Vec<Sig> = (0..n).map(|w| taken.bit(w) & owners[w as usize].eq(io.qp)).collect();
        io.found.set(any_of(&mine));
        // one at most
        let number = (0..bits).rev().map(|b| {
            any_of(&(0..n).filter(|w| w >> b & 1 == 1).map(|w| mine[w as usize]).collect::<Vec<_>>())
        });
        io.window.set(cat(&number.collect::<Vec<_>>()));
        io.owner.set(select(io.owned, &owners));
        io.ended_owner.set(select(io.ended, &owners));

        // the next victim, going round
        let (busy, fresh) = (reg_init("busy", n, 0), reg_init("fresh", n, 0));
        let (written, job) = (one_hot(n, io.job, io.line), one_hot(n, io.job, io.job_valid));
        busy.set((busy & !written) | (written & io.line_busy.repeat(n)));
        let seen = written | (job & io.spent.repeat(n));
        fresh.set((fresh & !seen) | (written & io.line_holds.repeat(n)));
        let over = (!(busy | fresh | one_hot(n, io.item, io.item_valid))).named("used_up");
        let free = over & !job;
        // one that had no turn lately first
        let period = reg_init("period", LATELY, 0);
        period.set(period + 1);
        let recent = reg_init("recent", n, 0);
        let turns = one_hot(n, io.job, io.claim | io.seen);
        recent.set((recent & !period.all().repeat(n)) | turns);
        let idle = free & !recent;
        let free = mux(idle.any(), idle, free).named("free");
        let (victim, victim_valid) = (reg_init("next_victim", bits, 0), reg_init("some_victim", 1, 0));
        // from where the last one was taken
        let last = reg_init("last", bits, 0);
        when(io.claim, || last.set(io.job));
        victim.set(round_robin(free, last));
        victim_valid.set(free.any());
        io.victim_valid.set(victim_valid);
        io.victim.set(victim);

        // who waits
        let waits = Memory::new("waits", c.qps, 1).ignoring_collisions();
        // who is called while it is looked up is woken, and comes again, whatever is read
        let waits_now = waits.read("waits_now", high(), io.job_qp);
        let waiting = Stream::<Wake>::wires(c, "waiting");
        waiting.valid.set(io.starve & !waits_now);
        waiting.data.qp.set(io.job_qp);
        let queue = buffer("starved", c, c.qps, &waiting);
        // one for each window that has become free since somebody waits, and one after a while, whatever made it free
        let (credit, long) = (reg_init("credit", bits + 1, 0), reg_init("clocks_uncalled", UNCALLED + 1, 0));
        let may = (victim_valid & (credit.any() | long.msb())).named("may_call");
        io.call.valid.set(queue.valid & may);
        io.call.data.qp.set(queue.data.qp);
        queue.ready.set(io.call.ready & may);
        let called = io.call.moves();
        let freed = (over & !delay("used_up_before", over)).any() & !credit.msb();
        when(!queue.valid, || credit.set(0))
            .elif(freed & !called, || credit.set(credit + 1))
            .elif(called & !freed & credit.any(), || credit.set(credit - 1));
        when(called | !queue.valid, || long.set(0)).elif(!long.msb(), || long.set(long + 1));
        io.waiting.set(queue.valid);
        // who had a turn lately lost its window
        let quiet = reg_init("quiet_clocks", LATELY + 1, 1 << LATELY);
        let displaces = io.claim & !io.owns & recent.bit_at(io.job);
        when(queue.valid | displaces, || quiet.set(0)).elif(!quiet.msb(), || quiet.set(quiet + 1));
        io.crowded.set(!quiet.msb());
        let at = mux(io.sweep, io.sweep_qp, mux(called, queue.data.qp, io.job_qp));
        waits.write(io.sweep | called | waiting.moves(), at, !(io.sweep | called));
    }
}
