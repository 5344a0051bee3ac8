//! Log queue: the changes of one object that are neither logged nor committed.
//!
//! The holder of the object locks it: `state::volume` adds changes, `volume::flush` logs them, and
//! a commit settles them.
//!
//! Invariants:
//! - the queue has the changes in the order of their LSNs. Unless it skips a txg, it has every
//!   change after the last durable one;
//! - while the queue skips a txg, the flush of a change waits for the commit of that txg, so no
//!   later change is logged before this commit.

use std::collections::VecDeque;
use std::sync::Arc;

use weir_base::limits::LOG_QUEUED_BYTES_MAX;
use weir_base::{BLOCK_BYTES, Lsn, Txg};
use weir_block::Block;

use crate::objects::log_bytes::{LogBytes, LogTotal};

/// Content of a logged change.
#[derive(Clone)]
pub(crate) enum Payload {
    One(Block),
    Many(Vec<Block>),
    Zero { bytes: u64 },
}

impl Payload {
    fn queued_bytes(&self) -> u64 {
        match self {
            Self::One(_) => BLOCK_BYTES as u64,
            Self::Many(blocks) => (blocks.len() * BLOCK_BYTES) as u64,
            // Memory that the queue entry takes.
            Self::Zero { .. } => 64,
        }
    }
}

/// A change, or a part of a change, that waits for the intent log or for a commit.
#[derive(Clone)]
pub(crate) struct QueuedRecord {
    /// LSN of the change; all parts of a change have the same LSN.
    pub(crate) lsn: Lsn,
    pub(crate) txg: Txg,
    pub(crate) offset: u64,
    pub(crate) payload: Payload,
}

/// Next step of a flush.
pub(crate) enum FlushStep {
    Done,
    Commit(Txg),
    Log,
}

/// Queue of the changes of one object that are neither logged nor committed.
pub(crate) struct LogQueue {
    /// Changes not yet logged or committed, oldest first.
    records: VecDeque<QueuedRecord>,
    bytes: LogBytes,
    /// Newest txg with changes that are not in the queue. Only the commit of this txg makes these
    /// changes durable.
    skipped: Option<Txg>,
    acked: Lsn,
    /// LSN of the last change in the syncing txg.
    syncing_acked: Lsn,
    /// LSN of the last durable change; all earlier changes are durable too.
    durable: Lsn,
}

impl LogQueue {
    /// An empty queue, which adds its bytes to `total`.
    pub(crate) fn new(total: &Arc<LogTotal>) -> Self {
        Self {
            records: VecDeque::new(),
            bytes: LogBytes::new(total),
            skipped: None,
            acked: Lsn::default(),
            syncing_acked: Lsn::default(),
            durable: Lsn::default(),
        }
    }

    /// LSN of the last acknowledged change.
    pub(crate) fn acked(&self) -> Lsn {
        self.acked
    }

    /// LSN of the last durable change.
    pub(crate) fn durable(&self) -> Lsn {
        self.durable
    }

    /// True if changes are missing in the queue, so that a flush waits for a commit.
    pub(crate) fn is_skipping(&self) -> bool {
        self.skipped.is_some()
    }

    /// Begins a change: the parts that [`Self::push`] adds from here on have its LSN.
    pub(crate) fn begin_change(&mut self) {
        self.acked = Lsn(self.acked.0 + 1);
    }

    /// Queues a part of the newest change. Returns false if the queue exceeded its limit: a commit
    /// then costs less than logging, and the queue dropped all changes and skips `txg`.
    pub(crate) fn push(&mut self, txg: Txg, offset: u64, payload: Payload) -> bool {
        if self.skips(txg) {
            return true;
        }
        self.bytes.add(payload.queued_bytes());
        self.records.push_back(QueuedRecord { lsn: self.acked, txg, offset, payload });
        let fits = self.bytes.fits(LOG_QUEUED_BYTES_MAX);
        if !fits {
            self.drop_until(txg);
        }
        fits
    }

    /// Queues no change until the commit of `txg`.
    pub(crate) fn skip_until(&mut self, txg: Txg) {
        self.skipped = Some(txg);
    }

    /// Drops all changes, which releases their memory, and queues none until the commit of `txg`.
    pub(crate) fn drop_until(&mut self, txg: Txg) {
        self.records.clear();
        self.bytes.clear();
        self.skip_until(txg);
    }

    /// True if changes of `txg` are not queued.
    pub(crate) fn skips(&self, txg: Txg) -> bool {
        self.skipped == Some(txg)
    }

    /// Notes that the changes so far belong to the txg that is about to be written out.
    pub(crate) fn freeze(&mut self) {
        self.syncing_acked = self.acked;
    }

    /// Removes the changes of a txg that was committed.
    pub(crate) fn settle(&mut self, txg: Txg) {
        if self.skips(txg) {
            self.skipped = None;
        }
        self.set_durable(self.syncing_acked);
    }

    /// Records that every change up to `lsn` is durable.
    pub(crate) fn set_durable(&mut self, lsn: Lsn) {
        self.durable = self.durable.max(lsn);
        while let Some(record) = self.records.pop_front_if(|record| record.lsn <= lsn) {
            self.bytes.sub(record.payload.queued_bytes());
        }
    }

    /// Next step of a flush of all changes up to `target`.
    pub(crate) fn next_step(&self, target: Lsn) -> FlushStep {
        match self.skipped {
            _ if self.durable >= target => FlushStep::Done,
            Some(txg) => FlushStep::Commit(txg),
            None => FlushStep::Log,
        }
    }

    /// Copies queued changes from the oldest on, each with all its parts, up to the size of a
    /// batch. Copies at least one change.
    pub(crate) fn take_records(&self, room: &mut usize) -> Vec<QueuedRecord> {
        if self.skipped.is_some() {
            return Vec::new();
        }
        let mut records: Vec<QueuedRecord> = Vec::new();
        for record in &self.records {
            let bytes = record.payload.queued_bytes() as usize;
            // Only a zeroing change has several parts; the parts after the first have two blocks at
            // most.
            let is_begun = |last: &QueuedRecord| last.lsn == record.lsn;
            if bytes > *room && !records.last().is_none_or(is_begun) {
                break;
            }
            *room = room.saturating_sub(bytes);
            records.push(record.clone());
        }
        records
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_queue_is_dropped_and_a_small_one_keeps_its_changes() {
        const MAX: u64 = 8 << 20;
        let total = Arc::new(LogTotal::new(MAX));
        let block = || Payload::One(Block::copy_of(&[1; BLOCK_BYTES]));
        let mut small = LogQueue::new(&total);
        small.begin_change();
        assert!(small.push(Txg(1), 0, block()));
        let mut large = LogQueue::new(&total);
        let mut drops = 0;
        for _ in 0..3_000 {
            large.begin_change();
            drops += usize::from(!large.push(Txg(1), 0, block()));
            assert!(total.bytes() <= MAX / 2 + BLOCK_BYTES as u64);
        }
        assert_eq!(drops, 1, "the queue skips the txg once it is dropped");
        let step = large.next_step(large.acked());
        assert!(matches!(step, FlushStep::Commit(Txg(1))));
        assert!(matches!(small.next_step(small.acked()), FlushStep::Log));
        small.set_durable(small.acked());
        assert_eq!(total.bytes(), 0);
    }
}
