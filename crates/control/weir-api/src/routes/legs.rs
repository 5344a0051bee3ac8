//! Paths of changing which disks a pool has.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::care::OneDisk;
use super::{Shared, to_end};
use crate::types::{PoolAttach, PoolChange, PoolDisk, PoolReplace, Request};
use crate::wire::{ApiError, ErrorBody};

/// Which disk joins which.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewDisk {
    /// Path, last part of the path, or guid of a disk of the vdev.
    pub(crate) disk: String,
    /// Absolute path of the new disk.
    pub(crate) new: String,
    /// Overwrite what it holds.
    #[serde(default)]
    pub(crate) force: bool,
}

/// Which disk takes which one's place.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct Successor {
    /// Path, last part of the path, or guid of the disk to be replaced.
    pub(crate) disk: String,
    /// Absolute path of the new disk; without it another one that has the same path now.
    #[serde(default)]
    pub(crate) new: Option<String>,
    /// Overwrite what it holds.
    #[serde(default)]
    pub(crate) force: bool,
    /// Let a good disk leave before the new one has everything, where both cannot be in the vdev.
    #[serde(default)]
    pub(crate) at_once: bool,
}

/// Adds a disk to a disk or mirror; a resilver writes everything to it.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/attach", operation_id = "pool_attach", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    request_body = NewDisk,
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn attach(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Json(NewDisk { disk, new, force }): Json<NewDisk>,
) -> Result<Json<PoolChange>, ApiError> {
    let request = PoolAttach { name, disk, new, force };
    request.check()?;
    to_end(async move { control.pool_attach(request).await }).await.map(Json)
}

/// Lets a disk take another's place; a resilver writes everything to it.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/replace", operation_id = "pool_replace", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    request_body = Successor,
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn replace(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Json(Successor { disk, new, force, at_once }): Json<Successor>,
) -> Result<Json<PoolChange>, ApiError> {
    let request = PoolReplace { name, disk, new, force, at_once };
    request.check()?;
    to_end(async move { control.pool_replace(request).await }).await.map(Json)
}

/// Takes a disk out of a mirror for good.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/detach", operation_id = "pool_detach", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    request_body = OneDisk,
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn detach(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Json(OneDisk { disk }): Json<OneDisk>,
) -> Result<Json<PoolChange>, ApiError> {
    let request = PoolDisk { name, disk };
    request.check()?;
    to_end(async move { control.pool_detach(request).await }).await.map(Json)
}
