//! Paths of properties.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::{Query, State};
use serde::Deserialize;

use super::{Shared, to_end};
use crate::types::{
    PropertyChange, PropertyInherit, PropertyList, PropertyQuery, PropertySet, Request,
};
use crate::wire::{ApiError, ErrorBody};

/// Which properties of what.
#[derive(Debug, Deserialize)]
pub(super) struct Which {
    /// Names, with commas between them.
    #[serde(default)]
    of: String,
    /// As `of`.
    #[serde(default)]
    properties: String,
}

fn split(list: &str) -> Vec<String> {
    list.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// Tells properties, and where their values come from.
#[utoipa::path(
    get, path = "/v1/properties", operation_id = "property_get", tag = "property",
    params(
        ("of" = Option<String>, Query, description =
            "Full names of pools, volumes and snapshots, with commas between; else all pools and \
             volumes"),
        ("properties" = Option<String>, Query, description =
            "Names of properties, with commas between; else all"),
    ),
    responses((status = 200, body = PropertyList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(
    State(control): State<Shared>,
    Query(Which { of, properties }): Query<Which>,
) -> Result<Json<PropertyList>, ApiError> {
    let query = PropertyQuery { of: split(&of), properties: split(&properties) };
    query.check()?;
    to_end(async move { control.property_get(query).await }).await.map(Json)
}

/// Sets properties of a pool, volume or snapshot.
#[utoipa::path(
    patch, path = "/v1/properties", operation_id = "property_set", tag = "property",
    request_body = PropertySet,
    responses((status = 200, body = PropertyChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn set(
    State(control): State<Shared>,
    Json(request): Json<PropertySet>,
) -> Result<Json<PropertyChange>, ApiError> {
    request.check()?;
    to_end(async move { control.property_set(request).await }).await.map(Json)
}

/// Lets a pool, volume or snapshot inherit a property again.
#[utoipa::path(
    post, path = "/v1/properties/inherit", operation_id = "property_inherit", tag = "property",
    request_body = PropertyInherit,
    responses((status = 200, body = PropertyChange), (status = "default", body = ErrorBody)),
)]
pub(super) async fn inherit(
    State(control): State<Shared>,
    Json(request): Json<PropertyInherit>,
) -> Result<Json<PropertyChange>, ApiError> {
    request.check()?;
    to_end(async move { control.property_inherit(request).await }).await.map(Json)
}
