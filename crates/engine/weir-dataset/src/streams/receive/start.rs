//! Destination volume of a stream: created, found or resumed.
//!
//! `receive` applies the stream.
//!
//! Invariants:
//! - every reason to refuse a stream is found before any change;
//! - a destination volume has exactly the content of the stream's base snapshot, or is new.

use std::sync::Arc;

use weir_base::{DatasetId, ObjectId, names};
use weir_format::files::Layout;
use weir_format::stream::StreamBegin;
use weir_format::{DatasetKind, DatasetRecord, Descent, ObjectTable, Origin, Receiving};

use super::{BLOCK, Claim, Mark, ReceiveSpec};
use crate::error::DatasetError;
use crate::objects::log_queue::Payload;
use crate::objects::record::VolumeSize;
use crate::state::engine::Engine;
use crate::state::snapshot::{Snapshot, descent, descent_mut, moment, newer_than};
use crate::state::volume::{State, Volume};
use crate::streams::receive::stands_at;

/// Destination of a stream that can be received.
enum Plan {
    /// Create a volume, empty or as a clone of this snapshot.
    Make(Option<DatasetRecord>),
    /// Resume the stream into this volume, after the part that was already received.
    GoOn(Arc<Volume>),
    /// Update a volume from this base snapshot. `Some`: first roll the volume back, which destroys
    /// these newer snapshots and bookmarks.
    Update(Arc<Volume>, DatasetRecord, Option<Vec<DatasetId>>),
}

/// Destination that a dry run determined.
pub(super) struct Prospect(Plan);

impl Prospect {
    /// True if the stream creates the volume, or created it in the part that was already received.
    pub(super) fn is_of_new_volume(&self) -> bool {
        match &self.0 {
            Plan::Make(_) => true,
            Plan::Update(..) => false,
            Plan::GoOn(volume) => {
                let state = volume.state.lock();
                descent(&state.record).receiving.as_ref().is_some_and(|there| there.is_new)
            }
        }
    }

    /// True if a rollback drops changes of the volume.
    pub(super) fn rolls_back(&self) -> bool {
        matches!(self.0, Plan::Update(_, _, Some(_)))
    }
}

impl Engine {
    /// Plans the receive of a stream.
    ///
    /// # Errors
    /// Any reason to refuse the stream.
    pub(super) async fn plan_receive(
        &self,
        spec: &ReceiveSpec,
        begin: &StreamBegin,
    ) -> Result<Prospect, DatasetError> {
        let _admin = self.admin.lock().await;
        self.plan_stream(spec, begin).await.map(Prospect)
    }

    /// Creates or finds the destination volume and claims it. The returned bool is true if the
    /// volume was rolled back.
    ///
    /// # Errors
    /// Any reason to refuse the stream; nothing has changed then.
    pub(super) async fn begin_receive(
        &self,
        spec: &ReceiveSpec,
        begin: StreamBegin,
    ) -> Result<(Claim, bool), DatasetError> {
        let _admin = self.admin.lock().await;
        let plan = self.plan_stream(spec, &begin).await?;
        // Count the final snapshot, and the new volume if the stream creates one.
        self.refuse_too_many(1 + usize::from(matches!(plan, Plan::Make(_))))?;
        match plan {
            Plan::Make(origin) => Ok((self.make_for(spec, origin, begin).await?, false)),
            Plan::GoOn(volume) => Ok((self.go_on(&volume, begin)?, false)),
            Plan::Update(volume, target, newer) => {
                let _hold = volume.open_objects()?;
                if let Some(newer) = &newer {
                    self.put_back(&volume, &target, newer, |_| {}).await?;
                }
                Ok((self.update(&volume, &target, begin).await?, newer.is_some()))
            }
        }
    }

    /// Validates the header of a stream and decides which dataset receives it. The caller holds the
    /// admin lock.
    async fn plan_stream(
        &self,
        spec: &ReceiveSpec,
        begin: &StreamBegin,
    ) -> Result<Plan, DatasetError> {
        let name = self.full_name(&spec.volume);
        if let Err(error) = names::snapshot(&format!("{name}@{}", begin.snapshot)) {
            let why = format!("cannot receive this stream: {error}");
            return Err(DatasetError::Unfit { name, why });
        }
        self.core.pool.check_alive()?;
        self.check_record(&spec.volume, begin.record_size)?;
        let start = (ObjectId(0), 0);
        let Ok(volume) = self.volume(&spec.volume) else {
            check_first(&name, begin, start)?;
            let origin = self.origin_for(name.clone(), begin, spec.mark.as_ref())?;
            origin.as_ref().map_or(Ok(()), |origin| check_base(name, begin, origin))?;
            return Ok(Plan::Make(origin));
        };
        if let Some(mark) = &spec.mark {
            let own = volume.state.lock().record.properties.clone();
            let inherits = !own.user.contains_key(&mark.property);
            let pool = &self.core.own.read().record.properties;
            if !mark.is_on(if inherits { pool } else { &own }) {
                return Err(mark.refusal(name));
            }
        }
        if descent(&volume.state.lock().record).receiving.is_some() {
            let record = volume.state.lock().record.clone();
            self.refuse_other(&volume.state.lock(), begin)?;
            check_base(name, begin, &record)?;
            return Ok(Plan::GoOn(volume));
        }
        let target = self.target_of(&volume, begin)?;
        check_base(name.clone(), begin, &target)?;
        check_first(&name, begin, start)?;
        // Commit first: while a volume has dirty data, it differs from every snapshot.
        self.core.want(self.core.open_txg());
        self.commit().await?;
        if stands_at(&volume.state.lock(), &target) {
            return Ok(Plan::Update(volume, target, None));
        }
        if !spec.roll_back {
            return Err(was_changed(name, &target));
        }
        let newer = newer_than(&volume, &target);
        let goes = |snapshot: &Snapshot| newer.contains(&snapshot.record.id);
        self.refuse_clones(&volume, goes)?;
        self.refuse_held(&volume.state.lock(), goes)?;
        Ok(Plan::Update(volume, target, Some(newer)))
    }

    /// Claims a volume for the stream, if the volume has the content of the stream's base snapshot.
    async fn update(
        &self,
        volume: &Arc<Volume>,
        target: &DatasetRecord,
        begin: StreamBegin,
    ) -> Result<Claim, DatasetError> {
        let claim = {
            let mut state = volume.state.lock();
            if !stands_at(&state, target) {
                // A client wrote to the volume after the first check.
                return Err(was_changed(self.full_name(&state.record.name), target));
            }
            let old = state.record.size_bytes;
            if begin.size_bytes < old {
                // Make the blocks beyond the new end holes: a volume has no data beyond its end.
                if !self.core.admit_trim(0) {
                    return Err(volume.core.full());
                }
                let bytes = old - begin.size_bytes;
                volume.put_received(&mut state, begin.size_bytes / BLOCK, Payload::Zero { bytes });
            }
            state.record.size_bytes = begin.size_bytes;
            descent_mut(&mut state.record).receiving = Some(receiving(&begin, false));
            state.record_dirty = true;
            state.object.log.skip_until(self.core.open_txg());
            Claim::new(volume, &mut state, begin)
        };
        self.commit_change().await?;
        Ok(claim)
    }

    /// Base snapshot of a stream into an existing volume.
    fn target_of(
        &self,
        volume: &Volume,
        begin: &StreamBegin,
    ) -> Result<DatasetRecord, DatasetError> {
        let name = {
            let state = volume.state.lock();
            let name = self.full_name(&state.record.name);
            let is_it = |s: &&Snapshot| s.is_active() && s.moment().guid == begin.to;
            if let Some(same) = state.snapshots.iter().find(is_it) {
                let name = format!("{name}@{}", same.record.name);
                return Err(DatasetError::SnapshotExists { name });
            }
            if state.snapshot(&begin.snapshot).is_some() {
                let name = format!("{name}@{}", begin.snapshot);
                return Err(DatasetError::SnapshotClash { name });
            }
            name
        };
        let Some(guid) = begin.from else { return Err(DatasetError::Taken { name }) };
        self.standing_at(volume, guid).ok_or(DatasetError::NoFrom { name, guid })
    }

    /// Refuses a stream that is not the unfinished stream of the volume, or that cannot resume it.
    fn refuse_other(&self, state: &State, begin: &StreamBegin) -> Result<(), DatasetError> {
        let name = self.full_name(&state.record.name);
        let there = descent(&state.record).receiving.clone().expect("checked by the caller");
        if there.to != begin.to || there.from != begin.from {
            self.refuse_receiving(state)?;
        }
        if state.claimed {
            let why = "is receiving a stream now".to_owned();
            let next = Some("weir stream list".to_owned());
            return Err(DatasetError::InUse { name, why, next });
        }
        check_first(&name, begin, there.next())
    }

    /// Resumes an interrupted stream.
    fn go_on(&self, volume: &Arc<Volume>, begin: StreamBegin) -> Result<Claim, DatasetError> {
        let mut state = volume.state.lock();
        self.refuse_other(&state, &begin)?;
        Ok(Claim::new(volume, &mut state, begin))
    }

    /// Origin of the volume that a stream creates. `None`: the volume begins empty.
    fn origin_for(
        &self,
        name: String,
        begin: &StreamBegin,
        mark: Option<&Mark>,
    ) -> Result<Option<DatasetRecord>, DatasetError> {
        let Some(guid) = begin.from else { return Ok(None) };
        let is_it = |s: &Snapshot| begin.is_clone && s.moment().guid == guid;
        // A clone prevents the destruction of its origin, so the origin must carry the sender's
        // mark too.
        let is_allowed = |s: &Snapshot| mark.is_none_or(|mark| mark.is_on(&s.record.properties));
        if let Some(origin) = self.find_snapshot(|s| is_it(s) && is_allowed(s)) {
            return Ok(Some(origin));
        }
        match (self.find_snapshot(is_it), mark) {
            (Some(origin), Some(mark)) => {
                let (volume, own) = self.name_of(origin.id).unwrap_or_default();
                Err(mark.refusal(self.snapshot_name(&volume, &own.unwrap_or_default())))
            }
            _ => Err(DatasetError::NoFrom { name, guid }),
        }
    }

    /// Creates the volume of a stream, empty or as a clone of the base snapshot.
    async fn make_for(
        &self,
        spec: &ReceiveSpec,
        origin: Option<DatasetRecord>,
        begin: StreamBegin,
    ) -> Result<Claim, DatasetError> {
        if let Some(objects) = &begin.objects {
            self.core.pool.require_objects(Layout::folds_names(&objects.layer)).await?;
        }
        let mut came = Descent { receiving: Some(receiving(&begin, true)), ..Descent::default() };
        let id = self.new_dataset();
        let size = VolumeSize { bytes: begin.size_bytes, record: begin.record_size };
        let mut record = self.empty_record(id, &spec.volume, size, begin.compression.into());
        record.properties.user.extend(spec.mark.as_ref().map(Mark::as_property));
        let mut cut = 0;
        if let Some(origin) = origin {
            came.origin = Some(Origin { snapshot: origin.id, txg: moment(&origin).txg });
            came.inherited_units = origin.tree_units;
            record.root = origin.root;
            record.used_blocks = origin.used_blocks;
            record.stored_units = origin.stored_units;
            record.shared_units = origin.shared_units;
            record.tree_units = origin.tree_units;
            cut = origin.size_bytes.saturating_sub(begin.size_bytes);
        }
        record.objects =
            begin.objects.map(|objects| ObjectTable { freed_object: 0, layer: objects.layer });
        record.kind = DatasetKind::Volume(came);
        let volume = Arc::new(Volume::new(Arc::clone(&self.core), record, true));
        let claim = {
            // Lock the list against a freeze, as for any new volume.
            let mut list = self.volume_list.write();
            let mut state = volume.state.lock();
            state.object.log.skip_until(self.core.open_txg());
            state.apply_properties(&self.core);
            if cut > 0 {
                if !self.core.admit_trim(0) {
                    return Err(volume.core.full());
                }
                let first = begin.size_bytes / BLOCK;
                volume.put_received(&mut state, first, Payload::Zero { bytes: cut });
            }
            list.push(Arc::clone(&volume));
            Claim::new(&volume, &mut state, begin)
        };
        self.commit_change().await?;
        Ok(claim)
    }
}

/// Refuses a stream whose base is another kind of dataset in this pool, or has another record size.
fn check_base(name: String, begin: &StreamBegin, from: &DatasetRecord) -> Result<(), DatasetError> {
    let unfit = |why: &str| Err(DatasetError::Unfit { name: name.clone(), why: why.to_owned() });
    match (&begin.objects, &from.objects) {
        (Some(_), None) => return unfit("is a volume, and the stream has many objects"),
        (None, Some(_)) => return unfit("has many objects, and the stream is of a volume"),
        (Some(brought), Some(there)) if brought.layer != there.layer => {
            return unfit("belongs to another filesystem than the stream");
        }
        _ => {}
    }
    if begin.record_size == from.record_size {
        return Ok(());
    }
    let (there, brought) = (from.record_size, begin.record_size);
    let why = format!("has records of {there}, and the stream has records of {brought}");
    Err(DatasetError::Unfit { name, why })
}

/// Refuses a stream that begins after `next`, the record of an object at which the receive resumes.
fn check_first(name: &str, begin: &StreamBegin, next: (ObjectId, u64)) -> Result<(), DatasetError> {
    let first_object = begin.objects.map_or(ObjectId::VOLUME, |objects| objects.first);
    let first = (first_object, begin.first_record);
    if first <= next {
        return Ok(());
    }
    let place = |(object, record): (ObjectId, u64)| match begin.objects {
        None => format!("record {record}"),
        Some(_) => format!("record {record} of object {}", object.0),
    };
    let why = format!(
        "has the stream up to {}, and this one resumes at {}; send with the token that 'weir \
         receive --token' prints",
        place(next),
        place(first)
    );
    Err(DatasetError::Unfit { name: name.to_owned(), why })
}

fn was_changed(name: String, target: &DatasetRecord) -> DatasetError {
    DatasetError::Changed { name, snapshot: target.name.clone() }
}

fn receiving(begin: &StreamBegin, is_new: bool) -> Receiving {
    Receiving {
        to: begin.to,
        from: begin.from,
        is_new,
        next_object: ObjectId(0),
        next_record: 0,
        snapshot: begin.snapshot.clone(),
        created_unix_ms: begin.created_unix_ms,
    }
}
