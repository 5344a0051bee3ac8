//! Replays log records of datasets with many objects during an import: passes each record to the
//! layer above the engine.
//!
//! `replay` reads the batches and replays the records of volumes.
//!
//! Invariants:
//! - if the log has records of a dataset whose layer this program lacks, the import fails before it
//!   writes;
//! - if the layer cannot apply a record, the import fails. A forced import drops the record.

use std::ops::Range;

use futures_util::future::LocalBoxFuture;
use weir_base::hash::HashMap;
use weir_base::{DatasetId, Lsn, ObjectId, RecordSize};
use weir_block::Block;
use weir_format::log::LogOp;
use weir_format::{DatasetRecord, ObjectTable};
use weir_pool::{Imported, PlantedBug};

use crate::error::DatasetError;
use crate::objects::object_set::{ObjectChange, SlotBody};
use crate::state::volume::Volume;
use crate::volume::object_data::DataRecords;
use crate::volume::objects::By;

/// A layer above datasets with many objects, such as a filesystem.
pub trait ObjectLayer {
    /// True if the layer can replay log records of a dataset that has these bytes in its directory
    /// entry.
    fn handles(&self, layer: &[u8; ObjectTable::LAYER_BYTES]) -> bool;

    /// Applies a log record. Records of a dataset come in the order in which they were logged.
    /// After a crash during the replay, the next import repeats the replay from the same committed
    /// txg.
    ///
    /// # Errors
    /// An error fails the import, unless the import is forced. The record may be malicious: the
    /// layer then returns an error or ignores the record, and never panics.
    fn replay<'a>(
        &'a self,
        dataset: ReplayTarget<'a>,
        record: LoggedObjectRecord<'a>,
    ) -> LocalBoxFuture<'a, Result<(), DatasetError>>;
}

/// A log record that [`ObjectLayer::replay`] applies.
#[derive(Clone, Copy, Debug)]
pub struct LoggedObjectRecord<'a> {
    /// Position of the change in the order of acknowledgement.
    pub lsn: Lsn,
    /// The changed object, as in `ObjectRecord`.
    pub object: ObjectId,
    /// Type of the record.
    pub kind: u8,
    /// Payload, with the blocks of the record at its end.
    pub payload: &'a [u8],
}

/// Dataset into which log records are replayed.
#[derive(Clone, Copy)]
pub struct ReplayTarget<'a>(&'a Volume);

impl ReplayTarget<'_> {
    /// Applies changes to objects. Unlike [`Volume::change_objects`] it checks neither quota nor
    /// free space, because the calls of the clients reserved the space before the crash.
    ///
    /// # Errors
    /// `Data` if the slot of one of the objects cannot be read.
    pub async fn change(&self, changes: Vec<ObjectChange>) -> Result<(), DatasetError> {
        self.0.apply_changes(changes, By::Replay).await
    }

    /// Reads some blocks of a record, as [`Volume::read_object_parts`].
    ///
    /// # Errors
    /// As [`Volume::read_object_parts`].
    pub async fn read(
        &self,
        object: ObjectId,
        size: RecordSize,
        place: (u64, Range<u64>),
    ) -> Result<Option<Vec<Block>>, DatasetError> {
        self.0.read_object_parts(object, size, place).await
    }

    /// Finds records with data, as [`Volume::object_data`].
    ///
    /// # Errors
    /// As [`Volume::object_data`].
    pub async fn records(
        &self,
        object: ObjectId,
        size: RecordSize,
        records: Range<u64>,
    ) -> Result<DataRecords, DatasetError> {
        self.0.object_data(object, size, records).await
    }

    /// The planted bug, if any.
    pub fn bug(&self) -> PlantedBug {
        self.0.core.pool.bug()
    }

    /// Full name of the dataset, for errors.
    pub fn name(&self) -> String {
        self.0.full_name(&self.0.state.lock())
    }

    /// Bytes of the layer in the directory entry of the dataset.
    ///
    /// # Panics
    /// The dataset is a volume. The engine replays no record of a layer into a volume.
    pub fn layer(&self) -> [u8; ObjectTable::LAYER_BYTES] {
        self.0.object_layer().expect("the dataset has objects")
    }

    /// Reads a slot, as [`Volume::object_slot`].
    ///
    /// # Errors
    /// As [`Volume::object_slot`].
    pub async fn slot(
        &self,
        object: ObjectId,
    ) -> Result<Option<(RecordSize, Box<SlotBody>)>, DatasetError> {
        self.0.object_slot(object).await
    }
}

/// Layer of programs that use volumes only. It replays no record.
pub(crate) struct NoLayer;

impl ObjectLayer for NoLayer {
    fn handles(&self, _: &[u8; ObjectTable::LAYER_BYTES]) -> bool {
        false
    }

    fn replay<'a>(
        &'a self,
        dataset: ReplayTarget<'a>,
        _: LoggedObjectRecord<'a>,
    ) -> LocalBoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move { Err(no_layer(dataset.0.full_name(&dataset.0.state.lock()))) })
    }
}

fn no_layer(name: String) -> DatasetError {
    let why = "has flushed changes that only the version of weir that wrote them can replay";
    DatasetError::Unfit { name, why: format!("{why}; import the pool with that version") }
}

/// Refuses an import that has to replay records of a dataset whose layer this program lacks.
pub(crate) fn refuse_unknown_layers(
    imported: &Imported,
    records: &[DatasetRecord],
    layer: &dyn ObjectLayer,
) -> Result<(), DatasetError> {
    let datasets: HashMap<DatasetId, &DatasetRecord> =
        records.iter().map(|record| (record.id, record)).collect();
    let logged = imported.records_to_replay();
    for record in logged.filter(|record| matches!(record.op, LogOp::Object { .. })) {
        let Some(dataset) = datasets.get(&record.dataset) else { continue };
        let handles = |table: &ObjectTable| layer.handles(&table.layer);
        if !dataset.objects.as_ref().is_some_and(handles) {
            return Err(no_layer(format!("{}/{}", imported.pool.name(), dataset.name)));
        }
    }
    Ok(())
}

/// Replays a record of a dataset with many objects. With `force`, a record that the layer cannot
/// apply is dropped.
pub(crate) async fn replay_object_record(
    volume: &Volume,
    record: LoggedObjectRecord<'_>,
    (layer, force): (&dyn ObjectLayer, bool),
) -> Result<(), DatasetError> {
    let (exists, name) = {
        let state = volume.state.lock();
        (state.objects.is_some() && !state.is_destroyed(), volume.full_name(&state))
    };
    if !exists {
        tracing::debug!(dataset = volume.id.0, "record not replayed: the dataset is destroyed");
        return Ok(());
    }
    match layer.replay(ReplayTarget(volume), record).await {
        Err(error) if force => {
            tracing::error!(%error, name, object = record.object.0, "a flushed change was dropped");
            Ok(())
        }
        done => done,
    }
}
