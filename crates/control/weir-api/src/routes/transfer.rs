//! Paths of streams that are sent and received.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariants:
//! - a part goes in as it is; the guard has bounded it;
//! - a stream goes out as it is made, and breaks the connection where it breaks: an answer that
//!   ends well is a whole stream.

use axum::Json;
use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};

use super::{Shared, to_end};
use crate::limits::STREAM_STALL_LIMIT;
use crate::slots;
use crate::stream::body;
use crate::types::{
    ReceiveDone, ReceiveProgress, ReceiveStart, ReceiveStarted, ReceiveToken, Removed, Request,
    SendProgress, SendStart, SendStarted, StreamKey, StreamList,
};
use crate::wire::{ApiError, ErrorBody};

/// What parts of streams are.
pub(crate) const PART_TYPE: &str = "application/octet-stream";

/// Begins to send a snapshot, or what changed since an older one.
#[utoipa::path(
    post, path = "/v1/sends", operation_id = "send_start", tag = "transfer",
    request_body = SendStart,
    responses(
        (status = 201, description = "Fetch its stream now", body = SendStarted),
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

/// Fetches the stream of a session, once; where the answer breaks off, the session tells why.
#[utoipa::path(
    post, path = "/v1/sends/{session}/stream", operation_id = "send_stream", tag = "transfer",
    params(("session" = String, Path, description = "The session")),
    responses(
        (status = 200, description = "The stream, as it is made", body = [u8],
            content_type = "application/octet-stream"),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn send_stream(
    State(control): State<Shared>,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    // Not to its end: dropped, it lets go of the session.
    let stream = control.send_stream(session).await?;
    if let Some(slot) = slots::current() {
        slot.set_stall_limit(STREAM_STALL_LIMIT);
    }
    Ok(([(CONTENT_TYPE, PART_TYPE)], body(stream)).into_response())
}

/// Tells how far a session is, or why its stream broke.
#[utoipa::path(
    get, path = "/v1/sends/{session}", operation_id = "send_show", tag = "transfer",
    params(("session" = String, Path, description = "The session")),
    responses((status = 200, body = SendProgress), (status = "default", body = ErrorBody)),
)]
pub(super) async fn send_show(
    State(control): State<Shared>,
    Path(session): Path<String>,
) -> Result<Json<SendProgress>, ApiError> {
    to_end(async move { control.send_show(session).await }).await.map(Json)
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

/// Lists the streams that are sent and received now.
#[utoipa::path(
    get, path = "/v1/streams", operation_id = "stream_list", tag = "transfer",
    responses((status = 200, body = StreamList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(State(control): State<Shared>) -> Result<Json<StreamList>, ApiError> {
    to_end(async move { control.stream_list().await }).await.map(Json)
}

/// Cancels a stream; the received part of a stream is kept.
#[utoipa::path(
    delete, path = "/v1/streams/{id}", operation_id = "stream_cancel", tag = "transfer",
    params(("id" = u64, Path, description = "Number of the stream")),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn cancel(
    State(control): State<Shared>,
    Path(id): Path<u64>,
) -> Result<Json<Removed>, ApiError> {
    to_end(async move { control.stream_cancel(StreamKey { id }).await }).await.map(Json)
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
    to_end(async move { control.receive_part(session, part).await }).await.map(Json)
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
