//! WRITE SAME: fills a range with one pattern, which is stored once.
//!
//! `commit::write_table` stores the pattern.
//!
//! Invariant: for all other code, WRITE SAME is a write of the whole range: part of a txg, logged
//! by a flush, and as atomic as a write.

use async_recursion::async_recursion as boxed;
use weir_base::BLOCK_BYTES;
use weir_block::BlockMut;
use weir_codec::compress::is_zero;

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::volume::Volume;

const BLOCK: u64 = BLOCK_BYTES as u64;

impl Engine {
    /// Fills a range with a pattern of at most one block, whose length is a power of two. Offset
    /// and length of the range are multiples of that length. Whole blocks are stored once and
    /// referenced; zeros are trimmed.
    ///
    /// # Durability
    /// None until a flush, as for a write.
    ///
    /// # Errors
    /// `Unfit` for a pattern or range with an invalid length or offset, and all errors of a write.
    #[boxed(?Send)]
    pub async fn write_same(
        &self,
        volume: &Volume,
        offset: u64,
        len: u64,
        pattern: &[u8],
    ) -> Result<(), DatasetError> {
        self.core.pool.check_alive()?;
        {
            let state = volume.state.lock();
            let bytes = pattern.len() as u64;
            let fits = (1..=BLOCK).contains(&bytes) && BLOCK.is_multiple_of(bytes);
            if !fits || !offset.is_multiple_of(bytes) || !len.is_multiple_of(bytes) {
                let why = "is filled with a pattern of at most 4096 bytes that divides both 4096 \
                           and the range";
                let name = volume.full_name(&state);
                return Err(DatasetError::Unfit { name, why: why.to_owned() });
            }
            volume.check_change(&state, offset, len)?;
        }
        if is_zero(pattern) {
            return if len == 0 { Ok(()) } else { volume.zero(offset, len).await };
        }
        let mut filled = BlockMut::zeroed();
        filled.chunks_exact_mut(pattern.len()).for_each(|part| part.copy_from_slice(pattern));
        volume.fill(offset, len, &filled.freeze()).await
    }
}
