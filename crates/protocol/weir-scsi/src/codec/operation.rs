//! Table of supported commands: operation codes, CDB usage data, and the access that each command
//! needs under a reservation.
//!
//! The modules in `command` execute the commands.
//!
//! Spec: SPC-4 6.1, SBC-3 5.1; for reservations SPC-4 5.13.1 table 71, SBC-3 4.17 table 15.
//!
//! Invariant: a command outside the table is refused, and REPORT SUPPORTED OPERATION CODES reports
//! exactly the commands in the table.

use crate::codec::sense::{NO_OPERATION, Sense, invalid_cdb, invalid_cdb_bit};
use crate::fields::{be16, be24, be32, be64, byte};

/// Access that a command needs to run while another nexus holds a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The command is allowed under every reservation.
    Always,
    /// The command is allowed under every persistent reservation, but conflicts with an SPC-2
    /// reservation.
    Persistent,
    /// The command needs read access.
    Read,
    /// The command needs write access.
    Write,
    /// The command manages reservations, and checks for reservation conflicts itself.
    Reservation,
}

/// Function of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    TestUnitReady,
    RequestSense,
    Inquiry,
    ModeSelect,
    ModeSense,
    Reserve,
    Release,
    StartStop,
    ReadCapacity10,
    ReadCapacity16,
    Read,
    Write,
    OrWrite,
    CompareAndWrite,
    WriteAndVerify,
    Verify,
    Prefetch,
    SynchronizeCache,
    WriteSame,
    Unmap,
    GetLbaStatus,
    LogSense,
    PersistentIn,
    PersistentOut,
    ExtendedCopy,
    PopulateToken,
    WriteUsingToken,
    AbortCopy,
    ReceiveCopyResults,
    ReceiveCopyStatus,
    ReceiveTokenInformation,
    ReportLuns,
    ReportPortGroups,
    ReportOperations,
    ReportFunctions,
}

/// One command of the table.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) action: Action,
    pub(crate) access: Access,
    /// True if byte 1 of the usage data holds a service action.
    pub(crate) has_service_action: bool,
    /// CDB usage data (SPC-4 6.35.3): a mask of the CDB bits that the command evaluates. The
    /// operation code and the service action appear with their values. The length is the CDB
    /// length.
    pub(crate) usage: &'static [u8],
}

/// Mask of the service action in byte 1 of a CDB.
pub(crate) const SERVICE_ACTION: u8 = 0x1F;

const fn plain(action: Action, access: Access, usage: &'static [u8]) -> Operation {
    Operation { action, access, has_service_action: false, usage }
}

const fn service(action: Action, access: Access, usage: &'static [u8]) -> Operation {
    Operation { action, access, has_service_action: true, usage }
}

/// All supported commands, the most frequent first.
pub(crate) static OPERATIONS: &[Operation] = &[
    plain(Action::Read, Access::Read, &[0x28, 0x18, 255, 255, 255, 255, 0, 255, 255, 0]),
    plain(Action::Write, Access::Write, &[0x2A, 0x18, 255, 255, 255, 255, 0, 255, 255, 0]),
    plain(Action::Read, Access::Read, &wide(0x88, 0x18)),
    plain(Action::Write, Access::Write, &wide(0x8A, 0x18)),
    plain(Action::TestUnitReady, Access::Persistent, &[0x00, 0, 0, 0, 0, 0]),
    plain(
        Action::SynchronizeCache,
        Access::Write,
        &[0x35, 0x02, 255, 255, 255, 255, 0, 255, 255, 0],
    ),
    plain(Action::SynchronizeCache, Access::Write, &wide(0x91, 0x02)),
    plain(Action::Unmap, Access::Write, &[0x42, 0, 0, 0, 0, 0, 0, 255, 255, 0]),
    plain(
        Action::CompareAndWrite,
        Access::Write,
        &[0x89, 0x18, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0, 0, 255, 0, 0],
    ),
    plain(Action::WriteSame, Access::Write, &[0x41, 0x08, 255, 255, 255, 255, 0, 255, 255, 0]),
    plain(Action::WriteSame, Access::Write, &wide(0x93, 0x09)),
    plain(Action::Read, Access::Read, &[0x08, 0x1F, 255, 255, 255, 0]),
    plain(Action::Write, Access::Write, &[0x0A, 0x1F, 255, 255, 255, 0]),
    plain(Action::Read, Access::Read, &long(0xA8, 0x18)),
    plain(Action::Write, Access::Write, &long(0xAA, 0x18)),
    plain(Action::RequestSense, Access::Always, &[0x03, 0x01, 0, 0, 255, 0]),
    plain(Action::Inquiry, Access::Always, &[0x12, 0x01, 255, 255, 255, 0]),
    plain(Action::ModeSelect, Access::Write, &[0x15, 0x11, 0, 0, 255, 0]),
    plain(Action::Reserve, Access::Reservation, &[0x16, 0, 0, 0, 0, 0]),
    plain(Action::Release, Access::Reservation, &[0x17, 0, 0, 0, 0, 0]),
    plain(Action::ModeSense, Access::Read, &[0x1A, 0x08, 255, 255, 255, 0]),
    plain(Action::StartStop, Access::Write, &[0x1B, 0x01, 0, 0, 0xF7, 0]),
    plain(Action::ReadCapacity10, Access::Always, &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    plain(Action::WriteAndVerify, Access::Write, &[0x2E, 0x12, 255, 255, 255, 255, 0, 255, 255, 0]),
    plain(Action::Verify, Access::Read, &[0x2F, 0x16, 255, 255, 255, 255, 0, 255, 255, 0]),
    plain(Action::Prefetch, Access::Read, &[0x34, 0x02, 255, 255, 255, 255, 0, 255, 255, 0]),
    plain(Action::LogSense, Access::Always, &[0x4D, 0, 255, 255, 0, 255, 255, 255, 255, 0]),
    plain(Action::ModeSelect, Access::Write, &[0x55, 0x11, 0, 0, 0, 0, 0, 255, 255, 0]),
    plain(Action::Reserve, Access::Reservation, &[0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    plain(Action::Release, Access::Reservation, &[0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    plain(Action::ModeSense, Access::Read, &[0x5A, 0x18, 255, 255, 0, 0, 0, 255, 255, 0]),
    service(Action::PersistentIn, Access::Reservation, &persistent_in(0)),
    service(Action::PersistentIn, Access::Reservation, &persistent_in(1)),
    service(Action::PersistentIn, Access::Reservation, &persistent_in(2)),
    service(Action::PersistentIn, Access::Reservation, &persistent_in(3)),
    service(Action::PersistentOut, Access::Reservation, &persistent_out(0)),
    service(Action::PersistentOut, Access::Reservation, &persistent_out(1)),
    service(Action::PersistentOut, Access::Reservation, &persistent_out(2)),
    service(Action::PersistentOut, Access::Reservation, &persistent_out(3)),
    service(Action::PersistentOut, Access::Reservation, &persistent_out(4)),
    service(Action::PersistentOut, Access::Reservation, &persistent_out(5)),
    service(Action::PersistentOut, Access::Reservation, &persistent_out(6)),
    service(Action::PersistentOut, Access::Reservation, &persistent_out(7)),
    service(Action::ExtendedCopy, Access::Write, &copy(0x83, 0x00, 0)),
    service(Action::PopulateToken, Access::Read, &token(0x10)),
    service(Action::WriteUsingToken, Access::Write, &token(0x11)),
    service(
        Action::AbortCopy,
        Access::Write,
        &[0x83, 0x1C, 255, 255, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    ),
    service(Action::ReceiveCopyResults, Access::Write, &copy(0x84, 0x00, 255)),
    service(Action::ReceiveCopyResults, Access::Write, &copy(0x84, 0x03, 0)),
    service(Action::ReceiveCopyResults, Access::Write, &copy(0x84, 0x04, 255)),
    service(Action::ReceiveCopyStatus, Access::Write, &copy_result(0x05)),
    service(Action::ReceiveTokenInformation, Access::Read, &copy_result(0x07)),
    plain(Action::OrWrite, Access::Write, &wide(0x8B, 0x18)),
    plain(Action::WriteAndVerify, Access::Write, &wide(0x8E, 0x12)),
    plain(Action::Verify, Access::Read, &wide(0x8F, 0x16)),
    plain(Action::Prefetch, Access::Read, &wide(0x90, 0x02)),
    service(Action::ReadCapacity16, Access::Always, &copy(0x9E, 0x10, 0)),
    service(Action::GetLbaStatus, Access::Read, &wide(0x9E, 0x12)),
    plain(Action::ReportLuns, Access::Always, &[0xA0, 0, 255, 0, 0, 0, 255, 255, 255, 255, 0, 0]),
    service(
        Action::ReportPortGroups,
        Access::Persistent,
        &[0xA3, 0xEA, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    ),
    service(
        Action::ReportOperations,
        Access::Persistent,
        &[0xA3, 0x0C, 0x87, 255, 255, 255, 255, 255, 255, 255, 0, 0],
    ),
    service(
        Action::ReportFunctions,
        Access::Persistent,
        &[0xA3, 0x0D, 0x80, 0, 0, 0, 255, 255, 255, 255, 0, 0],
    ),
    plain(Action::WriteAndVerify, Access::Write, &long(0xAE, 0x12)),
    plain(Action::Verify, Access::Read, &long(0xAF, 0x16)),
];

/// Usage data of a 16-byte CDB with an 8-byte LBA and a 4-byte length.
const fn wide(code: u8, flags: u8) -> [u8; 16] {
    [code, flags, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0]
}

/// Usage data of a 12-byte CDB with a 4-byte LBA and a 4-byte length.
const fn long(code: u8, flags: u8) -> [u8; 12] {
    [code, flags, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0]
}

/// Usage data of a 16-byte CDB with the allocation length or parameter list length at byte 10.
const fn copy(code: u8, action: u8, list: u8) -> [u8; 16] {
    [code, action, list, 0, 0, 0, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0]
}

/// Usage data of POPULATE TOKEN and WRITE USING TOKEN: a list identifier and a parameter list
/// length.
const fn token(action: u8) -> [u8; 16] {
    [0x83, action, 0, 0, 0, 0, 255, 255, 255, 255, 255, 255, 255, 255, 0, 0]
}

/// Usage data of a 16-byte CDB with a 4-byte list identifier and an allocation length.
const fn copy_result(action: u8) -> [u8; 16] {
    [0x84, action, 255, 255, 255, 255, 0, 0, 0, 0, 255, 255, 255, 255, 0, 0]
}

const fn persistent_in(action: u8) -> [u8; 10] {
    [0x5E, action, 0, 0, 0, 0, 0, 255, 255, 0]
}

const fn persistent_out(action: u8) -> [u8; 10] {
    [0x5F, action, 255, 0, 0, 255, 255, 255, 255, 0]
}

impl Operation {
    /// Operation code.
    pub(crate) fn code(&self) -> u8 {
        byte(self.usage, 0)
    }

    /// Service action; 0 if the command has none.
    pub(crate) fn service_action(&self) -> u8 {
        if self.has_service_action { byte(self.usage, 1) & SERVICE_ACTION } else { 0 }
    }

    /// Finds the command of a CDB, and checks the CDB length and the NACA bit.
    pub(crate) fn find(cdb: &[u8]) -> Result<&'static Self, Sense> {
        let code = *cdb.first().ok_or(NO_OPERATION)?;
        let mut known = OPERATIONS.iter().filter(|operation| operation.code() == code);
        let first = known.next().ok_or(NO_OPERATION)?;
        let wanted = byte(cdb, 1) & SERVICE_ACTION;
        let found = if first.has_service_action && first.service_action() != wanted {
            let other = known.find(|operation| operation.service_action() == wanted);
            other.ok_or(invalid_cdb_bit(1, 4))?
        } else {
            first
        };
        let len = found.usage.len();
        if cdb.len() < len {
            return Err(invalid_cdb(cdb.len() as u16));
        }
        // NACA asks for an auto contingent allegiance, which this target does not support (SAM-5
        // 5.2).
        if byte(cdb, len - 1) & 0x04 != 0 {
            return Err(invalid_cdb_bit(len as u16 - 1, 2));
        }
        Ok(found)
    }
}

/// First block and number of blocks of a block command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) lba: u64,
    pub(crate) blocks: u64,
    /// CDB byte at which the length field begins; sense data names this byte if the length is
    /// invalid.
    pub(crate) field: u16,
}

/// Decodes the LBA and the length of a block command. The CDB layout follows from the group code:
/// the upper 3 bits of the operation code.
pub(crate) fn extent(cdb: &[u8]) -> Extent {
    match byte(cdb, 0) >> 5 {
        0 => {
            let lba = u64::from(be24(cdb, 1) & 0x1F_FFFF);
            // In the 6-byte CDB, 0 means 256 blocks (SBC-3 5.6).
            let blocks = match byte(cdb, 4) {
                0 => 256,
                blocks => u64::from(blocks),
            };
            Extent { lba, blocks, field: 4 }
        }
        1 | 2 => Extent { lba: be32(cdb, 2).into(), blocks: be16(cdb, 7).into(), field: 7 },
        5 => Extent { lba: be32(cdb, 2).into(), blocks: be32(cdb, 6).into(), field: 6 },
        _ => Extent { lba: be64(cdb, 2), blocks: be32(cdb, 10).into(), field: 10 },
    }
}

#[cfg(test)]
mod tests;
