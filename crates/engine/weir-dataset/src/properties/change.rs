//! Properties of the pool, of volumes and of snapshots: the set values, and the effect of a change.
//!
//! weir-api parses names and values; `accounting::limits` enforces limits.
//!
//! Invariants:
//! - a volume inherits from the pool and a snapshot from its volume, at the time of the query: only
//!   set values are stored, and a change of an inherited value takes effect at once;
//! - one txg stores a change of several properties or several datasets as a whole, or the change
//!   fails and has no effect;
//! - a limit is set only if it holds at that time.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::names::PropertyOf;
use weir_base::property::{
    ATIME, Key, Kind, MOUNTPOINT, Property, REFRESERVATION, Refreservation, SNAPDIR, Value,
};
use weir_format::{
    Properties, USER_BYTES_MAX, USER_NAME_BYTES_MAX, USER_PROPERTIES_MAX, USER_VALUE_BYTES_MAX,
};

use crate::error::DatasetError;
use crate::objects::record::VolumeSize;
use crate::state::engine::Engine;
use crate::state::limits::thick_bytes;
use crate::state::outcome::Outcome;
use crate::state::properties::found_at;
use crate::state::snapshot::SnapshotId;
use crate::state::volume::{State, Volume};

/// The pool or dataset on which a property is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyTarget {
    /// The pool itself.
    Pool,
    /// A volume, by its name inside the pool.
    Volume(String),
    /// A snapshot.
    Snapshot(SnapshotId),
}

/// One property to set or unset.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PropertyChange {
    /// A property of the table, with its encoded value ([`Value::encode`]). `None`: the property is
    /// inherited or has its default.
    Set(&'static Property, Option<Vec<u8>>),
    /// A user property, with its value. `None`: the property is unset.
    User(String, Option<String>),
}

impl PropertyChange {
    /// Change that sets a property.
    pub fn set<T: Value>(key: Key<T>, value: impl Into<T>) -> Self {
        Self::Set(key.row, Some(value.into().encode()))
    }

    /// Change that unsets a property.
    pub fn unset<T>(key: Key<T>) -> Self {
        Self::Set(key.row, None)
    }

    /// Checks that a target can have the property.
    fn fits(&self, target: &PropertyTarget) -> Result<(), String> {
        let Self::Set(row, _) = self else { return Ok(()) };
        let of = match target {
            PropertyTarget::Pool => PropertyOf::Pool,
            PropertyTarget::Volume(_) => PropertyOf::Volume,
            PropertyTarget::Snapshot(_) => PropertyOf::Snapshot,
        };
        let why = match of {
            _ if row.id == 0 => return Err(format!("cannot store {}", row.name)),
            of if row.of.contains(&of) => return Ok(()),
            PropertyOf::Snapshot => "is a snapshot, of which only user properties can be set",
            PropertyOf::Pool | PropertyOf::Volume => {
                "is a pool, and only volumes can have this property"
            }
        };
        Err(why.to_owned())
    }

    fn apply(&self, to: &mut Properties, size: VolumeSize) {
        match self {
            Self::Set(row, value) => {
                to.set_bytes(
                    row,
                    value.as_ref().map(|value| resolved(row, value, size)).as_deref(),
                );
            }
            Self::User(name, None) => drop(to.user.remove(name)),
            Self::User(name, Some(value)) => {
                to.user.insert(name.clone(), value.clone());
            }
        }
    }

    /// True if the property is a quota or a reservation.
    fn is_limit(&self) -> bool {
        matches!(self, Self::Set(row, _) if row.kind == Kind::Limit)
    }
}

/// Refuses properties of filesystems on a volume. `has_objects`: the dataset is a filesystem.
fn check_kind(name: &str, properties: &Properties, has_objects: bool) -> Result<(), DatasetError> {
    let has_mountpoint = properties.get(MOUNTPOINT).is_some_and(|at| at.0.is_some());
    let property = if has_objects {
        return Ok(());
    } else if has_mountpoint {
        "a mountpoint"
    } else if properties.get(ATIME).is_some() {
        "an atime"
    } else if properties.get(SNAPDIR).is_some() {
        "a snapdir"
    } else {
        return Ok(());
    };
    let why = format!("is a volume, and only filesystems have {property}");
    Err(DatasetError::Unfit { name: name.to_owned(), why })
}

/// Value that a directory entry stores: a refreservation of `auto` becomes a number of bytes.
fn resolved(row: &Property, value: &[u8], size: VolumeSize) -> Vec<u8> {
    let is_auto =
        *row == *REFRESERVATION.row && Refreservation::decode(value) == Some(Refreservation::Auto);
    if is_auto { Refreservation::Bytes(thick_bytes(size)).encode() } else { value.to_vec() }
}

/// Properties set on a target and on the levels from which it inherits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PropertiesOf {
    /// Properties set on the target itself.
    pub own: Properties,
    /// Properties set on the volume, if the target is a snapshot.
    pub volume: Option<Properties>,
    /// Properties set on the pool, if the target is a volume or snapshot.
    pub pool: Option<Properties>,
}

/// Planned change of the pool or of one dataset.
struct Planned {
    volume: Option<Arc<Volume>>,
    snapshot: Option<String>,
    before: Properties,
    after: Properties,
}

impl Engine {
    /// Returns the properties that are set on a target and on the levels above it.
    ///
    /// # Errors
    /// `NotFound` or `NoSnapshot` if the target does not exist.
    pub fn properties(&self, target: &PropertyTarget) -> Result<PropertiesOf, DatasetError> {
        let pool = self.core.own.read().record.properties.clone();
        let of_volume = |name: &str| {
            Ok::<_, DatasetError>(self.volume(name)?.state.lock().record.properties.clone())
        };
        match target {
            PropertyTarget::Pool => Ok(PropertiesOf { own: pool, volume: None, pool: None }),
            PropertyTarget::Volume(name) => {
                Ok(PropertiesOf { own: of_volume(name)?, volume: None, pool: Some(pool) })
            }
            PropertyTarget::Snapshot(id) => {
                let volume = self.volume(&id.volume)?;
                let state = volume.state.lock();
                let snapshot = state.snapshot(&id.name).ok_or_else(|| self.no_snapshot(id))?;
                // A snapshot stores its volume's compression, so that clones can inherit it. The
                // snapshot itself has no such property.
                let own = snapshot.record.properties.clone();
                let volume = Some(state.record.properties.clone());
                Ok(PropertiesOf { own, volume, pool: Some(pool) })
            }
        }
    }

    /// Sets properties, to the same values on each of `targets`.
    ///
    /// # Durability
    /// The properties are set after any crash once this returns. A crash before that leaves all or
    /// none.
    ///
    /// # Errors
    /// `Limit` for a quota below the present use or a reservation above a limit, `CannotReserve`
    /// for a reservation for which the pool has no space, `TooMany` and `Unfit`; nothing has
    /// changed then.
    #[boxed(?Send)]
    pub async fn change_properties(
        &self,
        targets: &[PropertyTarget],
        changes: &[PropertyChange],
    ) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        if changes.iter().any(PropertyChange::is_limit) {
            // Commit and try again: dirty data counts at its worst-case cost, and after a commit
            // its actual cost is known.
            self.core.want(self.core.open_txg());
            self.commit().await?;
        }
        let planned: Result<Vec<_>, _> =
            targets.iter().map(|target| self.plan(target, changes)).collect();
        let mut planned = planned?;
        planned.retain(|plan| plan.before != plan.after);
        if planned.is_empty() {
            return Ok(Outcome::Unchanged);
        }
        {
            // Lock the volume list: a freeze waits for this lock, so one txg stores all changes.
            let list = self.volume_list.write();
            self.make_planned(&planned)?;
            for volume in &*list {
                let mut state = volume.state.lock();
                state.apply_properties(&self.core);
            }
        }
        self.core.measure_space();
        self.commit_change().await
    }

    /// Computes the properties of a target after the changes, and checks them.
    fn plan(
        &self,
        target: &PropertyTarget,
        changes: &[PropertyChange],
    ) -> Result<Planned, DatasetError> {
        let name = self.target_name(target);
        let before = self.properties(target)?.own;
        let (volume, snapshot) = match target {
            PropertyTarget::Pool => (None, None),
            PropertyTarget::Volume(name) => (Some(self.volume(name)?), None),
            PropertyTarget::Snapshot(id) => (Some(self.volume(&id.volume)?), Some(id.name.clone())),
        };
        let size = volume.as_ref().map_or(0.into(), |volume| volume.state.lock().size());
        let mut after = before.clone();
        for change in changes {
            if let Err(why) = change.fits(target) {
                return Err(DatasetError::Unfit { name, why });
            }
            change.apply(&mut after, size);
        }
        // Filesystems inherit properties from their pool.
        let has_objects = volume.as_ref().is_none_or(|volume| volume.object_layer().is_some());
        check_kind(&name, &after, has_objects)?;
        check_user(&name, &after)?;
        self.check_reservations(name, &before, &after, size)?;
        Ok(Planned { volume, snapshot, before, after })
    }

    /// Computes the properties of a new volume, and checks them.
    pub(crate) fn plan_new(
        &self,
        name: &str,
        size: VolumeSize,
        changes: &[PropertyChange],
    ) -> Result<Properties, DatasetError> {
        let (name, before) = (self.full_name(name), Properties::default());
        let mut after = before.clone();
        changes.iter().for_each(|change| change.apply(&mut after, size));
        // A dataset with objects has no size.
        check_kind(&name, &after, size.bytes == 0)?;
        check_user(&name, &after)?;
        self.check_reservations(name, &before, &after, size)?;
        Ok(after)
    }

    /// Refuses reservations that this pool can never grant.
    fn check_reservations(
        &self,
        name: String,
        before: &Properties,
        after: &Properties,
        size: VolumeSize,
    ) -> Result<(), DatasetError> {
        check_reservations(&name, before, after, size)?;
        let unreserved_bytes = self.core.pool.space().total_bytes;
        let needed_bytes = after.reservation_bytes();
        if needed_bytes > unreserved_bytes && needed_bytes != before.reservation_bytes() {
            let what = "the reservation";
            return Err(DatasetError::CannotReserve { name, what, needed_bytes, unreserved_bytes });
        }
        Ok(())
    }

    fn target_name(&self, target: &PropertyTarget) -> String {
        match target {
            PropertyTarget::Pool => self.core.pool.name().to_owned(),
            PropertyTarget::Volume(name) => self.full_name(name),
            PropertyTarget::Snapshot(id) => self.snapshot_name(&id.volume, &id.name),
        }
    }

    /// Makes all planned changes or none. The caller holds the lock of the volume list.
    fn make_planned(&self, planned: &[Planned]) -> Result<(), DatasetError> {
        for (at, plan) in planned.iter().enumerate() {
            let made = match &plan.volume {
                None => self.make_own(plan),
                Some(volume) => self.make_of_volume(volume, plan),
            };
            if let Err(error) = made {
                planned[..at].iter().for_each(|plan| self.undo(plan));
                return Err(error);
            }
        }
        Ok(())
    }

    /// Changes the directory entry of the pool itself.
    fn make_own(&self, plan: &Planned) -> Result<(), DatasetError> {
        let quota = plan.after.quota_bytes();
        if quota > 0 && quota != plan.before.quota_bytes() {
            let used = self.core.pool.space().live_bytes + self.core.claimed();
            check_quota(self.core.pool.name().to_owned(), quota, used)?;
        }
        self.set_own(plan.after.clone());
        Ok(())
    }

    fn set_own(&self, properties: Properties) {
        let mut own = self.core.own.write();
        own.record.properties = properties;
        own.is_dirty = true;
    }

    fn make_of_volume(&self, volume: &Arc<Volume>, plan: &Planned) -> Result<(), DatasetError> {
        if let Some(name) = &plan.snapshot {
            set_of_snapshot(&mut volume.state.lock(), name, &plan.after);
            return Ok(());
        }
        let name = volume.state.lock().record.name.clone();
        let put = |properties: &Properties| {
            let mut state = volume.state.lock();
            state.record.properties = properties.clone();
            state.record_dirty = true;
            volume.measure_limits(&mut state)
        };
        let undo = || {
            put(&plan.before);
        };
        self.enlarge_reservation(&name, "its reserved space", || put(&plan.after), undo)?;
        let quota = plan.after.quota_bytes();
        if quota > 0 && quota != plan.before.quota_bytes() {
            let used = volume.state.lock().most(0);
            check_quota(self.full_name(&name), quota, used).inspect_err(|_| {
                put(&plan.before);
            })?;
        }
        Ok(())
    }

    fn undo(&self, plan: &Planned) {
        match (&plan.volume, &plan.snapshot) {
            (None, _) => self.set_own(plan.before.clone()),
            (Some(volume), Some(name)) => {
                set_of_snapshot(&mut volume.state.lock(), name, &plan.before);
            }
            (Some(volume), None) => {
                let mut state = volume.state.lock();
                state.record.properties = plan.before.clone();
                volume.measure_limits(&mut state);
            }
        }
    }
}

fn set_of_snapshot(state: &mut State, name: &str, properties: &Properties) {
    if let Some(snapshot) = state.snapshot_mut(name) {
        snapshot.record.properties = properties.clone();
        snapshot.dirty = true;
    }
}

fn check_quota(name: String, quota: u64, used: u64) -> Result<(), DatasetError> {
    if quota >= used {
        return Ok(());
    }
    let why = "already used or reserved";
    Err(DatasetError::Limit { name, property: "quota", value: quota, bound: used, why })
}

/// Refuses user properties that do not fit into a directory entry.
fn check_user(name: &str, properties: &Properties) -> Result<(), DatasetError> {
    let Properties { user, .. } = properties;
    let unfit = |why| Err(DatasetError::Unfit { name: name.to_owned(), why });
    if user.len() > USER_PROPERTIES_MAX {
        let (count, what) = (USER_PROPERTIES_MAX, "user properties");
        return Err(DatasetError::TooMany { name: name.to_owned(), count, what });
    }
    for (property, value) in user {
        if property.is_empty() || property.len() > USER_NAME_BYTES_MAX {
            return unfit(format!(
                "cannot have a user property with a name of {} bytes; at most {}",
                property.len(),
                USER_NAME_BYTES_MAX
            ));
        }
        if value.len() > USER_VALUE_BYTES_MAX {
            return unfit(format!(
                "cannot have {} bytes as the value of {property}; at most {USER_VALUE_BYTES_MAX}",
                value.len()
            ));
        }
    }
    let all = properties.user_bytes();
    if all > USER_BYTES_MAX {
        return unfit(format!(
            "cannot have {all} bytes of user properties, names and values; at most {USER_BYTES_MAX}"
        ));
    }
    Ok(())
}

/// Refuses reservations above the quota or above the volume's maximum space.
fn check_reservations(
    name: &str,
    before: &Properties,
    after: &Properties,
    size: VolumeSize,
) -> Result<(), DatasetError> {
    let limit = |property, value, bound, why| {
        Err(DatasetError::Limit { name: name.to_owned(), property, value, bound, why })
    };
    let (quota, reservation) = (after.quota_bytes(), after.reservation_bytes());
    let refreservation = after.refreservation_bytes();
    if quota > 0 && reservation > quota {
        return limit("reservation", reservation, quota, "the quota");
    }
    if quota > 0 && refreservation > quota {
        return limit("refreservation", refreservation, quota, "the quota");
    }
    let most = thick_bytes(size);
    if refreservation > most && refreservation != before.refreservation_bytes() {
        return limit(
            "refreservation",
            refreservation,
            most,
            "the maximum that the volume can use",
        );
    }
    Ok(())
}

impl PropertiesOf {
    /// Value of a property of the table, and the number of levels above the target where it is set:
    /// 0 on the target itself. `None` for the default.
    pub fn found(&self, row: &Property) -> Option<(Vec<u8>, usize)> {
        let levels = [Some(&self.own), self.volume.as_ref(), self.pool.as_ref()];
        let chain: Vec<&Properties> = levels.into_iter().flatten().collect();
        found_at(row, &chain).map(|(bytes, at)| (bytes.to_vec(), at))
    }

    /// Value of a user property, and the number of levels above the target where it is set: 0 on
    /// the target itself.
    pub fn user(&self, name: &str) -> Option<(&str, usize)> {
        let levels = [Some(&self.own), self.volume.as_ref(), self.pool.as_ref()];
        levels.into_iter().enumerate().find_map(|(at, level)| {
            let value = level?.user.get(name)?;
            Some((value.as_str(), at))
        })
    }

    /// Numbers and values of the properties of a newer Weir that are set on the target. Such
    /// properties are not inherited.
    pub fn unknown(&self) -> impl Iterator<Item = (u16, &[u8])> {
        self.own.unknown()
    }

    /// Names of all user properties that are set or inherited.
    pub fn user_names(&self) -> Vec<String> {
        let levels = [Some(&self.own), self.volume.as_ref(), self.pool.as_ref()];
        let all: BTreeSet<&String> =
            levels.into_iter().flatten().flat_map(|level| level.user.keys()).collect();
        all.into_iter().cloned().collect()
    }
}
