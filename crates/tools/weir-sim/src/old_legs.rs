//! Old legs: restores one disk to an earlier state of the same run, as if a user reattached an old
//! copy, or as if a disk lost all writes after some flush. When the pool reports every leg online,
//! the check removes as many other legs as the redundancy covers and reads every byte. In some runs
//! the check first imports the old disk alone, so that the open pool must refuse this disk.
//!
//! `enumerate` selects the cuts; `check` holds the checks.
//!
//! Invariants:
//! - one leg is old and no other leg lacks writes, so the redundancy covers the old leg;
//! - the old content comes from the same chain of import epochs, before the cut.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use weir_base::{Guid, Txg};
use weir_dataset::Engine;
use weir_pool::{
    HistoryPoint, ImportOptions, LegState, LegStatus, PoolError, VdevStatus, discover,
};

use crate::check;
use crate::coverage::{CoveragePoint, note};
use crate::cut::CutPlan;
use crate::disk::SimDisk;
use crate::expected::ExpectedState;
use crate::media::MediaImage;
use crate::objects::layer::SimLayer;
use crate::operator::legs_out_of_use;
use crate::rng::Rng;
use crate::scenario::{FaultPlan, Scenario};
use crate::world::{CutPoint, SimWorld};

/// Maximum number of earlier states that a run keeps. The next constant is the probability, per
/// million, that the run keeps the state of the disks at a step.
const KEPT_MAX: usize = 4;
const KEPT_PER_MILLION: u32 = 5_000;
/// Maximum number of polls until a resilver ends.
const POLLS_MAX: usize = 2_000;
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Disks of a run at some earlier steps.
#[derive(Default)]
pub(crate) struct Earlier(RefCell<Vec<Vec<MediaImage>>>);

impl Earlier {
    /// Keeps copies of the disks at some steps, either with all writes or with only the flushed
    /// writes.
    pub(crate) fn look(&self, point: &CutPoint<'_>, seed: u64) {
        let mut rng = Rng::new(seed).stream("earlier", point.steps);
        if !rng.chance(KEPT_PER_MILLION) {
            return;
        }
        let plan = if rng.coin() { CutPlan::Nothing } else { CutPlan::Everything };
        let mut kept = self.0.borrow_mut();
        if kept.len() == KEPT_MAX {
            kept.remove(rng.index(KEPT_MAX));
        }
        kept.push(point.cut(plan));
    }
}

/// True if this check fits the scenario.
pub(crate) fn fits(scenario: &Scenario) -> bool {
    !scenario.reshapes && scenario.layout.disks() > 1 && scenario.trouble == FaultPlan::None
}

/// Recovers from `images` with one old leg, waits until every leg is online, removes as many other
/// legs as the redundancy covers, and checks the content.
pub(crate) fn judge(
    scenario: &Scenario,
    seed: u64,
    earlier: &Earlier,
    mut images: Vec<MediaImage>,
    expected: &ExpectedState,
) -> Result<(), String> {
    let mut rng = Rng::new(seed).stream("old leg", 0);
    let kept = earlier.0.borrow();
    if kept.is_empty() {
        return Ok(());
    }
    let from = &kept[rng.index(kept.len())];
    let old = rng.index(scenario.layout.disks());
    let told = |when: &'static str| move |error: String| format!("old leg {old}, {when}: {error}");
    note(CoveragePoint::OldLeg);
    // In half of the runs, the old disk returns while the pool is open: then it is an additional
    // disk of this world.
    let while_open = rng.coin();
    let disks = images.len();
    if while_open {
        images.push(from[old].clone());
    } else {
        images[old] = from[old].clone();
    }
    let world = SimWorld::from_media(seed, images);
    let reads_first = rng.below(4) == 0;
    let imports_alone = while_open && rng.below(3) == 0;
    let lost = world.run_until(async {
        let absent = if while_open { vec![old, disks] } else { Vec::new() };
        // Legs that the old disk lists as stale after an import without them.
        let mut alone_without = Vec::new();
        if imports_alone {
            let others: Vec<usize> = (0..disks).collect();
            // The import of the old disk alone fails if its data needs the other disks of its vdev,
            // or if the disk is stale.
            let Ok(alone) = open(scenario, &world, &others, seed + 2).await else {
                return Ok(None);
            };
            alone_without = legs_of(&alone, |leg| leg.state != LegState::Online);
            drop(alone);
        }
        let engine = open(scenario, &world, &absent, seed).await?;
        if while_open {
            // The import of the old disk alone wrote no client data. If the pool has since replaced
            // every leg in `alone_without`, this import looks like an import that a power cut
            // interrupted, and the disk may join.
            let current = legs_of(&engine, |leg| leg.state == LegState::Online);
            let diverges = current.iter().any(|leg| alone_without.contains(leg));
            match bring_back(&engine, old, world.disk(disks)).await? {
                Back::Joined if diverges => return Err("a diverged disk joined".to_owned()),
                Back::Diverged if imports_alone => {
                    note(CoveragePoint::DivergedDiskRefused);
                    check::strict(&engine, expected).await?;
                    return Ok(None);
                }
                Back::Diverged => return Err("an old disk was refused as diverged".to_owned()),
                Back::Unknown => return Ok(None),
                Back::Joined => {}
            }
        }
        if reads_first {
            // Check in only some of the runs: a check before the resilver ends repairs each bad
            // copy that the check reads, and so may hide ranges that the resilver missed.
            check::strict(&engine, expected).await?;
        }
        if !settle(&world, &engine).await? {
            return Ok(None);
        }
        Ok(others(&engine, old, &mut rng))
    });
    let lost = lost.map_err(|error| error.to_string()).flatten().map_err(told("recovery"))?;
    let Some(lost) = lost else { return Ok(()) };
    let mut images = world.cut(CutPlan::Nothing);
    if while_open {
        images.swap_remove(old);
    }
    note(CoveragePoint::OldLegAlone);
    let world = SimWorld::from_media(seed + 1, images);
    let judged = world.run_until(async {
        let engine = open(scenario, &world, &lost, seed + 1).await?;
        check::strict(&engine, expected).await.map(drop)
    });
    judged.map_err(|error| error.to_string()).flatten().map_err(told("without the others"))
}

/// Imports the disks of a run in an earlier state, and passes the newest txg of the run to the
/// import. The import must refuse the disks, because the pool would serve old data.
pub(crate) fn judge_alone(
    scenario: &Scenario,
    seed: u64,
    earlier: &Earlier,
    seen: Option<HistoryPoint>,
) -> Result<(), String> {
    let mut rng = Rng::new(seed).stream("old alone", 0);
    let kept = earlier.0.borrow();
    let (Some(seen), false) = (seen, kept.is_empty()) else { return Ok(()) };
    let world = SimWorld::from_media(seed, kept[rng.index(kept.len())].clone());
    let judged = world.run_until(async {
        let mut newest = Txg::default();
        for disk in world.devices() {
            let found = discover(&*disk).await.map_err(|error| error.to_string())?;
            // A cut may have torn the labels of a disk, so skip a disk without a label.
            newest = newest.max(found.map(|found| found.txg).unwrap_or_default());
        }
        let how = ImportOptions { newest_seen: Some(seen), ..ImportOptions::new(Guid(seed)) };
        let options = scenario.options(&world);
        let opened = Engine::open_with_layer(world.devices(), how, &options, &SimLayer).await;
        if newest < seen.txg {
            note(CoveragePoint::OldDisksRefused);
            if opened.is_ok() {
                return Err(format!("txg {newest} was opened after txg {} was seen", seen.txg));
            }
        }
        Ok(())
    });
    judged.map_err(|error| error.to_string()).flatten()
}

async fn open(
    scenario: &Scenario,
    world: &SimWorld,
    absent: &[usize],
    seed: u64,
) -> Result<Arc<Engine>, String> {
    let disks = world.devices().into_iter().enumerate();
    let disks = disks.filter(|(n, _)| !absent.contains(n)).map(|(_, disk)| disk).collect();
    let (how, options) = (ImportOptions::new(Guid(seed)), scenario.options(world));
    let engine = Engine::open_with_layer(disks, how, &options, &SimLayer).await;
    engine.map_err(|error| format!("open: {error}"))
}

/// Legs of the pool for which `is` returns true.
fn legs_of(engine: &Engine, is: impl Fn(&LegStatus) -> bool) -> Vec<Guid> {
    let status = engine.pool().status();
    let legs = status.vdevs.iter().flat_map(|vdev| &vdev.legs);
    legs.filter(|leg| is(leg)).map(|leg| leg.guid).collect()
}

/// Result of bringing the old disk online.
enum Back {
    Joined,
    /// The disk has txgs that the pool lacks.
    Diverged,
    /// The pool has no leg for the disk, or the old content predates the disk's membership.
    Unknown,
}

/// Brings the old disk online in a pool that was opened without it.
async fn bring_back(engine: &Engine, old: usize, disk: Arc<SimDisk>) -> Result<Back, String> {
    let pool = engine.pool();
    let Ok((guid, ..)) = pool.find_leg(&format!("disk{old}")) else { return Ok(Back::Unknown) };
    if !pool.fail_leg(guid).map_err(|error| error.to_string())? {
        return Ok(Back::Unknown);
    }
    match pool.online_leg(guid, disk, false).await {
        Ok(()) => {
            engine.leg_came_back();
            Ok(Back::Joined)
        }
        Err(PoolError::DivergedDisk { .. }) => Ok(Back::Diverged),
        Err(PoolError::Layout { .. }) => Ok(Back::Unknown),
        Err(error) => Err(format!("bringing it online: {error}")),
    }
}

/// Commits and scans until every leg is online. Returns false if a leg is neither online nor stale.
async fn settle(world: &SimWorld, engine: &Arc<Engine>) -> Result<bool, String> {
    let executor = world.executor().clone();
    let (committer, timer) = (Arc::clone(engine), executor.clone());
    let run = executor.spawn("committer", async move { committer.run(|t| timer.sleep(t)).await });
    let (scanner, timer) = (Arc::clone(engine), executor.clone());
    let scans = executor.spawn("scans", async move { scanner.run_scans(|t| timer.sleep(t)).await });
    let mut looks = 0;
    let settled = loop {
        let out = legs_out_of_use(engine);
        if out.is_empty() {
            break Ok(true);
        }
        if out.iter().any(|(_, state)| *state != LegState::Stale) {
            break Ok(false);
        }
        looks += 1;
        if looks == POLLS_MAX {
            let scan = engine.pool().scan_status();
            break Err(format!("no resilver completed {out:?}: {scan:?}"));
        }
        executor.sleep(POLL_INTERVAL).await;
    };
    engine.stop();
    scans.await.map_err(|error| format!("the scans failed: {error}"))?;
    run.await.map_err(|error| format!("the committer failed: {error}"))?;
    settled
}

/// Legs of the old leg's vdev other than the old leg, as many as the redundancy of the vdev covers;
/// `None` if the old disk is no longer a leg.
fn others(engine: &Engine, old: usize, rng: &mut Rng) -> Option<Vec<usize>> {
    let number = |path: &str| path.strip_prefix("disk")?.parse::<usize>().ok();
    let legs = |vdev: &VdevStatus| -> Vec<usize> {
        vdev.legs.iter().filter_map(|leg| number(&leg.path)).collect()
    };
    let status = engine.pool().status();
    let vdev = status.vdevs.iter().find(|vdev| legs(vdev).contains(&old))?;
    let mut others = legs(vdev);
    others.retain(|leg| *leg != old);
    rng.shuffle(&mut others);
    if vdev.kind.parity() > 0 {
        others.truncate(vdev.kind.parity());
    }
    Some(others)
}
