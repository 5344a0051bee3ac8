//! The error every call answers with, and its codes at the HTTP and process borders.
//!
//! Not here: why a request was wrong ([`crate::Error`]); codes of data protocols.
//!
//! Invariants:
//! - each border has one exhaustive match from [`ErrorKind`] to its code;
//! - an error always carries an action: what the user can do now.

use axum::http::StatusCode;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use utoipa::ToSchema;
use utoipa::openapi::schema::{Object, ObjectBuilder, Type};
use weir_base::ErrorKind;

/// An error as the interface reports it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema, thiserror::Error)]
#[schema(as = Error)]
#[error("{message}")]
pub struct ApiError {
    /// What went wrong, by what the caller can do about it.
    #[serde(serialize_with = "kind_to_name", deserialize_with = "kind_from_name")]
    #[schema(schema_with = kind_schema)]
    pub kind: ErrorKind,
    /// What went wrong, for people: what and where.
    pub message: String,
    /// What to do now, for people.
    pub action: String,
}

/// The body of every answer that is not a success.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The error.
    pub error: ApiError,
}

impl ApiError {
    /// An error with the action its kind usually asks for.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), action: advice(kind).to_owned() }
    }

    /// The same error with a more exact action.
    #[must_use]
    pub fn with_action(mut self, action: impl Into<String>) -> Self {
        self.action = action.into();
        self
    }

    /// The error's kind.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }
}

/// What the user can usually do about an error of this kind.
pub const fn advice(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Invalid => "correct the request",
        ErrorKind::NotFound => "check the name; list shows what there is",
        ErrorKind::Exists => "pick another name, or use what is there",
        ErrorKind::Busy => "stop what uses it, then try again",
        ErrorKind::NoSpace => "free space or add disks; reads and TRIM still work",
        ErrorKind::ReadOnly => "make it writable, or write elsewhere",
        ErrorKind::Unavailable => "look at its state, then try again",
        ErrorKind::Data => "restore the damaged data from a copy",
        ErrorKind::Poisoned => "look at the pool's disks, then import it again",
        ErrorKind::Permission => "run with more rights, or change the file's mode",
        ErrorKind::Internal => "report this as a fault of Weir, with the log",
    }
}

/// HTTP status of an error kind.
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

/// Exit code of a process that ends with an error kind; 0 is success, 2 a command line that
/// cannot be read, 1 and 101 upward are left to shells and panics.
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

// Serde prescribes the reference.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "the signature serde calls")]
fn kind_to_name<S: Serializer>(kind: &ErrorKind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(kind.name())
}

/// A kind a newer server knows and this client does not reads as `Internal`; the message stays.
fn kind_from_name<'de, D: Deserializer<'de>>(from: D) -> Result<ErrorKind, D::Error> {
    let name = String::deserialize(from)?;
    let known = ErrorKind::ALL.into_iter().find(|kind| kind.name() == name);
    Ok(known.unwrap_or(ErrorKind::Internal))
}

fn kind_schema() -> Object {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("What went wrong, by what the caller can do about it."))
        .enum_values(Some(ErrorKind::ALL.map(ErrorKind::name)))
        .build()
}
