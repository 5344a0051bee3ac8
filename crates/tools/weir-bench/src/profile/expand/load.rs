//! Load of one row: a closed loop with a queue depth, or an open loop with a rate.
//!
//! `cells` decides the operations of the row.
//!
//! Invariant: `qd` is the number of operations that all workers of one client have in flight
//! together, and `window` is the number that each worker has in flight. A table of a profile
//! sets at most one of the two.

use std::ops::Range;

use toml::Spanned;

use crate::spec::{Arrival, LoadSpec};

use super::super::error::{ProfileError, Source};
use super::super::format::{ArrivalName, Load, Mode, Test};

/// Load of the profile, for the matrix and for each test that defines no load.
pub(super) fn of_profile(
    source: Source<'_>,
    load: &Spanned<Load>,
) -> Result<LoadSpec, ProfileError> {
    let (place, load) = (load.span(), load.get_ref());
    let refuse = |what: &str, action: &str| Err(source.contradiction(&place, what, action));
    match load.mode {
        Mode::Open => {
            if load.window.is_some() || load.qd.is_some() {
                return refuse(
                    "an open loop has no queue depth: operations start at scheduled times",
                    "leave `window` and `qd` out, or write `mode = \"closed\"`",
                );
            }
            let Some(rate) = load.rate else {
                return refuse("an open loop needs a rate", "add `rate`: operations per second");
            };
            let mut open = open(source, &place, rate, load.arrival, load.workers)?;
            if let LoadSpec::Open { in_flight_max, backlog_max, .. } = &mut open {
                *in_flight_max = load.in_flight_max.unwrap_or(*in_flight_max);
                *backlog_max = load.backlog_max.unwrap_or(*backlog_max);
                bounded(source, &place, u64::from(*in_flight_max), "operations in flight")?;
            }
            Ok(open)
        }
        Mode::Closed => {
            if load.rate.is_some() || load.arrival.is_some() {
                return refuse(
                    "a rate is given, but a closed loop sends as fast as the target completes \
                     operations",
                    "write `mode = \"open\"`, or leave `rate` and `arrival` out",
                );
            }
            if load.in_flight_max.is_some() || load.backlog_max.is_some() {
                return refuse(
                    "only an open loop uses `in_flight_max` and `backlog_max`",
                    "give `window` or `qd`, or write `mode = \"open\"`",
                );
            }
            match (load.window, load.qd) {
                (Some(_), Some(_)) => refuse(
                    "both `window` (per worker) and `qd` (of all workers) are given",
                    "keep the one that the source uses",
                ),
                (Some(depth), None) => {
                    let workers = load.workers.unwrap_or(1);
                    closed(source, &place, workers, u64::from(workers) * u64::from(depth))
                }
                (None, qd) => {
                    closed(source, &place, load.workers.unwrap_or(1), u64::from(qd.unwrap_or(1)))
                }
            }
        }
    }
}

/// Loads of the cells of a test, each with the suffix of the cell's name.
pub(super) fn of_test(
    source: Source<'_>,
    test: &Spanned<Test>,
    profile: Option<&Spanned<Load>>,
    required_iops: Option<f64>,
) -> Result<Vec<(String, LoadSpec)>, ProfileError> {
    let (place, test) = (test.span(), test.get_ref());
    let refuse = |what: &str, action: &str| Err(source.contradiction(&place, what, action));
    let own_rate = test.rate.is_some() || test.rate_of.is_some() || test.arrival.is_some();
    let inherited = profile.map(|load| load.get_ref().mode).unwrap_or_default();
    if test.mode.unwrap_or(inherited) == Mode::Open {
        if test.qd.is_some() || test.threads.is_some() {
            return refuse(
                "an open loop has no queue depth: operations start at scheduled times",
                "leave `qd` and `threads` out, or write `mode = \"closed\"`",
            );
        }
        if test.mode.is_none() && !own_rate && test.search.is_none() {
            return inherit(source, profile);
        }
        let rate = match (&test.rate, &test.rate_of, required_iops) {
            (Some(_), Some(_), _) => {
                return refuse("both `rate` and `rate_of` are given", "keep one of them");
            }
            (Some(rate), None, _) => *rate.get_ref(),
            (None, Some(_), Some(iops)) => iops,
            // A search starts at the rate that the profile requires.
            (None, None, Some(iops)) if test.search.is_some() => iops,
            (None, Some(_), None) => {
                return refuse("`rate_of` names `require.iops`, which is not given", "add it");
            }
            (None, None, _) => {
                return refuse("an open loop needs a rate", "add `rate` or `rate_of`");
            }
        };
        return Ok(vec![(String::new(), open(source, &place, rate, test.arrival, test.workers)?)]);
    }
    if own_rate {
        return refuse(
            "a rate is given, but a closed loop sends as fast as the target completes operations",
            "write `mode = \"open\"`, or leave the rate out",
        );
    }
    if test.search.is_some() {
        return refuse(
            "a search varies the rate, but a closed loop has no rate",
            "write `mode = \"open\"`",
        );
    }
    rows(source, test, &place, profile)
}

/// Makes one closed loop for each queue depth, or for each number of threads.
fn rows(
    source: Source<'_>,
    test: &Test,
    place: &Range<usize>,
    profile: Option<&Spanned<Load>>,
) -> Result<Vec<(String, LoadSpec)>, ProfileError> {
    let refuse = |what: &str, action: &str| Err(source.contradiction(place, what, action));
    match (&test.qd, &test.threads) {
        (Some(_), Some(_)) => refuse("both `qd` and `threads` are given", "make it two tests"),
        (Some(depths), None) => {
            let row = |depth: &Spanned<u32>| {
                let total = u64::from(*depth.get_ref());
                let load = closed(source, &depth.span(), test.workers.unwrap_or(1), total)?;
                // If a test has only one cell, the name of this cell has no suffix.
                let name = if depths.len() > 1 { format!("qd{total}") } else { String::new() };
                Ok((name, load))
            };
            depths.iter().map(row).collect()
        }
        (None, Some(_)) if test.workers.is_some() => {
            refuse("`threads` is already the number of workers", "leave `workers` out")
        }
        (None, Some(threads)) => {
            let row = |count: &Spanned<u32>| {
                let workers = *count.get_ref();
                bounded(source, &count.span(), u64::from(workers), "threads")?;
                Ok((format!("threads {workers}"), LoadSpec::Closed { workers, depth: 1 }))
            };
            threads.iter().map(row).collect()
        }
        (None, None) if profile.is_some() && test.workers.is_none() => inherit(source, profile),
        (None, None) => refuse("a closed loop needs a depth", "add `qd` or `threads`, or a [load]"),
    }
}

fn inherit(
    source: Source<'_>,
    profile: Option<&Spanned<Load>>,
) -> Result<Vec<(String, LoadSpec)>, ProfileError> {
    let load = profile.map(|load| of_profile(source, load)).transpose()?;
    Ok(load.map(|load| (String::new(), load)).into_iter().collect())
}

fn closed(
    source: Source<'_>,
    place: &Range<usize>,
    workers: u32,
    total: u64,
) -> Result<LoadSpec, ProfileError> {
    if workers == 0 || total == 0 {
        let action = "a value of 0 does nothing; give at least 1";
        return Err(source.contradiction(place, "workers or queue depth are 0", action));
    }
    if !total.is_multiple_of(u64::from(workers)) {
        let what = format!("{total} operations in flight are not a multiple of {workers} workers");
        let action = "make `qd` a multiple of `workers`";
        return Err(source.contradiction(place, what, action));
    }
    bounded(source, place, total, "operations in flight")?;
    Ok(LoadSpec::Closed { workers, depth: (total / u64::from(workers)) as u32 })
}

fn bounded(
    source: Source<'_>,
    place: &Range<usize>,
    count: u64,
    what: &str,
) -> Result<(), ProfileError> {
    if count <= IN_FLIGHT_MAX {
        return Ok(());
    }
    let what = format!("{count} {what} exceed the maximum of {IN_FLIGHT_MAX}");
    Err(source.contradiction(place, what, "use several clients"))
}

/// Maximum number of operations that one client has in flight; each operation holds a buffer.
pub(in crate::profile) const IN_FLIGHT_MAX: u64 = 65_536;

/// Maximum rate in operations per second, which no target reaches.
pub(in crate::profile) const RATE_MAX: f64 = 1e9;

/// Creates an open loop with this rate.
pub(super) fn open(
    source: Source<'_>,
    place: &Range<usize>,
    rate: f64,
    arrival: Option<ArrivalName>,
    workers: Option<u32>,
) -> Result<LoadSpec, ProfileError> {
    if !(rate > 0.0 && rate <= RATE_MAX) {
        let what = format!("a rate of {rate} operations per second");
        return Err(source.contradiction(place, what, "give a number above 0, and up to 1e9"));
    }
    let workers = workers.unwrap_or(LoadSpec::OPEN_WORKERS);
    bounded(source, place, u64::from(workers), "workers")?;
    if workers == 0 {
        return Err(source.contradiction(place, "`workers` is 0", "give at least 1"));
    }
    let arrival = match arrival {
        Some(ArrivalName::Constant) => Arrival::Constant,
        Some(ArrivalName::Poisson) | None => Arrival::Poisson,
    };
    let (in_flight_max, backlog_max) = (LoadSpec::OPEN_IN_FLIGHT, LoadSpec::backlog_max(rate));
    Ok(LoadSpec::Open { workers, rate, arrival, in_flight_max, backlog_max })
}
