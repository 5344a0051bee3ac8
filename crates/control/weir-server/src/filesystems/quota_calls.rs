//! Calls for the usage and the quotas of users, groups and projects.
//!
//! Invariants:
//! - a call works on the filesystem that mounts and shares use, if it is open;
//! - a call returns within a bounded time, whatever the disks do.

use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use weir_api::types::{
    DatasetKind, FileOwner, FilesystemQuota, FilesystemUsage, Outcome, OwnerUsage, QuotaChange,
    ShowFilesystemUsage,
};
use weir_api::{ApiError, Handle};
use weir_base::BLOCK_BYTES;
use weir_format::files::{Limits, OwnerId, OwnerKind, Usage};
use weir_fs::{Filesystem, FsError};

use crate::answer::errors::not_found;
use crate::answer::names::{Of, pool_of, split};
use crate::filesystems::filesystem_calls::fs_error;
use crate::filesystems::mount_calls::refuse_receiving;
use crate::state::server::Manager;

/// Maximum number of owners in one response.
const OWNERS_MAX: usize = 65_536;

const BLOCK: u64 = BLOCK_BYTES as u64;

fn owner_id(owner: FileOwner, id: u32) -> OwnerId {
    let kind = match owner {
        FileOwner::User => OwnerKind::User,
        FileOwner::Group => OwnerKind::Group,
        FileOwner::Project => OwnerKind::Project,
    };
    OwnerId { kind, id }
}

fn shown(OwnerId { kind, id }: OwnerId, usage: &Usage) -> OwnerUsage {
    let owner = match kind {
        OwnerKind::User => FileOwner::User,
        OwnerKind::Group => FileOwner::Group,
        OwnerKind::Project => FileOwner::Project,
    };
    let limit = |limit: u64| (limit > 0).then_some(limit);
    OwnerUsage {
        owner,
        id,
        used_bytes: usage.blocks.saturating_mul(BLOCK),
        files: usage.inodes,
        quota_bytes: limit(usage.limits.blocks.saturating_mul(BLOCK)),
        quota_files: limit(usage.limits.inodes),
    }
}

/// An operation on an open filesystem.
type Operation<T> = Box<dyn FnOnce(&Filesystem) -> LocalBoxFuture<'_, Result<T, FsError>> + Send>;

impl Manager {
    /// Runs an operation on a filesystem. The caller holds the lock of the pool.
    async fn with_files<T: Send + 'static>(
        &self,
        full: &str,
        operation: Operation<T>,
    ) -> Result<T, ApiError> {
        let dataset = self.dataset_of_kind(full, DatasetKind::Filesystem)?;
        refuse_receiving(full, dataset.receiving.as_deref())?;
        self.mounts.wait_for_ends(Of::Dataset(full)).await?;
        let (pool, own) = split(full)?;
        let engine = Arc::clone(&self.pool(pool)?.engine);
        let volume = engine.volume(own).map_err(|_| not_found("filesystem", full))?;
        let open = self.open_filesystem(full, &engine, &volume).await?;
        let done = open.run(full, operation).await?.map_err(|error| fs_error(full, &error));
        drop(open);
        self.wait_for_ends(Of::Dataset(full)).await?;
        done
    }
}

impl Handle<ShowFilesystemUsage> for Manager {
    /// Shows the usage of a filesystem by users, groups and projects.
    async fn handle(&self, call: ShowFilesystemUsage) -> Result<FilesystemUsage, ApiError> {
        let _changes = self.changes.lock(pool_of(&call.name)).await;
        let all: Operation<_> = Box::new(|files| {
            Box::pin(async move {
                let (mut owners, mut left_out, mut next) = (Vec::new(), 0, Some(0));
                while let Some(from) = next {
                    let (part, after) = files.usages(from).await?;
                    let room = OWNERS_MAX - owners.len();
                    left_out += part.len().saturating_sub(room) as u64;
                    owners
                        .extend(part.iter().take(room).map(|(owner, usage)| shown(*owner, usage)));
                    next = after;
                }
                Ok((owners, left_out))
            })
        });
        let (mut owners, left_out) = self.with_files(&call.name, all).await?;
        owners.sort_by_key(|usage| (usage.owner, usage.id));
        Ok(FilesystemUsage { owners, left_out })
    }
}

impl Handle<FilesystemQuota> for Manager {
    /// Sets a quota of a user, group or project. A quota below the usage only refuses growth.
    async fn handle(&self, call: FilesystemQuota) -> Result<QuotaChange, ApiError> {
        let FilesystemQuota { name, owner, id, quota_bytes, quota_files } = call;
        let _changes = self.changes.lock(pool_of(&name)).await;
        let owner = owner_id(owner, id);
        let set: Operation<_> = Box::new(move |files| {
            Box::pin(async move {
                let before = files.usage(owner).await?;
                let limits = Limits {
                    blocks: quota_bytes.map_or(before.limits.blocks, |bytes| bytes.div_ceil(BLOCK)),
                    inodes: quota_files.unwrap_or(before.limits.inodes),
                };
                if limits == before.limits {
                    return Ok((Outcome::Unchanged, before));
                }
                files.set_limits(owner, limits).await?;
                files.sync_all().await?;
                Ok((Outcome::Changed, files.usage(owner).await?))
            })
        });
        let (outcome, usage) = self.with_files(&name, set).await?;
        Ok(QuotaChange { outcome, usage: shown(owner, &usage) })
    }
}
