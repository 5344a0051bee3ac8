//! The server under test: started with a memory limit, with a pool, an export and a target.
//!
//! Not here: the load on it.
//!
//! Invariants: everything lies in the folder of the run; the server ends with this process.

use std::fs::{self, File, Permissions};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};

use crate::bench_peers::process::{Process, guarded};
use crate::command;

/// Each leg of the mirror; sparse.
const LEG_BYTES: u64 = 8 << 30;
const LEGS: [&str; 2] = ["a.img", "b.img"];
/// The volume: the verified load takes its first half.
pub(super) const VOLUME_BYTES: u64 = 2 << 30;
/// A server that takes longer to answer its first call is broken.
const START_MAX: Duration = Duration::from_secs(20);
/// Initiator of the hostile discoveries.
const INITIATOR: &str = "iqn.2026-01.org.example:soak";

/// The addresses that clients know.
#[derive(Clone)]
pub(super) struct Doors {
    pub(super) nbd: String,
    pub(super) iscsi: String,
    /// The management interface.
    pub(super) api: String,
    /// Where other servers replicate to.
    pub(super) peers: String,
    pub(super) export: String,
    pub(super) initiator: String,
    /// Start of the volume's half that is not verified.
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
    /// Starts it on an empty folder.
    pub(super) fn start(program: &Path, data: &Path, memory_bytes: u64) -> Result<Self> {
        let (nbd, iscsi) = (free_address()?, free_address()?);
        let (api_tcp, peers) = (free_address()?, free_address()?);
        let (certificate, key) = certificate(data)?;
        let secret = data.join("secret");
        fs::write(&secret, "known-to-the-soak-alone")?;
        fs::set_permissions(&secret, Permissions::from_mode(0o600))?;
        let api = format!("unix:{}", data.join("api.sock").display());
        let mut command = guarded(&program.display().to_string());
        command.arg("serve").arg("--state").arg(data.join("state"));
        command.args(["--api", &api, "--api", &api_tcp, "--iscsi", &iscsi]);
        command.args(["--nbd", &nbd, "--nbd-allow", "127.0.0.1", "--peer-listen", &peers]);
        command.arg("--tls-cert").arg(certificate).arg("--tls-key").arg(key);
        command.arg("--peer-secret-file").arg(secret);
        command.args(["--memory", &memory_bytes.to_string(), "--log", "warn"]);
        let process = Process::launch(command, &data.join("weir.log"))?;
        let doors = Doors {
            nbd,
            iscsi,
            api: api_tcp,
            peers,
            export: "soak/v".to_owned(),
            initiator: INITIATOR.to_owned(),
            unused_offset: VOLUME_BYTES / 2,
        };
        let server = Self { process, doors, program: program.to_owned(), api };
        server.set_up(data)?;
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
        self.weir(&["target", "create", "soak", "--allow", INITIATOR]).map(drop)
    }

    /// Kills the server and verifies everything on its disks.
    ///
    /// # Errors
    /// `weir check` found something.
    pub(super) fn kill_and_check(self, data: &Path) -> Result<()> {
        drop(self.process);
        let mut check = Command::new(&self.program);
        check.args(["check", "soak", "-d"]).arg(data);
        command::output(&mut check).map(drop).context("after the soak")
    }

    /// A call of the command line.
    pub(super) fn weir(&self, words: &[&str]) -> Result<String> {
        command::output(Command::new(&self.program).env("WEIR_API", &self.api).args(words))
    }
}

/// An address of loopback that is free now.
fn free_address() -> Result<String> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string())
}

/// Makes a certificate that vouches for itself; the files of it and of its key.
fn certificate(data: &Path) -> Result<(PathBuf, PathBuf)> {
    let (certificate, key) = (data.join("soak.pem"), data.join("soak.key"));
    let mut openssl = Command::new("openssl");
    openssl.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
    openssl.args(["-nodes", "-days", "30", "-subj", "/CN=soak"]);
    openssl.arg("-keyout").arg(&key).arg("-out").arg(&certificate);
    command::output(&mut openssl)?;
    Ok((certificate, key))
}
