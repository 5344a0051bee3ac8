//! Status of a login response.
//!
//! Spec: RFC 7143 section 11.13.5.
//!
//! Invariant: a status is class and detail, in this order.

/// Status class and detail of a login response (11.13.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// Go on.
    Success = 0x0000,
    /// The initiator broke the rules.
    InitiatorError = 0x0200,
    /// It did not prove what it should, or there is no such target for it.
    AuthenticationFailure = 0x0201,
    /// No version in common.
    Version = 0x0205,
    /// The session has all the connections it may have.
    TooManyConnections = 0x0206,
    /// A key that must be there is not.
    MissingParameter = 0x0207,
    /// A session type that is none.
    SessionType = 0x0209,
    /// There is no session with this TSIH.
    NoSession = 0x020a,
    /// Not a request that may come during login.
    InvalidRequest = 0x020b,
    /// Something broke on this side.
    TargetError = 0x0300,
    /// Try again later.
    Unavailable = 0x0301,
    /// No room.
    OutOfResources = 0x0302,
}
