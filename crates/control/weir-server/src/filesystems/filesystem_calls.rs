//! Calls that create, show, rename and destroy filesystems.
//!
//! Snapshots, clones and properties of filesystems have the calls of volumes. The mounts are in
//! `mount_calls`.
//!
//! Invariant: a change runs on its pool's thread, one at a time.

use std::sync::Arc;

use weir_api::types::{
    DatasetKind, Filesystem, FilesystemChange, FilesystemCreate, FilesystemDestroy, FilesystemList,
    FilesystemRename, ListFilesystems, NameCase, Outcome, Removed, ShowFilesystem, Volume,
    VolumeDestroy, VolumeRename, record_size,
};
use weir_api::{ApiError, Handle};
use weir_base::ErrorKind;
use weir_base::names::PropertyOf;
use weir_base::property::MOUNTPOINT;
use weir_dataset::{Engine, PropertyTarget};
use weir_fs::{FsError, Layout, ROOT, SetAttributes};

use crate::answer::errors::{api_error, internal};
use crate::answer::layout::{layout_of, name_case};
use crate::answer::names::{Of, split};
use crate::state::server::Manager;
use crate::volumes::property_calls;

/// Converts an error of weir-fs.
pub(crate) fn fs_error(name: &str, error: &FsError) -> ApiError {
    match error {
        FsError::Dataset(error) => api_error(error),
        FsError::Damaged { .. } => {
            let pool = name.split_once('/').map_or(name, |(pool, _)| pool);
            let message = format!("filesystem {name}: {error}");
            ApiError::new(ErrorKind::Data, message).with_action(format!(
                "weir pool export {pool}, then weir check {pool} and weir rescue {name} --to DIR, \
                 which copies the readable files"
            ))
        }
        error => internal(name, error),
    }
}

/// Returns the directory at which the server mounts a filesystem when it opens the pool.
pub(crate) fn mountpoint(engine: &Engine, own: &str) -> Option<String> {
    let set = engine.properties(&PropertyTarget::Volume(own.to_owned())).ok()?;
    set.own.get(MOUNTPOINT)?.0
}

impl Manager {
    /// Returns a filesystem from its dataset.
    fn filesystem(&self, engine: &Engine, dataset: Volume, layout: Option<Layout>) -> Filesystem {
        let record_bytes = layout.map_or(0, |layout| layout.record_size.bytes() as u64);
        let case = layout.as_ref().map_or_else(NameCase::default, name_case);
        let own = dataset.name.split_once('/').map_or("", |(_, own)| own);
        let mountpoint = mountpoint(engine, own);
        let mounts = self.mounts.of(Of::Volume(&dataset.name));
        let Volume { name, compression, used_bytes, stored_bytes, compression_ratio, .. } = dataset;
        Filesystem {
            name,
            record_bytes,
            case,
            compression,
            used_bytes,
            stored_bytes,
            compression_ratio,
            dedupe: dataset.dedupe,
            created_unix_ms: dataset.created_unix_ms,
            origin: dataset.origin,
            snapshots: dataset.snapshots,
            receiving: dataset.receiving,
            space: dataset.space,
            mountpoint,
            mounts,
        }
    }

    pub(crate) fn show_filesystem(&self, full: &str) -> Result<Filesystem, ApiError> {
        let dataset = self.dataset_of_kind(full, DatasetKind::Filesystem)?;
        let (pool, own) = split(full)?;
        let engine = &self.pool(pool)?.engine;
        let layout = layout(engine, own);
        Ok(self.filesystem(engine, dataset, layout))
    }
}

/// As [`layout_of`], for the filesystem with this name.
fn layout(engine: &Engine, own: &str) -> Option<Layout> {
    engine.volume(own).ok().and_then(|volume| layout_of(&volume))
}

/// Gives the root directory of a new filesystem to the user of a server without root. No other user
/// can mount the filesystem and change the owner.
async fn give_to_server(files: &weir_fs::Filesystem) -> Result<(), FsError> {
    let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
    if user.is_root() {
        return Ok(());
    }
    let (uid, gid) = (Some(user.as_raw()), Some(group.as_raw()));
    let owner = SetAttributes { uid, gid, ..SetAttributes::default() };
    files.set_attributes(ROOT, &owner, false).await?;
    files.sync(ROOT).await
}

impl Handle<FilesystemCreate> for Manager {
    /// Creates a filesystem.
    ///
    /// # Errors
    /// `Exists` if a filesystem or volume of this name exists.
    async fn handle(&self, request: FilesystemCreate) -> Result<FilesystemChange, ApiError> {
        let FilesystemCreate { name, record_bytes, case, properties } = request;
        let (changes, _) = property_calls::changes(&properties, PropertyOf::Volume)?;
        let record_size = record_size(record_bytes)?;
        let (pool, own) = split(&name)?;
        let _changes = self.changes.lock(pool).await;
        let mut key = [0; 16];
        getrandom::fill(&mut key).map_err(|error| internal("no random bytes", &error))?;
        let case = match case {
            NameCase::Sensitive => weir_fs::NameCase::Sensitive,
            NameCase::Insensitive => weir_fs::NameCase::Insensitive,
        };
        let layout = Layout { hash_key: u128::from_le_bytes(key), record_size, case };
        let (full, own) = (name.clone(), own.to_owned());
        let create = move |engine: Arc<Engine>| async move {
            let now = Box::new(weir_fuse::now);
            let files = weir_fs::Filesystem::create(&engine, &own, layout, &changes, now).await;
            let files = files.map_err(|error| fs_error(&full, &error))?;
            give_to_server(&files).await.map_err(|error| fs_error(&full, &error))
        };
        self.pool(pool)?.call_api(create).await?;
        let filesystem = self.show_filesystem(&name)?;
        Ok(FilesystemChange { outcome: Outcome::Created, filesystem })
    }
}

impl Handle<ListFilesystems> for Manager {
    /// Lists filesystems by name, of one pool or of all.
    async fn handle(&self, call: ListFilesystems) -> Result<FilesystemList, ApiError> {
        let mut filesystems = Vec::new();
        let each = |engine: &Engine, dataset: Volume| {
            let own = dataset.name.split_once('/').map_or("", |(_, own)| own).to_owned();
            let layout = layout(engine, &own);
            filesystems.push(self.filesystem(engine, dataset, layout));
        };
        self.each_dataset(call.pool.as_deref(), DatasetKind::Filesystem, each)?;
        filesystems.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(FilesystemList { filesystems, next: None })
    }
}

impl Handle<ShowFilesystem> for Manager {
    /// Shows one filesystem.
    async fn handle(&self, call: ShowFilesystem) -> Result<Filesystem, ApiError> {
        self.show_filesystem(&call.name)
    }
}

impl Handle<FilesystemRename> for Manager {
    /// Renames a filesystem.
    ///
    /// # Errors
    /// `Busy` while the filesystem or one of its snapshots is mounted.
    async fn handle(&self, request: FilesystemRename) -> Result<FilesystemChange, ApiError> {
        let to = request.to.clone();
        let request = VolumeRename::from(request);
        let outcome = self.rename_dataset(&request, DatasetKind::Filesystem).await?;
        Ok(FilesystemChange { outcome, filesystem: self.show_filesystem(&to)? })
    }
}

impl Handle<FilesystemDestroy> for Manager {
    /// Destroys a filesystem and its files.
    ///
    /// # Errors
    /// `Busy` while the filesystem or one of its snapshots is mounted; otherwise as
    /// `volume_destroy`.
    async fn handle(&self, request: FilesystemDestroy) -> Result<Removed, ApiError> {
        self.destroy_dataset(VolumeDestroy::from(request), DatasetKind::Filesystem).await
    }
}
