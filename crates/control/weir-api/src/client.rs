//! Client of the management interface: calls over HTTP, on a unix socket or TCP.
//!
//! The default server address is in `place`.
//!
//! Invariants:
//! - a call ends within the client's timeout, whatever the server does;
//! - the client refuses an invalid request itself, without a connection;
//! - the client repeats a call only if it must read a list again, because an entry was removed
//!   between two pages.

mod sending;

use std::path::Path as FilePath;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, StatusCode};
use futures_util::future::BoxFuture;
use http_body_util::Full;
use hyper::body::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tokio::net::{TcpStream, UnixStream};
use weir_base::ErrorKind;

use crate::calls::call::{Call, Operation, Pending};
use crate::calls::path::{Path, escape, text};
use crate::calls::shape::uses_query;
use crate::calls::table::RECEIVE_PART;
use crate::connection::{Broken, Duplex, Exchange, Kept};
use crate::limits::{CLIENT_TIMEOUT, PAGE_ENTRIES_MAX};
use crate::peer::{PeerAddress, PeerLink, Secret};
use crate::routes::PART_TYPE;
use crate::stream::SendStream;
use crate::token::SecretText;
use crate::types::{Answer as _, ReceiveProgress};
use crate::wire::{ApiError, ErrorBody};
use crate::{Address, Error};

const JSON: &str = "application/json";

/// Maximum number of attempts to read a list. An attempt fails if the last entry of a page is
/// removed before the next page is read.
const LISTS_BEGUN_MAX: usize = 4;

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    address: Address,
    timeout: Duration,
    kept: Kept,
    /// Token with which the client authenticates; absent for a user of the server's machine.
    token: Option<SecretText>,
    /// TLS connection to another server, with the secret of peers if the server is a peer.
    link: Option<Arc<PeerLink>>,
}

/// HTTP request of a call, before it is sent.
struct Outgoing {
    method: Method,
    path: String,
    body: Bytes,
    content: &'static str,
}

impl Client {
    /// Creates a client of the server at `address` with a timeout of [`CLIENT_TIMEOUT`].
    pub fn new(address: Address) -> Self {
        let kept = Kept::default();
        Self { address, timeout: CLIENT_TIMEOUT, kept, token: None, link: None }
    }

    /// Creates a client of a peer, over TLS. The peer allows only a few of the calls.
    ///
    /// # Errors
    /// [`Error::File`] if the file with the CA certificates cannot be used.
    pub fn peer(to: &PeerAddress, ca: &FilePath, secret: Secret) -> Result<Self, Error> {
        PeerLink::new(&to.host, to.port, ca, Some(secret)).map(Self::over)
    }

    /// Creates a client of a management interface, over TLS. The client sends nothing to a server
    /// whose certificate was not signed by a certificate in the file `ca`.
    ///
    /// # Errors
    /// [`Error::File`] if the file with the CA certificates cannot be used.
    pub fn https(host: &str, port: u16, ca: &FilePath) -> Result<Self, Error> {
        PeerLink::new(host, port, ca, None).map(Self::over)
    }

    fn over(link: PeerLink) -> Self {
        let address = link.place().clone();
        let (kept, link) = (Kept::default(), Some(Arc::new(link)));
        Self { address, timeout: CLIENT_TIMEOUT, kept, token: None, link }
    }

    /// Returns the client with another timeout.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// Returns the client with a token.
    #[must_use]
    pub fn with_token(self, token: SecretText) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Address of the server.
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Makes a call. If the answer is a list, reads all pages.
    ///
    /// # Errors
    /// The error that the server returned; `Invalid` for a request that fails its own check and is
    /// not sent; `Unavailable` if there is no response within the timeout.
    pub async fn call<C: Call>(&self, call: C) -> Result<C::Answer, ApiError> {
        call.check()?;
        let fields = fields(&call);
        let (status, answer) = self.answer(C::OPERATION, C::Answer::ENTRIES, fields).await?;
        Ok(self.read(status, &answer)?)
    }

    /// Returns the status and the JSON of the response to a call. `entries` is the JSON field with
    /// the entries of a list.
    fn answer<'a>(
        &'a self,
        operation: &'static Operation,
        entries: Option<&'static str>,
        fields: Map<String, Value>,
    ) -> BoxFuture<'a, Result<(StatusCode, Bytes), ApiError>> {
        Box::pin(async move {
            let Some(entries) = entries else {
                return self.succeed(outgoing(operation, fields)).await;
            };
            self.list(operation, entries, fields).await
        })
    }

    /// Reads all pages of a list and joins the pages into one response.
    async fn list(
        &self,
        operation: &'static Operation,
        entries: &str,
        mut fields: Map<String, Value>,
    ) -> Result<(StatusCode, Bytes), ApiError> {
        fields.insert("limit".to_owned(), PAGE_ENTRIES_MAX.into());
        let mut begun = 0;
        'begin: loop {
            begun += 1;
            let (status, answer) = self.succeed(outgoing(operation, fields.clone())).await?;
            let first: Continued = self.read(status, &answer)?;
            let Some(mut after) = first.next else { return Ok((status, answer)) };
            let mut all: Map<String, Value> = self.read(status, &answer)?;
            loop {
                let mut fields = fields.clone();
                fields.insert("after".to_owned(), after.into());
                let (status, answer) = match self.succeed(outgoing(operation, fields)).await {
                    // An entry was removed between two pages, so start again with the first page.
                    Err(ApiError { kind: ErrorKind::NotFound, .. }) if begun < LISTS_BEGUN_MAX => {
                        continue 'begin;
                    }
                    more => more?,
                };
                let mut more: Map<String, Value> = self.read(status, &answer)?;
                if let Some(Value::Array(all)) = all.get_mut(entries)
                    && let Some(Value::Array(more)) = more.get_mut(entries)
                {
                    all.append(more);
                }
                match more.remove("next") {
                    Some(Value::String(next)) => after = next,
                    _ => break,
                }
            }
            all.remove("next");
            return Ok((status, Value::Object(all).to_string().into()));
        }
    }

    /// Starts to download the stream of a session. Each stream can be downloaded once.
    ///
    /// # Errors
    /// The errors of [`Self::call`]; `Busy` if the stream was downloaded before.
    pub fn send_stream(&self, session: String) -> Pending<'_, Box<dyn SendStream>> {
        Box::pin(self.arriving(session))
    }

    /// Uploads the next part of a stream. The server has applied the previous part when this call
    /// returns.
    ///
    /// # Errors
    /// The errors of [`Self::call`], and errors of the receive.
    pub fn receive_part(&self, session: String, part: Bytes) -> Pending<'_, ReceiveProgress> {
        let outgoing = of_session(&RECEIVE_PART, session, part);
        Box::pin(async move {
            let (status, answer) = self.succeed(outgoing).await?;
            Ok(self.read(status, &answer)?)
        })
    }

    fn read<T: DeserializeOwned>(&self, status: StatusCode, answer: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(answer).map_err(|error| self.unreadable(status, &error))
    }

    /// Returns the status and the body of a successful response.
    async fn succeed(&self, call: Outgoing) -> Result<(StatusCode, Bytes), ApiError> {
        let (status, answer) = self.answered(call).await?;
        if status.is_success() { Ok((status, answer)) } else { Err(self.refusal(status, &answer)) }
    }

    /// Returns the status and the body of a response.
    async fn answered(&self, call: Outgoing) -> Result<(StatusCode, Bytes), Error> {
        let exchange = async {
            let answer = self.exchange(call).await?;
            answer.whole().await.map_err(|error| self.broken(error))
        };
        self.in_time(exchange).await
    }

    async fn in_time<T>(
        &self,
        exchange: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        tokio::time::timeout(self.timeout, exchange).await.unwrap_or_else(|_| Err(self.late()))
    }

    fn late(&self) -> Error {
        Error::Timeout { address: self.address.to_string(), seconds: self.timeout.as_secs() }
    }

    /// Returns the error in a response.
    fn refusal(&self, status: StatusCode, answer: &[u8]) -> ApiError {
        let body: Result<ErrorBody, _> = serde_json::from_slice(answer);
        body.map_or_else(|error| self.unreadable(status, &error).into(), |body| body.error)
    }

    fn unreadable(&self, status: StatusCode, error: &serde_json::Error) -> Error {
        let (address, status) = (self.address.to_string(), status.as_u16());
        Error::Answer { address, status, why: error.to_string() }
    }

    /// Sends a call and waits for the header of the response.
    async fn exchange(&self, call: Outgoing) -> Result<Exchange, Error> {
        let request = |host: &str| {
            hyper::Request::builder()
                .method(call.method)
                .uri(call.path)
                .header(HOST, host)
                .header(CONTENT_TYPE, call.content)
                .body(Full::new(call.body))
                .map_err(|source| self.broken(source))
                .and_then(|request| self.signed(request))
        };
        if let Some(link) = &self.link {
            return link.exchange(request(&self.address.to_string())?).await;
        }
        match &self.address {
            Address::Unix(_) => self.exchange_over(request("localhost")?).await,
            Address::Tcp { .. } => self.exchange_over(request(&self.address.to_string())?).await,
        }
    }

    /// Adds the client's token, if it has one, to a request.
    fn signed(
        &self,
        mut request: hyper::Request<Full<Bytes>>,
    ) -> Result<hyper::Request<Full<Bytes>>, Error> {
        if let Some(token) = &self.token {
            let text = format!("Bearer {}", token.expose());
            let mut value = HeaderValue::try_from(text).map_err(|source| self.broken(source))?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }

    async fn exchange_over(&self, request: hyper::Request<Full<Bytes>>) -> Result<Exchange, Error> {
        self.kept.exchange(request, self.connect(), |source| self.broken(source)).await
    }

    async fn connect(&self) -> Result<Box<dyn Duplex>, Error> {
        let connected: std::io::Result<Box<dyn Duplex>> = match &self.address {
            Address::Unix(socket) => UnixStream::connect(socket).await.map(|s| Box::new(s) as _),
            Address::Tcp { host, port } => {
                TcpStream::connect((host.as_str(), *port)).await.map(|s| Box::new(s) as _)
            }
        };
        connected.map_err(|source| Error::Connect { address: self.address.to_string(), source })
    }

    fn broken(&self, source: impl Into<Broken>) -> Error {
        Error::Broken { address: self.address.to_string(), source: source.into() }
    }
}

/// Returns the fields of a request as JSON.
fn fields(call: &impl Call) -> Map<String, Value> {
    match serde_json::to_value(call) {
        Ok(Value::Object(fields)) => fields,
        other => panic!("a request is an object: {other:?}"),
    }
}

/// Builds the HTTP request of a call: path, query and body from the fields of the request.
fn outgoing(operation: &Operation, mut fields: Map<String, Value>) -> Outgoing {
    let mut path = Path::parse(operation.path).fill(&mut fields);
    let method = operation.method.clone();
    if !uses_query(&method) {
        let body = Value::Object(fields).to_string();
        return Outgoing { method, path, body: body.into(), content: JSON };
    }
    let mut joint = '?';
    for (name, value) in &fields {
        let value = match value {
            Value::Null => continue,
            // Each entry is escaped separately, so that the commas between the entries are not
            // escaped.
            Value::Array(list) if list.is_empty() => continue,
            Value::Array(list) => {
                let entries: Vec<String> = list.iter().map(|entry| escape(&text(entry))).collect();
                entries.join(",")
            }
            one => escape(&text(one)),
        };
        path.push(joint);
        path += name;
        path.push('=');
        path += &value;
        joint = '&';
    }
    Outgoing { method, path, body: Bytes::new(), content: JSON }
}

/// Builds the HTTP request of a call for a session; the body is a part of a stream.
fn of_session(operation: &Operation, session: String, body: Bytes) -> Outgoing {
    let mut fields = Map::new();
    fields.insert("session".to_owned(), session.into());
    let path = Path::parse(operation.path).fill(&mut fields);
    Outgoing { method: operation.method.clone(), path, body, content: PART_TYPE }
}

/// The field `next` of a page. The client reads this field without the type of the list.
#[derive(Deserialize)]
struct Continued {
    #[serde(default)]
    next: Option<String>,
}
