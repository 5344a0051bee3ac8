//! Paths of replications, and of digests, which they compare.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;

use super::{Shared, listed, success, to_end};
use crate::types::page::PageQuery;
use crate::types::{
    DigestList, DigestRequest, ReplicationAct, ReplicationChange, ReplicationCreate,
    ReplicationList, ReplicationRemoved, Request,
};
use crate::wire::{ApiError, ErrorBody};

/// Lets the server replicate a volume to another server from now on.
#[utoipa::path(
    post, path = "/v1/replications", operation_id = "replication_create", tag = "replication",
    request_body = ReplicationCreate,
    responses(
        (status = 201, description = "Kept now", body = ReplicationChange),
        (status = 200, description = "It is so already", body = ReplicationChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn create(
    State(control): State<Shared>,
    Json(request): Json<ReplicationCreate>,
) -> Result<(StatusCode, Json<ReplicationChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.replication_create(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}

/// Lists replications by volume.
#[utoipa::path(
    get, path = "/v1/replications", operation_id = "replication_list", tag = "replication",
    params(
        ("after" = Option<String>, Query, description = "`next` of the page before"),
        ("limit" = Option<usize>, Query, description = "At most this many entries, up to 1000"),
    ),
    responses((status = 200, body = ReplicationList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(
    State(control): State<Shared>,
    Query(page): Query<PageQuery>,
) -> Result<Json<ReplicationList>, ApiError> {
    listed(page, async move { control.replication_list().await }).await
}

/// Starts a run or a comparison, or pauses and resumes a replication.
#[utoipa::path(
    post, path = "/v1/replications/act", operation_id = "replication_act", tag = "replication",
    request_body = ReplicationAct,
    responses((status = 200, body = ReplicationChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn act(
    State(control): State<Shared>,
    Json(request): Json<ReplicationAct>,
) -> Result<Json<ReplicationChange>, ApiError> {
    request.check()?;
    to_end(async move { control.replication_act(request).await }).await.map(Json)
}

/// Deletes a replication and releases its holds on both servers; all snapshots stay.
#[utoipa::path(
    delete, path = "/v1/replications/{pool}/{volume}", operation_id = "replication_delete",
    tag = "replication",
    params(
        ("pool" = String, Path, description = "The pool's name"),
        ("volume" = String, Path, description = "The volume's name inside the pool"),
    ),
    responses((status = 200, body = ReplicationRemoved), (status = "default", body = ErrorBody)),
)]
pub(super) async fn delete(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
) -> Result<Json<ReplicationRemoved>, ApiError> {
    let name = super::volume::full_name(&pool, &volume)?;
    to_end(async move { control.replication_delete(name).await }).await.map(Json)
}

/// Digests ranges of a snapshot: equal content has equal digests, wherever it is.
#[utoipa::path(
    post, path = "/v1/snapshots/digest", operation_id = "snapshot_digest", tag = "snapshot",
    request_body = DigestRequest,
    responses((status = 200, body = DigestList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn digest(
    State(control): State<Shared>,
    Json(request): Json<DigestRequest>,
) -> Result<Json<DigestList>, ApiError> {
    request.check()?;
    to_end(async move { control.snapshot_digest(request).await }).await.map(Json)
}
