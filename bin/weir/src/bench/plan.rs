//! Makes the plan of a run from a profile and a target.
//!
//! Not here: the parser of profiles and the measurement (weir-bench).
//!
//! Invariants: each difference from the profile is listed as an assumption of the run. Each
//! difference from a job file of another generator is printed before the run begins.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use clap::{Args, ValueEnum};
use weir_api::ApiError;
use weir_base::{ErrorKind, size};
use weir_bench::profile::{self, FileOps, Imported, Options, Protocol, Skipped, Trap};
use weir_bench::spec::{CellSpec, OpKind, RunSpec, Scale, StreamSpec};
use weir_bench::target::{self, Address, Holds, Target, TargetError};

use crate::bench::answer::invalid;
use crate::bench::own;
use crate::cli::base::output;

/// Profile and its size.
#[derive(Clone, Debug, Args)]
pub(super) struct ProfileArgs {
    /// Built-in profile (see `weir bench profiles`), or a file: .toml, .fio or .icf
    #[arg(short, long, value_name = "NAME|FILE", default_value = "quick")]
    pub(super) profile: String,
    /// Duration: seconds (smoke), a minute (standard) or the published time (seed) for every row
    /// [default: standard for a built-in profile, the full time of a file]
    #[arg(long, value_enum)]
    scale: Option<ScaleName>,
    /// Variant of the profile
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Seed of all random numbers [default: the profile's]
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Size of the dataset [default: the profile's]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// Number of measurements of each row [default: the profile's]
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Seconds of each measurement and of each round of preconditioning, except of operations that
    /// end when each file was used once [default: the profile's]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(1..=86_400))]
    duration: Option<u32>,
    /// Seconds of load before each measurement [default: the profile's]
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(u32).range(0..=86_400))]
    warmup: Option<u32>,
    /// Percentage of the blocks to read and compare after the last run; full compares all blocks,
    /// and every byte of each read during the measurement
    #[arg(long, value_name = "PERCENT|full", value_parser = Verify::parse)]
    verify: Option<Verify>,
    /// Size of the target's caches, or none; without it, the result cannot be compared with another
    #[arg(long, value_name = "SIZE|none", value_parser = cache)]
    target_cache: Option<u64>,
    /// Redundancy of the target, such as "mirror of 2"
    #[arg(long, value_name = "TEXT")]
    target_protection: Option<String>,
    /// Feature of the target that processes the data, such as dedupe; may be repeated
    #[arg(long = "target-feature", value_name = "TEXT")]
    target_features: Vec<String>,
    /// Operations on files that replace the profile.
    #[arg(skip)]
    file_ops: Option<FileOps>,
}

/// Operations on files, in place of a profile.
#[derive(Debug, Args)]
pub(super) struct FilesArgs {
    /// Measure these operations on files without a profile: create, extract, stat, rename, readdir,
    /// readdirplus or remove, separated by commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = op,
        conflicts_with_all = ["profile", "variant", "size"])]
    op: Vec<OpKind>,
    /// With --op: number of files of each worker
    #[arg(long, value_name = "COUNT", default_value_t = FILES, requires = "op",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(FileOps::FILES_MAX)))]
    files: u32,
    /// With --op: size of each file
    #[arg(long, value_name = "SIZE", default_value = "0", requires = "op",
        value_parser = file_size)]
    file_size: u32,
    /// With --op: number of workers, each with one operation in flight
    #[arg(long, value_name = "COUNT", default_value_t = WORKERS, requires = "op",
        value_parser = clap::value_parser!(u32).range(1..=1024))]
    workers: u32,
    /// With --op: the files of all workers are in one directory, in place of a directory for each
    /// worker
    #[arg(long, requires = "op")]
    shared: bool,
}

/// Default number of files of each worker: a run of a local file system takes some seconds.
const FILES: u32 = 20_000;
/// Default number of workers for operations on files.
const WORKERS: u32 = 4;

/// Parses the name of an operation on files.
fn op(text: &str) -> Result<OpKind, String> {
    FileOps::op(text).ok_or_else(|| format!("one of {}", FileOps::names().join(", ")))
}

/// Parses the size of a file.
fn file_size(text: &str) -> Result<u32, String> {
    let bytes = size::parse(text).map_err(|error| error.to_string())?;
    let fitting = u32::try_from(bytes).ok().filter(|bytes| *bytes <= FileOps::FILE_BYTES_MAX);
    fitting.ok_or_else(|| format!("at most {}", size::Human(FileOps::FILE_BYTES_MAX.into())))
}

impl FilesArgs {
    /// Returns the profile, or the operations on files that replace it.
    pub(super) fn replace(&self, profile: &ProfileArgs) -> ProfileArgs {
        let Self { op, files, file_size, workers, shared } = self;
        let (ops, files, file_bytes) = (op.clone(), *files, *file_size);
        let (shared, workers) = (*shared, *workers);
        let asked = FileOps { ops, files, file_bytes, shared, workers };
        ProfileArgs { file_ops: (!op.is_empty()).then_some(asked), ..profile.clone() }
    }
}

/// A value of `--verify`.
#[derive(Clone, Copy, Debug)]
enum Verify {
    SharePct(f64),
    Full,
}

impl Verify {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "full" {
            return Ok(Self::Full);
        }
        let pct = text.parse().ok().filter(|pct| (0.0..=100.0).contains(pct));
        pct.map(Self::SharePct).ok_or_else(|| "a number from 0 to 100, or full".to_owned())
    }

    fn apply(self, spec: &mut RunSpec) {
        let (pct, full) = match self {
            Self::SharePct(pct) => (pct, false),
            Self::Full => (100.0, true),
        };
        for cell in &mut spec.cells {
            (cell.verify_pct, cell.verify_full) = (pct, full);
        }
        let what = if full { "every byte".to_owned() } else { format!("{pct} % of the blocks") };
        spec.assume.push(format!("{what} is verified (--verify)"));
    }
}

/// Parses the size of a cache; the word `none` is 0.
pub(super) fn cache(text: &str) -> Result<u64, String> {
    if text == "none" { Ok(0) } else { size::parse(text).map_err(|error| error.to_string()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScaleName {
    Smoke,
    Standard,
    Seed,
}

/// The target to measure.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// Target to measure: PATH, file:PATH, dir:PATH, nbd://HOST/EXPORT,
    /// nbd+unix:///EXPORT?socket=PATH, iscsi://HOST/TARGET/LUN, nfs://HOST/EXPORT/DIR or null:
    #[arg(short, long, value_name = "TARGET")]
    pub(super) target: String,
}

/// Permissions to overwrite the data on a target, and to remove the lock of another run.
#[derive(Debug, Args)]
pub(super) struct DestroyArgs {
    /// Allow the loss of all data on this target; must equal --target
    #[arg(long, value_name = "TARGET")]
    destroy: Option<String>,
    /// Remove the lock file that a killed run left in an NFS directory; first check that no other
    /// run uses the directory
    #[arg(long)]
    remove_lock: bool,
}

/// Load and target of a run, ready to be measured.
pub(super) struct Plan {
    pub(super) spec: RunSpec,
    pub(super) target: Box<dyn Target>,
}

/// Properties of the target that are known before the profile is loaded, because parts of a profile
/// depend on them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Known {
    protocol: Option<Protocol>,
    block_bytes: Option<u32>,
    bytes: Option<u64>,
}

/// A profile, resolved for a target.
pub(super) struct Loaded {
    pub(super) spec: RunSpec,
    /// Traps of an imported job file: the generator for which the file was written behaves in
    /// another way than Weir.
    pub(super) traps: Vec<Trap>,
    /// Settings of an imported job file that have no effect in Weir.
    pub(super) skipped: Vec<Skipped>,
}

impl ProfileArgs {
    /// Returns the arguments of the one-minute benchmark.
    pub(super) fn quick() -> Self {
        let (scale, variant, seed, size) = (None, None, None, None);
        let (runs, duration, warmup) = (None, None, None);
        let profile = "quick".to_owned();
        let (target_cache, target_protection, target_features) = (None, None, Vec::new());
        Self {
            profile,
            scale,
            variant,
            seed,
            size,
            runs,
            duration,
            warmup,
            verify: None,
            target_cache,
            target_protection,
            target_features,
            file_ops: None,
        }
    }

    /// Returns the options with which the profile is loaded: the scale, and the known properties of
    /// the target.
    fn options(&self, known: &Known) -> Options {
        let scale = self.scale.map(|scale| match scale {
            ScaleName::Smoke => Scale::Smoke,
            ScaleName::Standard => Scale::Standard,
            ScaleName::Seed => Scale::Seed,
        });
        let Known { protocol, block_bytes, bytes } = *known;
        Options {
            scale,
            variant: self.variant.clone(),
            protocol,
            seed: self.seed,
            block_min_bytes: block_bytes,
            target_bytes: bytes,
            size_bytes: self.size,
        }
    }

    /// Loads the profile for a target. For a job file of another generator, also returns the
    /// differences in behaviour and the ignored settings.
    pub(super) fn load(&self, known: &Known) -> Result<Loaded, ApiError> {
        let options = self.options(known);
        let imported = profile::import(&self.profile, &options).map_err(|error| invalid(&error))?;
        let (mut spec, traps, skipped) = match imported {
            Some(Imported { spec, traps, skipped }) => (spec, traps, skipped),
            None => {
                let loaded = match &self.file_ops {
                    Some(asked) => profile::of_files(asked, &options),
                    None => profile::load(&self.profile, &options),
                };
                let mut spec = loaded.map_err(|error| invalid(&error))?;
                if let Some(bytes) = self.size {
                    resize(&mut spec, bytes)?;
                }
                (spec, Vec::new(), Vec::new())
            }
        };
        self.shorten(&mut spec);
        if let Some(runs) = self.runs {
            spec.cells.iter_mut().filter(|cell| cell.search.is_none()).for_each(|cell| {
                cell.runs = runs;
            });
            spec.assume.push(format!("{runs} runs of each row (--runs)"));
        }
        if let Some(verify) = self.verify {
            verify.apply(&mut spec);
        }
        spec.told.cache_bytes = self.target_cache.or(spec.told.cache_bytes);
        if self.target_protection.is_some() {
            spec.told.protection.clone_from(&self.target_protection);
        }
        spec.told.features.extend(self.target_features.iter().cloned());
        Ok(Loaded { spec, traps, skipped })
    }
}

impl ProfileArgs {
    /// Applies `--duration` and `--warmup`.
    fn shorten(&self, spec: &mut RunSpec) {
        let ends = |stream: &StreamSpec| stream.op.is_some_and(OpKind::ends_with_files);
        let timed = |cell: &&mut CellSpec| cell.search.is_none() && !cell.streams.iter().any(ends);
        if let Some(seconds) = self.duration {
            let ms = u64::from(seconds) * 1000;
            spec.cells.iter_mut().filter(timed).for_each(|cell| cell.duration_ms = ms);
            spec.precondition.iter_mut().for_each(|rounds| rounds.round_ms = ms);
            spec.assume.push(format!("{seconds} s for each measurement (--duration)"));
        }
        if let Some(seconds) = self.warmup {
            let ms = u64::from(seconds) * 1000;
            spec.cells.iter_mut().filter(timed).for_each(|cell| cell.warmup_ms = ms);
            spec.assume.push(format!("{seconds} s of load before each measurement (--warmup)"));
        }
    }
}

/// Changes the size of the dataset, rounded down to a multiple of the largest operation size.
fn resize(spec: &mut RunSpec, bytes: u64) -> Result<(), ApiError> {
    let blocks = spec.cells.iter().flat_map(|cell| &cell.streams).flat_map(|stream| &stream.blocks);
    let largest = blocks.map(|share| share.bytes).chain([spec.fill.block_bytes]).max();
    let unit = u64::from(largest.unwrap_or(4096));
    let files = u64::from(spec.dataset.files.max(1)).min((bytes / unit).max(1));
    let file_bytes = bytes / files / unit * unit;
    if file_bytes == 0 {
        let message = format!("--size {bytes} is smaller than one operation of {unit} bytes");
        return Err(ApiError::new(ErrorKind::Invalid, message));
    }
    (spec.dataset.files, spec.dataset.file_bytes) = (files as u32, file_bytes);
    let total = size::Human(spec.dataset.total_bytes());
    spec.assume.push(format!("{total} of data (--size)"));
    Ok(())
}

/// Opens a target for a profile, if the user allows this program to overwrite it.
pub(super) fn plan(
    profile: &ProfileArgs,
    target: &str,
    destroy: &DestroyArgs,
) -> Result<Plan, ApiError> {
    let address = Address::parse(target).map_err(|error| told(&error))?;
    let bytes = size_of(&address);
    let mut known = Known { protocol: Some(protocol(&address)), block_bytes: None, bytes };
    let Loaded { spec, traps, .. } = profile.load(&known)?;
    for trap in &traps {
        output::say(&format!("weir: {}; {}", trap.what, trap.action));
    }
    let opened = open(&address, &spec, target, destroy)?;
    known.block_bytes = Some(opened.info().block_bytes);
    let mut spec = profile.load(&known)?.spec;
    own::ask(&mut spec, &address, target);
    Ok(Plan { spec, target: opened })
}

/// Opens a target for a run, if the user allows this program to overwrite it.
pub(super) fn open(
    address: &Address,
    spec: &RunSpec,
    named: &str,
    destroy: &DestroyArgs,
) -> Result<Box<dyn Target>, ApiError> {
    if let Some(other) = destroy.destroy.as_deref().filter(|other| *other != named) {
        let message = format!("--destroy names {other:?}, and the target is {named:?}");
        return Err(ApiError::new(ErrorKind::Invalid, message)
            .with_action("to overwrite everything on the target, name it with both options"));
    }
    if destroy.remove_lock {
        target::remove_lock(address).map_err(|error| told(&error))?;
    }
    let is_taken = target::take(address).map_err(|error| told(&error))?;
    let holds = target::what_is_at(address).map_err(|error| told(&error))?;
    if holds == Holds::Data && destroy.destroy.is_none() {
        let error = TargetError::HoldsData { address: named.to_owned() };
        return Err(ApiError::new(ErrorKind::Exists, error.to_string()).with_action(error.action()));
    }
    let opened = target::open(address, &spec.dataset).map_err(|error| told(&error))?;
    if !is_taken {
        target::take(address).map_err(|error| told(&error))?;
    }
    Ok(opened)
}

fn protocol(address: &Address) -> Protocol {
    match address {
        Address::Null { .. } => Protocol::Null,
        Address::Directory(_) => Protocol::Dir,
        Address::Nbd(_) => Protocol::Nbd,
        Address::Iscsi(_) => Protocol::Iscsi,
        Address::Nfs(_) => Protocol::Nfs3,
        Address::File(path) if is_device(path) => Protocol::Block,
        Address::File(_) => Protocol::File,
    }
}

/// Returns the size of an existing file or device; `None` for a target that must be opened to find
/// out its size.
fn size_of(address: &Address) -> Option<u64> {
    let Address::File(path) = address else { return None };
    let found = std::fs::metadata(path).ok()?;
    if found.is_file() {
        return Some(found.len()).filter(|bytes| *bytes > 0);
    }
    if !found.file_type().is_block_device() {
        return None;
    }
    File::open(path).ok()?.seek(SeekFrom::End(0)).ok()
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// Converts an error of a target to an error of the command line.
pub(super) fn told(error: &TargetError) -> ApiError {
    let kind = match error {
        TargetError::Io { source, .. } => ErrorKind::of_file(source.kind()),
        TargetError::HoldsData { .. } => ErrorKind::Exists,
        TargetError::InUse { .. } | TargetError::Locked { .. } => ErrorKind::Busy,
        TargetError::Protocol { .. } => ErrorKind::Unavailable,
        TargetError::Iscsi { source, .. } => source.kind(),
        TargetError::Nfs { source, .. } => source.kind(),
        _ => ErrorKind::Invalid,
    };
    ApiError::new(kind, error.to_string()).with_action(error.action())
}

impl DestroyArgs {
    /// Returns no permission: a target that this program created needs none.
    pub(super) fn nothing() -> Self {
        Self { destroy: None, remove_lock: false }
    }
}
