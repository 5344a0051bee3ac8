//! What a block protocol asks of the storage behind it.
//!
//! Not here: the storage. The engine implements these traits; tests implement them in memory.
//!
//! Invariants:
//! - offsets and lengths handed to an [`Export`] are multiples of 512 and lie inside
//!   [`Export::size_bytes`] as it was when the connection was made; a length is never 0;
//! - the `try_` calls neither block nor wait; they run for most requests, on the session's task;
//! - a future stays on the thread that made it and is polled to completion.

use std::net::IpAddr;
use std::sync::Arc;

use weir_base::ErrorKind;

use crate::Block;
use futures_util::future::LocalBoxFuture;

/// The storage said no to a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct ExportError {
    kind: ErrorKind,
    text: String,
}

impl ExportError {
    /// An error of `kind`; `text` may be shown to the client.
    pub fn new(kind: ErrorKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into() }
    }

    /// What the caller can do about it.
    pub const fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// A run of bytes that is all allocated or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// How long it is.
    pub len_bytes: u64,
    /// True where nothing is stored and zeros are read.
    pub hole: bool,
}

/// A request under way.
pub type ExportFuture<'a, T> = LocalBoxFuture<'a, Result<T, ExportError>>;

/// One volume as a connection sees it.
pub trait Export: Send + Sync + 'static {
    /// Its size; a connection goes by what it was at the handshake.
    fn size_bytes(&self) -> u64;

    /// What requests should be multiples of, in length and offset, to be done without reading what
    /// is around them: a power of two from 512 to 32 MiB.
    fn block_bytes_preferred(&self) -> u32;

    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// A line for people; may be empty.
    fn description(&self) -> String;

    /// Reads without I/O if that is possible: fills `out` and returns true, or returns false and
    /// leaves anything in `out`, which holds stale bytes before the call.
    fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<bool, ExportError>;

    /// Reads whole blocks without I/O or a copy if that is possible: appends a handle for each
    /// block of the range and returns true, or returns false and leaves anything in `blocks`.
    fn try_share(
        &self,
        offset: u64,
        len_bytes: u64,
        blocks: &mut Vec<Block>,
    ) -> Result<bool, ExportError>;

    /// Reads into `out`.
    fn read<'a>(&'a self, offset: u64, out: &'a mut [u8]) -> ExportFuture<'a, ()>;

    /// Takes all of a write into memory and returns true, or nothing of it and returns false.
    ///
    /// # Durability
    /// None before [`Export::flush`].
    fn try_write(&self, offset: u64, data: &[u8]) -> Result<bool, ExportError>;

    /// Writes, waiting where it must (throttle, read of a partly written block).
    ///
    /// # Durability
    /// None before [`Export::flush`]. After an error the range holds old or new bytes.
    fn write<'a>(&'a self, offset: u64, data: &'a [u8]) -> ExportFuture<'a, ()>;

    /// As [`Export::try_write`], for whole blocks, which it keeps if it returns true.
    fn try_write_blocks(&self, offset: u64, blocks: &mut Vec<Block>) -> Result<bool, ExportError>;

    /// As [`Export::write`], for whole blocks.
    fn write_blocks(&self, offset: u64, blocks: Vec<Block>) -> ExportFuture<'_, ()>;

    /// As [`Export::try_write`], for zeros; `punch` lets the space be given back.
    fn try_zero(&self, offset: u64, len_bytes: u64, punch: bool) -> Result<bool, ExportError>;

    /// As [`Export::write`], for zeros; `punch` lets the space be given back.
    fn zero(&self, offset: u64, len_bytes: u64, punch: bool) -> ExportFuture<'_, ()>;

    /// Whether zeroing is faster than writing as many zero bytes.
    fn zero_is_fast(&self, punch: bool) -> bool;

    /// Makes durable what completed before this call, on any connection.
    ///
    /// # Durability
    /// On `Ok` every write, zero and trim that had returned `Ok` before the call is on stable
    /// media.
    fn flush(&self) -> ExportFuture<'_, ()>;

    /// Brings a range into the cache, as far as that makes sense.
    fn cache(&self, offset: u64, len_bytes: u64) -> ExportFuture<'_, ()>;

    /// What is allocated, from `offset` on: at least one and at most `max` extents, of which the
    /// last may end before or after `offset + len_bytes`.
    fn extents(&self, offset: u64, len_bytes: u64, max: usize) -> ExportFuture<'_, Vec<Extent>>;
}

/// The exports of a server. `from` is the address of the client that asks; `None` over a unix
/// socket.
pub trait Exports: Send + Sync + 'static {
    /// Calls `show` with each name that the client may open, in ascending order, until `show`
    /// returns false. Begins with the first name after `after`; the empty string is before all of
    /// them. No copy of the list is made: it may have thousands of names.
    fn names_after(&self, after: &str, from: Option<IpAddr>, show: &mut dyn FnMut(&str) -> bool);

    /// Opens one; it counts as in use until the last clone of the result is dropped. One that the
    /// client may not open is answered like one that does not exist.
    fn open(&self, name: &str, from: Option<IpAddr>) -> Result<Arc<dyn Export>, ExportError>;
}
