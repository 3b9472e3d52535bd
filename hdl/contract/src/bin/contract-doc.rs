//! Prints `docs/registers.md` on standard output.

fn main() -> std::fmt::Result {
    let mut page = String::new();
    contract::doc::write_page(&mut page)?;
    print!("{page}");
    Ok(())
}
