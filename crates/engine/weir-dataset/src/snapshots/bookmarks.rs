//! Bookmarks: a bookmark stores the txg and guid of a snapshot, and can be the base of an
//! incremental stream, also after the snapshot is destroyed. Bookmarks reference no block and hold
//! no space.
//!
//! `streams::send` sends streams that begin at a bookmark.
//!
//! Invariants:
//! - the snapshot chain of a bookmark's home ([`Engine::home_of`]) contains the bookmark's txg: a
//!   volume that rolls back to an earlier txg loses the bookmark;
//! - a volume's bookmarks are ordered by txg.

use std::sync::Arc;

use async_recursion::async_recursion as boxed;
use weir_base::{DatasetId, Txg};
use weir_format::{BOOKMARKS_MAX, Bookmark, DatasetRecord};

use crate::error::DatasetError;
use crate::state::engine::Engine;
use crate::state::mark::{BookmarkInfo, Mark, record};
use crate::state::outcome::Outcome;
use crate::state::snapshot::{SnapshotId, descent, moment};
use crate::state::volume::{State, Volume};

/// Name of a bookmark.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BookmarkId {
    /// The volume's name inside the pool.
    pub volume: String,
    /// The bookmark's own name.
    pub name: String,
}

impl State {
    /// Removes the bookmarks for which `goes` returns true, in the open txg.
    pub(crate) fn remove_bookmarks(&mut self, goes: impl Fn(&Mark) -> bool) {
        let Self { bookmarks, forgotten, .. } = self;
        bookmarks.retain(|mark| {
            let stays = !goes(mark);
            if !stays {
                forgotten.push(mark.record.id);
            }
            stays
        });
    }

    /// Inserts a bookmark into the volume's bookmarks, which are ordered by txg.
    pub(crate) fn add_bookmark(&mut self, mark: Mark) {
        let txg = mark.bookmark().txg;
        let at = self.bookmarks.partition_point(|other| other.bookmark().txg <= txg);
        self.bookmarks.insert(at, mark);
    }

    /// Bookmarks with a txg later than `txg`.
    pub(crate) fn bookmarks_after(&self, txg: Txg) -> impl Iterator<Item = &Mark> {
        self.bookmarks.iter().filter(move |mark| mark.bookmark().txg > txg)
    }
}

impl Engine {
    pub(crate) fn bookmark_name(&self, id: &BookmarkId) -> String {
        format!("{}#{}", self.full_name(&id.volume), id.name)
    }

    /// Creates a bookmark of a snapshot, in the same volume.
    ///
    /// # Durability
    /// The bookmark exists after any crash once this returns.
    ///
    /// # Errors
    /// `NoSnapshot`; `BookmarkExists` if the name has a bookmark of another snapshot; `TooMany`.
    #[boxed(?Send)]
    pub async fn create_bookmark(
        &self,
        of: &SnapshotId,
        name: &str,
    ) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let volume = self.volume(&of.volume)?;
        let has_room = self.refuse_too_many(1);
        {
            let mut state = volume.state.lock();
            let snapshot = state.snapshot(&of.name).ok_or_else(|| self.no_snapshot(of))?;
            let (created_unix_ms, moment) = (snapshot.record.created_unix_ms, snapshot.moment());
            let bookmark = Bookmark { of: volume.id, txg: moment.txg, guid: moment.guid };
            let id = BookmarkId { volume: of.volume.clone(), name: name.to_owned() };
            if let Some(there) = state.bookmarks.iter().find(|mark| mark.record.name == name) {
                let same = there.bookmark() == bookmark;
                let name = self.bookmark_name(&id);
                let taken = DatasetError::BookmarkExists { name };
                return if same { Ok(Outcome::Unchanged) } else { Err(taken) };
            }
            if state.bookmarks.len() >= BOOKMARKS_MAX {
                let (name, count) = (self.full_name(&of.volume), BOOKMARKS_MAX);
                return Err(DatasetError::TooMany { name, count, what: "bookmarks" });
            }
            has_room?;
            let id = self.new_dataset();
            state.add_bookmark(Mark::new(record(id, name, bookmark, created_unix_ms), true));
        }
        self.commit_change().await
    }

    /// The bookmarks of a volume, oldest first.
    ///
    /// # Errors
    /// `NotFound` if the volume does not exist.
    pub fn bookmarks(&self, volume: &str) -> Result<Vec<BookmarkInfo>, DatasetError> {
        let volume = self.volume(volume)?;
        let state = volume.state.lock();
        Ok(state.bookmarks.iter().map(Mark::info).collect())
    }

    /// Destroys a bookmark. This frees no space, because bookmarks hold none.
    ///
    /// # Durability
    /// The bookmark is gone after any crash once this returns.
    ///
    /// # Errors
    /// `NoBookmark` if the bookmark does not exist.
    #[boxed(?Send)]
    pub async fn destroy_bookmark(&self, id: &BookmarkId) -> Result<Outcome, DatasetError> {
        let _admin = self.admin.lock().await;
        self.core.pool.check_alive()?;
        let volume = self.volume(&id.volume)?;
        {
            let mut state = volume.state.lock();
            if !state.bookmarks.iter().any(|mark| mark.record.name == id.name) {
                return Err(self.no_bookmark(id));
            }
            state.remove_bookmarks(|mark| mark.record.name == id.name);
        }
        self.commit_change().await
    }

    pub(crate) fn no_bookmark(&self, id: &BookmarkId) -> DatasetError {
        DatasetError::NoBookmark { name: self.bookmark_name(id) }
    }

    /// Returns the *home* of a bookmark of `volume`: the volume whose snapshot chain contains the
    /// bookmark's txg. A bookmark belongs to the volume in its name and stays with that volume.
    /// After a promotion the txg may lie in the snapshot chain of the volume's origin.
    pub(crate) fn home_of(&self, mut volume: Arc<Volume>, txg: Txg) -> Option<Arc<Volume>> {
        loop {
            let origin = descent(&volume.state.lock().record).origin;
            match origin.filter(|origin| txg <= origin.txg) {
                Some(origin) => volume = self.owner_of_snapshot(origin.snapshot)?,
                None => return Some(volume),
            }
        }
    }

    /// Returns the volume that has a snapshot.
    pub(crate) fn owner_of_snapshot(&self, snapshot: DatasetId) -> Option<Arc<Volume>> {
        let owns = |volume: &Arc<Volume>| {
            volume.state.lock().snapshots.iter().any(|s| s.record.id == snapshot)
        };
        self.all_volumes().into_iter().find(owns)
    }

    /// Finds the first bookmark for which `is` returns true among the ancestors of a snapshot. The
    /// returned bool is true if the bookmark belongs to the chain of an origin.
    pub(crate) fn older_bookmark(
        &self,
        of: &Arc<Volume>,
        snapshot: &DatasetRecord,
        is: impl Fn(&str, &Mark) -> bool,
    ) -> Option<(Bookmark, bool)> {
        let mut found = Vec::new();
        for volume in self.volumes() {
            let marks: Vec<Bookmark> = {
                let state = volume.state.lock();
                let fits = state.bookmarks.iter().filter(|mark| is(&state.record.name, mark));
                fits.map(Mark::bookmark).collect()
            };
            for mark in marks {
                let home = self.home_of(Arc::clone(&volume), mark.txg)?;
                found.push((home.id, mark));
            }
        }
        let (mut volume, mut is_clone) = (Arc::clone(of), false);
        // A snapshot cannot be the base of its own stream, but an origin can be the base of the
        // stream of its clone.
        let mut until = Txg(moment(snapshot).txg.0.saturating_sub(1));
        loop {
            let fits =
                |(home, mark): &&(DatasetId, Bookmark)| *home == volume.id && mark.txg <= until;
            if let Some((_, mark)) = found.iter().find(fits) {
                return Some((*mark, is_clone));
            }
            let origin = descent(&volume.state.lock().record).origin?;
            volume = self.owner_of_snapshot(origin.snapshot)?;
            (until, is_clone) = (origin.txg, true);
        }
    }
}
