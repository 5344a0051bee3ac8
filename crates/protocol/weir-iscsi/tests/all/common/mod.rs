//! Helpers for the session tests.
//!
//! This file contains no tests.
//!
//! Invariant: the server of a test stops when the test ends.

pub(crate) mod initiator;
pub(crate) mod memory;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use memory::{Disk, MemoryTargets};
use weir_iscsi::Iscsi;
use weir_iscsi::limits::{LOGIN_LIMIT, OWN};
use weir_net::{Address, Budget, Listener, ServerHandle, serve};

pub(crate) struct Setup {
    pub(crate) targets: Arc<MemoryTargets>,
    pub(crate) server: ServerHandle<Iscsi>,
    pub(crate) address: SocketAddr,
}

pub(crate) fn setup(disk: Disk) -> Setup {
    setup_with(disk, Budget::new(256 << 20, OWN), 2)
}

/// Serves a disk with the given memory budget and number of threads.
pub(crate) fn setup_with(disk: Disk, budget: Arc<Budget>, threads: usize) -> Setup {
    serve_targets(MemoryTargets::new(disk), budget, threads)
}

pub(crate) fn serve_targets(
    targets: Arc<MemoryTargets>,
    budget: Arc<Budget>,
    threads: usize,
) -> Setup {
    serve_limited(targets, budget, threads, LOGIN_LIMIT)
}

/// Serves targets to initiators, which must log in within `login_limit`.
pub(crate) fn serve_limited(
    targets: Arc<MemoryTargets>,
    budget: Arc<Budget>,
    threads: usize,
    login_limit: Duration,
) -> Setup {
    serve_as(targets, budget, threads, |iscsi| iscsi.with_login_limit(login_limit))
}

/// Serves targets with the given limits.
pub(crate) fn serve_as(
    targets: Arc<MemoryTargets>,
    budget: Arc<Budget>,
    threads: usize,
    limited: impl FnOnce(Iscsi) -> Iscsi,
) -> Setup {
    let free = Address::parse("127.0.0.1:0", 0).expect("an address");
    let listener = Listener::bind(&free).expect("a free port");
    let protocol = Iscsi::new(Arc::<MemoryTargets>::clone(&targets), budget);
    let server = serve(vec![listener], Arc::new(limited(protocol)), threads).expect("threads");
    let Address::Tcp(address) = server.addresses()[0].clone() else { panic!("TCP") };
    targets.set_portals(&[address]);
    Setup { targets, server, address }
}

impl Setup {
    pub(crate) fn disk(&self) -> &Disk {
        &self.targets.disk
    }

    pub(crate) fn wait_for_nexuses(&self, count: u64) {
        wait_until("nexuses", || self.disk().nexuses.load(Ordering::SeqCst) == count);
    }
}

pub(crate) fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(20), "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Returns pseudorandom bytes for a seed.
pub(crate) fn pattern(len: usize, seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    (0..len).map(|_| random.u8(..)).collect()
}
