//! What two 512-bit cards do at 100 Gb/s, beside what is possible and what others do.
//!
//! ```text
//! cargo ci bench [--update | ID...]
//!   jobs: throughput, latency, loss, dma, machine > figures > table on stdout, target/bench.json, target/bench/*.svg
//!                                                           > docs/bench: the same, committed (--update)
//! ```
//! In: ids, or none for all. Out: a table of value, bound, bar and peers; success if every figure that is the same on every
//! machine is the committed one, else the list of those that differ. The load comes from the driver; time is simulated,
//! so figures are exact, but for those of `machine`. Jobs run one per core.

mod dma;
mod figure;
mod latency;
mod load;
mod loss;
mod machine;
mod plot;
mod throughput;

use figure::Figure;
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

/// Conditions of every figure that does not say otherwise.
const CONDITIONS: &str = "512 bit; core clock 250 MHz; CMAC 100 Gb/s, 322 MHz; PCIe Gen3 x16 (126.03 Gb/s, framing charged), \
900 ns from a read to its completion, completions of 256 bytes, MPS 256, MRRS 512; wire 500 ns; buffers aligned to 64 bytes; \
cycles of the core clock at the user interfaces of PCIe core and CMAC; load from the driver, which costs no simulated time";

/// Something that measures figures.
pub struct Job {
    ids: Vec<String>,
    run: Box<dyn Fn() -> Vec<Figure> + Send + Sync>,
}

impl Job {
    /// It measures these.
    pub fn new(ids: &[&str], run: impl Fn() -> Vec<Figure> + Send + Sync + 'static) -> Self {
        Self { ids: ids.iter().map(|id| (*id).to_owned()).collect(), run: Box::new(run) }
    }

    /// It measures this one.
    pub fn of(id: &str, run: impl Fn(&str) -> Figure + Send + Sync + 'static) -> Self {
        let name = id.to_owned();
        Self::new(&[id], move || vec![run(&name)])
    }
}

/// Does jobs, one per core; the figures in the order of the jobs.
fn work(jobs: &[Job]) -> Vec<Figure> {
    let next = AtomicUsize::new(0);
    let found: Vec<Mutex<Vec<Figure>>> = jobs.iter().map(|_| Mutex::default()).collect();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores.min(jobs.len()) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(i) else { break };
                    let start = Instant::now();
                    *found[i].lock().expect("no panic") = (job.run)();
                    eprintln!("{}: {:.1} s", job.ids.join(", "), start.elapsed().as_secs_f64());
                }
            });
        }
    });
    found.into_iter().flat_map(|found| found.into_inner().expect("no panic")).collect()
}

fn write(path: &Path, text: &str) {
    std::fs::write(path, text).unwrap_or_else(|error| panic!("write {}: {error}", path.display()));
}

fn main() -> ExitCode {
    let mut asked: Vec<String> = std::env::args().skip(1).collect();
    if asked == ["--speed"] {
        machine::tell_speed();
        return ExitCode::SUCCESS;
    }
    assert_eq!(sim::story::config().name, "full", "set VERBENA_CONFIG=full");
    let update = asked == ["--update"];
    if update {
        asked.clear();
    }
    // the longest first; those of the machine last and alone
    let simulated = [loss::jobs(), throughput::jobs(), dma::jobs(), latency::jobs()];
    let mut jobs: Vec<Job> = simulated.into_iter().flatten().collect();
    let mut own = machine::jobs();
    let known = |id: &String| jobs.iter().chain(&own).any(|job| job.ids.contains(id));
    if let Some(unknown) = asked.iter().find(|id| !known(id)) {
        let ids: Vec<&str> = jobs.iter().chain(&own).flat_map(|job| &job.ids).map(String::as_str).collect();
        eprintln!("error: there is no figure {unknown}; there are {}", ids.join(", "));
        return ExitCode::from(2);
    }
    let wanted = |job: &Job| asked.is_empty() || job.ids.iter().any(|id| asked.contains(id));
    jobs.retain(wanted);
    own.retain(|job| wanted(job) && !update);
    sim::story::model();
    let mut figures = work(&jobs);
    own.iter().for_each(|job| figures.extend((job.run)()));
    // classes of a histogram are for its picture
    let told = |figure: &&Figure| !figure.id.contains("_at_");
    let table: Vec<String> = figures.iter().filter(told).map(Figure::row).collect();
    let table = format!("{CONDITIONS}\n\n{}\n{}\n", figure::HEAD, table.join("\n"));
    println!("{table}");

    let target = sim::story::folder().parent().expect("the target folder").to_owned();
    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/bench");
    write(&target.join("bench.json"), &figure::json(&figures));
    let values: BTreeMap<String, f64> =
        figures.iter().map(|figure| (figure.id.clone(), figure.value)).collect();
    let exact: Vec<Figure> = figures.iter().filter(|figure| figure.is_exact()).cloned().collect();
    if update {
        plot::draw(&docs, &values);
        write(&docs.join("figures.json"), &figure::json(&exact));
        write(&docs.join("table.md"), &format!("<!-- made by cargo ci bench --update -->\n\n{table}"));
        return ExitCode::SUCCESS;
    }
    if asked.is_empty() {
        plot::draw(&target.join("bench"), &values);
    }
    let committed = figure::read(&docs.join("figures.json"));
    let mut wrong: Vec<String> =
        exact.iter().filter_map(|figure| figure::differs(figure, &committed)).collect();
    let measured = |id: &String| exact.iter().any(|figure| figure.id == *id);
    let gone = committed.keys().filter(|id| asked.is_empty() && !measured(id));
    wrong.extend(gone.map(|id| format!("{id}: committed, but not measured")));
    if wrong.is_empty() {
        return ExitCode::SUCCESS;
    }
    let list = wrong.join("\n  ");
    eprintln!("differ from docs/bench/figures.json (cargo ci bench --update writes it anew):\n  {list}");
    ExitCode::FAILURE
}
