//! check, by the interpreter, verdict for verdict against a model of the rules of IBA 9.7 written from the rules alone.
//!
//! Requirements: ATOM CARD CMD CONG DGM ERR MEM NET PKT QPS RAW READ RESP

mod bench;

use bench::{Choices, EXPECT, OWED, PLACED, REQUESTER, Ram, TX, Word, clock, reset};
use contract::context::{MrEntry, QpAddresses, QpQueues, QpRights};
use contract::{QpState, Reject, TraceEvent, Transport};
use hdl::{Bits, Interpreter, elaborate};
use nic::Config;
use nic::rx::check::Check;

const FENCE: u64 = 0;
const WRITE: u64 = 1;
const SEND: u64 = 2;
const REACK: u64 = 3;
const NAK: u64 = 4;
const RESPOND: u64 = 5;
const REWIND: u64 = 6;
const ATOMIC: u64 = 8;
const MASK: u32 = 0xff_ffff;

#[derive(Clone, Copy, Debug, PartialEq, Default)]
struct Packet {
    qpn: u32,
    opcode: u8,
    solicited: bool,
    ack_req: bool,
    pad: u8,
    pkey: u16,
    psn: u32,
    source: u128,
    dest: u128,
    va: u64,
    rkey: u32,
    dma_length: u32,
    syndrome: u8,
    msn: u32,
    imm: u32,
    value: u64,
    compare: u64,
    address: u16,
    length: u16,
    slot: u8,
}

/// What a verdict says; fields that mean nothing for the action are zero.
#[derive(Clone, Copy, Debug, PartialEq, Default)]
struct Verdict {
    action: u64,
    qp: u32,
    psn: u32,
    ack_req: bool,
    first: bool,
    last: bool,
    fatal: bool,
    syndrome: u8,
    iova: u64,
    wqe: Option<u16>,
    /// Number of a READ or atomic.
    read: u8,
    offset: u32,
    length: u16,
    address: u16,
    slot: u8,
    with_imm: bool,
    solicited: bool,
    imm: u32,
    /// Of a WRITE with payload and an atomic; of a SEND with invalidate the one that ends.
    key: u32,
    with_inv: bool,
    /// Of a fatal NAK.
    cause: u8,
    /// The first packet taken in RTR.
    establishes: bool,
}

/// What an atomic is to do: where, whether it adds, its operands.
type Operands = (u64, bool, u64, u64);

/// A READ or atomic as it was taken.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Read {
    psn: u32,
    packets: u32,
    va: u64,
    rkey: u32,
    length: u32,
    msn: u32,
    /// Its number among the atomics.
    atomic: Option<(u8, Operands)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Outcome {
    Verdict(Verdict),
    Response { qp: u32, opcode: u8, psn: u32, syndrome: u8, msn: u32, payload: Option<Payload> },
    Silent,
}

/// Address, length, slot and value of a READ response or the result of an atomic.
type Payload = (u16, u16, u8, u64);

/// The outcome, the counter, whether the slot came back.
type Result3 = (Outcome, Option<Reject>, bool);

#[derive(Clone, Copy, PartialEq, Debug)]
enum Open {
    None,
    Send { wqe: u16 },
    Write { va: u64, rkey: u32, remaining: u64 },
}

/// The responder of one QP as the rules describe it.
#[derive(Clone, Debug)]
struct Qp {
    rights: QpRights,
    addresses: QpAddresses,
    producer: u16,
    placed_halt: bool,
    requester_halt: bool,
    epsn: u32,
    nak_sent: bool,
    open: Open,
    done: u64,
    rq_next: u16,
    halt: bool,
    msn: u32,
    /// All that were taken, and how many of them segment has answered.
    reads: Vec<Read>,
    answered: usize,
    log_ring: u8,
}

struct Model {
    qps: Vec<Qp>,
    mrs: Vec<MrEntry>,
}

#[derive(Clone, Copy, PartialEq)]
enum Class {
    Send,
    Write,
    Read,
    Atomic,
}

impl Model {
    fn key_fault(
        &self,
        pd: u32,
        key: u32,
        va: u64,
        length: u64,
        right: u8,
    ) -> std::result::Result<u64, Reject> {
        let entry = self.mrs.get((key >> 8) as usize);
        let iova = entry.map_or(0, |e| e.iova.wrapping_add(va.wrapping_sub(e.va)));
        if length == 0 {
            return Ok(iova);
        }
        let Some(e) = entry.filter(|e| e.valid) else { return Err(Reject::RkeyUnknown) };
        if e.tag != key as u8 {
            Err(Reject::RkeyTag)
        } else if e.pd != pd {
            Err(Reject::RkeyPd)
        } else if e.access & right == 0 {
            Err(Reject::RkeyRights)
        } else if va < e.va || u128::from(va - e.va) + u128::from(length) > u128::from(e.length) {
            Err(Reject::RkeyBounds)
        } else {
            Ok(iova)
        }
    }

    fn judge(&mut self, p: &Packet, room: bool) -> Result3 {
        let drop = |r| (Outcome::Silent, Some(r), true);
        // classes by hand, from the table of IBA 9.2: 0..5 SEND, 6..11 WRITE, 12 READ, 13..18 responses, 19, 20 atomics
        let known = matches!(p.opcode, 0..=0x14 | 0x16 | 0x17 | 0x20..=0x2b | 0x64 | 0x65 | 0x81);
        if !known {
            return drop(Reject::UnknownOpcode);
        }
        let Some(q) = self.qps.get(p.qpn as usize).filter(|q| q.rights.valid).cloned() else {
            return drop(Reject::UnknownQp);
        };
        if p.opcode > 0x17 || q.rights.transport != Transport::Rc as u8 {
            return drop(Reject::WrongTransport);
        }
        let response = (0x0d..=0x12).contains(&p.opcode);
        let ready = if response { [3, 4, 5].as_slice() } else { [2, 3, 4, 5].as_slice() };
        if !ready.contains(&q.rights.state) {
            return drop(Reject::WrongQpState);
        }
        if q.halt || q.placed_halt || q.requester_halt {
            return drop(Reject::QpHalted);
        }
        if p.source != q.addresses.dest_gid || p.dest != q.addresses.src_gid {
            return drop(Reject::WrongAddress);
        }
        let (a, b) = (p.pkey, q.rights.pkey);
        if a & 0x7fff != b & 0x7fff || a & 0x7fff == 0 || (a | b) & 0x8000 == 0 {
            return drop(Reject::BadPkey);
        }
        let mtu = 128u32 << q.rights.path_mtu;
        let length = u32::from(p.length);
        let padded = u32::from(p.pad) == length.wrapping_neg() & 3;
        if response {
            let payload = match p.opcode {
                0x11 => None,
                0x12 => Some((p.address, 8, p.slot, p.value)),
                _ => Some((p.address, p.length, p.slot, p.value)),
            };
            let fits = match p.opcode {
                0x0d | 0x0e => length == mtu,
                0x0f => (1..=mtu).contains(&length),
                0x10 => length <= mtu,
                0x12 => length == 0,
                _ => true,
            };
            if !fits || payload.is_some() && !padded {
                return drop(Reject::BadLength);
            }
            let (syndrome, msn) = (p.syndrome, p.msn);
            let out = Outcome::Response { qp: p.qpn, opcode: p.opcode, psn: p.psn, syndrome, msn, payload };
            return (out, None, payload.is_none());
        }
        let class = match p.opcode {
            0..=5 | 0x16 | 0x17 => Class::Send,
            6..=11 => Class::Write,
            12 => Class::Read,
            _ => Class::Atomic,
        };
        let opens = matches!(p.opcode, 0 | 4 | 5 | 6 | 10..=0x14 | 0x17);
        let closes = !matches!(p.opcode, 0 | 1 | 6 | 7);
        let imm = matches!(p.opcode, 3 | 5 | 9 | 11);
        let inv = matches!(p.opcode, 0x16 | 0x17);
        let denied = class == Class::Atomic && q.rights.access & 8 == 0
            || class == Class::Write && q.rights.access & 2 == 0
            || class == Class::Read && q.rights.access & 4 == 0;
        let shape = match p.opcode {
            0 | 1 | 6 | 7 => length == mtu,
            2 | 3 | 8 | 9 | 0x16 => (1..=mtu).contains(&length),
            4 | 5 | 10 | 11 | 0x17 => length <= mtu,
            _ => length == 0,
        } && padded;
        let distance = p.psn.wrapping_sub(q.epsn) & MASK;
        let me = &mut self.qps[p.qpn as usize];
        if distance >= 1 << 23 {
            if denied {
                return drop(Reject::AccessDenied);
            }
            if !shape {
                return drop(Reject::BadLength);
            }
            if matches!(class, Class::Read | Class::Atomic) {
                let kept = q.reads.len().saturating_sub((1usize << q.log_ring).min(16));
                let into = |r: &Read| p.psn.wrapping_sub(r.psn) & MASK;
                let hit = (kept..q.reads.len()).rev().find(|i| into(&q.reads[*i]) < q.reads[*i].packets);
                let same = |r: &Read| {
                    if r.atomic.is_some() != (class == Class::Atomic) || r.atomic.is_some() {
                        return r.atomic.is_some() && class == Class::Atomic;
                    }
                    let skipped = into(r) * mtu;
                    (p.va, p.rkey) == (r.va + u64::from(skipped), r.rkey)
                        && u64::from(p.dma_length) + u64::from(skipped) == u64::from(r.length)
                };
                let Some(at) = hit.filter(|i| same(&q.reads[*i])) else { return drop(Reject::Duplicate) };
                me.nak_sent = false;
                let v =
                    Verdict { action: REWIND, qp: p.qpn, psn: p.psn, read: at as u8, ..Verdict::default() };
                return (Outcome::Verdict(v), Some(Reject::Duplicate), true);
            }
            me.nak_sent = false;
            // up to the first READ or atomic that was taken behind it, of those kept
            let kept = q.reads.len().saturating_sub((1usize << q.log_ring).min(16));
            let behind = |r: &&Read| (r.psn.wrapping_sub(p.psn) & MASK) < (q.epsn.wrapping_sub(p.psn) & MASK);
            let end = q.reads[kept..].iter().rev().take_while(behind).last().map_or(q.epsn, |r| r.psn);
            let psn = end.wrapping_sub(1) & MASK;
            let v = Verdict { action: REACK, qp: p.qpn, psn, ..Verdict::default() };
            return (Outcome::Verdict(v), Some(Reject::Duplicate), true);
        }
        if distance > 0 {
            if me.nak_sent {
                return drop(Reject::PsnOutOfSequenceRepeat);
            }
            me.nak_sent = true;
            let v = Verdict { action: NAK, qp: p.qpn, psn: q.epsn, syndrome: 0x60, ..Verdict::default() };
            return (Outcome::Verdict(v), Some(Reject::PsnOutOfSequence), true);
        }
        let in_use = match q.open {
            Open::Send { wqe } => Some(wqe),
            _ => None,
        };
        let fatal = |me: &mut Qp, syndrome, why: Reject| {
            me.halt = true;
            let v = Verdict {
                action: NAK,
                qp: p.qpn,
                psn: p.psn,
                fatal: true,
                syndrome,
                wqe: in_use,
                cause: why.vendor_err() as u8,
                ..Verdict::default()
            };
            (Outcome::Verdict(v), Some(why), true)
        };
        let fits = match (q.open, class) {
            (Open::None, _) => opens,
            (Open::Send { .. }, Class::Send) | (Open::Write { .. }, Class::Write) => !opens,
            _ => false,
        };
        if !fits {
            return fatal(me, 0x61, Reject::OpcodeSequence);
        }
        if denied {
            return fatal(me, 0x61, Reject::AccessDenied);
        }
        let takes = class == Class::Send && opens || class == Class::Write && imm;
        if takes && q.rq_next == q.producer {
            me.nak_sent = true;
            let syndrome = 0x20 | q.rights.min_rnr_timer;
            let v = Verdict { action: NAK, qp: p.qpn, psn: p.psn, syndrome, ..Verdict::default() };
            return (Outcome::Verdict(v), Some(Reject::ReceiverNotReady), true);
        }
        let unanswered = q.reads.len() - q.answered;
        if matches!(class, Class::Read | Class::Atomic)
            && (unanswered >= usize::from(q.rights.max_dest_rd_atomic) || unanswered >= 1 << q.log_ring)
        {
            return fatal(me, 0x61, Reject::ReadDepth);
        }
        let (va, rkey, total) = match q.open {
            Open::Write { va, rkey, remaining } => (va, rkey, remaining),
            _ => (p.va, p.rkey, u64::from(p.dma_length)),
        };
        let offset = if opens { 0 } else { q.done };
        let total_ok = match class {
            Class::Write if closes => total <= 1 << 31 && total == u64::from(length),
            Class::Write => total <= 1 << 31 && total > u64::from(length),
            Class::Read => total <= 1 << 31,
            _ => offset + u64::from(length) <= 1 << 31,
        };
        if !shape || !total_ok {
            return fatal(me, 0x61, Reject::BadLength);
        }
        if class == Class::Atomic && va % 8 != 0 {
            return fatal(me, 0x61, Reject::AtomicAlignment);
        }
        let mut iova = 0;
        if class != Class::Send {
            let (total, right) = match class {
                Class::Atomic => (8, 8),
                Class::Read => (total, 4),
                _ => (total, 2),
            };
            match self.key_fault(q.rights.pd, rkey, va, total, right) {
                Ok(at) => iova = at,
                Err(why) => return fatal(&mut self.qps[p.qpn as usize], 0x62, why),
            }
        } else if !room {
            return drop(Reject::MissQueueFull);
        }
        let me = &mut self.qps[p.qpn as usize];
        me.epsn = (q.epsn + 1) & MASK;
        me.nak_sent = false;
        me.msn = (q.msn + u32::from(closes)) & MASK;
        if matches!(class, Class::Read | Class::Atomic) {
            let number = me.reads.iter().filter(|r| r.atomic.is_some()).count() as u8;
            let operands = (iova, p.opcode == 0x14, p.value, p.compare);
            let atomic = (class == Class::Atomic).then_some((number, operands));
            let packets = if atomic.is_some() { 1 } else { p.dma_length.div_ceil(mtu).max(1) };
            me.epsn = (q.epsn + packets) & MASK;
            let (va, rkey, length) = (p.va, p.rkey, p.dma_length);
            me.reads.push(Read { psn: p.psn, packets, va, rkey, length, msn: me.msn, atomic });
            let read = q.reads.len() as u8;
            let action = if atomic.is_some() { ATOMIC } else { RESPOND };
            let key = if action == ATOMIC { p.rkey } else { 0 };
            let v = Verdict { action, qp: p.qpn, read, key, ..Verdict::default() };
            return (Outcome::Verdict(v), None, true);
        }
        me.done = offset + u64::from(length);
        let wqe = if takes {
            me.rq_next = me.rq_next.wrapping_add(1);
            Some(q.rq_next)
        } else {
            in_use
        };
        me.open = match class {
            _ if closes => Open::None,
            Class::Send => Open::Send { wqe: wqe.unwrap() },
            _ => Open::Write {
                va: va.wrapping_add(u64::from(length)),
                rkey,
                remaining: total - u64::from(length),
            },
        };
        let v = Verdict {
            action: if class == Class::Send { SEND } else { WRITE },
            qp: p.qpn,
            psn: p.psn,
            ack_req: p.ack_req,
            first: opens,
            last: closes,
            iova: if length == 0 { 0 } else { iova },
            wqe,
            offset: offset as u32,
            length: p.length,
            address: p.address,
            slot: p.slot,
            with_imm: imm,
            solicited: p.solicited && closes,
            imm: if imm || inv { p.imm } else { 0 },
            key: match class {
                Class::Write if length > 0 => rkey,
                Class::Send if inv => p.imm.swap_bytes(),
                _ => 0,
            },
            with_inv: inv,
            ..Verdict::default()
        };
        (Outcome::Verdict(v), None, false)
    }
}

struct Bench {
    s: Interpreter,
    rams: Vec<Ram>,
    model: Model,
    /// Entry and operands last written.
    operands: Option<(u64, Operands)>,
    clocks: u64,
    /// Clocks of a step.
    step: u32,
}

fn config() -> Config {
    Config { qps: 4, mrs: 8, ..Config::small() }
}

const HERE: u128 = 0xffff_0a00_0001;
const THERE: u128 = 0xffff_0a00_0002;

fn qp(psn: u32) -> Qp {
    Qp {
        rights: QpRights {
            state: QpState::Rts as u8,
            transport: Transport::Rc as u8,
            access: 15,
            path_mtu: 1,
            valid: true,
            pd: 7,
            pkey: 0xffff,
            min_rnr_timer: 12,
            max_dest_rd_atomic: 4,
            ..Default::default()
        },
        addresses: QpAddresses { dest_gid: THERE, src_gid: HERE },
        producer: 100,
        placed_halt: false,
        requester_halt: false,
        epsn: psn,
        nak_sent: false,
        open: Open::None,
        done: 0,
        rq_next: 0,
        halt: false,
        msn: 0,
        reads: vec![],
        answered: 0,
        log_ring: 2,
    }
}

fn region() -> MrEntry {
    MrEntry {
        valid: true,
        tag: 0x5a,
        access: 15,
        pd: 7,
        va: 0x10_0000,
        length: 0x1_0000,
        iova: 0x7700_0000,
        ..Default::default()
    }
}
/// Key of the region that the stories write to.
const KEY: u32 = 3 << 8 | 0x5a;

impl Bench {
    fn new() -> Bench {
        Bench::at(config())
    }
    fn at(c: Config) -> Bench {
        let step = if c.unhurried { 5 } else { 1 };
        let design = elaborate(&Check { config: c.clone() }).unwrap_or_else(|e| panic!("{e}"));
        let mut s = Interpreter::new(&design);
        let qps = c.qps as usize;
        let rams = vec![
            Ram::new(qps, 256, "qp_address", "rights_word"),
            Ram::new(qps, 256, "qp_address", "addresses_word"),
            Ram::new(qps, Word::new(EXPECT).width(), "qp_address", "expect_word").written_by("expect_write"),
            Ram::new(qps, Word::new(PLACED).width(), "qp_address", "placed_word"),
            Ram::new(qps, Word::new(REQUESTER).width(), "qp_address", "requester_word"),
            Ram::new(qps, 16, "qp_address", "post_rq_word"),
            Ram::new(c.mrs as usize, 256, "mr_address", "mr_word"),
            Ram::new(qps, Word::new(TX).width(), "qp_address", "tx_word"),
            Ram::new(qps, 256, "qp_address", "queues_word"),
            Ram::new(c.responses as usize, Word::new(OWED).width(), "owed_address", "owed_word")
                .written_by("owed_write"),
        ];
        reset(&mut s);
        s.poke("verdict_ready", 1);
        s.poke("response_ready", 1);
        s.poke("room", 1);
        let mut mrs = vec![MrEntry::default(); c.mrs as usize];
        mrs[3] = region();
        let model = Model { qps: vec![qp(0); qps], mrs };
        let mut b = Bench { s, rams, model, operands: None, clocks: 0, step };
        for i in 0..qps {
            b.start(i, qp(0));
        }
        b
    }
    fn clock(&mut self) {
        if self.s.peek("operands_write_enable") == 1 {
            let mut word = Word::new(&[("iova", 64), ("adds", 1), ("value", 64), ("compare", 64)]);
            word.load(&self.s.peek_bits("operands_write_data"));
            let operands = (word.get("iova"), word.get("adds") == 1, word.get("value"), word.get("compare"));
            self.operands = Some((self.s.peek("operands_write_address"), operands));
        }
        let mut all: Vec<&mut Ram> = self.rams.iter_mut().collect();
        clock(&mut self.s, &mut all);
        self.clocks += 1;
    }
    /// Puts the contexts into the memories.
    fn load(&mut self) {
        for (i, q) in self.model.qps.iter().enumerate() {
            self.rams[0].words[i] = Bits::from_bytes(256, &q.rights.pack());
            self.rams[1].words[i] = Bits::from_bytes(256, &q.addresses.pack());
            self.rams[3].words[i] = Word::new(PLACED).with("halt", u64::from(q.placed_halt)).bits();
            self.rams[4].words[i] = Word::new(REQUESTER).with("halt", u64::from(q.requester_halt)).bits();
            self.rams[5].words[i] = Bits::new(16, u128::from(q.producer));
            self.rams[7].words[i] = Word::new(TX).with("res_sent", q.answered as u64 & 0xff).bits();
            let queues = QpQueues {
                response_base: 0x40 * i as u16,
                response_log_size: q.log_ring,
                ..Default::default()
            };
            self.rams[8].words[i] = Bits::from_bytes(256, &queues.pack());
        }
        for (i, m) in self.model.mrs.iter().enumerate() {
            self.rams[6].words[i] = Bits::from_bytes(256, &m.pack());
        }
    }
    /// Initialises a QP.
    fn start(&mut self, i: usize, q: Qp) {
        self.s.poke("initialise_valid", 1);
        self.s.poke("initialise_qp", i as u64);
        self.s.poke("initialise_receive", 1);
        self.s.poke("initialise_rq_psn", u64::from(q.epsn));
        while self.s.peek("initialise_ready") == 0 {
            self.clock();
        }
        self.clock();
        self.s.poke("initialise_valid", 0);
        self.model.qps[i] = q;
        self.load();
    }
    fn offer(&mut self, p: &Packet) {
        let s = &mut self.s;
        s.poke("headers_valid", 1);
        for (name, v) in [
            ("dest_qpn", u64::from(p.qpn)),
            ("opcode", p.opcode.into()),
            ("solicited", p.solicited.into()),
            ("ack_req", p.ack_req.into()),
            ("pad", p.pad.into()),
            ("pkey", p.pkey.into()),
            ("psn", p.psn.into()),
            ("va", p.va),
            ("rkey", p.rkey.into()),
            ("dma_length", p.dma_length.into()),
            ("syndrome", p.syndrome.into()),
            ("msn", p.msn.into()),
            ("imm", p.imm.into()),
            ("value", p.value),
            ("compare", p.compare),
            ("address", p.address.into()),
            ("length", p.length.into()),
            ("slot", p.slot.into()),
        ] {
            s.poke(&format!("headers_{name}"), v);
        }
        s.poke_bits("headers_source_gid", &Bits::new(128, p.source));
        s.poke_bits("headers_dest_gid", &Bits::new(128, p.dest));
    }
    fn verdict(&mut self) -> Verdict {
        let mut get = |n: &str| self.s.peek(&format!("verdict_{n}"));
        let action = get("action");
        let establishes = get("establishes") == 1;
        let mut v = Verdict { action, qp: get("qp") as u32, establishes, ..Verdict::default() };
        let wqe = (get("uses_wqe") == 1).then(|| get("wqe_index") as u16);
        match action {
            REACK => v.psn = get("psn") as u32,
            RESPOND | ATOMIC => {
                v.read = get("wqe_index") as u8;
                v.key = if action == ATOMIC { get("key") as u32 } else { 0 };
            }
            REWIND => (v.read, v.psn) = (get("wqe_index") as u8, get("psn") as u32),
            NAK => {
                v.psn = get("psn") as u32;
                v.syndrome = get("syndrome") as u8;
                v.fatal = get("fatal") == 1;
                v.cause = if v.fatal { get("cause") as u8 } else { 0 };
                v.wqe = wqe;
            }
            _ => {
                v.psn = get("psn") as u32;
                v.ack_req = get("ack_req") == 1;
                v.first = get("first") == 1;
                v.last = get("last") == 1;
                v.fatal = get("fatal") == 1;
                v.wqe = wqe;
                v.offset = get("offset") as u32;
                v.length = get("length") as u16;
                v.iova = if action == WRITE && v.length > 0 { get("iova") } else { 0 };
                v.address = get("address") as u16;
                v.slot = get("slot") as u8;
                v.with_imm = get("with_imm") == 1;
                v.solicited = get("solicited") == 1;
                v.with_inv = get("with_inv") == 1;
                v.imm = if v.with_imm || v.with_inv { get("imm") as u32 } else { 0 };
                let keyed = action == WRITE && v.length > 0 || v.with_inv;
                v.key = if keyed { get("key") as u32 } else { 0 };
            }
        }
        v
    }
    /// Gives one packet; what came of it.
    fn judge(&mut self, p: &Packet) -> Result3 {
        self.offer(p);
        while self.s.peek("headers_ready") == 0 {
            self.clock();
        }
        self.clock();
        self.s.poke("headers_valid", 0);
        let (mut out, mut reject, mut released) = (Outcome::Silent, None, false);
        for n in 0.. {
            if self.s.peek("count_valid") == 1 {
                assert_eq!(reject, None, "counted twice: {p:?}");
                reject = Reject::from_code(self.s.peek("count_index") as u8);
            }
            if self.s.peek("release_valid") == 1 {
                assert!(!released, "released twice: {p:?}");
                assert_eq!(self.s.peek("release_slot"), u64::from(p.slot));
                released = true;
            }
            if self.s.peek("verdict_valid") == 1 {
                out = Outcome::Verdict(self.verdict());
            }
            if self.s.peek("response_valid") == 1 {
                let value = self.s.peek("response_value");
                let mut get = |n: &str| self.s.peek(&format!("response_{n}")) as u32;
                assert_eq!(get("fence"), 0);
                let opcode = get("opcode") as u8;
                let payload = (get("address") as u16, get("length") as u16, get("slot") as u8, value);
                out = Outcome::Response {
                    qp: get("qp"),
                    opcode,
                    psn: get("psn"),
                    syndrome: get("syndrome") as u8,
                    msn: get("msn"),
                    payload: (opcode != 0x11).then_some(payload),
                };
            }
            self.clock();
            if n >= 3 * self.step && self.s.peek("idle") == 1 {
                // only what may be a duplicate takes longer, of a QP that keeps READs
                let q = self.model.qps.get(p.qpn as usize);
                let again =
                    q.is_some_and(|q| p.psn.wrapping_sub(q.epsn) & MASK >= 1 << 23 && !q.reads.is_empty());
                assert!(n == 3 * self.step || again && n <= 19 * self.step, "{n} clocks: {p:?}");
                break;
            }
        }
        (out, reject, released)
    }
    /// Gives a packet and holds the outcome against the model.
    fn expect(&mut self, p: &Packet) -> Result3 {
        let room = self.s.peek("room") == 1;
        let want = self.model.judge(p, room);
        let got = self.judge(p);
        assert_eq!(got, want, "{p:?}");
        if matches!(got.0, Outcome::Verdict(v) if v.action == RESPOND || v.action == ATOMIC) {
            let q = &self.model.qps[p.qpn as usize];
            let n = q.reads.len() - 1;
            let at = 0x40 * p.qpn as usize + (n & ((1 << q.log_ring) - 1));
            let mut kept = Word::new(OWED);
            kept.load(&self.rams[9].words[at]);
            let want = q.reads[n];
            let read = Read {
                psn: kept.get("first_psn") as u32,
                packets: ((kept.get("last_psn") as u32).wrapping_sub(want.psn) + 1) & MASK,
                va: kept.get("va"),
                rkey: kept.get("rkey") as u32,
                length: kept.get("length") as u32,
                msn: kept.get("msn") as u32,
                atomic: (kept.get("is_atomic") == 1).then(|| {
                    let (entry, operands) = self.operands.expect("operands are written");
                    assert_eq!(entry, at as u64);
                    (kept.get("number") as u8, operands)
                }),
            };
            assert_eq!((kept.get("index"), read), (n as u64 & 0xff, want));
        }
        got
    }
}

/// A packet of QP 0 at its expected PSN.
fn packet(opcode: u8, psn: u32, length: u16) -> Packet {
    Packet {
        opcode,
        psn,
        pkey: 0xffff,
        source: THERE,
        dest: HERE,
        va: 0x10_0000,
        rkey: KEY,
        dma_length: u32::from(length),
        length,
        pad: (length.wrapping_neg() & 3) as u8,
        address: 0x1234,
        slot: 9,
        imm: 0xdead_beef,
        ..Packet::default()
    }
}

fn syndrome(r: Result3) -> (u8, u32, bool) {
    match r.0 {
        Outcome::Verdict(v) if v.action == NAK => (v.syndrome, v.psn, v.fatal),
        other => panic!("no NAK: {other:?}"),
    }
}
fn action(r: &Result3) -> u64 {
    match r.0 {
        Outcome::Verdict(v) => v.action,
        other => panic!("no verdict: {other:?}"),
    }
}

#[test]
fn a_send_in_one_packet_takes_the_next_receive_wqe() {
    let mut b = Bench::new();
    for n in 0..3u16 {
        let Outcome::Verdict(v) = b.expect(&packet(0x04, u32::from(n), 5)).0 else { panic!() };
        assert_eq!((v.action, v.wqe, v.first, v.last), (SEND, Some(n), true, true));
    }
}

#[test]
fn the_first_packet_that_is_taken_in_rtr_establishes_and_no_other() {
    for (state, opcode) in [(2u8, 0x04), (2, 0x0a), (2, 0x0c), (2, 0x13), (3, 0x04)] {
        let mut b = Bench::new();
        b.model.qps[0].rights.state = state;
        b.load();
        let establishes = |b: &mut Bench, p: &Packet| match b.judge(p).0 {
            Outcome::Verdict(v) => v.establishes,
            other => panic!("{other:?}"),
        };
        let first = Packet { length: if opcode > 0x0b { 0 } else { 8 }, ..packet(opcode, 0, 8) };
        let first = Packet { pad: 0, ..first };
        assert!(!establishes(&mut b, &Packet { psn: 5, ..first }), "a gap");
        assert_eq!(establishes(&mut b, &first), state == 2, "{opcode:#x}");
        assert!(!establishes(&mut b, &packet(0x04, 1, 8)));
        // its next life
        b.start(0, b.model.qps[0].clone());
        assert_eq!(establishes(&mut b, &first), state == 2);
    }
}

#[test]
fn a_region_of_another_size_under_the_same_number_has_its_own_bounds_and_order() {
    let mut b = Bench::new();
    for (n, (length, tag, relaxed)) in
        [(100, 1, false), (50, 2, true), (200, 3, false)].into_iter().enumerate()
    {
        let entry = MrEntry { length, tag, relaxed_ordering: relaxed, ..region() };
        b.model.mrs[3] = entry;
        for (length, fits) in [(length, true), (length + 1, false)] {
            b.start(0, qp(0));
            let p = Packet { rkey: 3 << 8 | u32::from(tag), ..packet(0x0a, 0, length as u16) };
            let r = b.expect(&p);
            assert_eq!(r.1, (!fits).then_some(Reject::RkeyBounds), "registration {n}, {length} bytes");
            assert!(!fits || b.s.peek("verdict_relaxed") == u64::from(relaxed));
        }
        b.start(0, qp(0));
        let old = Packet { rkey: 3 << 8 | u32::from(tag - 1), ..packet(0x0a, 0, 8) };
        assert_eq!(b.expect(&old).1, Some(Reject::RkeyTag));
    }
}

#[test]
fn a_lost_middle_packet_is_named_by_one_nak() {
    let mut b = Bench::new();
    b.expect(&packet(0x00, 0, 256));
    // 1 is lost
    assert_eq!(syndrome(b.expect(&packet(0x01, 2, 256))), (0x60, 1, false));
    for psn in 3..8 {
        assert_eq!(b.expect(&packet(0x01, psn, 256)).1, Some(Reject::PsnOutOfSequenceRepeat));
    }
    // a packet in order arms the NAK again
    assert_eq!(action(&b.expect(&packet(0x01, 1, 256))), SEND);
    assert_eq!(syndrome(b.expect(&packet(0x01, 3, 256))), (0x60, 2, false));
    // and so does a duplicate
    assert_eq!(action(&b.expect(&packet(0x01, 1, 256))), REACK);
    assert_eq!(syndrome(b.expect(&packet(0x01, 3, 256))), (0x60, 2, false));
}

#[test]
fn a_duplicate_is_acknowledged_again_and_a_faulty_one_is_dropped() {
    let mut b = Bench::new();
    b.expect(&packet(0x04, 0, 5));
    assert_eq!(action(&b.expect(&packet(0x04, 0, 5))), REACK);
    assert_eq!(b.expect(&packet(0x04, 0, 257)).1, Some(Reject::BadLength));
    // of a SEND with invalidate nobody looks at the key again
    assert_eq!(action(&b.expect(&Packet { imm: 0, ..packet(0x17, 0, 0) })), REACK);
    // nothing of it moved the QP
    assert_eq!(action(&b.expect(&packet(0x04, 1, 5))), SEND);
}

#[test]
fn a_send_with_invalidate_hands_its_key_on_with_its_last_packet() {
    let mut b = Bench::new();
    let key = KEY.swap_bytes();
    let Outcome::Verdict(v) = b.expect(&Packet { imm: key, ..packet(0x17, 0, 0) }).0 else { panic!() };
    assert_eq!((v.action, v.with_inv, v.with_imm, v.key), (SEND, true, false, KEY));
    let Outcome::Verdict(v) = b.expect(&Packet { imm: key, ..packet(0x00, 1, 256) }).0 else { panic!() };
    assert!(!v.with_inv);
    let Outcome::Verdict(v) = b.expect(&Packet { imm: key, ..packet(0x16, 2, 5) }).0 else { panic!() };
    assert_eq!((v.last, v.with_inv, v.key, v.offset), (true, true, KEY, 256));
}

#[test]
fn the_psn_window_ends_at_half_the_circle_on_both_sides() {
    for start in [0u32, 1, 0xff_ffff, 0x80_0000, 0x7f_ffff] {
        let mut b = Bench::new();
        b.start(0, qp(start));
        let at = |d: i64| (i64::from(start) + d).rem_euclid(1 << 24) as u32;
        assert_eq!(action(&b.expect(&packet(0x04, at(-1), 5))), REACK);
        assert_eq!(action(&b.expect(&packet(0x04, at(-(1 << 23)), 5))), REACK);
        assert_eq!(syndrome(b.expect(&packet(0x04, at((1 << 23) - 1), 5))), (0x60, start, false));
        assert_eq!(action(&b.expect(&packet(0x04, at(0), 5))), SEND);
        assert_eq!(action(&b.expect(&packet(0x04, at(1), 5))), SEND);
    }
}

#[test]
fn a_send_without_receive_wqe_gets_an_rnr_nak_with_its_own_psn_and_the_timer_of_the_qp() {
    let mut b = Bench::new();
    b.model.qps[0].producer = 0;
    b.load();
    assert_eq!(syndrome(b.expect(&packet(0x04, 0, 5))), (0x2c, 0, false));
    // what follows is silent: the RNR NAK was the NAK
    assert_eq!(b.expect(&packet(0x04, 1, 5)).1, Some(Reject::PsnOutOfSequenceRepeat));
    assert_eq!(syndrome(b.expect(&packet(0x04, 0, 5))), (0x2c, 0, false));
    b.model.qps[0].producer = 1;
    b.load();
    assert_eq!(action(&b.expect(&packet(0x04, 0, 5))), SEND);
    assert_eq!(syndrome(b.expect(&packet(0x04, 1, 5))), (0x2c, 1, false));
}

#[test]
fn an_rnr_nak_meets_the_last_packet_of_a_write_with_immediate_and_the_write_goes_on_from_there() {
    let mut b = Bench::new();
    b.model.qps[0].producer = 0;
    b.load();
    b.expect(&Packet { dma_length: 300, ..packet(0x06, 0, 256) });
    assert_eq!(syndrome(b.expect(&packet(0x09, 1, 44))), (0x2c, 1, false));
    b.model.qps[0].producer = 1;
    b.load();
    let Outcome::Verdict(v) = b.expect(&packet(0x09, 1, 44)).0 else { panic!() };
    assert_eq!((v.action, v.wqe, v.offset, v.iova), (WRITE, Some(0), 256, 0x7700_0100));
}

#[test]
fn opcodes_out_of_order_are_invalid_requests_and_halt_the_qp() {
    // (before, then)
    for (before, then) in [
        (None, 0x01),
        (None, 0x02),
        (None, 0x07),
        (None, 0x08),
        (Some(0x00), 0x00),
        (Some(0x00), 0x04),
        (Some(0x00), 0x07),
        (Some(0x00), 0x0a),
        (Some(0x00), 0x0c),
        (Some(0x06), 0x06),
        (Some(0x06), 0x01),
        (Some(0x06), 0x02),
        (Some(0x06), 0x0a),
    ] {
        let mut b = Bench::new();
        let mut psn = 0;
        if let Some(op) = before {
            b.expect(&Packet { dma_length: 1000, ..packet(op, 0, 256) });
            psn = 1;
        }
        let r = b.expect(&packet(then, psn, 256));
        assert_eq!(
            (syndrome(r), r.1),
            ((0x61, psn, true), Some(Reject::OpcodeSequence)),
            "{before:?} {then:#x}"
        );
        let Outcome::Verdict(v) = r.0 else { panic!() };
        // a receive WQE in use goes down with the QP
        assert_eq!(v.wqe, (before == Some(0x00)).then_some(0));
        assert_eq!(b.expect(&packet(0x04, psn, 5)).1, Some(Reject::QpHalted));
        // reset and start: it lives again
        b.start(0, qp(77));
        assert_eq!(action(&b.expect(&packet(0x04, 77, 5))), SEND);
    }
}

#[test]
fn lengths_are_exact() {
    // opcode, length, DMA length, good
    let table = [
        (0x04, 0, 0, true),
        (0x04, 256, 0, true),
        (0x04, 257, 0, false),
        (0x00, 256, 0, true),
        (0x00, 255, 0, false),
        (0x00, 257, 0, false),
        (0x0a, 100, 100, true),
        (0x0a, 100, 101, false),
        (0x0a, 100, 99, false),
        (0x0a, 0, 0, true),
        (0x06, 256, 257, true),
        (0x06, 256, 256, false),
        (0x06, 255, 300, false),
    ];
    for (opcode, length, dma_length, good) in table {
        let mut b = Bench::new();
        let r = b.expect(&Packet { dma_length, ..packet(opcode, 0, length) });
        assert_eq!(
            matches!(r.0, Outcome::Verdict(v) if v.action != NAK),
            good,
            "{opcode:#x} {length} {dma_length}"
        );
        if !good {
            assert_eq!((syndrome(r).0, r.1), (0x61, Some(Reject::BadLength)));
        }
    }
    // pad must be what the length needs
    for pad in 0..4 {
        let mut b = Bench::new();
        let r = b.expect(&Packet { pad, ..packet(0x04, 0, 6) });
        assert_eq!(action(&r) == SEND, pad == 2);
    }
    // a middle packet that leaves nothing for the last, and a last that leaves or exceeds
    for (then, length, good) in [(0x07, 256, false), (0x08, 256, true), (0x08, 255, false), (0x08, 1, false)]
    {
        let mut b = Bench::new();
        b.expect(&Packet { dma_length: 512, ..packet(0x06, 0, 256) });
        assert_eq!(action(&b.expect(&packet(then, 1, length))) != NAK, good);
    }
    // 2^31 bytes are a message, one more is not
    for (dma_length, good) in [(1 << 31, true), ((1 << 31) + 1, false), (u32::MAX, false)] {
        let mut b = Bench::new();
        b.model.mrs[3].length = 1 << 40;
        b.load();
        assert_eq!(action(&b.expect(&Packet { dma_length, ..packet(0x06, 0, 256) })) != NAK, good);
    }
}

#[test]
fn a_key_is_judged_for_the_whole_message_and_a_zero_length_asks_nothing() {
    type Change = fn(&mut MrEntry, &mut Packet);
    let table: [(Change, Option<Reject>); 11] = [
        (|_, _| (), None),
        (|m, _| m.valid = false, Some(Reject::RkeyUnknown)),
        (|_, p| p.rkey = 200 << 8 | 0x5a, Some(Reject::RkeyUnknown)),
        (|_, p| p.rkey = 0xffff_035a, Some(Reject::RkeyUnknown)),
        (|m, _| m.tag = 0x5b, Some(Reject::RkeyTag)),
        (|m, _| m.pd = 8, Some(Reject::RkeyPd)),
        (|m, _| m.access = 1, Some(Reject::RkeyRights)),
        (|_, p| p.va = 0xf_ffff, Some(Reject::RkeyBounds)),
        (|m, p| p.va = m.va + m.length - 300, None),
        (|m, p| p.va = m.va + m.length - 299, Some(Reject::RkeyBounds)),
        (|_, p| p.va = u64::MAX - 10, Some(Reject::RkeyBounds)),
    ];
    for (i, (change, want)) in table.into_iter().enumerate() {
        let mut b = Bench::new();
        let mut p = Packet { dma_length: 300, ..packet(0x06, 0, 256) };
        change(&mut b.model.mrs[3], &mut p);
        b.load();
        let r = b.expect(&p);
        assert_eq!(r.1, want, "row {i}");
        if want.is_some() {
            assert_eq!(syndrome(r), (0x62, 0, true), "row {i}");
        }
        // zero bytes of any key are fine
        let mut b = Bench::new();
        let mut p = packet(0x0a, 0, 0);
        change(&mut b.model.mrs[3], &mut p);
        b.load();
        assert_eq!(action(&b.expect(&p)), WRITE, "row {i}");
    }
    // a key that dies within the message
    let mut b = Bench::new();
    b.expect(&Packet { dma_length: 300, ..packet(0x06, 0, 256) });
    b.model.mrs[3].valid = false;
    b.load();
    assert_eq!(syndrome(b.expect(&packet(0x08, 1, 44))), (0x62, 1, true));
}

#[test]
fn what_the_qp_may_not_do_is_an_invalid_request() {
    for opcode in [0x06, 0x0a, 0x0b, 0x0c, 0x13, 0x14] {
        let mut b = Bench::new();
        b.model.qps[0].rights.access = 1;
        b.load();
        let r = b.expect(&packet(opcode, 0, 0));
        assert_eq!((syndrome(r).0, r.1), (0x61, Some(Reject::AccessDenied)), "{opcode:#x}");
    }
}

#[test]
fn what_cannot_be_believed_is_dropped_without_an_answer() {
    type Change = fn(&mut Qp, &mut Packet);
    let table: [(Change, Reject); 21] = [
        (|_, p| p.opcode = 0x15, Reject::UnknownOpcode),
        (|_, p| p.opcode = 0x18, Reject::UnknownOpcode),
        (|_, p| p.opcode = 0xff, Reject::UnknownOpcode),
        (|_, p| p.qpn = 4, Reject::UnknownQp),
        (|_, p| p.qpn = 0xff_ffff, Reject::UnknownQp),
        (|q, _| q.rights.valid = false, Reject::UnknownQp),
        (|_, p| p.opcode = 0x24, Reject::WrongTransport),
        (|_, p| p.opcode = 0x64, Reject::WrongTransport),
        (|_, p| p.opcode = 0x81, Reject::WrongTransport),
        (|q, _| q.rights.transport = Transport::Ud as u8, Reject::WrongTransport),
        (|q, _| q.rights.state = 0, Reject::WrongQpState),
        (|q, _| q.rights.state = 1, Reject::WrongQpState),
        (|q, _| q.rights.state = 6, Reject::WrongQpState),
        (|q, _| q.placed_halt = true, Reject::QpHalted),
        (|q, _| q.requester_halt = true, Reject::QpHalted),
        (|_, p| p.source ^= 1, Reject::WrongAddress),
        (|_, p| p.dest ^= 1 << 127, Reject::WrongAddress),
        (|_, p| p.pkey = 0xfffe, Reject::BadPkey),
        (|q, p| (q.rights.pkey, p.pkey) = (0x7fff, 0x7fff), Reject::BadPkey),
        (|q, p| (q.rights.pkey, p.pkey) = (0x8000, 0x8000), Reject::BadPkey),
        (|q, p| (q.rights.state, p.opcode) = (2, 0x11), Reject::WrongQpState),
    ];
    for (i, (change, want)) in table.into_iter().enumerate() {
        let mut b = Bench::new();
        let mut p = packet(0x04, 0, 5);
        change(&mut b.model.qps[0], &mut p);
        b.load();
        assert_eq!(b.expect(&p), (Outcome::Silent, Some(want), true), "row {i}");
    }
    // a limited member talks to a full one
    let mut b = Bench::new();
    assert_eq!(action(&b.expect(&Packet { pkey: 0x7fff, ..packet(0x04, 0, 5) })), SEND);
}

/// A READ of `length` bytes at the start of the region.
fn read(psn: u32, length: u32) -> Packet {
    Packet { dma_length: length, ..packet(0x0c, psn, 0) }
}

#[test]
fn a_read_takes_the_psns_of_its_responses_and_the_next_place_of_the_ring() {
    let mut b = Bench::new();
    b.start(0, qp(0xff_fffe));
    b.expect(&packet(0x0a, 0xff_fffe, 5));
    let mut psn = 0xff_ffff;
    for (n, length) in [0, 1, 256, 257, 1000].into_iter().enumerate() {
        let Outcome::Verdict(v) = b.expect(&read(psn, length)).0 else { panic!() };
        assert_eq!((v.action, v.read), (RESPOND, n as u8));
        assert_eq!(b.model.qps[0].reads[n].msn, n as u32 + 2, "the WRITE, the READs and this one");
        psn = (psn + length.div_ceil(256).max(1)) & MASK;
        b.model.qps[0].answered = n;
        b.load();
    }
    assert_eq!(psn, 8);
    assert_eq!(action(&b.expect(&packet(0x04, 8, 5))), SEND);
    // 2^31 bytes of packets of 256 are half of all PSNs; one byte more is no message
    for (length, good) in [(1u32 << 31, true), ((1 << 31) + 1, false)] {
        let mut b = Bench::new();
        b.model.mrs[3].length = 1 << 40;
        b.load();
        assert_eq!(action(&b.expect(&read(0, length))) == RESPOND, good);
        assert_eq!(b.model.qps[0].epsn, if good { 1 << 23 } else { 0 });
    }
}

#[test]
fn one_read_more_than_negotiated_is_an_invalid_request() {
    // granted, log2 of the ring, how many are taken
    for (granted, log_ring, most) in [(0, 2, 0), (1, 2, 1), (4, 2, 4), (16, 4, 16), (3, 1, 2)] {
        let mut b = Bench::new();
        let q = &mut b.model.qps[0];
        (q.rights.max_dest_rd_atomic, q.log_ring) = (granted, log_ring);
        b.load();
        // answered ones do not count
        for psn in 0..2 * most {
            b.model.qps[0].answered = (psn as usize).saturating_sub(most as usize - 1);
            b.load();
            assert_eq!(action(&b.expect(&read(psn, 5))), RESPOND, "{granted} granted, READ {psn}");
        }
        let r = b.expect(&read(2 * most, 5));
        assert_eq!(
            (syndrome(r), r.1),
            ((0x61, 2 * most, true), Some(Reject::ReadDepth)),
            "{granted} granted"
        );
    }
}

#[test]
fn a_read_needs_the_right_of_the_qp_and_of_the_key() {
    let mut b = Bench::new();
    b.model.qps[0].rights.access = 3;
    b.load();
    let r = b.expect(&read(0, 5));
    assert_eq!((syndrome(r).0, r.1), (0x61, Some(Reject::AccessDenied)));
    for (access, length, want) in [
        (4, 5, None),
        (3, 5, Some(Reject::RkeyRights)),
        (3, 0, None),
        (4, 0x1_0001, Some(Reject::RkeyBounds)),
    ] {
        let mut b = Bench::new();
        b.model.mrs[3].access = access;
        b.load();
        let r = b.expect(&read(0, length));
        assert_eq!(r.1, want);
        if want.is_some() {
            assert_eq!(syndrome(r), (0x62, 0, true));
        }
    }
    // a READ carries nothing
    let mut b = Bench::new();
    let r = b.expect(&Packet { length: 4, ..read(0, 5) });
    assert_eq!((syndrome(r).0, r.1), (0x61, Some(Reject::BadLength)));
}

#[test]
fn a_duplicate_read_asks_again_for_what_is_kept_from_any_of_its_packets_to_its_end() {
    let mut b = Bench::new();
    // four in a ring of four, then a fifth in the place of the first: 3 packets each
    for n in 0..5 {
        b.expect(&Packet { va: 0x10_0000 + 0x1000 * u64::from(n), ..read(3 * n, 600) });
        b.model.qps[0].answered = n as usize + 1;
        b.load();
    }
    let again = |n: u32, skip: u32| Packet {
        va: 0x10_0000 + 0x1000 * u64::from(n) + 256 * u64::from(skip),
        ..read(3 * n + skip, 600 - 256 * skip)
    };
    for n in 1..5 {
        for skip in 0..3 {
            let r = b.expect(&again(n, skip));
            let Outcome::Verdict(v) = r.0 else { panic!("{r:?}") };
            assert_eq!((v.action, v.read, v.psn), (REWIND, n as u8, 3 * n + skip));
        }
    }
    let dropped = (Outcome::Silent, Some(Reject::Duplicate), true);
    assert_eq!(b.expect(&again(0, 0)), dropped, "no longer kept");
    assert_eq!(b.expect(&Packet { va: 0x10_1001, ..again(1, 0) }), dropped);
    assert_eq!(b.expect(&Packet { rkey: KEY ^ 1, ..again(1, 0) }), dropped);
    assert_eq!(b.expect(&Packet { dma_length: 601, ..again(1, 0) }), dropped);
    assert_eq!(b.expect(&Packet { dma_length: 599, ..again(1, 0) }), dropped, "less than to its end");
    assert_eq!(b.expect(&Packet { length: 4, ..again(1, 0) }).1, Some(Reject::BadLength));
    // it arms the NAK, takes no place and no PSN
    assert_eq!(syndrome(b.expect(&read(16, 5))), (0x60, 15, false));
    assert_eq!(action(&b.expect(&again(4, 0))), REWIND);
    assert_eq!(syndrome(b.expect(&read(16, 5))), (0x60, 15, false));
    let Outcome::Verdict(v) = b.expect(&read(15, 5)).0 else { panic!() };
    assert_eq!((v.action, v.read), (RESPOND, 5));
    // another life of the QP knows nothing of it
    b.start(0, qp(100));
    assert_eq!(b.expect(&again(4, 0)), dropped);
}

#[test]
fn a_duplicate_is_acknowledged_again_up_to_the_next_read_that_was_taken_behind_it() {
    for start in [0u32, 0xff_fffc, 0x7f_fffe] {
        let mut b = Bench::new();
        b.start(0, qp(start));
        let at = |n: u32| (start + n) & MASK;
        // WRITE, WRITE, READ of three, WRITE, atomic, WRITE, WRITE
        b.expect(&packet(0x0a, at(0), 5));
        b.expect(&packet(0x0a, at(1), 5));
        b.expect(&read(at(2), 600));
        b.expect(&packet(0x0a, at(5), 5));
        b.expect(&atomic(0x14, at(6)));
        b.expect(&packet(0x0a, at(7), 5));
        b.expect(&packet(0x04, at(8), 5));
        for (again, end) in [(0, 1), (1, 1), (5, 5), (7, 8), (8, 8)] {
            let opcode = if again == 8 { 0x04 } else { 0x0a };
            let Outcome::Verdict(v) = b.expect(&packet(opcode, at(again), 5)).0 else { panic!() };
            assert_eq!((v.action, v.psn), (REACK, at(end)), "{again} from {start:#x}");
        }
        // of READs that are no longer kept nothing is known: up to the oldest that is
        b.model.qps[0].answered = 2;
        b.load();
        for n in 0..4 {
            b.expect(&read(at(9 + n), 5));
            b.model.qps[0].answered += 1;
            b.load();
        }
        let Outcome::Verdict(v) = b.expect(&packet(0x0a, at(0), 5)).0 else { panic!() };
        assert_eq!(v.psn, at(8));
    }
}

/// An atomic on the first bytes of the region.
fn atomic(opcode: u8, psn: u32) -> Packet {
    Packet { value: 0x1122_3344_5566_7788, compare: 0x99aa_bbcc_ddee_ff00, ..packet(opcode, psn, 0) }
}

#[test]
fn an_atomic_takes_one_psn_and_the_next_place_of_the_ring_with_its_operands() {
    let mut b = Bench::new();
    for (n, opcode) in [0x13, 0x14, 0x0c, 0x13].into_iter().enumerate() {
        b.model.qps[0].answered = n;
        b.load();
        let p = Packet { va: 0x10_0008, ..atomic(opcode, n as u32) };
        let r = b.expect(&p);
        let Outcome::Verdict(v) = r.0 else { panic!("{r:?}") };
        assert_eq!((v.action, v.read, r.2), (if n == 2 { RESPOND } else { ATOMIC }, n as u8, true));
        if n != 2 {
            let (_, operands) = b.operands.unwrap();
            assert_eq!(operands, (0x7700_0008, n == 1, 0x1122_3344_5566_7788, 0x99aa_bbcc_ddee_ff00));
        }
    }
    // READs and atomics share the places
    b.model.qps[0].answered = 0;
    b.load();
    let r = b.expect(&atomic(0x14, 4));
    assert_eq!((syndrome(r).0, r.1), (0x61, Some(Reject::ReadDepth)));
}

#[test]
fn an_atomic_is_judged_by_right_alignment_and_key_in_this_order() {
    // right of the QP, address, key
    for (access, va, rkey, want) in [
        (7, 0x10_0001, KEY ^ 1, Some((0x61, Reject::AccessDenied))),
        (15, 0x10_0004, KEY ^ 1, Some((0x61, Reject::AtomicAlignment))),
        (15, 0x10_0008, KEY ^ 1, Some((0x62, Reject::RkeyTag))),
        (15, 0x11_0000, KEY, Some((0x62, Reject::RkeyBounds))),
        (15, 0x10_fff8, KEY, None),
    ] {
        let mut b = Bench::new();
        b.model.qps[0].rights.access = access;
        b.load();
        let r = b.expect(&Packet { va, rkey, ..atomic(0x13, 0) });
        assert_eq!(r.1, want.map(|w| w.1));
        if let Some((code, _)) = want {
            assert_eq!(syndrome(r), (code, 0, true));
        }
    }
    let mut b = Bench::new();
    b.model.mrs[3].access = 7;
    b.load();
    assert_eq!(b.expect(&atomic(0x14, 0)).1, Some(Reject::RkeyRights));
    // a region whose pages are not where the peer's addresses say: no 8 bytes are written at once
    let mut b = Bench::new();
    b.model.mrs[3].iova += 4;
    b.load();
    let r = b.judge(&atomic(0x14, 0));
    assert_eq!((syndrome(r), r.1), ((0x62, 0, true), Some(Reject::RkeyBounds)));
}

#[test]
fn a_duplicate_atomic_asks_for_what_is_kept_whatever_its_operands_and_key() {
    let mut b = Bench::new();
    for n in 0..6 {
        b.expect(&if n == 3 { read(n, 5) } else { atomic(0x14, n) });
        b.model.qps[0].answered = n as usize + 1;
        b.load();
    }
    let dropped = (Outcome::Silent, Some(Reject::Duplicate), true);
    for n in 0..6 {
        let r = b.expect(&Packet { rkey: 0, va: 3, ..atomic(0x13, n) });
        match r.0 {
            Outcome::Verdict(v) if [2, 4, 5].contains(&n) => {
                assert_eq!((v.action, v.read, v.psn), (REWIND, n as u8, n))
            }
            _ => assert_eq!(r, dropped, "{n}: overwritten, or a READ"),
        }
    }
    assert_eq!(b.expect(&read(2, 5)), dropped, "an atomic has that PSN");
}

#[test]
fn the_result_of_an_atomic_goes_to_acknowledge_with_its_slot() {
    let mut b = Bench::new();
    let p = Packet { syndrome: 0x1f, msn: 5, value: u64::MAX - 5, ..packet(0x12, 7, 0) };
    let r = b.expect(&p);
    let Outcome::Response { payload, .. } = r.0 else { panic!("{r:?}") };
    assert_eq!((payload, r.1, r.2), (Some((0x1234, 8, 9, u64::MAX - 5)), None, false));
    let r = b.expect(&Packet { length: 4, ..p });
    assert_eq!(r, (Outcome::Silent, Some(Reject::BadLength), true));
}

#[test]
fn an_acknowledgement_goes_to_acknowledge() {
    let mut b = Bench::new();
    let r = b.expect(&Packet { syndrome: 0x1f, msn: 5, ..packet(0x11, 0x1234, 0) });
    let (psn, syndrome) = (0x1234, 0x1f);
    assert_eq!(r.0, Outcome::Response { qp: 0, opcode: 0x11, psn, syndrome, msn: 5, payload: None });
}

#[test]
fn a_read_response_takes_its_slot_along_if_its_payload_is_what_the_opcode_says() {
    let mut b = Bench::new();
    let mtu = 128u16 << b.model.qps[0].rights.path_mtu;
    for (opcode, good, bad) in [
        (0x0d, vec![mtu], vec![0, 1, mtu - 1, mtu + 1]),
        (0x0e, vec![mtu], vec![0, 1, mtu - 1, mtu + 1]),
        (0x0f, vec![1, 2, 3, mtu - 1, mtu], vec![0, mtu + 1]),
        (0x10, vec![0, 1, mtu - 1, mtu], vec![mtu + 1]),
    ] {
        for length in good {
            let p = Packet { syndrome: 0x1f, msn: 5, ..packet(opcode, 0x1234, length) };
            let r = b.expect(&p);
            let Outcome::Response { payload, .. } = r.0 else { panic!("{opcode:#x} {length}: {r:?}") };
            assert_eq!((payload, r.1, r.2), (Some((0x1234, length, 9, 0)), None, false));
            let r = b.expect(&Packet { pad: p.pad ^ 1, ..p });
            assert_eq!(r, (Outcome::Silent, Some(Reject::BadLength), true), "{opcode:#x} {length}");
        }
        for length in bad {
            let r = b.expect(&packet(opcode, 0x1234, length));
            assert_eq!(r, (Outcome::Silent, Some(Reject::BadLength), true), "{opcode:#x} {length}");
        }
    }
}

#[test]
fn a_send_that_place_has_no_room_for_is_as_if_lost() {
    let mut b = Bench::new();
    b.s.poke("room", 0);
    assert_eq!(b.expect(&packet(0x04, 0, 5)), (Outcome::Silent, Some(Reject::MissQueueFull), true));
    // WRITEs need none
    b.expect(&Packet { qpn: 1, ..packet(0x0a, 0, 5) });
    assert_eq!(syndrome(b.expect(&packet(0x04, 1, 5))), (0x60, 0, false));
    b.s.poke("room", 1);
    assert_eq!(action(&b.expect(&packet(0x04, 0, 5))), SEND);
}

#[test]
fn a_fence_passes_in_order_even_in_a_storm() {
    let mut b = Bench::new();
    let mut seen = vec![];
    for n in 0..60u32 {
        // without pause: the next packet waits while the fence comes
        b.offer(&packet(0x04, (seen.iter().filter(|a| **a == SEND).count() as u32) & MASK, 5));
        b.s.poke("fence_valid", u64::from((20..=24).contains(&n)));
        let taken = b.s.peek("fence_ready") == 1 && (20..=24).contains(&n);
        if b.s.peek("verdict_valid") == 1 {
            seen.push(b.s.peek("verdict_action"));
        }
        b.clock();
        if taken {
            b.s.poke("fence_valid", 0);
            b.s.poke("headers_valid", 0);
            for _ in 0..4 {
                if b.s.peek("verdict_valid") == 1 {
                    seen.push(b.s.peek("verdict_action"));
                }
                b.clock();
            }
            assert_eq!(seen.last(), Some(&FENCE));
            assert_eq!(seen.iter().filter(|a| **a == FENCE).count(), 1);
            assert!(seen.len() > 4);
            return;
        }
    }
    panic!("the fence did not pass: {seen:?}");
}

#[test]
fn a_packet_is_judged_every_four_clocks() {
    let mut b = Bench::new();
    let (mut taken, mut verdicts) = (0u32, 0u32);
    let start = b.clocks;
    while taken < 100 {
        b.offer(&packet(0x0a, taken, 64));
        taken += b.s.peek("headers_ready") as u32;
        verdicts += b.s.peek("verdict_valid") as u32;
        b.clock();
    }
    assert_eq!(b.clocks - start, 99 * 4 + 1);
    assert_eq!(verdicts, 99);
}

#[test]
fn a_verdict_waits_for_place_and_nothing_is_lost() {
    let mut b = Bench::new();
    let mut pick = Choices::new(3);
    let (mut taken, mut got) = (0u32, 0u32);
    while got < 200 {
        let ready = pick.one_in(6);
        b.s.poke("verdict_ready", u64::from(ready));
        b.offer(&packet(0x0a, taken, 64));
        if b.s.peek("verdict_valid") == 1 && ready {
            assert_eq!(b.s.peek("verdict_psn"), u64::from(got));
            got += 1;
        }
        taken += b.s.peek("headers_ready") as u32;
        b.clock();
    }
    assert!(taken - got <= 2);
}

#[test]
fn every_judgement_is_told_to_trace_and_a_wait_for_place_counts_as_a_stall() {
    let mut b = Bench::new();
    let far = u64::from(Reject::PsnOutOfSequence.code());
    // good, then one from beyond a gap
    for (psn, event, detail) in [(0, TraceEvent::Check, 64), (5, TraceEvent::Reject, far)] {
        let mut told = vec![];
        b.offer(&packet(0x0a, psn, 64));
        for _ in 0..8 {
            let taken = b.s.peek("headers_ready") == 1;
            b.clock();
            if taken {
                b.s.poke("headers_valid", 0);
            }
            if b.s.peek("trace_valid") == 1 {
                told.push(
                    ["event", "qp", "psn", "opcode", "detail"].map(|n| b.s.peek(&format!("trace_{n}"))),
                );
            }
        }
        let qp = u64::from(packet(0x0a, psn, 64).qpn);
        assert_eq!(told, [[event.code().into(), qp, psn.into(), 0x0a, detail]]);
    }
    // the first goes as far as the verdict, the second waits
    b.s.poke("verdict_ready", 0);
    let mut stalls = 0;
    for _ in 0..20 {
        b.offer(&packet(0x0a, 1, 64));
        stalls += b.s.peek("stall");
        b.clock();
    }
    assert_eq!(stalls, 16);
    b.s.poke("verdict_ready", 1);
    assert_eq!(b.s.peek("stall"), 0, "at once when place takes");
}

/// A packet near what the QP expects: mostly good, with one thing wrong now and then.
fn random_packet(m: &Model, pick: &mut Choices) -> Packet {
    let qpn = pick.below(4) as u32;
    let q = &m.qps[qpn as usize];
    let mtu = 128u16 << q.rights.path_mtu;
    let long = pick.one_in(2);
    let opcode = match q.open {
        Open::None => pick.of(if long { &[0x00u8, 0x06, 0x0c] } else { &[0x04, 0x05, 0x0a, 0x0b, 0x17] }),
        Open::Send { .. } => pick.of(if long { &[0x01u8] } else { &[0x02, 0x03, 0x16] }),
        Open::Write { remaining, .. } => {
            pick.of(if remaining > u64::from(mtu) { &[0x07u8] } else { &[0x08, 0x09] })
        }
    };
    let full = matches!(opcode, 0 | 1 | 6 | 7);
    let length = match (full, q.open) {
        (true, _) => mtu,
        _ if matches!(opcode, 0x0c | 0x13 | 0x14) => 0,
        (_, Open::Write { remaining, .. }) => remaining as u16,
        _ => pick.below(u64::from(mtu)) as u16 + u16::from(matches!(opcode, 2 | 3 | 0x16)),
    };
    let dma_length = match opcode {
        6 => u32::from(mtu) + 1 + pick.below(600) as u32,
        0x0c => pick.below(3000) as u32,
        _ => length.into(),
    };
    let mut p = Packet {
        qpn,
        opcode,
        psn: q.epsn,
        length,
        pad: (length.wrapping_neg() & 3) as u8,
        dma_length,
        va: (0x10_0000 + pick.below(0xf000)) & if opcode >= 0x13 { !7 } else { !0 },
        value: pick.any(),
        compare: pick.any(),
        ack_req: pick.one_in(2),
        solicited: pick.one_in(2),
        imm: pick.any() as u32,
        address: pick.below(32768) as u16,
        slot: pick.below(64) as u8,
        syndrome: pick.any() as u8,
        msn: pick.any() as u32 & MASK,
        ..packet(0, 0, 0)
    };
    if matches!(opcode, 0x0c | 0x13 | 0x14) && !q.reads.is_empty() && pick.one_in(2) {
        // one of the last again, whole or from its middle
        let r = q.reads[q.reads.len() - 1 - pick.below(q.reads.len().min(20) as u64) as usize];
        let skip = pick.below(u64::from(r.packets)) as u32;
        p.psn = (r.psn + skip) & MASK;
        p.va = r.va + u64::from(skip) * u64::from(mtu);
        p.rkey = r.rkey;
        p.dma_length = r.length - skip * u32::from(mtu);
    }
    let near = |p: u32, d: i64| (i64::from(p) + d).rem_euclid(1 << 24) as u32;
    match pick.below(40) {
        0..=2 => p.psn = near(p.psn, -1 - pick.below(5) as i64),
        3..=5 => p.psn = near(p.psn, 1 + pick.below(5) as i64),
        6 => p.psn = near(p.psn, pick.of(&[-(1 << 23), -(1 << 23) + 1, (1 << 23) - 1, (1 << 23) - 2])),
        7 => p.psn = pick.any() as u32 & MASK,
        8 => p.opcode = pick.below(24) as u8,
        9 => p.opcode = pick.any() as u8,
        10 => p.length = pick.of(&[0, 1, mtu - 1, mtu, mtu + 1, 9000]),
        11 => p.pad = pick.below(4) as u8,
        12 => p.dma_length = pick.of(&[0, 1, 1 << 31, (1 << 31) + 1, u32::MAX]),
        13 => p.rkey ^= 1 << pick.below(32),
        14 => p.va = pick.of(&[0, 0xf_ffff, 0x10_ffff, 0x11_0000, u64::MAX]),
        15 => p.pkey ^= 1 << pick.below(16),
        16 => p.source ^= 1 << pick.below(128),
        17 => p.qpn ^= 1 << pick.below(24),
        _ => {}
    }
    p
}

#[test]
fn any_sequence_of_packets_gets_the_verdicts_of_the_rules() {
    let mut seen = std::collections::BTreeMap::new();
    for seed in 1..=12 {
        let mut pick = Choices::new(seed);
        let mut b = Bench::at(if seed > 8 { config().unhurried() } else { config() });
        let start = |b: &mut Bench, pick: &mut Choices, i: usize| {
            let epsn = (pick.of(&[0u32, 0xff_fff0, 0x7f_fff8, 0x80_0000]) + pick.below(16) as u32) & MASK;
            let mut q = qp(epsn);
            q.rights.path_mtu = 1 + pick.below(3) as u8;
            q.rights.min_rnr_timer = pick.below(32) as u8;
            q.producer = 3;
            q.rights.max_dest_rd_atomic = pick.of(&[1, 4, 16]);
            q.log_ring = pick.below(5) as u8;
            b.start(i, q);
        };
        for i in 0..4 {
            start(&mut b, &mut pick, i);
        }
        for n in 0..700 {
            let p = random_packet(&b.model, &mut pick);
            let room = !pick.one_in(20);
            b.s.poke("room", u64::from(room));
            let want = b.model.judge(&p, room);
            let got = b.judge(&p);
            assert_eq!(got, want, "seed {seed}, step {n}: {p:?}");
            *seen.entry(format!("{:?}", got.1)).or_insert(0u32) += 1;
            for i in 0..4 {
                let q = &mut b.model.qps[i];
                if q.answered < q.reads.len() && pick.one_in(3) {
                    q.answered += 1;
                    b.load();
                }
            }
            if pick.one_in(3) {
                let q = &mut b.model.qps[pick.below(4) as usize];
                q.producer = q.producer.max(q.rq_next).wrapping_add(1);
                b.load();
            }
            for i in 0..4 {
                if b.model.qps[i].halt && pick.one_in(4) {
                    start(&mut b, &mut pick, i);
                }
            }
        }
    }
    // the sequence must have met everything that a packet can run into
    assert!(seen.len() >= 17, "{seen:?}");
}

#[test]
fn the_emitted_module_is_clean() {
    bench::lint(&elaborate(&Check { config: Config::small() }).unwrap());
}

/// A raw frame to QP 1, which is a raw QP with this producer.
fn raw_rig(producer: u16) -> (Bench, Packet) {
    let mut b = Bench::new();
    b.s.poke("headers_raw", 1);
    b.model.qps[1].rights.transport = Transport::Raw as u8;
    b.model.qps[1].producer = producer;
    b.load();
    // no PSN, no address, no P_Key, no length of RoCE holds
    let p = Packet {
        qpn: 1,
        opcode: 0x04,
        psn: 0x765432,
        length: 8042,
        slot: 3,
        address: 16,
        ..Packet::default()
    };
    (b, p)
}

#[test]
fn a_raw_frame_takes_a_receive_wqe_or_is_dropped_by_name_and_never_answered() {
    let (mut b, p) = raw_rig(2);
    for n in 0..2 {
        let (Outcome::Verdict(v), None, false) = b.judge(&p) else { panic!("frame {n}") };
        assert_eq!((v.action, v.wqe, v.first, v.last, v.ack_req), (SEND, Some(n), true, true, false));
        assert_eq!((v.length, v.address, v.slot, v.offset), (8042, 16, 3, 0));
        assert_eq!((b.s.peek("verdict_raw"), v.establishes), (1, false));
    }
    assert_eq!(b.judge(&p), (Outcome::Silent, Some(Reject::RawNoReceive), true), "none is posted");
    // the QP goes on with the next that is posted
    b.model.qps[1].producer = 3;
    b.load();
    assert_eq!(action(&b.judge(&p)), SEND);
    type Change = fn(&mut Qp);
    let table: [(Change, Reject); 4] = [
        (|q| q.rights.valid = false, Reject::UnknownQp),
        (|q| q.rights.transport = Transport::Rc as u8, Reject::WrongTransport),
        (|q| q.rights.state = QpState::Init as u8, Reject::WrongQpState),
        (|q| q.placed_halt = true, Reject::QpHalted),
    ];
    for (change, want) in table {
        let (mut b, p) = raw_rig(2);
        change(&mut b.model.qps[1]);
        b.load();
        assert_eq!(b.judge(&p), (Outcome::Silent, Some(want), true));
    }
    // and RoCE is nothing for a raw QP
    let (mut b, p) = raw_rig(2);
    b.s.poke("headers_raw", 0);
    assert_eq!(b.judge(&p), (Outcome::Silent, Some(Reject::WrongTransport), true));
}

#[test]
fn half_of_the_miss_queue_is_all_that_raw_frames_may_have() {
    let (mut b, p) = raw_rig(100);
    let share = Check { config: config() }.raw_share();
    assert_eq!(share, config().misses / 2);
    for _ in 0..share {
        assert_eq!(action(&b.judge(&p)), SEND);
    }
    for _ in 0..3 {
        assert_eq!(b.judge(&p), (Outcome::Silent, Some(Reject::MissQueueFull), true));
    }
    // a SEND of RoCE is not held back by them
    b.s.poke("headers_raw", 0);
    assert_eq!(action(&b.judge(&packet(0x04, 0, 5))), SEND);
    b.s.poke("headers_raw", 1);
    // one is over: room for one
    b.s.poke("raw_over", 1);
    b.clock();
    b.s.poke("raw_over", 0);
    assert_eq!(action(&b.judge(&p)), SEND);
    assert_eq!(b.judge(&p).1, Some(Reject::MissQueueFull));
    b.s.poke("room", 0);
    b.s.poke("raw_over", 1);
    b.clock();
    b.s.poke("raw_over", 0);
    assert_eq!(b.judge(&p).1, Some(Reject::MissQueueFull), "place's own word holds, too");
}
