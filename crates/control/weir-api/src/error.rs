//! Everything that goes wrong in this crate: wrong requests, sockets, answers not understood.
//!
//! Not here: errors of the engine; those reach a caller as [`ApiError`] from the handlers.
//!
//! Invariant: an [`Error`] turns into an [`ApiError`] without loss of what, where and what to do.

use std::borrow::Cow;
use std::io;
use std::path::PathBuf;

use weir_base::ErrorKind;
use weir_base::names::NameError;
use weir_base::private::PrivateError;

use crate::wire::ApiError;

/// The number of disks given, in words.
fn given(disks: usize) -> String {
    match disks {
        0 => "none was given".to_owned(),
        1 => "one was given".to_owned(),
        more => format!("{more} were given"),
    }
}

/// What went wrong, with what it was about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An address cannot be read.
    #[error("bad address {text:?}: {why}")]
    Address {
        /// What was given.
        text: String,
        /// The part that is wrong.
        why: &'static str,
    },
    /// No home directory to keep state in.
    #[error("cannot tell where to keep state: neither XDG_STATE_HOME nor HOME is set")]
    NoHome,
    /// A name breaks the rules.
    #[error(transparent)]
    Name(#[from] NameError),
    /// A volume cannot have this size.
    #[error("bad volume size {bytes}: {why}")]
    VolumeSize {
        /// The size in bytes.
        bytes: u64,
        /// The rule it breaks.
        why: String,
    },
    /// Records cannot have this size.
    #[error("bad record size {bytes}: it is a power of two from 4KiB to 1MiB")]
    RecordSize {
        /// The size in bytes.
        bytes: u64,
    },
    /// A property that does not exist.
    #[error("unknown property {name:?}; {hint}")]
    Property {
        /// What was given.
        name: String,
        /// The nearest, or all that exist.
        hint: String,
    },
    /// A property that only tells something.
    #[error("property {name} tells what is, and cannot be set")]
    PropertyReadOnly {
        /// The property.
        name: &'static str,
    },
    /// A property that something of this sort does not have.
    #[error("property {property} cannot be set on a {of}")]
    PropertyOf {
        /// The property.
        property: String,
        /// What it was to be set on.
        of: &'static str,
    },
    /// A property that is not inherited.
    #[error("property {name} is not inherited{}", nor_set(*settable))]
    NotInherited {
        /// The property.
        name: &'static str,
        /// Whether it can be set.
        settable: bool,
    },
    /// A property of users that cannot be.
    #[error("bad user property {name:?}: {why}")]
    UserProperty {
        /// The property.
        name: String,
        /// The rule it breaks.
        why: &'static str,
    },
    /// A change of the size beside others.
    #[error("size is set alone: with other properties it could be half done")]
    SizeWithOthers,
    /// A property that cannot have this value.
    #[error("bad value {value:?} for {name}; it takes: {known}")]
    PropertyValue {
        /// The property.
        name: &'static str,
        /// What was given.
        value: String,
        /// The values it takes.
        known: &'static str,
    },
    /// A part of a request that cannot be so.
    #[error("bad {field}: it {why}")]
    Field {
        /// The part.
        field: &'static str,
        /// The rule it breaks.
        why: String,
    },
    /// A request that changes nothing.
    #[error("no property to set was given")]
    NoProperty,
    /// A request about no volume.
    #[error("no volume was named")]
    NoVolumes,
    /// A volume that is named again, or one too many.
    #[error("{name} is named twice, or is one more than {most} volumes")]
    NamedTwice {
        /// The volume.
        name: String,
        /// How many can be named.
        most: usize,
    },
    /// A request about no snapshot.
    #[error("no snapshot was named")]
    NoSnapshots,
    /// A file that cannot be used.
    #[error("file {}: {why}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// Runs in too quick a succession.
    #[error("every {seconds} s is too often")]
    TooOften {
        /// What was asked for.
        seconds: u64,
    },
    /// A limit that lets nothing through.
    #[error("a bandwidth of 0 would send nothing")]
    NoBandwidth,
    /// A stream that would be a difference to two things.
    #[error("a token says by itself what the stream is a difference to")]
    FromAndToken,
    /// A recursive snapshot that names not exactly one pool.
    #[error("a snapshot of all volumes names one pool")]
    NotOnePool,
    /// Two snapshots of one volume at one moment.
    #[error("volume {volume} is named twice, and one call takes one snapshot of it")]
    VolumeTwice {
        /// The volume.
        volume: String,
    },
    /// A list of a call with too many entries.
    #[error("a call takes at most {most} {what}")]
    TooMany {
        /// The entries.
        what: &'static str,
        /// The limit.
        most: usize,
    },
    /// Names that must be of the same volume or pool and are not.
    #[error("{name} and {to} are not of the same {what}")]
    Elsewhere {
        /// One name.
        name: String,
        /// The other.
        to: String,
        /// What they must share.
        what: &'static str,
    },
    /// A schedule that cannot be.
    #[error("bad schedule {part:?}: {why}")]
    Schedule {
        /// The part that is wrong.
        part: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A pool without disks.
    #[error("no disks were given for pool {pool}")]
    NoDisks {
        /// The pool.
        pool: String,
    },
    /// A vdev with a number of disks its kind cannot have.
    #[error("a {kind} {why}; {}", given(*disks))]
    VdevWidth {
        /// The vdev's kind.
        kind: &'static str,
        /// How many disks it was given.
        disks: usize,
        /// The rule.
        why: &'static str,
    },
    /// A disk named by a path that depends on the reader's working directory.
    #[error("the path {path:?} of a disk is not absolute")]
    RelativePath {
        /// The path.
        path: String,
    },
    /// A disk named twice.
    #[error("disk {path:?} is given twice{}", same(first.as_deref()))]
    DiskTwice {
        /// The second naming.
        path: String,
        /// The first naming, where it is spelled differently.
        first: Option<String>,
    },
    /// Vdevs of different redundancy in one pool.
    #[error("mismatched replication level: the pool would mix {first} and {other}")]
    Mismatched {
        /// One sort of vdev.
        first: String,
        /// The other sort.
        other: String,
    },
    /// A destruction that was not confirmed by name.
    #[error("pool {pool} is not destroyed: `confirm` is {confirm:?}, not the pool's name")]
    NotConfirmed {
        /// The pool.
        pool: String,
        /// What was given.
        confirm: String,
    },
    /// A file with a secret cannot be used.
    #[error(transparent)]
    Private(#[from] PrivateError),
    /// Tokens would travel beyond this machine in clear text.
    #[error("cannot listen on {address} without TLS: tokens would travel in clear text")]
    Plain {
        /// Where.
        address: String,
    },
    /// Opening a socket to listen failed.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Another process listens there.
    #[error("cannot listen on {address}: another process listens there")]
    InUse {
        /// Where.
        address: String,
    },
    /// A unix socket would replace a file that is no socket.
    #[error("cannot listen on unix:{}: there is a file that is not a socket", path.display())]
    NotASocket {
        /// Where.
        path: PathBuf,
    },
    /// A directory in which a socket cannot be trusted.
    #[error("directory {}: {why}", path.display())]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why not.
        why: String,
        /// The command that mends it.
        mend: String,
    },
    /// A server cannot be reached.
    #[error("cannot reach weir at {address}: {source}")]
    Connect {
        /// Where.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// The connection broke before the answer was there.
    #[error("the connection to weir at {address} broke: {source}")]
    Broken {
        /// Where.
        address: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer in time.
    #[error("no answer from weir at {address} within {seconds} s")]
    Timeout {
        /// Where.
        address: String,
        /// How long was waited.
        seconds: u64,
    },
    /// An answer that is not one of Weir's.
    #[error("cannot read the answer from {address} (status {status}): {why}")]
    Answer {
        /// Where.
        address: String,
        /// HTTP status.
        status: u16,
        /// What is wrong with it.
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
    /// The error by what can be done about it.
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

    /// What to do, where it is more than the kind's usual advice.
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
                "weir serve --api {address} --tls-cert FILE --tls-key FILE; where nobody but you \
                 is on the network, --api-open"
            )));
        }
        self.advice().map(Cow::Borrowed)
    }

    fn advice(&self) -> Option<&'static str> {
        Some(match self {
            Self::Address { .. } => "write HOST:PORT or unix:PATH",
            Self::NoHome => "set HOME, or name a directory with --state",
            Self::VolumeSize { .. } => {
                "use a multiple of the record size (4096 bytes if none was chosen), at most 16TiB"
            }
            Self::RecordSize { .. } => "choose one such as 64KiB; without any it is 4KiB",
            Self::PropertyReadOnly { name: "record_size" }
            | Self::NotInherited { name: "record_size", .. } => {
                "a volume has it for ever: make another with 'weir volume create --record-size', \
                 export both, and copy the data, for instance with nbdcopy"
            }
            Self::NotInherited { name: "quota", .. } => "to have none: set quota=none",
            Self::NotInherited { settable: true, .. } => "to have none: set it to none",
            Self::PropertyReadOnly { .. } | Self::NotInherited { .. } | Self::Property { .. } => {
                "look at the list: weir get all tank"
            }
            Self::SizeWithOthers => "set the size with a call of its own",
            Self::NoVolumes | Self::NamedTwice { .. } => "name each volume once, such as tank/vm1",
            Self::NoSnapshots => "name a snapshot, such as tank/vm1@monday",
            Self::File { .. } => "name another file, or correct this one",
            Self::TooOften { .. } => "leave 5 seconds or more between runs",
            Self::NoBandwidth => "pause the replication, or leave the limit out",
            Self::FromAndToken => "leave out the older snapshot (-i), or the token (-t)",
            Self::NotOnePool => "name the pool and the snapshots, such as tank@monday",
            Self::VolumeTwice { .. } => "take the second one with another call",
            Self::TooMany { .. } => "make several calls",
            Self::Elsewhere { .. } => "name things of one pool, and of one volume to rename",
            Self::Schedule { .. } => "write what to keep of each sort, such as hourly=24,daily=7",
            Self::DiskTwice { .. } => "name each disk once",
            Self::Mismatched { .. } => "use vdevs of one sort, or --force to mix them",
            Self::RelativePath { .. } => "write the path from the root, such as /dev/sdb",
            Self::NotConfirmed { .. } => "repeat the pool's name in `confirm`",
            Self::InUse { .. } => "stop that process, or listen elsewhere",
            Self::NotASocket { .. } => "move that file away, or listen elsewhere",
            Self::Connect { source, .. } if source.kind() != io::ErrorKind::PermissionDenied => {
                "start it with `weir serve`, or say where it is with --api or WEIR_API"
            }
            Self::Connect { .. } => {
                "run it as root, as the user of the server, or as a member of the group weir (as \
                 root: usermod -aG weir USER, then log in again); a token works over TCP"
            }
            Self::Timeout { .. } => {
                "the call may still finish: look at the state before trying again"
            }
            Self::Broken { .. } => "look at the server's log and at the state, then try again",
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
