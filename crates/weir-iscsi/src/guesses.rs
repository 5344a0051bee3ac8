//! Wrong answers to CHAP, by address: each makes the next attempt from there wait.
//!
//! Not here: what an answer proves (`login`), the log and events (`Targets::guessed`).
//!
//! A secret of 12 characters falls to someone who may try a thousand a second for weeks. After a
//! wrong answer no other from the same address is looked at for a while, which doubles up to
//! [`GUESS_DELAY_MAX`]. Right answers cost nothing, so that a machine with many sessions logs in
//! as fast as before; they do not make up for wrong ones either.
//!
//! Invariants:
//! - of one address an answer is looked at only when the delay of the last wrong one is over, on
//!   however many connections answers wait;
//! - at most [`GUESSERS_MAX`] addresses are remembered, and [`GUESSES_WAITING_MAX`] logins of one
//!   address wait.

use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use weir_serve::PeerKey;

use crate::limits::{
    GUESS_DELAY_MAX, GUESS_DELAY_MIN, GUESS_FORGOTTEN, GUESS_WAIT_MAX, GUESSERS_MAX,
    GUESSES_WAITING_MAX,
};

/// See the file's head.
#[derive(Default)]
pub(crate) struct Guesses {
    seen: Mutex<HashMap<PeerKey, Seen>>,
}

struct Seen {
    times: u64,
    last: Instant,
    /// No answer is looked at before.
    next: Instant,
    waiting: usize,
}

/// Whether an answer may be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Now,
    After(Duration),
}

impl Guesses {
    /// Waits until an answer from there may be looked at; false where that takes too long. Between
    /// this and [`Self::failed`] nothing may be awaited.
    pub(crate) async fn wait(&self, key: PeerKey) -> bool {
        let deadline = Instant::now() + GUESS_WAIT_MAX;
        let mut waiting = None;
        loop {
            let now = Instant::now();
            match self.turn(key, now) {
                Turn::Now => return true,
                Turn::After(delay) => {
                    if waiting.is_none() {
                        waiting = Waiting::enter(self, key);
                    }
                    if waiting.is_none() || now + delay > deadline {
                        return false;
                    }
                    compio::time::sleep(delay).await;
                }
            }
        }
    }

    fn turn(&self, key: PeerKey, now: Instant) -> Turn {
        let seen = self.seen.lock();
        let next = seen.get(&key).map_or(now, |seen| seen.next);
        if next <= now { Turn::Now } else { Turn::After(next - now) }
    }

    /// Counts a wrong answer; returns how many there were lately.
    pub(crate) fn failed(&self, key: PeerKey, now: Instant) -> u64 {
        let mut seen = self.seen.lock();
        seen.retain(|_, one| one.waiting > 0 || now.duration_since(one.last) < GUESS_FORGOTTEN);
        if seen.len() >= GUESSERS_MAX && !seen.contains_key(&key) {
            let oldest = seen.iter().min_by_key(|(_, one)| one.last).map(|(key, _)| *key);
            oldest.and_then(|oldest| seen.remove(&oldest));
        }
        let entry = seen.entry(key).or_insert(Seen { times: 0, last: now, next: now, waiting: 0 });
        entry.times += 1;
        let doublings = u32::try_from(entry.times - 1).unwrap_or(u32::MAX).min(16);
        entry.last = now;
        entry.next = now + (GUESS_DELAY_MIN * 2_u32.pow(doublings)).min(GUESS_DELAY_MAX);
        entry.times
    }
}

/// A login that waits; counted until it is dropped.
struct Waiting<'g> {
    guesses: &'g Guesses,
    key: PeerKey,
}

impl<'g> Waiting<'g> {
    fn enter(guesses: &'g Guesses, key: PeerKey) -> Option<Self> {
        let mut seen = guesses.seen.lock();
        let entry = seen.get_mut(&key)?;
        if entry.waiting >= GUESSES_WAITING_MAX {
            return None;
        }
        entry.waiting += 1;
        Some(Self { guesses, key })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(entry) = self.guesses.seen.lock().get_mut(&self.key) {
            entry.waiting = entry.waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> PeerKey {
        PeerKey::of(std::net::Ipv4Addr::from(number).into())
    }

    #[test]
    fn wrong_answers_delay_the_next_ones_of_their_address_alone() {
        let guesses = Guesses::default();
        let start = Instant::now();
        assert_eq!(guesses.turn(peer(1), start), Turn::Now);
        assert_eq!(guesses.failed(peer(1), start), 1);
        assert_eq!(guesses.turn(peer(1), start), Turn::After(GUESS_DELAY_MIN));
        assert_eq!(guesses.turn(peer(2), start), Turn::Now);
        assert_eq!(guesses.turn(peer(1), start + GUESS_DELAY_MIN), Turn::Now);
        for _ in 0..40 {
            guesses.failed(peer(1), start);
        }
        assert_eq!(guesses.turn(peer(1), start), Turn::After(GUESS_DELAY_MAX));
        assert_eq!(guesses.failed(peer(1), start + GUESS_FORGOTTEN), 1);
    }

    #[test]
    fn neither_addresses_nor_waiting_logins_pile_up() {
        let guesses = Guesses::default();
        for number in 0..2 * GUESSERS_MAX as u32 {
            guesses.failed(peer(number), Instant::now());
        }
        assert_eq!(guesses.seen.lock().len(), GUESSERS_MAX);
        let last = peer(2 * GUESSERS_MAX as u32 - 1);
        let waiting: Vec<_> = std::iter::from_fn(|| Waiting::enter(&guesses, last)).collect();
        assert_eq!(waiting.len(), GUESSES_WAITING_MAX);
        drop(waiting);
        assert!(Waiting::enter(&guesses, last).is_some());
    }
}
