//! A leg that replaces another, until the old one may go.
//!
//! Not here: the steps (`topology`).
//!
//! Invariant: a leg has at most one replacement.

use weir_base::Guid;

/// A leg that waits for its successor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Succession {
    pub(crate) old: Guid,
    pub(crate) new: Guid,
}
