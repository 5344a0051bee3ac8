//! Names of snapshots that requests below `.weir/snapshot` must not open, because a call is about
//! to destroy the snapshots.
//!
//! Invariant: a snapshot is closed as long as at least one filter selects its name.

use crate::answer::names::Of;

/// Filters of the snapshots that requests must not open.
#[derive(Default)]
pub(super) struct ClosedNames {
    filters: Vec<(u64, Filter)>,
    next: u64,
}

/// As [`Of`], with its own name.
#[derive(Debug)]
enum Filter {
    All,
    Pool(String),
    Dataset(String),
    Volume(String),
}

impl Filter {
    fn of(of: Of<'_>) -> Self {
        match of {
            Of::All => Self::All,
            Of::Pool(name) => Self::Pool(name.to_owned()),
            Of::Dataset(name) => Self::Dataset(name.to_owned()),
            Of::Volume(name) => Self::Volume(name.to_owned()),
        }
    }

    fn as_of(&self) -> Of<'_> {
        match self {
            Self::All => Of::All,
            Self::Pool(name) => Of::Pool(name),
            Self::Dataset(name) => Of::Dataset(name),
            Self::Volume(name) => Of::Volume(name),
        }
    }
}

impl ClosedNames {
    /// Adds a filter. Returns its number.
    pub(super) fn add(&mut self, of: Of<'_>) -> u64 {
        let id = self.next;
        self.next += 1;
        self.filters.push((id, Filter::of(of)));
        id
    }

    /// Removes the filter with a number.
    pub(super) fn remove(&mut self, id: u64) {
        self.filters.retain(|(known, _)| *known != id);
    }

    /// True if a filter selects the snapshot with this full name.
    pub(super) fn has(&self, name: impl FnOnce() -> Option<String>) -> bool {
        if self.filters.is_empty() {
            return false;
        }
        name().is_none_or(|name| self.filters.iter().any(|(_, filter)| filter.as_of().is(&name)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_is_closed_until_its_last_filter_is_removed() {
        let mut closed = ClosedNames::default();
        let has = |closed: &ClosedNames, name: &str| closed.has(|| Some(name.to_owned()));
        assert!(!has(&closed, "tank/home@a"));
        let one = closed.add(Of::Dataset("tank/home@a"));
        let all = closed.add(Of::Volume("tank/home"));
        assert!(has(&closed, "tank/home@a") && has(&closed, "tank/home@b"));
        assert!(!has(&closed, "tank/other@a"));
        assert!(closed.has(|| None), "a snapshot that is gone");
        closed.remove(all);
        assert!(has(&closed, "tank/home@a") && !has(&closed, "tank/home@b"));
        closed.remove(one);
        assert!(!has(&closed, "tank/home@a"));
    }
}
