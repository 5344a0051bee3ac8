//! The table of calls: their paths, the roles that may make them, their answers.
//!
//! Not here: the handlers of the calls (weir-server).
//!
//! A row is `Request = "operation", METHOD "path", Role, Reach, Mode => statuses Answer`. In a path
//! `{field}` is a field of the request, `{field:param}` a field whose parameter has another name,
//! and `{field:a/b}` a field with a `/`, whose two parts fill two parameters. The other fields are
//! in the query (GET, DELETE) or in the body.
//!
//! Invariant: a path is served if and only if it is in this table or in [`BY_HAND`].

use axum::http::Method;

use super::call::{Call, Handle, Mode, Operation, Run};
use crate::access::{Reach, Role};
use crate::stream::Streams;
use crate::types;

macro_rules! calls {
    ($($tag:literal { $(
        $(#[doc = $summary:literal])+
        $call:ident = $name:literal, $method:ident $path:literal, $role:ident, $reach:ident,
            $mode:ident => $($status:literal)+ $answer:ident;
    )+ })+) => {
        $($(
            impl Call for types::$call {
                type Answer = types::$answer;
                const OPERATION: &'static Operation = &Operation {
                    name: $name,
                    method: Method::$method,
                    path: $path,
                    role: Role::$role,
                    reach: Reach::$reach,
                    mode: Mode::$mode,
                    statuses: &[$($status),+],
                    tag: $tag,
                    summary: concat!($($summary, "\n"),+),
                };
            }
        )+)+

        /// The calls of the table, in its order.
        pub static TABLE: &[&Operation] = &[$($(<types::$call as Call>::OPERATION,)+)+];

        /// A server of all calls.
        pub trait Control: Run + Streams $($(+ Handle<types::$call>)+)+ {}

        impl<T: Run + Streams $($(+ Handle<types::$call>)+)+> Control for T {}

        /// Calls `$visitor.visit::<C>()` with each call of the table.
        pub(crate) fn visit<V: Visit>(visitor: &mut V) {
            $($(visitor.visit::<types::$call>();)+)+
        }

        /// The same with the server that answers.
        pub(crate) fn visit_handlers<S: Control, V: VisitHandlers<S>>(visitor: &mut V) {
            $($(visitor.visit::<types::$call>();)+)+
        }
    };
}

/// Something to do with each call.
pub(crate) trait Visit {
    fn visit<C: Call>(&mut self);
}

/// Something to do with each call of a server.
pub(crate) trait VisitHandlers<S> {
    fn visit<C: Call>(&mut self)
    where
        S: Handle<C>;
}

calls! {
    "server" {
        /// What the server process is and uses.
        ShowServer = "server_info", GET "/v1/server", Viewer, Any, Look => 200 ServerInfo;
        /// Tells what happened; waits for it if asked to.
        ListEvents = "events", GET "/v1/events", Viewer, Filtered, Look => 200 EventList;
    }
    "pool" {
        /// Makes a pool of disks.
        PoolCreate = "pool_create", POST "/v1/pools", Admin, Machine, Change => 201 200 PoolCreated;
        /// Lists the imported pools with their state.
        ListPools = "pool_list", GET "/v1/pools", Viewer, Filtered, Look => 200 PoolList;
        /// Tells the state of one pool.
        ShowPool = "pool_status", GET "/v1/pools/{name:pool}", Viewer, Named, Look
            => 200 PoolStatus;
        /// Destroys a pool and everything in it.
        PoolDestroy = "pool_destroy", DELETE "/v1/pools/{name:pool}", Admin, Named, Change
            => 200 Removed;
        /// Looks for pools that could be imported; changes nothing.
        PoolScan = "pool_scan", POST "/v1/import/scan", Admin, Machine, Wait => 200 ImportableList;
        /// Imports a pool.
        PoolImport = "pool_import", POST "/v1/import", Admin, Machine, Change => 200 PoolChange;
        /// Commits and closes a pool, so that it can be imported elsewhere.
        PoolExport = "pool_export", POST "/v1/pools/{name:pool}/export", Admin, Named, Change
            => 200 Removed;
        /// Tells who changed what in a pool, and how that went.
        ListHistory = "pool_history", GET "/v1/pools/{name:pool}/history", Viewer, Filtered, Look
            => 200 HistoryList;
        /// Starts, pauses or stops a scrub: every copy of everything is read and verified, and bad
        /// ones are rewritten from good ones.
        PoolScrub = "pool_scrub", POST "/v1/pools/{name:pool}/scrub", Operator, Named, Change
            => 200 PoolChange;
        /// Takes a disk of a mirror out of use until it is brought online or the pool is opened
        /// again.
        PoolOffline = "pool_offline", POST "/v1/pools/{name:pool}/offline", Admin, Named, Change
            => 200 PoolChange;
        /// Brings a disk online, also at another path than before, and starts a resilver.
        PoolOnline = "pool_online", POST "/v1/pools/{name:pool}/online", Admin, Named, Change
            => 200 PoolChange;
        /// Sets error counts to zero and takes faulted disks into use again.
        PoolClear = "pool_clear", POST "/v1/pools/{name:pool}/clear", Admin, Named, Change
            => 200 PoolChange;
        /// Adds a disk to a disk or mirror; a resilver writes everything to it.
        PoolAttach = "pool_attach", POST "/v1/pools/{name:pool}/attach", Admin, Machine, Change
            => 200 PoolChange;
        /// Lets a disk take another's place; a resilver writes everything to it.
        PoolReplace = "pool_replace", POST "/v1/pools/{name:pool}/replace", Admin, Machine, Change
            => 200 PoolChange;
        /// Takes a disk out of a mirror for good.
        PoolDetach = "pool_detach", POST "/v1/pools/{name:pool}/detach", Admin, Named, Change
            => 200 PoolChange;
        /// Adds vdevs for data, for the log, or as spares.
        PoolAdd = "pool_add", POST "/v1/pools/{name:pool}/add", Admin, Machine, Change
            => 200 PoolChange;
        /// Removes a vdev: what it holds moves to the others while the pool is in use.
        PoolRemove = "pool_remove", POST "/v1/pools/{name:pool}/remove", Admin, Named, Change
            => 200 PoolChange;
        /// Lets the pool use all of its disks, where they became larger.
        PoolExpand = "pool_expand", POST "/v1/pools/{name:pool}/expand", Admin, Named, Change
            => 200 PoolChange;
    }
    "property" {
        /// Tells properties, and where their values come from.
        GetProperties = "property_get", GET "/v1/properties", Viewer, Named, Wait
            => 200 PropertyList;
        /// Sets properties of a pool, volume or snapshot.
        PropertySet = "property_set", PATCH "/v1/properties", Admin, Named, Change
            => 200 PropertyChange;
        /// Lets a pool, volume or snapshot inherit a property again.
        PropertyInherit = "property_inherit", POST "/v1/properties/inherit", Admin, Named, Change
            => 200 PropertyChange;
    }
    "volume" {
        /// Makes a thin volume.
        VolumeCreate = "volume_create", POST "/v1/volumes", Operator, Named, Change
            => 201 200 VolumeChange;
        /// Lists volumes, of one pool or of all.
        ListVolumes = "volume_list", GET "/v1/volumes", Viewer, Filtered, Look => 200 VolumeList;
        /// Tells everything about one volume.
        ShowVolume = "volume_show", GET "/v1/volumes/{name:pool/volume}", Viewer, Named, Look
            => 200 Volume;
        /// Changes properties; blocks written before keep what they were written with.
        VolumeSet = "volume_set", PATCH "/v1/volumes/{name:pool/volume}", Admin, Named, Change
            => 200 VolumeChange;
        /// Changes the size.
        VolumeResize = "volume_resize", PUT "/v1/volumes/{name:pool/volume}/size", Admin, Named,
            Change => 200 VolumeChange;
        /// Gives a volume another name; its exports keep theirs and go on.
        VolumeRename = "volume_rename", POST "/v1/volumes/{name:pool/volume}/rename", Operator,
            Named, Change => 200 VolumeChange;
        /// Makes a volume that holds what another one or a snapshot holds, and depends on neither.
        VolumeCopy = "volume_copy", POST "/v1/volumes/copy", Operator, Named, Change
            => 201 VolumeChange;
        /// Lets a clone take over its origin; the volume it was cloned from becomes its clone.
        VolumePromote = "volume_promote", POST "/v1/volumes/{name:pool/volume}/promote", Operator,
            Looked, Change => 200 VolumeChange;
        /// Destroys a volume and its data.
        VolumeDestroy = "volume_destroy", DELETE "/v1/volumes/{name:pool/volume}", Admin, Named,
            Change => 200 Removed;
        /// Measures what other settings would make of a volume. Without `job` it starts; an answer
        /// with a `job` is to be asked for again.
        VolumeAdvise = "volume_advise", POST "/v1/advise", Operator, Named, Look
            => 200 VolumeAdvice;
        /// Counts what dedupe would find in volumes. Without `job` it starts; an answer with a
        /// `job` is to be asked for again.
        DedupeEstimate = "dedupe_estimate", POST "/v1/dedupe/estimate", Operator, Named, Look
            => 200 DedupeForecast;
    }
    "snapshot" {
        /// Takes snapshots at one moment: all or none.
        SnapshotCreate = "snapshot_create", POST "/v1/snapshots", Operator, Named, Change
            => 201 SnapshotChange;
        /// Lists snapshots: by volume, oldest first.
        ListSnapshots = "snapshot_list", GET "/v1/snapshots", Viewer, Filtered, Wait
            => 200 SnapshotList;
        /// Destroys snapshots, of each volume all or none; or only tells which and what that frees.
        SnapshotDestroy = "snapshot_destroy", POST "/v1/snapshots/destroy", Admin, Named, Change
            => 200 SnapshotsDestroyed;
        /// Keeps a snapshot from being destroyed until the tag is released.
        SnapshotHold = "snapshot_hold", POST "/v1/snapshots/hold", Operator, Named, Change
            => 200 SnapshotChange;
        /// Takes a tag away.
        SnapshotRelease = "snapshot_release", POST "/v1/snapshots/release", Operator, Named, Change
            => 200 SnapshotChange;
        /// Gives a snapshot another name.
        SnapshotRename = "snapshot_rename", POST "/v1/snapshots/rename", Operator, Named, Change
            => 200 SnapshotChange;
        /// Makes a volume what it was at a snapshot; what was written since is lost.
        SnapshotRollback = "snapshot_rollback", POST "/v1/snapshots/rollback", Admin, Named, Change
            => 200 VolumeChange;
        /// Makes a volume that begins as a snapshot and shares its blocks.
        SnapshotClone = "snapshot_clone", POST "/v1/snapshots/clone", Operator, Named, Change
            => 201 200 VolumeChange;
        /// Digests ranges of a snapshot: equal content has equal digests, wherever it is.
        DigestRequest = "snapshot_digest", POST "/v1/snapshots/digest", Operator, Named, Wait
            => 200 DigestList;
    }
    "bookmark" {
        /// Makes a bookmark of a snapshot.
        BookmarkCreate = "bookmark_create", POST "/v1/bookmarks", Operator, Named, Change
            => 201 200 BookmarkChange;
        /// Lists bookmarks: by volume, oldest first.
        ListBookmarks = "bookmark_list", GET "/v1/bookmarks", Viewer, Filtered, Look
            => 200 BookmarkList;
        /// Destroys a bookmark.
        BookmarkDestroy = "bookmark_destroy", POST "/v1/bookmarks/destroy", Admin, Named, Change
            => 200 Removed;
    }
    "transfer" {
        /// Begins to send a snapshot, or what changed since an older one.
        SendStart = "send_start", POST "/v1/sends", Operator, Named, Wait => 201 SendStarted;
        /// Tells how far a session is, or why its stream broke.
        ShowSend = "send_show", GET "/v1/sends/{session}", Viewer, Session, Look
            => 200 SendProgress;
        /// Ends a session before its stream is at its end.
        SendStop = "send_stop", DELETE "/v1/sends/{session}", Operator, Session, Look
            => 200 Removed;
        /// Lists the streams that are sent and received now.
        ListStreams = "stream_list", GET "/v1/streams", Viewer, Filtered, Look => 200 StreamList;
        /// Cancels a stream; the received part of a stream is kept.
        StreamCancel = "stream_cancel", DELETE "/v1/streams/{id}", Operator, Looked, Change
            => 200 Removed;
        /// Begins to receive a stream.
        ReceiveStart = "receive_start", POST "/v1/receives", Operator, Named, Change
            => 201 ReceiveStarted;
        /// Ends a stream: its snapshot is there once this is answered.
        ReceiveFinish = "receive_finish", POST "/v1/receives/{session}/finish", Operator, Session,
            Change => 200 ReceiveDone;
        /// Cuts a stream off: what came is kept, and it can go on.
        ReceiveStop = "receive_stop", DELETE "/v1/receives/{session}", Operator, Session, Look
            => 200 Removed;
        /// Tells where the stream into a volume goes on.
        ShowReceive = "receive_token", GET "/v1/volumes/{volume:pool/volume}/receive", Viewer,
            Named, Wait => 200 ReceiveToken;
        /// Gives the stream into a volume up: the volume is what it was before, or gone.
        ReceiveAbort = "receive_abort", DELETE "/v1/volumes/{volume:pool/volume}/receive", Operator,
            Named, Change => 200 Removed;
    }
    "replication" {
        /// Lets the server replicate a volume to another server from now on.
        ReplicationCreate = "replication_create", POST "/v1/replications", Operator, Named, Change
            => 201 200 ReplicationChange;
        /// Lists replications by volume.
        ListReplications = "replication_list", GET "/v1/replications", Viewer, Filtered, Look
            => 200 ReplicationList;
        /// Starts a run or a comparison, or pauses and resumes a replication.
        ReplicationAct = "replication_act", POST "/v1/replications/act", Operator, Named, Change
            => 200 ReplicationChange;
        /// Deletes a replication and releases its holds on both servers; all snapshots stay.
        ReplicationDelete = "replication_delete", DELETE "/v1/replications/{volume:pool/volume}",
            Operator, Named, Change => 200 ReplicationRemoved;
    }
    "schedule" {
        /// Lets the server take snapshots of a volume, or of all volumes of a pool, from now on.
        ScheduleSet = "schedule_set", POST "/v1/schedules", Operator, Named, Change
            => 201 200 ScheduleChange;
        /// Lists schedules.
        ListSchedules = "schedule_list", GET "/v1/schedules", Viewer, Filtered, Look
            => 200 ScheduleList;
        /// Forgets a schedule; the snapshots it took stay.
        ScheduleClear = "schedule_clear", DELETE "/v1/schedules/{name}", Operator, Named, Change
            => 200 Removed;
    }
    "export" {
        /// Offers a volume to clients.
        ExportCreate = "export_create", POST "/v1/exports", Operator, Named, Change
            => 201 200 ExportChange;
        /// Lists exports.
        ListExports = "export_list", GET "/v1/exports", Viewer, Filtered, Look => 200 ExportList;
        /// Tells everything about one export.
        ShowExport = "export_show", GET "/v1/exports/{protocol}/{name}", Viewer, Looked, Look
            => 200 Export;
        /// Names the addresses from which clients may open an export over TCP; connected clients of
        /// others are cut off.
        ExportSet = "export_set", PUT "/v1/exports/{protocol}/{name}", Operator, Looked, Change
            => 200 ExportChange;
        /// Stops offering an export.
        ExportDelete = "export_delete", DELETE "/v1/exports/{protocol}/{name}", Operator, Looked,
            Change => 200 Removed;
    }
    "target" {
        /// Makes a target that nobody may log in to yet.
        TargetCreate = "target_create", POST "/v1/targets", Operator, Machine, Change
            => 201 200 TargetChange;
        /// Lists targets.
        ListTargets = "target_list", GET "/v1/targets", Viewer, Filtered, Look => 200 TargetList;
        /// Tells everything about one target, its sessions included.
        ShowTarget = "target_show", GET "/v1/targets/{name}", Viewer, Looked, Look => 200 Target;
        /// Removes a target.
        TargetDelete = "target_delete", DELETE "/v1/targets/{name}", Operator, Machine, Change
            => 200 Removed;
        /// Lets an initiator log in from now on, or on other conditions.
        InitiatorAllow = "target_allow", POST "/v1/initiators", Operator, Machine, Change
            => 201 200 TargetChange;
        /// Lets an initiator log in no longer; its sessions are ended.
        InitiatorDeny = "target_deny", DELETE "/v1/initiators/{target}/{initiator}", Operator,
            Machine, Change => 200 TargetChange;
        /// Shows a volume or snapshot at a target.
        LunAdd = "lun_add", POST "/v1/luns", Operator, Machine, Change => 201 200 TargetChange;
        /// Shows it no longer; initiators are told, and commands under way end.
        LunRemove = "lun_remove", DELETE "/v1/luns/{target}/{number}", Operator, Machine, Change
            => 200 Removed;
    }
    "token" {
        /// Makes a token; its secret is told in this answer only.
        TokenCreate = "token_create", POST "/v1/tokens", Admin, Machine, Change => 201 TokenCreated;
        /// Lists tokens; their secrets are not among what the server knows.
        ListTokens = "token_list", GET "/v1/tokens", Admin, Machine, Look => 200 TokenList;
        /// Revokes a token: the next call with it is refused.
        TokenRevoke = "token_revoke", DELETE "/v1/tokens/{name}", Admin, Machine, Change
            => 200 Removed;
    }
}

/// Fetches the stream of a session.
pub static SEND_STREAM: Operation = Operation {
    name: "send_stream",
    method: Method::POST,
    path: "/v1/sends/{session}/stream",
    role: Role::Operator,
    reach: Reach::Session,
    mode: Mode::Look,
    statuses: &[200],
    tag: "transfer",
    summary: "Fetches the stream of a session, once; where the answer breaks off, the session \
              tells why.",
};

/// Gives the next part of a stream.
pub static RECEIVE_PART: Operation = Operation {
    name: "receive_part",
    method: Method::POST,
    path: "/v1/receives/{session}/parts",
    role: Role::Operator,
    reach: Reach::Session,
    mode: Mode::Wait,
    statuses: &[200],
    tag: "transfer",
    summary: "Gives the next part of a stream.",
};

/// The calls whose body is a stream, which no type describes.
pub static BY_HAND: &[&Operation] = &[&SEND_STREAM, &RECEIVE_PART];

impl Operation {
    /// All calls.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        TABLE.iter().chain(BY_HAND).copied()
    }

    /// The call of this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::all().find(|operation| operation.name == name)
    }
}
