//! Permits for calls: limits how many calls of each token and user run at once.
//!
//! Connections are in `slots`, memory of responses is in `answers`.
//!
//! A call takes its permit after the server has received the whole request, so an incomplete body
//! holds none. A call without a permit waits, and its connection can be evicted meanwhile: the
//! server then responds with 503 and does not run the call.
//!
//! Invariants:
//! - one caller has at most [`TOKEN_CALLS_MAX`] permits;
//! - a caller with a permit gets no further one while [`SHARED_CALLS_MAX`] are taken: the rest is
//!   reserved for callers without one;
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
    static TURN: Turn;
}

/// Returns the permit of the running call, which from now on only waits.
pub(crate) fn give_back_current() {
    // Calls of root and of peers have no permit.
    TURN.try_with(Turn::give_back).ok();
}

/// Runs a call with its permit.
pub(crate) async fn within<T>(turn: Option<Turn>, call: impl Future<Output = T>) -> T {
    match turn {
        Some(turn) => TURN.scope(turn, call).await,
        None => call.await,
    }
}

/// All permits of a server.
#[derive(Default)]
pub(crate) struct Turns {
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    all: usize,
    of: HashMap<String, usize>,
}

/// A permit; dropping it returns it.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    account: String,
    is_taken: AtomicBool,
}

/// Result of a wait for a permit.
pub(crate) enum Admitted {
    /// The call may run.
    Now(Option<Turn>),
    /// The server responds with 503.
    No,
}

impl Turns {
    fn try_take(self: &Arc<Self>, account: &str) -> Option<Turn> {
        let mut taken = self.taken.lock();
        let own = taken.of.get(account).copied().unwrap_or_default();
        let most = if own == 0 { CALLS_MAX } else { SHARED_CALLS_MAX };
        if own >= TOKEN_CALLS_MAX || taken.all >= most {
            return None;
        }
        taken.all += 1;
        *taken.of.entry(account.to_owned()).or_default() += 1;
        let turns = Arc::clone(self);
        Some(Turn { turns, account: account.to_owned(), is_taken: AtomicBool::new(true) })
    }

    /// Waits for a permit for a caller; `slot` is the slot of its connection.
    pub(crate) async fn take(
        self: &Arc<Self>,
        caller: &Caller,
        slot: Option<&Arc<Slot>>,
    ) -> Admitted {
        if caller.names_any_file() {
            return Admitted::Now(None);
        }
        if let Some(turn) = self.try_take(caller.account()) {
            return Admitted::Now(Some(turn));
        }
        let _yields = slot.map(Slot::queues);
        let turn = async {
            loop {
                let mut freed = std::pin::pin!(self.freed.notified());
                freed.as_mut().enable();
                if let Some(turn) = self.try_take(caller.account()) {
                    return turn;
                }
                freed.await;
            }
        };
        tokio::select! {
            biased;
            turn = turn => Admitted::Now(Some(turn)),
            () = slots::hurried(slot) => Admitted::No,
            () = tokio::time::sleep(CALL_WAIT) => Admitted::No,
        }
    }
}

impl Turn {
    fn give_back(&self) {
        if !self.is_taken.swap(false, Ordering::Relaxed) {
            return;
        }
        let mut taken = self.turns.taken.lock();
        taken.all -= 1;
        if let Some(own) = taken.of.get_mut(&self.account) {
            *own -= 1;
            if *own == 0 {
                taken.of.remove(&self.account);
            }
        }
        drop(taken);
        self.turns.freed.notify_waiters();
    }
}

impl Drop for Turn {
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

    async fn take(turns: &Arc<Turns>, name: &str) -> Option<Turn> {
        match turns.take(&token(name), None).await {
            Admitted::Now(turn) => turn,
            Admitted::No => None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn permits_are_limited_by_token_and_reserved_for_idle_tokens() {
        let turns = Arc::<Turns>::default();
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            for _ in 0..TOKEN_CALLS_MAX {
                held.push(take(&turns, name).await.expect("a turn"));
            }
            assert!(turns.try_take(&format!("token {name}")).is_none());
        }
        assert_eq!(held.len(), SHARED_CALLS_MAX);
        held.push(take(&turns, "d").await.expect("it has none"));
        assert!(take(&turns, "d").await.is_none(), "it waited in vain");
        let waits = tokio::spawn({
            let turns = Arc::clone(&turns);
            async move { take(&turns, "a").await.is_some() }
        });
        tokio::task::yield_now().await;
        // A call that only waits for events returns its permit.
        let polls = held.remove(0);
        let other = held.remove(0);
        within(Some(polls), async { give_back_current() }).await;
        drop(other);
        assert!(waits.await.expect("no panic"));
        drop(held);
        assert!(turns.taken.lock().of.is_empty() && turns.taken.lock().all == 0);
    }

    #[tokio::test(start_paused = true)]
    async fn permits_of_all_tokens_are_limited() {
        let turns = Arc::<Turns>::default();
        let mut held = Vec::new();
        for name in ["a", "b", "c"] {
            for _ in 0..16 {
                held.push(take(&turns, name).await.expect("a turn"));
            }
        }
        for number in 0..16 {
            held.push(take(&turns, &number.to_string()).await.expect("it has none"));
        }
        assert!(take(&turns, "late").await.is_none(), "{} calls run", held.len());
        held.pop();
        assert!(take(&turns, "late").await.is_some());
    }

    #[tokio::test]
    async fn root_waits_for_no_permit() {
        let turns = Arc::<Turns>::default();
        let root = Caller::new("root (uid 0)", Rights::everything());
        for _ in 0..2 * CALLS_MAX {
            assert!(matches!(turns.take(&root, None).await, Admitted::Now(None)));
        }
    }
}
