//! Paths of pools.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::{Shared, success, to_end};
use crate::Error;
use crate::types::{
    ImportableList, PoolChange, PoolCreate, PoolCreated, PoolDestroy, PoolExport, PoolImport,
    PoolList, PoolScan, PoolStatus, Removed, Request,
};
use crate::wire::{ApiError, ErrorBody};

/// How to close a pool.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloseOptions {
    /// Also when its volumes are exported: those exports go away first.
    #[serde(default)]
    pub(crate) force: bool,
}

/// The proof that a pool's destruction is meant.
#[derive(Debug, Deserialize)]
pub(super) struct Confirm {
    /// The pool's name once more.
    #[serde(default)]
    confirm: String,
}

/// Lists the imported pools with their state.
#[utoipa::path(
    get, path = "/v1/pools", operation_id = "pool_list", tag = "pool",
    responses((status = 200, body = PoolList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(State(control): State<Shared>) -> Result<Json<PoolList>, ApiError> {
    to_end(async move { control.pool_list().await }).await.map(Json)
}

/// Makes a pool of disks.
#[utoipa::path(
    post, path = "/v1/pools", operation_id = "pool_create", tag = "pool",
    request_body = PoolCreate,
    responses(
        (status = 201, description = "Made now", body = PoolCreated),
        (status = 200, description = "It was there already", body = PoolCreated),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn create(
    State(control): State<Shared>,
    Json(request): Json<PoolCreate>,
) -> Result<(StatusCode, Json<PoolCreated>), ApiError> {
    request.check()?;
    let made = to_end(async move { control.pool_create(request).await }).await?;
    Ok((success(made.outcome()), Json(made)))
}

/// Tells the state of one pool.
#[utoipa::path(
    get, path = "/v1/pools/{pool}", operation_id = "pool_status", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    responses((status = 200, body = PoolStatus), (status = "default", body = ErrorBody)),
)]
pub(super) async fn status(
    State(control): State<Shared>,
    Path(pool): Path<String>,
) -> Result<Json<PoolStatus>, ApiError> {
    names::pool(&pool).map_err(Error::from)?;
    to_end(async move { control.pool_status(pool).await }).await.map(Json)
}

/// Destroys a pool and everything in it.
#[utoipa::path(
    delete, path = "/v1/pools/{pool}", operation_id = "pool_destroy", tag = "pool",
    params(
        ("pool" = String, Path, description = "Name of the pool"),
        ("confirm" = String, Query, description = "The pool's name once more"),
    ),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn destroy(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Query(Confirm { confirm }): Query<Confirm>,
) -> Result<Json<Removed>, ApiError> {
    let request = PoolDestroy { name, confirm };
    request.check()?;
    to_end(async move { control.pool_destroy(request).await }).await.map(Json)
}

/// Commits and closes a pool, so that it can be imported elsewhere.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/export", operation_id = "pool_export", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    request_body = CloseOptions,
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn export(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Json(options): Json<CloseOptions>,
) -> Result<Json<Removed>, ApiError> {
    let request = PoolExport { name, force: options.force };
    request.check()?;
    to_end(async move { control.pool_export(request).await }).await.map(Json)
}

/// Imports a pool.
#[utoipa::path(
    post, path = "/v1/import", operation_id = "pool_import", tag = "pool",
    request_body = PoolImport,
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn import(
    State(control): State<Shared>,
    Json(request): Json<PoolImport>,
) -> Result<Json<PoolChange>, ApiError> {
    request.check()?;
    to_end(async move { control.pool_import(request).await }).await.map(Json)
}

/// Looks for pools that could be imported; changes nothing.
#[utoipa::path(
    post, path = "/v1/import/scan", operation_id = "pool_scan", tag = "pool",
    request_body = PoolScan,
    responses((status = 200, body = ImportableList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn scan(
    State(control): State<Shared>,
    Json(request): Json<PoolScan>,
) -> Result<Json<ImportableList>, ApiError> {
    request.check()?;
    to_end(async move { control.pool_scan(request).await }).await.map(Json)
}
