//! Write verifiers of a lane, and its writes that no COMMIT covers yet.
//!
//! Spec: RFC 1813 sections 3.3.7 (WRITE) and 3.3.21 (COMMIT): a server that may have lost unstable
//! data changes its verifier. The shares of one server may have different verifiers, so that each
//! file is compared with its own last verifier, as Linux does.
//!
//! Invariant: an unstable write leaves the count only when a COMMIT that was sent after the reply
//! to the write returns the verifier of the write, or when its loss is reported.

use std::collections::BTreeMap;

use weir_nfs_wire::nfs3::{StableHow, Verifier};

/// Uncommitted writes of one lane.
#[derive(Debug, Default)]
pub(super) struct Uncommitted {
    /// Last verifier of each file.
    verifiers: BTreeMap<usize, Verifier>,
    /// Number of completed unstable writes of each file.
    writes: BTreeMap<usize, u64>,
    /// Number of writes that a COMMIT in flight covers, by slot and file.
    committing: BTreeMap<(usize, usize), u64>,
}

impl Uncommitted {
    /// Records a completed WRITE to a file.
    ///
    /// # Errors
    /// The verifier changed.
    pub(super) fn wrote(
        &mut self,
        file: usize,
        committed: StableHow,
        verifier: Verifier,
    ) -> std::io::Result<()> {
        let checked = self.check(file, verifier);
        if committed == StableHow::Unstable {
            *self.writes.entry(file).or_default() += 1;
        }
        checked
    }

    /// Files with uncommitted writes, which a flush must cover. Returns the first file if there are
    /// none, so that a flush is always a call.
    pub(super) fn files(&self) -> Vec<usize> {
        if self.writes.is_empty() { vec![0] } else { self.writes.keys().copied().collect() }
    }

    /// True if no write is uncommitted.
    pub(super) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }

    /// Records that the lane sends a COMMIT of a file.
    pub(super) fn begin_commit(&mut self, slot: usize, file: usize) {
        let writes = self.writes.remove(&file).unwrap_or(0);
        self.committing.insert((slot, file), writes);
    }

    /// Records that the COMMIT of a file succeeded.
    ///
    /// # Errors
    /// The verifier changed.
    pub(super) fn committed(
        &mut self,
        slot: usize,
        file: usize,
        verifier: Verifier,
    ) -> std::io::Result<()> {
        let checked = self.check(file, verifier);
        self.committing.remove(&(slot, file));
        checked
    }

    /// Records that the COMMIT of a file failed: its writes are still uncommitted.
    pub(super) fn commit_failed(&mut self, slot: usize, file: usize) {
        if let Some(writes) = self.committing.remove(&(slot, file)).filter(|writes| *writes > 0) {
            *self.writes.entry(file).or_default() += writes;
        }
    }

    fn check(&mut self, file: usize, verifier: Verifier) -> std::io::Result<()> {
        let earlier = self.verifiers.insert(file, verifier);
        if earlier.is_none_or(|earlier| earlier == verifier) {
            return Ok(());
        }
        let mut lost = self.writes.remove(&file).unwrap_or(0);
        for ((_, other), writes) in &mut self.committing {
            if *other == file {
                lost += std::mem::take(writes);
            }
        }
        if lost == 0 {
            return Ok(());
        }
        Err(std::io::Error::other(format!(
            "the write verifier changed: the server may have lost {lost} uncommitted writes"
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSTABLE: StableHow = StableHow::Unstable;

    #[test]
    fn changed_verifier_reports_uncommitted_writes_once() {
        let mut lane = Uncommitted::default();
        for file in [0, 0, 3] {
            lane.wrote(file, UNSTABLE, [1; 8]).unwrap();
        }
        lane.wrote(5, StableHow::FileSync, [1; 8]).unwrap();
        assert_eq!(lane.files(), [0, 3]);
        let error = lane.wrote(3, UNSTABLE, [2; 8]).unwrap_err();
        assert!(error.to_string().contains("lost 1 uncommitted"), "{error}");
        lane.begin_commit(7, 0);
        let error = lane.committed(7, 0, [2; 8]).unwrap_err();
        assert!(error.to_string().contains("lost 2 uncommitted"), "{error}");
        lane.wrote(3, UNSTABLE, [2; 8]).unwrap();
        lane.begin_commit(7, 3);
        assert!(lane.committed(7, 3, [3; 8]).unwrap_err().to_string().contains("lost 2 "));
        lane.begin_commit(7, 3);
        lane.committed(7, 3, [4; 8]).unwrap();
    }

    /// Two shares with different verifiers used to count as a server that lost the writes.
    #[test]
    fn files_of_two_shares_have_their_own_verifiers() {
        let mut lane = Uncommitted::default();
        for (file, verifier) in [(0, [1; 8]), (9, [2; 8]), (0, [1; 8])] {
            lane.wrote(file, UNSTABLE, verifier).unwrap();
        }
        lane.begin_commit(0, 9);
        lane.committed(0, 9, [2; 8]).unwrap();
        assert_eq!(lane.files(), [0]);
    }

    #[test]
    fn commit_covers_only_writes_before_it() {
        let mut lane = Uncommitted::default();
        lane.wrote(1, UNSTABLE, [1; 8]).unwrap();
        lane.begin_commit(0, 1);
        lane.wrote(1, UNSTABLE, [1; 8]).unwrap();
        lane.committed(0, 1, [1; 8]).unwrap();
        assert_eq!(lane.files(), [1]);
        lane.begin_commit(0, 1);
        lane.commit_failed(0, 1);
        assert_eq!(lane.files(), [1]);
        lane.begin_commit(0, 1);
        lane.committed(0, 1, [1; 8]).unwrap();
        assert_eq!(lane.files(), [0], "still one call");
        lane.wrote(0, StableHow::DataSync, [2; 8]).unwrap();
    }
}
