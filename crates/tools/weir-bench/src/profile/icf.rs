//! Configuration files of Iometer (`.icf`): imports a configuration as a run. A configuration that
//! cycles through workers, targets or queue depths is refused.
//!
//! A file is a list of keys that begin with `'`. The lines below a key contain its values. A key
//! with a blank after the `'` is a comment.
//!
//! Invariants:
//! - each access specification of a worker becomes a cell, and each of its lines becomes a stream;
//! - as in Iometer, a sequential operation starts at the end of the preceding one, and each worker
//!   uses the whole dataset;
//! - a key that would change the load in an unsupported way is refused with its line; every other
//!   key is read or reported.

mod parse;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use crate::spec::{
    Access, BlockShare, CacheState, CellSpec, ContentSpec, DatasetSpec, Durability, LoadSpec,
    StreamSpec,
};

use super::Options;
use super::error::{ProfileError, refuse};
use super::imported::{self, Imported, Said};
use super::lint::{Trap, trap};
use parse::{Config, Line, Spec};

/// Imports a configuration of Iometer as a run. `file` is the name of the configuration in errors.
/// If the configuration uses the whole disk, the options must contain the size of the disk.
pub fn import_icf(file: &str, text: &str, options: &Options) -> Result<Imported, ProfileError> {
    let mut config = parse::parse(file, text)?;
    let (mut traps, skipped) =
        (std::mem::take(&mut config.traps), std::mem::take(&mut config.skipped));
    let Some(total) = options.size_bytes.or(config.size_bytes).or(options.target_bytes) else {
        let what = "the maximum disk size is 0, which means the whole disk";
        return Err(refuse(file, config.size_line, what, "give --size, or the number of sectors"));
    };
    let mut cells = Vec::new();
    for (name, line) in &config.assigned {
        let Some(spec) = config.specs.get(name) else {
            let what = format!("there is no access specification {name:?}");
            return Err(refuse(file, *line, what, "assign an access specification of this file"));
        };
        find(file, name, spec, &mut traps);
        cells.push(cell(&config, name, spec));
    }
    let said = Said {
        file: file.to_owned(),
        title: format!("Iometer {file}"),
        cells,
        dataset: DatasetSpec { files: 1, file_bytes: total },
        content: ContentSpec { compress: 1.0, dedupe_pct: 0.0, unit_bytes: 4096, seed: 42 },
        durability: Durability::None,
        assume: vec![
            "all data is written once before the measurement".to_owned(),
            "workers share the dataset; the number of outstanding operations is per worker"
                .to_owned(),
            "content is incompressible; Iometer repeats a pattern by default".to_owned(),
        ],
        traps,
        skipped,
    };
    imported::finish(said, options)
        .map_err(|what| refuse(file, config.size_line, what, "use more data"))
}

fn cell(config: &Config, name: &str, spec: &Spec) -> CellSpec {
    CellSpec {
        name: name.to_owned(),
        table: "iometer".to_owned(),
        variant: None,
        streams: streams(&spec.lines, config.workers),
        load: LoadSpec::Closed { workers: config.workers, depth: config.depth },
        warmup_ms: config.ramp_ms,
        duration_ms: config.run_ms,
        worker_bytes: None,
        runs: 1,
        clients: config.managers,
        cache: CacheState::AsIs,
        verify_pct: 1.0,
        verify_full: false,
        search: None,
    }
}

/// Combines lines with the same mix, access order and alignment into one stream with several block
/// sizes.
fn streams(lines: &[Line], workers: u32) -> Vec<StreamSpec> {
    let mut mixes: BTreeMap<(u32, u32, u32), Vec<BlockShare>> = BTreeMap::new();
    for line in lines.iter().filter(|line| line.share_pct > 0) {
        let block = BlockShare { bytes: line.bytes, weight: line.share_pct };
        // If operations start at multiples of their size, the stream needs no separate alignment.
        let align = if line.align == line.bytes { 0 } else { line.align };
        mixes.entry((line.read_pct, line.random_pct, align)).or_default().push(block);
    }
    let mut streams = Vec::new();
    for ((read_pct, random_pct, align), blocks) in mixes {
        let smallest = blocks.iter().map(|block| block.bytes).min().unwrap_or(4096);
        let align_bytes = if align > 0 { align } else { smallest };
        let access = match (random_pct, align) {
            (100, 0) => Access::Random,
            (0, 0) if workers == 1 && blocks.len() == 1 => Access::Sequential,
            _ => {
                let random_pct = f64::from(random_pct);
                Access::Walk { random_pct, align_bytes, between: false }
            }
        };
        let share = blocks.iter().map(|block| block.weight).sum();
        let name = format!("{random_pct}% random, read {read_pct}%");
        let read_pct = f64::from(read_pct);
        streams.push(StreamSpec {
            name,
            access,
            blocks,
            read_pct,
            op: None,
            metadata: None,
            share,
        });
    }
    let mut names: Vec<String> = streams.iter().map(|stream| stream.name.clone()).collect();
    names.dedup();
    if names.len() < streams.len() {
        // Number the streams, because streams with equal mixes may differ only in alignment.
        for (number, stream) in (1..).zip(&mut streams) {
            stream.name = format!("{} ({number})", stream.name);
        }
    }
    if let [one] = streams.as_mut_slice() {
        one.name.clear();
        one.share = 1;
    }
    streams
}

/// Reports a warning ([`Trap`]) for each difference between the imported cell and Iometer.
fn find(file: &str, name: &str, spec: &Spec, traps: &mut Vec<Trap>) {
    let lines = spec.lines.iter().filter(|line| line.share_pct > 0);
    if let Some(line) = lines.clone().find(|line| line.align == 0) {
        traps.push(trap(
            format!("{file}:{}: {name:?}: operations are aligned to their size", line.number),
            "with an alignment of 0 Iometer starts operations at any sector, which is slower on \
             storage with larger blocks",
            "to compare, align them to the size of the request",
        ));
    }
    let mixes: std::collections::BTreeSet<(u32, u32, u32)> =
        lines.clone().map(|line| (line.read_pct, line.random_pct, line.align)).collect();
    let sequential = lines.clone().find(|line| line.random_pct < 100);
    if let Some(line) = sequential.filter(|_| mixes.len() > 1) {
        traps.push(trap(
            format!("{file}:{}: {name:?}: each line continues from its own position", line.number),
            "Iometer continues from the last operation of any line",
            "to compare, give sequential lines a separate specification",
        ));
    }
}
