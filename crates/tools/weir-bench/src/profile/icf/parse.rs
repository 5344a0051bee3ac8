//! Parser for the keys and values of a configuration of Iometer.
//!
//! `icf` turns the configuration into a run.
//!
//! Invariants: all workers have the same load, because a run generates one load at a time; a key
//! that is neither read nor in the list of skipped keys is an error.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::super::error::{ProfileError, refuse};
use super::super::expand::IN_FLIGHT_MAX;
use super::super::imported::Skipped;
use super::super::lint::{Trap, trap};
use super::super::{SECTOR_BYTES, STAMPED_BYTES};

/// Prefixes of keys that do not change the load, each with the reason for which the import skips
/// the key.
const SKIPPED: [(&str, &str); 21] = [
    ("test description", "it is a comment"),
    ("default disk workers to spawn", "the workers are those of the manager list"),
    ("default network workers to spawn", "the workers are those of the manager list"),
    ("record results", "a run records everything"),
    ("worker cycling", "it belongs to another test type"),
    ("disk cycling", "it belongs to another test type"),
    ("queue depth cycling", "it belongs to another test type"),
    ("record last update results", "it controls Iometer's display"),
    ("bar chart", "it controls Iometer's display"),
    ("end ", "it ends a section of the file"),
    ("manager network address", "agents are named with --agent"),
    ("default target settings for worker", "it begins a section of the file"),
    ("target assignments", "it begins a section of the file"),
    ("target type", "only workers of type DISK measure storage"),
    ("hours", "it names the columns"),
    ("start", "it names the columns"),
    ("test setup", "it begins a section of the file"),
    ("results display", "it begins a section of the file"),
    ("access specifications", "it begins a section of the file"),
    ("manager list", "it begins a section of the file"),
    ("time stamp", "it is a comment"),
];
/// Keys of `SKIPPED` that the import reports. The other skipped keys only structure the file.
const NAMED: [&str; 6] = [
    "default disk workers",
    "default network workers",
    "record results",
    "manager network address",
    "record last update",
    "bar chart",
];
/// Longest duration: 366 days. A longer duration is certainly a mistake.
const TIME_MS_MAX: u64 = 366 * 86_400_000;

/// Values of a configuration that the run needs.
#[derive(Clone, Debug, Default)]
pub(super) struct Config {
    pub(super) run_ms: u64,
    pub(super) ramp_ms: u64,
    pub(super) specs: BTreeMap<String, Spec>,
    /// Names of the access specifications that are assigned to workers, with their line numbers.
    pub(super) assigned: Vec<(String, usize)>,
    pub(super) managers: u32,
    /// Number of workers that each manager has.
    pub(super) workers: u32,
    /// Number of operations that each worker has in flight.
    pub(super) depth: u32,
    /// Size of the test file in bytes; `None` if the test uses the whole disk.
    pub(super) size_bytes: Option<u64>,
    pub(super) size_line: usize,
    pub(super) traps: Vec<Trap>,
    pub(super) skipped: Vec<Skipped>,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Spec {
    pub(super) lines: Vec<Line>,
    /// Number of the line at which the access specification begins.
    line: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    pub(super) bytes: u32,
    pub(super) share_pct: u32,
    pub(super) read_pct: u32,
    pub(super) random_pct: u32,
    /// Alignment of the operations in bytes; 0 permits any sector.
    pub(super) align: u32,
    /// Number of the line in the file.
    pub(super) number: usize,
}

#[derive(Clone, Debug, Default)]
struct Worker {
    line: usize,
    depth: u32,
    sectors: u64,
    assigned: Vec<String>,
    targets: Vec<String>,
}

impl Worker {
    fn is_like(&self, other: &Self) -> bool {
        let of = |worker: &Self| (worker.depth, worker.sectors, worker.assigned.clone());
        of(self) == of(other)
    }
}

/// Parses a configuration.
pub(super) fn parse(file: &str, text: &str) -> Result<Config, ProfileError> {
    let mut reader = Reader { file, ..Reader::default() };
    for (number, raw) in (1..).zip(text.lines()) {
        match raw.strip_prefix('\'') {
            Some(comment) if comment.starts_with([' ', '\t']) => {}
            Some(key) => reader.key(key.trim(), number)?,
            None if raw.trim().is_empty() => {}
            None => reader.value(raw.trim(), number)?,
        }
    }
    reader.finish()
}

#[derive(Default)]
struct Reader<'a> {
    file: &'a str,
    config: Config,
    key: String,
    spec: String,
    run_line: usize,
    managers: Vec<Vec<Worker>>,
}

impl Reader<'_> {
    fn key(&mut self, key: &str, line: usize) -> Result<(), ProfileError> {
        self.key = key.to_ascii_lowercase();
        match self.key.as_str() {
            "worker" => match self.managers.last_mut() {
                Some(workers) => workers.push(Worker { line, ..Worker::default() }),
                None => {
                    let action = "put it below `'Manager ID, manager name`";
                    return Err(refuse(self.file, line, "a worker before any manager", action));
                }
            },
            known if is_read(known) => {}
            known => {
                let Some((_, why)) = SKIPPED.iter().find(|(begin, _)| known.starts_with(begin))
                else {
                    let what = format!("unknown key {key:?}");
                    let action = "remove it and its values if they do not change the load";
                    return Err(refuse(self.file, line, what, action));
                };
                if NAMED.iter().any(|begin| known.starts_with(begin)) {
                    let (file, word) = (self.file.to_owned(), key.to_owned());
                    let why = (*why).to_owned();
                    self.config.skipped.push(Skipped { file, line, word, why });
                }
            }
        }
        Ok(())
    }

    fn value(&mut self, text: &str, line: usize) -> Result<(), ProfileError> {
        let key = self.key.clone();
        match key.as_str() {
            "run time" => self.run_time(text, line),
            key if key.starts_with("ramp up time") => {
                let [seconds] = numbers::<1>(self.file, line, text, None)?;
                self.config.ramp_ms = self.time_ms(seconds, line)?;
                Ok(())
            }
            "test type" if !text.eq_ignore_ascii_case("normal") => {
                let what = format!("the test type is {text}: several loads, one after the other");
                let action = "save it as NORMAL, one file for each load";
                Err(refuse(self.file, line, what, action))
            }
            "access specification name,default assignment" => self.begin_spec(text, line),
            key if key.starts_with("size,% of size") => {
                let read = access(self.file, line, text)?;
                self.config.specs.entry(self.spec.clone()).or_default().lines.push(read);
                Ok(())
            }
            "manager id, manager name" => {
                self.managers.push(Vec::new());
                Ok(())
            }
            "worker type" if !text.eq_ignore_ascii_case("disk") => {
                let what = format!("a worker of type {text}");
                Err(refuse(self.file, line, what, "only DISK workers measure storage"))
            }
            _ => self.of_worker(&key, text, line),
        }
    }

    /// Reads a value that belongs to the worker that was read last.
    fn of_worker(&mut self, key: &str, text: &str, line: usize) -> Result<(), ProfileError> {
        let file = self.file;
        let worker = self.managers.last_mut().and_then(|workers| workers.last_mut());
        let Some(worker) = worker else { return Ok(()) };
        if key.starts_with("number of outstanding ios") {
            let [depth] = numbers::<1>(file, line, text, Some(','))?;
            worker.depth = u32::try_from(depth).unwrap_or(u32::MAX);
            if !(1..=65_536).contains(&worker.depth) {
                let what = format!("{depth} operations outstanding");
                return Err(refuse(file, line, what, "give 1 to 65536"));
            }
            let rest: Vec<&str> = text.split(',').map(str::trim).collect();
            if rest.get(1).is_some_and(|word| word.eq_ignore_ascii_case("enabled")) {
                let what = "the target is opened and closed over and over";
                return Err(refuse(file, line, what, "disable the test connection rate"));
            }
            if rest.get(3).is_some_and(|word| word.eq_ignore_ascii_case("enabled")) {
                let (word, why) = ("use fixed seed", "--seed gives the seed of a run");
                let (file, word, why) = (file.to_owned(), word.to_owned(), why.to_owned());
                self.config.skipped.push(Skipped { file, line, word, why });
            }
        } else if key.starts_with("disk maximum size") {
            let [sectors, start] = numbers::<2>(file, line, text, Some(','))?;
            if start != 0 {
                let what = format!("the data begins at sector {start}");
                let action = "give 0: in weir bench the data begins at the start of the target";
                return Err(refuse(file, line, what, action));
            }
            worker.sectors = sectors;
            self.config.size_line = line;
            let pattern = text.split(',').nth(2).map_or("0", str::trim);
            if !["0", "2"].contains(&pattern) {
                self.config.traps.push(trap(
                    format!("{file}:{line}: data pattern {pattern}"),
                    "weir bench generates the content, which is incompressible",
                    "compare with the full random pattern",
                ));
            }
        } else if key == "assigned access specs" {
            worker.assigned.push(text.to_owned());
            let known = self.config.assigned.iter().any(|(name, _)| name == text);
            if !known {
                self.config.assigned.push((text.to_owned(), line));
            }
        } else if key == "target" {
            worker.targets.push(text.to_owned());
            if worker.targets.len() > 1 {
                let what = "a worker has several targets, each with its own outstanding operations";
                return Err(refuse(file, line, what, "give each worker one target"));
            }
        }
        Ok(())
    }

    fn begin_spec(&mut self, text: &str, line: usize) -> Result<(), ProfileError> {
        // A name may contain commas, so the assignment is the text after the last comma.
        let name = text.rsplit_once(',').map_or(text, |(name, _)| name).trim();
        name.clone_into(&mut self.spec);
        let spec = Spec { lines: Vec::new(), line };
        if self.config.specs.insert(name.to_owned(), spec).is_some() {
            let what = format!("two access specifications are called {name:?}");
            return Err(refuse(self.file, line, what, "rename one"));
        }
        Ok(())
    }

    fn run_time(&mut self, text: &str, line: usize) -> Result<(), ProfileError> {
        let [hours, minutes, seconds] = numbers::<3>(self.file, line, text, None)?;
        let seconds = hours
            .saturating_mul(3600)
            .saturating_add(minutes.saturating_mul(60))
            .saturating_add(seconds);
        self.config.run_ms = self.time_ms(seconds, line)?;
        self.run_line = line;
        Ok(())
    }

    fn time_ms(&self, seconds: u64, line: usize) -> Result<u64, ProfileError> {
        let ms = seconds.saturating_mul(1000);
        if ms > TIME_MS_MAX {
            let what = format!("a time of {seconds} s is more than a year");
            return Err(refuse(self.file, line, what, "give a shorter time"));
        }
        Ok(ms)
    }

    fn finish(self) -> Result<Config, ProfileError> {
        let (file, mut config) = (self.file, self.config);
        let refuse = |line: usize, what: &str, action: &str| Err(refuse(file, line, what, action));
        let Some(worker) = self.managers.first().and_then(|workers| workers.first()) else {
            return refuse(1, "there is no worker", "save the file with managers and workers");
        };
        let count = self.managers[0].len();
        for workers in &self.managers {
            let line = workers.last().map_or(worker.line, |last| last.line);
            if workers.len() != count {
                return refuse(
                    line,
                    "managers have different numbers of workers",
                    "make them equal",
                );
            }
            if let Some(other) = workers.iter().find(|other| !other.is_like(worker)) {
                let action = "make them equal, or use two files";
                return refuse(other.line, "workers differ from each other", action);
            }
            if let Some(other) = workers.iter().find(|other| other.targets != workers[0].targets) {
                let action = "a run has one target: use a file for each";
                return refuse(other.line, "workers have different targets", action);
            }
        }
        if worker.assigned.is_empty() || worker.depth == 0 {
            let action = "assign access specifications and a depth";
            return refuse(worker.line, "workers have nothing to do", action);
        }
        if count as u64 * u64::from(worker.depth) > IN_FLIGHT_MAX {
            let what = format!("more than {IN_FLIGHT_MAX} operations are in flight");
            return refuse(worker.line, &what, "use several managers");
        }
        if config.run_ms == 0 {
            let action = "give a time";
            return refuse(
                self.run_line.max(1),
                "the run time is 0, which means unlimited",
                action,
            );
        }
        let bad = |spec: &&Spec| spec.lines.iter().map(|line| line.share_pct).sum::<u32>() != 100;
        if let Some(spec) = config.specs.values().find(bad) {
            let action = "correct `% of size`";
            return refuse(spec.line, "the shares of the sizes do not add up to 100 %", action);
        }
        config.size_line = config.size_line.max(1);
        config.depth = worker.depth;
        config.workers = count as u32;
        config.managers = self.managers.len() as u32;
        let Some(bytes) = worker.sectors.checked_mul(SECTOR_BYTES) else {
            return refuse(config.size_line, "the disk is larger than 2^64 bytes", "use less data");
        };
        config.size_bytes = Some(bytes).filter(|bytes| *bytes > 0);
        Ok(config)
    }
}

/// True if the parser reads the values below a key.
fn is_read(key: &str) -> bool {
    let whole = [
        "run time",
        "test type",
        "access specification name,default assignment",
        "manager id, manager name",
        "worker type",
        "assigned access specs",
        "target",
    ];
    let begins =
        ["ramp up time", "size,% of size", "number of outstanding ios", "disk maximum size"];
    whole.contains(&key) || begins.iter().any(|begin| key.starts_with(begin))
}

/// Parses a line of the form `size,% of size,% reads,% random,delay,burst,align,reply`.
fn access(file: &str, line: usize, text: &str) -> Result<Line, ProfileError> {
    let values = numbers::<8>(file, line, text, Some(','))?;
    let [bytes, share, read, random, delay, burst, align, reply] = values;
    let bad = |what: &dyn Display, action: &str| Err(refuse(file, line, what.to_string(), action));
    if bytes == 0 || !bytes.is_multiple_of(SECTOR_BYTES) || bytes > 64 << 20 {
        return bad(
            &format_args!("blocks of {bytes} bytes"),
            "give a multiple of 512 up to 64 MiB",
        );
    }
    if share > 100 || read > 100 || random > 100 {
        return bad(&"a share is over 100 percent", "give 0 to 100");
    }
    if delay != 0 {
        let action = "use a delay of 0, or an open loop in a TOML profile";
        return bad(&format_args!("a delay of {delay} ms after {burst} operations"), action);
    }
    // If the block size is a multiple of 4 KiB, content has a stamp for every 4 KiB; otherwise
    // content has a stamp for every sector.
    let is_stamped = bytes.is_multiple_of(STAMPED_BYTES);
    let stamped = if is_stamped { STAMPED_BYTES } else { SECTOR_BYTES };
    if !align.is_multiple_of(stamped) || align > 64 << 20 {
        let action = "give 0, a multiple of 4096, or the size of the request";
        return bad(&format_args!("blocks aligned to {align} bytes"), action);
    }
    if reply != 0 {
        return bad(&"only network tests use a reply", "give a reply of 0");
    }
    let [bytes, share_pct, read_pct, random_pct, align] =
        [bytes, share, read, random, align].map(|value| value as u32);
    Ok(Line { bytes, share_pct, read_pct, random_pct, align, number: line })
}

/// Parses the first `N` numbers in a line.
fn numbers<const N: usize>(
    file: &str,
    line: usize,
    text: &str,
    between: Option<char>,
) -> Result<[u64; N], ProfileError> {
    let parts: Vec<&str> = match between {
        Some(between) => text.split(between).map(str::trim).collect(),
        None => text.split_whitespace().collect(),
    };
    let read = parts.iter().take(N).map(|part| part.parse::<u64>().ok());
    let read: Option<Vec<u64>> = read.collect();
    let read = read.and_then(|values| <[u64; N]>::try_from(values).ok());
    read.ok_or_else(|| {
        let what = format!("{text:?} are not {N} numbers");
        refuse(file, line, what, "save the file again with Iometer")
    })
}
