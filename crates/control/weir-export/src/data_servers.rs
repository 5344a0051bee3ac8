//! The worker threads of NBD and iSCSI.
//!
//! The threads are in weir-net, the protocols in weir-nbd and weir-iscsi.
//!
//! Invariant: the code that runs for each request of a client is compiled in this crate, with the
//! optimisation of the data path. weir-server has the optimisation of management calls, and the
//! compiler makes the code of a generic server in the crate that names the protocol.

use std::sync::Arc;

use weir_iscsi::Iscsi;
use weir_nbd::Nbd;
use weir_net::{Listener, ServeError, ServerHandle};

/// Starts an NBD server with `threads` worker threads.
///
/// # Errors
/// A thread or its runtime could not be started.
#[inline(never)]
pub fn serve_nbd(
    listeners: Vec<Listener>,
    protocol: Nbd,
    threads: usize,
) -> Result<ServerHandle<Nbd>, ServeError> {
    weir_net::serve(listeners, Arc::new(protocol), threads)
}

/// Starts an iSCSI target with `threads` worker threads.
///
/// # Errors
/// A thread or its runtime could not be started.
#[inline(never)]
pub fn serve_iscsi(
    listeners: Vec<Listener>,
    protocol: Iscsi,
    threads: usize,
) -> Result<ServerHandle<Iscsi>, ServeError> {
    weir_net::serve(listeners, Arc::new(protocol), threads)
}
