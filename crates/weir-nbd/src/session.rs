//! One connection from greeting to goodbye, on a socket.
//!
//! Not here: what requests do (`connection`), listening and threads (`server`).
//!
//! Two tasks: the reader receives as much as there is and runs every request in it; the writer
//! sends what replies have gathered. While a send is under way requests go on being read, and
//! replies gather for the next send, so that a deep queue costs one receive and one send for many
//! requests.
//!
//! Invariants:
//! - at the end of input, at DISC and at a stop, requests under way finish and their replies are
//!   sent before the socket is closed;
//! - no request is run after the end was reached.

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::io::AsyncWriteExt;
use rustix::net::Shutdown;
use weir_base::BLOCK_BYTES;
use weir_device::Block;
use weir_serve::limits::{INPUT_BYTES, SEND_STALL_LIMIT};
use weir_serve::{Exports, Input, Linger, Peer, Protocol, Socket, Watch, shut};

use crate::connection::Connection;
use crate::error::NbdError;
use crate::limits::{HANDSHAKE_LIMIT, INPUT_BYTES_MAX};
use crate::negotiate::{Negotiation, Ready, Step};
use crate::request::{Command, Parsed, Refusal, Request, parse};
use crate::wire::REQUEST_HEADER_BYTES;

/// The protocol, with what it offers.
pub struct Nbd(pub Arc<dyn Exports>);

impl Protocol for Nbd {
    type Error = NbdError;
    type Parked = Infallible;
    const MOVES: bool = false;

    fn name(&self) -> &'static str {
        "nbd"
    }

    async fn run<S: Socket>(
        &self,
        socket: S,
        _: &Peer,
        watch: &Watch,
        _: Option<Infallible>,
    ) -> Result<Option<Infallible>, NbdError> {
        run(socket, &*self.0, watch).await.map(|()| None)
    }
}

/// Serves one connection until it ends; must run on a compio runtime.
///
/// # Errors
/// Why the connection was dropped; `Ok` where it ended in good order.
pub async fn run<S: Socket>(
    mut socket: S,
    exports: &dyn Exports,
    watch: &Watch,
) -> Result<(), NbdError> {
    let mut input = Input::new(INPUT_BYTES_MAX);
    let shaken =
        compio::time::timeout(HANDSHAKE_LIMIT, negotiate(&mut socket, &mut input, exports, watch));
    let Ok(result) = shaken.await else {
        return Err(NbdError::HandshakeTimeout { seconds: HANDSHAKE_LIMIT.as_secs() });
    };
    let Some(Ready { export, name, terms }) = result? else {
        return Ok(());
    };
    tracing::debug!(export = name, ?terms, "NBD transmission begins");

    let connection = Connection::new(export, terms);
    let _release = Release(Rc::clone(&connection));
    let writer = compio::runtime::spawn(write_replies(socket.clone(), Rc::clone(&connection)));
    let read = read_requests(&mut socket, &mut input, &connection, watch).await;
    connection.flush_replies();
    while connection.has_tasks() && !connection.is_broken() {
        connection.progress.wait().await;
    }
    connection.end();
    let written = writer.await;
    // Storage requests of a broken connection still hold the export; they end before it does.
    while connection.has_tasks() {
        connection.progress.wait().await;
    }
    match written {
        Ok(result) => read.and(result),
        Err(_) => read,
    }
}

/// Lets the writer end however the session does, a panic of the storage included; otherwise it
/// would keep the socket open for ever.
struct Release(Rc<Connection>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// The handshake; `None` where the client said goodbye.
async fn negotiate<S: Socket>(
    socket: &mut S,
    input: &mut Input,
    exports: &dyn Exports,
    watch: &Watch,
) -> Result<Option<Ready>, NbdError> {
    let mut out = Vec::new();
    let mut negotiation = Negotiation::new(&mut out);
    let mut need = 0;
    loop {
        if !out.is_empty() {
            let BufResult(result, back) = socket.write_all(out).await;
            result?;
            out = back;
            out.clear();
        }
        if need > 0 && (watch.is_stopping() || receive(socket, input, need).await? == 0) {
            return if input.pending().is_empty() { Ok(None) } else { Err(NbdError::Truncated) };
        }
        need = 0;
        let (used, step) = negotiation.feed(input.pending(), exports, &mut out);
        input.consume(used);
        match step {
            Step::Need(len) => need = len,
            Step::Next => {}
            Step::Ready(ready) => {
                // Before anything is awaited: from here on the export is in use.
                watch.set_user_of(&ready.name);
                watch.end_handshake();
                socket.write_all(out).await.0?;
                return Ok(Some(ready));
            }
            Step::Done => {
                // A client that has closed already is welcome to: the answer is a courtesy.
                drop(socket.write_all(out).await);
                return Ok(None);
            }
            Step::Close(error) => return Err(error),
        }
    }
}

/// Receives once; `need` is the length of the message at the front, as far as known.
async fn receive<S: Socket>(
    socket: &mut S,
    input: &mut Input,
    need: usize,
) -> Result<usize, NbdError> {
    let (at, limit) = input.make_room(need);
    let BufResult(result, slice) = socket.read(input.take().slice(at..at + limit)).await;
    input.put_back(slice.into_inner());
    Ok(result?)
}

/// Receives and runs requests until the end of input, DISC, a stop, or what is no request.
async fn read_requests<S: Socket>(
    socket: &mut S,
    input: &mut Input,
    connection: &Rc<Connection>,
    watch: &Watch,
) -> Result<(), NbdError> {
    let rest_of_message = Linger::default();
    let mut long_write = None;
    loop {
        let need = match run_pending(input, &mut long_write, connection).await? {
            Pending::Need(need) => need,
            Pending::Skip(refusal, len) => {
                connection.flush_replies();
                if !skip(socket, input, len).await? {
                    return Err(NbdError::Truncated);
                }
                connection.refuse(&refusal);
                continue;
            }
            Pending::End => return Ok(()),
        };
        if watch.is_stopping() || connection.is_broken() {
            return Ok(());
        }
        connection.flush_replies();
        connection.idle();
        let begun = long_write.is_some() || !input.pending().is_empty();
        let receive = receive(socket, input, need);
        let received = if begun { rest_of_message.wait(receive).await? } else { receive.await? };
        connection.received();
        if received == 0 {
            return if begun { Err(NbdError::Truncated) } else { Ok(()) };
        }
    }
}

enum Pending {
    /// More must arrive; the message at the front is this long, as far as known.
    Need(usize),
    /// A message to refuse once this many bytes were thrown away.
    Skip(Refusal, usize),
    /// No further request is to be run.
    End,
}

/// A large write that is being received.
struct LongWrite {
    request: Request,
    blocks: Vec<Block>,
}

impl LongWrite {
    fn new(request: Request) -> Self {
        let blocks = Vec::with_capacity(request.len as usize / BLOCK_BYTES);
        Self { request, blocks }
    }

    /// Bytes that are still to come.
    fn missing(&self) -> usize {
        self.request.len as usize - self.blocks.len() * BLOCK_BYTES
    }

    /// Takes the whole blocks at the front of the input.
    fn take(&mut self, input: &mut Input) {
        let pending = input.pending();
        let (blocks, _) = pending.get(..self.missing()).unwrap_or(pending).as_chunks();
        self.blocks.extend(Block::copies_of(blocks));
        input.consume(blocks.len() * BLOCK_BYTES);
    }
}

/// Runs every whole request that was received, and takes what there is of a long write.
async fn run_pending(
    input: &mut Input,
    long_write: &mut Option<LongWrite>,
    connection: &Rc<Connection>,
) -> Result<Pending, NbdError> {
    loop {
        if let Some(mut write) = long_write.take() {
            write.take(input);
            if write.missing() > 0 {
                let need = write.missing().min(INPUT_BYTES);
                *long_write = Some(write);
                return Ok(Pending::Need(need));
            }
            if connection.is_broken() {
                return Ok(Pending::End);
            }
            connection.run_long_write(write.request, write.blocks);
        }
        match parse(input.pending(), connection.terms()) {
            Parsed::Need(need) => return Ok(Pending::Need(need)),
            Parsed::Refuse { refusal, skip } => {
                // An error reply holds little, but a client may send millions of bad requests
                // and take no reply.
                if !connection.has_room(0) {
                    connection.wait_for_room(0).await;
                }
                return Ok(Pending::Skip(refusal, skip));
            }
            Parsed::Close(error) => return Err(error),
            Parsed::Request(request, ..) if request.command == Command::Disconnect => {
                return Ok(Pending::End);
            }
            Parsed::LongWrite(request) => {
                let bytes = request.held_bytes();
                if !connection.has_room(bytes) {
                    connection.wait_for_room(bytes).await;
                }
                input.consume(REQUEST_HEADER_BYTES);
                *long_write = Some(LongWrite::new(request));
            }
            Parsed::Request(request, payload, used) => {
                let bytes = request.held_bytes();
                if !connection.has_room(bytes) {
                    connection.wait_for_room(bytes).await;
                }
                if connection.is_broken() {
                    return Ok(Pending::End);
                }
                connection.run(request, payload);
                input.consume(used);
            }
        }
    }
}

/// Throws `len` bytes away; false where the input ends before.
async fn skip<S: Socket>(socket: &mut S, input: &mut Input, len: usize) -> Result<bool, NbdError> {
    let mut left = len;
    loop {
        let here = input.pending().len().min(left);
        input.consume(here);
        left -= here;
        if left == 0 {
            return Ok(true);
        }
        if receive(socket, input, 0).await? == 0 {
            return Ok(false);
        }
    }
}

/// Sends replies as they gather.
async fn write_replies<S: Socket>(
    mut socket: S,
    connection: Rc<Connection>,
) -> Result<(), NbdError> {
    let result = loop {
        if connection.is_broken() {
            break Ok(());
        }
        let Some((outgoing, ticket)) = connection.next_send() else {
            if connection.is_over() {
                break Ok(());
            }
            connection.linger().await;
            connection.to_send.wait().await;
            continue;
        };
        let BufResult(result, outgoing) = outgoing.send(&mut socket, SEND_STALL_LIMIT).await;
        if let Err(error) = result {
            break Err(error.into());
        }
        connection.sent(outgoing);
        drop(ticket);
    };
    if result.is_err() || connection.is_broken() {
        connection.give_up();
        connection.discard_replies();
        shut(&socket, Shutdown::Both);
    }
    result
}
