//! Measures how long a disk takes to write and to flush, before it is trusted with a pool.
//!
//! Not here: what the times say (flush_verdict.rs).
//!
//! Invariants:
//! - overwrites [`FLUSH_PROBE_BYTES`] of each disk at the place it is given, and nothing else;
//! - every operation is awaited to its end: one that was given up could overwrite, later, what the
//!   pool wrote there meanwhile. A disk that does not answer keeps the caller waiting, who watches
//!   its disks for that;
//! - no sample begins once the time is up, and there is at least one;
//! - a write or flush that fails ends the measurement and is never tried again.
//!
//! Theory: all samples overwrite one place and wait for it to be durable each time. A platter
//! passes the head once per revolution, 4 ms at 15,000 rpm and more below, so no honest one does
//! that in much less; flash has to program a page, 100 us and more. What is quicker has it in a
//! cache: one that survives a power cut (capacitors, battery), or one that does not. No time can
//! tell these two apart, only the data sheet or pulling the plug.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use weir_base::Clock;
use weir_block::IoBuf;

use crate::device::{Device, DeviceError, Durability};

/// How much of a disk is overwritten.
pub const FLUSH_PROBE_BYTES: usize = 4096;

/// Samples of one disk: enough for a median that one odd sample does not move.
const SAMPLES_MAX: usize = 32;
/// No sample begins later than this: with the last one it stays below half a second where a flush
/// takes 50 ms, and a spinning disk gives some fifteen.
const TIME_MAX: Duration = Duration::from_millis(300);
/// Disks quicker than this are measured once more, one by one: the time that one thread takes to
/// serve the others would hide a flush that is too quick.
const ALONE_BELOW: Duration = Duration::from_micros(500);

/// Median times of one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlushFigures {
    /// How often each was measured; at least once.
    pub samples: usize,
    /// A write of [`FLUSH_PROBE_BYTES`] into the disk's cache.
    pub write: Duration,
    /// The flush after that write.
    pub flush: Duration,
    /// A write that is durable when it returns: FUA where the disk has it, else write and flush.
    pub sync: Duration,
}

impl FlushFigures {
    /// The quickest way in which the disk says that data is durable.
    pub fn durable(&self) -> Duration {
        self.sync.min(self.write + self.flush)
    }
}

/// Measures disks side by side. Overwrites [`FLUSH_PROBE_BYTES`] at `offset`, whole sectors, of
/// each with what `noise` gives: bytes that no disk can take for what it has already.
///
/// # Errors
/// The first disk on which a write or flush failed; what was overwritten stays so.
pub async fn probe_flushes(
    disks: &[Arc<dyn Device>],
    offset: u64,
    clock: &dyn Clock,
    noise: &dyn Fn(&mut [u8]),
) -> Result<Vec<FlushFigures>, DeviceError> {
    let each = disks.iter().map(|disk| probe(&**disk, offset, clock, noise));
    // All are awaited, also when one fails: see the invariant.
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

/// Times of one sample: write, flush, durable write.
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
    // Counted only where there is no other: in a file the first write allocates, and a disk may
    // have to wake up.
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
