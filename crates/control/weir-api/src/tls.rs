//! TLS server: reads its certificate and key from files, which may be replaced while it runs.
//!
//! The client is in `peer::link`, authentication of callers is in `token`.
//!
//! Invariants:
//! - a key that other users may read is refused;
//! - after a reload, new connections get the new certificate; if the new files cannot be used, the
//!   old certificate stays in use.

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::RwLock;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{
    ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier,
};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{RootCertStore, ServerConfig};
use weir_base::named_file;
use weir_base::private::read_secret;

use crate::Error;

/// The certificate that a server presents, with the paths of its files.
#[derive(Clone)]
pub struct Tls {
    certificate: PathBuf,
    key: PathBuf,
    served: Arc<Served>,
}

struct Served(RwLock<Arc<CertifiedKey>>);

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Served(..)")
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({})", self.certificate.display())
    }
}

impl ResolvesServerCert for Served {
    fn resolve(&self, _client: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.0.read()))
    }
}

impl Tls {
    /// Reads a certificate and its key (PEM).
    ///
    /// # Errors
    /// [`Error::File`] for files that cannot be used or do not belong together,
    /// [`Error::Private`] for a key that other users may read.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let served = Arc::new(Served(RwLock::new(read(certificate, key)?)));
        Ok(Self { certificate: certificate.to_owned(), key: key.to_owned(), served })
    }

    /// Reads the files of the certificate and the key again.
    ///
    /// # Errors
    /// The errors of [`Self::load`]; the old certificate stays in use.
    pub fn reload(&self) -> Result<(), Error> {
        *self.served.0.write() = read(&self.certificate, &self.key)?;
        Ok(())
    }

    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        let config = ServerConfig::builder().with_no_client_auth();
        TlsAcceptor::from(Arc::new(config.with_cert_resolver(self.resolver())))
    }

    /// Returns the TLS settings with this certificate for a server of a data protocol. With
    /// `client_ca`, clients need a certificate that was signed by a certificate in this PEM file.
    ///
    /// # Errors
    /// [`Error::File`] if no certificate can be read from `client_ca`.
    pub fn data_config(&self, client_ca: Option<&Path>) -> Result<Arc<ServerConfig>, Error> {
        let builder = ServerConfig::builder();
        let builder = match client_ca {
            None => builder.with_no_client_auth(),
            Some(path) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates(path)? {
                    roots.add(certificate).map_err(|error| unusable(path, error))?;
                }
                let verifier = WebPkiClientVerifier::builder(Arc::new(roots)).build();
                builder.with_client_cert_verifier(verifier.map_err(|error| unusable(path, error))?)
            }
        };
        let mut config = builder.with_cert_resolver(self.resolver());
        // Connections are long, so data for TLS session resumption would only use memory.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(Arc::new(config))
    }

    fn resolver(&self) -> Arc<dyn ResolvesServerCert> {
        Arc::<Served>::clone(&self.served)
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, Error> {
    let chain = certificates(certificate)?;
    let key =
        PrivateKeyDer::from_pem_slice(&read_secret(key)?).map_err(|error| unusable(key, error))?;
    let pair = CertifiedKey::from_der(chain, key, &ring::default_provider());
    Ok(Arc::new(pair.map_err(|error| unusable(certificate, error))?))
}

pub(crate) fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, Error> {
    let (_, text) = named_file::read(path, named_file::CERTIFICATES_BYTES_MAX)
        .map_err(|error| unusable(path, error))?;
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
    let all = all.map_err(|error| unusable(path, error))?;
    if all.is_empty() {
        return Err(unusable(path, "it contains no certificate"));
    }
    Ok(all)
}

pub(crate) fn unusable(path: &Path, why: impl fmt::Display) -> Error {
    Error::File { path: path.to_owned(), why: why.to_string() }
}
