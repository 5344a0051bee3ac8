//! Trace of disk operations, to compare runs and to analyse failures.
//!
//! A trace does not record why the engine started an operation.
//!
//! Invariant: two runs of one seed have equal traces.

use std::fmt;
use std::time::Duration;

use weir_device::DeviceOp;

use crate::fault::Fault;

/// Phase of an operation that a trace entry records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The disk received the operation, which may take effect from now on, in part or completely.
    Issue,
    /// The disk completed the operation.
    Complete,
}

/// Trace entry for the issue or the completion of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceEntry {
    /// Step count after this entry (reads are not steps). A cut after this number of steps includes
    /// the entry.
    pub step: u64,
    /// Virtual time of the entry.
    pub at: Duration,
    /// Index of the disk in the world.
    pub disk: usize,
    /// Id of the operation, assigned at issue and unique in the world.
    pub id: u64,
    /// Phase of the operation that this entry records: issue or completion.
    pub phase: Phase,
    /// Kind of operation.
    pub op: DeviceOp,
    /// True for a write that must be on stable media when it completes.
    pub durable: bool,
    /// Offset of the operation in bytes; 0 for a flush.
    pub offset: u64,
    /// Length of the operation in bytes; 0 for a flush.
    pub len_bytes: u64,
    /// Injected fault that affected the operation.
    pub fault: Option<Fault>,
    /// True if the operation failed.
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

/// All trace entries of a world's disks, in order; prints one line for each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace(pub Vec<TraceEntry>);

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|entry| writeln!(f, "{entry}"))
    }
}
