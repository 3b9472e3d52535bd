//! What inputs do to the card of the stories: `cargo run -p fuzz --example tell -- FILE...`

use fuzz::{isolate::Isolated, machine::Machine};
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let mut card = Isolated::new(Machine::start(&sim::card::CardModel::small(false, None)?)?)?;
    for file in std::env::args().skip(1) {
        let outcome = card.run(&std::fs::read(&file)?)?;
        let verdict = outcome.fault.unwrap_or_else(|| "no promise broken".into());
        println!("{file}: {} clocks: {verdict}\n{}\n", outcome.clocks, outcome.story);
    }
    Ok(())
}
