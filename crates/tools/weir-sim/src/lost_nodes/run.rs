//! Scenario of lost tree nodes: corrupts blocks and nodes of one dataset on every leg, then
//! continues with changes, snapshots, rollbacks, scrubs and power cuts, and checks everything.
//!
//! `volumes` and `objects::lost_nodes` have the changes and the expected states.
//!
//! Invariants:
//! - the pool is never suspended, and every import succeeds;
//! - after the damaged dataset is destroyed, every counter equals a walk of the trees.

use std::sync::Arc;
use std::time::Duration;

use weir_base::Guid;
use weir_dataset::{
    DamagedData, DatasetError, Engine, EngineOptions, PoolDamage, SnapshotId, Volume,
};
use weir_pool::{DiskAddress, ImportOptions, PlantedBug};

use crate::cut::CutPlan;
use crate::error::SimError;
use crate::executor::JoinHandle;
use crate::media::MediaImage;
use crate::rng::Rng;
use crate::scenario::{Layout, Room, Scenario};
use crate::world::SimWorld;

/// Number of generations after the damage.
const LIVES: u64 = 3;
const MEMORY_BYTES: u64 = 4 << 20;
/// Virtual time within which scans, frees and a recount end.
const SETTLED_AFTER: Duration = Duration::from_mins(1);

/// State of a run, for volumes and for datasets with many objects.
pub(crate) struct Base {
    pub(crate) rng: Rng,
    seed: u64,
    bug: PlantedBug,
    layout: Layout,
    /// Number of the current generation. A generation lasts from an import to the next power cut.
    lives: u64,
}

/// Changes and expected state of the datasets of one run.
pub(crate) trait LostNodes {
    /// A block or node to corrupt.
    type Victim: Copy;

    /// Name of the check in messages.
    const WHAT: &'static str;
    /// Name of the dataset that loses nodes.
    const VICTIM: &'static str;
    /// Maximum number of steps in one generation; most power cuts come before the last step.
    const STEPS: u64;

    fn base(&mut self) -> &mut Base;

    /// Creates the datasets and their snapshots.
    async fn fill(&mut self, engine: &Engine) -> Result<(), String>;

    /// Names of the damaged dataset and of its snapshots (dataset@snapshot).
    fn views(&self) -> Vec<String>;

    /// Selects a block or node, and the index of a view that contains it.
    fn some_victim(&mut self, views: &[String]) -> (usize, Self::Victim);

    /// Address of a block or node in a view; `None` if the view has no such block or node.
    async fn place(view: &Volume, victim: Self::Victim) -> Result<Option<DiskAddress>, String>;

    /// Records the loss of a block or node of a view.
    fn lose(&mut self, view: &str, victim: Self::Victim);

    /// Records that the lost blocks and nodes are readable again, as when a disk reconnects.
    fn find_again(&mut self);

    /// Makes one change.
    async fn step(&mut self, engine: &Arc<Engine>) -> Result<(), String>;

    /// Reads all content and compares it with the possible states. The state that the reads show
    /// becomes the only possible state.
    async fn judge(&mut self, engine: &Engine) -> Result<(), String>;

    /// Prepares a generation after its pool was opened and checked.
    async fn opened(&mut self, _: &Engine) -> Result<(), String> {
        Ok(())
    }

    /// Checks, after a complete scrub, that the damage list has only unreadable content.
    async fn judge_list(&mut self, engine: &Engine) -> Result<(), String>;

    /// Checks the other datasets after the damaged dataset was destroyed.
    async fn destroyed(&mut self, _: &Engine) -> Result<(), String> {
        Ok(())
    }
}

/// Corrupts blocks and nodes of one dataset and checks the consequences. `new` creates the state of
/// the run.
///
/// # Errors
/// The first violated guarantee, with the seed that replays it.
pub(crate) fn run<S: LostNodes>(
    seed: u64,
    bug: PlantedBug,
    new: impl FnOnce(Base) -> S,
) -> Result<(), String> {
    let mut rng = Rng::new(seed).stream(S::WHAT, 0);
    let layout = if rng.coin() { Layout::Single } else { Layout::Mirror };
    let mut run = new(Base { rng, seed, bug, layout, lives: 0 });
    let done = all(&mut run);
    done.map_err(|what| format!("{}, seed {seed}, life {}: {what}", S::WHAT, run.base().lives))
}

fn all(run: &mut impl LostNodes) -> Result<(), String> {
    let images = fill(run)?;
    let (mut images, lost) = damage(run, images)?;
    for _ in 0..LIVES {
        images = live(run, images)?;
    }
    if run.base().rng.coin() {
        // The pool may have overwritten some lost nodes, so restore only the others. If the pool
        // still needs an overwritten node, a later check fails.
        let is_there = |lost: &&LostNode| bytes_at(&images, lost.place) == lost.bytes;
        let there: Vec<_> = lost.iter().filter(is_there).map(|lost| lost.place).collect();
        flip(&mut images, run.base().layout, &there);
        run.find_again();
    }
    end(run, images)
}

impl Base {
    fn world(&mut self, images: Vec<MediaImage>) -> SimWorld {
        self.lives += 1;
        SimWorld::from_media(self.seed.wrapping_mul(1000) + self.lives, images)
    }

    /// Opens the pool on the disks of a world.
    async fn open(&self, world: &SimWorld) -> Result<Arc<Engine>, String> {
        let clock = world.executor().clock();
        let options = EngineOptions { memory_bytes: MEMORY_BYTES, clock, bug: self.bug };
        let how = ImportOptions::new(Guid(self.seed ^ self.lives << 40));
        let opened = Engine::open(world.devices(), how, &options).await;
        opened.map_err(|error| format!("open: {error}"))
    }
}

/// Checks the content of the pool and its counters.
async fn judge(run: &mut impl LostNodes, engine: &Engine) -> Result<(), String> {
    run.judge(engine).await?;
    counts(engine).await
}

fn fill(run: &mut impl LostNodes) -> Result<Vec<MediaImage>, String> {
    let images = Scenario::new_pool(run.base().layout, Room::Ample);
    let world = run.base().world(images);
    let filled = world.run_until(async {
        let engine = run.base().open(&world).await?;
        run.fill(&engine).await
    });
    filled.map_err(|error| error.to_string())??;
    Ok(world.cut(CutPlan::Everything))
}

/// Corrupts up to two blocks or nodes of the dataset or of a snapshot, on all legs.
fn damage<S: LostNodes>(
    run: &mut S,
    images: Vec<MediaImage>,
) -> Result<(Vec<MediaImage>, Vec<LostNode>), String> {
    let world = run.base().world(images);
    let places = world.run_until(async {
        let engine = run.base().open(&world).await?;
        let mut places = Vec::new();
        for _ in 0..=run.base().rng.below(2) {
            let names = run.views();
            let (of, victim) = run.some_victim(&names);
            let place = place_of::<S>(&engine, &names[of], victim).await?;
            let Some(place) = place.filter(|place| !places.contains(place)) else { continue };
            places.push(place);
            for name in &names {
                if place_of::<S>(&engine, name, victim).await? == Some(place) {
                    run.lose(name, victim);
                }
            }
        }
        Ok::<_, String>(places)
    });
    let places = places.map_err(|error| error.to_string())??;
    let mut images = world.cut(CutPlan::Everything);
    flip(&mut images, run.base().layout, &places);
    let lost = |place| LostNode { place, bytes: bytes_at(&images, place) };
    let lost = places.into_iter().map(lost).collect();
    Ok((images, lost))
}

async fn place_of<S: LostNodes>(
    engine: &Engine,
    name: &str,
    victim: S::Victim,
) -> Result<Option<DiskAddress>, String> {
    let view = open_view(engine, name).map_err(|error| error.to_string())?;
    S::place(&view, victim).await
}

/// Runs one generation: opens the pool, checks it, and changes it until the power is cut. Returns
/// the disks.
fn live<S: LostNodes>(run: &mut S, images: Vec<MediaImage>) -> Result<Vec<MediaImage>, String> {
    let world = run.base().world(images);
    let opened = world.run_until(async {
        let engine = run.base().open(&world).await?;
        judge(run, &engine).await?;
        run.opened(&engine).await?;
        Ok::<_, String>(engine)
    });
    let engine = opened.map_err(|error| error.to_string())??;
    let rng = &mut run.base().rng;
    if rng.below(4) > 0 {
        world.crash_after(world.step_count() + 1 + rng.below(120));
    }
    let worked = world.run_until(async {
        let background = Background::start(&world, &engine);
        for _ in 0..S::STEPS {
            run.step(&engine).await?;
        }
        background.stop(&engine).await
    });
    match worked {
        Ok(done) => done?,
        Err(SimError::Crashed { .. }) => {}
        Err(error) => return Err(error.to_string()),
    }
    drop(engine);
    let plan = if run.base().rng.coin() { CutPlan::Nothing } else { CutPlan::Everything };
    Ok(world.cut(plan))
}

/// Checks the pool, destroys the damaged dataset, and expects all of its space to be freed.
fn end<S: LostNodes>(run: &mut S, images: Vec<MediaImage>) -> Result<(), String> {
    let world = run.base().world(images);
    let ended = world.run_until(async {
        let engine = run.base().open(&world).await?;
        judge(run, &engine).await?;
        let background = Background::start(&world, &engine);
        engine.scrub_start().map_err(|error| format!("scrub: {error}"))?;
        world.executor().sleep(SETTLED_AFTER).await;
        judge(run, &engine).await?;
        run.judge_list(&engine).await?;
        let destroyed = engine.destroy_volume(S::VICTIM, true).await;
        destroyed.map_err(|error| format!("destroy: {error}"))?;
        world.executor().sleep(SETTLED_AFTER).await;
        background.stop(&engine).await?;
        if engine.pool().damaged_since().is_some() {
            return Err(format!("damage is left: {:?}", engine.damage()));
        }
        run.destroyed(&engine).await?;
        counts(&engine).await
    });
    ended.map_err(|error| error.to_string())?
}

/// Opens a dataset or a snapshot (dataset@snapshot).
pub(crate) fn open_view(engine: &Engine, name: &str) -> Result<Arc<Volume>, DatasetError> {
    match name.split_once('@') {
        Some((dataset, snapshot)) => engine.open_snapshot(&SnapshotId::new(dataset, snapshot)),
        None => engine.volume(name),
    }
}

/// Entries of the damage list about a dataset or a snapshot (dataset@snapshot).
pub(crate) fn entries_of<'a>(
    damage: &'a PoolDamage,
    view: &'a str,
) -> impl Iterator<Item = &'a DamagedData> {
    let (dataset, snapshot) =
        view.split_once('@').map_or((view, None), |(dataset, name)| (dataset, Some(name)));
    damage.data.iter().filter(move |data| {
        let has = snapshot.map_or(data.in_volume, |own| data.snapshots.iter().any(|s| s == own));
        data.volume == dataset && has
    })
}

/// A lost block or node, and its corrupted bytes. If the pool has reused this address, the disk has
/// other bytes at the address.
struct LostNode {
    place: DiskAddress,
    bytes: Vec<u8>,
}

fn bytes_at(images: &[MediaImage], place: DiskAddress) -> Vec<u8> {
    let mut bytes = vec![0; place.len];
    images[0].read(place.offset, &mut bytes);
    bytes
}

/// Background tasks of an engine: commits and scans.
struct Background {
    commits: JoinHandle<Result<(), DatasetError>>,
    scans: JoinHandle<Result<(), DatasetError>>,
}

impl Background {
    fn start(world: &SimWorld, engine: &Arc<Engine>) -> Self {
        let (committer, timer) = (Arc::clone(engine), world.executor().clone());
        let commits = async move { committer.run(|time| timer.sleep(time)).await };
        let (scanner, timer) = (Arc::clone(engine), world.executor().clone());
        let scans = async move { scanner.run_scans(|time| timer.sleep(time)).await };
        let commits = world.executor().spawn("committer", commits);
        Self { commits, scans: world.executor().spawn("scans", scans) }
    }

    /// Stops the engine and waits for the tasks.
    async fn stop(self, engine: &Engine) -> Result<(), String> {
        engine.stop();
        self.commits.await.map_err(|error| format!("the committer failed: {error}"))?;
        self.scans.await.map_err(|error| format!("the scans failed: {error}"))
    }
}

/// Flips bits of the blocks at these addresses on every leg; a second call restores them.
fn flip(images: &mut [MediaImage], layout: Layout, places: &[DiskAddress]) {
    for image in &mut images[..layout.disks()] {
        for place in places {
            (0..4).for_each(|n| image.flip_bit(place.offset + n * 16, 3));
        }
    }
}

/// Compares every counter of the pool with a walk of its trees.
pub(crate) async fn counts(engine: &Engine) -> Result<(), String> {
    let walk = |error: DatasetError| format!("walk: {error}");
    if let Some(wrong) = engine.check_live_bytes().await.map_err(walk)?.first() {
        return Err(format!("live bytes {wrong:?}"));
    }
    if let Some(wrong) = engine.check_references().await.map_err(walk)?.first() {
        return Err(format!("{wrong:?}"));
    }
    if let Some(wrong) = engine.check_accounts().await.map_err(walk)?.first() {
        return Err(format!("{wrong:?}"));
    }
    match engine.check_places().await.map_err(walk)? {
        Some(places) => Err(format!("{places:?}")),
        None => Ok(()),
    }
}
