//! Messages of NFS version 3 and its side protocols, for servers and clients: types and codecs.
//!
//! weir-oncrpc has the RPC headers that precede arguments and results, and record marking.
//!
//! Spec: RFC 1813 (NFSv3, MOUNT version 3, NLM version 4), RFC 1094 (MOUNT version 1).
//!
//! Invariants:
//! - no input from a peer causes a panic;
//! - a bound of the RFC is a bound of the type, so that a decoder checks it before it allocates;
//! - names, paths, handles and file data borrow from the input.

#![deny(clippy::indexing_slicing)]

pub mod limits;
mod procedure;

pub mod nfs3;

pub mod mount;
pub mod nfsacl;
pub mod nlm4;
pub mod rquota;

pub use procedure::Effect;
