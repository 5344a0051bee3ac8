//! A seed, an executor and the disks that share it: everything one run consists of.
//!
//! Not here: what runs in it; a scenario spawns the engine and its clients.
//!
//! Invariants:
//! - disks change only between polls: operations that a poll started are issued right after it, in
//!   their order, one step at a time;
//! - a power cut hits all disks at the same moment, as late as possible: just before the next step
//!   that changes a disk, when every task had its chance to act on (and acknowledge) the last one;
//! - taking a cut changes nothing: one moment can be cut in many ways, and the run can go on.

use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use weir_device::DeviceOp;

use crate::cut::{Chooser, CutPlan, Unflushed};
use crate::disk::{SimDisk, Submission};
use crate::error::SimError;
use crate::executor::{Events, Executor};
use crate::media::{DiskOptions, MediaImage};
use crate::rng::Rng;
use crate::trace::{Phase, Trace, TraceEntry};

type StepHook = Box<dyn FnMut(&CutPoint<'_>)>;

/// One simulated machine, from power-on to power cut.
pub struct SimWorld {
    rng: Rng,
    executor: Executor,
    devices: Devices,
}

/// The disks of a world and what they are doing.
struct Devices {
    disks: Vec<Arc<SimDisk>>,
    queue: Arc<Mutex<VecDeque<Submission>>>,
    /// Operations in flight: when each completes, its number, its disk.
    due: RefCell<BinaryHeap<Reverse<(Duration, u64, usize)>>>,
    ops: Cell<u64>,
    steps: Cell<u64>,
    crash_after: Cell<Option<u64>>,
    crashed: Cell<bool>,
    hook: RefCell<Option<StepHook>>,
    trace: RefCell<Option<Trace>>,
}

impl SimWorld {
    /// A machine with new disks.
    pub fn new(seed: u64, disks: &[DiskOptions]) -> Self {
        Self::from_media(seed, disks.iter().cloned().map(MediaImage::blank).collect())
    }

    /// A machine with disks that were in use before.
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

    /// A stream of the world's seed, for a scenario's own decisions.
    pub fn rng(&self, purpose: &str, index: u64) -> Rng {
        self.rng.stream("scenario", 0).stream(purpose, index)
    }

    /// Disk number `index`.
    pub fn disk(&self, index: usize) -> Arc<SimDisk> {
        Arc::clone(&self.devices.disks[index])
    }

    /// All disks.
    pub fn disks(&self) -> &[Arc<SimDisk>] {
        &self.devices.disks
    }

    /// The executor, to spawn, to sleep and to tell the time; tasks may keep clones.
    pub fn executor(&self) -> &Executor {
        &self.executor
    }

    /// Runs until `main` is done; other tasks stay and go on in the next run.
    ///
    /// # Errors
    /// `Crashed` where [`Self::crash_after`] asked for it; the others mean that `main` never ends.
    pub fn run_until<T>(&self, main: impl Future<Output = T>) -> Result<T, SimError> {
        self.executor.run(&self.devices, main)
    }

    /// Operations the disks took in, reads included.
    pub fn op_count(&self) -> u64 {
        self.devices.ops.get()
    }

    /// Steps so far: a step is the issue or the completion of a write, flush or discard.
    pub fn step_count(&self) -> u64 {
        self.devices.steps.get()
    }

    /// Cuts the power after so many steps, counted from the world's beginning; see
    /// [`Self::step_count`]. The run then ends with `Crashed`, and nothing happens any more.
    pub fn crash_after(&self, steps: u64) {
        self.devices.crash_after.set(Some(steps));
    }

    /// Calls `hook` before every step, at the moments [`Self::crash_after`] could name, so that one
    /// run serves all its cuts.
    pub fn on_step(&self, hook: impl FnMut(&CutPoint<'_>) + 'static) {
        *self.devices.hook.borrow_mut() = Some(Box::new(hook));
    }

    /// What a cut could lose now.
    pub fn unflushed(&self) -> Unflushed {
        self.devices.unflushed()
    }

    /// What the disks hold if the power goes now.
    pub fn cut(&self, plan: CutPlan) -> Vec<MediaImage> {
        self.devices.cut(plan)
    }

    /// Drops all tasks; later runs end with `Crashed`. Follow with [`Self::cut`]: a killed process
    /// whose disks kept their power is [`CutPlan::Everything`].
    pub fn crash(&self) {
        self.devices.crashed.set(true);
        self.executor.crash();
    }

    /// Starts recording what the disks do.
    pub fn record_trace(&self) {
        self.devices.trace.borrow_mut().get_or_insert_default();
    }

    /// What was recorded so far.
    pub fn trace(&self) -> Trace {
        self.devices.trace.borrow().clone().unwrap_or_default()
    }
}

impl Drop for SimWorld {
    fn drop(&mut self) {
        // Tasks hold the executor that holds them; a million recoveries must not leak.
        self.executor.crash();
    }
}

/// A moment at which the power may go: between two steps.
pub struct CutPoint<'a> {
    /// Steps that took effect.
    pub steps: u64,
    /// The disk that changes next.
    pub disk: usize,
    /// What it does next.
    pub op: DeviceOp,
    /// Whether it is asked or answers next.
    pub phase: Phase,
    devices: &'a Devices,
}

impl CutPoint<'_> {
    /// What a cut could lose here.
    pub fn unflushed(&self) -> Unflushed {
        self.devices.unflushed()
    }

    /// What the disks hold if the power goes here.
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

    /// The last moment before a step: the power may go here.
    fn before_step(&self, disk: usize, op: DeviceOp, phase: Phase) -> Result<(), SimError> {
        let step = self.steps.get();
        let changes = op != DeviceOp::Read;
        let cut_here = changes && self.crash_after.get().is_some_and(|after| step >= after);
        if self.crashed.get() || cut_here {
            self.crashed.set(true);
            return Err(SimError::Crashed { step });
        }
        if changes {
            // Taken out while it runs, so that it may replace itself.
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
            // The lock ends here: a hook may start another world, but never this queue.
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
