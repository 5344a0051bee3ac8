//! The endpoint that all calls share: parses the request, authorizes the call, makes it, and
//! serializes the response.
//!
//! `calls::shape` knows where the fields of a request are; the server has the handlers.
//!
//! Only [`Endpoint::new`] and the functions that it calls are compiled for each kind of call. All
//! other code here is compiled once, and handles all calls as a row of the table and JSON bytes.
//!
//! Invariants:
//! - a request passes its own check and the authorization before its handler runs;
//! - a response to a caller with a scope passes [`Answer::keep`].

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::{Query, RawPathParams};
use axum::http::header::CONTENT_TYPE;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, on};
use futures_util::future::BoxFuture;
use serde::de::DeserializeOwned;
use weir_base::{ErrorKind, Slot};

use crate::access::Resources;
use crate::calls::call::{AuditLine, Call, Handle, Mode, Operation, Run, Work};
use crate::calls::shape::Shape;
use crate::calls::table::Control;
use crate::types::{Answer, Outcome, Page};
use crate::wire::ApiError;
use crate::{authorization, caller};

/// Status and JSON of the response to a call.
pub(super) type Answered = Result<(StatusCode, Vec<u8>), ApiError>;

/// Function that makes a call from its request in JSON.
type Answering = dyn Fn(&[u8], Page) -> BoxFuture<'static, Answered> + Send + Sync;

/// A call as part of the HTTP interface.
pub(super) struct Endpoint {
    shape: Shape,
    answer: Box<Answering>,
}

impl Endpoint {
    /// Creates an endpoint that makes calls with `make`.
    pub(super) fn new<S, C, F>(control: &Arc<S>, make: F) -> Self
    where
        S: Send + Sync + 'static,
        C: Call,
        F: Fn(Arc<S>, C, Page) -> BoxFuture<'static, Answered>,
        F: Send + Sync + 'static,
    {
        let control = Arc::clone(control);
        let answer = move |text: &[u8], page: Page| -> BoxFuture<'static, Answered> {
            let checked = read::<C>(text).and_then(|call| {
                call.check()?;
                Ok(call.limited())
            });
            match checked {
                Ok(call) => make(Arc::clone(&control), call, page),
                Err(error) => Box::pin(std::future::ready(Err(error))),
            }
        };
        Self { shape: Shape::of::<C>(), answer: Box::new(answer) }
    }

    async fn respond(&self, params: RawPathParams, uri: Uri, body: Bytes) -> Response {
        let answered = async {
            let query = Query::<Vec<(String, String)>>::try_from_uri(&uri);
            let query = query.map_err(|error| bad(error.to_string()))?.0;
            let params: Vec<(&str, &str)> = params.iter().collect();
            let text = self.shape.text(&params, &query, &body)?;
            (self.answer)(&text, page(&query)?).await
        };
        match answered.await {
            Ok((status, json)) => {
                (status, [(CONTENT_TYPE, "application/json")], json).into_response()
            }
            Err(error) => error.into_response(),
        }
    }
}

/// Returns the HTTP service of the endpoints.
pub(super) fn router(endpoints: Vec<Endpoint>) -> Router {
    let mut router = Router::new();
    for endpoint in endpoints {
        let route = endpoint.shape.path.route();
        let method = endpoint.shape.operation.method.clone();
        let method = MethodFilter::try_from(method).expect("the table has methods of HTTP");
        let endpoint = Arc::new(endpoint);
        let handler = move |params: RawPathParams, uri: Uri, body: Bytes| async move {
            endpoint.respond(params, uri, body).await
        };
        router = router.route(&route, on(method, handler));
    }
    router
}

/// Makes a call of the current caller within its rights. Limits the response to the caller's scope
/// and to the requested page.
pub(super) async fn authorized<S, C>(control: Arc<S>, call: C, page: Page) -> Answered
where
    S: Control + Handle<C>,
    C: Call,
{
    let row = C::OPERATION;
    let scope =
        authorization::authorize(row, call.role(row.role), call.reach(row.reach), &call.names())?;
    let made = async {
        if row.reach == Resources::LookedUp {
            control.authorize(&call, &scope).await?;
        }
        let scope = scope.clone();
        let finish = move |mut answer: C::Answer| {
            if !scope.is_all() {
                answer.keep(&scope);
            }
            write::<C>(answer, &page)
        };
        perform_as(control, call, finish).await
    };
    made.await.map_err(|error| authorization::keep_error(&error, &scope))
}

/// Makes a call and returns its response.
pub(super) async fn perform<S, C>(control: Arc<S>, call: C) -> Result<C::Answer, ApiError>
where
    S: Control + Handle<C>,
    C: Call,
{
    perform_as(control, call, Ok).await
}

/// Makes a call, which runs to its end even if its caller disconnects. `finish` runs in the task of
/// the call, so that only the result of `finish` stays in memory while the caller receives it.
/// Otherwise 60 calls for a list would hold 60 complete lists in memory.
pub(super) async fn perform_as<S, C, T>(
    control: Arc<S>,
    call: C,
    finish: impl FnOnce(C::Answer) -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError>
where
    S: Control + Handle<C>,
    C: Call,
    T: Send + 'static,
{
    let row = C::OPERATION;
    let line = (row.mode != Mode::Look).then(|| AuditLine {
        kind: call.kind().unwrap_or(row.name),
        about: control.about(&call),
        details: call.details(),
    });
    let is_recorded = row.mode == Mode::Change && !control.is_dry_run(&call);
    let finished = Slot::default();
    let (into, server) = (finished.clone(), Arc::clone(&control));
    let work: Work = Box::pin(async move {
        let done = server.handle(call).await?;
        let outcome = done.outcome();
        into.fill(finish(done));
        Ok(outcome)
    });
    run(control, line, is_recorded, work).await?;
    finished.take()
}

/// Returns the status and the JSON of a response. The response to a list call contains only the
/// requested page.
pub(super) fn write<C: Call>(mut answer: C::Answer, page: &Page) -> Answered {
    if C::Answer::ENTRIES.is_some() && !is_whole_list(page) {
        answer = answer.page(page)?;
    }
    let status = success(C::OPERATION, answer.outcome());
    Ok((status, serde_json::to_vec(&answer).map_err(|error| broken(&error))?))
}

/// Runs the part of [`perform_as`] that does not depend on the type of the call.
async fn run(
    control: Arc<dyn Run>,
    line: Option<AuditLine>,
    is_recorded: bool,
    work: Work,
) -> Result<(), ApiError> {
    to_end(async move {
        match line {
            Some(line) => control.run(line, is_recorded, work).await,
            None => work.await.map(drop),
        }
    })
    .await
}

/// Runs a call to its end: a call that was dropped midway could leave an incomplete change.
pub(super) async fn to_end<T: Send + 'static>(
    call: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    tokio::spawn(caller::on_behalf_of(caller::current(), call)).await.unwrap_or_else(|broken| {
        tracing::error!(error = %broken, "a management call ended abnormally");
        Err(ApiError::new(ErrorKind::Internal, "the call failed inside the server"))
    })
}

/// Parses a request.
fn read<C: DeserializeOwned>(text: &[u8]) -> Result<C, ApiError> {
    let mut reader = serde_json::Deserializer::from_slice(text);
    let call = serde_path_to_error::deserialize(&mut reader)
        .map_err(|error| unreadable(&error.path().to_string(), error.inner()))?;
    reader.end().map_err(|error| unreadable(".", &error))?;
    Ok(call)
}

/// Describes the error of a body that cannot be parsed, and names the field if there is one.
fn unreadable(path: &str, error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let what = text.strip_suffix(&place).unwrap_or(&text);
    let body = format!("(body, line {}, column {})", error.line(), error.column());
    if error.is_syntax() || error.is_eof() {
        return bad(format!("the request is not valid JSON: {what} {body}"));
    }
    let quoted = |start: &str| what.strip_prefix(start)?.split('`').next();
    let join = |name: &str| match path {
        "." => name.to_owned(),
        // The path of the error already ends with the name of the unknown field.
        path if path.split('.').next_back() == Some(name) => path.to_owned(),
        path => format!("{path}.{name}"),
    };
    let (field, what) = match (quoted("missing field `"), quoted("unknown field `")) {
        (Some(name), _) => (Some(join(name)), format!("{} is missing", join(name))),
        (_, Some(name)) => (Some(join(name)), what.to_owned()),
        _ if path == "." => (None, what.to_owned()),
        _ => (Some(path.to_owned()), format!("{path}: {what}")),
    };
    ApiError { field, ..bad(format!("{what} {body}")) }
}

fn bad(message: String) -> ApiError {
    ApiError::new(ErrorKind::Invalid, message).with_action("see /v1/openapi.json for the calls")
}

fn broken(error: &serde_json::Error) -> ApiError {
    ApiError::new(ErrorKind::Internal, format!("the answer cannot be encoded: {error}"))
}

/// Returns the page that a query requests.
fn page(query: &[(String, String)]) -> Result<Page, ApiError> {
    let value = |name: &str| {
        let found = query.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    };
    let number = |text: String| {
        text.parse().map_err(|_| bad(format!("limit is {text:?}; it must be a number")))
    };
    Ok(Page { after: value("after"), limit: value("limit").map(number).transpose()? })
}

/// True if the response must contain the whole list, because the caller is a peer with an earlier
/// version, which does not support pages.
fn is_whole_list(page: &Page) -> bool {
    page.after.is_none() && page.limit.is_none() && caller::current().peer().is_some()
}

/// Returns the HTTP status of a successful call.
fn success(operation: &Operation, outcome: Option<Outcome>) -> StatusCode {
    let status = match operation.statuses {
        [made, _] if outcome == Some(Outcome::Created) => *made,
        [_, there] => *there,
        [only] => *only,
        statuses => panic!("{} answers {statuses:?}", operation.name),
    };
    StatusCode::from_u16(status).expect("the table has statuses of HTTP")
}
