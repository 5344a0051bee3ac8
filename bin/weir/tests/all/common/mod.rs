//! Code that all end-to-end tests share: a server to start and kill, the command line, and external
//! tools.
//!
//! Not here: tests, and the NBD client ([`nbd`]).
//!
//! Invariants:
//! - every server has its own directory and sockets, and its guard ends only its own process;
//! - if a tool is missing, the test fails with an error that names the tool.

pub(crate) mod iscsi;
pub(crate) mod liar;
pub(crate) mod load;
pub(crate) mod mapped;
pub(crate) mod nbd;
pub(crate) mod network;
pub(crate) mod ports;
pub(crate) mod rng;
pub(crate) mod room;
pub(crate) mod stuck;
pub(crate) mod uml;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub(crate) const KIB: u64 = 1 << 10;
pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const GIB: u64 = 1 << 30;

/// Exit codes by error kind, as in docs/errors.md.
pub(crate) mod code {
    pub(crate) const INVALID: i32 = 3;
    pub(crate) const NOT_FOUND: i32 = 4;
    pub(crate) const EXISTS: i32 = 5;
    pub(crate) const BUSY: i32 = 6;
    pub(crate) const NO_SPACE: i32 = 7;
    pub(crate) const READ_ONLY: i32 = 8;
    pub(crate) const UNAVAILABLE: i32 = 9;
    pub(crate) const PERMISSION: i32 = 12;
}

/// The program under test.
pub(crate) const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Time limit for the first response of a server.
const READY_LIMIT: Duration = Duration::from_secs(30);

/// The directories of one test: one for disks on a real file system, and one with a short path for
/// sockets.
pub(crate) struct Dirs {
    disks: tempfile::TempDir,
    sockets: tempfile::TempDir,
    starts: AtomicU32,
}

impl Dirs {
    pub(crate) fn new() -> Self {
        Self {
            disks: tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap(),
            sockets: tempfile::Builder::new().prefix("weir-").tempdir().unwrap(),
            starts: AtomicU32::new(0),
        }
    }

    /// Returns the path of a file in the directory of the disks.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.disks.path().join(name)
    }

    /// Creates a sparse file of this size in the directory of the disks.
    pub(crate) fn disk(&self, name: &str, bytes: u64) -> PathBuf {
        let path = self.file(name);
        File::create(&path).unwrap().set_len(bytes).unwrap();
        path
    }

    /// Returns the path of a socket or a state directory in the directory with the short path.
    pub(crate) fn short(&self, name: &str) -> PathBuf {
        self.sockets.path().join(name)
    }

    /// Returns the command of a server with this test's state and sockets.
    pub(crate) fn serve(&self) -> Command {
        self.serve_as("")
    }

    /// Returns the command of another server of this test. Its state and its sockets have names
    /// with this suffix.
    pub(crate) fn serve_as(&self, suffix: &str) -> Command {
        let unix = |name: &str| format!("unix:{}{suffix}", self.short(name).display());
        let mut command = Command::new(WEIR);
        command.args(["serve", "--memory", "256MiB", "--state"]);
        command.arg(self.short(&format!("state{suffix}")));
        command.args(["--api", &unix("api"), "--nbd", &unix("nbd")]);
        command.env_remove("WEIR_API").current_dir(self.disks.path());
        command
    }

    /// Starts a server and waits until it responds.
    pub(crate) fn start(&self) -> Server {
        Server::start(self, "", self.serve())
    }
}

/// Starts a command whose standard error goes to the file `log`.
pub(crate) fn spawn(mut command: Command, log: &Path) -> Child {
    let talk = File::create(log).unwrap();
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(talk).spawn().unwrap()
}

/// A running server; dropping the `Server` kills the process.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    api: PathBuf,
    nbd: PathBuf,
    dir: PathBuf,
    /// Time from the start of the process to its first response.
    pub(crate) ready_after: Duration,
}

impl Server {
    /// Starts `command` and waits for the first response of the server. The command must use the
    /// sockets with this suffix.
    pub(crate) fn start(dirs: &Dirs, suffix: &str, command: Command) -> Self {
        let mut server = Self::launch(dirs, suffix, command);
        server.wait_ready();
        server
    }

    /// Starts `command` like [`Self::start`], without waiting for a response.
    pub(crate) fn launch(dirs: &Dirs, suffix: &str, command: Command) -> Self {
        let number = dirs.starts.fetch_add(1, Ordering::Relaxed);
        let log = dirs.file(&format!("serve{suffix}-{number}.log"));
        Self {
            child: spawn(command, &log),
            log,
            api: dirs.short(&format!("api{suffix}")),
            nbd: dirs.short(&format!("nbd{suffix}")),
            dir: dirs.disks.path().to_owned(),
            ready_after: Duration::ZERO,
        }
    }

    /// Calls the server until it responds. The server binds its socket before it imports pools but
    /// responds only afterwards, so its first response marks the end of the start.
    fn wait_ready(&mut self) {
        let start = Instant::now();
        while !answers(&self.api) {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the server ended with {status}:\n{}", self.talk());
            }
            assert!(start.elapsed() < READY_LIMIT, "the server does not answer:\n{}", self.talk());
            std::thread::sleep(Duration::from_millis(2));
        }
        self.ready_after = start.elapsed();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the resident memory of the process.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * KIB
    }

    /// Returns the peak resident memory of the process.
    pub(crate) fn high_water_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * KIB
    }

    pub(crate) fn nbd(&self) -> &Path {
        &self.nbd
    }

    /// Returns everything that the server has printed to standard error so far.
    pub(crate) fn talk(&self) -> String {
        let talk = fs::read(&self.log).unwrap_or_else(|error| error.to_string().into_bytes());
        String::from_utf8_lossy(&talk).into_owned()
    }

    /// As [`Self::weir`], for a command that must end within `bound`.
    pub(crate) fn weir_within(&self, line: &str, bound: Duration) -> Ran {
        let start = Instant::now();
        let ran = self.weir(line);
        let took = start.elapsed();
        eprintln!("{took:>8.1?} exit {:?} weir {line}: {}", ran.code, ran.talk.trim_end());
        assert!(took < bound, "weir {line} took {took:?}");
        assert!(ran.code.is_some(), "weir {line} was killed");
        ran
    }

    /// Runs `weir` with the words of `line` as arguments. Relative paths refer to the directory of
    /// the disks.
    pub(crate) fn weir(&self, line: &str) -> Ran {
        let words: Vec<&str> = line.split_whitespace().collect();
        self.weir_words(&words)
    }

    pub(crate) fn weir_words(&self, words: &[&str]) -> Ran {
        self.weir_with(words, &[])
    }

    /// Runs `weir` with these words as arguments and with these environment variables.
    pub(crate) fn weir_with(&self, words: &[&str], variables: &[(&str, &str)]) -> Ran {
        let mut command = self.command(words);
        command.envs(variables.iter().copied());
        Ran::of(&words.join(" "), &command.output().unwrap())
    }

    /// Runs `weir bench` with the address of this server, so that the command asks it about its
    /// disks.
    pub(crate) fn bench(&self, words: &[&str]) -> Ran {
        self.weir_words(&[&["bench"], words].concat())
    }

    /// Returns a `weir` command that calls this server and is not started yet.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(WEIR);
        command.args(words);
        self.with_address(command)
    }

    /// Returns a shell command with the address of this server, in the directory of the disks.
    pub(crate) fn shell(&self, script: &str) -> Command {
        let mut command = Command::new("bash");
        command.args(["-c", script]);
        self.with_address(command)
    }

    fn with_address(&self, mut command: Command) -> Command {
        command.current_dir(&self.dir).stdin(Stdio::null());
        command.env_remove("WEIR_TOKEN").env_remove("WEIR_TOKEN_FILE").env_remove("WEIR_CA");
        command.env("WEIR_API", format!("unix:{}", self.api.display()));
        command
    }

    /// Returns the status of a pool as JSON.
    pub(crate) fn status(&self, pool: &str) -> Value {
        self.weir(&format!("pool status {pool} --json")).json()
    }

    /// Creates a volume and exports it under its own name.
    pub(crate) fn volume(&self, name: &str, size: &str) {
        self.weir(&format!("volume create {name} --size {size}")).ok();
        self.weir(&format!("export create nbd {name}")).ok();
    }

    /// Returns the URI of an export for standard NBD clients.
    pub(crate) fn uri(&self, export: &str) -> String {
        format!("nbd+unix:///{export}?socket={}", self.nbd.display())
    }

    pub(crate) fn client(&self, export: &str) -> nbd::Client {
        nbd::Client::connect(&self.nbd, export).unwrap()
    }

    /// Kills the process with SIGKILL, so that the server writes nothing more.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().cast_signed()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Sends a signal and waits until the process ends. Returns its exit status and the time that
    /// the process took to end.
    pub(crate) fn stop(mut self, signal: Signal) -> (ExitStatus, Duration) {
        let start = Instant::now();
        self.signal(signal);
        let status = self.wait_end(Duration::from_secs(20));
        (status, start.elapsed())
    }

    /// Waits until the process ends without a signal from the test.
    pub(crate) fn wait_end(&mut self, limit: Duration) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(start.elapsed() < limit, "the server does not end:\n{}", self.talk());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Stops the server with SIGTERM, and asserts that its exit was clean.
    pub(crate) fn stop_clean(self) {
        let log = self.log.clone();
        let (status, _) = self.stop(Signal::TERM);
        let talk = fs::read_to_string(log).unwrap_or_default();
        assert!(status.success(), "ended with {status}:\n{talk}");
    }

    /// Asserts that the process still runs and responds, and that it did not panic.
    #[track_caller]
    pub(crate) fn assert_alive(&mut self) {
        let ended = self.child.try_wait().unwrap();
        assert!(ended.is_none(), "the server ended with {ended:?}:\n{}", self.talk());
        self.weir("server show").ok();
        self.assert_no_panic();
    }

    #[track_caller]
    fn assert_no_panic(&self) {
        let talk = self.talk();
        assert!(!talk.contains("panicked"), "the server panicked:\n{talk}");
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // These two calls do nothing if the process has already ended.
        drop(self.child.kill());
        drop(self.child.wait());
        if std::thread::panicking() {
            eprintln!("talk of the server:\n{}", self.talk());
        } else {
            self.assert_no_panic();
        }
    }
}

/// Returns true if a server responds to a management call on this socket.
fn answers(socket: &Path) -> bool {
    let Ok(mut stream) = UnixStream::connect(socket) else { return false };
    stream.set_read_timeout(Some(READY_LIMIT)).unwrap();
    let asked = stream
        .write_all(b"GET /v1/server HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
    let mut answer = Vec::new();
    asked.is_ok() && stream.read_to_end(&mut answer).is_ok() && answer.starts_with(b"HTTP/1.1 200")
}

/// Result of one run of the command line.
#[derive(Debug)]
pub(crate) struct Ran {
    line: String,
    pub(crate) code: Option<i32>,
    pub(crate) out: String,
    pub(crate) talk: String,
}

impl Ran {
    pub(crate) fn of(line: &str, output: &Output) -> Self {
        Self {
            line: line.to_owned(),
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            talk: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "weir {}: {}{}", self.line, self.talk, self.out);
        self
    }

    /// Asserts that the run failed with this exit code and that its error contains all these texts.
    #[track_caller]
    pub(crate) fn fails(self, code: i32, parts: &[&str]) {
        assert_eq!(self.code, Some(code), "weir {}: {}", self.line, self.talk);
        for part in parts {
            assert!(self.talk.contains(part), "weir {} lacks {part:?}: {}", self.line, self.talk);
        }
        assert!(!self.talk.contains("panicked"), "{}", self.talk);
    }

    #[track_caller]
    pub(crate) fn json(self) -> Value {
        let ran = self.ok();
        let value: Value = serde_json::from_str(&ran.out).expect(&ran.line);
        assert_eq!(value["schema_version"], 1, "weir {}", ran.line);
        value
    }
}

/// Returns true if the tests run as root. Other users must use a user namespace, in which they have
/// the permissions of root.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the search path for tools: PATH, and the directories of root's PATH, in which Debian
/// installs some of the tools.
pub(crate) fn path() -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{path}:/usr/sbin:/sbin")
}

/// Runs a tool to its end.
pub(crate) fn run(program: &str, arguments: &[&str]) -> Output {
    let mut command = Command::new(program);
    command.env("PATH", path());
    command.args(arguments).stdin(Stdio::null()).output().unwrap_or_else(|error| {
        panic!("{program} cannot be run ({error}); `cargo xtask setup` installs it")
    })
}

/// Returns the standard output and the standard error of a tool as one text.
pub(crate) fn text(output: &Output) -> String {
    let parts = [&output.stdout, &output.stderr].map(|part| String::from_utf8_lossy(part));
    parts.concat()
}

/// Runs a tool that must succeed, and returns its output.
#[track_caller]
pub(crate) fn tool(program: &str, arguments: &[&str]) -> String {
    let output = run(program, arguments);
    let text = text(&output);
    assert!(output.status.success(), "{program} {arguments:?} failed:\n{text}");
    text
}

/// Runs fio's NBD client and asserts that it reports no error.
#[track_caller]
pub(crate) fn fio(uri: &str, arguments: &[&str]) -> String {
    let output = fio_output(uri, arguments);
    let text = text(&output);
    assert!(output.status.success() && text.contains("err= 0"), "fio {arguments:?}:\n{text}");
    text
}

pub(crate) fn fio_output(uri: &str, arguments: &[&str]) -> Output {
    let uri = format!("--uri={uri}");
    let mut all = vec!["--name=job", "--ioengine=nbd", "--thread=1", &uri];
    all.extend(["--verify_state_save=0", "--randseed=7"]);
    all.extend(arguments);
    run("fio", &all)
}

/// Waits until the function `holds` returns true, for at most `limit`.
#[track_caller]
pub(crate) fn eventually(what: &str, limit: Duration, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < limit, "not within {limit:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns true if a process accepts connections on a unix socket. The file alone shows nothing: it
/// exists before a process listens, and remains after the process was killed.
pub(crate) fn accepts(socket: &Path) -> bool {
    UnixStream::connect(socket).is_ok()
}

/// Writes a secret to a file that other users cannot read, as Weir requires.
pub(crate) fn write_secret(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).unwrap();
}

/// Creates a self-signed certificate for localhost, `NAME.pem`, and its key, `NAME.key`.
pub(crate) fn certificate(dirs: &Dirs, name: &str) {
    let path = |end: &str| dirs.file(&format!("{name}.{end}")).display().to_string();
    let (key, pem) = (path("key"), path("pem"));
    let made = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"];
    let of = ["-nodes", "-days", "30", "-subj", "/CN=weir"];
    let names = ["-addext", "subjectAltName=DNS:localhost"];
    let end = ["-addext", "basicConstraints=critical,CA:FALSE", "-keyout", &key, "-out", &pem];
    tool("openssl", &[&made[..], &of, &names, &end].concat());
}

/// Finds the bytes `wanted` on a disk and overwrites them.
pub(crate) fn spoil(disk: &Path, wanted: &[u8]) {
    let file = fs::OpenOptions::new().read(true).write(true).open(disk).unwrap();
    let mut window = vec![0; MIB as usize + wanted.len()];
    let size = file.metadata().unwrap().len();
    for start in (0..size - window.len() as u64).step_by(MIB as usize) {
        file.read_exact_at(&mut window, start).unwrap();
        let found = window.windows(wanted.len()).step_by(64).position(|bytes| bytes == wanted);
        if let Some(at) = found {
            file.write_all_at(&vec![0x5a; wanted.len()], start + 64 * at as u64).unwrap();
            file.sync_all().unwrap();
            return;
        }
    }
    panic!("not on the disk");
}
