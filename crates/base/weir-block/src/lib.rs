//! Blocks in memory, buffers for I/O and replies, and the interface between a block protocol and
//! its storage.
//!
//! Disks are in weir-device, sockets in weir-net.
//!
//! Invariant: this crate uses no async runtime, so that its users need no runtime either.

mod arena;
mod blocks;
mod export;
mod io_buffer;
mod keyed_copy;
mod reply_buffer;

pub use arena::{Arena, Block, BlockMut};
pub use blocks::Blocks;
pub use export::{Export, ExportError, ExportFuture, Exports, Extent};
pub use io_buffer::IoBuf;
pub use keyed_copy::copy_with_key;
pub use reply_buffer::OutBuf;
