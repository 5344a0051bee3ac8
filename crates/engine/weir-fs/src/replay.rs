//! Replays log records of filesystems during an import.
//!
//! Invariant: a record that does not fit the filesystem is an error, and never a panic.

use futures_util::future::LocalBoxFuture;
use weir_base::ObjectId;
use weir_dataset::{DatasetError, LoggedObjectRecord, ObjectLayer, ReplayTarget};
use weir_format::ObjectTable;
use weir_format::files::{FileRecord, Layout};

use crate::directory::NameHash;
use crate::draft::node::Draft;
use crate::draft::reads::Reads;
use crate::error::FsError;

/// Replays the log records of filesystems.
#[derive(Clone, Copy, Debug, Default)]
pub struct FilesystemLayer;

impl ObjectLayer for FilesystemLayer {
    fn handles(&self, layer: &[u8; ObjectTable::LAYER_BYTES]) -> bool {
        Layout::decode(layer).is_some()
    }

    fn replay<'a>(
        &'a self,
        dataset: ReplayTarget<'a>,
        record: LoggedObjectRecord<'a>,
    ) -> LocalBoxFuture<'a, Result<(), DatasetError>> {
        Box::pin(async move {
            match replay(dataset, record).await {
                Ok(()) => Ok(()),
                Err(FsError::Dataset(error)) => Err(error),
                Err(error) => {
                    let LoggedObjectRecord { object, kind, .. } = record;
                    let why = format!(
                        "has a flushed change of inode {} (type {kind}) that does not fit: {error}",
                        object.0
                    );
                    Err(DatasetError::Unfit { name: dataset.name(), why })
                }
            }
        })
    }
}

async fn replay(target: ReplayTarget<'_>, record: LoggedObjectRecord<'_>) -> Result<(), FsError> {
    let LoggedObjectRecord { object, kind, payload, .. } = record;
    let layout = Layout::decode(&target.layer());
    let layout = layout.ok_or_else(|| FsError::damaged(ObjectId(0), "unknown layout"))?;
    let (stamp, record) =
        FileRecord::decode(kind, payload).map_err(|error| FsError::of_inode(object, &error))?;
    let hash = NameHash::of(&layout, target.bug());
    let mut draft = Draft::new(Reads::Replay(target), (&hash, layout), stamp);
    draft.apply(object, &record).await?;
    let usage = draft.usage_changes();
    draft.update_usage(&usage, false).await?;
    Ok(target.change(draft.take_changes()).await?)
}
