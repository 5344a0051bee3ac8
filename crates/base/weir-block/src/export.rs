//! The interface between a block protocol and the storage behind it.
//!
//! The engine implements these traits; tests implement them in memory.
//!
//! Invariants:
//! - offsets and lengths passed to an [`Export`] are multiples of 512 and inside
//!   [`Export::size_bytes`] at the time of the connection; a length is never 0;
//! - the `try_` calls neither block nor wait; they serve most requests, on the session's task;
//! - a future stays on the thread that made it and is polled to completion.

use std::net::IpAddr;
use std::sync::Arc;

use weir_base::ErrorKind;

use crate::Block;
use futures_util::future::LocalBoxFuture;

/// Error of the storage for one request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ExportError {
    kind: ErrorKind,
    text: String,
}

impl ExportError {
    /// Creates an error of `kind`; `text` may be sent to the client.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// Kind of the error, by the action that the caller can take.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// A range of bytes that is either allocated or a hole as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// True for a hole, which reads as zeros.
    pub hole: bool,
}

/// A request in progress.
pub type ExportFuture<'a, T> = LocalBoxFuture<'a, Result<T, ExportError>>;

/// One volume, as a connection uses it.
pub trait Export: Send + Sync + 'static {
    /// Size in bytes. A connection keeps the size that it got during its handshake.
    fn size_bytes(&self) -> u64;

    /// Preferred alignment and granularity of requests: a write that is not aligned to it must read
    /// the adjacent data first. A power of two from 512 to 32 MiB.
    fn block_bytes_preferred(&self) -> u32;

    /// True if writes are refused.
    fn read_only(&self) -> bool;

    /// One line of description for users; may be empty.
    fn description(&self) -> String;

    /// Reads without I/O if possible: fills `out` and returns true. Otherwise it returns false, and
    /// the content of `out` is undefined. `out` may have stale bytes before the call.
    fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<bool, ExportError>;

    /// Reads whole blocks without I/O or a copy if possible: appends a handle for each block of the
    /// range and returns true. Otherwise it returns false, and the content of `blocks` is
    /// undefined.
    fn try_share(
        &self,
        offset: u64,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Result<bool, ExportError>;

    /// Reads into `out`.
    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ExportFuture<'a, ()>;

    /// Buffers a whole write in memory and returns true, or buffers nothing and returns false.
    ///
    /// # Durability
    /// None before [`Export::flush`].
    fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, ExportError>;

    /// Writes; waits where necessary (throttle, read of a partly written block).
    ///
    /// # Durability
    /// None before [`Export::flush`]. After an error the range holds old or new bytes.
    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> ExportFuture<'a, ()>;

    /// Like [`Export::try_write`], for whole blocks. If it returns true, it has taken the blocks
    /// out of `blocks`.
    fn try_write_blocks(&self, offset: u64, blocks: &mut Vec<Block>) -> Result<bool, ExportError>;

    /// Like [`Export::write`], for whole blocks.
    fn write_blocks(&self, offset: u64, blocks: Vec<Block>) -> ExportFuture<'_, ()>;

    /// Like [`Export::try_write`], for zeros; `punch` allows the storage to free the space.
    fn try_zero(&self, offset: u64, len_bytes: u64, punch: bool) -> Result<bool, ExportError>;

    /// Like [`Export::write`], for zeros; `punch` allows the storage to free the space.
    fn zero(&self, offset: u64, len_bytes: u64, punch: bool) -> ExportFuture<'_, ()>;

    /// True if zeroing is faster than writing zero bytes.
    fn zero_is_fast(&self, punch: bool) -> bool;

    /// Makes all operations durable that completed before this call, on any connection.
    ///
    /// # Durability
    /// On `Ok`, every write, zero and trim that had returned `Ok` before the call is on stable
    /// media.
    fn flush(&self) -> ExportFuture<'_, ()>;

    /// Reads a range into the cache as far as that is useful.
    fn cache(&self, offset: u64, len_bytes: u64) -> ExportFuture<'_, ()>;

    /// Allocation from `offset` on: at least one and at most `max` extents. The last extent may end
    /// before or after `offset + len_bytes`.
    fn extents(&self, offset: u64, len_bytes: u64, max: usize) -> ExportFuture<'_, Vec<Extent>>;
}

/// The exports of a server. `from` is the address of the client; `None` for a client of a unix
/// socket.
pub trait Exports: Send + Sync + 'static {
    /// Calls `show` with each name that the client may open, in ascending order, until `show`
    /// returns false. Starts with the first name after `after`; the empty string precedes all
    /// names. It does not copy the list, which may have thousands of names.
    fn names_after(&self, after: &str, from: Option<IpAddr>, show: &mut dyn FnMut(&str) -> bool);

    /// Opens an export. It counts as in use until the last clone of the result is dropped. An
    /// export that the client may not open returns the same error as a missing one.
    fn open(&self, name: &str, from: Option<IpAddr>) -> Result<Arc<dyn Export>, ExportError>;
}
