//! How much of a pool is kept back, and for whom.
//!
//! Not here: who is let in (weir-dataset) and cleaning itself (clean).
//!
//! Invariants: cleaner < writers < reserve; what a commit writes beside data fits below `cleaner`.

/// Part of the pool kept back in percent (design 1.5): what the cleaner works with.
const RESERVE_PERCENT: u64 = 8;
/// Part that new data never takes.
const WRITERS_PERCENT: u64 = 2;
/// Part that only commits take.
const CLEANER_PERCENT: u64 = 1;
/// The least of each in segments: small pools have few, and each stream has one open.
const RESERVE_SEGMENTS_MIN: u64 = 12;
const WRITERS_SEGMENTS_MIN: u64 = 8;
const CLEANER_SEGMENTS_MIN: u64 = 4;
/// Free part in percent below which cheap victims are cleaned: always, and when nothing else is
/// done.
const ALWAYS_PERCENT: u64 = 15;
const IDLE_PERCENT: u64 = 25;

/// Watermarks in segments, of all vdevs together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reserve {
    /// Live data may fill the pool up to here.
    pub reserve: u64,
    /// Free segments that new data leaves alone.
    pub writers: u64,
    /// Free segments that the cleaner, TRIM and destroy leave alone.
    pub cleaner: u64,
    /// Free segments below which cheap victims are always cleaned.
    pub always: u64,
    /// And when the pool is idle.
    pub idle: u64,
}

impl Reserve {
    /// Of a pool of so many segments.
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
