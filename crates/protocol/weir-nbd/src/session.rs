//! Runs one connection on its socket, from the greeting to the end of the connection.
//!
//! `connection` executes requests; listeners and threads are in weir-net.
//!
//! The reader task receives as many bytes as are available and runs every complete request. The
//! writer task sends the collected replies. The reader continues during a send and collects replies
//! for the next send, so a deep queue costs one receive and one send for many requests.
//!
//! Invariants:
//! - at end of input, DISC and shutdown, running requests complete and their replies are sent
//!   before the socket is closed;
//! - after end of input, DISC or shutdown, no further request runs.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::io::AsyncWriteExt;
use futures_util::future::select;
use rustix::net::Shutdown;
use rustls::ServerConfig;
use weir_block::Exports;
use weir_net::limits::{SEND_STALL_LIMIT, TURN_LIMIT};
use weir_net::{
    Address, Budget, BusyPoll, CutOff, FairQueue, Input, MemoryGrant, Outgoing, Peer, PeerKey,
    Protocol, Socket, TlsSocket, Watch, shut,
};

use crate::connection::{Connection, Queued, Ticket};
use crate::error::NbdError;
#[cfg(doc)]
use crate::limits::OWN_BYTES;
use crate::limits::{
    HANDSHAKE_LIMIT, INPUT_BYTES_MAX, PART_BYTES, PIECE_BYTES, REPLY_BYTES_MAX,
    WHOLE_WRITE_BYTES_MAX,
};
use crate::long_write::LongWrite;
use crate::negotiate::{Negotiation, Ready, Step};
use crate::request::{Command, Parsed, Refusal, parse};
use crate::wire::REQUEST_HEADER_BYTES;

/// NBD server, as the [`Protocol`] that weir-net serves.
pub struct Nbd {
    exports: Arc<dyn Exports>,
    budget: Arc<Budget>,
    tls: Option<Tls>,
    handshake_limit: Duration,
    turn_limit: Duration,
    send_limit: Duration,
}

/// TLS configuration. A server that has one requires TLS from TCP clients.
pub struct Tls {
    config: Arc<ServerConfig>,
    /// Fair queue in which clients wait for their TLS handshake.
    fair_queue: Arc<FairQueue>,
}

impl Nbd {
    /// Serves `exports`. Connections share `budget`; in addition, each connection has its own
    /// [`OWN_BYTES`].
    pub fn new(exports: Arc<dyn Exports>, budget: Arc<Budget>) -> Self {
        Self {
            exports,
            budget,
            tls: None,
            handshake_limit: HANDSHAKE_LIMIT,
            turn_limit: TURN_LIMIT,
            send_limit: SEND_STALL_LIMIT,
        }
    }

    /// Drops a client that has not finished the handshake within `limit`. The default is
    /// [`HANDSHAKE_LIMIT`].
    #[must_use]
    pub fn with_handshake_limit(self, limit: Duration) -> Self {
        Self { handshake_limit: limit, ..self }
    }

    /// Drops a client that has not finished the TLS handshake within `limit`. The default is
    /// [`TURN_LIMIT`].
    #[must_use]
    pub fn with_turn_limit(self, limit: Duration) -> Self {
        Self { turn_limit: limit, ..self }
    }

    /// Drops a client that receives no byte of a reply for `limit`. The default is
    /// [`SEND_STALL_LIMIT`].
    #[must_use]
    pub fn with_send_limit(self, limit: Duration) -> Self {
        Self { send_limit: limit, ..self }
    }

    /// Requires TLS from TCP clients.
    #[must_use]
    pub fn requiring_tls(self, tls: Arc<ServerConfig>) -> Self {
        Self { tls: Some(Tls { config: tls, fair_queue: Arc::default() }), ..self }
    }
}

impl Protocol for Nbd {
    type Error = NbdError;
    type Parked = Infallible;
    const MOVES: bool = false;
    const IDLE_GIVES_WAY: bool = true;

    fn name(&self) -> &'static str {
        "nbd"
    }

    async fn run<S: Socket>(
        &self,
        socket: S,
        peer: &Peer,
        watch: &Watch,
        _: Option<Infallible>,
    ) -> Result<Option<Infallible>, NbdError> {
        let tls = self.tls.as_ref().filter(|_| matches!(peer.local, Address::Tcp(_)));
        let tls = tls.map(|tls| (tls, peer.key, self.turn_limit));
        let seen = (&*self.exports, peer.address);
        // Create the grant before the first byte is sent, because the replies of the handshake also
        // take memory.
        let grant = self.budget.grant();
        let shaken = shake_hands(socket, seen, tls, (watch, &grant));
        let Ok(result) = compio::time::timeout(self.handshake_limit, shaken).await else {
            return Err(NbdError::HandshakeTimeout { seconds: self.handshake_limit.as_secs() });
        };
        let limit = self.send_limit;
        match result? {
            Shaken::Plain(agreed) => transmit(agreed, grant, watch, limit).await?,
            Shaken::Encrypted(agreed) => transmit(agreed, grant, watch, limit).await?,
            Shaken::Over => {}
        }
        Ok(None)
    }
}

/// A connection whose client has selected an export.
struct Agreed<S> {
    socket: S,
    input: Input,
    ready: Ready,
}

/// Result of a handshake: the client selected an export with or without TLS, or left.
enum Shaken<S> {
    Plain(Agreed<S>),
    Encrypted(Agreed<TlsSocket<S>>),
    Over,
}

/// Runs the handshake, including the TLS handshake.
async fn shake_hands<S: Socket>(
    mut socket: S,
    (exports, from): (&dyn Exports, Option<IpAddr>),
    tls: Option<(&Tls, PeerKey, Duration)>,
    held: (&Watch, &MemoryGrant),
) -> Result<Shaken<S>, NbdError> {
    let mut out = Vec::new();
    let mut negotiation = match tls {
        Some(_) => Negotiation::requiring_tls(&mut out),
        None => Negotiation::new(&mut out),
    }
    .of(from);
    let mut input = Input::new(INPUT_BYTES_MAX);
    let plain = negotiate(&mut socket, &mut input, (&mut negotiation, out), exports, held).await?;
    let (tls, peer, limit) = match (plain, tls) {
        (Outcome::StartTls, Some(tls)) => tls,
        (Outcome::Ready(ready), _) => return Ok(Shaken::Plain(Agreed { socket, input, ready })),
        (Outcome::StartTls | Outcome::Over, _) => return Ok(Shaken::Over),
    };
    // Use a new input buffer: cleartext that was already received must not become part of the
    // encrypted stream.
    drop(input);
    let turn = tls.fair_queue.wait(peer).await;
    let accept = TlsSocket::accept(socket, &tls.config);
    let Ok(accepted) = compio::time::timeout(limit, accept).await else {
        return Err(NbdError::HandshakeTimeout { seconds: limit.as_secs() });
    };
    let mut socket = accepted.map_err(|source| NbdError::Tls { source })?;
    drop(turn);
    negotiation.encrypted();
    let mut input = Input::new(INPUT_BYTES_MAX);
    let rest = (&mut negotiation, Vec::new());
    match negotiate(&mut socket, &mut input, rest, exports, held).await? {
        Outcome::Ready(ready) => Ok(Shaken::Encrypted(Agreed { socket, input, ready })),
        Outcome::StartTls | Outcome::Over => {
            socket.say_end().await;
            Ok(Shaken::Over)
        }
    }
}

/// Serves requests until the connection ends.
async fn transmit<S: Socket>(
    agreed: Agreed<S>,
    grant: MemoryGrant,
    watch: &Watch,
    send_limit: Duration,
) -> Result<(), NbdError> {
    let Agreed { mut socket, mut input, ready: Ready { export, name, negotiated } } = agreed;
    tracing::debug!(
        export = name,
        ?negotiated,
        encrypted = !S::IS_PLAIN,
        "NBD transmission begins"
    );

    let connection = Connection::new(export, negotiated, grant, watch.place());
    let _release = Release(Rc::clone(&connection));
    let cut_off = watch.until_cut_off();
    let evictor = compio::runtime::spawn(evict(socket.clone(), Rc::clone(&connection), cut_off));
    let replies = write_replies(socket.clone(), Rc::clone(&connection), send_limit);
    let writer = compio::runtime::spawn(replies);
    let read = read_requests(&mut socket, &mut input, &connection, watch).await;
    connection.flush_replies();
    while connection.has_tasks() && !connection.is_broken() {
        connection.progress.wait().await;
    }
    connection.end();
    let written = writer.await;
    drop(evictor);
    if matches!(written, Ok(Ok(()))) && !connection.is_broken() {
        socket.say_end().await;
    }
    // Requests of a broken connection may still run and use the export, so wait until they end
    // before the export is dropped.
    while connection.has_tasks() {
        connection.progress.wait().await;
    }
    match written {
        _ if connection.is_evicted() => Err(NbdError::Stalled),
        Ok(result) => read.and(result),
        Err(_) => read,
    }
}

/// Guard that ends the writer when the session ends, also if the storage panics. Otherwise the
/// writer would keep the socket open for ever.
struct Release(Rc<Connection>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Waits until the budget evicts the connection or the worker cuts it off. Then breaks the
/// connection and shuts down its socket.
async fn evict<S: Socket>(socket: S, connection: Rc<Connection>, cut_off: Rc<CutOff>) {
    select(pin!(connection.evicted()), pin!(cut_off.given())).await;
    connection.give_up();
    shut(&socket, Shutdown::Both);
}

/// Result of a negotiation.
enum Outcome {
    Ready(Ready),
    StartTls,
    /// The client ended the session.
    Over,
}

/// Sends `out`, then negotiates until the client has selected an export, begins TLS, or ends the
/// session.
async fn negotiate<S: Socket>(
    socket: &mut S,
    input: &mut Input,
    (negotiation, mut out): (&mut Negotiation, Vec<u8>),
    exports: &dyn Exports,
    (watch, grant): (&Watch, &MemoryGrant),
) -> Result<Outcome, NbdError> {
    let mut need = 0;
    loop {
        grant.hold(input.capacity() + out.capacity());
        if !out.is_empty() {
            let BufResult(result, back) = socket.write_all(out).await;
            result?;
            out = back;
            out.clear();
        }
        if need > 0 && (watch.is_stopping() || receive(socket, input, need).await? == 0) {
            let is_whole = input.pending().is_empty();
            return if is_whole { Ok(Outcome::Over) } else { Err(NbdError::Truncated) };
        }
        need = 0;
        let (used, step) = negotiation.feed(input.pending(), exports, &mut out);
        input.consume(used);
        match step {
            Step::Need(len) => need = len,
            Step::Next | Step::More => {}
            Step::Ready(ready) => {
                // Record the use of the export before the next await: a disconnect call for the
                // export must also end this session.
                watch.set_user_of(&ready.name);
                watch.end_handshake();
                socket.write_all(out).await.0?;
                return Ok(Outcome::Ready(ready));
            }
            Step::StartTls => {
                assert!(input.pending().is_empty(), "no clear text is pending before TLS");
                socket.write_all(out).await.0?;
                return Ok(Outcome::StartTls);
            }
            Step::Done => {
                // Ignore errors of this send: the client may have closed its socket without waiting
                // for the reply.
                drop(socket.write_all(out).await);
                return Ok(Outcome::Over);
            }
            Step::Close(error) => return Err(error),
        }
    }
}

/// Receives once. `need` is the length of the first message that was not processed yet, as far as
/// it is known.
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

/// Receives and runs requests until end of input, DISC, shutdown, or an invalid message.
async fn read_requests<S: Socket>(
    socket: &mut S,
    input: &mut Input,
    connection: &Rc<Connection>,
    watch: &Watch,
) -> Result<(), NbdError> {
    let rest_of_message = BusyPoll::default();
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
        let begun = long_write.is_some() || !input.pending().is_empty();
        if !begun {
            connection.idle(input);
        }
        connection.grow(input);
        let awaits_client = begun.then(|| connection.awaits_client());
        let receive = receive(socket, input, need);
        let received = if begun { rest_of_message.wait(receive).await? } else { receive.await? };
        drop(awaits_client);
        connection.received(received);
        if received == 0 {
            return if begun { Err(NbdError::Truncated) } else { Ok(()) };
        }
    }
}

enum Pending {
    /// The message is incomplete. The number is its length, as far as it is known.
    Need(usize),
    /// An invalid request. The reader discards this number of bytes, then sends the error reply.
    Skip(Refusal, usize),
    /// The session ends: no further request may run.
    End,
}

/// Runs every request that was received completely, and processes the payload of a long write as
/// far as it has arrived.
async fn run_pending(
    input: &mut Input,
    long_write: &mut Option<LongWrite>,
    connection: &Rc<Connection>,
) -> Result<Pending, NbdError> {
    loop {
        if let Some(mut write) = long_write.take() {
            if let Some(need) = write.take(input, connection).await {
                *long_write = Some(write);
                return Ok(Pending::Need(need));
            }
            if connection.is_broken() {
                return Ok(Pending::End);
            }
        }
        // A payload that does not fit into the receive buffer is processed while it arrives.
        let whole = WHOLE_WRITE_BYTES_MAX.min(input.room() - REQUEST_HEADER_BYTES);
        match parse(input.pending(), connection.negotiated(), whole) {
            Parsed::Need(need) => return Ok(Pending::Need(need)),
            Parsed::Refuse { refusal, skip } => {
                // Wait for memory, although an error reply needs little: a client may send millions
                // of invalid requests and receive no reply.
                wait_for_room(connection, 0, REPLY_BYTES_MAX).await;
                return Ok(Pending::Skip(refusal, skip));
            }
            Parsed::Close(error) => return Err(error),
            Parsed::Request(request, ..) if request.command == Command::Disconnect => {
                return Ok(Pending::End);
            }
            Parsed::LongWrite(request) => {
                wait_for_room(connection, PART_BYTES, 0).await;
                input.consume(REQUEST_HEADER_BYTES);
                *long_write = Some(LongWrite::new(request));
            }
            Parsed::Request(request, payload, used) => {
                let bytes = request.held_bytes();
                let memory = match request.command {
                    // Reserve no memory for READ and WRITE: if memory is short, the reply to a READ
                    // is sent in pieces, and a WRITE runs directly from the receive buffer.
                    Command::Read { .. } | Command::Write { .. } => 0,
                    _ => bytes,
                };
                wait_for_room(connection, bytes, memory + REPLY_BYTES_MAX).await;
                if connection.is_broken() {
                    return Ok(Pending::End);
                }
                let is_write = matches!(request.command, Command::Write { .. }) && bytes > 0;
                if is_write && !connection.may_hold(bytes) {
                    connection.write_now(request, payload).await;
                } else {
                    connection.run(request, payload);
                }
                input.consume(used);
            }
        }
    }
}

/// Waits until the connection may run a request that holds `bytes`, and has reserved `memory`
/// bytes.
async fn wait_for_room(connection: &Rc<Connection>, bytes: usize, memory: usize) {
    if !connection.has_room(bytes) {
        connection.wait_for_room(bytes).await;
    }
    connection.wait_for_memory(memory).await;
}

/// Discards `len` bytes of input. Returns false if the input ends earlier.
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

/// Sends replies as they become available, until the connection ends or breaks.
async fn write_replies<S: Socket>(
    mut socket: S,
    connection: Rc<Connection>,
    limit: Duration,
) -> Result<(), NbdError> {
    let result = loop {
        if connection.is_broken() {
            break Ok(());
        }
        let Some(next) = connection.next_send() else {
            if connection.is_over() {
                break Ok(());
            }
            connection.busy_poll().await;
            connection.to_send.wait().await;
            continue;
        };
        let sent = match next {
            Queued::Reply(outgoing, ticket) => {
                let sent = send(&mut socket, &connection, outgoing, limit).await;
                drop(ticket);
                sent
            }
            Queued::InPieces(ticket) => send_pieces(&mut socket, &connection, &ticket, limit).await,
        };
        if sent.is_err() {
            break sent;
        }
    };
    if result.is_err() || connection.is_broken() {
        connection.give_up();
        connection.discard_replies();
        shut(&socket, Shutdown::Both);
    }
    result
}

async fn send<S: Socket>(
    socket: &mut S,
    connection: &Rc<Connection>,
    outgoing: Outgoing,
    limit: Duration,
) -> Result<(), NbdError> {
    let awaits_client = connection.awaits_client();
    let moved = |bytes| connection.moved(bytes);
    let BufResult(result, outgoing) = outgoing.send(socket, limit, moved).await;
    drop(awaits_client);
    result?;
    connection.sent(outgoing);
    Ok(())
}

/// Sends the reply to a READ for whose data no memory is free: reads and sends the data in pieces,
/// with the memory of one piece.
async fn send_pieces<S: Socket>(
    socket: &mut S,
    connection: &Rc<Connection>,
    ticket: &Ticket,
    limit: Duration,
) -> Result<(), NbdError> {
    let mut at = 0;
    loop {
        let piece = connection.next_piece(ticket.request(), at).await;
        let (outgoing, is_last) = piece.map_err(|_| NbdError::HalfRead)?;
        send(socket, connection, outgoing, limit).await?;
        if is_last || connection.is_broken() {
            return Ok(());
        }
        at += PIECE_BYTES as u32;
    }
}
