//! Paths of streams that are sent and received.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a part goes in and out as it is; the guard has bounded it.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::{Shared, to_end};
use crate::types::{
    ReceiveDone, ReceiveProgress, ReceiveStart, ReceiveStarted, ReceiveToken, Removed, Request,
    SendStart, SendStarted,
};
use crate::wire::{ApiError, ErrorBody};

/// What parts of streams are.
pub(crate) const PART_TYPE: &str = "application/octet-stream";

/// Begins to send a snapshot, or what changed since an older one.
#[utoipa::path(
    post, path = "/v1/sends", operation_id = "send_start", tag = "transfer",
    request_body = SendStart,
    responses(
        (status = 201, description = "Fetch its parts now", body = SendStarted),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn send_start(
    State(control): State<Shared>,
    Json(request): Json<SendStart>,
) -> Result<(StatusCode, Json<SendStarted>), ApiError> {
    request.check()?;
    let started = to_end(async move { control.send_start(request).await }).await?;
    Ok((StatusCode::CREATED, Json(started)))
}

/// Fetches the next part of a stream; an empty one where nothing came for a while.
#[utoipa::path(
    post, path = "/v1/sends/{session}/next", operation_id = "send_part", tag = "transfer",
    params(("session" = String, Path, description = "The session")),
    responses(
        (status = 200, description = "The next bytes", body = [u8],
            content_type = "application/octet-stream"),
        (status = 204, description = "That was all"),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn send_part(
    State(control): State<Shared>,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    Ok(match to_end(async move { control.send_part(session).await }).await? {
        Some(part) => ([(CONTENT_TYPE, PART_TYPE)], part).into_response(),
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// Ends a session before its stream is at its end.
#[utoipa::path(
    delete, path = "/v1/sends/{session}", operation_id = "send_stop", tag = "transfer",
    params(("session" = String, Path, description = "The session")),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn send_stop(
    State(control): State<Shared>,
    Path(session): Path<String>,
) -> Result<Json<Removed>, ApiError> {
    to_end(async move { control.send_stop(session).await }).await.map(Json)
}

/// Begins to receive a stream.
#[utoipa::path(
    post, path = "/v1/receives", operation_id = "receive_start", tag = "transfer",
    request_body = ReceiveStart,
    responses(
        (status = 201, description = "Give its parts now", body = ReceiveStarted),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn receive_start(
    State(control): State<Shared>,
    Json(request): Json<ReceiveStart>,
) -> Result<(StatusCode, Json<ReceiveStarted>), ApiError> {
    request.check()?;
    let started = to_end(async move { control.receive_start(request).await }).await?;
    Ok((StatusCode::CREATED, Json(started)))
}

/// Gives the next part of a stream.
#[utoipa::path(
    post, path = "/v1/receives/{session}/parts", operation_id = "receive_part", tag = "transfer",
    params(("session" = String, Path, description = "The session")),
    request_body(content = [u8], content_type = "application/octet-stream"),
    responses((status = 200, body = ReceiveProgress), (status = "default", body = ErrorBody)),
)]
pub(super) async fn receive_part(
    State(control): State<Shared>,
    Path(session): Path<String>,
    part: Bytes,
) -> Result<Json<ReceiveProgress>, ApiError> {
    to_end(async move { control.receive_part(session, part.to_vec()).await }).await.map(Json)
}

/// Ends a stream: its snapshot is there once this is answered.
#[utoipa::path(
    post, path = "/v1/receives/{session}/finish", operation_id = "receive_finish",
    tag = "transfer",
    params(("session" = String, Path, description = "The session")),
    responses((status = 200, body = ReceiveDone), (status = "default", body = ErrorBody)),
)]
pub(super) async fn receive_finish(
    State(control): State<Shared>,
    Path(session): Path<String>,
) -> Result<Json<ReceiveDone>, ApiError> {
    to_end(async move { control.receive_finish(session).await }).await.map(Json)
}

/// Cuts a stream off: what came is kept, and it can go on.
#[utoipa::path(
    delete, path = "/v1/receives/{session}", operation_id = "receive_stop", tag = "transfer",
    params(("session" = String, Path, description = "The session")),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn receive_stop(
    State(control): State<Shared>,
    Path(session): Path<String>,
) -> Result<Json<Removed>, ApiError> {
    to_end(async move { control.receive_stop(session).await }).await.map(Json)
}

/// Tells where the stream into a volume goes on.
#[utoipa::path(
    get, path = "/v1/volumes/{pool}/{volume}/receive", operation_id = "receive_token",
    tag = "transfer",
    params(
        ("pool" = String, Path, description = "The pool's name"),
        ("volume" = String, Path, description = "The volume's name inside the pool"),
    ),
    responses((status = 200, body = ReceiveToken), (status = "default", body = ErrorBody)),
)]
pub(super) async fn receive_token(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
) -> Result<Json<ReceiveToken>, ApiError> {
    let name = super::volume::full_name(&pool, &volume)?;
    to_end(async move { control.receive_token(name).await }).await.map(Json)
}

/// Gives the stream into a volume up: the volume is what it was before, or gone.
#[utoipa::path(
    delete, path = "/v1/volumes/{pool}/{volume}/receive", operation_id = "receive_abort",
    tag = "transfer",
    params(
        ("pool" = String, Path, description = "The pool's name"),
        ("volume" = String, Path, description = "The volume's name inside the pool"),
    ),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn receive_abort(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
) -> Result<Json<Removed>, ApiError> {
    let name = super::volume::full_name(&pool, &volume)?;
    to_end(async move { control.receive_abort(name).await }).await.map(Json)
}
