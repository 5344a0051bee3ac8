//! Reservations of a logical unit.
//!
//! Not here: the rules (`reservation`), the commands (`persistent`).
//!
//! Invariant: a change is seen by every command that is admitted after it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use futures_util::lock::Mutex;
use parking_lot::RwLock;

use crate::codec::command::Status;
use crate::codec::operation::Access;
use crate::codec::refusal::{Outcome, Refusal};
use crate::unit::options::UnitStore;
use crate::unit::reservation::{Path, ReservationState};

pub(crate) const CONFLICT: Refusal = Refusal::Status(Status::ReservationConflict);

/// Reservations of a logical unit, of both kinds.
pub(crate) struct Reservations {
    /// Whether any reservation stands: all that commands look at otherwise.
    pub(crate) any: AtomicBool,
    /// Seat with a reservation of SPC-2, or 0.
    pub(crate) legacy: AtomicU64,
    pub(crate) state: RwLock<ReservationState>,
    /// Held by who changes the state, until it is kept.
    pub(crate) turn: Mutex<()>,
    pub(crate) store: Option<Arc<dyn UnitStore>>,
}

impl Reservations {
    pub(crate) fn new(state: ReservationState, store: Option<Arc<dyn UnitStore>>) -> Self {
        Self {
            any: AtomicBool::new(state.reservation.is_some()),
            legacy: AtomicU64::new(0),
            state: RwLock::new(state),
            turn: Mutex::new(()),
            store,
        }
    }

    /// As it is now.
    pub(crate) fn state(&self) -> ReservationState {
        self.state.read().clone()
    }

    /// Whether a nexus, by the number of its seat and its path, may run a command.
    pub(crate) fn allows(&self, nexus: u64, path: &Path, access: Access) -> bool {
        if !self.any.load(Ordering::SeqCst) {
            return true;
        }
        match access {
            Access::Always | Access::Reservation => return true,
            Access::Persistent | Access::Read | Access::Write => {}
        }
        let legacy = self.legacy.load(Ordering::SeqCst);
        if legacy != 0 {
            return legacy == nexus;
        }
        match access {
            Access::Read => self.state.read().allows(path, false),
            Access::Write => self.state.read().allows(path, true),
            _ => true,
        }
    }

    /// Whether an initiator port that has no nexus here may read, or write: what a copy
    /// asks of the logical unit of another target.
    pub(crate) fn allows_port(&self, initiator_port: &str, writes: bool) -> bool {
        if !self.any.load(Ordering::SeqCst) {
            return true;
        }
        if self.legacy.load(Ordering::SeqCst) != 0 {
            return false;
        }
        let state = self.state.read();
        state.registrations.iter().any(|known| {
            known.path.initiator_port == initiator_port && state.allows(&known.path, writes)
        })
    }

    /// Ends what a reset ends.
    pub(crate) fn reset(&self) {
        let state = self.state.write();
        self.legacy.store(0, Ordering::SeqCst);
        self.any.store(state.reservation.is_some(), Ordering::SeqCst);
    }

    /// Ends the SPC-2 reservation of a seat that goes.
    pub(crate) fn forget(&self, seat: u64) {
        let state = self.state.write();
        if self.legacy.load(Ordering::SeqCst) == seat {
            self.legacy.store(0, Ordering::SeqCst);
            self.any.store(state.reservation.is_some(), Ordering::SeqCst);
        }
    }

    /// Makes a change be seen, unless a SPC-2 reservation came first.
    pub(crate) fn publish(&self, state: ReservationState) -> Outcome {
        let mut current = self.state.write();
        if self.legacy.load(Ordering::SeqCst) != 0 {
            return Err(CONFLICT);
        }
        let any = state.reservation.is_some();
        *current = state;
        self.any.store(any, Ordering::SeqCst);
        Ok(())
    }
}
