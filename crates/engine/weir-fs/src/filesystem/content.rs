//! Reads and writes of files.
//!
//! Invariant: an open inode exists until its last close.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_block::Block;
use weir_dataset::{DataRecords, ZERO_BLOCK};
use weir_format::files::{FileRecord, FileType, Inode, InodeState, TARGET_BYTES_MAX};
use weir_pool::PlantedBug;

use crate::attributes::Attributes;
use crate::draft::data::check_file;
use crate::draft::node::records_in;
use crate::error::FsError;
use crate::file_data::FileData;
use crate::filesystem::commit::Change;
use crate::filesystem::set_id::after_write;
use crate::filesystem::state::Filesystem;
use crate::inodes::{LockedInode, Slot};

/// Maximum number of bytes of one write: its log record fits into a batch of the log.
pub(crate) const WRITE_BYTES_MAX: usize = 1 << 20;

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Target of a symbolic link, decoded from its block; `None` if the target is damaged.
pub(crate) fn long_target(inode: &Inode, block: Option<&Block>) -> Option<Vec<u8>> {
    let bytes = usize::try_from(inode.size).ok().filter(|bytes| *bytes <= TARGET_BYTES_MAX)?;
    let (target, rest) = block?.split_at_checked(bytes)?;
    let is_valid = !target.is_empty() && !target.contains(&0) && rest.iter().all(|b| *b == 0);
    is_valid.then(|| target.to_vec())
}

/// Target of a symbolic link that is in its inode; `None` if the target is damaged.
pub(crate) fn short_target(inode: &Inode, target: &[u8]) -> Option<Vec<u8>> {
    let is_valid = !target.is_empty() && !target.contains(&0) && target.len() as u64 == inode.size;
    is_valid.then(|| target.to_vec())
}

impl Filesystem {
    /// Opens an inode. The inode then exists until the last [`Self::close`], even without a name.
    ///
    /// # Errors
    /// `Stale` if no inode has the number; `TooManyOpens`.
    #[boxed(?Send)]
    pub async fn open_inode(&self, number: ObjectId) -> Result<Attributes, FsError> {
        let cached = self.inode(number)?;
        let slot = self.read_lock_of(&cached).await?;
        let attributes = cached.attributes(slot.used()?.1);
        self.inodes.new_handle()?.give_to(&cached);
        Ok(attributes)
    }

    /// Closes an inode that [`Self::open_inode`] opened. The last close frees an inode without a
    /// name.
    ///
    /// # Errors
    /// The errors of the engine. The inode is closed anyway, and the next [`Self::open`] frees it.
    #[boxed(?Send)]
    pub async fn close(&self, number: ObjectId) -> Result<(), FsError> {
        let cached = self.inode(number)?;
        let slot = cached.slot.write().await;
        let left = self.inodes.close(&cached);
        let is_orphan = slot.used().is_ok_and(|(_, inode)| inode.state != InodeState::Named);
        drop(slot);
        if left == 0 && is_orphan { self.release(number).await } else { Ok(()) }
    }

    /// Reads up to `bytes` bytes of a file. Returns fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`; an error of the engine if a record is damaged.
    #[boxed(?Send)]
    pub async fn read(
        &self,
        number: ObjectId,
        offset: u64,
        bytes: usize,
    ) -> Result<Vec<u8>, FsError> {
        let cached = self.inode(number)?;
        let slot = self.read_lock_of(&cached).await?;
        let read = self.read_locked(number, &slot, (offset, bytes)).await?;
        let stores_atime = !read.is_empty() && self.note_read(&cached, &slot);
        drop(slot);
        if stores_atime && let Err(error) = self.store_atime(number).await {
            tracing::debug!(inode = number.0, %error, "cannot store an atime");
        }
        Ok(read.to_vec())
    }

    pub(crate) async fn read_locked(
        &self,
        number: ObjectId,
        slot: &Slot,
        (offset, bytes): (u64, usize),
    ) -> Result<FileData, FsError> {
        let (size, inode) = slot.used()?;
        check_file(inode)?;
        let end = offset.saturating_add(bytes as u64).min(inode.size);
        if offset >= end {
            return Ok(FileData::default());
        }
        if let Some(data) = &inode.area.data {
            let data = data.get(offset as usize..end as usize).unwrap_or_default();
            return Ok(FileData::copied(data.to_vec()));
        }
        let touched = offset / BLOCK..end.div_ceil(BLOCK);
        let mut read = Vec::with_capacity((touched.end - touched.start) as usize);
        for record in size.touched(&touched) {
            let start = size.first_block(record);
            let first = touched.start.max(start) - start;
            let last = touched.end.min(start + size.blocks()) - start;
            let place = (record, first..last);
            if !self.reads().parts(number, size, place, &mut read).await? {
                read.extend((first..last).map(|_| ZERO_BLOCK.clone()));
            }
        }
        let skipped = touched.start * BLOCK;
        Ok(FileData::shared(read, (offset - skipped) as usize..(end - skipped) as usize))
    }

    /// Writes to a file. `clears_set_id`: clears the set-id bits, as a write by a user without
    /// CAP_FSETID does.
    ///
    /// # Durability
    /// None until a sync of the file. After a crash the file has all bytes of the write or none.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`, `TooLarge`; `Invalid` for more than 1 MiB.
    #[boxed(?Send)]
    pub async fn write(
        &self,
        number: ObjectId,
        offset: u64,
        data: &[u8],
        clears_set_id: bool,
    ) -> Result<Attributes, FsError> {
        if data.len() > WRITE_BYTES_MAX {
            return Err(FsError::Invalid("one write has at most 1 MiB"));
        }
        if data.is_empty() {
            return self.attributes(number).await;
        }
        let mut locked = self.lock(number).await?;
        self.write_locked(&mut locked, offset, data, clears_set_id).await?;
        Ok(Attributes::of(number, locked.inode()?.1))
    }

    /// Appends to a file: writes at its end, as [`Self::write`]. No other change of the file comes
    /// between the end and the write.
    ///
    /// # Durability
    /// As [`Self::write`].
    ///
    /// # Errors
    /// As [`Self::write`].
    #[boxed(?Send)]
    pub async fn append(
        &self,
        number: ObjectId,
        data: &[u8],
        clears_set_id: bool,
    ) -> Result<Attributes, FsError> {
        if data.len() > WRITE_BYTES_MAX {
            return Err(FsError::Invalid("one write has at most 1 MiB"));
        }
        let mut locked = self.lock(number).await?;
        let inode = locked.inode()?.1;
        check_file(inode)?;
        let end = inode.size;
        if !data.is_empty() {
            self.write_locked(&mut locked, end, data, clears_set_id).await?;
        }
        Ok(Attributes::of(number, locked.inode()?.1))
    }

    /// Writes to a locked file, as [`Self::write`]. `data` has at least one byte.
    pub(crate) async fn write_locked(
        &self,
        locked: &mut LockedInode,
        offset: u64,
        data: &[u8],
        clears_set_id: bool,
    ) -> Result<(), FsError> {
        let (mut draft, number) = (self.draft(), locked.number());
        draft.add_locked(locked)?;
        let permissions = after_write(locked.inode()?.1, clears_set_id);
        draft.apply_write(number, (offset, data), permissions).await?;
        // The log record has the whole blocks from the changes of the draft, and only the rest in
        // its payload. A record of zeros became a hole: the payload then has all bytes.
        let end = offset + data.len() as u64;
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        let blocks = first..last.max(first);
        let (blocks, head, tail) = if !blocks.is_empty() && draft.has_data(number, &blocks) {
            let head = (first * BLOCK - offset) as usize;
            let tail = data.len() - (end - last * BLOCK) as usize;
            let head = data.get(..head).unwrap_or_default();
            (blocks, head, data.get(tail..).unwrap_or_default())
        } else {
            (0..0, data, &[][..])
        };
        let record = FileRecord::Write { offset, head, blocks: &[], tail, permissions };
        let change = Change { blocks, ..Change::inode(number, &record) };
        self.commit(&mut draft, change, &mut [locked]).await
    }

    /// Makes a range of a file a hole, whose bytes are zero. The size of the file does not change.
    /// `clears_set_id`: as for [`Self::write`].
    ///
    /// # Durability
    /// As [`Self::write`].
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`.
    #[boxed(?Send)]
    pub async fn punch(
        &self,
        number: ObjectId,
        offset: u64,
        bytes: u64,
        clears_set_id: bool,
    ) -> Result<Attributes, FsError> {
        let record = |inode: &Inode| {
            let permissions = after_write(inode, clears_set_id);
            FileRecord::Zero { offset, bytes, permissions }
        };
        self.change_inode(number, record).await
    }

    /// Finds the next data or hole at or after an offset, as lseek(2) with SEEK_DATA and SEEK_HOLE.
    /// `None`: no data follows, or the offset is not before the end of the file.
    ///
    /// # Errors
    /// `Stale`, `IsDirectory`.
    #[boxed(?Send)]
    pub async fn seek(
        &self,
        number: ObjectId,
        offset: u64,
        is_data: bool,
    ) -> Result<Option<u64>, FsError> {
        let slot = self.read_lock(number).await?;
        let (size, inode) = slot.used()?;
        check_file(inode)?;
        if offset >= inode.size {
            return Ok(None);
        }
        if inode.area.data.is_some() {
            return Ok(Some(if is_data { offset } else { inode.size }));
        }
        let bytes = size.bytes() as u64;
        let records = offset / bytes..records_in(size, inode.size);
        let mut next = Some(records.start);
        let mut expected = records.start;
        while let Some(start) = next {
            let range: Range<u64> = start..records.end;
            let part = self.part_for_seek(number, size, range).await?;
            for record in part.records {
                if is_data {
                    return Ok(Some(offset.max(record * bytes)));
                }
                if record > expected {
                    return Ok(Some(offset.max(expected * bytes)));
                }
                expected = record + 1;
            }
            next = part.next;
        }
        if is_data {
            return Ok(None);
        }
        Ok(Some(offset.max(expected * bytes).min(inode.size)))
    }

    /// Finds the records with data in a part of a range.
    async fn part_for_seek(
        &self,
        number: ObjectId,
        size: RecordSize,
        range: Range<u64>,
    ) -> Result<DataRecords, FsError> {
        if self.volume.bug() == PlantedBug::SeekIgnoresDirty {
            let part = self.volume.object_records(number, range.start, usize::MAX).await?;
            let committed = part.used.into_iter().flatten();
            let records = committed.filter(|record| range.contains(record)).collect();
            return Ok(DataRecords { records, next: None });
        }
        Ok(self.reads().data_records(number, size, range).await?)
    }

    /// Reads the target of a symbolic link.
    ///
    /// # Errors
    /// `Invalid` if the inode is no symbolic link.
    #[boxed(?Send)]
    pub async fn read_link(&self, number: ObjectId) -> Result<Vec<u8>, FsError> {
        let slot = self.read_lock(number).await?;
        let (_, inode) = slot.used()?;
        if inode.file_type != FileType::SymbolicLink {
            return Err(FsError::Invalid("not a symbolic link"));
        }
        let target = match &inode.area.target {
            Some(target) => short_target(inode, target),
            None => {
                let block = self.reads().record(number, RecordSize::BLOCK, 0).await?;
                long_target(inode, block.as_deref().and_then(<[_]>::first))
            }
        };
        target.ok_or_else(|| FsError::damaged(number, "the target of the symbolic link"))
    }
}
