//! Runs the groups of rows on a server with `weir bench`.
//!
//! `rows` has the profiles.
//!
//! Invariant: a group that fails ends the benchmark; no figure is left out silently.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use serde::Serialize;
use weir_command::process::Process;

use super::ganesha::{self, Ganesha};
use super::rows::{self, Group, MATRIX, MATRIX_KIB, Names, Row};
use super::weir::{self, Weir};
use crate::client::{self, Cpu};

/// Server under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum Kind {
    Ganesha,
    Weir,
}

impl Kind {
    pub(super) const ALL: [Self; 2] = [Self::Ganesha, Self::Weir];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ganesha => "Ganesha",
            Self::Weir => "Weir",
        }
    }
}

/// Result of one row on one server in one round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Sample {
    pub(super) group: &'static str,
    pub(super) row: String,
    pub(super) server: Kind,
    pub(super) round: usize,
    /// Operations per second: MiB for rows with blocks of 1 MiB, listings for READDIRPLUS.
    pub(super) ops_per_second: f64,
    pub(super) server_cpu_us_per_op: f64,
    pub(super) client_cpu_percent: f64,
    pub(super) seconds: f64,
}

/// The running servers, and the program that loads them.
pub(super) struct Bench<'a> {
    pub(super) program: &'a Path,
    pub(super) weir: &'a Weir,
    pub(super) ganesha: &'a Ganesha,
    /// Folder for profiles and results.
    pub(super) dir: PathBuf,
    pub(super) rows: &'a [Row],
    /// Length of each timed row in seconds.
    pub(super) seconds: u64,
}

impl Bench<'_> {
    fn process(&self, kind: Kind) -> &Process {
        match kind {
            Kind::Ganesha => self.ganesha.process(),
            Kind::Weir => self.weir.process(),
        }
    }

    /// Address of the share in which a group runs.
    fn address(kind: Kind, names: Option<Names>, keys: &str) -> String {
        let share = match (names, kind) {
            (Some(Names::Durable), _) | (None, Kind::Weir) => "durable",
            (Some(Names::Volatile), _) | (None, Kind::Ganesha) => "volatile",
        };
        let path = format!("/{share}/bench");
        match kind {
            Kind::Ganesha => ganesha::address(&path, keys),
            Kind::Weir => weir::address(&path, keys),
        }
    }

    /// Writes `files` files of 256 MiB, so that no row pays for memory that was never touched.
    pub(super) fn warm(&self, kind: Kind, files: u64) -> Result<()> {
        let text = format!(
            "schema = 1\nname = \"warm\"\n\
             dataset = {{ files = {files}, file_size = \"256MiB\" }}\n\
             content = {{ compress = 1.0, dedupe_pct = 0, unit = \"4KiB\", seed = 42 }}\n\
             durability = {{ writes = \"none\" }}\n\
             [phases]\nfill = {{ block = \"1MiB\", in_flight = 8 }}\n\
             measure = {{ warmup = \"0s\", duration = \"2s\", runs = 1 }}\n\
             [[test]]\nname = \"warm\"\npattern = \"random\"\nblock = \"64KiB\"\n\
             read_pct = 50\nqd = [16]\n"
        );
        let profile = self.dir.join("warm.toml");
        fs::write(&profile, text)?;
        let address = Self::address(kind, None, "");
        client::run(self.program, &profile, &address, &self.dir.join("run"))?;
        self.process(kind).wait_until_idle(std::time::Duration::from_secs(10))
    }

    /// Runs a group of rows on a server once.
    pub(super) fn run(&self, group: Group, kind: Kind, round: usize) -> Result<Vec<Sample>> {
        let profile = self.dir.join(format!("{}.toml", group.name()));
        fs::write(&profile, group.profile(self.rows, self.seconds))?;
        let address = Self::address(kind, group.names(), group.keys());
        let out = self.dir.join("run");
        let work = || client::run(self.program, &profile, &address, &out);
        let (result, cpu) = Cpu::watch(self.process(kind), work)
            .with_context(|| format!("{} on {}", group.name(), kind.name()))?;
        let sample = |row: &str, classes: &[&str]| client::figures(&result, &cpu, row, classes);
        let mut samples = Vec::new();
        let mut push = |row: String, figures: client::Figures| {
            let client::Figures { ops_per_second, server_cpu_us_per_op, .. } = figures;
            eprintln!(
                "bench: {} {row} {} round {}: {ops_per_second:.0} /s, {server_cpu_us_per_op:.1} us",
                group.name(),
                kind.name(),
                round + 1
            );
            samples.push(Sample {
                group: group.name(),
                row,
                server: kind,
                round,
                ops_per_second,
                server_cpu_us_per_op,
                client_cpu_percent: figures.client_cpu_percent,
                seconds: figures.seconds,
            });
        };
        if group == Group::Matrix {
            for (pattern, reads) in MATRIX {
                for (read_pct, kib) in
                    reads.iter().flat_map(|pct| MATRIX_KIB.map(|kib| (*pct, kib)))
                {
                    let name = rows::cell(pattern, kib, read_pct);
                    let figures = sample(&name, &["read", "write"])?;
                    push(name, figures);
                }
            }
        }
        for row in self.rows.iter().filter(|row| row.group == group) {
            push(row.name.to_owned(), sample(row.name, row.classes)?);
        }
        Ok(samples)
    }
}
