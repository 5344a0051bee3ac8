//! Content probe: recognises existing content of a disk, so that it is not overwritten by mistake.
//!
//! Weir's own labels are in weir-format. The probe reads no user data of the formats that it finds.
//!
//! Invariants:
//! - arbitrary bytes give a result and never a panic, because the content of the disk is untrusted;
//! - the probe reads only [`PROBE_BYTES`] at each end of the disk;
//! - if one format contains the magic number of another, the order of the checks matters: a boot
//!   sector of NTFS or FAT also looks like an MBR, so partition tables are checked last.

use weir_block::IoBuf;

use crate::device::{Device, DeviceError};

/// Number of bytes that the probe reads at each end of a disk. The labels of ZFS extend furthest:
/// 768 KiB from the end.
pub const PROBE_BYTES: usize = 1 << 20;

/// Position of a magic number.
#[derive(Clone, Copy)]
enum At {
    /// Bytes from the start of the disk.
    Start(u64),
    /// Offset from the end of the disk: `back` bytes before the end, rounded down to a multiple of
    /// `unit`, plus `plus`.
    End { back: u64, unit: u64, plus: u64 },
}

impl At {
    fn offset(self, disk_bytes: u64) -> Option<u64> {
        match self {
            Self::Start(offset) => Some(offset),
            Self::End { back, unit, plus } => {
                let start = disk_bytes.checked_sub(back)?;
                Some(start - start % unit + plus)
            }
        }
    }
}

/// Magic number of a format.
struct Mark {
    name: &'static str,
    at: At,
    bytes: &'static [u8],
}

const fn mark(name: &'static str, at: At, bytes: &'static [u8]) -> Mark {
    Mark { name, at, bytes }
}

const RAID: &[u8] = &0xa92b_4efc_u32.to_le_bytes();
const RAID_BIG_ENDIAN: &[u8] = &0xa92b_4efc_u32.to_be_bytes();
const BCACHEFS: &[u8] = b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef";
const BCACHE: &[u8] = b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81";

/// Magic numbers of formats that have a unique constant at one position.
const MARKS: &[Mark] = &[
    mark("LUKS encryption", At::Start(0), b"LUKS\xba\xbe"),
    mark("LUKS encryption", At::Start(0x4000), b"SKUL\xba\xbe"),
    mark("BitLocker encryption", At::Start(3), b"-FVE-FS-"),
    mark("Ceph BlueStore", At::Start(0), b"bluestore block device"),
    mark("Linux RAID member", At::Start(0), RAID),
    mark("Linux RAID member", At::Start(4096), RAID),
    mark("bcachefs filesystem", At::Start(0x1018), BCACHEFS),
    mark("bcache device", At::Start(0x1018), BCACHE),
    mark("XFS filesystem", At::Start(0), b"XFSB"),
    mark("Btrfs filesystem", At::Start(0x1_0040), b"_BHRfS_M"),
    mark("F2FS filesystem", At::Start(0x400), b"\x10\x20\xf5\xf2"),
    mark("EROFS filesystem", At::Start(0x400), b"\xe2\xe1\xf5\xe0"),
    mark("NILFS2 filesystem", At::Start(0x400), b"\x02\0\0\0\0\0\x34\x34"),
    mark("JFS filesystem", At::Start(0x8000), b"JFS1"),
    mark("ReiserFS filesystem", At::Start(0x1_0034), b"ReIsErFs"),
    mark("ReiserFS filesystem", At::Start(0x1_0034), b"ReIsEr2Fs"),
    mark("ReiserFS filesystem", At::Start(0x1_0034), b"ReIsEr3Fs"),
    mark("ReiserFS filesystem", At::Start(0x2034), b"ReIsErFs"),
    mark("Reiser4 filesystem", At::Start(0x1_0000), b"ReIsEr4"),
    mark("GFS2 filesystem", At::Start(0x1_0000), b"\x01\x16\x19\x70"),
    mark("squashfs filesystem", At::Start(0), b"hsqs"),
    mark("squashfs filesystem", At::Start(0), b"sqsh"),
    mark("APFS filesystem", At::Start(32), b"NXSB"),
    mark("HFS+ filesystem", At::Start(0x400), b"H+\x00\x04"),
    mark("HFS+ filesystem", At::Start(0x400), b"HX\x00\x05"),
    mark("NTFS filesystem", At::Start(3), b"NTFS    "),
    mark("ReFS filesystem", At::Start(3), b"ReFS\0"),
    mark("exFAT filesystem", At::Start(3), b"EXFAT   "),
    mark("FAT filesystem", At::Start(0x52), b"FAT32   "),
    mark("FAT filesystem", At::Start(0x36), b"FAT16   "),
    mark("FAT filesystem", At::Start(0x36), b"FAT12   "),
    mark("FAT filesystem", At::Start(0x36), b"FAT     "),
    mark("UDF filesystem", At::Start(0x8001), b"BEA01"),
    mark("ISO 9660 filesystem", At::Start(0x8001), b"CD001"),
    mark("GPT partition table", At::Start(512), b"EFI PART"),
    mark("GPT partition table", At::Start(4096), b"EFI PART"),
    mark("GPT partition table", At::End { back: 512, unit: 1, plus: 0 }, b"EFI PART"),
    mark("GPT partition table", At::End { back: 4096, unit: 1, plus: 0 }, b"EFI PART"),
    // Linux RAID metadata: version 1.0, then version 0.90, which has the byte order of the machine
    // that created the array.
    mark("Linux RAID member", At::End { back: 8192, unit: 4096, plus: 0 }, RAID),
    mark("Linux RAID member", At::End { back: 1 << 16, unit: 1 << 16, plus: 0 }, RAID),
    mark("Linux RAID member", At::End { back: 1 << 16, unit: 1 << 16, plus: 0 }, RAID_BIG_ENDIAN),
    mark("DRBD device", At::End { back: 4096, unit: 4096, plus: 60 }, b"\x83\x74\x02\x6b"),
    mark("DRBD device", At::End { back: 4096, unit: 4096, plus: 60 }, b"\x83\x74\x02\x6c"),
];

/// First and last bytes of a disk.
struct Ends<'a> {
    head: &'a [u8],
    tail: &'a [u8],
    disk_bytes: u64,
}

impl<'a> Ends<'a> {
    /// Returns `len` bytes at `offset`, if they are inside one of the two ends of the disk.
    fn at(&self, offset: u64, len: usize) -> Option<&'a [u8]> {
        let inside = |bytes: &'a [u8], start: u64| {
            let from = usize::try_from(offset.checked_sub(start)?).ok()?;
            bytes.get(from..from.checked_add(len)?)
        };
        let tail_start = self.disk_bytes.checked_sub(self.tail.len() as u64)?;
        inside(self.head, 0).or_else(|| inside(self.tail, tail_start))
    }

    fn has(&self, offset: u64, bytes: &[u8]) -> bool {
        self.at(offset, bytes.len()) == Some(bytes)
    }

    fn u32_le(&self, offset: u64) -> Option<u32> {
        Some(u32::from_le_bytes(self.at(offset, 4)?.try_into().ok()?))
    }

    fn ext(&self) -> Option<&'static str> {
        const SUPER: u64 = 1024;
        const HAS_LOG: u32 = 0x4;
        // Features of ext3: file types, recovery, meta block groups; sparse superblocks, large
        // files, b-trees.
        const INCOMPATIBLE_EXT3: u32 = 0x2 | 0x4 | 0x10;
        const READ_ONLY_EXT3: u32 = 0x1 | 0x2 | 0x4;
        const LOG_DEVICE: u32 = 0x8;

        let block_shift = self.u32_le(SUPER + 0x18)?;
        // A magic number of two bytes is weak evidence, so the counts and the block size must be
        // plausible as well.
        let sane = self.u32_le(SUPER + 4)? > 0 && block_shift <= 6;
        if !self.has(SUPER + 0x38, b"\x53\xef") || !sane {
            return None;
        }
        let compatible = self.u32_le(SUPER + 0x5c)?;
        let incompatible = self.u32_le(SUPER + 0x60)?;
        let read_only = self.u32_le(SUPER + 0x64)?;
        Some(if incompatible & LOG_DEVICE != 0 {
            "external log of an ext filesystem"
        } else if incompatible & !INCOMPATIBLE_EXT3 != 0 || read_only & !READ_ONLY_EXT3 != 0 {
            "ext4 filesystem"
        } else if compatible & HAS_LOG != 0 {
            "ext3 filesystem"
        } else {
            "ext2 filesystem"
        })
    }

    /// The magic number of swap space is at the end of its first memory page. The size of this page
    /// depends on the machine that created the swap space.
    fn swap(&self) -> Option<&'static str> {
        const MARKS: [(&[u8], &str); 5] = [
            (b"SWAPSPACE2", "swap space"),
            (b"SWAP-SPACE", "swap space"),
            (b"S1SUSPEND\0", "hibernation image"),
            (b"S2SUSPEND\0", "hibernation image"),
            (b"ULSUSPEND\0", "hibernation image"),
        ];
        (12..=16).map(|shift| (1_u64 << shift) - 10).find_map(|offset| {
            MARKS.iter().find(|(bytes, _)| self.has(offset, bytes)).map(|(_, name)| *name)
        })
    }

    /// The label of an LVM physical volume is in one of the first four 512-byte sectors.
    fn lvm(&self) -> bool {
        (0..4).any(|sector| {
            self.has(sector * 512, b"LABELONE") && self.has(sector * 512 + 24, b"LVM2 001")
        })
    }

    /// A ZFS member has four labels of 256 KiB. The second half of each label is a ring of
    /// uberblocks.
    fn zfs(&self) -> bool {
        const LABEL: u64 = 256 << 10;
        const RING: std::ops::Range<u64> = (128 << 10)..LABEL;
        const MAGIC: u64 = 0x00ba_b10c;

        let end = self.disk_bytes - self.disk_bytes % LABEL;
        let at_end = [2, 1].map(|back| end.checked_sub(back * LABEL));
        [Some(0), Some(LABEL)].into_iter().chain(at_end).flatten().any(|label| {
            RING.step_by(1024).any(|slot| {
                self.has(label + slot, &MAGIC.to_le_bytes())
                    || self.has(label + slot, &MAGIC.to_be_bytes())
            })
        })
    }

    /// Checks for an MBR: the boot signature, four plausible entries, and at least one used entry.
    fn mbr(&self) -> bool {
        const ENTRIES: [u64; 4] = [446, 462, 478, 494];
        if !self.has(510, b"\x55\xaa") {
            return false;
        }
        let entry = |offset: u64| {
            let status = *self.at(offset, 1)?.first()?;
            let kind = *self.at(offset + 4, 1)?.first()?;
            let used = kind != 0 && self.u32_le(offset + 8)? > 0 && self.u32_le(offset + 12)? > 0;
            Some((matches!(status, 0 | 0x80), used))
        };
        let entries = ENTRIES.map(|offset| entry(offset).unwrap_or((false, false)));
        entries.iter().all(|(sane, _)| *sane) && entries.iter().any(|(_, used)| *used)
    }
}

/// Recognises the content of a disk of `disk_bytes` from its first and last bytes, at most
/// [`PROBE_BYTES`] at each end.
pub fn probe_content(head: &[u8], tail: &[u8], disk_bytes: u64) -> Option<&'static str> {
    let ends = Ends { head, tail, disk_bytes };
    let marked = |mark: &&Mark| {
        mark.at.offset(disk_bytes).is_some_and(|offset| ends.has(offset, mark.bytes))
    };
    let named = |found: bool, name| found.then_some(name);
    MARKS
        .iter()
        .find(marked)
        .map(|mark| mark.name)
        .or_else(|| ends.ext())
        .or_else(|| ends.swap())
        .or_else(|| named(ends.lvm(), "LVM physical volume"))
        .or_else(|| named(ends.zfs(), "ZFS pool member"))
        .or_else(|| named(ends.mbr(), "MBR partition table"))
}

/// Recognises the content of a disk; `None` if the format is unknown or the disk is empty.
///
/// # Errors
/// One of the two ends of the disk cannot be read.
pub async fn probe_device(device: &dyn Device) -> Result<Option<String>, DeviceError> {
    let disk_bytes = device.geometry().len_bytes;
    // Both ends consist of whole sectors: their lengths are multiples of every sector size.
    let len = disk_bytes.min(PROBE_BYTES as u64);
    let (head, tail) = futures_util::join!(
        device.read_at(0, IoBuf::zeroed(len as usize)),
        device.read_at(disk_bytes - len, IoBuf::zeroed(len as usize)),
    );
    head.0?;
    tail.0?;
    Ok(probe_content(&head.1, &tail.1, disk_bytes).map(str::to_owned))
}

#[cfg(test)]
mod tests;
