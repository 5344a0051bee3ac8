//! Simulated machine: a seed, an executor and the disks of one run.
//!
//! A scenario spawns the engine and its clients.
//!
//! Invariants:
//! - disks change only between two polls of a task: the world issues the operations that a poll
//!   started right after this poll, in order, one step at a time;
//! - a power cut hits all disks at the same instant, as late as possible: immediately before the
//!   next step that changes a disk, after every task could react to (and acknowledge) the last
//!   step;
//! - a cut does not change the world: one instant can be cut with many plans, and the run can
//!   continue.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weir_device::{Device, DeviceOp};

use crate::cut::{Chooser, CutPlan, Unflushed};
use crate::disk::{SimDisk, Submission};
use crate::error::SimError;
use crate::executor::{Events, Executor};
use crate::media::{DiskOptions, MediaImage};
use crate::rng::Rng;
use crate::trace::{Phase, Trace, TraceEntry};

type StepHook = Box<dyn FnMut(&CutPoint<'_>)>;

/// A simulated machine, from power-on to power cut.
pub struct SimWorld {
    rng: Rng,
    executor: Executor,
    devices: Devices,
}

/// The disks of a world and their operations in flight.
struct Devices {
    disks: Vec<Arc<SimDisk>>,
    queue: Arc<Mutex<VecDeque<Submission>>>,
    /// Operations in flight: completion time, id and disk.
    due: RefCell<BinaryHeap<Reverse<(Duration, u64, usize)>>>,
    ops: Cell<u64>,
    steps: Cell<u64>,
    crash_after: Cell<Option<u64>>,
    crashed: Cell<bool>,
    hook: RefCell<Option<StepHook>>,
    trace: RefCell<Option<Trace>>,
}

impl SimWorld {
    /// Creates a machine with new disks.
    pub fn new(seed: u64, disks: &[DiskOptions]) -> Self {
        Self::from_media(seed, disks.iter().cloned().map(MediaImage::blank).collect())
    }

    /// Creates a machine with disks that already have content.
    pub fn from_media(seed: u64, images: Vec<MediaImage>) -> Self {
        let rng = Rng::new(seed);
        let queue = Arc::<Mutex<VecDeque<Submission>>>::default();
        let disk = |(index, image)| Arc::new(SimDisk::new(index, image, &rng, Arc::clone(&queue)));
        let disks = images.into_iter().enumerate().map(disk).collect();
        let devices = Devices {
            disks,
            queue,
            due: RefCell::default(),
            ops: Cell::new(0),
            steps: Cell::new(0),
            crash_after: Cell::new(None),
            crashed: Cell::new(false),
            hook: RefCell::default(),
            trace: RefCell::default(),
        };
        Self { executor: Executor::new(rng.stream("executor", 0)), rng, devices }
    }

    /// Random stream derived from the world's seed, for a scenario's own choices.
    pub fn rng(&self, purpose: &str, index: u64) -> Rng {
        self.rng.stream("scenario", 0).stream(purpose, index)
    }

    /// Returns the disk with this index.
    pub fn disk(&self, index: usize) -> Arc<SimDisk> {
        Arc::clone(&self.devices.disks[index])
    }

    /// All disks.
    pub fn disks(&self) -> &[Arc<SimDisk>] {
        &self.devices.disks
    }

    /// All disks, as devices of an engine.
    pub fn devices(&self) -> Vec<Arc<dyn Device>> {
        self.disks().iter().map(|disk| Arc::clone(disk) as Arc<dyn Device>).collect()
    }

    /// Returns the executor, for spawning, sleeping and reading the time; tasks may keep clones of
    /// it.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Runs until `main` completes; other tasks stay and continue in the next run.
    ///
    /// # Errors
    /// `Crashed` at the step of [`Self::crash_after`]. The other errors mean that `main` never
    /// completes.
    pub fn run_until<T>(&self, main: impl Future<Output = T>) -> Result<T, SimError> {
        self.executor.run(&self.devices, main)
    }

    /// Number of operations issued, including reads.
    pub fn op_count(&self) -> u64 {
        self.devices.ops.get()
    }

    /// Number of steps so far. A step is the issue or the completion of a write, flush or discard.
    pub fn step_count(&self) -> u64 {
        self.devices.steps.get()
    }

    /// Cuts the power after this many steps since the creation of the world (see
    /// [`Self::step_count`]). The run ends with `Crashed`, and no further step happens.
    pub fn crash_after(&self, steps: u64) {
        self.devices.crash_after.set(Some(steps));
    }

    /// Calls `hook` before every step, where [`Self::crash_after`] could cut the power. So one run
    /// serves the cuts at all of its steps.
    pub fn on_step(&self, hook: impl FnMut(&CutPoint<'_>) + 'static) {
        *self.devices.hook.borrow_mut() = Some(Box::new(hook));
    }

    /// Writes that a power cut could lose now.
    pub fn unflushed(&self) -> Unflushed {
        self.devices.unflushed()
    }

    /// Media content of all disks after a power cut at this instant.
    pub fn cut(&self, plan: CutPlan) -> Vec<MediaImage> {
        self.devices.cut(plan)
    }

    /// Drops all tasks; later runs end with `Crashed`. After the crash, [`Self::cut`] returns the
    /// media; [`CutPlan::Everything`] represents a killed process whose disks kept their power.
    pub fn crash(&self) {
        self.devices.crashed.set(true);
        self.executor.crash();
    }

    /// Starts to record a trace of the disks.
    pub fn record_trace(&self) {
        self.devices.trace.borrow_mut().get_or_insert_default();
    }

    /// Returns the trace so far.
    pub fn trace(&self) -> Trace {
        self.devices.trace.borrow().clone().unwrap_or_default()
    }
}

impl Drop for SimWorld {
    fn drop(&mut self) {
        // Tasks hold the executor, and the executor holds the tasks. Break this cycle, because
        // otherwise a million recoveries would leak their memory.
        self.executor.crash();
    }
}

/// Possible instant of a power cut, between two steps.
pub struct CutPoint<'a> {
    /// Number of steps that took effect.
    pub steps: u64,
    /// Disk of the next step.
    pub disk: usize,
    /// Operation of the next step.
    pub op: DeviceOp,
    /// Phase of this operation that the next step performs: issue or completion.
    pub phase: Phase,
    devices: &'a Devices,
}

impl CutPoint<'_> {
    /// Writes that a cut at this instant could lose.
    pub fn unflushed(&self) -> Unflushed {
        self.devices.unflushed()
    }

    /// Media content of all disks after a power cut at this instant.
    pub fn cut(&self, plan: CutPlan) -> Vec<MediaImage> {
        self.devices.cut(plan)
    }
}

impl Devices {
    fn unflushed(&self) -> Unflushed {
        let mut total = Unflushed::default();
        for disk in &self.disks {
            let unflushed = disk.state().lock().unflushed();
            total.sectors += unflushed.sectors;
            total.writes += unflushed.writes;
        }
        total
    }

    fn cut(&self, plan: CutPlan) -> Vec<MediaImage> {
        let mut chooser = Chooser::new(plan);
        self.disks.iter().map(|disk| disk.state().lock().cut(&mut chooser)).collect()
    }

    /// Runs before each step, where the power may be cut.
    fn before_step(&self, disk: usize, op: DeviceOp, phase: Phase) -> Result<(), SimError> {
        let step = self.steps.get();
        let changes = op != DeviceOp::Read;
        let cut_here = changes && self.crash_after.get().is_some_and(|after| step >= after);
        if self.crashed.get() || cut_here {
            self.crashed.set(true);
            return Err(SimError::Crashed { step });
        }
        if changes {
            // Take the hook out while it runs, so that it may replace itself.
            let hook = self.hook.borrow_mut().take();
            if let Some(mut hook) = hook {
                hook(&CutPoint { steps: step, disk, op, phase, devices: self });
                self.hook.borrow_mut().get_or_insert(hook);
            }
            self.steps.set(step + 1);
        }
        Ok(())
    }

    fn record(&self, entry: impl FnOnce() -> TraceEntry) {
        if let Some(trace) = self.trace.borrow_mut().as_mut() {
            trace.0.push(entry());
        }
    }

    fn issue(&self, submission: Submission, now: Duration) -> Result<(), SimError> {
        let disk = submission.disk;
        let (op, durable) = (submission.request.op(), submission.request.durable());
        let (offset, len_bytes) = submission.request.place();
        self.before_step(disk, op, Phase::Issue)?;
        let id = self.ops.get();
        self.ops.set(id + 1);
        let (delay, fault) = self.disks[disk].issue(id, submission);
        self.due.borrow_mut().push(Reverse((now + delay, id, disk)));
        self.record(|| TraceEntry {
            step: self.steps.get(),
            at: now,
            disk,
            id,
            phase: Phase::Issue,
            op,
            durable,
            offset,
            len_bytes,
            fault,
            failed: false,
        });
        Ok(())
    }
}

impl Events for Devices {
    fn submit(&self, now: Duration) -> Result<(), SimError> {
        loop {
            // Release the lock of the queue before the operation is issued, because `issue` may run
            // a hook. The hook may create another world, but never uses this queue.
            let Some(submission) = self.queue.lock().pop_front() else { return Ok(()) };
            self.issue(submission, now)?;
        }
    }

    fn next_due(&self) -> Option<Duration> {
        self.due.borrow().peek().map(|Reverse((due, ..))| *due)
    }

    fn fire(&self, now: Duration) -> Result<(), SimError> {
        let first = self.due.borrow().peek().copied();
        let Some(Reverse((_, id, disk))) = first else { return Ok(()) };
        let op = self.disks[disk].op_in_flight(id);
        self.before_step(disk, op, Phase::Complete)?;
        self.due.borrow_mut().pop();
        let failed = self.disks[disk].complete(id);
        self.record(|| TraceEntry {
            step: self.steps.get(),
            at: now,
            disk,
            id,
            phase: Phase::Complete,
            op,
            durable: false,
            offset: 0,
            len_bytes: 0,
            fault: None,
            failed,
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests;
