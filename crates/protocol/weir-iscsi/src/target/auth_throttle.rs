//! Throttle for CHAP responses: each wrong response delays later responses from the same address
//! and for the same account.
//!
//! `login` checks the responses; `Targets::guessed` logs wrong ones. [`AuthThrottle`] has the
//! rules.
//!
//! Invariants:
//! - on any number of connections, the target checks a response only after all its delays;
//! - the tables have [`ADDRESS_PLACES`], [`ACCOUNT_PLACES`] and at most [`KNOWN_MAX`] entries; only
//!   a correct response adds an entry to the table of known accounts;
//! - at most [`THROTTLED_MAX`] logins wait for one entry of the address table, and at most
//!   [`KNOWN_WAITING_MAX`] for one known account.

use std::hash::{BuildHasher, RandomState};
use std::time::{Duration, Instant};

use hashbrown::HashMap;
use parking_lot::Mutex;
use weir_net::PeerKey;

use crate::limits::{
    ACCOUNT_PLACES, ADDRESS_PLACES, CLEAN_ACCOUNT_INTERVAL, CLEAN_INTERVAL, DIRTY_INTERVAL,
    KNOWN_INTERVAL, KNOWN_MAX, KNOWN_WAITING_MAX, THROTTLE_DELAY_MAX, THROTTLE_DELAY_MIN,
    THROTTLE_RESET, THROTTLE_WAIT_MAX, THROTTLED_MAX,
};

/// Throttle for the CHAP responses of one server.
///
/// A client with a thousand attempts a second finds a secret of 12 characters within weeks. The
/// target therefore checks few wrong responses, from any number of addresses:
///
/// - a wrong response delays the next response from the same address, and the next response for the
///   same account (initiator and target) from any address that gave a wrong response. Each wrong
///   response doubles the delay, up to [`THROTTLE_DELAY_MAX`];
/// - for one account, the target checks one response in each [`CLEAN_ACCOUNT_INTERVAL`] from all
///   addresses without a wrong response. Each guessing address has only one such attempt, so
///   guessers do not lock out an initiator after a restart of the server;
/// - any wrong response also delays all later responses: by [`DIRTY_INTERVAL`] from addresses that
///   gave a wrong response before, by [`CLEAN_INTERVAL`] from other addresses;
/// - a successful login makes its account known at its address. Later responses for a known account
///   from this address have none of these delays, so no guesser can lock the initiator out. A wrong
///   response delays only the next response for the same account and address, by
///   [`KNOWN_INTERVAL`].
///
/// Tables of fixed size count the wrong responses of addresses and accounts. A keyed hash selects
/// the table entry, so a flood of addresses evicts nothing. Two addresses can share a table entry
/// and then delay each other.
pub(crate) struct AuthThrottle {
    hash: RandomState,
    state: Mutex<State>,
}

/// Sender of a CHAP response, as the entries of its address and its account in the tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Guesser {
    address: usize,
    account: usize,
    known: (u64, PeerKey),
}

struct State {
    addresses: Table,
    accounts: Table,
    known: HashMap<(u64, PeerKey), Known>,
    /// Earliest time at which the target checks the next response of an account that is not known:
    /// `next_dirty` for addresses that gave a wrong response before, `next_clean` for all others.
    next_dirty: Option<Instant>,
    next_clean: Option<Instant>,
}

/// Count of wrong responses in one table entry.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    times: u32,
    waiting: u16,
    last: Option<Instant>,
    /// Only in the account table: earliest time at which the target checks the next response for
    /// the account from an address that gave no wrong response before.
    next_clean: Option<Instant>,
}

/// Table of fixed size; the index is a hash modulo the number of entries.
struct Table(Box<[Place]>);

impl Table {
    fn new(places: usize) -> Self {
        Self(vec![Place::default(); places].into())
    }

    fn at(&self, place: usize) -> &Place {
        self.0.get(place).expect("the index is reduced modulo the slot count")
    }

    fn at_mut(&mut self, place: usize) -> &mut Place {
        self.0.get_mut(place).expect("the index is reduced modulo the slot count")
    }
}

/// Known account: an account that logged in successfully from one address.
#[derive(Clone, Copy, Debug)]
struct Known {
    proved: Instant,
    /// Earliest time at which the target checks the next response for the account from this
    /// address.
    next: Instant,
    waiting: u16,
}

impl Place {
    /// Returns true if the entry counted a wrong response within [`THROTTLE_RESET`].
    fn is_dirty(&self, now: Instant) -> bool {
        self.last.is_some_and(|last| now.duration_since(last) < THROTTLE_RESET)
    }

    /// Earliest time at which the target checks the next response for this entry; `None` means at
    /// once.
    fn next(&self, now: Instant) -> Option<Instant> {
        let doublings = self.times.saturating_sub(1).min(16);
        let delay = (THROTTLE_DELAY_MIN * 2_u32.pow(doublings)).min(THROTTLE_DELAY_MAX);
        self.last.filter(|_| self.is_dirty(now)).map(|last| last + delay)
    }

    fn failed(&mut self, now: Instant) {
        if !self.is_dirty(now) {
            self.times = 0;
        }
        self.times = self.times.saturating_add(1);
        self.last = Some(now);
    }
}

/// Decision of the throttle about a CHAP response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Admission {
    Now,
    After(Duration),
}

impl Default for AuthThrottle {
    fn default() -> Self {
        let state = State {
            addresses: Table::new(ADDRESS_PLACES),
            accounts: Table::new(ACCOUNT_PLACES),
            known: HashMap::new(),
            next_dirty: None,
            next_clean: None,
        };
        Self { hash: RandomState::new(), state: Mutex::new(state) }
    }
}

impl AuthThrottle {
    /// Finds the table entries of `initiator`, which responds to a challenge of `target` from
    /// `peer`.
    pub(crate) fn guesser(&self, peer: PeerKey, initiator: &str, target: &str) -> Guesser {
        let account = self.hash.hash_one((initiator, target));
        let place = |hash: u64, places: usize| (hash % places as u64) as usize;
        Guesser {
            address: place(self.hash.hash_one(peer), ADDRESS_PLACES),
            account: place(account, ACCOUNT_PLACES),
            known: (account, peer),
        }
    }

    /// Waits until the target may check a response. Returns false if the wait would exceed
    /// [`THROTTLE_WAIT_MAX`] or too many logins wait. After it returned true, the caller must not
    /// await before it calls [`Self::failed`] or [`Self::proved`].
    pub(crate) async fn wait(&self, who: Guesser) -> bool {
        let deadline = Instant::now() + THROTTLE_WAIT_MAX;
        let mut waiting = None;
        loop {
            let now = Instant::now();
            match self.admission(who, now) {
                Admission::Now => return true,
                Admission::After(delay) => {
                    if waiting.is_none() {
                        waiting = Waiting::enter(self, who);
                    }
                    if waiting.is_none() || now + delay > deadline {
                        return false;
                    }
                    compio::time::sleep(delay).await;
                }
            }
        }
    }

    fn admission(&self, who: Guesser, now: Instant) -> Admission {
        let state = self.state.lock();
        let next = match state.known.get(&who.known) {
            Some(known) => Some(known.next),
            None => {
                let address = state.addresses.at(who.address);
                let account = state.accounts.at(who.account);
                if address.is_dirty(now) {
                    address.next(now).max(account.next(now)).max(state.next_dirty)
                } else {
                    account.next_clean.max(state.next_clean)
                }
            }
        };
        match next {
            Some(next) if next > now => Admission::After(next - now),
            _ => Admission::Now,
        }
    }

    /// Counts a wrong response of this sender.
    pub(crate) fn failed(&self, who: Guesser, now: Instant) {
        let mut guard = self.state.lock();
        let state = &mut *guard;
        let address = state.addresses.at_mut(who.address);
        let account = state.accounts.at_mut(who.account);
        let was_dirty = address.is_dirty(now);
        address.failed(now);
        let after = |next: Option<Instant>, interval| {
            Some(next.map_or(now, |next| next.max(now)) + interval)
        };
        if let Some(known) = state.known.get_mut(&who.known) {
            known.next = known.next.max(now) + KNOWN_INTERVAL;
            account.failed(now);
        } else if was_dirty {
            account.failed(now);
            state.next_dirty = after(state.next_dirty, DIRTY_INTERVAL);
        } else {
            account.next_clean = after(account.next_clean, CLEAN_ACCOUNT_INTERVAL);
            state.next_clean = after(state.next_clean, CLEAN_INTERVAL);
        }
    }

    /// Records a correct response: the account becomes a known account at the sender's address.
    pub(crate) fn proved(&self, who: Guesser, now: Instant) {
        let mut state = self.state.lock();
        if let Some(known) = state.known.get_mut(&who.known) {
            known.proved = now;
            return;
        }
        if state.known.len() >= KNOWN_MAX {
            let all = state.known.iter().filter(|(_, known)| known.waiting == 0);
            let oldest = all.min_by_key(|(_, known)| known.proved).map(|(key, _)| *key);
            oldest.and_then(|oldest| state.known.remove(&oldest));
        }
        if state.known.len() < KNOWN_MAX {
            state.known.insert(who.known, Known { proved: now, next: now, waiting: 0 });
        }
    }
}

/// Login that waits in the throttle, until this value is dropped.
struct Waiting<'g> {
    auth_throttle: &'g AuthThrottle,
    who: Guesser,
    /// True if the login counts for the limit of a known account. False if it counts for the limit
    /// of its address.
    as_known: bool,
}

impl<'g> Waiting<'g> {
    fn enter(auth_throttle: &'g AuthThrottle, who: Guesser) -> Option<Self> {
        let mut state = auth_throttle.state.lock();
        let as_known = state.known.contains_key(&who.known);
        let (waiting, most) = match state.known.get_mut(&who.known) {
            Some(known) => (&mut known.waiting, KNOWN_WAITING_MAX),
            None => (&mut state.addresses.at_mut(who.address).waiting, THROTTLED_MAX),
        };
        if usize::from(*waiting) >= most {
            return None;
        }
        *waiting += 1;
        Some(Self { auth_throttle, who, as_known })
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let mut state = self.auth_throttle.state.lock();
        let waiting = if self.as_known {
            state.known.get_mut(&self.who.known).map(|known| &mut known.waiting)
        } else {
            Some(&mut state.addresses.at_mut(self.who.address).waiting)
        };
        if let Some(waiting) = waiting {
            *waiting = waiting.saturating_sub(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(number: u32) -> PeerKey {
        PeerKey::of(std::net::Ipv4Addr::from(number).into())
    }

    /// Creates a guesser whose address shares no table entry with `others`.
    fn apart(auth_throttle: &AuthThrottle, others: &[Guesser], account: &str) -> Guesser {
        let mut all = (10_000..).map(|number| auth_throttle.guesser(peer(number), account, "t"));
        let is_apart = |one: &Guesser| others.iter().all(|other| other.address != one.address);
        all.find(is_apart).unwrap()
    }

    /// Gives wrong responses as fast as the throttle allows, from each of `addresses` in turn, for
    /// `time`; `account` returns the account for an address. Returns the number of responses that
    /// were checked.
    fn guessed(
        auth_throttle: &AuthThrottle,
        addresses: std::ops::Range<u32>,
        account: impl Fn(u32) -> String,
        start: Instant,
        time: Duration,
    ) -> u32 {
        let guesser = |address| auth_throttle.guesser(peer(address), &account(address), "t");
        let guessers: Vec<Guesser> = addresses.map(guesser).collect();
        let (mut now, mut looked_at) = (start, 0);
        while now < start + time {
            for who in &guessers {
                if auth_throttle.admission(*who, now) == Admission::Now {
                    auth_throttle.failed(*who, now);
                    looked_at += 1;
                }
            }
            now += Duration::from_millis(10);
        }
        looked_at
    }

    #[test]
    fn wrong_response_delays_its_address_and_its_account() {
        let auth_throttle = AuthThrottle::default();
        let start = Instant::now();
        let [same, other_account] =
            ["a", "b"].map(|account| auth_throttle.guesser(peer(1), account, "t"));
        let other_address = apart(&auth_throttle, &[same], "a");
        assert_eq!(auth_throttle.admission(same, start), Admission::Now);
        auth_throttle.failed(same, start);
        let delays = [
            (same, THROTTLE_DELAY_MIN),
            (other_account, THROTTLE_DELAY_MIN),
            (other_address, CLEAN_ACCOUNT_INTERVAL),
        ];
        for (who, delay) in delays {
            assert_eq!(auth_throttle.admission(who, start), Admission::After(delay), "{who:?}");
            assert_eq!(auth_throttle.admission(who, start + delay), Admission::Now);
        }
        for _ in 0..40 {
            auth_throttle.failed(same, start);
        }
        let delay = |who| match auth_throttle.admission(who, start) {
            Admission::After(delay) => delay,
            Admission::Now => Duration::ZERO,
        };
        assert!(delay(same) >= THROTTLE_DELAY_MAX, "{:?}", delay(same));
        // An address that gave a wrong response, even for another account, also has the delay of
        // this account.
        auth_throttle.failed(
            Guesser { account: (same.account + 1) % ACCOUNT_PLACES, ..other_address },
            start,
        );
        assert!(delay(other_address) >= THROTTLE_DELAY_MAX, "{:?}", delay(other_address));
        assert_eq!(auth_throttle.admission(same, start + THROTTLE_RESET), Admission::Now);
    }

    // Regression: guessers at 3,000 addresses could try 1,486 secrets a second.
    #[test]
    fn rate_of_wrong_responses_is_bounded_for_many_addresses() {
        let time = Duration::from_mins(1);
        let per_minute = |interval: Duration| (time.as_millis() / interval.as_millis()) as u32;
        let addresses = 0..3000;
        let one = |_| "victim".to_owned();
        let looked_at =
            guessed(&AuthThrottle::default(), addresses.clone(), one, Instant::now(), time);
        let most = per_minute(THROTTLE_DELAY_MAX) + per_minute(CLEAN_ACCOUNT_INTERVAL);
        // The first few delays are shorter than the longest one, so allow a few more responses.
        assert!(looked_at <= most + 6, "{looked_at} of one account, {most} at most");
        let each = |address| format!("account {address}");
        let looked_at = guessed(&AuthThrottle::default(), addresses, each, Instant::now(), time);
        let most = per_minute(CLEAN_INTERVAL) + per_minute(DIRTY_INTERVAL);
        assert!(looked_at <= most + 2, "{looked_at} of {most}");
    }

    // After a restart, the throttle knows no account, so the delays apply to every initiator once.
    #[test]
    fn initiator_at_a_clean_address_is_not_delayed_by_guessers() {
        let auth_throttle = AuthThrottle::default();
        let start = Instant::now();
        let account = |_| "victim".to_owned();
        guessed(&auth_throttle, 2..50, account, start, Duration::from_mins(1));
        let now = start + Duration::from_mins(1) + CLEAN_ACCOUNT_INTERVAL;
        let guessers: Vec<_> =
            (2..50).map(|number| auth_throttle.guesser(peer(number), "victim", "t")).collect();
        let (dirty, own) = (guessers[0], apart(&auth_throttle, &guessers, "victim"));
        let mut fair_queue = 0;
        // Guessers at 48 addresses use every attempt that the throttle allows.
        for step in 0..20 {
            let at = now + step * Duration::from_millis(100);
            if auth_throttle.admission(dirty, at) == Admission::Now {
                auth_throttle.failed(dirty, at);
                fair_queue += 1;
            }
            assert_eq!(auth_throttle.admission(own, at), Admission::Now);
        }
        assert!(fair_queue <= 2, "{fair_queue}");
    }

    #[test]
    fn known_account_is_not_delayed_by_guessers() {
        let auth_throttle = AuthThrottle::default();
        let start = Instant::now();
        let own = auth_throttle.guesser(peer(1), "victim", "t");
        auth_throttle.proved(own, start);
        let account = |_| "victim".to_owned();
        let elsewhere = guessed(&auth_throttle, 2..3000, account, start, Duration::from_secs(10));
        assert!(elsewhere > 0);
        let now = start + Duration::from_secs(10);
        assert_eq!(auth_throttle.admission(own, now), Admission::Now);
        // The initiator's own address gives wrong responses, for the initiator's name and for
        // another name.
        for name in ["victim", "other"] {
            auth_throttle.failed(auth_throttle.guesser(peer(1), name, "t"), now);
        }
        assert_eq!(auth_throttle.admission(own, now), Admission::After(KNOWN_INTERVAL));
        assert_eq!(auth_throttle.admission(own, now + KNOWN_INTERVAL), Admission::Now);
    }

    #[test]
    fn address_flood_neither_evicts_entries_nor_grows_tables() {
        let auth_throttle = AuthThrottle::default();
        let start = Instant::now();
        let first = auth_throttle.guesser(peer(1), "first", "t");
        auth_throttle.proved(auth_throttle.guesser(peer(0), "known", "t"), start);
        assert_eq!(
            auth_throttle.admission(auth_throttle.guesser(peer(0), "known", "t"), start),
            Admission::Now
        );
        (0..10).for_each(|_| auth_throttle.failed(first, start));
        for number in 2..2 * ADDRESS_PLACES as u32 {
            auth_throttle
                .failed(auth_throttle.guesser(peer(number), &number.to_string(), "t"), start);
        }
        let at = start + THROTTLE_DELAY_MIN;
        assert_ne!(auth_throttle.admission(first, at), Admission::Now);
        assert_eq!(
            auth_throttle.admission(auth_throttle.guesser(peer(0), "known", "t"), at),
            Admission::Now
        );
        for number in 0..2 * KNOWN_MAX as u32 {
            auth_throttle.proved(auth_throttle.guesser(peer(number), "own", "t"), start);
        }
        assert_eq!(auth_throttle.state.lock().known.len(), KNOWN_MAX);
    }

    #[test]
    fn number_of_waiting_logins_is_bounded() {
        let auth_throttle = AuthThrottle::default();
        let who = auth_throttle.guesser(peer(1), "a", "t");
        let all = || std::iter::from_fn(|| Waiting::enter(&auth_throttle, who)).collect::<Vec<_>>();
        let waiting = all();
        assert_eq!(waiting.len(), THROTTLED_MAX);
        // Logins to a known account have a limit of their own.
        auth_throttle.proved(who, Instant::now());
        let known = all();
        assert_eq!(known.len(), KNOWN_WAITING_MAX);
        drop((waiting, known));
        assert!(Waiting::enter(&auth_throttle, who).is_some());
    }
}
