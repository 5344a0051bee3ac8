//! On-disk structures of a pool: constants, encoders and decoders. Each structure is defined once.
//!
//! I/O is in weir-pool. The relations between structures are in weir-pool and weir-dataset.
//!
//! Invariants:
//! - integers are fixed-width and little-endian;
//! - every decoder accepts hostile bytes: it returns a [`FormatError`] and never panics;
//! - encoding a decoded structure of this format reproduces its bytes exactly (unused space is
//!   zero);
//! - a test prints the tables of `docs/format/README.md` from the `FIELDS` constants in this crate.

#![deny(clippy::indexing_slicing)]

mod bootstrap;
mod bytes;
mod compression;
mod damage;
mod dataset;
mod error;
mod features;
pub mod files;
pub mod label;
pub mod layout;
pub mod log;
mod node;
mod object_slot;
mod owner;
mod partial;
mod pointer;
mod properties;
mod reference;
mod remap;
mod segment;
pub mod stream;
mod summary;
mod uberblock;

pub use bootstrap::{Bootstrap, FREE_RUNS_MAX, FreeRun};
pub use bytes::Field;
pub use compression::{Codec, compression_of_code};
pub use damage::{DamageRecord, DamagedPart, DamagedRange, PoolPart};
pub use dataset::{
    ANCESTORS_MAX, Ancestor, BOOKMARKS_MAX, Bookmark, DatasetKind, DatasetRecord, DatasetState,
    Descent, HOLD_BYTES_MAX, HOLDS_MAX, ObjectTable, Origin, Receiving, SnapshotFields,
};
pub use error::FormatError;
pub use features::{Feature, Features};
pub use label::{Label, LegConfig, VDEVS_MAX, VdevConfig, VdevKind, VdevRole};
pub use node::{NODE_FANOUT, NODE_SHIFT, TreeRoot, node_pointer, set_node_pointer};
pub use object_slot::{OBJECT_SLOTS_PER_BLOCK, OBJECTS_MAX, ObjectSlot};
pub use owner::{OWNER_TEXT_BYTES_MAX, Owner};
pub use partial::PartialHeader;
pub use pointer::{BlockPtr, PtrKind};
pub use properties::{
    LOST_RANGES_MAX, PoolRecord, Properties, USER_BYTES_MAX, USER_NAME_BYTES_MAX,
    USER_PROPERTIES_MAX, USER_VALUE_BYTES_MAX,
};
pub use reference::{REFERENCES_MAX, ReferenceTable};
pub use remap::{RemapRun, RemapTable};
pub use segment::{SEGMENT_ENTRIES_PER_BLOCK, SegmentClass, SegmentEntry, SegmentState};
pub use summary::{BlockOwner, SEGMENT_BLOCKS_MAX, Summary, SummaryEntry, SummaryPlace};
pub use uberblock::{BootstrapCopy, ImportEpoch, LINEAGE_MAX, STALE_LEGS_MAX, StaleLeg, Uberblock};
pub use weir_base::Compression;

#[cfg(test)]
mod tests;
