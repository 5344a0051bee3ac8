//! Addresses of targets in the notation that users type.
//!
//! `target` opens the target at an address.
//!
//! Invariant: an address that is printed and parsed again is unchanged.

use std::path::{Path, PathBuf};

use percent_encoding::percent_decode_str;

use weir_initiator::{InitiatorError, Url};
use weir_nfs_client::{NfsError, Url as NfsUrl};

use super::error::TargetError;

/// Default port of NBD (IANA).
const NBD_PORT: u16 = 10809;

/// Location of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// The null target, which performs no I/O.
    Null {
        /// Size in bytes; `None`: the null target is as large as the dataset requires.
        bytes: Option<u64>,
    },
    /// A file or block device.
    File(PathBuf),
    /// A directory in which the benchmark run creates its files.
    Directory(PathBuf),
    /// An NBD export.
    Nbd(NbdAddress),
    /// A logical unit of an iSCSI target.
    Iscsi(Box<Url>),
    /// A directory of an NFS server, in which the benchmark run creates its files.
    Nfs(Box<NfsUrl>),
}

/// Location of an NBD export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NbdAddress {
    /// Server that offers the export.
    pub server: Server,
    /// Name of the export.
    pub export: String,
}

/// Address of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Server {
    /// Host and port.
    Tcp(String, u16),
    /// Path of a Unix socket.
    Unix(PathBuf),
}

impl Address {
    /// Parses `PATH`, `file:PATH`, `dir:PATH`, `null:[SIZE]`, or a URI of NBD, iSCSI or NFS.
    ///
    /// # Errors
    /// If the scheme is unknown or the address is incomplete.
    pub fn parse(text: &str) -> Result<Self, TargetError> {
        let bad = |why: &str| TargetError::Address { text: text.to_owned(), why: why.to_owned() };
        if text.is_empty() {
            return Err(bad("it is empty"));
        }
        if let Some(rest) = text.strip_prefix("nbd://") {
            return Self::nbd_tcp(rest).map_err(bad);
        }
        if let Some(rest) = text.strip_prefix("nbd+unix://") {
            return Self::nbd_unix(rest).map_err(bad);
        }
        if text.starts_with(Url::SCHEME) {
            return match Url::parse(text) {
                Ok(url) => Ok(Self::Iscsi(Box::new(url))),
                // Use the text from the initiator's error, which may differ from the given text:
                // the initiator omits a misplaced secret.
                Err(InitiatorError::Url { text, why }) => Err(TargetError::Address { text, why }),
                Err(error) => Err(bad(&error.to_string())),
            };
        }
        if text.starts_with(NfsUrl::SCHEME) {
            return match NfsUrl::parse(text) {
                Ok(url) => Ok(Self::Nfs(Box::new(url))),
                Err(NfsError::Url { why, .. }) => Err(bad(&why)),
                Err(error) => Err(bad(&error.to_string())),
            };
        }
        if text.contains("://") {
            return Err(bad("unknown kind of address"));
        }
        match text.split_once(':') {
            Some(("null", "")) => Ok(Self::Null { bytes: None }),
            Some(("null", size)) => match weir_base::size::parse(size) {
                Ok(bytes) => Ok(Self::Null { bytes: Some(bytes) }),
                Err(error) => Err(bad(&error.to_string())),
            },
            Some(("file", path)) if !path.is_empty() => Ok(Self::File(path.into())),
            Some(("dir", path)) if !path.is_empty() => Ok(Self::Directory(path.into())),
            Some(("file" | "dir", _)) => Err(bad("there is no path")),
            Some((scheme, _)) if !scheme.contains('/') && !Path::new(text).exists() => {
                Err(bad("unknown kind of address"))
            }
            _ if Path::new(text).is_dir() => Ok(Self::Directory(text.into())),
            _ => Ok(Self::File(text.into())),
        }
    }

    fn nbd_tcp(rest: &str) -> Result<Self, &'static str> {
        let (host, export) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !host.ends_with(':') && !port.contains(']') => {
                (host, port.parse().map_err(|_| "the port is not a number")?)
            }
            _ => (host, NBD_PORT),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if host.is_empty() {
            return Err("there is no host");
        }
        let server = Server::Tcp(host.to_owned(), port);
        Ok(Self::Nbd(NbdAddress { server, export: decoded(export)? }))
    }

    fn nbd_unix(rest: &str) -> Result<Self, &'static str> {
        let (export, query) = rest.split_once('?').ok_or("there is no ?socket=PATH")?;
        let export = export.strip_prefix('/').ok_or("write nbd+unix:///EXPORT?socket=PATH")?;
        let socket = query.split('&').find_map(|part| part.strip_prefix("socket="));
        let socket = socket.filter(|path| !path.is_empty()).ok_or("there is no socket=PATH")?;
        let server = Server::Unix(decoded(socket)?.into());
        Ok(Self::Nbd(NbdAddress { server, export: decoded(export)? }))
    }
}

fn decoded(text: &str) -> Result<String, &'static str> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| "it is not UTF-8")?;
    Ok(text.into_owned())
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Null { bytes: None } => write!(f, "null:"),
            Self::Null { bytes: Some(bytes) } => write!(f, "null:{bytes}"),
            Self::File(path) | Self::Directory(path) => write!(f, "{}", path.display()),
            Self::Nbd(NbdAddress { server: Server::Tcp(host, port), export }) => {
                write!(f, "nbd://{host}:{port}/{export}")
            }
            Self::Nbd(NbdAddress { server: Server::Unix(path), export }) => {
                write!(f, "nbd+unix:///{export}?socket={}", path.display())
            }
            Self::Iscsi(url) => write!(f, "{url}"),
            Self::Nfs(url) => write!(f, "{url}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_and_malformed_ones_refused() {
        let nbd = |text| match Address::parse(text) {
            Ok(Address::Nbd(NbdAddress { server, export })) => (server, export),
            other => panic!("{text}: {other:?}"),
        };
        let tcp = |host: &str, port| Server::Tcp(host.to_owned(), port);
        assert_eq!(nbd("nbd://h/tank/v"), (tcp("h", 10809), "tank/v".to_owned()));
        assert_eq!(nbd("nbd://h:1/"), (tcp("h", 1), String::new()));
        assert_eq!(nbd("nbd://[::1]:7/x"), (tcp("::1", 7), "x".to_owned()));
        let unix = (Server::Unix("/run/a b".into()), "v".to_owned());
        assert_eq!(nbd("nbd+unix:///v?socket=/run/a%20b"), unix);
        assert_eq!(Address::parse("null:").ok(), Some(Address::Null { bytes: None }));
        assert_eq!(Address::parse("file:/x/y").ok(), Some(Address::File("/x/y".into())));
        assert_eq!(Address::parse("/").ok(), Some(Address::Directory("/".into())));
        let iscsi = Address::parse("iscsi://h/iqn.a/1").expect("an address");
        assert_eq!(iscsi.to_string(), "iscsi://h:3260/iqn.a/1");
        let nfs = Address::parse("nfs://h:2049/tank/d?vers=3&uid=7").expect("an address");
        assert_eq!(nfs.to_string(), "nfs://h/tank/d?uid=7");
        let secret = Address::parse("iscsi://me%topsecret@h/iqn.a/1").expect_err("a secret");
        assert!(!secret.to_string().contains("topsecret"), "{secret}");
        for bad in [
            "",
            "iscsi://h/1",
            "nfs://h",
            "nfs://h/tank?vers=4",
            "s3://bucket",
            "nbd://",
            "nbd://h:x/",
            "nbd+unix:///v",
            "file:",
            "ftp:x",
        ] {
            assert!(Address::parse(bad).is_err(), "{bad}");
        }
    }
}
