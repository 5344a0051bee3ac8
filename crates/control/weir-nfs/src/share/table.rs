//! Shares of a server.
//!
//! Invariants:
//! - a call uses one share from its start to its end, even if the share changes meanwhile;
//! - a handle of a share is stale only after the share was deleted: while the server cannot open
//!   the filesystem, clients wait.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::RwLock;
use weir_fs::{Filesystem, InodeRef, Snapshots};
use weir_nfs_wire::nfs3::Verifier;

use super::incidents::Incidents;
use super::names::Names;
use super::rules::Rules;
use super::statistics::ShareStatistics;
use super::watcher::WatcherSlot;
use crate::handle::{HandleKey, ShareId};

/// A directory of a filesystem that clients may mount.
#[derive(Clone)]
pub struct Share {
    /// Identifier in handles.
    pub id: ShareId,
    /// Key that signs the handles of the share.
    pub key: HandleKey,
    /// Path in MOUNT, such as `/tank/home`.
    pub path: String,
    /// The filesystem.
    pub files: Arc<Filesystem>,
    /// Snapshots of the filesystem, for `.weir/snapshot` in its root. `None` if clients mount
    /// another directory.
    pub snapshots: Option<Arc<dyn Snapshots>>,
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
    /// Statistics of the calls, which continue when the share changes.
    pub statistics: Arc<ShareStatistics>,
    /// Watcher of changes of the filesystem. All shares of a filesystem have the same slot.
    pub watcher: Arc<WatcherSlot>,
}

/// State of a share.
enum Entry {
    Offered(Arc<Share>),
    /// The server will offer the share with this path later.
    Waits(String),
}

/// Result of the search for a share.
pub(crate) enum Found {
    Share(Arc<Share>),
    /// The client must send its call again later (NFS3ERR_JUKEBOX).
    Waits,
    /// No share has the identifier.
    Nothing,
}

/// The shares of a server.
#[derive(Default)]
pub struct Shares {
    /// Addresses of the names in the rules of the shares.
    pub names: Names,
    /// Refused and stale calls for shares that do not exist.
    pub incidents: Incidents,
    table: RwLock<HashMap<ShareId, Entry>>,
}

impl Shares {
    /// Adds a share, or replaces the share with the same identifier.
    pub fn set(&self, mut share: Share) {
        share.rules.follow(&self.names);
        self.table.write().insert(share.id, Entry::Offered(Arc::new(share)));
    }

    /// Changes the rules of a share. Does nothing if clients cannot use the share now.
    pub fn set_rules(&self, id: ShareId, rules: &Rules) {
        let mut rules = rules.clone();
        rules.follow(&self.names);
        if let Some(Entry::Offered(share)) = self.table.write().get_mut(&id) {
            *share = Arc::new(Share { rules, ..(**share).clone() });
        }
    }

    /// Lets the clients of a share wait until [`Self::set`] or [`Self::remove`].
    pub fn wait(&self, id: ShareId, path: &str) {
        self.table.write().insert(id, Entry::Waits(path.to_owned()));
    }

    /// Removes a share. Handles of the share are stale from now on. Returns false if no share has
    /// the identifier.
    pub fn remove(&self, id: ShareId) -> bool {
        self.table.write().remove(&id).is_some()
    }

    /// Share of a handle.
    pub(crate) fn get(&self, id: ShareId) -> Found {
        self.table.read().get(&id).map_or(Found::Nothing, Entry::found)
    }

    /// Share whose path is `path` or above it, with the rest of the path. The longest path decides.
    pub(crate) fn of_path<'p>(&self, path: &'p [u8]) -> (Found, &'p [u8]) {
        let shares = self.table.read();
        let above = shares.values().filter_map(|entry| {
            let rest = path.strip_prefix(entry.path().as_bytes())?;
            let is_below = rest.is_empty() || rest.starts_with(b"/") || entry.path().ends_with('/');
            is_below.then_some((entry, rest))
        });
        let found = above.max_by_key(|(entry, _)| entry.path().len());
        found.map_or((Found::Nothing, path), |(entry, rest)| (entry.found(), rest))
    }

    /// All shares that clients can use now, ordered by path.
    pub fn all(&self) -> Vec<Arc<Share>> {
        let shares = self.table.read();
        let offered = shares.values().filter_map(|entry| match entry {
            Entry::Offered(share) => Some(Arc::clone(share)),
            Entry::Waits(_) => None,
        });
        let mut all: Vec<_> = offered.collect();
        all.sort_by(|one, two| one.path.cmp(&two.path));
        all
    }
}

impl Entry {
    fn path(&self) -> &str {
        match self {
            Self::Offered(share) => &share.path,
            Self::Waits(path) => path,
        }
    }

    fn found(&self) -> Found {
        match self {
            Self::Offered(share) => Found::Share(Arc::clone(share)),
            Self::Waits(_) => Found::Waits,
        }
    }
}
