//! What every other crate shares: units, identifiers, error kinds, limits and clocks.
//!
//! Not here: anything that does I/O, allocates buffers or knows a protocol or an on-disk layout.
//!
//! Invariants:
//! - depends on no other crate of the workspace;
//! - a public function elsewhere takes these types, not a bare integer, where two could be mixed
//!   up.

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
pub mod sieve;
pub mod size;
mod slot;
pub mod units;

pub use atomic_file::replace_file;
pub use clock::{Clock, SystemClock};
pub use compression::{Compression, ZstdLevel};
pub use error::ErrorKind;
pub use loop_device::file_behind;
pub use record_size::RecordSize;
pub use sieve::{LINES_INTERVAL, Sieve};
pub use slot::Slot;
pub use units::{BLOCK_BYTES, BlockId, DatasetId, Guid, Lsn, PsegIndex, Txg, VsegId};
