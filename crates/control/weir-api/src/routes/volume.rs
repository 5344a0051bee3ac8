//! Paths of volumes.
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

use super::{Shared, listed, success, to_end};
use crate::Error;
use crate::types::page::PageQuery;
use crate::types::{
    PropertyValues, Removed, Request, Volume, VolumeChange, VolumeCopy, VolumeCreate,
    VolumeDestroy, VolumeList, VolumeRename, VolumeResize, VolumeSet,
};
use crate::wire::{ApiError, ErrorBody};

/// The size a volume shall have.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewSize {
    /// The new size; a multiple of 4096.
    pub(crate) size_bytes: u64,
}

/// The name a volume shall have.
#[derive(Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NewName {
    /// The new full name; of the same pool.
    pub(crate) to: String,
}

/// What goes with a volume that is destroyed.
#[derive(Debug, Deserialize)]
pub(super) struct DestroyOptions {
    /// Also its snapshots.
    #[serde(default)]
    recursive: bool,
}

/// Which volumes to list.
#[derive(Debug, Deserialize)]
pub(super) struct Which {
    /// Only those of this pool.
    pool: Option<String>,
}

/// Lists volumes, of one pool or of all.
#[utoipa::path(
    get, path = "/v1/volumes", operation_id = "volume_list", tag = "volume",
    params(
        ("pool" = Option<String>, Query, description = "Only those of this pool"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
        ("limit" = Option<usize>, Query, description = "At most this many entries, up to 1000"),
    ),
    responses((status = 200, body = VolumeList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(
    State(control): State<Shared>,
    Query(Which { pool }): Query<Which>,
    Query(page): Query<PageQuery>,
) -> Result<Json<VolumeList>, ApiError> {
    pool.as_deref().map_or(Ok(()), names::pool).map_err(Error::from)?;
    listed(page, async move { control.volume_list(pool).await }).await
}

/// Makes a thin volume.
#[utoipa::path(
    post, path = "/v1/volumes", operation_id = "volume_create", tag = "volume",
    request_body = VolumeCreate,
    responses(
        (status = 201, description = "Made now", body = VolumeChange),
        (status = 200, description = "It was there already", body = VolumeChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn create(
    State(control): State<Shared>,
    Json(request): Json<VolumeCreate>,
) -> Result<(StatusCode, Json<VolumeChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.volume_create(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}

/// Tells everything about one volume.
#[utoipa::path(
    get, path = "/v1/volumes/{pool}/{volume}", operation_id = "volume_show", tag = "volume",
    params(
        ("pool" = String, Path, description = "Name of the pool"),
        ("volume" = String, Path, description = "Name of the volume in the pool"),
    ),
    responses((status = 200, body = Volume), (status = "default", body = ErrorBody)),
)]
pub(super) async fn show(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
) -> Result<Json<Volume>, ApiError> {
    let name = full_name(&pool, &volume)?;
    to_end(async move { control.volume_show(name).await }).await.map(Json)
}

/// Changes properties; blocks written before keep what they were written with.
#[utoipa::path(
    patch, path = "/v1/volumes/{pool}/{volume}", operation_id = "volume_set", tag = "volume",
    params(
        ("pool" = String, Path, description = "Name of the pool"),
        ("volume" = String, Path, description = "Name of the volume in the pool"),
    ),
    request_body = PropertyValues,
    responses((status = 200, body = VolumeChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn set(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
    Json(properties): Json<PropertyValues>,
) -> Result<Json<VolumeChange>, ApiError> {
    let request = VolumeSet { name: full_name(&pool, &volume)?, properties };
    request.check()?;
    to_end(async move { control.volume_set(request).await }).await.map(Json)
}

/// Changes the size.
#[utoipa::path(
    put, path = "/v1/volumes/{pool}/{volume}/size", operation_id = "volume_resize",
    tag = "volume",
    params(
        ("pool" = String, Path, description = "Name of the pool"),
        ("volume" = String, Path, description = "Name of the volume in the pool"),
    ),
    request_body = NewSize,
    responses((status = 200, body = VolumeChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn resize(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
    Json(NewSize { size_bytes }): Json<NewSize>,
) -> Result<Json<VolumeChange>, ApiError> {
    let request = VolumeResize { name: full_name(&pool, &volume)?, size_bytes };
    request.check()?;
    to_end(async move { control.volume_resize(request).await }).await.map(Json)
}

/// Gives a volume another name; its exports keep theirs and go on.
#[utoipa::path(
    post, path = "/v1/volumes/{pool}/{volume}/rename", operation_id = "volume_rename",
    tag = "volume",
    params(
        ("pool" = String, Path, description = "Name of the pool"),
        ("volume" = String, Path, description = "Name of the volume in the pool"),
    ),
    request_body = NewName,
    responses((status = 200, body = VolumeChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn rename(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
    Json(NewName { to }): Json<NewName>,
) -> Result<Json<VolumeChange>, ApiError> {
    let request = VolumeRename { name: full_name(&pool, &volume)?, to };
    request.check()?;
    to_end(async move { control.volume_rename(request).await }).await.map(Json)
}

/// Makes a volume that holds what another one or a snapshot holds, and depends on neither.
#[utoipa::path(
    post, path = "/v1/volumes/copy", operation_id = "volume_copy", tag = "volume",
    request_body = VolumeCopy,
    responses(
        (status = 201, description = "Made now", body = VolumeChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn copy(
    State(control): State<Shared>,
    Json(request): Json<VolumeCopy>,
) -> Result<(StatusCode, Json<VolumeChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.volume_copy(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}

/// Lets a clone take over its origin; the volume it was cloned from becomes its clone.
#[utoipa::path(
    post, path = "/v1/volumes/{pool}/{volume}/promote", operation_id = "volume_promote",
    tag = "volume",
    params(
        ("pool" = String, Path, description = "Name of the pool"),
        ("volume" = String, Path, description = "Name of the volume in the pool"),
    ),
    responses((status = 200, body = VolumeChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn promote(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
) -> Result<Json<VolumeChange>, ApiError> {
    let name = full_name(&pool, &volume)?;
    to_end(async move { control.volume_promote(name).await }).await.map(Json)
}

/// Destroys a volume and its data.
#[utoipa::path(
    delete, path = "/v1/volumes/{pool}/{volume}", operation_id = "volume_destroy",
    tag = "volume",
    params(
        ("pool" = String, Path, description = "Name of the pool"),
        ("volume" = String, Path, description = "Name of the volume in the pool"),
        ("recursive" = Option<bool>, Query, description = "Also destroy its snapshots"),
    ),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn destroy(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
    Query(DestroyOptions { recursive }): Query<DestroyOptions>,
) -> Result<Json<Removed>, ApiError> {
    let request = VolumeDestroy { name: full_name(&pool, &volume)?, recursive };
    to_end(async move { control.volume_destroy(request).await }).await.map(Json)
}

pub(super) fn full_name(pool: &str, volume: &str) -> Result<String, Error> {
    let name = format!("{pool}/{volume}");
    names::volume(&name)?;
    Ok(name)
}
