//! The responses of the fake server: one function for each call.
//!
//! The dispatch of calls is in `fake`.
//!
//! Invariants: see `fake`.

use std::sync::atomic::Ordering;
use std::time::Duration;

use weir_api::token::SecretText;
use weir_api::types::{
    AllHistory, Bookmark, BookmarkChange, BookmarkCreate, BookmarkDestroy, BookmarkList,
    Compression, DedupeEstimate, DedupeForecast, DigestList, DigestRequest, Event, EventList,
    Export, ExportChange, ExportCreate, ExportDelete, ExportList, ExportSet, GetProperties,
    HistoryEntry, HistoryList, ImportableList, ImportablePool, InitiatorAllow, InitiatorDeny,
    ListEvents, ListSnapshots, LunAdd, LunRemove, Outcome, PoolAdd, PoolAttach, PoolChange,
    PoolClear, PoolCreate, PoolCreated, PoolDestroy, PoolDetach, PoolExport, PoolImport, PoolList,
    PoolOffline, PoolOnline, PoolRemove, PoolReplace, PoolScan, PoolScrub, PoolStatus,
    PropertyChange, PropertyInherit, PropertyList, PropertySet, ReceiveDone, ReceiveStart,
    ReceiveStarted, ReceiveToken, Removed, Replication, ReplicationAct, ReplicationAction,
    ReplicationChange, ReplicationCreate, ReplicationList, ReplicationRemoved, ReplicationState,
    Schedule, ScheduleChange, ScheduleList, ScheduleSet, SendProgress, SendStart, SendStarted,
    ServerInfo, ShowExport, ShowTarget, SnapshotChange, SnapshotClone, SnapshotCreate,
    SnapshotDestroy, SnapshotHold, SnapshotList, SnapshotRelease, SnapshotRename, SnapshotRollback,
    SnapshotsDestroyed, StreamCancel, StreamList, Target, TargetChange, TargetCreate, TargetDelete,
    TargetList, Token, TokenCreate, TokenCreated, TokenList, TokenRevoke, Volume, VolumeAdvice,
    VolumeAdvise, VolumeChange, VolumeCopy, VolumeCreate, VolumeDestroy, VolumeList, VolumeRename,
    VolumeResize, VolumeSet,
};
use weir_api::{ApiError, Pending};
use weir_base::ErrorKind;

use super::state::{
    busy, compression_of, compression_property, dedupe_of, event, in_pool, not_found,
    origin_property, ready, removed,
};
use super::{Fake, sending};

impl Fake {
    pub(crate) fn server_info(&self) -> Pending<'_, ServerInfo> {
        ready(Ok(ServerInfo {
            version: "0.1.0".into(),
            pid: 1,
            uptime_ms: 61_000,
            memory_cap_bytes: 1 << 30,
            memory_used_bytes: 1 << 20,
            memory: weir_api::types::MemoryUse::default(),
            nbd_addresses: vec!["127.0.0.1:10809".into()],
            iscsi_portals: vec!["127.0.0.1:3260,1".into()],
            nfs_addresses: vec![],
            nfs_group_failures: 0,
            io_backend: "io_uring".into(),
        }))
    }

    pub(crate) fn pool_create(&self, request: PoolCreate) -> Pending<'_, PoolCreated> {
        if request.name == "slow" {
            return Box::pin(async move {
                self.slow_begun.fetch_add(1, Ordering::SeqCst);
                tokio::time::sleep(Duration::from_millis(200)).await;
                self.state().create_pool(request)
            });
        }
        ready(self.state().create_pool(request))
    }

    pub(crate) fn pool_list(&self) -> Pending<'_, PoolList> {
        let pools = self.state().pools.values().map(|(_, status)| status.clone()).collect();
        ready(Ok(PoolList { pools }))
    }

    pub(crate) fn pool_status(&self, pool: String) -> Pending<'_, PoolStatus> {
        // Pool names select faults of a server: a response that never arrives, and a panic.
        if pool == "stuck" {
            return Box::pin(std::future::pending());
        }
        assert_ne!(pool, "broken", "a fault planted by a test");
        let state = self.state();
        let status = state.pools.get(&pool).map(|(_, status)| status.clone());
        ready(status.ok_or_else(|| not_found("pool", &pool)))
    }

    pub(crate) fn pool_destroy(&self, request: PoolDestroy) -> Pending<'_, Removed> {
        let mut state = self.state();
        if let Err(error) = state.free_of_exports(&request.name) {
            return ready(Err(error));
        }
        if state.pools.remove(&request.name).is_none() {
            return ready(Err(not_found("pool", &request.name)));
        }
        state.volumes.retain(|name, _| !in_pool(name, &request.name));
        removed(request.name)
    }

    pub(crate) fn pool_scan(&self, _request: PoolScan) -> Pending<'_, ImportableList> {
        let importable = |status: &PoolStatus| ImportablePool {
            name: status.name.clone(),
            guid: status.guid.clone(),
            state: status.state,
            status: None,
            action: Some("The pool can be imported by its name or its guid.".into()),
            vdevs: status.vdevs.clone(),
        };
        let pools = self.state().closed.values().map(|(_, status)| importable(status)).collect();
        ready(Ok(ImportableList { pools }))
    }

    pub(crate) fn pool_import(&self, request: PoolImport) -> Pending<'_, PoolChange> {
        let mut state = self.state();
        if let Some((_, pool)) = state.pools.get(&request.pool) {
            let pool = pool.clone();
            return ready(Ok(PoolChange { outcome: Outcome::Unchanged, warnings: vec![], pool }));
        }
        let Some(entry) = state.closed.remove(&request.pool) else {
            return ready(Err(not_found("pool", &request.pool)));
        };
        let pool = entry.1.clone();
        state.pools.insert(request.pool, entry);
        ready(Ok(PoolChange { outcome: Outcome::Changed, warnings: vec![], pool }))
    }

    pub(crate) fn pool_scrub(&self, request: PoolScrub) -> Pending<'_, PoolChange> {
        ready(self.state().touched(&request.name))
    }

    pub(crate) fn pool_offline(&self, request: PoolOffline) -> Pending<'_, PoolChange> {
        ready(self.state().touched(&request.name))
    }

    pub(crate) fn pool_online(&self, request: PoolOnline) -> Pending<'_, PoolChange> {
        ready(self.state().touched(&request.name))
    }

    pub(crate) fn pool_clear(&self, request: PoolClear) -> Pending<'_, PoolChange> {
        ready(self.state().touched(&request.name))
    }

    pub(crate) fn pool_attach(&self, request: PoolAttach) -> Pending<'_, PoolChange> {
        ready(self.state().touched(&request.name))
    }

    pub(crate) fn pool_replace(&self, request: PoolReplace) -> Pending<'_, PoolChange> {
        ready(self.state().touched(&request.name))
    }

    pub(crate) fn pool_detach(&self, request: PoolDetach) -> Pending<'_, PoolChange> {
        ready(self.state().touched(&request.name))
    }

    pub(crate) fn pool_add(&self, request: PoolAdd) -> Pending<'_, PoolChange> {
        ready(self.state().touched(&request.name))
    }

    pub(crate) fn pool_remove(&self, request: PoolRemove) -> Pending<'_, PoolChange> {
        ready(self.state().touched(&request.name))
    }

    pub(crate) fn pool_expand(&self, pool: String) -> Pending<'_, PoolChange> {
        ready(self.state().touched(&pool))
    }

    pub(crate) fn pool_export(&self, request: PoolExport) -> Pending<'_, Removed> {
        let mut state = self.state();
        if !request.force
            && let Err(error) = state.free_of_exports(&request.name)
        {
            return ready(Err(error));
        }
        let Some(entry) = state.pools.remove(&request.name) else {
            return ready(Err(not_found("pool", &request.name)));
        };
        state.exports.retain(|_, export| !in_pool(&export.volume, &request.name));
        state.closed.insert(request.name.clone(), entry);
        removed(request.name)
    }

    pub(crate) fn pool_history(&self, pool: String) -> Pending<'_, HistoryList> {
        let state = self.state();
        let entry = |(request, _): &(PoolCreate, PoolStatus)| HistoryEntry {
            unix_ms: 1_700_000_000_000,
            took_ms: 12,
            who: weir_api::caller::current().to_string(),
            pool: request.name.clone(),
            call: format!("pool create {}", request.name),
            outcome: "created".into(),
            error: None,
            times: 1,
        };
        ready(match state.pools.get(&pool).map(entry) {
            Some(entry) => Ok(HistoryList { pool, entries: state.history(entry), next: None }),
            None => Err(not_found("pool", &pool)),
        })
    }

    pub(crate) fn history_list(&self) -> Pending<'_, AllHistory> {
        let pools: Vec<String> = self.state().pools.keys().cloned().collect();
        let entry = |pool: String| HistoryEntry {
            unix_ms: 1_700_000_000_000,
            took_ms: 12,
            who: weir_api::caller::current().to_string(),
            call: format!("pool create {pool}"),
            pool,
            outcome: "created".into(),
            error: None,
            times: 1,
        };
        let entries = pools.into_iter().map(entry).flat_map(|entry| self.state().history(entry));
        ready(Ok(AllHistory { entries: entries.collect(), next: None }))
    }

    pub(crate) fn events(&self, query: ListEvents) -> Pending<'_, EventList> {
        let event = |seq| event(seq, query.wait_ms);
        let mut events: Vec<Event> = (query.after + 1..=3).map(event).collect();
        events.extend(self.state().creations(&event(3)));
        let list = EventList { run: "7".into(), lost: 0, newest: 3, events };
        if query.after < 3 || query.wait_ms == 0 {
            return ready(Ok(list));
        }
        Box::pin(async move {
            tokio::time::sleep(Duration::from_millis(query.wait_ms)).await;
            Ok(list)
        })
    }

    pub(crate) fn property_get(&self, query: GetProperties) -> Pending<'_, PropertyList> {
        let state = self.state();
        let mut properties = Vec::new();
        let all = || state.volumes.keys().cloned().collect();
        for name in if query.of.is_empty() { all() } else { query.of } {
            let Some(volume) = state.volumes.get(&name) else {
                return ready(Err(not_found("volume", &name)));
            };
            properties.push(compression_property(volume));
            properties.extend(origin_property(volume));
        }
        ready(Ok(PropertyList { properties }))
    }

    pub(crate) fn property_set(&self, request: PropertySet) -> Pending<'_, PropertyChange> {
        let set = |volume: &mut Volume| {
            let wanted = compression_of(&request.properties);
            volume.compression = wanted.unwrap_or(volume.compression);
            Ok(())
        };
        let changed = self.state().change_volume(&request.name, set);
        ready(changed.map(|VolumeChange { outcome, volume }| PropertyChange {
            outcome,
            properties: vec![compression_property(&volume)],
        }))
    }

    pub(crate) fn property_inherit(&self, request: PropertyInherit) -> Pending<'_, PropertyChange> {
        let inherit = |volume: &mut Volume| {
            volume.compression = Compression::default();
            Ok(())
        };
        let changed = self.state().change_volume(&request.name, inherit);
        ready(changed.map(|VolumeChange { outcome, volume }| PropertyChange {
            outcome,
            properties: vec![compression_property(&volume)],
        }))
    }

    pub(crate) fn volume_create(&self, request: VolumeCreate) -> Pending<'_, VolumeChange> {
        ready(self.state().create_volume(request))
    }

    pub(crate) fn volume_list(&self, pool: Option<String>) -> Pending<'_, VolumeList> {
        let state = self.state();
        if let Some(pool) = &pool
            && !state.pools.contains_key(pool)
        {
            return ready(Err(not_found("pool", pool)));
        }
        let wanted = |volume: &&Volume| pool.as_ref().is_none_or(|p| in_pool(&volume.name, p));
        let volumes = state.volumes.values().filter(wanted).cloned().collect();
        ready(Ok(VolumeList { volumes, next: None }))
    }

    pub(crate) fn volume_show(&self, volume: String) -> Pending<'_, Volume> {
        let found = self.state().volumes.get(&volume).cloned();
        ready(found.ok_or_else(|| not_found("volume", &volume)))
    }

    pub(crate) fn volume_set(&self, request: VolumeSet) -> Pending<'_, VolumeChange> {
        let set = |volume: &mut Volume| {
            let wanted = compression_of(&request.properties);
            volume.compression = wanted.unwrap_or(volume.compression);
            volume.dedupe = dedupe_of(&request.properties).unwrap_or(volume.dedupe);
            Ok(())
        };
        ready(self.state().change_volume(&request.name, set))
    }

    pub(crate) fn volume_resize(&self, request: VolumeResize) -> Pending<'_, VolumeChange> {
        let resize = |volume: &mut Volume| {
            if request.size_bytes < volume.used_bytes {
                return Err(busy(format!("{} holds data beyond that size", volume.name)));
            }
            volume.size_bytes = request.size_bytes;
            Ok(())
        };
        ready(self.state().change_volume(&request.name, resize))
    }

    pub(crate) fn volume_rename(&self, request: VolumeRename) -> Pending<'_, VolumeChange> {
        let mut state = self.state();
        let Some(volume) = state.volumes.remove(&request.name) else {
            return ready(Err(not_found("volume", &request.name)));
        };
        let volume = Volume { name: request.to.clone(), ..volume };
        state.volumes.insert(request.to, volume.clone());
        ready(Ok(VolumeChange { outcome: Outcome::Changed, volume }))
    }

    pub(crate) fn volume_copy(&self, request: VolumeCopy) -> Pending<'_, VolumeChange> {
        let mut state = self.state();
        let of = request.name.split('@').next().unwrap_or_default();
        let Some(volume) = state.volumes.get(of) else {
            return ready(Err(not_found("volume", of)));
        };
        let volume = Volume { name: request.to.clone(), origin: None, ..volume.clone() };
        if state.volumes.contains_key(&request.to) {
            let message = format!("there is a volume {} already", request.to);
            return ready(Err(ApiError::new(ErrorKind::Exists, message)));
        }
        state.volumes.insert(request.to, volume.clone());
        ready(Ok(VolumeChange { outcome: Outcome::Created, volume }))
    }

    pub(crate) fn volume_promote(&self, volume: String) -> Pending<'_, VolumeChange> {
        let promote = |volume: &mut Volume| match volume.origin.take() {
            Some(_) => Ok(()),
            None => Err(ApiError::new(ErrorKind::Invalid, format!("{} is no clone", volume.name))),
        };
        let mut state = self.state();
        state.remove_clone(&volume);
        ready(state.change_volume(&volume, promote))
    }

    pub(crate) fn snapshot_create(&self, request: SnapshotCreate) -> Pending<'_, SnapshotChange> {
        let mut state = self.state();
        let names = if request.recursive {
            let (pool, own) = request.names[0].split_once('@').unwrap();
            let of_pool = state.volumes.keys().filter(|volume| in_pool(volume, pool));
            of_pool.map(|volume| format!("{volume}@{own}")).collect()
        } else {
            request.names
        };
        let taken: Result<_, _> = names.iter().map(|name| state.take(name)).collect();
        ready(taken.map(|snapshots| SnapshotChange { outcome: Outcome::Created, snapshots }))
    }

    pub(crate) fn snapshot_list(&self, query: ListSnapshots) -> Pending<'_, SnapshotList> {
        ready(self.state().list_snapshots(query))
    }

    pub(crate) fn snapshot_destroy(
        &self,
        request: SnapshotDestroy,
    ) -> Pending<'_, SnapshotsDestroyed> {
        let mut state = self.state();
        for name in &request.names {
            match state.snapshots.get(name) {
                None => return ready(Err(not_found("snapshot", name))),
                Some(found) if !found.holds.is_empty() => {
                    return ready(Err(busy(format!("{name} is held"))));
                }
                Some(found) if !found.clones.is_empty() => {
                    let clones = found.clones.join(", ");
                    return ready(Err(busy(format!("{name} is the origin of {clones}"))));
                }
                Some(_) => {}
            }
        }
        let outcome = if request.dry_run { Outcome::Unchanged } else { Outcome::Removed };
        if !request.dry_run {
            state.snapshots.retain(|name, _| !request.names.contains(name));
        }
        let freed_bytes = request.names.len() as u64 * (1 << 20);
        ready(Ok(SnapshotsDestroyed { outcome, names: request.names, freed_bytes }))
    }

    pub(crate) fn snapshot_hold(&self, request: SnapshotHold) -> Pending<'_, SnapshotChange> {
        let SnapshotHold { name, tag } = request;
        ready(self.state().change_snapshot(&name, |snapshot| {
            if !snapshot.holds.contains(&tag) {
                snapshot.holds.push(tag);
            }
        }))
    }

    pub(crate) fn snapshot_release(&self, request: SnapshotRelease) -> Pending<'_, SnapshotChange> {
        let SnapshotRelease { name, tag } = request;
        ready(self.state().change_snapshot(&name, |snapshot| snapshot.holds.retain(|t| *t != tag)))
    }

    pub(crate) fn snapshot_rename(&self, request: SnapshotRename) -> Pending<'_, SnapshotChange> {
        let mut state = self.state();
        let SnapshotRename { name, to } = request;
        let renamed = state.change_snapshot(&name, |snapshot| snapshot.name.clone_from(&to));
        if let Some(snapshot) = state.snapshots.remove(&name) {
            state.snapshots.insert(to, snapshot);
        }
        ready(renamed)
    }

    pub(crate) fn snapshot_rollback(&self, request: SnapshotRollback) -> Pending<'_, VolumeChange> {
        let state = self.state();
        let (volume, _) = request.name.split_once('@').unwrap();
        let there = state.snapshots.contains_key(&request.name);
        let volume = state.volumes.get(volume).filter(|_| there);
        let changed =
            |volume: &Volume| VolumeChange { outcome: Outcome::Changed, volume: volume.clone() };
        ready(volume.map(changed).ok_or_else(|| not_found("snapshot", &request.name)))
    }

    pub(crate) fn snapshot_clone(&self, request: SnapshotClone) -> Pending<'_, VolumeChange> {
        let mut state = self.state();
        let Some(snapshot) = state.snapshots.get_mut(&request.name) else {
            return ready(Err(not_found("snapshot", &request.name)));
        };
        snapshot.clones.push(request.volume.clone());
        let snapshot = snapshot.clone();
        let of = state.volumes[&snapshot.volume].clone();
        let (name, origin) = (request.volume.clone(), Some(request.name));
        let volume = Volume { name, origin, exports: vec![], ..of };
        state.volumes.insert(request.volume, volume.clone());
        ready(Ok(VolumeChange { outcome: Outcome::Created, volume }))
    }

    pub(crate) fn bookmark_create(&self, request: BookmarkCreate) -> Pending<'_, BookmarkChange> {
        let mut state = self.state();
        let Some(of) = state.snapshots.get(&request.snapshot) else {
            return ready(Err(not_found("snapshot", &request.snapshot)));
        };
        let (volume, guid) = (of.volume.clone(), of.guid.clone());
        let (name, created_unix_ms) = (request.name, of.created_unix_ms);
        let bookmark = Bookmark { name: name.clone(), volume, guid, created_unix_ms };
        let before = state.bookmarks.insert(name, bookmark.clone());
        let outcome = if before.is_some() { Outcome::Unchanged } else { Outcome::Created };
        ready(Ok(BookmarkChange { outcome, bookmark }))
    }

    pub(crate) fn bookmark_list(&self, of: Option<String>) -> Pending<'_, BookmarkList> {
        let state = self.state();
        let wanted = |mark: &&Bookmark| {
            of.as_ref().is_none_or(|of| *of == mark.volume || in_pool(&mark.volume, of))
        };
        let bookmarks = state.bookmarks.values().filter(wanted).cloned().collect();
        ready(Ok(BookmarkList { bookmarks, next: None }))
    }

    pub(crate) fn bookmark_destroy(&self, request: BookmarkDestroy) -> Pending<'_, Removed> {
        match self.state().bookmarks.remove(&request.name) {
            Some(_) => removed(request.name),
            None => ready(Err(not_found("bookmark", &request.name))),
        }
    }

    pub(crate) fn send_start(&self, request: SendStart) -> Pending<'_, SendStarted> {
        let mut state = self.state();
        if !state.snapshots.contains_key(&request.snapshot) {
            return ready(Err(not_found("snapshot", &request.snapshot)));
        }
        ready(Ok(sending::start(&mut state, request.snapshot, request.from.is_some())))
    }

    pub(crate) fn send_show(&self, session: String) -> Pending<'_, SendProgress> {
        ready(sending::show(&self.state(), &session))
    }

    pub(crate) fn send_stop(&self, session: String) -> Pending<'_, Removed> {
        match self.state().sends.remove(&session) {
            Some(_) => removed(session),
            None => ready(Err(not_found("session", &session))),
        }
    }

    pub(crate) fn stream_list(&self) -> Pending<'_, StreamList> {
        ready(Ok(StreamList { streams: self.state().streams.clone() }))
    }

    pub(crate) fn stream_cancel(&self, stream: StreamCancel) -> Pending<'_, Removed> {
        let mut state = self.state();
        match state.streams.iter().position(|known| known.id == stream.id) {
            Some(at) => removed(state.streams.remove(at).name),
            None => ready(Err(not_found("stream", &stream.id.to_string()))),
        }
    }

    pub(crate) fn receive_start(&self, request: ReceiveStart) -> Pending<'_, ReceiveStarted> {
        let mut state = self.state();
        let session = format!("r{}", state.receives.len());
        state.receives.insert(session.clone(), (request.volume, Vec::new()));
        ready(Ok(ReceiveStarted { session }))
    }

    pub(crate) fn receive_finish(&self, session: String) -> Pending<'_, ReceiveDone> {
        match self.state().receives.remove(&session) {
            None => ready(Err(not_found("session", &session))),
            Some((volume, bytes)) => ready(Ok(ReceiveDone {
                snapshot: format!("{volume}@monday"),
                guid: "7".into(),
                received_bytes: bytes.len() as u64,
                data_bytes: 0,
                hole_bytes: 0,
                dry_run: false,
                is_new: true,
                rolled_back: false,
            })),
        }
    }

    pub(crate) fn receive_stop(&self, session: String) -> Pending<'_, Removed> {
        match self.state().receives.remove(&session) {
            Some(_) => removed(session),
            None => ready(Err(not_found("session", &session))),
        }
    }

    pub(crate) fn receive_token(&self, volume: String) -> Pending<'_, ReceiveToken> {
        let state = self.state();
        if state.receives.values().any(|(into, _)| *into == volume) {
            let (snapshot, token) = ("monday".into(), "weir1-00".into());
            return ready(Ok(ReceiveToken { volume, snapshot, token }));
        }
        ready(Err(not_found("stream into", &volume)))
    }

    pub(crate) fn receive_abort(&self, volume: String) -> Pending<'_, Removed> {
        let mut state = self.state();
        let before = state.receives.len();
        state.receives.retain(|_, (into, _)| *into != volume);
        if state.receives.len() < before {
            removed(volume)
        } else {
            ready(Err(not_found("stream into", &volume)))
        }
    }

    pub(crate) fn snapshot_digest(&self, request: DigestRequest) -> Pending<'_, DigestList> {
        if !self.state().snapshots.contains_key(&request.snapshot) {
            return ready(Err(not_found("snapshot", &request.snapshot)));
        }
        let digests = (0..request.count.min(4)).map(|at| format!("{at:032x}")).collect();
        ready(Ok(DigestList { size_bytes: 4 << 20, range_bytes: 1 << 20, digests }))
    }

    pub(crate) fn replication_create(
        &self,
        request: ReplicationCreate,
    ) -> Pending<'_, ReplicationChange> {
        let mut state = self.state();
        let replication = Replication {
            volume: request.volume.clone(),
            to: request.to,
            every_seconds: request.every_seconds,
            bandwidth_bytes: request.bandwidth_bytes,
            state: ReplicationState::Waiting,
            snapshot: None,
            lag_ms: None,
            sent_bytes: 0,
            estimate_bytes: 0,
            waits_for: None,
            error: None,
            action: None,
            verified: None,
            verify_failed: None,
        };
        let before = state.replications.insert(request.volume, replication.clone());
        let outcome = match before {
            None => Outcome::Created,
            Some(before) if before == replication => Outcome::Unchanged,
            Some(_) => Outcome::Changed,
        };
        ready(Ok(ReplicationChange { outcome, replication }))
    }

    pub(crate) fn replication_list(&self) -> Pending<'_, ReplicationList> {
        let replications = self.state().replications.values().cloned().collect();
        ready(Ok(ReplicationList { replications, next: None }))
    }

    pub(crate) fn replication_act(
        &self,
        request: ReplicationAct,
    ) -> Pending<'_, ReplicationChange> {
        let mut state = self.state();
        let Some(replication) = state.replications.get_mut(&request.volume) else {
            return ready(Err(not_found("replication", &request.volume)));
        };
        let paused = request.action == ReplicationAction::Pause;
        replication.state =
            if paused { ReplicationState::Paused } else { ReplicationState::Waiting };
        let replication = replication.clone();
        ready(Ok(ReplicationChange { outcome: Outcome::Changed, replication }))
    }

    pub(crate) fn replication_delete(&self, volume: String) -> Pending<'_, ReplicationRemoved> {
        match self.state().replications.remove(&volume) {
            Some(_) => ready(Ok(ReplicationRemoved {
                outcome: Outcome::Removed,
                name: volume,
                warnings: Vec::new(),
            })),
            None => ready(Err(not_found("replication", &volume))),
        }
    }

    pub(crate) fn schedule_set(&self, request: ScheduleSet) -> Pending<'_, ScheduleChange> {
        let ScheduleSet { name, keep, prune_only } = request;
        let schedule = Schedule { name, keep, prune_only, next_unix_ms: Some(1_700_000_100_000) };
        let mut state = self.state();
        let outcome = match state.schedules.insert(schedule.name.clone(), schedule.clone()) {
            None => Outcome::Created,
            Some(before) if before == schedule => Outcome::Unchanged,
            Some(_) => Outcome::Changed,
        };
        ready(Ok(ScheduleChange { outcome, schedule }))
    }

    pub(crate) fn schedule_list(&self) -> Pending<'_, ScheduleList> {
        let schedules = self.state().schedules.values().cloned().collect();
        ready(Ok(ScheduleList { schedules, next: None }))
    }

    pub(crate) fn schedule_clear(&self, name: String) -> Pending<'_, Removed> {
        match self.state().schedules.remove(&name) {
            Some(_) => removed(name),
            None => ready(Err(not_found("schedule", &name))),
        }
    }

    pub(crate) fn volume_advise(&self, request: VolumeAdvise) -> Pending<'_, VolumeAdvice> {
        ready(self.state().volumes.get(&request.name).map_or_else(
            || Err(not_found("volume", &request.name)),
            |volume| {
                Ok(VolumeAdvice {
                    name: request.name.clone(),
                    // The first response of a job is partial; the second is complete.
                    job: request.job.is_none().then(|| "1".to_owned()),
                    progress_permille: if request.job.is_none() { 500 } else { 1000 },
                    samples: 0,
                    data_bytes: volume.used_bytes,
                    compression: volume.compression,
                    record_bytes: volume.record_bytes,
                    ratio: volume.compression_ratio,
                    settings: vec![],
                    records: vec![],
                    dedupe: None,
                    recommended: volume.compression,
                    why: "it is what it is".to_owned(),
                })
            },
        ))
    }

    pub(crate) fn dedupe_estimate(&self, request: DedupeEstimate) -> Pending<'_, DedupeForecast> {
        ready(Ok(DedupeForecast {
            names: request.names,
            job: request.job.is_none().then(|| "1".to_owned()),
            progress_permille: 1000,
            blocks: 100,
            unique: 60,
            duplicates: 40,
            stored_bytes: 409_600,
            saved_bytes: 163_840,
            ratio: 1.667,
            ratio_low: 1.667,
            ratio_high: 1.667,
            index_bytes: 1200,
            one_in: 1,
        }))
    }

    pub(crate) fn volume_destroy(&self, request: VolumeDestroy) -> Pending<'_, Removed> {
        let volume = request.name;
        let mut state = self.state();
        if !request.recursive && state.snapshots.values().any(|found| found.volume == volume) {
            return ready(Err(busy(format!("{volume} has snapshots"))));
        }
        match state.volumes.get(&volume) {
            None => return ready(Err(not_found("volume", &volume))),
            Some(found) if !found.exports.is_empty() => {
                return ready(Err(busy(format!("{volume} is exported"))));
            }
            Some(_) => {}
        }
        state.volumes.remove(&volume);
        removed(volume)
    }

    pub(crate) fn export_create(&self, request: ExportCreate) -> Pending<'_, ExportChange> {
        ready(self.state().create_export(&request))
    }

    pub(crate) fn export_list(&self) -> Pending<'_, ExportList> {
        let exports = self.state().exports.values().cloned().collect();
        ready(Ok(ExportList { exports, next: None }))
    }

    pub(crate) fn export_show(&self, export: ShowExport) -> Pending<'_, Export> {
        let found = self.state().exports.get(&export.name).cloned();
        ready(found.ok_or_else(|| not_found("export", &export.name)))
    }

    pub(crate) fn export_set(&self, request: ExportSet) -> Pending<'_, ExportChange> {
        let mut state = self.state();
        let Some(export) = state.exports.get_mut(&request.name) else {
            return ready(Err(not_found("export", &request.name)));
        };
        export.allow = request.allow;
        ready(Ok(ExportChange { outcome: Outcome::Changed, export: export.clone() }))
    }

    pub(crate) fn export_delete(&self, export: ExportDelete) -> Pending<'_, Removed> {
        let mut state = self.state();
        let Some(gone) = state.exports.remove(&export.name) else {
            return ready(Err(not_found("export", &export.name)));
        };
        let of = gone.volume.split('@').next().unwrap_or_default();
        if let Some(volume) = state.volumes.get_mut(of) {
            volume.exports.retain(|name| *name != gone.name);
        }
        removed(export.name)
    }

    pub(crate) fn target_create(&self, request: TargetCreate) -> Pending<'_, TargetChange> {
        ready(Ok(self.state().targets.create(&request.name)))
    }

    pub(crate) fn target_list(&self) -> Pending<'_, TargetList> {
        ready(Ok(self.state().targets.list()))
    }

    pub(crate) fn target_show(&self, target: ShowTarget) -> Pending<'_, Target> {
        ready(self.state().targets.get(&target.name).cloned())
    }

    pub(crate) fn target_delete(&self, target: TargetDelete) -> Pending<'_, Removed> {
        match self.state().targets.delete(&target.name) {
            Ok(()) => removed(target.name),
            Err(error) => ready(Err(error)),
        }
    }

    pub(crate) fn target_allow(&self, request: InitiatorAllow) -> Pending<'_, TargetChange> {
        ready(self.state().targets.allow(request))
    }

    pub(crate) fn target_deny(&self, key: InitiatorDeny) -> Pending<'_, TargetChange> {
        ready(self.state().targets.deny(&key))
    }

    pub(crate) fn lun_add(&self, request: LunAdd) -> Pending<'_, TargetChange> {
        ready(self.state().targets.add_lun(request))
    }

    pub(crate) fn lun_remove(&self, lun: LunRemove) -> Pending<'_, Removed> {
        match self.state().targets.remove_lun(&lun) {
            Ok(()) => removed(lun.number.to_string()),
            Err(error) => ready(Err(error)),
        }
    }

    pub(crate) fn token_create(&self, request: TokenCreate) -> Pending<'_, TokenCreated> {
        let TokenCreate { name, role, scope, expires_unix_ms } = request;
        let token = Token {
            name,
            role,
            scope,
            created_by: "a test".to_owned(),
            created_unix_ms: 0,
            expires_unix_ms,
            is_expired: false,
            last_used_unix_ms: None,
            last_used_from: None,
        };
        let secret = SecretText::new("weir_0".to_owned());
        ready(Ok(TokenCreated { outcome: Outcome::Created, token, secret }))
    }

    pub(crate) fn token_list(&self) -> Pending<'_, TokenList> {
        ready(Ok(TokenList { tokens: Vec::new(), refused: 0 }))
    }

    pub(crate) fn token_revoke(&self, token: TokenRevoke) -> Pending<'_, Removed> {
        removed(token.name)
    }
}
