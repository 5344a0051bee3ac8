//! Paths of iSCSI targets.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: names of targets and initiators are one path part each.

use axum::Json;
use axum::extract::{Path, Query, State};
use axum::http::StatusCode;

use super::{Force, Shared, listed, success, to_end};
use crate::types::page::PageQuery;
use crate::types::{
    InitiatorAllow, InitiatorKey, LunAdd, LunKey, Removed, Request, Target, TargetChange,
    TargetCreate, TargetKey, TargetList,
};
use crate::wire::{ApiError, ErrorBody};

/// Lists targets.
#[utoipa::path(
    get, path = "/v1/targets", operation_id = "target_list", tag = "target",
    params(
        ("after" = Option<String>, Query, description = "`next` of the page before"),
        ("limit" = Option<usize>, Query, description = "At most this many entries, up to 1000"),
    ),
    responses((status = 200, body = TargetList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(
    State(control): State<Shared>,
    Query(page): Query<PageQuery>,
) -> Result<Json<TargetList>, ApiError> {
    listed(page, async move { control.target_list().await }).await
}

/// Makes a target that nobody may log in to yet.
#[utoipa::path(
    post, path = "/v1/targets", operation_id = "target_create", tag = "target",
    request_body = TargetCreate,
    responses(
        (status = 201, description = "Made now", body = TargetChange),
        (status = 200, description = "It was there already", body = TargetChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn create(
    State(control): State<Shared>,
    Json(request): Json<TargetCreate>,
) -> Result<(StatusCode, Json<TargetChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.target_create(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}

/// Tells everything about one target, its sessions included.
#[utoipa::path(
    get, path = "/v1/targets/{name}", operation_id = "target_show", tag = "target",
    params(("name" = String, Path, description = "iSCSI name of the target")),
    responses((status = 200, body = Target), (status = "default", body = ErrorBody)),
)]
pub(super) async fn show(
    State(control): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<Target>, ApiError> {
    let key = TargetKey { name };
    key.check()?;
    to_end(async move { control.target_show(key).await }).await.map(Json)
}

/// Removes a target.
#[utoipa::path(
    delete, path = "/v1/targets/{name}", operation_id = "target_delete", tag = "target",
    params(
        ("name" = String, Path, description = "iSCSI name of the target"),
        ("force" = Option<bool>, Query, description = "End the sessions of initiators"),
    ),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn delete(
    State(control): State<Shared>,
    Path(name): Path<String>,
    Query(Force { force }): Query<Force>,
) -> Result<Json<Removed>, ApiError> {
    let key = TargetKey { name };
    key.check()?;
    to_end(async move { control.target_delete(key, force).await }).await.map(Json)
}

/// Lets an initiator log in from now on, or on other conditions.
#[utoipa::path(
    post, path = "/v1/initiators", operation_id = "target_allow", tag = "target",
    request_body = InitiatorAllow,
    responses(
        (status = 201, description = "Allowed now", body = TargetChange),
        (status = 200, description = "It was allowed already", body = TargetChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn allow(
    State(control): State<Shared>,
    Json(request): Json<InitiatorAllow>,
) -> Result<(StatusCode, Json<TargetChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.target_allow(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}

/// Lets an initiator log in no longer; its sessions are ended.
#[utoipa::path(
    delete, path = "/v1/initiators/{target}/{initiator}", operation_id = "target_deny",
    tag = "target",
    params(
        ("target" = String, Path, description = "iSCSI name of the target"),
        ("initiator" = String, Path, description = "iSCSI name of the initiator, or `*`"),
    ),
    responses((status = 200, body = TargetChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn deny(
    State(control): State<Shared>,
    Path((target, initiator)): Path<(String, String)>,
) -> Result<Json<TargetChange>, ApiError> {
    let key = InitiatorKey { target, initiator };
    key.check()?;
    to_end(async move { control.target_deny(key).await }).await.map(Json)
}

/// Shows a volume or snapshot at a target.
#[utoipa::path(
    post, path = "/v1/luns", operation_id = "lun_add", tag = "target",
    request_body = LunAdd,
    responses(
        (status = 201, description = "Added now", body = TargetChange),
        (status = 200, description = "It was there already", body = TargetChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn add_lun(
    State(control): State<Shared>,
    Json(request): Json<LunAdd>,
) -> Result<(StatusCode, Json<TargetChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.lun_add(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}

/// Shows it no longer; initiators are told, and commands under way end.
#[utoipa::path(
    delete, path = "/v1/luns/{target}/{number}", operation_id = "lun_remove", tag = "target",
    params(
        ("target" = String, Path, description = "iSCSI name of the target"),
        ("number" = u16, Path, description = "Logical unit number"),
        ("force" = Option<bool>, Query, description = "Also while initiators are logged in"),
    ),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn remove_lun(
    State(control): State<Shared>,
    Path((target, number)): Path<(String, u16)>,
    Query(Force { force }): Query<Force>,
) -> Result<Json<Removed>, ApiError> {
    let key = LunKey { target, number };
    key.check()?;
    to_end(async move { control.lun_remove(key, force).await }).await.map(Json)
}
