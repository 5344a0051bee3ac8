//! Errors of datasets.
//!
//! Errors of disks and pools pass through unchanged.
//!
//! Invariant: a variant names the dataset and the value that the engine refused.

use std::net::IpAddr;

use weir_base::ErrorKind;
use weir_base::size::Human;
use weir_format::stream::{ResumeToken, StreamError};
use weir_pool::PoolError;

/// Error of a call on a dataset.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DatasetError {
    /// The pool failed.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// The volume does not exist.
    #[error("volume {name} does not exist")]
    NotFound {
        /// Full name of the volume.
        name: String,
    },
    /// A volume of this name exists with other properties.
    #[error("volume {name} exists already, with other properties")]
    Exists {
        /// Full name of the volume.
        name: String,
    },
    /// A volume of this name exists with another size.
    #[error(
        "volume {name} exists with size {}, not {}",
        Human(*has_bytes),
        Human(*asked_bytes)
    )]
    ExistsWithSize {
        /// Full name of the volume.
        name: String,
        /// The volume's size.
        has_bytes: u64,
        /// The requested size.
        asked_bytes: u64,
    },
    /// The volume size is invalid.
    #[error("volume {name}: size {size} is not possible: {why}")]
    Size {
        /// Full name of the volume.
        name: String,
        /// Requested size in bytes.
        size: u64,
        /// Reason why the size is not possible.
        why: &'static str,
    },
    /// The volume holds data beyond the smaller size.
    #[error(
        "volume {name} holds data up to {}; it cannot shrink to {}",
        Human(*used),
        Human(*size)
    )]
    ShrinkBelowData {
        /// Full name of the volume.
        name: String,
        /// Requested size in bytes.
        size: u64,
        /// End of the last written block.
        used: u64,
    },
    /// Access beyond the end of the volume.
    #[error("volume {name}: {len} bytes at {offset} reach beyond its end at {size}")]
    OutOfRange {
        /// Full name of the volume.
        name: String,
        /// Offset of the access in bytes.
        offset: u64,
        /// Length of the access in bytes.
        len: u64,
        /// Size of the volume in bytes.
        size: u64,
    },
    /// The pool has no free space for the data.
    #[error("pool {pool} is full: TRIM or destroy volumes, or add disks")]
    Full {
        /// Name of the pool.
        pool: String,
    },
    /// The volume or pool has reached its quota.
    #[error(
        "{name} has reached its quota of {}: TRIM, destroy snapshots, or raise the quota",
        Human(*quota_bytes)
    )]
    Quota {
        /// Full name of the volume, or the name of the pool.
        name: String,
        /// The quota in bytes.
        quota_bytes: u64,
    },
    /// The pool has too little unreserved space for a reservation.
    #[error(
        "{name}: {what} needs {}, at most {} is unreserved; add a vdev or lower a reservation",
        Human(*needed_bytes),
        Human(*unreserved_bytes)
    )]
    CannotReserve {
        /// Full name of the volume, or the name of the pool.
        name: String,
        /// The reservation that the pool cannot grant.
        what: &'static str,
        /// Bytes that the reservation needs in addition to the bytes that are already reserved for
        /// the volume.
        needed_bytes: u64,
        /// Unreserved bytes of the pool.
        unreserved_bytes: u64,
    },
    /// The value of a property conflicts with the present use or with another property.
    #[error("{name}: {property} cannot be {}: {} is {why}", Human(*value), Human(*bound))]
    Limit {
        /// Full name of the volume, or the name of the pool.
        name: String,
        /// Name of the property.
        property: &'static str,
        /// Requested value in bytes.
        value: u64,
        /// The conflicting value in bytes.
        bound: u64,
        /// Meaning of the conflicting value.
        why: &'static str,
    },
    /// A change to a volume that is set read-only.
    #[error("volume {name} is read-only: set readonly=off to write")]
    WritesRefused {
        /// Full name of the volume.
        name: String,
    },
    /// A change to a snapshot: the caller opened the snapshot as a read-only volume
    /// (`Engine::open_snapshot`).
    #[error("{name} is a snapshot, which cannot be changed; clone it to write")]
    ReadOnly {
        /// Full name of the snapshot.
        name: String,
    },
    /// The snapshot does not exist.
    #[error("snapshot {name} does not exist")]
    NoSnapshot {
        /// Full name of the snapshot.
        name: String,
    },
    /// A snapshot of this name exists.
    #[error("snapshot {name} exists already")]
    SnapshotExists {
        /// Full name of the snapshot.
        name: String,
    },
    /// The receiving volume has a snapshot with the name of the stream's snapshot, but with another
    /// guid.
    #[error("snapshot {name} exists already and is not the one in the stream")]
    SnapshotClash {
        /// Full name of the snapshot.
        name: String,
    },
    /// The bookmark does not exist.
    #[error("bookmark {name} does not exist")]
    NoBookmark {
        /// Full name of the bookmark.
        name: String,
    },
    /// A bookmark of this name exists for another snapshot.
    #[error("bookmark {name} exists already, for another snapshot")]
    BookmarkExists {
        /// Full name of the bookmark.
        name: String,
    },
    /// Another object depends on the volume or snapshot.
    #[error("{name} {why}")]
    InUse {
        /// Full name of a volume or snapshot.
        name: String,
        /// The dependent object, and the remedy.
        why: String,
        /// Command that removes the dependency, if there is one.
        next: Option<String>,
    },
    /// A maximum number is reached.
    #[error("{name} already has {count} {what}, the maximum")]
    TooMany {
        /// Full name of a volume or snapshot.
        name: String,
        /// Present number of the objects of kind `what`.
        count: usize,
        /// Kind of the counted objects.
        what: &'static str,
    },
    /// The request does not fit this volume or snapshot.
    #[error("{name} {why}")]
    Unfit {
        /// Full name of a volume or snapshot.
        name: String,
        /// Reason and remedy.
        why: String,
    },
    /// The stream holds a whole volume, and a volume of this name exists.
    #[error(
        "volume {name} exists already, and the stream is not incremental: receive it under \
         another name"
    )]
    Taken {
        /// Full name of the volume.
        name: String,
    },
    /// The base snapshot of an incremental stream does not exist here.
    #[error(
        "{name} cannot receive this stream: it is incremental, and its base snapshot (guid \
         {guid}) does not exist here; send that snapshot first, or send from a base that both \
         sides have"
    )]
    NoFrom {
        /// Full name of the volume.
        name: String,
        /// Guid of the base snapshot.
        guid: u64,
    },
    /// The volume was written after the base snapshot of the stream.
    #[error("{name} was changed since @{snapshot}, the base of the stream")]
    Changed {
        /// Full name of the volume.
        name: String,
        /// The snapshot's own name.
        snapshot: String,
    },
    /// The stream is malformed or its checksum does not match.
    #[error("{name}: the stream was rejected and its changes were undone: {error}")]
    Stream {
        /// Full name of the volume.
        name: String,
        /// Frame number and reason.
        error: StreamError,
    },
    /// The stream ended before its end frame.
    #[error(
        "{name}: the stream was interrupted; the received part is kept. Resume with 'weir send -t \
         {token}', or discard it with 'weir receive --abort {name}'"
    )]
    CutOff {
        /// Full name of the volume.
        name: String,
        /// Resume position.
        token: ResumeToken,
    },
    /// The stream of another server would change a dataset here that this other server did not
    /// create.
    #[error(
        "{name} was not created by {address}, so that server may not change it. To allow it, run \
         on this server: weir set {property}={address} {name}"
    )]
    NotMarked {
        /// Full name of a volume or snapshot.
        name: String,
        /// User property that names the creator of a dataset.
        property: String,
        /// Address of the other server.
        address: IpAddr,
    },
    /// The other end of the stream aborted the stream.
    #[error("{name}: the other side aborted the stream")]
    GivenUp {
        /// Full name of a volume or snapshot.
        name: String,
    },
    /// The volume or snapshot is only partly readable.
    #[error("{name} {why}")]
    Broken {
        /// Full name of a volume or snapshot.
        name: String,
        /// The unreadable part, and the remedy.
        why: String,
    },
    /// The volume was destroyed while it was in use.
    #[error("volume {name} was destroyed")]
    Destroyed {
        /// Full name of the volume.
        name: String,
    },
}

impl DatasetError {
    /// The kind that protocols and the API map to their own codes.
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
            Self::Full { .. } | Self::Quota { .. } | Self::CannotReserve { .. } => {
                ErrorKind::NoSpace
            }
        }
    }
}
