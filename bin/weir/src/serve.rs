//! The server process behind `weir serve`.
//!
//! Not here: reading its command line (`serve_args`).
//!
//! Invariant: options that arrive here are complete and checked.

use std::path::PathBuf;

use weir_api::{Address, ApiError};
use weir_base::ErrorKind;

/// How to run the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ServeOptions {
    /// Where the server keeps what it must remember; absolute.
    pub(crate) state_dir: PathBuf,
    /// Where the management interface listens; never empty, no address twice.
    pub(crate) api: Vec<Address>,
    /// Where NBD listens; never empty, no address twice.
    pub(crate) nbd: Vec<Address>,
    /// Cap of dirty data and caches.
    pub(crate) memory_bytes: u64,
    /// Least important messages to log.
    pub(crate) log: &'static str,
    /// Make a small pool to play with if there is none.
    pub(crate) demo: bool,
}

/// Runs the server until it is told to stop.
#[expect(clippy::needless_pass_by_value, reason = "the server keeps them")]
pub(crate) fn run(options: ServeOptions) -> Result<(), ApiError> {
    let message = format!("the engine is not built into this binary ({options:?})");
    Err(ApiError::new(ErrorKind::Internal, message))
}
