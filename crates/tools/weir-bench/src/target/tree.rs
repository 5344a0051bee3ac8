//! Metadata operations on a directory of this machine, as blocking system calls.
//!
//! `calls` and `inline` decide which thread executes them.
//!
//! Invariants: a call opens, changes and removes only files whose names `metadata` and `directory`
//! assign; no call follows a symbolic link in the last component of a path.

use std::io::{ErrorKind, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Access, AtFlags, Dir, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use rustix::io::Errno;

use super::error::{TargetError, io_error};
use super::metadata::{Directory, EXTRACTED_AT_S, FILE_MODE, MetadataCall, MetadataOp};
use super::parts::{Files, file_name};

/// Access mode of the directories that a run creates.
const DIRECTORY_MODE: u32 = 0o755;

/// Directory of a target, with the open files of its dataset.
pub(super) struct Tree {
    root: OwnedFd,
    path: PathBuf,
    files: Arc<Files>,
}

impl Tree {
    /// Opens the directory `path`, which contains the files of the dataset.
    pub(super) fn open(path: &Path, files: Arc<Files>) -> Result<Self, TargetError> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(path, flags, Mode::empty())
            .map_err(|error| io_error(path, "open")(error.into()))?;
        Ok(Self { root, path: path.to_owned(), files })
    }

    /// Executes an operation. `data` has the contents of a file that the operation creates.
    pub(super) fn perform(&self, op: &MetadataOp, data: &[u8]) -> std::io::Result<()> {
        let root = self.root.as_fd();
        match op.call {
            MetadataCall::Getattr { file } => {
                let index = (file as usize).min(self.files.files.len() - 1);
                rustix::fs::fstat(&self.files.files[index])?;
            }
            MetadataCall::Lookup { file } => {
                rustix::fs::statat(root, file_name(file), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            MetadataCall::Access { file } => {
                let access = Access::READ_OK | Access::WRITE_OK;
                rustix::fs::accessat(root, file_name(file), access, AtFlags::empty())?;
            }
            MetadataCall::Setattr { file } => {
                let at = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
                let times =
                    Timestamps { last_access: at(UTIME_OMIT), last_modification: at(UTIME_NOW) };
                let flags = AtFlags::SYMLINK_NOFOLLOW;
                rustix::fs::utimensat(root, file_name(file), &times, flags)?;
                if op.durable {
                    let index = (file as usize).min(self.files.files.len() - 1);
                    rustix::fs::fsync(&self.files.files[index])?;
                }
            }
            MetadataCall::Readdir => {
                self.entries(".", |_, _| Ok(()))?;
            }
            MetadataCall::Readdirplus => self.entries(".", |directory, name| {
                match rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW) {
                    // Another worker removed the file since the directory listed its name.
                    Ok(_) | Err(Errno::NOENT) => Ok(()),
                    Err(error) => Err(error.into()),
                }
            })?,
            MetadataCall::Fsstat => {
                rustix::fs::fstatvfs(root)?;
            }
            MetadataCall::Create { file, bytes } => {
                let file_data = &data[..bytes as usize];
                self.create(&file.to_string(), file_data, false, op.durable)?;
                self.settle(file.directory, op.durable)?;
            }
            MetadataCall::Extract { file, bytes } => {
                let file_data = &data[..bytes as usize];
                self.create(&file.to_string(), file_data, true, op.durable)?;
                self.settle(file.directory, op.durable)?;
            }
            MetadataCall::Stat { file } => {
                rustix::fs::statat(root, file.to_string(), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            MetadataCall::Remove { file } => {
                rustix::fs::unlinkat(root, file.to_string(), AtFlags::empty())?;
                self.settle(file.directory, op.durable)?;
            }
            MetadataCall::Rename { from, to } => {
                rustix::fs::renameat(root, from.to_string(), root, to.to_string())?;
                self.settle(to.directory, op.durable)?;
            }
            MetadataCall::List { directory, files } => {
                self.count(&directory.to_string(), files, |_, _| Ok(()))?;
            }
            MetadataCall::ListPlus { directory, files } => {
                self.count(&directory.to_string(), files, |directory, name| {
                    rustix::fs::statat(directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
                    Ok(())
                })?;
            }
            MetadataCall::Sync => rustix::fs::syncfs(root)?,
        }
        Ok(())
    }

    /// Creates a file. If `attributes` is set, also sets its mode and its time of change.
    fn create(
        &self,
        path: &str,
        data: &[u8],
        attributes: bool,
        durable: bool,
    ) -> std::io::Result<()> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.root, path, flags, Mode::from_raw_mode(FILE_MODE))?;
        let mut file = std::fs::File::from(file);
        file.write_all(data)?;
        if attributes {
            let at = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
            let last_modification = at(EXTRACTED_AT_S.into(), 0);
            let times = Timestamps { last_access: at(0, UTIME_OMIT), last_modification };
            rustix::fs::futimens(&file, &times)?;
            rustix::fs::fchmod(&file, Mode::from_raw_mode(FILE_MODE))?;
        }
        if durable { file.sync_all() } else { Ok(()) }
    }

    /// Writes the names in a directory to stable media, if `durable`.
    fn settle(&self, directory: Directory, durable: bool) -> std::io::Result<()> {
        if durable {
            rustix::fs::fsync(self.open_directory(&directory.to_string())?)?;
        }
        Ok(())
    }

    fn open_directory(&self, path: &str) -> Result<OwnedFd, Errno> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        rustix::fs::openat(&self.root, path, flags, Mode::empty())
    }

    /// Passes each entry of a directory to `each`, with the open directory.
    fn entries(
        &self,
        path: &str,
        mut each: impl FnMut(&OwnedFd, &std::ffi::CStr) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let directory = self.open_directory(path)?;
        for entry in Dir::read_from(&directory)? {
            let entry = entry?;
            if ![c".", c".."].contains(&entry.file_name()) {
                each(&directory, entry.file_name())?;
            }
        }
        Ok(())
    }

    /// Passes each entry of a directory to `each`. Fails if the number of entries is not `files`.
    fn count(
        &self,
        path: &str,
        files: u32,
        mut each: impl FnMut(&OwnedFd, &std::ffi::CStr) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut found = 0_u32;
        self.entries(path, |directory, name| {
            found += 1;
            each(directory, name)
        })?;
        if found == files {
            return Ok(());
        }
        let what = format!("the directory lists {found} files instead of {files}");
        Err(std::io::Error::other(what))
    }

    /// See [`super::lane::FileTree::make_directory`].
    pub(super) fn make_directory(&self, path: &str) -> Result<(), TargetError> {
        let mode = Mode::from_raw_mode(DIRECTORY_MODE);
        match rustix::fs::mkdirat(&self.root, path, mode) {
            Ok(()) => Ok(()),
            // A link to a directory, or a file, is not a directory of this program.
            Err(Errno::EXIST) => self.open_directory(path).map(drop).map_err(Into::into),
            Err(error) => Err(error.into()),
        }
        .map_err(io_error(&self.path.join(path), "make"))
    }

    /// See [`super::lane::FileTree::remove_directory`].
    pub(super) fn remove_directory(&self, path: &str) -> Result<(), TargetError> {
        match rustix::fs::unlinkat(&self.root, path, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(io_error(&self.path.join(path), "remove")(error.into())),
        }
    }

    /// See [`super::lane::FileTree::list`].
    pub(super) fn list(&self, path: &str, each: &mut dyn FnMut(&str)) -> Result<bool, TargetError> {
        let listed = self.entries(path, |_, name| {
            each(&name.to_string_lossy());
            Ok(())
        });
        match listed {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(io_error(&self.path.join(path), "list")(error)),
        }
    }
}
