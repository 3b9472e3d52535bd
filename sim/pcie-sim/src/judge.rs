//! The judge: every TLP, both ways, against the rules of the transaction layer.
//!
//! In: each TLP with its instant, and the [`Sideband`] whenever it changes. Out: [`Violation`]s, collected; a story
//! asserts that there are none. It tells the root complex besides what a real receiver would do with the offender
//! (execute, answer UR, drop it as malformed), and which outstanding request a completion belongs to.
//!
//! A change of the sideband that forbids something takes effect after a grace: a TLP whose beats were on their way is
//! not a crime. What the model was told to spoil is not judged. Costs O(1) per TLP; never panics.

use crate::{
    config::Sideband,
    link::{owed, worst_case},
    memory::INTERRUPT_WINDOW,
    time::Time,
    tlp::{AtomicKind, AtomicOp, Attributes, Completion, MemRead, MemWrite, RawTlp, Status, Tlp, TlpError},
};
use std::ops::Range;
use thiserror::Error;

/// Who sent a TLP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The card.
    Card,
    /// The root complex.
    Host,
}

/// A broken rule: the object, what was wrong, what to do instead.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Verdict {
    /// The raw TLP has no meaning.
    #[error("malformed TLP: {0}")]
    Malformed(#[from] TlpError),
    /// Reserved bits are set.
    #[error("header: reserved bits are set (canonical form {canonical:08x?}); send them as zero")]
    ReservedBits {
        /// What the header should be.
        canonical: [u32; 4],
    },
    /// A 4-DW header below 4 GiB.
    #[error("request at {address:#x}: 4-DW header with upper address 0; use the 3-DW header below 4 GiB")]
    WideHeader {
        /// Address.
        address: u64,
    },
    /// The request crosses a 4096-byte boundary.
    #[error("request of {bytes} bytes at {address:#x}: crosses a 4 KiB boundary; cut it there")]
    Crosses4K {
        /// Address of the first DW.
        address: u64,
        /// Bytes by Length.
        bytes: u32,
    },
    /// The payload exceeds Max_Payload_Size.
    #[error("payload of {bytes} bytes: exceeds Max_Payload_Size {limit}; cut it")]
    PayloadSize {
        /// Bytes.
        bytes: u32,
        /// Limit.
        limit: u16,
    },
    /// The read exceeds Max_Read_Request_Size.
    #[error("read of {bytes} bytes: exceeds Max_Read_Request_Size {limit}; cut it")]
    ReadSize {
        /// Bytes by Length.
        bytes: u32,
        /// Limit.
        limit: u16,
    },
    /// The byte enables break a rule.
    #[error("request of {dwords} DW: byte enables first {first:#06b}, last {last:#06b}: {rule}")]
    ByteEnables {
        /// Length.
        dwords: u16,
        /// First BE.
        first: u8,
        /// Last BE.
        last: u8,
        /// The rule.
        rule: &'static str,
    },
    /// The tag is outstanding.
    #[error("tag {tag}: its earlier request is still outstanding; free it by its last completion first")]
    TagInUse {
        /// Tag.
        tag: u16,
    },
    /// The tag is wider than enabled.
    #[error("tag {tag}: only {limit} tags are enabled; stay below")]
    TagWidth {
        /// Tag.
        tag: u16,
        /// 32 or 256.
        limit: u16,
    },
    /// A request while bus mastering is off.
    #[error("request: bus master enable is off; send nothing until it is set")]
    BusMasterOff,
    /// A request during a function level reset.
    #[error(
        "request: a function level reset is in progress; send nothing until it is over and bus master is set"
    )]
    DuringReset,
    /// RO without permission.
    #[error("request: relaxed ordering is not enabled in DEVCTL; clear RO")]
    RelaxedOff,
    /// NS without permission.
    #[error("request: no-snoop is not enabled in DEVCTL; clear NS")]
    NoSnoopOff,
    /// IDO without permission.
    #[error("request: ID-based ordering is not enabled in DEVCTL2; clear IDO")]
    IdOrderingOff,
    /// AtomicOp without permission.
    #[error("AtomicOp: the requester enable in DEVCTL2 is off; do the operation without it")]
    AtomicsOff,
    /// AtomicOp that is not aligned to its operand.
    #[error("AtomicOp at {address:#x}: not aligned to its operand of {operand} bytes; align it")]
    AtomicAlignment {
        /// Address.
        address: u64,
        /// Bytes.
        operand: usize,
    },
    /// A foreign ID in a TLP of the card.
    #[error("ID {found:#06x}: the function captured {expected:#06x}; use that")]
    WrongId {
        /// In the TLP.
        found: u16,
        /// Captured.
        expected: u16,
    },
    /// An interrupt write with RO or NS.
    #[error("interrupt write to {address:#x}: RO or NS is set; clear both, it must push earlier writes")]
    InterruptOrder {
        /// Address.
        address: u64,
    },
    /// An interrupt write that is not one whole DW.
    #[error("interrupt write to {address:#x}: not one aligned DW with all bytes enabled; write exactly that")]
    InterruptShape {
        /// Address.
        address: u64,
    },
    /// An interrupt while MSI-X is disabled or masked.
    #[error("interrupt write to {address:#x}: MSI-X is {state}; set the pending bit instead")]
    InterruptOff {
        /// Address.
        address: u64,
        /// "disabled" or "masked".
        state: &'static str,
    },
    /// The card sent a configuration request.
    #[error("configuration request: an endpoint sends none; remove it")]
    NotForEndpoints,
    /// A completion that fits no outstanding request.
    #[error("completion with tag {tag}: no request with that tag is outstanding; answer each request once")]
    UnexpectedCompletion {
        /// Tag.
        tag: u16,
    },
    /// Byte Count is not what is owed.
    #[error(
        "completion with tag {tag}: Byte Count {found}, but {expected} bytes are owed; count down from the request"
    )]
    ByteCount {
        /// Tag.
        tag: u16,
        /// In the TLP.
        found: u32,
        /// Owed.
        expected: u32,
    },
    /// Lower Address is not where the data starts.
    #[error(
        "completion with tag {tag}: Lower Address {found:#x}, but the data starts at {expected:#x}; use bits 6:0 of it"
    )]
    LowerAddress {
        /// Tag.
        tag: u16,
        /// In the TLP.
        found: u8,
        /// Right.
        expected: u8,
    },
    /// More or fewer DWs than the bytes that are owed need.
    #[error(
        "completion with tag {tag}: {found} DW of data, the rest of the request has {expected}; send no more than that"
    )]
    DataLength {
        /// Tag.
        tag: u16,
        /// In the TLP.
        found: u32,
        /// Owed.
        expected: u32,
    },
    /// A completion that is not the last ends off a boundary.
    #[error(
        "completion with tag {tag}: ends at {end:#x}, no multiple of the read completion boundary {rcb}; cut there only"
    )]
    Boundary {
        /// Tag.
        tag: u16,
        /// Address behind the last byte.
        end: u64,
        /// Boundary.
        rcb: u16,
    },
    /// TC, RO, NS or requester differ from the request.
    #[error(
        "completion with tag {tag}: traffic class, RO, NS or requester differ from the request; copy them"
    )]
    NotCopied {
        /// Tag.
        tag: u16,
    },
    /// Successful without data, or an error with data.
    #[error(
        "completion with tag {tag}: status {status:?} with {bytes} bytes of data; data goes with SC and only with SC"
    )]
    StatusAndData {
        /// Tag.
        tag: u16,
        /// Status.
        status: Status,
        /// Payload.
        bytes: usize,
    },
    /// CRS for a memory request.
    #[error("completion with tag {tag}: CRS is for configuration requests only; use UR or CA")]
    RetryOfMemory {
        /// Tag.
        tag: u16,
    },
    /// Sent without a credit.
    #[error("{kind:?} request: no flow control credit was left; ask `can_accept` first")]
    NoCredit {
        /// Class.
        kind: crate::link::Kind,
    },
    /// The completions of all outstanding reads could overflow the card's buffer.
    #[error(
        "read: outstanding reads may bring {headers} headers and {data} data units, the completion buffer has {header_limit} and {data_limit}; reserve room before reading"
    )]
    CompletionRoom {
        /// Headers in the worst case.
        headers: u32,
        /// 16-byte units in the worst case.
        data: u32,
        /// Limit.
        header_limit: u32,
        /// Limit.
        data_limit: u32,
    },
    /// A completion found the card's buffer full and was lost.
    #[error(
        "completion with tag {tag}: the card's completion buffer overflowed and lost it; reserve room before reading"
    )]
    CompletionOverflow {
        /// Tag.
        tag: u16,
    },
    /// The function level reset took more than 100 ms.
    #[error("function level reset: not done 100 ms after it was asked for; finish in time")]
    ResetOverdue,
}

/// A broken rule, when, and by whom.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{at}: {side:?} broke a rule: {verdict} (header {header:08x?})")]
pub struct Violation {
    /// When.
    pub at: Time,
    /// Who.
    pub side: Side,
    /// What.
    pub verdict: Verdict,
    /// Header of the offender.
    pub header: [u32; 4],
}

/// What the receiver does with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Disposition {
    /// Carry it out.
    Execute,
    /// Answer UR; drop it if it is posted.
    Unsupported,
    /// Drop it as malformed: no answer.
    Drop,
}

/// Where a completion belongs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// To no outstanding request.
    Unknown,
    /// To one.
    Known {
        /// Byte address of its first byte.
        address: u64,
        /// The bytes of the payload that count.
        bytes: Range<usize>,
        /// It ends the request.
        last: bool,
        /// No rule was broken in a way that makes its data doubtful.
        sound: bool,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Read,
    ZeroLength,
    Atomic,
}

#[derive(Clone, Debug)]
struct Owed {
    what: What,
    attr: Attributes,
    requester: u16,
    next: u64,
    left: u32,
    booked: (u32, u32),
    /// Part of its answer is lost for good: it counts no more, and its tag may be used again.
    doomed: bool,
}

/// Tags that a 10-bit field can name.
const TAGS: usize = 1024;
/// Violations that are kept; more are only counted.
const KEPT: usize = 4096;

/// The judge of one link.
#[derive(Clone, Debug)]
pub struct Judge {
    sideband: Sideband,
    /// What was in force before, until when: the latest changes, at least those within the grace.
    earlier: Vec<(Time, Sideband)>,
    grace: Time,
    reset_at: Option<Time>,
    header_limit: u32,
    data_limit: u32,
    booked: (u32, u32),
    card: Vec<Option<Owed>>,
    card_outstanding: usize,
    /// Tag of the card's last request.
    card_last: u16,
    host: Vec<Option<Owed>>,
    violations: Vec<Violation>,
    count: u64,
}

fn loosest(a: &Sideband, b: &Sideband) -> Sideband {
    Sideband {
        bus_master: a.bus_master | b.bus_master,
        memory_enable: a.memory_enable | b.memory_enable,
        max_payload: a.max_payload.max(b.max_payload),
        max_read: a.max_read.max(b.max_read),
        rcb: a.rcb.min(b.rcb),
        extended_tag: a.extended_tag | b.extended_tag,
        relaxed_ordering: a.relaxed_ordering | b.relaxed_ordering,
        no_snoop: a.no_snoop | b.no_snoop,
        id_ordering: a.id_ordering | b.id_ordering,
        atomics: a.atomics | b.atomics,
        completion_timeout: a.completion_timeout,
        requester: a.requester,
        msix_enable: a.msix_enable | b.msix_enable,
        msix_mask: a.msix_mask & b.msix_mask,
        flr: a.flr & b.flr,
        link_up: a.link_up | b.link_up,
    }
}

fn enables_rule(address: u64, dwords: u16, first: u8, last: u8) -> Option<&'static str> {
    if dwords == 1 {
        return (last != 0).then_some("one DW has last byte enables 0000");
    }
    if first == 0 || last == 0 {
        return Some("several DWs enable at least one byte in the first and in the last");
    }
    if dwords == 2 && address.is_multiple_of(8) {
        return None;
    }
    let contiguous = matches!(first, 15 | 14 | 12 | 8) && matches!(last, 15 | 7 | 3 | 1);
    (!contiguous)
        .then_some("bytes from the first to the last enabled one are contiguous, except in an aligned QW")
}

impl Judge {
    /// A judge with no outstanding request. Limits of the completion buffer: 0 is none.
    pub fn new(sideband: Sideband, header_limit: u32, data_limit: u32, grace: Time) -> Judge {
        Judge {
            sideband,
            earlier: Vec::new(),
            grace,
            reset_at: None,
            header_limit,
            data_limit,
            booked: (0, 0),
            card: vec![None; TAGS],
            card_outstanding: 0,
            card_last: 0,
            host: vec![None; TAGS],
            violations: Vec::new(),
            count: 0,
        }
    }

    /// What was found, in order. At most 4096 are kept.
    pub fn violations(&self) -> &[Violation] {
        &self.violations
    }

    /// How many were found.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Takes the list and starts a new one.
    pub fn take_violations(&mut self) -> Vec<Violation> {
        self.count = 0;
        std::mem::take(&mut self.violations)
    }

    /// Records a violation.
    pub fn report(&mut self, at: Time, side: Side, verdict: Verdict, header: [u32; 4]) {
        self.count += 1;
        if self.violations.len() < KEPT {
            self.violations.push(Violation { at, side, verdict, header });
        }
    }

    /// The sideband changed.
    pub fn sideband(&mut self, now: Time, sideband: Sideband) {
        if sideband != self.sideband {
            self.earlier.retain(|(until, _)| now < *until + self.grace);
            self.earlier.push((now, self.sideband));
            self.sideband = sideband;
        }
    }

    /// A function level reset or a lost link: everything outstanding is forgotten.
    pub fn forget_all(&mut self, now: Time) {
        self.card.fill(None);
        self.card_outstanding = 0;
        self.booked = (0, 0);
        self.host.fill(None);
        self.reset_at = Some(now);
    }

    /// Part of the answer to this request of the card will never come: its tag may be used again. What is still under
    /// way is matched until then.
    pub fn abandon(&mut self, tag: u16) {
        if let Some(owed) = &mut self.card[tag as usize % TAGS]
            && !owed.doomed
        {
            owed.doomed = true;
            self.card_outstanding -= 1;
            self.booked.0 -= owed.booked.0;
            self.booked.1 -= owed.booked.1;
            owed.booked = (0, 0);
        }
    }

    /// The host gave up on its own request.
    pub fn abandon_host(&mut self, tag: u16) {
        self.host[tag as usize % TAGS] = None;
    }

    /// Non-posted requests of the card without their last completion.
    pub fn outstanding(&self) -> usize {
        self.card_outstanding
    }

    /// Is a request of the card with this tag outstanding, or part of its answer lost?
    pub fn is_outstanding(&self, tag: u16) -> bool {
        self.card.get(tag as usize).is_some_and(Option::is_some)
    }

    /// Of the tags that the card does not use the one that it will use last, if it takes them in rotation.
    pub fn idle_tag(&self) -> Option<u16> {
        let width = if self.sideband.extended_tag { 256 } else { 32 };
        (0..width)
            .map(|behind| (self.card_last + width - behind) % width)
            .find(|&tag| !self.is_outstanding(tag))
    }

    fn allowed(&self, now: Time) -> Sideband {
        let lately = self.earlier.iter().filter(|(until, _)| now < *until + self.grace);
        lately.fold(self.sideband, |loose, (_, sideband)| loosest(&loose, sideband))
    }

    /// Judges a request. `Err` is a TLP without meaning. Completions are passed through to [`Judge::completion`].
    pub fn request(&mut self, now: Time, side: Side, raw: &RawTlp) -> (Result<Tlp, TlpError>, Disposition) {
        let header = raw.header;
        let tlp = match Tlp::parse(raw) {
            Ok(tlp) => tlp,
            Err(error) => {
                self.report(now, side, Verdict::Malformed(error.clone()), header);
                return (Err(error), Disposition::Drop);
            }
        };
        let mut disposition = Disposition::Execute;
        let mut found: Vec<(Verdict, Disposition)> = Vec::new();
        let limits = self.allowed(now);
        let attr = *tlp.attributes();
        let address = match &tlp {
            Tlp::MemRead(MemRead { address, .. })
            | Tlp::MemWrite(MemWrite { address, .. })
            | Tlp::AtomicOp(AtomicOp { address, .. }) => Some(*address),
            _ => None,
        };
        let wide = address.filter(|a| a >> 32 == 0 && raw.header_dwords() == 4);
        let canonical = tlp.header();
        if let Some(address) = wide {
            found.push((Verdict::WideHeader { address }, Disposition::Unsupported));
        } else if canonical != header {
            found.push((Verdict::ReservedBits { canonical }, Disposition::Execute));
        }
        if side == Side::Card && address.is_some() {
            if limits.flr {
                found.push((Verdict::DuringReset, Disposition::Unsupported));
            } else if !limits.bus_master {
                found.push((Verdict::BusMasterOff, Disposition::Unsupported));
            }
            if attr.relaxed && !limits.relaxed_ordering {
                found.push((Verdict::RelaxedOff, Disposition::Execute));
            }
            if attr.no_snoop && !limits.no_snoop {
                found.push((Verdict::NoSnoopOff, Disposition::Execute));
            }
            if attr.id_ordered && !limits.id_ordering {
                found.push((Verdict::IdOrderingOff, Disposition::Execute));
            }
        }
        match &tlp {
            Tlp::MemRead(r) => {
                self.shape(&mut found, r.address, r.dwords, r.first_be, r.last_be);
                let bytes = r.dwords as u32 * 4;
                if side == Side::Card && bytes > limits.max_read as u32 {
                    found.push((Verdict::ReadSize { bytes, limit: limits.max_read }, Disposition::Drop));
                }
                self.id(&mut found, side, r.requester);
                let (next, left) = owed(r);
                let what = if r.zero_length() { What::ZeroLength } else { What::Read };
                self.ask(
                    now,
                    side,
                    &mut found,
                    &limits,
                    r.tag,
                    header,
                    Owed {
                        what,
                        attr,
                        requester: r.requester,
                        next,
                        left,
                        booked: worst_case(next, left, self.sideband.rcb),
                        doomed: false,
                    },
                );
            }
            Tlp::AtomicOp(a) => {
                let operand = a.operand_bytes();
                if !a.address.is_multiple_of(operand as u64) {
                    let verdict = Verdict::AtomicAlignment { address: a.address, operand };
                    found.push((verdict, Disposition::Drop));
                }
                if side == Side::Card && !limits.atomics {
                    found.push((Verdict::AtomicsOff, Disposition::Unsupported));
                }
                if a.kind != AtomicKind::CompareSwap && operand > 8 {
                    found.push((
                        Verdict::Malformed(TlpError::AtomicLength { kind: a.kind, dwords: operand / 4 }),
                        Disposition::Drop,
                    ));
                }
                self.id(&mut found, side, a.requester);
                self.ask(
                    now,
                    side,
                    &mut found,
                    &limits,
                    a.tag,
                    header,
                    Owed {
                        what: What::Atomic,
                        attr,
                        requester: a.requester,
                        next: 0,
                        left: operand as u32,
                        booked: (1, 1),
                        doomed: false,
                    },
                );
            }
            Tlp::MemWrite(w) => {
                let dwords = (w.payload.len() / 4) as u16;
                self.shape(&mut found, w.address, dwords, w.first_be, w.last_be);
                let bytes = w.payload.len() as u32;
                if bytes > limits.max_payload as u32 {
                    found
                        .push((Verdict::PayloadSize { bytes, limit: limits.max_payload }, Disposition::Drop));
                }
                self.id(&mut found, side, w.requester);
                if side == Side::Card && INTERRUPT_WINDOW.contains(&w.address) {
                    let address = w.address;
                    if attr.relaxed || attr.no_snoop {
                        found.push((Verdict::InterruptOrder { address }, Disposition::Execute));
                    }
                    if dwords != 1 || w.first_be != 15 {
                        found.push((Verdict::InterruptShape { address }, Disposition::Drop));
                    }
                    if !limits.msix_enable || limits.msix_mask {
                        let state = if limits.msix_enable { "masked" } else { "disabled" };
                        found.push((Verdict::InterruptOff { address, state }, Disposition::Execute));
                    }
                }
            }
            Tlp::Config(_) if side == Side::Card => {
                found.push((Verdict::NotForEndpoints, Disposition::Drop));
            }
            Tlp::Config(_) | Tlp::Completion(_) => {}
        }
        for (verdict, then) in found {
            disposition = disposition.max(then);
            self.report(now, side, verdict, header);
        }
        (Ok(tlp), disposition)
    }

    fn shape(&self, found: &mut Vec<(Verdict, Disposition)>, address: u64, dwords: u16, first: u8, last: u8) {
        if (address & 0xfff) + dwords as u64 * 4 > 4096 {
            let verdict = Verdict::Crosses4K { address, bytes: dwords as u32 * 4 };
            found.push((verdict, Disposition::Drop));
        }
        if let Some(rule) = enables_rule(address, dwords, first, last) {
            found.push((Verdict::ByteEnables { dwords, first, last, rule }, Disposition::Drop));
        }
    }

    fn id(&self, found: &mut Vec<(Verdict, Disposition)>, side: Side, id: u16) {
        if side == Side::Card && id != self.sideband.requester {
            let verdict = Verdict::WrongId { found: id, expected: self.sideband.requester };
            found.push((verdict, Disposition::Drop));
        }
    }

    /// Enters a non-posted request, unless it is dropped.
    #[allow(clippy::too_many_arguments)]
    fn ask(
        &mut self,
        now: Time,
        side: Side,
        found: &mut Vec<(Verdict, Disposition)>,
        limits: &Sideband,
        tag: u16,
        header: [u32; 4],
        owed: Owed,
    ) {
        let limit = if side == Side::Host || limits.extended_tag { 256 } else { 32 };
        if tag >= limit {
            found.push((Verdict::TagWidth { tag, limit }, Disposition::Drop));
        }
        let table = if side == Side::Card { &self.card } else { &self.host };
        if table[tag as usize % TAGS].as_ref().is_some_and(|owed| !owed.doomed) {
            found.push((Verdict::TagInUse { tag }, Disposition::Drop));
        }
        if found.iter().any(|(_, then)| *then == Disposition::Drop) {
            return;
        }
        if side == Side::Host {
            self.host[tag as usize % TAGS] = Some(owed);
            return;
        }
        self.booked.0 += owed.booked.0;
        self.booked.1 += owed.booked.1;
        let (headers, data) = self.booked;
        let (header_limit, data_limit) = (self.header_limit, self.data_limit);
        if header_limit != 0 && headers > header_limit || data_limit != 0 && data > data_limit {
            let verdict = Verdict::CompletionRoom { headers, data, header_limit, data_limit };
            self.report(now, side, verdict, header);
        }
        self.card[tag as usize % TAGS] = Some(owed);
        self.card_outstanding += 1;
        self.card_last = tag;
    }

    /// Judges a completion that `side` sent and finds its request. `pardoned`: the model was told to spoil it, or it
    /// belongs to the time before a reset; nothing is reported then.
    pub fn completion(
        &mut self,
        now: Time,
        side: Side,
        c: &Completion,
        header: [u32; 4],
        pardoned: bool,
    ) -> Match {
        let tag = c.tag;
        let limits = self.allowed(now);
        let mut found: Vec<Verdict> = Vec::new();
        let completer_wrong = side == Side::Card && c.completer != self.sideband.requester;
        let table = if side == Side::Host { &mut self.card } else { &mut self.host };
        let Some(owed) = &mut table[tag as usize % TAGS] else {
            let in_reset = self.reset_at.is_some_and(|at| now < at + self.grace);
            if !(pardoned || in_reset && side == Side::Card) {
                self.report(now, side, Verdict::UnexpectedCompletion { tag }, header);
            }
            return Match::Unknown;
        };
        let mut sound = true;
        if completer_wrong {
            found.push(Verdict::WrongId { found: c.completer, expected: self.sideband.requester });
        }
        let copied = c.requester == owed.requester
            && c.attr.traffic_class == owed.attr.traffic_class
            && c.attr.relaxed == owed.attr.relaxed
            && c.attr.no_snoop == owed.attr.no_snoop;
        if !copied {
            found.push(Verdict::NotCopied { tag });
        }
        let bytes = c.payload.len();
        let address = owed.next;
        let mut useful = 0..0;
        let mut last = true;
        if (c.status == Status::Successful) != (bytes > 0) {
            found.push(Verdict::StatusAndData { tag, status: c.status, bytes });
            sound = false;
        }
        if c.status == Status::ConfigRetry {
            found.push(Verdict::RetryOfMemory { tag });
        }
        if c.status == Status::Successful && bytes > 0 {
            if bytes > limits.max_payload as usize {
                found.push(Verdict::PayloadSize { bytes: bytes as u32, limit: limits.max_payload });
            }
            if c.byte_count as u32 != owed.left {
                found.push(Verdict::ByteCount { tag, found: c.byte_count as u32, expected: owed.left });
                sound = false;
            }
            let expected = match owed.what {
                What::Atomic => 0,
                What::ZeroLength => (owed.next & 0x7c) as u8,
                What::Read => (owed.next & 0x7f) as u8,
            };
            if c.lower_address != expected {
                found.push(Verdict::LowerAddress { tag, found: c.lower_address, expected });
                sound = false;
            }
            let skip = if owed.what == What::Read { (owed.next & 3) as u32 } else { 0 };
            let given = bytes as u32 - skip;
            let needed = (skip + owed.left).div_ceil(4);
            if given >= owed.left {
                if bytes as u32 / 4 != needed {
                    found.push(Verdict::DataLength { tag, found: bytes as u32 / 4, expected: needed });
                    sound = false;
                }
                useful = skip as usize..(skip + owed.left) as usize;
            } else {
                last = false;
                useful = skip as usize..bytes;
                let end = owed.next + given as u64;
                // An endpoint's own boundary is 128; the root's is what LNKCTL says.
                let rcb = if side == Side::Card { 128 } else { limits.rcb };
                if owed.what != What::Read {
                    found.push(Verdict::DataLength { tag, found: bytes as u32 / 4, expected: needed });
                    sound = false;
                } else if !end.is_multiple_of(rcb as u64) {
                    found.push(Verdict::Boundary { tag, end, rcb });
                }
                owed.next = end;
                owed.left -= given;
            }
        }
        let booked = owed.booked;
        let doomed = owed.doomed;
        let now_booked =
            if last || doomed { (0, 0) } else { worst_case(owed.next, owed.left, self.sideband.rcb) };
        owed.booked = now_booked;
        if last {
            table[tag as usize % TAGS] = None;
        }
        if side == Side::Host {
            self.booked.0 = self.booked.0 + now_booked.0 - booked.0;
            self.booked.1 = self.booked.1 + now_booked.1 - booked.1;
            self.card_outstanding -= (last && !doomed) as usize;
        }
        if !pardoned {
            for verdict in found {
                self.report(now, side, verdict, header);
            }
        }
        Match::Known { address, bytes: useful, last, sound }
    }
}
