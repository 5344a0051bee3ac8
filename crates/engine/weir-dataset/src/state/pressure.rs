//! Decides for `compression=auto` before each block whether compression slows clients down.
//!
//! Compression itself is in weir-pool, the budget of dirty data in `state::shared`.
//!
//! Invariants:
//! - a block is stored raw only if much data is dirty and the previous write-out was limited by the
//!   CPU, not by the disks;
//! - times come from the engine's clock: in a simulation computing takes no time, so no block is
//!   stored raw for this reason.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_base::limits::{STREAM_WRITE_BYTES, STREAM_WRITES_IN_FLIGHT};
use weir_format::Compression;

/// Percentage of the dirty-data budget above which blocks may be stored raw. Below this percentage
/// writers do not wait; above half of the budget, commits follow one another without a pause.
const DIRTY_PERCENT: u64 = 60;

/// Minimum size of a write-out whose waiting time shows the speed of the disks: a smaller write-out
/// fits into the writes in flight and waits for no disk.
const TELLING_BYTES: u64 = (STREAM_WRITE_BYTES * STREAM_WRITES_IN_FLIGHT) as u64 * 2;

#[derive(Debug, Default)]
pub(crate) struct Pressure {
    is_cpu_bound: AtomicBool,
}

impl Pressure {
    /// Records a write-out: its duration, the part of it spent waiting for disks, and its dirty
    /// bytes.
    pub(crate) fn note(&self, spent: Duration, waited: Duration, dirty_bytes: u64) {
        let bound = dirty_bytes > TELLING_BYTES && waited * 2 < spent;
        self.is_cpu_bound.store(bound, Ordering::Release);
    }

    /// Returns the compression to use for a block now, for a volume with the setting `asked`.
    pub(crate) fn decide(&self, asked: Compression, dirty: u64, dirty_max: u64) -> Compression {
        let much = u128::from(dirty) * 100 > u128::from(dirty_max) * u128::from(DIRTY_PERCENT);
        let raw = asked == Compression::Auto && much && self.is_cpu_bound.load(Ordering::Acquire);
        if raw { Compression::Off } else { asked }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn auto_stores_raw_only_if_cpu_bound_with_much_dirty_data() {
        let (ms, auto) = (Duration::from_millis, Compression::Auto);
        let pressure = Pressure::default();
        assert_eq!(pressure.decide(auto, 100, 100), auto, "nothing is known yet");
        pressure.note(ms(100), ms(10), TELLING_BYTES + 1);
        assert_eq!(pressure.decide(auto, 61, 100), Compression::Off);
        assert_eq!(pressure.decide(auto, 60, 100), auto, "nobody is held up");
        let asked = Compression::all().filter(|asked| *asked != auto);
        asked.for_each(|asked| assert_eq!(pressure.decide(asked, 100, 100), asked));
        pressure.note(ms(100), ms(50), TELLING_BYTES + 1);
        assert_eq!(pressure.decide(auto, 100, 100), auto, "the disks are what is slow");
        pressure.note(ms(100), ms(0), TELLING_BYTES);
        assert_eq!(pressure.decide(auto, 100, 100), auto, "too little to tell");
        pressure.note(ms(0), ms(0), TELLING_BYTES + 1);
        assert_eq!(pressure.decide(auto, 100, 100), auto, "a simulated clock");
    }
}
