//! Reference-counted 4 KiB cells: the memory of dirty data and caches.
//!
//! Each user of cells limits its own number of cells; the arena only counts cells.
//!
//! Invariants:
//! - a cell is aligned to its size, and no cell wastes space for a header (the allocator would
//!   round a heap `Arc<[u8; 4096]>` up to 5 KiB);
//! - a shared [`Block`] is never written, so that every holder may read it at any time without a
//!   lock; a holder of the only handle may change the block;
//! - a [`BlockMut`] is the only handle to its cell;
//! - the arena maps chunks of 2 MiB and never unmaps them, so resident memory is the largest
//!   number of cells that were ever in use, with the spare cells of the threads.

#![expect(unsafe_code, reason = "shared cells whose count lives in their chunk")]

use std::alloc::{Layout, handle_alloc_error};
use std::cell::RefCell;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use parking_lot::Mutex;
use weir_base::BLOCK_BYTES;

/// Size of a chunk of cells: one huge page. If the kernel backs the arena with huge pages, the
/// arena uses few TLB entries.
///
/// ```text
/// chunk (2 MiB, aligned to 2 MiB): | cell 0: 511 reference counts | cell 1 | ... | cell 511 |
/// ```
const CHUNK_BYTES: usize = 2 << 20;
const CELLS_PER_CHUNK: usize = CHUNK_BYTES / BLOCK_BYTES;

/// Cells that a thread moves between the free list and its spare cells with one lock of the list: a
/// record of 256 KiB. The thread has at most twice as many spare cells.
const MOVED_CELLS: usize = 64;

/// Number of blocks from which copies go past the processor's cache: a record of 32 KiB. Cells that
/// were not used for a while are not in the cache, and a normal store reads them from memory first.
const STREAMED_BLOCKS_MIN: usize = 8;

/// Cells of the process that are neither in use nor spare cells of a thread.
static FREE: Mutex<Vec<Cell>> = Mutex::new(Vec::new());
/// Number of cells in use, with the spare cells of the threads.
static LIVE: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static SPARES: RefCell<Spares> = const { RefCell::new(Spares(Vec::new())) };
}

/// Free cells that only one thread uses, so that it needs no lock for each cell.
struct Spares(Vec<Cell>);

impl Spares {
    fn take(&mut self) -> Cell {
        if let Some(cell) = self.0.pop() {
            return cell;
        }
        Cell::take_free(MOVED_CELLS, &mut self.0);
        self.0.pop().expect("the free list provided cells")
    }

    fn keep(&mut self, cell: Cell) {
        if self.0.len() == 2 * MOVED_CELLS {
            Cell::give_back_all(self.0.drain(..MOVED_CELLS));
        }
        self.0.push(cell);
    }
}

impl Drop for Spares {
    fn drop(&mut self) {
        Cell::give_back_all(self.0.drain(..));
    }
}

/// Pool of cells that the whole process shares.
#[derive(Debug)]
pub struct Arena;

impl Arena {
    /// Number of bytes in the cells that are in use now. The number includes the spare cells of
    /// each thread, at most 512 KiB.
    pub fn live_bytes() -> usize {
        LIVE.load(Ordering::Relaxed) * BLOCK_BYTES
    }

    /// Number of bytes that the arena has allocated. It keeps them until the process ends.
    pub fn held_bytes() -> usize {
        let cells = FREE.lock().len() + LIVE.load(Ordering::Relaxed);
        cells.div_ceil(CELLS_PER_CHUNK - 1) * CHUNK_BYTES
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Cell(NonNull<u8>);

// SAFETY: a Cell is only an address; Block and BlockMut control the access to it.
unsafe impl Send for Cell {}

impl Cell {
    fn take() -> Self {
        let spare = SPARES.try_with(|spares| spares.borrow_mut().take());
        // A thread that exits has no spare cells any more.
        spare.unwrap_or_else(|_| {
            let mut one = Vec::with_capacity(1);
            Self::take_free(1, &mut one);
            one.pop().expect("the free list provided a cell")
        })
    }

    /// Takes `count` cells, with at most one lock of the free list.
    fn take_many(count: usize) -> Vec<Self> {
        let mut taken = Vec::with_capacity(count);
        // A thread that exits has no spare cells any more.
        let _exits = SPARES.try_with(|spares| {
            let spares = &mut spares.borrow_mut().0;
            let rest = spares.len().saturating_sub(count);
            taken.extend(spares.drain(rest..).rev());
        });
        if taken.len() < count {
            Self::take_free(count - taken.len(), &mut taken);
        }
        taken
    }

    /// Appends `count` cells of the free list to `taken`.
    fn take_free(count: usize, taken: &mut Vec<Self>) {
        LIVE.fetch_add(count, Ordering::Relaxed);
        let mut free = FREE.lock();
        while free.len() < count {
            Self::grow(&mut free);
        }
        let rest = free.len() - count;
        taken.extend(free.drain(rest..));
    }

    /// Puts cells on the free list.
    fn give_back_all(cells: impl ExactSizeIterator<Item = Self>) {
        LIVE.fetch_sub(cells.len(), Ordering::Relaxed);
        FREE.lock().extend(cells);
    }

    fn grow(free: &mut Vec<Self>) {
        let chunk = map_cells();
        // SAFETY: cell 0 lies inside the chunk and is large enough for the counts (511 x 4 bytes).
        unsafe { std::ptr::write_bytes(chunk.as_ptr(), 0, BLOCK_BYTES) };
        // The cell with the lowest address is taken first, so that allocations use the cells of a
        // chunk in ascending order.
        free.extend((1..CELLS_PER_CHUNK).rev().map(|index| {
            // SAFETY: index < CELLS_PER_CHUNK, so the address is inside the chunk.
            Self(unsafe { chunk.add(index * BLOCK_BYTES) })
        }));
    }

    fn give_back(self) {
        if SPARES.try_with(|spares| spares.borrow_mut().keep(self)).is_err() {
            Self::give_back_all(std::iter::once(self));
        }
    }

    /// Reference count of the cell; zero while the cell is free or held by a `BlockMut`.
    fn count(&self) -> &AtomicU32 {
        let offset = self.0.as_ptr() as usize % CHUNK_BYTES;
        // SAFETY: chunks are aligned to their size and never freed; cell n's count is the n-th
        // u32 of cell 0, initialised in `grow` before the cell could be taken.
        unsafe {
            let chunk = self.0.sub(offset);
            chunk.cast::<AtomicU32>().add(offset / BLOCK_BYTES).as_ref()
        }
    }

    fn bytes(&self) -> &[u8; BLOCK_BYTES] {
        // SAFETY: a taken cell is initialised by the constructors of BlockMut before any access.
        unsafe { self.0.cast().as_ref() }
    }
}

/// Maps a chunk with the content zero.
///
/// The chunk is no allocation of the global allocator: some allocators write to a new allocation,
/// and the kernel gives no huge page to a chunk with a mapped small page.
#[cfg(not(miri))]
fn map_cells() -> NonNull<u8> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

    let layout = Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES).expect("constant layout");
    // The kernel aligns a mapping only to small pages.
    let mapped_bytes = 2 * CHUNK_BYTES;
    let access = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: the kernel chooses the address of a new mapping, so no other memory changes.
    let mapped =
        unsafe { mmap_anonymous(std::ptr::null_mut(), mapped_bytes, access, MapFlags::PRIVATE) };
    let Ok(Some(mapped)) = mapped.map(|start| NonNull::new(start.cast::<u8>())) else {
        handle_alloc_error(layout)
    };
    let before = mapped.as_ptr().align_offset(CHUNK_BYTES);
    // SAFETY: `before` is less than CHUNK_BYTES, so the chunk lies inside the mapping.
    let cells = unsafe { mapped.add(before) };
    // SAFETY: the end of the chunk is inside the mapping, or at its end.
    let after = unsafe { cells.add(CHUNK_BYTES) };
    for (start, len) in [(mapped, before), (after, mapped_bytes - CHUNK_BYTES - before)] {
        if len > 0 {
            // SAFETY: this part of the fresh mapping has no other user.
            let unmapped = unsafe { munmap(start.as_ptr().cast(), len) };
            unmapped.expect("a part of a mapping can be unmapped");
        }
    }
    // Without huge pages, each access to a random cell needs a page walk. A kernel that has no huge
    // pages returns an error, which the arena can ignore.
    // SAFETY: the range is exactly the chunk, and the advice changes no content.
    let advised = unsafe { madvise(cells.as_ptr().cast(), CHUNK_BYTES, Advice::LinuxHugepage) };
    if let Err(error) = advised {
        tracing::trace!(%error, "no huge pages for the arena");
    }
    cells
}

/// Allocates a chunk. Miri maps no memory.
#[cfg(miri)]
fn map_cells() -> NonNull<u8> {
    let layout = Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES).expect("constant layout");
    // SAFETY: the layout has a non-zero size.
    let cells = unsafe { std::alloc::alloc_zeroed(layout) };
    NonNull::new(cells).unwrap_or_else(|| handle_alloc_error(layout))
}

/// Handle to a 4 KiB cell that its only holder may write.
pub struct BlockMut(Cell);

// SAFETY: BlockMut owns its cell exclusively.
unsafe impl Send for BlockMut {}
// SAFETY: shared access gives only &[u8].
unsafe impl Sync for BlockMut {}

impl BlockMut {
    /// Returns a block of zeros.
    pub fn zeroed() -> Self {
        let cell = Cell::take();
        // SAFETY: a taken cell is BLOCK_BYTES long and has no other handle.
        unsafe { std::ptr::write_bytes(cell.0.as_ptr(), 0, BLOCK_BYTES) };
        Self(cell)
    }

    /// Returns a block with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8; BLOCK_BYTES]) -> Self {
        Self::fill(Cell::take(), bytes)
    }

    /// Fills a taken cell with a copy of `bytes`.
    fn fill(cell: Cell, bytes: &[u8; BLOCK_BYTES]) -> Self {
        // SAFETY: as in `zeroed`; the source cannot overlap a cell that no other handle refers to.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), cell.0.as_ptr(), BLOCK_BYTES) };
        Self(cell)
    }

    /// Ends the write access; from now on the block may be shared.
    pub fn freeze(self) -> Block {
        let cell = self.0;
        std::mem::forget(self);
        cell.count().store(1, Ordering::Relaxed);
        Block(cell)
    }
}

impl Drop for BlockMut {
    fn drop(&mut self) {
        self.0.give_back();
    }
}

impl Deref for BlockMut {
    type Target = [u8; BLOCK_BYTES];

    fn deref(&self) -> &Self::Target {
        self.0.bytes()
    }
}

impl DerefMut for BlockMut {
    fn deref_mut(&mut self) -> &mut Self::Target {
        // SAFETY: the cell is initialised, and this handle is the only handle to the cell.
        unsafe { self.0.0.cast().as_mut() }
    }
}

/// Handle to a 4 KiB cell that every holder may read. A clone of the handle shares the cell, and a
/// shared cell is never written.
pub struct Block(Cell);

// SAFETY: shared content is immutable and the count is atomic.
unsafe impl Send for Block {}
// SAFETY: shared content is immutable and the count is atomic.
unsafe impl Sync for Block {}

impl Block {
    /// Returns a block with a copy of `bytes`.
    pub fn copy_of(bytes: &[u8; BLOCK_BYTES]) -> Self {
        BlockMut::copy_of(bytes).freeze()
    }

    /// Returns one block for each of `contents`, with a copy of the bytes. Many blocks are copied
    /// past the processor's cache.
    pub fn copies_of(contents: &[[u8; BLOCK_BYTES]]) -> Vec<Self> {
        let cells = Cell::take_many(contents.len()).into_iter();
        let filled = cells.zip(contents);
        if contents.len() < STREAMED_BLOCKS_MIN {
            return filled.map(|(cell, bytes)| BlockMut::fill(cell, bytes).freeze()).collect();
        }
        let blocks = filled.map(|(cell, bytes)| {
            stream(bytes, cell.0);
            BlockMut(cell).freeze()
        });
        let blocks = blocks.collect();
        end_of_streams();
        blocks
    }

    /// Returns write access to the content if this is the only handle to the cell.
    pub fn get_mut(&mut self) -> Option<&mut [u8; BLOCK_BYTES]> {
        // Acquire: all reads of other holders happened before these holders dropped their handles.
        if self.0.count().load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: handles are made only from handles; this handle is the only handle to the cell,
        // and is mutably borrowed.
        Some(unsafe { self.0.0.cast().as_mut() })
    }

    /// True if both handles refer to the same cell; blocks with equal content may have two cells.
    pub fn same_cell(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Clone for Block {
    fn clone(&self) -> Self {
        let before = self.0.count().fetch_add(1, Ordering::Relaxed);
        assert!(before < u32::MAX / 2, "a block is shared by far fewer holders than this");
        Self(self.0)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        // As in std's Arc: release the reads of this holder, and acquire the reads of all other
        // holders before the cell is reused.
        if self.0.count().fetch_sub(1, Ordering::Release) == 1 {
            fence(Ordering::Acquire);
            self.0.give_back();
        }
    }
}

impl Deref for Block {
    type Target = [u8; BLOCK_BYTES];

    fn deref(&self) -> &Self::Target {
        self.0.bytes()
    }
}

impl std::fmt::Debug for Block {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Block")
    }
}

/// Copies bytes to the start of a taken cell, past the cache. [`end_of_streams`] must follow before
/// another thread reads the cell.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn stream(bytes: &[u8; BLOCK_BYTES], cell: NonNull<u8>) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};

    let (words, rest) = bytes.as_chunks::<{ size_of::<__m128i>() }>();
    assert!(rest.is_empty(), "a block consists of whole words");
    for (index, word) in words.iter().enumerate() {
        // SAFETY: `word` has 16 bytes. The store is inside the cell, which no other handle refers
        // to, and aligned, because cells are aligned to 4 KiB.
        unsafe {
            let word = _mm_loadu_si128(word.as_ptr().cast());
            _mm_stream_si128(cell.cast::<__m128i>().add(index).as_ptr(), word);
        }
    }
}

/// Orders the stores of [`stream`] before all later stores, such as the store that publishes a
/// block.
#[cfg(all(target_arch = "x86_64", not(miri)))]
fn end_of_streams() {
    // SAFETY: every x86_64 processor has the instruction.
    unsafe { std::arch::x86_64::_mm_sfence() }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
fn stream(bytes: &[u8; BLOCK_BYTES], cell: NonNull<u8>) {
    // SAFETY: a taken cell is BLOCK_BYTES long, and its only handle belongs to the caller.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), cell.as_ptr(), BLOCK_BYTES) }
}

#[cfg(not(all(target_arch = "x86_64", not(miri))))]
const fn end_of_streams() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_is_reused_only_after_its_last_holder_is_dropped() {
        let mut first = BlockMut::zeroed();
        first[0] = 1;
        let first = first.freeze();
        let again = first.clone();
        drop(first);
        let other = Block::copy_of(&[2; BLOCK_BYTES]);
        assert!(!again.same_cell(&other));
        assert_eq!((again[0], other[0]), (1, 2));
    }

    #[test]
    fn blocks_of_several_contents_use_different_cells() {
        for count in [1, STREAMED_BLOCKS_MIN - 1, STREAMED_BLOCKS_MIN, 1000] {
            let content = |n| std::array::from_fn(|at| (n * 31 + at / 16 + at) as u8);
            let contents: Vec<[u8; BLOCK_BYTES]> = (0..count).map(content).collect();
            let blocks = Block::copies_of(&contents);
            assert!(blocks.iter().map(|block| **block).eq(contents));
        }
    }

    #[test]
    fn thread_keeps_few_spare_cells_and_returns_them_when_it_exits() {
        let held_before = Arena::held_bytes();
        for _ in 0..1000 {
            let one = std::thread::spawn(|| {
                drop(Block::copies_of(&vec![[1; BLOCK_BYTES]; 4 * MOVED_CELLS]));
                let spare = SPARES.with_borrow(|spares| spares.0.len());
                assert!((1..=2 * MOVED_CELLS).contains(&spare), "{spare} spare cells");
            });
            one.join().expect("the thread does not panic");
        }
        // If the threads kept their cells, at least 256 MiB would be lost.
        let grown = Arena::held_bytes().saturating_sub(held_before);
        assert!(grown < 128 << 20, "{grown} bytes");
    }

    #[test]
    fn only_the_last_holder_may_write() {
        let mut block = Block::copy_of(&[1; BLOCK_BYTES]);
        let other = block.clone();
        assert!(block.get_mut().is_none());
        assert_eq!(other[0], 1);
        drop(other);
        block.get_mut().expect("the only holder")[0] = 2;
        assert_eq!(block[0], 2);
    }

    #[test]
    fn threads_can_clone_and_drop_a_shared_block() {
        let block = Block::copy_of(&[9; BLOCK_BYTES]);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let mine = block.clone();
                scope.spawn(move || {
                    for _ in 0..1000 {
                        assert_eq!(mine.clone()[4095], 9);
                        drop(BlockMut::zeroed());
                    }
                });
            }
        });
        assert_eq!(block[0], 9);
    }
}
