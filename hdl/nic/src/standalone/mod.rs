//! A target: an RDMA endpoint without a host. The card's way of a request, from the line through its judgement to memory
//! and back as an answer, with memory on the chip in the place of PCI Express; made and ended by datagrams.
//!
//! ```text
//!                          ┌── raw ─────────────> control ──> peers, fences, initialise
//! mac ─> packet_buffer ─> check ─> place ─> on_chip ─ payload, READs, atomics
//!  ^      parse, verify              │ ack       │ wake
//!  ├── packetise <── transmit_buffer, gather <── segment <── schedule
//!  └── replies of control
//! ```
//! Stages are the card's own; what they would need of a host is tied off where it would come from: no WQE is ever
//! fetched, so no request is ever sent; no receive is ever posted, so a SEND meets "receiver not ready"; no completion, no
//! event, no interrupt goes anywhere. Every QP is in RTR for as long as it exists, so answers to requests that it never
//! sent are refused by check.
//!
//! In: the line; switches. Out: the line; LEDs. Queue pairs, regions and limits: [`peers`]; how they are made:
//! `contract::target`. Contract 1 holds: receive waits for on-chip memory alone, which waits for nobody.
//!
//! Requirements: TGT

pub mod control;
pub mod memory;
pub mod peers;

use crate::config::Config;
use crate::flow::{
    Headers, Outer, PacketFields, Scatter, Segment as Part, TransmitSlot, Verdict, WakePulse, WorkItem,
    response,
};
use crate::mac::rgmii::Edges;
use crate::mac::rgmii_mac::RgmiiMac;
use crate::prim::merge::merge;
use crate::qp::{Executed, Expect, Operands, Outcome, OwedRead, Placed, State, StateWrite, Tx};
use crate::rx::{check::Check, packet_buffer::PacketBuffer, place::Place};
use crate::tx::{
    gather::Gather, packetise::Packetise, schedule::Schedule, segment::Segment,
    transmit_buffer::TransmitBuffer,
};
use contract::Reject;
use contract::register::RAW_ENABLE;
use contract::target::TargetPinsBits;
use control::{COUNTERS, Control, RawFrame};
use hdl::{
    Bundle, Domain, Module, Ports, Sig, Stream, any_of, cat, delay, delay_init, high, instance, lit, low,
    mux, reg, reg_init, when,
};
use memory::OnChip;
use peers::{Peer, Peers, addresses_line, path_line, queues_line, region, rights_line};

/// Most bytes between Ethernet header and FCS: path MTU 4096 with all headers.
const PORT_MTU: u64 = 4096 + 100;
/// MAC address with switches at 0: locally administered.
pub const MAC_ADDRESS: u64 = 0x0256_4552_4200;
/// IPv4 address with switches at 0: 10.0.0.64.
pub const IPV4_ADDRESS: u64 = 0x0a00_0040;
/// Switches that are the end of both addresses.
const ADDRESS_SWITCHES: u32 = 6;

/// Who a target is.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Identity {
    /// MAC address, its first byte the most significant.
    #[shape(48)]
    pub mac: Sig,
    /// IPv4 address, likewise.
    #[shape(32)]
    pub address: Sig,
}

/// The target.
#[derive(Clone, Debug)]
pub struct Target(pub Config);

/// Ports of [`Target`].
#[derive(Ports)]
#[ports(Target)]
pub struct TargetIo {
    /// 125 MHz of the line's transmitter.
    #[input]
    pub tx_clock: Sig,
    /// Its reset.
    #[input]
    pub tx_reset: Sig,
    /// RXC.
    #[input]
    pub rx_clock: Sig,
    /// Its reset.
    #[input]
    pub rx_reset: Sig,
    /// TXD.
    #[output(4u32)]
    pub txd: Edges,
    /// TX_CTL.
    #[output(1u32)]
    pub tx_control: Edges,
    /// TXC.
    #[output(1u32)]
    pub txc: Edges,
    /// RXD.
    #[input(4u32)]
    pub rxd: Edges,
    /// RX_CTL.
    #[input(1u32)]
    pub rx_control: Edges,
    /// MDC.
    #[output]
    pub mdc: Sig,
    /// MDIO toward the PHY.
    #[output]
    pub mdio_out: Sig,
    /// Drive it.
    #[output]
    pub mdio_enable: Sig,
    /// MDIO from the pin.
    #[input]
    pub mdio_in: Sig,
    /// Switches; the lower six, as they are in reset, are the end of the addresses.
    #[input(8)]
    pub switches: Sig,
    /// LEDs, as peers write them.
    #[output(8)]
    pub leds: Sig,
}

/// A state word of one stage: those of its fields that are `unused` are not stored, and read as zero.
fn state<T: Bundle<Shape = ()>>(
    depth: u32,
    word: &'static str,
    unused: &[&str],
    write: &StateWrite,
    readers: Vec<(Sig, Sig)>,
) {
    let mut kept = vec![];
    T::build(&(), "", &mut |field, width| {
        kept.push(!unused.contains(&field.trim_start_matches('_')));
        lit(width, 0)
    });
    let from = T::from_bits(&(), write.data).signals();
    let stored: Vec<Sig> = from.into_iter().zip(&kept).filter(|(_, kept)| **kept).map(|(s, _)| s).collect();
    assert_eq!(kept.len() - stored.len(), unused.len(), "fields of {word}");
    let data = cat(&stored);
    let width = data.width();
    let s = instance(&format!("{word}_state"), &State { word, depth, width, readers: readers.len() as u32 });
    s.write.assign(&StateWrite { enable: write.enable, address: write.address, data });
    for (i, (address, out)) in readers.into_iter().enumerate() {
        s.address[i].set(address);
        let (mut at, mut field) = (width, kept.iter());
        let read = T::build(&(), "", &mut |_, width| {
            if !field.next().expect("as many as before") {
                return lit(width, 0);
            }
            at -= width;
            s.word[i].bits(at, width)
        });
        out.set(read.to_bits());
    }
}

/// What of a packet's fields an answer has: no request's header, IPv4 without tag.
fn of_answer(packet: &PacketFields) -> PacketFields {
    PacketFields {
        ack_req: low(),
        solicited: low(),
        outer: Outer { tagged: low(), ipv6: low() },
        va: lit(64, 0),
        rkey: lit(32, 0),
        dma_length: lit(32, 0),
        imm: lit(32, 0),
        compare: lit(64, 0),
        raw: low(),
        ..*packet
    }
}

/// Nothing ever comes.
fn silent<T: Bundle>(stream: &Stream<T>) {
    stream.valid.set(low());
    stream.data.assign_zero();
}

/// What comes is let go.
fn ignored<T: Bundle>(stream: &Stream<T>) {
    stream.ready.set(high());
}

impl Module for Target {
    type Io = TargetIo;
    fn name(&self) -> String {
        format!("target_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "An RDMA endpoint without a host: memory on the chip, made by datagrams.".into()
    }
    fn body(&self, io: &TargetIo) {
        let c = &self.0;
        if let Err(e) = c.validate() {
            panic!("{e}");
        }
        let mac = instance("line", &RgmiiMac(c.clone()));
        for (pin, from) in [
            (mac.tx_clock, io.tx_clock),
            (mac.tx_reset, io.tx_reset),
            (mac.rx_clock, io.rx_clock),
            (mac.rx_reset, io.rx_reset),
            (mac.mdio_in, io.mdio_in),
            (io.mdc, mac.mdc),
            (io.mdio_out, mac.mdio_out),
            (io.mdio_enable, mac.mdio_enable),
        ] {
            pin.set(from);
        }
        io.txd.assign(&mac.txd);
        io.tx_control.assign(&mac.tx_control);
        io.txc.assign(&mac.txc);
        mac.rxd.assign(&io.rxd);
        mac.rx_control.assign(&io.rx_control);

        // who we are: the switches as they were in reset, which therefore does not reach them
        let awake = Domain::new(Domain::implicit().clock(), None);
        let switch = |i: u32| {
            let pin = delay(&format!("pin_{i}"), io.switches.bit(i));
            hdl::synchronise(&format!("switch_{i}"), pin)
        };
        let switches = awake.within(|| cat(&(0..8).rev().map(switch).collect::<Vec<_>>()));
        let number = reg("address_switches", ADDRESS_SWITCHES);
        when(Domain::implicit().reset(), || number.set(switches.bits(0, ADDRESS_SWITCHES)));
        let ends_in = |base: u64, bits: u32| lit(bits, base) | number.extend(bits);
        let me = Identity { mac: ends_in(MAC_ADDRESS, 48), address: ends_in(IPV4_ADDRESS, 32) };

        // receive
        let packet_buffer = instance("packet_buffer", &PacketBuffer(c.clone()));
        let check = instance("check", &Check { config: c.clone() });
        let place = instance("place", &Place { config: c.clone() });
        let on_chip = instance("on_chip", &OnChip(c.clone()));
        let control = instance("control", &Control(c.clone()));
        // transmit
        let schedule = instance("schedule", &Schedule(c.clone()));
        let segment = instance("segment", &Segment(c.clone()));
        let gather = instance("gather", &Gather(c.clone()));
        let transmit_buffer = instance("transmit_buffer", &TransmitBuffer(c.clone()));
        let packetise = instance("packetise", &Packetise(c.clone()));

        packet_buffer.frame.take(&mac.receive);
        packet_buffer.port_mac.set(me.mac);
        packet_buffer.port_mtu.set(lit(16, PORT_MTU));
        packet_buffer.raw_receive.set(lit(32, u64::from(RAW_ENABLE)));
        let (busy, word) = (on_chip.packet_busy, packet_buffer.read_word);
        packet_buffer.read_address.set(mux(busy, on_chip.packet_address, control.packet_address));
        on_chip.packet_word.set(word);
        control.packet_word.set(word);
        control.packet_free.set(!busy);
        // what is no RoCE goes to control
        let headers = &packet_buffer.headers;
        // which it is comes late out of block RAM: it is looked at for a clock
        let raw = delay("is_raw", headers.data.raw);
        let seen = delay_init("headers_seen", headers.valid & !headers.moves());
        headers.ready.set(seen & mux(raw, control.frame.ready, check.headers.ready));
        check.headers.valid.set(seen & !raw);
        check.headers.data.assign(&Headers { raw: low(), ..headers.data });
        control.frame.valid.set(seen & raw);
        control.frame.data.assign(&RawFrame {
            address: headers.data.address,
            length: headers.data.length,
            slot: headers.data.slot,
        });
        control.me.assign(&me);
        // what check releases is known late, and waits for nobody
        let releases = delay_init("check_releases", check.release_valid);
        let slot = mux(releases, delay("slot_of_check", check.release_slot), control.release.slot);
        packet_buffer.release_check.valid.set(releases | control.release.valid);
        packet_buffer.release_check.slot.set(slot);
        control.release_ready.set(control.release.valid & !releases);
        packet_buffer.release_place.valid.set(place.release_valid);
        packet_buffer.release_place.slot.set(place.release_slot);

        check.room.set(place.room);
        check.raw_over.set(low());
        check.post_rq_word.set(0);
        check.requester_word.set(hdl::constant(hdl::Bits::zero(check.requester_word.width())));
        // no receive is ever used: what check says of one is never true
        place.verdict.valid.set(check.verdict.valid);
        check.verdict.ready.set(place.verdict.ready);
        place.verdict.data.assign(&Verdict {
            raw: low(),
            uses_wqe: low(),
            with_imm: low(),
            with_inv: low(),
            relaxed: low(),
            ..check.verdict.data
        });
        // answers to requests of ours: check refuses them, there are none; but the fence comes here, too
        let answer = &check.response;
        let scatter = Scatter::wires(c, "no_scatter");
        scatter.assign_zero();
        place.data.valid.set(answer.valid & answer.data.fence);
        place.data.data.assign(&Scatter { fence: high(), ..scatter });
        answer.ready.set(place.data.ready | !answer.data.fence);
        silent(&place.local);
        silent(&place.doorbell);
        ignored(&place.invalidate);
        ignored(&place.placement);
        ignored(&place.read);
        ignored(&place.completion);
        ignored(&place.event);
        place.read_data.assign_zero();
        place.read_done.assign_zero();
        for word in [place.list_word, place.post_rq_word, place.fetch_queues_word, place.fetch_rights_word] {
            word.set(hdl::constant(hdl::Bits::zero(word.width())));
        }
        place.list_groups.set(0);
        on_chip.payload.take(&place.payload);
        place.written.set(on_chip.written);
        on_chip.exchange.take(&place.exchange);
        place.exchanged.set(on_chip.exchanged);
        place.answers_wait.set(segment.control.valid);
        let pins =
            TargetPinsBits { leds: on_chip.leds, switches, speed: mac.speed.extend(8), link: mac.link };
        // network order: its first byte is the most significant
        on_chip.pins.set(pins.pack().swap_bytes());
        io.leds.set(on_chip.leds);

        // transmit: turns for answers alone
        for never in [&schedule.doorbell, &schedule.fetch, &schedule.acknowledge, &schedule.command] {
            never.assign_zero();
        }
        let responds = merge("responds", c, &[&place.wake, &on_chip.wake]);
        responds.ready.set(high());
        let wake = WakePulse::regs_zero(c, "wake");
        wake.assign(&WakePulse { valid: responds.valid, qp: responds.data.qp });
        schedule.respond.assign(&wake);
        schedule.done.take(&segment.done);
        schedule.room.set(segment.room);
        let work = WorkItem::wires(c, "turn_of");
        work.assign_zero();
        segment.work.valid.set(schedule.turn.valid);
        segment.work.data.assign(&WorkItem {
            qp: schedule.turn.data.qp,
            fence: schedule.turn.data.fence,
            ..work
        });
        schedule.turn.ready.set(segment.work.ready);
        segment.inline_word.set(0);
        segment.gone.set(gather.gone);
        segment.port_mtu.set(lit(16, PORT_MTU));
        segment.requester_word.set(hdl::constant(hdl::Bits::zero(segment.requester_word.width())));
        ignored(&segment.kick);
        ignored(&segment.fault);
        ignored(&segment.event);
        ignored(&segment.local);
        // answers to READs, each of one region by the peer's key
        let part = &segment.data;
        gather.segment.valid.set(part.valid);
        part.ready.set(gather.segment.ready);
        gather.segment.data.assign(&Part {
            packet: of_answer(&part.data.packet),
            offset: lit(32, 0),
            sges: part.data.sges.bits(0, 128).extend(part.data.sges.width()),
            requests: low(),
            inline: low(),
            more: lit(5, 0),
            ..part.data
        });
        silent(&gather.words);
        ignored(&segment.words);
        on_chip.request.take(&gather.request);
        gather.read_done.assign(&on_chip.read_done);
        gather.rewind.assign_zero();
        ignored(&gather.fault);
        gather.sent.set(packetise.sent);
        transmit_buffer.read_data.assign(&on_chip.read_data);
        transmit_buffer.inline.take(&gather.fill);
        transmit_buffer.read.set(high());
        transmit_buffer.read_address.set(cat(&[packetise.buffer_address, lit(c.lane_bits(), 0)]));
        packetise.buffer_word.set(transmit_buffer.word);
        let slot = &gather.slot;
        packetise.data.valid.set(slot.valid);
        slot.ready.set(packetise.data.ready);
        packetise.data.data.assign(&TransmitSlot { packet: of_answer(&slot.data.packet), ..slot.data });
        // an ACK of place is older than what segment answers: while that waits place gives none
        let first = place.ack.valid;
        packetise.control.valid.set(first | segment.control.valid);
        let owed = response(&place.ack.data).or_else(c, first, &segment.control.data);
        packetise.control.data.assign(&of_answer(&owed));
        place.ack.ready.set(packetise.control.ready);
        segment.control.ready.set(packetise.control.ready & !first);

        // whole frames take turns, those of RoCE first
        let (inside, of_control) = (reg_init("inside_frame", 1, 0), reg_init("frame_of_control", 1, 0));
        let replies = mux(inside, of_control, !packetise.frame.valid).named("replies");
        mac.transmit.valid.set(mux(replies, control.reply.valid, packetise.frame.valid));
        mac.transmit.data.assign(&control.reply.data.or_else(c, replies, &packetise.frame.data));
        control.reply.ready.set(mac.transmit.ready & replies);
        packetise.frame.ready.set(mac.transmit.ready & !replies);
        packetise.waiting.set(mac.waiting);
        when(mac.transmit.moves(), || {
            inside.set(!mac.transmit.data.last);
            of_control.set(replies);
        });

        // who the peers are
        let peers = instance("peers", &Peers { config: c.clone(), readers: 6 });
        peers.write.assign(&control.peer_write);
        let read = |i: usize, qp: Sig| {
            peers.address[i].set(qp);
            Peer::from_bits(&(), peers.entry[i])
        };
        segment.rights_word.set(rights_line(&read(0, segment.read_qp)));
        gather.rights_word.set(rights_line(&read(1, gather.read_qp)));
        let checked = read(2, check.qp_address);
        check.rights_word.set(rights_line(&checked));
        check.addresses_word.set(addresses_line(&me, &checked));
        place.rights_word.set(rights_line(&read(3, place.packet_address)));
        let sent_to = read(4, packetise.line_qp);
        packetise.path_word.set(path_line(&me, &sent_to));
        packetise.addresses_word.set(addresses_line(&me, &sent_to));
        peers.address[5].set(control.peer_qp);
        control.peer_entry.set(peers.entry[5]);
        segment.queues_word.set(queues_line("queues_of_segment", segment.read_qp));
        check.queues_word.set(queues_line("queues_of_check", check.qp_address));
        place.finish_queues_word.set(queues_line("queues_of_place", place.finish_address));
        gather.mr_word.set(region("region_of_gather", gather.read_mr));
        check.mr_word.set(region("region_of_check", check.mr_address));
        place.mr_word.set(region("region_of_place", place.mr_address));

        // state words: one writer each; what only a requester or a receive needs is not there
        let qps = c.qps;
        state::<Tx>(
            qps,
            "tx",
            &[
                "next_psn",
                "sent_psn",
                "assigned",
                "cursor_wqe",
                "cursor_psn",
                "cursor_first",
                "epoch",
                "unasked",
                "rd_next",
                "halt",
                "drained",
            ],
            &segment.tx_write,
            vec![
                (segment.read_qp, segment.tx_word),
                (place.finish_address, place.tx_word),
                (check.qp_address, check.tx_word),
            ],
        );
        state::<Expect>(
            qps,
            "expect",
            &["open_send", "rq_next", "rq_current"],
            &check.expect_write,
            vec![(check.qp_address, check.expect_word)],
        );
        state::<Placed>(
            qps,
            "placed",
            &[],
            &place.placed_write,
            vec![
                (place.finish_address, place.placed_word),
                (segment.read_qp, segment.placed_word),
                (check.qp_address, check.placed_word),
            ],
        );
        state::<OwedRead>(
            c.responses,
            "owed",
            &[],
            &check.owed_write,
            vec![(check.owed_address, check.owed_word), (segment.owed_address, segment.owed_word)],
        );
        state::<Operands>(
            c.responses,
            "operands",
            &[],
            &check.operands_write,
            vec![(on_chip.operands_address, on_chip.operands_word)],
        );
        state::<Outcome>(
            c.responses,
            "outcomes",
            &["failed"],
            &on_chip.outcome_write,
            vec![(segment.outcome_address, segment.outcome_word)],
        );
        state::<Executed>(
            qps,
            "executed",
            &[],
            &on_chip.executed_write,
            vec![(on_chip.executed_address, on_chip.executed_word), (segment.read_qp, segment.executed_word)],
        );

        // made and ended
        let stages = [&segment.initialise, &check.initialise, &place.initialise, &on_chip.initialise];
        for (to, from) in stages.into_iter().zip(&control.initialise) {
            to.take(from);
        }
        schedule.fence_valid.set(control.fence_transmit.valid);
        control.fence_transmit.ready.set(schedule.fence_ready);
        control.fence_transmit_done.set(packetise.fence_done);
        check.fence_valid.set(control.fence_receive.valid);
        control.fence_receive.ready.set(check.fence_ready);
        control.fence_receive_done.set(place.fence_done);

        // counters
        let rejects = &packet_buffer.reject;
        let because = |reasons: &[Reject]| {
            any_of(&reasons.iter().map(|r| rejects.index.eq(u64::from(r.code()))).collect::<Vec<_>>())
        };
        let others = [check.count.valid, place.count.valid, gather.count.valid, segment.count.valid];
        let one = |pulse: Sig| pulse.extend(3);
        let pulses = [
            one(packet_buffer.frame_count),
            one(mac.transmit.moves() & mac.transmit.data.last),
            one(packetise.packet_count),
            one(packetise.ack_count),
            one(packetise.nak_count),
            one(rejects.valid & because(&[Reject::BadFcs, Reject::Runt])),
            one(rejects.valid & because(&[Reject::BadIcrc])),
            one(rejects.valid & because(&[Reject::BufferFull])),
            others.into_iter().fold(lit(3, 0), |sum, pulse| sum + one(pulse)),
            one(on_chip.written),
            one(on_chip.exchanged),
            one(control.answered),
            one(control.dropped),
        ];
        assert_eq!(pulses.len(), COUNTERS);
        for (i, (pulse, to)) in pulses.into_iter().zip(&control.counters).enumerate() {
            let counts = delay_init(&format!("counts_{i}"), pulse);
            let counter = reg_init(&format!("counter_{i}"), 32, 0);
            counter.set(counter + counts.extend(32));
            to.set(counter);
        }
    }
}
