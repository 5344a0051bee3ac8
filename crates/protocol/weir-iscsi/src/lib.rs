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

mod connection;
mod error;
mod guesses;
pub mod limits;
pub mod login;
pub mod session;
mod sessions;
mod targets;
pub mod terms;

pub use error::IscsiError;
pub use session::Iscsi;
pub use sessions::{SessionInfo, Sessions};
pub use targets::{
    Admission, Applicant, Authentication, Discovered, OpenNexus, Portal, Refusal, Targets,
};
