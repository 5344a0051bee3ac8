//! Answers on their way to the socket, and the buffers they are put together in.
//!
//! Not here: what answers are, and the loop that sends them (`session`).
//!
//! Invariants:
//! - answers leave in the order in which they were put in: their StatSN counts up on the wire;
//! - no borrow of a buffer is held across an await.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::VecDeque;

use weir_serve::limits::KEEP_BYTES_MAX;
use weir_serve::{OutBuf, Outgoing};

use crate::limits::{COPY_BYTES_MAX, POOL_BYTES_MAX, SEND_BYTES};

/// See the file's head.
#[derive(Default)]
pub(super) struct Outbox {
    /// For the send after those in `queue`.
    gathering: RefCell<OutBuf>,
    /// One send each, in order.
    queue: RefCell<VecDeque<Outgoing>>,
    queued_bytes: Cell<usize>,
    sending_bytes: Cell<usize>,
    /// Buffers to use again, and the room they have.
    pool: RefCell<Vec<OutBuf>>,
    pool_bytes: Cell<usize>,
}

impl Outbox {
    /// Where the next answer is to be put.
    pub(super) fn gathering(&self) -> RefMut<'_, OutBuf> {
        self.gathering.borrow_mut()
    }

    /// Bytes that wait, or are being sent.
    pub(super) fn held_bytes(&self) -> usize {
        self.gathering.borrow().len() + self.queued_bytes.get() + self.sending_bytes.get()
    }

    /// Whether enough waits for a send of its own.
    pub(super) fn is_full(&self) -> bool {
        self.gathering.borrow().len() >= SEND_BYTES
    }

    /// Whether nothing waits.
    pub(super) fn is_empty(&self) -> bool {
        self.gathering.borrow().is_empty() && self.queue.borrow().is_empty()
    }

    /// Puts in an answer that was made in a buffer of its own.
    pub(super) fn push(&self, answer: OutBuf) {
        if answer.len() <= COPY_BYTES_MAX {
            self.gathering.borrow_mut().put(answer.filled());
            return self.give_back(answer);
        }
        self.push_send(answer.into());
    }

    /// Puts in an answer that is a send of its own, behind what was gathered before it.
    pub(super) fn push_send(&self, send: Outgoing) {
        let mut queue = self.queue.borrow_mut();
        if !self.gathering.borrow().is_empty() {
            let before = self.gathering.replace(self.buffer(SEND_BYTES));
            self.queued_bytes.update(|n| n + before.len());
            queue.push_back(before.into());
        }
        self.queued_bytes.update(|n| n + send.len_bytes());
        queue.push_back(send);
    }

    /// What to send next.
    pub(super) fn next_send(&self) -> Option<Outgoing> {
        let next = match self.queue.borrow_mut().pop_front() {
            Some(queued) => {
                self.queued_bytes.update(|n| n - queued.len_bytes());
                queued
            }
            None if self.gathering.borrow().is_empty() => return None,
            None => self.gathering.replace(self.buffer(SEND_BYTES)).into(),
        };
        self.sending_bytes.set(next.len_bytes());
        Some(next)
    }

    /// Takes the memory of what was sent back.
    pub(super) fn sent(&self, sent: Outgoing) {
        self.sending_bytes.set(0);
        self.give_back(sent.head);
    }

    /// Drops answers nobody will take.
    pub(super) fn discard(&self) {
        self.queue.borrow_mut().clear();
        self.queued_bytes.set(0);
        self.gathering.borrow_mut().truncate(0);
        self.sending_bytes.set(0);
    }

    /// An empty buffer with room for `len` bytes, used before if there is one.
    pub(super) fn buffer(&self, len: usize) -> OutBuf {
        let mut pool = self.pool.borrow_mut();
        // The newest first: it is the one still in the CPU's cache.
        match pool.iter().rposition(|buffer| buffer.room() >= len) {
            Some(at) => {
                let buffer = pool.swap_remove(at);
                self.pool_bytes.update(|n| n - buffer.room());
                buffer
            }
            None => OutBuf::with_room(len),
        }
    }

    pub(super) fn give_back(&self, mut buffer: OutBuf) {
        let room = self.pool_bytes.get() + buffer.room();
        if buffer.room() <= KEEP_BYTES_MAX && room <= POOL_BYTES_MAX {
            buffer.truncate(0);
            self.pool_bytes.set(room);
            self.pool.borrow_mut().push(buffer);
        }
    }

    /// An idle connection keeps little memory.
    pub(super) fn idle(&self) {
        if self.pool_bytes.get() > KEEP_BYTES_MAX {
            self.pool.borrow_mut().clear();
            self.pool_bytes.set(0);
        }
    }
}
