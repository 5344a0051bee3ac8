//! Results that the model allows for an operation.
//!
//! `book` has the states of the filesystem.
//!
//! Invariant: a view is the state after one change, so the same operation always has the same
//! errors in it.

use std::collections::BTreeMap;

use weir_format::files::FileType;
use weir_nfs_wire::nfs3::{Fattr3, Ftype3, Nfsstat3};

use super::op::{How, Op};
use super::wire::{Done, Handles};
use crate::files::book::Book;
use crate::files::content::{Content, Inode, Names};
use crate::files::names::Place;

/// The filesystem after a change.
#[derive(Clone, Copy)]
pub(super) struct View<'a> {
    book: &'a Book,
    names: &'a Names,
    seq: u64,
    /// Types of all inodes that there ever were.
    kinds: &'a BTreeMap<Inode, FileType>,
}

impl<'a> View<'a> {
    pub(super) fn new(book: &'a Book, seq: u64, kinds: &'a BTreeMap<Inode, FileType>) -> Self {
        Self { book, names: book.names_after(seq), seq, kinds }
    }

    fn exists(&self, inode: Inode) -> bool {
        inode == self.book.root || self.names.values().any(|other| *other == inode)
    }

    fn kind(&self, inode: Inode) -> FileType {
        if inode == self.book.root {
            return FileType::Directory;
        }
        *self.kinds.get(&inode).expect("the type of each inode is recorded")
    }

    fn is_directory(&self, inode: Inode) -> bool {
        self.kind(inode) == FileType::Directory
    }

    pub(super) fn find(&self, place: &Place) -> Option<Inode> {
        self.names.get(place).copied()
    }

    fn content(&self, inode: Inode) -> Option<&'a Content> {
        self.book.content_after(&inode, self.seq)
    }

    /// Size of an inode that is not a directory.
    pub(super) fn size(&self, inode: Inode) -> Option<u64> {
        self.content(inode).map(|content| content.data.len())
    }

    fn is_empty(&self, directory: Inode) -> bool {
        self.names.keys().all(|(of, _)| *of != directory)
    }

    /// True if `inode` is `ancestor` or below it.
    fn is_below(&self, mut inode: Inode, ancestor: Inode) -> bool {
        loop {
            if inode == ancestor {
                return true;
            }
            let mut names = self.names.iter();
            match names.find(|(_, other)| **other == inode) {
                Some(((parent, _), _)) => inode = *parent,
                None => return false,
            }
        }
    }

    /// Errors for the superuser. Without an error the operation succeeds; with several
    /// errors the server may return any of them.
    pub(super) fn errors(&self, op: &Op) -> Vec<Nfsstat3> {
        let (first, second) = op.handles();
        let gone = std::iter::once(first).chain(second).any(|inode| !self.exists(inode));
        let mut errors = if gone { vec![Nfsstat3::Stale] } else { Vec::new() };
        match op {
            // A stale handle decides, also if the new name exists.
            Op::Link(..) if gone => {}
            Op::Create(place, how) => errors.extend(self.of_create(place, *how)),
            Op::Mkdir(place) | Op::Symlink(place, _) | Op::Mknod(place, _) => {
                errors.extend(self.find(place).map(|_| Nfsstat3::Exist));
            }
            Op::Remove(place) | Op::Rmdir(place) => {
                let is_rmdir = matches!(op, Op::Rmdir(_));
                errors.extend(match self.find(place) {
                    None => Some(Nfsstat3::Noent),
                    Some(found) => match (self.is_directory(found), is_rmdir) {
                        (true, false) => Some(Nfsstat3::Isdir),
                        (false, true) => Some(Nfsstat3::Notdir),
                        (true, true) if !self.is_empty(found) => Some(Nfsstat3::Notempty),
                        _ => None,
                    },
                });
            }
            Op::Rename(from, to) => self.of_rename(from, to, &mut errors),
            Op::Link(inode, place) => {
                errors.extend(self.is_directory(*inode).then_some(Nfsstat3::Perm));
                errors.extend(self.find(place).map(|_| Nfsstat3::Exist));
            }
            Op::SetSize(inode, _) => errors.extend(match self.kind(*inode) {
                FileType::Regular => None,
                FileType::Directory => Some(Nfsstat3::Isdir),
                _ => Some(Nfsstat3::Inval),
            }),
            Op::Write(inode, ..) | Op::Commit(inode) | Op::Read(inode) => {
                let is_file = self.kind(*inode) == FileType::Regular;
                errors.extend((!is_file).then_some(Nfsstat3::Inval));
            }
            Op::Lookup(place) => {
                errors.extend(self.find(place).is_none().then_some(Nfsstat3::Noent));
            }
            Op::SetMode(..) | Op::Getattr(_) | Op::List(_) => {}
        }
        errors
    }

    fn of_create(&self, place: &Place, how: How) -> Option<Nfsstat3> {
        let found = self.find(place)?;
        match (how, self.kind(found)) {
            (How::Unchecked(_), FileType::Regular) => None,
            (How::Unchecked(_), FileType::Directory) => Some(Nfsstat3::Isdir),
            (How::Exclusive(verifier), FileType::Regular)
                if self.content(found)?.verifier == Some(verifier) =>
            {
                None
            }
            _ => Some(Nfsstat3::Exist),
        }
    }

    fn of_rename(&self, from: &Place, to: &Place, errors: &mut Vec<Nfsstat3>) {
        let Some(moved) = self.find(from) else { return errors.push(Nfsstat3::Noent) };
        if self.is_directory(moved) && self.is_below(to.0, moved) {
            errors.push(Nfsstat3::Inval);
        }
        let Some(target) = self.find(to).filter(|target| *target != moved) else { return };
        match (self.is_directory(moved), self.is_directory(target)) {
            (true, false) => errors.push(Nfsstat3::Notdir),
            (false, true) => errors.push(Nfsstat3::Isdir),
            _ => {}
        }
        if self.is_directory(target) && !self.is_empty(target) {
            errors.push(Nfsstat3::Notempty);
        }
    }

    /// True if the operation succeeds and changes nothing: it only reads, or a CREATE finds its
    /// file, or both names of a RENAME are names of one inode.
    fn needs_no_change(&self, op: &Op) -> bool {
        self.errors(op).is_empty()
            && match op {
                Op::Create(place, How::Unchecked(false) | How::Exclusive(_)) => {
                    self.find(place).is_some()
                }
                Op::Rename(from, to) => self.find(from) == self.find(to),
                _ => !op.is_changing(),
            }
    }

    /// True if these are the results of an operation that changes nothing.
    pub(super) fn has_results(&self, op: &Op, done: &Done, handles: &Handles) -> bool {
        self.needs_no_change(op)
            && match (op, done) {
                (Op::Create(place, _), Done::Created(handle))
                | (Op::Lookup(place), Done::Found(handle)) => {
                    self.find(place).is_some_and(|inode| handles.of(inode) == **handle)
                }
                (Op::Rename(..), Done::Changed) | (Op::Commit(_), Done::Committed(_)) => true,
                (Op::Read(inode), Done::Read { data, is_end: true }) => {
                    self.content(*inode).is_some_and(|content| content.data == *data)
                }
                (Op::Getattr(inode), Done::Attributes(found)) => self.matches(*inode, found),
                (Op::List(inode), Done::Listed(listed)) => self.lists(*inode, listed),
                _ => false,
            }
    }

    fn matches(&self, inode: Inode, found: &Fattr3) -> bool {
        if found.fileid != inode.0 {
            return false;
        }
        let Some(content) = self.content(inode) else { return found.kind == Ftype3::Dir };
        let links = self.names.values().filter(|other| **other == inode).count();
        let expected = (content.data.len(), content.permissions, content.uid, links as u32);
        let is_same_type = found.kind == kind_of(content.file_type);
        is_same_type && expected == (found.size, found.mode, found.uid, found.nlink)
    }

    fn lists(&self, directory: Inode, listed: &[(Vec<u8>, u64)]) -> bool {
        let is_own = |name: &[u8]| name != b"." && name != b"..";
        let listed: BTreeMap<&[u8], u64> = listed
            .iter()
            .filter(|(name, _)| is_own(name))
            .map(|(name, number)| (&name[..], *number))
            .collect();
        let names = self.names.iter().filter(|((of, _), _)| *of == directory);
        listed == names.map(|((_, name), inode)| (&name[..], inode.0)).collect()
    }
}

fn kind_of(file_type: FileType) -> Ftype3 {
    match file_type {
        FileType::Regular => Ftype3::Reg,
        FileType::Directory => Ftype3::Dir,
        FileType::SymbolicLink => Ftype3::Lnk,
        FileType::BlockDevice => Ftype3::Blk,
        FileType::CharDevice => Ftype3::Chr,
        FileType::Fifo => Ftype3::Fifo,
        FileType::Socket => Ftype3::Sock,
    }
}
