//! Checks two agents in this process: they start at the same time, and the result contains the
//! operations of both agents.
//!
//! For agents on other hosts, each cell of a report shows the time between the starts of the
//! clients.
//!
//! Invariant: the checks connect to the agents over loopback sockets, in the same way as to agents
//! on other hosts.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};

use super::kit::{cell, open, whole_run_with};
use super::{Item, Seen};
use crate::clients::Clients;
use crate::clients::agent::Agent;
use crate::result::CellRun;
use crate::run::RunError;
use crate::selftest::Scale;
use crate::spec::CellSpec;
use crate::target;

/// Maximum time between the start of the first agent and the start of the last agent, in
/// milliseconds.
const SKEW_MS_MAX: f64 = 1.0;
/// Operations per second that each agent offers.
const RATE: f64 = 1_000.0;

pub(super) fn items() -> Vec<Item> {
    let wanted = "the second starts less than 1 ms after the first, and the merged distribution \
                  contains all operations of both";
    vec![Item::new("two agents", wanted, two_agents).by_time()]
}

fn two_agents(scale: Scale) -> Result<Seen, RunError> {
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let agents = [Agent::bind(listen, None), Agent::bind(listen, None)];
    let [Ok(first), Ok(second)] = agents else {
        return Ok(Seen::of(false, "no port of loopback is free"));
    };
    let stop = AtomicBool::new(false);
    let addresses = [&first, &second].map(|agent| agent.address().to_string());
    let run = std::thread::scope(|scope| {
        scope.spawn(|| first.serve(&stop, &|_| ()));
        scope.spawn(|| second.serve(&stop, &|_| ()));
        let clients = Clients::new(addresses.to_vec(), "null:", None);
        let load = open(RATE, 64, 10_000);
        let both = CellSpec { clients: 2, ..cell(100.0, load, scale.pick(1_000, 10_000), 1) };
        let run = whole_run_with(both, &target::null(), &clients);
        stop.store(true, Ordering::Release);
        run
    })?;
    let cell = &run.cells[0];
    Ok(match (&cell.failure, cell.runs.first()) {
        (None, Some(run)) => judge(run),
        (failure, _) => Seen::of(false, failure.clone().unwrap_or("nothing measured".to_owned())),
    })
}

fn judge(run: &CellRun) -> Seen {
    let ops: u64 = run.classes.iter().map(|class| class.ops).sum();
    let recorded: u64 = run.classes.iter().map(|class| class.latency.count()).sum();
    let of_each: f64 = run.clients.iter().map(|client| client.iops * run.seconds).sum();
    let skew = run.start_skew_ms.unwrap_or(f64::INFINITY);
    let is_union = run.clients.len() == 2 && recorded == ops && (of_each - ops as f64).abs() < 1.0;
    let found = format!(
        "skew {skew:.3} ms; {ops} operations, {of_each:.0} of both clients, {recorded} recorded"
    );
    Seen { passed: is_union && skew < SKEW_MS_MAX, found, off: skew }
}
