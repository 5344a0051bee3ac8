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
use weir_fs::{Filesystem, FilesystemLayer, Layout, Now};
use weir_pool::{CreateOptions, ImportOptions, PlantedBug, VdevSpec};

const MEMORY_BYTES: u64 = 32 << 20;

pub(crate) const LAYOUT: Layout =
    Layout { hash_key: 7, record_size: RecordSize::from_shift(3).expect("32 KiB") };

/// Polls a future to completion. Commits while it waits.
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
}

fn options() -> EngineOptions {
    let clock = Arc::new(SystemClock::default());
    EngineOptions { memory_bytes: MEMORY_BYTES, clock, bug: PlantedBug::None }
}

/// A clock whose time grows with each call.
fn clock() -> Now {
    static SECONDS: AtomicI64 = AtomicI64::new(1_000);
    Box::new(|| TimeStamp { seconds: SECONDS.fetch_add(1, Ordering::Relaxed), nanos: 5 })
}

impl Pool {
    pub(crate) fn new(disk_bytes: usize) -> Self {
        let disk = Arc::new(MemoryDevice::new("memory", disk_bytes));
        let disks: Vec<Arc<dyn Device>> = vec![Arc::clone(&disk) as _];
        let vdev = VdevSpec { kind: VdevKind::Disk, role: VdevRole::Data, disks };
        let mut guids = (1..).map(Guid);
        let mut guid = || guids.next().expect("endless");
        let create = CreateOptions::default();
        let engine = now(Engine::create("tank", &[vdev], create, &options(), &mut guid)).unwrap();
        let files =
            run(&engine, Filesystem::create(&engine, "home", LAYOUT, &[], clock())).unwrap();
        Self { disk, engine, files }
    }

    /// Stops without a commit and opens the pool again. The import replays the log.
    pub(crate) fn crash(self) -> Self {
        static EPOCHS: AtomicU64 = AtomicU64::new(1 << 32);
        let Self { disk, engine, files } = self;
        drop((files, engine));
        let how = ImportOptions::new(Guid(EPOCHS.fetch_add(1, Ordering::Relaxed)));
        let disks: Vec<Arc<dyn Device>> = vec![Arc::clone(&disk) as _];
        let options = options();
        let opened = Engine::open_with_layer(disks, how, &options, &FilesystemLayer);
        let engine = now(opened).unwrap();
        let files = run(&engine, Filesystem::open(&engine, "home", clock())).unwrap();
        Self { disk, engine, files }
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
