//! Result of a management call that changes an object: changed or unchanged.
//!
//! Invariant: a repeated call changes nothing and returns `Unchanged`.

/// Result of a changing call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The call changed something.
    Changed,
    /// The requested state already existed.
    Unchanged,
}
