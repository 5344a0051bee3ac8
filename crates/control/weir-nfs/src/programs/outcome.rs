//! Outcome of a call.
//!
//! Invariant: only [`Outcome::Done`] leaves results in the buffer.

use weir_oncrpc::message::{AcceptStat, AuthStat};

/// Outcome of a call whose header the server decoded.
pub(crate) enum Outcome {
    /// The results are in the buffer.
    Done,
    /// The server answers with an RPC error.
    Failed(AcceptStat),
    /// The server denies the call.
    Denied(AuthStat),
    /// The server sends no reply.
    Silent,
}
