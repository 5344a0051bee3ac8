//! The HTTP server: several listeners, bounded connections, graceful shutdown.
//!
//! `routes` has the calls; `guard` checks requests.
//!
//! Invariants:
//! - an open connection holds one of its listener's slots; a new connection can evict an open one
//!   that sends nothing (`slots`);
//! - the server closes a connection after a fixed time if its client sends nothing or an incomplete
//!   request, or reads nothing of the response;
//! - the server answers every request that it has read; a connection without a slot gets a 503, and
//!   the server reads nothing of its request.

use std::future::Future;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderValue;
use axum::http::header::CONNECTION;
use axum::middleware::{self, Next};
use axum::response::Response;
use hyper::body::Body as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use weir_base::{ErrorKind, LINES_INTERVAL, LogLimiter};
use weir_net::SocketFile;

use crate::answers::Answers;
use crate::call_queue::CallQueue;
use crate::caller::{self, Caller};
use crate::calls::table::Control;
use crate::connection::Duplex;
use crate::limits::{
    HEADER_BYTES_MAX, HEADER_TIMEOUT, REFUSAL_LIMIT, REFUSALS_MAX, RETRY_AFTER_SECONDS,
    STOP_TIMEOUT,
};
use crate::listen::{Listener, Socket};
use crate::slots::{Call, Entrance, SlotOwner, Slots, Taken};
use crate::token::{Authority, Checker};
use crate::unix_access::{Process, UnixAccess};
use crate::watched::Watched;
use crate::wire::{ApiError, ErrorBody};
use crate::{Error, guard, routes, slots};

/// Serves the management interface on all `listeners` until `stop` is ready, then gives running
/// calls up to [`STOP_TIMEOUT`] to finish. Needs a tokio runtime with I/O and time; a
/// single-threaded runtime is sufficient. [`Control`] must not block that runtime.
///
/// `authority` knows the tokens. The caller of a request is the user of the unix socket or the
/// holder of a token; its rights decide which calls it may make.
///
/// # Errors
/// [`Error::Listen`] if a socket cannot be registered with the runtime; in this case nothing is
/// served.
pub async fn serve<S: Control>(
    listeners: Vec<Listener>,
    control: Arc<S>,
    authority: Arc<dyn Authority>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let (stopping, stopped) = watch::channel(false);
    let router = routes::router(&control);
    let checker = Arc::new(Checker::new(authority));
    let (call_queue, answers) = (Arc::<CallQueue>::default(), Arc::<Answers>::default());
    let refusals = Arc::new(Semaphore::new(REFUSALS_MAX));
    let mut loops = JoinSet::new();
    for listener in listeners {
        let entry = guard::Entry {
            hosts: listener.hosts.clone(),
            checker: Arc::clone(&checker),
            call_queue: Arc::clone(&call_queue),
            answers: Arc::clone(&answers),
        };
        let entry = middleware::from_fn_with_state(Arc::new(entry), guard::admit);
        let guarded = router.clone().layer(entry);
        let name = listener.address().to_string();
        let source = Source::new(listener)?;
        tracing::info!(address = name, "management interface");
        loops.spawn(accept_all(source, guarded, Arc::clone(&refusals), stopped.clone()));
    }
    stop.await;
    stopping.send_replace(true);
    while let Some(ended) = loops.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a listener of the management interface failed");
        }
    }
    Ok(())
}

/// A listener registered with the runtime.
enum Source {
    Unix(
        UnixListener,
        #[expect(dead_code, reason = "removes the file when dropped")] SocketFile,
        UnixAccess,
    ),
    Tcp(TcpListener, Option<TlsAcceptor>),
}

/// An accepted connection, before the TLS handshake.
enum Accepted {
    Ready(Box<dyn Duplex>),
    Tls(TcpStream, TlsAcceptor),
}

impl Accepted {
    /// Completes the TLS handshake; `None` if it fails or takes too long.
    async fn established(self) -> Option<Box<dyn Duplex>> {
        let (stream, acceptor) = match self {
            Self::Ready(stream) => return Some(stream),
            Self::Tls(stream, acceptor) => (stream, acceptor),
        };
        match tokio::time::timeout(HEADER_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Some(Box::new(stream)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "the TLS handshake of a caller failed");
                None
            }
            Err(_) => None,
        }
    }
}

impl Source {
    fn new(listener: Listener) -> Result<Self, Error> {
        let address = listener.address().to_string();
        match listener.socket {
            Socket::Unix(socket, file, unix_access) => {
                UnixListener::from_std(socket).map(|s| Self::Unix(s, file, unix_access))
            }
            Socket::Tcp(socket, tls) => {
                let tls = tls.map(|tls| tls.acceptor());
                TcpListener::from_std(socket).map(|socket| Self::Tcp(socket, tls))
            }
        }
        .map_err(|source| Error::Listen { address, source })
    }

    /// Returns the next connection, with its caller and the owner for which its slot counts.
    async fn accept(&self) -> io::Result<(Accepted, Caller, SlotOwner)> {
        match self {
            Self::Unix(listener, _, unix_access) => {
                let (stream, _) = listener.accept().await?;
                let uid = stream.peer_cred().ok().map(|peer| peer.uid());
                let is_root = uid.is_some_and(|uid| unix_access.is_owner(uid));
                let who = if is_root { SlotOwner::Root } else { SlotOwner::Uid(uid) };
                let caller = match stream.peer_cred() {
                    Ok(peer) => {
                        let (uid, gid, pid) = (peer.uid(), peer.gid(), peer.pid());
                        unix_access.caller(Process { uid, gid, pid })
                    }
                    Err(_) => Caller::unauthenticated("an unknown process"),
                };
                Ok((Accepted::Ready(Box::new(stream)), caller, who))
            }
            Self::Tcp(listener, tls) => {
                let (stream, peer) = listener.accept().await?;
                // A response is a single small write, which Nagle's algorithm would only delay.
                stream.set_nodelay(true)?;
                // The address of a TCP client does not authenticate the caller; only a token does.
                let from = peer.ip().to_canonical().to_string();
                let stream = match tls {
                    Some(acceptor) => Accepted::Tls(stream, acceptor.clone()),
                    None => Accepted::Ready(Box::new(stream)),
                };
                Ok((stream, Caller::unauthenticated(from), SlotOwner::of(peer.ip())))
            }
        }
    }
}

/// Accepts connections until the server stops. `refusals` limits the concurrent 503 responses to
/// connections for which the queue was full. All other connections that get a 503 count against the
/// limits of the queue.
async fn accept_all(
    source: Source,
    router: Router,
    refusals: Arc<Semaphore>,
    mut stopped: watch::Receiver<bool>,
) {
    let all = Arc::new(Slots::default());
    let router = router.layer(middleware::from_fn(hold_slot));
    loop {
        let accepted = tokio::select! {
            biased;
            () = told(&mut stopped) => break,
            accepted = source.accept() => accepted,
        };
        match accepted {
            Ok((accepted, caller, who)) => {
                let entrance = all.knock(who);
                let refusal = match entrance {
                    Entrance::Full => Arc::clone(&refusals).try_acquire_owned().ok(),
                    Entrance::Taken(_) | Entrance::Waits(_) => None,
                };
                if refusal.is_none() && matches!(entrance, Entrance::Full) {
                    continue;
                }
                let (router, stopped) = (router.clone(), stopped.clone());
                // The task is not awaited; when it ends, it releases its slot.
                drop(tokio::spawn(caller::on_behalf_of(caller, async move {
                    let _refusal = refusal;
                    let taken = match entrance {
                        Entrance::Taken(taken) => Ok(taken),
                        Entrance::Waits(waiting) => waiting.taken().await.map_err(Some),
                        Entrance::Full => Err(None),
                    };
                    match taken {
                        Ok(taken) => serve_accepted(accepted, taken, router, stopped).await,
                        Err(timed_out) => {
                            refuse(accepted).await;
                            // The connection counts against the limits of the queue until the 503
                            // was sent.
                            drop(timed_out);
                        }
                    }
                })));
            }
            Err(error) => {
                not_accepted(&error).await;
            }
        }
    }
    // The listener is closed, so no further connection arrives. When every connection has ended,
    // all slots are free.
    drop(source);
    if tokio::time::timeout(STOP_TIMEOUT, all.all_free()).await.is_err() {
        tracing::warn!("stopping while management calls are still running");
    }
}

/// Waits before the next accept. If the process has no free descriptor, connections must close
/// before it can accept another.
pub(crate) async fn not_accepted(error: &io::Error) {
    static TOLD: LogLimiter<()> = LogLimiter::new(LINES_INTERVAL);
    if let Some(more) = TOLD.pass(()) {
        tracing::warn!(%error, more, "cannot accept a connection");
    }
    tokio::time::sleep(Duration::from_millis(100)).await;
}

async fn serve_accepted(
    accepted: Accepted,
    taken: Taken,
    router: Router,
    stopped: watch::Receiver<bool>,
) {
    // The connection has its slot during the TLS handshake, so a handshake that takes too long can
    // be evicted like an incomplete request.
    let serve = async move {
        if let Some(stream) = accepted.established().await {
            serve_one(stream, router, stopped).await;
        }
    };
    slots::within(taken, serve).await;
}

/// Sends a 503 to a connection without a slot. The server has read nothing of the request, so the
/// client knows that the server did nothing.
async fn refuse(accepted: Accepted) {
    let message = "the server has its maximum number of calls and connections; nothing was done";
    let error = ApiError::new(ErrorKind::Unavailable, message).with_action("try again in a second");
    let body = serde_json::to_string(&ErrorBody { error }).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 503 Service Unavailable\r\nretry-after: {RETRY_AFTER_SECONDS}\r\n\
         content-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    let answer = async {
        let Some(mut stream) = accepted.established().await else { return };
        if stream.write_all((head + &body).as_bytes()).await.is_err() {
            return;
        }
        drop(stream.shutdown().await);
        // Read the rest of the request: a close with unread bytes would reset the connection, and
        // the client would lose the response.
        let mut rest = [0; 4096];
        while let Ok(1..) = stream.read(&mut rest).await {}
    };
    drop(tokio::time::timeout(REFUSAL_LIMIT, answer).await);
}

/// Keeps the connection from being evicted while its call runs and while a streamed response is
/// sent.
pub(crate) async fn hold_slot(request: Request, next: Next) -> Response {
    let slot = slots::current();
    let call = slot.as_ref().map(slots::Slot::call);
    let mut answer = next.run(request).await;
    if slot.is_some_and(|slot| slot.is_leaving()) {
        answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
    if answer.body().size_hint().exact().is_some() {
        // The complete response is in memory. `Watched` reports to the slot when the kernel has the
        // whole response.
        return answer;
    }
    let (parts, body) = answer.into_parts();
    Response::from_parts(parts, Body::new(Holding { body, _call: call }))
}

/// Body of a streamed response. The call ends when hyper has taken the complete body.
struct Holding {
    body: Body,
    _call: Option<Call>,
}

impl hyper::body::Body for Holding {
    type Data = hyper::body::Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<hyper::body::Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> hyper::body::SizeHint {
        self.body.size_hint()
    }
}

/// Waits until the server stops, or until its handle is dropped.
async fn told(stopped: &mut watch::Receiver<bool>) {
    drop(stopped.wait_for(|stop| *stop).await);
}

pub(crate) async fn serve_one(
    stream: Box<dyn Duplex>,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) {
    let watched = Watched::new(stream, slots::current());
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .max_buf_size(HEADER_BYTES_MAX)
            .serve_connection(TokioIo::new(watched), TowerToHyperService::new(router))
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = told(&mut stopped) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a management connection ended early");
    }
}
