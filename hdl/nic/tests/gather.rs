//! gather with its transmit buffer, by the interpreter: host memory, key table and packetise are played here.
//!
//! Requirements: CARD CMD ERR MEM RAW READ REQ RESP

mod txkit;

use contract::{MrEntry, QpRights, Reject, Sge, WcStatus};
use hdl::{Bits, Bundle, Interpreter, Module, Ports, Sig, Stream, elaborate, instance};
use nic::Config;
use nic::flow::{Count, Fault, ReadData, ReadDone, ReadRequest, Rewind, Segment, TransmitSlot};
use nic::tx::gather::Gather;
use nic::tx::transmit_buffer::TransmitBuffer;
use std::collections::VecDeque;
use txkit::{Choices, lint, reset, wide};

/// gather and the buffer that its reads fill.
#[derive(Debug)]
struct Pair(Config);

#[derive(Ports)]
#[ports(Pair)]
struct PairIo {
    #[sink(c.0.clone())]
    segment: Stream<Segment>,
    #[sink(c.0.data_bits())]
    words: Stream<Sig>,
    #[output(c.0.qp_bits())]
    read_qp: Sig,
    #[input(256)]
    rights_word: Sig,
    #[output(c.0.mr_bits())]
    read_mr: Sig,
    #[input(256)]
    mr_word: Sig,
    #[source]
    request: Stream<ReadRequest>,
    #[input]
    read_done: ReadDone,
    #[source(c.0.clone())]
    slot: Stream<TransmitSlot>,
    #[input]
    sent: Sig,
    #[input(c.0.clone())]
    rewind: Rewind,
    #[source(c.0.clone())]
    fault: Stream<Fault>,
    #[output]
    gone: Sig,
    #[output]
    superseded: Sig,
    #[output]
    count: Count,
    #[output]
    stall: Sig,
    #[output]
    idle: Sig,
    #[input(c.0.clone())]
    read_data: ReadData,
    #[input]
    read: Sig,
    #[input(c.0.transmit_address_bits())]
    read_address: Sig,
    #[output(c.0.data_bits())]
    word: Sig,
}

impl Module for Pair {
    type Io = PairIo;
    fn name(&self) -> String {
        "pair".into()
    }
    fn body(&self, io: &PairIo) {
        let g = instance("gather", &Gather(self.0.clone()));
        let b = instance("buffer", &TransmitBuffer(self.0.clone()));
        g.segment.take(&io.segment);
        g.words.take(&io.words);
        b.inline.take(&g.fill);
        io.read_qp.set(g.read_qp);
        g.rights_word.set(io.rights_word);
        io.read_mr.set(g.read_mr);
        g.mr_word.set(io.mr_word);
        io.request.take(&g.request);
        g.read_done.assign(&io.read_done);
        io.slot.take(&g.slot);
        g.sent.set(io.sent);
        g.rewind.assign(&io.rewind);
        io.fault.take(&g.fault);
        io.gone.set(g.gone);
        io.superseded.set(g.superseded);
        io.count.assign(&g.count);
        io.stall.set(g.stall);
        io.idle.set(g.idle);
        b.read_data.assign(&io.read_data);
        b.read.set(io.read);
        b.read_address.set(io.read_address);
        io.word.set(b.word);
    }
}

fn host(iova: u64) -> u8 {
    (iova.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 29) as u8
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Read {
    iova: u64,
    length: u64,
    address: u64,
    id: u64,
}

#[derive(Clone, Debug)]
struct Slot {
    qp: u64,
    fence: bool,
    opcode: u64,
    psn: u64,
    length: u64,
    syndrome: u64,
    address: u64,
}

#[derive(Clone, Debug)]
struct Packet {
    qp: u64,
    opcode: u64,
    psn: u64,
    wqe: u64,
    offset: u64,
    length: u64,
    sges: Vec<Sge>,
    responds: bool,
    again: bool,
    /// A request, of this epoch.
    epoch: Option<u64>,
    /// The payload itself.
    inline: Option<Vec<u8>>,
    raw: bool,
}

impl Packet {
    fn new(psn: u64, length: u64, sges: &[Sge]) -> Packet {
        Packet {
            qp: 7,
            opcode: 0x04,
            psn,
            wqe: psn & 0xffff,
            offset: 0,
            length,
            sges: sges.to_vec(),
            responds: false,
            again: false,
            epoch: None,
            inline: None,
            raw: false,
        }
    }

    fn inline(psn: u64, length: u64) -> Packet {
        let bytes = (0..length).map(|i| host(psn * 1000 + i)).collect();
        Packet { inline: Some(bytes), ..Packet::new(psn, length, &[]) }
    }
}

struct Bench {
    s: Interpreter,
    mrs: Vec<MrEntry>,
    reads: Vec<Read>,
    slots: VecDeque<Slot>,
    faults: Vec<(u64, u64, u64)>,
    /// Whether each fault is that of a READ response.
    responding: Vec<bool>,
    /// Packets that have left, by `gone`; that were dropped because their QP went back.
    gone: u64,
    superseded: u64,
    rejects: Vec<u64>,
    queue: VecDeque<Option<Packet>>,
    /// Words of inline data on their way to gather.
    words: VecDeque<Vec<u8>>,
    /// Bytes of a word, and of the buffer.
    width: u64,
    size: u64,
    clocks: u64,
    taken: Vec<u64>,
}

const PD: u32 = 0x1234;

/// The rights line of a QP, and what is left of it when the QP has been destroyed.
fn rights(valid: bool) -> Bits {
    let pd = if valid { PD } else { 0 };
    Bits::from_bytes(256, &QpRights { pd, valid, ..QpRights::default() }.pack())
}

impl Bench {
    fn new() -> Bench {
        Bench::at(&Config::small())
    }

    fn at(c: &Config) -> Bench {
        let mut s = Interpreter::new(&elaborate(&Pair(c.clone())).unwrap());
        reset(&mut s);
        for ready in ["request_ready", "slot_ready", "fault_ready"] {
            s.poke(ready, 1);
        }
        s.poke_bits("rights_word", &rights(true));
        let mut mrs = vec![MrEntry::default(); c.mrs as usize];
        for (i, at) in [(5u64, 0x10_0000u64), (6, 0x7777_0000_0001), (255, 0xffff_ffff_0000_0000)] {
            mrs[i as usize] = MrEntry {
                valid: true,
                tag: i as u8 ^ 0xa5,
                pd: PD,
                va: at,
                length: 0x10_0000,
                iova: 0x4_0000_0000 * i + 3,
                ..MrEntry::default()
            };
        }
        Bench {
            s,
            mrs,
            reads: vec![],
            slots: VecDeque::new(),
            faults: vec![],
            responding: vec![],
            gone: 0,
            superseded: 0,
            rejects: vec![],
            queue: VecDeque::new(),
            words: VecDeque::new(),
            width: c.data_bytes.into(),
            size: c.transmit_buffer_bytes.into(),
            clocks: 0,
            taken: vec![],
        }
    }

    /// An SGE into region `mr` at `offset`.
    fn sge(&self, mr: usize, offset: u64, length: u64) -> Sge {
        let m = &self.mrs[mr];
        Sge {
            addr: m.va.wrapping_add(offset),
            length: length as u32,
            lkey: (mr as u32) << 8 | u32::from(m.tag),
        }
    }

    /// Gives gather a packet, behind its inline data or further SGEs, which begin at byte 32 of a word (or at its first,
    /// where 32 bytes are whole words); what else is in these words is anything.
    fn push(&mut self, p: &Packet) {
        let further = p.sges.iter().skip(4).filter(|_| p.length > 0).flat_map(Sge::pack);
        let bytes: Vec<u8> = further.chain(p.inline.iter().flatten().copied()).collect();
        let width = self.width as usize;
        if !bytes.is_empty() {
            let all = [vec![0xee; 32 % width], bytes].concat();
            self.words.extend(all.chunks(width).map(|word| {
                let mut word = word.to_vec();
                word.resize(width, 0xee);
                word
            }));
        }
        self.queue.push_back(Some(p.clone()));
    }

    /// The bytes of a packet, by walking the list a byte at a time.
    fn payload(&self, p: &Packet) -> Vec<u8> {
        if let Some(bytes) = &p.inline {
            return bytes.clone();
        }
        let message = p.sges.iter().filter(|g| g.length > 0).flat_map(|g| {
            let m = &self.mrs[(g.lkey >> 8) as usize];
            let iova = m.iova.wrapping_add(g.addr.wrapping_sub(m.va));
            (0..u64::from(g.length)).map(move |i| host(iova.wrapping_add(i)))
        });
        message.skip(p.offset as usize).take(p.length as usize).collect()
    }

    fn clock(&mut self) {
        let s = &mut self.s;
        s.poke("segment_valid", u64::from(!self.queue.is_empty()));
        if let Some(front) = self.queue.front() {
            let zero = Packet::new(0, 0, &[]);
            let p = front.as_ref().unwrap_or(&zero);
            for (f, v) in [
                ("packet_fence", u64::from(front.is_none())),
                ("packet_qp", p.qp),
                ("packet_opcode", p.opcode),
                ("packet_psn", p.psn),
                ("packet_length", p.length),
                ("packet_syndrome", 0x1f),
                ("wqe_index", p.wqe),
                ("offset", p.offset),
                ("responds", u64::from(p.responds)),
                ("again", u64::from(p.again)),
                ("requests", u64::from(p.epoch.is_some())),
                ("epoch", p.epoch.unwrap_or(0)),
                ("inline", u64::from(p.inline.is_some())),
                ("packet_raw", u64::from(p.raw)),
                ("more", p.sges.len().saturating_sub(4) as u64),
            ] {
                s.poke(&format!("segment_{f}"), v);
            }
            let mut bytes: Vec<u8> = p.sges.iter().flat_map(Sge::pack).collect();
            bytes.resize(64, 0);
            s.poke_bits("segment_sges", &Bits::from_bytes(512, &bytes));
        }
        s.poke("words_valid", u64::from(!self.words.is_empty()));
        let (width, bits) = (self.width as usize, self.width as u32 * 8);
        let word = self.words.front().cloned().unwrap_or(vec![0x55; width]);
        s.poke_bits("words", &Bits::from_bytes(bits, &word));
        let word_moves = s.peek("words_ready") == 1 && !self.words.is_empty();
        let moves = s.peek("segment_ready") == 1 && !self.queue.is_empty();
        if s.peek("request_valid") == 1 && s.peek("request_ready") == 1 {
            self.reads.push(Read {
                iova: s.peek("request_iova"),
                length: s.peek("request_length"),
                address: s.peek("request_address"),
                id: s.peek("request_id"),
            });
        }
        if s.peek("slot_valid") == 1 && s.peek("slot_ready") == 1 {
            let mut get = |f: &str| s.peek(&format!("slot_packet_{f}"));
            let (qp, fence) = (get("qp"), get("fence") == 1);
            let (opcode, psn, length) = (get("opcode"), get("psn"), get("length"));
            let (syndrome, address) = (get("syndrome"), s.peek("slot_address"));
            self.slots.push_back(Slot { qp, fence, opcode, psn, length, syndrome, address });
        }
        if s.peek("fault_valid") == 1 && s.peek("fault_ready") == 1 {
            self.faults.push((s.peek("fault_qp"), s.peek("fault_wqe_index"), s.peek("fault_status")));
            self.responding.push(s.peek("fault_responds") == 1);
        }
        if s.peek("count_valid") == 1 {
            self.rejects.push(s.peek("count_index"));
        }
        self.gone += s.peek("gone");
        self.superseded += s.peek("superseded");
        let mr = s.peek("read_mr") as usize;
        s.clock();
        s.poke_bits("mr_word", &Bits::from_bytes(256, &self.mrs[mr].pack()));
        s.poke("read_done_valid", 0);
        s.poke("read_data_valid", 0);
        s.poke("sent", 0);
        if word_moves {
            self.words.pop_front();
        }
        if moves {
            self.queue.pop_front();
            self.taken.push(self.clocks);
        }
        self.clocks += 1;
    }

    /// acknowledge writes the epoch of a QP.
    fn goes_back(&mut self, qp: u64, epoch: u64) {
        self.s.poke("rewind_valid", 1);
        self.s.poke("rewind_qp", qp);
        self.s.poke("rewind_epoch", epoch);
        self.clock();
        self.s.poke("rewind_valid", 0);
    }

    fn settle(&mut self) {
        for _ in 0..60 {
            self.clock();
        }
    }

    /// Ends read `i`: its bytes land, word by word, and it is over.
    fn deliver(&mut self, i: usize, failed: bool) {
        let r = self.reads.remove(i);
        assert!(r.length >= 1 && r.length <= 4096);
        let (mut at, end) = (r.address, r.address + r.length);
        while at < end && !failed {
            let word = at - at % self.width;
            let (mut data, mut lanes) = (vec![0; self.width as usize], 0u64);
            for lane in 0..self.width {
                let byte = word + lane;
                if byte >= r.address && byte < end {
                    data[lane as usize] = host(r.iova.wrapping_add(byte - r.address));
                    lanes |= 1 << lane;
                }
            }
            self.s.poke("read_data_valid", 1);
            self.s.poke("read_data_client", 0);
            self.s.poke("read_data_address", word & 0x1_ffff);
            self.s.poke_bits("read_data_data", &Bits::from_bytes(self.width as u32 * 8, &data));
            self.s.poke("read_data_lanes", lanes);
            self.clock();
            at = word + self.width;
        }
        self.s.poke("read_done_valid", 1);
        self.s.poke("read_done_client", 0);
        self.s.poke("read_done_id", r.id);
        self.s.poke("read_done_failed", u64::from(failed));
        self.clock();
    }

    fn deliver_all(&mut self) {
        self.settle();
        while !self.reads.is_empty() {
            self.deliver(0, false);
        }
        self.settle();
    }

    /// What packetise would read, then its `sent`.
    fn take(&mut self, slot: &Slot) -> Vec<u8> {
        let mut bytes = vec![];
        for i in 0..slot.length {
            let at = (slot.address + i) % self.size;
            if i == 0 || at.is_multiple_of(self.width) {
                self.s.poke("read", 1);
                self.s.poke("read_address", at);
                self.clock();
                self.s.poke("read", 0);
            }
            bytes.push(self.s.peek_bits("word").to_bytes()[(at % self.width) as usize]);
        }
        self.s.poke("sent", 1);
        self.clock();
        bytes
    }

    /// Sends one packet alone, in order; its payload as packetise finds it.
    fn one(&mut self, p: &Packet) -> Vec<u8> {
        self.push(p);
        self.deliver_all();
        let slot = self.slots.pop_front().expect("a complete frame leaves");
        assert_eq!((slot.qp, slot.opcode, slot.psn, slot.length), (p.qp, p.opcode, p.psn, p.length));
        self.take(&slot)
    }
}

#[test]
fn payload_lies_in_the_lane_where_the_headers_end() {
    let mut b = Bench::new();
    for (opcode, header) in [
        (0x00, 54),
        (0x01, 54),
        (0x02, 54),
        (0x03, 58),
        (0x04, 54),
        (0x05, 58),
        (0x06, 70),
        (0x07, 54),
        (0x08, 54),
        (0x09, 58),
        (0x0a, 70),
        (0x0b, 74),
        (0x0d, 58),
        (0x0e, 54),
        (0x0f, 58),
        (0x10, 58),
    ] {
        let p = Packet { opcode, ..Packet::new(1, 9, &[b.sge(5, 100, 9)]) };
        b.queue.push_back(Some(p.clone()));
        b.deliver_all();
        let slot = b.slots.pop_front().unwrap();
        assert_eq!(slot.address % 8, header % 8, "opcode {opcode:#x}");
        assert_eq!(b.take(&slot), b.payload(&p));
    }
    b.settle();
    assert_eq!(b.s.peek("idle"), 1);
}

#[test]
fn every_alignment_and_short_length_arrives_whole() {
    for c in [Config::small(), wide(), Config::small().unhurried()] {
        let mut b = Bench::at(&c);
        for offset in 0..8 {
            for length in [0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65] {
                let p = Packet::new(offset, length, &[b.sge(6, offset, length)]);
                let want = b.payload(&p);
                assert_eq!(want.len() as u64, length);
                assert_eq!(b.one(&p), want, "{}: offset {offset}, {length} bytes", c.name);
            }
        }
        let p = Packet::new(9, 4096, &[b.sge(255, 5, 4096)]);
        assert_eq!(b.one(&p), b.payload(&p), "{}", c.name);
    }
}

#[test]
fn one_to_four_sges_are_walked_from_any_offset() {
    let mut b = Bench::new();
    let list = [b.sge(5, 3, 100), b.sge(6, 77, 1), b.sge(255, 9, 0), b.sge(5, 4001, 300)];
    for offset in [0, 1, 99, 100, 101, 102, 200, 400] {
        for length in [0, 1, 2, 100, 101, 102, 401] {
            if offset + length <= 401 {
                let p = Packet { offset, ..Packet::new(offset, length, &list) };
                assert_eq!(b.one(&p), b.payload(&p), "offset {offset}, {length} bytes");
            }
        }
    }
    // zero lengths first, between and last; the key of an empty SGE is not looked at
    let nothing = Sge { addr: 1, length: 0, lkey: 0xffff_ffff };
    for list in [
        vec![nothing, b.sge(5, 0, 20), nothing, b.sge(6, 0, 20)],
        vec![nothing, nothing, nothing, b.sge(5, 0, 40)],
        vec![b.sge(5, 0, 40), nothing, nothing, nothing],
    ] {
        let p = Packet::new(1, 40, &list);
        assert_eq!(b.one(&p), b.payload(&p));
    }
    // deep in a long list of big SGEs
    let list = [b.sge(5, 0, 0x8_0000), b.sge(6, 0, 0x8_0000), b.sge(255, 0, 0x1_0000)];
    for offset in [0x7_f000u64, 0x7_f001, 0x8_0000, 0xf_f800] {
        let p = Packet { offset, ..Packet::new(1, 4096, &list) };
        let want: Vec<u8> = b.payload(&p);
        assert_eq!(b.one(&p), want, "offset {offset:#x}");
    }
    assert!(b.faults.is_empty());
}

#[test]
fn up_to_sixteen_sges_are_walked_from_any_offset() {
    for c in [Config::small(), wide(), Config::small().unhurried()] {
        let mut b = Bench::at(&c);
        let list: Vec<Sge> = (0..16u64)
            .map(|i| b.sge([5, 6, 255][i as usize % 3], 100 * i + i, if i % 5 == 3 { 0 } else { 30 + 3 * i }))
            .collect();
        let total: u64 = list.iter().map(|g| u64::from(g.length)).sum();
        for sges in 1..=16 {
            let held: u64 = list[..sges].iter().map(|g| u64::from(g.length)).sum();
            for (offset, length) in
                [(0, held), (0, 1), (held - 1, 1), (held / 2, held - held / 2), (held / 3, 20)]
            {
                let length = length.min(held - offset);
                let p = Packet { offset, ..Packet::new(offset, length, &list[..sges]) };
                assert_eq!(b.one(&p), b.payload(&p), "{sges} SGEs, offset {offset}, {length} bytes");
                assert!(b.words.is_empty(), "what the walk does not reach is taken too");
            }
        }
        assert!(b.faults.is_empty() && total > 600);
        // one byte short, one key wrong, a QP that is gone: the words do not stay
        let mut bad = list.clone();
        bad[14].lkey ^= 1;
        b.push(&Packet::new(1, total + 1, &list));
        b.push(&Packet::new(2, total, &bad));
        for _ in 0..5 {
            b.settle();
        }
        b.deliver_all();
        let statuses: Vec<u64> = b.faults.iter().map(|f| f.2).collect();
        assert_eq!(statuses, [WcStatus::LocLenErr as u64, WcStatus::LocProtErr as u64]);
        b.s.poke_bits("rights_word", &rights(false));
        b.push(&Packet::new(3, total, &list));
        b.settle();
        b.settle();
        assert_eq!(
            (b.reads.len(), b.words.len(), b.rejects.last()),
            (0, 0, Some(&(Reject::WrongQpState as u64)))
        );
        b.s.poke_bits("rights_word", &rights(true));
        let p = Packet::new(4, total, &list);
        assert_eq!(b.one(&p), b.payload(&p));
        b.settle();
        assert_eq!(b.s.peek("idle"), 1, "all room came back");
    }
}

#[test]
fn a_piece_is_one_read_at_the_iova_of_its_region() {
    let mut b = Bench::new();
    let list = [b.sge(5, 0x21, 30), b.sge(6, 0, 30)];
    b.queue.push_back(Some(Packet { offset: 10, ..Packet::new(0, 40, &list) }));
    b.settle();
    let iova = |mr: usize, offset: u64| b.mrs[mr].iova + offset;
    let want = [
        Read { iova: iova(5, 0x2b), length: 20, address: 6, id: 0 },
        Read { iova: iova(6, 0), length: 20, address: 26, id: 0 },
    ];
    assert_eq!(b.reads, want);
}

#[test]
fn inline_data_of_every_length_arrives_whole_at_either_lane_without_a_key_or_a_read() {
    for c in [Config::small(), wide()] {
        let mut b = Bench::at(&c);
        b.mrs.fill(MrEntry::default());
        for opcode in [0x04, 0x05, 0x0a, 0x0b] {
            for length in (0..=40).chain([95, 96, 97, 219, 220]) {
                let p = Packet { opcode, ..Packet::inline(length, length) };
                assert_eq!(b.one(&p), b.payload(&p), "opcode {opcode:#x}, {length} bytes");
                assert!(b.words.is_empty() && b.reads.is_empty());
            }
        }
        assert!(b.faults.is_empty() && b.rejects.is_empty());
        b.settle();
        assert_eq!(b.s.peek("idle"), 1);
    }
}

#[test]
fn inline_data_and_the_reads_before_it_share_the_buffer_and_lose_nothing() {
    let mut b = Bench::new();
    let list = [b.sge(5, 1, 200), b.sge(6, 3, 200)];
    let packets = [
        Packet::new(1, 400, &list),
        Packet::inline(2, 220),
        Packet::inline(3, 9),
        Packet::new(4, 300, &list),
    ];
    packets.iter().for_each(|p| b.push(p));
    while b.reads.len() < 2 {
        b.clock();
    }
    // data comes in every clock, and inline data in those between two reads
    b.deliver(1, false);
    assert!(!b.words.is_empty(), "it has to wait");
    b.deliver(0, false);
    b.deliver_all();
    for p in &packets {
        let slot = b.slots.pop_front().expect("in order");
        assert_eq!((slot.psn, b.take(&slot)), (p.psn, b.payload(p)));
    }
}

#[test]
fn inline_data_of_a_qp_that_is_gone_is_thrown_away_with_its_packet() {
    for c in [Config::small(), wide()] {
        let mut b = Bench::at(&c);
        b.s.poke_bits("rights_word", &rights(false));
        b.push(&Packet::inline(1, 220));
        b.push(&Packet::inline(2, 0));
        for _ in 0..3 {
            b.settle();
        }
        assert_eq!((b.words.len(), b.slots.len(), b.faults.len()), (0, 0, 0));
        assert_eq!(b.rejects, [Reject::WrongQpState as u64; 2]);
        b.s.poke_bits("rights_word", &rights(true));
        let p = Packet::inline(3, 77);
        assert_eq!(b.one(&p), b.payload(&p), "the next finds its own");
        b.settle();
        assert_eq!(b.s.peek("idle"), 1, "all room came back");
    }
}

#[test]
fn a_read_response_wants_remote_read_and_its_fault_leaves_in_order_as_a_nak() {
    let (key, memory) = (WcStatus::RemAccessErr as u64, WcStatus::RemOpErr as u64);
    // rights of the region, tag of the key, the read fails
    for (access, wrong_tag, fails, want) in [
        (4u8, 0, false, None),
        (3, 0, false, Some((key, 0x62, Reject::SglKey))),
        (4, 1, false, Some((key, 0x62, Reject::SglKey))),
        (4, 0, true, Some((memory, 0x63, Reject::GatherFailed))),
    ] {
        let mut b = Bench::new();
        b.mrs[6].access = access;
        let mut sge = b.sge(6, 9, 100);
        sge.lkey ^= wrong_tag;
        let before = Packet::new(1, 50, &[b.sge(5, 0, 50)]);
        let response = Packet { opcode: 0x0d, responds: true, ..Packet::new(2, 100, &[sge]) };
        let after = Packet::new(3, 60, &[b.sge(5, 0, 60)]);
        for p in [&before, &response, &after] {
            b.queue.push_back(Some(p.clone()));
        }
        // packetise and acknowledge take their time
        b.s.poke("slot_ready", 0);
        b.s.poke("fault_ready", 0);
        b.settle();
        while let Some(n) = (0..b.reads.len()).next_back() {
            let failed = fails && b.reads[n].id == 1;
            b.deliver(n, failed);
        }
        b.settle();
        assert_eq!((b.slots.len(), b.faults.len(), b.gone), (0, 0, 0));
        b.s.poke("slot_ready", 1);
        b.settle();
        // nothing passes a fault that nobody has taken
        assert_eq!(b.slots.len(), if want.is_some() { 1 } else { 3 });
        b.s.poke("fault_ready", 1);
        b.settle();
        let slots: Vec<Slot> = b.slots.drain(..).collect();
        assert_eq!(slots.iter().map(|s| s.psn).collect::<Vec<_>>(), [1, 2, 3]);
        let middle = &slots[1];
        match want {
            None => {
                assert_eq!((middle.opcode, middle.syndrome, middle.length), (0x0d, 0x1f, 100));
                assert!(b.faults.is_empty());
            }
            Some((status, syndrome, reject)) => {
                assert_eq!((middle.opcode, middle.syndrome, middle.length), (0x11, syndrome, 0));
                assert_eq!((b.faults[0].0, b.faults[0].2, b.responding[0]), (7, status, true));
                assert_eq!((b.faults.len(), b.rejects.clone()), (1, vec![reject as u64]));
            }
        }
        for (slot, p) in slots.iter().zip([&before, &response, &after]) {
            let bytes = b.take(slot);
            assert!(slot.opcode == 0x11 || bytes == b.payload(p), "PSN {}", p.psn);
        }
        b.settle();
        assert_eq!((b.gone, b.s.peek("idle")), (3, 1), "all room is free again");
    }
    // nothing is asked of the key of nothing
    let mut b = Bench::new();
    let nothing = Sge { addr: 1, length: 0, lkey: 0xffff_ffff };
    let p = Packet { opcode: 0x10, responds: true, ..Packet::new(1, 0, &[nothing]) };
    assert_eq!(b.one(&p), []);
    assert!(b.faults.is_empty());
}

#[test]
fn a_response_to_a_duplicate_whose_key_has_ended_is_dropped_and_no_fault() {
    for fails in [false, true] {
        let mut b = Bench::new();
        b.mrs[6].access = 4;
        let sge = b.sge(6, 9, 100);
        b.mrs[6].valid = fails;
        let response = Packet { opcode: 0x0d, responds: true, again: true, ..Packet::new(2, 100, &[sge]) };
        let after = Packet::new(3, 60, &[b.sge(5, 0, 60)]);
        for p in [&response, &after] {
            b.queue.push_back(Some(p.clone()));
        }
        b.settle();
        while let Some(n) = (0..b.reads.len()).next_back() {
            let failed = b.reads[n].id == 0;
            b.deliver(n, failed);
        }
        b.settle();
        let slots: Vec<Slot> = b.slots.drain(..).collect();
        assert_eq!(slots.iter().map(|s| s.psn).collect::<Vec<_>>(), [3]);
        assert_eq!(b.take(&slots[0]), b.payload(&after));
        let reject = if fails { Reject::GatherFailed } else { Reject::SglKey };
        assert_eq!((b.faults.len(), b.rejects.clone()), (0, vec![reject as u64]));
        b.settle();
        assert_eq!((b.gone, b.s.peek("idle")), (2, 1), "all room is free again");
    }
}

#[test]
fn each_fault_drops_its_frame_alone_with_its_status() {
    let (protection, length) = (WcStatus::LocProtErr as u64, WcStatus::LocLenErr as u64);
    type Spoil = fn(&mut Bench) -> Vec<Sge>;
    let spoils: [(&str, u64, Reject, Spoil); 9] = [
        ("short list", length, Reject::SglTooShort, |b| vec![b.sge(5, 0, 99)]),
        ("no list", length, Reject::SglTooShort, |_| vec![]),
        ("no region", protection, Reject::SglKey, |b| {
            b.mrs[9] = b.mrs[5];
            b.mrs[9].valid = false;
            vec![b.sge(9, 0, 100)]
        }),
        ("stale tag", protection, Reject::SglKey, |b| vec![Sge { lkey: 5 << 8, ..b.sge(5, 0, 100) }]),
        ("other PD", protection, Reject::SglKey, |b| {
            b.mrs[9] = MrEntry { pd: 1, ..b.mrs[5] };
            vec![b.sge(9, 0, 100)]
        }),
        ("one byte past", protection, Reject::SglKey, |b| vec![b.sge(5, 0x10_0000 - 99, 100)]),
        ("one byte before", protection, Reject::SglKey, |b| {
            vec![Sge { addr: b.mrs[5].va - 1, ..b.sge(5, 0, 100) }]
        }),
        ("index beyond the table", protection, Reject::SglKey, |b| {
            let g = b.sge(5, 0, 100);
            vec![Sge { lkey: g.lkey | 1 << 16, ..g }]
        }),
        ("second SGE bad", protection, Reject::SglKey, |b| {
            vec![b.sge(5, 0, 50), Sge { lkey: 0, ..b.sge(5, 0, 50) }]
        }),
    ];
    for (what, status, reject, spoil) in spoils {
        let mut b = Bench::new();
        let bad = spoil(&mut b);
        let good = b.sge(5, 0, 100);
        b.queue.push_back(Some(Packet::new(1, 100, &[good])));
        b.queue.push_back(Some(Packet::new(2, 100, &bad)));
        b.queue.push_back(Some(Packet::new(3, 100, &[good])));
        b.settle();
        assert!(b.faults.is_empty() && b.slots.is_empty(), "{what}: nothing passes the first");
        b.deliver_all();
        assert_eq!(b.faults, [(7, 2, status)], "{what}");
        assert_eq!(b.rejects, [reject as u64], "{what}");
        for psn in [1, 3] {
            let slot = b.slots.pop_front().unwrap();
            assert_eq!(slot.psn, psn, "{what}");
            assert_eq!(b.take(&slot), b.payload(&Packet::new(psn, 100, &[good])), "{what}");
        }
        b.settle();
        assert_eq!(b.s.peek("idle"), 1, "{what}: all room came back");
    }
    // exactly at the end of the region is allowed
    let mut b = Bench::new();
    let p = Packet::new(1, 100, &[b.sge(5, 0x10_0000 - 100, 100)]);
    assert_eq!(b.one(&p), b.payload(&p));
    // and nothing is asked of a key for zero bytes
    let p = Packet::new(1, 0, &[Sge { addr: 0, length: 0, lkey: 0 }]);
    assert_eq!(b.one(&p), vec![]);
}

#[test]
fn packets_of_a_qp_that_is_destroyed_under_them_are_dropped_without_a_read_a_fault_or_a_key_error() {
    let mut b = Bench::new();
    let list = [b.sge(5, 0, 200)];
    b.queue.push_back(Some(Packet::new(1, 100, &list)));
    b.settle();
    assert_eq!(b.reads.len(), 1);
    // the QP goes; behind its packets, with payload and without, the fence of its destruction
    b.s.poke_bits("rights_word", &rights(false));
    b.queue.extend([Some(Packet::new(2, 100, &list)), Some(Packet::new(3, 0, &[])), None]);
    b.settle();
    assert_eq!(b.reads.len(), 1, "no read for a QP that is gone");
    assert!(b.slots.is_empty() && b.rejects.is_empty(), "in order: the one before still reads");
    b.deliver_all();
    let slot = b.slots.pop_front().unwrap();
    assert_eq!((slot.psn, b.take(&slot)), (1, b.payload(&Packet::new(1, 100, &list))));
    b.settle();
    assert_eq!(b.rejects, [Reject::WrongQpState as u64; 2]);
    assert!(b.faults.is_empty());
    assert!(b.slots.pop_front().unwrap().fence && b.slots.is_empty(), "the fence alone is left");
    assert_eq!(b.s.peek("idle"), 1, "all room came back");
}

/// A request of that epoch.
fn request(psn: u64, length: u64, list: &[Sge], epoch: u64) -> Packet {
    Packet { epoch: Some(epoch), ..Packet::new(psn, length, list) }
}

#[test]
fn requests_whose_qp_has_gone_back_are_dropped_in_order_and_nothing_else_is() {
    let mut b = Bench::new();
    let list = [b.sge(5, 0, 2000)];
    let of = |psn: u64, epoch: u64| request(psn, 1000, &list, epoch);
    for qp in [7, 8] {
        b.goes_back(qp, 9);
        b.one(&Packet { qp, ..of(99, 9) });
    }
    b.s.poke("slot_ready", 0);
    let response = Packet { responds: true, opcode: 0x10, ..Packet::new(3, 0, &[]) };
    let other = Packet { qp: 8, ..of(4, 9) };
    for p in [&of(0, 9), &of(1, 9), &of(2, 9), &response, &other] {
        b.push(p);
    }
    b.settle();
    for _ in 0..2 {
        b.deliver(0, false);
    }
    b.settle();
    assert_eq!((b.s.peek("slot_valid"), b.reads.len()), (1, 2), "the first is offered, the third reads");
    // what comes behind the rewind: of the old epoch, without a read, and of the new one
    b.goes_back(7, 10);
    let listed: Vec<Sge> = (0..9).map(|_| b.sge(6, 0, 100)).collect();
    let old = [
        of(5, 9),
        Packet { epoch: Some(9), ..Packet::inline(6, 150) },
        request(7, 900, &listed, 9),
        request(8, 0, &[], 9),
        // whatever is wrong with it, it will be when it is cut again
        request(9, 100, &[Sge { lkey: 0xff, ..list[0] }], 9),
    ];
    old.iter().for_each(|p| b.push(p));
    let again = [of(1, 10), Packet { epoch: Some(10), ..Packet::inline(2, 100) }];
    again.iter().for_each(|p| b.push(p));
    b.settle();
    // the first was read whole, so it lies there still
    assert_eq!(
        (b.reads.len(), b.superseded),
        (2, 3),
        "nothing is read again; the third's room waits for its read"
    );
    b.s.poke("slot_ready", 1);
    b.deliver_all();
    let left: Vec<u64> = b.slots.iter().map(|slot| slot.psn).collect();
    assert_eq!((left, b.superseded, b.gone), (vec![3, 4, 1, 2], 8, 14));
    for p in [&response, &other, &again[0], &again[1]] {
        let slot = b.slots.pop_front().unwrap();
        assert_eq!((slot.qp, b.take(&slot)), (p.qp, b.payload(p)));
    }
    b.settle();
    assert_eq!((b.faults.len(), b.rejects.len(), b.s.peek("idle")), (0, 0, 1), "all room came back");
}

#[test]
fn reads_that_have_not_begun_are_withdrawn_when_their_qp_goes_back() {
    for engine_ready in [0, 1] {
        let mut b = Bench::new();
        let (list, halves) = ([b.sge(5, 0, 2000)], [b.sge(5, 0, 500), b.sge(6, 7, 500)]);
        b.goes_back(7, 1);
        b.one(&request(0, 100, &list, 1));
        b.s.poke("request_ready", 0);
        for psn in 1..=3 {
            b.push(&request(psn, 1000, &halves, 1));
        }
        b.settle();
        b.goes_back(7, 2);
        b.s.poke("request_ready", engine_ready);
        b.push(&request(1, 1000, &list, 2));
        b.settle();
        b.s.poke("request_ready", 1);
        b.settle();
        assert_eq!((b.reads.len(), b.superseded), (1, 3), "what is sent again is all that is read");
        b.deliver_all();
        let slot = b.slots.pop_front().unwrap();
        assert_eq!(b.take(&slot), b.payload(&request(1, 1000, &list, 2)));
        b.settle();
        assert_eq!((b.slots.len(), b.faults.len(), b.s.peek("idle")), (0, 0, 1));
    }
}

#[test]
fn a_request_that_was_dropped_unread_stays_dropped_when_its_epoch_comes_round() {
    let mut b = Bench::new();
    b.mrs[5].access = 4;
    let list = [b.sge(5, 0, 200)];
    b.goes_back(7, 1);
    b.one(&request(0, 100, &list, 1));
    b.push(&request(1, 100, &list, 1));
    b.settle();
    // a response before it holds it back
    b.push(&Packet { responds: true, opcode: 0x10, ..Packet::new(5, 100, &list) });
    b.goes_back(7, 2);
    b.push(&request(2, 100, &list, 1));
    b.settle();
    b.goes_back(7, 1);
    b.deliver_all();
    let left: Vec<u64> = b.slots.iter().map(|slot| slot.psn).collect();
    assert_eq!((left, b.superseded), (vec![5], 2));
}

#[test]
fn what_is_sent_again_leaves_however_often_its_qp_goes_back_meanwhile() {
    let mut b = Bench::new();
    let list = [b.sge(5, 0, 200)];
    b.one(&request(9, 100, &list, 0));
    b.push(&request(9, 100, &list, 0));
    for epoch in 1..=6 {
        b.goes_back(7, epoch);
        b.push(&request(epoch, 100, &list, epoch));
        b.settle();
    }
    // the first rewind dropped what was before it, the others nothing
    b.deliver_all();
    let left: Vec<u64> = b.slots.drain(..).map(|slot| slot.psn).collect();
    assert_eq!((left, b.superseded), (vec![1, 2, 3, 4, 5, 6], 1));
    // these have left: the next drops again
    for _ in 0..6 {
        b.s.poke("sent", 1);
        b.clock();
    }
    b.push(&request(7, 100, &list, 6));
    b.settle();
    b.goes_back(7, 7);
    b.deliver_all();
    assert_eq!((b.slots.len(), b.superseded, b.s.peek("idle")), (0, 2, 1));
}

#[test]
fn a_request_whose_read_fails_when_its_qp_has_gone_back_is_a_fault_when_it_is_sent_again() {
    let mut b = Bench::new();
    let list = [b.sge(5, 0, 200)];
    b.goes_back(7, 1);
    b.one(&request(3, 100, &list, 1));
    b.push(&request(4, 100, &list, 1));
    b.push(&request(5, 100, &list, 1));
    b.settle();
    // failed before its turn came: told, whatever its QP did meanwhile
    b.deliver(1, true);
    b.goes_back(7, 2);
    b.settle();
    assert_eq!((b.faults.len(), b.superseded, b.s.peek("idle")), (1, 1, 0), "its room waits for its read");
    b.deliver(0, true);
    b.settle();
    assert_eq!(b.faults, [(7, 5, WcStatus::LocProtErr as u64)]);
    b.push(&request(4, 100, &list, 2));
    b.settle();
    b.deliver(0, true);
    b.settle();
    assert_eq!(b.faults[1..], [(7, 4, WcStatus::LocProtErr as u64)]);
    assert_eq!((b.superseded, b.slots.len(), b.s.peek("idle")), (1, 0, 1));
}

/// Sends it from where it lies: the bytes that packetise finds, without a read.
fn again(b: &mut Bench, p: &Packet) -> Vec<u8> {
    b.push(p);
    b.settle();
    assert_eq!(b.reads.len(), 0, "{p:?}");
    let slot = b.slots.pop_front().expect("nothing to wait for");
    assert_eq!((slot.qp, slot.psn, slot.length), (p.qp, p.psn, p.length));
    b.take(&slot)
}

#[test]
fn what_is_sent_again_is_taken_from_where_it_lies_however_often() {
    for c in [Config::small(), wide()] {
        let mut b = Bench::at(&c);
        let list = [b.sge(5, 3, 9000), b.sge(6, 1, 40000)];
        let of = |psn: u64, qp: u64, epoch: u64| Packet {
            qp,
            offset: psn * 900,
            ..request(psn, 1000, &list, epoch)
        };
        // QPs that share neither PSNs nor bytes, in turns
        for psn in 0..6 {
            for qp in [7, 8, 23] {
                b.one(&of(psn + qp, qp, 0));
            }
        }
        for epoch in 1..4 {
            for qp in [7, 8] {
                b.goes_back(qp, epoch);
                for psn in epoch..6 {
                    let p = of(psn + qp, qp, epoch);
                    assert_eq!(again(&mut b, &p), b.payload(&p));
                }
            }
        }
        // and what has not been sent is read, into room of its own
        let new = of(13, 7, 3);
        assert_eq!(b.one(&new), b.payload(&new));
        let p = of(28, 23, 0);
        assert_eq!(again(&mut b, &p), b.payload(&p));
        b.settle();
        assert_eq!((b.faults.len(), b.s.peek("idle")), (0, 1));
    }
}

#[test]
fn only_the_same_request_lies_there() {
    let mut b = Bench::new();
    b.mrs[5].access = 4;
    let list = [b.sge(5, 3, 9000)];
    let sent = request(5, 1000, &list, 0);
    for (what, other) in [
        ("another PSN", Packet { psn: 5 + 32, ..sent.clone() }),
        ("another QP", Packet { qp: 7 + 8, ..sent.clone() }),
        ("another length", Packet { length: 999, ..sent.clone() }),
        ("other headers", Packet { opcode: 0x03, ..sent.clone() }),
        ("a response", Packet { responds: true, opcode: 0x10, epoch: None, ..sent.clone() }),
    ] {
        b.one(&sent);
        b.push(&other);
        b.settle();
        assert_eq!(b.reads.len(), 1, "{what}");
        b.deliver_all();
        let slot = b.slots.pop_front().unwrap();
        assert_eq!(b.take(&slot), b.payload(&other), "{what}");
    }
    // data that came with the work request comes with it again; a response is read again
    for p in [
        Packet { epoch: Some(0), ..Packet::inline(8, 100) },
        Packet { responds: true, opcode: 0x10, ..Packet::new(9, 100, &list) },
    ] {
        for _ in 0..2 {
            b.push(&p);
            b.settle();
            assert_eq!(b.reads.len(), usize::from(p.inline.is_none()));
            b.deliver_all();
            let slot = b.slots.pop_front().unwrap();
            assert_eq!(b.take(&slot), b.payload(&p));
        }
    }
}

#[test]
fn a_key_that_has_ended_is_a_fault_though_the_bytes_lie_there() {
    let mut b = Bench::new();
    let list = [b.sge(5, 3, 9000)];
    b.one(&request(5, 1000, &list, 0));
    b.mrs[5].valid = false;
    b.goes_back(7, 1);
    b.push(&request(5, 1000, &list, 1));
    b.settle();
    assert_eq!((b.slots.len(), b.reads.len()), (0, 0));
    assert_eq!(b.faults, [(7, 5, WcStatus::LocProtErr as u64)]);
    assert_eq!(b.s.peek("idle"), 1);
}

#[test]
fn behind_a_fence_nothing_of_before_lies_there() {
    let mut b = Bench::new();
    let list = [b.sge(5, 3, 9000)];
    let p = request(5, 1000, &list, 0);
    b.one(&p);
    // one still reads when the fence comes in, and leaves before it
    b.push(&request(6, 1000, &list, 0));
    b.queue.push_back(None);
    b.deliver_all();
    let slot = b.slots.pop_front().unwrap();
    assert_eq!((slot.psn, b.take(&slot).len()), (6, 1000));
    assert!(b.slots.pop_front().unwrap().fence);
    for psn in [5, 6] {
        b.push(&Packet { psn, ..p.clone() });
        b.settle();
        assert_eq!(b.reads.len(), 1, "of a QP of the same number, and PSN {psn}");
        b.deliver_all();
        let slot = b.slots.pop_front().unwrap();
        assert_eq!(b.take(&slot), b.payload(&p));
    }
}

#[test]
fn what_was_overwritten_is_read_again_and_what_is_under_way_again_is_not_overwritten() {
    // 32 KiB: seven frames of 4096 bytes and their headers' lanes, 513 words each, leave 505 words
    for (words, lies) in [(504, true), (505, true), (506, false)] {
        let mut b = Bench::new();
        let list = [b.sge(5, 0, 0x1_0000)];
        let of = |psn: u64, length: u64| Packet { offset: psn * 1000, ..request(psn, length, &list, 0) };
        for psn in 0..7 {
            b.one(&of(psn, 4096));
        }
        // its headers end in lane 6
        b.one(&of(7, words * 8 - 6));
        let first = of(0, 4096);
        b.push(&first);
        b.settle();
        assert_eq!(b.reads.len(), usize::from(!lies), "{words} words behind");
        b.deliver_all();
        let slot = b.slots.pop_front().unwrap();
        assert_eq!(b.take(&slot), b.payload(&first));
    }
    // the oldest is under way again: what does not fit beside it waits until it is out
    let mut b = Bench::new();
    let list = [b.sge(5, 0, 0x1_0000)];
    let of = |psn: u64, length: u64| Packet { offset: psn * 1000, ..request(psn, length, &list, 0) };
    for psn in 0..7 {
        b.one(&of(psn, 4096));
    }
    b.push(&of(0, 4096));
    b.push(&of(3, 4096));
    b.push(&of(7, 505 * 8 - 6));
    b.push(&of(8, 1));
    b.settle();
    assert_eq!((b.queue.len(), b.s.peek("stall")), (1, 1), "the last word of the ring is taken");
    b.deliver_all();
    let slots: Vec<Slot> = b.slots.drain(..).collect();
    assert_eq!(slots.iter().map(|slot| slot.psn).collect::<Vec<_>>(), [0, 3, 7]);
    assert_eq!(b.take(&slots[0]), b.payload(&of(0, 4096)));
    b.settle();
    assert_eq!(b.queue.len(), 1, "the first of them counts until the last is out");
    assert_eq!(b.take(&slots[1]), b.payload(&of(3, 4096)));
    b.settle();
    assert_eq!(b.queue.len(), 0);
    b.deliver_all();
    assert_eq!(b.take(&slots[2]), b.payload(&of(7, 505 * 8 - 6)));
    let slot = b.slots.pop_front().unwrap();
    assert_eq!(b.take(&slot), b.payload(&of(8, 1)));
    // one that lies before what is under way again is read
    b.one(&of(9, 8));
    let (third, second) = (of(3, 4096), of(2, 4096));
    b.push(&third);
    b.push(&second);
    b.settle();
    assert_eq!(b.reads.len(), 1);
    b.deliver_all();
    for p in [&third, &second] {
        let slot = b.slots.pop_front().unwrap();
        assert_eq!(b.take(&slot), b.payload(p));
    }
    b.settle();
    assert_eq!((b.faults.len(), b.s.peek("idle")), (0, 1));
}

#[test]
fn an_entry_that_is_older_than_its_stamp_can_tell_is_forgotten() {
    // a word per frame: 16 rings of 4096 words are many frames, and the entry of PSN 5 is never written again
    let mut b = Bench::new();
    b.mrs[5].access = 4;
    let list = [b.sge(5, 0, 9000)];
    b.one(&request(5, 1000, &list, 0));
    let mut words = 126;
    let mut psn = 64;
    while words < 16 * 4096 {
        // the largest frames, and none whose entry is that of PSN 5
        let response = Packet { responds: true, opcode: 0x10, ..Packet::new(psn, 4096, &list) };
        b.one(&response);
        words += 513;
        psn += 1;
    }
    b.push(&request(5, 1000, &list, 0));
    b.settle();
    assert_eq!(b.reads.len(), 1);
}

#[test]
fn a_failed_read_is_a_fault_when_the_other_reads_of_the_frame_are_over() {
    for first_fails in [true, false] {
        let mut b = Bench::new();
        let list = [b.sge(5, 0, 50), b.sge(6, 0, 50)];
        b.queue.push_back(Some(Packet::new(4, 100, &list)));
        b.settle();
        b.deliver(0, first_fails);
        b.settle();
        assert!(b.faults.is_empty());
        b.deliver(0, !first_fails);
        b.settle();
        assert_eq!(b.faults, [(7, 4, WcStatus::LocProtErr as u64)]);
        assert_eq!(b.rejects, [Reject::GatherFailed as u64]);
        assert_eq!(b.s.peek("idle"), 1);
        assert!(b.slots.is_empty());
    }
}

#[test]
fn a_full_ring_and_full_slots_wait_for_what_is_sent() {
    // by bytes: 32 KiB hold seven frames of 4096 bytes and a bit
    let mut b = Bench::new();
    let list = [b.sge(5, 1, 0x1_0000)];
    for i in 0..20 {
        b.queue.push_back(Some(Packet { offset: i * 1000, ..Packet::new(i, 4096, &list) }));
    }
    b.settle();
    b.settle();
    assert_eq!(b.queue.len(), 13);
    assert_eq!(b.s.peek("stall"), 1);
    for i in 0..20 {
        while b.slots.is_empty() {
            if b.reads.is_empty() {
                b.clock();
            } else {
                b.deliver(0, false);
            }
        }
        let slot = b.slots.pop_front().unwrap();
        let want = b.payload(&Packet { offset: i * 1000, ..Packet::new(i, 4096, &list) });
        assert_eq!((slot.psn, b.take(&slot) == want), (i, true));
    }
    b.settle();
    assert_eq!(b.s.peek("idle"), 1);
    // by slots: 32 frames of one byte
    for i in 0..40 {
        b.queue.push_back(Some(Packet::new(i, 1, &list)));
    }
    for _ in 0..10 {
        b.settle();
    }
    assert_eq!(b.queue.len(), 8);
    b.deliver_all();
    assert_eq!((b.queue.len(), b.slots.len()), (8, 32));
    let slot = b.slots.pop_front().unwrap();
    b.take(&slot);
    b.settle();
    assert_eq!(b.queue.len(), 7, "one sent, one more taken");
}

#[test]
fn frames_leave_in_order_when_reads_end_in_reverse() {
    let mut b = Bench::new();
    let list = [b.sge(5, 1, 64), b.sge(6, 1, 64)];
    for i in 0..10 {
        b.queue.push_back(Some(Packet { offset: i, ..Packet::new(i, 100, &list) }));
    }
    b.queue.push_back(None);
    for _ in 0..4 {
        b.settle();
    }
    assert_eq!(b.reads.len(), 20);
    while b.reads.len() > 1 {
        b.deliver(b.reads.len() - 1, false);
        assert!(b.slots.is_empty());
    }
    b.deliver_all();
    for i in 0..10 {
        let slot = b.slots.pop_front().unwrap();
        assert_eq!((slot.psn, slot.fence), (i, false));
        assert_eq!(b.take(&slot), b.payload(&Packet { offset: i, ..Packet::new(i, 100, &list) }));
    }
    assert!(b.slots.pop_front().unwrap().fence, "the fence is last");
    b.settle();
    assert_eq!(b.s.peek("idle"), 1, "the fence needs no `sent`");
}

#[test]
fn random_packets_through_a_small_world_come_out_whole_and_in_order() {
    let (small, slow) = (Config::small(), Config::small().unhurried());
    for (seed, c) in [
        (1, small.clone()),
        (2, small.clone()),
        (3, small),
        (4, wide()),
        (5, wide()),
        (6, slow.clone()),
        (7, slow),
    ] {
        let mut pick = Choices::new(seed);
        let mut b = Bench::at(&c);
        let mut expected: VecDeque<(Option<Packet>, bool)> = VecDeque::new();
        let mut faults = vec![];
        let (mut sent, mut n) = (0, 0);
        while sent < 120 {
            for ready in ["request_ready", "slot_ready", "fault_ready"] {
                let on = pick.chance(60);
                b.s.poke(ready, u64::from(on));
            }
            match pick.below(10) {
                0..=2 if b.queue.len() < 4 => {
                    if pick.chance(3) {
                        b.queue.push_back(None);
                        expected.push_back((None, false));
                        continue;
                    }
                    let mut list: Vec<Sge> = (0..1 + pick.below([4, 16][pick.clone().below(2) as usize]))
                        .map(|_| {
                            let (mr, at) = ([5, 6, 255][pick.below(3) as usize], pick.below(0x8_0000));
                            let length = if pick.chance(25) { 0 } else { pick.below(2000) };
                            b.sge(mr, at, length)
                        })
                        .collect();
                    let total: u64 = list.iter().map(|g| u64::from(g.length)).sum();
                    let offset = pick.below(total + 1);
                    let length = (1 + pick.below(1500)).min(total - offset);
                    let bad = pick.chance(8) && length > 0;
                    if bad {
                        list.iter_mut().for_each(|g| g.lkey ^= 1);
                    }
                    n += 1;
                    let opcode = pick.below(12);
                    let mut p =
                        Packet { opcode, offset, qp: pick.below(64), ..Packet::new(n, length, &list) };
                    if bad {
                        faults.push((p.qp, p.wqe, WcStatus::LocProtErr as u64));
                    } else if pick.chance(30) {
                        p = Packet { opcode, qp: p.qp, ..Packet::inline(n, pick.below(221)) };
                    }
                    expected.push_back((Some(p.clone()), bad));
                    b.push(&p);
                }
                3..=6 if !b.reads.is_empty() => {
                    let i = pick.below(b.reads.len() as u64) as usize;
                    b.deliver(i, false);
                }
                7 if !b.slots.is_empty() => {
                    let slot = b.slots.pop_front().unwrap();
                    let next = loop {
                        let (p, bad) = expected.pop_front().expect("something was expected");
                        if !bad {
                            break p;
                        }
                    };
                    let Some(p) = next else {
                        assert!(slot.fence, "seed {seed}");
                        continue;
                    };
                    assert_eq!((slot.qp, slot.psn, slot.length), (p.qp, p.psn, p.length), "seed {seed}");
                    let bytes = b.take(&slot);
                    assert!(bytes == b.payload(&p), "seed {seed}: payload of {p:?}");
                    sent += 1;
                }
                _ => b.clock(),
            }
        }
        faults.truncate(b.faults.len());
        assert!(faults.len() > 2, "seed {seed}");
        assert_eq!(b.faults, faults, "seed {seed}");
    }
}

#[test]
fn a_packet_costs_one_clock_and_one_per_sge() {
    let mut b = Bench::new();
    for sges in 1..=4u64 {
        let list: Vec<Sge> = (0..sges).map(|i| b.sge(5, i, 16)).collect();
        b.taken.clear();
        for i in 0..6 {
            b.queue.push_back(Some(Packet::new(i, 16 * sges, &list)));
        }
        b.deliver_all();
        let gaps: Vec<u64> = b.taken.windows(2).map(|w| w[1] - w[0]).collect();
        assert_eq!(gaps, vec![1 + sges; 5], "{sges} SGEs");
        while let Some(slot) = b.slots.pop_front() {
            b.take(&slot);
        }
    }
}

#[test]
fn inline_data_costs_a_clock_and_one_per_word_of_the_buffer_and_one_to_move_down_a_lane() {
    let small = [(1, 1), (2, 1), (3, 2), (64, 9), (220, 29)];
    let broad = [(1, 2), (58, 2), (59, 3), (64, 3), (220, 5)];
    for (c, (length, words)) in
        small.map(|s| (Config::small(), s)).into_iter().chain(broad.map(|b| (wide(), b)))
    {
        let mut b = Bench::at(&c);
        b.taken.clear();
        // its first byte at lane 6
        (0..6).for_each(|i| b.push(&Packet { opcode: 0x0a, ..Packet::inline(i, length) }));
        (0..8).for_each(|_| b.settle());
        let gaps: Vec<u64> = b.taken.windows(2).map(|w| w[1] - w[0]).collect();
        assert_eq!(gaps, vec![1 + words; 5], "{length} bytes by words of {}", c.data_bytes);
        while let Some(slot) = b.slots.pop_front() {
            b.take(&slot);
        }
    }
}

#[test]
fn the_emitted_text_is_clean() {
    for c in [Config::small(), wide()] {
        lint(&elaborate(&Gather(c)).unwrap());
    }
    for c in [Config::small(), wide()] {
        lint(&elaborate(&TransmitBuffer(c)).unwrap());
    }
}

#[test]
fn a_raw_frame_lies_in_lane_0_and_is_told_to_be_on_its_way_before_it_leaves() {
    for c in [Config::small(), wide()] {
        let mut b = Bench::at(&c);
        let lists: Vec<Vec<Sge>> = vec![
            vec![b.sge(5, 1, 60)],
            vec![b.sge(5, 3, 8191)],
            vec![b.sge(5, 3, 4096)],
            vec![b.sge(5, 3, 4097), b.sge(6, 5, 9), b.sge(255, 7, 4000)],
            (0..16)
                .map(|i| b.sge([5, 6, 255][i % 3], 100 * i as u64, if i == 5 { 5000 } else { 21 }))
                .collect(),
        ];
        for (n, list) in lists.iter().enumerate() {
            let length = list.iter().map(|g| u64::from(g.length)).sum();
            let p = Packet { raw: true, ..Packet::new(n as u64, length, list) };
            b.push(&p);
            for _ in 0..3 {
                b.settle();
            }
            assert!(b.faults.is_empty() && b.slots.is_empty(), "its reads are under way");
            b.deliver_all();
            assert_eq!(b.faults.drain(..).collect::<Vec<_>>(), [(7, n as u64, 0)], "{}", c.name);
            let slot = b.slots.pop_front().expect("it leaves");
            assert_eq!(slot.address % b.width, 0);
            assert_eq!(b.take(&slot), b.payload(&p), "{}: list {n}", c.name);
        }
        for length in (14..=80).chain([219, 220]) {
            let p = Packet { raw: true, ..Packet::inline(length, length) };
            assert_eq!(b.one(&p), b.payload(&p), "{}: {length} bytes inline", c.name);
        }
        b.faults.clear();
        // acknowledge takes nothing: the frame waits; nothing is counted, nothing told of one that RoCE sends
        b.s.poke("fault_ready", 0);
        b.push(&Packet { raw: true, ..Packet::new(1, 60, &[b.sge(5, 1, 60)]) });
        b.deliver_all();
        assert!(b.slots.is_empty() && b.faults.is_empty());
        b.s.poke("fault_ready", 1);
        b.settle();
        let slot = b.slots.pop_front().expect("it leaves");
        b.take(&slot);
        assert_eq!((b.faults.len(), b.rejects.len()), (1, 0));
        let p = Packet::new(1, 60, &[b.sge(5, 1, 60)]);
        b.one(&p);
        assert_eq!(b.faults.len(), 1);
        // one that cannot be read is a fault and no frame
        b.push(&Packet { raw: true, ..Packet::new(2, 60, &[b.sge(4, 1, 60)]) });
        b.deliver_all();
        assert_eq!((b.slots.len(), b.faults[1].2), (0, WcStatus::LocProtErr as u64));
        assert_eq!((b.rejects.len(), b.s.peek("idle")), (1, 1));
    }
}
