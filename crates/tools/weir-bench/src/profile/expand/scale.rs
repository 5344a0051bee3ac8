//! Smaller ways to do a profile: in minutes what was published in days.
//!
//! Not here: which cells there are; every scale does them all.
//!
//! Invariant: a scale never makes anything longer or larger than it was, but for the cells of a
//! published profile at standard scale, which all get a minute.

use crate::spec::{BonnieSize, BonnieSpec, CellSpec, DatasetSpec, Scale};

/// The largest profile has more than 50 rows, and is to be through within minutes.
const SMOKE_CELL_MS: u64 = 5_000;
/// A search measures many rates, and looks for growth from second to second.
const SMOKE_RATE_MS: u64 = 2_000;
const SMOKE_WARMUP_MS: u64 = 500;
const SMOKE_BYTES: u64 = 256 << 20;
/// Of the file test.
const SMOKE_FILE_BYTES: u64 = 64 << 20;
const SMOKE_FILES: u32 = 256;
const STANDARD_CELL_MS: u64 = 60_000;
const STANDARD_WARMUP_MS: u64 = 10_000;
const STANDARD_BYTES: u64 = 8 << 30;
/// Fewer blocks per file are hardly a file.
const FILE_BLOCKS_MIN: u64 = 8;

/// A title with the scale behind it, where it is not all of what the profile says.
pub(in crate::profile) fn titled(title: String, scale: Scale) -> String {
    if scale == Scale::Seed { title } else { format!("{title}, {} scale", name(scale)) }
}

/// Says among the assumptions what the scale does.
pub(in crate::profile) fn tell(scale: Scale, assume: &mut Vec<String>) {
    if scale != Scale::Seed {
        assume.push(format!("{} scale: {}", name(scale), meaning(scale)));
    }
}

/// As it is printed.
fn name(scale: Scale) -> &'static str {
    match scale {
        Scale::Smoke => "smoke",
        Scale::Standard => "standard",
        Scale::Seed => "seed",
    }
}

/// What it does to a profile.
fn meaning(scale: Scale) -> &'static str {
    match scale {
        Scale::Smoke => {
            "one run of 5 s per row, at most 256 MiB of data: shows that it works, no more"
        }
        Scale::Standard => "runs of 60 s per row, at most 8 GiB of data",
        Scale::Seed => "as the profile says",
    }
}

/// Makes a cell fit its scale. `published`: of a profile that repeats a document.
pub(in crate::profile) fn cell(cell: &mut CellSpec, scale: Scale, published: bool) {
    let search = cell.search.is_some();
    // 0 is no limit, which is longer than any.
    let longest_ms = if cell.duration_ms == 0 { u64::MAX } else { cell.duration_ms };
    match scale {
        Scale::Seed => {}
        Scale::Smoke => {
            let shortest = if search { SMOKE_RATE_MS } else { SMOKE_CELL_MS };
            cell.duration_ms = longest_ms.min(shortest);
            if !search && published {
                cell.duration_ms = SMOKE_CELL_MS;
            }
            cell.warmup_ms = cell.warmup_ms.min(SMOKE_WARMUP_MS);
            cell.runs = 1;
        }
        Scale::Standard => {
            let minute = published && !search;
            let as_is = longest_ms.min(STANDARD_CELL_MS);
            cell.duration_ms = if minute { STANDARD_CELL_MS } else { as_is };
            cell.warmup_ms = cell.warmup_ms.min(STANDARD_WARMUP_MS);
        }
    }
}

/// As much of the dataset as a scale allows; fewer files where they would get too small.
pub(in crate::profile) fn dataset(
    published: DatasetSpec,
    scale: Scale,
    unit_bytes: u64,
    assume: &mut Vec<String>,
) -> DatasetSpec {
    let most = match scale {
        Scale::Seed => return published,
        Scale::Smoke => SMOKE_BYTES,
        Scale::Standard => STANDARD_BYTES,
    };
    if published.total_bytes() <= most {
        return published;
    }
    let files_max = (most / (unit_bytes * FILE_BLOCKS_MIN)).max(1);
    let files = u64::from(published.files).min(files_max);
    let file_bytes = (most / files / unit_bytes).max(1) * unit_bytes;
    let scaled =
        DatasetSpec { files: files as u32, file_bytes: file_bytes.min(published.file_bytes) };
    assume.push(format!(
        "{} bytes of data instead of {}: caches hold a larger share of it",
        scaled.total_bytes(),
        published.total_bytes()
    ));
    scaled
}

/// As large as a scale allows.
pub(super) fn bonnie(spec: BonnieSpec, scale: Scale) -> BonnieSpec {
    let most = match scale {
        Scale::Seed => return spec,
        Scale::Smoke => {
            let size = BonnieSize::Bytes { bytes: SMOKE_FILE_BYTES };
            return BonnieSpec { size, files: spec.files.min(SMOKE_FILES), runs: 1 };
        }
        Scale::Standard => STANDARD_BYTES,
    };
    let bytes = match spec.size {
        BonnieSize::Bytes { bytes } => bytes.min(most),
        BonnieSize::MemoryTimes { .. } => most,
    };
    BonnieSpec { size: BonnieSize::Bytes { bytes }, ..spec }
}
