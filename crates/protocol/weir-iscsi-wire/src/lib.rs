//! iSCSI wire format for targets and initiators: PDUs, text keys and CHAP.
//!
//! Logins and sessions are in weir-iscsi for targets and in weir-initiator for initiators.
//!
//! Invariants:
//! - no input from a peer makes this crate panic or allocate more than `limits` allows;
//! - no function does I/O, so fuzzers can call every function;
//! - `Debug` output contains no secret.

#![deny(clippy::indexing_slicing)]

pub mod chap;
mod error;
pub mod limits;
mod login_status;
pub mod pdu;
mod secret;
pub mod text;

pub use error::WireError;
pub use login_status::Status;
pub use secret::{Credentials, Secret};

/// Registered TCP port of iSCSI.
pub const DEFAULT_PORT: u16 = 3260;
