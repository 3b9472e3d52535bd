//! What two 512-bit cards do at 100 Gb/s, beside what is possible and what others do.
//!
//! ```text
//! cargo ci bench [--update] [ID...]
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
    collections::BTreeSet,
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
    let before = asked.len();
    asked.retain(|word| word != "--update");
    let update = asked.len() < before;
    // the longest first; those of the machine last and alone
    let simulated = [loss::jobs(), throughput::jobs(), dma::jobs(), latency::jobs()];
    let mut jobs: Vec<Job> = simulated.into_iter().flatten().collect();
    let mut own = machine::jobs();
    let ids: Vec<String> = jobs.iter().chain(&own).flat_map(|job| job.ids.clone()).collect();
    if let Some(unknown) = asked.iter().find(|id| !ids.contains(id)) {
        eprintln!("error: there is no figure {unknown}; there are {}", ids.join(", "));
        return ExitCode::from(2);
    }
    let wanted = |job: &Job| asked.is_empty() || job.ids.iter().any(|id| asked.contains(id));
    jobs.retain(wanted);
    own.retain(|job| wanted(job) && !update);
    sim::story::model();
    let mut figures = work(&jobs);
    own.iter().for_each(|job| figures.extend((job.run)()));

    let docs = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/bench");
    let target = sim::story::folder().parent().expect("the target folder").to_owned();
    write(&target.join("bench.json"), &figure::json(&figures));
    let committed = figure::read(&docs.join("figures.json"));
    let measured: BTreeSet<&str> = jobs.iter().flat_map(|job| &job.ids).map(String::as_str).collect();
    if update {
        let kept = |figure: &Figure| {
            !measured.contains(base(&figure.id)) && ids.iter().any(|id| id == base(&figure.id))
        };
        figures.extend(committed.into_iter().filter(kept));
        figures.sort_by_key(|figure| ids.iter().position(|id| id == base(&figure.id)));
        plot::draw(&docs, &figures);
        write(&docs.join("figures.json"), &figure::json(&figures));
        write(
            &docs.join("table.md"),
            &format!("<!-- made by cargo ci bench --update -->\n\n{}", table(&figures)),
        );
        return ExitCode::SUCCESS;
    }
    println!("{}", table(&figures));
    if asked.is_empty() {
        plot::draw(&target.join("bench"), &figures);
    }
    let exact = || figures.iter().filter(|figure| figure.is_exact());
    let mut wrong: Vec<String> = exact().filter_map(|figure| figure::differs(figure, &committed)).collect();
    let gone = |figure: &&Figure| {
        (asked.is_empty() || measured.contains(base(&figure.id))) && exact().all(|now| now.id != figure.id)
    };
    wrong.extend(
        committed.iter().filter(gone).map(|figure| format!("{}: committed, but not measured", figure.id)),
    );
    if wrong.is_empty() {
        return ExitCode::SUCCESS;
    }
    let list = wrong.join("\n  ");
    eprintln!(
        "differ from docs/bench/figures.json (cargo ci bench --update [ID...] writes them anew):\n  {list}"
    );
    ExitCode::FAILURE
}

/// The id of the job's figure: of a class of a histogram, that of the histogram.
fn base(id: &str) -> &str {
    id.split_once("_at_").map_or(id, |(base, _)| base)
}

/// The table, with its conditions; classes of a histogram are for its picture.
fn table(figures: &[Figure]) -> String {
    let rows: Vec<String> =
        figures.iter().filter(|figure| base(&figure.id) == figure.id).map(Figure::row).collect();
    format!("{CONDITIONS}\n\n{}\n{}\n", figure::HEAD, rows.join("\n"))
}
