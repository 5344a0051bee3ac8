//! Locks that serialize the calls that change a pool, one lock for each pool.
//!
//! The calls are in their own modules.
//!
//! Invariants:
//! - a call that waits for the disks of one pool delays no other pool;
//! - a forced export of a pool waits only for the call that holds the lock, never for queued calls.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, Notify, OwnedMutexGuard};

/// Lock of one pool, with the urgent calls that wait for it.
#[derive(Default)]
struct PoolLock {
    right: Arc<Mutex<()>>,
    /// Number of urgent calls that wait for the lock; they get it before queued calls.
    urgent: AtomicUsize,
    /// Signalled when no urgent call waits for the lock any more.
    calm: Notify,
}

/// An urgent call that waits for the lock; [`PoolLock::urgent`] counts the call until the value is
/// dropped.
struct Urgent(Arc<PoolLock>);

impl Urgent {
    fn new(turn: Arc<PoolLock>) -> Self {
        turn.urgent.fetch_add(1, Ordering::AcqRel);
        Self(turn)
    }
}

impl Drop for Urgent {
    fn drop(&mut self) {
        if self.0.urgent.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.calm.notify_waiters();
        }
    }
}

/// The locks of all pools, by pool name.
#[derive(Default)]
pub(crate) struct PoolLocks(parking_lot::Mutex<BTreeMap<String, Arc<PoolLock>>>);

impl PoolLocks {
    fn turn(&self, pool: &str) -> Arc<PoolLock> {
        let mut all = self.0.lock();
        // Drop locks of unused names; misspelled names would pile up.
        let used = |turn: &Arc<PoolLock>| Arc::strong_count(turn) > 1;
        all.retain(|name, turn| name == pool || used(turn) || Arc::strong_count(&turn.right) > 1);
        Arc::clone(all.entry(pool.to_owned()).or_default())
    }

    /// Waits for the lock of `pool`.
    pub(crate) async fn lock(&self, pool: &str) -> OwnedMutexGuard<()> {
        let turn = self.turn(pool);
        loop {
            let right = Arc::clone(&turn.right).lock_owned().await;
            // Create the future before the check of `urgent`, so that a signal between the two is
            // not missed.
            let calm = turn.calm.notified();
            if turn.urgent.load(Ordering::Acquire) == 0 {
                return right;
            }
            drop(right);
            calm.await;
        }
    }

    /// Takes the lock of `pool` if it is free and no urgent call waits for it.
    pub(crate) fn try_lock(&self, pool: &str) -> Option<OwnedMutexGuard<()>> {
        let turn = self.turn(pool);
        let right = Arc::clone(&turn.right).try_lock_owned().ok()?;
        (turn.urgent.load(Ordering::Acquire) == 0).then_some(right)
    }

    /// Waits for the lock of `pool` like [`Self::lock`], but gets it before all queued calls, as
    /// soon as the current holder releases it.
    pub(crate) async fn lock_first(&self, pool: &str) -> OwnedMutexGuard<()> {
        let urgent = Urgent::new(self.turn(pool));
        Arc::clone(&urgent.0.right).lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn pools_do_not_wait_for_each_other() {
        let changes = PoolLocks::default();
        let held = changes.lock("tank").await;
        assert!(changes.try_lock("tank").is_none() && changes.try_lock("other").is_some());
        drop(changes.lock("other").await);
        let wait = Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, changes.lock("tank")).await.is_err());
        drop(held);
        drop(changes.lock("tank").await);
        assert_eq!(changes.0.lock().len(), 1);
    }

    #[tokio::test]
    async fn urgent_call_overtakes_queued_calls() {
        let changes = Arc::new(PoolLocks::default());
        let held = changes.lock("tank").await;
        let order = Arc::new(parking_lot::Mutex::new(Vec::new()));
        let mut calls = Vec::new();
        for call in ["first", "second", "urgent"] {
            let (changes, order) = (Arc::clone(&changes), Arc::clone(&order));
            calls.push(tokio::spawn(async move {
                let _right = match call {
                    "urgent" => changes.lock_first("tank").await,
                    _ => changes.lock("tank").await,
                };
                order.lock().push(call);
                tokio::time::sleep(Duration::from_millis(5)).await;
            }));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        drop(held);
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(order.lock()[0], "urgent");
        assert_eq!(order.lock().len(), 3);
    }
}
