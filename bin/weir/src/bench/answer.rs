//! The answer of a command of `weir bench`: yes, or no with exit code 1.
//!
//! Not here: the judgement (weir-bench).
//!
//! Invariant: an error is no answer.

use weir_api::ApiError;
use weir_base::ErrorKind;

/// What a verb answers, for the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It was done; what was asked is so.
    Yes,
    /// It was done, and what was asked is not so, or not shown: FAIL, not reproduced, traps, data
    /// that came back wrong, nothing ranked.
    No,
}

/// An error of measuring as the command line tells it.
pub(crate) fn invalid(error: &impl std::fmt::Display) -> ApiError {
    ApiError::new(ErrorKind::Invalid, error.to_string())
}
