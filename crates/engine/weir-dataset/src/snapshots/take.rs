//! Snapshots and clones: taking, listing, holding, destroying, rolling back, cloning, promoting.
//!
//! `state::snapshot` applies snapshots to a volume's tree; `commit::freeing` frees their blocks.
//!
//! Invariants:
//! - a change is committed before it is acknowledged, and one txg stores all directory entries that
//!   the change needs;
//! - no txg is written out while a change updates several directory entries, so no txg stores a
//!   part of a change;
//! - no snapshot with a clone, a hold or a reader is destroyed.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::{DatasetId, Txg};
use weir_codec::checksum::xxh3_64;
use weir_format::layout::PACK_BYTES;
use weir_format::{
    ANCESTORS_MAX, Ancestor, DatasetKind, DatasetRecord, DatasetState, Descent, HOLDS_MAX, Origin,
    SnapshotFields,
};
use weir_pool::DiffSpec;

use crate::error::DatasetError;
use crate::state::damage::tree_of;
use crate::state::engine::Engine;
use crate::state::outcome::Outcome;
use crate::state::properties::of_clone;
use crate::state::snapshot::{
    Snapshot, SnapshotId, descent, descent_mut, inherits, moment, newer_than, objects_of,
};
use crate::state::taken_by::{TakenBy, give_to_user};
use crate::state::volume::{State, Volume};

/// Description of a snapshot, for users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotInfo {
    /// Name of the snapshot, without the volume's name.
    pub name: String,
    /// Size of the volume at the snapshot.
    pub size_bytes: u64,
    /// Unique identity, also across pools.
    pub guid: u64,
    /// Last txg that the snapshot contains.
    pub txg: Txg,
    /// Time of the request, by the wall clock.
    pub created_unix_ms: u64,
    /// Space that destroying only this snapshot would free.
    pub used_bytes: u64,
    /// Space that the snapshot references, nodes included.
    pub referenced_bytes: u64,
    /// Part of `referenced_bytes` written since the previous snapshot.
    pub written_bytes: u64,
    /// Tags of the snapshot's holds, which prevent its destruction.
    pub holds: Vec<String>,
    /// Names of the volumes cloned from the snapshot.
    pub clones: Vec<String>,
    /// Creator of the snapshot; `None`: a user.
    pub taken_by: Option<TakenBy>,
}

const fn bytes(units: u64) -> u64 {
    units * PACK_BYTES as u64
}

impl Engine {
    pub(crate) fn snapshot_name(&self, volume: &str, name: &str) -> String {
        format!("{}@{name}", self.full_name(volume))
    }

    pub(crate) fn no_snapshot(&self, id: &SnapshotId) -> DatasetError {
        DatasetError::NoSnapshot { name: self.snapshot_name(&id.volume, &id.name) }
    }

    /// Takes snapshots of several volumes at one point in time.
    ///
    /// # Durability
    /// Once this returns, all of the snapshots exist after any crash. A crash before that leaves
    /// all of them or none.
    ///
    /// # Errors
    /// `SnapshotExists`; `CannotReserve` or `Quota` if a volume's reservation does not fit in
    /// addition to the snapshot. Then no snapshot is taken.
    #[boxed(?Send)]
    pub async fn create_snapshots(&self, ids: &[SnapshotId]) -> Result<Outcome, DatasetError> {
        self.create_snapshots_by(ids, None).await
    }

    /// As [`Self::create_snapshots`], and stores the creator in the snapshots' directory entries.
    #[boxed(?Send)]
    pub async fn create_snapshots_by(
        &self,
        ids: &[SnapshotId],
        by: Option<TakenBy>,
    ) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let mut volumes = Vec::new();
        for (at, SnapshotId { volume, name }) in ids.iter().enumerate() {
            let found = self.volume(volume)?;
            self.refuse_receiving(&found.state.lock())?;
            if ids[..at].iter().any(|other| other.volume == *volume) {
                let why = "is named twice; a request takes one snapshot of each volume".to_owned();
                return Err(DatasetError::Unfit { name: self.full_name(volume), why });
            }
            if found.state.lock().snapshot(name).is_some() {
                let name = self.snapshot_name(volume, name);
                return Err(DatasetError::SnapshotExists { name });
            }
            volumes.push((found, name));
        }
        self.refuse_too_many(volumes.len())?;
        self.take_snapshots(&volumes, DatasetState::Active, by).await
    }

    /// Takes snapshots with these names; their stored state is `as_state`. The caller holds the
    /// admin lock.
    #[boxed(?Send)]
    pub(crate) async fn take_snapshots(
        &self,
        volumes: &[(Arc<Volume>, &String)],
        as_state: DatasetState,
        by: Option<TakenBy>,
    ) -> Result<Outcome, DatasetError> {
        if self.ask_for(volumes, as_state, by).is_err() {
            // Commit and try again: dirty data counts at its worst-case cost, and its commit may
            // show that there is enough space.
            self.core.want(self.core.open_txg());
            self.commit().await?;
            self.ask_for(volumes, as_state, by)?;
        }
        self.commit_change().await
    }

    /// Requests a snapshot of each volume at the end of the open txg, if the pool can reserve their
    /// refreservations a second time.
    fn ask_for(
        &self,
        volumes: &[(Arc<Volume>, &String)],
        as_state: DatasetState,
        by: Option<TakenBy>,
    ) -> Result<(), DatasetError> {
        // Lock the volume list: a freeze waits for this lock, so one txg takes all of the
        // snapshots.
        let _list = self.volume_list.write();
        for (at, (volume, name)) in volumes.iter().enumerate() {
            let own = volume.state.lock().record.name.clone();
            let take = || {
                let mut state = volume.state.lock();
                let mut wanted = self.wanted_snapshot(&state.record, name);
                wanted.properties.user.extend(by.map(TakenBy::as_property));
                state.taking = Some(DatasetRecord { state: as_state, ..wanted });
                state.limits.is_taking = true;
                volume.measure_limits(&mut state)
            };
            let forget = |volume: &Volume| {
                let mut state = volume.state.lock();
                state.taking = None;
                state.limits.is_taking = false;
                volume.measure_limits(&mut state);
            };
            // Both reservation and refreservation keep space for overwrites; from now on the
            // snapshot references the overwritten blocks.
            let what = match volume.state.lock().record.properties.refreservation_bytes() {
                0 => "its reservation in addition to the data of the snapshot",
                _ => "its refreservation, which each snapshot reserves again,",
            };
            let asked = self
                .enlarge_reservation(&own, what, take, || forget(volume))
                .and_then(|()| refuse_over_quota(&self.full_name(&own), &volume.state.lock()));
            if asked.is_err() {
                volumes[..=at].iter().for_each(|(volume, _)| forget(volume));
                return asked;
            }
        }
        Ok(())
    }

    /// Directory entry of a requested snapshot, without its tree.
    pub(crate) fn wanted_snapshot(&self, of: &DatasetRecord, name: &str) -> DatasetRecord {
        let id = self.new_dataset();
        let created_unix_ms = self.core.pool.clock().unix_ms();
        let unique = [self.core.pool.guid().0, id.0, created_unix_ms].map(u64::to_le_bytes);
        let moment = SnapshotFields {
            of: of.id,
            txg: self.core.open_txg(),
            guid: xxh3_64(&[&unique[0], &unique[1], &unique[2]]),
            holds: Vec::new(),
            unique_units: None,
        };
        DatasetRecord {
            id,
            name: name.to_owned(),
            state: DatasetState::Active,
            created_unix_ms,
            kind: DatasetKind::Snapshot(moment),
            properties: of_clone(&of.properties),
            freed_to: 0,
            ..of.clone()
        }
    }

    /// Snapshots of a volume, oldest first. If the neighbours of a snapshot changed, this call
    /// recounts the space that only the snapshot references. The recount reads the nodes that only
    /// this snapshot references.
    #[boxed(?Send)]
    pub async fn snapshots(&self, volume: &str) -> Result<Vec<SnapshotInfo>, DatasetError> {
        let volume = self.volume(volume)?;
        let records: Vec<DatasetRecord> = {
            let state = volume.state.lock();
            let active = state.snapshots.iter().filter(|snapshot| snapshot.is_active());
            active.map(|snapshot| snapshot.record.clone()).collect()
        };
        let mut infos = Vec::new();
        for record in records {
            let DatasetKind::Snapshot(moment) = &record.kind else { continue };
            let unique = match moment.unique_units {
                Some(units) => units,
                None => self.count_unique(&volume, record.id).await?,
            };
            infos.push(SnapshotInfo {
                size_bytes: record.size_bytes,
                guid: moment.guid,
                txg: moment.txg,
                created_unix_ms: record.created_unix_ms,
                used_bytes: bytes(unique),
                referenced_bytes: bytes(record.tree_units),
                written_bytes: bytes(record.born_units),
                holds: moment.holds.clone(),
                clones: self.clones_of(record.id),
                taken_by: TakenBy::of(&record.properties),
                name: record.name,
            });
        }
        Ok(infos)
    }

    /// Names of the volumes cloned from a snapshot.
    fn clones_of(&self, snapshot: DatasetId) -> Vec<String> {
        let clone = |volume: Arc<Volume>| {
            let state = volume.state.lock();
            let origin = descent(&state.record).origin?;
            (origin.snapshot == snapshot).then(|| state.record.name.clone())
        };
        // Clones under destruction do not count, because they neither free nor read inherited
        // blocks.
        self.volumes().into_iter().filter_map(clone).collect()
    }

    /// Refuses the operation if a snapshot for which `goes` returns true has a clone.
    pub(crate) fn refuse_clones(
        &self,
        volume: &Volume,
        goes: impl Fn(&Snapshot) -> bool,
    ) -> Result<(), DatasetError> {
        let (volume, snapshots): (String, Vec<_>) = {
            let state = volume.state.lock();
            let going = state.snapshots.iter().filter(|s| s.is_active() && goes(s));
            let ids = going.map(|s| (s.record.id, s.record.name.clone())).collect();
            (state.record.name.clone(), ids)
        };
        for (id, name) in snapshots {
            let clones = self.clones_of(id);
            if !clones.is_empty() {
                let names: Vec<_> = clones.iter().map(|clone| self.full_name(clone)).collect();
                let why = format!(
                    "is the origin of {}; destroy the clones first, or promote one",
                    names.join(", ")
                );
                let next = Some(format!("weir volume promote {}", names[0]));
                let name = self.snapshot_name(&volume, &name);
                return Err(DatasetError::InUse { name, why, next });
            }
        }
        Ok(())
    }

    /// Refuses the operation if a snapshot for which `goes` returns true has a hold or is being
    /// read.
    pub(crate) fn refuse_held(
        &self,
        state: &State,
        goes: impl Fn(&Snapshot) -> bool,
    ) -> Result<(), DatasetError> {
        let from = descent(&state.record).receiving.as_ref().and_then(|receiving| receiving.from);
        for snapshot in state.snapshots.iter().filter(|s| s.is_active() && goes(s)) {
            if from == Some(snapshot.moment().guid) {
                self.refuse_receiving(state)?;
            }
            let name = || self.snapshot_name(&state.record.name, &snapshot.record.name);
            let holds = &snapshot.moment().holds;
            if !holds.is_empty() {
                let why = format!("is held by {}; release the hold first", holds.join(", "));
                let next = Some(format!("weir snapshot release {} {}", holds[0], name()));
                return Err(DatasetError::InUse { name: name(), why, next });
            }
            if snapshot.view.strong_count() > 0 {
                let why = "is exported or being read; end the export or the read first".to_owned();
                return Err(DatasetError::InUse { name: name(), why, next: None });
            }
        }
        Ok(())
    }

    /// Destroys snapshots of one volume. The next commits reclaim their space.
    ///
    /// # Durability
    /// The snapshots are gone after any crash once this returns. A crash before that leaves all or
    /// none.
    ///
    /// # Errors
    /// `NoSnapshot`; `InUse` for a snapshot that is held, read, or the origin of a clone. Then none
    /// is destroyed.
    #[boxed(?Send)]
    pub async fn destroy_snapshots(
        &self,
        volume: &str,
        names: &[String],
    ) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let found = self.volume(volume)?;
        let goes = |snapshot: &Snapshot| names.contains(&snapshot.record.name);
        self.refuse_clones(&found, goes)?;
        {
            // A running commit would free some of the snapshots before a txg stores that all are
            // destroyed.
            let _still = self.between_commits().await?;
            let mut state = found.state.lock();
            for name in names {
                if state.snapshot(name).is_none() {
                    let id = SnapshotId::new(volume, name.clone());
                    return Err(self.no_snapshot(&id));
                }
            }
            self.refuse_held(&state, goes)?;
            for name in names {
                if let Some(snapshot) = state.snapshot_mut(name) {
                    snapshot.destroy();
                }
            }
        }
        self.commit_change().await
    }

    /// Changes the directory entry of one snapshot.
    pub(crate) async fn change_snapshot(
        &self,
        id: &SnapshotId,
        change: impl FnOnce(&mut Snapshot, String) -> Result<Outcome, DatasetError>,
    ) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let volume = self.volume(&id.volume)?;
        {
            let mut state = volume.state.lock();
            let snapshot = state.snapshot_mut(&id.name).ok_or_else(|| self.no_snapshot(id))?;
            if change(snapshot, self.snapshot_name(&id.volume, &id.name))? == Outcome::Unchanged {
                return Ok(Outcome::Unchanged);
            }
            snapshot.dirty = true;
        }
        self.commit_change().await
    }

    /// Adds a hold to a snapshot: the snapshot cannot be destroyed until the tag is released.
    #[boxed(?Send)]
    pub async fn hold_snapshot(&self, id: &SnapshotId, tag: &str) -> Result<Outcome, DatasetError> {
        self.change_snapshot(id, |snapshot, name| {
            let holds = &mut snapshot.moment_mut().holds;
            if holds.iter().any(|held| held == tag) {
                return Ok(Outcome::Unchanged);
            }
            if holds.len() == HOLDS_MAX {
                return Err(DatasetError::TooMany { name, count: HOLDS_MAX, what: "tags" });
            }
            holds.push(tag.to_owned());
            Ok(Outcome::Changed)
        })
        .await
    }

    /// Releases a hold.
    ///
    /// # Errors
    /// `Unfit` if there is no such tag.
    #[boxed(?Send)]
    pub async fn release_snapshot(
        &self,
        id: &SnapshotId,
        tag: &str,
    ) -> Result<Outcome, DatasetError> {
        self.change_snapshot(id, |snapshot, name| snapshot.release(tag, name)).await
    }

    /// Renames a snapshot. From then on the snapshot belongs to a user, so that no schedule
    /// destroys it.
    #[boxed(?Send)]
    pub async fn rename_snapshot(
        &self,
        id: &SnapshotId,
        to: &str,
    ) -> Result<Outcome, DatasetError> {
        let taken = self.volume(&id.volume)?.state.lock().snapshot(to).is_some();
        if taken && id.name != to {
            return Err(DatasetError::SnapshotExists { name: self.snapshot_name(&id.volume, to) });
        }
        self.change_snapshot(id, |snapshot, _| {
            if snapshot.record.name == to {
                return Ok(Outcome::Unchanged);
            }
            to.clone_into(&mut snapshot.record.name);
            give_to_user(&mut snapshot.record.properties);
            Ok(Outcome::Changed)
        })
        .await
    }

    /// Opens a read-only view of a snapshot. While the view is held, the snapshot cannot be
    /// destroyed.
    pub fn open_snapshot(&self, id: &SnapshotId) -> Result<Arc<Volume>, DatasetError> {
        let volume = self.volume(&id.volume)?;
        let mut state = volume.state.lock();
        let of = state.record.name.clone();
        let snapshot = state.snapshot_mut(&id.name).ok_or_else(|| self.no_snapshot(id))?;
        if let Some(open) = snapshot.view.upgrade() {
            return Ok(open);
        }
        let view = self.view_of(&of, snapshot);
        snapshot.view = Arc::downgrade(&view);
        Ok(view)
    }

    /// Creates a view of a snapshot; `volume` is the name of its volume.
    pub(crate) fn view_of(&self, volume: &str, snapshot: &Snapshot) -> Arc<Volume> {
        let name = format!("{volume}@{}", snapshot.record.name);
        // The stored state of a snapshot that a copy reads is "destroying"; its view is active.
        let state = DatasetState::Active;
        let record = DatasetRecord { name, state, ..snapshot.record.clone() };
        let view = Volume::new(Arc::clone(&self.core), record, false);
        view.state.lock().is_view = true;
        Arc::new(view)
    }

    /// Creates a clone: a volume that begins with the content of a snapshot and shares all blocks
    /// of the snapshot.
    ///
    /// # Durability
    /// The clone exists after any crash once this returns.
    #[boxed(?Send)]
    pub async fn clone_snapshot(
        &self,
        id: &SnapshotId,
        name: &str,
    ) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let from = self.volume(&id.volume)?;
        let origin = {
            let state = from.state.lock();
            state.snapshot(&id.name).ok_or_else(|| self.no_snapshot(id))?.record.clone()
        };
        let txg = moment(&origin).txg;
        if let Ok(there) = self.volume(name) {
            let same = descent(&there.state.lock().record).origin.map(|o| o.snapshot);
            let name = self.full_name(name);
            let same = same == Some(origin.id);
            return if same { Ok(Outcome::Unchanged) } else { Err(DatasetError::Exists { name }) };
        }
        self.refuse_too_many(1)?;
        let record = DatasetRecord {
            id: self.new_dataset(),
            kind: DatasetKind::Volume(Descent {
                origin: Some(Origin { snapshot: origin.id, txg }),
                inherited_units: origin.tree_units,
                ..Descent::default()
            }),
            state: DatasetState::Active,
            name: name.to_owned(),
            created_txg: self.core.open_txg(),
            created_unix_ms: self.core.pool.clock().unix_ms(),
            properties: of_clone(&origin.properties),
            born_units: 0,
            ..origin
        };
        self.add_volume(Volume::new(Arc::clone(&self.core), record, true));
        self.commit_change().await
    }

    /// Renames a volume.
    #[boxed(?Send)]
    pub async fn rename_volume(&self, name: &str, to: &str) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let volume = self.volume(name)?;
        if name == to {
            return Ok(Outcome::Unchanged);
        }
        if self.volume(to).is_ok() {
            return Err(DatasetError::Exists { name: self.full_name(to) });
        }
        {
            let mut state = volume.state.lock();
            to.clone_into(&mut state.record.name);
            state.record_dirty = true;
        }
        self.commit_change().await
    }

    /// Rolls a volume back to a snapshot; drops later changes.
    ///
    /// # Durability
    /// After a crash the volume has the old or the new content. Once this returns, the volume has
    /// the content of the snapshot.
    ///
    /// # Errors
    /// `InUse` if there are newer snapshots or bookmarks, unless `destroy_newer`; `Unfit` if the
    /// record of a newer snapshot may be unreadable.
    #[boxed(?Send)]
    pub async fn rollback(
        &self,
        id: &SnapshotId,
        destroy_newer: bool,
    ) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let volume = self.volume(&id.volume)?;
        let target = {
            let state = volume.state.lock();
            state.snapshot(&id.name).ok_or_else(|| self.no_snapshot(id))?.record.clone()
        };
        self.refuse_receiving(&volume.state.lock())?;
        let newer = newer_than(&volume, &target);
        let goes = |snapshot: &Snapshot| newer.contains(&snapshot.record.id);
        if !newer.is_empty() && !destroy_newer {
            let marks = volume.state.lock().bookmarks_after(moment(&target).txg).count();
            let what = match (newer.len() - marks, marks) {
                (snapshots, 0) => format!("{snapshots} newer snapshots"),
                (0, marks) => format!("{marks} newer bookmarks"),
                (snapshots, marks) => format!("{snapshots} newer snapshots and {marks} bookmarks"),
            };
            let why = format!("has {what}; -r destroys them");
            let name = self.snapshot_name(&id.volume, &id.name);
            let next = Some(format!("weir snapshot rollback -r {name}"));
            return Err(DatasetError::InUse { name, why, next });
        }
        self.refuse_clones(&volume, goes)?;
        self.refuse_held(&volume.state.lock(), goes)?;
        let _hold = volume.open_objects()?;
        self.put_back(&volume, &target, &newer, |_| {}).await
    }

    /// Makes a volume equal to `target`, which is one of its own snapshots or its origin, and
    /// destroys the `newer` snapshots and bookmarks. `then` changes more of the volume in the same
    /// txg. The caller holds the admin lock and has checked that the operation is allowed.
    ///
    /// # Errors
    /// `Unfit` if the record of a newer snapshot may be unreadable.
    pub(crate) async fn put_back(
        &self,
        volume: &Volume,
        target: &DatasetRecord,
        newer: &[DatasetId],
        then: impl FnOnce(&mut State),
    ) -> Result<Outcome, DatasetError> {
        self.refuse_unread(volume, target.id.0 + 1..u64::MAX)?;
        // Commit dirty data first, so that it becomes part of the tree that the rollback replaces.
        self.core.want(self.core.open_txg());
        self.commit().await?;
        let before = inherits(&volume.state.lock().record);
        let inherited = self.units_up_to(target, before).await?;
        {
            let _still = self.between_commits().await?;
            let mut state = volume.state.lock();
            self.discard_open(&mut state);
            for snapshot in &mut state.snapshots {
                if newer.contains(&snapshot.record.id) {
                    snapshot.destroy();
                }
            }
            state.remove_bookmarks(|mark| newer.contains(&mark.record.id));
            self.leave_behind(&mut state, target, inherited);
            // The space of the replaced tree becomes available for the volume's refreservation.
            self.core.note_freeing(self.core.open_txg());
            volume.measure_limits(&mut state);
            then(&mut state);
        }
        self.commit_change().await
    }

    /// Discards the open txg's changes to a volume.
    fn discard_open(&self, state: &mut State) {
        let table = std::mem::take(&mut state.object.open);
        let counted = std::mem::take(&mut state.object.counted_holes);
        self.core.count_holes(counted, 0);
        self.core.uncharge(table.charge);
        for clone in std::mem::take(&mut state.clones) {
            self.core.uncharge(clone.charge);
            state.cloning_bytes -= clone.weight();
            let (name, why) = (self.full_name(&state.record.name), "was rolled back".to_owned());
            clone.fail(DatasetError::Unfit { name, why });
        }
        self.core.sub_dirty(table.data_blocks() as u64);
        if let Some(objects) = &mut state.objects {
            let discarded = objects.discard_open();
            self.core.uncharge(discarded.charge);
            self.core.sub_dirty(discarded.blocks);
            state.cloning_bytes -= discarded.referenced_bytes;
        }
        // Log none of this txg's changes: a replay would apply them to the replaced tree.
        state.object.log.drop_until(self.core.open_txg());
    }

    /// Replaces a volume's tree by a snapshot's tree. The old tree becomes a version to be freed.
    fn leave_behind(&self, state: &mut State, target: &DatasetRecord, inherited: u64) {
        let mut left = self.wanted_snapshot(&state.record, &state.record.name);
        if let DatasetKind::Snapshot(moment) = &mut left.kind {
            moment.txg = self.core.pool.committed_txg();
        }
        left.state = DatasetState::Destroying;
        for snapshot in &mut state.snapshots {
            // Recount the space that only this snapshot references: blocks that the volume
            // overwrites from now on belong to the replaced version.
            snapshot.moment_mut().unique_units = None;
            snapshot.dirty = true;
        }
        let (to, left_txg) = (moment(target).txg, moment(&left).txg);
        self.core.pool.damage_rolled_back(state.record.id, to, left_txg);
        state.snapshots.push(Snapshot::new(left, true));
        let record = &mut state.record;
        record.root = target.root;
        record.size_bytes = target.size_bytes;
        record.used_blocks = target.used_blocks;
        record.stored_units = target.stored_units;
        record.shared_units = target.shared_units;
        record.tree_units = target.tree_units;
        record.born_units = 0;
        descent_mut(record).inherited_units = inherited;
        state.record_dirty = true;
    }

    /// Promotes a clone: the clone takes over its origin and all older snapshots, and the volume
    /// from which it was cloned becomes the clone.
    ///
    /// # Errors
    /// `Unfit` if the volume is no clone, or if the record of a snapshot before its origin may be
    /// unreadable; `SnapshotExists` if a snapshot to take over has the name of one of the clone's
    /// own snapshots.
    #[boxed(?Send)]
    pub async fn promote(&self, name: &str) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let clone = self.volume(name)?;
        self.refuse_receiving(&clone.state.lock())?;
        let Some(origin) = descent(&clone.state.lock().record).origin else {
            let why = "is not a clone; only a clone can be promoted".to_owned();
            return Err(DatasetError::Unfit { name: self.full_name(name), why });
        };
        let Some(parent) = self.owner_of_snapshot(origin.snapshot) else {
            let why = "was cloned from a snapshot whose record was lost".to_owned();
            return Err(DatasetError::Unfit { name: self.full_name(name), why });
        };
        self.refuse_receiving(&parent.state.lock())?;
        self.refuse_unread(&parent, 1..origin.snapshot.0)?;
        self.core.want(self.core.open_txg());
        self.commit().await?;
        {
            let _still = self.between_commits().await?;
            let inherited = self.inherited_units(&parent, &clone, origin).await?;
            let (mut from, mut to) = lock_both(&parent, &clone);
            self.take_over(&mut from, &mut to, origin, inherited)?;
            parent.measure_limits(&mut from);
            clone.measure_limits(&mut to);
        }
        self.commit_change().await
    }

    /// Units that parent and clone inherit after the promotion.
    async fn inherited_units(
        &self,
        parent: &Volume,
        clone: &Volume,
        origin: Origin,
    ) -> Result<[u64; 2], DatasetError> {
        let of = |volume: &Volume| volume.state.lock().record.clone();
        let (parent, clone) = (of(parent), of(clone));
        let before = inherits(&parent);
        let parent_units = self.units_up_to(&parent, origin.txg).await?;
        Ok([parent_units, self.units_up_to(&clone, before).await?])
    }

    /// Counts the blocks and nodes of a volume or snapshot that were born in txg `after` or
    /// earlier. Reads the nodes born later.
    async fn units_up_to(&self, of: &DatasetRecord, after: Txg) -> Result<u64, DatasetError> {
        if after == Txg(0) {
            return Ok(0);
        }
        let what = DiffSpec::of_tree(objects_of(of), of.root, Some(tree_of(of)), after);
        let units = of.tree_units;
        Ok(units.saturating_sub(self.core.pool.unshared(what).units().await?.units))
    }

    /// Moves the origin and all older snapshots from the parent's snapshot chain to the clone's.
    fn take_over(
        &self,
        parent: &mut State,
        clone: &mut State,
        origin: Origin,
        [parent_units, clone_units]: [u64; 2],
    ) -> Result<(), DatasetError> {
        let at = parent.snapshots.iter().position(|s| s.record.id == origin.snapshot);
        let count = at.expect("it was found there, and the admin lock is held") + 1;
        let clash = parent.snapshots[..count]
            .iter()
            .find(|s| s.is_active() && clone.snapshot(&s.record.name).is_some());
        if let Some(clash) = clash {
            let name = self.snapshot_name(&clone.record.name, &clash.record.name);
            return Err(DatasetError::SnapshotExists { name });
        }
        let (older, newer) = split_lineage(parent, origin.txg);
        let lineage: Vec<Ancestor> =
            older.into_iter().chain(descent(&clone.record).lineage.iter().copied()).collect();
        if lineage.len() > ANCESTORS_MAX {
            let name = self.full_name(&clone.record.name);
            return Err(DatasetError::TooMany { name, count: ANCESTORS_MAX, what: "promotions" });
        }
        let moving = parent.snapshots[..count].iter().map(|s| s.record.born_units).sum();
        self.refuse_move(parent, clone, moving)?;
        let mut moved: Vec<Snapshot> = parent.snapshots.drain(..count).collect();
        for snapshot in &mut moved {
            snapshot.moment_mut().of = clone.record.id;
            snapshot.dirty = true;
        }
        clone.snapshots.splice(0..0, moved);
        let before = descent(&parent.record).origin;
        let inherited_units = clone_units;
        let of_clone = Descent { origin: before, lineage, inherited_units, receiving: None };
        clone.record.kind = DatasetKind::Volume(of_clone);
        let (inherited_units, origin) = (parent_units, Some(origin));
        let of_parent = Descent { origin, lineage: newer, inherited_units, receiving: None };
        parent.record.kind = DatasetKind::Volume(of_parent);
        (parent.record_dirty, clone.record_dirty) = (true, true);
        // The neighbours of these snapshots changed, so the space that each alone references must
        // be recounted.
        for state in [parent, clone] {
            for snapshot in &mut state.snapshots {
                snapshot.moment_mut().unique_units = None;
                snapshot.dirty = true;
            }
        }
        Ok(())
    }
}

/// Refuses a snapshot if the volume's refreservation would no longer fit below its quota.
fn refuse_over_quota(name: &str, state: &State) -> Result<(), DatasetError> {
    let properties = &state.record.properties;
    let quota_bytes = properties.quota_bytes();
    if quota_bytes == 0 || properties.refreservation_bytes() == 0 || state.most(0) <= quota_bytes {
        return Ok(());
    }
    Err(DatasetError::Quota { name: name.to_owned(), quota_bytes })
}

/// Splits the ancestors of a snapshot chain at a txg: owners up to that txg, and owners after that
/// txg.
fn split_lineage(state: &State, txg: Txg) -> (Vec<Ancestor>, Vec<Ancestor>) {
    let (mut older, mut newer) = (Vec::new(), Vec::new());
    for ancestor in &descent(&state.record).lineage {
        if ancestor.until <= txg {
            older.push(*ancestor);
        } else {
            newer.push(*ancestor);
        }
    }
    // Split the ancestor at that txg: the owner at that txg also wrote the last blocks before it.
    let owner = newer.first().map_or(state.record.id, |ancestor| ancestor.owner);
    if older.last().is_none_or(|last| last.until < txg) {
        older.push(Ancestor { until: txg, owner });
    }
    (older, newer)
}

/// Locks the states of two volumes in the order of their numbers, which is the order of a freeze.
fn lock_both<'v>(
    a: &'v Volume,
    b: &'v Volume,
) -> (parking_lot::MutexGuard<'v, State>, parking_lot::MutexGuard<'v, State>) {
    if a.id < b.id {
        let first = a.state.lock();
        (first, b.state.lock())
    } else {
        let first = b.state.lock();
        (a.state.lock(), first)
    }
}
