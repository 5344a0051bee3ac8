//! INQUIRY and REQUEST SENSE.
//!
//! The pages of vital product data are in `vital`.
//!
//! Spec: SPC-4 6.6 and 6.39.
//!
//! Invariant: neither command ends with CHECK CONDITION because of a unit attention.

use weir_block::OutBuf;

use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{Sense, invalid_cdb, invalid_cdb_bit, key};
use crate::command::identity::{VENDOR, padded};
use crate::command::task::{Task, reply};
use crate::command::vital;
use crate::fields::{be16, bit, byte};
use crate::unit::attention::Attention;

/// Version descriptors (SPC-4 6.6.2, table 180): SAM-5, SPC-4, SBC-3, iSCSI.
const STANDARDS: [u16; 4] = [0x00A0, 0x0460, 0x04C0, 0x0960];

/// Executes INQUIRY.
pub(crate) fn inquiry(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let bytes = match check(task.cdb)? {
        Some(code) => vital::encode(task, code).ok_or(invalid_cdb(2))?,
        None => standard(task),
    };
    reply(out, &bytes, be16(task.cdb, 3).into());
    Ok(())
}

/// Page code of the requested VPD page; `None` for standard INQUIRY data.
fn check(cdb: &[u8]) -> Result<Option<u8>, Sense> {
    if bit(cdb, 1, 0x02) {
        // CMDDT requests command support data, which is obsolete.
        return Err(invalid_cdb_bit(1, 1));
    }
    let code = byte(cdb, 2);
    match (bit(cdb, 1, 0x01), code) {
        (true, code) => Ok(Some(code)),
        (false, 0) => Ok(None),
        (false, _) => Err(invalid_cdb(2)),
    }
}

/// Answers INQUIRY to a logical unit that does not exist.
pub(crate) fn absent(cdb: &[u8], out: &mut OutBuf) -> Result<(), Refusal> {
    if check(cdb)?.is_some() {
        return Err(invalid_cdb_bit(1, 0).into());
    }
    // Peripheral qualifier 011b, device type 1Fh: the target cannot have a logical unit with this
    // LUN.
    let mut bytes = vec![0x7F, 0, 0x06, 0x12, 91, 0, 0, 0x02];
    bytes.extend(padded(VENDOR, 8));
    // Product and revision are ASCII fields; an empty field contains spaces (SPC-4 4.4.1).
    bytes.extend(padded("", 16));
    bytes.extend(padded("", 4));
    bytes.resize(96, 0);
    reply(out, &bytes, be16(cdb, 3).into());
    Ok(())
}

fn standard(task: &Task<'_>) -> Vec<u8> {
    let identity = &task.unit.identity;
    // Direct access block device; SPC-4; HISUP and response format 2; implicit ALUA and third-party
    // copy; MULTIP if the target has more than one port; CMDQUE.
    let several_ports = task.nexus.name.ports.len() > 1;
    let mut bytes = vec![0x00, 0, 0x06, 0x12, 91, 0x18, if several_ports { 0x10 } else { 0 }, 2];
    bytes.extend(padded(VENDOR, 8));
    bytes.extend(padded(&identity.product, 16));
    bytes.extend(padded(&identity.revision, 4));
    bytes.resize(58, 0);
    bytes.extend(STANDARDS.iter().flat_map(|code| code.to_be_bytes()));
    bytes.resize(96, 0);
    bytes
}

/// REQUEST SENSE: returns the first pending unit attention, or NO SENSE.
pub(crate) fn request_sense(task: &Task<'_>, out: &mut OutBuf) {
    let waiting = task.nexus.take_attention(task.itl_nexus);
    let sense = waiting.map_or(Sense::new(key::NO_SENSE, 0, 0), Attention::sense);
    let sense = Sense { descriptor: bit(task.cdb, 1, 0x01), ..sense };
    reply(out, &sense.to_bytes(), byte(task.cdb, 4).into());
}
