//! A job file made into a run.
//!
//! Not here: its text (parse), traps of any run (lint).
//!
//! Invariant: each job is one row; jobs that fio would start together are refused.

use crate::spec::{
    Access, Arrival, BlockShare, CacheState, CellSpec, ContentSpec, DatasetSpec, Durability,
    FillSpec, LoadSpec, RunSpec, Scale, StreamSpec,
};

use super::super::error::{ProfileError, refuse};
use super::super::expand::scale;
use super::super::lint::{Trap, trap};
use super::super::{Options, SECTOR_BYTES};
use super::parse::{Job, jobs, size_bytes};

/// A job file as a run, and what must be known of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// What is to be measured.
    pub spec: RunSpec,
    /// Traps that fio would have walked into, and we do not; those of the run are found by `lint`.
    pub traps: Vec<Trap>,
}

const FILL: FillSpec = FillSpec { block_bytes: 1 << 20, in_flight: 32 };
/// Engines of fio with one operation in flight, whatever `iodepth` says.
const SYNC_ENGINES: [&str; 5] = ["sync", "psync", "vsync", "pvsync", "pvsync2"];
const ASYNC_ENGINES: [&str; 4] = ["io_uring", "libaio", "posixaio", "nbd"];

/// Makes a job file into a run; `file` is its name in errors.
pub fn import_fio(file: &str, text: &str, options: &Options) -> Result<Imported, ProfileError> {
    let jobs = jobs(file, text)?;
    let Some(first) = jobs.first() else {
        return Err(refuse(file, 1, "there is no job", "add a section such as `[job]`"));
    };
    if let Some(job) = jobs.iter().skip(1).find(|job| !job.on("stonewall")) {
        let what = format!("job {:?} runs at the same time as the one before", job.name);
        return Err(refuse(
            file,
            job.line,
            what,
            "add `stonewall`, or put it into a file of its own",
        ));
    }
    let mut assume = vec![
        "everything is written once before it is measured; fio leaves out what it need not".into(),
        "random addresses may repeat (norandommap), and each run has others (randrepeat=0)".into(),
    ];
    let cells = cells(file, &jobs, options.scale)?;
    let (published, content, durability) = common(file, first, &jobs)?;
    let (fill, unit) = fill(&cells);
    let file_bytes = published.file_bytes / unit * unit;
    if file_bytes == 0 {
        let what =
            format!("{} bytes hold no block of {unit} (fill included)", published.file_bytes);
        return Err(refuse(file, first.line, what, "make `size` larger"));
    }
    let published = DatasetSpec { file_bytes, ..published };
    let dataset = scale::dataset(published, options.scale, unit, &mut assume);
    let title = scale::titled(format!("fio job {file}"), options.scale);
    scale::tell(options.scale, &mut assume);
    let (reference, require, limits, sizing, cost) = (None, None, None, None, None);
    let content = ContentSpec { seed: options.seed.unwrap_or(content.seed), ..content };
    let spec = RunSpec {
        name: file.to_owned(),
        title,
        reference,
        assume,
        scale: options.scale,
        dataset,
        content,
        durability,
        fill,
        precondition: None,
        cells,
        bonnie: None,
        require,
        limits,
        sizing,
        cost,
        told: crate::spec::ToldTarget::default(),
    };
    let mut traps = Vec::new();
    jobs.iter().for_each(|job| find(job, &mut traps));
    Ok(Imported { spec, traps })
}

/// A row for each job.
fn cells(file: &str, jobs: &[Job], scale: Scale) -> Result<Vec<CellSpec>, ProfileError> {
    let mut cells: Vec<CellSpec> = Vec::new();
    for job in jobs {
        if cells.iter().any(|cell| cell.name == job.name) {
            let what = format!("two jobs are called {:?}", job.name);
            return Err(refuse(file, job.line, what, "rename one"));
        }
        let mut cell = cell(file, job)?;
        scale::cell(&mut cell, scale, false);
        cells.push(cell);
    }
    Ok(cells)
}

type Common = (DatasetSpec, ContentSpec, Durability);

/// What is the same for a whole run, and so must be for all jobs.
fn common(file: &str, first: &Job, jobs: &[Job]) -> Result<Common, ProfileError> {
    let of = |job: &Job| Ok((dataset(file, job)?, content(file, job)?, durability(file, job)?));
    let common = of(first)?;
    for job in jobs {
        if of(job)? != common {
            let what =
                format!("job {:?} has other data, content or syncs than the first", job.name);
            return Err(refuse(file, job.line, what, "put it into a file of its own"));
        }
    }
    Ok(common)
}

/// The fill, and what every file must be a multiple of.
fn fill(cells: &[CellSpec]) -> (FillSpec, u64) {
    let blocks = cells.iter().flat_map(|cell| &cell.streams).flat_map(|stream| &stream.blocks);
    let largest = blocks.map(|block| block.bytes).max().unwrap_or(FILL.block_bytes);
    let whole = largest.max(FILL.block_bytes).is_multiple_of(largest.min(FILL.block_bytes));
    let fill = if whole { FILL } else { FillSpec { block_bytes: largest, ..FILL } };
    (fill, u64::from(largest.max(fill.block_bytes)))
}

fn cell(file: &str, job: &Job) -> Result<CellSpec, ProfileError> {
    let Some(runtime) = job.time(file, "runtime")? else {
        let what = format!("job {:?} ends with its data, not with a time", job.name);
        return Err(refuse(file, job.line, what, "add `runtime` and `time_based`"));
    };
    let (random, read_pct) = direction(file, job)?;
    let access = if random { distribution(file, job)? } else { Access::Sequential };
    let stream = StreamSpec {
        name: String::new(),
        access,
        blocks: blocks(file, job)?,
        read_pct,
        op: None,
        share: 1,
    };
    Ok(CellSpec {
        name: job.name.clone(),
        table: "fio".to_owned(),
        variant: None,
        streams: vec![stream],
        load: load(file, job)?,
        warmup_ms: job.time(file, "ramp_time")?.unwrap_or(0),
        duration_ms: runtime,
        runs: 1,
        clients: 1,
        cache: CacheState::AsIs,
        verify_pct: 1.0,
        verify_full: false,
        search: None,
    })
}

/// Whether it is random, and the share of reads.
fn direction(file: &str, job: &Job) -> Result<(bool, f64), ProfileError> {
    let rw = job.values.get("rw");
    let (random, mixed, reads) = match rw.map_or("read", |value| value.text.as_str()) {
        "read" => (false, false, 100),
        "write" => (false, false, 0),
        "rw" | "readwrite" => (false, true, 50),
        "randread" => (true, false, 100),
        "randwrite" => (true, false, 0),
        "randrw" => (true, true, 50),
        other => {
            let line = rw.map_or(job.line, |value| value.line);
            let action = "known are read, write, rw, randread, randwrite and randrw";
            return Err(refuse(file, line, format!("`rw` is {other:?}"), action));
        }
    };
    let read = job.number(file, "rwmixread", 0)?;
    let write = job.number(file, "rwmixwrite", 0)?;
    let share = match (mixed, read, write) {
        (false, ..) | (true, None, None) => reads,
        (true, Some(read), None) => read,
        (true, None, Some(write)) => 100_u32.saturating_sub(write.min(100)),
        (true, Some(read), Some(write)) if read.checked_add(write) == Some(100) => read,
        (true, Some(_), Some(_)) => {
            let what = "`rwmixread` and `rwmixwrite` are not 100 together";
            return Err(refuse(file, job.line, what, "keep one of them"));
        }
    };
    if share > 100 || write.is_some_and(|write| write > 100) {
        let what = "the mix is over 100 percent";
        return Err(refuse(file, job.line, what, "give a share from 0 to 100"));
    }
    Ok((random, f64::from(share)))
}

fn distribution(file: &str, job: &Job) -> Result<Access, ProfileError> {
    let Some(value) = job.values.get("random_distribution") else { return Ok(Access::Random) };
    let zipf = value.text.strip_prefix("zipf:").map(str::parse::<f64>);
    match (value.text.as_str(), zipf) {
        ("random", _) => Ok(Access::Random),
        ("zipf", _) => Ok(Access::Zipf { theta: 1.1 }),
        (_, Some(Ok(theta))) if theta > 0.0 && theta < 5.0 => Ok(Access::Zipf { theta }),
        (other, _) => {
            let what = format!("`random_distribution` is {other:?}");
            Err(refuse(file, value.line, what, "known are random and zipf:theta"))
        }
    }
}

fn blocks(file: &str, job: &Job) -> Result<Vec<BlockShare>, ProfileError> {
    let checked = |line: usize, bytes: u64, weight: u32| match u32::try_from(bytes) {
        Ok(bytes) if u64::from(bytes).is_multiple_of(SECTOR_BYTES) && bytes <= 64 << 20 => {
            Ok(BlockShare { bytes, weight })
        }
        _ => {
            let what = format!("a block of {bytes} bytes cannot be done directly");
            let action = "give a multiple of 512 up to 64m; to fio 4kib is 4000, and 4k is 4096";
            Err(refuse(file, line, what, action))
        }
    };
    let Some(split) = job.values.get("bssplit") else {
        let bytes = job.size(file, "bs")?.unwrap_or(4096);
        let line = job.values.get("bs").map_or(job.line, |value| value.line);
        return Ok(vec![checked(line, bytes, 1)?]);
    };
    let share = |part: &str| {
        let (size, weight) = part.split_once('/')?;
        Some((size_bytes(size).filter(|bytes| *bytes > 0)?, weight.trim().parse::<u32>().ok()?))
    };
    let shares: Option<Vec<(u64, u32)>> = split.text.split(':').map(share).collect();
    match shares {
        Some(shares) if shares.iter().map(|(_, weight)| u64::from(*weight)).sum::<u64>() == 100 => {
            shares.into_iter().map(|(bytes, weight)| checked(split.line, bytes, weight)).collect()
        }
        _ => {
            let what = format!("`bssplit` is {:?}", split.text);
            let action = "give sizes with shares that are 100 together, such as 4k/60:64k/40";
            Err(refuse(file, split.line, what, action))
        }
    }
}

fn load(file: &str, job: &Job) -> Result<LoadSpec, ProfileError> {
    let workers = job.number(file, "numjobs", 1)?.unwrap_or(1);
    let depth = if waits(file, job)? { 1 } else { job.number(file, "iodepth", 1)?.unwrap_or(1) };
    let Some(rate) = job.number(file, "rate_iops", 1)? else {
        return Ok(LoadSpec::Closed { workers, depth });
    };
    let process = job.values.get("rate_process");
    let arrival = match process.map_or("linear", |value| value.text.as_str()) {
        "linear" => Arrival::Constant,
        "poisson" => Arrival::Poisson,
        other => {
            let line = process.map_or(job.line, |value| value.line);
            let what = format!("`rate_process` is {other:?}");
            return Err(refuse(file, line, what, "known are linear and poisson"));
        }
    };
    let total = u64::from(rate) * u64::from(workers);
    let in_flight_max = workers.saturating_mul(depth);
    let backlog_max = total.saturating_mul(10).max(1000);
    Ok(LoadSpec::Open { workers, rate: total as f64, arrival, in_flight_max, backlog_max })
}

/// Whether the engine has one operation in flight, whatever is asked for.
fn waits(file: &str, job: &Job) -> Result<bool, ProfileError> {
    let engine = job.values.get("ioengine");
    let name = engine.map_or("psync", |value| value.text.as_str());
    if SYNC_ENGINES.contains(&name) {
        return Ok(true);
    }
    if ASYNC_ENGINES.contains(&name) {
        return Ok(false);
    }
    let line = engine.map_or(job.line, |value| value.line);
    let what = format!("`ioengine` {name:?} does something else than reading and writing a file");
    let known = format!("known are {} and {}", SYNC_ENGINES.join(", "), ASYNC_ENGINES.join(", "));
    Err(refuse(file, line, what, known))
}

fn dataset(file: &str, job: &Job) -> Result<DatasetSpec, ProfileError> {
    let Some(file_bytes) = job.size(file, "size")? else {
        let what = format!("job {:?} has no `size`", job.name);
        return Err(refuse(file, job.line, what, "add it: fio would use all of a device"));
    };
    // Without a name for it, each copy of a job has a file of its own.
    let own = !job.values.contains_key("filename");
    let files = if own { job.number(file, "numjobs", 1)?.unwrap_or(1) } else { 1 };
    Ok(DatasetSpec { files, file_bytes })
}

fn content(file: &str, job: &Job) -> Result<ContentSpec, ProfileError> {
    let share = |key: &str| {
        let pct = job.number(file, key, 0)?.unwrap_or(0);
        let line = job.values.get(key).map_or(job.line, |value| value.line);
        if pct < 100 {
            return Ok(f64::from(pct));
        }
        let what = format!("`{key}` is {pct}: every block would be the same");
        Err(refuse(file, line, what, "give less than 100"))
    };
    let compress = 100.0 / (100.0 - share("buffer_compress_percentage")?);
    let dedupe_pct = share("dedupe_percentage")?;
    let seed = u64::from(job.number(file, "randseed", 0)?.unwrap_or(42));
    Ok(ContentSpec { compress, dedupe_pct, unit_bytes: 4096, seed })
}

fn durability(file: &str, job: &Job) -> Result<Durability, ProfileError> {
    let sync = job.values.get("sync");
    match sync.map_or("none", |value| value.text.as_str()) {
        "1" | "sync" | "dsync" => return Ok(Durability::Fua),
        "0" | "none" => {}
        other => {
            let line = sync.map_or(job.line, |value| value.line);
            let what = format!("`sync` is {other:?}");
            return Err(refuse(file, line, what, "known are none, sync and dsync"));
        }
    }
    let every = [job.number(file, "fsync", 0)?, job.number(file, "fdatasync", 0)?];
    let every_writes = every.into_iter().flatten().filter(|writes| *writes > 0).min();
    Ok(every_writes.map_or(Durability::None, |every_writes| Durability::Flush { every_writes }))
}

/// What fio would have measured instead.
fn find(job: &Job, traps: &mut Vec<Trap>) {
    let name = &job.name;
    if !job.on("direct") {
        traps.push(trap(
            format!("job {name:?}: no `direct=1`"),
            "fio would measure the page cache of this machine; we go around it",
            "do not compare with figures of the job as it is",
        ));
    }
    let engine = job.values.get("ioengine").map_or("psync", |value| value.text.as_str());
    let deep = job.values.get("iodepth").is_some_and(|value| value.text != "1");
    if deep && SYNC_ENGINES.contains(&engine) {
        traps.push(trap(
            format!("job {name:?}: `iodepth` with the engine {engine}"),
            "it has one operation in flight whatever is asked for, and so have we",
            "use `ioengine=io_uring` for the depth that is written",
        ));
    }
    if !job.on("time_based") {
        traps.push(trap(
            format!("job {name:?}: `runtime` without `time_based`"),
            "fio would end early when all of `size` is done; we go on for the whole time",
            "add `time_based`",
        ));
    }
    if job.values.contains_key("rate_iops") {
        traps.push(trap(
            format!("job {name:?}: `rate_iops`"),
            "fio counts latency from when it sent, and waits while the target stalls; we count \
             from the time that was intended",
            "expect higher percentiles here, and trust them",
        ));
    }
}
