//! Memory that the connections of one server share.
//!
//! Not here: what it is used for, and what one connection may hold at most (each protocol).
//!
//! A connection always has a little of its own, so that small requests wait for nobody. What goes
//! beyond comes out of one budget. A connection that has something of it gets more as long as it
//! then has no more than is left: one alone comes to a half, each of n to 1 / (n + 1), and as much
//! stays for the next (dynamic thresholds: Choudhury and Hahne, IEEE/ACM Transactions on
//! Networking 6(2), 1998). One that has nothing of it yet gets what it asks for as soon as there
//! is so much, in the order of asking.
//!
//! Invariants:
//! - what was asked for and is held is never more than the budget, unless one connection alone has
//!   all of it;
//! - who asks and has nothing of the budget is passed by nobody who asked later;
//! - who has more than its part holds nobody up.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

/// See the file's head.
pub struct Budget {
    limit_bytes: usize,
    own_bytes: usize,
    /// As in `line`; for a look without the lock.
    used_bytes: AtomicUsize,
    line: Mutex<Line>,
}

#[derive(Default)]
struct Line {
    used_bytes: usize,
    waiting: VecDeque<Arc<Account>>,
}

/// One connection's side of the budget; changed under the lock of the line.
#[derive(Default)]
struct Account {
    /// Of the budget, what was granted and not yet taken aside.
    charged_bytes: AtomicUsize,
    wanted_bytes: AtomicUsize,
    granted_bytes: AtomicUsize,
    wake: Notify,
}

impl Budget {
    /// A budget of `limit_bytes`, beside `own_bytes` that every connection may hold anyhow.
    pub fn new(limit_bytes: usize, own_bytes: usize) -> Arc<Self> {
        let used_bytes = AtomicUsize::new(0);
        Arc::new(Self { limit_bytes, own_bytes, used_bytes, line: Mutex::default() })
    }

    /// The share of a new connection.
    pub fn share(self: &Arc<Self>) -> Share {
        Share { budget: Arc::clone(self), account: Arc::default() }
    }

    /// Bytes that connections hold now beyond what is their own.
    pub fn used_bytes(&self) -> usize {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Changes what is used, then gives to those that wait.
    fn change(&self, line: &mut Line, add: usize, remove: usize) {
        line.used_bytes = (line.used_bytes + add).saturating_sub(remove);
        let mut at = 0;
        while let Some(account) = line.waiting.get(at) {
            let charged = account.charged_bytes.load(Ordering::Relaxed);
            let wanted = account.wanted_bytes.load(Ordering::Relaxed);
            let left = self.limit_bytes.saturating_sub(line.used_bytes).checked_sub(wanted);
            let fits = match left {
                Some(left) => charged == 0 || charged + wanted <= left,
                // More than there ever is goes alone.
                None => line.used_bytes == 0,
            };
            if fits {
                line.used_bytes += wanted;
                account.granted_bytes.store(wanted, Ordering::Relaxed);
                account.wake.notify_one();
                line.waiting.remove(at);
            } else if charged == 0 {
                break;
            } else {
                at += 1;
            }
        }
        self.used_bytes.store(line.used_bytes, Ordering::Relaxed);
    }
}

/// What one connection holds; given back when it is dropped.
pub struct Share {
    budget: Arc<Budget>,
    account: Arc<Account>,
}

impl Share {
    /// Whether `more_bytes` may be held beside the `held_bytes` that are. They are then set aside
    /// until the next [`Share::hold`]. If not, [`Share::turn`] returns once they are, and this is
    /// to be called again.
    pub fn ask(&self, held_bytes: usize, more_bytes: usize) -> bool {
        let own = self.budget.own_bytes;
        if held_bytes.saturating_add(more_bytes) <= own {
            return true;
        }
        let account = &self.account;
        let mut line = self.budget.line.lock();
        self.take_granted();
        let charged = account.charged_bytes.load(Ordering::Relaxed);
        if charged.saturating_sub(held_bytes.saturating_sub(own)) >= more_bytes {
            return true;
        }
        if line.waiting.iter().any(|waiting| Arc::ptr_eq(waiting, account)) {
            return false;
        }
        account.wanted_bytes.store(more_bytes, Ordering::Relaxed);
        line.waiting.push_back(Arc::clone(account));
        self.budget.change(&mut line, 0, 0);
        self.take_granted() > 0
    }

    /// Says how much is held now.
    pub fn hold(&self, held_bytes: usize) {
        let now = held_bytes.saturating_sub(self.budget.own_bytes);
        if now == self.account.charged_bytes.load(Ordering::Relaxed) {
            return;
        }
        let mut line = self.budget.line.lock();
        let before = self.account.charged_bytes.swap(now, Ordering::Relaxed);
        self.budget.change(&mut line, now, before);
    }

    /// Whether more is held than the budget has, because something came that nobody asked for.
    pub fn is_exhausted(&self) -> bool {
        self.budget.used_bytes() > self.budget.limit_bytes
    }

    /// Whether memory is better given back than kept for the next request.
    pub fn is_tight(&self) -> bool {
        self.budget.used_bytes() > self.budget.limit_bytes / 2
    }

    /// Returns once something that was asked for is granted, or after [`Share::nudge`].
    pub async fn turn(&self) {
        self.account.wake.notified().await;
    }

    /// Lets [`Share::turn`] return.
    pub fn nudge(&self) {
        self.account.wake.notify_one();
    }

    /// Adds what was granted to what is charged; the line is locked.
    fn take_granted(&self) -> usize {
        let granted = self.account.granted_bytes.swap(0, Ordering::Relaxed);
        self.account.charged_bytes.fetch_add(granted, Ordering::Relaxed);
        granted
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut line = self.budget.line.lock();
        line.waiting.retain(|waiting| !Arc::ptr_eq(waiting, &self.account));
        self.take_granted();
        let charged = self.account.charged_bytes.swap(0, Ordering::Relaxed);
        self.budget.change(&mut line, 0, charged);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWN: usize = 10;

    #[test]
    fn what_is_ones_own_waits_for_nobody() {
        let budget = Budget::new(100, OWN);
        let (one, other) = (budget.share(), budget.share());
        assert!(one.ask(0, 100));
        one.hold(110);
        assert_eq!(budget.used_bytes(), 100);
        assert!(other.ask(0, OWN));
        other.hold(OWN);
        assert!(!other.ask(OWN, 1), "all of the budget is in use");
        drop(one);
        assert!(other.ask(OWN, 1));
        assert_eq!(budget.used_bytes(), 1);
        drop(other);
        assert_eq!(budget.used_bytes(), 0);
    }

    /// Asks again and again for a part; returns how much it came to.
    fn take_all(share: &Share, part: usize) -> usize {
        let mut held = OWN;
        while share.ask(held, part) {
            held += part;
            share.hold(held);
        }
        held - OWN
    }

    #[test]
    fn who_takes_all_it_can_gets_a_part_and_leaves_as_much() {
        let budget = Budget::new(1200, OWN);
        let greedy: Vec<_> = (0..3).map(|_| budget.share()).collect();
        let parts: Vec<_> = greedy.iter().map(|share| take_all(share, 1)).collect();
        assert_eq!(parts, [600, 300, 150], "a half of what each finds");
        let late = budget.share();
        assert!(late.ask(OWN, 100), "who has nothing yet is let in past those that wait");
        late.hold(OWN + 100);
        // The greedy ones wait, for what they have themselves.
        greedy[0].hold(OWN);
        assert!(!greedy[1].ask(OWN + 300, 500));
        assert!(budget.used_bytes() <= 1200);
    }

    #[test]
    fn who_waits_with_nothing_is_passed_by_nobody() {
        let budget = Budget::new(100, OWN);
        let [first, large, small] = [0; 3].map(|_| budget.share());
        assert!(first.ask(OWN, 50));
        first.hold(OWN + 50);
        assert!(!large.ask(OWN, 80));
        assert!(!small.ask(OWN, 10), "though there is so much");
        first.hold(OWN);
        assert!(large.ask(OWN, 80), "its turn came");
        large.hold(OWN + 80);
        assert!(small.ask(OWN, 10));
        assert_eq!(budget.used_bytes(), 90);
        drop(large);
        drop(small);
        assert!(first.ask(OWN, 1000), "more than there is goes alone");
        first.hold(OWN + 1000);
        assert!(!first.ask(OWN + 1000, 1000), "one such at a time");
        drop(first);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn a_grant_outlives_what_is_held_meanwhile_and_goes_with_its_share() {
        let budget = Budget::new(100, OWN);
        let (one, other) = (budget.share(), budget.share());
        assert!(one.ask(OWN, 90));
        one.hold(OWN + 90);
        assert!(!other.ask(0, 40));
        one.hold(0);
        // It has come to hold what is its own before it looks.
        other.hold(OWN);
        assert_eq!(budget.used_bytes(), 40);
        assert!(other.ask(OWN, 40));
        one.hold(OWN + 60);
        assert!(!one.ask(OWN + 60, 40));
        drop(other);
        drop(one);
        assert_eq!(budget.used_bytes(), 0);
    }
}
