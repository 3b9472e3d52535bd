//! command: creates, modifies, queries and destroys objects.
//!
//! In: entries of the command ring (256 bytes each, read from host memory). Out: words written into the object tables,
//! `Initialise` to the stages that own state words, fence tokens, and one response per command, in order, never
//! none: bad input gets a status. At reset it clears every table entry first.
//!
//! Destroying, and moving a QP to RESET or ERR: the entry is made invalid (or the new state written), then one token
//! goes through transmit (from schedule) and one through receive (from check). When both have come back, every read of
//! the object is over and its payload written. Then every stage serves one `Initialise` (an empty one if nothing starts
//! anew), so none is in the middle of the QP, and complete finishes the CQEs that were on their way. The response,
//! which follows in the same stream of writes, tells that no DMA touches the object and no CQE of it is to come.
//!
//! A QP of raw frames can forge any: it belongs to page 0, that of the driver, or is not made.
//!
//! A key that a request ends (`invalidate`, from place) is made invalid beside all that, in a clock in which no command
//! writes: after 20 clocks at most, whatever a command waits for. The object stays, for the driver to destroy.
//!
//! Requirements: CMD MEM QPS QUE RAW RESP

use crate::config::Config;
use crate::flow::{
    Count, ReadClient, ReadData, ReadDone, ReadRequest, SmallWrite, Table, TableWrite, WakePulse,
};
use crate::qp::{Initialise, PSN};
use contract::command::CommandEntryBits;
use contract::context::{PortConfigBits, QpRightsBits};
use contract::{CommandOpcode, CommandStatus, QpState, Reject, Transport};
use hdl::{
    Bundle, EnumSig, HwEnum, Memory, Module, PortBuilder, Ports, Sig, Stream, all_of, any_of, cat, high, lit,
    low, mux, reg, reg_init, when, wire,
};

/// Bits of the counts of CQEs: more than can be on their way at once.
pub const COUNT: u32 = 8;

/// What this stage may count.
pub const REJECTS: &[Reject] = &[Reject::CommandFetchFailed];

/// See the head of this file.
#[derive(Debug)]
pub struct Command {
    /// The card.
    pub c: Config,
    /// Stages that take [`Initialise`].
    pub initialised: u32,
}

/// Ports of [`Command`].
pub struct CommandIo {
    /// Command ring.
    pub command_base: Sig,
    /// Response ring.
    pub response_base: Sig,
    /// log2 of the entries of both.
    pub log_depth: Sig,
    /// Commands written.
    pub producer: Sig,
    /// Commands are executed.
    pub enable: Sig,
    /// Commands answered.
    pub consumer: Sig,
    /// Reads of command entries.
    pub read: Stream<ReadRequest>,
    /// What they bring.
    pub read_data: ReadData,
    /// Their ends.
    pub read_done: ReadDone,
    /// Responses.
    pub write: Stream<SmallWrite>,
    /// Words of objects.
    pub table: TableWrite,
    /// Memory regions whose keys end now; taken in the clock of the write.
    pub invalidate: Stream<Sig>,
    /// Fresh state words.
    pub initialise: Vec<Stream<Initialise>>,
    /// A QP's context has changed: what was posted in its old state may now be sent.
    pub changed: WakePulse,
    /// Token into schedule.
    pub fence_transmit: Stream<Sig>,
    /// It came back from packetise.
    pub fence_transmit_done: Sig,
    /// Token into check.
    pub fence_receive: Stream<Sig>,
    /// It came back from place.
    pub fence_receive_done: Sig,
    /// CQEs handed to complete so far.
    pub completions_entered: Sig,
    /// CQEs that complete has written or refused so far.
    pub completions_finished: Sig,
    /// The QP whose live state a query wants; words arrive one clock later.
    pub query_qp: Sig,
    /// Its expected PSN.
    pub query_epsn: Sig,
    /// Its next PSN to send.
    pub query_next_psn: Sig,
    /// Some stage has halted it.
    pub query_halted: Sig,
    /// MAC address of the board, in force until a command sets another.
    pub factory_mac: Sig,
    /// MTU of the board, likewise; 0: 1500.
    pub factory_mtu: Sig,
    /// MAC address of the port.
    pub port_mac: Sig,
    /// MTU of the port.
    pub port_mtu: Sig,
    /// Refusals.
    pub count: Count,
    /// Nothing under way.
    pub idle: Sig,
}

impl Ports for CommandIo {
    type Config = Command;
    fn declare(m: &Command, p: &mut PortBuilder) -> Self {
        let c = &m.c;
        CommandIo {
            command_base: p.input("command_base", &64.into()),
            response_base: p.input("response_base", &64.into()),
            log_depth: p.input("log_depth", &4.into()),
            producer: p.input("producer", &16.into()),
            enable: p.input("enable", &1.into()),
            consumer: p.output("consumer", &16.into()),
            read: p.source("read", &()),
            read_data: p.input("read_data", c),
            read_done: p.input("read_done", &()),
            write: p.source("write", &()),
            table: p.output("table", &()),
            invalidate: p.sink("invalidate", &c.mr_bits().into()),
            initialise: (0..m.initialised).map(|i| p.source(&format!("initialise_{i}"), c)).collect(),
            changed: p.output("changed", c),
            fence_transmit: p.source("fence_transmit", &1.into()),
            fence_transmit_done: p.input("fence_transmit_done", &1.into()),
            fence_receive: p.source("fence_receive", &1.into()),
            fence_receive_done: p.input("fence_receive_done", &1.into()),
            completions_entered: p.input("completions_entered", &COUNT.into()),
            completions_finished: p.input("completions_finished", &COUNT.into()),
            query_qp: p.output("query_qp", &c.qp_bits().into()),
            query_epsn: p.input("query_epsn", &PSN.into()),
            query_next_psn: p.input("query_next_psn", &PSN.into()),
            query_halted: p.input("query_halted", &1.into()),
            factory_mac: p.input("factory_mac", &48.into()),
            factory_mtu: p.input("factory_mtu", &16.into()),
            port_mac: p.output("port_mac", &48.into()),
            port_mtu: p.output("port_mtu", &16.into()),
            count: p.output("count", &()),
            idle: p.output("idle", &1.into()),
        }
    }
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Invalidates every entry of every table.
    Clear,
    /// Waits for a command.
    Wait,
    /// Asks for the entry.
    Request,
    /// Waits for it.
    Arrive,
    /// Reads its first two words.
    Head,
    /// Looks the object up.
    Look,
    /// Decides.
    Judge,
    /// Writes words into the tables.
    Words,
    /// Sends the tokens.
    Fence,
    /// Waits for them.
    Return,
    /// Hands out fresh state.
    Initialise,
    /// Waits for the CQEs that were on their way.
    Settle,
    /// Collects a query's answer.
    Query,
    /// Builds a quarter of the response.
    Build,
    /// Writes it.
    Respond,
}

/// The table of an opcode, as (opcode, table, creates, destroys, queries).
const OBJECTS: &[(CommandOpcode, Table, Kind)] = &[
    (CommandOpcode::CreateEq, Table::Eq, Kind::Create),
    (CommandOpcode::DestroyEq, Table::Eq, Kind::Destroy),
    (CommandOpcode::CreateCq, Table::Cq, Kind::Create),
    (CommandOpcode::ModifyCq, Table::Cq, Kind::Modify),
    (CommandOpcode::DestroyCq, Table::Cq, Kind::Destroy),
    (CommandOpcode::CreateMr, Table::Mr, Kind::Create),
    (CommandOpcode::DestroyMr, Table::Mr, Kind::Destroy),
    (CommandOpcode::CreateQp, Table::Qp, Kind::Create),
    (CommandOpcode::ModifyQp, Table::Qp, Kind::Modify),
    (CommandOpcode::QueryQp, Table::Qp, Kind::Query),
    (CommandOpcode::DestroyQp, Table::Qp, Kind::Destroy),
    (CommandOpcode::QueryMr, Table::Mr, Kind::Query),
    (CommandOpcode::QueryCq, Table::Cq, Kind::Query),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Create,
    Modify,
    Query,
    Destroy,
}

/// The command writes the words that hold state, PSNs and retries.
fn whole_rights(h: &CommandEntryBits) -> Sig {
    h.word_mask.bits(0, 3).all()
}

impl Module for Command {
    type Io = CommandIo;
    fn name(&self) -> String {
        format!("command_{}", self.c.name)
    }
    fn doc(&self) -> String {
        "command: creates, modifies, queries and destroys objects.".into()
    }
    fn body(&self, io: &CommandIo) {
        let c = &self.c;
        let largest = c.qps.max(c.mrs).max(c.cqs).max(c.eqs);
        let index_bits = hdl::index_width(largest);
        let limit = |t: Sig| {
            mux(
                t.eq(Table::Qp as u64),
                lit(17, c.qps.into()),
                mux(
                    t.eq(Table::Mr as u64),
                    lit(17, c.mrs.into()),
                    mux(t.eq(Table::Cq as u64), lit(17, c.cqs.into()), lit(17, c.eqs.into())),
                ),
            )
        };
        let phase = EnumSig::<Phase>::reg("phase", Phase::Clear);
        let consumer = reg_init("answered", 16, 0);
        io.consumer.set(consumer);
        let was_enabled = reg_init("was_enabled", 1, 0);
        was_enabled.set(io.enable);

        // the entry, as quadwords; written by the read engine
        let entry_words = 256 / 8;
        let entry = Memory::with_lanes("entry", entry_words / (c.data_bytes / 8), c.data_bits(), 64);
        let lane_quads = c.data_bytes / 8;
        let quad_lanes: Vec<Sig> = (0..lane_quads).rev().map(|i| io.read_data.lanes.bit(i * 8)).collect();
        let beat_address_low = hdl::index_width(c.data_bytes);
        entry.write_lanes(
            io.read_data.valid & io.read_data.client.eq(ReadClient::Command as u64),
            io.read_data.address.bits(beat_address_low, entry.address_width()),
            io.read_data.data,
            cat(&quad_lanes),
        );
        let at = reg("at", 5); // quadword of the entry
        let entry_beat = entry.read(
            "entry_beat",
            high(),
            if lane_quads == 1 { at } else { at.bits(5 - entry.address_width(), entry.address_width()) },
        );
        let quad = if lane_quads == 1 {
            entry_beat
        } else {
            let low_bits = 5 - entry.address_width();
            let which = hdl::delay("which_quad", at.bits(0, low_bits));
            hdl::select(which, &(0..lane_quads).map(|i| entry_beat.bits(i * 64, 64)).collect::<Vec<_>>())
        };

        let head = reg("head", 128);
        let h = CommandEntryBits::unpack(head.extend(2048));
        let index = h.index.resize(index_bits);
        let status = reg("status", 8);
        let fail = |s: CommandStatus| status.set(s as u64);

        // objects that exist, with the state of QPs
        let objects = Memory::new("objects", 4 << index_bits, 5);
        let table_of = wire("table_of", 2);
        table_of.set(0);
        let is = |op: CommandOpcode| h.opcode.eq(op as u64);
        let kind_is =
            |k: Kind| any_of(&OBJECTS.iter().filter(|o| o.2 == k).map(|o| is(o.0)).collect::<Vec<_>>());
        for (op, table, _) in OBJECTS {
            when(is(*op), || table_of.set(*table as u64));
        }
        let (creates, modifies, queries, destroys) = (
            kind_is(Kind::Create).named("creates"),
            kind_is(Kind::Modify).named("modifies"),
            kind_is(Kind::Query).named("queries"),
            kind_is(Kind::Destroy).named("destroys"),
        );
        let is_qp = table_of.eq(Table::Qp as u64);
        let sets_port = is(CommandOpcode::SetPort);
        let clear_index = reg_init("clear_index", index_bits, 0);
        let clear_table = reg_init("clear_table", 2, 0);
        let object = objects.read("object", high(), cat(&[table_of, index]));
        let exists = object.bit(4);
        let state = object.bits(0, 4);
        let mark = wire("mark", 1);
        let mark_address = wire("mark_address", 2 + index_bits);
        let mark_value = wire("mark_value", 5);
        mark.set(low());
        mark_address.set(cat(&[table_of, index]));
        mark_value.set(0);
        objects.write(mark, mark_address, mark_value);

        // shadow of every context that can be queried
        let word = reg("word", 5); // word of the context, 0..=16
        let shadow_write = wire("shadow_write", 1);
        shadow_write.set(low());
        let table = TableWrite::wires(&(), "put");
        let ended = io.invalidate.data;
        let ends = (io.invalidate.valid & !table.valid).named("ends_a_key");
        io.invalidate.ready.set(!table.valid);
        let shadow_word_at = wire("shadow_word_at", 4);
        shadow_word_at.set(0);
        let shadows =
            [(Table::Qp, "qp", c.qps, 16u32), (Table::Mr, "mr", c.mrs, 4), (Table::Cq, "cq", c.cqs, 3)];
        let shadowed = shadows.map(|(of, name, entries, words)| {
            let row = words.next_power_of_two();
            let memory = c.large(Memory::new(&format!("shadow_{name}"), entries * row, 64));
            let (index_bits, word_bits) = (hdl::index_width(entries), hdl::index_width(row));
            let at = |index: Sig, word: Sig| cat(&[index.resize(index_bits), word.bits(0, word_bits)]);
            let mine = table_of.eq(of as u64);
            let ends = if of == Table::Mr { ends } else { low() };
            memory.write(
                (shadow_write & mine) | ends,
                mux(ends, at(ended, lit(4, 0)), at(index, word)),
                mux(ends, lit(64, 0), quad),
            );
            let there = mine & shadow_word_at.extend(5).lt(u64::from(words));
            let there = hdl::delay(&format!("{name}_is_shadowed"), there);
            memory.read(&format!("shadowed_{name}"), high(), at(index, shadow_word_at)) & there.repeat(64)
        });
        let shadowed = shadowed.into_iter().fold(lit(64, 0), |all, one| all | one).named("shadowed");

        io.table.valid.set(table.valid | ends);
        io.table.table.set(mux(ends, lit(2, Table::Mr as u64), table.table));
        io.table.index.set(mux(ends, ended.extend(16), table.index));
        io.table.word.set(mux(ends, lit(4, 0), table.word));
        io.table.data.set(mux(ends, lit(64, 0), table.data));
        table.valid.set(low());
        table.table.set(table_of);
        table.index.set(index.extend(16));
        table.word.set(word.bits(0, 4));
        table.data.set(quad);

        io.read.valid.set(phase.is(Phase::Request));
        let mask = (lit(17, 1) << io.log_depth) - 1;
        let slot = consumer & mask.bits(0, 16);
        let offset = cat(&[slot, lit(8, 0)]).extend(64);
        io.read.data.iova.set(io.command_base + offset);
        io.read.data.length.set(256);
        io.read.data.address.set(0);
        io.read.data.id.set(0);

        let rights_state = quad.bits(0, 4);
        let new_state = reg("new_state", 4);
        let rights_valid = reg("rights_valid", 1);
        let rights_transport = reg("rights_transport", 4);
        let forges = reg("forges", 1);
        let psns = reg("psns", 64);
        let retries = reg("retries", 6);

        let port_mac = reg_init("port_mac_value", 48, 0);
        let port_mtu = reg_init("port_mtu_value", 16, 1500);
        let port_set = reg_init("port_set", 1, 0);
        io.port_mac.set(mux(port_set, port_mac, io.factory_mac));
        let factory = port_set | io.factory_mtu.eq(0);
        io.port_mtu.set(mux(factory, port_mtu, io.factory_mtu));

        let expected = reg("expected", COUNT);
        let quarter = reg("quarter", 2);
        let step = reg("step", 4);
        // initialise streams
        let open: Vec<Sig> =
            (0..self.initialised).map(|i| reg_init(&format!("initialise_open_{i}"), 1, 0)).collect();
        for (s, open) in io.initialise.iter().zip(&open) {
            s.valid.set(*open);
            s.data.qp.set(index.resize(c.qp_bits()));
            let fresh = h.reset_all | creates;
            // flags of anything but a QP's creation or modification are empty
            let some = creates | modifies;
            s.data.receive.set((h.init_receive | fresh) & some);
            s.data.send.set((h.init_send | fresh) & some);
            s.data.reset.set(fresh & some);
            s.data.rq_psn.set(psns.bits(0, PSN));
            s.data.sq_psn.set(psns.bits(32, PSN));
            s.data.retry_cnt.set(retries.bits(0, 3));
            s.data.rnr_retry.set(retries.bits(3, 3));
            when(s.moves(), || open.set(low()));
        }
        let tokens = [reg_init("token_transmit", 1, 0), reg_init("token_receive", 1, 0)];
        let returned = [reg_init("returned_transmit", 1, 0), reg_init("returned_receive", 1, 0)];
        for (i, (stream, done)) in
            [(&io.fence_transmit, io.fence_transmit_done), (&io.fence_receive, io.fence_receive_done)]
                .into_iter()
                .enumerate()
        {
            stream.valid.set(tokens[i]);
            stream.data.set(1);
            when(stream.moves(), || tokens[i].set(low()));
            when(done, || returned[i].set(high()));
        }

        io.query_qp.set(index.resize(c.qp_bits()));
        io.count.valid.set(low());
        io.count.index.set(Reject::CommandFetchFailed as u64);

        io.changed
            .valid
            .set(phase.is(Phase::Build) & quarter.none() & step.none() & is_qp & modifies & status.none());
        io.changed.qp.set(index.resize(c.qp_bits()));

        // the response, a quarter of eight quadwords at a time
        let line = reg("line", 512);
        io.write.valid.set(phase.is(Phase::Respond));
        io.write.data.iova.set(io.response_base + offset + cat(&[quarter, lit(6, 0)]).extend(64));
        io.write.data.dwords.set(16);
        io.write.data.data.set(line);
        let phase_bit = !(consumer >> io.log_depth).bit(0);

        let legal = {
            // pairs (from, to) of the verbs' table, per transport
            let mut pairs = vec![];
            for transport in [Transport::Rc, Transport::Uc, Transport::Ud, Transport::Gsi, Transport::Raw] {
                for from in QpState::ALL {
                    for to in QpState::ALL {
                        if from.may_become(*to, transport) {
                            pairs.push(
                                rights_transport.eq(transport as u64)
                                    & state.eq(*from as u64)
                                    & new_state.eq(*to as u64),
                            );
                        }
                    }
                }
            }
            any_of(&pairs).named("legal")
        };

        // words of the context, and the quadword after `at` in their order
        let of = |t: Table| table_of.eq(t as u64);
        let words = mux(of(Table::Cq), lit(5, 3), mux(of(Table::Mr), lit(5, 4), lit(5, 2)));
        let words = mux(is_qp, lit(5, 16), words).named("words");
        let next_at = mux(at.eq(words + 1), lit(5, 2), at + 1).named("next_at");

        phase.switch(|p| match p {
            Phase::Clear => {
                table.valid.set(high());
                table.table.set(clear_table);
                table.index.set(clear_index.extend(16));
                table.word.set(0);
                table.data.set(0);
                mark.set(high());
                mark_address.set(cat(&[clear_table, clear_index]));
                clear_index.set(clear_index + 1);
                when(clear_index.all(), || {
                    clear_table.set(clear_table + 1);
                    when(clear_table.all(), || phase.set(Phase::Wait));
                });
            }
            Phase::Wait => {
                at.set(0);
                when(io.enable & !was_enabled, || consumer.set(0))
                    .elif(io.enable & consumer.ne(io.producer), || phase.set(Phase::Request));
            }
            Phase::Request => {
                when(io.read.ready, || phase.set(Phase::Arrive));
            }
            Phase::Arrive => {
                when(io.read_done.valid & io.read_done.client.eq(ReadClient::Command as u64), || {
                    step.set(0);
                    phase.set(Phase::Head);
                    when(io.read_done.failed, || {
                        io.count.valid.set(high());
                        head.set(0);
                        fail(CommandStatus::Internal);
                        quarter.set(0);
                        phase.set(Phase::Build);
                    });
                });
            }
            // words 0, 1 (head), then 2, 3, 4 (rights of a QP): `at` leads by one clock
            Phase::Head => {
                at.set(at + 1);
                step.set(step + 1);
                when(step.eq(1), || head.set(cat(&[head.bits(64, 64), quad])));
                when(step.eq(2), || head.set(cat(&[quad, head.bits(0, 64)])));
                when(step.eq(3), || {
                    let r = QpRightsBits::unpack(cat(&[lit(192, 0), quad]));
                    new_state.set(rights_state);
                    rights_valid.set(r.valid);
                    rights_transport.set(r.transport);
                    forges.set(r.transport.eq(Transport::Raw as u64) & r.page.any());
                });
                when(step.eq(4), || {
                    let r = QpRightsBits::unpack(cat(&[lit(128, 0), quad, lit(64, 0)]));
                    retries.set(cat(&[r.rnr_retry, r.retry_cnt]));
                });
                when(step.eq(5), || {
                    psns.set(quad);
                    phase.set(Phase::Look);
                });
            }
            Phase::Look => {
                // the object's word arrives for Judge; the words of the context start at quadword 2
                at.set(mux(sets_port, lit(5, 2), lit(5, 3)));
                word.set(1);
                quarter.set(0);
                fail(CommandStatus::Ok);
                phase.set(Phase::Judge);
            }
            Phase::Judge => {
                let in_range = h.index.lt(limit(table_of).extend(24));
                let known = any_of(&[creates, modifies, queries, destroys]);
                phase.set(Phase::Build);
                step.set(0);
                // the mask must name the rights line if the state is to change
                let whole_rights = whole_rights(&h);
                let modifies_qp = modifies & is_qp;
                when(sets_port, || {
                    phase.set(Phase::Words);
                })
                .elif(is(CommandOpcode::Nop), || {})
                .elif(!known, || fail(CommandStatus::BadOpcode))
                .elif(!in_range, || fail(CommandStatus::BadIndex))
                .elif(creates & exists, || fail(CommandStatus::InUse))
                .elif(!creates & !exists, || fail(CommandStatus::NotFound))
                .elif(creates & is_qp & (new_state.ne(QpState::Reset as u64) | !rights_valid), || {
                    fail(CommandStatus::BadParameter);
                })
                .elif(is_qp & (creates | modifies_qp) & (creates | h.word_mask.bit(0)) & forges, || {
                    fail(CommandStatus::BadParameter);
                })
                .elif(modifies_qp & whole_rights & !rights_valid, || fail(CommandStatus::BadParameter))
                .elif(modifies_qp & whole_rights & !legal, || fail(CommandStatus::BadState))
                .elif(modifies_qp & !whole_rights & (h.reset_all | h.init_receive | h.init_send), || {
                    fail(CommandStatus::BadParameter);
                })
                .elif(creates | modifies, || {
                    phase.set(Phase::Words);
                    mark.set(creates | (is_qp & whole_rights));
                    mark_value.set(cat(&[high(), mux(is_qp, new_state, lit(4, 0))]));
                    // a reset quiesces: the words make the state RESET, then the tokens pass
                })
                .elif(destroys, || {
                    mark.set(high());
                    mark_value.set(0);
                    table.valid.set(high());
                    table.word.set(0);
                    table.data.set(0);
                    phase.set(Phase::Fence);
                })
                .otherwise(|| phase.set(Phase::Query));
                when(creates | modifies, || at.set(next_at));
            }
            // one context word per clock: `quad` is word `word`. Word 0, which makes the object valid, is the last one:
            // a key that somebody guesses never meets the address of the region before
            Phase::Words => {
                at.set(next_at);
                word.set(mux(word.eq(words - 1), lit(5, 0), word + 1));
                // of a CQ its moderation alone: the rest would move a ring that is in use
                let named = (h.word_mask >> word.bits(0, 4)).bit(0) & (is_qp | word.eq(2));
                let masked = creates | named;
                when(sets_port, || {
                    let port = PortConfigBits::unpack(quad);
                    port_mac.set(port.mac);
                    port_mtu.set(port.mtu);
                    port_set.set(high());
                    phase.set(Phase::Build);
                    step.set(0);
                })
                .otherwise(|| {
                    table.valid.set(masked);
                    shadow_write.set(masked);
                });
                when(!sets_port & word.eq(0), || {
                    phase.set(Phase::Build);
                    step.set(0);
                    let ends = whole_rights(&h) & new_state.eq(QpState::Err as u64);
                    when(is_qp & (h.reset_all | ends) & !creates, || phase.set(Phase::Fence))
                        .elif(is_qp & (creates | h.init_receive | h.init_send), || {
                            phase.set(Phase::Initialise)
                        });
                    when(is_qp & (creates | (!h.reset_all & !ends & (h.init_receive | h.init_send))), || {
                        open.iter().for_each(|o| o.set(high()));
                    });
                });
            }
            Phase::Fence => {
                tokens.iter().for_each(|t| t.set(high()));
                returned.iter().for_each(|t| t.set(low()));
                phase.set(Phase::Return);
            }
            Phase::Return => {
                when(all_of(&returned), || {
                    open.iter().for_each(|o| o.set(high()));
                    phase.set(Phase::Initialise);
                });
            }
            Phase::Initialise => {
                expected.set(io.completions_entered);
                when(any_of(&open).eq(0), || phase.set(Phase::Settle));
            }
            Phase::Settle => {
                step.set(0);
                when(!(io.completions_finished - expected).msb(), || phase.set(Phase::Build));
            }
            Phase::Query => {
                step.set(0);
                phase.set(Phase::Build);
            }
            // eight quadwords into the line: shadow words lead by one clock
            Phase::Build => {
                // quadword of the response whose shadow word is asked for in this clock
                let place = cat(&[lit(1, 0), quarter, lit(3, 0)]) + step.extend(6);
                shadow_word_at.set((place - 2).bits(0, 4));
                let now_building = place - 1; // its shadow word has arrived
                let is_data = now_building.ge(2) & now_building.lt(18) & queries & status.none();
                let live_rights = mux(
                    is_qp & io.query_halted,
                    cat(&[shadowed.bits(4, 60), lit(4, QpState::Err as u64)]),
                    shadowed,
                );
                let live_psns =
                    mux(is_qp, cat(&[lit(8, 0), io.query_next_psn, lit(8, 0), io.query_epsn]), shadowed);
                let data = mux(now_building.eq(2), live_rights, mux(now_building.eq(4), live_psns, shadowed));
                let top = cat(&[lit(7, 0), phase_bit, lit(56, 0)]);
                let first = cat(&[lit(32, 0), h.sequence, h.opcode, status]);
                let value = mux(
                    now_building.eq(0),
                    first,
                    mux(now_building.eq(31), top, mux(is_data, data, lit(64, 0))),
                );
                when(step.ne(0), || line.set(cat(&[value, line.bits(64, 448)])));
                step.set(step + 1);
                when(step.eq(8), || phase.set(Phase::Respond));
            }
            Phase::Respond => {
                when(io.write.ready, || {
                    quarter.set(quarter + 1);
                    step.set(0);
                    phase.set(Phase::Build);
                    when(quarter.all(), || {
                        consumer.set(consumer + 1);
                        phase.set(Phase::Wait);
                    });
                });
            }
        });
        io.idle.set(phase.is(Phase::Wait) & !(io.enable & (consumer.ne(io.producer) | !was_enabled)));
    }
}
