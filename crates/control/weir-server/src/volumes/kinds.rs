//! Finds datasets of a kind: volumes or filesystems.
//!
//! Invariant: an error about a dataset of the other kind names the command for that kind.

use std::sync::Arc;

use weir_api::ApiError;
use weir_api::types::DatasetKind;
use weir_base::ErrorKind;
use weir_dataset::{Engine, Volume};

use crate::answer::errors::{api_error, not_found};
use crate::answer::names::split;
use crate::answer::pool_status;

/// Finds the dataset with a full name.
///
/// # Errors
/// `NotFound`; `Invalid` for a dataset of the other kind.
pub(crate) fn find(
    engine: &Engine,
    full: &str,
    kind: DatasetKind,
) -> Result<Arc<Volume>, ApiError> {
    let (_, own) = split(full)?;
    let volume = engine.volume(own).map_err(|error| match kind {
        DatasetKind::Filesystem => not_found("filesystem", full),
        DatasetKind::Volume => api_error(&error),
    })?;
    check_kind(&volume, full, kind)?;
    Ok(volume)
}

/// Refuses a dataset of the other kind, and names the command for it.
pub(crate) fn check_kind(volume: &Volume, full: &str, wanted: DatasetKind) -> Result<(), ApiError> {
    let kind = pool_status::kind(volume);
    if kind == wanted {
        return Ok(());
    }
    let (kind, wanted) = (kind.name(), wanted.name());
    let message = format!("{full} is a {kind}, not a {wanted}");
    Err(ApiError::new(ErrorKind::Invalid, message).with_action(format!("weir {kind} show {full}")))
}
