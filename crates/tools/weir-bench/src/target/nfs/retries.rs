//! Calls that the server asks the client to send again (NFS3ERR_JUKEBOX).
//!
//! `lane` sends the calls.
//!
//! Spec: RFC 1813 section 2.6: the client waits, and sends the request again with a new
//! transaction id.
//!
//! Invariants: the wait is a part of the latency of the operation; an operation sends no call again
//! later than [`LIMIT`] after its first NFS3ERR_JUKEBOX.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

#[cfg(not(test))]
use weir_nfs_client::limits::{JUKEBOX_INTERVAL as INTERVAL, JUKEBOX_LIMIT};

/// Time limit for the repetitions of an operation.
#[cfg(not(test))]
pub(super) const LIMIT: Duration = JUKEBOX_LIMIT;
/// Limit and interval in unit tests, shorter than the real ones, so that the tests end soon.
#[cfg(test)]
pub(super) const LIMIT: Duration = Duration::from_millis(300);
#[cfg(test)]
pub(super) const INTERVAL: Duration = Duration::from_millis(40);

/// A call that waits, as its slot and the start of its piece or the index of its file.
type Call = (usize, u32);

/// Calls of a lane that wait until they are sent again.
pub(super) struct Retries {
    /// Time of the first NFS3ERR_JUKEBOX of the operation of each slot.
    since: Vec<Option<Instant>>,
    /// Waiting calls with their times, in order: all wait for the same interval.
    waiting: VecDeque<(Instant, Call)>,
}

impl Retries {
    pub(super) fn new(slots: usize) -> Self {
        Self { since: vec![None; slots], waiting: VecDeque::new() }
    }

    /// Records that a slot begins another operation.
    pub(super) fn begin(&mut self, slot: usize) {
        self.since[slot] = None;
    }

    /// Records that the server replied NFS3ERR_JUKEBOX to a call. Returns false if the operation
    /// has reached its time limit; then the call has failed.
    pub(super) fn delay(&mut self, call: Call, now: Instant) -> bool {
        let since = *self.since[call.0].get_or_insert(now);
        if now.saturating_duration_since(since) >= LIMIT {
            return false;
        }
        self.waiting.push_back((now + INTERVAL, call));
        true
    }

    /// Removes and returns a call that is due.
    pub(super) fn due(&mut self, now: Instant) -> Option<Call> {
        self.waiting.pop_front_if(|(at, _)| *at <= now).map(|(_, call)| call)
    }

    /// Time until the next call is due.
    pub(super) fn next(&self, now: Instant) -> Option<Duration> {
        self.waiting.front().map(|(at, _)| at.saturating_duration_since(now))
    }
}
