//! Memory of a connection: accounting, and waiting for more memory.
//!
//! `weir_net::Budget` shares memory between connections; the limits are in `limits`.
//!
//! Invariants:
//! - memory for a request is reserved before the request runs or its payload is received;
//! - a connection that waits for memory first frees all memory that it could free itself, so that
//!   the first connection in the queue always proceeds;
//! - a read never waits for memory of other connections: without memory it is sent in pieces;
//! - an idle connection keeps at most [`weir_net::MemoryGrant::keep_bytes`] of memory.

use std::pin::pin;

use futures_util::future::select;
use weir_block::OutBuf;
use weir_net::{AwaitsClient, Input};

use super::Connection;
use crate::limits::{ACCOUNT_BYTES, HELD_BYTES_MAX, OWN_BYTES, REQUESTS_MAX, SEND_BYTES};

impl Connection {
    /// Bytes of memory that the connection holds, not counting the receive buffer.
    fn memory_bytes(&self) -> usize {
        self.part_bytes.get()
            + self.task_bytes.get()
            + self.sending_bytes.get()
            + self.pool_bytes.get()
            + self.out.borrow().room()
    }

    /// Reports to the shared budget how much memory the connection holds. Does nothing after a
    /// small change ([`ACCOUNT_BYTES`]).
    pub(crate) fn account(&self) {
        let (now, told) = (self.memory_bytes(), self.accounted_bytes.get());
        if now > told.max(OWN_BYTES) {
            self.tell(now.next_multiple_of(ACCOUNT_BYTES / 4));
        } else if now + ACCOUNT_BYTES < told || now <= OWN_BYTES && told > OWN_BYTES {
            self.tell(now);
        }
    }

    fn tell(&self, bytes: usize) {
        self.accounted_bytes.set(bytes);
        self.grant.hold(bytes);
    }

    /// Returns true if the limits of the connection allow another request that holds `bytes`.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let waiting = self.out.borrow().len();
        let held = self.task_bytes.get() + waiting + self.sending_bytes.get();
        waiting < SEND_BYTES
            && self.task_requests.get() < REQUESTS_MAX
            && (held == 0 || held + bytes <= HELD_BYTES_MAX)
    }

    /// Waits until [`Connection::has_room`] returns true or the connection is broken.
    pub(crate) async fn wait_for_room(&self, bytes: usize) {
        while !self.has_room(bytes) && !self.is_broken() {
            self.flush_replies();
            self.progress.wait().await;
        }
    }

    /// Reserves `bytes` more memory if the connection and the shared budget can spare them now.
    /// Returns false and reserves nothing if they cannot.
    pub(crate) fn may_hold(&self, bytes: usize) -> bool {
        let wanted = self.memory_bytes() + bytes;
        if wanted <= self.accounted_bytes.get().max(OWN_BYTES) {
            return true;
        }
        let taken = self.grant.try_take(wanted - bytes, bytes);
        if taken {
            self.accounted_bytes.set(wanted);
        }
        taken
    }

    /// Waits until `bytes` more memory is reserved for the connection, or the connection is broken.
    pub(crate) async fn wait_for_memory(&self, bytes: usize) {
        if self.may_hold(bytes) {
            return;
        }
        while !self.is_broken() {
            // Empty the buffer pool in every pass: other connections cannot free this memory, and
            // each send puts its buffer back into the pool.
            self.give_up_pool();
            if self.out.borrow().is_empty() {
                self.out.replace(OutBuf::default());
            }
            let memory = self.memory_bytes();
            self.tell(memory);
            if self.grant.ask(memory, bytes) {
                return self.tell(memory + bytes);
            }
            self.flush_replies();
            select(pin!(self.progress.wait()), pin!(self.grant.wait())).await;
        }
    }

    /// Sets the number of bytes reserved for the current part of a long write.
    pub(crate) fn hold_part(&self, bytes: usize) {
        self.part_bytes.set(bytes);
        self.account();
    }

    /// Grows the receive buffer if the last receive filled it and the budget has memory for a large
    /// one.
    pub(crate) fn grow(&self, input: &mut Input) {
        if input.is_short() && self.grant.take_large_input() {
            input.grow();
        }
    }

    /// Frees unused memory when the reader has no more input. An idle connection keeps little
    /// memory, because the budget does not wake it when other connections need memory.
    pub(crate) fn idle(&self, input: &mut Input) {
        if self.has_tasks() || !self.out.borrow().is_empty() {
            return;
        }
        self.grant.cancel();
        let (memory, keep) = (self.memory_bytes(), self.grant.keep_bytes());
        if memory + input.capacity() > keep {
            self.give_up_pool();
            self.out.replace(OutBuf::default());
            input.shrink();
            self.grant.give_back_large_input();
        }
        if memory <= OWN_BYTES {
            return self.account();
        }
        self.tell(self.memory_bytes());
    }

    fn give_up_pool(&self) {
        self.pool.borrow_mut().clear();
        self.pool_bytes.set(0);
    }

    /// Records that the server waits for the client, until the returned value is dropped.
    pub(crate) fn awaits_client(&self) -> AwaitsClient {
        self.grant.awaits_client()
    }

    /// Waits until the budget evicts this connection: its client holds memory that other
    /// connections wait for, and transfers too little.
    pub(crate) async fn evicted(&self) {
        self.grant.evicted().await;
    }

    /// Returns true if the budget evicted this connection because its client stalled other
    /// connections.
    pub(crate) fn is_evicted(&self) -> bool {
        self.grant.is_evicted()
    }
}
