//! Layout under test: its server, pool and volume, and the operations on them.
//!
//! `layouts` runs the rounds and formats the tables.
//!
//! Invariant: each pool has its own server and disk files; the server ends with this process.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;
use weir_command::command;
use weir_command::fio;
use weir_command::process::{Process, guarded};

/// Size of the volumes: larger than the server's memory, so that reads reach the disk.
pub(crate) const VOLUME_BYTES: u64 = 1 << 30;
/// Memory of each server, in bytes.
pub(crate) const MEMORY_BYTES: u64 = 256 << 20;
/// Fraction of the raw bytes that is available for data; `weir_pool::Reserve` reserves the rest.
const LESS_RESERVE: f64 = 0.92;
/// Time limit for the first response of a server.
const START_MAX: Duration = Duration::from_secs(20);
/// Time limit for one scan.
const SCAN_MAX: Duration = Duration::from_mins(5);

/// Layout of vdevs that the benchmark measures.
#[derive(Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// Arguments of `pool create`, with one `#` for each disk.
    pub(crate) words: &'static str,
    pub(crate) disks: usize,
    /// Size of each disk; the disks are sparse files.
    pub(crate) disk_bytes: u64,
    pub(crate) usable_bar: Option<f64>,
}

/// All layouts. The mirrors come first, because the tables compare the other layouts with them.
pub(crate) const LAYOUTS: [Layout; 3] = [
    Layout {
        name: "mirrors",
        title: "2 x mirror of 2",
        words: "mirror # # mirror # #",
        disks: 4,
        disk_bytes: 2 << 30,
        usable_bar: None,
    },
    Layout {
        name: "raidz1",
        title: "raidz1 of 5",
        words: "raidz1 # # # # #",
        disks: 5,
        disk_bytes: 1 << 30,
        usable_bar: Some(0.78),
    },
    Layout {
        name: "raidz2",
        title: "raidz2 of 6",
        words: "raidz2 # # # # # #",
        disks: 6,
        disk_bytes: 1 << 30,
        usable_bar: Some(0.65),
    },
];

/// Layout that stores each byte only once, for measurements that count bytes.
pub(crate) const DISK: Layout = Layout {
    name: "disk",
    title: "disk",
    words: "#",
    disks: 1,
    disk_bytes: 1 << 30,
    usable_bar: None,
};

/// A load that fio generates.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Load {
    Fill,
    Read,
    /// Few reads in flight, so that a read waits only for the disk.
    FewReads,
    Write,
    Mix,
}

impl Load {
    fn words(self) -> &'static [&'static str] {
        match self {
            Self::Fill => &["--rw=write", "--bs=1m", "--iodepth=16", "--end_fsync=1"],
            Self::Read => &["--rw=randread", "--bs=4k", "--iodepth=32"],
            Self::FewReads => &["--rw=randread", "--bs=4k", "--iodepth=4"],
            Self::Write => &["--rw=randwrite", "--bs=4k", "--iodepth=32"],
            Self::Mix => &["--rw=randrw", "--rwmixread=75", "--bs=4k", "--iodepth=32"],
        }
    }
}

/// Speed of a scan.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Speed {
    /// Rate of all reads and writes on all disks in MiB/s, including parity and the dead blocks
    /// between live blocks.
    pub(crate) disks_mib_s: f64,
    /// Rate at which the scan verified or copied live data, in MiB/s.
    pub(crate) data_mib_s: f64,
}

/// Pool of a layout, with its running server.
pub(crate) struct Pool {
    layout: Layout,
    program: PathBuf,
    dir: PathBuf,
    process: Option<Process>,
}

impl Pool {
    pub(crate) fn start(layout: Layout, program: &Path, data: &Path) -> Result<Self> {
        let dir = data.join(layout.name);
        fs::create_dir_all(&dir)?;
        let mut pool = Self { layout, program: program.to_owned(), dir, process: None };
        pool.restart()?;
        let disks: Vec<String> = (0..layout.disks).map(|n| pool.disk(n)).collect();
        for disk in &disks {
            pool.make_disk(disk)?;
        }
        let mut next = disks.iter();
        let words: Vec<&str> = layout
            .words
            .split(' ')
            .map(|word| if word == "#" { next.next().map_or(word, String::as_str) } else { word })
            .collect();
        pool.weir(&[&["pool", "create", "bench"], &words[..]].concat())?;
        Ok(pool)
    }

    /// Restarts the server with empty caches: kills the running server, then starts a new one.
    pub(crate) fn restart(&mut self) -> Result<()> {
        // Kill the old server first, because the pool refuses a second server.
        self.process = None;
        let socket = |name: &str| format!("unix:{}", self.dir.join(name).display());
        let log = File::create(self.dir.join("log"))?;
        let mut command = guarded(&self.program.display().to_string());
        command.arg("serve").arg("--state").arg(self.dir.join("state"));
        command.args(["--nbd", &socket("nbd.sock"), "--api", &socket("api.sock")]);
        command.args(["--memory", &MEMORY_BYTES.to_string(), "--log", "warn"]);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.process = Some(Process::new(command.spawn().context("cannot start weir")?));
        let start = Instant::now();
        while let Err(error) = self.weir(&["pool", "list"]) {
            if start.elapsed() > START_MAX {
                return Err(error.context("weir does not answer"));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(crate) fn name(&self) -> &'static str {
        self.layout.name
    }

    fn disk(&self, number: usize) -> String {
        self.dir.join(format!("disk{number}")).display().to_string()
    }

    fn make_disk(&self, path: &str) -> Result<()> {
        Ok(File::create(path)?.set_len(self.layout.disk_bytes)?)
    }

    pub(crate) fn make_volume(&self, name: &str, bytes: u64) -> Result<()> {
        let full = format!("bench/{name}");
        self.weir(&["volume", "create", &full, "--size", &bytes.to_string()])?;
        self.weir(&["export", "create", "nbd", &full]).map(drop)
    }

    pub(crate) fn weir(&self, words: &[&str]) -> Result<String> {
        command::output(&mut self.command(words))
    }

    /// Creates a command of `weir` for this server.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let api = format!("unix:{}", self.dir.join("api.sock").display());
        let mut command = Command::new(&self.program);
        command.env("WEIR_API", api).args(words);
        command
    }

    pub(crate) fn status(&self) -> Result<Value> {
        Ok(serde_json::from_str(&self.weir(&["pool", "status", "bench", "--json"])?)?)
    }

    /// Space for data, as a fraction of the unreserved bytes of all disks.
    pub(crate) fn usable(&self) -> Result<f64> {
        let room = self.status()?["size_bytes"].as_f64().context("no size in the status")?;
        let raw = (self.layout.disk_bytes * self.layout.disks as u64) as f64;
        Ok(room / (raw * LESS_RESERVE))
    }

    pub(crate) fn fio(&self, load: Load, seconds: u64) -> Result<fio::Job> {
        let mut words: Vec<String> = load.words().iter().map(|word| (*word).to_owned()).collect();
        if seconds > 0 {
            words.push(format!("--runtime={seconds}"));
            words.extend(["--time_based", "--norandommap"].map(str::to_owned));
        }
        self.fio_on("v", VOLUME_BYTES, &words)
    }

    pub(crate) fn fio_on(&self, volume: &str, bytes: u64, words: &[String]) -> Result<fio::Job> {
        let socket = self.dir.join("nbd.sock");
        let mut command = guarded("fio");
        command.args(["--name=bench", "--ioengine=nbd", "--thread=1", "--randrepeat=0"]);
        command.args(["--refill_buffers=1", "--buffer_compress_percentage=0"]);
        command.arg(format!("--uri=nbd+unix:///bench/{volume}?socket={}", socket.display()));
        command.arg(format!("--size={bytes}")).args(words);
        fio::output_of(&mut command, &self.dir.join("fio.json"))
    }

    /// Measures the sequential rate of a disk file with direct I/O, in MiB/s. Writes use a separate
    /// file.
    pub(crate) fn raw(&self, direction: &str) -> Result<f64> {
        let file = if direction == "read" { self.disk(0) } else { self.disk(99) };
        let mut command = guarded("fio");
        command.args(["--name=raw", "--ioengine=libaio", "--direct=1", "--bs=1m", "--iodepth=4"]);
        command.args([format!("--rw={direction}"), format!("--filename={file}")]);
        command.args(["--size=512m", "--runtime=5", "--end_fsync=1", "--refill_buffers=1"]);
        let job = fio::output_of(&mut command, &self.dir.join("raw.json"))?;
        if direction == "write" {
            fs::remove_file(&file)?;
        }
        Ok(job.ops as f64 / job.seconds)
    }

    pub(crate) fn offline_one(&self) -> Result<()> {
        self.weir(&["pool", "offline", "bench", &self.disk(0)]).map(drop)
    }

    pub(crate) fn online_one(&self) -> Result<()> {
        self.weir(&["pool", "online", "--wait", "bench", &self.disk(0)]).map(drop)
    }

    /// Measures the speed of a scrub.
    pub(crate) fn scrub(&self) -> Result<Speed> {
        let before = self.disk_bytes_moved()?;
        self.weir(&["pool", "scrub", "--wait", "bench"])?;
        self.speed("scrub", "examined_bytes", &before)
    }

    /// Measures the speed of a resilver to a new disk.
    pub(crate) fn resilver(&self) -> Result<Speed> {
        let new = self.disk(50);
        self.make_disk(&new)?;
        let before = self.disk_bytes_moved()?;
        let old = self.disk(1);
        self.weir(&["pool", "replace", "--wait", "--at-once", "bench", &old, &new])?;
        self.speed("resilver", "repaired_bytes", &before)
    }

    /// Number of bytes that each disk of the pool has read and written so far, by disk.
    pub(crate) fn disk_bytes_moved(&self) -> Result<BTreeMap<String, f64>> {
        let status = self.status()?;
        let list = |value: &Value| value.as_array().cloned().context("a list in the status");
        let mut moved = BTreeMap::new();
        for vdev in list(&status["vdevs"])? {
            for disk in list(&vdev["disks"])? {
                let bytes = |kind: &str| disk["io"][kind]["bytes"].as_f64().unwrap_or_default();
                let path = disk["path"].as_str().context("a disk without a path")?.to_owned();
                moved.insert(path, bytes("read") + bytes("write"));
            }
        }
        Ok(moved)
    }

    /// Speed of a scan that has ended. `before` contains the bytes that each disk had moved when
    /// the scan started. A disk that was added during the scan counts from its addition; a removed
    /// disk does not count.
    fn speed(&self, kind: &str, data: &str, before: &BTreeMap<String, f64>) -> Result<Speed> {
        let scan = self.finished(kind)?;
        let after = self.disk_bytes_moved()?;
        let moved = after.iter().map(|(path, bytes)| bytes - before.get(path).unwrap_or(&0.0));
        let ms = scan["ran_ms"].as_f64().context("a scan without a time")?;
        let data = scan[data].as_f64().context("a scan without bytes")?;
        let rate = |bytes: f64| bytes / f64::from(1 << 20) / (ms.max(1.0) / 1000.0);
        Ok(Speed { disks_mib_s: rate(moved.sum()), data_mib_s: rate(data) })
    }

    /// 99th percentile of read latency, in microseconds, while `beside` runs repeatedly.
    pub(crate) fn read_p99(
        &self,
        seconds: u64,
        beside: &(dyn Fn(&Self) -> Result<()> + Sync),
    ) -> Result<f64> {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                while !stop.load(Ordering::Acquire) {
                    beside(self)?;
                }
                anyhow::Ok(())
            });
            let job = self.fio(Load::FewReads, seconds);
            stop.store(true, Ordering::Release);
            let other = other.join();
            other.map_err(|_| anyhow!("the task that runs during the reads panicked"))??;
            Ok(job?.latency_p99_us)
        })
    }

    /// Runs one scrub to its end.
    pub(crate) fn scrub_again(&self) -> Result<()> {
        self.weir(&["pool", "scrub", "--wait", "bench"]).map(drop)
    }

    /// Replaces the last disk of the first vdev by another file. The next call replaces this file
    /// by the original disk again.
    pub(crate) fn replace_again(&self) -> Result<()> {
        let last = self.layout.disks - 1;
        let (here, there) = (self.disk(last), self.disk(60));
        let is_here = self.disk_bytes_moved()?.contains_key(&here);
        let (old, new) = if is_here { (here, there) } else { (there, here) };
        self.make_disk(&new)?;
        let words = ["pool", "replace", "--force", "--wait", "--at-once", "bench", &old, &new];
        self.weir(&words).map(drop)
    }

    fn finished(&self, kind: &str) -> Result<Value> {
        let start = Instant::now();
        loop {
            let scan = self.status()?["scan"].clone();
            if scan["kind"] == kind && scan["state"] == "finished" {
                return Ok(scan);
            }
            if start.elapsed() > SCAN_MAX {
                bail!("the {kind} does not end: {scan}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Fills the pool to 90 % of its size.
    pub(crate) fn fill_up(&self) -> Result<()> {
        let status = self.status()?;
        let number = |name: &str| status[name].as_u64().context("no space in the status");
        let (size, used) = (number("size_bytes")?, number("allocated_bytes")?);
        let more = (size * 9 / 10).saturating_sub(used) >> 20 << 20;
        self.make_volume("rest", more)?;
        let words: Vec<String> = Load::Fill.words().iter().map(|w| (*w).to_owned()).collect();
        self.fio_on("rest", more, &words).map(drop)
    }
}
