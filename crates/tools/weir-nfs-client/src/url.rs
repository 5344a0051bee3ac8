//! URLs of directories of an NFS server. The keys follow libnfs where it has them.
//!
//! ```text
//! nfs://HOST[:PORT]/EXPORT/DIR[?KEY=VALUE[&KEY=VALUE ...]]
//!   vers=3  uid=UID  gid=GID  gids=GID,GID  mountport=PORT  sync=unstable|data|file
//!   source=ADDRESS,ADDRESS
//! ```
//! A path with `{FIRST..LAST}` names one share for each number ([`Url::shares`]).
//!
//! Invariant: a parsed URL prints as an equal URL, with the port unless it is 2049.

use std::fmt;
use std::net::IpAddr;
use std::ops::RangeInclusive;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use weir_nfs_wire::nfs3::StableHow;
use weir_oncrpc::limits::GIDS_MAX;

use crate::error::NfsError;
use crate::limits::{COMPONENTS_MAX, SHARES_MAX, SOURCES_MAX};

/// Port of NFS (IANA).
pub const DEFAULT_PORT: u16 = 2049;

/// Characters that must be percent-encoded in a path.
const RESERVED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'#').add(b'?');

/// Stability of the WRITE calls of a client (stable_how, RFC 1813 section 3.3.7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stability {
    /// `unstable`: the server may lose the data in a crash, until a COMMIT.
    #[default]
    Unstable,
    /// `data`: the data is durable.
    Data,
    /// `file`: the data and all metadata are durable.
    File,
}

impl Stability {
    /// Value in a call.
    pub const fn wire(self) -> StableHow {
        match self {
            Self::Unstable => StableHow::Unstable,
            Self::Data => StableHow::DataSync,
            Self::File => StableHow::FileSync,
        }
    }

    /// Value of the key `sync` in an address.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unstable => "unstable",
            Self::Data => "data",
            Self::File => "file",
        }
    }
}

/// Directory of an NFS server, and the identity with which the client accesses it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Name or IP address of the host, without brackets.
    pub host: String,
    /// TCP port of NFS.
    pub port: u16,
    /// Path of the export and the directory below it, for example `/export/dir`; at most 64
    /// components, without `.` and `..`.
    pub path: String,
    /// TCP port of MOUNT. `None`: the port of NFS, otherwise the port that portmap returns.
    pub mount_port: Option<u16>,
    /// User id of the calls; `None`: the user of this process.
    pub uid: Option<u32>,
    /// Group id of the calls; `None`: the group of this process.
    pub gid: Option<u32>,
    /// Supplementary groups of the calls: at most 16.
    pub gids: Vec<u32>,
    /// Stability of WRITE calls that need not be durable.
    pub stability: Stability,
    /// Addresses of this host from which the program connects: at most 64. Empty: the kernel
    /// chooses the address.
    pub sources: Vec<IpAddr>,
}

impl Url {
    /// Scheme of every URL.
    pub const SCHEME: &str = "nfs://";

    /// Parses a URL.
    ///
    /// # Errors
    /// The URL has no host or no path, an unknown key, or an invalid value.
    pub fn parse(text: &str) -> Result<Self, NfsError> {
        let bad = |why: &str| NfsError::Url { text: text.to_owned(), why: why.to_owned() };
        let rest = text.strip_prefix(Self::SCHEME).ok_or_else(|| bad("no nfs:// at the start"))?;
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (server, path) = place.split_once('/').ok_or_else(|| bad("there is no path"))?;
        let (host, port) = server_of(server).map_err(bad)?;
        let mut url = Self {
            host,
            port,
            path: path_of(path).map_err(bad)?,
            mount_port: None,
            uid: None,
            gid: None,
            gids: Vec::new(),
            stability: Stability::default(),
            sources: Vec::new(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| bad("a key without a value"))?;
            url.set(key, value).map_err(bad)?;
        }
        Ok(url)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        let number = |value: &str| value.parse().map_err(|_| "a uid or gid is no 32-bit number");
        let port = |value: &str| value.parse().ok().filter(|port| *port != 0);
        match key {
            "vers" if value == "3" => {}
            "vers" => return Err("this program supports only version 3 of NFS"),
            "uid" => self.uid = Some(number(value)?),
            "gid" => self.gid = Some(number(value)?),
            "gids" => {
                self.gids = value.split(',').map(number).collect::<Result<_, _>>()?;
                if self.gids.len() > GIDS_MAX {
                    return Err("AUTH_SYS has at most 16 supplementary groups");
                }
            }
            "mountport" => {
                self.mount_port = Some(port(value).ok_or("mountport is no port number")?);
            }
            "sync" => {
                let all = [Stability::Unstable, Stability::Data, Stability::File];
                let found = all.into_iter().find(|stability| stability.name() == value);
                self.stability = found.ok_or("sync must be unstable, data or file")?;
            }
            "source" => {
                let address = |text: &str| text.parse().map_err(|_| "source is no IP address");
                self.sources = value.split(',').map(address).collect::<Result<_, _>>()?;
                if self.sources.len() > SOURCES_MAX {
                    return Err("source has more than 64 addresses");
                }
            }
            _ => return Err("known keys are vers, uid, gid, gids, mountport, sync and source"),
        }
        Ok(())
    }

    /// Components of the path, from the root: at most 64.
    pub fn components(&self) -> impl DoubleEndedIterator<Item = &str> {
        self.path.split('/').filter(|name| !name.is_empty())
    }

    /// URL of each share: replaces `{FIRST..LAST}` in the path by each number from FIRST to LAST. A
    /// URL without such a range is its own only share; there are at most 64.
    pub fn shares(&self) -> Vec<Self> {
        let Some((before, numbers, after)) = range_of(&self.path) else {
            return vec![self.clone()];
        };
        let share = |number| Self { path: format!("{before}{number}{after}"), ..self.clone() };
        numbers.map(share).collect()
    }

    /// Source address of the connection with this number: each address of `source` in turn. `None`:
    /// the kernel chooses the address.
    pub fn source(&self, connection: usize) -> Option<IpAddr> {
        let index = connection.checked_rem(self.sources.len())?;
        self.sources.get(index).copied()
    }

    /// Host and port as `HOST:PORT`, with brackets around an IPv6 address.
    pub fn server(&self) -> String {
        let Self { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }
}

impl fmt::Display for Url {
    /// Formats the URL as [`Self::parse`] accepts it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let server = self.server();
        let default = format!(":{DEFAULT_PORT}");
        let server = server.strip_suffix(&default).unwrap_or(&server);
        write!(f, "{}{server}{}", Self::SCHEME, utf8_percent_encode(&self.path, RESERVED))?;
        let gids: Vec<String> = self.gids.iter().map(u32::to_string).collect();
        let sources: Vec<String> = self.sources.iter().map(IpAddr::to_string).collect();
        let keys = [
            ("uid", self.uid.map(|uid| uid.to_string())),
            ("gid", self.gid.map(|gid| gid.to_string())),
            ("gids", (!gids.is_empty()).then(|| gids.join(","))),
            ("mountport", self.mount_port.map(|port| port.to_string())),
            ("sync", Some(self.stability.name().to_owned())),
            ("source", (!sources.is_empty()).then(|| sources.join(","))),
        ];
        let is_default = |key: &str| key == "sync" && self.stability == Stability::default();
        let mut between = '?';
        for (key, value) in keys.into_iter().filter(|(key, _)| !is_default(key)) {
            if let Some(value) = value {
                write!(f, "{between}{key}={value}")?;
                between = '&';
            }
        }
        Ok(())
    }
}

/// Splits `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT` into host and port.
fn server_of(text: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or("there is no port")?)),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(['[', ']', '@']) {
        return Err("there is no host");
    }
    let port = match port {
        Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or("the port is no number")?,
        None => DEFAULT_PORT,
    };
    Ok((host.to_owned(), port))
}

/// Decodes and checks the path, and removes empty components.
fn path_of(text: &str) -> Result<String, &'static str> {
    let path = percent_decode_str(text).decode_utf8().map_err(|_| "the path is not UTF-8")?;
    let names: Vec<&str> = path.split('/').filter(|name| !name.is_empty()).collect();
    if names.iter().any(|name| [".", ".."].contains(name) || name.contains('\0')) {
        return Err("the path contains `.`, `..` or a NUL byte");
    }
    if names.len() > COMPONENTS_MAX {
        return Err("the path has more than 64 components");
    }
    let path = format!("/{}", names.join("/"));
    if let Some((_, numbers, _)) = range_of(&path) {
        let (first, last) = (u64::from(*numbers.start()), u64::from(*numbers.end()));
        if first > last || last - first >= SHARES_MAX {
            return Err("{FIRST..LAST} in the path has no number, or more than 64");
        }
    }
    Ok(path)
}

/// Splits a path at its first `{FIRST..LAST}`.
fn range_of(path: &str) -> Option<(&str, RangeInclusive<u32>, &str)> {
    let (before, rest) = path.split_once('{')?;
    let (range, after) = rest.split_once('}')?;
    let (first, last) = range.split_once("..")?;
    Some((before, first.parse().ok()?..=last.parse().ok()?, after))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_parsed_and_printed() {
        let url = Url::parse("nfs://h/tank//home/a%20b/?vers=3").unwrap();
        assert_eq!((url.host.as_str(), url.port, url.path.as_str()), ("h", 2049, "/tank/home/a b"));
        assert_eq!(url.components().collect::<Vec<_>>(), ["tank", "home", "a b"]);
        assert_eq!(url.to_string(), "nfs://h/tank/home/a%20b");
        let text = "nfs://[::1]:12049/?uid=1&gid=2&gids=3,4&mountport=20048&sync=file";
        let url = Url::parse(text).unwrap();
        assert_eq!((url.uid, url.gid, url.gids.as_slice()), (Some(1), Some(2), &[3, 4][..]));
        assert_eq!((url.mount_port, url.stability), (Some(20048), Stability::File));
        assert_eq!((url.path.as_str(), url.server().as_str()), ("/", "[::1]:12049"));
        assert_eq!(url.to_string(), text);
        let text = "nfs://h/e?source=127.0.0.1,::1";
        let url = Url::parse(text).unwrap();
        let sources = [0, 1, 2].map(|connection| url.source(connection).unwrap().to_string());
        assert_eq!(sources, ["127.0.0.1", "::1", "127.0.0.1"]);
        assert_eq!(url.to_string(), text);
        assert_eq!(Url::parse("nfs://h/e").unwrap().source(3), None);
    }

    #[test]
    fn range_in_a_path_is_one_share_for_each_number() {
        let text = "nfs://h/share{9..11}/dir?uid=5";
        let url = Url::parse(text).unwrap();
        assert_eq!(url.to_string(), text);
        let shares: Vec<String> = url.shares().iter().map(Url::to_string).collect();
        let expected =
            ["nfs://h/share9/dir?uid=5", "nfs://h/share10/dir?uid=5", "nfs://h/share11/dir?uid=5"];
        assert_eq!(shares, expected);
        for one in ["nfs://h/a", "nfs://h/{a..b}", "nfs://h/a{1}"] {
            let url = Url::parse(one).unwrap();
            assert_eq!(url.shares(), [url]);
        }
        assert_eq!(Url::parse("nfs://h/s{0..63}").unwrap().shares().len(), 64);
    }

    #[test]
    fn invalid_urls_are_refused() {
        let groups = format!("nfs://h/e?gids={}1", "1,".repeat(16));
        let many = format!("nfs://h/e?source={}127.0.0.1", "127.0.0.1,".repeat(64));
        let deep = format!("nfs://h/{}", "d/".repeat(65));
        for bad in [
            "iscsi://h/e",
            "nfs://h",
            "nfs:///e",
            "nfs://h:x/e",
            "nfs://h:0/e",
            "nfs://[::1/e",
            "nfs://u@h/e",
            "nfs://h/a/../b",
            "nfs://h/./b",
            "nfs://h/a%00",
            "nfs://h/%ff",
            "nfs://h/s{2..1}",
            "nfs://h/s{0..64}",
            "nfs://h/s{0..4294967295}",
            "nfs://h/e?vers=4",
            "nfs://h/e?uid=x",
            "nfs://h/e?sync=no",
            "nfs://h/e?sync",
            "nfs://h/e?mountport=0",
            "nfs://h/e?colour=1",
            "nfs://h/e?source=localhost",
            "nfs://h/e?source=",
            &groups,
            &many,
            &deep,
        ] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
    }
}
