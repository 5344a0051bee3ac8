//! Changes that clients made to a filesystem, and the states that a crash may leave.
//!
//! Crash promise: the names are those after some change, at least as new as the last completed
//! sync. The content of each file is as new as the last completed sync of the file, and as new as
//! the last surviving change that names the file.
//!
//! Invariant: an inode keeps its key here for ever, because its generation is part of the key.

use std::collections::BTreeMap;
use std::rc::Rc;

use weir_base::Txg;

/// An inode for ever: a number that is reused has another generation.
pub(super) type Inode = (u64, Txg);
/// Inodes by the inode of their directory and their name.
pub(super) type Names = BTreeMap<(Inode, Vec<u8>), Inode>;

/// Data and extended attributes of a file; of a symbolic link, its target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) data: Vec<u8>,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Contents of a file, the oldest first.
#[derive(Clone, Default)]
pub(super) struct Contents {
    /// Each power cut has a copy of the book, which shares the contents.
    pub(super) all: Vec<Rc<Content>>,
    /// Index of the oldest content that a crash may leave.
    pub(super) synced: usize,
}

/// Changes that clients made.
#[derive(Clone)]
pub(super) struct Book {
    /// Names after each change, the oldest first.
    pub(super) names: Vec<Names>,
    /// For each entry of `names`: the inodes that its change named, with the index of the content
    /// that they had.
    pub(super) named: Vec<Vec<(Inode, usize)>>,
    /// Index of the oldest names that a crash may leave.
    pub(super) synced: usize,
    pub(super) files: BTreeMap<Inode, Contents>,
    pub(super) root: Inode,
}

impl Book {
    pub(super) fn now(&self) -> &Names {
        self.names.last().expect("the names of a new filesystem")
    }

    pub(super) fn create(&mut self, inode: Inode, content: Content) {
        self.files.insert(inode, Contents { all: vec![Rc::new(content)], synced: 0 });
    }

    pub(super) fn rename(&mut self, named: &[Inode], change: impl FnOnce(&mut Names)) {
        let mut names = self.now().clone();
        change(&mut names);
        let of = |inode: &Inode| {
            self.files.get(inode).map(|contents| (*inode, contents.all.len().saturating_sub(1)))
        };
        self.named.push(named.iter().filter_map(of).collect());
        self.names.push(names);
    }

    /// Checks a recovered filesystem. Returns true if the crash lost changes.
    pub(super) fn judge(
        &self,
        names: &Names,
        files: &BTreeMap<Inode, Content>,
    ) -> Result<bool, String> {
        let allowed = (self.synced..self.names.len()).rev();
        let mut reason = format!("the names are older than the sync of change {}", self.synced);
        for last in allowed.filter(|index| self.names[*index] == *names) {
            match self.judge_files(last, files) {
                Ok(is_newest) => return Ok(!is_newest || last + 1 < self.names.len()),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    /// Checks the contents, if the last surviving change of names is `last`. Returns true if all
    /// contents are the newest.
    fn judge_files(&self, last: usize, files: &BTreeMap<Inode, Content>) -> Result<bool, String> {
        let mut needed: BTreeMap<Inode, usize> = BTreeMap::new();
        for (inode, content) in self.named[..=last].iter().flatten() {
            let oldest = needed.entry(*inode).or_default();
            *oldest = (*oldest).max(*content);
        }
        let mut is_newest = true;
        for (inode, found) in files {
            let Contents { all, synced } = self.files.get(inode).ok_or("an unknown file")?;
            let oldest = needed.get(inode).copied().unwrap_or(0).max(*synced);
            let Some(index) = all.iter().rposition(|content| **content == *found) else {
                return Err(format!("file {inode:?} has a content that no client wrote"));
            };
            // Equal contents at several indexes: the newest counts.
            if index < oldest {
                return Err(format!("file {inode:?} has content {index}, not {oldest} or newer"));
            }
            is_newest &= index + 1 == all.len();
        }
        Ok(is_newest)
    }
}
