//! Operations whose reads of the disk fail.
//!
//! Invariant: an operation that fails at any of its reads changes nothing, and succeeds once the
//! disk reads again.

use std::collections::BTreeMap;
use std::sync::Arc;

use weir_base::{Guid, ObjectId};
use weir_dataset::Engine;
use weir_device::{Device, DeviceOp, FaultDevice, Faults, MemoryDevice, Overlay};
use weir_format::files::{FileType, TimeStamp};
use weir_fs::{
    Attributes, Filesystem, FilesystemLayer, FsError, NewInode, NewKind, ROOT, RenameMode,
    SetAttributes,
};
use weir_pool::ImportOptions;

use crate::common::{Pool, now, options, run};

const DISK_BYTES: usize = 64 << 20;
const FILE: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o6755, umask: 0, uid: 1, gid: 2 };
const DIRECTORY: NewInode<'static> = NewInode { kind: NewKind::Directory, ..FILE };

/// Names of a directory whose entries take several blocks.
const NAMES: usize = 400;

/// Creates the files that the operations use. Returns the disk.
fn prepare() -> Arc<MemoryDevice> {
    let pool = Pool::new(DISK_BYTES);
    let create = |directory, name: &str, new: &NewInode<'_>| {
        pool.run(pool.files.create_inode(directory, name.as_bytes(), new)).unwrap().number
    };
    let wide = create(ROOT, "wide", &DIRECTORY);
    for name in 0..NAMES {
        create(wide, &format!("file-{name}"), &FILE);
    }
    create(ROOT, "empty", &DIRECTORY);
    let data: Vec<u8> = (0..150_000_u32).map(|n| (n % 251) as u8).collect();
    for name in ["large", "other"] {
        let file = create(ROOT, name, &FILE);
        pool.run(pool.files.write(file, 0, &data, false)).unwrap();
        pool.run(pool.files.set_xattr(file, b"user.large", Some(&data[..3000]))).unwrap();
    }
    create(ROOT, "link", &NewInode { kind: NewKind::Symlink(&[b'a'; 2000]), ..FILE });
    pool.check();
    pool.into_disk()
}

/// The prepared files on a disk with faults. Nothing is in memory yet.
struct Cold {
    engine: Arc<Engine>,
    files: Filesystem,
    faults: Arc<Faults>,
}

impl Cold {
    fn open(disk: &Arc<MemoryDevice>) -> Self {
        let faults = Arc::new(Faults::default());
        let overlay = Arc::new(Overlay::new(Arc::clone(disk) as _));
        let disks: Vec<Arc<dyn Device>> =
            vec![Arc::new(FaultDevice::new(overlay, Arc::clone(&faults)))];
        let how = ImportOptions::new(Guid(1 << 33));
        let options = options();
        let engine = Engine::open_with_layer(disks, how, &options, &FilesystemLayer);
        let engine = now(engine).unwrap();
        let files = Filesystem::open(&engine, "home", Box::new(TimeStamp::default));
        let files = run(&engine, files).unwrap();
        Self { engine, files, faults }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        run(&self.engine, future)
    }

    fn find(&self, path: &str) -> Result<ObjectId, FsError> {
        path.split('/').try_fold(ROOT, |directory, name| {
            Ok(self.run(self.files.lookup(directory, name.as_bytes()))?.number)
        })
    }
}

/// Attributes and content of all inodes, by path.
fn tree(cold: &Cold) -> BTreeMap<String, (Attributes, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(String::new(), ROOT)];
    while let Some((path, number)) = todo.pop() {
        let attributes = cold.run(cold.files.attributes(number)).unwrap();
        let mut content = match attributes.file_type {
            FileType::Regular => cold.run(cold.files.read(number, 0, 1 << 20)).unwrap(),
            FileType::SymbolicLink => cold.run(cold.files.read_link(number)).unwrap(),
            _ => Vec::new(),
        };
        for name in cold.run(cold.files.xattr_names(number)).unwrap() {
            content.extend(cold.run(cold.files.xattr(number, &name)).unwrap());
        }
        let mut cookie = (attributes.file_type == FileType::Directory).then_some(0);
        while let Some(after) = cookie {
            let entries = cold.run(cold.files.list(number, after)).unwrap();
            cookie = entries.last().map(|last| last.key.number());
            let named = |name: &[u8]| format!("{path}/{}", String::from_utf8_lossy(name));
            todo.extend(entries.iter().map(|entry| (named(&entry.name), entry.inode)));
        }
        let attributes = Attributes { atime: TimeStamp::default(), ..attributes };
        found.insert(path, (attributes, content));
    }
    found
}

type Operation = fn(&Cold) -> Result<(), FsError>;

/// Operations on the prepared files. Without a fault, every operation succeeds.
const OPERATIONS: [(&str, Operation); 16] = [
    ("create", |cold| {
        let wide = cold.find("wide")?;
        cold.run(cold.files.create_inode(wide, b"new", &FILE)).map(drop)
    }),
    ("create a directory", |cold| {
        cold.run(cold.files.create_inode(ROOT, b"new", &DIRECTORY)).map(drop)
    }),
    ("create without a name", |cold| cold.run(cold.files.create_unnamed(ROOT, &FILE)).map(drop)),
    ("link", |cold| {
        let (file, wide) = (cold.find("large")?, cold.find("wide")?);
        cold.run(cold.files.link(file, wide, b"new")).map(drop)
    }),
    ("unlink", |cold| {
        let wide = cold.find("wide")?;
        cold.run(cold.files.remove(wide, b"file-7", false))
    }),
    ("unlink a file of several records", |cold| cold.run(cold.files.remove(ROOT, b"large", false))),
    ("rmdir", |cold| cold.run(cold.files.remove(ROOT, b"empty", true))),
    ("rename over a file", |cold| {
        let wide = cold.find("wide")?;
        let (from, to) = ((ROOT, &b"large"[..]), (wide, &b"file-9"[..]));
        cold.run(cold.files.rename(from, to, RenameMode::Replace))
    }),
    ("rename a directory", |cold| {
        let empty = cold.find("empty")?;
        let (from, to) = ((ROOT, &b"wide"[..]), (empty, &b"new"[..]));
        cold.run(cold.files.rename(from, to, RenameMode::Keep))
    }),
    ("exchange", |cold| {
        let (from, to) = ((ROOT, &b"large"[..]), (ROOT, &b"wide"[..]));
        cold.run(cold.files.rename(from, to, RenameMode::Exchange))
    }),
    ("write into a record", |cold| {
        let file = cold.find("large")?;
        cold.run(cold.files.write(file, 33_000, b"text", true)).map(drop)
    }),
    ("write after the end", |cold| {
        let file = cold.find("large")?;
        cold.run(cold.files.write(file, 1 << 30, b"text", true)).map(drop)
    }),
    ("truncate", |cold| {
        let file = cold.find("large")?;
        let size = SetAttributes { size: Some(70_001), uid: Some(9), ..SetAttributes::default() };
        cold.run(cold.files.set_attributes(file, &size, true)).map(drop)
    }),
    ("punch", |cold| {
        let file = cold.find("large")?;
        cold.run(cold.files.punch(file, 20_000, 100_000, true)).map(drop)
    }),
    ("copy", |cold| {
        let (from, to) = ((cold.find("large")?, 0), (cold.find("other")?, 32 << 10));
        cold.run(cold.files.copy_range(from, to, 150_000, true)).map(drop)
    }),
    ("set an attribute", |cold| {
        let file = cold.find("large")?;
        cold.run(cold.files.set_xattr(file, b"user.new", Some(&[5; 2500])))
    }),
];

#[test]
fn operation_that_cannot_read_changes_nothing() {
    let disk = prepare();
    let before = tree(&Cold::open(&disk));
    for (name, operation) in OPERATIONS {
        let mut failed = 0;
        for passing in 0.. {
            let cold = Cold::open(&disk);
            cold.faults.fail_after(DeviceOp::Read, passing);
            let done = operation(&cold);
            let is_whole = cold.faults.injected_count() == 0;
            cold.faults.clear();
            if let Err(error) = &done {
                assert!(!is_whole, "{name}: {error}");
                failed += 1;
                assert!(tree(&cold) == before, "{name} changed something, at read {passing}");
                operation(&cold).unwrap_or_else(|error| panic!("{name} again: {error}"));
            }
            now(cold.engine.sync()).unwrap();
            assert_eq!(now(cold.files.check()).unwrap(), [], "{name}, read {passing}");
            assert_eq!(now(cold.engine.check_live_bytes()).unwrap(), Vec::new());
            assert_eq!(now(cold.engine.check_accounts()).unwrap(), Vec::new());
            if is_whole {
                break;
            }
        }
        assert!(failed > 0, "{name} reads nothing");
    }
}
