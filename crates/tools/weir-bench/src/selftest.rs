//! Self-test: measures targets whose behaviour is known, and checks that the results agree with
//! this behaviour.
//!
//! `calibrate` compares Weir with another program; each module has its own unit tests.
//!
//! Invariants:
//! - each check reports the wanted and the measured result, whether the check passes or fails;
//! - a check runs alone if load on the machine can make it fail; in the full form, all run alone;
//! - the short form repeats such a check, takes the best result and reports the number of tries;
//!   the full form runs the check once, for longer;
//! - if such a check fails while programs other than the self-test keep the processor busy
//!   (`OTHERS_PCT_MAX`), the check is not judged.

mod agents;
mod content;
mod faults;
mod findings;
mod kit;
mod published;
mod speed;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::machine_cpu::{MachineCpu, process_cpu_s};
use crate::run::RunError;
use crate::words;

/// Maximum number of tries in the short form, for a check that can fail because of load on the
/// machine.
const TRIES_MAX: u32 = 3;

/// Number of concurrent checks in the short form, before the checks that run alone. Half of these
/// checks wait for their targets.
const CONCURRENT: usize = 2;

/// Processor time that programs other than the self-test, and other virtual machines, may use
/// during a check that depends on timing, in percent of all cores. On two cores, 10 % is a fifth of
/// one core.
const OTHERS_PCT_MAX: f64 = 10.0;

/// Thoroughness of the self-test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// Takes about a minute; for a machine with other load.
    Short,
    /// Takes a few minutes; for an idle machine.
    Full,
}

impl Scale {
    /// Returns the argument for this scale.
    fn pick<T>(self, short: T, full: T) -> T {
        match self {
            Self::Short => short,
            Self::Full => full,
        }
    }
}

/// Result of one check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Name of the check, which is unique in a report.
    pub name: String,
    /// Wanted result in words, with its bounds.
    pub wanted: String,
    /// Measured result in words, with its figures.
    pub found: String,
    /// True if the measured result is within the bounds of the wanted result.
    pub passed: bool,
    /// Reason for which a failed check says nothing about the program; `None` if the check is
    /// judged.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_judged: Option<String>,
    /// Number of tries; the report contains the result of the best try.
    pub tries: u32,
    /// Duration of all tries in seconds.
    pub seconds: f64,
}

/// Results of all checks of a self-test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name and version of the program.
    pub program: String,
    /// Thoroughness of this self-test.
    pub scale: Scale,
    /// Number of cores that the program can use.
    pub cores: u32,
    /// Duration of the self-test in seconds; less than the sum of its checks if some of them ran at
    /// the same time.
    pub seconds: f64,
    /// Results of the checks, in the same order for each self-test.
    pub checks: Vec<Check>,
}

/// Result of one try of a check.
struct Seen {
    passed: bool,
    found: String,
    /// Deviation from the wanted result, by which the best of several tries is chosen.
    off: f64,
}

impl Seen {
    /// Creates the result of a check that measures no deviation.
    fn of(passed: bool, found: impl Into<String>) -> Self {
        Self { passed, found: found.into(), off: f64::from(u8::from(!passed)) }
    }
}

/// Check that has not run yet.
struct Item {
    name: String,
    wanted: String,
    /// True if the check depends on timing, so that other load on the machine can make it fail.
    by_time: bool,
    look: Box<dyn Fn(Scale) -> Result<Seen, RunError> + Send + Sync>,
}

impl Item {
    fn new(
        name: &str,
        wanted: &str,
        look: impl Fn(Scale) -> Result<Seen, RunError> + Send + Sync + 'static,
    ) -> Self {
        let (name, wanted) = (name.to_owned(), wanted.to_owned());
        Self { name, wanted, by_time: false, look: Box::new(look) }
    }

    fn by_time(self) -> Self {
        Self { by_time: true, ..self }
    }
}

/// Runs all checks. Calls `tell` with each result, as soon as the check is complete.
pub fn run(scale: Scale, tell: &mut dyn FnMut(&Check)) -> Report {
    run_items(&items(), scale, tell)
}

/// Returns all checks. This function lists each module that has checks.
fn items() -> Vec<Item> {
    let mut items = speed::items();
    items.extend(content::items());
    items.extend(faults::items());
    items.extend(findings::items());
    items.extend(published::items());
    items.extend(agents::items());
    items
}

fn run_items(items: &[Item], scale: Scale, tell: &mut dyn FnMut(&Check)) -> Report {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let program = format!("weir {}", env!("CARGO_PKG_VERSION"));
    let began = Instant::now();
    let is_alone = |item: &Item| item.by_time || scale == Scale::Full;
    let (alone, others): (Vec<_>, Vec<_>) =
        items.iter().enumerate().partition(|(_, item)| is_alone(item));
    let mut checks = make_concurrently(&others, scale, tell);
    for (index, item) in alone {
        let check = make(item, scale);
        tell(&check);
        checks.push((index, check));
    }
    checks.sort_by_key(|(index, _)| *index);
    let checks = checks.into_iter().map(|(_, check)| check).collect();
    Report { program, scale, cores, seconds: began.elapsed().as_secs_f64(), checks }
}

/// Makes checks in [`CONCURRENT`] threads. Returns each check with its index.
fn make_concurrently(
    items: &[(usize, &Item)],
    scale: Scale,
    tell: &mut dyn FnMut(&Check),
) -> Vec<(usize, Check)> {
    let next = AtomicUsize::new(0);
    let (sender, receiver) = mpsc::channel();
    let work = |sender: mpsc::Sender<_>| {
        while let Some((index, item)) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
            // The receiver exists until all threads have ended.
            sender.send((*index, make(item, scale))).ok();
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT {
            let sender = sender.clone();
            scope.spawn(|| work(sender));
        }
        drop(sender);
        receiver.iter().inspect(|(_, check)| tell(check)).collect()
    })
}

fn make(item: &Item, scale: Scale) -> Check {
    let began = Instant::now();
    let tries_max = if item.by_time { scale.pick(TRIES_MAX, 1) } else { 1 };
    let mut best: Option<Seen> = None;
    let mut tries = 0;
    let (machine, own) = (MachineCpu::now(), process_cpu_s());
    while tries < tries_max && best.as_ref().is_none_or(|best| !best.passed) {
        tries += 1;
        let seen = (item.look)(scale).unwrap_or_else(|error| Seen {
            passed: false,
            found: format!("it failed: {error}"),
            off: f64::INFINITY,
        });
        if best.as_ref().is_none_or(|best| seen.passed || seen.off < best.off) {
            best = Some(seen);
        }
    }
    let Seen { passed, found, .. } = best.expect("it was tried once at least");
    let (name, wanted) = (item.name.clone(), item.wanted.clone());
    let seconds = began.elapsed().as_secs_f64();
    let own_after = process_cpu_s();
    let own_s = own_after.0 - own.0 + own_after.1 - own.1;
    let (steal_pct, others_pct) = MachineCpu::now().since(&machine, own_s);
    let not_judged = busy(steal_pct + others_pct).filter(|_| item.by_time && !passed);
    Check { name, wanted, found, passed, not_judged, tries, seconds }
}

/// Reason for which a check that depends on timing is not judged; `None` if the machine is idle
/// enough.
fn busy(others_pct: f64) -> Option<String> {
    (others_pct > OTHERS_PCT_MAX).then(|| format!("others used {others_pct:.0} % of the CPU time"))
}

impl Check {
    /// Formats one line with the outcome, the measured and the wanted result, and the number of
    /// tries.
    pub fn text(&self) -> String {
        let outcome = match (self.passed, &self.not_judged) {
            (true, _) => "ok    ",
            (false, None) => "FAILED",
            (false, Some(_)) => "busy  ",
        };
        let why = self.not_judged.as_ref().map(|why| format!("; not judged: {why}"));
        let why = why.unwrap_or_default();
        let tries = if self.tries > 1 { format!(", {} tries", self.tries) } else { String::new() };
        let Self { name, wanted, found, seconds, .. } = self;
        format!("{outcome} {name}: {found} (wanted: {wanted}; {seconds:.1} s{tries}{why})")
    }
}

impl Report {
    /// True if all checks passed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }

    /// Formats one line with the number of checks that passed. The outcome is `NOT PROVEN` if all
    /// checks that did not pass were not judged.
    pub fn outcome(&self) -> String {
        let passed = self.checks.iter().filter(|check| check.passed).count();
        let all = self.checks.len();
        let not_judged = self.checks.iter().filter(|check| check.not_judged.is_some()).count();
        let word = match all - passed {
            0 => "PASS",
            failed if failed == not_judged => "NOT PROVEN",
            _ => "FAIL",
        };
        let busy = match not_judged {
            0 => String::new(),
            count => format!("; {count} not judged; run the self-test again on an idle machine"),
        };
        format!(
            "{word}: {passed} of {all} checks in {} s{busy}",
            words::short(self.seconds.round())
        )
    }

    /// Formats one line for each check, and a line with the number of checks that passed.
    pub fn text(&self) -> String {
        let lines = self.checks.iter().map(Check::text).chain([self.outcome()]);
        lines.map(|line| line + "\n").collect()
    }
}
