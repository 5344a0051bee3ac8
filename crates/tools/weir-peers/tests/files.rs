//! `weir-peers files` with a tiny load: rows, document, and the end of all mounts and servers.
//!
//! Invariant: no test asserts a speed.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking, in shared functions too")]

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::Command;

const PROGRAM: &str = env!("CARGO_BIN_EXE_weir-peers");

/// Returns the benchmark of files with one round. Its data is in memory, because an fsync(2) takes
/// minutes while other tests write to a slow disk. Its messages go to the log of the test.
fn bench_files() -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(["files", "--quick", "--in-memory"]);
    command
}

/// Returns the reason why this machine cannot mount, if there is one.
fn no_fuse() -> Option<String> {
    // Capability of mount(2) (capabilities(7)).
    const CAP_SYS_ADMIN: u64 = 1 << 21;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap();
    if u64::from_str_radix(capabilities.trim(), 16).unwrap() & CAP_SYS_ADMIN == 0 {
        return Some("this user may not mount".to_owned());
    }
    let device = OpenOptions::new().read(true).write(true).open("/dev/fuse");
    device.err().map(|error| format!("/dev/fuse: {error}"))
}

#[test]
fn tiny_run_measures_every_row_and_leaves_no_mount() {
    if let Some(why) = no_fuse() {
        eprintln!("skipped: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, document) = (dir.path().join("data"), dir.path().join("performance.md"));
    let mut command = bench_files();
    command.args(["--files", "40", "--large", "2", "--seconds", "1"]);
    command.args(["--only", "small-[14]$|sequential|fsync"]);
    command.arg("--dir").arg(&data).arg("--out").arg(&document);
    // The benchmark would build a release binary; a binary of this profile is enough for the test.
    let weir = Path::new(PROGRAM).with_file_name("weir");
    if weir.exists() {
        command.arg("--weir").arg(weir).args(["--servers", "ext4|passthrough_ll|Weir"]);
    } else {
        eprintln!("without Weir: {} does not exist", weir.display());
        command.args(["--servers", "ext4|passthrough_ll"]);
    }
    assert!(command.status().unwrap().success());

    let document = fs::read_to_string(document).unwrap();
    let cells = |title: &str| -> Vec<String> {
        let line = document.lines().find(|line| line.starts_with(&format!("| {title} |")));
        let line = line.unwrap_or_else(|| panic!("no row {title}: {document}"));
        line.split(" | ").map(str::to_owned).collect()
    };
    for title in ["create, 1 process", "unlink, 4 processes"] {
        assert!(cells(title)[1].ends_with(" k/s"), "{document}");
    }
    assert!(cells("sequential write")[1].ends_with(" MiB/s"), "{document}");
    assert!(cells("p99 of a 4 KiB write with fsync")[1].ends_with(" us"), "{document}");

    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!mounts.contains(data.to_str().unwrap()), "{mounts}");
    assert!(!data.join("files").exists(), "the data is deleted");
    assert!(data.join("files.json").exists(), "the samples are kept");
}

#[test]
fn tiny_nfs_run_measures_both_servers() {
    if let Some(why) = no_fuse() {
        eprintln!("skipped: {why}");
        return;
    }
    let weir = Path::new(PROGRAM).with_file_name("weir");
    let is_installed = |tool: &str| {
        let folders = ["/usr/bin", "/usr/sbin", "/bin", "/sbin"];
        folders.iter().any(|folder| Path::new(folder).join(tool).exists())
    };
    if !weir.exists() || !["ganesha.nfsd", "rpcbind", "ip"].into_iter().all(is_installed) {
        eprintln!("skipped: no Weir of this profile, no Ganesha, no rpcbind or no ip");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (data, document) = (dir.path().join("data"), dir.path().join("performance.md"));
    let begin = "<!-- bench-nfs: begin -->\n<!-- bench-nfs: end -->\n";
    fs::write(&document, begin).unwrap();
    let mut command = bench_files();
    command.args(["--untar", "20", "--only", "nfs-(small|sync|extract)$"]);
    command.arg("--dir").arg(&data).arg("--out").arg(&document).arg("--weir").arg(&weir);
    assert!(command.status().unwrap().success());
    let document = fs::read_to_string(document).unwrap();
    for title in ["GETATTR", "4 KiB random write, FILE_SYNC", "untar"] {
        let line = document.lines().find(|line| line.starts_with(&format!("| {title}")));
        let line = line.unwrap_or_else(|| panic!("no row {title}: {document}"));
        let cells: Vec<&str> = line.split(" | ").collect();
        assert!(cells[2].contains(" k/s, ") && cells[3].contains(" k/s, "), "{line}");
    }
    assert!(data.join("nfs.json").exists(), "the samples are kept");
    assert!(!data.join("nfs-data").exists(), "the data is deleted");
}
