//! The HTTP service for peers: checks which objects the request of a peer may access.
//!
//! Authentication of peers is in `peer`. When a stream of a peer creates a volume or completes a
//! snapshot, the same txg marks the object with the peer's address: the user property
//! [`RECEIVED_FROM`]. The mark gives the peer rights to the object; administrators can change it.
//!
//! Invariants:
//! - a peer may create volumes, send streams to volumes with its mark, and abort these streams;
//! - a peer may hold and release (with its own tag) snapshots with its mark, inherited marks
//!   excepted, and destroy such a snapshot unless a user of this server has renamed it;
//! - a peer may list only volumes with its mark and the snapshots of these volumes;
//! - so a peer changes no object that users, this server or other peers created.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Router;
use axum::routing::post;
use futures_util::future::BoxFuture;
use weir_base::ErrorKind;

use super::endpoint::{self, Endpoint, perform, perform_as, write};
use super::streams::take_part;
use crate::calls::call::{Call, Handle};
use crate::calls::path::Path;
use crate::calls::table::{Control, RECEIVE_PART};
use crate::types::{
    DigestRequest, GetProperties, ListSnapshots, Property, PropertySource, RECEIVED_FROM,
    REPLICA_TAG, REPLICATION_PREFIX, REPLICATION_TAG, ReceiveAbort, ReceiveFinish, ReceiveStart,
    ReceiveStop, ShowReceive, ShowServer, ShowVolume, Snapshot, SnapshotDestroy, SnapshotHold,
    SnapshotList, SnapshotRelease, TAKEN_BY_STREAM,
};
use crate::wire::ApiError;
use crate::{caller, guard};

/// A check of a peer's request; it returns the request that the server then executes.
type Checked<'a, C> = BoxFuture<'a, Result<C, ApiError>>;

/// Returns the HTTP service for peers.
pub(crate) fn peer_router<S: Control>(control: &Arc<S>) -> Router {
    let lists = Endpoint::new(control, |control, call: ListSnapshots, page| {
        Box::pin(async move {
            let list = list_snapshots(control, call).await?;
            write::<ListSnapshots>(list, &page)
        })
    });
    let endpoints = vec![
        checked(control, |_, call: ShowServer| Box::pin(async { Ok(call) })),
        lists,
        checked(control, |control, call: DigestRequest| {
            Box::pin(async move {
                let volume = call.snapshot.split('@').next().unwrap_or_default();
                check_mark(control, volume).await?;
                Ok(call)
            })
        }),
        checked(control, |control, call: SnapshotHold| {
            Box::pin(async move {
                let tag = tag_of_peer(&call.tag)?;
                check_mark(control, &call.name).await?;
                Ok(SnapshotHold { tag, ..call })
            })
        }),
        checked(control, |control, call: SnapshotRelease| {
            Box::pin(async move {
                let tag = tag_of_peer(&call.tag)?;
                check_mark(control, &call.name).await?;
                Ok(SnapshotRelease { tag, ..call })
            })
        }),
        checked(control, |control, call| Box::pin(check_destroy(control, call))),
        checked(control, |control, call| Box::pin(check_receive(control, call))),
        checked(control, |_, call: ReceiveFinish| Box::pin(async { Ok(call) })),
        checked(control, |_, call: ReceiveStop| Box::pin(async { Ok(call) })),
        checked(control, |control, call: ShowVolume| {
            Box::pin(async move { check_mark(control, &call.name).await.map(|()| call) })
        }),
        checked(control, |control, call: ShowReceive| {
            Box::pin(async move { check_mark(control, &call.volume).await.map(|()| call) })
        }),
        checked(control, |control, call: ReceiveAbort| {
            Box::pin(async move { check_mark(control, &call.volume).await.map(|()| call) })
        }),
    ];
    let parts = Router::new()
        .route(&Path::parse(RECEIVE_PART.path).route(), post(take_part::<S>))
        .with_state(Arc::clone(control));
    endpoint::router(endpoints)
        .merge(parts)
        .layer(axum::middleware::map_response(guard::uniform_errors))
}

/// Returns an endpoint that checks a peer's call with `check` before it makes the call.
fn checked<S, C>(control: &Arc<S>, check: for<'a> fn(&'a Arc<S>, C) -> Checked<'a, C>) -> Endpoint
where
    S: Control + Handle<C>,
    C: Call,
{
    Endpoint::new(control, move |control, call: C, page| {
        Box::pin(async move {
            let call = check(&control, call).await?;
            perform_as(control, call, move |answer| write::<C>(answer, &page)).await
        })
    })
}

fn forbidden(what: &str) -> ApiError {
    ApiError::new(ErrorKind::Permission, format!("another server may not {what}"))
        .with_action("do it on this server")
}

/// Returns the address of the peer that makes the current call.
fn peer() -> Result<IpAddr, ApiError> {
    caller::current().peer().ok_or_else(|| forbidden("call without an address"))
}

/// Returns the marks of the objects named in `of`: for each marked object its name and the value of
/// [`RECEIVED_FROM`].
async fn marks<S: Control>(control: &Arc<S>, of: Vec<String>) -> Result<Vec<Property>, ApiError> {
    let query = GetProperties { of, properties: vec![RECEIVED_FROM.to_owned()] };
    let mut found = perform(Arc::clone(control), query).await?.properties;
    // A user's snapshot inherits the mark of its volume. Such an inherited mark gives the peer no
    // right to the snapshot, so drop it.
    found.retain(|mark| !mark.name.contains('@') || mark.source == PropertySource::Local);
    Ok(found)
}

fn is_of(mark: &Property, peer: IpAddr) -> bool {
    mark.value.split(',').any(|address| address.trim().parse() == Ok(peer))
}

/// Checks that a volume or snapshot has the mark of the peer that makes the current call.
async fn check_mark<S: Control>(control: &Arc<S>, name: &str) -> Result<(), ApiError> {
    let peer = peer()?;
    if marks(control, vec![name.to_owned()]).await?.iter().any(|mark| is_of(mark, peer)) {
        return Ok(());
    }
    let why = format!("another server may not use {name}: it was not received from {peer}");
    let action = format!("to allow it, on this server: weir set {RECEIVED_FROM}={peer} {name}");
    Err(ApiError::new(ErrorKind::Permission, why).with_action(action))
}

/// Checks that a snapshot was received in a stream, and that no user of this server has renamed it.
async fn check_came_so<S: Control>(control: &Arc<S>, name: &str) -> Result<(), ApiError> {
    let list = perform(Arc::clone(control), ListSnapshots::from(Some(name.to_owned()))).await?;
    // `taken_by` is absent for a snapshot that an older server took. For such a snapshot only the
    // mark decides, although an admin can also set the mark on a snapshot of this server.
    let came_so = |one: &Snapshot| one.taken_by.as_deref().is_none_or(|by| by == TAKEN_BY_STREAM);
    if list.snapshots.iter().all(came_so) {
        return Ok(());
    }
    Err(forbidden("destroy snapshots that this server took or its users renamed"))
}

/// Lists the snapshots of volumes that have the mark of the peer.
async fn list_snapshots<S: Control>(
    control: Arc<S>,
    call: ListSnapshots,
) -> Result<SnapshotList, ApiError> {
    if let Some(of) = call.of.as_deref().filter(|of| of.contains('/')) {
        check_mark(&control, of.split('@').next().unwrap_or_default()).await?;
    }
    let mut list = perform(Arc::clone(&control), call).await?;
    let volumes: BTreeSet<String> = list.snapshots.iter().map(|one| one.volume.clone()).collect();
    if volumes.is_empty() {
        // Return here: a query with an empty list of names would return the properties of all
        // objects.
        return Ok(list);
    }
    let peer = peer()?;
    let marks = marks(&control, volumes.into_iter().collect()).await?;
    let sent: BTreeSet<&str> =
        marks.iter().filter(|mark| is_of(mark, peer)).map(|mark| mark.name.as_str()).collect();
    list.snapshots.retain(|snapshot| sent.contains(snapshot.volume.as_str()));
    Ok(list)
}

/// Converts the tag in a peer's request to the tag that this server uses for the holds of peers.
fn tag_of_peer(tag: &str) -> Result<String, ApiError> {
    if tag != REPLICATION_TAG && tag != REPLICA_TAG {
        return Err(forbidden("use hold tags of users"));
    }
    Ok(REPLICA_TAG.to_owned())
}

async fn check_destroy<S: Control>(
    control: &Arc<S>,
    call: SnapshotDestroy,
) -> Result<SnapshotDestroy, ApiError> {
    let made_by_us = |name: &String| {
        let own = name.split_once('@').map_or("", |(_, own)| own);
        own.starts_with(REPLICATION_PREFIX) && !own.contains(['%', ','])
    };
    if !call.names.iter().all(made_by_us) {
        return Err(forbidden("destroy snapshots of users"));
    }
    for name in &call.names {
        check_mark(control, name).await?;
        check_came_so(control, name).await?;
    }
    Ok(call)
}

async fn check_receive<S: Control>(
    control: &Arc<S>,
    call: ReceiveStart,
) -> Result<ReceiveStart, ApiError> {
    if call.roll_back {
        return Err(forbidden("roll a volume back"));
    }
    match check_mark(control, &call.volume).await {
        Err(error) if error.kind == ErrorKind::NotFound => {}
        checked => checked?,
    }
    Ok(call)
}
