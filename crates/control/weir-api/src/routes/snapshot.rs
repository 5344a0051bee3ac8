//! Paths of snapshots.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::{Shared, listed, success, to_end};
use crate::caller;
use crate::limits::{PAGE_ENTRIES_MAX, PEER_ENTRIES_MAX};
use crate::types::page::PageQuery;
use crate::types::{
    Request, SnapshotChange, SnapshotClone, SnapshotCreate, SnapshotDestroy, SnapshotList,
    SnapshotQuery, SnapshotRename, SnapshotRollback, SnapshotTag, SnapshotsDestroyed, VolumeChange,
    check_listed,
};
use crate::wire::{ApiError, ErrorBody};

/// Which snapshots to list.
#[derive(Debug, Deserialize)]
pub(super) struct Which {
    /// Only those of this pool or volume, or this one.
    pub(super) of: Option<String>,
}

/// Lists snapshots: by volume, oldest first.
#[utoipa::path(
    get, path = "/v1/snapshots", operation_id = "snapshot_list", tag = "snapshot",
    params(
        ("of" = Option<String>, Query,
        description = "Only those of this pool or volume, or this one"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
        ("limit" = Option<usize>, Query, description = "At most this many entries, up to 1000"),
    ),
    responses((status = 200, body = SnapshotList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(
    State(control): State<Shared>,
    Query(Which { of }): Query<Which>,
    Query(page): Query<PageQuery>,
) -> Result<Json<SnapshotList>, ApiError> {
    of.as_deref().map_or(Ok(()), check_listed)?;
    // Space of a snapshot takes reads: only the page is looked up.
    let all = page.after.is_none() && page.limit.is_none() && caller::current().peer().is_some();
    let most = if all { PEER_ENTRIES_MAX } else { PAGE_ENTRIES_MAX };
    let limit = Some(page.limit.unwrap_or(most).clamp(1, most));
    let query = SnapshotQuery { of, after: page.after, limit };
    let rest = PageQuery { after: None, limit: page.limit };
    listed(rest, async move { control.snapshot_list(query).await }).await
}

/// Takes snapshots at one moment: all or none.
#[utoipa::path(
    post, path = "/v1/snapshots", operation_id = "snapshot_create", tag = "snapshot",
    request_body = SnapshotCreate,
    responses(
        (status = 201, description = "Taken", body = SnapshotChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn create(
    State(control): State<Shared>,
    Json(request): Json<SnapshotCreate>,
) -> Result<(StatusCode, Json<SnapshotChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.snapshot_create(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}

/// Destroys snapshots, of each volume all or none; or only tells which and what that frees.
#[utoipa::path(
    post, path = "/v1/snapshots/destroy", operation_id = "snapshot_destroy", tag = "snapshot",
    request_body = SnapshotDestroy,
    responses((status = 200, body = SnapshotsDestroyed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn destroy(
    State(control): State<Shared>,
    Json(request): Json<SnapshotDestroy>,
) -> Result<Json<SnapshotsDestroyed>, ApiError> {
    request.check()?;
    to_end(async move { control.snapshot_destroy(request).await }).await.map(Json)
}

/// Keeps a snapshot from being destroyed until the tag is released.
#[utoipa::path(
    post, path = "/v1/snapshots/hold", operation_id = "snapshot_hold", tag = "snapshot",
    request_body = SnapshotTag,
    responses((status = 200, body = SnapshotChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn hold(
    State(control): State<Shared>,
    Json(request): Json<SnapshotTag>,
) -> Result<Json<SnapshotChange>, ApiError> {
    request.check()?;
    to_end(async move { control.snapshot_hold(request).await }).await.map(Json)
}

/// Takes a tag away.
#[utoipa::path(
    post, path = "/v1/snapshots/release", operation_id = "snapshot_release", tag = "snapshot",
    request_body = SnapshotTag,
    responses((status = 200, body = SnapshotChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn release(
    State(control): State<Shared>,
    Json(request): Json<SnapshotTag>,
) -> Result<Json<SnapshotChange>, ApiError> {
    request.check()?;
    to_end(async move { control.snapshot_release(request).await }).await.map(Json)
}

/// Gives a snapshot another name.
#[utoipa::path(
    post, path = "/v1/snapshots/rename", operation_id = "snapshot_rename", tag = "snapshot",
    request_body = SnapshotRename,
    responses((status = 200, body = SnapshotChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn rename(
    State(control): State<Shared>,
    Json(request): Json<SnapshotRename>,
) -> Result<Json<SnapshotChange>, ApiError> {
    request.check()?;
    to_end(async move { control.snapshot_rename(request).await }).await.map(Json)
}

/// Makes a volume what it was at a snapshot; what was written since is lost.
#[utoipa::path(
    post, path = "/v1/snapshots/rollback", operation_id = "snapshot_rollback", tag = "snapshot",
    request_body = SnapshotRollback,
    responses((status = 200, body = VolumeChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn rollback(
    State(control): State<Shared>,
    Json(request): Json<SnapshotRollback>,
) -> Result<Json<VolumeChange>, ApiError> {
    request.check()?;
    to_end(async move { control.snapshot_rollback(request).await }).await.map(Json)
}

/// Makes a volume that begins as a snapshot and shares its blocks.
#[utoipa::path(
    post, path = "/v1/snapshots/clone", operation_id = "snapshot_clone", tag = "snapshot",
    request_body = SnapshotClone,
    responses(
        (status = 201, description = "Made now", body = VolumeChange),
        (status = 200, description = "It was there already", body = VolumeChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn clone(
    State(control): State<Shared>,
    Json(request): Json<SnapshotClone>,
) -> Result<(StatusCode, Json<VolumeChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.snapshot_clone(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}
