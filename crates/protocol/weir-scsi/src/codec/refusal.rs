//! Refusals of commands, and the mapping of storage errors to refusals.
//!
//! The encoding of sense data is in `sense`.
//!
//! Invariant: a refusal has a status, and has sense data if the status is CHECK CONDITION.

use weir_base::ErrorKind;
use weir_block::ExportError;

use crate::codec::command::Status;
use crate::codec::sense::{
    FAILURE, NO_SPACE, NO_UNIT, NOT_READY, OUT_OF_RANGE, Sense, UNREADABLE, WRITE_PROTECTED,
};

/// Refusal of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// CHECK CONDITION with this sense data.
    Check(Sense),
    /// A status without sense data.
    Status(Status),
}

impl From<Sense> for Refusal {
    fn from(sense: Sense) -> Self {
        Self::Check(sense)
    }
}

impl From<ExportError> for Refusal {
    /// Maps the kind of a storage error to sense data or a status.
    fn from(error: ExportError) -> Self {
        let sense = match error.kind() {
            ErrorKind::Busy => return Self::Status(Status::Busy),
            ErrorKind::Invalid => OUT_OF_RANGE,
            ErrorKind::NotFound => NO_UNIT,
            ErrorKind::NoSpace => NO_SPACE,
            ErrorKind::ReadOnly | ErrorKind::Permission => WRITE_PROTECTED,
            ErrorKind::Unavailable => NOT_READY,
            ErrorKind::Data => UNREADABLE,
            ErrorKind::Exists | ErrorKind::Poisoned | ErrorKind::Internal => FAILURE,
        };
        if error.kind() != ErrorKind::NoSpace {
            tracing::debug!(%error, "storage refused a SCSI command");
        }
        Self::Check(sense)
    }
}

/// Result of a command: success or a refusal.
pub(crate) type Outcome = Result<(), Refusal>;
