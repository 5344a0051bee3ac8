//! The gate: which role each call needs, and whether what it names is in the caller's scope.
//!
//! Not here: who the caller is (`door`, `token`), the calls themselves.
//!
//! Invariants:
//! - every call of [`Control`](crate::Control) is in the table of operations and passes its check
//!   before the control behind sees it;
//! - a caller without rights passes nothing;
//! - a scope counts for every name that a call touches; a call that touches more of the machine
//!   than one pool is refused to every scope;
//! - one function cuts every answer to the scope (`cut`); a refusal never reveals whether a name
//!   exists.

mod calls;
mod cut;

use std::sync::Arc;

use weir_base::ErrorKind;

use crate::access::{Role, Scope};
use crate::caller;
use crate::control::{Answer, Control};
use crate::wire::ApiError;
use cut::{Cut, cut};

/// What a call touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nothing that belongs to a pool.
    Any,
    /// What it names.
    Named,
    /// Everything; the answer is cut to the scope.
    Filtered,
    /// The machine: its disks, its other pools, who may call.
    Machine,
    /// A stream that the caller began: the session is known by 128 random bits, which only the call
    /// that began it is told.
    Session,
}

macro_rules! operations {
    ($($name:ident = $id:literal, $role:ident, $reach:ident;)*) => {
        /// A call, as the OpenAPI document names it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Operation { $(#[doc = $id] $name,)* }

        impl Operation {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// Its name in the OpenAPI document.
            pub const fn id(self) -> &'static str {
                match self { $(Self::$name => $id,)* }
            }

            /// The lowest role that may make it.
            pub const fn role(self) -> Role {
                match self { $(Self::$name => Role::$role,)* }
            }

            /// What it touches.
            pub const fn reach(self) -> Reach {
                match self { $(Self::$name => Reach::$reach,)* }
            }
        }
    };
}

operations! {
    ServerInfo = "server_info", Viewer, Any;
    PoolCreate = "pool_create", Admin, Machine;
    PoolList = "pool_list", Viewer, Filtered;
    PoolStatus = "pool_status", Viewer, Named;
    PoolDestroy = "pool_destroy", Admin, Named;
    PoolScan = "pool_scan", Admin, Machine;
    PoolImport = "pool_import", Admin, Machine;
    PoolExport = "pool_export", Admin, Named;
    PoolHistory = "pool_history", Viewer, Filtered;
    Events = "events", Viewer, Filtered;
    PoolScrub = "pool_scrub", Operator, Named;
    PoolOffline = "pool_offline", Admin, Named;
    PoolOnline = "pool_online", Admin, Named;
    PoolClear = "pool_clear", Admin, Named;
    PoolAttach = "pool_attach", Admin, Machine;
    PoolReplace = "pool_replace", Admin, Machine;
    PoolDetach = "pool_detach", Admin, Named;
    PoolAdd = "pool_add", Admin, Machine;
    PoolRemove = "pool_remove", Admin, Named;
    PoolExpand = "pool_expand", Admin, Named;
    PropertyGet = "property_get", Viewer, Named;
    PropertySet = "property_set", Admin, Named;
    PropertyInherit = "property_inherit", Admin, Named;
    VolumeCreate = "volume_create", Operator, Named;
    VolumeList = "volume_list", Viewer, Filtered;
    VolumeShow = "volume_show", Viewer, Named;
    VolumeSet = "volume_set", Admin, Named;
    VolumeResize = "volume_resize", Admin, Named;
    VolumeRename = "volume_rename", Operator, Named;
    VolumeCopy = "volume_copy", Operator, Named;
    VolumePromote = "volume_promote", Operator, Named;
    VolumeAdvise = "volume_advise", Operator, Named;
    DedupeEstimate = "dedupe_estimate", Operator, Named;
    VolumeDestroy = "volume_destroy", Admin, Named;
    SnapshotCreate = "snapshot_create", Operator, Named;
    SnapshotList = "snapshot_list", Viewer, Filtered;
    SnapshotDestroy = "snapshot_destroy", Admin, Named;
    SnapshotHold = "snapshot_hold", Operator, Named;
    SnapshotRelease = "snapshot_release", Operator, Named;
    SnapshotRename = "snapshot_rename", Operator, Named;
    SnapshotRollback = "snapshot_rollback", Admin, Named;
    SnapshotClone = "snapshot_clone", Operator, Named;
    BookmarkCreate = "bookmark_create", Operator, Named;
    BookmarkList = "bookmark_list", Viewer, Filtered;
    BookmarkDestroy = "bookmark_destroy", Admin, Named;
    SendStart = "send_start", Operator, Named;
    SendStream = "send_stream", Operator, Session;
    SendShow = "send_show", Viewer, Session;
    SendStop = "send_stop", Operator, Session;
    StreamList = "stream_list", Viewer, Filtered;
    StreamCancel = "stream_cancel", Operator, Filtered;
    ReceiveStart = "receive_start", Operator, Named;
    ReceivePart = "receive_part", Operator, Session;
    ReceiveFinish = "receive_finish", Operator, Session;
    ReceiveStop = "receive_stop", Operator, Session;
    ReceiveToken = "receive_token", Viewer, Named;
    ReceiveAbort = "receive_abort", Operator, Named;
    SnapshotDigest = "snapshot_digest", Operator, Named;
    ReplicationCreate = "replication_create", Operator, Named;
    ReplicationList = "replication_list", Viewer, Filtered;
    ReplicationAct = "replication_act", Operator, Named;
    ReplicationDelete = "replication_delete", Operator, Named;
    ScheduleSet = "schedule_set", Operator, Named;
    ScheduleList = "schedule_list", Viewer, Filtered;
    ScheduleClear = "schedule_clear", Operator, Named;
    ExportCreate = "export_create", Operator, Named;
    ExportList = "export_list", Viewer, Filtered;
    ExportShow = "export_show", Viewer, Named;
    ExportSet = "export_set", Operator, Named;
    ExportDelete = "export_delete", Operator, Named;
    TargetCreate = "target_create", Operator, Machine;
    TargetList = "target_list", Viewer, Filtered;
    TargetShow = "target_show", Viewer, Named;
    TargetDelete = "target_delete", Operator, Machine;
    TargetAllow = "target_allow", Operator, Machine;
    TargetDeny = "target_deny", Operator, Machine;
    LunAdd = "lun_add", Operator, Machine;
    LunRemove = "lun_remove", Operator, Machine;
    TokenCreate = "token_create", Admin, Machine;
    TokenList = "token_list", Admin, Machine;
    TokenRevoke = "token_revoke", Admin, Machine;
}

impl Operation {
    /// The operation of this name in the OpenAPI document.
    pub fn find(id: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|operation| operation.id() == id)
    }
}

/// A control behind the gate.
pub(crate) struct Gate {
    inner: Arc<dyn Control>,
}

impl Gate {
    pub(crate) fn new(inner: Arc<dyn Control>) -> Self {
        Self { inner }
    }
}

/// The scope of the caller; nothing for a caller without rights.
fn scope() -> Scope {
    let caller = caller::current();
    caller.rights().map_or(Scope::Only(Vec::new()), |rights| rights.scope.clone())
}

fn outside(name: &str) -> ApiError {
    let caller = caller::current();
    let message = format!("{name:?} is outside the scope of {caller}");
    ApiError::new(ErrorKind::Permission, message)
        .with_action("use a token whose scope covers it: weir token create --scope")
}

fn at_least(needed: Role) -> Result<(), ApiError> {
    let caller = caller::current();
    if caller.rights().is_some_and(|rights| rights.role >= needed) {
        return Ok(());
    }
    let is = caller.rights().map_or("nobody", |rights| rights.role.name());
    let message = format!("this call needs the role {}, and {caller} is {is}", needed.name());
    Err(ApiError::new(ErrorKind::Permission, message)
        .with_action("use a token of that role: weir token create --role"))
}

/// Checks the role.
fn role(operation: Operation) -> Result<(), ApiError> {
    at_least(operation.role())
}

/// Checks the role, and that the caller's scope is everything.
fn machine(operation: Operation) -> Result<(), ApiError> {
    role(operation)?;
    if scope().is_all() {
        return Ok(());
    }
    let caller = caller::current();
    let message = format!("{} touches more than the scope of {caller}", operation.id());
    Err(ApiError::new(ErrorKind::Permission, message)
        .with_action("use a token without a scope, or the unix socket"))
}

/// Checks the role and every name that a call touches.
fn named<N: AsRef<str>>(
    operation: Operation,
    names: impl IntoIterator<Item = N>,
) -> Result<(), ApiError> {
    role(operation)?;
    let scope = scope();
    let mut names = names.into_iter();
    match names.find(|name| !scope.covers(name.as_ref())) {
        Some(name) => Err(outside(name.as_ref())),
        None => Ok(()),
    }
}

/// Checks the role, and that the scope has a part in a pool.
fn reaches(operation: Operation, pool: &str) -> Result<(), ApiError> {
    role(operation)?;
    if scope().reaches(pool) { Ok(()) } else { Err(outside(pool)) }
}

/// Checks the role, and that the scope has a part in the pool of a name, if one is given.
fn reaches_part(operation: Operation, name: Option<&str>) -> Result<(), ApiError> {
    let pool = name.and_then(|name| name.split(['/', '@', '#']).next());
    pool.map_or_else(|| role(operation), |pool| reaches(operation, pool))
}

/// Makes a call that passed its check, and cuts the answer to the scope.
fn pass<'a, T: Cut + Send + 'a>(
    checked: Result<(), ApiError>,
    call: impl FnOnce() -> Answer<'a, T>,
) -> Answer<'a, T> {
    match checked {
        Ok(()) => cut(scope(), call()),
        Err(refusal) => Box::pin(std::future::ready(Err(refusal))),
    }
}
