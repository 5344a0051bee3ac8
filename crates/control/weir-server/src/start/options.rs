//! Options of the server.
//!
//! bin/weir parses the command line.
//!
//! Invariant: the options are complete and checked when the server receives them.

use std::path::PathBuf;
use std::time::Duration;

use weir_api::Address;
use weir_net::AllowList;

use crate::disks::memory::MemoryPlan;

/// Options of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServeOptions {
    /// Directory of the saved state, as an absolute path.
    pub state_dir: PathBuf,
    /// Addresses of the management interface; never empty, without duplicates.
    pub api: Vec<Address>,
    /// The socket in `api` that is at the default path, if there is one. The server creates its
    /// directory if the directory is missing.
    pub default_api_socket: Option<PathBuf>,
    /// Addresses of the NBD server; never empty, without duplicates.
    pub nbd: Vec<Address>,
    /// The clients that may connect by NBD.
    pub nbd_clients: NbdClients,
    /// Addresses of the iSCSI portals; without duplicates.
    pub iscsi: Vec<Address>,
    /// Addresses of the NFS server; without duplicates.
    pub nfs: Vec<Address>,
    /// Register the NFS server at the rpcbind of this machine.
    pub rpcbind: bool,
    /// The port for servers that replicate to this one; `None` if no server may do so.
    pub peers: Option<PeerOptions>,
    /// Paths of the certificate and of its key (PEM).
    pub tls: Option<(PathBuf, PathBuf)>,
    /// Allow unencrypted TCP from other machines to the management interface.
    pub api_open: bool,
    /// Directories in which callers may name files.
    pub disk_dirs: Vec<PathBuf>,
    /// Size and split of the memory.
    pub memory: MemoryPlan,
    /// Time for a client to finish the NBD handshake or the iSCSI login.
    pub handshake_limit: Duration,
    /// Minimum level of logged messages.
    pub log: tracing::Level,
    /// Create a small pool for trials if there is no pool.
    pub demo: bool,
}

/// The clients that may connect by NBD.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NbdClients {
    /// Addresses from which clients may connect over TCP.
    pub allowed: AllowList,
    /// Require TLS for connections over TCP.
    pub tls_only: bool,
    /// File with the CA certificates for client certificates; `None` if clients need no
    /// certificate.
    pub client_ca: Option<PathBuf>,
    /// Name of the group that may use the unix sockets in addition to the user of the server;
    /// `None` if the command line has no such name.
    pub group: Option<String>,
}

/// Options of the port for peers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerOptions {
    /// TCP address on which the port listens.
    pub listen: Address,
    /// File with the secret that peers must know.
    pub secret: PathBuf,
}
