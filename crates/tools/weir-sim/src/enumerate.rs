//! Crash enumerator: cuts the power at many steps of a scenario with many plans, recovers after
//! each cut, checks the result, and sometimes continues the load after a recovery.
//!
//! `scenario` holds the actors and `check` holds the checks.
//!
//! Invariants:
//! - a violation names seed, step and plan, and these three replay it;
//! - the plans tried at a step depend only on seed and step, not on the number of steps tried;
//! - a recovery that is itself cut must satisfy the same guarantees.

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;

use weir_base::Guid;
use weir_dataset::Engine;
use weir_device::{Device, DeviceOp};
use weir_pool::{HistoryPoint, ImportOptions};

use crate::check;
use crate::coverage::{Coverage, CoveragePoint, covered, note};
use crate::cut::CutPlan;
use crate::expected::ExpectedState;
use crate::media::MediaImage;
use crate::metadata_loss;
use crate::objects::layer::SimLayer;
use crate::old_legs::{self, Earlier};
use crate::operator::{legs, legs_that_lack};
use crate::rng::Rng;
use crate::scenario::{FaultPlan, Layout, Load, Room, Scenario};
use crate::world::{CutPoint, SimWorld};

/// Maximum number of cuts in a chain of recoveries.
const GENERATIONS_MAX: u64 = 3;
/// Probability, per million, of a cut at one step of a recovery, or of a load that continues after
/// a recovery (a later generation).
const CUT_RECOVERIES: u32 = 100_000;
const CUT_LATER_LOADS: u32 = 15_000;

/// Probabilities and limits of the enumeration.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Probability, per million, of a cut at a step.
    pub steps_per_million: u32,
    /// Maximum number of cut plans tried at one step.
    pub plans_per_step: usize,
    /// Probability, per million, of cuts during a recovery.
    pub nested_per_million: u32,
    /// Probability, per million, that clients continue after a recovery and the power is cut again.
    pub go_on_per_million: u32,
    /// Probability, per million, that a recovery runs without a leg, in scenarios without faults.
    pub absent_per_million: u32,
    /// Probability, per million, that a pool loses nodes of its metadata trees, in scenarios
    /// without faults.
    pub own_losses_per_million: u32,
    /// Probability, per million, that a cut is recovered a second time with an earlier content of
    /// one leg, in scenarios without faults.
    pub old_per_million: u32,
}

impl Default for Effort {
    fn default() -> Self {
        Self {
            steps_per_million: 10_000,
            plans_per_step: 3,
            nested_per_million: 20_000,
            go_on_per_million: 20_000,
            absent_per_million: 100_000,
            own_losses_per_million: 50_000,
            old_per_million: 50_000,
        }
    }
}

/// Result of a scenario.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Number of recovered and checked pools.
    pub recoveries: u64,
    /// Number of steps of the scenario's load without any power cut.
    pub steps: u64,
    /// Coverage points that the scenario reached.
    pub coverage: Coverage,
}

/// A violated guarantee.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{scenario:?}, cut at step {step} with {plan:?}: {what}")]
pub struct Violation {
    /// The scenario that violated the guarantee.
    pub scenario: Scenario,
    /// Step of the first cut; 0 if the violation belongs to no cut.
    pub step: u64,
    /// Plan of the first cut.
    pub plan: Option<CutPlan>,
    /// Description of the violation and of the cuts in later generations.
    pub what: String,
}

struct Search {
    scenario: Scenario,
    effort: Effort,
    recoveries: Cell<u64>,
    earlier: Earlier,
    violation: RefCell<Option<Violation>>,
}

/// History of the disk images from which a recovery starts.
#[derive(Clone, Debug)]
struct Cut {
    seed: u64,
    /// Steps and plans of all cuts so far, oldest first.
    trail: Vec<(u64, CutPlan)>,
    /// Legs that may lack writes, because a recovery ran without them or the operator took them
    /// offline; empty once all legs were online again.
    absent: Vec<usize>,
    /// The newest txg that an engine of this pool has seen. A recovery must not open an older
    /// state, and must not refuse the disks because of this txg.
    seen: Option<HistoryPoint>,
}

/// The engine that runs in a world, shared with the step hook.
type Running = Rc<RefCell<Option<Arc<Engine>>>>;

/// Returns `before`, updated to the time of a cut: the newest txg that the running engine has seen,
/// and the legs that lack writes. These are the legs of the pool that missed writes, and the legs
/// of `before` that were absent and are not in the pool any more.
fn as_of(before: &Cut, running: &Running) -> Cut {
    let Some(engine) = &*running.borrow() else { return before.clone() };
    let known: Vec<usize> = legs(engine).into_iter().map(|(leg, _)| leg).collect();
    let unknown = before.absent.iter().copied().filter(|leg| !known.contains(leg));
    let out = legs_that_lack(engine).into_iter();
    let seen = Some(engine.pool().moment());
    Cut { absent: out.chain(unknown).collect(), seen, ..before.clone() }
}

thread_local! {
    /// Cache of new pools: the disks for each layout and size ([`Room`]). Creating a pool takes as
    /// long as several recoveries, and the disks depend only on layout and size.
    static NEW_POOLS: RefCell<Vec<(Layout, Room, Vec<MediaImage>)>> =
        const { RefCell::new(Vec::new()) };
}

fn new_pool(layout: Layout, room: Room) -> Vec<MediaImage> {
    NEW_POOLS.with_borrow_mut(|pools| {
        if let Some((.., images)) = pools.iter().find(|(l, r, _)| (*l, *r) == (layout, room)) {
            return images.clone();
        }
        let images = Scenario::new_pool(layout, room);
        pools.push((layout, room, images.clone()));
        images
    })
}

/// Runs one scenario and all its recoveries.
///
/// # Errors
/// The first violated guarantee; a panic of the engine counts as one.
pub fn enumerate(scenario: Scenario, effort: Effort) -> Result<Report, Box<Violation>> {
    let search = Rc::new(Search {
        scenario,
        effort,
        recoveries: Cell::default(),
        earlier: Earlier::default(),
        violation: RefCell::default(),
    });
    let (ran, coverage) = covered(|| caught(|| search.first_generation()));
    if let Some(violation) = search.violation.borrow_mut().take() {
        return Err(Box::new(violation));
    }
    match ran {
        // On healthy disks a segment that cannot be cleaned is a bug: its counters disagree with
        // the owners of its blocks.
        Ok(_)
            if scenario.trouble == FaultPlan::None
                && coverage.count(CoveragePoint::CleaningRefused) > 0 =>
        {
            let what = "a segment could not be cleaned although all disks are healthy".to_owned();
            Err(Box::new(Violation { scenario, step: 0, plan: None, what }))
        }
        Ok(steps) => Ok(Report { recoveries: search.recoveries.get(), steps, coverage }),
        Err(what) => Err(Box::new(Violation { scenario, step: 0, plan: None, what })),
    }
}

/// Converts a panic to an error.
fn caught<T>(run: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|payload| Err(panic_text(&*payload)))
}

fn panic_text(payload: &(dyn Any + Send)) -> String {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    format!("panic: {}", text.unwrap_or("of an unknown kind"))
}

impl Search {
    /// Runs the load from which the first cuts start; returns its number of steps.
    fn first_generation(self: &Rc<Self>) -> Result<u64, String> {
        let scenario = self.scenario;
        let world = SimWorld::from_media(scenario.seed, new_pool(scenario.layout, scenario.room));
        let expected = Rc::new(RefCell::new(scenario.new_expected_state()));
        let before = Cut { seed: scenario.seed, trail: Vec::new(), absent: Vec::new(), seen: None };
        let odds = Rc::new(Cell::new(self.effort.steps_per_million));
        let running = Running::default();
        self.cut_steps(&world, &expected, &before, &odds, &running);
        let ran = world.run_until(async {
            let engine = open(&scenario, &world, (&[], None), scenario.seed).await;
            let engine = engine.map_err(|error| format!("open before the load: {error}"))?;
            *running.borrow_mut() = Some(Arc::clone(&engine));
            scenario.work(&world, &engine, &expected, scenario.load(), 0).await
        });
        ran.map_err(|error| error.to_string())??;
        self.cut_at_end(&world, &expected, &as_of(&before, &running));
        Ok(world.step_count())
    }

    /// Installs a hook that cuts and checks at some steps of the world.
    fn cut_steps(
        self: &Rc<Self>,
        world: &SimWorld,
        expected: &Rc<RefCell<ExpectedState>>,
        before: &Cut,
        odds: &Rc<Cell<u32>>,
        running: &Running,
    ) {
        let (search, expected, odds) = (Rc::clone(self), Rc::clone(expected), Rc::clone(odds));
        let (before, running) = (before.clone(), Rc::clone(running));
        world.on_step(move |point| {
            search.at_step(point, &expected.borrow(), &before, odds.get(), &running);
        });
    }

    fn at_step(
        self: &Rc<Self>,
        point: &CutPoint<'_>,
        expected: &ExpectedState,
        before: &Cut,
        odds: u32,
        running: &Running,
    ) {
        if before.trail.is_empty() && self.violation.borrow().is_none() {
            self.earlier.look(point, before.seed);
        }
        let mut rng = Rng::new(before.seed).stream("cuts", point.steps);
        // Guarantees begin when a flush ends, so cut four times as often around flushes.
        let odds = if point.op == DeviceOp::Flush { odds.saturating_mul(4) } else { odds };
        // With more disks, cut less often: a change takes more steps, and a recovery takes longer.
        let disks = self.scenario.layout.disks().max(2) as u64;
        let odds = (u64::from(odds) * 4 / (disks * disks)) as u32;
        if self.violation.borrow().is_some() || !rng.chance(odds.min(1_000_000)) {
            return;
        }
        let mut plans = CutPlan::standard(point.unflushed(), 4, rng.next_u64());
        rng.shuffle(&mut plans);
        // The loss of all unflushed writes is the hardest cut, so try it half of the time.
        if rng.coin() {
            plans[0] = CutPlan::Nothing;
        }
        plans.truncate(self.effort.plans_per_step);
        let before = as_of(before, running);
        for plan in plans {
            let cut = before.then(point.steps, plan, rng.next_u64());
            self.judge(&cut, point.cut(plan), expected);
        }
    }

    /// Cuts the power after the last step of a run, when the load has ended.
    fn cut_at_end(
        self: &Rc<Self>,
        world: &SimWorld,
        expected: &Rc<RefCell<ExpectedState>>,
        before: &Cut,
    ) {
        let (step, plan) = (world.step_count(), CutPlan::Nothing);
        let cut = before.then(step, plan, Rng::new(before.seed).stream("end", 0).next_u64());
        self.judge(&cut, world.cut(plan), &expected.borrow());
    }

    /// Recovers from one cut and stores the first violation.
    fn judge(self: &Rc<Self>, cut: &Cut, images: Vec<MediaImage>, expected: &ExpectedState) {
        if self.violation.borrow().is_some() {
            return;
        }
        let old = Rng::new(cut.seed).stream("old", 0).chance(self.effort.old_per_million)
            && cut.absent.is_empty()
            && old_legs::fits(&self.scenario);
        let again = old.then(|| images.clone());
        let judged = caught(|| {
            self.recover(cut, images, expected)?;
            let Some(images) = again else { return Ok(()) };
            old_legs::judge_alone(&self.scenario, cut.seed, &self.earlier, cut.seen)?;
            old_legs::judge(&self.scenario, cut.seed, &self.earlier, images, expected)
        });
        if let Err(what) = judged {
            let (step, plan) = cut.trail[0];
            let later = &cut.trail[1..];
            let what = if later.is_empty() { what } else { format!("then {later:?}: {what}") };
            let violation = Violation { scenario: self.scenario, step, plan: Some(plan), what };
            self.violation.borrow_mut().get_or_insert(violation);
        }
    }

    /// Opens the pool on these disks, checks every guarantee, and sometimes continues the load.
    fn recover(
        self: &Rc<Self>,
        cut: &Cut,
        images: Vec<MediaImage>,
        expected: &ExpectedState,
    ) -> Result<(), String> {
        let scenario = &self.scenario;
        let world = SimWorld::from_media(cut.seed, images);
        scenario.start_read_trouble(&world);
        let mut rng = Rng::new(cut.seed).stream("recovery", 0);
        let (absent, ever) = self.absent_legs(cut, &mut rng);
        if metadata_loss::fits(scenario)
            && cut.absent.is_empty()
            && rng.stream("own losses", 0).chance(self.effort.own_losses_per_million)
        {
            let seed = Rng::new(cut.seed).stream("own losses", 1).next_u64();
            let images = world.cut(CutPlan::Everything);
            // Count coverage separately: a segment that cannot be cleaned after the loss of
            // metadata is no violation of the scenario.
            covered(|| metadata_loss::lose_some(scenario, seed, images, expected)).0?;
        }
        let before = Cut { absent: ever, ..cut.clone() };
        let last = cut.trail.len() as u64 >= GENERATIONS_MAX;
        let nested = !last && rng.chance(self.effort.nested_per_million);
        let goes_on = !last && rng.chance(self.effort.go_on_per_million);
        let expected = Rc::new(RefCell::new(expected.clone()));
        let odds = Rc::new(Cell::new(if nested { CUT_RECOVERIES } else { 0 }));
        let running = Running::default();
        if nested || goes_on {
            self.cut_steps(&world, &expected, &before, &odds, &running);
        }
        let judged = world.run_until(async {
            let engine = match open(scenario, &world, (&absent, cut.seen), cut.seed).await {
                Err(_) if scenario.may_lose() => {
                    note(CoveragePoint::DamageDetected);
                    return Ok(());
                }
                opened => opened.map_err(|error| format!("open: {error}"))?,
            };
            note_if(nested, CoveragePoint::RecoveryCut);
            let promised = expected.borrow().clone();
            if scenario.may_lose() {
                return check::detected_or_harmless(&engine, &promised).await;
            }
            let found = check::strict(&engine, &promised).await?;
            check::note_stale_legs(&engine);
            if scenario.trouble == FaultPlan::None && before.absent.is_empty() {
                check::no_leg_blamed(&engine, scenario.layout.disks())?;
            }
            if !goes_on {
                return Ok(());
            }
            expected.borrow_mut().rebase(found);
            *running.borrow_mut() = Some(Arc::clone(&engine));
            odds.set(CUT_LATER_LOADS);
            note(CoveragePoint::SecondGeneration);
            let load =
                Load { steps_per_client: 8, admin_steps: 6, operator_steps: 8, storm: false };
            scenario.work(&world, &engine, &expected, load, cut.seed).await
        });
        judged.map_err(|error| format!("recovery: {error}"))??;
        self.recoveries.set(self.recoveries.get() + 1);
        if goes_on && !scenario.may_lose() {
            self.cut_at_end(&world, &expected, &as_of(&before, &running));
        }
        Ok(())
    }

    /// Returns the legs that are missing in this recovery, and all legs that may be missing in this
    /// chain of cuts. The chain draws the second set only once: only the legs outside the set have
    /// the writes that a missing leg lacks, so these legs must always be present.
    fn absent_legs(&self, cut: &Cut, rng: &mut Rng) -> (Vec<usize>, Vec<usize>) {
        let layout = self.scenario.layout;
        let untroubled = self.scenario.trouble == FaultPlan::None && !self.scenario.reshapes;
        let possible = layout.disks() > 1 && untroubled;
        let first = self.effort.absent_per_million;
        let leaves_out = rng.chance(if cut.absent.is_empty() { first } else { 300_000 });
        if !possible || !leaves_out {
            return (Vec::new(), cut.absent.clone());
        }
        note(CoveragePoint::LegAbsent);
        let mut ever = cut.absent.clone();
        if ever.is_empty() {
            ever = layout.draw_legs(rng);
        }
        let mut absent = ever.clone();
        // Bring each missing leg back in this recovery with a probability of one in four.
        absent.retain(|_| rng.below(4) > 0);
        (absent, ever)
    }
}

impl Cut {
    fn then(&self, step: u64, plan: CutPlan, seed: u64) -> Self {
        let mut trail = self.trail.clone();
        trail.push((step, plan));
        Self { seed, trail, ..self.clone() }
    }
}

fn note_if(whether: bool, met: CoveragePoint) {
    if whether {
        note(met);
    }
}

async fn open(
    scenario: &Scenario,
    world: &SimWorld,
    (absent, newest_seen): (&[usize], Option<HistoryPoint>),
    import_epoch: u64,
) -> Result<Arc<Engine>, weir_dataset::DatasetError> {
    let disks: Vec<Arc<dyn Device>> = world.devices();
    let there = disks.into_iter().enumerate().filter(|(n, _)| !absent.contains(n));
    let disks = there.map(|(_, disk)| disk).collect();
    let how = ImportOptions { newest_seen, ..ImportOptions::new(Guid(import_epoch)) };
    let options = scenario.options(world);
    let engine = Engine::open_with_layer(disks, how, &options, &SimLayer).await?;
    scenario.shrink_tables(&engine);
    Ok(engine)
}
