//! Command descriptor blocks (CDBs) and parameter lists.
//!
//! `facts` parses the data that commands return; `exchange` sends commands.
//!
//! The code follows the standards, not the tables of weir-scsi, so that tests find an error in
//! either crate.
//!
//! Invariant: each parameter list has the length that its length fields state.
//!
//! Spec: SPC-4 clause 6, SBC-3 clause 5; numbers are big-endian.

/// A command descriptor block of 6 to 16 bytes, padded with zeros.
pub type Cdb = [u8; 16];

/// Length of the parameter list of [`extended_copy`] with one segment, in bytes.
pub const COPY_LIST_BYTES: u32 = 16 + 2 * 32 + 28;
/// Length of a block descriptor of UNMAP, in bytes.
const UNMAP_DESCRIPTOR_BYTES: u16 = 16;

/// Writes bytes at an offset; does nothing if the bytes do not fit.
fn put<const N: usize>(bytes: &mut [u8], at: usize, value: [u8; N]) {
    if let Some(place) = bytes.get_mut(at..).and_then(|rest| rest.first_chunk_mut()) {
        *place = value;
    }
}

/// Builds a CDB with an operation code, flags, an 8-byte address and a 4-byte length.
fn wide(code: u8, flags: u8, lba: u64, blocks: u32) -> Cdb {
    let mut cdb = [0; 16];
    put(&mut cdb, 0, [code, flags]);
    put(&mut cdb, 2, lba.to_be_bytes());
    put(&mut cdb, 10, blocks.to_be_bytes());
    cdb
}

const fn fua_bit(fua: bool) -> u8 {
    if fua { 0x08 } else { 0 }
}

/// TEST UNIT READY (SPC-4 6.37).
pub const fn test_unit_ready() -> Cdb {
    [0; 16]
}

/// INQUIRY (SPC-4 6.6): requests a vital product data page, or standard data if `vital` is `None`.
pub fn inquiry(vital: Option<u8>, allocation_bytes: u16) -> Cdb {
    let mut cdb = [0; 16];
    put(&mut cdb, 0, [0x12, u8::from(vital.is_some()), vital.unwrap_or(0)]);
    put(&mut cdb, 3, allocation_bytes.to_be_bytes());
    cdb
}

/// MODE SENSE (10) (SPC-4 6.14): requests the current values of a page, without block descriptors.
pub fn mode_sense10(code: u8, allocation_bytes: u16) -> Cdb {
    let mut cdb = [0; 16];
    put(&mut cdb, 0, [0x5A, 0x08, code & 0x3F]);
    put(&mut cdb, 7, allocation_bytes.to_be_bytes());
    cdb
}

/// REPORT LUNS (SPC-4 6.33): requests all logical units that this I_T nexus can access.
pub fn report_luns(allocation_bytes: u32) -> Cdb {
    let mut cdb = [0; 16];
    put(&mut cdb, 0, [0xA0]);
    put(&mut cdb, 6, allocation_bytes.to_be_bytes());
    cdb
}

/// READ CAPACITY (16) (SBC-3 5.16).
pub fn read_capacity16(allocation_bytes: u32) -> Cdb {
    wide(0x9E, 0x10, 0, allocation_bytes)
}

/// GET LBA STATUS (SBC-3 5.3).
pub fn get_lba_status(lba: u64, allocation_bytes: u32) -> Cdb {
    wide(0x9E, 0x12, lba, allocation_bytes)
}

/// READ (16) (SBC-3 5.11); with FUA the target reads from stable media.
pub fn read16(lba: u64, blocks: u32, fua: bool) -> Cdb {
    wide(0x88, fua_bit(fua), lba, blocks)
}

/// WRITE (16) (SBC-3 5.34).
///
/// # Durability
/// With FUA, the data is on stable media when the command ends with GOOD.
pub fn write16(lba: u64, blocks: u32, fua: bool) -> Cdb {
    wide(0x8A, fua_bit(fua), lba, blocks)
}

/// SYNCHRONIZE CACHE (16) (SBC-3 5.30). If `blocks` is 0, the range ends at the last block of the
/// unit.
///
/// # Durability
/// Earlier writes to this range are on stable media when the command ends with GOOD.
pub fn synchronize_cache16(lba: u64, blocks: u32) -> Cdb {
    wide(0x91, 0, lba, blocks)
}

/// UNMAP (SBC-3 5.31) with a parameter list of `list_bytes` bytes.
pub fn unmap(list_bytes: u16) -> Cdb {
    let mut cdb = [0; 16];
    put(&mut cdb, 0, [0x42]);
    put(&mut cdb, 7, list_bytes.to_be_bytes());
    cdb
}

/// Parameter list of [`unmap`]: the first block and the number of blocks of each range; at most
/// 4094 ranges.
pub fn unmap_list(ranges: &[(u64, u32)]) -> Vec<u8> {
    let descriptor_bytes = UNMAP_DESCRIPTOR_BYTES.saturating_mul(ranges.len() as u16);
    let mut list = Vec::new();
    list.extend((descriptor_bytes + 6).to_be_bytes());
    list.extend(descriptor_bytes.to_be_bytes());
    list.extend([0; 4]);
    for (lba, blocks) in ranges {
        list.extend(lba.to_be_bytes());
        list.extend(blocks.to_be_bytes());
        list.extend([0; 4]);
    }
    list
}

/// Options of WRITE SAME (16).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteSame {
    /// True if the target may deallocate the blocks (UNMAP) instead of writing them, provided that
    /// deallocated blocks read as the written block.
    pub unmap: bool,
    /// True if the target writes zeros, so that the initiator sends no block (NDOB, SBC-4).
    pub no_data: bool,
}

/// WRITE SAME (16) (SBC-3 5.45): the target writes one block to all addressed blocks. The initiator
/// sends this block, unless `no_data` is set.
pub fn write_same16(lba: u64, blocks: u32, how: WriteSame) -> Cdb {
    let flags = u8::from(how.no_data) | if how.unmap { 0x08 } else { 0 };
    wide(0x93, flags, lba, blocks)
}

/// COMPARE AND WRITE (SBC-3 5.2): the initiator sends the blocks to compare, followed by the blocks
/// to write.
pub fn compare_and_write(lba: u64, blocks: u8, fua: bool) -> Cdb {
    let mut cdb = wide(0x89, fua_bit(fua), lba, 0);
    put(&mut cdb, 13, [blocks]);
    cdb
}

/// EXTENDED COPY (LID1) (SPC-4 6.4) with a parameter list of `list_bytes` bytes.
pub fn extended_copy(list_bytes: u32) -> Cdb {
    wide(0x83, 0, 0, list_bytes)
}

/// Source or destination of a copy.
#[derive(Clone, Copy, Debug)]
pub struct CopyEnd<'a> {
    /// NAA designator of the logical unit, 8 or 16 bytes (SPC-4 7.8.6.6).
    pub naa: &'a [u8],
    /// First block on the logical unit.
    pub lba: u64,
}

/// Segment of a copy: a contiguous range that is copied from one logical unit to another.
#[derive(Clone, Copy, Debug)]
pub struct CopySegment {
    /// First block on the source.
    pub from: u64,
    /// First block on the destination.
    pub to: u64,
    /// Number of blocks.
    pub blocks: u16,
}

/// Parameter list of [`extended_copy`]: copies `blocks` blocks of `block_bytes` bytes each. The
/// target keeps no copy result (LIST ID USAGE 11b, SPC-4 6.4.3.2).
pub fn copy_list(
    source: CopyEnd<'_>,
    destination: CopyEnd<'_>,
    blocks: u16,
    block_bytes: u32,
) -> Vec<u8> {
    let segment = CopySegment { from: source.lba, to: destination.lba, blocks };
    copy_list_of(source.naa, destination.naa, block_bytes, &[segment])
}

/// Like [`copy_list`], with up to 1024 segments that are copied between the same two logical units.
pub fn copy_list_of(
    source_naa: &[u8],
    destination_naa: &[u8],
    block_bytes: u32,
    segments: &[CopySegment],
) -> Vec<u8> {
    let mut list = vec![0, 0x18];
    list.extend(64_u16.to_be_bytes());
    list.extend([0; 4]);
    list.extend((28 * segments.len() as u32).to_be_bytes());
    list.extend([0; 4]);
    for naa in [source_naa, destination_naa] {
        list.extend(identification(naa, block_bytes));
    }
    for segment in segments {
        // Segment type: copy from block device to block device (SPC-4 6.4.6.4), from the first CSCD
        // descriptor to the second.
        list.extend([0x02, 0, 0, 0x18, 0, 0, 0, 1, 0, 0]);
        list.extend(segment.blocks.to_be_bytes());
        list.extend(segment.from.to_be_bytes());
        list.extend(segment.to.to_be_bytes());
    }
    list
}

/// Identification descriptor (SPC-4 6.4.5.2) of a disk, with the binary NAA designator of the
/// disk's logical unit.
fn identification(naa: &[u8], block_bytes: u32) -> [u8; 32] {
    let mut descriptor = [0; 32];
    let naa = naa.get(..naa.len().min(16)).unwrap_or_default();
    put(&mut descriptor, 0, [0xE4, 0, 0, 0, 0x01, 0x03, 0, naa.len() as u8]);
    for (place, byte) in descriptor.iter_mut().skip(8).zip(naa) {
        *place = *byte;
    }
    let [_, high, middle, low] = block_bytes.to_be_bytes();
    put(&mut descriptor, 29, [high, middle, low]);
    descriptor
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_blocks_match_the_standards() {
        let lba = 0x0102_0304_0506_0708;
        let wide = |code, flags, len: [u8; 4]| {
            let mut cdb = [0; 16];
            cdb[..10].copy_from_slice(&[code, flags, 1, 2, 3, 4, 5, 6, 7, 8]);
            cdb[10..14].copy_from_slice(&len);
            cdb
        };
        assert_eq!(read16(lba, 9, false), wide(0x88, 0, [0, 0, 0, 9]));
        assert_eq!(write16(lba, 0x1_0000, true), wide(0x8A, 8, [0, 1, 0, 0]));
        assert_eq!(synchronize_cache16(lba, 0), wide(0x91, 0, [0; 4]));
        assert_eq!(get_lba_status(lba, 256), wide(0x9E, 0x12, [0, 0, 1, 0]));
        assert_eq!(compare_and_write(lba, 3, false), wide(0x89, 0, [0, 0, 0, 3]));
        let how = WriteSame { unmap: true, no_data: true };
        assert_eq!(write_same16(lba, 1, how), wide(0x93, 9, [0, 0, 0, 1]));
        assert_eq!(inquiry(Some(0xB0), 0x102)[..5], [0x12, 1, 0xB0, 1, 2]);
        assert_eq!(report_luns(0x1000)[..10], [0xA0, 0, 0, 0, 0, 0, 0, 0, 0x10, 0]);
        assert_eq!(mode_sense10(8, 0x40)[..9], [0x5A, 8, 8, 0, 0, 0, 0, 0, 0x40]);
    }

    #[test]
    fn lists_have_the_length_that_they_state() {
        let list = unmap_list(&[(1, 2), (3, 4)]);
        assert_eq!(list.len(), 8 + 32);
        assert_eq!(list[..4], [0, 38, 0, 32]);
        assert_eq!(list[8..20], [0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
        let naa = [0x6A; 16];
        let [source, destination] = [5, 6].map(|lba| CopyEnd { naa: &naa, lba });
        let list = copy_list(source, destination, 7, 512);
        assert_eq!(list.len(), COPY_LIST_BYTES as usize);
        assert_eq!(list[16..24], [0xE4, 0, 0, 0, 1, 3, 0, 16]);
        assert_eq!(list[45..48], [0, 2, 0]);
        assert_eq!(list[80..92], [2, 0, 0, 0x18, 0, 0, 0, 1, 0, 0, 0, 7]);
        assert_eq!((list[99], list[107]), (5, 6));
        let segment = CopySegment { from: 5, to: 6, blocks: 7 };
        let two = copy_list_of(&naa, &naa, 512, &[segment; 2]);
        assert_eq!((two.len(), two[11]), (list.len() + 28, 56));
        assert_eq!(two[list.len()..], list[80..]);
    }
}
