//! Reading blocks: translate, read, verify, decompress. Verification happens here and nowhere
//! else.
//!
//! Not here: which pointer to read (tree), and the choice among legs (vdev).
//!
//! Invariants:
//! - I4: bytes returned for a pointer hashed to its checksum when they were read from disk;
//! - a segment is pinned from translation to the end of the read, so its place cannot be reused
//!   under the reader.

use weir_base::BLOCK_BYTES;
use weir_cache::CacheClass;
use weir_codec::{checksum, compress};
use weir_device::{Block, BlockMut};
use weir_format::{BlockPtr, Compression, PtrKind};

use crate::error::PoolError;
use crate::planted::PlantedBug;
use crate::pool::Pool;

/// Longest single device read that neighbouring blocks are gathered into.
const RUN_BYTES_MAX: u64 = 1 << 20;
/// Gap between two blocks that is read along rather than skipped.
const RUN_GAP_BYTES_MAX: u64 = 16 << 10;

impl Pool {
    /// The block a pointer leads to if no I/O is needed: from the cache.
    pub fn cached(&self, ptr: &BlockPtr) -> Option<Block> {
        self.cache.get(Self::class(ptr), ptr)
    }

    fn class(ptr: &BlockPtr) -> CacheClass {
        match ptr.kind {
            PtrKind::Node => CacheClass::Node,
            PtrKind::Data | PtrKind::Hole => CacheClass::Data,
        }
    }

    /// The block a pointer leads to; not for holes.
    ///
    /// # Errors
    /// `Damaged` when no leg has the right bytes, `NoSegment` when the pointer is older than the
    /// segment's life (the caller's root is out of date: look the block up again).
    pub async fn read_block(&self, ptr: &BlockPtr) -> Result<Block, PoolError> {
        if let Some(block) = self.cached(ptr) {
            return Ok(block);
        }
        self.read_block_from_disk(ptr, None).await
    }

    /// `first`: the leg to ask first, if that matters.
    async fn read_block_from_disk(
        &self,
        ptr: &BlockPtr,
        first: Option<usize>,
    ) -> Result<Block, PoolError> {
        assert!(!ptr.is_hole(), "a hole is nowhere on disk");
        let pinned = self.segments.pin(ptr.vseg).ok_or_else(|| self.no_segment(ptr))?;
        let vdev = &self.vdevs[usize::from(pinned.vdev)];
        let at = vdev.base + pinned.start + ptr.offset_bytes();
        let len = ptr.stored_bytes();
        let first = first.unwrap_or_else(|| vdev.next_leg());
        let verify = |bytes: &[u8]| self.verify(ptr, bytes);
        let (buf, start) = vdev.read_verified(first, at, len, verify).await?;
        let block = self.unpack(ptr, &buf[start..start + len])?;
        self.cache.insert(Self::class(ptr), ptr, block.clone());
        Ok(block)
    }

    /// Reads many blocks, neighbours together; results in the order of `ptrs`.
    pub async fn read_blocks(&self, ptrs: &[BlockPtr]) -> Vec<Result<Block, PoolError>> {
        let mut results: Vec<Option<Result<Block, PoolError>>> =
            ptrs.iter().map(|ptr| self.cached(ptr).map(Ok)).collect();
        let mut missing: Vec<usize> = (0..ptrs.len()).filter(|i| results[*i].is_none()).collect();
        missing.sort_unstable_by_key(|i| ptrs[*i].address());
        let runs: Vec<&[usize]> =
            missing.chunk_by(|a, b| Self::adjoin(&ptrs[*a], &ptrs[*b])).collect();
        let reads = runs.iter().flat_map(|run| split_run(run, ptrs)).map(|run| async move {
            let blocks = self.read_run(run, ptrs).await;
            run.iter().copied().zip(blocks).collect::<Vec<_>>()
        });
        for (index, block) in futures_util::future::join_all(reads).await.into_iter().flatten() {
            results[index] = Some(block);
        }
        results.into_iter().map(|r| r.expect("every pointer was cached or read")).collect()
    }

    pub(crate) fn adjoin(a: &BlockPtr, b: &BlockPtr) -> bool {
        let end = a.offset_bytes() + a.stored_bytes() as u64;
        a.vseg == b.vseg && b.offset_bytes() <= end + RUN_GAP_BYTES_MAX
    }

    /// One device read for a run of neighbours; a block that fails falls back to its own verified
    /// read, which tries every leg.
    async fn read_run(&self, run: &[usize], ptrs: &[BlockPtr]) -> Vec<Result<Block, PoolError>> {
        let (first, last) = (&ptrs[run[0]], &ptrs[run[run.len() - 1]]);
        let raw = if run.len() > 1 { self.read_span(first, last).await } else { None };
        let mut blocks = Vec::with_capacity(run.len());
        for index in run {
            let ptr = &ptrs[*index];
            let from_run = raw.as_ref().and_then(|(_, buf, start)| {
                let at = start + (ptr.offset_bytes() - first.offset_bytes()) as usize;
                let stored = buf.get(at..at + ptr.stored_bytes())?;
                self.verify(ptr, stored).then(|| self.unpack(ptr, stored))
            });
            blocks.push(match from_run {
                Some(block) => block.inspect(|block| {
                    self.cache.insert(Self::class(ptr), ptr, block.clone());
                }),
                None => {
                    let leg = raw.as_ref().map(|(leg, ..)| *leg);
                    self.read_block_from_disk(ptr, leg).await
                }
            });
        }
        blocks
    }

    /// The raw bytes from the first to the last block of a run: leg asked, buffer, start in it.
    async fn read_span(
        &self,
        first: &BlockPtr,
        last: &BlockPtr,
    ) -> Option<(usize, weir_device::IoBuf, usize)> {
        let pinned = self.segments.pin(first.vseg)?;
        let vdev = &self.vdevs[usize::from(pinned.vdev)];
        let at = vdev.base + pinned.start + first.offset_bytes();
        let len = last.offset_bytes() + last.stored_bytes() as u64 - first.offset_bytes();
        let leg = vdev.next_leg();
        let (buf, within) = vdev.read_unverified(leg, at, len as usize).await.ok()?;
        Some((leg, buf, within))
    }

    fn no_segment(&self, ptr: &BlockPtr) -> PoolError {
        PoolError::NoSegment { pool: self.label.name.clone(), vseg: ptr.vseg }
    }

    pub(crate) fn verify(&self, ptr: &BlockPtr, stored: &[u8]) -> bool {
        self.bug == PlantedBug::SkipChecksum || checksum::xxh3_128(stored) == ptr.checksum
    }

    fn unpack(&self, ptr: &BlockPtr, stored: &[u8]) -> Result<Block, PoolError> {
        let mut block = BlockMut::zeroed();
        let unpacked = match ptr.compression {
            Compression::Off => stored.first_chunk::<BLOCK_BYTES>().map(|raw| *block = *raw),
            Compression::Lz4 => compress::unlz4(stored, &mut block[..]).ok(),
        };
        // The checksum matched, so these bytes are what was written: a fault of the writer.
        unpacked.map(|()| block.freeze()).ok_or_else(|| PoolError::Structure {
            pool: self.label.name.clone(),
            what: "compressed block",
            source: weir_format::FormatError::Truncated { what: "block" },
        })
    }
}

/// Cuts a run into pieces of at most [`RUN_BYTES_MAX`].
pub(crate) fn split_run<'r>(run: &'r [usize], ptrs: &[BlockPtr]) -> Vec<&'r [usize]> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for index in 1..=run.len() {
        let full = index == run.len()
            || ptrs[run[index]].offset_bytes() - ptrs[run[start]].offset_bytes() >= RUN_BYTES_MAX;
        if full {
            pieces.push(&run[start..index]);
            start = index;
        }
    }
    pieces
}
