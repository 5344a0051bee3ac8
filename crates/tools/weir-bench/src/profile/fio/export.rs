//! Writes a run as a job file, with which fio generates the same load.
//!
//! This code does not start fio; the user runs the job file.
//!
//! Invariants:
//! - sizes are plain numbers of bytes, because fio reads `kib` as 1000;
//! - the export omits each row that fio cannot run, and names the row in a comment; another comment
//!   lists each difference of an exported row;
//! - a row that was imported is exported as an equal job: direction, sizes, depth, copies, time,
//!   rate;
//! - the target is `${WEIR_TARGET}`: if this variable is not set, fio stops before it writes
//!   anywhere.

use std::fmt::Write as _;

use crate::spec::{Access, Arrival, BlockShare, CellSpec, Durability, LoadSpec, OpKind};
use crate::spec::{RunSpec, StreamSpec};

use super::super::error::ProfileError;

/// Target in an exported job file. fio reads the target from the environment.
pub const FIO_TARGET: &str = "${WEIR_TARGET}";

/// Returns a path in the syntax of job files; `None` if fio would read the text as another path.
pub fn fio_path(path: &str) -> Option<String> {
    let unreadable = |c: char| c.is_control() || matches!(c, '#' | ';' | '$' | '\\');
    let is_plain = !path.contains(unreadable) && path.trim() == path;
    // fio separates file names by colons, so escape each colon.
    is_plain.then(|| path.replace(':', "\\:"))
}

/// Writes the rows of a run as a job file whose jobs run one after the other.
///
/// # Errors
/// `NothingForFio` if fio cannot run any row.
pub fn export_fio(spec: &RunSpec) -> Result<String, ProfileError> {
    let mut text = global(spec);
    let mut left_out = Vec::new();
    let mut jobs = 0;
    for cell in &spec.cells {
        match job(spec, cell) {
            Ok(job) => {
                jobs += 1;
                text.push_str(&job);
            }
            Err(why) => left_out.push(format!("{}: {why}", line(&cell.name))),
        }
    }
    if jobs == 0 {
        return Err(ProfileError::NothingForFio {
            name: spec.name.clone(),
            why: left_out.join("; "),
        });
    }
    for row in left_out {
        push(&mut text, format_args!("# left out: {row}"));
    }
    Ok(text)
}

fn push(text: &mut String, line: std::fmt::Arguments<'_>) {
    writeln!(text, "{line}").expect("a String takes everything");
}

/// Returns a name as one line, without the characters that end a section or begin a comment.
fn line(name: &str) -> String {
    let bad = |c: char| c.is_control() || matches!(c, '[' | ']' | '#' | ';');
    let plain = |c: char| if bad(c) { ' ' } else { c };
    let name: String = name.chars().map(plain).collect();
    name.trim().to_owned()
}

fn global(spec: &RunSpec) -> String {
    let mut text = String::new();
    let content = &spec.content;
    push(&mut text, format_args!("# {}", line(&spec.title)));
    push(&mut text, format_args!("# Set WEIR_TARGET to the file or device; all of it is written."));
    push(&mut text, format_args!("# fio does not fill it first: do so, or holes are read."));
    push(&mut text, format_args!("[global]\nfilename={FIO_TARGET}\nioengine=io_uring"));
    push(
        &mut text,
        format_args!("direct=1\nnorandommap=1\nrandrepeat=1\nrandseed={}", content.seed),
    );
    push(&mut text, format_args!("group_reporting=1\nrefill_buffers=1"));
    let compress_pct = (100.0 - 100.0 / content.compress).round();
    if compress_pct > 0.0 {
        push(&mut text, format_args!("buffer_compress_percentage={compress_pct}"));
    }
    if content.dedupe_pct.round() > 0.0 {
        push(&mut text, format_args!("dedupe_percentage={}", content.dedupe_pct.round()));
    }
    match spec.durability {
        // fio counts writes, so for a number of bytes each job has its own number.
        Durability::None | Durability::FlushBytes { .. } => {}
        Durability::Fua => push(&mut text, format_args!("sync=dsync")),
        Durability::Flush { every_writes } => {
            push(&mut text, format_args!("fdatasync={every_writes}"));
        }
    }
    text
}

/// Streams of a cell that one job can express: a single stream, or one stream of reads and one
/// stream of writes.
enum Kind<'a> {
    Same(&'a StreamSpec),
    Both { reads: &'a StreamSpec, writes: &'a StreamSpec },
}

impl<'a> Kind<'a> {
    fn of(cell: &'a CellSpec) -> Result<Self, &'static str> {
        let pure = |stream: &StreamSpec, pct: f64| {
            stream.op.is_none() && (stream.read_pct - pct).abs() < f64::EPSILON
        };
        if cell.streams.iter().any(StreamSpec::needs_files) {
            return Err("metadata operations");
        }
        match cell.streams.as_slice() {
            [one] if one.op.is_none_or(|op| op == OpKind::Trim) => Ok(Self::Same(one)),
            [_] => Err("operations that fio does not support"),
            [reads, writes] if pure(reads, 100.0) && pure(writes, 0.0) => {
                // fio uses one access pattern for both reads and writes; only the random share of
                // the two may differ.
                let is_skewed = |it: &StreamSpec| {
                    matches!(it.access, Access::Zipf { .. } | Access::Hotspot { .. })
                };
                let alike = if is_skewed(reads) || is_skewed(writes) {
                    reads.access == writes.access
                } else {
                    reads.access.is_random() == writes.access.is_random()
                };
                if alike {
                    Ok(Self::Both { reads, writes })
                } else {
                    Err("reads and writes with different patterns")
                }
            }
            _ => Err("several streams that share one load"),
        }
    }

    /// Streams in the order in which fio lists values: the stream of reads, then the stream of
    /// writes.
    fn streams(&self) -> Vec<&'a StreamSpec> {
        match self {
            Self::Same(stream) => vec![stream],
            Self::Both { reads, writes } => vec![reads, writes],
        }
    }

    /// Share of reads in percent of all operations.
    fn read_pct(&self) -> f64 {
        match self {
            Self::Same(stream) => stream.read_pct,
            Self::Both { reads, writes } => {
                let (reads, writes) = (f64::from(reads.share), f64::from(writes.share));
                100.0 * reads / (reads + writes).max(1.0)
            }
        }
    }

    fn is_trim(&self) -> bool {
        matches!(self, Self::Same(stream) if stream.op == Some(OpKind::Trim))
    }

    fn is_random(&self) -> bool {
        self.streams().iter().any(|stream| stream.access.is_random())
    }
}

/// Writes a cell as a job. If fio cannot run the cell, returns the reason as `Err`.
fn job(spec: &RunSpec, cell: &CellSpec) -> Result<String, &'static str> {
    if cell.search.is_some() {
        return Err("a search");
    }
    let kind = Kind::of(cell)?;
    let mut text = String::new();
    push(&mut text, format_args!("\n[{}]\nstonewall", line(&cell.name)));
    differences(&mut text, cell, &kind);
    let (workers, depth) = match cell.load {
        LoadSpec::Closed { workers, depth } => (workers, depth),
        LoadSpec::Open { workers, in_flight_max, .. } => {
            (workers, (in_flight_max / workers.max(1)).max(1))
        }
    };
    push(&mut text, format_args!("numjobs={workers}\niodepth={depth}"));
    // fio reads a time without a unit in whole seconds, so add the unit.
    push(&mut text, format_args!("ramp_time={}ms", cell.warmup_ms));
    if cell.duration_ms > 0 {
        push(&mut text, format_args!("runtime={}ms", cell.duration_ms));
    }
    match cell.worker_bytes {
        Some(bytes) => push(&mut text, format_args!("io_size={bytes}")),
        None => push(&mut text, format_args!("time_based=1")),
    }
    size(&mut text, spec, &kind, workers)?;
    direction(&mut text, &kind, matches!(cell.load, LoadSpec::Open { .. }))?;
    rate(&mut text, cell, &kind)?;
    places(&mut text, &kind);
    blocks(&mut text, &kind)?;
    if let Durability::FlushBytes { every_bytes } = spec.durability {
        let blocks = kind.streams().into_iter().flat_map(|stream| &stream.blocks);
        let block_max = blocks.map(|block| block.bytes).max().unwrap_or(1);
        let writes = every_bytes.div_ceil(u64::from(block_max));
        push(&mut text, format_args!("fdatasync={writes}"));
    }
    Ok(text)
}

/// Writes the differences between fio and Weir for this cell as comments in the job.
fn differences(text: &mut String, cell: &CellSpec, kind: &Kind<'_>) {
    let mut say = |what: &str| push(text, format_args!("# {what}"));
    if matches!(cell.load, LoadSpec::Open { .. }) {
        say("a rate: fio's latencies exclude the time that operations waited for the target");
    }
    if kind.is_trim() {
        say("fio trims all of it, weir only the last quarter");
    }
    if let Kind::Same(stream) = kind {
        let is_mixed = stream.read_pct > 0.0 && stream.read_pct < 100.0;
        if is_mixed && !stream.access.is_random() {
            say("fio keeps separate positions for reads and writes, weir one for both");
        }
        let keeps_size = !matches!(stream.access, Access::Walk { .. });
        if keeps_size && stream.blocks.len() > 1 {
            say("fio aligns operations to the smallest size, weir to their own size");
        }
    }
}

fn size(
    text: &mut String,
    spec: &RunSpec,
    kind: &Kind<'_>,
    workers: u32,
) -> Result<(), &'static str> {
    let total = spec.dataset.total_bytes();
    let in_parts = kind.streams().iter().all(|stream| stream.access == Access::Sequential);
    // If the dataset has one file for each worker, each copy of the fio job uses one range of the
    // target in place of a file. A skewed distribution is an exception: it covers the whole
    // dataset, so each copy of the fio job gets the whole target.
    let evenly = |it: &&StreamSpec| matches!(it.access, Access::Random | Access::Walk { .. });
    let files = workers > 1 && spec.dataset.files == workers && kind.streams().iter().all(evenly);
    let shares_all = kind.streams().iter().any(
        |stream| matches!(stream.access, Access::Walk { random_pct, .. } if random_pct <= 0.0),
    );
    if shares_all || !(in_parts || files) {
        push(text, format_args!("size={total}"));
        return Ok(());
    }
    let blocks = kind.streams().into_iter().flat_map(|stream| &stream.blocks);
    let largest = blocks.map(|block| u64::from(block.bytes)).max().unwrap_or(1);
    let part = total / u64::from(workers) / largest * largest;
    if part == 0 {
        return Err("more workers than blocks");
    }
    push(text, format_args!("size={part}"));
    if workers > 1 {
        push(text, format_args!("offset_increment={part}"));
    }
    Ok(())
}

fn direction(text: &mut String, kind: &Kind<'_>, by_rates: bool) -> Result<(), &'static str> {
    let prefix = if kind.is_random() { "rand" } else { "" };
    let pct = kind.read_pct();
    if kind.is_trim() {
        push(text, format_args!("rw={prefix}trim"));
    } else if pct >= 100.0 {
        push(text, format_args!("rw={prefix}read"));
    } else if pct <= 0.0 {
        push(text, format_args!("rw={prefix}write"));
    } else {
        push(text, format_args!("rw={prefix}rw"));
        // The rates of reads and writes define the share of reads more exactly than `rwmixread`
        // can.
        if !by_rates {
            if (pct - pct.round()).abs() > 1e-9 {
                return Err("a share of reads that is not a whole percentage");
            }
            push(text, format_args!("rwmixread={}", pct.round()));
        }
    }
    Ok(())
}

/// Writes the rate of each worker. A mixed job has a rate for reads and a rate for writes.
#[expect(clippy::cast_sign_loss, reason = "rates are above 0")]
fn rate(text: &mut String, cell: &CellSpec, kind: &Kind<'_>) -> Result<(), &'static str> {
    let LoadSpec::Open { workers, rate, arrival, .. } = cell.load else { return Ok(()) };
    let several = kind.streams().iter().any(|stream| stream.blocks.len() > 1);
    if several && arrival == Arrival::Constant {
        return Err("a rate with several sizes, which fio converts to bytes per second");
    }
    let each = rate / f64::from(workers.max(1));
    let pct = kind.read_pct();
    let mixed = !kind.is_trim() && pct > 0.0 && pct < 100.0;
    let parts =
        if mixed { vec![each * pct / 100.0, each * (100.0 - pct) / 100.0] } else { vec![each] };
    let whole: Vec<u64> = parts.iter().map(|part| part.round() as u64).collect();
    let is_exact = |(part, whole): (&f64, &u64)| {
        *whole > 0 && u32::try_from(*whole).is_ok() && (part - *whole as f64).abs() < 1e-3 * part
    };
    if !parts.iter().zip(&whole).all(is_exact) {
        return Err("a rate that is not a whole number for each worker and direction");
    }
    let words: Vec<String> = whole.iter().map(u64::to_string).collect();
    push(text, format_args!("rate_iops={}", words.join(",")));
    if arrival == Arrival::Poisson {
        push(text, format_args!("rate_process=poisson"));
    }
    Ok(())
}

/// Writes the address distribution, unless the addresses are sequential or uniformly random.
fn places(text: &mut String, kind: &Kind<'_>) {
    let streams = kind.streams();
    match streams.first().map(|stream| stream.access) {
        Some(Access::Zipf { theta }) => {
            push(text, format_args!("random_distribution=zipf:{theta}"));
        }
        Some(Access::Hotspot { ops_pct, data_pct }) => {
            let (ops, data) = (ops_pct.round(), data_pct.round());
            let (rest, cold) = (100.0 - ops, 100.0 - data);
            push(text, format_args!("random_distribution=zoned:{ops}/{data}:{rest}/{cold}"));
        }
        _ => {}
    }
    let each = |word: &str, text: &mut String, value: &dyn Fn(&StreamSpec) -> Option<u32>| {
        let values: Vec<String> =
            streams.iter().filter_map(|it| value(it)).map(|it| it.to_string()).collect();
        if values.len() == streams.len() {
            push(text, format_args!("{word}={}", values.join(",")));
        }
    };
    let random_pct = |stream: &StreamSpec| match stream.access {
        Access::Walk { random_pct, .. } => whole(random_pct),
        _ => 100,
    };
    if kind.is_random() && streams.iter().any(|stream| random_pct(stream) < 100) {
        each("percentage_random", text, &|stream| Some(random_pct(stream)));
    }
    let is_set_apart = streams.iter().any(|stream| {
        let smallest = stream.blocks.iter().map(|block| block.bytes).min();
        matches!(stream.access, Access::Walk { align_bytes, .. } if Some(align_bytes) != smallest)
    });
    if is_set_apart {
        each("blockalign", text, &|stream| match stream.access {
            Access::Walk { align_bytes, .. } => Some(align_bytes),
            _ => stream.blocks.iter().map(|block| block.bytes).min(),
        });
    }
}

#[expect(clippy::cast_sign_loss, reason = "shares are not negative")]
fn whole(pct: f64) -> u32 {
    pct.round() as u32
}

/// Writes the block sizes: one size, a range of sizes, or a set of sizes with whole percentages. If
/// reads and writes have different sizes, each direction gets its own value.
fn blocks(text: &mut String, kind: &Kind<'_>) -> Result<(), &'static str> {
    let mut streams = kind.streams();
    streams.dedup_by(|one, other| one.blocks == other.blocks);
    let between = |it: &&StreamSpec| matches!(it.access, Access::Walk { between: true, .. });
    let joined = |word: &str, one: &dyn Fn(&[BlockShare]) -> Option<String>| {
        let values: Option<Vec<String>> = streams.iter().map(|it| one(&it.blocks)).collect();
        values.map(|values| format!("{word}={}", values.join(",")))
    };
    // fio reads three values as the sizes of reads, writes and trims. A single value applies to all
    // three, so a job that trims needs only one.
    let line = if streams.iter().all(|it| it.blocks.len() == 1) {
        joined("bs", &|blocks| blocks.first().map(|block| block.bytes.to_string()))
    } else if streams.iter().any(between) {
        joined("bsrange", &|blocks| {
            let (low, high) = (blocks.first()?.bytes, blocks.last()?.bytes);
            Some(format!("{low}-{high}"))
        })
        .filter(|_| streams.iter().all(|it| between(it) || it.blocks.len() == 1))
    } else {
        joined("bssplit", &|blocks| Some(split(blocks)))
    };
    push(text, format_args!("{}", line.ok_or("a range of sizes beside a set of sizes")?));
    Ok(())
}

/// Formats a set of sizes with whole percentages. The last size gets the remainder of the rounding.
fn split(blocks: &[BlockShare]) -> String {
    let total: u64 = blocks.iter().map(|block| u64::from(block.weight)).sum();
    let mut left = 100;
    let last = blocks.len().saturating_sub(1);
    let mut parts = Vec::new();
    for (index, block) in blocks.iter().enumerate() {
        let share = u64::from(block.weight) * 100 / total.max(1);
        let share = if index == last { left } else { share };
        left -= share;
        parts.push(format!("{}/{share}", block.bytes));
    }
    parts.join(":")
}
