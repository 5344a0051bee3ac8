//! State of a connection: its running calls, their replies and their memory.
//!
//! `serve` receives calls and sends replies.
//!
//! Invariants:
//! - memory for a call and its reply is reserved before the call runs;
//! - a send has at most `BLOCKS_OF_SEND_MAX` blocks, so that one system call accepts its parts;
//! - at most `CALLS_OF_CONNECTION_MAX` calls of a connection run, with at most
//!   `HELD_BYTES_MAX` bytes;
//! - no borrow of a buffer is held across an await.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::select;
use weir_block::{Block, OutBuf};
use weir_fs::{FileData, FilePart};
use weir_net::limits::{KEEP_BYTES_MAX, REST_LIMIT};
use weir_net::{MemoryGrant, Outgoing, Place, Signal};

use crate::limits::{
    BLOCKS_OF_SEND_MAX, CALLS_OF_CONNECTION_MAX, HELD_BYTES_MAX, OWN_BYTES, SEND_BYTES,
    SHARE_BYTES_MIN,
};
use crate::programs::{put_data, put_padding};

/// Maximum size of the buffer that a connection keeps for its next reply.
const SPARE_BYTES_MAX: usize = 4 << 10;

/// State that the reader, the writer and the calls of one connection share.
pub(super) struct Connection {
    /// Replies that wait for a send.
    out: RefCell<Replies>,
    /// Empty buffer for the next reply.
    spare: Cell<OutBuf>,
    /// Empty buffer of the last send, for the next send.
    sent: Cell<OutBuf>,
    sent_bytes: Cell<usize>,
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

/// Replies that wait for a send, as the contents of one or more sends.
#[derive(Default)]
struct Replies {
    full: VecDeque<Outgoing>,
    last: Outgoing,
}

impl Replies {
    fn is_empty(&self) -> bool {
        self.full.is_empty() && self.last.len_bytes() == 0
    }

    /// Number of bytes that wait.
    fn len_bytes(&self) -> usize {
        self.full.iter().chain([&self.last]).map(Outgoing::len_bytes).sum()
    }

    /// Memory of the waiting bytes, shared blocks included.
    fn room_bytes(&self) -> usize {
        self.full.iter().chain([&self.last]).map(Outgoing::room_bytes).sum()
    }

    fn put(&mut self, reply: &OutBuf, data: &FileData) {
        self.last.head.put(reply.filled());
        if data.len() < SHARE_BYTES_MIN {
            return put_data(data, &mut self.last.head);
        }
        for part in data.parts() {
            match part {
                FilePart::Block(block) => self.last.blocks.push(Block::clone(block)),
                // The bytes follow the blocks so far.
                FilePart::Bytes(bytes) => {
                    self.last.cut(self.last.blocks.len());
                    self.last.head.put(bytes);
                }
            }
        }
        self.last.cut(self.last.blocks.len());
        put_padding(data, &mut self.last.head);
        if self.last.blocks.len() > BLOCKS_OF_SEND_MAX / 2 {
            self.full.push_back(std::mem::take(&mut self.last));
        }
    }

    fn take(&mut self) -> Option<Outgoing> {
        self.full
            .pop_front()
            .or_else(|| (self.last.len_bytes() > 0).then(|| std::mem::take(&mut self.last)))
    }
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
            spare: Cell::default(),
            sent: Cell::default(),
            sent_bytes: Cell::new(0),
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
        self.call_bytes.get()
            + self.sending_bytes.get()
            + self.sent_bytes.get()
            + self.out.borrow().room_bytes()
    }

    fn account(&self) {
        self.grant.hold(self.memory_bytes());
    }

    fn has_room(&self, bytes: usize) -> bool {
        let waiting = self.out.borrow().len_bytes();
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
        if !self.grant.try_take(self.memory_bytes(), bytes) {
            self.wait_for_memory(bytes).await;
        }
        if self.is_broken() {
            return None;
        }
        if self.calls.replace(self.calls.get() + 1) == 0 {
            self.place.set_busy(true);
        }
        self.call_bytes.update(|held| held + bytes);
        self.account();
        Some(Ticket { connection: Rc::clone(self), bytes })
    }

    /// Waits until `bytes` more memory is reserved for the connection, or the connection is broken.
    async fn wait_for_memory(&self, bytes: usize) {
        while !self.is_broken() {
            // Other connections cannot free this memory.
            self.free_buffers();
            let memory = self.memory_bytes();
            self.grant.hold(memory);
            if self.grant.ask(memory, bytes) {
                return;
            }
            self.flush_replies();
            select(pin!(self.progress.wait()), pin!(self.grant.wait())).await;
        }
    }

    /// Returns an empty buffer for a reply.
    pub(super) fn reply_buffer(&self) -> OutBuf {
        self.spare.take()
    }

    /// Adds a reply to the next send, and ends its call. `data` follows `reply`.
    pub(super) fn reply(&self, mut reply: OutBuf, data: &FileData, ticket: Ticket) {
        self.out.borrow_mut().put(&reply, data);
        if reply.room() <= SPARE_BYTES_MAX {
            reply.truncate(0);
            self.spare.set(reply);
        }
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
        let mut out = self.out.borrow_mut();
        let next = out.take()?;
        if out.last.head.room() == 0 {
            out.last.head = self.sent.take();
            self.sent_bytes.set(0);
        }
        drop(out);
        self.sending_bytes.set(next.room_bytes());
        self.progress.notify();
        Some(next)
    }

    /// Records the end of a send, and keeps its buffer for the next one.
    pub(super) fn sent(&self, mut buffer: OutBuf) {
        self.sending_bytes.set(0);
        if buffer.room() <= KEEP_BYTES_MAX && !self.grant.is_tight() {
            buffer.truncate(0);
            self.sent_bytes.set(buffer.room());
            self.sent.set(buffer);
        }
        self.account();
        self.progress.notify();
    }

    /// Frees the buffers that have no replies.
    fn free_buffers(&self) {
        self.sent.take();
        self.sent_bytes.set(0);
        if self.out.borrow().is_empty() {
            self.out.take();
        }
    }

    /// Frees the memory of an idle connection that the budget does not guarantee.
    pub(super) fn idle(&self) {
        if self.calls.get() == 0 && self.out.borrow().is_empty() {
            self.grant.cancel();
            if self.memory_bytes() > OWN_BYTES {
                self.free_buffers();
            }
            self.account();
        }
    }

    /// Waits until all calls have ended and all replies are sent, for at most [`REST_LIMIT`].
    /// Returns false if a call or a reply is left, or the connection broke.
    pub(super) async fn comes_to_rest(&self) -> bool {
        let is_at_rest =
            || !self.has_calls() && self.out.borrow().is_empty() && self.sending_bytes.get() == 0;
        let rest = async {
            while !is_at_rest() && !self.is_broken() {
                self.flush_replies();
                self.progress.wait().await;
            }
        };
        compio::time::timeout(REST_LIMIT, rest).await.is_ok() && !self.is_broken()
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
