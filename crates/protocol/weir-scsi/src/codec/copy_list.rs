//! Parameter list of EXTENDED COPY (LID1): copy sources, copy destinations and segments.
//!
//! `command::copy` executes the copy.
//!
//! Spec: SPC-4 6.4.
//!
//! Invariant: one invalid field anywhere in the list makes the target refuse the whole list.

use crate::codec::refusal::Refusal;
use crate::codec::sense::{LIST_LENGTH, Sense, invalid_parameter, key};
use crate::fields::{be16, be24, be32, be64, byte, set};
use crate::limits::{COPY_LIST_BYTES_MAX, COPY_SEGMENTS_MAX, COPY_TARGETS_MAX};

/// Segment descriptor type: block device to block device, in blocks.
const BLOCKS: u8 = 0x02;
/// Segment descriptor type: block device to block device, in bytes with an offset.
const BYTES: u8 = 0x0A;
/// CSCD descriptor type: identification descriptor.
const IDENTIFICATION: u8 = 0xE4;
/// Supported descriptor type codes, in ascending order.
pub(crate) const DESCRIPTORS: [u8; 3] = [BLOCKS, BYTES, IDENTIFICATION];

/// One segment descriptor.
pub(crate) struct Segment {
    pub(crate) source: u16,
    pub(crate) destination: u16,
    pub(crate) kind: SegmentKind,
    pub(crate) source_lba: u64,
    pub(crate) destination_lba: u64,
}

pub(crate) enum SegmentKind {
    Blocks { count: u16, of_destination: bool },
    Bytes { count: u32, source_offset: u16, destination_offset: u16 },
}

/// Decoded parameter list of EXTENDED COPY.
pub(crate) struct CopyList {
    /// List identifier; `None` if the initiator does not want the target to store a copy result.
    pub(crate) list: Option<u8>,
    pub(crate) targets: Vec<CopyTarget>,
    pub(crate) segments: Vec<Segment>,
}

pub(crate) struct CopyTarget {
    pub(crate) naa: Option<[u8; 16]>,
    pub(crate) block_bytes: u32,
}

/// Decodes a parameter list (SPC-4 6.4.3).
pub(crate) fn parse(list: &[u8]) -> Result<CopyList, Refusal> {
    if list.len() < 16 {
        return Err(LIST_LENGTH.into());
    }
    let usage = byte(list, 1) >> 3 & 3;
    let targets_len = u32::from(be16(list, 2));
    let segments_len = be32(list, 8);
    if usage == 1 || (usage == 3 && byte(list, 0) != 0) {
        return Err(invalid_parameter(0).into());
    }
    if be32(list, 12) != 0 {
        return Err(invalid_parameter(12).into());
    }
    let total = targets_len.checked_add(segments_len).ok_or(LIST_LENGTH)?;
    if total > COPY_LIST_BYTES_MAX || total as usize > list.len() - 16 {
        return Err(LIST_LENGTH.into());
    }
    let rest = list.get(16..).unwrap_or_default();
    let (targets, rest) = rest.split_at_checked(targets_len as usize).ok_or(LIST_LENGTH)?;
    let segments = rest.get(..segments_len as usize).ok_or(LIST_LENGTH)?;
    Ok(CopyList {
        list: (usage != 3).then(|| byte(list, 0)),
        targets: parse_targets(targets)?,
        segments: parse_segments(segments, 16 + targets.len())?,
    })
}

fn parse_targets(bytes: &[u8]) -> Result<Vec<CopyTarget>, Refusal> {
    let (descriptors, rest) = bytes.as_chunks::<32>();
    if !rest.is_empty() {
        return Err(LIST_LENGTH.into());
    }
    if descriptors.len() > usize::from(COPY_TARGETS_MAX) {
        // TOO MANY TARGET DESCRIPTORS.
        return Err(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x06).into());
    }
    let mut targets = Vec::new();
    for (place, descriptor) in descriptors.iter().enumerate() {
        if byte(descriptor, 0) != IDENTIFICATION {
            // UNSUPPORTED TARGET DESCRIPTOR TYPE CODE.
            return Err(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x07).into());
        }
        if byte(descriptor, 1) & 0x1F != 0 {
            // The peripheral device type must be direct access block device.
            return Err(invalid_parameter((16 + 32 * place + 1) as u16).into());
        }
        targets.push(CopyTarget { naa: designated(descriptor), block_bytes: be24(descriptor, 29) });
    }
    Ok(targets)
}

/// The NAA designator of an identification descriptor, if it is binary and 16 bytes long.
pub(crate) fn designated(descriptor: &[u8]) -> Option<[u8; 16]> {
    let is_naa = byte(descriptor, 4) & 0x0F == 1 && byte(descriptor, 5) & 0x3F == 3;
    let naa = descriptor.get(8..24).filter(|_| is_naa && byte(descriptor, 7) == 16);
    naa.and_then(|naa| naa.try_into().ok())
}

/// Encodes an identification descriptor of a logical unit.
pub(crate) fn designate(naa: [u8; 16], block_bytes: u32) -> [u8; 32] {
    let mut bytes = [0; 32];
    set(&mut bytes, 0, &[IDENTIFICATION, 0, 0, 0, 1, 3, 0, 16]);
    set(&mut bytes, 8, &naa);
    set(&mut bytes, 28, &block_bytes.to_be_bytes());
    bytes
}

fn parse_segments(bytes: &[u8], at: usize) -> Result<Vec<Segment>, Refusal> {
    let mut segments = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        if segments.len() == usize::from(COPY_SEGMENTS_MAX) {
            // TOO MANY SEGMENT DESCRIPTORS.
            return Err(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x08).into());
        }
        let code = byte(rest, 0);
        let len = match code {
            BLOCKS => 28,
            BYTES => 32,
            // UNSUPPORTED SEGMENT DESCRIPTOR TYPE CODE.
            _ => return Err(Sense::new(key::ILLEGAL_REQUEST, 0x26, 0x09).into()),
        };
        let (segment, next) = rest.split_at_checked(len).ok_or(LIST_LENGTH)?;
        let place = at + bytes.len() - rest.len();
        if usize::from(be16(segment, 2)) != len - 4 {
            return Err(invalid_parameter((place + 2) as u16).into());
        }
        let kind = if code == BLOCKS {
            let of_destination = byte(segment, 1) & 0x02 != 0;
            SegmentKind::Blocks { count: be16(segment, 10), of_destination }
        } else {
            SegmentKind::Bytes {
                count: be32(segment, 8),
                source_offset: be16(segment, 28),
                destination_offset: be16(segment, 30),
            }
        };
        segments.push(Segment {
            source: be16(segment, 4),
            destination: be16(segment, 6),
            kind,
            source_lba: be64(segment, 12),
            destination_lba: be64(segment, 20),
        });
        rest = next;
    }
    Ok(segments)
}
