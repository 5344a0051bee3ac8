//! Starts and ends mounts.
//!
//! This module makes the mount itself: fuser would unmount the directory at the end of the session,
//! even if the directory has another mount by then.
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
use rustix::mount::{MountFlags, UnmountFlags};
use weir_dataset::{Engine, Volume};

use crate::error::{DEVICE, MountError};
use crate::session::adapter::Adapter;
use crate::session::gate::Gate;
use crate::session::mount_table::FS_TYPE;
use crate::session::mounted_files::MountedFiles;
use crate::session::worker;

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
}

impl Mount {
    /// Opens a filesystem and mounts it. The call waits for disks and for the kernel.
    ///
    /// # Errors
    /// The reason why the mount could not start.
    pub fn start(
        engine: Arc<Engine>,
        volume: Arc<Volume>,
        options: MountOptions,
    ) -> Result<Self, MountError> {
        let device = OpenOptions::new().read(true).write(true).open(DEVICE);
        let device = OwnedFd::from(device.map_err(MountError::Device)?);
        let (gate, queue) = Gate::new();
        let gate = Arc::new(gate);
        let (report, opened) = blocking::sync_channel(1);
        let body = move || worker::run((engine, volume), queue, &report);
        let worker = std::thread::Builder::new().name("mount".to_owned()).spawn(body);
        let worker = worker.map_err(MountError::Thread)?;
        let ended = || MountError::Thread(io::Error::other("the thread of the mount ended"));
        opened.recv().map_err(|_| ended())??;
        let session = start_session(device, &options, &gate).inspect_err(|_| gate.close())?;
        Ok(Self { options, gate, session, worker })
    }

    /// Returns the settings of the mount.
    pub fn options(&self) -> &MountOptions {
        &self.options
    }

    /// Returns the open filesystem, for management calls.
    pub fn files(&self) -> MountedFiles {
        MountedFiles::new(Arc::clone(&self.gate))
    }

    /// True if the mount was unmounted.
    pub fn is_over(&self) -> bool {
        self.session.is_finished()
    }

    /// Ends the threads of a mount that was unmounted. If programs still use files of a detached
    /// mount, they get EIO from now on.
    pub fn finish(self) {
        self.gate.close();
        if self.worker.join().is_err() {
            tracing::error!(mount = %self.options.name, "the thread of the mount panicked");
        }
        // The session of a detached mount ends with the last open file, maybe never: do not wait
        // for its thread.
        drop(self.session);
    }
}

fn start_session(
    device: OwnedFd,
    options: &MountOptions,
    gate: &Arc<Gate>,
) -> Result<JoinHandle<io::Result<()>>, MountError> {
    let user = rustix::process::geteuid().as_raw();
    let group = rustix::process::getegid().as_raw();
    let settings = format!(
        "fd={},rootmode=40000,user_id={user},group_id={group},default_permissions,allow_other",
        device.as_raw_fd()
    );
    let settings = CString::new(settings).expect("numbers have no NUL");
    let flags = if options.read_only { MountFlags::RDONLY } else { MountFlags::empty() };
    let directory = options.directory.as_path();
    rustix::mount::mount(&*options.name, directory, FS_TYPE, flags, &*settings)
        .map_err(|error| MountError::Mount(error.into()))?;
    let config = Config::default();
    let adapter = Adapter::new(Arc::clone(gate));
    let session = Session::from_fd(adapter, device, SessionACL::All, config);
    let session = session.and_then(Session::spawn).inspect_err(|_| {
        if let Err(error) = unmount(directory, true) {
            tracing::warn!(directory = %directory.display(), %error, "not unmounted");
        }
    });
    Ok(session.map_err(MountError::Session)?.guard)
}

/// Unmounts the newest mount at a directory. With `detaches`, also unmounts while programs use
/// files of the mount.
///
/// # Errors
/// `ResourceBusy` while programs use files of the mount.
pub fn unmount(directory: &Path, detaches: bool) -> io::Result<()> {
    let flags = if detaches { UnmountFlags::DETACH } else { UnmountFlags::empty() };
    Ok(rustix::mount::unmount(directory, flags | UnmountFlags::NOFOLLOW)?)
}
