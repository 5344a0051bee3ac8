//! Client with a Linux kernel of its own: User-Mode Linux, an ordinary process, in a [`Network`].
//!
//! Not here: the steps that the tests run in the guest.
//!
//! The root file system of the guest is a copy-on-write view of this machine's root, so the guest
//! has all tools of this machine and changes nothing. A step is a script that runs in the guest
//! between actions of the test. Guest and test share a folder of this machine.
//!
//! Invariants:
//! - every wait has a time limit: each step has one in the guest, and a longer one in the test;
//! - the guest's processes end when [`Guest`] is dropped, and also if the test program is killed;
//! - for a failed step the test prints its script, its output and the guest's kernel messages.

use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use super::network::{Network, SUBNETS, TAP};

/// Paths of the kernel and its modules in Debian's package user-mode-linux.
const KERNEL: &str = "/usr/bin/linux.uml";
const MODULES: &str = "/usr/lib/uml/modules";
/// Memory of the guest, including the files that the guest has changed.
const MEMORY_MIB: u64 = 384;
/// Time limit of a boot. A boot takes five seconds, or longer while this machine is busy.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
/// Time limit of a step; a step that takes longer counts as hung.
pub(crate) const STEP_LIMIT: Duration = Duration::from_mins(1);
/// Additional time for the guest to end a step that exceeded its time limit, and to report it.
const GRACE: Duration = Duration::from_secs(20);

/// The init program of the guest: it changes to the guest's root file system, then runs steps.
const INIT: &str = include_str!("uml_init.sh");

/// Result of a step.
pub(crate) struct Done {
    pub(crate) status: i32,
    pub(crate) out: String,
}

pub(crate) struct Guest {
    child: Child,
    shared: tempfile::TempDir,
    /// Number of steps that were started so far.
    steps: u32,
}

impl Guest {
    /// Boots the guest and waits until it accepts steps.
    pub(crate) fn boot(network: &Network) -> Self {
        for path in [KERNEL, MODULES] {
            let there = Path::new(path).exists();
            assert!(there, "{path} is missing; `cargo xtask setup` installs user-mode-linux");
        }
        let shared = tempfile::Builder::new().prefix("weir-uml-").tempdir().unwrap();
        let at = |name: &str| shared.path().join(name).display().to_string();
        let addresses = SUBNETS.map(|subnet| subnet.there).join(" ");
        let set = format!("shared={} modules={MODULES} addresses='{addresses}'", at(""));
        write_program(&shared.path().join("init"), &format!("#!/bin/bash\n{set}\n{INIT}"));
        // The kernel runs each process of the guest as a process of this machine. All of them are
        // in a PID namespace and end with its first process. That process is a shell. The guest's
        // kernel cannot be the first process, because it ends itself by signals, which the first
        // process of a namespace does not receive.
        let mut command = network.command("unshare");
        command.args(["--pid", "--fork", "--kill-child"]);
        command.args(["sh", "-c", "\"$@\"; exit $?", "sh", KERNEL, "rootfstype=hostfs"]);
        command.args(["rootflags=/", "ro", "quiet", "con=null", "con0=null,fd:1", "umid=guest"]);
        command.arg(format!("mem={MEMORY_MIB}M")).arg(format!("uml_dir={}", at("")));
        command.arg(format!("vec0:transport=tap,ifname={TAP},depth=128,gro=1"));
        command.arg(format!("init={}", at("init"))).env("TMPDIR", memory_folder());
        if let Some(library) = preload() {
            command.env("LD_PRELOAD", library);
        }
        let console = File::create(shared.path().join("console")).unwrap();
        command.stdin(Stdio::null()).stderr(console.try_clone().unwrap()).stdout(console);
        let child = command.spawn().expect("nsenter of util-linux");
        let mut guest = Self { child, shared, steps: 0 };
        guest.wait_for("booted", BOOT_LIMIT, "it boots");
        guest
    }

    fn path(&self, name: &str) -> PathBuf {
        self.shared.path().join(name)
    }

    /// Runs a bash script in the guest that must succeed; returns its output.
    #[track_caller]
    pub(crate) fn run(&mut self, script: &str) -> String {
        self.run_within(STEP_LIMIT, script)
    }

    #[track_caller]
    pub(crate) fn run_within(&mut self, limit: Duration, script: &str) -> String {
        let done = self.step(limit, script);
        assert!(done.status == 0, "the guest's step ended with {}:\n{}", done.status, done.out);
        done.out
    }

    /// Runs a script that must end with this status within [`STEP_LIMIT`]; returns its output.
    #[track_caller]
    pub(crate) fn fails(&mut self, status: i32, script: &str) -> String {
        let done = self.step(STEP_LIMIT, script);
        assert!(done.status == status, "{} instead of {status}:\n{}", done.status, done.out);
        done.out
    }

    /// Starts a script in the background of the guest; [`Self::join`] waits for its end.
    #[track_caller]
    pub(crate) fn start(&mut self, name: &str, script: &str) {
        fs::write(self.path(name), script).unwrap();
        self.run(&format!("start {name}"));
    }

    #[track_caller]
    pub(crate) fn join(&mut self, name: &str, limit: Duration) -> String {
        self.run_within(limit, &format!("join {name}"))
    }

    /// Runs a script to its end and returns its status, whatever it is.
    pub(crate) fn step(&mut self, limit: Duration, script: &str) -> Done {
        self.steps += 1;
        let number = self.steps;
        let [step, status, out] =
            ["step", "status", "out"].map(|what| self.path(&format!("{what}-{number}")));
        let started = Instant::now();
        fs::write(step.with_extension("new"), script).unwrap();
        fs::write(self.path(&format!("limit-{number}")), limit.as_secs().to_string()).unwrap();
        fs::rename(step.with_extension("new"), &step).unwrap();
        self.wait_for(&format!("status-{number}"), limit + GRACE, script);
        let status = fs::read_to_string(status).unwrap().trim().parse().unwrap();
        let out = String::from_utf8_lossy(&fs::read(out).unwrap()).into_owned();
        let first = script.trim().lines().next().unwrap_or_default();
        eprintln!("guest, step {number}, {:.1?}, {status}: {first}\n{out}", started.elapsed());
        Done { status, out }
    }

    /// Waits until a file exists in the shared folder.
    fn wait_for(&mut self, name: &str, limit: Duration, what: &str) {
        let (path, start) = (self.path(name), Instant::now());
        while !path.exists() {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the guest ended with {status} before this: {what}");
            }
            assert!(start.elapsed() < limit, "the guest does not end this in {limit:?}: {what}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Shuts down the guest, and asserts that its kernel logged no error.
    #[track_caller]
    pub(crate) fn halt(mut self) {
        let complaints = "dmesg | grep -E 'BUG|WARNING|Call Trace|Oops|blocked for more' || true";
        assert_eq!(self.run(complaints), "", "the guest's kernel complains");
        fs::write(self.path("halt"), "").unwrap();
        let start = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(start.elapsed() < GRACE, "the guest does not halt");
            std::thread::sleep(Duration::from_millis(20));
        };
        assert_eq!((status.code(), status.signal()), (Some(0), None), "the guest's end");
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let console = fs::read(self.path("console")).unwrap_or_default();
            eprintln!("console of the guest:\n{}", String::from_utf8_lossy(&console));
        }
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Returns the path of a library that User-Mode Linux needs on CPUs with AMX
/// (`xtask/uml/xstate.c`); `None` on other CPUs.
fn preload() -> Option<PathBuf> {
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap();
    if !cpu.split_ascii_whitespace().any(|flag| flag == "amx_tile") {
        return None;
    }
    let target = Path::new(env!("CARGO_BIN_EXE_weir")).ancestors().nth(2).unwrap();
    let library = target.join("uml-xstate.so");
    assert!(library.exists(), "{} is missing; `cargo xtask setup` builds it", library.display());
    Some(library)
}

fn write_program(path: &Path, text: &str) {
    use std::os::unix::fs::PermissionsExt as _;
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// Returns the directory for the memory file of the guest: in RAM if there is enough space, else on
/// disk.
fn memory_folder() -> PathBuf {
    let shm = Path::new("/dev/shm");
    let room = rustix::fs::statvfs(shm).map_or(0, |stat| stat.f_bavail * stat.f_frsize);
    if room > 2 * (MEMORY_MIB << 20) { shm.to_owned() } else { std::env::temp_dir() }
}
