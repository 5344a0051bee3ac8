//! A client of a filesystem: random operations on few names.
//!
//! `data` has the operations on contents, `reads` has reads, `book` has the changes that the client
//! made.
//!
//! Invariant: a client records each change in the same step of the executor in which the filesystem
//! returns.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use weir_base::ObjectId;
use weir_dataset::Engine;
use weir_format::files::FileType;
use weir_fs::{Filesystem, FsError, NewInode, NewKind, RenameMode};

use super::access::Access;
use super::book::Book;
use super::content::{Content, Data, Inode, Keys};
use super::expected::Expected;
use super::names::{draw, respell};
use crate::rng::Rng;

pub(super) const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 0, gid: 0 };
const SPECIAL: [FileType; 4] =
    [FileType::Fifo, FileType::Socket, FileType::CharDevice, FileType::BlockDevice];

/// A client of one dataset.
pub(super) struct Client {
    pub(super) rng: Rng,
    pub(super) engine: Arc<Engine>,
    pub(super) access: Rc<Access>,
    pub(super) expected: Rc<RefCell<Expected>>,
    /// Index of the dataset.
    pub(super) index: usize,
    /// Whether the client writes 1 MiB at a time.
    pub(super) is_large: bool,
    pub(super) keys: Keys,
}

impl Client {
    pub(super) fn book<T>(&self, of: impl FnOnce(&mut Book) -> T) -> T {
        of(&mut self.expected.borrow_mut().datasets[self.index].book)
    }

    pub(super) fn name(&mut self) -> Vec<u8> {
        let folds = self.book(|book| book.folds);
        draw(&mut self.rng, folds)
    }

    /// Draws a directory: the root or a directory with a name.
    pub(super) fn directory(&mut self) -> Inode {
        let known: Vec<Inode> = self.book(|book| {
            let named = book.now().values().filter(|inode| !book.is_file(inode));
            named.copied().collect()
        });
        let at = self.rng.below(known.len() as u64 + 1) as usize;
        known.get(at).copied().unwrap_or_else(|| self.book(|book| book.root))
    }

    pub(super) fn file(&mut self) -> Option<Inode> {
        let named: Vec<Inode> = self.book(|book| {
            book.now().values().filter(|inode| book.is_file(inode)).copied().collect()
        });
        let at = self.rng.below(named.len().max(1) as u64) as usize;
        named.get(at).copied()
    }

    /// True for errors of operations on names that other clients changed meanwhile.
    fn is_expected(error: &FsError) -> bool {
        !matches!(error, FsError::Dataset(_) | FsError::Damaged { .. })
    }

    /// Performs one operation. Returns false if the filesystem is closed.
    ///
    /// # Errors
    /// An unexpected error, or a violation.
    pub(super) async fn step(&mut self) -> Result<bool, String> {
        let Some(permit) = self.access.enter() else { return Ok(false) };
        let done = self.operate(&permit.files).await;
        if let Some(what) = self.book(Book::take_violation) {
            return Err(what);
        }
        match done {
            Err(error) if !Self::is_expected(&error) => Err(error.to_string()),
            _ => Ok(true),
        }
    }

    async fn operate(&mut self, files: &Filesystem) -> Result<(), FsError> {
        if self.book(|book| book.folds) && self.rng.below(8) == 0 {
            return self.look_up(files).await;
        }
        match self.rng.below(47) {
            0..6 => self.create(files).await,
            6..10 => self.rename(files).await,
            10..13 => self.remove(files).await,
            13..20 if self.is_large => self.write_large(files).await,
            13..20 => self.write(files).await,
            20 => self.truncate(files).await,
            45 | 46 => self.copy(files).await,
            21..23 => self.punch(files).await,
            23 => self.create_unnamed(files).await,
            24..26 => self.link(files).await,
            26 => self.use_removed_file(files).await,
            27..29 => self.set_xattr(files).await,
            29 => self.set_acl(files).await,
            30 => self.set_permissions(files).await,
            31 => self.set_owner(files).await,
            32..34 => self.read(files).await,
            34..36 => self.seek(files).await,
            36..39 => self.list(files).await,
            // A commit, so that later changes replace committed content.
            39 => self.commit().await,
            40 => self.sync_all(files).await,
            _ => self.sync(files).await,
        }
    }

    async fn create(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let target = vec![b't'; [3, 704, 705, 4095][self.rng.index(4)]];
        let kind = match self.rng.below(8) {
            0 | 1 => NewKind::Directory,
            2 => NewKind::Symlink(&target),
            3 => NewKind::Special(SPECIAL[self.rng.index(4)], self.rng.below(3)),
            _ => NewKind::File,
        };
        let new = NewInode { kind, ..FILE };
        let made = files.create_inode(ObjectId(directory.0), &name, &new).await?;
        let is_link = made.file_type == FileType::SymbolicLink;
        let data = if is_link { Data::of(&target) } else { Data::default() };
        let is_file = made.file_type != FileType::Directory;
        let content = is_file.then(|| Content { data, ..Content::empty(&made) });
        self.book(|book| {
            let inode = book.create(&made, content);
            add_name(book, directory, name, inode);
        });
        Ok(())
    }

    /// Creates a file without a name, writes to it, and names it most of the time.
    async fn create_unnamed(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let made = files.create_unnamed(ObjectId(directory.0), &FILE).await?;
        let (number, content) = (made.number, Content::empty(&made));
        self.book(|book| book.create(&made, Some(content)));
        let (byte, len) = (self.rng.below(250) as u8, [5, 60_000][self.rng.index(2)]);
        let written = files.write(number, 0, &vec![byte; len], false).await?;
        self.book(|book| {
            book.changed(&written, |content| content.data.fill(0..len as u64, byte));
        });
        let done = match self.rng.below(4) {
            0 => Ok(()),
            _ => self.add_link(files, number, (directory, name)).await,
        };
        files.close(number).await?;
        done
    }

    async fn link(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let Some(inode) = self.file() else { return Ok(()) };
        self.add_link(files, ObjectId(inode.0), (directory, name)).await
    }

    async fn add_link(
        &mut self,
        files: &Filesystem,
        number: ObjectId,
        (directory, name): (Inode, Vec<u8>),
    ) -> Result<(), FsError> {
        let made = files.link(number, ObjectId(directory.0), &name).await?;
        self.book(|book| {
            // The number may belong to a new file meanwhile.
            let inode = book.note_link(&made);
            add_name(book, directory, name, inode);
        });
        Ok(())
    }

    /// Holds a file open while another client may remove it, and writes to it afterwards.
    async fn use_removed_file(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let opened = files.open_inode(ObjectId(inode.0)).await?;
        let removed = self.remove(files).await;
        let written = self.write_to(files, opened.number).await;
        files.close(opened.number).await?;
        removed.and(written)
    }

    async fn rename(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let (from, old) = (self.directory(), self.name());
        let (mut to, mut new) = (self.directory(), self.name());
        if self.book(|book| book.folds) && self.rng.below(4) == 0 {
            (to, new) = (from, respell(&mut self.rng, &old));
        }
        let modes =
            [RenameMode::Replace, RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange];
        let mode = modes[self.rng.index(4)];
        let (source, target) = ((ObjectId(from.0), &old[..]), (ObjectId(to.0), &new[..]));
        files.rename(source, target, mode).await?;
        self.book(|book| book.renamed((from, &old), (to, &new), mode));
        Ok(())
    }

    async fn remove(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let is_directory = self.rng.coin();
        files.remove(ObjectId(directory.0), &name, is_directory).await?;
        self.book(|book| {
            let directory = book.directory(directory.0).unwrap_or(directory);
            let Some((place, inode)) = book.find(directory, &name) else {
                return book.fail(format!("a name without an inode was removed in {directory:?}"));
            };
            book.rename(&[inode], |names| _ = names.remove(&place));
        });
        Ok(())
    }

    async fn commit(&mut self) -> Result<(), FsError> {
        let seq = self.book(|book| book.seq());
        self.engine.commit().await?;
        self.book(|book| book.set_durable(seq));
        Ok(())
    }

    async fn sync_all(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let seq = self.book(|book| book.seq());
        files.sync_all().await?;
        self.book(|book| book.set_durable(seq));
        Ok(())
    }

    async fn sync(&mut self, files: &Filesystem) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        self.sync_file(files, inode).await
    }

    pub(super) async fn sync_file(
        &mut self,
        files: &Filesystem,
        inode: Inode,
    ) -> Result<(), FsError> {
        let seq = self.book(|book| book.seq());
        files.sync(ObjectId(inode.0)).await?;
        self.book(|book| book.set_durable_with(seq, &inode));
        Ok(())
    }
}

/// Records a new name of an inode.
fn add_name(book: &mut Book, directory: Inode, name: Vec<u8>, inode: Inode) {
    // The number may belong to a new directory meanwhile.
    let directory = book.directory(directory.0).unwrap_or(directory);
    if book.find(directory, &name).is_some() {
        return book.fail(format!("a name in {directory:?} was created twice"));
    }
    book.rename(&[inode], |names| _ = names.insert((directory, name), inode));
}
