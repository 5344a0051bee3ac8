//! Names and contents of a filesystem, as the model has them and as a check reads them.
//!
//! `book` has the changes of clients.
//!
//! Invariants:
//! - an inode has its generation in its key, so a number that is reused gives another key;
//! - equal contents have equal values here: the runs of a [`Data`] are as long as possible.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use weir_base::{ObjectId, Txg};
use weir_format::files::FileType;
use weir_fs::{Attributes, Filesystem, FsError, ROOT};

/// Maximum size of a file of the model, in bytes.
pub(super) const FILE_BYTES_MAX: u64 = 16 << 20;

/// An inode: its number and its generation.
pub(super) type Inode = (u64, Txg);
/// Inodes by the inode of their directory and their name.
pub(super) type Names = BTreeMap<(Inode, Vec<u8>), Inode>;

/// Keys of the entries with each name. A name has the same key in each directory.
pub(super) type Keys = BTreeMap<Vec<u8>, u64>;

pub(super) fn inode_of(found: &Attributes) -> Inode {
    (found.number.0, found.generation)
}

/// Bytes of a file, as runs of equal bytes. Clients write only such runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Data {
    /// Offset of the end of each run, and its byte, ascending.
    runs: Vec<(u64, u8)>,
}

impl Data {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut data = Self::default();
        for run in bytes.chunk_by(|a, b| a == b) {
            data.push(data.len() + run.len() as u64, run[0]);
        }
        data
    }

    /// Length in bytes.
    pub(super) fn len(&self) -> u64 {
        self.runs.last().map_or(0, |(end, _)| *end)
    }

    /// Adds a run at the end.
    fn push(&mut self, end: u64, byte: u8) {
        if end <= self.len() {
            return;
        }
        match self.runs.last_mut() {
            Some((last, same)) if *same == byte => *last = end,
            _ => self.runs.push((end, byte)),
        }
    }

    /// Adds the bytes of another content in a range, which begins at the end of this content.
    fn append(&mut self, from: &Self, range: Range<u64>) {
        for (start, end, byte) in from.all_runs() {
            if start.max(range.start) < end.min(range.end) {
                self.push(end.min(range.end), byte);
            }
        }
    }

    fn all_runs(&self) -> impl Iterator<Item = (u64, u64, u8)> {
        let starts = std::iter::once(0).chain(self.runs.iter().map(|(end, _)| *end));
        starts.zip(&self.runs).map(|(start, (end, byte))| (start, *end, *byte))
    }

    /// Writes a byte to a range. Bytes between the old end and the range are zero.
    pub(super) fn fill(&mut self, range: Range<u64>, byte: u8) {
        let old = std::mem::take(self);
        self.append(&old, 0..range.start);
        self.push(range.start, 0);
        self.push(range.end, byte);
        self.append(&old, range.end..u64::MAX);
    }

    /// Writes a range of another content at `to`. Bytes between the old end and `to` are zero.
    pub(super) fn paste(&mut self, to: u64, from: &Self, range: Range<u64>) {
        let old = std::mem::take(self);
        self.append(&old, 0..to);
        self.push(to, 0);
        for (start, end, byte) in from.all_runs() {
            if start.max(range.start) < end.min(range.end) {
                self.push(end.min(range.end) - range.start + to, byte);
            }
        }
        let end = self.len();
        self.append(&old, end..u64::MAX);
    }

    /// Sets the length. Added bytes are zero.
    pub(super) fn resize(&mut self, len: u64) {
        let old = std::mem::take(self);
        self.append(&old, 0..len);
        self.push(len, 0);
    }

    /// Makes the bytes of a range zero. The length does not change.
    pub(super) fn punch(&mut self, range: Range<u64>) {
        let end = range.end.min(self.len());
        if range.start < end {
            self.fill(range.start..end, 0);
        }
    }

    /// True if all bytes of a range are zero. Bytes after the end are zero.
    pub(super) fn is_zero(&self, range: Range<u64>) -> bool {
        self.all_runs()
            .all(|(start, end, byte)| byte == 0 || start.max(range.start) >= end.min(range.end))
    }
}

/// Content and attributes of an inode that is not a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Content {
    pub(super) file_type: FileType,
    /// Number of a device file.
    pub(super) device: u64,
    pub(super) permissions: u32,
    pub(super) uid: u32,
    /// Verifier of an exclusive create, until the first change of attributes.
    pub(super) verifier: Option<u64>,
    /// Data of a file; of a symbolic link, its target.
    pub(super) data: Data,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl Content {
    /// The content of an inode without data and extended attributes.
    pub(super) fn empty(of: &Attributes) -> Self {
        Self {
            file_type: of.file_type,
            device: of.device,
            permissions: of.permissions,
            uid: of.uid,
            verifier: of.verifier,
            data: Data::default(),
            xattrs: BTreeMap::new(),
        }
    }
}

/// Names and contents of a filesystem at one point in time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct State {
    pub(super) names: Names,
    /// Contents of the inodes with a name that are not directories.
    pub(super) files: BTreeMap<Inode, Rc<Content>>,
}

impl State {
    /// Describes the first difference from another state.
    ///
    /// # Errors
    /// The description.
    pub(super) fn compare(&self, expected: &Self) -> Result<(), String> {
        if self.names != expected.names {
            let is_other = |(name, inode): &(&(Inode, Vec<u8>), &Inode)| {
                expected.names.get(*name) != Some(*inode)
            };
            let extra = self.names.iter().find(is_other);
            let missing = expected.names.keys().find(|name| !self.names.contains_key(*name));
            return Err(format!("names differ: has {extra:?}, lacks {missing:?}"));
        }
        for (inode, content) in &self.files {
            if expected.files.get(inode) != Some(content) {
                let expected = expected.files.get(inode);
                return Err(format!("file {inode:?} has {content:?}, not {expected:?}"));
            }
        }
        Ok(())
    }
}

/// Reads all names and contents.
///
/// # Errors
/// The first error of a read.
pub(super) async fn read_state(files: &Filesystem) -> Result<State, FsError> {
    let (state, damaged) = read_readable(files).await?;
    match damaged.into_iter().next() {
        Some((_, error)) => Err(error),
        None => Ok(state),
    }
}

/// Reads all names and contents. Returns the files whose content is damaged with their errors, and
/// the others with their content.
///
/// # Errors
/// Damage of other parts, and the other errors of reads.
pub(super) async fn read_readable(
    files: &Filesystem,
) -> Result<(State, Vec<(Inode, FsError)>), FsError> {
    let (mut state, mut damaged) = (State::default(), Vec::new());
    let mut waiting = vec![inode_of(&files.attributes(ROOT).await?)];
    while let Some(directory) = waiting.pop() {
        let mut cookie = 0;
        loop {
            let part = files.list(ObjectId(directory.0), cookie).await?;
            let Some(last) = part.last() else { break };
            cookie = last.key.number();
            for entry in part {
                let found = files.attributes(entry.inode).await?;
                let inode = inode_of(&found);
                state.names.insert((directory, entry.name.to_vec()), inode);
                if entry.file_type == FileType::Directory {
                    waiting.push(inode);
                    continue;
                }
                match read_content(files, &found).await {
                    Ok(content) => drop(state.files.insert(inode, Rc::new(content))),
                    Err(error) if error.is_damage() => damaged.push((inode, error)),
                    Err(error) => return Err(error),
                }
            }
        }
    }
    Ok((state, damaged))
}

async fn read_content(files: &Filesystem, found: &Attributes) -> Result<Content, FsError> {
    let mut content = Content::empty(found);
    content.data = match found.file_type {
        FileType::SymbolicLink => Data::of(&files.read_link(found.number).await?),
        FileType::Regular => Data::of(&files.read(found.number, 0, FILE_BYTES_MAX as usize).await?),
        _ => Data::default(),
    };
    for name in files.xattr_names(found.number).await? {
        let value = files.xattr(found.number, &name).await?;
        content.xattrs.insert(name.into_vec(), value);
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_equal_a_vector_after_the_same_changes() {
        let mut rng = crate::rng::Rng::new(3);
        let (mut data, mut bytes) = (Data::default(), Vec::new());
        for _ in 0..2_000 {
            let (start, len) = (rng.index(40), 1 + rng.index(30));
            let (end, byte) = (start + len, rng.below(3) as u8);
            match rng.below(5) {
                4 if start < bytes.len() => {
                    let (end, to) = (end.min(bytes.len()), rng.index(40));
                    data.paste(to as u64, &data.clone(), start as u64..end as u64);
                    let part = bytes[start..end].to_vec();
                    bytes.resize(bytes.len().max(to + part.len()), 0);
                    bytes[to..to + part.len()].copy_from_slice(&part);
                }
                0 => {
                    data.resize(start as u64);
                    bytes.resize(start, 0);
                }
                1 => {
                    data.punch(start as u64..end as u64);
                    let end = end.min(bytes.len());
                    bytes[start.min(end)..end].fill(0);
                }
                _ => {
                    data.fill(start as u64..end as u64, byte);
                    bytes.resize(bytes.len().max(end), 0);
                    bytes[start..end].fill(byte);
                }
            }
            assert_eq!(data, Data::of(&bytes));
            let zeros = bytes.iter().skip(start).take(len).all(|byte| *byte == 0);
            assert_eq!(data.is_zero(start as u64..end as u64), zeros);
        }
    }
}
