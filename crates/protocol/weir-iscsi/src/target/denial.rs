//! Refused logins: the reason and the login status.
//!
//! `login` performs the checks.
//!
//! Invariant: a login to an unknown target and a login with a wrong secret get the same status.

use weir_iscsi_wire::Status;
use weir_iscsi_wire::text::TextError;

/// Refusal of a login.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// Status that the initiator receives.
    pub status: Status,
    /// Reason for the refusal, for the server's log.
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

/// Reason why an initiator may not log in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The target does not exist, or its existence must stay hidden from this initiator.
    #[error("no such target")]
    NotFound,
    /// The initiator is not on the target's access list.
    #[error("the initiator has no access to the target")]
    Forbidden,
    /// The target was deleted.
    #[error("the target was removed")]
    Removed,
    /// The target is temporarily unavailable, for example because its pool is not imported.
    #[error("the target is not available now")]
    Unavailable,
    /// The server has reached its session limit.
    #[error("too many sessions")]
    OutOfResources,
}

impl Refusal {
    /// Returns true if the refusal would reveal which targets exist or which initiators may use
    /// them.
    pub(crate) const fn tells_of_targets(self) -> bool {
        matches!(self, Self::NotFound | Self::Forbidden | Self::Removed)
    }

    /// Login status that the initiator receives. RFC 7143 11.13.5 has separate statuses for an
    /// unknown target (0203), a removed target (0204) and a target that the initiator may not use
    /// (0202). From these statuses, an unauthenticated peer that tries names could learn which
    /// targets exist and which initiators may use them. So all three refusals get the status of a
    /// wrong secret (0201, "the initiator could not be successfully authenticated"). The server's
    /// log has the true reason.
    pub(crate) const fn status(self) -> Status {
        match self {
            Self::NotFound | Self::Forbidden | Self::Removed => Status::AuthenticationFailure,
            Self::Unavailable => Status::Unavailable,
            Self::OutOfResources => Status::OutOfResources,
        }
    }
}
