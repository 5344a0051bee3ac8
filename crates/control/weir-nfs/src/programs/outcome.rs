//! Outcome of a call.
//!
//! Invariant: only [`Outcome::Done`] and [`Outcome::Data`] leave results in the buffer.

use weir_fs::FileData;
use weir_oncrpc::message::{AcceptStat, AuthStat};

/// Outcome of a call whose header the server decoded.
pub(crate) enum Outcome {
    /// The results are in the buffer.
    Done,
    /// The results are in the buffer, except the data of a READ, which follows them.
    Data(FileData),
    /// The server answers with an RPC error.
    Failed(AcceptStat),
    /// The server denies the call.
    Denied(AuthStat),
    /// The server sends no reply.
    Silent,
}
