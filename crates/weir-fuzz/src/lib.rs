//! Fuzz targets: each parser of untrusted bytes, and a search that runs them without
//! instrumentation.
//!
//! Not here: libFuzzer, which runs the same targets guided by coverage (fuzz/).
//!
//! A target is a function of bytes that panics if it finds a fault. [`search`] replays a corpus and
//! then tries mutated inputs. The corpus in `corpus/<target>/` comes from libFuzzer: inputs that
//! cover the parsers with few bytes.
//!
//! Invariants:
//! - each target is one module, one entry of [`TARGETS`], one program in fuzz/ and one test;
//! - a target keeps no state from one input to the next that changes a result.

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
pub mod node;
pub mod references;
pub mod remap;
pub mod scsi_command;
mod search;
pub mod stream;
pub mod summary;
pub mod uberblock;
mod valid;
mod watchdog;
pub mod zstd_block;

pub use search::{Failure, Plan, Tried, search};
pub use watchdog::Watchdog;

/// One fuzz target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Name of the module, the libFuzzer program and the corpus folder.
    pub name: &'static str,
    /// Runs one input; panics if it finds a fault.
    pub run: fn(&[u8]),
    /// Valid inputs, made by the encoders of today.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Longest input worth trying.
    pub len_max: usize,
    /// Mutated inputs that a smoke run must reach.
    pub inputs_min: u64,
    /// Seconds of a long run under libFuzzer.
    pub long_seconds: u32,
}

/// Longest input of most targets; libFuzzer's default.
const LEN_MAX: usize = 4096;
/// Mutated inputs that a smoke run of most targets must reach.
const INPUTS_MIN: u64 = 100;
/// Seconds of a long run for decoders of what Weir wrote itself.
const LONG_SECONDS: u32 = 20;
/// Seconds of a long run for whole pools, and for bytes that any host on the network can send.
const LONG_SECONDS_WIRE: u32 = 60;

macro_rules! target {
    ($name:ident, $long_seconds:expr) => {
        Target {
            name: stringify!($name),
            run: $name::run,
            seeds: $name::seeds,
            len_max: LEN_MAX,
            inputs_min: INPUTS_MIN,
            long_seconds: $long_seconds,
        }
    };
}

/// All targets.
pub const TARGETS: &[Target] = &[
    target!(label, LONG_SECONDS),
    target!(uberblock, LONG_SECONDS),
    target!(log_batch, LONG_SECONDS),
    target!(node, LONG_SECONDS),
    target!(summary, LONG_SECONDS),
    target!(references, LONG_SECONDS),
    target!(remap, LONG_SECONDS),
    target!(zstd_block, LONG_SECONDS),
    target!(stream, LONG_SECONDS),
    target!(nbd_negotiate, LONG_SECONDS),
    target!(nbd_request, LONG_SECONDS),
    target!(iscsi_pdu, LONG_SECONDS_WIRE),
    target!(iscsi_login, LONG_SECONDS_WIRE),
    target!(iscsi_session, LONG_SECONDS_WIRE),
    target!(iscsi_initiator, LONG_SECONDS_WIRE),
    target!(scsi_command, LONG_SECONDS_WIRE),
    // Each input mounts a pool, which takes tens of milliseconds.
    Target { len_max: 256, inputs_min: 10, ..target!(forged, LONG_SECONDS_WIRE) },
];
