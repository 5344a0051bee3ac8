//! Test: no pair of calls of an operator destroys a snapshot; the schedules run after each call.
//!
//! weir-api tests the role of each call; bin/weir tests replication between two servers.
//!
//! The consequences of a call decide which role it needs. An operator may not destroy snapshots. So
//! no two calls of an operator may cause the destruction of a user's snapshot, of a snapshot that
//! an admin's schedule keeps, or of a snapshot that an admin holds.
//!
//! Invariants:
//! - each pair of calls starts with the same volume.

use std::collections::BTreeSet;
use std::sync::Arc;

use weir_api::access::{Files, Rights, Role, Scope};
use weir_api::caller::{Caller, on_behalf_of};
use weir_api::types::{
    BookmarkCreate, ExportCreate, ExportDelete, Keep, ListExports, ListSnapshots, ListVolumes,
    Protocol, ReceiveAbort, ReceiveStart, ReceiveStop, ScheduleClear, ScheduleSet, SnapshotClone,
    SnapshotCreate, SnapshotHold, SnapshotRelease, SnapshotRename, VdevKind, VolumeCopy,
    VolumeDestroy, VolumePromote, VolumeRename,
};
use weir_api::{Call as _, Handle as _, Operation};
use weir_dataset::{SnapshotId, TakenBy};

use crate::monitor::unresponsive::tests::{Server, start_in};
use crate::record::events::Events;
use crate::schedules::schedule_calls;
use crate::state::server::Manager;

/// Calls of operators that this test does not make.
const NOT_WALKED: &[(&str, &str)] = &[
    ("pool_scrub", "reads and repairs"),
    ("volume_create", "makes a volume without snapshots"),
    ("filesystem_create", "makes a filesystem without snapshots"),
    ("filesystem_rename", "runs the code of volume_rename, which is walked"),
    ("volume_advise", "reads"),
    ("dedupe_estimate", "reads"),
    ("snapshot_digest", "reads"),
    ("send_start", "reads"),
    ("send_stream", "reads"),
    ("send_stop", "ends what reads"),
    ("stream_cancel", "ends a stream; receive_abort is walked"),
    ("receive_part", "needs the session of a start, which is walked"),
    ("receive_finish", "as before"),
    ("receive_stop", "as before"),
    ("replication_create", "needs a second server: tests/all/replicate_faults.rs"),
    ("replication_act", "as before"),
    ("replication_delete", "as before"),
    ("export_set", "changes addresses"),
    ("share_create", "offers a filesystem, whose snapshots it does not change"),
    ("share_allow", "changes addresses"),
    ("share_deny", "as before"),
    ("share_delete", "as before"),
    ("target_create", "offers, as an export does"),
    ("target_delete", "as before"),
    ("target_allow", "as before"),
    ("target_deny", "as before"),
    ("lun_add", "as before"),
    ("lun_remove", "as before"),
];

/// Names that look like the names of snapshots that schedules and replication runs take.
const LIKE_A_SCHEDULE: &str = "auto-yearly-2018-01-01-0000";
const LIKE_A_RUN: &str = "repl-2018-01-01-000000";

/// Snapshots of the admin's schedule: one with an admin's hold, and one without a hold.
const HELD: &str = "auto-yearly-2019-01-01-0000";
const OLD: &str = "auto-yearly-2020-01-01-0000";

/// Snapshots that the volume received in a stream. The volume's schedule keeps both snapshots, the
/// pool's schedule keeps one.
const RECEIVED: [&str; 2] = ["auto-monthly-2020-01-01-0000", "auto-monthly-2020-02-01-0000"];
const OF_VOLUME: &str = "yearly=2,monthly=3";
const OF_POOL: &str = "yearly=1,monthly=1";

/// One call of the test sequence. A step on the user's snapshot finds the snapshot by its current
/// name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Renames the user's snapshot.
    Rename(&'static str),
    /// Renames a snapshot that the schedule took, and renames it back.
    RenameAutomatic,
    Hold(&'static str),
    /// Releases this tag of every snapshot.
    Release(&'static str),
    /// Sets a schedule, with these counts, of the volume or pool with this name.
    Schedule(&'static str, &'static str),
    PruneOnly,
    Unschedule(&'static str),
    Take,
    Clone,
    Promote,
    RenameVolume,
    CopyVolume,
    Bookmark,
    Export,
    Unexport,
    Receive,
    Abort(&'static str),
}

const STEPS: &[Step] = &[
    Step::Rename(LIKE_A_SCHEDULE),
    Step::Rename(LIKE_A_RUN),
    Step::RenameAutomatic,
    Step::Hold("replication"),
    Step::Hold("replica"),
    Step::Release("legal"),
    Step::Release("replication"),
    Step::Schedule("tank/v", "yearly=0"),
    Step::Schedule("tank/v", "yearly=1"),
    Step::Schedule("tank/v", OF_VOLUME),
    Step::Schedule("tank/v", "hourly=9"),
    Step::Schedule("tank", "yearly=0"),
    Step::PruneOnly,
    Step::Unschedule("tank/v"),
    Step::Take,
    Step::Clone,
    Step::Promote,
    Step::RenameVolume,
    Step::CopyVolume,
    Step::Bookmark,
    Step::Export,
    Step::Unexport,
    Step::Receive,
    Step::Abort("tank/v"),
    Step::Abort("tank/c"),
];

impl Step {
    const fn operation(self) -> &'static Operation {
        match self {
            Self::Rename(_) | Self::RenameAutomatic => SnapshotRename::OPERATION,
            Self::Hold(_) => SnapshotHold::OPERATION,
            Self::Release(_) => SnapshotRelease::OPERATION,
            Self::Schedule(..) | Self::PruneOnly => ScheduleSet::OPERATION,
            Self::Unschedule(_) => ScheduleClear::OPERATION,
            Self::Take => SnapshotCreate::OPERATION,
            Self::Clone => SnapshotClone::OPERATION,
            Self::Promote => VolumePromote::OPERATION,
            Self::RenameVolume => VolumeRename::OPERATION,
            Self::CopyVolume => VolumeCopy::OPERATION,
            Self::Bookmark => BookmarkCreate::OPERATION,
            Self::Export => ExportCreate::OPERATION,
            Self::Unexport => ExportDelete::OPERATION,
            Self::Receive => ReceiveStart::OPERATION,
            Self::Abort(_) => ReceiveAbort::OPERATION,
        }
    }
}

#[test]
fn operator_calls_are_walked_or_exempt_with_a_reason() {
    for operation in Operation::all() {
        let walked = STEPS.iter().any(|step| step.operation() == operation);
        let left_out = NOT_WALKED.iter().any(|(known, _)| *known == operation.name);
        let is_operators = operation.role == Role::Operator;
        assert_eq!(is_operators, walked || left_out, "{}", operation.name);
        assert!(!(walked && left_out), "{}", operation.name);
    }
}

struct Walk {
    server: Server,
    events: Arc<Events>,
}

impl Walk {
    async fn new() -> Self {
        // The disks are in memory if possible, so that thousands of commits wait for no real disk.
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let server = start_in(dir.unwrap());
        server.pool_of("tank", VdevKind::Disk, ["a"]).await;
        Self { server, events: Arc::new(Events::new()) }
    }

    fn manager(&self) -> &Arc<Manager> {
        &self.server.manager
    }

    /// Creates the volume on which a pair of calls acts. The volume has a user's snapshot, received
    /// snapshots, and three snapshots of an admin's schedule that keeps two. An admin holds the
    /// oldest of the three.
    async fn set_up(&self) -> BTreeSet<String> {
        let manager = self.manager();
        drop(self.server.volume("tank/v").await);
        let names = vec!["tank/v@monday".to_owned()];
        manager.handle(SnapshotCreate { names, recursive: false }).await.unwrap();
        set_schedule(manager, "tank/v", OF_VOLUME, false).await;
        let by = TakenBy::Schedule(manager.state.lock().state.schedules[0].id);
        set_schedule(manager, "tank", OF_POOL, false).await;
        let open = manager.pool("tank").unwrap();
        let into = TakenBy::Received(open.engine.volume("v").unwrap().dataset());
        let taken = [HELD, OLD].map(|name| (name, by));
        for (name, by) in taken.into_iter().chain(RECEIVED.map(|name| (name, into))) {
            let id = SnapshotId::new("v", name);
            open.call(
                move |engine| async move { engine.create_snapshots_by(&[id], Some(by)).await },
            )
            .await
            .unwrap();
        }
        let tag = SnapshotHold { name: format!("tank/v@{HELD}"), tag: "legal".to_owned() };
        manager.handle(tag).await.unwrap();
        schedule_calls::follow_now(manager, &self.events).await;
        let all = self.guids().await;
        assert_eq!(all.len(), 7, "the schedule took two: {all:?}");
        all
    }

    async fn guids(&self) -> BTreeSet<String> {
        let all =
            self.manager().handle(ListSnapshots::from(Some("tank".to_owned()))).await.unwrap();
        all.snapshots.into_iter().map(|snapshot| snapshot.guid).collect()
    }

    /// Destroys the volumes, exports and schedules that a pair of calls left.
    async fn clear(&self) {
        let manager = self.manager();
        for name in ["tank", "tank/v", "tank/w", "tank/c"] {
            drop(manager.handle(ScheduleClear { name: name.to_owned() }).await);
        }
        for export in manager.handle(ListExports {}).await.unwrap().exports {
            let (protocol, name) = (export.protocol, export.name);
            manager.handle(ExportDelete { protocol, name, force: true }).await.unwrap();
        }
        for snapshot in manager.handle(ListSnapshots::default()).await.unwrap().snapshots {
            for tag in snapshot.holds {
                let tag = SnapshotRelease { name: snapshot.name.clone(), tag };
                manager.handle(tag).await.unwrap();
            }
        }
        // A volume cannot be destroyed while a clone of one of its snapshots exists. After a
        // promotion, `tank/v` is the clone of `tank/c`, which is first in the list, so only the
        // second pass destroys `tank/c`.
        for _ in 0..2 {
            for volume in manager.handle(ListVolumes { pool: None }).await.unwrap().volumes {
                let request = VolumeDestroy { name: volume.name, recursive: true };
                drop(manager.handle(request).await);
            }
        }
        assert_eq!(manager.handle(ListVolumes { pool: None }).await.unwrap().volumes, []);
    }

    /// Returns the full name of the first snapshot in the pool whose name fulfils `is_it`.
    async fn find(&self, is_it: impl Fn(&str) -> bool) -> String {
        let all =
            self.manager().handle(ListSnapshots::from(Some("tank".to_owned()))).await.unwrap();
        let mut names = all.snapshots.into_iter().map(|snapshot| snapshot.name);
        names.find(|name| is_it(name)).unwrap_or_else(|| "tank/v@none".to_owned())
    }

    /// Returns the snapshot of the user, under its current name.
    async fn of_user(&self) -> String {
        self.find(|name| {
            ["monday", LIKE_A_SCHEDULE, LIKE_A_RUN].iter().any(|own| name.ends_with(own))
        })
        .await
    }

    async fn schedule(&self, name: &str, keep: &str, prune_only: bool) {
        let keep = Keep::parse(keep).unwrap();
        let request = ScheduleSet { name: name.to_owned(), keep, prune_only };
        drop(self.manager().handle(request).await);
    }

    /// Makes a call and ignores its response; the test checks the remaining snapshots.
    async fn make(&self, step: Step) {
        let manager = self.manager();
        let rename = |name: String, own: &str| {
            let to = format!("{}@{own}", name.split('@').next().unwrap_or_default());
            manager.handle(SnapshotRename { name, to })
        };
        match step {
            Step::Rename(own) => drop(rename(self.of_user().await, own).await),
            Step::RenameAutomatic => {
                drop(rename(self.find(|name| name.ends_with(OLD)).await, "aside").await);
                drop(rename(self.find(|name| name.ends_with("@aside")).await, OLD).await);
            }
            Step::Hold(tag) => {
                let tag = SnapshotHold { name: self.of_user().await, tag: tag.to_owned() };
                drop(manager.handle(tag).await);
            }
            Step::Release(tag) => {
                let all =
                    manager.handle(ListSnapshots::from(Some("tank".to_owned()))).await.unwrap();
                for snapshot in all.snapshots {
                    let tag = SnapshotRelease { name: snapshot.name, tag: tag.to_owned() };
                    drop(manager.handle(tag).await);
                }
            }
            Step::Schedule(of, keep) => self.schedule(of, keep, false).await,
            Step::PruneOnly => self.schedule("tank/v", "yearly=0", true).await,
            Step::Unschedule(of) => {
                drop(manager.handle(ScheduleClear { name: of.to_owned() }).await);
            }
            Step::Take => {
                let names = vec!["tank@auto-yearly-2017-01-01-0000".to_owned()];
                drop(manager.handle(SnapshotCreate { names, recursive: true }).await);
            }
            Step::Clone => {
                let name = self.find(|name| name.contains("auto-yearly-202")).await;
                let request = SnapshotClone { name, volume: "tank/c".to_owned() };
                drop(manager.handle(request).await);
            }
            Step::Promote => {
                drop(manager.handle(VolumePromote { name: "tank/c".to_owned() }).await);
            }
            Step::RenameVolume => {
                let request = VolumeRename { name: "tank/v".to_owned(), to: "tank/w".to_owned() };
                drop(manager.handle(request).await);
            }
            Step::CopyVolume => {
                let request = VolumeCopy { name: "tank/v".to_owned(), to: "tank/d".to_owned() };
                drop(manager.handle(request).await);
            }
            other => self.offer(other).await,
        }
    }

    /// Makes the calls that export, bookmark or receive.
    async fn offer(&self, step: Step) {
        let manager = self.manager();
        let name = self.of_user().await;
        match step {
            Step::Bookmark => {
                let mark = format!("{}#mark", name.split('@').next().unwrap_or_default());
                let request = BookmarkCreate { snapshot: name, name: mark };
                drop(manager.handle(request).await);
            }
            Step::Export => {
                let request = ExportCreate {
                    protocol: Protocol::Nbd,
                    volume: name,
                    name: Some("tank/e".to_owned()),
                    read_only: true,
                    allow: Vec::new(),
                };
                drop(manager.handle(request).await);
            }
            Step::Unexport => {
                let (protocol, name) = (Protocol::Nbd, "tank/e".to_owned());
                drop(manager.handle(ExportDelete { protocol, name, force: true }).await);
            }
            Step::Receive => {
                let volume = "tank/v".to_owned();
                let request = ReceiveStart { volume, roll_back: false, dry_run: false };
                if let Ok(started) = manager.handle(request).await {
                    drop(manager.handle(ReceiveStop { session: started.session }).await);
                }
            }
            Step::Abort(volume) => {
                drop(manager.handle(ReceiveAbort { volume: volume.to_owned() }).await);
            }
            other => unreachable!("{other:?} is made elsewhere"),
        }
    }
}

async fn set_schedule(manager: &Manager, name: &str, keep: &str, prune_only: bool) {
    let keep = Keep::parse(keep).unwrap();
    let request = ScheduleSet { name: name.to_owned(), keep, prune_only };
    manager.handle(request).await.unwrap();
}

fn operator() -> Caller {
    let rights = Rights { role: Role::Operator, scope: Scope::All, files: Files::Named };
    Caller::new("token operator", rights)
}

// Regression: an operator renamed a user's snapshot to a name like that of a schedule's snapshot
// and set the schedule's count to 0, so the schedule destroyed the snapshot.
#[tokio::test]
async fn no_two_calls_of_an_operator_destroy_a_snapshot() {
    let walk = Walk::new().await;
    walk.clear().await;
    for first in STEPS {
        for second in STEPS {
            let before = walk.set_up().await;
            for step in [first, second] {
                on_behalf_of(operator(), walk.make(*step)).await;
                schedule_calls::follow_now(walk.manager(), &walk.events).await;
            }
            let after = walk.guids().await;
            assert!(before.is_subset(&after), "{first:?}, then {second:?}: {before:?} {after:?}");
            walk.clear().await;
        }
    }
}

// A server that never destroys a snapshot would pass the test above, but fails this test.
#[tokio::test]
async fn admin_shortens_a_schedule_and_releases_a_snapshot_to_it() {
    let walk = Walk::new().await;
    walk.clear().await;
    walk.set_up().await;
    let tag = SnapshotRelease { name: format!("tank/v@{HELD}"), tag: "legal".to_owned() };
    walk.manager().handle(tag).await.unwrap();
    schedule_calls::follow_now(walk.manager(), &walk.events).await;
    let count = || async { walk.guids().await.len() };
    assert_eq!(count().await, 6, "the oldest went");
    // A schedule that an operator sets gets a new number; a schedule that an admin sets adopts the
    // old snapshots.
    on_behalf_of(operator(), walk.schedule("tank/v", "yearly=1", false)).await;
    schedule_calls::follow_now(walk.manager(), &walk.events).await;
    assert!(count().await >= 6, "an operator destroys nothing");
    set_schedule(walk.manager(), "tank/v", "yearly=0,monthly=0", false).await;
    schedule_calls::follow_now(walk.manager(), &walk.events).await;
    let left = walk
        .manager()
        .handle(ListSnapshots::from(Some("tank/v".to_owned())))
        .await
        .unwrap()
        .snapshots;
    let left: Vec<&str> = left.iter().map(|snapshot| snapshot.name.as_str()).collect();
    assert_eq!(left, ["tank/v@monday"]);
}
