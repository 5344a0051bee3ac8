//! Storage operations that only SCSI needs. [`Export`] has the operations of all block protocols.
//!
//! The engine implements this trait for volumes; tests implement it for memory.
//!
//! Invariant: the invariants of [`Export`] also hold for each medium.

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

    /// Makes `len_bytes` at offset `to` share the blocks of `source` at offset `from`, without
    /// copying data. Returns `false` and changes nothing if the blocks cannot be shared: the
    /// volumes are in different pools, or the ranges are not whole records. The caller then copies
    /// the data instead.
    ///
    /// # Durability
    /// If it returns `Ok(true)`, the change is on stable media.
    fn clone_from<'a>(
        &'a self,
        source: &'a dyn Medium,
        from: u64,
        to: u64,
        len_bytes: u64,
    ) -> ExportFuture<'a, bool>;

    /// Bytes that clients can still write, within the limits of the medium's pool and quotas.
    fn room_bytes(&self) -> u64;

    /// Mapped bytes: bytes that were written and not unmapped afterwards. The value may be slightly
    /// out of date.
    fn mapped_bytes(&self) -> u64;

    /// Returns `self` as [`Any`], so that [`Medium::clone_from`] can check that the source has the
    /// same Rust type as the destination.
    fn as_any(&self) -> &dyn Any;
}
