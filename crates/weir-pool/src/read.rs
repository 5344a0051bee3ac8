//! Reading blocks: translate, read, verify, decompress. Verification happens here and nowhere
//! else.
//!
//! Not here: which pointer to read (tree), and the choice among legs (vdev).
//!
//! Invariants:
//! - I4: bytes returned for a pointer hashed to its checksum when they were read from disk;
//! - the segment a block stands in is pinned from translation to the end of the read, so its place
//!   cannot be reused under the reader.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use weir_cache::CacheClass;
use weir_codec::checksum;
use weir_device::{Block, BlockMut, IoBuf};
use weir_format::{BlockPtr, Codec, PtrKind};

use crate::error::PoolError;
use crate::planted::PlantedBug;
use crate::pool::Pool;
use crate::segments::Pinned;

/// Longest single device read that neighbouring blocks are gathered into.
pub(crate) const RUN_BYTES_MAX: u64 = 1 << 20;
/// Gap between two blocks that is read along rather than skipped.
pub(crate) const RUN_GAP_BYTES_MAX: u64 = 16 << 10;

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
        let (buf, start) = self.read_stored(ptr, first).await?;
        let block = self.unpack(ptr, &buf[start..start + ptr.stored_bytes()])?;
        self.cache.insert(Self::class(ptr), ptr, block.clone());
        Ok(block)
    }

    /// The verified stored bytes of one block: a buffer and where they start in it.
    pub(crate) async fn read_stored(
        &self,
        ptr: &BlockPtr,
        first: Option<usize>,
    ) -> Result<(IoBuf, usize), PoolError> {
        let place = self.locate(ptr).await?;
        let vdev = &self.vdevs[usize::from(place.vdev)];
        let first = first.unwrap_or_else(|| vdev.next_leg());
        let verify = |bytes: &[u8]| self.verify(ptr, bytes);
        self.count_read(ptr, ptr.stored_bytes());
        vdev.read_verified(first, place.at, ptr.stored_bytes(), verify).await
    }

    /// Counts a read whose first block is this pointer's.
    fn count_read(&self, first: &BlockPtr, bytes: usize) {
        self.reads[first.kind as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Reads many blocks, neighbours together; results in the order of `ptrs`.
    pub async fn read_blocks(&self, ptrs: &[BlockPtr]) -> Vec<Result<Block, PoolError>> {
        let mut results: Vec<Option<Result<Block, PoolError>>> =
            ptrs.iter().map(|ptr| self.cached(ptr).map(Ok)).collect();
        let mut missing: Vec<Wanted<'_>> = Vec::new();
        for index in 0..ptrs.len() {
            if results[index].is_none() {
                match self.locate(&ptrs[index]).await {
                    Ok(place) => missing.push(Wanted { index, ptr: ptrs[index], place }),
                    Err(error) => results[index] = Some(Err(error)),
                }
            }
        }
        let reads = split_runs(missing, |wanted| wanted).into_iter().map(|run| async move {
            let mut blocks = Vec::with_capacity(run.len());
            self.read_run(&run, |wanted, stored| {
                let block = stored.and_then(|(buf, range)| self.unpack(&wanted.ptr, &buf[range]));
                if let Ok(block) = &block {
                    self.cache.insert(Self::class(&wanted.ptr), &wanted.ptr, block.clone());
                }
                blocks.push((wanted.index, block));
            })
            .await;
            blocks
        });
        for (index, block) in futures_util::future::join_all(reads).await.into_iter().flatten() {
            results[index] = Some(block);
        }
        results.into_iter().map(|r| r.expect("every pointer was cached or read")).collect()
    }

    /// The verified bytes of many blocks as they are stored, neighbours read together; results in
    /// the order of `ptrs`. Nothing of it is kept in the cache.
    pub async fn read_stored_blocks(&self, ptrs: &[BlockPtr]) -> Vec<Result<Stored, PoolError>> {
        let mut results: Vec<Option<Result<Stored, PoolError>>> = Vec::new();
        results.resize_with(ptrs.len(), || None);
        let mut missing: Vec<Wanted<'_>> = Vec::new();
        for (index, ptr) in ptrs.iter().enumerate() {
            // The cache holds blocks as clients see them, which is how raw ones are stored.
            let raw = (ptr.codec == Codec::Raw).then(|| self.cached(ptr)).flatten();
            if let Some(block) = raw {
                results[index] = Some(Ok(Stored(Bytes::Cached(block))));
                continue;
            }
            match self.locate(ptr).await {
                Ok(place) => missing.push(Wanted { index, ptr: *ptr, place }),
                Err(error) => results[index] = Some(Err(error)),
            }
        }
        let reads = split_runs(missing, |wanted| wanted).into_iter().map(|run| async move {
            let mut blocks = Vec::with_capacity(run.len());
            self.read_run(&run, |wanted, stored| {
                let stored = stored.map(|(buf, range)| Stored(Bytes::Read(Arc::clone(buf), range)));
                blocks.push((wanted.index, stored));
            })
            .await;
            blocks
        });
        for (index, stored) in futures_util::future::join_all(reads).await.into_iter().flatten() {
            results[index] = Some(stored);
        }
        results.into_iter().map(|r| r.expect("every pointer was cached or read")).collect()
    }

    /// The block that these bytes were stored as; `None` where they are none: they may come from
    /// anywhere.
    pub fn unpack_stored(&self, codec: Codec, stored: &[u8]) -> Option<Block> {
        let mut block = BlockMut::zeroed();
        self.unpackers.unpack(codec, stored, &mut block).ok()?;
        Some(block.freeze())
    }

    /// One device read for a run of neighbours, the verified stored bytes of each to `each`; a
    /// block that fails falls back to its own verified read, which tries every leg.
    async fn read_run(
        &self,
        run: &[Wanted<'_>],
        mut each: impl FnMut(&Wanted<'_>, Result<(&Arc<IoBuf>, Range<usize>), PoolError>),
    ) {
        let raw = match run {
            [first, .., last] => self.read_span(first, last).await,
            _ => None,
        };
        let raw = raw.map(|(leg, buf, start)| (leg, Arc::new(buf), start));
        for wanted in run {
            let ptr = &wanted.ptr;
            let from_run = raw.as_ref().and_then(|(_, buf, start)| {
                let at = start + (wanted.place.at - run[0].place.at) as usize;
                let range = at..at + ptr.stored_bytes();
                let verified =
                    buf.get(range.clone()).is_some_and(|stored| self.verify(ptr, stored));
                verified.then_some((buf, range))
            });
            if let Some(found) = from_run {
                each(wanted, Ok(found));
                continue;
            }
            let leg = raw.as_ref().map(|(leg, ..)| *leg);
            match self.read_stored(ptr, leg).await {
                Ok((buf, start)) => {
                    each(wanted, Ok((&Arc::new(buf), start..start + ptr.stored_bytes())));
                }
                Err(error) => each(wanted, Err(error)),
            }
        }
    }

    /// The raw bytes from the first to the last block of a run: leg asked, buffer, start in it.
    pub(crate) async fn read_span(
        &self,
        first: &Wanted<'_>,
        last: &Wanted<'_>,
    ) -> Option<(usize, IoBuf, usize)> {
        let vdev = &self.vdevs[usize::from(first.place.vdev)];
        let (start, end) = (first.place.at, last.end());
        let leg = vdev.next_leg();
        let len = (end - start) as usize;
        self.count_read(&first.ptr, len);
        let (buf, within) = vdev.read_unverified(leg, start, len).await.ok()?;
        Some((leg, buf, within))
    }

    /// Where a block is, its segment pinned.
    pub(crate) async fn locate(&self, ptr: &BlockPtr) -> Result<Pinned<'_>, PoolError> {
        let place = self.translated(|segments| segments.locate(ptr)).await?;
        place.ok_or_else(|| self.no_segment(ptr))
    }

    pub(crate) fn no_segment(&self, ptr: &BlockPtr) -> PoolError {
        PoolError::NoSegment { pool: self.label.name.clone(), vseg: ptr.vseg }
    }

    pub(crate) fn verify(&self, ptr: &BlockPtr, stored: &[u8]) -> bool {
        self.bug == PlantedBug::SkipChecksum || checksum::xxh3_128(stored) == ptr.checksum
    }

    fn unpack(&self, ptr: &BlockPtr, stored: &[u8]) -> Result<Block, PoolError> {
        let mut block = BlockMut::zeroed();
        let unpacked = self.unpackers.unpack(ptr.codec, stored, &mut block);
        // The checksum matched, so these bytes are what was written: a fault of the writer.
        unpacked.map(|()| block.freeze()).map_err(|_| PoolError::Structure {
            pool: self.label.name.clone(),
            what: "compressed block",
            source: weir_format::FormatError::Truncated { what: "block" },
        })
    }
}

/// The verified bytes of a block as they are stored; others of the same read share their buffer.
pub struct Stored(Bytes);

enum Bytes {
    Cached(Block),
    Read(Arc<IoBuf>, Range<usize>),
}

impl Deref for Stored {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Bytes::Cached(block) => &block[..],
            Bytes::Read(buf, range) => &buf[range.clone()],
        }
    }
}

/// A block to be read from disk; its place is pinned.
pub(crate) struct Wanted<'a> {
    /// The caller's number for it.
    pub(crate) index: usize,
    pub(crate) ptr: BlockPtr,
    pub(crate) place: Pinned<'a>,
}

impl Wanted<'_> {
    pub(crate) fn end(&self) -> u64 {
        self.place.at + self.ptr.stored_bytes() as u64
    }
}

/// Sorts blocks by place and cuts them into runs of neighbours of at most [`RUN_BYTES_MAX`].
pub(crate) fn split_runs<'p, T>(
    mut blocks: Vec<T>,
    wanted: impl for<'t> Fn(&'t T) -> &'t Wanted<'p>,
) -> Vec<Vec<T>> {
    blocks.sort_unstable_by_key(|block| (wanted(block).place.vdev, wanted(block).place.at));
    let mut runs: Vec<Vec<T>> = Vec::new();
    for block in blocks {
        let next = &wanted(&block).place;
        let joins = |run: &&mut Vec<T>| {
            let (first, last) = (wanted(&run[0]), wanted(&run[run.len() - 1]));
            next.vdev == first.place.vdev
                && next.at <= last.end() + RUN_GAP_BYTES_MAX
                && next.at - first.place.at < RUN_BYTES_MAX
        };
        match runs.last_mut().filter(joins) {
            Some(run) => run.push(block),
            None => runs.push(vec![block]),
        }
    }
    runs
}
