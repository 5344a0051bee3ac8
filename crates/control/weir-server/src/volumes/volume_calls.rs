//! Calls that show, change and destroy volumes.
//!
//! Calls about the snapshots of volumes are in `snapshots`, access to the data of volumes is in
//! `exports`.
//!
//! Invariant: a change runs on its pool's thread, one at a time.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_api::access::Scope;
use weir_api::calls::lookup;
use weir_api::types::{
    DatasetKind, ListVolumes, Outcome, PropertyChange, PropertySet, Removed, ShowVolume, Volume,
    VolumeChange, VolumeCopy, VolumeDestroy, VolumeList, VolumePromote, VolumeRename, VolumeResize,
    VolumeSet,
};
use weir_api::{ApiError, Handle};
use weir_base::names;
use weir_dataset::Engine;

use crate::answer::errors::{self, api_error};
use crate::answer::names::{Of, split};
use crate::answer::pool_status;
use crate::state::server::{Entry, Manager};
use crate::volumes::kinds::find;
use crate::volumes::property_calls;

impl Manager {
    /// Returns a dataset of any kind.
    pub(crate) fn show_volume(&self, full: &str) -> Result<Volume, ApiError> {
        let (pool, own) = split(full)?;
        let engine = Arc::clone(&self.pool(pool)?.engine);
        let volume = engine.volume(own).map_err(|error| api_error(&error))?;
        Ok(pool_status::volume(&engine, &volume, self.exports_of(Of::Dataset(full))))
    }

    /// Returns a dataset of this kind.
    ///
    /// # Errors
    /// `Invalid` for a dataset of the other kind.
    pub(crate) fn dataset_of_kind(
        &self,
        full: &str,
        kind: DatasetKind,
    ) -> Result<Volume, ApiError> {
        let (pool, _) = split(full)?;
        find(&self.pool(pool)?.engine, full, kind)?;
        self.show_volume(full)
    }

    /// Calls `each` for all datasets of a kind, of one pool or of all.
    pub(crate) fn each_dataset(
        &self,
        pool: Option<&str>,
        kind: DatasetKind,
        mut each: impl FnMut(&Engine, Volume),
    ) -> Result<(), ApiError> {
        if let Some(pool) = pool {
            self.pool(pool)?;
        }
        for (name, entry) in &*self.pools.read() {
            let Entry::Open(open) = entry else { continue };
            if pool.is_some_and(|wanted| wanted != name) {
                continue;
            }
            for volume in open.engine.volumes() {
                if pool_status::kind(&volume) == kind {
                    each(&open.engine, pool_status::volume(&open.engine, &volume, Vec::new()));
                }
            }
        }
        Ok(())
    }

    /// Renames a dataset of a kind. Its exports keep their names and their clients.
    pub(crate) async fn rename_dataset(
        &self,
        request: &VolumeRename,
        kind: DatasetKind,
    ) -> Result<Outcome, ApiError> {
        let (pool, own) = split(&request.name)?;
        let (_, to) = split(&request.to)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        find(&open.engine, &request.name, kind)?;
        self.wait_for_ends(Of::Volume(&request.name)).await?;
        self.refuse_mounted(Of::Volume(&request.name))?;
        let (own, to) = (own.to_owned(), to.to_owned());
        let renamed = open.call(move |engine| async move { engine.rename_volume(&own, &to).await });
        let outcome = errors::outcome(renamed.await?);
        self.follow_names(&open.engine)?;
        Ok(outcome)
    }

    /// Destroys a dataset of a kind and its data.
    ///
    /// # Errors
    /// `Busy` if the dataset or one of its snapshots is exported or mounted. Without `recursive`,
    /// `Busy` if it has snapshots. `Busy` if a snapshot is held or is the origin of a clone.
    pub(crate) async fn destroy_dataset(
        &self,
        request: VolumeDestroy,
        kind: DatasetKind,
    ) -> Result<Removed, ApiError> {
        let VolumeDestroy { name, recursive } = request;
        let (pool, own) = split(&name)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        find(&open.engine, &name, kind)?;
        let _closed = self.close_snapshots(Of::Volume(&name)).await?;
        self.refuse_in_use(Of::Volume(&name))?;
        let own = own.to_owned();
        open.call(move |engine| async move { engine.destroy_volume(&own, recursive).await })
            .await?;
        self.follow_names(&open.engine)?;
        Ok(Removed { outcome: Outcome::Removed, name })
    }

    /// Runs `change` on the thread of the volume's pool. Returns the volume after the change, and
    /// the outcome `made` if the call changed the volume.
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
}

impl Handle<VolumeRename> for Manager {
    /// Renames a volume. Its exports keep their names and their clients.
    async fn handle(&self, request: VolumeRename) -> Result<VolumeChange, ApiError> {
        let outcome = self.rename_dataset(&request, DatasetKind::Volume).await?;
        Ok(VolumeChange { outcome, volume: self.show_volume(&request.to)? })
    }
}

impl Handle<VolumeCopy> for Manager {
    /// Copies a volume or snapshot into a new volume that references the same blocks. The copy
    /// depends on no other volume or snapshot.
    ///
    /// # Errors
    /// `Exists` if a volume of this name exists; `Invalid` for a filesystem.
    async fn handle(&self, request: VolumeCopy) -> Result<VolumeChange, ApiError> {
        let bad = |error| ApiError::from(weir_api::Error::from(error));
        let (of, snapshot) = names::dataset(&request.name).map_err(bad)?;
        let ((pool, own), snapshot) = (split(of)?, snapshot.map(ToOwned::to_owned));
        find(&self.pool(pool)?.engine, of, DatasetKind::Volume)?;
        let own = own.to_owned();
        self.change_volume(&request.to, Outcome::Created, move |engine, to| async move {
            engine.copy_volume(&own, snapshot.as_deref(), &to).await
        })
        .await
    }
}

impl Handle<VolumePromote> for Manager {
    /// Promotes a clone: the clone becomes the owner of its origin and all older snapshots, and the
    /// volume from which it was cloned becomes its clone.
    ///
    /// # Errors
    /// `Invalid` for a volume that is not a clone; `Exists` if a snapshot of the clone has the same
    /// name as a snapshot that the clone would get.
    async fn handle(&self, call: VolumePromote) -> Result<VolumeChange, ApiError> {
        let full = call.name;
        let (pool, own) = split(&full)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        // The promotion renames snapshots, so refuse it while a snapshot is mounted.
        for mount in self.mounts.of(Of::Pool(pool)) {
            if mount.name.contains('@') {
                self.refuse_mounted(Of::Dataset(&mount.name))?;
            }
        }
        // Clients that read these snapshots get an error: they are in another filesystem then.
        let promoted = open.engine.volume(own).ok();
        let origin = promoted.and_then(|clone| open.engine.origin_of(&clone));
        let origin = origin.map(|origin| format!("{pool}/{}", origin.volume));
        let _closed = match &origin {
            Some(origin) => Some(self.close_snapshots(Of::Volume(origin)).await?),
            None => None,
        };
        let own = own.to_owned();
        let promoted = open.call(move |engine| async move { engine.promote(&own).await });
        let outcome = errors::outcome(promoted.await?);
        // The promotion gave the origin and all older snapshots a new volume, so their names
        // changed.
        self.follow_names(&open.engine)?;
        Ok(VolumeChange { outcome, volume: self.show_volume(&full)? })
    }

    async fn authorize(&self, call: &VolumePromote, scope: &Scope) -> Result<(), ApiError> {
        lookup::promotion(self, call, scope).await
    }
}

impl Handle<VolumeDestroy> for Manager {
    /// Destroys a volume and its data.
    ///
    /// # Errors
    /// `Busy` if the volume or one of its snapshots is exported. Without `recursive`, `Busy` if the
    /// volume has snapshots. `Busy` if a snapshot is held or is the origin of a clone.
    async fn handle(&self, request: VolumeDestroy) -> Result<Removed, ApiError> {
        self.destroy_dataset(request, DatasetKind::Volume).await
    }
}

impl Handle<ListVolumes> for Manager {
    /// Lists volumes by name, of one pool or of all.
    async fn handle(&self, call: ListVolumes) -> Result<VolumeList, ApiError> {
        // Collect the exports of all volumes once, because a server may have thousands of volumes
        // and thousands of exports.
        let mut exports: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for export in &self.state.lock().state.exports {
            exports.entry(export.volume.clone()).or_default().push(export.name.clone());
        }
        let mut volumes = Vec::new();
        self.each_dataset(call.pool.as_deref(), DatasetKind::Volume, |_, volume| {
            let exports = exports.remove(&volume.name).unwrap_or_default();
            volumes.push(Volume { exports, ..volume });
        })?;
        volumes.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(VolumeList { volumes, next: None })
    }
}

impl Handle<ShowVolume> for Manager {
    /// Shows one volume.
    async fn handle(&self, call: ShowVolume) -> Result<Volume, ApiError> {
        self.dataset_of_kind(&call.name, DatasetKind::Volume)
    }
}

impl Handle<VolumeSet> for Manager {
    /// Changes properties of a volume. Existing blocks keep the properties with which they were
    /// written.
    async fn handle(&self, call: VolumeSet) -> Result<VolumeChange, ApiError> {
        let name = call.name.clone();
        self.dataset_of_kind(&name, DatasetKind::Volume)?;
        let PropertyChange { outcome, .. } = self.handle(PropertySet::from(call)).await?;
        Ok(VolumeChange { outcome, volume: self.show_volume(&name)? })
    }
}

impl Handle<VolumeResize> for Manager {
    /// Changes a volume's size.
    ///
    /// # Errors
    /// `Busy` if the new size would cut off written data.
    async fn handle(&self, call: VolumeResize) -> Result<VolumeChange, ApiError> {
        let VolumeResize { name, size_bytes } = call;
        let (pool, own) = split(&name)?;
        let _changes = self.changes.lock(pool).await;
        let resized = property_calls::resize(&*self.pool(pool)?, own.to_owned(), size_bytes).await;
        let outcome = errors::outcome(resized?);
        self.report_size(&name);
        Ok(VolumeChange { outcome, volume: self.show_volume(&name)? })
    }
}
