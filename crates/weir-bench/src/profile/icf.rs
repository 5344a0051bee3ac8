//! Configuration files of Iometer (`.icf`): import as a run.
//!
//! Not here: what cycles through workers, targets or queue depths, which is refused.
//!
//! A file is a list of keys that begin with `'`, each with lines of values below it; a key with a
//! blank behind the `'` is a comment.
//!
//! Invariants:
//! - an access specification that a worker is assigned is one row; its lines become streams, in
//!   shares of random and sequential operations;
//! - what would make it another load is refused with its line.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::spec::{
    Access, BlockShare, CacheState, CellSpec, ContentSpec, DatasetSpec, Durability, FillSpec,
    LoadSpec, RunSpec, StreamSpec,
};

use super::Options;
use super::error::{ProfileError, refuse};
use super::expand::scale;
use parse::{Config, Line, Spec};

const FILL: FillSpec = FillSpec { block_bytes: 1 << 20, in_flight: 32 };

/// Makes a configuration of Iometer into a run; `file` is its name in errors. `size_bytes`: of the
/// dataset, where the file means the whole disk.
pub fn import_icf(
    file: &str,
    text: &str,
    size_bytes: Option<u64>,
    options: &Options,
) -> Result<RunSpec, ProfileError> {
    let config = parse::parse(file, text)?;
    let mut assume = vec![
        "everything is written once before it is measured".to_owned(),
        "workers share the dataset; outstanding operations are of each worker".to_owned(),
        "content does not compress; Iometer repeats a pattern unless told otherwise".to_owned(),
    ];
    let Some(total) = config.size_bytes.or(size_bytes) else {
        let what = "the disk maximum size is 0, which is all of a disk";
        return Err(refuse(file, config.size_line, what, "say how much data is to be used"));
    };
    let mut cells = Vec::new();
    for (name, line) in &config.assigned {
        let Some(spec) = config.specs.get(name) else {
            let what = format!("there is no access specification {name:?}");
            return Err(refuse(file, *line, what, "assign one of those the file has"));
        };
        let mut cell = cell(&config, name, spec);
        scale::cell(&mut cell, options.scale, false);
        cells.push(cell);
    }
    let blocks = cells.iter().flat_map(|cell| &cell.streams).flat_map(|stream| &stream.blocks);
    let largest = blocks.map(|block| u64::from(block.bytes)).max().unwrap_or(1);
    // Sizes of Iometer need be no powers of two: the fill takes the largest where they are not.
    let whole = u64::from(FILL.block_bytes).is_multiple_of(largest);
    let block_bytes = if whole { FILL.block_bytes } else { largest as u32 };
    let unit = u64::from(block_bytes);
    let published = DatasetSpec { files: 1, file_bytes: total / unit * unit };
    if published.file_bytes == 0 {
        let what = format!("{total} bytes hold no block of {unit} (fill included)");
        return Err(refuse(file, config.size_line, what, "use more data"));
    }
    let dataset = scale::dataset(published, options.scale, unit, &mut assume);
    let title = scale::titled(format!("Iometer {file}"), options.scale);
    scale::tell(options.scale, &mut assume);
    let (reference, require, limits, sizing, cost) = (None, None, None, None, None);
    let seed = options.seed.unwrap_or(42);
    Ok(RunSpec {
        name: file.to_owned(),
        title,
        reference,
        assume,
        scale: options.scale,
        dataset,
        content: ContentSpec { compress: 1.0, dedupe_pct: 0.0, unit_bytes: 4096, seed },
        durability: Durability::None,
        fill: FillSpec { block_bytes, ..FILL },
        precondition: None,
        cells,
        bonnie: None,
        require,
        limits,
        sizing,
        cost,
        told: crate::spec::ToldTarget::default(),
    })
}

fn cell(config: &Config, name: &str, spec: &Spec) -> CellSpec {
    CellSpec {
        name: name.to_owned(),
        table: "iometer".to_owned(),
        variant: None,
        streams: streams(&spec.lines),
        load: LoadSpec::Closed { workers: config.workers, depth: config.depth },
        warmup_ms: config.ramp_ms,
        duration_ms: config.run_ms,
        runs: 1,
        clients: config.managers,
        cache: CacheState::AsIs,
        verify_pct: 1.0,
        verify_full: false,
        search: None,
    }
}

/// Lines of the same mix are one stream of several sizes; one that is partly random is two streams.
fn streams(lines: &[Line]) -> Vec<StreamSpec> {
    let mut mixes: BTreeMap<(u32, u32), Vec<BlockShare>> = BTreeMap::new();
    for line in lines {
        let block = BlockShare { bytes: line.bytes, weight: line.share_pct };
        mixes.entry((line.read_pct, line.random_pct)).or_default().push(block);
    }
    let mut streams = Vec::new();
    for ((read_pct, random_pct), blocks) in mixes {
        let weight: u32 = blocks.iter().map(|block| block.weight).sum();
        let parts = [(Access::Random, random_pct), (Access::Sequential, 100 - random_pct)];
        for (access, pct) in parts.into_iter().filter(|(_, pct)| *pct > 0) {
            let word = if access == Access::Random { "random" } else { "seq" };
            streams.push(StreamSpec {
                name: format!("{word} read {read_pct}%"),
                access,
                blocks: blocks.clone(),
                read_pct: f64::from(read_pct),
                op: None,
                share: weight * pct,
            });
        }
    }
    if let [one] = streams.as_mut_slice() {
        one.name.clear();
        one.share = 1;
    }
    streams
}
