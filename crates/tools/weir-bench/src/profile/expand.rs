//! Expands a profile into a `RunSpec`, in which every parameter has a value.
//!
//! `read` parses the profile; `check` validates it. The modules below this one are `cells` (the
//! rows), `metadata` (their metadata operations), `load` (queue depths and rates), `scale` (shorter
//! runs) and `require` (the bounds).
//!
//! Invariants: `RunSpec::assume` lists each value that the author of the profile left open, and
//! each value that the scale or the target changed; equal profiles with equal options give equal
//! `RunSpec`s.

mod cells;
mod load;
mod metadata;
mod require;
pub(super) mod scale;

pub(super) use load::{IN_FLIGHT_MAX, RATE_MAX};

use crate::spec::{BonnieSize, BonnieSpec, ContentSpec, DatasetSpec, Durability, FillSpec};
use crate::spec::{PreconditionSpec, RunSpec, Scale};

use super::error::{ProfileError, Source};
use super::format::{Dataset, Engine, Headline, Profile, Target, Writes};
use super::quantity::Size;
use super::{Options, Protocol};

/// Block size of the fill phase, if the profile contains none.
const FILL_BLOCK_BYTES: u32 = 1 << 20;
const FILL_IN_FLIGHT: u32 = 32;

/// Expands a profile that has passed the checks.
pub(super) fn expand(
    source: Source<'_>,
    profile: &Profile,
    options: &Options,
) -> Result<RunSpec, ProfileError> {
    let require = require::requirement(source, profile)?;
    let mut assume = profile.assume.clone();
    let cells = cells::cells(source, profile, options, require.as_ref(), &mut assume)?;
    let blocks = cells.iter().flat_map(|cell| &cell.streams).flat_map(|stream| &stream.blocks);
    let block_max = blocks.map(|block| block.bytes).max().unwrap_or(FILL_BLOCK_BYTES);
    let fill = fill(profile, block_max);
    let unit = unit_bytes(block_max, fill);
    let published = dataset(source, profile, unit)?;
    let dataset = scale::dataset(published, options.scale_of_file(), unit, &mut assume);
    if let Some(what) = super::too_small(&cells, &dataset) {
        let place = profile.dataset.span();
        return Err(source.contradiction(&place, what, "give larger files or smaller blocks"));
    }
    let precondition = precondition(profile, options, &mut assume);
    let durability = durability(profile);
    leave_out(profile, options, &mut assume);
    let content = profile.content.get_ref();
    Ok(RunSpec {
        name: profile.name.clone(),
        title: title(profile, options),
        reference: profile.reference.as_ref().map(|file| file.get_ref().clone()),
        assume,
        scale: options.scale_of_file(),
        dataset,
        content: ContentSpec {
            compress: content.compress,
            dedupe_pct: content.dedupe_pct,
            unit_bytes: content.unit.0 as u32,
            seed: options.seed.unwrap_or(content.seed),
        },
        durability,
        fill,
        precondition,
        cells,
        bonnie: bonnie(source, profile, options)?,
        require,
        limits: profile.limits.clone(),
        sizing: profile.sizing.as_ref().map(|sizing| sizing.get_ref().clone()),
        cost: profile.cost.clone(),
        told: profile.target.as_ref().map(Target::told).unwrap_or_default(),
    })
}

fn title(profile: &Profile, options: &Options) -> String {
    let mut title = profile.title.clone().unwrap_or_else(|| profile.name.clone());
    if let Some(variant) = &options.variant {
        title = format!("{title}, {variant}");
    }
    let title = scale::titled(title, options.scale_of_file());
    let names: Vec<&str> = profile.protocols.iter().map(|protocol| protocol.name()).collect();
    let available = profile.protocols.iter().any(|protocol| protocol.available());
    match options.protocol {
        Some(used) if !names.is_empty() && !profile.protocols.contains(&used) => {
            format!("{title} (on {} instead of {})", used.name(), names.join(", "))
        }
        None if !names.is_empty() && !available => {
            format!("{title} (on file, nbd, iscsi or nfs3 instead of {})", names.join(", "))
        }
        _ => title,
    }
}

/// Granularity of file sizes in bytes: a common multiple of the largest block and the fill block.
fn unit_bytes(block_max: u32, fill: FillSpec) -> u64 {
    let (large, small) = (block_max.max(fill.block_bytes), block_max.min(fill.block_bytes));
    // Nearly all profiles use powers of two, so that the larger size is a common multiple.
    // Otherwise use the product of both sizes.
    let whole = large.is_multiple_of(small);
    if whole { u64::from(large) } else { u64::from(large) * u64::from(small) }
}

/// Dataset of the profile. The size of each file is rounded down to a multiple of `unit`.
fn dataset(source: Source<'_>, profile: &Profile, unit: u64) -> Result<DatasetSpec, ProfileError> {
    let place = profile.dataset.span();
    let refuse = |what: String, action: &str| Err(source.contradiction(&place, what, action));
    let (files, size) = match profile.dataset.get_ref() {
        Dataset { files: Some(files), file_size: Some(size), .. } if alone(profile, 0) => {
            (u64::from(*files), *size)
        }
        Dataset {
            shares: Some(shares),
            files_per_share: Some(files),
            file_size: Some(size),
            ..
        } if alone(profile, 1) => (u64::from(*shares) * u64::from(*files), *size),
        Dataset { volumes_per_client: Some(volumes), volume_size: Some(size), .. }
            if alone(profile, 2) =>
        {
            (u64::from(*volumes), *size)
        }
        Dataset { databases: Some(databases), db_size: Some(size), .. } if alone(profile, 3) => {
            (u64::from(*databases), *size)
        }
        _ => {
            return refuse(
                "the dataset needs exactly one of three forms".to_owned(),
                "give `files` and `file_size`, or `shares`, `files_per_share` and `file_size`, or \
                 `volumes_per_client` and `volume_size`, or `databases` and `db_size`",
            );
        }
    };
    let Ok(files) = u32::try_from(files) else {
        return refuse(format!("{files} files are too many"), "give fewer and larger ones");
    };
    if files == 0 {
        return refuse("the dataset has no files".to_owned(), "give at least 1");
    }
    let Size(bytes) = size;
    let file_bytes = bytes / unit * unit;
    if file_bytes == 0 {
        let what = format!("blocks of {unit} bytes (fill included) do not fit a file of {bytes}");
        return refuse(what, "give larger files or smaller blocks");
    }
    if file_bytes.checked_mul(u64::from(files)).is_none() {
        return refuse("the dataset is larger than 2^64 bytes".to_owned(), "give smaller files");
    }
    Ok(DatasetSpec { files, file_bytes })
}

/// True if the profile describes the dataset only with the set of keys that has the index `way`.
fn alone(profile: &Profile, way: usize) -> bool {
    let dataset = profile.dataset.get_ref();
    let others = [
        dataset.files.is_some(),
        dataset.shares.is_some() || dataset.files_per_share.is_some(),
        dataset.volumes_per_client.is_some() || dataset.volume_size.is_some(),
        dataset.databases.is_some() || dataset.db_size.is_some(),
    ];
    let mixed = others.iter().enumerate().any(|(other, said)| other != way && *said);
    // Only the first two of the four sets of keys include `file_size`.
    !mixed && (way < 2 || dataset.file_size.is_none())
}

fn fill(profile: &Profile, block_max: u32) -> FillSpec {
    let said = profile.phases.fill.as_ref().map(toml::Spanned::get_ref);
    let block_bytes = said.map_or(block_max.max(FILL_BLOCK_BYTES), |fill| fill.block.0 as u32);
    let in_flight = said.and_then(|fill| fill.in_flight).unwrap_or(FILL_IN_FLIGHT);
    FillSpec { block_bytes, in_flight }
}

fn precondition(
    profile: &Profile,
    options: &Options,
    assume: &mut Vec<String>,
) -> Option<PreconditionSpec> {
    let said = profile.phases.precondition.as_ref()?.get_ref();
    if options.scale_of_file() == Scale::Smoke {
        assume.push("smoke scale skips preconditioning; figures are not steady".to_owned());
        return None;
    }
    Some(PreconditionSpec {
        round_ms: said.round.0,
        window: said.window,
        range_pct: said.range_pct,
        slope_pct: said.slope_pct,
        rounds_max: said.max_rounds,
    })
}

fn durability(profile: &Profile) -> Durability {
    let said = profile.durability.get_ref();
    match (said.writes, said.commit_every) {
        (Writes::None, _) => Durability::None,
        (Writes::Fua | Writes::DataSync | Writes::FileSync, _) => Durability::Fua,
        (Writes::Flush | Writes::UnstableCommit, Some(Size(every_bytes))) => {
            Durability::FlushBytes { every_bytes }
        }
        (Writes::Flush | Writes::UnstableCommit, None) => {
            Durability::Flush { every_writes: said.every_writes.unwrap_or(1) }
        }
    }
}

/// Lists in `assume` the parts of the source's measurement that the run does not repeat, and the
/// conditions that the reader must know.
fn leave_out(profile: &Profile, options: &Options, assume: &mut Vec<String>) {
    if let Some(mix) = &profile.mix {
        let meta_pct = 100.0 - mix.get_ref().data_pct;
        if meta_pct > 0.0 && !options.protocol.is_some_and(Protocol::has_files) {
            assume.push(format!(
                "the source's {meta_pct} % of metadata operations are omitted, because the \
                 target has no files; compare with its data operations"
            ));
        }
    }
    let measure = profile.phases.measure.as_ref().map(toml::Spanned::get_ref);
    if measure.and_then(|measure| measure.headline) == Some(Headline::Mean) {
        let what = "the source publishes means of runs; this report prints medians with minimum \
                    and maximum";
        assume.push(what.to_owned());
    }
    if profile.clients.as_ref().is_some_and(|clients| *clients.get_ref() > 1) {
        assume.push("each client uses a separate part of the dataset".to_owned());
    }
    if !profile.observe.is_empty() {
        let counters = profile.observe.join(", ");
        assume.push(format!("counters to record on the target during the run: {counters}"));
    }
    let chosen = options.variant.as_ref();
    let variant = profile.variant.iter().find(|variant| Some(&variant.name) == chosen);
    for (key, value) in variant.into_iter().flat_map(|variant| &variant.target) {
        assume.push(format!("the target was set up with {key} = {value}"));
    }
    scale::tell(options.scale_of_file(), assume);
}

/// Spec of the bonnie test, if the profile has one.
fn bonnie(
    source: Source<'_>,
    profile: &Profile,
    options: &Options,
) -> Result<Option<BonnieSpec>, ProfileError> {
    let is_bonnie =
        |test: &&toml::Spanned<super::format::Test>| test.get_ref().engine == Engine::Bonnie;
    let Some(test) = profile.test.iter().find(is_bonnie) else { return Ok(None) };
    let (place, test) = (test.span(), test.get_ref());
    let refuse = |what: &str, action: &str| Err(source.contradiction(&place, what, action));
    if profile.test.iter().filter(is_bonnie).count() > 1 {
        return refuse("there are two bonnie tests", "keep one of them");
    }
    let own = test.pattern.is_some() || test.block.is_some() || test.qd.is_some();
    if own || test.read_pct.is_some() || test.mode.is_some() || test.threads.is_some() {
        let what = "the bonnie engine defines its load itself";
        return refuse(what, "keep only `size`, `files` and `runs`");
    }
    let Some(size) = &test.size else {
        return refuse("a bonnie test needs a size", "add `size = \"3xRAM\"`");
    };
    let text = size.get_ref();
    let size = match text.strip_suffix("xRAM").map(str::parse::<f64>) {
        Some(Ok(times)) if times > 0.0 && times <= 100.0 => BonnieSize::MemoryTimes { times },
        Some(_) => return refuse("the multiple of the memory is not a number", "write 3xRAM"),
        None => match Size::try_from(text.clone()) {
            Ok(Size(bytes)) if bytes > 0 => BonnieSize::Bytes { bytes },
            Ok(_) => return refuse("the size is 0", "write a multiple of the memory: 3xRAM"),
            Err(error) => return refuse(&error.to_string(), "or write 3xRAM"),
        },
    };
    let spec = BonnieSpec { size, files: test.files.unwrap_or(0), runs: test.runs.unwrap_or(3) };
    Ok(Some(scale::bonnie(spec, options.scale_of_file())))
}

/// Protocols that a profile can name; weir-bench implements only some of them.
impl Protocol {
    fn available(self) -> bool {
        !matches!(self, Self::Smb | Self::S3)
    }
}
