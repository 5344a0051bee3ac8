//! Server for peers: other servers that replicate to this one.
//!
//! `calls` defines the calls that peers make.
//!
//! Invariants:
//! - a connection has a slot for unauthenticated peers until it sends the right secret, and then a
//!   slot for authenticated peers. So unauthenticated peers take no slots from authenticated ones.
//!   Both kinds of slots are limited for each address;
//! - the server closes a connection after its first request without the right secret;
//! - the server reads no request body before it has checked the secret.

use std::future::Future;
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header::{AUTHORIZATION, CONNECTION};
use axum::http::{HeaderValue, StatusCode};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse as _, Response};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use weir_base::{ErrorKind, LogLimiter};

use super::Secret;
use crate::answers::Answers;
use crate::caller::{self, Caller};
use crate::calls::table::Control;
use crate::limits::{
    HEADER_TIMEOUT, PEER_SHARE_MAX, PEER_UNAUTHENTICATED_MAX, PEER_UNAUTHENTICATED_OF_ONE_MAX,
    PEERS_MAX, STOP_TIMEOUT, UNAUTHENTICATED_LOG_INTERVAL,
};
use crate::place::Address;
use crate::slots::{self, Entrance, SlotLimits, SlotOwner, Slots};
use crate::tls::Tls;
use crate::wire::{ApiError, ErrorBody};
use crate::{Error, guard, routes, server};

/// Limits of slots without a queue: peers retry by themselves, so no connection waits for a slot.
const NO_QUEUE: SlotLimits = SlotLimits {
    all: 0,
    of_one: 0,
    of_root: 0,
    waiting: 0,
    waiting_of_one: 0,
    grace: std::time::Duration::ZERO,
};

/// A listening socket for peers.
pub struct PeerListener {
    address: Address,
    socket: TcpListener,
    acceptor: TlsAcceptor,
    secret: Secret,
}

impl PeerListener {
    /// Listens on a TCP address; with port 0, the system selects a free port.
    ///
    /// # Errors
    /// [`Error::File`] or [`Error::Private`] for a secret that cannot be used; the errors of
    /// [`Listener::bind`](crate::Listener::bind) for the address.
    pub fn bind(address: &Address, tls: &Tls, secret: &Path) -> Result<Self, Error> {
        let secret = Secret::read(secret)?;
        let acceptor = tls.acceptor();
        let Address::Tcp { host, port } = address else {
            let why = "a listener for peers needs a TCP address";
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

    /// Returns the address of the socket, with the port that the system selected.
    pub fn address(&self) -> &Address {
        &self.address
    }
}

/// Serves peers until `stop` is ready, then gives running calls up to [`STOP_TIMEOUT`] to finish.
///
/// # Errors
/// [`Error::Listen`] if the socket cannot be registered with the runtime.
pub async fn serve_peers<S: Control>(
    listener: PeerListener,
    control: Arc<S>,
    stop: impl Future<Output = ()>,
) -> Result<(), Error> {
    let PeerListener { address, socket, acceptor, secret } = listener;
    let failed = |source| Error::Listen { address: address.to_string(), source };
    let socket = tokio::net::TcpListener::from_std(socket).map_err(failed)?;
    let of_strangers = SlotLimits {
        all: PEER_UNAUTHENTICATED_MAX,
        of_one: PEER_UNAUTHENTICATED_OF_ONE_MAX,
        ..NO_QUEUE
    };
    let strangers = Arc::new(Slots::with(of_strangers));
    let of_peers = SlotLimits { all: PEERS_MAX, of_one: PEER_SHARE_MAX, ..NO_QUEUE };
    let entry = Arc::new(Entry { secret, peers: Arc::new(Slots::with(of_peers)) });
    let router = routes::peer_router(&control)
        .layer(middleware::from_fn_with_state(Arc::<Answers>::default(), guard::admit_peer))
        .layer(middleware::from_fn_with_state(Arc::clone(&entry), ask_for_secret))
        .layer(middleware::from_fn(server::hold_slot));
    tracing::info!(%address, "listening for peers");
    let (stopping, stopped) = watch::channel(false);
    let mut stop = std::pin::pin!(stop);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut stop => break,
            accepted = socket.accept() => accepted,
        };
        let (stream, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                server::not_accepted(&error).await;
                continue;
            }
        };
        let Entrance::Taken(slot) = strangers.knock(SlotOwner::of(peer.ip())) else { continue };
        let (acceptor, router, stopped) = (acceptor.clone(), router.clone(), stopped.clone());
        let connection = slots::within(slot, async move {
            drop(stream.set_nodelay(true));
            match tokio::time::timeout(HEADER_TIMEOUT, acceptor.accept(stream)).await {
                Ok(Ok(stream)) => server::serve_one(Box::new(stream), router, stopped).await,
                Ok(Err(error)) => turned_away(&peer, &format!("the TLS handshake failed: {error}")),
                Err(_) => turned_away(&peer, "the TLS handshake timed out"),
            }
        });
        drop(tokio::spawn(caller::on_behalf_of(Caller::of_peer(&peer), connection)));
    }
    stopping.send_replace(true);
    let all_ended = async {
        strangers.all_free().await;
        entry.peers.all_free().await;
    };
    if tokio::time::timeout(STOP_TIMEOUT, all_ended).await.is_err() {
        tracing::warn!("stopping while calls of peers are still running");
    }
    Ok(())
}

/// The secret of peers, and the slots of authenticated connections, for the check of requests.
struct Entry {
    secret: Secret,
    peers: Arc<Slots>,
}

/// Logs an attempt of an unauthenticated peer, at a limited rate.
fn turned_away(who: &dyn std::fmt::Display, why: &str) {
    static TOLD: LogLimiter<()> = LogLimiter::new(UNAUTHENTICATED_LOG_INTERVAL);
    if let Some(more) = TOLD.pass(()) {
        tracing::warn!(%who, why, more, "rejected an unauthenticated peer");
    }
}

/// Lets only requests pass that contain the secret.
async fn ask_for_secret(
    State(entry): State<Arc<Entry>>,
    request: Request<Body>,
    next: Next,
) -> Response {
    let given = request.headers().get(AUTHORIZATION);
    if given.is_some_and(|given| entry.secret.is_in(given.as_bytes())) {
        if slots::move_current_to(&entry.peers) {
            return next.run(request).await;
        }
        let message = "too many connections of other servers";
        let error = ApiError::new(ErrorKind::Busy, message);
        return last(error.with_action("replicate fewer volumes at the same time").into_response());
    }
    turned_away(&caller::current(), "wrong secret");
    let error = ApiError::new(ErrorKind::Permission, "the secret is not that of this server")
        .with_action("give both servers a file with the same secret");
    last((StatusCode::UNAUTHORIZED, Json(ErrorBody { error })).into_response())
}

/// Returns `answer` with a header that closes the connection.
fn last(mut answer: Response) -> Response {
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
