//! Paths of adding and removing vdevs.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Shared, to_end};
use crate::types::{PoolAdd, PoolChange, PoolRemove, Request, VdevSpec};
use crate::wire::{ApiError, ErrorBody};

/// Which vdevs join.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewVdevs {
    /// The new vdevs.
    pub(crate) vdevs: Vec<VdevSpec>,
    /// Overwrite what their disks hold, and mix redundancies.
    #[serde(default)]
    pub(crate) force: bool,
}

/// Which vdev leaves.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneVdev {
    /// `mirror-0` and the like, or its only disk.
    pub(crate) vdev: String,
    /// End the removal that is under way.
    #[serde(default)]
    pub(crate) stop: bool,
}

/// Adds vdevs for data, for the log, or as spares.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/add", operation_id = "pool_add", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    request_body = NewVdevs,
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn add(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Json(NewVdevs { vdevs, force }): Json<NewVdevs>,
) -> Result<Json<PoolChange>, ApiError> {
    let request = PoolAdd { name, vdevs, force };
    request.check()?;
    to_end(async move { control.pool_add(request).await }).await.map(Json)
}

/// Removes a vdev: what it holds moves to the others while the pool is in use.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/remove", operation_id = "pool_remove", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    request_body = OneVdev,
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn remove(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Json(OneVdev { vdev, stop }): Json<OneVdev>,
) -> Result<Json<PoolChange>, ApiError> {
    let request = PoolRemove { name, vdev, stop };
    request.check()?;
    to_end(async move { control.pool_remove(request).await }).await.map(Json)
}

/// Lets the pool use all of its disks, where they became larger.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/expand", operation_id = "pool_expand", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn expand(
    State(control): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<PoolChange>, ApiError> {
    weir_base::names::pool(&name).map_err(crate::Error::from)?;
    to_end(async move { control.pool_expand(name).await }).await.map(Json)
}
