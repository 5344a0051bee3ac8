//! Commands, task management functions and status codes, as a transport carries them.
//!
//! The trait that a transport calls is in `transport`, the table of commands in `operation`.
//!
//! Invariant: the values of all codes come from SAM-5.

use std::fmt;

/// Logical unit number in its 8-byte wire format (SAM-5 4.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lun(pub [u8; 8]);

impl Lun {
    /// Encodes a logical unit number up to [`LUN_MAX`](crate::limits::LUN_MAX): peripheral device
    /// addressing up to 255, flat space addressing above (SAM-5 4.7.7).
    pub const fn new(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        let method = if number < 256 { 0 } else { 0x40 };
        Self([method | high & 0x3F, low, 0, 0, 0, 0, 0, 0])
    }

    /// Decodes the LUN from peripheral device or flat space addressing on the first level; returns
    /// `None` for any other addressing method.
    pub fn number(self) -> Option<u16> {
        let [first, second, rest @ ..] = self.0;
        let number = u16::from_be_bytes([first & 0x3F, second]);
        let known = first == 0 || first & 0xC0 == 0x40;
        (known && rest == [0; 6]).then_some(number)
    }
}

impl fmt::Debug for Lun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", u64::from_be_bytes(self.0))
    }
}

/// Task attribute: the order of a task relative to other tasks on the same logical unit (SAM-5
/// 8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attribute {
    /// SIMPLE: the task runs in any order.
    #[default]
    Simple,
    /// ORDERED: the task runs after all earlier tasks and before all later tasks.
    Ordered,
    /// HEAD OF QUEUE: the task runs before all waiting tasks.
    HeadOfQueue,
    /// Auto contingent allegiance (ACA). Commands with this attribute are refused, because this
    /// target never establishes an ACA condition.
    Aca,
}

/// One command with its Data-Out Buffer.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// Addressed logical unit.
    pub lun: Lun,
    /// Command descriptor block (CDB) as received: 16 bytes, or up to 260 for an extended CDB.
    /// Commands whose CDB is shorter than 16 bytes use only the first bytes.
    pub cdb: &'a [u8],
    /// Data-Out Buffer; may be shorter or longer than the command requires.
    pub data_out: &'a [u8],
    /// Task attribute.
    pub attribute: Attribute,
}

/// Status of a command (SAM-5 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The command succeeded.
    Good = 0x00,
    /// The command failed, or has information to report. The sense data describes the failure or
    /// has the information.
    CheckCondition = 0x02,
    /// The logical unit cannot accept the command now.
    Busy = 0x08,
    /// The command conflicts with a reservation of another nexus.
    ReservationConflict = 0x18,
    /// The task set has no space for another task.
    TaskSetFull = 0x28,
    /// The task was aborted by another nexus. Sent only if the TAS bit is set.
    TaskAborted = 0x40,
}

/// Task management functions (SAM-5 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    /// Aborts all tasks of this nexus on the logical unit.
    AbortTaskSet,
    /// Aborts all tasks of the task set. In Weir, a task set contains the tasks of one nexus only,
    /// so CLEAR TASK SET equals ABORT TASK SET.
    ClearTaskSet,
    /// Resets the logical unit.
    LunReset,
    /// Resets all logical units of the target.
    TargetReset,
}

/// Service response of a task management function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskManagementResponse {
    /// Function complete.
    Complete,
    /// The logical unit does not exist.
    NoLun,
    /// The target does not support the function.
    Unsupported,
}
