//! `cargo xtask bench-layouts`: compares mirrors and raidz, intact, degraded, full, and during
//! scans.
//!
//! `peers` compares Weir with other servers.
//!
//! Invariants:
//! - the layouts are measured in turn, each with its own server and files, and all on one disk.
//!   Only ratios within one run are results, because absolute rates depend on the machine;
//! - every table states how the figures were measured, and marks each missed bar (required value).

pub(crate) mod layout;
mod memory;
mod space;

use std::fmt::Write as _;
use std::path::Path;

use anyhow::Result;
use layout::{LAYOUTS, Load, Pool, Speed, VOLUME_BYTES};
use weir_command::fio;

use crate::document::{self, judged};
use crate::place::Place;

const BEGIN: &str = "<!-- bench-layouts: begin -->";
const IN_MEMORY: &str = "a string takes every line";
const END: &str = "<!-- bench-layouts: end -->";

/// Length of the measurement.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Turns for each load.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of one turn.
    #[arg(long, default_value_t = 6)]
    seconds: u64,
    #[command(flatten)]
    place: Place,
}

/// Figures of one layout. Each list has one entry for each round of the benchmark.
#[derive(Default)]
struct Figures {
    usable: f64,
    mix: Vec<f64>,
    healthy: Vec<f64>,
    degraded: Vec<f64>,
    scrub: Speed,
    resilver: Speed,
    /// 99th percentiles of read latency: idle, during scrubs, during resilvers, and with a disk
    /// offline.
    reads: Vec<[f64; 4]>,
    empty: Vec<(f64, f64)>,
    full: Vec<(f64, f64)>,
}

/// Sequential speed of a disk file with direct I/O and without Weir.
#[derive(Clone, Copy)]
struct Raw {
    read_mib_s: f64,
    write_mib_s: f64,
}

/// Runs the layout benchmark.
pub(crate) fn main(args: &Args) -> Result<()> {
    args.place.tables("layouts", (BEGIN, END), |program, data| {
        let (raw, figures, space, memory) = measure(args, program, data)?;
        Ok(format!("{}\n{}\n{}", tables(raw, &figures), space.table(), memory.table()?))
    })
}

type Measured = (Raw, Vec<Figures>, space::Figures, memory::Figures);

fn measure(args: &Args, program: &Path, data: &Path) -> Result<Measured> {
    let (raw, figures) = layouts(args, program, data)?;
    // Measure the write amplification long enough for several txg commits.
    let space = space::measure(program, data, 3 * args.seconds)?;
    let memory = memory::measure(data)?;
    Ok((raw, figures, space, memory))
}

fn layouts(args: &Args, program: &Path, data: &Path) -> Result<(Raw, Vec<Figures>)> {
    let mut pools = Vec::new();
    let mut figures = Vec::new();
    for layout in LAYOUTS {
        eprintln!("bench: starting and filling {}", layout.name);
        let pool = Pool::start(layout, program, data)?;
        pool.make_volume("v", VOLUME_BYTES)?;
        figures.push(Figures { usable: pool.usable()?, ..Figures::default() });
        pool.fio(Load::Fill, 0)?;
        pools.push(pool);
    }
    let turns = |load: Load, seconds: u64, into: &mut dyn FnMut(usize, &fio::Job)| -> Result<()> {
        for round in 0..args.rounds {
            for turn in 0..pools.len() {
                let index = (round + turn) % pools.len();
                let job = pools[index].fio(load, seconds)?;
                let rate = job.ops as f64 / job.seconds;
                eprintln!("bench: {load:?} {} {rate:.0} ops/s", pools[index].name());
                into(index, &job);
            }
        }
        Ok(())
    };
    let rate = |job: &fio::Job| job.ops as f64 / job.seconds;
    turns(Load::Write, args.seconds, &mut |n, job| {
        figures[n].empty.push((rate(job), job.latency_p99_us));
    })?;
    turns(Load::Mix, args.seconds, &mut |n, job| figures[n].mix.push(rate(job)))?;
    turns(Load::Read, args.seconds, &mut |n, job| figures[n].healthy.push(rate(job)))?;
    for pool in &pools {
        pool.offline_one()?;
    }
    turns(Load::Read, args.seconds, &mut |n, job| figures[n].degraded.push(rate(job)))?;
    let raw = Raw::measure(&pools[0])?;
    for (pool, figures) in pools.iter().zip(&mut figures) {
        pool.online_one()?;
        figures.scrub = pool.scrub()?;
        figures.resilver = pool.resilver()?;
        eprintln!(
            "bench: {} scrub {:?}, resilver {:?}",
            pool.name(),
            figures.scrub,
            figures.resilver
        );
    }
    for _ in 0..args.rounds {
        for (pool, figures) in pools.iter().zip(&mut figures) {
            let idle = pool.fio(Load::FewReads, args.seconds)?.latency_p99_us;
            let scrub = pool.read_p99(args.seconds, &Pool::scrub_again)?;
            let resilver = pool.read_p99(args.seconds, &Pool::replace_again)?;
            pool.offline_one()?;
            let away = pool.fio(Load::FewReads, args.seconds)?.latency_p99_us;
            pool.online_one()?;
            let name = pool.name();
            eprintln!(
                "bench: p99 of {name} {idle:.0} us, {scrub:.0} scrub, {resilver:.0} resilver, \
                 {away:.0} with a disk offline"
            );
            figures.reads.push([idle, scrub, resilver, away]);
        }
    }
    for pool in &pools {
        pool.fill_up()?;
    }
    turns(Load::Write, args.seconds, &mut |n, job| {
        figures[n].full.push((rate(job), job.latency_p99_us));
    })?;
    Ok((raw, figures))
}

impl Raw {
    fn measure(pool: &Pool) -> Result<Self> {
        let read = pool.raw("read")?;
        let write = pool.raw("write")?;
        Ok(Self { read_mib_s: read, write_mib_s: write })
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    document::median(values).unwrap_or(f64::NAN)
}

fn tables(raw: Raw, figures: &[Figures]) -> String {
    let mixed: Vec<f64> = figures.iter().map(|f| median(f.mix.iter().copied())).collect();
    let mut text = String::from("| figure |");
    let titles: Vec<&str> = LAYOUTS.iter().map(|layout| layout.title).collect();
    writeln!(text, " {} |", titles.join(" | ")).expect(IN_MEMORY);
    writeln!(text, "| --- |{}", " --- |".repeat(LAYOUTS.len())).expect(IN_MEMORY);
    let mut row = |what: &str, cell: &dyn Fn(usize) -> String| {
        let cells: Vec<String> = (0..LAYOUTS.len()).map(cell).collect();
        writeln!(text, "| {what} | {} |", cells.join(" | ")).expect(IN_MEMORY);
    };
    row("space for data / raw bytes less the reserve of 8 %", &|n| match LAYOUTS[n].usable_bar {
        Some(bar) => judged(figures[n].usable, figures[n].usable >= bar, &format!(">= {bar}")),
        None => format!("{:.2}", figures[n].usable),
    });
    row("4 KiB mix 75:25, QD32", &|n| format!("{:.0} /s", mixed[n]));
    row("... by the mirrors'", &|n| {
        let ratio = mixed[n] / mixed[0];
        if n == 0 { "1".to_owned() } else { judged(ratio, ratio >= 0.9, ">= 0.9") }
    });
    row("4 KiB random read, cold, one disk missing / all disks", &|n| {
        let Figures { healthy, degraded, .. } = &figures[n];
        let ratio = median(degraded.iter().copied()) / median(healthy.iter().copied());
        judged(ratio, ratio >= 0.5, ">= 0.5")
    });
    row("scrub of an idle pool, by the disk's sequential read", &|n| {
        let ratio = figures[n].scrub.disks_mib_s / raw.read_mib_s;
        judged(ratio, ratio >= 0.6, ">= 0.6")
    });
    row("... live data", &|n| format!("{:.0} MiB/s", figures[n].scrub.data_mib_s));
    row("resilver of an idle pool, by the disk's sequential speed", &|n| {
        let ratio = figures[n].resilver.disks_mib_s / raw.read_mib_s.min(raw.write_mib_s);
        judged(ratio, ratio >= 0.6, ">= 0.6")
    });
    row("... data copied", &|n| format!("{:.0} MiB/s", figures[n].resilver.data_mib_s));
    let p99_ratio =
        |n: usize, beside: usize| median(figures[n].reads.iter().map(|p99| p99[beside] / p99[0]));
    for (what, beside) in [("scrub", 1), ("resilver", 2)] {
        row(&format!("p99 of 4 KiB random reads, QD4, cold, during a {what} / idle"), &|n| {
            let ratio = p99_ratio(n, beside);
            judged(ratio, ratio <= 2.0, "<= 2")
        });
    }
    row("... with a disk missing and no other load", &|n| format!("{:.2}", p99_ratio(n, 3)));
    row("4 KiB random write, 90 % full by empty", &|n| {
        let rates = |from: &[(f64, f64)]| median(from.iter().map(|(rate, _)| *rate));
        let ratio = rates(&figures[n].full) / rates(&figures[n].empty);
        judged(ratio, ratio >= 0.4, ">= 0.4")
    });
    row("... its p99", &|n| {
        let p99 = |from: &[(f64, f64)]| median(from.iter().map(|(_, p99)| *p99));
        let ratio = p99(&figures[n].full) / p99(&figures[n].empty);
        judged(ratio, ratio <= 5.0, "<= 5")
    });
    writeln!(
        text,
        "\nAll disks are files on one disk, which reads {:.0} and writes {:.0} MiB/s in sequence \
         (1 MiB, QD4, uncached). Medians of turns; volumes of {} MiB, `--memory` {} MiB, \
         random data. Scrubs and resilvers are judged by what all disks together read and write: \
         after random writes the live blocks have dead ones between them, which are read along.",
        raw.read_mib_s,
        raw.write_mib_s,
        VOLUME_BYTES >> 20,
        layout::MEMORY_BYTES >> 20,
    )
    .expect(IN_MEMORY);
    text
}
