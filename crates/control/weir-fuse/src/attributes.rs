//! Attributes of inodes in the form of the kernel.
//!
//! Invariant: times keep their nanoseconds, also before 1970.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, Generation, INodeNo};
use weir_base::BLOCK_BYTES;
use weir_format::files::{FileType, TimeStamp};
use weir_fs::{Attributes, S_ISGID, S_ISUID};

use crate::limits::KERNEL_CACHE;

/// Unit of `st_blocks` (stat(2)).
const SECTOR_BYTES: u64 = 512;

/// File type bits of a mode (inode(7)).
pub(crate) const S_IFMT: u32 = 0o170_000;

/// True for a program with a set-id bit.
pub(crate) fn is_set_id(attributes: &Attributes) -> bool {
    attributes.file_type == FileType::Regular && attributes.permissions & (S_ISUID | S_ISGID) != 0
}

/// Returns the time for which the kernel may use the attributes without a request.
///
/// A write by an unprivileged user clears the set-id bits, but the kernel learns this only from a
/// request for the attributes. So it must make this request before it runs the program.
pub(crate) fn cache_time(attributes: &Attributes) -> Duration {
    if is_set_id(attributes) { Duration::ZERO } else { KERNEL_CACHE }
}

/// Returns the attributes in the form of the kernel. `io_bytes`: efficient length of reads and
/// writes (`st_blksize`), and unit of the answers of SEEK_DATA and SEEK_HOLE.
pub(crate) fn file_attr(attributes: &Attributes, io_bytes: u32) -> FileAttr {
    FileAttr {
        ino: INodeNo(attributes.number.0),
        size: attributes.size,
        blocks: attributes.blocks.saturating_mul(BLOCK_BYTES as u64 / SECTOR_BYTES),
        atime: system_time(attributes.atime),
        mtime: system_time(attributes.mtime),
        ctime: system_time(attributes.ctime),
        crtime: system_time(attributes.btime),
        kind: kind(attributes.file_type),
        perm: attributes.permissions as u16,
        nlink: attributes.nlink,
        uid: attributes.uid,
        gid: attributes.gid,
        rdev: attributes.device as u32,
        blksize: io_bytes,
        flags: 0,
    }
}

/// Returns the generation of an inode: the low 32 bits of the txg that created the inode.
pub(crate) fn generation(attributes: &Attributes) -> Generation {
    Generation(attributes.generation.0 & u64::from(u32::MAX))
}

/// Returns a file type in the form of the kernel.
pub(crate) fn kind(file_type: FileType) -> fuser::FileType {
    match file_type {
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::CharDevice => fuser::FileType::CharDevice,
        FileType::Directory => fuser::FileType::Directory,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::Regular => fuser::FileType::RegularFile,
        FileType::SymbolicLink => fuser::FileType::Symlink,
        FileType::Socket => fuser::FileType::Socket,
    }
}

/// Returns the file type of a mode (mknod(2)); `None` if mknod cannot create this type.
pub(crate) fn special_type(mode: u32) -> Option<FileType> {
    match mode & S_IFMT {
        0o010_000 => Some(FileType::Fifo),
        0o020_000 => Some(FileType::CharDevice),
        0o060_000 => Some(FileType::BlockDevice),
        0o100_000 | 0 => Some(FileType::Regular),
        0o140_000 => Some(FileType::Socket),
        _ => None,
    }
}

fn system_time(time: TimeStamp) -> SystemTime {
    let nanos = Duration::from_nanos(time.nanos.into());
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    whole.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// Returns the current time.
pub fn now() -> TimeStamp {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    TimeStamp { seconds: since.as_secs().cast_signed(), nanos: since.subsec_nanos() }
}

/// Returns a time that a program sets. fuser 0.18 decodes a time of `-s` seconds and `n`
/// nanoseconds as `s` seconds and `n` nanoseconds before 1970, without regard to the sign of `n`.
pub(crate) fn requested_time(time: SystemTime) -> TimeStamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(since) => TimeStamp {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanos: since.subsec_nanos(),
        },
        Err(before) => {
            let before = before.duration();
            let seconds = 0_i64.checked_sub_unsigned(before.as_secs()).unwrap_or(i64::MIN);
            TimeStamp { seconds, nanos: before.subsec_nanos() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_keep_their_nanoseconds_on_both_sides_of_1970() {
        let ends = [i64::MIN, -2, -1, 0, 1, 1 << 40, i64::MAX];
        for (seconds, nanos) in ends.into_iter().flat_map(|s| [(s, 0), (s, 1), (s, 999_999_999)]) {
            let shown = system_time(TimeStamp { seconds, nanos });
            let expected = match shown.duration_since(UNIX_EPOCH) {
                Ok(since) => since.as_nanos().cast_signed(),
                Err(before) => -before.duration().as_nanos().cast_signed(),
            };
            assert_eq!(expected, i128::from(seconds) * 1_000_000_000 + i128::from(nanos));
        }
        // fuser decodes -2 s and 800 ms to this time.
        let decoded = UNIX_EPOCH - Duration::new(2, 800_000_000);
        let requested = TimeStamp { seconds: -2, nanos: 800_000_000 };
        assert_eq!(requested_time(decoded), requested);
        let later = UNIX_EPOCH + Duration::new(7, 1);
        assert_eq!(requested_time(later), TimeStamp { seconds: 7, nanos: 1 });
    }

    #[test]
    fn mknod_creates_no_directories_and_no_links() {
        assert_eq!(special_type(0o010_644), Some(FileType::Fifo));
        assert_eq!(special_type(0o644), Some(FileType::Regular));
        assert_eq!(special_type(0o040_755), None);
        assert_eq!(special_type(0o120_777), None);
    }
}
