//! Errors of this crate: invalid requests, sockets, and responses that cannot be read.
//!
//! Errors of the engine are not in this type; handlers return them as [`ApiError`].
//!
//! Invariant: an [`Error`] becomes an [`ApiError`] that names the problem, the object and the
//! remedy.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use weir_base::ErrorKind;
use weir_base::limits::VOLUME_BYTES_MAX;
use weir_base::names::NameError;
use weir_base::private::PrivateError;
use weir_base::size::Human;

use crate::wire::ApiError;

/// Returns the number of given disks in words.
fn given(disks: usize) -> String {
    match disks {
        0 => "none was given".to_owned(),
        1 => "one was given".to_owned(),
        more => format!("{more} were given"),
    }
}

/// Formats a size with a unit if that unit shows it exactly, otherwise in bytes.
fn exact(bytes: u64) -> String {
    let text = Human(bytes).to_string();
    if text.contains('.') { bytes.to_string() } else { text }
}

/// An error of this crate, with the affected object.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address is invalid.
    #[error("bad address {text:?}: {why}")]
    Address {
        /// The given address.
        text: String,
        /// The rule that the address breaks.
        why: &'static str,
    },
    /// There is no home directory for the state.
    #[error("no directory for the state: neither XDG_STATE_HOME nor HOME is set")]
    NoHome,
    /// A name is invalid.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A volume size is invalid.
    #[error("bad volume size {}: {why}", exact(*bytes))]
    VolumeSize {
        /// The rejected size in bytes.
        bytes: u64,
        /// The rule for volume sizes that this size breaks.
        why: String,
    },
    /// A record size is invalid.
    #[error("bad record size {}: it is a power of two from 4KiB to 1MiB", exact(*bytes))]
    RecordSize {
        /// The rejected size in bytes.
        bytes: u64,
    },
    /// The property does not exist.
    #[error("unknown property {name:?}; {hint}")]
    Property {
        /// The given name.
        name: String,
        /// The most similar property name, or all names.
        hint: String,
    },
    /// The property is read-only.
    #[error("property {name} is read-only")]
    PropertyReadOnly {
        /// The property.
        name: &'static str,
    },
    /// Objects of this type do not have the property.
    #[error("property {property} cannot be set on a {of}")]
    PropertyOf {
        /// The property.
        property: String,
        /// Type of the object.
        of: &'static str,
    },
    /// The property is not inherited.
    #[error("property {name} is not inherited{}", nor_set(*settable))]
    NotInherited {
        /// The property.
        name: &'static str,
        /// True if the property can be set.
        settable: bool,
    },
    /// A user property is invalid.
    #[error("bad user property {name:?}: {why}")]
    UserProperty {
        /// The property.
        name: String,
        /// The rule for user properties that this property breaks.
        why: &'static str,
    },
    /// A request changes the size together with other properties.
    #[error("size must be set alone: with other properties the change could be incomplete")]
    SizeWithOthers,
    /// The value of a property is invalid.
    #[error("bad value {value:?} for {name}; it takes: {known}")]
    PropertyValue {
        /// The property.
        name: &'static str,
        /// The given value.
        value: String,
        /// The valid values.
        known: &'static str,
    },
    /// A field of a request is invalid.
    #[error("bad {field}: it {why}")]
    Field {
        /// The field.
        field: &'static str,
        /// The rule that the value breaks.
        why: String,
    },
    /// The request sets no property.
    #[error("no property to set was given")]
    NoProperty,
    /// The request names no volume.
    #[error("no volume was named")]
    NoVolumes,
    /// A volume is named twice, or the request names too many volumes.
    #[error("{name} is named twice, or exceeds the limit of {most} volumes")]
    NamedTwice {
        /// The volume.
        name: String,
        /// The maximum number of volumes.
        most: usize,
    },
    /// The request names no snapshot.
    #[error("no snapshot was named")]
    NoSnapshots,
    /// A file cannot be used.
    #[error("file {}: {why}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The cause.
        why: String,
    },
    /// The interval of a replication is too short.
    #[error("every {seconds} s is too often")]
    TooOften {
        /// The requested interval.
        seconds: u64,
    },
    /// The bandwidth limit is 0.
    #[error("a bandwidth of 0 would send nothing")]
    NoBandwidth,
    /// The request has both an incremental source and a resume token.
    #[error("the resume token already names the base of the stream")]
    FromAndToken,
    /// A recursive snapshot request does not name exactly one pool.
    #[error("a recursive snapshot needs exactly one pool")]
    NotOnePool,
    /// The request names two snapshots of the same volume.
    #[error("volume {volume} is named twice; a call takes one snapshot of each volume")]
    VolumeTwice {
        /// The volume.
        volume: String,
    },
    /// A list in a request has too many entries.
    #[error("a call takes at most {most} {what}")]
    TooMany {
        /// Noun for the entries.
        what: &'static str,
        /// The limit.
        most: usize,
    },
    /// Two names are not in the same volume or pool.
    #[error("{name} and {to} are not in the same {what}")]
    Elsewhere {
        /// The first name.
        name: String,
        /// The second name.
        to: String,
        /// Type of the object that the two names must have in common: volume or pool.
        what: &'static str,
    },
    /// A schedule is invalid.
    #[error("bad schedule {part:?}: {why}")]
    Schedule {
        /// The invalid part.
        part: String,
        /// The rule that this part breaks.
        why: &'static str,
    },
    /// The pool has no disks.
    #[error("no disks were given for pool {pool}")]
    NoDisks {
        /// The pool.
        pool: String,
    },
    /// A vdev has too few or too many disks for its kind.
    #[error("a {kind} {why}; {}", given(*disks))]
    VdevWidth {
        /// Kind of the vdev.
        kind: &'static str,
        /// Number of given disks.
        disks: usize,
        /// The number of disks that the kind requires.
        why: &'static str,
    },
    /// The path of a disk is relative.
    #[error("the path {path:?} of a disk is not absolute")]
    RelativePath {
        /// The path.
        path: String,
    },
    /// A disk is given twice.
    #[error("disk {path:?} is given twice{}", same(first.as_deref()))]
    DiskTwice {
        /// Path of the second occurrence.
        path: String,
        /// Path of the first occurrence, if it differs.
        first: Option<String>,
    },
    /// The vdevs of a pool have different redundancy.
    #[error("mismatched replication level: the pool would mix {first} and {other}")]
    Mismatched {
        /// The redundancy of one vdev.
        first: String,
        /// The redundancy of another vdev.
        other: String,
    },
    /// The confirmation of a destruction does not match the name of the pool.
    #[error("pool {pool} is not destroyed: `confirm` is {confirm:?}, not the pool's name")]
    NotConfirmed {
        /// The pool.
        pool: String,
        /// The given confirmation.
        confirm: String,
    },
    /// A file with a secret cannot be used.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// Tokens would leave this machine in clear text.
    #[error("cannot listen on {address} without TLS: tokens would be sent in clear text")]
    Plain {
        /// Address to listen on.
        address: String,
    },
    /// Listening on a socket failed.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Address to listen on.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// Another process listens on the address.
    #[error("cannot listen on {address}: another process listens there")]
    InUse {
        /// Address to listen on.
        address: String,
    },
    /// The path of a unix socket is a file that is not a socket.
    #[error("cannot listen on unix:{}: there is a file that is not a socket", path.display())]
    NotASocket {
        /// Path of the socket.
        path: PathBuf,
    },
    /// Other users could replace a socket in this directory.
    #[error("directory {}: {why}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The cause.
        why: String,
        /// Command that repairs the permissions of the directory.
        mend: String,
    },
    /// A server cannot be reached.
    #[error("cannot reach weir at {address}: {source}")]
    Connect {
        /// Address of the server.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The connection broke before the response was complete.
    #[error("the connection to weir at {address} broke: {source}")]
    Broken {
        /// Address of the server.
        address: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The server did not respond within the timeout.
    #[error("no answer from weir at {address} within {seconds} s")]
    Timeout {
        /// Address of the server.
        address: String,
        /// The timeout.
        seconds: u64,
    },
    /// The response is not in Weir's format.
    #[error("cannot read the answer from {address} (status {status}): {why}")]
    Answer {
        /// Address of the server.
        address: String,
        /// HTTP status.
        status: u16,
        /// The problem with the response.
        why: String,
    },
}

fn nor_set(settable: bool) -> &'static str {
    if settable { "" } else { ", and cannot be set" }
}

fn same(first: Option<&str>) -> String {
    first.map_or_else(String::new, |first| format!(", first as {first:?}"))
}

impl Error {
    /// Returns the kind of the error, which determines the remedy.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Address { .. }
            | Self::NoHome
            | Self::Name(_)
            | Self::VolumeSize { .. }
            | Self::Field { .. }
            | Self::RecordSize { .. }
            | Self::Property { .. }
            | Self::PropertyValue { .. }
            | Self::PropertyReadOnly { .. }
            | Self::PropertyOf { .. }
            | Self::NotInherited { .. }
            | Self::UserProperty { .. }
            | Self::SizeWithOthers
            | Self::NoProperty
            | Self::NoVolumes
            | Self::NamedTwice { .. }
            | Self::NoSnapshots
            | Self::NotOnePool
            | Self::FromAndToken
            | Self::File { .. }
            | Self::TooOften { .. }
            | Self::NoBandwidth
            | Self::VolumeTwice { .. }
            | Self::TooMany { .. }
            | Self::Elsewhere { .. }
            | Self::Schedule { .. }
            | Self::NoDisks { .. }
            | Self::VdevWidth { .. }
            | Self::RelativePath { .. }
            | Self::DiskTwice { .. }
            | Self::Mismatched { .. }
            | Self::Plain { .. }
            | Self::NotConfirmed { .. } => ErrorKind::Invalid,
            Self::InUse { .. } => ErrorKind::Busy,
            Self::NotASocket { .. } => ErrorKind::Exists,
            Self::Directory { .. } => ErrorKind::Permission,
            Self::Private(error) => error.kind(),
            Self::Listen { source, .. } | Self::Connect { source, .. } => match source.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::Permission,
                io::ErrorKind::InvalidInput => ErrorKind::Invalid,
                _ => ErrorKind::Unavailable,
            },
            Self::Broken { .. } | Self::Timeout { .. } | Self::Answer { .. } => {
                ErrorKind::Unavailable
            }
        }
    }

    /// Returns the remedy, if it is more specific than the usual advice for the kind.
    fn action(&self) -> Option<Cow<'static, str>> {
        if let Self::Directory { mend, .. } = self {
            return Some(Cow::Owned(format!(
                "{mend}; or listen in another directory: weir serve --api unix:PATH"
            )));
        }
        if let Self::Private(error) = self {
            return Some(Cow::Owned(error.action()));
        }
        if let Self::Plain { address } = self {
            return Some(Cow::Owned(format!(
                "weir serve --api {address} --tls-cert FILE --tls-key FILE; only on a trusted \
                 network, --api-open"
            )));
        }
        self.advice().map(Cow::Borrowed)
    }

    fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::Address { .. } => "write HOST:PORT or unix:PATH",
            Self::NoHome => "set HOME, or name a directory with --state",
            Self::VolumeSize { bytes, .. } if *bytes > VOLUME_BYTES_MAX => "use at most 16TiB",
            Self::VolumeSize { .. } => {
                "use a multiple of the record size (4096 bytes by default), at most 16TiB"
            }
            Self::RecordSize { .. } => "choose a size such as 64KiB; the default is 4KiB",
            Self::PropertyReadOnly { name: "record_size" }
            | Self::NotInherited { name: "record_size", .. } => {
                "the record size of a volume is fixed: create another volume with 'weir volume \
                 create --record-size', export both, and copy the data, for instance with nbdcopy"
            }
            Self::PropertyReadOnly { name: "case" } | Self::NotInherited { name: "case", .. } => {
                "the comparison of names is fixed: create another filesystem with 'weir filesystem \
                 create --case', mount both, and copy the files"
            }
            Self::NotInherited { name: "quota", .. } => "to have none: set quota=none",
            Self::NotInherited { settable: true, .. } => "to have none: set it to none",
            Self::PropertyReadOnly { .. } | Self::NotInherited { .. } | Self::Property { .. } => {
                "list the properties: weir get all tank"
            }
            Self::SizeWithOthers => "set the size in a separate call",
            Self::NoVolumes | Self::NamedTwice { .. } => "name each volume once, such as tank/vm1",
            Self::NoSnapshots => "name a snapshot, such as tank/vm1@monday",
            Self::File { .. } => "name another file, or correct this one",
            Self::TooOften { .. } => "leave 5 seconds or more between runs",
            Self::NoBandwidth => "pause the replication, or leave the limit out",
            Self::FromAndToken => "leave out the older snapshot (-i), or the token (-t)",
            Self::NotOnePool => "name the pool and the snapshots, such as tank@monday",
            Self::VolumeTwice { .. } => "take the second snapshot in another call",
            Self::TooMany { .. } => "make several calls",
            Self::Elsewhere { .. } => "name objects of one pool; to rename, of one volume",
            Self::Schedule { .. } => "give a count for each interval, such as hourly=24,daily=7",
            Self::DiskTwice { .. } => "name each disk once",
            Self::Mismatched { .. } => "use vdevs of the same kind, or --force to mix them",
            Self::RelativePath { .. } => "write the path from the root, such as /dev/sdb",
            Self::NotConfirmed { .. } => "repeat the pool's name in `confirm`",
            Self::InUse { .. } => "stop that process, or listen elsewhere",
            Self::NotASocket { .. } => "move that file away, or listen elsewhere",
            Self::Connect { source, .. } if source.kind() != io::ErrorKind::PermissionDenied => {
                "start it with `weir serve`, or give its address with --api or WEIR_API"
            }
            Self::Connect { .. } => {
                "run it as root, as the user of the server, or as a member of the group weir (as \
                 root: usermod -aG weir USER, then log in again); a token works over TCP"
            }
            Self::Timeout { .. } => {
                "the call may still finish: check the state before you try again"
            }
            Self::Broken { .. } => "check the server's log and the state, then try again",
            Self::Answer { .. } => "check that a weir of this version listens there",
            _ => return None,
        })
    }
}

impl From<Error> for ApiError {
    fn from(error: Error) -> Self {
        let wire = Self::new(error.kind(), error.to_string());
        match error.action() {
            Some(action) => wire.with_action(action),
            None => wire,
        }
    }
}
