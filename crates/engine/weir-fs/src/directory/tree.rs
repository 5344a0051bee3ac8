//! Operations on the B+tree of a directory, on blocks in memory.
//!
//! `check` verifies a whole tree.
//!
//! If an operation needs a block that is not in memory, it fails with [`DirectoryError::Missing`]
//! and changes nothing. The caller reads the block and repeats the operation.
//!
//! Invariants:
//! - block 0 is the root; the first child of a node begins at the lower bound of the node itself.
//!   The stored key of this child may be larger: the node was not its parent's first child then;
//! - only the root may have no entry or child;
//! - the changed blocks of an operation form a valid tree together with the other blocks.

use std::collections::BTreeMap;

use weir_base::{BLOCK_BYTES, ObjectId};
use weir_block::{Block, BlockMut};
use weir_format::FormatError;
use weir_format::files::{
    DirectoryBlock, DirectoryContent, DirectoryEntry, DirectoryHead, DirectoryNode,
    DirectoryNodeEntry, EntryKey, EntryList, FileType,
};

use super::names::SearchName;

/// Blocks of a directory by number.
pub type Blocks = BTreeMap<u32, Block>;

/// Blocks of a directory that are in memory.
pub trait BlockSource {
    /// Block with this number; `None` if it is not in memory.
    fn block(&self, number: u32) -> Option<&[u8; BLOCK_BYTES]>;
}

impl BlockSource for Blocks {
    fn block(&self, number: u32) -> Option<&[u8; BLOCK_BYTES]> {
        self.get(&number).map(|block| &**block)
    }
}

/// Reason why an operation on a directory failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DirectoryError {
    /// The operation needs a block that is not in memory.
    #[error("block {0} of the directory is not in memory")]
    Missing(u32),
    /// A block cannot be decoded.
    #[error("block {block} of the directory is damaged: {source}")]
    Block {
        /// Number of the block.
        block: u32,
        /// Reason.
        source: FormatError,
    },
    /// A block does not fit into the tree.
    #[error("block {block} of the directory is damaged: {what}")]
    Tree {
        /// Number of the block.
        block: u32,
        /// Rule that the block violates.
        what: &'static str,
    },
    /// The directory has an entry with this name.
    #[error("the directory has an entry with this name")]
    Exists,
    /// The directory has 128 names with the same hash, or 2^32 blocks.
    #[error("the directory has no room for another entry")]
    Full,
}

/// An entry, with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Key of the entry, which is its cookie.
    pub key: EntryKey,
    /// Inode that the entry names.
    pub inode: ObjectId,
    /// Type of this inode.
    pub file_type: FileType,
    /// Name.
    pub name: Box<[u8]>,
}

impl From<DirectoryEntry<'_>> for Entry {
    fn from(entry: DirectoryEntry<'_>) -> Self {
        let DirectoryEntry { key, inode, file_type, name } = entry;
        Self { key, inode, file_type, name: name.into() }
    }
}

/// Result of a search for a name before an entry is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The entry with the name.
    Found(Entry),
    /// No entry has the name; a new entry gets this key.
    Free(EntryKey),
}

/// Result of an operation that changes a directory.
#[derive(Clone, Debug, Default)]
pub struct TreeChanges {
    /// New content of blocks.
    pub blocks: Blocks,
    /// True if all blocks but the root are unused now, so that the caller can punch them out.
    pub is_one_block: bool,
    /// Number of blocks of the directory; 0 if nothing changed.
    pub count: u32,
}

/// Search for a name among the entries with its hash.
struct EntrySearch<'n> {
    name: &'n SearchName<'n>,
    /// Key of a new entry with the name; `None` if all keys with the hash are in use.
    free: Option<EntryKey>,
    found: Option<Entry>,
}

impl<'n> EntrySearch<'n> {
    fn new(name: &'n SearchName<'n>) -> Self {
        Self { name, free: Some(name.first_key()), found: None }
    }

    /// Visits an entry; the keys ascend. Returns false if the entry has the name.
    fn visit(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        if self.free == Some(entry.key) {
            self.free = entry.key.next_of_hash();
        }
        if self.name.is_equal(entry.name) {
            self.found = Some(Entry::from(*entry));
        }
        self.found.is_none()
    }

    fn result(self) -> Result<Probe, DirectoryError> {
        match self.found {
            Some(entry) => Ok(Probe::Found(entry)),
            None => self.free.map(Probe::Free).ok_or(DirectoryError::Full),
        }
    }
}

/// Searches a list that has all entries with the hash of a name, as [`DirectoryTree::probe`].
pub(crate) fn probe_list(
    list: &EntryList<'_>,
    name: &SearchName<'_>,
) -> Result<Probe, DirectoryError> {
    let (mut search, first) = (EntrySearch::new(name), name.first_key());
    let entries = list.from(list.index_of(first));
    let mut entries = entries.take_while(|entry| entry.key.has_hash_of(first));
    while entries.next().is_some_and(|entry| search.visit(&entry)) {}
    search.result()
}

/// Leaf with a further entry, whose key is free. If the entries are larger than a leaf, returns the
/// encoded entries as the error.
fn leaf_with(
    list: &EntryList<'_>,
    entry: &DirectoryEntry<'_>,
) -> Result<[u8; BLOCK_BYTES], Vec<u8>> {
    assert!(list.find(entry.key).is_none(), "the key of an entry is unique");
    let [before, after] = list.around(entry.key);
    let parts = [before, &entry.encode(), after];
    DirectoryBlock::encode_leaf(&parts).ok_or_else(|| parts.concat())
}

/// A leaf or node is small if its content takes less than a block divided by this number. Small
/// neighbours are merged.
const MERGED_BELOW: usize = 3;

/// Range of the keys below a block: from the first key up to, but not including, the second key.
pub(super) type Bounds = (EntryKey, Option<EntryKey>);

/// Node on the path to a leaf.
struct Step {
    block: u32,
    node: DirectoryNode,
    /// Index of the child on the path.
    child: usize,
}

/// Path from the root to a leaf.
struct Path {
    nodes: Vec<Step>,
    leaf: u32,
    bounds: Bounds,
}

/// The tree of a directory, with the changes of one operation.
pub struct DirectoryTree<'s, S> {
    source: &'s S,
    changed: Blocks,
    /// Number of blocks, and first free block. `into_changes` stores both in the root.
    pub(super) head: (u32, u32),
}

impl<'s, S: BlockSource> DirectoryTree<'s, S> {
    /// Opens the tree of a directory.
    ///
    /// # Errors
    /// `Missing` and the errors of a damaged root.
    pub fn open(source: &'s S) -> Result<Self, DirectoryError> {
        let mut tree = Self { source, changed: Blocks::new(), head: (1, 0) };
        // The operation decodes the content of the root.
        let DirectoryHead { blocks, free, .. } = DirectoryHead::read(tree.block(0)?);
        if blocks == 0 || free >= blocks {
            return Err(DirectoryError::Tree { block: 0, what: "the count of blocks is wrong" });
        }
        tree.head = (blocks, free);
        Ok(tree)
    }

    /// Creates the tree of a directory whose entries no longer fit into its inode.
    pub fn create(source: &'s S, entries: &EntryList<'_>) -> Self {
        let mut tree = Self { source, changed: Blocks::new(), head: (1, 0) };
        tree.put(0, DirectoryContent::Leaf(entries.clone()));
        tree
    }

    /// Returns the blocks that changed since the tree was opened.
    pub fn into_changes(mut self) -> TreeChanges {
        if self.changed.is_empty() {
            return TreeChanges::default();
        }
        let root = self.block(0).expect("an operation reads the root first");
        let head = DirectoryHead::read(root);
        let is_one_block = head.is_leaf && self.head.0 > 1;
        let (blocks, free) = if is_one_block { (1, 0) } else { self.head };
        let root = ((head.blocks, head.free) != (blocks, free)).then(|| {
            let mut root = BlockMut::copy_of(root);
            DirectoryBlock::set_numbers(&mut root, blocks, free);
            root.freeze()
        });
        if is_one_block {
            self.changed.clear();
        }
        self.changed.extend(root.map(|root| (0, root)));
        TreeChanges { blocks: self.changed, is_one_block, count: blocks }
    }

    /// Finds the entry with a name.
    ///
    /// # Errors
    /// `Missing`, or damage.
    pub fn find(&self, name: &SearchName<'_>) -> Result<Option<Entry>, DirectoryError> {
        let mut found = None;
        self.visit_hash(name.first_key(), |entry| {
            if name.is_equal(entry.name) {
                found = Some(Entry::from(*entry));
            }
            found.is_none()
        })?;
        Ok(found)
    }

    /// Returns the entries after a cookie in the first leaf that has such entries, in ascending
    /// order of their keys. Empty after the last entry.
    ///
    /// # Errors
    /// `Missing`, or damage.
    pub fn after(&self, cookie: u64) -> Result<Vec<Entry>, DirectoryError> {
        let first = cookie.saturating_add(1).max(EntryKey::MIN.number());
        let mut from = EntryKey::new(first);
        while let Some(key) = from {
            let (path, list) = self.descend(key)?;
            let found: Vec<Entry> = list.from(list.index_of(key)).map(Entry::from).collect();
            if !found.is_empty() {
                return Ok(found);
            }
            from = path.bounds.1;
        }
        Ok(Vec::new())
    }

    /// Finds the entry with a name, or the key of a new entry with this name.
    ///
    /// # Errors
    /// `Full`, `Missing`, or damage.
    pub fn probe(&self, name: &SearchName<'_>) -> Result<Probe, DirectoryError> {
        let mut search = EntrySearch::new(name);
        self.visit_hash(name.first_key(), |entry| search.visit(entry))?;
        search.result()
    }

    /// Adds an entry. `search`: its name, for the search. Returns the key of the entry.
    ///
    /// # Errors
    /// `Exists`, `Full`, `Missing`, or damage. The caller must then discard this tree.
    pub fn insert(
        &mut self,
        search: &SearchName<'_>,
        (inode, file_type, name): (ObjectId, FileType, &[u8]),
    ) -> Result<EntryKey, DirectoryError> {
        let first = search.first_key();
        let (path, list) = self.descend(first)?;
        // Otherwise a later leaf has entries with the hash of the name, too.
        let has_all = path.bounds.1.is_none_or(|end| !end.has_hash_of(first));
        let probed = if has_all { probe_list(&list, search)? } else { self.probe(search)? };
        let Probe::Free(key) = probed else { return Err(DirectoryError::Exists) };
        let entry = DirectoryEntry { key, inode, file_type, name };
        if has_all {
            let leaf = leaf_with(&list, &entry);
            self.put_leaf(path, leaf)?;
        } else {
            self.insert_at(&entry)?;
        }
        Ok(key)
    }

    /// Adds an entry whose key is free.
    fn insert_at(&mut self, entry: &DirectoryEntry<'_>) -> Result<(), DirectoryError> {
        let (path, list) = self.descend(entry.key)?;
        let leaf = leaf_with(&list, entry);
        self.put_leaf(path, leaf)
    }

    /// Replaces a leaf by the result of [`leaf_with`].
    fn put_leaf(
        &mut self,
        mut path: Path,
        leaf: Result<[u8; BLOCK_BYTES], Vec<u8>>,
    ) -> Result<(), DirectoryError> {
        let entries = match leaf {
            Ok(block) => {
                self.put_block(path.leaf, &block);
                return Ok(());
            }
            Err(entries) => entries,
        };
        let list = EntryList::parse(&entries).expect("valid entries");
        let middle = list.middle();
        let (left, right) = list.split(middle);
        let [left, right] = [left, right].map(|part| EntryList::parse(part).expect("valid"));
        let split = right.get(0).expect("neither part is empty").key;
        let [left, right] = [left, right].map(DirectoryContent::Leaf);
        self.split(&mut path.nodes, path.leaf, [left, right], split)
    }

    /// Sets the inode and the spelling of the entry with this key and name. Returns false if no
    /// such entry exists. `search`: the name, for the comparison.
    ///
    /// # Errors
    /// `Full`, `Missing`, or damage. The caller must then discard this tree.
    pub fn replace(
        &mut self,
        search: &SearchName<'_>,
        entry: &DirectoryEntry<'_>,
    ) -> Result<bool, DirectoryError> {
        let (path, list) = self.descend(entry.key)?;
        let Some(old) = list.find(entry.key).filter(|old| search.is_equal(old.name)) else {
            return Ok(false);
        };
        // Another spelling can have another length, and so can need another leaf.
        if old.name.len() != entry.name.len() {
            self.remove(entry.key)?;
            self.insert_at(entry)?;
            return Ok(true);
        }
        let [before, after] = list.around(entry.key);
        let block = DirectoryBlock::encode_leaf(&[before, &entry.encode(), after]);
        self.put_block(path.leaf, &block.expect("the entry keeps its length"));
        Ok(true)
    }

    /// Removes the entry with this key. Returns false if no such entry exists.
    ///
    /// # Errors
    /// `Missing`, or damage. The caller must then discard this tree.
    pub fn remove(&mut self, key: EntryKey) -> Result<bool, DirectoryError> {
        let (mut path, list) = self.descend(key)?;
        if list.find(key).is_none() {
            return Ok(false);
        }
        let rest = list.around(key);
        let bytes = rest.map(<[u8]>::len).iter().sum();
        let block = DirectoryBlock::encode_leaf(&rest).expect("a leaf without one of its entries");
        self.put_block(path.leaf, &block);
        let Some(parent) = path.nodes.pop() else { return Ok(true) };
        if bytes == 0 {
            self.free(path.leaf);
            self.drop_child(&mut path.nodes, parent)?;
        } else if is_small_leaf(bytes) {
            self.merge(&mut path.nodes, parent)?;
        }
        self.lower_root()?;
        Ok(true)
    }

    /// Calls `visit` for each entry with the hash of `first`, in ascending order, until `visit`
    /// returns false.
    fn visit_hash(
        &self,
        first: EntryKey,
        mut visit: impl FnMut(&DirectoryEntry<'_>) -> bool,
    ) -> Result<(), DirectoryError> {
        let mut from = Some(first);
        while let Some(key) = from.filter(|key| key.has_hash_of(first)) {
            let (path, list) = self.descend(key)?;
            for entry in list.from(list.index_of(key)) {
                if !entry.key.has_hash_of(first) || !visit(&entry) {
                    return Ok(());
                }
            }
            from = path.bounds.1;
        }
        Ok(())
    }

    /// Block with the changes of the operation.
    fn block(&self, number: u32) -> Result<&[u8; BLOCK_BYTES], DirectoryError> {
        let changed = self.changed.get(&number).map(|block| &**block);
        let block = changed.or_else(|| self.source.block(number));
        block.ok_or(DirectoryError::Missing(number))
    }

    pub(super) fn decode(&self, number: u32) -> Result<DirectoryBlock<'_>, DirectoryError> {
        let decoded = DirectoryBlock::decode(self.block(number)?);
        decoded.map_err(|source| DirectoryError::Block { block: number, source })
    }

    fn put(&mut self, number: u32, content: DirectoryContent<'_>) {
        self.put_block(number, &encoded(content));
    }

    fn put_block(&mut self, number: u32, block: &[u8; BLOCK_BYTES]) {
        self.changed.insert(number, Block::copy_of(block));
    }

    /// Reads a block at a place in the tree. `level` is `None` for the root.
    ///
    /// # Errors
    /// `Missing`, or damage: also if the block does not belong to this place.
    pub(super) fn content(
        &self,
        number: u32,
        level: Option<u8>,
        bounds: Bounds,
    ) -> Result<DirectoryContent<'_>, DirectoryError> {
        let wrong = |what| DirectoryError::Tree { block: number, what };
        if number >= self.head.0 {
            return Err(wrong("it is behind the end"));
        }
        let mut content = self.decode(number)?.content;
        let own = content.level().ok_or_else(|| wrong("it is free"))?;
        if level.is_some_and(|level| level != own) {
            return Err(wrong("its level is wrong"));
        }
        let (lower, upper) = bounds;
        // The keys of a decoded block ascend.
        let keys = match &content {
            DirectoryContent::Leaf(list) => list.keys(),
            DirectoryContent::Node(node) => {
                let keys = node.children.first().zip(node.children.last());
                keys.map(|(first, last)| (first.key, last.key))
            }
            DirectoryContent::Free => None,
        };
        let is_outside = |(first, last)| first < lower || upper.is_some_and(|end| last >= end);
        if keys.is_some_and(is_outside) {
            return Err(wrong("it has keys outside its bounds"));
        }
        if let DirectoryContent::Node(node) = &mut content {
            node.set_lower_bound(lower);
        }
        Ok(content)
    }

    /// Descends from the root to the leaf for a key. Returns the path, and the entries of the leaf.
    fn descend(&self, key: EntryKey) -> Result<(Path, EntryList<'_>), DirectoryError> {
        let mut bounds: Bounds = (EntryKey::MIN, None);
        let (mut nodes, mut number): (Vec<Step>, u32) = (Vec::new(), 0);
        loop {
            let level = nodes.last().map(|parent| parent.node.level - 1);
            let node = match self.content(number, level, bounds)? {
                DirectoryContent::Node(node) => node,
                DirectoryContent::Leaf(list) => {
                    return Ok((Path { nodes, leaf: number, bounds }, list));
                }
                DirectoryContent::Free => unreachable!("a free block has no place in the tree"),
            };
            let child = node.child_of(key);
            let found = node.children.get(child).copied().expect("a node has a child");
            let end = node.children.get(child + 1).map(|next| next.key).or(bounds.1);
            bounds = (found.key, end);
            nodes.push(Step { block: number, node, child });
            number = found.block;
        }
    }

    fn allocate(&mut self) -> Result<u32, DirectoryError> {
        let (blocks, free) = self.head;
        if free > 0 {
            match self.decode(free) {
                Err(missing @ DirectoryError::Missing(_)) => return Err(missing),
                Ok(DirectoryBlock { free: next, content: DirectoryContent::Free, .. })
                    if next < blocks =>
                {
                    self.head.1 = next;
                    return Ok(free);
                }
                // The list of free blocks is damaged: drop the list, which only wastes space.
                _ => self.head.1 = 0,
            }
        }
        self.head.0 = blocks.checked_add(1).ok_or(DirectoryError::Full)?;
        Ok(blocks)
    }

    fn free(&mut self, number: u32) {
        let block =
            DirectoryBlock { blocks: 0, free: self.head.1, content: DirectoryContent::Free };
        self.put_block(number, &block.encode());
        self.head.1 = number;
    }

    /// Replaces a block by two blocks, and adds the second to the parent. `nodes`: path to the
    /// block; `at`: lower bound of the keys of the second block.
    fn split(
        &mut self,
        nodes: &mut Vec<Step>,
        number: u32,
        [left, right]: [DirectoryContent<'_>; 2],
        at: EntryKey,
    ) -> Result<(), DirectoryError> {
        let added = self.allocate()?;
        self.put(added, right);
        let Some(mut parent) = nodes.pop() else {
            let level = left.level().expect("a free block is never split") + 1;
            if level > DirectoryNode::LEVEL_MAX {
                return Err(DirectoryError::Full);
            }
            let first = self.allocate()?;
            self.put(first, left);
            let children = [(EntryKey::MIN, first), (at, added)];
            let children = children.map(|(key, block)| DirectoryNodeEntry { key, block }).to_vec();
            self.put(number, DirectoryContent::Node(DirectoryNode { level, children }));
            return Ok(());
        };
        self.put(number, left);
        let entry = DirectoryNodeEntry { key: at, block: added };
        parent.node.children.insert(parent.child + 1, entry);
        if parent.node.children.len() <= DirectoryNode::CHILDREN_MAX {
            self.put(parent.block, DirectoryContent::Node(parent.node));
            return Ok(());
        }
        let DirectoryNode { level, mut children } = parent.node;
        let right = children.split_off(children.len() / 2);
        let at = right.first().expect("a full node has many children").key;
        let parts = [children, right].map(|children| DirectoryNode { level, children });
        self.split(nodes, parent.block, parts.map(DirectoryContent::Node), at)
    }

    /// Removes from a node the child on the path. The block of this child is already free.
    fn drop_child(&mut self, nodes: &mut Vec<Step>, step: Step) -> Result<(), DirectoryError> {
        let Step { block, mut node, child } = step;
        let removed = node.children.remove(child);
        if node.children.is_empty() {
            let Some(parent) = nodes.pop() else {
                self.put(block, DirectoryContent::Leaf(EntryList::default()));
                return Ok(());
            };
            self.free(block);
            return self.drop_child(nodes, parent);
        }
        if child == 0 {
            node.set_lower_bound(removed.key);
        }
        let node = DirectoryContent::Node(node);
        let is_small = is_small(&node);
        self.put(block, node);
        match nodes.pop() {
            Some(parent) if is_small => self.merge(nodes, parent),
            _ => Ok(()),
        }
    }

    /// Merges a node's child on the path with a neighbour of this child, if both are small. Does
    /// not change a damaged neighbour.
    fn merge(&mut self, nodes: &mut Vec<Step>, step: Step) -> Result<(), DirectoryError> {
        let before = step.child.checked_sub(1).map(|left| (left, step.child));
        for (left, right) in [Some((step.child, step.child + 1)), before].into_iter().flatten() {
            let children = &step.node.children;
            let Some((into, from)) = children.get(left).zip(children.get(right)) else { continue };
            let (into, from, at) = (into.block, from.block, from.key);
            let merged = match (self.decode(into), self.decode(from)) {
                (Err(missing @ DirectoryError::Missing(_)), _)
                | (_, Err(missing @ DirectoryError::Missing(_))) => return Err(missing),
                (Ok(into), Ok(from)) => merged(into.content, from.content, at),
                _ => None,
            };
            if let Some(block) = merged {
                self.put_block(into, &block);
                self.free(from);
                return self.drop_child(nodes, Step { child: right, ..step });
            }
        }
        Ok(())
    }

    /// Moves the content of the root's only child into the root, as often as possible. A damaged
    /// child stays where it is.
    fn lower_root(&mut self) -> Result<(), DirectoryError> {
        loop {
            let DirectoryContent::Node(node) = self.decode(0)?.content else { return Ok(()) };
            let [only] = node.children[..] else { return Ok(()) };
            let root = match self.decode(only.block) {
                Ok(child) if child.content.level() == Some(node.level - 1) => {
                    encoded(child.content)
                }
                Err(missing @ DirectoryError::Missing(_)) => return Err(missing),
                _ => return Ok(()),
            };
            self.put_block(0, &root);
            self.free(only.block);
        }
    }
}

/// Block with this content, without the numbers that only a root or a free block has.
fn encoded(content: DirectoryContent<'_>) -> [u8; BLOCK_BYTES] {
    DirectoryBlock { blocks: 0, free: 0, content }.encode()
}

/// True if a leaf or node has so little content that it is merged with a small neighbour.
fn is_small(content: &DirectoryContent<'_>) -> bool {
    match content {
        DirectoryContent::Leaf(list) => is_small_leaf(list.bytes().len()),
        DirectoryContent::Node(node) => {
            node.children.len() < DirectoryNode::CHILDREN_MAX / MERGED_BELOW
        }
        DirectoryContent::Free => false,
    }
}

/// True if a leaf with this number of bytes of entries is small.
fn is_small_leaf(bytes: usize) -> bool {
    bytes < DirectoryBlock::LEAF_BYTES / MERGED_BELOW
}

/// Block with the content of two neighbours; `None` if one of them is not small, or if their levels
/// or the order of their keys do not match. `at`: lower bound of the keys of the right neighbour.
fn merged(
    left: DirectoryContent<'_>,
    right: DirectoryContent<'_>,
    at: EntryKey,
) -> Option<[u8; BLOCK_BYTES]> {
    if !is_small(&left) || !is_small(&right) {
        return None;
    }
    match (left, right) {
        (DirectoryContent::Leaf(left), DirectoryContent::Leaf(right)) => {
            let bytes = [left.bytes(), right.bytes()].concat();
            Some(encoded(DirectoryContent::Leaf(EntryList::parse(&bytes).ok()?)))
        }
        (DirectoryContent::Node(mut left), DirectoryContent::Node(mut right)) => {
            right.set_lower_bound(at);
            let ends = left.children.last().zip(right.children.first());
            let is_sorted = ends.is_some_and(|(last, first)| last.key < first.key);
            if !is_sorted || left.level != right.level {
                return None;
            }
            left.children.extend(right.children);
            Some(encoded(DirectoryContent::Node(left)))
        }
        _ => None,
    }
}
