//! State of the fake server, and changes of that state.
//!
//! The functions that build the responses from this state are in `answers`.

use std::collections::BTreeMap;

use weir_api::types::{
    Allocated, Bookmark, CleanerStatus, ClientIo, Compression, Damage, DatasetKind, DiskIo,
    DiskStatus, ErrorCounts, Event, EventLevel, Export, ExportChange, ExportCreate, ExportKey,
    FlushCheck, FlushVerdict, Health, HistoryEntry, ListSnapshots, Outcome, PointerIo, PoolChange,
    PoolCreate, PoolCreated, PoolStatus, Property, PropertySource, PropertyValues, Removed,
    Replication, Schedule, SegmentIo, Snapshot, SnapshotChange, SnapshotList, Stream, VdevKind,
    VdevSpec, VdevStatus, Volume, VolumeChange, VolumeCreate, VolumeSpace,
};
use weir_api::{ApiError, Pending};
use weir_base::ErrorKind;

use super::sending::Session;

/// Returns an event of the pool `tank` whose message contains the wait time of the call.
pub(super) fn event(seq: u64, wait_ms: u64) -> Event {
    Event {
        seq,
        unix_ms: 1_700_000_000_000,
        level: EventLevel::Info,
        kind: "pool_create".into(),
        pool: Some("tank".into()),
        disk: None,
        message: format!("event {seq}, {wait_ms} ms"),
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) pools: BTreeMap<String, (PoolCreate, PoolStatus)>,
    pub(crate) closed: BTreeMap<String, (PoolCreate, PoolStatus)>,
    pub(crate) volumes: BTreeMap<String, Volume>,
    pub(crate) exports: BTreeMap<String, Export>,
    pub(crate) snapshots: BTreeMap<String, Snapshot>,
    pub(crate) bookmarks: BTreeMap<String, Bookmark>,
    pub(crate) schedules: BTreeMap<String, Schedule>,
    pub(crate) replications: BTreeMap<String, Replication>,
    pub(crate) shares: super::shares::Shares,
    pub(crate) targets: super::targets::Targets,
    /// Sent streams, by session.
    pub(crate) sends: BTreeMap<String, Session>,
    /// Received streams, by session: the volume and the bytes received so far.
    pub(crate) receives: BTreeMap<String, (String, Vec<u8>)>,
    /// Streams that the call `stream_list` returns.
    pub(crate) streams: Vec<Stream>,
}

pub(crate) fn compression_property(volume: &Volume) -> Property {
    Property {
        name: volume.name.clone(),
        property: "compression".to_owned(),
        value: volume.compression.name().to_owned(),
        source: PropertySource::Local,
        inherited_from: None,
    }
}

pub(crate) fn origin_property(volume: &Volume) -> Option<Property> {
    Some(Property {
        property: "origin".to_owned(),
        value: volume.origin.clone()?,
        source: PropertySource::None,
        ..compression_property(volume)
    })
}

pub(crate) fn compression_of(properties: &PropertyValues) -> Option<Compression> {
    properties.0.get("compression").map(|text| text.parse().unwrap())
}

pub(crate) fn dedupe_of(properties: &PropertyValues) -> Option<bool> {
    properties.0.get("dedupe").map(|text| text == "on")
}

/// Changes the status of a pool as if one of its disks had faulted.
pub(crate) fn degrade(pool: &mut PoolStatus) {
    pool.state = Health::Degraded;
    pool.status =
        Some("One disk gave wrong data. Its copies were healed from the other leg.".into());
    pool.action = Some("Look at the disk, and replace it if the count grows.".into());
    pool.see = Some("weir pool status --help".into());
    pool.vdevs[0].state = Health::Degraded;
    pool.vdevs[0].disks[0].state = Health::Faulted;
    pool.vdevs[0].disks[0].errors.checksum = 7;
    pool.vdevs[0].disks[0].note = Some("too many errors".into());
}

pub(crate) fn ready<'a, T: Send + 'a>(result: Result<T, ApiError>) -> Pending<'a, T> {
    Box::pin(std::future::ready(result))
}

pub(crate) fn not_found(what: &str, name: &str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("there is no {what} {name}"))
}

pub(crate) fn busy(message: String) -> ApiError {
    ApiError::new(ErrorKind::Busy, message)
}

pub(crate) fn vdev_status(index: usize, spec: &VdevSpec) -> VdevStatus {
    let disk = |path: &String| DiskStatus {
        path: path.clone(),
        guid: "42".into(),
        state: Health::Online,
        errors: ErrorCounts::default(),
        note: None,
        slow: false,
        io: Some(DiskIo::default()),
    };
    VdevStatus {
        role: weir_api::types::VdevRole::Data,
        leaving: None,
        name: format!("{}-{index}", spec.kind.name()),
        kind: spec.kind,
        state: Health::Online,
        errors: ErrorCounts::default(),
        disks: spec.disks.iter().map(disk).collect(),
    }
}

pub(crate) fn flush_check(disk: String) -> FlushCheck {
    let medium = "rotating disk sda, write-back cache".to_owned();
    let verdict = FlushVerdict::Plausible;
    let (samples, write_us, flush_us, sync_write_us) = (17, 60, 8300, 8200);
    FlushCheck { disk, medium, samples, write_us, flush_us, sync_write_us, verdict }
}

const ALLOCATED: Allocated = Allocated {
    volumes_bytes: 900 << 10,
    snapshots_bytes: 100 << 10,
    freeing_bytes: 0,
    pool_bytes: 88 << 10,
    saved_bytes: 64 << 10,
};

impl State {
    /// Removes a volume from the list of clones of its origin.
    pub(super) fn remove_clone(&mut self, volume: &str) {
        self.snapshots.values_mut().for_each(|origin| origin.clones.retain(|name| name != volume));
    }

    /// Returns the given history entry, and a similar entry for each volume.
    pub(super) fn history(&self, entry: HistoryEntry) -> Vec<HistoryEntry> {
        let call = |name: &String| format!("volume create {name}");
        let volumes =
            self.volumes.keys().map(|name| HistoryEntry { call: call(name), ..entry.clone() });
        let volumes: Vec<HistoryEntry> = volumes.collect();
        std::iter::once(entry).chain(volumes).collect()
    }

    /// Returns an event similar to `like` for each volume of the fake server.
    pub(super) fn creations(&self, like: &Event) -> Vec<Event> {
        let message = |name: &String| format!("volume create {name}: created");
        self.volumes.keys().map(|name| Event { message: message(name), ..like.clone() }).collect()
    }

    pub(crate) fn create_pool(&mut self, request: PoolCreate) -> Result<PoolCreated, ApiError> {
        if let Some(name) = request.properties.keys().next() {
            let message = format!("unknown property {name:?} of a pool");
            return Err(ApiError::new(ErrorKind::Invalid, message));
        }
        if let Some((made, status)) = self.pools.get(&request.name) {
            if made.vdevs == request.vdevs {
                let pool = status.clone();
                let change = PoolChange { outcome: Outcome::Unchanged, warnings: vec![], pool };
                return Ok(PoolCreated { change, flush_checks: vec![] });
            }
            let message = format!("there is a pool {} already", request.name);
            return Err(ApiError::new(ErrorKind::Exists, message));
        }
        let disks = |spec: &PoolCreate| -> Vec<String> {
            spec.vdevs.iter().flat_map(|vdev| vdev.disks.clone()).collect()
        };
        for path in disks(&request) {
            if self.pools.values().any(|(made, _)| disks(made).contains(&path)) {
                return Err(busy(format!("disk {path} is in use by a pool")));
            }
        }
        let mut pool = PoolStatus {
            name: request.name.clone(),
            guid: "1234567890123456789".into(),
            state: Health::Online,
            status: None,
            action: None,
            see: None,
            size_bytes: 10 << 30,
            allocated_bytes: 1 << 20,
            free_bytes: (10 << 30) - (1 << 20),
            allocated: ALLOCATED,
            compression_ratio: 1.53,
            dedupe_ratio: 1.06,
            expandable_bytes: 0,
            txg: 4,
            properties: BTreeMap::new(),
            errors: ErrorCounts::default(),
            damage: Damage::default(),
            client: ClientIo { writes: 3, written_bytes: 12_288, ..ClientIo::default() },
            written: SegmentIo { data_bytes: 8192, ..SegmentIo::default() },
            read: PointerIo { data_bytes: 4096, node_bytes: 2560 },
            cleaner: Some(CleanerStatus {
                free_segments: 200,
                segments: 254,
                clean_below_segments: 39,
                clean_idle_below_segments: 64,
                ..CleanerStatus::default()
            }),
            counted_ms: 60_000,
            scan: None,
            vdevs: request.vdevs.iter().enumerate().map(|(i, v)| vdev_status(i, v)).collect(),
        };
        let uneven = |vdev: &VdevSpec| vdev.kind == VdevKind::Mirror && vdev.disks.len() > 2;
        let mut warnings = Vec::new();
        if request.vdevs.iter().any(uneven) {
            warnings.push("mirror-0: the disks differ in size; the smallest counts".to_owned());
        }
        if pool.name == "hurt" {
            degrade(&mut pool);
        }
        let flush_checks = disks(&request).into_iter().map(flush_check).collect();
        self.pools.insert(request.name.clone(), (request, pool.clone()));
        let change = PoolChange { outcome: Outcome::Created, warnings, pool };
        Ok(PoolCreated { change, flush_checks })
    }

    /// Returns the response of a call that does not change the state of the pool.
    pub(crate) fn touched(&self, name: &str) -> Result<PoolChange, ApiError> {
        let (_, pool) = self.pools.get(name).ok_or_else(|| not_found("pool", name))?;
        let (outcome, pool) = (Outcome::Changed, pool.clone());
        Ok(PoolChange { outcome, warnings: vec![], pool })
    }

    pub(crate) fn free_of_exports(&self, prefix: &str) -> Result<(), ApiError> {
        match self.exports.values().find(|export| in_pool(&export.volume, prefix)) {
            Some(export) => Err(busy(format!("{} is exported as {}", export.volume, export.name))),
            None => Ok(()),
        }
    }

    pub(crate) fn create_volume(
        &mut self,
        request: VolumeCreate,
    ) -> Result<VolumeChange, ApiError> {
        let pool = request.name.split('/').next().unwrap_or_default();
        if !self.pools.contains_key(pool) {
            return Err(not_found("pool", pool));
        }
        let compression = compression_of(&request.properties).unwrap_or_default();
        let dedupe = dedupe_of(&request.properties).unwrap_or_default();
        if let Some(volume) = self.volumes.get(&request.name) {
            let same = volume.compression == compression && volume.dedupe == dedupe;
            let shape = (volume.size_bytes, volume.record_bytes);
            if shape == (request.size_bytes, request.record_bytes) && same {
                let volume = volume.clone();
                return Ok(VolumeChange { outcome: Outcome::Unchanged, volume });
            }
            let message = format!("there is a volume {} already", request.name);
            return Err(ApiError::new(ErrorKind::Exists, message));
        }
        let volume = Volume {
            name: request.name.clone(),
            kind: DatasetKind::Volume,
            size_bytes: request.size_bytes,
            block_bytes: 4096,
            record_bytes: request.record_bytes,
            compression,
            used_bytes: 8 << 20,
            stored_bytes: 4 << 20,
            compression_ratio: 2.0,
            dedupe,
            shared_bytes: 1 << 20,
            dedupe_ratio: 1.33,
            created_unix_ms: 1_700_000_000_000,
            exports: vec![],
            origin: None,
            snapshots: 0,
            receiving: None,
            space: VolumeSpace {
                available_bytes: 9 << 30,
                used_bytes: 6 << 20,
                by_snapshots_bytes: 2 << 20,
                by_volume_bytes: 4 << 20,
                referenced_bytes: 5 << 20,
                written_bytes: 1 << 20,
                by_refreservation_bytes: 0,
            },
        };
        self.volumes.insert(request.name, volume.clone());
        Ok(VolumeChange { outcome: Outcome::Created, volume })
    }

    pub(crate) fn change_volume(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Volume) -> Result<(), ApiError>,
    ) -> Result<VolumeChange, ApiError> {
        let volume = self.volumes.get_mut(name).ok_or_else(|| not_found("volume", name))?;
        let before = volume.clone();
        change(volume)?;
        let outcome = if before == *volume { Outcome::Unchanged } else { Outcome::Changed };
        Ok(VolumeChange { outcome, volume: volume.clone() })
    }

    pub(crate) fn list_snapshots(&self, query: ListSnapshots) -> Result<SnapshotList, ApiError> {
        let ListSnapshots { of, after, limit } = query;
        let wanted = |snapshot: &&Snapshot| {
            let Snapshot { name, volume, .. } = snapshot;
            of.as_ref().is_none_or(|of| of == name || of == volume || in_pool(volume, of))
                && after.as_ref().is_none_or(|after| name > after)
        };
        let limit = limit.unwrap_or(usize::MAX);
        let found = self.snapshots.values().filter(wanted);
        let mut snapshots: Vec<_> = found.take(limit.saturating_add(1)).cloned().collect();
        let more = snapshots.len() > limit;
        snapshots.truncate(limit);
        let next = snapshots.last().filter(|_| more).map(|last| last.name.clone());
        match of.filter(|of| of.contains('@') && snapshots.is_empty()) {
            Some(missing) => Err(not_found("snapshot", &missing)),
            None => Ok(SnapshotList { snapshots, next }),
        }
    }

    pub(crate) fn take(&mut self, name: &str) -> Result<Snapshot, ApiError> {
        let (volume, _) = name.split_once('@').unwrap();
        if !self.volumes.contains_key(volume) {
            return Err(not_found("volume", volume));
        }
        if self.snapshots.contains_key(name) {
            let message = format!("there is a snapshot {name} already");
            return Err(ApiError::new(ErrorKind::Exists, message));
        }
        let snapshot = Snapshot {
            name: name.to_owned(),
            volume: volume.to_owned(),
            guid: "77".into(),
            size_bytes: 10 << 30,
            used_bytes: 1 << 20,
            referenced_bytes: 4 << 20,
            written_bytes: 2 << 20,
            created_unix_ms: 1_700_000_000_000,
            holds: vec![],
            clones: vec![],
            exports: vec![],
            taken_by: None,
        };
        self.snapshots.insert(name.to_owned(), snapshot.clone());
        Ok(snapshot)
    }

    pub(crate) fn change_snapshot(
        &mut self,
        name: &str,
        change: impl FnOnce(&mut Snapshot),
    ) -> Result<SnapshotChange, ApiError> {
        let snapshot = self.snapshots.get_mut(name).ok_or_else(|| not_found("snapshot", name))?;
        let before = snapshot.clone();
        change(snapshot);
        let outcome = if before == *snapshot { Outcome::Unchanged } else { Outcome::Changed };
        Ok(SnapshotChange { outcome, snapshots: vec![snapshot.clone()] })
    }

    pub(crate) fn create_export(
        &mut self,
        request: &ExportCreate,
    ) -> Result<ExportChange, ApiError> {
        let ExportKey { protocol, name } = request.key();
        let (of, snapshot) = match request.volume.split_once('@') {
            Some((of, _)) => (of, self.snapshots.get(&request.volume)),
            None => (request.volume.as_str(), None),
        };
        if of != request.volume && snapshot.is_none() {
            return Err(not_found("snapshot", &request.volume));
        }
        let volume = self.volumes.get_mut(of).ok_or_else(|| not_found("volume", of))?;
        let export = Export {
            uris: vec![format!("nbd://127.0.0.1/{name}")],
            name: name.clone(),
            protocol,
            volume: request.volume.clone(),
            read_only: request.read_only || snapshot.is_some(),
            allow: request.allow.clone(),
            connections: 0,
        };
        match self.exports.get(&name) {
            Some(there) if *there == export => {
                Ok(ExportChange { outcome: Outcome::Unchanged, export })
            }
            Some(_) => {
                let message = format!("there is an export {name} already");
                Err(ApiError::new(ErrorKind::Exists, message))
            }
            None => {
                volume.exports.push(name.clone());
                self.exports.insert(name, export.clone());
                Ok(ExportChange { outcome: Outcome::Created, export })
            }
        }
    }
}

pub(crate) fn in_pool(volume: &str, pool: &str) -> bool {
    volume.split('/').next() == Some(pool)
}

pub(crate) fn removed<'a>(name: String) -> Pending<'a, Removed> {
    ready(Ok(Removed { outcome: Outcome::Removed, name }))
}
