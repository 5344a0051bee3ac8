//! Tests of the content probe: magic numbers at their positions, the output of real tools if they
//! are installed, and random bytes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use weir_block::IoBuf;

use super::{PROBE_BYTES, probe_content, probe_device};
use crate::backend::new_runtime;
use crate::device::{Device, Durability};
use crate::file::FileDevice;
use crate::memory::MemoryDevice;
use crate::open::OpenMode;

const DISK_BYTES: usize = 8 << 20;

/// Name of a format, and the bytes with their offsets that make a disk look like this format.
type Case = (&'static str, &'static [(usize, &'static [u8])]);

/// Magic numbers with their absolute offsets on a disk of [`DISK_BYTES`]. This second list is
/// independent of the list in the code.
#[rustfmt::skip]
const PLACES: &[Case] = &[
    ("LUKS encryption", &[(0, b"LUKS\xba\xbe\x00\x01")]),
    ("LUKS encryption", &[(0x4000, b"SKUL\xba\xbe\x00\x02")]),
    ("Linux RAID member", &[(0, b"\xfc\x4e\x2b\xa9\x01\0\0\0")]),
    ("Linux RAID member", &[(4096, b"\xfc\x4e\x2b\xa9\x01\0\0\0")]),
    ("Linux RAID member", &[(DISK_BYTES - 8192, b"\xfc\x4e\x2b\xa9\x01\0\0\0")]),
    ("Linux RAID member", &[(DISK_BYTES - 65536, b"\xfc\x4e\x2b\xa9")]),
    ("Linux RAID member", &[(DISK_BYTES - 65536, b"\xa9\x2b\x4e\xfc")]),
    ("LVM physical volume", &[(512, b"LABELONE"), (536, b"LVM2 001")]),
    ("Ceph BlueStore", &[(0, b"bluestore block device\n")]),
    ("ZFS pool member", &[((128 << 10) + 4096, b"\x0c\xb1\xba\0\0\0\0\0")]),
    ("ZFS pool member", &[(DISK_BYTES - (128 << 10), b"\0\0\0\0\0\xba\xb1\x0c")]),
    ("Btrfs filesystem", &[(65600, b"_BHRfS_M")]),
    ("GPT partition table", &[(512, b"EFI PART")]),
    ("GPT partition table", &[(DISK_BYTES - 512, b"EFI PART")]),
    ("GPT partition table", &[(DISK_BYTES - 4096, b"EFI PART")]),
    ("MBR partition table", &[(446, b"\x80\x01\x01\0\x83\x01\x01\x01\0\x08\0\0\0\x10\0\0"),
                              (510, b"\x55\xaa")]),
    ("ISO 9660 filesystem", &[(32769, b"CD001\x01")]),
    ("bcachefs filesystem",
        &[(4120, b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef")]),
    ("swap space", &[(65526, b"SWAPSPACE2")]),
    ("DRBD device", &[(DISK_BYTES - 4096 + 60, b"\x83\x74\x02\x6b")]),
];

fn probe(disk: &[u8]) -> Option<&'static str> {
    let len = disk.len().min(PROBE_BYTES);
    probe_content(&disk[..len], &disk[disk.len() - len..], disk.len() as u64)
}

#[test]
fn magic_numbers_are_recognised_at_their_offsets() {
    for (name, places) in PLACES {
        let mut disk = vec![0; DISK_BYTES];
        for (offset, bytes) in *places {
            disk[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        assert_eq!(probe(&disk), Some(*name), "{places:x?}");
        let (offset, _) = places[0];
        disk[offset] ^= 0x20;
        assert_eq!(probe(&disk), None, "a broken mark was taken for {name}");
    }
}

#[test]
fn magic_numbers_near_the_end_are_found_for_any_length() {
    // The offsets of Linux RAID metadata 0.90 and 1.0 are rounded down from the end of the disk, so
    // use a disk with an odd size: 8 MiB + 20 KiB + 512 bytes.
    let len = DISK_BYTES + (20 << 10) + 512;
    for offset in [DISK_BYTES - 65536, DISK_BYTES + (12 << 10)] {
        let mut disk = vec![0; len];
        disk[offset..offset + 4].copy_from_slice(b"\xfc\x4e\x2b\xa9");
        assert_eq!(probe(&disk), Some("Linux RAID member"), "{offset}");
    }
}

#[test]
fn arbitrary_bytes_and_lengths_never_panic() {
    for len in [0, 1, 511, 512, 1024, 4095, 8192, 65536, 300_000] {
        assert_eq!(probe(&vec![0; len]), None);
        assert_eq!(probe(&vec![0xff; len]), None);
    }
    // If a caller passes more bytes of the end than the disk has, the probe must not panic.
    assert_eq!(probe_content(&[], &[0; 512], 100), None);
}

#[test]
fn noise_and_an_empty_partition_table_are_not_recognised() {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut disk: Vec<u8> = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    })
    .take(2 << 20)
    .collect();
    assert_eq!(probe(&disk), None);
    disk[510..512].copy_from_slice(b"\x55\xaa");
    assert_eq!(probe(&disk), None, "entries of noise are no partition table");
    let mut disk = vec![0; DISK_BYTES];
    disk[510..512].copy_from_slice(b"\x55\xaa");
    assert_eq!(probe(&disk), None, "no entry is used");
}

#[test]
fn both_ends_of_a_device_are_probed() {
    new_runtime().unwrap().block_on(async {
        let disk = MemoryDevice::new("disk", DISK_BYTES);
        assert_eq!(probe_device(&disk).await.unwrap(), None);
        let mut sector = IoBuf::zeroed(512);
        sector[..8].copy_from_slice(b"EFI PART");
        let last = DISK_BYTES as u64 - 512;
        disk.write_at(last, Arc::new(sector), 0..512, Durability::Cached).await.unwrap();
        assert_eq!(probe_device(&disk).await.unwrap().as_deref(), Some("GPT partition table"));
    });
}

/// Runs a tool on `disk`; returns false if the tool is not installed.
fn make(tool: &str, args: &[&str], disk: &Path) -> bool {
    // The PATH of a user often lacks the directories of system tools.
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/sbin:/sbin";
    let status = Command::new(tool)
        .args(args)
        .arg(disk)
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) => {
            assert!(status.success(), "{tool} {args:?} failed");
            true
        }
        Err(error) => {
            assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{tool}: {error}");
            false
        }
    }
}

#[test]
fn output_of_real_tools_is_recognised() {
    #[rustfmt::skip]
    let cases: &[(&str, &[&str], &str)] = &[
        ("mke2fs", &["-q", "-F", "-t", "ext2"], "ext2 filesystem"),
        ("mke2fs", &["-q", "-F", "-t", "ext3"], "ext3 filesystem"),
        ("mke2fs", &["-q", "-F", "-t", "ext4"], "ext4 filesystem"),
        ("mkswap", &[], "swap space"),
        ("mkfs.xfs", &["-q", "-f"], "XFS filesystem"),
        ("mkfs.btrfs", &["-q", "-f"], "Btrfs filesystem"),
        ("mkfs.vfat", &["-F", "32"], "FAT filesystem"),
        ("mkfs.vfat", &["-F", "16"], "FAT filesystem"),
        ("mkfs.vfat", &["-F", "12", "-s", "128"], "FAT filesystem"),
        ("mkfs.exfat", &[], "exFAT filesystem"),
        ("mkntfs", &["-q", "-F", "-Q"], "NTFS filesystem"),
        ("mkfs.f2fs", &["-q"], "F2FS filesystem"),
        ("mkfs.nilfs2", &["-q"], "NILFS2 filesystem"),
        ("mkfs.jfs", &["-q"], "JFS filesystem"),
        ("mkfs.reiserfs", &["-q", "-f", "-f"], "ReiserFS filesystem"),
        ("sgdisk", &["-n", "1:0:0"], "GPT partition table"),
    ];
    let dir = tempfile::tempdir().unwrap();
    let mut made_count = 0;
    for (index, (tool, args, name)) in cases.iter().enumerate() {
        let path = dir.path().join(index.to_string());
        // Creates a sparse file of the smallest size that all tools accept.
        FileDevice::create_sparse(&path, 512 << 20).unwrap();
        if !make(tool, args, &path) {
            continue;
        }
        made_count += 1;
        let found = new_runtime().unwrap().block_on(async {
            let disk = FileDevice::open(&path, OpenMode::ReadOnly, 0).unwrap();
            probe_device(&disk).await.unwrap()
        });
        assert_eq!(found.as_deref(), Some(*name), "{tool} {args:?}");
        std::fs::remove_file(&path).unwrap();
    }
    assert!(made_count > 0, "not one of the tools is installed: e2fsprogs is in every Debian");
}
