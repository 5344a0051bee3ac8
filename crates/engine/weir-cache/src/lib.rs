//! RAM cache of a pool: decoded data blocks and tree nodes, found by their immutable address.
//!
//! Not here: dirty data, which weir-dataset keeps until it is written out. The cache reads no disk:
//! after a miss the caller reads the block and inserts it.
//!
//! Invariants:
//! - an address names the same bytes while a tree references it, so no entry is ever stale; entries
//!   that the next txg no longer needs are dropped only to save RAM;
//! - nodes and data have separate budgets: a scan of data never evicts tree nodes;
//! - a value is one 4 KiB arena cell, so a budget in bytes is a budget in entries; each block of a
//!   record has a separate entry;
//! - evictions depend only on the sequence of requests, so that a simulation can be replayed.

use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::UnitWeighter;
use quick_cache::sync::{Cache, DefaultLifecycle};
use weir_base::BLOCK_BYTES;
use weir_base::hash::FixedState;
use weir_block::Block;
use weir_format::BlockPtr;

/// RAM of a cache entry in addition to its 4 KiB cell: key, value, index slot, ghost entries
/// (measured).
const ENTRY_OVERHEAD_BYTES: u64 = 64;
/// The budget of tree nodes is the cache's budget divided by this number: 25 %.
const NODE_SHARE: u64 = 4;

/// Class of an entry: selects the budget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheClass {
    /// Blocks of data.
    Data,
    /// Tree nodes.
    Node,
}

/// Hits and misses since the cache was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Number of lookups that found their block.
    pub hits: u64,
    /// Number of lookups that did not find their block.
    pub misses: u64,
    /// Bytes of cached blocks.
    pub bytes: u64,
}

/// Key of an entry: the address of a record or node, and the number of a block in that record.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    address: u64,
    part: u8,
}

impl Key {
    fn new(ptr: &BlockPtr, part: usize) -> Self {
        debug_assert!((part as u64) < ptr.record.blocks(), "no part of {ptr:?}: {part}");
        Self { address: ptr.address(), part: part as u8 }
    }
}

struct Half {
    entries: Cache<Key, Block, UnitWeighter, FixedState>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Half {
    fn new(bytes: u64) -> Self {
        let entries = Self::entries_in(bytes);
        let (hasher, lifecycle) = (FixedState::default(), DefaultLifecycle::default());
        Self {
            entries: Cache::with(entries as usize, entries, UnitWeighter, hasher, lifecycle),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    fn entries_in(bytes: u64) -> u64 {
        // Keep at least 64 entries, so that the smallest pools of the simulator work.
        (bytes / (BLOCK_BYTES as u64 + ENTRY_OVERHEAD_BYTES)).max(64)
    }

    fn set_entries(&self, entries: u64) {
        if entries != self.entries.capacity() {
            self.entries.set_capacity(entries);
        }
    }

    fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            bytes: self.entries.len() as u64 * BLOCK_BYTES as u64,
        }
    }
}

/// The cache of one pool.
pub struct BlockCache {
    data: Half,
    nodes: Half,
}

impl BlockCache {
    /// Creates a cache that holds about `bytes`.
    pub fn new(bytes: u64) -> Self {
        Self { data: Half::new(bytes - bytes / NODE_SHARE), nodes: Half::new(bytes / NODE_SHARE) }
    }

    /// Changes the budget. Entries that no longer fit are evicted.
    pub fn set_budget(&self, bytes: u64) {
        let nodes = bytes / NODE_SHARE;
        self.data.set_entries(Half::entries_in(bytes - nodes));
        self.nodes.set_entries(Half::entries_in(nodes));
    }

    /// Drops all entries; for tests that read from disk again.
    pub fn clear(&self) {
        self.data.entries.clear();
        self.nodes.entries.clear();
    }

    fn half(&self, class: CacheClass) -> &Half {
        match class {
            CacheClass::Data => &self.data,
            CacheClass::Node => &self.nodes,
        }
    }

    /// Returns the same block as [`Self::get`], but counts no hit or miss; for lookups that serve
    /// no client.
    pub fn peek(&self, class: CacheClass, ptr: &BlockPtr, part: usize) -> Option<Block> {
        self.half(class).entries.peek(&Key::new(ptr, part))
    }

    /// Returns block number `part` of the record at a pointer, if it is cached.
    pub fn get(&self, class: CacheClass, ptr: &BlockPtr, part: usize) -> Option<Block> {
        let half = self.half(class);
        let found = half.entries.get(&Key::new(ptr, part));
        let counter = if found.is_some() { &half.hits } else { &half.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Caches a block of a record. The caller has verified the block against the record's pointer,
    /// or is about to write it under that pointer.
    pub fn insert(&self, class: CacheClass, ptr: &BlockPtr, part: usize, block: Block) {
        self.half(class).entries.insert(Key::new(ptr, part), block);
    }

    /// Drops a record that no tree of the next txg references, to free its RAM at once.
    pub fn remove(&self, class: CacheClass, ptr: &BlockPtr) {
        for part in 0..ptr.record.blocks() as usize {
            self.half(class).entries.remove(&Key::new(ptr, part));
        }
    }

    /// Counters of one class.
    pub fn stats(&self, class: CacheClass) -> CacheStats {
        self.half(class).stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::VsegId;

    #[test]
    fn data_stays_in_its_budget_and_never_evicts_nodes() {
        let cache = BlockCache::new(16 << 20);
        let ptr = |n| BlockPtr { vseg: VsegId(n), ..BlockPtr::default() };
        cache.insert(CacheClass::Node, &ptr(1), 0, Block::copy_of(&[1; BLOCK_BYTES]));
        for n in 0..10_000 {
            cache.insert(CacheClass::Data, &ptr(n), 0, Block::copy_of(&[2; BLOCK_BYTES]));
        }
        assert!(cache.stats(CacheClass::Data).bytes <= 12 << 20);
        assert_eq!(cache.get(CacheClass::Node, &ptr(1), 0).expect("not evicted by data")[0], 1);
        assert!(cache.get(CacheClass::Node, &ptr(2), 0).is_none());
        cache.remove(CacheClass::Node, &ptr(1));
        assert!(cache.get(CacheClass::Node, &ptr(1), 0).is_none());
    }
}
