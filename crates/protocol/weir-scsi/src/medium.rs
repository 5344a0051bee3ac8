//! What SCSI asks of the storage behind a logical unit, beyond what every block protocol does.
//!
//! Not here: the storage. The engine implements this; tests implement it in memory.
//!
//! Invariant: as of [`Export`].

use std::any::Any;

use weir_block::{Export, ExportFuture};

/// The storage of a logical unit.
pub trait Medium: Export {
    /// Fills a range with a pattern of 512 or 4096 bytes, stored once.
    ///
    /// # Durability
    /// None before [`Export::flush`], as for a write.
    fn write_same<'a>(
        &'a self,
        offset: u64,
        len_bytes: u64,
        pattern: &'a [u8],
    ) -> ExportFuture<'a, ()>;

    /// Makes `len_bytes` at `to` what `source` holds at `from`, by reference: no data moves.
    /// `false`, and nothing done, where that cannot be (another pool, ranges that are no whole
    /// records): the caller copies.
    ///
    /// # Durability
    /// On `Ok(true)` on stable media.
    fn clone_from<'a>(
        &'a self,
        source: &'a dyn Medium,
        from: u64,
        to: u64,
        len_bytes: u64,
    ) -> ExportFuture<'a, bool>;

    /// Bytes that can still be written to it, as far as its pool and quotas go.
    fn room_bytes(&self) -> u64;

    /// Bytes of it that are mapped: written and not unmapped. It may lag behind by a moment.
    fn mapped_bytes(&self) -> u64;

    /// Itself, for [`Medium::clone_from`] to see whether a source is of its own kind.
    fn as_any(&self) -> &dyn Any;
}
