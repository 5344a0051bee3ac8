//! Creates volumes.
//!
//! `snapshots` creates clones; `streams` creates received volumes.
//!
//! Invariant: a name belongs to one volume.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::limits::VOLUME_BYTES_MAX;
use weir_base::property::{COMPRESSION, DEDUPE};
use weir_base::size::Human;
use weir_base::{BLOCK_BYTES, DatasetId, RecordSize};
use weir_format::files::Layout;
use weir_format::{
    Compression, DatasetKind, DatasetRecord, DatasetState, Descent, ObjectTable, Properties,
    TreeRoot,
};

use crate::error::DatasetError;
use crate::objects::record::VolumeSize;
use crate::properties::change::{PropertyChange, PropertyTarget};
use crate::state::engine::{Engine, RECORDS_OF_SEGMENT, VolumeSpec};
use crate::state::outcome::Outcome;
use crate::state::volume::Volume;

impl Engine {
    pub(crate) fn check_size(&self, name: &str, size: VolumeSize) -> Result<(), DatasetError> {
        let why = match size.bytes {
            0 => "a volume has at least one block of 4096 bytes",
            VOLUME_BYTES_MAX.. if size.bytes > VOLUME_BYTES_MAX => "the largest volume is 16 TiB",
            bytes if !bytes.is_multiple_of(BLOCK_BYTES as u64) => "not a multiple of 4096",
            bytes if !bytes.is_multiple_of(size.record.bytes() as u64) => {
                "not a multiple of the record size"
            }
            _ => return Ok(()),
        };
        Err(DatasetError::Size { name: self.full_name(name), size: size.bytes, why })
    }

    /// Refuses a record size at which much of each segment would stay unused after its last record.
    pub(crate) fn check_record(&self, name: &str, size: RecordSize) -> Result<(), DatasetError> {
        let fits = |size: &RecordSize| {
            size.is_block()
                || size.bytes() as u64 * RECORDS_OF_SEGMENT <= self.pool().segment_bytes()
        };
        if fits(&size) {
            return Ok(());
        }
        let most = RecordSize::all().rev().find(fits).expect("blocks fit");
        let why = format!(
            "cannot have records of {size} in this pool, which was created on small disks: its \
             segments have {}, so records have at most {most}",
            Human(self.pool().segment_bytes())
        );
        Err(DatasetError::Unfit { name: self.full_name(name), why })
    }

    /// Creates a thin volume with its own compression setting.
    ///
    /// # Durability
    /// The volume exists after any crash once this returns.
    #[boxed(?Send)]
    pub async fn create_volume(&self, spec: &VolumeSpec) -> Result<Outcome, DatasetError> {
        let compression = PropertyChange::set(COMPRESSION, spec.compression);
        self.create_volume_with(&spec.name, spec.size_bytes.into(), &[compression]).await
    }

    /// Creates a thin volume with properties.
    ///
    /// # Durability
    /// The volume exists after any crash once this returns.
    ///
    /// # Errors
    /// `Exists` or `ExistsWithSize` if the volume exists with other properties or another size; the
    /// errors of [`Self::change_properties`].
    #[boxed(?Send)]
    pub async fn create_volume_with(
        &self,
        name: &str,
        size: VolumeSize,
        changes: &[PropertyChange],
    ) -> Result<Outcome, DatasetError> {
        self.check_size(name, size)?;
        self.check_record(name, size.record)?;
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let properties = self.plan_new(name, size, changes)?;
        if let Ok(volume) = self.volume(name) {
            let state = volume.state.lock();
            let same = state.size() == size && state.record.properties == properties;
            let (name, has_bytes) = (self.full_name(name), state.size().bytes);
            return match has_bytes == size.bytes {
                _ if same => Ok(Outcome::Unchanged),
                true => Err(DatasetError::Exists { name }),
                false => {
                    let asked_bytes = size.bytes;
                    Err(DatasetError::ExistsWithSize { name, has_bytes, asked_bytes })
                }
            };
        }
        self.refuse_too_many(1)?;
        let record = self.empty_record(self.new_dataset(), name, size, properties);
        let volume = Volume::new(Arc::clone(&self.core), record, true);
        self.enlarge_reservation(
            name,
            "its reserved space",
            || volume.measure_limits(&mut volume.state.lock()),
            || volume.release_reservations(),
        )?;
        self.add_volume(volume);
        self.commit_change().await
    }

    /// Creates a dataset with many objects, all unused. `layer` belongs to the layer above the
    /// engine, and clones inherit it.
    ///
    /// # Durability
    /// The dataset exists after any crash once this returns.
    ///
    /// # Errors
    /// `Exists` if a dataset has this name; the errors of [`Self::change_properties`].
    #[boxed(?Send)]
    pub async fn create_object_dataset(
        &self,
        name: &str,
        layer: [u8; ObjectTable::LAYER_BYTES],
        changes: &[PropertyChange],
    ) -> Result<(), DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let size = VolumeSize::from(0);
        let properties = self.plan_new(name, size, changes)?;
        if self.volume(name).is_ok() {
            return Err(DatasetError::Exists { name: self.full_name(name) });
        }
        self.refuse_too_many(1)?;
        self.core.pool.require_objects(Layout::folds_names(&layer)).await?;
        let record = self.empty_record(self.new_dataset(), name, size, properties);
        let objects = Some(ObjectTable { freed_object: 0, layer });
        let record = DatasetRecord { objects, ..record };
        let volume = Volume::new(Arc::clone(&self.core), record, true);
        self.enlarge_reservation(
            name,
            "its reserved space",
            || volume.measure_limits(&mut volume.state.lock()),
            || volume.release_reservations(),
        )?;
        self.add_volume(volume);
        self.commit_change().await.map(drop)
    }

    /// Directory entry of a new, empty volume.
    pub(crate) fn empty_record(
        &self,
        id: DatasetId,
        name: &str,
        size: VolumeSize,
        properties: Properties,
    ) -> DatasetRecord {
        DatasetRecord {
            id,
            kind: DatasetKind::Volume(Descent::default()),
            state: DatasetState::Active,
            name: name.to_owned(),
            size_bytes: size.bytes,
            record_size: size.record,
            properties,
            created_txg: self.core.open_txg(),
            created_unix_ms: self.core.pool.clock().unix_ms(),
            root: TreeRoot { height: size.height(), ..TreeRoot::default() },
            used_blocks: 0,
            stored_units: 0,
            shared_units: 0,
            tree_units: 0,
            born_units: 0,
            freed_to: 0,
            objects: None,
        }
    }

    /// Adds a new volume to the engine's list of volumes. No write to the volume is logged before
    /// the volume's directory entry is stored.
    pub(crate) fn add_volume(&self, volume: Volume) {
        // Lock the volume list: a freeze waits for this lock, so the open txg also stores the
        // directory entry.
        let mut list = self.volume_list.write();
        {
            let mut state = volume.state.lock();
            state.object.log.skip_until(self.core.open_txg());
            state.apply_properties(&self.core);
        }
        list.push(Arc::new(volume));
    }

    /// Sets the compression of blocks written from now on.
    #[boxed(?Send)]
    pub async fn set_compression(
        &self,
        name: &str,
        compression: Compression,
    ) -> Result<Outcome, DatasetError> {
        let target = PropertyTarget::Volume(name.to_owned());
        self.change_properties(&[target], &[PropertyChange::set(COMPRESSION, compression)]).await
    }

    /// Turns deduplication of later writes on or off.
    #[boxed(?Send)]
    pub async fn set_dedupe(&self, name: &str, dedupe: bool) -> Result<Outcome, DatasetError> {
        let target = PropertyTarget::Volume(name.to_owned());
        self.change_properties(&[target], &[PropertyChange::set(DEDUPE, dedupe)]).await
    }
}
