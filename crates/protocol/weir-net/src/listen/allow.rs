//! Allow lists: client addresses that may connect over TCP.
//!
//! The `acceptor` refuses clients with other addresses; `socket_file` controls the users of unix
//! sockets.
//!
//! Invariant: an empty list allows no address.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::error::ServeError;

/// Networks whose addresses may connect.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AllowList(Vec<Network>);

/// Allow list that can change while listeners use it; clones share it.
#[derive(Clone, Debug, Default)]
pub struct LiveAllowList(Arc<RwLock<AllowList>>);

impl From<AllowList> for LiveAllowList {
    fn from(list: AllowList) -> Self {
        Self(Arc::new(RwLock::new(list)))
    }
}

impl LiveAllowList {
    /// Replaces the allow list. Existing connections stay open.
    pub fn set(&self, list: AllowList) {
        *self.0.write() = list;
    }

    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        self.0.read().contains(address)
    }
}

/// A network: an IP address with a prefix length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u8,
}

impl AllowList {
    /// Parses entries such as `10.0.0.7`, `10.0.0.0/24` or `fd00::/8`.
    ///
    /// # Errors
    /// `Invalid` if an entry is not a network, or has bits set beyond its prefix length.
    pub fn parse<'a>(entries: impl IntoIterator<Item = &'a str>) -> Result<Self, ServeError> {
        entries.into_iter().map(str::parse).collect::<Result<_, _>>().map(Self)
    }

    /// Entries of the list, formatted as text.
    pub fn entries(&self) -> Vec<String> {
        self.0.iter().map(ToString::to_string).collect()
    }

    /// Union of several allow lists, without duplicates.
    pub fn union<'a>(lists: impl IntoIterator<Item = &'a Self>) -> Self {
        let mut networks: Vec<Network> = Vec::new();
        for network in lists.into_iter().flat_map(|list| &list.0) {
            if !networks.contains(network) {
                networks.push(*network);
            }
        }
        Self(networks)
    }

    /// True if the list allows no address.
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// True if `address` is in one of the networks. The address of an IPv4 client on an IPv6 socket
    /// counts as an IPv4 address.
    pub fn contains(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|network| network.contains(address))
    }
}

impl fmt::Display for AllowList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, network) in self.0.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{network}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

impl Network {
    /// Length of the prefix in bits.
    pub const fn bits(&self) -> u8 {
        self.bits
    }

    /// True if an address is in the network. An IPv6 address that maps an IPv4 address must be in
    /// its canonical form.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                let differs = u32::from(own) ^ u32::from(other);
                differs.leading_zeros() >= u32::from(self.bits)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                let differs = u128::from(own) ^ u128::from(other);
                differs.leading_zeros() >= u32::from(self.bits)
            }
            _ => false,
        }
    }
}

impl FromStr for Network {
    type Err = ServeError;

    fn from_str(text: &str) -> Result<Self, ServeError> {
        let bad = |why: &str| ServeError::Network { text: text.to_owned(), why: why.to_owned() };
        let (address, bits) = match text.trim().split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text.trim(), None),
        };
        let address: IpAddr = address
            .trim_matches(['[', ']'])
            .parse()
            .map_err(|_| bad("no IP address at the start"))?;
        let bits_max = if address.is_ipv4() { 32 } else { 128 };
        let bits = match bits {
            None => bits_max,
            Some(bits) => match bits.parse::<u8>() {
                // Refuse a sign before the number, which `parse` would accept.
                Ok(number) if number <= bits_max && !bits.starts_with('+') => number,
                _ => return Err(bad(&format!("a prefix length is 0 to {bits_max}"))),
            },
        };
        let is_mapped = matches!(address, IpAddr::V6(ip) if ip.to_ipv4_mapped().is_some());
        if is_mapped {
            return Err(bad("write the IPv4 address without ::ffff:"));
        }
        let first: IpAddr = match address {
            IpAddr::V4(ip) => {
                let mask = u32::MAX.checked_shl(32 - u32::from(bits)).unwrap_or(0);
                Ipv4Addr::from(u32::from(ip) & mask).into()
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0);
                Ipv6Addr::from(u128::from(ip) & mask).into()
            }
        };
        if first != address {
            // Host bits that are set are usually a mistake: the administrator meant one host, or
            // another prefix length.
            return Err(bad(&format!("write {first}/{bits} for the network, or {address}")));
        }
        Ok(Self { address, bits })
    }
}

#[cfg(test)]
mod tests {
    use weir_base::ErrorKind;

    use super::*;

    #[test]
    fn addresses_are_allowed_by_network() {
        let list = AllowList::parse(["10.0.0.0/8", "192.168.1.7", "fd00::/8"]).unwrap();
        assert_eq!(list.to_string(), "10.0.0.0/8,192.168.1.7/32,fd00::/8");
        for (address, allowed) in [
            ("10.255.0.1", true),
            ("11.0.0.1", false),
            ("192.168.1.7", true),
            ("192.168.1.6", false),
            ("fd12::1", true),
            ("fe80::1", false),
            ("127.0.0.1", false),
            ("::1", false),
            // A dual-stack socket reports the address of an IPv4 client in this form.
            ("::ffff:10.1.2.3", true),
            ("::ffff:11.1.2.3", false),
        ] {
            assert_eq!(list.contains(address.parse().unwrap()), allowed, "{address}");
        }
    }

    #[test]
    fn empty_list_allows_nothing_and_prefix_0_a_whole_family() {
        let local: IpAddr = "127.0.0.1".parse().unwrap();
        assert!(AllowList::default().is_empty() && !AllowList::default().contains(local));
        let all = AllowList::parse(["0.0.0.0/0"]).unwrap();
        assert!(all.contains(local) && !all.contains("::1".parse().unwrap()));
        assert!(AllowList::parse(["::/0"]).unwrap().contains("::1".parse().unwrap()));
    }

    #[test]
    fn union_holds_each_network_of_any_list_once() {
        let [one, other] = [&["10.0.0.7", "10.1.0.0/16"][..], &["10.0.0.7", "fd00::/8"]]
            .map(|entries| AllowList::parse(entries.iter().copied()).unwrap());
        let union = AllowList::union([&one, &other]);
        assert_eq!(union.entries(), ["10.0.0.7/32", "10.1.0.0/16", "fd00::/8"]);
        assert!(AllowList::union([]).is_empty());
    }

    #[test]
    fn invalid_entries_are_refused_with_a_correction() {
        for (text, part) in [
            ("", "no IP address"),
            ("host", "no IP address"),
            ("10.0.0.0/33", "0 to 32"),
            ("10.0.0.0/+8", "0 to 32"),
            ("fd00::/129", "0 to 128"),
            ("10.0.0.0/", "0 to 32"),
            ("10.0.0.7/24", "10.0.0.0/24"),
            ("::ffff:10.0.0.1", "without ::ffff:"),
        ] {
            let error = AllowList::parse([text]).expect_err(text);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(part), "{error}");
        }
    }
}
