//! Calls that create, list and destroy bookmarks.
//!
//! The calls in `transfers` send incremental streams from a bookmark.
//!
//! Invariant: a bookmark has no data, so the calls check neither the free space of the pool nor the
//! clones and holds of the snapshot.

use std::sync::Arc;

use weir_api::types::{
    Bookmark, BookmarkChange, BookmarkCreate, BookmarkDestroy, BookmarkList, ListBookmarks,
    Outcome, Removed,
};
use weir_api::{ApiError, Handle};
use weir_base::ErrorKind;
use weir_base::names::{self, NameError};
use weir_dataset::{BookmarkId, BookmarkInfo, DatasetError, Engine, SnapshotId};

use crate::answer::errors::{api_error, not_found};
use crate::answer::names::split;
use crate::disks::pool_thread::OpenPool;
use crate::state::server::{Entry, Manager};

fn bad_name(error: &NameError) -> ApiError {
    ApiError::new(ErrorKind::Invalid, error.to_string())
}

/// Splits the full name of a bookmark into its pool and the bookmark's id in the pool.
pub(crate) fn bookmark_id(full: &str) -> Result<(&str, BookmarkId), ApiError> {
    let (volume, name) = names::bookmark(full).map_err(|error| bad_name(&error))?;
    let (pool, own) = split(volume)?;
    Ok((pool, BookmarkId { volume: own.to_owned(), name: name.to_owned() }))
}

fn show(pool: &str, volume: &str, info: &BookmarkInfo) -> Bookmark {
    let volume = format!("{pool}/{volume}");
    Bookmark {
        name: format!("{volume}#{}", info.name),
        volume,
        guid: info.guid.to_string(),
        created_unix_ms: info.created_unix_ms,
    }
}

/// Returns the bookmarks of one volume, or of all volumes sorted by name.
fn listed(engine: &Engine, volume: Option<&str>) -> Result<Vec<Bookmark>, DatasetError> {
    let volumes = match volume {
        Some(own) => vec![own.to_owned()],
        None => {
            let volumes = engine.volumes().into_iter();
            let mut all: Vec<String> = volumes.map(|volume| volume.info().name).collect();
            all.sort();
            all
        }
    };
    let mut found = Vec::new();
    for volume in volumes {
        let infos = engine.bookmarks(&volume)?;
        found.extend(infos.iter().map(|info| show(engine.pool().name(), &volume, info)));
    }
    Ok(found)
}

impl Handle<BookmarkCreate> for Manager {
    /// Creates a bookmark of a snapshot. Incremental streams can start from the bookmark after the
    /// snapshot is destroyed.
    ///
    /// # Errors
    /// `Exists` if the name belongs to a bookmark of another snapshot.
    async fn handle(&self, request: BookmarkCreate) -> Result<BookmarkChange, ApiError> {
        let (pool, BookmarkId { volume, name }) = bookmark_id(&request.name)?;
        let (_, snapshot) = names::snapshot(&request.snapshot).map_err(|error| bad_name(&error))?;
        let of = SnapshotId::new(volume.clone(), snapshot);
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        let own = name.clone();
        let made = open.call(move |engine| async move { engine.create_bookmark(&of, &own).await });
        let outcome = match made.await? {
            weir_dataset::Outcome::Changed => Outcome::Created,
            weir_dataset::Outcome::Unchanged => Outcome::Unchanged,
        };
        let infos = open.engine.bookmarks(&volume).map_err(|error| api_error(&error))?;
        let info = infos.iter().find(|info| info.name == name);
        let info = info.ok_or_else(|| not_found("bookmark", &request.name))?;
        Ok(BookmarkChange { outcome, bookmark: show(pool, &volume, info) })
    }
}

impl Handle<ListBookmarks> for Manager {
    /// Lists the bookmarks of all pools, of one pool or of one volume.
    async fn handle(&self, call: ListBookmarks) -> Result<BookmarkList, ApiError> {
        let of = call.of.as_deref();
        let mut bookmarks = Vec::new();
        let mut add = |open: &OpenPool, own: Option<&str>| {
            bookmarks.extend(listed(&open.engine, own).map_err(|error| api_error(&error))?);
            Ok::<_, ApiError>(())
        };
        match of.map(|of| (of, of.split_once('/'))) {
            Some((_, Some((pool, own)))) => add(&*self.pool(pool)?, Some(own))?,
            Some((pool, None)) => add(&*self.pool(pool)?, None)?,
            None => {
                let pools: Vec<Arc<OpenPool>> = {
                    let pools = self.pools.read();
                    let open = pools.values().filter_map(|entry| match entry {
                        Entry::Open(pool) => Some(Arc::clone(pool)),
                        Entry::Unavailable(_) => None,
                    });
                    open.collect()
                };
                pools.iter().try_for_each(|open| add(open, None))?;
            }
        }
        Ok(BookmarkList { bookmarks, next: None })
    }
}

impl Handle<BookmarkDestroy> for Manager {
    /// Destroys a bookmark.
    async fn handle(&self, request: BookmarkDestroy) -> Result<Removed, ApiError> {
        let (pool, id) = bookmark_id(&request.name)?;
        let _changes = self.changes.lock(pool).await;
        let open = self.pool(pool)?;
        open.call(move |engine| async move { engine.destroy_bookmark(&id).await }).await?;
        Ok(Removed { outcome: Outcome::Removed, name: request.name })
    }
}
