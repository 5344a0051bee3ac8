//! Every management call, as one trait.
//!
//! Not here: who answers. The server process implements it over the engine, [`crate::Client`]
//! over HTTP.
//!
//! Invariants:
//! - one method is one call of the HTTP interface and one verb of the command line;
//! - a changing call may be repeated: what is already so answers `unchanged`. Removing what is not
//!   there is `not_found` (a mistyped name must not look like success);
//! - a changing call that has started runs to its end, also when the caller goes away.

use std::future::Future;
use std::pin::Pin;

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

/// The answer of one call, to be awaited.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send + 'a>>;

/// The management calls.
pub trait Control: Send + Sync + 'static {
    /// Tells what the server process is and uses.
    fn server_info(&self) -> Answer<'_, ServerInfo>;

    /// Makes a pool of disks. The same name over the same disks is `unchanged`.
    ///
    /// # Errors
    /// `Exists` for a name or disk that is taken, `Busy` for a disk in use, `Invalid` for disks
    /// that cannot be used; nothing is written to any disk unless all are fit.
    fn pool_create(&self, request: PoolCreate) -> Answer<'_, PoolCreated>;

    /// Lists the imported pools with their state, by name.
    fn pool_list(&self) -> Answer<'_, PoolList>;

    /// Tells the state of one pool.
    fn pool_status(&self, pool: String) -> Answer<'_, PoolStatus>;

    /// Destroys a pool and everything in it.
    ///
    /// # Errors
    /// `Busy` while one of its volumes is exported.
    fn pool_destroy(&self, request: PoolDestroy) -> Answer<'_, Removed>;

    /// Looks for pools that could be imported.
    fn pool_scan(&self, request: PoolScan) -> Answer<'_, ImportableList>;

    /// Imports a pool. One that is imported already is `unchanged`.
    fn pool_import(&self, request: PoolImport) -> Answer<'_, PoolChange>;

    /// Commits and closes a pool, so that it can be imported elsewhere.
    ///
    /// # Errors
    /// `Busy` while one of its volumes is exported, unless `force`.
    fn pool_export(&self, request: PoolExport) -> Answer<'_, Removed>;

    /// Tells who changed what in a pool, and how that went: oldest first. Also of pools that are
    /// gone.
    fn pool_history(&self, pool: String) -> Answer<'_, HistoryList>;

    /// Tells what happened after an event, oldest first. With nothing to tell it waits for a while
    /// and then answers an empty list.
    fn events(&self, query: EventQuery) -> Answer<'_, EventList>;

    /// Starts, pauses or stops a scrub. It runs on after the answer; the pool's state shows how far
    /// it is. What is so already is `unchanged`.
    ///
    /// # Errors
    /// `Busy` for a start during a resilver, and for a pause or stop of what does not run.
    fn pool_scrub(&self, request: PoolScrub) -> Answer<'_, PoolChange>;

    /// Takes a disk of a mirror out of use until it is brought online or the pool is opened again.
    ///
    /// # Errors
    /// `Busy` for the only disk of a vdev that holds everything.
    fn pool_offline(&self, request: PoolDisk) -> Answer<'_, PoolChange>;

    /// Takes a disk into use again; a resilver writes to it what it missed.
    ///
    /// # Errors
    /// `Invalid` when the path leads to another disk now; nothing is changed then.
    fn pool_online(&self, request: PoolOnline) -> Answer<'_, PoolChange>;

    /// Sets error counts to zero and takes faulted disks into use again, as far as they can be
    /// opened; those that cannot are named as warnings.
    fn pool_clear(&self, request: PoolClear) -> Answer<'_, PoolChange>;

    /// Adds a disk to a disk, which makes it a mirror, or to a mirror; a resilver writes everything
    /// to it.
    ///
    /// # Errors
    /// `Exists` for a new disk that holds something, without `force`; `Invalid` where no more disks
    /// fit or the new one is too small.
    fn pool_attach(&self, request: PoolAttach) -> Answer<'_, PoolChange>;

    /// Lets a disk take another's place. A good disk leaves when the new one has everything, unless
    /// both cannot be in the vdev and the request says `at_once`.
    ///
    /// # Errors
    /// As `pool_attach`; `Busy` where the disk is needed.
    fn pool_replace(&self, request: PoolReplace) -> Answer<'_, PoolChange>;

    /// Takes a disk out of a mirror for good; its label is erased.
    ///
    /// # Errors
    /// `Busy` for the only disk that holds everything, `Invalid` for a disk of no mirror.
    fn pool_detach(&self, request: PoolDisk) -> Answer<'_, PoolChange>;

    /// Adds vdevs to a pool.
    ///
    /// # Errors
    /// `Exists` for a disk that holds something and `Invalid` for another redundancy than the
    /// pool's, both without `force`; `Invalid` for vdevs that cannot be part of this pool.
    fn pool_add(&self, request: PoolAdd) -> Answer<'_, PoolChange>;

    /// Begins to remove a vdev, or lets it stay. What it holds moves to the others after the
    /// answer; the pool's state shows how far that is. What is so already is `unchanged`.
    ///
    /// # Errors
    /// `NoSpace` where the others have no room for it, `Invalid` for the last one with data.
    fn pool_remove(&self, request: PoolRemove) -> Answer<'_, PoolChange>;

    /// Uses all of every disk, where disks are larger than what is used of them; `unchanged` where
    /// none is.
    fn pool_expand(&self, pool: String) -> Answer<'_, PoolChange>;

    /// Tells properties of pools, volumes and snapshots, and where their values come from.
    fn property_get(&self, query: PropertyQuery) -> Answer<'_, PropertyList>;

    /// Sets properties; all of them or none.
    ///
    /// # Errors
    /// `Invalid` for a quota below what is used, `NoSpace` for a reservation that the pool has no
    /// room for.
    fn property_set(&self, request: PropertySet) -> Answer<'_, PropertyChange>;

    /// Lets something inherit a property again.
    fn property_inherit(&self, request: PropertyInherit) -> Answer<'_, PropertyChange>;

    /// Makes a thin volume. The same name with the same size and properties is `unchanged`.
    fn volume_create(&self, request: VolumeCreate) -> Answer<'_, VolumeChange>;

    /// Lists volumes by name, of one pool or of all.
    fn volume_list(&self, pool: Option<String>) -> Answer<'_, VolumeList>;

    /// Tells everything about one volume.
    fn volume_show(&self, volume: String) -> Answer<'_, Volume>;

    /// Changes properties of a volume; blocks written before keep what they were written with.
    fn volume_set(&self, request: VolumeSet) -> Answer<'_, VolumeChange>;

    /// Changes a volume's size.
    ///
    /// # Errors
    /// `Busy` for a shrink below written data.
    fn volume_resize(&self, request: VolumeResize) -> Answer<'_, VolumeChange>;

    /// Gives a volume another name. Its exports keep theirs and go on.
    fn volume_rename(&self, request: VolumeRename) -> Answer<'_, VolumeChange>;

    /// Makes a volume that holds what another one or a snapshot holds, by reference; it depends on
    /// neither.
    ///
    /// # Errors
    /// `Exists` for a name that is taken.
    fn volume_copy(&self, request: VolumeCopy) -> Answer<'_, VolumeChange>;

    /// Lets a clone take over its origin and all older snapshots; the volume it was cloned from
    /// becomes its clone.
    ///
    /// # Errors
    /// `Invalid` for what is no clone, `Exists` where a name of a snapshot is taken.
    fn volume_promote(&self, volume: String) -> Answer<'_, VolumeChange>;

    /// Measures what other settings would make of a volume. The first call starts that, and each
    /// answers soon with what is known; one that gives a job is to be asked for again with it.
    ///
    /// # Errors
    /// `Busy` while too many are made; `NotFound` for a job that has ended or was given up.
    fn volume_advise(&self, request: VolumeAdvise) -> Answer<'_, VolumeAdvice>;

    /// Counts what dedupe would find in volumes, as `volume_advise` measures.
    fn dedupe_estimate(&self, request: DedupeEstimate) -> Answer<'_, DedupeForecast>;

    /// Destroys a volume and its data.
    ///
    /// # Errors
    /// `Busy` while it or a snapshot of it is exported, while it has snapshots (unless
    /// `recursive`), and while one of these is held or was cloned.
    fn volume_destroy(&self, request: VolumeDestroy) -> Answer<'_, Removed>;

    /// Takes snapshots at one moment: all or none.
    ///
    /// # Errors
    /// `Exists` for a name that is taken: what it shows is another moment.
    fn snapshot_create(&self, request: SnapshotCreate) -> Answer<'_, SnapshotChange>;

    /// Lists snapshots by volume, oldest first.
    ///
    /// # Errors
    /// `NotFound` if `after` is no longer in the list.
    fn snapshot_list(&self, query: SnapshotQuery) -> Answer<'_, SnapshotList>;

    /// Destroys snapshots, of each volume all or none; or only tells which and what that frees.
    ///
    /// # Errors
    /// `Busy` for one that is exported, held or the origin of a clone; `NotFound` for a name or a
    /// range that fits none.
    fn snapshot_destroy(&self, request: SnapshotDestroy) -> Answer<'_, SnapshotsDestroyed>;

    /// Keeps a snapshot from being destroyed until the tag is released.
    fn snapshot_hold(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange>;

    /// Takes a tag away.
    fn snapshot_release(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange>;

    /// Gives a snapshot another name.
    fn snapshot_rename(&self, request: SnapshotRename) -> Answer<'_, SnapshotChange>;

    /// Makes a volume what it was at a snapshot; what was written since is lost.
    ///
    /// # Errors
    /// `Busy` while the volume is exported, and where there are newer snapshots unless
    /// `destroy_newer`, which the rules of `snapshot_destroy` hold for.
    fn snapshot_rollback(&self, request: SnapshotRollback) -> Answer<'_, VolumeChange>;

    /// Makes a volume that begins as a snapshot and shares its blocks.
    fn snapshot_clone(&self, request: SnapshotClone) -> Answer<'_, VolumeChange>;

    /// Makes a bookmark of a snapshot: streams can be differences to it when the snapshot is gone.
    ///
    /// # Errors
    /// `Exists` for one of another snapshot.
    fn bookmark_create(&self, request: BookmarkCreate) -> Answer<'_, BookmarkChange>;

    /// Lists bookmarks: all, or those of a pool or a volume.
    fn bookmark_list(&self, of: Option<String>) -> Answer<'_, BookmarkList>;

    /// Destroys a bookmark.
    fn bookmark_destroy(&self, request: BookmarkDestroy) -> Answer<'_, Removed>;

    /// Begins to send a snapshot, or what changed since an older one or a bookmark, as a stream.
    ///
    /// # Errors
    /// `Invalid` for two snapshots where none came of the other, or a token of another stream;
    /// `Busy` while many are sent and received.
    fn send_start(&self, request: SendStart) -> Answer<'_, SendStarted>;

    /// Takes the stream of a session, once: its bytes are made as they are taken. The session ends
    /// with it.
    ///
    /// # Errors
    /// `Busy` for one that somebody takes already.
    fn send_stream(&self, session: String) -> Answer<'_, Box<dyn SendStream>>;

    /// Tells how far a session is.
    ///
    /// # Errors
    /// What broke its stream, for a while after that.
    fn send_show(&self, session: String) -> Answer<'_, SendProgress>;

    /// Ends a session before its stream is at its end.
    fn send_stop(&self, session: String) -> Answer<'_, Removed>;

    /// Lists the streams that are sent and received now, the oldest first.
    fn stream_list(&self) -> Answer<'_, StreamList>;

    /// Cancels a stream. The received part of a stream is kept, so that it can be resumed.
    ///
    /// # Errors
    /// `NotFound` for a stream that has ended; `Permission` for a stream of another caller, except
    /// for admins.
    fn stream_cancel(&self, stream: StreamKey) -> Answer<'_, Removed>;

    /// Begins to receive a stream into a volume, or only to check it.
    ///
    /// # Errors
    /// `Busy` while the volume is exported, and while many are sent and received.
    fn receive_start(&self, request: ReceiveStart) -> Answer<'_, ReceiveStarted>;

    /// Gives the next part of a stream; the one before was taken in when this answers, so that one
    /// comes while one is in work. After an error the session is over.
    ///
    /// # Errors
    /// Of this part or the one before, whatever keeps the stream from being received: `Busy` for a
    /// volume that was changed, `NotFound` without the snapshot it is a difference to, `Data` for a
    /// damaged stream.
    fn receive_part(&self, session: String, part: Bytes) -> Answer<'_, ReceiveProgress>;

    /// Ends a stream; its snapshot is there then, unless it was only checked.
    ///
    /// # Errors
    /// `Unavailable` for one that was cut off, with the token to go on with.
    fn receive_finish(&self, session: String) -> Answer<'_, ReceiveDone>;

    /// Cuts a stream off: what came is kept, and it can go on.
    fn receive_stop(&self, session: String) -> Answer<'_, Removed>;

    /// Tells where the stream into a volume goes on.
    fn receive_token(&self, volume: String) -> Answer<'_, ReceiveToken>;

    /// Gives the stream into a volume up: the volume is what it was before, or gone.
    fn receive_abort(&self, volume: String) -> Answer<'_, Removed>;

    /// Digests ranges of a snapshot: equal content has equal digests, wherever it is.
    fn snapshot_digest(&self, request: DigestRequest) -> Answer<'_, DigestList>;

    /// Lets the server replicate a volume to another server from now on. The same volume to the
    /// same place with other settings is `changed`.
    ///
    /// # Errors
    /// `Exists` for a volume that is replicated to another place.
    fn replication_create(&self, request: ReplicationCreate) -> Answer<'_, ReplicationChange>;

    /// Lists replications by volume.
    fn replication_list(&self) -> Answer<'_, ReplicationList>;

    /// Starts a run or a comparison, which goes on after the answer, or pauses and resumes.
    ///
    /// # Errors
    /// `Busy` for a run of one that is paused.
    fn replication_act(&self, request: ReplicationAct) -> Answer<'_, ReplicationChange>;

    /// Forgets a replication; what the other server has stays there.
    fn replication_delete(&self, volume: String) -> Answer<'_, ReplicationRemoved>;

    /// Lets the server take snapshots of a volume, or of all volumes of a pool, from now on.
    fn schedule_set(&self, request: ScheduleSet) -> Answer<'_, ScheduleChange>;

    /// Lists schedules by name.
    fn schedule_list(&self) -> Answer<'_, ScheduleList>;

    /// Forgets a schedule; the snapshots it took stay.
    fn schedule_clear(&self, name: String) -> Answer<'_, Removed>;

    /// Offers a volume or snapshot to clients. The same export again is `unchanged`.
    fn export_create(&self, request: ExportCreate) -> Answer<'_, ExportChange>;

    /// Lists exports by name.
    fn export_list(&self) -> Answer<'_, ExportList>;

    /// Tells everything about one export.
    fn export_show(&self, export: ExportKey) -> Answer<'_, Export>;

    /// Names the addresses from which clients may open an export over TCP; connected clients of
    /// others are cut off.
    fn export_set(&self, request: ExportSet) -> Answer<'_, ExportChange>;

    /// Stops offering. With `force` connected clients are cut off.
    ///
    /// # Errors
    /// `Busy` while clients are connected, without `force`.
    fn export_delete(&self, export: ExportKey, force: bool) -> Answer<'_, Removed>;

    /// Makes an iSCSI target that nobody may log in to yet.
    ///
    /// # Errors
    /// `Unavailable` where the server listens nowhere for iSCSI.
    fn target_create(&self, request: TargetCreate) -> Answer<'_, TargetChange>;

    /// Lists targets by name.
    fn target_list(&self) -> Answer<'_, TargetList>;

    /// Tells everything about one target.
    fn target_show(&self, target: TargetKey) -> Answer<'_, Target>;

    /// Removes a target. With `force` its sessions are ended.
    ///
    /// # Errors
    /// `Busy` while initiators are logged in, without `force`.
    fn target_delete(&self, target: TargetKey, force: bool) -> Answer<'_, Removed>;

    /// Lets an initiator log in. The same again reads the files of secrets anew.
    ///
    /// # Errors
    /// `Invalid` for a file that holds no secret of CHAP.
    fn target_allow(&self, request: InitiatorAllow) -> Answer<'_, TargetChange>;

    /// Lets an initiator log in no longer; its sessions are ended.
    fn target_deny(&self, initiator: InitiatorKey) -> Answer<'_, TargetChange>;

    /// Shows a volume or snapshot at a target. The same again is `unchanged`.
    ///
    /// # Errors
    /// `Exists` for a number that is taken; `Busy` for a volume that is exported by another
    /// protocol, unless `shared`.
    fn lun_add(&self, request: LunAdd) -> Answer<'_, TargetChange>;

    /// Shows it no longer. With `force` initiators lose it while they use it.
    ///
    /// # Errors
    /// `Busy` while initiators are logged in to the target, without `force`.
    fn lun_remove(&self, lun: LunKey, force: bool) -> Answer<'_, Removed>;

    /// Makes a token and tells its secret, this once.
    ///
    /// # Errors
    /// `Exists` for a name that is taken.
    fn token_create(&self, request: TokenCreate) -> Answer<'_, TokenCreated>;

    /// Lists tokens by name.
    fn token_list(&self) -> Answer<'_, TokenList>;

    /// Revokes a token: the next call with it is refused.
    fn token_revoke(&self, token: TokenKey) -> Answer<'_, Removed>;
}
