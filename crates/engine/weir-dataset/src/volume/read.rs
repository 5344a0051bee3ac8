//! Reads of a volume.
//!
//! weir-pool verifies every read from disk.
//!
//! Invariants:
//! - newest content first: open table, syncing table, tree;
//! - a read checks the tables for newer content and takes the root without releasing the lock in
//!   between, so it misses no write;
//! - the segments of a root may be reused while a read waits; the read then restarts.

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, ErrorKind};
use weir_block::Block;
use weir_format::{BlockPtr, NODE_FANOUT};
use weir_pool::{PoolError, RecordPart, Tree};

use crate::error::DatasetError;
use crate::objects::dirty::Dirty;
use crate::objects::record::ZERO_BLOCK;
use crate::state::volume::{Source, State, Volume};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Maximum number of restarts of a read because its segments were reused. Each restart requires
/// several commits in between, so a larger number means a fault.
pub(crate) const RESTARTS_MAX: usize = 8;

/// Runs a read of committed trees. Runs it again, at most [`RESTARTS_MAX`] times, if commits
/// replaced the trees and reused their segments during the read.
pub(crate) async fn restarted<T>(
    mut read: impl AsyncFnMut() -> Result<T, DatasetError>,
) -> Result<T, DatasetError> {
    for _ in 0..RESTARTS_MAX {
        match read().await {
            Err(DatasetError::Pool(PoolError::NoSegment { .. })) => {}
            done => return done,
        }
    }
    read().await
}

/// Blocks looked up each time the lock is held: enough to amortise the locking, and few enough that
/// writers on other threads notice no delay.
const BATCH: usize = 32;

/// Content of a block in memory.
enum InMemory {
    Data(Block),
    Zeros,
    No,
}

/// One block of a read and its position in the caller's buffer.
struct Piece {
    block: u64,
    /// Offset in the block.
    from: usize,
    /// Offset in the buffer.
    to: usize,
    len: usize,
}

fn pieces(offset: u64, len: usize) -> impl Iterator<Item = Piece> {
    let mut done = 0;
    std::iter::from_fn(move || {
        if done == len {
            return None;
        }
        let at = offset + done as u64;
        let from = (at % BLOCK) as usize;
        let piece =
            Piece { block: at / BLOCK, from, to: done, len: (BLOCK_BYTES - from).min(len - done) };
        done += piece.len;
        Some(piece)
    })
}

fn fill(out: &mut [u8], piece: &Piece, block: Option<&Block>) {
    let out = &mut out[piece.to..piece.to + piece.len];
    match block {
        Some(block) => out.copy_from_slice(&block[piece.from..piece.from + piece.len]),
        None => out.fill(0),
    }
}

impl Volume {
    /// Reads the range if all of it is in memory. On `Ok(false)` the caller uses [`Self::read`],
    /// and the content of `out` is unspecified.
    pub fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<bool, DatasetError> {
        let mut found: [Option<Block>; BATCH] = [const { None }; BATCH];
        let mut done = 0;
        // Take the handles under the lock; copy the bytes without it.
        while done < out.len() {
            let (mut taken, mut len) = (0, 0);
            {
                let mut state = self.state.lock();
                let at = offset + done as u64;
                self.check(&state, at, (out.len() - done) as u64)?;
                for piece in pieces(at, out.len() - done).take(BATCH) {
                    found[taken] = match self.in_memory(&mut state, piece.block)? {
                        InMemory::Data(block) => Some(block),
                        InMemory::Zeros => None,
                        InMemory::No => return Ok(false),
                    };
                    taken += 1;
                    len += piece.len;
                }
            }
            let part = &mut out[done..done + len];
            for (piece, block) in pieces(offset + done as u64, len).zip(&found) {
                fill(part, &piece, block.as_ref());
            }
            done += len;
        }
        Ok(true)
    }

    /// Appends a handle for each block of an aligned range if all of the range is in memory. On
    /// `Ok(false)` the caller uses [`Self::read`], and the content of `blocks` is unspecified.
    pub fn try_share(
        &self,
        offset: u64,
        len: u64,
        blocks: &mut Vec<Block>,
    ) -> Result<bool, DatasetError> {
        let range = offset / BLOCK..(offset + len) / BLOCK;
        let mut at = range.start;
        while at < range.end {
            let mut state = self.state.lock();
            self.check(&state, offset, len)?;
            let batch = at..range.end.min(at + BATCH as u64);
            at = batch.end;
            for block in batch {
                blocks.push(match self.in_memory(&mut state, block)? {
                    InMemory::Data(block) => block,
                    InMemory::Zeros => Block::clone(&ZERO_BLOCK),
                    InMemory::No => return Ok(false),
                });
            }
        }
        Ok(true)
    }

    /// Returns the content of a block if it is in memory.
    fn in_memory(&self, state: &mut State, block: u64) -> Result<InMemory, DatasetError> {
        let part = state.record.record_size.part_of(block);
        let stored = |ptr| self.core.pool.cached(&ptr, part).map_or(InMemory::No, InMemory::Data);
        let source = match state.source(&self.core.pool, block) {
            // `read` finds the same error and adds the block to the list of permanent errors.
            Err(error) if error.kind() == ErrorKind::Data => return Ok(InMemory::No),
            source => source?,
        };
        Ok(match source {
            Source::Dirty(Dirty::Data(block)) => InMemory::Data(block),
            Source::Dirty(Dirty::Hole) => InMemory::Zeros,
            Source::Stored(ptr) if ptr.is_hole() => InMemory::Zeros,
            Source::Stored(ptr) => stored(ptr),
            Source::Tree(_) => InMemory::No,
        })
    }

    /// Reads bytes, from disk where needed.
    ///
    /// # Errors
    /// `Data` if a block is damaged on every leg. The rest of `out` is then unspecified, and the
    /// pool's list of permanent errors contains the unreadable records.
    #[boxed(?Send)]
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DatasetError> {
        let blocks = offset / BLOCK..(offset + out.len() as u64).div_ceil(BLOCK);
        let mut read = self.read_once(offset, out).await;
        for _ in 0..RESTARTS_MAX {
            match &read {
                Err(DatasetError::Pool(PoolError::NoSegment { .. })) => {}
                Err(error) if error.kind() == ErrorKind::Data => {
                    self.note_unreadable(blocks.clone(), false).await;
                    if self.is_listed(&blocks) {
                        break;
                    }
                    // A commit replaced the tree or the record during the read, and both are intact
                    // on disk: read again.
                }
                _ => break,
            }
            read = self.read_once(offset, out).await;
        }
        read
    }

    async fn read_once(&self, offset: u64, out: &mut [u8]) -> Result<(), DatasetError> {
        let mut missing: Vec<(Piece, RecordPart)> = Vec::new();
        let size = {
            let state = self.state.lock();
            self.check(&state, offset, out.len() as u64)?;
            state.record.record_size
        };
        self.load_leaves(offset, out.len() as u64).await?;
        for piece in pieces(offset, out.len()) {
            let source = self.state.lock().source(&self.core.pool, piece.block)?;
            let ptr = match source {
                Source::Dirty(Dirty::Data(block)) => {
                    fill(out, &piece, Some(&block));
                    continue;
                }
                Source::Dirty(Dirty::Hole) => BlockPtr::HOLE,
                Source::Stored(ptr) => ptr,
                Source::Tree(root) => {
                    let record = size.record_of(piece.block);
                    let ptr = Tree::new(&self.core.pool, root).lookup(record).await?;
                    self.core.pool.check_record(&ptr, size)?;
                    ptr
                }
            };
            if ptr.is_hole() {
                fill(out, &piece, None);
            } else {
                let part = size.part_of(piece.block);
                missing.push((piece, RecordPart { ptr, part }));
            }
        }
        let parts: Vec<RecordPart> = missing.iter().map(|(_, part)| *part).collect();
        let blocks = self.core.pool.read_parts(&parts).await;
        for ((piece, _), block) in missing.iter().zip(blocks) {
            fill(out, piece, Some(&block?));
        }
        Ok(())
    }

    /// Reads the uncached leaf nodes of a range, all concurrently.
    async fn load_leaves(&self, offset: u64, len: u64) -> Result<(), DatasetError> {
        let blocks = offset / BLOCK..(offset + len).div_ceil(BLOCK);
        let mut unknown = Vec::new();
        {
            let mut state = self.state.lock();
            let size = state.record.record_size;
            let mut block = blocks.start;
            while block < blocks.end {
                if let Source::Tree(root) = state.source(&self.core.pool, block)? {
                    unknown.push((root, size.record_of(block)));
                }
                block = (block + 1).next_multiple_of(NODE_FANOUT as u64 * size.blocks());
            }
        }
        let lookups = unknown.iter().map(|(root, record)| async move {
            Tree::new(&self.core.pool, *root).lookup(*record).await
        });
        for found in futures_util::future::join_all(lookups).await {
            found?;
        }
        Ok(())
    }

    /// Reads a range into the cache.
    #[boxed(?Send)]
    pub async fn prefetch(&self, offset: u64, len: u64) -> Result<(), DatasetError> {
        const STEP_BYTES: u64 = 1 << 20;
        let mut scratch = vec![0; STEP_BYTES.min(len) as usize];
        let mut done = 0;
        while done < len {
            let step = STEP_BYTES.min(len - done) as usize;
            self.read(offset + done, &mut scratch[..step]).await?;
            done += step as u64;
        }
        Ok(())
    }
}
