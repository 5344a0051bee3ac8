//! Paths of events and of a pool's history.
//!
//! Not here: what is kept, and for how long ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, Query, State};
use parking_lot::Mutex;
use weir_base::names;

use super::{Shared, listed, to_end};
use crate::limits::{EVENT_PAUSE, EVENT_WAIT_MAX, EVENT_WAITS_MAX, EVENT_WAITS_OF_ONE_MAX};
use crate::slots::Slot;
use crate::types::page::PageQuery;
use crate::types::{EventList, EventQuery, HistoryList};
use crate::wire::{ApiError, ErrorBody};
use crate::{Error, caller, slots, turns};

/// Calls that wait for events for long, by the account of their callers.
static EVENT_WAITS: Mutex<BTreeMap<String, usize>> = Mutex::new(BTreeMap::new());

/// The right to wait for long.
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

/// Tells who changed what in a pool, and how that went.
#[utoipa::path(
    get, path = "/v1/pools/{pool}/history", operation_id = "pool_history", tag = "pool",
    params(
        ("pool" = String, Path, description = "Name of the pool, also of one that is gone"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
        ("limit" = Option<usize>, Query, description = "At most this many entries, up to 1000"),
    ),
    responses((status = 200, body = HistoryList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn history(
    State(control): State<Shared>,
    Path(pool): Path<String>,
    Query(page): Query<PageQuery>,
) -> Result<Json<HistoryList>, ApiError> {
    names::pool(&pool).map_err(Error::from)?;
    listed(page, async move { control.pool_history(pool).await }).await
}

/// Tells what happened; waits for it if asked to.
#[utoipa::path(
    get, path = "/v1/events", operation_id = "events", tag = "server",
    params(
        ("after" = Option<u64>, Query, description = "Only events with a higher number"),
        ("wait_ms" = Option<u64>, Query,
            description = "How long to wait for the next one if there is none; at most 4000"),
    ),
    responses((status = 200, body = EventList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn events(
    State(control): State<Shared>,
    Query(mut query): Query<EventQuery>,
) -> Result<Json<EventList>, ApiError> {
    let now = EventQuery { wait_ms: 0, ..query };
    if query.wait_ms == 0 {
        return to_end(async move { control.events(now).await }).await.map(Json);
    }
    // Where many wait already, short waits leave their connections free in between.
    let wait = Wait::take();
    let wait_max = if wait.is_some() { EVENT_WAIT_MAX } else { EVENT_PAUSE };
    query.wait_ms = query.wait_ms.min(wait_max.as_millis() as u64);
    // A call that waits takes no turn, and gives its connection up for a call of others.
    turns::give_back_current();
    let slot = slots::current();
    let _yields = slot.as_ref().map(Slot::polls);
    let waited = Arc::clone(&control);
    tokio::select! {
        biased;
        list = to_end(async move { waited.events(query).await }) => list.map(Json),
        () = slots::hurried(slot.as_ref()) => {
            to_end(async move { control.events(now).await }).await.map(Json)
        }
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
        // One of the last account.
        held.pop();
        drop(take("d").await.expect("its wait was given back"));
        assert!(take("e").await.is_some());
        drop(held);
        assert!(EVENT_WAITS.lock().is_empty());
    }
}
