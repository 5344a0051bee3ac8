//! Reduces a profile to the cells that test a requirement.
//!
//! [`super::assess`] evaluates the results of these cells.
//!
//! Invariants:
//! - an open loop at exactly the needed rate tests whether the requirement is met; a separate
//!   search measures the limit of the target;
//! - a requirement without latency bounds is tested with constant arrivals, because random arrivals
//!   would only add chance to the rates;
//! - dataset, content and durability are those of the profile.

use crate::spec::{Arrival, CellSpec, LoadSpec, Requirement, RunSpec, SearchSpec};

/// Precision of the search in percent: the search ends when it knows the limit to within plus or
/// minus this percentage.
const TOLERANCE_PCT: f64 = 1.0;
/// First rate of the search, as a share of the needed rate. The search doubles this rate, so it
/// never tries exactly the needed rate. At the needed rate, chance would decide whether a target
/// that just suffices passes.
const SEARCH_FROM: f64 = 0.6;

/// Reason for which a profile cannot test a requirement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ValidationError {
    /// The requirement contains no rate, so the load to generate is unknown.
    #[error("the requirement has no rate; add operations per second, such as 216iops")]
    NoRate,
    /// A bound names a stream that the profile does not define.
    #[error("the profile has no stream {name:?}; it has {known}")]
    Stream {
        /// Name of the stream that the bound contains.
        name: String,
        /// Names of the streams that the profile defines.
        known: String,
    },
}

/// Replaces the cells of `spec` by two cells: one at the needed rate, and a search for the highest
/// rate that meets the latency bounds. `need` replaces the requirement of the profile; with `None`,
/// the requirement of the profile remains.
///
/// # Errors
/// The requirement contains no rate, or a bound names a stream that the profile does not define.
pub fn validation(spec: RunSpec, need: Option<Requirement>) -> Result<RunSpec, ValidationError> {
    let need = need.or_else(|| spec.require.clone()).unwrap_or_default();
    let rate = need.iops.ok_or(ValidationError::NoRate)?;
    let is_open = |cell: &&CellSpec| matches!(cell.load, LoadSpec::Open { .. });
    let plain = |cell: &&CellSpec| cell.search.is_none();
    let cells = || spec.cells.iter().filter(plain);
    let like = cells().find(is_open).or_else(|| cells().next()).or_else(|| spec.cells.first());
    let Some(like) = like.cloned() else { return Err(ValidationError::NoRate) };
    for bound in &need.latency {
        let named = |name: &&String| like.streams.iter().all(|stream| stream.name != **name);
        if let Some(name) = bound.stream.as_ref().filter(named) {
            let known: Vec<&str> = like.streams.iter().map(|stream| stream.name.as_str()).collect();
            let known = known.join(", ");
            return Err(ValidationError::Stream { name: name.clone(), known });
        }
    }
    let searched = spec.cells.iter().find(|cell| cell.search.is_some());
    let rate_ms = searched.map_or(like.duration_ms, |cell| cell.duration_ms);
    let at_need = CellSpec {
        name: "at-requirement".to_owned(),
        table: "requirement".to_owned(),
        load: open(&like, rate, &need),
        search: None,
        ..like.clone()
    };
    let knee = CellSpec {
        name: "knee".to_owned(),
        load: open(&like, rate * SEARCH_FROM, &need),
        duration_ms: rate_ms.min(like.duration_ms),
        runs: 1,
        search: Some(SearchSpec::Knee { tolerance_pct: TOLERANCE_PCT, slo: need.clone() }),
        ..at_need.clone()
    };
    let title = format!("{}: is the requirement met?", spec.title);
    let (require, cells) = (Some(need), vec![at_need, knee]);
    Ok(RunSpec { title, require, cells, bonnie: None, ..spec })
}

fn open(like: &CellSpec, rate: f64, need: &Requirement) -> LoadSpec {
    let (workers, arrival, in_flight_max) = match like.load {
        LoadSpec::Open { workers, arrival, in_flight_max, .. } => (workers, arrival, in_flight_max),
        LoadSpec::Closed { .. } => {
            (LoadSpec::OPEN_WORKERS, Arrival::Poisson, LoadSpec::OPEN_IN_FLIGHT)
        }
    };
    let arrival = if need.latency.is_empty() { Arrival::Constant } else { arrival };
    let backlog_max = LoadSpec::backlog_max(rate);
    LoadSpec::Open { workers, rate, arrival, in_flight_max, backlog_max }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{self, Options};
    use crate::requirement::parse_need;

    #[test]
    fn every_profile_is_validated_at_the_needed_rate() {
        for name in profile::names() {
            let spec = profile::load(name, &Options::default()).expect(name);
            let need = parse_need("500iops,p99=20ms").expect("it is right");
            let asked = validation(spec.clone(), Some(need.clone())).expect(name);
            let [at_need, knee] = asked.cells.as_slice() else { panic!("two cells") };
            let LoadSpec::Open { rate, .. } = at_need.load else { panic!("an open loop") };
            assert_eq!((rate, at_need.search.is_some()), (500.0, false), "{name}");
            assert!(matches!(&knee.search, Some(SearchSpec::Knee { slo, .. }) if *slo == need));
            assert_eq!((asked.dataset, asked.content), (spec.dataset, spec.content), "{name}");
        }
    }

    #[test]
    fn missing_rate_and_unknown_stream_are_refused() {
        let spec = || profile::load("quick", &Options::default()).expect("it comes along");
        assert_eq!(validation(spec(), None), Err(ValidationError::NoRate));
        let need = parse_need("1iops,db_p99=1ms").expect("it is right");
        let error = validation(spec(), Some(need)).expect_err("no such stream");
        assert!(matches!(error, ValidationError::Stream { .. }));
        let exchange = profile::load("exchange", &Options::default()).expect("by its short name");
        let asked = validation(exchange, None).expect("its own requirement");
        assert_eq!(asked.require.and_then(|require| require.iops), Some(216.0));
    }
}
