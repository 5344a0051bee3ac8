//! Rights: a role, a scope of names, and which files a caller may have the server open.
//!
//! Not here: how a caller proves who it is (`door`), which call needs what (`gate`).
//!
//! Invariants:
//! - roles are ordered: a higher one may do whatever a lower one may;
//! - a scope that names nothing covers nothing.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;
use weir_base::names;

use crate::Error;

/// What sort of calls a caller may make.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Looks, and changes nothing.
    Viewer,
    /// Also creates, takes snapshots, exports, sends, receives, scrubs and runs.
    Operator,
    /// Also destroys, changes disks, settings and tokens.
    Admin,
}

impl Role {
    /// All of them, the lowest first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// The word that JSON and the command line have for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }
}

/// The objects that a call touches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// Nothing that belongs to a pool.
    Any,
    /// The names in the request.
    Named,
    /// The names in the request, and names that only the server knows, such as the volume of an
    /// export.
    Looked,
    /// Everything, or the part of a pool that is in the scope; the answer is cut to the scope.
    Filtered,
    /// The machine: its disks, all of its pools, its tokens.
    Machine,
    /// A stream that the caller began. Only the call that began it returns the 128 random bits that
    /// name its session.
    Session,
}

/// Most entries of a scope; a driver needs one.
const SCOPE_ENTRIES_MAX: usize = 32;

/// The names that a caller may touch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Everything, what belongs to no pool included.
    All,
    /// What these entries cover: `tank` is the pool and everything in it, `tank/vm1` one volume
    /// with its snapshots, `tank/k8s-*` every volume whose name begins so.
    Only(Vec<String>),
}

impl Scope {
    /// Reads the entries of a scope; none means everything.
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
            // A prefix is a volume's name that goes on: with one more letter it must be whole.
            let whole = entry.strip_suffix('*').map(|prefix| format!("{prefix}x"));
            match whole.as_deref().unwrap_or(entry) {
                name if name.contains('/') => drop(names::volume(name)?),
                // `ta*` would cover pools that are made later by others.
                _ if whole.is_some() => {
                    let why = format!(
                        "has {entry:?}: a prefix is of volumes in one pool, such as tank/k8s-*"
                    );
                    return Err(Error::Field { field: "scope", why });
                }
                name => names::pool(name)?,
            }
        }
        Ok(Self::Only(entries.to_vec()))
    }

    /// Whether this is everything.
    pub fn is_all(&self) -> bool {
        matches!(self, Self::All)
    }

    /// Whether a pool, volume, snapshot or bookmark is in it, by its full name.
    pub fn covers(&self, name: &str) -> bool {
        let Self::Only(entries) = self else { return true };
        // `@` and `#` cannot be part of a volume's name.
        let dataset = name.split(['@', '#']).next().unwrap_or_default();
        let pool = dataset.split('/').next().unwrap_or_default();
        entries.iter().any(|entry| match entry.strip_suffix('*') {
            Some(prefix) => dataset.starts_with(prefix),
            None => entry == dataset || entry == pool,
        })
    }

    /// Whether it has a part in a pool.
    pub fn reaches(&self, pool: &str) -> bool {
        let Self::Only(entries) = self else { return true };
        entries.iter().any(|entry| entry.split('/').next() == Some(pool))
    }

    /// Whether a text about a pool may be shown: it names nothing of the pool that is outside, and
    /// at least one thing inside. Texts for people quote names with `:`, `,` or quotes around.
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

    /// Hides names outside of the scope in a text, for pools in which the scope has a part. Texts
    /// about such a pool name no other pool.
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

    /// The entries; none for everything.
    pub fn entries(&self) -> &[String] {
        match self {
            Self::All => &[],
            Self::Only(entries) => entries,
        }
    }
}

/// Whether a character can be part of a name in a text for people.
fn is_part_of_name(c: char) -> bool {
    !c.is_whitespace() && !matches!(c, ',' | ';' | '"' | '\'' | '(' | ')')
}

/// Which files the server opens when a caller names them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// Any: the caller could open them itself, for it is root or the server's own user.
    Any,
    /// Those below `/dev`, `/etc/weir` and the directories that the server was started with.
    Named,
}

/// What a caller may do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rights {
    /// Which calls.
    pub role: Role,
    /// On what.
    pub scope: Scope,
    /// With which files.
    pub files: Files,
}

impl Rights {
    /// Everything: what root, and the server for itself, may do.
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
    fn scope_covers_what_its_entries_name_and_nothing_else() {
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
            // `tank/*` is every volume of the pool without the pool itself.
            assert_eq!(refused, bad != "tank/*", "{bad}");
        }
        assert!(Scope::parse(&vec!["tank".to_owned(); 33]).is_err());
    }

    #[test]
    fn text_loses_the_names_that_are_outside() {
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
    fn text_that_names_another_volume_is_not_shown() {
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
