//! Calls that get, set and inherit properties.
//!
//! The table of properties is in weir-api, their effects are in weir-dataset.
//!
//! Invariants:
//! - the server returns a value exactly as the table of properties defines it; the command line
//!   formats it for users;
//! - a change runs on its pool's thread, one at a time.

use std::sync::Arc;

use weir_api::types::{
    DatasetKind, GetProperties, Outcome, PROPERTIES, Property, PropertyChange, PropertyInherit,
    PropertyList, PropertySet, PropertySource, PropertySpec, PropertyValues, Setting,
    UNKNOWN_MODULE, Volume, VolumeChange, VolumeCreate, check_volume_size, find_property,
    is_user_property, record_size,
};
use weir_api::{ApiError, Handle};
use weir_base::ErrorKind;
use weir_base::names::{self, PropertyOf};
use weir_dataset::{
    Engine, PropertiesOf, PropertyChange as Change, PropertyTarget, SnapshotId, SnapshotInfo,
    VolumeSize,
};

use crate::answer::errors::{api_error, not_found, outcome};
use crate::answer::layout::case_of;
use crate::answer::names::{Of, hexadecimal, split};
use crate::answer::pool_status;
use crate::disks::pool_thread::OpenPool;
use crate::state::server::{Entry, Manager};
use crate::volumes::kinds;

fn bad(error: impl Into<weir_api::Error>) -> ApiError {
    ApiError::from(error.into())
}

/// Splits the full name of an object into its pool and the object's name in the pool.
fn target(full: &str) -> Result<(&str, PropertyTarget), ApiError> {
    match names::property_of(full).map_err(bad)? {
        PropertyOf::Pool => Ok((full, PropertyTarget::Pool)),
        PropertyOf::Volume => {
            let (pool, own) = split(full)?;
            Ok((pool, PropertyTarget::Volume(own.to_owned())))
        }
        PropertyOf::Snapshot => {
            let (volume, name) = names::snapshot(full).map_err(bad)?;
            let (pool, own) = split(volume)?;
            let id = SnapshotId::new(own, name);
            Ok((pool, PropertyTarget::Snapshot(id)))
        }
    }
}

/// Returns the property changes for the engine, and the new volume size if the values contain one.
pub(crate) fn changes(
    values: &PropertyValues,
    of: PropertyOf,
) -> Result<(Vec<Change>, Option<u64>), ApiError> {
    let (mut changes, mut size) = (Vec::new(), None);
    for setting in values.settings(of)? {
        match setting {
            Setting::Stored(spec, value) => changes.push(Change::Set(spec, Some(value))),
            Setting::User(name, value) => changes.push(Change::User(name, Some(value))),
            Setting::Size(bytes) => size = Some(bytes),
        }
    }
    Ok((changes, size))
}

/// Reads the properties of one object.
struct PropertyReader<'a> {
    full: &'a str,
    set: PropertiesOf,
    /// Full names of the objects from which the object inherits, the nearest first.
    above: Vec<String>,
}

/// Source of a property's value.
enum From {
    Own,
    Nowhere,
    /// The object inherits the value from the ancestor this number of levels up; 1 is the nearest.
    Above(usize),
    Fixed,
}

impl PropertyReader<'_> {
    fn report(&self, property: &str, value: impl Into<String>, from: &From) -> Property {
        let (source, inherited_from) = match from {
            From::Own => (PropertySource::Local, None),
            From::Nowhere => (PropertySource::Default, None),
            From::Above(steps) => (PropertySource::Inherited, self.above.get(steps - 1).cloned()),
            From::Fixed => (PropertySource::None, None),
        };
        Property {
            name: self.full.to_owned(),
            property: property.to_owned(),
            value: value.into(),
            source,
            inherited_from,
        }
    }

    /// Returns the value of a property, or `None` if the property cannot be set.
    fn settable(&self, spec: &PropertySpec) -> Option<Property> {
        if spec.id == 0 {
            return None;
        }
        let (value, from) = match self.set.found(spec) {
            Some((bytes, 0)) => (spec.show(&bytes)?, From::Own),
            Some((bytes, at)) => (spec.show(&bytes)?, self.above(at)),
            None => (spec.default_value()?, From::Nowhere),
        };
        Some(self.report(spec.name, value, &from))
    }

    /// Returns the source that is `level` levels up. For a user property the engine counts the pool
    /// of a volume as two levels up, although the volume has only one ancestor.
    fn above(&self, level: usize) -> From {
        From::Above(level.min(self.above.len()))
    }

    /// Returns properties that only a newer Weir version knows, with their values in hexadecimal.
    fn unknown(&self) -> impl Iterator<Item = Property> {
        self.set.unknown().map(|(id, bytes)| {
            self.report(&format!("{UNKNOWN_MODULE}{id}"), hexadecimal(bytes), &From::Own)
        })
    }

    /// Returns a user property; it has no value unless a user has set it.
    fn user(&self, property: &str) -> Property {
        match self.set.user(property) {
            None => self.report(property, "-", &From::Fixed),
            Some((value, 0)) => self.report(property, value, &From::Own),
            Some((value, at)) => self.report(property, value, &self.above(at)),
        }
    }

    /// Returns the requested properties, or all of them in the order of the table. `fixed` returns
    /// the values of read-only properties.
    fn some(
        &self,
        of: PropertyOf,
        wanted: &[String],
        fixed: impl Fn(&PropertySpec) -> String,
    ) -> Vec<Property> {
        let one = |spec: &PropertySpec| {
            if !spec.of.contains(&of) {
                return None;
            }
            let settable = self.settable(spec);
            Some(settable.unwrap_or_else(|| self.report(spec.name, fixed(spec), &From::Fixed)))
        };
        if wanted.is_empty() {
            let names = self.set.user_names();
            let own = names.iter().map(|name| self.user(name));
            let all = PROPERTIES.iter().copied().filter_map(one).chain(own);
            return all.chain(self.unknown()).collect();
        }
        let named = |name: &String| {
            if let Some(unknown) = self.unknown().find(|found| found.property == *name) {
                return Some(unknown);
            }
            if is_user_property(name) {
                return Some(self.user(name));
            }
            let spec = find_property(name).ok()?;
            Some(one(spec).unwrap_or_else(|| self.report(name, "-", &From::Fixed)))
        };
        wanted.iter().filter_map(named).collect()
    }
}

fn ratio(ratio: f64) -> String {
    format!("{ratio:.2}")
}

fn of_pool(engine: &Engine, spec: &PropertySpec) -> String {
    let pool = engine.pool();
    match spec.name {
        "type" => "pool".to_owned(),
        "guid" => pool.guid().to_string(),
        "used" => pool.space().live_bytes.to_string(),
        "available" => engine.available_bytes().to_string(),
        "compressratio" => ratio(pool_status::pool_ratio(engine)),
        _ => "-".to_owned(),
    }
}

fn of_volume(volume: &Volume, guid: u64, spec: &PropertySpec) -> String {
    let space = &volume.space;
    let bytes = match spec.name {
        "type" => return volume.kind.name().to_owned(),
        "origin" => return volume.origin.clone().unwrap_or_else(|| "-".to_owned()),
        "compressratio" => return ratio(volume.compression_ratio),
        "guid" => return guid.to_string(),
        "creation" => volume.created_unix_ms / 1000,
        "size" | "record_size" if volume.kind == DatasetKind::Filesystem => {
            return "-".to_owned();
        }
        "size" => volume.size_bytes,
        "record_size" => volume.record_bytes,
        "used" => space.used_bytes,
        "available" => space.available_bytes,
        "referenced" => space.referenced_bytes,
        "written" => space.written_bytes,
        "usedbysnapshots" => space.by_snapshots_bytes,
        "usedbydataset" => space.by_volume_bytes,
        "usedbyrefreservation" => space.by_refreservation_bytes,
        _ => return "-".to_owned(),
    };
    bytes.to_string()
}

/// Returns a read-only property of a snapshot. `volume`: the dataset of the snapshot, which has the
/// same record size and comparison of names.
fn of_snapshot(
    pool: &str,
    info: &SnapshotInfo,
    volume: &weir_dataset::Volume,
    spec: &PropertySpec,
) -> String {
    let bytes = match spec.name {
        "type" => return "snapshot".to_owned(),
        "case" => return case_of(volume).to_owned(),
        "guid" => return info.guid.to_string(),
        "clones" if info.clones.is_empty() => return "-".to_owned(),
        "clones" => {
            let full: Vec<_> = info.clones.iter().map(|own| format!("{pool}/{own}")).collect();
            return full.join(",");
        }
        "creation" => info.created_unix_ms / 1000,
        "size" => info.size_bytes,
        "record_size" => volume.record_size().bytes() as u64,
        "used" => info.used_bytes,
        "referenced" => info.referenced_bytes,
        "written" => info.written_bytes,
        _ => return "-".to_owned(),
    };
    bytes.to_string()
}

impl Handle<GetProperties> for Manager {
    /// Returns properties of pools, volumes and snapshots with the source of each value.
    async fn handle(&self, query: GetProperties) -> Result<PropertyList, ApiError> {
        let GetProperties { mut of, properties: wanted } = query;
        if of.is_empty() {
            of = self.all_names();
        }
        let mut properties = Vec::new();
        for full in &of {
            properties.append(&mut self.properties_of(full, &wanted).await?);
        }
        Ok(PropertyList { properties })
    }
}

impl Manager {
    /// Returns the full names of all open pools and their volumes.
    fn all_names(&self) -> Vec<String> {
        let mut names = Vec::new();
        for (pool, entry) in &*self.pools.read() {
            let Entry::Open(open) = entry else { continue };
            names.push(pool.clone());
            let mut own: Vec<String> =
                open.engine.volumes().iter().map(|v| format!("{pool}/{}", v.info().name)).collect();
            own.sort();
            names.append(&mut own);
        }
        names
    }

    /// Returns the requested properties of an object, or all of its properties.
    async fn properties_of(
        &self,
        full: &str,
        wanted: &[String],
    ) -> Result<Vec<Property>, ApiError> {
        let (pool, target) = target(full)?;
        let open = self.pool(pool)?;
        let engine = &open.engine;
        let set = engine.properties(&target).map_err(|error| api_error(&error))?;
        let mut teller = PropertyReader { full, set, above: Vec::new() };
        match target {
            PropertyTarget::Pool => {
                Ok(teller.some(PropertyOf::Pool, wanted, |spec| of_pool(engine, spec)))
            }
            PropertyTarget::Volume(own) => {
                teller.above.push(pool.to_owned());
                let volume = engine.volume(&own).map_err(|error| api_error(&error))?;
                let guid = volume.guid();
                let exports = self.exports_of(Of::Dataset(full));
                let shown = pool_status::volume(engine, &volume, exports);
                let fixed = |spec: &PropertySpec| match spec.name {
                    "case" => case_of(&volume).to_owned(),
                    _ => of_volume(&shown, guid, spec),
                };
                Ok(teller.some(PropertyOf::Volume, wanted, fixed))
            }
            PropertyTarget::Snapshot(id) => {
                teller.above.extend([format!("{pool}/{}", id.volume), pool.to_owned()]);
                let mut infos = self.snapshot_infos(&open, vec![id]).await?;
                let (own, info) = infos.pop().ok_or_else(|| not_found("snapshot", full))?;
                let volume = engine.volume(&own).map_err(|error| api_error(&error))?;
                let fixed = |spec: &PropertySpec| of_snapshot(pool, &info, &volume, spec);
                Ok(teller.some(PropertyOf::Snapshot, wanted, fixed))
            }
        }
    }
}

impl Handle<PropertySet> for Manager {
    /// Sets properties: all of them or none.
    ///
    /// # Errors
    /// `Invalid` for a quota below the used space, `NoSpace` for a reservation above the free space
    /// of the pool.
    async fn handle(&self, request: PropertySet) -> Result<PropertyChange, ApiError> {
        let PropertySet { name, properties } = request;
        let (pool, target) = target(&name)?;
        let of = names::property_of(&name).map_err(bad)?;
        let (changes, size) = changes(&properties, of)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        let made = match (size, &target) {
            (Some(size), PropertyTarget::Volume(own)) => {
                let made = resize(&open, own.clone(), size).await;
                self.report_size(&name);
                made
            }
            _ => change(&open, vec![target], changes).await,
        };
        let outcome = outcome(made?);
        let wanted: Vec<String> = properties.0.into_keys().collect();
        Ok(PropertyChange { outcome, properties: self.properties_of(&name, &wanted).await? })
    }
}

impl Handle<PropertyInherit> for Manager {
    /// Removes the local value of a property, so that the object inherits the value again.
    async fn handle(&self, request: PropertyInherit) -> Result<PropertyChange, ApiError> {
        let PropertyInherit { name, property, recursive } = request;
        let (pool, target) = target(&name)?;
        let inherit = if is_user_property(&property) {
            Change::User(property.clone(), None)
        } else {
            match find_property(&property)? {
                spec if spec.inherits => Change::Set(spec, None),
                spec => {
                    let message = format!("property {} is not inherited", spec.name);
                    return Err(ApiError::new(ErrorKind::Invalid, message));
                }
            }
        };
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        let mut targets = vec![target];
        if recursive {
            let snapshots = matches!(inherit, Change::User(..));
            let below = below(&open.engine, &targets[0], snapshots);
            targets.extend(below.map_err(|error| api_error(&error))?);
        }
        let outcome = outcome(change(&open, targets, vec![inherit]).await?);
        let properties = self.properties_of(&name, &[property]).await?;
        Ok(PropertyChange { outcome, properties })
    }
}

impl Handle<VolumeCreate> for Manager {
    /// Creates a thin volume. Answers `unchanged` for a volume of this name, size and properties.
    async fn handle(&self, request: VolumeCreate) -> Result<VolumeChange, ApiError> {
        let VolumeCreate { name, size_bytes, record_bytes, properties } = request;
        let (changes, _) = changes(&properties, PropertyOf::Volume)?;
        let size = VolumeSize { bytes: size_bytes, record: record_size(record_bytes)? };
        self.change_volume(&name, Outcome::Created, move |engine, own| async move {
            engine.create_volume_with(&own, size, &changes).await
        })
        .await
    }
}

/// Resizes a volume; an error if the size is not a whole number of the volume's records.
pub(crate) async fn resize(
    open: &OpenPool,
    own: String,
    bytes: u64,
) -> Result<weir_dataset::Outcome, ApiError> {
    let volume = open.engine.volume(&own).map_err(|error| api_error(&error))?;
    let full = format!("{}/{own}", open.engine.pool().name());
    kinds::check_kind(&volume, &full, DatasetKind::Volume)?;
    check_volume_size(bytes, volume.record_size())?;
    open.call(move |engine| async move { engine.resize_volume(&own, bytes).await }).await
}

/// Returns the objects below an object: the volumes of a pool, and with `snapshots` also the
/// snapshots of the pool's volumes or of one volume.
fn below(
    engine: &Arc<Engine>,
    of: &PropertyTarget,
    snapshots: bool,
) -> Result<Vec<PropertyTarget>, weir_dataset::DatasetError> {
    let (mut found, volumes) = match of {
        PropertyTarget::Snapshot(_) => return Ok(Vec::new()),
        PropertyTarget::Volume(name) => (Vec::new(), vec![name.clone()]),
        PropertyTarget::Pool => {
            let names: Vec<String> =
                engine.volumes().iter().map(|volume| volume.info().name).collect();
            (names.iter().cloned().map(PropertyTarget::Volume).collect(), names)
        }
    };
    for volume in volumes.into_iter().filter(|_| snapshots) {
        for name in engine.snapshot_names(&volume)? {
            found.push(PropertyTarget::Snapshot(SnapshotId { volume: volume.clone(), name }));
        }
    }
    Ok(found)
}

async fn change(
    open: &OpenPool,
    targets: Vec<PropertyTarget>,
    changes: Vec<Change>,
) -> Result<weir_dataset::Outcome, ApiError> {
    let made = move |engine: Arc<Engine>| async move {
        engine.change_properties(&targets, &changes).await
    };
    open.call(made).await
}

#[cfg(test)]
mod tests {
    use weir_api::types::PropertyKind;

    use super::*;

    #[test]
    fn every_settable_property_is_returned() {
        let teller =
            PropertyReader { full: "tank/v", set: PropertiesOf::default(), above: Vec::new() };
        for spec in PROPERTIES.iter().filter(|spec| spec.name != "size") {
            let told = teller.settable(spec);
            assert_eq!(told.is_some(), spec.values.is_some(), "{}", spec.name);
            let Some(told) = told else { continue };
            assert_eq!(told.source, PropertySource::Default);
            let default = if spec.kind == PropertyKind::Limit { "0" } else { spec.default };
            assert_eq!(told.value, default, "{}", spec.name);
        }
    }

    #[test]
    fn properties_of_a_newer_weir_are_shown_by_number() {
        let mut record = [0; 4096];
        let stored = [19, 9, 0, 1, 0, 200, 1, 3, 0, 0x0a, 0xff, 0];
        record[8..8 + stored.len()].copy_from_slice(&stored);
        let own = weir_format::PoolRecord::decode(&record).unwrap().properties;
        let set = PropertiesOf { own, volume: None, pool: None };
        let reader = PropertyReader { full: "tank", set, above: Vec::new() };
        let read = |wanted: &[&str]| {
            let wanted: Vec<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
            reader.some(PropertyOf::Pool, &wanted, |_| "-".to_owned())
        };
        let all = read(&[]);
        let shown = all.last().unwrap();
        assert_eq!((&*shown.property, &*shown.value), ("unknown:456", "0aff00"));
        assert_eq!(shown.source, PropertySource::Local);
        assert_eq!(read(&["unknown:456"]), std::slice::from_ref(shown));
        assert_eq!(read(&["unknown:457"])[0].value, "-");
    }

    #[test]
    fn user_properties_are_inherited_over_two_levels() {
        let with = |value: &str| {
            let mut properties = weir_format::Properties::default();
            properties.user.insert("a:b".to_owned(), value.to_owned());
            properties
        };
        let none = weir_format::Properties::default;
        let source = |own, volume: Option<weir_format::Properties>, pool| {
            let above = match volume {
                Some(_) => vec!["tank/v".to_owned(), "tank".to_owned()],
                None => vec!["tank".to_owned()],
            };
            let set = PropertiesOf { own, volume, pool: Some(pool) };
            let told = PropertyReader { full: "x", set, above }.user("a:b");
            (told.value, told.inherited_from)
        };
        let from = |name: &str| Some(name.to_owned());
        assert_eq!(source(with("1"), Some(with("2")), with("3")), ("1".into(), None));
        assert_eq!(source(none(), Some(with("2")), with("3")), ("2".into(), from("tank/v")));
        assert_eq!(source(none(), Some(none()), with("3")), ("3".into(), from("tank")));
        assert_eq!(source(none(), None, with("3")), ("3".into(), from("tank")));
        assert_eq!(source(none(), None, none()), ("-".into(), None));
    }
}
