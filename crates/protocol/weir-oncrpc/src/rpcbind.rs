//! Registration at the rpcbind of the machine: portmap version 2 and rpcbind version 4.
//!
//! Only a codec: the caller sends the calls. Version 4 is needed for IPv6, whose addresses
//! portmap cannot express.
//!
//! Spec: RFC 1833 sections 2.1 (rpcbind) and 3.1 (portmap), RFC 5665 section 5.2.3 (addresses).
//!
//! Invariant: both versions use the same program number and the same port.

use std::net::{IpAddr, SocketAddr};

use crate::limits::RPCBIND_STRING_BYTES_MAX;
use crate::xdr::Opaque;

/// Program number of portmap and rpcbind.
pub const PROGRAM: u32 = 100_000;

/// Port of portmap and rpcbind, for TCP and UDP.
pub const PORT: u16 = 111;

/// Portmap (RFC 1833 section 3).
pub mod portmap {
    /// Version of the program.
    pub const VERSION: u32 = 2;
    /// PMAPPROC_SET: registers a mapping. Argument [`Mapping`](super::Mapping), result `bool`:
    /// false if another mapping of the program, version and protocol exists.
    pub const SET: u32 = 1;
    /// PMAPPROC_UNSET: removes all mappings of a program and version; ignores protocol and port.
    /// Argument [`Mapping`](super::Mapping), result `bool`.
    pub const UNSET: u32 = 2;
    /// PMAPPROC_GETPORT: finds a port; ignores the port of the argument. Argument
    /// [`Mapping`](super::Mapping), result `u32`: 0 if the program is not registered.
    pub const GETPORT: u32 = 3;
}

/// Rpcbind version 4 (RFC 1833 section 2).
pub mod rpcbind4 {
    /// Version of the program.
    pub const VERSION: u32 = 4;
    /// RPCBPROC_SET: registers an address. Argument [`Rpcb`](super::Rpcb), result `bool`: false if
    /// another entry of the program, version and network id exists.
    pub const SET: u32 = 1;
    /// RPCBPROC_UNSET: removes the entry of a program, version and network id; an empty network id
    /// removes all of them. Argument [`Rpcb`](super::Rpcb), result `bool`.
    pub const UNSET: u32 = 2;
    /// RPCBPROC_DUMP: lists all entries. No argument; the result is a
    /// [`List`](crate::List) of [`Rpcb`](super::Rpcb).
    pub const DUMP: u32 = 4;
}

/// Numbers of protocols in a [`Mapping`].
pub mod protocol {
    /// TCP (IPPROTO_TCP).
    pub const TCP: u32 = 6;
    /// UDP (IPPROTO_UDP).
    pub const UDP: u32 = 17;
}

/// String of an rpcbind message.
pub type RpcbString<'a> = Opaque<'a, RPCBIND_STRING_BYTES_MAX>;

crate::xdr_struct! {
    /// Entry of portmap (mapping, RFC 1833 section 3.1).
    #[derive(Copy)]
    pub struct Mapping {
        /// Number of the program.
        pub program: u32,
        /// Version of the program.
        pub version: u32,
        /// Transport protocol ([`protocol`]).
        pub protocol: u32,
        /// Port of the program.
        pub port: u32,
    }

    /// Entry of rpcbind (rpcb, RFC 1833 section 2.1).
    #[derive(Copy)]
    pub struct Rpcb<'a> {
        /// Number of the program.
        pub program: u32,
        /// Version of the program.
        pub version: u32,
        /// Network id: `tcp`, `tcp6`, `udp` or `udp6` (RFC 5665 section 5.1).
        pub network_id: RpcbString<'a>,
        /// Universal address ([`universal_address`]).
        pub address: RpcbString<'a>,
        /// Owner of the entry. Rpcbind sets it itself, from the credentials of the caller.
        pub owner: RpcbString<'a>,
    }
}

/// Returns the universal address of a socket (RFC 5665 sections 5.2.3.3 and 5.2.3.4): the address,
/// then the high and the low byte of the port as decimal numbers.
pub fn universal_address(address: SocketAddr) -> String {
    let [high, low] = address.port().to_be_bytes();
    match address.ip() {
        IpAddr::V4(ip) => format!("{ip}.{high}.{low}"),
        IpAddr::V6(ip) => format!("{ip}.{high}.{low}"),
    }
}

#[cfg(test)]
mod tests {
    use weir_block::OutBuf;

    use super::*;
    use crate::xdr::{Encoder, Xdr};

    #[test]
    fn universal_addresses_match_the_rfc() {
        let of = |address: &str| universal_address(address.parse().unwrap());
        assert_eq!(of("10.1.3.7:2049"), "10.1.3.7.8.1");
        assert_eq!(of("[::]:2049"), "::.8.1");
        assert_eq!(of("[2001:db8::8:4]:1023"), "2001:db8::8:4.3.255");
    }

    #[test]
    fn entries_have_the_layout_of_the_rfc() {
        let mapping = Mapping { program: 100_003, version: 3, protocol: protocol::TCP, port: 2049 };
        let layout = [100_003_u32, 3, 6, 2049].map(u32::to_be_bytes).concat();
        let mut out = OutBuf::default();
        mapping.encode(&mut Encoder::new(&mut out));
        assert_eq!(out.filled(), layout);
        assert_eq!(Mapping::decode_whole(&layout), Ok(mapping));

        let string = |text: &'static str| Opaque::new(text.as_bytes()).unwrap();
        let entry = Rpcb {
            program: 1,
            version: 3,
            network_id: string("tcp6"),
            address: string("::.8.1"),
            owner: string("0"),
        };
        let layout = b"\0\0\0\x01\0\0\0\x03\0\0\0\x04tcp6\0\0\0\x06::.8.1\0\0\0\0\0\x010\0\0\0";
        let mut out = OutBuf::default();
        entry.encode(&mut Encoder::new(&mut out));
        assert_eq!(out.filled(), layout);
        assert_eq!(Rpcb::decode_whole(layout), Ok(entry));
    }
}
