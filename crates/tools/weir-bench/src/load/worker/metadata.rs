//! Metadata operations of a worker.
//!
//! `files` chooses the operations, and `worker` decides when they are sent.
//!
//! Invariant: the functions are marked as cold, so that loads of data operations are as fast as
//! without metadata operations.

use super::super::files::Outcome;
use super::super::scratch;
use super::Worker;
use crate::load::access::Choice;
use crate::spec::{Durability, OpKind};
use crate::target::{MetadataCall, MetadataOp, TargetError};

/// Bytes that the change of a file or directory adds to the written bytes before a flush: a file
/// system writes at least one block.
const CHANGE_BYTES: u64 = 4096;

impl Worker<'_> {
    /// Stores the metadata operation that was chosen last for a slot, with the contents of the file
    /// that it creates.
    #[cold]
    pub(super) fn prepare_call(&mut self, slot: usize) {
        // The chooser never chooses a flush of all changes; the worker does.
        let call = self.chooser.take_call().unwrap_or(MetadataCall::Sync);
        scratch::fill(self.ground.content, &call, self.lane.buffer(slot));
        if call.changes() {
            self.changes_unflushed += self.ground.durability.weight(CHANGE_BYTES);
        }
        self.calls[slot] = Some(call);
    }

    /// Sends the metadata operation of a slot.
    #[cold]
    pub(super) fn send_call(&mut self, slot: usize) -> Result<(), TargetError> {
        let call = self.calls[slot].expect("it was prepared");
        let durable = call.changes() && self.ground.durability == Durability::Fua;
        self.lane.submit_metadata(slot, &MetadataOp { call, durable })
    }

    /// Records the outcome of the metadata operation of a slot.
    #[cold]
    pub(super) fn settle_call(&mut self, slot: usize, choice: &Choice, is_ok: bool, in_time: bool) {
        let call = self.calls[slot].take().expect("it was sent");
        let outcome = if is_ok { Outcome::Done } else { Outcome::Failed };
        self.chooser.settle(choice.stream, &call, outcome);
        if is_ok && in_time && choice.kind == OpKind::Metadata {
            let kind = call.kind().expect("it was drawn from a mix");
            *self.tally.metadata_ops.entry(kind).or_default() += 1;
        }
    }
}
