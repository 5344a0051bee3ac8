//! The long poll for events.
//!
//! The server keeps the events and waits for new ones.
//!
//! Invariant: a poll that waits holds no permit, and its connection can be evicted when another
//! connection needs the slot.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

use super::endpoint::{Answered, Endpoint, authorized};
use crate::calls::table::Control;
use crate::limits::{EVENT_PAUSE, EVENT_WAIT_MAX, EVENT_WAITS_MAX, EVENT_WAITS_OF_ONE_MAX};
use crate::slots::Slot;
use crate::types::{ListEvents, Page};
use crate::{call_queue, caller, slots};

/// Number of waiting long polls for events, by the account of the caller.
static EVENT_WAITS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// Permit of an account for one long poll.
struct Wait(String);

impl Wait {
    fn take() -> Option<Self> {
        let account = caller::current().account().to_owned();
        let mut waits = EVENT_WAITS.lock();
        let own = waits.get(&account).copied().unwrap_or_default();
        let all: usize = waits.values().sum();
        (all < EVENT_WAITS_MAX && own < EVENT_WAITS_OF_ONE_MAX).then(|| {
            waits.insert(account.clone(), own + 1);
            Self(account)
        })
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let mut waits = EVENT_WAITS.lock();
        if let Some(own) = waits.get_mut(&self.0) {
            *own -= 1;
            if *own == 0 {
                waits.remove(&self.0);
            }
        }
    }
}

/// Returns the endpoint of events.
pub(super) fn endpoint<S: Control>(control: &Arc<S>) -> Endpoint {
    Endpoint::new(control, |control, call, page| Box::pin(events(control, call, page)))
}

async fn events<S: Control>(control: Arc<S>, mut call: ListEvents, page: Page) -> Answered {
    let now = ListEvents { wait_ms: 0, ..call };
    if call.wait_ms == 0 {
        return authorized(control, now, page).await;
    }
    // If too many polls already wait, this poll waits at most [`EVENT_PAUSE`], so that its
    // connection soon becomes free.
    let wait = Wait::take();
    let wait_max = if wait.is_some() { EVENT_WAIT_MAX } else { EVENT_PAUSE };
    call.wait_ms = call.wait_ms.min(wait_max.as_millis() as u64);
    // From here on the call only waits: it holds no permit, and its connection can be evicted.
    call_queue::give_back_current();
    let slot = slots::current();
    let _yields = slot.as_ref().map(Slot::polls);
    let waited = authorized(Arc::clone(&control), call, page.clone());
    tokio::select! {
        biased;
        list = waited => list,
        () = slots::hurried(slot.as_ref()) => authorized(control, now, page).await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::Rights;
    use crate::caller::{Caller, on_behalf_of};

    async fn take(account: &str) -> Option<Wait> {
        let caller = Caller::new(account, Rights::everything());
        on_behalf_of(caller, async { Wait::take() }).await
    }

    #[tokio::test]
    async fn long_waits_for_events_are_limited_by_account_and_in_all() {
        let mut held = Vec::new();
        for account in ["a", "b", "c", "d"] {
            for _ in 0..8 {
                held.push(take(account).await.expect("a long wait"));
            }
            assert!(take(account).await.is_none(), "{account} has its share");
        }
        assert!(take("e").await.is_none(), "{} wait", held.len());
        // End one long poll of account `d`.
        held.pop();
        drop(take("d").await.expect("its wait was given back"));
        assert!(take("e").await.is_some());
        drop(held);
        assert!(EVENT_WAITS.lock().is_empty());
    }
}
