//! File test with the fields of bonnie++ 1.96: phases on one large file, then on many small files.
//! Runs and phases are in `drive`, `large` and `small`, figures and verdicts over all runs in
//! `columns`, published results in `reference`.
//!
//! Differences from bonnie++: the file has the content that the profile specifies, and every block
//! that is read is verified. The per-byte phases transfer at most 4 MiB, because more bytes do not
//! change the rate. Before a phase that reads, the file is dropped from the page cache if possible.
//!
//! Invariants: "output" means write and "input" means read, and every label contains "write" or
//! "read", because a published summary confused the two; the flush at the end of a phase that
//! writes counts in the phase's time, as in bonnie++; the test changes only a directory that it
//! creates at its start and removes at its end.

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
/// Shortest phase, in seconds, for which bonnie++ prints a figure.
pub(crate) const BRIEF_S: f64 = 0.5;

/// Phase of a run, in the order in which phases run and print.
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

    /// Label of the phase in reports.
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

    /// True if the rate counts bytes, false if the rate counts operations.
    pub fn is_bytes(self) -> bool {
        self < Self::Seeks
    }

    /// True if the phase reads file data, which may come from a cache instead of the storage.
    pub fn reads_data(self) -> bool {
        matches!(self, Self::Rewrite | Self::InChar | Self::InBlock | Self::Seeks)
    }
}

/// Result of the file test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BonnieResult {
    /// Directory in which the test created its own directory.
    pub directory: String,
    /// Size of the large file in bytes.
    pub file_bytes: u64,
    /// Memory in bytes of the machine that ran the test: an upper bound of its page cache.
    pub memory_bytes: u64,
    /// Number of small files.
    pub files: u32,
    /// Number of runs that the spec requests.
    pub runs_asked: u32,
    /// Runs that were completed.
    pub runs: Vec<BonnieRun>,
    /// Conditions of the test that a reader of the figures should know.
    pub notes: Vec<String>,
    /// Reason why the test completed fewer runs than requested.
    pub failure: Option<String>,
}

/// One completed run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BonnieRun {
    /// Figures of the phases, in the order of [`Phase::ALL`]. A test without small files has no
    /// figures for the phases of small files.
    pub figures: Vec<Figure>,
    /// Number of 4 KiB blocks with wrong contents.
    pub bad_blocks: u64,
}

/// Figures of one phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Phase to which the figures belong.
    pub phase: Phase,
    /// KiB per second, or operations per second (see [`Phase::unit`]).
    pub rate: f64,
    /// Processor time of this process divided by elapsed time, in percent of one core.
    pub cpu_pct: f64,
    /// Duration of the longest operation in microseconds. In the per-byte phases, the bytes of one
    /// block count as one operation.
    pub latency_us: f64,
    /// Elapsed time of the phase, in seconds.
    pub seconds: f64,
}

/// Reason why the file test did not start or stopped early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BonnieError {
    /// The target has no directory in which the test can create files.
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
        /// Number of free bytes.
        free_bytes: u64,
        /// Number of needed bytes: the large file, and the space that the file must leave free.
        needed_bytes: u64,
    },
    /// A system call failed.
    #[error("{path}: {what}: {source}")]
    Io {
        /// Path of the file or directory.
        path: String,
        /// Operation that failed.
        what: &'static str,
        /// Error that the system call returned.
        source: std::io::Error,
    },
    /// The user cancelled the test.
    #[error("it was ended")]
    Ended,
}

#[cfg(test)]
mod tests;
