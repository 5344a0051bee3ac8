//! A run with NFS clients: the server starts, crashes and starts again, until the clients have
//! finished.
//!
//! `recovery` checks the pool after each crash.
//!
//! Invariants:
//! - after each crash the filesystem keeps the crash promise, with all acknowledged changes;
//! - the last crash comes when the clients have committed all writes, and loses none of them.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_dataset::{Engine, SnapshotId};
use weir_fs::{Filesystem, FsError, ROOT, SetAttributes};

use super::cache::Cache;
use super::client::Program;
use super::host::{Host, handles_of};
use super::machine::PROGRAMS;
use super::op::DIRECTORY_MODE;
use super::scenario::{NfsCounts, NfsScenario};
use super::site::Site;
use crate::cut::CutPlan;
use crate::error::SimError;
use crate::executor::JoinHandle;
use crate::files::content::inode_of;
use crate::files::expected::{Cut, Expected, NAMES, Snapshot};
use crate::files::operator::Operator;
use crate::files::pool::read_snapshot;
use crate::files::recovery::{Recovered, Recovery};
use crate::history::Presence;
use crate::media::MediaImage;
use crate::rng::Rng;
use crate::world::SimWorld;

/// Maximum number of device steps between the start of the server and its crash.
const STEPS_MAX: u64 = 1_500;
/// Number of calls of the operator between a start and a crash.
const OPERATOR_STEPS: usize = 8;
/// Maximum pause between two calls of the operator, in milliseconds.
const OPERATOR_PAUSE_MS: u64 = 40;
/// Interval of the background freeing.
const BACKGROUND_PAUSE: Duration = Duration::from_millis(20);
/// Interval between two checks of the copies that are still on their way.
const IN_FLIGHT_PAUSE: Duration = Duration::from_secs(1);
/// Probability, as one divided by this number, that a recovery runs the checks of all trees.
const WALKS_ONE_IN: u64 = 6;

/// Runs a scenario.
///
/// # Errors
/// The first violation.
pub fn run_nfs(scenario: NfsScenario) -> Result<NfsCounts, String> {
    let mut world = scenario.files().new_world();
    let created = world.run_until(create(&world, scenario));
    let created = created.map_err(|error| error.to_string()).and_then(|done| done);
    let (site, mut opened) = created.map_err(|what| format!("{scenario:?}: {what}"))?;
    let mut rng = Rng::new(scenario.seed).stream("NFS crashes", 0);
    for life in 0.. {
        let failed = |what: String| format!("{scenario:?}, start {life}: {what}");
        let may_crash = life < scenario.crashes;
        let crashed = run_life(&world, &site, opened, (life, may_crash), &mut rng);
        let Crashed { images, is_done } = crashed.map_err(failed)?;
        world.crash();
        world = SimWorld::from_media(rng.next_u64(), images);
        scenario.files().start_read_fault(&world);
        let checks_all = is_done || rng.below(WALKS_ONE_IN) == 0;
        let recovered = world.run_until(recover(&world, &site, (checks_all, is_done)));
        let recovered = recovered.map_err(|error| error.to_string()).and_then(|done| done);
        opened = recovered.map_err(failed)?;
        if is_done {
            break;
        }
    }
    drop(opened);
    world.crash();
    Ok(site.state(|state| state.counts))
}

/// An open filesystem.
type Opened = (Arc<Engine>, Filesystem);

/// Disks after a crash.
struct Crashed {
    images: Vec<MediaImage>,
    /// True if the clients have finished.
    is_done: bool,
}

async fn create(world: &SimWorld, scenario: NfsScenario) -> Result<(Rc<Site>, Opened), String> {
    let told = |error: FsError| error.to_string();
    let (engine, files) = scenario.files().create(world, NAMES[0]).await.map_err(told)?;
    let permissions = Some(DIRECTORY_MODE);
    let changes = SetAttributes { permissions, ..SetAttributes::default() };
    let root = files.set_attributes(ROOT, &changes, false).await.map_err(told)?;
    engine.commit().await.map_err(|error| error.to_string())?;
    let root = inode_of(&root);
    let expected = Expected::new(root, false);
    let site = Site::new(scenario, expected, handles_of(&files, root));
    Ok((Rc::new(site), (engine, files)))
}

/// Runs the server until the clients have finished, or to a crash.
fn run_life(
    world: &SimWorld,
    site: &Rc<Site>,
    (engine, files): Opened,
    (life, may_crash): (u64, bool),
    rng: &mut Rng,
) -> Result<Crashed, String> {
    let host = Host::start(site, world.executor(), &engine, rng.next_u64());
    host.access.open(files);
    if may_crash {
        // Short and long times are equally probable.
        let steps = rng.below(STEPS_MAX) >> rng.below(5);
        world.crash_after(world.step_count() + steps);
    }
    site.scenario.files().start_fault(world);
    let ran = world.run_until(run_tasks(world, &host, life));
    drop(host);
    let plan = match ran {
        Ok(done) => {
            done?;
            // Only durable changes survive.
            return Ok(Crashed { images: world.cut(CutPlan::Nothing), is_done: true });
        }
        Err(SimError::Crashed { step }) => {
            if let Some(what) = site.violation() {
                return Err(what);
            }
            if rng.coin() { CutPlan::Nothing } else { CutPlan::Random(step) }
        }
        Err(error) => return Err(error.to_string()),
    };
    Ok(Crashed { images: world.cut(plan), is_done: false })
}

async fn run_tasks(world: &SimWorld, host: &Rc<Host>, life: u64) -> Result<(), String> {
    let (timer, committer) = (world.executor().clone(), Arc::clone(&host.engine));
    let committer = async move { committer.run(|time| timer.sleep(time)).await };
    let committer = world.executor().spawn("committer", committer);
    let is_done = Rc::<Cell<bool>>::default();
    let background = spawn_background(host, &is_done);
    let operator = host.site.scenario.has_operator.then(|| spawn_operator(host, life));
    let machines = host.site.state(|state| state.machines.len());
    let mut programs = Vec::new();
    for (machine, index) in
        (0..machines).flat_map(|machine| (0..PROGRAMS).map(move |n| (machine, n)))
    {
        let number = life * 100 + (machine * PROGRAMS + index) as u64;
        let rng = Rng::new(host.site.scenario.seed).stream("NFS program", number);
        let program = Program { host: Rc::clone(host), machine, index, rng };
        let name = format!("program {index} of machine {machine}");
        programs.push(host.executor.spawn(name, program.run()));
    }
    for program in programs {
        program.await?;
    }
    if let Some(operator) = operator {
        operator.await?;
    }
    while host.in_flight.get() > 0 {
        host.executor.sleep(IN_FLIGHT_PAUSE).await;
    }
    is_done.set(true);
    background.await.map_err(|error| error.to_string())?;
    host.engine.stop();
    committer.await.map_err(|error| error.to_string())?;
    host.site.violation().map_or(Ok(()), Err)
}

/// Frees removed files.
fn spawn_background(host: &Rc<Host>, is_done: &Rc<Cell<bool>>) -> JoinHandle<Result<(), FsError>> {
    let (access, is_done) = (Rc::clone(&host.access), Rc::clone(is_done));
    let timer = host.executor.clone();
    host.executor.spawn("background", async move {
        while !is_done.get() {
            if let Some(permit) = access.enter() {
                permit.files.free_removed().await?;
            }
            timer.sleep(BACKGROUND_PAUSE).await;
        }
        Ok(())
    })
}

/// Takes snapshots, rolls the filesystem back, and commits.
fn spawn_operator(host: &Rc<Host>, life: u64) -> JoinHandle<Result<(), String>> {
    let (host, site) = (Rc::clone(host), Rc::clone(&host.site));
    let rng = Rng::new(site.scenario.seed).stream("NFS operator", life);
    let mut operator = Operator {
        rng,
        engine: Arc::clone(&host.engine),
        executor: host.executor.clone(),
        expected: Rc::clone(&site.expected),
        accesses: [Rc::clone(&host.access), Rc::default()],
        // The names of the snapshots of this start.
        taken: life * 1_000,
    };
    let executor = host.executor.clone();
    executor.clone().spawn("operator", async move {
        for _ in 0..OPERATOR_STEPS {
            let pause = operator.rng.below(OPERATOR_PAUSE_MS);
            executor.sleep(Duration::from_millis(pause)).await;
            match operator.rng.below(4) {
                0 => operator.take(0).await?,
                1 => operator.roll_back().await?,
                _ => {
                    let seq = site.book(|book| book.seq());
                    host.engine.commit().await.map_err(|error| error.to_string())?;
                    site.book(|book| book.set_durable(seq));
                }
            }
        }
        Ok(())
    })
}

/// Imports the pool after a crash, compares it with the model, and replaces the state of the model.
async fn recover(
    world: &SimWorld,
    site: &Site,
    (checks_all, is_done): (bool, bool),
) -> Result<Opened, String> {
    let engine = site.scenario.files().recover(world).await.map_err(|error| error.to_string())?;
    let expected = site.expected.borrow().clone();
    let recovery = Recovery { world, engine: Arc::clone(&engine), expected: &expected, checks_all };
    let recovered = recovery.judge().await?;
    if checks_all {
        recovery.check_structures(&recovered).await?;
    }
    if is_done {
        recovery.change_all(&recovered).await?;
        recovery.free_removed(&recovered).await?;
    }
    let snapshots = snapshots_of(&engine, &expected).await?;
    restart(site, &recovered, snapshots);
    let (_, files, _) = recovered.files.into_iter().next().ok_or("the filesystem is gone")?;
    Ok((engine, files))
}

/// The snapshots that a crash left, with their content.
async fn snapshots_of(engine: &Arc<Engine>, expected: &Expected) -> Result<Vec<Snapshot>, String> {
    let names = engine.snapshot_names(NAMES[0]).map_err(|error| error.to_string())?;
    let mut left = Vec::new();
    let there = expected.snapshots.iter().filter(|book| book.presence != Presence::Gone);
    for book in there.filter(|book| names.contains(&book.name)) {
        let id = SnapshotId::new(NAMES[0], &book.name);
        let cut = match &book.cut {
            Cut::Known(state) => Cut::Known(Rc::clone(state)),
            Cut::After(_) => Cut::Known(Rc::new(read_snapshot(engine, &id, false).await?)),
        };
        left.push(Snapshot { presence: Presence::There, cut, ..book.clone() });
    }
    Ok(left)
}

/// Continues with the state that a crash left. The server forgot all replies.
fn restart(site: &Site, recovered: &Recovered, snapshots: Vec<Snapshot>) {
    let Some((_, _, state)) = recovered.files.first() else { return };
    let mut survived = site.book(|book| book.recover(state));
    if recovered.rolled_back > 0 {
        survived.clear();
    }
    {
        let mut expected = site.expected.borrow_mut();
        expected.datasets[0].rolling = None;
        expected.snapshots = snapshots;
    }
    site.state(|state| {
        state.cache = Cache::default();
        for call in &mut state.calls {
            call.ran_before |= !call.runs.is_empty();
            call.runs.clear();
        }
        let counts = &mut state.counts;
        counts.crashes += 1;
        counts.lost += usize::from(recovered.has_lost);
        for machine in &mut state.machines {
            counts.lost_writes += machine.crash(&survived);
        }
    });
}
