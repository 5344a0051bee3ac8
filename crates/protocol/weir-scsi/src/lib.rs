//! SCSI logical units, without any transport.
//!
//! Not here: how commands travel (weir-iscsi), storage (the engine hands in a [`Medium`]).
//!
//! Place in the flow: a transport hands a [`Command`] to the [`Nexus`] of its session; `target`
//! finds the logical unit, `task` says whether the command may run, `operation` what it is, and
//! the modules named after commands do it.
//!
//! Invariant: nothing an initiator sends makes this crate panic.

#![deny(clippy::indexing_slicing)]

mod fields;
pub mod limits;
mod medium;

// Rooms, lowest first: state comes before operations.
mod codec;
mod unit;
mod command;
mod dispatch;

pub use codec::command::{Attribute, Command, Lun, Managed, Management, Status};
pub use codec::port::{InitiatorPort, Isid, Port};
pub use codec::sense;
pub use codec::sense::Sense;
pub use codec::transport::{Completion, Nexus};
pub use dispatch::target::Target;
pub use medium::Medium;
pub use unit::logical_unit::{Counters, Unit};
pub use unit::nexus_state::Directory;
pub use unit::options::{Identity, Options, UnitStore};
pub use unit::reservation;
