//! Whose pool it is: the identity of this process, and the slot that an open pool keeps.
//!
//! Not here: taking a pool (`topology::claim`).
//!
//! Invariant: an opening of this process is on one list until its pool is closed or given up.

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use weir_base::{Clock, Guid, Txg};
use weir_format::Owner;

/// The process that runs this code, as owner slots name it.
#[derive(Debug)]
pub struct Identity {
    /// Identity of the machine.
    pub machine: String,
    /// Its name.
    pub host: String,
    /// Identity of its boot.
    pub boot: String,
    /// Inode of the PID namespace.
    pub pid_namespace: u64,
    /// Process.
    pub pid: u32,
    /// Its start, ticks since boot.
    pub pid_start: u64,
    /// Whether a process of this machine and PID namespace that started then still runs.
    pub runs: fn(pid: u32, start: u64) -> bool,
}

/// Openings of this process: its own slots tell nothing about a pool that it gave up.
pub(crate) static OPEN: Mutex<Vec<Guid>> = Mutex::new(Vec::new());

impl Identity {
    pub(crate) fn slot(&self, pool: Guid, opening: Guid, beat: u64, clock: &dyn Clock) -> Owner {
        Owner {
            pool,
            opening,
            is_closed: false,
            machine: self.machine.clone(),
            host: self.host.clone(),
            boot: self.boot.clone(),
            pid_namespace: self.pid_namespace,
            pid: self.pid,
            pid_start: self.pid_start,
            beat,
            unix_ms: clock.unix_ms(),
            txg: Txg(0),
        }
    }

    /// True if an owner is known to have stopped using its pool.
    pub(crate) fn knows_gone(&self, owner: &Owner) -> bool {
        if owner.is_closed {
            return true;
        }
        if owner.machine != self.machine {
            return false;
        }
        if owner.boot != self.boot {
            return true;
        }
        if owner.pid_namespace != self.pid_namespace {
            return false;
        }
        if (owner.pid, owner.pid_start) == (self.pid, self.pid_start) {
            return !OPEN.lock().contains(&owner.opening);
        }
        !(self.runs)(owner.pid, owner.pid_start)
    }
}

/// The slot of an open pool.
pub(crate) struct Keeper {
    pub(crate) identity: &'static Identity,
    pub(crate) opening: Guid,
    pub(crate) beat: AtomicU64,
}

impl Keeper {
    /// From here on its slot counts as that of an owner that is gone.
    pub(crate) fn end(&self) {
        OPEN.lock().retain(|opening| *opening != self.opening);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}
