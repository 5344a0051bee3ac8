//! Starts the servers of NBD and iSCSI with their worker threads.
//!
//! weir-net has the threads, weir-nbd and weir-iscsi have the protocols.
//!
//! Invariant: the code that runs for each request of a client is compiled in this crate, which is
//! optimised for the data path. The server of weir-net is generic, and the compiler generates its
//! code in the crate that names the protocol. That crate must not be weir-server, which is
//! optimised for management calls.

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
