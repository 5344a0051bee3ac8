//! Changes that clients made to a filesystem, and the states that a crash or a snapshot may have.
//!
//! Crash promise: the names are those after some change, at least as new as the last completed
//! sync. The content of each file is as new as the last completed sync of the file, and as new as
//! the last surviving change that names the file. A snapshot has all changes up to one of them.
//!
//! Invariants:
//! - the changes have the order in which the filesystem made them;
//! - the change number of an inode grows with each change;
//! - each inode that a number ever had has its own generation.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::rc::Rc;

use weir_base::Txg;
use weir_format::files::FileType;
use weir_fs::Attributes;

use super::content::{Content, Inode, Names, State, inode_of};

/// Names after a change.
pub(super) struct NamesAfter {
    /// Number of the change.
    seq: u64,
    names: Names,
    /// Inodes that the change named, with the index of the content that they had.
    named: Vec<(Inode, usize)>,
}

/// Contents of a file, the oldest first.
#[derive(Clone, Default)]
pub(super) struct Contents {
    /// Each content with the number of its change. Each power cut has a copy of the book, which
    /// shares the contents.
    all: Vec<(u64, Rc<Content>)>,
    /// Index of the oldest content that a crash may leave.
    synced: usize,
}

/// Changes that clients made.
#[derive(Clone)]
pub(super) struct Book {
    /// Names after each change, the oldest first.
    names: Vec<Rc<NamesAfter>>,
    /// Index of the oldest names that a crash may leave.
    synced: usize,
    files: BTreeMap<Inode, Contents>,
    pub(super) root: Inode,
    /// Whether the filesystem is case-insensitive.
    pub(super) folds: bool,
    /// Number of the newest change.
    seq: u64,
    /// Newest change number that a client received, of each inode that there ever was.
    changes: BTreeMap<Inode, u64>,
    /// Change number that an inode has at least, since the creation or the last rollback.
    shown: BTreeMap<Inode, u64>,
    /// A violation that a client saw.
    broken: Option<String>,
}

impl Book {
    /// A filesystem in this state that no crash loses.
    pub(super) fn of_state(root: Inode, folds: bool, state: &State) -> Self {
        let mut book = Self {
            names: Vec::new(),
            synced: 0,
            files: BTreeMap::new(),
            root,
            folds,
            seq: 0,
            changes: BTreeMap::new(),
            shown: BTreeMap::new(),
            broken: None,
        };
        book.replace(state);
        book
    }

    /// Replaces the filesystem by a state that no crash loses, as a rollback does. The inodes that
    /// there ever were stay known.
    pub(super) fn replace(&mut self, state: &State) {
        self.seq += 1;
        let seq = self.seq;
        let names = NamesAfter { seq, names: state.names.clone(), named: Vec::new() };
        (self.names, self.synced) = (vec![Rc::new(names)], 0);
        let contents =
            |content: &Rc<Content>| Contents { all: vec![(seq, Rc::clone(content))], synced: 0 };
        let files = state.files.iter();
        self.files = files.map(|(inode, content)| (*inode, contents(content))).collect();
        self.shown.clear();
        for inode in state.names.values() {
            self.changes.entry(*inode).or_default();
        }
    }

    pub(super) fn now(&self) -> &Names {
        &self.names.last().expect("the names of a new filesystem").names
    }

    /// Replaces the filesystem by a state that a crash left and that [`Self::judge`] allows.
    /// Returns, for each file of the state, the number of the newest change that the state has.
    pub(super) fn recover(&mut self, found: &State) -> BTreeMap<Inode, u64> {
        let newest = |(inode, content): (&Inode, &Rc<Content>)| {
            let Contents { all, .. } = self.files.get(inode)?;
            let index = all.iter().rposition(|(_, other)| other == content)?;
            // No change before the next content changed the file.
            let next = all.get(index + 1).map_or(u64::MAX, |(seq, _)| seq - 1);
            Some((*inode, next))
        };
        let survived = found.files.iter().filter_map(newest).collect();
        self.replace(found);
        survived
    }

    /// Names after a change.
    pub(super) fn names_after(&self, seq: u64) -> &Names {
        &self.names[names_at(&self.names, seq)].names
    }

    /// Content of a file after a change; `None` before its creation.
    pub(super) fn content_after(&self, inode: &Inode, seq: u64) -> Option<&Content> {
        self.files.get(inode)?.at(seq).map(|content| &**content)
    }

    /// Number of the newest change.
    pub(super) fn seq(&self) -> u64 {
        self.seq
    }

    /// True for a known inode that is not a directory.
    pub(super) fn is_file(&self, inode: &Inode) -> bool {
        self.files.contains_key(inode)
    }

    /// Newest content of a file.
    pub(super) fn content(&self, inode: &Inode) -> Option<&Content> {
        self.files.get(inode)?.all.last().map(|(_, content)| &**content)
    }

    /// The directory that has this number now.
    pub(super) fn directory(&self, number: u64) -> Option<Inode> {
        let named = self.now().values().copied().chain([self.root]);
        named.filter(|inode| !self.is_file(inode)).find(|inode| inode.0 == number)
    }

    /// The newest file with this number. The number may have been reused.
    pub(super) fn newest_file(&self, number: u64) -> Option<Inode> {
        let all = (number, Txg(0))..=(number, Txg(u64::MAX));
        self.files.range(all).next_back().map(|(inode, _)| *inode)
    }

    /// The file with a name that has the smallest number.
    pub(super) fn oldest_file(&self) -> Option<Inode> {
        let is_regular = |inode: &Inode| {
            self.content(inode).is_some_and(|content| content.file_type == FileType::Regular)
        };
        self.now().values().filter(|inode| is_regular(inode)).min().copied()
    }

    /// Records a violation.
    pub(super) fn fail(&mut self, what: String) {
        self.broken.get_or_insert(what);
    }

    pub(super) fn take_violation(&mut self) -> Option<String> {
        self.broken.take()
    }

    /// Newest change number that a client received of an inode; `None` for an inode that there
    /// never was.
    pub(super) fn newest_change(&self, inode: &Inode) -> Option<u64> {
        self.changes.get(inode).copied()
    }

    /// Records attributes that a client received after a change of the inode.
    fn note_change(&mut self, found: &Attributes) {
        let inode = inode_of(found);
        let last = self.changes.entry(inode).or_default();
        if found.change <= *last {
            let what = format!("inode {inode:?} has change {} after {last}", found.change);
            self.broken.get_or_insert(what);
        }
        *last = found.change;
        self.shown.insert(inode, found.change);
    }

    /// Records attributes that a client read.
    pub(super) fn note_read(&mut self, found: &Attributes) {
        let inode = inode_of(found);
        let last = self.shown.insert(inode, found.change).unwrap_or(0);
        if found.change < last {
            self.fail(format!("inode {inode:?} shows change {} after {last}", found.change));
        }
        let newest = self.changes.entry(inode).or_default();
        *newest = found.change.max(*newest);
    }

    /// Records a new inode with its attributes. `content`: `None` for a directory.
    pub(super) fn create(&mut self, made: &Attributes, content: Option<Content>) -> Inode {
        let inode = inode_of(made);
        self.create_inode(inode, content);
        self.note_change(made);
        inode
    }

    /// Records a new inode. `content`: `None` for a directory.
    pub(super) fn create_inode(&mut self, inode: Inode, content: Option<Content>) {
        if self.changes.contains_key(&inode) {
            self.fail(format!("two inodes are {inode:?}"));
        }
        self.changes.insert(inode, 0);
        if let Some(content) = content {
            self.seq += 1;
            let all = vec![(self.seq, Rc::new(content))];
            self.files.insert(inode, Contents { all, synced: 0 });
        }
    }

    /// Records that an inode got a link. Returns the inode.
    pub(super) fn note_link(&mut self, made: &Attributes) -> Inode {
        self.note_change(made);
        inode_of(made)
    }

    /// Records a change of names. `named`: the inodes that it names.
    pub(super) fn rename(&mut self, named: &[Inode], change: impl FnOnce(&mut Names)) {
        let mut names = self.now().clone();
        change(&mut names);
        let of = |inode: &Inode| {
            self.files.get(inode).map(|contents| (*inode, contents.all.len().saturating_sub(1)))
        };
        let named = named.iter().filter_map(of).collect();
        self.seq += 1;
        self.names.push(Rc::new(NamesAfter { seq: self.seq, names, named }));
    }

    /// Records a change of the file with these attributes.
    pub(super) fn changed(&mut self, found: &Attributes, change: impl FnOnce(&mut Content)) {
        self.note_change(found);
        self.changed_content(inode_of(found), change);
    }

    /// Records a change of a file.
    pub(super) fn changed_content(&mut self, inode: Inode, change: impl FnOnce(&mut Content)) {
        let Some(contents) = self.files.get_mut(&inode) else {
            self.fail(format!("a client changed the unknown inode {inode:?}"));
            return;
        };
        let (_, last) = contents.all.last().expect("a file has its first content");
        let mut content = (**last).clone();
        change(&mut content);
        self.seq += 1;
        contents.all.push((self.seq, Rc::new(content)));
    }

    /// Records that no crash loses the changes of names up to this change, and the changes of this
    /// file.
    pub(super) fn set_durable_with(&mut self, seq: u64, inode: &Inode) {
        self.synced = self.synced.max(names_at(&self.names, seq));
        if let Some(contents) = self.files.get_mut(inode) {
            contents.set_durable(seq);
        }
    }

    /// Records that no crash loses the changes up to this one.
    pub(super) fn set_durable(&mut self, seq: u64) {
        self.synced = self.synced.max(names_at(&self.names, seq));
        self.files.values_mut().for_each(|contents| contents.set_durable(seq));
    }

    /// State after a change.
    pub(super) fn state_at(&self, seq: u64) -> State {
        let names = self.names_after(seq);
        let content = |inode: &Inode| {
            let content = self.files.get(inode)?.at(seq)?;
            Some((*inode, Rc::clone(content)))
        };
        State { names: names.clone(), files: names.values().filter_map(content).collect() }
    }

    /// Checks a snapshot that was taken between two changes.
    ///
    /// # Errors
    /// The difference from the newest possible state.
    pub(super) fn judge_cut(
        &self,
        taken: RangeInclusive<u64>,
        found: &State,
    ) -> Result<(), String> {
        let is_cut = |seq: u64| {
            self.names[names_at(&self.names, seq)].names == found.names
                && self.state_at(seq) == *found
        };
        let taken = *taken.start()..=(*taken.end()).min(self.seq);
        if taken.clone().any(is_cut) {
            return Ok(());
        }
        let newest = found.compare(&self.state_at(*taken.end()));
        let what = newest.err().unwrap_or_default();
        Err(format!("it is no state after one of the changes {taken:?}; from the last, {what}"))
    }

    /// Checks a recovered filesystem. Returns true if the crash lost changes.
    ///
    /// # Errors
    /// The violation of the crash promise.
    pub(super) fn judge(&self, found: &State) -> Result<bool, String> {
        let allowed = (self.synced..self.names.len()).rev();
        let mut reason = format!("the names are older than the sync of change {}", self.synced);
        for last in allowed.filter(|index| self.names[*index].names == found.names) {
            match self.judge_files(last, found) {
                Ok(is_newest) => return Ok(!is_newest || last + 1 < self.names.len()),
                Err(error) => reason = error,
            }
        }
        Err(reason)
    }

    /// Checks the contents, if the last surviving change of names is `last`. Returns true if all
    /// contents are the newest.
    fn judge_files(&self, last: usize, found: &State) -> Result<bool, String> {
        let mut needed: BTreeMap<Inode, usize> = BTreeMap::new();
        for (inode, content) in self.names[..=last].iter().flat_map(|after| &after.named) {
            let oldest = needed.entry(*inode).or_default();
            *oldest = (*oldest).max(*content);
        }
        let mut is_newest = true;
        for (inode, found) in &found.files {
            let Contents { all, synced } = self.files.get(inode).ok_or("an unknown file")?;
            let oldest = needed.get(inode).copied().unwrap_or(0).max(*synced);
            let Some(index) = all.iter().rposition(|(_, content)| content == found) else {
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

impl Contents {
    /// Content after a change; `None` before the creation of the file.
    fn at(&self, seq: u64) -> Option<&Rc<Content>> {
        let count = self.all.partition_point(|(at, _)| *at <= seq);
        count.checked_sub(1).map(|index| &self.all[index].1)
    }

    fn set_durable(&mut self, seq: u64) {
        let count = self.all.partition_point(|(at, _)| *at <= seq);
        self.synced = self.synced.max(count.saturating_sub(1));
    }
}

/// Index of the names after a change.
fn names_at(names: &[Rc<NamesAfter>], seq: u64) -> usize {
    names.partition_point(|after| after.seq <= seq).saturating_sub(1)
}
