//! REPORT LUNS, REPORT TARGET PORT GROUPS, REPORT SUPPORTED OPERATION CODES and REPORT SUPPORTED
//! TASK MANAGEMENT FUNCTIONS.
//!
//! The table of commands is in `codec::operation`.
//!
//! Spec: SPC-4 6.33 to 6.37.
//!
//! Invariant: a response is either complete or truncated at the allocation length.

use weir_block::OutBuf;

use crate::codec::command::Lun;
use crate::codec::operation::{OPERATIONS, Operation};
use crate::codec::refusal::Outcome;
use crate::codec::sense::{invalid_cdb, invalid_cdb_bit};
use crate::command::task::{Task, reply};
use crate::fields::{be16, be32, bit, byte};
use crate::unit::nexus_state::NexusState;

/// REPORT LUNS. The command works with any LUN in its PDU.
pub(crate) fn luns(nexus: &NexusState, cdb: &[u8], out: &mut OutBuf) -> Outcome {
    let select = byte(cdb, 2);
    if select > 0x02 {
        return Err(invalid_cdb(2).into());
    }
    nexus.clear_luns_changed();
    // SELECT REPORT 01h requests only well known logical units; this target has none.
    let numbers = if select == 0x01 { Vec::new() } else { nexus.luns() };
    let mut bytes = (numbers.len() as u32 * 8).to_be_bytes().to_vec();
    bytes.extend([0; 4]);
    bytes.extend(numbers.into_iter().flat_map(|number| Lun::new(number).0));
    reply(out, &bytes, be32(cdb, 6) as usize);
    Ok(())
}

/// REPORT TARGET PORT GROUPS. All port groups are in the state active/optimized.
pub(crate) fn port_groups(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let is_extended = match byte(task.cdb, 1) >> 5 {
        0 => false,
        1 => true,
        _ => return Err(invalid_cdb_bit(1, 7).into()),
    };
    let ports = &task.nexus.name.ports;
    let mut groups: Vec<u16> = ports.iter().map(|port| port.group).collect();
    groups.sort_unstable();
    groups.dedup();
    let mut content = if is_extended { vec![0x10, 0, 0, 0] } else { Vec::new() };
    for group in groups {
        let members: Vec<u16> =
            ports.iter().filter(|port| port.group == group).map(|port| port.relative).collect();
        // State active/optimized. The groups support no other state.
        content.extend([0x00, 0x01]);
        content.extend(group.to_be_bytes());
        content.extend([0, 0, 0, members.len().min(255) as u8]);
        for relative in members.into_iter().take(255) {
            content.extend([0, 0]);
            content.extend(relative.to_be_bytes());
        }
    }
    let mut bytes = (content.len() as u32).to_be_bytes().to_vec();
    bytes.extend(content);
    reply(out, &bytes, task.allocation());
    Ok(())
}

/// Command timeouts descriptor that specifies no timeouts (SPC-4 6.35.4).
const TIMEOUTS: [u8; 12] = [0, 0x0A, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Executes REPORT SUPPORTED OPERATION CODES.
pub(crate) fn operations(task: &Task<'_>, out: &mut OutBuf) -> Outcome {
    let with_timeouts = bit(task.cdb, 2, 0x80);
    let code = byte(task.cdb, 3);
    let wanted = be16(task.cdb, 4);
    let of_code = || OPERATIONS.iter().filter(move |operation| operation.code() == code);
    let has_actions = of_code().next().is_some_and(|first| first.has_service_action);
    let with_action =
        || of_code().find(|operation| u16::from(operation.service_action()) == wanted);
    let bytes = match byte(task.cdb, 2) & 7 {
        0 => all_operations(with_timeouts),
        1 if has_actions => return Err(invalid_cdb(3).into()),
        1 => one_operation(of_code().next(), with_timeouts),
        2 if !has_actions && of_code().next().is_some() => {
            return Err(invalid_cdb(3).into());
        }
        2 | 3 => one_operation(with_action(), with_timeouts),
        _ => return Err(invalid_cdb_bit(2, 2).into()),
    };
    reply(out, &bytes, task.allocation());
    Ok(())
}

fn all_operations(with_timeouts: bool) -> Vec<u8> {
    let mut list = Vec::new();
    for operation in OPERATIONS {
        list.extend([operation.code(), 0, 0, operation.service_action(), 0]);
        let timeouts = if with_timeouts { 0x02 } else { 0 };
        list.push(timeouts | u8::from(operation.has_service_action));
        list.extend((operation.usage.len() as u16).to_be_bytes());
        if with_timeouts {
            list.extend(TIMEOUTS);
        }
    }
    let mut bytes = (list.len() as u32).to_be_bytes().to_vec();
    bytes.extend(list);
    bytes
}

fn one_operation(operation: Option<&Operation>, with_timeouts: bool) -> Vec<u8> {
    let Some(operation) = operation else {
        // SUPPORT 001b: the command is not supported.
        return vec![0, 0x01, 0, 0];
    };
    // SUPPORT 011b: the command is supported in conformance with the standard.
    let mut bytes = vec![0, 0x03 | if with_timeouts { 0x80 } else { 0 }];
    bytes.extend((operation.usage.len() as u16).to_be_bytes());
    bytes.extend(operation.usage);
    if with_timeouts {
        bytes.extend(TIMEOUTS);
    }
    bytes
}

/// REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS: ABORT TASK, ABORT TASK SET, CLEAR TASK SET, LOGICAL
/// UNIT RESET and TARGET RESET are supported.
pub(crate) fn functions(task: &Task<'_>, out: &mut OutBuf) {
    let mut bytes = vec![0xDA, 0, 0, 0];
    if bit(task.cdb, 2, 0x80) {
        bytes = vec![0xDA, 0, 0, 0x0C];
        bytes.resize(16, 0);
    }
    reply(out, &bytes, task.allocation());
}
