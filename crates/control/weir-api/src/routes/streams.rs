//! The two calls whose request or response is a stream.
//!
//! The calls that start and end a stream are rows of the table.
//!
//! Invariants:
//! - `guard` limits the size of a part that the server receives;
//! - if a sent stream breaks, the server breaks the connection. So a response that ends regularly
//!   contains a complete stream.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{Path, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};

use super::endpoint::to_end;
use crate::calls::call::Operation;
use crate::calls::path;
use crate::calls::table::{Control, RECEIVE_PART, SEND_STREAM};
use crate::limits::STREAM_STALL_LIMIT;
use crate::stream::{Streams, body};
use crate::types::ReceiveProgress;
use crate::wire::ApiError;
use crate::{authorization, slots};

/// Content type of a stream and of its parts.
pub(crate) const PART_TYPE: &str = "application/octet-stream";

/// Returns the HTTP service of the two calls whose body is a stream.
pub(super) fn router<S: Control>(control: Arc<S>) -> Router {
    let route = |operation: &Operation| path::Path::parse(operation.path).route();
    Router::new()
        .route(&route(&SEND_STREAM), post(send_stream::<S>))
        .route(&route(&RECEIVE_PART), post(receive_part::<S>))
        .with_state(control)
}

fn authorize(row: &Operation) -> Result<(), ApiError> {
    authorization::authorize(row, row.role, row.reach, &[]).map(drop)
}

async fn send_stream<S: Streams>(
    State(control): State<Arc<S>>,
    Path(session): Path<String>,
) -> Result<Response, ApiError> {
    authorize(&SEND_STREAM)?;
    // Unlike other calls, this call ends when its caller disconnects: the stream is dropped then,
    // which ends its session.
    let stream = control.send_stream(session).await?;
    if let Some(slot) = slots::current() {
        slot.set_stall_limit(STREAM_STALL_LIMIT);
    }
    Ok(([(CONTENT_TYPE, PART_TYPE)], body(stream)).into_response())
}

async fn receive_part<S: Streams>(
    control: State<Arc<S>>,
    session: Path<String>,
    part: Bytes,
) -> Result<Json<ReceiveProgress>, ApiError> {
    authorize(&RECEIVE_PART)?;
    take_part(control, session, part).await
}

/// Receives a part of a stream. The rights of the caller were checked before.
pub(super) async fn take_part<S: Streams>(
    State(control): State<Arc<S>>,
    Path(session): Path<String>,
    part: Bytes,
) -> Result<Json<ReceiveProgress>, ApiError> {
    to_end(control.receive_part(session, part)).await.map(Json)
}
