//! Parses requirements in the syntax of the command line: `216iops,p99=20ms`.
//!
//! `profile/expand/require` reads the requirement of a profile; `requirement` evaluates
//! requirements.
//!
//! Invariant: a bound that cannot be parsed is an error; no bound is omitted silently.

use std::time::Duration;

use crate::spec::{LatencyBound, LatencyFigure, OpKind, Requirement};

/// Reason for which a requirement cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "bad requirement {part:?}: {why}; write bounds such as 216iops, 100MiB/s, p99=20ms or \
     db_read_mean=20ms, separated by commas"
)]
pub struct NeedError {
    part: String,
    why: &'static str,
}

/// Parses bounds that are separated by commas: `Niops`, `NMiB/s`, and
/// `[STREAM_][read_|write_]FIGURE=TIME`, where FIGURE is mean, p50, p95, p99 or p999.
///
/// # Errors
/// A part of the text is not a valid bound, or the text is empty.
pub fn parse_need(text: &str) -> Result<Requirement, NeedError> {
    let mut need = Requirement::default();
    for part in text.split(',').map(str::trim) {
        let bad = |why| NeedError { part: part.to_owned(), why };
        let lower = part.to_ascii_lowercase();
        if let Some((name, time)) = part.split_once('=') {
            need.latency.push(bound(name.trim(), time.trim()).map_err(bad)?);
        } else if let Some(number) = lower.strip_suffix("iops") {
            set(&mut need.iops, number).map_err(bad)?;
        } else if let Some(number) = lower.strip_suffix("mib/s") {
            set(&mut need.mib_s, number).map_err(bad)?;
        } else {
            return Err(bad("it has no `iops` or `MiB/s` at the end, and no `=`"));
        }
    }
    Ok(need)
}

fn set(bound: &mut Option<f64>, number: &str) -> Result<(), &'static str> {
    let number: f64 = number.trim().parse().map_err(|_| "there is no number")?;
    if !(number > 0.0 && number.is_finite()) {
        return Err("a bound is above 0");
    }
    if bound.replace(number).is_some() {
        return Err("it is given twice");
    }
    Ok(())
}

fn bound(name: &str, time: &str) -> Result<LatencyBound, &'static str> {
    let time: Duration =
        time.parse::<humantime::Duration>().map_err(|_| "the time is invalid")?.into();
    if time.is_zero() {
        return Err("a bound is above 0");
    }
    let (rest, figure) = name.rsplit_once('_').unwrap_or(("", name));
    let figure = match figure {
        "mean" => LatencyFigure::Mean,
        "p50" => LatencyFigure::P50,
        "p95" => LatencyFigure::P95,
        "p99" => LatencyFigure::P99,
        "p999" => LatencyFigure::P999,
        _ => return Err("the figure is not mean, p50, p95, p99 or p999"),
    };
    let (stream, op) = OpKind::split(rest);
    let stream = (!stream.is_empty()).then(|| stream.to_owned());
    Ok(LatencyBound { stream, op, figure, max_us: time.as_secs_f64() * 1e6 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_rates_and_latencies() {
        let own = parse_need("compare_and_write_p99=9ms,zeros_write_same_mean=1s").expect("right");
        let [compared, zeros] = own.latency.as_slice() else { panic!("two bounds: {own:?}") };
        let kinds = (compared.op, zeros.stream.as_deref(), zeros.op);
        assert_eq!(kinds, (Some(OpKind::CompareAndWrite), Some("zeros"), Some(OpKind::WriteSame)));
        let need = parse_need("216iops, p99=20ms,db_read_mean=1500us,write_p50=1s,100MiB/s");
        let need = need.expect("it is right");
        assert_eq!((need.iops, need.mib_s), (Some(216.0), Some(100.0)));
        let [p99, db, write] = need.latency.as_slice() else { panic!("three bounds: {need:?}") };
        assert_eq!((p99.figure, p99.max_us), (LatencyFigure::P99, 20_000.0));
        assert_eq!((db.stream.as_deref(), db.op), (Some("db"), Some(OpKind::Read)));
        assert_eq!((write.stream.as_deref(), write.op), (None, Some(OpKind::Write)));
    }

    #[test]
    fn refuses_invalid_bounds() {
        let bad = ["", "216", "0iops", "-1iops", "1iops,2iops", "p98=1ms", "p99=1", "p99=0ms"];
        for text in bad.into_iter().chain(["1iops,", "naniops", "p99=", "=1ms"]) {
            let error = parse_need(text).expect_err(text).to_string();
            assert!(error.contains("216iops"), "{error}");
        }
    }
}
