//! Formats numbers, times and settings for reports.
//!
//! `report` chooses the figures to show.
//!
//! Invariant: a missing figure is described in words, and never shown as zero.

use std::time::{Duration, UNIX_EPOCH};

use weir_base::size::Human;

use crate::spec::{
    Access, Arrival, CacheState, CellSpec, ContentSpec, DatasetSpec, Durability, LoadSpec,
    MetadataSpec, Scale, SearchSpec, StreamSpec,
};

/// Formats a number with three or four significant digits: `12,346`, `751.3`, `20.5`, `0.413`.
pub(crate) fn number(value: f64) -> String {
    let size = value.abs();
    match size {
        _ if !value.is_finite() => "n/a".to_owned(),
        _ if size >= 999.95 => grouped(value),
        _ if size >= 100.0 => format!("{value:.1}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        0.0 => "0".to_owned(),
        _ => format!("{value:.3}"),
    }
}

/// Formats an integer with thousands separators.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

/// Like [`number`], without trailing zeros, for use in a sentence.
pub(crate) fn short(value: f64) -> String {
    let text = number(value);
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

/// Formats microseconds as milliseconds.
pub(crate) fn ms(us: f64) -> String {
    number(us / 1000.0)
}

/// Formats a percentile in milliseconds; if there is none, formats the number of samples instead.
pub(crate) fn percentile_ms(us: Option<f64>, count: u64) -> String {
    us.map_or_else(|| format!("n/a (n = {count})"), ms)
}

/// Formats a change in percent with its sign: `+248 %`.
pub(crate) fn signed_pct(pct: f64) -> String {
    if pct.abs() < 9.95 { format!("{pct:+.1} %") } else { format!("{pct:+.0} %") }
}

/// Formats a time in microseconds as an axis label with a unit.
pub(crate) fn axis_us(us: f64) -> String {
    match us {
        _ if us >= 1e6 => format!("{} s", trimmed(us / 1e6)),
        _ if us >= 1e3 => format!("{} ms", trimmed(us / 1e3)),
        _ => format!("{} µs", trimmed(us)),
    }
}

/// Formats a number as an axis label, without trailing zeros.
pub(crate) fn axis(value: f64) -> String {
    match value.abs() {
        size if size >= 1e6 => format!("{} M", trimmed(value / 1e6)),
        size if size >= 1e3 => grouped(value),
        _ => trimmed(value),
    }
}

fn trimmed(value: f64) -> String {
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Formats a UTC time: `2026-11-22T04:00:00Z`.
pub(crate) fn time(unix_ms: u64) -> String {
    // RFC 3339 does not allow years beyond 9999.
    let seconds = (unix_ms / 1000).min(253_402_300_799);
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(seconds)).to_string()
}

pub(crate) fn duration(ms: u64) -> String {
    humantime::format_duration(Duration::from_millis(ms)).to_string()
}

/// Describes what limits the runs of a cell: a time, a number of bytes, or both.
pub(crate) fn length(cell: &CellSpec) -> String {
    let time = || duration(cell.duration_ms);
    match cell.worker_bytes.map(bytes) {
        None => time(),
        Some(bytes) if cell.duration_ms == 0 => format!("{bytes} for each worker"),
        Some(bytes) => format!("{bytes} for each worker, {} at most", time()),
    }
}

pub(crate) fn bytes(bytes: u64) -> String {
    Human(bytes).to_string()
}

/// Formats the block sizes of all streams: `4KiB`, `32KiB + 8KiB`, `4KiB x3, 64KiB x1`.
pub(crate) fn blocks(cell: &CellSpec) -> String {
    let stream = |stream: &StreamSpec| match &stream.blocks[..] {
        [] => match stream.metadata {
            Some(MetadataSpec::Files { file_bytes: 0, .. }) | None => "empty files".to_owned(),
            Some(MetadataSpec::Files { file_bytes, .. }) => {
                format!("files of {}", bytes(u64::from(file_bytes)))
            }
            Some(MetadataSpec::Mix { .. }) => "no data".to_owned(),
        },
        [one] => bytes(u64::from(one.bytes)),
        [low, high] if matches!(stream.access, Access::Walk { between: true, .. }) => {
            format!("{} to {}", bytes(u64::from(low.bytes)), bytes(u64::from(high.bytes)))
        }
        many => {
            let sizes = many.iter();
            let sizes =
                sizes.map(|size| format!("{} x{}", bytes(u64::from(size.bytes)), size.weight));
            sizes.collect::<Vec<_>>().join(", ")
        }
    };
    cell.streams.iter().map(stream).collect::<Vec<_>>().join(" + ")
}

/// Describes the access patterns of all streams.
pub(crate) fn access(cell: &CellSpec) -> String {
    let one = |stream: &StreamSpec| match stream.access {
        Access::Sequential => "sequential".to_owned(),
        Access::Random => "random".to_owned(),
        Access::Zipf { theta } => format!("zipf {theta}"),
        Access::Hotspot { ops_pct, data_pct } => {
            format!("{ops_pct} % of operations to {data_pct} % of the data")
        }
        Access::Walk { random_pct, align_bytes, .. } => {
            let order = match random_pct {
                100.0 => "random".to_owned(),
                0.0 => "sequential, each worker over all of the data".to_owned(),
                pct => format!(
                    "{pct} % random, the rest continue at the end of the previous operation"
                ),
            };
            format!("{order}, at multiples of {}", bytes(u64::from(align_bytes)))
        }
    };
    cell.streams.iter().map(one).collect::<Vec<_>>().join(" + ")
}

/// Describes the load mode in one word, for table columns.
pub(crate) fn load_mode(load: &LoadSpec) -> &'static str {
    match load {
        LoadSpec::Closed { .. } => "closed",
        LoadSpec::Open { .. } => "open",
    }
}

/// Describes the time that the latency covers. In a closed loop, the latency does not cover
/// operations that the generator could not send during a stall.
pub(crate) fn latency_counts(load: &LoadSpec) -> &'static str {
    match load {
        LoadSpec::Closed { .. } => "service time only",
        LoadSpec::Open { .. } => "latency from the intended time",
    }
}

/// Describes the load, and what its latency includes.
pub(crate) fn load(cell: &CellSpec) -> String {
    let counts = latency_counts(&cell.load);
    let load = match cell.load {
        LoadSpec::Closed { workers, depth } => {
            format!("closed loop, workers x in flight: {workers} x {depth}; {counts}")
        }
        LoadSpec::Open { workers, rate, arrival, .. } => {
            let arrival = match arrival {
                Arrival::Constant => "evenly",
                Arrival::Poisson => "at random (Poisson)",
            };
            format!("open loop, {} per second {arrival}, workers: {workers}; {counts}", short(rate))
        }
    };
    let load = match cell.clients {
        0 | 1 => load,
        clients => format!("each of {clients} clients: {load}"),
    };
    match cell.search {
        None => load,
        Some(SearchSpec::Curve { .. }) => format!("{load}; raised in steps up to the limit"),
        Some(SearchSpec::Knee { .. }) => {
            format!("{load}; search for the highest rate that meets the requirement")
        }
    }
}

/// Short form of [`load`] for a table.
pub(crate) fn load_short(cell: &CellSpec) -> String {
    let load = match (cell.load, &cell.search) {
        (_, Some(_)) => "searched".to_owned(),
        (LoadSpec::Closed { workers, depth }, None) => format!("{workers} x {depth}"),
        (LoadSpec::Open { rate, .. }, None) => format!("{}/s", short(rate)),
    };
    if cell.clients > 1 { format!("{} clients, each {load}", cell.clients) } else { load }
}

pub(crate) fn cache(cache: CacheState) -> &'static str {
    match cache {
        CacheState::AsIs => "left by the previous cells",
        CacheState::Cold => "cold",
        CacheState::WarmMetadata => "metadata warm, data cold",
        CacheState::Warm => "warm",
    }
}

pub(crate) fn scale(scale: Scale) -> &'static str {
    match scale {
        Scale::Smoke => "smoke",
        Scale::Standard => "standard",
        Scale::Seed => "seed",
    }
}

pub(crate) fn durability(durability: Durability) -> String {
    match durability {
        Durability::None => "a completed write is not necessarily durable".to_owned(),
        Durability::Fua => "a completed write is on stable media".to_owned(),
        Durability::Flush { every_writes } => {
            format!("flushed after every {every_writes} writes of a worker")
        }
        Durability::FlushBytes { every_bytes } => {
            format!("flushed after every {} that a worker writes", bytes(every_bytes))
        }
    }
}

pub(crate) fn dataset(dataset: &DatasetSpec) -> String {
    let total = bytes(dataset.total_bytes());
    format!("{total} in {} x {}", dataset.files, bytes(dataset.file_bytes))
}

pub(crate) fn content(content: &ContentSpec) -> String {
    let ContentSpec { compress, dedupe_pct, unit_bytes, seed } = content;
    let unit = bytes(u64::from(*unit_bytes));
    format!("compressible {compress}:1, {dedupe_pct} % of {unit} units are duplicates, seed {seed}")
}

/// Formats the percentage of reads of a stream, or the kind of its operations if the stream has
/// neither reads nor writes.
pub(crate) fn reads(stream: &StreamSpec) -> String {
    stream.op.map_or_else(|| format!("{:.0}", stream.read_pct), |op| op.name().to_owned())
}

/// Describes the metadata operations of a cell: their share, or the files; `None` if the cell has
/// none.
pub(crate) fn metadata(cell: &CellSpec) -> Option<String> {
    let of = |stream: &StreamSpec| match stream.metadata.as_ref()? {
        MetadataSpec::Mix { pct, .. } => Some(format!("{pct} % metadata operations")),
        MetadataSpec::Files { files, shared, .. } => {
            let directory = if *shared { "one shared directory" } else { "its own directory" };
            Some(format!("{files} files of each worker in {directory}"))
        }
    };
    let all: Vec<String> = cell.streams.iter().filter_map(of).collect();
    (!all.is_empty()).then(|| all.join(" + "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_significant_digits() {
        for (value, text) in [
            (1_234_567.4, "1,234,567"),
            (1000.0, "1,000"),
            (999.96, "1,000"),
            (751.3, "751.3"),
            (20.46, "20.46"),
            (0.413, "0.413"),
            (0.0, "0"),
            (-1500.0, "-1,500"),
            (f64::NAN, "n/a"),
        ] {
            assert_eq!(number(value), text);
        }
        assert_eq!(signed_pct(247.8), "+248 %");
        assert_eq!(signed_pct(-7.13), "-7.1 %");
        assert_eq!(percentile_ms(None, 99), "n/a (n = 99)");
        assert_eq!(axis_us(20_000.0), "20 ms");
        assert_eq!(axis(250_000.0), "250,000");
        assert_eq!(axis(1e-5), "0.00001");
        assert_eq!(axis(1_250_000.0), "1.25 M");
        assert_eq!(short(216.0), "216");
        assert_eq!(time(1_700_000_000_000), "2023-11-14T22:13:20Z");
        assert_eq!(time(u64::MAX), "9999-12-31T23:59:59Z");
    }
}
