//! Real Verilog through Verilator, g++ and the loader: values, waves, cache, races, errors.
//!
//! A cache directory per test would cost 10 s of runtime each, so tests share cargo's, and those that count builds
//! salt their text.

use std::{
    fs,
    path::Path,
    sync::{
        Barrier, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Instant,
};
use verilated::{Direction, Error, Model, Progress, Source};

const COUNTER: &str = r"
module counter (input wire clk, input wire reset, input wire [7:0] step, output reg [15:0] count);
    always @(posedge clk) if (reset) count <= 0; else count <= count + step;
endmodule";

const SHAPES: &str = r"
module shapes #(parameter W = 130) (
    input wire [W-1:0] a, input wire [W-1:0] b, output wire [W-1:0] y,
    input wire [7:0] a8, output wire [7:0] y8, input wire [8:0] a9, output wire [8:0] y9,
    input wire [31:0] a32, output wire [31:0] y32, input wire [32:0] a33, output wire [32:0] y33,
    input wire [63:0] a64, output wire [63:0] y64, input wire [64:0] a65, output wire [64:0] y65);
    assign y = a ^ b; assign y8 = ~a8; assign y9 = ~a9; assign y32 = ~a32; assign y33 = ~a33;
    assign y64 = ~a64; assign y65 = ~a65;
endmodule";

const TWO_CLOCKS: &str = r"
module two_clocks (input wire a_clk, input wire b_clk, input wire [7:0] d, output reg [7:0] a, output reg [7:0] b);
    always @(posedge a_clk) a <= d;
    always @(posedge b_clk) b <= a;
endmodule";

/// A text that no earlier run has built.
fn fresh(text: &str) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos();
    format!("{text}\n// {now} {} {}\n", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Takes a model of a fresh text out of the cache.
fn forget(model: Model) {
    fs::remove_dir_all(model.path().parent().unwrap()).unwrap();
}

/// Builds and counts the translations that took place.
fn build_counted(source: Source<'_>) -> (Result<Model, Error>, usize) {
    let steps = Mutex::new(Vec::new());
    let progress = |step| steps.lock().unwrap().push(step);
    let model = Model::build(&Source { progress: Some(&progress), ..source });
    let translations = steps.lock().unwrap().iter().filter(|&&step| step == Progress::Translating).count();
    (model, translations)
}

#[test]
fn two_instances_count_independently() {
    let model = Model::build(&Source::new("counter", COUNTER)).unwrap();
    let (clk, reset) = (model.input("clk", 1).unwrap(), model.input("reset", 1).unwrap());
    let (step, count) = (model.input("step", 8).unwrap(), model.output("count", 16).unwrap());
    let mut pair = [model.instance().unwrap(), model.instance().unwrap()];
    for (instance, by) in pair.iter_mut().zip([1, 200]) {
        for cycle in 0..1000 {
            instance.set(reset, u64::from(cycle == 0));
            instance.set(step, by);
            for level in [0, 1] {
                instance.set(clk, level);
                instance.eval().unwrap();
            }
        }
    }
    assert_eq!(pair.each_ref().map(|instance| instance.get(count)), [999, 999 * 200 % 65536]);
    assert_eq!(pair[1].get(step), 200, "an input reads back");
}

#[test]
fn an_instance_moves_between_threads() {
    let model = Model::build(&Source::new("counter", COUNTER)).unwrap();
    let (clk, step, count) =
        (model.input("clk", 1).unwrap(), model.input("step", 8).unwrap(), model.output("count", 16).unwrap());
    let mut instance = model.instance().unwrap();
    for _ in 0..4 {
        instance = thread::spawn(move || {
            instance.set(step, 3);
            for level in [0, 1] {
                instance.set(clk, level);
                instance.eval().unwrap();
            }
            instance
        })
        .join()
        .unwrap();
    }
    assert_eq!(instance.get(count), 12);
}

#[test]
fn every_storage_size_carries_all_of_its_bits() {
    let model = Model::build(&Source::new("shapes", SHAPES)).unwrap();
    let mut instance = model.instance().unwrap();
    for width in [8, 9, 32, 33, 64] {
        let (a, y) = (
            model.input(&format!("a{width}"), width).unwrap(),
            model.output(&format!("y{width}"), width).unwrap(),
        );
        let mask = u64::MAX >> (64 - width);
        for value in [0, mask, 1 << (width - 1), 0xa5a5_a5a5_a5a5_a5a5 & mask] {
            instance.set(a, value);
            instance.eval().unwrap();
            assert_eq!(instance.get(y), !value & mask, "width {width}");
            let mut words = vec![0; y.words()];
            instance.get_wide(y, &mut words);
            assert_eq!(words[0], (!value & mask) as u32);
        }
    }
    let (a, y) = (model.input("a65", 65).unwrap(), model.output("y65", 65).unwrap());
    instance.set_wide(a, &[0x1234_5678, 0, 0xffff_fffe]);
    instance.eval().unwrap();
    let mut words = [0; 3];
    instance.get_wide(y, &mut words);
    assert_eq!(words, [!0x1234_5678, u32::MAX, 1], "bits above bit 64 are dropped");

    let (a, b, y) = (model.input("a", 130), model.input("b", 130), model.output("y", 130));
    let (a, b, y) = (a.unwrap(), b.unwrap(), y.unwrap());
    instance.set_wide(a, &[1, 2, 3, 4, 3]);
    instance.set_wide(b, &[0xffff_ffff, 0, 1, 4, 1]);
    instance.eval().unwrap();
    let mut words = [0; 5];
    instance.get_wide(y, &mut words);
    assert_eq!(words, [0xffff_fffe, 2, 2, 0, 2]);
}

#[test]
fn two_clocks_tick_apart() {
    let model = Model::build(&Source::new("two_clocks", TWO_CLOCKS)).unwrap();
    let clocks = [model.input("a_clk", 1).unwrap(), model.input("b_clk", 1).unwrap()];
    let (d, a, b) =
        (model.input("d", 8).unwrap(), model.output("a", 8).unwrap(), model.output("b", 8).unwrap());
    let mut instance = model.instance().unwrap();
    instance.eval().unwrap();
    let mut tick = |which: &[usize], value| {
        instance.set(d, value);
        for level in [1, 0] {
            for &clock in which {
                instance.set(clocks[clock], level);
            }
            instance.eval().unwrap();
        }
        (instance.get(a), instance.get(b))
    };
    assert_eq!(tick(&[0], 7), (7, 0));
    assert_eq!(tick(&[1], 8), (7, 7));
    assert_eq!(tick(&[0, 1], 9), (9, 7), "edges at the same moment: b takes the old a");
}

#[test]
fn wrong_name_direction_and_width_are_named() {
    let model = Model::build(&Source::new("counter", COUNTER)).unwrap();
    let ports: Vec<_> = model.ports().iter().map(|p| (p.name.as_str(), p.direction, p.width)).collect();
    assert!(
        ports.contains(&("step", Direction::Input, 8)) && ports.contains(&("count", Direction::Output, 16))
    );
    let error = model.input("stop", 8).unwrap_err().to_string();
    assert!(error.contains("no port `stop`") && error.contains("step"), "{error}");
    let error = model.output("step", 8).unwrap_err().to_string();
    assert!(error.contains("is an input"), "{error}");
    let error = model.input("step", 9).unwrap_err().to_string();
    assert!(error.contains("8 bits wide, bound as 9"), "{error}");
}

#[test]
fn a_handle_of_another_model_and_a_wrong_slice_are_refused() {
    let counter = Model::build(&Source::new("counter", COUNTER)).unwrap();
    let shapes = Model::build(&Source::new("shapes", SHAPES)).unwrap();
    let refused = |act: &dyn Fn()| {
        let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(act)).unwrap_err();
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    };
    let step = counter.input("step", 8).unwrap();
    let wide = shapes.output("y", 130).unwrap();
    let instance = shapes.instance().unwrap();
    assert!(refused(&|| _ = instance.get(step)).contains("another model"));
    assert!(refused(&|| _ = instance.get(wide)).contains("130 bits"));
    assert!(refused(&|| instance.get_wide(wide, &mut [0; 4])).contains("5 words, the slice 4"));
}

#[test]
fn a_second_build_and_a_racing_build_compile_nothing() {
    let text = fresh(COUNTER);
    let barrier = Barrier::new(3);
    let race = || {
        barrier.wait();
        let (model, translations) = build_counted(Source::new("counter", &text));
        (model.unwrap(), translations)
    };
    let results: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(race)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(results.iter().map(|(_, translations)| translations).sum::<usize>(), 1);
    let modified = || fs::metadata(results[0].0.path()).unwrap().modified().unwrap();
    let before = modified();
    let start = Instant::now();
    let (again, translations) = build_counted(Source::new("counter", &text));
    println!("cache hit: {:?}", start.elapsed());
    assert_eq!((translations, modified()), (0, before));
    // One file is one model: handles fit.
    let count = again.unwrap().output("count", 16).unwrap();
    assert_eq!(results[0].0.instance().unwrap().get(count), 0);
    let left: Vec<_> = fs::read_dir(results[0].0.path().parent().unwrap()).unwrap().flatten().collect();
    assert!(left.iter().all(|entry| !entry.path().is_dir()), "work directories are gone: {left:?}");
    forget(results.into_iter().next().unwrap().0);
}

#[test]
fn racing_processes_build_once() {
    if let Some(text) = std::env::var_os("VERILATED_TEST_RACE") {
        let (model, translations) = build_counted(Source::new("counter", text.to_str().unwrap()));
        model.unwrap().instance().unwrap();
        println!("translations={translations};");
        return;
    }
    let text = fresh(COUNTER);
    let child = || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["racing_processes_build_once", "--exact", "--nocapture"])
            .env("VERILATED_TEST_RACE", &text)
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap()
    };
    let outputs: Vec<_> = [child(), child()]
        .map(|child| String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap())
        .into();
    let of = |n| outputs.iter().filter(|text| text.contains(&format!("translations={n};"))).count();
    assert_eq!((of(0), of(1)), (1, 1), "{outputs:?}");
    forget(Model::build(&Source::new("counter", &text)).unwrap());
}

#[test]
fn broken_verilog_is_told_in_verilators_words() {
    let text = "module broken(input wire a, output wire y); assign y = a &&& ; endmodule";
    let error = Model::build(&Source::new("broken", text)).unwrap_err();
    assert!(matches!(error, Error::Verilog { .. }), "{error}");
    assert!(
        error.to_string().contains("model.sv:1") && error.to_string().contains("syntax error"),
        "{error}"
    );
    let error = Model::build(&Source::new("absent", COUNTER)).unwrap_err();
    assert!(error.to_string().contains("absent"), "{error}");
    let error = Model::build(&Source::new("pad", "module pad(inout wire p); endmodule")).unwrap_err();
    assert!(matches!(error, Error::PortShape { .. }), "{error}");
}

#[test]
fn a_machine_without_verilator_is_told_what_to_install() {
    if std::env::var_os("VERILATED_TEST_NO_TOOLS").is_some() {
        println!("said: {}", Model::build(&Source::new("counter", COUNTER)).unwrap_err());
        return;
    }
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["a_machine_without_verilator_is_told_what_to_install", "--exact", "--nocapture"])
        .env("VERILATED_TEST_NO_TOOLS", "1")
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("said: cannot run `verilator`") && text.contains("apt-get install verilator"),
        "{text}"
    );
}

#[test]
fn a_relative_cache_directory_works_and_models_unload() {
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let up = "../".repeat(std::env::current_dir().unwrap().components().count() - 1);
    let relative = Path::new(&up).join(directory.path().strip_prefix("/").unwrap());
    assert!(relative.is_relative());
    let source = Source::new("counter", COUNTER).in_directory(&relative);
    for round in 0..200 {
        let model = Model::build(&source).unwrap();
        let (clk, step, count) = (model.input("clk", 1), model.input("step", 8), model.output("count", 16));
        let mut instance = model.instance().unwrap();
        instance.set(step.unwrap(), round & 0xff);
        for level in [0, 1] {
            instance.set(clk.as_ref().copied().unwrap(), level);
            instance.eval().unwrap();
        }
        assert_eq!(instance.get(count.unwrap()), round & 0xff);
    }
}

#[test]
fn a_failed_assertion_is_a_lasting_error_of_that_instance_alone() {
    let text = r#"
module judge(input wire clk, input wire [7:0] a);
    always @(posedge clk) assert (a != 8'hff) else $error("a is %0d", a);
endmodule"#;
    let model = Model::build(&Source::new("judge", text)).unwrap();
    let (clk, a) = (model.input("clk", 1).unwrap(), model.input("a", 8).unwrap());
    let mut pair = [model.instance().unwrap(), model.instance().unwrap()];
    let mut results = Vec::new();
    for (instance, value) in pair.iter_mut().zip([0xff, 0xfe]) {
        instance.eval().unwrap();
        instance.set_time(4200);
        instance.set(a, value);
        instance.set(clk, 1);
        results.push(instance.eval());
    }
    let error = results[0].as_ref().unwrap_err().to_string();
    assert!(
        error.contains("[4200]") && error.contains("model.sv:3") && error.contains("a is 255"),
        "{error}"
    );
    assert!(results[1].is_ok());
    pair[0].set(a, 0);
    assert_eq!(pair[0].eval().unwrap_err().to_string(), error, "stopped is stopped");
    assert!(pair[1].eval().is_ok());

    let model = Model::build(&Source { assertions: false, ..Source::new("judge", text) }).unwrap();
    let (clk, a) = (model.input("clk", 1).unwrap(), model.input("a", 8).unwrap());
    let mut instance = model.instance().unwrap();
    instance.eval().unwrap();
    instance.set(a, 0xff);
    instance.set(clk, 1);
    assert!(instance.eval().is_ok(), "assertions: false");
}

#[test]
fn logic_that_never_settles_is_an_error_not_an_abort() {
    let text = "module ring(input wire en, output wire y); assign y = en ? ~y : 1'b0; endmodule";
    let model = Model::build(&Source::new("ring", text)).unwrap();
    let en = model.input("en", 1).unwrap();
    let mut instance = model.instance().unwrap();
    instance.eval().unwrap();
    instance.set(en, 1);
    let error = instance.eval().unwrap_err().to_string();
    assert!(error.contains("converge"), "{error}");
}

/// Start and end time and the time unit's exponent, from an FST file's header block.
fn fst_header(path: &Path) -> (u64, u64, i8) {
    let bytes = fs::read(path).unwrap();
    let word = |at: usize| u64::from_be_bytes(bytes[at..at + 8].try_into().unwrap());
    assert_eq!((bytes[0], word(1)), (0, 329), "FST begins with a header block of 329 bytes");
    (word(9), word(17), bytes[73] as i8)
}

#[test]
fn waves_of_two_windows_carry_picoseconds() {
    let model = Model::build(&Source::new("counter", COUNTER).traced()).unwrap();
    let (clk, step) = (model.input("clk", 1).unwrap(), model.input("step", 8).unwrap());
    let directory = tempfile::tempdir().unwrap();
    let mut instance = model.instance().unwrap();
    instance.dump(1).unwrap();
    for (name, start) in [("one.fst", 6400), ("two.fst", 1_000_000)] {
        let path = directory.path().join(name);
        instance.trace(&path).unwrap();
        instance.set(step, 5);
        for edge in 0..20 {
            instance.set(clk, edge & 1);
            instance.eval().unwrap();
            instance.dump(start + edge * 3200).unwrap();
        }
        let error = instance.dump(start).unwrap_err().to_string();
        assert!(error.contains("not after"), "{error}");
        instance.trace_end();
        assert_eq!(fst_header(&path), (start, start + 19 * 3200, -12));
        let bytes = fs::read(&path).unwrap();
        assert!(bytes.len() > 400, "{} bytes", bytes.len());
    }
    let error = instance.trace("/nonexistent/x.fst").unwrap_err().to_string();
    assert!(error.contains("cannot create /nonexistent/x.fst"), "{error}");
    let plain = Model::build(&Source::new("counter", COUNTER)).unwrap();
    assert!(matches!(plain.instance().unwrap().trace("x.fst"), Err(Error::NotTraced { .. })));
}

#[test]
fn a_killed_build_leaves_nothing_that_looks_finished() {
    let text = fresh(COUNTER);
    let directory = Source::default_directory();
    // The remains of a build: a work directory with an object, and a lock that nobody holds.
    let model = Model::build(&Source::new("counter", &text)).unwrap();
    let home = model.path().parent().unwrap().to_path_buf();
    drop(model);
    fs::remove_file(home.join("model.so")).unwrap();
    fs::create_dir(home.join("work-1")).unwrap();
    fs::write(home.join("work-1/model.so"), "half").unwrap();
    let (model, translations) = build_counted(Source::new("counter", &text));
    let model = model.unwrap();
    assert!(model.path().starts_with(&directory));
    assert_eq!(translations, 1);
    assert!(!home.join("work-1").exists());
    forget(model);
}

#[test]
fn a_cycle_of_a_small_model_costs_little() {
    let model = Model::build(&Source::new("counter", COUNTER)).unwrap();
    let (clk, step, count) =
        (model.input("clk", 1).unwrap(), model.input("step", 8).unwrap(), model.output("count", 16).unwrap());
    let mut instance = model.instance().unwrap();
    let cycles = 1_000_000;
    let start = Instant::now();
    let mut sum = 0;
    for cycle in 0..cycles {
        instance.set(step, cycle & 0xff);
        for level in [0, 1] {
            instance.set(clk, level);
            instance.eval().unwrap();
        }
        sum += instance.get(count);
    }
    let each = start.elapsed().as_nanos() as u64 / cycles;
    println!("{each} ns per cycle (two evals, three sets, one get), checksum {sum}");
    // The aim is 100; the bound only catches a loss of an order, since the machine is shared and this is a debug build.
    assert!(each < 2000, "{each} ns per cycle");
}

#[test]
fn a_model_with_coverage_tells_what_was_passed_and_by_which_instance() {
    let text = "module taken(input wire clk, input wire a, output reg [1:0] n);
        always @(posedge clk) begin if (a) n <= n + 1; end
        both: cover property (@(posedge clk) n == 2'd3);
        endmodule";
    let model = Model::build(&Source { coverage: true, ..Source::new("taken", text) }).unwrap();
    let (clk, a) = (model.input("clk", 1).unwrap(), model.input("a", 1).unwrap());
    let mut pair = [model.instance().unwrap(), model.instance().unwrap()];
    for cycle in 0..4 {
        for level in [0, 1] {
            pair[0].set(a, u64::from(cycle < 3));
            pair[0].set(clk, level);
            pair[0].eval().unwrap();
        }
    }
    let count = |instance: &verilated::Instance, what: &str| {
        let points = instance.cover_points().into_iter().zip(instance.coverage());
        let found: Vec<u32> = points.filter(|(point, _)| point.what == what).map(|(_, n)| n).collect();
        assert_eq!(found.len(), 1, "{what} in {:?}", instance.cover_points());
        found[0]
    };
    // taken three times, once not; n went 0 1 2 3; 3 was seen at the last clock
    assert_eq!(["if", "else", "n[0]", "n[1]", "both"].map(|what| count(&pair[0], what)), [3, 1, 3, 1, 1]);
    assert_eq!(count(&pair[1], "if"), 0);
    assert!(pair[1].cover_points().iter().all(|point| point.module == "taken"));
    assert!(Model::build(&Source::new("taken", text)).unwrap().instance().unwrap().cover_points().is_empty());
}
