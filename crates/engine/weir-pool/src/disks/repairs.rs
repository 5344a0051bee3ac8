//! Lock on the byte ranges of a vdev's disks that are under repair.
//!
//! Not here: the repairs (`vdev`, `copies`, `check`).
//!
//! Invariant: two repairs with a common byte never run at the same time. Repairs of neighbouring
//! blocks share sectors, and each repair writes whole sectors.

use std::ops::Range;
use std::pin::pin;

use parking_lot::Mutex;
use tokio::sync::Notify;

/// Locked byte ranges, on each disk.
#[derive(Default)]
pub(crate) struct Repairs {
    held: Mutex<Vec<Range<u64>>>,
    ended: Notify,
}

/// Lock on one range; released on drop.
pub(crate) struct Held<'a> {
    repairs: &'a Repairs,
    range: Range<u64>,
}

impl Repairs {
    /// Waits until no repair of any part of `range` is running, then locks the range.
    pub(crate) async fn hold(&self, range: Range<u64>) -> Held<'_> {
        loop {
            let mut ended = pin!(self.ended.notified());
            // Register before the check, so that a release between the check and the wait is not
            // missed.
            ended.as_mut().enable();
            if self.try_hold(&range) {
                return Held { repairs: self, range };
            }
            ended.await;
        }
    }

    fn try_hold(&self, range: &Range<u64>) -> bool {
        let mut held = self.held.lock();
        let free = held.iter().all(|other| other.end <= range.start || range.end <= other.start);
        if free {
            held.push(range.clone());
        }
        free
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        let mut held = self.repairs.held.lock();
        let mine = held.iter().position(|range| *range == self.range);
        held.swap_remove(mine.expect("what is held is in the list"));
        drop(held);
        self.repairs.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;

    use super::*;

    #[test]
    fn overlapping_repairs_wait_and_disjoint_ones_do_not() {
        let repairs = Repairs::default();
        let first = repairs.hold(0..4096).now_or_never().expect("nobody is there");
        let beside = repairs.hold(4096..8192).now_or_never().expect("another part");
        let mut both = pin!(repairs.hold(4000..5000));
        assert!(both.as_mut().now_or_never().is_none());
        drop(first);
        assert!(both.as_mut().now_or_never().is_none(), "the other half is held");
        drop(beside);
        drop(both.as_mut().now_or_never().expect("both ended"));
        assert!(repairs.hold(0..8192).now_or_never().is_some());
    }
}
