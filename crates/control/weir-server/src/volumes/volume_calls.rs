//! Volumes: showing, changing and destroying them.
//!
//! Not here: their snapshots (snapshots), their data (exports).
//!
//! Invariant: a change runs on its pool's thread, one at a time.

use std::sync::Arc;

use weir_api::ApiError;
use weir_api::types::{
    Outcome, Removed, Volume, VolumeChange, VolumeCopy, VolumeDestroy, VolumeRename,
};
use weir_base::names;
use weir_dataset::Engine;

use crate::answer::errors::{self, api_error};
use crate::answer::names::split;
use crate::answer::pool_status;
use crate::exports::export_calls::Of;
use crate::state::server::Manager;

impl Manager {
    pub(crate) fn show_volume(&self, full: &str) -> Result<Volume, ApiError> {
        let (pool, own) = split(full)?;
        let engine = Arc::clone(&self.pool(pool)?.engine);
        let volume = engine.volume(own).map_err(|error| api_error(&error))?;
        Ok(pool_status::volume(&engine, &volume, self.exports_of(Of::Dataset(full))))
    }

    /// Runs a change of a volume on its pool's thread and shows the result.
    pub(crate) async fn change_volume<F>(
        &self,
        full: &str,
        made: Outcome,
        change: impl FnOnce(Arc<Engine>, String) -> F + Send + 'static,
    ) -> Result<VolumeChange, ApiError>
    where
        F: Future<Output = Result<weir_dataset::Outcome, weir_dataset::DatasetError>> + 'static,
    {
        let (pool, own) = split(full)?;
        let _changes = self.changes.lock(pool).await;
        let own = own.to_owned();
        let outcome = self.pool(pool)?.call(move |engine| change(engine, own)).await?;
        let outcome = match outcome {
            weir_dataset::Outcome::Changed => made,
            weir_dataset::Outcome::Unchanged => Outcome::Unchanged,
        };
        Ok(VolumeChange { outcome, volume: self.show_volume(full)? })
    }

    pub(crate) async fn rename_volume(
        &self,
        request: VolumeRename,
    ) -> Result<VolumeChange, ApiError> {
        let (pool, own) = split(&request.name)?;
        let (_, to) = split(&request.to)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        let (own, to) = (own.to_owned(), to.to_owned());
        let renamed = open.call(move |engine| async move { engine.rename_volume(&own, &to).await });
        let outcome = errors::outcome(renamed.await?);
        self.follow_names(&open.engine)?;
        Ok(VolumeChange { outcome, volume: self.show_volume(&request.to)? })
    }

    pub(crate) async fn copy_volume(&self, request: VolumeCopy) -> Result<VolumeChange, ApiError> {
        let bad = |error| ApiError::from(weir_api::Error::from(error));
        let (of, snapshot) = names::dataset(&request.name).map_err(bad)?;
        let ((_, own), snapshot) = (split(of)?, snapshot.map(ToOwned::to_owned));
        let own = own.to_owned();
        self.change_volume(&request.to, Outcome::Created, move |engine, to| async move {
            engine.copy_volume(&own, snapshot.as_deref(), &to).await
        })
        .await
    }

    pub(crate) async fn promote_volume(&self, full: String) -> Result<VolumeChange, ApiError> {
        let (pool, own) = split(&full)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        let own = own.to_owned();
        let promoted = open.call(move |engine| async move { engine.promote(&own).await });
        let outcome = errors::outcome(promoted.await?);
        // Its origin and what is older belong to it from now on.
        self.follow_names(&open.engine)?;
        Ok(VolumeChange { outcome, volume: self.show_volume(&full)? })
    }

    pub(crate) async fn destroy_volume(&self, request: VolumeDestroy) -> Result<Removed, ApiError> {
        let VolumeDestroy { name, recursive } = request;
        let (pool, own) = split(&name)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        open.engine.volume(own).map_err(|error| api_error(&error))?;
        self.refuse_exported(Of::Volume(&name))?;
        let own = own.to_owned();
        open.call(move |engine| async move { engine.destroy_volume(&own, recursive).await })
            .await?;
        self.follow_names(&open.engine)?;
        Ok(Removed { outcome: Outcome::Removed, name })
    }
}
