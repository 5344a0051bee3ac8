//! URLs with which users name logical units. The syntax follows libiscsi, but a URL contains only
//! the name of a secret's file. A user name and a secret before the host are refused, because all
//! users of a machine can read the command lines of its processes.
//!
//! ```text
//! iscsi://HOST[:PORT]/TARGET/LUN[?KEY=VALUE[&KEY=VALUE ...]]
//!   initiator=NAME  chap=FILE  chap-user=NAME  mutual=FILE  mutual-user=NAME
//!   header-digest=crc32c|none  data-digest=crc32c|none
//! ```
//!
//! Invariant: a parsed URL prints as the same text, except that the port is always present.

use std::fmt;
use std::path::PathBuf;

use percent_encoding::{AsciiSet, CONTROLS, percent_decode_str, utf8_percent_encode};
use weir_iscsi_wire::DEFAULT_PORT;
use weir_iscsi_wire::limits::NAME_BYTES_MAX;
use weir_iscsi_wire::pdu::Digests;
use weir_scsi::limits::LUN_MAX;

use crate::error::InitiatorError;

/// Characters that must be percent-encoded in a value.
const RESERVED: &AsciiSet = &CONTROLS.add(b' ').add(b'%').add(b'&').add(b'#').add(b'+').add(b'?');

/// Address of a logical unit, and the identity with which the initiator accesses the unit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Url {
    /// Name or IP address of the host, without brackets.
    pub host: String,
    /// TCP port.
    pub port: u16,
    /// Name of the target, in lower case.
    pub target: String,
    /// Logical unit number, at most 16383.
    pub lun: u16,
    /// Name of the initiator.
    pub initiator: Option<String>,
    /// File of the secret with which the initiator authenticates.
    pub chap_file: Option<PathBuf>,
    /// CHAP name of the initiator; `None` means the initiator name.
    pub chap_user: Option<String>,
    /// File of the secret with which the target must authenticate.
    pub mutual_file: Option<PathBuf>,
    /// CHAP name that the target must use; `None` allows any name.
    pub mutual_user: Option<String>,
    /// Digests that the session must use.
    pub digests: Digests,
}

impl Url {
    /// Scheme of every URL of a logical unit.
    pub const SCHEME: &str = "iscsi://";

    /// Parses a URL.
    ///
    /// # Errors
    /// The URL does not name a logical unit, or contains an unknown key or an invalid value.
    pub fn parse(text: &str) -> Result<Self, InitiatorError> {
        let bad = |why: &str| {
            // The text before an @ may contain a secret, so leave it out of the error.
            let shown = match text.rsplit_once('@') {
                Some((_, rest)) => format!("{}...@{rest}", Self::SCHEME),
                None => text.to_owned(),
            };
            InitiatorError::Url { text: shown, why: why.to_owned() }
        };
        let rest =
            text.strip_prefix(Self::SCHEME).ok_or_else(|| bad("no iscsi:// at the start"))?;
        let (path, query) = rest.split_once('?').unwrap_or((rest, ""));
        let mut parts = path.split('/');
        let portal = parts.next().unwrap_or_default();
        if portal.contains('@') {
            return Err(bad("names and secrets are not allowed in the address; use ?chap=FILE"));
        }
        let (Some(target), Some(lun), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(bad("a target and a LUN must follow the host"));
        };
        let (host, port) = portal_of(portal).map_err(bad)?;
        let target = decoded(target).and_then(|name| checked_name(&name)).map_err(bad)?;
        let lun = lun.parse().ok().filter(|lun| *lun <= LUN_MAX);
        let lun = lun.ok_or_else(|| bad("the LUN is not a number from 0 to 16383"))?;
        let mut url = Self {
            host,
            port,
            target,
            lun,
            initiator: None,
            chap_file: None,
            chap_user: None,
            mutual_file: None,
            mutual_user: None,
            digests: Digests::default(),
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or_else(|| bad("a key without a value"))?;
            url.set(key, value).map_err(bad)?;
        }
        let has_name_alone = url.chap_file.is_none() && url.chap_user.is_some()
            || url.mutual_file.is_none() && url.mutual_user.is_some();
        if has_name_alone || url.chap_file.is_none() && url.mutual_file.is_some() {
            return Err(bad("a CHAP name and mutual CHAP need the file of a secret: chap=FILE"));
        }
        Ok(url)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), &'static str> {
        let value = decoded(value)?;
        if value.is_empty() {
            return Err("a key without a value");
        }
        match key {
            "initiator" => self.initiator = Some(checked_name(&value)?),
            "chap" => self.chap_file = Some(value.into()),
            "chap-user" => self.chap_user = Some(value),
            "mutual" => self.mutual_file = Some(value.into()),
            "mutual-user" => self.mutual_user = Some(value),
            "header-digest" => self.digests.header = digest(&value)?,
            "data-digest" => self.digests.data = digest(&value)?,
            _ => {
                return Err("known keys are initiator, chap, chap-user, mutual, mutual-user, \
                            header-digest and data-digest");
            }
        }
        Ok(())
    }

    /// Returns host and port as `HOST:PORT`, with brackets around an IPv6 address.
    pub fn portal(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }
}

impl fmt::Display for Url {
    /// Formats the URL as [`Self::parse`] accepts it, always with the port.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}/{}/{}", Self::SCHEME, self.portal(), encoded(&self.target), self.lun)?;
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| path.display().to_string());
        let crc32c = |wanted: bool| wanted.then(|| "crc32c".to_owned());
        let keys = [
            ("initiator", self.initiator.clone()),
            ("chap", path(&self.chap_file)),
            ("chap-user", self.chap_user.clone()),
            ("mutual", path(&self.mutual_file)),
            ("mutual-user", self.mutual_user.clone()),
            ("header-digest", crc32c(self.digests.header)),
            ("data-digest", crc32c(self.digests.data)),
        ];
        let mut between = '?';
        for (key, value) in keys {
            if let Some(value) = value {
                write!(f, "{between}{key}={}", encoded(&value))?;
                between = '&';
            }
        }
        Ok(())
    }
}

/// Splits `HOST`, `HOST:PORT`, `[ADDRESS]` or `[ADDRESS]:PORT` into host and port.
pub(crate) fn portal_of(text: &str) -> Result<(String, u16), &'static str> {
    let (host, port) = match text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, rest)) => (host, Some(rest.strip_prefix(':').ok_or("there is no port")?)),
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    if host.is_empty() || host.contains(['[', ']', '/']) {
        return Err("there is no host");
    }
    let port = match port {
        Some(port) => port.parse().map_err(|_| "the port is not a number")?,
        None => DEFAULT_PORT,
    };
    Ok((host.to_owned(), port))
}

fn digest(value: &str) -> Result<bool, &'static str> {
    match value {
        "crc32c" => Ok(true),
        "none" => Ok(false),
        _ => Err("a digest must be crc32c or none"),
    }
}

/// Checks an iSCSI name and converts it to lower case for comparisons (RFC 7143 4.2.7.1).
fn checked_name(name: &str) -> Result<String, &'static str> {
    let bad = |c: char| c.is_control() || c.is_whitespace();
    if name.is_empty() || name.len() > NAME_BYTES_MAX || name.contains(bad) {
        return Err("not an iSCSI name");
    }
    Ok(name.to_lowercase())
}

fn decoded(text: &str) -> Result<String, &'static str> {
    let text = percent_decode_str(text).decode_utf8().map_err(|_| "it is not UTF-8")?;
    if text.contains('\0') { Err("it holds a zero byte") } else { Ok(text.into_owned()) }
}

fn encoded(text: &str) -> impl fmt::Display + '_ {
    utf8_percent_encode(text, RESERVED)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_print_as_parsed() {
        let url = Url::parse("iscsi://[::1]:3261/IQN.2026-01.org.weir:vms/2").expect("an address");
        assert_eq!((url.host.as_str(), url.port, url.lun), ("::1", 3261, 2));
        assert_eq!(
            (url.target.as_str(), url.portal().as_str()),
            ("iqn.2026-01.org.weir:vms", "[::1]:3261")
        );
        let full = "iscsi://host:3260/iqn.a/0?initiator=iqn.me&chap=/etc/a%20b&chap-user=x%26y&\
                    mutual=/c&mutual-user=t&header-digest=crc32c&data-digest=crc32c";
        let url = Url::parse(full).expect("an address");
        assert_eq!(url.chap_file.as_deref(), Some(std::path::Path::new("/etc/a b")));
        assert_eq!(url.chap_user.as_deref(), Some("x&y"));
        assert_eq!(url.digests, Digests { header: true, data: true });
        assert_eq!(url.to_string(), full);
        let short = Url::parse("iscsi://host/iqn.a/0").expect("an address");
        assert_eq!((short.port, short.to_string().as_str()), (3260, "iscsi://host:3260/iqn.a/0"));
    }

    #[test]
    fn invalid_urls_and_urls_with_secrets_are_refused() {
        for bad in [
            "nbd://h/a/1",
            "iscsi://",
            "iscsi://h",
            "iscsi://h/iqn.a",
            "iscsi://h/iqn.a/",
            "iscsi://h/iqn.a/x",
            "iscsi://h/iqn.a/16384",
            "iscsi://h/iqn.a/1/2",
            "iscsi:///iqn.a/1",
            "iscsi://h:p/iqn.a/1",
            "iscsi://h/iqn a/1",
            "iscsi://h/iqn%00a/1",
            "iscsi://h/%ff/1",
            "iscsi://h/iqn.a/1?colour=red",
            "iscsi://h/iqn.a/1?chap",
            "iscsi://h/iqn.a/1?chap=",
            "iscsi://h/iqn.a/1?chap-user=me",
            "iscsi://h/iqn.a/1?mutual=/f",
            "iscsi://h/iqn.a/1?data-digest=md5",
            "iscsi://[::1/iqn.a/1",
            "iscsi://::1/iqn.a/1",
        ] {
            assert!(Url::parse(bad).is_err(), "{bad}");
        }
        let error = Url::parse("iscsi://me%topsecret@h/iqn.a/1").expect_err("a secret");
        assert!(!error.to_string().contains("topsecret"), "{error}");
    }
}
