//! Paths of forecasts.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariant: a handler only takes a request apart, checks it and passes it on.

use axum::Json;
use axum::extract::State;

use super::{Shared, to_end};
use crate::types::{DedupeEstimate, DedupeForecast, Request, VolumeAdvice, VolumeAdvise};
use crate::wire::{ApiError, ErrorBody};

/// Measures what other settings would make of a volume. Without `job` it starts; an answer with a
/// `job` is to be asked for again.
#[utoipa::path(
    post, path = "/v1/advise", operation_id = "volume_advise", tag = "volume",
    request_body = VolumeAdvise,
    responses((status = 200, body = VolumeAdvice), (status = "default", body = ErrorBody)),
)]
pub(super) async fn volume(
    State(control): State<Shared>,
    Json(request): Json<VolumeAdvise>,
) -> Result<Json<VolumeAdvice>, ApiError> {
    request.check()?;
    to_end(async move { control.volume_advise(request).await }).await.map(Json)
}

/// Counts what dedupe would find in volumes. Without `job` it starts; an answer with a `job` is to
/// be asked for again.
#[utoipa::path(
    post, path = "/v1/dedupe/estimate", operation_id = "dedupe_estimate", tag = "volume",
    request_body = DedupeEstimate,
    responses((status = 200, body = DedupeForecast), (status = "default", body = ErrorBody)),
)]
pub(super) async fn dedupe(
    State(control): State<Shared>,
    Json(request): Json<DedupeEstimate>,
) -> Result<Json<DedupeForecast>, ApiError> {
    request.check()?;
    to_end(async move { control.dedupe_estimate(request).await }).await.map(Json)
}
