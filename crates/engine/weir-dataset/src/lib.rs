//! Datasets and volumes of one pool: the engine's public interface.
//!
//! Disk I/O and placement are in weir-pool; the protocol crates and the API call this crate.
//!
//! Invariants:
//! - a write is acknowledged once it is in the open txg's dirty table, which gives the guarantee of
//!   a disk's volatile cache;
//! - a flush returns once every write acknowledged before the flush is in the intent log or in a
//!   committed txg, on every leg in use;
//! - after a crash a volume holds a prefix of its acknowledged changes that includes every flushed
//!   change, and each change is complete or absent ([`Volume::write`] defines a change);
//! - one number bounds the RAM for dirty data and caches.

mod error;

// Modules, lowest layer first: state comes before operations.
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
pub use commit::replay_objects::{LoggedObjectRecord, ObjectLayer, ReplayTarget};
pub use copy::record_copy::{RecordCopy, RecordCopyTurn};
pub use damage::named::{DamagedData, DamagedWhere, PoolDamage};
pub use error::DatasetError;
pub use objects::object_log::{LogOrder, ObjectRecord, SyncOf};
pub use objects::object_set::{ObjectChange, SlotBody, StoredRecord};
pub use objects::range_set::RangeSet;
pub use objects::record::{VolumeSize, ZERO_BLOCK};
pub use properties::change::{PropertiesOf, PropertyChange, PropertyTarget};
pub use snapshots::bookmarks::BookmarkId;
pub use snapshots::directory::ListedSnapshot;
pub use snapshots::lookup::DatasetSpace;
pub use snapshots::take::SnapshotInfo;
pub use state::engine::{Engine, EngineOptions, VolumeSpec};
pub use state::layer_memory::LayerMemory;
pub use state::mark::BookmarkInfo;
pub use state::outcome::Outcome;
pub use state::properties::{effective, found_at};
pub use state::snapshot::SnapshotId;
pub use state::taken_by::{TAKEN_BY, TakenBy};
pub use state::traffic::{Kind as TrafficKind, Traffic, TrafficCounts};
pub use state::volume::{Volume, VolumeInfo, VolumeSpace};
pub use streams::digest::{DIGEST_BYTES, DIGEST_OBJECTS, Digests};
pub use streams::receive::{Mark, ReceiveSpec, Received, Receiver};
pub use streams::send::{SendFrom, SendSpec, Sending};
pub use volume::extents::Extent;
pub use volume::object_data::DataRecords;
pub use volume::object_lists::FoundRanges;
pub use volume::objects::ObjectInMemory;
pub use volume::open_objects::OpenObjects;
pub use weir_base::property::Refreservation;
