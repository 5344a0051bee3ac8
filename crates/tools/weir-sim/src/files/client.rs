//! A client of a filesystem: random operations on few names.
//!
//! `book` has the changes that the client made.
//!
//! Invariant: a client records each change in the same step of the executor in which the filesystem
//! returns.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use weir_base::ObjectId;
use weir_dataset::Engine;
use weir_format::files::{Acl, AclEntry, AclTag};
use weir_fs::{Attributes, Filesystem, FsError, NewInode, NewKind, RenameMode, SetAttributes};

use super::book::{Book, Content, Inode};
use crate::rng::Rng;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 0, gid: 0 };
const DIRECTORY: NewInode<'static> = NewInode { kind: NewKind::Directory, ..FILE };

pub(super) fn inode_of(found: &Attributes) -> Inode {
    (found.number.0, found.generation)
}

/// A client of the filesystem.
pub(super) struct Client {
    pub(super) rng: Rng,
    pub(super) engine: Arc<Engine>,
    pub(super) files: Rc<Filesystem>,
    pub(super) book: Rc<RefCell<Book>>,
}

impl Client {
    fn name(&mut self) -> Vec<u8> {
        format!("n{}", self.rng.below(7)).into_bytes()
    }

    /// Draws a directory: the root or a directory with a name.
    fn directory(&mut self) -> Inode {
        let book = self.book.borrow();
        let named = book.now().values().filter(|inode| !book.files.contains_key(inode));
        let known: Vec<Inode> = named.copied().collect();
        let at = self.rng.below(known.len() as u64 + 1) as usize;
        known.get(at).copied().unwrap_or(book.root)
    }

    fn file(&mut self) -> Option<Inode> {
        let book = self.book.borrow();
        let named = book.now().values().filter(|inode| book.files.contains_key(inode));
        let named: Vec<Inode> = named.copied().collect();
        let at = self.rng.below(named.len().max(1) as u64) as usize;
        named.get(at).copied()
    }

    /// True for errors of operations on names that other clients changed meanwhile.
    fn is_expected(error: &FsError) -> bool {
        !matches!(error, FsError::Dataset(_) | FsError::Damaged { .. })
    }

    pub(super) async fn step(&mut self) -> Result<(), String> {
        let done = match self.rng.below(29) {
            0..5 => self.create().await,
            5..8 => self.rename().await,
            8..10 => self.remove().await,
            10..17 => self.write().await,
            17 => self.truncate().await,
            18 => self.create_link().await,
            19 => self.create_unnamed().await,
            20 => self.link().await,
            21 => self.use_removed_file().await,
            22..24 => self.set_xattr().await,
            24 => self.set_acl().await,
            25 => self.set_permissions().await,
            26 => self.set_owner().await,
            // A commit, so that later changes replace committed content.
            27 => self.engine.commit().await.map_err(FsError::from),
            _ => self.sync().await,
        };
        match done {
            Err(error) if !Self::is_expected(&error) => Err(error.to_string()),
            _ => Ok(()),
        }
    }

    async fn create(&mut self) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let is_directory = self.rng.below(5) == 0;
        let new = if is_directory { DIRECTORY } else { FILE };
        let made = self.files.create_inode(ObjectId(directory.0), &name, &new).await?;
        let inode = inode_of(&made);
        let mut book = self.book.borrow_mut();
        if !is_directory {
            book.create(inode, Content::default());
        }
        book.rename(&[inode], |names| _ = names.insert((directory, name), inode));
        Ok(())
    }

    async fn create_link(&mut self) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let target = vec![b't'; [3, 704, 705, 4095][self.rng.below(4) as usize]];
        let new = NewInode { kind: NewKind::Symlink(&target), ..FILE };
        let made = self.files.create_inode(ObjectId(directory.0), &name, &new).await?;
        let inode = inode_of(&made);
        let mut book = self.book.borrow_mut();
        book.create(inode, Content { data: target, xattrs: BTreeMap::new() });
        book.rename(&[inode], |names| _ = names.insert((directory, name), inode));
        Ok(())
    }

    /// Creates a file without a name, writes to it, and names it most of the time.
    async fn create_unnamed(&mut self) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let made = self.files.create_unnamed(ObjectId(directory.0), &FILE).await?;
        let (number, inode) = (made.number, inode_of(&made));
        self.book.borrow_mut().create(inode, Content::default());
        let data = vec![self.rng.below(250) as u8; [5, 60_000][self.rng.below(2) as usize]];
        self.files.write(number, 0, &data, false).await?;
        self.changed(inode, |content| content.data = data);
        let done = match self.rng.below(4) {
            0 => Ok(()),
            _ => self.files.link(number, ObjectId(directory.0), &name).await.map(|_| {
                let mut book = self.book.borrow_mut();
                book.rename(&[inode], |names| _ = names.insert((directory, name), inode));
            }),
        };
        self.files.close(number).await?;
        done
    }

    async fn link(&mut self) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let Some(inode) = self.file() else { return Ok(()) };
        let made = self.files.link(ObjectId(inode.0), ObjectId(directory.0), &name).await?;
        // The number may belong to a new file meanwhile.
        let inode = inode_of(&made);
        let mut book = self.book.borrow_mut();
        book.rename(&[inode], |names| _ = names.insert((directory, name), inode));
        Ok(())
    }

    /// Holds a file open while another client may remove it.
    async fn use_removed_file(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        self.files.open_inode(ObjectId(inode.0)).await?;
        let removed = self.remove().await;
        self.files.close(ObjectId(inode.0)).await?;
        removed
    }

    async fn set_acl(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let tags = [AclTag::Owner, AclTag::OwningGroup, AclTag::Other, AclTag::Mask];
        let tags =
            tags.into_iter().chain((0..self.rng.below(44)).map(|id| AclTag::User(id as u32)));
        let entry = |tag| AclEntry { tag, permissions: self.rng.below(8) as u8 };
        let acl = Acl::new(tags.map(entry).collect()).expect("a complete list").encode();
        self.files.set_xattr(ObjectId(inode.0), ACCESS_ACL, Some(&acl)).await?;
        self.changed(inode, |content| _ = content.xattrs.insert(ACCESS_ACL.to_vec(), acl));
        Ok(())
    }

    async fn set_permissions(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let mode = self.rng.below(0o1000) as u32;
        let changes = SetAttributes { permissions: Some(mode), ..SetAttributes::default() };
        self.files.set_attributes(ObjectId(inode.0), &changes, false).await?;
        self.changed(inode, |content| {
            let acl = content.xattrs.get_mut(ACCESS_ACL);
            let decoded = acl.as_deref().and_then(|acl| Acl::decode(acl).ok().flatten());
            if let (Some(acl), Some(mut decoded)) = (acl, decoded) {
                decoded.set_mode(mode);
                *acl = decoded.encode();
            }
        });
        Ok(())
    }

    /// The check compares the usage of the owners with the inodes.
    async fn set_owner(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let uid = Some(self.rng.below(3) as u32);
        let changes = SetAttributes { uid, ..SetAttributes::default() };
        self.files.set_attributes(ObjectId(inode.0), &changes, false).await.map(drop)
    }

    async fn set_xattr(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let name = format!("user.{}", self.rng.below(4)).into_bytes();
        let length = [0, 10, 500, 500, 700, 700, 700, 5_000, 5_000, 65_536];
        let length = length[self.rng.below(10) as usize];
        let value = (self.rng.below(4) > 0).then(|| vec![self.rng.below(250) as u8; length]);
        self.files.set_xattr(ObjectId(inode.0), &name, value.as_deref()).await?;
        self.changed(inode, |content| {
            match value {
                Some(value) => content.xattrs.insert(name, value),
                None => content.xattrs.remove(&name),
            };
        });
        Ok(())
    }

    async fn rename(&mut self) -> Result<(), FsError> {
        let (from, old) = (self.directory(), self.name());
        let (to, new) = (self.directory(), self.name());
        let (source, target) = ((ObjectId(from.0), &old[..]), (ObjectId(to.0), &new[..]));
        self.files.rename(source, target, RenameMode::Replace).await?;
        let mut book = self.book.borrow_mut();
        let Some(inode) = book.now().get(&(from, old.clone())).copied() else { return Ok(()) };
        let replaced = book.now().get(&(to, new.clone())).copied();
        if replaced == Some(inode) {
            return Ok(());
        }
        let named: Vec<Inode> = std::iter::once(inode).chain(replaced).collect();
        book.rename(&named, |names| {
            names.remove(&(from, old));
            names.insert((to, new), inode);
        });
        Ok(())
    }

    async fn remove(&mut self) -> Result<(), FsError> {
        let (directory, name) = (self.directory(), self.name());
        let is_directory = self.rng.coin();
        self.files.remove(ObjectId(directory.0), &name, is_directory).await?;
        let mut book = self.book.borrow_mut();
        let inode = book.now().get(&(directory, name.clone())).copied();
        let named: Vec<Inode> = inode.into_iter().collect();
        book.rename(&named, |names| _ = names.remove(&(directory, name)));
        Ok(())
    }

    async fn write(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let offset = [0, 700, 3_000, 4_096, 20_000][self.rng.below(5) as usize];
        let length = [5, 600, 4_096, 30_000][self.rng.below(4) as usize];
        let byte = self.rng.below(250) as u8;
        let data = vec![byte; length];
        self.files.write(ObjectId(inode.0), offset as u64, &data, false).await?;
        self.changed(inode, |content| {
            let data = &mut content.data;
            data.resize(data.len().max(offset + length), 0);
            data[offset..offset + length].fill(byte);
        });
        Ok(())
    }

    async fn truncate(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let size = [0, 100, 5_000, 40_000][self.rng.below(4) as usize];
        let changes = SetAttributes { size: Some(size as u64), ..SetAttributes::default() };
        self.files.set_attributes(ObjectId(inode.0), &changes, false).await?;
        self.changed(inode, |content| content.data.resize(size, 0));
        Ok(())
    }

    fn changed(&self, inode: Inode, change: impl FnOnce(&mut Content)) {
        let mut book = self.book.borrow_mut();
        // The number may belong to a new file meanwhile.
        let Some(contents) = book.files.get_mut(&inode) else { return };
        let mut content =
            contents.all.last().map_or_else(Content::default, |last| (**last).clone());
        change(&mut content);
        contents.all.push(Rc::new(content));
    }

    async fn sync(&mut self) -> Result<(), FsError> {
        let Some(inode) = self.file() else { return Ok(()) };
        let (names, content) = {
            let book = self.book.borrow();
            (book.names.len() - 1, book.files[&inode].all.len() - 1)
        };
        self.files.sync(ObjectId(inode.0)).await?;
        let mut book = self.book.borrow_mut();
        book.synced = book.synced.max(names);
        let contents = book.files.get_mut(&inode).expect("a known file");
        contents.synced = contents.synced.max(content);
        Ok(())
    }
}
