//! The JSON types of version 1: what goes in and out of every call.
//!
//! Not here: how they travel (HTTP) or print (command line).
//!
//! Invariants:
//! - sizes are bytes, times are milliseconds since 1970 UTC, and the unit ends the field's name;
//! - identities are text: JavaScript cannot hold 64-bit numbers;
//! - an unknown field in a request is an error, so that a typing mistake is never ignored.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Error;

mod advise;
mod bookmark;
mod care;
mod compression;
mod damage;
mod event;
mod export;
mod flush;
mod io;
mod legs;
pub(crate) mod page;
mod pool;
mod property;
mod replication;
mod schedule;
mod snapshot;
mod space;
mod stream;
mod target;
mod token;
mod transfer;
mod vdevs;
mod volume;

pub use advise::{
    DedupeEstimate, DedupeForecast, RecordForecast, SampledShare, SampledTime, SettingForecast,
    VolumeAdvice, VolumeAdvise,
};
pub use bookmark::{
    Bookmark, BookmarkChange, BookmarkCreate, BookmarkDestroy, BookmarkList, check_marked,
};
pub use care::{
    PoolClear, PoolDisk, PoolOnline, PoolScrub, ScanKind, ScanState, ScanStatus, ScrubAction,
};
pub use compression::Compression;
pub use damage::{Damage, DamagedPart, DamagedRange};
pub use event::{Event, EventLevel, EventList, EventQuery, HistoryEntry, HistoryList};
pub use export::{Export, ExportChange, ExportCreate, ExportKey, ExportList, ExportSet, Protocol};
pub use flush::{FlushCheck, FlushVerdict, PoolCreated};
pub use io::{ClientIo, DiskIo, OpIo};
pub use legs::{PoolAttach, PoolReplace};
pub use page::gone;
pub use pool::{
    Allocated, DiskStatus, ErrorCounts, Health, ImportableList, ImportablePool, Leaving,
    PoolChange, PoolCreate, PoolDestroy, PoolExport, PoolImport, PoolList, PoolScan, PoolStatus,
    VdevKind, VdevRole, VdevSpec, VdevStatus,
};
pub use property::{
    PROPERTIES, Property, PropertyChange, PropertyInherit, PropertyKind, PropertyList,
    PropertyQuery, PropertySet, PropertySource, PropertySpec, PropertyValues, Setting,
    is_user_property,
};
pub use replication::{
    DigestList, DigestRequest, RECEIVED_FROM, REPLICA_TAG, REPLICATION_PREFIX, REPLICATION_TAG,
    Replication, ReplicationAct, ReplicationAction, ReplicationChange, ReplicationCreate,
    ReplicationList, ReplicationRemoved, ReplicationState, ReplicationWait, Verification,
    VerifyFailure,
};
pub use schedule::{
    Every, Keep, Schedule, ScheduleChange, ScheduleList, ScheduleSet, check_scheduled,
};
pub use snapshot::{
    Snapshot, SnapshotChange, SnapshotClone, SnapshotCreate, SnapshotDestroy, SnapshotList,
    SnapshotQuery, SnapshotRename, SnapshotRollback, SnapshotTag, SnapshotsDestroyed,
    TAKEN_BY_REPLICATION, TAKEN_BY_STREAM, check_listed,
};
pub use space::{CleanerStatus, PointerIo, SegmentIo};
pub use stream::{Stream, StreamDirection, StreamKey, StreamList};
pub use target::{
    ANYBODY, ChapAccount, InitiatorAllow, InitiatorKey, LUN_MAX, LunAdd, LunCounters, LunKey,
    NAME_PREFIX, Target, TargetChange, TargetCreate, TargetInitiator, TargetKey, TargetList,
    TargetLun, TargetSession, target_name,
};
pub use token::{Token, TokenCreate, TokenCreated, TokenKey, TokenList};
pub use transfer::{
    ReceiveDone, ReceiveProgress, ReceiveStart, ReceiveStarted, ReceiveToken, SendProgress,
    SendStart, SendStarted,
};
pub use vdevs::{PoolAdd, PoolRemove};
pub use volume::{
    Volume, VolumeChange, VolumeCopy, VolumeCreate, VolumeDestroy, VolumeList, VolumeRename,
    VolumeResize, VolumeSet, VolumeSpace, check_volume_size, record_size,
};

/// A request that can be judged without looking at any state.
pub trait Request {
    /// Finds what is wrong with the request itself.
    fn check(&self) -> Result<(), Error>;
}

/// What a changing call did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was made now.
    Created,
    /// It was there and is different now.
    Changed,
    /// It was there and is gone now.
    Removed,
    /// Everything was as asked for already.
    Unchanged,
}

/// The answer of a call that takes something away.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Removed {
    /// What the call did.
    pub outcome: Outcome,
    /// Name of what is gone.
    pub name: String,
}

/// How the memory of the server is split.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryUse {
    /// Resident memory of the process now.
    pub resident_bytes: u64,
    /// What it stays below.
    pub resident_max_bytes: u64,
    /// The parts; `dedupe` is a part of `pools`, and `process` comes on top of `--memory`.
    pub parts: Vec<MemoryPart>,
}

/// One part of the server's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MemoryPart {
    /// `connections`, `pools`, `dedupe` or `process`.
    pub name: String,
    /// Most that it takes.
    pub limit_bytes: u64,
    /// Bytes in use now, as far as they are counted.
    pub used_bytes: u64,
}

/// What the server process is and uses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerInfo {
    /// Version of Weir.
    pub version: String,
    /// Process number of the server.
    pub pid: u32,
    /// How long it has run.
    pub uptime_ms: u64,
    /// The memory it may use (`--memory`).
    pub memory_cap_bytes: u64,
    /// The part of that which caches and data not yet written use.
    pub memory_used_bytes: u64,
    /// How `--memory` is split, and what the process takes in all.
    #[serde(default)]
    pub memory: MemoryUse,
    /// Where it serves NBD, as `HOST:PORT` or `unix:PATH`.
    pub nbd_addresses: Vec<String>,
    /// Where it serves iSCSI, as `HOST:PORT,GROUP`.
    #[serde(default)]
    pub iscsi_portals: Vec<String>,
    /// How it reaches the disks: `io_uring`, or `polling` where the kernel refuses that.
    pub io_backend: String,
}
