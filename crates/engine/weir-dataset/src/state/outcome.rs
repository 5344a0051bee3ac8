//! Whether a changing call changed anything.
//!
//! Not here: the calls.
//!
//! Invariant: a repeated call changes nothing.

/// Whether a changing call changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It did.
    Changed,
    /// Everything was as asked already.
    Unchanged,
}
