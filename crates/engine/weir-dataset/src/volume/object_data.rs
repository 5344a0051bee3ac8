//! Finds the records with data of an object.
//!
//! `objects` reads records; `object_lists` lists committed objects and records for a rescue.
//!
//! Invariant: a list agrees with [`Volume::read_object`]: a record is in the list if a read returns
//! data.

use std::collections::BTreeSet;
use std::ops::Range;

use async_recursion::async_recursion as boxed;
use weir_base::property::AtimePolicy;
use weir_base::{ObjectId, RecordSize, Txg};
use weir_format::{BlockPtr, ObjectTable, TreeRoot};
use weir_pool::{PlantedBug, Tree};

use crate::error::DatasetError;
use crate::objects::object_set::{DirtyObject, ObjectSet};
use crate::state::volume::Volume;
use crate::volume::read::restarted;

/// Maximum number of committed records that one call reads from the tree.
const RECORDS_AT_ONCE: usize = 1024;

/// Records with data in a part of a range.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DataRecords {
    /// Numbers of the records, ascending.
    pub records: BTreeSet<u64>,
    /// First record after this part; `None` at the end of the range.
    pub next: Option<u64>,
}

/// Uncommitted changes of one txg in a range of records.
struct Overlay {
    data: Vec<u64>,
    holes: Vec<Range<u64>>,
}

impl Overlay {
    fn of(object: &DirtyObject, size: RecordSize, records: &Range<u64>) -> Self {
        let blocks = size.blocks_of(records);
        let data = object.table.data_within(&blocks);
        let holes = object.table.holes_within(blocks);
        let written = data.into_iter().map(|block| size.record_of(block));
        let referenced = object.references.range(records.clone()).map(|(record, _)| *record);
        Self {
            data: written.chain(referenced).collect(),
            holes: holes.map(|range| size.touched(&range)).collect(),
        }
    }

    /// Overlays of an object, the oldest first.
    fn all(set: &ObjectSet, object: ObjectId, size: RecordSize, records: &Range<u64>) -> Vec<Self> {
        let changes = set.syncing.as_deref().into_iter().chain([&set.open]);
        let changes = changes.filter_map(|changes| changes.objects.get(&object));
        changes.map(|changes| Self::of(changes, size, records)).collect()
    }
}

impl Volume {
    /// Finds the records with data of an object with records of `size`, in a range of records.
    ///
    /// # Errors
    /// `Data` if the slot or a node is damaged on every leg.
    #[boxed(?Send)]
    pub async fn object_data(
        &self,
        object: ObjectId,
        size: RecordSize,
        records: Range<u64>,
    ) -> Result<DataRecords, DatasetError> {
        let records = records.start..records.end.min(TreeRoot::BLOCKS_MAX);
        let found = restarted(async || {
            let (table, overlays) = {
                let state = self.state.lock();
                self.check(&state, 0, 0)?;
                let Some(set) = &state.objects else { return Err(self.no_objects(&state)) };
                (state.record.root, Overlay::all(set, object, size, &records))
            };
            let mut found = BTreeSet::new();
            let mut visit = |record, _: BlockPtr| {
                found.insert(record);
                found.len() < RECORDS_AT_ONCE
            };
            let root = self.core.pool.object_root(table, object).await?;
            Tree::new(&self.core.pool, root).scan(records.clone(), &mut visit).await?;
            let is_full = found.len() >= RECORDS_AT_ONCE;
            let next = found.last().filter(|_| is_full).map(|last| last + 1);
            let part = records.start..next.unwrap_or(records.end);
            for Overlay { data, holes } in overlays {
                for hole in holes {
                    let covered: Vec<u64> = found.range(hole).copied().collect();
                    covered.iter().for_each(|record| _ = found.remove(record));
                }
                found.extend(data.into_iter().filter(|record| part.contains(record)));
            }
            Ok(DataRecords { records: found, next: next.filter(|next| *next < records.end) })
        });
        self.noted_object(object, records.start..records.start, found.await).await
    }

    /// The planted bug, if any.
    pub fn bug(&self) -> PlantedBug {
        self.core.pool.bug()
    }

    /// The open txg: changes join this txg or a later one.
    pub fn open_txg(&self) -> Txg {
        self.core.open_txg()
    }

    /// Number for changes that join the open txg. Unlike [`Self::open_txg`], it exceeds the numbers
    /// of all earlier txgs, including txgs that a crash lost.
    pub fn change_txg(&self) -> Txg {
        // A crash loses at most two txgs.
        const LOST_TXGS_MAX: u64 = 4;
        Txg(self.core.open_txg().0 + LOST_TXGS_MAX * self.core.pool.import_number())
    }

    /// Rule by which reads set the time of the last read of a file.
    pub fn atime_policy(&self) -> AtimePolicy {
        self.core.atime_policy(&self.state.lock().record.properties)
    }

    /// Bytes of the layer above the engine; `None` for a volume.
    pub fn object_layer(&self) -> Option<[u8; ObjectTable::LAYER_BYTES]> {
        self.state.lock().record.objects.map(|table| table.layer)
    }
}
