//! A client of the management interface: [`Control`] over HTTP, on a unix socket or TCP.
//!
//! Not here: choosing the server (`place`).
//!
//! Invariants:
//! - a call ends within the client's timeout, whatever the server does;
//! - a request that is wrong in itself is refused here, without a connection;
//! - nothing is retried behind one's back.

mod sending;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use axum::http::{HeaderValue, Method, StatusCode};
use http_body_util::Full;
use hyper::body::Bytes;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::net::{TcpStream, UnixStream};
use weir_base::{ErrorKind, names};

use crate::connection::{Broken, Exchange, Kept};
use crate::control::{Answer, Control};
use crate::limits::{CLIENT_TIMEOUT, PAGE_ENTRIES_MAX};
use crate::peer::{PeerAddress, PeerLink, Secret};
use crate::routes::{
    CloseOptions, ExportClients, MovedDisk, NewDisk, NewName, NewSize, NewVdevs, OneDisk, OneVdev,
    PART_TYPE, ScrubOptions, SomeDisks, Successor,
};
use crate::server::Stream;
use crate::stream::SendStream;
use crate::token::SecretText;
use crate::types::page::Paged;
use crate::types::{
    BookmarkChange, BookmarkCreate, BookmarkDestroy, BookmarkList, DedupeEstimate, DedupeForecast,
    DigestList, DigestRequest, EventList, EventQuery, Export, ExportChange, ExportCreate,
    ExportKey, ExportList, ExportSet, HistoryList, ImportableList, InitiatorAllow, InitiatorKey,
    LunAdd, LunKey, PoolAdd, PoolAttach, PoolChange, PoolClear, PoolCreate, PoolCreated,
    PoolDestroy, PoolDisk, PoolExport, PoolImport, PoolList, PoolOnline, PoolRemove, PoolReplace,
    PoolScan, PoolScrub, PoolStatus, PropertyChange, PropertyInherit, PropertyList, PropertyQuery,
    PropertySet, ReceiveDone, ReceiveProgress, ReceiveStart, ReceiveStarted, ReceiveToken, Removed,
    ReplicationAct, ReplicationChange, ReplicationCreate, ReplicationList, ReplicationRemoved,
    Request, ScheduleChange, ScheduleList, ScheduleSet, SendProgress, SendStart, SendStarted,
    ServerInfo, SnapshotChange, SnapshotClone, SnapshotCreate, SnapshotDestroy, SnapshotList,
    SnapshotQuery, SnapshotRename, SnapshotRollback, SnapshotTag, SnapshotsDestroyed, StreamKey,
    StreamList, Target, TargetChange, TargetCreate, TargetKey, TargetList, TokenCreate,
    TokenCreated, TokenKey, TokenList, Volume, VolumeAdvice, VolumeAdvise, VolumeChange,
    VolumeCopy, VolumeCreate, VolumeDestroy, VolumeList, VolumeRename, VolumeResize, VolumeSet,
    check_listed, check_marked, check_scheduled,
};
use crate::wire::{ApiError, ErrorBody};
use crate::{Address, Error};

/// Escapes everything but what RFC 3986 section 2.3 leaves alone.
const PART: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b':');

const JSON: &str = "application/json";

/// Times that a list is begun: a page cannot be answered when the entry before it is gone.
const LISTS_BEGUN_MAX: usize = 4;

/// A client of one server.
#[derive(Clone, Debug)]
pub struct Client {
    address: Address,
    timeout: Duration,
    kept: Kept,
    /// What it shows, where it is no user of the server's machine.
    token: Option<SecretText>,
    /// The way to a server that asks for TLS and a secret.
    link: Option<Arc<PeerLink>>,
}

/// One call as it goes out.
struct Call {
    method: Method,
    path: String,
    body: Bytes,
    content: &'static str,
}

impl Client {
    /// A client of the server at `address` that waits up to [`CLIENT_TIMEOUT`].
    pub fn new(address: Address) -> Self {
        let kept = Kept::default();
        Self { address, timeout: CLIENT_TIMEOUT, kept, token: None, link: None }
    }

    /// A client of another server, over TLS; of all calls it answers few.
    ///
    /// # Errors
    /// [`Error::File`] for a file of certificates that cannot be used.
    pub fn peer(to: &PeerAddress, ca: &Path, secret: Secret) -> Result<Self, Error> {
        PeerLink::new(&to.host, to.port, ca, Some(secret)).map(Self::over)
    }

    /// A client of a management interface, over TLS: nothing is sent to a server whose certificate
    /// none in the file `ca` vouches for.
    ///
    /// # Errors
    /// [`Error::File`] for a file of certificates that cannot be used.
    pub fn https(host: &str, port: u16, ca: &Path) -> Result<Self, Error> {
        PeerLink::new(host, port, ca, None).map(Self::over)
    }

    fn over(link: PeerLink) -> Self {
        let address = link.place().clone();
        let (kept, link) = (Kept::default(), Some(Arc::new(link)));
        Self { address, timeout: CLIENT_TIMEOUT, kept, token: None, link }
    }

    /// The same client with another timeout.
    #[must_use]
    pub fn with_timeout(self, timeout: Duration) -> Self {
        Self { timeout, ..self }
    }

    /// The same client with a token to show.
    #[must_use]
    pub fn with_token(self, token: SecretText) -> Self {
        Self { token: Some(token), ..self }
    }

    /// Where the server is.
    pub fn address(&self) -> &Address {
        &self.address
    }

    fn call<T: DeserializeOwned + Send>(&self, call: Result<Call, Error>) -> Answer<'_, T> {
        Box::pin(async move {
            let (status, answer) = self.succeed(call?).await?;
            let read = serde_json::from_slice(&answer);
            Ok(read.map_err(|error| self.unreadable(status, &error))?)
        })
    }

    /// A whole list, page after page.
    fn list<L>(&self, path: Result<String, Error>) -> Answer<'_, L>
    where
        L: Paged + DeserializeOwned + Send,
        L::Entry: Send,
    {
        Box::pin(async move {
            let path = path?;
            let joint = if path.contains('?') { '&' } else { '?' };
            let path = format!("{path}{joint}limit={PAGE_ENTRIES_MAX}");
            let mut begun = 0;
            'begin: loop {
                begun += 1;
                let mut all: L = self.call(Ok(get(path.clone()))).await?;
                while let Some(after) = all.parts().1.take() {
                    let next = format!("{path}&after={}", part(&after));
                    let mut more: L = match self.call(Ok(get(next))).await {
                        // An entry went away between two pages.
                        Err(ApiError { kind: ErrorKind::NotFound, .. })
                            if begun < LISTS_BEGUN_MAX =>
                        {
                            continue 'begin;
                        }
                        more => more?,
                    };
                    let (entries, next) = more.parts();
                    let (all_entries, all_next) = all.parts();
                    all_entries.append(entries);
                    *all_next = next.take();
                }
                return Ok(all);
            }
        })
    }

    /// Status and body of a call that succeeded.
    async fn succeed(&self, call: Call) -> Result<(StatusCode, Bytes), ApiError> {
        let (status, answer) = self.answered(call).await?;
        if status.is_success() { Ok((status, answer)) } else { Err(self.refusal(status, &answer)) }
    }

    /// Status and body of a call that was answered.
    async fn answered(&self, call: Call) -> Result<(StatusCode, Bytes), Error> {
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

    /// The error that an answer tells.
    fn refusal(&self, status: StatusCode, answer: &[u8]) -> ApiError {
        let body: Result<ErrorBody, _> = serde_json::from_slice(answer);
        body.map_or_else(|error| self.unreadable(status, &error).into(), |body| body.error)
    }

    fn unreadable(&self, status: StatusCode, error: &serde_json::Error) -> Error {
        let (address, status) = (self.address.to_string(), status.as_u16());
        Error::Answer { address, status, why: error.to_string() }
    }

    /// Sends a call; its answer begins.
    async fn exchange(&self, call: Call) -> Result<Exchange, Error> {
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

    /// The request with the token, if there is one.
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

    async fn connect(&self) -> Result<Box<dyn Stream>, Error> {
        let connected: std::io::Result<Box<dyn Stream>> = match &self.address {
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

fn empty(method: Method, path: String) -> Call {
    Call { method, path, body: Bytes::new(), content: JSON }
}

fn get(path: impl Into<String>) -> Call {
    empty(Method::GET, path.into())
}

fn post(path: String) -> Call {
    empty(Method::POST, path)
}

fn delete(path: String) -> Call {
    empty(Method::DELETE, path)
}

fn send(method: Method, path: impl Into<String>, body: &impl Serialize) -> Call {
    let body = serde_json::to_vec(body).expect("plain structs of text and numbers serialise");
    Call { method, path: path.into(), body: body.into(), content: JSON }
}

fn part(text: &str) -> String {
    utf8_percent_encode(text, PART).to_string()
}

fn pool_path(pool: &str) -> Result<String, Error> {
    names::pool(pool)?;
    Ok(format!("/v1/pools/{}", part(pool)))
}

fn to_pool(pool: &str, what: &str, body: &impl Serialize) -> Result<Call, Error> {
    Ok(send(Method::POST, format!("{}/{what}", pool_path(pool)?), body))
}

fn volume_path(name: &str) -> Result<String, Error> {
    let (pool, volume) = names::volume(name)?;
    Ok(format!("/v1/volumes/{}/{}", part(pool), part(volume)))
}

/// The path of a call that cuts clients off where it is forced.
fn forced(path: String, force: bool) -> String {
    if force { path + "?force=true" } else { path }
}

fn export_path(key: &ExportKey) -> Result<String, Error> {
    key.check()?;
    Ok(format!("/v1/exports/{}/{}", key.protocol.name(), part(&key.name)))
}

fn target_path(key: &TargetKey) -> Result<String, Error> {
    key.check()?;
    Ok(format!("/v1/targets/{}", part(&key.name)))
}

fn checked(
    method: Method,
    path: &str,
    request: &(impl Request + Serialize),
) -> Result<Call, Error> {
    request.check()?;
    Ok(send(method, path, request))
}

impl Control for Client {
    fn server_info(&self) -> Answer<'_, ServerInfo> {
        self.call(Ok(get("/v1/server")))
    }

    fn pool_create(&self, request: PoolCreate) -> Answer<'_, PoolCreated> {
        self.call(checked(Method::POST, "/v1/pools", &request))
    }

    fn pool_list(&self) -> Answer<'_, PoolList> {
        self.call(Ok(get("/v1/pools")))
    }

    fn pool_status(&self, pool: String) -> Answer<'_, PoolStatus> {
        self.call(pool_path(&pool).map(get))
    }

    fn pool_destroy(&self, request: PoolDestroy) -> Answer<'_, Removed> {
        let path = || {
            request.check()?;
            Ok(format!("{}?confirm={}", pool_path(&request.name)?, part(&request.confirm)))
        };
        self.call(path().map(delete))
    }

    fn pool_scan(&self, request: PoolScan) -> Answer<'_, ImportableList> {
        self.call(checked(Method::POST, "/v1/import/scan", &request))
    }

    fn pool_import(&self, request: PoolImport) -> Answer<'_, PoolChange> {
        self.call(checked(Method::POST, "/v1/import", &request))
    }

    fn pool_export(&self, request: PoolExport) -> Answer<'_, Removed> {
        let options = CloseOptions { force: request.force };
        let path = pool_path(&request.name).map(|path| format!("{path}/export"));
        self.call(path.map(|path| send(Method::POST, path, &options)))
    }

    fn pool_history(&self, pool: String) -> Answer<'_, HistoryList> {
        self.list(pool_path(&pool).map(|path| format!("{path}/history")))
    }

    fn events(&self, query: EventQuery) -> Answer<'_, EventList> {
        let EventQuery { after, wait_ms } = query;
        self.call(Ok(get(format!("/v1/events?after={after}&wait_ms={wait_ms}"))))
    }

    fn pool_scrub(&self, request: PoolScrub) -> Answer<'_, PoolChange> {
        let options = ScrubOptions { action: request.action };
        self.call(to_pool(&request.name, "scrub", &options))
    }

    fn pool_offline(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        self.call(to_pool(&request.name, "offline", &OneDisk { disk: request.disk }))
    }

    fn pool_online(&self, request: PoolOnline) -> Answer<'_, PoolChange> {
        let PoolOnline { name, disk, at } = request;
        self.call(to_pool(&name, "online", &MovedDisk { disk, at }))
    }

    fn pool_clear(&self, request: PoolClear) -> Answer<'_, PoolChange> {
        let PoolClear { name, disk, lost } = request;
        self.call(to_pool(&name, "clear", &SomeDisks { disk, lost }))
    }

    fn pool_attach(&self, request: PoolAttach) -> Answer<'_, PoolChange> {
        let PoolAttach { name, disk, new, force } = request;
        self.call(to_pool(&name, "attach", &NewDisk { disk, new, force }))
    }

    fn pool_replace(&self, request: PoolReplace) -> Answer<'_, PoolChange> {
        let PoolReplace { name, disk, new, force, at_once } = request;
        self.call(to_pool(&name, "replace", &Successor { disk, new, force, at_once }))
    }

    fn pool_detach(&self, request: PoolDisk) -> Answer<'_, PoolChange> {
        self.call(to_pool(&request.name, "detach", &OneDisk { disk: request.disk }))
    }

    fn pool_add(&self, request: PoolAdd) -> Answer<'_, PoolChange> {
        let PoolAdd { name, vdevs, force } = request;
        self.call(to_pool(&name, "add", &NewVdevs { vdevs, force }))
    }

    fn pool_remove(&self, request: PoolRemove) -> Answer<'_, PoolChange> {
        let PoolRemove { name, vdev, stop } = request;
        self.call(to_pool(&name, "remove", &OneVdev { vdev, stop }))
    }

    fn pool_expand(&self, pool: String) -> Answer<'_, PoolChange> {
        let path = pool_path(&pool).map(|path| format!("{path}/expand"));
        self.call(path.map(|path| send(Method::POST, path, &serde_json::json!({}))))
    }

    fn property_get(&self, query: PropertyQuery) -> Answer<'_, PropertyList> {
        // Escaped one by one: the comma between two stays one.
        let list = |all: &[String]| all.iter().map(|name| part(name)).collect::<Vec<_>>().join(",");
        let path =
            format!("/v1/properties?of={}&properties={}", list(&query.of), list(&query.properties));
        self.call(query.check().map(|()| get(path)))
    }

    fn property_set(&self, request: PropertySet) -> Answer<'_, PropertyChange> {
        self.call(checked(Method::PATCH, "/v1/properties", &request))
    }

    fn property_inherit(&self, request: PropertyInherit) -> Answer<'_, PropertyChange> {
        self.call(checked(Method::POST, "/v1/properties/inherit", &request))
    }

    fn volume_create(&self, request: VolumeCreate) -> Answer<'_, VolumeChange> {
        self.call(checked(Method::POST, "/v1/volumes", &request))
    }

    fn volume_list(&self, pool: Option<String>) -> Answer<'_, VolumeList> {
        self.list(match pool {
            None => Ok("/v1/volumes".to_owned()),
            Some(pool) => match names::pool(&pool) {
                Ok(()) => Ok(format!("/v1/volumes?pool={}", part(&pool))),
                Err(error) => Err(error.into()),
            },
        })
    }

    fn volume_show(&self, volume: String) -> Answer<'_, Volume> {
        self.call(volume_path(&volume).map(get))
    }

    fn volume_set(&self, request: VolumeSet) -> Answer<'_, VolumeChange> {
        let path = request.check().and_then(|()| volume_path(&request.name));
        self.call(path.map(|path| send(Method::PATCH, path, &request.properties)))
    }

    fn volume_resize(&self, request: VolumeResize) -> Answer<'_, VolumeChange> {
        let size = NewSize { size_bytes: request.size_bytes };
        let path = request.check().and_then(|()| volume_path(&request.name));
        self.call(path.map(|path| send(Method::PUT, format!("{path}/size"), &size)))
    }

    fn volume_rename(&self, request: VolumeRename) -> Answer<'_, VolumeChange> {
        let path = request.check().and_then(|()| volume_path(&request.name));
        let new = NewName { to: request.to };
        self.call(path.map(|path| send(Method::POST, format!("{path}/rename"), &new)))
    }

    fn volume_copy(&self, request: VolumeCopy) -> Answer<'_, VolumeChange> {
        self.call(checked(Method::POST, "/v1/volumes/copy", &request))
    }

    fn volume_promote(&self, volume: String) -> Answer<'_, VolumeChange> {
        let path = volume_path(&volume).map(|path| format!("{path}/promote"));
        self.call(path.map(|path| send(Method::POST, path, &serde_json::json!({}))))
    }

    fn volume_advise(&self, request: VolumeAdvise) -> Answer<'_, VolumeAdvice> {
        self.call(checked(Method::POST, "/v1/advise", &request))
    }

    fn dedupe_estimate(&self, request: DedupeEstimate) -> Answer<'_, DedupeForecast> {
        self.call(checked(Method::POST, "/v1/dedupe/estimate", &request))
    }

    fn volume_destroy(&self, request: VolumeDestroy) -> Answer<'_, Removed> {
        let path = volume_path(&request.name);
        self.call(path.map(|path| delete(format!("{path}?recursive={}", request.recursive))))
    }

    fn snapshot_create(&self, request: SnapshotCreate) -> Answer<'_, SnapshotChange> {
        self.call(checked(Method::POST, "/v1/snapshots", &request))
    }

    fn snapshot_list(&self, query: SnapshotQuery) -> Answer<'_, SnapshotList> {
        self.list(match query.of {
            None => Ok("/v1/snapshots".to_owned()),
            Some(of) => check_listed(&of).map(|()| format!("/v1/snapshots?of={}", part(&of))),
        })
    }

    fn snapshot_destroy(&self, request: SnapshotDestroy) -> Answer<'_, SnapshotsDestroyed> {
        self.call(checked(Method::POST, "/v1/snapshots/destroy", &request))
    }

    fn snapshot_hold(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange> {
        self.call(checked(Method::POST, "/v1/snapshots/hold", &request))
    }

    fn snapshot_release(&self, request: SnapshotTag) -> Answer<'_, SnapshotChange> {
        self.call(checked(Method::POST, "/v1/snapshots/release", &request))
    }

    fn snapshot_rename(&self, request: SnapshotRename) -> Answer<'_, SnapshotChange> {
        self.call(checked(Method::POST, "/v1/snapshots/rename", &request))
    }

    fn snapshot_rollback(&self, request: SnapshotRollback) -> Answer<'_, VolumeChange> {
        self.call(checked(Method::POST, "/v1/snapshots/rollback", &request))
    }

    fn snapshot_clone(&self, request: SnapshotClone) -> Answer<'_, VolumeChange> {
        self.call(checked(Method::POST, "/v1/snapshots/clone", &request))
    }

    fn bookmark_create(&self, request: BookmarkCreate) -> Answer<'_, BookmarkChange> {
        self.call(checked(Method::POST, "/v1/bookmarks", &request))
    }

    fn bookmark_list(&self, of: Option<String>) -> Answer<'_, BookmarkList> {
        self.list(match of {
            None => Ok("/v1/bookmarks".to_owned()),
            Some(of) => check_marked(&of).map(|()| format!("/v1/bookmarks?of={}", part(&of))),
        })
    }

    fn bookmark_destroy(&self, request: BookmarkDestroy) -> Answer<'_, Removed> {
        self.call(checked(Method::POST, "/v1/bookmarks/destroy", &request))
    }

    fn send_start(&self, request: SendStart) -> Answer<'_, SendStarted> {
        self.call(checked(Method::POST, "/v1/sends", &request))
    }

    fn send_stream(&self, session: String) -> Answer<'_, Box<dyn SendStream>> {
        Box::pin(self.arriving(session))
    }

    fn send_show(&self, session: String) -> Answer<'_, SendProgress> {
        self.call(Ok(get(sending::path(&session))))
    }

    fn send_stop(&self, session: String) -> Answer<'_, Removed> {
        self.call(Ok(delete(sending::path(&session))))
    }

    fn stream_list(&self) -> Answer<'_, StreamList> {
        self.call(Ok(get("/v1/streams")))
    }

    fn stream_cancel(&self, stream: StreamKey) -> Answer<'_, Removed> {
        self.call(Ok(delete(format!("/v1/streams/{}", stream.id))))
    }

    fn receive_start(&self, request: ReceiveStart) -> Answer<'_, ReceiveStarted> {
        self.call(checked(Method::POST, "/v1/receives", &request))
    }

    fn receive_part(&self, session: String, bytes: Bytes) -> Answer<'_, ReceiveProgress> {
        let path = format!("/v1/receives/{}/parts", part(&session));
        self.call(Ok(Call { body: bytes, content: PART_TYPE, ..post(path) }))
    }

    fn receive_finish(&self, session: String) -> Answer<'_, ReceiveDone> {
        self.call(Ok(post(format!("/v1/receives/{}/finish", part(&session)))))
    }

    fn receive_stop(&self, session: String) -> Answer<'_, Removed> {
        self.call(Ok(delete(format!("/v1/receives/{}", part(&session)))))
    }

    fn receive_token(&self, volume: String) -> Answer<'_, ReceiveToken> {
        self.call(volume_path(&volume).map(|path| get(format!("{path}/receive"))))
    }

    fn receive_abort(&self, volume: String) -> Answer<'_, Removed> {
        self.call(volume_path(&volume).map(|path| delete(format!("{path}/receive"))))
    }

    fn snapshot_digest(&self, request: DigestRequest) -> Answer<'_, DigestList> {
        self.call(checked(Method::POST, "/v1/snapshots/digest", &request))
    }

    fn replication_create(&self, request: ReplicationCreate) -> Answer<'_, ReplicationChange> {
        self.call(checked(Method::POST, "/v1/replications", &request))
    }

    fn replication_list(&self) -> Answer<'_, ReplicationList> {
        self.list(Ok("/v1/replications".to_owned()))
    }

    fn replication_act(&self, request: ReplicationAct) -> Answer<'_, ReplicationChange> {
        self.call(checked(Method::POST, "/v1/replications/act", &request))
    }

    fn replication_delete(&self, volume: String) -> Answer<'_, ReplicationRemoved> {
        let path = volume_path(&volume).map(|path| path.replacen("volumes", "replications", 1));
        self.call(path.map(delete))
    }

    fn schedule_set(&self, request: ScheduleSet) -> Answer<'_, ScheduleChange> {
        self.call(checked(Method::POST, "/v1/schedules", &request))
    }

    fn schedule_list(&self) -> Answer<'_, ScheduleList> {
        self.list(Ok("/v1/schedules".to_owned()))
    }

    fn schedule_clear(&self, name: String) -> Answer<'_, Removed> {
        let path = check_scheduled(&name).map(|()| format!("/v1/schedules/{}", part(&name)));
        self.call(path.map(delete))
    }

    fn export_create(&self, request: ExportCreate) -> Answer<'_, ExportChange> {
        self.call(checked(Method::POST, "/v1/exports", &request))
    }

    fn export_list(&self) -> Answer<'_, ExportList> {
        self.list(Ok("/v1/exports".to_owned()))
    }

    fn export_show(&self, export: ExportKey) -> Answer<'_, Export> {
        self.call(export_path(&export).map(get))
    }

    fn export_set(&self, request: ExportSet) -> Answer<'_, ExportChange> {
        let path = request.check().and_then(|()| export_path(&request.key));
        let new = ExportClients { allow: request.allow };
        self.call(path.map(|path| send(Method::PUT, path, &new)))
    }

    fn export_delete(&self, export: ExportKey, force: bool) -> Answer<'_, Removed> {
        self.call(export_path(&export).map(|path| delete(forced(path, force))))
    }

    fn target_create(&self, request: TargetCreate) -> Answer<'_, TargetChange> {
        self.call(checked(Method::POST, "/v1/targets", &request))
    }

    fn target_list(&self) -> Answer<'_, TargetList> {
        self.list(Ok("/v1/targets".to_owned()))
    }

    fn target_show(&self, target: TargetKey) -> Answer<'_, Target> {
        self.call(target_path(&target).map(get))
    }

    fn target_delete(&self, target: TargetKey, force: bool) -> Answer<'_, Removed> {
        self.call(target_path(&target).map(|path| delete(forced(path, force))))
    }

    fn target_allow(&self, request: InitiatorAllow) -> Answer<'_, TargetChange> {
        self.call(checked(Method::POST, "/v1/initiators", &request))
    }

    fn target_deny(&self, key: InitiatorKey) -> Answer<'_, TargetChange> {
        let InitiatorKey { target, initiator } = &key;
        let path = format!("/v1/initiators/{}/{}", part(target), part(initiator));
        self.call(key.check().map(|()| delete(path)))
    }

    fn lun_add(&self, request: LunAdd) -> Answer<'_, TargetChange> {
        self.call(checked(Method::POST, "/v1/luns", &request))
    }

    fn lun_remove(&self, lun: LunKey, force: bool) -> Answer<'_, Removed> {
        let path = format!("/v1/luns/{}/{}", part(&lun.target), lun.number);
        self.call(lun.check().map(|()| delete(forced(path, force))))
    }

    fn token_create(&self, request: TokenCreate) -> Answer<'_, TokenCreated> {
        self.call(checked(Method::POST, "/v1/tokens", &request))
    }

    fn token_list(&self) -> Answer<'_, TokenList> {
        self.call(Ok(get("/v1/tokens")))
    }

    fn token_revoke(&self, token: TokenKey) -> Answer<'_, Removed> {
        let path = token.check().map(|()| format!("/v1/tokens/{}", part(&token.name)));
        self.call(path.map(delete))
    }
}
