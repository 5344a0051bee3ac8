//! Reading a volume.
//!
//! Not here: verification (weir-pool, on every read from disk).
//!
//! Invariants:
//! - newest first: open table, table being written out, tree;
//! - the root is taken under the same lock that found both tables empty, so no write is missed;
//! - a root may be outlived by its segments while a read waits; the read then starts over.

use weir_base::BLOCK_BYTES;
use weir_device::Block;
use weir_format::BlockPtr;
use weir_pool::{Lookup, PoolError, Tree};

use crate::dirty::Dirty;
use crate::error::DatasetError;
use crate::volume::{Source, Volume};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Times a read starts over because its segments were reused under it; each needs several commits
/// in between, so more is a fault.
const RESTARTS_MAX: usize = 8;

/// One block of a read: where it lies in the caller's buffer.
struct Piece {
    block: u64,
    /// Start inside the block.
    from: usize,
    /// Start inside the buffer.
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
        let piece = Piece {
            block: at / BLOCK,
            from,
            to: done,
            len: (BLOCK_BYTES - from).min(len - done),
        };
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
    /// Reads if everything is in memory; `Ok(false)`: call [`Self::read`] (`out` is then garbage).
    pub fn try_read(&self, offset: u64, out: &mut [u8]) -> Result<bool, DatasetError> {
        self.check(&self.state.lock(), offset, out.len() as u64)?;
        let pool = &self.core.pool;
        for piece in pieces(offset, out.len()) {
            let source = self.state.lock().source(piece.block);
            match source {
                Source::Dirty(Dirty::Data(block)) => fill(out, &piece, Some(&block)),
                Source::Dirty(Dirty::Hole) => fill(out, &piece, None),
                Source::Tree(root) => match Tree::new(pool, root).lookup_cached(piece.block)? {
                    Lookup::NeedsNode(_) => return Ok(false),
                    Lookup::Found(ptr) if ptr.is_hole() => fill(out, &piece, None),
                    Lookup::Found(ptr) => match pool.cached(&ptr) {
                        Some(block) => fill(out, &piece, Some(&block)),
                        None => return Ok(false),
                    },
                },
            }
        }
        Ok(true)
    }

    /// Reads, from disk where needed.
    ///
    /// # Errors
    /// `Data` when a block is damaged on every leg; the rest of `out` is then unspecified.
    pub async fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), DatasetError> {
        for _ in 0..RESTARTS_MAX {
            match self.read_once(offset, out).await {
                Err(DatasetError::Pool(PoolError::NoSegment { .. })) => {}
                done => return done,
            }
        }
        self.read_once(offset, out).await
    }

    async fn read_once(&self, offset: u64, out: &mut [u8]) -> Result<(), DatasetError> {
        let mut missing: Vec<(Piece, BlockPtr)> = Vec::new();
        self.check(&self.state.lock(), offset, out.len() as u64)?;
        for piece in pieces(offset, out.len()) {
            let source = self.state.lock().source(piece.block);
            match source {
                Source::Dirty(Dirty::Data(block)) => fill(out, &piece, Some(&block)),
                Source::Dirty(Dirty::Hole) => fill(out, &piece, None),
                Source::Tree(root) => {
                    let ptr = Tree::new(&self.core.pool, root).lookup(piece.block).await?;
                    if ptr.is_hole() {
                        fill(out, &piece, None);
                    } else {
                        missing.push((piece, ptr));
                    }
                }
            }
        }
        let ptrs: Vec<BlockPtr> = missing.iter().map(|(_, ptr)| *ptr).collect();
        let blocks = self.core.pool.read_blocks(&ptrs).await;
        for ((piece, _), block) in missing.iter().zip(blocks) {
            fill(out, piece, Some(&block?));
        }
        Ok(())
    }

    /// Brings a range into the cache.
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
