//! Memory: what a connection holds, and requests that wait for more of it.
//!
//! Not here: how connections share it (`weir_net::Budget`), limits (`limits`).
//!
//! Invariants:
//! - memory for a request is set aside before the request is run or its payload is received;
//! - a connection that waits for memory holds none that only it could give back: so the first in
//!   the line always gets its turn;
//! - a read never waits for memory that others hold: it is answered in pieces instead;
//! - an idle connection keeps no more than [`weir_net::Share::keep_bytes`].

use std::pin::pin;

use futures_util::future::select;
use weir_block::OutBuf;
use weir_net::{AwaitsClient, Input};

use super::Connection;
use crate::limits::{ACCOUNT_BYTES, HELD_BYTES_MAX, OWN_BYTES, REQUESTS_MAX, SEND_BYTES};

impl Connection {
    /// Bytes of memory that it holds, the receive buffer not counted.
    fn memory_bytes(&self) -> usize {
        self.part_bytes.get()
            + self.task_bytes.get()
            + self.sending_bytes.get()
            + self.pool_bytes.get()
            + self.out.borrow().room()
    }

    /// Tells the budget what is held, where that changed much.
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
        self.share.hold(bytes);
    }

    /// Whether the connection's own limits allow a request that holds `bytes`.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        let waiting = self.out.borrow().len();
        let held = self.task_bytes.get() + waiting + self.sending_bytes.get();
        waiting < SEND_BYTES
            && self.task_requests.get() < REQUESTS_MAX
            && (held == 0 || held + bytes <= HELD_BYTES_MAX)
    }

    /// Waits until [`Connection::has_room`], or the connection is broken.
    pub(crate) async fn wait_for_room(&self, bytes: usize) {
        while !self.has_room(bytes) && !self.is_broken() {
            self.flush_replies();
            self.progress.wait().await;
        }
    }

    /// Whether `bytes` more may be held now.
    pub(crate) fn may_hold(&self, bytes: usize) -> bool {
        let wanted = self.memory_bytes() + bytes;
        if wanted <= self.accounted_bytes.get().max(OWN_BYTES) {
            return true;
        }
        let taken = self.share.try_take(wanted - bytes, bytes);
        if taken {
            self.accounted_bytes.set(wanted);
        }
        taken
    }

    /// Waits until `bytes` more may be held, or the connection is broken.
    pub(crate) async fn wait_for_memory(&self, bytes: usize) {
        if self.may_hold(bytes) {
            return;
        }
        while !self.is_broken() {
            // Only this connection can free these, and each send returns its buffer to the pool.
            self.give_up_pool();
            if self.out.borrow().is_empty() {
                self.out.replace(OutBuf::default());
            }
            let memory = self.memory_bytes();
            self.tell(memory);
            if self.share.ask(memory, bytes) {
                return self.tell(memory + bytes);
            }
            self.flush_replies();
            select(pin!(self.progress.wait()), pin!(self.share.wait())).await;
        }
    }

    /// The bytes of a part of a write are set aside, or no more so.
    pub(crate) fn hold_part(&self, bytes: usize) {
        self.part_bytes.set(bytes);
        self.account();
    }

    /// Lets the receive buffer grow where that saves receives and there is memory.
    pub(crate) fn grow(&self, input: &mut Input) {
        if input.is_short() && self.share.take_large_input() {
            input.grow();
        }
    }

    /// Called where nothing is left to do for now: an idle connection keeps little memory, for it
    /// is not woken when others need some.
    pub(crate) fn idle(&self, input: &mut Input) {
        if self.has_tasks() || !self.out.borrow().is_empty() {
            return;
        }
        self.share.cancel();
        let (memory, keep) = (self.memory_bytes(), self.share.keep_bytes());
        if memory + input.capacity() > keep {
            self.give_up_pool();
            self.out.replace(OutBuf::default());
            input.shrink();
            self.share.give_back_large_input();
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

    /// Marks the time until the result is dropped: the client is to send or to take something.
    pub(crate) fn awaits_client(&self) -> AwaitsClient {
        self.share.awaits_client()
    }

    /// Returns once the client holds memory that others wait for, and does not move.
    pub(crate) async fn evicted(&self) {
        self.share.evicted().await;
    }

    /// Whether the client was given up because it stalled others.
    pub(crate) fn is_evicted(&self) -> bool {
        self.share.is_evicted()
    }
}
