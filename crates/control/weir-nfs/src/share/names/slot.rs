//! The addresses of one name, as the calls of clients read them.
//!
//! `resolver` writes them.
//!
//! Invariants:
//! - a call never waits for a lookup;
//! - an address counts until its end, also if no lookup ends any more.

use std::net::IpAddr;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use crate::limits::{NAME_AGE_MIN, NAME_FIRST_WAIT, NAME_FOUND_WAIT, NAME_WAIT};

/// Times of lookups. Except `age`, they are maximum times of waits.
#[derive(Clone, Copy, Debug)]
pub struct NameWaits {
    /// Time for which clients wait for the first lookup of a name.
    pub first: Duration,
    /// Time for which clients without another rule wait for the first lookup that succeeds.
    pub found: Duration,
    /// Time for which one call waits for lookups.
    pub call: Duration,
    /// Minimum age of a lookup that a call of MOUNT repeats.
    pub age: Duration,
}

impl Default for NameWaits {
    fn default() -> Self {
        Self { first: NAME_FIRST_WAIT, found: NAME_FOUND_WAIT, call: NAME_WAIT, age: NAME_AGE_MIN }
    }
}

/// Whether an address belongs to a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::share) enum Member {
    Yes,
    No,
    /// The first lookup has not ended.
    Unknown,
    /// The first lookups failed a short time ago.
    Perhaps,
}

/// Addresses of a name.
#[derive(Debug)]
pub(in crate::share) struct Slot {
    followed: Instant,
    waits: NameWaits,
    state: RwLock<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Addresses in ascending order, each with the end of its validity.
    addresses: Vec<(IpAddr, Instant)>,
    /// True after the first lookup, also if it failed.
    is_looked_up: bool,
    /// True after the first lookup that succeeded.
    is_found: bool,
}

impl Slot {
    pub(super) fn new(waits: NameWaits, now: Instant) -> Self {
        Self { followed: now, waits, state: RwLock::default() }
    }

    /// Returns whether a canonical address belongs to the name.
    pub(in crate::share) fn has(&self, address: IpAddr, now: Instant) -> Member {
        let state = self.state.read();
        let at = state.addresses.binary_search_by_key(&address, |(address, _)| *address);
        let found = at.ok().and_then(|at| state.addresses.get(at));
        let age = now.saturating_duration_since(self.followed);
        match found {
            Some((_, end)) if now < *end => Member::Yes,
            _ if state.is_found => Member::No,
            _ if !state.is_looked_up && age < self.waits.first => Member::Unknown,
            _ if age < self.waits.found => Member::Perhaps,
            _ => Member::No,
        }
    }

    /// Stores the result of a lookup. An address that occurs twice counts until the later end.
    pub(super) fn set(&self, mut addresses: Vec<(IpAddr, Instant)>, is_found: bool) {
        addresses.sort_unstable_by_key(|(address, end)| (*address, std::cmp::Reverse(*end)));
        addresses.dedup_by_key(|(address, _)| *address);
        addresses.shrink_to_fit();
        let mut state = self.state.write();
        state.addresses = addresses;
        state.is_looked_up = true;
        state.is_found |= is_found;
    }

    /// The valid addresses, in ascending order.
    pub(super) fn addresses(&self, now: Instant) -> Vec<IpAddr> {
        let state = self.state.read();
        let valid = state.addresses.iter().filter(|(_, end)| now < *end);
        valid.map(|(address, _)| *address).collect()
    }

    /// True while clients may still wait for the first lookup that succeeds.
    pub(super) fn is_awaited(&self, now: Instant) -> bool {
        let age = now.saturating_duration_since(self.followed);
        !self.state.read().is_found && age < self.waits.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITS: NameWaits = NameWaits {
        first: Duration::from_secs(5),
        found: Duration::from_mins(1),
        call: Duration::from_secs(3),
        age: Duration::from_secs(10),
    };

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn clients_wait_for_the_first_lookup_only_for_a_time() {
        let start = Instant::now();
        let slot = Slot::new(WAITS, start);
        let of = |seconds| slot.has(address("10.0.0.1"), start + Duration::from_secs(seconds));
        assert_eq!([of(0), of(4)], [Member::Unknown; 2]);
        assert_eq!([of(5), of(59)], [Member::Perhaps; 2], "the lookup hangs");
        assert_eq!(of(60), Member::No);
        slot.set(Vec::new(), false);
        assert_eq!([of(0), of(59)], [Member::Perhaps; 2], "the lookup failed");
        assert_eq!(of(60), Member::No);
        slot.set(Vec::new(), true);
        assert_eq!(of(0), Member::No);
        slot.set(Vec::new(), false);
        assert_eq!(of(0), Member::No, "a later failure");
    }

    #[test]
    fn address_counts_until_its_end() {
        let start = Instant::now();
        let slot = Slot::new(WAITS, start);
        let after = |seconds| start + Duration::from_secs(seconds);
        let [one, two] = ["10.0.0.1", "10.0.0.2"].map(address);
        slot.set(vec![(two, after(10)), (one, after(20)), (two, after(30)), (two, after(5))], true);
        assert_eq!(slot.has(two, after(29)), Member::Yes, "the later end");
        assert_eq!(slot.has(two, after(30)), Member::No);
        assert_eq!(slot.has(one, after(19)), Member::Yes);
        assert_eq!(slot.addresses(after(0)), [one, two]);
        assert_eq!(slot.addresses(after(20)), [two]);
        assert_eq!(slot.has(address("10.0.0.3"), after(0)), Member::No);
    }
}
