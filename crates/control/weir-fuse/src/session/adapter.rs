//! Receives the requests of the kernel, and performs them or passes them to the worker thread.
//!
//! The crate fuser calls these functions on the threads that read requests.
//!
//! Invariants:
//! - the last free reader thread never waits for a disk;
//! - each operation sends its answer; an operation that is dropped answers EIO.

use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    INodeNo, InitFlags, IoctlFlags, KernelConfig, LockOwner, OpenAccMode, OpenFlags, PollEvents,
    PollFlags, PollNotifier, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory,
    ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyPoll,
    ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use weir_base::ObjectId;
use weir_format::files::FileType;
use weir_fs::{Attributes, Changed, NewKind};

use crate::attributes::{generation, kind, special_type};
use crate::limits::{BACKGROUND_MAX, ONE_WRITE_BYTES_MAX};
use crate::operations::inodes::Requested;
use crate::operations::names::Creator;
use crate::operations::served::{Done, Served, Space, number};
use crate::operations::xattrs::is_capability;
use crate::session::gate::Gate;
use crate::session::kernel_caches::KernelCaches;

/// Requests of the kernel for one mount.
pub(crate) struct Adapter {
    gate: Arc<Gate>,
    caches: KernelCaches,
}

/// Returns the handle of a file that a user opened: the number of the user. weir-fs finds an open
/// file by its inode.
fn handle_of(uid: u32) -> FileHandle {
    FileHandle(uid.into())
}

fn user_of(handle: FileHandle) -> u32 {
    handle.0 as u32
}

fn entry(served: &Served, reply: ReplyEntry, found: Done<Attributes>) {
    match found {
        Ok(found) => {
            let (attr, time) = (served.file_attr(&found), served.answer_time(&found));
            reply.entry_with_ttls(&time, &served.entry_time(&found), &attr, generation(&found));
        }
        Err(error) => reply.error(error),
    }
}

/// Sends attributes that the kernel may use for a time.
fn attributes(
    served: &Served,
    reply: ReplyAttr,
    found: Done<Attributes>,
    time: impl FnOnce(&Attributes) -> Duration,
) {
    match found {
        Ok(found) => reply.attr(&time(&found), &served.file_attr(&found)),
        Err(error) => reply.error(error),
    }
}

fn empty(reply: ReplyEmpty, done: Done<()>) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn written_bytes(reply: ReplyWrite, written: Done<u32>) {
    match written {
        Ok(bytes) => reply.written(bytes),
        Err(error) => reply.error(error),
    }
}

/// Sends the value of an attribute, or its size if the program asks for the size (getxattr(2)).
fn xattr(reply: ReplyXattr, size: u32, found: Done<Vec<u8>>) {
    match found {
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(error),
    }
}

impl Adapter {
    pub(crate) fn new(gate: Arc<Gate>, caches: KernelCaches) -> Self {
        Self { gate, caches }
    }

    fn run<F>(&self, operation: impl FnOnce(Arc<Served>) -> F + Send + 'static)
    where
        F: Future<Output = ()> + 'static,
    {
        match self.gate.readers.begin() {
            // A request that panics was dropped, which answers EIO.
            Some(turn) => drop(turn.run(operation)),
            None => self.gate.send(Box::new(move |served| Box::pin(operation(served)))),
        }
    }

    /// Queues the creation of an inode.
    fn create_inode(
        &self,
        (parent, name): (INodeNo, &OsStr),
        kind: NewInode,
        creator: Creator,
        answer: impl FnOnce(&Served, Done<Attributes>) + Send + 'static,
    ) {
        let (parent, name) = (number(parent), name.as_bytes().to_vec());
        self.run(move |served| async move {
            let kind = match &kind {
                NewInode::File => NewKind::File,
                NewInode::Directory => NewKind::Directory,
                NewInode::Symlink(target) => NewKind::Symlink(target),
                NewInode::Special(file_type, device) => NewKind::Special(*file_type, *device),
            };
            let created = served.create(parent, &name, kind, creator).await;
            answer(&served, created);
        });
    }

    fn open_inode(&self, inode: INodeNo, (uid, writes): (u32, bool), reply: ReplyOpen) {
        self.run(move |served| async move {
            match served.open(number(inode), uid, writes).await {
                Ok(()) => reply.opened(handle_of(uid), FopenFlags::FOPEN_KEEP_CACHE),
                Err(error) => reply.error(error),
            }
        });
    }

    fn close_inode(&self, inode: INodeNo, handle: FileHandle, reply: ReplyEmpty) {
        let uid = user_of(handle);
        self.run(move |served| async move { empty(reply, served.close(number(inode), uid).await) });
    }

    fn sync_inode(&self, inode: INodeNo, reply: ReplyEmpty) {
        self.run(move |served| async move { empty(reply, served.sync(number(inode)).await) });
    }
}

/// Flag of a file that a program opened to append (open(2)).
const O_APPEND: i32 = rustix::fs::OFlags::APPEND.bits().cast_signed();

/// Performs a write of a program. `appends`: the program appends, and the kernel assumes that the
/// file ends at `offset`.
///
/// The kernel takes the end of the file from its cache and does not ask for it, so the end may lie
/// elsewhere after a change by another protocol. The kernel has then cached the data at the wrong
/// offset, and drops these pages as soon as it has the answer to the write.
async fn write_data(
    served: &Served,
    inode: ObjectId,
    (offset, data): (u64, &[u8]),
    (appends, clears_set_id): (Option<&KernelCaches>, bool),
) -> Done<u32> {
    let kind = (appends.is_some(), clears_set_id);
    let at = served.write(inode, (offset, data), kind).await?;
    if let Some(caches) = appends
        && at != offset
    {
        caches.invalidate_later(Changed::default().data(inode, at.min(offset)..u64::MAX));
    }
    Ok(data.len() as u32)
}

/// Kind of a new inode.
enum NewInode {
    File,
    Directory,
    Symlink(Vec<u8>),
    Special(FileType, u64),
}

fn creator(request: &Request, mode: u32, umask: u32) -> Creator {
    Creator { uid: request.uid(), gid: request.gid(), mode, umask }
}

/// Adds the entries of a directory after an offset to a reply, until `add` reports that the reply
/// is full.
async fn fill(
    served: &Served,
    (directory, mut offset): (ObjectId, u64),
    mut add: impl AsyncFnMut(&crate::operations::directories::Listed) -> Done<bool>,
) -> Done<()> {
    loop {
        let entries = served.list(directory, offset).await?;
        if entries.is_empty() {
            return Ok(());
        }
        for listed in &entries {
            if add(listed).await? {
                return Ok(());
            }
            offset = listed.offset;
        }
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _request: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_EXPORT_SUPPORT,
            InitFlags::FUSE_HANDLE_KILLPRIV_V2,
            InitFlags::FUSE_POSIX_ACL,
            InitFlags::FUSE_DONT_MASK,
        ];
        // Not FUSE_ASYNC_DIO: after an asynchronous O_DIRECT write, the kernel would keep a page
        // that a buffered read cached during the write.
        for flag in wanted {
            if config.add_capabilities(flag).is_err() {
                tracing::info!(?flag, "the kernel lacks a feature of FUSE");
            }
        }
        // The kernel may use a lower limit.
        config.set_max_write(ONE_WRITE_BYTES_MAX).ok();
        config.set_max_background(BACKGROUND_MAX).ok();
        Ok(())
    }

    fn lookup(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.run(move |served| async move {
            let found = served.lookup(number(parent), &name).await;
            entry(&served, reply, found);
        });
    }

    fn getattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: Option<FileHandle>,
        reply: ReplyAttr,
    ) {
        self.run(move |served| async move {
            let found = served.attributes(number(inode)).await;
            attributes(&served, reply, found, Served::attributes_time);
        });
    }

    fn setattr(
        &self,
        request: &Request,
        inode: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        _ctime: Option<SystemTime>,
        _handle: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let keeps_set_id = request.uid() == 0;
        let requested = Requested { mode, uid, gid, size, atime, mtime, keeps_set_id };
        self.run(move |served| async move {
            let set = served.set_attributes(number(inode), requested).await;
            attributes(&served, reply, set, |set| served.answer_time(set));
        });
    }

    fn readlink(&self, _request: &Request, inode: INodeNo, reply: ReplyData) {
        self.run(move |served| async move {
            match served.read_link(number(inode)).await {
                Ok(target) => reply.data(&target),
                Err(error) => reply.error(error),
            }
        });
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        device: u32,
        reply: ReplyEntry,
    ) {
        let kind = match special_type(mode) {
            Some(FileType::Regular) => NewInode::File,
            Some(file_type) => NewInode::Special(file_type, device.into()),
            None => return reply.error(Errno::EINVAL),
        };
        let answer = |served: &Served, created| entry(served, reply, created);
        self.create_inode((parent, name), kind, creator(request, mode, umask), answer);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let answer = |served: &Served, created| entry(served, reply, created);
        self.create_inode(
            (parent, name),
            NewInode::Directory,
            creator(request, mode, umask),
            answer,
        );
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = NewInode::Symlink(target.as_os_str().as_bytes().to_vec());
        let answer = |served: &Served, created| entry(served, reply, created);
        self.create_inode((parent, name), target, creator(request, 0o777, 0), answer);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        let (parent, name) = (number(parent), name.as_bytes().to_vec());
        let creator = creator(request, mode, umask);
        self.run(move |served| async move {
            let created = async {
                let created = served.create(parent, &name, NewKind::File, creator).await?;
                served.open(created.number, creator.uid, true).await?;
                Ok(created)
            };
            match created.await {
                Ok(found) => reply.created(
                    &served.name_cache().min(served.answer_time(&found)),
                    &served.file_attr(&found),
                    generation(&found),
                    handle_of(creator.uid),
                    FopenFlags::FOPEN_KEEP_CACHE,
                ),
                Err(error) => reply.error(error),
            }
        });
    }

    fn unlink(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.run(move |served| async move {
            empty(reply, served.remove(number(parent), &name, false).await);
        });
    }

    fn rmdir(&self, _request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.run(move |served| async move {
            empty(reply, served.remove(number(parent), &name, true).await);
        });
    }

    fn rename(
        &self,
        _request: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (old_name, new_name) = (name.as_bytes().to_vec(), new_name.as_bytes().to_vec());
        self.run(move |served| async move {
            let (from, to) = ((number(parent), &*old_name), (number(new_parent), &*new_name));
            empty(reply, served.rename(from, to, flags).await);
        });
    }

    fn link(
        &self,
        _request: &Request,
        inode: INodeNo,
        new_parent: INodeNo,
        new_name: &OsStr,
        reply: ReplyEntry,
    ) {
        let name = new_name.as_bytes().to_vec();
        self.run(move |served| async move {
            let linked = served.link(number(inode), number(new_parent), &name).await;
            entry(&served, reply, linked);
        });
    }

    fn open(&self, request: &Request, inode: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let writes = flags.acc_mode() != OpenAccMode::O_RDONLY;
        self.open_inode(inode, (request.uid(), writes), reply);
    }

    fn read(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let gate = Arc::clone(&self.gate);
        self.run(move |served| async move {
            let _room = gate.read_room(size).await;
            match served.read(number(inode), offset, size).await {
                Ok(data) => reply.data(&data),
                Err(error) => reply.error(error),
            }
        });
    }

    fn write(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let inode = number(inode);
        let clears_set_id = write_flags.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        // The write of a changed page of a mapping has the offset of the page.
        let is_page = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        let appends = (flags.0 & O_APPEND != 0 && !is_page).then_some(&self.caches);
        if let Some(turn) = self.gate.readers.begin() {
            // The buffer of the reader thread holds the data until the request ends.
            let write = |served: Arc<Served>| async move {
                write_data(&served, inode, (offset, data), (appends, clears_set_id)).await
            };
            return written_bytes(reply, turn.run(write).unwrap_or(Err(Errno::EIO)));
        }
        let Some(room) = self.gate.take_room(data.len()) else { return reply.error(Errno::EIO) };
        let (data, appends) = (data.to_vec(), appends.cloned());
        let operation = move |served: Arc<Served>| async move {
            let kind = (appends.as_ref(), clears_set_id);
            let written = write_data(&served, inode, (offset, &data), kind).await;
            drop((data, room));
            written_bytes(reply, written);
        };
        self.gate.send(Box::new(move |served| Box::pin(operation(served))));
    }

    /// A close needs no action, because weir-fs applies each write before the mount answers the
    /// write. After ENOSYS the kernel sends no more flushes, and programs get no error.
    fn flush(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::ENOSYS);
    }

    fn release(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        _owner: Option<LockOwner>,
        _flush: bool,
        reply: ReplyEmpty,
    ) {
        self.close_inode(inode, handle, reply);
    }

    fn fsync(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _only_data: bool,
        reply: ReplyEmpty,
    ) {
        self.sync_inode(inode, reply);
    }

    fn opendir(&self, request: &Request, inode: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        self.open_inode(inode, (request.uid(), false), reply);
    }

    fn readdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        self.run(move |served| async move {
            let filled = fill(&served, (number(inode), offset), async |listed| {
                let name = OsStr::from_bytes(&listed.name);
                let inode = INodeNo(listed.number.0);
                Ok(reply.add(inode, listed.offset, kind(listed.file_type), name))
            });
            match filled.await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn readdirplus(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.run(move |served| async move {
            let filled = fill(&served, (number(inode), offset), async |listed| {
                let Some((found, time)) = served.attributes_of_entry(listed).await? else {
                    return Ok(false);
                };
                let (name, inode) = (OsStr::from_bytes(&listed.name), INodeNo(listed.number.0));
                let (attr, offset) = (served.file_attr(&found), listed.offset);
                Ok(reply.add(inode, offset, name, &time, &attr, generation(&found)))
            });
            match filled.await {
                Ok(()) => reply.ok(),
                Err(error) => reply.error(error),
            }
        });
    }

    fn releasedir(
        &self,
        _request: &Request,
        inode: INodeNo,
        handle: FileHandle,
        _flags: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.close_inode(inode, handle, reply);
    }

    fn fsyncdir(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _only_data: bool,
        reply: ReplyEmpty,
    ) {
        self.sync_inode(inode, reply);
    }

    fn statfs(&self, _request: &Request, _inode: INodeNo, reply: ReplyStatfs) {
        self.run(move |served| async move {
            let space = match served.space().await {
                Ok(space) => space,
                Err(error) => return reply.error(error),
            };
            let Space { blocks, free, files, files_free, block_bytes, name_bytes_max } = space;
            reply.statfs(
                blocks,
                free,
                free,
                files,
                files_free,
                block_bytes,
                name_bytes_max,
                block_bytes,
            );
        });
    }

    fn setxattr(
        &self,
        request: &Request,
        inode: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        let user = (request.uid(), request.gid());
        let (name, value) = (name.as_bytes().to_vec(), value.to_vec());
        self.run(move |served| async move {
            empty(reply, served.set_xattr(number(inode), (&name, &value), flags, user).await);
        });
    }

    fn getxattr(
        &self,
        _request: &Request,
        inode: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        // The kernel asks for the capabilities before the first write to a file. The answer needs
        // no inode, so the request does not wait for the worker.
        if is_capability(name.as_bytes()) {
            return reply.error(Errno::ENODATA);
        }
        let name = name.as_bytes().to_vec();
        self.run(move |served| async move {
            xattr(reply, size, served.xattr(number(inode), &name).await);
        });
    }

    fn listxattr(&self, _request: &Request, inode: INodeNo, size: u32, reply: ReplyXattr) {
        self.run(move |served| async move {
            xattr(reply, size, served.xattr_names(number(inode)).await);
        });
    }

    fn removexattr(&self, _request: &Request, inode: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let name = name.as_bytes().to_vec();
        self.run(move |served| async move {
            empty(reply, served.remove_xattr(number(inode), &name).await);
        });
    }

    fn fallocate(
        &self,
        request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let clears_set_id = request.uid() != 0;
        self.run(move |served| async move {
            let range = (offset, length);
            empty(reply, served.allocate(number(inode), range, mode, clears_set_id).await);
        });
    }

    fn lseek(
        &self,
        _request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        self.run(move |served| async move {
            match served.seek(number(inode), offset, whence).await {
                Ok(found) => reply.offset(found),
                Err(error) => reply.error(error),
            }
        });
    }

    fn copy_file_range(
        &self,
        request: &Request,
        source: INodeNo,
        _source_handle: FileHandle,
        from: u64,
        target: INodeNo,
        _target_handle: FileHandle,
        to: u64,
        bytes: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let clears_set_id = request.uid() != 0;
        let (source, target) = ((number(source), from), (number(target), to));
        self.run(move |served| async move {
            written_bytes(reply, served.copy(source, target, bytes, clears_set_id).await);
        });
    }

    /// The kernel checks the rights itself, by the mount option `default_permissions`.
    fn access(&self, _request: &Request, _inode: INodeNo, _mask: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        request: &Request,
        inode: INodeNo,
        _handle: FileHandle,
        _flags: IoctlFlags,
        command: u32,
        data: &[u8],
        size: u32,
        reply: ReplyIoctl,
    ) {
        // A command has 14 bits for the length of its argument.
        let (caller, data) = ((number(inode), request.uid()), data.to_vec());
        self.run(move |served| async move {
            match served.control(caller, command, (&data, size)).await {
                Ok(answer) => reply.ioctl(0, &answer),
                Err(error) => reply.error(error),
            }
        });
    }

    /// Files are always ready. After ENOSYS the kernel reports them as ready without a request.
    fn poll(
        &self,
        _request: &Request,
        _inode: INodeNo,
        _handle: FileHandle,
        _notifier: PollNotifier,
        _events: PollEvents,
        _flags: PollFlags,
        reply: ReplyPoll,
    ) {
        reply.error(Errno::ENOSYS);
    }
}
