//! Tests of disks that must not be opened: each refusal contains the path and the reason, and
//! changes nothing.
//!
//! Tests of operations on open disks are in `file_device`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail their test")]

mod common;

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use common::{Loop, MIB, open, run, sparse, verify, write};
use rustix::fs::{CWD, FileType, Mode, OFlags, mknodat};
use weir_base::ErrorKind;
use weir_block::IoBuf;
use weir_device::{Device, Durability, FileDevice, OpenMode};

/// Between fork and exec, a child process shares every descriptor of this process, including locks.
/// So a child that one test starts would keep the disk of another test locked, and only one test
/// runs at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn refused(path: &Path, kind: ErrorKind, words: &str) {
    let Err(error) = open(path) else { panic!("{} was opened", path.display()) };
    let text = error.to_string();
    assert_eq!(error.kind(), kind, "{text}");
    assert!(text.contains(&path.display().to_string()), "no path in: {text}");
    assert!(text.contains(words), "{words:?} is not in: {text}");
}

#[test]
fn directory_device_and_pipe_are_refused() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    refused(&dir.path().join("none"), ErrorKind::NotFound, "No such file");
    refused(dir.path(), ErrorKind::Invalid, "is a directory");
    refused(Path::new("/dev/null"), ErrorKind::Invalid, "neither a file nor a block device");
    let pipe = dir.path().join("pipe");
    mknodat(CWD, &pipe, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    refused(&pipe, ErrorKind::Invalid, "neither a file nor a block device");
    let below_file = sparse(dir.path(), "file", MIB).join("below");
    refused(&below_file, ErrorKind::Invalid, "Not a directory");
}

#[test]
fn disk_below_the_minimum_size_is_refused() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "small", MIB - 1);
    refused(&path, ErrorKind::Invalid, "1MiB are needed");
    let path = sparse(dir.path(), "tiny", 100);
    let error = FileDevice::open(&path, OpenMode::ReadWrite, 0).unwrap_err();
    assert!(error.to_string().contains("has 0B, at least 4KiB are needed"), "{error}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 100);
}

#[test]
fn read_only_even_for_root() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", MIB);
    std::fs::set_permissions(&path, Permissions::from_mode(0o444)).unwrap();
    refused(&path, ErrorKind::ReadOnly, "is read-only");
    let disk = FileDevice::open(&path, OpenMode::ReadOnly, MIB).unwrap();
    let error = run(write(&disk, 0, 4096)).unwrap_err();
    assert!(error.to_string().contains("write at byte 0 failed"), "{error}");
}

#[test]
fn disk_without_permission_is_refused() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", MIB);
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
    if rustix::process::geteuid().is_root() {
        // Only this thread changes its user id, and the thread ends with the closure.
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let nobody = rustix::fs::Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                refused(&path, ErrorKind::Permission, "Permission denied");
            });
        });
    } else {
        std::fs::set_permissions(&path, Permissions::from_mode(0o200)).unwrap();
        refused(&path, ErrorKind::Permission, "Permission denied");
    }
}

#[test]
fn open_twice_in_this_process() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", MIB);
    let link = dir.path().join("symlink");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    let second_name = dir.path().join("second-name");
    std::fs::hard_link(&path, &second_name).unwrap();

    let disk = open(&path).unwrap();
    for other in [&path, &link, &second_name] {
        let first = format!("is already open here as {}", path.display());
        refused(other, ErrorKind::Busy, &first);
        let error = FileDevice::open(other, OpenMode::ReadOnly, MIB).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Busy);
        assert_eq!(error.opened_as(), path.to_str());
    }
    drop(disk);
    let looking = FileDevice::open(&path, OpenMode::ReadOnly, MIB).unwrap();
    let also_looking = FileDevice::open(&link, OpenMode::ReadOnly, MIB).unwrap();
    refused(&path, ErrorKind::Busy, "is already open here");
    drop((looking, also_looking));
    open(&second_name).unwrap();
}

#[test]
fn in_use_by_another_process() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", MIB);
    let mut holder = Command::new("flock")
        .arg(&path)
        .args(["-c", "echo held; read -r _"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "held\n");
    refused(&path, ErrorKind::Busy, "is in use by another process");
    holder.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert!(holder.wait().unwrap().success());

    let disk = open(&path).unwrap();
    let other = Command::new("flock").arg("-n").arg(&path).args(["-c", "true"]).status().unwrap();
    assert!(!other.success(), "another process could lock an open disk");
    drop(disk);
}

#[test]
fn failed_creation_leaves_no_file() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", 10 * MIB);
    let metadata = std::fs::metadata(&path).unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (10 * MIB, 0));
    let error = FileDevice::create_sparse(&path, MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Exists, "{error}");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 10 * MIB);

    let huge = dir.path().join("huge");
    let error = FileDevice::create_sparse(&huge, u64::MAX).unwrap_err();
    assert!(error.to_string().contains(&huge.display().to_string()), "{error}");
    assert!(!huge.exists());
    let nowhere = dir.path().join("none").join("file");
    let error = FileDevice::create_sparse(&nowhere, MIB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
}

#[test]
fn block_devices_held_or_read_only() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", 8 * MIB);
    let Some(device) = Loop::attach(&path, &[]) else { return };
    let holder = std::fs::OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::EXCL.bits().cast_signed())
        .open(&device.0)
        .unwrap();
    refused(&device.0, ErrorKind::Busy, "held by other storage software");
    drop(holder);
    drop(open(&device.0).unwrap());
    drop(device);

    let Some(device) = Loop::attach(&path, &["-r"]) else { return };
    refused(&device.0, ErrorKind::ReadOnly, "is read-only");
    drop(FileDevice::open(&device.0, OpenMode::ReadOnly, MIB).unwrap());
}

#[test]
fn io_past_the_end_is_refused() {
    let _turn = alone();
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", MIB + 4095);
    let disk = open(&path).unwrap();
    assert_eq!(disk.geometry().len_bytes, MIB, "not rounded down to whole sectors");
    run(async {
        write(&disk, MIB - 4096, 4096).await.unwrap();
        for offset in [MIB, MIB - 4096, u64::MAX - 4095] {
            let error = write(&disk, offset, 8192).await.unwrap_err();
            assert_eq!(error.offset, offset);
            let (result, buf) = disk.read_at(offset, IoBuf::zeroed(8192)).await;
            assert!(result.is_err());
            assert_eq!(buf.len(), 8192, "the buffer comes back");
            assert!(disk.discard(offset, 8192).await.is_err());
        }
        disk.write_at(MIB, Arc::new(IoBuf::zeroed(4096)), 0..0, Durability::Durable).await.unwrap();
        verify(&disk, MIB - 4096, 4096).await;
    });
    assert_eq!(std::fs::metadata(&path).unwrap().len(), MIB + 4095);
}
