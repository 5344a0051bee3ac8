//! A run written as a job file, for fio to do the same load.
//!
//! Not here: running it; open loops, which fio cannot offer without leaving stalls out.
//!
//! Invariants:
//! - sizes are plain numbers of bytes, because `kib` means 1000 to fio;
//! - a row that fio cannot do is left out and named in a comment;
//! - the target is `${WEIR_TARGET}`: without it fio stops before it writes anywhere.

use std::fmt::Write as _;

use crate::spec::{Access, CellSpec, Durability, LoadSpec, RunSpec, StreamSpec};

use super::super::error::ProfileError;

/// What an exported job file names as its target; fio takes it from the environment.
pub const FIO_TARGET: &str = "${WEIR_TARGET}";

/// Writes the closed loops of a run as a job file, one job after the other.
///
/// # Errors
/// `NothingForFio` where the run has no row that fio can do.
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

/// A name as one line without brackets, which would end a section.
fn line(name: &str) -> String {
    let plain = |c: char| if c.is_control() || matches!(c, '[' | ']') { ' ' } else { c };
    name.chars().map(plain).collect()
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
    push(&mut text, format_args!("time_based=1\ngroup_reporting=1\nrefill_buffers=1"));
    let compress_pct = (100.0 - 100.0 / content.compress).round();
    if compress_pct > 0.0 {
        push(&mut text, format_args!("buffer_compress_percentage={compress_pct}"));
    }
    if content.dedupe_pct.round() > 0.0 {
        push(&mut text, format_args!("dedupe_percentage={}", content.dedupe_pct.round()));
    }
    match spec.durability {
        Durability::None => {}
        Durability::Fua => push(&mut text, format_args!("sync=dsync")),
        Durability::Flush { every_writes } => {
            push(&mut text, format_args!("fdatasync={every_writes}"));
        }
    }
    text
}

/// A row as a job; why not, where fio cannot do it.
fn job(spec: &RunSpec, cell: &CellSpec) -> Result<String, &'static str> {
    let LoadSpec::Closed { workers, depth } = cell.load else {
        return Err("an open loop, which fio leaves stalls out of");
    };
    if cell.search.is_some() {
        return Err("a search");
    }
    let [stream] = cell.streams.as_slice() else {
        return Err("several streams that share one load");
    };
    if stream.op.is_some() {
        return Err("operations of the target's own, which fio has not");
    }
    if (stream.read_pct - stream.read_pct.round()).abs() > f64::EPSILON {
        return Err("a share of reads that is no whole percent");
    }
    let mut text = String::new();
    push(&mut text, format_args!("\n[{}]\nstonewall", line(&cell.name)));
    push(&mut text, format_args!("numjobs={workers}\niodepth={depth}"));
    // fio takes whole seconds without a unit.
    push(&mut text, format_args!("ramp_time={}ms\nruntime={}ms", cell.warmup_ms, cell.duration_ms));
    let total = spec.dataset.total_bytes();
    let random = !matches!(stream.access, Access::Sequential);
    if random {
        push(&mut text, format_args!("size={total}"));
    } else {
        let largest = stream.blocks.iter().map(|block| u64::from(block.bytes)).max().unwrap_or(1);
        let part = total / u64::from(workers) / largest * largest;
        if part == 0 {
            return Err("more workers than blocks");
        }
        push(&mut text, format_args!("size={part}\noffset_increment={part}"));
    }
    push(&mut text, format_args!("{}", direction(stream, random)));
    match stream.access {
        Access::Sequential | Access::Random => {}
        Access::Zipf { theta } => push(&mut text, format_args!("random_distribution=zipf:{theta}")),
        Access::Hotspot { ops_pct, data_pct } => {
            let (ops, data) = (ops_pct.round(), data_pct.round());
            let (rest, cold) = (100.0 - ops, 100.0 - data);
            push(&mut text, format_args!("random_distribution=zoned:{ops}/{data}:{rest}/{cold}"));
        }
    }
    blocks(&mut text, stream);
    Ok(text)
}

fn direction(stream: &StreamSpec, random: bool) -> String {
    let pct = stream.read_pct.round();
    let prefix = if random { "rand" } else { "" };
    if pct >= 100.0 {
        format!("rw={prefix}read")
    } else if pct <= 0.0 {
        format!("rw={prefix}write")
    } else {
        format!("rw={prefix}rw\nrwmixread={pct}")
    }
}

/// One size, or a set in whole percent; what rounding leaves goes to the last.
fn blocks(text: &mut String, stream: &StreamSpec) {
    if let [one] = stream.blocks.as_slice() {
        return push(text, format_args!("bs={}", one.bytes));
    }
    let total: u64 = stream.blocks.iter().map(|block| u64::from(block.weight)).sum();
    let mut left = 100;
    let last = stream.blocks.len().saturating_sub(1);
    let mut parts = Vec::new();
    for (index, block) in stream.blocks.iter().enumerate() {
        let share = u64::from(block.weight) * 100 / total.max(1);
        let share = if index == last { left } else { share };
        left -= share;
        parts.push(format!("{}/{share}", block.bytes));
    }
    push(text, format_args!("bssplit={}", parts.join(":")));
}
