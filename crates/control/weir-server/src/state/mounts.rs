//! The mounts of this server.
//!
//! weir-fuse has the mounts themselves.
//!
//! Invariants:
//! - a filesystem or snapshot has at most one mount. A mount counts until its last request and its
//!   last close have ended;
//! - a call that only reads the list of mounts never waits for a mount.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use weir_api::ApiError;
use weir_api::types::Mount;
use weir_base::ErrorKind;
use weir_fuse::MountOptions;

use crate::answer::errors::internal;
use crate::answer::names::Of;
use crate::state::open_filesystems::{OpenFilesystem, still_ending};

/// Maximum number of mounts of one server. Each mount has a worker thread, a notifier thread, a
/// thread of the session, and a thread more than the machine has cores.
pub(crate) const MOUNTS_MAX: usize = 64;

/// Time within which a mount must answer a call or unmount. A call returns within 5 s.
pub(crate) const MOUNT_LIMIT: Duration = Duration::from_secs(4);

/// Time for which an unmount retries while the mount is in use: programs that look at all mounts,
/// such as df and other servers, use each mount for some milliseconds.
const BUSY_LIMIT: Duration = Duration::from_millis(500);

/// Poll interval for a mount that is ending.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// The mounts, by the full name of the filesystem or snapshot.
#[derive(Default)]
pub(crate) struct Mounts {
    present: Mutex<BTreeMap<String, Present>>,
    /// Names of unmounted filesystems and snapshots whose last requests have not ended.
    ending: Arc<Mutex<BTreeSet<String>>>,
}

/// A mount, and the filesystem that it uses.
struct Present {
    mount: weir_fuse::Mount,
    open: Arc<OpenFilesystem>,
}

fn shown(options: &MountOptions) -> Mount {
    Mount {
        name: options.name.clone(),
        directory: options.directory.display().to_string(),
        read_only: options.read_only,
    }
}

impl Mounts {
    pub(crate) fn insert(&self, mount: weir_fuse::Mount, open: Arc<OpenFilesystem>) -> Mount {
        let options = mount.options().clone();
        drop(self.present.lock().insert(options.name.clone(), Present { mount, open }));
        shown(&options)
    }

    /// Returns the mounts that the filter selects, by name. Ends mounts that another program, such
    /// as umount(8), has unmounted.
    pub(crate) fn of(&self, of: Of<'_>) -> Vec<Mount> {
        self.end_unmounted();
        let mounts = self.present.lock();
        let selected = mounts.iter().filter(|(name, _)| of.is(name));
        selected.map(|(_, present)| shown(present.mount.options())).collect()
    }

    /// Ends the mounts that another program has unmounted.
    fn end_unmounted(&self) {
        let mut mounts = self.present.lock();
        let over = mounts.extract_if(.., |_, present| present.mount.is_over());
        for (name, present) in over.collect::<Vec<_>>() {
            tracing::info!(%name, "unmounted by another program");
            drop(self.end(present));
        }
    }

    /// Returns all mounts, by name.
    pub(crate) fn all(&self) -> Vec<Mount> {
        self.of(Of::All)
    }

    /// Ends an unmounted mount on a thread of its own.
    fn end(&self, Present { mount, open }: Present) -> JoinHandle<()> {
        let name = mount.options().name.clone();
        self.ending.lock().insert(name.clone());
        let ending = Arc::clone(&self.ending);
        tokio::task::spawn_blocking(move || {
            mount.finish();
            // From here on `OpenFilesystems` lists the filesystem as ending, unless it has other
            // uses.
            drop(open);
            ending.lock().remove(&name);
        })
    }

    /// Returns an unmounted filesystem or snapshot that the filter selects and whose requests have
    /// not ended.
    pub(crate) fn ending(&self, of: Of<'_>) -> Option<String> {
        self.ending.lock().iter().find(|name| of.is(name)).cloned()
    }

    /// Waits until the unmounted filesystems and snapshots that the filter selects have ended.
    ///
    /// # Errors
    /// `Busy` if requests do not end.
    pub(crate) async fn wait_for_ends(&self, of: Of<'_>) -> Result<(), ApiError> {
        let start = Instant::now();
        while let Some(name) = self.ending(of) {
            if start.elapsed() >= MOUNT_LIMIT {
                return Err(still_ending(&name));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Waits until the session of a mount that another program has unmounted has ended.
    ///
    /// # Errors
    /// `Busy` if programs use files of the mount.
    pub(crate) async fn wait_until_over(&self, full: &str) -> Result<(), ApiError> {
        let start = Instant::now();
        while !self.of(Of::Dataset(full)).is_empty() {
            if start.elapsed() >= MOUNT_LIMIT {
                return Err(still_ending(full));
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
        Ok(())
    }

    /// Unmounts a filesystem or snapshot, and waits for the end of its requests. With `force`, also
    /// unmounts while programs use files of the mount.
    ///
    /// # Errors
    /// `Busy` if programs use files of the mount; `Unavailable` if the mount makes no progress.
    pub(crate) async fn unmount(&self, mount: &Mount, force: bool) -> Result<(), ApiError> {
        let directory = mount.directory.clone();
        let umount = move || unmount_own(Path::new(&directory), force);
        let umount = tokio::task::spawn_blocking(umount);
        let again = || format!("weir unmount --force {}", mount.name);
        match tokio::time::timeout(MOUNT_LIMIT, umount).await {
            Err(_) => return Err(stuck(mount).with_action(again())),
            Ok(Err(error)) => return Err(internal("the unmount failed", &error)),
            Ok(Ok(Err(error))) if error.kind() == io::ErrorKind::ResourceBusy => {
                let message = format!("programs use files of {}", mount.directory);
                let action = format!(
                    "stop them (fuser -vm {} lists them), or let them get errors: {}",
                    mount.directory,
                    again()
                );
                return Err(ApiError::new(ErrorKind::Busy, message).with_action(action));
            }
            Ok(Ok(Err(error))) => {
                let message = format!("{} cannot be unmounted: {error}", mount.directory);
                return Err(ApiError::new(ErrorKind::Unavailable, message));
            }
            Ok(Ok(Ok(()))) => {}
        }
        let taken = self.present.lock().remove(&mount.name);
        if let Some(taken) = taken {
            drop(self.end(taken));
        }
        self.wait_for_ends(Of::Dataset(&mount.name)).await
    }
}

fn stuck(mount: &Mount) -> ApiError {
    let message = format!("requests to the mount at {} do not end", mount.directory);
    ApiError::new(ErrorKind::Unavailable, message)
}

/// Unmounts a directory if its newest mount is a mount of Weir.
fn unmount_own(directory: &Path, force: bool) -> io::Result<()> {
    let start = Instant::now();
    loop {
        let all = weir_fuse::mounts()?;
        let unmounted = match all.iter().rev().find(|mount| mount.directory == directory) {
            Some(mount) if mount.is_weir => weir_fuse::unmount(directory, force),
            // Another program has unmounted the directory.
            _ => Ok(()),
        };
        match unmounted {
            Err(error)
                if error.kind() == io::ErrorKind::ResourceBusy && start.elapsed() < BUSY_LIMIT =>
            {
                std::thread::sleep(POLL_INTERVAL);
            }
            unmounted => return unmounted,
        }
    }
}
