//! Starts and ends mounts.
//!
//! This module mounts the directory itself, or with `fusermount` if the server is not root. fuser
//! would unmount the directory at the end of the session, even if the directory has another mount
//! by then.
//!
//! Invariants:
//! - a mount that could not start leaves no mount behind;
//! - [`Mount::finish`] returns after the last use of the pool.

use std::ffi::CString;
use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc as blocking};
use std::thread::JoinHandle;

use fuser::{Config, Session, SessionACL};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};
use weir_dataset::{Engine, Volume};
use weir_fs::{Filesystem, Snapshots};

use crate::error::{DEVICE, MountError};
use crate::operations::opens::Opens;
use crate::operations::other_changes::OtherChanges;
use crate::operations::places::SnapshotsBelow;
use crate::operations::served::Served;
use crate::session::adapter::Adapter;
use crate::session::fusermount;
use crate::session::gate::Gate;
use crate::session::kernel_caches::{EndOfCaches, KernelCaches, Message};
use crate::session::mount_table::FS_TYPE;
use crate::session::{notifier, worker};

/// Settings of a mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountOptions {
    /// Full name of the filesystem or snapshot.
    pub name: String,
    /// Directory, which exists.
    pub directory: PathBuf,
    /// Refuse changes.
    pub read_only: bool,
}

/// A mount.
pub struct Mount {
    options: MountOptions,
    gate: Arc<Gate>,
    session: JoinHandle<io::Result<()>>,
    worker: JoinHandle<()>,
    caches: KernelCaches,
    end_of_caches: EndOfCaches,
}

impl Mount {
    /// Mounts an open filesystem of a dataset. The call waits for the kernel. `snapshots`: the
    /// snapshots of the filesystem below `.weir/snapshot`; `None` for the mount of a snapshot.
    ///
    /// `before_mount` gets the caches of the kernel before the kernel can have anything in them. It
    /// connects other protocols that change the filesystem. If the start fails, the caches have
    /// ended.
    ///
    /// # Errors
    /// The reason why the mount could not start.
    pub fn start(
        (files, snapshots): (Arc<Filesystem>, Option<Arc<dyn Snapshots>>),
        (engine, volume): (Arc<Engine>, Arc<Volume>),
        options: MountOptions,
        before_mount: impl FnOnce(&KernelCaches),
    ) -> Result<Self, MountError> {
        let (gate, queue) = Gate::new();
        let gate = Arc::new(gate);
        let other_changes = OtherChanges::default();
        let (caches, end_of_caches, changes) =
            KernelCaches::new(&options.name, other_changes.clone());
        let opens = Opens::default();
        let snapshots = snapshots.map(SnapshotsBelow::new);
        let served = Arc::new(Served { files, snapshots, engine, volume, opens, other_changes });
        let (report, started) = blocking::sync_channel(1);
        let worked = Arc::clone(&served);
        let body = move || worker::run(&worked, queue, &report);
        let worker = std::thread::Builder::new().name("mount".to_owned()).spawn(body);
        let worker = worker.map_err(MountError::Thread)?;
        let ended = || MountError::Thread(io::Error::other("the thread of the mount ended"));
        started.recv().map_err(|_| ended())??;
        gate.readers.open(served);
        before_mount(&caches);
        let session =
            start_session(&options, &gate, (&caches, changes)).inspect_err(|_| gate.close())?;
        Ok(Self { options, gate, session, worker, caches, end_of_caches })
    }

    /// Returns the settings of the mount.
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Returns the caches of the kernel above the mount.
    pub fn kernel_caches(&self) -> KernelCaches {
        self.caches.clone()
    }

    /// True if the mount was unmounted.
    pub fn is_over(&self) -> bool {
        self.session.is_finished()
    }

    /// Ends the threads of a mount that was unmounted. If programs still use files of a detached
    /// mount, they get EIO from now on.
    pub fn finish(self) {
        self.gate.close();
        drop(self.end_of_caches);
        if self.worker.join().is_err() {
            tracing::error!(mount = %self.options.name, "the thread of the mount panicked");
        }
        // The session of a detached mount ends with the last open file, maybe never: do not wait
        // for its thread.
        drop(self.session);
    }
}

fn start_session(
    options: &MountOptions,
    gate: &Arc<Gate>,
    (caches, changes): (&KernelCaches, blocking::Receiver<Message>),
) -> Result<JoinHandle<io::Result<()>>, MountError> {
    let directory = options.directory.as_path();
    let device = open_device(options)?;
    let mut config = Config::default();
    config.n_threads = Some(gate.readers.threads());
    let adapter = Adapter::new(Arc::clone(gate), caches.clone());
    let session = Session::from_fd(adapter, device, SessionACL::All, config);
    let session = session.and_then(|session| {
        let kernel = session.notifier();
        let notifier = std::thread::Builder::new().name("mount-notifier".to_owned());
        // The mount does not join this thread, which may wait in the kernel.
        drop(notifier.spawn(move || notifier::run(&kernel, &changes))?);
        session.spawn()
    });
    let session = session.inspect_err(|_| {
        if let Err(error) = unmount(directory, true) {
            tracing::warn!(directory = %directory.display(), %error, "not unmounted");
        }
    });
    Ok(session.map_err(MountError::Session)?.guard)
}

/// Mounts the directory. Returns the device through which the kernel sends its requests.
fn open_device(options: &MountOptions) -> Result<OwnedFd, MountError> {
    let MountOptions { name, directory, read_only } = options;
    let device = OpenOptions::new().read(true).write(true).open(DEVICE);
    let device = OwnedFd::from(device.map_err(MountError::Device)?);
    let user = rustix::process::geteuid();
    let settings = format!(
        "fd={},rootmode=40000,user_id={},group_id={},default_permissions,allow_other",
        device.as_raw_fd(),
        user.as_raw(),
        rustix::process::getegid().as_raw()
    );
    let settings = CString::new(settings).expect("numbers have no NUL");
    let flags = if *read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    match rustix::mount::mount(&**name, directory.as_path(), FS_TYPE, flags, &*settings) {
        Ok(()) => Ok(device),
        Err(Errno::PERM) if !user.is_root() => {
            let device = fusermount::mount(name, directory, *read_only);
            device.map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => MountError::NoHelper,
                _ => MountError::Helper(error),
            })
        }
        Err(error) => Err(MountError::Mount(error.into())),
    }
}

/// Unmounts the newest mount at a directory. `detaches`: also if programs use files of the mount.
///
/// # Errors
/// `ResourceBusy` while programs use files of the mount.
pub fn unmount(directory: &Path, detaches: bool) -> io::Result<()> {
    let flags = if detaches { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    match rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW) {
        Err(Errno::PERM) if !rustix::process::geteuid().is_root() => {
            fusermount::unmount(directory, detaches)
        }
        done => Ok(done?),
    }
}
