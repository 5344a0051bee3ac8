//! Compares counters with the trees.
//!
//! Not here: the comparison of a pool's trees (weir-pool).
//!
//! Invariant: a check changes nothing.

use async_recursion::async_recursion as boxed;
use weir_format::BlockPtr;

use crate::error::DatasetError;
use crate::state::engine::Engine;

impl Engine {
    /// Compares every segment's live bytes with what the trees refer to; empty when they agree.
    /// Nothing may be written meanwhile.
    #[boxed(?Send)]
    pub async fn check_live_bytes(
        &self,
    ) -> Result<Vec<(weir_base::VsegId, u64, u64)>, DatasetError> {
        let _committer = self.core.committer.lock().await;
        Ok(self.core.pool.check_live_bytes(&self.roots_with(&[])).await?)
    }

    /// Compares the counts of references to shared blocks with the pointers that lead to them;
    /// empty when they agree. Nothing may be written meanwhile.
    #[boxed(?Send)]
    pub async fn check_references(&self) -> Result<Vec<weir_pool::WrongCount>, DatasetError> {
        let _committer = self.core.committer.lock().await;
        Ok(self.core.pool.check_references(&self.roots_with(&[])).await?)
    }

    /// Two blocks that share a place on disk, or twice one that has none; `None` when all is well.
    /// Nothing may be written meanwhile.
    #[boxed(?Send)]
    pub async fn check_places(&self) -> Result<Option<(BlockPtr, BlockPtr)>, DatasetError> {
        let _committer = self.core.committer.lock().await;
        Ok(self.core.pool.check_places(&self.roots_with(&[])).await?)
    }
}
