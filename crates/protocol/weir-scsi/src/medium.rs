//! Storage operations that only SCSI needs, in addition to [`Export`] for every block protocol.
//!
//! The engine implements this trait; tests implement it in memory.
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

    /// Makes the `len_bytes` at `to` share the blocks of `source` at `from`, without copying data.
    /// Returns `false` and changes nothing if the blocks cannot be shared: the volumes are in
    /// different pools, or the ranges are not whole records. The caller then copies the data.
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

    /// Bytes that can still be written within the limits of the medium's pool and quotas.
    fn room_bytes(&self) -> u64;

    /// Mapped bytes: written and not unmapped since. The value may lag behind briefly.
    fn mapped_bytes(&self) -> u64;

    /// `self` as [`Any`], so that [`Medium::clone_from`] can check that the source has its own
    /// type.
    fn as_any(&self) -> &dyn Any;
}
