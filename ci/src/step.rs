//! Steps of a long task: each is run whatever became of the ones before it, its output goes straight through, and
//! at the end one table says what passed, failed or was skipped, and how long it took.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// How a step ended when it did not fail.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It did all that it should.
    Passed,
    /// There was nothing to do, for the reason given.
    Skipped(String),
}

struct Row {
    name: String,
    took: Duration,
    result: Result<Verdict>,
}

/// The steps done so far.
#[derive(Default)]
pub struct Steps {
    rows: Vec<Row>,
}

impl Steps {
    /// Runs one step; whether it did not fail.
    pub fn step(&mut self, name: &str, work: impl FnOnce() -> Result<Verdict>) -> bool {
        println!("\n==> {name}");
        let start = Instant::now();
        let result = work();
        match &result {
            Ok(Verdict::Passed) => {}
            Ok(Verdict::Skipped(why)) => println!("skipped: {why}"),
            Err(error) => println!("FAILED: {error:#}"),
        }
        let passed = result.is_ok();
        self.rows.push(Row { name: name.to_owned(), took: start.elapsed(), result });
        passed
    }

    /// Prints the closing table and the line that counts; an error if a step failed.
    pub fn close(self) -> Result<()> {
        println!("\n{}", self.table());
        let failed = self.names_of_failed();
        if failed.is_empty() {
            return Ok(());
        }
        bail!("failed: {}", failed.join(", "));
    }

    fn names_of_failed(&self) -> Vec<&str> {
        self.rows.iter().filter(|row| row.result.is_err()).map(|row| row.name.as_str()).collect()
    }

    fn table(&self) -> String {
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        let (mut passed, mut failed, mut skipped) = (0, 0, 0);
        for row in &self.rows {
            let (word, why) = match &row.result {
                Ok(Verdict::Passed) => ("passed", String::new()),
                Ok(Verdict::Skipped(why)) => ("skipped", format!("  {}", why.lines().next().unwrap_or(""))),
                Err(error) => ("FAILED", format!("  {}", error.to_string().lines().next().unwrap_or(""))),
            };
            *match &row.result {
                Ok(Verdict::Passed) => &mut passed,
                Ok(Verdict::Skipped(_)) => &mut skipped,
                Err(_) => &mut failed,
            } += 1;
            text += format!("{:width$}  {:>8}  {word:7}{why}", row.name, clock(row.took)).trim_end();
            text += "\n";
        }
        let total: Duration = self.rows.iter().map(|row| row.took).sum();
        text += &format!("{:width$}  {:>8}\n\n{passed} passed, {failed} failed", "total", clock(total));
        if skipped > 0 {
            text += &format!(", {skipped} skipped");
        }
        text
    }
}

/// A duration as a person reads it: `0.4 s`, `59.9 s`, `1 m 00 s`.
pub fn clock(took: Duration) -> String {
    let tenths = (took.as_secs_f64() * 10.0).round() as u64;
    if tenths < 600 {
        format!("{}.{} s", tenths / 10, tenths % 10)
    } else {
        format!("{} m {:02} s", tenths / 600, tenths / 10 % 60)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    fn row(name: &str, millis: u64, result: Result<Verdict>) -> Row {
        Row { name: name.to_owned(), took: Duration::from_millis(millis), result }
    }

    #[test]
    fn the_table_shows_each_step_and_its_last_line_counts_them() {
        let steps = Steps {
            rows: vec![
                row("fmt", 400, Ok(Verdict::Passed)),
                row("clippy", 61_000, Err(anyhow!("`cargo clippy` failed: exit status: 101"))),
                row("synth", 0, Ok(Verdict::Skipped("no RTL yet\nmore of it".to_owned()))),
            ],
        };
        let expected = "\
fmt        0.4 s  passed
clippy  1 m 01 s  FAILED   `cargo clippy` failed: exit status: 101
synth      0.0 s  skipped  no RTL yet
total   1 m 01 s

1 passed, 1 failed, 1 skipped";
        assert_eq!(steps.table(), expected);
        assert_eq!(steps.close().unwrap_err().to_string(), "failed: clippy");
    }

    #[test]
    fn a_failed_step_does_not_keep_the_next_from_running() {
        let mut steps = Steps::default();
        let mut ran = false;
        assert!(!steps.step("first", || bail!("no")));
        assert!(steps.step("second", || {
            ran = true;
            Ok(Verdict::Passed)
        }));
        assert!(ran);
        assert!(steps.close().is_err());
    }

    #[test]
    fn all_passed_or_skipped_is_success() {
        let mut steps = Steps::default();
        steps.step("one", || Ok(Verdict::Passed));
        steps.step("two", || Ok(Verdict::Skipped("nothing there".to_owned())));
        assert!(steps.table().ends_with("\n1 passed, 0 failed, 1 skipped"));
        steps.close().unwrap();
    }

    #[test]
    fn minutes_start_where_sixty_seconds_would_be_printed() {
        assert_eq!(clock(Duration::from_millis(59_949)), "59.9 s");
        assert_eq!(clock(Duration::from_millis(59_950)), "1 m 00 s");
        assert_eq!(clock(Duration::from_secs(3599)), "59 m 59 s");
    }
}
