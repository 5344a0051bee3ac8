//! Weir as an NFS server: one pool on sparse files, with a share for each filesystem.
//!
//! `ganesha` has the peer.
//!
//! Invariant: the server ends with this process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;
use weir_command::command;
use weir_command::process::{Process, guarded};

use crate::place::wait;

/// Port of NFS, free in the network namespace. Ganesha has the port 2049.
const PORT: u16 = 12_049;
/// Name of the pool.
const POOL: &str = "bench";

/// A running Weir server with a pool.
pub(crate) struct Weir {
    process: Process,
    program: PathBuf,
    api: String,
}

impl Weir {
    /// Starts a server with `memory_bytes` of memory and its files in `dir`. Creates a pool on
    /// sparse files: `layout` has the words of `pool create`, with a `#` for each disk.
    pub(crate) fn start(
        program: &Path,
        dir: &Path,
        memory_bytes: u64,
        (layout, disk_bytes): (&str, u64),
    ) -> Result<Self> {
        fs::create_dir_all(dir)?;
        let socket = |name: &str| format!("unix:{}", dir.join(name).display());
        let api = socket("api.sock");
        let mut command = guarded(&program.display().to_string());
        command.arg("serve").arg("--state").arg(dir.join("state"));
        command.args(["--api", &api, "--nbd", &socket("nbd.sock"), "--log", "warn"]);
        command.args(["--nfs", &format!("127.0.0.1:{PORT}")]);
        command.args(["--memory", &memory_bytes.to_string()]);
        let process = Process::launch(command, &dir.join("log"))?;
        let server = Self { process, program: program.to_owned(), api };
        wait("weir", || server.weir(&["pool", "list"]).map(drop))?;
        let mut words = vec!["pool".to_owned(), "create".to_owned(), POOL.to_owned()];
        for (word, number) in layout.split(' ').zip(0..) {
            if word != "#" {
                words.push(word.to_owned());
                continue;
            }
            let disk = dir.join(format!("disk-{number:02}.img"));
            File::create(&disk)?.set_len(disk_bytes)?;
            words.push(disk.display().to_string());
        }
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        server.weir(&words)?;
        Ok(server)
    }

    /// Creates a filesystem with these options, and shares it as `/NAME` with all clients.
    pub(crate) fn share(&self, name: &str, options: &[&str], is_async: bool) -> Result<()> {
        let filesystem = format!("{POOL}/{name}");
        self.weir(&[&["filesystem", "create", &filesystem], options].concat())?;
        let rule = "*:no_root_squash,insecure";
        let words = ["share", "create", "nfs", &filesystem, "--name", name, "--allow", rule];
        let further: &[&str] = if is_async { &["--async"] } else { &[] };
        self.weir(&[&words[..], further].concat()).map(drop)
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    /// Runs a command of `weir` on the server.
    fn weir(&self, words: &[&str]) -> Result<String> {
        command::output(Command::new(&self.program).env("WEIR_API", &self.api).args(words))
    }
}

/// Address of a path on the server, for `weir bench`.
pub(crate) fn address(path: &str, keys: &str) -> String {
    format!("nfs://127.0.0.1:{PORT}{path}?vers=3{keys}")
}
