//! Bookmarks: the points in time of snapshots, from which incremental streams start even after the
//! snapshot was destroyed.
//!
//! Requests that send from a bookmark are in `transfer`.
//!
//! Invariant: a bookmark belongs to the volume of its snapshot.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use super::page::paged;
use super::request::{one_name, outcome_and_no_other_name};
use super::{Answer, Outcome, Page, Request, page};
use crate::Error;
use crate::access::Scope;
use crate::wire::ApiError;

/// A bookmark. It holds no data and takes no space.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Bookmark {
    /// Full name, such as `tank/vm1#monday`.
    pub name: String,
    /// Full name of the volume.
    pub volume: String,
    /// Identity of the snapshot from which the bookmark was created.
    pub guid: String,
    /// Time of the request that created the snapshot of this bookmark.
    pub created_unix_ms: u64,
}

/// Bookmarks.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BookmarkList {
    /// The bookmarks by volume, oldest first.
    pub bookmarks: Vec<Bookmark>,
    /// Value of `after` for the call that returns the next entries; absent on the last page.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<String>,
}

impl Answer for BookmarkList {
    const ENTRIES: Option<&'static str> = Some("bookmarks");

    fn keep(&mut self, scope: &Scope) {
        self.bookmarks.retain(|bookmark| scope.covers(&bookmark.name));
    }

    fn page(self, page: &Page) -> Result<Self, ApiError> {
        page::cut(self, page)
    }
}

paged!(BookmarkList, bookmarks: Bookmark, |entry| &entry.name);

/// Request to create a bookmark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BookmarkCreate {
    /// Full name of the snapshot, such as `tank/vm1@monday`.
    pub snapshot: String,
    /// Full name of the bookmark, of the same volume, such as `tank/vm1#monday`.
    pub name: String,
}

impl Request for BookmarkCreate {
    fn check(&self) -> Result<(), Error> {
        let (volume, _) = names::snapshot(&self.snapshot)?;
        let (of, _) = names::bookmark(&self.name)?;
        if of == volume {
            return Ok(());
        }
        let (name, to) = (self.snapshot.clone(), self.name.clone());
        Err(Error::Elsewhere { name, to, what: "volume" })
    }

    fn names(&self) -> Vec<&str> {
        vec![&self.name, &self.snapshot]
    }

    fn details(&self) -> String {
        self.snapshot.clone()
    }
}

/// Request to destroy a bookmark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct BookmarkDestroy {
    /// Full name, such as `tank/vm1#monday`.
    pub name: String,
}

one_name!(names::bookmark, name: BookmarkDestroy);

/// Request to list bookmarks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ListBookmarks {
    /// List only bookmarks of this pool or volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub of: Option<String>,
}

impl Request for ListBookmarks {
    fn check(&self) -> Result<(), Error> {
        self.of.as_deref().map_or(Ok(()), check_marked)
    }

    fn names(&self) -> Vec<&str> {
        self.of.as_deref().into_iter().collect()
    }
}

/// Response of the call that creates a bookmark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct BookmarkChange {
    /// Outcome of the call.
    pub outcome: Outcome,
    /// The bookmark after the call.
    pub bookmark: Bookmark,
}

outcome_and_no_other_name!(BookmarkChange);

/// Checks the filter of a list of bookmarks: it must be the name of a pool or volume.
pub fn check_marked(of: &str) -> Result<(), Error> {
    if of.contains('/') {
        names::volume(of)?;
    } else {
        names::pool(of)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bookmark_belongs_to_the_volume_of_its_snapshot() {
        let create = |snapshot: &str, name: &str| {
            BookmarkCreate { snapshot: snapshot.into(), name: name.into() }.check()
        };
        create("tank/a@m", "tank/a#n").expect("the same volume");
        for (snapshot, name, part) in [
            ("tank/a@m", "tank/b#m", "same volume"),
            ("tank/a#m", "tank/a#m", "tank/vm1@monday"),
            ("tank/a@m", "tank/a@m", "tank/vm1#monday"),
            ("tank/a@m", "tank/a#", "empty"),
        ] {
            let error = create(snapshot, name).expect_err("refused").to_string();
            assert!(error.contains(part), "{error}");
        }
        assert!(check_marked("tank").is_ok() && check_marked("tank/a").is_ok());
        assert!(check_marked("tank/a#m").is_err() && check_marked("").is_err());
    }
}
