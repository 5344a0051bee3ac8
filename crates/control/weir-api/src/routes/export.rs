//! Paths of exports.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: an export's name is one path part; a `/` in it travels as `%2F`.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Force, Shared, listed, success, to_end};
use crate::types::page::PageQuery;
use crate::types::{
    Export, ExportChange, ExportCreate, ExportKey, ExportList, ExportSet, Protocol, Removed,
    Request,
};
use crate::wire::{ApiError, ErrorBody};

/// Who may open an export over TCP.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExportClients {
    /// Addresses and networks (`10.0.0.7`, `10.0.0.0/24`), the whole list; all that the server
    /// takes if empty.
    pub(crate) allow: Vec<String>,
}

/// Lists exports.
#[utoipa::path(
    get, path = "/v1/exports", operation_id = "export_list", tag = "export",
    params(
        ("after" = Option<String>, Query, description = "`next` of the page before"),
        ("limit" = Option<usize>, Query, description = "At most this many entries, up to 1000"),
    ),
    responses((status = 200, body = ExportList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(
    State(control): State<Shared>,
    Query(page): Query<PageQuery>,
) -> Result<Json<ExportList>, ApiError> {
    listed(page, async move { control.export_list().await }).await
}

/// Offers a volume to clients.
#[utoipa::path(
    post, path = "/v1/exports", operation_id = "export_create", tag = "export",
    request_body = ExportCreate,
    responses(
        (status = 201, description = "Made now", body = ExportChange),
        (status = 200, description = "It was there already", body = ExportChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn create(
    State(control): State<Shared>,
    Json(request): Json<ExportCreate>,
) -> Result<(StatusCode, Json<ExportChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.export_create(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}

/// Tells everything about one export.
#[utoipa::path(
    get, path = "/v1/exports/{protocol}/{name}", operation_id = "export_show", tag = "export",
    params(
        ("protocol" = Protocol, Path, description = "How it is served"),
        ("name" = String, Path, description = "Name of the export; write `/` as `%2F`"),
    ),
    responses((status = 200, body = Export), (status = "default", body = ErrorBody)),
)]
pub(super) async fn show(
    State(control): State<Shared>,
    Path((protocol, name)): Path<(Protocol, String)>,
) -> Result<Json<Export>, ApiError> {
    let key = ExportKey { protocol, name };
    key.check()?;
    to_end(async move { control.export_show(key).await }).await.map(Json)
}

/// Names the addresses from which clients may open an export over TCP; connected clients of others
/// are cut off.
#[utoipa::path(
    put, path = "/v1/exports/{protocol}/{name}", operation_id = "export_set", tag = "export",
    params(
        ("protocol" = Protocol, Path, description = "How it is served"),
        ("name" = String, Path, description = "Name of the export; write `/` as `%2F`"),
    ),
    request_body = ExportClients,
    responses((status = 200, body = ExportChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn set(
    State(control): State<Shared>,
    Path((protocol, name)): Path<(Protocol, String)>,
    Json(ExportClients { allow }): Json<ExportClients>,
) -> Result<Json<ExportChange>, ApiError> {
    let request = ExportSet { key: ExportKey { protocol, name }, allow };
    request.check()?;
    to_end(async move { control.export_set(request).await }).await.map(Json)
}

/// Stops offering an export.
#[utoipa::path(
    delete, path = "/v1/exports/{protocol}/{name}", operation_id = "export_delete",
    tag = "export",
    params(
        ("protocol" = Protocol, Path, description = "How it is served"),
        ("name" = String, Path, description = "Name of the export; write `/` as `%2F`"),
        ("force" = Option<bool>, Query, description = "Cut connected clients off"),
    ),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn delete(
    State(control): State<Shared>,
    Path((protocol, name)): Path<(Protocol, String)>,
    Query(Force { force }): Query<Force>,
) -> Result<Json<Removed>, ApiError> {
    let key = ExportKey { protocol, name };
    key.check()?;
    to_end(async move { control.export_delete(key, force).await }).await.map(Json)
}
