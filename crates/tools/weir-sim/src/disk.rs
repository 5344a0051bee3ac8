//! Simulated disk: a volatile write cache over media, with faults on demand.
//!
//! The world decides the time at which operations are issued and complete; [`crate::CutPlan`]
//! decides which writes survive a power cut.
//!
//! Invariants:
//! - a read that starts after the completion of a write returns the written content; a read in
//!   flight at the completion may return the old or the written content;
//! - a flush covers exactly the writes that had completed when [`Device::flush`] was called;
//! - a durable write reaches the media at its completion and flushes no other write, but an older
//!   cached write never overwrites it;
//! - an operation in flight completes even if its future is dropped.

use std::collections::VecDeque;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use weir_block::IoBuf;
use weir_device::{
    Device, DeviceError, DeviceOp, DeviceStats, Durability, Geometry, IoFuture, ReadFuture,
};

use crate::cut::Unflushed;
use crate::fault::{Budget, Fault};
use crate::media::{Latency, MediaImage};
use crate::rng::Rng;

mod state;

use state::{Outcome, State};

/// Counters of one disk since its world was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    /// Number of operations issued.
    pub ops: u64,
    /// Number of operations that returned an error.
    pub failed: u64,
    /// Number of operations that an injected fault affected.
    pub faults: u64,
    /// Number of operations in flight.
    pub in_flight: u64,
    /// Writes that a power cut could lose now, including writes in flight.
    pub unflushed: Unflushed,
}

/// A simulated disk of a [`crate::SimWorld`]. States of a cached write:
///
/// ```text
/// call -> first poll -> issued: in flight -> completed: cached + visible -> flushed: media
///                       \_________ any sector may survive a cut _________/  \_ survives _/
/// ```
pub struct SimDisk {
    index: usize,
    path: String,
    geometry: Geometry,
    stats: DeviceStats,
    queue: Arc<Mutex<VecDeque<Submission>>>,
    state: Mutex<State>,
}

/// An operation that a future has queued for the disk.
pub(crate) struct Submission {
    pub(crate) disk: usize,
    pub(crate) request: Request,
    pub(crate) slot: Arc<Slot>,
}

pub(crate) enum Request {
    Read {
        offset: u64,
        buf: IoBuf,
    },
    Write {
        offset: u64,
        data: Arc<IoBuf>,
        range: Range<usize>,
        durable: bool,
    },
    /// A flush of the writes whose completion number is not higher than `covers`.
    Flush {
        covers: u64,
    },
    Discard {
        offset: u64,
        len_bytes: u64,
    },
}

impl Request {
    pub(crate) fn op(&self) -> DeviceOp {
        match self {
            Self::Read { .. } => DeviceOp::Read,
            Self::Write { .. } => DeviceOp::Write,
            Self::Flush { .. } => DeviceOp::Flush,
            Self::Discard { .. } => DeviceOp::Discard,
        }
    }

    pub(crate) fn place(&self) -> (u64, u64) {
        match self {
            Self::Read { offset, buf } => (*offset, buf.len() as u64),
            Self::Write { offset, range, .. } => (*offset, range.len() as u64),
            Self::Flush { .. } => (0, 0),
            Self::Discard { offset, len_bytes } => (*offset, *len_bytes),
        }
    }

    pub(crate) fn durable(&self) -> bool {
        matches!(self, Self::Write { durable: true, .. })
    }
}

/// Slot that passes the result of an operation to its future.
#[derive(Default)]
pub(crate) struct Slot {
    state: Mutex<SlotState>,
}

#[derive(Default)]
struct SlotState {
    waker: Option<Waker>,
    answer: Option<Answer>,
}

pub(crate) struct Answer {
    pub(crate) result: Result<(), DeviceError>,
    pub(crate) buf: Option<IoBuf>,
}

impl Slot {
    pub(crate) fn fill(&self, answer: Answer) {
        let mut state = self.state.lock();
        state.answer = Some(answer);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// Future that starts its operation at the first poll, like a real device: a future that is never
/// polled does nothing.
struct Operation<'a> {
    disk: &'a SimDisk,
    request: Option<Request>,
    slot: Arc<Slot>,
}

impl Future for Operation<'_> {
    type Output = Answer;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Answer> {
        let mut state = self.slot.state.lock();
        if let Some(answer) = state.answer.take() {
            return Poll::Ready(answer);
        }
        state.waker = Some(cx.waker().clone());
        drop(state);
        if let Some(request) = self.request.take() {
            let slot = Arc::clone(&self.slot);
            let submission = Submission { disk: self.disk.index, request, slot };
            self.disk.queue.lock().push_back(submission);
        }
        Poll::Pending
    }
}

impl SimDisk {
    pub(crate) fn new(
        index: usize,
        media: MediaImage,
        rng: &Rng,
        queue: Arc<Mutex<VecDeque<Submission>>>,
    ) -> Self {
        let options = media.options();
        let geometry =
            Geometry { len_bytes: options.len_bytes, sector_bytes: options.sector_bytes };
        let path = options.path.to_string();
        let state = Mutex::new(State::new(media, rng, index as u64));
        Self { index, path, geometry, stats: DeviceStats::default(), queue, state }
    }

    /// Sets the budget of a fault: its probability and the remaining number of faults.
    pub fn set_fault(&self, fault: Fault, budget: Budget) {
        self.state.lock().faults.set(fault, budget);
    }

    /// Kills or revives the disk. A dead disk returns EIO for all operations; its media keeps its
    /// content.
    pub fn set_dead(&self, dead: bool) {
        self.state.lock().dead = dead;
    }

    /// Sets the latency of operations issued from now on.
    pub fn set_latency(&self, latency: Latency) {
        assert!(latency.min <= latency.max, "latency: min is above max");
        self.state.lock().latency = latency;
    }

    /// Shortens the disk: operations beyond `len_bytes` fail, and after a cut the disk reports the
    /// new length. Until the cut the geometry is unchanged, as on an open device.
    pub fn shorten(&self, len_bytes: u64) {
        let whole = len_bytes.is_multiple_of(u64::from(self.geometry.sector_bytes));
        assert!(
            whole && len_bytes > 0 && len_bytes <= self.geometry.len_bytes,
            "a disk shrinks by whole sectors"
        );
        self.state.lock().usable_bytes = len_bytes;
    }

    /// Flips one bit on the media; a newer cached write hides the flip until a cut.
    pub fn flip_bit(&self, offset: u64, bit: u32) {
        self.state.lock().flip_bit(offset, bit);
    }

    /// Overwrites a range of media and cache with random bytes, drawn from `seed`.
    pub fn scribble(&self, range: Range<u64>, seed: u64) {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        Rng::new(seed).fill(&mut bytes);
        self.state.lock().overwrite(range.start, &bytes);
    }

    /// Makes the sectors of a range unreadable until they are rewritten.
    pub fn set_unreadable(&self, range: Range<u64>) {
        let mut state = self.state.lock();
        state.media.set_unreadable(range.clone());
        state.visible.set_unreadable(range);
    }

    /// Copies the content that a read would return now, without issuing an operation.
    pub fn peek(&self, offset: u64, out: &mut [u8]) {
        self.state.lock().visible.read(offset, out);
    }

    /// Returns the counters.
    pub fn counters(&self) -> DiskCounters {
        let state = self.state.lock();
        DiskCounters {
            in_flight: state.in_flight.len() as u64,
            unflushed: state.unflushed(),
            ..state.counters
        }
    }

    pub(crate) fn state(&self) -> &Mutex<State> {
        &self.state
    }

    pub(crate) fn op_in_flight(&self, id: u64) -> DeviceOp {
        self.state.lock().op_in_flight(id)
    }

    /// Issues an operation; returns its latency and the fault that affects it.
    pub(crate) fn issue(&self, id: u64, submission: Submission) -> (Duration, Option<Fault>) {
        self.count(&submission.request);
        self.state.lock().issue(id, submission)
    }

    /// Completes an operation; returns true if it failed.
    pub(crate) fn complete(&self, id: u64) -> bool {
        let Outcome { slot, op, offset, failure, buf } = self.state.lock().complete(id);
        let failed = failure.is_some();
        let result = match failure {
            None => Ok(()),
            Some(source) => Err(DeviceError { path: self.path.clone(), op, offset, source }),
        };
        slot.fill(Answer { result, buf });
        failed
    }

    fn count(&self, request: &Request) {
        let add = |counter: &std::sync::atomic::AtomicU64, n: u64| {
            counter.fetch_add(n, Ordering::Relaxed);
        };
        let (_, len) = request.place();
        match request {
            Request::Read { .. } => {
                add(&self.stats.reads, 1);
                add(&self.stats.read_bytes, len);
            }
            Request::Write { durable, .. } => {
                add(&self.stats.writes, 1);
                add(&self.stats.written_bytes, len);
                add(&self.stats.flushes, u64::from(*durable));
            }
            Request::Flush { .. } => add(&self.stats.flushes, 1),
            Request::Discard { .. } => {}
        }
    }

    fn start(&self, request: Request) -> Operation<'_> {
        let (offset, len) = request.place();
        let sector = u64::from(self.geometry.sector_bytes);
        assert!(
            offset.is_multiple_of(sector) && len.is_multiple_of(sector),
            "{}: unaligned {} at {offset}+{len}",
            self.path,
            request.op(),
        );
        Operation { disk: self, request: Some(request), slot: Arc::default() }
    }
}

impl Device for SimDisk {
    fn path(&self) -> &str {
        &self.path
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn current_len(&self) -> Option<u64> {
        Some(self.state.lock().usable_bytes)
    }

    fn stats(&self) -> &DeviceStats {
        &self.stats
    }

    fn read_at(&self, offset: u64, buf: IoBuf) -> ReadFuture<'_> {
        let operation = self.start(Request::Read { offset, buf });
        Box::pin(async move {
            let answer = operation.await;
            (answer.result, answer.buf.expect("a read is answered with its buffer"))
        })
    }

    fn write_at(
        &self,
        offset: u64,
        data: Arc<IoBuf>,
        range: Range<usize>,
        durability: Durability,
    ) -> IoFuture<'_, Result<(), DeviceError>> {
        assert!(range.start <= range.end && range.end <= data.len(), "a write inside its buffer");
        let durable = durability == Durability::Durable;
        let operation = self.start(Request::Write { offset, data, range, durable });
        Box::pin(async move { operation.await.result })
    }

    fn flush(&self) -> IoFuture<'_, Result<(), DeviceError>> {
        // Read the completion number at the call, before the first poll: a flush does not cover
        // writes that complete after the call.
        let covers = self.state.lock().completions;
        let operation = self.start(Request::Flush { covers });
        Box::pin(async move { operation.await.result })
    }

    fn discard(&self, offset: u64, len_bytes: u64) -> IoFuture<'_, Result<(), DeviceError>> {
        let operation = self.start(Request::Discard { offset, len_bytes });
        Box::pin(async move { operation.await.result })
    }
}

#[cfg(test)]
mod tests;
