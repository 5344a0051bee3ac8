//! Runs made of the files of other generators: the part that all of them have in common.
//!
//! Not here: reading the files (fio, icf), traps of any run (lint).
//!
//! Invariant: an import reports each changed word as a trap and as an assumption of the run, and
//! each skipped word with its line.

use serde::Serialize;

use crate::spec::{CellSpec, ContentSpec, DatasetSpec, Durability, FillSpec, RunSpec, ToldTarget};

use super::expand::scale;
use super::lint::{Trap, trap};
use super::{Options, too_small};

/// The run made from a file of another generator, with the changed and skipped words of the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Imported {
    /// The run.
    pub spec: RunSpec,
    /// Differences between the run and the file. `lint` finds the traps of any run.
    pub traps: Vec<Trap>,
    /// Words that change nothing here, in the order of the file.
    pub skipped: Vec<Skipped>,
}

/// A word of a file that changes nothing here.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Skipped {
    /// The file.
    pub file: String,
    /// Line in it, from 1.
    pub line: usize,
    /// The word itself.
    pub word: String,
    /// Reason.
    pub why: String,
}

/// Contents of a file.
pub(super) struct Said {
    pub(super) file: String,
    /// The program the file is for, and the kind of the file.
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
/// A fill with smaller blocks is slow.
const FILL_BLOCK_BYTES_MIN: u64 = 64 << 10;

/// Makes a run from the contents of a file.
///
/// # Errors
/// Words for the line of the size: the data holds no block.
pub(super) fn finish(said: Said, options: &Options) -> Result<Imported, String> {
    let Said { file, mut cells, content, mut assume, mut traps, skipped, .. } = said;
    let sizes = Sizes::of(&cells);
    let wanted = match options.size_bytes {
        Some(bytes) => resized(&said.dataset, bytes, sizes.unit),
        None => said.dataset,
    };
    let file_bytes = wanted.file_bytes / sizes.unit * sizes.unit;
    if file_bytes == 0 {
        let (have, need) = (wanted.file_bytes, sizes.unit);
        return Err(format!("{have} bytes hold no block of {need} (the sizes' common multiple)"));
    }
    if wanted.file_bytes - file_bytes >= sizes.smallest {
        traps.push(trap(
            format!("{file_bytes} bytes of data are used of {}", wanted.file_bytes),
            "operations of every size are to reach the same data",
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
        told: ToldTarget::default(),
    };
    Ok(Imported { spec, traps, skipped })
}

/// A dataset of the size that the user gave, in at most the same number of files.
fn resized(dataset: &DatasetSpec, bytes: u64, unit: u64) -> DatasetSpec {
    let files = u64::from(dataset.files).min((bytes / unit).max(1));
    DatasetSpec { files: files as u32, file_bytes: bytes / files }
}

/// Sizes of all operations.
struct Sizes {
    smallest: u64,
    largest: u64,
    /// Their common multiple.
    unit: u64,
}

impl Sizes {
    fn of(cells: &[CellSpec]) -> Self {
        let blocks = cells.iter().flat_map(|cell| &cell.streams).flat_map(|it| &it.blocks);
        let sizes: Vec<u64> = blocks.map(|block| u64::from(block.bytes)).collect();
        let unit = sizes.iter().try_fold(1, |unit, size| multiple(unit, *size));
        Self {
            smallest: sizes.iter().copied().min().unwrap_or(1).max(1),
            largest: sizes.iter().copied().max().unwrap_or(1).max(1),
            unit: unit.unwrap_or(u64::MAX),
        }
    }

    /// The largest block that fills files of so many bytes without a rest.
    fn fill_block(&self, file_bytes: u64) -> u32 {
        let halves = std::iter::successors(Some(FILL_BLOCK_BYTES), |bytes| Some(bytes / 2));
        let fits = |bytes: &u64| *bytes > 0 && file_bytes.is_multiple_of(*bytes);
        let block = halves.take(12).find(fits).unwrap_or(1);
        let block = if block < FILL_BLOCK_BYTES_MIN { block.max(self.largest) } else { block };
        block as u32
    }
}

/// The smallest number that both divide.
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
    fn fill_divides_the_file_and_is_large_where_it_can_be() {
        let sizes = |smallest, largest| Sizes { smallest, largest, unit: largest };
        assert_eq!(sizes(4096, 4096).fill_block(1 << 30), 1 << 20);
        // 25000 blocks of 4 KiB: 8 x 3125.
        assert_eq!(sizes(4096, 65_536).fill_block(102_400_000), 65_536);
        assert_eq!(sizes(4096, 4096).fill_block(4096 * 25_001), 4096);
        assert_eq!(sizes(4096, 12_288).fill_block(12_288 * 1001), 12_288);
        assert_eq!(multiple(4096, 10_240), Some(20_480));
        assert_eq!(multiple(u64::MAX, 2), None);
    }
}
