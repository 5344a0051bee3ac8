//! Scenario: a pool on simulated disks with concurrent clients, an administrator and an operator,
//! and faults on as many legs of the first vdev as its redundancy covers, or on the only disk.
//!
//! `client`, `admin` and `operator` hold the actors, `enumerate` cuts the power, `check` verifies
//! recoveries.
//!
//! Invariants:
//! - the injected faults never exceed the redundancy, so every client error other than "no space"
//!   is an engine bug;
//! - every random choice comes from the scenario's seed.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use weir_base::RecordSize;
use weir_base::property::{COMPRESSION, DEDUPE};
use weir_base::{BLOCK_BYTES, Guid};
use weir_dataset::{Engine, EngineOptions, PropertyChange, VolumeSize};
use weir_format::layout::LABEL_BYTES;
use weir_format::{Compression, VdevKind, VdevRole};
use weir_pool::{CreateOptions, PlantedBug, VdevSpec};

use crate::admin::Admin;
use crate::client::Client;
use crate::coverage::{CoveragePoint, note};
use crate::cut::CutPlan;
use crate::error::Stop;
use crate::executor::JoinHandle;
use crate::expected::{ExpectedState, LARGE_RECORD, VOLUMES};
use crate::fault::{Budget, Fault};
use crate::media::{DiskOptions, MediaImage};
use crate::objects::actor::ObjectsActor;
use crate::objects::book::ObjectsBook;
use crate::operator::Operator;
use crate::rng::Rng;
use crate::world::SimWorld;

const STRIP_BYTES: u32 = 4096;
/// Number of names under which the administrator creates and destroys volumes.
const MORE_VOLUMES: usize = 8;
const CLIENTS: u64 = 3;
/// Number of spare disks, in addition to the disks of the new pool.
const MORE_DISKS: usize = 2;
/// In scenarios with vdev changes, clients continue until the operator has finished, for at most
/// this multiple of their normal number of steps.
const LOAD_LASTS_MAX: u64 = 3;
/// Probability, as one divided by this number, that a scenario contains a storm (see [`Scenario`]).
/// A storm takes as long as ten other scenarios.
const STORM_ONE_IN: u64 = 24;
/// Probability, as one divided by this number, that a scenario uses datasets with many objects.
const OBJECTS_ONE_IN: u64 = 3;
/// Number of tasks that use datasets with many objects: one for operations, one for replication,
/// the others for syncs.
const OBJECT_TASKS: usize = 6;
/// Objects that operations use: several in one block of the object table, and some with numbers so
/// high that the table's tree gets further levels.
const OBJECT_NUMBERS: [u64; 16] =
    [2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 250, 251, 4000, 70_001, 70_002];
/// Size of the dedupe index in a tight pool: entries for 64 blocks.
const HINT_BYTES: u64 = 64 * 20;
/// Fault rate: 3 % of operations, at most 12 times on each disk.
const NOW_AND_THEN: Budget = Budget { per_million: 30_000, left: 12 };

/// Vdevs of the pool of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layout {
    /// One disk.
    Single,
    /// A mirror of two disks.
    Mirror,
    /// Two mirrors of two disks each, striped.
    Stripe,
    /// A raidz1 with two data strips and one parity strip in each row.
    Raidz1,
    /// A raidz2 with three data strips and two parity strips in each row; the segment size is no
    /// multiple of the row size.
    Raidz2,
    /// A raidz3 with two data strips and three parity strips; faults may affect most of the disks.
    Raidz3,
    /// A raidz1 with three data strips and a mirror of two disks, so segments have two sizes.
    Mixed,
}

impl Layout {
    const ALL: [Self; 7] = [
        Self::Single,
        Self::Mirror,
        Self::Stripe,
        Self::Raidz1,
        Self::Raidz2,
        Self::Raidz3,
        Self::Mixed,
    ];

    /// Kind and legs of each vdev.
    fn vdevs(self) -> &'static [(VdevKind, usize)] {
        match self {
            Self::Single => &[(VdevKind::Disk, 1)],
            Self::Mirror => &[(VdevKind::Mirror, 2)],
            Self::Stripe => &[(VdevKind::Mirror, 2), (VdevKind::Mirror, 2)],
            Self::Raidz1 => &[(VdevKind::Raidz1, 3)],
            Self::Raidz2 => &[(VdevKind::Raidz2, 5)],
            Self::Raidz3 => &[(VdevKind::Raidz3, 5)],
            Self::Mixed => &[(VdevKind::Raidz1, 4), (VdevKind::Mirror, 2)],
        }
    }

    pub(crate) fn disks(self) -> usize {
        self.vdevs().iter().map(|(_, legs)| legs).sum()
    }

    /// Draws at least one leg of one vdev, and at most as many as the redundancy of the vdev
    /// covers.
    pub(crate) fn draw_legs(self, rng: &mut Rng) -> Vec<usize> {
        let vdev = rng.index(self.vdevs().len());
        let first: usize = self.vdevs()[..vdev].iter().map(|(_, legs)| legs).sum();
        let (kind, legs) = self.vdevs()[vdev];
        let mut all: Vec<usize> = (first..first + legs).collect();
        rng.shuffle(&mut all);
        all.truncate(kind.parity().max(1));
        all
    }

    /// Number of disks that faults may affect, counted from the first disk; 1 for a single disk.
    pub(crate) fn troubled(self) -> usize {
        let (kind, _) = self.vdevs()[0];
        kind.parity().max(1)
    }
}

/// Fault plan: faults that affect each faulty disk ([`Layout::troubled`]) independently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultPlan {
    /// No faults.
    None,
    /// This fault affects random operations.
    Fault(Fault),
    /// Each faulty disk fails at a random point.
    Dies,
}

/// Size of the pool relative to the load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Room {
    /// The pool can hold all data that the clients may write.
    Ample,
    /// The pool and its log fill up.
    Tight,
}

/// A scenario; its fields determine the run completely.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scenario {
    /// Seed of all random choices in the scenario.
    pub seed: u64,
    /// Vdevs of the pool.
    pub layout: Layout,
    /// Size of the pool relative to the load.
    pub room: Room,
    /// Faults that affect the disks.
    pub trouble: FaultPlan,
    /// If true, the operator adds and removes vdevs, and clients continue until the operator has
    /// finished. If false, the operator replaces disks, and some recoveries run without a leg.
    pub reshapes: bool,
    /// If true, an actor uses datasets with many objects.
    pub objects: bool,
    /// If true, one client rewrites a few blocks until the log queue overflows.
    pub storm: bool,
    /// Bug that is planted in the engine.
    pub bug: PlantedBug,
}

/// Sizes of a pool for one [`Room`], small enough that space is reused within a scenario.
struct Sizes {
    segment_bytes: u32,
    /// Number of segments of the pool.
    segments: u64,
    log_bytes: u64,
    memory_bytes: u64,
    volume_blocks: usize,
    blocks_per_write_max: u64,
    steps_per_client: u64,
}

impl Room {
    fn sizes(self) -> Sizes {
        match self {
            Self::Ample => Sizes {
                segment_bytes: 128 << 10,
                segments: 48,
                log_bytes: 256 << 10,
                memory_bytes: 1 << 20,
                volume_blocks: 160,
                blocks_per_write_max: 6,
                steps_per_client: 40,
            },
            Self::Tight => Sizes {
                segment_bytes: 64 << 10,
                segments: 24,
                log_bytes: 64 << 10,
                memory_bytes: 768 << 10,
                volume_blocks: 96,
                blocks_per_write_max: 14,
                steps_per_client: 60,
            },
        }
    }

    /// Length of one disk of a vdev. The `vdevs` vdevs share the segments equally.
    fn disk_bytes(self, vdevs: usize, data_strips: usize) -> u64 {
        let sizes = self.sizes();
        let row = u64::from(STRIP_BYTES) * data_strips as u64;
        let rows = u64::from(sizes.segment_bytes) / row;
        let segments = sizes.segments / vdevs as u64;
        2 * LABEL_BYTES + sizes.log_bytes + segments * rows * u64::from(STRIP_BYTES)
    }
}

/// Number of steps of each actor in one generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    pub(crate) steps_per_client: u64,
    pub(crate) admin_steps: u64,
    pub(crate) operator_steps: u64,
    pub(crate) storm: bool,
}

impl Scenario {
    /// Draws the scenario of a seed: layout, pool size and fault plan at random, so that many seeds
    /// cover every combination.
    pub fn of_seed(seed: u64, bug: PlantedBug) -> Self {
        let mut rng = Rng::new(seed).stream("scenario", 0);
        let layout = Layout::ALL[rng.index(Layout::ALL.len())];
        let faults = Fault::ALL.map(FaultPlan::Fault);
        let trouble = match rng.index(Fault::ALL.len() + 5) {
            index if index < faults.len() => faults[index],
            index if index == faults.len() => FaultPlan::Dies,
            _ => FaultPlan::None,
        };
        let room = if rng.below(3) == 0 { Room::Tight } else { Room::Ample };
        let storm = rng.below(STORM_ONE_IN) == 0;
        let reshapes = rng.below(4) == 0;
        let objects = Rng::new(seed).stream("objects", 0).below(OBJECTS_ONE_IN) == 0;
        Self { seed, layout, room, trouble, reshapes, objects, storm, bug }
    }

    /// Draws the scenario of a seed, adjusted so that a planted bug has an effect.
    pub fn for_bug(seed: u64, bug: PlantedBug) -> Self {
        let mut scenario = Self::of_seed(seed, bug);
        scenario.storm = false;
        // `objects::tests` has the planted bugs of the log of datasets with many objects.
        scenario.objects = matches!(
            bug,
            PlantedBug::SlotHasNeighboursRoot
                | PlantedBug::TruncateLeavesTail
                | PlantedBug::ReusedSlotKeepsRecords
        );
        if scenario.objects {
            scenario.trouble = FaultPlan::None;
        }
        if bug == PlantedBug::SkipChecksum {
            scenario.layout = Layout::Mirror;
            scenario.trouble = FaultPlan::Fault(Fault::BitRot);
        }
        if bug == PlantedBug::WrongParityStrip {
            scenario.layout = [Layout::Raidz1, Layout::Raidz2, Layout::Raidz3][seed as usize % 3];
            scenario.trouble = FaultPlan::Dies;
        }
        if bug == PlantedBug::ParityAnewTooEarly {
            scenario.layout = Layout::Raidz3;
            scenario.room = Room::Tight;
            scenario.trouble = FaultPlan::Fault(Fault::LostWrite);
        }
        if bug == PlantedBug::LostRootStays {
            scenario.layout = [Layout::Mirror, Layout::Single][seed as usize % 2];
            scenario.trouble = FaultPlan::None;
        }
        scenario.reshapes = matches!(bug, PlantedBug::VdevLeavesEarly | PlantedBug::LogMovesEarly);
        if scenario.reshapes {
            scenario.trouble = FaultPlan::None;
        }
        let of_legs = matches!(
            bug,
            PlantedBug::StaleLegTrusted
                | PlantedBug::ResilverSkipsRange
                | PlantedBug::OpensUnclaimed
                | PlantedBug::OldLegTrusted
        );
        if of_legs {
            scenario.layout = [Layout::Mirror, Layout::Raidz1][seed as usize % 2];
            scenario.trouble = FaultPlan::None;
        }
        scenario
    }

    /// True if clients may receive disk errors, because faults affect the only disk.
    pub(crate) fn may_fail(&self) -> bool {
        self.layout == Layout::Single && self.trouble != FaultPlan::None
    }

    /// True if the only disk may lose data that it acknowledged as durable. The engine must then
    /// detect the damage or stay unaffected by it.
    pub(crate) fn may_lose(&self) -> bool {
        let honest = matches!(
            self.trouble,
            FaultPlan::None
                | FaultPlan::Dies
                | FaultPlan::Fault(Fault::WriteError | Fault::FlushError)
        );
        self.layout == Layout::Single && !honest
    }

    pub(crate) fn options(&self, world: &SimWorld) -> EngineOptions {
        EngineOptions {
            memory_bytes: self.room.sizes().memory_bytes,
            clock: world.executor().clock(),
            bug: self.bug,
        }
    }

    /// In a tight pool, keeps no part of the segment table in RAM and gives the dedupe index few
    /// entries, so that both behave as in a pool of many TiB.
    pub(crate) fn shrink_tables(&self, engine: &Engine) {
        if self.room == Room::Tight {
            engine.pool().set_table_bytes(0);
            engine.pool().set_hint_bytes(HINT_BYTES);
        }
    }

    pub(crate) fn load(&self) -> Load {
        let steps_per_client = self.room.sizes().steps_per_client;
        Load { steps_per_client, admin_steps: 24, operator_steps: 12, storm: self.storm }
    }

    /// Returns the disks of a new pool with empty volumes.
    pub(crate) fn new_pool(layout: Layout, room: Room) -> Vec<MediaImage> {
        let (trouble, storm, bug) = (FaultPlan::None, false, PlantedBug::None);
        let (reshapes, objects) = (false, false);
        let scenario = Self { seed: 1, layout, room, trouble, reshapes, objects, storm, bug };
        let sizes = room.sizes();
        let vdevs = layout.vdevs();
        let lens = vdevs.iter().flat_map(|(kind, legs)| {
            let disk_bytes = room.disk_bytes(vdevs.len(), kind.data_strips(*legs));
            std::iter::repeat_n(disk_bytes, *legs)
        });
        let lens: Vec<u64> = lens.collect();
        // Add spare disks, with which the operator replaces disks or adds vdevs.
        let more = lens.iter().max().copied().into_iter().cycle().take(MORE_DISKS);
        let lens = lens.iter().copied().chain(more).enumerate();
        let options: Vec<DiskOptions> =
            lens.map(|(n, len)| DiskOptions::new(&format!("disk{n}"), len)).collect();
        let world = SimWorld::new(1, &options);
        let mut disks = world.devices().into_iter();
        let vdevs: Vec<VdevSpec> = vdevs
            .iter()
            .map(|(kind, legs)| VdevSpec {
                kind: *kind,
                role: VdevRole::Data,
                disks: disks.by_ref().take(*legs).collect(),
            })
            .collect();
        let how = CreateOptions {
            segment_bytes: Some(sizes.segment_bytes),
            strip_bytes: Some(STRIP_BYTES),
            log_bytes: Some(sizes.log_bytes),
            disk_bytes_min: Some(2 * LABEL_BYTES),
        };
        let mut next = 0;
        let mut guid = || {
            next += 1;
            Guid(next)
        };
        let made = world.run_until(async {
            let options = scenario.options(&world);
            let engine = Engine::create("sim", &vdevs, how, &options, &mut guid).await?;
            for n in 0..VOLUMES {
                let (name, bytes) = (format!("v{n}"), (sizes.volume_blocks * BLOCK_BYTES) as u64);
                let large = n == 1 && scenario.seed % 2 == 1;
                let record = if large { LARGE_RECORD } else { RecordSize::BLOCK };
                let lz4 = PropertyChange::set(COMPRESSION, Compression::Lz4);
                // Enable dedupe on one of the two volumes, until the administrator changes it.
                let dedupe = PropertyChange::set(DEDUPE, n % 2 == 1);
                let size = VolumeSize { bytes, record };
                engine.create_volume_with(&name, size, &[lz4, dedupe]).await?;
            }
            Ok::<(), weir_dataset::DatasetError>(())
        });
        made.expect("nothing crashes here").expect("a pool on healthy disks");
        world.cut(CutPlan::Everything)
    }

    /// Returns the expected state of the empty volumes of [`Self::new_pool`].
    pub(crate) fn new_expected_state(&self) -> ExpectedState {
        let blocks = self.room.sizes().volume_blocks;
        let mut expected = ExpectedState::new(VOLUMES, MORE_VOLUMES, blocks, blocks + blocks / 2);
        expected.objects = ObjectsBook::new(OBJECT_NUMBERS.to_vec());
        expected
    }

    /// Runs clients, administrator and operator on an open engine until all have finished.
    /// `generation` numbers the loads of one scenario.
    ///
    /// # Errors
    /// An error that a client or the engine should not have received.
    pub(crate) async fn work(
        &self,
        world: &SimWorld,
        engine: &Arc<Engine>,
        expected: &Rc<RefCell<ExpectedState>>,
        load: Load,
        generation: u64,
    ) -> Result<(), String> {
        let executor = world.executor().clone();
        let timer = executor.clone();
        let committer = Arc::clone(engine);
        let run = executor
            .spawn("committer", async move { committer.run(|time| timer.sleep(time)).await });
        let (scanner, timer) = (Arc::clone(engine), executor.clone());
        let scans = executor
            .spawn("scans", async move { scanner.run_scans(|time| timer.sleep(time)).await });
        self.start_faults(world, generation);
        let rng = Rng::new(self.seed).stream("generation", generation);
        // While the operator adds and removes vdevs, clients continue to write: without concurrent
        // writes, moves of the log and evacuations would test little.
        let reshaping = Rc::new(Cell::new(self.reshapes));
        let mut working = Vec::new();
        for n in 0..CLIENTS {
            let client = Client {
                rng: rng.stream("client", n),
                engine: Arc::clone(engine),
                expected: Rc::clone(expected),
                blocks_per_write_max: self.room.sizes().blocks_per_write_max,
            };
            let storm = load.storm && n == 0;
            let (steps, reshaping) = (load.steps_per_client, Rc::clone(&reshaping));
            working.push(self.spawn_client(world, n, client, steps, storm, reshaping));
        }
        if self.objects {
            working.extend(self.spawn_objects(world, engine, expected, load, &rng));
        }
        let rng = rng.stream("admin", 0);
        let (engine_too, books_too) = (Arc::clone(engine), Rc::clone(expected));
        let admin =
            Admin { rng, engine: engine_too, expected: books_too, executor: executor.clone() };
        working.push(self.spawn_admin(world, admin, load.admin_steps));
        let operator = Operator {
            rng: Rng::new(self.seed).stream("operator", generation),
            engine: Arc::clone(engine),
            executor: executor.clone(),
            disks: world.devices(),
            scenario: *self,
        };
        working.push(self.spawn_operator(world, operator, load.operator_steps, reshaping));
        for handle in working {
            handle.await?;
        }
        if engine.pool().hint_figures().hits > 0 {
            note(CoveragePoint::Deduped);
        }
        engine.stop();
        if let Err(error) = scans.await
            && !self.may_fail()
        {
            return Err(format!("the scans failed: {error}"));
        }
        match run.await {
            Err(error) if !self.may_fail() => Err(format!("the committer failed: {error}")),
            _ => Ok(()),
        }
    }

    fn spawn_client(
        &self,
        world: &SimWorld,
        n: u64,
        mut client: Client,
        steps: u64,
        storm: bool,
        reshaping: Rc<Cell<bool>>,
    ) -> JoinHandle<Result<(), String>> {
        let (scenario, pause) = (*self, world.executor().clone());
        let name = format!("client {n}");
        world.executor().spawn(name.clone(), async move {
            for step in 0..steps * LOAD_LASTS_MAX {
                if step >= steps && !reshaping.get() {
                    break;
                }
                let done = if storm && step == steps / 2 {
                    client.storm().await
                } else {
                    client.step().await
                };
                if scenario.ends(&name, done)? {
                    break;
                }
                pause.yield_now().await;
            }
            Ok(())
        })
    }

    /// Spawns the operations on datasets with many objects, and their syncs.
    fn spawn_objects(
        &self,
        world: &SimWorld,
        engine: &Arc<Engine>,
        expected: &Rc<RefCell<ExpectedState>>,
        load: Load,
        rng: &Rng,
    ) -> [JoinHandle<Result<(), String>>; OBJECT_TASKS] {
        let (turn, chains) = <(Rc<_>, Rc<_>)>::default();
        std::array::from_fn(|n| {
            let mut actor = ObjectsActor {
                rng: rng.stream("objects", n as u64),
                engine: Arc::clone(engine),
                expected: Rc::clone(expected),
                executor: world.executor().clone(),
                recent: None,
                turn: Rc::clone(&turn),
                chains: Rc::clone(&chains),
            };
            let (scenario, pause) = (*self, world.executor().clone());
            let name = format!("objects {n}");
            world.executor().spawn(name.clone(), async move {
                for _ in 0..load.steps_per_client {
                    let done = match n {
                        0 => actor.step().await,
                        n if n + 1 == OBJECT_TASKS => actor.replicate_step().await,
                        _ => actor.sync_step().await,
                    };
                    if scenario.ends(&name, done)? {
                        break;
                    }
                    for _ in 0..=n {
                        pause.yield_now().await;
                    }
                }
                Ok(())
            })
        })
    }

    fn spawn_admin(
        &self,
        world: &SimWorld,
        mut admin: Admin,
        steps: u64,
    ) -> JoinHandle<Result<(), String>> {
        let (scenario, pause) = (*self, world.executor().clone());
        world.executor().spawn("admin", async move {
            for _ in 0..steps {
                if scenario.ends("admin", admin.step().await)? {
                    break;
                }
                for _ in 0..8 {
                    pause.yield_now().await;
                }
            }
            Ok(())
        })
    }

    fn spawn_operator(
        &self,
        world: &SimWorld,
        mut operator: Operator,
        steps: u64,
        reshaping: Rc<Cell<bool>>,
    ) -> JoinHandle<Result<(), String>> {
        let (scenario, pause) = (*self, world.executor().clone());
        world.executor().spawn("operator", async move {
            for _ in 0..steps {
                if scenario.ends("operator", operator.step().await)? {
                    break;
                }
                for _ in 0..10 {
                    pause.yield_now().await;
                }
            }
            reshaping.set(false);
            Ok(())
        })
    }

    /// True if an actor (client, administrator or operator) stops after its step returned this
    /// result. `Err`: the result is a violation.
    fn ends(&self, name: &str, done: Result<(), Stop>) -> Result<bool, String> {
        match done {
            Ok(()) => Ok(false),
            Err(Stop::Failed(_)) if self.may_fail() => Ok(true),
            Err(Stop::Failed(error)) => Err(format!("{name} received an error: {error}")),
            Err(Stop::Broken(what)) => Err(format!("{name}: {what}")),
        }
    }

    /// Enables read faults during recoveries; the other faults have no effect on recoveries.
    pub(crate) fn start_read_trouble(&self, world: &SimWorld) {
        if let FaultPlan::Fault(fault @ (Fault::BitRot | Fault::LatentRead)) = self.trouble {
            (0..self.layout.troubled()).for_each(|n| world.disk(n).set_fault(fault, NOW_AND_THEN));
        }
    }

    fn start_faults(&self, world: &SimWorld, generation: u64) {
        for n in 0..self.layout.troubled() {
            let disk = world.disk(n);
            match self.trouble {
                FaultPlan::None => {}
                FaultPlan::Fault(fault) => disk.set_fault(fault, NOW_AND_THEN),
                FaultPlan::Dies => {
                    let executor = world.executor().clone();
                    let mut rng = Rng::new(self.seed).stream("death", generation + 1000 * n as u64);
                    let after = 1 + rng.below(200);
                    let _detached =
                        world.executor().spawn(format!("death of disk {n}"), async move {
                            for _ in 0..after {
                                executor.yield_now().await;
                            }
                            disk.set_dead(true);
                        });
                }
            }
        }
    }
}
