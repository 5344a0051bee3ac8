//! Reads the parts of a filesystem that damage left readable, for a rescue.
//!
//! Invariants:
//! - damage of one part does not hide the others: each call reports the damage and the readable
//!   parts;
//! - no call changes the filesystem.

use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::{ErrorKind, ObjectId, RecordSize};
use weir_format::files::{
    DirectoryBlock, DirectoryContent, EntryList, FileType, Inode, InodeState,
};

use crate::attributes::Attributes;
use crate::directory::Entry;
use crate::error::FsError;
use crate::filesystem::list::ListedEntry;
use crate::filesystem::state::Filesystem;
use crate::layout::{FIRST, ROOT};

/// Maximum number of records that one call of [`Filesystem::readable_data`] covers.
const RECORDS_AT_ONCE: usize = 1024;

/// Inodes of clients in a part of a filesystem.
#[derive(Clone, Debug, Default)]
pub struct ReadableInodes {
    /// Readable inodes with a name, by ascending number.
    pub inodes: Vec<Attributes>,
    /// Numbers of inodes that are or may be unreadable.
    pub unreadable: Vec<Range<u64>>,
    /// First number after this part; `None` at the end.
    pub next: Option<u64>,
}

/// Readable entries of a directory.
#[derive(Clone, Debug, Default)]
pub struct ReadableEntries {
    /// Entries in no particular order.
    pub entries: Vec<ListedEntry>,
    /// Description of the damage of the directory, if any.
    pub damage: Option<String>,
}

/// Data in a part of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadableData {
    /// Ranges of bytes with data, ascending. A read of such a range may still find damage.
    pub data: Vec<Range<u64>>,
    /// Ranges of bytes below unreadable nodes, ascending.
    pub unreadable: Vec<Range<u64>>,
    /// First byte after this part; `None` at the end.
    pub next: Option<u64>,
    /// Size of a record: damage of a record hides all its bytes.
    pub record_bytes: u64,
}

impl FsError {
    /// True if the error means that stored data is damaged.
    pub fn is_damage(&self) -> bool {
        match self {
            Self::Damaged { .. } => true,
            Self::Dataset(error) => error.kind() == ErrorKind::Data,
            _ => false,
        }
    }
}

impl Filesystem {
    /// Lists the inodes of clients from the number `first` on.
    ///
    /// # Errors
    /// The errors of the engine, except damage.
    #[boxed(?Send)]
    pub async fn readable_inodes(&self, first: u64) -> Result<ReadableInodes, FsError> {
        let part = self.volume.objects_in_use(first).await?;
        let mut found =
            ReadableInodes { inodes: Vec::new(), unreadable: part.unreadable, next: part.next };
        for number in part.used.into_iter().flatten().map(ObjectId) {
            if number != ROOT && number < FIRST {
                continue;
            }
            match self.reads().inode(number).await {
                Ok(Some((_, inode))) if inode.state == InodeState::Named => {
                    found.inodes.push(Attributes::of(number, &inode));
                }
                Ok(_) => {}
                Err(error) if error.is_damage() => found.unreadable.push(number.0..number.0 + 1),
                Err(error) => return Err(error),
            }
        }
        Ok(found)
    }

    /// Reads the entries in all readable blocks of a directory, even if the tree above these blocks
    /// is damaged.
    ///
    /// # Errors
    /// `Stale`, `NotDirectory`; the errors of the engine, except damage.
    #[boxed(?Send)]
    pub async fn readable_entries(&self, directory: ObjectId) -> Result<ReadableEntries, FsError> {
        let (_, inode) = self.reads().inode(directory).await?.ok_or(FsError::Stale)?;
        if inode.file_type != FileType::Directory {
            return Err(FsError::NotDirectory);
        }
        let mut found = ReadableEntries::default();
        if inode.size == 0 {
            match EntryList::parse(inode.area.entries.as_deref().unwrap_or_default()) {
                Ok(list) => found.entries.extend(list.from(0).map(Entry::from)),
                Err(error) => found.damage = Some(error.to_string()),
            }
            return Ok(found);
        }
        let mut next = Some(0);
        while let Some(first) = next {
            let part = self.volume.object_records(directory, first, RECORDS_AT_ONCE).await?;
            if !part.unreadable.is_empty() {
                found.damage = Some("a node of its object is unreadable".to_owned());
            }
            for record in part.used.into_iter().flatten() {
                self.add_entries(&mut found, directory, record).await?;
            }
            next = part.next;
        }
        if found.damage.is_none() && found.entries.len() as u64 != inode.device_or_entries {
            let (has, expected) = (found.entries.len(), inode.device_or_entries);
            found.damage = Some(format!("it has {has} entries instead of {expected}"));
        }
        Ok(found)
    }

    /// Adds the entries of one block of a directory.
    async fn add_entries(
        &self,
        found: &mut ReadableEntries,
        directory: ObjectId,
        record: u64,
    ) -> Result<(), FsError> {
        let read = self.reads().record(directory, RecordSize::BLOCK, record).await;
        let blocks = match read.map_err(FsError::from) {
            Ok(blocks) => blocks.unwrap_or_default(),
            Err(error) if error.is_damage() => {
                found.damage = Some(format!("block {record} is unreadable: {error}"));
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let Some(block) = blocks.first() else { return Ok(()) };
        match DirectoryBlock::decode(block) {
            Ok(DirectoryBlock { content: DirectoryContent::Leaf(list), .. }) => {
                found.entries.extend(list.from(0).map(Entry::from));
            }
            Ok(_) => {}
            Err(error) => found.damage = Some(format!("block {record} is damaged: {error}")),
        }
        Ok(())
    }

    /// Finds the data of a file from an offset on.
    ///
    /// # Errors
    /// `Stale`, `Invalid` for an inode that is no file; the errors of the engine, except damage of
    /// the file's nodes.
    #[boxed(?Send)]
    pub async fn readable_data(
        &self,
        number: ObjectId,
        offset: u64,
    ) -> Result<ReadableData, FsError> {
        let (size, inode) = self.reads().inode(number).await?.ok_or(FsError::Stale)?;
        if inode.file_type != FileType::Regular {
            return Err(FsError::Invalid("not a file"));
        }
        let bytes = size.bytes() as u64;
        if inode.area.data.is_some() {
            let data = (offset < inode.size).then_some(offset..inode.size).into_iter().collect();
            return Ok(ReadableData { data, record_bytes: bytes, ..ReadableData::default() });
        }
        let part = self.volume.object_records(number, offset / bytes, RECORDS_AT_ONCE).await?;
        let within = |records: Range<u64>| in_file(&inode, bytes, records, offset);
        Ok(ReadableData {
            data: part.used.into_iter().filter_map(within).collect(),
            unreadable: part.unreadable.into_iter().filter_map(within).collect(),
            next: part.next.map(|next| next.saturating_mul(bytes)).filter(|at| *at < inode.size),
            record_bytes: bytes,
        })
    }
}

/// The bytes of records from an offset to the end of a file.
fn in_file(inode: &Inode, bytes: u64, records: Range<u64>, offset: u64) -> Option<Range<u64>> {
    let start = records.start.saturating_mul(bytes).max(offset);
    let end = records.end.saturating_mul(bytes).min(inode.size);
    (start < end).then_some(start..end)
}
