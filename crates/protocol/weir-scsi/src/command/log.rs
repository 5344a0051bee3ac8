//! LOG SENSE.
//!
//! Counters for administrators are in `Unit::counters`.
//!
//! Spec: SPC-4 6.8 and 7.3, SBC-3 6.4.
//!
//! Invariant: every page in the list of supported pages can be read.

use weir_block::OutBuf;

use crate::codec::refusal::Outcome;
use crate::codec::sense::{invalid_cdb, invalid_cdb_bit};
use crate::command::task::{Task, reply};
use crate::fields::{be16, bit, byte};
use crate::unit::logical_unit::Unit;

/// Logical block provisioning page: counts are in units of 2 to this power of logical blocks. With
/// 512-byte blocks the unit is 1 MiB, so that a 32-bit count suffices for every volume.
pub(crate) const THRESHOLD_EXPONENT: u8 = 11;

const SUPPORTED: u8 = 0x00;
const PROVISIONING: u8 = 0x0C;
const EXCEPTIONS: u8 = 0x2F;
const CODES: [u8; 3] = [SUPPORTED, PROVISIONING, EXCEPTIONS];

/// Executes LOG SENSE.
pub(crate) fn sense(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let cdb = task.cdb;
    if bit(cdb, 1, 0x01) {
        // SP: the unit cannot save log parameters.
        return Err(invalid_cdb_bit(1, 0).into());
    }
    if byte(cdb, 3) != 0 {
        return Err(invalid_cdb(3).into());
    }
    let code = byte(cdb, 2) & 0x3F;
    let parameters = match code {
        SUPPORTED => vec![(0, CODES.to_vec())],
        PROVISIONING => provisioning(task.unit),
        // The unit has no active informational exception and measures no temperature.
        EXCEPTIONS => vec![(0, vec![0, 0, 0x03, 4, 0, 0, 0, 0])],
        _ => return Err(invalid_cdb_bit(2, 5).into()),
    };
    let first = be16(cdb, 5);
    let from: Vec<u8> = parameters
        .into_iter()
        .filter(|(parameter, _)| *parameter >= first)
        .flat_map(|(_, bytes)| bytes)
        .collect();
    if from.is_empty() {
        return Err(invalid_cdb(5).into());
    }
    let mut bytes = vec![code, 0];
    bytes.extend((from.len() as u16).to_be_bytes());
    bytes.extend(from);
    reply(out, &bytes, task.allocation());
    Ok(())
}

/// Logical block provisioning page (SBC-3 6.4.4): available and used resources.
fn provisioning(unit: &Unit) -> Vec<(u16, Vec<u8>)> {
    const AVAILABLE: u16 = 1;
    const USED: u16 = 2;
    const OF_THIS_UNIT: u8 = 1;
    const SHARED: u8 = 2;
    let unit_bytes = unit.block() << THRESHOLD_EXPONENT;
    let parameter = |code: u16, count: u64, scope: u8| {
        let mut bytes = code.to_be_bytes().to_vec();
        bytes.extend([0x03, 8]);
        bytes.extend(u32::try_from(count).unwrap_or(u32::MAX).to_be_bytes());
        bytes.extend([scope, 0, 0, 0]);
        (code, bytes)
    };
    vec![
        parameter(AVAILABLE, unit.medium.room_bytes() / unit_bytes, SHARED),
        parameter(USED, unit.medium.mapped_bytes().div_ceil(unit_bytes), OF_THIS_UNIT),
    ]
}
