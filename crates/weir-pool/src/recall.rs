//! The stored bytes of a block that no disk has any more, from the cache.
//!
//! Not here: which blocks are lost (copies), writing them back (repair).
//!
//! The cache holds blocks as clients and trees see them. So the stored form is made again, and
//! taken only if the checksum proves it: a compressor of another version may store the same content
//! in another form.
//!
//! Invariant: what is returned has the checksum of the block that was lost.

use weir_cache::CacheClass;
use weir_codec::compress::ZstdLevel;
use weir_format::{BlockPtr, Compression, PtrKind, RecordSize};

use crate::copies::proves;
use crate::live::Live;
use crate::pack::{CompressHistory, Packer};
use crate::pool::Pool;

/// The highest level of zstd that is tried: a mebibyte takes tens of milliseconds there, and half a
/// second at the highest of all.
const ZSTD_LEVEL_MAX: u8 = 9;

impl Pool {
    /// The stored bytes of a block, if the cache has all of its content.
    pub(crate) fn recall(&self, live: &Live) -> Option<Vec<u8>> {
        let (vseg, offset_units) = live.address?;
        let ptr = BlockPtr { kind: PtrKind::Data, vseg, offset_units, ..BlockPtr::default() };
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

/// The stored form of a record that has the block's length and checksum.
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
