//! The tags of the read engine: which is free, which waits for its answer, whose time has come.
//!
//! ```text
//!   free --take--> live --settle: frees----------------------------------------> free
//!                    \--settle: strays, or its deadline--> aging --timeout more--> free
//!   scan: one tag every two clocks against its deadline --> expiry --> the engine's judge --> settle
//! ```
//! In: `take` (the offered tag leaves with a read), and what the engine's judge says of each answer, in `settle`. Out: the
//! next free tag above the last one, going round, three clocks after that was taken at the latest while one is free; one
//! `expiry` at a time, which stays until the judge has settled it, so that answers and expiries of a tag are judged in one
//! order.
//!
//! In rotation, because a last completion that comes twice finds no read then: its tag is the last to be taken again.
//!
//! Contract 6: a tag without an answer before its deadline, or with an answer that does not fit, ages until its deadline is
//! passed by a whole further timeout; only then is it free. A tag is not offered while the scan has a word about it under way, nor
//! while its last completion is still passing: either would hit its next read.
//!
//! FLR: every live tag expires, in at most four clocks per tag while expiries are taken at once.
//!
//! `now` may stand still for no one: a live tag must be settled before half of its range has gone by.
//!
//! Requirements: CARD PCIE

use crate::prim::pick::{from, lowest, one_hot};
use hdl::{
    Bundle, Memory, Module, Ports, Sig, Stream, any_of, assert_always, cat, cover, index_width, lit, reg,
    reg_init, when,
};

/// Tags that may be used until extended tags are enabled.
const PLAIN: u32 = 32;

/// The table, for so many tags.
#[derive(Clone, Debug)]
pub struct Tags {
    /// Tags, a power of two, at most 256.
    pub tags: u32,
    /// Bits of time.
    pub time: u32,
}

impl Tags {
    fn bits(&self) -> u32 {
        index_width(self.tags)
    }
}

/// A tag whose time has come.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Tags)]
pub struct Expiry {
    /// Which.
    #[shape(c.bits())]
    pub tag: Sig,
    /// Its quarantine is over; else its answer is late.
    pub aged: Sig,
    /// It is not late: a function level reset ends it, which nobody counts.
    pub silent: Sig,
}

/// What the judge says of the word about a tag that it looked at.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Tags)]
pub struct Settle {
    /// Which.
    #[shape(c.bits())]
    pub tag: Sig,
    /// Nothing more can come.
    pub frees: Sig,
    /// Something may still come: quarantine.
    pub strays: Sig,
    /// The word was the expiry under way.
    pub expiry: Sig,
}

/// Ports of [`Tags`].
#[derive(Ports)]
#[ports(Tags)]
pub struct TagsIo {
    /// The next free tag, if `ready`.
    #[output(c.bits())]
    pub tag: Sig,
    /// `tag` may be taken.
    #[output]
    pub ready: Sig,
    /// It is taken in this clock: only while `ready`.
    #[input]
    pub take: Sig,
    /// Verdicts; none of its bits set, none.
    #[input(c.clone())]
    pub settle: Settle,
    /// The time of a tag has come.
    #[source(c.clone())]
    pub expiry: Stream<Expiry>,
    /// A completion that has settled its tag, or may yet, is passing.
    #[input]
    pub passing: Sig,
    /// Its tag.
    #[input(c.bits())]
    pub passing_tag: Sig,
    /// Waits for its answer: a bit per tag.
    #[output(c.tags)]
    pub live: Sig,
    /// In quarantine: a bit per tag.
    #[output(c.tags)]
    pub aging: Sig,
    /// Tags that are not free.
    #[output(c.bits() + 1)]
    pub used: Sig,
    /// Tags above 31 may be used.
    #[input]
    pub extended: Sig,
    /// Time.
    #[input(c.time)]
    pub now: Sig,
    /// Clocks from a read to its deadline, and from there to the end of quarantine: at most an eighth of the range of
    /// time.
    #[input(c.time)]
    pub timeout: Sig,
    /// A live tag waits for ever.
    #[input]
    pub patient: Sig,
    /// Function level reset: pulse.
    #[input]
    pub flr: Sig,
    /// It is going on.
    #[output]
    pub flushing: Sig,
}

impl Module for Tags {
    type Io = TagsIo;
    fn name(&self) -> String {
        format!("pcie_tags_{}x{}", self.tags, self.time)
    }
    fn doc(&self) -> String {
        format!("{} tags of reads: free, live, aging.", self.tags)
    }
    fn body(&self, io: &TagsIo) {
        let (tags, bits) = (self.tags, self.bits());
        assert!(tags.is_power_of_two() && (2..=256).contains(&tags), "{tags} tags");
        let live = reg_init("waits", tags, 0);
        let aging = reg_init("ages", tags, 0);
        let settle = &io.settle;
        let at = |enable: Sig| one_hot(tags, settle.tag, enable);

        // --- the next one
        let expiring = reg_init("expiring", 1, 0);
        let expiry = Expiry::regs(self, "expires");
        let spoken_of = one_hot(tags, expiry.tag, expiring);
        let mut spare = !(live | aging | spoken_of | one_hot(tags, io.passing_tag, io.passing));
        if tags > PLAIN {
            spare = spare & cat(&[io.extended.repeat(tags - PLAIN), lit(PLAIN, 0xffff_ffff)]);
        }
        let tag = reg_init("next", bits, 0);
        let ready = reg_init("next_ready", 1, 0);
        // one search for both ways round: where no tag above the last one is free, the next clock looks at all
        let above = reg_init("above", tags, 0);
        let ahead = spare & above;
        when(io.take, || {
            ready.set(0);
            above.set(cat(&[from(tags, tag).bits(0, tags - 1), lit(1, 0)]));
        })
        .elif(!ready, || {
            tag.set(lowest(ahead));
            ready.set(ahead.any());
            when(ahead.none(), || above.set(lit(1, 1).repeat(tags)));
        });
        io.tag.set(tag);
        io.ready.set(ready);

        // --- scan: one tag every two clocks is held against its deadline
        let deadlines = Memory::new("deadlines", tags, self.time);
        deadlines.write(io.take, tag, io.now + io.timeout);
        let flush_left = reg_init("flush_left", bits + 1, 0);
        let flushing = flush_left.any();
        let scan = reg_init("scan", bits, 0);
        let scanned = reg_init("scanned", 1, 0);
        let stale = reg("stale", 1);
        let looks = (!scanned & !expiring).named("looks");
        let due = deadlines.read("due", looks, scan);
        scanned.set(looks);
        // the word under `due` is older than a read that leaves in the clock of the look
        stale.set(io.take & tag.eq(scan));
        let elapsed = io.now - due;
        let late = (!elapsed.msb()).named("late");
        let aged = late & elapsed.ge(io.timeout);
        let (scan_live, scan_aging) = (live.bit_at(scan), aging.bit_at(scan));
        let strikes = late & !io.patient;
        let hit = scanned & !stale & ((scan_live & (strikes | flushing)) | (scan_aging & aged));
        when(scanned, || {
            scan.set(scan + 1);
            when(flushing, || flush_left.set(flush_left - 1));
        });
        when(io.flr, || flush_left.set(lit(bits + 1, u64::from(tags))));
        io.flushing.set(flushing);
        let sent = reg_init("sent", 1, 0);
        io.expiry.valid.set(expiring & !sent);
        io.expiry.data.assign(&expiry);
        when(io.expiry.moves(), || sent.set(1));
        when(hit, || {
            expiring.set(1);
            sent.set(0);
            expiry.assign(&Expiry { tag: scan, aged: scan_aging, silent: !late });
        });
        when(settle.expiry, || expiring.set(0));

        // --- what becomes of them
        let taken = one_hot(tags, tag, io.take);
        live.set((live | taken) & !at(settle.frees | settle.strays));
        aging.set((aging | at(settle.strays)) & !at(settle.frees));
        io.live.set(live);
        io.aging.set(aging);
        let used = reg_init("in_use", bits + 1, 0);
        used.set(used + io.take.extend(bits + 1) - settle.frees.extend(bits + 1));
        io.used.set(used);

        assert_always("timeout_within_range", io.timeout.le(1 << (self.time - 3)));
        assert_always("only_an_offered_tag_is_taken", !io.take | ready);
        assert_always("an_offered_tag_is_free", !ready | !any_of(&[live.bit_at(tag), aging.bit_at(tag)]));
        assert_always("live_or_aging", (live & aging).none());
        cover("tags_ran_out", !ready & spare.none());
    }
}
