//! Estimates for other settings of a volume, measured by compressing a sample of its data.
//!
//! The caller decides on the sample size and on recommendations; `estimate` covers dedupe.
//!
//! Invariants:
//! - one range is read at a time, so that concurrent client load is hardly affected;
//! - sizes are rounded, and poor compression is rejected, as in write-out.

use std::ops::Range;
use std::time::Duration;

use async_recursion::async_recursion as boxed;
use weir_base::{BLOCK_BYTES, RecordSize, ZstdLevel};
use weir_codec::compress::{ZstdPacker, ZstdUnpacker, is_zero, lz4, stored_bytes_max, unlz4};
use weir_format::layout::PACK_BYTES;
use weir_format::{Compression, DatasetRecord};
use weir_pool::{PoolError, Tree};

use crate::advice::estimate::NORMAL_95;
use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::volume::Volume;

/// Largest record size, which is also the number of bytes read for one sample.
const RANGE_BYTES: usize = RecordSize::MAX.bytes();
const RANGE_BLOCKS: u64 = RecordSize::MAX.blocks();
/// Bytes of each sampled range that each compression setting compresses: whole records, at least
/// one.
const SETTING_BYTES: usize = 4 * BLOCK_BYTES;
/// Time and number of samples after which a setting's estimate is good enough. The advisor then
/// stops testing that setting, which leaves more time for others.
const SETTING_TIME: Duration = Duration::from_secs(1);
const SETTING_SAMPLES: f64 = 8.0;
/// Maximum number of random blocks drawn for one sample: in a nearly empty volume most of them are
/// holes.
const DRAWS_MAX: usize = 4096;
/// Record sizes under test.
const RECORDS: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
/// Levels of zstd under test.
const LEVELS: [u8; 4] = [1, 3, 9, 19];

/// Mean of samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Estimate {
    /// The mean of the samples.
    pub mean: f64,
    /// In 95 of 100 samples, the true value is within this distance of the mean.
    pub margin: f64,
}

/// Times of one operation, in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Timing {
    /// Median of the times.
    pub median_us: f64,
    /// 5th percentile of the times.
    pub low_us: f64,
    /// 95th percentile of the times.
    pub high_us: f64,
}

/// Estimated effect of one compression setting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SettingSample {
    /// Compression setting of the estimate.
    pub compression: Compression,
    /// Stored bytes divided by written bytes.
    pub stored: Estimate,
    /// Compression time for each 4 KiB of a record.
    pub write: Timing,
    /// Decompression time for each 4 KiB of a record that is stored compressed.
    pub read: Timing,
}

/// Estimated effect of another record size.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RecordSample {
    /// Compression setting of the estimate.
    pub compression: Compression,
    /// Record size in bytes.
    pub record_bytes: u64,
    /// Stored bytes divided by written bytes.
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
        // Avoid a division by zero for a single sample, which has no variance.
        let freedom = (self.count - 1.0).max(0.5);
        let variance = ((self.squares - self.sum * mean) / freedom).max(0.0);
        Estimate { mean, margin: NORMAL_95 * (variance / self.count).sqrt() }
    }
}

/// Times of one operation, in nanoseconds.
#[derive(Clone, Debug, Default)]
struct Times(Vec<u32>);

impl Times {
    /// Adds the time for `bytes` bytes, as the time for one block.
    fn add(&mut self, took: Duration, bytes: usize) {
        let of_block = took.as_nanos() / (bytes / BLOCK_BYTES) as u128;
        self.0.push(u32::try_from(of_block).unwrap_or(u32::MAX));
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

/// One compression setting under test.
struct Setting {
    compression: Compression,
    stored: Sums,
    write: Times,
    read: Times,
    spent: Duration,
}

/// One record size under test.
struct Record {
    compression: Compression,
    bytes: usize,
    stored: Sums,
}

/// Draws samples of one volume and collects the results.
///
/// A sample is a random block among all blocks with data, with the 1 MiB around it. Every
/// compression setting compresses a few records of that range, in the volume's record size, for its
/// ratio and its time. Every record size under test compresses the aligned range of that size
/// around the block as one record. One range gives one value, the mean of its records: neighbouring
/// records resemble each other, and separate values would feign precision. Zeros that only fill a
/// record count as no data.
pub struct Advisor {
    random: u64,
    settings: Vec<Setting>,
    records: Vec<Record>,
    zstd: ZstdPacker,
    unzstd: ZstdUnpacker,
    range: Vec<u8>,
    scratch: Vec<u8>,
    /// Buffer for a decompressed record.
    back: Vec<u8>,
    samples: u64,
}

fn level(level: u8) -> ZstdLevel {
    ZstdLevel::new(level).expect("a valid zstd level")
}

impl Advisor {
    /// Creates an advisor; `seed` determines its draws.
    pub fn new(seed: u64) -> Self {
        let zstd = LEVELS.map(|number| Compression::Zstd(level(number)));
        let settings = [Compression::Off, Compression::Lz4].into_iter().chain(zstd);
        let settings = settings.map(|compression| {
            let (stored, write, read) = (Sums::default(), Times::default(), Times::default());
            Setting { compression, stored, write, read, spent: Duration::ZERO }
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
            back: vec![0; RANGE_BYTES],
            samples: 0,
        }
    }

    /// Number of samples drawn, each of up to 1 MiB.
    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// Results for the compression settings.
    pub fn settings(&self) -> Vec<SettingSample> {
        let told = |setting: &Setting| SettingSample {
            compression: setting.compression,
            stored: setting.stored.estimate(),
            write: setting.write.timing(),
            read: setting.read.timing(),
        };
        self.settings.iter().map(told).collect()
    }

    /// Results for the record sizes.
    pub fn records(&self) -> Vec<RecordSample> {
        let told = |record: &Record| RecordSample {
            compression: record.compression,
            record_bytes: record.bytes as u64,
            stored: record.stored.estimate(),
        };
        self.records.iter().map(told).collect()
    }

    /// Returns a random number below `end` (splitmix64; the bias of the remainder is far below the
    /// sample's error).
    fn draw(&mut self, end: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    /// Selects random blocks until one has data, and measures the sample around that block. Returns
    /// false if all `DRAWS_MAX` selected blocks are holes.
    ///
    /// # Errors
    /// `NotFound` if the volume does not exist; the errors of a read.
    #[boxed(?Send)]
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
                // The block was trimmed since the lookup: draw another one.
                continue;
            }
            self.measure(volume.record_size().bytes(), at, &|| engine.pool().clock().monotonic());
            return Ok(true);
        }
        Ok(false)
    }

    /// Measures the current range. The volume has records of `own` bytes, and the block at `drawn`
    /// holds data.
    fn measure(&mut self, own: usize, drawn: usize, now: &dyn Fn() -> Duration) {
        self.samples += 1;
        let with_data = |at: &usize| !is_zero(&self.range[*at..*at + own]);
        let mut some: Vec<usize> = (0..RANGE_BYTES).step_by(own).filter(with_data).collect();
        let count = some.len().min((SETTING_BYTES / own).max(1));
        for place in 0..count {
            let with = place + self.draw((some.len() - place) as u64) as usize;
            some.swap(place, with);
        }
        some.truncate(count);
        let data: usize = some.iter().map(|at| data_bytes(&self.range[*at..*at + own])).sum();
        let mut settings = std::mem::take(&mut self.settings);
        let is_open =
            |one: &Setting| one.spent < SETTING_TIME || one.stored.count < SETTING_SAMPLES;
        for setting in settings.iter_mut().filter(|one| is_open(one)) {
            let places = some.iter().map(|at| *at..*at + own);
            let stored: usize = places.map(|place| self.stored_as(setting, place, now)).sum();
            setting.stored.add(stored as f64 / data as f64);
        }
        self.settings = settings;
        for record in &mut self.records {
            let first = drawn / record.bytes * record.bytes;
            let raw = &self.range[first..first + record.bytes];
            let packed = match record.compression {
                Compression::Zstd(level) => self.zstd.pack(level, raw, &mut self.scratch),
                _ => lz4(raw, &mut self.scratch),
            };
            let stored = packed.unwrap_or(record.bytes).next_multiple_of(PACK_BYTES);
            record.stored.add(stored as f64 / data_bytes(raw) as f64);
        }
    }

    /// Compresses and decompresses a record of the range. Returns the record's size on disk.
    fn stored_as(
        &mut self,
        setting: &mut Setting,
        place: Range<usize>,
        now: &dyn Fn() -> Duration,
    ) -> usize {
        let raw = &self.range[place];
        let begun = now();
        let packed = match setting.compression {
            Compression::Off => return raw.len(),
            Compression::Lz4 | Compression::Auto => lz4(raw, &mut self.scratch),
            Compression::Zstd(level) => self.zstd.pack(level, raw, &mut self.scratch),
        };
        let took = now().saturating_sub(begun);
        setting.write.add(took, raw.len());
        setting.spent += took;
        let Some(len) = packed else { return raw.len() };
        let back = &mut self.back[..raw.len()];
        let begun = now();
        let done = match setting.compression {
            Compression::Zstd(_) => self.unzstd.unpack(&self.scratch[..len], back),
            _ => unlz4(&self.scratch[..len], back),
        };
        setting.read.add(now().saturating_sub(begun), raw.len());
        assert!(done.is_ok() && back == raw, "decompressed data equals the input");
        len.next_multiple_of(PACK_BYTES)
    }
}

/// Bytes in blocks that are not all zeros.
fn data_bytes(raw: &[u8]) -> usize {
    raw.chunks(BLOCK_BYTES).filter(|block| !is_zero(block)).count() * BLOCK_BYTES
}

impl Volume {
    /// True if a block holds data on disk.
    async fn is_stored(&self, block: u64) -> Result<bool, DatasetError> {
        const TRIES_MAX: usize = 4;
        let mut tries = 0;
        loop {
            tries += 1;
            let (root, record) = {
                let DatasetRecord { root, record_size, .. } = self.state.lock().record;
                (root, record_size.record_of(block))
            };
            match Tree::new(&self.core.pool, root).lookup(record).await {
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
    fn estimate_has_a_margin() {
        let mut sums = Sums::default();
        assert_eq!(sums.estimate(), Estimate { mean: 1.0, margin: 1.0 }, "nothing is known");
        for value in [0.4, 0.6].repeat(50) {
            sums.add(value);
        }
        let Estimate { mean, margin } = sums.estimate();
        assert!((mean - 0.5).abs() < 1e-9 && (margin - 0.0197).abs() < 1e-3, "{mean} {margin}");
    }

    #[test]
    fn settings_use_the_own_record_size_and_records_use_all_sizes() {
        // A range of one repeated word, with zeros in every other 64 KiB.
        let mut advisor = Advisor::new(7);
        for (at, block) in advisor.range.chunks_mut(BLOCK_BYTES).enumerate() {
            block.fill(if at / 16 % 2 == 0 { 7 } else { 0 });
        }
        advisor.measure(128 << 10, 0, &|| Duration::ZERO);
        let settings = advisor.settings();
        let stored =
            |of| settings.iter().find(|one| one.compression == of).map(|one| one.stored.mean);
        assert_eq!(stored(Compression::Off), Some(2.0), "raw, a record is stored with its zeros");
        assert!(stored(Compression::Lz4).is_some_and(|share| share < 0.02), "{settings:?}");
        let records = advisor.records();
        assert_eq!(records.len(), 2 * RECORDS.len());
        let zstd = &records[RECORDS.len()..];
        let shares: Vec<f64> = zstd.iter().map(|one| one.stored.mean).collect();
        assert!(shares.is_sorted_by(|small, large| small > large), "{shares:?}");
    }

    #[test]
    fn slow_setting_is_measured_less_often() {
        let mut advisor = Advisor::new(7);
        advisor.range.fill(7);
        let clock = std::cell::Cell::new(Duration::ZERO);
        let now = || {
            clock.set(clock.get() + Duration::from_millis(300));
            clock.get()
        };
        (0..20).for_each(|_| advisor.measure(RANGE_BYTES, 0, &now));
        let counts: Vec<f64> = advisor.settings.iter().map(|one| one.stored.count).collect();
        assert_eq!(counts, [20.0, 8.0, 8.0, 8.0, 8.0, 8.0], "raw takes no time");
    }

    #[test]
    fn times_are_ranked() {
        let mut times = Times::default();
        assert_eq!(times.timing(), Timing::default());
        (1..=101).rev().for_each(|us| times.add(Duration::from_micros(2 * us), 8192));
        assert_eq!(times.timing(), Timing { median_us: 51.0, low_us: 6.0, high_us: 96.0 });
    }
}
