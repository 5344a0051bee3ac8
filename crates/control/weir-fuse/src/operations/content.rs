//! Content of files: reads, writes, holes.
//!
//! Invariant: a write is one change of weir-fs, whatever its length.

use fuser::Errno;
use weir_base::ObjectId;
use weir_dataset::TrafficKind as Kind;
use weir_fs::SetAttributes;

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
        0 => Ok(Allocation { punches: false, grows }),
        FALLOC_FL_PUNCH_HOLE if !grows => Ok(Allocation { punches: true, grows }),
        FALLOC_FL_ZERO_RANGE => Ok(Allocation { punches: true, grows }),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

impl Served {
    pub(crate) async fn read(&self, number: ObjectId, offset: u64, bytes: u32) -> Done<Vec<u8>> {
        let traffic = self.engine.traffic();
        let begun = traffic.begin(Kind::Read);
        let read = done(self.files.read(number, offset, bytes as usize).await);
        traffic.end(Kind::Read, begun);
        traffic.read(read.as_ref().map_or(0, |data| data.len() as u64));
        read
    }

    pub(crate) async fn write(
        &self,
        number: ObjectId,
        (offset, data): (u64, &[u8]),
        clears_set_id: bool,
    ) -> Done<u32> {
        let traffic = self.engine.traffic();
        let begun = traffic.begin(Kind::Write);
        let written = done(self.files.write(number, offset, data, clears_set_id).await);
        traffic.end(Kind::Write, begun);
        written?;
        traffic.wrote(data.len() as u64);
        Ok(data.len() as u32)
    }

    pub(crate) async fn allocate(
        &self,
        number: ObjectId,
        (offset, bytes): (u64, u64),
        mode: i32,
        clears_set_id: bool,
    ) -> Done<()> {
        let Allocation { punches, grows } = allocation(mode)?;
        let end = offset.checked_add(bytes).ok_or(Errno::EFBIG)?;
        let before = self.attributes(number).await?;
        // Grow first: if the file cannot grow, its content stays.
        if grows && end > before.size {
            let changes = SetAttributes { size: Some(end), ..SetAttributes::default() };
            done(self.files.set_attributes(number, &changes, clears_set_id).await)?;
        }
        if punches {
            done(self.files.punch(number, offset, bytes, clears_set_id).await)?;
        }
        Ok(())
    }

    pub(crate) async fn copy(
        &self,
        source: (ObjectId, u64),
        target: (ObjectId, u64),
        bytes: u64,
        clears_set_id: bool,
    ) -> Done<u32> {
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
        let found = done(self.files.seek(number, offset, is_data).await)?;
        found.and_then(|found| i64::try_from(found).ok()).ok_or(Errno::ENXIO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_allocations_are_decoded_or_refused() {
        let of = |mode| allocation(mode).map_err(Errno::code);
        assert_eq!(of(0), Ok(Allocation { punches: false, grows: true }));
        assert_eq!(of(1), Ok(Allocation { punches: false, grows: false }));
        assert_eq!(of(3), Ok(Allocation { punches: true, grows: false }));
        assert_eq!(of(0x10), Ok(Allocation { punches: true, grows: true }));
        assert_eq!(of(0x11), Ok(Allocation { punches: true, grows: false }));
        // Refused modes: punch without keep-size, collapse, insert, unshare, unknown bits.
        for mode in [2, 0x08, 0x20, 0x40, 0x80, -1] {
            assert_eq!(of(mode), Err(Errno::EOPNOTSUPP.code()), "{mode:#x}");
        }
    }
}
