//! Disks: the `Device` trait, and its implementations for files, block devices and tests.
//!
//! Redundancy, layout and caching are in weir-pool and weir-cache, simulated disks in weir-sim.
//!
//! Invariants:
//! - a future of a [`Device`] stays on the thread that created it, and is polled to completion. If
//!   a caller drops a future, the kernel may still write into its buffer; therefore an operation
//!   owns its buffer and never borrows it;
//! - a buffer that is passed to a device is aligned for direct I/O, whatever the kind of the disk;
//! - this crate never retries an operation. A failed flush is an error, and the caller decides what
//!   to do about it.

mod backend;
mod device;
mod fault;
mod file;
mod flush_probe;
mod flush_verdict;
mod medium;
mod memory;
mod open;
mod overlay;
mod probe;
mod recent;
mod submit;
mod watch;
mod watched;

pub use backend::{IoBackend, block_on, io_backend, new_runtime};
pub use device::{
    Device, DeviceError, DeviceOp, DeviceStats, Durability, Geometry, IoFuture, ReadFuture,
};
pub use fault::{FaultDevice, Faults};
pub use file::FileDevice;
pub use flush_probe::{FLUSH_PROBE_BYTES, FlushFigures, probe_flushes};
pub use flush_verdict::FlushVerdict;
pub use medium::{CacheMode, Medium, MediumKind};
pub use memory::MemoryDevice;
pub use open::OpenMode;
pub use overlay::Overlay;
pub use probe::{PROBE_BYTES, probe_content, probe_device};
pub use recent::{RECENT_INTERVAL, RecentTimes};
pub use watch::{DiskFigures, DiskOp, DiskWatch, OpFigures};
pub use watched::WatchedDevice;
