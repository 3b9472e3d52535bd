//! The simulated ECP5-5G Versa: the Verilated top of its target at the pins of the board, and the PHY at its line.
//!
//! ```text
//!             ┌───────────────────────── Target ─────────────────────────┐
//!  frames ──▶ │ Encoder ─ nibbles at both edges of RXC ─▶ ┌────────────┐ │
//!  frames ◀── │ Decoder ◀─ nibbles at both edges of TXC ─ │ ecp5_versa │ │
//!             └───────────────────────────────────────────└────────────┘─┘
//! ```
//! The RTL is the board's whole top with Lattice's DDR cells and PLL as [`nic::boards::ecp5::MODELS`] has them; only its reset
//! is shorter. In: a call per byte time with its time in ps, frames. Out: frames, and what broke a rule of the line. The PHY
//! tells of a link of 1000 Mb/s by MDIO. The oscillator's pin has 125 MHz, since the model of the PLL knows only ratios.
//!
//! A target that was quiet for as long as its only timer runs, that of the limit on control requests, sleeps: its clocks
//! stop, and nothing but the `uptime` in its replies can tell. Never: a look at a clock of the machine.

use crate::{
    Error,
    wire::{
        Frame,
        gmii::{Decoder, Encoder, Symbol},
    },
};
use contract::target::{BURST, PERIOD_CLOCKS};
use nic::{
    Config,
    boards::{ecp5, ecp5_versa::Ecp5Versa},
    standalone::{IPV4_ADDRESS, MAC_ADDRESS},
};
use std::net::Ipv4Addr;
use verilated::{Input, Instance, Model, Output};

/// Core clocks of its reset, log2.
const LOG_RESET: u32 = 8;
/// Clock of the line in kHz.
const LINE_KHZ: u64 = 125_000;

/// What the PHY's status register says: 1000 Mb/s, full duplex, resolved, link.
const LINK: u16 = 2 << 14 | 1 << 13 | 1 << 11 | 1 << 10;

/// Pins of the board that somebody drives or looks at.
#[derive(Clone, Copy)]
struct Pins {
    oscillator: Input,
    rxc: Input,
    rxd: Input,
    rx_ctl: Input,
    txc: Output,
    txd: Output,
    tx_ctl: Output,
    mdc: Output,
    mdio_out: Output,
    mdio_enable: Output,
    mdio_in: Input,
}

/// The PHY's registers (IEEE 802.3, 22.2.4.5): each read of the PHY at address 0 brings [`LINK`].
#[derive(Default)]
struct Management {
    mdc: u64,
    /// What passed last, the newest bit lowest.
    seen: u64,
    /// Bits since a read began.
    bits: Option<u32>,
    /// What is to come of an answer, and how many bits of it, the first bit highest.
    answer: (u32, u32),
}

impl Management {
    /// The pin toward the board, given MDC and what the board drives.
    fn turn(&mut self, mdc: u64, driven: Option<u64>) -> Option<u64> {
        if std::mem::replace(&mut self.mdc, mdc) == 1 || mdc == 0 {
            return None;
        }
        self.seen = self.seen << 1 | driven.unwrap_or(1);
        self.bits = match self.bits {
            // 32 ones of preamble, 01; then the 10 of a read, two addresses of five bits
            None => (driven.is_some() && self.seen & 0x3_ffff_ffff == 0x3_ffff_fffd).then_some(0),
            Some(11) => {
                if self.seen >> 5 & 0x7f == 0b10 << 5 {
                    // behind a bit of turnaround its second, 0
                    self.answer = (u32::from(LINK), 18);
                }
                None
            }
            Some(bits) => Some(bits + 1),
        };
        let (answer, left) = self.answer;
        self.answer.1 = left.saturating_sub(1);
        Some(if left == 0 || left == 18 { 1 } else { u64::from(answer >> (left - 1) & 1) })
    }
}

/// The board.
pub struct Target {
    board: Instance,
    pins: Pins,
    switches: u8,
    management: Management,
    decoder: Decoder,
    encoder: Encoder,
    /// Byte times since something passed.
    quiet: u64,
    /// Those after which it sleeps.
    patience: u64,
    clocks: u64,
    violations: Vec<String>,
}

impl Target {
    /// The board behind its reset, with its switches so; the model is built unless the cache has it, and `progress` is told
    /// what is done.
    ///
    /// # Errors
    /// The RTL is refused, or a tool is missing or fails.
    pub fn new(switches: u8, progress: Option<&(dyn Fn(verilated::Progress) + Sync)>) -> Result<Self, Error> {
        let design = hdl::elaborate(&Ecp5Versa { log_reset: LOG_RESET })
            .map_err(|error| Error::Rtl(error.to_string()))?;
        let verilog = design.verilog(hdl::Style::default()) + ecp5::MODELS;
        let source = verilated::Source::new(design.top(), &verilog);
        let model = Model::build(&verilated::Source { progress, ..source })?;
        let pins = Pins {
            oscillator: model.input("clk100", 1)?,
            rxc: model.input("eth_rxc", 1)?,
            rxd: model.input("eth_rxd", 4)?,
            rx_ctl: model.input("eth_rx_ctl", 1)?,
            txc: model.output("eth_txc", 1)?,
            txd: model.output("eth_txd", 4)?,
            tx_ctl: model.output("eth_tx_ctl", 1)?,
            mdc: model.output("eth_mdc", 1)?,
            mdio_out: model.output("eth_mdio_out", 1)?,
            mdio_enable: model.output("eth_mdio_enable", 1)?,
            mdio_in: model.input("eth_mdio_in", 1)?,
        };
        let mut board = model.instance()?;
        board.set(model.input("rst_n", 1)?, 1);
        board.set(pins.mdio_in, 1);
        board.set(model.input("switches", 8)?, switches.into());
        board.eval()?;
        let of_core = |clocks: u64| (clocks * LINE_KHZ).div_ceil(u64::from(Config::target().core_clock_khz));
        let mut target = Self {
            board,
            pins,
            switches,
            management: Management::default(),
            decoder: Decoder::default(),
            encoder: Encoder::default(),
            quiet: 0,
            // and one request that is answered last
            patience: of_core(u64::from((BURST + 1) * PERIOD_CLOCKS)),
            clocks: 0,
            violations: Vec::new(),
        };
        let awake = model.output("eth_rst_n", 1)?;
        while target.board.get(awake) == 0 {
            target.pins(None)?;
        }
        // the second half of the reset
        for _ in 0..of_core(1 << LOG_RESET) {
            target.pins(None)?;
        }
        target.violations.clear();
        Ok(target)
    }

    /// Its MAC address, first byte on the wire first.
    pub fn mac(&self) -> [u8; 6] {
        let [.., a, b, c, d, e, f] = (MAC_ADDRESS | self.address()).to_be_bytes();
        [a, b, c, d, e, f]
    }

    /// Its IPv4 address.
    pub fn ip(&self) -> Ipv4Addr {
        Ipv4Addr::from((IPV4_ADDRESS | self.address()) as u32)
    }

    /// The switches that are the end of its addresses.
    fn address(&self) -> u64 {
        u64::from(self.switches & 0x3f)
    }

    /// Byte times so far: those that were evaluated, not those slept through.
    pub fn clocks(&self) -> u64 {
        self.clocks
    }

    /// Whether its clocks stand still.
    pub fn is_asleep(&self) -> bool {
        self.quiet >= self.patience
    }

    /// A frame leaves the wire for it.
    pub fn receive(&mut self, frame: Frame) {
        self.encoder.push(frame);
        self.quiet = 0;
    }

    /// The rules of the line that it broke, in words, since they were last taken.
    pub fn take_violations(&mut self) -> Vec<String> {
        std::mem::take(&mut self.violations)
    }

    /// The byte time that begins at `now` ps; gives the frame that has left it.
    ///
    /// # Errors
    /// The model stopped.
    pub fn edge(&mut self, now: u64) -> Result<Option<Frame>, Error> {
        let symbol = self.encoder.symbol(now);
        let sent = self.pins(symbol)?;
        let passes = symbol.is_some() || sent.is_some() || !self.encoder.is_idle();
        self.quiet = if passes { 0 } else { self.quiet + 1 };
        match self.decoder.symbol(sent, now) {
            None => Ok(None),
            Some(Ok(frame)) => {
                if !frame.fcs_is_good() {
                    self.violations.push(format!("frame at {} ps: wrong FCS", frame.start));
                }
                Ok(Some(frame))
            }
            Some(Err(rule)) => {
                self.violations.push(format!("line at {now} ps: {rule}"));
                Ok(None)
            }
        }
    }

    /// A byte time at the pins, rising edges, then falling ones; data stands around each.
    fn pins(&mut self, symbol: Symbol) -> Result<Symbol, Error> {
        self.clocks += 1;
        let (byte, error) = symbol.unwrap_or_default();
        let (mut sent, mut control) = (0, [0; 2]);
        for (half, control) in control.iter_mut().enumerate() {
            let (board, pins) = (&mut self.board, self.pins);
            board.set(pins.rxd, u64::from(byte >> (4 * half) & 15));
            // valid with the rising edge, valid and no error with the falling one
            board.set(pins.rx_ctl, u64::from(symbol.is_some() ^ (half == 1 && error)));
            for clock in [pins.rxc, pins.oscillator] {
                board.set(clock, 1 - half as u64);
                board.eval()?;
            }
            sent |= (board.get(pins.txd) as u8) << (4 * half);
            *control = board.get(pins.tx_ctl);
            if board.get(pins.txc) != 1 - half as u64 && self.violations.is_empty() {
                self.violations.push("TXC does not go with its byte".into());
            }
        }
        let (board, pins) = (&mut self.board, self.pins);
        let driven = (board.get(pins.mdio_enable) != 0).then(|| board.get(pins.mdio_out));
        if let Some(bit) = self.management.turn(board.get(pins.mdc), driven) {
            board.set(pins.mdio_in, bit);
        }
        Ok((control[0] != 0).then_some((sent, control[1] == 0)))
    }
}
