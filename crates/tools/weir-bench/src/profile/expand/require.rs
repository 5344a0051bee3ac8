//! Requirements of a profile, parsed from the names of their bounds: `iops`, `db_read_p99_ms`.
//!
//! The module `requirement` of the crate evaluates the requirements.
//!
//! Invariant: a bound that names a stream which the profile does not define is refused.

use std::collections::BTreeMap;

use toml::Spanned;

use crate::spec::{LatencyBound, LatencyFigure, OpKind, Requirement};

use super::super::error::{ProfileError, Source};
use super::super::format::Profile;

const FIGURES: [(&str, LatencyFigure); 5] = [
    ("mean", LatencyFigure::Mean),
    ("p50", LatencyFigure::P50),
    ("p95", LatencyFigure::P95),
    ("p99", LatencyFigure::P99),
    ("p999", LatencyFigure::P999),
];

/// Returns the requirement of a profile.
pub(super) fn requirement(
    source: Source<'_>,
    profile: &Profile,
) -> Result<Option<Requirement>, ProfileError> {
    let Some(table) = &profile.require else { return Ok(None) };
    let mut require = Requirement::default();
    let entries: &BTreeMap<String, Spanned<f64>> = table.get_ref();
    for (key, value) in entries {
        let (place, number) = (value.span(), *value.get_ref());
        if !(number > 0.0 && number.is_finite()) {
            let what = format!("`{key}` is {number}");
            return Err(source.contradiction(&place, what, "a bound is above 0"));
        }
        match key.as_str() {
            "iops" => require.iops = Some(number),
            "mib_s" => require.mib_s = Some(number),
            _ => {
                let streams: Vec<&str> =
                    profile.stream.iter().map(|stream| stream.get_ref().name.as_str()).collect();
                let unknown = || {
                    let known = known(&streams);
                    let known: Vec<&str> = known.iter().map(String::as_str).collect();
                    source.unknown(&place, key, &known)
                };
                require.latency.push(bound(key, number, &streams).ok_or_else(unknown)?);
            }
        }
    }
    Ok(Some(require))
}

/// Parses a key of the form `[stream_][read_|write_|...]figure_unit` as a bound on a latency.
fn bound(key: &str, number: f64, streams: &[&str]) -> Option<LatencyBound> {
    let (rest, max_us) = match key.strip_suffix("_ms") {
        Some(rest) => (rest, number * 1000.0),
        None => (key.strip_suffix("_us")?, number),
    };
    let (rest, name) = rest.rsplit_once('_').unwrap_or(("", rest));
    let figure = FIGURES.iter().find(|(known, _)| *known == name)?.1;
    // The name of a stream may be the name of a kind of operation.
    let (stream, op) = if streams.contains(&rest) { (rest, None) } else { OpKind::split(rest) };
    let stream = match stream {
        "" => None,
        named => Some(streams.iter().find(|known| **known == named)?.to_string()),
    };
    Some(LatencyBound { stream, op, figure, max_us })
}

fn known(streams: &[&str]) -> Vec<String> {
    let mut known = vec!["iops".to_owned(), "mib_s".to_owned()];
    for stream in streams.iter().map(|name| format!("{name}_")).chain([String::new()]) {
        for op in ["read_", "write_", ""] {
            let bounds = ["mean_ms", "p99_ms"].map(|figure| format!("{stream}{op}{figure}"));
            known.extend(bounds);
        }
    }
    known
}
