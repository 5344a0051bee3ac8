//! Hash tables of the engine.
//!
//! Names that clients choose need another hasher, with a random seed.
//!
//! Invariant: two tables that were filled in the same order iterate in the same order in every run,
//! so that a simulation can be replayed.

pub use foldhash::quality::FixedState;

/// A hash map.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, FixedState>;
/// A hash set.
pub type HashSet<T> = hashbrown::HashSet<T, FixedState>;
