//! State of a connection: its running calls, their replies and their memory.
//!
//! `serve` receives calls and sends replies.
//!
//! Invariants:
//! - memory for a call and its reply is reserved before the call runs;
//! - at most `CALLS_OF_CONNECTION_MAX` calls of a connection run, with at most
//!   `HELD_BYTES_MAX` bytes;
//! - no borrow of a buffer is held across an await.

use std::cell::{Cell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::select;
use weir_block::OutBuf;
use weir_net::{MemoryGrant, Outgoing, Place, Signal};

use crate::limits::{CALLS_OF_CONNECTION_MAX, HELD_BYTES_MAX, OWN_BYTES, SEND_BYTES};

/// State that the reader, the writer and the calls of one connection share.
pub(super) struct Connection {
    /// Replies that the next send takes.
    out: RefCell<OutBuf>,
    /// Memory of the send in progress.
    sending_bytes: Cell<usize>,
    calls: Cell<usize>,
    call_bytes: Cell<usize>,
    grant: MemoryGrant,
    place: Arc<Place>,
    /// True once the connection accepts no further call.
    ended: Cell<bool>,
    /// True once the socket has failed.
    broken: Cell<bool>,
    /// Signals that a reply is ready to send, or that the session ended.
    pub(super) to_send: Signal,
    /// Signals that a send or a call completed.
    pub(super) progress: Signal,
}

/// A running call. Dropping it releases its memory.
pub(super) struct Ticket {
    connection: Rc<Connection>,
    bytes: usize,
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.calls.update(|calls| calls - 1);
        connection.call_bytes.update(|bytes| bytes - self.bytes);
        if connection.calls.get() == 0 {
            connection.place.set_busy(false);
        }
        connection.account();
        connection.progress.notify();
    }
}

impl Connection {
    pub(super) fn new(grant: MemoryGrant, place: &Arc<Place>) -> Rc<Self> {
        Rc::new(Self {
            out: RefCell::default(),
            sending_bytes: Cell::new(0),
            calls: Cell::new(0),
            call_bytes: Cell::new(0),
            grant,
            place: Arc::clone(place),
            ended: Cell::new(false),
            broken: Cell::new(false),
            to_send: Signal::default(),
            progress: Signal::default(),
        })
    }

    pub(super) const fn grant(&self) -> &MemoryGrant {
        &self.grant
    }

    /// Memory of the connection, without the receive buffer.
    fn memory_bytes(&self) -> usize {
        self.call_bytes.get() + self.sending_bytes.get() + self.out.borrow().room()
    }

    fn account(&self) {
        self.grant.hold(self.memory_bytes());
    }

    fn has_room(&self, bytes: usize) -> bool {
        let waiting = self.out.borrow().len();
        let held = self.call_bytes.get() + waiting + self.sending_bytes.get();
        waiting < SEND_BYTES
            && self.calls.get() < CALLS_OF_CONNECTION_MAX
            && (held == 0 || held + bytes <= HELD_BYTES_MAX)
    }

    /// Waits until a call with `bytes` of arguments and results may run. `None` if the connection
    /// broke.
    pub(super) async fn ticket(self: &Rc<Self>, bytes: usize) -> Option<Ticket> {
        while !self.has_room(bytes) && !self.is_broken() {
            self.flush_replies();
            self.progress.wait().await;
        }
        loop {
            if self.is_broken() {
                return None;
            }
            if self.out.borrow().is_empty() {
                self.out.replace(OutBuf::default());
            }
            let memory = self.memory_bytes();
            self.grant.hold(memory);
            if self.grant.ask(memory, bytes) {
                break;
            }
            self.flush_replies();
            select(pin!(self.progress.wait()), pin!(self.grant.wait())).await;
        }
        if self.calls.replace(self.calls.get() + 1) == 0 {
            self.place.set_busy(true);
        }
        self.call_bytes.update(|held| held + bytes);
        self.account();
        Some(Ticket { connection: Rc::clone(self), bytes })
    }

    /// Adds a reply to the next send, and ends its call.
    pub(super) fn reply(&self, reply: &OutBuf, ticket: Ticket) {
        self.out.borrow_mut().put(reply.filled());
        drop(ticket);
    }

    /// Wakes the writer if replies wait.
    pub(super) fn flush_replies(&self) {
        if !self.out.borrow().is_empty() {
            self.to_send.notify();
        }
    }

    /// Takes the replies of the next send.
    pub(super) fn next_send(&self) -> Option<Outgoing> {
        if self.out.borrow().is_empty() {
            return None;
        }
        let out = self.out.take();
        self.sending_bytes.set(out.room());
        self.progress.notify();
        Some(out.into())
    }

    /// Records the end of a send.
    pub(super) fn sent(&self) {
        self.sending_bytes.set(0);
        self.account();
        self.progress.notify();
    }

    /// Frees the memory of an idle connection that the budget does not guarantee.
    pub(super) fn idle(&self) {
        if self.calls.get() == 0 && self.out.borrow().is_empty() {
            self.grant.cancel();
            if self.memory_bytes() > OWN_BYTES {
                self.out.replace(OutBuf::default());
            }
            self.account();
        }
    }

    pub(super) fn has_calls(&self) -> bool {
        self.calls.get() > 0
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    pub(super) fn is_over(&self) -> bool {
        self.broken.get() || self.ended.get()
    }

    /// Records that the connection accepts no further call.
    pub(super) fn end(&self) {
        self.ended.set(true);
        self.to_send.notify();
    }

    /// Breaks the connection. The running calls get no reply.
    pub(super) fn give_up(&self) {
        self.broken.set(true);
        self.to_send.notify();
        self.progress.notify();
    }
}
