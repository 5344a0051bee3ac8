//! Snapshots of a volume in RAM, and their effect on its tree.
//!
//! `snapshots` creates and destroys snapshots; `commit::freeing` frees their blocks.
//!
//! Invariants:
//! - a volume's snapshots are ordered by time;
//! - a snapshot under destruction stays in the list until its last block is freed;
//! - the stored state of the source snapshot of a copy is "destroying", so that no crash leaves the
//!   snapshot behind; while `kept` is set, none of its blocks is freed;
//! - after a rollback the old head remains as a snapshot under destruction, with a name that no
//!   user sees.

use std::sync::Weak;

use weir_base::{DatasetId, ObjectId, Txg};
use weir_format::layout::PACK_BYTES;
use weir_format::{DatasetKind, DatasetRecord, DatasetState, Descent, SnapshotFields};
use weir_pool::{Delta, EarlierSnapshots, Objects, Place, SnapshotChain, Version};

use crate::error::DatasetError;
use crate::state::limits::{VolumeUsage, by_refreservation};
use crate::state::outcome::Outcome;
use crate::state::volume::{State, Volume, VolumeSpace};

/// One snapshot of a volume.
#[derive(Debug)]
pub(crate) struct Snapshot {
    pub(crate) record: DatasetRecord,
    /// True if the commit must write the snapshot's directory entry again.
    pub(crate) dirty: bool,
    /// True if the snapshot's blocks stay allocated although it is being destroyed, until the task
    /// that uses the snapshot releases it.
    pub(crate) kept: bool,
    /// The open read-only view of the snapshot, if any.
    pub(crate) view: Weak<Volume>,
}

impl Snapshot {
    pub(crate) fn new(record: DatasetRecord, dirty: bool) -> Self {
        Self { record, dirty, kept: false, view: Weak::new() }
    }

    pub(crate) fn moment(&self) -> &SnapshotFields {
        moment(&self.record)
    }

    pub(crate) fn moment_mut(&mut self) -> &mut SnapshotFields {
        match &mut self.record.kind {
            DatasetKind::Snapshot(moment) => moment,
            _ => unreachable!("only snapshots are in a volume's list"),
        }
    }

    /// Releases a hold. `name` is the snapshot's name for the error.
    pub(crate) fn release(&mut self, tag: &str, name: String) -> Result<Outcome, DatasetError> {
        let holds = &mut self.moment_mut().holds;
        let Some(at) = holds.iter().position(|held| held == tag) else {
            let why = format!("has no tag {tag:?}");
            return Err(DatasetError::Unfit { name, why });
        };
        holds.remove(at);
        Ok(Outcome::Changed)
    }

    /// Marks the snapshot for destruction.
    pub(crate) fn destroy(&mut self) {
        self.record.state = DatasetState::Destroying;
        self.dirty = true;
    }

    pub(crate) fn is_active(&self) -> bool {
        self.record.state == DatasetState::Active
    }

    fn version(&self) -> Version {
        let (root, freed_to) = (self.record.root, freed_to(&self.record));
        Version { txg: self.moment().txg, root, freed_to }
    }

    fn add_unique(&mut self, units: i64) {
        let unique = &mut self.moment_mut().unique_units;
        *unique = unique.map(|had| had.saturating_add_signed(units));
    }
}

/// Snapshot-specific part of a snapshot's directory entry.
pub(crate) fn moment(record: &DatasetRecord) -> &SnapshotFields {
    match &record.kind {
        DatasetKind::Snapshot(moment) => moment,
        _ => unreachable!("asked of snapshots alone"),
    }
}

/// Origin and ancestors of a volume.
pub(crate) fn descent(record: &DatasetRecord) -> &Descent {
    match &record.kind {
        DatasetKind::Volume(descent) => descent,
        _ => unreachable!("asked of volumes alone"),
    }
}

/// As [`descent`], mutable.
pub(crate) fn descent_mut(record: &mut DatasetRecord) -> &mut Descent {
    match &mut record.kind {
        DatasetKind::Volume(descent) => descent,
        _ => unreachable!("asked of volumes alone"),
    }
}

/// Returns the kind of a dataset: one object, or many objects.
pub(crate) fn objects_of(record: &DatasetRecord) -> Objects {
    if record.objects.is_some() { Objects::Many } else { Objects::One }
}

/// Place up to which the blocks of a dataset under destruction are freed.
pub(crate) fn freed_to(record: &DatasetRecord) -> Place {
    match &record.objects {
        None => Place::in_volume(record.freed_to),
        Some(table) => Place { object: ObjectId(table.freed_object), block: record.freed_to },
    }
}

/// Sets the place up to which a dataset is freed.
pub(crate) fn set_freed_to(record: &mut DatasetRecord, place: Place) {
    record.freed_to = place.block;
    if let Some(table) = &mut record.objects {
        table.freed_object = place.object.0;
    }
}

/// True if the freeing of a dataset has begun.
pub(crate) fn is_partly_freed(record: &DatasetRecord) -> bool {
    freed_to(record) > Place::START
}

/// Last txg whose blocks belong to the origin's snapshot chain.
pub(crate) fn inherits(record: &DatasetRecord) -> Txg {
    descent(record).origin.map_or(Txg(0), |origin| origin.txg)
}

/// Adds the space that a tree change added or removed to the volume's counters.
pub(crate) fn account(record: &mut DatasetRecord, delta: &Delta) {
    record.used_blocks = record.used_blocks.saturating_add_signed(delta.blocks);
    record.stored_units = record.stored_units.saturating_add_signed(delta.stored_units);
    record.shared_units = record.shared_units.saturating_add_signed(delta.shared_units);
    record.tree_units = record.tree_units.saturating_add_signed(delta.tree_units);
    record.born_units = record.born_units.saturating_add_signed(delta.born_units);
    let inherited = &mut descent_mut(record).inherited_units;
    *inherited = inherited.saturating_add_signed(delta.inherited_units);
}

/// Versions of a dataset at the freeze of a txg.
pub(crate) struct FrozenVersions {
    chain: SnapshotChain,
    /// Blocks born in this txg or earlier are not freed: unreadable datasets may reference them.
    held_for_unread: Txg,
}

impl FrozenVersions {
    /// Versions before the head, for the tree of one object.
    pub(crate) fn before_head(&self, object: ObjectId) -> EarlierSnapshots {
        let Self { chain, held_for_unread } = self;
        let earlier = chain.versions.len() - 1;
        let mut held = chain.held_before(earlier, object);
        held.hold(*held_for_unread);
        let inherits = chain.inherits;
        let newest = |back: usize| {
            let at = earlier.checked_sub(back);
            at.map_or(inherits, |at| chain.versions[at].txg)
        };
        let (newest, before_newest) = (newest(1), newest(2));
        EarlierSnapshots { held, newest, before_newest, inherits, records: None }
    }
}

impl State {
    /// Snapshot chain of the volume; the head is its last version.
    pub(crate) fn chain(&self) -> SnapshotChain {
        let (root, freed_to) = (self.record.root, freed_to(&self.record));
        let now = Version { txg: Version::HEAD, root, freed_to };
        let versions = self.snapshots.iter().map(Snapshot::version).chain([now]).collect();
        let (volume, inherits) = (self.record.id, inherits(&self.record));
        SnapshotChain { volume, objects: objects_of(&self.record), inherits, versions }
    }

    /// Copies the versions for the txg that is being frozen.
    pub(crate) fn freeze_versions(&self, held_for_unread: Txg) -> FrozenVersions {
        FrozenVersions { chain: self.chain(), held_for_unread }
    }

    /// Owners of the blocks in the snapshot chain, by birth txg.
    pub(crate) fn owners(&self) -> Vec<(Txg, DatasetId)> {
        let lineage = descent(&self.record).lineage.iter();
        let before = lineage.map(|ancestor| (ancestor.until, ancestor.owner));
        before.chain([(Version::HEAD, self.record.id)]).collect()
    }

    /// Finds the active snapshot of this name.
    pub(crate) fn snapshot(&self, name: &str) -> Option<&Snapshot> {
        self.snapshots.iter().find(|s| s.is_active() && s.record.name == name)
    }

    /// As [`Self::snapshot`], mutable.
    pub(crate) fn snapshot_mut(&mut self, name: &str) -> Option<&mut Snapshot> {
        self.snapshots.iter_mut().find(|s| s.is_active() && s.record.name == name)
    }

    /// Adds the space that a tree change added or removed to the snapshots' counters. Returns the
    /// changed directory entries.
    pub(crate) fn account_snapshots(&mut self, delta: &Delta) -> Vec<DatasetRecord> {
        let mut touched = Vec::new();
        if delta.unique_units != 0
            && let Some(newest) = self.snapshots.last_mut()
        {
            newest.add_unique(delta.unique_units);
            touched.push(newest.record.clone());
        }
        if delta.leaving_units != 0
            && let Some(leaving) = self.snapshots.iter_mut().find(|s| is_partly_freed(&s.record))
        {
            let born = &mut leaving.record.born_units;
            *born = born.saturating_add_signed(delta.leaving_units);
            touched.retain(|record| record.id != leaving.record.id);
            touched.push(leaving.record.clone());
        }
        touched
    }

    /// Space breakdown of the volume and its snapshots.
    pub(crate) fn space(&self) -> VolumeSpace {
        let DatasetRecord { tree_units, born_units, .. } = self.record;
        // Avoid an overflow: the counters come from disk and may be wrong, which `weir check`
        // detects.
        let born = self.snapshots.iter().map(|s| s.record.born_units);
        let by_snapshots = born.fold(0, u64::saturating_add);
        let used = by_snapshots.saturating_add(born_units);
        let by_volume = tree_units.saturating_sub(descent(&self.record).inherited_units);
        let bytes = |units: u64| units.saturating_mul(PACK_BYTES as u64);
        let has = VolumeUsage { used: bytes(used), born: bytes(born_units) };
        VolumeSpace {
            used: bytes(used),
            by_volume: bytes(by_volume),
            by_snapshots: bytes(used.saturating_sub(by_volume)),
            referenced: bytes(tree_units),
            written: bytes(born_units),
            by_refreservation: by_refreservation(&self.record.properties, has),
        }
    }
}

/// Name of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotId {
    /// The volume's name inside the pool.
    pub volume: String,
    /// The snapshot's own name.
    pub name: String,
}

impl SnapshotId {
    /// Name of the snapshot `name` of a volume.
    pub fn new(volume: impl Into<String>, name: impl Into<String>) -> Self {
        Self { volume: volume.into(), name: name.into() }
    }
}

/// Snapshots and bookmarks of a volume that are newer than `snapshot`, which is a snapshot of the
/// volume or its origin.
pub(crate) fn newer_than(volume: &Volume, snapshot: &DatasetRecord) -> Vec<DatasetId> {
    let state = volume.state.lock();
    let at = state.snapshots.iter().position(|s| s.record.id == snapshot.id);
    let later = state.snapshots.iter().skip(at.map_or(0, |at| at + 1));
    let later = later.filter(|s| s.is_active()).map(|s| s.record.id);
    later.chain(state.bookmarks_after(moment(snapshot).txg).map(|m| m.record.id)).collect()
}
