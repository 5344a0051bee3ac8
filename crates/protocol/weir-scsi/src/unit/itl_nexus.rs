//! I_T_L nexus (SAM-5): the state of one I_T nexus on one logical unit.
//!
//! The I_T nexus is in `nexus_state`, commands are in `command`.
//!
//! Invariant: the loss of the nexus releases its SPC-2 reservation.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

use crate::unit::attention::Attentions;
use crate::unit::copies::Copies;
use crate::unit::logical_unit::Unit;
use crate::unit::nexus_name::NexusName;

/// Next I_T_L nexus id. Id 0 means "no nexus".
static NEXT: AtomicU64 = AtomicU64::new(1);

/// State of one I_T_L nexus.
pub(crate) struct ItlNexus {
    pub(crate) id: u64,
    pub(crate) unit: Arc<Unit>,
    pub(crate) name: Arc<NexusName>,
    pub(crate) attentions: Attentions,
    pub(crate) copies: Mutex<Copies>,
    aborts: AtomicU64,
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    tasks: usize,
    waiting: Vec<Waker>,
}

impl ItlNexus {
    pub(crate) fn new(unit: Arc<Unit>, name: Arc<NexusName>) -> Arc<Self> {
        let itl_nexus = Arc::new(Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            unit,
            name,
            attentions: Attentions::new(),
            copies: Mutex::default(),
            aborts: AtomicU64::new(0),
            running: Mutex::default(),
        });
        itl_nexus.unit.attach(&itl_nexus);
        itl_nexus
    }

    /// Number of times that other nexuses aborted the tasks of this nexus.
    pub(crate) fn aborts(&self) -> u64 {
        self.aborts.load(Ordering::Acquire)
    }

    /// Aborts all tasks of this nexus: the tasks still complete, but the transport sends no
    /// response to them, or TASK ABORTED if TAS is set.
    pub(crate) fn abort(&self) {
        self.aborts.fetch_add(1, Ordering::AcqRel);
    }

    /// Registers a running task that may wait for storage and may change the medium.
    pub(crate) fn run(&self) -> Run<'_> {
        self.running.lock().tasks += 1;
        Run(self)
    }

    /// Waits until no registered task is running.
    pub(crate) fn ended(&self) -> Ended<'_> {
        Ended(self)
    }
}

impl Drop for ItlNexus {
    fn drop(&mut self) {
        self.unit.reservations.forget(self.id);
    }
}

/// Registration of a running task; dropping it ends the registration.
pub(crate) struct Run<'a>(&'a ItlNexus);

impl Drop for Run<'_> {
    fn drop(&mut self) {
        let mut running = self.0.running.lock();
        running.tasks -= 1;
        if running.tasks == 0 {
            let waiting = std::mem::take(&mut running.waiting);
            drop(running);
            waiting.into_iter().for_each(Waker::wake);
        }
    }
}

/// Future that [`ItlNexus::ended`] returns.
pub(crate) struct Ended<'a>(&'a ItlNexus);

impl Future for Ended<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let mut running = self.0.running.lock();
        if running.tasks == 0 {
            return Poll::Ready(());
        }
        running.waiting.push(context.waker().clone());
        Poll::Pending
    }
}
