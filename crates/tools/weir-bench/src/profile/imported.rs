//! Code that the imports of all generators share.
//!
//! `fio` and `icf` read the files; `lint` finds the traps of any run.
//!
//! Invariant: an import reports each option of the file that it changed as a trap and as an
//! assumption of the run, and each option that it skipped with its line.

use serde::Serialize;

use crate::spec::{
    Access, BlockShare, CellSpec, ContentSpec, DatasetSpec, Durability, FillSpec, RunSpec,
    StatedTarget, StreamSpec,
};

use super::expand::scale;
use super::lint::{Trap, trap};
use super::{Options, SECTOR_BYTES, STAMPED_BYTES, too_small};

/// Run that was made from a file of another generator, with warnings and with the options of the
/// file that the import skipped.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// Spec of the run.
    pub spec: RunSpec,
    /// Warnings about differences between the run and the file. `lint` finds the traps of any run.
    pub traps: Vec<Trap>,
    /// Options of the file that do not change the load, in their order in the file.
    pub skipped: Vec<Skipped>,
}

/// Option of a file that does not change the load.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Skipped {
    /// Name of the file.
    pub file: String,
    /// Number of the line, from 1.
    pub line: usize,
    /// Name of the option that the import skipped.
    pub word: String,
    /// Reason for which the option does not change the load.
    pub why: String,
}

/// Parsed contents of a file of another generator.
pub(super) struct Said {
    pub(super) file: String,
    /// Title of the run: the name of the generator, and the path of the file.
    pub(super) title: String,
    pub(super) cells: Vec<CellSpec>,
    pub(super) dataset: DatasetSpec,
    pub(super) content: ContentSpec,
    pub(super) durability: Durability,
    pub(super) assume: Vec<String>,
    pub(super) traps: Vec<Trap>,
    pub(super) skipped: Vec<Skipped>,
}

const FILL_BLOCK_BYTES: u64 = 1 << 20;
const FILL_IN_FLIGHT: u32 = 32;
/// Minimum block size of a fill, if the file sizes permit it: smaller blocks are slow.
const FILL_BLOCK_BYTES_MIN: u64 = 64 << 10;

/// Makes a run from the parsed contents of a file.
///
/// # Errors
/// The dataset is too small for its blocks. The caller reports the message with the line that sets
/// the size.
pub(super) fn finish(said: Said, options: &Options) -> Result<Imported, String> {
    let Said { file, mut cells, content, mut assume, mut traps, skipped, .. } = said;
    let files = u64::from(said.dataset.files.max(1));
    let part_bytes = options.size_bytes.map_or(said.dataset.file_bytes, |bytes| bytes / files);
    cells.iter_mut().for_each(|cell| walk_odd_sizes(cell, part_bytes));
    let sizes = Sizes::of(&cells);
    let wanted = match options.size_bytes {
        Some(bytes) => resized(&said.dataset, bytes, sizes.unit),
        None => said.dataset,
    };
    let file_bytes = wanted.file_bytes / sizes.unit * sizes.unit;
    if file_bytes < sizes.largest {
        let (have, need) = (wanted.file_bytes, sizes.unit.max(sizes.largest));
        return Err(format!(
            "{have} bytes hold no block of {need} bytes (the common multiple of the sizes)"
        ));
    }
    if wanted.file_bytes - file_bytes >= sizes.smallest {
        traps.push(trap(
            format!("{file_bytes} bytes of data are used of {}", wanted.file_bytes),
            "operations of every size must cover the same data",
            "make the size a multiple of all sizes of operations",
        ));
    }
    let fill = FillSpec { block_bytes: sizes.fill_block(file_bytes), in_flight: FILL_IN_FLIGHT };
    let mut dataset = DatasetSpec { file_bytes, ..wanted };
    let scale = options.scale_of_file();
    match options.size_bytes {
        Some(_) => assume.push(format!("{} bytes of data (--size)", dataset.total_bytes())),
        None => {
            let unit = multiple(sizes.unit, u64::from(fill.block_bytes)).unwrap_or(file_bytes);
            dataset = scale::dataset(dataset, scale, unit, &mut assume);
        }
    }
    if let Some(what) = too_small(&cells, &dataset) {
        return Err(what);
    }
    cells.iter_mut().for_each(|cell| scale::cell(cell, scale, false));
    scale::tell(scale, &mut assume);
    assume.extend(traps.iter().map(|trap| trap.what.clone()));
    let spec = RunSpec {
        title: scale::titled(said.title, scale),
        name: file,
        reference: None,
        assume,
        scale,
        dataset,
        content: ContentSpec { seed: options.seed.unwrap_or(content.seed), ..content },
        durability: said.durability,
        fill,
        precondition: None,
        cells,
        bonnie: None,
        require: None,
        limits: None,
        sizing: None,
        cost: None,
        told: StatedTarget::default(),
    };
    Ok(Imported { spec, traps, skipped })
}

/// Turns a random or sequential stream into a walk if its block size does not divide the files of
/// the dataset. A walk skips the remainder of a file, as fio does, so that the dataset keeps its
/// size.
fn walk_odd_sizes(cell: &mut CellSpec, part_bytes: u64) {
    let workers = cell.load.workers();
    for stream in &mut cell.streams {
        let [BlockShare { bytes, .. }] = stream.blocks[..] else { continue };
        let random_pct = match stream.access {
            Access::Random => 100.0,
            // Only for one worker: several sequential workers each have their own range, but in a
            // walk each worker would cover all files.
            Access::Sequential if workers == 1 => 0.0,
            _ => continue,
        };
        if !part_bytes.is_multiple_of(u64::from(bytes)) {
            stream.access = Access::Walk { random_pct, align_bytes: bytes, between: false };
        }
    }
}

/// Returns a dataset of the size that the user gave, with at most as many files as before.
fn resized(dataset: &DatasetSpec, bytes: u64, unit: u64) -> DatasetSpec {
    let files = u64::from(dataset.files).min((bytes / unit).max(1));
    DatasetSpec { files: files as u32, file_bytes: bytes / files }
}

/// Properties of the block sizes of all operations.
struct Sizes {
    smallest: u64,
    largest: u64,
    /// Size of a stamped block of the content in bytes: a divisor of every operation size.
    stamped: u64,
    /// Common multiple of the operation sizes that must divide the size of each file of the
    /// dataset.
    unit: u64,
}

impl Sizes {
    fn of(cells: &[CellSpec]) -> Self {
        let streams = || cells.iter().flat_map(|cell| &cell.streams);
        let bytes = |it: &StreamSpec| it.blocks.iter().map(|block| block.bytes).collect::<Vec<_>>();
        let sizes: Vec<u64> = streams().flat_map(bytes).map(u64::from).collect();
        let is_stamped = sizes.iter().all(|bytes| bytes.is_multiple_of(STAMPED_BYTES));
        let stamped = if is_stamped { STAMPED_BYTES } else { SECTOR_BYTES };
        // A walk skips the remainder of a file, so the size of its operations need not divide the
        // file.
        let is_walk = |it: &&StreamSpec| matches!(it.access, Access::Walk { .. });
        let placed = streams().filter(|it| !is_walk(it)).flat_map(bytes).map(u64::from);
        let unit = placed.chain([stamped]).try_fold(1, multiple);
        Self {
            smallest: sizes.iter().copied().min().unwrap_or(1).max(1),
            largest: sizes.iter().copied().max().unwrap_or(1).max(1),
            stamped,
            unit: unit.unwrap_or(u64::MAX),
        }
    }

    /// Returns the block size of the fill for files of this size: the largest power of two from 64
    /// KiB to 1 MiB that divides the file. If no such power divides the file, returns the largest
    /// divisor of the file up to 1 MiB that consists of whole stamped blocks.
    fn fill_block(&self, file_bytes: u64) -> u32 {
        let halves = std::iter::successors(Some(FILL_BLOCK_BYTES), |bytes| Some(bytes / 2));
        let fits = |bytes: &u64| file_bytes.is_multiple_of(*bytes);
        let large = halves.take_while(|bytes| *bytes >= FILL_BLOCK_BYTES_MIN).find(fits);
        let any =
            || (1..=FILL_BLOCK_BYTES / self.stamped).rev().map(|n| n * self.stamped).find(fits);
        large.or_else(any).unwrap_or(self.stamped) as u32
    }
}

/// Least common multiple of two numbers; `None` on overflow.
fn multiple(one: u64, other: u64) -> Option<u64> {
    let (mut a, mut b) = (one, other);
    while b > 0 {
        (a, b) = (b, a % b);
    }
    (one / a.max(1)).checked_mul(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fill_block_is_the_largest_that_divides_the_file() {
        let block =
            |stamped, bytes| Sizes { smallest: 1, largest: 1, stamped, unit: 1 }.fill_block(bytes);
        assert_eq!(block(4096, 1 << 30), 1 << 20);
        // The file has 25,000 blocks of 4 KiB. The largest divisor of 25,000 that gives a fill
        // block of at most 1 MiB is 250.
        assert_eq!(block(4096, 102_400_000), 1_024_000);
        // The first file has 25,001 blocks (23 x 1087), so the fill block has 23 of them. The
        // second file has 1009 blocks, a prime number, so the fill block is a single block or the
        // whole file.
        assert_eq!(block(4096, 4096 * 25_001), 4096 * 23);
        assert_eq!(block(4096, 4096 * 1009), 4096);
        assert_eq!(block(512, 512 * 1009), 512 * 1009);
        assert_eq!(multiple(4096, 10_240), Some(20_480));
        assert_eq!(multiple(u64::MAX, 2), None);
    }
}
