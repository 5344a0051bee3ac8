//! Paths of events and of a pool's history.
//!
//! Not here: what is kept, and for how long ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::{Path, Query, State};
use tokio::sync::Semaphore;
use weir_base::names;

use super::{Shared, to_end};
use crate::Error;
use crate::limits::{EVENT_PAUSE, EVENT_WAIT_MAX, EVENT_WAITS_MAX};
use crate::types::{EventList, EventQuery, HistoryList};
use crate::wire::{ApiError, ErrorBody};

/// Calls that wait for events for long.
static EVENT_WAITS: Semaphore = Semaphore::const_new(EVENT_WAITS_MAX);

/// Tells who changed what in a pool, and how that went.
#[utoipa::path(
    get, path = "/v1/pools/{pool}/history", operation_id = "pool_history", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool, also of one that is gone")),
    responses((status = 200, body = HistoryList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn history(
    State(control): State<Shared>,
    Path(pool): Path<String>,
) -> Result<Json<HistoryList>, ApiError> {
    names::pool(&pool).map_err(Error::from)?;
    to_end(async move { control.pool_history(pool).await }).await.map(Json)
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
    // Where many wait already, short waits leave their connections free in between.
    let permit = EVENT_WAITS.try_acquire();
    let wait_max = if permit.is_ok() { EVENT_WAIT_MAX } else { EVENT_PAUSE };
    query.wait_ms = query.wait_ms.min(wait_max.as_millis() as u64);
    to_end(async move { control.events(query).await }).await.map(Json)
}
