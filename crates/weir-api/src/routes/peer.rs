//! The paths that another server may call.
//!
//! Not here: who is one (`peer`).
//!
//! Invariant: what a peer may do to a pool is to receive streams into it, and to hold, release and
//! destroy what replication itself made; it destroys nothing that people made.

use axum::routing::{get, post};
use axum::{Json, Router, extract::State, http::StatusCode};
use weir_base::ErrorKind;

use super::{Shared, replication, server_info, snapshot, to_end, transfer, volume};
use crate::types::{
    REPLICATION_PREFIX, REPLICATION_TAG, ReceiveStart, ReceiveStarted, Request, SnapshotChange,
    SnapshotDestroy, SnapshotTag, SnapshotsDestroyed,
};
use crate::wire::ApiError;

/// The interface for peers as a service.
pub(crate) fn peer_router(control: Shared) -> Router {
    Router::new()
        .route("/v1/server", get(server_info))
        .route("/v1/snapshots", get(snapshot::list))
        .route("/v1/snapshots/digest", post(replication::digest))
        .route("/v1/snapshots/hold", post(hold))
        .route("/v1/snapshots/release", post(release))
        .route("/v1/snapshots/destroy", post(destroy))
        .route("/v1/receives", post(receive_start))
        .route("/v1/receives/{session}/parts", post(transfer::receive_part))
        .route("/v1/receives/{session}/finish", post(transfer::receive_finish))
        .route("/v1/receives/{session}", axum::routing::delete(transfer::receive_stop))
        .route("/v1/volumes/{pool}/{volume}", get(volume::show))
        .route(
            "/v1/volumes/{pool}/{volume}/receive",
            get(transfer::receive_token).delete(transfer::receive_abort),
        )
        .with_state(control)
        .layer(axum::middleware::map_response(crate::guard::uniform_errors))
}

fn forbidden(what: &str) -> ApiError {
    ApiError::new(ErrorKind::Permission, format!("another server may not {what}"))
        .with_action("do it on this server")
}

fn check_tag(tag: &SnapshotTag) -> Result<(), ApiError> {
    tag.check()?;
    if tag.tag == REPLICATION_TAG { Ok(()) } else { Err(forbidden("use tags of people")) }
}

async fn hold(
    State(control): State<Shared>,
    Json(request): Json<SnapshotTag>,
) -> Result<Json<SnapshotChange>, ApiError> {
    check_tag(&request)?;
    to_end(async move { control.snapshot_hold(request).await }).await.map(Json)
}

async fn release(
    State(control): State<Shared>,
    Json(request): Json<SnapshotTag>,
) -> Result<Json<SnapshotChange>, ApiError> {
    check_tag(&request)?;
    to_end(async move { control.snapshot_release(request).await }).await.map(Json)
}

async fn destroy(
    State(control): State<Shared>,
    Json(request): Json<SnapshotDestroy>,
) -> Result<Json<SnapshotsDestroyed>, ApiError> {
    request.check()?;
    let made_by_us = |name: &String| {
        let own = name.split_once('@').map_or("", |(_, own)| own);
        own.starts_with(REPLICATION_PREFIX) && !own.contains(['%', ','])
    };
    if !request.names.iter().all(made_by_us) {
        return Err(forbidden("destroy snapshots of people"));
    }
    to_end(async move { control.snapshot_destroy(request).await }).await.map(Json)
}

async fn receive_start(
    State(control): State<Shared>,
    Json(request): Json<ReceiveStart>,
) -> Result<(StatusCode, Json<ReceiveStarted>), ApiError> {
    request.check()?;
    if request.roll_back {
        return Err(forbidden("roll a volume back"));
    }
    let started = to_end(async move { control.receive_start(request).await }).await?;
    Ok((StatusCode::CREATED, Json(started)))
}
