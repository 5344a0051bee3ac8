//! `weir rescue` of a filesystem: copies its files and directories into a new directory.
//!
//! Not here: volumes (`rescue`), reads around damage (weir-fs).
//!
//! Invariants:
//! - the copy is in a new directory, which only the user of the command may enter until the copy
//!   ends. Each file and directory is created new, so a copied symbolic link is never followed;
//! - unreadable bytes become a hole. The command reports each unreadable part, also by its exit
//!   code. A readable inode whose names are unreadable is copied to `lost+found`;
//! - the copy is on stable media when the command reports success.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use indicatif::ProgressBar;
use rustix::fs::{AtFlags, CWD, Mode, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use rustix::process::{Gid, Uid};
use serde::Serialize;
use weir_api::ApiError;
use weir_base::size::Human;
use weir_base::{ErrorKind, ObjectId};
use weir_dataset::{Engine, Volume};
use weir_format::files::{FileType, TimeStamp};
use weir_fs::{Attributes, Filesystem, FsError, ListedEntry, ROOT, ReadableData};
use weir_server::api_error;

use crate::cli::base::output;
use crate::offline::disks::progress;
use crate::offline::rescue_volume::{PIECE_BYTES, file_error};

/// Maximum number of damaged parts that the report names. Further parts are only counted.
const DAMAGE_NAMED_MAX: usize = 64;

/// Directory in the copy for inodes without a readable name. If the filesystem has this name, a
/// number follows.
const LOST_AND_FOUND: &str = "lost+found";

/// Result of a rescue.
#[derive(Default, Serialize)]
struct Rescued {
    filesystem: String,
    directory: PathBuf,
    files: u64,
    directories: u64,
    /// Symbolic links and special files.
    others: u64,
    copied_bytes: u64,
    damaged_bytes: u64,
    /// Inodes that were copied to `lost+found`.
    unnamed: u64,
    /// Owners, attributes and special files that this user may not set or create, or that the file
    /// system of the target does not have.
    not_permitted: u64,
    /// Number of damaged parts.
    damaged_parts: u64,
    /// The first damaged parts, at most [`DAMAGE_NAMED_MAX`] of them.
    damaged: Vec<Damage>,
}

#[derive(Serialize)]
struct Damage {
    /// Path in the copy.
    path: String,
    /// Unreadable bytes of a file; absent for other damage.
    #[serde(skip_serializing_if = "Option::is_none")]
    range: Option<Range<u64>>,
    what: String,
}

struct Copier {
    files: Filesystem,
    is_root: bool,
    progress: ProgressBar,
    /// Inodes that were copied or that could not be copied.
    seen: HashSet<u64>,
    /// Path of each copied inode with several names.
    links: HashMap<u64, PathBuf>,
    /// Copied directories, parents first, which get their attributes last.
    directories: Vec<(PathBuf, Attributes)>,
    rescued: Rescued,
}

pub(super) async fn copy(
    engine: &Arc<Engine>,
    volume: Arc<Volume>,
    directory: PathBuf,
    json: bool,
) -> Result<(), ApiError> {
    let info = volume.info();
    let filesystem = format!("{}/{}", engine.pool().name(), info.name);
    let now = Box::new(TimeStamp::default);
    let files = Filesystem::open_unchanged(engine, volume, now).map_err(|e| fs_error(&e))?;
    create_directory(&directory).map_err(|error| file_error(&directory, &error))?;
    let mut copier = Copier {
        files,
        is_root: rustix::process::geteuid().is_root(),
        progress: progress(info.used_bytes),
        seen: HashSet::new(),
        links: HashMap::new(),
        directories: Vec::new(),
        rescued: Rescued { filesystem, directory: directory.clone(), ..Rescued::default() },
    };
    copier.copy_all(&directory).await?;
    copier.progress.finish_and_clear();
    File::open(&directory)
        .and_then(|opened| Ok(rustix::fs::syncfs(opened)?))
        .map_err(|error| file_error(&directory, &error))?;
    report(&copier.rescued, json)
}

fn report(rescued: &Rescued, json: bool) -> Result<(), ApiError> {
    let Rescued { filesystem, directory, files, directories, others, .. } = rescued;
    let directory = directory.display();
    if json {
        output::print(&output::json(rescued)?)?;
    } else {
        let copied = Human(rescued.copied_bytes);
        output::say(&format!(
            "{copied} of filesystem {filesystem} copied to {directory}: {files} files, \
             {directories} directories, {others} links and special files"
        ));
        if rescued.unnamed > 0 {
            let unnamed = rescued.unnamed;
            output::say(&format!("{unnamed} of them have no readable name: {LOST_AND_FOUND}"));
        }
        if rescued.not_permitted > 0 {
            let count = rescued.not_permitted;
            output::say(&format!(
                "{count} owners, attributes or special files could not be set or created here"
            ));
        }
        for Damage { path, range, what } in &rescued.damaged {
            match range {
                Some(Range { start, end }) => {
                    output::say(&format!("unreadable: {} bytes at {start} of {path}", end - start));
                }
                None => output::say(&format!("damaged: {path}: {what}")),
            }
        }
    }
    if rescued.damaged_parts == 0 {
        return Ok(());
    }
    let (parts, bytes) = (rescued.damaged_parts, Human(rescued.damaged_bytes));
    let message = format!(
        "parts of filesystem {filesystem} cannot be read from these disks ({parts} with {bytes} \
         of file data); in {directory} these bytes are zeros"
    );
    Err(ApiError::new(ErrorKind::Data, message)
        .with_action("add disks of the pool with -d, or take these files from a backup"))
}

pub(super) fn fs_error(error: &FsError) -> ApiError {
    match error {
        FsError::Dataset(error) => api_error(error),
        error => ApiError::new(ErrorKind::Data, error.to_string()),
    }
}

/// True if the target refuses only this inode, so that the rescue continues with the others: the
/// name, the size or the number of links exceeds a limit of its file system, or the value is
/// invalid there.
fn is_refused(error: &io::Error) -> bool {
    const REFUSED: [Errno; 8] = [
        Errno::NAMETOOLONG,
        Errno::FBIG,
        Errno::OVERFLOW,
        Errno::INVAL,
        Errno::MLINK,
        Errno::OPNOTSUPP,
        Errno::NODEV,
        Errno::NXIO,
    ];
    is_errno(error, &REFUSED)
}

fn is_errno(error: &io::Error, numbers: &[Errno]) -> bool {
    Errno::from_io_error(error).is_some_and(|number| numbers.contains(&number))
}

/// True for the inodes that only a user with CAP_MKNOD may create.
fn is_special(file_type: FileType) -> bool {
    !matches!(file_type, FileType::Directory | FileType::Regular | FileType::SymbolicLink)
}

/// Creates the first directory with this name, or with this name and a number, that does not exist.
fn create_numbered(path: &Path) -> Result<PathBuf, ApiError> {
    let mut created = path.to_owned();
    for number in 1_u64.. {
        match create_directory(&created) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let mut name = path.as_os_str().to_owned();
                name.push(format!("-{number}"));
                created = PathBuf::from(name);
            }
            done => return done.map(|()| created.clone()).map_err(|e| file_error(&created, &e)),
        }
    }
    unreachable!("a directory has fewer names than there are numbers")
}

fn create_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(path)
}

/// True if an entry with this name can be created in a directory.
fn is_safe(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}

impl Copier {
    async fn copy_all(&mut self, target: &Path) -> Result<(), ApiError> {
        match self.files.attributes(ROOT).await {
            Ok(root) => self.directories.push((target.to_owned(), root)),
            Err(error) => self.damaged(target, &error)?,
        }
        self.rescued.directories += 1;
        self.copy_directories(ROOT, target.to_owned()).await?;
        self.copy_unnamed(&target.join(LOST_AND_FOUND)).await?;
        for (path, attributes) in std::mem::take(&mut self.directories).into_iter().rev() {
            self.set_attributes(&path, &attributes).await?;
        }
        Ok(())
    }

    /// Copies the entries of a directory that exists in the copy, and all directories below it.
    async fn copy_directories(&mut self, top: ObjectId, path: PathBuf) -> Result<(), ApiError> {
        self.seen.insert(top.0);
        let mut waiting = vec![(top, path)];
        while let Some((directory, path)) = waiting.pop() {
            let entries = match self.files.readable_entries(directory).await {
                Ok(found) => {
                    if let Some(what) = found.damage {
                        self.found(&path, None, what);
                    }
                    found.entries
                }
                Err(error) => {
                    self.damaged(&path, &error)?;
                    continue;
                }
            };
            for entry in sorted(entries) {
                let at = path.join(OsStr::from_bytes(&entry.name));
                if !is_safe(&entry.name) {
                    self.found(&path, None, "an entry has an invalid name".to_owned());
                } else if self.copy_entry(entry.inode, &at).await? {
                    waiting.push((entry.inode, at));
                }
            }
        }
        Ok(())
    }

    /// Copies an inode to a path. Returns true for a new directory: the caller copies its entries.
    async fn copy_entry(&mut self, number: ObjectId, path: &Path) -> Result<bool, ApiError> {
        let attributes = match self.files.attributes(number).await {
            Ok(attributes) => attributes,
            Err(FsError::Stale) => {
                self.found(path, None, format!("inode {} does not exist", number.0));
                return Ok(false);
            }
            Err(error) => {
                self.seen.insert(number.0);
                self.damaged(path, &error)?;
                return Ok(false);
            }
        };
        let is_new = self.seen.insert(number.0);
        let is_directory = attributes.file_type == FileType::Directory;
        if !is_new && is_directory {
            self.found(path, None, "the directory has several names".to_owned());
            return Ok(false);
        }
        if !is_new {
            self.copy_name(&attributes, path).await?;
            return Ok(false);
        }
        match self.create(&attributes, path).await? {
            Ok(false) => return Ok(false),
            Ok(true) if is_directory => {
                self.rescued.directories += 1;
                self.directories.push((path.to_owned(), attributes));
            }
            Ok(true) => {
                if attributes.nlink > 1 {
                    self.links.insert(number.0, path.to_owned());
                }
                self.set_attributes(path, &attributes).await?;
            }
            Err(error)
                if is_special(attributes.file_type)
                    && error.kind() == io::ErrorKind::PermissionDenied =>
            {
                self.rescued.not_permitted += 1;
                return Ok(false);
            }
            Err(error) => {
                self.refused(path, &error)?;
                // A copy in `lost+found` has a shorter path, and another directory above it.
                if is_errno(&error, &[Errno::NAMETOOLONG, Errno::MLINK]) {
                    self.seen.remove(&number.0);
                }
                return Ok(false);
            }
        }
        Ok(is_directory)
    }

    /// Gives an inode that is already in the copy one more name.
    async fn copy_name(&mut self, attributes: &Attributes, path: &Path) -> Result<(), ApiError> {
        let number = attributes.number.0;
        let Some(first) = self.links.get(&number) else {
            let what = format!("inode {number} has more names than its link count, or no copy");
            self.found(path, None, what);
            return Ok(());
        };
        match fs::hard_link(first, path) {
            Ok(()) => Ok(()),
            // The target allows no further name of the copy: start a second copy.
            Err(error) if is_errno(&error, &[Errno::MLINK, Errno::PERM, Errno::OPNOTSUPP]) => {
                match self.create(attributes, path).await? {
                    Ok(true) => {
                        self.links.insert(number, path.to_owned());
                        self.set_attributes(path, attributes).await
                    }
                    Ok(false) => Ok(()),
                    Err(error) => self.refused(path, &error),
                }
            }
            Err(error) => self.refused(path, &error),
        }
    }

    /// Records an inode or a name that the target refuses. Other errors of the target, such as a
    /// full disk, end the rescue.
    fn refused(&mut self, path: &Path, error: &io::Error) -> Result<(), ApiError> {
        if error.kind() == io::ErrorKind::AlreadyExists {
            self.found(path, None, "the directory has this name twice".to_owned());
        } else if is_refused(error) {
            self.found(path, None, format!("the target refuses it: {error}"));
        } else {
            return Err(file_error(path, error));
        }
        Ok(())
    }

    /// Creates a copy of an inode; false if damage leaves nothing to create. The outer error is an
    /// error of the pool, the inner one of the target.
    async fn create(
        &mut self,
        attributes: &Attributes,
        path: &Path,
    ) -> Result<io::Result<bool>, ApiError> {
        let special = |file_type| {
            let (mode, device) = (Mode::from_bits_retain(0o600), attributes.device);
            Ok(rustix::fs::mknodat(CWD, path, file_type, mode, device)?)
        };
        let created = match attributes.file_type {
            FileType::Directory => return Ok(create_directory(path).map(|()| true)),
            FileType::Regular => {
                let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
                let file = match file {
                    Ok(file) => file,
                    Err(error) => return Ok(Err(error)),
                };
                self.rescued.files += 1;
                if let Err(error) = file.set_len(attributes.size) {
                    self.refused(path, &error)?;
                }
                self.copy_data(attributes.number, path, &file).await?;
                return Ok(Ok(true));
            }
            FileType::SymbolicLink => match self.files.read_link(attributes.number).await {
                Ok(link) => std::os::unix::fs::symlink(OsStr::from_bytes(&link), path),
                Err(error) => {
                    self.damaged(path, &error)?;
                    return Ok(Ok(false));
                }
            },
            FileType::Fifo => special(rustix::fs::FileType::Fifo),
            FileType::Socket => special(rustix::fs::FileType::Socket),
            FileType::CharDevice => special(rustix::fs::FileType::CharacterDevice),
            FileType::BlockDevice => special(rustix::fs::FileType::BlockDevice),
        };
        self.rescued.others += u64::from(created.is_ok());
        Ok(created.map(|()| true))
    }

    async fn copy_data(
        &mut self,
        number: ObjectId,
        path: &Path,
        file: &File,
    ) -> Result<(), ApiError> {
        let mut next = Some(0);
        while let Some(offset) = next {
            let part = match self.files.readable_data(number, offset).await {
                Ok(part) => part,
                Err(error) => return self.damaged(path, &error),
            };
            for range in &part.data {
                self.copy_range(number, (path, file), range.clone(), &part).await?;
            }
            for range in &part.unreadable {
                let what = "a node above these bytes is unreadable".to_owned();
                self.found(path, Some(range.clone()), what);
            }
            next = part.next;
        }
        Ok(())
    }

    /// Copies a range of a file. After a failed read, copies the range record by record.
    async fn copy_range(
        &mut self,
        number: ObjectId,
        (path, file): (&Path, &File),
        range: Range<u64>,
        part: &ReadableData,
    ) -> Result<(), ApiError> {
        let (mut at, mut piece_bytes) = (range.start, PIECE_BYTES);
        while at < range.end {
            let piece_end = (at - at % piece_bytes + piece_bytes).min(range.end);
            match self.files.read(number, at, (piece_end - at) as usize).await {
                Ok(data) => match file.write_all_at(&data, at) {
                    Ok(()) => self.rescued.copied_bytes += data.len() as u64,
                    Err(error) if is_refused(&error) => {
                        let what = format!("the target refuses these bytes: {error}");
                        self.found(path, Some(at..range.end), what);
                        return Ok(());
                    }
                    Err(error) => return Err(file_error(path, &error)),
                },
                Err(error) if error.is_damage() && piece_bytes > part.record_bytes => {
                    piece_bytes = part.record_bytes;
                    continue;
                }
                Err(error) if error.is_damage() => {
                    self.found(path, Some(at..piece_end), error.to_string());
                }
                Err(error) => return Err(fs_error(&error)),
            }
            self.progress.inc(piece_end - at);
            at = piece_end;
        }
        Ok(())
    }

    /// Copies the inodes without a readable name, and the inodes below them.
    async fn copy_unnamed(&mut self, lost_and_found: &Path) -> Result<(), ApiError> {
        let (mut unnamed, mut named, mut next) = (Vec::new(), HashSet::new(), Some(0));
        while let Some(first) = next {
            let part = self.files.readable_inodes(first).await.map_err(|error| fs_error(&error))?;
            for range in part.unreadable {
                let what = format!("inodes {} to {} are unreadable", range.start, range.end - 1);
                self.found(lost_and_found, None, what);
            }
            for inode in part.inodes {
                if self.seen.contains(&inode.number.0) {
                    continue;
                }
                unnamed.push(inode.number);
                if inode.file_type == FileType::Directory
                    && let Ok(found) = self.files.readable_entries(inode.number).await
                {
                    named.extend(found.entries.iter().map(|entry| entry.inode));
                }
            }
            next = part.next;
        }
        // Start with the inodes that no other unnamed inode names, and copy the inodes below them.
        // The inodes that are still not copied are in a cycle of damaged directories.
        let (below, tops): (Vec<_>, Vec<_>) = unnamed.into_iter().partition(|n| named.contains(n));
        let mut directory = None;
        for number in tops.into_iter().chain(below) {
            if self.seen.contains(&number.0) {
                continue;
            }
            // The directory is new: a symbolic link with this name could lead out of the copy.
            let directory = match &mut directory {
                Some(directory) => directory,
                none => none.insert(create_numbered(lost_and_found)?),
            };
            self.rescued.unnamed += 1;
            let path = directory.join(format!("#{}", number.0));
            if self.copy_entry(number, &path).await? {
                self.copy_directories(number, path).await?;
            }
        }
        Ok(())
    }

    /// Sets owner, extended attributes, permissions and times of a copy.
    async fn set_attributes(&mut self, path: &Path, of: &Attributes) -> Result<(), ApiError> {
        let failed = |error: Errno| file_error(path, &error.into());
        let is_link = of.file_type == FileType::SymbolicLink;
        // The largest number is no user or group: chown(2) takes it for "no change".
        let is_owner = of.uid != u32::MAX && of.gid != u32::MAX;
        let mut is_owned = is_owner && of.uid == rustix::process::geteuid().as_raw();
        if self.is_root && is_owner {
            let (uid, gid) = (Uid::from_raw(of.uid), Gid::from_raw(of.gid));
            let flags = AtFlags::SYMLINK_NOFOLLOW;
            is_owned = match rustix::fs::chownat(CWD, path, Some(uid), Some(gid), flags) {
                Ok(()) => true,
                // Root of a container lacks the capability, or the user namespace the number.
                Err(Errno::PERM | Errno::INVAL) => false,
                Err(error) => return Err(failed(error)),
            };
        }
        self.rescued.not_permitted += u64::from(!is_owned);
        self.set_xattrs(path, of.number).await?;
        if !is_link {
            // A user other than root may become the owner of the copy, so drop the set-id bits.
            let may_set_id = self.is_root && is_owned;
            let bits = if may_set_id { of.permissions } else { of.permissions & 0o1777 };
            rustix::fs::chmod(path, Mode::from_bits_retain(bits)).map_err(failed)?;
        }
        let time = |time: TimeStamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanos.into() };
        let times = Timestamps { last_access: time(of.atime), last_modification: time(of.mtime) };
        match rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW) {
            Err(Errno::INVAL | Errno::OVERFLOW) => self.rescued.not_permitted += 1,
            set => set.map_err(failed)?,
        }
        Ok(())
    }

    async fn set_xattrs(&mut self, path: &Path, number: ObjectId) -> Result<(), ApiError> {
        let names = match self.files.xattr_names(number).await {
            Ok(names) => names,
            Err(error) => return self.damaged(path, &error),
        };
        for name in names {
            let value = match self.files.xattr(number, &name).await {
                Ok(value) => value,
                Err(error) => {
                    self.damaged(path, &error)?;
                    continue;
                }
            };
            if let Err(error) = rustix::fs::lsetxattr(path, &*name, &value, XattrFlags::empty()) {
                tracing::debug!(path = %path.display(), %error, "an attribute is not copied");
                self.rescued.not_permitted += 1;
            }
        }
        Ok(())
    }

    /// Records damage; an error of the engine without damage ends the rescue.
    fn damaged(&mut self, path: &Path, error: &FsError) -> Result<(), ApiError> {
        if matches!(error, FsError::Dataset(_)) && !error.is_damage() {
            return Err(fs_error(error));
        }
        self.found(path, None, error.to_string());
        Ok(())
    }

    fn found(&mut self, path: &Path, range: Option<Range<u64>>, what: String) {
        self.rescued.damaged_bytes += range.as_ref().map_or(0, |range| range.end - range.start);
        let path = path.strip_prefix(&self.rescued.directory).unwrap_or(path);
        let path = path.to_string_lossy().into_owned();
        if let (Some(range), Some(last)) = (&range, self.rescued.damaged.last_mut())
            && last.path == path
            && let Some(before) = last.range.as_mut()
            && before.end == range.start
        {
            before.end = range.end;
            return;
        }
        self.rescued.damaged_parts += 1;
        if self.rescued.damaged.len() < DAMAGE_NAMED_MAX {
            self.rescued.damaged.push(Damage { path, range, what });
        }
    }
}

/// Entries in the order of their inodes, which is near the order of their data.
fn sorted(mut entries: Vec<ListedEntry>) -> Vec<ListedEntry> {
    entries.sort_unstable_by_key(|entry| entry.inode);
    entries
}
