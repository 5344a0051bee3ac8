//! The HTTP server: several listeners, bounded connections, a clean stop.
//!
//! Not here: what a request means (`routes`), which requests are let in (`guard`).
//!
//! Invariants:
//! - a connection holds one of its listener's slots for as long as it lives, and gives it up to a
//!   new one while it sends nothing (`slots`);
//! - a client that sends nothing, or half a request, loses its connection after a fixed time.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::middleware::{self, Next};
use axum::response::Response;
use http_body_util::BodyExt as _;
use hyper::body::Body as _;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;
use weir_serve::SocketFile;

use crate::caller::{self, Caller};
use crate::control::Control;
use crate::door::{Door, Process};
use crate::gate::Gate;
use crate::guard;
use crate::limits::{HEADER_TIMEOUT, STOP_TIMEOUT};
use crate::listen::{Listener, Socket};
use crate::slots::{Slots, Who};
use crate::token::{Authority, Checker};
use crate::{Error, routes, slots};

/// Serves the management interface on all `listeners` until `stop` is ready; then lets running
/// calls finish for a few seconds. Needs a tokio runtime with I/O and time, a single-threaded one
/// is enough; [`Control`] must not block it.
///
/// Calls reach `control` through the gate, which asks for the rights of the caller: a user of the
/// unix socket, or the holder of a token that `authority` knows.
///
/// # Errors
/// [`Error::Listen`] when a socket cannot be handed to the runtime; nothing is served then.
pub async fn serve(
    listeners: Vec<Listener>,
    control: Arc<dyn Control>,
    authority: Arc<dyn Authority>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let (stopping, stopped) = watch::channel(false);
    let router = routes::router(Arc::new(Gate::new(control)));
    let checker = Arc::new(Checker::new(authority));
    let mut loops = JoinSet::new();
    for listener in listeners {
        let entry = guard::Entry { hosts: listener.hosts.clone(), checker: Arc::clone(&checker) };
        let entry = middleware::from_fn_with_state(Arc::new(entry), guard::admit);
        let guarded = router.clone().layer(entry);
        let name = listener.address().to_string();
        let source = Source::new(listener)?;
        tracing::info!(address = name, "management interface");
        loops.spawn(accept_all(source, guarded, stopped.clone()));
    }
    stop.await;
    stopping.send_replace(true);
    while let Some(ended) = loops.join_next().await {
        if let Err(error) = ended {
            tracing::error!(%error, "a listener of the management interface broke");
        }
    }
    Ok(())
}

/// A listener inside the runtime.
enum Source {
    Unix(
        UnixListener,
        #[expect(dead_code, reason = "removes the file when dropped")] SocketFile,
        Door,
    ),
    Tcp(TcpListener, Option<TlsAcceptor>),
}

/// A connection that was accepted; TLS is not spoken on it yet.
enum Accepted {
    Ready(Box<dyn Stream>),
    Tls(TcpStream, TlsAcceptor),
}

impl Accepted {
    /// The stream of requests; none where the other side does not get through TLS in time.
    async fn established(self) -> Option<Box<dyn Stream>> {
        let (stream, acceptor) = match self {
            Self::Ready(stream) => return Some(stream),
            Self::Tls(stream, acceptor) => (stream, acceptor),
        };
        match tokio::time::timeout(HEADER_TIMEOUT, acceptor.accept(stream)).await {
            Ok(Ok(stream)) => Some(Box::new(stream)),
            Ok(Err(error)) => {
                tracing::debug!(%error, "a caller did not get through TLS");
                None
            }
            Err(_) => None,
        }
    }
}

pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

impl Source {
    fn new(listener: Listener) -> Result<Self, Error> {
        let address = listener.address().to_string();
        match listener.socket {
            Socket::Unix(socket, file, door) => {
                UnixListener::from_std(socket).map(|s| Self::Unix(s, file, door))
            }
            Socket::Tcp(socket, tls) => {
                let tls = tls.map(|tls| tls.acceptor());
                TcpListener::from_std(socket).map(|socket| Self::Tcp(socket, tls))
            }
        }
        .map_err(|source| Error::Listen { address, source })
    }

    /// The next connection, who made it, and whom it is counted for.
    async fn accept(&self) -> io::Result<(Accepted, Caller, Who)> {
        match self {
            Self::Unix(listener, _, door) => {
                let (stream, _) = listener.accept().await?;
                let who = Who::Uid(stream.peer_cred().ok().map(|peer| peer.uid()));
                let caller = match stream.peer_cred() {
                    Ok(peer) => {
                        let (uid, gid, pid) = (peer.uid(), peer.gid(), peer.pid());
                        door.caller(Process { uid, gid, pid })
                    }
                    Err(_) => Caller::stranger("an unknown process"),
                };
                Ok((Accepted::Ready(Box::new(stream)), caller, who))
            }
            Self::Tcp(listener, tls) => {
                let (stream, peer) = listener.accept().await?;
                // Answers are one small write: waiting to fill a segment only delays them.
                stream.set_nodelay(true)?;
                // The address alone proves nothing: a token must.
                let from = peer.ip().to_canonical().to_string();
                let stream = match tls {
                    Some(acceptor) => Accepted::Tls(stream, acceptor.clone()),
                    None => Accepted::Ready(Box::new(stream)),
                };
                Ok((stream, Caller::stranger(from), Who::of(peer.ip())))
            }
        }
    }
}

async fn accept_all(source: Source, router: Router, mut stopped: watch::Receiver<bool>) {
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
                let Some(taken) = all.take(who) else { continue };
                let (router, stopped) = (router.clone(), stopped.clone());
                // The task is not awaited by handle: its slot comes back when it ends.
                drop(tokio::spawn(caller::on_behalf_of(caller, async move {
                    // The handshake of TLS counts as waiting for the client.
                    let serve = async move {
                        if let Some(stream) = accepted.established().await {
                            serve_one(stream, router, stopped).await;
                        }
                    };
                    slots::within(taken, serve).await;
                })));
            }
            Err(error) => {
                // Out of descriptors, most likely: others must close first.
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
    // Nobody new gets in, and all slots are back once every connection has ended.
    drop(source);
    if tokio::time::timeout(STOP_TIMEOUT, all.all_free()).await.is_err() {
        tracing::warn!("stopping while management calls are still running");
    }
}

/// Keeps the slot for as long as a call is under way and its answer is streamed.
pub(crate) async fn hold_slot(request: Request, next: Next) -> Response {
    let call = slots::current().map(|slot| slot.call());
    let answer = next.run(request).await;
    if answer.body().size_hint().exact().is_some() {
        // It is handed over whole.
        return answer;
    }
    let (parts, body) = answer.into_parts();
    let body = body.map_frame(move |frame| {
        // Dropped with the body, when all of it was handed over.
        let _held = &call;
        frame
    });
    Response::from_parts(parts, Body::new(body))
}

/// Waits until the server is told to stop, or is gone.
async fn told(stopped: &mut watch::Receiver<bool>) {
    drop(stopped.wait_for(|stop| *stop).await);
}

pub(crate) async fn serve_one(
    stream: Box<dyn Stream>,
    router: Router,
    mut stopped: watch::Receiver<bool>,
) {
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEADER_TIMEOUT)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
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
