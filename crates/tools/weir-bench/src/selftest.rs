//! The program measures itself: targets of known behaviour, and whether it says of them what is
//! known (design/validation.md 4.4).
//!
//! Not here: holding it against another program (calibrate), tests of single parts (theirs).
//!
//! Invariants:
//! - a check says what was wanted and what was found, passed or not;
//! - checks run one after another, so that none takes the processor from the next;
//! - where a busy machine alone can spoil a check, the short form tries it again and takes the
//!   best, and says how often it tried; the full form tries once, for longer;
//! - such a check that fails while other programs use the processor is not judged.

mod agents;
mod content;
mod faults;
mod findings;
mod kit;
mod published;
mod speed;
#[cfg(test)]
mod tests;

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::machine_cpu::{MachineCpu, process_cpu_s};
use crate::run::RunError;
use crate::words;

/// Times that the short form tries what a busy machine can spoil.
const TRIES_MAX: u32 = 3;

/// Share of the processor time of all cores that other programs and other virtual machines may use
/// during a check that time can spoil, in percent: on two cores a fifth of one.
const OTHERS_PCT_MAX: f64 = 10.0;

/// How thorough.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scale {
    /// A minute, for a machine that does other things as well.
    Short,
    /// A few minutes, on a quiet machine.
    Full,
}

impl Scale {
    /// The first of two values for the short form, the second for the full one.
    fn pick<T>(self, short: T, full: T) -> T {
        match self {
            Self::Short => short,
            Self::Full => full,
        }
    }
}

/// A check that was made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Unique in a report.
    pub name: String,
    /// In words, with the bounds.
    pub wanted: String,
    /// In words, with the figures.
    pub found: String,
    /// Whether what was found is what was wanted.
    pub passed: bool,
    /// Why a check that did not pass says nothing about the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_judged: Option<String>,
    /// How often it was tried; the best is told.
    pub tries: u32,
    /// All tries together.
    pub seconds: f64,
}

/// All checks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name and version of the program.
    pub program: String,
    /// How thorough it was.
    pub scale: Scale,
    /// Cores that it could use.
    pub cores: u32,
    /// In the order they were made.
    pub checks: Vec<Check>,
}

/// What a check saw.
struct Seen {
    passed: bool,
    found: String,
    /// How far from what was wanted, to tell the best of several tries.
    off: f64,
}

impl Seen {
    /// Of a check without tries.
    fn of(passed: bool, found: impl Into<String>) -> Self {
        Self { passed, found: found.into(), off: f64::from(u8::from(!passed)) }
    }
}

/// A check to be made.
struct Item {
    name: String,
    wanted: String,
    /// Whether a busy machine alone can spoil it.
    by_time: bool,
    look: Box<dyn Fn(Scale) -> Result<Seen, RunError>>,
}

impl Item {
    fn new(
        name: &str,
        wanted: &str,
        look: impl Fn(Scale) -> Result<Seen, RunError> + 'static,
    ) -> Self {
        let (name, wanted) = (name.to_owned(), wanted.to_owned());
        Self { name, wanted, by_time: false, look: Box::new(look) }
    }

    fn by_time(self) -> Self {
        Self { by_time: true, ..self }
    }
}

/// Makes all checks; `tell` gets each when it is done.
pub fn run(scale: Scale, tell: &mut dyn FnMut(&Check)) -> Report {
    run_items(&items(), scale, tell)
}

/// Every check. A module that has something to say of itself has its line here.
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
    let mut report = Report { program, scale, cores, checks: Vec::with_capacity(items.len()) };
    for item in items {
        let check = make(item, scale);
        tell(&check);
        report.checks.push(check);
    }
    report
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
            found: format!("it could not be looked at: {error}"),
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

/// Why a machine is too busy for figures of time, if it is.
fn busy(others_pct: f64) -> Option<String> {
    (others_pct > OTHERS_PCT_MAX)
        .then(|| format!("others used {others_pct:.0} % of the processor time"))
}

impl Check {
    /// One line: what came of it, of what, and in how many tries.
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
    /// Whether every check passed.
    pub fn passed(&self) -> bool {
        self.checks.iter().all(|check| check.passed)
    }

    /// One line with the number of passed checks. `NOT PROVEN` if none failed and some were not
    /// judged.
    pub fn outcome(&self) -> String {
        let passed = self.checks.iter().filter(|check| check.passed).count();
        let seconds: f64 = self.checks.iter().map(|check| check.seconds).sum();
        let all = self.checks.len();
        let not_judged = self.checks.iter().filter(|check| check.not_judged.is_some()).count();
        let word = match all - passed {
            0 => "PASS",
            failed if failed == not_judged => "NOT PROVEN",
            _ => "FAIL",
        };
        let busy = match not_judged {
            0 => String::new(),
            count => format!("; {count} not judged: run it again on a quiet machine"),
        };
        format!("{word}: {passed} of {all} checks in {} s{busy}", words::short(seconds.round()))
    }

    /// A line for each check, and how many passed.
    pub fn text(&self) -> String {
        let lines = self.checks.iter().map(Check::text).chain([self.outcome()]);
        lines.map(|line| line + "\n").collect()
    }
}
