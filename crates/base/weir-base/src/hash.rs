//! Hash tables of the engine.
//!
//! Not here: tables of names that clients choose; those need a hasher with a random seed.
//!
//! Invariants: a table that was filled in the same order is walked in the same order in every run,
//! so that a simulation can be replayed.

pub use foldhash::quality::FixedState;

/// A hash map.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, FixedState>;
/// A hash set.
pub type HashSet<T> = hashbrown::HashSet<T, FixedState>;
