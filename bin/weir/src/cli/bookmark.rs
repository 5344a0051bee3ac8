//! `weir bookmark`: the verbs of bookmarks.
//!
//! Not here: sending of streams from a bookmark (transfer).
//!
//! Invariant: each verb checks its arguments as far as possible, and then makes one call.

use clap::Subcommand;
use weir_api::ApiError;
use weir_api::types::{
    Bookmark, BookmarkCreate, BookmarkDestroy, ListBookmarks, Outcome, Request as _, check_marked,
};

use crate::cli::base::list::{Cell, ListArgs};
use crate::cli::base::session::Session;
use crate::cli::base::{confirm, output};

#[derive(Debug, Subcommand)]
pub(crate) enum BookmarkVerb {
    /// Create a bookmark of a snapshot: it records the point in time and holds no data
    Create {
        /// Full name of the snapshot, such as tank/vm1@monday
        snapshot: String,
        /// Name of the bookmark, such as tank/vm1#monday; '#monday' means a bookmark of the same
        /// volume
        name: String,
    },
    /// List bookmarks by volume, oldest first
    List {
        /// List only bookmarks of this pool or volume
        of: Option<String>,
        #[command(flatten)]
        list: ListArgs,
    },
    /// Destroy a bookmark
    Destroy {
        /// Full name, such as tank/vm1#monday
        name: String,
        /// Skip the confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Returns the full name of a bookmark. A name such as `#monday` means a bookmark of the snapshot's
/// volume.
fn full_name(snapshot: &str, name: String) -> String {
    match (name.strip_prefix('#'), snapshot.split_once('@')) {
        (Some(own), Some((volume, _))) => format!("{volume}#{own}"),
        _ => name,
    }
}

pub(crate) fn run(verb: BookmarkVerb, session: &Session) -> Result<(), ApiError> {
    match verb {
        BookmarkVerb::Create { snapshot, name } => {
            let name = full_name(&snapshot, name);
            let change = session.call(BookmarkCreate { snapshot, name })?;
            session.say(&output::outcome("bookmark", &change.bookmark.name, change.outcome));
            session.print(&change, |_| String::new())
        }
        BookmarkVerb::List { of, list } => self::list(session, of, &list),
        BookmarkVerb::Destroy { name, yes } => {
            let request = BookmarkDestroy { name };
            request.check()?;
            if !yes {
                session.check_bookmark(&request.name)?;
            }
            confirm::bookmark(&request.name, yes)?;
            let gone = session.call(request)?;
            session.say(&output::outcome("bookmark", &gone.name, Outcome::Removed));
            session.print(&gone, |_| String::new())
        }
    }
}

fn list(session: &Session, of: Option<String>, list: &ListArgs) -> Result<(), ApiError> {
    let Some(list) = list.list(&["NAME", "SNAPSHOT OF"], &[])? else { return Ok(()) };
    of.as_deref().map_or(Ok(()), check_marked)?;
    let answer = session.call(ListBookmarks { of })?;
    if answer.bookmarks.is_empty() {
        session.say("there are no bookmarks");
    }
    let row = |mark: &Bookmark| [mark.name.clone().into(), Cell::date(mark.created_unix_ms)];
    session.print(&answer, |all| list.table(all.bookmarks.iter().map(row)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_bookmark_name_belongs_to_the_volume_of_the_snapshot() {
        assert_eq!(full_name("tank/v@a", "#b".into()), "tank/v#b");
        assert_eq!(full_name("tank/v@a", "tank/v#b".into()), "tank/v#b");
        assert_eq!(full_name("tank/v", "#b".into()), "#b", "refused by its own name");
    }
}
