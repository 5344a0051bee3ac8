//! Statistics of a disk in use: counts, latencies, and whether the disk is responsive.
//!
//! `watched` measures the operations; weir-pool reacts to slow disks.
//!
//! Invariants:
//! - memory is bounded: three histograms of fixed size for each kind of operation;
//! - reading the statistics never waits for the disk;
//! - after [`DiskWatch::fail_io`] no operation succeeds, not even an operation that was in flight.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_base::Clock;
use weir_base::limits::{AVOID_MAX, AVOID_MIN};

use crate::recent::{LONGEST_US, RecentTimes};

/// Kinds of disk operations that the statistics distinguish.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskOp {
    /// Reads.
    Read,
    /// Writes into the disk's cache.
    Write,
    /// Writes that are durable when they return.
    SyncWrite,
    /// Flushes of the disk's cache.
    Flush,
}

impl DiskOp {
    /// All kinds of operations.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::SyncWrite, Self::Flush];

    /// Name of the kind of operation in tables and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::SyncWrite => "sync_write",
            Self::Flush => "flush",
        }
    }
}

/// Statistics of one kind of operation since the disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpFigures {
    /// Number of completed operations, including failed operations.
    pub count: u64,
    /// Number of bytes that successful operations transferred.
    pub bytes: u64,
    /// Number of failed operations.
    pub errors: u64,
    /// Sum of the operation times.
    pub total_us: u64,
    /// Weighted mean of the operation times; newer operations have more weight.
    pub recent_us: u64,
    /// Median of the operation times.
    pub p50_us: u64,
    /// 99th percentile of the operation times.
    pub p99_us: u64,
    /// 99th percentile of the operation times of the last 30 to 60 s; `None` if there was no
    /// operation.
    pub recent_p99_us: Option<u64>,
    /// Maximum of the operation times.
    pub max_us: u64,
}

/// Statistics of one disk since the disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFigures {
    /// Statistics of each kind of operation, in the order of [`DiskOp::ALL`].
    pub ops: [OpFigures; 4],
    /// Number of operations in flight.
    pub in_flight: u64,
    /// Time since the last operation completed; `None` if no operation is in flight.
    pub silent: Option<Duration>,
    /// Number of reads that another leg served because this disk took too long.
    pub bypassed: u64,
    /// True while reads prefer the other legs of the disk's vdev.
    pub avoided: bool,
}

impl DiskFigures {
    /// Statistics of one kind of operation.
    pub fn of(&self, op: DiskOp) -> &OpFigures {
        &self.ops[op as usize]
    }
}

/// The newest operation has the weight 1 / `RECENT_SHARE` in the weighted mean of recent times.
const RECENT_SHARE: u64 = 8;

struct OpWatch {
    bytes: AtomicU64,
    errors: AtomicU64,
    total_us: AtomicU64,
    recent_us: AtomicU64,
    /// Histogram of the operation times with one significant digit: an error of at most 6 %, and a
    /// few KiB of memory.
    times: Mutex<Histogram<u64>>,
    recent: RecentTimes,
}

impl OpWatch {
    fn new() -> Self {
        let times = Histogram::new_with_bounds(1, LONGEST_US, 1).expect("the bounds are in order");
        Self {
            bytes: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            total_us: AtomicU64::new(0),
            recent_us: AtomicU64::new(0),
            times: Mutex::new(times),
            recent: RecentTimes::default(),
        }
    }

    fn record(&self, now_us: u64, us: u64) {
        self.recent.record(now_us, us);
        self.total_us.fetch_add(us, Ordering::Relaxed);
        let recent = self.recent_us.load(Ordering::Relaxed);
        // The first sample has full weight. Concurrent updates may lose a sample, which does not
        // matter for the mean.
        let next =
            if recent == 0 { us } else { recent - recent / RECENT_SHARE + us / RECENT_SHARE };
        self.recent_us.store(next, Ordering::Relaxed);
        self.times.lock().saturating_record(us);
    }

    fn figures(&self, now_us: u64) -> OpFigures {
        let times = self.times.lock();
        OpFigures {
            count: times.len(),
            bytes: self.bytes.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            total_us: self.total_us.load(Ordering::Relaxed),
            recent_us: self.recent_us.load(Ordering::Relaxed),
            p50_us: times.value_at_quantile(0.5),
            p99_us: times.value_at_quantile(0.99),
            recent_p99_us: self.recent.p99_us(now_us),
            max_us: times.max(),
        }
    }
}

/// Statistics and state of one disk.
pub struct DiskWatch {
    clock: Arc<dyn Clock>,
    ops: [OpWatch; 4],
    in_flight: AtomicU64,
    /// Time of the last progress: an operation completed, or an operation was issued while no other
    /// was in flight.
    progress_us: AtomicU64,
    bypassed: AtomicU64,
    /// Number of reads that another leg served since a read of this disk last completed.
    bypassed_in_a_row: AtomicU32,
    avoid_until_us: AtomicU64,
    fail_io: AtomicBool,
    released: Notify,
}

impl DiskWatch {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            ops: std::array::from_fn(|_| OpWatch::new()),
            in_flight: AtomicU64::new(0),
            progress_us: AtomicU64::new(0),
            bypassed: AtomicU64::new(0),
            bypassed_in_a_row: AtomicU32::new(0),
            avoid_until_us: AtomicU64::new(0),
            fail_io: AtomicBool::new(false),
            released: Notify::new(),
        }
    }

    fn now_us(&self) -> u64 {
        self.clock.monotonic().as_micros() as u64
    }

    /// Returns all statistics of the disk.
    pub fn figures(&self) -> DiskFigures {
        let now_us = self.now_us();
        DiskFigures {
            ops: DiskOp::ALL.map(|op| self.ops[op as usize].figures(now_us)),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            silent: self.silent(),
            bypassed: self.bypassed.load(Ordering::Relaxed),
            avoided: self.is_avoided(),
        }
    }

    /// Recent mean time of one kind of operation; zero before the first operation.
    pub fn recent(&self, op: DiskOp) -> Duration {
        Duration::from_micros(self.ops[op as usize].recent_us.load(Ordering::Relaxed))
    }

    /// Time since the last operation completed; `None` if no operation is in flight.
    pub fn silent(&self) -> Option<Duration> {
        if self.in_flight.load(Ordering::Acquire) == 0 {
            return None;
        }
        let since = self.progress_us.load(Ordering::Acquire);
        Some(Duration::from_micros(self.now_us().saturating_sub(since)))
    }

    /// Records that another leg served a read because this disk took too long. For a while, reads
    /// then try this disk last; the time doubles with each consecutive call.
    pub fn bypass(&self) {
        self.bypassed.fetch_add(1, Ordering::Relaxed);
        let times = self.bypassed_in_a_row.fetch_add(1, Ordering::Relaxed).min(16);
        let pause = AVOID_MIN.saturating_mul(1 << times).min(AVOID_MAX);
        self.avoid_until_us.store(self.now_us() + pause.as_micros() as u64, Ordering::Release);
    }

    /// True if reads should prefer the other legs of the disk's vdev.
    pub fn is_avoided(&self) -> bool {
        let until = self.avoid_until_us.load(Ordering::Acquire);
        until > 0 && until > self.now_us()
    }

    /// Fails all in-flight and later operations, so that no task waits for an unresponsive disk. An
    /// in-flight write may or may not have reached the disk.
    pub fn fail_io(&self) {
        self.fail_io.store(true, Ordering::Release);
        self.released.notify_waiters();
    }

    /// True after [`Self::fail_io`] was called.
    pub fn is_io_failed(&self) -> bool {
        self.fail_io.load(Ordering::Acquire)
    }

    /// Waits until [`Self::fail_io`] is called.
    pub(crate) async fn until_io_failed(&self) {
        let mut released = std::pin::pin!(self.released.notified());
        // Register before reading the flag, so that no call of `fail_io` in between is missed.
        released.as_mut().enable();
        if !self.is_io_failed() {
            released.await;
        }
    }

    /// Records the start of an operation.
    pub(crate) fn begin(&self, op: DiskOp) -> Begun<'_> {
        let now = self.now_us();
        if self.in_flight.fetch_add(1, Ordering::AcqRel) == 0 {
            self.progress_us.fetch_max(now, Ordering::AcqRel);
        }
        Begun { watch: self, op, start_us: now }
    }
}

/// An operation in flight. If this value is dropped without a call of [`Self::end`], the operation
/// is not counted, and only the number of operations in flight changes.
pub(crate) struct Begun<'a> {
    watch: &'a DiskWatch,
    op: DiskOp,
    start_us: u64,
}

impl Begun<'_> {
    /// Records the result of the operation.
    pub(crate) fn end(self, moved_bytes: Option<u64>) {
        let (watch, now) = (self.watch, self.watch.now_us());
        let op = &watch.ops[self.op as usize];
        op.record(now, now.saturating_sub(self.start_us));
        match moved_bytes {
            Some(bytes) => op.bytes.fetch_add(bytes, Ordering::Relaxed),
            None => op.errors.fetch_add(1, Ordering::Relaxed),
        };
        watch.progress_us.fetch_max(now, Ordering::AcqRel);
        if self.op == DiskOp::Read {
            watch.bypassed_in_a_row.store(0, Ordering::Relaxed);
        }
    }
}

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        self.watch.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}
