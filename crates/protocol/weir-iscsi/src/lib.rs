//! iSCSI target: login, negotiation and sessions. This crate does not interpret SCSI commands.
//!
//! The encoding of PDUs, text and CHAP is in weir-iscsi-wire, SCSI commands are in weir-scsi,
//! listeners in weir-net. The server implements [`Targets`]; docs/protocols/iscsi.md has the
//! features. Place in the flow: socket -> `session` (receive, send) -> `pdu` (decode) -> `login`,
//! then `connection` (run) -> [`Nexus`](weir_scsi::Nexus) -> `pdu` (encode) -> socket.
//!
//! Invariants:
//! - no input from an initiator makes this crate panic or exceed the memory bounds in `limits`;
//! - `login` and the codec in weir-iscsi-wire (`pdu`, `text`, `chap`) do no I/O, so fuzzers call
//!   them directly;
//! - log lines and `Debug` output never contain a secret.

#![deny(clippy::indexing_slicing)]

mod error;
pub mod limits;

// Modules, lowest layer first: state comes before operations.
mod target;
mod login;
mod connection;
mod session;

pub use error::IscsiError;
pub use login::phases::{Login, Purpose, Ready, Step};
pub use session::serve::Iscsi;
pub use target::denial::Refusal;
pub use target::session_table::{SessionInfo, Sessions};
pub use target::targets::{
    Admission, Applicant, Authentication, Discovered, OpenNexus, Portal, Targets,
};
