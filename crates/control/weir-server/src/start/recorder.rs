//! Management calls as the interface sees them: every changing call is recorded, and none keeps its
//! caller waiting for a disk that does not answer.
//!
//! Not here: the calls themselves (control), and what is kept (history, events).
//!
//! Invariants:
//! - a changing call runs to its end and is recorded with its outcome, also when its caller was
//!   told before that the disks do not answer;
//! - a caller is answered within [`crate::monitor::patience::PATIENCE`] unless disks complete I/O
//!   for the call.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::future::BoxFuture;
use weir_api::stream::Bytes;
use weir_api::types::{
    BookmarkChange, BookmarkCreate, BookmarkDestroy, BookmarkList, DedupeEstimate, DedupeForecast,
    DigestList, DigestRequest, EventList, EventQuery, Export, ExportChange, ExportCreate,
    ExportKey, ExportList, ExportSet, HistoryList, ImportableList, InitiatorAllow, InitiatorKey,
    LunAdd, LunKey, Outcome, PoolAdd, PoolAttach, PoolChange, PoolClear, PoolCreate, PoolCreated,
    PoolDestroy, PoolDisk, PoolExport, PoolImport, PoolList, PoolOnline, PoolRemove, PoolReplace,
    PoolScan, PoolScrub, PoolStatus, PropertyChange, PropertyInherit, PropertyList, PropertyQuery,
    PropertySet, ReceiveDone, ReceiveProgress, ReceiveStart, ReceiveStarted, ReceiveToken, Removed,
    ReplicationAct, ReplicationAction, ReplicationChange, ReplicationCreate, ReplicationList,
    ReplicationRemoved, ScheduleChange, ScheduleList, ScheduleSet, ScrubAction, SendProgress,
    SendStart, SendStarted, ServerInfo, SnapshotChange, SnapshotClone, SnapshotCreate,
    SnapshotDestroy, SnapshotList, SnapshotQuery, SnapshotRename, SnapshotRollback, SnapshotTag,
    SnapshotsDestroyed, StreamKey, StreamList, Target, TargetChange, TargetCreate, TargetKey,
    TargetList, TokenCreate, TokenCreated, TokenKey, TokenList, VdevRole, VdevSpec, Volume,
    VolumeAdvice, VolumeAdvise, VolumeChange, VolumeCopy, VolumeCreate, VolumeDestroy, VolumeList,
    VolumeRename, VolumeResize, VolumeSet,
};
use weir_api::{Answer, ApiError, Control, SendStream, caller};
use weir_base::size::Human;

use crate::access::activity::Activity;
use crate::answer::errors::internal;
use crate::disks::slot::Slot;
use crate::monitor::patience::Patience;
use crate::record::call_record::{Call, Record};
use crate::state::server::Manager;
use crate::volumes::property_calls::told;

/// How often that is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// The management calls with their record.
pub(crate) struct Recorder {
    manager: Arc<Manager>,
    record: Record,
}

impl Recorder {
    pub(crate) fn new(manager: Arc<Manager>, record: Record) -> Self {
        Self { manager, record }
    }

    /// Runs a changing call to its end and records it.
    async fn change<T: Send + 'static>(
        &self,
        call: Call,
        outcome: fn(&T) -> Outcome,
        work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let answer = Slot::new();
        let into = answer.clone();
        let work = async move {
            let done = work.await?;
            let outcome = outcome(&done);
            into.fill(done);
            Ok(outcome)
        };
        self.record_change(call, Box::pin(work)).await?;
        Ok(answer.take())
    }

    /// The part of [`Self::change`] that is the same for all types of answers.
    fn record_change(
        &self,
        call: Call,
        work: BoxFuture<'static, Result<Outcome, ApiError>>,
    ) -> BoxFuture<'_, Result<(), ApiError>> {
        let (pool, record) = (call.pool.clone(), self.record.clone());
        let recorded = async move {
            let start = Instant::now();
            let outcome = work.await;
            record.add(call, start, outcome.as_ref().copied());
            outcome.map(|_| ())
        };
        self.wait_patiently(pool, Box::pin(recorded))
    }

    /// Runs a call to its end; answers before that when its disks give no sign.
    async fn patiently<T: Send + 'static>(
        &self,
        pool: &str,
        work: impl Future<Output = Result<T, ApiError>> + Send + 'static,
    ) -> Result<T, ApiError> {
        let answer = Slot::new();
        let into = answer.clone();
        let work = async move {
            into.fill(work.await?);
            Ok(())
        };
        self.wait_patiently(pool.to_owned(), Box::pin(work)).await?;
        Ok(answer.take())
    }

    /// The part of [`Self::patiently`] that is the same for all types of answers.
    fn wait_patiently(
        &self,
        pool: String,
        work: BoxFuture<'static, Result<(), ApiError>>,
    ) -> BoxFuture<'_, Result<(), ApiError>> {
        let activity = Arc::new(Activity::of_caller(&self.manager.files.dirs));
        let covered = Arc::clone(&activity).cover(work);
        let mut task = tokio::spawn(caller::on_behalf_of(caller::current(), covered));
        Box::pin(async move {
            let mut patience = Patience::new();
            loop {
                tokio::select! {
                    done = &mut task => {
                        return done.unwrap_or_else(|error| Err(internal("the call broke", &error)));
                    }
                    () = tokio::time::sleep(LOOK) => {}
                }
                if let Some(error) = patience.lost(&self.manager, &pool, &activity) {
                    return Err(error);
                }
            }
        })
    }
}

fn removed(removed: &Removed) -> Outcome {
    removed.outcome
}

fn flags(force: bool) -> &'static str {
    if force { "--force" } else { "" }
}

fn layout(force: bool, vdevs: &[VdevSpec]) -> String {
    let mut words = vec![flags(force).to_owned()];
    for vdev in vdevs {
        if vdev.role != VdevRole::Data {
            words.push(vdev.role.name().to_owned());
        }
        if vdev.disks.len() > 1 {
            words.push(vdev.kind.name().to_owned());
        }
        words.extend(vdev.disks.iter().cloned());
    }
    words.retain(|word| !word.is_empty());
    words.join(" ")
}

impl Control for Recorder {
    fn server_info(&self) -> Answer<'_, ServerInfo> {
        self.manager.server_info()
    }

    fn pool_create(&self, request: PoolCreate) -> Answer<'_, PoolCreated> {
        let call = Call::new("pool_create", &request.name, &layout(request.force, &request.vdevs));
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_create(request).await };
        Box::pin(self.change(call, PoolCreated::outcome, work))
    }

    fn pool_list(&self) -> Answer<'_, PoolList> {
        self.manager.pool_list()
    }

    fn pool_status(&self, pool: String) -> Answer<'_, PoolStatus> {
        self.manager.pool_status(pool)
    }

    fn pool_destroy(&self, request: PoolDestroy) -> Answer<'_, Removed> {
        let call = Call::new("pool_destroy", &request.name, "");
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(call, removed, async move { manager.pool_destroy(request).await }))
    }

    fn pool_scan(&self, request: PoolScan) -> Answer<'_, ImportableList> {
        let manager = Arc::clone(&self.manager);
        Box::pin(async move {
            self.patiently("", async move { manager.pool_scan(request).await }).await
        })
    }

    fn pool_import(&self, request: PoolImport) -> Answer<'_, PoolChange> {
        let call = Call::new("pool_import", &request.pool, flags(request.force));
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_import(request).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_export(&self, request: PoolExport) -> Answer<'_, Removed> {
        let call = Call::new("pool_export", &request.name, flags(request.force));
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(call, removed, async move { manager.pool_export(request).await }))
    }

    fn pool_scrub(&self, request: PoolScrub) -> Answer<'_, PoolChange> {
        let details = match request.action {
            ScrubAction::Start => "",
            ScrubAction::Pause => "--pause",
            ScrubAction::Stop => "--stop",
        };
        let call = Call::new("pool_scrub", &request.name, details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_scrub(request).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_offline(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        let call = Call::new("pool_offline", &request.name, &request.disk);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_offline(request).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_online(&self, request: PoolOnline) -> Answer<'_, PoolChange> {
        let details = request.at.clone().unwrap_or_else(|| request.disk.clone());
        let call = Call::new("pool_online", &request.name, &details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_online(request).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_clear(&self, request: PoolClear) -> Answer<'_, PoolChange> {
        let details = request.disk.clone().unwrap_or_default();
        let call = Call::new("pool_clear", &request.name, &details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_clear(request).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_attach(&self, request: PoolAttach) -> Answer<'_, PoolChange> {
        let details = format!("{} {}", request.disk, request.new);
        let call = Call::new("pool_attach", &request.name, &details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_attach(request).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_replace(&self, request: PoolReplace) -> Answer<'_, PoolChange> {
        let new = request.new.as_deref().unwrap_or("");
        let details = format!("{} {new}", request.disk);
        let call = Call::new("pool_replace", &request.name, details.trim_end());
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_replace(request).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_detach(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        let call = Call::new("pool_detach", &request.name, &request.disk);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_detach(request).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_add(&self, request: PoolAdd) -> Answer<'_, PoolChange> {
        let call = Call::new("pool_add", &request.name, &layout(request.force, &request.vdevs));
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_add(request).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_remove(&self, request: PoolRemove) -> Answer<'_, PoolChange> {
        let details = format!("{}{}", if request.stop { "--stop " } else { "" }, request.vdev);
        let call = Call::new("pool_remove", &request.name, &details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_remove(request).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_expand(&self, pool: String) -> Answer<'_, PoolChange> {
        let call = Call::new("pool_expand", &pool, "");
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.pool_expand(pool).await };
        Box::pin(self.change(call, |change: &PoolChange| change.outcome, work))
    }

    fn pool_history(&self, pool: String) -> Answer<'_, HistoryList> {
        self.manager.pool_history(pool)
    }

    fn events(&self, query: EventQuery) -> Answer<'_, EventList> {
        self.manager.events(query)
    }

    fn property_get(&self, query: PropertyQuery) -> Answer<'_, PropertyList> {
        let pool = query.of.first().map_or("", String::as_str).split(['/', '@']).next();
        let (pool, manager) = (pool.unwrap_or_default().to_owned(), Arc::clone(&self.manager));
        Box::pin(async move {
            self.patiently(&pool, async move { manager.property_get(query).await }).await
        })
    }

    fn property_set(&self, request: PropertySet) -> Answer<'_, PropertyChange> {
        let call = Call::new("property_set", &request.name, &told(&request.properties));
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.property_set(request).await };
        Box::pin(self.change(call, |change: &PropertyChange| change.outcome, work))
    }

    fn property_inherit(&self, request: PropertyInherit) -> Answer<'_, PropertyChange> {
        let flag = if request.recursive { " -r" } else { "" };
        let details = format!("{}{flag}", request.property);
        let call = Call::new("property_inherit", &request.name, &details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.property_inherit(request).await };
        Box::pin(self.change(call, |change: &PropertyChange| change.outcome, work))
    }

    fn volume_create(&self, request: VolumeCreate) -> Answer<'_, VolumeChange> {
        let VolumeCreate { name, size_bytes, record_bytes, properties } = &request;
        let (size, record) = (Human(*size_bytes), Human(*record_bytes));
        let details = format!("--size {size} --record-size {record} {}", told(properties));
        let call = Call::new("volume_create", name, &details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.volume_create(request).await };
        Box::pin(self.change(call, |change: &VolumeChange| change.outcome, work))
    }

    fn volume_list(&self, pool: Option<String>) -> Answer<'_, VolumeList> {
        self.manager.volume_list(pool)
    }

    fn volume_show(&self, volume: String) -> Answer<'_, Volume> {
        self.manager.volume_show(volume)
    }

    fn volume_set(&self, request: VolumeSet) -> Answer<'_, VolumeChange> {
        let call = Call::new("volume_set", &request.name, &told(&request.properties));
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.volume_set(request).await };
        Box::pin(self.change(call, |change: &VolumeChange| change.outcome, work))
    }

    fn volume_resize(&self, request: VolumeResize) -> Answer<'_, VolumeChange> {
        let size = Human(request.size_bytes).to_string();
        let call = Call::new("volume_resize", &request.name, &size);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.volume_resize(request).await };
        Box::pin(self.change(call, |change: &VolumeChange| change.outcome, work))
    }

    fn volume_rename(&self, request: VolumeRename) -> Answer<'_, VolumeChange> {
        let call = Call::new("volume_rename", &request.name, &request.to);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.volume_rename(request).await };
        Box::pin(self.change(call, |change: &VolumeChange| change.outcome, work))
    }

    fn volume_copy(&self, request: VolumeCopy) -> Answer<'_, VolumeChange> {
        let call = Call::new("volume_copy", &request.name, &request.to);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.volume_copy(request).await };
        Box::pin(self.change(call, |change: &VolumeChange| change.outcome, work))
    }

    fn volume_promote(&self, volume: String) -> Answer<'_, VolumeChange> {
        let call = Call::new("volume_promote", &volume, "");
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.volume_promote(volume).await };
        Box::pin(self.change(call, |change: &VolumeChange| change.outcome, work))
    }

    fn volume_advise(&self, request: VolumeAdvise) -> Answer<'_, VolumeAdvice> {
        self.manager.volume_advise(request)
    }

    fn dedupe_estimate(&self, request: DedupeEstimate) -> Answer<'_, DedupeForecast> {
        self.manager.dedupe_estimate(request)
    }

    fn volume_destroy(&self, request: VolumeDestroy) -> Answer<'_, Removed> {
        let details = if request.recursive { "-r" } else { "" };
        let call = Call::new("volume_destroy", &request.name, details);
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(call, removed, async move { manager.volume_destroy(request).await }))
    }

    fn snapshot_create(&self, request: SnapshotCreate) -> Answer<'_, SnapshotChange> {
        let details = if request.recursive { "-r" } else { "" };
        let call = Call::new("snapshot_create", &request.names.join(" "), details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.snapshot_create(request).await };
        Box::pin(self.change(call, |change: &SnapshotChange| change.outcome, work))
    }

    fn snapshot_list(&self, query: SnapshotQuery) -> Answer<'_, SnapshotList> {
        let of = query.of.as_deref().unwrap_or("");
        let pool = of.split(['/', '@']).next().unwrap_or_default().to_owned();
        let manager = Arc::clone(&self.manager);
        Box::pin(async move {
            self.patiently(&pool, async move { manager.snapshot_list(query).await }).await
        })
    }

    fn snapshot_destroy(&self, request: SnapshotDestroy) -> Answer<'_, SnapshotsDestroyed> {
        let manager = Arc::clone(&self.manager);
        if request.dry_run {
            // Changes nothing, so there is nothing to record.
            let names = request.names.first().cloned().unwrap_or_default();
            let pool = names.split('/').next().unwrap_or_default().to_owned();
            let work = async move { manager.snapshot_destroy(request).await };
            return Box::pin(async move { self.patiently(&pool, work).await });
        }
        let call = Call::new("snapshot_destroy", &request.names.join(" "), "");
        let work = async move { manager.snapshot_destroy(request).await };
        Box::pin(self.change(call, |gone: &SnapshotsDestroyed| gone.outcome, work))
    }

    fn snapshot_hold(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange> {
        let call = Call::new("snapshot_hold", &request.name, &request.tag);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.snapshot_hold(request).await };
        Box::pin(self.change(call, |change: &SnapshotChange| change.outcome, work))
    }

    fn snapshot_release(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange> {
        let call = Call::new("snapshot_release", &request.name, &request.tag);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.snapshot_release(request).await };
        Box::pin(self.change(call, |change: &SnapshotChange| change.outcome, work))
    }

    fn snapshot_rename(&self, request: SnapshotRename) -> Answer<'_, SnapshotChange> {
        let call = Call::new("snapshot_rename", &request.name, &request.to);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.snapshot_rename(request).await };
        Box::pin(self.change(call, |change: &SnapshotChange| change.outcome, work))
    }

    fn snapshot_rollback(&self, request: SnapshotRollback) -> Answer<'_, VolumeChange> {
        let details = if request.destroy_newer { "-r" } else { "" };
        let call = Call::new("snapshot_rollback", &request.name, details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.snapshot_rollback(request).await };
        Box::pin(self.change(call, |change: &VolumeChange| change.outcome, work))
    }

    fn snapshot_clone(&self, request: SnapshotClone) -> Answer<'_, VolumeChange> {
        let call = Call::new("snapshot_clone", &request.name, &request.volume);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.snapshot_clone(request).await };
        Box::pin(self.change(call, |change: &VolumeChange| change.outcome, work))
    }

    fn bookmark_create(&self, request: BookmarkCreate) -> Answer<'_, BookmarkChange> {
        let call = Call::new("bookmark_create", &request.name, &request.snapshot);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.bookmark_create(request).await };
        Box::pin(self.change(call, |change: &BookmarkChange| change.outcome, work))
    }

    fn bookmark_list(&self, of: Option<String>) -> Answer<'_, BookmarkList> {
        self.manager.bookmark_list(of)
    }

    fn bookmark_destroy(&self, request: BookmarkDestroy) -> Answer<'_, Removed> {
        let call = Call::new("bookmark_destroy", &request.name, "");
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(call, removed, async move { manager.bookmark_destroy(request).await }))
    }

    fn send_start(&self, request: SendStart) -> Answer<'_, SendStarted> {
        let pool = request.snapshot.split('/').next().unwrap_or_default().to_owned();
        let manager = Arc::clone(&self.manager);
        Box::pin(async move {
            self.patiently(&pool, async move { manager.send_start(request).await }).await
        })
    }

    fn send_stream(&self, session: String) -> Answer<'_, Box<dyn SendStream>> {
        self.manager.send_stream(session)
    }

    fn send_show(&self, session: String) -> Answer<'_, SendProgress> {
        self.manager.send_show(session)
    }

    fn send_stop(&self, session: String) -> Answer<'_, Removed> {
        self.manager.send_stop(session)
    }

    fn stream_list(&self) -> Answer<'_, StreamList> {
        self.manager.stream_list()
    }

    fn stream_cancel(&self, stream: StreamKey) -> Answer<'_, Removed> {
        let call = Call::new("stream_cancel", &self.manager.transfers.name_of(stream.id), "");
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(call, removed, async move { manager.stream_cancel(stream).await }))
    }

    fn receive_start(&self, request: ReceiveStart) -> Answer<'_, ReceiveStarted> {
        let details = if request.roll_back { "-F" } else { "" };
        let call = Call::new("receive_start", &request.volume, details);
        let manager = Arc::clone(&self.manager);
        if request.dry_run {
            // Changes nothing, so there is nothing to record.
            let work = async move { manager.receive_start(request).await };
            return Box::pin(async move { self.patiently(&call.pool, work).await });
        }
        let work = async move { manager.receive_start(request).await };
        Box::pin(self.change(call, |_| Outcome::Changed, work))
    }

    fn receive_part(&self, session: String, part: Bytes) -> Answer<'_, ReceiveProgress> {
        let volume = self.manager.transfers.volume_of(&session);
        let pool = volume.split('/').next().unwrap_or_default().to_owned();
        let manager = Arc::clone(&self.manager);
        Box::pin(async move {
            self.patiently(&pool, async move { manager.receive_part(session, part).await }).await
        })
    }

    fn receive_finish(&self, session: String) -> Answer<'_, ReceiveDone> {
        let call = Call::new("receive_finish", &self.manager.transfers.volume_of(&session), "");
        let manager = Arc::clone(&self.manager);
        let is_dry_run = self.manager.transfers.is_dry_run(&session);
        let work = async move { manager.receive_finish(session).await };
        if is_dry_run {
            return Box::pin(async move { self.patiently(&call.pool, work).await });
        }
        Box::pin(self.change(call, |_| Outcome::Created, work))
    }

    fn receive_stop(&self, session: String) -> Answer<'_, Removed> {
        self.manager.receive_stop(session)
    }

    fn receive_token(&self, volume: String) -> Answer<'_, ReceiveToken> {
        let pool = volume.split('/').next().unwrap_or_default().to_owned();
        let manager = Arc::clone(&self.manager);
        Box::pin(async move {
            self.patiently(&pool, async move { manager.receive_token(volume).await }).await
        })
    }

    fn receive_abort(&self, volume: String) -> Answer<'_, Removed> {
        let call = Call::new("receive_abort", &volume, "");
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(call, removed, async move { manager.receive_abort(volume).await }))
    }

    fn snapshot_digest(&self, request: DigestRequest) -> Answer<'_, DigestList> {
        let pool = request.snapshot.split('/').next().unwrap_or_default().to_owned();
        let manager = Arc::clone(&self.manager);
        Box::pin(async move {
            self.patiently(&pool, async move { manager.snapshot_digest(request).await }).await
        })
    }

    fn replication_create(&self, request: ReplicationCreate) -> Answer<'_, ReplicationChange> {
        let details = format!("to {} every {} s", request.to, request.every_seconds);
        let call = Call::new("replication_create", &request.volume, &details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.replication_create(request).await };
        Box::pin(self.change(call, |change: &ReplicationChange| change.outcome, work))
    }

    fn replication_list(&self) -> Answer<'_, ReplicationList> {
        self.manager.replication_list()
    }

    fn replication_act(&self, request: ReplicationAct) -> Answer<'_, ReplicationChange> {
        let kind = match request.action {
            ReplicationAction::Run => "replication_run",
            ReplicationAction::Pause => "replication_pause",
            ReplicationAction::Resume => "replication_resume",
            ReplicationAction::Verify => "replication_verify",
        };
        let call = Call::new(kind, &request.volume, "");
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.replication_act(request).await };
        Box::pin(self.change(call, |change: &ReplicationChange| change.outcome, work))
    }

    fn replication_delete(&self, volume: String) -> Answer<'_, ReplicationRemoved> {
        let call = Call::new("replication_delete", &volume, "");
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.replication_delete(volume).await };
        Box::pin(self.change(call, |gone: &ReplicationRemoved| gone.outcome, work))
    }

    fn schedule_set(&self, request: ScheduleSet) -> Answer<'_, ScheduleChange> {
        let call = Call::new("schedule_set", &request.name, &request.keep.to_string());
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.schedule_set(request).await };
        Box::pin(self.change(call, |change: &ScheduleChange| change.outcome, work))
    }

    fn schedule_list(&self) -> Answer<'_, ScheduleList> {
        self.manager.schedule_list()
    }

    fn schedule_clear(&self, name: String) -> Answer<'_, Removed> {
        let call = Call::new("schedule_clear", &name, "");
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(call, removed, async move { manager.schedule_clear(name).await }))
    }

    fn export_create(&self, request: ExportCreate) -> Answer<'_, ExportChange> {
        let (name, allow) = (request.key().name, request.allow.join(","));
        let details =
            if allow.is_empty() { format!("as {name}") } else { format!("as {name} for {allow}") };
        let call = Call::new("export_create", &request.volume, &details);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.export_create(request).await };
        Box::pin(self.change(call, |change: &ExportChange| change.outcome, work))
    }

    fn export_list(&self) -> Answer<'_, ExportList> {
        self.manager.export_list()
    }

    fn export_show(&self, export: ExportKey) -> Answer<'_, Export> {
        self.manager.export_show(export)
    }

    fn export_set(&self, request: ExportSet) -> Answer<'_, ExportChange> {
        let volume = self.manager.volume_of(&request.key).unwrap_or_default();
        let ExportSet { key, allow } = &request;
        let allow = if allow.is_empty() { "any".to_owned() } else { allow.join(",") };
        let call = Call::new("export_set", &volume, &format!("as {} for {allow}", key.name));
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.export_set(request).await };
        Box::pin(self.change(call, |change: &ExportChange| change.outcome, work))
    }

    fn export_delete(&self, export: ExportKey, force: bool) -> Answer<'_, Removed> {
        // The export knows its volume only while it is there.
        let volume = self.manager.volume_of(&export).unwrap_or_default();
        let call = Call::new("export_delete", &volume, &format!("as {}", export.name));
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(
            call,
            removed,
            async move { manager.export_delete(export, force).await },
        ))
    }

    fn target_create(&self, request: TargetCreate) -> Answer<'_, TargetChange> {
        let call = Call::new("target_create", "", &request.name);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.target_create(request).await };
        Box::pin(self.change(call, |change: &TargetChange| change.outcome, work))
    }

    fn target_list(&self) -> Answer<'_, TargetList> {
        self.manager.target_list()
    }

    fn target_show(&self, target: TargetKey) -> Answer<'_, Target> {
        self.manager.target_show(target)
    }

    fn target_delete(&self, target: TargetKey, force: bool) -> Answer<'_, Removed> {
        let call = Call::new("target_delete", "", &target.name);
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(
            call,
            removed,
            async move { manager.target_delete(target, force).await },
        ))
    }

    fn target_allow(&self, request: InitiatorAllow) -> Answer<'_, TargetChange> {
        let words = format!("{} {}", request.target, request.initiator);
        let call = Call::new("target_allow", "", &words);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.target_allow(request).await };
        Box::pin(self.change(call, |change: &TargetChange| change.outcome, work))
    }

    fn target_deny(&self, key: InitiatorKey) -> Answer<'_, TargetChange> {
        let words = format!("{} {}", key.target, key.initiator);
        let call = Call::new("target_deny", "", &words);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.target_deny(key).await };
        Box::pin(self.change(call, |change: &TargetChange| change.outcome, work))
    }

    fn lun_add(&self, request: LunAdd) -> Answer<'_, TargetChange> {
        let words = format!("to {}", request.target);
        let call = Call::new("lun_add", &request.volume, &words);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.lun_add(request).await };
        Box::pin(self.change(call, |change: &TargetChange| change.outcome, work))
    }

    fn lun_remove(&self, lun: LunKey, force: bool) -> Answer<'_, Removed> {
        let words = format!("{} {}", lun.target, lun.number);
        // The logical unit knows its volume only while it is there.
        let volume = self.manager.volume_of_lun(&lun).unwrap_or_default();
        let call = Call::new("lun_remove", &volume, &words);
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(call, removed, async move { manager.lun_remove(lun, force).await }))
    }

    fn token_create(&self, request: TokenCreate) -> Answer<'_, TokenCreated> {
        let scope =
            if request.scope.is_empty() { "all".to_owned() } else { request.scope.join(",") };
        let words = format!("{} {} {scope}", request.name, request.role.name());
        let call = Call::new("token_create", "", &words);
        let manager = Arc::clone(&self.manager);
        let work = async move { manager.token_create(request).await };
        Box::pin(self.change(call, |made: &TokenCreated| made.outcome, work))
    }

    fn token_list(&self) -> Answer<'_, TokenList> {
        self.manager.token_list()
    }

    fn token_revoke(&self, token: TokenKey) -> Answer<'_, Removed> {
        let call = Call::new("token_revoke", "", &token.name);
        let manager = Arc::clone(&self.manager);
        Box::pin(self.change(call, removed, async move { manager.token_revoke(token).await }))
    }
}
