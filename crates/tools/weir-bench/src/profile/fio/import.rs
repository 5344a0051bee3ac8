//! Imports a job file of fio as a run.
//!
//! `parse` reads the text of the file, `streams` the operations, `load` the depths and rates,
//! `region` the sizes. `lint` finds the traps of any run.
//!
//! Invariant: each job becomes one row. Jobs that fio would run at the same time are refused.

use crate::spec::{CacheState, CellSpec, ContentSpec, Durability};

use super::super::Options;
use super::super::error::{ProfileError, refuse};
use super::super::imported::{self, Imported, Said, Skipped};
use super::super::lint::{Trap, trap};
use super::load::{self, Offered};
use super::parse::{self, Job};
use super::region::Region;
use super::streams::{self, Pattern};
use super::values::Amount;

/// Imports a job file. `file` is the path of the file, which errors contain and which locates
/// included files.
pub fn import_fio(file: &str, text: &str, options: &Options) -> Result<Imported, ProfileError> {
    let mut read = parse::read(file, text)?;
    let Some(first) = read.jobs.first() else {
        return Err(refuse(file, 1, "the file has no job", "add a section such as `[job]`"));
    };
    for job in &read.jobs {
        let alone = job.flag("stonewall", false)?;
        if !alone && job.place != first.place {
            let what = format!("job {:?} runs at the same time as the one before", job.name);
            let action = "add `stonewall`, or put it into a file of its own";
            return Err(job.place.refuse(what, action));
        }
    }
    let (mut skipped, mut traps) = (Vec::new(), Vec::new());
    let mut rows = Vec::new();
    for job in &read.jobs {
        if let Some(base) = job.value("kb_base").filter(|it| !["1000", "1024"].contains(&&*it.text))
        {
            return Err(base.bad("kb_base", "give 1000 or 1024"));
        }
        if rows.iter().any(|row: &Row| row.cell.name == job.name) {
            let what = format!("two jobs are called {:?}", job.name);
            return Err(job.place.refuse(what, "rename one"));
        }
        rows.push(row(job, options, &mut skipped, &mut traps)?);
    }
    let said = Said {
        file: file.to_owned(),
        title: format!("fio job {file}"),
        dataset: rows[0].region.dataset.clone(),
        content: content(first)?,
        durability: common(&read.jobs, &rows)?,
        cells: rows.into_iter().map(|row| row.cell).collect(),
        assume: vec![
            "all data is written once before the measurement; fio fills only the data that it needs"
                .into(),
            "random addresses can repeat (norandommap)".into(),
        ],
        traps: {
            read.traps.append(&mut traps);
            std::mem::take(&mut read.traps)
        },
        skipped: {
            skipped.append(&mut read.skipped);
            skipped.extend(read.unused());
            skipped.sort();
            skipped.dedup();
            skipped
        },
    };
    let first = read.jobs.first();
    imported::finish(said, options).map_err(|what| match first {
        Some(job) => job.refuse("size", what, "make `size` larger"),
        None => refuse(file, 1, what, "make `size` larger"),
    })
}

/// Cell made from a job, with the properties of the job that must be equal in the whole run.
struct Row {
    cell: CellSpec,
    region: Region,
    durability: Durability,
    writes: bool,
}

fn row(
    job: &Job,
    options: &Options,
    skipped: &mut Vec<Skipped>,
    traps: &mut Vec<Trap>,
) -> Result<Row, ProfileError> {
    let duration_ms = job.time("runtime")?.unwrap_or(0);
    let is_timed = job.flag("time_based", false)?;
    if is_timed && duration_ms == 0 {
        let what = "`time_based` without `runtime`";
        return Err(job.refuse("time_based", what, "add `runtime`"));
    }
    let workers = load::workers(job)?;
    let mut pattern = Pattern::of(job)?;
    let Offered { load, weights } = load::offered(job, &mut pattern, workers, skipped, traps)?;
    let region = Region::of(job, workers, options)?;
    let streams = streams::streams(job, pattern, &region, weights, traps)?;
    let writes = pattern.writes();
    let durability = if writes { durability(job)? } else { Durability::None };
    find(job, is_timed, skipped, traps)?;
    let worker_bytes = if is_timed { None } else { Some(worker_bytes(job, &region, options)?) };
    let cell = CellSpec {
        name: job.name.clone(),
        table: "fio".to_owned(),
        variant: None,
        streams,
        load,
        warmup_ms: job.time("ramp_time")?.unwrap_or(0),
        duration_ms,
        worker_bytes,
        runs: 1,
        clients: 1,
        cache: CacheState::AsIs,
        verify_pct: if writes && verifies(job)? { 100.0 } else { 1.0 },
        verify_full: false,
        search: None,
    };
    Ok(Row { cell, region, durability, writes })
}

/// Number of bytes that each copy of a job transfers before it ends: `io_size` (by default `size`)
/// times `loops`.
fn worker_bytes(job: &Job, region: &Region, options: &Options) -> Result<u64, ProfileError> {
    let size_bytes = match options.size_bytes {
        Some(total) if region.is_parted => total / u64::from(region.workers),
        Some(total) => total,
        None => region.copy_bytes,
    };
    let bytes = match job.amount("io_size")? {
        None | Some(Amount::Bytes(0)) => size_bytes,
        Some(Amount::Bytes(bytes)) => bytes,
        Some(Amount::Percent(pct)) => {
            (u128::from(size_bytes) * u128::from(pct) / 100).min(u128::from(u64::MAX)) as u64
        }
    };
    let loops = job.number("loops", 1)?.unwrap_or(1);
    bytes.checked_mul(u64::from(loops)).filter(|bytes| *bytes > 0).ok_or_else(|| {
        let what = format!("{loops} loops of {bytes} bytes exceed the largest number of bytes");
        job.refuse("io_size", what, "give a smaller number, or `runtime` and `time_based`")
    })
}

/// Checks the properties that must be equal in all jobs. Returns the durability of a completed
/// write.
fn common(jobs: &[Job], rows: &[Row]) -> Result<Durability, ProfileError> {
    let mut durability = None;
    for (job, row) in jobs.iter().zip(rows) {
        let total = row.region.dataset.total_bytes();
        let other = if total != rows[0].region.dataset.total_bytes() {
            Some(("size", "different data"))
        } else if content(job)? != content(&jobs[0])? {
            Some(("buffer_compress_percentage", "different content"))
        } else if row.writes && durability.is_some_and(|first| first != row.durability) {
            Some(("fsync", "different syncs"))
        } else {
            None
        };
        if let Some((_, what)) = other {
            let what = format!("job {:?} has {what} than the jobs before it", job.name);
            return Err(job.place.refuse(what, "put it into a file of its own"));
        }
        if row.writes {
            durability = durability.or(Some(row.durability));
        }
    }
    Ok(durability.unwrap_or(Durability::None))
}

fn content(job: &Job) -> Result<ContentSpec, ProfileError> {
    let share = |word: &str| {
        let pct = job.number(word, 0)?.unwrap_or(0);
        if pct < 100 {
            return Ok(f64::from(pct));
        }
        let what = format!("`{word}` is {pct}: every block would be the same");
        Err(job.refuse(word, what, "give less than 100"))
    };
    let compress = 100.0 / (100.0 - share("buffer_compress_percentage")?);
    let dedupe_pct = share("dedupe_percentage")?;
    let seed = match job.value("randseed") {
        None => 42,
        Some(value) => {
            job.bytes(&value.text).ok_or_else(|| value.bad("randseed", "give a number"))?
        }
    };
    Ok(ContentSpec { compress, dedupe_pct, unit_bytes: 4096, seed })
}

fn durability(job: &Job) -> Result<Durability, ProfileError> {
    let fua = match job.value("sync") {
        None => false,
        Some(value) => match value.text.as_str() {
            "0" | "none" => false,
            "1" | "sync" | "dsync" => true,
            _ => return Err(value.bad("sync", "known are none, sync and dsync")),
        },
    };
    let every = |word: &str| Ok::<_, ProfileError>(job.number(word, 0)?.filter(|it| *it > 0));
    let every_writes = match (every("fsync")?, every("fdatasync")?) {
        (Some(one), Some(other)) if one != other => {
            let what = "`fsync` and `fdatasync` flush after different numbers of writes";
            return Err(job.refuse("fdatasync", what, "keep one of them"));
        }
        (one, other) => one.or(other),
    };
    match (fua, every_writes) {
        (true, Some(_)) => {
            let what = "`sync` already makes writes durable, and the job also flushes";
            Err(job.refuse("sync", what, "keep one of them"))
        }
        (true, None) => Ok(Durability::Fua),
        (false, None) => Ok(Durability::None),
        (false, Some(every_writes)) => Ok(Durability::Flush { every_writes }),
    }
}

/// True if the job verifies all blocks that it wrote.
fn verifies(job: &Job) -> Result<bool, ProfileError> {
    let Some(value) = job.value("verify") else { return Ok(false) };
    match value.text.as_str() {
        "0" | "none" => Ok(false),
        "null" => Err(value.bad("verify", "omit it: it compares nothing")),
        _ => job.flag("do_verify", true),
    }
}

/// Reports the differences between the cell and the fio job, as warnings ([`Trap`]) and as skipped
/// options.
fn find(
    job: &Job,
    is_timed: bool,
    skipped: &mut Vec<Skipped>,
    traps: &mut Vec<Trap>,
) -> Result<(), ProfileError> {
    let (name, place) = (&job.name, &job.place);
    let mut found = |what: String, why: &str, action: &str| {
        traps.push(trap(format!("{place}: job {name:?}: {what}"), why, action));
    };
    if !job.flag("direct", !job.flag("buffered", true)?)? {
        found(
            "no `direct=1`".to_owned(),
            "fio would measure the page cache of this machine; weir bypasses it",
            "do not compare with fio's figures of this job",
        );
    }
    if load::is_too_deep(job) {
        found(
            format!("`iodepth` with the engine {}", load::engine(job)),
            "fio then keeps one operation in flight at any `iodepth`, and weir does the same",
            "use `ioengine=io_uring` for the given depth",
        );
    }
    for word in ["loops", "io_size"] {
        if let Some(value) = job.value(word).filter(|_| is_timed) {
            skipped.push(value.place.skipped(word, "with `time_based` a job ends after its time"));
        }
    }
    if let Some(value) = job.value("filename") {
        skipped.push(value.place.skipped("filename", "--target names the target"));
    }
    if let Some(value) = job.value("norandommap")
        && !job.flag("norandommap", true)?
    {
        let what = format!("{}: `norandommap=0`: addresses can repeat", value.place);
        let why = "fio visits every block once before it repeats one";
        traps.push(trap(what, why, "compare with a job that has `norandommap=1`"));
    }
    let has_rate = ["rate_iops", "rate"].iter().any(|word| job.value(word).is_some());
    if has_rate {
        let mut found = |what: &str, why: &str, action: &str| {
            traps.push(trap(format!("{place}: job {name:?}: {what}"), why, action));
        };
        found(
            "a rate",
            "fio measures latency from the send time and waits while the target stalls; weir \
             measures from the intended time",
            "expect higher percentiles here; they include the stalls",
        );
    }
    Ok(())
}
