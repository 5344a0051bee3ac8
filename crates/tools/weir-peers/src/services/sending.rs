//! Bytes that `weir send` reads, and the speed of `weir send` compared with a sequential read of
//! the volume.
//!
//! The measurement covers neither receiving nor replication between servers.
//!
//! Invariants:
//! - the server is restarted before each run, so that its memory contains none of the data;
//! - a ratio compares the send and the read of one round. They follow each other, and their order
//!   alternates from round to round.

use std::fmt::Write as _;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::snapshots::rate;
use crate::document::{self, judged};
use crate::layouts::layout::{DISK, Layout, Load, Pool, VOLUME_BYTES};

/// Size of the disk: space for the blocks that snapshots hold. The disk is a sparse file.
const DISK_BYTES: u64 = 8 << 30;
const MIB: f64 = 1_048_576.0;
/// Sizes of one change to the volume, in KiB.
const CHANGES_KIB: [u64; 2] = [4, 64];

/// Figures of an incremental send, in bytes.
struct Incremental {
    /// Size of one change to the volume, in KiB.
    unit_kib: u64,
    changed: f64,
    /// Number of bytes read during the send: of data blocks, of nodes, and of all reads of the
    /// disk.
    read: [f64; 3],
}

/// Results of the sending measurement.
pub(super) struct Figures {
    /// Rates of a full stream and of a sequential read in MiB/s; one pair for each round.
    full: Vec<(f64, f64)>,
    incremental: Vec<Incremental>,
}

/// Runs all sending measurements.
pub(super) fn measure(program: &Path, data: &Path, rounds: usize) -> Result<Figures> {
    let mut pool = Pool::start(Layout { disk_bytes: DISK_BYTES, ..DISK }, program, data)?;
    pool.make_volume("v", VOLUME_BYTES)?;
    pool.fio(Load::Fill, 0)?;
    pool.weir(&["snapshot", "create", "bench/v@0"])?;
    let mut full = Vec::new();
    for round in 0..rounds {
        let send = |pool: &mut Pool| {
            pool.restart()?;
            let seconds = send(pool, &["bench/v@0"])?;
            anyhow::Ok(VOLUME_BYTES as f64 / MIB / seconds)
        };
        let (sent, read) = if round % 2 == 0 {
            (send(&mut pool)?, read(&mut pool)?)
        } else {
            let read = read(&mut pool)?;
            (send(&mut pool)?, read)
        };
        eprintln!("bench: a whole stream {sent:.0} MiB/s, reading {read:.0} MiB/s");
        full.push((sent, read));
    }
    let mut incremental = Vec::new();
    for (number, unit_kib) in CHANGES_KIB.into_iter().enumerate() {
        incremental.push(changed(&mut pool, number, unit_kib)?);
    }
    Ok(Figures { full, incremental })
}

/// Measures the time of a complete `weir send` to /dev/null, in seconds.
fn send(pool: &Pool, words: &[&str]) -> Result<f64> {
    let start = Instant::now();
    let mut command = pool.command(&[&["send"], words].concat());
    let nowhere = File::options().write(true).open("/dev/null")?;
    let status = command.stdin(Stdio::null()).stdout(nowhere).status()?;
    ensure!(status.success(), "`{}` failed", weir_command::command::show(&command));
    Ok(start.elapsed().as_secs_f64())
}

/// Measures the rate of a sequential read of the volume, in MiB/s.
fn read(pool: &mut Pool) -> Result<f64> {
    pool.restart()?;
    let words = ["--rw=read", "--bs=1m", "--iodepth=16"].map(str::to_owned);
    Ok(rate(&pool.fio_on("v", VOLUME_BYTES, &words)?))
}

/// Changes 1 % of the volume in units of `unit_kib`, and sends the changes.
fn changed(pool: &mut Pool, number: usize, unit_kib: u64) -> Result<Incremental> {
    let unit = unit_kib << 10;
    let changed = VOLUME_BYTES / 100 / unit * unit;
    // fio writes each address only once, so the whole `changed` bytes change.
    let words = [
        "--rw=randwrite".to_owned(),
        format!("--bs={unit}"),
        format!("--io_size={changed}"),
        "--iodepth=16".to_owned(),
        "--end_fsync=1".to_owned(),
    ];
    pool.fio_on("v", VOLUME_BYTES, &words)?;
    let (from, to) = (format!("@{number}"), format!("bench/v@{}", number + 1));
    pool.weir(&["snapshot", "create", &to])?;
    pool.restart()?;
    let before = bytes_read(pool)?;
    send(pool, &["-i", &from, &to])?;
    let after = bytes_read(pool)?;
    let read = std::array::from_fn(|at| after[at] - before[at]);
    Ok(Incremental { unit_kib, changed: changed as f64, read })
}

/// Number of bytes read so far: of data blocks, of nodes, and of all reads of the disk.
fn bytes_read(pool: &Pool) -> Result<[f64; 3]> {
    let status = pool.status()?;
    let number = |path: &str| {
        status.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path}"))
    };
    Ok([
        number("/read/data_bytes")?,
        number("/read/node_bytes")?,
        number("/vdevs/0/disks/0/io/read/bytes")?,
    ])
}

impl Figures {
    /// Formats the table.
    pub(super) fn table(&self) -> String {
        let mut text = String::from("| sending, nothing of it in memory | |\n| --- | --- |\n");
        let mut row = |what: &str, cell: String| {
            writeln!(text, "| {what} | {cell} |").expect("a string takes every line");
        };
        let median = |of: fn(&(f64, f64)) -> f64| {
            document::median(self.full.iter().map(of)).unwrap_or(f64::NAN)
        };
        row("a whole stream, MiB/s", format!("{:.0}", median(|turn| turn.0)));
        row("1 MiB sequential read, QD16, MiB/s", format!("{:.0}", median(|turn| turn.1)));
        let ratio = median(|turn| turn.0 / turn.1);
        row("... stream by read", judged(ratio, ratio >= 0.8, ">= 0.8"));
        for Incremental { unit_kib, changed, read } in &self.incremental {
            let [data, nodes, disk] = read.map(|bytes| bytes / changed);
            let what = format!("1 % changed, {unit_kib} KiB here and there: data read by changed");
            row(&what, judged(data, data <= 1.1, "<= 1.1"));
            row("... nodes read, by changed", format!("{nodes:.2}"));
            row("... bytes read from disk / changed bytes", format!("{disk:.2}"));
        }
        text
    }
}
