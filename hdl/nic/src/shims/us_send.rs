//! Before the data of a TLP goes its descriptor: the way into the AXI streams RQ and CC of the UltraScale+ PCIe core.
//!
//! ```text
//!   beat 0    d00 .. d15      ──>   D D D D d00 .. d11
//!   beat 1    d16 .. d20              d12 .. d15 d16 .. d20 -
//! ```
//! In: TLPs of 512-bit beats with the descriptor beside the first. Out: the same TLP with the descriptor (3 or 4
//! doublewords) in front of its data, one TLP per beat at most (no straddle), `tkeep` contiguous, full but in the last beat.
//!
//! Latency: 1 clock. One beat per clock; a TLP whose last beat is too full for what was pushed out of it takes one more, in
//! which nothing is taken. Back-pressure: `ready` depends on registers and `tready`; what is offered stays.
//!
//! It never: begins a TLP before it is there, or leaves one open (gaps between the beats are those of the sender).
//!
//! Requirements: PCIE

use hdl::{
    Bundle, Module, Ports, Sig, Stream, assert_always, cat, delay, delay_init, lit, mux, reg, reg_init, when,
};

/// Bits of a beat.
pub const DATA: u32 = 512;
/// Doublewords of a beat.
pub const DWORDS: u32 = DATA / 32;

/// One way out.
#[derive(Clone, Debug)]
pub struct UsSend {
    /// The core's name of the stream.
    pub name: &'static str,
    /// Doublewords of the descriptor.
    pub dwords: u32,
    /// Bits that go beside all beats of the TLP.
    pub beside: u32,
}

/// A beat on its way out.
#[derive(Bundle, Clone, Copy, Debug)]
#[bundle(UsSend)]
pub struct Outgoing {
    /// In the first beat: the descriptor.
    #[shape(c.dwords * 32)]
    pub descriptor: Sig,
    /// In the first beat: what goes beside.
    #[shape(c.beside)]
    pub beside: Sig,
    /// Payload, DW aligned.
    #[shape(DATA)]
    pub data: Sig,
    /// In the last beat: doublewords of payload in it, 0..=16.
    #[shape(5)]
    pub count: Sig,
    /// First beat.
    pub first: Sig,
    /// Last beat.
    pub last: Sig,
}

/// Ports of [`UsSend`].
#[derive(Ports)]
#[ports(UsSend)]
pub struct UsSendIo {
    /// TLPs.
    #[sink(c.clone())]
    pub tlp: Stream<Outgoing>,
    /// Descriptor and payload.
    #[output(DATA)]
    pub tdata: Sig,
    /// Doublewords that there are.
    #[output(DWORDS)]
    pub tkeep: Sig,
    /// Last beat.
    #[output]
    pub tlast: Sig,
    /// First beat.
    #[output]
    pub starts: Sig,
    /// Number of the last doubleword of the beat.
    #[output(4)]
    pub last_dword: Sig,
    /// What goes beside.
    #[output(c.beside)]
    pub beside: Sig,
    /// There is a beat.
    #[output]
    pub tvalid: Sig,
    /// The core takes it.
    #[input]
    pub tready: Sig,
}

impl Module for UsSend {
    type Io = UsSendIo;
    fn name(&self) -> String {
        format!("us_send_{}", self.name)
    }
    fn doc(&self) -> String {
        format!("TLPs into the stream {} of the UltraScale+ PCIe core.", self.name)
    }
    fn body(&self, io: &UsSendIo) {
        let (head, room) = (self.dwords, DWORDS - self.dwords);
        let t = &io.tlp.data;
        let valid = reg_init("valid", 1, 0);
        let (data, end, beside) = (reg("data", DATA), reg("end_dword", 4), reg("beside_of", self.beside));
        let (starts, last) = (reg("first", 1), reg("last", 1));
        // what the descriptor pushed out of the beat before
        let pushed = reg("pushed", head * 32);
        // a last beat of nothing else
        let more = reg_init("more", 1, 0);
        let more_end = reg("more_end", 4);

        let free = (!valid | io.tready).named("free");
        io.tlp.ready.set(free & !more);
        let moves = io.tlp.moves();
        let over = (t.last & t.count.gt(u64::from(room))).named("over");
        when(free, || valid.set(more | io.tlp.valid));
        when(free & more, || {
            data.set(pushed.extend(DATA));
            end.set(more_end);
            starts.set(0);
            last.set(1);
            more.set(0);
        })
        .elif(moves, || {
            data.set(cat(&[t.data.bits(0, room * 32), mux(t.first, t.descriptor, pushed)]));
            pushed.set(t.data.bits(room * 32, head * 32));
            // 16 doublewords that do not fit end where 16 - room do
            let ends_here = mux(t.last & !over, t.count.bits(0, 4) + lit(4, u64::from(head - 1)), lit(4, 15));
            end.set(ends_here);
            more_end.set((t.count - lit(5, u64::from(room + 1))).bits(0, 4));
            starts.set(t.first);
            last.set(t.last & !over);
            more.set(over);
            when(t.first, || beside.set(t.beside));
        });

        io.tdata.set(data);
        let keep: Vec<Sig> = (0..DWORDS).rev().map(|i| end.ge(u64::from(i))).collect();
        io.tkeep.set(cat(&keep));
        io.tlast.set(last);
        io.starts.set(starts);
        io.last_dword.set(end);
        io.beside.set(beside);
        io.tvalid.set(valid);

        let open = reg_init("open", 1, 0);
        when(valid & io.tready, || open.set(!last));
        assert_always("a_tlp_begins_where_the_one_before_has_ended", !valid | starts.eq(!open));
        assert_always("all_doublewords_but_in_the_last_beat", !valid | last | end.all());
        let shown = cat(&[last, starts, end, beside]);
        let (waits, was) = (delay_init("waits", valid & !io.tready), delay("was", shown));
        assert_always("what_is_offered_stays", !waits | (valid & was.eq(shown)));
    }
}
