//! Every management call, with the check of who makes it in front.
//!
//! Not here: the checks themselves (`gate`), the calls (the control behind).
//!
//! Invariants:
//! - a call without a check does not compile into the trait by accident: each method says its
//!   operation, and a test compares the two lists;
//! - every answer of the control behind passes `cut`, which cuts it to the caller's scope.

use weir_base::ErrorKind;

use super::cut::{covers_target, cut};
use super::{
    Gate, Operation, at_least, machine, named, outside, pass, reaches, reaches_part, role, scope,
};
use crate::access::Role;
use crate::caller;
use crate::control::{Answer, Control};
use crate::stream::{Bytes, SendStream};
use crate::types::{
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
use crate::wire::ApiError;

impl Gate {
    /// Shows an export, unless it is of a volume outside of the caller's scope.
    async fn export_in_scope(&self, export: ExportKey) -> Result<Export, ApiError> {
        let name = export.name.clone();
        let shown = cut(scope(), self.inner.export_show(export)).await?;
        if scope().covers(&shown.volume) { Ok(shown) } else { Err(outside(&name)) }
    }
}

impl Control for Gate {
    fn server_info(&self) -> Answer<'_, ServerInfo> {
        pass(role(Operation::ServerInfo), || self.inner.server_info())
    }

    fn pool_create(&self, request: PoolCreate) -> Answer<'_, PoolCreated> {
        pass(machine(Operation::PoolCreate), || self.inner.pool_create(request))
    }

    fn pool_list(&self) -> Answer<'_, PoolList> {
        pass(role(Operation::PoolList), || self.inner.pool_list())
    }

    fn pool_status(&self, pool: String) -> Answer<'_, PoolStatus> {
        pass(named(Operation::PoolStatus, [&pool]), || self.inner.pool_status(pool))
    }

    fn pool_destroy(&self, request: PoolDestroy) -> Answer<'_, Removed> {
        pass(named(Operation::PoolDestroy, [&request.name]), || self.inner.pool_destroy(request))
    }

    fn pool_scan(&self, request: PoolScan) -> Answer<'_, ImportableList> {
        pass(machine(Operation::PoolScan), || self.inner.pool_scan(request))
    }

    fn pool_import(&self, request: PoolImport) -> Answer<'_, PoolChange> {
        pass(machine(Operation::PoolImport), || self.inner.pool_import(request))
    }

    fn pool_export(&self, request: PoolExport) -> Answer<'_, Removed> {
        pass(named(Operation::PoolExport, [&request.name]), || self.inner.pool_export(request))
    }

    fn pool_history(&self, pool: String) -> Answer<'_, HistoryList> {
        pass(reaches(Operation::PoolHistory, &pool), || self.inner.pool_history(pool))
    }

    fn events(&self, query: EventQuery) -> Answer<'_, EventList> {
        pass(role(Operation::Events), || self.inner.events(query))
    }

    fn pool_scrub(&self, request: PoolScrub) -> Answer<'_, PoolChange> {
        pass(named(Operation::PoolScrub, [&request.name]), || self.inner.pool_scrub(request))
    }

    fn pool_offline(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        pass(named(Operation::PoolOffline, [&request.name]), || self.inner.pool_offline(request))
    }

    fn pool_online(&self, request: PoolOnline) -> Answer<'_, PoolChange> {
        let allowed = match &request.at {
            // It names any disk of the machine.
            Some(_) => machine(Operation::PoolOnline),
            None => named(Operation::PoolOnline, [&request.name]),
        };
        pass(allowed, || self.inner.pool_online(request))
    }

    fn pool_clear(&self, request: PoolClear) -> Answer<'_, PoolChange> {
        pass(named(Operation::PoolClear, [&request.name]), || self.inner.pool_clear(request))
    }

    fn pool_attach(&self, request: PoolAttach) -> Answer<'_, PoolChange> {
        pass(machine(Operation::PoolAttach), || self.inner.pool_attach(request))
    }

    fn pool_replace(&self, request: PoolReplace) -> Answer<'_, PoolChange> {
        pass(machine(Operation::PoolReplace), || self.inner.pool_replace(request))
    }

    fn pool_detach(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        pass(named(Operation::PoolDetach, [&request.name]), || self.inner.pool_detach(request))
    }

    fn pool_add(&self, request: PoolAdd) -> Answer<'_, PoolChange> {
        pass(machine(Operation::PoolAdd), || self.inner.pool_add(request))
    }

    fn pool_remove(&self, request: PoolRemove) -> Answer<'_, PoolChange> {
        pass(named(Operation::PoolRemove, [&request.name]), || self.inner.pool_remove(request))
    }

    fn pool_expand(&self, pool: String) -> Answer<'_, PoolChange> {
        pass(named(Operation::PoolExpand, [&pool]), || self.inner.pool_expand(pool))
    }

    fn property_get(&self, query: PropertyQuery) -> Answer<'_, PropertyList> {
        pass(named(Operation::PropertyGet, &query.of), || self.inner.property_get(query))
    }

    fn property_set(&self, request: PropertySet) -> Answer<'_, PropertyChange> {
        pass(named(Operation::PropertySet, [&request.name]), || self.inner.property_set(request))
    }

    fn property_inherit(&self, request: PropertyInherit) -> Answer<'_, PropertyChange> {
        pass(named(Operation::PropertyInherit, [&request.name]), || {
            self.inner.property_inherit(request)
        })
    }

    fn volume_create(&self, request: VolumeCreate) -> Answer<'_, VolumeChange> {
        pass(named(Operation::VolumeCreate, [&request.name]), || self.inner.volume_create(request))
    }

    fn volume_list(&self, pool: Option<String>) -> Answer<'_, VolumeList> {
        let allowed = reaches_part(Operation::VolumeList, pool.as_deref());
        pass(allowed, || self.inner.volume_list(pool))
    }

    fn volume_show(&self, volume: String) -> Answer<'_, Volume> {
        pass(named(Operation::VolumeShow, [&volume]), || self.inner.volume_show(volume))
    }

    fn volume_set(&self, request: VolumeSet) -> Answer<'_, VolumeChange> {
        pass(named(Operation::VolumeSet, [&request.name]), || self.inner.volume_set(request))
    }

    fn volume_resize(&self, request: VolumeResize) -> Answer<'_, VolumeChange> {
        pass(named(Operation::VolumeResize, [&request.name]), || self.inner.volume_resize(request))
    }

    fn volume_rename(&self, request: VolumeRename) -> Answer<'_, VolumeChange> {
        pass(named(Operation::VolumeRename, [&request.name, &request.to]), || {
            self.inner.volume_rename(request)
        })
    }

    fn volume_copy(&self, request: VolumeCopy) -> Answer<'_, VolumeChange> {
        pass(named(Operation::VolumeCopy, [&request.name, &request.to]), || {
            self.inner.volume_copy(request)
        })
    }

    fn volume_promote(&self, volume: String) -> Answer<'_, VolumeChange> {
        Box::pin(async move {
            named(Operation::VolumePromote, [&volume])?;
            // The snapshots of the volume that it was cloned from become its own.
            let shown = self.inner.volume_show(volume.clone());
            if shown.await?.origin.is_some_and(|origin| !scope().covers(&origin)) {
                return Err(outside(&format!("the origin of {volume}")));
            }
            cut(scope(), self.inner.volume_promote(volume)).await
        })
    }

    fn volume_advise(&self, request: VolumeAdvise) -> Answer<'_, VolumeAdvice> {
        pass(named(Operation::VolumeAdvise, [&request.name]), || self.inner.volume_advise(request))
    }

    fn dedupe_estimate(&self, request: DedupeEstimate) -> Answer<'_, DedupeForecast> {
        pass(named(Operation::DedupeEstimate, &request.names), || {
            self.inner.dedupe_estimate(request)
        })
    }

    fn volume_destroy(&self, request: VolumeDestroy) -> Answer<'_, Removed> {
        pass(named(Operation::VolumeDestroy, [&request.name]), || {
            self.inner.volume_destroy(request)
        })
    }

    fn snapshot_create(&self, request: SnapshotCreate) -> Answer<'_, SnapshotChange> {
        pass(named(Operation::SnapshotCreate, &request.names), || {
            self.inner.snapshot_create(request)
        })
    }

    fn snapshot_list(&self, query: SnapshotQuery) -> Answer<'_, SnapshotList> {
        let allowed = reaches_part(Operation::SnapshotList, query.of.as_deref());
        pass(allowed, || self.inner.snapshot_list(query))
    }

    fn snapshot_destroy(&self, request: SnapshotDestroy) -> Answer<'_, SnapshotsDestroyed> {
        pass(named(Operation::SnapshotDestroy, &request.names), || {
            self.inner.snapshot_destroy(request)
        })
    }

    fn snapshot_hold(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange> {
        pass(named(Operation::SnapshotHold, [&request.name]), || self.inner.snapshot_hold(request))
    }

    fn snapshot_release(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange> {
        pass(named(Operation::SnapshotRelease, [&request.name]), || {
            self.inner.snapshot_release(request)
        })
    }

    fn snapshot_rename(&self, request: SnapshotRename) -> Answer<'_, SnapshotChange> {
        pass(named(Operation::SnapshotRename, [&request.name, &request.to]), || {
            self.inner.snapshot_rename(request)
        })
    }

    fn snapshot_rollback(&self, request: SnapshotRollback) -> Answer<'_, VolumeChange> {
        pass(named(Operation::SnapshotRollback, [&request.name]), || {
            self.inner.snapshot_rollback(request)
        })
    }

    fn snapshot_clone(&self, request: SnapshotClone) -> Answer<'_, VolumeChange> {
        pass(named(Operation::SnapshotClone, [&request.name, &request.volume]), || {
            self.inner.snapshot_clone(request)
        })
    }

    fn bookmark_create(&self, request: BookmarkCreate) -> Answer<'_, BookmarkChange> {
        pass(named(Operation::BookmarkCreate, [&request.snapshot, &request.name]), || {
            self.inner.bookmark_create(request)
        })
    }

    fn bookmark_list(&self, of: Option<String>) -> Answer<'_, BookmarkList> {
        let allowed = reaches_part(Operation::BookmarkList, of.as_deref());
        pass(allowed, || self.inner.bookmark_list(of))
    }

    fn bookmark_destroy(&self, request: BookmarkDestroy) -> Answer<'_, Removed> {
        pass(named(Operation::BookmarkDestroy, [&request.name]), || {
            self.inner.bookmark_destroy(request)
        })
    }

    fn send_start(&self, request: SendStart) -> Answer<'_, SendStarted> {
        let names = [Some(&request.snapshot), request.from.as_ref()];
        pass(named(Operation::SendStart, names.into_iter().flatten()), || {
            self.inner.send_start(request)
        })
    }

    fn send_stream(&self, session: String) -> Answer<'_, Box<dyn SendStream>> {
        pass(role(Operation::SendStream), || self.inner.send_stream(session))
    }

    fn send_show(&self, session: String) -> Answer<'_, SendProgress> {
        pass(role(Operation::SendShow), || self.inner.send_show(session))
    }

    fn send_stop(&self, session: String) -> Answer<'_, Removed> {
        pass(role(Operation::SendStop), || self.inner.send_stop(session))
    }

    fn stream_list(&self) -> Answer<'_, StreamList> {
        pass(role(Operation::StreamList), || self.inner.stream_list())
    }

    fn stream_cancel(&self, key: StreamKey) -> Answer<'_, Removed> {
        Box::pin(async move {
            role(Operation::StreamCancel)?;
            let (scope, caller) = (scope(), caller::current());
            let all = self.inner.stream_list().await?.streams;
            let found = all.into_iter().find(|stream| stream.id == key.id);
            // Streams outside the scope are answered like streams that do not exist.
            let Some(found) = found.filter(|found| scope.covers(&found.name)) else {
                let message = format!("there is no stream {}", key.id);
                return Err(ApiError::new(ErrorKind::NotFound, message)
                    .with_action("see the streams: weir stream list"));
            };
            if found.caller != caller.account() {
                at_least(Role::Admin)?;
            }
            self.inner.stream_cancel(key).await
        })
    }

    fn receive_start(&self, request: ReceiveStart) -> Answer<'_, ReceiveStarted> {
        // A roll-back destroys what the volume holds.
        let needed = if request.roll_back { Role::Admin } else { Role::Viewer };
        pass(
            at_least(needed).and_then(|()| named(Operation::ReceiveStart, [&request.volume])),
            || self.inner.receive_start(request),
        )
    }

    fn receive_part(&self, session: String, part: Bytes) -> Answer<'_, ReceiveProgress> {
        pass(role(Operation::ReceivePart), || self.inner.receive_part(session, part))
    }

    fn receive_finish(&self, session: String) -> Answer<'_, ReceiveDone> {
        pass(role(Operation::ReceiveFinish), || self.inner.receive_finish(session))
    }

    fn receive_stop(&self, session: String) -> Answer<'_, Removed> {
        pass(role(Operation::ReceiveStop), || self.inner.receive_stop(session))
    }

    fn receive_token(&self, volume: String) -> Answer<'_, ReceiveToken> {
        pass(named(Operation::ReceiveToken, [&volume]), || self.inner.receive_token(volume))
    }

    fn receive_abort(&self, volume: String) -> Answer<'_, Removed> {
        pass(named(Operation::ReceiveAbort, [&volume]), || self.inner.receive_abort(volume))
    }

    fn snapshot_digest(&self, request: DigestRequest) -> Answer<'_, DigestList> {
        pass(named(Operation::SnapshotDigest, [&request.snapshot]), || {
            self.inner.snapshot_digest(request)
        })
    }

    fn replication_create(&self, request: ReplicationCreate) -> Answer<'_, ReplicationChange> {
        pass(named(Operation::ReplicationCreate, [&request.volume]), || {
            self.inner.replication_create(request)
        })
    }

    fn replication_list(&self) -> Answer<'_, ReplicationList> {
        pass(role(Operation::ReplicationList), || self.inner.replication_list())
    }

    fn replication_act(&self, request: ReplicationAct) -> Answer<'_, ReplicationChange> {
        pass(named(Operation::ReplicationAct, [&request.volume]), || {
            self.inner.replication_act(request)
        })
    }

    fn replication_delete(&self, volume: String) -> Answer<'_, ReplicationRemoved> {
        pass(named(Operation::ReplicationDelete, [&volume]), || {
            self.inner.replication_delete(volume)
        })
    }

    fn schedule_set(&self, request: ScheduleSet) -> Answer<'_, ScheduleChange> {
        pass(named(Operation::ScheduleSet, [&request.name]), || self.inner.schedule_set(request))
    }

    fn schedule_list(&self) -> Answer<'_, ScheduleList> {
        pass(role(Operation::ScheduleList), || self.inner.schedule_list())
    }

    fn schedule_clear(&self, name: String) -> Answer<'_, Removed> {
        pass(named(Operation::ScheduleClear, [&name]), || self.inner.schedule_clear(name))
    }

    fn export_create(&self, request: ExportCreate) -> Answer<'_, ExportChange> {
        // The name is what clients ask for, so one that looks like another's volume is refused too.
        let names = [Some(&request.volume), request.name.as_ref()];
        pass(named(Operation::ExportCreate, names.into_iter().flatten()), || {
            self.inner.export_create(request)
        })
    }

    fn export_list(&self) -> Answer<'_, ExportList> {
        pass(role(Operation::ExportList), || self.inner.export_list())
    }

    fn export_show(&self, export: ExportKey) -> Answer<'_, Export> {
        Box::pin(async move {
            named(Operation::ExportShow, [&export.name])?;
            self.export_in_scope(export).await
        })
    }

    fn export_set(&self, request: ExportSet) -> Answer<'_, ExportChange> {
        Box::pin(async move {
            named(Operation::ExportSet, [&request.key.name])?;
            if !scope().is_all() {
                self.export_in_scope(request.key.clone()).await?;
            }
            cut(scope(), self.inner.export_set(request)).await
        })
    }

    fn export_delete(&self, export: ExportKey, force: bool) -> Answer<'_, Removed> {
        Box::pin(async move {
            named(Operation::ExportDelete, [&export.name])?;
            if !scope().is_all() {
                self.export_in_scope(export.clone()).await?;
            }
            cut(scope(), self.inner.export_delete(export, force)).await
        })
    }

    fn target_create(&self, request: TargetCreate) -> Answer<'_, TargetChange> {
        pass(machine(Operation::TargetCreate), || self.inner.target_create(request))
    }

    fn target_list(&self) -> Answer<'_, TargetList> {
        pass(role(Operation::TargetList), || self.inner.target_list())
    }

    fn target_show(&self, target: TargetKey) -> Answer<'_, Target> {
        Box::pin(async move {
            role(Operation::TargetShow)?;
            let scope = scope();
            match self.inner.target_show(target.clone()).await {
                Ok(shown) if covers_target(&scope, &shown) => Ok(shown),
                Err(error) if scope.is_all() => Err(error),
                // Whether there is one is not told either.
                _ => Err(outside(&target.name)),
            }
        })
    }

    fn target_delete(&self, target: TargetKey, force: bool) -> Answer<'_, Removed> {
        pass(machine(Operation::TargetDelete), || self.inner.target_delete(target, force))
    }

    fn target_allow(&self, request: InitiatorAllow) -> Answer<'_, TargetChange> {
        pass(machine(Operation::TargetAllow), || self.inner.target_allow(request))
    }

    fn target_deny(&self, initiator: InitiatorKey) -> Answer<'_, TargetChange> {
        pass(machine(Operation::TargetDeny), || self.inner.target_deny(initiator))
    }

    fn lun_add(&self, request: LunAdd) -> Answer<'_, TargetChange> {
        pass(machine(Operation::LunAdd), || self.inner.lun_add(request))
    }

    fn lun_remove(&self, lun: LunKey, force: bool) -> Answer<'_, Removed> {
        pass(machine(Operation::LunRemove), || self.inner.lun_remove(lun, force))
    }

    fn token_create(&self, request: TokenCreate) -> Answer<'_, TokenCreated> {
        pass(machine(Operation::TokenCreate), || self.inner.token_create(request))
    }

    fn token_list(&self) -> Answer<'_, TokenList> {
        pass(machine(Operation::TokenList), || self.inner.token_list())
    }

    fn token_revoke(&self, token: TokenKey) -> Answer<'_, Removed> {
        pass(machine(Operation::TokenRevoke), || self.inner.token_revoke(token))
    }
}
