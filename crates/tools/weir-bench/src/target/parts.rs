//! Open files that form the address space of a target, and the files that a flush must cover.
//!
//! `uring` and `psync` read and write the files.
//!
//! Invariant: consecutive ranges of the address space are consecutive files of equal size.

use std::collections::BTreeSet;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::error::TargetError;
use super::lane::Op;
use crate::spec::OpKind;

/// Maximum time without a completion, after which a file counts as lost, as for a server
/// ([`super::lane::ANSWER_LIMIT`]). The limit is not shorter in tests, because their disk may be
/// slow.
pub(super) const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// Open files that form the address space of one target.
pub(super) struct Files {
    /// The files in address order, each `part_bytes` long.
    pub(super) files: Vec<Arc<File>>,
    pub(super) part_bytes: u64,
}

impl Files {
    /// Index of the file that holds the byte at `offset`, and the offset within that file.
    pub(super) fn place(&self, offset: u64) -> (usize, u64) {
        ((offset / self.part_bytes) as usize, offset % self.part_bytes)
    }
}

/// Files that a lane wrote to since its last flush. A flush must cover all these files, because a
/// flush of one file does not affect the other files.
#[derive(Default)]
pub(super) struct Unflushed(BTreeSet<usize>);

impl Unflushed {
    /// Records the file that a completed write or trim changed.
    pub(super) fn note(&mut self, files: &Files, op: &Op) {
        if matches!(op.kind, OpKind::Write | OpKind::Trim) {
            self.0.insert(files.place(op.offset).0);
        }
    }

    /// Returns the files that a flush must cover, and clears the set. Returns the first file if the
    /// set is empty.
    pub(super) fn take(&mut self) -> Vec<usize> {
        if self.0.is_empty() { vec![0] } else { std::mem::take(&mut self.0).into_iter().collect() }
    }
}

/// Returns an error if [`ANSWER_LIMIT`] has passed since `answered`, the time of the file's last
/// completion.
pub(super) fn check_limit(address: &str, answered: Instant) -> Result<(), TargetError> {
    if answered.elapsed() < ANSWER_LIMIT {
        return Ok(());
    }
    let (what, seconds) = ("any operation", ANSWER_LIMIT.as_secs());
    Err(TargetError::NoAnswer { address: address.to_owned(), what, seconds })
}

/// Name of a file of the dataset, in the directory.
pub(super) fn file_name(number: u32) -> String {
    format!("weir-bench-{number:05}.dat")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flush_covers_every_file_written_since_the_last_flush() {
        let null = || Arc::new(File::open("/dev/null").expect("it is always there"));
        let files = Files { files: vec![null(), null(), null()], part_bytes: 8192 };
        let op = |kind, offset| Op { kind, offset, len_bytes: 4096, durable: false, source: 0 };
        let mut unflushed = Unflushed::default();
        unflushed.note(&files, &op(OpKind::Read, 0));
        unflushed.note(&files, &op(OpKind::Write, 20_480));
        unflushed.note(&files, &op(OpKind::Trim, 12_288));
        unflushed.note(&files, &op(OpKind::Write, 8192));
        assert_eq!(unflushed.take(), [1, 2]);
        assert_eq!(unflushed.take(), [0], "nothing was written: still one operation");
    }
}
