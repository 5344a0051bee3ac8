//! Why a simulated run ended without a result.
//!
//! Not here: errors of disks ([`weir_device::DeviceError`]) and verdicts of an oracle.
//!
//! Invariant: every variant but `Crashed` means a bug, in the engine or in the scenario.

use std::time::Duration;

use weir_base::ErrorKind;

/// A run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The power was cut where the scenario asked for it.
    #[error("power cut after device step {step}")]
    Crashed {
        /// Device steps that had taken effect.
        step: u64,
    },
    /// Nothing can ever happen again, and the run is not finished.
    #[error("deadlock at {at:?}: no task is ready, no timer is set and no disk is busy; \
             waiting: {}", tasks.join(", "))]
    Deadlock {
        /// Virtual time.
        at: Duration,
        /// Names of the tasks that wait, in the order they were spawned.
        tasks: Vec<String>,
    },
    /// Tasks keep waking each other, or the scenario needs a higher limit.
    #[error("no result after {polls} polls, virtual time {at:?}; waiting: {}", tasks.join(", "))]
    TooManyPolls {
        /// Polls done.
        polls: u64,
        /// Virtual time.
        at: Duration,
        /// Names of all unfinished tasks.
        tasks: Vec<String>,
    },
    /// Only timers keep going: whatever the run waits for does not come.
    #[error("no result after {at:?} of virtual time; waiting: {}", tasks.join(", "))]
    TooLong {
        /// Virtual time.
        at: Duration,
        /// Names of all unfinished tasks.
        tasks: Vec<String>,
    },
}

impl SimError {
    /// The kind this folds into at a border.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Crashed { .. } => ErrorKind::Unavailable,
            Self::Deadlock { .. } | Self::TooManyPolls { .. } | Self::TooLong { .. } => {
                ErrorKind::Internal
            }
        }
    }
}
