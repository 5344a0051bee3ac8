//! Targets that are files or block devices.
//!
//! `uring` and `psync` submit operations to the kernel.
//!
//! Invariants:
//! - a file is opened with `O_DIRECT` if its file system supports `O_DIRECT`, and the driver name
//!   in the report states whether it does; a new file is as long as the dataset; files are never
//!   truncated.

use std::fs::{File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Advice, OFlags, fadvise};

use super::error::{TargetError, io_error};
use super::inline::InlineLane;
use super::lane::{FileTree, Lane, Target};
use super::parts::Files;
use super::tree::Tree;
use super::{psync, uring};
use crate::result::TargetInfo;
use crate::spec::OpKind;

/// Block size that the program assumes if the file system reports none.
const FILE_BLOCK_BYTES: u32 = 512;

pub(super) struct FileTarget {
    info: TargetInfo,
    files: Arc<Files>,
    /// Directory of the files; `None` if the target is a single file or device.
    tree: Option<Arc<Tree>>,
}

/// Opens a file or device of at least `bytes`; creates a missing file.
pub(super) fn open(path: &Path, bytes: u64) -> Result<FileTarget, TargetError> {
    let (file, direct) = open_file(path, bytes)?;
    FileTarget::of(&path.display().to_string(), vec![file], None, direct)
}

/// Opens a file, and creates or extends it if needed. Returns the file and whether `O_DIRECT` is in
/// use.
pub(super) fn open_file(path: &Path, bytes: u64) -> Result<(File, bool), TargetError> {
    let is_device = std::fs::metadata(path).is_ok_and(|found| found.file_type().is_block_device());
    // With `O_EXCL` the kernel refuses the open if the device is mounted or held exclusively.
    let alone = if is_device { OFlags::EXCL } else { OFlags::empty() };
    let open = |flags: OFlags| {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(!is_device);
        options.custom_flags((flags | alone).bits().cast_signed());
        options.open(path)
    };
    let (file, direct) = match open(OFlags::DIRECT) {
        Ok(file) => (file, true),
        // tmpfs and some network file systems fail an open with `O_DIRECT` with `EINVAL`.
        Err(error) if error.kind() == std::io::ErrorKind::InvalidInput => {
            (open(OFlags::empty()).map_err(io_error(path, "open"))?, false)
        }
        Err(error) => return Err(io_error(path, "open")(error)),
    };
    let found = file.metadata().map_err(io_error(path, "look at"))?;
    if found.is_file() && found.len() < bytes {
        file.set_len(bytes).map_err(io_error(path, "make longer"))?;
    }
    Ok((file, direct))
}

impl FileTarget {
    /// Creates a target from open files of `part_bytes` each. If `part_bytes` is `None`, the target
    /// is the full length of a single file.
    pub(super) fn of(
        address: &str,
        files: Vec<File>,
        part_bytes: Option<u64>,
        direct: bool,
    ) -> Result<Self, TargetError> {
        let path = Path::new(address);
        let meta = files[0].metadata().map_err(io_error(path, "look at"))?;
        let is_device = meta.file_type().is_block_device();
        let part_bytes = match part_bytes {
            Some(bytes) => bytes,
            None if is_device => rustix::fs::seek(&files[0], rustix::fs::SeekFrom::End(0))
                .map_err(|error| io_error(path, "measure")(error.into()))?,
            None => meta.len(),
        };
        let driver = if uring::is_available() { "io_uring" } else { "pread, pwrite" };
        let past = if direct { "O_DIRECT" } else { "page cache" };
        let info = TargetInfo {
            address: address.to_owned(),
            kind: if is_device { "device" } else { "file" }.to_owned(),
            bytes: part_bytes.saturating_mul(files.len() as u64),
            block_bytes: direct_block(&files[0]).unwrap_or(FILE_BLOCK_BYTES),
            driver: format!("{driver}, {past}"),
            ..TargetInfo::default()
        };
        let files = Files { files: files.into_iter().map(Arc::new).collect(), part_bytes };
        Ok(Self { info, files: Arc::new(files), tree: None })
    }

    /// Adds metadata operations on the directory `path`, which contains the files of the target.
    pub(super) fn with_tree(mut self, path: &Path) -> Result<Self, TargetError> {
        self.tree = Some(Arc::new(Tree::open(path, Arc::clone(&self.files))?));
        Ok(self)
    }

    /// Opens a lane. If `calls` is set, it executes metadata operations on this directory, with
    /// this queue depth.
    fn open_lane(
        &self,
        slots: usize,
        buffer_bytes: usize,
        calls: Option<(Arc<Tree>, usize)>,
    ) -> Result<Box<dyn Lane>, TargetError> {
        let (address, files) = (&self.info.address, Arc::clone(&self.files));
        if uring::is_available() {
            uring::lane(address, files, slots, buffer_bytes, calls)
        } else {
            let tree = calls.map(|(tree, _)| tree);
            Ok(psync::lane(address, &files, tree.as_ref(), slots, buffer_bytes))
        }
    }

    fn tree(&self) -> Result<&Arc<Tree>, TargetError> {
        let no_files = || TargetError::NoFiles { address: self.info.address.clone() };
        self.tree.as_ref().ok_or_else(no_files)
    }
}

impl FileTree for FileTarget {
    fn lane(
        &self,
        slots: usize,
        depth: usize,
        buffer_bytes: usize,
    ) -> Result<Box<dyn Lane>, TargetError> {
        let tree = Arc::clone(self.tree()?);
        if depth > 1 {
            return self.open_lane(slots, buffer_bytes, Some((tree, depth)));
        }
        Ok(Box::new(InlineLane::new(self.open_lane(slots, buffer_bytes, None)?, tree)))
    }

    fn make_directory(&self, path: &str) -> Result<(), TargetError> {
        self.tree()?.make_directory(path)
    }

    fn remove_directory(&self, path: &str) -> Result<(), TargetError> {
        self.tree()?.remove_directory(path)
    }

    fn list(&self, path: &str, each: &mut dyn FnMut(&str)) -> Result<bool, TargetError> {
        self.tree()?.list(path, each)
    }
}

/// Alignment that direct I/O requires, as reported by the kernel (statx, Linux 6.1).
fn direct_block(file: &File) -> Option<u32> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let mask = StatxFlags::from_bits_retain(0x2000);
    let found = statx(file.as_fd(), "", AtFlags::EMPTY_PATH, mask).ok()?;
    (found.stx_mask & 0x2000 != 0 && found.stx_dio_offset_align > 0)
        .then_some(found.stx_dio_offset_align)
}

impl Target for FileTarget {
    fn info(&self) -> &TargetInfo {
        &self.info
    }

    fn lane(&self, slots: usize, buffer_bytes: usize) -> Result<Box<dyn Lane>, TargetError> {
        self.open_lane(slots, buffer_bytes, None)
    }

    fn files(&self) -> Option<&dyn FileTree> {
        self.tree.is_some().then_some(self)
    }

    fn op_bytes_max(&self, kind: OpKind) -> u64 {
        match kind {
            OpKind::Read | OpKind::Write | OpKind::Flush => u64::MAX,
            OpKind::Trim => u32::MAX.into(),
            _ => 0,
        }
    }

    fn flush_files(&self) -> Result<bool, TargetError> {
        let path = Path::new(&self.info.address);
        self.files
            .files
            .iter()
            .try_for_each(|file| file.sync_data().map_err(io_error(path, "flush")))?;
        Ok(true)
    }

    fn drop_caches(&self) -> Result<bool, TargetError> {
        self.flush_files()?;
        let path = Path::new(&self.info.address);
        for file in &self.files.files {
            fadvise(file, 0, None, Advice::DontNeed)
                .map_err(|error| io_error(path, "drop caches of")(error.into()))?;
        }
        Ok(true)
    }
}
