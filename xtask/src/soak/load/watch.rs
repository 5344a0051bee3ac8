//! Monitors the server during a soak: resident memory and the time of management calls.
//!
//! Not here: the limits for the measured values (load.rs).
//!
//! Invariant: the kernel records the peak of resident memory (VmHWM), so a peak between two polls
//! counts.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};

use super::server::Server;

/// Calls of an administrator, which the monitor makes in turn.
const CALLS: &[&[&str]] = &[
    &["pool", "list"],
    &["pool", "status", "soak"],
    &["volume", "list", "soak"],
    &["export", "list"],
    &["target", "show", "soak"],
    &["server", "show"],
    &["snapshot", "create", "soak/v@watch"],
    &["snapshot", "destroy", "--yes", "soak/v@watch"],
    &["get", "all", "soak/v"],
];
/// Pause between two calls.
const PAUSE: Duration = Duration::from_millis(500);

/// Peak values that the monitor has measured.
pub(super) struct Seen {
    pub(super) rss_bytes_max: u64,
    pub(super) call_max: Duration,
    pub(super) slowest_call: String,
    calls: u64,
}

impl fmt::Display for Seen {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = self.rss_bytes_max >> 20;
        let Self { call_max, slowest_call, calls, .. } = self;
        write!(out, "resident memory at most {mib} MiB; {calls} calls, ")?;
        write!(out, "the slowest `weir {slowest_call}` in {call_max:.2?}")
    }
}

/// A running monitor.
pub(super) struct Watch {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Seen>>,
}

impl Watch {
    /// Resets the kernel's record of peak memory, and starts a thread that makes the [`CALLS`].
    pub(super) fn start(server: &Arc<Server>) -> Result<Self> {
        server.process.reset_rss_max()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (server, stopped) = (Arc::clone(server), Arc::clone(&stop));
        let thread = std::thread::spawn(move || watch(&server, &stopped));
        Ok(Self { stop, thread })
    }

    /// Stops the monitor.
    ///
    /// # Errors
    /// A call failed, or the server has exited.
    pub(super) fn finish(self) -> Result<Seen> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the watch panicked"))?
    }
}

fn watch(server: &Server, stop: &AtomicBool) -> Result<Seen> {
    let (mut call_max, mut slowest_call, mut calls) = (Duration::ZERO, String::new(), 0);
    while !stop.load(Ordering::Relaxed) {
        for words in CALLS {
            let start = Instant::now();
            server.weir(words)?;
            calls += 1;
            if start.elapsed() > call_max {
                (call_max, slowest_call) = (start.elapsed(), words.join(" "));
            }
            std::thread::sleep(PAUSE);
        }
    }
    let rss_bytes_max = server.process.rss_bytes_max()?;
    Ok(Seen { rss_bytes_max, call_max, slowest_call, calls })
}
