//! Addresses of servers, default ports and the default state directory.
//!
//! [`crate::listen`] and [`crate::client`] open the sockets.
//!
//! Invariants:
//! - `parse` converts the text that `Display` writes for an address to the same address;
//! - no default address is reachable from other machines.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use crate::Error;

/// TCP port of the management interface.
pub const API_PORT: u16 = 7117;

/// TCP port of NBD, as registered with IANA.
pub const NBD_PORT: u16 = 10_809;

/// TCP port of NFS, as registered with IANA.
pub const NFS_PORT: u16 = 2049;

/// TCP port of iSCSI, as registered with IANA.
pub const ISCSI_PORT: u16 = 3260;

/// File name of the management socket.
const API_SOCKET: &str = "api.sock";

/// Directory of the socket of a server that runs as root.
const SYSTEM_SOCKET_DIR: &str = "/run/weir";

/// File name of the NBD socket in the state directory.
pub const NBD_SOCKET: &str = "nbd.sock";

/// Environment variable with the server's address, for clients.
pub const API_VARIABLE: &str = "WEIR_API";

/// An address to listen on or to connect to.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Address {
    /// Path of a unix socket.
    Unix(PathBuf),
    /// A TCP port of a host name or IP address.
    Tcp {
        /// Host name or IP address, IPv6 without brackets.
        host: String,
        /// Port.
        port: u16,
    },
}

impl Address {
    /// Returns the loopback address with TCP port `port`.
    pub fn loopback(port: u16) -> Self {
        Self::Tcp { host: "127.0.0.1".to_owned(), port }
    }

    /// Parses `unix:PATH`, `HOST`, `HOST:PORT`, `[IPV6]:PORT` or `http://HOST:PORT`.
    ///
    /// # Errors
    /// [`Error::Address`] with the rule that the text breaks.
    pub fn parse(text: &str, default_port: u16) -> Result<Self, Error> {
        let bad = |why| Error::Address { text: text.to_owned(), why };
        if let Some(path) = text.strip_prefix("unix:") {
            return if path.is_empty() {
                Err(bad("the path after unix: is empty"))
            } else {
                Ok(Self::Unix(PathBuf::from(path)))
            };
        }
        if text.starts_with("https://") {
            return Err(bad("this is not an address to listen on; write HOST:PORT"));
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        let (host, port) = split_port(rest).ok_or_else(|| bad("the brackets do not match"))?;
        let port = match port {
            None => default_port,
            Some(digits) => match digits.parse() {
                Ok(port) if digits.bytes().all(|b| b.is_ascii_digit()) => port,
                _ => return Err(bad("the port is not a number from 0 to 65535")),
            },
        };
        let is_ip = host.parse::<IpAddr>().is_ok();
        let host_ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        if host.is_empty() {
            return Err(bad("the host is empty"));
        }
        if !is_ip && !host.chars().all(host_ok) {
            return Err(bad("this is neither a host name nor an IP address"));
        }
        Ok(Self::Tcp { host: host.to_owned(), port })
    }
}

/// Splits an address into host and port; `None` if the brackets of IPv6 do not match.
fn split_port(text: &str) -> Option<(&str, Option<&str>)> {
    if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']')?;
        return match after {
            "" => Some((host, None)),
            _ => Some((host, Some(after.strip_prefix(':')?))),
        };
    }
    if text.parse::<IpAddr>().is_ok() {
        return Some((text, None));
    }
    Some(text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))))
}

impl Address {
    /// True if only a process of this machine can use the address.
    pub fn is_local(&self) -> bool {
        match self {
            Self::Unix(_) => true,
            Self::Tcp { host, .. } => {
                host.eq_ignore_ascii_case("localhost")
                    || host.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

/// Default state directory of `weir serve`: `/var/lib/weir` for root, otherwise
/// `$XDG_STATE_HOME/weir` or `~/.local/state/weir`.
///
/// # Errors
/// [`Error::NoHome`] if neither variable has an absolute path.
pub fn default_state_dir() -> Result<PathBuf, Error> {
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from("/var/lib/weir"));
    }
    // The XDG Base Directory Specification requires that relative paths are ignored.
    let absolute = |name| {
        std::env::var_os(name).map(PathBuf::from).filter(|path: &PathBuf| path.is_absolute())
    };
    absolute("XDG_STATE_HOME")
        .or_else(|| absolute("HOME").map(|home| home.join(".local/state")))
        .map(|base| base.join("weir"))
        .ok_or(Error::NoHome)
}

/// Default management socket of a server of this user: `/run/weir/api.sock` for root, otherwise
/// `$XDG_RUNTIME_DIR/weir/api.sock`, and without that variable in the default state directory.
///
/// # Errors
/// [`Error::NoHome`] if none of the variables has an absolute path.
pub fn default_api_socket() -> Result<PathBuf, Error> {
    if rustix::process::geteuid().is_root() {
        return Ok(Path::new(SYSTEM_SOCKET_DIR).join(API_SOCKET));
    }
    let run = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|p| p.is_absolute());
    let dir = run.map_or_else(default_state_dir, |run| Ok(run.join("weir")))?;
    Ok(dir.join(API_SOCKET))
}

/// Returns the server that clients call by default: the socket of this user's server if a process
/// listens there, otherwise the socket of root's server.
pub fn default_server() -> Address {
    let system = Path::new(SYSTEM_SOCKET_DIR).join(API_SOCKET);
    first_live([default_api_socket().ok(), Some(system)].into_iter().flatten().collect())
}

/// Returns the first socket on which a process listens; if there is none, the first socket.
fn first_live(mut sockets: Vec<PathBuf>) -> Address {
    let is_dead = |path: &PathBuf| {
        UnixStream::connect(path).is_err_and(|error| {
            use std::io::ErrorKind::{ConnectionRefused, NotFound};
            matches!(error.kind(), NotFound | ConnectionRefused)
        })
    };
    // A socket that this user may not access counts as live: the call then reports the error.
    let live = sockets.iter().position(|path| !is_dead(path)).unwrap_or_default();
    Address::Unix(sockets.swap_remove(live))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn addresses_print_as_they_parse() {
        for (text, printed) in [
            ("unix:/run/weir.sock", "unix:/run/weir.sock"),
            ("unix:api.sock", "unix:api.sock"),
            ("127.0.0.1", "127.0.0.1:7117"),
            ("localhost:80", "localhost:80"),
            ("http://nas.lan:7117/", "nas.lan:7117"),
            ("[::1]:9", "[::1]:9"),
            ("::1", "[::1]:7117"),
            ("[::]", "[::]:7117"),
        ] {
            let address = Address::parse(text, API_PORT).expect(text);
            assert_eq!(address.to_string(), printed);
            assert_eq!(Address::parse(printed, API_PORT).expect(text), address);
        }
    }

    #[test]
    fn invalid_addresses_are_refused_with_the_text() {
        for text in [
            "",
            ":80",
            "unix:",
            "host:99999",
            "host:+1",
            "host:",
            "[::1",
            "[::1]x",
            "a b:1",
            "https://h",
            "http://u@h",
            "h/p",
        ] {
            let error = Address::parse(text, API_PORT).expect_err(text).to_string();
            assert!(error.contains(&format!("{text:?}")), "{error}");
        }
    }

    #[test]
    fn default_server_is_the_first_live_socket() {
        let dir = tempfile::tempdir().expect("a directory");
        let [own, system] = ["own", "system"].map(|name| dir.path().join(name));
        let found = || first_live(vec![own.clone(), system.clone()]);
        assert_eq!(found(), Address::Unix(own.clone()));
        let _system = UnixListener::bind(&system).expect("a socket");
        assert_eq!(found(), Address::Unix(system.clone()));
        let listener = UnixListener::bind(&own).expect("a socket");
        assert_eq!(found(), Address::Unix(own.clone()));
        // A server that is killed leaves its socket file.
        drop(listener);
        assert!(own.exists());
        assert_eq!(found(), Address::Unix(system.clone()));
    }
}
