//! Filesystems under power cuts: several clients change few names, and the power fails at random
//! steps. Each recovered pool must be in a state that the crash promise allows.
//!
//! `recovery` has the checks.
//!
//! Invariant: the clients never see a fault that the mirror hides.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weir_dataset::Engine;
use weir_fs::{FsError, ROOT};
use weir_pool::PlantedBug;

use super::access::Access;
use super::client::Client;
use super::content::{Keys, inode_of};
use super::damage::Damaged;
use super::expected::{Expected, NAMES};
use super::operator::Operator;
use super::recovery::Recovery;
use super::scenario::FilesScenario;
use crate::cut::CutPlan;
use crate::executor::JoinHandle;
use crate::media::MediaImage;
use crate::rng::Rng;
use crate::world::SimWorld;

const CLIENTS: u64 = 3;
const STEPS: usize = 300;
/// Number of steps of a client that writes 1 MiB at a time.
const LARGE_STEPS: usize = 60;
/// Number of calls of the operator.
const OPERATOR_STEPS: usize = 25;
/// Pause of a client of the clone between two operations.
const STEP_PAUSE: Duration = Duration::from_millis(1);
/// Pause of a client while the filesystem is closed.
const CLOSED_PAUSE: Duration = Duration::from_millis(10);
/// Probability, as one divided by this number, that a recovery runs the checks of all trees.
const WALKS_ONE_IN: u64 = 8;

/// Probability, as one divided by this number, that a recovered pool is damaged on both legs.
const DAMAGES_ONE_IN: u64 = 12;

/// Numbers of power cuts of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCuts {
    /// Number of power cuts, each with a recovery.
    pub cuts: usize,
    /// Number of cuts that lost changes.
    pub lost: usize,
    /// Number of snapshots that recoveries compared.
    pub snapshots: usize,
    /// Number of recoveries with a clone.
    pub clones: usize,
    /// Number of recoveries after a rollback that was not acknowledged.
    pub rolled_back: usize,
    /// Number of recoveries with a replica.
    pub replicas: usize,
    /// Number of recoveries that resumed a stream.
    pub resumed: usize,
    /// Number of recoveries after which a record was damaged on both legs.
    pub damaged: usize,
}

impl FileCuts {
    /// Adds the numbers of another run.
    pub fn add(&mut self, other: Self) {
        self.cuts += other.cuts;
        self.lost += other.lost;
        self.snapshots += other.snapshots;
        self.clones += other.clones;
        self.rolled_back += other.rolled_back;
        self.replicas += other.replicas;
        self.resumed += other.resumed;
        self.damaged += other.damaged;
    }
}

type Cuts = Rc<RefCell<Vec<(Expected, Vec<MediaImage>)>>>;

/// Runs clients on a filesystem, cuts the power at random steps, and checks each recovered
/// filesystem.
///
/// # Errors
/// The first violation of the crash promise.
pub fn cut_files(seed: u64, bug: PlantedBug) -> Result<FileCuts, String> {
    run_files(FilesScenario::new(seed, bug))
}

/// Runs a scenario, and checks the pool that is recovered from each power cut.
///
/// # Errors
/// The first violation.
pub fn run_files(scenario: FilesScenario) -> Result<FileCuts, String> {
    let world = scenario.new_world();
    let cuts = Cuts::default();
    let ran = world.run_until(run_clients(&world, scenario, Rc::clone(&cuts)));
    let ran = ran.map_err(|error| error.to_string()).and_then(|done| done);
    ran.map_err(|what| format!("{scenario:?}: {what}"))?;
    world.crash();
    let mut counted = FileCuts::default();
    for (expected, images) in cuts.take() {
        let at = counted.cuts;
        let done = recover(scenario, at as u64, &expected, images);
        counted.add(done.map_err(|what| format!("{scenario:?}, cut {at}: {what}"))?);
    }
    Ok(counted)
}

/// Recovers the pool from a power cut, and checks it.
fn recover(
    scenario: FilesScenario,
    at: u64,
    expected: &Expected,
    images: Vec<MediaImage>,
) -> Result<FileCuts, String> {
    let world = SimWorld::from_media(scenario.seed, images);
    scenario.start_read_fault(&world);
    let mut rng = Rng::new(scenario.seed).stream("recovery", at);
    let checks_all = rng.below(WALKS_ONE_IN) == 0;
    let recovered = world.run_until(async {
        let engine = scenario.recover(&world).await.map_err(|error| error.to_string())?;
        let recovery = Recovery { world: &world, engine, expected, checks_all };
        let recovered = recovery.judge().await?;
        // Changes in the first txg after the import, before any commit.
        let changes_first = rng.coin();
        if changes_first {
            recovery.change_all(&recovered).await?;
        }
        let damages = scenario.fault.is_none() && rng.below(DAMAGES_ONE_IN) == 0;
        let damages = damages && !changes_first;
        let damaged = if damages {
            Damaged::of(&world, &recovery.engine, &recovered, &mut rng).await?
        } else {
            None
        };
        let resumed = recovery.resume(&recovered, rng.stream("resume", 0)).await?;
        let counted = FileCuts {
            cuts: 1,
            lost: usize::from(recovered.has_lost),
            snapshots: recovered.snapshots,
            clones: recovered.files.len() - 1,
            rolled_back: recovered.rolled_back,
            replicas: usize::from(recovered.replica.is_some()),
            resumed: usize::from(resumed),
            damaged: usize::from(damaged.is_some()),
        };
        recovery.check_structures(&recovered).await?;
        if !changes_first {
            recovery.change_all(&recovered).await?;
        }
        recovery.free_removed(&recovered).await?;
        Ok((counted, damaged))
    });
    world.crash();
    let recovered = recovered.map_err(|error| error.to_string()).and_then(|done| done);
    let (counted, damaged) = recovered?;
    damaged.map_or(Ok(()), |damaged| damaged.judge(scenario))?;
    Ok(counted)
}

/// The tasks of a run share these.
struct Shared {
    scenario: FilesScenario,
    engine: Arc<Engine>,
    expected: Rc<RefCell<Expected>>,
    accesses: [Rc<Access>; 2],
    /// True once all clients are done.
    is_done: Rc<Cell<bool>>,
}

async fn run_clients(world: &SimWorld, scenario: FilesScenario, cuts: Cuts) -> Result<(), String> {
    let told = |error: FsError| error.to_string();
    let (engine, files) = scenario.create(world, NAMES[0]).await.map_err(told)?;
    let root = inode_of(&files.attributes(ROOT).await.map_err(told)?);
    let shared = Shared {
        scenario,
        engine,
        expected: Rc::new(RefCell::new(Expected::new(root, scenario.folds))),
        accesses: <[Rc<Access>; 2]>::default(),
        is_done: Rc::default(),
    };
    shared.accesses[0].open(files);
    let (timer, committer) = (world.executor().clone(), Arc::clone(&shared.engine));
    let committer = async move { committer.run(|time| timer.sleep(time)).await };
    let committer = world.executor().spawn("committer", committer);
    let background = shared.spawn_background(world);
    shared.cut_at_steps(world, cuts);
    scenario.start_fault(world);
    let mut working: Vec<_> =
        (0..CLIENTS).map(|number| shared.spawn_client(world, number)).collect();
    if scenario.has_operator {
        working.push(shared.spawn_operator(world));
    }
    let of_copy = scenario.has_operator.then(|| shared.spawn_client_of_copy(world));
    for task in working {
        task.await?;
    }
    shared.is_done.set(true);
    if let Some(of_copy) = of_copy {
        of_copy.await?;
    }
    background.await.map_err(told)?;
    shared.engine.stop();
    committer.await.map_err(|error| error.to_string())
}

impl Shared {
    fn cut_at_steps(&self, world: &SimWorld, cuts: Cuts) {
        let (seed, state) = (self.scenario.seed, Rc::clone(&self.expected));
        let one_in = self.scenario.cuts_one_in;
        world.on_step(move |cut| {
            let mut rng = Rng::new(seed).stream("cut", cut.steps);
            if rng.below(one_in) == 0 {
                let plan = if rng.coin() { CutPlan::Nothing } else { CutPlan::Random(cut.steps) };
                cuts.borrow_mut().push((state.borrow().clone(), cut.cut(plan)));
            }
        });
    }

    fn client(&self, number: u64, index: usize) -> Client {
        Client {
            rng: Rng::new(self.scenario.seed).stream("files", number),
            engine: Arc::clone(&self.engine),
            access: Rc::clone(&self.accesses[index]),
            expected: Rc::clone(&self.expected),
            index,
            is_large: self.scenario.is_large && number == 0,
            keys: Keys::new(),
        }
    }

    /// Spawns a client that changes the clone, while there is one, until the others are done.
    fn spawn_client_of_copy(&self, world: &SimWorld) -> JoinHandle<Result<(), String>> {
        let (executor, is_done) = (world.executor().clone(), Rc::clone(&self.is_done));
        let mut client = self.client(CLIENTS, 1);
        world.executor().spawn("client of the clone", async move {
            while !is_done.get() {
                let pause = if client.step().await? { STEP_PAUSE } else { CLOSED_PAUSE };
                executor.sleep(pause).await;
            }
            Ok(())
        })
    }

    fn spawn_client(&self, world: &SimWorld, number: u64) -> JoinHandle<Result<(), String>> {
        let executor = world.executor().clone();
        let steps = if self.scenario.is_large { LARGE_STEPS } else { STEPS };
        let mut client = self.client(number, 0);
        world.executor().spawn(format!("client {number}"), async move {
            for _ in 0..steps {
                while !client.step().await? {
                    executor.sleep(CLOSED_PAUSE).await;
                }
                executor.yield_now().await;
            }
            Ok(())
        })
    }

    fn spawn_operator(&self, world: &SimWorld) -> JoinHandle<Result<(), String>> {
        let executor = world.executor().clone();
        let mut operator = Operator {
            rng: Rng::new(self.scenario.seed).stream("operator", 0),
            engine: Arc::clone(&self.engine),
            executor: executor.clone(),
            expected: Rc::clone(&self.expected),
            accesses: self.accesses.clone(),
            taken: 0,
        };
        world.executor().spawn("operator", async move {
            for _ in 0..OPERATOR_STEPS {
                operator.step().await?;
                executor.yield_now().await;
            }
            Ok(())
        })
    }

    /// Frees the removed files until all clients are done.
    fn spawn_background(&self, world: &SimWorld) -> JoinHandle<Result<(), FsError>> {
        let (accesses, is_done) = (self.accesses.clone(), Rc::clone(&self.is_done));
        let timer = world.executor().clone();
        world.executor().spawn("background", async move {
            while !is_done.get() {
                for permit in accesses.iter().filter_map(Access::enter) {
                    permit.files.free_removed().await?;
                }
                timer.sleep(Duration::from_millis(20)).await;
            }
            Ok(())
        })
    }
}
