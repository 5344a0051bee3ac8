//! The server under test: starts it with a memory limit, a pool, an export and a target.
//!
//! Not here: the load that the server gets (load.rs).
//!
//! Invariants: all files of the server are in the folder of the run; the server ends when the xtask
//! process ends.

use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use weir_command::command;
use weir_command::process::{Process, guarded};

/// Size of each leg of the mirror. The legs are sparse files.
const LEG_BYTES: u64 = 8 << 30;
const LEGS: [&str; 2] = ["a.img", "b.img"];
/// Size of the volume. The verified load uses its first half.
pub(super) const VOLUME_BYTES: u64 = 2 << 30;
/// Maximum time until the server answers its first call.
const START_MAX: Duration = Duration::from_secs(20);
/// Number of additional exports, and the length of their names. They make lists of exports long.
const EXPORTS: usize = 100;
const EXPORT_NAME_BYTES: usize = 380;
/// Initiator name of the hostile discovery sessions.
const INITIATOR: &str = "iqn.2026-01.org.example:soak";

/// Addresses of the server.
#[derive(Clone)]
pub(super) struct Doors {
    pub(super) nbd: String,
    pub(super) iscsi: String,
    /// Address of the management interface.
    pub(super) api: String,
    /// Address for replication from other servers.
    pub(super) peers: String,
    pub(super) export: String,
    pub(super) initiator: String,
    /// Target that requires CHAP.
    pub(super) guarded: String,
    /// Token that may only show the pool.
    pub(super) viewer: String,
    /// Token that may take and send snapshots of the volume.
    pub(super) operator: String,
    /// Path of a FIFO in a folder in which the server lets callers name files.
    pub(super) fifo: PathBuf,
    /// Offset of the second half of the volume, which fio does not verify.
    pub(super) unused_offset: u64,
}

/// A running server.
pub(super) struct Server {
    pub(super) process: Process,
    pub(super) doors: Doors,
    program: PathBuf,
    api: String,
}

impl Server {
    /// Starts the server on an empty folder.
    pub(super) fn start(program: &Path, data: &Path, memory_bytes: u64) -> Result<Self> {
        let (nbd, iscsi) = (free_address()?, free_address()?);
        let (api_tcp, peers) = (free_address()?, free_address()?);
        let (certificate, key) = certificate(data)?;
        let secret = data.join("secret");
        fs::write(&secret, "known-to-the-soak-alone")?;
        fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
        let named = data.join("named");
        fs::create_dir(&named)?;
        let fifo = named.join("fifo");
        command::output(Command::new("mkfifo").arg(&fifo))?;
        let api = format!("unix:{}", data.join("api.sock").display());
        let mut command = guarded(&program.display().to_string());
        command.arg("serve").arg("--state").arg(data.join("state"));
        command.args(["--api", &api, "--api", &api_tcp, "--iscsi", &iscsi]);
        command.args(["--nbd", &nbd, "--nbd-allow", "127.0.0.1", "--peer-listen", &peers]);
        command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
        command.arg("--peer-secret-file").arg(secret).arg("--disk-dir").arg(&named);
        command.args(["--memory", &memory_bytes.to_string(), "--log", "warn"]);
        let process = Process::launch(command, &data.join("weir.log"))?;
        let doors = Doors {
            nbd,
            iscsi,
            api: api_tcp,
            peers,
            export: "soak/v".to_owned(),
            initiator: INITIATOR.to_owned(),
            guarded: "iqn.2026-01.org.weir:guarded".to_owned(),
            viewer: String::new(),
            operator: String::new(),
            fifo,
            unused_offset: VOLUME_BYTES / 2,
        };
        let mut server = Self { process, doors, program: program.to_owned(), api };
        server.set_up(data)?;
        server.doors.viewer = server.token(data, "viewer", "soak")?;
        server.doors.operator = server.token(data, "operator", "soak/v")?;
        Ok(server)
    }

    fn set_up(&self, data: &Path) -> Result<()> {
        let start = Instant::now();
        while let Err(error) = self.weir(&["pool", "list"]) {
            ensure!(start.elapsed() < START_MAX, "the server does not answer: {error:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
        let legs = LEGS.map(|name| data.join(name));
        for leg in &legs {
            File::create(leg)?.set_len(LEG_BYTES)?;
        }
        let legs = legs.map(|leg| leg.display().to_string());
        self.weir(&["pool", "create", "soak", "mirror", &legs[0], &legs[1]])?;
        self.weir(&["volume", "create", "soak/v", "--size", &VOLUME_BYTES.to_string()])?;
        self.weir(&["export", "create", "nbd", "soak/v"])?;
        for number in 0..EXPORTS {
            let part = "x".repeat(EXPORT_NAME_BYTES / 2);
            let name = format!("e{number}/{part}@{part}");
            self.weir(&["export", "create", "nbd", "soak/v", "--read-only", "--name", &name])?;
        }
        self.weir(&["target", "create", "soak", "--allow", INITIATOR])?;
        self.weir(&["target", "create", "guarded"])?;
        let secret = data.join("secret").display().to_string();
        let chap = ["--chap-user", "soak", "--chap-secret-file", &secret];
        self.weir(&[&["target", "allow", "guarded", INITIATOR], &chap[..]].concat()).map(drop)
    }

    /// Creates a token with this role and returns its secret.
    fn token(&self, data: &Path, role: &str, scope: &str) -> Result<String> {
        let file = data.join(role).display().to_string();
        let words = ["token", "create", role, "--role", role, "--scope", scope, "--out", &file];
        self.weir(&words)?;
        Ok(fs::read_to_string(file)?.trim().to_owned())
    }

    /// Kills the server and verifies all data on its disks with `weir check`.
    ///
    /// # Errors
    /// `weir check` reports an error.
    pub(super) fn kill_and_check(self, data: &Path) -> Result<()> {
        drop(self.process);
        let mut check = Command::new(&self.program);
        check.args(["check", "soak", "-d"]).arg(data);
        command::output(&mut check).map(drop).context("after the soak")
    }

    /// Runs a `weir` command against the server.
    pub(super) fn weir(&self, words: &[&str]) -> Result<String> {
        command::output(Command::new(&self.program).env("WEIR_API", &self.api).args(words))
    }
}

/// Returns a loopback address with a free port.
fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Creates a self-signed certificate; returns the paths of the certificate and its key.
fn certificate(data: &Path) -> Result<(PathBuf, PathBuf)> {
    let (certificate, key) = (data.join("soak.pem"), data.join("soak.key"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    openssl.args(["-nodes", "-days", "30", "-subj", "/CN=soak"]);
    openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    command::output(&mut openssl)?;
    Ok((certificate, key))
}
