//! Hash tables of the engine.
//!
//! These tables are only for keys that clients cannot choose: with a fixed seed, a client could
//! choose keys that collide.
//!
//! Invariant: two tables that were filled in the same order iterate in the same order in every run,
//! so that a simulation can be replayed.

pub use foldhash::quality::FixedState;

/// A hash map.
pub type HashMap<K, V> = hashbrown::HashMap<K, V, FixedState>;
/// A hash set.
pub type HashSet<T> = hashbrown::HashSet<T, FixedState>;
