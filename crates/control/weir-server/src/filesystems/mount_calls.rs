//! Calls that mount and unmount filesystems, and the mounts of a pool that opens or closes.
//!
//! Invariants:
//! - a filesystem with a mount is neither renamed, destroyed nor rolled back;
//! - a pool closes after its mounts, so that everything that programs have written is committed;
//! - a call that mounts or unmounts waits for the file system of its directory only for a bounded
//!   time.

use std::path::PathBuf;
use std::sync::Arc;

use weir_api::types::{
    EventLevel, FilesystemMount, FilesystemUnmount, ListMounts, Mount, MountChange, MountList,
    Outcome,
};
use weir_api::{ApiError, Handle};
use weir_base::property::{MOUNTPOINT, MountPoint};
use weir_base::{ErrorKind, names};
use weir_dataset::{Engine, PropertyChange, PropertyTarget, SnapshotId, Volume};
use weir_fs::Snapshots;
use weir_fuse::{MountError, MountOptions};

use crate::access::aside::aside;
use crate::answer::errors::{api_error, internal, not_found};
use crate::answer::names::{Of, pool_of, split};
use crate::disks::mount_directory::{self, Below};
use crate::filesystems::filesystem_calls::{fs_error, mountpoint};
use crate::record::events::NewEvent;
use crate::state::mounts::MOUNTS_MAX;
use crate::state::open_filesystems::{OpenFilesystem, still_ending};
use crate::state::server::{Manager, refuse_above};
use crate::state::snapshot_directory::{ClosedSnapshots, SnapshotDirectory};

fn mount_error(name: &str, directory: &str, error: &MountError) -> ApiError {
    let message = format!("{name} cannot be mounted at {directory}: {error}");
    let refused = ApiError::new(error.kind(), message);
    match error {
        MountError::Device(_) => refused.with_action("modprobe fuse"),
        MountError::NoHelper => refused.with_action("apt-get install fuse3"),
        MountError::Mount(_) if error.kind() == ErrorKind::Permission => {
            refused.with_action("start the server as root")
        }
        _ => refused,
    }
}

/// Refuses a filesystem that receives a stream: an open filesystem would not see the changes of the
/// stream.
pub(crate) fn refuse_receiving(full: &str, receiving: Option<&str>) -> Result<(), ApiError> {
    let Some(snapshot) = receiving else { return Ok(()) };
    let message = format!("{full} is busy: @{snapshot} is being received");
    Err(ApiError::new(ErrorKind::Busy, message)
        .with_action("wait for the receive to end, or abort it with 'weir receive --abort'"))
}

/// Opens the dataset of a filesystem or of a snapshot of a filesystem.
pub(crate) fn open_files(engine: &Engine, full: &str) -> Result<Arc<Volume>, ApiError> {
    let bad = |error: names::NameError| ApiError::new(ErrorKind::Invalid, error.to_string());
    let (of, snapshot) = names::dataset(full).map_err(bad)?;
    let (_, own) = split(of)?;
    let dataset = engine.volume(own).map_err(|_| not_found("filesystem", of))?;
    if dataset.object_layer().is_none() {
        let message = format!("{of} is a volume, and only filesystems can be mounted");
        return Err(ApiError::new(ErrorKind::Invalid, message)
            .with_action(format!("offer its blocks: weir export create nbd {full}")));
    }
    let Some(snapshot) = snapshot else {
        refuse_receiving(of, dataset.receiving().as_deref())?;
        return Ok(dataset);
    };
    let view = engine.open_snapshot(&SnapshotId::new(own, snapshot));
    view.map_err(|error| api_error(&error))
}

impl Manager {
    /// Mounts a filesystem or snapshot. The caller holds the lock of the pool.
    async fn mount(&self, full: &str, at: &str, read_only: bool) -> Result<MountChange, ApiError> {
        let engine = Arc::clone(&self.pool(pool_of(full))?.engine);
        let volume = open_files(&engine, full)?;
        let read_only = read_only || full.contains('@');
        let wanted = Mount { name: full.to_owned(), directory: at.to_owned(), read_only };
        if let Some(mount) = self.mounts.of(Of::Dataset(full)).pop()
            && !self.was_unmounted(&mount).await?
        {
            if mount == wanted {
                return Ok(MountChange { outcome: Outcome::Unchanged, mount });
            }
            let rights = if mount.read_only { "read-only" } else { "writable" };
            let message = format!("{full} is mounted at {} already, {rights}", mount.directory);
            return Err(
                ApiError::new(ErrorKind::Busy, message).with_action(format!("weir unmount {full}"))
            );
        }
        self.wait_for_ends(Of::Dataset(full)).await?;
        refuse_above(MOUNTS_MAX, self.mounts.all().len(), "mounts", "weir unmount")?;
        let (source, place) = (full.to_owned(), PathBuf::from(at));
        let below = aside(at, move || {
            let is_here = |mount: &weir_fuse::MountedAt| mount.directory == place;
            if weir_fuse::mounts().is_ok_and(|all| all.iter().any(is_here)) {
                mount_directory::clear_dead(|of| *of == source)?;
            }
            mount_directory::check(&place)?;
            Ok(Below::open(&place).filter(|_| !read_only))
        })
        .await?;
        let options = MountOptions { name: full.to_owned(), directory: at.into(), read_only };
        let open = self.open_filesystem(full, &engine, &volume).await?;
        let of_thread = Arc::clone(&open);
        let start = move || {
            let files = (Arc::clone(&of_thread.files), of_thread.snapshots.clone());
            let connect = |caches: &_| of_thread.connect_mount(caches);
            weir_fuse::Mount::start(files, (engine, volume), options, connect)
        };
        let started = tokio::task::spawn_blocking(start).await;
        let started = started.map_err(|error| internal("the mount failed", &error))?;
        let mount = started.map_err(|error| mount_error(full, at, &error))?;
        if let Some(below) = below {
            below.guard();
        }
        Ok(MountChange { outcome: Outcome::Created, mount: self.mounts.insert(mount, open) })
    }

    /// Returns true if another program has just unmounted the directory of a mount. Waits until the
    /// session of the mount notices it.
    ///
    /// # Errors
    /// `Busy` if programs still use files of the detached mount.
    async fn was_unmounted(&self, mount: &Mount) -> Result<bool, ApiError> {
        let (source, place) = (mount.name.clone(), PathBuf::from(&mount.directory));
        let is_there = aside(&mount.directory, move || {
            // Another server can have a filesystem with this name.
            let all =
                weir_fuse::mounts().map_err(|error| internal("cannot list mounts", &error))?;
            let is_it = |of: &weir_fuse::MountedAt| of.source == source && of.directory == place;
            Ok(all.iter().any(is_it))
        });
        if is_there.await? {
            return Ok(false);
        }
        self.mounts.wait_until_over(&mount.name).await?;
        Ok(true)
    }

    /// Mounts the filesystems of a pool that has just opened at their mount points. A filesystem
    /// that cannot be mounted causes an event.
    pub(crate) async fn mount_pool(&self, pool: &str) {
        let Ok(open) = self.pool(pool) else { return };
        let prefix = format!("{pool}/");
        let own = move |source: &str| source.starts_with(&prefix);
        if let Err(error) = aside("dead mounts", move || mount_directory::clear_dead(own)).await {
            tracing::warn!(pool, %error, "dead mounts stay");
        }
        for volume in open.engine.volumes() {
            let own = volume.info().name;
            let Some(at) = mountpoint(&open.engine, &own) else { continue };
            let full = format!("{pool}/{own}");
            let Err(error) = self.mount(&full, &at, false).await else { continue };
            let message = format!("{full} is not mounted at {at}: {error}");
            tracing::error!("{message}");
            self.record.events.add(NewEvent {
                level: EventLevel::Error,
                kind: "mount".to_owned(),
                pool: Some(pool.to_owned()),
                disk: None,
                message,
            });
        }
    }

    /// Unmounts all filesystems and snapshots of a pool that closes. The caller has ended the use
    /// of its filesystems by shares.
    ///
    /// # Errors
    /// The error of the first mount that cannot be unmounted, unless `force`.
    pub(crate) async fn unmount_pool(&self, pool: &str, force: bool) -> Result<(), ApiError> {
        for mount in self.mounts.of(Of::Pool(pool)) {
            let done = self.mounts.unmount(&mount, force).await;
            if let Err(error) = done {
                if !force {
                    return Err(error);
                }
                tracing::warn!(mount = %mount.name, %error, "the mount ends later");
            }
        }
        if force { Ok(()) } else { self.wait_for_ends(Of::Pool(pool)).await }
    }

    /// Opens a filesystem or snapshot, or returns it if it is open. The caller holds the lock of
    /// the pool.
    pub(crate) async fn open_filesystem(
        &self,
        full: &str,
        engine: &Arc<Engine>,
        volume: &Arc<Volume>,
    ) -> Result<Arc<OpenFilesystem>, ApiError> {
        let snapshots = || -> Arc<dyn Snapshots> {
            let of = (Arc::clone(engine), Arc::clone(volume));
            Arc::new(SnapshotDirectory::new(of, self.open_filesystems.clone()))
        };
        let open = self.open_filesystems.open(engine, volume, snapshots).await?;
        open.map_err(|error| fs_error(full, &error))
    }

    /// Waits until the filesystems and snapshots that the filter selects and that have no use any
    /// more have ended.
    ///
    /// # Errors
    /// `Busy` if requests do not end.
    pub(crate) async fn wait_for_ends(&self, of: Of<'_>) -> Result<(), ApiError> {
        self.mounts.wait_for_ends(of).await?;
        self.open_filesystems.wait_for_ends(of).await
    }

    /// Closes the snapshots that clients have opened below `.weir/snapshot` and that the filter
    /// selects, until the result is dropped. The caller holds the lock of the pool.
    ///
    /// # Errors
    /// `Busy` if requests do not end.
    pub(crate) async fn close_snapshots(&self, of: Of<'_>) -> Result<ClosedSnapshots, ApiError> {
        self.open_filesystems.close_snapshots(of).await
    }

    /// Commits the pools with mounts, and unmounts all filesystems and snapshots. A mount that
    /// programs use is detached: the programs get errors from then on.
    pub(crate) async fn stop_mounts(&self) {
        let mounts = self.mounts.all();
        let mut pools: Vec<&str> = mounts.iter().map(|mount| pool_of(&mount.name)).collect();
        pools.dedup();
        for pool in pools {
            if let Err(error) = self.settle(pool).await {
                tracing::warn!(pool, %error, "not committed before the unmount");
            }
        }
        for mount in &mounts {
            let Err(error) = self.mounts.unmount(mount, false).await else { continue };
            tracing::warn!(mount = %mount.name, %error, "detached");
            if let Err(error) = self.mounts.unmount(mount, true).await {
                tracing::error!(mount = %mount.name, %error, "not unmounted");
            }
        }
        if let Err(error) = self.wait_for_ends(Of::All).await {
            tracing::error!(%error, "a mount does not end");
        }
    }

    /// Returns an error while the filter selects mounts.
    pub(crate) fn refuse_mounted(&self, of: Of<'_>) -> Result<(), ApiError> {
        let Some(Mount { name, directory, .. }) = self.mounts.of(of).into_iter().next() else {
            let ending = self.mounts.ending(of).or_else(|| self.open_filesystems.ending(of));
            return ending.map_or(Ok(()), |name| Err(still_ending(&name)));
        };
        Err(ApiError::new(ErrorKind::Busy, format!("{name} is mounted at {directory}"))
            .with_action(format!("weir unmount {name}")))
    }

    /// Returns the directory of a mount without a directory in its request.
    fn default_directory(&self, full: &str) -> Result<String, ApiError> {
        let (pool, own) = split(full)?;
        let engine = Arc::clone(&self.pool(pool)?.engine);
        open_files(&engine, full)?;
        mountpoint(&engine, own).ok_or_else(|| {
            ApiError::new(ErrorKind::Invalid, format!("{full} has no mountpoint"))
                .with_action(format!("weir mount {full} DIRECTORY"))
        })
    }
}

/// Gives the write permission back to the owner of a directory that no mount is expected to hide.
async fn release_directory(mount: &Mount) -> Result<(), ApiError> {
    let place = PathBuf::from(&mount.directory);
    let release = move || {
        if let Some(below) = Below::open(&place) {
            below.release();
        }
        Ok(())
    };
    aside(&mount.directory, release).await
}

impl Handle<FilesystemMount> for Manager {
    /// Mounts a filesystem or snapshot. A writable mount of a filesystem also sets its
    /// `mountpoint`, so that the server mounts it again when it opens the pool.
    ///
    /// # Errors
    /// `Busy` if the filesystem or snapshot is mounted elsewhere; `Invalid` for a volume, and for a
    /// directory that cannot be used; `Exists` if the directory has another mount.
    async fn handle(&self, request: FilesystemMount) -> Result<MountChange, ApiError> {
        let FilesystemMount { name, directory, read_only } = request;
        let pool = pool_of(&name);
        let _changes = self.changes.lock(pool).await;
        let at = match directory {
            Some(directory) => directory,
            None => self.default_directory(&name)?,
        };
        let change = self.mount(&name, &at, read_only).await?;
        if change.mount.read_only {
            return Ok(change);
        }
        let target = PropertyTarget::Volume(split(&name)?.1.to_owned());
        let place = MountPoint(Some(at));
        let set = PropertyChange::set(MOUNTPOINT, place);
        let set = move |engine: Arc<Engine>| async move {
            engine.change_properties(&[target], &[set]).await
        };
        if let Err(error) = self.pool(pool)?.call(set).await {
            // The mount works, but its `mountpoint` is not saved, so the server would not mount it
            // again.
            self.mounts.unmount(&change.mount, true).await?;
            release_directory(&change.mount).await?;
            return Err(error);
        }
        Ok(change)
    }
}

impl Handle<FilesystemUnmount> for Manager {
    /// Unmounts a filesystem or snapshot. Its `mountpoint` stays.
    ///
    /// # Durability
    /// All changes are durable when this returns `Ok`, except with `force`.
    ///
    /// # Errors
    /// `NotFound` if it is not mounted; `Busy` while programs use its files, without `force`; the
    /// errors of a commit.
    async fn handle(&self, request: FilesystemUnmount) -> Result<MountChange, ApiError> {
        let FilesystemUnmount { name, force } = request;
        // With `force` the call takes no lock, because the holder of the lock may wait for this
        // mount.
        let _changes = if force { None } else { Some(self.changes.lock(pool_of(&name)).await) };
        let mount = self.mounts.of(Of::Dataset(&name)).pop();
        let mount = mount.ok_or_else(|| not_found("mount of", &name).with_action("weir list"))?;
        self.mounts.unmount(&mount, force).await?;
        if !mount.read_only {
            release_directory(&mount).await?;
            if !force {
                self.settle(pool_of(&mount.name)).await?;
            }
        }
        Ok(MountChange { outcome: Outcome::Removed, mount })
    }
}

impl Handle<ListMounts> for Manager {
    /// Lists mounts by name.
    async fn handle(&self, _call: ListMounts) -> Result<MountList, ApiError> {
        Ok(MountList { mounts: self.mounts.all(), next: None })
    }
}
