//! Checks of calls that touch more than they name ([`Resources::LookedUp`](crate::Reach::Looked)).
//!
//! `authorization` checks the names in the request.
//!
//! A server calls one of these functions in [`Handle::authorize`].
//!
//! Invariant: a refusal does not reveal names outside of the scope, or their existence.

use weir_base::ErrorKind;

use super::call::Handle;
use crate::access::{Role, Scope};
use crate::authorization::{at_least, outside};
use crate::caller;
use crate::types::{
    ExportKey, ListStreams, ShowExport, ShowTarget, ShowVolume, StreamCancel, VolumePromote,
};
use crate::wire::ApiError;

/// Checks that the volume of an export is in the scope.
///
/// # Errors
/// `Permission` for another volume; `NotFound` without such an export.
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

/// Checks that all logical units of a target are in the scope.
///
/// # Errors
/// `Permission` for another target, also if there is no such target.
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

/// Checks that the origin of a clone is in the scope: the clone takes over the snapshots of the
/// volume that it was cloned from.
///
/// # Errors
/// `Permission` for another origin; `NotFound` without such a volume.
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

/// Checks that a stream is in the scope, and that the caller began it or is an admin.
///
/// # Errors
/// `NotFound` for a stream that has ended or is outside of the scope; `Permission` for a stream of
/// another caller.
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
