//! Reads of objects, for operations of clients and for replays.
//!
//! Invariant: a decoded inode has a size that fits a signed 64-bit number; if the content is in the
//! inode, the size is the size of the content.

use std::ops::Range;

use weir_base::{ObjectId, RecordSize};
use weir_block::Block;
use weir_dataset::{DataRecords, DatasetError, ObjectInMemory, ReplayTarget, Volume};
use weir_format::files::Inode;
use weir_pool::PlantedBug;

use crate::error::FsError;
use crate::layout::FILE_BYTES_MAX;

/// Source of the objects of a filesystem.
#[derive(Clone, Copy)]
pub(crate) enum Reads<'a> {
    /// An operation of a client.
    Client(&'a Volume),
    /// A replay during an import.
    Replay(ReplayTarget<'a>),
}

impl Reads<'_> {
    /// The planted bug, if any.
    pub(crate) fn bug(&self) -> PlantedBug {
        match self {
            Self::Client(volume) => volume.bug(),
            Self::Replay(target) => target.bug(),
        }
    }

    /// Reads an inode and its record size; `None` for an unused number.
    pub(crate) async fn inode(
        &self,
        number: ObjectId,
    ) -> Result<Option<(RecordSize, Inode)>, FsError> {
        let slot = match self {
            Self::Client(volume) => volume.object_slot(number).await?,
            Self::Replay(target) => target.slot(number).await?,
        };
        let Some((size, body)) = slot else { return Ok(None) };
        let inode = Inode::decode(&body).map_err(|error| FsError::of_inode(number, &error))?;
        let Some(inode) = inode else { return Ok(None) };
        if inode.size > FILE_BYTES_MAX {
            return Err(FsError::damaged(number, "its size is too large"));
        }
        if inode.area.data.as_ref().is_some_and(|data| data.len() as u64 != inode.size) {
            return Err(FsError::damaged(number, "its size is not that of its content"));
        }
        Ok(Some((size, inode)))
    }

    /// Reads a record; `None` is a hole.
    pub(crate) async fn record(
        &self,
        object: ObjectId,
        size: RecordSize,
        record: u64,
    ) -> Result<Option<Vec<Block>>, DatasetError> {
        let mut blocks = Vec::new();
        let is_data = self.parts(object, size, (record, 0..size.blocks()), &mut blocks).await?;
        Ok(is_data.then_some(blocks))
    }

    /// Appends some blocks of a record to `blocks`. Returns false, and appends nothing, if the
    /// record is a hole.
    pub(crate) async fn parts(
        &self,
        object: ObjectId,
        size: RecordSize,
        (record, parts): (u64, Range<u64>),
        blocks: &mut Vec<Block>,
    ) -> Result<bool, DatasetError> {
        let read = match self {
            Self::Client(volume) => {
                match volume.try_read_object(object, size, (record, parts.clone()), blocks)? {
                    ObjectInMemory::Data => return Ok(true),
                    ObjectInMemory::Hole => return Ok(false),
                    ObjectInMemory::No => {}
                }
                volume.read_object_parts(object, size, (record, parts)).await?
            }
            Self::Replay(target) => target.read(object, size, (record, parts)).await?,
        };
        Ok(read.map(|read| blocks.extend(read)).is_some())
    }

    /// Finds the records with data in a part of a range.
    pub(crate) async fn data_records(
        &self,
        object: ObjectId,
        size: RecordSize,
        records: Range<u64>,
    ) -> Result<DataRecords, DatasetError> {
        match self {
            Self::Client(volume) => {
                // A write usually touches one record.
                if records.start + 1 == records.end
                    && let Some(is_data) = volume.try_is_data(object, size, records.start)?
                {
                    let found = is_data.then_some(records.start);
                    return Ok(DataRecords { records: found.into_iter().collect(), next: None });
                }
                volume.object_data(object, size, records).await
            }
            Self::Replay(target) => target.records(object, size, records).await,
        }
    }
}
