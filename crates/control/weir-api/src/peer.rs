//! Peers: servers that replicate to each other over TLS with a shared secret; and the calls that
//! peers may make.
//!
//! weir-server decides when to replicate which volume.
//!
//! Invariants:
//! - a server listens for peers only if it is configured to; it refuses every call without the
//!   secret;
//! - a secret comes from a file, is compared in constant time, and is never printed;
//! - a peer can receive streams and list snapshots; it cannot make the other calls of the
//!   interface.

mod link;
mod serve;

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use weir_base::names;
use weir_base::private::read_secret;

use crate::Error;
use crate::place::Address;
use crate::tls::unusable;
use crate::token::SecretText;

pub(crate) use link::PeerLink;
pub use serve::{PeerListener, serve_peers};

/// TCP port for peers.
pub const PEER_PORT: u16 = 7118;

/// Minimum length of the secret of peers; shorter secrets can be guessed.
pub const SECRET_BYTES_MIN: usize = 16;

/// Maximum length of the secret of peers, which is sent in one header.
const SECRET_BYTES_MAX: usize = 1024;

/// A volume on another server, such as `https://host:7118/backup/vm1`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerAddress {
    /// Host name or IP address of the server, as in its certificate.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Full name of the volume on the other server.
    pub volume: String,
}

impl FromStr for PeerAddress {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bad = |why| Error::Address { text: text.to_owned(), why };
        let rest = text.strip_prefix("https://");
        let rest = rest.ok_or_else(|| bad("the address of another server begins with https://"))?;
        let (place, volume) =
            rest.split_once('/').ok_or_else(|| bad("the name of the remote volume is missing"))?;
        names::volume(volume)?;
        match Address::parse(place, PEER_PORT)? {
            Address::Tcp { host, port } => Ok(Self { host, port, volume: volume.to_owned() }),
            Address::Unix(_) => Err(bad("the address of another server begins with https://")),
        }
    }
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let place = Address::Tcp { host: self.host.clone(), port: self.port };
        write!(f, "https://{place}/{}", self.volume)
    }
}

/// Secret that two servers share; `Debug` does not print it.
#[derive(Clone)]
pub struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl From<Secret> for SecretText {
    fn from(secret: Secret) -> Self {
        Self::new(secret.0)
    }
}

impl Secret {
    /// Reads a secret: the text of the file without surrounding white space.
    ///
    /// # Errors
    /// [`Error::Private`] for a file that cannot be read or that other users may read,
    /// [`Error::File`] for a secret that is too short, too long or not plain text.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = read_secret(path)?;
        let text = std::str::from_utf8(&bytes).unwrap_or_default().trim();
        if !(SECRET_BYTES_MIN..=SECRET_BYTES_MAX).contains(&text.len()) {
            let why = format!("a secret has {SECRET_BYTES_MIN} to {SECRET_BYTES_MAX} characters");
            return Err(unusable(path, why));
        }
        if !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(unusable(
                path,
                "a secret has only letters, digits and punctuation, on one line",
            ));
        }
        Ok(Self(text.to_owned()))
    }

    fn header(&self) -> String {
        format!("Bearer {}", self.0)
    }

    /// True if a header contains the secret. The comparison takes the same time for all headers of
    /// the same length.
    fn is_in(&self, header: &[u8]) -> bool {
        use subtle::ConstantTimeEq as _;
        self.header().as_bytes().ct_eq(header).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_addresses_print_as_they_parse() {
        for text in ["https://host:7118/back/v", "https://[::1]:1/a/b", "https://10.0.0.1:9/a/b"] {
            let address: PeerAddress = text.parse().expect(text);
            assert_eq!(address.to_string(), text);
        }
        let short: PeerAddress = "https://host/back/v".parse().expect("the usual port");
        assert_eq!((short.port, short.volume.as_str()), (PEER_PORT, "back/v"));
        for text in ["http://host/a/b", "host:1/a/b", "https://host", "https://host/a", ""] {
            assert!(text.parse::<PeerAddress>().is_err(), "{text}");
        }
    }

    #[test]
    fn secrets_are_long_plain_and_never_printed() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("secret");
        let read = |text: &str| {
            std::fs::write(&path, text).expect("written");
            let private = std::os::unix::fs::PermissionsExt::from_mode(0o600);
            std::fs::set_permissions(&path, private).expect("closed to others");
            Secret::read(&path)
        };
        let secret = read(" 0123456789abcdef\n").expect("a secret");
        assert!(!format!("{secret:?}").contains("0123"));
        assert!(secret.is_in(b"Bearer 0123456789abcdef"));
        assert!(!secret.is_in(b"Bearer 0123456789abcdeg") && !secret.is_in(b"Bearer "));
        let bad = ["", "short", "0123456789abcdef\nmore", "0123456789 abcdef", "0123456789abcdéf"];
        for bad in bad {
            let error = read(bad).expect_err(bad).to_string();
            assert!(!error.contains("0123"), "{error}");
        }
    }
}
