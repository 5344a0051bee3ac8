//! Reads, writes, flushes and discards on real files and loop devices.
//!
//! Refusals to open a disk are in `refusals`, operation without io_uring is in `io_uring_refused`.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail their test")]

mod common;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::time::Duration;

use common::{Loop, MIB, child, open, pattern, read, run, sparse, verify, write};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use weir_base::ErrorKind;
use weir_block::IoBuf;
use weir_device::{
    Device, DeviceOp, Durability, FaultDevice, Faults, FileDevice, OpenMode, new_runtime,
};

/// Operations that every disk must support, on any medium.
async fn exercise(disk: &dyn Device) {
    let sector = disk.geometry().sector_bytes as usize;
    for (offset, len) in [(0, sector), (MIB, MIB as usize), (3 * MIB, 5 * sector)] {
        write(disk, offset, len).await.unwrap();
        verify(disk, offset, len).await;
    }
    // Write a part of a shared buffer twice concurrently, like two legs of a mirror.
    let data = Arc::new(pattern(4 * MIB, 8 * sector));
    let (from, to) = (2 * sector, 6 * sector);
    let place = 4 * MIB + from as u64;
    let legs = [Durability::Cached, Durability::Durable]
        .map(|durability| disk.write_at(place, Arc::clone(&data), from..to, durability));
    for leg in futures_util::future::join_all(legs).await {
        leg.unwrap();
    }
    verify(disk, place, to - from).await;
    let before = read(disk, 4 * MIB, from).await.unwrap();
    assert!(before.iter().all(|byte| *byte == 0), "more than the range was written");
    disk.flush().await.unwrap();
    disk.discard(MIB, MIB).await.unwrap();
    verify(disk, 0, sector).await;
    verify(disk, 3 * MIB, 5 * sector).await;
}

#[test]
fn file_disk_keeps_data_and_counts_operations() {
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", 8 * MIB);
    let disk = open(&path).unwrap();
    assert_eq!(disk.path(), path.to_str().unwrap());
    assert_eq!(disk.geometry().sector_bytes, 4096);
    run(exercise(&disk));
    let count = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let stats = disk.stats();
    assert_eq!((count(&stats.writes), count(&stats.flushes)), (5, 2));
    let sectors = 1 + 256 + 5 + 4 + 4;
    assert_eq!(count(&stats.written_bytes), sectors * 4096);
    assert_eq!(count(&stats.reads), 7);
    drop(disk);
    let content = std::fs::read(&path).unwrap();
    assert_eq!(content[..4096], pattern(0, 4096)[..]);
}

#[test]
fn block_devices_of_both_sector_sizes() {
    let dir = tempfile::tempdir().unwrap();
    for sector_bytes in [512, 4096] {
        let path = sparse(dir.path(), &sector_bytes.to_string(), 8 * MIB + 512);
        let Some(device) = Loop::attach(&path, &["-b", &sector_bytes.to_string()]) else { return };
        let disk = open(&device.0).unwrap();
        assert_eq!(disk.geometry().sector_bytes, sector_bytes);
        assert_eq!(disk.geometry().len_bytes % u64::from(sector_bytes), 0);
        assert!(disk.is_direct());
        run(exercise(&disk));
        let before = std::fs::metadata(&path).unwrap().blocks();
        run(async {
            disk.discard(0, 8 * MIB).await.unwrap();
            disk.flush().await.unwrap();
        });
        assert!(std::fs::metadata(&path).unwrap().blocks() < before, "discard freed nothing");
        drop(disk);
    }
}

#[test]
fn discard_on_a_file_frees_its_space() {
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", 8 * MIB);
    let disk = open(&path).unwrap();
    let blocks = || std::fs::metadata(&path).unwrap().blocks();
    run(async {
        write(&disk, 0, 4 << 20).await.unwrap();
        disk.flush().await.unwrap();
        let full = blocks();
        disk.discard(MIB, 2 * MIB).await.unwrap();
        assert!(blocks() + 4096 <= full, "{} of {full} sectors of 512 are left", blocks());
        verify(&disk, 0, 1 << 20).await;
        verify(&disk, 3 * MIB, 1 << 20).await;
    });
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 8 * MIB);
}

#[test]
fn read_past_the_end_of_a_truncated_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", 8 * MIB);
    let disk = open(&path).unwrap();
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(4 * MIB).unwrap();
    let error = run(read(&disk, 4 * MIB - 8192, 16384)).unwrap_err();
    assert_eq!((error.op, error.offset), (DeviceOp::Read, 4 * MIB - 8192));
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}

#[test]
fn threads_with_their_own_runtimes_share_a_disk() {
    const PER_THREAD: u64 = 4 * MIB;
    let dir = tempfile::tempdir().unwrap();
    let disk = open(&sparse(dir.path(), "file", 2 * PER_THREAD)).unwrap();
    std::thread::scope(|scope| {
        for part in 0..2 {
            let disk = &disk;
            scope.spawn(move || {
                run(async {
                    for offset in (part * PER_THREAD..(part + 1) * PER_THREAD).step_by(1 << 16) {
                        write(disk, offset, 1 << 16).await.unwrap();
                        verify(disk, offset, 1 << 16).await;
                    }
                    disk.flush().await.unwrap();
                });
            });
        }
    });
    run(verify(&disk, 0, 2 * PER_THREAD as usize));
}

#[test]
fn concurrent_reads_return_their_own_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let disk = open(&sparse(dir.path(), "file", 8 * MIB)).unwrap();
    run(async {
        write(&disk, 0, 8 << 20).await.unwrap();
        // Mix long and short reads, so that the reads complete in another order than the order of
        // submission.
        let mut reads = (0..64_u64)
            .map(|index| {
                let len = if index % 8 == 0 { 1 << 20 } else { 4096 };
                let offset = (index * 7 % 64) * 4096 * 16;
                let disk = &disk;
                async move { (offset, len, read(disk, offset, len).await.unwrap()) }
            })
            .collect::<FuturesUnordered<_>>();
        let mut done = 0;
        while let Some((offset, len, found)) = reads.next().await {
            assert!(found[..] == pattern(offset, len)[..], "wrong bytes at {offset}");
            done += 1;
        }
        assert_eq!(done, 64);
    });
}

#[test]
fn later_operation_may_complete_first() {
    let dir = tempfile::tempdir().unwrap();
    let file = Arc::new(open(&sparse(dir.path(), "file", 8 * MIB)).unwrap());
    let faults = Arc::new(Faults::default());
    let slow = FaultDevice::new(Arc::clone(&file) as Arc<dyn Device>, Arc::clone(&faults));
    faults.delay(Duration::from_millis(100));
    run(async {
        let mut order = FuturesUnordered::new();
        for (name, disk) in [("slow", &slow as &dyn Device), ("fast", file.as_ref())] {
            order.push(async move { read(disk, 0, 4096).await.map(|_| name).unwrap() });
        }
        assert_eq!(order.next().await, Some("fast"));
        assert_eq!(order.next().await, Some("slow"));
    });
}

#[test]
fn abandoned_read_keeps_its_buffer_and_the_lock() {
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", 8 * MIB);
    let disk = open(&path).unwrap();
    run(async {
        for _ in 0..32 {
            let abandoned = disk.read_at(0, IoBuf::zeroed(4 << 20));
            drop(futures_util::poll!(abandoned));
        }
        verify_zero(&disk).await;
    });
    drop(disk);
    // The runtime has ended, and with it all operations in flight, so the lock of the disk must be
    // free.
    open(&path).unwrap();
}

async fn verify_zero(disk: &dyn Device) {
    let found = read(disk, 0, 4096).await.unwrap();
    assert!(found.iter().all(|byte| *byte == 0));
}

#[test]
fn busy_task_does_not_starve_a_read() {
    // Regression: with deferred completions and without the task-run flag, the runtime never
    // noticed a completed read while another task was always ready to run.
    let (done, finished) = mpsc::channel();
    let dir = tempfile::tempdir().unwrap();
    let path = sparse(dir.path(), "file", 8 * MIB);
    std::thread::spawn(move || {
        let disk = open(&path).unwrap();
        new_runtime().unwrap().block_on(async {
            let busy = compio::runtime::spawn(async {
                loop {
                    yield_once().await;
                }
            });
            for offset in 0..64 {
                write(&disk, offset * 4096, 4096).await.unwrap();
                verify(&disk, offset * 4096, 4096).await;
            }
            drop(busy);
        });
        done.send(()).unwrap();
    });
    finished.recv_timeout(Duration::from_secs(20)).expect("reads starve beside a busy task");
}

async fn yield_once() {
    let mut yielded = false;
    futures_util::future::poll_fn(|context| {
        if yielded {
            return std::task::Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        std::task::Poll::Pending
    })
    .await;
}

/// Runs a test in its own mount namespace, in which `mount` is mounted on /mnt; nothing stays
/// mounted afterwards. Prints a message and returns `None` if mounting is not permitted.
fn with_mount(mount: &str, test: &str) -> Option<String> {
    let script = format!("mount -t {mount} none /mnt && exec \"$0\" \"$@\"");
    let prefix = ["unshare", "--mount", "sh", "-c", &script];
    let probe = Command::new(prefix[0]).args(&prefix[1..]).arg("true").output();
    if !probe.as_ref().is_ok_and(|output| output.status.success()) {
        eprintln!("skipped: cannot mount {mount} ({probe:?})");
        return None;
    }
    Some(child(&prefix, test))
}

#[test]
fn full_filesystem_returns_no_space() {
    with_mount("tmpfs -o size=2m", "child_writes_until_the_filesystem_is_full");
}

#[test]
#[ignore = "run in a mount namespace by full_filesystem_returns_no_space"]
fn child_writes_until_the_filesystem_is_full() {
    let disk = open(&sparse(Path::new("/mnt"), "file", 16 * MIB)).unwrap();
    run(async {
        write(&disk, 0, 1 << 20).await.unwrap();
        let error = write(&disk, 4 * MIB, 4 << 20).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace, "{error}");
        assert_eq!((error.op, error.offset), (DeviceOp::Write, 4 * MIB));
        verify(&disk, 0, 1 << 20).await;
        disk.discard(4 * MIB, 4 * MIB).await.unwrap();
        write(&disk, 2 * MIB, 4096).await.unwrap();
        disk.flush().await.unwrap();
    });
}

#[test]
fn open_without_direct_io_uses_and_reports_the_cache() {
    let Some(text) = with_mount("ramfs", "child_uses_a_disk_without_direct_io") else { return };
    assert_eq!(text.matches("refuses direct I/O").count(), 1, "{text}");
}

#[test]
#[ignore = "run in a mount namespace by open_without_direct_io_uses_and_reports_the_cache"]
fn child_uses_a_disk_without_direct_io() {
    tracing_subscriber::fmt().with_ansi(false).init();
    let path = sparse(Path::new("/mnt"), "file", 8 * MIB);
    let disk = open(&path).unwrap();
    assert!(!disk.is_direct());
    run(exercise(&disk));
    drop(disk);
    assert!(FileDevice::open(&path, OpenMode::ReadOnly, 16 * MIB).is_err());
}
