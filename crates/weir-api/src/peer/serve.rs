//! The answering side of two servers.
//!
//! Not here: what the calls do ([`crate::Control`]).
//!
//! Invariants:
//! - a stranger costs one slot for a few seconds at most;
//! - nothing is read of a request before its secret is right.

use std::future::Future;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::AUTHORIZATION;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use axum::{Json, Router};
use tokio::sync::{Semaphore, watch};
use tokio_rustls::TlsAcceptor;
use weir_base::ErrorKind;

use super::Secret;
use crate::caller::{self, Caller};
use crate::control::Control;
use crate::limits::{HEADER_TIMEOUT, PEERS_MAX, STOP_TIMEOUT};
use crate::place::Address;
use crate::tls::Tls;
use crate::wire::{ApiError, ErrorBody};
use crate::{Error, guard, routes, server};

/// A socket that listens for peers.
pub struct PeerListener {
    address: Address,
    socket: TcpListener,
    acceptor: TlsAcceptor,
    secret: Secret,
}

impl PeerListener {
    /// Listens on a TCP address; port 0 picks a free one.
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::Private`] for a secret that cannot be used; as
    /// [`Listener::bind`](crate::Listener::bind) for the address.
    pub fn bind(address: &Address, tls: &Tls, secret: &Path) -> Result<Self, Error> {
        let secret = Secret::read(secret)?;
        let acceptor = tls.acceptor();
        let Address::Tcp { host, port } = address else {
            let why = "peers are listened for on a TCP address";
            return Err(Error::Address { text: address.to_string(), why });
        };
        let failed = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::AddrInUse => Error::InUse { address: address.to_string() },
            _ => Error::Listen { address: address.to_string(), source },
        };
        let socket = TcpListener::bind((host.as_str(), *port)).map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let port = socket.local_addr().map_err(failed)?.port();
        let address = Address::Tcp { host: host.clone(), port };
        Ok(Self { address, socket, acceptor, secret })
    }

    /// Where it listens, with the port that was picked.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

/// Serves peers until `stop` is ready; then lets running calls finish for a few seconds.
///
/// # Errors
/// [`Error::Listen`] when the socket cannot be handed to the runtime.
pub async fn serve_peers(
    listener: PeerListener,
    control: Arc<dyn Control>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let PeerListener { address, socket, acceptor, secret } = listener;
    let failed = |source| Error::Listen { address: address.to_string(), source };
    let socket = tokio::net::TcpListener::from_std(socket).map_err(failed)?;
    let router = routes::peer_router(control);
    let router = router
        .layer(middleware::from_fn(guard::admit_peer))
        .layer(middleware::from_fn_with_state(Arc::new(secret), ask_for_secret));
    tracing::info!(%address, "listening for peers");
    let slots = Arc::new(Semaphore::new(PEERS_MAX));
    let (stopping, stopped) = watch::channel(false);
    let mut stop = std::pin::pin!(stop);
    loop {
        let next = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, socket.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            biased;
            () = &mut stop => break,
            next = next => next,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a peer");
                tokio::time::sleep(std::time::Duration::from_millis(100)).await;
                continue;
            }
        };
        let (acceptor, router, stopped) = (acceptor.clone(), router.clone(), stopped.clone());
        let connection = async move {
            let _slot = slot;
            drop(stream.set_nodelay(true));
            match tokio::time::timeout(HEADER_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => serve_one(stream, router, stopped).await,
                Ok(Err(error)) => tracing::warn!(%peer, %error, "a peer did not get through TLS"),
                Err(_) => tracing::warn!(%peer, "a peer did not get through TLS in time"),
            }
        };
        drop(tokio::spawn(caller::on_behalf_of(Caller::of_peer(&peer), connection)));
    }
    stopping.send_replace(true);
    let all = slots.acquire_many(PEERS_MAX as u32);
    if tokio::time::timeout(STOP_TIMEOUT, all).await.is_err() {
        tracing::warn!("stopping while calls of peers are still running");
    }
    Ok(())
}

async fn serve_one(
    stream: tokio_rustls::server::TlsStream<tokio::net::TcpStream>,
    router: Router,
    stopped: watch::Receiver<bool>,
) {
    server::serve_one(Box::new(stream), router, stopped).await;
}

/// Lets a request through that carries the secret.
async fn ask_for_secret(
    State(secret): State<Arc<Secret>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let given = request.headers().get(AUTHORIZATION);
    if given.is_some_and(|given| secret.is_in(given.as_bytes())) {
        return next.run(request).await;
    }
    tracing::warn!(who = %caller::current(), "a peer without the secret was turned away");
    let error = ApiError::new(ErrorKind::Permission, "the secret is not the one of this server")
        .with_action("give both servers a file with the same secret");
    (StatusCode::UNAUTHORIZED, Json(ErrorBody { error })).into_response()
}
