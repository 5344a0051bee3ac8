//! Checks of every HTTP request before its handler runs, and the common form of error responses.
//!
//! Checks of the fields of a request are in `types`. A browser on this machine can send cross-site
//! requests: `check_host`, `check_origin` and `check_content` refuse these requests. A page of
//! another site cannot set the header with a token, and there are no cookies.
//!
//! Invariants:
//! - a handler gets a complete body of bounded size, and only from an authenticated caller;
//! - every response other than a success is an [`ErrorBody`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::header::{
    CONNECTION, CONTENT_TYPE, HOST, HeaderName, HeaderValue, ORIGIN, RETRY_AFTER, WWW_AUTHENTICATE,
};
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::body::Body as _;
use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};
use weir_base::ErrorKind;

use crate::access::Role;
use crate::answers::Answers;
use crate::call_queue::{self, Admitted, CallQueue};
use crate::caller::{self, Caller};
use crate::limits::{
    BODY_TIMEOUT, LARGE_BODIES_MAX, LARGE_BODIES_OF_ONE_PEER_MAX, REQUEST_BYTES_MAX,
    RETRY_AFTER_SECONDS, SMALL_ANSWER_BYTES, SMALL_BODY_BYTES,
};
use crate::routes::PART_TYPE;
use crate::slots::{self, Slot};
use crate::token::Checker;
use crate::wire::{ApiError, ErrorBody, http_status};

/// The host names that are allowed in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum HostRule {
    /// Any name, because a browser cannot reach a unix socket.
    Any,
    /// Loopback names, and the address and name of the server's socket.
    Known {
        /// The address that the socket is bound to.
        bound: IpAddr,
        /// The configured name of the address that the socket is bound to, in lower case.
        name: String,
    },
}

impl HostRule {
    fn allows(&self, host: &str) -> bool {
        let Self::Known { bound, name } = self else { return true };
        let Ok(authority) = host.parse::<Authority>() else { return false };
        if authority.as_str().contains('@') {
            return false;
        }
        let host = authority.host().trim_end_matches('.').to_ascii_lowercase();
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(&host);
        match bare.parse::<IpAddr>().map(|ip| ip.to_canonical()) {
            // An attack by DNS rebinding needs a host name, so a request that names an IP address
            // of this socket is safe. A socket that is bound to all addresses accepts every IP
            // address.
            Ok(ip) => ip.is_loopback() || ip == bound.to_canonical() || bound.is_unspecified(),
            Err(_) => bare == "localhost" || bare == name,
        }
    }
}

/// Returns an error response whose status is more specific than the kind of its error.
fn refuse(status: StatusCode, message: impl Into<String>, action: &str) -> Response {
    let error = ApiError::new(ErrorKind::Invalid, message).with_action(action);
    (status, Json(ErrorBody { error })).into_response()
}

/// State that a listener needs to check requests.
pub(crate) struct Entry {
    pub(crate) hosts: HostRule,
    pub(crate) checker: Arc<Checker>,
    pub(crate) call_queue: Arc<CallQueue>,
    pub(crate) answers: Arc<Answers>,
}

/// Checks a request, reads its body and runs it; responds with an error if a check fails.
pub(crate) async fn admit(
    State(entry): State<Arc<Entry>>,
    request: Request,
    next: Next,
) -> Response {
    let checked = check_host(&entry.hosts, &request).and_then(|()| check_origin(&request));
    if let Err(refusal) = checked {
        return *refusal;
    }
    let (uri, headers) = (request.uri(), request.headers());
    match entry.checker.caller(caller::current(), uri, headers).await {
        // Only an authenticated caller may send a body, so the server reads the body only now.
        Ok(caller) => {
            let slot = slots::current();
            let large = LargeBodies::of(&caller);
            let only_looks = request.method() == Method::GET;
            let (method, uri) = (request.method().clone(), uri.clone());
            let run = read_and_run(request, next, large, Some(&entry.call_queue));
            let answer = caller::on_behalf_of(caller.clone(), run).await;
            if answer.status() == StatusCode::FORBIDDEN {
                entry.checker.note_denied(&caller, &method, &uri);
            }
            charge(&entry.answers, (&caller, slot.as_ref()), answer, only_looks).await
        }
        Err(refusal) => unproven(refusal),
    }
}

/// Charges the memory of a response to its caller until the response is sent.
async fn charge(
    answers: &Arc<Answers>,
    (caller, slot): (&Caller, Option<&Arc<Slot>>),
    answer: Response,
    only_looks: bool,
) -> Response {
    let bytes = answer.body().size_hint().exact().unwrap_or_default() as usize;
    let Some(slot) = slot.filter(|_| bytes > SMALL_ANSWER_BYTES) else { return answer };
    let charge = if only_looks {
        let yields = slot.queues();
        let charge = tokio::select! {
            biased;
            charge = answers.wait(caller, bytes) => charge,
            () = slot.hurried() => None,
        };
        drop(yields);
        let Some(charge) = charge else { return too_many() };
        charge
    } else {
        answers.charge(caller, bytes)
    };
    slot.hold(charge);
    answer
}

/// Returns the response to a call that did not run because too many calls are running.
fn too_many() -> Response {
    let message = "the server runs its maximum number of calls; nothing was done";
    let error = ApiError::new(ErrorKind::Unavailable, message).with_action("try again in a second");
    let retry = HeaderValue::from(RETRY_AFTER_SECONDS);
    let mut answer = error.into_response();
    answer.headers_mut().insert(RETRY_AFTER, retry);
    answer
}

/// Returns the response to an unauthenticated caller. The response closes the connection, so that
/// the caller cannot keep it by repeating the request.
fn unproven(error: ApiError) -> Response {
    if error.kind != ErrorKind::Permission {
        return error.into_response();
    }
    let body = Json(ErrorBody { error });
    let headers = [(WWW_AUTHENTICATE, "Bearer"), (CONNECTION, "close")];
    (StatusCode::UNAUTHORIZED, headers, body).into_response()
}

/// Runs a request like [`admit`], for a peer that has sent the secret. A peer may use any host
/// name.
pub(crate) async fn admit_peer(
    State(answers): State<Arc<Answers>>,
    request: Request,
    next: Next,
) -> Response {
    let (caller, slot) = (caller::current(), slots::current());
    let only_looks = request.method() == Method::GET;
    let answer = read_and_run(request, next, LargeBodies::Peers, None).await;
    charge(&answers, (&caller, slot.as_ref()), answer, only_looks).await
}

async fn read_and_run(
    request: Request,
    next: Next,
    large: LargeBodies,
    call_queue: Option<&Arc<CallQueue>>,
) -> Response {
    if let Err(refusal) = check_content(&request) {
        return *refusal;
    }
    let slot = slots::current();
    let is_leaving = || slot.as_ref().is_some_and(|slot| slot.is_leaving());
    if is_leaving() {
        return too_many();
    }
    // The permit is held until the end of the call, because the body stays in memory until then.
    let queues = call_queue.and(slot.as_ref()).map(Slot::queues);
    let permit = tokio::select! {
        biased;
        permit = large.permit(request.body().size_hint().exact()) => permit,
        () = slots::hurried(slot.as_ref()) => return too_many(),
    };
    drop(queues);
    let permit = match permit {
        Ok(permit) => permit,
        Err(refusal) => return *refusal,
    };
    let most = if permit.is_some() { REQUEST_BYTES_MAX } else { SMALL_BODY_BYTES };
    let (parts, body) = request.into_parts();
    slot.iter().for_each(|slot| slot.receives_body(true));
    let read = tokio::select! {
        biased;
        read = read_body(body, most) => read,
        // Another connection needs the slot, so the call is refused before it has its body.
        () = slots::hurried(slot.as_ref()) => Err(Box::new(too_many())),
    };
    slot.iter().for_each(|slot| slot.receives_body(false));
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(refusal) => return *refusal,
    };
    let call_permit = match call_queue {
        None => None,
        Some(call_queue) => match call_queue.take(&caller::current(), slot.as_ref()).await {
            Admitted::Now(call_permit) => call_permit,
            Admitted::No => return too_many(),
        },
    };
    // This is the last check that can refuse the call. If the check passes, the call runs and gets
    // its response.
    if is_leaving() {
        return too_many();
    }
    call_queue::within(call_permit, next.run(Request::from_parts(parts, Body::from(bytes)))).await
}

/// Kinds of callers, for the limit on the number of bodies above [`SMALL_BODY_BYTES`] in memory.
/// Each kind has a limit of its own, so that viewers and operators with incomplete bodies delay no
/// admin and no peer.
#[derive(Clone, Copy)]
enum LargeBodies {
    Admins,
    Others,
    Peers,
}

impl LargeBodies {
    fn of(caller: &Caller) -> Self {
        let is_admin = caller.rights().is_some_and(|rights| rights.role == Role::Admin);
        if is_admin { Self::Admins } else { Self::Others }
    }

    fn permits(self) -> &'static Semaphore {
        static ADMINS: Semaphore = Semaphore::const_new(LARGE_BODIES_MAX);
        static OTHERS: Semaphore = Semaphore::const_new(LARGE_BODIES_MAX);
        static PEERS: Semaphore = Semaphore::const_new(LARGE_BODIES_MAX);
        match self {
            Self::Admins => &ADMINS,
            Self::Others => &OTHERS,
            Self::Peers => &PEERS,
        }
    }

    /// Waits for a permit to receive a large body; returns `None` for a small body.
    async fn permit(self, body_bytes: Option<u64>) -> Result<Option<Permit>, Box<Response>> {
        if body_bytes.is_some_and(|bytes| bytes <= SMALL_BODY_BYTES as u64) {
            return Ok(None);
        }
        let busy = || Box::new(too_many());
        let share = match caller::current().peer() {
            Some(peer) => Some(PeerShare::take(peer).ok_or_else(busy)?),
            None => None,
        };
        match tokio::time::timeout(BODY_TIMEOUT, self.permits().acquire()).await {
            Ok(permit) => Ok(permit.ok().map(|permit| Permit { _share: share, _permit: permit })),
            Err(_) => Err(busy()),
        }
    }
}

/// Permit for one large body in memory.
struct Permit {
    _share: Option<PeerShare>,
    _permit: SemaphorePermit<'static>,
}

/// Permit for one of the [`LARGE_BODIES_OF_ONE_PEER_MAX`] large bodies of a peer. The limit
/// prevents that a peer with many incomplete bodies delays other peers.
struct PeerShare(IpAddr);

static PEER_SHARES: Mutex<BTreeMap<IpAddr, usize>> = Mutex::new(BTreeMap::new());

impl PeerShare {
    fn take(peer: IpAddr) -> Option<Self> {
        let mut shares = PEER_SHARES.lock();
        let taken = shares.entry(peer).or_default();
        (*taken < LARGE_BODIES_OF_ONE_PEER_MAX).then(|| {
            *taken += 1;
            Self(peer)
        })
    }
}

impl Drop for PeerShare {
    fn drop(&mut self) {
        let mut shares = PEER_SHARES.lock();
        if let Some(taken) = shares.get_mut(&self.0) {
            *taken -= 1;
            if *taken == 0 {
                shares.remove(&self.0);
            }
        }
    }
}

/// Refuses a request whose host name is not a name of this server. A browser sends such a request
/// after DNS rebinding: the owner of a foreign name sets the name's address to the address of this
/// server.
fn check_host(hosts: &HostRule, request: &Request) -> Result<(), Box<Response>> {
    let mut headers = request.headers().get_all(HOST).iter();
    let host = match (headers.next(), headers.next()) {
        (Some(host), None) => host.to_str().unwrap_or_default(),
        _ => "",
    };
    // The request line may also name a host. Both this name and the header must be allowed.
    let named = request.uri().authority().map(Authority::as_str);
    if hosts.allows(host) && named.is_none_or(|named| hosts.allows(named)) {
        return Ok(());
    }
    Err(Box::new(refuse(
        StatusCode::MISDIRECTED_REQUEST,
        format!("this server does not have the name {host:?}"),
        "use localhost, or the address that the server listens on",
    )))
}

/// Refuses a request that a browser sends for a page of another site, as `Origin` and
/// `Sec-Fetch-Site` show.
fn check_origin(request: &Request) -> Result<(), Box<Response>> {
    let header = |name| request.headers().get(name).map(|value: &HeaderValue| value.to_str());
    let site = header(HeaderName::from_static("sec-fetch-site"));
    let host = header(HOST).and_then(Result::ok).unwrap_or_default();
    let is_ours = |origin: &str| {
        let place = origin.split_once("://").map(|(_, place)| place);
        place.is_some_and(|place| place.eq_ignore_ascii_case(host))
    };
    let origin = header(ORIGIN);
    if site.is_none_or(|site| matches!(site, Ok("same-origin" | "none")))
        && origin.is_none_or(|origin| origin.is_ok_and(is_ours))
    {
        return Ok(());
    }
    Err(Box::new(refuse(
        StatusCode::FORBIDDEN,
        "a web page of another site sent this request",
        "call the server from a program, or from a page that it serves",
    )))
}

/// Refuses a changing call without the content type that a page of another site cannot send.
fn check_content(request: &Request) -> Result<(), Box<Response>> {
    if matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return Ok(());
    }
    let content = request.headers().get(CONTENT_TYPE).and_then(|value| value.to_str().ok());
    let essence = content.unwrap_or_default().split(';').next().unwrap_or_default().trim();
    // A browser sends these two content types to another site only after a preflight request, and
    // this server allows none.
    let is_part = request.uri().path().starts_with("/v1/receives/");
    if essence.eq_ignore_ascii_case("application/json")
        || (is_part && essence.eq_ignore_ascii_case(PART_TYPE))
    {
        return Ok(());
    }
    Err(Box::new(refuse(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "a changing call must have the header content-type: application/json",
        "add that header, even without a body",
    )))
}

async fn read_body(body: Body, most: usize) -> Result<Bytes, Box<Response>> {
    let whole = Limited::new(body, most).collect();
    let refusal = match tokio::time::timeout(BODY_TIMEOUT, whole).await {
        Ok(Ok(bytes)) => return Ok(bytes.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            format!("the request body is longer than {most} bytes"),
            "send less at a time",
        ),
        Ok(Err(error)) => {
            refuse(StatusCode::BAD_REQUEST, format!("incomplete request body: {error}"), RETRY)
        }
        Err(_) => refuse(StatusCode::REQUEST_TIMEOUT, "the request body took too long", RETRY),
    };
    Err(Box::new(refusal))
}

const RETRY: &str = "send the request again";

/// Converts errors of the HTTP layer (unknown path, wrong method, invalid JSON) to an
/// [`ErrorBody`].
pub(crate) async fn uniform_errors(response: Response) -> Response {
    let status = response.status();
    let json = response.headers().get(CONTENT_TYPE).is_some_and(|t| t == "application/json");
    if json || !(status.is_client_error() || status.is_server_error()) {
        return response;
    }
    let (mut parts, body) = response.into_parts();
    let text = match Limited::new(body, REQUEST_BYTES_MAX).collect().await {
        Ok(bytes) => String::from_utf8_lossy(&bytes.to_bytes()).trim().to_owned(),
        Err(_) => String::new(),
    };
    let kind = match status {
        StatusCode::NOT_FOUND => ErrorKind::NotFound,
        _ if status.is_client_error() => ErrorKind::Invalid,
        _ => ErrorKind::Internal,
    };
    let message = if text.is_empty() {
        status.canonical_reason().unwrap_or("the request failed").to_owned()
    } else {
        text
    };
    let error = ApiError::new(kind, message).with_action("see /v1/openapi.json for the calls");
    // A 405 keeps its status and its header `allow`, which say more than the kind of the error.
    if status != StatusCode::METHOD_NOT_ALLOWED {
        parts.status = http_status(kind);
    }
    let mut uniform = (parts.status, Json(ErrorBody { error })).into_response();
    if let Some(allow) = parts.headers.remove(axum::http::header::ALLOW) {
        uniform.headers_mut().insert(axum::http::header::ALLOW, allow);
    }
    uniform
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    fn rule(bound: &str, name: &str) -> HostRule {
        HostRule::Known { bound: bound.parse().unwrap(), name: name.into() }
    }

    #[test]
    fn only_host_names_of_this_machine_pass() {
        let loopback = rule("127.0.0.1", "127.0.0.1");
        for host in ["localhost", "LOCALHOST:7117", "127.0.0.1:1", "[::1]:1", "127.9.9.9"] {
            assert!(loopback.allows(host), "{host}");
        }
        for host in ["", "evil.example", "localhost.evil.example", "10.0.0.1", "a@localhost"] {
            assert!(!loopback.allows(host), "{host}");
        }
        assert!(rule("10.0.0.1", "nas.lan").allows("nas.lan:7117"));
        assert!(rule("10.0.0.1", "nas.lan").allows("10.0.0.1"));
        assert!(!rule("10.0.0.1", "nas.lan").allows("10.0.0.2"));
        assert!(rule("0.0.0.0", "0.0.0.0").allows("10.0.0.2"));
        assert!(!rule("0.0.0.0", "0.0.0.0").allows("evil.example"));
        assert!(HostRule::Any.allows(""));
    }

    #[tokio::test(start_paused = true)]
    async fn large_bodies_are_limited_by_kind_of_caller_and_by_peer() {
        let large = Some(SMALL_BODY_BYTES as u64 + 1);
        let take = async |kind: LargeBodies| kind.permit(large).await.ok().flatten();
        let of_peer = async |last: u8| {
            let caller = Caller::of_peer(&([10, 0, 0, last], 7118).into());
            caller::on_behalf_of(caller, take(LargeBodies::Peers)).await
        };
        let mut held = Vec::new();
        for kind in [LargeBodies::Admins, LargeBodies::Others] {
            for _ in 0..8 {
                held.push(take(kind).await.expect("a permit"));
            }
            let begun = Instant::now();
            assert!(take(kind).await.is_none());
            assert!(begun.elapsed() >= BODY_TIMEOUT, "it did not wait");
        }
        for last in [1, 2] {
            for _ in 0..4 {
                held.push(of_peer(last).await.expect("a permit"));
            }
            assert!(of_peer(last).await.is_none(), "it has its share");
        }
        assert!(of_peer(3).await.is_none(), "the peers have as many as they may");
        // Dropping this body releases a permit of the second peer.
        held.pop();
        drop(of_peer(3).await.expect("a permit was given back"));
        assert!(of_peer(2).await.is_some());
        drop(held);
        assert!(PEER_SHARES.lock().is_empty());
        assert!(LargeBodies::Admins.permit(Some(1)).await.is_ok_and(|permit| permit.is_none()));
    }
}
