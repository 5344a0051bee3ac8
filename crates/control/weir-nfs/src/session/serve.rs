//! Serves one connection: receives calls, runs them concurrently, and sends their replies.
//!
//! A call that needs no wait runs at once, and its reply joins the next send. Other calls become
//! tasks of the thread, so replies leave in any order.
//!
//! Invariants:
//! - every call gets its reply, unless the connection breaks;
//! - a record that is no call ends the connection;
//! - before a session moves to another thread, all its calls have ended and all replies are sent.

use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;

use compio::BufResult;
use compio::buf::{IntoInner as _, IoBuf as _};
use futures_util::future::select;
use rustix::net::Shutdown;
use weir_block::OutBuf;
use weir_fs::FileData;
use weir_net::limits::SEND_STALL_LIMIT;
use weir_net::{Budget, CutOff, Input, Peer, Protocol, Socket, Watch, shut};
use weir_nfs_wire::nfs3;
use weir_oncrpc::message::Call;
use weir_oncrpc::record::{Framed, MARK_BYTES, frame};

use super::connection::{Connection, Ticket};
use super::error::SessionError;
use crate::limits::{
    CONNECTIONS_OF_ADDRESS_MAX, DIRECTORY_BYTES_MAX, RECORD_BYTES_MAX, REPLY_BYTES,
    TRANSFER_BYTES_MAX,
};
use crate::programs::{Client, Server};

/// The protocol NFS for the threads of weir-net.
pub struct Nfs {
    server: Arc<Server>,
    budget: Arc<Budget>,
}

impl Nfs {
    /// Serves the shares of `server`. All connections share `budget`.
    pub const fn new(server: Arc<Server>, budget: Arc<Budget>) -> Self {
        Self { server, budget }
    }
}

impl Protocol for Nfs {
    type Error = SessionError;
    type Parked = Parked;
    const MOVES: bool = true;
    // A client that needs its connection again connects again, and its state is not bound to it.
    const IDLE_GIVES_WAY: bool = true;
    const PEER_CONNECTIONS_MAX: usize = CONNECTIONS_OF_ADDRESS_MAX;

    fn name(&self) -> &'static str {
        "nfs"
    }

    async fn run<S: Socket>(
        &self,
        socket: S,
        peer: &Peer,
        watch: &Watch,
        parked: Option<Parked>,
    ) -> Result<Option<Parked>, SessionError> {
        let Parked { client, input } = match parked {
            Some(parked) => parked,
            None => self.connect(peer)?,
        };
        watch.end_handshake();
        let connection = Connection::new(self.budget.grant(), watch.place());
        let _release = Release(Rc::clone(&connection));
        let cut_off = watch.until_cut_off();
        let evictor =
            compio::runtime::spawn(evict(socket.clone(), Rc::clone(&connection), cut_off));
        let writer = compio::runtime::spawn(write_replies(socket.clone(), Rc::clone(&connection)));
        let mut reader = Reader { server: Arc::clone(&self.server), client, connection, input };
        let read = reader.read_calls(socket, watch).await;
        let Reader { client, connection, mut input, .. } = reader;
        connection.flush_replies();
        while connection.has_calls() && !connection.is_broken() {
            connection.progress.wait().await;
        }
        connection.end();
        let written = writer.await;
        drop(evictor);
        // Calls of a broken connection still run and use the share.
        while connection.has_calls() {
            connection.progress.wait().await;
        }
        if connection.grant().is_evicted() {
            return Err(SessionError::Stalled);
        }
        let end = match written {
            Ok(written) => read.and_then(|end| written.map(|()| end))?,
            Err(_) => read?,
        };
        Ok(match end {
            End::AtRest => {
                // The grant of this connection, which ends here, allowed the large buffer.
                input.shrink();
                Some(Parked { client, input })
            }
            End::Over => None,
        })
    }
}

/// Session at rest, on its way to another thread.
pub struct Parked {
    client: Arc<Client>,
    /// Received bytes of a call that is not complete.
    input: Input,
}

impl Nfs {
    /// Begins the session of a new connection.
    fn connect(&self, peer: &Peer) -> Result<Parked, SessionError> {
        let address = peer.address.ok_or(SessionError::NoAddress)?;
        let client = Arc::new(self.server.connect(SocketAddr::new(address, peer.port)));
        Ok(Parked { client, input: Input::new(RECORD_BYTES_MAX + 4) })
    }
}

/// Reason why a reader stopped.
enum End {
    /// The client or the server ended the connection, or the connection broke.
    Over,
    /// The session moves to another thread.
    AtRest,
}

/// Guard that ends the writer when the session ends, also if a call panics.
struct Release(Rc<Connection>);

impl Drop for Release {
    fn drop(&mut self) {
        self.0.give_up();
    }
}

/// Breaks the connection when the budget evicts it or the worker cuts it off.
async fn evict<S: Socket>(socket: S, connection: Rc<Connection>, cut_off: Rc<CutOff>) {
    select(pin!(connection.grant().evicted()), pin!(cut_off.given())).await;
    connection.give_up();
    shut(&socket, Shutdown::Both);
}

struct Reader {
    server: Arc<Server>,
    client: Arc<Client>,
    connection: Rc<Connection>,
    input: Input,
}

impl Reader {
    /// Receives and runs calls until the end of the input, a stop, a move to another thread, or an
    /// invalid record.
    async fn read_calls<S: Socket>(
        &mut self,
        mut socket: S,
        watch: &Watch,
    ) -> Result<End, SessionError> {
        loop {
            let (need, found) = match frame(self.input.pending_mut(), RECORD_BYTES_MAX)? {
                Framed::Need { bytes, .. } => (bytes, None),
                Framed::Record { record, used } => (0, Some((record.len(), used))),
            };
            if let Some((record_bytes, used)) = found {
                let mut call = self.input.take_message(used);
                // Joining the fragments of a record leaves bytes behind it.
                call.truncate(MARK_BYTES + record_bytes);
                watch.place().used();
                watch.has_work();
                if !self.run(call).await? {
                    return Ok(End::Over);
                }
                continue;
            }
            if watch.is_stopping() || self.connection.is_broken() {
                return Ok(End::Over);
            }
            self.connection.flush_replies();
            if watch.is_to_move() {
                if self.connection.comes_to_rest().await {
                    return Ok(End::AtRest);
                }
                watch.stay();
                // The server may have stopped the session meanwhile.
                continue;
            }
            let input = &mut self.input;
            let begun = !input.pending().is_empty();
            if begun {
                if input.is_short() && self.connection.grant().take_large_input() {
                    input.grow();
                }
            } else {
                self.connection.idle();
            }
            let awaits_client = begun.then(|| self.connection.grant().awaits_client());
            let (at, limit) = input.make_room(need.min(RECORD_BYTES_MAX + 4));
            let BufResult(result, slice) = socket.read(input.take().slice(at..at + limit)).await;
            input.put_back(slice.into_inner());
            drop(awaits_client);
            let received = result?;
            self.connection.grant().moved(received);
            if received == 0 {
                return if begun { Err(SessionError::Truncated) } else { Ok(End::Over) };
            }
        }
    }

    /// Runs a call: at once, or as a task if it must wait. `marked` is a record behind a mark.
    /// Returns false if the connection broke.
    async fn run(&self, marked: Vec<u8>) -> Result<bool, SessionError> {
        let record = marked.get(MARK_BYTES..).unwrap_or_default();
        let bytes = record.len() + reply_bytes(record);
        let Some(ticket) = self.connection.ticket(bytes).await else { return Ok(false) };
        let (server, client) = (Arc::clone(&self.server), Arc::clone(&self.client));
        let mut out = self.connection.reply_buffer();
        let mut call = Box::pin(async move {
            let record = marked.get(MARK_BYTES..).unwrap_or_default();
            let data = server.answer(&client, record, &mut out).await?;
            Some((out, data))
        });
        match futures_util::poll!(&mut call) {
            Poll::Ready(Some((reply, data))) => self.connection.reply(reply, &data, ticket),
            Poll::Ready(None) => return Err(SessionError::NoCall),
            Poll::Pending => {
                let connection = Rc::clone(&self.connection);
                compio::runtime::spawn(finish(call, connection, ticket)).detach();
            }
        }
        Ok(true)
    }
}

/// Waits for a call and adds its reply to the next send.
async fn finish(
    call: impl Future<Output = Option<(OutBuf, FileData)>>,
    connection: Rc<Connection>,
    ticket: Ticket,
) {
    let (reply, data) = call.await.expect("a record that is no call needs no wait");
    connection.reply(reply, &data, ticket);
    connection.flush_replies();
}

/// Upper bound of the memory of a reply.
fn reply_bytes(record: &[u8]) -> usize {
    let Ok((call, mut input)) = Call::decode(record) else { return REPLY_BYTES };
    if (call.program, call.version) != (nfs3::PROGRAM, nfs3::VERSION) {
        return REPLY_BYTES;
    }
    let Some(procedure) = nfs3::Procedure::from_number(call.procedure) else { return REPLY_BYTES };
    let data = match procedure {
        nfs3::Procedure::Read
        | nfs3::Procedure::Readdir
        | nfs3::Procedure::Readdirplus
        | nfs3::Procedure::Readlink => nfs3::Args::decode(procedure, &mut input),
        _ => return REPLY_BYTES,
    };
    let data = match data {
        Ok(nfs3::Args::Read(args)) => args.count.min(TRANSFER_BYTES_MAX),
        Ok(nfs3::Args::Readdir(args)) => args.count.min(DIRECTORY_BYTES_MAX),
        Ok(nfs3::Args::Readdirplus(args)) => args.maxcount.min(DIRECTORY_BYTES_MAX),
        _ => 0,
    };
    REPLY_BYTES + data as usize
}

/// Sends replies as they become ready, until the connection ends or breaks.
async fn write_replies<S: Socket>(
    mut socket: S,
    connection: Rc<Connection>,
) -> Result<(), SessionError> {
    let result = loop {
        if connection.is_broken() {
            break Ok(());
        }
        let Some(next) = connection.next_send() else {
            if connection.is_over() {
                break Ok(());
            }
            connection.to_send.wait().await;
            continue;
        };
        let awaits_client = connection.grant().awaits_client();
        let moved = |bytes| connection.grant().moved(bytes);
        let BufResult(sent, outgoing) = next.send(&mut socket, SEND_STALL_LIMIT, moved).await;
        drop(awaits_client);
        connection.sent(outgoing.head);
        if let Err(error) = sent {
            break Err(error.into());
        }
    };
    if result.is_err() || connection.is_broken() {
        connection.give_up();
        shut(&socket, Shutdown::Both);
    }
    result
}
