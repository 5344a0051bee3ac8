//! Storage pool: labels, vdevs, segments, the intent log and txg commits.
//!
//! weir-dataset has the volumes with their dirty data, and passes the changed trees to a commit.
//!
//! Invariants (ARCHITECTURE.md has more; an assertion checks each where the code could break it):
//! - I1 a committed pointer refers only to rows that were flushed before the uberblock;
//! - I2 a virtual segment number that a committed txg used is never assigned again;
//! - I3 an address is not rewritten while a reader or one of the last four uberblocks refers to it;
//! - I5 the live bytes of a segment are the sum of its referenced blocks and of blocks moved into
//!   it; a block with several references counts once and is freed with its last reference;
//! - I6 a logged batch is durable on every leg that the newest uberblock does not list as stale;
//! - I23 after a failed flush on the last good leg the pool acknowledges nothing more (`poison`).

mod options;
mod error;
mod planted_bugs;

// Modules, lowest layer first: state comes before operations.
mod segments;
mod disks;
mod log;
mod state;
mod read;
mod tree;
mod topology;
mod txg;
mod scan;
mod damage;
mod cleaner;
mod import;

pub use cleaner::status::CleanerStatus;
pub use damage::recount::RecountPlan;
pub use disks::layout::VdevSpec;
pub use disks::leg_state::LegState;
pub use disks::scan_kind::ScanKind;
pub use disks::slowness::Slowness;
pub use error::{BlockAddress, PoolError};
pub use import::create::{CreateOptions, check_create, create};
pub use import::late_disks::LateDisk;
pub use import::open_pool::{Discovered, Imported, discover, import};
pub use import::options::ImportOptions;
pub use import::reads::Reads;
pub use log::intent_log::LogWriteError;
pub use options::PoolOptions;
pub use planted_bugs::PlantedBug;
pub use read::records::{RecordPart, Stored};
pub use scan::segment_scan::{PlannedSegment, ScanPlan, SegmentScan};
pub use segments::entries::SpaceUse;
pub use segments::lost_part::LostPart;
pub use segments::reserve::Reserve;
pub use segments::tables::TableMemory;
pub use state::claim::Identity;
pub use state::cleaner_statistics::Cleaned;
pub use state::compression::CompressHistory;
pub use state::damage::DamageList;
pub use state::dedupe_index::{HintFigures, SLOT_BYTES as HINT_BYTES};
pub use state::lost_nodes::DiskAddress;
pub use state::lost_nodes::WrongCount;
pub use state::moment::HistoryPoint;
pub use state::pool::Pool;
pub use state::scans::{ScanPace, ScanPlace, ScanState, ScanStatus};
pub use topology::claim::refuse_owned;
pub use topology::legs::{DetachedLeg, Replacement};
pub use topology::status::{LegStatus, PoolHealth, PoolStatus, VdevStatus};
pub use topology::vdevs::Evacuation;
pub use tree::change::{Change, LeafRun, NewContents, filled};
pub use tree::dataset_diff::{DatasetDiff, DiffSpec, Units};
pub use tree::delta::Delta;
pub use tree::diff::Found;
pub use tree::kind::TreeOf;
pub use tree::metadata_trees::{LostTables, MetadataTree, OwnPlace, WholeTree};
pub use tree::place::{Objects, Place};
pub use tree::radix_tree::{EarlierSnapshots, Leaf, Tree, TreeKind};
pub use tree::snapshot_chain::{LostOwners, Roots, SharedBirths, SnapshotChain, Version};
pub use tree::trace::{Traced, Tracer};
pub use txg::commit::{CommitInput, write_directory_block};
pub use txg::dedupe::{Candidate, Lookup};
pub use txg::partial::PartialRecord;
pub use txg::sharing::{Shared, Sharing};
pub use txg::write_out::WriteOut;
