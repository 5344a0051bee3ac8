//! Transmission phase of a connection: runs requests and keeps their replies until they are sent.
//! `session` receives and sends; `request` and `reply` decode and encode.
//!
//! A request that the export can complete without waiting runs at once, and its reply goes directly
//! into the buffer of the next send. Other requests become tasks on the same thread, so replies can
//! leave in another order than the requests arrived.
//!
//! Invariants:
//! - each executed request gets one reply, unless the connection is broken;
//! - before a request runs, [`Connection::has_room`] returned true and its memory was reserved: a
//!   connection holds at most `HELD_BYTES_MAX` bytes (or one request) and `REQUESTS_MAX` requests;
//! - no task holds a borrow of a buffer across an await.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use weir_base::{ErrorKind, LINES_INTERVAL, LogLimiter};
use weir_block::{Block, Export, ExportError, OutBuf};
use weir_net::limits::KEEP_BYTES_MAX;
use weir_net::{BusyPoll, MemoryGrant, Outgoing, Place, Signal};

use crate::errno::errno;
use crate::limits::{
    BLOCK_BYTES, BUSY_POLL_REQUESTS_MAX, COPY_BYTES_MAX, EXTENTS_MAX, PIECE_BYTES, POOL_BYTES_MAX,
    SEND_BYTES, SHARE_BYTES_MAX, SHARE_BYTES_MIN,
};
use crate::reply::{self, READ_HEADER_BYTES_MAX};
use crate::request::{Command, Negotiated, Refusal, Request};
use crate::wire::Errno;

/// Log rate limiter for I/O errors of all connections: a client that reconnects may read the same
/// bad block again and again.
static FAILURES: LogLimiter<Failure> = LogLimiter::new(LINES_INTERVAL);

#[derive(PartialEq, Eq)]
enum Failure {
    Request,
    HalfWay,
}

mod memory;

/// State that the reader, the writer and the request tasks of one connection share.
pub(crate) struct Connection {
    export: Arc<dyn Export>,
    negotiated: Negotiated,
    /// Replies that the next send takes.
    out: RefCell<OutBuf>,
    /// Large replies. The writer sends each reply from the reply's own buffer, or in pieces.
    queue: RefCell<VecDeque<Queued>>,
    /// Buffers for reuse. `pool_bytes` is the sum of their capacities.
    pool: RefCell<Vec<OutBuf>>,
    pool_bytes: Cell<usize>,
    /// Bytes of memory that the send in progress holds.
    sending_bytes: Cell<usize>,
    task_requests: Cell<usize>,
    task_bytes: Cell<usize>,
    /// Bytes of memory reserved for the part of a long write that is being received.
    part_bytes: Cell<usize>,
    /// Memory grant of this connection. `accounted_bytes` is the number of bytes that the
    /// connection last reported to the shared budget.
    grant: MemoryGrant,
    accounted_bytes: Cell<usize>,
    place: Arc<Place>,
    /// True once the connection accepts no further request; the writer ends after it has sent all
    /// replies.
    ended: Cell<bool>,
    /// True once the socket has failed, or the connection cannot send the reply of a request.
    broken: Cell<bool>,
    /// Signals that a reply is ready to send, or that the session ended.
    pub(crate) to_send: Signal,
    /// Signals that a send or a request completed.
    pub(crate) progress: Signal,
    /// Three counters. `receives` counts completed receives, and `requests` counts executed
    /// requests. `requests_answered` is the value of `requests` when the writer last had nothing to
    /// send.
    receives: Cell<u64>,
    requests: Cell<u64>,
    requests_answered: Cell<u64>,
    busy_poll: BusyPoll,
}

/// Entry of the queue of large replies.
pub(crate) enum Queued {
    /// A complete reply.
    Reply(Outgoing, Option<Ticket>),
    /// A read that found no memory for its data: the writer reads and sends the data in pieces.
    InPieces(Ticket),
}

/// Request that became a task. The request counts as running until its reply was sent or copied
/// into the buffer of the next send.
pub(crate) struct Ticket {
    connection: Rc<Connection>,
    request: Request,
    bytes: usize,
    answered: bool,
}

impl Ticket {
    fn new(connection: &Rc<Connection>, request: Request, bytes: usize) -> Self {
        let shared = Rc::clone(connection);
        if shared.task_requests.replace(shared.task_requests.get() + 1) == 0 {
            shared.place.set_busy(true);
        }
        shared.task_bytes.update(|n| n + bytes);
        shared.account();
        Self { connection: shared, request, bytes, answered: false }
    }

    pub(crate) const fn request(&self) -> &Request {
        &self.request
    }

    /// Marks the request as answered: its reply is in the buffer of the next send.
    fn answered(mut self) {
        self.answered = true;
        self.connection.to_send.notify();
    }

    /// Sends the reply of a request that returns no data.
    fn finish(self, result: Result<(), ExportError>) {
        let connection = &self.connection;
        {
            let mut out = connection.out.borrow_mut();
            match result {
                Ok(()) => reply::done(&mut out, self.request.cookie),
                Err(error) => connection.fail(&mut out, &self.request, &error),
            }
        }
        self.answered();
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let connection = &self.connection;
        connection.task_requests.update(|n| n - 1);
        connection.task_bytes.update(|n| n - self.bytes);
        if connection.task_requests.get() == 0 {
            connection.place.set_busy(false);
        }
        connection.account();
        if !self.answered {
            // The task was dropped or panicked, so nothing will answer the request. End the
            // connection; otherwise the client waits for ever.
            connection.give_up();
        }
        connection.progress.notify();
    }
}

impl Connection {
    pub(crate) fn new(
        export: Arc<dyn Export>,
        negotiated: Negotiated,
        grant: MemoryGrant,
        place: &Arc<Place>,
    ) -> Rc<Self> {
        Rc::new(Self {
            export,
            negotiated,
            out: RefCell::default(),
            queue: RefCell::default(),
            pool: RefCell::default(),
            pool_bytes: Cell::new(0),
            sending_bytes: Cell::new(0),
            task_requests: Cell::new(0),
            task_bytes: Cell::new(0),
            part_bytes: Cell::new(0),
            grant,
            accounted_bytes: Cell::new(0),
            place: Arc::clone(place),
            ended: Cell::new(false),
            broken: Cell::new(false),
            to_send: Signal::default(),
            progress: Signal::default(),
            requests: Cell::new(0),
            receives: Cell::new(0),
            requests_answered: Cell::new(0),
            busy_poll: BusyPoll::default(),
        })
    }

    pub(crate) const fn negotiated(&self) -> &Negotiated {
        &self.negotiated
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.broken.get()
    }

    /// Returns true if a request waits for the storage, or a large reply is not completely sent
    /// yet.
    pub(crate) fn has_tasks(&self) -> bool {
        self.task_requests.get() > 0
    }

    /// Breaks the connection. The requests in progress get no reply.
    pub(crate) fn give_up(&self) {
        self.broken.set(true);
        self.to_send.notify();
        self.progress.notify();
    }

    /// Records that the connection accepts no further request.
    pub(crate) fn end(&self) {
        self.ended.set(true);
        self.to_send.notify();
    }

    /// Wakes the writer if replies wait.
    pub(crate) fn flush_replies(&self) {
        if !self.out.borrow().is_empty() {
            self.to_send.notify();
        }
    }

    // --- used by the writer ---

    /// Takes the next send: a large reply, or all small replies. The writer drops the ticket of a
    /// large reply after sending the reply.
    pub(crate) fn next_send(&self) -> Option<Queued> {
        let queued = self.queue.borrow_mut().pop_front();
        let next = match queued {
            Some(queued) => queued,
            None if self.out.borrow().is_empty() => return None,
            None => Queued::Reply(self.out.replace(self.spare()).into(), None),
        };
        // Count the buffer of small replies here. The ticket of a large reply already counts its
        // memory.
        self.sending_bytes.set(match &next {
            Queued::Reply(outgoing, None) => outgoing.head.room(),
            Queued::Reply(..) => 0,
            Queued::InPieces(_) => PIECE_BYTES,
        });
        self.progress.notify();
        Some(next)
    }

    /// Reads the next piece of a read that is sent in pieces. The piece starts `at` bytes after the
    /// start of the read. Returns the piece, and whether it is the last one.
    ///
    /// # Errors
    /// The read failed after the reply began, and the reply has no way to report the error.
    pub(crate) async fn next_piece(
        &self,
        request: &Request,
        at: u32,
    ) -> Result<(Outgoing, bool), ExportError> {
        let Request { cookie, offset, len, command } = *request;
        let in_parts = self.negotiated.structured && command == Command::Read { whole: false };
        let piece = (len - at).min(PIECE_BYTES as u32);
        let is_last = at + piece == len;
        let mut buffer = self.buffer(READ_HEADER_BYTES_MAX + piece as usize);
        if in_parts {
            reply::read_part(&mut buffer, cookie, offset + u64::from(at), piece, is_last);
        } else if at == 0 {
            reply::read_header(&mut buffer, &self.negotiated, cookie, offset, len);
        }
        let space = buffer.space(piece as usize);
        match self.export.read(offset + u64::from(at), space).await {
            Ok(()) => Ok((buffer.into(), is_last)),
            Err(error) if in_parts || at == 0 => {
                buffer.truncate(0);
                self.fail(&mut buffer, request, &error);
                Ok((buffer.into(), true))
            }
            Err(error) => {
                // The reply header has already announced the full length of the data, so the
                // connection must end.
                if let Some(more) = FAILURES.pass(Failure::HalfWay) {
                    tracing::warn!(
                        ?request, %error, more,
                        "NBD connection ends: a read failed after a part of it was sent"
                    );
                }
                Err(error)
            }
        }
    }

    /// Busy polls for the next request, if the client sends one request at a time. The writer calls
    /// this function when it has nothing to send.
    pub(crate) async fn busy_poll(&self) {
        let requests = self.requests.get();
        let answered = self.requests_answered.replace(requests);
        if requests - answered > BUSY_POLL_REQUESTS_MAX || self.has_tasks() {
            return;
        }
        let receives = self.receives.get();
        self.busy_poll
            .while_quiet(|| self.receives.get() == receives && !self.to_send.is_set())
            .await;
    }

    /// Returns the buffer of a completed send to the buffer pool.
    pub(crate) fn sent(&self, outgoing: Outgoing) {
        self.sending_bytes.set(0);
        self.give_back(outgoing.head);
        self.account();
    }

    /// Counts bytes that the connection sent or received.
    pub(crate) fn moved(&self, bytes: usize) {
        self.grant.moved(bytes);
    }

    fn give_back(&self, mut buffer: OutBuf) {
        let room = self.pool_bytes.get() + buffer.room();
        if buffer.room() <= KEEP_BYTES_MAX && room <= POOL_BYTES_MAX && !self.grant.is_tight() {
            buffer.truncate(0);
            self.pool_bytes.set(room);
            self.pool.borrow_mut().push(buffer);
        }
        self.progress.notify();
    }

    /// Returns true if the connection has ended or is broken, so that the writer can end once it
    /// has nothing to send.
    pub(crate) fn is_over(&self) -> bool {
        self.broken.get() || self.ended.get()
    }

    /// Drops all queued replies, because the connection can no longer send.
    pub(crate) fn discard_replies(&self) {
        let queue = std::mem::take(&mut *self.queue.borrow_mut());
        drop(queue);
        self.out.borrow_mut().truncate(0);
        self.sending_bytes.set(0);
    }

    /// Returns an empty buffer for small replies: one from the pool, or a new growing one.
    fn spare(&self) -> OutBuf {
        let mut pool = self.pool.borrow_mut();
        let found = pool.iter().rposition(|buffer| buffer.room() <= 2 * SEND_BYTES);
        let spare = found.map(|at| pool.swap_remove(at)).unwrap_or_default();
        self.pool_bytes.update(|n| n - spare.room());
        spare
    }

    /// Returns an empty buffer with space for `len` bytes: one from the pool, or a new one.
    fn buffer(&self, len: usize) -> OutBuf {
        let mut pool = self.pool.borrow_mut();
        // Prefer the newest buffer: it is probably still in the CPU's cache.
        match pool.iter().rposition(|buffer| buffer.room() >= len) {
            Some(at) => {
                let buffer = pool.swap_remove(at);
                self.pool_bytes.update(|n| n - buffer.room());
                buffer
            }
            None => OutBuf::with_room(len),
        }
    }

    // --- used by the reader ---

    /// Counts a completed receive.
    pub(crate) fn received(&self, bytes: usize) {
        self.grant.moved(bytes);
        self.place.used();
        self.receives.update(|n| n + 1);
        self.busy_poll.end();
    }

    // --- running requests ---

    /// Sends the error reply of a request that must not run.
    pub(crate) fn refuse(&self, refusal: &Refusal) {
        let Refusal { cookie, errno, why } = *refusal;
        tracing::debug!(?errno, why, "NBD request refused");
        reply::error(&mut self.out.borrow_mut(), &self.negotiated, cookie, errno, why);
    }

    /// Runs a request: replies at once, or starts a task that sends the reply later.
    pub(crate) fn run(self: &Rc<Self>, request: Request, payload: &[u8]) {
        self.requests.update(|n| n + 1);
        match request.command {
            Command::Read { .. } => self.read(request),
            Command::Flush => self.start_flush(request),
            Command::BlockStatus { one } => self.start_block_status(request, one),
            // The session ends at DISC and does not pass it to this function.
            Command::Disconnect => {}
            _ if request.len == 0 => self.done(request),
            Command::Write { .. } => self.write(request, payload),
            Command::Zero { punch, fua, fast } => {
                if fast && !self.export.zero_is_fast(punch) {
                    let why = "zeroing would not be fast";
                    let cookie = request.cookie;
                    self.refuse(&Refusal { cookie, errno: Errno::NotSup, why });
                } else {
                    self.zero(request, punch, fua);
                }
            }
            Command::Cache => self.start_cache(request),
        }
    }

    fn done(&self, request: Request) {
        reply::done(&mut self.out.borrow_mut(), request.cookie);
    }

    fn read(self: &Rc<Self>, request: Request) {
        let Request { cookie, offset, len, .. } = request;
        if len > 0 && !self.may_hold(len as usize) {
            let mut ticket = Ticket::new(self, request, 0);
            ticket.answered = true;
            self.queue.borrow_mut().push_back(Queued::InPieces(ticket));
            return self.to_send.notify();
        }
        if (SHARE_BYTES_MIN..=SHARE_BYTES_MAX).contains(&len) && self.share_blocks(request) {
            return;
        }
        if len as usize > SEND_BYTES {
            return self.start_read(request);
        }
        let mut out = self.out.borrow_mut();
        let mark = out.len();
        reply::read_header(&mut out, &self.negotiated, cookie, offset, len);
        if len == 0 {
            return;
        }
        match self.export.try_read(offset, out.space(len as usize)) {
            Ok(true) => {}
            Ok(false) => {
                out.truncate(mark);
                // The task uses another buffer, and its ticket counts the memory of that buffer.
                drop(out);
                self.start_read(request);
            }
            Err(error) => {
                out.truncate(mark);
                self.fail(&mut out, &request, &error);
            }
        }
    }

    /// Answers a large read with blocks from the export's cache, without a copy. Returns false if
    /// the export cannot share the blocks.
    fn share_blocks(self: &Rc<Self>, request: Request) -> bool {
        let Request { cookie, offset, len, .. } = request;
        let block = u64::from(BLOCK_BYTES);
        if !offset.is_multiple_of(block) || !u64::from(len).is_multiple_of(block) {
            return false;
        }
        let mut blocks = Vec::with_capacity((len / BLOCK_BYTES) as usize);
        // On an error, the regular read path gets the same error again and reports it.
        if !self.export.try_share(offset, u64::from(len), &mut blocks).unwrap_or(false) {
            return false;
        }
        let mut ticket = Ticket::new(self, request, len as usize);
        ticket.answered = true;
        let mut head = self.buffer(READ_HEADER_BYTES_MAX);
        reply::read_header(&mut head, &self.negotiated, cookie, offset, len);
        let reply = Outgoing::new(head, blocks);
        self.queue.borrow_mut().push_back(Queued::Reply(reply, Some(ticket)));
        self.to_send.notify();
        true
    }

    fn start_read(self: &Rc<Self>, request: Request) {
        let mut ticket = Ticket::new(self, request, request.len as usize);
        let connection = Rc::clone(self);
        spawn(async move {
            let Request { cookie, offset, len, .. } = request;
            let mut buffer = connection.buffer(READ_HEADER_BYTES_MAX + len as usize);
            reply::read_header(&mut buffer, &connection.negotiated, cookie, offset, len);
            let space = buffer.space(len as usize);
            if let Err(error) = connection.export.read(offset, space).await {
                return ticket.finish(Err(error));
            }
            ticket.answered = true;
            if connection.is_broken() {
                // No writer will send the reply, and a reply in the queue would keep its ticket for
                // ever.
                return;
            }
            if buffer.len() > COPY_BYTES_MAX {
                let reply = Queued::Reply(buffer.into(), Some(ticket));
                connection.queue.borrow_mut().push_back(reply);
            } else {
                connection.out.borrow_mut().put(buffer.filled());
                connection.give_back(buffer);
            }
            connection.to_send.notify();
        });
    }

    fn write(self: &Rc<Self>, request: Request, payload: &[u8]) {
        let taken = self.export.try_write(request.offset, payload);
        self.finish_write(request, taken, || {
            let data = payload.to_vec();
            let connection = Rc::clone(self);
            async move { connection.export.write(request.offset, &data).await }
        });
    }

    /// Runs a write directly from the receive buffer, because there is no memory for a copy of its
    /// payload. The reader waits until the write completes and receives nothing meanwhile.
    pub(crate) async fn write_now(self: &Rc<Self>, request: Request, payload: &[u8]) {
        self.requests.update(|n| n + 1);
        match self.write_bytes_part(request.offset, payload).await {
            Ok(()) if request.command == (Command::Write { fua: true }) => {
                self.start_flush(request);
            }
            Ok(()) => self.done(request),
            Err(error) => self.fail_request(&request, &error),
        }
    }

    /// Writes one part of a long write. [`Self::run_long_write`] writes the last part.
    pub(crate) async fn write_part(
        &self,
        offset: u64,
        mut blocks: Vec<Block>,
    ) -> Result<(), ExportError> {
        if self.export.try_write_blocks(offset, &mut blocks)? {
            return Ok(());
        }
        self.export.write_blocks(offset, blocks).await
    }

    /// Like [`Self::write_part`], for a part that does not consist of whole blocks.
    pub(crate) async fn write_bytes_part(
        &self,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), ExportError> {
        if self.export.try_write(offset, bytes)? {
            return Ok(());
        }
        self.export.write(offset, bytes).await
    }

    /// Sends the error reply of a long write after one of its parts failed.
    pub(crate) fn fail_request(&self, request: &Request, error: &ExportError) {
        self.fail(&mut self.out.borrow_mut(), request, error);
    }

    /// Writes the last part of a long write, whose data is in `blocks`, and replies to the write.
    pub(crate) fn run_long_write(self: &Rc<Self>, request: Request, mut blocks: Vec<Block>) {
        self.requests.update(|n| n + 1);
        let taken = self.export.try_write_blocks(request.offset, &mut blocks);
        self.finish_write(request, taken, || {
            let connection = Rc::clone(self);
            async move { connection.export.write_blocks(request.offset, blocks).await }
        });
    }

    /// Like [`Self::run_long_write`], for a part that does not consist of whole blocks.
    pub(crate) fn run_long_bytes(self: &Rc<Self>, request: Request, data: Vec<u8>) {
        self.requests.update(|n| n + 1);
        let taken = self.export.try_write(request.offset, &data);
        self.finish_write(request, taken, || {
            let connection = Rc::clone(self);
            async move { connection.export.write(request.offset, &data).await }
        });
    }

    /// Replies to a write. `taken` is true if the export has already completed the write; otherwise
    /// runs `rest` as a task, which replies.
    fn finish_write<W: Future<Output = Result<(), ExportError>> + 'static>(
        self: &Rc<Self>,
        request: Request,
        taken: Result<bool, ExportError>,
        rest: impl FnOnce() -> W,
    ) {
        let fua = request.command == Command::Write { fua: true };
        match taken {
            Ok(true) if fua => self.start_flush(request),
            Ok(true) => self.done(request),
            Ok(false) => {
                let ticket = Ticket::new(self, request, request.len as usize);
                let connection = Rc::clone(self);
                let rest = rest();
                spawn(async move {
                    let mut result = rest.await;
                    if fua && result.is_ok() {
                        result = connection.export.flush().await;
                    }
                    ticket.finish(result);
                });
            }
            Err(error) => self.fail(&mut self.out.borrow_mut(), &request, &error),
        }
    }

    fn zero(self: &Rc<Self>, request: Request, punch: bool, fua: bool) {
        let len_bytes = u64::from(request.len);
        match self.export.try_zero(request.offset, len_bytes, punch) {
            Ok(true) if fua => self.start_flush(request),
            Ok(true) => self.done(request),
            Ok(false) => {
                let ticket = Ticket::new(self, request, 0);
                let connection = Rc::clone(self);
                spawn(async move {
                    let mut result = connection.export.zero(request.offset, len_bytes, punch).await;
                    if fua && result.is_ok() {
                        result = connection.export.flush().await;
                    }
                    ticket.finish(result);
                });
            }
            Err(error) => self.fail(&mut self.out.borrow_mut(), &request, &error),
        }
    }

    /// Flushes the export, for FLUSH and for writes with FUA. A flush makes all earlier writes
    /// durable, and so also the write that has FUA set.
    fn start_flush(self: &Rc<Self>, request: Request) {
        let ticket = Ticket::new(self, request, 0);
        let connection = Rc::clone(self);
        spawn(async move { ticket.finish(connection.export.flush().await) });
    }

    fn start_cache(self: &Rc<Self>, request: Request) {
        let ticket = Ticket::new(self, request, 0);
        let connection = Rc::clone(self);
        spawn(async move {
            let len_bytes = u64::from(request.len);
            ticket.finish(connection.export.cache(request.offset, len_bytes).await);
        });
    }

    fn start_block_status(self: &Rc<Self>, request: Request, one: bool) {
        let max = if one { 1 } else { EXTENTS_MAX };
        let ticket = Ticket::new(self, request, request.held_bytes());
        let connection = Rc::clone(self);
        spawn(async move {
            let Request { cookie, offset, len, .. } = request;
            let extents = match connection.export.extents(offset, u64::from(len), max).await {
                Ok(extents) => extents,
                Err(error) => return ticket.finish(Err(error)),
            };
            let some =
                reply::block_status(&mut connection.out.borrow_mut(), cookie, len, max, &extents);
            if !some {
                let error = ExportError::new(ErrorKind::Internal, "no extents found");
                return ticket.finish(Err(error));
            }
            ticket.answered();
        });
    }

    fn fail(&self, out: &mut OutBuf, request: &Request, error: &ExportError) {
        let errno = errno(error.kind());
        // Log only storage errors as warnings: invalid requests of a client would use up the log
        // lines that the rate limiter allows.
        let told = if errno == Errno::Io { FAILURES.pass(Failure::Request) } else { None };
        match told {
            Some(more) => tracing::warn!(?request, %error, more, "NBD request failed"),
            None => tracing::debug!(?request, %error, "NBD request failed"),
        }
        reply::error(out, &self.negotiated, request.cookie, errno, &error.to_string());
    }
}

fn spawn(work: impl Future<Output = ()> + 'static) {
    compio::runtime::spawn(work).detach();
}
