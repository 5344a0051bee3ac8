//! Why a login is refused: the status that the initiator gets.
//!
//! Not here: the checks (`login`).
//!
//! Invariant: an unknown target and a wrong secret have one answer.

use weir_iscsi_wire::Status;
use weir_iscsi_wire::text::TextError;

/// Why a login ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// What the initiator is told.
    pub status: Status,
    /// What the log is.
    pub why: String,
}

impl Denial {
    pub(crate) fn new(status: Status, why: impl Into<String>) -> Self {
        Self { status, why: why.into() }
    }

    pub(crate) fn rules(why: impl Into<String>) -> Self {
        Self::new(Status::InitiatorError, why)
    }
}

impl From<TextError> for Denial {
    fn from(error: TextError) -> Self {
        Self::rules(error.to_string())
    }
}

impl From<Refusal> for Denial {
    fn from(refusal: Refusal) -> Self {
        Self::new(refusal.status(), refusal.to_string())
    }
}

/// Why an initiator may not log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such target, or none that this initiator is to know of.
    #[error("no such target")]
    NotFound,
    /// It is not on the target's list.
    #[error("the initiator has no access to the target")]
    Forbidden,
    /// The target was deleted.
    #[error("the target is gone")]
    Removed,
    /// Not now: the pool is not there, for example.
    #[error("the target is not available now")]
    Unavailable,
    /// Too many sessions.
    #[error("no room for another session")]
    OutOfResources,
}

impl Refusal {
    /// Whether it says something about which targets there are, and for whom.
    pub(crate) const fn tells_of_targets(self) -> bool {
        matches!(self, Self::NotFound | Self::Forbidden | Self::Removed)
    }

    /// RFC 7143 11.13.5 has a status of its own for an unknown target (0203), one that is gone
    /// (0204) and one that the initiator may not use (0202). With these, a stranger who tries names
    /// learns which targets there are and which initiators may use them. So all three are answered
    /// like a wrong secret (0201, "the initiator could not be successfully authenticated"); the log
    /// of the server has the reason.
    pub(crate) const fn status(self) -> Status {
        match self {
            Self::NotFound | Self::Forbidden | Self::Removed => Status::AuthenticationFailure,
            Self::Unavailable => Status::Unavailable,
            Self::OutOfResources => Status::OutOfResources,
        }
    }
}
