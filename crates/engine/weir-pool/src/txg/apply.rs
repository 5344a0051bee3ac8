//! Applies changes to a tree: writes the changed nodes and returns the new root.
//!
//! Changes to one node are in `apply_nodes`, reads of trees in `radix_tree`.
//!
//! Invariant: the old tree stays readable until the txg is committed.

use async_recursion::async_recursion as boxed;
use futures_util::StreamExt as _;
use weir_base::limits::NODE_READS_IN_FLIGHT;
use weir_block::BlockMut;
use weir_format::{BlockPtr, TreeRoot, set_node_pointer};

use crate::error::PoolError;
use crate::segments::sanity::Visited;
use crate::state::lost_nodes::Unreadable;
use crate::tree::change::Change;
use crate::tree::delta::Delta;
use crate::tree::radix_tree::{EarlierSnapshots, Tree, TreeKind, span};
use crate::txg::apply_nodes::{Apply, touched_slots, write_node};
use crate::txg::write_out::WriteOut;

impl Tree<'_> {
    /// Reads the nodes under `top` that `changes` will touch into the cache, many at a time.
    /// [`Self::apply`] reports unreadable nodes.
    pub(crate) async fn warm(&self, top: BlockPtr, top_level: u8, base: u64, changes: &[Change]) {
        let mut here = vec![(top, base)];
        for level in (1..=top_level).rev() {
            let reads =
                here.iter().filter(|(ptr, _)| !ptr.is_hole()).map(|(ptr, base)| async move {
                    let node = self.pool.read_block(ptr).await.ok()?;
                    // Leaves only need to be in the cache. Keeping all leaves here could take much
                    // RAM.
                    (level > 1).then_some((*ptr, node, *base))
                });
            let nodes: Vec<_> = futures_util::stream::iter(reads)
                .buffer_unordered(NODE_READS_IN_FLIGHT)
                .filter_map(std::future::ready)
                .collect()
                .await;
            here.clear();
            for (ptr, node, base) in nodes {
                for index in touched_slots(changes, base, level) {
                    let Ok(child) = self.slot((&ptr, level), &node, index) else { continue };
                    here.push((child, base + index as u64 * span(level - 1)));
                }
            }
        }
    }

    /// Applies changes (sorted, disjoint, inside the tree) and returns the new root.
    ///
    /// Frees every replaced pointer and every replaced node through `out`, except blocks that
    /// earlier versions hold.
    #[boxed(?Send)]
    pub async fn apply(
        &self,
        out: &mut WriteOut<'_>,
        home: TreeKind,
        past: &EarlierSnapshots,
        changes: &[Change],
    ) -> Result<(TreeRoot, Delta), PoolError> {
        let mut delta = Delta::default();
        assert!(changes.is_sorted_by(|a, b| a.end() <= b.start), "changes are sorted and disjoint");
        if let Some(last) = changes.last() {
            assert!(last.end() <= span(self.root.height), "changes lie inside the tree");
        }
        let (unreadable, met) = (Unreadable::default(), Visited::default());
        let mut job = Apply { tree: *self, out, home, past, delta: &mut delta, unreadable, met };
        let ptr = job.under(self.root.ptr, self.root.height, 0, changes).await?;
        Ok((TreeRoot { ptr, height: self.root.height }, delta))
    }

    /// Returns a root of at least this height with the same content and the same block indexes, and
    /// the space that the new nodes take.
    #[boxed(?Send)]
    pub async fn grow(
        &self,
        out: &mut WriteOut<'_>,
        home: TreeKind,
        height: u8,
    ) -> Result<(TreeRoot, Delta), PoolError> {
        let mut root = self.root;
        let mut delta = Delta::default();
        while root.height < height {
            if !root.ptr.is_hole() {
                let mut node = BlockMut::zeroed();
                set_node_pointer(&mut node, 0, &root.ptr);
                let node = node.freeze();
                root.ptr = write_node(out, home, (root.height + 1, 0), &node).await?;
                delta.gain(&root.ptr);
                out.keep(root.ptr, node);
            }
            root.height += 1;
        }
        Ok((root, delta))
    }
}
