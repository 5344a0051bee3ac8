//! Identity of this process as the owner of a pool, and the owner slot that an open pool holds.
//!
//! `topology::claim` claims a pool.
//!
//! Invariant: `OPEN` lists an import epoch of this process until its pool is closed or abandoned.

use std::sync::atomic::AtomicU64;

use parking_lot::Mutex;
use weir_base::{Clock, Guid, Txg};
use weir_format::Owner;

/// This process, as owner slots identify it.
#[derive(Debug)]
pub struct Identity {
    /// Machine id.
    pub machine: String,
    /// Host name.
    pub host: String,
    /// Boot id of the running kernel.
    pub boot: String,
    /// Inode of the PID namespace.
    pub pid_namespace: u64,
    /// Process id.
    pub pid: u32,
    /// Start time of the process in ticks since boot.
    pub pid_start: u64,
    /// Returns true if a process of this machine and PID namespace with that start time still runs.
    pub runs: fn(pid: u32, start: u64) -> bool,
}

/// Open import epochs of this process. An owner slot of this process with another epoch belongs to
/// a pool that the process has closed.
pub(crate) static OPEN: Mutex<Vec<Guid>> = Mutex::new(Vec::new());

impl Identity {
    pub(crate) fn slot(
        &self,
        pool: Guid,
        import_epoch: Guid,
        beat: u64,
        clock: &dyn Clock,
    ) -> Owner {
        Owner {
            pool,
            import_epoch,
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

    /// True if an owner has certainly stopped using its pool.
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
            return !OPEN.lock().contains(&owner.import_epoch);
        }
        !(self.runs)(owner.pid, owner.pid_start)
    }
}

/// Owner slot of an open pool.
pub(crate) struct Keeper {
    pub(crate) identity: &'static Identity,
    pub(crate) import_epoch: Guid,
    pub(crate) beat: AtomicU64,
}

impl Keeper {
    /// Ends the import epoch: from now on its owner slot counts as abandoned.
    pub(crate) fn end(&self) {
        OPEN.lock().retain(|import_epoch| *import_epoch != self.import_epoch);
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.end();
    }
}
