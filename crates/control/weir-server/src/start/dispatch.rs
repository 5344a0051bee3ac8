//! The management calls over the engine.
//!
//! Not here: checking requests (weir-api does before it calls), HTTP, data; what the calls of one
//! noun do (lifecycle, care, legs, vdevs, volumes, snapshots, schedules, offers).
//!
//! Invariants:
//! - one changing call per pool at a time (`changes`); looking never waits for one;
//! - what a call changed is remembered in the state file before it is answered.

use std::collections::BTreeMap;

use weir_api::stream::Bytes;
use weir_api::types::{
    BookmarkChange, BookmarkCreate, BookmarkDestroy, BookmarkList, DedupeEstimate, DedupeForecast,
    DigestList, DigestRequest, EventList, EventQuery, Export, ExportChange, ExportCreate,
    ExportKey, ExportList, ExportSet, HistoryList, ImportableList, InitiatorAllow, InitiatorKey,
    LunAdd, LunKey, PoolAdd, PoolAttach, PoolChange, PoolClear, PoolCreate, PoolCreated,
    PoolDestroy, PoolDisk, PoolExport, PoolImport, PoolList, PoolOnline, PoolRemove, PoolReplace,
    PoolScan, PoolScrub, PoolStatus, PropertyChange, PropertyInherit, PropertyList, PropertyQuery,
    PropertySet, ReceiveDone, ReceiveProgress, ReceiveStart, ReceiveStarted, ReceiveToken, Removed,
    ReplicationAct, ReplicationChange, ReplicationCreate, ReplicationList, ReplicationRemoved,
    ScheduleChange, ScheduleList, ScheduleSet, SendProgress, SendStart, SendStarted, ServerInfo,
    SnapshotChange, SnapshotClone, SnapshotCreate, SnapshotDestroy, SnapshotList, SnapshotQuery,
    SnapshotRename, SnapshotRollback, SnapshotTag, SnapshotsDestroyed, StreamKey, StreamList,
    Target, TargetChange, TargetCreate, TargetKey, TargetList, TokenCreate, TokenCreated, TokenKey,
    TokenList, Volume, VolumeAdvice, VolumeAdvise, VolumeChange, VolumeCopy, VolumeCreate,
    VolumeDestroy, VolumeList, VolumeRename, VolumeResize, VolumeSet,
};
use weir_api::{Answer, Control, SendStream};
use weir_block::Arena;

use crate::access::tokens;
use crate::answer::errors::{self, not_found};
use crate::answer::names::split;
use crate::answer::pool_status;
use crate::pools::pool_calls;
use crate::state::server::{Entry, Manager};
use crate::volumes::property_calls;

impl Control for Manager {
    fn server_info(&self) -> Answer<'_, ServerInfo> {
        Box::pin(async {
            Ok(ServerInfo {
                version: env!("CARGO_PKG_VERSION").to_owned(),
                pid: std::process::id(),
                uptime_ms: self.start.elapsed().as_millis() as u64,
                memory_cap_bytes: self.memory.total_bytes,
                memory_used_bytes: Arena::live_bytes() as u64,
                memory: self.memory_use(),
                nbd_addresses: self.nbd_addresses(),
                iscsi_portals: self.targets.portals(),
                io_backend: weir_device::io_backend().name().to_owned(),
            })
        })
    }

    fn pool_create(&self, request: PoolCreate) -> Answer<'_, PoolCreated> {
        Box::pin(self.create_pool(request))
    }

    fn pool_list(&self) -> Answer<'_, PoolList> {
        Box::pin(async {
            let pools = self.pools.read();
            let status = |(name, entry): (&String, &Entry)| self.status_of(name, entry);
            Ok(PoolList { pools: pools.iter().map(status).collect() })
        })
    }

    fn pool_status(&self, pool: String) -> Answer<'_, PoolStatus> {
        Box::pin(async move {
            let pools = self.pools.read();
            let entry = pools.get(&pool).ok_or_else(|| not_found("pool", &pool))?;
            Ok(self.status_of(&pool, entry))
        })
    }

    fn pool_destroy(&self, request: PoolDestroy) -> Answer<'_, Removed> {
        Box::pin(self.destroy_pool(request))
    }

    fn pool_scan(&self, request: PoolScan) -> Answer<'_, ImportableList> {
        Box::pin(async move {
            let found = Self::scan(request.search).await?;
            let pools =
                found.pools.into_values().map(|pool| pool_calls::importable(&pool)).collect();
            Ok(ImportableList { pools })
        })
    }

    fn pool_import(&self, request: PoolImport) -> Answer<'_, PoolChange> {
        Box::pin(self.import_pool(request))
    }

    fn pool_export(&self, request: PoolExport) -> Answer<'_, Removed> {
        Box::pin(self.export_pool(request))
    }

    fn pool_history(&self, pool: String) -> Answer<'_, HistoryList> {
        Box::pin(async move {
            let entries = self.record.history.of(&pool);
            if entries.is_empty() {
                // Tells apart a pool that nothing was done to and a mistyped name.
                self.pool_status(pool.clone()).await?;
            }
            Ok(HistoryList { pool, entries, next: None })
        })
    }

    fn events(&self, query: EventQuery) -> Answer<'_, EventList> {
        Box::pin(async move { Ok(self.record.events.after(query).await) })
    }

    fn pool_scrub(&self, request: PoolScrub) -> Answer<'_, PoolChange> {
        Box::pin(async move { self.scrub_pool(&request) })
    }

    fn pool_offline(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        Box::pin(self.offline_disk(request))
    }

    fn pool_online(&self, request: PoolOnline) -> Answer<'_, PoolChange> {
        Box::pin(self.online_disk(request))
    }

    fn pool_clear(&self, request: PoolClear) -> Answer<'_, PoolChange> {
        Box::pin(self.clear_pool(request))
    }

    fn pool_attach(&self, request: PoolAttach) -> Answer<'_, PoolChange> {
        Box::pin(self.attach_disk(request))
    }

    fn pool_replace(&self, request: PoolReplace) -> Answer<'_, PoolChange> {
        Box::pin(self.replace_disk(request))
    }

    fn pool_detach(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        Box::pin(self.detach_disk(request))
    }

    fn pool_add(&self, request: PoolAdd) -> Answer<'_, PoolChange> {
        Box::pin(self.add_vdevs(request))
    }

    fn pool_remove(&self, request: PoolRemove) -> Answer<'_, PoolChange> {
        Box::pin(self.remove_vdev(request))
    }

    fn pool_expand(&self, pool: String) -> Answer<'_, PoolChange> {
        Box::pin(self.expand_pool(pool))
    }

    fn property_get(&self, query: PropertyQuery) -> Answer<'_, PropertyList> {
        Box::pin(self.get_properties(query))
    }

    fn property_set(&self, request: PropertySet) -> Answer<'_, PropertyChange> {
        Box::pin(self.set_properties(request))
    }

    fn property_inherit(&self, request: PropertyInherit) -> Answer<'_, PropertyChange> {
        Box::pin(self.inherit_property(request))
    }

    fn volume_create(&self, request: VolumeCreate) -> Answer<'_, VolumeChange> {
        Box::pin(self.create_volume(request))
    }

    fn volume_list(&self, pool: Option<String>) -> Answer<'_, VolumeList> {
        Box::pin(async move {
            if let Some(pool) = &pool {
                self.pool(pool)?;
            }
            // Once for all volumes: a server may have thousands of both.
            let mut exports: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for export in &self.state.lock().state.exports {
                exports.entry(export.volume.clone()).or_default().push(export.name.clone());
            }
            let mut volumes = Vec::new();
            for (name, entry) in &*self.pools.read() {
                let Entry::Open(open) = entry else { continue };
                if pool.as_ref().is_some_and(|wanted| wanted != name) {
                    continue;
                }
                for volume in open.engine.volumes() {
                    let own = exports.remove(&format!("{name}/{}", volume.info().name));
                    let own = own.unwrap_or_default();
                    volumes.push(pool_status::volume(&open.engine, &volume, own));
                }
            }
            volumes.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(VolumeList { volumes, next: None })
        })
    }

    fn volume_show(&self, volume: String) -> Answer<'_, Volume> {
        Box::pin(async move { self.show_volume(&volume) })
    }

    fn volume_set(&self, request: VolumeSet) -> Answer<'_, VolumeChange> {
        Box::pin(async move {
            let name = request.name.clone();
            let PropertyChange { outcome, .. } = self.set_properties(request.into()).await?;
            Ok(VolumeChange { outcome, volume: self.show_volume(&name)? })
        })
    }

    fn volume_resize(&self, request: VolumeResize) -> Answer<'_, VolumeChange> {
        Box::pin(async move {
            let VolumeResize { name, size_bytes } = request;
            let (pool, own) = split(&name)?;
            let _changes = self.changes.lock(pool).await;
            let resized =
                property_calls::resize(&*self.pool(pool)?, own.to_owned(), size_bytes).await;
            let outcome = errors::outcome(resized?);
            self.tell_size(&name);
            Ok(VolumeChange { outcome, volume: self.show_volume(&name)? })
        })
    }

    fn volume_rename(&self, request: VolumeRename) -> Answer<'_, VolumeChange> {
        Box::pin(self.rename_volume(request))
    }

    fn volume_copy(&self, request: VolumeCopy) -> Answer<'_, VolumeChange> {
        Box::pin(self.copy_volume(request))
    }

    fn volume_promote(&self, volume: String) -> Answer<'_, VolumeChange> {
        Box::pin(self.promote_volume(volume))
    }

    fn volume_advise(&self, request: VolumeAdvise) -> Answer<'_, VolumeAdvice> {
        Box::pin(self.advise_volume(request))
    }

    fn dedupe_estimate(&self, request: DedupeEstimate) -> Answer<'_, DedupeForecast> {
        Box::pin(self.estimate_dedupe(request))
    }

    fn volume_destroy(&self, request: VolumeDestroy) -> Answer<'_, Removed> {
        Box::pin(self.destroy_volume(request))
    }

    fn snapshot_create(&self, request: SnapshotCreate) -> Answer<'_, SnapshotChange> {
        Box::pin(self.create_snapshots(request, None))
    }

    fn snapshot_list(&self, query: SnapshotQuery) -> Answer<'_, SnapshotList> {
        Box::pin(self.list_snapshots(query))
    }

    fn snapshot_destroy(&self, request: SnapshotDestroy) -> Answer<'_, SnapshotsDestroyed> {
        Box::pin(self.destroy_snapshots(request))
    }

    fn snapshot_hold(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange> {
        Box::pin(async move {
            let SnapshotTag { name, tag } = request;
            self.change_snapshot(&name, None, |engine, id| async move {
                engine.hold_snapshot(&id, &tag).await
            })
            .await
        })
    }

    fn snapshot_release(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange> {
        Box::pin(self.release_snapshot(request))
    }

    fn snapshot_rename(&self, request: SnapshotRename) -> Answer<'_, SnapshotChange> {
        Box::pin(async move {
            let SnapshotRename { name, to } = request;
            let own = to.split('@').nth(1).unwrap_or_default().to_owned();
            self.change_snapshot(&name, Some(&to), |engine, id| async move {
                engine.rename_snapshot(&id, &own).await
            })
            .await
        })
    }

    fn snapshot_rollback(&self, request: SnapshotRollback) -> Answer<'_, VolumeChange> {
        Box::pin(self.rollback(request))
    }

    fn snapshot_clone(&self, request: SnapshotClone) -> Answer<'_, VolumeChange> {
        Box::pin(self.clone_snapshot(request))
    }

    fn bookmark_create(&self, request: BookmarkCreate) -> Answer<'_, BookmarkChange> {
        Box::pin(self.create_bookmark(request))
    }

    fn bookmark_list(&self, of: Option<String>) -> Answer<'_, BookmarkList> {
        Box::pin(async move { self.list_bookmarks(of.as_deref()) })
    }

    fn bookmark_destroy(&self, request: BookmarkDestroy) -> Answer<'_, Removed> {
        Box::pin(self.destroy_bookmark(request))
    }

    fn send_start(&self, request: SendStart) -> Answer<'_, SendStarted> {
        Box::pin(self.start_send(request))
    }

    fn send_stream(&self, session: String) -> Answer<'_, Box<dyn SendStream>> {
        Box::pin(async move { self.take_send(session) })
    }

    fn send_show(&self, session: String) -> Answer<'_, SendProgress> {
        Box::pin(async move { self.show_send(&session) })
    }

    fn send_stop(&self, session: String) -> Answer<'_, Removed> {
        Box::pin(async move { self.stop_send(session) })
    }

    fn stream_list(&self) -> Answer<'_, StreamList> {
        Box::pin(async { Ok(self.transfers.list()) })
    }

    fn stream_cancel(&self, stream: StreamKey) -> Answer<'_, Removed> {
        Box::pin(self.transfers.cancel(stream))
    }

    fn receive_start(&self, request: ReceiveStart) -> Answer<'_, ReceiveStarted> {
        Box::pin(self.start_receive(request))
    }

    fn receive_part(&self, session: String, part: Bytes) -> Answer<'_, ReceiveProgress> {
        Box::pin(self.take_part(session, part))
    }

    fn receive_finish(&self, session: String) -> Answer<'_, ReceiveDone> {
        Box::pin(self.finish_receive(session))
    }

    fn receive_stop(&self, session: String) -> Answer<'_, Removed> {
        Box::pin(self.stop_receive(session))
    }

    fn receive_token(&self, volume: String) -> Answer<'_, ReceiveToken> {
        Box::pin(self.token_of(volume))
    }

    fn receive_abort(&self, volume: String) -> Answer<'_, Removed> {
        Box::pin(self.abort_receive(volume))
    }

    fn snapshot_digest(&self, request: DigestRequest) -> Answer<'_, DigestList> {
        Box::pin(self.digest_snapshot(request))
    }

    fn replication_create(&self, request: ReplicationCreate) -> Answer<'_, ReplicationChange> {
        Box::pin(self.create_replication(request))
    }

    fn replication_list(&self) -> Answer<'_, ReplicationList> {
        Box::pin(async { Ok(self.list_replications()) })
    }

    fn replication_act(&self, request: ReplicationAct) -> Answer<'_, ReplicationChange> {
        Box::pin(async move { self.act_on_replication(&request) })
    }

    fn replication_delete(&self, volume: String) -> Answer<'_, ReplicationRemoved> {
        Box::pin(self.delete_replication(volume))
    }

    fn schedule_set(&self, request: ScheduleSet) -> Answer<'_, ScheduleChange> {
        Box::pin(self.set_schedule(request))
    }

    fn schedule_list(&self) -> Answer<'_, ScheduleList> {
        Box::pin(async { Ok(self.list_schedules()) })
    }

    fn schedule_clear(&self, name: String) -> Answer<'_, Removed> {
        Box::pin(async move { self.clear_schedule(name) })
    }

    fn export_create(&self, request: ExportCreate) -> Answer<'_, ExportChange> {
        Box::pin(self.create_export(request))
    }

    fn export_list(&self) -> Answer<'_, ExportList> {
        Box::pin(async {
            let mut known = self.state.lock().state.exports.clone();
            known.sort_by(|a, b| a.name.cmp(&b.name));
            let exports = known.iter().map(|export| self.describe(export)).collect();
            Ok(ExportList { exports, next: None })
        })
    }

    fn export_show(&self, export: ExportKey) -> Answer<'_, Export> {
        Box::pin(async move {
            let known = self.known_export(&export.name);
            let known = known.ok_or_else(|| not_found("export", &export.name))?;
            Ok(self.describe(&known))
        })
    }

    fn export_set(&self, request: ExportSet) -> Answer<'_, ExportChange> {
        Box::pin(async move { self.set_export(request) })
    }

    fn export_delete(&self, export: ExportKey, force: bool) -> Answer<'_, Removed> {
        Box::pin(async move {
            if !force {
                self.wait_for_clients(&export.name).await?;
            }
            self.delete_export(&export)
        })
    }

    fn target_create(&self, request: TargetCreate) -> Answer<'_, TargetChange> {
        Box::pin(async move { self.create_target(&request.name) })
    }

    fn target_list(&self) -> Answer<'_, TargetList> {
        Box::pin(async { Ok(self.list_targets()) })
    }

    fn target_show(&self, target: TargetKey) -> Answer<'_, Target> {
        Box::pin(async move { self.show_target(&target.name) })
    }

    fn target_delete(&self, target: TargetKey, force: bool) -> Answer<'_, Removed> {
        Box::pin(async move {
            if !force {
                self.wait_for_sessions(&target.name, None).await?;
            }
            self.delete_target(target.name)
        })
    }

    fn target_allow(&self, request: InitiatorAllow) -> Answer<'_, TargetChange> {
        Box::pin(self.allow_initiator(request))
    }

    fn target_deny(&self, initiator: InitiatorKey) -> Answer<'_, TargetChange> {
        Box::pin(async move { self.deny_initiator(&initiator) })
    }

    fn lun_add(&self, request: LunAdd) -> Answer<'_, TargetChange> {
        Box::pin(self.add_lun(request))
    }

    fn lun_remove(&self, lun: LunKey, force: bool) -> Answer<'_, Removed> {
        Box::pin(async move {
            if !force {
                self.wait_for_sessions(&lun.target, Some(lun.number)).await?;
            }
            self.remove_lun(&lun)
        })
    }

    fn token_create(&self, request: TokenCreate) -> Answer<'_, TokenCreated> {
        Box::pin(async move { self.tokens.create(request) })
    }

    fn token_list(&self) -> Answer<'_, TokenList> {
        Box::pin(async { Ok(self.tokens.list()) })
    }

    fn token_revoke(&self, token: TokenKey) -> Answer<'_, Removed> {
        Box::pin(async move {
            self.transfers.end_of_account(&tokens::account_of(&token.name));
            self.tokens.revoke(token)
        })
    }
}
