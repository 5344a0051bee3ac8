//! Vital product data (VPD) pages.
//!
//! Standard INQUIRY data is in `inquiry`.
//!
//! Spec: SPC-4 7.8, SBC-3 6.6.
//!
//! Invariant: the list of supported pages is in ascending order, and each listed page can be read.

use crate::codec::operation::OPERATIONS;
use crate::codec::port::Port;
use crate::command::identity::{VENDOR, padded};
use crate::command::log::THRESHOLD_EXPONENT;
use crate::command::task::Task;
use crate::command::token_copy::ZEROS;
use crate::limits::{
    COMPARE_BLOCKS_MAX, COPIES_RUNNING_MAX, COPY_LIST_BYTES_MAX, COPY_SEGMENT_BYTES_MAX,
    COPY_SEGMENTS_MAX, COPY_TARGETS_MAX, OPTIMAL_BYTES, TOKEN_DATA_BYTES_MAX, TOKEN_RANGES_MAX,
    TOKEN_STEP_BYTES, TOKEN_TIMEOUT_SECONDS, TOKEN_TIMEOUT_SECONDS_MAX, UNMAP_BLOCKS_MAX,
    UNMAP_DESCRIPTORS_MAX, WRITE_SAME_BYTES_MAX,
};
use crate::unit::logical_unit::Unit;
use crate::unit::rod_tokens::CHANGE_VULNERABLE;

/// Supported VPD pages.
const CODES: [u8; 8] = [0x00, 0x80, 0x83, 0x86, 0x8F, 0xB0, 0xB1, 0xB2];

/// Encodes a page with its header; `None` if the page is not supported.
pub(crate) fn encode(task: &Task<'_>, code: u8) -> Option<Vec<u8>> {
    let unit = task.unit;
    let content = match code {
        0x00 => CODES.to_vec(),
        0x80 => padded(&unit.identity.serial, unit.identity.serial.len().min(200)),
        0x83 => identification(task),
        0x86 => extended_inquiry(),
        0x8F => third_party_copy(unit),
        0xB0 => block_limits(unit),
        0xB1 => characteristics(),
        0xB2 => provisioning(),
        _ => return None,
    };
    let mut bytes = vec![0x00, code];
    bytes.extend((content.len() as u16).to_be_bytes());
    bytes.extend(content);
    Some(bytes)
}

/// Designation descriptor (SPC-4 7.8.6.1). If the designator names a port or the target, not the
/// logical unit, the descriptor contains the protocol identifier of iSCSI.
fn designator(code_set: u8, association: u8, kind: u8, content: &[u8]) -> Vec<u8> {
    let (protocol, valid) = if association == 0 { (0, 0) } else { (0x50, 0x80) };
    let mut bytes = vec![protocol | code_set, valid | association << 4 | kind, 0];
    bytes.push(content.len() as u8);
    bytes.extend(content);
    bytes
}

/// SCSI name string: null-terminated, with a length that is a multiple of 4.
fn name_string(name: &str) -> Vec<u8> {
    let mut bytes = name.as_bytes().get(..name.len().min(251)).unwrap_or_default().to_vec();
    bytes.resize(bytes.len() / 4 * 4 + 4, 0);
    bytes
}

fn identification(task: &Task<'_>) -> Vec<u8> {
    let identity = &task.unit.identity;
    let mut bytes = designator(1, 0, 3, &identity.naa);
    let vendor = [padded(VENDOR, 8), padded(&identity.serial, identity.serial.len().min(200))];
    bytes.extend(designator(2, 0, 1, &vendor.concat()));
    let name = &task.nexus.name;
    let here = |port: &&Port| port.relative == name.path.relative_port;
    if let Some(port) = name.ports.iter().find(here) {
        let [high, low] = port.relative.to_be_bytes();
        bytes.extend(designator(1, 1, 4, &[0, 0, high, low]));
        let [high, low] = port.group.to_be_bytes();
        bytes.extend(designator(1, 1, 5, &[0, 0, high, low]));
        bytes.extend(designator(3, 1, 8, &name_string(&port.name)));
    }
    bytes.extend(designator(3, 2, 8, &name_string(&name.path.target)));
    bytes
}

/// Extended INQUIRY data (SPC-4 7.8.7): SIMPSUP, ORDSUP, HEADSUP, V_SUP and LUICLR.
fn extended_inquiry() -> Vec<u8> {
    let mut bytes = vec![0, 0x07, 0x01, 0x01];
    bytes.resize(60, 0);
    bytes
}

/// Block limits (SBC-3 6.6.4).
fn block_limits(unit: &Unit) -> Vec<u8> {
    let block = unit.block();
    // UNMAP granularity: an UNMAP of less than one record frees no space.
    let preferred = (u64::from(unit.medium.block_bytes_preferred()) / block).max(1);
    let granularity = preferred as u32;
    // WSNZ: a WRITE SAME with a length of 0 is refused. Without WSNZ, length 0 would mean all
    // blocks up to the end of the unit.
    let mut bytes = vec![0x01, COMPARE_BLOCKS_MAX];
    bytes.extend((preferred.min(0xFFFF) as u16).to_be_bytes());
    bytes.extend((unit.transfer_blocks_max() as u32).to_be_bytes());
    // Optimal transfer length: initiators set their read-ahead to twice this length. The field
    // after it is the maximum prefetch length, which equals the maximum transfer length.
    bytes.extend(((OPTIMAL_BYTES / block) as u32).to_be_bytes());
    bytes.extend((unit.transfer_blocks_max() as u32).to_be_bytes());
    bytes.extend(UNMAP_BLOCKS_MAX.to_be_bytes());
    bytes.extend(UNMAP_DESCRIPTORS_MAX.to_be_bytes());
    bytes.extend(granularity.to_be_bytes());
    // UGAVALID is set; the UNMAP granularity alignment is 0.
    bytes.extend(0x8000_0000_u32.to_be_bytes());
    bytes.extend((WRITE_SAME_BYTES_MAX / block).to_be_bytes());
    bytes.resize(60, 0);
    bytes
}

/// Block device characteristics (SBC-3 6.6.3): non-rotating medium.
fn characteristics() -> Vec<u8> {
    let mut bytes = vec![0, 1];
    bytes.resize(60, 0);
    bytes
}

/// Logical block provisioning (SBC-3 6.6.5): the unit is thin provisioned; UNMAP, WRITE SAME (16)
/// and WRITE SAME (10) deallocate blocks, which then read as zeros.
fn provisioning() -> Vec<u8> {
    vec![THRESHOLD_EXPONENT, 0xE4, 0x02, 0]
}

/// Third-party copy (SPC-4 7.8.17): supported commands, limits, descriptors and granularity.
fn third_party_copy(unit: &Unit) -> Vec<u8> {
    let mut bytes = copy_descriptor(0x0000, token_limits(unit));
    bytes.extend(copy_descriptor(0x0001, supported_commands()));
    let mut limits = vec![0; 4];
    limits.extend(COPY_TARGETS_MAX.to_be_bytes());
    limits.extend(COPY_SEGMENTS_MAX.to_be_bytes());
    limits.extend(COPY_LIST_BYTES_MAX.to_be_bytes());
    limits.resize(28, 0);
    bytes.extend(copy_descriptor(0x0004, limits));
    let kinds = crate::codec::copy_list::DESCRIPTORS;
    bytes.extend(copy_descriptor(0x0008, [&[kinds.len() as u8], &kinds[..]].concat()));
    bytes.extend(copy_descriptor(0x0106, token_features(unit)));
    bytes.extend(copy_descriptor(0x0108, token_types()));
    let mut general = Vec::new();
    general.extend(u32::from(COPIES_RUNNING_MAX).to_be_bytes());
    general.extend(u32::from(COPIES_RUNNING_MAX).to_be_bytes());
    general.extend(COPY_SEGMENT_BYTES_MAX.to_be_bytes());
    // Granularity of copied data: 512 bytes, as a power of two.
    general.push(9);
    general.resize(32, 0);
    bytes.extend(copy_descriptor(0x8001, general));
    bytes
}

/// Block device ROD token limits (SBC-4 6.6.9.3).
fn token_limits(unit: &Unit) -> Vec<u8> {
    let mut bytes = vec![0; 6];
    bytes.extend(TOKEN_RANGES_MAX.to_be_bytes());
    bytes.extend(TOKEN_TIMEOUT_SECONDS_MAX.to_be_bytes());
    bytes.extend(TOKEN_TIMEOUT_SECONDS.to_be_bytes());
    bytes.extend((TOKEN_DATA_BYTES_MAX / unit.block()).to_be_bytes());
    // Optimal transfer count: the blocks that WRITE USING TOKEN writes in one step.
    bytes.extend((TOKEN_STEP_BYTES / unit.block()).to_be_bytes());
    bytes
}

/// ROD token features (SPC-4 7.8.17.8): no remote tokens, the limits of a token's lifetime, and the
/// features of block devices (optimal granularity, maximum bytes of a token, optimal bytes of a
/// transfer).
///
/// The lifetime is at least one second and has no maximum, but a token expires if no command uses
/// it during its inactivity timeout, which is at most [`TOKEN_TIMEOUT_SECONDS_MAX`].
fn token_features(unit: &Unit) -> Vec<u8> {
    let mut bytes = vec![0; 12];
    bytes.extend(1_u32.to_be_bytes());
    bytes.extend(u32::MAX.to_be_bytes());
    bytes.extend(TOKEN_TIMEOUT_SECONDS_MAX.to_be_bytes());
    bytes.resize(42, 0);
    bytes.extend([0, 48, 0, 0, 0, 44, 0, 0]);
    // Optimal granularity: the storage clones the aligned part of a range and copies its ends.
    let granularity = u64::from(unit.medium.block_bytes_preferred()) / unit.block();
    bytes.extend((granularity.clamp(1, 0xFFFF) as u16).to_be_bytes());
    bytes.extend(TOKEN_DATA_BYTES_MAX.to_be_bytes());
    for _ in 0..3 {
        bytes.extend(TOKEN_STEP_BYTES.to_be_bytes());
    }
    bytes.resize(92, 0);
    bytes
}

/// Supported ROD types (SPC-4 7.8.17.9): commands can create and use change-vulnerable tokens, and
/// can use the block device zero token. The target prefers no ROD type.
fn token_types() -> Vec<u8> {
    let mut bytes = vec![0, 0, 0, 128];
    for (kind, flags) in [(CHANGE_VULNERABLE, 0x03), (ZEROS, 0x02)] {
        let end = bytes.len() + 64;
        bytes.extend(kind.to_be_bytes());
        bytes.push(flags);
        bytes.resize(end, 0);
    }
    bytes
}

/// Supported third-party copy operation codes, each with its service actions.
fn supported_commands() -> Vec<u8> {
    let mut list = Vec::new();
    for code in [0x83, 0x84] {
        let known: Vec<_> =
            OPERATIONS.iter().filter(|operation| operation.code() == code).collect();
        list.push(code);
        list.push(known.len() as u8);
        list.extend(known.iter().map(|operation| operation.service_action()));
    }
    list.insert(0, list.len() as u8);
    list
}

fn copy_descriptor(kind: u16, mut content: Vec<u8>) -> Vec<u8> {
    content.resize(content.len().next_multiple_of(4), 0);
    let mut bytes = kind.to_be_bytes().to_vec();
    bytes.extend((content.len() as u16).to_be_bytes());
    bytes.extend(content);
    bytes
}
