//! Operations on a volume that only SCSI needs, such as block clones.
//!
//! Reads and writes of the volume are in `volume_export`, SCSI commands are in weir-scsi.
//!
//! Invariant: see the trait [`Medium`]; this file adds none.

use std::any::Any;

use weir_block::ExportFuture;
use weir_dataset::DatasetError;
use weir_scsi::Medium;

use crate::volume_export::{OpenVolume, refused};

impl Medium for OpenVolume {
    fn write_same<'a>(
        &'a self,
        offset: u64,
        len_bytes: u64,
        pattern: &'a [u8],
    ) -> ExportFuture<'a, ()> {
        Box::pin(async move {
            let done = self.engine.write_same(&self.volume, offset, len_bytes, pattern).await;
            done.map_err(refused)
        })
    }

    fn clone_from<'a>(
        &'a self,
        source: &'a dyn Medium,
        from: u64,
        to: u64,
        len_bytes: u64,
    ) -> ExportFuture<'a, bool> {
        Box::pin(async move {
            let Some(source) = source.as_any().downcast_ref::<Self>() else { return Ok(false) };
            let done =
                self.engine.clone_range(&source.volume, from, &self.volume, to, len_bytes).await;
            match done {
                Ok(()) => Ok(true),
                // The source is in another pool or has another record size, or the range is not a
                // number of complete records.
                Err(DatasetError::Unfit { .. }) => Ok(false),
                Err(error) => Err(refused(error)),
            }
        })
    }

    fn room_bytes(&self) -> u64 {
        self.volume.available_bytes()
    }

    fn mapped_bytes(&self) -> u64 {
        self.volume.info().used_bytes
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}
