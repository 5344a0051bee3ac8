//! Result of a changing call.
//!
//! Invariant: repeating a call changes nothing.

/// Whether a changing call changed anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call changed something.
    Changed,
    /// The requested state already existed.
    Unchanged,
}
