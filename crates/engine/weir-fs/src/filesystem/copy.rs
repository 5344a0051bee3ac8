//! Copies between files, as copy_file_range(2): whole records become references, other bytes are
//! read and written.
//!
//! Invariants:
//! - a call copies a prefix of the requested range, and returns its length;
//! - references and the size of the target change in one txg, or not at all.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::limits::COPY_RECORDS_MAX;
use weir_base::{ObjectId, RecordSize};
use weir_dataset::{DatasetError, RecordCopy};
use weir_format::files::Inode;
use weir_pool::PoolError;

use crate::draft::data::check_file;
use crate::error::FsError;
use crate::filesystem::content::WRITE_BYTES_MAX;
use crate::filesystem::set_id::after_write;
use crate::filesystem::state::Filesystem;
use crate::inodes::LockedInode;
use crate::layout::FILE_BYTES_MAX;

/// Minimum number of bytes that are copied as references. Such a copy waits for the committer, and
/// later syncs of the filesystem wait for a commit. A shorter copy reads and writes the bytes.
const REFERENCED_BYTES_MIN: u64 = 64 << 10;

/// A range of bytes of a file, and the offset of its copy.
#[derive(Clone, Copy, Debug)]
struct ByteCopy {
    from: u64,
    to: u64,
    bytes: u64,
}

/// Next step of a copy.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    /// Read and write up to this number of bytes.
    Bytes(u64),
    /// Make these records of the source references in the target, from record `to` on.
    Records { records: Range<u64>, to: u64, bytes: u64 },
}

impl ByteCopy {
    /// Chooses the next step. `source` and `target`: record sizes and inodes.
    fn step(
        &self,
        (size, source): (RecordSize, &Inode),
        (target_size, target): (RecordSize, &Inode),
        max: RecordSize,
    ) -> Step {
        let Self { from, to, bytes } = *self;
        let record = size.bytes() as u64;
        let is_inline = source.area.data.is_some() || target.area.data.is_some();
        let is_same = target.size == 0 || size == target_size;
        // A file with records of less than the maximum size has one record.
        let fits = size == max || target.size.max(to + bytes) <= record;
        if is_inline || !is_same || !fits || from % record != to % record {
            return Step::Bytes(bytes);
        }
        let head = from.next_multiple_of(record) - from;
        if head > 0 {
            return Step::Bytes(bytes.min(head));
        }
        // The bytes after the end of a file are zero in its last record.
        let has_end = from + bytes == source.size && to + bytes >= target.size;
        let count = if has_end { bytes.div_ceil(record) } else { bytes / record };
        let count = count.min(COPY_RECORDS_MAX);
        let bytes = bytes.min(count * record);
        if bytes < REFERENCED_BYTES_MIN {
            return Step::Bytes(self.bytes);
        }
        let first = from / record;
        Step::Records { records: first..first + count, to: to / record, bytes }
    }
}

fn has_too_many_references(error: &DatasetError) -> bool {
    matches!(error, DatasetError::Pool(PoolError::TooManyReferences { .. }))
}

impl Filesystem {
    /// Copies up to `bytes` bytes from offset `from` of `source` to offset `to` of `target`.
    /// Returns the number of copied bytes; 0 if `from` is at or after the end of the source. If the
    /// copy is long, the call copies a part, and the caller continues with the rest.
    ///
    /// Whole records become references to the records of the source if both files have them at the
    /// same offsets within a record, and if the copy has at least 64 KiB. A reference takes
    /// no space for data, but counts towards the quotas as data does.
    ///
    /// # Durability
    /// None until a sync of the target. After a crash the target has all bytes of the call or none.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`, `TooLarge`; `Invalid` if both ranges are in one file and overlap.
    #[boxed(?Send)]
    pub async fn copy_range(
        &self,
        (source, from): (ObjectId, u64),
        (target, to): (ObjectId, u64),
        bytes: u64,
        clears_set_id: bool,
    ) -> Result<u64, FsError> {
        let (mut locked, other) = self.lock_both(source, target).await?;
        let source_inode = other.as_ref().unwrap_or(&locked).inode()?;
        check_file(source_inode.1)?;
        check_file(locked.inode()?.1)?;
        let bytes = bytes.min(source_inode.1.size.saturating_sub(from));
        let end = to.checked_add(bytes).filter(|end| *end <= FILE_BYTES_MAX);
        let end = end.ok_or(FsError::TooLarge)?;
        if bytes == 0 {
            return Ok(0);
        }
        if source == target && from < end && to < from + bytes {
            return Err(FsError::Invalid("the ranges of the copy overlap"));
        }
        let copy = ByteCopy { from, to, bytes };
        let step = copy.step(source_inode, locked.inode()?, self.layout.record_size);
        if let Step::Records { records, to, bytes } = &step {
            let (size, records) = (source_inode.0, records.clone());
            let refer = RecordCopy { source, records, object: target, to: *to, size };
            match self.refer(&mut locked, &refer, copy.to + bytes, clears_set_id).await {
                Err(FsError::Dataset(error)) if has_too_many_references(&error) => {}
                done => return done.map(|()| *bytes),
            }
        }
        let (Step::Bytes(bytes) | Step::Records { bytes, .. }) = step;
        let bytes = bytes.min(WRITE_BYTES_MAX as u64);
        let slot = &other.as_ref().unwrap_or(&locked).slot;
        let data = self.read_locked(source, slot, (from, bytes as usize)).await?;
        self.write_locked(&mut locked, to, &data.to_vec(), clears_set_id).await?;
        Ok(bytes)
    }

    /// Locks the target, and the source if it is another inode, in the order of their numbers.
    async fn lock_both(
        &self,
        source: ObjectId,
        target: ObjectId,
    ) -> Result<(LockedInode, Option<LockedInode>), FsError> {
        if source == target {
            return Ok((self.lock(target).await?, None));
        }
        if source < target {
            let source = self.lock(source).await?;
            return Ok((self.lock(target).await?, Some(source)));
        }
        let target = self.lock(target).await?;
        Ok((target, Some(self.lock(source).await?)))
    }

    /// Makes records of the locked file references. `end`: end of the copy in the file.
    async fn refer(
        &self,
        locked: &mut LockedInode,
        copy: &RecordCopy,
        end: u64,
        clears_set_id: bool,
    ) -> Result<(), FsError> {
        let target = copy.object;
        let mut draft = self.draft();
        draft.add_locked(locked)?;
        let (_, inode) = locked.inode()?;
        let permissions = after_write(inode, clears_set_id);
        draft.refer(copy, inode.size.max(end)).await?;
        draft.note_new_data(target, permissions).await?;
        self.commit_copy(&mut draft, copy, &mut [locked]).await
    }
}
