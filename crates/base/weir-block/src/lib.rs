//! Blocks in memory, buffers for I/O and replies, and the interface between a block protocol and
//! the storage behind it.
//!
//! Not here: disks (weir-device), sockets (weir-net).
//!
//! Invariant: no async runtime: a user of a buffer needs none.

mod arena;
mod export;
mod io_buffer;
mod reply_buffer;

pub use arena::{Arena, Block, BlockMut};
pub use export::{Export, ExportError, ExportFuture, Exports, Extent};
pub use io_buffer::IoBuf;
pub use reply_buffer::OutBuf;
