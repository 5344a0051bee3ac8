//! Tests of the port for peers: unauthenticated peers connect over real sockets and TLS.
//!
//! The rights of peers are tested in bin/weir.
//!
//! Invariant: no test depends on the speed of the machine. A peer gets its response while the
//! connections of unauthenticated peers are still open, or after the paused clock has jumped.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream};
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};
use tokio_rustls::{TlsConnector, rustls};
use weir_api::limits::{PEER_UNAUTHENTICATED_MAX, PEER_UNAUTHENTICATED_OF_ONE_MAX};
use weir_api::peer::{PeerListener, Secret, serve_peers};
use weir_api::tls::Tls;
use weir_api::types::{PropertyValues, ShowServer, VolumeCreate};
use weir_api::{Address, ApiError, Client};
use weir_base::ErrorKind;

use crate::fake::Fake;
use crate::http::tank;

/// Number of connections of unauthenticated peers: more than there are slots, from several
/// addresses.
const STRANGERS: usize = 200;

const SECRET: &str = "a-secret-of-both-of-them";

struct Server {
    port: u16,
    fake: Arc<Fake>,
    dir: tempfile::TempDir,
}

fn support(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/all/support").join(name)
}

impl Server {
    fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let private = |name: &str, text: &[u8]| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            path
        };
        let key = private("key", &fs::read(support("peer.key")).unwrap());
        let secret = private("secret", SECRET.as_bytes());
        private("wrong", b"another-secret-altogether");
        let tls = Tls::load(&support("peer.pem"), &key).unwrap();
        let listener = PeerListener::bind(&Address::loopback(0), &tls, &secret).unwrap();
        let Address::Tcp { port, .. } = *listener.address() else { unreachable!() };
        let fake = Arc::new(Fake::default());
        let control = Arc::clone(&fake);
        tokio::spawn(serve_peers(listener, control, std::future::pending()));
        Self { port, fake, dir }
    }

    async fn call(&self, secret: &str) -> Result<(), ApiError> {
        let to = format!("https://localhost:{}/back/v", self.port).parse().unwrap();
        let secret = Secret::read(&self.dir.path().join(secret)).unwrap();
        Client::peer(&to, &support("peer.pem"), secret).unwrap().call(ShowServer {}).await.map(drop)
    }

    /// Returns a connection from 127.0.0.`last` that has made a call with the secret and has read
    /// the start of the response.
    async fn proven(&self, last: u8) -> Box<dyn Both> {
        let mut stream = self.tls(last).await.unwrap();
        let call =
            format!("GET /v1/server HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {SECRET}\r\n\r\n");
        stream.write_all(call.as_bytes()).await.unwrap();
        let mut begun = [0; 12];
        stream.read_exact(&mut begun).await.unwrap();
        assert_eq!(&begun, b"HTTP/1.1 200");
        Box::new(stream)
    }

    /// Returns a TCP connection from 127.0.0.`last`.
    async fn tcp(&self, last: u8) -> std::io::Result<TcpStream> {
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from(([127, 0, 0, last], 0)))?;
        socket.connect(SocketAddr::from(([127, 0, 0, 1], self.port))).await
    }

    async fn tls(&self, last: u8) -> std::io::Result<TlsStream<TcpStream>> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(support("peer.pem")).unwrap()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        let name = ServerName::try_from("localhost").unwrap();
        TlsConnector::from(Arc::new(config)).connect(name, self.tcp(last).await?).await
    }
}

/// Bytes that an unauthenticated peer sends after the TLS handshake; `None`: it opens a TCP
/// connection and sends nothing.
const STRANGE: [Option<&str>; 4] = [
    None,
    Some(""),
    Some("GET /v1/server HTTP/1.1\r\nhost: x\r\n"),
    Some("GET /v1/server HTTP/1.1\r\nhost: x\r\nconnection: keep-alive\r\n\r\n"),
];

trait Both: tokio::io::AsyncRead + Unpin {}
impl<T: tokio::io::AsyncRead + Unpin> Both for T {}

/// Returns the connection of an unauthenticated peer, or `None` if the server closed it at once.
async fn stranger(server: &Server, last: u8, sent: Option<&str>) -> Option<Box<dyn Both>> {
    let Some(sent) = sent else {
        return Some(Box::new(server.tcp(last).await.ok()?));
    };
    let mut stream = server.tls(last).await.ok()?;
    stream.write_all(sent.as_bytes()).await.ok()?;
    Some(Box::new(stream))
}

/// Returns the number of connections in `held` that the server keeps open. Waits until this number
/// is at most `most`, or until the server had enough time to close the excess connections.
async fn open(held: &mut [Box<dyn Both>], most: usize) -> usize {
    let mut count = 0;
    for _ in 0..1000 {
        count = 0;
        for stream in &mut *held {
            let mut answer = Vec::new();
            // Poll outside of tokio's budget: reads of so many connections would use up the budget
            // of one task.
            let end = tokio::task::unconstrained(stream.read_to_end(&mut answer));
            let is_closed = end.now_or_never().is_some();
            count += usize::from(!is_closed);
        }
        if count <= most {
            break;
        }
        std::thread::sleep(Duration::from_millis(5));
        tokio::task::yield_now().await;
    }
    count
}

/// Stops tokio from advancing its paused clock, so that no time limit of the server closes a
/// connection.
pub(crate) struct StoppedClock {
    end: std::sync::mpsc::Sender<()>,
    held: tokio::task::JoinHandle<()>,
}

impl StoppedClock {
    pub(crate) fn new() -> Self {
        let (end, ended) = std::sync::mpsc::channel();
        // tokio does not advance its paused clock while a blocking task runs.
        let wait = move || ended.recv_timeout(Duration::from_mins(5)).unwrap_or_default();
        Self { end, held: tokio::task::spawn_blocking(wait) }
    }

    pub(crate) async fn go_on(self) {
        assert!(!self.held.is_finished(), "a peer waited for a time limit of the server");
        drop(self.end);
        self.held.await.unwrap();
    }
}

// Regression: 32 unauthenticated peers blocked replication, because they held all slots before the
// TLS handshake and after each 401.
#[tokio::test(start_paused = true)]
async fn unauthenticated_peers_delay_no_peer() {
    let server = Server::start();
    let clock = StoppedClock::new();
    for sent in STRANGE {
        let mut held = Vec::new();
        for n in 0..STRANGERS {
            // Some of the unauthenticated connections come from the address of the authenticated
            // peer.
            held.extend(stranger(&server, 1 + (n % 8) as u8, sent).await);
        }
        server.call("secret").await.unwrap();
        let is_answered = sent.is_some_and(|sent| sent.ends_with("\r\n\r\n"));
        let most = if is_answered { 0 } else { PEER_UNAUTHENTICATED_MAX };
        let left = open(&mut held, most).await;
        assert!(left <= most, "{left} strangers that sent {sent:?} are held");
        assert!(left > 0 || is_answered, "the server closed all that sent {sent:?}");
    }
    let error = server.call("wrong").await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::Permission, "{error}");
    clock.go_on().await;
}

#[tokio::test(start_paused = true)]
async fn unauthenticated_connections_of_one_address_are_limited() {
    let server = Server::start();
    let clock = StoppedClock::new();
    let mut other = vec![stranger(&server, 2, None).await.unwrap()];
    let mut held = Vec::new();
    for _ in 0..STRANGERS {
        held.extend(stranger(&server, 3, None).await);
    }
    let left = open(&mut held, PEER_UNAUTHENTICATED_OF_ONE_MAX).await;
    assert_eq!(left, PEER_UNAUTHENTICATED_OF_ONE_MAX);
    assert_eq!(open(&mut other, 1).await, 1, "one of another address gave way");
    clock.go_on().await;
}

#[tokio::test(start_paused = true)]
async fn unauthenticated_connections_time_out() {
    let server = Server::start();
    for sent in STRANGE {
        let mut stream = stranger(&server, 2, sent).await.unwrap();
        // The paused clock jumps to the server's time limits, which are much shorter than this
        // timeout.
        let mut answer = Vec::new();
        let closed = tokio::time::timeout(Duration::from_mins(1), stream.read_to_end(&mut answer));
        assert!(closed.await.is_ok(), "still open after {sent:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn authenticated_peers_are_limited_in_total_and_by_address() {
    let server = Server::start();
    let clock = StoppedClock::new();
    let mut held = Vec::new();
    for _ in 0..17 {
        held.push(server.proven(2).await);
    }
    assert_eq!(open(&mut held, 16).await, 16, "of one address");
    for last in [3, 4] {
        for _ in 0..9 {
            held.push(server.proven(last).await);
        }
    }
    assert_eq!(open(&mut held, 32).await, 32, "of all");
    clock.go_on().await;
}

#[tokio::test]
async fn snapshots_for_a_server_of_an_earlier_version_are_limited() {
    let server = Server::start();
    {
        let mut state = server.fake.state();
        state.create_pool(tank()).unwrap();
        let volume = VolumeCreate {
            name: "tank/vm1".into(),
            size_bytes: 1 << 30,
            record_bytes: 4096,
            properties: PropertyValues::default(),
        };
        state.create_volume(volume).unwrap();
        // Gives the volume the caller's mark: the fake server returns the origin of a volume as the
        // value of every requested property.
        state.volumes.get_mut("tank/vm1").unwrap().origin = Some("127.0.0.2".into());
        for n in 0..=16_384 {
            state.take(&format!("tank/vm1@s{n:05}")).unwrap();
        }
    }
    let mut stream = server.tls(2).await.unwrap();
    let call = format!(
        "GET /v1/snapshots?of=tank/vm1 HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
         authorization: Bearer {SECRET}\r\n\r\n"
    );
    stream.write_all(call.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let body: serde_json::Value = serde_json::from_str(body).unwrap();
    assert_eq!(body["snapshots"].as_array().unwrap().len(), 16_384);
    assert_eq!(body["next"], "tank/vm1@s16383");
}
