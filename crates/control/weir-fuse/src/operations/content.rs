//! Content of files: reads, writes, holes.
//!
//! Invariant: a write is one change of weir-fs, whatever its length.

use fuser::Errno;
use weir_base::{BLOCK_BYTES, ObjectId};
use weir_dataset::TrafficKind as Kind;
use weir_format::files::{OwnerId, OwnerKind, Usage};
use weir_fs::{Attributes, SetAttributes};

use crate::attributes::is_set_id;
use crate::operations::places::{changeable, is_own};
use crate::operations::served::{Done, Served, done};

/// Flags of fallocate(2) (linux/falloc.h).
const FALLOC_FL_KEEP_SIZE: i32 = 0x01;
const FALLOC_FL_PUNCH_HOLE: i32 = 0x02;
const FALLOC_FL_ZERO_RANGE: i32 = 0x10;

/// Maximum bytes of one copy_file_range(2): the answer has 32 bits for the number of copied bytes.
const ONE_COPY_BYTES_MAX: u64 = 1 << 30;

/// Values of `whence` of lseek(2).
const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// Effects of an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allocation {
    /// The caller expects that later writes to the range find space.
    reserves: bool,
    /// The range becomes a hole.
    punches: bool,
    /// The file grows to the end of the range.
    grows: bool,
}

/// Decodes the flags of fallocate(2). The pool writes all data to new addresses, so preallocated
/// space would be of no use: an allocation only changes the size.
fn allocation(mode: i32) -> Done<Allocation> {
    let grows = mode & FALLOC_FL_KEEP_SIZE == 0;
    match mode & !FALLOC_FL_KEEP_SIZE {
        0 => Ok(Allocation { reserves: true, punches: false, grows }),
        FALLOC_FL_PUNCH_HOLE if !grows => Ok(Allocation { reserves: false, punches: true, grows }),
        FALLOC_FL_ZERO_RANGE => Ok(Allocation { reserves: true, punches: true, grows }),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

impl Served {
    pub(crate) async fn read(&self, number: ObjectId, offset: u64, bytes: u32) -> Done<Vec<u8>> {
        let traffic = self.engine.traffic();
        let begun = traffic.begin(Kind::Read);
        let read = match self.in_files(number) {
            Ok(at) => done(at.files.read(at.number, offset, bytes as usize).await),
            Err(error) => Err(error),
        };
        traffic.end(Kind::Read, begun);
        traffic.read(read.as_ref().map_or(0, |data| data.len() as u64));
        read
    }

    /// Writes data at an offset or, if `is_append`, at the end of the file. Returns the offset of
    /// the data in the file.
    pub(crate) async fn write(
        &self,
        number: ObjectId,
        (offset, data): (u64, &[u8]),
        (is_append, clears_set_id): (bool, bool),
    ) -> Done<u64> {
        let number = changeable(number)?;
        let traffic = self.engine.traffic();
        let begun = traffic.begin(Kind::Write);
        let written = if is_append {
            self.files.append(number, data, clears_set_id).await
        } else {
            self.files.write(number, offset, data, clears_set_id).await
        };
        let written = done(written);
        traffic.end(Kind::Write, begun);
        let size = written?.size;
        let bytes = data.len() as u64;
        traffic.wrote(bytes);
        Ok(if is_append { size - bytes } else { offset })
    }

    pub(crate) async fn allocate(
        &self,
        number: ObjectId,
        (offset, bytes): (u64, u64),
        mode: i32,
        clears_set_id: bool,
    ) -> Done<()> {
        let number = changeable(number)?;
        let Allocation { reserves, punches, grows } = allocation(mode)?;
        let end = offset.checked_add(bytes).ok_or(Errno::EFBIG)?;
        let before = self.attributes(number).await?;
        let added = end.saturating_sub(offset.max(before.size));
        if reserves && added > 0 {
            self.refuse_beyond_space(&before, added).await?;
        }
        // Grow first: if the file cannot grow, its content stays. An allocation inside the file
        // still clears the set-id bits.
        let size = if grows { end.max(before.size) } else { before.size };
        if size > before.size || (clears_set_id && !punches && is_set_id(&before)) {
            let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
            done(self.files.set_attributes(number, &changes, clears_set_id).await)?;
        }
        if punches {
            done(self.files.punch(number, offset, bytes, clears_set_id).await)?;
        }
        Ok(())
    }

    /// Refuses the allocation of more bytes than the owners of a file can write now. Nothing is
    /// reserved: other files can take the space before the bytes are written.
    async fn refuse_beyond_space(&self, file: &Attributes, bytes: u64) -> Done<()> {
        if bytes > done(self.files.statistics().await)?.available_bytes {
            return Err(Errno::ENOSPC);
        }
        let blocks = bytes.div_ceil(BLOCK_BYTES as u64);
        let owners = [
            (OwnerKind::User, file.uid),
            (OwnerKind::Group, file.gid),
            (OwnerKind::Project, file.project),
        ];
        for (kind, id) in owners {
            let Usage { blocks: used, limits, .. } =
                done(self.files.usage(OwnerId { kind, id }).await)?;
            let is_limited = limits.blocks > 0 && (kind != OwnerKind::Project || id > 0);
            if is_limited && used.saturating_add(blocks) > limits.blocks {
                return Err(Errno::EDQUOT);
            }
        }
        Ok(())
    }

    /// Copies a range between files. After EXDEV, for a file of a snapshot, the kernel copies the
    /// data with reads and writes.
    pub(crate) async fn copy(
        &self,
        source: (ObjectId, u64),
        target: (ObjectId, u64),
        bytes: u64,
        clears_set_id: bool,
    ) -> Done<u32> {
        changeable(target.0)?;
        if !is_own(source.0) {
            return Err(Errno::EXDEV);
        }
        let bytes = bytes.min(ONE_COPY_BYTES_MAX);
        Ok(done(self.files.copy_range(source, target, bytes, clears_set_id).await)? as u32)
    }

    pub(crate) async fn seek(&self, number: ObjectId, offset: i64, whence: i32) -> Done<i64> {
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let is_data = match whence {
            SEEK_DATA => true,
            SEEK_HOLE => false,
            _ => return Err(Errno::EINVAL),
        };
        let at = self.in_files(number)?;
        let found = done(at.files.seek(at.number, offset, is_data).await)?;
        found.and_then(|found| i64::try_from(found).ok()).ok_or(Errno::ENXIO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_allocations_are_decoded_or_refused() {
        let of = |mode| allocation(mode).map_err(Errno::code);
        let with = |reserves, punches, grows| Ok(Allocation { reserves, punches, grows });
        assert_eq!(of(0), with(true, false, true));
        assert_eq!(of(1), with(true, false, false));
        assert_eq!(of(3), with(false, true, false));
        assert_eq!(of(0x10), with(true, true, true));
        assert_eq!(of(0x11), with(true, true, false));
        // Refused modes: punch without keep-size, collapse, insert, unshare, unknown bits.
        for mode in [2, 0x08, 0x20, 0x40, 0x80, -1] {
            assert_eq!(of(mode), Err(Errno::EOPNOTSUPP.code()), "{mode:#x}");
        }
    }
}
