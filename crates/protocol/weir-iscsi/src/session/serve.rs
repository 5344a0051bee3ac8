//! Runs one connection on its socket, from login to logout.
//!
//! `connection` executes requests, `login` has the rules of the login phase, weir-net the threads.
//! The reader task receives as many bytes as are available and processes every complete PDU. The
//! writer task sends the collected responses. The reader continues during a send, so a deep queue
//! costs one receive and one send for many commands.
//!
//! Invariants:
//! - at end of input, logout and shutdown, running commands complete and their responses are sent
//!   before the socket is closed;
//! - after end of input, logout or shutdown, the reader accepts no request;
//! - a session moves to another thread only at rest: no request is in progress.

use std::cell::Cell;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::io::AsyncWriteExt;
use rustix::net::Shutdown;
use weir_block::OutBuf;
use weir_iscsi_wire::Status;
use weir_iscsi_wire::limits::LOGIN_DATA_BYTES_MAX;
use weir_iscsi_wire::pdu::{self, Digests, Framed, Header, LoginResponse, Pdu, opcode};
use weir_net::limits::{DRAIN_LIMIT, STALL_CHECK};
use weir_net::{
    Budget, BusyPoll, Input, MemoryGrant, Peer, Protocol, SendBuf, Socket, Watch, shut, yield_now,
};

use crate::connection::state::{Connection, Flow, Parts};
use crate::error::IscsiError;
use crate::limits::{
    COMMANDS_MAX, DISCOVERY_LIMIT, INPUT_BYTES_MAX, LOGIN_LIMIT, RECEIVE_DATA_BYTES_MAX,
    RECEIVE_DATA_BYTES_MIN, TURN_PDUS,
};
use crate::login::phases::{Login, Purpose, Ready, Step, refused};
use crate::target::auth_throttle::AuthThrottle;
use crate::target::denial::Denial;
use crate::target::session_table::Entrant;
use crate::target::targets::Targets;

/// StatSN of the first response.
const FIRST_STAT_SN: u32 = 1;

/// iSCSI target, as the [`Protocol`] that weir-net serves.
pub struct Iscsi {
    targets: Arc<dyn Targets>,
    budget: Arc<Budget>,
    auth_throttle: AuthThrottle,
    login_limit: Duration,
    discovery_limit: Duration,
}

impl Iscsi {
    /// Serves `targets`. Connections share `budget`; in addition, each connection has the bytes of
    /// [`OWN`](crate::limits::OWN) without a request to the budget.
    pub fn new(targets: Arc<dyn Targets>, budget: Arc<Budget>) -> Self {
        Self {
            targets,
            budget,
            auth_throttle: AuthThrottle::default(),
            login_limit: LOGIN_LIMIT,
            discovery_limit: DISCOVERY_LIMIT,
        }
    }

    /// Drops an initiator that has not logged in within `limit`. The default is [`LOGIN_LIMIT`].
    #[must_use]
    pub fn with_login_limit(self, limit: Duration) -> Self {
        Self { login_limit: limit, ..self }
    }

    /// Ends a discovery session after `limit`. The default is [`DISCOVERY_LIMIT`].
    #[must_use]
    pub fn with_discovery_limit(self, limit: Duration) -> Self {
        Self { discovery_limit: limit, ..self }
    }
}

impl Protocol for Iscsi {
    type Error = IscsiError;
    type Parked = Parked;
    const MOVES: bool = true;
    // Initiators ping idle sessions, and mounted file systems fail if their session is lost, so a
    // new connection never evicts an idle session.
    const IDLE_GIVES_WAY: bool = false;

    fn name(&self) -> &'static str {
        "iscsi"
    }

    async fn run<S: Socket>(
        &self,
        socket: S,
        peer: &Peer,
        watch: &Watch,
        parked: Option<Parked>,
    ) -> Result<Option<Parked>, IscsiError> {
        let mut wire = Wire { socket, input: Input::new(INPUT_BYTES_MAX) };
        if let Some(Parked { parts, received }) = parked {
            if parts.grant.take_large_input() {
                wire.input.grow();
            }
            wire.input.put_back(received);
            return self.serve(wire, Connection::new(*parts), watch).await;
        }
        let Self { targets, budget, auth_throttle, login_limit, .. } = self;
        let side = Side { targets, budget, auth_throttle, watch };
        let login = compio::time::timeout(*login_limit, log_in(&mut wire, side, peer));
        let Ok(result) = login.await else {
            return Err(IscsiError::LoginTimeout { seconds: login_limit.as_secs() });
        };
        let Some(connection) = result? else { return Ok(None) };
        if !connection.is_discovery() {
            // A discovery session stays in its handshake for the connection table: at the
            // connection limit, a new connection may evict it at any time.
            watch.end_handshake();
        }
        self.serve(wire, connection, watch).await
    }
}

/// Session at rest, on its way to another thread.
pub struct Parked {
    parts: Box<Parts>,
    /// Received bytes that the session has not processed.
    received: Vec<u8>,
}

impl Iscsi {
    /// Runs the full feature phase.
    async fn serve<S: Socket>(
        &self,
        mut wire: Wire<S>,
        connection: Rc<Connection>,
        watch: &Watch,
    ) -> Result<Option<Parked>, IscsiError> {
        let _release = Release(Rc::downgrade(&connection));
        let (socket, limit) = (|| wire.socket.clone(), self.targets.quiet_limit());
        let writer = compio::runtime::spawn(write_answers(socket(), Rc::clone(&connection), limit));
        let others = [
            compio::runtime::spawn(watch_over(socket(), Rc::clone(&connection), limit)),
            compio::runtime::spawn(take_turns(Rc::clone(&connection))),
            compio::runtime::spawn(ask_to_log_out(Rc::clone(&connection))),
            compio::runtime::spawn(evict(socket(), Rc::clone(&connection))),
            compio::runtime::spawn(end_discovery(
                socket(),
                Rc::clone(&connection),
                self.discovery_limit,
            )),
        ];
        let read = read_requests(&mut wire, &connection, watch).await;
        drop(others);
        if matches!(read, Ok(End::AtRest)) {
            return park(wire, connection, writer).await.map(Some);
        }
        finish(&wire, connection, writer, watch, read.map(drop)).await.map(|()| None)
    }
}

/// Disassembles a session at rest.
async fn park<S: Socket>(
    wire: Wire<S>,
    connection: Rc<Connection>,
    writer: Writer,
) -> Result<Parked, IscsiError> {
    connection.end();
    writer.await.unwrap_or(Ok(()))?;
    let parts = Box::new(connection.into_parts().await?);
    Ok(Parked { parts, received: wire.input.pending().to_vec() })
}

/// Ends a session whose reader has stopped: waits for its commands and sends their responses.
async fn finish<S: Socket>(
    wire: &Wire<S>,
    connection: Rc<Connection>,
    writer: Writer,
    watch: &Watch,
    read: Result<(), IscsiError>,
) -> Result<(), IscsiError> {
    connection.stop_taking();
    let ending = connection.ending();
    if (watch.is_stopping() || ending.is_some()) && !connection.is_broken() {
        connection.announce_end();
    }
    connection.flush();
    let drained = compio::time::timeout(DRAIN_LIMIT, drain(&connection, writer));
    let written = match (ending, drained.await) {
        (_, Ok(written)) => written,
        (ending, Err(_)) => {
            // The time limit has passed, and the timeout dropped the writer. Break the connection;
            // the commands that the nexus still runs must end.
            connection.give_up();
            shut(&wire.socket, Shutdown::Both);
            ending.map_or(Ok(()), |why| Err(IscsiError::Ended { why }))
        }
    };
    // Commands of a broken connection may still run and use the nexus, so wait until they end
    // before the nexus is dropped.
    while connection.is_running() {
        connection.progress.wait().await;
    }
    match (ending, connection.stuck()) {
        (Some(why), _) => Err(IscsiError::Ended { why }),
        (None, Some((what, seconds))) => Err(IscsiError::Stuck { what, seconds }),
        // Initiators end a discovery session by closing the connection. Errors are then normal.
        (None, None) if connection.is_discovery() => {
            drop(read.and(written).inspect_err(|error| tracing::debug!(%error, "discovery ended")));
            Ok(())
        }
        (None, None) => read.and(written),
    }
}

/// The target's side of a login: the parts of the server that a login uses.
#[derive(Clone, Copy)]
struct Side<'a> {
    targets: &'a Arc<dyn Targets>,
    budget: &'a Arc<Budget>,
    auth_throttle: &'a AuthThrottle,
    watch: &'a Watch,
}

type Writer = compio::runtime::JoinHandle<Result<(), IscsiError>>;

/// Waits until all running commands have completed and their responses have been sent.
async fn drain(connection: &Connection, writer: Writer) -> Result<(), IscsiError> {
    while connection.is_running() && !connection.is_broken() {
        connection.progress.wait().await;
    }
    connection.end();
    writer.await.unwrap_or(Ok(()))
}

/// Guard that ends the writer when the session ends, also if the storage panics. Otherwise the
/// writer would keep the socket open for ever.
struct Release(Weak<Connection>);

impl Drop for Release {
    fn drop(&mut self) {
        if let Some(connection) = self.0.upgrade() {
            connection.give_up();
        }
    }
}

/// Socket together with the received bytes that are not processed yet.
struct Wire<S> {
    socket: S,
    input: Input,
}

impl<S: Socket> Wire<S> {
    /// Receives once. `need` is the length of the first PDU that was not processed yet, as far as
    /// it is known.
    async fn receive(&mut self, need: usize) -> Result<usize, IscsiError> {
        let (at, limit) = self.input.make_room(need);
        let buffer = self.input.take().slice(at..at + limit);
        let BufResult(result, slice) = compio::io::AsyncRead::read(&mut self.socket, buffer).await;
        self.input.put_back(slice.into_inner());
        Ok(result?)
    }

    async fn send(&mut self, header: Header, data: &[u8]) -> Result<(), IscsiError> {
        let mut out = OutBuf::default();
        pdu::put(&mut out, header, data, Digests::default());
        self.socket.write_all(SendBuf(out)).await.0?;
        Ok(())
    }
}

/// Runs the login phase. Returns `None` if the initiator closed the connection before it sent a
/// request.
async fn log_in<S: Socket>(
    wire: &mut Wire<S>,
    side: Side<'_>,
    peer: &Peer,
) -> Result<Option<Rc<Connection>>, IscsiError> {
    // Create the memory grant only when it is needed: an unauthenticated peer takes no memory of
    // the budget.
    let grant = Cell::new(None::<MemoryGrant>);
    let receive_data_bytes_max = || {
        let its = grant.take().unwrap_or_else(|| side.budget.grant());
        let is_large = its.take_large_input();
        grant.set(Some(its));
        if is_large { RECEIVE_DATA_BYTES_MAX } else { RECEIVE_DATA_BYTES_MIN }
    };
    let mut login = Login::new(&**side.targets, peer, &receive_data_bytes_max);
    let mut stat_sn = FIRST_STAT_SN;
    loop {
        let (request, step, used) =
            match pdu::frame(wire.input.pending(), Digests::default(), LOGIN_DATA_BYTES_MAX)? {
                Framed::Need(need) => {
                    if side.watch.is_stopping() || wire.receive(need).await? == 0 {
                        let begun = !wire.input.pending().is_empty();
                        return if begun { Err(IscsiError::Truncated) } else { Ok(None) };
                    }
                    continue;
                }
                Framed::Pdu(pdu, used) => {
                    let request = pdu::Login::decode(&pdu.header);
                    let opcode = pdu.header.opcode();
                    let request = request.ok_or(IscsiError::NoLogin { opcode })?;
                    (request, feed(&mut login, &request, &pdu, side, peer).await, used)
                }
            };
        wire.input.consume(used);
        let number = |response: LoginResponse, stat_sn: u32| {
            let mut header = response.encode();
            header.set_word(24, stat_sn);
            header.set_word(28, request.cmd_sn);
            header.set_word(32, request.cmd_sn.wrapping_add(COMMANDS_MAX - 1));
            header
        };
        match step {
            Step::Answer(response, text) => {
                wire.send(number(response, stat_sn), &text).await?;
                stat_sn = stat_sn.wrapping_add(1);
            }
            Step::Ready(response, text, ready) => {
                let grant = grant.take().unwrap_or_else(|| side.budget.grant());
                match enter(&wire.socket, side, *ready, grant, stat_sn.wrapping_add(1)).await {
                    Ok((connection, tsih)) => {
                        if connection.receive_data_bytes_max() > RECEIVE_DATA_BYTES_MIN {
                            wire.input.grow();
                        }
                        let response = LoginResponse { tsih, ..response };
                        wire.send(number(response, stat_sn), &text).await?;
                        return Ok(Some(connection));
                    }
                    Err(denial) => {
                        let response = number(refused(response, denial.status), stat_sn);
                        return Err(refuse(wire, response, &login, denial).await);
                    }
                }
            }
            Step::Refuse(response, denial) => {
                return Err(refuse(wire, number(response, stat_sn), &login, denial).await);
            }
        }
    }
}

/// Passes a request to the login. If the login awaits a CHAP response, first waits until the
/// throttle admits the sender's address and account.
async fn feed(
    login: &mut Login<'_>,
    request: &pdu::Login,
    pdu: &Pdu<'_>,
    side: Side<'_>,
    peer: &Peer,
) -> Step {
    if !login.awaits_proof() {
        return login.feed(request, pdu);
    }
    let who = side.auth_throttle.guesser(peer.key, login.initiator(), login.target());
    if !side.auth_throttle.wait(who).await {
        let why = "too many failed CHAP logins; try again later";
        return login.refuse(request, Denial::new(Status::Unavailable, why));
    }
    // Do not await from the throttle's admission until the result is recorded: a second response
    // would be checked under the same admission.
    let step = login.feed(request, pdu);
    match &step {
        Step::Refuse(_, denial) if denial.status == Status::AuthenticationFailure => {
            side.auth_throttle.failed(who, Instant::now());
            side.targets.guessed(&peer.name);
        }
        Step::Answer(..) | Step::Ready(..) if !login.awaits_proof() => {
            side.auth_throttle.proved(who, Instant::now());
        }
        _ => {}
    }
    step
}

async fn refuse<S: Socket>(
    wire: &mut Wire<S>,
    response: Header,
    login: &Login<'_>,
    denial: Denial,
) -> IscsiError {
    let (initiator, target) = (login.initiator().to_owned(), login.target().to_owned());
    let Denial { status, why } = denial;
    match wire.send(response, &[]).await {
        Ok(()) => IscsiError::LoginRefused { target, initiator, status, why },
        Err(error) => error,
    }
}

/// Ends an earlier session of the same initiator port, enters the new session into the session
/// table, and creates its nexus.
async fn enter<S: Socket>(
    socket: &S,
    side: Side<'_>,
    ready: Ready,
    grant: MemoryGrant,
    stat_sn: u32,
) -> Result<(Rc<Connection>, u16), Denial> {
    let Ready { applicant, purpose, negotiated, tsih, cid, cmd_sn, proven } = ready;
    let (target, open) = match purpose {
        Purpose::Discovery => (None, None),
        Purpose::Target { name, open } => (Some(name), Some(open)),
    };
    let no_socket = |error: std::io::Error| Denial::new(Status::OutOfResources, error.to_string());
    let entrant = Entrant {
        port: applicant.port.clone(),
        address: applicant.peer.clone(),
        key: applicant.key,
        target: target.clone(),
        tsih,
        cid,
        chap: proven.is_some(),
        digests: negotiated.digests,
        socket: socket.as_fd().try_clone_to_owned().map_err(no_socket)?,
    };
    let place = side.targets.sessions().enter(entrant).await?;
    let tsih = place.tsih();
    let nexus = open.map(|open| open(&applicant.port)).transpose()?;
    if let Some(target) = &target {
        side.watch.set_user_of(target);
    }
    let initiator = &applicant.port;
    tracing::debug!(%initiator, ?target, tsih, ?negotiated, "iSCSI session begins");
    let (targets, ttt) = (Arc::clone(side.targets), 0);
    let parts = Parts {
        nexus,
        place,
        targets,
        grant,
        applicant,
        proven,
        target,
        negotiated,
        cid,
        cmd_sn,
        stat_sn,
        ttt,
    };
    Ok((Connection::new(parts), tsih))
}

/// Reason why the reader stopped.
enum End {
    /// The session ends, because of end of input, a logout or a shutdown.
    Over,
    /// The session is at rest and can continue on another thread.
    AtRest,
}

/// Receives and processes requests until the session ends or an error occurs.
async fn read_requests<S: Socket>(
    wire: &mut Wire<S>,
    connection: &Rc<Connection>,
    watch: &Watch,
) -> Result<End, IscsiError> {
    let rest_of_pdu = BusyPoll::default();
    loop {
        let Some(need) = take_pending(&mut wire.input, connection).await? else {
            return Ok(End::Over);
        };
        if watch.is_stopping() || connection.is_broken() || connection.ending().is_some() {
            return Ok(End::Over);
        }
        if watch.is_to_move() {
            if connection.comes_to_rest().await {
                return Ok(End::AtRest);
            }
            watch.stay();
        }
        connection.flush();
        connection.idle();
        let begun = !wire.input.pending().is_empty();
        let awaits_client =
            (begun || connection.is_owed_data()).then(|| connection.awaits_client());
        let receive = wire.receive(need);
        let received = if begun { rest_of_pdu.wait(receive).await? } else { receive.await? };
        drop(awaits_client);
        connection.received(received);
        watch.has_work();
        if received == 0 {
            return if begun { Err(IscsiError::Truncated) } else { Ok(End::Over) };
        }
    }
}

/// Processes every complete PDU that was received. Returns the length of the next PDU, as far as it
/// is known; `None` if the session ends.
async fn take_pending(
    input: &mut Input,
    connection: &Rc<Connection>,
) -> Result<Option<usize>, IscsiError> {
    let mut taken = 0;
    loop {
        if taken == TURN_PDUS {
            taken = 0;
            connection.flush();
            yield_now().await;
        }
        // The reader may still have PDUs: after shutdown(2) for reading, the socket returns bytes
        // that arrived before the shutdown.
        if connection.is_broken() || connection.ending().is_some() {
            return Ok(None);
        }
        let pending = input.pending();
        let most = connection.receive_data_bytes_max();
        let framed = pdu::frame(pending, connection.digests(), most)?;
        let (pdu, used): (Pdu<'_>, usize) = match framed {
            Framed::Need(need) => return Ok(Some(need)),
            Framed::Pdu(pdu, used) => (pdu, used),
        };
        // Accept a Data-Out even without memory for a response: a Data-Out has no response, and the
        // command that waits for this data frees memory when the command ends.
        if pdu.header.opcode() != opcode::DATA_OUT && !connection.has_room() {
            connection.wait_for_room().await;
            continue;
        }
        let flow = connection.take(&pdu, pending.get(..used).unwrap_or_default())?;
        input.consume(used);
        taken += 1;
        connection.check_memory()?;
        if flow == Flow::End {
            return Ok(None);
        }
    }
}

/// Resumes commands that wait for memory whenever memory becomes available, until it is cancelled.
async fn take_turns(connection: Rc<Connection>) {
    loop {
        connection.turn().await;
        connection.grant();
    }
}

/// Waits until the budget evicts the connection, because its initiator holds memory and stalls
/// other connections. Then ends the connection.
async fn evict<S: Socket>(socket: S, connection: Rc<Connection>) {
    connection.evicted().await;
    connection.get_stuck("holds memory that other connections wait for", STALL_CHECK);
    shut(&socket, Shutdown::Both);
}

/// Ends a discovery session that exceeds its time limit.
async fn end_discovery<S: Socket>(socket: S, connection: Rc<Connection>, limit: Duration) {
    if connection.is_discovery() {
        compio::time::sleep(limit).await;
        connection.give_up();
        shut(&socket, Shutdown::Both);
    }
}

/// Waits until the server requests a logout, then asks the initiator to log out.
async fn ask_to_log_out(connection: Rc<Connection>) {
    let seconds = connection.logout_wanted().await;
    connection.request_logout(seconds);
}

/// Sends responses as they become available, until the connection ends or breaks.
async fn write_answers<S: Socket>(
    mut socket: S,
    connection: Rc<Connection>,
    limit: Duration,
) -> Result<(), IscsiError> {
    let stall_limit = 2 * limit;
    let result = loop {
        if connection.is_broken() {
            break Ok(());
        }
        let Some(outgoing) = connection.next_send() else {
            if connection.is_over() {
                break Ok(());
            }
            connection.busy_poll().await;
            connection.to_send.wait().await;
            continue;
        };
        let awaits_client = connection.awaits_client();
        let moved = |bytes| connection.moved(bytes);
        let BufResult(result, outgoing) = outgoing.send(&mut socket, stall_limit, moved).await;
        drop(awaits_client);
        if let Err(error) = result {
            if error.kind() == std::io::ErrorKind::TimedOut {
                connection.get_stuck("receives no responses", stall_limit);
            }
            break Err(error.into());
        }
        connection.sent(outgoing);
    };
    if result.is_err() || connection.is_broken() {
        connection.give_up();
        connection.discard_answers();
        shut(&socket, Shutdown::Both);
    }
    result
}

/// Sends a NOP-In when the initiator is idle. Ends the connection if the initiator does not respond
/// to the NOP-In, or does not send solicited data in time.
async fn watch_over<S: Socket>(socket: S, connection: Rc<Connection>, limit: Duration) {
    let mut asked = None;
    let what = loop {
        let (pdus, when) = connection.heard();
        if connection.is_owed_data_since(2 * limit) {
            break "sends no solicited data";
        }
        let rest = limit.saturating_sub(when.elapsed());
        if !rest.is_zero() {
            compio::time::sleep(rest).await;
            continue;
        }
        if asked == Some(pdus) && connection.is_listening() {
            break "sends no response";
        }
        connection.ping();
        asked = Some(pdus);
        compio::time::sleep(limit).await;
    };
    connection.get_stuck(what, 2 * limit);
    shut(&socket, Shutdown::Both);
}
