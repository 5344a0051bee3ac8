//! The HTTP paths of version 1, and the OpenAPI document they make.
//!
//! Not here: sockets and limits (`server`), who may call (`guard`).
//!
//! Invariants:
//! - a path is served if and only if it is in the document: both come from one list;
//! - a request is checked before [`Control`] sees it;
//! - a call that has started runs to its end, also when the client goes away.

use std::future::Future;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::{Json, Router, middleware};
use utoipa::openapi::extensions::Extensions;
use utoipa::openapi::{InfoBuilder, LicenseBuilder, OpenApi, OpenApiBuilder};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use weir_base::ErrorKind;

use crate::caller;
use crate::control::Control;
use crate::gate::Operation;
use crate::guard;
use crate::types::page::{self, PageQuery, Paged};
use crate::types::{Outcome, ServerInfo};
use crate::wire::{ApiError, ErrorBody, http_status};

mod advise;
mod bookmark;
mod care;
mod event;
mod export;
mod legs;
mod peer;
mod pool;
mod property;
mod replication;
mod schedule;
mod snapshot;
mod target;
mod token;
mod transfer;
mod vdevs;
mod volume;

pub(crate) use care::{MovedDisk, OneDisk, ScrubOptions, SomeDisks};
pub(crate) use export::ExportClients;
pub(crate) use legs::{NewDisk, Successor};
pub(crate) use peer::peer_router;
pub(crate) use pool::CloseOptions;
pub(crate) use transfer::PART_TYPE;
pub(crate) use vdevs::{NewVdevs, OneVdev};
pub(crate) use volume::{NewName, NewSize};

type Shared = Arc<dyn Control>;

/// The OpenAPI 3.1 document of the interface.
pub fn openapi() -> OpenApi {
    with_roles(described().into_openapi())
}

/// Writes beside each operation which role it needs.
fn with_roles(mut document: OpenApi) -> OpenApi {
    for item in document.paths.paths.values_mut() {
        let all = [&mut item.get, &mut item.put, &mut item.post, &mut item.delete, &mut item.patch];
        for operation in all.into_iter().flatten() {
            let id = operation.operation_id.as_deref().unwrap_or_default();
            let known = Operation::find(id);
            // A path without a role would be open to everybody who may call at all.
            let role = known.unwrap_or_else(|| panic!("{id} is not in the table of the gate"));
            let role = Extensions::builder().add("x-weir-role", role.role().name()).build();
            operation.extensions.get_or_insert_default().merge(role);
        }
    }
    document
}

/// The interface as a service.
pub(crate) fn router(control: Shared) -> Router {
    let (router, document) = described().split_for_parts();
    let document = with_roles(document);
    // The same for every caller, so it is printed once.
    let document = Bytes::from(document.to_json().unwrap_or_default());
    let answer = move || async move { ([(CONTENT_TYPE, "application/json")], document) };
    router
        .route("/v1/openapi.json", axum::routing::get(answer))
        .with_state(control)
        .layer(middleware::map_response(guard::uniform_errors))
}

fn described() -> OpenApiRouter<Shared> {
    let license = LicenseBuilder::new().name("Apache-2.0").identifier(Some("Apache-2.0"));
    let info = InfoBuilder::new()
        .title("Weir")
        .version("1")
        .description(Some(
            "Management of pools, volumes, snapshots, exports and targets. A changing call may be \
             repeated: `outcome` tells whether it changed anything. Changing calls need the header \
             `content-type: application/json`, or that of a part of a stream. Over TCP every call \
             carries a token, `authorization: Bearer TOKEN`; `x-weir-role` is the lowest role that \
             may make it.",
        ))
        .license(Some(license.build()));
    OpenApiRouter::with_openapi(OpenApiBuilder::new().info(info.build()).build())
        .routes(routes!(server_info))
        .routes(routes!(pool::list, pool::create))
        .routes(routes!(pool::status, pool::destroy))
        .routes(routes!(pool::export))
        .routes(routes!(care::scrub))
        .routes(routes!(care::offline))
        .routes(routes!(care::online))
        .routes(routes!(care::clear))
        .routes(routes!(legs::attach))
        .routes(routes!(legs::replace))
        .routes(routes!(legs::detach))
        .routes(routes!(vdevs::add))
        .routes(routes!(vdevs::remove))
        .routes(routes!(vdevs::expand))
        .routes(routes!(pool::import))
        .routes(routes!(event::history))
        .routes(routes!(event::events))
        .routes(routes!(pool::scan))
        .routes(routes!(property::list, property::set))
        .routes(routes!(property::inherit))
        .routes(routes!(volume::list, volume::create))
        .routes(routes!(volume::show, volume::set, volume::destroy))
        .routes(routes!(volume::resize))
        .routes(routes!(volume::rename))
        .routes(routes!(volume::copy))
        .routes(routes!(volume::promote))
        .routes(routes!(advise::volume))
        .routes(routes!(advise::dedupe))
        .routes(routes!(snapshot::list, snapshot::create))
        .routes(routes!(snapshot::destroy))
        .routes(routes!(snapshot::hold))
        .routes(routes!(snapshot::release))
        .routes(routes!(snapshot::rename))
        .routes(routes!(snapshot::rollback))
        .routes(routes!(snapshot::clone))
        .routes(routes!(bookmark::list, bookmark::create))
        .routes(routes!(bookmark::destroy))
        .routes(routes!(transfer::send_start))
        .routes(routes!(transfer::send_stream))
        .routes(routes!(transfer::send_show, transfer::send_stop))
        .routes(routes!(transfer::list))
        .routes(routes!(transfer::cancel))
        .routes(routes!(transfer::receive_start))
        .routes(routes!(transfer::receive_part))
        .routes(routes!(transfer::receive_finish))
        .routes(routes!(transfer::receive_stop))
        .routes(routes!(transfer::receive_token, transfer::receive_abort))
        .routes(routes!(replication::list, replication::create))
        .routes(routes!(replication::act))
        .routes(routes!(replication::delete))
        .routes(routes!(replication::digest))
        .routes(routes!(schedule::list, schedule::set))
        .routes(routes!(schedule::clear))
        .merge(clients_described())
}

/// The part of the document about who uses volumes, and who may call.
fn clients_described() -> OpenApiRouter<Shared> {
    OpenApiRouter::new()
        .routes(routes!(export::list, export::create))
        .routes(routes!(export::show, export::set, export::delete))
        .routes(routes!(target::list, target::create))
        .routes(routes!(target::show, target::delete))
        .routes(routes!(target::allow))
        .routes(routes!(target::deny))
        .routes(routes!(target::add_lun))
        .routes(routes!(target::remove_lun))
        .routes(routes!(token::list, token::create))
        .routes(routes!(token::revoke))
}

/// What the server process is and uses.
#[utoipa::path(
    get, path = "/v1/server", operation_id = "server_info", tag = "server",
    responses((status = 200, body = ServerInfo), (status = "default", body = ErrorBody)),
)]
async fn server_info(State(control): State<Shared>) -> Result<Json<ServerInfo>, ApiError> {
    to_end(async move { control.server_info().await }).await.map(Json)
}

/// Runs a call to its end: dropped half-way, it could leave a change half made.
async fn to_end<T: Send + 'static>(
    call: impl Future<Output = Result<T, ApiError>> + Send + 'static,
) -> Result<T, ApiError> {
    // Whoever acts on the call may ask who made it.
    tokio::spawn(caller::on_behalf_of(caller::current(), call)).await.unwrap_or_else(|broken| {
        tracing::error!(error = %broken, "a management call broke");
        Err(ApiError::new(ErrorKind::Internal, "the call broke inside the server"))
    })
}

/// The `force` parameter of calls that may cut clients off.
#[derive(Debug, serde::Deserialize)]
struct Force {
    /// Also where clients are connected.
    #[serde(default)]
    force: bool,
}

/// Runs a call for a list to its end and answers the page that was asked for. The rest of the list
/// is dropped before anything is sent.
async fn listed<L: Paged + Send + 'static>(
    page: PageQuery,
    call: impl Future<Output = Result<L, ApiError>> + Send + 'static,
) -> Result<Json<L>, ApiError> {
    // Servers of earlier versions replicate to this one and know of no pages.
    let PageQuery { after, limit } = &page;
    if after.is_none() && limit.is_none() && caller::current().peer().is_some() {
        return to_end(call).await.map(Json);
    }
    to_end(async move { page::cut(call.await?, &page) }).await.map(Json)
}

const fn success(outcome: Outcome) -> StatusCode {
    match outcome {
        Outcome::Created => StatusCode::CREATED,
        Outcome::Changed | Outcome::Removed | Outcome::Unchanged => StatusCode::OK,
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (http_status(self.kind), Json(ErrorBody { error: self })).into_response()
    }
}
