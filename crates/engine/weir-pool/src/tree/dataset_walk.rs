//! Visits all pointers of a version of a dataset, in all its objects, for checks and recounts.
//!
//! The walk of one tree is in `radix_tree`.
//!
//! Invariant: the walks of all versions of a snapshot chain visit each pointer once.

use async_recursion::async_recursion as boxed;
use weir_base::hash::HashSet;
use weir_base::{ErrorKind, ObjectId};
use weir_format::{BlockPtr, ObjectSlot, TreeRoot};

use crate::error::PoolError;
use crate::state::pool::Pool;
use crate::tree::place::{Objects, Place};
use crate::tree::radix_tree::{AlsoWalked, Tree};
use crate::tree::snapshot_chain::{SharedBirths, SnapshotChain};

/// Version that a walk visits, and the blocks of this version that the walk skips.
struct Own<'a> {
    objects: Objects,
    root: TreeRoot,
    /// Returns the blocks of an object that earlier versions also reference. The walk skips them.
    held: &'a dyn Fn(ObjectId) -> SharedBirths,
    /// Place up to which the version is already freed. The walk skips blocks before it.
    freed_to: Place,
}

impl Pool {
    /// Calls `visit` for each pointer of a version. Skips pointers that earlier versions also
    /// reference, and pointers that are already freed. Returns the number of unreadable nodes and
    /// slots, and skips everything below them.
    ///
    /// `seen`: addresses of the partial records that earlier walks have followed. The walk follows
    /// each other partial record: it adds the address to `seen` and visits the records that the
    /// partial record replaced. `None`: the walk visits no replaced records.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn walk_version(
        &self,
        chain: &SnapshotChain,
        index: usize,
        seen: Option<&mut HashSet<u64>>,
        visit: &mut dyn FnMut(BlockPtr),
    ) -> Result<u64, PoolError> {
        let version = chain.versions[index];
        let held = |object| chain.held_before(index, object);
        let (objects, root, freed_to) = (chain.objects, version.root, version.freed_to);
        self.walk_own(Own { objects, root, held: &held, freed_to }, seen, visit).await
    }

    /// Calls `visit` for each pointer of a version, nodes included, even if other versions
    /// reference it too. Returns the number of unreadable nodes and slots, and skips everything
    /// below them.
    ///
    /// # Errors
    /// The pool is suspended.
    #[boxed(?Send)]
    pub async fn walk_dataset(
        &self,
        objects: Objects,
        root: TreeRoot,
        visit: &mut dyn FnMut(BlockPtr),
    ) -> Result<u64, PoolError> {
        let (held, freed_to) = (|_| SharedBirths::default(), Place::START);
        self.walk_own(Own { objects, root, held: &held, freed_to }, None, visit).await
    }

    /// True if a version has a damage marker: in the tree of the volume, in the object table, or in
    /// the tree of an object.
    ///
    /// # Errors
    /// A node or slot cannot be read.
    #[boxed(?Send)]
    pub async fn has_markers(&self, objects: Objects, root: TreeRoot) -> Result<bool, PoolError> {
        let table = Tree::new(self, root);
        let is_marked = table.has_markers().await?;
        if is_marked || objects == Objects::One {
            return Ok(is_marked);
        }
        let mut blocks = Vec::new();
        let mut found = |index, ptr| {
            blocks.push((index, ptr));
            true
        };
        table.scan(0..root.blocks(), &mut found).await?;
        for (index, ptr) in blocks {
            let block = self.read_block(&ptr).await?;
            for object in ObjectSlot::objects_in(index) {
                let root = self.root_in_slot(&ptr, &block, object)?;
                if Tree::new(self, root).has_markers().await? {
                    return Ok(true);
                }
            }
        }
        Ok(false)
    }

    async fn walk_own(
        &self,
        own: Own<'_>,
        mut seen: Option<&mut HashSet<u64>>,
        visit: &mut dyn FnMut(BlockPtr),
    ) -> Result<u64, PoolError> {
        let Own { objects, root, held, freed_to } = own;
        let first = |object| freed_to.within(object, objects);
        let (tree, table) = (Tree::new(self, root), ObjectId::TABLE);
        let (table_held, table_first) = (held(table), first(table));
        let mut blocks = Vec::new();
        let wanted = (objects == Objects::Many).then_some(&mut blocks);
        let also = AlsoWalked { replaced: seen.as_deref_mut(), blocks: wanted };
        let mut lost = tree.walk_replaced(&table_held, table_first, also, visit).await?;
        for (index, ptr) in blocks {
            let block = match self.read_block(&ptr).await {
                Err(error) if error.kind() == ErrorKind::Data => {
                    lost += 1;
                    continue;
                }
                block => block?,
            };
            for object in ObjectSlot::objects_in(index) {
                let Ok(root) = self.root_in_slot(&ptr, &block, object) else {
                    lost += 1;
                    continue;
                };
                let also = AlsoWalked { replaced: seen.as_deref_mut(), blocks: None };
                let tree = Tree::new(self, root);
                lost += tree.walk_replaced(&held(object), first(object), also, visit).await?;
            }
        }
        Ok(lost)
    }
}
