//! Cost of LZ4 on incompressible data and on data that LZ4 compresses 2:1: compares writes to a
//! volume with LZ4 with writes to a volume without compression.
//!
//! weir-pool's `pack` decides which blocks to compress.
//!
//! Invariant: a ratio compares the runs of the two volumes in one round. The runs follow each
//! other, and their order alternates from round to round.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;

use super::snapshots::rate;
use crate::document::{self, judged};
use crate::layouts::layout::{DISK, Layout, Pool, VOLUME_BYTES};

/// Size of the disk: space for the two volumes and for overwritten blocks. The disk is a sparse
/// file.
const DISK_BYTES: u64 = 8 << 30;
/// Kind of the data that fio writes.
struct Data {
    title: &'static str,
    /// Value of fio's option `buffer_compress_percentage`.
    percentage: &'static str,
    bar: f64,
}

/// Access pattern of the writes.
struct Way {
    title: &'static str,
    words: &'static [&'static str],
}

const DATA: [Data; 2] = [
    Data { title: "incompressible", percentage: "0", bar: 0.9 },
    Data { title: "2:1", percentage: "50", bar: 1.0 },
];
const WAYS: [Way; 2] = [
    Way { title: "1 MiB in sequence, QD16", words: &["--rw=write", "--bs=1m", "--iodepth=16"] },
    Way {
        title: "4 KiB at random, QD32",
        words: &["--rw=randwrite", "--bs=4k", "--iodepth=32", "--norandommap"],
    },
];

/// Ratios for one kind of data and one access pattern: in each round, the write rate with LZ4
/// divided by the write rate without LZ4.
struct Ratio {
    data: &'static Data,
    way: &'static Way,
    turns: Vec<f64>,
}

/// Results of the compression measurement.
pub(super) struct Figures(Vec<Ratio>);

/// Runs all compression measurements.
pub(super) fn measure(program: &Path, dir: &Path, rounds: usize, seconds: u64) -> Result<Figures> {
    let pool = Pool::start(Layout { disk_bytes: DISK_BYTES, ..DISK }, program, dir)?;
    for compression in ["off", "lz4"] {
        pool.make_volume(compression, VOLUME_BYTES)?;
        let property = format!("compression={compression}");
        pool.weir(&["set", &property, &format!("bench/{compression}")])?;
    }
    let mut figures = Vec::new();
    for data in &DATA {
        // Fill both volumes with data of this kind first, so that every round overwrites data of
        // the same kind.
        for volume in ["off", "lz4"] {
            write(&pool, volume, data, &WAYS[0], 0)?;
        }
        for way in &WAYS {
            let mut turns = Vec::new();
            for round in 0..rounds {
                let rate = |volume| write(&pool, volume, data, way, seconds);
                let (off, lz4) = if round % 2 == 0 {
                    (rate("off")?, rate("lz4")?)
                } else {
                    let lz4 = rate("lz4")?;
                    (rate("off")?, lz4)
                };
                eprintln!("bench: {}, {}: {off:.0} /s, lz4 {lz4:.0} /s", data.title, way.title);
                turns.push(lz4 / off);
            }
            figures.push(Ratio { data, way, turns });
        }
    }
    Ok(Figures(figures))
}

/// Writes for `seconds`, or writes the whole volume once if `seconds` is 0. Returns the operations
/// per second.
fn write(pool: &Pool, volume: &str, data: &Data, way: &Way, seconds: u64) -> Result<f64> {
    // Each chunk of fio's data is one block of the volume, so every block is compressible on its
    // own and never all zeros. `end_fsync` flushes the written data before the next run starts.
    let percentage = format!("--buffer_compress_percentage={}", data.percentage);
    let how = [percentage.as_str(), "--buffer_compress_chunk=4k", "--end_fsync=1"];
    let words = [way.words, &how[..]].concat();
    let mut words: Vec<String> = words.into_iter().map(str::to_owned).collect();
    if seconds > 0 {
        words.extend([format!("--runtime={seconds}"), "--time_based".to_owned()]);
    }
    Ok(rate(&pool.fio_on(volume, VOLUME_BYTES, &words)?))
}

impl Figures {
    /// Formats the table.
    pub(super) fn table(&self) -> String {
        let mut text =
            String::from("| writes to a volume with lz4, by one without | |\n| --- | --- |\n");
        for Ratio { data, way, turns } in &self.0 {
            let median = document::median(turns.iter().copied()).unwrap_or(f64::NAN);
            let cell = judged(median, median >= data.bar, &format!(">= {}", data.bar));
            writeln!(text, "| {} data, {} | {cell} |", data.title, way.title)
                .expect("a string takes every line");
        }
        text
    }
}
