//! A card as responder; the requester is played here, packet by packet, so that it can be as odd as it likes.
//!
//! In: request packets at side B, whenever the story wants. Out: what the card sends, in the order of the wire. Packets
//! are copies of a captured one with other fields.
#![allow(dead_code, missing_docs)]

use contract::{Opcode, wire::psn_add};
use host::{Access, AsyncEvent, Mr};
use peer::Packet;
use sim::{
    backend::lock,
    room::RoomConfig,
    story::{A, B, End, Story, seed, usual},
};
use std::{net::Ipv4Addr, time::Duration};

pub const THEM: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 2);
pub const START: u32 = 0xff_fff0;
pub const MTU: usize = 1024;

/// A card with a QP, memory that may be read and written, and a requester that has no card.
pub struct Library {
    pub story: Story,
    pub end: End,
    pub memory: Mr,
    pub template: Packet,
    /// Next PSN of the requester.
    pub psn: u32,
}

impl Library {
    pub fn open(name: &str, depth: u8) -> Library {
        let config = RoomConfig::example(1, sim::story::seed());
        Self::of(Story::begin(name, config, None), depth)
    }

    /// One that leaves no traces.
    pub fn quietly(name: &str) -> Library {
        Self::of(Story::unrecorded(name, RoomConfig::example(1, seed())), 4)
    }

    fn of(mut story: Story, depth: u8) -> Library {
        let host = story.start(0);
        let end = story.qp(host, |_| {});
        let mut attr = usual(THEM.into(), 7, end.psn, START);
        attr.access |= Access::REMOTE_READ | Access::REMOTE_WRITE;
        attr.max_dest_rd_atomic = depth;
        end.qp.connect_with(&attr).expect("connect");
        let rights = Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE;
        let memory = end.pd.allocate(1 << 20, rights).expect("allocate");
        let capture = include_bytes!("../../peer/tests/golden/rc_read_bw.pcap");
        let length = u32::from_le_bytes(capture[32..36].try_into().expect("four bytes")) as usize;
        let template = Packet::parse(&capture[40..40 + length]).expect("a READ request");
        Library { story, end, memory, template, psn: START }
    }

    pub fn packet(&self, opcode: Opcode, psn: u32) -> Packet {
        let mut packet = self.template.clone();
        packet.bth.opcode = opcode.code();
        packet.bth.psn = psn;
        packet.bth.ack_req = true;
        packet.bth.dest_qp = self.end.qp.number();
        packet.reth = None;
        packet
    }

    pub fn read_request(&self, psn: u32, at: usize, length: usize) -> Packet {
        let mut packet = self.packet(Opcode::RcReadRequest, psn);
        packet.reth = Some(contract::Reth {
            va: self.memory.addr() + at as u64,
            rkey: self.memory.rkey(),
            dma_length: length as u32,
        });
        packet
    }

    pub fn inject(&self, packet: &Packet) {
        lock(&self.story.room).inject(B, &packet.build()).expect("inject");
    }

    /// READs `length` bytes at `at`; the PSN of the request.
    pub fn read(&mut self, at: usize, length: usize) -> u32 {
        let psn = self.psn;
        self.inject(&self.read_request(psn, at, length));
        self.psn = psn_add(psn, length.div_ceil(MTU).max(1) as u32);
        psn
    }

    /// WRITEs a packet.
    pub fn write(&mut self, at: usize, bytes: &[u8]) {
        let mut packet = self.read_request(self.psn, at, bytes.len());
        packet.bth.opcode = Opcode::RcWriteOnly.code();
        packet.payload = bytes.to_vec();
        self.inject(&packet);
        self.psn = psn_add(self.psn, 1);
    }

    /// SENDs a packet.
    pub fn send(&mut self, bytes: &[u8]) {
        let mut packet = self.packet(Opcode::RcSendOnly, self.psn);
        packet.payload = bytes.to_vec();
        self.inject(&packet);
        self.psn = psn_add(self.psn, 1);
    }

    /// What the card sends from now on, for `span` ps.
    pub fn hears(&mut self, span: u64) -> Vec<Packet> {
        let before = self.story.packets().len();
        self.story.wait(span);
        let new = self.story.packets().split_off(before);
        new.into_iter().filter(|seen| seen.from == A).map(|seen| seen.packet).collect()
    }

    pub fn notice(&self) -> Option<(AsyncEvent, u32)> {
        let notice = self.end.context.async_event(Some(Duration::from_millis(10))).expect("no error");
        notice.map(|notice| (notice.event, notice.object))
    }
}

pub fn kind(packet: &Packet) -> Opcode {
    packet.opcode().expect("a known opcode")
}

pub fn syndrome(packet: &Packet) -> u8 {
    packet.aeth.expect("an answer").syndrome
}

/// The payload of the READ responses among these.
pub fn payload<'a>(packets: impl IntoIterator<Item = &'a Packet>) -> Vec<u8> {
    packets.into_iter().flat_map(|packet| packet.payload.clone()).collect()
}
