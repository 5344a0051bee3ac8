//! Load of the filesystem benchmark: the steps that a worker process performs, as plain system
//! calls.
//!
//! `worker` sends the steps to the processes.
//!
//! Invariants:
//! - every contender gets the same system calls in the same order;
//! - written data is random and never repeats, so that no contender gains by compression or dedupe.

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// Number of directories of the tree.
const DIRECTORIES: u64 = 20;
/// Bytes of one call of a sequential read or write.
pub(super) const CALL_BYTES: usize = 1 << 20;
/// Bytes of a write before each measured fsync.
const SYNCED_BYTES: usize = 4096;

/// Part of a tree of small files. The tree has [`DIRECTORIES`] directories.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Files {
    pub(super) root: PathBuf,
    /// Number of files in the whole tree.
    pub(super) total: u64,
    /// Numbers of the files of this part.
    pub(super) first: u64,
    pub(super) end: u64,
    /// Size of each file.
    pub(super) bytes: usize,
}

impl Files {
    /// All files of a tree.
    pub(super) fn all(root: &Path, total: u64, bytes: usize) -> Self {
        Self { root: root.to_owned(), total, first: 0, end: total, bytes }
    }

    /// Divides the files into parts of equal size. A part has its own directories if the number of
    /// parts divides [`DIRECTORIES`].
    pub(super) fn parts(&self, count: u64) -> Vec<Self> {
        let bound = |part: u64| self.first + (self.end - self.first) * part / count;
        let part = |n| Self { first: bound(n), end: bound(n + 1), ..self.clone() };
        (0..count).map(part).collect()
    }

    fn directory(&self, number: u64) -> PathBuf {
        self.root.join(format!("dir-{number:02}"))
    }

    fn path(&self, number: u64) -> PathBuf {
        let directory = self.directory(number * DIRECTORIES / self.total.max(1));
        directory.join(format!("file-{number:06}"))
    }

    /// Paths of the files of this part.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathBuf> {
        (self.first..self.end).map(|number| self.path(number))
    }

    pub(super) fn create_directories(&self) -> Result<()> {
        (0..DIRECTORIES).try_for_each(|n| Ok(fs::create_dir_all(self.directory(n))?))
    }

    pub(super) fn remove_directories(&self) -> Result<()> {
        (0..DIRECTORIES).try_for_each(|n| Ok(fs::remove_dir(self.directory(n))?))
    }
}

/// Step of a worker process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Step {
    /// Creates each file, writes its data with one call, and closes the file.
    Create(Files),
    Stat(Files),
    /// Opens, reads and closes each file.
    Read(Files),
    Unlink(Files),
    /// Writes a new file in calls of [`CALL_BYTES`]; ends with fsync.
    WriteLarge {
        file: PathBuf,
        calls: u64,
    },
    /// Reads a file in calls of [`CALL_BYTES`].
    ReadLarge {
        file: PathBuf,
    },
    /// Writes 4 KiB to a file and calls fsync, repeatedly.
    Fsync {
        file: PathBuf,
        seconds: u64,
    },
    /// Writes a file in calls of [`CALL_BYTES`] without fsync.
    Stream {
        file: PathBuf,
        seconds: u64,
        /// Number of calls after which the stream starts again at offset 0.
        calls: u64,
    },
}

/// Result of a step.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Done {
    /// Number of files or calls.
    pub(super) ops: u64,
    /// 99th percentile of the latency of [`Step::Fsync`], otherwise 0.
    pub(super) p99_us: f64,
}

impl Step {
    /// Performs the step.
    pub(super) fn perform(&self) -> Result<Done> {
        match self {
            Self::Create(files) => {
                let mut data = vec![0; files.bytes];
                each(files, |number, path| {
                    fill(&mut data, number);
                    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
                    Ok(file.write_all(&data)?)
                })
            }
            Self::Stat(files) => each(files, |_, path| Ok(fs::symlink_metadata(path).map(drop)?)),
            Self::Read(files) => {
                let mut data = vec![0; files.bytes];
                each(files, |_, path| Ok(File::open(path)?.read_exact(&mut data)?))
            }
            Self::Unlink(files) => each(files, |_, path| Ok(fs::remove_file(path)?)),
            Self::WriteLarge { file, calls } => write_large(file, *calls),
            Self::ReadLarge { file } => read_large(file),
            Self::Fsync { file, seconds } => fsync(file, Duration::from_secs(*seconds)),
            Self::Stream { file, seconds, calls } => {
                stream(file, Duration::from_secs(*seconds), *calls)
            }
        }
    }
}

/// Calls `operation` for each file, with the file's number and path.
fn each(files: &Files, mut operation: impl FnMut(u64, &Path) -> Result<()>) -> Result<Done> {
    for (number, path) in (files.first..).zip(files.paths()) {
        operation(number, &path).with_context(|| path.display().to_string())?;
    }
    Ok(Done { ops: files.end - files.first, p99_us: 0.0 })
}

/// Fills `data` with random bytes, which depend only on `seed`.
fn fill(data: &mut [u8], seed: u64) {
    // xorshift64* (Vigna); the state must not be 0.
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for part in data.chunks_mut(8) {
        state ^= state >> 12;
        state ^= state << 25;
        state ^= state >> 27;
        let bytes = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
        part.copy_from_slice(&bytes[..part.len()]);
    }
}

/// Random data for calls of [`CALL_BYTES`]. Generating each call's data would take as long as the
/// call itself, so only the start of each 4 KiB changes.
struct CallData(Vec<u8>);

impl CallData {
    fn new() -> Self {
        let mut data = vec![0; CALL_BYTES];
        fill(&mut data, 1);
        Self(data)
    }

    fn of(&mut self, call: u64) -> &[u8] {
        for (block, bytes) in (0_u64..).zip(self.0.chunks_mut(4096)) {
            fill(&mut bytes[..64], (call << 8) + block);
        }
        &self.0
    }
}

fn write_large(path: &Path, calls: u64) -> Result<Done> {
    let mut file = File::create(path)?;
    let mut data = CallData::new();
    for call in 0..calls {
        file.write_all(data.of(call))?;
    }
    file.sync_all()?;
    Ok(Done { ops: calls, p99_us: 0.0 })
}

fn read_large(path: &Path) -> Result<Done> {
    let mut file = File::open(path)?;
    let mut data = vec![0; CALL_BYTES];
    let mut bytes = 0;
    loop {
        match file.read(&mut data)? {
            0 => return Ok(Done { ops: bytes / CALL_BYTES as u64, p99_us: 0.0 }),
            read => bytes += read as u64,
        }
    }
}

fn fsync(path: &Path, time: Duration) -> Result<Done> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    let mut data = [0; SYNCED_BYTES];
    let mut latencies = Vec::new();
    let start = Instant::now();
    while start.elapsed() < time {
        fill(&mut data, latencies.len() as u64);
        let begun = Instant::now();
        file.write_all_at(&data, 0)?;
        file.sync_all()?;
        latencies.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    Ok(Done { ops: latencies.len() as u64, p99_us: p99(latencies).unwrap_or_default() })
}

fn stream(path: &Path, time: Duration, calls_max: u64) -> Result<Done> {
    let file = File::create(path)?;
    let mut data = CallData::new();
    let (start, mut calls) = (Instant::now(), 0);
    while start.elapsed() < time {
        let offset = calls % calls_max * CALL_BYTES as u64;
        file.write_all_at(data.of(calls), offset)?;
        calls += 1;
    }
    Ok(Done { ops: calls, p99_us: 0.0 })
}

/// 99th percentile; `None` without values.
fn p99(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let rank = (values.len() * 99).div_ceil(100);
    values.get(rank.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_create_read_and_remove_every_file() {
        let root = std::env::temp_dir().join(format!("weir-peers-steps-{}", std::process::id()));
        let files = Files::all(&root, 43, 1000);
        files.create_directories().unwrap();
        let parts = files.parts(4);
        let ops = |step: fn(Files) -> Step| -> u64 {
            let done = parts.iter().map(|part| step(part.clone()).perform().unwrap().ops);
            done.sum()
        };
        assert_eq!(ops(Step::Create), 43);
        assert!(files.paths().all(|path| fs::metadata(path).unwrap().len() == 1000));
        assert_eq!((ops(Step::Stat), ops(Step::Read), ops(Step::Unlink)), (43, 43, 43));
        files.remove_directories().unwrap();

        let file = root.join("large");
        let write = Step::WriteLarge { file: file.clone(), calls: 2 };
        assert_eq!(write.perform().unwrap().ops, 2);
        assert_eq!(Step::ReadLarge { file: file.clone() }.perform().unwrap().ops, 2);
        let synced = Step::Fsync { file: root.join("synced"), seconds: 1 }.perform().unwrap();
        assert!(synced.ops > 0 && synced.p99_us > 0.0);
        assert!(Step::Create(files).perform().is_err(), "the directories are gone");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn processes_of_four_have_their_own_directories() {
        let files = Files::all(Path::new("/"), 20_000, 4096);
        let of = |part: &Files| -> std::collections::BTreeSet<PathBuf> {
            part.paths().map(|path| path.parent().unwrap().to_owned()).collect()
        };
        let directories: Vec<_> = files.parts(4).iter().map(of).collect();
        assert!(directories.iter().all(|own| own.len() == 5), "{directories:?}");
        assert_eq!(of(&files).len(), 20);
    }

    #[test]
    fn percentile_is_a_measured_value() {
        assert_eq!(p99((1..=200).map(f64::from).collect()), Some(198.0));
        assert_eq!(p99(vec![7.0]), Some(7.0));
        assert_eq!(p99(Vec::new()), None);
    }
}
