//! Basics that all crates share: units, identifiers, error kinds, limits and clocks.
//!
//! I/O, buffers, protocols and on-disk layouts are in other crates.
//!
//! Invariants:
//! - this crate depends on no other crate of the workspace;
//! - public functions of other crates take these types, not bare integers, wherever a caller could
//!   confuse two arguments.

mod atomic_file;
pub mod clock;
mod compression;
pub mod error;
pub mod hash;
pub mod limits;
mod loop_device;
pub mod named_file;
pub mod names;
pub mod private;
pub mod property;
mod record_size;
pub mod log_limiter;
pub mod size;
mod slot;
pub mod units;

pub use atomic_file::replace_file;
pub use clock::{Clock, SystemClock};
pub use compression::{Compression, ZstdLevel};
pub use error::ErrorKind;
pub use log_limiter::{LINES_INTERVAL, LogLimiter};
pub use loop_device::file_behind;
pub use record_size::RecordSize;
pub use slot::Slot;
pub use units::{BLOCK_BYTES, BlockId, DatasetId, Guid, Lsn, ObjectId, PsegIndex, Txg, VsegId};
