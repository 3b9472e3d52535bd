//! Prints `docs/registers.md`, or writes it to the file that is named.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut page = String::new();
    contract::doc::write_page(&mut page)?;
    match std::env::args().nth(1) {
        Some(path) => std::fs::write(path, page)?,
        None => print!("{page}"),
    }
    Ok(())
}
