//! Paths of looking after a pool: scrub, and disks out of use and back.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::{Path, State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Shared, to_end};
use crate::types::{PoolChange, PoolClear, PoolDisk, PoolOnline, PoolScrub, Request, ScrubAction};
use crate::wire::{ApiError, ErrorBody};

/// What to do with the scrub.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScrubOptions {
    /// What to do.
    #[serde(default)]
    pub(crate) action: ScrubAction,
}

/// Which disk.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct OneDisk {
    /// Path, last part of the path, or guid of the disk.
    pub(crate) disk: String,
}

/// Which disk, and where it is now.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MovedDisk {
    /// Path, last part of the path, or guid of the disk.
    pub(crate) disk: String,
    /// Absolute path of the disk now, where that is another one than before. The label there says
    /// which disk it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) at: Option<String>,
}

/// What to clear.
#[derive(Debug, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SomeDisks {
    /// Path, last part of the path, or guid of the disk; all without it.
    #[serde(default)]
    pub(crate) disk: Option<String>,
    /// Also give up the datasets with unreadable records: their space becomes free, so that no
    /// later import can restore them.
    #[serde(default)]
    pub(crate) lost: bool,
}

/// Starts, pauses or stops a scrub: every copy of everything is read and verified, and bad ones are
/// rewritten from good ones.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/scrub", operation_id = "pool_scrub", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    request_body = ScrubOptions,
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn scrub(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Json(options): Json<ScrubOptions>,
) -> Result<Json<PoolChange>, ApiError> {
    let request = PoolScrub { name, action: options.action };
    request.check()?;
    to_end(async move { control.pool_scrub(request).await }).await.map(Json)
}

/// Takes a disk of a mirror out of use until it is brought online or the pool is opened again.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/offline", operation_id = "pool_offline", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    request_body = OneDisk,
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn offline(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Json(OneDisk { disk }): Json<OneDisk>,
) -> Result<Json<PoolChange>, ApiError> {
    let request = PoolDisk { name, disk };
    request.check()?;
    to_end(async move { control.pool_offline(request).await }).await.map(Json)
}

/// Brings a disk online, also at another path than before, and starts a resilver.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/online", operation_id = "pool_online", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    request_body = MovedDisk,
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn online(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Json(MovedDisk { disk, at }): Json<MovedDisk>,
) -> Result<Json<PoolChange>, ApiError> {
    let request = PoolOnline { name, disk, at };
    request.check()?;
    to_end(async move { control.pool_online(request).await }).await.map(Json)
}

/// Sets error counts to zero and takes faulted disks into use again.
#[utoipa::path(
    post, path = "/v1/pools/{pool}/clear", operation_id = "pool_clear", tag = "pool",
    params(("pool" = String, Path, description = "Name of the pool")),
    request_body = SomeDisks,
    responses((status = 200, body = PoolChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn clear(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Json(SomeDisks { disk, lost }): Json<SomeDisks>,
) -> Result<Json<PoolChange>, ApiError> {
    let request = PoolClear { name, disk, lost };
    request.check()?;
    to_end(async move { control.pool_clear(request).await }).await.map(Json)
}
