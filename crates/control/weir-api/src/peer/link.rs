//! TLS client for two kinds of servers: peers, with the secret in a header, and management
//! interfaces.
//!
//! `client` makes the calls, `connection` reuses connections.
//!
//! Invariants:
//! - the client sends nothing before the server has proved its name with a certificate of the given
//!   CA;
//! - the client sends the secret only to the server for which it was created.

use std::path::Path;
use std::sync::Arc;

use axum::http::header::AUTHORIZATION;
use axum::http::{HeaderValue, Request};
use http_body_util::Full;
use hyper::body::Bytes;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::ServerName;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::Secret;
use crate::Error;
use crate::connection::{Exchange, Kept};
use crate::place::Address;
use crate::tls::{certificates, unusable};

/// Connection to another server.
pub(crate) struct PeerLink {
    place: Address,
    name: ServerName<'static>,
    connector: TlsConnector,
    /// Secret of peers; absent for a management interface, which requires the client's token
    /// instead.
    secret: Option<Secret>,
    kept: Kept,
}

impl std::fmt::Debug for PeerLink {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PeerLink({})", self.place)
    }
}

impl PeerLink {
    /// Creates a link to a server. The server's certificate must be signed by a CA certificate in
    /// the file `ca`.
    pub(crate) fn new(
        host: &str,
        port: u16,
        ca: &Path,
        secret: Option<Secret>,
    ) -> Result<Self, Error> {
        let place = Address::Tcp { host: host.to_owned(), port };
        let name = ServerName::try_from(host.to_owned()).map_err(|_| Error::Address {
            text: host.to_owned(),
            why: "a certificate cannot contain this host name",
        })?;
        let mut roots = RootCertStore::empty();
        for certificate in certificates(ca)? {
            roots.add(certificate).map_err(|error| unusable(ca, error))?;
        }
        let config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
        let connector = TlsConnector::from(Arc::new(config));
        Ok(Self { place, name, connector, secret, kept: Kept::default() })
    }

    pub(crate) fn place(&self) -> &Address {
        &self.place
    }

    fn broken(&self, source: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Broken { address: self.place.to_string(), source: source.into() }
    }

    async fn connect(&self) -> Result<TlsStream<TcpStream>, Error> {
        let failed = |source| Error::Connect { address: self.place.to_string(), source };
        let Address::Tcp { host, port } = &self.place else {
            unreachable!("peers are reached by TCP")
        };
        let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        self.connector.connect(self.name.clone(), stream).await.map_err(failed)
    }

    /// Sends a request over the idle connection or a new one, and waits for the header of the
    /// response.
    pub(crate) async fn exchange(
        &self,
        mut request: Request<Full<Bytes>>,
    ) -> Result<Exchange, Error> {
        if let Some(secret) = &self.secret {
            let mut authorization: HeaderValue =
                secret.header().parse().map_err(|error| self.broken(error))?;
            authorization.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, authorization);
        }
        self.kept.exchange(request, self.connect(), |source| self.broken(source)).await
    }
}
