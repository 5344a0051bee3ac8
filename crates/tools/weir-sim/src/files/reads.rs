//! Reads of a client, which it compares with the model.
//!
//! `recovery` reads whole filesystems after a crash.
//!
//! Invariants:
//! - a read returns the newest content of the file;
//! - SEEK_DATA skips no byte that is not zero, and SEEK_HOLE finds a byte that is zero;
//! - a list from a cookie has exactly the entries with greater keys.

use std::ops::RangeInclusive;

use weir_base::ObjectId;
use weir_fs::{Filesystem, FsError, ListedEntry};

use super::book::Book;
use super::client::Client;
use super::content::{Data, FILE_BYTES_MAX, Inode, Keys, inode_of};

impl Client {
    pub(super) async fn look_up(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let before = self.book(|book| book.seq());
        let found = match files.lookup(ObjectId(directory.0), &name).await {
            Ok(found) => Some(found),
            Err(FsError::NotFound) => None,
            Err(error) => return Err(error),
        };
        self.book(|book| {
            if book.seq() == before {
                book.judge_lookup(directory, &name, found.as_ref());
            }
        });
        Ok(())
    }

    pub(super) async fn read(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let opened = files.open_inode(ObjectId(inode.0)).await?;
        self.book(|book| book.note_read(&opened));
        let read = files.read(opened.number, 0, FILE_BYTES_MAX as usize).await;
        if let Ok(bytes) = &read {
            self.book(|book| {
                let (inode, found) = (inode_of(&opened), Data::of(bytes));
                let expected = book.content(&inode).map(|content| content.data.clone());
                if expected.as_ref() != Some(&found) {
                    book.fail(format!("a read of {inode:?} has {found:?}, not {expected:?}"));
                }
            });
        }
        files.close(opened.number).await?;
        read.map(drop)
    }

    pub(super) async fn seek(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let opened = files.open_inode(ObjectId(inode.0)).await?;
        let offset = [0, 1, 5_000, 16_384, 30_000][self.rng.index(5)];
        let is_data = self.rng.coin();
        let found = files.seek(opened.number, offset, is_data).await;
        if let Ok(found) = found {
            self.book(|book| {
                let inode = inode_of(&opened);
                let Some(data) = book.content(&inode).map(|content| content.data.clone()) else {
                    return;
                };
                if let Err(what) = judge_seek(&data, (offset, is_data), found) {
                    book.fail(format!("{inode:?}: {what} in {data:?}"));
                }
            });
        }
        files.close(opened.number).await?;
        found.map(drop)
    }

    /// Lists a directory from the start, or from a cookie that a list of any directory returned.
    pub(super) async fn list(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let directory = self.directory();
        let at = self.rng.below(self.keys.len() as u64 * 2 + 1) as usize;
        let mut cookie = self.keys.values().nth(at).copied().unwrap_or(0);
        loop {
            let part = files.list(ObjectId(directory.0), cookie).await?;
            let last = part.last().map(|entry| entry.key.number());
            let listed = cookie.saturating_add(1)..=last.unwrap_or(u64::MAX);
            let mut keys = std::mem::take(&mut self.keys);
            self.book(|book| {
                if let Err(what) = judge_list(book, &mut keys, directory, (listed, &part)) {
                    book.fail(what);
                }
            });
            self.keys = keys;
            match last {
                Some(last) => cookie = last,
                None => return Ok(()),
            }
        }
    }
}

fn judge_seek(
    data: &Data,
    (offset, is_data): (u64, bool),
    found: Option<u64>,
) -> Result<(), String> {
    let (len, what) = (data.len(), if is_data { "SEEK_DATA" } else { "SEEK_HOLE" });
    let wrong = Err(format!("{what} from {offset} found {found:?}"));
    match (found, is_data) {
        (None, _) if offset >= len => Ok(()),
        (None, true) if data.is_zero(offset..len) => Ok(()),
        (Some(at), _) if at < offset || at > len || offset >= len => wrong,
        (Some(at), true) if at < len && data.is_zero(offset..at) => Ok(()),
        (Some(at), false) if at == len || data.is_zero(at..at + 1) => Ok(()),
        _ => wrong,
    }
}

/// Checks the entries of a directory with keys in a range, and records their keys.
fn judge_list(
    book: &Book,
    keys: &mut Keys,
    directory: Inode,
    (listed, part): (RangeInclusive<u64>, &[ListedEntry]),
) -> Result<(), String> {
    let Some(directory) = book.directory(directory.0) else {
        return Err(format!("a list of {directory:?}, which has no name"));
    };
    for entry in part {
        let (key, name) = (entry.key.number(), entry.name.to_vec());
        let named = book.now().get(&(directory, name.clone())).map(|inode| inode.0);
        if named != Some(entry.inode.0) || !listed.contains(&key) {
            return Err(format!("a list of {directory:?} in {listed:?} has {entry:?}"));
        }
        if *keys.entry(name).or_insert(key) != key {
            return Err(format!("the key of {entry:?} changed"));
        }
    }
    if !part.is_sorted_by_key(|entry| entry.key) {
        return Err(format!("a list of {directory:?} is not in order"));
    }
    let is_listed = |name: &[u8]| part.iter().any(|entry| *entry.name == *name);
    let in_directory = book.now().keys().filter(|(of, _)| *of == directory);
    for (_, name) in in_directory {
        let is_due = keys.get(name).is_some_and(|key| listed.contains(key));
        if is_due && !is_listed(name) {
            return Err(format!("a list of {directory:?} in {listed:?} lacks {name:?}"));
        }
    }
    Ok(())
}
