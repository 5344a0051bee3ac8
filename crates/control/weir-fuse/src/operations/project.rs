//! Project ids and inode flags: ioctl(2) with the commands of linux/fs.h, which chattr(1),
//! lsattr(1) and xfs_io(8) use.
//!
//! Invariant: only the owner of an inode, or root, changes its project and flags.

use fuser::Errno;
use weir_base::ObjectId;
use weir_format::files::{FileType, Inode};
use weir_fs::SetAttributes;

use crate::operations::places::changeable;
use crate::operations::served::{Done, Served, done};

const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;
const FS_IOC_FSSETXATTR: u32 = 0x401c_5820;

/// New entries of the directory inherit its project: the flag of `FS_IOC_GETFLAGS`.
const FS_PROJINHERIT_FL: u32 = 0x2000_0000;
/// As `FS_PROJINHERIT_FL`, in `struct fsxattr`.
const FS_XFLAG_PROJINHERIT: u32 = 0x200;
/// `struct fsxattr`: five numbers of 32 bits and 8 unused bytes.
const FSXATTR_BYTES: usize = 28;
/// Offset of the project id in `struct fsxattr`.
const PROJECT_AT: usize = 12;

/// Encodes a number as the kernel does.
#[expect(clippy::host_endian_bytes, reason = "the kernel uses the byte order of the machine")]
fn bytes_of(number: u32) -> [u8; 4] {
    number.to_ne_bytes()
}

/// Reads a number as the kernel encodes it.
#[expect(clippy::host_endian_bytes, reason = "the kernel uses the byte order of the machine")]
fn number_at(data: &[u8], at: usize) -> Done<u32> {
    let bytes = data.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map(|bytes| u32::from_ne_bytes(*bytes)).ok_or(Errno::EINVAL)
}

/// Decodes flags. Only the flag `inherit` is supported.
fn flags(given: u32, inherit: u32) -> Done<u32> {
    match given {
        0 => Ok(0),
        flag if flag == inherit => Ok(Inode::INHERITS_PROJECT),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

fn encoded(flags: u32, inherit: u32) -> u32 {
    if flags & Inode::INHERITS_PROJECT == 0 { 0 } else { inherit }
}

impl Served {
    /// Runs a command of ioctl(2) for the user `uid`. Returns the answer, of at most `size` bytes.
    pub(crate) async fn control(
        &self,
        (inode, uid): (ObjectId, u32),
        command: u32,
        (data, size): (&[u8], u32),
    ) -> Done<Vec<u8>> {
        let mut answer = match command {
            FS_IOC_GETFLAGS => {
                let flags = self.attributes(inode).await?.flags;
                bytes_of(encoded(flags, FS_PROJINHERIT_FL)).to_vec()
            }
            FS_IOC_FSGETXATTR => {
                let found = self.attributes(inode).await?;
                let mut answer = bytes_of(encoded(found.flags, FS_XFLAG_PROJINHERIT)).to_vec();
                answer.resize(PROJECT_AT, 0);
                answer.extend(bytes_of(found.project));
                answer.resize(FSXATTR_BYTES, 0);
                answer
            }
            FS_IOC_SETFLAGS => {
                let flags = flags(number_at(data, 0)?, FS_PROJINHERIT_FL)?;
                self.set_project(inode, uid, (flags, None)).await?;
                Vec::new()
            }
            FS_IOC_FSSETXATTR => {
                let flags = flags(number_at(data, 0)?, FS_XFLAG_PROJINHERIT)?;
                let project = number_at(data, PROJECT_AT)?;
                self.set_project(inode, uid, (flags, Some(project))).await?;
                Vec::new()
            }
            _ => return Err(Errno::ENOTTY),
        };
        answer.truncate(size as usize);
        Ok(answer)
    }

    async fn set_project(
        &self,
        inode: ObjectId,
        uid: u32,
        (flags, project): (u32, Option<u32>),
    ) -> Done<()> {
        let found = self.attributes(changeable(inode)?).await?;
        // The kernel checks the owner only since Linux 5.13.
        if uid != 0 && uid != found.uid {
            return Err(Errno::EPERM);
        }
        if flags != 0 && found.file_type != FileType::Directory {
            return Err(Errno::EINVAL);
        }
        let changes = SetAttributes { flags: Some(flags), project, ..SetAttributes::default() };
        done(self.files.set_attributes(inode, &changes, false).await).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsupported_flags_and_short_arguments_are_refused() {
        let of = |given| flags(given, FS_PROJINHERIT_FL).map_err(Errno::code);
        assert_eq!(of(0), Ok(0));
        assert_eq!(of(FS_PROJINHERIT_FL), Ok(Inode::INHERITS_PROJECT));
        assert_eq!(of(FS_PROJINHERIT_FL | 0x10), Err(Errno::EOPNOTSUPP.code()), "immutable");
        assert_eq!(number_at(&[1, 0, 0, 0], 0).map_err(Errno::code), Ok(1));
        assert_eq!(number_at(&[0; 15], PROJECT_AT).map_err(Errno::code), Err(Errno::EINVAL.code()));
    }
}
