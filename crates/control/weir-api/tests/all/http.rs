//! Tests of the server together with the client, over real sockets.
//!
//! The command line is tested in bin/weir.
//!
//! Invariant: raw requests are written as text, so that the client cannot hide a fault of the
//! server.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use weir_api::access::Rights;
use weir_api::caller::Caller;
use weir_api::token::{Authority, NoTokens, SecretText};
use weir_api::types::{
    ChapAccount, ExportCreate, ExportDelete, ExportKey, ExportSet, InitiatorAllow, InitiatorDeny,
    ListPools, ListReplications, ListTargets, ListVolumes, LunAdd, LunRemove, Outcome, PoolCreate,
    PoolDestroy, PropertyValues, Protocol, SendStart, ShowExport, ShowPool, ShowSend, ShowTarget,
    ShowVolume, SnapshotCreate, TargetCreate, TargetDelete, VdevKind, VdevRole, VdevSpec,
    VolumeCreate,
};
use weir_api::{Address, ApiError, Client, Listener, SendStream};
use weir_base::ErrorKind;

use crate::fake::Fake;

pub(crate) struct Server {
    pub(crate) unix: Address,
    pub(crate) tcp: Address,
    pub(crate) fake: Arc<Fake>,
    stop: oneshot::Sender<()>,
    served: JoinHandle<Result<(), weir_api::Error>>,
    dir: tempfile::TempDir,
}

pub(crate) fn start() -> Server {
    let dir = tempfile::tempdir().unwrap();
    let unix = Listener::bind(&Address::Unix(dir.path().join("api.sock"))).unwrap();
    let tcp = Listener::bind(&Address::loopback(0)).unwrap();
    let (unix_at, tcp_at) = (unix.address().clone(), tcp.address().clone());
    let fake = Arc::new(Fake::default());
    let (stop, stopped) = oneshot::channel::<()>();
    let control = Arc::clone(&fake);
    let served =
        tokio::spawn(weir_api::serve(vec![unix, tcp], control, Arc::new(OneToken), async {
            drop(stopped.await);
        }));
    Server { unix: unix_at, tcp: tcp_at, fake, stop, served, dir }
}

/// An authority that knows one token, of an admin.
struct OneToken;

pub(crate) const TOKEN: &str = "weir_of_this_test";

impl Authority for OneToken {
    fn caller(&self, token: &str, from: &str) -> Result<Caller, ApiError> {
        if token != TOKEN {
            return NoTokens.caller(token, from);
        }
        Ok(Caller::new("token test", Rights::everything()))
    }

    fn refused(&self, _from: &str, _times: u64) {}

    fn denied(&self, _caller: &Caller, _call: &str) {}
}

/// Returns a client over TCP with the token.
pub(crate) fn by_tcp(server: &Server) -> Client {
    Client::new(server.tcp.clone()).with_token(SecretText::new(TOKEN.to_owned()))
}

pub(crate) fn tank() -> PoolCreate {
    let disks = vec!["/a".to_owned(), "/b".to_owned()];
    PoolCreate {
        name: "tank".into(),
        vdevs: vec![VdevSpec { kind: VdevKind::Mirror, role: VdevRole::Data, disks }],
        force: false,
        properties: BTreeMap::new(),
    }
}

/// Sends a request over TCP with `connection: close`, and returns the status and the body.
async fn raw(server: &Server, request: &str) -> (u16, String) {
    let Address::Tcp { host, port } = &server.tcp else { unreachable!() };
    let mut stream = TcpStream::connect((host.as_str(), *port)).await.unwrap();
    let more = format!("\r\nconnection: close\r\nauthorization: Bearer {TOKEN}\r\n");
    let last = request.replacen("\r\n", &more, 1);
    stream.write_all(last.as_bytes()).await.unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).await.unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|s| s.parse().ok());
    (status.unwrap_or_else(|| panic!("no status in {text:?}")), body.to_owned())
}

fn kind_of(body: &str) -> String {
    let json: serde_json::Value = serde_json::from_str(body).unwrap_or_else(|_| panic!("{body}"));
    for field in ["message", "action"] {
        assert!(json["error"][field].as_str().is_some_and(|s| !s.is_empty()), "{body}");
    }
    json["error"]["kind"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn targets_are_created_shown_and_deleted_by_full_name() {
    let server = start();
    let client = by_tcp(&server);
    let name = weir_api::types::target_name("vms");
    let made = client.call(TargetCreate { name: name.clone() }).await.unwrap();
    assert_eq!((made.outcome, made.target.name.as_str()), (Outcome::Created, name.as_str()));
    let short = client.call(TargetCreate { name: "vms".to_owned() }).await.unwrap_err();
    assert_eq!(short.kind, ErrorKind::Invalid);
    let allow = InitiatorAllow {
        target: name.clone(),
        initiator: "iqn.2026-01.org.example:a".to_owned(),
        chap: None,
        mutual: None,
        no_chap: false,
    };
    let allowed = client.call(allow.clone()).await.unwrap();
    assert_eq!(allowed.target.initiators.len(), 1);
    let initiator = allow.initiator.clone();
    let account =
        ChapAccount { user: "joe".to_owned(), secret: None, secret_file: Some("/s".to_owned()) };
    let both = InitiatorAllow { chap: Some(account.clone()), no_chap: true, ..allow.clone() };
    assert_eq!(client.call(both).await.unwrap_err().kind, ErrorKind::Invalid);
    let alone = InitiatorAllow { mutual: Some(account), ..allow };
    assert_eq!(client.call(alone).await.unwrap_err().kind, ErrorKind::Invalid);
    let lun = LunAdd {
        target: name.clone(),
        volume: "tank/vm1".to_owned(),
        number: Some(3),
        block_bytes: Some(4096),
        write_cache: None,
        shared: false,
    };
    assert_eq!(client.call(lun.clone()).await.unwrap().target.luns[0].number, 3);
    for bad in
        [LunAdd { number: Some(16384), ..lun.clone() }, LunAdd { block_bytes: Some(1), ..lun }]
    {
        assert_eq!(client.call(bad).await.unwrap_err().kind, ErrorKind::Invalid);
    }
    let key = ShowTarget { name: name.clone() };
    assert_eq!(client.call(key.clone()).await.unwrap().luns.len(), 1);
    assert_eq!(client.call(ListTargets {}).await.unwrap().targets.len(), 1);
    let gone =
        client.call(LunRemove { target: name.clone(), number: 3, force: false }).await.unwrap();
    assert_eq!(gone.outcome, Outcome::Removed);
    let denied = client.call(InitiatorDeny { target: name, initiator }).await.unwrap();
    assert!(denied.target.initiators.is_empty());
    client.call(TargetDelete { name: key.name.clone(), force: true }).await.unwrap();
    assert_eq!(client.call(key).await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn both_sockets_serve_pools_volumes_and_exports() {
    let server = start();
    let unix = Client::new(server.unix.clone());
    let tcp = by_tcp(&server);
    assert_eq!(unix.call(tank()).await.unwrap().outcome(), Outcome::Created);
    assert_eq!(tcp.call(tank()).await.unwrap().outcome(), Outcome::Unchanged);
    let volume = VolumeCreate {
        name: "tank/vm:1".into(),
        size_bytes: 1 << 30,
        record_bytes: 64 << 10,
        properties: PropertyValues::default(),
    };
    tcp.call(volume).await.unwrap();
    let shown = unix.call(ShowVolume { name: "tank/vm:1".into() }).await.unwrap();
    assert_eq!((shown.size_bytes, shown.record_bytes), (1 << 30, 64 << 10));
    let export = ExportCreate {
        protocol: Protocol::Nbd,
        volume: "tank/vm:1".into(),
        name: None,
        read_only: true,
        allow: vec!["10.0.0.7/32".into()],
    };
    unix.call(export.clone()).await.unwrap();
    let ExportKey { protocol, name } = export.key();
    let set = ExportSet { protocol, name: name.clone(), allow: vec!["10.0.0.0/24".into()] };
    let changed = tcp.call(set).await.unwrap().export;
    assert_eq!(changed.allow, ["10.0.0.0/24"]);
    // The name contains a slash, which is escaped, because the name is one part of the path.
    assert!(tcp.call(ShowExport { protocol, name: name.clone() }).await.unwrap().read_only);
    let destroy = PoolDestroy { name: "tank".into(), confirm: "tank".into() };
    assert_eq!(tcp.call(destroy.clone()).await.unwrap_err().kind, ErrorKind::Busy);
    let delete = ExportDelete { protocol, name, force: true };
    assert_eq!(tcp.call(delete.clone()).await.unwrap().outcome, Outcome::Removed);
    assert_eq!(tcp.call(delete).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(tcp.call(destroy).await.unwrap().name, "tank");
    assert!(unix.call(ListVolumes { pool: None }).await.unwrap().volumes.is_empty());
    assert!(unix.call(ListReplications {}).await.unwrap().replications.is_empty());
}

#[tokio::test]
async fn openapi_document_is_served() {
    let server = start();
    let (status, body) =
        raw(&server, "GET /v1/openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n").await;
    assert_eq!(status, 200);
    let served: serde_json::Value = serde_json::from_str(&body).unwrap();
    assert_eq!(served, serde_json::to_value(weir_api::openapi()).unwrap());
}

#[tokio::test]
async fn requests_of_foreign_pages_in_a_browser_are_refused() {
    let server = start();
    let body = serde_json::to_string(&tank()).unwrap();
    let post = |host: &str, content: &str| {
        format!(
            "POST /v1/pools HTTP/1.1\r\nhost: {host}\r\ncontent-type: {content}\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let json = "application/json";
    for (request, status) in [
        (post("evil.example", json), 421),
        (post("localhost", "text/plain"), 415),
        (post("localhost\r\nhost: evil.example", json), 421),
        ("GET /v1/pools HTTP/1.1\r\nhost: evil.example:7117\r\n\r\n".into(), 421),
        ("GET /v1/pools HTTP/1.1\r\n\r\n".into(), 421),
        ("GET http://evil.example/v1/pools HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), 421),
        ("DELETE /v1/pools/tank?confirm=tank HTTP/1.1\r\nhost: localhost\r\n\r\n".into(), 415),
    ] {
        let (got, answer) = raw(&server, &request).await;
        assert_eq!((got, kind_of(&answer).as_str()), (status, "invalid"), "{request}");
    }
    assert!(server.fake.pool_list().await.unwrap().pools.is_empty(), "one got through");
    let (got, answer) = raw(&server, &post("localhost", "application/json; charset=utf-8")).await;
    assert_eq!(got, 201, "{answer}");
}

#[tokio::test]
async fn invalid_requests_get_errors_of_one_form() {
    let server = start();
    let long = "x".repeat((1 << 20) + 1);
    let send = |method: &str, path: &str, body: &str| {
        format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let vdevs = r#""vdevs":[{"kind":"disk","disks":["/a"]}]"#;
    for (method, path, body, status, kind) in [
        ("GET", "/v1/nothing", "", 404, "not_found"),
        ("GET", "/v1/pools/absent", "", 404, "not_found"),
        ("GET", "/v1/pools/ta%20nk", "", 400, "invalid"),
        ("GET", "/v1/pools/%ff", "", 400, "invalid"),
        ("PUT", "/v1/pools", "{}", 405, "invalid"),
        ("POST", "/v1/pools", "{", 400, "invalid"),
        ("POST", "/v1/pools", "", 400, "invalid"),
        ("POST", "/v1/pools", &long, 413, "invalid"),
        ("POST", "/v1/pools", &format!(r#"{{"name":"tank","pool":1,{vdevs}}}"#), 400, "invalid"),
        ("POST", "/v1/pools", &format!(r#"{{"name":"mirror",{vdevs}}}"#), 400, "invalid"),
        ("POST", "/v1/pools", r#"{"name":"tank","vdevs":[]}"#, 400, "invalid"),
        ("POST", "/v1/volumes", r#"{"name":"tank/a","size_bytes":4097}"#, 400, "invalid"),
        ("POST", "/v1/volumes", r#"{"name":"tank/a","size_bytes":-1}"#, 400, "invalid"),
        ("PATCH", "/v1/volumes/tank/a", r#"{"compression":"zip"}"#, 400, "invalid"),
        ("PATCH", "/v1/volumes/tank/a", "{}", 400, "invalid"),
        ("DELETE", "/v1/pools/tank", "", 400, "invalid"),
        ("DELETE", "/v1/pools/tank?confirm=tonk", "", 400, "invalid"),
        ("DELETE", "/v1/exports/iscsi/a", "", 400, "invalid"),
        ("GET", "/v1/pools/broken", "", 500, "internal"),
    ] {
        let (got, answer) = raw(&server, &send(method, path, body)).await;
        assert_eq!((got, kind_of(&answer).as_str()), (status, kind), "{method} {path}: {answer}");
    }
}

#[tokio::test]
async fn error_names_the_field_of_the_body() {
    let server = start();
    for (body, message, field) in [
        ("{\n\"name\":\"x\"}", "vdevs is missing (body, line 2, column 11)", Some("vdevs")),
        (
            r#"{"name":"x","vdevs":[{"kind":"disk"}]}"#,
            "vdevs[0].disks is missing",
            Some("vdevs[0].disks"),
        ),
        (r#"{"name":7,"vdevs":[]}"#, "name: invalid type: integer `7`", Some("name")),
        (r#"{"name":"x","vdevs":[],"size":1}"#, "unknown field `size`", Some("size")),
        (r#"{"name":"x","#, "the request is not valid JSON: EOF", None),
    ] {
        let request = format!(
            "POST /v1/pools HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        let (status, answer) = raw(&server, &request).await;
        let answer: serde_json::Value = serde_json::from_str(&answer).unwrap();
        let error = &answer["error"];
        assert_eq!((status, error["field"].as_str()), (400, field), "{answer}");
        assert!(error["message"].as_str().unwrap().starts_with(message), "{answer}");
    }
}

#[tokio::test]
async fn long_request_header_is_refused() {
    let server = start();
    let get = |length: usize| {
        let long = "x".repeat(length);
        format!("GET /v1/pools HTTP/1.1\r\nhost: localhost\r\nx-long: {long}\r\n\r\n")
    };
    let (status, _) = raw(&server, &get(60 << 10)).await;
    assert_eq!(status, 200);
    let Address::Unix(path) = &server.unix else { unreachable!() };
    let mut stream = UnixStream::connect(path).await.unwrap();
    // The server checks the limit for headers after each read. If the server closes the connection
    // before it has read the whole request, this write can fail, and the response is lost.
    drop(stream.write_all(get(200 << 10).as_bytes()).await);
    let mut answer = Vec::new();
    drop(stream.read_to_end(&mut answer).await);
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 431 "), "{answer}");
}

#[tokio::test]
async fn response_above_the_limit_is_an_error() {
    const ANSWER: &[u8] = br#"{"pools":[]}"#;
    let other = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let at = Address::loopback(other.local_addr().unwrap().port());
    // The spaces after the JSON text count as part of the response body.
    tokio::spawn(async move {
        for length in [1 << 20, (64 << 20) + 1] {
            let (mut stream, _) = other.accept().await.unwrap();
            // Read the request first: a close with unread bytes would reset the connection.
            let read = stream.read(&mut [0; 4096]).await.unwrap();
            assert!(read > 0, "a request");
            let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n");
            let mut answer = [head.as_bytes(), ANSWER].concat();
            answer.resize(head.len() + length, b' ');
            drop(stream.write_all(&answer).await);
        }
    });
    let fits = Client::new(at.clone()).call(ListPools {}).await.unwrap();
    assert!(fits.pools.is_empty());
    let error = Client::new(at).call(ListPools {}).await.unwrap_err();
    assert!(error.message.contains("length limit exceeded"), "{error}");
}

#[tokio::test]
async fn client_stops_waiting_at_its_timeout() {
    let server = start();
    let client = Client::new(server.unix.clone()).with_timeout(Duration::from_millis(200));
    let before = Instant::now();
    let error = client.call(ShowPool { name: "stuck".into() }).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains("no answer"), "{error}");
    assert!(before.elapsed() < Duration::from_secs(10));
}

#[tokio::test]
async fn call_runs_to_its_end_after_its_caller_disconnects() {
    let server = start();
    let client = Client::new(server.unix.clone());
    let hasty = client.clone();
    let slow = PoolCreate { name: "slow".into(), ..tank() };
    let call = tokio::spawn(async move { hasty.call(slow).await });
    while server.fake.slow_begun.load(Ordering::SeqCst) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    call.abort();
    drop(call.await);
    let deadline = Instant::now() + Duration::from_secs(20);
    while client.call(ListPools {}).await.unwrap().pools.is_empty() {
        assert!(Instant::now() < deadline, "the call was dropped half-way");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn error_names_the_unreachable_server() {
    let server = start();
    let absent = Address::Unix(server.dir.path().join("absent.sock"));
    let error = Client::new(absent.clone()).call(ListPools {}).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert!(error.message.contains(&absent.to_string()), "{error}");
    assert!(error.action.contains("weir serve"), "{}", error.action);
}

#[tokio::test(start_paused = true)]
async fn idle_connections_and_incomplete_requests_time_out() {
    let server = start();
    let Address::Unix(path) = &server.unix else { unreachable!() };
    let begun = "POST /v1/pools HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let half_body = format!("{begun}content-length: 100\r\n\r\n{{");
    for sent in ["", "GET /v1/po", begun, half_body.as_str()] {
        let mut stream = UnixStream::connect(path).await.unwrap();
        stream.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The paused clock jumps to the server's time limit, which is much shorter than this
        // timeout.
        let closed = stream.read_to_end(&mut answer);
        tokio::time::timeout(Duration::from_mins(1), closed)
            .await
            .unwrap_or_else(|_| panic!("still open after {sent:?}"))
            .unwrap();
    }
}

#[tokio::test]
async fn shutdown_closes_idle_connections_and_removes_the_socket() {
    let server = start();
    let Address::Unix(path) = &server.unix else { unreachable!() };
    let idle = UnixStream::connect(path).await.unwrap();
    Client::new(server.unix.clone()).call(ListPools {}).await.unwrap();
    let before = Instant::now();
    server.stop.send(()).unwrap();
    server.served.await.unwrap().unwrap();
    assert!(before.elapsed() < Duration::from_secs(3), "an idle client held up the stop");
    assert!(!path.exists());
    drop(idle);
}

#[tokio::test]
async fn connection_flood_on_tcp_leaves_the_unix_socket_free() {
    let server = start();
    let Address::Tcp { host, port } = &server.tcp else { unreachable!() };
    let mut held = Vec::new();
    for _ in 0..80 {
        held.push(TcpStream::connect((host.as_str(), *port)).await.unwrap());
    }
    let quick = Duration::from_secs(2);
    Client::new(server.unix.clone()).with_timeout(quick).call(ListPools {}).await.unwrap();
    drop(held);
    by_tcp(&server).with_timeout(quick).call(ListPools {}).await.unwrap();
}

// Regression: 64 idle connections delayed a call by 10 s, until the first of them timed out.
#[tokio::test]
async fn idle_connections_and_incomplete_requests_delay_no_call() {
    let server = start();
    let Address::Tcp { host, port } = &server.tcp else { unreachable!() };
    let begun = format!(
        "POST /v1/pools HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {TOKEN}\r\n\
         content-type: application/json\r\n"
    );
    let half_body = format!("{begun}content-length: 100\r\n\r\n{{");
    let large_body = format!("{begun}content-length: 1000000\r\n\r\n{{");
    for sent in ["", "GET /v1/po", begun.as_str(), half_body.as_str(), large_body.as_str()] {
        let mut held = Vec::new();
        for _ in 0..100 {
            let mut stream = TcpStream::connect((host.as_str(), *port)).await.unwrap();
            // Ignore a failed write: if all slots for connections are in use, the server may
            // already have closed this connection.
            drop(stream.write_all(sent.as_bytes()).await);
            held.push(stream);
        }
        let before = Instant::now();
        by_tcp(&server).call(ListPools {}).await.unwrap();
        let waited = before.elapsed();
        // This limit is much shorter than the time after which the server closes idle connections.
        assert!(waited < Duration::from_secs(5), "{waited:?} behind those that sent {sent:?}");
    }
}

/// Starts to send a snapshot with this name; returns the session id.
async fn sending(client: &Client, own: &str) -> String {
    client.call(tank()).await.unwrap();
    let volume = VolumeCreate {
        name: "tank/v".into(),
        size_bytes: 1 << 30,
        record_bytes: 4096,
        properties: PropertyValues::default(),
    };
    client.call(volume).await.unwrap();
    let snapshot = format!("tank/v@{own}");
    let names = vec![snapshot.clone()];
    client.call(SnapshotCreate { names, recursive: false }).await.unwrap();
    let request = SendStart { snapshot, from: None, token: None };
    client.call(request).await.unwrap().session
}

/// Reads a stream to its end; returns the number of bytes and the result.
async fn all_of(stream: &mut Box<dyn SendStream>) -> (usize, Result<(), ApiError>) {
    let mut bytes = 0;
    loop {
        match stream.next().await {
            Ok(Some(part)) => bytes += part.len(),
            Ok(None) => return (bytes, Ok(())),
            Err(error) => return (bytes, Err(error)),
        }
    }
}

const STREAM_BYTES: usize = 6 + (3 << 20);

#[tokio::test]
async fn stream_downloads_once_and_ends_its_session() {
    let server = start();
    for (at, client) in [Client::new(server.unix.clone()), by_tcp(&server)].iter().enumerate() {
        let session = sending(client, &format!("whole{at}")).await;
        let mut stream = client.send_stream(session.clone()).await.unwrap();
        let twice = client.send_stream(session.clone()).await.map(drop).unwrap_err();
        assert_eq!(twice.kind, ErrorKind::Busy, "{twice}");
        let (bytes, end) = all_of(&mut stream).await;
        assert_eq!((bytes, end), (STREAM_BYTES, Ok(())));
        let over = client.call(ShowSend { session: session.clone() }).await.unwrap_err();
        assert_eq!(over.kind, ErrorKind::NotFound);
        let over = client.send_stream(session).await.map(drop).unwrap_err();
        assert_eq!(over.kind, ErrorKind::NotFound);
    }
}

#[tokio::test]
async fn broken_stream_returns_the_error_and_never_looks_complete() {
    let server = start();
    let client = Client::new(server.unix.clone());
    let session = sending(&client, "damaged").await;
    let mut stream = client.send_stream(session.clone()).await.unwrap();
    let (bytes, end) = all_of(&mut stream).await;
    let told = end.unwrap_err();
    assert_eq!(
        (bytes, told.kind, told.message.as_str()),
        (6, ErrorKind::Data, "block 7 is damaged")
    );
    // Read the stream as another HTTP client than Weir's would.
    let request = SendStart { snapshot: "tank/v@damaged".into(), from: None, token: None };
    let session = client.call(request).await.unwrap().session;
    let request = format!(
        "POST /v1/sends/{session}/stream HTTP/1.1\r\nhost: localhost\r\n\
         content-type: application/json\r\n\r\n"
    );
    let (status, body) = raw(&server, &request).await;
    assert_eq!((status, body.as_str()), (200, "6\r\nstream\r\n"), "no last chunk");
}

#[tokio::test]
async fn abandoned_download_ends_its_send_session() {
    let server = start();
    let client = Client::new(server.unix.clone());
    let session = sending(&client, "dropped").await;
    let mut stream = client.send_stream(session.clone()).await.unwrap();
    assert!(stream.next().await.unwrap().is_some());
    drop(stream);
    let deadline = Instant::now() + Duration::from_secs(5);
    while client.call(ShowSend { session: session.clone() }).await.is_ok() {
        assert!(Instant::now() < deadline, "the session is still there");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn client_waits_for_a_slow_stream_while_the_server_lives() {
    let server = start();
    // The snapshot `slow` selects a stream in which a part arrives only every 100 seconds.
    let client = Client::new(server.unix.clone()).with_timeout(Duration::from_secs(30));
    let session = sending(&client, "slow").await;
    let mut stream = client.send_stream(session).await.unwrap();
    assert_eq!(all_of(&mut stream).await, (STREAM_BYTES, Ok(())));
    // The snapshot `stuck` selects a stream that stalls: the server reports more sent data than
    // arrives. The client gives up.
    let session = sending(&client, "stuck").await;
    let mut stream = client.send_stream(session).await.unwrap();
    let before = tokio::time::Instant::now();
    let (bytes, end) = all_of(&mut stream).await;
    let told = end.unwrap_err();
    assert_eq!((bytes, told.kind), (STREAM_BYTES, ErrorKind::Unavailable), "{told}");
    assert!(told.message.contains("no answer"), "{told}");
    let waited = before.elapsed();
    assert!((30..60).contains(&waited.as_secs()), "{waited:?}");
}

#[tokio::test]
async fn client_reuses_its_connection_and_reconnects() {
    let server = start();
    let Address::Unix(path) = server.unix.clone() else { unreachable!() };
    let between = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let client = Client::new(Address::loopback(between.local_addr().unwrap().port()));
    let accept = async || {
        let (mut near, _) = between.accept().await.unwrap();
        let mut far = UnixStream::connect(&path).await.unwrap();
        let copying = tokio::spawn(async move {
            tokio::io::copy_bidirectional(&mut near, &mut far).await.ok();
        });
        copying.abort_handle()
    };
    let (connection, first) = tokio::join!(accept(), client.call(ListPools {}));
    first.unwrap();
    // The proxy accepts only one connection, so the client must reuse it for the second call.
    let calls = async {
        client.call(tank()).await.unwrap();
        assert_eq!(
            client.call(ShowPool { name: "absent".into() }).await.unwrap_err().kind,
            ErrorKind::NotFound
        );
        assert_eq!(client.call(ListPools {}).await.unwrap().pools.len(), 1);
    };
    tokio::time::timeout(Duration::from_secs(10), calls).await.expect("another connection");
    connection.abort();
    while !connection.is_finished() {
        tokio::task::yield_now().await;
    }
    let (_connection, again) = tokio::join!(accept(), client.call(ListPools {}));
    assert_eq!(again.unwrap().pools.len(), 1);
}
