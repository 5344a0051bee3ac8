//! Reason for which a server refuses a call in its RPC header.
//!
//! `error` and `exchange` return it.
//!
//! Spec: RFC 5531 section 9 (reply_body).
//!
//! Invariant: a refused call changed no file.

use weir_oncrpc::message::{AcceptStat, AuthStat};

/// Reason why a server did not run a procedure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The server offers no such program, version or procedure, or cannot run it.
    #[error("{0:?}")]
    Accept(AcceptStat),
    /// The server does not accept the credential.
    #[error("authentication error {0:?}")]
    Auth(AuthStat),
    /// The server offers another version of RPC.
    #[error("the server offers RPC versions {low} to {high}")]
    Version {
        /// Lowest version.
        low: u32,
        /// Highest version.
        high: u32,
    },
}
