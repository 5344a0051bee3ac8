//! The table of calls: their paths, the roles that may make them, their answers.
//!
//! The handlers of the calls are in weir-server.
//!
//! A row is `Request = "operation", METHOD "path", Role, Resources, Mode => statuses Answer`. In a
//! path `{field}` is a field of the request, `{field:param}` a field whose parameter has another
//! name, and `{field:a/b}` a field with a `/`, whose two parts fill two parameters. The other
//! fields are in the query (GET, DELETE) or in the body.
//!
//! Invariant: a path is served if and only if it is in this table or in [`BY_HAND`].

use axum::http::Method;

use super::call::{Call, Handle, Mode, Operation, Run};
use crate::access::{Resources, Role};
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
                    reach: Resources::$reach,
                    mode: Mode::$mode,
                    statuses: &[$($status),+],
                    tag: $tag,
                    summary: concat!($($summary, "\n"),+),
                };
            }
        )+)+

        /// All rows of the table, in its order.
        pub static TABLE: &[&Operation] = &[$($(<types::$call as Call>::OPERATION,)+)+];

        /// A server that handles all calls.
        pub trait Control: Run + Streams $($(+ Handle<types::$call>)+)+ {}

        impl<T: Run + Streams $($(+ Handle<types::$call>)+)+> Control for T {}

        /// Calls `$visitor.visit::<C>()` for each call `C` of the table.
        pub(crate) fn visit<V: Visit>(visitor: &mut V) {
            $($(visitor.visit::<types::$call>();)+)+
        }

        /// Calls `$visitor.visit::<C>()` for each call `C`, for a server that handles all calls.
        pub(crate) fn visit_handlers<S: Control, V: VisitHandlers<S>>(visitor: &mut V) {
            $($(visitor.visit::<types::$call>();)+)+
        }
    };
}

/// An operation to perform for each call of the table.
pub(crate) trait Visit {
    fn visit<C: Call>(&mut self);
}

/// An operation to perform for each call, together with the server that handles the call.
pub(crate) trait VisitHandlers<S> {
    fn visit<C: Call>(&mut self)
    where
        S: Handle<C>;
}

calls! {
    "server" {
        /// Shows version, addresses and memory use of the server process.
        ShowServer = "server_info", GET "/v1/server", Viewer, Any, Look => 200 ServerInfo;
        /// Lists events; waits for the next one on request.
        ListEvents = "events", GET "/v1/events", Viewer, Filtered, Look => 200 EventList;
    }
    "pool" {
        /// Creates a pool on disks.
        PoolCreate = "pool_create", POST "/v1/pools", Admin, Machine, Change => 201 200 PoolCreated;
        /// Lists the imported pools with their state.
        ListPools = "pool_list", GET "/v1/pools", Viewer, Filtered, Look => 200 PoolList;
        /// Shows the state of one pool.
        ShowPool = "pool_status", GET "/v1/pools/{name:pool}", Viewer, Named, Look
            => 200 PoolStatus;
        /// Destroys a pool with all volumes and snapshots.
        PoolDestroy = "pool_destroy", DELETE "/v1/pools/{name:pool}", Admin, Named, Change
            => 200 Removed;
        /// Searches disks for pools that can be imported; changes nothing.
        PoolScan = "pool_scan", POST "/v1/import/scan", Admin, Machine, Wait => 200 ImportableList;
        /// Imports a pool.
        PoolImport = "pool_import", POST "/v1/import", Admin, Machine, Change => 200 PoolChange;
        /// Commits and closes a pool, so that another server can import it.
        PoolExport = "pool_export", POST "/v1/pools/{name:pool}/export", Admin, Named, Change
            => 200 Removed;
        /// Lists the recorded changes of a pool with their callers and outcomes.
        ListHistory = "pool_history", GET "/v1/pools/{name:pool}/history", Viewer, Filtered, Look
            => 200 HistoryList;
        /// Lists the recorded changes of all pools, also of destroyed and exported ones.
        ListAllHistory = "history_list", GET "/v1/history", Viewer, Filtered, Look
            => 200 AllHistory;
        /// Starts, pauses or stops a scrub, which reads and verifies every copy of each block and
        /// rewrites bad copies from good ones.
        PoolScrub = "pool_scrub", POST "/v1/pools/{name:pool}/scrub", Operator, Named, Change
            => 200 PoolChange;
        /// Takes a redundant disk offline until `pool_online` or the next import.
        PoolOffline = "pool_offline", POST "/v1/pools/{name:pool}/offline", Admin, Named, Change
            => 200 PoolChange;
        /// Brings a disk online, at its old path or a new one, and starts a resilver.
        PoolOnline = "pool_online", POST "/v1/pools/{name:pool}/online", Admin, Named, Change
            => 200 PoolChange;
        /// Sets error counts to zero and opens faulted disks again.
        PoolClear = "pool_clear", POST "/v1/pools/{name:pool}/clear", Admin, Named, Change
            => 200 PoolChange;
        /// Attaches a disk to a mirror, or to a single disk; a resilver copies the data to it.
        PoolAttach = "pool_attach", POST "/v1/pools/{name:pool}/attach", Admin, Machine, Change
            => 200 PoolChange;
        /// Replaces a disk by another; a resilver copies the data to the new one.
        PoolReplace = "pool_replace", POST "/v1/pools/{name:pool}/replace", Admin, Machine, Change
            => 200 PoolChange;
        /// Detaches a disk from a mirror and erases its label.
        PoolDetach = "pool_detach", POST "/v1/pools/{name:pool}/detach", Admin, Named, Change
            => 200 PoolChange;
        /// Adds vdevs for data, for the log, or as spares.
        PoolAdd = "pool_add", POST "/v1/pools/{name:pool}/add", Admin, Machine, Change
            => 200 PoolChange;
        /// Removes a vdev: its data moves to the other vdevs while the pool is in use.
        PoolRemove = "pool_remove", POST "/v1/pools/{name:pool}/remove", Admin, Named, Change
            => 200 PoolChange;
        /// Expands a pool to the full size of its disks.
        PoolExpand = "pool_expand", POST "/v1/pools/{name:pool}/expand", Admin, Named, Change
            => 200 PoolChange;
    }
    "property" {
        /// Returns properties with the source of each value.
        GetProperties = "property_get", GET "/v1/properties", Viewer, Named, Wait
            => 200 PropertyList;
        /// Sets properties of a pool, volume or snapshot.
        PropertySet = "property_set", PATCH "/v1/properties", Admin, Named, Change
            => 200 PropertyChange;
        /// Removes the local value of a property, which is inherited again.
        PropertyInherit = "property_inherit", POST "/v1/properties/inherit", Admin, Named, Change
            => 200 PropertyChange;
    }
    "volume" {
        /// Creates a thin volume.
        VolumeCreate = "volume_create", POST "/v1/volumes", Operator, Named, Change
            => 201 200 VolumeChange;
        /// Lists volumes, of one pool or of all.
        ListVolumes = "volume_list", GET "/v1/volumes", Viewer, Filtered, Look => 200 VolumeList;
        /// Shows one volume.
        ShowVolume = "volume_show", GET "/v1/volumes/{name:pool/volume}", Viewer, Named, Look
            => 200 Volume;
        /// Changes properties. Existing blocks keep the properties they were written with.
        VolumeSet = "volume_set", PATCH "/v1/volumes/{name:pool/volume}", Admin, Named, Change
            => 200 VolumeChange;
        /// Changes the size of a volume.
        VolumeResize = "volume_resize", PUT "/v1/volumes/{name:pool/volume}/size", Admin, Named,
            Change => 200 VolumeChange;
        /// Renames a volume; its exports keep their names and their clients.
        VolumeRename = "volume_rename", POST "/v1/volumes/{name:pool/volume}/rename", Operator,
            Named, Change => 200 VolumeChange;
        /// Copies a volume or snapshot into a new volume, which depends on neither.
        VolumeCopy = "volume_copy", POST "/v1/volumes/copy", Operator, Named, Change
            => 201 VolumeChange;
        /// Promotes a clone: the volume that it was cloned from becomes its clone.
        VolumePromote = "volume_promote", POST "/v1/volumes/{name:pool/volume}/promote", Operator,
            LookedUp, Change => 200 VolumeChange;
        /// Destroys a volume and its data.
        VolumeDestroy = "volume_destroy", DELETE "/v1/volumes/{name:pool/volume}", Admin, Named,
            Change => 200 Removed;
        /// Measures a volume under other settings. A call without `job` starts a job; an
        /// answer with `job` is partial, and its caller repeats the call with this job.
        VolumeAdvise = "volume_advise", POST "/v1/advise", Operator, Named, Look
            => 200 VolumeAdvice;
        /// Estimates the savings of dedupe for volumes. A call without `job` starts a job; an
        /// answer with `job` is partial, and its caller repeats the call with this job.
        DedupeEstimate = "dedupe_estimate", POST "/v1/dedupe/estimate", Operator, Named, Look
            => 200 DedupeForecast;
    }
    "filesystem" {
        /// Creates a filesystem.
        FilesystemCreate = "filesystem_create", POST "/v1/filesystems", Operator, Named, Change
            => 201 FilesystemChange;
        /// Lists filesystems, of one pool or of all.
        ListFilesystems = "filesystem_list", GET "/v1/filesystems", Viewer, Filtered, Look
            => 200 FilesystemList;
        /// Shows one filesystem.
        ShowFilesystem = "filesystem_show", GET "/v1/filesystems/{name:pool/filesystem}", Viewer,
            Named, Look => 200 Filesystem;
        /// Shows the usage and quotas of users, groups and projects.
        ShowFilesystemUsage = "filesystem_usage", GET
            "/v1/filesystems/{name:pool/filesystem}/usage", Viewer, Named, Look
            => 200 FilesystemUsage;
        /// Sets a quota of a user, group or project.
        FilesystemQuota = "filesystem_quota", POST
            "/v1/filesystems/{name:pool/filesystem}/quota", Admin, Named, Change
            => 200 QuotaChange;
        /// Renames a filesystem that is not mounted.
        FilesystemRename = "filesystem_rename", POST
            "/v1/filesystems/{name:pool/filesystem}/rename", Operator, Named, Change
            => 200 FilesystemChange;
        /// Destroys a filesystem that is not mounted, and its files.
        FilesystemDestroy = "filesystem_destroy", DELETE "/v1/filesystems/{name:pool/filesystem}",
            Admin, Named, Change => 200 Removed;
        /// Mounts a filesystem or snapshot at a directory of the server's machine.
        FilesystemMount = "filesystem_mount", POST "/v1/mounts", Admin, Machine, Change
            => 201 200 MountChange;
        /// Lists mounts.
        ListMounts = "mount_list", GET "/v1/mounts", Viewer, Filtered, Look => 200 MountList;
        /// Unmounts a filesystem or snapshot.
        FilesystemUnmount = "filesystem_unmount", POST "/v1/mounts/unmount", Admin, Machine, Change
            => 200 MountChange;
    }
    "snapshot" {
        /// Takes snapshots in one transaction group: all or none.
        SnapshotCreate = "snapshot_create", POST "/v1/snapshots", Operator, Named, Change
            => 201 SnapshotChange;
        /// Lists snapshots by volume, oldest first.
        ListSnapshots = "snapshot_list", GET "/v1/snapshots", Viewer, Filtered, Wait
            => 200 SnapshotList;
        /// Destroys snapshots: of each volume, all or none. A dry run lists them and the space that
        /// they would free.
        SnapshotDestroy = "snapshot_destroy", POST "/v1/snapshots/destroy", Admin, Named, Change
            => 200 SnapshotsDestroyed;
        /// Keeps a snapshot from being destroyed until the tag is released.
        SnapshotHold = "snapshot_hold", POST "/v1/snapshots/hold", Operator, Named, Change
            => 200 SnapshotChange;
        /// Releases a tag of a snapshot.
        SnapshotRelease = "snapshot_release", POST "/v1/snapshots/release", Operator, Named, Change
            => 200 SnapshotChange;
        /// Renames a snapshot.
        SnapshotRename = "snapshot_rename", POST "/v1/snapshots/rename", Operator, Named, Change
            => 200 SnapshotChange;
        /// Rolls a volume back to a snapshot and discards all later writes.
        SnapshotRollback = "snapshot_rollback", POST "/v1/snapshots/rollback", Admin, Named, Change
            => 200 VolumeChange;
        /// Clones a snapshot into a new volume, which shares the blocks of the snapshot.
        SnapshotClone = "snapshot_clone", POST "/v1/snapshots/clone", Operator, Named, Change
            => 201 200 VolumeChange;
        /// Returns digests of ranges of a snapshot. Equal content has equal digests on any server.
        DigestRequest = "snapshot_digest", POST "/v1/snapshots/digest", Operator, Named, Wait
            => 200 DigestList;
    }
    "bookmark" {
        /// Creates a bookmark of a snapshot.
        BookmarkCreate = "bookmark_create", POST "/v1/bookmarks", Operator, Named, Change
            => 201 200 BookmarkChange;
        /// Lists bookmarks by volume, oldest first.
        ListBookmarks = "bookmark_list", GET "/v1/bookmarks", Viewer, Filtered, Look
            => 200 BookmarkList;
        /// Destroys a bookmark.
        BookmarkDestroy = "bookmark_destroy", POST "/v1/bookmarks/destroy", Admin, Named, Change
            => 200 Removed;
    }
    "transfer" {
        /// Starts to send a snapshot, or its changes since an older one.
        SendStart = "send_start", POST "/v1/sends", Operator, Named, Wait => 201 SendStarted;
        /// Shows the progress of a session, or the error that ended its stream.
        ShowSend = "send_show", GET "/v1/sends/{session}", Viewer, Session, Look
            => 200 SendProgress;
        /// Ends a session before the end of its stream.
        SendStop = "send_stop", DELETE "/v1/sends/{session}", Operator, Session, Look
            => 200 Removed;
        /// Lists the running streams.
        ListStreams = "stream_list", GET "/v1/streams", Viewer, Filtered, Look => 200 StreamList;
        /// Cancels a stream. The server keeps the part that it has received.
        StreamCancel = "stream_cancel", DELETE "/v1/streams/{id}", Operator, LookedUp, Change
            => 200 Removed;
        /// Starts to receive a stream.
        ReceiveStart = "receive_start", POST "/v1/receives", Operator, Named, Change
            => 201 ReceiveStarted;
        /// Finishes a received stream; the answer confirms its snapshot.
        ReceiveFinish = "receive_finish", POST "/v1/receives/{session}/finish", Operator, Session,
            Change => 200 ReceiveDone;
        /// Stops a received stream. The server keeps the received part, so that it can be resumed.
        ReceiveStop = "receive_stop", DELETE "/v1/receives/{session}", Operator, Session, Look
            => 200 Removed;
        /// Returns the token to resume the stream into a volume.
        ShowReceive = "receive_token", GET "/v1/volumes/{volume:pool/volume}/receive", Viewer,
            Named, Wait => 200 ReceiveToken;
        /// Aborts the stream into a volume, which keeps its previous content. A volume that the
        /// stream created is destroyed.
        ReceiveAbort = "receive_abort", DELETE "/v1/volumes/{volume:pool/volume}/receive", Operator,
            Named, Change => 200 Removed;
    }
    "replication" {
        /// Creates a replication of a volume to another server.
        ReplicationCreate = "replication_create", POST "/v1/replications", Operator, Named, Change
            => 201 200 ReplicationChange;
        /// Lists replications by volume.
        ListReplications = "replication_list", GET "/v1/replications", Viewer, Filtered, Look
            => 200 ReplicationList;
        /// Starts a run or a comparison, or pauses or resumes a replication.
        ReplicationAct = "replication_act", POST "/v1/replications/act", Operator, Named, Change
            => 200 ReplicationChange;
        /// Deletes a replication and releases its holds on both servers. All snapshots remain.
        ReplicationDelete = "replication_delete", DELETE "/v1/replications/{volume:pool/volume}",
            Operator, Named, Change => 200 ReplicationRemoved;
    }
    "schedule" {
        /// Schedules snapshots of a volume, or of all volumes of a pool.
        ScheduleSet = "schedule_set", POST "/v1/schedules", Operator, Named, Change
            => 201 200 ScheduleChange;
        /// Lists schedules.
        ListSchedules = "schedule_list", GET "/v1/schedules", Viewer, Filtered, Look
            => 200 ScheduleList;
        /// Deletes a schedule and keeps its snapshots.
        ScheduleClear = "schedule_clear", DELETE "/v1/schedules/{name}", Operator, Named, Change
            => 200 Removed;
    }
    "export" {
        /// Exports a volume to clients.
        ExportCreate = "export_create", POST "/v1/exports", Operator, Named, Change
            => 201 200 ExportChange;
        /// Lists exports.
        ListExports = "export_list", GET "/v1/exports", Viewer, Filtered, Look => 200 ExportList;
        /// Shows one export.
        ShowExport = "export_show", GET "/v1/exports/{protocol}/{name}", Viewer, LookedUp, Look
            => 200 Export;
        /// Sets the addresses from which clients may open an export over TCP. The server
        /// disconnects clients from other addresses.
        ExportSet = "export_set", PUT "/v1/exports/{protocol}/{name}", Operator, LookedUp, Change
            => 200 ExportChange;
        /// Deletes an export.
        ExportDelete = "export_delete", DELETE "/v1/exports/{protocol}/{name}", Operator, LookedUp,
            Change => 200 Removed;
    }
    "share" {
        /// Shares a directory of a filesystem. Without rules no client may use the share.
        ShareCreate = "share_create", POST "/v1/shares", Operator, Named, Change
            => 201 200 ShareChange;
        /// Lists shares.
        ListShares = "share_list", GET "/v1/shares", Viewer, Filtered, Look => 200 ShareList;
        /// Shows one share.
        ShowShare = "share_show", GET "/v1/shares/{protocol}/{name}", Viewer, LookedUp, Look
            => 200 Share;
        /// Shows the calls of the clients of a share.
        ShowShareStatistics = "share_stat", GET "/v1/shares/{protocol}/{name}/statistics",
            Viewer, LookedUp, Look => 200 ShareStatistics;
        /// Allows clients to use a share. A rule replaces the rule for the same clients.
        ShareAllow = "share_allow", POST "/v1/shares/{protocol}/{name}/allow", Operator, LookedUp,
            Change => 200 ShareChange;
        /// Removes the rules of clients. The next call of these clients fails.
        ShareDeny = "share_deny", POST "/v1/shares/{protocol}/{name}/deny", Operator, LookedUp,
            Change => 200 ShareChange;
        /// Deletes a share.
        ShareDelete = "share_delete", DELETE "/v1/shares/{protocol}/{name}", Operator, LookedUp,
            Change => 200 Removed;
    }
    "target" {
        /// Creates an iSCSI target. No initiator may log in before `target_allow`.
        TargetCreate = "target_create", POST "/v1/targets", Operator, Machine, Change
            => 201 200 TargetChange;
        /// Lists targets.
        ListTargets = "target_list", GET "/v1/targets", Viewer, Filtered, Look => 200 TargetList;
        /// Shows one target with its sessions.
        ShowTarget = "target_show", GET "/v1/targets/{name}", Viewer, LookedUp, Look => 200 Target;
        /// Deletes a target.
        TargetDelete = "target_delete", DELETE "/v1/targets/{name}", Operator, Machine, Change
            => 200 Removed;
        /// Allows an initiator to log in, or changes its CHAP secrets.
        InitiatorAllow = "target_allow", POST "/v1/initiators", Operator, Machine, Change
            => 201 200 TargetChange;
        /// Denies logins of an initiator and ends its sessions.
        InitiatorDeny = "target_deny", DELETE "/v1/initiators/{target}/{initiator}", Operator,
            Machine, Change => 200 TargetChange;
        /// Adds a volume or snapshot to a target as a logical unit.
        LunAdd = "lun_add", POST "/v1/luns", Operator, Machine, Change => 201 200 TargetChange;
        /// Removes a logical unit from a target. The target notifies the initiators and ends
        /// running commands.
        LunRemove = "lun_remove", DELETE "/v1/luns/{target}/{number}", Operator, Machine, Change
            => 200 Removed;
    }
    "token" {
        /// Creates a token. Only this answer contains its secret.
        TokenCreate = "token_create", POST "/v1/tokens", Admin, Machine, Change => 201 TokenCreated;
        /// Lists tokens, without their secrets: the server does not store them.
        ListTokens = "token_list", GET "/v1/tokens", Admin, Machine, Look => 200 TokenList;
        /// Revokes a token. The server rejects the next call with this token.
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
    reach: Resources::Session,
    mode: Mode::Look,
    statuses: &[200],
    tag: "transfer",
    summary: "Fetches the stream of a session, once. If the response is incomplete, `send_show` \
              returns the error.",
};

/// Receives the next part of a stream.
pub static RECEIVE_PART: Operation = Operation {
    name: "receive_part",
    method: Method::POST,
    path: "/v1/receives/{session}/parts",
    role: Role::Operator,
    reach: Resources::Session,
    mode: Mode::Wait,
    statuses: &[200],
    tag: "transfer",
    summary: "Receives the next part of a stream.",
};

/// The calls whose request or response is a stream; their bodies have no JSON type.
pub static BY_HAND: &[&Operation] = &[&SEND_STREAM, &RECEIVE_PART];

impl Operation {
    /// Returns all calls.
    pub fn all() -> impl Iterator<Item = &'static Self> {
        TABLE.iter().chain(BY_HAND).copied()
    }

    /// Returns the call with this name.
    pub fn find(name: &str) -> Option<&'static Self> {
        Self::all().find(|operation| operation.name == name)
    }
}
