//! A record of what the disks did, to compare runs and to read after a failure.
//!
//! Not here: what the engine meant by it.
//!
//! Invariant: two runs of one seed have equal traces.

use std::fmt;
use std::time::Duration;

use weir_device::DeviceOp;

use crate::fault::Fault;

/// Which end of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The disk was asked; from now on the operation may be done or half done.
    Issue,
    /// The disk answers.
    Complete,
}

/// One thing a disk did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// Steps that had taken effect after it (reads are no steps): a cut after this many includes
    /// it.
    pub step: u64,
    /// Virtual time.
    pub at: Duration,
    /// Which disk of the world.
    pub disk: usize,
    /// Which operation: the number its issue got in this world.
    pub id: u64,
    /// Asked or answered.
    pub phase: Phase,
    /// What.
    pub op: DeviceOp,
    /// A write that must be on stable media when it completes.
    pub durable: bool,
    /// Where; 0 for flush.
    pub offset: u64,
    /// How much; 0 for flush.
    pub len_bytes: u64,
    /// The fault that struck it.
    pub fault: Option<Fault>,
    /// It was answered with an error.
    pub failed: bool,
}

impl fmt::Display for TraceEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arrow = match self.phase {
            Phase::Issue => "->",
            Phase::Complete => "<-",
        };
        let at_us = self.at.as_micros();
        write!(f, "{:6} {at_us:10} us disk {} {arrow} #{} ", self.step, self.disk, self.id)?;
        write!(f, "{}", self.op)?;
        if self.durable {
            f.write_str(" durable")?;
        }
        if self.len_bytes > 0 {
            write!(f, " {:#x}+{:#x}", self.offset, self.len_bytes)?;
        }
        if let Some(fault) = self.fault {
            write!(f, " [{fault:?}]")?;
        }
        if self.failed {
            f.write_str(" FAILED")?;
        }
        Ok(())
    }
}

/// Everything the disks of a world did, in order; prints one line each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace(pub Vec<TraceEntry>);

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}
