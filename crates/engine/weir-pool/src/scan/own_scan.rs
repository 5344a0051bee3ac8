//! Verifies the metadata trees on disk while their content is in RAM.
//!
//! Not here: scrubs (`segment_scan`), which also verify each leg.
//!
//! A metadata block that became unreadable on disk is lost at the next restart. While the pool is
//! open, a commit can rewrite all metadata trees from RAM.
//!
//! Invariant: a copy that is still bad after a rewrite causes no second rewrite.

use weir_base::ErrorKind;
use weir_base::hash::HashSet;

use crate::error::PoolError;
use crate::scan::copies::proves;
use crate::state::pool::Pool;

impl Pool {
    /// Reads every copy of every block of the metadata trees from disk. Returns true if copies are
    /// bad now but were good at the last call; the next commit then rewrites all metadata trees.
    ///
    /// # Errors
    /// `NoSegment`: a commit replaced the trees during the call. Other errors: disks are missing,
    /// or the pool is suspended.
    pub async fn verify_own_trees(&self) -> Result<bool, PoolError> {
        let sets = self.live_roots().await?;
        let mut bad = HashSet::default();
        for (vseg, set) in &sets {
            let Some(place) = self.segments.pin(*vseg) else { continue };
            let vdev = &self.vdevs[usize::from(place.vdev)];
            for live in &set.live {
                let (first, at) = (vdev.next_leg(), place.at + live.at);
                let is_right = |bytes: &[u8]| proves(live.proof, bytes);
                match vdev.read_verified(first, at, live.len, is_right).await {
                    Ok(_) => {}
                    Err(error) if error.kind() == ErrorKind::Data => {
                        tracing::error!(%error, "a copy of a metadata block is damaged");
                        bad.insert((*vseg, live.at));
                    }
                    Err(error) => return Err(error),
                }
            }
        }
        let mut known = self.lost_nodes.bad_roots.lock();
        let is_new = !bad.is_subset(&known);
        *known = bad;
        if is_new {
            self.want_new_roots();
        }
        Ok(is_new)
    }
}
