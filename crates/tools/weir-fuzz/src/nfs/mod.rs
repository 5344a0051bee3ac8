//! Fuzz targets for the messages, file handles and rules of NFS servers and clients.
//!
//! The messages are in weir-nfs-wire, their RPC headers and records in weir-oncrpc, the handles and
//! rules in weir-nfs.
//!
//! Invariant: each target has one module, as for the targets outside this folder.

mod samples;

pub mod mount_call;
pub mod nfs3_call;
pub mod nfs3_reply;
pub mod nfs_client;
pub mod nfs_handle;
pub mod nfsacl_call;
pub mod rpc_record;
pub mod share_rules;
