//! Shares of a server.
//!
//! Invariant: a call uses one share from its start to its end, even if the share changes meanwhile.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use weir_fs::{Filesystem, InodeRef};
use weir_nfs_wire::nfs3::Verifier;

use super::rules::Rules;
use crate::handle::{HandleKey, ShareId};

/// A directory of a filesystem that clients may mount.
pub struct Share {
    /// Identifier in handles.
    pub id: ShareId,
    /// Key that signs the handles of the share.
    pub key: HandleKey,
    /// Path in MOUNT, such as `/tank/home`.
    pub path: String,
    /// The filesystem.
    pub files: Arc<Filesystem>,
    /// Number of the filesystem in handles and attributes.
    pub fsid: u64,
    /// Directory that clients mount.
    pub root: InodeRef,
    /// Clients and their rights.
    pub rules: Rules,
    /// True if changes of names and attributes are durable before the reply (RFC 1813 section
    /// 4.8). If false, a crash may lose changes that the server acknowledged.
    pub is_sync: bool,
    /// Verifier of unstable writes (RFC 1813 section 3.3.7). It changes whenever the server may
    /// have lost unstable data.
    pub verifier: Verifier,
}

/// The shares of a server.
#[derive(Default)]
pub struct Shares(RwLock<HashMap<ShareId, Arc<Share>>>);

impl Shares {
    /// Adds a share, or replaces the share with the same identifier.
    pub fn set(&self, share: Share) {
        self.0.write().insert(share.id, Arc::new(share));
    }

    /// Removes a share. Handles of the share are stale from now on. Returns false if no share has
    /// the identifier.
    pub fn remove(&self, id: ShareId) -> bool {
        self.0.write().remove(&id).is_some()
    }

    /// Share of a handle.
    pub fn get(&self, id: ShareId) -> Option<Arc<Share>> {
        self.0.read().get(&id).map(Arc::clone)
    }

    /// Share whose path is `path` or above it, with the rest of the path. The longest path decides.
    pub fn of_path<'p>(&self, path: &'p [u8]) -> Option<(Arc<Share>, &'p [u8])> {
        let shares = self.0.read();
        let above = shares.values().filter_map(|share| {
            let rest = path.strip_prefix(share.path.as_bytes())?;
            let is_below = rest.is_empty() || rest.starts_with(b"/") || share.path.ends_with('/');
            is_below.then_some((share, rest))
        });
        let found = above.max_by_key(|(share, _)| share.path.len());
        found.map(|(share, rest)| (Arc::clone(share), rest))
    }

    /// All shares, ordered by path.
    pub fn all(&self) -> Vec<Arc<Share>> {
        let mut all: Vec<_> = self.0.read().values().map(Arc::clone).collect();
        all.sort_by(|one, two| one.path.cmp(&two.path));
        all
    }
}
