//! BAR accesses of the host: TLPs in, register accesses out, completions back.
//!
//! In: requests (`cq`, with the BAR number beside). Out: accesses of aligned quadwords with byte enables to the
//! registers (BAR0), doorbells (BAR2, whole quadwords only, but for the push buffers) and the MSI-X table (BAR4); for
//! reads, completions (`cc`) cut at 128 bytes (the completion boundary of an endpoint). Any length and byte enables. A
//! write takes two clocks per quadword that lies whole in a beat (to BAR2 one), else a clock per doubleword and one; a
//! read a clock per doubleword. One request at a time: a read holds the next request until it is answered.
//!
//! Requests of another kind are answered UR (or dropped, if posted), poisoned writes dropped; both counted. Never
//! waits for anything that waits for the host.
//!
//! Requirements: PCIE QUE

use crate::config::Config;
use crate::flow::{Count, DoorbellWrite, TlpBeat};
use crate::pcie::header;
use contract::Reject;
use contract::doorbell::{PUSH_BYTES, PUSH_OFFSET};
use contract::pcie::{KIND_COMPLETION, TlpCompletionHeaderBits};
use hdl::{Bundle, EnumSig, HwEnum, Module, Ports, Sig, Stream, cat, high, lit, low, mux, reg, select, when};

/// What this stage may count.
pub const REJECTS: &[Reject] =
    &[Reject::RequestUnsupported, Reject::RequestPoisoned, Reject::DoorbellMalformed];

/// An access of one aligned quadword.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct RegisterAccess {
    /// Write; else read.
    pub write: Sig,
    /// Byte address within the BAR, multiple of 8.
    #[shape(20)]
    pub address: Sig,
    /// The quadword to write.
    #[shape(64)]
    pub data: Sig,
    /// Bytes written, or bytes wanted.
    #[shape(8)]
    pub enables: Sig,
}

/// See the head of this file.
#[derive(Debug)]
pub struct Bar(pub Config);

/// Ports of [`Bar`].
#[derive(Ports)]
#[ports(Bar)]
pub struct BarIo {
    /// Requests of the host.
    #[sink(c.0.clone())]
    pub cq: Stream<TlpBeat>,
    /// BAR of the request.
    #[input(3)]
    pub cq_bar: Sig,
    /// Completions for the host.
    #[source(c.0.clone())]
    pub cc: Stream<TlpBeat>,
    /// Bus, device, function of this card.
    #[input(16)]
    pub completer_id: Sig,
    /// Accesses to BAR0.
    #[source]
    pub register: Stream<RegisterAccess>,
    /// Answers to register reads, in order.
    #[sink(64)]
    pub register_read: Stream<Sig>,
    /// Accesses to BAR4.
    #[source]
    pub msix: Stream<RegisterAccess>,
    /// Answers to MSI-X table reads, in order.
    #[sink(64)]
    pub msix_read: Stream<Sig>,
    /// Writes to BAR2.
    #[source(c.0.clone())]
    pub doorbell: Stream<DoorbellWrite>,
    /// Refusals.
    #[output]
    pub count: Count,
    /// Nothing under way.
    #[output]
    pub idle: Sig,
}

#[derive(HwEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    /// Waits for a request.
    Accept,
    /// Takes one doubleword of a write.
    Collect,
    /// Hands a quadword on.
    Access,
    /// Waits for the answer to a read.
    Answer,
    /// Puts one doubleword into the completion.
    Fill,
    /// Offers a beat of the completion.
    Offer,
    /// Offers a completion without data.
    Refuse,
    /// Swallows the rest of a refused request.
    Drain,
}

impl Module for Bar {
    type Io = BarIo;
    fn name(&self) -> String {
        format!("bar_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "BAR accesses of the host: registers, doorbells, MSI-X table.".into()
    }
    fn body(&self, io: &BarIo) {
        let c = &self.0;
        assert_eq!(PUSH_BYTES, 256, "a push buffer is known by its page's bits 11:8");
        let dwords_per_beat = c.data_bytes / 4;
        let beat_bits = hdl::index_width(dwords_per_beat);
        let phase = EnumSig::<Phase>::reg("phase", Phase::Accept);
        io.idle.set(phase.is(Phase::Accept) & !io.cq.valid);

        // the request, from its header
        let raw = io.cq.data.header;
        let header = header::fields(raw);
        let address = header.address.bits(0, 32).named("request_address");
        let has_data = header.fmt.bit(1);
        let memory = header.kind.none();
        let length = cat(&[header.length.none(), header.length]).named("request_dwords");
        let served = io.cq_bar.eq(0) | io.cq_bar.eq(2) | io.cq_bar.eq(4);
        // message TLPs (type 10xxx) are posted whether or not they carry data
        let posted = (has_data & memory) | header.kind.bits(3, 2).eq(0b10);

        let bar = reg("which_bar", 3);
        let writing = reg("writing", 1);
        let saved = reg("header", 128);
        let saved_header = header::fields(saved);
        let dword = reg("dword", 18); // doubleword address of the next doubleword
        let left = reg("left", 11); // doublewords still to move
        let first = reg("first", 1); // the next doubleword is the request's first
        let lane = reg("lane", beat_bits); // its place in the beat
        let quad = reg("quad", 64);
        let enables = reg("enables", 8);
        let beat = reg("beat", c.data_bits());
        let chunk = reg("chunk", 6); // doublewords left of the present completion
        let chunk_first = reg("chunk_first", 1);
        let opening = reg("opening", 1); // the beat is the completion's first
        let bytes_left = reg("bytes_left", 13);
        let lower = reg("lower_address", 7);
        let completion_dwords = reg("completion_dwords", 6);

        let last = left.eq(1);
        let byte_enable = mux(first, saved_header.first_be, mux(last, saved_header.last_be, lit(4, 0xf)))
            .named("byte_enable");
        let upper = dword.bit(0);

        io.cq.ready.set(low());
        io.count.valid.set(low());
        io.count.index.set(Reject::RequestUnsupported as u64);
        let access = RegisterAccess {
            write: writing,
            address: cat(&[dword.bits(1, 17), lit(3, 0)]),
            data: quad,
            enables,
        };
        // while an access is offered `dword` is the doubleword inside of its quadword
        io.register.valid.set(phase.is(Phase::Access) & bar.eq(0));
        io.msix.valid.set(phase.is(Phase::Access) & bar.eq(4));
        io.register.data.assign(&access);
        io.msix.data.assign(&access);
        let pushes = access.address.bits(8, 4).eq(u64::from(PUSH_OFFSET >> 8));
        let whole = (enables.all() | pushes).named("whole");
        // a quadword that lies whole in the beat
        let words: Vec<Sig> = (0..dwords_per_beat).map(|i| io.cq.data.data.bits(i * 32, 32)).collect();
        let pairs: Vec<Sig> = words.chunks(2).map(|pair| cat(&[pair[1], pair[0]])).collect();
        let pair = if beat_bits > 1 { select(lane.bits(1, beat_bits - 1), &pairs) } else { pairs[0] };
        let final_pair = left.eq(2);
        let pair_enables = cat(&[mux(final_pair, saved_header.last_be, lit(4, 0xf)), byte_enable]);
        let both = (!upper & !lane.bit(0) & !last).named("takes_quadword");
        let collecting = phase.is(Phase::Collect) & io.cq.valid;
        let direct = (collecting & both & bar.eq(2) & (pair_enables.all() | pushes)).named("direct");
        io.doorbell.valid.set(direct | (phase.is(Phase::Access) & bar.eq(2) & writing & whole));
        let stride = c.log_doorbell_stride;
        let byte = access.address;
        io.doorbell.data.page.set(byte.bits(stride, c.page_bits()));
        io.doorbell.data.offset.set(byte.bits(0, stride).resize(12));
        io.doorbell.data.data.set(mux(direct, pair, quad));
        io.doorbell.data.enables.set(mux(direct, pair_enables, enables));
        io.register_read.ready.set(phase.is(Phase::Answer) & bar.eq(0));
        io.msix_read.ready.set(phase.is(Phase::Answer) & bar.eq(4));

        // byte count of the whole read: enabled bytes from the first to the last
        let leading = |be: Sig| {
            mux(be.bit(0), lit(3, 0), mux(be.bit(1), lit(3, 1), mux(be.bit(2), lit(3, 2), lit(3, 3))))
        };
        let trailing = |be: Sig| {
            mux(be.bit(3), lit(3, 0), mux(be.bit(2), lit(3, 1), mux(be.bit(1), lit(3, 2), lit(3, 3))))
        };
        let one = length.eq(1);
        let zero_length = one & header.first_be.none();
        let total = cat(&[length, lit(2, 0)])
            - leading(header.first_be).extend(13)
            - mux(one, trailing(header.first_be), trailing(header.last_be)).extend(13);
        let request_bytes = mux(zero_length, lit(13, 1), total).named("request_bytes");
        let request_lower =
            cat(&[address.bits(2, 5), mux(zero_length, lit(2, 0), leading(header.first_be).bits(0, 2))]);
        let until_boundary = |dword: Sig| lit(6, 32) - dword.bits(0, 5).extend(6);
        let cut = |left: Sig, dword: Sig| {
            let room = until_boundary(dword);
            mux(left.le(room.extend(11)), left.resize(6), room)
        };

        // completions
        let completion = |status: Sig, with_data: Sig, dwords: Sig| {
            let mut h = TlpCompletionHeaderBits::zero();
            h.fmt = cat(&[low(), with_data, low()]);
            h.kind = lit(5, u64::from(KIND_COMPLETION));
            h.traffic_class = saved_header.traffic_class;
            h.relaxed_ordering = saved_header.relaxed_ordering;
            h.no_snoop = saved_header.no_snoop;
            h.length = dwords;
            h.completer_id = io.completer_id;
            h.status = status;
            h.byte_count = bytes_left.bits(0, 12);
            h.requester_id = saved_header.requester_id;
            h.tag = saved_header.tag;
            h.lower_address = lower;
            cat(&[h.pack(), lit(32, 0)])
        };
        let with_data = completion(lit(3, 0), high(), completion_dwords.extend(10));
        let unsupported = completion(lit(3, 1), low(), lit(10, 0));
        io.cc.valid.set(phase.is(Phase::Offer) | phase.is(Phase::Refuse));
        io.cc.data.header.set(mux(phase.is(Phase::Refuse), unsupported, with_data));
        io.cc.data.data.set(beat);
        io.cc.data.first.set(opening | phase.is(Phase::Refuse));
        io.cc.data.last.set(chunk.none() | phase.is(Phase::Refuse));

        // after a quadword has been handed on: the next doubleword, or the end
        let advance = |then: Phase| {
            dword.set(dword + 1);
            left.set(left - 1);
            first.set(low());
            enables.set(0);
            phase.set(then);
        };

        phase.switch(|p| match p {
            Phase::Accept => {
                when(io.cq.valid & io.cq.data.first, || {
                    bar.set(io.cq_bar);
                    writing.set(has_data);
                    saved.set(raw);
                    dword.set(address.bits(2, 18));
                    left.set(length);
                    first.set(high());
                    lane.set(0);
                    enables.set(0);
                    bytes_left.set(request_bytes);
                    lower.set(request_lower);
                    let size = cut(length, address.bits(2, 18));
                    chunk.set(size);
                    completion_dwords.set(size);
                    chunk_first.set(high());
                    opening.set(high());
                    when(!memory | !served, || {
                        io.count.valid.set(high());
                        when(posted, || phase.set(Phase::Drain)).otherwise(|| phase.set(Phase::Refuse));
                        when(!posted, || {
                            lower.set(0);
                        });
                    })
                    .elif(has_data & header.poisoned, || {
                        io.count.valid.set(high());
                        io.count.index.set(Reject::RequestPoisoned as u64);
                        phase.set(Phase::Drain);
                    })
                    .elif(has_data, || phase.set(Phase::Collect))
                    .otherwise(|| {
                        // a read has no data: its only beat is over
                        io.cq.ready.set(high());
                        phase.set(Phase::Fill);
                    });
                })
                .elif(io.cq.valid, || {
                    // a beat without a head: the rest of something malformed
                    io.cq.ready.set(high());
                });
            }
            Phase::Collect => {
                let beat_over = lane.eq(dwords_per_beat - 1) | (both & lane.eq(dwords_per_beat - 2));
                let take_beat = || when(beat_over | last | (both & final_pair), || io.cq.ready.set(high()));
                let step = |dwords: u32| {
                    lane.set(lane + u64::from(dwords % dwords_per_beat));
                };
                when(direct, || {
                    when(io.doorbell.ready, || {
                        take_beat();
                        step(2);
                        dword.set(dword + 2);
                        left.set(left - 2);
                        first.set(low());
                        when(final_pair, || phase.set(Phase::Accept));
                    });
                })
                .elif(io.cq.valid, || {
                    let word = select(lane, &words);
                    when(both, || {
                        quad.set(pair);
                        enables.set(pair_enables);
                        step(2);
                    })
                    .otherwise(|| step(1));
                    when(!both & upper, || {
                        quad.set(cat(&[word, quad.bits(0, 32)]));
                        enables.set(cat(&[byte_enable, enables.bits(0, 4)]));
                    });
                    when(!both & !upper, || {
                        quad.set(cat(&[quad.bits(32, 32), word]));
                        enables.set(cat(&[lit(4, 0), byte_enable]));
                    });
                    take_beat();
                    when(upper | last | both, || phase.set(Phase::Access));
                    when(both | !(upper | last), || {
                        dword.set(dword + 1);
                        left.set(left - 1);
                        first.set(low());
                    });
                });
            }
            Phase::Access => {
                let taken = mux(
                    bar.eq(0),
                    io.register.ready,
                    mux(bar.eq(4), io.msix.ready, mux(writing & whole, io.doorbell.ready, high())),
                );
                when(bar.eq(2) & writing & !whole, || {
                    io.count.valid.set(high());
                    io.count.index.set(Reject::DoorbellMalformed as u64);
                });
                when(taken, || {
                    when(writing, || {
                        advance(Phase::Collect);
                        when(last, || phase.set(Phase::Accept));
                    })
                    .elif(bar.eq(2), || {
                        // doorbells read as zero
                        quad.set(0);
                        phase.set(Phase::Fill);
                        enables.set(0xff);
                    })
                    .otherwise(|| phase.set(Phase::Answer));
                });
            }
            Phase::Answer => {
                when(mux(bar.eq(0), io.register_read.valid, io.msix_read.valid), || {
                    quad.set(mux(bar.eq(0), io.register_read.data, io.msix_read.data));
                    enables.set(0xff);
                    phase.set(Phase::Fill);
                });
            }
            Phase::Fill => {
                // `enables` says that `quad` holds the quadword of `dword`
                when(enables.none(), || {
                    // wanted bytes of this quadword: this doubleword's and, if it follows, the upper one's
                    let next_last = left.eq(2);
                    let next = mux(next_last, saved_header.last_be, lit(4, 0xf));
                    enables.set(mux(
                        upper,
                        cat(&[byte_enable, lit(4, 0)]),
                        cat(&[mux(last, lit(4, 0), next), byte_enable]),
                    ));
                    phase.set(Phase::Access);
                })
                .otherwise(|| {
                    let word = mux(upper, quad.bits(32, 32), quad.bits(0, 32));
                    let lanes: Vec<Sig> = (0..dwords_per_beat)
                        .rev()
                        .map(|i| mux(lane.eq(i), word, beat.bits(i * 32, 32)))
                        .collect();
                    beat.set(cat(&lanes));
                    dword.set(dword + 1);
                    left.set(left - 1);
                    first.set(low());
                    when(upper, || enables.set(0));
                    chunk.set(chunk - 1);
                    lane.set(lane + 1);
                    when(lane.eq(dwords_per_beat - 1) | chunk.eq(1), || phase.set(Phase::Offer));
                });
            }
            Phase::Offer => {
                when(io.cc.ready, || {
                    opening.set(low());
                    phase.set(Phase::Fill);
                    when(chunk.none(), || {
                        lane.set(0);
                        opening.set(high());
                        when(left.none(), || phase.set(Phase::Accept)).otherwise(|| {
                            let size = cut(left, dword);
                            chunk.set(size);
                            completion_dwords.set(size);
                            // this completion's bytes: its doublewords less the disabled ones at its start
                            let skipped = mux(chunk_first, lower.bits(0, 2), lit(2, 0));
                            let sent = cat(&[completion_dwords, lit(2, 0)]).extend(13) - skipped.extend(13);
                            bytes_left.set(bytes_left - sent);
                            chunk_first.set(low());
                            lower.set(0);
                        });
                    });
                });
            }
            Phase::Refuse => {
                when(io.cc.ready, || phase.set(Phase::Drain));
            }
            Phase::Drain => {
                io.cq.ready.set(high());
                when(io.cq.valid & io.cq.data.last, || phase.set(Phase::Accept));
            }
        });
    }
}
