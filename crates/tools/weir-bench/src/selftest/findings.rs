//! Checks each verdict with a target that causes it.
//!
//! `judge` decides the verdicts.
//!
//! Invariant: every finding has a check, and each check measures a real run; no check uses invented
//! figures.

use std::num::NonZero;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use super::kit::{DATASET_BYTES, cell, closed, open, whole_run};
use super::{Item, Seen};
use crate::run::RunError;
use crate::spec::{CellSpec, OpKind};
use crate::target::memory::{Action, Memory};
use crate::target::shaped::Shaped;
use crate::target::{self, Target};
use crate::verdict::{Finding, JudgedRun};

const RUN_MS: u64 = 150;
const RUNS: u32 = 3;

pub(super) fn items() -> Vec<Item> {
    let mut items: Vec<Item> = Finding::ALL.into_iter().map(provoked).collect();
    let nothing = "no remark on a correct target with constant latency";
    let valid = Item::new("verdict: valid", nothing, |_| {
        let spec = CellSpec { duration_ms: 3_200, ..mixed(closed(64)) };
        let found = remarks(&spec, &Shaped::latency(Duration::from_millis(20)))?;
        let text = if found.is_empty() { "no remark".to_owned() } else { found.join("; ") };
        Ok(Seen::of(found.is_empty(), text))
    });
    items.push(valid.by_time());
    for pct in [105, 125] {
        let wanted =
            "overload: the requirement is not met, and completions after the end do not count";
        items.push(Item::new(&format!("{pct} % of a target's limit"), wanted, move |_| {
            offered_share(f64::from(pct) / 100.0, true)
        }));
    }
    let wanted = "no overload";
    let below = Item::new("90 % of a target's limit", wanted, |_| offered_share(0.9, false));
    items.push(below.by_time());
    let wanted = "unsteady, with the number and length of the stalls";
    let frozen = Item::new("a target that stalls for a fifth of the time", wanted, |_| {
        let (period, frozen) = (Duration::from_millis(500), Duration::from_millis(100));
        let target = Shaped::stalls(Duration::from_micros(500), period, frozen);
        let spec = cell(100.0, closed(1), 3_200, 1);
        let found = remarks(&spec, &target)?;
        let text = found.iter().find(|text| text.contains("the target completed no operation"));
        let otherwise = || format!("remarks: {found:?}");
        Ok(Seen::of(text.is_some(), text.cloned().unwrap_or_else(otherwise)))
    });
    items.push(frozen.by_time());
    items
}

/// Runs an open loop for 3.2 s at the fraction `share` of the target's limit of 2,000 operations
/// per second.
fn offered_share(share: f64, is_too_much: bool) -> Result<Seen, RunError> {
    let offered = cell(100.0, open(2_000.0 * share, 256, 100_000), 3_200, 1);
    let found = remarks(&offered, &Shaped::rate(2_000.0))?;
    let overload = found.iter().find(|text| text.starts_with("overload: "));
    let text = overload.cloned().unwrap_or_else(|| "no overload".to_owned());
    Ok(Seen::of(overload.is_some() == is_too_much, text))
}

fn provoked(finding: Finding) -> Item {
    let (target, by_time) = match finding {
        Finding::Invalid => ("a target that fails to read some blocks", false),
        Finding::Corrupt => ("a target that flips a stored bit", false),
        Finding::Holes => ("a target that loses writes to a part of it", false),
        Finding::Overload => ("2,000 operations per second, offered 50,000", false),
        Finding::GeneratorBound => ("a process that is busy on every core", true),
        Finding::Inconsistent => ("a target that blocks the sender for 50 us per operation", true),
        Finding::MixOff => ("a target that rejects writes", false),
        Finding::CacheResident => ("a target whose cache holds the dataset", false),
        Finding::Unsteady => ("a target that becomes slower from run to run", false),
        Finding::UnderSampled => ("a few operations of 20 ms", false),
    };
    let name = format!("verdict: {}", finding.name());
    let item = Item::new(&name, &format!("said of {target}"), move |_| provoke(finding));
    if by_time { item.by_time() } else { item }
}

fn provoke(finding: Finding) -> Result<Seen, RunError> {
    let four = closed(4);
    let found = match finding {
        Finding::Invalid => remarks(&mixed(four), &twisted(OpKind::Read, Action::Fails))?,
        Finding::Corrupt => remarks(&mixed(four), &twisted(OpKind::Write, Action::BitFlipped))?,
        Finding::Holes => remarks(&mixed(four), &twisted(OpKind::Write, Action::Lost))?,
        Finding::Overload => {
            let offered = cell(100.0, open(50_000.0, 16, 1_000), RUN_MS, RUNS);
            remarks(&offered, &Shaped::rate(2_000.0))?
        }
        Finding::GeneratorBound => beside_busy_threads(|| remarks(&mixed(four), &target::null()))?,
        Finding::Inconsistent => {
            // The worker needs 1.6 ms to send 32 operations, far longer than to generate their
            // contents and process their completions. So on average, little more than half of the
            // 32 operations are in flight.
            let slow_to_send = Shaped::new("slow to send", |now| {
                while now.elapsed() < Duration::from_micros(50) {
                    std::hint::spin_loop();
                }
                now
            });
            remarks(&mixed(closed(32)), &slow_to_send)?
        }
        Finding::MixOff => {
            // The target fails only writes of the cell's block size. The writes of the fill are
            // larger, so the target accepts them.
            let memory = Memory::twisted(DATASET_BYTES as usize, |op| match op.kind {
                OpKind::Write if op.len_bytes == super::kit::BLOCK_BYTES => Action::Fails,
                _ => Action::Right,
            });
            remarks(&mixed(four), &memory)?
        }
        Finding::CacheResident => {
            let memory = Memory::new(DATASET_BYTES as usize).with_cache(DATASET_BYTES);
            remarks(&mixed(four), &memory)?
        }
        Finding::Unsteady => {
            // The latency grows with the number of operations. If the latency grew with time and
            // the load started late, the runs would hardly differ.
            let ops = AtomicU32::new(0);
            let slowing = Shaped::new("slowing down", move |now| {
                now + Duration::from_micros(50) * (20 + ops.fetch_add(1, Ordering::Relaxed))
            });
            remarks(&mixed(four), &slowing)?
        }
        Finding::UnderSampled => {
            remarks(&mixed(closed(1)), &Shaped::latency(Duration::from_millis(20)))?
        }
    };
    let is_said = |text: &&String| text.starts_with(&format!("{}: ", finding.name()));
    let text = found.iter().find(is_said);
    let passed = text.is_some();
    Ok(Seen::of(passed, text.cloned().unwrap_or_else(|| format!("remarks: {found:?}"))))
}

/// Runs `what` while this process computes on every core, with twice as many threads as cores, so
/// that its CPU share is large whatever other programs do.
fn beside_busy_threads<T>(what: impl FnOnce() -> T) -> T {
    let threads = 2 * std::thread::available_parallelism().map_or(1, NonZero::get);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while !is_over.load(Ordering::Acquire) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = what();
        is_over.store(true, Ordering::Release);
        result
    })
}

fn mixed(load: crate::spec::LoadSpec) -> CellSpec {
    cell(50.0, load, RUN_MS, RUNS)
}

/// Returns a target in memory that applies `action` to operations of one kind in its first half.
fn twisted(kind: OpKind, action: Action) -> Memory {
    Memory::twisted(DATASET_BYTES as usize, move |op| {
        let is_hit = op.kind == kind && op.offset < DATASET_BYTES / 2;
        if is_hit { action } else { Action::Right }
    })
}

/// Measures a cell and returns the remarks on it: findings with their reasons.
fn remarks(spec: &CellSpec, target: &dyn Target) -> Result<Vec<String>, RunError> {
    let judged = JudgedRun::of(whole_run(spec.clone(), target)?);
    let said = judged.cells().iter().flat_map(|cell| &cell.remarks);
    // A remark may have several examples, separated by semicolons; keep only the first one.
    let first = |detail: &str| detail.split(';').next().unwrap_or_default().to_owned();
    Ok(said.map(|r| format!("{}: {}", r.finding.name(), first(&r.detail))).collect())
}
