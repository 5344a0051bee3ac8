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

mod attention;
mod block;
mod compare;
mod copies;
mod copy;
mod fields;
mod inquiry;
pub mod limits;
mod log;
mod lost;
mod medium;
mod mode;
mod offload;
mod operation;
mod persistent;
mod port;
mod provision;
mod ranges;
mod report;
pub mod reservation;
mod seat;
mod segments;
pub mod sense;
mod target;
mod task;
mod tokens;
mod transfer;
mod transport;
mod unit;
mod verify;
mod vital;

pub use medium::Medium;
pub use port::{InitiatorPort, Isid, Port};
pub use sense::Sense;
pub use target::{Directory, Target};
pub use transport::{Attribute, Command, Completion, Lun, Managed, Management, Nexus, Status};
pub use unit::{Counters, Identity, Options, Unit, UnitStore};
