//! From a profile and a target to what is measured.
//!
//! Not here: reading profiles (weir-bench), measuring.
//!
//! Invariant: what differs from the profile stands among the run's assumptions.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use clap::{Args, ValueEnum};
use weir_api::ApiError;
use weir_base::{ErrorKind, size};
use weir_bench::profile::{self, Options, Protocol};
use weir_bench::spec::{RunSpec, Scale};
use weir_bench::target::{self, Address, Holds, Target, TargetError};

use super::{invalid, own};

/// Which profile, and how much of it.
#[derive(Debug, Args)]
pub(super) struct ProfileArgs {
    /// One that comes along (see `weir bench profiles`), or a file: .toml, .fio or .icf
    #[arg(short, long, value_name = "NAME|FILE", default_value = "quick")]
    pub(super) profile: String,
    /// How much of it: seconds, a minute, or as published for every row
    #[arg(long, value_enum, default_value_t = ScaleName::Standard)]
    scale: ScaleName,
    /// A variant that the profile names
    #[arg(long, value_name = "NAME")]
    variant: Option<String>,
    /// Of all random numbers, instead of the profile's
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Size of the dataset, instead of the profile's
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size: Option<u64>,
    /// How often each row is measured, instead of the profile's
    #[arg(long, value_name = "TIMES", value_parser = clap::value_parser!(u32).range(1..=100))]
    runs: Option<u32>,
    /// Share of the blocks that is read and compared after the last run, in percent; full compares
    /// all of them, and every byte of each read while it is measured
    #[arg(long, value_name = "PERCENT|full", value_parser = Verify::parse)]
    verify: Option<Verify>,
    /// Bytes that the target's caches hold, or none; a result without it is compared with no other
    #[arg(long, value_name = "SIZE|none", value_parser = cache)]
    target_cache: Option<u64>,
    /// Redundancy of the target, such as "mirror of 2"
    #[arg(long, value_name = "TEXT")]
    target_protection: Option<String>,
    /// A feature of the target that works on the data, such as dedupe; may be repeated
    #[arg(long = "target-feature", value_name = "TEXT")]
    target_features: Vec<String>,
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

/// The size of a cache; `none` is 0.
pub(super) fn cache(text: &str) -> Result<u64, String> {
    if text == "none" { Ok(0) } else { size::parse(text).map_err(|error| error.to_string()) }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ScaleName {
    Smoke,
    Standard,
    Seed,
}

/// Where.
#[derive(Debug, Args)]
pub(super) struct TargetArgs {
    /// What is measured: PATH, file:PATH, dir:PATH, nbd://HOST/EXPORT,
    /// nbd+unix:///EXPORT?socket=PATH, iscsi://HOST/TARGET/LUN or null:
    #[arg(short, long, value_name = "TARGET")]
    pub(super) target: String,
}

/// Leave to write over what a target holds.
#[derive(Debug, Args)]
pub(super) struct DestroyArgs {
    /// Everything on this target may be lost; the same text as --target
    #[arg(long, value_name = "TARGET")]
    destroy: Option<String>,
}

/// What is measured, and where.
pub(super) struct Plan {
    pub(super) spec: RunSpec,
    pub(super) target: Box<dyn Target>,
}

impl ProfileArgs {
    /// As the minute without a verb takes it.
    pub(super) fn quick() -> Self {
        let (variant, seed, size, runs) = (None, None, None, None);
        let (profile, scale) = ("quick".to_owned(), ScaleName::Standard);
        let (target_cache, target_protection, target_features) = (None, None, Vec::new());
        Self {
            profile,
            scale,
            variant,
            seed,
            size,
            runs,
            verify: None,
            target_cache,
            target_protection,
            target_features,
        }
    }

    fn options(&self, protocol: Option<Protocol>, block_min_bytes: Option<u32>) -> Options {
        let scale = match self.scale {
            ScaleName::Smoke => Scale::Smoke,
            ScaleName::Standard => Scale::Standard,
            ScaleName::Seed => Scale::Seed,
        };
        Options { scale, variant: self.variant.clone(), protocol, seed: self.seed, block_min_bytes }
    }

    /// What the profile becomes for a target, or without one.
    pub(super) fn load(
        &self,
        protocol: Option<Protocol>,
        block_min_bytes: Option<u32>,
    ) -> Result<RunSpec, ApiError> {
        let options = self.options(protocol, block_min_bytes);
        let icf = Path::new(&self.profile).extension().is_some_and(|end| end == "icf");
        let loaded = if icf {
            let text = read(&self.profile)?;
            profile::import_icf(&self.profile, &text, self.size, &options)
        } else {
            profile::load(&self.profile, &options)
        };
        let mut spec = loaded.map_err(|error| invalid(&error))?;
        if let Some(bytes) = self.size.filter(|_| !icf) {
            resize(&mut spec, bytes)?;
        }
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
        Ok(spec)
    }
}

/// The text of a file that is imported.
pub(super) fn read(path: &str) -> Result<String, ApiError> {
    std::fs::read_to_string(path)
        .map_err(|error| ApiError::new(ErrorKind::NotFound, format!("cannot read {path}: {error}")))
}

/// Another dataset size, in whole operations of every size.
fn resize(spec: &mut RunSpec, bytes: u64) -> Result<(), ApiError> {
    let blocks = spec.cells.iter().flat_map(|cell| &cell.streams).flat_map(|stream| &stream.blocks);
    let largest = blocks.map(|share| share.bytes).chain([spec.fill.block_bytes]).max();
    let unit = u64::from(largest.unwrap_or(4096));
    let files = u64::from(spec.dataset.files.max(1)).min((bytes / unit).max(1));
    let file_bytes = bytes / files / unit * unit;
    if file_bytes == 0 {
        let message = format!("--size {bytes} holds not one operation of {unit} bytes");
        return Err(ApiError::new(ErrorKind::Invalid, message));
    }
    (spec.dataset.files, spec.dataset.file_bytes) = (files as u32, file_bytes);
    let total = size::Human(spec.dataset.total_bytes());
    spec.assume.push(format!("{total} of data (--size)"));
    Ok(())
}

/// Opens a target for a profile, if it may be written.
pub(super) fn plan(
    profile: &ProfileArgs,
    target: &str,
    destroy: &DestroyArgs,
) -> Result<Plan, ApiError> {
    let address = Address::parse(target).map_err(|error| told(&error))?;
    let protocol = Some(protocol(&address));
    let spec = profile.load(protocol, None)?;
    let opened = open(&address, &spec, target, destroy)?;
    let mut spec = profile.load(protocol, Some(opened.info().block_bytes))?;
    own::ask(&mut spec, &address, target);
    Ok(Plan { spec, target: opened })
}

/// Opens a target for what is measured on it, if it may be written.
pub(super) fn open(
    address: &Address,
    spec: &RunSpec,
    named: &str,
    destroy: &DestroyArgs,
) -> Result<Box<dyn Target>, ApiError> {
    if let Some(other) = destroy.destroy.as_deref().filter(|other| *other != named) {
        let message = format!("--destroy names {other:?}, and the target is {named:?}");
        return Err(ApiError::new(ErrorKind::Invalid, message)
            .with_action("name the target with both, if everything on it may be lost"));
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
        Address::File(path) if is_device(path) => Protocol::Block,
        Address::File(_) => Protocol::File,
    }
}

fn is_device(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device())
}

/// An error of a target as the command line tells it.
pub(super) fn told(error: &TargetError) -> ApiError {
    let kind = match error {
        TargetError::Io { source, .. } => match source.kind() {
            std::io::ErrorKind::NotFound => ErrorKind::NotFound,
            std::io::ErrorKind::PermissionDenied => ErrorKind::Permission,
            std::io::ErrorKind::ResourceBusy => ErrorKind::Busy,
            std::io::ErrorKind::StorageFull => ErrorKind::NoSpace,
            _ => ErrorKind::Unavailable,
        },
        TargetError::HoldsData { .. } => ErrorKind::Exists,
        TargetError::InUse { .. } => ErrorKind::Busy,
        TargetError::Protocol { .. } => ErrorKind::Unavailable,
        TargetError::Iscsi { source, .. } => source.kind(),
        _ => ErrorKind::Invalid,
    };
    ApiError::new(kind, error.to_string()).with_action(error.action())
}

impl DestroyArgs {
    /// For a target of our own making.
    pub(super) fn nothing() -> Self {
        Self { destroy: None }
    }
}
