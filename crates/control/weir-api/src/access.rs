//! Access rights: the role, the scope, and the files that the server opens for a caller.
//!
//! Identification of callers is in `unix_access` and `token`, authorization of calls is in
//! `authorization`.
//!
//! Invariants:
//! - roles are ordered: each role may make all calls of the roles below it;
//! - a scope with an empty list of entries covers no object.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use crate::Error;

/// Role of a caller: the calls that it may make.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads, and cannot change anything.
    Viewer,
    /// Reads, creates, takes snapshots, exports, sends, receives, and starts scrubs and replication
    /// runs.
    Operator,
    /// Makes all calls: also destroys, and changes disks, settings and tokens.
    Admin,
}

impl Role {
    /// All roles, from the fewest rights to the most.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// Returns the name of the role in JSON and on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// The resources that a call accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resources {
    /// The call accesses no object of a pool.
    Any,
    /// The objects that the request names.
    Named,
    /// The objects that the request names, and objects that only the server can look up, such as
    /// the volume of an export.
    LookedUp,
    /// The objects of one pool or of all pools that are in the scope. The server removes all other
    /// objects from the response.
    Filtered,
    /// The whole machine: its disks, all of its pools, its tokens.
    Machine,
    /// A session that sends or receives a stream. Only the response of the call that starts the
    /// session contains its id, 128 random bits.
    Session,
}

/// Maximum number of entries in a scope; a storage driver needs one entry.
const SCOPE_ENTRIES_MAX: usize = 32;

/// The objects that a caller may access, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All objects, including objects that belong to no pool.
    All,
    /// The objects that these entries cover: `tank` is the pool with all its objects, `tank/vm1` is
    /// one volume with its snapshots, `tank/k8s-*` is every volume whose name has this prefix.
    Only(Vec<String>),
}

impl Scope {
    /// Parses the entries of a scope; an empty list means all objects.
    ///
    /// # Errors
    /// [`Error::Field`] for an entry that is neither a pool, a volume nor a prefix of volumes.
    pub fn parse(entries: &[String]) -> Result<Self, Error> {
        if entries.is_empty() {
            return Ok(Self::All);
        }
        if entries.len() > SCOPE_ENTRIES_MAX {
            let why = format!("has at most {SCOPE_ENTRIES_MAX} entries");
            return Err(Error::Field { field: "scope", why });
        }
        for entry in entries {
            // A prefix is the start of a volume's name, so the prefix with one more letter must be
            // a valid name.
            let whole = entry.strip_suffix('*').map(|prefix| format!("{prefix}x"));
            match whole.as_deref().unwrap_or(entry) {
                name if name.contains('/') => drop(names::volume(name)?),
                // A prefix of pool names, such as `ta*`, would cover pools that other users create
                // later.
                _ if whole.is_some() => {
                    let why = format!(
                        "has {entry:?}: a prefix names volumes in one pool, such as tank/k8s-*"
                    );
                    return Err(Error::Field { field: "scope", why });
                }
                name => names::pool(name)?,
            }
        }
        Ok(Self::Only(entries.to_vec()))
    }

    /// True if this scope covers all objects.
    pub fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }

    /// True if the scope covers a pool, volume, snapshot or bookmark, by its full name.
    pub fn covers(&self, name: &str) -> bool {
        let Self::Only(entries) = self else { return true };
        // The full name of a snapshot or bookmark is the name of its volume, `@` or `#`, and its
        // own name. Compare only the name of the volume.
        let dataset = name.split(['@', '#']).next().unwrap_or_default();
        let pool = dataset.split('/').next().unwrap_or_default();
        entries.iter().any(|entry| match entry.strip_suffix('*') {
            Some(prefix) => dataset.starts_with(prefix),
            None => entry == dataset || entry == pool,
        })
    }

    /// True if the scope covers a pool or at least one object of the pool.
    pub fn reaches(&self, pool: &str) -> bool {
        let Self::Only(entries) = self else { return true };
        entries.iter().any(|entry| entry.split('/').next() == Some(pool))
    }

    /// True if a caller may read a message about `pool`. If the scope covers only a part of the
    /// pool, the message must name at least one object of the pool, and the scope must cover all
    /// objects of the pool that the message names. Names in messages may be in quotes, or followed
    /// by `:` or `,`.
    pub fn covers_text(&self, pool: &str, text: &str) -> bool {
        if self.covers(pool) {
            return true;
        }
        let words = text.split(|c| !is_part_of_name(c));
        let words = words.map(|word| word.trim_end_matches([':', '.']));
        let mut names = words.filter(|word| word.split(['/', '@', '#']).next() == Some(pool));
        let mut any = false;
        let all = names.all(|name| {
            any = true;
            self.covers(name)
        });
        any && all
    }

    /// Replaces the names of objects outside the scope in a message, if the scope covers another
    /// object of their pool. Names in all other pools stay: no caller of this function passes a
    /// message with such names.
    pub fn cut_text(&self, text: &str) -> String {
        if self.is_all() {
            return text.to_owned();
        }
        let is_outside = |word: &str| {
            let pool = word.split(['/', '@', '#']).next().unwrap_or_default();
            pool.len() < word.len() && self.reaches(pool) && !self.covers(word)
        };
        let mut cut = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let end = rest.find(|c| !is_part_of_name(c)).unwrap_or(rest.len());
            let (word, after) = rest.split_at(end);
            let name = word.trim_end_matches([':', '.']);
            cut.push_str(if is_outside(name) { "(outside the scope)" } else { name });
            cut.push_str(&word[name.len()..]);
            let next = after.find(is_part_of_name).unwrap_or(after.len());
            cut.push_str(&after[..next]);
            rest = &after[next..];
        }
        cut
    }

    /// Returns the entries of the scope; empty if it covers all objects.
    pub fn entries(&self) -> &[String] {
        match self {
            Self::All => &[],
            Self::Only(entries) => entries,
        }
    }
}

/// True if a character can be part of a name in a message.
fn is_part_of_name(c: char) -> bool {
    !c.is_whitespace() && !matches!(c, ',' | ';' | '"' | '\'' | '(' | ')')
}

/// The files that the server opens if a caller names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Any file, because the caller is root or the server's own user and could open the file
    /// itself.
    Any,
    /// Files below `/dev`, `/etc/weir` and the directories given at the start of the server.
    Named,
}

/// Rights of a caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// The calls that the caller may make.
    pub role: Role,
    /// The objects that the caller may access.
    pub scope: Scope,
    /// The files that the server opens if the caller names them.
    pub files: Files,
}

impl Rights {
    /// Returns all rights, which root and the server itself have.
    pub const fn everything() -> Self {
        Self { role: Role::Admin, scope: Scope::All, files: Files::Any }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope(entries: &[&str]) -> Scope {
        let entries: Vec<String> = entries.iter().map(ToString::to_string).collect();
        Scope::parse(&entries).unwrap()
    }

    #[test]
    fn scope_covers_only_objects_of_its_entries() {
        let pool = scope(&["tank"]);
        for name in ["tank", "tank/vm1", "tank/vm1@monday", "tank/vm1#mark", "tank@monday"] {
            assert!(pool.covers(name), "{name}");
        }
        for name in ["tank2", "tank2/vm1", "tan", "", "other/tank"] {
            assert!(!pool.covers(name), "{name}");
        }
        let prefix = scope(&["tank/k8s-*"]);
        for name in ["tank/k8s-a", "tank/k8s-a@s", "tank/k8s-a#b"] {
            assert!(prefix.covers(name), "{name}");
        }
        for name in ["tank", "tank/k8s", "tank@k8s-a", "tank/vm1@k8s-a", "tank2/k8s-a"] {
            assert!(!prefix.covers(name), "{name}");
        }
        let volume = scope(&["tank/vm1"]);
        assert!(volume.covers("tank/vm1@s") && !volume.covers("tank/vm10"));
        assert!(prefix.reaches("tank") && !prefix.reaches("tank2"));
        assert!(!Scope::Only(Vec::new()).covers("tank"));
    }

    #[test]
    fn scope_entry_that_names_no_pool_or_volume_is_refused() {
        for bad in
            ["", "*", "ta*", "/x", "tank/", "tank/*", "tank/a*b", "tank/a/b", "tank@a", "a b"]
        {
            let refused = Scope::parse(&[bad.to_owned()]).is_err();
            // `tank/*` covers every volume of pool tank, but not the pool itself.
            assert_eq!(refused, bad != "tank/*", "{bad}");
        }
        assert!(Scope::parse(&vec!["tank".to_owned(); 33]).is_err());
    }

    #[test]
    fn names_outside_the_scope_are_hidden_in_messages() {
        let scope = scope(&["tank/k8s-*"]);
        for (text, cut) in [
            ("tank/k8s-a@s is the origin of tank/other, tank/k8s-b", true),
            ("destroy it: weir volume destroy tank/other", true),
            ("'tank/other@s': held", true),
            ("tank/k8s-a is busy; try /dev/sdb or tank, until 10:30.", false),
        ] {
            let shown = scope.cut_text(text);
            assert!(!shown.contains("other"), "{shown}");
            assert_eq!(shown != text, cut, "{shown}");
        }
        let shown = scope.cut_text("tank/k8s-a@s is the origin of tank/other, tank/k8s-b");
        assert_eq!(shown, "tank/k8s-a@s is the origin of (outside the scope), tank/k8s-b");
        assert_eq!(Scope::All.cut_text("tank/other"), "tank/other");
    }

    #[test]
    fn message_about_another_volume_is_hidden() {
        let scope = scope(&["tank/k8s-*"]);
        let shown = |text: &str| scope.covers_text("tank", text);
        assert!(shown("volume create tank/k8s-a: created, by token driver"));
        assert!(shown("volume \"tank/k8s-a\" was not made."));
        assert!(!shown("snapshot clone tank/k8s-a@s tank/secret: created"));
        assert!(!shown("volume create tank/secret: created"));
        assert!(!shown("pool create tank mirror /dev/sdb"));
        assert!(!shown("disk /dev/sdb failed"));
    }
}
