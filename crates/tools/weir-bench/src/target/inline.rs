//! Lane that executes metadata operations on the thread of its worker.
//!
//! `calls` executes them on other threads, for workers with several operations in flight.
//!
//! Invariants: a worker of this lane has one operation in flight, so that no other operation waits
//! for a system call; a system call of a metadata operation has no time limit.

use std::sync::Arc;
use std::time::Instant;

use super::error::TargetError;
use super::lane::{Done, Lane, Op, Wait};
use super::metadata::MetadataOp;
use super::tree::Tree;

pub(super) struct InlineLane {
    data: Box<dyn Lane>,
    tree: Arc<Tree>,
    done: Vec<Done>,
}

impl InlineLane {
    /// Creates a lane that passes data operations to `data`.
    pub(super) fn new(data: Box<dyn Lane>, tree: Arc<Tree>) -> Self {
        Self { data, tree, done: Vec::new() }
    }
}

impl Lane for InlineLane {
    fn buffer(&mut self, slot: usize) -> &mut [u8] {
        self.data.buffer(slot)
    }

    fn submit(&mut self, slot: usize, op: &Op) -> Result<(), TargetError> {
        self.data.submit(slot, op)
    }

    fn submit_metadata(&mut self, slot: usize, op: &MetadataOp) -> Result<(), TargetError> {
        let result = self.tree.perform(op, self.data.buffer(slot));
        self.done.push(Done { slot, result, at: Instant::now() });
        Ok(())
    }

    fn reap(&mut self, wait: Wait, done: &mut Vec<Done>) -> Result<(), TargetError> {
        let wait = if self.done.is_empty() { wait } else { Wait::No };
        done.append(&mut self.done);
        self.data.reap(wait, done)
    }
}
