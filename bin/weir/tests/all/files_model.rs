//! Random operations on files of a mount, compared with a model in memory: reads, writes, sizes,
//! holes, copies and mappings, with remounts, restarts and SIGKILL of the server.
//!
//! Not here: names (weir-sim, weir-fs), programs (mounts), volumes (crash).
//!
//! Invariants:
//! - a read returns the bytes of the model;
//! - after SIGKILL a file has the bytes of its last sync, or of a later operation: a prefix of its
//!   operations. An operation that was running is applied completely or not at all;
//! - a failure prints the seed and all operations. `WEIR_FILES_SEED` repeats a run, and
//!   `WEIR_FILES_OPERATIONS` sets its length.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::fs::{FallocateFlags, SeekFrom};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};

use crate::common::mapped::Mapped;
use crate::common::rng::Rng;
use crate::common::{Dirs, GIB, Server, eventually};
use crate::mounts::{Place, on_fuse_within};

const FILES: usize = 3;
/// Maximum size of a file. The offsets of holes may be higher.
const FILE_BYTES_MAX: u64 = 300_000;
const IO_BYTES_MAX: u64 = 60_000;
const OPERATIONS: u64 = 2500;
/// Time within which a mount must be back after a restart.
const BACK: Duration = Duration::from_secs(20);
/// Time for 1000 operations on a busy machine.
const LIMIT_1000: Duration = Duration::from_secs(40);

/// An operation on one file.
#[derive(Clone, Debug)]
enum Operation {
    Write { offset: u64, bytes: u64, seed: u64 },
    Truncate { bytes: u64 },
    Punch { offset: u64, bytes: u64 },
    ZeroRange { offset: u64, bytes: u64, grows: bool },
    Allocate { offset: u64, bytes: u64, grows: bool },
    Copy { source: usize, from: u64, offset: u64, bytes: u64 },
    MapWrite { offset: u64, bytes: u64, seed: u64 },
    Sync { is_data: bool },
    Read { offset: u64, bytes: u64 },
    MapRead { offset: u64, bytes: u64 },
    Seek { offset: u64 },
}

/// Content of a file, and the contents that a crash may bring back.
#[derive(Default)]
struct Model {
    content: Vec<u8>,
    /// Contents since the last sync, the oldest first: the content of the last sync, and the
    /// content after each later operation except the last one.
    earlier: Vec<Vec<u8>>,
}

fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut data = vec![0; bytes as usize];
    Rng::new(seed).fill(&mut data);
    data
}

/// The part of a range that is before the end of a file.
fn within(content: &[u8], offset: u64, bytes: u64) -> std::ops::Range<usize> {
    let end = (offset + bytes).min(content.len() as u64);
    offset.min(end) as usize..end as usize
}

impl Model {
    /// Content after a copy of a range.
    fn copied(&self, (source, from): (&[u8], u64), offset: u64, bytes: u64) -> Vec<u8> {
        let mut new = self.content.clone();
        let part = &source[within(source, from, bytes)];
        if !part.is_empty() {
            new.resize(new.len().max(offset as usize + part.len()), 0);
            new[offset as usize..][..part.len()].copy_from_slice(part);
        }
        new
    }

    /// Content after an operation; `None` for a copy, and for an operation that only reads.
    fn after(&self, operation: &Operation) -> Option<Vec<u8>> {
        let mut new = self.content.clone();
        let grow = |new: &mut Vec<u8>, end: u64| new.resize(new.len().max(end as usize), 0);
        match *operation {
            Operation::Write { offset, bytes, seed }
            | Operation::MapWrite { offset, bytes, seed } => {
                grow(&mut new, offset + bytes);
                new[offset as usize..(offset + bytes) as usize]
                    .copy_from_slice(&noise(seed, bytes));
            }
            Operation::Truncate { bytes } => new.resize(bytes as usize, 0),
            Operation::Punch { offset, bytes } => {
                let range = within(&new, offset, bytes);
                new[range].fill(0);
            }
            Operation::ZeroRange { offset, bytes, grows } => {
                if grows {
                    grow(&mut new, offset + bytes);
                }
                let range = within(&new, offset, bytes);
                new[range].fill(0);
            }
            Operation::Allocate { offset, bytes, grows } => {
                if grows {
                    grow(&mut new, offset + bytes);
                }
            }
            _ => return None,
        }
        Some(new)
    }

    fn change(&mut self, new: Vec<u8>) {
        self.earlier.push(std::mem::replace(&mut self.content, new));
    }

    fn synced(&mut self) {
        self.earlier.clear();
    }
}

/// A filesystem with its server, its model, and the operations so far.
struct Run {
    dirs: Dirs,
    server: Option<Server>,
    home: Place,
    files: Vec<File>,
    models: Vec<Model>,
    rng: Rng,
    log: Vec<String>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("operations of the failed run:\n{}", self.log.join("\n"));
        }
    }
}

/// A thread that kills the server after a short time.
struct Killer(JoinHandle<()>);

impl Run {
    fn start(mut rng: Rng) -> Self {
        let dirs = Dirs::new();
        dirs.disk("disk-a", 2 * GIB);
        let server = dirs.start();
        server.weir("pool create tank disk-a").ok();
        let record = ["4KiB", "16KiB", "128KiB"][rng.below(3) as usize];
        server.weir(&format!("filesystem create tank/home -b {record}")).ok();
        let home = Place::new(&dirs, "home");
        server.weir(&format!("mount tank/home {}", home.text())).ok();
        let models = (0..FILES).map(|_| Model::default()).collect();
        let log = vec![format!("records of {record}")];
        let server = Some(server);
        let mut run = Self { dirs, server, home, files: Vec::new(), models, rng, log };
        run.open();
        File::open(run.home.at("")).unwrap().sync_all().unwrap();
        run
    }

    fn path(&self, file: usize) -> PathBuf {
        self.home.at(&format!("file {file}"))
    }

    fn open(&mut self) {
        let open = |path: PathBuf| {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false).open(path).unwrap()
        };
        self.files = (0..FILES).map(|file| open(self.path(file))).collect();
    }

    fn server(&self) -> &Server {
        self.server.as_ref().expect("the server runs")
    }

    /// Chooses an operation on a file.
    fn choose(&mut self, file: usize) -> Operation {
        let rng = &mut self.rng;
        let size = self.models[file].content.len() as u64;
        let bytes = if rng.one_in(3) { 1 + rng.below(700) } else { 1 + rng.below(IO_BYTES_MAX) };
        let mut offset = rng.below(FILE_BYTES_MAX - IO_BYTES_MAX);
        if rng.one_in(3) {
            offset -= offset % 4096;
        }
        let inside = |rng: &mut Rng| {
            let offset = rng.below(size.max(1));
            (offset, (1 + rng.below(IO_BYTES_MAX)).min(size.saturating_sub(offset)))
        };
        match rng.below(100) {
            0..22 => Operation::Write { offset, bytes, seed: rng.next() },
            22..28 => Operation::Write { offset: size.min(offset), bytes, seed: rng.next() },
            28..36 => Operation::Truncate { bytes: rng.below(FILE_BYTES_MAX) },
            36..38 => Operation::Truncate { bytes: rng.below(800) },
            38..46 => Operation::Punch { offset, bytes },
            46..51 => Operation::ZeroRange { offset, bytes, grows: rng.one_in(2) },
            51..53 => Operation::Allocate { offset, bytes, grows: rng.one_in(2) },
            53..61 => {
                let (source, from) = (rng.below(FILES as u64) as usize, rng.below(FILE_BYTES_MAX));
                let (from, offset) = match rng.below(2) {
                    0 => (from, offset),
                    // Whole records are shared instead of copied.
                    _ => (from - from % 131_072, offset - offset % 131_072),
                };
                // Ranges of one file must not overlap (copy_file_range(2)).
                let bytes = if source == file {
                    bytes.min(from.abs_diff(offset))
                } else {
                    bytes.max(rng.below(FILE_BYTES_MAX - offset))
                };
                Operation::Copy { source, from, offset, bytes }
            }
            61..67 if size > 0 => {
                let (offset, bytes) = inside(rng);
                Operation::MapWrite { offset, bytes, seed: rng.next() }
            }
            67..74 => Operation::Sync { is_data: rng.one_in(2) },
            74..80 if size > 0 => {
                let (offset, bytes) = inside(rng);
                Operation::MapRead { offset, bytes }
            }
            80..90 => Operation::Seek { offset: rng.below(FILE_BYTES_MAX) },
            _ => Operation::Read { offset, bytes },
        }
    }

    /// Performs an operation on the mount. Checks the result of reads.
    fn perform(&self, file: usize, operation: &Operation) -> std::io::Result<()> {
        let (opened, content) = (&self.files[file], &self.models[file].content);
        let allocate =
            |flags, offset, bytes| Ok(rustix::fs::fallocate(opened, flags, offset, bytes)?);
        let keep = |grows| if grows { FallocateFlags::empty() } else { FallocateFlags::KEEP_SIZE };
        match *operation {
            Operation::Write { offset, bytes, seed } => {
                opened.write_all_at(&noise(seed, bytes), offset)
            }
            Operation::Truncate { bytes } => opened.set_len(bytes),
            Operation::Punch { offset, bytes } => {
                allocate(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, offset, bytes)
            }
            Operation::ZeroRange { offset, bytes, grows } => {
                allocate(FallocateFlags::ZERO_RANGE | keep(grows), offset, bytes)
            }
            Operation::Allocate { offset, bytes, grows } => allocate(keep(grows), offset, bytes),
            Operation::Copy { .. } => unreachable!("`copy` performs it"),
            Operation::Sync { is_data: true } => opened.sync_data(),
            Operation::Sync { is_data: false } => opened.sync_all(),
            Operation::MapWrite { offset, bytes, seed } => {
                let mapped = Mapped::new(opened, content.len());
                Ok(mapped.write_synced(offset as usize, &noise(seed, bytes))?)
            }
            Operation::MapRead { offset, bytes } => {
                let mapped = Mapped::new(opened, content.len());
                let read = mapped.read(offset as usize, bytes as usize);
                assert_equal(&content[within(content, offset, bytes)], &read, "a mapping");
                Ok(())
            }
            Operation::Read { offset, bytes } => {
                let mut read = vec![0; bytes as usize];
                let mut done = 0;
                loop {
                    let count = opened.read_at(&mut read[done..], offset + done as u64)?;
                    done += count;
                    if count == 0 || done == read.len() {
                        break;
                    }
                }
                assert_equal(&content[within(content, offset, bytes)], &read[..done], "a read");
                Ok(())
            }
            Operation::Seek { offset } => check_seek(opened, content, offset),
        }
    }

    /// Runs one operation. Returns false if it failed because the server was killed.
    fn step(&mut self, is_killed: bool) -> bool {
        let file = self.rng.below(FILES as u64) as usize;
        let operation = self.choose(file);
        let is_mapped = matches!(operation, Operation::MapRead { .. } | Operation::MapWrite { .. });
        if is_killed && is_mapped {
            // An access to a mapping without a server ends this process.
            return true;
        }
        self.log.push(format!("file {file}: {operation:?}"));
        let done = match operation {
            Operation::Copy { source, from, offset, bytes } => {
                self.copy((source, from), (file, offset), bytes)
            }
            _ => self.perform(file, &operation),
        };
        // A failed operation may be applied.
        if let Some(new) = self.models[file].after(&operation) {
            self.models[file].change(new);
        }
        let syncs = matches!(operation, Operation::Sync { .. } | Operation::MapWrite { .. });
        if done.is_ok() && syncs {
            self.models[file].synced();
        }
        assert!(done.is_ok() || is_killed, "{operation:?}: {done:?}");
        done.is_ok()
    }

    /// Copies a range, in as many calls as the kernel needs. Each call is an operation of its own,
    /// and a call that fails may have copied a part.
    fn copy(
        &mut self,
        (source, mut from): (usize, u64),
        (target, mut to): (usize, u64),
        mut bytes: u64,
    ) -> std::io::Result<()> {
        while bytes > 0 {
            // A copy within a file moves its end, and so the end of the source.
            let content = self.models[source].content.clone();
            let (start, offset, length) = (from, to, bytes as usize);
            let (one, other) = (&self.files[source], &self.files[target]);
            let (at, into) = (Some(&mut from), Some(&mut to));
            let copied = rustix::fs::copy_file_range(one, at, other, into, length);
            let parts = match copied {
                Ok(0) => return Ok(()),
                Ok(copied) => vec![copied as u64],
                Err(_) => {
                    (1..=bytes.div_ceil(4096)).map(|blocks| bytes.min(blocks * 4096)).collect()
                }
            };
            for bytes in parts {
                let new = self.models[target].copied((&content, start), offset, bytes);
                self.models[target].change(new);
            }
            bytes -= copied? as u64;
        }
        Ok(())
    }

    /// Compares all files with the model.
    fn compare(&mut self, what: &str) {
        self.log.push(format!("compare after {what}"));
        for (file, model) in self.models.iter().enumerate() {
            assert_equal(&model.content, &fs::read(self.path(file)).unwrap(), what);
        }
    }

    fn remount(&mut self) {
        self.log.push("remount".to_owned());
        self.files.clear();
        self.server().weir("unmount tank/home").ok();
        // An unmount makes everything durable.
        self.models.iter_mut().for_each(Model::synced);
        self.server().weir("mount tank/home").ok();
        self.open();
        self.compare("a remount");
    }

    fn restart(&mut self) {
        self.log.push("restart".to_owned());
        self.files.clear();
        self.server.take().expect("the server runs").stop_clean();
        self.models.iter_mut().for_each(Model::synced);
        self.start_server();
        self.open();
        self.compare("a restart");
    }

    fn start_server(&mut self) {
        self.server = Some(self.dirs.start());
        eventually("the filesystem is mounted again", BACK, || {
            self.home.mounts() == 1 && fs::metadata(self.path(0)).is_ok()
        });
    }

    /// Kills the server while operations run, or between two operations.
    fn kill(&mut self) {
        let after = self.rng.below(4000);
        self.log.push(format!("SIGKILL after {after} us"));
        let pid = Pid::from_raw(self.server().pid().cast_signed()).unwrap();
        let killer = Killer(std::thread::spawn(move || {
            std::thread::sleep(Duration::from_micros(after));
            kill_process(pid, Signal::KILL).unwrap();
        }));
        while self.step(true) && !killer.0.is_finished() {}
        killer.0.join().unwrap();
        self.files.clear();
        self.server.take().expect("the server ran").kill();
        self.start_server();
        self.log.push("the server runs again".to_owned());
        for file in 0..FILES {
            let found = fs::read(self.path(file)).unwrap();
            let Model { content, earlier } = &mut self.models[file];
            let states = earlier.len();
            let is_known = *content == found || earlier.contains(&found);
            let bytes = found.len();
            assert!(is_known, "file {file}: {bytes} bytes of no state of {states} after SIGKILL");
            *content = found;
            earlier.clear();
        }
        self.open();
    }
}

/// Checks SEEK_DATA and SEEK_HOLE: all bytes that they skip as a hole are zero.
fn check_seek(file: &File, content: &[u8], offset: u64) -> std::io::Result<()> {
    let size = content.len() as u64;
    let seek = |from| match rustix::fs::seek(file, from) {
        Err(Errno::NXIO) => Ok(None),
        found => found.map(Some),
    };
    let hole = seek(SeekFrom::Hole(offset))?;
    let data = seek(SeekFrom::Data(offset))?;
    assert_eq!(hole.is_none(), offset >= size, "SEEK_HOLE finds the end of the file");
    assert!(hole.is_none_or(|hole| (offset..=size).contains(&hole)), "{hole:?}");
    assert!(data.is_none_or(|data| (offset..size).contains(&data)), "{data:?}");
    let skipped = |from: u64, to: Option<u64>| {
        content[within(content, from, to.unwrap_or(size).saturating_sub(from))].iter()
    };
    assert!(skipped(offset, data).all(|byte| *byte == 0), "SEEK_DATA skips data: {data:?}");
    if let Some(hole) = hole.filter(|hole| *hole < size) {
        let next = seek(SeekFrom::Data(hole))?;
        assert!(skipped(hole, next).all(|byte| *byte == 0), "a hole has data: {hole} to {next:?}");
    }
    Ok(())
}

/// Asserts equal bytes, and names the first difference.
#[track_caller]
fn assert_equal(expected: &[u8], found: &[u8], what: &str) {
    assert_eq!(expected.len(), found.len(), "bytes of {what}");
    let differs = expected.iter().zip(found).position(|(expected, found)| expected != found);
    assert_eq!(differs, None, "{what}: first byte that differs from the model");
}

#[test]
fn random_operations_match_the_model_also_after_kills() {
    let operations: u64 = std::env::var("WEIR_FILES_OPERATIONS")
        .map_or(OPERATIONS, |text| text.parse().expect("a number of operations"));
    let limit = LIMIT_1000 * (operations / 1000 + 1) as u32;
    on_fuse_within(limit, move || {
        let mut run = Run::start(Rng::from_env("WEIR_FILES_SEED"));
        while (run.log.len() as u64) < operations {
            match run.rng.below(400) {
                0..2 => run.remount(),
                2 => run.restart(),
                3..10 => run.kill(),
                _ => _ = run.step(false),
            }
        }
        run.compare("the last operation");
        run.restart();
        let server = run.server.take().expect("the server runs");
        run.files.clear();
        server.stop_clean();
        let disk = run.dirs.file("disk-a");
        let check = ["check", "tank", "-d", disk.to_str().unwrap()];
        crate::common::Ran::of("check", &crate::common::run(crate::common::WEIR, &check)).ok();
    });
}
