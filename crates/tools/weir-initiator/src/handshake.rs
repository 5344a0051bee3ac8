//! Connects to a target and logs in, within one time limit.
//!
//! `login` builds the requests and interprets the responses.
//!
//! Invariants: no step waits beyond the time limit, however slowly a target sends; the login
//! follows at most [`REDIRECTIONS_MAX`] redirections.

use std::io::{Read as _, Write as _};
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use weir_iscsi_wire::limits::LOGIN_DATA_BYTES_MAX;
use weir_iscsi_wire::pdu::{Digests, Framed, frame};

use crate::connection::{Connection, WireBytes};
use crate::error::InitiatorError;
use crate::exchange::Exchange;
use crate::limits::REDIRECTIONS_MAX;
use crate::login::{Agreed, Login, Purpose, Step};
use crate::options::LoginOptions;
use crate::url::portal_of;

/// Maximum number of bytes that one receive takes during the login.
const PIECE_BYTES: usize = 4096;

/// Deadline of an operation, with the operation's time limit and name for the error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    at: Instant,
    limit: Duration,
    what: &'static str,
}

impl Deadline {
    pub(crate) fn new(limit: Duration, what: &'static str) -> Self {
        Self { at: Instant::now() + limit, limit, what }
    }

    /// Time left until the deadline; an error if the deadline has passed.
    pub(crate) fn left(&self) -> Result<Duration, InitiatorError> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(self.error()) } else { Ok(left) }
    }

    pub(crate) fn error(&self) -> InitiatorError {
        InitiatorError::Timeout { what: self.what, seconds: self.limit.as_secs() }
    }

    /// Converts an error of a socket. The socket's timeout is the time left until the deadline, so
    /// a timeout of the socket becomes [`InitiatorError::Timeout`].
    fn told(&self, error: std::io::Error) -> InitiatorError {
        match error.kind() {
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => self.error(),
            _ => error.into(),
        }
    }
}

/// Connects to `host` and `port`, follows redirections, and logs in.
pub(crate) fn connect(
    host: &str,
    port: u16,
    options: &LoginOptions,
    purpose: &Purpose,
    (lun, slots): (u16, usize),
) -> Result<Connection, InitiatorError> {
    let deadline = Deadline::new(options.login_limit, "connecting and logging in");
    let (mut host, mut port) = (host.to_owned(), port);
    let isid = options.isid()?;
    for _ in 0..=REDIRECTIONS_MAX {
        let mut stream = open(&host, port, &deadline)?;
        let mut wire = WireBytes::default();
        let login = Login::new(options, purpose.clone(), isid);
        match log_in(&mut stream, login, &deadline, &mut wire)? {
            Outcome::In(agreed) => {
                stream.set_nonblocking(true)?;
                let exchange = Exchange::new(agreed.negotiated, lun, agreed.numbers, slots);
                return Ok(Connection::new(stream, exchange, wire));
            }
            Outcome::Elsewhere(address) => {
                let broken = |why| InitiatorError::Protocol { why };
                (host, port) = portal_of(&address)
                    .map_err(|_| broken("it redirects to an invalid address"))?;
            }
        }
    }
    Err(InitiatorError::Protocol { why: "it redirects too often" })
}

fn open(host: &str, port: u16, deadline: &Deadline) -> Result<TcpStream, InitiatorError> {
    let named = || format!("{host}:{port}");
    let failed = |source| InitiatorError::Connect { address: named(), source };
    let mut last = std::io::ErrorKind::NotFound.into();
    for address in (host, port).to_socket_addrs().map_err(failed)? {
        match TcpStream::connect_timeout(&address, deadline.left()?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(failed(last))
}

enum Outcome {
    In(Agreed),
    Elsewhere(String),
}

fn log_in(
    stream: &mut TcpStream,
    mut login: Login,
    deadline: &Deadline,
    wire: &mut WireBytes,
) -> Result<Outcome, InitiatorError> {
    let mut request = login.first()?;
    let mut input = Vec::new();
    loop {
        stream.set_write_timeout(Some(deadline.left()?))?;
        stream.write_all(&request).map_err(|error| deadline.told(error))?;
        wire.sent += request.len() as u64;
        let (step, used) = loop {
            // PDUs have no digests during the login.
            match frame(&input, Digests::default(), LOGIN_DATA_BYTES_MAX) {
                Ok(Framed::Pdu(pdu, used)) => break (login.feed(&pdu)?, used),
                Ok(Framed::Need(_)) => receive(stream, &mut input, deadline, wire)?,
                Err(_) => {
                    let why = "a login response that is too long; probably not an iSCSI target";
                    return Err(InitiatorError::Protocol { why });
                }
            }
        };
        input.drain(..used);
        // The target must send one response for each request, so additional bytes are an error.
        if !input.is_empty() {
            return Err(InitiatorError::Protocol { why: "it sent data after the login response" });
        }
        match step {
            Step::Send(next) => request = next,
            Step::Ready(agreed) => return Ok(Outcome::In(agreed)),
            Step::Elsewhere(address) => return Ok(Outcome::Elsewhere(address)),
        }
    }
}

fn receive(
    stream: &mut TcpStream,
    input: &mut Vec<u8>,
    deadline: &Deadline,
    wire: &mut WireBytes,
) -> Result<(), InitiatorError> {
    let mut piece = [0; PIECE_BYTES];
    stream.set_read_timeout(Some(deadline.left()?))?;
    match stream.read(&mut piece) {
        Ok(0) => Err(InitiatorError::Closed),
        Ok(got) => {
            wire.received += got as u64;
            input.extend_from_slice(piece.get(..got).unwrap_or_default());
            Ok(())
        }
        Err(error) if error.kind() == std::io::ErrorKind::Interrupted => Ok(()),
        Err(error) => Err(deadline.told(error)),
    }
}
