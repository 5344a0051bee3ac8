//! Tests of disks without io_uring, as in containers, and tests of a failing disk.
//!
//! The other tests of disks are in `file_device`.
//!
//! Invariant: only child processes set the seccomp filters, never the process that runs the tests.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail their test")]

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{MIB, child, open, read, run, sparse, verify, write};
use rustix::io::Errno;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};
use weir_base::ErrorKind;
use weir_block::IoBuf;
use weir_device::{Device, DeviceOp, Durability, IoBackend, io_backend, new_runtime};

// System call numbers. x86-64 has its own table of numbers; newer architectures share one table.
const IO_URING_SETUP: i64 = 425;
#[cfg(target_arch = "x86_64")]
const PREAD: i64 = 17;
#[cfg(target_arch = "x86_64")]
const PWRITE: i64 = 18;
#[cfg(target_arch = "x86_64")]
const FDATASYNC: i64 = 75;
#[cfg(not(target_arch = "x86_64"))]
const PREAD: i64 = 67;
#[cfg(not(target_arch = "x86_64"))]
const PWRITE: i64 = 68;
#[cfg(not(target_arch = "x86_64"))]
const FDATASYNC: i64 = 83;

/// Makes these system calls fail with `errno` from now on, in this thread and in the threads that
/// it starts.
fn refuse(calls: BTreeMap<i64, Vec<SeccompRule>>, errno: Errno) {
    let arch = std::env::consts::ARCH.try_into().unwrap();
    let fail = SeccompAction::Errno(errno.raw_os_error().cast_unsigned());
    let filter = SeccompFilter::new(calls, SeccompAction::Allow, fail, arch).unwrap();
    let program: BpfProgram = filter.try_into().unwrap();
    seccompiler::apply_filter(&program).unwrap();
}

fn temporary() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

fn disk_in(dir: &Path) -> weir_device::FileDevice {
    open(&sparse(dir, "file", 8 * MIB)).unwrap()
}

#[test]
fn refused_io_uring_falls_back_to_polling_with_a_warning() {
    let text = child(&["env"], "child_without_io_uring");
    assert_eq!(text.matches("io_uring refused: falling back to polling").count(), 1, "{text}");
    assert!(text.contains("Operation not permitted"), "the reason is missing: {text}");
}

#[test]
#[ignore = "run in a child process by refused_io_uring_falls_back_to_polling_with_a_warning"]
fn child_without_io_uring() {
    tracing_subscriber::fmt().with_ansi(false).init();
    refuse(BTreeMap::from([(IO_URING_SETUP, vec![])]), Errno::PERM);
    assert_eq!(io_backend(), IoBackend::Polling);
    assert!(new_runtime().unwrap().driver_type().is_polling());
    let dir = temporary();
    let disk = disk_in(dir.path());
    run(async {
        write(&disk, 0, 4 << 20).await.unwrap();
        let data = std::sync::Arc::new(IoBuf::zeroed(8192));
        disk.write_at(5 * MIB, data, 4096..8192, Durability::Durable).await.unwrap();
        disk.flush().await.unwrap();
        let reads = (0..64).map(|index| verify(&disk, index * 65536, 65536));
        futures_util::future::join_all(reads).await;
        disk.discard(MIB, MIB).await.unwrap();
        let abandoned = disk.read_at(0, IoBuf::zeroed(1 << 20));
        drop(futures_util::poll!(abandoned));
        verify(&disk, 0, 4096).await;
    });
    std::thread::scope(|scope| {
        for offset in [2 * MIB, 3 * MIB] {
            let disk = &disk;
            scope.spawn(move || run(verify(disk, offset, 1 << 20)));
        }
    });
}

#[test]
fn errors_of_the_disk_reach_the_caller() {
    child(&["env"], "child_with_a_failing_disk");
}

#[test]
#[ignore = "run in a child process by errors_of_the_disk_reach_the_caller"]
fn child_with_a_failing_disk() {
    let dir = temporary();
    let disk = disk_in(dir.path());
    refuse(BTreeMap::from([(IO_URING_SETUP, vec![])]), Errno::PERM);
    run(write(&disk, 0, 8192)).unwrap();
    // From now on every flush, every read at 4 MiB and every write at 1 MiB fails.
    let at_4_mib = SeccompCondition::new(3, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 4 * MIB);
    let read_rule = SeccompRule::new(vec![at_4_mib.unwrap()]).unwrap();
    let at_1_mib = SeccompCondition::new(3, SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, MIB);
    let write_rule = SeccompRule::new(vec![at_1_mib.unwrap()]).unwrap();
    let rules = [(FDATASYNC, vec![]), (PREAD, vec![read_rule]), (PWRITE, vec![write_rule])];
    refuse(BTreeMap::from(rules), Errno::IO);
    run(async {
        verify(&disk, 0, 8192).await;
        let error = read(&disk, 4 * MIB, 4096).await.unwrap_err();
        assert_eq!((error.op, error.offset), (DeviceOp::Read, 4 * MIB));
        assert_eq!(error.source.raw_os_error(), Some(Errno::IO.raw_os_error()));
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(error.to_string().ends_with("Input/output error (os error 5)"), "{error}");

        assert_eq!(disk.flush().await.unwrap_err().op, DeviceOp::Flush);
        let data = std::sync::Arc::new(IoBuf::zeroed(4096));
        let error = disk.write_at(MIB, data, 0..4096, Durability::Durable).await.unwrap_err();
        assert_eq!((error.op, error.offset), (DeviceOp::Write, MIB));
    });
}
