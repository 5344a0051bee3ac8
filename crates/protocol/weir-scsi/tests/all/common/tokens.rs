//! Helpers to send commands that create and use ROD tokens.
//!
//! The tests check the results of the commands.

use weir_scsi::{Lun, Nexus};

use super::{Answer, run_on};

/// Logical block address and number of logical blocks.
pub(crate) type Blocks = (u64, u32);

/// Returns the block device zero token.
pub(crate) fn zeros() -> Vec<u8> {
    let mut token = vec![0xFF, 0xFF, 0, 1, 0, 0, 0x01, 0xF8];
    token.resize(512, 0);
    token
}

fn descriptors(ranges: &[Blocks]) -> Vec<u8> {
    let descriptor = |&(lba, blocks): &Blocks| {
        let mut bytes = lba.to_be_bytes().to_vec();
        bytes.extend(blocks.to_be_bytes());
        bytes.resize(16, 0);
        bytes
    };
    ranges.iter().flat_map(descriptor).collect()
}

/// Returns the parameter list of POPULATE TOKEN; `flags` contains IMMED and RTV.
pub(crate) fn population(flags: u8, timeout: u32, kind: u32, ranges: &[Blocks]) -> Vec<u8> {
    let ranges = descriptors(ranges);
    let mut list = (14 + ranges.len() as u16).to_be_bytes().to_vec();
    list.extend([flags, 0]);
    list.extend(timeout.to_be_bytes());
    list.extend(kind.to_be_bytes());
    list.extend([0, 0]);
    list.extend((ranges.len() as u16).to_be_bytes());
    [list, ranges].concat()
}

/// Returns the parameter list of WRITE USING TOKEN; `flags` contains IMMED and DEL_TKN.
pub(crate) fn writing(flags: u8, offset: u64, token: &[u8], ranges: &[Blocks]) -> Vec<u8> {
    let ranges = descriptors(ranges);
    let mut list = (534 + ranges.len() as u16).to_be_bytes().to_vec();
    list.extend([flags, 0, 0, 0, 0, 0]);
    list.extend(offset.to_be_bytes());
    list.extend(token);
    list.extend([0; 6]);
    list.extend((ranges.len() as u16).to_be_bytes());
    [list, ranges].concat()
}

/// Returns the CDB of POPULATE TOKEN (service action 10h) or WRITE USING TOKEN (11h).
pub(crate) fn block(action: u8, id: u32, len: u32) -> Vec<u8> {
    let mut cdb = vec![0x83, action, 0, 0, 0, 0];
    cdb.extend(id.to_be_bytes());
    cdb.extend(len.to_be_bytes());
    cdb.extend([0, 0]);
    cdb
}

pub(crate) fn send(nexus: &dyn Nexus, lun: u16, action: u8, id: u32, list: &[u8]) -> Answer {
    run_on(nexus, Lun::new(lun), &block(action, id, list.len() as u32), list)
}

pub(crate) fn populate(nexus: &dyn Nexus, lun: u16, id: u32, ranges: &[Blocks]) -> Answer {
    send(nexus, lun, 0x10, id, &population(0, 0, 0, ranges))
}

pub(crate) fn write_using(
    nexus: &dyn Nexus,
    lun: u16,
    offset: u64,
    token: &[u8],
    ranges: &[Blocks],
) -> Answer {
    send(nexus, lun, 0x11, 2, &writing(0, offset, token, ranges))
}

/// Runs RECEIVE ROD TOKEN INFORMATION (7) or RECEIVE COPY STATUS (5).
pub(crate) fn information(nexus: &dyn Nexus, lun: u16, action: u8, id: u32) -> Answer {
    let mut cdb = vec![0x84, action];
    cdb.extend(id.to_be_bytes());
    cdb.extend([0, 0, 0, 0, 0, 0, 4, 0, 0, 0]);
    run_on(nexus, Lun::new(lun), &cdb, &[])
}

/// Decoded response to RECEIVE ROD TOKEN INFORMATION.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct TokenInformation {
    pub(crate) action: u8,
    pub(crate) status: u8,
    pub(crate) ended: u8,
    pub(crate) units: u8,
    pub(crate) count: u64,
    /// Sense key, additional sense code and qualifier, from sense data in fixed format.
    pub(crate) sense: Option<(u8, u8, u8)>,
    pub(crate) token: Option<Vec<u8>>,
}

/// Sends RECEIVE ROD TOKEN INFORMATION and decodes the response.
pub(crate) fn token_information(nexus: &dyn Nexus, lun: u16, id: u32) -> TokenInformation {
    let data = information(nexus, lun, 7, id).good();
    let status = information(nexus, lun, 5, id).good();
    let be32 =
        |at: usize| u32::from_be_bytes(data[at..at + 4].try_into().expect("four bytes")) as usize;
    assert_eq!(be32(0), data.len() - 4);
    let sense_len = usize::from(data[13]);
    assert_eq!(data[13], data[14]);
    assert_eq!(data[4..32 + sense_len], status[4..]);
    let sense = &data[32..32 + sense_len];
    let at = 32 + sense_len;
    let token = (be32(at) > 0).then(|| {
        assert_eq!((be32(at), data.len()), (514, at + 4 + 514));
        data[at + 6..].to_vec()
    });
    TokenInformation {
        action: data[4],
        status: data[5],
        ended: data[12],
        units: data[15],
        count: u64::from_be_bytes(data[16..24].try_into().expect("eight bytes")),
        sense: (!sense.is_empty()).then(|| (sense[2], sense[12], sense[13])),
        token,
    }
}

/// Creates a ROD token for `ranges` of a logical unit, and returns the token.
#[track_caller]
pub(crate) fn token(nexus: &dyn Nexus, lun: u16, ranges: &[Blocks]) -> Vec<u8> {
    populate(nexus, lun, 1, ranges).good();
    token_information(nexus, lun, 1).token.expect("a token")
}
