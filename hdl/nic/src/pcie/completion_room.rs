//! Room in the core's completion buffer: a read leaves only when its completions fit, however they are split.
//!
//! ```text
//!   piece --> what it needs at worst --> ok? --> fire (room - need)
//!   back  --> worst case of what was owed, less that of what is owed still --> room (two clocks later)
//! ```
//! In: the piece that wants to leave next, that it leaves, and what each completion leaves owing. Out: `ok`, one clock after the
//! piece. Counted in headers (one per read completion boundary touched) and in data units of 16 bytes touched, as the
//! buffer counts (contract 3). What is taken comes back whole: the two always add up to `cplh` and `cpld`.
//!
//! The boundary (64 or 128 bytes) is taken over only while nothing is reckoned by the old one.
//!
//! Requirements: CARD PCIE

use hdl::{Bundle, Module, Ports, Sig, any_of, assert_always, lit, mux, reg, reg_init, when};

/// Bits of the counters.
pub const ROOM: u32 = 12;

/// The counters, for a completion buffer of one size.
#[derive(Clone, Debug)]
pub struct CompletionRoom {
    /// Headers that fit.
    pub cplh: u32,
    /// Data units of 16 bytes that fit.
    pub cpld: u32,
}

/// Bytes to come, as far as boundaries are concerned.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Owed {
    /// Low bits of the address of the first.
    #[shape(7)]
    pub iova: Sig,
    /// How many.
    #[shape(13)]
    pub bytes: Sig,
}

/// Ports of [`CompletionRoom`].
#[derive(Ports)]
#[ports(CompletionRoom)]
pub struct CompletionRoomIo {
    /// `piece` is the one to leave next.
    #[input]
    pub announce: Sig,
    /// It.
    #[input]
    pub piece: Owed,
    /// There is room for the piece announced last.
    #[output]
    pub ok: Sig,
    /// It leaves.
    #[input]
    pub fire: Sig,
    /// What is owed has changed.
    #[input]
    pub back: Sig,
    /// From this.
    #[input]
    pub before: Owed,
    /// To this.
    #[input]
    pub after: Owed,
    /// The boundary is 128 bytes, not 64.
    #[input]
    pub rcb_128: Sig,
    /// A piece is announced, or a read is owed.
    #[input]
    pub busy: Sig,
    /// Headers of room.
    #[output(ROOM)]
    pub headers: Sig,
    /// Data units of room.
    #[output(ROOM)]
    pub data: Sig,
}

/// Worst-case completion headers and data units.
pub fn worst_case(owed: &Owed, rcb_128: Sig) -> (Sig, Sig) {
    let blocks = |log: u32| {
        let sum = owed.bytes.extend(14) + owed.iova.bits(0, log).extend(14) + lit(14, (1 << log) - 1);
        mux(owed.bytes.any(), sum.bits(log, 14 - log), lit(14 - log, 0))
    };
    (mux(rcb_128, blocks(7).resize(ROOM), blocks(6).resize(ROOM)), blocks(4).resize(ROOM))
}

impl Module for CompletionRoom {
    type Io = CompletionRoomIo;
    fn name(&self) -> String {
        format!("pcie_completion_room_{}x{}", self.cplh, self.cpld)
    }
    fn doc(&self) -> String {
        format!("Room for {} completion headers and {} times 16 bytes.", self.cplh, self.cpld)
    }
    fn body(&self, io: &CompletionRoomIo) {
        let (cplh, cpld) = (lit(ROOM, u64::from(self.cplh)), lit(ROOM, u64::from(self.cpld)));
        let headers = reg_init("room_headers", ROOM, u64::from(self.cplh));
        let data = reg_init("room_data", ROOM, u64::from(self.cpld));
        let rcb_128 = reg_init("boundary_128", 1, 0);
        let (need_headers, need_data) = (reg("need_headers", ROOM), reg("need_data", ROOM));
        when(io.announce, || {
            let need = worst_case(&io.piece, rcb_128);
            need_headers.set(need.0);
            need_data.set(need.1);
        });
        let ok = headers.ge(need_headers) & data.ge(need_data);
        io.ok.set(ok);

        let back = reg_init("comes_back", 1, 0);
        let (before, after) = (Owed::regs(&(), "owed_before"), Owed::regs(&(), "owed_after"));
        back.set(io.back);
        before.assign(&io.before);
        after.assign(&io.after);
        let give = reg_init("give", 1, 0);
        let (give_headers, give_data) = (reg("give_headers", ROOM), reg("give_data", ROOM));
        let (was, is) = (worst_case(&before, rcb_128), worst_case(&after, rcb_128));
        give.set(back);
        give_headers.set(was.0 - is.0);
        give_data.set(was.1 - is.1);
        let none = lit(ROOM, 0);
        let sum = |room: Sig, need: Sig, back: Sig| room - mux(io.fire, need, none) + mux(give, back, none);
        headers.set(sum(headers, need_headers, give_headers));
        data.set(sum(data, need_data, give_data));
        io.headers.set(headers);
        io.data.set(data);

        let reckoned = any_of(&[io.busy, back, give]).named("reckoned");
        when(!reckoned, || rcb_128.set(io.rcb_128));

        assert_always("nothing_leaves_without_room", !io.fire | ok);
        assert_always("room_is_within_the_buffer", headers.le(cplh) & data.le(cpld));
        // a simulation begins before the first reset
        let was_reset = reg_init("was_reset", 1, 0);
        was_reset.set(1);
        assert_always("all_room_comes_back", !was_reset | reckoned | (headers.eq(cplh) & data.eq(cpld)));
    }
}
