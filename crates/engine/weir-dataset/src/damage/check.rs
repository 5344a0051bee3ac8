//! Checks of counters against the trees.
//!
//! weir-pool compares the counters.
//!
//! Invariant: a check changes nothing.

use async_recursion::async_recursion as boxed;
use weir_format::BlockPtr;

use crate::error::DatasetError;
use crate::state::engine::Engine;

impl Engine {
    /// Compares the live-byte counter of every segment with the references in the trees. The result
    /// is empty if they agree. No write may run concurrently.
    #[boxed(?Send)]
    pub async fn check_live_bytes(
        &self,
    ) -> Result<Vec<(weir_base::VsegId, u64, u64)>, DatasetError> {
        let _committer = self.core.committer.lock().await;
        Ok(self.core.pool.check_live_bytes(&self.roots_with(&[])).await?)
    }

    /// Compares the reference counts of shared blocks with the pointers to them. The result is
    /// empty if they agree. No write may run concurrently.
    #[boxed(?Send)]
    pub async fn check_references(&self) -> Result<Vec<weir_pool::WrongCount>, DatasetError> {
        let _committer = self.core.committer.lock().await;
        Ok(self.core.pool.check_references(&self.roots_with(&[])).await?)
    }

    /// Returns two blocks that share a disk address. For a block without a disk address, returns
    /// this block twice. `None` if all blocks are right. No write may run concurrently.
    #[boxed(?Send)]
    pub async fn check_places(&self) -> Result<Option<(BlockPtr, BlockPtr)>, DatasetError> {
        let _committer = self.core.committer.lock().await;
        Ok(self.core.pool.check_places(&self.roots_with(&[])).await?)
    }
}
