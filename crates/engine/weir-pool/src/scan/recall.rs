//! Recreates the stored bytes of a lost block from the cache.
//!
//! Not here: detection of lost blocks (copies), writing them back (repair).
//!
//! The cache holds blocks uncompressed, so this module compresses them again. The module returns
//! the result only if the checksum matches: another version of the compressor may store the same
//! content in other bytes.
//!
//! Invariant: the returned bytes have the checksum of the lost block.

use weir_base::ZstdLevel;
use weir_block::Blocks;
use weir_cache::CacheClass;
use weir_format::{BlockPtr, Compression};

use crate::scan::copies::proves;
use crate::state::compression::{CompressHistory, Packer, StoredForm};
use crate::state::pool::Pool;
use crate::tree::live::Live;

/// Highest zstd level to try. This level compresses a mebibyte in tens of milliseconds; the highest
/// level of zstd takes half a second.
const ZSTD_LEVEL_MAX: u8 = 9;

impl Pool {
    /// Returns the stored bytes of a block if the cache has all of its content.
    pub(crate) fn recall(&self, live: &Live) -> Option<Vec<u8>> {
        let (vseg, offset_units) = live.address?;
        let address = BlockPtr { vseg, offset_units, ..BlockPtr::default() }.address();
        let of_class = |class| {
            let blocks = self.cache.peek(class, address)?;
            stored_as(&blocks, live)
        };
        of_class(CacheClass::Data).or_else(|| of_class(CacheClass::Node))
    }
}

/// Returns the stored form of a record that has the block's length and checksum.
fn stored_as(record: &Blocks, live: &Live) -> Option<Vec<u8>> {
    let is_right = |stored: &Vec<u8>| stored.len() == live.len && proves(live.proof, stored);
    if record.size().bytes() == live.len {
        return Some(StoredForm::from(record).to_vec()).filter(is_right);
    }
    let levels = ZstdLevel::all().filter(|level| level.get() <= ZSTD_LEVEL_MAX);
    let zstd = std::iter::once(ZstdLevel::DEFAULT).chain(levels).map(Compression::Zstd);
    let mut packer = Packer::default();
    std::iter::once(Compression::Lz4).chain(zstd).find_map(|compression| {
        let (stored, _) = packer.pack(record, compression, &mut CompressHistory::default());
        Some(stored.to_vec()).filter(is_right)
    })
}
