//! Builds the card's model, takes it out of reset and tells how fast it runs.
//!
//! `cargo run --release --example rate`

use sim::{
    card::CardModel,
    room::{Room, RoomConfig},
};
use std::time::Instant;

fn main() -> Result<(), sim::Error> {
    let start = Instant::now();
    let model = CardModel::small(false, Some(&|step| eprintln!("{:6.1?} {step:?}", start.elapsed())))?;
    eprintln!("{:6.1?} model ready", start.elapsed());
    let mut room = Room::new(&model, RoomConfig::example(2, 1))?;
    let start = Instant::now();
    room.power_on()?;
    let clocks: u64 = room.cards().iter().map(sim::card::Card::clocks).sum();
    let rate = clocks as f64 / 2.0 / start.elapsed().as_secs_f64() / 1000.0;
    println!("reset: {} ns, two cards at {rate:.0} kcycles/s", room.now() / 1000);
    Ok(())
}
