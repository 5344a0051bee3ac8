//! What is seen of a disk in use: counts, times, and whether it answers at all.
//!
//! Not here: measuring (watched.rs), and what to do about a slow disk (weir-pool).
//!
//! Invariants:
//! - memory is bounded: one histogram of fixed size per kind of operation;
//! - a figure is read without waiting for the disk;
//! - a disk that was let go of answers no operation any more, those under way included.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use parking_lot::Mutex;
use tokio::sync::Notify;
use weir_base::Clock;
use weir_base::limits::{AVOID_MAX, AVOID_MIN};

/// Kinds of operations that are measured apart.
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
    /// Every kind.
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::SyncWrite, Self::Flush];

    /// The kind as tables and JSON print it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::SyncWrite => "sync_write",
            Self::Flush => "flush",
        }
    }
}

/// Figures of one kind of operation since the disk was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OpFigures {
    /// Operations completed, failed ones included.
    pub count: u64,
    /// Bytes moved by those that succeeded.
    pub bytes: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Sum of their times.
    pub total_us: u64,
    /// Mean time, newer operations weighing more.
    pub recent_us: u64,
    /// Half of them took no longer.
    pub p50_us: u64,
    /// 99 of 100 took no longer.
    pub p99_us: u64,
    /// The longest.
    pub max_us: u64,
}

/// Figures of one disk since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskFigures {
    /// By kind, in the order of [`DiskOp::ALL`].
    pub ops: [OpFigures; 4],
    /// Operations under way.
    pub in_flight: u64,
    /// For how long no operation was completed, though some are under way.
    pub silent: Option<Duration>,
    /// Reads that another leg answered because this one took too long.
    pub bypassed: u64,
    /// Whether reads go around it now.
    pub avoided: bool,
}

impl DiskFigures {
    /// The figures of one kind.
    pub fn of(&self, op: DiskOp) -> &OpFigures {
        &self.ops[op as usize]
    }
}

/// Longest time a histogram tells apart from longer ones: a day, in microseconds.
const LONGEST_US: u64 = 86_400_000_000;
/// Weight of the newest operation in the recent mean: one part of this many.
const RECENT_SHARE: u64 = 8;

struct OpWatch {
    bytes: AtomicU64,
    errors: AtomicU64,
    total_us: AtomicU64,
    recent_us: AtomicU64,
    /// One significant digit, so within 6 %: a few KiB.
    times: Mutex<Histogram<u64>>,
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
        }
    }

    fn record(&self, us: u64) {
        self.total_us.fetch_add(us, Ordering::Relaxed);
        let recent = self.recent_us.load(Ordering::Relaxed);
        // The first sample counts whole. Two at once may lose one, which a mean survives.
        let next =
            if recent == 0 { us } else { recent - recent / RECENT_SHARE + us / RECENT_SHARE };
        self.recent_us.store(next, Ordering::Relaxed);
        self.times.lock().saturating_record(us);
    }

    fn figures(&self) -> OpFigures {
        let times = self.times.lock();
        OpFigures {
            count: times.len(),
            bytes: self.bytes.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            total_us: self.total_us.load(Ordering::Relaxed),
            recent_us: self.recent_us.load(Ordering::Relaxed),
            p50_us: times.value_at_quantile(0.5),
            p99_us: times.value_at_quantile(0.99),
            max_us: times.max(),
        }
    }
}

/// What is seen of one disk.
pub struct DiskWatch {
    clock: Arc<dyn Clock>,
    ops: [OpWatch; 4],
    in_flight: AtomicU64,
    /// When an operation last completed, or the first of those under way was issued.
    progress_us: AtomicU64,
    bypassed: AtomicU64,
    /// Reads gone around since an operation last completed.
    bypassed_in_a_row: AtomicU32,
    avoid_until_us: AtomicU64,
    let_go: AtomicBool,
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
            let_go: AtomicBool::new(false),
            released: Notify::new(),
        }
    }

    fn now_us(&self) -> u64 {
        self.clock.monotonic().as_micros() as u64
    }

    /// Everything at once.
    pub fn figures(&self) -> DiskFigures {
        DiskFigures {
            ops: DiskOp::ALL.map(|op| self.ops[op as usize].figures()),
            in_flight: self.in_flight.load(Ordering::Relaxed),
            silent: self.silent(),
            bypassed: self.bypassed.load(Ordering::Relaxed),
            avoided: self.is_avoided(),
        }
    }

    /// Recent mean time of one kind of operation; zero before the first.
    pub fn recent(&self, op: DiskOp) -> Duration {
        Duration::from_micros(self.ops[op as usize].recent_us.load(Ordering::Relaxed))
    }

    /// For how long no operation was completed, though some are under way.
    pub fn silent(&self) -> Option<Duration> {
        if self.in_flight.load(Ordering::Acquire) == 0 {
            return None;
        }
        let since = self.progress_us.load(Ordering::Acquire);
        Some(Duration::from_micros(self.now_us().saturating_sub(since)))
    }

    /// Notes that a read was answered by another leg because this one took too long: for a while,
    /// longer each time in a row, this one is asked last.
    pub fn bypass(&self) {
        self.bypassed.fetch_add(1, Ordering::Relaxed);
        let times = self.bypassed_in_a_row.fetch_add(1, Ordering::Relaxed).min(16);
        let pause = AVOID_MIN.saturating_mul(1 << times).min(AVOID_MAX);
        self.avoid_until_us.store(self.now_us() + pause.as_micros() as u64, Ordering::Release);
    }

    /// Whether other legs should be asked first.
    pub fn is_avoided(&self) -> bool {
        let until = self.avoid_until_us.load(Ordering::Acquire);
        until > 0 && until > self.now_us()
    }

    /// Fails every operation under way and every later one: the disk does not answer, and nobody
    /// shall wait for it any more. What those under way have done is unknown.
    pub fn let_go(&self) {
        self.let_go.store(true, Ordering::Release);
        self.released.notify_waiters();
    }

    /// Whether [`Self::let_go`] was called.
    pub fn is_let_go(&self) -> bool {
        self.let_go.load(Ordering::Acquire)
    }

    /// Ready once [`Self::let_go`] was called.
    pub(crate) async fn until_let_go(&self) {
        let mut released = std::pin::pin!(self.released.notified());
        // Registered before the flag is read: a call in between is not missed.
        released.as_mut().enable();
        if !self.is_let_go() {
            released.await;
        }
    }

    /// Notes that an operation begins.
    pub(crate) fn begin(&self, op: DiskOp) -> Begun<'_> {
        let now = self.now_us();
        if self.in_flight.fetch_add(1, Ordering::AcqRel) == 0 {
            self.progress_us.fetch_max(now, Ordering::AcqRel);
        }
        Begun { watch: self, op, start_us: now }
    }
}

/// An operation under way; dropped without an end, it is only taken out of those in flight.
pub(crate) struct Begun<'a> {
    watch: &'a DiskWatch,
    op: DiskOp,
    start_us: u64,
}

impl Begun<'_> {
    /// Notes how the operation ended.
    pub(crate) fn end(self, moved_bytes: Option<u64>) {
        let (watch, now) = (self.watch, self.watch.now_us());
        let op = &watch.ops[self.op as usize];
        op.record(now.saturating_sub(self.start_us));
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
