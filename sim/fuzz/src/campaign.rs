//! A run of the fuzzer: the card that counts, each input's points for the engine, and the table of what was reached.
//!
//! In: inputs, one after the other. Out: a count per point in the engine's counters; on a fault its text and an abort, by
//! which libFuzzer keeps the input; at the end the points reached, by module, of all that there are.

use crate::{isolate::Isolated, machine::Machine, seeds::seeds};
use sim::card::CardModel;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    sync::atomic::{AtomicU8, Ordering},
    time::Instant,
};
use verilated::{CoverPoint, Progress};

/// See the head of this file.
pub struct Campaign {
    isolated: Isolated,
    points: Vec<CoverPoint>,
    reached: Vec<bool>,
    /// By bringing the card up alone.
    at_first: usize,
    inputs: u64,
    clocks: u64,
    start: Instant,
    /// The inputs that mutation takes actions from.
    pub seeds: Vec<Vec<u8>>,
}

impl Campaign {
    /// Builds the model that counts, unless it is there, and brings the card up.
    ///
    /// # Errors
    /// The model cannot be built, or the card does not come up.
    pub fn start() -> Result<Self, String> {
        let progress = |step| match step {
            Progress::Translating => eprintln!("building the card with coverage: some minutes, once"),
            Progress::Linking => eprintln!("built"),
            _ => {}
        };
        let model = CardModel::counting(Some(&progress)).map_err(|error| error.to_string())?;
        let machine = Machine::start(&model).map_err(|fault| fault.to_string())?;
        let points = machine.top().cover_points();
        let reached: Vec<bool> = machine.top().coverage().map(|count| count > 0).collect();
        let at_first = reached.iter().filter(|point| **point).count();
        let isolated = Isolated::new(machine).map_err(|error| error.to_string())?;
        Ok(Self {
            isolated,
            points,
            reached,
            at_first,
            inputs: 0,
            clocks: 0,
            start: Instant::now(),
            seeds: seeds().into_iter().map(|seed| seed.input).collect(),
        })
    }

    /// Carries out an input; `counters` take what of the RTL it used, in three steps: once, some times, often. More would
    /// call an input new because it is long.
    ///
    /// # Errors
    /// The promise that it broke.
    pub fn input(&mut self, input: &[u8], counters: &[AtomicU8]) -> Result<(), String> {
        let outcome = self.isolated.run(input).map_err(|error| format!("make a process: {error}"))?;
        self.inputs += 1;
        self.clocks += outcome.clocks;
        assert!(outcome.used.len() <= counters.len(), "{} points need as many counters", outcome.used.len());
        for ((used, reached), counter) in outcome.used.iter().zip(&mut self.reached).zip(counters) {
            *reached |= *used > 0;
            let step = match used {
                0 => 0,
                1 => 1,
                2..16 => 2,
                _ => 4,
            };
            counter.store(step, Ordering::Relaxed);
        }
        outcome.fault.map_or(Ok(()), |fault| Err(format!("{fault}\n{}", outcome.story)))
    }

    /// What was done and what was reached of the RTL; what was not, by module.
    pub fn report(&self) -> String {
        let seconds = self.start.elapsed().as_secs_f64();
        let total = self.points.len();
        let reached = self.reached.iter().filter(|point| **point).count();
        let mut text = format!(
            "{} inputs in {seconds:.0} s: {:.1} each second, {:.0} clocks each\n\
             points of the RTL: {reached} of {total} reached ({:.1} %), {} of them by bringing the card up\n\n\
             {:32} {:>7} {:>7}  not reached (line of model.sv, what)\n",
            self.inputs,
            self.inputs as f64 / seconds.max(1e-3),
            self.clocks as f64 / self.inputs.max(1) as f64,
            100.0 * reached as f64 / total.max(1) as f64,
            self.at_first,
            "module",
            "points",
            "reached",
        );
        let mut modules: BTreeMap<&str, (usize, usize, Vec<&CoverPoint>)> = BTreeMap::new();
        for (point, reached) in self.points.iter().zip(&self.reached) {
            let module = modules.entry(&point.module).or_default();
            module.0 += 1;
            module.1 += usize::from(*reached);
            if !reached {
                module.2.push(point);
            }
        }
        for (name, (points, reached, missing)) in modules {
            let mut list: Vec<String> =
                missing.iter().take(12).map(|point| format!("{} {}", point.line, point.what)).collect();
            if missing.len() > list.len() {
                list.push("...".into());
            }
            // Writing to a String does not fail.
            let _ = writeln!(text, "{name:32} {points:>7} {reached:>7}  {}", list.join(", "));
        }
        text
    }

    /// Every point that was not reached, one a line.
    pub fn missing(&self) -> String {
        let points = self.points.iter().zip(&self.reached).filter(|(_, reached)| !**reached);
        points.map(|(point, _)| format!("{}:{} {}\n", point.module, point.line, point.what)).collect()
    }
}
