//! 4 KiB cells, reference counted: the one kind of memory that dirty data and caches are made of.
//!
//! Not here: who may use how much (each user has a budget of cells; the arena only counts).
//!
//! Invariants:
//! - a cell is aligned to its size, so no cell wastes space on a header (a heap `Arc<[u8; 4096]>`
//!   would fall into a 5 KiB size class);
//! - a [`Block`] that is shared is never written: whoever holds one may read it without a lock, for
//!   ever; its only holder may change it;
//! - a [`BlockMut`] is the only handle to its cell;
//! - memory is taken from the system in chunks of 2 MiB and kept: resident memory is the peak
//!   number of live cells.
//!
//! ```text
//! chunk (2 MiB, aligned to 2 MiB): | cell 0: 511 reference counts | cell 1 | ... | cell 511 |
//! ```

#![expect(unsafe_code, reason = "shared cells whose count lives in their chunk")]

use std::alloc::{Layout, alloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering, fence};

use parking_lot::Mutex;
use weir_base::BLOCK_BYTES;

/// One huge page: the arena costs few TLB entries where the system backs it with huge pages.
const CHUNK_BYTES: usize = 2 << 20;
const CELLS_PER_CHUNK: usize = CHUNK_BYTES / BLOCK_BYTES;

/// Free cells of the process.
static FREE: Mutex<Vec<Cell>> = Mutex::new(Vec::new());
/// Cells handed out and not yet returned.
static LIVE: AtomicUsize = AtomicUsize::new(0);

/// The process-wide pool of cells.
#[derive(Debug)]
pub struct Arena;

impl Arena {
    /// Bytes in cells now held by anybody.
    pub fn live_bytes() -> usize {
        LIVE.load(Ordering::Relaxed) * BLOCK_BYTES
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Cell(NonNull<u8>);

// SAFETY: a Cell is an address; what may be done with it is decided by Block and BlockMut.
unsafe impl Send for Cell {}

impl Cell {
    fn take() -> Self {
        LIVE.fetch_add(1, Ordering::Relaxed);
        let mut free = FREE.lock();
        if let Some(cell) = free.pop() {
            return cell;
        }
        Self::grow(&mut free);
        free.pop().expect("a new chunk has cells")
    }

    /// As many cells, under one hold of the lock.
    fn take_many(count: usize) -> Vec<Self> {
        LIVE.fetch_add(count, Ordering::Relaxed);
        let mut free = FREE.lock();
        while free.len() < count {
            Self::grow(&mut free);
        }
        let rest = free.len() - count;
        free.split_off(rest)
    }

    fn grow(free: &mut Vec<Self>) {
        let layout = Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES).expect("constant layout");
        // SAFETY: the layout has a non-zero size.
        let Some(chunk) = NonNull::new(unsafe { alloc(layout) }) else {
            handle_alloc_error(layout)
        };
        // Without huge pages every access to a random cell costs a page walk. A kernel that has
        // none says no, and nothing is lost.
        // SAFETY: the range is exactly the fresh allocation, and the advice changes no content.
        let advised = unsafe {
            rustix::mm::madvise(
                chunk.as_ptr().cast(),
                CHUNK_BYTES,
                rustix::mm::Advice::LinuxHugepage,
            )
        };
        if let Err(error) = advised {
            tracing::trace!(%error, "no huge pages for the arena");
        }
        // SAFETY: cell 0 lies inside the chunk and is large enough for the counts (511 x 4 bytes).
        unsafe { std::ptr::write_bytes(chunk.as_ptr(), 0, BLOCK_BYTES) };
        // Highest address last out: allocation walks the chunk from its start.
        free.extend((1..CELLS_PER_CHUNK).rev().map(|index| {
            // SAFETY: index < CELLS_PER_CHUNK, so the address is inside the chunk.
            Self(unsafe { chunk.add(index * BLOCK_BYTES) })
        }));
    }

    fn give_back(self) {
        LIVE.fetch_sub(1, Ordering::Relaxed);
        FREE.lock().push(self);
    }

    /// The cell's reference count; zero while it is free or held by a `BlockMut`.
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

/// A 4 KiB cell that one holder may write.
pub struct BlockMut(Cell);

// SAFETY: BlockMut owns its cell exclusively.
unsafe impl Send for BlockMut {}
// SAFETY: shared access gives only &[u8].
unsafe impl Sync for BlockMut {}

impl BlockMut {
    /// A block of zeros.
    pub fn zeroed() -> Self {
        let cell = Cell::take();
        // SAFETY: a taken cell is BLOCK_BYTES long and ours alone.
        unsafe { std::ptr::write_bytes(cell.0.as_ptr(), 0, BLOCK_BYTES) };
        Self(cell)
    }

    /// A block with this content.
    pub fn copy_of(bytes: &[u8; BLOCK_BYTES]) -> Self {
        Self::fill(Cell::take(), bytes)
    }

    /// Makes a taken cell a block.
    fn fill(cell: Cell, bytes: &[u8; BLOCK_BYTES]) -> Self {
        // SAFETY: as in `zeroed`; the source cannot overlap a cell nobody else has.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), cell.0.as_ptr(), BLOCK_BYTES) };
        Self(cell)
    }

    /// Ends writing; from now on the block can be shared.
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
        // SAFETY: the cell is initialised and this is its only handle.
        unsafe { self.0.0.cast().as_mut() }
    }
}

/// A 4 KiB cell that its holders may read; cloning shares it, and nobody writes a shared cell.
pub struct Block(Cell);

// SAFETY: shared content is immutable and the count is atomic.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Block {
    /// A block with this content.
    pub fn copy_of(bytes: &[u8; BLOCK_BYTES]) -> Self {
        BlockMut::copy_of(bytes).freeze()
    }

    /// A block for each of these contents.
    pub fn copies_of(contents: &[[u8; BLOCK_BYTES]]) -> Vec<Self> {
        let cells = Cell::take_many(contents.len()).into_iter();
        cells.zip(contents).map(|(cell, bytes)| BlockMut::fill(cell, bytes).freeze()).collect()
    }

    /// The content, to be changed, if this is the cell's only handle.
    pub fn get_mut(&mut self) -> Option<&mut [u8; BLOCK_BYTES]> {
        // Acquire: what other holders read happened before they gave their handles up.
        if self.0.count().load(Ordering::Acquire) != 1 {
            return None;
        }
        // SAFETY: a handle is only made from a handle; this is the only one and it is borrowed.
        Some(unsafe { self.0.0.cast().as_mut() })
    }

    /// Whether both are the same cell (not merely equal content).
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
        // As std's Arc: release our reads, and acquire everybody's before the cell is reused.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cell_is_reused_only_after_its_last_holder() {
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
    fn many_blocks_are_all_different_cells() {
        let contents: Vec<_> = (0..1000_u32).map(|n| [n as u8; BLOCK_BYTES]).collect();
        let blocks = Block::copies_of(&contents);
        assert!(blocks.iter().map(|block| **block).eq(contents));
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
    fn threads_may_share_and_drop() {
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
