//! State of a leg, as the pool status shows it.
//!
//! Not here: the transitions between states (`leg`, `topology`).
//!
//! Invariant: a state names one condition of the disk.

/// State of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegState {
    /// In use and up to date.
    Online,
    /// In use, but the leg missed writes. The leg receives new writes; reads prefer other legs
    /// until a resilver has copied the missed writes.
    Stale,
    /// A write or flush failed; the leg is no longer used.
    Faulted,
    /// An administrator took the leg offline.
    Offline,
    /// The disk was not found.
    Missing,
}
