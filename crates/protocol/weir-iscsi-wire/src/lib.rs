//! The bytes of iSCSI: PDUs, text keys and CHAP, for targets and initiators.
//!
//! Not here: logins and sessions of a target (weir-iscsi) or of an initiator (weir-initiator).
//!
//! Invariants:
//! - no input of a peer makes this crate panic, or allocate more than `limits` says;
//! - no function does I/O, so each one can be fuzzed;
//! - the output of `Debug` has no secret.

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

/// The port that iSCSI is registered under.
pub const DEFAULT_PORT: u16 = 3260;
