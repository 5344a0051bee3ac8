//! One changing call at a time, per pool.
//!
//! Not here: the calls.
//!
//! Invariant: a call that waits for the disks of one pool holds up no other pool.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::sync::{Mutex, OwnedMutexGuard};

/// The right to change a pool, by the pool's name.
#[derive(Default)]
pub(super) struct Changes(parking_lot::Mutex<BTreeMap<String, Arc<Mutex<()>>>>);

impl Changes {
    /// Waits for the right to change `pool`.
    pub(super) async fn lock(&self, pool: &str) -> OwnedMutexGuard<()> {
        let own = {
            let mut all = self.0.lock();
            // Names nobody uses now are forgotten, so that mistyped ones do not pile up.
            all.retain(|name, lock| name == pool || Arc::strong_count(lock) > 1);
            Arc::clone(all.entry(pool.to_owned()).or_default())
        };
        own.lock_owned().await
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn pools_do_not_wait_for_each_other() {
        let changes = Changes::default();
        let held = changes.lock("tank").await;
        drop(changes.lock("other").await);
        let wait = Duration::from_millis(20);
        assert!(tokio::time::timeout(wait, changes.lock("tank")).await.is_err());
        drop(held);
        drop(changes.lock("tank").await);
        assert_eq!(changes.0.lock().len(), 1);
    }
}
