//! Disks as Weir sees them: one trait, the buffers that go through it, and the real disks.
//!
//! Not here: redundancy, layout, caching (weir-pool, weir-cache) and simulated disks (weir-sim).
//!
//! Invariants:
//! - a future of a [`Device`] stays on the thread that made it, and is polled to completion: a
//!   dropped one leaves the kernel writing into a buffer nobody waits for, so the buffer is owned
//!   by the operation, never borrowed;
//! - a buffer handed to a device is aligned for direct I/O, whatever the disk;
//! - no operation is retried here. A failed flush stays failed; the caller decides.

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
mod submit;
mod watch;
mod watched;

pub use backend::{IoBackend, io_backend, new_runtime};
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
pub use watch::{DiskFigures, DiskOp, DiskWatch, OpFigures};
pub use watched::WatchedDevice;
