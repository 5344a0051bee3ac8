//! Hash tables of the engine.
//!
//! They are not for names that clients choose; those need a hasher with a random seed.
//!
//! Invariants: tables that were filled in the same order iterate in the same order in every run, so
//! that a simulation can be replayed.

pub use foldhash::quality::FixedState;

/// A hash map.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, FixedState>;
/// A hash set.
pub type HashSet<T> = hashbrown::HashSet<T, FixedState>;
