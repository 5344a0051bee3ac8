//! Commands, task management and status, as a transport carries them.
//!
//! Not here: the trait that a transport calls (`transport`), what commands are (`operation`).
//!
//! Invariant: values are as SAM-5 defines them.

use std::fmt;

/// A logical unit number as it travels: 8 bytes (SAM-5 4.7).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Lun(pub [u8; 8]);

impl Lun {
    /// The field for a logical unit number up to [`LUN_MAX`](crate::limits::LUN_MAX): peripheral
    /// addressing up to 255, flat space addressing above (SAM-5 4.7.7).
    pub const fn new(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        let method = if number < 256 { 0 } else { 0x40 };
        Self([method | high & 0x3F, low, 0, 0, 0, 0, 0, 0])
    }

    /// The number in it, where it is of one of these two forms, on the first level.
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

/// How a task stands to the others of its logical unit (SAM-5 8.6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Attribute {
    /// In any order.
    #[default]
    Simple,
    /// After all that came before, before all that comes after.
    Ordered,
    /// Before all that waits.
    HeadOfQueue,
    /// Automatic contingent allegiance: refused, as no such condition exists here.
    Aca,
}

/// One command with the data it brings.
#[derive(Clone, Copy, Debug)]
pub struct Command<'a> {
    /// Which logical unit.
    pub lun: Lun,
    /// The command descriptor block, as long as it came: 16 bytes, of which a short command uses
    /// the first, or up to 260.
    pub cdb: &'a [u8],
    /// The data that came with it; may be shorter or longer than the command asks for.
    pub data_out: &'a [u8],
    /// Its place among the others.
    pub attribute: Attribute,
}

/// How a command ended (SAM-5 5.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// Done.
    Good = 0x00,
    /// Not done, or with something to say; sense data tells.
    CheckCondition = 0x02,
    /// Could not be taken now.
    Busy = 0x08,
    /// A reservation of another nexus stands in the way.
    ReservationConflict = 0x18,
    /// No room for a further task.
    TaskSetFull = 0x28,
    /// Ended by somebody else, and TAS says that this is to be told.
    TaskAborted = 0x40,
}

/// Task management (SAM-5 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Management {
    /// Abort every task of this nexus on the logical unit.
    AbortTaskSet,
    /// Abort every task of the task set, which is that of this nexus on the logical unit.
    ClearTaskSet,
    /// Reset the logical unit.
    LunReset,
    /// Reset every logical unit of the target.
    TargetReset,
}

/// The answer to task management.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Managed {
    /// Done.
    Complete,
    /// There is no such logical unit.
    NoLun,
    /// This target does not do that.
    Unsupported,
}
