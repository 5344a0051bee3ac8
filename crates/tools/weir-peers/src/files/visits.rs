//! Visits of a contender: each visit measures some rows of one round.
//!
//! `files` decides the order of the visits; `steps` has the load.
//!
//! Invariants: a visit leaves the filesystem empty and the server idle; preparations are outside
//! the measured times.

use std::fs;
use std::time::Duration;

use anyhow::Result;

use super::contenders::Contender;
use super::results::{Latency, Results, Sample};
use super::rows::{PROCESSES, small};
use super::steps::{Files, Step};
use super::worker::{Worker, perform};
use crate::mounted::KernelCache;

/// Size of the small files.
const SMALL_BYTES: usize = 4096;
/// Size of the files for the figure of stored bytes.
const STORED_BYTES: usize = 1024;
/// Time for which a stream runs before and after the measured fsyncs, in seconds.
const STREAM_MARGIN_SECONDS: u64 = 1;

/// Kind of a visit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Visit {
    /// Small files, with this number of processes.
    Small(u64),
    Sequential,
    Fsync,
}

/// Size of the load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Number of small files.
    pub(super) files: u64,
    /// Size of the large file in MiB.
    pub(super) large_mib: u64,
    /// Seconds of each series of fsyncs.
    pub(super) fsync_seconds: u64,
    /// Seconds for which a stream runs before the first measured fsync. Meanwhile a restarted
    /// server touches the memory of its caches.
    pub(super) warm_seconds: u64,
}

impl Visit {
    pub(super) fn all() -> Vec<Self> {
        PROCESSES.map(Self::Small).into_iter().chain([Self::Sequential, Self::Fsync]).collect()
    }

    /// Name of the visit in options.
    pub(super) fn name(self) -> String {
        match self {
            Self::Small(processes) => format!("small-{processes}"),
            Self::Sequential => "sequential".to_owned(),
            Self::Fsync => "fsync".to_owned(),
        }
    }

    /// Measures the rows of this visit.
    pub(super) fn run(
        self,
        contender: &mut Contender,
        counts: Counts,
        round: usize,
        results: &mut Results,
    ) -> Result<()> {
        match self {
            Self::Small(processes) => {
                small_files(contender, counts.files, processes, round, results)?;
            }
            Self::Sequential => sequential(contender, counts.large_mib, round, results)?,
            Self::Fsync => fsync(contender, counts, round, results)?,
        }
        contender.settle()
    }
}

/// Creates a step on a part of the small files.
type NewStep = fn(Files) -> Step;

/// Performs a step on all workers; returns the sample.
fn measure(
    row: String,
    contender: &Contender,
    round: usize,
    workers: &mut [Worker],
    steps: &[Step],
) -> Result<Sample> {
    let cpu = contender.cpu()?;
    let (ops, time) = perform(workers, steps)?;
    let cpu_us = contender.cpu()?.saturating_sub(cpu).as_secs_f64() * 1e6;
    let (count, seconds) = (ops.max(1) as f64, time.as_secs_f64());
    let sample = Sample {
        row,
        contender: contender.kind().name(),
        round,
        ops,
        seconds,
        ops_per_second: ops as f64 / seconds,
        server_cpu_us_per_op: cpu_us / count,
    };
    let Sample { row, contender, ops_per_second: rate, server_cpu_us_per_op: us, .. } = &sample;
    eprintln!("bench: {row} {contender} round {}: {rate:.0} /s, {us:.1} us CPU", round + 1);
    Ok(sample)
}

fn small_files(
    contender: &Contender,
    files: u64,
    processes: u64,
    round: usize,
    results: &mut Results,
) -> Result<()> {
    let tree = Files::all(contender.root(), files, SMALL_BYTES);
    tree.create_directories()?;
    let mut workers = (0..processes).map(|_| Worker::start()).collect::<Result<Vec<_>>>()?;
    let parts = tree.parts(processes);
    let mut step = |name: &str, step: NewStep| {
        let steps: Vec<Step> = parts.iter().cloned().map(step).collect();
        let sample = measure(small(name, processes), contender, round, &mut workers, &steps)?;
        results.samples.push(sample);
        anyhow::Ok(())
    };
    step("create", Step::Create)?;
    step("stat", Step::Stat)?;
    step("read", Step::Read)?;
    let cold: [(&str, NewStep); 2] = [("stat-cold", Step::Stat), ("read-cold", Step::Read)];
    for (name, small_step) in cold {
        if contender.drop_caches(KernelCache::Names) {
            step(name, small_step)?;
        }
    }
    step("unlink", Step::Unlink)?;
    tree.remove_directories()
}

fn sequential(
    contender: &mut Contender,
    mib: u64,
    round: usize,
    results: &mut Results,
) -> Result<()> {
    let file = contender.root().join("large");
    let mut workers = [Worker::start()?];
    let write = Step::WriteLarge { file: file.clone(), calls: mib };
    let written = measure("write".to_owned(), contender, round, &mut workers, &[write])?;
    results.samples.push(written);
    if contender.empty_caches()? {
        // A server that was started again would pay for memory that was never touched.
        touch_memory(contender, mib)?;
        let read = Step::ReadLarge { file: file.clone() };
        let read = measure("read".to_owned(), contender, round, &mut workers, &[read])?;
        results.samples.push(read);
    }
    Ok(fs::remove_file(file)?)
}

fn fsync(contender: &Contender, counts: Counts, round: usize, results: &mut Results) -> Result<()> {
    let (seconds, calls) = (counts.fsync_seconds, counts.large_mib);
    let (synced, streamed) = (contender.root().join("synced"), contender.root().join("streamed"));
    let (mut worker, mut streaming) = (Worker::start()?, Worker::start()?);
    Step::Stream { file: streamed.clone(), seconds: counts.warm_seconds, calls }.perform()?;
    // The idle figure must not include the write-out of this stream.
    fs::File::open(&streamed)?.sync_all()?;
    std::thread::sleep(Duration::from_secs(STREAM_MARGIN_SECONDS));
    let step = Step::Fsync { file: synced.clone(), seconds };
    let mut p99_us = || {
        worker.send(&step)?;
        anyhow::Ok(worker.answer()?.p99_us)
    };
    let idle_p99_us = p99_us()?;
    let seconds = seconds + 2 * STREAM_MARGIN_SECONDS;
    streaming.send(&Step::Stream { file: streamed.clone(), seconds, calls })?;
    std::thread::sleep(Duration::from_secs(STREAM_MARGIN_SECONDS));
    let busy_p99_us = p99_us()?;
    let calls = streaming.answer()?.ops;
    let name = contender.kind().name();
    eprintln!(
        "bench: fsync {name} round {}: p99 {idle_p99_us:.0} us, {busy_p99_us:.0} us during a \
         stream of {} MiB/s",
        round + 1,
        calls / seconds
    );
    results.latencies.push(Latency { contender: name, round, idle_p99_us, busy_p99_us });
    fs::remove_file(synced)?;
    Ok(fs::remove_file(streamed)?)
}

/// Writes and removes a file as large as the largest load, so that no later figure pays for memory
/// that was never touched.
pub(super) fn touch_memory(contender: &Contender, mib: u64) -> Result<()> {
    let file = contender.root().join("warm");
    Step::WriteLarge { file: file.clone(), calls: mib }.perform()?;
    fs::remove_file(file)?;
    contender.settle()
}

/// Stored bytes for each file of 1 KiB, in a filesystem that is still empty.
pub(super) fn stored_bytes(contender: &mut Contender, files: u64) -> Result<f64> {
    let tree = Files::all(contender.root(), files, STORED_BYTES);
    let none = Files { end: 0, ..tree.clone() };
    let before = contender.stored_bytes(&none)?;
    tree.create_directories()?;
    Step::Create(tree.clone()).perform()?;
    let bytes = contender.stored_bytes(&tree)? - before;
    Step::Unlink(tree.clone()).perform()?;
    tree.remove_directories()?;
    contender.settle()?;
    Ok(bytes / files as f64)
}
