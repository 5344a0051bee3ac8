//! Fills the cache with more blocks of data than its budget: data is evicted, a tree node stays.
//!
//! `cargo run -p weir-cache --example two_budgets`
//!
//! Not here: dirty data, which weir-dataset keeps in RAM until it is written to disk, outside this
//! cache.
//!
//! Invariant: data never evicts nodes.

#![expect(clippy::print_stdout, reason = "the outcome is the result")]

use weir_base::{BLOCK_BYTES, VsegId};
use weir_block::{Block, Blocks};
use weir_cache::{BlockCache, CacheClass};
use weir_format::BlockPtr;

const BUDGET_BYTES: u64 = 16 << 20;

fn main() {
    let cache = BlockCache::new(BUDGET_BYTES);
    // The cache uses only the address in a pointer; each of these pointers names a different
    // segment.
    let at = |number| BlockPtr { vseg: VsegId(number), ..BlockPtr::default() };
    let block = |fill| Blocks::from(Block::copy_of(&[fill; BLOCK_BYTES]));
    cache.insert(CacheClass::Node, &at(0), block(1));
    for number in 1..=10_000 {
        cache.insert(CacheClass::Data, &at(number), block(2));
    }
    let hits = (1..=10_000).filter(|n| cache.get(CacheClass::Data, &at(*n)).is_some()).count();
    let bytes = cache.stats(CacheClass::Data).bytes;
    println!("{hits} of 10000 data blocks are cached, {} MiB", bytes >> 20);
    println!("the node is cached: {}", cache.get(CacheClass::Node, &at(0)).is_some());
    assert!(bytes < BUDGET_BYTES && cache.get(CacheClass::Node, &at(0)).is_some());
}
