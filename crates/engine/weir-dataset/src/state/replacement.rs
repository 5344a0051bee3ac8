//! Pending replacement of a leg.
//!
//! `topology` implements the steps.
//!
//! Invariant: a leg has at most one replacement.

use weir_base::Guid;

/// A leg that is detached once its replacement is resilvered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PendingReplacement {
    pub(crate) old: Guid,
    pub(crate) new: Guid,
}
