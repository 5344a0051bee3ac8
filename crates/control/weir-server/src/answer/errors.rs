//! Converts errors of the engine and the system to errors of calls.
//!
//! The errors of the engine are in weir-dataset, their form in HTTP is in weir-api.
//!
//! Invariant: an error names the object that failed. The error also names the next command for the
//! user if the error alone determines that command.

use weir_api::ApiError;
use weir_api::types::Outcome;
use weir_base::size::Human;
use weir_base::{ErrorKind, size};
use weir_dataset::DatasetError;
use weir_pool::PoolError;

pub(crate) fn not_found(what: &str, name: &str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("{what} {name:?} does not exist"))
}

pub(crate) fn internal(what: &str, error: &dyn std::fmt::Display) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("{what}: {error}"))
}

pub(crate) fn outcome(outcome: weir_dataset::Outcome) -> Outcome {
    match outcome {
        weir_dataset::Outcome::Changed => Outcome::Changed,
        weir_dataset::Outcome::Unchanged => Outcome::Unchanged,
    }
}

pub(crate) fn pool_error(error: PoolError) -> ApiError {
    api_error(&DatasetError::from(error))
}

/// Converts an error of the engine; adds the next command for the user if it is known.
pub fn api_error(error: &DatasetError) -> ApiError {
    let wire = ApiError::new(error.kind(), error.to_string());
    match action(error) {
        Some(action) => wire.with_action(action),
        None => wire,
    }
}

/// Returns the next command for the user, if the error alone determines it.
fn action(error: &DatasetError) -> Option<String> {
    match error {
        DatasetError::SnapshotClash { name } => {
            let own = name.rsplit('@').next().unwrap_or_default();
            Some(format!("rename the existing snapshot: weir snapshot rename {name} {own}-old"))
        }
        DatasetError::Changed { name, snapshot } => Some(format!(
            "roll these changes back: weir snapshot rollback {name}@{snapshot}; or receive with -F"
        )),
        DatasetError::NotMarked { name, property, address } => {
            Some(format!("weir set {property}={address} {name}"))
        }
        DatasetError::InUse { next, .. } => next.clone(),
        DatasetError::Pool(PoolError::NoSuchDisk { pool, .. }) => {
            Some(format!("weir pool status {pool}"))
        }
        // Never suggest to shrink a volume.
        DatasetError::ExistsWithSize { name, asked_bytes, has_bytes }
            if asked_bytes < has_bytes =>
        {
            Some(format!("weir volume show {name}"))
        }
        DatasetError::ExistsWithSize { name, asked_bytes, .. } => {
            Some(format!("weir volume resize {name} {}", typed_size(*asked_bytes)))
        }
        DatasetError::ShrinkBelowData { size, .. } => Some(format!(
            "TRIM the end in the client first, for example: blkdiscard --offset {} DEVICE",
            typed_size(*size)
        )),
        _ => None,
    }
}

/// Returns a size as a user types it: with a unit if that is exact, else in bytes.
fn typed_size(bytes: u64) -> String {
    let size = Human(bytes).to_string();
    let is_exact = size::parse(&size).is_ok_and(|parsed| parsed == bytes);
    if is_exact { size } else { bytes.to_string() }
}
