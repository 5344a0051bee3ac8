//! Figures that are not throughput: the CPU use of idle servers, and the import time after SIGKILL.
//!
//! The samples of the workloads contain the CPU and memory use of servers under load.
//!
//! Invariant: the CPU use of all idle servers is measured in the same seconds.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::Serialize;

use super::fio;
use super::servers::Server;

/// Duration of the load before Weir is killed.
const LOAD: Duration = Duration::from_secs(4);

/// Figures that the benchmark measures once or a few times.
#[derive(Default, Serialize)]
pub(super) struct Figures {
    /// CPU use of an idle server in percent of one core, by server name.
    pub(super) idle_cpu_percent: Vec<(&'static str, f64)>,
    /// Seconds from the start of Weir until its export first responds, after each SIGKILL.
    pub(super) import_seconds: Vec<f64>,
}

/// Measures the CPU use of servers that have no clients.
pub(super) fn idle(servers: &[Server], seconds: u64, figures: &mut Figures) -> Result<()> {
    eprintln!("bench: idle for {seconds} s");
    let before: Vec<Duration> =
        servers.iter().map(|server| server.process().cpu()).collect::<Result<_>>()?;
    let start = Instant::now();
    std::thread::sleep(Duration::from_secs(seconds));
    for (server, before) in servers.iter().zip(before) {
        let used = server.process().cpu()?.saturating_sub(before);
        let percent = 100.0 * used.as_secs_f64() / start.elapsed().as_secs_f64();
        figures.idle_cpu_percent.push((server.kind().name(), percent));
    }
    Ok(())
}

/// Kills Weir under load and measures the time until its volume is available again.
pub(super) fn import_after_kill(
    server: Server,
    weir: Option<&Path>,
    data: &Path,
    rounds: usize,
    figures: &mut Figures,
) -> Result<()> {
    let program = weir.context("no weir program")?;
    let mut server = server;
    for round in 0..rounds {
        let mut load = fio::load(&server, LOAD.as_secs() * 4)?;
        std::thread::sleep(LOAD);
        let dir = data.join(server.kind().name());
        // Dropping the server kills it with SIGKILL.
        drop(server);
        load.wait()?;
        let start = Instant::now();
        server = Server::weir_again(program, dir)?;
        let seconds = start.elapsed().as_secs_f64();
        eprintln!("bench: import after SIGKILL, round {}: {seconds:.2} s", round + 1);
        figures.import_seconds.push(seconds);
    }
    Ok(())
}
