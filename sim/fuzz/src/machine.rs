//! One card with its host, a wire and a peer; what an input does to it; and what must hold afterwards.
//!
//! ```text
//!  page 1, PD 1: QP 1 <──── IPv4 ────> QP 0x11 of the plain-Rust endpoint, which answers
//!                QP 2 <─ IPv6, VLAN ─> nobody: what an input sends it
//!  page 2, PD 2: QP 3 <──── IPv4 ────> QP 0x13: nobody touches it before the end
//! ```
//! In: [`Machine::start`] brings the card up; [`Machine::run`] carries out an input and judges. Out: a [`Fault`], or
//! nothing. Deterministic. After every input, however bad:
//!
//! * the card comes to rest within [`CLOCKS`], and answers: reads of registers, a command, a WRITE to QP 3;
//! * it has changed no byte that is not its to change, and has not touched an address that is not mapped;
//! * nobody broke a rule of PCI Express, of the line or of the RTL's assertions but on request;
//! * each frame that came alone was counted as refused, or had an effect, or is refused when it comes again;
//! * each command has its response.
//!
//! What makes memory the input's own (commands that create, registers of the command queue and of MSI-X, forged data)
//! lifts the second promise and the WRITE to QP 3; but for one input of [`THOROUGH`], after which a function level reset
//! makes everything good.

use crate::{
    frame::{self, Aim, Golden},
    host::{
        ALL, COMMANDS, COMMANDS_LOG, CQ_LOG, CQS, EVENTS, EVENTS_LOG, FOREIGN, HALF, HIGH, Half, HostMemory,
        LOW, OPEN, QUEUE_LOG, REGIONS, RESPONSES, RQS, SQ_STRIDE_LOG, SQS, rq_stride_log,
    },
    input::{Action, MOST, actions},
};
use contract::{
    AtomicOperands, CommandEntry, CommandOpcode, CommandResponse, CommandStatus, CqEntry, EqEntry, MrEntry,
    PathMtu, PortConfig, QpAddresses, QpContext, QpPath, QpQueues, QpRights, QpState, Reject, SendWqe, Sge,
    StageCounter, WcStatus, context::words, doorbell, register, ring::phase, wire::psn_add,
};
use pcie_sim::{
    Event, InjectedFault, Injection, Permissions, Piece, RawTlp, Select, Time,
    config::Enumeration,
    judge::Side as Culprit,
    tlp::{Completion, MemRead, MemWrite, Status},
};
use peer::{Endpoint, Landing, QpParams, RecvWr, SendOp, SendWr};
use sim::{
    card::CardModel,
    function::MESSAGE_ADDRESS,
    room::{Room, RoomConfig},
    story::{MS, US, parse},
    wire::{Faults, Side},
};
use std::{fmt, net::Ipv4Addr, sync::Arc};

/// Core clocks in which a card comes to rest after an input; those slept through do not count.
pub const CLOCKS: u64 = 400_000;
/// Every so manieth input that may have ruined everybody's objects ends with a function level reset and everything set up
/// again, which takes as long as three inputs.
const THOROUGH: u32 = 8;
/// Tags of requests that no driver sends: the root's own are below.
const FORGED_TAG: u32 = 32;
/// The peer's memory.
const PEER_KEY: u32 = 0x0000_0511;
const PEER_VA: u64 = 0x7000_0000;
const PEER_BYTES: usize = 0x1_0000;
/// PSNs begin here: the wrap is near.
const PSN: u32 = 0xff_fff0;
/// VLAN of QP 2.
const VLAN: u16 = 5;
const CARD_IPV6: u128 = 0xfd << 120 | 1;
const PEER_IPV6: u128 = 0xfd << 120 | 2;
const CARD_MAC: u64 = 0x0200_0000_000a;
const PEER_MAC: u64 = 0x0200_0000_000b;
const CARD_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const PEER_IP: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
/// Receives that are posted in advance.
const RECEIVES: u16 = 8;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault(pub String);

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Fault {}

impl From<sim::Error> for Fault {
    fn from(error: sim::Error) -> Self {
        Fault(error.to_string())
    }
}

fn broken<T>(what: impl Into<String>) -> Result<T, Fault> {
    Err(Fault(what.into()))
}

/// Where an end of the machine stands.
#[derive(Clone, Copy, Default)]
struct Queue {
    posted: u16,
    receives: u16,
    expected: u32,
    sent: u32,
}

/// See the head of this file.
pub struct Machine {
    room: Room,
    memory: Arc<HostMemory>,
    golden: Golden,
    queues: [Queue; 4],
    producer: u16,
    /// Sights of the room that were looked at.
    seen: usize,
    /// Frames that went to the card since it came up, and those the wire kept.
    arrived: u64,
    /// The input may make the card write anywhere it names.
    owns_memory: bool,
    /// It has forged answers: a read may wait for its own, and what came of it is the forger's.
    forged: bool,
    /// It has changed the registers of the command queue, or taken away what commands need.
    commands_spoilt: bool,
    /// It has switched bus mastering off.
    mute: bool,
    /// What was done.
    story: Vec<String>,
}

impl Machine {
    /// A card that is up, everything connected.
    ///
    /// # Errors
    /// The card does not come up, or the captures cannot be read.
    pub fn start(model: &CardModel) -> Result<Self, Fault> {
        let golden = Golden::load().map_err(|error| Fault(format!("read the captures: {error}")))?;
        let mut config = RoomConfig::example(1, 1);
        config.cards[0].root.host_timeout = Time::us(50);
        let mut room = Room::new(model, config)?;
        let mut peer = Endpoint::new(PEER_MAC, PEER_IP);
        for qpn in [0x11, 0x13] {
            peer.create_qp_numbered(qpn, 1).expect("the peer is new");
        }
        let bytes = vec![0x5a; PEER_BYTES];
        let rights = ALL | contract::verbs::access::INVALIDATE;
        let region = peer::Region { pd: 1, va: PEER_VA, access: rights, bytes };
        peer.register_as(PEER_KEY, region).expect("the peer is new");
        room.attach_peer(peer);
        room.power_on()?;
        room.remember_frames();
        let memory = Arc::new(HostMemory::default());
        for (iova, base) in [(LOW, 0), (HIGH, HALF)] {
            let half = Half { memory: memory.clone(), base };
            room.host(0, |root, _| root.memory_mut().map(iova, HALF as u64, Permissions::BOTH, half, 0))
                .expect("the halves are apart");
        }
        let mut machine = Self {
            room,
            memory,
            golden,
            queues: [Queue::default(); 4],
            producer: 0,
            seen: 0,
            arrived: 0,
            owns_memory: false,
            forged: false,
            commands_spoilt: false,
            mute: false,
            story: Vec::new(),
        };
        machine.bring_up()?;
        machine.settle()?;
        Ok(machine)
    }

    /// The card's RTL, to see what was used of it.
    pub fn top(&self) -> &verilated::Instance {
        self.room.cards()[0].top()
    }

    /// Clocks that were simulated.
    pub fn clocks(&self) -> u64 {
        self.room.cards()[0].clocks()
    }

    /// What the input has done, one line each.
    pub fn story(&self) -> &[String] {
        &self.story
    }

    /// From now on the wire loses what goes to the card: the judge must see that frames vanish.
    pub fn deafen(&mut self) {
        self.room.change_wire(|wire, _| wire.set_faults(Side::B, Faults::loss(1.0)));
    }

    // ---- bringing it up

    fn bring_up(&mut self) -> Result<(), Fault> {
        self.configure();
        self.memory.put(0, &vec![0; HALF]);
        let mut vector = [0; 16];
        vector[..8].copy_from_slice(&MESSAGE_ADDRESS.to_le_bytes());
        self.write(4, 0, &vector);
        self.enable_commands();
        for region in REGIONS {
            let entry = MrEntry {
                valid: true,
                tag: region.tag,
                access: region.rights,
                pd: region.pd,
                va: region.address(),
                length: region.length as u64,
                iova: region.address(),
                ..MrEntry::default()
            };
            self.must(CommandOpcode::CreateMr, region.index, words(&entry.pack()), |_| {})?;
        }
        let events = EqEntry { valid: true, log_depth: EVENTS_LOG, vector: 0, base: LOW + EVENTS as u64 };
        self.must(CommandOpcode::CreateEq, 0, words(&events.pack()), |_| {})?;
        for cq in 0..3u32 {
            let page = 1 + (cq / 2) as u16;
            let base = LOW + (CQS + cq as usize * 0x800) as u64;
            let entry = CqEntry { valid: true, log_depth: CQ_LOG, page, eqn: 0, base, ..CqEntry::default() };
            self.must(CommandOpcode::CreateCq, cq, words(&entry.pack()), |_| {})?;
        }
        for qpn in 1..=3 {
            self.queues[qpn as usize] = Queue { expected: PSN, sent: PSN, ..Queue::default() };
            self.must(CommandOpcode::CreateQp, qpn, context(qpn, QpState::Reset).to_words(), |entry| {
                entry.reset_all = true;
            })?;
            for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
                self.must(CommandOpcode::ModifyQp, qpn, context(qpn, state).to_words(), |entry| {
                    entry.init_receive = state == QpState::Rtr;
                    entry.init_send = state == QpState::Rts;
                })?;
            }
            for n in 0..RECEIVES {
                self.post_receive(qpn, &receive_list(1, 1024, 0x400 * u64::from(n % 4)), n + 1 == RECEIVES);
            }
        }
        for qpn in [1, 3] {
            let peer = self.room.peer();
            let card = peer::Address { mac: CARD_MAC, ip: CARD_IP.into(), qpn };
            peer.modify(0x10 + qpn, QpState::Reset).expect("always legal");
            let params = QpParams {
                path_mtu: PathMtu::Mtu1024,
                rq_psn: PSN,
                sq_psn: PSN,
                access: ALL,
                timeout: 8,
                retry_cnt: 2,
                rnr_retry: 2,
                max_rd_atomic: 4,
                max_dest_rd_atomic: 4,
                ..QpParams::to(card)
            };
            peer.connect(0x10 + qpn, params).expect("in RESET");
            for wr_id in 0..64 {
                peer.post_recv(0x10 + qpn, RecvWr { wr_id, landing: Landing::Owned(4096) })
                    .expect("connected");
            }
        }
        for cq in 0..2u64 {
            self.ring(1, doorbell::CQ_OFFSET, cq | 1 << 24);
        }
        self.ring(0, doorbell::EQ_OFFSET, 1 << 24);
        Ok(())
    }

    /// Configuration space as firmware and driver leave it.
    fn configure(&mut self) {
        let plan = Enumeration { bus_master: true, ..Enumeration::default() };
        self.room.host(0, |root, now| {
            root.enumerate(now, &plan);
            root.config_write(now, 0xa3, &[0x80]);
        });
    }

    fn enable_commands(&mut self) {
        for (offset, value) in [
            (register::COMMAND_ENABLE, 0),
            (register::COMMAND_BASE, LOW + COMMANDS as u64),
            (register::RESPONSE_BASE, LOW + RESPONSES as u64),
            (register::COMMAND_LOG_DEPTH, COMMANDS_LOG.into()),
            (register::COMMAND_PRODUCER, 0),
            (register::COMMAND_ENABLE, 1),
        ] {
            let bytes = value.to_le_bytes();
            let long = matches!(offset, register::COMMAND_BASE | register::RESPONSE_BASE);
            self.write(0, offset, if long { &bytes } else { &bytes[..4] });
        }
        self.memory.put(RESPONSES, &[0; 0x1000]);
        self.producer = 0;
    }

    fn must(
        &mut self,
        opcode: CommandOpcode,
        index: u32,
        data: [u64; 16],
        adjust: impl FnOnce(&mut CommandEntry),
    ) -> Result<[u64; 16], Fault> {
        let mut entry =
            CommandEntry { opcode: opcode.code(), index, word_mask: 0xffff, ..Default::default() };
        adjust(&mut entry);
        let response = self.command(&entry.with_data(&data).pack())?;
        match response {
            Some(response) if response.status == CommandStatus::Ok.code() => Ok(response.data()),
            other => broken(format!("{} of object {index}: {other:?}", opcode.name())),
        }
    }

    // ---- what a host does

    fn write(&mut self, bar: u8, offset: u32, bytes: &[u8]) {
        self.room.host(0, |root, now| root.mmio_write(now, bar, offset.into(), bytes));
    }

    fn ring(&mut self, page: u32, offset: u32, value: u64) {
        self.write(2, page * doorbell::DEFAULT_STRIDE + offset, &value.to_le_bytes());
    }

    fn read(&mut self, offset: u32, length: usize) -> Result<Vec<u8>, Fault> {
        let token = self.room.host(0, |root, now| root.mmio_read(now, 0, offset.into(), length));
        let limit = self.room.now() + MS;
        let mut answer = None;
        self.room.run_until(limit, |room| {
            answer = room.host(0, |root, _| root.take_read(token));
            answer.is_some()
        })?;
        match answer {
            Some(Ok(bytes)) => Ok(bytes),
            other => broken(format!("a read of BAR0 at {offset:#x}: {other:?}")),
        }
    }

    fn counters(&mut self, first: u32, count: usize) -> Result<Vec<u64>, Fault> {
        let bytes = self.read(first, 8 * count)?;
        Ok(bytes.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes"))).collect())
    }

    fn rejects(&mut self) -> Result<u64, Fault> {
        Ok(self.counters(register::REJECT_COUNTERS, Reject::ALL.len())?.iter().sum())
    }

    /// One command; its response, if it comes before everything rests.
    fn command(&mut self, entry: &[u8; 256]) -> Result<Option<CommandResponse>, Fault> {
        let index = self.producer;
        let slot = usize::from(index) % (1 << COMMANDS_LOG) * 256;
        self.memory.put(COMMANDS + slot, entry);
        self.producer = index.wrapping_add(1);
        self.write(0, register::COMMAND_PRODUCER, &u32::from(self.producer).to_le_bytes());
        let memory = self.memory.clone();
        let valid = |memory: &HostMemory| {
            memory.get(RESPONSES + slot + 255, 1)[0] & 1 == u8::from(phase(index.into(), COMMANDS_LOG))
        };
        let limit = self.room.now() + MS;
        self.room.run_until(limit, |room| valid(&memory) || room.is_quiet())?;
        let bytes = self.memory.get(RESPONSES + slot, 256);
        Ok(valid(&self.memory).then(|| CommandResponse::read(&bytes)).flatten())
    }

    /// A longer list repeats these four SGEs.
    fn post_receive(&mut self, qpn: u32, wqe: &[u8; 64], ring: bool) {
        let queue = &mut self.queues[qpn as usize];
        let stride = 1 << rq_stride_log(qpn);
        let slot = usize::from(queue.receives) % (1 << QUEUE_LOG) * stride;
        queue.receives = queue.receives.wrapping_add(1);
        let producer = queue.receives;
        self.memory.put(RQS + qpn as usize * 0x1000 + slot, &wqe.repeat(stride / 64));
        if ring {
            self.ring(page(qpn), doorbell::RQ_OFFSET, u64::from(qpn) | u64::from(producer) << 32);
        }
    }

    /// Lets time pass until nothing is under way, or for a while.
    fn settle(&mut self) -> Result<(), Fault> {
        let limit = self.room.now() + 30 * US;
        self.room.run_until(limit, |room| room.is_quiet())?;
        self.look();
        Ok(())
    }

    /// Learns from the wire what the QPs send and expect.
    fn look(&mut self) {
        for sight in &self.room.sights()[self.seen..] {
            if sight.from == Side::B {
                self.arrived += u64::from(!sight.lost);
                continue;
            }
            let Some(packet) = parse(&sight.frame.bytes) else { continue };
            let Some(queue) = self.queues.get_mut(packet.bth.dest_qp.wrapping_sub(0x10) as usize) else {
                continue;
            };
            match packet.aeth {
                None if packet
                    .opcode()
                    .is_some_and(|opcode| opcode.row().kind != contract::opcode::Kind::Response) =>
                {
                    queue.sent = packet.bth.psn;
                }
                None => {}
                // an ACK names the last one taken, a NAK the one missing
                Some(aeth) => queue.expected = psn_add(packet.bth.psn, u32::from(aeth.syndrome < 0x20)),
            }
        }
        self.seen = self.room.sights().len();
    }

    // ---- an input

    /// Carries out an input and judges.
    ///
    /// # Errors
    /// A promise was broken.
    pub fn run(&mut self, input: &[u8]) -> Result<(), Fault> {
        for action in actions(input).into_iter().take(MOST) {
            match action.kind() {
                0 => self.frame(&action)?,
                1 => self.work(&action)?,
                2 => self.receive(&action)?,
                3 => self.access(&action)?,
                4 => self.order(&action)?,
                5 => self.request(&action)?,
                6 => self.completion(&action)?,
                7 => self.wait(&action)?,
                8 => self.reconfigure(&action)?,
                _ => self.peer_asks(&action)?,
            }
        }
        self.end(contract::crc::fcs(input).is_multiple_of(THOROUGH))
    }

    fn tell(&mut self, what: impl FnOnce() -> String) {
        let now = self.room.now() / 1000;
        self.story.push(format!("{now:>9} ns {}", what()));
    }

    fn aim(&self, qpn: u32) -> Aim {
        let queue = self.queues[qpn as usize];
        Aim {
            qpn,
            expected: queue.expected,
            sent: queue.sent,
            ipv6: (qpn == 2).then_some((PEER_IPV6, CARD_IPV6, VLAN)),
            ipv4: (PEER_IP.to_bits(), CARD_IP.to_bits()),
            mac: (PEER_MAC, CARD_MAC),
        }
    }

    /// Kind 0: a frame from the wire.
    fn frame(&mut self, action: &Action<'_>) -> Result<(), Fault> {
        let qpn = 1 + u32::from(action.bit(2, 6));
        let (bytes, expected) = frame::frame(&self.golden, action, &self.aim(qpn));
        self.tell(|| match parse(&bytes) {
            Some(packet) => format!("frame of {} bytes: {packet}", bytes.len()),
            None => format!("frame of {} bytes: {:02x?}", bytes.len(), &bytes[..bytes.len().min(64)]),
        });
        let queue = &mut self.queues[qpn as usize];
        if expected {
            queue.expected = psn_add(queue.expected, 1);
        }
        if action.bit(2, frame::BURST) {
            return Ok(self.room.inject_raw(Side::B, bytes)?);
        }
        self.settle()?;
        if !self.room.is_quiet() || self.is_seen(&bytes)? {
            return Ok(());
        }
        // It had no effect, and no counter knows it. If it was taken all the same, it is a duplicate now.
        if !self.room.is_quiet() || self.is_seen(&bytes)? {
            return Ok(());
        }
        broken("a frame had no effect twice, and no reject counter counts it")
    }

    /// Sends a frame alone; whether it was counted as refused or had an effect from outside.
    fn is_seen(&mut self, bytes: &[u8]) -> Result<bool, Fault> {
        let before = self.rejects()?;
        self.settle()?;
        let outside = |machine: &Self| {
            let sent = machine.room.sights().iter().filter(|sight| sight.from == Side::A).count();
            (machine.memory.writes(), sent, machine.room.cards()[0].due())
        };
        let was = outside(self);
        self.room.inject_raw(Side::B, bytes.to_vec())?;
        self.settle()?;
        let seen = outside(self) != was || self.rejects()? != before;
        self.settle()?;
        Ok(seen)
    }

    /// Kind 1: a send WQE. 1: bits 0 QP 2, 1 no doorbell, 2 the next action follows at once; 2: opcode; 3: flags; 4: SGEs;
    /// 5, 6: bytes; 7: local key and its offset; 8: remote key; 9, 10: remote offset; 11: added to the index; 12...: edits.
    fn work(&mut self, action: &Action<'_>) -> Result<(), Fault> {
        let qpn = 1 + u32::from(action.bit(1, 0));
        let length = u32::from(action.word(5)) % 0x3000;
        let sges = action.byte(4) % 5;
        let queue = &mut self.queues[qpn as usize];
        let index = queue.posted.wrapping_add(action.byte(11).into());
        let opcode = action.byte(2);
        let atomic = matches!(opcode, 5 | 6);
        let length = if atomic { 8 } else { length };
        let (remote_addr, rkey) = match action.byte(8) {
            0 => (PEER_VA, PEER_KEY),
            other => (frame::base(other), frame::key(other)),
        };
        let head = SendWqe {
            opcode,
            signaled: !action.bit(3, 0),
            solicited: action.bit(3, 1),
            fence: action.bit(3, 2),
            inline: action.bit(3, 3),
            num_sge: if atomic { 1 } else { sges },
            imm: 0x0403_0201,
            remote_addr: remote_addr + u64::from(action.word(9)) * if atomic { 8 } else { 1 },
            rkey,
            length,
            index,
            qpn,
        };
        let mut wqe = [0; 128];
        wqe[..32].copy_from_slice(&head.pack());
        let share = length / u32::from(sges.max(1));
        for i in 0..u32::from(head.num_sge) {
            let last = i + 1 == u32::from(head.num_sge);
            let sge = Sge {
                addr: frame::base(action.byte(7)) + u64::from(i * share),
                length: if last { length - share * i } else { share },
                lkey: frame::key(action.byte(7)),
            };
            wqe[32 + 16 * i as usize..][..16].copy_from_slice(&sge.pack());
        }
        if atomic {
            wqe[48..64].copy_from_slice(&AtomicOperands { compare: 0x5a5a, swap_or_add: 7 }.pack());
        }
        action.edit(12, &mut wqe);
        let slot = (usize::from(queue.posted) % (1 << QUEUE_LOG)) << SQ_STRIDE_LOG;
        queue.posted = queue.posted.wrapping_add(1);
        let producer = queue.posted;
        self.memory.put(SQS + qpn as usize * 0x800 + slot, &wqe);
        self.tell(|| format!("send WQE of QP {qpn}: {:?}", SendWqe::read(&wqe).unwrap_or_default()));
        if !action.bit(1, 1) {
            self.ring(page(qpn), doorbell::SQ_OFFSET, u64::from(qpn) | u64::from(producer) << 32);
        }
        if action.bit(1, 2) { Ok(()) } else { self.settle() }
    }

    /// Kind 2: a receive WQE. 1: bits as above; 2: SGEs; 3, 4: bytes of each; 5: key; 6...: edits.
    fn receive(&mut self, action: &Action<'_>) -> Result<(), Fault> {
        let qpn = 1 + u32::from(action.bit(1, 0));
        let mut wqe = receive_list(action.byte(2) % 5, u32::from(action.word(3)) % 0x1000, 0);
        if action.byte(5) != 0 {
            let sge = Sge {
                addr: frame::base(action.byte(5)),
                length: action.word(3).into(),
                lkey: frame::key(action.byte(5)),
            };
            wqe[..16].copy_from_slice(&sge.pack());
        }
        action.edit(6, &mut wqe);
        self.tell(|| format!("receive WQE of QP {qpn}: {:?}", Sge::read(&wqe).unwrap_or_default()));
        self.post_receive(qpn, &wqe, !action.bit(1, 1));
        if action.bit(1, 2) { Ok(()) } else { self.settle() }
    }

    /// Kind 3: an access to a BAR, legal on PCI Express. 1: bits 0, 1 BAR, 2 write, 3 the next follows at once, 4 offset
    /// as it is, not that of a doorbell, a register or a vector; 2, 3: offset; 4: byte enables; 5: doublewords; 6...: data.
    fn access(&mut self, action: &Action<'_>) -> Result<(), Fault> {
        let bar = 2 * (action.byte(1) & 3).min(2);
        let at = u32::from(action.word(2));
        let offset = match (bar, action.bit(1, 4)) {
            (0, false) => register::REGISTERS[at as usize % register::REGISTERS.len()].offset,
            (2, false) => (at >> 8 & 3) * doorbell::DEFAULT_STRIDE + (at & 0x1c),
            (2, true) => at << 2,
            (4, false) => at % 0x100,
            (4, true) => at % 0x1000,
            _ => at,
        } & !3;
        let bytes = [0x1_0000, 0x4_0000, 0x1000][usize::from(bar / 2)];
        let most = (0x1000 - offset % 0x1000).min(bytes - offset % bytes) / 4;
        let dwords = (u32::from(action.byte(5)) % 64 + 1).min(most) as u16;
        let (first, last) = (action.byte(4) & 15, action.byte(4) >> 4);
        let (first_be, last_be) = match dwords {
            1 => (first, 0),
            _ => ([8, 12, 14, 15][usize::from(first & 3)], [1, 3, 7, 15][usize::from(last & 3)]),
        };
        let address = u64::from(offset % bytes);
        let write = action.bit(1, 2);
        self.tell(|| {
            let what = if write { "write" } else { "read" };
            format!("{what} of {dwords} DW at {address:#x} of BAR{bar}, enables {first_be:04b} {last_be:04b}")
        });
        if write {
            let data = action.0.get(6..).filter(|data| !data.is_empty()).unwrap_or(&[0]);
            let payload = data.iter().cycle().take(usize::from(dwords) * 4).copied().collect();
            let attr = Default::default();
            let write = MemWrite { attr, requester: 0, tag: 0, address, first_be, last_be, payload };
            self.room.host(0, |root, now| root.mmio_send(now, bar, write));
            let end = offset + u32::from(dwords) * 4;
            let touches = |from: u32, to: u32| offset < to && from < end;
            let commands = bar == 0 && touches(register::COMMAND_BASE, register::COMMAND_ENABLE + 4);
            self.commands_spoilt |= commands;
            // doorbells of page 2 are the other process's to ring
            let other = bar == 2 && touches(2 * doorbell::DEFAULT_STRIDE, 3 * doorbell::DEFAULT_STRIDE);
            self.owns_memory |= commands || bar == 4 || other;
        } else {
            let attr = Default::default();
            let read = MemRead { attr, requester: 0, tag: 0, address, dwords, first_be, last_be };
            let token = self.room.host(0, |root, now| root.mmio_read_enables(now, bar, read));
            if !action.bit(1, 3) {
                self.settle()?;
                if self.room.host(0, |root, _| root.take_read(token)).is_none() {
                    return broken("a read of a BAR has no answer");
                }
            }
        }
        if action.bit(1, 3) { Ok(()) } else { self.settle() }
    }

    /// Kind 4: a command. 1: opcode; 2: object; 3: bits 0 to 2 receive, send, everything anew, 3 the next action follows at
    /// once, 4 the mask is 5, 6; 7: context; 8: state, above 6 as it is; 9...: edits.
    fn order(&mut self, action: &Action<'_>) -> Result<(), Fault> {
        let state = QpState::from_code(action.byte(8)).unwrap_or(QpState::Rts);
        let data = match action.byte(7) % 6 {
            0 => context(1, state).to_words(),
            1 => context(2, state).to_words(),
            2 => words(
                &MrEntry {
                    valid: true,
                    tag: OPEN.tag,
                    access: ALL,
                    pd: 1,
                    va: OPEN.address(),
                    length: 0x1000,
                    iova: OPEN.address(),
                    ..MrEntry::default()
                }
                .pack(),
            ),
            3 => words(
                &CqEntry {
                    valid: true,
                    log_depth: CQ_LOG,
                    page: 1,
                    eqn: 0,
                    base: LOW + CQS as u64,
                    ..CqEntry::default()
                }
                .pack(),
            ),
            4 => words(
                &EqEntry { valid: true, log_depth: EVENTS_LOG, vector: 1, base: LOW + EVENTS as u64 }.pack(),
            ),
            _ => words(&PortConfig { mac: CARD_MAC, mtu: 4200 }.pack()),
        };
        let entry = CommandEntry {
            opcode: action.byte(1),
            index: action.byte(2).into(),
            sequence: self.producer,
            word_mask: if action.bit(3, 4) { action.word(5) } else { 0xffff },
            init_receive: action.bit(3, 0),
            init_send: action.bit(3, 1),
            reset_all: action.bit(3, 2),
            ..CommandEntry::default()
        };
        let mut bytes = entry.with_data(&data).pack();
        action.edit(9, &mut bytes);
        let entry = CommandEntry::unpack(&bytes);
        use CommandOpcode::{
            CreateCq, CreateEq, CreateMr, CreateQp, ModifyQp, Nop, QueryCq, QueryMr, QueryQp,
        };
        let opcode = CommandOpcode::from_code(entry.opcode);
        self.tell(|| format!("command {opcode:?}: {entry:x?}"));
        self.owns_memory |= !matches!(opcode, None | Some(Nop | QueryCq | QueryMr | QueryQp));
        // The card trusts the driver that rings and shares lie where they may.
        let trusted = matches!(opcode, Some(CreateCq | CreateEq | CreateMr | CreateQp | ModifyQp));
        let before = self.commands_spoilt || self.mute || self.forged;
        let response = self.command(&bytes)?;
        if action.bit(3, 3) {
            return Ok(());
        }
        self.settle()?;
        if response.is_none() && !before && !trusted && self.room.is_quiet() {
            return broken("a command has no response");
        }
        Ok(())
    }

    /// Kind 5: a TLP of any kind to a BAR. 1: bits 0, 1 BAR, 3 the next action follows at once; 2: Fmt and Type; 3:
    /// attributes; 4: Length; 5: byte enables; 6: tag; 7, 8: offset; 9...: edits of the header.
    fn request(&mut self, action: &Action<'_>) -> Result<(), Fault> {
        let bar = 2 * (action.byte(1) & 3).min(2);
        let base = Enumeration::default().bars[usize::from(bar / 2)];
        let address = base + u64::from(action.word(7) & 0xfffc);
        let tag = FORGED_TAG + u32::from(action.byte(6)) % (256 - FORGED_TAG);
        let first =
            u32::from(action.byte(2)) << 24 | u32::from(action.byte(3)) << 12 | u32::from(action.byte(4));
        let mut header =
            [first, tag << 8 | u32::from(action.byte(5)), (address >> 32) as u32, address as u32];
        let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_be_bytes()).collect();
        action.edit(9, &mut bytes);
        for (word, bytes) in header.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_be_bytes(bytes.try_into().expect("4 bytes"));
        }
        header[1] |= FORGED_TAG << 8;
        // at most 256 bytes, as Max_Payload_Size says
        let dwords = match header[0] & 0x3ff {
            0 => 64,
            dwords => dwords.min(64),
        };
        header[0] = header[0] & !0x3ff | dwords;
        let payload = if header[0] >> 30 & 1 == 1 { vec![0x11; dwords as usize * 4] } else { Vec::new() };
        self.tell(|| format!("TLP to BAR{bar}: {header:08x?}"));
        (self.owns_memory, self.commands_spoilt) = (true, true);
        self.room.host(0, |root, now| root.host_sends(now, bar, RawTlp { header, payload }));
        if action.bit(1, 3) { Ok(()) } else { self.settle() }
    }

    /// Kind 6: a completion that is wrong. 1: bits 0 out of nowhere, else an answer to a coming read, 3 the next action
    /// follows at once; 2: status or fault; 3: tag or which read; 4, 5: byte count; 6: lower address; 7: doublewords.
    fn completion(&mut self, action: &Action<'_>) -> Result<(), Fault> {
        if action.bit(1, 0) {
            let status =
                [Status::Successful, Status::UnsupportedRequest, Status::CompleterAbort, Status::ConfigRetry];
            let status = status[usize::from(action.byte(2) & 3)];
            let completion = Completion {
                attr: pcie_sim::Attributes { poisoned: action.bit(2, 2), ..Default::default() },
                completer: 0,
                status,
                byte_count: (action.word(4) % 4096).max(1),
                requester: if action.bit(2, 3) { 0x0200 } else { Enumeration::default().requester },
                tag: action.byte(3).into(),
                lower_address: action.byte(6) & 0x7f,
                payload: match status {
                    Status::Successful => vec![0x22; 4 * (1 + usize::from(action.byte(7) % 32))],
                    _ => Vec::new(),
                },
            };
            self.tell(|| format!("completion out of nowhere: {completion:x?}"));
            (self.owns_memory, self.forged) = (true, true);
            self.room.host(0, |root, now| root.host_completes(now, completion));
        } else {
            let fault = match action.byte(2) % 6 {
                0 => InjectedFault::Unsupported,
                1 => InjectedFault::Abort,
                2 => InjectedFault::ConfigRetry,
                3 => InjectedFault::Poison,
                4 => InjectedFault::Late(Time::us(5)),
                _ => InjectedFault::ByteCount(action.byte(4) as i8 as i16 | 1),
            };
            // what breaks the count leaves a tag to its time limit
            self.forged |= matches!(fault, InjectedFault::ConfigRetry | InjectedFault::ByteCount(_));
            self.commands_spoilt = true;
            let piece = [Piece::First, Piece::Last, Piece::Every][usize::from(action.byte(6) % 3)];
            let nth = 1 + u64::from(action.byte(3) % 8);
            self.tell(|| format!("read {nth} from now on meets {fault:?} at {piece:?}"));
            let rule = Injection::new(Select::Nth(nth), fault).on(piece).times(1);
            self.room.host(0, |root, _| root.inject(rule));
        }
        if action.bit(1, 3) { Ok(()) } else { self.settle() }
    }

    /// Kind 7: time passes: 1: its logarithm.
    fn wait(&mut self, action: &Action<'_>) -> Result<(), Fault> {
        let span = (64 << (action.byte(1) % 24)) * 1000u64;
        self.tell(|| format!("{} ns pass", span / 1000));
        let limit = self.room.now() + span;
        let most = self.clocks() + 50_000;
        self.room.run_until(limit, |room| room.cards()[0].clocks() > most)?;
        self.look();
        Ok(())
    }

    /// Kind 8: configuration space changes. 1: what; 2: to what; 3: bit 3 the next action follows at once.
    fn reconfigure(&mut self, action: &Action<'_>) -> Result<(), Fault> {
        let value = action.byte(2);
        match action.byte(1) % 5 {
            0 => {
                let on = value & 1 == 1;
                self.tell(|| format!("bus master {on}"));
                self.mute |= !on;
                self.commands_spoilt |= !on;
                self.room.host(0, |root, now| root.config_write(now, 4, &[2 | u8::from(on) << 2]));
            }
            1 => {
                self.tell(|| format!("MSI-X control {value:#04x}"));
                self.room.host(0, |root, now| root.config_write(now, 0xa3, &[value & 0xc0]));
            }
            2 => {
                self.tell(|| "function level reset".into());
                self.reset()?;
            }
            3 => {
                let plan = Enumeration {
                    bus_master: !self.mute,
                    max_payload: 128 << (value & 1),
                    max_read: 128 << (value >> 1 & 3),
                    rcb: 64 << (value >> 3 & 1),
                    extended_tag: value >> 4 & 1 == 1,
                    ..Enumeration::default()
                };
                self.tell(|| format!("{plan:x?}"));
                self.room.host(0, |root, now| root.enumerate(now, &plan));
            }
            _ => {
                let rate = f64::from(value & 3) / 4.0;
                self.tell(|| format!("the wire loses {rate}"));
                self.room.change_wire(|wire, _| wire.set_faults(Side::A, Faults::loss(rate)));
            }
        }
        if action.bit(3, 3) { Ok(()) } else { self.settle() }
    }

    /// Kind 9: the peer asks QP 1 for something. 1: bits 0 to 2 what, 3 the next action follows at once; 2, 3: bytes; 4: key; 5,
    /// 6: offset.
    fn peer_asks(&mut self, action: &Action<'_>) -> Result<(), Fault> {
        let length = usize::from(action.word(2)) % 0x2000;
        let (va, rkey) =
            (frame::base(action.byte(4)) + u64::from(action.word(5)), frame::key(action.byte(4)));
        let imm = Some(0x0102_0304);
        let op = match action.byte(1) & 7 {
            0 => SendOp::Send { imm: None },
            1 => SendOp::Send { imm },
            2 => SendOp::SendInv { rkey },
            3 => SendOp::Write { va, rkey, imm: None },
            4 => SendOp::Write { va, rkey, imm },
            5 => SendOp::Read { va, rkey, landing: Landing::Owned(length) },
            6 => SendOp::FetchAdd { va, rkey, add: 3, landing: Landing::Owned(8) },
            _ => SendOp::CompareSwap { va, rkey, compare: 1, swap: 2, landing: Landing::Owned(8) },
        };
        let data = if action.byte(1) & 7 < 5 { (0..length).map(|i| i as u8).collect() } else { Vec::new() };
        self.tell(|| format!("the peer asks for {op:x?}, {length} bytes"));
        // a QP of the peer that has failed refuses
        let _ = self.room.peer().post_send(0x11, SendWr::new(1, op, data));
        if action.bit(1, 3) { Ok(()) } else { self.settle() }
    }

    /// A function level reset, and everything set up again.
    fn reset(&mut self) -> Result<(), Fault> {
        self.room.host(0, |root, _| root.clear_injections());
        // What the peer still says is lost: nobody counts it.
        self.cut(1.0);
        self.settle()?;
        self.room.start_reset(0);
        let limit = self.room.now() + 200 * MS;
        let done = self.room.run_until(limit, |room| {
            room.attend();
            !room.is_resetting(0)
        })?;
        if !done {
            return broken("the card does not end its function level reset");
        }
        (self.mute, self.commands_spoilt, self.forged) = (false, false, false);
        self.arrived = 0;
        self.cut(0.0);
        self.bring_up()?;
        self.settle()
    }

    // ---- the end

    fn end(&mut self, thorough: bool) -> Result<(), Fault> {
        self.tell(|| "the end".into());
        self.room.host(0, |root, _| root.clear_injections());
        self.configure();
        // A producer index that went back has the card run through its ring for ever.
        if self.commands_spoilt {
            self.write(0, register::COMMAND_ENABLE, &[0; 4]);
        }
        // Nobody answers any more: every retry ends.
        self.cut(1.0);
        let (limit, most) = (self.room.now() + 1000 * 3600 * 1000 * MS, self.clocks() + CLOCKS);
        self.room.run_until(limit, |room| room.next_event().is_none() || room.cards()[0].clocks() > most)?;
        self.cut(0.0);
        self.look();
        if self.room.next_event().is_some() && !self.forged {
            return broken(format!("the card does not come to rest within {CLOCKS} clocks"));
        }
        if self.read(register::MAGIC, 4)? != register::MAGIC_VALUE.to_le_bytes() {
            return broken("the card has forgotten its name");
        }
        self.account()?;
        self.judge()?;
        let lawless = self.owns_memory || self.forged;
        if lawless && thorough {
            self.reset()?;
        } else if self.forged {
            return Ok(());
        }
        self.enable_commands();
        self.must(CommandOpcode::Nop, 0, [0; 16], |_| {})?;
        if !lawless || thorough {
            self.third_party()?;
        }
        self.judge()?;
        match self.memory.trespass() {
            Some(at) if !self.owns_memory => broken(format!(
                "the card has changed byte {at:#x} of the host's memory, which is not its own"
            )),
            _ => Ok(()),
        }
    }

    fn cut(&mut self, rate: f64) {
        for side in Side::BOTH {
            self.room.change_wire(|wire, _| wire.set_faults(side, Faults::loss(rate)));
        }
    }

    /// Every frame that reached the card is in a counter.
    fn account(&mut self) -> Result<(), Fault> {
        let rejects = self.counters(register::REJECT_COUNTERS, Reject::ALL.len())?;
        let good = self.counters(register::stage_counter(StageCounter::RxFrames), 1)?[0];
        let count = |reject: Reject| rejects[reject as usize];
        let known = good + count(Reject::BadFcs) + count(Reject::Runt) + count(Reject::BufferFull);
        if good > self.arrived || known < self.arrived {
            let arrived = self.arrived;
            return broken(format!("{arrived} frames arrived, {good} are counted as good, {known} in all"));
        }
        Ok(())
    }

    /// The peer writes to QP 3, which must not know what went on.
    fn third_party(&mut self) -> Result<(), Fault> {
        let data: Vec<u8> = (0..300u32).map(|i| (i * 5) as u8).collect();
        let at = FOREIGN.at + 0x123;
        let op = SendOp::Write { va: FOREIGN.address() + 0x123, rkey: FOREIGN.key(), imm: None };
        while self.room.peer().poll_cq().is_some() {}
        self.room.peer().post_send(0x13, SendWr::new(99, op, data.clone())).expect("QP 0x13 is connected");
        let mut done = None;
        let limit = self.room.now() + 10 * MS;
        self.room.run_until(limit, |room| {
            done = room.peer().poll_cq();
            done.is_some()
        })?;
        match done {
            Some(done) if done.status == WcStatus::Success => {}
            other => return broken(format!("a WRITE to the QP that nobody touched ends with {other:?}")),
        }
        if self.memory.get(at, data.len()) != data {
            return broken("a WRITE to the QP that nobody touched is acknowledged, but not placed");
        }
        self.memory.put(at, &data);
        self.settle()
    }

    /// Rules that were broken, things that should not have happened.
    fn judge(&mut self) -> Result<(), Fault> {
        if let Some(violation) = self.room.take_violations(0).first() {
            return broken(violation.to_string());
        }
        let forged = self.forged;
        // answers to requests that no driver sent
        let pardoned = |header: &[u32; 4]| {
            header[0] >> 24 & 0x1f == 0x0a && (forged || header[2] >> 8 & 0xff >= FORGED_TAG)
        };
        for violation in self.room.host(0, |root, _| root.take_violations()) {
            if violation.side == Culprit::Card && !pardoned(&violation.header) {
                return broken(violation.to_string());
            }
        }
        for event in self.room.take_events(0) {
            let named = match &event {
                Event::ReadFault { .. } | Event::WriteFault { .. } => self.owns_memory || self.forged,
                Event::ReadTimedOut { .. } | Event::PoisonedWrite { .. } => false,
                Event::CompletionOverflow { .. } | Event::ResetOverdue { .. } => false,
                _ => true,
            };
            if !named {
                return broken(format!("{event:?}"));
            }
        }
        Ok(())
    }
}

/// Doorbell page of a QP.
fn page(qpn: u32) -> u32 {
    1 + qpn / 3
}

/// A receive WQE of so many SGEs of the open region.
fn receive_list(sges: u8, length: u32, offset: u64) -> [u8; 64] {
    let mut wqe = [0; 64];
    for (i, place) in wqe.chunks_exact_mut(16).take(sges.into()).enumerate() {
        let addr = OPEN.address() + 0x2000 + offset + i as u64 * u64::from(length / 4);
        place.copy_from_slice(&Sge { addr, length, lkey: OPEN.key() }.pack());
    }
    wqe
}

/// The context of a QP in a state.
fn context(qpn: u32, state: QpState) -> QpContext {
    let v4 = |ip: Ipv4Addr| 0xffff_0000_0000 | u128::from(ip.to_bits());
    let ipv6 = qpn == 2;
    let share = 4;
    QpContext {
        rights: QpRights {
            state: state.code(),
            access: ALL,
            path_mtu: PathMtu::Mtu1024 as u8,
            valid: true,
            page: page(qpn) as u16,
            pd: page(qpn),
            pkey: 0xffff,
            min_rnr_timer: 1,
            timeout: 8,
            retry_cnt: 2,
            rnr_retry: 2,
            max_rd_atomic: 4,
            max_dest_rd_atomic: 4,
            tagged: ipv6,
            ipv6,
            rq_psn: PSN,
            sq_psn: PSN,
            vlan: if ipv6 { VLAN } else { 0 },
            ..QpRights::default()
        },
        path: QpPath {
            dest_mac: PEER_MAC,
            ttl: 64,
            src_mac: CARD_MAC,
            udp_source_port: 0xc000,
            dest_qpn: 0x10 + qpn,
            vlan_tag: if ipv6 { VLAN } else { 0 },
            ..QpPath::default()
        },
        queues: QpQueues {
            sq_base: LOW + (SQS + qpn as usize * 0x800) as u64,
            rq_base: LOW + (RQS + qpn as usize * 0x1000) as u64,
            sq_log_depth: QUEUE_LOG,
            sq_log_stride: SQ_STRIDE_LOG,
            rq_log_depth: QUEUE_LOG,
            rq_log_stride: rq_stride_log(qpn),
            send_cqn: if qpn == 3 { 2 } else { 0 },
            recv_cqn: if qpn == 3 { 2 } else { 1 },
            record_base: (qpn << share) as u16,
            record_log_size: share as u8,
            read_base: (qpn << 2) as u16,
            read_log_size: 2,
            response_base: (qpn << 2) as u16,
            response_log_size: 2,
        },
        addresses: QpAddresses {
            dest_gid: if ipv6 { PEER_IPV6 } else { v4(PEER_IP) },
            src_gid: if ipv6 { CARD_IPV6 } else { v4(CARD_IP) },
        },
    }
}
