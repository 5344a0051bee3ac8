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
//! - it holds and releases snapshots that are marked themselves, with its own tag; it destroys such
//!   snapshots unless a user of this server renamed them;
//! - it sees only volumes with its mark, and their snapshots;
//! - so it changes nothing that people, this server or other peers made.

use std::collections::BTreeSet;
use std::net::IpAddr;

use axum::extract::{Path, Query, State};
use axum::http::StatusCode;
use axum::routing::{get, post};
use axum::{Json, Router};
use weir_base::ErrorKind;

use super::snapshot::{self, Which};
use super::{Shared, replication, server_info, to_end, transfer, volume};
use crate::caller;
use crate::types::page::PageQuery;
use crate::types::{
    DigestList, DigestRequest, Property, PropertyQuery, PropertySource, RECEIVED_FROM, REPLICA_TAG,
    REPLICATION_PREFIX, REPLICATION_TAG, ReceiveStart, ReceiveStarted, ReceiveToken, Removed,
    Request, Snapshot, SnapshotChange, SnapshotDestroy, SnapshotList, SnapshotTag,
    SnapshotsDestroyed, TAKEN_BY_STREAM, Volume, check_listed,
};
use crate::wire::ApiError;

/// The interface for peers as a service.
pub(crate) fn peer_router(control: Shared) -> Router {
    Router::new()
        .route("/v1/server", get(server_info))
        .route("/v1/snapshots", get(snapshot_list))
        .route("/v1/snapshots/digest", post(digest))
        .route("/v1/snapshots/hold", post(hold))
        .route("/v1/snapshots/release", post(release))
        .route("/v1/snapshots/destroy", post(destroy))
        .route("/v1/receives", post(receive_start))
        .route("/v1/receives/{session}/parts", post(transfer::receive_part))
        .route("/v1/receives/{session}/finish", post(transfer::receive_finish))
        .route("/v1/receives/{session}", axum::routing::delete(transfer::receive_stop))
        .route("/v1/volumes/{pool}/{volume}", get(volume_show))
        .route("/v1/volumes/{pool}/{volume}/receive", get(receive_token).delete(receive_abort))
        .with_state(control)
        .layer(axum::middleware::map_response(crate::guard::uniform_errors))
}

fn forbidden(what: &str) -> ApiError {
    ApiError::new(ErrorKind::Permission, format!("another server may not {what}"))
        .with_action("do it on this server")
}

/// The address of the peer that calls.
fn peer() -> Result<IpAddr, ApiError> {
    caller::current().peer().ok_or_else(|| forbidden("call without an address"))
}

/// The marks of volumes and snapshots: names, and what counts of the property.
async fn marks(control: &Shared, of: Vec<String>) -> Result<Vec<Property>, ApiError> {
    let control = Shared::clone(control);
    let query = PropertyQuery { of, properties: vec![RECEIVED_FROM.to_owned()] };
    let mut found = to_end(async move { control.property_get(query).await }).await?.properties;
    // A snapshot of users inherits the mark of its volume, and is theirs.
    found.retain(|mark| !mark.name.contains('@') || mark.source == PropertySource::Local);
    Ok(found)
}

fn is_of(mark: &Property, peer: IpAddr) -> bool {
    mark.value.split(',').any(|address| address.trim().parse() == Ok(peer))
}

/// Checks that a volume or snapshot has the mark of the peer that calls.
async fn check_mark(control: &Shared, name: &str) -> Result<(), ApiError> {
    let peer = peer()?;
    if marks(control, vec![name.to_owned()]).await?.iter().any(|mark| is_of(mark, peer)) {
        return Ok(());
    }
    let why = format!("another server may not use {name}, which {peer} did not send here");
    let action = format!("to allow it, on this server: weir set {RECEIVED_FROM}={peer} {name}");
    Err(ApiError::new(ErrorKind::Permission, why).with_action(action))
}

/// Checks that a stream created the snapshot, and that no user of this server renamed it.
async fn check_came_so(control: &Shared, name: &str) -> Result<(), ApiError> {
    let (control, of) = (Shared::clone(control), name.to_owned());
    let list = to_end(async move { control.snapshot_list(Some(of).into()).await }).await?;
    // An older server recorded nothing; an admin gave the mark to a snapshot of this server.
    let came_so = |one: &Snapshot| one.taken_by.as_deref().is_none_or(|by| by == TAKEN_BY_STREAM);
    if list.snapshots.iter().all(came_so) {
        return Ok(());
    }
    Err(forbidden("destroy snapshots that this one took or its users renamed"))
}

/// Lists the snapshots of volumes that the peer sent.
async fn snapshot_list(
    State(control): State<Shared>,
    Query(Which { of }): Query<Which>,
    page: Query<PageQuery>,
) -> Result<Json<SnapshotList>, ApiError> {
    of.as_deref().map_or(Ok(()), check_listed)?;
    if let Some(of) = of.as_deref().filter(|of| of.contains('/')) {
        check_mark(&control, of.split('@').next().unwrap_or_default()).await?;
    }
    let behind = State(Shared::clone(&control));
    let Json(mut list) = snapshot::list(behind, Query(Which { of }), page).await?;
    let volumes: BTreeSet<String> = list.snapshots.iter().map(|one| one.volume.clone()).collect();
    if volumes.is_empty() {
        // A query of nothing would be one of everything.
        return Ok(Json(list));
    }
    let peer = peer()?;
    let marks = marks(&control, volumes.into_iter().collect()).await?;
    let sent: BTreeSet<&str> =
        marks.iter().filter(|mark| is_of(mark, peer)).map(|mark| mark.name.as_str()).collect();
    list.snapshots.retain(|snapshot| sent.contains(snapshot.volume.as_str()));
    Ok(Json(list))
}

async fn volume_show(
    State(control): State<Shared>,
    Path((pool, volume)): Path<(String, String)>,
) -> Result<Json<Volume>, ApiError> {
    check_mark(&control, &volume::full_name(&pool, &volume)?).await?;
    volume::show(State(control), Path((pool, volume))).await
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
        check_came_so(&control, name).await?;
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
