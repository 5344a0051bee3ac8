//! `weir bench` on targets that refuse operations: it counts and reports such errors, and does not
//! report them as corruption.
//!
//! Not here: disks that lie (liars), tests with made-up figures (weir-bench).
//!
//! Invariant: a run in which operations were refused never has exit code 0.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::bench::SmallDisk;
use crate::common::{Dirs, GIB, accepts, code, eventually, path, text};
use crate::liars::{Bench, NO};

/// The server nbdkit with a disk in memory and its error filter; dropping the value kills nbdkit.
struct Nbdkit {
    child: Child,
    socket: PathBuf,
}

impl Nbdkit {
    fn start(bench: &Bench, arguments: &[&str]) -> Self {
        let socket = bench.socket("nbdkit");
        let mut command = Command::new("nbdkit");
        command.env("PATH", path()).args(["-f", "--exit-with-parent", "-U"]).arg(&socket);
        command.args(["--filter=error", "memory", "8M", "error=EIO"]).args(arguments);
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        eventually("nbdkit listens", Duration::from_secs(20), || accepts(&socket));
        Self { child, socket }
    }

    fn target(&self) -> String {
        format!("nbd+unix:///?socket={}", self.socket.display())
    }
}

impl Drop for Nbdkit {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Asserts that the fill of this target fails with an error that contains these words.
#[track_caller]
fn assert_no_fill(bench: &Bench, target: &str, words: &[&str]) {
    let output = bench.run(target, &[]);
    let said = text(&output);
    assert_eq!(output.status.code(), Some(code::UNAVAILABLE), "{said}");
    assert!(said.contains("the dataset was not written: write failed"), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{said}");
    assert!(!said.contains("corrupt"), "{said}");
}

// Regression: if a target refused the write of a block, `weir bench` reported the block as
// "corrupt: do not trust this storage with data", yet exited with 0.
#[test]
fn refused_writes_end_the_fill() {
    let bench = Bench::new(50, "qd = [4]");
    for rate in ["100%", "20%"] {
        let rate = format!("error-pwrite-rate={rate}");
        let nbdkit = Nbdkit::start(&bench, &[&rate]);
        assert_no_fill(&bench, &nbdkit.target(), &["Input/output error"]);
    }
}

#[test]
fn errors_during_a_measurement_are_reported() {
    for (reads, kind) in [(0, "write"), (100, "read")] {
        let bench = Bench::new(reads, "qd = [4]");
        // nbdkit returns errors while this file exists, which is only after the fill.
        let errors = bench.path("errors");
        let (file, rate) =
            (format!("error-file={}", errors.display()), format!("error-p{kind}-rate=2%"));
        let nbdkit = Nbdkit::start(&bench, &[&rate, &file]);
        let going = bench.start(&nbdkit.target());
        bench.wait_for_result();
        fs::write(&errors, "").unwrap();
        let output = going.wait_with_output().unwrap();
        let said = text(&output);
        assert_eq!(output.status.code(), Some(NO), "{said}");
        let line = said.lines().nth(2).unwrap_or_default();
        let named = format!("{kind} failed ");
        assert!(line.starts_with(&named) && line.contains("Input/output error"), "{said}");
        assert!(!said.contains("corrupt") && said.contains("invalid"), "{said}");
    }
}

#[test]
fn full_file_system_and_quota_end_the_fill() {
    let bench = Bench::new(50, "qd = [4]");
    let disk = SmallDisk::mounted(bench.path("small"), "4M");
    assert_no_fill(&bench, &disk.0.join("file").display().to_string(), &["No space left"]);

    let dirs = Dirs::new();
    dirs.disk("a", GIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    server.volume("tank/v", "8MiB");
    server.weir("set quota=4MiB tank/v").ok();
    let target = format!("nbd+unix:///tank/v?socket={}", server.nbd().display());
    assert_no_fill(&bench, &target, &["No space left"]);
}

#[test]
fn removed_export_is_an_error_not_corruption() {
    let dirs = Dirs::new();
    dirs.disk("a", GIB);
    let server = dirs.start();
    server.weir("pool create tank a").ok();
    server.volume("tank/v", "8MiB");
    let bench = Bench::new(50, "qd = [4]");
    let target = format!("nbd+unix:///tank/v?socket={}", server.nbd().display());
    let going = bench.start(&target);
    bench.wait_for_result();
    server.weir("export delete tank/v --force").ok();
    let output = going.wait_with_output().unwrap();
    let said = text(&output);
    assert_eq!(output.status.code(), Some(NO), "{said}");
    assert!(said.contains("invalid") && !said.contains("corrupt"), "{said}");
}

/// Measures reads of a file, and changes the file after the first run. Returns the exit code and
/// the output.
fn changed_file(change: fn(&Path)) -> (Option<i32>, String) {
    let bench = Bench::new(100, "qd = [4]");
    let file = bench.path("disk.dat");
    let going = bench.start("disk.dat");
    bench.wait_for_result();
    change(&file);
    let output = going.wait_with_output().unwrap();
    (output.status.code(), text(&output))
}

#[test]
fn truncated_file_is_an_error_not_corruption() {
    let (status, said) = changed_file(|file| {
        fs::File::options().write(true).open(file).unwrap().set_len(4 << 20).unwrap();
    });
    assert_eq!(status, Some(NO), "{said}");
    assert!(said.contains("read failed") && said.contains("invalid"), "{said}");
    assert!(!said.contains("corrupt"), "{said}");
}

#[test]
fn grown_or_removed_file_changes_no_verdict() {
    for change in [
        |file: &Path| {
            fs::File::options().write(true).open(file).unwrap().set_len(16 << 20).unwrap();
        },
        |file: &Path| fs::remove_file(file).unwrap(),
    ] {
        let (status, said) = changed_file(change);
        assert_eq!(status, Some(0), "{said}");
        assert!(!said.contains("invalid") && !said.contains("corrupt"), "{said}");
    }
}

impl Bench {
    /// Returns the path of a socket that does not exist yet.
    fn socket(&self, name: &str) -> PathBuf {
        let socket = self.short(name);
        drop(fs::remove_file(&socket));
        socket
    }

    fn words(target: &str) -> [&str; 7] {
        ["run", "-p", "./liars.toml", "-t", target, "-o", "out"]
    }

    /// Measures a target and waits for the end of the measurement.
    fn run(&self, target: &str, more: &[&str]) -> std::process::Output {
        drop(fs::remove_dir_all(self.path("out")));
        self.command(&[&Self::words(target)[..], more].concat()).output().unwrap()
    }

    /// Starts to measure a target in the background.
    fn start(&self, target: &str) -> Child {
        let mut command = self.command(&Self::words(target));
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits until the result contains the first run of the row.
    fn wait_for_result(&self) {
        let result = self.path("out/result.json");
        eventually("a run was made", Duration::from_mins(1), || has_run(&result));
    }
}

fn has_run(path: &Path) -> bool {
    let Ok(text) = fs::read_to_string(path) else { return false };
    let result: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
    result["cells"][0]["runs"].as_array().is_some_and(|runs| !runs.is_empty())
}
