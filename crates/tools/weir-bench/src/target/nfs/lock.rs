//! Lock file that excludes other runs from the directory of an NFS target.
//!
//! `guard` locks local files, directories and devices.
//!
//! Invariants: a run creates the lock file before it creates or changes another file; it removes
//! the lock file only if the content is its own. A run that is killed leaves its lock file behind.

use std::time::{SystemTime, UNIX_EPOCH};

use weir_nfs_client::{Client, NfsError, Url};
use weir_nfs_wire::nfs3::Nfsstat3;

use super::mount::{Share, failed};
use crate::target::error::TargetError;

/// Name of the lock file in the directory of the target.
const NAME: &str = "weir-bench.lock";

/// Maximum number of characters of a lock file in an error.
const HOLDER_CHARS_MAX: usize = 120;

/// Lock of a directory; dropping it removes the lock file.
pub(super) struct Lock {
    share: Share,
    content: String,
}

impl Lock {
    /// Creates the lock file (CREATE, GUARDED), with a random number in its content.
    ///
    /// # Errors
    /// [`TargetError::Locked`] if the file exists, or a call failed.
    pub(super) fn take(client: &mut Client, share: &Share) -> Result<Self, TargetError> {
        let (address, directory) = (share.url.to_string(), &share.root);
        let random = getrandom::u64().map_err(|error| TargetError::Io {
            address: address.clone(),
            what: "lock",
            source: std::io::Error::other(error.to_string()),
        })?;
        let system = rustix::system::uname();
        let host = system.nodename().to_string_lossy();
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let process = std::process::id();
        let content = format!("process {process} of {host}, {seconds} s since 1970, {random:x}");
        let created = client.create_file(directory, NAME, content.as_bytes());
        if created.map_err(failed(&address))? {
            return Ok(Self { share: share.clone(), content });
        }
        let holder = client.read_file(directory, NAME).map_err(failed(&address))?;
        let holder = String::from_utf8_lossy(&holder.unwrap_or_default())
            .chars()
            .filter(|c| !c.is_control())
            .take(HOLDER_CHARS_MAX)
            .collect();
        Err(TargetError::Locked { address, holder })
    }

    fn remove(&self) -> Result<(), NfsError> {
        let mut client = self.share.client()?;
        match client.read_file(&self.share.root, NAME)? {
            Some(found) if found == self.content.as_bytes() => {
                client.remove_file(&self.share.root, NAME)
            }
            // The user removed the lock file, and another run may have created its own.
            _ => Ok(()),
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // `drop` cannot return the error. If the file remains, the next run reports it.
        self.remove().ok();
    }
}

/// Removes the lock files in the directories of a URL, of whatever run they are.
///
/// # Errors
/// The server cannot be reached, or refuses the removal.
pub(super) fn remove(url: &Url) -> Result<(), NfsError> {
    for url in url.shares() {
        let mut client = Client::mount(&url)?;
        match client.directory(&url, false) {
            Ok(directory) => client.remove_file(&directory, NAME)?,
            Err(NfsError::Failed { status: Nfsstat3::Noent, .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
