//! The calling side of two servers: one TLS connection, kept between calls.
//!
//! Not here: which calls (client).
//!
//! Invariants:
//! - nothing is sent before the other side has proven its name by a certificate of the given CA;
//! - a call that failed is not sent again: whoever made it knows what that would do.

use std::path::Path;
use std::sync::Arc;

use axum::http::header::{AUTHORIZATION, HOST};
use axum::http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::{PeerAddress, Secret, certificates, unusable};
use crate::Error;
use crate::limits::ANSWER_BYTES_MAX;
use crate::place::Address;

type Sender = SendRequest<Full<Bytes>>;

/// The way to another server.
pub(crate) struct PeerLink {
    place: Address,
    name: ServerName<'static>,
    connector: TlsConnector,
    secret: Secret,
    /// A connection that nobody uses now.
    idle: tokio::sync::Mutex<Option<Sender>>,
}

impl std::fmt::Debug for PeerLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerLink({})", self.place)
    }
}

impl PeerLink {
    pub(crate) fn new(to: &PeerAddress, ca: &Path, secret: Secret) -> Result<Self, Error> {
        let place = Address::Tcp { host: to.host.clone(), port: to.port };
        let name = ServerName::try_from(to.host.clone()).map_err(|_| Error::Address {
            text: to.to_string(),
            why: "no certificate can name this host",
        })?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|error| unusable(ca, error))?;
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Self { place, name, connector, secret, idle: tokio::sync::Mutex::new(None) })
    }

    pub(crate) fn place(&self) -> &Address {
        &self.place
    }

    fn broken(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Broken { address: self.place.to_string(), source: source.into() }
    }

    async fn connect(&self) -> Result<Sender, Error> {
        let failed = |source| Error::Connect { address: self.place.to_string(), source };
        let Address::Tcp { host, port } = &self.place else {
            unreachable!("peers are reached by TCP")
        };
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let stream = self.connector.connect(self.name.clone(), stream).await.map_err(failed)?;
        let (sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.map_err(|error| self.broken(error))?;
        // Ends with the connection.
        drop(tokio::spawn(connection));
        Ok(sender)
    }

    /// Sends a request over the connection that is there, or a new one.
    pub(crate) async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<(StatusCode, Bytes), Error> {
        let headers = request.headers_mut();
        let value = |text: &str| text.parse().map_err(|error| self.broken(error));
        headers.insert(HOST, value(&self.place.to_string())?);
        let mut authorization: axum::http::HeaderValue = value(&self.secret.header())?;
        authorization.set_sensitive(true);
        headers.insert(AUTHORIZATION, authorization);
        let mut kept = self.idle.lock().await.take();
        if let Some(sender) = &mut kept
            && sender.ready().await.is_err()
        {
            kept = None;
        }
        let mut sender = match kept {
            Some(kept) => kept,
            None => self.connect().await?,
        };
        let response = sender.send_request(request).await.map_err(|error| self.broken(error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), ANSWER_BYTES_MAX);
        let whole = body.collect().await.map_err(|error| self.broken(error))?;
        *self.idle.lock().await = Some(sender);
        Ok((status, whole.to_bytes()))
    }
}
