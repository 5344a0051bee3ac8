//! Secrets that callers sent: one file for each in the state directory.
//!
//! Each secret belongs to a replication or to an iSCSI target; tokens are in `tokens`.
//!
//! Invariants:
//! - a file is inaccessible to other users from its creation on;
//! - the name of a file is random and reveals nothing;
//! - a secret that no replication or target uses is removed, at the latest when the server starts.

use std::collections::BTreeSet;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use weir_api::ApiError;
use weir_base::ErrorKind;

use crate::answer::names::guid;

/// The directory of the server's secret files.
#[derive(Clone, Debug)]
pub(crate) struct Secrets {
    dir: PathBuf,
}

impl Secrets {
    pub(crate) fn of(state_dir: &Path) -> Self {
        Self { dir: state_dir.join("secrets") }
    }

    /// Saves a secret in a new file and returns its path. If the file `before` in this directory
    /// already contains the same secret, returns `before` instead.
    ///
    /// # Durability
    /// The file is on stable media when this function returns.
    pub(crate) fn keep(&self, content: &[u8], before: Option<&str>) -> Result<String, ApiError> {
        let is_ours = |path: &&str| Path::new(path).parent() == Some(&self.dir);
        if let Some(before) = before.filter(is_ours)
            && fs::read(before).is_ok_and(|kept| kept == content)
        {
            return Ok(before.to_owned());
        }
        let path = self.dir.join(format!("{}{}", guid(), guid()));
        let write = || -> io::Result<()> {
            DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
            let mut file =
                OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
            file.write_all(content)?;
            file.sync_all()?;
            fs::File::open(&self.dir)?.sync_all()
        };
        write().map_err(|error| {
            let message = format!("cannot keep a secret in {}: {error}", self.dir.display());
            ApiError::new(ErrorKind::Unavailable, message)
        })?;
        path.into_os_string().into_string().map_err(|_| {
            ApiError::new(ErrorKind::Invalid, "the path of the state directory is not valid UTF-8")
                .with_action("give another directory with --state")
        })
    }

    /// Removes a saved secret. Does nothing for a file outside the directory of the secrets.
    pub(crate) fn forget(&self, path: &str) {
        if Path::new(path).parent() != Some(&self.dir) {
            return;
        }
        if let Err(error) = fs::remove_file(path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path, %error, "cannot remove an unused secret");
        }
    }

    /// Removes all secret files that are not in `used`: a crash may have left them behind.
    pub(crate) fn retain_only(&self, used: &BTreeSet<&str>) {
        let Ok(entries) = fs::read_dir(&self.dir) else { return };
        for path in entries.flatten().map(|entry| entry.path()) {
            if let Some(path) = path.to_str().filter(|path| !used.contains(path)) {
                self.forget(path);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn saved_secret_is_private_and_removed_when_unused() {
        let dir = tempfile::tempdir().unwrap();
        let secrets = Secrets::of(dir.path());
        let [one, other] = [b"one", b"two"].map(|content| secrets.keep(content, None).unwrap());
        assert_eq!(fs::read(&one).unwrap(), b"one");
        assert_eq!(secrets.keep(b"one", Some(&one)).unwrap(), one);
        assert_ne!(secrets.keep(b"two", Some(&one)).unwrap(), one);
        assert_eq!(fs::metadata(&one).unwrap().permissions().mode() & 0o777, 0o600);
        secrets.retain_only(&BTreeSet::from([one.as_str()]));
        assert!(Path::new(&one).exists() && !Path::new(&other).exists());
        // `forget` must not remove a file that a caller named: it is outside the directory.
        let named = dir.path().join("named");
        fs::write(&named, "").unwrap();
        secrets.forget(named.to_str().unwrap());
        assert!(named.exists());
        secrets.forget(&one);
        assert!(!Path::new(&one).exists());
    }
}
