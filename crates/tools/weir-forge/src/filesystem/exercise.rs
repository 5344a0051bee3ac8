//! Runs `weir check`, the reads of `weir rescue`, and the operations of a mount on a forged
//! filesystem.
//!
//! Invariant: an error is a valid result of each operation; a panic, or an operation that never
//! ends, is a finding.

use std::collections::BTreeSet;

use weir_base::ObjectId;
use weir_dataset::Engine;
use weir_format::files::FileType;
use weir_fs::{
    Attributes, Filesystem, FilesystemLayer, Finding, FsError, NewInode, NewKind, ROOT, RenameMode,
    SetAttributes,
};

use crate::bench::{Bench, drive, now};
use crate::disks::{Disks, import, options};
use crate::filesystem::sample::{open, open_unchanged};

/// Maximum number of inodes, of parts of a list and of reads of a file that an exercise visits. The
/// sample has fewer.
const VISITS_MAX: usize = 400;
/// Maximum number of bytes of one read. The files of the sample are smaller.
const READ_BYTES_MAX: u64 = 1 << 20;
const NEW: NewInode<'static> =
    NewInode { kind: NewKind::File, permissions: 0o644, umask: 0, uid: 0, gid: 0 };

/// Opens the pool; `None` if the engine refuses it.
fn bench(disks: &Disks) -> Option<Bench> {
    let (options, layer) = (options(), &FilesystemLayer);
    let opened = Engine::open_with_layer(disks.devices(), import(false), &options, layer);
    now(opened).ok().map(Bench::new)
}

/// Checks the filesystem `home` of a pool. `None` if the pool or the dataset is damaged.
///
/// # Panics
/// The check fails, or never ends.
pub fn check_filesystem(disks: &Disks) -> Option<Vec<Finding>> {
    let bench = bench(disks)?;
    let files = open_unchanged(&bench, "home").ok()?;
    let found = drive(&bench, files.check())?;
    Some(found.expect("damage is a finding"))
}

/// Result of the reads of a rescue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rescuable {
    /// Number of bytes in files.
    pub bytes: u64,
    /// Number of names in directories.
    pub names: usize,
    /// True if the list of the data of a file had more parts than any file of the sample.
    pub is_endless: bool,
}

/// Reads all readable parts of the filesystem `home`, as a rescue does. `None` if the pool or the
/// dataset is damaged.
///
/// # Panics
/// Damage of a part ends the reads, or a call never ends.
pub fn list_filesystem(disks: &Disks) -> Option<Rescuable> {
    let bench = bench(disks)?;
    let files = open_unchanged(&bench, "home").ok()?;
    let (mut all, mut next) = (Rescuable::default(), Some(0));
    for _ in 0..VISITS_MAX {
        let Some(first) = next else { break };
        let part = drive(&bench, files.readable_inodes(first))?.expect("damage is no error");
        for inode in part.inodes.iter().take(VISITS_MAX) {
            let read = drive(&bench, read_inode(&files, inode))?;
            all.bytes += read.bytes;
            all.names += read.names;
            all.is_endless |= read.is_endless;
        }
        next = part.next;
    }
    Some(all)
}

/// Reads all parts of an inode. The result of each read may be an error.
async fn read_inode(files: &Filesystem, inode: &Attributes) -> Rescuable {
    let mut read = Rescuable::default();
    let number = inode.number;
    for name in files.xattr_names(number).await.unwrap_or_default() {
        let _value = files.xattr(number, &name).await;
    }
    match inode.file_type {
        FileType::Directory => {
            let entries = files.readable_entries(number).await.map(|found| found.entries.len());
            read.names += entries.unwrap_or(0);
        }
        FileType::SymbolicLink => {
            if let Ok(target) = files.read_link(number).await {
                assert!((1..4096).contains(&target.len()) && !target.contains(&0));
            }
        }
        FileType::Regular => {
            let mut next = Some(0);
            for _ in 0..VISITS_MAX {
                let Some(offset) = next else { break };
                let Ok(part) = files.readable_data(number, offset).await else { break };
                for range in part.data {
                    let bytes = (range.end - range.start).min(READ_BYTES_MAX) as usize;
                    let data = files.read(number, range.start, bytes).await;
                    read.bytes += data.map_or(0, |data| data.len() as u64);
                }
                next = part.next;
            }
            read.is_endless = next.is_some();
        }
        _ => {}
    }
    read
}

/// Opens the filesystem `home` as a server does, and runs the operations of a mount. Returns the
/// error of a filesystem that the server refuses.
///
/// # Errors
/// The filesystem cannot be opened.
pub fn use_filesystem(disks: &Disks) -> Result<(), FsError> {
    let Some(bench) = bench(disks) else { return Ok(()) };
    let Some(files) = drive(&bench, open(&bench, "home")) else { return Ok(()) };
    let files = files?;
    for (directory, name, inode) in drive(&bench, walk(&files)).unwrap_or_default() {
        let _changed = change_inode(&bench, &files, inode);
        rename_and_remove(&bench, &files, (directory, name.as_slice()), inode);
    }
    let _freed = drive(&bench, files.free_removed());
    let _synced = drive(&bench, files.sync_all());
    let _statistics = drive(&bench, files.statistics());
    let _committed = drive(&bench, bench.commit());
    drop(files);
    drive(&bench, open(&bench, "home")).map_or(Ok(()), |opened| opened.map(drop))
}

/// Names below the root with their inodes, as a client of a mount finds them.
async fn walk(files: &Filesystem) -> Vec<(ObjectId, Vec<u8>, ObjectId)> {
    let (mut found, mut seen) = (Vec::new(), BTreeSet::from([ROOT]));
    let mut waiting = vec![ROOT];
    while let Some(directory) = waiting.pop() {
        let mut cookie = 0;
        for _ in 0..VISITS_MAX {
            let Ok(entries) = files.list(directory, cookie).await else { break };
            let Some(last) = entries.last() else { break };
            assert!(last.key.number() > cookie, "a listing goes on");
            cookie = last.key.number();
            for entry in entries {
                let Ok(inode) = files.lookup(directory, &entry.name).await else { continue };
                let _read = read_inode(files, &inode).await;
                let _hole = files.seek(inode.number, 0, false).await;
                let _beyond = files.read(inode.number, inode.size / 2, 4096).await;
                let _end = files.read(inode.number, inode.size.saturating_sub(9), 4096).await;
                let _acl = files.access_acl(inode.number).await;
                found.push((directory, entry.name.to_vec(), inode.number));
                if seen.insert(inode.number) && inode.file_type == FileType::Directory {
                    waiting.push(inode.number);
                }
            }
        }
    }
    found
}

/// Changes content and attributes of an inode.
fn change_inode(bench: &Bench, files: &Filesystem, number: ObjectId) -> Option<()> {
    let opened = drive(bench, files.open_inode(number))?;
    let _written = drive(bench, files.write(number, 5000, &[7; 9000], true))?;
    let _punched = drive(bench, files.punch(number, 4096, 8192, true))?;
    let size = SetAttributes { size: Some(3), ..SetAttributes::default() };
    let _cut = drive(bench, files.set_attributes(number, &size, true))?;
    let size = SetAttributes { size: Some(1 << 40), ..SetAttributes::default() };
    let _grown = drive(bench, files.set_attributes(number, &size, true))?;
    let mode = SetAttributes { permissions: Some(0o600), ..SetAttributes::default() };
    let _mode = drive(bench, files.set_attributes(number, &mode, true))?;
    let owner = SetAttributes { uid: Some(7), gid: Some(8), ..SetAttributes::default() };
    let _owner = drive(bench, files.set_attributes(number, &owner, true))?;
    for bytes in [5, 5000] {
        let value = vec![3; bytes];
        let _set = drive(bench, files.set_xattr(number, b"user.new", Some(&value)))?;
    }
    let _removed = drive(bench, files.set_xattr(number, b"user.new", None))?;
    let _copied = drive(bench, files.copy_range((number, 0), (number, 1 << 20), 1 << 14, true))?;
    if opened.is_ok() {
        let _closed = drive(bench, files.close(number))?;
    }
    let _created = drive(bench, files.create_inode(number, b"new", &NEW))?;
    let _synced = drive(bench, files.sync(number))?;
    Some(())
}

/// Renames an inode over and into others, and removes it.
fn rename_and_remove(
    bench: &Bench,
    files: &Filesystem,
    (directory, name): (ObjectId, &[u8]),
    number: ObjectId,
) {
    let modes = [RenameMode::Exchange, RenameMode::Keep, RenameMode::Replace];
    for mode in modes {
        for (to, new) in [(directory, &b"new"[..]), (ROOT, b"new"), (number, b"new"), (ROOT, name)]
        {
            let _moved = drive(bench, files.rename((directory, name), (to, new), mode));
            let _back = drive(bench, files.rename((to, new), (directory, name), mode));
        }
    }
    let _linked = drive(bench, files.link(number, directory, b"other"));
    let _linked = drive(bench, files.link(number, number, b"other"));
    for is_directory in [true, false] {
        let _removed = drive(bench, files.remove(directory, name, is_directory));
    }
}
