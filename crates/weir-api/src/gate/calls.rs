//! Every management call, with the check of who makes it in front.
//!
//! Not here: the checks themselves (`gate`), the calls (the control behind).
//!
//! Invariant: a call without a check does not compile into the trait by accident: each method says
//! its operation, and a test compares the two lists.

use weir_base::ErrorKind;

use super::{
    Gate, Operation, at_least, covers_target, filtered, machine, named, outside, reaches,
    reaches_part, refused, role, scope,
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

impl Control for Gate {
    fn server_info(&self) -> Answer<'_, ServerInfo> {
        match role(Operation::ServerInfo) {
            Ok(()) => self.inner.server_info(),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_create(&self, request: PoolCreate) -> Answer<'_, PoolCreated> {
        match machine(Operation::PoolCreate) {
            Ok(()) => self.inner.pool_create(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_list(&self) -> Answer<'_, PoolList> {
        let call = || self.inner.pool_list();
        filtered(Operation::PoolList, call, |scope, answer| {
            answer.pools.retain(|pool| scope.covers(&pool.name));
        })
    }

    fn pool_status(&self, pool: String) -> Answer<'_, PoolStatus> {
        match named(Operation::PoolStatus, [&pool]) {
            Ok(()) => self.inner.pool_status(pool),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_destroy(&self, request: PoolDestroy) -> Answer<'_, Removed> {
        match named(Operation::PoolDestroy, [&request.name]) {
            Ok(()) => self.inner.pool_destroy(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_scan(&self, request: PoolScan) -> Answer<'_, ImportableList> {
        match machine(Operation::PoolScan) {
            Ok(()) => self.inner.pool_scan(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_import(&self, request: PoolImport) -> Answer<'_, PoolChange> {
        match machine(Operation::PoolImport) {
            Ok(()) => self.inner.pool_import(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_export(&self, request: PoolExport) -> Answer<'_, Removed> {
        match named(Operation::PoolExport, [&request.name]) {
            Ok(()) => self.inner.pool_export(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_history(&self, pool: String) -> Answer<'_, HistoryList> {
        let name = pool.clone();
        let call = || self.inner.pool_history(pool);
        match reaches(Operation::PoolHistory, &name) {
            Ok(()) => filtered(Operation::PoolHistory, call, move |scope, answer| {
                answer.entries.retain(|entry| {
                    let text = format!("{} {}", entry.call, entry.error.as_deref().unwrap_or(""));
                    scope.covers_text(&name, &text)
                });
            }),
            Err(refusal) => refused(refusal),
        }
    }

    fn events(&self, query: EventQuery) -> Answer<'_, EventList> {
        let call = || self.inner.events(query);
        filtered(Operation::Events, call, |scope, answer| {
            answer.events.retain(|event| {
                let pool = event.pool.as_deref();
                pool.is_some_and(|pool| scope.covers_text(pool, &event.message))
            });
        })
    }

    fn pool_scrub(&self, request: PoolScrub) -> Answer<'_, PoolChange> {
        match named(Operation::PoolScrub, [&request.name]) {
            Ok(()) => self.inner.pool_scrub(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_offline(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        match named(Operation::PoolOffline, [&request.name]) {
            Ok(()) => self.inner.pool_offline(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_online(&self, request: PoolOnline) -> Answer<'_, PoolChange> {
        let allowed = match &request.at {
            // It names any disk of the machine.
            Some(_) => machine(Operation::PoolOnline),
            None => named(Operation::PoolOnline, [&request.name]),
        };
        match allowed {
            Ok(()) => self.inner.pool_online(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_clear(&self, request: PoolClear) -> Answer<'_, PoolChange> {
        match named(Operation::PoolClear, [&request.name]) {
            Ok(()) => self.inner.pool_clear(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_attach(&self, request: PoolAttach) -> Answer<'_, PoolChange> {
        match machine(Operation::PoolAttach) {
            Ok(()) => self.inner.pool_attach(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_replace(&self, request: PoolReplace) -> Answer<'_, PoolChange> {
        match machine(Operation::PoolReplace) {
            Ok(()) => self.inner.pool_replace(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_detach(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        match named(Operation::PoolDetach, [&request.name]) {
            Ok(()) => self.inner.pool_detach(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_add(&self, request: PoolAdd) -> Answer<'_, PoolChange> {
        match machine(Operation::PoolAdd) {
            Ok(()) => self.inner.pool_add(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_remove(&self, request: PoolRemove) -> Answer<'_, PoolChange> {
        match named(Operation::PoolRemove, [&request.name]) {
            Ok(()) => self.inner.pool_remove(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn pool_expand(&self, pool: String) -> Answer<'_, PoolChange> {
        match named(Operation::PoolExpand, [&pool]) {
            Ok(()) => self.inner.pool_expand(pool),
            Err(refusal) => refused(refusal),
        }
    }

    fn property_get(&self, query: PropertyQuery) -> Answer<'_, PropertyList> {
        match named(Operation::PropertyGet, &query.of) {
            Ok(()) => self.inner.property_get(query),
            Err(refusal) => refused(refusal),
        }
    }

    fn property_set(&self, request: PropertySet) -> Answer<'_, PropertyChange> {
        match named(Operation::PropertySet, [&request.name]) {
            Ok(()) => self.inner.property_set(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn property_inherit(&self, request: PropertyInherit) -> Answer<'_, PropertyChange> {
        match named(Operation::PropertyInherit, [&request.name]) {
            Ok(()) => self.inner.property_inherit(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn volume_create(&self, request: VolumeCreate) -> Answer<'_, VolumeChange> {
        match named(Operation::VolumeCreate, [&request.name]) {
            Ok(()) => self.inner.volume_create(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn volume_list(&self, pool: Option<String>) -> Answer<'_, VolumeList> {
        if let Err(refusal) = reaches_part(Operation::VolumeList, pool.as_deref()) {
            return refused(refusal);
        }
        let call = || self.inner.volume_list(pool);
        filtered(Operation::VolumeList, call, |scope, answer| {
            answer.volumes.retain(|volume| scope.covers(&volume.name));
        })
    }

    fn volume_show(&self, volume: String) -> Answer<'_, Volume> {
        match named(Operation::VolumeShow, [&volume]) {
            Ok(()) => self.inner.volume_show(volume),
            Err(refusal) => refused(refusal),
        }
    }

    fn volume_set(&self, request: VolumeSet) -> Answer<'_, VolumeChange> {
        match named(Operation::VolumeSet, [&request.name]) {
            Ok(()) => self.inner.volume_set(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn volume_resize(&self, request: VolumeResize) -> Answer<'_, VolumeChange> {
        match named(Operation::VolumeResize, [&request.name]) {
            Ok(()) => self.inner.volume_resize(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn volume_rename(&self, request: VolumeRename) -> Answer<'_, VolumeChange> {
        match named(Operation::VolumeRename, [&request.name, &request.to]) {
            Ok(()) => self.inner.volume_rename(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn volume_copy(&self, request: VolumeCopy) -> Answer<'_, VolumeChange> {
        match named(Operation::VolumeCopy, [&request.name, &request.to]) {
            Ok(()) => self.inner.volume_copy(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn volume_promote(&self, volume: String) -> Answer<'_, VolumeChange> {
        Box::pin(async move {
            named(Operation::VolumePromote, [&volume])?;
            // The snapshots of the volume that it was cloned from become its own.
            let origin = self.inner.volume_show(volume.clone()).await?.origin;
            named(Operation::VolumePromote, &origin)?;
            self.inner.volume_promote(volume).await
        })
    }

    fn volume_advise(&self, request: VolumeAdvise) -> Answer<'_, VolumeAdvice> {
        match named(Operation::VolumeAdvise, [&request.name]) {
            Ok(()) => self.inner.volume_advise(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn dedupe_estimate(&self, request: DedupeEstimate) -> Answer<'_, DedupeForecast> {
        match named(Operation::DedupeEstimate, &request.names) {
            Ok(()) => self.inner.dedupe_estimate(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn volume_destroy(&self, request: VolumeDestroy) -> Answer<'_, Removed> {
        match named(Operation::VolumeDestroy, [&request.name]) {
            Ok(()) => self.inner.volume_destroy(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn snapshot_create(&self, request: SnapshotCreate) -> Answer<'_, SnapshotChange> {
        match named(Operation::SnapshotCreate, &request.names) {
            Ok(()) => self.inner.snapshot_create(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn snapshot_list(&self, query: SnapshotQuery) -> Answer<'_, SnapshotList> {
        if let Err(refusal) = reaches_part(Operation::SnapshotList, query.of.as_deref()) {
            return refused(refusal);
        }
        let call = || self.inner.snapshot_list(query);
        filtered(Operation::SnapshotList, call, |scope, answer| {
            answer.snapshots.retain(|snapshot| scope.covers(&snapshot.name));
        })
    }

    fn snapshot_destroy(&self, request: SnapshotDestroy) -> Answer<'_, SnapshotsDestroyed> {
        match named(Operation::SnapshotDestroy, &request.names) {
            Ok(()) => self.inner.snapshot_destroy(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn snapshot_hold(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange> {
        match named(Operation::SnapshotHold, [&request.name]) {
            Ok(()) => self.inner.snapshot_hold(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn snapshot_release(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange> {
        match named(Operation::SnapshotRelease, [&request.name]) {
            Ok(()) => self.inner.snapshot_release(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn snapshot_rename(&self, request: SnapshotRename) -> Answer<'_, SnapshotChange> {
        match named(Operation::SnapshotRename, [&request.name, &request.to]) {
            Ok(()) => self.inner.snapshot_rename(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn snapshot_rollback(&self, request: SnapshotRollback) -> Answer<'_, VolumeChange> {
        match named(Operation::SnapshotRollback, [&request.name]) {
            Ok(()) => self.inner.snapshot_rollback(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn snapshot_clone(&self, request: SnapshotClone) -> Answer<'_, VolumeChange> {
        match named(Operation::SnapshotClone, [&request.name, &request.volume]) {
            Ok(()) => self.inner.snapshot_clone(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn bookmark_create(&self, request: BookmarkCreate) -> Answer<'_, BookmarkChange> {
        match named(Operation::BookmarkCreate, [&request.snapshot, &request.name]) {
            Ok(()) => self.inner.bookmark_create(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn bookmark_list(&self, of: Option<String>) -> Answer<'_, BookmarkList> {
        if let Err(refusal) = reaches_part(Operation::BookmarkList, of.as_deref()) {
            return refused(refusal);
        }
        let call = || self.inner.bookmark_list(of);
        filtered(Operation::BookmarkList, call, |scope, answer| {
            answer.bookmarks.retain(|bookmark| scope.covers(&bookmark.name));
        })
    }

    fn bookmark_destroy(&self, request: BookmarkDestroy) -> Answer<'_, Removed> {
        match named(Operation::BookmarkDestroy, [&request.name]) {
            Ok(()) => self.inner.bookmark_destroy(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn send_start(&self, request: SendStart) -> Answer<'_, SendStarted> {
        let names = [Some(&request.snapshot), request.from.as_ref()];
        match named(Operation::SendStart, names.into_iter().flatten()) {
            Ok(()) => self.inner.send_start(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn send_stream(&self, session: String) -> Answer<'_, Box<dyn SendStream>> {
        match role(Operation::SendStream) {
            Ok(()) => self.inner.send_stream(session),
            Err(refusal) => refused(refusal),
        }
    }

    fn send_show(&self, session: String) -> Answer<'_, SendProgress> {
        match role(Operation::SendShow) {
            Ok(()) => self.inner.send_show(session),
            Err(refusal) => refused(refusal),
        }
    }

    fn send_stop(&self, session: String) -> Answer<'_, Removed> {
        match role(Operation::SendStop) {
            Ok(()) => self.inner.send_stop(session),
            Err(refusal) => refused(refusal),
        }
    }

    fn stream_list(&self) -> Answer<'_, StreamList> {
        let call = || self.inner.stream_list();
        filtered(Operation::StreamList, call, |scope, answer| {
            answer.streams.retain(|stream| scope.covers(&stream.name));
        })
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
        match at_least(needed).and_then(|()| named(Operation::ReceiveStart, [&request.volume])) {
            Ok(()) => self.inner.receive_start(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn receive_part(&self, session: String, part: Bytes) -> Answer<'_, ReceiveProgress> {
        match role(Operation::ReceivePart) {
            Ok(()) => self.inner.receive_part(session, part),
            Err(refusal) => refused(refusal),
        }
    }

    fn receive_finish(&self, session: String) -> Answer<'_, ReceiveDone> {
        match role(Operation::ReceiveFinish) {
            Ok(()) => self.inner.receive_finish(session),
            Err(refusal) => refused(refusal),
        }
    }

    fn receive_stop(&self, session: String) -> Answer<'_, Removed> {
        match role(Operation::ReceiveStop) {
            Ok(()) => self.inner.receive_stop(session),
            Err(refusal) => refused(refusal),
        }
    }

    fn receive_token(&self, volume: String) -> Answer<'_, ReceiveToken> {
        match named(Operation::ReceiveToken, [&volume]) {
            Ok(()) => self.inner.receive_token(volume),
            Err(refusal) => refused(refusal),
        }
    }

    fn receive_abort(&self, volume: String) -> Answer<'_, Removed> {
        match named(Operation::ReceiveAbort, [&volume]) {
            Ok(()) => self.inner.receive_abort(volume),
            Err(refusal) => refused(refusal),
        }
    }

    fn snapshot_digest(&self, request: DigestRequest) -> Answer<'_, DigestList> {
        match named(Operation::SnapshotDigest, [&request.snapshot]) {
            Ok(()) => self.inner.snapshot_digest(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn replication_create(&self, request: ReplicationCreate) -> Answer<'_, ReplicationChange> {
        match named(Operation::ReplicationCreate, [&request.volume]) {
            Ok(()) => self.inner.replication_create(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn replication_list(&self) -> Answer<'_, ReplicationList> {
        let call = || self.inner.replication_list();
        filtered(Operation::ReplicationList, call, |scope, answer| {
            answer.replications.retain(|replication| scope.covers(&replication.volume));
        })
    }

    fn replication_act(&self, request: ReplicationAct) -> Answer<'_, ReplicationChange> {
        match named(Operation::ReplicationAct, [&request.volume]) {
            Ok(()) => self.inner.replication_act(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn replication_delete(&self, volume: String) -> Answer<'_, ReplicationRemoved> {
        match named(Operation::ReplicationDelete, [&volume]) {
            Ok(()) => self.inner.replication_delete(volume),
            Err(refusal) => refused(refusal),
        }
    }

    fn schedule_set(&self, request: ScheduleSet) -> Answer<'_, ScheduleChange> {
        match named(Operation::ScheduleSet, [&request.name]) {
            Ok(()) => self.inner.schedule_set(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn schedule_list(&self) -> Answer<'_, ScheduleList> {
        let call = || self.inner.schedule_list();
        filtered(Operation::ScheduleList, call, |scope, answer| {
            answer.schedules.retain(|schedule| scope.covers(&schedule.name));
        })
    }

    fn schedule_clear(&self, name: String) -> Answer<'_, Removed> {
        match named(Operation::ScheduleClear, [&name]) {
            Ok(()) => self.inner.schedule_clear(name),
            Err(refusal) => refused(refusal),
        }
    }

    fn export_create(&self, request: ExportCreate) -> Answer<'_, ExportChange> {
        // The name is what clients ask for, so one that looks like another's volume is refused too.
        let names = [Some(&request.volume), request.name.as_ref()];
        match named(Operation::ExportCreate, names.into_iter().flatten()) {
            Ok(()) => self.inner.export_create(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn export_list(&self) -> Answer<'_, ExportList> {
        let call = || self.inner.export_list();
        filtered(Operation::ExportList, call, |scope, answer| {
            answer.exports.retain(|export| scope.covers(&export.volume));
        })
    }

    fn export_show(&self, export: ExportKey) -> Answer<'_, Export> {
        Box::pin(async move {
            named(Operation::ExportShow, [&export.name])?;
            let shown = self.inner.export_show(export).await?;
            named(Operation::ExportShow, [&shown.volume])?;
            Ok(shown)
        })
    }

    fn export_set(&self, request: ExportSet) -> Answer<'_, ExportChange> {
        Box::pin(async move {
            named(Operation::ExportSet, [&request.key.name])?;
            if !scope().is_all() {
                let shown = self.inner.export_show(request.key.clone()).await?;
                named(Operation::ExportSet, [&shown.volume])?;
            }
            self.inner.export_set(request).await
        })
    }

    fn export_delete(&self, export: ExportKey, force: bool) -> Answer<'_, Removed> {
        Box::pin(async move {
            named(Operation::ExportDelete, [&export.name])?;
            if !scope().is_all() {
                let shown = self.inner.export_show(export.clone()).await?;
                named(Operation::ExportDelete, [&shown.volume])?;
            }
            self.inner.export_delete(export, force).await
        })
    }

    fn target_create(&self, request: TargetCreate) -> Answer<'_, TargetChange> {
        match machine(Operation::TargetCreate) {
            Ok(()) => self.inner.target_create(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn target_list(&self) -> Answer<'_, TargetList> {
        let call = || self.inner.target_list();
        filtered(Operation::TargetList, call, |scope, answer| {
            answer.targets.retain(|target| covers_target(scope, target));
        })
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
        match machine(Operation::TargetDelete) {
            Ok(()) => self.inner.target_delete(target, force),
            Err(refusal) => refused(refusal),
        }
    }

    fn target_allow(&self, request: InitiatorAllow) -> Answer<'_, TargetChange> {
        match machine(Operation::TargetAllow) {
            Ok(()) => self.inner.target_allow(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn target_deny(&self, initiator: InitiatorKey) -> Answer<'_, TargetChange> {
        match machine(Operation::TargetDeny) {
            Ok(()) => self.inner.target_deny(initiator),
            Err(refusal) => refused(refusal),
        }
    }

    fn lun_add(&self, request: LunAdd) -> Answer<'_, TargetChange> {
        match machine(Operation::LunAdd) {
            Ok(()) => self.inner.lun_add(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn lun_remove(&self, lun: LunKey, force: bool) -> Answer<'_, Removed> {
        match machine(Operation::LunRemove) {
            Ok(()) => self.inner.lun_remove(lun, force),
            Err(refusal) => refused(refusal),
        }
    }

    fn token_create(&self, request: TokenCreate) -> Answer<'_, TokenCreated> {
        match machine(Operation::TokenCreate) {
            Ok(()) => self.inner.token_create(request),
            Err(refusal) => refused(refusal),
        }
    }

    fn token_list(&self) -> Answer<'_, TokenList> {
        match machine(Operation::TokenList) {
            Ok(()) => self.inner.token_list(),
            Err(refusal) => refused(refusal),
        }
    }

    fn token_revoke(&self, token: TokenKey) -> Answer<'_, Removed> {
        match machine(Operation::TokenRevoke) {
            Ok(()) => self.inner.token_revoke(token),
            Err(refusal) => refused(refusal),
        }
    }
}
