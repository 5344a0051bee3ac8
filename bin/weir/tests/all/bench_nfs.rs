//! `weir bench` over NFS, against nfs-ganesha, a server of another project.
//!
//! Not here: the protocol (weir-nfs-client), operations on a local directory (bench_files).
//!
//! Invariants: each run reads back every block that it wrote and compares it; after each run, the
//! directory has only the files of the dataset; no test asserts a speed.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::bench::{Bench, signal};
use crate::common::network::Network;
use crate::common::{eventually, path, text};

/// Profile with data, a mix of data and metadata, and operations on files.
const PROFILE: &str = r#"
schema = 1
name = "nfs"
title = "NFS"
dataset = { files = 2, file_size = "4MiB" }
content = { compress = 2.0, dedupe_pct = 0, unit = "4KiB", seed = 42 }
durability = { writes = "flush", every_writes = 16 }

[phases]
fill = { block = "1MiB", in_flight = 4 }
measure = { warmup = "50ms", duration = "300ms", runs = 2 }
verify = { sample_pct = 100 }

[[test]]
name = "mix"
pattern = "random"
blocks = [{ size = "4KiB", weight = 3 }, { size = "1MiB", weight = 1 }]
read_pct = 50
metadata_pct = 20
workers = 2
qd = [8]

[[test]]
name = "create"
op = "create"
files = 100
file_size = "4KiB"
threads = [2]

[[test]]
name = "rename"
op = "rename"
files = 100
threads = [2]

[[test]]
name = "readdir"
op = "readdir"
files = 300
threads = [1]

[[test]]
name = "remove"
op = "remove"
files = 100
directory = "shared"
threads = [2]
"#;

/// A Ganesha with its own rpcbind, in its own network, file system and process namespaces. All its
/// processes end when the guard is dropped.
struct Ganesha {
    child: Child,
    network: Network,
    /// Directory that the server exports as `/vfs`.
    export: PathBuf,
}

impl Ganesha {
    /// Starts a server. `None` if its packages are not installed.
    fn start(bench: &Bench) -> Option<Self> {
        let has =
            |program: &str| path().split(':').any(|dir| PathBuf::from(dir).join(program).exists());
        if !["ganesha.nfsd", "rpcbind"].into_iter().all(has) {
            eprintln!("skipped: this test needs the packages nfs-ganesha-vfs and rpcbind");
            return None;
        }
        let network = Network::new();
        let (export, state) = (bench.path("export"), bench.path("state"));
        fs::create_dir(&export).unwrap();
        fs::create_dir(&state).unwrap();
        let config = format!(
            "NFS_CORE_PARAM {{ Protocols = 3; MNT_Port = 20048; Enable_UDP = false; \
               Enable_RQUOTA = false; mount_path_pseudo = true; }}
             NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = \"{state}\"; }}
             EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; \
               PrivilegedPort = true; Protocols = 3; Transports = TCP; }}
             EXPORT {{ Export_Id = 1; Path = {export}; Pseudo = /vfs; FSAL {{ Name = VFS; }} }}",
            state = state.display(),
            export = export.display()
        );
        fs::write(bench.path("ganesha.conf"), config).unwrap();
        // rpcbind and Ganesha write sockets and numbers of processes to /run.
        let script = "mount -t tmpfs run /run && mkdir -p /run/ganesha && rpcbind -w && \
            exec ganesha.nfsd -F -f ganesha.conf -L ganesha.log -p ganesha.pid";
        let mut command = network.command("unshare");
        command.args(["--mount", "--pid", "--fork", "--kill-child", "sh", "-c", script]);
        command.current_dir(bench.path(".")).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().expect("unshare of util-linux");
        let server = Self { child, network, export };
        eventually("Ganesha runs", Duration::from_secs(20), || {
            let log = fs::read_to_string(bench.path("ganesha.log")).unwrap_or_default();
            log.contains("NFS SERVER INITIALIZED")
        });
        Some(server)
    }

    /// Names in a directory of the export, without the files of the dataset.
    fn left(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.export.join(directory)).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| !name.starts_with("weir-bench-0000")).collect()
    }
}

impl Drop for Ganesha {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

fn class<'a>(run: &'a Value, op: &str) -> &'a Value {
    let classes = run["classes"].as_array().unwrap();
    classes.iter().find(|class| class["op"] == op).unwrap_or_else(|| panic!("no {op}: {run}"))
}

#[test]
fn nfs_server_is_measured_with_data_and_operations_on_files() {
    let bench = Bench::new();
    let Some(server) = Ganesha::start(&bench) else { return };
    fs::write(bench.path("nfs.toml"), PROFILE).unwrap();
    // The directory does not exist, and MOUNT is found through portmap.
    let url = "nfs://127.0.0.1/vfs/new/dir";
    let words = ["run", "-p", "./nfs.toml", "-t", url, "-o", "out"];
    let output = server.network.inside(&bench.command(&words)).output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let result = bench.result("out");
    assert_eq!(result["complete"], true);
    let facts = &result["target"]["facts"];
    let expected = [
        ("server", "127.0.0.1:2049"),
        ("export", "/vfs"),
        ("source port", "reserved"),
        ("mount port", "20048"),
        ("write stability", "UNSTABLE, COMMIT at a flush"),
    ];
    for (name, fact) in expected {
        assert_eq!(facts[name], fact, "{facts}");
    }
    let cells = result["cells"].as_array().unwrap();
    for cell in cells {
        assert!(cell["failure"].is_null(), "{cell}");
        for run in cell["runs"].as_array().unwrap() {
            assert_eq!(run["corrupt"], 0, "{run}");
            for class in run["classes"].as_array().unwrap() {
                assert!(class["errors"].as_object().unwrap().is_empty(), "{class}");
            }
        }
    }
    let verified = &cells[0]["verified"];
    assert!(verified["bad"] == 0 && verified["blocks"].as_u64() > Some(0), "{verified}");
    for (cell, listed) in cells[1..].iter().zip([200, 200, 300, 0]) {
        for run in cell["runs"].as_array().unwrap() {
            let files = &run["files"];
            assert_eq!((&files["missing"], &files["unexpected"]), (&0.into(), &0.into()), "{cell}");
            assert_eq!(files["listed"], listed, "{cell}");
        }
    }
    let kinds = cells[0]["runs"][0]["metadata_ops"].as_object().unwrap();
    assert!(kinds.contains_key("getattr") && kinds.contains_key("lookup"), "{kinds:?}");
    assert_eq!(class(&cells[1]["runs"][0], "create")["bytes"], 200 * 4096);
    assert_eq!(server.left("new/dir"), Vec::<String>::new());
    let names = fs::read_dir(server.export.join("new/dir")).unwrap().count();
    assert_eq!(names, 2, "the files of the dataset stay for the next run, as in dir:PATH");
}

#[test]
fn ctrl_c_removes_the_files_of_a_run_on_an_nfs_server() {
    let bench = Bench::new();
    let Some(server) = Ganesha::start(&bench) else { return };
    let words = ["run", "--op", "stat", "--files", "500", "-t", "nfs://127.0.0.1/vfs", "-o", "out"];
    let mut command = server.network.inside(&bench.command(&words));
    let child = command.stderr(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
    let exist = || !server.left(".").is_empty();
    eventually("the files exist", Duration::from_mins(1), exist);
    // The run measures for 10 s, so the signal arrives while the files exist.
    std::thread::sleep(Duration::from_millis(500));
    signal(&child, Signal::INT);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1), "not complete: {}", text(&ended));
    assert_eq!(server.left("."), Vec::<String>::new());
}

#[test]
fn refused_mount_names_the_reason() {
    let bench = Bench::new();
    let Some(server) = Ganesha::start(&bench) else { return };
    let words = ["run", "-p", "tiny.toml", "-t", "nfs://127.0.0.1/other", "-o", "out"];
    let output = server.network.inside(&bench.command(&words)).output().unwrap();
    let shown = text(&output);
    assert!(!output.status.success(), "{shown}");
    assert!(shown.contains("cannot mount \"/other\": MNT3ERR_"), "{shown}");
}
