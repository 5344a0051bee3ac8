//! Flush probe: measures the write and flush times of a disk before the disk joins a pool.
//!
//! `flush_verdict` evaluates the measured times.
//!
//! Invariants:
//! - the probe overwrites only [`FLUSH_PROBE_BYTES`] of each disk, at the given offset;
//! - the probe awaits every operation to its end, because an abandoned write could later overwrite
//!   data of the pool. An unresponsive disk blocks the probe, so the caller must monitor its disks;
//! - the probe starts no sample after its time limit, but takes at least one sample;
//! - a write or flush that fails ends the measurement and is never retried.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use weir_base::Clock;
use weir_block::IoBuf;

use crate::device::{Device, DeviceError, Durability};

/// Number of bytes of each disk that the probe overwrites.
pub const FLUSH_PROBE_BYTES: usize = 4096;

/// Maximum number of samples of one disk: enough for a median that one outlier does not move.
const SAMPLES_MAX: usize = 32;
/// Time after which the probe starts no sample. Including the last sample, the probe takes less
/// than 0.5 s if a flush takes 50 ms. A spinning disk gives about 15 samples.
const TIME_MAX: Duration = Duration::from_millis(300);
/// If the durable time of a disk is below this limit, the probe measures the disk again, alone: one
/// thread serves several disks, and the time that it spends on the others would hide a flush that
/// is too fast.
const ALONE_BELOW: Duration = Duration::from_micros(500);

/// Median times of one disk, over all its samples.
///
/// All samples overwrite the same location, and each sample waits until the data is durable. A
/// location on a platter passes the head once in a revolution (4 ms at 15,000 rpm, longer at lower
/// speeds), so no correct rotating disk completes samples much faster. Flash must program a page,
/// which takes 100 us or more. A faster disk keeps the data in a cache, which either survives a
/// power cut (with capacitors or a battery) or loses the data. Times cannot distinguish these two
/// cases; only the data sheet or a test with the power plug can.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushFigures {
    /// Number of samples; at least one.
    pub samples: usize,
    /// Time of a write of [`FLUSH_PROBE_BYTES`] into the disk's cache.
    pub write: Duration,
    /// Time of the flush after the cached write.
    pub flush: Duration,
    /// Time of a write that is durable when it returns: a FUA write if the disk has FUA, or else a
    /// write and a flush.
    pub sync: Duration,
}

impl FlushFigures {
    /// Time of the faster of the two ways to make data durable.
    pub fn durable(&self) -> Duration {
        self.sync.min(self.write + self.flush)
    }
}

/// Measures several disks concurrently. Overwrites [`FLUSH_PROBE_BYTES`] at `offset` of each disk;
/// both are whole sectors. `noise` supplies the bytes, which must differ from any content of the
/// disk.
///
/// # Errors
/// Error of the first disk on which a write or flush failed. The overwritten bytes are not
/// restored.
pub async fn probe_flushes(
    disks: &[Arc<dyn Device>],
    offset: u64,
    clock: &dyn Clock,
    noise: &dyn Fn(&mut [u8]),
) -> Result<Vec<FlushFigures>, DeviceError> {
    let each = disks.iter().map(|disk| probe(&**disk, offset, clock, noise));
    // Await the probes of all disks, even if one fails: an abandoned write could later overwrite
    // data of the pool.
    let all = join_all(each).await.into_iter().collect::<Result<Vec<_>, _>>();
    let mut all = all?;
    if disks.len() > 1 {
        for (disk, figures) in disks.iter().zip(&mut all) {
            if figures.durable() < ALONE_BELOW {
                *figures = probe(&**disk, offset, clock, noise).await?;
            }
        }
    }
    Ok(all)
}

/// Times of one sample: the write, the flush and the durable write.
type Sample = [Duration; 3];

async fn probe(
    disk: &dyn Device,
    offset: u64,
    clock: &dyn Clock,
    noise: &dyn Fn(&mut [u8]),
) -> Result<FlushFigures, DeviceError> {
    let start = clock.monotonic();
    let in_time = || clock.monotonic().saturating_sub(start) < TIME_MAX;
    let first = sample(disk, offset, clock, noise).await?;
    let mut samples = Vec::new();
    while samples.len() < SAMPLES_MAX && in_time() {
        samples.push(sample(disk, offset, clock, noise).await?);
    }
    // The first sample counts only if it is the only one: the first write allocates space in a
    // file, and a disk may have to wake up.
    if samples.is_empty() {
        samples.push(first);
    }
    let [write, flush, sync] = [0, 1, 2].map(|kind| {
        let mut times: Vec<Duration> = samples.iter().map(|sample| sample[kind]).collect();
        times.sort();
        times[times.len() / 2]
    });
    Ok(FlushFigures { samples: samples.len(), write, flush, sync })
}

async fn sample(
    disk: &dyn Device,
    offset: u64,
    clock: &dyn Clock,
    noise: &dyn Fn(&mut [u8]),
) -> Result<Sample, DeviceError> {
    let fresh = || {
        let mut data = IoBuf::zeroed(FLUSH_PROBE_BYTES);
        noise(&mut data);
        Arc::new(data)
    };
    let (cached, durable) = (fresh(), fresh());
    let all = 0..FLUSH_PROBE_BYTES;
    let mut from = clock.monotonic();
    let mut lap = || {
        let now = clock.monotonic();
        now.saturating_sub(std::mem::replace(&mut from, now))
    };
    disk.write_at(offset, cached, all.clone(), Durability::Cached).await?;
    let write = lap();
    disk.flush().await?;
    let flush = lap();
    disk.write_at(offset, durable, all, Durability::Durable).await?;
    Ok([write, flush, lap()])
}

#[cfg(test)]
mod tests;
