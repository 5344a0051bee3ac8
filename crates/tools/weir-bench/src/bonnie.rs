//! File test with the fields of bonnie++ 1.96: phases on one large file, then on many small files.
//!
//! Not here: the runs and phases (drive, large, small), figures and verdicts over the runs
//! (columns), published results of bonnie++ (reference).
//!
//! Differences from bonnie++: the file has the profile's content, and every block that is read is
//! verified. The per-byte phases transfer at most 4 MiB, because more bytes do not change the rate.
//! Each phase that reads starts with the file dropped from the page cache, as far as the kernel
//! allows.
//!
//! Invariants:
//! - output means write and input means read, and every label says which, because a published
//!   summary swapped the two;
//! - the flush at the end of a phase that writes counts in its time, as in bonnie++;
//! - the test changes only a directory that it creates and removes at its end.

mod columns;
mod drive;
mod large;
mod small;
mod timing;

use serde::{Deserialize, Serialize};

pub(crate) use drive::{Job, Watch, directory_of, drive, file_bytes};

pub use columns::{Column, columns};

/// Block size in bytes, the default of bonnie++.
pub(crate) const BLOCK_BYTES: usize = 8192;
/// Duration in seconds below which bonnie++ prints no figure for a phase.
pub(crate) const BRIEF_S: f64 = 0.5;

/// A phase of a run, in execution and print order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Sequential output, per chr: writes one byte at a time.
    OutChar,
    /// Sequential output, block: writes the whole file.
    OutBlock,
    /// Rewrite: reads, changes and writes each block.
    Rewrite,
    /// Sequential input, per chr: reads one byte at a time.
    InChar,
    /// Sequential input, block: reads the whole file.
    InBlock,
    /// Random seeks by five workers; a tenth of the seeks write their block back.
    Seeks,
    /// Creates files with ascending names.
    SeqCreate,
    /// Looks up the files with ascending names, in directory order.
    SeqStat,
    /// Deletes the files with ascending names, in directory order.
    SeqDelete,
    /// Creates files with random names.
    RandomCreate,
    /// Looks up the files with random names, in random order.
    RandomStat,
    /// Deletes the files with random names, in random order.
    RandomDelete,
}

impl Phase {
    /// All phases, in execution order.
    pub const ALL: [Self; 12] = [
        Self::OutChar,
        Self::OutBlock,
        Self::Rewrite,
        Self::InChar,
        Self::InBlock,
        Self::Seeks,
        Self::SeqCreate,
        Self::SeqStat,
        Self::SeqDelete,
        Self::RandomCreate,
        Self::RandomStat,
        Self::RandomDelete,
    ];

    /// Label in reports.
    pub fn label(self) -> &'static str {
        match self {
            Self::OutChar => "sequential output per chr (write)",
            Self::OutBlock => "sequential output block (write)",
            Self::Rewrite => "rewrite (read and write)",
            Self::InChar => "sequential input per chr (read)",
            Self::InBlock => "sequential input block (read)",
            Self::Seeks => "random seeks (read, a tenth written)",
            Self::SeqCreate => "sequential create",
            Self::SeqStat => "sequential stat (read)",
            Self::SeqDelete => "sequential delete",
            Self::RandomCreate => "random create",
            Self::RandomStat => "random stat (read)",
            Self::RandomDelete => "random delete",
        }
    }

    /// Unit of the phase's rate.
    pub fn unit(self) -> &'static str {
        if self.is_bytes() { "KiB/s" } else { "per s" }
    }

    /// True if the rate counts bytes, false if it counts operations.
    pub fn is_bytes(self) -> bool {
        self < Self::Seeks
    }

    /// True if the phase reads file data, so that a cache can serve it instead of the storage.
    pub fn reads_data(self) -> bool {
        matches!(self, Self::Rewrite | Self::InChar | Self::InBlock | Self::Seeks)
    }
}

/// Result of the file test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BonnieResult {
    /// Directory in which the test created its own directory.
    pub directory: String,
    /// Size of the large file.
    pub file_bytes: u64,
    /// Memory in bytes of the machine that ran the test: an upper bound of its page cache.
    pub memory_bytes: u64,
    /// Number of small files.
    pub files: u32,
    /// Number of requested runs.
    pub runs_asked: u32,
    /// Completed runs.
    pub runs: Vec<BonnieRun>,
    /// Test conditions, for the reader of the figures.
    pub notes: Vec<String>,
    /// Reason why fewer runs than requested were completed.
    pub failure: Option<String>,
}

/// One completed run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BonnieRun {
    /// Figures of the phases, in the order of [`Phase::ALL`]. A test without small files has no
    /// figures for their phases.
    pub figures: Vec<Figure>,
    /// Number of 4 KiB blocks with wrong contents.
    pub bad_blocks: u64,
}

/// Figures of one phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// The phase.
    pub phase: Phase,
    /// KiB per second, or operations per second.
    pub rate: f64,
    /// Processor time of this process divided by elapsed time, in percent of one core.
    pub cpu_pct: f64,
    /// Longest operation in microseconds. In the per-byte phases an operation is a block.
    pub latency_us: f64,
    /// Elapsed time of the phase, in seconds.
    pub seconds: f64,
}

/// Reason why the file test did not start or stopped early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BonnieError {
    /// The target has no directory for the test.
    #[error("{address} is neither a file nor a directory; this test creates files")]
    NoDirectory {
        /// Address of the target.
        address: String,
    },
    /// The large file does not fit in the free space.
    #[error("{directory} has {free_bytes} bytes free, and the file needs {needed_bytes}")]
    NoSpace {
        /// Directory of the test.
        directory: String,
        /// Free bytes.
        free_bytes: u64,
        /// Needed bytes: the file, and the space that it must leave free.
        needed_bytes: u64,
    },
    /// A system call failed.
    #[error("{path}: {what}: {source}")]
    Io {
        /// Path of the file or directory.
        path: String,
        /// Operation that failed.
        what: &'static str,
        /// Error of the system call.
        source: std::io::Error,
    },
    /// The user cancelled the test.
    #[error("it was ended")]
    Ended,
}

#[cfg(test)]
mod tests;
