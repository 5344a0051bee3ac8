//! Paths of schedules.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: the name of what is scheduled is one path part; a `/` in it travels as `%2F`.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;

use super::{Shared, listed, success, to_end};
use crate::types::page::PageQuery;
use crate::types::{Removed, Request, ScheduleChange, ScheduleList, ScheduleSet, check_scheduled};
use crate::wire::{ApiError, ErrorBody};

/// Lists schedules.
#[utoipa::path(
    get, path = "/v1/schedules", operation_id = "schedule_list", tag = "schedule",
    params(
        ("after" = Option<String>, Query, description = "`next` of the page before"),
        ("limit" = Option<usize>, Query, description = "At most this many entries, up to 1000"),
    ),
    responses((status = 200, body = ScheduleList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(
    State(control): State<Shared>,
    Query(page): Query<PageQuery>,
) -> Result<Json<ScheduleList>, ApiError> {
    listed(page, async move { control.schedule_list().await }).await
}

/// Lets the server take snapshots of a volume, or of all volumes of a pool, from now on.
#[utoipa::path(
    post, path = "/v1/schedules", operation_id = "schedule_set", tag = "schedule",
    request_body = ScheduleSet,
    responses(
        (status = 201, description = "Made now", body = ScheduleChange),
        (status = 200, description = "There was one already", body = ScheduleChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn set(
    State(control): State<Shared>,
    Json(request): Json<ScheduleSet>,
) -> Result<(StatusCode, Json<ScheduleChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.schedule_set(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}

/// Forgets a schedule; the snapshots it took stay.
#[utoipa::path(
    delete, path = "/v1/schedules/{name}", operation_id = "schedule_clear", tag = "schedule",
    params(("name" = String, Path, description = "The volume or pool; write `/` as `%2F`")),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn clear(
    State(control): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<Removed>, ApiError> {
    check_scheduled(&name)?;
    to_end(async move { control.schedule_clear(name).await }).await.map(Json)
}
