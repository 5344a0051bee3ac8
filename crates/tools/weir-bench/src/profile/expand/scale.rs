//! Scales: shortened runs of a profile, which take minutes instead of days.
//!
//! Every scale runs all cells of the profile. `cells` makes the cells.
//!
//! Invariant: a scale never makes a run longer or a dataset larger, with one exception: each cell
//! of a published profile, other than a search, runs 5 s at smoke scale and 60 s at standard scale.

use crate::spec::{BonnieSize, BonnieSpec, CellSpec, DatasetSpec, MetadataSpec, Scale};

/// Maximum length of a cell's run in milliseconds, because the largest profile has more than 50
/// cells and a smoke run must end within minutes.
const SMOKE_CELL_MS: u64 = 5_000;
/// Maximum length of the run at each rate of a search, in milliseconds. A search measures many
/// rates, but each run must last long enough to show a growing backlog.
const SMOKE_RATE_MS: u64 = 2_000;
const SMOKE_WARMUP_MS: u64 = 500;
const SMOKE_BYTES: u64 = 256 << 20;
/// Maximum size of the large file of the bonnie test, in bytes.
const SMOKE_FILE_BYTES: u64 = 64 << 20;
const SMOKE_FILES: u32 = 256;
/// Maximum number of files of each worker for an operation on files.
const SMOKE_WORKER_FILES: u32 = 1_000;
const STANDARD_CELL_MS: u64 = 60_000;
const STANDARD_WARMUP_MS: u64 = 10_000;
const STANDARD_BYTES: u64 = 8 << 30;
/// Minimum number of blocks in a scaled file; a smaller file would not behave like a file.
const FILE_BLOCKS_MIN: u64 = 8;

/// Appends the name of the scale to a title, unless the scale runs the whole profile.
pub(in crate::profile) fn titled(title: String, scale: Scale) -> String {
    if scale == Scale::Seed { title } else { format!("{title}, {} scale", name(scale)) }
}

/// Appends a description of the scale to the assumptions, unless the scale runs the whole profile.
pub(in crate::profile) fn tell(scale: Scale, assume: &mut Vec<String>) {
    if scale != Scale::Seed {
        assume.push(format!("{} scale: {}", name(scale), meaning(scale)));
    }
}

/// Name of the scale in titles and assumptions.
fn name(scale: Scale) -> &'static str {
    match scale {
        Scale::Smoke => "smoke",
        Scale::Standard => "standard",
        Scale::Seed => "seed",
    }
}

/// Describes the changes that the scale makes in a profile.
fn meaning(scale: Scale) -> &'static str {
    match scale {
        Scale::Smoke => {
            "one run of 5 s per row, at most 256 MiB of data; only checks that the profile runs"
        }
        Scale::Standard => "runs of 60 s per row, at most 8 GiB of data",
        Scale::Seed => "as the profile says",
    }
}

/// Shortens the run of a cell to its scale. `published` is true if the profile repeats a published
/// document.
pub(in crate::profile) fn cell(cell: &mut CellSpec, scale: Scale, published: bool) {
    let search = cell.search.is_some();
    // A duration of 0 means that the run has no time limit.
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
            for stream in &mut cell.streams {
                if let Some(MetadataSpec::Files { files, .. }) = &mut stream.metadata {
                    *files = (*files).min(SMOKE_WORKER_FILES);
                }
            }
        }
        Scale::Standard => {
            let minute = published && !search;
            let as_is = longest_ms.min(STANDARD_CELL_MS);
            cell.duration_ms = if minute { STANDARD_CELL_MS } else { as_is };
            cell.warmup_ms = cell.warmup_ms.min(STANDARD_WARMUP_MS);
        }
    }
}

/// Shrinks the dataset to the limit of the scale. If the files would become too small, reduces the
/// number of files.
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
        "{} bytes of data instead of {}; caches hold a larger share of the data",
        scaled.total_bytes(),
        published.total_bytes()
    ));
    scaled
}

/// Shrinks the bonnie test to the limits of the scale.
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
