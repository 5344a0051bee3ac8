//! The pool: labels, vdevs, segments, intent log and transaction group commit.
//!
//! Not here: volumes and their dirty data (weir-dataset); this crate stores blocks and commits
//! trees it is handed.
//!
//! Invariants (design 10; each is asserted where it could break):
//! - I1 no committed pointer leads to a row that was not flushed before the uberblock;
//! - I2 a virtual segment number is never reused;
//! - I3 a physical segment is not written again while an uberblock of the last three txgs, or a
//!   reader, refers to it;
//! - I5 the live bytes of a segment are the sum of the blocks that committed pointers refer to;
//!   and, where the cleaner moved them, the blocks that stand in it;
//! - no pointer is rewritten to move a block: a cleaned segment keeps its number and gets a table;
//! - a block that several pointers lead to is counted once, and freed with the last of them;
//! - I6 a log batch that is acknowledged is durable on every leg that is not faulted;
//! - after a failed flush on the last good leg nothing is acknowledged any more: the pool is
//!   poisoned until it is imported again.

mod apply;
mod areas;
mod change;
mod check;
mod checksum_errors;
mod clean;
mod cleanings;
mod commit;
mod confirm;
mod copies;
mod create;
mod damage;
mod dedupe;
mod entries;
mod error;
mod found;
mod hedge;
mod hints;
mod import;
mod intent_log;
mod labels;
mod late;
mod legs;
mod line;
mod live;
mod losses;
mod lost_nodes;
mod lost_tables;
mod moment;
mod moves;
mod moving;
mod own_scan;
mod own_trees;
mod owner;
mod pack;
mod partial;
mod pinned;
mod planted;
mod pool;
mod read;
mod reads;
mod recall;
mod recount;
mod references;
mod repair;
mod replay;
mod reserve;
mod root_copies;
mod sanity;
mod scan;
mod segments;
mod slow;
mod status;
mod tables;
mod trace;
mod tree;
mod unshared;
mod vdev;
mod vdevs;
mod write_out;

pub use change::{Becomes, Change, LeafRun, filled};
pub use check::WrongCount;
pub use cleanings::{Cleaned, CleanerStatus};
pub use commit::{CommitInput, write_directory_block};
pub use create::{CreateOptions, VdevSpec, check_create, create};
pub use damage::DamageList;
pub use dedupe::{Hinted, Looked};
pub use error::{BlockPlace, PoolError};
pub use hints::{HintFigures, SLOT_BYTES as HINT_BYTES};
pub use import::{Discovered, ImportOptions, Imported, discover, import};
pub use intent_log::LogWriteError;
pub use late::LateDisk;
pub use legs::{DetachedLeg, Replacement};
pub use line::{Held, Line, LostOwners, Roots, Version};
pub use lost_nodes::DiskPlace;
pub use moment::PoolMoment;
pub use own_trees::{LostPart, LostTables, OwnPlace, OwnTree, WholeTree};
pub use owner::{Identity, refuse_owned};
pub use pack::{CompressHistory, RawRecord};
pub use partial::PartialRecord;
pub use planted::PlantedBug;
pub use pool::{Pool, PoolOptions};
pub use read::{Blocks, RecordPart, Stored};
pub use reads::Reads;
pub use recount::RecountPlan;
pub use references::{Shared, Sharing};
pub use reserve::Reserve;
pub use scan::{
    PlannedSegment, ScanKind, ScanPace, ScanPlace, ScanPlan, ScanState, ScanStatus, SegmentScan,
};
pub use segments::SpaceUse;
pub use slow::Slowness;
pub use status::{LegState, LegStatus, PoolHealth, PoolStatus, VdevStatus};
pub use tables::TableMemory;
pub use trace::{Traced, Tracer};
pub use tree::{Delta, Leaf, Past, Tree, TreeHome};
pub use unshared::{Found, TreeOf, Units, Unshared, Walk};
pub use vdevs::Evacuation;
pub use write_out::WriteOut;
