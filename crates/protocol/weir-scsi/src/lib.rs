//! SCSI target: logical units and their commands, independent of the transport.
//!
//! The iSCSI transport is in `weir-iscsi`. The engine implements the storage as a [`Medium`].
//!
//! Place in the flow: a transport passes a [`Command`] to the [`Nexus`] of its session.
//! `dispatch::target` finds the logical unit, `codec::operation` decodes the operation code,
//! `dispatch::run` decides whether the command may run, and the modules in `command` execute the
//! command.
//!
//! Invariant: no input from an initiator makes this crate panic.

#![deny(clippy::indexing_slicing)]

mod fields;
pub mod limits;
mod medium;

// Modules, lowest layer first: state comes before operations.
mod codec;
mod unit;
mod command;
mod dispatch;

pub use codec::command::{Attribute, Command, Lun, Management, Status, TaskManagementResponse};
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
