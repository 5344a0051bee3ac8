//! Whether compressing holds clients up: what `compression=auto` asks before each block.
//!
//! Not here: compressing (weir-pool), the budget of dirty data (core).
//!
//! Invariants:
//! - raw is stored only while both hold: much is dirty, and the write-out before was slow for want
//!   of CPU, not of disks;
//! - time is the engine's clock: in a simulation computing takes none, and nothing is ever raw.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_base::limits::{STREAM_WRITE_BYTES, STREAM_WRITES_IN_FLIGHT};
use weir_format::Compression;

/// Of the budget of dirty data (design 6): below it writers do not wait, and above half of it
/// commits follow on each other.
const DIRTY_PERCENT: u64 = 60;

/// Less than may be under way to the disks tells nothing about them: nobody waited yet.
const TELLING_BYTES: u64 = (STREAM_WRITE_BYTES * STREAM_WRITES_IN_FLIGHT) as u64 * 2;

#[derive(Debug, Default)]
pub(crate) struct Pressure {
    is_cpu_bound: AtomicBool,
}

impl Pressure {
    /// Notes a write-out of data: the time it took, how much of that it waited for disks, and the
    /// bytes of dirty data in it.
    pub(crate) fn note(&self, spent: Duration, waited: Duration, dirty_bytes: u64) {
        let bound = dirty_bytes > TELLING_BYTES && waited * 2 < spent;
        self.is_cpu_bound.store(bound, Ordering::Release);
    }

    /// What to do with a block now of a volume with this setting.
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
    fn only_auto_gives_way_and_only_to_cpu_under_dirty_data() {
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
