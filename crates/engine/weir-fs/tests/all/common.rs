//! A filesystem on a pool in memory.
//!
//! Invariant: memory devices complete at once, so that a pending future waits only for a commit.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

use weir_base::{Guid, RecordSize, SystemClock};
use weir_dataset::{Engine, EngineOptions};
use weir_device::{Device, MemoryDevice};
use weir_format::files::TimeStamp;
use weir_format::{VdevKind, VdevRole};
use weir_fs::{Filesystem, FilesystemLayer, FreeingLimits, Layout, NameCase, Now};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};

const MEMORY_BYTES: u64 = 32 << 20;

pub(crate) const LAYOUT: Layout = Layout {
    hash_key: 7,
    record_size: RecordSize::from_shift(3).expect("32 KiB"),
    case: NameCase::Sensitive,
};

/// Polls a future to completion. Commits while the future waits.
pub(crate) fn run<T>(engine: &Engine, future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..1000 {
        for _ in 0..1000 {
            if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
        }
        now(engine.sync()).unwrap();
    }
    panic!("commits do not help");
}

/// Polls a future that waits for no other task.
pub(crate) fn now<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for _ in 0..1_000_000 {
        if let std::task::Poll::Ready(done) = future.as_mut().poll(&mut context) {
            return done;
        }
    }
    panic!("nothing to wait for on memory disks");
}

/// A pool with one filesystem.
pub(crate) struct Pool {
    disk: Arc<MemoryDevice>,
    pub(crate) engine: Arc<Engine>,
    pub(crate) files: Filesystem,
    seconds: Arc<AtomicI64>,
}

pub(crate) fn options() -> EngineOptions {
    let clock = Arc::new(SystemClock::default());
    EngineOptions { memory_bytes: MEMORY_BYTES, clock, bug: PlantedBug::None }
}

/// A clock whose time grows with each call.
fn clock(seconds: &Arc<AtomicI64>) -> Now {
    let seconds = Arc::clone(seconds);
    Box::new(move || TimeStamp { seconds: seconds.fetch_add(1, Ordering::Relaxed), nanos: 5 })
}

impl Pool {
    pub(crate) fn new(disk_bytes: usize) -> Self {
        Self::with_case(disk_bytes, NameCase::Sensitive)
    }

    pub(crate) fn with_case(disk_bytes: usize, case: NameCase) -> Self {
        let disk = Arc::new(MemoryDevice::new("memory", disk_bytes));
        let disks: Vec<Arc<dyn Device>> = vec![Arc::clone(&disk) as _];
        let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks };
        let mut guids = (1..).map(Guid);
        let mut guid = || guids.next().expect("endless");
        let create = CreateOptions::default();
        let engine = now(Engine::create("tank", &[vdev], create, &options(), &mut guid)).unwrap();
        let seconds = Arc::new(AtomicI64::new(1_000));
        let layout = Layout { case, ..LAYOUT };
        let files = Filesystem::create(&engine, "home", layout, &[], clock(&seconds));
        let files = run(&engine, files).unwrap();
        Self { disk, engine, files, seconds }
    }

    pub(crate) fn advance_clock(&self, seconds: i64) {
        self.seconds.fetch_add(seconds, Ordering::Relaxed);
    }

    /// Stops without a commit and opens the pool again. The import replays the log.
    pub(crate) fn crash(self) -> Self {
        self.crash_with(FreeingLimits::default())
    }

    /// As [`Self::crash`], and sets the limits of the freeing of files.
    pub(crate) fn crash_with(self, limits: FreeingLimits) -> Self {
        static EPOCHS: AtomicU64 = AtomicU64::new(1 << 32);
        let Self { disk, engine, files, seconds } = self;
        drop((files, engine));
        let how = ImportOptions::new(Guid(EPOCHS.fetch_add(1, Ordering::Relaxed)));
        let disks: Vec<Arc<dyn Device>> = vec![Arc::clone(&disk) as _];
        let options = options();
        let opened = Engine::open_with_layer(disks, how, &options, &FilesystemLayer);
        let engine = now(opened).unwrap();
        let files = Filesystem::open_with(&engine, "home", limits, clock(&seconds));
        let files = run(&engine, files).unwrap();
        Self { disk, engine, files, seconds }
    }

    /// Closes the filesystem and opens it again, without a commit in between.
    pub(crate) fn reopen(self) -> Self {
        let Self { disk, engine, files, seconds } = self;
        drop(files);
        let files = run(&engine, Filesystem::open(&engine, "home", clock(&seconds))).unwrap();
        Self { disk, engine, files, seconds }
    }

    /// Stops without a commit. Returns the disk.
    pub(crate) fn into_disk(self) -> Arc<MemoryDevice> {
        self.disk
    }

    /// Changes all copies of these bytes on the disk.
    pub(crate) fn damage(&self, bytes: &[u8]) {
        let content = self.disk.content();
        let windows = content.windows(bytes.len()).enumerate();
        let places: Vec<usize> =
            windows.filter(|(_, window)| *window == bytes).map(|(at, _)| at).collect();
        assert!(!places.is_empty(), "the bytes are not on the disk");
        for at in places {
            self.disk.corrupt(at..at + bytes.len(), |byte| *byte ^= 0x40);
        }
    }

    pub(crate) fn run<T>(&self, future: impl Future<Output = T>) -> T {
        run(&self.engine, future)
    }

    /// Commits, and checks the filesystem and the space counters of the pool.
    pub(crate) fn check(&self) {
        now(self.engine.sync()).unwrap();
        assert_eq!(now(self.files.check()).unwrap(), []);
        assert_eq!(now(self.engine.check_live_bytes()).unwrap(), Vec::new());
        assert_eq!(now(self.engine.check_accounts()).unwrap(), Vec::new());
    }
}
