//! Write amplification of a nearly full disk: bytes written to the disk for each byte that clients
//! write.
//!
//! weir-dataset/tests/all/cleaner.rs compares the cleaner with a model in RAM; the tables of
//! `layouts` have the speeds.
//!
//! Invariants:
//! - the pool has one disk vdev, so that every byte is counted once: a mirror would write each byte
//!   to every disk, and raidz would add parity;
//! - the counters are read after all earlier writes were committed.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use super::layout::{DISK, Pool};
use crate::document::judged;

const BLOCK: u64 = 4096;
/// Space for data and tree nodes, as a multiple of the data: the nodes and their earlier versions
/// take about 2 %.
const NODES: f64 = 1.02;
/// Amount of data to overwrite before the measurement, as a multiple of the volume's size.
const AGED: u64 = 2;
/// Amount of data to overwrite during the measurement, as a multiple of the volume's size.
const COUNTED: u64 = 1;
/// Option of fio: nine of ten writes go to a tenth of the volume.
const SKEWED: &str = "--random_distribution=zoned:90/10:10/90";
/// Numbers of writes in flight: one client that waits for each write, and many clients at once.
const DEPTHS: [u32; 2] = [1, 32];
/// Option of fio: data that LZ4 compresses 2:1, as closely as fio can generate such data.
const HALVED: &str = "--buffer_compress_percentage=50";
const WRITE: [&str; 3] = ["--rw=randwrite", "--bs=4k", "--norandommap"];

/// Write amplification of the cleaner at one fraction of live data.
struct Overwritten {
    percent: u64,
    /// Measured live data as a fraction of the space for data.
    live: f64,
    amplification: f64,
}

/// All figures of the space measurement.
pub(super) struct Figures {
    overwritten: Vec<Overwritten>,
    /// Bytes written to the disk for each byte of client data, by the number of writes in flight.
    /// The writes are 4 KiB long, skewed and compressible, and each write is flushed.
    synced: Vec<(u32, f64)>,
    /// Fill level of the pool during these writes, in percent of the space for data.
    synced_full: f64,
}

/// Write amplification of a FIFO cleaner if a fraction v of the space is live: 1 / (1 - u). u is
/// the live fraction of the segments that it cleans, from v = (u - 1) / ln u.
fn model(v: f64) -> f64 {
    let (mut low, mut high) = (1e-9, 1.0 - 1e-9);
    for _ in 0..100 {
        let u = f64::midpoint(low, high);
        if (u - 1.0) / u.ln() < v { low = u } else { high = u }
    }
    1.0 / (1.0 - low)
}

fn number(value: &Value, path: &str) -> Result<f64> {
    value.pointer(path).and_then(Value::as_f64).with_context(|| format!("no {path} in the status"))
}

fn words(fixed: &[&str], own: &[String]) -> Vec<String> {
    fixed.iter().map(|word| (*word).to_owned()).chain(own.iter().cloned()).collect()
}

/// Creates a pool with a volume that fills the fraction `part` of the space. `ratio` is the stored
/// size of the data divided by its size.
fn filled(program: &Path, data: &Path, part: f64, ratio: f64, how: &[&str]) -> Result<(Pool, u64)> {
    let pool = Pool::start(DISK, program, data)?;
    let room = number(&pool.status()?, "/size_bytes")?;
    #[expect(clippy::cast_sign_loss, reason = "a size")]
    let bytes = (room * part / ratio / NODES) as u64 / BLOCK * BLOCK;
    pool.make_volume("v", bytes)?;
    let fill = ["--rw=write", "--bs=1m", "--iodepth=16", "--end_fsync=1"];
    pool.fio_on("v", bytes, &words(&[&fill, how].concat(), &[]))?;
    Ok((pool, bytes))
}

/// Returns the pool status after all earlier writes were committed. Creates a small volume to wait
/// for a commit, because a call that changes a pool returns after its commit.
fn committed(pool: &Pool, mark: &str) -> Result<Value> {
    pool.weir(&["volume", "create", &format!("bench/{mark}"), "--size", "4096"])?;
    pool.status()
}

fn overwrite(pool: &Pool, bytes: u64, volumes: u64) -> Result<()> {
    let much = [format!("--io_size={}", bytes * volumes), "--iodepth=32".to_owned()];
    pool.fio_on("v", bytes, &words(&WRITE, &much)).map(drop)
}

fn overwritten(program: &Path, data: &Path, percent: u64) -> Result<Overwritten> {
    let (pool, bytes) = filled(program, data, percent as f64 / 100.0, 1.0, &[])?;
    overwrite(&pool, bytes, AGED)?;
    let before = committed(&pool, "before")?;
    overwrite(&pool, bytes, COUNTED)?;
    let after = committed(&pool, "after")?;
    let grown = |class: &str| -> Result<f64> {
        let path = format!("/written/{class}_bytes");
        Ok(number(&after, &path)? - number(&before, &path)?)
    };
    let new = grown("data")? + grown("node")?;
    let live = number(&after, "/allocated_bytes")? / number(&after, "/size_bytes")?;
    let amplification = (new + grown("cleaner")?) / new;
    eprintln!("bench: {percent} % live ({live:.3}): write amplification {amplification:.2}");
    Ok(Overwritten { percent, live, amplification })
}

/// Number of bytes written to all disks, including the intent log.
fn device_bytes(status: &Value) -> Result<f64> {
    let mut bytes = 0.0;
    for vdev in status["vdevs"].as_array().context("no vdevs in the status")? {
        for disk in vdev["disks"].as_array().context("no disks in the status")? {
            bytes += number(disk, "/io/write/bytes")? + number(disk, "/io/sync_write/bytes")?;
        }
    }
    Ok(bytes)
}

fn synced(program: &Path, data: &Path, seconds: u64) -> Result<(Vec<(u32, f64)>, f64)> {
    // The compressed data takes half of each block, plus the overhead of LZ4 and of 64-byte units:
    // a fraction of 0.54.
    let (pool, bytes) = filled(program, data, 0.8, 0.54, &[HALVED])?;
    let aging = [format!("--io_size={bytes}"), "--iodepth=32".to_owned()];
    pool.fio_on("v", bytes, &words(&[&WRITE[..], &[SKEWED, HALVED]].concat(), &aging))?;
    let mut ratios = Vec::new();
    let mut before = committed(&pool, "before")?;
    for depth in DEPTHS {
        let how = [
            format!("--runtime={seconds}"),
            format!("--iodepth={depth}"),
            "--time_based".to_owned(),
            "--fsync=1".to_owned(),
        ];
        pool.fio_on("v", bytes, &words(&[&WRITE[..], &[SKEWED, HALVED]].concat(), &how))?;
        let after = committed(&pool, &format!("after{depth}"))?;
        let client = |status: &Value| number(status, "/client/written_bytes");
        let written = device_bytes(&after)? - device_bytes(&before)?;
        let ratio = written / (client(&after)? - client(&before)?);
        eprintln!("bench: {ratio:.2} bytes per byte of synced writes, QD{depth}");
        ratios.push((depth, ratio));
        before = after;
    }
    let full = number(&before, "/allocated_bytes")? / number(&before, "/size_bytes")? * 100.0;
    Ok((ratios, full))
}

/// Runs all space measurements, each in its own pool under `data`.
pub(super) fn measure(program: &Path, data: &Path, seconds: u64) -> Result<Figures> {
    let mut all = Vec::new();
    for percent in [80, 90] {
        all.push(overwritten(program, &data.join(percent.to_string()), percent)?);
    }
    let (synced, synced_full) = synced(program, &data.join("synced"), seconds)?;
    Ok(Figures { overwritten: all, synced, synced_full })
}

impl Figures {
    /// Formats the tables with their bars (the required values).
    pub(super) fn table(&self) -> String {
        let mut text = String::from("| one disk, nearly full | |\n| --- | --- |\n");
        let mut row = |what: &str, cell: &str| {
            writeln!(text, "| {what} | {cell} |").expect("a string takes every line");
        };
        for Overwritten { percent, live, amplification } in &self.overwritten {
            let by_model = amplification / model(*live);
            let verdict = judged(by_model, by_model <= 1.15, "<= 1.15");
            row(
                &format!("write amplification of the cleaner, {percent} % live, by the model"),
                &format!("{amplification:.2} / {:.2} = {verdict}", model(*live)),
            );
        }
        for (depth, ratio) in &self.synced {
            row(
                &format!("device bytes per byte of 4 KiB writes, a flush each, QD{depth}"),
                &judged(*ratio, *ratio <= 2.5, "<= 2.5"),
            );
        }
        writeln!(
            text,
            "\nWrite amplification is (data + nodes + cleaner copies) / (data + nodes) in bytes, \
             measured while uniform 4 KiB overwrites (QD32) wrote {COUNTED} x the volume's \
             size, after they had overwritten it {AGED} x. The model is a FIFO cleaner at the \
             measured live fraction ({}). Device bytes are all writes to the disk, intent log and \
             tables included: the pool is {:.0} % full, fio's data compresses to half, and 90 % of \
             the writes go to 10 % of the volume. Both figures count one copy: each disk of a \
             mirror writes as much.",
            self.overwritten
                .iter()
                .map(|one| format!("{:.3}", one.live))
                .collect::<Vec<_>>()
                .join(", "),
            self.synced_full,
        )
        .expect("a string takes every line");
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn write_amplification_model_matches_the_design() {
        for (v, amplification) in [(0.7, 1.9), (0.8, 2.7), (0.9, 5.2), (0.95, 10.2)] {
            assert!((model(v) / amplification - 1.0).abs() < 0.03, "{v}: {}", model(v));
        }
    }

    fn disk(write: u64, sync: u64) -> Value {
        serde_json::json!({"io": {"write": {"bytes": write}, "sync_write": {"bytes": sync}}})
    }

    #[test]
    fn bytes_of_every_disk_are_counted() {
        let status = serde_json::json!({"vdevs": [{"disks": [disk(1, 2), disk(4, 8)]}]});
        assert!((device_bytes(&status).unwrap() - 15.0).abs() < 1e-9);
        device_bytes(&serde_json::json!({"vdevs": [{"disks": [{"io": null}]}]})).unwrap_err();
    }
}
