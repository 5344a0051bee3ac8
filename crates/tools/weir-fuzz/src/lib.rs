//! Fuzz targets for each parser of untrusted bytes, and a search that runs the targets without
//! instrumentation.
//!
//! libFuzzer runs the same targets, guided by coverage; its programs are in fuzz/.
//!
//! A target is a function that takes bytes and panics if it finds a bug. [`search`] runs a target
//! on its corpus and then on mutated inputs. The corpus in `corpus/<target>/` is a small set of
//! short inputs that libFuzzer found, and that together cover the target's parser.
//!
//! Invariants:
//! - each target has one module, one entry of [`TARGETS`], one program in fuzz/ and one test;
//! - a target may keep state between inputs, but this state never changes the result of an input.

pub mod dataset_record;
pub mod files;
pub mod forged;
pub mod iscsi_initiator;
pub mod iscsi_login;
pub mod iscsi_pdu;
pub mod iscsi_session;
pub mod label;
pub mod log_batch;
mod mutate;
pub mod nbd_negotiate;
pub mod nbd_request;
pub mod nfs;
pub mod node;
pub mod references;
pub mod remap;
pub mod scsi_command;
mod search;
pub mod slot;
pub mod stream;
pub mod summary;
pub mod uberblock;
mod valid;
mod watchdog;
pub mod zstd_block;

pub use files::{acl, directory, file_record, inode, xattr_list};
pub use nfs::{
    mount_call, nfs_client, nfs_handle, nfs3_call, nfs3_reply, nfsacl_call, rpc_record, share_rules,
};
pub use search::{Failure, Plan, Tried, search};
pub use watchdog::Watchdog;

/// Description of a fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the module, the libFuzzer program and the corpus folder.
    pub name: &'static str,
    /// Runs one input; panics if the input reveals a bug.
    pub run: fn(&[u8]),
    /// Returns valid inputs, made by the current encoders.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Maximum length of an input in bytes.
    pub len_max: usize,
    /// Minimum number of mutated inputs in a smoke run.
    pub inputs_min: u64,
}

/// Maximum length of an input for most targets: the default of libFuzzer.
const LEN_MAX: usize = 4096;
/// Minimum number of mutated inputs in a smoke run for most targets.
const INPUTS_MIN: u64 = 100;

macro_rules! target {
    ($name:ident) => {
        Target {
            name: stringify!($name),
            run: $name::run,
            seeds: $name::seeds,
            len_max: LEN_MAX,
            inputs_min: INPUTS_MIN,
        }
    };
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target!(label),
    target!(uberblock),
    target!(log_batch),
    target!(node),
    target!(slot),
    target!(inode),
    target!(directory),
    Target { len_max: 8192, ..target!(file_record) },
    target!(acl),
    target!(xattr_list),
    target!(dataset_record),
    target!(summary),
    target!(references),
    target!(remap),
    target!(zstd_block),
    target!(stream),
    target!(nbd_negotiate),
    target!(nbd_request),
    target!(rpc_record),
    target!(nfs3_call),
    target!(nfs3_reply),
    target!(nfs_client),
    target!(mount_call),
    target!(nfsacl_call),
    target!(nfs_handle),
    target!(share_rules),
    target!(iscsi_pdu),
    target!(iscsi_login),
    target!(iscsi_session),
    target!(iscsi_initiator),
    target!(scsi_command),
    // Each input imports a pool, which takes tens of milliseconds.
    Target { len_max: 256, inputs_min: 10, ..target!(forged) },
];
