//! A management call: a row of the table, a request, an answer, a handler.
//!
//! Not here: the rows (`table`), the handlers (the server implements [`Handle`] over the engine),
//! the places of fields in an HTTP request (`path`, `shape`).
//!
//! Invariants:
//! - a changing call may be repeated: a state that is as requested answers `unchanged`. A call that
//!   removes something which does not exist fails with `not_found`, so that a mistyped name never
//!   looks like success;
//! - a changing call that has started runs to its end, also when its caller disconnects.

use std::future::Future;
use std::pin::Pin;

use axum::http::Method;
use futures_util::future::BoxFuture;
use weir_base::ErrorKind;

use crate::access::{Resources, Role, Scope};
use crate::types::{Answer, Outcome, Request};
use crate::wire::ApiError;

/// The way in which the server runs a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Directly: it waits for no disk.
    Look,
    /// It may wait for disks. Its caller gets an error while they do not answer.
    Wait,
    /// As `Wait`, and its outcome is recorded.
    Change,
}

/// A call without its types: one row of the table.
#[derive(Debug)]
pub struct Operation {
    /// Its name in the OpenAPI document and in the record.
    pub name: &'static str,
    /// Method of its HTTP request.
    pub method: Method,
    /// Path of its HTTP request, see [`calls!`](super::table).
    pub path: &'static str,
    /// The lowest role that may make it.
    pub role: Role,
    /// The objects that it touches.
    pub reach: Resources,
    /// The way in which the server runs it.
    pub mode: Mode,
    /// HTTP status of a success. With two, the first one is for an outcome of `created`.
    pub statuses: &'static [u16],
    /// Its group in the OpenAPI document.
    pub tag: &'static str,
    /// Its summary in the OpenAPI document.
    pub summary: &'static str,
}

impl PartialEq for Operation {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A request with a row in the table.
pub trait Call: Request {
    /// Type of its answer.
    type Answer: Answer;
    /// Its row.
    const OPERATION: &'static Operation;
}

/// The code that answers a call.
pub trait Handle<C: Call>: Send + Sync + 'static {
    /// Makes the call.
    fn handle(&self, call: C) -> impl Future<Output = Result<C::Answer, ApiError>> + Send;

    /// Authorizes a call of [`Resources::LookedUp`]: only the server knows the names that it
    /// touches.
    fn authorize(
        &self,
        _call: &C,
        _scope: &Scope,
    ) -> impl Future<Output = Result<(), ApiError>> + Send {
        let message = format!("{} has no check of its scope", C::OPERATION.name);
        std::future::ready(Err(ApiError::new(ErrorKind::Internal, message)))
    }

    /// The name that the record has for the subject, see [`Request::about`].
    fn about(&self, call: &C) -> String {
        call.about()
    }

    /// True if the call changes nothing, see [`Request::is_dry_run`].
    fn is_dry_run(&self, call: &C) -> bool {
        call.is_dry_run()
    }
}

/// The entry of a call in the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// Kind of its event: the name of the operation.
    pub kind: &'static str,
    /// Full name of its subject. Its first part is the pool.
    pub about: String,
    /// The rest of the request, such as the tag of a hold.
    pub details: String,
}

/// A running call; it returns the outcome of a change.
pub type Work = BoxFuture<'static, Result<Option<Outcome>, ApiError>>;

/// Runs calls that wait for disks, and records changes.
pub trait Run: Send + Sync + 'static {
    /// Runs a call to its end, also when the returned future is dropped or ends first because the
    /// disks do not answer. A recorded call is recorded with its outcome.
    fn run(&self, line: AuditLine, is_recorded: bool, work: Work) -> Pending<'_, ()>;
}

/// The result of a call, to be awaited.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send + 'a>>;
