//! Files and directories with secrets: checks that other users cannot read them.
//!
//! The callers interpret the content of the secret files.
//!
//! Invariants:
//! - the permissions are checked on the descriptor from which the file is read, so that the file
//!   cannot be replaced between the check and the read;
//! - a file that other users may read or write is refused, and the error contains the command that
//!   corrects the permissions;
//! - no error contains any part of the file's content.

use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use crate::{ErrorKind, named_file};

/// Permission bits of users other than the owner.
const OTHERS: u32 = 0o077;

/// Maximum length of a secret file: keys and certificates fit into it.
const BYTES_MAX: u64 = 64 << 10;

/// Reason for the refusal of a secret file.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PrivateError {
    /// The file cannot be read.
    #[error("cannot read the secret file {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// Error that the operating system returned.
        source: io::Error,
    },
    /// The file is not a regular file, or is too long for a secret.
    #[error(
        "{} is not a secret file: it must be a regular file of at most {BYTES_MAX} bytes",
        path.display()
    )]
    NoFile {
        /// Path of the file.
        path: PathBuf,
    },
    /// Other users may read or change the file or directory.
    #[error("{} is open to other users (mode {mode:04o})", path.display())]
    Open {
        /// Path of the file or directory.
        path: PathBuf,
        /// Permission bits of the file or directory.
        mode: u32,
        /// True if the path is a directory.
        is_dir: bool,
    },
}

impl PrivateError {
    /// Maps the error to an [`ErrorKind`].
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { source, .. } => ErrorKind::of_file(source.kind()),
            Self::NoFile { .. } => ErrorKind::Invalid,
            Self::Open { .. } => ErrorKind::Permission,
        }
    }

    /// Action with which the user corrects the error.
    pub fn action(&self) -> String {
        match self {
            Self::Read { .. } => "check the path and its mode".to_owned(),
            Self::NoFile { .. } => "name the file with the secret".to_owned(),
            Self::Open { path, is_dir, .. } => {
                let mode = if *is_dir { "700" } else { "600" };
                format!("chmod {mode} {}", path.display())
            }
        }
    }
}

/// Reads a file that contains a secret.
///
/// # Errors
/// [`PrivateError::Open`] if other users may read or write the file.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, PrivateError> {
    let read = |source| PrivateError::Read { path: path.to_owned(), source };
    let (meta, bytes) = match named_file::read(path, BYTES_MAX) {
        Ok(found) => found,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::InvalidInput | io::ErrorKind::FileTooLarge
            ) =>
        {
            return Err(PrivateError::NoFile { path: path.to_owned() });
        }
        Err(error) => return Err(read(error)),
    };
    check(path, &meta)?;
    Ok(bytes)
}

/// Checks that other users have no access to a directory.
///
/// # Errors
/// [`PrivateError::Open`] if other users may list, read or change the directory's content.
pub fn check_dir(path: &Path) -> Result<(), PrivateError> {
    let read = |source| PrivateError::Read { path: path.to_owned(), source };
    let meta = File::open(path).and_then(|dir| dir.metadata()).map_err(read)?;
    check(path, &meta)
}

fn check(path: &Path, meta: &Metadata) -> Result<(), PrivateError> {
    let mode = meta.mode() & 0o7777;
    if mode & OTHERS == 0 {
        return Ok(());
    }
    Err(PrivateError::Open { path: path.to_owned(), mode, is_dir: meta.is_dir() })
}

#[cfg(test)]
mod tests {
    use std::fs::{Permissions, set_permissions, write};
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn secret_file_that_others_may_read_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("secret");
        write(&path, "s3cret").unwrap();
        for mode in [0o640, 0o604, 0o620, 0o666, 0o644] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            let error = read_secret(&path).expect_err("open to others");
            assert_eq!(error.action(), format!("chmod 600 {}", path.display()));
            assert!(error.to_string().contains(&format!("{mode:04o}")), "{error}");
            assert!(!error.to_string().contains("s3cret"));
        }
        for mode in [0o600, 0o400, 0o700] {
            set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            assert_eq!(read_secret(&path).unwrap(), b"s3cret");
        }
    }

    #[test]
    fn directory_or_large_file_is_refused_as_a_secret() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(read_secret(dir.path()), Err(PrivateError::NoFile { .. })));
        let absent = read_secret(&dir.path().join("absent")).expect_err("absent");
        assert_eq!(absent.kind(), ErrorKind::NotFound);
        let large = dir.path().join("large");
        write(&large, vec![b'x'; 70_000]).unwrap();
        set_permissions(&large, Permissions::from_mode(0o600)).unwrap();
        assert!(matches!(read_secret(&large), Err(PrivateError::NoFile { .. })));
    }

    #[test]
    fn directory_that_others_may_list_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        for mode in [0o755, 0o750, 0o701, 0o777] {
            set_permissions(dir.path(), Permissions::from_mode(mode)).unwrap();
            let error = check_dir(dir.path()).expect_err("open to others");
            assert_eq!(error.action(), format!("chmod 700 {}", dir.path().display()));
        }
        set_permissions(dir.path(), Permissions::from_mode(0o700)).unwrap();
        check_dir(dir.path()).unwrap();
    }
}
