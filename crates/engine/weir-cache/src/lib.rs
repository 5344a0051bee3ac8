//! RAM cache of a pool: decoded data blocks and tree nodes, found by their immutable address.
//!
//! Not here: dirty data, which weir-dataset keeps until it is written out. The cache reads no disk:
//! after a miss the caller reads the block and inserts it.
//!
//! Invariants:
//! - an address names the same bytes while a tree references it, so no entry is ever stale; entries
//!   that the next txg no longer needs are dropped only to save RAM;
//! - nodes and data have separate budgets: a scan of data never evicts tree nodes;
//! - an entry has all blocks of a record, and a budget in bytes is a budget in blocks;
//! - evictions depend only on the sequence of requests, so that a simulation can be replayed.

use std::sync::atomic::{AtomicU64, Ordering};

use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};
use weir_base::BLOCK_BYTES;
use weir_base::hash::FixedState;
use weir_block::Blocks;
use weir_format::BlockPtr;

/// RAM of a cache entry of one block in addition to its 4 KiB cell: key, value, index slot, ghost
/// entries (measured). An entry of several blocks has less for each block.
const BLOCK_OVERHEAD_BYTES: u64 = 64;
/// Each shard of a large cache has its own lock and holds at least half of this number of blocks:
/// four of the largest records. A smaller shard could not hold a large record.
const SHARD_BLOCKS: u64 = 2048;
/// Maximum number of shards: more than there are threads that use a pool.
const SHARDS_MAX: u64 = 64;
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

/// Weight of an entry: its number of blocks.
#[derive(Clone)]
struct BlockCount;

impl Weighter<u64, Blocks> for BlockCount {
    fn weight(&self, _address: &u64, blocks: &Blocks) -> u64 {
        blocks.len() as u64
    }
}

struct Half {
    /// Records and nodes by address.
    entries: Cache<u64, Blocks, BlockCount, FixedState>,
    hits: AtomicU64,
    misses: AtomicU64,
}

impl Half {
    fn new(bytes: u64) -> Self {
        let blocks = Self::blocks_in(bytes);
        let (hasher, lifecycle) = (FixedState::default(), DefaultLifecycle::default());
        let options = OptionsBuilder::new()
            .shards((blocks / SHARD_BLOCKS).clamp(1, SHARDS_MAX) as usize)
            .estimated_items_capacity(blocks as usize)
            .weight_capacity(blocks)
            .build()
            .expect("both capacities are set");
        Self {
            entries: Cache::with_options(options, BlockCount, hasher, lifecycle),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }

    fn blocks_in(bytes: u64) -> u64 {
        // Keep at least 64 blocks, so that the smallest pools of the simulator work.
        (bytes / (BLOCK_BYTES as u64 + BLOCK_OVERHEAD_BYTES)).max(64)
    }

    fn set_blocks(&self, blocks: u64) {
        if blocks != self.entries.capacity() {
            self.entries.set_capacity(blocks);
        }
    }

    fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            bytes: self.entries.weight() * BLOCK_BYTES as u64,
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
        self.data.set_blocks(Half::blocks_in(bytes - nodes));
        self.nodes.set_blocks(Half::blocks_in(nodes));
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

    /// Returns the blocks of the entry with an address, whatever their number. Counts no hit or
    /// miss: the lookup serves no client.
    pub fn peek(&self, class: CacheClass, address: u64) -> Option<Blocks> {
        self.half(class).entries.peek(&address)
    }

    /// Returns the blocks of the record at a pointer, if they are cached.
    pub fn get(&self, class: CacheClass, ptr: &BlockPtr) -> Option<Blocks> {
        let half = self.half(class);
        // A forged pointer may have the address of a record of another size.
        let is_right = |found: &Blocks| found.len() as u64 == ptr.record.blocks();
        let found = half.entries.get(&ptr.address()).filter(is_right);
        let counter = if found.is_some() { &half.hits } else { &half.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        found
    }

    /// Caches the blocks of a record. The caller has verified them against the record's pointer, or
    /// is about to write them under that pointer.
    pub fn insert(&self, class: CacheClass, ptr: &BlockPtr, blocks: Blocks) {
        debug_assert_eq!(blocks.len() as u64, ptr.record.blocks(), "all blocks of {ptr:?}");
        self.half(class).entries.insert(ptr.address(), blocks);
    }

    /// Drops a record that no tree of the next txg references, to free its RAM at once.
    pub fn remove(&self, class: CacheClass, ptr: &BlockPtr) {
        self.half(class).entries.remove(&ptr.address());
    }

    /// Counters of one class.
    pub fn stats(&self, class: CacheClass) -> CacheStats {
        self.half(class).stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_base::{RecordSize, VsegId};
    use weir_block::Block;

    fn ptr(number: u64, blocks: usize) -> BlockPtr {
        let record = RecordSize::from_bytes((blocks * BLOCK_BYTES) as u64).expect("a record size");
        BlockPtr { vseg: VsegId(number), record, ..BlockPtr::default() }
    }

    fn blocks(count: usize, fill: u8) -> Blocks {
        Blocks::from(Block::copies_of(&vec![[fill; BLOCK_BYTES]; count]))
    }

    #[test]
    fn data_stays_in_its_budget_and_never_evicts_nodes() {
        for count in [1, 8, 256] {
            let cache = BlockCache::new(16 << 20);
            cache.insert(CacheClass::Node, &ptr(1, 1), blocks(1, 1));
            for n in 0..10_000 / count as u64 {
                cache.insert(CacheClass::Data, &ptr(n, count), blocks(count, 2));
            }
            let bytes = cache.stats(CacheClass::Data).bytes;
            assert!((6 << 20..=12 << 20).contains(&bytes), "{bytes} bytes of {count} blocks");
            let node = cache.get(CacheClass::Node, &ptr(1, 1));
            assert_eq!(node.expect("not evicted by data")[0][0], 1);
            assert!(cache.get(CacheClass::Node, &ptr(2, 1)).is_none());
            cache.remove(CacheClass::Node, &ptr(1, 1));
            assert!(cache.get(CacheClass::Node, &ptr(1, 1)).is_none());
        }
    }

    #[test]
    fn pointer_with_another_record_size_finds_nothing() {
        let cache = BlockCache::new(16 << 20);
        cache.insert(CacheClass::Data, &ptr(1, 8), blocks(8, 3));
        assert!(cache.get(CacheClass::Data, &ptr(1, 16)).is_none());
        assert!(cache.get(CacheClass::Data, &ptr(1, 4)).is_none());
        let found = cache.get(CacheClass::Data, &ptr(1, 8)).expect("the same size");
        assert!(found.iter().all(|block| **block == [3; BLOCK_BYTES]));
        assert_eq!(
            cache.peek(CacheClass::Data, ptr(1, 1).address()).map(|found| found.len()),
            Some(8)
        );
    }
}
