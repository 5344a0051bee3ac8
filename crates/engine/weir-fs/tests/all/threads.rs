//! Operations of several threads on the same few names, as a mount and its clients perform them.
//!
//! Invariants: a read never returns parts of two writes; afterwards, and after a crash, the check
//! finds no fault.

use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;

use fastrand::Rng;
use weir_base::ObjectId;
use weir_format::files::FileType;
use weir_fs::{Filesystem, FsError, NewInode, NewKind, RenameMode, SetAttributes};

use crate::common::{Pool, now};

const THREADS: usize = 4;
const OPERATIONS: usize = 8_000;
const DISK_BYTES: usize = 256 << 20;

/// Length of all writes: four records of 32 KiB, the last one partly. A copy of such a file makes
/// references.
const WRITE_BYTES: usize = 100_000;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// Runs a future on this thread. Other threads wake it.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(done) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return done;
        }
        std::thread::park();
    }
}

/// Ends the test if the result shows a fault of the filesystem. Other errors are possible, because
/// another thread may have removed the file.
fn expected<T>(done: Result<T, FsError>) -> Option<T> {
    match done {
        Ok(done) => Some(done),
        Err(error) => {
            let is_fault = matches!(&error, FsError::Damaged { .. } | FsError::Dataset(_));
            assert!(!is_fault, "{error}");
            None
        }
    }
}

/// One thread with its random numbers and its open files.
struct Client<'f> {
    files: &'f Filesystem,
    numbers: Rng,
    directories: Vec<ObjectId>,
    opens: Vec<ObjectId>,
}

impl Client<'_> {
    fn directory(&mut self) -> ObjectId {
        *self.numbers.choice(&self.directories).unwrap()
    }

    fn name(&mut self) -> (ObjectId, &'static [u8]) {
        let names: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];
        (self.directory(), self.numbers.choice(names).unwrap())
    }

    /// The inode of a random name.
    async fn inode(&mut self) -> Option<ObjectId> {
        let (directory, name) = self.name();
        Some(expected(self.files.lookup(directory, name).await)?.number)
    }

    async fn file(&mut self) -> Option<ObjectId> {
        let inode = self.inode().await?;
        let attributes = expected(self.files.attributes(inode).await)?;
        (attributes.file_type == FileType::Regular).then_some(inode)
    }

    async fn create(&mut self) -> Option<()> {
        let kind = match self.numbers.u8(0..6) {
            0 => NewKind::Directory,
            1 => NewKind::Symlink(b"target"),
            _ => NewKind::File,
        };
        let uid = self.numbers.u32(0..3);
        let new = NewInode { kind, permissions: 0o644, umask: 0, uid, gid: 0 };
        let (directory, name) = self.name();
        expected(self.files.create_inode(directory, name, &new).await).map(drop)
    }

    async fn change_names(&mut self) -> Option<()> {
        let ((directory, name), to) = (self.name(), self.name());
        let done = match self.numbers.u8(0..6) {
            0 => self.files.rename((directory, name), to, RenameMode::Exchange).await,
            1 | 2 => self.files.rename((directory, name), to, RenameMode::Replace).await,
            3 => {
                let inode = self.inode().await?;
                self.files.link(inode, directory, name).await.map(drop)
            }
            _ => self.files.remove(directory, name, self.numbers.bool()).await,
        };
        expected(done)
    }

    async fn read(&mut self) -> Option<()> {
        let file = self.file().await?;
        let read = expected(self.files.read(file, 0, WRITE_BYTES).await)?;
        let first = read.first().copied();
        assert!(read.iter().all(|byte| Some(*byte) == first), "parts of two writes in {file:?}");
        Some(())
    }

    async fn change_data(&mut self) -> Option<()> {
        let file = self.file().await?;
        let data = vec![self.numbers.u8(1..); WRITE_BYTES];
        let changed = match self.numbers.u8(0..8) {
            0 => {
                let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
                self.files.set_attributes(file, &empty, true).await
            }
            1 => self.files.punch(file, 0, WRITE_BYTES as u64, true).await,
            2 => {
                let other = self.file().await?;
                let copy = self.files.copy_range((file, 0), (other, 0), 1 << 20, true).await;
                return expected(copy).map(drop);
            }
            3 => {
                let uid = Some(self.numbers.u32(0..3));
                let owner = SetAttributes { uid, ..SetAttributes::default() };
                self.files.set_attributes(file, &owner, true).await
            }
            _ => self.files.write(file, 0, &data, true).await,
        };
        expected(changed).map(drop)
    }

    async fn change_xattr(&mut self) -> Option<()> {
        let inode = self.inode().await?;
        let value = vec![7; self.numbers.usize(0..1500)];
        let value = self.numbers.bool().then_some(&*value);
        expected(self.files.set_xattr(inode, b"user.note", value).await)
    }

    async fn open_or_close(&mut self) -> Option<()> {
        if self.opens.len() > 3 {
            let inode = self.opens.swap_remove(0);
            return expected(self.files.close(inode).await);
        }
        let inode = self.inode().await?;
        expected(self.files.open_inode(inode).await)?;
        self.opens.push(inode);
        Some(())
    }

    async fn run(mut self) {
        for _ in 0..OPERATIONS {
            match self.numbers.u8(0..12) {
                0..3 => self.create().await,
                3..6 => self.change_names().await,
                6..8 => self.change_data().await,
                8 => self.read().await,
                9 => self.change_xattr().await,
                10 => self.open_or_close().await,
                _ => {
                    let directory = self.directory();
                    expected(self.files.list(directory, 0).await).map(drop)
                }
            };
        }
        for inode in self.opens.drain(..) {
            expected(self.files.close(inode).await);
        }
    }
}

#[test]
fn threads_change_the_same_names() {
    let pool = Pool::new(DISK_BYTES);
    let new = NewInode { kind: NewKind::Directory, permissions: 0o755, umask: 0, uid: 0, gid: 0 };
    let mut directories = vec![ObjectId(1)];
    for name in [b"x", b"y"] {
        let created = pool.run(pool.files.create_inode(ObjectId(1), name, &new)).unwrap();
        directories.push(created.number);
    }
    std::thread::scope(|scope| {
        let spawn = |seed| {
            let (files, directories) = (&pool.files, directories.clone());
            let numbers = Rng::with_seed(seed);
            scope.spawn(move || {
                block_on(Client { files, numbers, directories, opens: Vec::new() }.run());
            })
        };
        let threads: Vec<_> = (0..THREADS as u64).map(spawn).collect();
        while !threads.iter().all(std::thread::ScopedJoinHandle::is_finished) {
            now(pool.engine.sync()).unwrap();
        }
    });
    pool.run(pool.files.free_removed()).unwrap();
    pool.check();
    pool.crash().check();
}
