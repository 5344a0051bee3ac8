//! Walking a tree beside another one: what is at its place in the first and not in the second.
//!
//! Not here: what it is asked for (freeing a snapshot, its space, what changed between two).
//!
//! Trees are copy-on-write and blocks keep their places, so equal pointers at one place lead to
//! equal subtrees, and a walk reads only nodes that differ.
//!
//! Invariants:
//! - blocks are found in order, a node after everything below it;
//! - everything that ends at [`Walk::position`] or before was found, nothing else: a later walk can
//!   go on from there.

use futures_util::future::join;
use weir_base::{ErrorKind, Txg};
use weir_device::Block;
use weir_format::{BlockPtr, NODE_FANOUT, PtrKind, TreeRoot};

use crate::error::PoolError;
use crate::line::end_of;
use crate::pool::Pool;
use crate::tree::Tree;

/// Something that one tree has and the other has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// 0 for a block.
    pub level: u8,
    /// Position among the blocks or nodes of that level.
    pub index: u64,
    /// The pointer to it; a hole where the other tree has something.
    pub ptr: BlockPtr,
}

/// What to look for.
#[derive(Clone, Copy, Debug)]
pub struct Unshared {
    /// The tree that is walked.
    pub root: TreeRoot,
    /// The tree it is compared with, if any.
    pub other: Option<TreeRoot>,
    /// Nothing born up to this txg is looked at.
    pub after: Txg,
    /// Nothing that ends here or before is looked at.
    pub from: u64,
    /// Whether to find holes where the other tree has something, and, with no other tree, all holes
    /// of nodes that changed.
    pub holes: bool,
}

/// The other tree's side of a place.
#[derive(Clone, Copy)]
enum Beside {
    Nothing,
    /// A subtree of this many levels at the start of the place, which may have more.
    Root(BlockPtr, u8),
}

impl Beside {
    fn of(ptr: BlockPtr, level: u8) -> Self {
        if ptr.is_hole() { Self::Nothing } else { Self::Root(ptr, level) }
    }
}

/// A node under way.
struct Frame {
    ptr: BlockPtr,
    level: u8,
    index: u64,
    node: Block,
    /// The node beside it, or a lower subtree beside its first child.
    beside: Option<Block>,
    lower: Beside,
    slot: usize,
}

/// A walk under way.
pub struct Walk<'p> {
    pool: &'p Pool,
    what: Unshared,
    started: bool,
    stack: Vec<Frame>,
    position: u64,
    /// Nodes that could not be read.
    damaged: u64,
}

impl Pool {
    /// Starts a walk.
    pub fn unshared(&self, what: Unshared) -> Walk<'_> {
        let position = what.from;
        Walk { pool: self, what, started: false, stack: Vec::new(), position, damaged: 0 }
    }
}

impl Walk<'_> {
    /// Everything before this block was found.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Nodes that could not be read: what is below them was left out.
    pub fn damaged(&self) -> u64 {
        self.damaged
    }

    /// The next blocks (up to those of one leaf), and the nodes that end with them; else the end.
    ///
    /// # Errors
    /// The pool is suspended. A damaged node is counted and passed by.
    pub async fn next(&mut self) -> Result<Vec<Found>, PoolError> {
        let mut found = Vec::new();
        if !self.started {
            self.started = true;
            let TreeRoot { ptr, height } = self.what.root;
            let beside = self.beside_root(height).await?;
            self.visit(ptr, height, 0, beside, &mut found).await?;
        }
        while let Some(frame) = self.stack.last_mut() {
            if frame.slot == NODE_FANOUT {
                let frame = self.stack.pop().expect("it is the last");
                self.leave(&frame, &mut found);
                continue;
            }
            // A leaf is done at once; of anything above, what was found is handed out first.
            if !found.is_empty() && frame.level > 1 {
                break;
            }
            let (slot, level) = (frame.slot, frame.level);
            frame.slot += 1;
            let tree = Tree::new(self.pool, self.what.root);
            let index = frame.index * NODE_FANOUT as u64 + slot as u64;
            let child = tree.pointer_below(&frame.node, index)?;
            let beside = match (&frame.beside, frame.lower) {
                (Some(node), _) => Beside::of(tree.pointer_below(node, index)?, level - 1),
                (None, lower) if slot == 0 => lower,
                (None, _) => Beside::Nothing,
            };
            self.visit(child, level - 1, index, beside, &mut found).await?;
        }
        if self.stack.is_empty() {
            self.position = u64::MAX;
        }
        Ok(found)
    }

    /// What all that is still to be found takes on disk, in units of 64 bytes.
    ///
    /// # Errors
    /// As [`Self::next`].
    pub async fn units(mut self) -> Result<u64, PoolError> {
        let mut units = 0;
        loop {
            let found = self.next().await?;
            if found.is_empty() {
                return Ok(units);
            }
            units += found.iter().map(|found| u64::from(found.ptr.stored_units)).sum::<u64>();
        }
    }

    /// The other tree's side of the whole of this one.
    async fn beside_root(&mut self, height: u8) -> Result<Beside, PoolError> {
        let Some(other) = self.what.other else { return Ok(Beside::Nothing) };
        let (mut ptr, mut level) = (other.ptr, other.height);
        while level > height && !ptr.is_hole() {
            let Some(node) = self.read(&ptr).await? else { return Ok(Beside::Nothing) };
            ptr = Tree::new(self.pool, other).pointer_below(&node, 0)?;
            level -= 1;
        }
        Ok(Beside::of(ptr, level))
    }

    fn leave(&mut self, frame: &Frame, found: &mut Vec<Found>) {
        found.push(Found { level: frame.level, index: frame.index, ptr: frame.ptr });
        self.position = self.position.max(end_of(frame.level, frame.index));
    }

    /// Looks at one place: passes it by, finds it, or goes into it.
    async fn visit(
        &mut self,
        ptr: BlockPtr,
        level: u8,
        index: u64,
        beside: Beside,
        found: &mut Vec<Found>,
    ) -> Result<(), PoolError> {
        let end = end_of(level, index);
        if end <= self.what.from {
            return Ok(());
        }
        let same = match beside {
            Beside::Root(other, its_level) => its_level == level && other == ptr,
            Beside::Nothing => false,
        };
        if ptr.is_hole() {
            let is_news = self.what.holes
                && (self.what.other.is_none() || matches!(beside, Beside::Root(..)));
            if is_news {
                found.push(Found { level, index, ptr });
            }
        } else if !same && ptr.birth > self.what.after {
            if level > 0 {
                return self.enter(ptr, level, index, beside, found).await;
            }
            found.push(Found { level, index, ptr });
        }
        self.position = self.position.max(end);
        Ok(())
    }

    async fn enter(
        &mut self,
        ptr: BlockPtr,
        level: u8,
        index: u64,
        beside: Beside,
        found: &mut Vec<Found>,
    ) -> Result<(), PoolError> {
        let mut beside_node_of = None;
        let beside_node = match beside {
            Beside::Root(other, its_level) if its_level == level => Some(other),
            _ => None,
        };
        let node = match beside_node {
            Some(other) => {
                let (node, beside) =
                    join(self.pool.read_block(&ptr), self.pool.read_block(&other)).await;
                // A damaged node beside: what it shares cannot be told, so nothing is its own.
                beside_node_of = self.usable(beside)?;
                if beside_node_of.is_none() {
                    self.position = self.position.max(end_of(level, index));
                    return Ok(());
                }
                node
            }
            None => self.pool.read_block(&ptr).await,
        };
        match self.usable(node)? {
            Some(node) => {
                let (lower, slot) = (beside, 0);
                let beside = beside_node_of;
                let frame = Frame { ptr, level, index, node, beside, lower, slot };
                if level > 1 {
                    self.read_ahead(&frame).await;
                }
                self.stack.push(frame);
            }
            None => {
                // The node itself is known, what is below it is not.
                found.push(Found { level, index, ptr });
                self.position = self.position.max(end_of(level, index));
            }
        }
        Ok(())
    }

    /// Brings the nodes below a node that will be walked into the cache together.
    async fn read_ahead(&self, frame: &Frame) {
        let tree = Tree::new(self.pool, self.what.root);
        let mut wanted = Vec::new();
        for slot in 0..NODE_FANOUT as u64 {
            let index = frame.index * NODE_FANOUT as u64 + slot;
            let child = tree.pointer_below(&frame.node, index).unwrap_or_default();
            let beside = frame.beside.as_ref();
            let beside =
                beside.map_or(BlockPtr::HOLE, |n| tree.pointer_below(n, index).unwrap_or_default());
            let is_walked = child.kind == PtrKind::Node
                && child != beside
                && child.birth > self.what.after
                && end_of(frame.level - 1, index) > self.what.from;
            if is_walked {
                wanted.push(child);
                wanted.extend((!beside.is_hole()).then_some(beside));
            }
        }
        if wanted.len() > 1 {
            // What cannot be read is met again, and reported, where it is needed.
            drop(self.pool.read_blocks(&wanted).await);
        }
    }

    async fn read(&mut self, ptr: &BlockPtr) -> Result<Option<Block>, PoolError> {
        let node = self.pool.read_block(ptr).await;
        self.usable(node)
    }

    fn usable(&mut self, node: Result<Block, PoolError>) -> Result<Option<Block>, PoolError> {
        match node {
            Ok(node) => Ok(Some(node)),
            Err(error) if error.kind() == ErrorKind::Data => {
                tracing::error!(%error, "what is below a damaged node is passed by");
                self.damaged += 1;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }
}
