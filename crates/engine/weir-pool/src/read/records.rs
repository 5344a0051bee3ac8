//! Record reads: translate the pointer, read, verify, decompress. All reads of clients and trees
//! are verified here.
//!
//! Not here: the choice of the pointer (`tree`), the choice of the leg (`vdev`).
//!
//! Invariants:
//! - I4: bytes returned for a pointer matched its checksum when they were read from disk;
//! - the segment that holds a block is pinned from translation to the end of the read, so that its
//!   space is not reused during the read.

use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use async_recursion::async_recursion as boxed;
use weir_base::{ErrorKind, RecordSize};
use weir_block::{Block, BlockMut, Blocks, IoBuf};
use weir_cache::CacheClass;
use weir_codec::checksum;
use weir_format::{BlockPtr, Codec, FormatError, PtrKind};

use crate::error::{BlockAddress, PoolError};
use crate::planted_bugs::PlantedBug;
use crate::segments::pinned::Pinned;
use crate::state::pool::Pool;

/// Maximum length of one device read of several neighbouring blocks.
pub(crate) const RUN_BYTES_MAX: u64 = 1 << 20;
/// Maximum gap between two blocks that are read with one device read.
pub(crate) const RUN_GAP_BYTES_MAX: u64 = 16 << 10;

/// One block to read: number `part` of the record that `ptr` refers to. The pointer is no hole, and
/// its record size was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordPart {
    /// Pointer to the record.
    pub ptr: BlockPtr,
    /// Index of the block; less than the number of blocks in the record.
    pub part: usize,
}

impl Pool {
    /// Returns a block from the cache; `None` if reading it needs I/O.
    pub fn cached(&self, ptr: &BlockPtr, part: usize) -> Option<Block> {
        self.cached_record(ptr)?.get(part).cloned()
    }

    /// Returns the blocks of a record from the cache; `None` if reading them needs I/O.
    pub fn cached_record(&self, ptr: &BlockPtr) -> Option<Blocks> {
        // A damage marker has the address of an unreadable node, not of this block.
        if ptr.is_damaged() {
            return None;
        }
        self.cache.get(Self::class(ptr), ptr)
    }

    /// Adds the blocks of a record to the cache. The caller has verified them against the record's
    /// pointer, or is about to write them under that pointer.
    pub(crate) fn keep_blocks(&self, ptr: &BlockPtr, blocks: &Blocks) {
        self.cache.insert(Self::class(ptr), ptr, blocks.clone());
    }

    fn class(ptr: &BlockPtr) -> CacheClass {
        Self::class_of(ptr.kind)
    }

    pub(crate) const fn class_of(kind: PtrKind) -> CacheClass {
        match kind {
            PtrKind::Node | PtrKind::Damaged { .. } => CacheClass::Node,
            PtrKind::Data | PtrKind::Hole => CacheClass::Data,
        }
    }

    /// Reads a record of one block. The pointer must not be a hole.
    ///
    /// # Errors
    /// `Damaged`: no leg has the right bytes. `NoSegment`: the segment no longer exists, because
    /// the caller's root is out of date; the caller must look the block up again. `SegmentLost` and
    /// `TableLost`: the metadata that locates the block was lost.
    pub async fn read_block(&self, ptr: &BlockPtr) -> Result<Block, PoolError> {
        self.check_record(ptr, RecordSize::BLOCK)?;
        if let Some(block) = self.cached(ptr, 0) {
            return Ok(block);
        }
        Ok(self.read_from_disk(ptr).await?[0].clone())
    }

    /// Refuses a pointer whose record size is not `size`: Weir did not write the node that contains
    /// the pointer.
    pub fn check_record(&self, ptr: &BlockPtr, size: RecordSize) -> Result<(), PoolError> {
        if ptr.record == size || ptr.is_hole() {
            return Ok(());
        }
        let (what, value) = ("block pointer", u64::from(ptr.record.shift()));
        let source = FormatError::Field { what, field: "record size", value };
        Err(self.bad_block(ptr, what, source))
    }

    /// Error of a block with a right checksum and an invalid content.
    pub(crate) fn bad_block(
        &self,
        ptr: &BlockPtr,
        what: &'static str,
        source: FormatError,
    ) -> PoolError {
        let pinned = self.segments.locate(ptr).ok().flatten();
        let place = pinned.map(|pinned| BlockAddress { vdev: pinned.vdev, offset: pinned.at });
        PoolError::Structure { pool: self.label.name.clone(), what, place, source }
    }

    /// Reads the blocks of a record. The pointer must not be a hole.
    ///
    /// # Errors
    /// As [`Self::read_block`]; `PartLost` for a partial record whose other blocks cannot be read.
    pub async fn read_record(&self, ptr: &BlockPtr) -> Result<Blocks, PoolError> {
        if ptr.is_partial() {
            let known = self.read_partial(ptr).await?;
            return self.completed(known).await.map(Blocks::from);
        }
        match self.cached_record(ptr) {
            Some(blocks) => Ok(blocks),
            None => self.read_from_disk(ptr).await,
        }
    }

    /// Reads the blocks of a record from disk. Neither uses nor fills the cache.
    ///
    /// # Errors
    /// As [`Self::read_block`]; `PartLost` for a partial record.
    pub async fn read_fresh(&self, ptr: &BlockPtr) -> Result<Blocks, PoolError> {
        let (buf, start) = self.read_stored(ptr, None).await?;
        self.refuse_partial(ptr)?;
        self.unpack(ptr, &buf[start..start + ptr.stored_bytes()])
    }

    #[boxed(?Send)]
    async fn read_from_disk(&self, ptr: &BlockPtr) -> Result<Blocks, PoolError> {
        assert!(!ptr.is_hole(), "a hole is nowhere on disk");
        let (buf, start) = self.read_stored(ptr, None).await?;
        let blocks = self.unpack(ptr, &buf[start..start + ptr.stored_bytes()])?;
        self.keep_blocks(ptr, &blocks);
        Ok(blocks)
    }

    /// Reads the verified stored bytes of one record. Returns a buffer and the offset of the bytes
    /// in it.
    pub(crate) async fn read_stored(
        &self,
        ptr: &BlockPtr,
        first: Option<usize>,
    ) -> Result<(IoBuf, usize), PoolError> {
        let place = self.locate(ptr).await?;
        self.count_read(ptr, ptr.stored_bytes());
        self.read_placed(&place, ptr, first).await
    }

    /// Reads the stored bytes at a pinned address and verifies their checksum. Tries the leg
    /// `first` before the other legs. Returns a buffer and the offset of the bytes in it.
    pub(crate) async fn read_placed(
        &self,
        place: &Pinned<'_>,
        ptr: &BlockPtr,
        first: Option<usize>,
    ) -> Result<(IoBuf, usize), PoolError> {
        let (vdev, len) = (&self.vdevs[usize::from(place.vdev)], ptr.stored_bytes());
        let first = first.unwrap_or_else(|| vdev.next_leg());
        let verify = |bytes: &[u8]| self.verify(ptr, bytes);
        let error = match vdev.read_verified(first, place.at, len, verify).await {
            Err(error) if error.kind() == ErrorKind::Data => error,
            read => return read,
        };
        for (vdev, at) in place.copies().into_iter().skip(1).flatten() {
            let vdev = &self.vdevs[usize::from(vdev)];
            if let Ok(read) = vdev.read_verified(first, at, len, verify).await {
                tracing::warn!(vdev = place.vdev, at = place.at, "read from another copy");
                self.want_new_roots();
                return Ok(read);
            }
        }
        self.distrust(ptr.address());
        Err(error)
    }

    /// Records that no good copy of a block was found; dedupe no longer refers to the block.
    pub(crate) fn distrust(&self, address: u64) {
        if self.bug != PlantedBug::HintOutlivesDamage {
            self.dedupe_index.lock().distrust(address);
        }
    }

    /// Counts the bytes of a read in the class of its first block.
    fn count_read(&self, first: &BlockPtr, bytes: usize) {
        self.reads[Self::class(first) as usize].fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Reads many blocks. Neighbouring blocks share a device read, and consecutive parts of one
    /// record are read once. Results are in the order of `parts`.
    pub async fn read_parts(&self, parts: &[RecordPart]) -> Vec<Result<Block, PoolError>> {
        let mut results: Vec<Option<Result<Block, PoolError>>> = Vec::with_capacity(parts.len());
        for of_record in parts.chunk_by(|a, b| a.ptr == b.ptr) {
            let cached = self.cached_record(&of_record[0].ptr);
            let block = |part: usize| cached.as_ref()?.get(part).cloned();
            results.extend(of_record.iter().map(|RecordPart { part, .. }| block(*part).map(Ok)));
        }
        let mut missing: Vec<Wanted<'_>> = Vec::new();
        // True if all parts since the last wanted part belong to the same record as the wanted
        // part.
        let mut comes_along = false;
        for index in 0..parts.len() {
            let RecordPart { ptr, part } = parts[index];
            if ptr.is_partial() {
                results[index] = Some(self.read_known_part(&ptr, part).await);
                comes_along = false;
                continue;
            }
            comes_along &= index > 0 && parts[index - 1].ptr.address() == ptr.address();
            if results[index].is_none() && !comes_along {
                match self.locate(&ptr).await {
                    Ok(place) => {
                        missing.push(Wanted { index, ptr, place });
                        comes_along = true;
                    }
                    Err(error) => results[index] = Some(Err(error)),
                }
            }
        }
        let reads = split_runs(missing, |wanted| wanted).into_iter().map(|run| async move {
            let mut blocks = Vec::with_capacity(run.len());
            self.read_run(&run, |wanted, stored| {
                let read = stored.and_then(|(buf, range)| self.unpack(&wanted.ptr, &buf[range]));
                if let Ok(read) = &read {
                    self.keep_blocks(&wanted.ptr, read);
                }
                blocks.push((wanted.index, read));
            })
            .await;
            blocks
        });
        for (first, read) in futures_util::future::join_all(reads).await.into_iter().flatten() {
            let of_one = |part: &&RecordPart| part.ptr.address() == parts[first].ptr.address();
            let count = parts[first..].iter().take_while(of_one).count();
            for (result, part) in results[first..].iter_mut().zip(&parts[first..]).take(count) {
                result.get_or_insert_with(|| match &read {
                    Ok(blocks) => Ok(blocks[part.part].clone()),
                    Err(error) => Err(error.clone()),
                });
            }
        }
        results.into_iter().map(|r| r.expect("every block was cached or read")).collect()
    }

    /// Reads the first block of each record with [`Self::read_parts`]. A tree node has only one
    /// block.
    pub async fn read_blocks(&self, ptrs: &[BlockPtr]) -> Vec<Result<Block, PoolError>> {
        let parts: Vec<RecordPart> =
            ptrs.iter().map(|ptr| RecordPart { ptr: *ptr, part: 0 }).collect();
        self.read_parts(&parts).await
    }

    /// Reads the verified stored bytes of many records; neighbours share a device read. Results are
    /// in the order of `ptrs`. The cache is not filled.
    pub async fn read_stored_blocks(&self, ptrs: &[BlockPtr]) -> Vec<Result<Stored, PoolError>> {
        let mut results: Vec<Option<Result<Stored, PoolError>>> = Vec::new();
        results.resize_with(ptrs.len(), || None);
        let mut missing: Vec<Wanted<'_>> = Vec::new();
        for (index, ptr) in ptrs.iter().enumerate() {
            // The cache holds uncompressed blocks, which equal the stored form of raw blocks.
            let is_block = ptr.codec == Codec::Raw && ptr.record.is_block();
            let raw = is_block.then(|| self.cached(ptr, 0)).flatten();
            if let Some(block) = raw {
                results[index] = Some(Ok(Stored(Bytes::Cached(block))));
                continue;
            }
            if ptr.is_partial() {
                results[index] = Some(Err(self.part_lost()));
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

    /// Decompresses the stored bytes of a record; `None` if they are invalid. The bytes may come
    /// from an untrusted source.
    pub fn unpack_stored(&self, size: RecordSize, codec: Codec, stored: &[u8]) -> Option<Blocks> {
        if size.is_block() {
            let mut block = BlockMut::zeroed();
            self.unpackers.unpack(codec, stored, &mut block[..]).ok()?;
            return Some(Blocks::One(block.freeze()));
        }
        let unpacked;
        let raw = if codec == Codec::Raw {
            stored.get(..size.bytes())?
        } else {
            let mut bytes = vec![0; size.bytes()];
            self.unpackers.unpack(codec, stored, &mut bytes).ok()?;
            unpacked = bytes;
            &unpacked
        };
        let (blocks, _) = raw.as_chunks();
        Some(Blocks::from(Block::copies_of(blocks)))
    }

    /// Reads a run of neighbours with one device read and passes the verified stored bytes of each
    /// block to `each`. A block that fails its checksum is read again alone, from every leg if
    /// necessary.
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

    /// Reads the unverified bytes from the first to the last block of a run. Returns the leg that
    /// was tried first, a buffer and the offset of the bytes in it.
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

    /// Address of a block, with its segment pinned.
    pub(crate) async fn locate(&self, ptr: &BlockPtr) -> Result<Pinned<'_>, PoolError> {
        if ptr.is_damaged() {
            return Err(self.bad_marker());
        }
        let place = self.translated(|segments| segments.locate(ptr)).await?;
        place.ok_or_else(|| self.no_segment(ptr))
    }

    pub(crate) fn no_segment(&self, ptr: &BlockPtr) -> PoolError {
        let (pool, vseg) = (self.label.name.clone(), ptr.vseg);
        if self.segments.is_lost(vseg) {
            PoolError::SegmentLost { pool, vseg }
        } else {
            PoolError::NoSegment { pool, vseg }
        }
    }

    pub(crate) fn verify(&self, ptr: &BlockPtr, stored: &[u8]) -> bool {
        self.bug == PlantedBug::SkipChecksum || checksum::xxh3_128(stored) == ptr.checksum
    }

    fn unpack(&self, ptr: &BlockPtr, stored: &[u8]) -> Result<Blocks, PoolError> {
        let unpacked = self.unpack_stored(ptr.record, ptr.codec, stored);
        // The checksum matched, so the disk returned the written bytes: the writer stored invalid
        // content.
        unpacked.ok_or_else(|| {
            self.bad_block(ptr, "compressed block", FormatError::Truncated { what: "block" })
        })
    }
}

/// Verified stored bytes of a record. Records of one device read share its buffer.
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

/// Record to read from disk, with its pinned address.
pub(crate) struct Wanted<'a> {
    /// Index that the caller assigned.
    pub(crate) index: usize,
    pub(crate) ptr: BlockPtr,
    pub(crate) place: Pinned<'a>,
}

impl Wanted<'_> {
    pub(crate) fn end(&self) -> u64 {
        self.place.at + self.ptr.stored_bytes() as u64
    }
}

/// Sorts blocks by address and splits them into runs of neighbours of at most [`RUN_BYTES_MAX`].
pub(crate) fn split_runs<'p, T>(
    mut blocks: Vec<T>,
    wanted: impl for<'t> Fn(&'t T) -> &'t Wanted<'p>,
) -> Vec<Vec<T>> {
    blocks.sort_unstable_by_key(|block| (wanted(block).place.vdev, wanted(block).place.at));
    let mut runs: Vec<Vec<T>> = Vec::new();
    for block in blocks {
        let next = wanted(&block);
        let joins = |run: &&mut Vec<T>| {
            let (first, last) = (wanted(&run[0]), wanted(&run[run.len() - 1]));
            next.place.vdev == first.place.vdev
                && next.place.at <= last.end() + RUN_GAP_BYTES_MAX
                && next.end() - first.place.at <= RUN_BYTES_MAX
        };
        match runs.last_mut().filter(joins) {
            Some(run) => run.push(block),
            None => runs.push(vec![block]),
        }
    }
    runs
}
