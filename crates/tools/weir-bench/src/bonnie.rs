//! A file test with the fields of bonnie++ 1.96: one large file, then many small ones.
//!
//! Not here: doing it (drive, large, small), figures and verdicts over the runs (columns), what
//! bonnie++ itself published (reference).
//!
//! Where ours is another: the file holds the profile's content and what is read is checked; a byte
//! at a time is done with a few MiB only, since one MiB says as much as the next; what the page
//! cache holds of the file is dropped before each phase that reads, as far as the system lets us.
//!
//! Invariants:
//! - output is writing and input is reading, and every label says which: a published summary has
//!   them the wrong way round;
//! - the flush at the end of a phase that writes is part of its time, as in bonnie++;
//! - nothing is touched but a directory that this test made, and that is removed at its end.

mod columns;
mod drive;
mod large;
mod small;
mod timing;

use serde::{Deserialize, Serialize};

pub(crate) use drive::{Job, Watch, directory_of, drive, file_bytes};

pub use columns::{Column, columns};

/// Bytes of a block, as bonnie++ has them unless told otherwise.
pub(crate) const BLOCK_BYTES: usize = 8192;
/// Phases that bonnie++ prints no figure of: shorter ones.
pub(crate) const BRIEF_S: f64 = 0.5;

/// A phase, in the order they are done and printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Sequential output, per chr: a byte at a time is written.
    OutChar,
    /// Sequential output, block: the whole file is written.
    OutBlock,
    /// Rewrite: each block is read, changed and written.
    Rewrite,
    /// Sequential input, per chr: a byte at a time is read.
    InChar,
    /// Sequential input, block: the whole file is read.
    InBlock,
    /// Random seeks by five workers; a tenth of the blocks is written back.
    Seeks,
    /// Files are created whose names ascend.
    SeqCreate,
    /// They are looked up in the order of the directory.
    SeqStat,
    /// They are deleted in that order.
    SeqDelete,
    /// Files are created whose names have no order.
    RandomCreate,
    /// They are looked up without order.
    RandomStat,
    /// They are deleted without order.
    RandomDelete,
}

impl Phase {
    /// All of them.
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

    /// As it is printed.
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

    /// Of its rate.
    pub fn unit(self) -> &'static str {
        if self.is_bytes() { "KiB/s" } else { "per s" }
    }

    /// Whether its rate is one of bytes.
    pub fn is_bytes(self) -> bool {
        self < Self::Seeks
    }

    /// Whether a cache could answer instead of the storage.
    pub fn reads_data(self) -> bool {
        matches!(self, Self::Rewrite | Self::InChar | Self::InBlock | Self::Seeks)
    }
}

/// What came of the file test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BonnieResult {
    /// Where it was done.
    pub directory: String,
    /// Of the large file.
    pub file_bytes: u64,
    /// Of the machine that did it: what its page cache could hold.
    pub memory_bytes: u64,
    /// Small files.
    pub files: u32,
    /// Runs that were asked for.
    pub runs_asked: u32,
    /// Each whole run.
    pub runs: Vec<BonnieRun>,
    /// What must be known of it.
    pub notes: Vec<String>,
    /// Why there are fewer runs than were asked for.
    pub failure: Option<String>,
}

/// One run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct BonnieRun {
    /// In the order of [`Phase::ALL`]; without those of small files where there are none.
    pub figures: Vec<Figure>,
    /// Blocks that were not what was written.
    pub bad_blocks: u64,
}

/// What one phase gave.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Figure {
    /// Which.
    pub phase: Phase,
    /// KiB per second, or operations per second.
    pub rate: f64,
    /// Processor time of this process by time that went by, in percent of one core.
    pub cpu_pct: f64,
    /// Longest operation in microseconds: of a block, also where a byte at a time is moved.
    pub latency_us: f64,
    /// Time that went by.
    pub seconds: f64,
}

/// Why the file test was not done, or ended early.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BonnieError {
    /// There is no directory to do it in.
    #[error("{address} is no file and no directory: this test makes files")]
    NoDirectory {
        /// Of the target.
        address: String,
    },
    /// The file would not fit.
    #[error("{directory} has {free_bytes} bytes free, and the file needs {needed_bytes}")]
    NoSpace {
        /// Where.
        directory: String,
        /// What is free there.
        free_bytes: u64,
        /// What is needed.
        needed_bytes: u64,
    },
    /// The system refused something.
    #[error("{path}: {what}: {source}")]
    Io {
        /// Of the file or directory.
        path: String,
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// The user ended it.
    #[error("it was ended")]
    Ended,
}

#[cfg(test)]
mod tests;
