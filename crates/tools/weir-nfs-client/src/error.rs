//! Errors of mounts, calls and connections.
//!
//! `exchange` returns the errors that a server sends for single calls as replies.
//!
//! Invariant: an error of a connection ends it; the caller opens another one.

use std::io;

use weir_base::ErrorKind;
use weir_nfs_wire::mount::v3::Mountstat3;
use weir_nfs_wire::nfs3::Nfsstat3;
use weir_oncrpc::XdrError;
use weir_oncrpc::record::RecordError;

use crate::refusal::Refusal;

/// Reason why a mount, a call or a connection failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NfsError {
    /// The address is malformed.
    #[error("bad address {text:?}: {why}")]
    Url {
        /// Address as the user wrote it.
        text: String,
        /// Reason.
        why: String,
    },
    /// The client cannot connect to the server.
    #[error("cannot connect to {server}: {source}")]
    Connect {
        /// Host and port.
        server: String,
        /// Error of the operating system.
        source: io::Error,
    },
    /// The connection failed.
    #[error("connection lost: {0}")]
    Socket(#[from] io::Error),
    /// The server closed the connection.
    #[error("the server closed the connection")]
    Closed,
    /// The server did not reply in time.
    #[error("no reply to {what} within {seconds} s")]
    Timeout {
        /// Name of the procedure.
        what: &'static str,
        /// Time limit in seconds.
        seconds: u64,
    },
    /// The record of a reply exceeds a limit.
    #[error("the server violates the protocol: {0}")]
    Record(#[from] RecordError),
    /// A reply cannot be decoded.
    #[error("the server violates the protocol: reply to {what}: {source}")]
    Reply {
        /// Name of the procedure, or of the part of the reply.
        what: &'static str,
        /// Error of the decoder.
        source: XdrError,
    },
    /// A reply contradicts its call.
    #[error("the server violates the protocol: {why}")]
    Protocol {
        /// Description of the violation.
        why: &'static str,
    },
    /// The server refused a call in its RPC header.
    #[error("{what}: the server refuses the call: {refusal}{}", port_hint(*.unreserved_port))]
    Refused {
        /// Name of the procedure.
        what: &'static str,
        /// Reason that the server states.
        refusal: Refusal,
        /// Source port of the client, if it is no reserved port.
        unreserved_port: Option<u16>,
    },
    /// The server refused the mount.
    #[error("cannot mount {path:?}: {}{}", mount_text(*.status), port_hint(*.unreserved_port))]
    Mount {
        /// Path that the client requested.
        path: String,
        /// Status of the reply.
        status: Mountstat3,
        /// Source port of the client, if it is no reserved port and the status may result from it.
        unreserved_port: Option<u16>,
    },
    /// A procedure failed.
    #[error("{what}: {}{}", status_text(*.status), port_hint(*.unreserved_port))]
    Failed {
        /// Name of the procedure.
        what: &'static str,
        /// Status of the reply.
        status: Nfsstat3,
        /// Source port of the client, if it is no reserved port and the status may result from it.
        unreserved_port: Option<u16>,
    },
    /// The server does not offer MOUNT on the port of NFS, and its portmap does not know a port.
    #[error("the server has no MOUNT service on the port of NFS or in its portmap")]
    NoMountPort,
    /// A directory has more entries than the client accepts.
    #[error("a directory has more than {max} entries")]
    TooManyEntries {
        /// Maximum.
        max: u64,
    },
}

impl NfsError {
    /// Kind of the error, for callers outside this crate.
    pub const fn kind(&self) -> ErrorKind {
        match self {
            Self::Url { .. } => ErrorKind::Invalid,
            Self::Mount { status: Mountstat3::Perm | Mountstat3::Acces, .. }
            | Self::Refused { refusal: Refusal::Auth(_), .. } => ErrorKind::Permission,
            Self::Mount { status: Mountstat3::Noent | Mountstat3::Notdir, .. } => {
                ErrorKind::NotFound
            }
            Self::Failed { status, .. } => match status {
                Nfsstat3::Perm | Nfsstat3::Acces => ErrorKind::Permission,
                Nfsstat3::Noent | Nfsstat3::Notdir => ErrorKind::NotFound,
                Nfsstat3::Nospc | Nfsstat3::Dquot => ErrorKind::NoSpace,
                Nfsstat3::Rofs => ErrorKind::ReadOnly,
                _ => ErrorKind::Unavailable,
            },
            Self::Connect { .. }
            | Self::Socket(_)
            | Self::Closed
            | Self::Timeout { .. }
            | Self::Record(_)
            | Self::Reply { .. }
            | Self::Protocol { .. }
            | Self::Refused { .. }
            | Self::Mount { .. }
            | Self::NoMountPort
            | Self::TooManyEntries { .. } => ErrorKind::Unavailable,
        }
    }

    /// Action that the user should take.
    pub const fn action(&self) -> &'static str {
        match self {
            Self::Url { .. } => "write nfs://HOST[:PORT]/EXPORT/DIR",
            Self::Connect { .. } | Self::Closed | Self::Socket(_) | Self::Timeout { .. } => {
                "check that the server runs, and check its log"
            }
            Self::Record(_) | Self::Reply { .. } | Self::Protocol { .. } => {
                "check that this is a server of NFS version 3, and check its log"
            }
            Self::Refused { unreserved_port: Some(_), .. }
            | Self::Mount { unreserved_port: Some(_), .. }
            | Self::Failed { unreserved_port: Some(_), .. } => {
                "set the option `insecure` on the share, or run as root"
            }
            Self::Refused { refusal: Refusal::Auth(_), .. }
            | Self::Failed { status: Nfsstat3::Perm | Nfsstat3::Acces | Nfsstat3::Rofs, .. } => {
                "check the rights of the uid and gid in the address: ?uid=UID&gid=GID"
            }
            Self::Failed { status: Nfsstat3::Nospc | Nfsstat3::Dquot, .. } => {
                "free space on the server, or use a smaller dataset (--size)"
            }
            Self::Failed { status: Nfsstat3::Noent | Nfsstat3::Notdir, .. } => {
                "check the path in the address"
            }
            Self::Refused { .. } | Self::Failed { .. } => "check the log of the server",
            Self::Mount { .. } => "check the path, and whether the share allows this client",
            Self::NoMountPort => "add the port to the address: ?mountport=PORT",
            Self::TooManyEntries { .. } => "use a directory with fewer entries",
        }
    }
}

/// Text behind an error that a server may have sent because of the source port.
fn port_hint(port: Option<u16>) -> String {
    let hint = |port| {
        format!(" (the client uses port {port}, which is not reserved; the share needs `insecure`)")
    };
    port.map_or_else(String::new, hint)
}

/// Name of a status as the RFC writes it.
fn status_text(status: Nfsstat3) -> String {
    format!("NFS3ERR_{}", rfc_name(&format!("{status:?}")))
}

fn mount_text(status: Mountstat3) -> String {
    format!("MNT3ERR_{}", rfc_name(&format!("{status:?}")))
}

fn rfc_name(name: &str) -> String {
    match name {
        "NotSync" => "NOT_SYNC".to_owned(),
        "BadCookie" => "BAD_COOKIE".to_owned(),
        name => name.to_uppercase(),
    }
}

/// Error of a call, with the [`io::ErrorKind`] that a system call would return for the status. The
/// argument `what` is the name of the procedure.
pub fn io_error(what: &str, status: Nfsstat3) -> io::Error {
    let kind = match status {
        Nfsstat3::Noent => io::ErrorKind::NotFound,
        Nfsstat3::Exist => io::ErrorKind::AlreadyExists,
        Nfsstat3::Perm | Nfsstat3::Acces => io::ErrorKind::PermissionDenied,
        Nfsstat3::Nospc => io::ErrorKind::StorageFull,
        Nfsstat3::Dquot => io::ErrorKind::QuotaExceeded,
        Nfsstat3::Rofs => io::ErrorKind::ReadOnlyFilesystem,
        Nfsstat3::Stale => io::ErrorKind::StaleNetworkFileHandle,
        Nfsstat3::Notempty => io::ErrorKind::DirectoryNotEmpty,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, format!("{what}: {}", status_text(status)))
}
