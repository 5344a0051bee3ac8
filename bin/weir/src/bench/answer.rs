//! Result of a `weir bench` verb: positive, or negative with exit code 1.
//!
//! Not here: the verdicts (weir-bench).
//!
//! Invariant: an error is not a result.

use weir_api::ApiError;
use weir_base::ErrorKind;

/// Result of a verb, which determines the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// The verb completed and the result is positive.
    Yes,
    /// The verb completed and the result is negative or missing: FAIL, not reproduced, traps found,
    /// corrupt data read back, comparison refused.
    No,
}

/// Converts an error of a measurement for the command line.
pub(crate) fn invalid(error: &impl std::fmt::Display) -> ApiError {
    ApiError::new(ErrorKind::Invalid, error.to_string())
}
