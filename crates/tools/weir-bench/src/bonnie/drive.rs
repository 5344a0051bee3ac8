//! Runs the bonnie test as often as the spec requests, and reports the progress.
//!
//! `large` and `small` run the phases.
//!
//! Invariants: at least every 100 ms the test asks the watcher whether to continue, even if the
//! storage does not respond; a cancelled run is discarded; the directory is removed however the
//! test ends.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::large::{BYTES_MAX, Large};
use super::small::Small;
use super::{BLOCK_BYTES, BRIEF_S, BonnieError, BonnieResult, BonnieRun, large, small};
use crate::content::Content;
use crate::result::TargetInfo;
use crate::spec::{BonnieSize, BonnieSpec, ContentSpec};

const ASK_EVERY: Duration = Duration::from_millis(50);
/// Minimum size of the large file: a smaller file has too few blocks for all seek workers.
const FILE_BYTES_MIN: u64 = 128 << 10;
/// Space in bytes that the large file must leave free.
const SPARE_BYTES: u64 = 64 << 20;
/// Maximum number of attempts to find an unused directory name.
const NAMES_MAX: u32 = 1000;

/// Bonnie test with the target on which it runs.
pub(crate) struct Job<'a> {
    /// Test parameters: size of the large file, number of small files and number of runs.
    pub(crate) spec: &'a BonnieSpec,
    /// Content of the large file.
    pub(crate) content: &'a ContentSpec,
    /// Target of the test. The test creates its files in the target or next to the target.
    pub(crate) target: &'a TargetInfo,
    /// Memory of this machine in bytes.
    pub(crate) memory_bytes: u64,
    /// Result of an earlier, interrupted start of this test.
    pub(crate) before: Option<&'a BonnieResult>,
}

/// Observer of a test.
pub(crate) trait Watch {
    /// Receives the number of the current run and the completed share of this run (0 to 1). Returns
    /// false to cancel the test.
    fn goes_on(&mut self, run: u32, part: f64) -> bool;
    /// Receives the result of the test after each run.
    fn keep(&mut self, result: &BonnieResult);
}

/// Progress of a run, and whether the user cancelled the run.
pub(super) struct Progress {
    steps: AtomicU64,
    ended: AtomicBool,
}

impl Progress {
    pub(super) fn new() -> Self {
        Self { steps: AtomicU64::new(0), ended: AtomicBool::new(false) }
    }

    /// Counts finished steps. Returns [`BonnieError::Ended`] if the user cancelled the run.
    pub(super) fn add(&self, steps: u64) -> Result<(), BonnieError> {
        self.steps.fetch_add(steps, Ordering::Relaxed);
        if self.ended.load(Ordering::Relaxed) { Err(BonnieError::Ended) } else { Ok(()) }
    }
}

/// Runs the test. Runs that an earlier start of the test completed are kept.
///
/// # Errors
/// The test cannot begin. The returned result reports later failures.
pub(crate) fn drive(job: &Job<'_>, watch: &mut dyn Watch) -> Result<BonnieResult, BonnieError> {
    let beside = directory_of(job.target)?;
    let file_bytes = file_bytes(job.spec, job.memory_bytes);
    let space = rustix::fs::statvfs(&beside).map_err(|error| io(&beside, "look at", error))?;
    let (needed_bytes, free_bytes) = (file_bytes + SPARE_BYTES, space.f_bavail * space.f_frsize);
    if free_bytes < needed_bytes {
        let directory = beside.display().to_string();
        return Err(BonnieError::NoSpace { directory, free_bytes, needed_bytes });
    }
    let content = Content::new(job.content, 4096, file_bytes);
    let mut result = BonnieResult {
        directory: beside.display().to_string(),
        file_bytes,
        memory_bytes: job.memory_bytes,
        files: job.spec.files,
        runs_asked: job.spec.runs.max(1),
        runs: Vec::new(),
        notes: Vec::new(),
        failure: None,
    };
    if let Some(before) = job.before.filter(|before| is_same(before, &result)) {
        result.runs.clone_from(&before.runs);
    }
    while result.runs.len() < result.runs_asked as usize {
        let run = result.runs.len() as u32 + 1;
        let mut goes_on = |part| watch.goes_on(run, part);
        match one_run(job, &beside, file_bytes, &content, &mut goes_on) {
            Ok(done) => result.runs.push(done),
            Err(error) => {
                result.failure = Some(error.to_string());
                break;
            }
        }
        result.notes = notes(&result);
        watch.keep(&result);
    }
    result.notes = notes(&result);
    Ok(result)
}

/// True if two results have the same test parameters, so that their runs may be combined in one
/// result.
fn is_same(one: &BonnieResult, other: &BonnieResult) -> bool {
    let what = |result: &BonnieResult| {
        let BonnieResult { directory, file_bytes, memory_bytes, files, runs_asked, .. } = result;
        (directory.clone(), *file_bytes, *memory_bytes, *files, *runs_asked)
    };
    what(one) == what(other)
}

fn one_run(
    job: &Job<'_>,
    beside: &Path,
    file_bytes: u64,
    content: &Content,
    watch: &mut dyn FnMut(f64) -> bool,
) -> Result<BonnieRun, BonnieError> {
    let made = Made::new(beside)?;
    let (progress, seed) = (Progress::new(), job.content.seed);
    let all = (large::steps(file_bytes) + small::steps(job.spec.files)) as f64;
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let large = Large::new(&made.0, file_bytes, content, seed, &progress);
            let (mut figures, bad_blocks) = large.phases()?;
            if job.spec.files > 0 {
                let small = Small::new(&made.0, job.spec.files, seed, &progress);
                figures.extend(small.phases()?);
            }
            Ok(BonnieRun { figures, bad_blocks })
        });
        while !worker.is_finished() {
            let part = progress.steps.load(Ordering::Relaxed) as f64 / all;
            if !watch(part.min(1.0)) {
                progress.ended.store(true, Ordering::Relaxed);
            }
            std::thread::sleep(ASK_EVERY);
        }
        worker.join().expect("it does not panic")
    })
}

/// Directory that this test created; removed on drop.
struct Made(PathBuf);

impl Made {
    fn new(beside: &Path) -> Result<Self, BonnieError> {
        let process = std::process::id();
        for number in 0..NAMES_MAX {
            let path = beside.join(format!("weir-bench-bonnie-{process}-{number}"));
            match std::fs::create_dir(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(source) => return Err(io(&path, "make", source)),
            }
        }
        let source = std::io::Error::from(std::io::ErrorKind::AlreadyExists);
        Err(io(beside, "make a directory in", source))
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        // If the removal fails, the directory remains; its name shows that this test created it.
        std::fs::remove_dir_all(&self.0).ok();
    }
}

fn io(path: &Path, what: &'static str, source: impl Into<std::io::Error>) -> BonnieError {
    BonnieError::Io { path: path.display().to_string(), what, source: source.into() }
}

/// Returns the directory that contains the target's files.
///
/// # Errors
/// The target is not a file, or its directory does not exist.
pub(crate) fn directory_of(target: &TargetInfo) -> Result<PathBuf, BonnieError> {
    let path = Path::new(&target.address);
    let found = match path.parent() {
        _ if target.kind != "file" => None,
        _ if path.is_dir() => Some(path),
        Some(parent) if parent.as_os_str().is_empty() => Some(Path::new(".")),
        parent => parent,
    };
    let found = found.filter(|path| path.is_dir()).map(Path::to_owned);
    found.ok_or_else(|| BonnieError::NoDirectory { address: target.address.clone() })
}

/// Size of the large file, in whole blocks.
pub(crate) fn file_bytes(spec: &BonnieSpec, memory_bytes: u64) -> u64 {
    let bytes = match spec.size {
        BonnieSize::Bytes { bytes } => bytes,
        BonnieSize::MemoryTimes { times } => crate::content::whole(memory_bytes as f64 * times),
    };
    // No file is larger than 2^60 bytes; this limit keeps later sums from overflowing.
    bytes.clamp(FILE_BYTES_MIN, 1 << 60).next_multiple_of(BLOCK_BYTES as u64)
}

fn notes(result: &BonnieResult) -> Vec<String> {
    let human = weir_base::size::Human;
    let mut notes = vec![format!(
        "a file of {} in blocks of {}; byte by byte: the first {}; {} small files, empty",
        human(result.file_bytes),
        human(BLOCK_BYTES as u64),
        human(BYTES_MAX.min(result.file_bytes)),
        result.files
    )];
    let (file, memory) = (human(result.file_bytes), human(result.memory_bytes));
    notes.push(if result.file_bytes <= result.memory_bytes {
        format!("the file of {file} is not larger than the memory of {memory}: caches can answer")
    } else {
        format!("the file of {file} is larger than the memory of {memory}")
    });
    notes.push(
        "through the page cache; times include the final flush; the file's pages were dropped from \
         the page cache before each phase that reads"
            .to_owned(),
    );
    let figures = result.runs.iter().flat_map(|run| &run.figures);
    let brief = figures.filter(|figure| figure.seconds < BRIEF_S).count();
    if brief > 0 {
        notes.push(format!(
            "{brief} figures are from phases shorter than {BRIEF_S} s, for which bonnie++ prints \
             no figure"
        ));
    }
    notes
}
