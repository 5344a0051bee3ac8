//! Checks of calls that access more objects than they name
//! ([`Resources::LookedUp`](crate::access::Resources::LookedUp)).
//!
//! `authorization` checks the objects that a request names; this file checks the others, such as
//! the volume of an export.
//!
//! A server calls one of these functions in [`Handle::authorize`].
//!
//! Invariant: an error reveals neither names outside the scope nor whether they exist.

use weir_base::ErrorKind;

use super::call::Handle;
use crate::access::{Role, Scope};
use crate::authorization::{at_least, outside};
use crate::caller;
use crate::types::{
    ExportKey, ListStreams, ShareKey, ShowExport, ShowShare, ShowTarget, ShowVolume, StreamCancel,
    VolumePromote,
};
use crate::wire::ApiError;

/// Checks that the volume of an export is in the scope.
///
/// # Errors
/// `Permission` if the volume is outside the scope; `NotFound` if the export does not exist.
pub async fn export<S>(server: &S, key: ExportKey, scope: &Scope) -> Result<(), ApiError>
where
    S: Handle<ShowExport>,
{
    if scope.is_all() {
        return Ok(());
    }
    let ExportKey { protocol, name } = key;
    let shown = server.handle(ShowExport { protocol, name: name.clone() }).await?;
    if scope.covers(&shown.volume) { Ok(()) } else { Err(outside(&name)) }
}

/// Checks that the filesystem of a share is in the scope.
///
/// # Errors
/// `Permission` if the filesystem is outside the scope; `NotFound` if the share does not exist.
pub async fn share<S>(server: &S, key: ShareKey, scope: &Scope) -> Result<(), ApiError>
where
    S: Handle<ShowShare>,
{
    if scope.is_all() {
        return Ok(());
    }
    let ShareKey { protocol, name } = key;
    let shown = server.handle(ShowShare { protocol, name: name.clone() }).await?;
    if scope.covers(&shown.filesystem) { Ok(()) } else { Err(outside(&name)) }
}

/// Checks that all logical units of a target are in the scope.
///
/// # Errors
/// `Permission` if a logical unit is outside the scope, or if the target does not exist.
pub async fn target<S>(server: &S, call: &ShowTarget, scope: &Scope) -> Result<(), ApiError>
where
    S: Handle<ShowTarget>,
{
    if scope.is_all() {
        return Ok(());
    }
    match server.handle(call.clone()).await {
        Ok(shown) if shown.is_in(scope) => Ok(()),
        _ => Err(outside(&call.name)),
    }
}

/// Checks that the origin of a clone is in the scope, because a promotion gives the clone the
/// snapshots of the volume from which it was cloned.
///
/// # Errors
/// `Permission` if the origin is outside the scope; `NotFound` if the volume does not exist.
pub async fn promotion<S>(server: &S, call: &VolumePromote, scope: &Scope) -> Result<(), ApiError>
where
    S: Handle<ShowVolume>,
{
    let shown = server.handle(ShowVolume { name: call.name.clone() }).await?;
    if shown.origin.is_some_and(|origin| !scope.covers(&origin)) {
        return Err(outside(&format!("the origin of {}", call.name)));
    }
    Ok(())
}

/// Checks that the scope covers a stream, and that the caller started the stream or is an admin.
///
/// # Errors
/// `NotFound` for a stream that has ended or is outside the scope; `Permission` for a stream that
/// another caller started.
pub async fn stream<S>(server: &S, call: &StreamCancel, scope: &Scope) -> Result<(), ApiError>
where
    S: Handle<ListStreams>,
{
    let all = server.handle(ListStreams {}).await?.streams;
    let found = all.into_iter().find(|stream| stream.id == call.id);
    let Some(found) = found.filter(|found| scope.covers(&found.name)) else {
        let message = format!("there is no stream {}", call.id);
        return Err(ApiError::new(ErrorKind::NotFound, message)
            .with_action("see the streams: weir stream list"));
    };
    if found.caller != caller::current().account() {
        at_least(Role::Admin)?;
    }
    Ok(())
}
