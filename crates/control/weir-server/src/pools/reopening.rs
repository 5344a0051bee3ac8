//! Opens a pool again that is suspended, or that could not be opened.
//!
//! Other uses of `pool clear` are in `maintenance_calls`.
//!
//! Invariants:
//! - the pool loses the changes that were not durable, as in a crash of the server. NBD clients
//!   lose their connection, logical units report POWER ON, NFS clients send unstable data again,
//!   and programs on a mount get errors until it is mounted again;
//! - exports, logical units, shares and mount points return with the pool.

use weir_api::ApiError;

use crate::answer::errors::not_found;
use crate::answer::names::Of;
use crate::state::server::{Entry, Manager};

impl Manager {
    /// True if [`Self::reopen_pool`] can help: the pool is suspended or could not be opened.
    pub(crate) fn is_down(&self, name: &str) -> bool {
        match self.pools.read().get(name) {
            Some(Entry::Open(pool)) => pool.engine.pool().check_alive().is_err(),
            Some(Entry::Unavailable(_)) => true,
            None => false,
        }
    }

    /// Closes the pool if it is open, and opens it again. The caller does not hold the lock of the
    /// pool.
    ///
    /// # Errors
    /// `Busy` while a call uses the pool; the errors of an import. The pool stays listed as
    /// unavailable then.
    pub(crate) async fn reopen_pool(&self, name: &str) -> Result<(), ApiError> {
        let known = self.state.lock().state.pools.iter().find(|pool| pool.name == name).cloned();
        let known = known.ok_or_else(|| not_found("pool", name))?;
        {
            let _changes = self.right_by_force(name).await;
            if !self.is_down(name) {
                // Another call has opened the pool, or exported it.
                return self.pool(name).map(drop);
            }
            self.suspend_shares(Of::Pool(name), "its pool is being opened again");
            self.withdraw_pool(name);
            self.suspend_while(name, self.unmount_pool(name, true)).await?;
            let why = "it is being opened again".to_owned();
            let before = self.pools.write().insert(name.to_owned(), Entry::Unavailable(why));
            if let Some(Entry::Open(pool)) = before
                && let Err(error) = self.close(pool).await
            {
                // A suspended pool accepts no last commit, so an error is expected.
                tracing::info!(pool = name, %error, "suspended pool closed");
            }
            self.wait_for_ends(Of::Pool(name)).await?;
        }
        self.reopen(known).await;
        self.pool(name).map(drop)
    }
}
