//! Fuzz targets for the messages of NFS servers and clients.
//!
//! The messages are in weir-nfs-wire, their RPC headers and records in weir-oncrpc.
//!
//! Invariant: each target has one module, as for the targets outside this folder.

mod samples;

pub mod mount_call;
pub mod nfs3_call;
pub mod nfs3_reply;
pub mod nfs_client;
pub mod nfsacl_call;
pub mod rpc_record;
