//! Paths of tokens.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::{Path, State};
use axum::http::StatusCode;

use super::{Shared, to_end};
use crate::types::{Removed, Request, TokenCreate, TokenCreated, TokenKey, TokenList};
use crate::wire::{ApiError, ErrorBody};

/// Lists tokens; their secrets are not among what the server knows.
#[utoipa::path(
    get, path = "/v1/tokens", operation_id = "token_list", tag = "token",
    responses((status = 200, body = TokenList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(State(control): State<Shared>) -> Result<Json<TokenList>, ApiError> {
    to_end(async move { control.token_list().await }).await.map(Json)
}

/// Makes a token; its secret is told in this answer only.
#[utoipa::path(
    post, path = "/v1/tokens", operation_id = "token_create", tag = "token",
    request_body = TokenCreate,
    responses(
        (status = 201, description = "Made now", body = TokenCreated),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn create(
    State(control): State<Shared>,
    Json(request): Json<TokenCreate>,
) -> Result<(StatusCode, Json<TokenCreated>), ApiError> {
    request.check()?;
    let made = to_end(async move { control.token_create(request).await }).await?;
    Ok((StatusCode::CREATED, Json(made)))
}

/// Revokes a token: the next call with it is refused.
#[utoipa::path(
    delete, path = "/v1/tokens/{name}", operation_id = "token_revoke", tag = "token",
    params(("name" = String, Path, description = "Name of the token")),
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn revoke(
    State(control): State<Shared>,
    Path(name): Path<String>,
) -> Result<Json<Removed>, ApiError> {
    let key = TokenKey { name };
    key.check()?;
    to_end(async move { control.token_revoke(key).await }).await.map(Json)
}
