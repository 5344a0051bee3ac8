//! Cost of snapshots: creating one under load, cloning one, writing with a thousand snapshots, and
//! destroying one.
//!
//! `layouts` has the servers and the loads.
//!
//! Invariant: a ratio compares the two runs of one round, which follow each other. Their order
//! alternates from round to round.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow};
use serde_json::Value;
use weir_command::fio;

use crate::document::{self, judged};
use crate::layouts::layout::{DISK, Layout, Load, Pool, VOLUME_BYTES};

/// Size of the disk: space for overwritten blocks that snapshots hold. The disk is a sparse file.
const DISK_BYTES: u64 = 24 << 30;
/// Number of snapshots that exist during a load.
const MANY: usize = 1000;
/// Size of the volume to clone; only a small range of it is written.
const CLONED_BYTES: u64 = 40 << 30;
/// Interval between two creations or two destructions of snapshots during a load.
const APART: Duration = Duration::from_millis(300);
/// Option of fio: limits the rate of writes while the [`MANY`] snapshots are created.
const SLOW_WRITES: &str = "--rate_iops=2000";

/// Results of the snapshot measurement.
#[derive(Default)]
pub(super) struct Figures {
    /// Duration of a call that creates a snapshot, in milliseconds: `idle_ms` in an idle pool,
    /// `busy_ms` under full write load.
    idle_ms: Vec<f64>,
    busy_ms: Vec<f64>,
    /// 99th percentile of write latency with snapshots, divided by the percentile without
    /// snapshots; one for each round.
    busy_p99: Vec<f64>,
    clone_ms: f64,
    /// Number of bytes that the disk read and wrote for the clone.
    clone_moved: f64,
    /// Write rate with many snapshots divided by the write rate without snapshots; one for each
    /// round.
    beside_many: Vec<f64>,
    /// 99th percentile of read latency during destroys, divided by the percentile in an idle pool;
    /// one for each round.
    destroy_p99: Vec<f64>,
    /// Number of bytes that the pool read and wrote to destroy one snapshot; `destroy_freed` is the
    /// number of bytes that the destroy freed.
    destroy_read: f64,
    destroy_freed: f64,
}

/// Runs `beside` repeatedly while fio runs `load`.
fn with<T>(
    pool: &Pool,
    load: Load,
    seconds: u64,
    mut beside: impl FnMut() -> Result<T> + Send,
) -> Result<(fio::Job, Vec<T>)>
where
    T: Send,
{
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = &stop;
        let other = scope.spawn(move || {
            let mut done = Vec::new();
            while !stop.load(Ordering::Acquire) {
                std::thread::sleep(APART);
                done.push(beside()?);
            }
            anyhow::Ok(done)
        });
        let job = pool.fio(load, seconds);
        stop.store(true, Ordering::Release);
        let other =
            other.join().map_err(|_| anyhow!("the task that runs during the load panicked"))??;
        Ok((job?, other))
    })
}

fn timed(pool: &Pool, words: &[&str]) -> Result<f64> {
    let start = Instant::now();
    pool.weir(words)?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Operations per second of one fio run.
pub(super) fn rate(job: &fio::Job) -> f64 {
    job.ops as f64 / job.seconds
}

/// Runs all snapshot measurements.
pub(super) fn measure(program: &Path, data: &Path, rounds: usize, seconds: u64) -> Result<Figures> {
    let mut figures = Figures::default();
    let pool = Pool::start(Layout { disk_bytes: DISK_BYTES, ..DISK }, program, data)?;
    pool.make_volume("v", VOLUME_BYTES)?;
    pool.fio(Load::Fill, 0)?;
    taking(&pool, rounds, seconds, &mut figures)?;
    cloning(&pool, &mut figures)?;
    beside_many(&pool, rounds, seconds, &mut figures)?;
    destroying(&pool, rounds, seconds, &mut figures)?;
    Ok(figures)
}

fn taking(pool: &Pool, rounds: usize, seconds: u64, figures: &mut Figures) -> Result<()> {
    let mut number = 0;
    let mut snap = || {
        number += 1;
        timed(pool, &["snapshot", "create", &format!("bench/v@taken{number}")])
    };
    for _ in 0..10 {
        std::thread::sleep(APART);
        figures.idle_ms.push(snap()?);
    }
    for _ in 0..rounds {
        let without = pool.fio(Load::Write, seconds)?.latency_p99_us;
        let (job, times) = with(pool, Load::Write, seconds, &mut snap)?;
        eprintln!("bench: write p99 {without:.0} us, {:.0} with snapshots", job.latency_p99_us);
        figures.busy_p99.push(job.latency_p99_us / without);
        figures.busy_ms.extend(times);
    }
    pool.weir(&["snapshot", "destroy", "--yes", "bench/v@%"]).map(drop)
}

fn cloning(pool: &Pool, figures: &mut Figures) -> Result<()> {
    pool.make_volume("large", CLONED_BYTES)?;
    pool.fio_on(
        "large",
        VOLUME_BYTES,
        &["--rw=write", "--bs=1m", "--end_fsync=1"].map(str::to_owned),
    )?;
    pool.weir(&["snapshot", "create", "bench/large@origin"])?;
    let before = moved(pool)?;
    figures.clone_ms = timed(pool, &["snapshot", "clone", "bench/large@origin", "bench/copy"])?;
    figures.clone_moved = moved(pool)? - before;
    pool.weir(&["volume", "destroy", "--yes", "bench/copy"]).map(drop)
}

fn moved(pool: &Pool) -> Result<f64> {
    Ok(pool.disk_bytes_moved()?.values().sum())
}

fn beside_many(pool: &Pool, rounds: usize, seconds: u64, figures: &mut Figures) -> Result<()> {
    let mut none = Vec::new();
    for _ in 0..rounds {
        none.push(rate(&pool.fio(Load::Write, seconds)?));
    }
    let slow: Vec<String> =
        ["--rw=randwrite", "--bs=4k", "--iodepth=4", "--time_based", SLOW_WRITES]
            .map(str::to_owned)
            .into_iter()
            .chain(["--runtime=600".to_owned(), "--norandommap".to_owned()])
            .collect();
    let stop = AtomicBool::new(false);
    eprintln!("bench: taking {MANY} snapshots during slow writes");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                let mut some = slow.clone();
                some.retain(|word| !word.starts_with("--runtime"));
                some.push("--runtime=2".to_owned());
                pool.fio_on("v", VOLUME_BYTES, &some)?;
            }
            anyhow::Ok(())
        });
        let taken = (0..MANY).try_for_each(|n| {
            pool.weir(&["snapshot", "create", &format!("bench/v@many{n:04}")]).map(drop)
        });
        stop.store(true, Ordering::Release);
        writer.join().map_err(|_| anyhow!("the writer panicked"))??;
        taken
    })?;
    for without in none {
        let with = rate(&pool.fio(Load::Write, seconds)?);
        eprintln!("bench: {without:.0} writes/s, {with:.0} with {MANY} snapshots");
        figures.beside_many.push(with / without);
    }
    Ok(())
}

fn destroying(pool: &Pool, rounds: usize, seconds: u64, figures: &mut Figures) -> Result<()> {
    let listed: Value =
        serde_json::from_str(&pool.weir(&["snapshot", "list", "bench/v", "--json"])?)?;
    let snapshots = listed["snapshots"].as_array().context("no list of snapshots")?;
    let sizes = snapshots
        .iter()
        .filter_map(|s| Some((s["used_bytes"].as_u64()?, s["name"].as_str()?.to_owned())));
    let (freed, name) = sizes.max().context("no snapshot is listed")?;
    // Wait until the server has written out the data of the preceding load, so that `moved` counts
    // only the destroy.
    std::thread::sleep(Duration::from_secs(8));
    let before = moved(pool)?;
    pool.weir(&["snapshot", "destroy", "--yes", &name])?;
    std::thread::sleep(Duration::from_secs(3));
    (figures.destroy_freed, figures.destroy_read) = (freed as f64, moved(pool)? - before);
    let mut next = 0;
    for _ in 0..rounds {
        let idle = pool.fio(Load::FewReads, seconds)?.latency_p99_us;
        let (job, _) = with(pool, Load::FewReads, seconds, || {
            next += 1;
            let gone = format!("bench/v@many{:04}", next * 7);
            // If this snapshot is the largest one, it is already destroyed, so ignore the error.
            pool.weir(&["snapshot", "destroy", "--yes", &gone]).map(drop).or_else(|error| {
                if error.to_string().contains("not exist") { Ok(()) } else { Err(error) }
            })
        })?;
        eprintln!(
            "bench: read p99 {idle:.0} us, {:.0} during snapshot destruction",
            job.latency_p99_us
        );
        figures.destroy_p99.push(job.latency_p99_us / idle);
    }
    Ok(())
}

impl Figures {
    /// Formats the table.
    pub(super) fn table(&self) -> String {
        let median = |values: &[f64]| document::median(values.iter().copied()).unwrap_or(f64::NAN);
        let mut text = String::from("| snapshots and clones | |\n| --- | --- |\n");
        let mut row = |what: &str, cell: String| {
            writeln!(text, "| {what} | {cell} |").expect("a string takes every line");
        };
        row(
            "snapshot of an idle volume, the whole command, ms",
            format!("{:.1}", median(&self.idle_ms)),
        );
        let busy = median(&self.busy_ms);
        row("... under full write load, ms", judged(busy, busy <= 10.0, "<= 10"));
        let p99 = median(&self.busy_p99);
        row("... p99 of the writes, by without", judged(p99, p99 <= 1.5, "<= 1.5"));
        let clone = self.clone_ms / 1e3;
        row("clone of a 40 GiB volume (1 GiB written), s", judged(clone, clone < 1.0, "< 1"));
        row("... KiB that the disk moved", format!("{:.0}", self.clone_moved / 1024.0));
        let many = median(&self.beside_many);
        let what = format!("4 KiB random write with {MANY} snapshots, by without");
        row(&what, judged(many, many >= 0.9, ">= 0.9"));
        let what = format!("destroying one of {MANY}: KiB moved for KiB freed");
        row(
            &what,
            format!("{:.0} for {:.0}", self.destroy_read / 1024.0, self.destroy_freed / 1024.0),
        );
        let p99 = median(&self.destroy_p99);
        row("... p99 of reads meanwhile, by idle", judged(p99, p99 <= 1.5, "<= 1.5"));
        text
    }
}
