//! Recreates the stored bytes of a lost block from the cache.
//!
//! Not here: detection of lost blocks (copies), writing them back (repair).
//!
//! The cache holds blocks uncompressed, so this module compresses them again. The module returns
//! the result only if the checksum matches: another version of the compressor may store the same
//! content in other bytes.
//!
//! Invariant: the returned bytes have the checksum of the lost block.

use weir_base::{RecordSize, ZstdLevel};
use weir_cache::CacheClass;
use weir_format::{BlockPtr, Compression, PtrKind};

use crate::scan::copies::proves;
use crate::state::compression::{CompressHistory, Packer};
use crate::state::pool::Pool;
use crate::tree::live::Live;

/// Highest zstd level to try. This level compresses a mebibyte in tens of milliseconds; the highest
/// level of zstd takes half a second.
const ZSTD_LEVEL_MAX: u8 = 9;

impl Pool {
    /// Returns the stored bytes of a block if the cache has all of its content.
    pub(crate) fn recall(&self, live: &Live) -> Option<Vec<u8>> {
        let (vseg, offset_units) = live.address?;
        // The cache finds a block by the address of its record and its index in the record. The
        // record size is unknown here.
        let (kind, record) = (PtrKind::Data, RecordSize::MAX);
        let ptr = BlockPtr { kind, vseg, offset_units, record, ..BlockPtr::default() };
        let of_class = |class| {
            let parts = 0..RecordSize::MAX.blocks() as usize;
            let blocks: Vec<_> =
                parts.map_while(|part| self.cache.peek(class, &ptr, part)).collect();
            let raw: Vec<u8> = blocks.iter().flat_map(|block| block.iter().copied()).collect();
            RecordSize::from_bytes(raw.len() as u64).and_then(|_| stored_as(&raw, live))
        };
        of_class(CacheClass::Data).or_else(|| of_class(CacheClass::Node))
    }
}

/// Returns the stored form of `raw` that has the block's length and checksum.
fn stored_as(raw: &[u8], live: &Live) -> Option<Vec<u8>> {
    let is_right = |stored: &[u8]| stored.len() == live.len && proves(live.proof, stored);
    if raw.len() == live.len {
        return is_right(raw).then(|| raw.to_vec());
    }
    let levels = ZstdLevel::all().filter(|level| level.get() <= ZSTD_LEVEL_MAX);
    let zstd = std::iter::once(ZstdLevel::DEFAULT).chain(levels).map(Compression::Zstd);
    let mut packer = Packer::default();
    std::iter::once(Compression::Lz4).chain(zstd).find_map(|compression| {
        let (stored, _) = packer.pack(raw, compression, &mut CompressHistory::default());
        is_right(stored).then(|| stored.to_vec())
    })
}
