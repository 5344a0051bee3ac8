//! Datasets and volumes of one pool: the engine's public interface.
//!
//! Not here: how blocks reach disks (weir-pool), and who asks (protocols, the API).
//!
//! Invariants:
//! - a write is acknowledged when it is in the open txg's dirty table: the promise of a disk's
//!   volatile cache;
//! - a flush returns when every write acknowledged before it is in the intent log or in a
//!   committed txg, on every leg in use;
//! - after a crash a volume holds a prefix of its acknowledged changes that includes every flushed
//!   one, each of them whole ([`Volume::write`] says what is one);
//! - RAM for dirty data and caches is bounded by one number.

mod accounts;
mod advise;
mod block_map;
mod bookmarks;
mod clone_range;
mod commit;
mod copy;
mod core;
mod damage;
mod digest;
mod directory;
mod dirty;
mod engine;
mod error;
mod estimate;
mod extents;
mod flush;
mod freeing;
mod leaves;
mod legs;
mod limits;
mod lookup;
mod partial;
mod pressure;
mod properties;
mod range_set;
mod receive;
mod records;
mod recount;
mod replay;
mod scan;
mod send;
mod snapshot;
mod snapshots;
mod taken_by;
mod timer;
mod traffic;
mod unique;
mod vdevs;
mod volume;
mod volume_read;
mod write;
mod write_same;
mod write_table;

pub use accounts::WrongAccount;
pub use advise::{Advisor, Estimate, RecordSample, SettingSample, Timing};
pub use bookmarks::{BookmarkId, BookmarkInfo};
pub use damage::{DamagedData, PoolDamage};
pub use digest::{DIGEST_BYTES, Digests};
pub use directory::LostDatasets;
pub use engine::{Engine, EngineOptions, Outcome, VolumeSpec};
pub use error::DatasetError;
pub use estimate::{DedupeCount, DedupeEstimate};
pub use extents::Extent;
pub use lookup::DatasetSpace;
pub use properties::{
    DEFAULT_COMPRESSION, PropertiesOf, PropertyChange, PropertyTarget, Refreservation,
};
pub use range_set::RangeSet;
pub use receive::{Mark, ReceiveSpec, Received, Receiver};
pub use records::VolumeSize;
pub use send::{SendFrom, SendSpec, Sending};
pub use snapshots::{SnapshotId, SnapshotInfo};
pub use taken_by::{TAKEN_BY, TakenBy};
pub use traffic::{Traffic, TrafficCounts};
pub use volume::{Volume, VolumeInfo, VolumeSpace};
