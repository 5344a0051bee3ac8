//! Reserved free space of a pool, and the writers that may use it.
//!
//! weir-dataset enforces the limits; the cleaner is in `cleaner`.
//!
//! Invariants: cleaner < writers < reserve; the metadata that a commit writes fits into `cleaner`
//! segments.

/// Part of the pool in percent that is reserved as working space of the cleaner.
const RESERVE_PERCENT: u64 = 8;
/// Part of the pool in percent that client writes cannot use.
const WRITERS_PERCENT: u64 = 2;
/// Part of the pool in percent that only commits can use.
const CLEANER_PERCENT: u64 = 1;
/// Minimum sizes of these three parts in segments, for small pools: each write head has one segment
/// open.
const RESERVE_SEGMENTS_MIN: u64 = 12;
const WRITERS_SEGMENTS_MIN: u64 = 8;
const CLEANER_SEGMENTS_MIN: u64 = 4;
/// Percentages of the pool. If less than the first is free, the cleaner always cleans cheap
/// victims. If less than the second is free, it cleans them while the pool is idle.
const ALWAYS_PERCENT: u64 = 15;
const IDLE_PERCENT: u64 = 25;

/// Watermarks in segments, over all vdevs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Number of segments that live data cannot fill.
    pub reserve: u64,
    /// Number of free segments that client writes cannot use.
    pub writers: u64,
    /// Number of free segments that the cleaner, TRIM and destroy cannot use.
    pub cleaner: u64,
    /// The cleaner always cleans cheap victims while fewer segments than this are free.
    pub always: u64,
    /// The cleaner cleans cheap victims in an idle pool while fewer segments than this are free.
    pub idle: u64,
}

impl Reserve {
    /// Watermarks of a pool with this many segments.
    pub fn of(segments: u64) -> Self {
        let part = |percent: u64, min: u64| (segments * percent).div_ceil(100).max(min);
        Self {
            reserve: part(RESERVE_PERCENT, RESERVE_SEGMENTS_MIN),
            writers: part(WRITERS_PERCENT, WRITERS_SEGMENTS_MIN),
            cleaner: part(CLEANER_PERCENT, CLEANER_SEGMENTS_MIN),
            always: part(ALWAYS_PERCENT, RESERVE_SEGMENTS_MIN),
            idle: part(IDLE_PERCENT, RESERVE_SEGMENTS_MIN),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watermarks_are_in_order_for_pools_of_any_size() {
        for segments in [16, 24, 54, 256, 512, 32_768, 1 << 24] {
            let Reserve { reserve, writers, cleaner, always, idle } = Reserve::of(segments);
            assert!(cleaner < writers && writers < reserve, "{segments}");
            assert!(reserve <= always && always <= idle, "{segments}");
        }
        assert_eq!(Reserve::of(10_000).reserve, 800);
    }
}
