//! Parameters and counted events of a run with NFS clients.
//!
//! Invariant: a scenario always runs the same steps.

use weir_pool::PlantedBug;

use crate::files::scenario::{FilesScenario, LegFault};
use crate::rng::Rng;

/// A run of NFS clients on a server that crashes several times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NfsScenario {
    /// Seed of all choices.
    pub seed: u64,
    /// Fault of the engine or the server.
    pub bug: PlantedBug,
    /// Whether changes of names and attributes are durable before the reply.
    pub is_sync: bool,
    /// Whether an operator takes snapshots and rolls the filesystem back.
    pub has_operator: bool,
    /// Fault of one disk of the mirror.
    pub fault: Option<LegFault>,
    /// Maximum number of crashes before the clients finish.
    pub crashes: u64,
    /// Number of operations of each client.
    pub steps: usize,
}

impl NfsScenario {
    /// Clients alone.
    pub const fn new(seed: u64, bug: PlantedBug) -> Self {
        let (is_sync, has_operator, fault) = (true, false, None);
        Self { seed, bug, is_sync, has_operator, fault, crashes: 6, steps: 70 }
    }

    /// The scenario of a seed, without a planted bug. One of two scenarios has an operator, one of
    /// four has a fault of a disk, and one of eight has a share with the option `async`. With few
    /// crashes, the server forgets more replies.
    pub fn of_seed(seed: u64) -> Self {
        let mut rng = Rng::new(seed).stream("NFS scenario", 0);
        let has_operator = rng.coin();
        let fault = LegFault::ALL[rng.index(LegFault::ALL.len())];
        let fault = (rng.below(4) == 0).then_some(fault);
        let (crashes, steps) = [(1, 150), (3, 100), (6, 70), (6, 70)][rng.index(4)];
        let is_sync = rng.below(8) > 0;
        let plain = Self::new(seed, PlantedBug::None);
        Self { is_sync, has_operator, fault, crashes, steps, ..plain }
    }

    /// The pool of the scenario.
    pub(super) fn files(&self) -> FilesScenario {
        let Self { seed, bug, has_operator, fault, .. } = *self;
        FilesScenario { has_operator, fault, ..FilesScenario::new(seed, bug) }
    }
}

/// Numbers of events of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NfsCounts {
    /// Crashes of the server, each with a recovery.
    pub crashes: usize,
    /// Crashes that lost changes.
    pub lost: usize,
    /// Calls.
    pub calls: usize,
    /// Copies of changing calls that got the reply of an earlier copy.
    pub repeated: usize,
    /// Copies of changing calls that arrived while an earlier copy ran.
    pub waited: usize,
    /// Copies of changing calls whose reply the server had forgotten.
    pub forgotten: usize,
    /// Calls without a reply at a crash, which the client sent again afterwards.
    pub resent: usize,
    /// Exclusive creates that found a file with their verifier.
    pub found: usize,
    /// Exclusive creates that found their file after a crash.
    pub found_after_crash: usize,
    /// Calls with the xid and the arguments of a call of another user or client.
    pub twins: usize,
    /// Unstable writes that a client sent again because the verifier changed.
    pub rewritten: usize,
    /// Unstable writes that a crash or a rollback lost.
    pub lost_writes: usize,
    /// Rollbacks.
    pub rollbacks: usize,
    /// Calls that arrived while the filesystem was closed.
    pub suspended: usize,
    /// Calls that named an inode which was gone.
    pub stale: usize,
}

impl NfsCounts {
    /// Adds the numbers of another run.
    pub fn add(&mut self, other: Self) {
        self.crashes += other.crashes;
        self.lost += other.lost;
        self.calls += other.calls;
        self.repeated += other.repeated;
        self.waited += other.waited;
        self.forgotten += other.forgotten;
        self.resent += other.resent;
        self.found += other.found;
        self.found_after_crash += other.found_after_crash;
        self.twins += other.twins;
        self.rewritten += other.rewritten;
        self.lost_writes += other.lost_writes;
        self.rollbacks += other.rollbacks;
        self.suspended += other.suspended;
        self.stale += other.stale;
    }
}
