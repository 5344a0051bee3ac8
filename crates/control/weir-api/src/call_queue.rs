//! Permits for calls: limits how many calls of each token and user run at once.
//!
//! Limits of connections are in `slots`, memory limits of responses are in `answers`.
//!
//! A call takes its permit after the server has received the whole request. While the call waits
//! for its permit, its connection can be evicted: the server responds with 503 and does not run the
//! call.
//!
//! Invariants:
//! - one caller has at most [`TOKEN_CALLS_MAX`] permits;
//! - while [`SHARED_CALLS_MAX`] or more permits are taken, only callers without a permit get one;
//! - root and the user of the server wait for no permit.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::caller::Caller;
use crate::limits::{CALL_WAIT, CALLS_MAX, SHARED_CALLS_MAX, TOKEN_CALLS_MAX};
use crate::slots::{self, Slot};

tokio::task_local! {
    static PERMIT: CallPermit;
}

/// Releases the permit of the running call, because from now on the call only waits.
pub(crate) fn give_back_current() {
    // Calls of root and of peers run without a permit, so `PERMIT` is not set for them. Ignore that
    // error.
    PERMIT.try_with(CallPermit::give_back).ok();
}

/// Runs a call, and releases its permit when the call ends.
pub(crate) async fn within<T>(call_permit: Option<CallPermit>, call: impl Future<Output = T>) -> T {
    match call_permit {
        Some(call_permit) => PERMIT.scope(call_permit, call).await,
        None => call.await,
    }
}

/// All permits of a server to run calls.
#[derive(Default)]
pub(crate) struct CallQueue {
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    all: usize,
    of: HashMap<String, usize>,
}

/// A permit to run a call; dropping the value releases the permit.
pub(crate) struct CallPermit {
    call_queue: Arc<CallQueue>,
    account: String,
    is_taken: AtomicBool,
}

/// Result of waiting for a permit.
pub(crate) enum Admitted {
    /// The call may run.
    Now(Option<CallPermit>),
    /// The server responds with 503.
    No,
}

impl CallQueue {
    fn try_take(self: &Arc<Self>, account: &str) -> Option<CallPermit> {
        let mut taken = self.taken.lock();
        let own = taken.of.get(account).copied().unwrap_or_default();
        let most = if own == 0 { CALLS_MAX } else { SHARED_CALLS_MAX };
        if own >= TOKEN_CALLS_MAX || taken.all >= most {
            return None;
        }
        taken.all += 1;
        *taken.of.entry(account.to_owned()).or_default() += 1;
        let call_queue = Arc::clone(self);
        Some(CallPermit {
            call_queue,
            account: account.to_owned(),
            is_taken: AtomicBool::new(true),
        })
    }

    /// Waits for a permit for a call of the caller; `slot` is the slot of the connection.
    pub(crate) async fn take(
        self: &Arc<Self>,
        caller: &Caller,
        slot: Option<&Arc<Slot>>,
    ) -> Admitted {
        if caller.names_any_file() {
            return Admitted::Now(None);
        }
        if let Some(call_permit) = self.try_take(caller.account()) {
            return Admitted::Now(Some(call_permit));
        }
        let _yields = slot.map(Slot::queues);
        let call_permit = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                freed.as_mut().enable();
                if let Some(call_permit) = self.try_take(caller.account()) {
                    return call_permit;
                }
                freed.await;
            }
        };
        tokio::select! {
            biased;
            call_permit = call_permit => Admitted::Now(Some(call_permit)),
            () = slots::hurried(slot) => Admitted::No,
            () = tokio::time::sleep(CALL_WAIT) => Admitted::No,
        }
    }
}

impl CallPermit {
    fn give_back(&self) {
        if !self.is_taken.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut taken = self.call_queue.taken.lock();
        taken.all -= 1;
        if let Some(own) = taken.of.get_mut(&self.account) {
            *own -= 1;
            if *own == 0 {
                taken.of.remove(&self.account);
            }
        }
        drop(taken);
        self.call_queue.freed.notify_waiters();
    }
}

impl Drop for CallPermit {
    fn drop(&mut self) {
        self.give_back();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{Files, Rights};

    fn token(name: &str) -> Caller {
        let rights = Rights { files: Files::Named, ..Rights::everything() };
        let caller = Caller::new(format!("token {name} from 10.0.0.1"), rights);
        caller.of_account(format!("token {name}"))
    }

    async fn take(call_queue: &Arc<CallQueue>, name: &str) -> Option<CallPermit> {
        match call_queue.take(&token(name), None).await {
            Admitted::Now(call_permit) => call_permit,
            Admitted::No => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_limited_by_token_and_reserved_for_idle_tokens() {
        let call_queue = Arc::<CallQueue>::default();
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            for _ in 0..TOKEN_CALLS_MAX {
                held.push(take(&call_queue, name).await.expect("a permit"));
            }
            assert!(call_queue.try_take(&format!("token {name}")).is_none());
        }
        assert_eq!(held.len(), SHARED_CALLS_MAX);
        held.push(take(&call_queue, "d").await.expect("it has none"));
        assert!(take(&call_queue, "d").await.is_none(), "it waited in vain");
        let waits = tokio::spawn({
            let call_queue = Arc::clone(&call_queue);
            async move { take(&call_queue, "a").await.is_some() }
        });
        tokio::task::yield_now().await;
        // A call that only waits for events gives its permit back.
        let polls = held.remove(0);
        let other = held.remove(0);
        within(Some(polls), async { give_back_current() }).await;
        drop(other);
        assert!(waits.await.expect("no panic"));
        drop(held);
        assert!(call_queue.taken.lock().of.is_empty() && call_queue.taken.lock().all == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn permits_of_all_tokens_are_limited() {
        let call_queue = Arc::<CallQueue>::default();
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            for _ in 0..16 {
                held.push(take(&call_queue, name).await.expect("a permit"));
            }
        }
        for number in 0..16 {
            held.push(take(&call_queue, &number.to_string()).await.expect("it has none"));
        }
        assert!(take(&call_queue, "late").await.is_none(), "{} calls run", held.len());
        held.pop();
        assert!(take(&call_queue, "late").await.is_some());
    }

    #[tokio::test]
    async fn root_waits_for_no_permit() {
        let call_queue = Arc::<CallQueue>::default();
        let root = Caller::new("root (uid 0)", Rights::everything());
        for _ in 0..2 * CALLS_MAX {
            assert!(matches!(call_queue.take(&root, None).await, Admitted::Now(None)));
        }
    }
}
