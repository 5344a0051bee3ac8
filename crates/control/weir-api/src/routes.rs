//! The HTTP paths of API version 1, and their OpenAPI document.
//!
//! Sockets and limits are in `server`, identification and authorization of callers in `guard` and
//! `authorization`.
//!
//! Invariants:
//! - a path is served if and only if it is in the OpenAPI document: both come from the table of
//!   calls;
//! - a request is checked before its handler runs;
//! - a call that has started runs to its end, even if its caller disconnects.

use std::sync::Arc;

use axum::body::Bytes;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, middleware};

use crate::calls::call::{Call, Handle};
use crate::calls::table::{Control, VisitHandlers, visit_handlers};
use crate::guard;
use crate::types::ListEvents;
use crate::wire::{ApiError, ErrorBody, http_status};

mod describe;
mod endpoint;
mod event;
mod example;
mod peer;
mod streams;

pub use describe::openapi;
pub(crate) use peer::peer_router;
pub(crate) use streams::PART_TYPE;

use endpoint::Endpoint;

/// Returns the HTTP service of the interface.
pub(crate) fn router<S: Control>(control: &Arc<S>) -> Router {
    // The document is the same for every caller, so serialize it once.
    let document = Bytes::from(openapi().to_json().unwrap_or_default());
    let answer = move || async move { ([(CONTENT_TYPE, "application/json")], document) };
    let mut all = All { control, endpoints: Vec::new() };
    visit_handlers(&mut all);
    endpoint::router(all.endpoints)
        .merge(streams::router(Arc::clone(control)))
        .route("/v1/openapi.json", axum::routing::get(answer))
        .layer(middleware::map_response(guard::uniform_errors))
}

/// Creates the endpoints of all calls for a server.
struct All<'a, S> {
    control: &'a Arc<S>,
    endpoints: Vec<Endpoint>,
}

impl<S: Control> VisitHandlers<S> for All<'_, S> {
    fn visit<C: Call>(&mut self)
    where
        S: Handle<C>,
    {
        let endpoint = if C::OPERATION == ListEvents::OPERATION {
            // The call for events has its own endpoint: while it waits, it holds no permit, and its
            // connection can be evicted.
            event::endpoint(self.control)
        } else {
            Endpoint::new(self.control, |control, call: C, page| {
                Box::pin(endpoint::authorized(control, call, page))
            })
        };
        self.endpoints.push(endpoint);
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (http_status(self.kind), Json(ErrorBody { error: self })).into_response()
    }
}
