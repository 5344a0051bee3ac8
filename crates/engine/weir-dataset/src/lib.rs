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

mod error;

// Rooms, lowest first: state comes before operations.
mod objects;
mod state;
mod accounting;
mod volume;
mod commit;
mod properties;
mod datasets;
mod snapshots;
mod copy;
mod streams;
mod topology;
mod scan;
mod damage;
mod advice;
mod open;

pub use accounting::check::WrongAccount;
pub use advice::advise::{Advisor, Estimate, RecordSample, SettingSample, Timing};
pub use advice::estimate::{DedupeCount, DedupeEstimate};
pub use commit::directory::LostDatasets;
pub use damage::find::{DamagedData, PoolDamage};
pub use error::DatasetError;
pub use objects::range_set::RangeSet;
pub use objects::record::VolumeSize;
pub use properties::change::{PropertiesOf, PropertyChange, PropertyTarget};
pub use snapshots::bookmarks::BookmarkId;
pub use snapshots::lookup::DatasetSpace;
pub use snapshots::take::SnapshotInfo;
pub use state::engine::{Engine, EngineOptions, VolumeSpec};
pub use state::mark::BookmarkInfo;
pub use state::outcome::Outcome;
pub use state::properties::{effective, found_at};
pub use state::snapshot::SnapshotId;
pub use state::taken_by::{TAKEN_BY, TakenBy};
pub use state::traffic::{Traffic, TrafficCounts};
pub use state::volume::{Volume, VolumeInfo, VolumeSpace};
pub use streams::digest::{DIGEST_BYTES, Digests};
pub use streams::receive::{Mark, ReceiveSpec, Received, Receiver};
pub use streams::send::{SendFrom, SendSpec, Sending};
pub use volume::extents::Extent;
pub use weir_base::property::Refreservation;
