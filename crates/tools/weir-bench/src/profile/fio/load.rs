//! Load of a job: a closed loop with a depth, or an open loop with a rate.
//!
//! `streams` reads the kinds of operations.
//!
//! Invariants, which were compared with fio 3.33:
//! - each direction of each copy of a job has the full rate: `rate_iops=100` in a mixed job means
//!   100 reads and 100 writes per second, whatever `rwmixread` is;
//! - if the rate of a job covers only one of the job's directions, the job is refused.

use crate::spec::{Arrival, LoadSpec};

use super::super::error::ProfileError;
use super::super::expand::{IN_FLIGHT_MAX, RATE_MAX};
use super::super::imported::Skipped;
use super::super::lint::{Trap, trap};
use super::parse::Job;
use super::streams::{Pattern, Sizes, sizes};
use super::values::DIRECTIONS;

/// Engines of fio that keep only one operation in flight, whatever `iodepth` is.
const SYNC_ENGINES: [&str; 5] = ["sync", "psync", "vsync", "pvsync", "pvsync2"];
const ASYNC_ENGINES: [&str; 4] = ["io_uring", "libaio", "posixaio", "nbd"];

/// Load of a job, with the weights of its reads and writes.
pub(super) struct Offered {
    pub(super) load: LoadSpec,
    pub(super) weights: [u32; 2],
}

/// Number of copies of a job that run at the same time (`numjobs`).
pub(super) fn workers(job: &Job) -> Result<u32, ProfileError> {
    let workers = job.number("numjobs", 1)?.unwrap_or(1);
    if u64::from(workers) > IN_FLIGHT_MAX {
        let what = format!("{workers} copies of a job");
        return Err(job.refuse("numjobs", what, "use several clients"));
    }
    Ok(workers)
}

/// Derives the load of a job. If the mix has only reads or only writes, `pattern` becomes this one
/// direction.
pub(super) fn offered(
    job: &Job,
    pattern: &mut Pattern,
    workers: u32,
    skipped: &mut Vec<Skipped>,
    traps: &mut Vec<Trap>,
) -> Result<Offered, ProfileError> {
    let mix = mix(job, *pattern)?;
    if pattern.is_mixed() {
        pattern.does = [mix[0] > 0, mix[1] > 0, false];
    }
    let depth = depth(job)?;
    let in_flight = u64::from(workers) * u64::from(depth);
    if in_flight > IN_FLIGHT_MAX {
        let what =
            format!("{in_flight} operations in flight exceed the maximum of {IN_FLIGHT_MAX}");
        return Err(job.refuse("iodepth", what, "use several clients"));
    }
    let Some((rates, arrival)) = rates(job, *pattern)? else {
        return Ok(Offered { load: LoadSpec::Closed { workers, depth }, weights: mix });
    };
    let total = rates.iter().sum::<f64>() * f64::from(workers);
    if total > RATE_MAX {
        let word = if job.value("rate_iops").is_some() { "rate_iops" } else { "rate" };
        let what = format!("a rate of {total} operations per second");
        return Err(job.refuse(word, what, "give a rate that a target can reach"));
    }
    let mut weights = mix;
    if pattern.is_mixed() {
        weights = shares([rates[0], rates[1]]);
        for word in ["rwmixread", "rwmixwrite"] {
            if let Some(value) = job.value(word) {
                let why = "the rates of reads and writes set their shares";
                skipped.push(value.place.skipped(word, why));
            }
        }
        if arrival == Arrival::Constant {
            traps.push(trap(
                format!(
                    "{}: job {:?}: the ratio of the rates gives the share of reads",
                    job.place, job.name
                ),
                "weir spaces all operations evenly; fio spaces reads and writes separately",
                "compare rates and latencies, not the order",
            ));
        }
    }
    let load = LoadSpec::Open {
        workers,
        rate: total,
        arrival,
        in_flight_max: in_flight as u32,
        backlog_max: LoadSpec::backlog_max(total),
    };
    Ok(Offered { load, weights })
}

/// Integer weights of reads and writes: thousandths of an operation per second below 1,000,000
/// operations per second, and whole operations above.
#[expect(clippy::cast_sign_loss, reason = "rates are above 0")]
fn shares(rates: [f64; 2]) -> [u32; 2] {
    let largest = rates[0].max(rates[1]);
    let factor = if largest < 1e6 { 1000.0 } else { 1.0 };
    let [mut a, mut b] = rates.map(|rate| ((rate * factor).round() as u32).max(1));
    let weights = [a, b];
    while b > 0 {
        (a, b) = (b, a % b);
    }
    weights.map(|weight| weight / a)
}

/// Percentages of reads and writes in a mixed job.
fn mix(job: &Job, pattern: Pattern) -> Result<[u32; 2], ProfileError> {
    if !pattern.is_mixed() {
        return Ok([1, 1]);
    }
    let share = |word: &str| {
        let pct = job.number(word, 0)?;
        if pct.is_some_and(|pct| pct > 100) {
            let what = format!("`{word}` is over 100 percent");
            return Err(job.refuse(word, what, "give a share from 0 to 100"));
        }
        Ok(pct)
    };
    match (share("rwmixread")?, share("rwmixwrite")?) {
        (None, None) => Ok([50, 50]),
        (Some(read), None) => Ok([read, 100 - read]),
        (None, Some(write)) => Ok([100 - write, write]),
        (Some(read), Some(write)) if read + write == 100 => Ok([read, write]),
        (Some(_), Some(_)) => {
            let what = "the sum of `rwmixread` and `rwmixwrite` is not 100";
            Err(job.refuse("rwmixwrite", what, "keep one of them"))
        }
    }
}

/// Rate of each copy of a job in each direction, in operations per second; `None` if the job has no
/// rate.
fn rates(job: &Job, pattern: Pattern) -> Result<Option<([f64; 3], Arrival)>, ProfileError> {
    let positive = |rates: [Option<u64>; 3]| rates.map(|rate| rate.filter(|rate| *rate > 0));
    let (iops, bytes) = (positive(job.numbers("rate_iops")?), positive(job.numbers("rate")?));
    if iops == [None; 3] && bytes == [None; 3] {
        return Ok(None);
    }
    let arrival = match job.value("rate_process") {
        None => Arrival::Constant,
        Some(value) => match value.text.as_str() {
            "linear" => Arrival::Constant,
            "poisson" => Arrival::Poisson,
            _ => return Err(value.bad("rate_process", "known are linear and poisson")),
        },
    };
    let (mut rates, mut without) = ([0.0; 3], None);
    for direction in (0..3).filter(|direction| pattern.does[*direction]) {
        let word = if iops[direction].is_some() { "rate_iops" } else { "rate" };
        let rate = match (iops[direction], bytes[direction]) {
            (Some(_), Some(_)) => {
                let what = "both `rate` and `rate_iops` are given";
                return Err(job.refuse("rate", what, "keep one of them"));
            }
            (None, None) => {
                without = Some(direction);
                continue;
            }
            (Some(iops), None) => iops as f64,
            (None, Some(bytes)) => bytes as f64 / f64::from(sizes(job, direction)?.smallest()),
        };
        evenly(job, word, arrival, &sizes(job, direction)?)?;
        rates[direction] = rate;
    }
    match without {
        Some(_) if rates.iter().all(|rate| *rate <= 0.0) => Ok(None),
        Some(direction) => {
            let word = if iops == [None; 3] { "rate" } else { "rate_iops" };
            let what = format!("a rate is given, but not for {}", DIRECTIONS[direction]);
            let action = "give both rates, such as 500,200";
            Err(job.refuse(word, what, action))
        }
        None => Ok(Some((rates, arrival))),
    }
}

/// Refuses a constant rate with several block sizes: fio would keep the bytes per second constant,
/// so that the rate of operations would vary.
fn evenly(job: &Job, word: &str, arrival: Arrival, sizes: &Sizes) -> Result<(), ProfileError> {
    if arrival == Arrival::Poisson || sizes.only().is_some() {
        return Ok(());
    }
    let what = "with several sizes fio's rate is in bytes per second";
    Err(job.refuse(word, what, "give one size, or `rate_process=poisson`"))
}

/// Number of operations that each copy of a job has in flight.
fn depth(job: &Job) -> Result<u32, ProfileError> {
    let depth = if waits(job)? { 1 } else { job.number("iodepth", 1)?.unwrap_or(1) };
    if depth == 1 {
        return Ok(depth);
    }
    let action = "omit it: each operation is sent as soon as a slot is free";
    let one_by_one = [("iodepth_batch", 1), ("iodepth_batch_complete_min", 1)];
    for (word, most) in one_by_one {
        let given = job.number(word, 0)?;
        // With `iodepth_batch=0`, fio submits as many operations at once as the depth permits.
        let bad = given.is_some_and(|it| it > most || (it == 0 && word == "iodepth_batch"));
        if bad {
            let what = format!("`{word}`: several operations at a time");
            return Err(job.refuse(word, what, action));
        }
    }
    if job.number("iodepth_low", 0)?.is_some_and(|low| low != 0 && low != depth) {
        let what = "`iodepth_low` lowers the queue depth";
        return Err(job.refuse("iodepth_low", what, action));
    }
    Ok(depth)
}

/// True if the engine of the job is synchronous. A synchronous engine keeps one operation in
/// flight, whatever `iodepth` is.
fn waits(job: &Job) -> Result<bool, ProfileError> {
    let name = engine(job);
    if SYNC_ENGINES.contains(&name) {
        return Ok(true);
    }
    if ASYNC_ENGINES.contains(&name) {
        return Ok(false);
    }
    let what = format!("`ioengine` {name:?} does not read and write a file");
    let known = format!("known are {} and {}", SYNC_ENGINES.join(", "), ASYNC_ENGINES.join(", "));
    Err(job.refuse("ioengine", what, &known))
}

/// Name of the I/O engine of the job.
pub(super) fn engine(job: &Job) -> &str {
    job.value("ioengine").map_or("psync", |value| value.text.as_str())
}

/// True if the job has a synchronous engine but an `iodepth` other than 1.
pub(super) fn is_too_deep(job: &Job) -> bool {
    let deep = job.value("iodepth").is_some_and(|value| value.text != "1");
    deep && SYNC_ENGINES.contains(&engine(job))
}
