//! The whole card, wiring only.
//!
//! ```text
//!            cq,cc           rq,rc                                      xgmii or CMAC
//!   host <-> bar,msix <-> csr  read,write <-> fetch,gather,place,command   mac <-> packetise, packet buffer
//! ```
//! Core clock: everything but the line side of the mac. `flr` resets everything but the mac. `quiet` says that nothing
//! is under way but deadlines; then `now` may be set forward (simulation only: on a board `now_load` is tied low).
//!
//! Requirements: CARD LINE PCIE REQ RESP

use crate::command::{COUNT, Command};
use crate::config::Config;
use crate::csr::{Csr, StageEvent};
use crate::flash::Flash;
use crate::flow::{
    Count, Event, Mark, PcieConfig, ReadClient, Rewind, Table, TableWrite, TlpBeat, Wake, WakePulse, response,
};
use crate::mac::{
    Mac, MacIo,
    pins::{LineIn, LineOut},
};
use crate::pcie::bar::Bar;
use crate::pcie::msix::Msix;
use crate::pcie::{read::Read, transmit::Transmit, write::Write};
use crate::prim::fifo::buffer;
use crate::prim::merge::merge;
use crate::qp::{
    DEADLINE, Executed, Expect, INDEX, Operands, Outcome, OwedRead, Placed, Record, Requester, State,
    StateWrite, Tx,
};
use crate::rx::acknowledge::Acknowledge;
use crate::rx::atomic::Atomic;
use crate::rx::check::Check;
use crate::rx::complete::Complete;
use crate::rx::notify::Notify;
use crate::rx::packet_buffer::PacketBuffer;
use crate::rx::place::Place;
use crate::table::Lines;
use crate::trace::{Marks, Part, Source, Trace};
use crate::tx::{
    doorbell::Doorbell, fetch::Fetch, gather::Gather, packetise::Packetise, push::Push, read_list::ReadList,
    schedule::Schedule, segment::Segment, transmit_buffer::TransmitBuffer,
};
use contract::{AsyncEvent, EventKind, Stage, StageCounter, TraceEvent};
use hdl::{
    Bits, Bundle, Domain, Module, Ports, Sig, Stream, Width, all_of, any_of, cat, constant, high, instance,
    lit, low, mux, reg, reg_init, when, wire,
};

/// The card.
#[derive(Debug)]
pub struct Nic(pub Config);

/// Pins of the card.
#[derive(Ports)]
#[ports(Nic)]
pub struct NicIo {
    /// Core clock.
    #[input]
    pub clock: Sig,
    /// Resets everything (PERST).
    #[input]
    pub reset: Sig,
    /// Function level reset.
    #[input]
    pub flr: Sig,
    /// Line clock, transmit.
    #[input]
    pub tx_clock: Sig,
    /// Its reset.
    #[input]
    pub tx_reset: Sig,
    /// Line clock, receive.
    #[input]
    pub rx_clock: Sig,
    /// Its reset.
    #[input]
    pub rx_reset: Sig,
    /// Pins toward the line: XGMII at 64 bit, the CMAC's transmit stream at 512.
    #[output(c.0.clone())]
    pub line_out: LineOut,
    /// Pins from the line.
    #[input(c.0.clone())]
    pub line_in: LineIn,
    /// Requests of the card.
    #[source(c.0.clone())]
    pub rq: Stream<TlpBeat>,
    /// Their completions.
    #[sink(c.0.clone())]
    pub rc: Stream<TlpBeat>,
    /// Requests of the host.
    #[sink(c.0.clone())]
    pub cq: Stream<TlpBeat>,
    /// BAR of the request.
    #[input(3)]
    pub cq_bar: Sig,
    /// Their completions.
    #[source(c.0.clone())]
    pub cc: Stream<TlpBeat>,
    /// Credit for a write of the largest payload.
    #[input]
    pub posted_ok: Sig,
    /// Credit for a read.
    #[input]
    pub nonposted_ok: Sig,
    /// Configuration space.
    #[input]
    pub pcie: PcieConfig,
    /// MAC address of the board (flash manifest), in force until the driver sets another.
    #[input(48)]
    pub factory_mac: Sig,
    /// MTU of the board, likewise; 0: 1500.
    #[input(16)]
    pub factory_mtu: Sig,
    /// The link is up.
    #[input]
    pub link_up: Sig,
    /// Sets `now` (simulation).
    #[input]
    pub now_load: Sig,
    /// To this.
    #[input(64)]
    pub now_value: Sig,
    /// Core clocks since reset.
    #[output(64)]
    pub now: Sig,
    /// Nothing is under way but deadlines.
    #[output]
    pub quiet: Sig,
    /// The earliest deadline; all ones: none.
    #[output(64)]
    pub next_due: Sig,
    /// The configuration flash, if [`Config::flash_half_clocks`]; else it is never selected.
    #[output]
    pub flash_select_n: Sig,
    /// Its clock.
    #[output]
    pub flash_clock: Sig,
    /// Data to it.
    #[output]
    pub flash_mosi: Sig,
    /// Data from it.
    #[input]
    pub flash_miso: Sig,
    /// The FPGA is to be loaded anew.
    #[output]
    pub flash_reload: Sig,
    /// What every stage tells trace, if [`Config::trace_pins`]; else zero.
    #[output]
    pub trace: Marks,
}

/// A source of marks with a stage.
const fn source(
    name: &'static str,
    events: &'static [TraceEvent],
    stage: Stage,
    parts: &'static [Part],
) -> Source {
    Source { name, events, stage: Some(stage), parts }
}

/// Readers of one state word or table: (address, where the word goes).
type Readers = Vec<(Sig, Sig)>;

fn state<T: Bundle<Shape = ()>>(c: &Config, word: &'static str, write: &StateWrite, readers: Readers) {
    state_of(word, c.qps, T::total_width(&()), write, readers);
}

fn state_of(word: &'static str, depth: u32, width: u32, write: &StateWrite, readers: Readers) {
    let s = instance(&format!("{word}_state"), &State { word, depth, width, readers: readers.len() as u32 });
    s.write.assign(write);
    for (i, (address, out)) in readers.into_iter().enumerate() {
        s.address[i].set(address);
        out.set(s.word[i]);
    }
}

fn lines(l: Lines, put: &TableWrite, readers: Vec<(Sig, Sig, &'static [u32])>) {
    let reads = readers.iter().map(|(_, _, words)| *words).collect();
    let s = instance(&format!("{}_lines", l.name), &Lines { reads, ..l });
    s.write.assign(put);
    for (i, (address, out, _)) in readers.into_iter().enumerate() {
        s.address[i].set(address);
        out.set(s.word[i]);
    }
}

/// Tells PORT_ERR and PORT_ACTIVE, each change after the one before it was taken; what the link is when the card leaves its
/// reset is no news.
fn port_event(c: &Config, link_up: Sig) -> Stream<Event> {
    let fresh = reg_init("port_fresh", 1, 1);
    let told = reg("port_told", 1);
    let tells = reg_init("port_tells", 1, 0);
    let event = Stream::<Event>::wires(c, "port_event");
    when(fresh, || {
        fresh.set(0);
        told.set(link_up);
    })
    .elif(!tells & told.ne(link_up), || {
        tells.set(1);
        told.set(link_up);
    })
    .elif(event.ready, || tells.set(0));
    event.valid.set(tells);
    event.data.assign(&Event {
        eq: lit(c.eq_bits(), 0),
        kind: lit(8, u64::from(EventKind::Async.code())),
        event: mux(
            told,
            lit(8, u64::from(AsyncEvent::PortActive.code())),
            lit(8, u64::from(AsyncEvent::PortErr.code())),
        ),
        object: lit(24, 0),
    });
    event
}

impl Module for Nic {
    type Io = NicIo;
    fn name(&self) -> String {
        format!("nic_{}", self.0.name)
    }
    fn doc(&self) -> String {
        format!("The Verbena card, configuration `{}`.", self.0.name)
    }
    fn body(&self, io: &NicIo) {
        let c = &self.0;
        if let Err(e) = c.validate() {
            panic!("{e}");
        }
        // FLR stretched to a few clocks, registered
        let hard = Domain::new(io.clock, Some(io.reset));
        let core_reset = hard.within(|| {
            let stretch = reg_init("flr_stretch", 4, 0);
            when(io.flr, || stretch.set(lit(4, 15))).elif(stretch.any(), || stretch.set(stretch - 1));
            let r = reg_init("core_reset", 1, 1);
            r.set(stretch.any() | io.flr);
            r
        });
        let mac = hard.within(|| instance("mac", &Mac(c.clone())));
        for (pin, from) in [
            (mac.tx_clock, io.tx_clock),
            (mac.tx_reset, io.tx_reset),
            (mac.rx_clock, io.rx_clock),
            (mac.rx_reset, io.rx_reset),
        ] {
            pin.set(from);
        }
        mac.line.assign(&io.line_in);
        io.line_out.assign(&mac.out);
        Domain::new(io.clock, Some(core_reset)).within(|| self.core(io, &mac));
    }
}

impl Nic {
    /// Everything in the core clock.
    fn core(&self, io: &NicIo, mac: &MacIo) {
        let c = &self.0;
        let now = reg_init("ticks", 64, 0);
        now.set(mux(io.now_load, io.now_value, now + 1));
        io.now.set(now);

        // host side
        let bar = instance("bar", &Bar(c.clone()));
        let msix = instance("msix", &Msix(c.clone()));
        let command = instance("command", &Command { c: c.clone(), initialised: 7 });
        let read = instance("read", &Read(c.clone()));
        let write = instance("write", &Write(c.clone()));
        let transmit = instance("transmit", &Transmit(c.clone()));
        // transmit
        let doorbell = instance("doorbell", &Doorbell(c.clone()));
        let push = instance("push", &Push(c.clone()));
        let schedule = instance("schedule", &Schedule(c.clone()));
        let fetch = instance("fetch", &Fetch(c.clone()));
        let segment = instance("segment", &Segment(c.clone()));
        let gather = instance("gather", &Gather(c.clone()));
        let transmit_buffer = instance("transmit_buffer", &TransmitBuffer(c.clone()));
        let packetise = instance("packetise", &Packetise(c.clone()));
        // receive
        let packet_buffer = instance("packet_buffer", &PacketBuffer(c.clone()));
        let check = instance("check", &Check { config: c.clone() });
        let place = instance("place", &Place { config: c.clone() });
        let atomic = instance("atomic", &Atomic(c.clone()));
        let acknowledge = instance("acknowledge", &Acknowledge { config: c.clone() });
        let complete = instance("complete", &Complete(c.clone()));
        let notify = instance("notify", &Notify(c.clone()));

        // the edge to the PCIe core: every input meets a register first, so nothing inside depends on a pin at once
        let pcie = PcieConfig::regs_zero(&(), "config");
        pcie.assign(&io.pcie);
        let rc = buffer("rc_slice", c, 2, &io.rc);
        let cq =
            Stream { valid: io.cq.valid, ready: io.cq.ready, data: cat(&[io.cq_bar, io.cq.data.to_bits()]) };
        let width = Width(TlpBeat::total_width(c) + 3);
        let cq = buffer("cq_slice", &width, 2, &cq);
        io.cc.take(&buffer("cc_slice", c, 2, &bar.cc));

        // BARs
        bar.cq.valid.set(cq.valid);
        bar.cq.data.assign(&TlpBeat::from_bits(c, cq.data.bits(0, width.0 - 3)));
        bar.cq_bar.set(cq.data.bits(width.0 - 3, 3));
        cq.ready.set(bar.cq.ready);
        bar.completer_id.set(pcie.requester_id);
        msix.access.take(&bar.msix);
        bar.msix_read.take(&msix.read);
        msix.enable.set(pcie.msix_enable);
        msix.mask.set(pcie.msix_mask);
        doorbell.write.take(&buffer("doorbell_queue", c, 16, &bar.doorbell));

        // PCIe
        for (engine, from) in [(&read.pcie, &pcie), (&write.pcie, &pcie)] {
            engine.assign(from);
        }
        read.now.set(now);
        read.flr.set(io.flr);
        read.rc.take(&rc);
        read.gather.take(&gather.request);
        read.fetch.take(&fetch.request);
        read.place.take(&place.read);
        read.command.take(&command.read);
        read.atomic.take(&atomic.read);
        write.payload.take(&place.payload);
        // one order for everything small: an EQE never passes its CQE, nor a message its EQE
        write.complete.take(&merge(
            "small",
            &(),
            &[&complete.write, &notify.write, &msix.write, &command.write],
        ));
        write.atomic.take(&atomic.write);
        transmit.write.take(&write.request);
        transmit.read.take(&read.request);
        transmit.posted_ok.set(io.posted_ok);
        transmit.nonposted_ok.set(io.nonposted_ok);
        transmit.bus_master.set(pcie.bus_master);
        io.rq.take(&transmit.rq);
        for (data, done) in [
            (&command.read_data, &command.read_done),
            (&fetch.read_data, &fetch.read_done),
            (&place.read_data, &place.read_done),
            (&atomic.read_data, &atomic.read_done),
        ] {
            data.assign(&read.data);
            done.assign(&read.done);
        }
        gather.read_done.assign(&read.done);
        transmit_buffer.read_data.assign(&read.data);

        // transmit
        let pulse = |s: &Stream<Wake>| {
            s.ready.set(high());
            WakePulse { valid: s.valid, qp: s.data.qp }
        };
        schedule.doorbell.assign(&doorbell.wake);
        schedule.fetch.assign(&fetch.wake);
        schedule.respond.assign(&pulse(&merge("responds", c, &[&place.wake, &atomic.wake])));
        schedule.acknowledge.assign(&acknowledge.wake);
        schedule.command.assign(&command.changed);
        schedule.done.take(&segment.done);
        schedule.room.set(segment.room);
        schedule.fence_valid.set(command.fence_transmit.valid);
        command.fence_transmit.ready.set(schedule.fence_ready);
        push.store.assign(&doorbell.store);
        push.ring.assign(&doorbell.push);
        fetch.pushed.take(&push.wqe);
        fetch.pushed_word.take(&push.word);
        fetch.pushed_over.set(push.over);
        fetch.pushed_whole.set(push.whole);
        fetch.turn.take(&schedule.turn);
        segment.work.take(&fetch.work);
        fetch.inline_index.set(segment.inline_index);
        segment.inline_word.set(fetch.inline_word);
        segment.gone.set(gather.gone);
        segment.port_mtu.set(command.port_mtu);
        gather.segment.take(&segment.data);
        gather.words.take(&segment.words);
        transmit_buffer.inline.take(&gather.fill);
        packetise.data.take(&gather.slot);
        // an ACK of place is older than what segment answers: while that waits place gives none
        let answer = place.ack.valid;
        packetise.control.valid.set(answer | segment.control.valid);
        packetise.control.data.assign(&response(&place.ack.data).or_else(c, answer, &segment.control.data));
        place.ack.ready.set(packetise.control.ready);
        segment.control.ready.set(packetise.control.ready & !answer);
        place.answers_wait.set(segment.control.valid);
        gather.sent.set(packetise.sent);
        let requester = &acknowledge.requester_write;
        gather.rewind.assign(&Rewind {
            valid: requester.enable,
            qp: requester.address,
            epoch: Requester::from_bits(&(), requester.data).epoch,
        });
        transmit_buffer.read.set(high());
        transmit_buffer.read_address.set(cat(&[packetise.buffer_address, lit(c.lane_bits(), 0)]));
        packetise.buffer_word.set(transmit_buffer.word);
        command.fence_transmit_done.set(packetise.fence_done);
        mac.transmit.take(&packetise.frame);
        packetise.waiting.set(mac.waiting);

        // receive
        packet_buffer.frame.take(&mac.receive);
        packet_buffer.port_mac.set(command.port_mac);
        packet_buffer.port_mtu.set(command.port_mtu);
        packet_buffer.read_address.set(write.packet_address);
        write.packet_word.set(packet_buffer.read_word);
        packet_buffer.release_check.valid.set(check.release_valid);
        packet_buffer.release_check.slot.set(check.release_slot);
        packet_buffer.release_place.valid.set(place.release_valid);
        packet_buffer.release_place.slot.set(place.release_slot);
        check.headers.take(&packet_buffer.headers);
        check.fence_valid.set(command.fence_receive.valid);
        command.fence_receive.ready.set(check.fence_ready);
        check.room.set(place.room);
        check.raw_over.set(place.raw_over);
        place.verdict.take(&check.verdict);
        place.written.set(write.written);
        command.fence_receive_done.set(place.fence_done);
        acknowledge.response.take(&buffer("response_queue", c, 4, &check.response));
        acknowledge.fault.take(&merge("faults", c, &[&gather.fault, &segment.fault]));
        acknowledge.kick.take(&segment.kick);
        place.data.take(&acknowledge.data);
        acknowledge.placement.take(&place.placement);
        acknowledge.sent.set(segment.tx_write.enable);
        acknowledge.now.set(now);
        atomic.exchange.take(&place.exchange);
        place.exchanged.set(atomic.exchanged);
        place.local.take(&segment.local);
        command.invalidate.take(&place.invalidate);
        atomic.written.set(write.atomic_written);
        // a lost pulse costs a prefetch, not a receive: place reads what it misses
        let posted = Stream::<Wake>::wires(c, "posted");
        posted.valid.set(doorbell.receive.valid);
        posted.data.qp.set(doorbell.receive.qp);
        place.doorbell.take(&buffer("posted_queue", c, 4, &posted));

        // completion
        complete.send.take(&buffer("send_completions", c, 4, &acknowledge.completion));
        complete.receive.take(&buffer("receive_completions", c, 4, &place.completion));
        let entered = reg_init("completions_entered", COUNT, 0);
        let finished = reg_init("completions_finished", COUNT, 0);
        let one = |s: Sig| s.extend(COUNT);
        entered.set(entered + one(acknowledge.completion.moves()) + one(place.completion.moves()));
        finished.set(finished + one(complete.finished));
        command.completions_entered.set(entered);
        command.completions_finished.set(finished);
        complete.doorbell.take(&doorbell.cq);
        complete.now.set(now);
        notify.doorbell.take(&doorbell.eq);
        notify.completion.take(&complete.event);
        let port = port_event(c, io.link_up);
        let asynchronous =
            merge("asynchronous", c, &[&place.event, &acknowledge.event, &segment.event, &port]);
        notify.asynchronous.take(&buffer("events", c, 8, &asynchronous));
        notify.now.set(now);
        msix.raise.take(&notify.raise);

        // commands and what they write
        let put = command.table;
        complete.table.assign(&put);
        notify.table.assign(&put);
        for (i, to) in [
            &doorbell.initialise,
            &fetch.initialise,
            &segment.initialise,
            &check.initialise,
            &place.initialise,
            &acknowledge.initialise,
            &atomic.initialise,
        ]
        .into_iter()
        .enumerate()
        {
            to.take(&command.initialise[i]);
        }
        // reader, and the words of the line that it looks at
        lines(
            Lines::of_qp(c, "rights", 0),
            &put,
            vec![
                (doorbell.read_qp, doorbell.rights_word, &[0]),
                (fetch.read_qp, fetch.rights_word, &[0]),
                (segment.read_qp, segment.rights_word, &[0, 1, 3]),
                (gather.read_qp, gather.rights_word, &[0]),
                (check.qp_address, check.rights_word, &[0, 1, 2, 3]),
                (place.packet_address, place.rights_word, &[0, 1]),
                (place.fetch_address, place.fetch_rights_word, &[0]),
                (acknowledge.qp_address, acknowledge.rights_word, &[0, 1]),
            ],
        );
        lines(
            Lines::of_qp(c, "path", 1),
            &put,
            vec![(packetise.line_qp, packetise.path_word, &[0, 1, 2, 3])],
        );
        lines(
            Lines::of_qp(c, "queues", 2),
            &put,
            vec![
                (fetch.read_qp, fetch.queues_word, &[0, 2]),
                (segment.read_qp, segment.queues_word, &[2, 3]),
                (check.qp_address, check.queues_word, &[3]),
                (place.finish_address, place.finish_queues_word, &[2, 3]),
                (place.fetch_address, place.fetch_queues_word, &[1, 2]),
                (acknowledge.qp_address, acknowledge.queues_word, &[2, 3]),
            ],
        );
        lines(
            Lines::of_qp(c, "addresses", 3),
            &put,
            vec![
                (packetise.line_qp, packetise.addresses_word, &[0, 1, 2, 3]),
                (check.qp_address, check.addresses_word, &[0, 1, 2, 3]),
            ],
        );
        lines(
            Lines {
                name: "regions",
                table: Table::Mr,
                first: 0,
                words: 4,
                depth: c.mrs,
                reads: vec![],
                large: c.ultra_ram,
            },
            &put,
            vec![
                (gather.read_mr, gather.mr_word, &[0, 1, 2, 3]),
                (check.mr_address, check.mr_word, &[0, 1, 2, 3]),
                (place.mr_address, place.mr_word, &[0, 1, 2, 3]),
            ],
        );

        // state words: one writer each
        let query = command.query_qp;
        let (query_tx, query_requester, query_expect, query_placed) = (
            wire("query_tx", Tx::total_width(&())),
            wire("query_requester", Requester::total_width(&())),
            wire("query_expect", Expect::total_width(&())),
            wire("query_placed", Placed::total_width(&())),
        );
        state::<Tx>(
            c,
            "tx",
            &segment.tx_write,
            vec![
                (segment.read_qp, segment.tx_word),
                (fetch.read_qp, fetch.tx_word),
                (place.finish_address, place.tx_word),
                (acknowledge.qp_address, acknowledge.tx_word),
                (check.qp_address, check.tx_word),
                (query, query_tx),
            ],
        );
        state::<Requester>(
            c,
            "requester",
            &acknowledge.requester_write,
            vec![
                (acknowledge.qp_address, acknowledge.requester_word),
                (fetch.read_qp, fetch.requester_word),
                (segment.read_qp, segment.requester_word),
                (check.qp_address, check.requester_word),
                (query, query_requester),
            ],
        );
        state::<Expect>(
            c,
            "expect",
            &check.expect_write,
            vec![(check.qp_address, check.expect_word), (query, query_expect)],
        );
        state::<Placed>(
            c,
            "placed",
            &place.placed_write,
            vec![
                (place.finish_address, place.placed_word),
                (segment.read_qp, segment.placed_word),
                (check.qp_address, check.placed_word),
                (query, query_placed),
            ],
        );
        state_of("post_sq", c.qps, INDEX, &doorbell.post_sq, vec![(fetch.read_qp, fetch.post_sq_word)]);
        state_of(
            "post_rq",
            c.qps,
            INDEX,
            &doorbell.post_rq,
            vec![(check.qp_address, check.post_rq_word), (place.fetch_address, place.post_rq_word)],
        );
        state_of(
            "records",
            c.records,
            Record::total_width(&()),
            &segment.record_write,
            vec![(acknowledge.record_address, acknowledge.record_word)],
        );
        state_of(
            "owed",
            c.responses,
            OwedRead::total_width(&()),
            &check.owed_write,
            vec![(check.owed_address, check.owed_word), (segment.owed_address, segment.owed_word)],
        );
        state_of(
            "operands",
            c.responses,
            Operands::total_width(&()),
            &check.operands_write,
            vec![(atomic.operands_address, atomic.operands_word)],
        );
        state_of(
            "outcomes",
            c.responses,
            Outcome::total_width(&()),
            &atomic.outcome_write,
            vec![(segment.outcome_address, segment.outcome_word)],
        );
        state::<Executed>(
            c,
            "executed",
            &atomic.executed_write,
            vec![(atomic.executed_address, atomic.executed_word), (segment.read_qp, segment.executed_word)],
        );
        let read_list = instance("read_list", &ReadList(c.clone()));
        read_list.write.assign(&segment.read_list);
        read_list.address.set(place.list_address);
        place.list_word.set(read_list.word);
        place.list_groups.set(read_list.groups);
        let halts = [
            Tx::from_bits(&(), query_tx).halt,
            Requester::from_bits(&(), query_requester).halt,
            Expect::from_bits(&(), query_expect).halt,
            Placed::from_bits(&(), query_placed).halt,
        ];
        command.query_epsn.set(Expect::from_bits(&(), query_expect).epsn);
        command.query_next_psn.set(Tx::from_bits(&(), query_tx).next_psn);
        command.query_halted.set(any_of(&halts));

        // registers
        let others = [
            (crate::pcie::bar::REJECTS, bar.count),
            (crate::tx::doorbell::REJECTS, doorbell.count),
            (crate::tx::segment::REJECTS, segment.count),
            (crate::tx::gather::REJECTS, gather.count),
            (crate::rx::packet_buffer::REJECTS, packet_buffer.reject),
            (crate::rx::place::REJECTS, place.count),
            (crate::rx::acknowledge::REJECTS, acknowledge.count),
            (crate::rx::complete::REJECTS, complete.count),
            (crate::rx::notify::REJECTS, notify.count),
            (crate::pcie::read::REJECTS, read.count),
            (crate::command::REJECTS, command.count),
        ];
        // check tells its own with QP and PSN
        let of_check = (crate::rx::check::REJECTS, check.count);
        let rejects: Vec<_> = others.iter().copied().chain([of_check]).collect();

        // what the stages tell trace: names, and what of a mark is theirs
        use Part::{Detail, Index, Opcode, Psn, Qp};
        use {Stage as St, TraceEvent as T};
        let number = |name: &str, pulse: Sig| {
            let n = reg_init(name, INDEX, 0);
            when(pulse, || n.set(n + 1));
            n
        };
        let nobody = lit(c.qp_bits(), 0);
        let ended = read.done;
        let slot_bits = hdl::index_width(c.wqe_slots);
        let (by_fetch, by_gather) =
            (ended.client.eq(ReadClient::Fetch as u64), ended.client.eq(ReadClient::Gather as u64));
        let gives = (packetise.frame.moves() & packetise.frame.data.last).named("frame_given");
        let comes = (mac.receive.moves() & mac.receive.data.last).named("frame_comes");
        let judged = packet_buffer.trace.valid | packet_buffer.reject.valid;
        // refusals that no mark of a stage tells; of two in one clock the counters tell the other
        let refused = others
            .iter()
            .fold((low(), lit(6, 0)), |(any, code), (_, s)| (any | s.valid, mux(s.valid, s.index, code)));
        let marks: Vec<(Source, Mark)> = vec![
            (
                source("doorbell", &[T::Doorbell], St::Doorbell, &[Qp, Index, Detail]),
                Mark {
                    index: doorbell.post_sq.data,
                    detail: doorbell.push.pushed.extend(16),
                    ..Mark::of(T::Doorbell, doorbell.wake.valid, doorbell.wake.qp)
                },
            ),
            (
                source("schedule", &[T::Schedule], St::Schedule, &[Qp]),
                Mark::of(
                    T::Schedule,
                    schedule.turn.moves() & !schedule.turn.data.fence,
                    schedule.turn.data.qp,
                ),
            ),
            (source("fetch", &[T::Fetch], St::Fetch, &[Qp, Index, Opcode, Detail]), fetch.trace),
            (
                source("read", &[T::Fetched, T::Gathered], St::Pcie, &[Qp, Detail]),
                Mark {
                    event: mux(by_fetch, lit(8, T::Fetched as u64), lit(8, T::Gathered as u64)),
                    detail: mux(by_fetch, ended.id.bits(0, slot_bits).extend(16), ended.id.extend(16)),
                    ..Mark::of(
                        T::Fetched,
                        ended.valid & (by_fetch | by_gather),
                        mux(by_fetch, fetch.ended_qp, nobody),
                    )
                },
            ),
            (
                source("segment", &[T::Segment, T::Respond], St::Segment, &[Qp, Index, Psn, Opcode, Detail]),
                segment.trace,
            ),
            (
                source("respond", &[T::Respond], St::Respond, &[Qp, Psn, Opcode, Detail]),
                Mark {
                    psn: packetise.control.data.psn,
                    opcode: packetise.control.data.opcode,
                    detail: packetise.control.data.syndrome.extend(16),
                    ..Mark::of(T::Respond, packetise.control.moves(), packetise.control.data.qp)
                },
            ),
            (source("gather", &[T::Gather], St::Gather, &[Qp, Index, Psn, Opcode, Detail]), gather.trace),
            (
                source("packetise", &[T::Packetise], St::Packetise, &[Qp, Index, Psn, Opcode, Detail]),
                Mark { index: number("frames_begun", packetise.trace.valid), ..packetise.trace },
            ),
            (
                source("mac_send", &[T::MacSend], St::Mac, &[Index]),
                Mark { index: number("frames_given", gives), ..Mark::of(T::MacSend, gives, nobody) },
            ),
            (
                source("mac_receive", &[T::MacReceive], St::Mac, &[Index]),
                Mark { index: number("frames_come", comes), ..Mark::of(T::MacReceive, comes, nobody) },
            ),
            (
                source("verify", &[T::Verify], St::Verify, &[Qp, Index, Psn, Opcode, Detail]),
                Mark { index: number("frames_judged", judged), ..packet_buffer.trace },
            ),
            (source("check", &[T::Check, T::Reject], St::Check, &[Qp, Psn, Opcode, Detail]), check.trace),
            (source("place", &[T::Place], St::Place, &[Qp, Index, Psn, Detail]), place.trace),
            (source("placed", &[T::Placed], St::Place, &[Qp, Index, Psn, Detail]), place.trace_done),
            (
                source(
                    "acknowledge",
                    &[T::Acknowledge, T::Retire],
                    St::Acknowledge,
                    &[Qp, Index, Psn, Opcode, Detail],
                ),
                acknowledge.trace,
            ),
            (source("complete", &[T::Complete], St::Complete, &[Qp, Index, Opcode, Detail]), complete.trace),
            (source("notify", &[T::Notify], St::Notify, &[Qp]), Mark::of(T::Notify, notify.written, nobody)),
            (
                Source { name: "reject", events: &[T::Reject], stage: None, parts: &[Detail] },
                Mark { detail: refused.1.extend(16), ..Mark::of(T::Reject, refused.0, nobody) },
            ),
        ];
        if c.trace_pins {
            io.trace.valid.set(cat(&marks.iter().rev().map(|(_, m)| m.valid).collect::<Vec<_>>()));
            for ((_, mark), (head, body)) in marks.iter().zip(io.trace.heads.iter().zip(&io.trace.bodies)) {
                head.set(mark.head());
                body.set(mark.body());
            }
        } else {
            io.trace.assign_zero();
        }
        let trace = (c.trace_entries > 0).then(|| {
            instance("trace", &Trace { c: c.clone(), sources: marks.iter().map(|(s, _)| *s).collect() })
        });
        let staged = |count: &Count, counter: StageCounter| count.valid & count.index.eq(counter as u64);
        let sent_frame = packetise.packet_count | packetise.ack_count | packetise.nak_count;
        let bytes = |pulse: Sig, length: Sig| length.extend(16) & pulse.repeat(16);
        use StageCounter as S;
        let credit = |request: &Stream<TlpBeat>, ok: Sig| request.valid & request.data.first & !ok;
        let mut events: Vec<(S, Sig)> = vec![
            (S::TxFrames, sent_frame),
            (S::TxBytes, bytes(sent_frame, packetise.frame_length)),
            (S::RxFrames, packet_buffer.frame_count),
            (S::RxBytes, bytes(packet_buffer.frame_count, packet_buffer.frame_length)),
            (S::TxPackets, packetise.packet_count),
            (S::TxAcks, packetise.ack_count),
            (S::TxNaks, packetise.nak_count),
            (S::Retransmits, segment.retransmit),
            (S::TimeoutEvents, staged(&acknowledge.stage_count, S::TimeoutEvents)),
            (S::RnrEvents, staged(&acknowledge.stage_count, S::RnrEvents)),
            (S::Cqes, complete.written),
            (S::Eqes, notify.written),
            (S::MsixSent, msix.sent),
            (S::WqeFetches, fetch.fetched),
            (S::WqeFetches, staged(&place.stage_count, S::WqeFetches)),
            (S::ReadTlps, transmit.read_sent),
            (S::WriteTlps, transmit.write_sent),
            (S::ScheduleStall, schedule.stall),
            (S::FetchStall, fetch.stall),
            (S::SegmentStall, segment.stall),
            (S::GatherStall, gather.stall),
            (S::PacketiseStall, packetise.stall),
            (S::PlaceStall, place.stall),
            (S::CompleteStall, complete.write.valid & !complete.write.ready),
            (S::DoorbellStall, bar.doorbell.valid & !bar.doorbell.ready),
            (S::CheckStall, check.stall),
            (S::AcknowledgeStall, acknowledge.stall),
            (S::NotifyStall, notify.write.valid & !notify.write.ready),
            (S::PostedStall, credit(&write.request, io.posted_ok)),
            (S::Superseded, gather.superseded),
            (S::NonpostedStall, credit(&read.request, io.nonposted_ok)),
        ];
        events.extend(trace.as_ref().map(|trace| (S::TraceLost, trace.lost)));
        let csr = instance(
            "csr",
            &Csr {
                c: c.clone(),
                rejects: rejects.iter().map(|(may, _)| *may).collect(),
                stages: events
                    .iter()
                    .map(|(counter, s)| StageEvent { counter: *counter, bits: s.width() })
                    .collect(),
            },
        );
        csr.access.take(&bar.register);
        bar.register_read.take(&csr.data);
        for (to, (_, from)) in csr.rejects.iter().zip(&rejects) {
            to.assign(from);
        }
        for (to, (_, from)) in csr.stages.iter().zip(&events) {
            to.set(*from);
        }
        csr.now.set(now);
        csr.port_mac.set(command.port_mac);
        csr.port_mtu.set(command.port_mtu);
        csr.link_up.set(io.link_up);
        packet_buffer.raw_receive.set(csr.raw_receive);
        csr.command_consumer.set(command.consumer);
        command.command_base.set(csr.command_base);
        command.response_base.set(csr.response_base);
        command.log_depth.set(csr.command_log_depth);
        command.factory_mac.set(io.factory_mac);
        command.factory_mtu.set(io.factory_mtu);
        command.producer.set(csr.command_producer);
        command.enable.set(csr.command_enable);

        io.flash_reload.set(csr.flash_reload);
        if c.flash_half_clocks > 0 {
            let flash = instance("shifter", &Flash { half_clocks: c.flash_half_clocks });
            flash.control.assign(&csr.flash);
            csr.flash_word.set(flash.word);
            csr.flash_left.set(flash.left);
            flash.miso.set(io.flash_miso);
            io.flash_select_n.set(flash.select_n);
            io.flash_clock.set(flash.clock_out);
            io.flash_mosi.set(flash.mosi);
        } else {
            csr.flash_word.set(lit(64, 0));
            csr.flash_left.set(lit(4, 0));
            io.flash_select_n.set(high());
            io.flash_clock.set(low());
            io.flash_mosi.set(low());
        }

        // quiet: every stage idle, nothing between two of them
        let due = |valid: Sig, deadline: Sig| {
            let ahead = deadline - now.bits(0, DEADLINE);
            let due = now + cat(&[lit(64 - DEADLINE, 0), ahead]);
            mux(valid, mux(ahead.msb(), now, due), constant(Bits::from_words(64, &[u64::MAX])))
        };
        let timeout = due(acknowledge.next_due_valid, acknowledge.next_due).named("next_timeout");
        let event = due(complete.next_due_valid, complete.next_due).named("next_event");
        let next_due = mux(timeout.lt(event), timeout, event);
        io.next_due.set(next_due);
        csr.next_due.set(next_due);
        match &trace {
            Some(trace) => {
                for (to, (_, mark)) in trace.marks.iter().zip(&marks) {
                    to.assign(mark);
                }
                trace.enable.set(csr.trace_enable);
                trace.stages.set(csr.trace_stages);
                trace.now.set(now);
                trace.address.set(csr.trace_address.resize(trace.address.width()));
                csr.trace_word.set(trace.word);
                csr.trace_producer.set(trace.producer);
            }
            None => {
                csr.trace_word.set(lit(64, 0));
                csr.trace_producer.set(lit(64, 0));
            }
        }
        let traced = trace.as_ref().map_or(high(), |trace| trace.idle);
        // 8 bits of the time of a mark that waits are not its own
        hdl::assert_always("no_mark_waits_over_a_jump", !io.now_load | traced);
        let idle = all_of(&[
            traced,
            bar.idle,
            msix.idle,
            command.idle,
            read.idle,
            write.idle,
            doorbell.idle,
            push.idle,
            schedule.idle,
            fetch.idle,
            segment.idle,
            gather.idle,
            !packetise.data.valid,
            !packetise.control.valid,
            !packetise.frame.valid,
            packet_buffer.idle,
            check.idle,
            place.idle,
            acknowledge.idle,
            atomic.idle,
            complete.idle,
            notify.idle,
            mac.idle,
            !io.rq.valid,
            !io.rc.valid,
            !rc.valid,
            !io.cq.valid,
            !cq.valid,
            !io.cc.valid,
        ]);
        // streams between idle stages move within a clock or two, the line's clocks within ten: 32 prove it
        let calm = reg_init("calm", 6, 0);
        when(!idle, || calm.set(0)).elif(!calm.msb(), || calm.set(calm + 1));
        let quiet = idle & calm.msb();
        csr.quiet.set(quiet & csr.idle);
        io.quiet.set(quiet & csr.idle);
    }
}
