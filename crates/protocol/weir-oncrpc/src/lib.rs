//! ONC RPC version 2 over TCP, and XDR, for servers and clients.
//!
//! The programs (NFS, MOUNT and others) are in weir-nfs-wire.
//!
//! Spec: RFC 5531 (RPC), RFC 4506 (XDR), RFC 1833 (rpcbind).
//!
//! Invariants:
//! - no input from a peer causes a panic;
//! - decoded opaques and strings borrow from the input, so a decoder allocates only for arrays and
//!   lists, and at most in proportion to the length of the input;
//! - no function does I/O, so fuzzers can call every function.

#![deny(clippy::indexing_slicing)]

pub mod xdr;

pub mod limits;
pub mod message;
pub mod record;
pub mod rpcbind;

pub use xdr::{Array, Decoder, Encoder, Failed, List, Opaque, Xdr, XdrError};
