//! The error of every call, with its HTTP status and its process exit code.
//!
//! Errors of invalid requests are in [`crate::Error`]; the data protocols have their own error
//! codes.
//!
//! Invariants:
//! - one exhaustive match converts every [`ErrorKind`] to an HTTP status, and another to an exit
//!   code;
//! - an error always has an action: the next step for the user.

use axum::http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};
use weir_base::ErrorKind;

/// An error of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[schema(as = Error)]
#[error("{message}")]
pub struct ApiError {
    /// Kind of the error, which determines what the caller can do.
    #[serde(serialize_with = "kind_to_name", deserialize_with = "kind_from_name")]
    #[schema(schema_with = kind_schema)]
    pub kind: ErrorKind,
    /// Description for users: the problem and the affected object.
    pub message: String,
    /// Remedy for users: the next step.
    pub action: String,
    /// Field of the request's body that is missing or wrong, such as `vdevs[0].disks`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

/// Body of every error response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ApiError,
}

impl ApiError {
    /// Creates an error with the usual action for its kind.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), action: advice(kind).to_owned(), field: None }
    }

    /// Returns the error with a more specific action.
    #[must_use]
    pub fn with_action(mut self, action: impl Into<String>) -> Self {
        self.action = action.into();
        self
    }

    /// Returns the error's kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// Returns the usual action for an error of this kind.
pub const fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "correct the request",
        ErrorKind::NotFound => "check the name against the list",
        ErrorKind::Exists => "use another name, or the existing object",
        ErrorKind::Busy => "stop what uses it, then try again",
        ErrorKind::NoSpace => "free space or add disks; reads and TRIM still work",
        ErrorKind::ReadOnly => "make it writable, or write elsewhere",
        ErrorKind::Unavailable => "check its state, then try again",
        ErrorKind::Data => "restore the damaged data from a copy",
        ErrorKind::Poisoned => "repair the pool's disks, then clear the pool",
        ErrorKind::Permission => "run with more rights, or change the file's mode",
        ErrorKind::Internal => "report this as a fault of Weir, with the log",
    }
}

/// Returns the HTTP status of an error kind.
pub const fn http_status(kind: ErrorKind) -> StatusCode {
    match kind {
        ErrorKind::Invalid => StatusCode::BAD_REQUEST,
        ErrorKind::NotFound => StatusCode::NOT_FOUND,
        ErrorKind::Exists => StatusCode::CONFLICT,
        ErrorKind::Busy => StatusCode::LOCKED,
        ErrorKind::NoSpace => StatusCode::INSUFFICIENT_STORAGE,
        ErrorKind::ReadOnly | ErrorKind::Permission => StatusCode::FORBIDDEN,
        ErrorKind::Unavailable | ErrorKind::Poisoned => StatusCode::SERVICE_UNAVAILABLE,
        ErrorKind::Data | ErrorKind::Internal => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

/// Returns the exit code of a process that ends with an error of this kind. Other codes have a
/// meaning already: 0 is success, 2 is an invalid command line, and shells and panics use 1 and the
/// codes from 101 on.
pub const fn exit_code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Invalid => 3,
        ErrorKind::NotFound => 4,
        ErrorKind::Exists => 5,
        ErrorKind::Busy => 6,
        ErrorKind::NoSpace => 7,
        ErrorKind::ReadOnly => 8,
        ErrorKind::Unavailable => 9,
        ErrorKind::Data => 10,
        ErrorKind::Poisoned => 11,
        ErrorKind::Permission => 12,
        ErrorKind::Internal => 13,
    }
}

// The attribute `serialize_with` of serde requires a function that takes a reference.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde calls")]
fn kind_to_name<S: Serializer>(kind: &ErrorKind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(kind.name())
}

/// Converts a kind that this client does not know, from a newer server, to `Internal`. The message
/// of the error is kept.
fn kind_from_name<'de, D: Deserializer<'de>>(from: D) -> Result<ErrorKind, D::Error> {
    let name = String::deserialize(from)?;
    let known = ErrorKind::ALL.into_iter().find(|kind| kind.name() == name);
    Ok(known.unwrap_or(ErrorKind::Internal))
}

fn kind_schema() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("Kind of an error, which determines the remedy."))
        .enum_values(Some(ErrorKind::ALL.map(ErrorKind::name)))
        .build()
}
