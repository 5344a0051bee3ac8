//! Interface between a block protocol and the storage behind it.
//!
//! The engine implements these traits; tests implement them in memory.
//!
//! Invariants:
//! - offsets and lengths passed to an [`Export`] are multiples of 512 bytes and lie inside the
//!   [`Export::size_bytes`] that the connection got at its start; a length is never 0;
//! - the `try_` calls neither block nor wait. With these calls the task of a session serves most
//!   requests itself;
//! - a future stays on the thread that created it, and is polled to completion.

use std::net::IpAddr;
use std::sync::Arc;

use weir_base::ErrorKind;

use crate::Block;
use futures_util::future::LocalBoxFuture;

/// Error of the storage, which failed one request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ExportError {
    kind: ErrorKind,
    text: String,
}

impl ExportError {
    /// Creates an error of `kind`; the server may send `text` to the client.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// Kind of the error, by the action that the client can take.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// Range of bytes that is either completely allocated or completely a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len_bytes: u64,
    /// True if the range is a hole, which reads as zeros.
    pub hole: bool,
}

/// A running request to the storage.
pub type ExportFuture<'a, T> = LocalBoxFuture<'a, Result<T, ExportError>>;

/// Volume, as a connection uses it.
pub trait Export: Send + Sync + 'static {
    /// Size in bytes. A connection keeps the size that it received in its handshake.
    fn size_bytes(&self) -> u64;

    /// Preferred alignment and granularity of requests, a power of two from 512 bytes to 32 MiB.
    /// Before a write that is not aligned to it, the storage must read the adjacent data.
    fn block_bytes_preferred(&self) -> u32;

    /// True if the export refuses writes.
    fn read_only(&self) -> bool;

    /// Description of the export for users: one line, which may be empty.
    fn description(&self) -> String;

    /// Reads if this needs no I/O: fills `out` and returns true. Otherwise it returns false, and
    /// the content of `out` is undefined. `out` may contain stale bytes before the call.
    fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<bool, ExportError>;

    /// Reads whole blocks if this needs neither I/O nor a copy: appends a handle for each block of
    /// the range and returns true. Otherwise it returns false, and the content of `blocks` is
    /// undefined.
    fn try_share(
        &self,
        offset: u64,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Result<bool, ExportError>;

    /// Reads into `out`; waits for I/O where necessary.
    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ExportFuture<'a, ()>;

    /// Buffers the whole write in memory and returns true, or buffers nothing and returns false.
    ///
    /// # Durability
    /// The data is not durable before [`Export::flush`].
    fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, ExportError>;

    /// Writes the data; waits where necessary (throttling, or a read of a partly written block).
    ///
    /// # Durability
    /// The data is not durable before [`Export::flush`]. After an error, each byte of the range is
    /// old or new.
    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> ExportFuture<'a, ()>;

    /// Like [`Export::try_write`], for data in whole blocks. If it returns true, it has taken the
    /// blocks out of `blocks`.
    fn try_write_blocks(&self, offset: u64, blocks: &mut Vec<Block>) -> Result<bool, ExportError>;

    /// Like [`Export::write`], for data in whole blocks.
    fn write_blocks(&self, offset: u64, blocks: Vec<Block>) -> ExportFuture<'_, ()>;

    /// Like [`Export::try_write`], but writes zeros; with `punch`, the storage may free the space.
    fn try_zero(&self, offset: u64, len_bytes: u64, punch: bool) -> Result<bool, ExportError>;

    /// Like [`Export::write`], but writes zeros; with `punch`, the storage may free the space.
    fn zero(&self, offset: u64, len_bytes: u64, punch: bool) -> ExportFuture<'_, ()>;

    /// True if zeroing is faster than writing zero bytes.
    fn zero_is_fast(&self, punch: bool) -> bool;

    /// Makes all operations durable that completed before this call, on any connection to the
    /// volume.
    ///
    /// # Durability
    /// On `Ok`, every write, zero and trim that had returned `Ok` before the call is on stable
    /// media.
    fn flush(&self) -> ExportFuture<'_, ()>;

    /// Reads a range into the cache, as far as the storage considers this useful.
    fn cache(&self, offset: u64, len_bytes: u64) -> ExportFuture<'_, ()>;

    /// Allocation of the range that starts at `offset`: at least one and at most `max` extents. The
    /// last extent may end before or after `offset + len_bytes`.
    fn extents(&self, offset: u64, len_bytes: u64, max: usize) -> ExportFuture<'_, Vec<Extent>>;
}

/// Exports of a server. In its functions, `from` is the address of the client; `None` for a client
/// of a unix socket.
pub trait Exports: Send + Sync + 'static {
    /// Calls `show` with each export name that the client may open, in ascending order, until
    /// `show` returns false. Starts with the first name after `after`; the empty string precedes
    /// all names. This function copies no list, because a server can have thousands of names.
    fn names_after(&self, after: &str, from: Option<IpAddr>, show: &mut dyn FnMut(&str) -> bool);

    /// Opens an export. The export counts as in use until the last clone of the result is dropped.
    /// For an export that the client may not open, returns the same error as for a missing export.
    fn open(&self, name: &str, from: Option<IpAddr>) -> Result<Arc<dyn Export>, ExportError>;
}
