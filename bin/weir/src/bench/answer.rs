//! Result of a verb of `weir bench`: positive, or negative with exit code 1.
//!
//! Not here: the verdicts from which a result follows (weir-bench).
//!
//! Invariant: a verb that fails returns an [`ApiError`], never an [`Answer`].

use weir_api::ApiError;
use weir_base::ErrorKind;

/// Result of a verb; the exit code follows from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The verb completed and the result is positive.
    Yes,
    /// The verb completed and the result is negative or missing. Examples: FAIL, a result that was
    /// not reproduced, traps, corrupt data, a refused comparison.
    No,
}

/// Converts an error of a measurement to an error of the command line.
pub(crate) fn invalid(error: &impl std::fmt::Display) -> ApiError {
    ApiError::new(ErrorKind::Invalid, error.to_string())
}
