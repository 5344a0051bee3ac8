//! Persistent and SPC-2 reservations of a logical unit, and the access check of commands.
//!
//! The rules of persistent reservations are in `reservation`, the commands in
//! `command::persistent`.
//!
//! Invariant: every command that is admitted after a change of the reservations sees that change.

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

/// Persistent and SPC-2 reservations of a logical unit.
pub(crate) struct Reservations {
    /// True if any reservation exists. If false, the access check of a command reads only this
    /// flag.
    pub(crate) any: AtomicBool,
    /// Id of the I_T_L nexus that holds an SPC-2 reservation; 0 if none.
    pub(crate) legacy: AtomicU64,
    pub(crate) state: RwLock<ReservationState>,
    /// Lock of the task that changes the reservation state. The task holds it until the store has
    /// saved the state.
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

    /// Current registrations and reservation.
    pub(crate) fn state(&self) -> ReservationState {
        self.state.read().clone()
    }

    /// Returns true if a nexus may run a command that needs `access`. `nexus` is the id of the
    /// I_T_L nexus, and `path` is the same nexus as reservations store it.
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

    /// True if an initiator port without a nexus to this unit may read or write the unit. A copy to
    /// or from a logical unit of another target calls this function.
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

    /// Releases the SPC-2 reservation on a reset.
    pub(crate) fn reset(&self) {
        let state = self.state.write();
        self.legacy.store(0, Ordering::SeqCst);
        self.any.store(state.reservation.is_some(), Ordering::SeqCst);
    }

    /// Releases the SPC-2 reservation of a lost I_T_L nexus.
    pub(crate) fn forget(&self, itl_nexus: u64) {
        let state = self.state.write();
        if self.legacy.load(Ordering::SeqCst) == itl_nexus {
            self.legacy.store(0, Ordering::SeqCst);
            self.any.store(state.reservation.is_some(), Ordering::SeqCst);
        }
    }

    /// Makes a new reservation state visible to commands. Fails with RESERVATION CONFLICT if an
    /// SPC-2 reservation was made in the meantime.
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
