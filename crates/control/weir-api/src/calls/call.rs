//! A management call: a row of the table of calls, a request, an answer and a handler.
//!
//! The rows are in `table`. The server implements [`Handle`] with the engine. `path` and `shape`
//! decide where a field of a call is in the HTTP request.
//!
//! Invariants:
//! - a changing call may be repeated: if the requested state already exists, the answer is
//!   `unchanged`. A call that removes an object which does not exist fails with `not_found`, so
//!   that a misspelled name never looks like success;
//! - a changing call that has started runs to its end, even if its caller disconnects.

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
    /// The call waits for no disk; the server runs it directly.
    Look,
    /// The call may wait for disks. Its caller gets an error while the disks are unresponsive.
    Wait,
    /// The call may wait for disks, and its outcome is recorded in history and events.
    Change,
}

/// One row of the table of calls, without the types of the request and the answer.
#[derive(Debug)]
pub struct Operation {
    /// Name of the call in the OpenAPI document and in events.
    pub name: &'static str,
    /// Method of the call's HTTP request.
    pub method: Method,
    /// Path of the call's HTTP request, see [`calls!`](super::table).
    pub path: &'static str,
    /// The lowest role that may make the call.
    pub role: Role,
    /// The resources that the call accesses.
    pub reach: Resources,
    /// The way in which the server runs the call.
    pub mode: Mode,
    /// HTTP statuses of a success. If there are two, the first one is for the outcome `created`.
    pub statuses: &'static [u16],
    /// Group of the call in the OpenAPI document.
    pub tag: &'static str,
    /// Summary of the call in the OpenAPI document.
    pub summary: &'static str,
}

impl PartialEq for Operation {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

/// A request type that has a row in the table of calls.
pub trait Call: Request {
    /// Type of the answer to the call.
    type Answer: Answer;
    /// Row of the call in the table.
    const OPERATION: &'static Operation;
}

/// The server's code for one kind of call.
pub trait Handle<C: Call>: Send + Sync + 'static {
    /// Carries out the call and returns its answer.
    fn handle(&self, call: C) -> impl Future<Output = Result<C::Answer, ApiError>> + Send;

    /// Authorizes a call with [`Resources::LookedUp`]: only the server knows which objects the call
    /// accesses.
    fn authorize(
        &self,
        _call: &C,
        _scope: &Scope,
    ) -> impl Future<Output = Result<(), ApiError>> + Send {
        let message = format!("{} has no check of its scope", C::OPERATION.name);
        std::future::ready(Err(ApiError::new(ErrorKind::Internal, message)))
    }

    /// Name of the call's object in history and events, see [`Request::about`].
    fn about(&self, call: &C) -> String {
        call.about()
    }

    /// True if this request changes nothing, see [`Request::is_dry_run`].
    fn is_dry_run(&self, call: &C) -> bool {
        call.is_dry_run()
    }
}

/// Entry for a call in history and events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditLine {
    /// Kind of the event: the name of the operation.
    pub kind: &'static str,
    /// Full name of the object that the call changes. Its first part is the pool.
    pub about: String,
    /// The rest of the request as text, such as the tag of a hold.
    pub details: String,
}

/// A running call; the result of a changing call is its outcome.
pub type Work = BoxFuture<'static, Result<Option<Outcome>, ApiError>>;

/// Runs calls that may wait for disks, and records changes.
pub trait Run: Send + Sync + 'static {
    /// Runs a call to its end, even if the returned future is dropped. If disks are unresponsive,
    /// the future returns an error before the call has ended. If `is_recorded` is true, records the
    /// call with its outcome.
    fn run(&self, line: AuditLine, is_recorded: bool, work: Work) -> Pending<'_, ()>;
}

/// A future with the result of a call.
pub type Pending<'a, T> = Pin<Box<dyn Future<Output = Result<T, ApiError>> + Send + 'a>>;
