//! parse: where the headers of a frame are, and whether its ICRC fits.
//!
//! In: beats of frames from the mac, one per clock at most, never held up. Out: four clocks after a frame's last beat (two more if unhurried)
//! `parsed`, valid for the one clock of `done`; and every beat again with its number, three clocks late, to be stored.
//! Nothing is judged here: [`super::verify`] does that. An 802.1Q tag moves the headers by 4 bytes, IPv6 by 20: what is
//! behind them is a choice among four shifted views of `header`.
//!
//! The ICRC ends where the IP length says, so FCS and Ethernet padding behind it do not count. It is checked by
//! the residue: no byte of the received sum is looked at.
//!
//! Requirements: ICRC NET PKT

use crate::config::Config;
use crate::flow::{FrameBeat, Outer};
use crate::prim::crc::residues;
use crate::prim::later::{later, later_all, later_init};
use crate::tx::packetise::{BASE, MOST, OUTER, at_least, icrc_covers, icrc_opens, icrc_start, icrc_view};
use contract::wire::{ETHERTYPE_IPV6, ETHERTYPE_VLAN};
use hdl::{
    Bundle, Module, Ports, Sig, cat, crc32_next, delay, delay_init, lit, low, mux, reg, reg_init, select,
    when,
};

/// Bits of a beat's number. It stays at the greatest: a frame without end is merely long, 64 KiB.
pub fn beat_bits(c: &Config) -> u32 {
    16 - c.lane_bits()
}

/// A whole frame, taken apart. Header fields are in network order: first byte most significant.
#[derive(Bundle, Clone, Copy, Debug)]
pub struct Parsed {
    /// Bytes of the frame, as the mac gave it.
    #[shape(17)]
    pub length: Sig,
    /// The mac reported a wrong FCS or an error on the line.
    pub damaged: Sig,
    /// The mac had no room and cut the frame short.
    pub cut: Sig,
    /// Which headers there are.
    #[shape(())]
    pub outer: Outer,
    /// `contract::EthernetHeader`, its EtherType that behind the tag.
    #[shape(14 * 8)]
    pub ethernet: Sig,
    /// VLAN of the tag, if there is one.
    #[shape(12)]
    pub vlan: Sig,
    /// `contract::Ipv6Header`, or `contract::Ipv4Header` and 20 bytes of no meaning.
    #[shape(40 * 8)]
    pub ip: Sig,
    /// `contract::UdpHeader`.
    #[shape(8 * 8)]
    pub udp: Sig,
    /// `contract::Bth`.
    #[shape(12 * 8)]
    pub bth: Sig,
    /// The 28 bytes behind the BTH.
    #[shape((MOST - BASE) * 8)]
    pub extension: Sig,
    /// The ICRC at the end of the IP datagram fits.
    pub icrc_good: Sig,
}

/// The stage.
#[derive(Clone, Debug)]
pub struct Parse(pub Config);

/// Ports of [`Parse`].
#[derive(Ports)]
#[ports(Parse)]
pub struct ParseIo {
    /// A beat comes.
    #[input]
    pub valid: Sig,
    /// The beat; 0 bytes in a last beat: cut short by the mac.
    #[input(c.0.clone())]
    pub frame: FrameBeat,
    /// A beat to store.
    #[output]
    pub store: Sig,
    /// Its number within the frame.
    #[output(beat_bits(&c.0))]
    pub store_number: Sig,
    /// It is the last.
    #[output]
    pub store_last: Sig,
    /// Its bytes.
    #[output(c.0.data_bits())]
    pub store_data: Sig,
    /// `parsed` holds, one clock after the frame's last `store`.
    #[output]
    pub done: Sig,
    /// The frame.
    #[output]
    pub parsed: Parsed,
}

impl Module for Parse {
    type Io = ParseIo;
    fn name(&self) -> String {
        format!("parse_{}", self.0.name)
    }
    fn doc(&self) -> String {
        "Takes the headers out of a frame; checks its ICRC.".into()
    }
    fn body(&self, io: &ParseIo) {
        let c = &self.0;
        let (bytes, lanes, beat) = (c.data_bytes, c.lane_bits(), beat_bits(c));

        // 1: number the beats
        let number = reg_init("number", beat, 0);
        when(io.valid, || {
            number.set(mux(io.frame.last, lit(beat, 0), mux(number.all(), number, number + 1)))
        });
        let stage = |name: &str, from: [Sig; 5]| -> [Sig; 5] {
            let names = ["number", "data", "last", "bytes", "error"];
            std::array::from_fn(|i| delay(&format!("{name}_{}", names[i]), from[i]))
        };
        let first = [number, io.frame.data, io.frame.last, io.frame.bytes, io.frame.error];
        let valid_1 = delay_init("valid_1", io.valid);
        let one = stage("one", first);

        // 2: how far the ICRC reaches: the total length is kept when its beat arrives here
        let valid_2 = delay_init("valid_2", later_init(c, "valid_1_later", valid_1));
        let also = |name: &str, from: [Sig; 5]| if c.unhurried { stage(name, from) } else { from };
        let two = stage("two", also("one_later", one));
        let half_at = |at: u32| cat(&[one[1].byte(at % bytes), one[1].byte(at % bytes + 1)]);
        let here = |at: u32| one[0].eq(u64::from(at / bytes));
        let kept = Outer::regs(&(), "kept");
        let outer_now = Outer::wires(&(), "outer_now");
        outer_now.assign(&kept);
        when(here(12), || {
            outer_now.tagged.set(half_at(12).eq(u64::from(ETHERTYPE_VLAN)));
            outer_now.ipv6.set(half_at(12).eq(u64::from(ETHERTYPE_IPV6)));
        });
        when(here(16) & outer_now.tagged, || outer_now.ipv6.set(half_at(16).eq(u64::from(ETHERTYPE_IPV6))));
        when(valid_1, || kept.assign(&outer_now));
        // the four places of the IP length lie in one beat
        let length_beat = 16 / bytes;
        let (tagged, ipv6) = (outer_now.tagged, outer_now.ipv6);
        let ip_length =
            mux(ipv6, mux(tagged, half_at(22), half_at(18)), mux(tagged, half_at(20), half_at(16)));
        let before = cat(&[ipv6, low(), ipv6, tagged, low(), low()]);
        let end_kept = reg("icrc_end", 17);
        let (ip_length, before) = (later(c, "ip_length", ip_length), later(c, "before_ip", before));
        when(later(c, "has_length", valid_1 & here(16)), || {
            end_kept.set(ip_length.extend(17) + before.extend(17) + 13);
        });
        let kept = later_all(c, &(), "kept_later", &kept);
        let early = !at_least(two[0], length_beat);
        let end_beat = end_kept.bits(lanes, beat);
        // a datagram of 65522 bytes and more never ends here; it is oversize
        let closing = !early & two[0].eq(end_beat) & !end_kept.msb();
        let behind = !early & two[0].gt(end_beat) & !end_kept.msb();
        let end_lane = later(c, "end_lane", end_kept.bits(0, lanes));
        let view = later(c, "icrc_view", icrc_view(&kept, two[0], two[1], bytes));
        let (closing, behind) = (later(c, "closing", closing), later(c, "behind", behind));
        let inside: Vec<Sig> = (0..bytes)
            .rev()
            .map(|i| {
                let beyond = if i == 0 { hdl::low() } else { closing & end_lane.lt(u64::from(i)) };
                view.byte(i) & (!beyond).repeat(8)
            })
            .collect();

        // 3: the register; the header; the beat goes to the packet buffer
        let valid_3 = delay_init("valid_3", later_init(c, "valid_2_later", valid_2));
        let three = stage("three", also("two_later", two));
        let covered = delay("covered", cat(&inside));
        let covers = later(c, "covers", icrc_covers(&kept, two[0], bytes));
        let starts = delay("icrc_starts", later(c, "opens", icrc_opens(&kept, two[0], bytes)));
        let kept = later_all(c, &(), "kept_last", &kept);
        let start = delay("icrc_start", icrc_start(&kept, bytes));
        let counts = delay("icrc_counts", covers & !behind);
        let closes = delay("icrc_closes", closing);
        let closes_at = delay("icrc_closes_at", end_lane.extend(lanes + 1) + 1);
        let register = reg("icrc_register", 32);
        when(valid_3 & counts, || {
            register.set(crc32_next(mux(starts, start, register), covered, bytes));
        });
        let beats = (MOST + OUTER).div_ceil(bytes);
        let header: Vec<Sig> = (0..beats)
            .map(|k| {
                let r = reg(&format!("header_{k}"), bytes * 8);
                when(valid_3 & three[0].eq(u64::from(k)), || r.set(three[1]));
                r.swap_bytes()
            })
            .collect();
        let header = cat(&header);
        io.store.set(valid_3);
        io.store_number.set(three[0]);
        io.store_data.set(three[1]);
        io.store_last.set(three[2]);

        // 4: the frame is whole
        let closed = delay_init("icrc_closed", valid_3 & closes);
        let expected = delay("icrc_expected", select(closes_at, &residues(bytes)));
        let good_kept = reg_init("icrc_kept", 1, 0);
        let good = mux(closed, register.eq(expected), good_kept).named("icrc_good");
        good_kept.set(good);
        when(valid_3 & three[0].none(), || good_kept.set(0));
        io.done.set(delay_init("whole", valid_3 & three[2]));
        let outer = Outer::regs(&(), "outer");
        let outer_3 = Outer::regs(&(), "outer_3");
        outer_3.assign(&kept);
        outer.assign(&outer_3);
        let length = cat(&[three[0], lit(lanes, 0)]).extend(17) + three[3].extend(17);
        let field = |at: u32, n: u32| header.bits((beats * bytes - at - n) * 8, n * 8);
        let behind = |at: u32, n: u32| {
            let moved = |by: u32| mux(outer.tagged, field(at + by + 4, n), field(at + by, n));
            mux(outer.ipv6, moved(20), moved(0))
        };
        io.parsed.assign(&Parsed {
            length: delay("length", length),
            damaged: delay("damaged", three[4]),
            cut: delay("cut", three[3].none()),
            outer,
            ethernet: cat(&[field(0, 12), mux(outer.tagged, field(16, 2), field(12, 2))]),
            vlan: field(14, 2).bits(0, 12),
            ip: mux(outer.tagged, field(18, 40), field(14, 40)),
            udp: behind(34, 8),
            bth: behind(42, 12),
            extension: behind(BASE, MOST - BASE),
            icrc_good: good,
        });
    }
}
