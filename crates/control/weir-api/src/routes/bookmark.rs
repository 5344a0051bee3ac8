//! Paths of bookmarks.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use serde::Deserialize;

use super::{Shared, listed, success, to_end};
use crate::types::page::PageQuery;
use crate::types::{
    BookmarkChange, BookmarkCreate, BookmarkDestroy, BookmarkList, Removed, Request, check_marked,
};
use crate::wire::{ApiError, ErrorBody};

/// Which bookmarks to list.
#[derive(Debug, Deserialize)]
pub(super) struct Which {
    /// Only those of this pool or volume.
    of: Option<String>,
}

/// Lists bookmarks: by volume, oldest first.
#[utoipa::path(
    get, path = "/v1/bookmarks", operation_id = "bookmark_list", tag = "bookmark",
    params(
        ("of" = Option<String>, Query, description = "Only those of this pool or volume"),
        ("after" = Option<String>, Query, description = "`next` of the page before"),
        ("limit" = Option<usize>, Query, description = "At most this many entries, up to 1000"),
    ),
    responses((status = 200, body = BookmarkList), (status = "default", body = ErrorBody)),
)]
pub(super) async fn list(
    State(control): State<Shared>,
    Query(Which { of }): Query<Which>,
    Query(page): Query<PageQuery>,
) -> Result<Json<BookmarkList>, ApiError> {
    of.as_deref().map_or(Ok(()), check_marked)?;
    listed(page, async move { control.bookmark_list(of).await }).await
}

/// Makes a bookmark of a snapshot.
#[utoipa::path(
    post, path = "/v1/bookmarks", operation_id = "bookmark_create", tag = "bookmark",
    request_body = BookmarkCreate,
    responses(
        (status = 201, description = "Made now", body = BookmarkChange),
        (status = 200, description = "It was there already", body = BookmarkChange),
        (status = "default", body = ErrorBody),
    ),
)]
pub(super) async fn create(
    State(control): State<Shared>,
    Json(request): Json<BookmarkCreate>,
) -> Result<(StatusCode, Json<BookmarkChange>), ApiError> {
    request.check()?;
    let change = to_end(async move { control.bookmark_create(request).await }).await?;
    Ok((success(change.outcome), Json(change)))
}

/// Destroys a bookmark.
#[utoipa::path(
    post, path = "/v1/bookmarks/destroy", operation_id = "bookmark_destroy", tag = "bookmark",
    request_body = BookmarkDestroy,
    responses((status = 200, body = Removed), (status = "default", body = ErrorBody)),
)]
pub(super) async fn destroy(
    State(control): State<Shared>,
    Json(request): Json<BookmarkDestroy>,
) -> Result<Json<Removed>, ApiError> {
    request.check()?;
    to_end(async move { control.bookmark_destroy(request).await }).await.map(Json)
}
