//! The state of a leg, as status shows it.
//!
//! Not here: how a leg gets into a state (`leg`, `topology`).
//!
//! Invariant: a state names one condition of the disk.

/// State of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LegState {
    /// In use and up to date.
    Online,
    /// In use, but it missed writes: it takes new ones, and reads do not rely on it before a
    /// resilver has copied the rest.
    Stale,
    /// A write or flush failed; not used any more.
    Faulted,
    /// A person took it out of use.
    Offline,
    /// Not there.
    Missing,
}
