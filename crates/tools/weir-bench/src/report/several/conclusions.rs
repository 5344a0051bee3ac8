//! Conclusions from several results: sentences with computed differences.
//!
//! `lines` has the rows.
//!
//! Invariants: a difference is the median of the ratios of all rows that both sides have, with the
//! lowest and the highest; the published difference is computed from the same rows.

use super::lines::{Figures, Key, Line, Sheet};
use crate::stats::median;
use crate::words;

/// Ratios of two sides, row by row.
#[derive(Default)]
struct Ratios {
    measured: Vec<f64>,
    published: Vec<f64>,
}

type Of = fn(&Figures) -> Option<f64>;

/// Sentences of the conclusions.
pub(super) fn conclusions(sheets: &[Sheet<'_>]) -> Vec<String> {
    let mut said = Vec::new();
    for sheet in sheets {
        said.extend(patterns(sheet));
    }
    for sheet in sheets {
        said.extend(reads_and_writes(sheet));
    }
    for sheet in sheets {
        said.extend(to_keep_in_mind(sheet));
    }
    let Some((first, others)) = sheets.split_first() else { return said };
    for other in others {
        said.extend(difference(first, other));
    }
    if said.is_empty() {
        said.push("No two rows can be compared.".to_owned());
    }
    said
}

impl Ratios {
    /// Ratios of the figure `of`: rows of `ours` to rows of `theirs`. `partner` returns the
    /// settings of the row of `theirs` for a row of `ours`.
    fn of(ours: &[Line], theirs: &[Line], of: Of, partner: impl Fn(Key) -> Key) -> Self {
        let mut ratios = Self::default();
        for line in ours {
            let Some(key) = line.key.map(&partner) else { continue };
            let Some(other) = theirs.iter().find(|other| other.key == Some(key)) else { continue };
            let ratio = |ours: Option<f64>, theirs: Option<f64>| Some(ours? / theirs?);
            if line.is_usable && other.is_usable {
                ratios.measured.extend(ratio(of(&line.figures), of(&other.figures)));
            }
            let (ours, theirs) = (line.published.as_ref(), other.published.as_ref());
            ratios.published.extend(ratio(ours.and_then(of), theirs.and_then(of)));
        }
        ratios
    }

    /// Formats the measured ratios, and the published ones; `None` without measured ones.
    fn told(&self, with_published: bool) -> Option<String> {
        let told = |values: &[f64]| {
            let middle = median(values)?;
            let least = values.iter().copied().reduce(f64::min)?;
            let most = values.iter().copied().reduce(f64::max)?;
            let [middle, least, most] = [middle, least, most].map(words::short);
            let rows = if values.len() == 1 { "row" } else { "rows" };
            Some(format!("{middle} times ({least} to {most}, {} {rows})", values.len()))
        };
        let measured = told(&self.measured)?;
        let published = told(&self.published).filter(|_| with_published);
        let published = published.map(|text| format!("; published: {text}"));
        Some(measured + &published.unwrap_or_default())
    }
}

/// Sequential operations by random ones, of one result.
fn patterns(sheet: &Sheet<'_>) -> Option<String> {
    let (random, sequential): (Vec<&Line>, Vec<&Line>) = sheet
        .lines
        .iter()
        .filter(|line| line.key.is_some())
        .partition(|line| line.key.is_some_and(|key| key.is_random));
    if random.is_empty() || sequential.is_empty() {
        return None;
    }
    let mut told = Vec::new();
    let figures: [(&str, Of); 2] = [("rate", |of| of.ops_s), ("mean latency", |of| of.mean_ms)];
    for (what, of) in figures {
        // Take the sequential rows as the first side: their partners are random.
        let mut ratios = Ratios::default();
        for line in &sequential {
            let own = std::slice::from_ref(*line);
            let one = Ratios::of(own, &sheet.lines, of, |key| Key { is_random: true, ..key });
            ratios.measured.extend(one.measured);
            ratios.published.extend(one.published);
        }
        told.extend(ratios.told(!sheet.named.is_peer).map(|text| format!("{what} {text}")));
    }
    let name = &sheet.named.name;
    (!told.is_empty()).then(|| format!("{name}, sequential by random: {}.", told.join("; ")))
}

/// Throughput of only reads and of only writes, at the largest block size with both.
fn reads_and_writes(sheet: &Sheet<'_>) -> Option<String> {
    let at = |read_pct: f64, block_bytes: u32| {
        let fits = move |line: &&Line| {
            line.key == Some(Key { is_random: true, block_bytes, read_pct }) && line.is_usable
        };
        sheet.lines.iter().find(fits)
    };
    let mut sizes: Vec<u32> =
        sheet.lines.iter().filter_map(|line| Some(line.key?.block_bytes)).collect();
    sizes.sort_unstable();
    let both = |size: &u32| at(100.0, *size).zip(at(0.0, *size));
    let (reads, writes) = sizes.iter().rev().find_map(both)?;
    let pair = |of: &dyn Fn(&Line) -> Option<f64>| {
        let (reads, writes) = (of(reads)?, of(writes)?);
        let ratio = words::short(reads / writes);
        let [reads, writes] = [reads, writes].map(words::number);
        Some(format!("{reads} and {writes} MiB/s, {ratio} times"))
    };
    let measured = pair(&|line| line.figures.mib_s)?;
    let published = pair(&|line| line.published?.mib_s).filter(|_| !sheet.named.is_peer);
    let published = published.map(|text| format!("; published: {text}")).unwrap_or_default();
    let (name, block) = (&sheet.named.name, &reads.block);
    Some(format!("{name}, random {block}, only reads and only writes: {measured}{published}."))
}

/// Figures that the document lists as its numbers to keep in mind: operations of 4 and 32 KiB with
/// 75 % reads, and the highest throughput.
fn to_keep_in_mind(sheet: &Sheet<'_>) -> Option<String> {
    let lines = || sheet.lines.iter().filter(|line| line.key.is_some() && line.is_usable);
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), words::number);
    let beside = |value: Option<f64>| match value.filter(|_| !sheet.named.is_peer) {
        Some(value) => format!(" (published: {})", words::number(value)),
        None => String::new(),
    };
    let rate = |block_bytes: u32| {
        let key = Some(Key { is_random: true, block_bytes, read_pct: 75.0 });
        let line = lines().find(|line| line.key == key)?;
        let published = line.published.and_then(|figures| figures.ops_s);
        let (block, measured) = (&line.block, number(line.figures.ops_s));
        Some(format!(
            "{measured} random operations of {block} per second at 75:25{}",
            beside(published)
        ))
    };
    let most = |of: &dyn Fn(&Line) -> Option<f64>| lines().filter_map(of).reduce(f64::max);
    let measured = most(&|line| line.figures.mib_s)?;
    let published = most(&|line| line.published?.mib_s);
    let most = format!("at most {} MiB/s{}", words::number(measured), beside(published));
    let told: Vec<String> = [rate(4096), rate(32_768), Some(most)].into_iter().flatten().collect();
    Some(format!("{}: {}.", sheet.named.name, told.join("; ")))
}

/// Difference between the first result and another one.
fn difference(first: &Sheet<'_>, other: &Sheet<'_>) -> Option<String> {
    let is_peer = other.named.is_peer;
    let compared = |what: &str, of: Of| {
        let ratios = if is_peer {
            Ratios::of(&first.lines, &other.lines, of, |key| key)
        } else {
            Ratios::of(&other.lines, &first.lines, of, |key| key)
        };
        ratios.told(!is_peer).map(|text| format!("{what} {text}"))
    };
    let rate = compared("rate", |of| of.ops_s)?;
    let latency = compared("mean latency", |of| of.mean_ms)?;
    let (first_name, name) = (&first.named.name, &other.named.name);
    let (one, two) = if is_peer { (first_name, name) } else { (name, first_name) };
    let load =
        |sheet: &Sheet<'_>| sheet.lines.iter().find(|line| line.key.is_some()).map(|l| l.load);
    let loads = load(first).zip(load(other)).filter(|(first, other)| first != other);
    let loads = loads.map_or_else(String::new, |((workers, depth), (others, other_depth))| {
        format!(
            " ({others} workers with {other_depth} in flight each, in place of {workers} with \
             {depth})"
        )
    });
    Some(format!("{one} by {two}{loads}, row by row: {rate}; {latency}."))
}
