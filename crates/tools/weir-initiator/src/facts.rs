//! Parsers of the data with which a logical unit describes itself.
//!
//! [`Session`](crate::Session) sends the commands that return this data.
//!
//! Invariant: fields beyond the end of short data read as zero, or as absent if zero would be a
//! valid value; all text is printable.
//!
//! Spec: SPC-4 6.6 and 7.8, SBC-3 5.16 and 6.6.

/// Data of READ CAPACITY (16) (SBC-3 5.16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Number of logical blocks.
    pub blocks: u64,
    /// Length of a logical block in bytes: a power of two, at least 512.
    pub block_bytes: u32,
    /// Length of a physical block in bytes.
    pub physical_bytes: u64,
    /// True if the unit can unmap blocks (LBPME).
    pub thin: bool,
    /// True if unmapped blocks read as zeros (LBPRZ).
    pub zeros: bool,
}

impl Capacity {
    /// Parses the data of READ CAPACITY (16). Returns `None` if the data is too short or describes
    /// an impossible size.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let blocks = number(bytes.get(..8)?).checked_add(1)?;
        let block_bytes = number(bytes.get(8..12)?) as u32;
        let fits = block_bytes.is_power_of_two() && (512..=65536).contains(&block_bytes);
        if !fits || blocks.checked_mul(u64::from(block_bytes)).is_none() {
            return None;
        }
        let physical_bytes = u64::from(block_bytes) << (byte(bytes, 13) & 0xF);
        let (thin, zeros) = (byte(bytes, 14) & 0x80 != 0, byte(bytes, 14) & 0x40 != 0);
        Some(Self { blocks, block_bytes, physical_bytes, thin, zeros })
    }

    /// Capacity in bytes.
    pub const fn bytes(&self) -> u64 {
        self.blocks * self.block_bytes as u64
    }
}

/// Standard INQUIRY data (SPC-4 6.6.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    /// Peripheral qualifier: 0 if a device is connected.
    pub qualifier: u8,
    /// Peripheral device type: 0 for a disk.
    pub kind: u8,
    /// Vendor, product and revision.
    pub names: [String; 3],
    /// True if the unit supports copies between logical units (3PC).
    pub third_party_copy: bool,
}

impl Inquiry {
    /// Parses standard INQUIRY data. Returns `None` if the data is too short.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        bytes.get(..5)?;
        let text = |from: usize, to: usize| printable(bytes.get(from..to).unwrap_or_default());
        Some(Self {
            qualifier: byte(bytes, 0) >> 5,
            kind: byte(bytes, 0) & 0x1F,
            names: [text(8, 16), text(16, 32), text(32, 36)],
            third_party_copy: byte(bytes, 5) & 0x08 != 0,
        })
    }
}

/// Block limits page B0h (SBC-3 6.6.4). A field is 0 if the unit states no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BlockLimits {
    /// True if the unit refuses WRITE SAME with a block count of 0.
    pub write_same_not_zero: bool,
    /// Maximum number of blocks of one COMPARE AND WRITE; 0 if the unit does not support the
    /// command.
    pub compare_blocks_max: u8,
    /// Maximum number of blocks of one READ or WRITE.
    pub transfer_blocks_max: u32,
    /// Optimal number of blocks of one READ or WRITE.
    pub optimal_blocks: u32,
    /// Maximum number of blocks of one UNMAP; 0 if the unit does not support the command.
    pub unmap_blocks_max: u32,
    /// Maximum number of ranges of one UNMAP; 0 if the unit does not support the command.
    pub unmap_ranges_max: u32,
    /// Granularity in which the unit unmaps, in blocks.
    pub unmap_granularity_blocks: u32,
    /// Maximum number of blocks of one WRITE SAME.
    pub write_same_blocks_max: u64,
}

impl BlockLimits {
    /// Parses the page, which includes its header.
    pub fn parse(bytes: &[u8]) -> Self {
        let word = |at: usize| bytes.get(at..at + 4).map_or(0, number) as u32;
        Self {
            write_same_not_zero: byte(bytes, 4) & 1 != 0,
            compare_blocks_max: byte(bytes, 5),
            transfer_blocks_max: word(8),
            optimal_blocks: word(12),
            unmap_blocks_max: word(20),
            unmap_ranges_max: word(24),
            unmap_granularity_blocks: word(28),
            write_same_blocks_max: bytes.get(36..44).map_or(0, number),
        }
    }
}

/// Logical block provisioning page B2h (SBC-3 6.6.5).
#[expect(clippy::struct_excessive_bools, reason = "each is a bit of the page")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Provisioning {
    /// True if UNMAP deallocates blocks (LBPU).
    pub unmap: bool,
    /// True if WRITE SAME (16) with UNMAP deallocates blocks (LBPWS).
    pub write_same16: bool,
    /// True if WRITE SAME (10) with UNMAP deallocates blocks (LBPWS10).
    pub write_same10: bool,
    /// True if deallocated blocks read as zeros (LBPRZ).
    pub zeros: bool,
}

impl Provisioning {
    /// Parses the page, which includes its header.
    pub fn parse(bytes: &[u8]) -> Self {
        let flags = byte(bytes, 5);
        Self {
            unmap: flags & 0x80 != 0,
            write_same16: flags & 0x40 != 0,
            write_same10: flags & 0x20 != 0,
            zeros: flags & 0x1C != 0,
        }
    }
}

/// Write cache and write protection, from the caching mode page and the mode parameter header
/// (SBC-3 6.5.5).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Caching {
    /// True if the unit has a volatile write cache (WCE); `None` if the unit does not report it.
    pub write_cache: Option<bool>,
    /// True if the unit supports FUA (DPOFUA).
    pub fua: bool,
    /// True if the unit refuses writes (WP).
    pub read_only: bool,
}

impl Caching {
    /// Parses the data of MODE SENSE (10), which includes the header.
    pub fn parse(bytes: &[u8]) -> Self {
        let flags = byte(bytes, 3);
        // Skip block descriptors: MODE SENSE requests none, but a target may send some.
        let descriptor_bytes = bytes.get(6..8).map_or(0, number) as usize;
        let caching = bytes.get(8 + descriptor_bytes..).unwrap_or_default();
        let is_caching = byte(caching, 0) & 0x3F == 0x08;
        let write_cache = caching.get(2).filter(|_| is_caching).map(|flags| flags & 0x04 != 0);
        Self { write_cache, fua: flags & 0x10 != 0, read_only: flags & 0x80 != 0 }
    }
}

/// Finds the NAA designator of the logical unit in the device identification page 83h (SPC-4
/// 7.8.6). EXTENDED COPY names its source and destination units by this designator. The designator
/// has 8 or 16 bytes; if there are two designators, returns the longer one.
pub fn naa_in(bytes: &[u8]) -> Option<Vec<u8>> {
    let len = number(bytes.get(2..4)?) as usize;
    let mut rest = bytes.get(4..)?;
    rest = rest.get(..rest.len().min(len))?;
    let mut found: Option<&[u8]> = None;
    while let Some(([set, kind, _, len], after)) = rest.split_first_chunk::<4>() {
        let content = after.get(..usize::from(*len))?;
        let is_naa = set & 0xF == 1 && kind & 0x3F == 3 && matches!(content.len(), 8 | 16);
        if is_naa && found.is_none_or(|found| found.len() < content.len()) {
            found = Some(content);
        }
        rest = after.get(usize::from(*len)..)?;
    }
    found.map(<[u8]>::to_vec)
}

/// Maximum number of blocks of one copy segment, if the third-party copy page 8Fh (SPC-4 7.8.17)
/// lists EXTENDED COPY (LID1) with block device to block device segments; otherwise `None`. The
/// page states this maximum in bytes.
pub fn copy_segment_blocks_max(bytes: &[u8], block_bytes: u32) -> Option<u64> {
    let len = number(bytes.get(2..4)?) as usize;
    let mut rest = bytes.get(4..)?;
    rest = rest.get(..rest.len().min(len))?;
    let (mut has_command, mut has_segment, mut bytes_max) = (false, false, 0);
    while let Some(([a, b, c, d], after)) = rest.split_first_chunk::<4>() {
        let (kind, len) = (u16::from_be_bytes([*a, *b]), u16::from_be_bytes([*c, *d]));
        let content = after.get(..usize::from(len))?;
        match kind {
            0x0001 => has_command = lists_extended_copy(content),
            0x0008 => {
                let listed = content.get(1..).unwrap_or_default();
                let count = usize::from(byte(content, 0)).min(listed.len());
                let listed = listed.get(..count).unwrap_or_default();
                has_segment = listed.contains(&0x02) && listed.contains(&0xE4);
            }
            0x8001 => bytes_max = content.get(8..12).map_or(0, number),
            _ => {}
        }
        rest = after.get(usize::from(len)..)?;
    }
    let blocks = bytes_max / u64::from(block_bytes.max(1));
    (has_command && has_segment).then_some(if blocks == 0 { 0xFFFF } else { blocks.min(0xFFFF) })
}

/// True if the supported commands descriptor (SPC-4 7.8.17.4) lists EXTENDED COPY (LID1). The
/// descriptor lists operation codes, each with its service actions.
fn lists_extended_copy(content: &[u8]) -> bool {
    let len = usize::from(byte(content, 0));
    let mut rest = content.get(1..).unwrap_or_default();
    rest = rest.get(..rest.len().min(len)).unwrap_or_default();
    while let Some(([code, count], after)) = rest.split_first_chunk::<2>() {
        let Some(actions) = after.get(..usize::from(*count)) else { return false };
        if *code == 0x83 && actions.contains(&0x00) {
            return true;
        }
        rest = after.get(usize::from(*count)..).unwrap_or_default();
    }
    false
}

fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or_default()
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// Printable form of text that a target sent.
fn printable(bytes: &[u8]) -> String {
    let letter = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { ' ' };
    bytes.iter().map(letter).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn impossible_capacity_is_none() {
        let answer = |last: u64, block: u32| {
            let mut bytes = last.to_be_bytes().to_vec();
            bytes.extend(block.to_be_bytes());
            bytes.extend([0, 3, 0xC0, 0]);
            bytes.resize(32, 0);
            bytes
        };
        let capacity = Capacity::parse(&answer(2047, 512)).expect("1 MiB");
        assert_eq!((capacity.bytes(), capacity.physical_bytes), (1 << 20, 4096));
        assert!(capacity.thin && capacity.zeros);
        for (last, block) in [(u64::MAX, 512), (1 << 60, 4096), (9, 0), (9, 520), (9, 1 << 20)] {
            assert_eq!(Capacity::parse(&answer(last, block)), None, "{last} {block}");
        }
        assert_eq!(Capacity::parse(&[0; 11]), None);
    }

    #[test]
    fn vital_product_data_is_parsed() {
        let mut vital = vec![0, 0xB0, 0, 60, 1, 255, 0, 8, 0, 0, 0x20, 0];
        vital.resize(64, 0);
        vital[20..24].copy_from_slice(&[0, 0, 1, 0]);
        vital[43] = 9;
        let limits = BlockLimits::parse(&vital);
        assert_eq!((limits.compare_blocks_max, limits.transfer_blocks_max), (255, 0x2000));
        assert_eq!((limits.unmap_blocks_max, limits.write_same_blocks_max), (256, 9));
        assert_eq!(BlockLimits::parse(&[]), BlockLimits::default());
        let modes = [0, 26, 0, 0x90, 0, 0, 0, 0, 0x88, 18, 0x04, 0];
        let caching = Caching { write_cache: Some(true), fua: true, read_only: true };
        assert_eq!(Caching::parse(&modes), caching);
        assert_eq!(Caching::parse(&modes[..8]).write_cache, None);
        assert!(Provisioning::parse(&[0, 0xB2, 0, 4, 0, 0xC4, 2, 0]).write_same16);
        // The page contains a vendor-specific name, then NAA designators of 8 and of 16 bytes.
        let mut vital = vec![0, 0x83, 0, 36, 2, 1, 0, 0, 1, 3, 0, 8, 5, 5, 5, 5, 5, 5, 5, 5];
        vital.extend([1, 3, 0, 16]);
        vital.extend([6; 16]);
        assert_eq!(naa_in(&vital), Some(vec![6; 16]));
        assert_eq!(naa_in(&vital[..30]), None, "cut off");
    }

    #[test]
    fn copy_needs_both_command_and_segment_type() {
        let mut content = vec![0, 1, 0, 8, 5, 0x83, 1, 0, 0x84, 0, 0, 0];
        content.extend([0, 8, 0, 4, 3, 0x02, 0x0A, 0xE4]);
        let vital = |content: &[u8]| [&[0, 0x8F, 0, content.len() as u8], content].concat();
        assert_eq!(copy_segment_blocks_max(&vital(&content), 512), Some(0xFFFF));
        let mut limited = content.clone();
        limited.extend([0x80, 1, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(copy_segment_blocks_max(&vital(&limited), 512), Some(128));
        content[7] = 1;
        assert_eq!(copy_segment_blocks_max(&vital(&content), 512), None, "LID4 alone");
    }

    proptest! {
        #[test]
        fn arbitrary_data_causes_no_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            drop((Capacity::parse(&bytes), Inquiry::parse(&bytes), BlockLimits::parse(&bytes)));
            drop((Provisioning::parse(&bytes), naa_in(&bytes), Caching::parse(&bytes)));
            prop_assert!(copy_segment_blocks_max(&bytes, 512).is_none_or(|max| max <= 0xFFFF));
        }
    }
}
