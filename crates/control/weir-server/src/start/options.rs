//! How to run the server.
//!
//! Not here: reading the command line (bin/weir).
//!
//! Invariant: options that arrive here are complete and checked.

use std::path::PathBuf;
use std::time::Duration;

use weir_api::Address;
use weir_net::AllowList;

use crate::disks::memory::MemoryPlan;

/// How to run the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Where the server keeps what it must remember; absolute.
    pub state_dir: PathBuf,
    /// Where the management interface listens; never empty, no address twice.
    pub api: Vec<Address>,
    /// The one of them that nobody chose; its directory is made where it is missing.
    pub default_api_socket: Option<PathBuf>,
    /// Where NBD listens; never empty, no address twice.
    pub nbd: Vec<Address>,
    /// Who may use it.
    pub nbd_clients: NbdClients,
    /// Where iSCSI listens; no address twice.
    pub iscsi: Vec<Address>,
    /// Where other servers may reach this one, if they may.
    pub peers: Option<PeerOptions>,
    /// Files with the certificate and its key (PEM).
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Plain TCP also beyond this machine.
    pub api_open: bool,
    /// Directories whose files callers may name.
    pub disk_dirs: Vec<PathBuf>,
    /// How much memory, and for what.
    pub memory: MemoryPlan,
    /// Time for a client to finish the NBD handshake or the iSCSI login.
    pub handshake_limit: Duration,
    /// Least important messages to log.
    pub log: &'static str,
    /// Make a small pool to play with if there is none.
    pub demo: bool,
}

/// Who may use NBD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NbdClients {
    /// Over TCP.
    pub allowed: AllowList,
    /// Over TCP they must begin with TLS.
    pub tls_only: bool,
    /// File with the certificates that vouch for theirs; without one they need none.
    pub client_ca: Option<PathBuf>,
    /// Over unix sockets, beside the user of the server, if the command line names it.
    pub group: Option<String>,
}

/// How other servers reach this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerOptions {
    /// A TCP address.
    pub listen: Address,
    /// File with the secret that they must know.
    pub secret: PathBuf,
}
