//! Runs the installed fio: builds its jobs and parses its output.
//!
//! `profile::fio` converts the job files of profiles.
//!
//! Theory. fio's own `clat` starts when the kernel has received an operation. Its `lat` starts at
//! the submission, like Weir's latency, so the comparison uses `lat`. fio's processor time covers
//! only the thread of the job, without the start of the program.
//!
//! Invariants:
//! - sizes and times in a job are plain numbers or have a unit, because fio would otherwise guess
//!   the unit;
//! - a percentile exists only with ten samples beyond it, as in Weir.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::cells::{Cell, Place};
use super::{DriverRun, FILE, Options};

/// Minimum number of samples beyond a percentile.
const BEYOND_MIN: f64 = 10.0;
/// Number of lines that an error quotes from the end of fio's error output.
const SAID_LINES: usize = 3;

/// Reason for which fio gave no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FioError {
    /// The fio executable cannot be run.
    #[error("the program {} cannot be run: {source}", program.display())]
    Missing {
        /// Path or name of the fio executable.
        program: PathBuf,
        /// Error that the operating system returned.
        source: std::io::Error,
    },
    /// fio ran and failed.
    #[error("fio failed at \"{cell}\": {said}")]
    Failed {
        /// Name of the load.
        cell: String,
        /// Last lines of fio's error output.
        said: String,
    },
    /// The output of fio cannot be parsed.
    #[error("fio's output for \"{cell}\" cannot be parsed: {source}")]
    Output {
        /// Name of the load.
        cell: String,
        /// Parse error, with its position in the output.
        source: serde_json::Error,
    },
}

impl FioError {
    /// Action that the user should take.
    pub(super) fn action(&self) -> &'static str {
        match self {
            Self::Missing { .. } => "install the package fio (3.x), or name the program with --fio",
            Self::Failed { .. } => "read its message; for NBD it needs the ioengine nbd",
            Self::Output { .. } => "use fio 3.x",
        }
    }
}

/// Installed fio program.
pub(super) struct Fio {
    program: PathBuf,
    version: String,
}

impl Fio {
    pub(super) fn find(program: &Path) -> Result<Self, FioError> {
        let missing = |source| FioError::Missing { program: program.to_owned(), source };
        let output = Command::new(program).arg("--version").output().map_err(missing)?;
        if !output.status.success() {
            return Err(missing(std::io::Error::other("it does not print its version")));
        }
        let version = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        Ok(Self { program: program.to_owned(), version })
    }

    pub(super) fn version(&self) -> &str {
        &self.version
    }

    /// Runs a job with `directory` as the working directory, because the job names its file without
    /// a path.
    pub(super) fn run(
        &self,
        cell: &str,
        job: &str,
        directory: Option<&Path>,
    ) -> Result<DriverRun, FioError> {
        let missing = |source| FioError::Missing { program: self.program.clone(), source };
        let mut command = Command::new(&self.program);
        // fio must not inherit the credentials with which this process logs in to a server.
        command.env_remove("WEIR_TOKEN").env_remove("WEIR_TOKEN_FILE");
        command.args(["--output-format=json", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        directory.map(|directory| command.current_dir(directory));
        let mut child = command.spawn().map_err(missing)?;
        let mut stdin = child.stdin.take().expect("it was asked for");
        // If fio exits before it has read its job, its error output contains the reason.
        let written = stdin.write_all(job.as_bytes());
        drop(stdin);
        let output = child.wait_with_output().map_err(missing)?;
        let said = String::from_utf8_lossy(&output.stderr);
        let failed = |said: String| FioError::Failed { cell: cell.to_owned(), said };
        if !output.status.success() {
            let last: Vec<&str> = said.lines().rev().take(SAID_LINES).collect();
            return Err(failed(last.into_iter().rev().collect::<Vec<_>>().join("; ")));
        }
        written.map_err(|error| failed(format!("it did not accept its job: {error}")))?;
        let text = String::from_utf8_lossy(&output.stdout);
        read(&text).map_err(|source| FioError::Output { cell: cell.to_owned(), source })
    }
}

/// Returns the text of the job file for a load.
pub(super) fn job(options: &Options, place: Place, cell: &Cell) -> String {
    let engine = match (place, &options.nbd) {
        (Place::Null, _) => "ioengine=null".to_owned(),
        (Place::Nbd, Some(uri)) => format!("ioengine=nbd\nuri={uri}"),
        (Place::File | Place::Nbd, _) => {
            format!("ioengine=io_uring\ndirect=1\nfilename={FILE}")
        }
    };
    let access = if cell.is_random { "rand" } else { "" };
    let kind = if cell.is_read { "read" } else { "write" };
    let Cell { block_bytes, depth, .. } = cell;
    let Options { bytes, run_ms, .. } = options;
    // Let fio reap all available completions at once. By default it reaps one, and completed
    // operations that it has not reaped yet count as in flight.
    format!(
        "[cell]\n{engine}\nrw={access}{kind}\nbs={block_bytes}\niodepth={depth}\n\
         iodepth_batch_complete_max={depth}\nsize={bytes}\ntime_based=1\nruntime={run_ms}ms\n\
         randrepeat=0\nnorandommap=1\nrefill_buffers=1\n\
         buffer_compress_percentage=0\nclat_percentiles=0\nlat_percentiles=1\n\
         percentile_list=50:99\n"
    )
}

#[derive(Deserialize)]
struct Output {
    jobs: [Job; 1],
}

#[derive(Deserialize)]
struct Job {
    error: i32,
    #[serde(rename = "job_runtime")]
    runtime_ms: f64,
    /// User CPU time of the job, in percent of its run time.
    usr_cpu: f64,
    sys_cpu: f64,
    read: Direction,
    write: Direction,
}

#[derive(Deserialize)]
struct Direction {
    total_ios: u64,
    iops: f64,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    #[serde(default)]
    percentile: BTreeMap<String, f64>,
}

/// Parses the figures of a job from fio's output.
pub(super) fn read(text: &str) -> Result<DriverRun, serde_json::Error> {
    use serde::de::Error as _;
    // fio may print notes before its JSON output.
    let json = text.find('{').map_or(text, |start| &text[start..]);
    let Output { jobs: [job] } = serde_json::from_str(json)?;
    if job.error != 0 {
        return Err(serde_json::Error::custom(format!("error {} in it", job.error)));
    }
    let done = if job.read.total_ios > 0 { &job.read } else { &job.write };
    if done.total_ios == 0 {
        return Err(serde_json::Error::custom("it completed no operation"));
    }
    let count = done.total_ios as f64;
    let percentile = |percent: f64| {
        let is_there = count * (1.0 - percent / 100.0) + 1e-9 >= BEYOND_MIN;
        let nanoseconds = done.lat_ns.percentile.get(&format!("{percent:.6}"));
        nanoseconds.filter(|_| is_there).map(|nanoseconds| nanoseconds / 1000.0)
    };
    let cpu_s = (job.usr_cpu + job.sys_cpu) / 100.0 * job.runtime_ms / 1000.0;
    Ok(DriverRun {
        iops: done.iops,
        p50_us: percentile(50.0),
        p99_us: percentile(99.0),
        cpu_us: cpu_s * 1e6 / count,
    })
}
