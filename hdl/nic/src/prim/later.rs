//! A register where nobody hurries.
//!
//! ```text
//!   from ──> register ──> what is used      Config::unhurried
//!   from ───────────────> what is used      else
//! ```
//! What is used is as it was a clock before. A stage that acts on it, and changes by that what it is made of, must not act
//! again in the next clock: [`Pause`]. Without the switch nothing is there: no register, no wire, not a letter of RTL.
//!
//! Requirements: CARD

use crate::config::Config;
use hdl::{Bundle, Sig, delay, delay_init, reg_init};

/// `from`, a clock later if `unhurried`.
#[track_caller]
pub fn later(c: &Config, name: &str, from: Sig) -> Sig {
    if c.unhurried { delay(name, from) } else { from }
}

/// Likewise; zero after reset.
#[track_caller]
pub fn later_init(c: &Config, name: &str, from: Sig) -> Sig {
    if c.unhurried { delay_init(name, from) } else { from }
}

/// Likewise, all signals of a bundle.
#[track_caller]
pub fn later_all<T: Bundle>(c: &Config, shape: &T::Shape, name: &str, from: &T) -> T {
    if !c.unhurried {
        return from.clone();
    }
    let registers = T::regs(shape, name);
    registers.assign(from);
    registers
}

/// If `unhurried`, a clock in which nothing is done, behind each that changes what [`later`] shows.
#[derive(Clone, Copy, Debug)]
pub struct Pause(Option<Sig>);

impl Pause {
    /// Begins with one.
    #[track_caller]
    pub fn new(c: &Config, name: &str) -> Pause {
        Pause(c.unhurried.then(|| reg_init(name, 1, 0)))
    }
    /// `what`, but not in the pause.
    #[track_caller]
    pub fn over(self, what: Sig) -> Sig {
        self.0.map_or(what, |over| what & over)
    }
    /// What is followed by one. To be called once.
    #[track_caller]
    pub fn behind(self, changes: impl FnOnce() -> Sig) {
        if let Some(over) = self.0 {
            over.set(!changes());
        }
    }
}
