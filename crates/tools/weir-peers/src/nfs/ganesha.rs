//! The peer Ganesha: exports directories over NFSv3 with its FSAL VFS.
//!
//! Ganesha registers its services at rpcbind, so rpcbind runs too.
//!
//! Invariant: both servers run in the network namespace of the benchmark, with an empty /run, and
//! end with this process.

use std::fmt::Write as _;
use std::fs;
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use weir_command::command;
use weir_command::process::{Process, guarded};

use crate::place::wait;

/// Debian packages of the server.
pub(crate) const PACKAGES: [&str; 3] = ["nfs-ganesha", "nfs-ganesha-vfs", "rpcbind"];
/// Ports of NFS and MOUNT, free in the network namespace.
const PORT: u16 = 2049;
const MOUNT_PORT: u16 = 20_048;

/// A directory that Ganesha exports.
pub(crate) struct Export {
    /// Clients mount `/NAME`.
    pub(crate) name: String,
    pub(crate) directory: PathBuf,
}

/// A running Ganesha with its rpcbind.
pub(crate) struct Ganesha {
    // Dropped first, so that it can still remove its registrations.
    process: Process,
    _rpcbind: Process,
}

/// True if the programs are on this machine.
pub(crate) fn is_installed() -> bool {
    ["ganesha.nfsd", "rpcbind", "ip"].iter().all(|tool| command::find(tool).is_some())
}

impl Ganesha {
    /// Starts the servers with their files in `dir`, and waits until Ganesha accepts connections.
    pub(crate) fn start(dir: &Path, exports: &[Export]) -> Result<Self> {
        let program = |tool| command::find(tool).with_context(|| format!("no {tool}"));
        let file = dir.join("ganesha.conf");
        fs::write(&file, configuration(dir, exports))?;
        let mut command = guarded(&program("rpcbind")?.display().to_string());
        command.args(["-f", "-w"]);
        let rpcbind = Process::launch(command, &dir.join("rpcbind.log"))?;
        wait("rpcbind", || {
            command::output(Command::new(program("rpcinfo")?).args(["-p", "127.0.0.1"])).map(drop)
        })?;
        let mut command = guarded(&program("ganesha.nfsd")?.display().to_string());
        command.arg("-F").arg("-f").arg(&file).arg("-L").arg(dir.join("ganesha.log"));
        command.arg("-p").arg(dir.join("ganesha.pid"));
        let process = Process::launch(command, &dir.join("log"))?;
        let server = Self { process, _rpcbind: rpcbind };
        wait("ganesha.nfsd", || {
            TcpStream::connect(("127.0.0.1", MOUNT_PORT))?;
            Ok(TcpStream::connect(("127.0.0.1", PORT)).map(drop)?)
        })?;
        Ok(server)
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }
}

/// Address of a path on the server, for `weir bench`.
pub(crate) fn address(path: &str, keys: &str) -> String {
    format!("nfs://127.0.0.1:{PORT}{path}?mountport={MOUNT_PORT}{keys}")
}

fn configuration(dir: &Path, exports: &[Export]) -> String {
    let mut text = format!(
        "NFS_CORE_PARAM {{ NFS_Port = {PORT}; MNT_Port = {MOUNT_PORT}; Protocols = 3; \
         Enable_NLM = false; Enable_RQUOTA = false; Enable_UDP = false; \
         mount_path_pseudo = true; }}\n\
         NFSv4 {{ Graceless = true; RecoveryBackend = fs; RecoveryRoot = \"{}\"; }}\n\
         EXPORT_DEFAULTS {{ Access_Type = RW; Squash = No_Root_Squash; SecType = sys; \
         PrivilegedPort = false; Protocols = 3; Transports = TCP; }}\n\
         LOG {{ Default_Log_Level = EVENT; }}\n",
        dir.join("recovery").display()
    );
    for (Export { name, directory }, id) in exports.iter().zip(1..) {
        let path = directory.display();
        writeln!(
            text,
            "EXPORT {{ Export_Id = {id}; Path = \"{path}\"; Pseudo = \"/{name}\"; \
             FSAL {{ Name = VFS; }} }}"
        )
        .expect("a String takes every write");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_export_has_its_own_number_and_path() {
        let export = |name: &str| Export { name: name.to_owned(), directory: "/data".into() };
        let text = configuration(Path::new("/dir"), &[export("one"), export("two")]);
        assert!(text.contains("Export_Id = 1; Path = \"/data\"; Pseudo = \"/one\""), "{text}");
        assert!(text.contains("Export_Id = 2; Path = \"/data\"; Pseudo = \"/two\""), "{text}");
        assert_eq!(
            address("/one", "&sync=file"),
            "nfs://127.0.0.1:2049/one?mountport=20048&sync=file"
        );
    }
}
