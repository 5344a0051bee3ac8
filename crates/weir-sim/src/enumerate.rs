//! The crash enumerator: cuts the power at steps of a scenario in many ways, recovers each time,
//! and judges what is there.
//!
//! Not here: what clients do (scenario) and what they were promised (history).
//!
//! Invariants:
//! - a violation names seed, step and plan, and the same three replay it;
//! - a recovery that is itself cut is judged by the same promises.

use std::cell::RefCell;
use std::rc::Rc;

use weir_dataset::Engine;
use weir_pool::{ImportOptions, PlantedBug};

use crate::cut::CutPlan;
use crate::history::History;
use crate::media::MediaImage;
use crate::rng::Rng;
use crate::scenario::{Histories, Layout, Scenario, Trouble, devices, read_tags};
use crate::world::{CutPoint, SimWorld};

/// How much to try per scenario.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Chance per million that a step is cut at all.
    pub steps_per_million: u32,
    /// Ways of cutting tried at one step at most.
    pub plans_per_step: usize,
    /// Chance per million that a recovery is itself cut.
    pub nested_per_million: u32,
}

impl Default for Effort {
    fn default() -> Self {
        Self { steps_per_million: 150_000, plans_per_step: 4, nested_per_million: 20_000 }
    }
}

/// What a scenario went through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Pools recovered and judged.
    pub recoveries: u64,
    /// Steps of the scenario.
    pub steps: u64,
}

/// A promise that was broken.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{scenario:?}, cut at step {step} with {plan:?}: {what}")]
pub struct Violation {
    /// Which scenario.
    pub scenario: Scenario,
    /// Where it was cut; 0 when it broke while running.
    pub step: u64,
    /// How it was cut.
    pub plan: Option<CutPlan>,
    /// What was wrong.
    pub what: String,
}

struct Search {
    scenario: Scenario,
    effort: Effort,
    histories: Histories,
    rng: RefCell<Rng>,
    report: RefCell<Report>,
    violation: RefCell<Option<Violation>>,
}

thread_local! {
    /// Making a pool costs as much as several recoveries, and it is always the same one.
    static NEW_POOLS: RefCell<Vec<(Layout, Vec<MediaImage>)>> = const { RefCell::new(Vec::new()) };
}

fn new_pool(layout: Layout) -> Vec<MediaImage> {
    NEW_POOLS.with_borrow_mut(|pools| {
        if let Some((_, images)) = pools.iter().find(|(known, _)| *known == layout) {
            return images.clone();
        }
        let images = Scenario::new_pool(layout);
        pools.push((layout, images.clone()));
        images
    })
}

/// Runs one scenario and every recovery the effort asks for.
///
/// # Errors
/// The first broken promise.
pub fn enumerate(scenario: Scenario, effort: Effort) -> Result<Report, Box<Violation>> {
    let world = SimWorld::from_media(scenario.seed, new_pool(scenario.layout));
    let histories = Scenario::new_histories();
    let search = Rc::new(Search {
        scenario,
        effort,
        histories: Rc::clone(&histories),
        rng: RefCell::new(Rng::new(scenario.seed).stream("cuts", 0)),
        report: RefCell::default(),
        violation: RefCell::default(),
    });
    let hook = Rc::clone(&search);
    world.on_step(move |point| hook.at_step(point));
    let ran = world.run_until(scenario.run(&world, &histories));
    search.report.borrow_mut().steps = world.step_count();
    let mut violation = search.violation.borrow_mut().take();
    let broken = |what| Violation { scenario, step: 0, plan: None, what };
    match ran {
        _ if violation.is_some() => {}
        Ok(Ok(())) => search.judge(0, CutPlan::Everything, world.cut(CutPlan::Everything), 0),
        Ok(Err(what)) => violation = Some(broken(what)),
        Err(error) => violation = Some(broken(error.to_string())),
    }
    let last = search.violation.borrow_mut().take();
    match violation.or(last) {
        Some(violation) => Err(Box::new(violation)),
        None => Ok(*search.report.borrow()),
    }
}

impl Search {
    fn at_step(&self, point: &CutPoint<'_>) {
        if self.violation.borrow().is_some() {
            return;
        }
        let seed = {
            let mut rng = self.rng.borrow_mut();
            if !rng.chance(self.effort.steps_per_million) {
                return;
            }
            rng.next_u64()
        };
        let mut plans = CutPlan::standard(point.unflushed(), 4, seed);
        Rng::new(seed).shuffle(&mut plans);
        plans.truncate(self.effort.plans_per_step);
        for plan in plans {
            self.judge(point.steps, plan, point.cut(plan), seed);
        }
    }

    /// Recovers from one cut and keeps the violation, if any.
    fn judge(&self, step: u64, plan: CutPlan, images: Vec<MediaImage>, seed: u64) {
        let nested = self.rng.borrow_mut().chance(self.effort.nested_per_million);
        let histories = self.histories.borrow();
        let mut recoveries = 0;
        let done = recover(&self.scenario, images, &histories, seed, nested, &mut recoveries);
        self.report.borrow_mut().recoveries += recoveries;
        if let Err(what) = done {
            let scenario = self.scenario;
            let violation = Violation { scenario, step, plan: Some(plan), what };
            self.violation.borrow_mut().get_or_insert(violation);
        }
    }
}

/// Opens the pool on these disks and checks every promise; `nested`: cuts this recovery too.
fn recover(
    scenario: &Scenario,
    images: Vec<MediaImage>,
    histories: &[History],
    seed: u64,
    nested: bool,
    recoveries: &mut u64,
) -> Result<(), String> {
    let world = SimWorld::from_media(seed, images);
    let cuts: Rc<RefCell<Vec<Vec<MediaImage>>>> = Rc::default();
    if nested {
        let (cuts, rng) = (Rc::clone(&cuts), RefCell::new(Rng::new(seed).stream("nested", 0)));
        world.on_step(move |point| {
            if rng.borrow_mut().chance(100_000) {
                let plan = CutPlan::Random(rng.borrow_mut().next_u64());
                cuts.borrow_mut().push(point.cut(plan));
            }
        });
    }
    let judged = world.run_until(check(scenario, &world, histories));
    judged.map_err(|error| format!("recovery: {error}"))??;
    *recoveries += 1;
    let cuts = std::mem::take(&mut *cuts.borrow_mut());
    for (index, images) in cuts.into_iter().enumerate() {
        recover(scenario, images, histories, seed + index as u64, false, recoveries)
            .map_err(|what| format!("recovery of a recovery: {what}"))?;
    }
    Ok(())
}

async fn check(
    scenario: &Scenario,
    world: &SimWorld,
    histories: &[History],
) -> Result<(), String> {
    let how = ImportOptions::default();
    let engine = Engine::open(devices(world), how, &scenario.options(world)).await;
    let engine = engine.map_err(|error| format!("open: {error}"))?;
    for (index, history) in histories.iter().enumerate() {
        let volume = engine.volume(&format!("v{index}")).map_err(|error| error.to_string())?;
        let found = read_tags(&volume, history.blocks()).await?;
        history.judge(&found).map_err(|what| format!("v{index}: {what}"))?;
    }
    let differ = engine.check_live_bytes().await.map_err(|error| format!("walk: {error}"))?;
    match differ.first() {
        None => Ok(()),
        Some((vseg, counted, found)) => Err(format!(
            "segment {vseg} counts {counted} live bytes, the trees refer to {found}"
        )),
    }
}

impl Scenario {
    /// The plain scenario a planted bug is most likely to show in.
    pub fn for_bug(seed: u64, bug: PlantedBug) -> Self {
        let mut scenario = Self::of_seed(seed, bug);
        if bug == PlantedBug::SkipChecksum {
            scenario.layout = Layout::Mirror;
            scenario.trouble = Trouble::Fault(crate::fault::Fault::BitRot);
        }
        scenario
    }
}
