//! State of a running copy, from its admission until its copy result is stored.
//!
//! The commands are in `copy` and `token_copy`, queries of results in `copy_results`.
//!
//! Invariant: every admitted copy stores a copy result, unless the initiator requested none.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::lock::OwnedMutexGuard;

use crate::codec::command::Status;
use crate::codec::operation::SERVICE_ACTION;
use crate::codec::refusal::{Outcome, Refusal};
use crate::codec::sense::{Sense, key};
use crate::command::task::Task;
use crate::fields::byte;
use crate::limits::{COPIES_RUNNING_MAX, COPY_RESULTS_MAX};
use crate::unit::copies::{CopyName, CopyResult, Progress};
use crate::unit::rod_tokens::RodToken;

/// OPERATION IN PROGRESS: a running copy has this list identifier.
const IN_PROGRESS: Sense = Sense::new(key::ILLEGAL_REQUEST, 0x00, 0x16);

/// COPY ABORTED without an additional sense code. Either another nexus aborted the tasks of the
/// nexus that runs the copy, or a segment exceeds the capacity of a logical unit.
pub(crate) const ABORTED: Sense = Sense::new(key::COPY_ABORTED, 0, 0);

/// COMMAND CLEARED BY DEVICE SERVER, after COPY OPERATION ABORT.
pub(crate) const CLEARED: Sense = Sense::new(key::COPY_ABORTED, 0x2F, 0x02);

/// COPY TARGET DEVICE DATA UNDERRUN: the token represents less data than the command requests.
pub(crate) const UNDERRUN: Sense = Sense::new(key::COPY_ABORTED, 0x0D, 0x04);

/// State of a running copy.
pub(crate) struct CopyRun<'a> {
    task: &'a Task<'a>,
    name: CopyName,
    progress: Arc<Progress>,
    aborts: u64,
    _turn: Option<OwnedMutexGuard<()>>,
}

impl<'a> CopyRun<'a> {
    /// Admits a copy, unless [`COPIES_RUNNING_MAX`] copies are running or its list identifier is in
    /// use.
    pub(crate) fn begin(task: &'a Task<'a>, name: CopyName) -> Result<Self, Refusal> {
        let mut copies = task.itl_nexus.copies.lock();
        if copies.running >= COPIES_RUNNING_MAX {
            return Err(Refusal::Status(Status::Busy));
        }
        let progress = Arc::<Progress>::default();
        if let Some(list) = name.list {
            if copies.results.iter().any(|known| known.list == list && known.ended.is_none()) {
                return Err(IN_PROGRESS.into());
            }
            copies.results.retain(|known| known.list != list);
            if copies.results.len() >= COPY_RESULTS_MAX {
                let oldest = copies.results.iter().position(|known| known.ended.is_some());
                oldest.and_then(|at| copies.results.remove(at));
            }
            copies.results.push_back(CopyResult {
                list,
                action: byte(task.cdb, 1) & SERVICE_ACTION,
                is_immediate: name.is_immediate,
                progress: Arc::clone(&progress),
                ended: None,
                token: None,
            });
        }
        copies.running += 1;
        let turn = Arc::clone(&progress.turn).try_lock_owned();
        Ok(Self { task, name, progress, aborts: task.itl_nexus.aborts(), _turn: turn })
    }

    /// Returns an error if an initiator aborted the copy or the tasks of its nexus.
    pub(crate) fn check(&self) -> Result<(), Sense> {
        if self.task.itl_nexus.aborts() != self.aborts {
            return Err(ABORTED);
        }
        if self.progress.is_aborted.load(Ordering::Acquire) {
            return Err(CLEARED);
        }
        Ok(())
    }

    /// Adds copied segments and bytes to the progress of the copy.
    pub(crate) fn advance(&self, segments: u64, bytes: u64) {
        self.progress.segments.fetch_add(segments, Ordering::Relaxed);
        self.progress.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes copied so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.progress.bytes.load(Ordering::Relaxed)
    }

    /// Stores the created ROD token in the copy result.
    pub(crate) fn made(&self, token: Arc<RodToken>) {
        self.change_result(|result| result.token = Some(token));
    }

    /// Stores the outcome of the copy in the copy result, and returns the outcome of the command:
    /// GOOD if the command set IMMED.
    pub(crate) fn end(self, outcome: Outcome) -> Outcome {
        self.change_result(|result| result.ended = Some(outcome.clone()));
        if self.name.is_immediate { Ok(()) } else { outcome }
    }

    fn change_result(&self, change: impl FnOnce(&mut CopyResult)) {
        let mut copies = self.task.itl_nexus.copies.lock();
        let own = |known: &&mut CopyResult| Arc::ptr_eq(&known.progress, &self.progress);
        if let Some(result) = copies.results.iter_mut().find(own) {
            change(result);
        }
    }
}

impl Drop for CopyRun<'_> {
    fn drop(&mut self) {
        self.change_result(|result| {
            result.ended.get_or_insert_with(|| Err(ABORTED.into()));
        });
        self.task.itl_nexus.copies.lock().running -= 1;
    }
}
