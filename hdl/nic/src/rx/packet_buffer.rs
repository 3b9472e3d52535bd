//! The packet buffer: where a packet waits between the wire and host memory.
//!
//! ```text
//! frame --> parse --> verify --+--> headers --> check, place --> release_check, release_place
//!             |                |                                          |
//!             +--> ring memory (restored when the frame is bad)           +--> room, in order
//!                      |
//!                      +--> read_address, read_word (the PCIe write engine)
//! ```
//! In: frames from the mac, a beat per clock; they are never held up (`frame_ready` is constantly high). Out: `headers` of
//! good packets, in order, eight clocks (twelve if unhurried) after the frame's last beat; one `reject` per frame that is not. A good frame
//! that meets a full ring or no free slot is dropped whole and counted as BufferFull. Slots come back in any order, by
//! two releasers at once; their room is reclaimed in order, one slot per clock. The whole frame is stored: of a raw one it
//! is the payload. Half of ring and slots is RoCE's alone: a raw frame that finds the other half taken is BufferFull, too. The payload of a packet lies whole and in place from `headers` until its release; it
//! may wrap around the end of the ring. Unhurried, the last word of the ring is not used.
//!
//! Requirements: CARD PKT RAW RESP

use crate::config::Config;
use crate::flow::{Count, FrameBeat, Headers, Mark};
use crate::prim::block_fifo::BlockFifo;
use crate::prim::later::{later, later_init};
use crate::rx::parse::Parse;
use crate::rx::verify::Verify;
use contract::{Reject, TraceEvent};
use hdl::{
    Bundle, Memory, Module, Ports, Sig, Stream, cat, delay_init, high, index_width, instance, lit, mux,
    reg_init, when,
};

/// What this stage may count.
pub const REJECTS: &[Reject] = &[
    Reject::BadFcs,
    Reject::Runt,
    Reject::Oversize,
    Reject::NotRoce,
    Reject::BadIpHeader,
    Reject::BadUdpLength,
    Reject::WrongDestinationMac,
    Reject::BadIcrc,
    Reject::BufferFull,
    Reject::BadTransportVersion,
    Reject::UnknownOpcode,
];

/// A slot comes back.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(Config)]
pub struct Release {
    /// In this clock.
    pub valid: Sig,
    /// Which.
    #[shape(c.packet_slot_bits())]
    pub slot: Sig,
}

/// Packet buffer, parse and verify.
#[derive(Clone, Debug)]
pub struct PacketBuffer(pub Config);

/// Ports of [`PacketBuffer`].
#[derive(Ports)]
#[ports(PacketBuffer)]
pub struct PacketBufferIo {
    /// The port's MAC address, first byte most significant.
    #[input(48)]
    pub port_mac: Sig,
    /// Most bytes between Ethernet header and FCS.
    #[input(16)]
    pub port_mtu: Sig,
    /// `contract::register::RAW_RECEIVE`.
    #[input(32)]
    pub raw_receive: Sig,
    /// Frames from the mac; always ready.
    #[sink(c.0.clone())]
    pub frame: Stream<FrameBeat>,
    /// Good packets.
    #[source(c.0.clone())]
    pub headers: Stream<Headers>,
    /// check is done with a packet.
    #[input(c.0.clone())]
    pub release_check: Release,
    /// place is done with a packet.
    #[input(c.0.clone())]
    pub release_place: Release,
    /// Reads this word.
    #[input(c.0.packet_address_bits() - c.0.lane_bits())]
    pub read_address: Sig,
    /// The word, one clock later.
    #[output(c.0.data_bits())]
    pub read_word: Sig,
    /// Frames refused.
    #[output]
    pub reject: Count,
    /// Pulse: a frame with a good FCS came.
    #[output]
    pub frame_count: Sig,
    /// With it: its bytes without FCS.
    #[output(16)]
    pub frame_length: Sig,
    /// Good packets that got their slot, for trace.
    #[output(c.0.clone())]
    pub trace: Mark,
    /// No packet is held and no frame is coming in.
    #[output]
    pub idle: Sig,
}

impl Module for PacketBuffer {
    type Io = PacketBufferIo;
    fn name(&self) -> String {
        format!("packet_buffer_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Ring of received packets with out-of-order release; parses and verifies on the way in.".into()
    }
    fn body(&self, io: &PacketBufferIo) {
        let c = &self.0;
        let words = c.packet_buffer_bytes / c.data_bytes;
        let (bits, slot_bits) = (index_width(words), c.packet_slot_bits());
        // verify answers four clocks after the frame's last beat, and the next frame would be stored meanwhile: beats wait
        // so that its first is stored in the very clock of the answer
        let wait = if c.unhurried { 5 } else { 3 };

        let parse = instance("parse", &Parse(c.clone()));
        parse.valid.set(io.frame.valid);
        parse.frame.assign(&io.frame.data);
        io.frame.ready.set(1);
        let verify = instance("verify", &Verify(c.clone()));
        verify.valid.set(parse.done);
        verify.parsed.assign(&parse.parsed);
        verify.port_mac.set(io.port_mac);
        verify.port_mtu.set(io.port_mtu);
        verify.raw_receive.set(io.raw_receive);

        // the ring: one bit more than the address tells full from empty
        // a frame is read when all of it is here, and begins a word of its own
        let memory = Memory::new("ring", words, c.data_bits()).style("block").ignoring_collisions();
        let tail = reg_init("tail", bits + 1, 0);
        let start = reg_init("start", bits + 1, 0);
        let head = reg_init("head", bits + 1, 0);
        let late = |name: &str, s: Sig| (0..wait).fold(s, |s, i| delay_init(&format!("{name}_{i}"), s));
        let store = late("store", parse.store);
        let data = late("store_data", parse.store_data);
        let last = late("store_last", parse.store_last);
        let accept = hdl::wire("accept", 1);
        let rejects = verify.done & !accept;
        let at = mux(rejects, start, tail).named("store_at");
        // `words` ahead is the same but for the top bit; either place is looked at before it is known which holds
        let ahead = |at: Sig| (at ^ head).eq(u64::from(words));
        let full = if c.unhurried {
            // as of the clock before, with room for the word of that clock
            delay_init("nearly_full", (tail - head).ge(u64::from(words - 1)))
        } else {
            mux(rejects, ahead(start), ahead(tail))
        }
        .named("full");
        let refused = reg_init("refused", 1, 0);
        let refuse = store & (full | refused);
        memory.write(store & !refuse, at.bits(0, bits), data);
        tail.set(mux(store & !refuse, mux(rejects, start + 1, tail + 1), at));
        when(refuse, || refused.set(1));
        when(store & last, || refused.set(0));
        let overflow = delay_init("overflow_3", refuse | refused).named("overflow");
        io.read_word.set(memory.read("read", high(), io.read_address));

        // slots
        let newest = reg_init("newest_slot", slot_bits + 1, 0);
        let oldest = reg_init("oldest_slot", slot_bits + 1, 0);
        let released = reg_init("released", c.packet_slots, 0);
        let ends = Memory::new("slot_end", c.packet_slots, bits + 1).style("distributed");
        let one = |slot: Sig, when: Sig| mux(when, lit(c.packet_slots, 1) << slot, lit(c.packet_slots, 0));
        let oldest_slot = oldest.bits(0, slot_bits);
        let reclaim = (newest.ne(oldest) & released.bit_at(oldest_slot)).named("reclaim");
        let given = |name: &str, r: &Release| {
            one(later(c, &format!("{name}_slot"), r.slot), later_init(c, &format!("{name}_gives"), r.valid))
        };
        let gives = given("check", &io.release_check) | given("place", &io.release_place);
        hdl::assert_always("a_slot_is_released_once", (released & gives).none());
        released.set((released | gives) & !one(oldest_slot, reclaim));
        let end = ends.read_now("oldest_end", oldest_slot);
        when(reclaim, || {
            oldest.set(oldest + 1);
            head.set(end);
        });

        // the judgement
        // whose headers wait has a slot, so this is never full: place may stand still for as long as there are slots
        let queue = instance("queue", &BlockFifo { depth: c.packet_slots, width: Headers::total_width(c) });
        let no_slot = (newest ^ oldest).eq(u64::from(c.packet_slots));
        // one that waits for its receive WQE holds up the room of all behind it
        let raw_full =
            (newest - oldest).ge(u64::from(c.packet_slots / 2)) | (tail - head).gt(u64::from(words / 2));
        // as of the clock before, which is near enough for a share
        let raw_full = (verify.headers.raw & delay_init("raw_share_full", raw_full)).named("raw_full");
        let room = !overflow & !no_slot & !raw_full;
        hdl::assert_always("headers_find_a_place", !accept | queue.input.ready);
        accept.set(verify.done & verify.good & room);
        let slot = newest.bits(0, slot_bits);
        ends.write(accept, slot, tail);
        when(accept, || {
            start.set(tail);
            newest.set(newest + 1);
        });
        let stored_at = cat(&[start.bits(0, bits), lit(c.lane_bits(), 0)]);
        let within = verify.payload_at.extend(c.packet_address_bits());
        let headers = Headers { address: stored_at + within, slot, ..verify.headers };
        queue.input.valid.set(accept);
        queue.input.data.set(headers.to_bits());
        io.headers.valid.set(queue.output.valid);
        io.headers.data.assign(&Headers::from_bits(c, queue.output.data));
        queue.output.ready.set(io.headers.ready);

        io.idle.set(newest.eq(oldest) & tail.eq(start) & !io.frame.valid & !verify.done);
        io.reject.valid.set(verify.done & !accept);
        io.reject.index.set(mux(verify.good, u64::from(Reject::BufferFull.code()), verify.reject));
        io.frame_count.set(verify.done & verify.intact);
        io.frame_length.set(verify.length);
        io.trace.assign(&Mark {
            psn: headers.psn,
            opcode: headers.opcode,
            detail: slot.extend(16),
            ..Mark::of(TraceEvent::Verify, accept, headers.dest_qpn.bits(0, c.qp_bits()))
        });
    }
}
