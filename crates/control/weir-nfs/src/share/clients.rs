//! Clients of a rule: the part before its options.
//!
//! ```text
//! CLIENT: *, an address, a network (10.0.0.0/8, [fd00::]/8), a host name or @NETGROUP
//! ```
//!
//! `rules` has the options, `names` resolves host names and netgroups.
//!
//! Spec: RFC 1123 section 2.1 (host names).
//!
//! Invariant: text that looks like an address is never a host name.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use weir_net::Network;

use crate::limits::{HOST_BYTES_MAX, HOST_LABEL_BYTES_MAX, NETGROUP_BYTES_MAX};

/// Name of clients, which the server resolves to addresses.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ClientName {
    /// A host name, in lower case.
    Host(Arc<str>),
    /// The name of a netgroup, without `@`.
    Netgroup(Arc<str>),
}

/// Clients of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Clients {
    All,
    Network(Network),
    Name(ClientName),
}

/// Precision with which a rule names a client, the least exact first. The length of the prefix
/// decides between two networks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Precision {
    All,
    Network(u8),
    Netgroup,
    Host,
    Address,
}

/// Reason why text names no clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoClients {
    /// A host name with `*` or `?`.
    Wildcard,
    Other,
}

impl ClientName {
    pub(super) fn precision(&self) -> Precision {
        match self {
            Self::Host(_) => Precision::Host,
            Self::Netgroup(_) => Precision::Netgroup,
        }
    }
}

impl fmt::Display for ClientName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Host(name) => f.write_str(name),
            Self::Netgroup(name) => write!(f, "@{name}"),
        }
    }
}

impl Clients {
    /// Parses the clients of a rule.
    ///
    /// # Errors
    /// `Wildcard` for a host name with wildcards, `Other` for other text.
    pub(super) fn parse(text: &str) -> Result<Self, NoClients> {
        if text == "*" {
            return Ok(Self::All);
        }
        if let Ok(network) = text.parse() {
            return Ok(Self::Network(network));
        }
        if let Some(name) = text.strip_prefix('@') {
            let netgroup = || Self::Name(ClientName::Netgroup(name.into()));
            return is_netgroup(name).then(netgroup).ok_or(NoClients::Other);
        }
        if text.contains(['*', '?']) {
            return Err(NoClients::Wildcard);
        }
        // Names have no case. The saved rule has this text.
        let name = text.to_ascii_lowercase();
        let host = || Self::Name(ClientName::Host(name.as_str().into()));
        is_host(&name).then(host).ok_or(NoClients::Other)
    }

    /// The name that the server must resolve.
    pub(super) fn name(&self) -> Option<&ClientName> {
        match self {
            Self::Name(name) => Some(name),
            Self::All | Self::Network(_) => None,
        }
    }

    /// Precision with which the rule names an address, without a lookup. `None` if the address is
    /// not one of the clients, or if the clients have a name.
    pub(super) fn precision(&self, address: IpAddr) -> Option<Precision> {
        match self {
            Self::All => Some(Precision::All),
            Self::Network(network) => network.contains(address).then(|| {
                let bits = if address.is_ipv4() { 32 } else { 128 };
                let is_address = network.bits() == bits;
                if is_address { Precision::Address } else { Precision::Network(network.bits()) }
            }),
            Self::Name(_) => None,
        }
    }
}

impl fmt::Display for Clients {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("*"),
            Self::Network(network) => {
                let text = network.to_string();
                match text.split_once('/') {
                    Some((address, bits)) if address.contains(':') => {
                        write!(f, "[{address}]/{bits}")
                    }
                    _ => f.write_str(&text),
                }
            }
            Self::Name(name) => name.fmt(f),
        }
    }
}

/// True for a host name. An address in any notation of inet_aton(3), such as `10.1`, is none, and
/// neither is an option of rules.
pub(super) fn is_host(name: &str) -> bool {
    let is_label = |label: &str| {
        let bytes = label.as_bytes();
        let is_edge = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        bytes.len() <= HOST_LABEL_BYTES_MAX
            && is_edge(bytes.first())
            && is_edge(bytes.last())
            && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
    };
    let is_number = |label: &str| {
        let hex = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
        match hex {
            Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
            None => label.bytes().all(|byte| byte.is_ascii_digit()),
        }
    };
    let is_option = ["ro", "rw", "secure", "insecure"].contains(&name);
    name.len() <= HOST_BYTES_MAX
        && name.split('.').all(is_label)
        && !name.rsplit('.').next().is_none_or(is_number)
        && !is_option
}

fn is_netgroup(name: &str) -> bool {
    let is_first = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    let is_rest = |byte: u8| is_first(byte) || byte == b'-' || byte == b'.';
    name.len() <= NETGROUP_BYTES_MAX
        && name.bytes().next().is_some_and(is_first)
        && name.bytes().all(is_rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_names_and_netgroups_are_clients() {
        let long = format!("{}.example", "a".repeat(63));
        for text in ["localhost", "host.example.org", "a-1.b2", "0a", "3com.example", &long] {
            let clients = Clients::parse(text).unwrap();
            assert_eq!(clients, Clients::Name(ClientName::Host(text.into())), "{text}");
            assert_eq!(clients.to_string(), text);
        }
        let upper = Clients::parse("Host.Example").unwrap();
        assert_eq!(upper, Clients::parse("host.example").unwrap(), "names have no case");
        for text in ["@admins", "@_a", "@a.b-c_d", "@7"] {
            let name = ClientName::Netgroup(text[1..].into());
            assert_eq!(Clients::parse(text).unwrap(), Clients::Name(name), "{text}");
            assert_eq!(Clients::parse(text).unwrap().to_string(), text);
        }
        assert_ne!(Clients::parse("@A").unwrap(), Clients::parse("@a").unwrap());
    }

    #[test]
    fn addresses_with_errors_are_no_host_names() {
        let long_label = format!("{}.example", "a".repeat(64));
        let long = ["a"; 127].join(".") + ".bc";
        let texts = [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "-a",
            "a-",
            "a_b",
            "a b",
            "10.0.0.256",
            "10.1",
            "7",
            "0x7f",
            "a.0X1F",
            "host.7",
            "ü.example",
            "@",
            "@-a",
            "@a b",
            "@a,b",
            "@@a",
            "a@b",
            "ro",
            "rw",
            "secure",
            "insecure",
            "rO",
            "Secure",
            "10.0.0.0/33",
            "a/8",
            &long_label,
            &long,
        ];
        for text in texts {
            assert_eq!(Clients::parse(text), Err(NoClients::Other), "{text}");
        }
        for text in ["*.example.org", "host?.example.org", "**"] {
            assert_eq!(Clients::parse(text), Err(NoClients::Wildcard), "{text}");
        }
    }

    #[test]
    fn single_address_precedes_every_other_client() {
        let of = |text: &str, address: &str| {
            Clients::parse(text).unwrap().precision(address.parse().unwrap())
        };
        assert_eq!(of("10.0.0.7", "10.0.0.7"), Some(Precision::Address));
        assert_eq!(of("[fd00::7]", "fd00::7"), Some(Precision::Address));
        assert_eq!(of("[fd00::]/32", "fd00::7"), Some(Precision::Network(32)));
        let ascending = [
            Precision::All,
            Precision::Network(0),
            Precision::Network(31),
            Precision::Netgroup,
            Precision::Host,
            Precision::Address,
        ];
        assert!(ascending.is_sorted());
    }
}
