//! What can go wrong with a dataset.
//!
//! Not here: errors of disks and pools; they pass through.
//!
//! Invariant: a variant names the dataset and tells the value that was refused.

use std::net::IpAddr;

use weir_base::ErrorKind;
use weir_base::size::Human;
use weir_format::stream::{ResumeToken, StreamError};
use weir_pool::PoolError;

/// A dataset could not do what was asked.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// The pool failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// No such volume.
    #[error("volume {name} does not exist")]
    NotFound {
        /// Full name.
        name: String,
    },
    /// The name is taken by a volume with other properties.
    #[error("volume {name} exists already, with other properties")]
    Exists {
        /// Full name.
        name: String,
    },
    /// The name is taken by a volume of another size.
    #[error(
        "volume {name} exists with size {}; {} was asked for (weir volume resize {name} --size \
         {asked_bytes} changes it)",
        Human(*has_bytes),
        Human(*asked_bytes)
    )]
    ExistsWithSize {
        /// Full name.
        name: String,
        /// The volume's size.
        has_bytes: u64,
        /// The size that was asked for.
        asked_bytes: u64,
    },
    /// A size that no volume can have.
    #[error("volume {name}: size {size} is not possible: {why}")]
    Size {
        /// Full name.
        name: String,
        /// Bytes asked for.
        size: u64,
        /// Why not.
        why: &'static str,
    },
    /// Shrinking would cut data off.
    #[error(
        "volume {name} holds data up to {}; it cannot shrink to {}. TRIM the end first",
        Human(*used),
        Human(*size)
    )]
    ShrinkBelowData {
        /// Full name.
        name: String,
        /// Bytes asked for.
        size: u64,
        /// End of the last written block.
        used: u64,
    },
    /// An access beyond the end.
    #[error("volume {name}: {len} bytes at {offset} reach beyond its end at {size}")]
    OutOfRange {
        /// Full name.
        name: String,
        /// Start.
        offset: u64,
        /// Length.
        len: u64,
        /// Size of the volume.
        size: u64,
    },
    /// No room for more data.
    #[error("pool {pool} is full: TRIM or destroy volumes, or add disks")]
    Full {
        /// Pool.
        pool: String,
    },
    /// A volume or pool that may not take more.
    #[error(
        "{name} has reached its quota of {}: TRIM, destroy snapshots, or raise the quota",
        Human(*quota_bytes)
    )]
    Quota {
        /// Full name.
        name: String,
        /// The quota.
        quota_bytes: u64,
    },
    /// A promise that there is no room for.
    #[error(
        "{name}: {what} needs {} more of the pool, which has {} that nobody was promised",
        Human(*needed_bytes),
        Human(*room_bytes)
    )]
    NoRoom {
        /// Full name.
        name: String,
        /// What was promised.
        what: &'static str,
        /// What it would take beside what is kept back already.
        needed_bytes: u64,
        /// What there is.
        room_bytes: u64,
    },
    /// A limit that is passed already.
    #[error("{name}: {property} cannot be {}: {} is {why}", Human(*value), Human(*bound))]
    Limit {
        /// Full name.
        name: String,
        /// The property.
        property: &'static str,
        /// Bytes asked for.
        value: u64,
        /// What it is in conflict with, in bytes.
        bound: u64,
        /// What that is.
        why: &'static str,
    },
    /// A change to a volume that takes none.
    #[error("volume {name} is read-only: set readonly=off to write")]
    WritesRefused {
        /// Full name.
        name: String,
    },
    /// A change to what only shows a snapshot.
    #[error("{name} is a snapshot, which cannot be changed; clone it to write")]
    ReadOnly {
        /// Full name.
        name: String,
    },
    /// No such snapshot.
    #[error("snapshot {name} does not exist")]
    NoSnapshot {
        /// Full name.
        name: String,
    },
    /// The name is taken by another snapshot.
    #[error("snapshot {name} exists already")]
    SnapshotExists {
        /// Full name.
        name: String,
    },
    /// A stream brings another snapshot of this name.
    #[error("snapshot {name} exists already, and the stream brings another one of that name")]
    SnapshotClash {
        /// Full name.
        name: String,
    },
    /// No such bookmark.
    #[error("bookmark {name} does not exist")]
    NoBookmark {
        /// Full name.
        name: String,
    },
    /// The name is taken by a bookmark of another moment.
    #[error("bookmark {name} exists already, of another snapshot")]
    BookmarkExists {
        /// Full name.
        name: String,
    },
    /// Something else depends on it.
    #[error("{name} {why}")]
    InUse {
        /// Full name of a volume or snapshot.
        name: String,
        /// By what, and what to do.
        why: String,
    },
    /// More than can be kept.
    #[error("{name} has {count} {what} already, and no more can be kept")]
    TooMany {
        /// Full name of a volume or snapshot.
        name: String,
        /// How many there are.
        count: usize,
        /// Of what.
        what: &'static str,
    },
    /// Something that makes no sense for this one.
    #[error("{name} {why}")]
    Unfit {
        /// Full name of a volume or snapshot.
        name: String,
        /// Why not, and what to do.
        why: String,
    },
    /// The name is taken by a volume that a stream would replace.
    #[error(
        "volume {name} exists already, and the stream holds a whole volume: choose another name"
    )]
    Taken {
        /// Full name.
        name: String,
    },
    /// A difference to a snapshot that is not there.
    #[error(
        "{name} cannot take this stream: it is a difference to a snapshot (guid {guid}) that is \
         not there; send that first, or one since a snapshot that both sides have"
    )]
    NoFrom {
        /// Full name of the volume.
        name: String,
        /// Of the snapshot.
        guid: u64,
    },
    /// A volume that was written to after the snapshot that a stream is a difference to.
    #[error("{name} was changed since @{snapshot}, which the stream is a difference to")]
    Changed {
        /// Full name of the volume.
        name: String,
        /// The snapshot's own name.
        snapshot: String,
    },
    /// A stream that is none, or not sound.
    #[error("{name}: the stream is refused and what came of it taken back: {error}")]
    Stream {
        /// Full name of the volume.
        name: String,
        /// At which frame, and why.
        error: StreamError,
    },
    /// A stream that ended too early.
    #[error(
        "{name}: the stream was cut off; what came of it is kept. Go on with 'weir send -t \
         {token}', or give it up with 'weir receive --abort {name}'"
    )]
    CutOff {
        /// Full name of the volume.
        name: String,
        /// Where it goes on.
        token: ResumeToken,
    },
    /// Another server's stream would change what that server did not make here.
    #[error(
        "another server may not change {name}, which {address} did not make here. To allow it, on \
         this server: weir set {property}={address} {name}"
    )]
    NotMarked {
        /// Full name of a volume or snapshot.
        name: String,
        /// The user property that says who made it.
        property: String,
        /// The other server.
        address: IpAddr,
    },
    /// Nobody takes or brings the rest of a stream any more.
    #[error("{name}: the stream was given up by its other end")]
    GivenUp {
        /// Full name of a volume or snapshot.
        name: String,
    },
    /// It cannot be read as a whole.
    #[error("{name} {why}")]
    Broken {
        /// Full name of a volume or snapshot.
        name: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// The volume was destroyed while in use.
    #[error("volume {name} was destroyed")]
    Destroyed {
        /// Full name.
        name: String,
    },
}

impl DatasetError {
    /// The kind this folds into at a border.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Pool(error) => error.kind(),
            Self::NotFound { .. }
            | Self::NoSnapshot { .. }
            | Self::NoBookmark { .. }
            | Self::NoFrom { .. }
            | Self::Destroyed { .. } => ErrorKind::NotFound,
            Self::Exists { .. }
            | Self::ExistsWithSize { .. }
            | Self::SnapshotExists { .. }
            | Self::SnapshotClash { .. }
            | Self::BookmarkExists { .. }
            | Self::Taken { .. } => ErrorKind::Exists,
            Self::Stream { error, .. } => error.kind(),
            Self::CutOff { .. } | Self::GivenUp { .. } => ErrorKind::Unavailable,
            Self::Broken { .. } => ErrorKind::Data,
            Self::InUse { .. } | Self::Changed { .. } => ErrorKind::Busy,
            Self::NotMarked { .. } => ErrorKind::Permission,
            Self::WritesRefused { .. } => ErrorKind::ReadOnly,
            Self::ReadOnly { .. }
            | Self::Limit { .. }
            | Self::TooMany { .. }
            | Self::Unfit { .. }
            | Self::Size { .. }
            | Self::OutOfRange { .. }
            | Self::ShrinkBelowData { .. } => ErrorKind::Invalid,
            Self::Full { .. } | Self::Quota { .. } | Self::NoRoom { .. } => ErrorKind::NoSpace,
        }
    }
}
