//! What other settings would make of a volume: measured on a sample of its blocks, compressed here
//! and now.
//!
//! Not here: when the sample is large enough, what to recommend, and who asks; what dedupe would
//! find (estimate).
//!
//! A sample is a block drawn among all that hold data, with the 128 KiB around it. Every setting
//! compresses a few blocks of these for its ratio and its time; every record size the aligned range
//! of that size around the block, as one. A value of the sample is the mean of one range, so that
//! neighbours, which resemble each other, do not feign precision.
//!
//! Invariants:
//! - one range is read at a time: the load beside it hardly notices;
//! - what a setting would store is rounded and refused as write-out does it.

use std::time::Duration;

use weir_base::BLOCK_BYTES;
use weir_codec::compress::{
    SAVING_BYTES_MIN, ZstdLevel, ZstdPacker, ZstdUnpacker, is_zero, lz4, lz4_bytes,
    stored_bytes_max, unlz4,
};
use weir_format::Compression;
use weir_format::layout::PACK_BYTES;
use weir_pool::{PoolError, Tree};

use crate::engine::Engine;
use crate::error::DatasetError;
use crate::estimate::NORMAL_95;
use crate::volume::Volume;

/// The largest record that is looked at, and what is read for one sample.
const RANGE_BYTES: usize = 128 << 10;
const RANGE_BLOCKS: u64 = (RANGE_BYTES / BLOCK_BYTES) as u64;
/// Blocks of a range that every setting compresses.
const BLOCKS_OF_RANGE: usize = 4;
/// Draws for one sample: of a volume that is nearly empty most meet holes.
const DRAWS_MAX: usize = 4096;
/// Sizes of records beside a block's.
const RECORDS: [usize; 4] = [8 << 10, 16 << 10, 64 << 10, 128 << 10];
/// Levels of zstd that are looked at.
const LEVELS: [u8; 4] = [1, 3, 9, 19];

/// A mean of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The mean.
    pub mean: f64,
    /// The truth lies within this of it in 95 of 100 samples.
    pub margin: f64,
}

/// Times of one operation, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// Half took less.
    pub median_us: f64,
    /// One in twenty took less.
    pub low_us: f64,
    /// One in twenty took more.
    pub high_us: f64,
}

/// What one setting would make of the volume.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SettingSample {
    /// The setting.
    pub compression: Compression,
    /// What is stored, by what is written.
    pub stored: Estimate,
    /// Compressing 4 KiB.
    pub write: Timing,
    /// Decompressing 4 KiB that are stored compressed.
    pub read: Timing,
}

/// What records of another size would make of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordSample {
    /// The setting.
    pub compression: Compression,
    /// Bytes of a record.
    pub record_bytes: u64,
    /// What is stored, by what is written.
    pub stored: Estimate,
}

/// Sums of samples.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Sums {
    fn add(&mut self, value: f64) {
        self.count += 1.0;
        self.sum += value;
        self.squares += value * value;
    }

    fn estimate(self) -> Estimate {
        if self.count == 0.0 {
            return Estimate { mean: 1.0, margin: 1.0 };
        }
        let mean = self.sum / self.count;
        // Of a single sample nothing is known.
        let freedom = (self.count - 1.0).max(0.5);
        let variance = ((self.squares - self.sum * mean) / freedom).max(0.0);
        Estimate { mean, margin: NORMAL_95 * (variance / self.count).sqrt() }
    }
}

/// Times of one operation, in nanoseconds.
#[derive(Clone, Debug, Default)]
struct Times(Vec<u32>);

impl Times {
    fn add(&mut self, took: Duration) {
        self.0.push(u32::try_from(took.as_nanos()).unwrap_or(u32::MAX));
    }

    fn timing(&self) -> Timing {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let at = |percent: usize| {
            let index = sorted.len().saturating_sub(1) * percent / 100;
            sorted.get(index).map_or(0.0, |ns| f64::from(*ns) / 1000.0)
        };
        Timing { median_us: at(50), low_us: at(5), high_us: at(95) }
    }
}

/// One setting under test.
struct Setting {
    compression: Compression,
    stored: Sums,
    write: Times,
    read: Times,
}

/// One size of records under test.
struct Record {
    compression: Compression,
    bytes: usize,
    stored: Sums,
}

/// Draws samples of one volume and keeps what they say.
pub struct Advisor {
    random: u64,
    settings: Vec<Setting>,
    records: Vec<Record>,
    zstd: ZstdPacker,
    unzstd: ZstdUnpacker,
    range: Vec<u8>,
    scratch: Vec<u8>,
    block: [u8; BLOCK_BYTES],
    samples: u64,
}

fn level(level: u8) -> ZstdLevel {
    ZstdLevel::new(level).expect("one of those that there are")
}

impl Advisor {
    /// One that draws by this seed.
    pub fn new(seed: u64) -> Self {
        let zstd = LEVELS.map(|number| Compression::Zstd(level(number)));
        let settings = [Compression::Off, Compression::Lz4].into_iter().chain(zstd);
        let settings = settings.map(|compression| {
            let (stored, write, read) = (Sums::default(), Times::default(), Times::default());
            Setting { compression, stored, write, read }
        });
        let of_records = [Compression::Lz4, Compression::Zstd(ZstdLevel::DEFAULT)];
        let records = of_records.into_iter().flat_map(|compression| {
            let stored = Sums::default();
            RECORDS.map(|bytes| Record { compression, bytes, stored })
        });
        Self {
            random: seed,
            settings: settings.collect(),
            records: records.collect(),
            zstd: ZstdPacker::new(ZstdLevel::DEFAULT),
            unzstd: ZstdUnpacker::default(),
            range: vec![0; RANGE_BYTES],
            scratch: vec![0; stored_bytes_max(RANGE_BYTES)],
            block: [0; BLOCK_BYTES],
            samples: 0,
        }
    }

    /// Samples drawn, each of up to 128 KiB.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// What the settings would do.
    pub fn settings(&self) -> Vec<SettingSample> {
        let told = |setting: &Setting| SettingSample {
            compression: setting.compression,
            stored: setting.stored.estimate(),
            write: setting.write.timing(),
            read: setting.read.timing(),
        };
        self.settings.iter().map(told).collect()
    }

    /// What other sizes of records would do.
    pub fn records(&self) -> Vec<RecordSample> {
        let told = |record: &Record| RecordSample {
            compression: record.compression,
            record_bytes: record.bytes as u64,
            stored: record.stored.estimate(),
        };
        self.records.iter().map(told).collect()
    }

    /// A number below `end` (splitmix64; the bias of the remainder is far below the sample's).
    fn draw(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    /// Draws one sample and measures it; false: no block with data was met.
    ///
    /// # Errors
    /// `NotFound`; what cannot be read.
    pub async fn sample(&mut self, engine: &Engine, volume: &str) -> Result<bool, DatasetError> {
        let volume = engine.volume(volume)?;
        let blocks = volume.size_bytes() / BLOCK_BYTES as u64;
        for _ in 0..DRAWS_MAX {
            let drawn = self.draw(blocks);
            if !volume.is_stored(drawn).await? {
                continue;
            }
            let first = drawn / RANGE_BLOCKS * RANGE_BLOCKS;
            let len = RANGE_BLOCKS.min(blocks - first) as usize * BLOCK_BYTES;
            self.range[len..].fill(0);
            volume.read(first * BLOCK_BYTES as u64, &mut self.range[..len]).await?;
            let at = (drawn - first) as usize * BLOCK_BYTES;
            if is_zero(&self.range[at..at + BLOCK_BYTES]) {
                // Trimmed since.
                continue;
            }
            self.measure(at, &|| engine.pool().clock().monotonic());
            return Ok(true);
        }
        Ok(false)
    }

    /// Measures the range, whose block at `drawn` holds data.
    fn measure(&mut self, drawn: usize, now: &dyn Fn() -> Duration) {
        self.samples += 1;
        let with_data = |at: &usize| !is_zero(&self.range[*at..*at + BLOCK_BYTES]);
        let mut data: Vec<usize> =
            (0..RANGE_BYTES).step_by(BLOCK_BYTES).filter(with_data).collect();
        let count = data.len().min(BLOCKS_OF_RANGE);
        for place in 0..count {
            let with = place + self.draw((data.len() - place) as u64) as usize;
            data.swap(place, with);
        }
        data.truncate(count);
        let mut settings = std::mem::take(&mut self.settings);
        for setting in &mut settings {
            let stored: usize = data.iter().map(|at| self.block_as(setting, *at, now)).sum();
            setting.stored.add(stored as f64 / (count * BLOCK_BYTES) as f64);
        }
        self.settings = settings;
        let mut records = std::mem::take(&mut self.records);
        for record in &mut records {
            let stored = self.record_as(record, drawn);
            record.stored.add(stored);
        }
        self.records = records;
    }

    /// Compresses one block and back; what it would take on disk.
    fn block_as(&mut self, setting: &mut Setting, at: usize, now: &dyn Fn() -> Duration) -> usize {
        let raw = &self.range[at..at + BLOCK_BYTES];
        let begun = now();
        let packed = match setting.compression {
            Compression::Off => return BLOCK_BYTES,
            Compression::Lz4 | Compression::Auto => lz4(raw, &mut self.scratch),
            Compression::Zstd(level) => self.zstd.pack(level, raw, &mut self.scratch),
        };
        setting.write.add(now().saturating_sub(begun));
        let Some(len) = packed else { return BLOCK_BYTES };
        let begun = now();
        let back = match setting.compression {
            Compression::Zstd(_) => self.unzstd.unpack(&self.scratch[..len], &mut self.block),
            _ => unlz4(&self.scratch[..len], &mut self.block),
        };
        setting.read.add(now().saturating_sub(begun));
        assert!(back.is_ok() && self.block == *raw, "what was packed just now is there again");
        len.next_multiple_of(PACK_BYTES)
    }

    /// What the record around a block would take, by the data in it.
    fn record_as(&mut self, record: &Record, drawn: usize) -> f64 {
        let first = drawn / record.bytes * record.bytes;
        let raw = &self.range[first..first + record.bytes];
        let blocks = raw.chunks(BLOCK_BYTES).filter(|block| !is_zero(block)).count();
        let packed = match record.compression {
            Compression::Zstd(level) => self.zstd.bytes(level, raw, &mut self.scratch),
            _ => lz4_bytes(raw, &mut self.scratch),
        };
        // Where it saves less than an eighth it stays raw, as a block does.
        let most = record.bytes - SAVING_BYTES_MIN * (record.bytes / BLOCK_BYTES);
        let stored = packed.filter(|len| *len <= most).unwrap_or(record.bytes);
        stored.next_multiple_of(PACK_BYTES) as f64 / (blocks * BLOCK_BYTES) as f64
    }
}

impl Volume {
    /// Whether a block holds data on disk.
    async fn is_stored(&self, block: u64) -> Result<bool, DatasetError> {
        const TRIES_MAX: usize = 4;
        let mut tries = 0;
        loop {
            tries += 1;
            let root = self.state.lock().record.root;
            match Tree::new(&self.core.pool, root).lookup(block).await {
                Err(PoolError::NoSegment { .. }) if tries < TRIES_MAX => {}
                found => return Ok(!found?.is_hole()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mean_tells_how_sure_it_is() {
        let mut sums = Sums::default();
        assert_eq!(sums.estimate(), Estimate { mean: 1.0, margin: 1.0 }, "nothing is known");
        for value in [0.4, 0.6].repeat(50) {
            sums.add(value);
        }
        let Estimate { mean, margin } = sums.estimate();
        assert!((mean - 0.5).abs() < 1e-9 && (margin - 0.0197).abs() < 1e-3, "{mean} {margin}");
    }

    #[test]
    fn times_are_ranked() {
        let mut times = Times::default();
        assert_eq!(times.timing(), Timing::default());
        (1..=101).rev().for_each(|us| times.add(Duration::from_micros(us)));
        assert_eq!(times.timing(), Timing { median_us: 51.0, low_us: 6.0, high_us: 96.0 });
    }
}
