//! Model test: random operations on few names, compared with a filesystem of maps.
//!
//! weir-sim tests power cuts between any two steps of the disks.
//!
//! Invariants: each operation has the result of the same operation on the model; after a crash the
//! filesystem equals the model of the last sync.

use std::collections::BTreeMap;

use fastrand::Rng;
use weir_base::ObjectId;
use weir_format::files::{Acl, AclEntry, AclTag, FileType};
use weir_fs::{FreeingLimits, FsError, NewInode, NewKind, RenameMode, SetAttributes};

use crate::common::Pool;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const DISK_BYTES: usize = 256 << 20;

/// Limits under which a file of two records is large.
const LIMITS: FreeingLimits = FreeingLimits { at_once: 1, part: 1 };

/// Largest offset of a write. Few files reach several records.
const OFFSET_MAX: u64 = 200_000;

/// Bytes of a record of a file with several records.
const RECORD_BYTES: u64 = 32 << 10;

#[derive(Clone, Debug, Default, PartialEq)]
struct ModelInode {
    is_directory: bool,
    parent: u64,
    entries: BTreeMap<Vec<u8>, u64>,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    permissions: u32,
    acl: Option<Acl>,
    links: u32,
    opens: u32,
}

impl ModelInode {
    /// A change of data clears the set-id bits.
    fn clear_set_id(&mut self) {
        let group = if self.permissions & 0o10 == 0 { 0 } else { 0o2000 };
        self.permissions &= !(0o4000 | group);
    }
}

type Model = BTreeMap<u64, ModelInode>;

/// Class of a result, without the texts of errors.
fn class<T>(done: &Result<T, FsError>) -> &'static str {
    match done {
        Ok(_) => "ok",
        Err(FsError::NotFound) => "not found",
        Err(FsError::Exists) => "exists",
        Err(FsError::NotDirectory) => "not a directory",
        Err(FsError::IsDirectory) => "is a directory",
        Err(FsError::NotEmpty) => "not empty",
        Err(FsError::Invalid(_)) => "invalid",
        Err(FsError::NotPermitted(_)) => "not permitted",
        Err(FsError::NoAttribute) => "no attribute",
        Err(FsError::Full(_)) => "full",
        Err(error) => panic!("{error}"),
    }
}

struct Run {
    pool: Pool,
    model: Model,
    /// Model at the last sync of everything.
    synced: Model,
    numbers: Rng,
}

impl Run {
    fn new(seed: u64) -> Self {
        let root = ModelInode { is_directory: true, parent: 1, links: 2, ..ModelInode::default() };
        let model = Model::from([(1, ModelInode { permissions: 0o755, ..root })]);
        let synced = model.clone();
        let pool = Pool::new(DISK_BYTES);
        pool.files.set_freeing_limits(LIMITS);
        Self { pool, model, synced, numbers: Rng::with_seed(seed) }
    }

    fn name(&mut self) -> Vec<u8> {
        // Long names fill the inode of a directory soon, so that the directory needs a tree.
        let number = self.numbers.u32(..40);
        let length = [1, 20, 200][number as usize % 3];
        format!("{number:0length$}").into_bytes()
    }

    fn any(&mut self, wanted: impl Fn(&ModelInode) -> bool) -> Option<u64> {
        let found: Vec<u64> = self
            .model
            .iter()
            .filter(|(_, inode)| wanted(inode))
            .map(|(number, _)| *number)
            .collect();
        self.numbers.choice(found)
    }

    fn directory(&mut self) -> u64 {
        self.any(|inode| inode.is_directory && inode.links > 0).expect("the root")
    }

    fn drop_if_unused(&mut self, number: u64) {
        if self.model.get(&number).is_some_and(|inode| inode.links == 0 && inode.opens == 0) {
            self.model.remove(&number);
        }
    }

    fn lose_name(&mut self, number: u64, parent: u64) {
        let inode = self.model.get_mut(&number).expect("a named inode");
        if inode.is_directory {
            inode.links = 0;
            self.model.get_mut(&parent).expect("the parent").links -= 1;
        } else {
            inode.links -= 1;
        }
        self.drop_if_unused(number);
    }

    fn create(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let is_directory = self.numbers.u32(..4) == 0;
        let kind = if is_directory { NewKind::Directory } else { NewKind::File };
        let new = NewInode { kind, permissions: 0o640, umask: 0, uid: 3, gid: 4 };
        let made = self.pool.run(self.pool.files.create_inode(ObjectId(directory), &name, &new));
        let exists = self.model[&directory].entries.contains_key(&name);
        assert_eq!(class(&made), if exists { "exists" } else { "ok" });
        let Ok(made) = made else { return };
        let number = made.number.0;
        let parent = self.model.get_mut(&directory).expect("the directory");
        parent.entries.insert(name, number);
        parent.links += u32::from(is_directory);
        let links = if is_directory { 2 } else { 1 };
        let inherited = self.model[&directory].permissions & 0o2000;
        let permissions = if is_directory { 0o640 | inherited } else { 0o640 };
        let inode = ModelInode {
            is_directory,
            parent: directory,
            permissions,
            links,
            ..ModelInode::default()
        };
        assert!(self.model.insert(number, inode).is_none(), "the number {number} is in use");
    }

    fn create_unnamed(&mut self) {
        let directory = self.directory();
        let new = NewInode { kind: NewKind::File, permissions: 0o600, umask: 0, uid: 3, gid: 4 };
        let made = self.pool.run(self.pool.files.create_unnamed(ObjectId(directory), &new));
        let inode = ModelInode { permissions: 0o600, opens: 1, ..ModelInode::default() };
        let number = made.unwrap().number.0;
        assert!(self.model.insert(number, inode).is_none(), "the number {number} is in use");
    }

    fn remove(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        let as_directory = self.numbers.bool();
        let removed = self.pool.files.remove(ObjectId(directory), &name, as_directory);
        let removed = self.pool.run(removed);
        let target = self.model[&directory].entries.get(&name).copied();
        let expected = match target.map(|target| &self.model[&target]) {
            None => "not found",
            Some(inode) if inode.is_directory && !as_directory => "is a directory",
            Some(inode) if !inode.is_directory && as_directory => "not a directory",
            Some(inode) if !inode.entries.is_empty() => "not empty",
            Some(_) => "ok",
        };
        assert_eq!(class(&removed), expected);
        if removed.is_ok() {
            self.model.get_mut(&directory).expect("the directory").entries.remove(&name);
            self.lose_name(target.expect("removed"), directory);
        }
    }

    fn link(&mut self) {
        let (directory, name) = (self.directory(), self.name());
        // Prefer files without a name, which are rare.
        let orphan = self.any(|inode| inode.links == 0 && !inode.is_directory);
        let Some(number) = orphan.or_else(|| self.any(|_| true)) else { return };
        let linked = self.pool.files.link(ObjectId(number), ObjectId(directory), &name);
        let linked = self.pool.run(linked);
        let expected = match &self.model[&directory].entries.contains_key(&name) {
            _ if number == directory => "not permitted",
            true => "exists",
            false if self.model[&number].is_directory => "not permitted",
            false => "ok",
        };
        assert_eq!(class(&linked), expected);
        if linked.is_ok() {
            self.model.get_mut(&directory).expect("the directory").entries.insert(name, number);
            self.model.get_mut(&number).expect("the inode").links += 1;
        }
    }

    fn is_below(&self, mut number: u64, ancestor: u64) -> bool {
        while number != ancestor && number != 1 {
            number = self.model[&number].parent;
        }
        number == ancestor
    }

    fn rename(&mut self) {
        let (from, old) = (self.directory(), self.name());
        let (to, new) = (self.directory(), self.name());
        let mode = [RenameMode::Replace, RenameMode::Keep, RenameMode::Exchange];
        let mode = mode[self.numbers.usize(..3)];
        let done = self.pool.files.rename((ObjectId(from), &old), (ObjectId(to), &new), mode);
        let done = self.pool.run(done);
        let source = self.model[&from].entries.get(&old).copied();
        let target = self.model[&to].entries.get(&new).copied();
        let is_dir = |number: u64| self.model[&number].is_directory;
        let is_above =
            |number: u64, other| is_dir(number) && from != to && self.is_below(other, number);
        let expected =
            match (source, target) {
                (None, _) => "not found",
                (Some(_), Some(_)) if mode == RenameMode::Keep => "exists",
                (Some(_), None) if mode == RenameMode::Exchange => "not found",
                (Some(source), Some(target)) if source == target => "same",
                (Some(source), _) if is_above(source, to) => "invalid",
                (Some(_), Some(target)) if is_above(target, from) => {
                    if mode == RenameMode::Exchange { "invalid" } else { "not empty" }
                }
                (Some(_), Some(_)) if mode == RenameMode::Exchange => "ok",
                (Some(source), Some(target)) => match (is_dir(source), is_dir(target)) {
                    (true, false) => "not a directory",
                    (false, true) => "is a directory",
                    (true, true) if !self.model[&target].entries.is_empty() => "not empty",
                    _ => "ok",
                },
                (Some(_), None) => "ok",
            };
        assert_eq!(class(&done), if expected == "same" { "ok" } else { expected }, "{mode:?}");
        let (Some(source), true) = (source, expected == "ok") else { return };
        self.model.get_mut(&from).expect("a directory").entries.remove(&old);
        self.model.get_mut(&to).expect("a directory").entries.insert(new, source);
        self.moved(source, from, to);
        if let Some(target) = target {
            if mode == RenameMode::Exchange {
                self.model.get_mut(&from).expect("a directory").entries.insert(old, target);
                self.moved(target, to, from);
            } else {
                self.lose_name(target, to);
            }
        }
    }

    fn moved(&mut self, number: u64, from: u64, to: u64) {
        let inode = self.model.get_mut(&number).expect("the moved inode");
        if inode.is_directory {
            inode.parent = to;
            self.model.get_mut(&from).expect("a directory").links -= 1;
            self.model.get_mut(&to).expect("a directory").links += 1;
        }
    }

    fn write(&mut self) {
        let Some(number) = self.any(|inode| !inode.is_directory) else { return };
        let offset = match self.numbers.u32(..4) {
            0 => 0,
            1 => self.model[&number].content.len() as u64,
            2 => self.numbers.u64(..1000),
            _ => self.numbers.u64(..OFFSET_MAX),
        };
        let length = [1, 100, 5000, 70_000][self.numbers.usize(..4)];
        let length = 1 + self.numbers.usize(..length);
        let byte = self.numbers.u8(..4);
        // Zeros become holes.
        let data: Vec<u8> = (0..length).map(|at| byte * (1 + (at % 7) as u8)).collect();
        self.pool.run(self.pool.files.write(ObjectId(number), offset, &data, true)).unwrap();
        let inode = self.model.get_mut(&number).expect("the file");
        inode.clear_set_id();
        let content = &mut inode.content;
        let end = offset as usize + length;
        content.resize(content.len().max(end), 0);
        content[offset as usize..end].copy_from_slice(&data);
    }

    fn punch(&mut self) {
        let Some(number) = self.any(|inode| !inode.is_directory) else { return };
        let (offset, bytes) = (self.numbers.u64(..OFFSET_MAX), self.numbers.u64(..100_000));
        self.pool.run(self.pool.files.punch(ObjectId(number), offset, bytes, true)).unwrap();
        let inode = self.model.get_mut(&number).expect("the file");
        inode.clear_set_id();
        let content = &mut inode.content;
        let end = ((offset + bytes) as usize).min(content.len());
        if let Some(range) = content.get_mut(offset as usize..end) {
            range.fill(0);
        }
    }

    fn copy(&mut self) {
        let Some(source) = self.any(|inode| !inode.is_directory) else { return };
        let Some(target) = self.any(|inode| !inode.is_directory) else { return };
        // Copies at record boundaries become references.
        let mut offset = || match self.numbers.u32(..4) {
            0 => self.numbers.u64(..OFFSET_MAX),
            _ => self.numbers.u64(..8) * RECORD_BYTES,
        };
        let (from, to) = (offset(), offset());
        let length = self.model[&source].content.len() as u64;
        let bytes = if self.numbers.bool() { length } else { self.numbers.u64(1..OFFSET_MAX) };
        let copied = self.pool.files.copy_range(
            (ObjectId(source), from),
            (ObjectId(target), to),
            bytes,
            true,
        );
        let copied = self.pool.run(copied);
        let bytes = bytes.min(length.saturating_sub(from));
        let overlaps = source == target && bytes > 0 && from < to + bytes && to < from + bytes;
        assert_eq!(class(&copied), if overlaps { "invalid" } else { "ok" });
        let Ok(copied) = copied else { return };
        assert!(copied <= bytes && (copied > 0) == (bytes > 0), "{copied} of {bytes} bytes");
        if copied == 0 {
            return;
        }
        let range = from as usize..(from + copied) as usize;
        let data = self.model[&source].content[range].to_vec();
        let inode = self.model.get_mut(&target).expect("the file");
        inode.clear_set_id();
        let end = (to + copied) as usize;
        inode.content.resize(inode.content.len().max(end), 0);
        inode.content[to as usize..end].copy_from_slice(&data);
    }

    fn set_attributes(&mut self) {
        let Some(number) = self.any(|_| true) else { return };
        let is_directory = self.model[&number].is_directory;
        let size = match self.numbers.u32(..4) {
            0 => Some(0),
            1 => Some(self.numbers.u64(..1000)),
            2 => Some(self.numbers.u64(..OFFSET_MAX)),
            _ => None,
        };
        let bits = self.numbers.u32(..0o10000);
        let permissions = self.numbers.bool().then_some(bits);
        let changes = SetAttributes { size, permissions, ..SetAttributes::default() };
        let done = self.pool.run(self.pool.files.set_attributes(ObjectId(number), &changes, true));
        let refused = is_directory && size.is_some();
        assert_eq!(class(&done), if refused { "is a directory" } else { "ok" });
        if !refused {
            let inode = self.model.get_mut(&number).expect("the inode");
            match (permissions, size) {
                (Some(bits), _) => {
                    inode.permissions = bits;
                    inode.acl.iter_mut().for_each(|acl| acl.set_mode(bits));
                }
                (None, Some(_)) => inode.clear_set_id(),
                (None, None) => {}
            }
            if let Some(size) = size {
                inode.content.resize(size as usize, 0);
            }
        }
    }

    fn set_xattr(&mut self) {
        let Some(number) = self.any(|_| true) else { return };
        let name = format!("user.{}", self.numbers.u32(..4)).into_bytes();
        let length = [120, 1_000, 6_000, 65_537][self.numbers.usize(..4)];
        let length = self.numbers.usize(..length);
        let value = self.numbers.u32(..3) > 0;
        let value = value.then(|| vec![self.numbers.u8(..); length]);
        let set = self.pool.files.set_xattr(ObjectId(number), &name, value.as_deref());
        let set = self.pool.run(set);
        let inode = self.model.get_mut(&number).expect("the inode");
        if class(&set) == "full" {
            let others = inode.xattrs.iter().filter(|(other, _)| **other != name);
            let used: usize = others.map(|(_, value)| value.len()).sum();
            assert!(used + length > 250_000, "the attributes have 256 KiB");
            return;
        }
        let exists = inode.xattrs.contains_key(&name);
        let expected = if value.is_none() && !exists { "no attribute" } else { "ok" };
        assert_eq!(class(&set), expected);
        match value {
            Some(value) => _ = inode.xattrs.insert(name, value),
            None => _ = inode.xattrs.remove(&name),
        }
    }

    fn set_acl(&mut self) {
        let Some(number) = self.any(|_| true) else { return };
        let mut entry = |tag| AclEntry { tag, permissions: self.numbers.u8(..8) };
        let tags = [AclTag::Owner, AclTag::OwningGroup, AclTag::Other];
        let mut entries: Vec<AclEntry> = tags.into_iter().map(&mut entry).collect();
        let named = [AclTag::User(5), AclTag::Mask].map(entry);
        let kind = self.numbers.u32(..3);
        entries.extend(named.into_iter().filter(|_| kind > 0));
        let acl = (self.numbers.u32(..4) > 0).then(|| Acl::new(entries).unwrap());
        let value = acl.as_ref().map(Acl::encode);
        let set = self.pool.files.set_xattr(ObjectId(number), ACCESS_ACL, value.as_deref());
        self.pool.run(set).unwrap();
        let inode = self.model.get_mut(&number).expect("the inode");
        inode.permissions =
            inode.permissions & !0o777 | acl.as_ref().map_or(inode.permissions & 0o777, Acl::mode);
        inode.acl = acl.filter(|acl| !acl.is_minimal());
    }

    fn set_owner(&mut self) {
        let Some(number) = self.any(|_| true) else { return };
        let mut id = || Some(self.numbers.u32(..3));
        let [uid, gid, project] = [id(), id(), id()];
        let changes = SetAttributes { uid, gid, project, ..SetAttributes::default() };
        self.pool.run(self.pool.files.set_attributes(ObjectId(number), &changes, false)).unwrap();
    }

    fn open_or_close(&mut self) {
        let Some(number) = self.any(|_| true) else { return };
        let close = self.model[&number].opens > 0 && self.numbers.bool();
        if close {
            self.pool.run(self.pool.files.close(ObjectId(number))).unwrap();
            self.model.get_mut(&number).expect("the inode").opens -= 1;
            self.drop_if_unused(number);
        } else {
            self.pool.run(self.pool.files.open_inode(ObjectId(number))).unwrap();
            self.model.get_mut(&number).expect("the inode").opens += 1;
        }
    }

    fn sync(&mut self) {
        self.pool.run(self.pool.files.sync_all()).unwrap();
        self.synced = self.model.clone();
    }

    fn crash(self) -> Self {
        let Self { pool, synced, numbers, .. } = self;
        let mut model = synced;
        // The next server frees the inodes without a name.
        model.retain(|_, inode| inode.links > 0);
        model.values_mut().for_each(|inode| inode.opens = 0);
        let pool = pool.crash_with(LIMITS);
        Self { pool, synced: model.clone(), model, numbers }
    }

    fn compare(&self) {
        for (number, inode) in &self.model {
            self.compare_inode(*number, inode);
        }
    }

    fn compare_inode(&self, number: u64, inode: &ModelInode) {
        let (pool, files, id) = (&self.pool, &self.pool.files, ObjectId(number));
        let found = pool.run(files.attributes(id)).unwrap();
        assert_eq!(found.file_type == FileType::Directory, inode.is_directory, "{number}");
        let links = (found.nlink, found.permissions);
        assert_eq!(links, (inode.links, inode.permissions), "inode {number}");
        assert_eq!(pool.run(files.access_acl(id)).unwrap(), inode.acl, "ACL of inode {number}");
        let names = pool.run(files.xattr_names(id)).unwrap();
        let names = names.into_iter().filter(|name| **name != *ACCESS_ACL);
        let names: Vec<_> = names.collect();
        assert!(names.iter().map(|name| &**name).eq(inode.xattrs.keys().map(|name| &**name)));
        for (name, value) in &inode.xattrs {
            assert_eq!(&pool.run(files.xattr(id, name)).unwrap(), value);
        }
        if !inode.is_directory {
            assert_eq!(found.size, inode.content.len() as u64);
            let read = pool.run(files.read(id, 0, inode.content.len() + 10)).unwrap();
            assert!(read == inode.content, "content of inode {number}");
            return self.compare_holes(id, &inode.content);
        }
        assert_eq!(pool.run(files.lookup(id, b"..")).unwrap().number.0, inode.parent);
        let (mut listed, mut cookie) = (BTreeMap::new(), 0);
        loop {
            let part = pool.run(files.list(id, cookie)).unwrap();
            let Some(last) = part.last() else { break };
            cookie = last.key.number();
            let entries = part.iter().map(|entry| (entry.name.to_vec(), entry.inode.0));
            listed.extend(entries);
        }
        assert_eq!(listed, inode.entries, "directory {number}");
        for (name, child) in &inode.entries {
            assert_eq!(pool.run(files.lookup(id, name)).unwrap().number.0, *child);
        }
    }

    /// Data that is not zero is never in a hole.
    fn compare_holes(&self, id: ObjectId, content: &[u8]) {
        let mut at = 0;
        while let Some(data) = self.pool.run(self.pool.files.seek(id, at, true)).unwrap() {
            let hole = content.get(at as usize..data as usize).expect("inside the file");
            assert!(hole.iter().all(|byte| *byte == 0), "SEEK_DATA skipped data");
            at = self.pool.run(self.pool.files.seek(id, data, false)).unwrap().expect("an end");
            assert!(at > data);
        }
        let rest = content.get(at as usize..).unwrap_or_default();
        assert!(rest.iter().all(|byte| *byte == 0), "SEEK_DATA missed data");
    }

    fn step(&mut self) {
        match self.numbers.u32(..100) {
            0..23 => self.create(),
            23..25 => self.create_unnamed(),
            25..35 => self.remove(),
            35..40 => self.link(),
            40..55 => self.rename(),
            55..75 => self.write(),
            75..78 => self.punch(),
            78..82 => self.copy(),
            82..87 => self.set_attributes(),
            87..90 => self.set_xattr(),
            90 => self.set_acl(),
            91 => self.set_owner(),
            92..97 => self.open_or_close(),
            97 => self.sync(),
            98 => {
                self.pool.run(self.pool.files.free_removed()).unwrap();
                self.sync();
            }
            _ => {
                // A commit without a sync: a crash then starts from this state.
                self.pool.check();
                self.synced = self.model.clone();
            }
        }
    }
}

#[test]
fn random_operations_match_a_model_across_crashes() {
    for seed in 0..12 {
        let mut run = Run::new(seed);
        for round in 0..6 {
            for step in 0..150 {
                run.step();
                if step % 50 == 0 {
                    run.compare();
                }
            }
            run.compare();
            if round % 2 == 0 {
                run.sync();
            }
            run = run.crash();
            run.compare();
            run.pool.check();
        }
        // Nothing is left of the removed files.
        run.pool.run(run.pool.files.free_removed()).unwrap();
        let used = run.pool.run(run.pool.files.statistics()).unwrap().files;
        let has_object = |number| run.pool.run(run.pool.files.has_large_xattrs(ObjectId(number)));
        let objects = run.model.keys().filter(|number| has_object(**number).unwrap()).count();
        let expected = 15 + run.model.len() + objects;
        assert_eq!(used, expected as u64, "internal inodes, those of clients, and attributes");
    }
}
