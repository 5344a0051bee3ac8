//! Errors that end a simulated run without a result.
//!
//! Disk errors are [`weir_device::DeviceError`]; checks report violations as text.
//!
//! Invariant: every variant except `Crashed` indicates a bug in the engine or in the scenario.

use std::time::Duration;

use weir_base::ErrorKind;
use weir_dataset::DatasetError;

/// Reason why a run ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimError {
    /// The power was cut at the requested step.
    #[error("power cut after device step {step}")]
    Crashed {
        /// Number of device steps before the cut.
        step: u64,
    },
    /// No event is left, although the run is not finished.
    #[error("deadlock at {at:?}: no task is ready, no timer is set and no disk is busy; \
             waiting: {}", tasks.join(", "))]
    Deadlock {
        /// Virtual time of the error.
        at: Duration,
        /// Names of the waiting tasks, in spawn order.
        tasks: Vec<String>,
    },
    /// Tasks keep waking each other, or the scenario needs a higher limit.
    #[error("no result after {polls} polls, virtual time {at:?}; waiting: {}", tasks.join(", "))]
    TooManyPolls {
        /// Number of polls.
        polls: u64,
        /// Virtual time of the error.
        at: Duration,
        /// Names of all unfinished tasks.
        tasks: Vec<String>,
    },
    /// The virtual time limit was reached: only timers still fire, and the future that the run
    /// awaits does not complete.
    #[error("no result after {at:?} of virtual time; waiting: {}", tasks.join(", "))]
    TooLong {
        /// Virtual time of the error.
        at: Duration,
        /// Names of all unfinished tasks.
        tasks: Vec<String>,
    },
}

impl SimError {
    /// Kind of the error for callers outside the crate.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Crashed { .. } => ErrorKind::Unavailable,
            Self::Deadlock { .. } | Self::TooManyPolls { .. } | Self::TooLong { .. } => {
                ErrorKind::Internal
            }
        }
    }
}

/// Reason why a step failed.
pub(crate) enum Stop {
    /// Error of the engine that the client did not expect.
    Failed(DatasetError),
    /// The engine violated a guarantee.
    Broken(String),
}
