//! The paths that another server may call.
//!
//! Not here: who is one (`peer`).
//!
//! A volume that a peer's stream makes, and each snapshot that it ends with, is marked with the
//! address of the peer: the user property [`RECEIVED_FROM`], set in the same txg. The mark is what
//! gives a peer its rights, and people can change it.
//!
//! Invariants:
//! - a peer makes new volumes; it sends to, and gives up streams into, volumes with its mark;
//! - it holds, releases and destroys snapshots that are marked themselves, with its own tag;
//! - it sees names of volumes and snapshots, and digests of what volumes with its mark hold;
//! - so it changes nothing that people, this server or other peers made.

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use weir_base::ErrorKind;

use super::{Shared, replication, server_info, snapshot, to_end, transfer, volume};
use crate::caller;
use crate::types::{
    DigestList, DigestRequest, Property, PropertyQuery, PropertySource, RECEIVED_FROM, REPLICA_TAG,
    REPLICATION_PREFIX, REPLICATION_TAG, ReceiveStart, ReceiveStarted, ReceiveToken, Removed,
    Request, SnapshotChange, SnapshotDestroy, SnapshotTag, SnapshotsDestroyed,
};
use crate::wire::ApiError;

/// The interface for peers as a service.
pub(crate) fn peer_router(control: Shared) -> Router {
    Router::new()
        .route("/v1/server", get(server_info))
        .route("/v1/snapshots", get(snapshot::list))
        .route("/v1/snapshots/digest", post(digest))
        .route("/v1/snapshots/hold", post(hold))
        .route("/v1/snapshots/release", post(release))
        .route("/v1/snapshots/destroy", post(destroy))
        .route("/v1/receives", post(receive_start))
        .route("/v1/receives/{session}/parts", post(transfer::receive_part))
        .route("/v1/receives/{session}/finish", post(transfer::receive_finish))
        .route("/v1/receives/{session}", axum::routing::delete(transfer::receive_stop))
        .route("/v1/volumes/{pool}/{volume}", get(volume::show))
        .route("/v1/volumes/{pool}/{volume}/receive", get(receive_token).delete(receive_abort))
        .with_state(control)
        .layer(axum::middleware::map_response(crate::guard::uniform_errors))
}

fn forbidden(what: &str) -> ApiError {
    ApiError::new(ErrorKind::Permission, format!("another server may not {what}"))
        .with_action("do it on this server")
}

/// Checks that a volume or snapshot has the mark of the peer that calls.
async fn check_mark(control: &Shared, name: &str) -> Result<(), ApiError> {
    let Some(peer) = caller::current().peer() else {
        return Err(forbidden("call without an address"));
    };
    let (control, of) = (Shared::clone(control), name.to_owned());
    let query = PropertyQuery { of: vec![of], properties: vec![RECEIVED_FROM.to_owned()] };
    let found = to_end(async move { control.property_get(query).await }).await?.properties;
    // A snapshot of people inherits the mark of its volume, and is theirs.
    let counts = |mark: &&Property| !name.contains('@') || mark.source == PropertySource::Local;
    let mark = found.iter().find(counts).map_or("", |mark| mark.value.as_str());
    if mark.split(',').any(|address| address.trim().parse() == Ok(peer)) {
        return Ok(());
    }
    let why = format!("another server may not change {name}, which {peer} did not make here");
    let action = format!("to allow it, on this server: weir set {RECEIVED_FROM}={peer} {name}");
    Err(ApiError::new(ErrorKind::Permission, why).with_action(action))
}

/// The tag that a peer means, which is another one here.
fn tag_of_peer(tag: SnapshotTag) -> Result<SnapshotTag, ApiError> {
    tag.check()?;
    if tag.tag != REPLICATION_TAG && tag.tag != REPLICA_TAG {
        return Err(forbidden("use tags of people"));
    }
    Ok(SnapshotTag { tag: REPLICA_TAG.to_owned(), ..tag })
}

async fn hold(
    State(control): State<Shared>,
    Json(request): Json<SnapshotTag>,
) -> Result<Json<SnapshotChange>, ApiError> {
    let request = tag_of_peer(request)?;
    check_mark(&control, &request.name).await?;
    to_end(async move { control.snapshot_hold(request).await }).await.map(Json)
}

async fn release(
    State(control): State<Shared>,
    Json(request): Json<SnapshotTag>,
) -> Result<Json<SnapshotChange>, ApiError> {
    let request = tag_of_peer(request)?;
    check_mark(&control, &request.name).await?;
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
    for name in &request.names {
        check_mark(&control, name).await?;
    }
    to_end(async move { control.snapshot_destroy(request).await }).await.map(Json)
}

async fn digest(
    State(control): State<Shared>,
    Json(request): Json<DigestRequest>,
) -> Result<Json<DigestList>, ApiError> {
    request.check()?;
    let volume = request.snapshot.split('@').next().unwrap_or_default();
    check_mark(&control, volume).await?;
    replication::digest(State(control), Json(request)).await
}

async fn receive_token(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
) -> Result<Json<ReceiveToken>, ApiError> {
    check_mark(&control, &volume::full_name(&pool, &volume)?).await?;
    transfer::receive_token(State(control), Path((pool, volume))).await
}

async fn receive_abort(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
) -> Result<Json<Removed>, ApiError> {
    check_mark(&control, &volume::full_name(&pool, &volume)?).await?;
    transfer::receive_abort(State(control), Path((pool, volume))).await
}

async fn receive_start(
    State(control): State<Shared>,
    Json(request): Json<ReceiveStart>,
) -> Result<(StatusCode, Json<ReceiveStarted>), ApiError> {
    request.check()?;
    if request.roll_back {
        return Err(forbidden("roll a volume back"));
    }
    match check_mark(&control, &request.volume).await {
        Err(error) if error.kind == ErrorKind::NotFound => {}
        checked => checked?,
    }
    let started = to_end(async move { control.receive_start(request).await }).await?;
    Ok((StatusCode::CREATED, Json(started)))
}
