//! Login statuses, which the target sends in Login Responses.
//!
//! Spec: RFC 7143 section 11.13.5, which names the two bytes Status-Class and Status-Detail.
//!
//! Invariant: the high byte is the status class, the low byte the status detail.

/// Status-Class and Status-Detail of a Login Response (11.13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// The login continues.
    Success = 0x0000,
    /// Initiator error: a protocol violation.
    InitiatorError = 0x0200,
    /// Authentication failed, or the target is hidden from this initiator.
    AuthenticationFailure = 0x0201,
    /// Unsupported version.
    Version = 0x0205,
    /// The session accepts no further connection.
    TooManyConnections = 0x0206,
    /// A required key is missing.
    MissingParameter = 0x0207,
    /// Unsupported session type.
    SessionType = 0x0209,
    /// No session has the TSIH of the request.
    NoSession = 0x020a,
    /// The request is invalid during login.
    InvalidRequest = 0x020b,
    /// Target error: a hardware or software failure.
    TargetError = 0x0300,
    /// Service unavailable; the initiator may retry later.
    Unavailable = 0x0301,
    /// The target has no resources for another session.
    OutOfResources = 0x0302,
}
