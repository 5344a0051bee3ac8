//! The iSCSI target side: codec, negotiation and session, without any SCSI command.
//!
//! Not here: commands (weir-scsi), listening (weir-net), which targets there are (the glue hands
//! in [`Targets`]); docs/protocols/iscsi.md says what initiators get.
//!
//! Place in the flow: socket -> `session` (receive, send) -> `pdu` (decode) -> `login`, then
//! `connection` (run) -> [`Nexus`](weir_scsi::Nexus) -> `pdu` (encode) -> socket.
//!
//! Invariants:
//! - nothing an initiator sends makes this crate panic, or hold more memory than `limits` says;
//! - `pdu`, `text`, `chap` and `login` do no I/O, so that they can be fuzzed as they are;
//! - no secret is ever in a log line or in the output of `Debug`.

#![deny(clippy::indexing_slicing)]

mod error;
pub mod limits;

// Rooms, lowest first: state comes before operations.
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
