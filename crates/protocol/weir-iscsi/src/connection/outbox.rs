//! Send queue of a connection, with its pool of send buffers.
//!
//! `session` has the loop that sends the responses.
//!
//! Invariants:
//! - responses leave in the order of insertion, so that StatSN increases on the wire;
//! - no task holds a borrow of a buffer across an await.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;

use weir_block::OutBuf;
use weir_net::Outgoing;
use weir_net::limits::KEEP_BYTES_MAX;

use crate::limits::{COPY_BYTES_MAX, POOL_BYTES_MAX, SEND_BYTES};

/// Send queue of a connection.
#[derive(Default)]
pub(super) struct Outbox {
    /// Responses that the writer sends after all of `queue`.
    gathering: RefCell<OutBuf>,
    /// Sends that are complete and wait for the writer, in the order of their responses.
    queue: RefCell<VecDeque<Outgoing>>,
    /// Sum of the capacities of the buffers in `queue`, and the same for the current send, however
    /// full the buffers are.
    queued_bytes: Cell<usize>,
    sending_bytes: Cell<usize>,
    /// Buffers for reuse. `pool_bytes` is the sum of their capacities.
    pool: RefCell<Vec<OutBuf>>,
    pool_bytes: Cell<usize>,
}

impl Outbox {
    /// Buffer to which the next response is appended.
    pub(super) fn gathering(&self) -> RefMut<'_, OutBuf> {
        self.gathering.borrow_mut()
    }

    /// Bytes of responses that wait for the writer or are being sent.
    pub(super) fn held_bytes(&self) -> usize {
        self.gathering.borrow().len() + self.queued_bytes.get() + self.sending_bytes.get()
    }

    /// Memory of all buffers, in bytes.
    pub(super) fn memory_bytes(&self) -> usize {
        let buffers = self.queued_bytes.get() + self.sending_bytes.get() + self.pool_bytes.get();
        self.gathering.borrow().room() + buffers
    }

    /// Returns true if the collected responses reach the size of one send ([`SEND_BYTES`]).
    pub(super) fn is_full(&self) -> bool {
        self.gathering.borrow().len() >= SEND_BYTES
    }

    /// True if no response waits for the writer.
    pub(super) fn is_empty(&self) -> bool {
        self.gathering.borrow().is_empty() && self.queue.borrow().is_empty()
    }

    /// Appends a response that has a buffer of its own: copies a short one, queues a long one.
    pub(super) fn push(&self, answer: OutBuf, is_tight: bool) {
        if answer.len() <= COPY_BYTES_MAX {
            self.gathering.borrow_mut().put(answer.filled());
            return self.give_back(answer, is_tight);
        }
        self.push_send(answer.into());
    }

    /// Queues a send of its own, after the responses that were collected so far.
    pub(super) fn push_send(&self, send: Outgoing) {
        let mut queue = self.queue.borrow_mut();
        if !self.gathering.borrow().is_empty() {
            let before = self.gathering.replace(self.spare());
            self.queued_bytes.update(|n| n + before.room());
            queue.push_back(before.into());
        }
        self.queued_bytes.update(|n| n + send.room_bytes());
        queue.push_back(send);
    }

    /// Removes and returns the next send.
    pub(super) fn next_send(&self) -> Option<Outgoing> {
        let next = match self.queue.borrow_mut().pop_front() {
            Some(queued) => {
                self.queued_bytes.update(|n| n - queued.room_bytes());
                queued
            }
            None if self.gathering.borrow().is_empty() => return None,
            None => self.gathering.replace(self.spare()).into(),
        };
        self.sending_bytes.set(next.room_bytes());
        Some(next)
    }

    /// Returns the buffer of a completed send to the buffer pool.
    pub(super) fn sent(&self, sent: Outgoing, is_tight: bool) {
        self.sending_bytes.set(0);
        self.give_back(sent.head, is_tight);
    }

    /// Drops all queued responses, because the connection can no longer send.
    pub(super) fn discard(&self) {
        self.queue.borrow_mut().clear();
        self.queued_bytes.set(0);
        self.gathering.borrow_mut().truncate(0);
        self.sending_bytes.set(0);
    }

    /// Returns an empty buffer for small responses: one from the pool, or a new growing one.
    fn spare(&self) -> OutBuf {
        let mut pool = self.pool.borrow_mut();
        let found = pool.iter().rposition(|buffer| buffer.room() <= 2 * SEND_BYTES);
        let spare = found.map(|at| pool.swap_remove(at)).unwrap_or_default();
        self.pool_bytes.update(|n| n - spare.room());
        spare
    }

    /// Returns an empty buffer with space for `len` bytes: one from the pool, or a new one.
    pub(super) fn buffer(&self, len: usize) -> OutBuf {
        let mut pool = self.pool.borrow_mut();
        let fits = |room: usize| room >= len && room <= 4 * len.max(SEND_BYTES);
        // Prefer the newest buffer: it is probably still in the CPU's cache.
        match pool.iter().rposition(|buffer| fits(buffer.room())) {
            Some(at) => {
                let buffer = pool.swap_remove(at);
                self.pool_bytes.update(|n| n - buffer.room());
                buffer
            }
            None => OutBuf::with_room(len),
        }
    }

    /// Adds a buffer to the pool, unless memory is tight.
    pub(super) fn give_back(&self, mut buffer: OutBuf, is_tight: bool) {
        let room = self.pool_bytes.get() + buffer.room();
        if !is_tight && buffer.room() <= KEEP_BYTES_MAX && room <= POOL_BYTES_MAX {
            buffer.truncate(0);
            self.pool_bytes.set(room);
            self.pool.borrow_mut().push(buffer);
        }
    }

    /// Frees the pool of an idle connection if the pool exceeds [`KEEP_BYTES_MAX`]. Returns true if
    /// it freed the pool.
    pub(super) fn idle(&self) -> bool {
        let gives_up = self.pool_bytes.get() > KEEP_BYTES_MAX;
        if gives_up {
            self.give_up_pool();
        }
        gives_up
    }

    /// Frees all buffer memory that contains no response. Returns true if it freed any.
    pub(super) fn give_up_spare(&self) -> bool {
        let before = self.memory_bytes();
        self.give_up_pool();
        let mut gathering = self.gathering.borrow_mut();
        if gathering.is_empty() {
            *gathering = OutBuf::default();
        }
        drop(gathering);
        self.memory_bytes() < before
    }

    /// Frees the pool of reusable buffers.
    pub(super) fn give_up_pool(&self) {
        self.pool.borrow_mut().clear();
        self.pool_bytes.set(0);
    }
}
