//! What the block tests share: choices that are the same for the same seed, and a lint of the emitted Verilog. Nothing here
//! uses the card's code.
#![allow(dead_code)]

/// A stream of choices (xorshift*).
#[derive(Clone)]
pub struct Choices(u64);

impl Choices {
    pub fn new(seed: u64) -> Choices {
        Choices(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }
    pub fn any(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    /// 0..n
    pub fn below(&mut self, n: u64) -> u64 {
        (self.any() >> 16) % n
    }
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }
    pub fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        (0..n).map(|_| self.below(256) as u8).collect()
    }
}

/// Verilator's opinion of `design`: no warning but the two about file names and unused signals. Skipped where it is not
/// installed.
pub fn lint(design: &hdl::Design) {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(design.top());
    std::fs::create_dir_all(&folder).expect("the target folder is writable");
    let file = folder.join("design.sv");
    std::fs::write(&file, design.verilog(hdl::Style::default())).expect("the target folder is writable");
    let run = std::process::Command::new("verilator")
        .args([
            "--lint-only",
            "-Wall",
            "-Wno-DECLFILENAME",
            "-Wno-UNUSEDSIGNAL",
            "--top-module",
            design.top(),
        ])
        .arg(&file)
        .output();
    match run {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => eprintln!("no verilator: not linted"),
        Err(error) => panic!("verilator: {error}"),
        Ok(done) => assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr)),
    }
}
