//! `weir serve --demo` as a user sees it: start it, paste the three commands, Ctrl-C, start it
//! again.
//!
//! Not here: the objects that the demo creates.
//!
//! Invariant: the test runs the commands exactly as the demo prints them.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::ports::free_address;
use crate::common::{Dirs, WEIR, eventually, tool};
use crate::mounts::no_fuse;
use rustix::process::{Pid, Signal, kill_process};

struct Demo {
    child: Child,
    log: std::path::PathBuf,
}

impl Demo {
    fn start(dirs: &Dirs, name: &str, nbd: &str) -> Self {
        let log = dirs.file(name);
        let api = format!("unix:{}", dirs.short("api").display());
        let mut command = Command::new(WEIR);
        command.args(["serve", "--demo", "--nbd", nbd, "--nbd-allow", "127.0.0.1"]);
        command.args(["--api", &api]);
        command.current_dir(dirs.file("home")).env_remove("WEIR_API");
        Self { child: crate::common::spawn(command, &log), log }.ready()
    }

    fn ready(mut self) -> Self {
        eventually("the demo tells what to try", Duration::from_secs(30), || {
            assert!(self.child.try_wait().unwrap().is_none(), "it ended:\n{}", self.talk());
            self.talk().contains("Stop: Ctrl-C") && self.talk().contains("ready")
        });
        self
    }

    fn talk(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Returns the commands that the demo prints under "Try in another terminal".
    fn commands(&self) -> Vec<String> {
        let talk = self.talk();
        let (_, after) = talk.split_once("Try in another terminal:\n").unwrap();
        let lines = after.lines().take_while(|line| line.starts_with("  "));
        lines.map(|line| line.trim().to_owned()).collect()
    }

    fn interrupt(mut self) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, Signal::INT).unwrap();
        let mut status = None;
        eventually("Ctrl-C ends the demo", Duration::from_secs(5), || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(0), "{}", self.talk());
        assert!(!self.talk().contains("panicked"), "{}", self.talk());
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Runs a command line in a shell, as a user who pastes it.
fn paste(line: &str) -> String {
    let folder = std::path::Path::new(WEIR).parent().unwrap().display();
    let path = format!("{folder}:{}", std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", line]).env("PATH", path).env_remove("WEIR_API").stdin(Stdio::null());
    let output = command.output().unwrap();
    let text = crate::common::text(&output);
    assert!(output.status.success(), "{line}\n{text}");
    text
}

#[test]
fn printed_demo_commands_succeed() {
    let dirs = Dirs::new();
    fs::create_dir(dirs.file("home")).unwrap();
    let port = free_address();

    let demo = Demo::start(&dirs, "first.log", &port);
    let talk = demo.talk();
    for part in ["Made pool demo", "home/weir-demo/disk1.img", "disk2.img", "demo/vol1, 1GiB"] {
        assert!(talk.contains(part), "{part:?} is missing:\n{talk}");
    }
    let commands = demo.commands();
    let is_mounted = talk.contains("filesystem demo/home, mounted at");
    assert_eq!(is_mounted, no_fuse().is_none(), "{talk}");
    assert_eq!(commands.len(), 3 + usize::from(is_mounted), "{commands:?}");
    for (line, tool) in commands.iter().zip(["nbdinfo", "nbdcopy", "fio", "cp"]) {
        assert!(line.starts_with(tool), "{line}");
        let text = paste(line);
        eprintln!("$ {line}\n{}", text.lines().last().unwrap_or_default());
        if tool == "nbdinfo" {
            assert!(text.contains("export-size: 1073741824"), "{text}");
        }
        if tool == "fio" {
            assert!(text.contains("err= 0"), "{text}");
        }
    }
    drop(fs::remove_file("/tmp/vol1.img"));
    let state = talk.lines().find_map(|line| line.strip_prefix("State: ")).unwrap();
    let state = state.split("   ").next().unwrap();
    assert!(paste(state).contains("state: ONLINE"), "{state}");
    let uri = format!("nbd://{port}/demo/vol1");
    assert!(talk.contains(&uri), "{talk}");
    tool("qemu-io", &["-f", "raw", "-c", "write -P 0x3c 512M 1M", &uri]);
    demo.interrupt();

    let demo = Demo::start(&dirs, "second.log", &port);
    let talk = demo.talk();
    assert!(talk.contains("Found again: pool demo"), "{talk}");
    let read = tool("qemu-io", &["-f", "raw", "-c", "read -P 0x3c 512M 1M", &uri]);
    assert!(!read.contains("failed"), "{read}");
    if is_mounted {
        assert!(dirs.file("home/weir-demo/home/apt/sources.list.d").is_dir(), "{talk}");
    }
    demo.interrupt();
}

/// Runs `make run` with a fake cargo that only puts a program into the target folder.
#[test]
fn make_run_states_its_duration_first_and_then_serves() {
    use std::os::unix::fs::PermissionsExt as _;
    const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../run.sh");
    let dir = tempfile::tempdir().unwrap();
    let program = |path: &str, text: &str| {
        let path = dir.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    let weir = "mkdir -p target/quick; printf '#!/bin/sh\\necho weir \"$@\"' > target/quick/weir";
    program("bin/cargo", &format!("echo cargo \"$@\"; {weir}; chmod +x target/quick/weir"));
    for tool in ["nbdinfo", "qemu-img", "fio"] {
        program(&format!("bin/{tool}"), "");
    }
    let path = format!("{}/bin:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let run = || {
        let mut script = Command::new(SCRIPT);
        script.current_dir(dir.path()).env("PATH", &path).env_remove("CARGO_TARGET_DIR");
        let ran = crate::common::Ran::of("run.sh", &script.output().unwrap()).ok();
        ran.out.lines().map(str::to_owned).collect::<Vec<_>>()
    };
    let first = run();
    assert!(first[0].starts_with("Weir: this compiles the program and its libraries, about "));
    assert_eq!(first[1..], ["cargo build --profile quick --package weir", "weir serve --demo"]);
    assert!(run()[0].starts_with("Weir: this builds what changed, then it serves a demo pool"));
}
