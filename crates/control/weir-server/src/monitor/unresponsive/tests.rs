//! Tests of the server with frozen disks. The management interface and its client are real; faults
//! are injected in front of real files.
//!
//! Single functions have their own tests next to them.
//!
//! Invariant: every guaranteed time limit is measured at the client.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use weir_api::types::{
    ExportCreate, ExportDelete, Health, ListAllHistory, ListEvents, ListExports, ListFilesystems,
    ListHistory, ListMounts, ListPools, ListSnapshots, ListVolumes, Outcome, PoolAdd, PoolAttach,
    PoolClear, PoolCreate, PoolDestroy, PoolDetach, PoolExport, PoolImport, PoolOffline,
    PoolOnline, PoolReplace, PoolScan, PoolScrub, PropertyValues, Protocol, ScrubAction,
    ShowExport, ShowPool, ShowServer, ShowVolume, SnapshotCreate, VdevKind, VdevRole, VdevSpec,
    VolumeChange, VolumeCreate, VolumeDestroy, VolumePromote, VolumeResize, VolumeSet,
};
use weir_api::{Address, Client, Listener};
use weir_base::limits::LABELS_WAIT;
use weir_device::{DeviceOp, Faults};
use weir_export::Registry;

use super::*;
use crate::access::caller_files::{CallerFiles, NamedDirs};
use crate::access::secrets::Secrets;
use crate::access::tokens::Tokens;
use crate::disks::memory::MemoryPlan;
use crate::disks::open_disks::faulty::faults;
use crate::pools::vdev_calls;
use crate::record::call_record::Record;
use crate::record::events::Events;
use crate::record::history::History;
use crate::state::nfs_shares::NfsShares;
use crate::state::saved_state::StateFile;
use crate::state::scan_file::ScanFile;
use crate::state::seen::SeenFile;
use crate::state::server::Clients;
use crate::state::target_registry::TargetRegistry;

/// Guaranteed maximum response time of every call.
const BOUND: Duration = Duration::from_secs(5);

/// A server in this process, with its management interface.
pub(crate) struct Server {
    dir: tempfile::TempDir,
    pub(crate) manager: Arc<Manager>,
    client: Client,
    serving: tokio::task::JoinHandle<Result<(), weir_api::Error>>,
}

fn start() -> Server {
    start_in(tempfile::tempdir().unwrap())
}

/// Starts a server with its state and its disks in this directory.
pub(crate) fn start_in(dir: tempfile::TempDir) -> Server {
    let registry = Arc::new(Registry::default());
    let nbd = format!("unix:{}", dir.path().join("nbd").display());
    let nbd = weir_net::Address::parse(&nbd, weir_nbd::DEFAULT_PORT).unwrap();
    let nbd = weir_net::Listener::bind(&nbd).unwrap();
    let budget = || weir_net::Budget::new(32 << 20, weir_nbd::limits::OWN_BYTES);
    let budgets = [budget(), budget(), budget()];
    let exports = Arc::<Registry>::clone(&registry);
    let protocol = weir_nbd::Nbd::new(exports, Arc::clone(&budgets[0]));
    let nbd = weir_net::serve(vec![nbd], Arc::new(protocol), 1).unwrap();
    let (state, seen) = (StateFile::load(dir.path()), SeenFile::load(dir.path()));
    let state = (state.unwrap(), seen.unwrap(), ScanFile::load(dir.path()));
    let history = Arc::new(History::load(dir.path()));
    let record = Record { events: Arc::new(Events::new()), history };
    let targets = TargetRegistry::new(Vec::new(), dir.path(), Arc::clone(&record.events));
    let nbd_scheme = "nbd";
    let nfs = NfsShares::new(Arc::new(weir_nfs::Server::new(1)), &[]);
    let iscsi = None;
    let clients = Clients { exports: registry, nbd, nbd_scheme, targets, iscsi, nfs, budgets };
    let tokens = Arc::new(Tokens::load(dir.path(), Arc::clone(&record.events)).unwrap());
    let dirs = Arc::new(NamedDirs::new(&[]).unwrap());
    let files = CallerFiles { dirs, secrets: Secrets::of(dir.path()) };
    let own = (Arc::clone(&tokens), files);
    let memory = MemoryPlan {
        total_bytes: 256 << 20,
        dedupe_bytes: 1 << 20,
        serves_iscsi: false,
        serves_nfs: false,
        serves_nbd_tls: false,
    };
    let manager = Arc::new(Manager::new(memory, state, clients, record, own));
    let api = Address::Unix(dir.path().join("api"));
    let listener = Listener::bind(&api).unwrap();
    let serving = tokio::spawn(weir_api::serve(
        vec![listener],
        Arc::clone(&manager),
        tokens,
        std::future::pending(),
    ));
    Server { dir, manager, client: Client::new(api), serving }
}

fn file(dir: &Path, name: &str) -> PathBuf {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(256 << 20).unwrap();
    path
}

impl Server {
    /// Creates a pool of one mirror with a volume and an export; returns the faults of its disks.
    async fn pool(&self, name: &str) -> [Arc<Faults>; 2] {
        self.pool_of(name, VdevKind::Mirror, ["a", "b"]).await
    }

    /// Creates a pool like [`Self::pool`], with the given layout.
    pub(crate) async fn pool_of<const N: usize>(
        &self,
        name: &str,
        kind: VdevKind,
        legs: [&str; N],
    ) -> [Arc<Faults>; N] {
        let paths = legs.map(|leg| file(self.dir.path(), &format!("{name}-{leg}")));
        let faults = paths.each_ref().map(|path| faults(path));
        let disks = paths.iter().map(|path| path.display().to_string()).collect();
        let vdevs = vec![VdevSpec { kind, role: VdevRole::Data, disks }];
        let (properties, force) = (BTreeMap::new(), false);
        let request = PoolCreate { name: name.into(), vdevs, force, properties };
        self.client.call(request).await.unwrap();
        self.volume(&format!("{name}/v")).await.unwrap();
        let (protocol, volume) = (Protocol::Nbd, format!("{name}/v"));
        let export =
            ExportCreate { protocol, volume, name: None, read_only: false, allow: Vec::new() };
        self.client.call(export).await.unwrap();
        faults
    }

    /// Creates a small volume.
    pub(crate) async fn volume(&self, name: &str) -> Result<VolumeChange, ApiError> {
        let properties = PropertyValues::default();
        let (name, size_bytes, record_bytes) = (name.into(), 1 << 20, 4096);
        let request = VolumeCreate { name, size_bytes, record_bytes, properties };
        self.client.call(request).await
    }
}

/// Returns the response of `call`, which must arrive within [`BOUND`].
async fn timely<T>(
    what: &str,
    call: impl Future<Output = Result<T, ApiError>>,
) -> Result<T, ApiError> {
    let start = Instant::now();
    let answer = tokio::time::timeout(BOUND, call).await;
    answer.unwrap_or_else(|_| panic!("{what}: no answer within {:?}", start.elapsed()))
}

/// Asserts that a call returns, within [`BOUND`], an error about the unresponsive pool.
async fn told<T: std::fmt::Debug>(what: &str, call: impl Future<Output = Result<T, ApiError>>) {
    let error = timely(what, call).await.expect_err(what);
    assert_eq!(error.kind, ErrorKind::Unavailable, "{what}: {error}");
    assert!(error.message.contains("does not answer"), "{what}: {error}");
    assert!(error.action.contains("export --force tank"), "{what}: {}", error.action);
}

#[tokio::test]
async fn calls_answer_while_all_disks_of_a_pool_are_frozen() {
    let server = start();
    let client = &server.client;
    let frozen = server.pool("tank").await;
    server.pool("other").await;
    frozen.iter().for_each(|faults| faults.freeze());

    let resize = VolumeResize { name: "tank/v".into(), size_bytes: 2 << 20 };
    let export = |force| PoolExport { name: "tank".into(), force };
    let (protocol, name) = (Protocol::Nbd, "tank/v".to_owned());
    let delete = ExportDelete { protocol, name: name.clone(), force: true };
    // Two calls need the unresponsive disks of pool tank; one of these calls waits for the other. A
    // call to another pool succeeds meanwhile.
    let ((), (), other) = tokio::join!(
        told("volume create", server.volume("tank/w")),
        told("volume resize", client.call(resize)),
        timely("other", server.volume("other/w")),
    );
    other.unwrap();
    let status = timely("status", client.call(ShowPool { name: "tank".into() })).await.unwrap();
    assert!(status.vdevs[0].disks.iter().all(|disk| disk.slow), "{status:?}");
    assert!(status.status.unwrap().contains("is unresponsive"));
    assert_eq!(timely("list", client.call(ListPools {})).await.unwrap().pools.len(), 2);
    assert_eq!(
        timely("volumes", client.call(ListVolumes { pool: None })).await.unwrap().volumes.len(),
        4
    );
    timely("volume", client.call(ShowVolume { name: "tank/v".into() })).await.unwrap();
    timely("filesystems", client.call(ListFilesystems { pool: None })).await.unwrap();
    assert_eq!(timely("mounts", client.call(ListMounts {})).await.unwrap().mounts, []);
    timely("exports", client.call(ListExports {})).await.unwrap();
    timely("export", client.call(ShowExport { protocol, name })).await.unwrap();
    timely("server", client.call(ShowServer {})).await.unwrap();
    timely("history", client.call(ListHistory { name: "tank".into() })).await.unwrap();
    timely("events", client.call(ListEvents::default())).await.unwrap();
    timely("export delete", client.call(delete)).await.unwrap();
    told("pool export", client.call(export(false))).await;
    let destroy = PoolDestroy { name: "tank".into(), confirm: "tank".into() };
    told("pool destroy", client.call(destroy)).await;

    let gone = timely("forced export", client.call(export(true))).await.unwrap();
    assert_eq!(gone.outcome, Outcome::Removed);
    let names = timely("list", client.call(ListPools {})).await.unwrap().pools;
    assert_eq!(names.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>(), ["other"]);
    timely("other", server.volume("other/x")).await.unwrap();
    let history = client.call(ListHistory { name: "tank".into() }).await.unwrap().entries;
    let all = timely("all history", client.call(ListAllHistory {})).await.unwrap().entries;
    assert!(history.iter().all(|entry| all.contains(entry)));
    // Calls that waited for the pool's lock may end after the forced export, so search the whole
    // history.
    let forced = history.iter().find(|entry| entry.call == "pool export tank --force").unwrap();
    assert_eq!(forced.outcome, "removed");
    assert!(forced.who.contains("uid "), "{}", forced.who);
    assert!(history.iter().any(|entry| entry.error.is_some()), "hung calls are recorded too");

    // No change that the server acknowledged before the disks froze is lost.
    frozen.iter().for_each(|faults| faults.clear());
    let search = vec![server.dir.path().display().to_string()];
    let import = PoolImport { pool: "tank".into(), search, force: false };
    client.call(import).await.unwrap();
    client.call(ShowVolume { name: "tank/v".into() }).await.unwrap();
}

/// Asserts that a call returns success or an error within [`BOUND`].
async fn answered<T>(what: &str, call: impl Future<Output = Result<T, ApiError>>) {
    let start = Instant::now();
    let said = match timely(what, call).await {
        Ok(_) => "done".to_owned(),
        Err(error) => error.to_string(),
    };
    eprintln!("{what}: {:?}: {said}", start.elapsed());
}

#[tokio::test]
async fn concurrent_calls_about_frozen_disks_answer_in_time() {
    let server = start();
    let client = &server.client;
    let frozen = server.pool("tank").await;
    server.volume("tank/idle").await.unwrap();
    frozen.iter().for_each(|faults| faults.freeze());

    let spare = file(server.dir.path(), "spare").display().to_string();
    let search = vec![server.dir.path().display().to_string()];
    let name = || "tank".to_owned();
    let offline = || PoolOffline { name: name(), disk: "tank-a".into() };
    let detach = PoolDetach { name: name(), disk: "tank-a".into() };
    let online = || PoolOnline { name: name(), disk: "tank-a".into(), at: None, force: false };
    let scrub = |action| client.call(PoolScrub { name: name(), action });
    let (force, at_once) = (false, false);
    let attach = PoolAttach { name: name(), disk: "tank-a".into(), new: spare.clone(), force };
    let (new, old) = (Some(spare.clone()), "tank-a".into());
    let replace = PoolReplace { name: name(), disk: old, new, force, at_once };
    let properties = PropertyValues::default();
    let set = VolumeSet { name: "tank/v".into(), properties };
    let idle = || VolumeDestroy { name: "tank/idle".into(), recursive: false };
    let take = SnapshotCreate { names: vec!["tank/idle@a".into()], recursive: false };
    let (protocol, volume) = (Protocol::Nbd, "tank/idle".to_owned());
    let offer = ExportCreate { protocol, volume, name: None, read_only: false, allow: Vec::new() };
    let import = PoolImport { pool: name(), search: search.clone(), force };
    let care = async {
        tokio::join!(
            answered("scrub", scrub(ScrubAction::Start)),
            answered("scrub pause", scrub(ScrubAction::Pause)),
            answered("scrub stop", scrub(ScrubAction::Stop)),
            answered("offline", client.call(offline())),
            answered("online", client.call(online())),
            answered("clear", client.call(PoolClear { name: name(), disk: None, lost: true })),
            answered("attach", client.call(attach)),
            answered("replace", client.call(replace)),
            answered("detach", client.call(detach)),
        )
    };
    let rest = async {
        tokio::join!(
            answered("volume set", client.call(set)),
            answered("volume destroy", client.call(idle())),
            answered("snapshot create", client.call(take)),
            answered("snapshot list", client.call(ListSnapshots::default())),
            answered("volume promote", client.call(VolumePromote { name: "tank/idle".into() })),
            answered("export create", client.call(offer)),
            answered("scan", client.call(PoolScan { search })),
            answered("import", client.call(import)),
        )
    };
    tokio::join!(care, rest);
    // Then make calls one at a time, while the first calls wait for the disks.
    answered("scrub", scrub(ScrubAction::Start)).await;
    answered("offline", client.call(offline())).await;
    answered("clear", client.call(PoolClear { name: name(), disk: None, lost: true })).await;

    let export = PoolExport { name: name(), force: true };
    let gone = timely("forced export", client.call(export)).await.unwrap();
    assert_eq!(gone.outcome, Outcome::Removed);
    // A search for pools may still wait for a disk of the suspended pool; the search ends with the
    // test.
    frozen.iter().for_each(|faults| faults.clear());
}

#[tokio::test]
async fn pool_create_answers_while_a_measured_disk_is_frozen() {
    let server = start();
    let path = file(server.dir.path(), "cold");
    let faults = faults(&path);
    faults.freeze();
    let vdevs = vec![VdevSpec {
        kind: VdevKind::Disk,
        role: VdevRole::Data,
        disks: vec![path.display().to_string()],
    }];
    // `force` skips other checks, so that the flush measurement is the first access to the disk.
    let (name, force, properties) = ("cold".to_owned(), true, BTreeMap::new());
    let request = PoolCreate { name, vdevs, force, properties };
    let create = || server.client.call(request.clone());
    let error = timely("create", create()).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable, "{error}");
    assert!(error.message.contains("have not answered"), "{error}");
    let start_of_disk = || std::fs::read(&path).unwrap()[..2 << 20].to_vec();
    assert!(start_of_disk().iter().all(|byte| *byte == 0), "written to a frozen disk");

    // The call continues and creates the pool when the disk responds again.
    faults.clear();
    let made = tokio::time::timeout(BOUND, create()).await.unwrap().unwrap();
    assert_eq!(made.outcome(), Outcome::Unchanged);
    let history = server.client.call(ListHistory { name: "cold".into() }).await.unwrap().entries;
    assert!(history.iter().any(|entry| entry.outcome == "created"), "{history:?}");
}

#[tokio::test]
async fn pool_create_fails_if_a_flush_fails() {
    let server = start();
    let path = file(server.dir.path(), "bad");
    faults(&path).fail(DeviceOp::Flush);
    let vdevs = vec![VdevSpec {
        kind: VdevKind::Disk,
        role: VdevRole::Data,
        disks: vec![path.display().to_string()],
    }];
    let (name, force, properties) = ("bad".to_owned(), false, BTreeMap::new());
    let request = PoolCreate { name, vdevs, force, properties };
    let error = timely("create", server.client.call(request)).await.unwrap_err();
    assert!(error.message.contains("flush failed"), "{error}");
    let label = &std::fs::read(&path).unwrap()[..1 << 20];
    assert!(label.iter().all(|byte| *byte == 0), "a label was written");
}

#[tokio::test]
async fn mirror_continues_without_an_unresponsive_leg() {
    let server = start();
    let [first, _] = server.pool("half").await;
    first.freeze();
    let volume = server.volume("half/w");
    let fail_io = async {
        let limit = Duration::from_millis(2500);
        loop {
            tokio::time::sleep(POLL_INTERVAL).await;
            let gone = server.manager.fail_unresponsive_legs(limit);
            if !gone.is_empty() {
                return gone;
            }
        }
    };
    let (made, gone) = tokio::join!(timely("volume create", volume), fail_io);
    made.unwrap();
    assert!(gone[0].1.ends_with("half-a"), "{gone:?}");
    let status = server.client.call(ShowPool { name: "half".into() }).await.unwrap();
    let states: Vec<_> = status.vdevs[0].disks.iter().map(|disk| disk.state).collect();
    assert_eq!(states, [Health::Faulted, Health::Online]);
}

/// Reads the first `len` bytes of a volume on its pool's thread, within [`BOUND`].
async fn read(server: &Server, pool: &str, volume: &str, len: usize) -> Vec<u8> {
    let (open, volume) = (server.manager.pool(pool).unwrap(), volume.to_owned());
    let read = open.call(move |engine| async move {
        let mut out = vec![0; len];
        engine.volume(&volume)?.read(0, &mut out).await?;
        Ok(out)
    });
    tokio::time::timeout(BOUND, read).await.expect("a read hangs").unwrap()
}

#[tokio::test]
async fn raidz_reads_around_as_many_frozen_disks_as_its_parity() {
    const LEN: usize = 1 << 20;
    let server = start();
    let frozen = server.pool_of("wide", VdevKind::Raidz2, ["a", "b", "c", "d", "e"]).await;
    let content: Vec<u8> = (0..LEN).map(|at| (at / 4096 * 7 + at * 31 % 251) as u8).collect();
    let written = content.clone();
    let open = server.manager.pool("wide").unwrap();
    let write = open.call(move |engine| async move {
        engine.volume("v")?.write(0, &written).await?;
        engine.sync().await
    });
    write.await.unwrap();
    drop(open);
    // The pool is exported and imported, so that no block is cached in memory.
    let (name, force) = ("wide".to_owned(), false);
    let (protocol, volume) = (Protocol::Nbd, "wide/v".into());
    server.client.call(ExportDelete { protocol, name: volume, force: true }).await.unwrap();
    server.client.call(PoolExport { name: name.clone(), force }).await.unwrap();
    let search = vec![server.dir.path().display().to_string()];
    server.client.call(PoolImport { pool: name.clone(), search, force }).await.unwrap();

    frozen[1].freeze();
    frozen[2].freeze();
    assert!(read(&server, "wide", "v", LEN).await == content, "other bytes");
    let status = server.client.call(ShowPool { name: name.clone() }).await.unwrap();
    let slow: Vec<bool> = status.vdevs[0].disks.iter().map(|disk| disk.slow).collect();
    assert_eq!(slow, [false, true, true, false, false], "{status:?}");
    let disks = &status.vdevs[0].disks;
    assert!(disks.iter().all(|disk| disk.errors.checksum + disk.errors.read == 0));

    frozen.iter().for_each(|faults| faults.clear());
    timely("volume create", server.volume("wide/w")).await.unwrap();
}

#[tokio::test]
async fn server_stops_with_a_frozen_pool() {
    let server = start();
    let frozen = server.pool("stuck").await;
    frozen.iter().for_each(|faults| faults.freeze());
    server.volume("stuck/w").await.unwrap_err();
    let start = Instant::now();
    tokio::select! {
        done = server.manager.shut_down() => {
            done.unwrap_err();
        }
        () = server.manager.end_of_patience() => panic!("the pool was not let go of"),
    }
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

// Regression: the grace period began at the first suspended pool and took 8 s, so a server could
// need 18 s to exit.
#[test]
fn stopping_server_exits_within_its_time_limit() {
    for silent_from in (0..12_000).step_by(100).map(Duration::from_millis) {
        let mut suspended = None;
        let mut elapsed = Duration::ZERO;
        while !must_exit(elapsed, suspended) {
            elapsed += POLL_INTERVAL;
            let silent = elapsed.saturating_sub(silent_from);
            if silence_limit(elapsed).is_some_and(|limit| silent >= limit) {
                suspended.get_or_insert(elapsed);
            }
            let bound = Duration::from_secs(10).max(silent_from + Duration::from_secs(4));
            assert!(elapsed <= bound, "silent from {silent_from:?}, suspended {suspended:?}");
        }
        assert!(elapsed >= suspended.unwrap() + END_GRACE);
    }
}

// Regression: a closing pool was suspended after 2 s without I/O. Disks that are busy with other
// work need longer.
#[tokio::test]
async fn closing_pool_waits_for_disks_that_answer_after_three_seconds() {
    let server = start();
    let frozen = server.pool("busy").await;
    frozen.iter().for_each(|faults| faults.freeze());
    let answers = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        frozen.iter().for_each(|faults| faults.clear());
    };
    let (closed, ()) = tokio::join!(server.manager.shut_down(), answers);
    closed.unwrap();
}

#[tokio::test]
async fn server_starts_with_a_frozen_pool() {
    let server = start();
    let frozen = server.pool("late").await;
    server.pool("fine").await;
    server.manager.shut_down().await.unwrap();
    let Server { dir, manager, serving, .. } = server;
    serving.abort();
    serving.await.unwrap_err();
    drop(manager);
    frozen.iter().for_each(|faults| faults.freeze());

    let server = start_in(dir);
    let start = Instant::now();
    server.manager.reopen_pools().await;
    assert!(start.elapsed() < Duration::from_secs(6), "{:?}", start.elapsed());
    let late = server.client.call(ShowPool { name: "late".into() }).await.unwrap();
    assert_eq!(late.state, Health::Unavailable);
    timely("other pool", server.volume("fine/w")).await.unwrap();

    // The pool opens when its disks respond again.
    frozen.iter().for_each(|faults| faults.clear());
    let opened = async {
        while server.volume("late/w").await.is_err() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(BOUND, opened).await.unwrap();
    assert_eq!(server.client.call(ListExports {}).await.unwrap().exports.len(), 2);
}

// Regression: a leg that hung delayed the opening of its pool until its labels were read, although
// the other leg had all data.
#[tokio::test]
async fn mirror_opens_without_a_frozen_leg_and_adds_it_later() {
    let server = start();
    let [first, _] = server.pool("part").await;
    server.manager.shut_down().await.unwrap();
    let Server { dir, manager, serving, .. } = server;
    serving.abort();
    serving.await.unwrap_err();
    drop(manager);
    first.freeze();

    let server = start_in(dir);
    server.manager.reopen_pools().await;
    let opened = async {
        while server.volume("part/w").await.is_err() {
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(3 * LABELS_WAIT, opened).await.unwrap();
    let status = server.client.call(ShowPool { name: "part".into() }).await.unwrap();
    let states: Vec<_> = status.vdevs[0].disks.iter().map(|disk| disk.state).collect();
    assert_eq!(states, [Health::Unavailable, Health::Online]);

    first.clear();
    let whole = async {
        loop {
            let status = server.client.call(ShowPool { name: "part".into() }).await.unwrap();
            if status.state == Health::Online {
                break;
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    };
    tokio::time::timeout(8 * BOUND, whole).await.unwrap();
}

#[tokio::test]
async fn spare_replaces_a_failed_disk() {
    let server = start();
    let client = &server.client;
    let faults = server.pool("tank").await;
    let events = Arc::clone(&server.manager.record.events);
    let spares = tokio::spawn(vdev_calls::look_after(Arc::clone(&server.manager), events));
    let disks = vec![file(server.dir.path(), "spare").display().to_string()];
    let vdevs = vec![VdevSpec { kind: VdevKind::Disk, role: VdevRole::Spare, disks }];
    let request = PoolAdd { name: "tank".into(), vdevs, force: false };
    client.call(request).await.unwrap();
    faults[1].fail(DeviceOp::Write);
    server.volume("tank/w").await.unwrap();
    let deadline = Instant::now() + 6 * BOUND;
    loop {
        let status = client.call(ShowPool { name: "tank".into() }).await.unwrap();
        let names = status.vdevs[0].disks.iter().map(|disk| disk.path.as_str());
        if status.state == Health::Online && names.clone().any(|name| name.ends_with("spare")) {
            assert_eq!((status.vdevs.len(), names.len()), (1, 2), "{status:?}");
            break;
        }
        assert!(Instant::now() < deadline, "{status:?}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let told = client.call(ListEvents { after: 0, wait_ms: 0 }).await.unwrap();
    assert!(told.events.iter().any(|event| event.kind == "spare_used"), "{told:?}");
    spares.abort();
}
