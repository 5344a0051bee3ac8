//! Offers the shares of a pool that opens, and takes them back when it closes.
//!
//! The calls are in `share_calls`.
//!
//! Invariant: a share keeps its filesystem open only while its pool is open.

use std::hash::Hasher as _;
use std::sync::Arc;

use siphasher::sip::SipHasher24;
use weir_api::ApiError;
use weir_api::types::EventLevel;
use weir_base::{DatasetId, ErrorKind};
use weir_dataset::Engine;
use weir_fs::{FsError, InodeRef, ROOT};
use weir_nfs::{HandleKey, Share, ShareId, find_directory};

use crate::answer::names::{Of, pool_of};
use crate::filesystems::filesystem_calls::fs_error;
use crate::filesystems::mount_calls::open_files;
use crate::record::events::NewEvent;
use crate::state::nfs_shares::{path_of, rules_of};
use crate::state::saved_state::KnownShare;
use crate::state::server::Manager;

/// Purpose of the key of a filesystem that signs handles.
const HANDLES: &str = "NFS handles";

/// Number of a filesystem in handles and attributes. It stays the same on every server.
fn fsid(engine: &Engine, dataset: DatasetId) -> u64 {
    let mut hasher = SipHasher24::new();
    hasher.write(&engine.pool().guid().0.to_le_bytes());
    hasher.write(&dataset.0.to_le_bytes());
    hasher.finish()
}

impl Manager {
    /// Offers a share to clients. Returns it with its identifier in handles. The caller holds the
    /// lock of the pool.
    pub(crate) async fn offer_share(&self, mut known: KnownShare) -> Result<KnownShare, ApiError> {
        let rules = rules_of(&known.allow)?;
        let full = known.filesystem.clone();
        let full = full.as_str();
        let engine = Arc::clone(&self.pool(pool_of(full))?.engine);
        let volume = open_files(&engine, full)?;
        let open = self.open_filesystem(full, &engine, &volume).await?;
        let directory = known.directory.clone();
        let find = open.run(full, move |files| {
            Box::pin(async move {
                let root = InodeRef::from(&files.attributes(ROOT).await?);
                find_directory(files, root, directory.as_bytes()).await
            })
        });
        let root = match find.await? {
            Ok(root) => root,
            Err(FsError::NotFound | FsError::NotDirectory) => {
                let message = format!("{full} has no directory {}", known.directory);
                return Err(ApiError::new(ErrorKind::NotFound, message).with_action(format!(
                    "create it on a mount of the filesystem: weir mount {full} DIRECTORY"
                )));
            }
            Err(error) => return Err(fs_error(full, &error)),
        };
        let (fsid, path) = (fsid(&engine, volume.dataset()), path_of(&known.name));
        let id = ShareId::of(&path, fsid, root);
        (known.id, known.dataset) = (id.0, volume.dataset().0);
        let share = |statistics| Share {
            id,
            key: HandleKey::new(open.files.derived_key(HANDLES)),
            path,
            files: Arc::clone(&open.files),
            snapshots: open.snapshots.clone().filter(|_| root.number == ROOT),
            fsid,
            root,
            rules,
            is_sync: !known.asynchronous,
            // Another opening of the filesystem may lack unstable writes: the server restarted, or
            // a rollback discarded them.
            verifier: open.opening.to_le_bytes(),
            statistics,
            watcher: Arc::clone(&open.watcher),
        };
        self.nfs.offer(&known.name, Arc::clone(&open), share);
        Ok(known)
    }

    /// Names of the saved shares that the filter selects.
    pub(crate) fn shares_of(&self, of: Of<'_>) -> Vec<KnownShare> {
        let state = self.state.lock();
        let shares = state.state.shares.iter().filter(|share| of.is(&share.filesystem));
        shares.cloned().collect()
    }

    /// Offers the shares of a pool that has just opened. A share that cannot be offered causes an
    /// event; its clients wait.
    pub(crate) async fn share_pool(&self, pool: &str) {
        self.offer_shares(Of::Pool(pool)).await;
    }

    /// Offers the saved shares that the filter selects, whose clients wait. The caller holds the
    /// lock of the pool.
    pub(crate) async fn offer_shares(&self, of: Of<'_>) {
        for known in self.shares_of(of) {
            self.offer_again(known).await;
        }
    }

    /// Offers a saved share again, after clients waited for it.
    async fn offer_again(&self, known: KnownShare) {
        let (name, full) = (known.name.clone(), known.filesystem.clone());
        let offered = self.offer_share(known.clone()).await;
        let Err(error) = offered.and_then(|now| self.note_offered(&known, &now)) else { return };
        let message = format!("share {name} of {full} is not offered: {error}");
        tracing::error!("{message}");
        self.nfs.wait(&known, error.to_string());
        let (kind, pool) = ("share".to_owned(), Some(pool_of(&full).to_owned()));
        self.record.events.add(NewEvent {
            level: EventLevel::Error,
            kind,
            pool,
            disk: None,
            message,
        });
    }

    /// Completes the offer of a saved share: other calls may have changed or deleted it meanwhile.
    fn note_offered(&self, known: &KnownShare, now: &KnownShare) -> Result<(), ApiError> {
        let mut state = self.state.lock();
        let Some(saved) = state.state.shares.iter_mut().find(|share| share.name == known.name)
        else {
            self.nfs.remove(now);
            return Ok(());
        };
        self.nfs.set_rules(now.id, &rules_of(&saved.allow)?);
        if now.id != known.id {
            // The directory is another one now, so the old handles are stale.
            self.nfs.server.shares.remove(ShareId(known.id));
        }
        if (saved.id, saved.dataset) == (now.id, now.dataset) {
            return Ok(());
        }
        (saved.id, saved.dataset) = (now.id, now.dataset);
        state.save()
    }

    /// Lets the clients of shares wait, for example before their pool closes.
    pub(crate) fn suspend_shares(&self, of: Of<'_>, why: &str) {
        for known in self.shares_of(of) {
            self.nfs.wait(&known, why.to_owned());
        }
    }

    /// Ends the shares of a pool that leaves this server, and deletes them.
    pub(crate) fn drop_shares(&self, of: Of<'_>) {
        for known in self.shares_of(of) {
            self.nfs.remove(&known);
        }
    }

    /// Stops the NFS server: clients get their outstanding replies, and then wait for the next
    /// start.
    pub(crate) async fn stop_nfs(&self) {
        self.nfs.stop().await;
        self.suspend_shares(Of::All, "the server stops");
    }

    /// Returns an error while a filesystem that the filter selects is shared.
    pub(crate) fn refuse_shared(&self, of: Of<'_>) -> Result<(), ApiError> {
        let shares = self.shares_of(of);
        let Some(first) = shares.first() else { return Ok(()) };
        let message = format!("{} is shared as {}", first.filesystem, first.name);
        Err(ApiError::new(ErrorKind::Busy, message)
            .with_action(format!("delete the share first: weir share delete {}", first.name)))
    }
}
