//! Fairness between many sessions with one iSCSI target.
//!
//! `load` measures the speed of one session.
//!
//! Invariant: the completed commands of all sessions are counted in the same interval.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::load;
use super::rows::{ROWS, Row};
use super::servers::{Contestant, Servers};
use crate::client;

const SESSIONS: u32 = 64;
/// Number of commands that each session has in flight.
const DEPTH: u32 = 8;
/// Maximum deviation of one session's rate from the mean rate, as a fraction of the mean.
const SPREAD_MAX: f64 = 0.10;
const SETTLE: Duration = Duration::from_secs(2);
const SPAN: Duration = Duration::from_secs(6);
/// Time limit for login, fill and the start of the measurement, all together.
const START_MAX: Duration = Duration::from_mins(1);

/// Results of the fairness measurement.
pub(super) struct Fairness {
    ops_per_second: f64,
    /// Minimum and maximum rate of a session, as fractions of the mean rate.
    least: f64,
    most: f64,
}

/// Runs the fairness measurement.
pub(super) fn measure(program: &Path, servers: &Servers, data: &Path) -> Result<Fairness> {
    let row = Row { depth: SESSIONS * DEPTH, ..ROWS[1] };
    let seconds = (SETTLE + SPAN).as_secs() + 4;
    let profile = data.join("fairness.toml");
    let text = load::profile_of(&[&row], seconds);
    fs::write(&profile, text + &format!("workers = {SESSIONS}\n"))?;
    let address = servers.address(Contestant::WeirVolatile);
    let (before, after) = std::thread::scope(|scope| {
        let load = scope.spawn(|| client::run(program, &profile, &address, &data.join("run")));
        let looked = look(program, servers);
        load.join().expect("it only runs a program")?;
        looked
    })?;
    let counts: Vec<f64> = after
        .iter()
        .filter_map(|(session, count)| Some((count - before.get(session)?) as f64))
        .collect();
    ensure!(counts.len() == SESSIONS as usize, "{} sessions, not {SESSIONS}", counts.len());
    let mean = counts.iter().sum::<f64>() / f64::from(SESSIONS);
    ensure!(mean > 0.0, "nothing was read");
    Ok(Fairness {
        ops_per_second: mean * f64::from(SESSIONS) / SPAN.as_secs_f64(),
        least: counts.iter().copied().fold(f64::MAX, f64::min) / mean,
        most: counts.iter().copied().fold(0.0, f64::max) / mean,
    })
}

type Counts = BTreeMap<String, u64>;

/// Returns the number of completed commands of each session, at the start and at the end of the
/// interval.
fn look(program: &Path, servers: &Servers) -> Result<(Counts, Counts)> {
    let start = Instant::now();
    while counts(program, servers)?.len() < SESSIONS as usize {
        ensure!(start.elapsed() < START_MAX, "the sessions did not log in");
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(SETTLE);
    let before = counts(program, servers)?;
    std::thread::sleep(SPAN);
    Ok((before, counts(program, servers)?))
}

fn counts(program: &Path, servers: &Servers) -> Result<Counts> {
    let text = servers.weir(program, &["target", "show", "bench", "--json"])?;
    let target: Value = serde_json::from_str(&text)?;
    let sessions = target["sessions"].as_array().context("no sessions")?;
    let count = |session: &Value| {
        Some((session["isid"].as_str()?.to_owned(), session["commands"].as_u64()?))
    };
    Ok(sessions.iter().filter_map(count).collect())
}

impl Fairness {
    pub(super) fn rows(&self, text: &mut String) {
        let Self { ops_per_second, least, most } = self;
        let is_met = *least >= 1.0 - SPREAD_MAX && *most <= 1.0 + SPREAD_MAX;
        let verdict = if is_met { "met" } else { "**missed**" };
        let rate = ops_per_second / 1000.0;
        writeln!(
            text,
            "| {SESSIONS} sessions x QD{DEPTH}, 4 KiB random reads, {rate:.1} k/s together: a \
             session by the mean | {least:.2} to {most:.2} | 0.90 to 1.10: {verdict} |"
        )
        .expect("a String takes every write");
    }
}
