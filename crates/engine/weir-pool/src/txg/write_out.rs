//! Write-out: packs the blocks of one txg into rows of open segments and writes them.
//!
//! weir-dataset chooses the blocks; `commit` makes them part of the pool.
//!
//! Invariants:
//! - a segment is written front to back in whole rows, each exactly once;
//! - a block may cross buffers but never segments;
//! - after its last block in a segment, a txg appends a summary of the blocks it wrote there. Root
//!   segments have no summaries, because the cleaner never touches them;
//! - before [`WriteOut::finish`], the block of a new pointer is not always on disk, so readers get
//!   the block from the txg's dirty tables (weir-dataset).

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use weir_base::hash::HashMap;
use weir_base::limits::{
    NODE_READS_IN_FLIGHT, STREAM_WRITE_BYTES, STREAM_WRITES_IN_FLIGHT, WRITES_BESIDE_LOG,
};
use weir_base::{BLOCK_BYTES, ErrorKind, RecordSize, Txg, VsegId};
use weir_block::{Block, Blocks, IoBuf};
use weir_cache::CacheClass;
use weir_codec::checksum;
use weir_format::layout::PACK_BYTES;
use weir_format::{
    BlockOwner, BlockPtr, BootstrapCopy, Codec, Compression, PtrKind, SEGMENT_BLOCKS_MAX,
    SegmentClass, Summary, SummaryEntry, SummaryPlace,
};

use crate::error::PoolError;
use crate::planted_bugs::PlantedBug;
use crate::segments::entries::Freed;
use crate::state::compression::{CompressHistory, Packer, StoredForm};
use crate::state::pool::Pool;
use crate::state::write_heads::{Lane, OpenSegment, WriteHeads};

/// Maximum number of freed blocks that wait until their remap tables are read. Waiting blocks of
/// one table are freed together; the bound limits RAM while a large volume is destroyed.
const UNREAD_FREES_MAX: usize = 16_384;

/// Location of appended bytes.
struct Placed {
    lane: usize,
    vseg: VsegId,
    /// Offset of the bytes in the segment, in units of [`PACK_BYTES`].
    offset_units: u32,
    /// Checksum of the bytes.
    checksum: u128,
}

type Written = (Result<(), PoolError>, Arc<IoBuf>);

/// Write-out of one txg.
pub struct WriteOut<'a> {
    pub(crate) pool: &'a Pool,
    /// The txg being written.
    pub txg: Txg,
    streams: WriteHeads,
    /// Segments that were open before this txg, with their fill. The txg appends beyond that fill,
    /// or in segments from `first_new` on.
    fills_before: Vec<(VsegId, u64)>,
    first_new: VsegId,
    writes: FuturesUnordered<Pin<Box<dyn Future<Output = Written> + 'a>>>,
    spare: Vec<IoBuf>,
    /// Compression contexts, reused for the whole write-out; `None` while a block is appended.
    pub(crate) packer: Option<Packer>,
    /// Summaries whose writes may be in flight. No reader looks for them yet.
    summaries: Vec<(VsegId, SummaryPlace)>,
    /// Nodes that this txg wrote and will change again.
    kept: Vec<(BlockPtr, Block)>,
    /// Bytes of the metadata trees that this txg wrote or keeps, by root segment.
    pub(crate) of_roots: HashMap<VsegId, u64>,
    /// Records that the partial records of this txg replaced, by address of the partial record.
    pub(crate) replaced: HashMap<u64, BlockPtr>,
    /// Replaced pointers whose remap or reference tables are not in RAM.
    unread_frees: Vec<BlockPtr>,
    /// Bytes of rows written so far, with padding, without copies and parity.
    pub written_bytes: u64,
    /// Time that the write-out spent only waiting for device writes.
    pub waited: Duration,
}

impl Pool {
    /// Starts the write-out of a txg; only one runs at a time.
    pub fn begin_write_out(&self, txg: Txg) -> WriteOut<'_> {
        let mut streams = self.streams.lock().take().expect("one write-out at a time");
        self.take_excess(txg);
        self.segments.release_dead(txg);
        streams.follow_vdevs(&self.segments, txg);
        WriteOut {
            pool: self,
            txg,
            fills_before: streams.fills(SegmentClass::Data),
            first_new: self.segments.next_vseg(),
            streams,
            writes: FuturesUnordered::new(),
            spare: Vec::new(),
            packer: None,
            summaries: Vec::new(),
            kept: Vec::new(),
            of_roots: HashMap::default(),
            replaced: HashMap::default(),
            unread_frees: Vec::new(),
            written_bytes: 0,
            waited: Duration::ZERO,
        }
    }
}

impl WriteOut<'_> {
    /// Stores a record or node, adds its blocks to the cache and returns its pointer. Every class
    /// except root requires an `owner`.
    pub async fn write_record(
        &mut self,
        class: SegmentClass,
        owner: Option<BlockOwner>,
        kind: PtrKind,
        record: &Blocks,
        compression: Compression,
        history: &mut CompressHistory,
    ) -> Result<BlockPtr, PoolError> {
        let mut packer = std::mem::take(&mut self.packer).unwrap_or_default();
        let (stored, codec) = packer.pack(record, compression, history);
        let written = self.store((class, owner, kind), record, stored, (codec, None)).await;
        self.packer = Some(packer);
        written
    }

    /// Stores the packed form of a record. `how`: the codec, and the checksum if it is known.
    pub(crate) async fn store(
        &mut self,
        what: (SegmentClass, Option<BlockOwner>, PtrKind),
        record: &Blocks,
        stored: StoredForm<'_>,
        how: (Codec, Option<u128>),
    ) -> Result<BlockPtr, PoolError> {
        let ptr = self.store_uncached(what, record.size(), stored, how).await?;
        self.pool.keep_blocks(&ptr, record);
        Ok(ptr)
    }

    /// Stores the packed form of a record as [`Self::store`] does, but adds no blocks to the cache.
    pub(crate) async fn store_uncached(
        &mut self,
        (class, owner, kind): (SegmentClass, Option<BlockOwner>, PtrKind),
        record: RecordSize,
        stored: StoredForm<'_>,
        (codec, checksum): (Codec, Option<u128>),
    ) -> Result<BlockPtr, PoolError> {
        let stored_units = (stored.len() / PACK_BYTES) as u16;
        let placed = self.append(class, (stored, checksum), owner).await?;
        let Placed { lane, vseg, offset_units, checksum } = placed;
        assert_eq!(owner.is_none(), class == SegmentClass::Root, "summaries name every owner");
        let birth = self.txg;
        if let Some(owner) = owner {
            let (at_units, checksum) = (offset_units, checksum as u64);
            self.lane(class, lane).entries.push(SummaryEntry {
                vseg,
                offset_units,
                at_units,
                stored_units,
                owner,
                birth,
                checksum,
            });
        }
        let bytes = usize::from(stored_units) * PACK_BYTES;
        self.pool.segments.add_live(vseg, bytes);
        if class == SegmentClass::Root {
            *self.of_roots.entry(vseg).or_default() += bytes as u64;
        }
        Ok(BlockPtr {
            kind,
            vseg,
            offset_units,
            stored_units,
            codec,
            record,
            birth,
            shared: false,
            checksum,
        })
    }

    /// Frees the block of a replaced committed pointer if no other pointer references the block.
    /// The counters reflect the freed space when the write-out finishes, or earlier.
    pub fn free(&mut self, ptr: &BlockPtr) {
        if ptr.is_hole() {
            return;
        }
        if ptr.birth > self.txg {
            // The birth is in the future (I8 is broken): no tree of this pool wrote this pointer,
            // so its address may belong to another block.
            tracing::error!(?ptr, txg = self.txg.0, "a pointer from the future is not freed");
            return;
        }
        if ptr.birth == self.txg
            && let Some(bytes) = self.of_roots.get_mut(&ptr.vseg)
        {
            *bytes = bytes.saturating_sub(ptr.stored_bytes() as u64);
        }
        self.pool.note_partial_gone(ptr, self.txg);
        let freed = self.pool.segments.free(ptr, self.txg);
        if freed.is_err() {
            self.unread_frees.push(*ptr);
        }
        // Keep nodes in the cache, because readers use the old tree until the new root is
        // published. A block that waits for its table counts as freed here and leaves the cache; if
        // it has other references, the next read fetches it again.
        if ptr.kind == PtrKind::Data && !matches!(freed, Ok(Freed::Reference)) {
            self.pool.cache.remove(CacheClass::Data, ptr);
            if self.pool.bug != PlantedBug::HintOutlivesBlock {
                self.pool.dedupe_index.lock().remove(ptr);
            }
        }
    }

    /// True if the block was on disk before this txg.
    pub(crate) fn is_older(&self, ptr: &BlockPtr) -> bool {
        let here = |(vseg, fill): &(VsegId, u64)| *vseg == ptr.vseg && ptr.offset_bytes() >= *fill;
        ptr.vseg < self.first_new && !self.fills_before.iter().any(here)
    }

    /// Keeps a node that was just written in RAM, for a later change in this txg. Until its row is
    /// full, the node is not on disk, and the cache may evict it.
    pub(crate) fn keep(&mut self, ptr: BlockPtr, node: Block) {
        self.kept.push((ptr, node));
    }

    /// Records that a metadata tree keeps a block under its old pointer.
    pub(crate) fn keep_root(&mut self, ptr: &BlockPtr) {
        *self.of_roots.entry(ptr.vseg).or_default() += ptr.stored_bytes() as u64;
    }

    /// Returns a kept node.
    pub(crate) fn kept(&self, ptr: &BlockPtr) -> Option<Block> {
        self.kept.iter().find(|(kept, _)| kept == ptr).map(|(_, node)| node.clone())
    }

    /// True if no block waits to be freed.
    pub(crate) fn is_finished(&self) -> bool {
        self.unread_frees.is_empty()
    }

    /// Frees the blocks that wait for their remap tables, if more than [`UNREAD_FREES_MAX`] wait.
    pub async fn free_some_unread(&mut self) -> Result<(), PoolError> {
        if self.unread_frees.len() > UNREAD_FREES_MAX {
            self.free_unread().await?;
        }
        Ok(())
    }

    /// Frees all blocks that wait for their remap tables.
    pub async fn free_all_unread(&mut self) -> Result<(), PoolError> {
        if !self.unread_frees.is_empty() {
            self.free_unread().await?;
        }
        Ok(())
    }

    /// Frees all waiting blocks: reads each remap table once, many tables concurrently. The callers
    /// are not boxed, because a commit calls them for each changed node and blocks rarely wait.
    #[boxed(?Send)]
    async fn free_unread(&mut self) -> Result<(), PoolError> {
        let mut frees = std::mem::take(&mut self.unread_frees);
        frees.sort_unstable_by_key(|ptr| ptr.vseg);
        let (pool, txg) = (self.pool, self.txg);
        let of_one_table = frees.chunk_by(|a, b| a.vseg == b.vseg).map(|ptrs| async move {
            for ptr in ptrs {
                match pool.translated(|segments| segments.free(ptr, txg)).await {
                    Ok(Freed::Block | Freed::Reference) => {}
                    Err(error) if error.kind() == ErrorKind::Data => {
                        tracing::error!(%error, "freeing a block whose table is lost");
                        pool.segments.free_unplaced(ptr, txg);
                        // From now on the live-byte counter of the segment that holds the block is
                        // too high.
                        pool.note_lost_node(txg);
                    }
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        });
        let mut frees =
            futures_util::stream::iter(of_one_table).buffer_unordered(NODE_READS_IN_FLIGHT);
        while let Some(freed) = frees.next().await {
            freed?;
        }
        Ok(())
    }

    /// Stores bytes that are not a 4 KiB block (a remap or reference table) in a root segment.
    pub(crate) async fn write_bytes(&mut self, bytes: &[u8]) -> Result<BlockPtr, PoolError> {
        let mut stored = bytes.to_vec();
        stored.resize(bytes.len().next_multiple_of(PACK_BYTES), 0);
        let bytes = (StoredForm::Bytes(&stored), None);
        let Placed { vseg, offset_units, checksum, .. } =
            self.append(SegmentClass::Root, bytes, None).await?;
        self.pool.segments.add_live(vseg, stored.len());
        *self.of_roots.entry(vseg).or_default() += stored.len() as u64;
        Ok(BlockPtr {
            kind: PtrKind::Data,
            vseg,
            offset_units,
            stored_units: (stored.len() / PACK_BYTES) as u16,
            codec: Codec::Raw,
            record: RecordSize::BLOCK,
            birth: self.txg,
            shared: false,
            checksum,
        })
    }

    /// Appends the stored bytes of a moved block, which keeps its address, to a cleaner segment.
    /// Returns the segment and the offset in units of 64 B. Neither counters nor remap tables
    /// include the moved block yet.
    pub(crate) async fn append_moved(
        &mut self,
        ptr: &BlockPtr,
        owner: BlockOwner,
        stored: &[u8],
    ) -> Result<(VsegId, u32), PoolError> {
        let class = SegmentClass::Clean;
        let bytes = (StoredForm::Bytes(stored), Some(ptr.checksum));
        let placed = self.append(class, bytes, Some(owner)).await?;
        let Placed { lane, vseg, offset_units, .. } = placed;
        self.lane(class, lane).entries.push(SummaryEntry {
            vseg: ptr.vseg,
            offset_units: ptr.offset_units,
            at_units: offset_units,
            stored_units: ptr.stored_units,
            owner,
            birth: ptr.birth,
            checksum: ptr.checksum as u64,
        });
        Ok((vseg, offset_units))
    }

    fn lane(&mut self, class: SegmentClass, lane: usize) -> &mut Lane {
        &mut self.streams.0[class as usize].lanes[lane]
    }

    /// Appends bytes (whole 64-byte units) to an open segment of the class. Computes their checksum
    /// if it is not known.
    async fn append(
        &mut self,
        class: SegmentClass,
        (stored, checksum): (StoredForm<'_>, Option<u128>),
        owner: Option<BlockOwner>,
    ) -> Result<Placed, PoolError> {
        assert!(stored.len().is_multiple_of(PACK_BYTES), "blocks are packed at 64 bytes");
        let has_object = owner.is_some_and(|owner| owner.object.0 > 0);
        let lane = self.lane_with_room(class, stored.len(), has_object).await?;
        let now = self.lane(class, lane);
        now.has_objects |= has_object;
        let open = now.open.expect("lane_with_room opened it");
        now.blocks += 1;
        let checksum = match (stored, checksum) {
            (StoredForm::Blocks(blocks), None) => {
                self.push_blocks(class as usize, lane, blocks).await?
            }
            (form, known) => {
                let checksum = known.unwrap_or_else(|| form.checksum());
                for part in form.parts() {
                    self.push(class as usize, lane, part).await?;
                }
                checksum
            }
        };
        let offset_units = (open.cursor / PACK_BYTES as u64) as u32;
        Ok(Placed { lane, vseg: open.vseg, offset_units, checksum })
    }

    /// Appends blocks as [`Self::push`] does, and returns their checksum. Computes it from the
    /// buffer, where the copies are adjacent and still in the processor's cache.
    async fn push_blocks(
        &mut self,
        stream: usize,
        lane: usize,
        blocks: &[Block],
    ) -> Result<u128, PoolError> {
        let len = blocks.len() * BLOCK_BYTES;
        if len >= self.buffer_room(stream, lane) {
            let checksum = StoredForm::Blocks(blocks).checksum();
            for block in blocks {
                self.push(stream, lane, &block[..]).await?;
            }
            return Ok(checksum);
        }
        let (open, buf, used) = self.buffer(stream, lane);
        let place = &mut buf[*used..*used + len];
        for (copy, block) in place.chunks_exact_mut(BLOCK_BYTES).zip(blocks) {
            copy.copy_from_slice(&block[..]);
        }
        *used += len;
        open.cursor += len as u64;
        Ok(checksum::xxh3_128(place))
    }

    /// Open segment, buffer and fill of the buffer of a write head. [`Self::buffer_room`] has
    /// provided the buffer.
    fn buffer(&mut self, stream: usize, lane: usize) -> (&mut OpenSegment, &mut IoBuf, &mut usize) {
        match &mut self.streams.0[stream].lanes[lane] {
            Lane { open: Some(open), buf: Some(buf), used, .. } => (open, buf, used),
            _ => unreachable!("buffer_room provides the buffer"),
        }
    }

    /// Appends bytes to the open segment of a write head, which has room for them.
    async fn push(&mut self, stream: usize, lane: usize, bytes: &[u8]) -> Result<(), PoolError> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = self.buffer_room(stream, lane);
            let (now, later) = rest.split_at(room.min(rest.len()));
            let (open, buf, used) = self.buffer(stream, lane);
            buf[*used..*used + now.len()].copy_from_slice(now);
            *used += now.len();
            open.cursor += now.len() as u64;
            if now.len() == room {
                self.submit(stream, lane).await?;
                self.streams.0[stream].current += 1;
            }
            rest = later;
        }
        Ok(())
    }

    /// Returns a write head of the class whose open segment has room for `len` more bytes and the
    /// summary. `has_object`: the bytes belong to an object other than 0.
    pub(crate) async fn lane_with_room(
        &mut self,
        class: SegmentClass,
        len: usize,
        has_object: bool,
    ) -> Result<usize, PoolError> {
        let stream = class as usize;
        let lane = self.streams.0[stream].current % self.streams.0[stream].lanes.len();
        let now = self.lane(class, lane);
        let summary = match class {
            SegmentClass::Root => 0,
            _ => Summary::bytes_for(now.entries.len() + 1, now.has_objects || has_object),
        };
        let (open, blocks) = (now.open, now.blocks);
        let full = |open: OpenSegment| {
            open.cursor + (len + summary) as u64 > open.room || blocks >= SEGMENT_BLOCKS_MAX
        };
        if open.is_some_and(full) {
            self.write_summary(stream, lane).await?;
            self.pad_and_submit(stream, lane).await?;
            let open = self.lane(class, lane).open.take().expect("checked above");
            self.pool.segments.set_fill(open.vseg, open.cursor as u32, self.txg, true);
        }
        if self.lane(class, lane).open.is_none() {
            let home = self.streams.0[stream].homes[lane];
            let allocated = self.pool.segments.allocate(class, self.txg, home);
            let allocated = allocated
                .ok_or_else(|| PoolError::OutOfSpace { pool: self.pool.label.name.clone() })?;
            let open = OpenSegment::new(&self.pool.segments, allocated);
            assert!(len as u64 <= open.room, "nothing larger than a segment is stored");
            let now = self.lane(class, lane);
            now.open = Some(open);
            now.blocks = 0;
        }
        Ok(lane)
    }

    /// Appends a summary of the blocks that follow the last summary. Space for the summary was
    /// reserved.
    #[boxed(?Send)]
    async fn write_summary(&mut self, stream: usize, lane: usize) -> Result<(), PoolError> {
        let now = &mut self.streams.0[stream].lanes[lane];
        let entries = std::mem::take(&mut now.entries);
        now.has_objects = false;
        let Some(open) = now.open.filter(|_| !entries.is_empty()) else { return Ok(()) };
        let new = self.summaries.iter().rev().find(|(vseg, _)| *vseg == open.vseg);
        let previous = new.map_or_else(|| self.pool.segments.summary(open.vseg), |(_, at)| *at);
        let bytes = Summary { vseg: open.vseg, previous, entries }.encode();
        let place = SummaryPlace::of(open.cursor as u32, &bytes);
        self.push(stream, lane, &bytes).await?;
        self.summaries.push((open.vseg, place));
        Ok(())
    }

    /// Bytes that fit into the write head's buffer now, never beyond the end of the segment.
    fn buffer_room(&mut self, stream: usize, lane: usize) -> usize {
        let spare = &mut self.spare;
        let lane = &mut self.streams.0[stream].lanes[lane];
        let open = lane.open.as_ref().expect("only an open lane is filled");
        let segment_bytes = self.pool.segments.bytes_on(open.vdev);
        let room = open.room;
        let row = self.pool.vdevs[usize::from(open.vdev)].row_bytes as usize;
        let wanted = STREAM_WRITE_BYTES.min((segment_bytes / 8) as usize);
        let size = (wanted - wanted % row).max(row);
        lane.buf.get_or_insert_with(|| {
            // Reuse only a buffer of this size: vdevs with other row sizes use other buffer sizes.
            let fits = spare.iter().position(|buf| buf.len() == size);
            fits.map_or_else(|| IoBuf::zeroed(size), |index| spare.swap_remove(index))
        });
        let base = open.cursor - lane.used as u64;
        size.min((room - base) as usize) - lane.used
    }

    /// Fills the last row of a write head with zeros and starts its write.
    async fn pad_and_submit(&mut self, stream: usize, lane: usize) -> Result<(), PoolError> {
        let lane_now = &mut self.streams.0[stream].lanes[lane];
        let (Some(open), Some(buf)) = (lane_now.open.as_mut(), lane_now.buf.as_mut()) else {
            return Ok(());
        };
        let row = self.pool.vdevs[usize::from(open.vdev)].row_bytes as usize;
        let padded = (open.cursor as usize).next_multiple_of(row) - open.cursor as usize;
        buf[lane_now.used..lane_now.used + padded].fill(0);
        lane_now.used += padded;
        open.cursor += padded as u64;
        self.submit(stream, lane).await
    }

    /// Starts the device write of a write head's buffer. Waits only if too many writes are in
    /// flight.
    #[boxed(?Send)]
    async fn submit(&mut self, stream: usize, lane: usize) -> Result<(), PoolError> {
        if self.streams.0[stream].lanes[lane].used == 0 {
            return Ok(());
        }
        if self.pool.log_is_busy() {
            let vdevs = self.streams.0[SegmentClass::Data as usize].lanes.len();
            self.wait_for_writes(vdevs * WRITES_BESIDE_LOG).await?;
        }
        let lane = &mut self.streams.0[stream].lanes[lane];
        let used = std::mem::take(&mut lane.used);
        let open = lane.open.expect("only an open lane is filled");
        let buf = Arc::new(lane.buf.take().expect("a filled lane has a buffer"));
        let vdev = &self.pool.vdevs[usize::from(open.vdev)];
        let at = open.start + open.cursor - used as u64;
        self.written_bytes += used as u64;
        self.pool.traffic[stream].fetch_add(used as u64, Ordering::Relaxed);
        let second = open.is_twice.then_some(at + open.room);
        let third = open.is_twice.then(|| self.pool.segments.third_copy_place(open.vseg)).flatten();
        let third = third
            .map(|(vdev, start)| (&self.pool.vdevs[usize::from(vdev)], start + (at - open.start)));
        self.writes.push(Box::pin(async move {
            let mut done = vdev.write_rows(at, &buf, 0..used).await;
            if let Some(second) = second.filter(|_| done.is_ok()) {
                done = vdev.write_rows(second, &buf, 0..used).await;
            }
            if let Some((vdev, at)) = third.filter(|_| done.is_ok()) {
                done = vdev.write_rows(at, &buf, 0..used).await;
            }
            (done, buf)
        }));
        // The poll starts the write; the yield that follows lets the runtime submit it to the
        // kernel.
        if let std::task::Poll::Ready(Some(written)) = futures_util::poll!(self.writes.next()) {
            self.written(written)?;
        }
        yield_now().await;
        self.wait_for_writes(STREAM_WRITES_IN_FLIGHT).await
    }

    /// Waits until fewer than `max` device writes are in flight.
    async fn wait_for_writes(&mut self, max: usize) -> Result<(), PoolError> {
        while self.writes.len() >= max {
            let begun = self.pool.clock.monotonic();
            let written = self.writes.next().await.expect("the set is not empty");
            self.waited += self.pool.clock.monotonic().saturating_sub(begun);
            self.written(written)?;
        }
        Ok(())
    }

    fn written(&mut self, (done, buf): Written) -> Result<(), PoolError> {
        self.spare.extend(Arc::try_unwrap(buf).ok());
        done
    }

    /// Pads and writes the buffered bytes of a class and records the fill of its segments.
    pub(crate) async fn close_rows(&mut self, class: SegmentClass) -> Result<(), PoolError> {
        let stream = class as usize;
        for lane in 0..self.streams.0[stream].lanes.len() {
            self.write_summary(stream, lane).await?;
            self.pad_and_submit(stream, lane).await?;
            let lane = &mut self.streams.0[stream].lanes[lane];
            if let Some(open) = lane.open {
                let full = open.cursor == open.room;
                self.pool.segments.set_fill(open.vseg, open.cursor as u32, self.txg, full);
                if full {
                    lane.open = None;
                }
            }
        }
        Ok(())
    }

    /// Writes all buffered data and metadata and waits for all writes. Afterwards every new
    /// pointer's block can be read from disk.
    #[boxed(?Send)]
    pub async fn finish(&mut self) -> Result<(), PoolError> {
        self.free_all_unread().await?;
        self.close_rows(SegmentClass::Data).await?;
        self.close_rows(SegmentClass::Meta).await?;
        self.wait_writes().await
    }

    /// Does the same as [`Self::finish`] for blocks that the cleaner moved.
    pub(crate) async fn finish_clean(&mut self) -> Result<(), PoolError> {
        self.close_rows(SegmentClass::Clean).await?;
        self.wait_writes().await
    }

    pub(crate) async fn wait_writes(&mut self) -> Result<(), PoolError> {
        while let Some(written) = self.writes.next().await {
            self.written(written)?;
        }
        for (vseg, place) in self.summaries.drain(..) {
            self.pool.segments.set_summary(vseg, place);
        }
        Ok(())
    }

    /// Appends bytes that no counter includes (the bootstrap table) as separate strips at the
    /// cursor of the write head for class root. Returns vdev and offset of each copy. The caller
    /// pads `stored` to whole strips.
    pub(crate) async fn append_strips(
        &mut self,
        stored: &[u8],
    ) -> Result<Vec<BootstrapCopy>, PoolError> {
        // The bootstrap table has its own checksum.
        let bytes = (StoredForm::Bytes(stored), Some(0));
        let Placed { vseg, .. } = self.append(SegmentClass::Root, bytes, None).await?;
        let stream = SegmentClass::Root as usize;
        let open = self.streams.0[stream].lanes[0].open.expect("just appended to");
        assert_eq!(open.vseg, vseg, "root has one lane");
        let offset = open.start + open.cursor - stored.len() as u64;
        let second = open.is_twice.then_some((open.vdev, offset + open.room));
        let third = self.pool.segments.third_copy_place(vseg);
        let third = third.map(|(vdev, start)| (vdev, start + (offset - open.start)));
        let copies = [Some((open.vdev, offset)), second, third.filter(|_| open.is_twice)];
        let copies = copies.into_iter().flatten();
        Ok(copies.map(|(vdev, offset)| BootstrapCopy { vdev, offset }).collect())
    }

    /// Segment, vdev and cursor of the write head for class root.
    pub(crate) fn root_cursor(&self) -> (VsegId, u16, u64) {
        let open = self.streams.0[SegmentClass::Root as usize].lanes[0].open;
        let open = open.expect("lane_with_room opened it");
        (open.vseg, open.vdev, open.cursor)
    }

    /// Returns the open segments to the pool.
    pub(crate) fn end(self) {
        *self.pool.streams.lock() = Some(self.streams);
    }
}

/// Yields to the other tasks of the thread and to its I/O.
pub(crate) async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(move |cx| {
        if std::mem::replace(&mut yielded, true) {
            return std::task::Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}
