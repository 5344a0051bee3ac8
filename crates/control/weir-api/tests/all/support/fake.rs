//! A fake server without an engine. The server keeps pools, volumes and exports in memory, and
//! behaves as the interface specifies.
//!
//! The fake server has no disks; paths of disks are only names.
//!
//! Invariants:
//! - a repeated changing call answers `unchanged`; the removal of an absent object fails with
//!   `not_found`;
//! - an object in use cannot be removed.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard};

use serde::de::DeserializeOwned;
use serde_json::Value;
use weir_api::access::Scope;
use weir_api::calls::lookup;
use weir_api::stream::Bytes;
use weir_api::types::{
    BookmarkCreate, BookmarkDestroy, DedupeEstimate, DigestRequest, ExportCreate, ExportDelete,
    ExportKey, ExportSet, GetProperties, InitiatorAllow, InitiatorDeny, ListAllHistory,
    ListBookmarks, ListEvents, ListExports, ListHistory, ListPools, ListReplications,
    ListSchedules, ListShares, ListSnapshots, ListStreams, ListTargets, ListTokens, ListVolumes,
    LunAdd, LunRemove, PoolAdd, PoolAttach, PoolClear, PoolCreate, PoolDestroy, PoolDetach,
    PoolExpand, PoolExport, PoolImport, PoolOffline, PoolOnline, PoolRemove, PoolReplace, PoolScan,
    PoolScrub, PropertyInherit, PropertySet, ReceiveAbort, ReceiveFinish, ReceiveProgress,
    ReceiveStart, ReceiveStop, ReplicationAct, ReplicationCreate, ReplicationDelete, ScheduleClear,
    ScheduleSet, SendStart, SendStop, ShareAllow, ShareCreate, ShareDelete, ShareDeny, ShowExport,
    ShowPool, ShowReceive, ShowSend, ShowServer, ShowShare, ShowShareStatistics, ShowTarget,
    ShowVolume, SnapshotClone, SnapshotCreate, SnapshotDestroy, SnapshotHold, SnapshotRelease,
    SnapshotRename, SnapshotRollback, StreamCancel, TargetCreate, TargetDelete, TokenCreate,
    TokenRevoke, VolumeAdvise, VolumeCopy, VolumeCreate, VolumeDestroy, VolumePromote,
    VolumeRename, VolumeResize, VolumeSet,
};
use weir_api::{ApiError, AuditLine, Call, Handle, Pending, Run, SendStream, Streams, Work};
use weir_base::ErrorKind;

#[expect(clippy::needless_pass_by_value, clippy::unused_self, reason = "calls share one form")]
mod answers;
mod sending;
mod shares;
mod state;
mod targets;
use state::{State, not_found, ready};

/// A fake server with its state in memory.
#[derive(Default)]
pub(crate) struct Fake {
    state: Arc<Mutex<State>>,
    /// Number of slow calls that have started.
    pub(crate) slow_begun: AtomicU64,
}

impl Fake {
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }
}

impl<C: Call> Handle<C> for Fake {
    async fn handle(&self, call: C) -> Result<C::Answer, ApiError> {
        let request = serde_json::to_value(&call).unwrap();
        let answer = self.answer(C::OPERATION.name, request).await?;
        Ok(serde_json::from_value(answer).unwrap())
    }

    async fn authorize(&self, call: &C, scope: &Scope) -> Result<(), ApiError> {
        let request = serde_json::to_value(call).unwrap();
        let key = |request: Value| {
            let protocol = serde_json::from_value(request["protocol"].clone()).unwrap();
            ExportKey { protocol, name: request["name"].as_str().unwrap().to_owned() }
        };
        match C::OPERATION.name {
            "export_show" | "export_set" | "export_delete" => {
                lookup::export(self, key(request), scope).await
            }
            "share_show" | "share_stat" | "share_allow" | "share_deny" | "share_delete" => {
                lookup::share(self, shares::key(&request), scope).await
            }
            "target_show" => lookup::target(self, &read(request), scope).await,
            "volume_promote" => lookup::promotion(self, &read(request), scope).await,
            "stream_cancel" => lookup::stream(self, &read(request), scope).await,
            other => panic!("who may make {other}?"),
        }
    }
}

fn read<T: DeserializeOwned>(request: Value) -> T {
    serde_json::from_value(request).unwrap()
}

impl Run for Fake {
    fn run(&self, _line: AuditLine, _is_recorded: bool, work: Work) -> Pending<'_, ()> {
        Box::pin(async { work.await.map(drop) })
    }
}

impl Streams for Fake {
    fn send_stream(&self, session: String) -> Pending<'_, Box<dyn SendStream>> {
        ready(sending::take(&self.state, session))
    }

    fn receive_part(
        self: Arc<Self>,
        session: String,
        part: Bytes,
    ) -> Pending<'static, ReceiveProgress> {
        let mut state = self.state();
        let Some((_, bytes)) = state.receives.get_mut(&session) else {
            return ready(Err(not_found("session", &session)));
        };
        bytes.extend(part);
        ready(Ok(ReceiveProgress { received_bytes: bytes.len() as u64 }))
    }
}

/// Dispatches a call by its name: parses the request, makes the call and serializes the response to
/// JSON.
macro_rules! dispatch {
    ($name:expr, $request:expr; $($known:literal: $call:ident => $make:expr;)*) => {
        match $name {
            $($known => {
                let call: $call = read($request);
                let make: &(dyn Fn($call) -> _ + Sync) = &$make;
                let answer = make(call);
                Box::pin(async move { Ok(serde_json::to_value(answer.await?).unwrap()) })
            })*
            other => {
                let message = format!("the fake does not know {other}");
                Box::pin(async { Err(ApiError::new(ErrorKind::NotFound, message)) })
            }
        }
    };
}

impl Fake {
    #[expect(clippy::too_many_lines, reason = "one line for each call")]
    fn answer(&self, name: &str, request: Value) -> Pending<'_, Value> {
        dispatch! { name, request;
            "server_info": ShowServer => |_| self.server_info();
            "pool_create": PoolCreate => |call| self.pool_create(call);
            "pool_list": ListPools => |_| self.pool_list();
            "pool_status": ShowPool => |call| self.pool_status(call.name);
            "pool_destroy": PoolDestroy => |call| self.pool_destroy(call);
            "pool_scan": PoolScan => |call| self.pool_scan(call);
            "pool_import": PoolImport => |call| self.pool_import(call);
            "pool_scrub": PoolScrub => |call| self.pool_scrub(call);
            "pool_offline": PoolOffline => |call| self.pool_offline(call);
            "pool_online": PoolOnline => |call| self.pool_online(call);
            "pool_clear": PoolClear => |call| self.pool_clear(call);
            "pool_attach": PoolAttach => |call| self.pool_attach(call);
            "pool_replace": PoolReplace => |call| self.pool_replace(call);
            "pool_detach": PoolDetach => |call| self.pool_detach(call);
            "pool_add": PoolAdd => |call| self.pool_add(call);
            "pool_remove": PoolRemove => |call| self.pool_remove(call);
            "pool_expand": PoolExpand => |call| self.pool_expand(call.name);
            "pool_export": PoolExport => |call| self.pool_export(call);
            "pool_history": ListHistory => |call| self.pool_history(call.name);
            "history_list": ListAllHistory => |_call| self.history_list();
            "events": ListEvents => |call| self.events(call);
            "property_get": GetProperties => |call| self.property_get(call);
            "property_set": PropertySet => |call| self.property_set(call);
            "property_inherit": PropertyInherit => |call| self.property_inherit(call);
            "volume_create": VolumeCreate => |call| self.volume_create(call);
            "volume_list": ListVolumes => |call| self.volume_list(call.pool);
            "volume_show": ShowVolume => |call| self.volume_show(call.name);
            "volume_set": VolumeSet => |call| self.volume_set(call);
            "volume_resize": VolumeResize => |call| self.volume_resize(call);
            "volume_rename": VolumeRename => |call| self.volume_rename(call);
            "volume_copy": VolumeCopy => |call| self.volume_copy(call);
            "volume_promote": VolumePromote => |call| self.volume_promote(call.name);
            "snapshot_create": SnapshotCreate => |call| self.snapshot_create(call);
            "snapshot_list": ListSnapshots => |call| self.snapshot_list(call);
            "snapshot_destroy": SnapshotDestroy => |call| self.snapshot_destroy(call);
            "snapshot_hold": SnapshotHold => |call| self.snapshot_hold(call);
            "snapshot_release": SnapshotRelease => |call| self.snapshot_release(call);
            "snapshot_rename": SnapshotRename => |call| self.snapshot_rename(call);
            "snapshot_rollback": SnapshotRollback => |call| self.snapshot_rollback(call);
            "snapshot_clone": SnapshotClone => |call| self.snapshot_clone(call);
            "bookmark_create": BookmarkCreate => |call| self.bookmark_create(call);
            "bookmark_list": ListBookmarks => |call| self.bookmark_list(call.of);
            "bookmark_destroy": BookmarkDestroy => |call| self.bookmark_destroy(call);
            "send_start": SendStart => |call| self.send_start(call);
            "send_show": ShowSend => |call| self.send_show(call.session);
            "send_stop": SendStop => |call| self.send_stop(call.session);
            "stream_list": ListStreams => |_| self.stream_list();
            "stream_cancel": StreamCancel => |call| self.stream_cancel(call);
            "receive_start": ReceiveStart => |call| self.receive_start(call);
            "receive_finish": ReceiveFinish => |call| self.receive_finish(call.session);
            "receive_stop": ReceiveStop => |call| self.receive_stop(call.session);
            "receive_token": ShowReceive => |call| self.receive_token(call.volume);
            "receive_abort": ReceiveAbort => |call| self.receive_abort(call.volume);
            "snapshot_digest": DigestRequest => |call| self.snapshot_digest(call);
            "replication_create": ReplicationCreate => |call| self.replication_create(call);
            "replication_list": ListReplications => |_| self.replication_list();
            "replication_act": ReplicationAct => |call| self.replication_act(call);
            "replication_delete": ReplicationDelete => |call| self.replication_delete(call.volume);
            "schedule_set": ScheduleSet => |call| self.schedule_set(call);
            "schedule_list": ListSchedules => |_| self.schedule_list();
            "schedule_clear": ScheduleClear => |call| self.schedule_clear(call.name);
            "volume_advise": VolumeAdvise => |call| self.volume_advise(call);
            "dedupe_estimate": DedupeEstimate => |call| self.dedupe_estimate(call);
            "volume_destroy": VolumeDestroy => |call| self.volume_destroy(call);
            "export_create": ExportCreate => |call| self.export_create(call);
            "export_list": ListExports => |_| self.export_list();
            "export_show": ShowExport => |call| self.export_show(call);
            "export_set": ExportSet => |call| self.export_set(call);
            "export_delete": ExportDelete => |call| self.export_delete(call);
            "share_create": ShareCreate => |call| self.share_create(call);
            "share_list": ListShares => |_| self.share_list();
            "share_show": ShowShare => |call| self.share_show(&call.name);
            "share_stat": ShowShareStatistics => |call| self.share_statistics(&call.name);
            "share_allow": ShareAllow => |call| self.share_allow(call);
            "share_deny": ShareDeny => |call| self.share_deny(&call);
            "share_delete": ShareDelete => |call| self.share_delete(call);
            "target_create": TargetCreate => |call| self.target_create(call);
            "target_list": ListTargets => |_| self.target_list();
            "target_show": ShowTarget => |call| self.target_show(call);
            "target_delete": TargetDelete => |call| self.target_delete(call);
            "target_allow": InitiatorAllow => |call| self.target_allow(call);
            "target_deny": InitiatorDeny => |call| self.target_deny(call);
            "lun_add": LunAdd => |call| self.lun_add(call);
            "lun_remove": LunRemove => |call| self.lun_remove(call);
            "token_create": TokenCreate => |call| self.token_create(call);
            "token_list": ListTokens => |_| self.token_list();
            "token_revoke": TokenRevoke => |call| self.token_revoke(call);
        }
    }
}
