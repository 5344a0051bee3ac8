//! Content of files.
//!
//! A file of at most [`INLINE_BYTES_MAX`] bytes has its content in the inode. A larger file has
//! records. While a file has only one record, its record size is the smallest power of two that
//! holds the file. A file that outgrows the maximum record size has records of this maximum size.
//!
//! Invariants:
//! - bytes after the end of the file are zero in its last block, and all records after the last
//!   one are holes;
//! - `blocks` of the inode is the number of blocks up to the end of the file in records with data.

use std::collections::BTreeSet;
use std::ops::Range;

use weir_base::{BLOCK_BYTES, ObjectId, RecordSize};
use weir_block::{Block, BlockMut};
use weir_codec::compress::is_zero;
use weir_dataset::{RecordCopy, ZERO_BLOCK};
use weir_format::TreeRoot;
use weir_format::files::{Area, FileType, Inode};

use crate::draft::node::{Draft, records_in};
use crate::error::FsError;
use crate::layout::{FILE_BYTES_MAX, INLINE_BYTES_MAX};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Number of blocks of a record up to the end of a file of `bytes` bytes.
pub(crate) fn blocks_of(bytes: u64, size: RecordSize, record: u64) -> u64 {
    let start = record.saturating_mul(size.bytes() as u64);
    bytes.saturating_sub(start).min(size.bytes() as u64).div_ceil(BLOCK)
}

/// Content of a record after `data` was written at byte `from` of the record. `old`: content
/// before; `None` is a hole. Blocks without new bytes stay shared.
fn patched(old: Option<Vec<Block>>, size: RecordSize, from: usize, data: &[u8]) -> Vec<Block> {
    let (whole, rest) = data.as_chunks();
    if rest.is_empty() && from.is_multiple_of(BLOCK_BYTES) {
        return replaced(old, size, from / BLOCK_BYTES, whole);
    }
    let mut blocks = old.unwrap_or_default();
    blocks.resize(size.blocks() as usize, ZERO_BLOCK.clone());
    let to = from + data.len();
    let touched = from / BLOCK_BYTES..to.div_ceil(BLOCK_BYTES);
    for (part, block) in touched.clone().zip(blocks.get_mut(touched).into_iter().flatten()) {
        let (start, end) = (part * BLOCK_BYTES, (part + 1) * BLOCK_BYTES);
        let (first, last) = (from.max(start), to.min(end));
        let new = data.get(first - from..last - from).expect("a part of the data");
        *block = match new.try_into() {
            Ok(whole) => Block::copy_of(whole),
            Err(_) => {
                let mut changed = BlockMut::copy_of(block);
                let place = changed.get_mut(first - start..last - start);
                place.expect("inside the block").copy_from_slice(new);
                changed.freeze()
            }
        };
    }
    blocks
}

/// As [`patched`], for whole blocks from the block number `first` of the record on.
fn replaced(
    old: Option<Vec<Block>>,
    size: RecordSize,
    first: usize,
    contents: &[[u8; BLOCK_BYTES]],
) -> Vec<Block> {
    let (count, end) = (size.blocks() as usize, first + contents.len());
    assert!(end <= count, "blocks {first}..{end} of {count}");
    let new = Block::copies_of(contents);
    match old {
        Some(mut blocks) => {
            blocks.resize(count, ZERO_BLOCK.clone());
            blocks.splice(first..end, new);
            blocks
        }
        None if new.len() == count => new,
        None => {
            let zeros = |count| std::iter::repeat_n(&*ZERO_BLOCK, count).cloned();
            zeros(first).chain(new).chain(zeros(count - end)).collect()
        }
    }
}

/// Checks that an inode is a file.
///
/// # Errors
/// `IsDirectory`, or `Invalid` for other inodes that have no content.
pub(crate) fn check_file(inode: &Inode) -> Result<(), FsError> {
    match inode.file_type {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(FsError::IsDirectory),
        _ => Err(FsError::Invalid("only files have content")),
    }
}

/// Checks that the records of a file can hold `bytes` bytes.
///
/// # Errors
/// `TooLarge`.
fn check_size(size: RecordSize, bytes: u64) -> Result<(), FsError> {
    let fits = records_in(size, bytes) * size.bytes() as u64 >= bytes;
    if fits { Ok(()) } else { Err(FsError::TooLarge) }
}

/// Sets the size of a file with its content in the inode. Added bytes are zero.
fn resize_inline(inode: &mut Inode, bytes: u64) {
    let mut content = inode.area.data.take().unwrap_or_default().into_vec();
    content.resize(bytes as usize, 0);
    inode.area.data = (bytes > 0).then(|| content.into());
    inode.size = bytes;
}

/// Records that an operation changes, with their blocks before the operation.
struct Before {
    data: BTreeSet<u64>,
    blocks: u64,
    /// Number of blocks of the records that become holes. A large file has too many for a list.
    gone: u64,
}

impl Draft<'_> {
    /// Writes data to a file.
    ///
    /// # Errors
    /// `TooLarge`, or the errors of reads.
    pub(crate) async fn write(
        &mut self,
        file: ObjectId,
        offset: u64,
        data: &[u8],
    ) -> Result<(), FsError> {
        let end = offset.checked_add(data.len() as u64).ok_or(FsError::TooLarge)?;
        let old = self.file_size(file).await?;
        let new = old.max(end);
        if new > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        if self.stays_inline(file, new).await? {
            let inode = &mut self.node(file).await?.inode;
            resize_inline(inode, new);
            let content = inode.area.data.as_deref_mut().unwrap_or_default();
            let place = content.get_mut(offset as usize..end as usize).expect("resized");
            place.copy_from_slice(data);
            return Ok(());
        }
        self.make_room(file, new).await?;
        let size = self.node(file).await?.size;
        let bytes = size.bytes() as u64;
        check_size(size, new)?;
        let touched = offset / bytes..end.div_ceil(bytes);
        let before = self.before(file, (touched.clone(), 0..0), (old, new)).await?;
        for record in touched {
            let start = record * bytes;
            let (from, to) = (offset.max(start), end.min(start + bytes));
            let part = data.get((from - offset) as usize..(to - offset) as usize);
            let part = part.expect("a part of the data");
            // Bytes after the end of the file are zero, so the old content of a record matters only
            // up to this end.
            let live_end = old.clamp(start, start + bytes);
            let is_covered = from == start && to >= live_end;
            let content = if is_covered { None } else { self.record(file, record).await? };
            let blocks = patched(content, size, (from - start) as usize, part);
            // The new bytes are in the processor's cache; the other blocks usually are not.
            let is_data = !is_zero(part) || blocks.iter().any(|block| !is_zero(&block[..]));
            self.put_record(file, record, blocks, is_data).await?;
        }
        self.count_blocks(file, before, new).await
    }

    /// Makes whole records of a file references to records of `copy.source`, and sets the size of
    /// the file to `new` bytes. No later change of the draft reads these records.
    pub(crate) async fn refer(&mut self, copy: &RecordCopy, new: u64) -> Result<(), FsError> {
        let RecordCopy { source, ref records, object: file, to, size } = *copy;
        check_size(size, new)?;
        let old = self.file_size(file).await?;
        if old == 0 {
            self.empty(file, size).await?;
        }
        let target = to..to + (records.end - records.start);
        let found = self.data_records(source, records.clone()).await?;
        let before = self.before(file, (target.clone(), target.clone()), (old, new)).await?;
        self.punch_records(file, target).await?;
        let found = found.into_iter().map(|record| record - records.start + to);
        self.node(file).await?.set_references(found.collect());
        self.count_blocks(file, before, new).await
    }

    /// Makes a range of a file a hole. Its size does not change.
    pub(crate) async fn punch(
        &mut self,
        file: ObjectId,
        offset: u64,
        bytes: u64,
    ) -> Result<(), FsError> {
        let old = self.file_size(file).await?;
        let end = offset.saturating_add(bytes).min(old);
        if offset >= end {
            return Ok(());
        }
        if self.stays_inline(file, old).await? {
            let data = &mut self.node(file).await?.inode.area.data;
            let range = offset as usize..end as usize;
            if let Some(place) = data.as_deref_mut().and_then(|data| data.get_mut(range)) {
                place.fill(0);
            }
            return Ok(());
        }
        let size = self.node(file).await?.size;
        let bytes = size.bytes() as u64;
        let touched = offset / bytes..end.div_ceil(bytes);
        // A range up to the end of the file covers its last record.
        let inner_end = if end == old { touched.end } else { end / bytes };
        let inner = offset.div_ceil(bytes)..inner_end;
        let before = self.before(file, (touched.clone(), inner.clone()), (old, old)).await?;
        for record in [touched.start, touched.end - 1] {
            let start = record * bytes;
            let (from, to) = (offset.max(start), end.min(start + bytes));
            if !inner.contains(&record) && from < to {
                self.clear(file, record, (from - start) as usize..(to - start) as usize).await?;
            }
        }
        if !inner.is_empty() {
            self.punch_records(file, inner).await?;
        }
        self.count_blocks(file, before, old).await
    }

    /// Sets the size of a file. Added bytes are zero.
    pub(crate) async fn set_size(&mut self, file: ObjectId, new: u64) -> Result<(), FsError> {
        let old = self.file_size(file).await?;
        if new > FILE_BYTES_MAX {
            return Err(FsError::TooLarge);
        }
        if new == old {
            return Ok(());
        }
        if self.stays_inline(file, new).await? {
            resize_inline(&mut self.node(file).await?.inode, new);
            return Ok(());
        }
        if new == 0 {
            self.empty(file, RecordSize::BLOCK).await?;
            let inode = &mut self.node(file).await?.inode;
            (inode.size, inode.blocks, inode.area.data) = (0, 0, None);
            return Ok(());
        }
        self.make_room(file, new).await?;
        let size = self.node(file).await?.size;
        let bytes = size.bytes() as u64;
        check_size(size, new)?;
        let gone = if new < old { new / bytes..records_in(size, old) } else { 0..0 };
        let holes = if gone.is_empty() { 0..0 } else { new.div_ceil(bytes)..gone.end };
        let before = self.before(file, (gone.clone(), holes), (old, new)).await?;
        if !gone.is_empty() {
            if !new.is_multiple_of(bytes) {
                let end = (old - gone.start * bytes).min(bytes) as usize;
                self.clear(file, gone.start, (new % bytes) as usize..end).await?;
            }
            self.punch_records(file, new.div_ceil(bytes)..TreeRoot::BLOCKS_MAX).await?;
        }
        self.count_blocks(file, before, new).await
    }

    /// Writes the target of a symbolic link that is too long for the inode.
    pub(crate) async fn set_long_target(
        &mut self,
        link: ObjectId,
        target: &[u8],
    ) -> Result<(), FsError> {
        let inode = &mut self.node(link).await?.inode;
        let inline = inode.area.target.as_ref().map_or(0, |target| target.len());
        let is_link = inode.file_type == FileType::SymbolicLink;
        let (has_long, bytes) = (!target.is_empty(), inline.max(target.len()) as u64);
        if is_link && (has_long && inline > 0 || bytes == 0 || bytes != inode.size)
            || !is_link && (has_long || inline > 0)
        {
            return Err(FsError::damaged(link, "a new inode has a wrong target"));
        }
        if has_long {
            inode.blocks = 1;
            let blocks = patched(None, RecordSize::BLOCK, 0, target);
            self.set_record(link, 0, blocks).await?;
        }
        Ok(())
    }

    /// Size of a file.
    ///
    /// # Errors
    /// `IsDirectory`, or `Invalid` for other inodes that have no content.
    async fn file_size(&mut self, file: ObjectId) -> Result<u64, FsError> {
        let inode = &self.node(file).await?.inode;
        check_file(inode)?;
        Ok(inode.size)
    }

    /// True if the content is in the inode and also fits there with a size of `new` bytes.
    async fn stays_inline(&mut self, file: ObjectId, new: u64) -> Result<bool, FsError> {
        let inode = &self.node(file).await?.inode;
        let is_inline = inode.area.data.is_some() || inode.size == 0;
        let used = inode.area.data.as_ref().map_or(0, |data| data.len());
        let free = Area::BYTES.saturating_sub(inode.area.encoded_bytes() + 3) + used;
        Ok(is_inline && new <= INLINE_BYTES_MAX as u64 && new <= free as u64)
    }

    /// Moves content of the inode to a record, and enlarges the record size of a file with one
    /// record, before the file gets `new` bytes.
    async fn make_room(&mut self, file: ObjectId, new: u64) -> Result<(), FsError> {
        let max = self.layout.record_size;
        let node = self.node(file).await?;
        let (old, size) = (node.inode.size, node.size);
        let is_inline = node.inode.area.data.is_some() || old == 0;
        let has_one_record = old <= size.bytes() as u64;
        let outgrows = has_one_record && new > size.bytes() as u64 && size.bytes() < max.bytes();
        if !(is_inline || outgrows) {
            return Ok(());
        }
        let fits = |size: &RecordSize| size.bytes() as u64 >= new;
        let wanted = RecordSize::all().filter(|size| size.bytes() <= max.bytes()).find(fits);
        let wanted = wanted.unwrap_or(max);
        let content = if is_inline {
            let data = node.inode.area.data.take().unwrap_or_default();
            patched(None, wanted, 0, &data)
        } else {
            let mut blocks = self.record(file, 0).await?.unwrap_or_default();
            blocks.resize(wanted.blocks() as usize, ZERO_BLOCK.clone());
            blocks
        };
        self.empty(file, wanted).await?;
        self.set_record(file, 0, content).await?;
        let is_data = self.record(file, 0).await?.is_some();
        let inode = &mut self.node(file).await?.inode;
        inode.blocks = if is_data { blocks_of(old, wanted, 0) } else { 0 };
        Ok(())
    }

    /// Moves the content of a file from its inode to a record.
    pub(crate) async fn move_out(&mut self, file: ObjectId) -> Result<(), FsError> {
        let size = self.file_size(file).await?;
        self.make_room(file, size).await
    }

    /// Fills a range of bytes of a record with zeros.
    async fn clear(
        &mut self,
        file: ObjectId,
        record: u64,
        range: Range<usize>,
    ) -> Result<(), FsError> {
        let Some(old) = self.record(file, record).await? else { return Ok(()) };
        let size = self.node(file).await?.size;
        let zeros = vec![0; range.len()];
        let blocks = patched(Some(old), size, range.start, &zeros);
        self.set_record(file, record, blocks).await
    }

    /// Finds the records with data among the records that an operation touches, before the
    /// operation. The operation changes the size of the file from `old` to `new`, and makes the
    /// records `holes` holes.
    async fn before(
        &mut self,
        file: ObjectId,
        (touched, holes): (Range<u64>, Range<u64>),
        (old, new): (u64, u64),
    ) -> Result<Before, FsError> {
        let size = self.node(file).await?.size;
        let last = records_in(size, old);
        let clamped = |range: Range<u64>| range.start.min(last)..range.end.min(last);
        let mut gone = 0;
        let count = |record| gone += blocks_of(old, size, record);
        self.visit_data(file, clamped(holes.clone()), count).await?;
        let parts = if holes.is_empty() {
            [touched.clone(), 0..0]
        } else {
            [touched.start..holes.start, holes.end..touched.end]
        };
        let mut data = BTreeSet::new();
        for part in parts {
            data.extend(self.data_records(file, clamped(part)).await?);
        }
        // The number of blocks of the last record depends on the size of the file.
        if old != new && last > 0 && !touched.contains(&(last - 1)) {
            data.extend(self.data_records(file, last - 1..last).await?);
        }
        let blocks = data.iter().map(|record| blocks_of(old, size, *record)).sum();
        Ok(Before { data, blocks, gone })
    }

    /// Sets the size of the file, and the number of its blocks.
    async fn count_blocks(
        &mut self,
        file: ObjectId,
        before: Before,
        new: u64,
    ) -> Result<(), FsError> {
        let node = self.node(file).await?;
        let changed: Vec<(u64, bool)> = node.changed_records().collect();
        let (size, is_hole) = (node.size, |record| node.is_punched(record));
        let mut after = before.data;
        after.retain(|record| !is_hole(*record));
        for (record, is_data) in changed {
            if is_data {
                after.insert(record);
            } else {
                after.remove(&record);
            }
        }
        let blocks: u64 = after.iter().map(|record| blocks_of(new, size, *record)).sum();
        let inode = &mut node.inode;
        // The count of a damaged inode may be wrong.
        let counted = inode.blocks.saturating_add(blocks);
        inode.blocks = counted.saturating_sub(before.blocks + before.gone);
        inode.size = new;
        Ok(())
    }
}
