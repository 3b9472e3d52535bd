//! `verbena demo` on files of every kind, and `verbena sim` from start to Ctrl-C.
#![cfg(feature = "sim")]

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Output, Stdio},
    time::{Duration, Instant},
};

fn verbena(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_verbena"));
    command.args(args);
    command
}

fn demo(folder: &Path, file: &Path) -> Output {
    let capture = folder.join("demo.pcapng");
    verbena(&["demo"]).arg(file).arg("--capture").arg(&capture).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_file_that_cannot_be_moved_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    for (file, why) in
        [(folder.path().join("missing"), "No such file"), (folder.path().to_path_buf(), "not a regular file")]
    {
        let output = demo(folder.path(), &file);
        let words = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words}");
        assert!(words.contains(why) && words.contains(&*file.to_string_lossy()), "{words}");
        assert_eq!(words.lines().count(), 1, "{words}");
    }
}

#[test]
fn files_of_no_byte_one_byte_and_many_odd_bytes_arrive_four_times() {
    let folder = tempfile::tempdir().unwrap();
    // The digests of nothing and of one zero byte are known to everybody.
    let known = [
        (0, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"),
        (1, "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d"),
    ];
    for (length, digest) in known {
        let file = folder.path().join(format!("zeros-{length}"));
        std::fs::write(&file, vec![0; length]).unwrap();
        let output = demo(folder.path(), &file);
        let words = text(&output.stdout);
        assert!(output.status.success(), "{words}{}", text(&output.stderr));
        assert_eq!(words.matches(digest).count(), 5, "before and after each time: {words}");
    }
    let file = folder.path().join("odd");
    std::fs::write(&file, (0..300_007u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect::<Vec<_>>()).unwrap();
    let output = demo(folder.path(), &file);
    let words = text(&output.stdout);
    assert!(output.status.success(), "{words}{}", text(&output.stderr));
    let digest = words.lines().find_map(|line| line.trim().strip_prefix("SHA-256 ")).unwrap();
    assert_eq!(words.matches(digest).count(), 5, "{words}");
    assert_eq!(words.lines().filter(|line| line.contains("300007 ")).count(), 5, "{words}");
    assert!(std::fs::metadata(folder.path().join("demo.pcapng")).unwrap().len() > 1_000_000);
}

#[test]
fn the_simulator_serves_until_it_is_interrupted_and_leaves_no_socket() {
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let capture = folder.path().join("wire.pcapng");
    let mut sim = verbena(&["sim", "--loss", "1%", "--card", "mtu=1500", "--run"])
        .arg(&run)
        .arg("--capture")
        .arg(&capture)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(sim.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line.split(' ').take(3).collect::<Vec<_>>(), ["card0", "02:00:00:00:00:0a", "10.0.0.1"]);
    let info = verbena(&["devinfo"]).env("VERBENA_RUN", &run).env_remove("VERBENA_DEVICE").output().unwrap();
    let words = text(&info.stdout);
    assert!(info.status.success() && words.contains("02:00:00:00:00:0a") && words.contains("1500"), "{words}");
    let killed = Command::new("kill").args(["-INT", &sim.id().to_string()]).status().unwrap();
    assert!(killed.success());
    let start = Instant::now();
    while sim.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(20), "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    }
    let output = sim.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(!run.join("card0.sock").exists() && capture.exists());
}
